# SPDX-License-Identifier: Apache-2.0
"""The twelfth held-out set of families of series: written without a look at the method.

Its rules are those of the seventh set (trend_families_seventh.py), and its author another. But four
of its eleven steady families are walks without drift or level: what comes is as likely and as large
as what goes, nothing brings it back, and nothing is larger early or late. Their changes are 0.0002
to 0.02 of the level, of many forms. A walk's plot may look like growth.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque

from trend_families import Series, around, family, some_level
from trend_programs import (
    added,
    drawn_until_enough,
    in_blocks,
    leaking,
    log_uniform,
    poisson,
    some_length,
    steady,
)

__all__: list[str] = []


def _pulses(rng: random.Random, count: int, every: int, lasts: int, height: float) -> Series:
    """So much more in some steps of every round, from any moment of a round on."""
    start = rng.randrange(every)
    return [height if (at + start) % every < lasts else 0.0 for at in range(count)]


def _settled(rng: random.Random, found: Series) -> Series:
    return steady(rng, found, 0.8 * min(found))


def _piled(sizes: Series) -> Series:
    """What is kept of what comes in each step but the first."""
    return list(itertools.accumulate(sizes[1:], initial=0.0))


def _onset(rng: random.Random, count: int) -> int:
    """The step in which a leak begins."""
    return rng.choice((0, 0, round(count * rng.uniform(0.05, 0.4))))


def _with_leak(rng: random.Random, base: Series, kept: Series) -> Series:
    return leaking(rng, base, kept, math.fsum(base) / len(base))


# Steady programs


@family("steady", "held-out-12")
def bucketed_translation_batches_with_beam_search_validation(rng: random.Random) -> Series:
    """Batches come from buckets of sentence lengths; a validation with beams comes regularly."""
    count, level = some_length(rng), some_level(rng)
    widest = log_uniform(rng, 0.005, 0.4) * level
    buckets = [widest * rng.uniform(0.05, 1.0) for _ in range(rng.randint(2, 9))]
    rounds = rng.random() < 0.4
    batches = [buckets[at % len(buckets)] if rounds else rng.choice(buckets) for at in range(count)]
    every = rng.randint(4, max(5, count // 6))
    beams = widest * log_uniform(rng, 0.3, 4.0)
    validation = _pulses(rng, count, every, rng.randint(1, max(1, every // 3)), beams)
    return _settled(rng, added(around(rng, count, level), batches, validation))


def _pages_in_flight(
    rng: random.Random, count: int, load: float, life: float, before: int
) -> Series:
    """Pages of requests that arrive at random, grow while they decode, and go; about four each."""
    found = [0.0] * count
    for start in range(-before, count):
        for _ in range(poisson(rng, load / life)):
            prompt = log_uniform(rng, 1, 8)
            stays = round(1 + min(rng.expovariate(1 / life), 3 * life))
            for at in range(max(start, 0), min(start + stays, count)):
                found[at] += prompt + (at - start) / life
    return found


def _served(rng: random.Random, count: int, level: float, most: float) -> Series:
    """Weights, and the pages of requests of which some may be there when the series begins."""
    life = log_uniform(rng, 1.2, max(1.5, count / 25))
    load = log_uniform(rng, 4, 80)
    page = level * log_uniform(rng, 0.02, most) / (4 * load)
    before = rng.choice((0, math.ceil(3 * life) + 1))
    pages = _pages_in_flight(rng, count, load, life, before)
    return added(around(rng, count, level, 0.001), [page * one for one in pages])


@family("steady", "held-out-12")
def speculative_decoding_pages_rolled_back_on_rejection(rng: random.Random) -> Series:
    """Requests come and go; pages of a draft model go when its tokens are refused."""
    count, level = some_length(rng, 40), some_level(rng)
    served = _served(rng, count, level, 0.8)
    window = level * log_uniform(rng, 0.0005, 0.05)
    refused = rng.uniform(0.1, 0.9)
    drafts = [window * (rng.random() > refused) * rng.randint(1, 4) for _ in range(count)]
    return _settled(rng, added(served, drafts))


def _episode(rng: random.Random, failing: float) -> float:
    """An episode that ends early or goes on to the limit."""
    return rng.uniform(0.05, 0.6) if rng.random() < failing else 1.0


@family("steady", "held-out-12")
def sequence_replay_filled_then_evicts_oldest_episodes(rng: random.Random) -> Series:
    """Episodes fill a replay buffer in the first third; then the oldest make room for new ones."""
    count, level = some_length(rng), some_level(rng)
    fill = max(count * rng.uniform(0.03, 0.3), 1.0)
    episodes = max(log_uniform(rng, 0.3, 6), 30 / fill)
    failing = rng.random()
    capacity = fill * episodes * (1.0 - 0.675 * failing)
    held: deque[float] = deque()
    found: Series = []
    for _ in range(count):
        held.extend(_episode(rng, failing) for _ in range(poisson(rng, episodes)))
        while math.fsum(held) > capacity:
            held.popleft()
        found.append(math.fsum(held))
    whole = level * log_uniform(rng, 0.03, 2.0)
    base = around(rng, count, level, 0.002)
    learner = _pulses(rng, count, rng.randint(2, 6), 1, level * log_uniform(rng, 0.001, 0.1))
    return _settled(rng, added(base, learner, [whole * one / capacity for one in found]))


@family("steady", "held-out-12")
def splats_densified_to_budget_then_cloned_and_pruned(rng: random.Random) -> Series:
    """Splats multiply up to a budget; later clones stay for some steps until all are pruned."""
    count, budget = some_length(rng), some_level(rng)
    every = rng.randint(3, max(4, count // 9))
    full = max(round(count * rng.uniform(0.05, 0.38)) // every, 1)
    first = rng.uniform(0.05, 0.7)
    splats = [budget * first ** max(1 - at // every / full, 0.0) for at in range(count)]
    lasts = rng.randint(1, max(1, every // 2))
    height = log_uniform(rng, 0.01, 0.35)
    falls = rng.random() < 0.5
    for start in range(every * full + rng.randrange(every), count, every):
        clones = height * budget * rng.uniform(0.6, 1.4)
        for at in range(start, min(start + lasts, count)):
            splats[at] += clones * (1 - (at - start) / lasts if falls else 1.0)
    views = [budget * log_uniform(rng, 0.001, 0.02) for _ in range(count)]
    noise = [one - budget for one in around(rng, count, budget, 0.001)]
    return _settled(rng, added(splats, views, noise))


@family("steady", "held-out-12")
def lazy_gradient_penalty_and_path_length_of_generator(rng: random.Random) -> Series:
    """An adversarial training takes its penalties every few steps, and draws a grid of samples."""
    count, level = some_length(rng), some_level(rng)
    parts = [around(rng, count, level)]
    for _ in range(rng.randint(1, 3)):
        every = rng.choice([one for one in (2, 4, 8, 16, 32, 64) if one <= count / 5])
        parts.append(_pulses(rng, count, every, 1, level * log_uniform(rng, 0.005, 0.5)))
    shown = rng.randint(5, max(6, count // 5))
    grid = level * log_uniform(rng, 0.005, 0.3)
    parts.append(_pulses(rng, count, shown, rng.randint(1, max(1, shown // 4)), grid))
    return _settled(rng, added(*parts))


@family("steady", "held-out-12")
def graph_pools_captured_for_each_shape_up_to_limit(rng: random.Random) -> Series:
    """Each new input shape is captured until a limit is reached; other shapes then run eagerly."""
    count, level = some_length(rng), some_level(rng)
    shapes = rng.randint(3, 40)
    full = count * rng.uniform(0.05, 0.42)
    bend = rng.uniform(0.6, 3.0)
    sizes = [rng.lognormvariate(0.0, rng.uniform(0.1, 1.2)) for _ in range(shapes)]
    if rng.random() < 0.4:
        sizes.sort(reverse=True)
    captured = [0.0] * count
    for number, size in enumerate(sizes, 1):
        captured[int(full * (number / shapes) ** bend)] += size
    part = level * log_uniform(rng, 0.02, 1.0) / math.fsum(sizes)
    pools = [part * one for one in itertools.accumulate(captured)]
    seldom, height = rng.choice((0.0, rng.uniform(0.02, 0.5))), log_uniform(rng, 0.003, 0.2)
    eager = [level * height * rng.random() * (rng.random() < seldom) for _ in range(count)]
    return _settled(rng, added(around(rng, count, level), pools, eager))


def _image_round(rng: random.Random, steps: int, guided: float, decoding: float) -> Series:
    """Latents, guided at first, then the decoder's tiles, then a pause; one for an image of 1."""
    pixels = rng.choice((0.25, 0.5, 1.0, 1.0, 2.0))
    first = round(guided * steps)
    tiles = [pixels * decoding] * rng.randint(1, max(1, steps // 6))
    pause = [0.0] * rng.choice((0, 0, 1, rng.randint(1, max(1, steps // 2))))
    return [2 * pixels] * first + [pixels] * (steps - first) + tiles + pause


@family("steady", "held-out-12")
def image_requests_denoised_with_early_guidance_and_tiled_decoder(rng: random.Random) -> Series:
    """Images of several sizes are sampled one after the other, guided in the first steps only."""
    count, level = some_length(rng), some_level(rng)
    most = rng.randint(2, max(3, count // 12))
    guided, decoding = rng.random(), rng.uniform(0.5, 8.0)
    found: Series = []
    while len(found) < count + 2 * most:
        found += _image_round(rng, rng.randint(max(most // 2, 1), most), guided, decoding)
    start = rng.randrange(2 * most)
    latent = level * log_uniform(rng, 0.003, 0.15)
    images = [latent * one for one in found[start : start + count]]
    return _settled(rng, added(around(rng, count, level, 0.001), images))


# Walks


def _walk(rng: random.Random, changes: Series, level: float, spread: int = 1) -> Series:
    """A walk that begins at the level, each change of it spread over some steps.

    The root of the sum of the squared changes is at most 0.19 of the level.
    """
    count = len(changes) - spread + 2
    step = log_uniform(rng, 0.0002 * math.sqrt(spread), min(0.02, 0.19 / math.sqrt(len(changes))))
    size = math.sqrt(math.fsum(one * one for one in changes) / len(changes)) or 1.0
    part = step * level / (size * spread)
    moves = [part * math.fsum(changes[at : at + spread]) for at in range(count - 1)]
    noise = min(step * log_uniform(rng, 0.05, 2.0), 0.01)
    path = list(itertools.accumulate(moves, initial=0.0))
    return in_blocks(around(rng, count, level, noise), path)


@family("steady", "held-out-12")
def leased_sessions_change_hands_between_ranks_walk(rng: random.Random) -> Series:
    """A rank takes over and gives away sessions of a few sizes at the same rate."""
    count, level = some_length(rng), some_level(rng)
    kinds = [log_uniform(rng, 1, 16) for _ in range(rng.randint(1, 4))]
    rate = log_uniform(rng, 12 / count, 12)
    changes = []
    for _ in range(count - 1):
        taken = math.fsum(rng.choice(kinds) for _ in range(poisson(rng, rate)))
        given = math.fsum(rng.choice(kinds) for _ in range(poisson(rng, rate)))
        changes.append(taken - given)
    return _walk(rng, changes, level)


@family("steady", "held-out-12")
def hub_nodes_swapped_in_sampled_sparse_graph_walk(rng: random.Random) -> Series:
    """Nodes enter and leave a sparse adjacency alike; their numbers of edges have a heavy tail."""
    count, level = some_length(rng), some_level(rng)
    tail, nodes = rng.uniform(0.8, 2.5), rng.randint(1, 12)
    idle = rng.choice((0.0, rng.uniform(0.1, 0.7)))
    changes = [
        math.fsum(rng.choice((-1, 1)) * rng.paretovariate(tail) for _ in range(nodes))
        if rng.random() >= idle
        else 0.0
        for _ in range(count - 1)
    ]
    return _walk(rng, changes, level)


@family("steady", "held-out-12")
def occupied_voxels_of_scene_along_a_drive_walk(rng: random.Random) -> Series:
    """Sparse voxels follow a scene that drifts; its changes go on for some frames."""
    count, level = some_length(rng), some_level(rng)
    spread = rng.choice((1, 2, 3, 4, 6, 8))
    turns = rng.choice((0.0, rng.uniform(0.02, 0.2)))
    changes = [
        rng.gauss(0.0, 6.0 if rng.random() < turns else 1.0) for _ in range(count + spread - 2)
    ]
    return _walk(rng, changes, level, spread)


@family("steady", "held-out-12")
def experts_migrate_to_and_from_this_rank_walk(rng: random.Random) -> Series:
    """A balancer now and then moves a few experts to this rank or away, in one or more steps."""
    count, level = some_length(rng), some_level(rng)
    spread = rng.choice((1, 1, 2, 3))
    moments = count + spread - 2
    every = rng.randint(1, max(1, count // 15))
    regular, start = rng.random() < 0.5, rng.randrange(every)
    most = rng.randint(1, 4)
    changes = [
        float(rng.choice((-1, 1)) * rng.randint(1, most))
        if ((at + start) % every == 0 if regular else rng.random() < 1 / every)
        else 0.0
        for at in range(moments)
    ]
    return _walk(rng, changes, level, spread)


# Cycle garbage


def _garbage(rng: random.Random, count: int, collections: float) -> Series:
    """Garbage, up to one, that goes when so much of it has come that the collector runs."""
    shape, seldom = log_uniform(rng, 1.5, 30), rng.choice((1.0, rng.uniform(0.5, 1.0)))
    made = [rng.gammavariate(shape, 1.0) * (rng.random() < seldom) for _ in range(count)]
    threshold = math.fsum(made) / collections
    young = rng.choice((0.0, rng.uniform(0.05, 0.3)))
    pile = threshold * rng.random()
    found: Series = []
    for one in made:
        pile += one
        if pile > threshold:
            pile = 0.0
        elif rng.random() < young:
            pile -= 0.5 * one
        found.append(pile / threshold)
    return found


@family("cycle_garbage", "held-out-12")
def autograd_contexts_in_cycles_pile_up_until_full_collection(rng: random.Random) -> Series:
    """Contexts of custom functions hold themselves; only a full collection frees their tensors."""
    count, level = some_length(rng), some_level(rng)
    height = level * log_uniform(rng, 0.01, 1.5)
    piles = [height * one for one in _garbage(rng, count, rng.uniform(5, max(6, count / 8)))]
    noise = height / level * log_uniform(rng, 0.003, 0.03)
    every = rng.randint(2, max(3, count // 6))
    logged = height * rng.choice((0.0, rng.uniform(0.02, 0.2)))
    base = added(around(rng, count, level, noise), _pulses(rng, count, every, 1, logged))
    return _settled(rng, added(base, piles))


# Leaks


@family("leak", "held-out-12")
def memory_tokens_carried_on_with_their_graph(rng: random.Random) -> Series:
    """A recurrent transformer does not detach the memory tokens that it carries between windows."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        onset, bend, varied = _onset(rng, count), rng.uniform(-0.5, 0.8), rng.uniform(0.0, 0.9)
        skipped = rng.choice((0.0, rng.uniform(0.1, 0.6)))
        return _piled(
            [
                (1 + bend * at / count) * rng.uniform(1 - varied, 1.0)
                if at >= onset and rng.random() >= skipped
                else 0.0
                for at in range(count)
            ]
        )

    windows = [level * log_uniform(rng, 0.001, 0.01) for _ in range(count)]
    return _with_leak(rng, added(around(rng, count, level), windows), drawn_until_enough(draw))


@family("leak", "held-out-12")
def aborted_requests_leave_prefix_pages_referenced(rng: random.Random) -> Series:
    """Clients that hang up leave the pages of their prompts with a reference too many."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        onset = _onset(rng, count)
        rate = log_uniform(rng, 15, 300) / (count - onset)
        return _piled(
            [
                math.fsum(log_uniform(rng, 1, 8) for _ in range(poisson(rng, rate))) * (at >= onset)
                for at in range(count)
            ]
        )

    return _with_leak(rng, _served(rng, count, level, 0.2), drawn_until_enough(draw))


@family("leak", "held-out-12")
def adapters_of_first_seen_tenants_are_never_evicted(rng: random.Random) -> Series:
    """An adapter is loaded for each tenant that comes for the first time, which grows rarer."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        power, tenants = rng.uniform(0.55, 1.0), log_uniform(rng, 20, 500)
        ranks = rng.sample((4, 8, 16, 32, 64), rng.randint(1, 5))
        new = [((at + 1) / count) ** power - (at / count) ** power for at in range(count)]
        return _piled(
            [
                math.fsum(rng.choice(ranks) for _ in range(poisson(rng, tenants * one)))
                for one in new
            ]
        )

    every = rng.randint(3, 20)
    health = level * rng.choice((0.0, log_uniform(rng, 0.001, 0.05)))
    base = added(around(rng, count, level), _pulses(rng, count, every, 1, health))
    return _with_leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-12")
def failed_batches_held_by_kept_tracebacks(rng: random.Random) -> Series:
    """A list of errors holds the frames, and so the tensors, of batches from broken shards."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        onset, shards, longest = _onset(rng, count), rng.randint(10, 45), rng.randint(1, 5)
        spread = rng.uniform(0.1, 0.9)
        sizes = [0.0] * count
        for _ in range(shards):
            start = rng.randrange(onset, count)
            for at in range(start, min(start + rng.randint(1, longest), count)):
                sizes[at] += rng.lognormvariate(0.0, spread)
        return _piled(sizes)

    samples = [level * log_uniform(rng, 0.0005, 0.02) for _ in range(count)]
    return _with_leak(rng, added(around(rng, count, level), samples), drawn_until_enough(draw))


def _since_rise(kept: Series) -> list[int]:
    """How many steps ago the last rise was."""
    found = [0]
    for before, one in itertools.pairwise(kept):
        found.append(0 if one > before else found[-1] + 1)
    return found


@family("leak", "held-out-12")
def validation_metric_appends_while_training_metric_resets(rng: random.Random) -> Series:
    """Predictions are appended to two metrics; the one of the validation is never reset."""
    count, level = some_length(rng, 48), some_level(rng)

    def draw() -> Series:
        epoch = count // rng.randint(8, max(9, min(count // 6, 40)))
        lasts = max(2, round(epoch * rng.uniform(0.15, 0.6)))
        last = rng.uniform(0.2, 1.0)
        phase = [(at - epoch + lasts) % epoch for at in range(count)]
        return _piled([last if one == lasts - 1 else float(one < lasts) for one in phase])

    kept = drawn_until_enough(draw)
    batch = level * log_uniform(rng, 0.0001, 0.1) / max(_since_rise(kept))
    training = [batch * one for one in _since_rise(kept)]
    return _with_leak(rng, added(around(rng, count, level, 0.002), training), kept)


@family("leak", "held-out-12")
def league_opponents_added_when_win_rate_passes_gate(rng: random.Random) -> Series:
    """Each time that the agent beats the league, a copy of it joins the league on the device."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        gap = count / rng.uniform(14, min(60, count / 1.5))
        slower, luck = rng.uniform(0.0, 0.8), rng.uniform(0.05, 0.8)
        exploiter = rng.choice((0.0, rng.uniform(0.1, 0.9)))
        sizes, at = [0.0] * count, gap * rng.random()
        while at < count:
            sizes[int(at)] += rng.choice((1.0, 1.0 - exploiter))
            at += gap * (1 + slower * at / count) * rng.lognormvariate(0.0, luck)
        return _piled(sizes)

    every = rng.randint(2, max(3, count // 8))
    rollouts = level * log_uniform(rng, 0.002, 0.2)
    collected = _pulses(rng, count, every, rng.randint(1, every), rollouts)
    return _with_leak(rng, added(around(rng, count, level), collected), drawn_until_enough(draw))


@family("leak", "held-out-12")
def profiler_windows_append_events_that_no_one_flushes(rng: random.Random) -> Series:
    """A profiler waits and records by turns, and holds the tensors of all recorded steps."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        onset = _onset(rng, count)
        turn = max((count - onset) // rng.randint(6, 30), 3)
        active, start = rng.randint(1, max(1, 2 * turn // 3)), rng.randrange(turn)
        varied = rng.uniform(0.0, 0.6)
        return _piled(
            [
                rng.lognormvariate(0.0, varied) * (at >= onset and (at + start) % turn < active)
                for at in range(count)
            ]
        )

    every = rng.randint(3, max(4, count // 10))
    saved = level * log_uniform(rng, 0.001, 0.3)
    base = added(around(rng, count, level), _pulses(rng, count, every, 1, saved))
    return _with_leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-12")
def collector_leaves_cycles_held_by_extension_objects(rng: random.Random) -> Series:
    """Cycles pile up and are collected, but those that an extension type refers to stay."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        onset, share = _onset(rng, count), log_uniform(rng, 0.1, 1.0)
        return _piled(
            [rng.expovariate(1.0) * (at >= onset and rng.random() < share) for at in range(count)]
        )

    height = level * log_uniform(rng, 0.004, 0.2)
    piles = [height * one for one in _garbage(rng, count, rng.uniform(4, max(5, count / 6)))]
    base = added(around(rng, count, level, 0.002), piles)
    return _with_leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-12")
def image_uploader_thread_falls_behind_its_queue(rng: random.Random) -> Series:
    """Samples wait in a queue without a limit for a thread that sends fewer than are made."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        onset, sent = _onset(rng, count), rng.uniform(0.0, 0.7)
        made = log_uniform(rng, 64, 300) * (1 + sent) / (1 - sent) ** 2 / (count - onset)
        waiting = [0]
        for at in range(1, count):
            came = poisson(rng, made) if at >= onset else 0
            waiting.append(max(waiting[-1] + came - poisson(rng, made * sent), 0))
        return [float(one) for one in waiting]

    every = rng.randint(2, max(3, count // 8))
    sampler = level * log_uniform(rng, 0.001, 0.1)
    shown = _pulses(rng, count, every, rng.randint(1, max(1, every // 2)), sampler)
    return _with_leak(rng, added(around(rng, count, level), shown), drawn_until_enough(draw))


@family("leak", "held-out-12")
def sweep_trials_leave_their_compiled_modules_behind(rng: random.Random) -> Series:
    """A sweep trains models of several sizes in turn; the compiler's cache holds each of them."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        trials = rng.uniform(14, min(60, count / 2.2))
        stopped, varied = rng.uniform(0.0, 0.9), rng.uniform(0.0, 0.6)
        sizes, at = [0.0] * count, 0.0
        while at < count:
            sizes[int(at)] += rng.lognormvariate(0.0, varied)
            at += max(count / trials * rng.uniform(1 - stopped, 1 + stopped), 1.0)
        return _piled(sizes)

    kept = drawn_until_enough(draw)
    apart, model = log_uniform(rng, 0.005, 0.25), level
    base: Series = []
    for since in _since_rise(kept):
        model = model if since else level * math.exp(rng.uniform(-apart, apart))
        base.append(model)
    noise = [one - level for one in around(rng, count, level, 0.001)]
    return _with_leak(rng, added(base, noise), kept)
