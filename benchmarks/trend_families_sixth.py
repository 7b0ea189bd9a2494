# SPDX-License-Identifier: Apache-2.0
"""The sixth held-out set of families of series: written without a look at the method.

Its rules are those of the fifth set (trend_families_fifth.py), and its programs are others.
Twelve plots of each family were looked at here too, and families were mended until an engineer
who is shown only the plot would say of the leaks, and of nothing else, that they leak.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

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


def _with(rng: random.Random, level: float, share: float, held: Series) -> Series:
    """The level in little noise, and such a share of it times what is held besides."""
    noise = around(rng, len(held), level, 0.001)
    return [one + share * level * value for one, value in zip(noise, held, strict=True)]


def _kept(draw: Callable[[], Iterable[float]]) -> Series:
    """All that the steps leave, drawn until it keeps the rules of a leak; the last quarter leaves
    a seventh of it or more, so that the end does not look like a plateau."""
    while True:
        kept = drawn_until_enough(lambda: list(itertools.accumulate(draw(), initial=0.0))[1:])
        if 7 * (kept[-1] - kept[3 * len(kept) // 4]) > kept[-1] - kept[0]:
            return kept


# What is steady


@family("steady", "held-out-6")
def gaussians_densified_and_pruned(rng: random.Random) -> Series:
    """Splatting: until before half Gaussians are cloned, and pruned; a view shows some of them."""
    count, level = some_length(rng), some_level(rng)
    end, share = rng.uniform(0.15, 0.47) * count, log_uniform(rng, 0.1, 2.0)
    every = max(round(end / rng.randint(5, 40)), 1)
    prune, left = every * rng.randint(3, 8), rng.uniform(0.6, 0.95)
    number, numbers = rng.uniform(0.5, 4.0), []
    for step in range(count):
        if step % every == 0 and step < end:
            number = number * left if step % prune == prune - every else number + rng.random()
        numbers.append(number)
    views = rng.uniform(0.0, 0.15)
    held = [one / number * (1 + views * rng.random()) for one in numbers]
    return steady(rng, _with(rng, level, share, held), 0.0)


@family("steady", "held-out-6")
def history_of_lbfgs(rng: random.Random) -> Series:
    """Style transfer by L-BFGS, whose history fills up with vectors and goes with each picture."""
    count, level = some_length(rng), some_level(rng)
    steps = max(count * log_uniform(rng, 1 / 40, 1 / 9), 3.0)
    history, early = max(round(steps * rng.uniform(0.2, 0.9)), 2), rng.uniform(0.0, 0.5)
    sizes, pair = rng.choice(((1.0,), (0.5, 1.0), (0.4, 0.7, 1.0))), log_uniform(rng, 0.02, 0.8)
    held: Series = []
    start = rng.randrange(round(steps))
    while len(held) < start + count:
        size, last = rng.choice(sizes), max(round(steps * (1 - early * rng.random())), 2)
        held += [size * (0.3 + min(at, history) / history) for at in range(last)]
    return steady(rng, _with(rng, level, pair, held[start : start + count]), 0.1 * level)


@family("steady", "held-out-6")
def models_unloaded_when_idle(rng: random.Random) -> Series:
    """A server loads a model when it is asked for, and unloads it when nobody did for a while."""
    count, level = some_length(rng), some_level(rng)
    idle = max(count * log_uniform(rng, 1 / 150, 1 / 40), 1.0)
    before, found = rng.choice((0, round(10 * idle))), around(rng, count, 0.2 * level)
    for _ in range(rng.randint(2, 10)):
        size, often = level * rng.lognormvariate(-1.5, 0.7), log_uniform(rng, 0.1, 1.8) / idle
        at = rng.expovariate(often) - before
        while at < count:
            loaded, until = at, at + idle
            while (at := at + rng.expovariate(often)) < until:
                until = at + idle
            for step in range(max(round(loaded), 0), min(math.ceil(until), count)):
                found[step] += size
    return steady(rng, found, 0.1 * level)


class _Image(NamedTuple):
    """An image of a diffusion server: its first step of denoising, how many there are, its size."""

    start: int
    steps: int
    size: float


def _images(rng: random.Random, count: int) -> Iterator[_Image]:
    """Images of so many steps, one after another, with pauses or without."""
    steps, batch = max(count * log_uniform(rng, 1 / 60, 1 / 16), 2.0), rng.randint(1, 4)
    sides, quick = rng.choice(((1.0,), (0.7, 1.0), (0.5, 0.75, 1.0))), rng.choice((1.0, 0.5))
    pause = steps * rng.choice((0.0, 0.3, 1.0))
    at = -rng.randrange(round(steps))
    while at < count:
        length = max(round(steps * rng.choice((quick, 1.0))), 2)
        yield _Image(at, length, rng.choice(sides) ** 2 * rng.randint(1, batch) / batch)
        at += length + round(pause * rng.expovariate(1.0))


def _of_images(rng: random.Random, count: int, level: float, images: list[_Image]) -> Series:
    """What the images hold: the same while they are denoised, more when they are decoded."""
    share, decoded = log_uniform(rng, 0.02, 0.5), rng.uniform(1.2, 3.0)
    found = around(rng, count, level, 0.001)
    for start, steps, size in images:
        for at in range(max(start, 0), min(start + steps, count)):
            found[at] += level * share * size * (decoded if at == start + steps - 1 else 1.0)
    return found


@family("steady", "held-out-6")
def images_of_many_sizes(rng: random.Random) -> Series:
    """A diffusion server denoises images of many sizes and batches, and decodes each at its end."""
    count, level = some_length(rng), some_level(rng)
    return steady(rng, _of_images(rng, count, level, list(_images(rng, count))), 0.1 * level)


@family("steady", "held-out-6")
def embeddings_until_a_shard_is_full(rng: random.Random) -> Series:
    """Embeddings stay until a shard of their kind is full; to be written, they are concatenated."""
    count, level = some_length(rng), some_level(rng)
    found = around(rng, count, level, 0.001)
    for _ in range(rng.randint(1, 3)):
        shard = max(count * log_uniform(rng, 1 / 40, 1 / 9), 3.0)
        spread, again = rng.uniform(0.0, 0.8), rng.choice((0.0, rng.random()))
        row, rows = level * log_uniform(rng, 0.02, 0.5) / shard, shard * rng.random()
        for step in range(count):
            rows += rng.lognormvariate(-spread * spread / 2, spread)
            found[step] += row * rows
            if rows >= shard:
                found[step] += again * row * rows
                rows = 0.0
    return steady(rng, found, 0.1 * level)


def _games(rng: random.Random, count: int) -> Series:
    """Nodes of a search tree: it grows, each move leaves a part of it, and each game none."""
    game = max(count * log_uniform(rng, 1 / 40, 1 / 10), 4.0)
    move = max(round(game / rng.randint(3, 25)), 1)
    narrow, nodes = rng.uniform(0.0, 0.8), list[float]()
    start = rng.randrange(round(game))
    while len(nodes) < start + count:
        tree, length = 0.0, max(round(game * rng.uniform(0.5, 1.5)), 2)
        for step in range(length):
            if step % move == 0:
                tree *= rng.uniform(narrow, 1.0) * step / length
            tree += rng.uniform(0.5, 1.5)
            nodes.append(tree)
    return nodes[start : start + count]


@family("steady", "held-out-6")
def trees_of_a_search(rng: random.Random) -> Series:
    """Monte Carlo tree search, for one game after another, or two beside each other."""
    count, level = some_length(rng), some_level(rng)
    held = added(*(_games(rng, count) for _ in range(rng.randint(1, 2))))
    share = log_uniform(rng, 0.02, 1.0) / max(held)
    return steady(rng, _with(rng, level, share, held), 0.1 * level)


def _scenes(rng: random.Random, count: int) -> Series:
    """How many objects a camera sees, frame by frame: about as many until the scene changes."""
    lasts = max(count * log_uniform(rng, 1 / 100, 1 / 25), 1.5)
    spread, objects = rng.uniform(0.3, 0.9), log_uniform(rng, 2.0, 40.0)
    found: Series = []
    while len(found) < count:
        scene = objects * min(rng.lognormvariate(0.0, spread), 4.0)
        found += [float(poisson(rng, scene)) for _ in range(1 + int(rng.expovariate(1 / lasts)))]
    return found[:count]


@family("steady", "held-out-6")
def objects_of_video_scenes(rng: random.Random) -> Series:
    """Video from some cameras: each object that is detected in a frame is cropped and embedded."""
    count, level = some_length(rng), some_level(rng)
    held = added(*(_scenes(rng, count) for _ in range(rng.randint(1, 4))))
    share = log_uniform(rng, 0.02, 0.8) / max(held)
    return steady(rng, _with(rng, level, share, held), 0.1 * level)


@family("steady", "held-out-6")
def sampled_by_a_clock(rng: random.Random) -> Series:
    """A clock, out of beat with the steps, sees activations pile up and go within each of them."""
    count, level = some_length(rng), some_level(rng)
    # So far from whole steps, and from halves and thirds, that no wave seems to last for long.
    steps = rng.randint(0, 3) + log_uniform(rng, 5 / count, 0.28)
    start, forward = rng.random(), rng.uniform(0.2, 0.4)
    backward = forward + rng.uniform(0.3, 0.55)
    height, late = level * log_uniform(rng, 0.05, 1.5), rng.choice((0.0, 0.01, 0.05))
    spread, found = rng.choice((0.0, 0.1, 0.3)), around(rng, count, level, 0.001)
    batches = [rng.lognormvariate(0.0, spread) for _ in range(4 * count + 2)]
    for sample in range(count):
        at = max(start + sample * steps + late * rng.gauss(0.0, 1.0), 0.0)
        piled = min(at % 1.0 / forward, (backward - at % 1.0) / (backward - forward))
        found[sample] += height * batches[int(at)] * max(piled, 0.0)
    return steady(rng, found, 0.0)


def _unsent(rng: random.Random, count: int) -> Series:
    """Buffers of a pipeline's sends: a few, but more and more while the next rank is late."""
    between = max(count * log_uniform(rng, 1 / 60, 1 / 18), 2.0)
    usual, late, drained = rng.randint(1, 4), rng.uniform(0.1, 0.5), rng.uniform(1.5, 6.0)
    held, found = 0.0, list[float]()
    while len(found) < count:
        for _ in range(round(rng.expovariate(1 / between))):
            held = max(held - drained, 0.0)
            found.append(held + rng.randint(1, usual))
        for _ in range(1 + round(late * between * rng.uniform(0.3, 1.7))):
            held += rng.uniform(0.6, 1.4)
            found.append(held + rng.randint(1, usual))
    return found[:count]


@family("steady", "held-out-6")
def sends_while_a_rank_is_late(rng: random.Random) -> Series:
    """Pipeline parallelism: what was sent is held until it arrived, and some ranks are late."""
    count, level = some_length(rng), some_level(rng)
    share = log_uniform(rng, 0.003, 0.1)
    return steady(rng, _with(rng, level, share, _unsent(rng, count)), 0.1 * level)


@family("steady", "held-out-6")
def difficulty_that_adapts(rng: random.Random) -> Series:
    """RL on levels that get bigger when the agent wins, until before half, or smaller when not."""
    count, level = some_length(rng), some_level(rng)
    learned, every = rng.uniform(0.05, 0.25) * count, max(round(count / rng.randint(60, 150)), 1)
    hardest, growth = rng.uniform(2.0, min(8.0, count / 12)), rng.uniform(1.0, 1.25)
    width, share, difficulty = rng.uniform(0.2, 0.5), log_uniform(rng, 0.02, 0.3), 0
    found, changes = around(rng, count, level, 0.001), rng.uniform(0.6, 1.0)
    for step in range(count):
        if step % every == 0 and rng.random() < changes:
            ahead = hardest * min(step / learned, 1.0) - difficulty
            succeeds = 1 / (1 + math.exp(-ahead / width))
            difficulty += 1 if rng.random() < succeeds else -(difficulty > 0)
        found[step] += level * share * difficulty * growth**difficulty / hardest
    return steady(rng, found, 0.05 * level)


# Collected garbage


@family("cycle_garbage", "held-out-6")
def trainers_of_the_folds(rng: random.Random) -> Series:
    """Each fold's trainer is a cycle that keeps its model until a full collection, which comes by
    itself or, each so many folds, by hand."""
    count, level = some_length(rng), some_level(rng)
    folds = rng.randint(3, 8) if count >= 60 else 3
    fold = max(round(count / folds * log_uniform(rng, 1 / 25, 1 / 7)), 1)
    by_hand, sizes = rng.random() < 0.5, rng.uniform(0.0, 0.4)
    model = level * log_uniform(rng, 0.05, 0.6)
    found, garbage, left = around(rng, count, level, 0.001), 0.0, rng.randint(1, folds)
    start, used = rng.randrange(fold), model
    for step in range(count):
        if (step + start) % fold == 0:
            garbage, left = garbage + used, left - 1
            used = model * rng.uniform(1 - sizes, 1 + sizes)
        if left <= 0:
            garbage, left = 0.0, folds if by_hand else rng.randint(2, 2 * folds - 2)
        found[step] += garbage + used
    return steady(rng, found, 0.1 * level)


# Leaks


@family("leak", "held-out-6")
def adapters_never_unloaded(rng: random.Random) -> Series:
    """A server loads each new tenant's adapter and unloads none; by day there is more to do."""
    count, level = some_length(rng), some_level(rng)
    days, phase, deep = rng.uniform(4.0, 14.0), math.tau * rng.random(), rng.uniform(0.0, 0.7)
    busy = [1 + deep * math.sin(math.tau * days * at / count + phase) for at in range(count)]
    tenants, ranks = log_uniform(rng, 25, 200) / count, rng.choice(((1,), (1, 2), (1, 2, 4, 8)))
    kept = _kept(lambda: (sum(rng.choices(ranks, k=poisson(rng, tenants * one))) for one in busy))
    requests, each = log_uniform(rng, 1.0, 30.0), level * log_uniform(rng, 0.01, 0.3)
    base = around(rng, count, level, 0.001)
    for step, one in enumerate(busy):
        base[step] += each * poisson(rng, requests * one) / requests
    return leaking(rng, base, kept, level, 1.3)


@family("leak", "held-out-6")
def league_of_past_selves(rng: random.Random) -> Series:
    """Self-play and updates take turns; a copy of each agent that wins enough stays in a league."""
    count, level = some_length(rng), some_level(rng)
    turn = max(round(count * log_uniform(rng, 1 / 80, 1 / 18)), 2)
    games = rng.randint(1, turn - 1)
    wins = rng.uniform(min(15 * turn / count, 0.95), 1.0)
    height = level * rng.choice((1, -1)) * log_uniform(rng, 0.01, 0.4)
    base, start = around(rng, count, level, 0.002), rng.randrange(turn)
    for step in range(count):
        base[step] += height if (step + start) % turn < games else 0.0
    ends = [(step + start) % turn == 0 for step in range(count)]
    kept = _kept(lambda: (end and rng.random() < wins for end in ends))
    return leaking(rng, base, kept, level)


@family("leak", "held-out-6")
def teachers_of_past_tasks(rng: random.Random) -> Series:
    """Before each task the model is copied as its teacher, and all teachers stay; the choice of
    exemplars, at a task's beginning, takes more for a while."""
    count, level = some_length(rng), some_level(rng)
    task = count / rng.uniform(14, min(45, count / 2))
    uneven, head = rng.uniform(0.0, 0.5), rng.uniform(0.0, 0.03)
    chosen = max(round(task * rng.uniform(0.1, 0.5)), 1)
    more = level * rng.choice((0.0, log_uniform(rng, 0.01, 0.3)))
    base = around(rng, count, level, 0.002)

    def draw() -> Series:
        at, kept = task * rng.random(), [0.0] * count
        while round(at) < count:
            kept[round(at)] += 1 + head * at / task
            at += task * rng.uniform(1 - uneven, 1 + uneven)
        return kept

    kept = _kept(draw)
    begins = [step for step in range(1, count) if kept[step] > kept[step - 1]]
    for step in {at for begin in begins for at in range(begin, min(begin + chosen, count))}:
        base[step] += more
    return leaking(rng, base, kept, level, 1.2)


@family("leak", "held-out-6")
def sends_nobody_waits_for(rng: random.Random) -> Series:
    """Pipeline parallelism: some sends are never waited for, and their buffers are never freed."""
    count, level = some_length(rng), some_level(rng)
    often, spread = rng.uniform(max(0.05, 18 / count), 1.0), rng.choice((0.0, 0.5))
    steps = range(count)
    kept = _kept(lambda: ((rng.random() < often) * rng.lognormvariate(0.0, spread) for _ in steps))
    base = _with(rng, level, log_uniform(rng, 0.003, 0.1), _unsent(rng, count))
    return leaking(rng, base, kept, level)


@family("leak", "held-out-6")
def late_updates_of_clients(rng: random.Random) -> Series:
    """Federated learning: updates gather until their round is over; those that come late stay."""
    count, level = some_length(rng), some_level(rng)
    lasts = max(int(count * log_uniform(rng, 1 / 60, 1 / 14)), 2)
    clients = log_uniform(rng, 1.0, 10.0)
    slow = max(round(lasts * rng.random()), 1)
    late = max(clients * log_uniform(rng, 0.05, 0.3), 40 * lasts / (count * slow))
    start, update = rng.randrange(lasts), level * log_uniform(rng, 0.02, 0.6) / (clients * lasts)
    base, gathered = around(rng, count, level, 0.001), clients * start
    for step in range(count):
        gathered = 0.0 if (step + start) % lasts == 0 else gathered + poisson(rng, clients)
        base[step] += update * gathered
    when = [(step + start) % lasts < slow for step in range(count)]
    kept = _kept(lambda: (poisson(rng, late) * one for one in when))
    return leaking(rng, base, kept, level, 1.2)


@family("leak", "held-out-6")
def rings_of_reconnected_streams(rng: random.Random) -> Series:
    """Cameras drop out and connect again, and the frames of the old connection stay."""
    count, level = some_length(rng), some_level(rng)
    cameras = rng.randint(2, 6)
    often = [rng.expovariate(1.0) for _ in range(cameras)]
    sizes = [rng.choice((1.0, 2.25, 4.0)) for _ in range(cameras)]
    drops = rng.uniform(30, max(0.4 * count, 35)) / count
    lost = (poisson(rng, drops) for _ in itertools.count())
    kept = _kept(lambda: (sum(rng.choices(sizes, often, k=next(lost))) for _ in range(count)))
    held = added(*(_scenes(rng, count) for _ in range(min(cameras, 4))))
    share = log_uniform(rng, 0.02, 0.5) / max(held)
    return leaking(rng, _with(rng, level, share, held), kept, level, 1.3)


@family("leak", "held-out-6")
def moments_of_replaced_weights(rng: random.Random) -> Series:
    """Sparse training: by dense gradients, layers are pruned and regrown as new parameters, and
    the optimizer keeps the moments of the old ones."""
    count, level = some_length(rng), some_level(rng)
    every, number = rng.randint(1, max(count // 16, 1)), rng.randint(1, 8)
    by_turns, dense = rng.random() < 0.6, level * rng.choice((0.0, log_uniform(rng, 0.01, 0.2)))
    start, base = rng.randrange(every), around(rng, count, level, 0.002)
    updates = range(start, count, every)
    for step in updates:
        base[step] += dense

    def draw() -> Series:
        kept, layers = [0.0] * count, [rng.lognormvariate(0.0, 0.5) for _ in range(number)]
        for at, step in enumerate(updates):
            kept[step] = layers[at % number] if by_turns else rng.choice(layers)
        return kept

    return leaking(rng, base, _kept(draw), level, 1.2)


@family("leak", "held-out-6")
def logits_of_an_evaluation(rng: random.Random) -> Series:
    """All logits of an evaluation are kept, of texts from the longest or the shortest on."""
    count, level = some_length(rng), some_level(rng)
    from_longest, share = rng.random() < 0.7, log_uniform(rng, 0.003, 0.05)
    texts: Series = []

    def draw() -> Series:
        spread = rng.uniform(0.1, 0.6)
        drawn = (min(max(rng.lognormvariate(0.0, spread), 0.5), 4.0) for _ in range(count))
        texts[:] = sorted(drawn, reverse=from_longest)
        return texts

    kept = _kept(draw)
    # So much that what is left of shorter and shorter texts does not end in a plateau.
    return leaking(rng, _with(rng, level, share, texts), kept, level, 3.5)


@family("leak", "held-out-6")
def casts_under_one_autocast(rng: random.Random) -> Series:
    """One autocast around all steps keeps each cast of the weights that a hypernetwork makes, for
    as many blocks as stochastic depth leaves."""
    count, level = some_length(rng), some_level(rng)
    blocks, through = rng.randint(2, 48), rng.uniform(0.3, 1.0)
    activations = level * log_uniform(rng, 0.01, 0.4)
    base, casts = around(rng, count, level, 0.002), list[float]()
    for step in range(count):
        taken = sum(rng.random() < through for _ in range(blocks))
        base[step] += activations * taken / blocks
        casts.append(float(taken))
    return leaking(rng, base, list(itertools.accumulate(casts)), level, 1.2)


@family("leak", "held-out-6")
def previews_of_the_images(rng: random.Random) -> Series:
    """A diffusion server keeps the latents of each preview that it shows, of those who want any."""
    count, level = some_length(rng), some_level(rng)
    images: list[_Image] = []

    def draw() -> Series:
        images[:], kept = _images(rng, count), [0.0] * count
        every, shown = rng.randint(1, max(count // 40, 1)), rng.uniform(0.4, 1.0)
        for start, steps, size in images:
            wanted = rng.random() < shown
            for at in range(start + every, min(start + steps, count), every):
                kept[at] += size if wanted and at >= 0 else 0.0
        return kept

    kept = _kept(draw)
    return leaking(rng, _of_images(rng, count, level, images), kept, level, 1.2)
