# SPDX-License-Identifier: Apache-2.0
"""The ninth held-out set of families of series: written without a look at the method.

Its rules are those of the seventh set (trend_families_seventh.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

from trend_families import Series, around, family, some_level
from trend_programs import (
    added,
    drawn_until_enough,
    leaking,
    log_uniform,
    poisson,
    some_length,
    steady,
)

__all__: list[str] = []


def _period(rng: random.Random, count: int, least: int, cycles: int) -> int:
    """How many steps a round takes, of which a series has so many or more."""
    return rng.randint(least, max(count // cycles, least))


def _lasting(draw: Callable[[], Series]) -> Series:
    """A leak with events enough, whose last quarter leaves its part of the whole."""
    while True:
        kept = drawn_until_enough(draw)
        if kept[-1] - kept[3 * len(kept) // 4] > (kept[-1] - kept[0]) / 6.5:
            return kept


def _summed(sizes: Series) -> Series:
    return list(itertools.accumulate(sizes))


def _hit_at_random(rng: random.Random, count: int, rate: float) -> Series:
    """One for each step in which something happens that is so likely, else nothing."""
    return [float(rng.random() < rate) for _ in range(count)]


def _rounds(rng: random.Random, count: int, length: int, loose: float) -> list[tuple[int, int]]:
    """Of each step the round that it is in and its place there; rounds may differ in length."""
    places = [(0, at) for at in range(rng.randrange(length), length)]
    while len(places) < count:
        steps = max(round(length * rng.uniform(1 - loose, 1 + loose)), 1)
        places += [(places[-1][0] + 1, at) for at in range(steps)]
    return places[:count]


def _visits(rng: random.Random, rates: Series, stay: int) -> Series:
    """How many are there, of what comes at these rates and stays so many steps at most."""
    count = len(rates)
    there = [0.0] * (count + 2 * stay)
    for at in range(count + stay):
        for _ in range(poisson(rng, rates[max(at - stay, 0)])):
            for step in range(at, at + rng.randint(1, stay)):
                there[step] += 1.0
    return there[stay : stay + count]


def _day(rng: random.Random, count: int, period: float, depth: float) -> Series:
    """A wave about one, of this depth, that begins anywhere."""
    start = rng.random()
    return [1 + depth * math.sin(2 * math.pi * (start + at / period)) for at in range(count)]


# ---- What does not leak


@family("steady", "held-out-9")
def self_play_tree_rerooted(rng: random.Random) -> Series:
    """A search tree grows with each simulation and is cut to the chosen branch with each move."""
    count, level = some_length(rng), some_level(rng)
    node = level * log_uniform(rng, 0.002, 0.1)
    length, branch = _period(rng, count, 2, 20), rng.uniform(0.05, 0.3)
    moves = _rounds(rng, count, length, rng.uniform(0.0, 0.5))
    tree = node * (moves[0][1] + length * branch / (1 - branch))
    found: Series = []
    for at, one in enumerate(moves):
        if at and one[1] == 0:
            tree *= branch * rng.uniform(0.3, 1.7)
        tree += node * rng.uniform(0.6, 1.4)
        found.append(tree)
    return steady(rng, added(around(rng, count, level), found), level * 0.5)


@family("steady", "held-out-9")
def clips_of_several_resolutions(rng: random.Random) -> Series:
    """Videos are restored one after the other, each in one of a few resolutions."""
    count, level = some_length(rng), some_level(rng)
    kinds = [level * rng.uniform(0.1, 1.5) for _ in range(rng.randint(3, 6))]
    shares = [rng.uniform(0.3, 1.0) for _ in kinds]
    found: Series = []
    longest = max(count // 45, 2)
    while len(found) < count:
        frames = rng.choices(kinds, shares)[0]
        found += [frames] * rng.randint(1, longest)
    return steady(rng, added(around(rng, count, level), found[:count]), level * 0.5)


@family("steady", "held-out-9")
def documents_sorted_in_megabatches(rng: random.Random) -> Series:
    """Documents are sorted by length within each megabatch, so that each one ends the longest."""
    count, level = some_length(rng), some_level(rng)
    period = _period(rng, count, 3, 14)
    power, height = rng.uniform(0.5, 4.0), level * log_uniform(rng, 0.03, 1.0)
    longest_first, uneven = rng.random() < 0.3, rng.choice((0.0, 0.05, 0.15))
    found: Series = []
    for _, at in _rounds(rng, count, period, 0.0):
        place = (period - 1 - at if longest_first else at) / (period - 1)
        found.append(height * place**power * rng.uniform(1 - uneven, 1 + uneven))
    return steady(rng, added(around(rng, count, level), found), level * 0.5)


@family("steady", "held-out-9")
def chats_by_day_and_night(rng: random.Random) -> Series:
    """A server of chats keeps keys and values of those that are open, fewer of them at night."""
    count, level = some_length(rng), some_level(rng)
    rate, stay = log_uniform(rng, 1.0, 8.0), rng.randint(2, max(count // 40, 3))
    days = _day(rng, count, rng.uniform(count / 14, count / 7), rng.uniform(0.0, 0.9))
    open_chats = _visits(rng, [rate * one for one in days], stay)
    chat = level * log_uniform(rng, 0.003, 0.1)
    return steady(rng, [level + chat * one for one in open_chats], level * 0.5)


@family("steady", "held-out-9")
def layers_thawed_from_the_top(rng: random.Random) -> Series:
    """Fine-tuning thaws one group of layers after the other, early, and then trains them all."""
    count, level = some_length(rng), some_level(rng)
    groups, last = rng.randint(2, 12), rng.uniform(0.1, 0.36) * count
    group = level * log_uniform(rng, 0.02, 0.3)
    alike, when = rng.random() < 0.5, rng.uniform(0.6, 1.6)
    found = [0.0] * count
    for number in range(1, groups + 1):
        begins = round(last * (number / groups) ** when)
        size = group * (1.0 if alike else rng.uniform(0.2, 1.8))
        found[begins:] = [one + size for one in found[begins:]]
    return steady(rng, added(around(rng, count, level), found), level * 0.3)


@family("steady", "held-out-9")
def critic_steps_then_generator(rng: random.Random) -> Series:
    """Several steps of the critic come for one of the generator, some with a penalty."""
    count, level = some_length(rng), some_level(rng)
    critic, generator = (level * log_uniform(rng, 0.01, 0.8) for _ in range(2))
    penalty = level * log_uniform(rng, 0.01, 0.5)
    turn, lazy = rng.randint(2, 7), rng.choice((0, 4, 5, 9))
    start = rng.randrange(turn)
    found: Series = []
    for at in range(start, start + count):
        found.append(generator if at % turn == 0 else critic)
        if lazy and at % lazy == 0:
            found[-1] += penalty
    return steady(rng, added(around(rng, count, level), found), level * 0.5)


@family("steady", "held-out-9")
def mesh_of_a_pulsating_star(rng: random.Random) -> Series:
    """A simulation refines its mesh where the shock is, fast, and coarsens it behind, slowly."""
    count, level = some_length(rng), some_level(rng)
    period, attack = rng.uniform(max(count / 16, 5), max(count / 8, 6)), rng.uniform(0.08, 0.5)
    height, decay = level * log_uniform(rng, 0.03, 1.2), rng.uniform(1.0, 4.0)
    uneven, start = rng.choice((0.0, 0.1, 0.3)), rng.random()
    heights = [height * rng.uniform(1 - uneven, 1 + uneven) for _ in range(count)]
    found: Series = []
    for at in range(count):
        cycle, place = divmod(start + at / period, 1.0)
        left = 1 - (place - attack) / (1 - attack)
        form = place / attack if place < attack else left**decay
        found.append(heights[int(cycle)] * form)
    return steady(rng, added(around(rng, count, level), found), level * 0.3)


@family("steady", "held-out-9")
def cell_run_again_and_rebound(rng: random.Random) -> Series:
    """A notebook holds the old model beside the new one from a run of a cell to the rebinding."""
    count, level = some_length(rng), some_level(rng)
    model, often = level * log_uniform(rng, 0.05, 0.9), log_uniform(rng, 0.02, 0.12)
    copies = _visits(rng, [often] * count, max(count // 30, 2))
    plots = _visits(rng, [often * rng.uniform(0.5, 4.0)] * count, max(count // 50, 1))
    plot = model * rng.uniform(0.02, 0.2)
    found = [model * min(one, 2.0) + plot * other for one, other in zip(copies, plots, strict=True)]
    return steady(rng, added(around(rng, count, level, 0.001), found), level * 0.5)


@family("steady", "held-out-9")
def weights_pruned_until_sparse(rng: random.Random) -> Series:
    """Rounds of pruning shrink a network early, in smaller and smaller cuts, and then tune it."""
    count, level = some_length(rng), some_level(rng)
    cuts, last = rng.randint(1, 14), rng.uniform(0.1, 0.36) * count
    share = 1 - rng.uniform(0.1, 0.8) ** (1 / cuts)
    found, held = list[float](), level
    for at in range(count):
        done = min(math.floor(cuts * at / last), cuts)
        held = level * (1 - share) ** done
        found.append(held)
    wobble = around(rng, count, held, rng.choice((0.001, 0.005)))
    return steady(rng, [one + two - held for one, two in zip(found, wobble, strict=True)], held / 3)


@family("steady", "held-out-9")
def kernels_kept_for_seen_shapes(rng: random.Random) -> Series:
    """Each shape that is new leaves a workspace; soon all that there are have been seen."""
    count, level = some_length(rng), some_level(rng)
    shapes, last = rng.randint(3, 40), rng.uniform(0.08, 0.34) * count
    sizes = [level * log_uniform(rng, 0.002, 0.06) for _ in range(shapes)]
    bend = rng.uniform(0.7, 3.0)
    times = [last * rng.random() ** bend for _ in sizes]
    batch = [level * one for one in (0.0, *(rng.uniform(0.0, 0.05) for _ in range(3)))]
    found: Series = []
    for at in range(count):
        seen = math.fsum(size for size, new in zip(sizes, times, strict=True) if new <= at)
        found.append(seen + rng.choice(batch))
    return steady(rng, added(around(rng, count, level, 0.001), found), level * 0.2)


@family("steady", "held-out-9")
def neighbourhoods_with_hubs(rng: random.Random) -> Series:
    """Batches of a graph hold neighbours of random nodes, and very many where one is a hub."""
    count, level = some_length(rng), some_level(rng)
    usual, tail = level * log_uniform(rng, 0.005, 0.2), rng.uniform(1.3, 4.0)
    most, hops = rng.uniform(8.0, 30.0), rng.randint(1, 4)
    found: Series = []
    for _ in range(count):
        drawn = (min(rng.paretovariate(tail), most) for _ in range(hops))
        found.append(usual * math.fsum(drawn) / hops)
    return steady(rng, added(around(rng, count, level), found), level * 0.5)


@family("cycle_garbage", "held-out-9")
def callbacks_await_the_collector(rng: random.Random) -> Series:
    """Callbacks and trainers refer to each other; a young collection frees most, a full one all."""
    count, level = some_length(rng), some_level(rng)
    full = _period(rng, count, 3, 11)
    young_each = rng.randint(1, max(full // 2, 1))
    cycle, survive = level * log_uniform(rng, 0.005, 0.25), rng.uniform(0.0, 0.7)
    young = old = 0.0
    found: Series = []
    for _, at in _rounds(rng, count, full, rng.uniform(0.0, 0.4)):
        young += cycle * rng.uniform(0.5, 1.5)
        if at == 0:
            young = old = 0.0
        elif at % young_each == 0:
            young, old = 0.0, old + survive * young
        found.append(young + old)
    return steady(rng, added(around(rng, count, level, 0.001), found), level * 0.3)


# ---- What leaks


@family("leak", "held-out-9")
def padded_loss_keeps_its_graph(rng: random.Random) -> Series:
    """A running loss keeps the graph of each batch, the more of it the longer its texts are."""
    count, level = some_length(rng), some_level(rng)
    lengths: Series = []
    shortest = rng.uniform(0.1, 0.9)
    every = rng.randint(1, max(count // 30, 1))

    def draw() -> Series:
        lengths[:] = [rng.uniform(shortest, 1.0) for _ in range(count)]
        return _summed([one * (at % every == 0) for at, one in enumerate(lengths)])

    kept, batch = _lasting(draw), level * log_uniform(rng, 0.01, 0.3)
    base = added(around(rng, count, level), [batch * one for one in lengths])
    return leaking(rng, base, kept, level)


@family("leak", "held-out-9")
def adapters_of_every_visitor(rng: random.Random) -> Series:
    """A server keeps an adapter of each user it has ever seen, of whom fewer and fewer are new."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        power, users = rng.uniform(0.65, 1.0), rng.uniform(15, 4 * count)
        at_all = [users * (at / count) ** power for at in range(count + 1)]
        new = [poisson(rng, after - one) for one, after in itertools.pairwise(at_all)]
        return _summed([float(one) for one in new])

    kept = _lasting(draw)
    rate, stay = log_uniform(rng, 0.5, 4.0), rng.randint(1, max(count // 40, 2))
    request = level * log_uniform(rng, 0.002, 0.05)
    busy = [request * one for one in _visits(rng, [rate] * count, stay)]
    return leaking(rng, added(around(rng, count, level, 0.001), busy), kept, level)


@family("leak", "held-out-9")
def hooks_added_once_an_epoch(rng: random.Random) -> Series:
    """Each epoch registers its hooks again, and each of them keeps an activation a step."""
    count, level = some_length(rng), some_level(rng)
    epoch = _period(rng, count, 2, 10)
    epochs = _rounds(rng, count, epoch, 0.0)

    def draw() -> Series:
        hooks = rng.uniform(0.25, 1.5) * count / epoch
        return _summed([hooks + number for number, _ in epochs])

    kept, height = _lasting(draw), level * log_uniform(rng, 0.005, 0.2)
    checked = rng.randint(1, max(epoch // 4, 1))
    checks = [height * (place < checked) for _, place in epochs]
    return leaking(rng, added(around(rng, count, level), checks), kept, level)


@family("leak", "held-out-9")
def failed_tasks_in_tracebacks(rng: random.Random) -> Series:
    """Tasks fail at random, and the list of their errors keeps the frames with all tensors."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        rate = min(log_uniform(rng, 14, 120) / count, 0.9)
        shape = rng.uniform(0.8, 5.0)
        failed = _hit_at_random(rng, count, rate)
        return _summed([one and rng.gammavariate(shape, 1.0) for one in failed])

    kept = _lasting(draw)
    kinds = [level * rng.uniform(0.0, 0.1) for _ in range(rng.randint(1, 4))]
    tasks = [rng.choice(kinds) for _ in range(count)]
    return leaking(rng, added(around(rng, count, level, 0.002), tasks), kept, level)


@family("leak", "held-out-9")
def transcripts_beside_search_tree(rng: random.Random) -> Series:
    """Games of self-play free their tree in the end, but not the positions of their transcript."""
    count, level = some_length(rng), some_level(rng)
    length, loose = _period(rng, count, 1, 17), rng.uniform(0.0, 0.5)
    games = _rounds(rng, count, length, 0.0)

    def draw() -> Series:
        games[:] = _rounds(rng, count, length, loose)
        ends = [0.0, *(float(one != after) for (one, _), (after, _) in itertools.pairwise(games))]
        return _summed([one * rng.uniform(0.4, 1.6) for one in ends])

    kept, height = _lasting(draw), level * log_uniform(rng, 0.005, 0.2)
    tree = [height * place / length for _, place in games]
    return leaking(rng, added(around(rng, count, level, 0.001), tree), kept, level)


@family("leak", "held-out-9")
def latents_of_all_videos_kept(rng: random.Random) -> Series:
    """Sampling keeps the latents of each video; decoding one needs much for a step or a few."""
    count, level = some_length(rng), some_level(rng)
    length = _period(rng, count, 2, 13)
    videos = _rounds(rng, count, length, 0.0)
    decodes = rng.randint(1, max(length // 3, 1))

    def draw() -> Series:
        frames = rng.choice((0.0, 0.3, 0.8))
        sizes = [rng.uniform(1 - frames, 1 + frames) for _ in range(count)]
        return _summed([size * (at == 0) for size, (_, at) in zip(sizes, videos, strict=True)])

    kept, decoder = _lasting(draw), level * log_uniform(rng, 0.02, 0.4)
    decoding = [decoder * (at >= length - decodes) for _, at in videos]
    return leaking(rng, added(around(rng, count, level, 0.001), decoding), kept, level)


@family("leak", "held-out-9")
def attention_maps_after_switch(rng: random.Random) -> Series:
    """From some step on attention maps are gathered for a plot that is drawn when all is done."""
    count, level = some_length(rng), some_level(rng)
    begins = round(count * rng.uniform(0.08, 0.42))

    def draw() -> Series:
        every = rng.randint(1, max(count // 40, 1))
        uneven = rng.choice((0.0, 0.2, 0.9))
        gathered = [at >= begins and (at - begins) % every == 0 for at in range(count)]
        return _summed([one and rng.uniform(1 - uneven, 1 + uneven) for one in gathered])

    return leaking(rng, around(rng, count, level), _lasting(draw), level, 1.3)


@family("leak", "held-out-9")
def particle_buffers_by_the_chunk(rng: random.Random) -> Series:
    """Particles that left the domain stay in buffers, which get a chunk when they are full."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        chunks, gusts = rng.uniform(13, 60), rng.uniform(0.3, 3.0)
        lost = _summed([rng.gammavariate(gusts, 1.0) for _ in range(count)])
        return [float(math.floor(chunks * one / lost[-1])) for one in lost]

    kept = _lasting(draw)
    tides = _day(rng, count, rng.uniform(count / 20, count / 7), rng.uniform(0.0, 0.03))
    base = added(around(rng, count, level, 0.001), [level * one for one in tides])
    return leaking(rng, base, kept, level, 1.2)


@family("leak", "held-out-9")
def trials_of_an_architecture_search(rng: random.Random) -> Series:
    """Each trial trains another network and leaves its optimizer in the list of the trials."""
    count, level = some_length(rng), some_level(rng)
    length, apart = _period(rng, count, 1, 18), rng.uniform(0.05, 0.5)
    networks: Series = []

    def draw() -> Series:
        trials = _rounds(rng, count, length, rng.uniform(0.0, 0.4))
        drawn = [rng.uniform(1 - apart, 1 + apart) for _ in range(count + 1)]
        networks[:] = [drawn[number] for number, _ in trials]
        pairs = itertools.pairwise(trials)
        left = [drawn[one] * (one != after) for (one, _), (after, _) in pairs]
        return _summed([0.0, *left])

    kept, size = _lasting(draw), level * log_uniform(rng, 0.01, 0.15)
    base = added(around(rng, count, level, 0.001), [size * one for one in networks])
    return leaking(rng, base, kept, level)


@family("leak", "held-out-9")
def writer_queue_in_busy_hours(rng: random.Random) -> Series:
    """In busy hours a writer of images to a log drops some from its queue but never frees them."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        hours = _day(rng, count, rng.uniform(count / 14, count / 6), rng.uniform(1.0, 2.0))
        each = rng.uniform(0.5, 6.0)
        return _summed([float(poisson(rng, each * max(one, 0.0))) for one in hours])

    kept = _lasting(draw)
    images = level * log_uniform(rng, 0.001, 0.03)
    waiting = [images * one for one in _visits(rng, [1.0] * count, max(count // 60, 1))]
    return leaking(rng, added(around(rng, count, level, 0.001), waiting), kept, level)
