# SPDX-License-Identifier: Apache-2.0
"""The tenth held-out set of families of series: written without a look at the method.

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


def _wobble(rng: random.Random, count: int, size: float) -> Series:
    """Noise of this deviation that forgets within a small part of the series; some have none."""
    memory = min(rng.choice((0.0, 0.0, 0.3, 0.6, 0.85)), max(1 - 20 / count, 0.0))
    size *= rng.choice((0.0, 1.0, 1.0, 1.0)) * math.sqrt(1 - memory * memory)
    value, found = rng.gauss(0.0, size), []
    for _ in range(count):
        value = memory * value + rng.gauss(0.0, size)
        found.append(value)
    return found


def _summed(events: Series) -> Series:
    return list(itertools.accumulate(events))


def _episodes(rng: random.Random, count: int, mean: float, spread: float) -> list[tuple[int, int]]:
    """Of each step, which step of its episode it is and how many that has; starts within one."""
    most, found = max(2, count // 16), list[tuple[int, int]]()
    skip = rng.randrange(2 * most)
    while len(found) < count + skip:
        length = min(max(1, round(mean * rng.lognormvariate(0.0, spread))), most)
        found += [(at, length) for at in range(length)]
    return found[skip : skip + count]


def _chats(rng: random.Random, count: int) -> Series:
    """Pages that a server's conversations hold: each grows by a page a step until it ends."""
    longest = max(2, count // 20)
    rate, usual, spread = log_uniform(rng, 0.5, 6), rng.uniform(0.2, 0.7), rng.uniform(0.2, 0.8)
    prompt, held = rng.randint(1, 20), [0.0] * (count + 2 * longest)
    for start in range(count + longest):
        for _ in range(poisson(rng, rate)):
            stay = min(max(1, round(usual * longest * rng.lognormvariate(0.0, spread))), longest)
            pages = rng.randint(1, prompt)
            for age in range(stay):
                held[start + age] += pages + age
    return held[longest : longest + count]


def _tides(rng: random.Random, count: int) -> Series:
    """A wave between about -1 and 1 with an overtone, of four periods or more."""
    period = log_uniform(rng, 5, max(count / 5, 5.5))
    start, lag, share = rng.random(), rng.random(), rng.uniform(0.0, 0.5)
    turns = [2 * math.pi * (at / period + start) for at in range(count)]
    return [math.sin(turn) + share * math.sin(2 * (turn + lag)) for turn in turns]


def _pulses(rng: random.Random, count: int) -> Series:
    """One in the steps of a phase that comes back regularly and zero between."""
    period = rng.randint(3, max(count // 7, 4))
    width = rng.randint(1, max(1, period // 3))
    start = rng.randrange(period)
    return [float((at + start) % period < width) for at in range(count)]


def _garbage(rng: random.Random, count: int) -> Series:
    """Garbage of cycles: young collections free most of it, and a full one, now and then, all."""
    full = rng.randint(2, 5)
    usual = log_uniform(rng, 2, max(count / (7 * full), 2.2))
    survives, spread = rng.choice((0.0, rng.uniform(0.05, 0.4))), rng.uniform(0.0, 0.6)
    young, old, objects, number, found = 0.0, 0.0, rng.random(), rng.randrange(full), Series()
    for _ in range(count):
        size = rng.lognormvariate(0.0, spread)
        young, objects = young + size, objects + rng.uniform(0.8, 1.2) / usual
        if objects >= 1:
            number, objects = number + 1, 0.0
            old = 0.0 if number % full == 0 else old + survives * young
            young = 0.0
        found.append(young + old)
    return found


def _times(size: float, found: Series) -> Series:
    """The series scaled so that its largest is this size above its least."""
    span = max(found) - min(found)
    return [one * size / span if span else 0.0 for one in found]


def _kept(draw: Callable[[], Series]) -> Series:
    """Draws what leaks until, besides, its last quarter is a seventh of the whole or more."""
    while True:
        kept = drawn_until_enough(draw)
        if 7 * (kept[-1] - kept[3 * len(kept) // 4]) > kept[-1] - kept[0]:
            return kept


def _at_random(rng: random.Random, count: int, most: float) -> Series:
    """What was kept after events that come at random, of sizes that differ, so many at most."""
    rate = log_uniform(rng, 18, most) / count
    spread = rng.choice((0.0, rng.uniform(0.1, 0.7)))
    sizes = [
        math.fsum(rng.lognormvariate(0.0, spread) for _ in range(poisson(rng, rate)))
        for _ in range(count)
    ]
    return _summed(sizes)


@family("steady", "held-out-10")
def lottery_ticket_pruner(rng: random.Random) -> Series:
    """Prunes weights in rounds early in the run, then trains the ticket that is left."""
    count, level = some_length(rng), some_level(rng)
    rounds, left = rng.randint(2, 8), rng.uniform(0.6, 0.93)
    every = max(1, int(count * rng.uniform(0.1, 0.4) / rounds))
    base = [level * math.pow(left, min(at // every, rounds)) for at in range(count)]
    noise = _wobble(rng, count, level * math.pow(left, rounds) * log_uniform(rng, 1e-4, 0.01))
    return steady(rng, added(base, noise), 0.1 * level)


@family("steady", "held-out-10")
def layer_thawing_finetune(rng: random.Random) -> Series:
    """Thaws a network from its head down, each group with gradients and moments, before a third."""
    count, level = some_length(rng), some_level(rng)
    groups, growth = rng.randint(2, 10), rng.uniform(0.8, 1.3)
    every = max(1, int(count * rng.uniform(0.08, 0.36) / groups))
    sizes = [3 * level * math.pow(growth, one) / 40 for one in range(groups)]
    held = [level + math.fsum(sizes[: at // every]) for at in range(count)]
    tokens = _wobble(rng, count, level * log_uniform(rng, 3e-4, 0.04))
    return steady(rng, added(held, tokens), 0.05 * level)


@family("steady", "held-out-10")
def robot_replay_ring(rng: random.Random) -> Series:
    """Learner whose ring of transitions on the card fills, then overwrites its oldest."""
    count, level = some_length(rng), some_level(rng)
    full, spread = count * rng.uniform(0.08, 0.38), rng.choice((0.0, 0.3, 0.8))
    size, held, rings = level * rng.uniform(0.1, 3), 0.0, Series()
    for at in range(count):
        held += rng.lognormvariate(0.0, spread) * size / full
        held = size if at > 1.15 * full else min(held, size)
        rings.append(level + held)
    tests = _times(level * rng.choice((0.0, rng.uniform(0.02, 0.2))), _pulses(rng, count))
    return steady(rng, added(rings, tests, _wobble(rng, count, 0.004 * level)), 0.02 * level)


@family("steady", "held-out-10")
def paged_chat_rush(rng: random.Random) -> Series:
    """Chat server that allocates key and value pages by need: conversations come, grow and end."""
    count, level = some_length(rng), some_level(rng)
    size = level * log_uniform(rng, 0.03, 2)
    return steady(rng, added([level] * count, _times(size, _chats(rng, count))), 0.1 * level)


@family("steady", "held-out-10")
def folds_of_any_length(rng: random.Random) -> Series:
    """Folds proteins of a shuffled list: pair features go with a power of the length."""
    count, level = some_length(rng), some_level(rng)
    spread, power = rng.uniform(0.1, 0.8), rng.choice((1.0, 2.0, 2.0, 3.0))
    longest, share = rng.uniform(1.2, 3.0), log_uniform(rng, 0.02, 1.0)
    lengths = [min(rng.lognormvariate(0.0, spread), longest) for _ in range(count)]
    pairs = [level * share * math.pow(one, power) for one in lengths]
    return steady(rng, [level + one for one in pairs], 0.2 * level)


@family("steady", "held-out-10")
def halving_brackets(rng: random.Random) -> Series:
    """Search by successive halving: many small models, after each rung half of them, then anew."""
    count, level = some_length(rng), some_level(rng)
    rungs = rng.randint(2, 4 if count < 80 else 6)
    patience = rng.randint(1, max(1, count // (5 * rungs)))
    start, eta = rng.randrange(rungs * patience), rng.choice((2.0, 2.0, 3.0, 4.0))
    widths = [math.pow(eta, -one) for one in range(rungs)]
    size, noise = level * log_uniform(rng, 0.1, 3), log_uniform(rng, 1e-3, 0.05)
    held = [level + size * widths[(at + start) // patience % rungs] for at in range(count)]
    return steady(rng, added(held, _wobble(rng, count, noise * size)), 0.0)


@family("steady", "held-out-10")
def beams_of_a_corpus(rng: random.Random) -> Series:
    """Translates a corpus by beam search: a beam's caches grow with each token until its end."""
    count, level = some_length(rng), some_level(rng)
    steps = _episodes(rng, count, log_uniform(rng, 2, max(count / 18, 2.5)), rng.uniform(0.1, 0.6))
    size, source = level * log_uniform(rng, 0.02, 0.5), rng.uniform(0.0, 0.6)
    caches = [size * (source * length + at) / max(2, count // 20) for at, length in steps]
    return steady(rng, added([level] * count, caches), 0.1 * level)


@family("steady", "held-out-10")
def cells_run_again(rng: random.Random) -> Series:
    """Notebook in which the same few cells are run again and again, each over the last result."""
    count, level = some_length(rng), some_level(rng)
    cells = [level * rng.lognormvariate(0.0, 0.6) for _ in range(rng.randint(3, 7))]
    longest, vary, held = max(1, count // 25), rng.choice((0.0, 0.02, 0.1)), Series()
    last = rng.randrange(len(cells))
    while len(held) < count:
        last = (last + rng.randrange(1, len(cells))) % len(cells)
        now = cells[last] * max(0.3, rng.gauss(1.0, vary))
        held += [level + now] * rng.randint(1, longest)
    return steady(rng, added(held[:count], _wobble(rng, count, 0.002 * level)), 0.3 * level)


@family("steady", "held-out-10")
def tidal_mesh_solver(rng: random.Random) -> Series:
    """Flow on a mesh that is refined as the tide comes in and coarsened as it goes, in patches."""
    count, level = some_length(rng), some_level(rng)
    size, patches = level * rng.uniform(0.02, 0.4), rng.randint(4, 60)
    waves = [round(patches * one) * size / patches for one in _tides(rng, count)]
    noise = _wobble(rng, count, size * log_uniform(rng, 0.02, 0.4))
    return steady(rng, added([level] * count, waves, noise), 0.1 * level)


@family("steady", "held-out-10")
def bounded_passage_cache(rng: random.Random) -> Series:
    """Search service that keeps embeddings of passages up to a limit, then drops the least used."""
    count, level = some_length(rng), some_level(rng)
    size, slow = level * log_uniform(rng, 0.05, 2), count * rng.uniform(0.02, 0.12)
    held = [min(1.05 * size * -math.expm1(-at / slow), size) for at in range(count)]
    churn = rng.choice((0.0, log_uniform(rng, 0.002, 0.06)))
    gaps = [-churn * size * min(rng.expovariate(1.0), 4.0) for _ in range(count)]
    queries = [level * (1 + rng.choice((0.0, 0.004, 0.01))) for _ in range(count)]
    return steady(rng, added(held, gaps, queries), 0.0)


@family("steady", "held-out-10")
def averaged_twin_evaluator(rng: random.Random) -> Series:
    """Training that evaluates an averaged twin at intervals and at times saves a gathered state."""
    count, level = some_length(rng), some_level(rng)
    twin = _times(level * log_uniform(rng, 0.02, 0.6), _pulses(rng, count))
    rare, high = rng.choice((0.0, 0.02, 0.06)), level * rng.uniform(0.05, 0.8)
    saves = [high * (rng.random() < rare) for _ in range(count)]
    noise = _wobble(rng, count, level * log_uniform(rng, 1e-4, 0.02))
    return steady(rng, added([level] * count, twin, saves, noise), 0.3 * level)


@family("cycle_garbage", "held-out-10")
def solver_with_closures(rng: random.Random) -> Series:
    """Solver whose closures hold themselves and tensors, until the collector comes by."""
    count, level = some_length(rng), some_level(rng)
    garbage = _times(level * log_uniform(rng, 0.02, 2), _garbage(rng, count))
    noise = _wobble(rng, count, 0.002 * level)
    return steady(rng, added([level] * count, garbage, noise), 0.1 * level)


@family("leak", "held-out-10")
def graphs_of_summed_losses(rng: random.Random) -> Series:
    """Adds up losses for a log without detaching them, so that each step's graph is kept."""
    count, level = some_length(rng), some_level(rng)
    every, spread = rng.randint(1, max(1, count // 18)), rng.choice((0.0, 0.2, 0.6))
    kept = _kept(
        lambda: _summed(
            [rng.lognormvariate(0.0, spread) * (at % every == 0) for at in range(count)]
        )
    )
    return leaking(rng, around(rng, count, level), kept, level)


@family("leak", "held-out-10")
def clients_who_never_hang_up(rng: random.Random) -> Series:
    """Chat server that frees what a client held when it says goodbye, and some never do."""
    count, level = some_length(rng), some_level(rng)
    kept = _kept(lambda: _at_random(rng, count, 2.0 * count))
    pages = _times(level * log_uniform(rng, 0.01, 0.6), _chats(rng, count))
    return leaking(rng, added([level] * count, pages), kept, level, 1.5)


@family("leak", "held-out-10")
def selfplay_with_old_trees(rng: random.Random) -> Series:
    """Self-play whose search tree grows in a game; a part of each game's tree is held for good."""
    count, level = some_length(rng), some_level(rng)
    games = list[tuple[int, int]]()

    def draw() -> Series:
        mean = log_uniform(rng, 1.4, max(count / 18, 1.6))
        games[:] = _episodes(rng, count, mean, rng.uniform(0.1, 0.5))
        ends = [length * rng.uniform(0.6, 1.4) * (at == length - 1) for at, length in games]
        return _summed(ends)

    kept = _kept(draw)
    trees = [at + 0.2 for at, _ in games]
    base = added([level] * count, _times(level * log_uniform(rng, 0.01, 0.2), trees))
    return leaking(rng, added(base, _wobble(rng, count, 0.002 * level)), kept, level, 1.2)


@family("leak", "held-out-10")
def prefixes_kept_without_limit(rng: random.Random) -> Series:
    """Keeps each new prefix of prompts for good; new ones get fewer, as new words in a text do."""
    count, level = some_length(rng), some_level(rng)
    power, number = rng.uniform(0.7, 0.95), rng.uniform(1, 12) * count

    def draw() -> Series:
        seen = [number * math.pow(at / count, power) for at in range(count + 1)]
        news = [poisson(rng, after - one) for one, after in itertools.pairwise(seen)]
        return _summed([float(one) for one in news])

    kept = _kept(draw)
    batch = level * log_uniform(rng, 0.003, 0.2)
    base = [level + batch * min(rng.lognormvariate(0.0, 0.5), 3.0) for _ in range(count)]
    return leaking(rng, base, kept, level, 1.25)


@family("leak", "held-out-10")
def hooks_put_on_each_epoch(rng: random.Random) -> Series:
    """Puts hooks on again each epoch; each keeps a statistic a step: it leaks ever faster."""
    count, level = some_length(rng), some_level(rng)
    epochs, faster = rng.randint(3, 15), rng.uniform(0.3, 2.5)
    spread = rng.choice((0.0, 0.1, 0.4))

    def draw() -> Series:
        hooks = [1 + faster * (at * epochs // count) / epochs for at in range(count)]
        return _summed([one * rng.lognormvariate(0.0, spread) for one in hooks])

    kept = _kept(draw)
    tests = _times(level * rng.uniform(0.0, 0.1), _pulses(rng, count))
    return leaking(rng, added(around(rng, count, level), tests), kept, level, 1.2)


@family("leak", "held-out-10")
def tracebacks_in_a_list(rng: random.Random) -> Series:
    """Sweep that lists the exceptions of failed trials, whose frames hold the trials' tensors."""
    count, level = some_length(rng), some_level(rng)
    kept = _kept(lambda: _at_random(rng, count, max(0.5 * count, 25)))
    garbage = _times(level * log_uniform(rng, 0.01, 0.3), _garbage(rng, count))
    return leaking(rng, added(around(rng, count, level), garbage), kept, level, 1.4)


@family("leak", "held-out-10")
def stage_two_keeps_outputs(rng: random.Random) -> Series:
    """Curriculum whose second stage, which begins before the middle, keeps outputs of its steps."""
    count, level = some_length(rng), some_level(rng)
    start, spread = int(count * rng.uniform(0.12, 0.47)), rng.choice((0.0, 0.3, 0.7))
    often = rng.uniform(0.6, 1.0) if count < 60 else rng.uniform(0.25, 1.0)

    def draw() -> Series:
        later = [
            rng.lognormvariate(0.0, spread) * (rng.random() < often) for _ in range(start, count)
        ]
        return [0.0] * start + _summed(later)

    kept = _kept(draw)
    twin = _times(level * rng.uniform(0.0, 0.15), _pulses(rng, count))
    noise = _wobble(rng, count, level * log_uniform(rng, 5e-4, 0.01))
    return leaking(rng, added([level] * count, twin, noise), kept, level, 1.4)


@family("leak", "held-out-10")
def frames_for_a_film(rng: random.Random) -> Series:
    """Tidal simulation that leaves a field on the card at intervals, for a film made at the end."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(1, max(1, count // 16))
    start = rng.randrange(every)
    kept = _kept(lambda: _summed([float((at + start) % every == 0) for at in range(count)]))
    tides = _times(level * log_uniform(rng, 0.004, 0.15), _tides(rng, count))
    noise = _wobble(rng, count, level * log_uniform(rng, 2e-4, 0.01))
    return leaking(rng, added([level] * count, tides, noise), kept, level, 1.2)


@family("leak", "held-out-10")
def metric_that_is_not_reset(rng: random.Random) -> Series:
    """A metric keeps the predictions of each validation and is never reset between the epochs."""
    count, level = some_length(rng), some_level(rng)
    epoch = rng.randint(3, max(3, count // 9))
    part = rng.randint(max(1, epoch // 6), max(1, epoch // 2))
    spread, lift = rng.choice((0.0, 0.0, 0.4)), level * rng.choice((0.0, rng.uniform(-0.1, 0.1)))
    start = rng.randrange(epoch)
    tests = [float((at + start) % epoch < part) for at in range(count)]
    if sum(tests) < 14:
        tests = [float((at + start) % 3 > 0) for at in range(count)]
    kept = _kept(lambda: _summed([one * rng.lognormvariate(0.0, spread) for one in tests]))
    base = added(around(rng, count, level), [lift * one for one in tests])
    return leaking(rng, base, kept, level, 1.2)


@family("leak", "held-out-10")
def adapters_of_many_tenants(rng: random.Random) -> Series:
    """Loads each tenant's adapter when it first calls, a few at a time, and never unloads one."""
    count, level = some_length(rng), some_level(rng)
    bursts, more = log_uniform(rng, 18, max(0.7 * count, 24)) / count, rng.uniform(0.0, 0.6)
    ranks = [math.pow(2.0, one) for one in range(rng.randint(1, 4))]

    def draw() -> Series:
        found = [0.0] * count
        for at in range(count):
            for _ in range(poisson(rng, bursts)):
                found[at] += rng.choice(ranks)
                while rng.random() < more:
                    found[min(at + rng.randint(0, 2), count - 1)] += rng.choice(ranks)
        return _summed(found)

    kept = _kept(draw)
    requests = _times(level * log_uniform(rng, 0.005, 0.3), _chats(rng, count))
    noise = around(rng, count, level, 0.001)
    return leaking(rng, added(noise, requests), kept, level, 1.8)
