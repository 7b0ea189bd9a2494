# SPDX-License-Identifier: Apache-2.0
"""The eleventh held-out set of families of series: written without a look at the method.

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


def _summed(rises: Series) -> Series:
    return list(itertools.accumulate(rises))


def _scaled(found: Series, height: float) -> Series:
    """The same form, as high as this at its highest."""
    most = max(*found, 1e-9)
    return [one * height / most for one in found]


def _part(rng: random.Random, level: float) -> float:
    """How much a program's changing part takes beside what it always holds."""
    return level * log_uniform(rng, 0.01, 0.8)


def _changing(
    rng: random.Random, level: float, form: Series, warm: float, part: float = 0.003
) -> Series:
    """A steady series: what is always held, in noise, and a part that changes in this form."""
    held = around(rng, len(form), level, part)
    return steady(rng, added(held, _scaled(form, _part(rng, level))), warm * level)


def _first(rng: random.Random, count: int) -> int:
    """The step from which a program leaks: at once, or only once it gets to the faulty line."""
    return 0 if rng.random() < 0.5 else rng.randint(1, round(0.4 * count))


def _moments(rng: random.Random, count: int, gap: float, loose: float) -> list[int]:
    """Steps at which something happens: as by a clock (loose 0) up to wholly at random (1)."""
    at = gap * rng.random()
    found: list[int] = []
    while at < count:
        found.append(int(at))
        at += max(gap * (1 - loose + loose * min(rng.expovariate(1.0), 3.0)), 1.0)
    return found


def _at(count: int, moments: list[int], size: Callable[[], float]) -> Series:
    """Rises of such sizes at these steps, none at others."""
    found = [0.0] * count
    for moment in moments:
        found[moment] += size()
    return found


def _log_normal(rng: random.Random, spread: float) -> Callable[[], float]:
    return lambda: math.exp(rng.gauss(0.0, spread))


def _daily(rng: random.Random, count: int, days: float) -> Series:
    """Load between nothing and one that comes again each day, in so many days."""
    phase, sharp = rng.random(), rng.choice((0.5, 1.0, 2.0))
    turns = [2 * math.pi * (phase + days * at / count) for at in range(count)]
    return [math.pow((1 + math.sin(turn)) / 2, sharp) for turn in turns]


def _in_flight(rng: random.Random, rates: Series, stay: float) -> Series:
    """How many requests are worked on, if so many come a step and each stays so long."""
    found: Series = []
    now = 0
    for rate in rates[:1] * round(4 * stay) + rates:
        now = sum(rng.random() < 1 - 1 / stay for _ in range(now)) + poisson(rng, rate)
        found.append(float(now))
    return found[-len(rates) :]


def _ages(count: int, moments: list[int], before: int) -> list[int]:
    """How many steps ago the last of these moments was; before the first, as if one had been."""
    found, those = [before], set(moments)
    for at in range(count):
        found.append(0 if at in those else found[-1] + 1)
    return found[1:]


def _leaked(draw: Callable[[], Series]) -> Series:
    """What leaks, drawn until the last quarter also leaves a sixth of the whole."""
    kept = drawn_until_enough(draw)
    while 6 * (kept[-1] - kept[3 * len(kept) // 4]) < kept[-1]:
        kept = drawn_until_enough(draw)
    return kept


@family("steady", "held-out-11")
def protein_chains_in_pair_blocks(rng: random.Random) -> Series:
    """Structure prediction of chains as they come, or sorted by length within big groups."""
    count, level = some_length(rng), some_level(rng)
    length = _log_normal(rng, rng.uniform(0.1, 0.5))
    pairs = [math.pow(min(length(), 3.0), 2) for _ in range(count + count // 4)]
    width = rng.randint(3, max(count // 8, 3)) if rng.random() < 0.5 else 1
    falling = rng.random() < 0.5
    groups = [sorted(pairs[at : at + width], reverse=falling) for at in range(0, count, width)]
    shift = rng.randrange(width)
    ordered = [*itertools.chain.from_iterable(groups), *pairs[-width:]]
    return _changing(rng, level, ordered[shift : shift + count], 0.3, 0.0)


@family("steady", "held-out-11")
def chat_slots_through_the_day(rng: random.Random) -> Series:
    """A chat server whose slots are taken by day and empty by night, at most all of them."""
    count, level = some_length(rng), some_level(rng)
    peak, stay = log_uniform(rng, 5.0, 60.0), log_uniform(rng, 1.2, max(count / 100, 1.5))
    load = _daily(rng, count, rng.uniform(4.0, max(count / 8, 5.0)))
    taken = _in_flight(rng, [peak / stay * max(one, 0.1) for one in load], stay)
    slots = math.ceil(peak * rng.uniform(0.7, 1.6))
    return _changing(rng, level, [min(one, slots) for one in taken], 0.5, 0.0)


@family("steady", "held-out-11")
def replay_ring_full_before_learning(rng: random.Random) -> Series:
    """Off-policy RL: episodes go into a ring on the GPU until it is full, then over old ones."""
    count, level = some_length(rng), some_level(rng)
    full = count * rng.uniform(0.05, 0.35)
    moments = _moments(rng, count, log_uniform(rng, 1.0, max(full / 5, 1.1)), rng.random())
    episode = _log_normal(rng, rng.uniform(0.0, 0.4))
    seen = _summed(_at(count, moments, episode))
    ring = max(seen[int(full)], 0.1)
    learns = next(at for at, one in enumerate(seen) if one >= ring)
    learner = level * rng.uniform(0.0, 0.3)
    held = _scaled([min(one, ring) for one in seen], level * log_uniform(rng, 0.05, 2.0))
    work = [learner * (at > learns) for at in range(count)]
    return steady(rng, added(around(rng, count, level), held, work), level / 4)


@family("steady", "held-out-11")
def self_play_trees_of_games(rng: random.Random) -> Series:
    """Self-play of one game or several at a time: each search tree grows until its game ends."""
    count, level = some_length(rng), some_level(rng)
    gap, power = log_uniform(rng, 3.0, max(count / 14, 3.5)), rng.uniform(0.5, 1.3)
    loose = rng.uniform(0.0, 0.4)
    trees = [0.0] * count
    for _ in range(rng.choice((1, 1, 2, 5))):
        moments = _moments(rng, count, gap, loose)
        ages = _ages(count, moments, max(round(gap) - moments[0], 0))
        trees = [one + math.pow(age, power) for one, age in zip(trees, ages, strict=True)]
    return _changing(rng, level, trees, 0.2)


@family("steady", "held-out-11")
def weights_quantized_layer_by_layer(rng: random.Random) -> Series:
    """Weights are made smaller layer by layer, each with its statistics, then texts are scored."""
    count, level = some_length(rng), some_level(rng)
    done = max(round(count * rng.uniform(0.1, 0.38)), 3)
    layers = rng.randint(3, min(done, 40))
    saved = level * rng.uniform(0.2, 0.75)
    seen = saved / layers * rng.uniform(0.0, 2.0)
    texts = level * log_uniform(rng, 0.002, 0.1)
    places = [at * layers / done for at in range(done)]
    before = [level - saved * int(one) / layers + seen * (one % 1) for one in places]
    after = [level - saved + texts * rng.random() for _ in range(count - done)]
    return steady(rng, before + after, level / 10)


@family("steady", "held-out-11")
def notebook_names_bound_again(rng: random.Random) -> Series:
    """A notebook whose few names get new tensors now and then, or are deleted for a while."""
    count, level = some_length(rng), some_level(rng)
    often = min(rng.uniform(50.0, 250.0) / count, rng.uniform(0.5, 0.9))
    size, deleted = _log_normal(rng, rng.uniform(0.1, 0.8)), rng.choice((0.0, 0.3))
    names = [size() for _ in range(rng.randint(3, 12))]
    found: Series = []
    for _ in range(count):
        for name in range(len(names)):
            if rng.random() < often:
                names[name] = 0.0 if rng.random() < deleted else size()
        found.append(sum(names))
    return _changing(rng, level, found, 0.3, 0.0)


@family("steady", "held-out-11")
def image_sides_grown_in_stages(rng: random.Random) -> Series:
    """Training on small images first and ever larger ones, the last size being reached early."""
    count, level = some_length(rng), some_level(rng)
    stages = rng.randint(2, 5)
    ends = sorted(rng.uniform(0.04, 0.38) * count for _ in range(stages - 1))
    grows, images = rng.uniform(1.2, 2.0), level * log_uniform(rng, 0.05, 2.0)
    jitter = rng.choice((0.0, 0.01, 0.04))
    saves, every = level * rng.choice((0.0, 0.1)), max(count // rng.randint(6, 20), 2)
    found = []
    for at in range(count):
        side = math.pow(grows, -sum(at < end for end in ends))
        one = images * side * side * (1 + rng.uniform(-jitter, jitter))
        found.append(level + one + saves * (at % every == every - 1))
    return steady(rng, found, level / 4)


@family("steady", "held-out-11")
def trials_halved_in_brackets(rng: random.Random) -> Series:
    """Search for settings: many small models at once, the worse half dropped, then the next lot."""
    count, level = some_length(rng), some_level(rng)
    keep, rungs = rng.choice((2, 3)), rng.randint(2, 4 if count > 60 else 3)
    brackets = [rungs] if rng.random() < 0.5 else list(range(rungs, 0, -1))
    lasts = rng.randint(1, max(count // (5 * sum(brackets) + 5), 1))
    steps = [rung for bracket in brackets for rung in range(bracket, 0, -1) for _ in range(lasts)]
    trials = [math.pow(keep, rung - 1) for rung in steps]
    shift, size = rng.randrange(len(trials)), _log_normal(rng, rng.choice((0.0, 0.05, 0.2)))
    held = [trials[(at + shift) % len(trials)] * size() for at in range(count)]
    return _changing(rng, level, held, 0.2)


@family("steady", "held-out-11")
def embedding_rows_least_used_out(rng: random.Random) -> Series:
    """Recommendation: rows of the items seen are cached, the least used ones leave a full cache."""
    count, level = some_length(rng), some_level(rng)
    pace, room = count * rng.uniform(0.02, 0.07), rng.uniform(0.6, 1.0)
    batch = rng.choice((1.0, 0.9, 0.8))
    rows = [min(1 - math.exp(-at / pace), room) for at in range(count)]
    out = [(1 - batch) * math.pow(rng.random(), 3) * (one >= min(room, 0.95)) for one in rows]
    rows = [one * (1 - less) for one, less in zip(rows, out, strict=True)]
    cache = _scaled(rows, level * log_uniform(rng, 0.05, 2.0))
    return steady(rng, added(around(rng, count, level, 0.001), cache), level / 10)


@family("steady", "held-out-11")
def evaluations_gathering_outputs(rng: random.Random) -> Series:
    """Training with an evaluation each so many steps that gathers all outputs, then scores them."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(5, max(count // 5, 6))
    lasts = rng.randint(2, max(round(0.8 * every), 2))
    shift, train = rng.randrange(every), rng.uniform(0.0, 1.0)
    places = [(at + shift) % every - (every - lasts) for at in range(count)]
    found = [train if place < 0 else (place + 1) * 2 / lasts for place in places]
    return _changing(rng, level, found, 0.3)


@family("steady", "held-out-11")
def candidate_bursts_from_a_telescope(rng: random.Random) -> Series:
    """A stream of frames is searched; now and then many candidates are held until looked at."""
    count, level = some_length(rng), some_level(rng)
    fades = rng.uniform(0.3, max(count / 80, 0.6))
    moments = _moments(rng, count, count / rng.uniform(6.0, 25.0), 1.0)
    comes = _at(count, moments, _log_normal(rng, rng.uniform(0.2, 0.8)))
    keeps = math.exp(-1 / fades)
    found = list(itertools.accumulate(comes, lambda left, one: left * keeps + one))
    return _changing(rng, level, found, 0.3)


@family("cycle_garbage", "held-out-11")
def tracebacks_in_cycles_until_collected(rng: random.Random) -> Series:
    """Caught errors hold frames with tensors in cycles, some of them until a full collection."""
    count, level = some_length(rng), some_level(rng)
    full = rng.uniform(3.0, max(count / 8, 4.0))
    young, ages = full / rng.choice((1, 3, 10)), rng.uniform(0.2, 1.0)
    size, uneven = _log_normal(rng, rng.uniform(0.0, 0.6)), rng.uniform(0.0, 0.4)
    fresh, since_young, since_full = 0.0, 0.0, rng.random() * full
    old = since_full * ages
    found: Series = []
    for _ in range(count):
        made = max(rng.gauss(1.0, uneven), 0.1)
        since_young, since_full = since_young + made, since_full + made
        fresh += size() * made
        if since_young >= young:
            fresh, old, since_young = 0.0, old + ages * fresh, 0.0
        if since_full >= full:
            fresh, old, since_young, since_full = 0.0, 0.0, 0.0, 0.0
        found.append(fresh + old)
    return _changing(rng, level, found, 0.25, 0.001)


@family("leak", "held-out-11")
def losses_summed_with_their_graphs(rng: random.Random) -> Series:
    """Training that adds each logged loss to a total without detaching it."""
    count, level = some_length(rng), some_level(rng)
    base = around(rng, count, level, rng.choice((0.001, 0.003, 0.01)))

    def draw() -> Series:
        every, first = rng.randint(1, max(count // 20, 1)), _first(rng, count)
        size = _log_normal(rng, rng.choice((0.0, 0.1, 0.4)))
        return _summed(_at(count, list(range(first, count, every)), size))

    return leaking(rng, base, _leaked(draw), level)


@family("leak", "held-out-11")
def hooks_added_by_each_evaluation(rng: random.Random) -> Series:
    """Each evaluation puts hooks on the layers that hold what they saw, and never removes them."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(2, max(count // 15, 2))
    shift, height = rng.randrange(every), _part(rng, level)
    higher = rng.random() < 0.6
    evaluating = [(at + shift) % every == 0 for at in range(count)]
    spikes = [height * rng.uniform(0.9, 1.1) * (one and higher) for one in evaluating]

    def draw() -> Series:
        first, uneven = _first(rng, count), rng.choice((0.0, 0.3))
        rises = [rng.uniform(1 - uneven, 1 + uneven) * one for one in evaluating]
        return _summed([one * (at >= first) for at, one in enumerate(rises)])

    base = added(around(rng, count, level), spikes)
    return leaking(rng, base, _leaked(draw), level)


@family("leak", "held-out-11")
def failed_requests_kept_in_a_table(rng: random.Random) -> Series:
    """A server forgets to take requests that failed, and their caches, out of its table."""
    count, level = some_length(rng), some_level(rng)
    busy, stay = log_uniform(rng, 1.0, 30.0), log_uniform(rng, 1.1, max(count / 40, 1.3))
    base = _scaled(_in_flight(rng, [busy / stay] * count, stay), _part(rng, level))

    def draw() -> Series:
        rate, first = log_uniform(rng, 30.0, 200.0) / count, _first(rng, count)
        size = _log_normal(rng, rng.uniform(0.2, 0.8))
        fails = [poisson(rng, rate) * (at >= first) for at in range(count)]
        return _summed([math.fsum(size() for _ in range(one)) for one in fails])

    return leaking(rng, added([level] * count, base), _leaked(draw), level, 1.3)


@family("leak", "held-out-11")
def cell_outputs_kept_by_history(rng: random.Random) -> Series:
    """A notebook whose history holds what each cell gave; someone works, pauses, works on."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        spells, rises = log_uniform(rng, 2.0, max(count / 18, 2.5)), [0.0]
        works, often = True, rng.uniform(0.4, 0.95)
        size = _log_normal(rng, rng.uniform(0.1, 0.6))
        for _ in range(count):
            works = not works if rng.random() < 1 / spells else works
            rises.append(size() if works and rng.random() < often else 0.0)
        return _summed(rises[1:])

    temporary = rng.choice((0.0, 0.1)) * level
    base = [level + temporary * rng.random() * (rng.random() < 0.2) for _ in range(count)]
    return leaking(rng, base, _leaked(draw), level, 1.3)


@family("leak", "held-out-11")
def prefix_cache_without_a_limit(rng: random.Random) -> Series:
    """Generation caches each prefix it has not seen yet: ever rarer ones, but always new ones."""
    count, level = some_length(rng), some_level(rng)
    work = _scaled([rng.random() for _ in range(count)], level * log_uniform(rng, 0.001, 0.1))

    def draw() -> Series:
        power, whole = rng.uniform(0.7, 0.9), log_uniform(rng, 50.0, 2000.0)
        size = _log_normal(rng, rng.uniform(0.0, 0.6))
        seen = [whole * math.pow(at / count, power) for at in range(count + 1)]
        new = [poisson(rng, after - one) for one, after in itertools.pairwise(seen)]
        return _summed([one * size() for one in new])

    return leaking(rng, added([level] * count, work), _leaked(draw), level, 1.3)


@family("leak", "held-out-11")
def episodes_ever_longer_never_dropped(rng: random.Random) -> Series:
    """On-policy RL keeps all episodes, which get longer as the policy learns to survive."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(2, 12)
    update = level * rng.choice((0.0, 0.02, 0.2))
    base = [one + update * (at % every == 0) for at, one in enumerate(around(rng, count, level))]

    def draw() -> Series:
        gap, better = log_uniform(rng, 1.0, max(count / 18, 1.2)), rng.uniform(0.5, 3.0)
        moments = _moments(rng, count, gap, rng.uniform(0.0, 0.7))
        rises = _at(count, moments, _log_normal(rng, rng.uniform(0.1, 0.4)))
        return _summed([one * (1 + better * at / count) for at, one in enumerate(rises)])

    return leaking(rng, base, _leaked(draw), level)


@family("leak", "held-out-11")
def subtrees_kept_by_parent_links(rng: random.Random) -> Series:
    """A planner drops its tree after each move, but nodes still linked from above live on."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        gap = log_uniform(rng, 2.0, max(count / 15, 2.1))
        moments = _moments(rng, count, gap, rng.uniform(0.0, 0.5))
        return _summed(_at(count, moments, _log_normal(rng, rng.uniform(0.1, 0.6))))

    kept, power = _leaked(draw), rng.uniform(0.5, 1.3)
    moments = [at for at in range(1, count) if kept[at] > kept[at - 1]]
    trees = [math.pow(age, power) for age in _ages(count, moments, 1)]
    base = added(around(rng, count, level, 0.001), _scaled(trees, _part(rng, level)))
    return leaking(rng, base, kept, level)


@family("leak", "held-out-11")
def pools_copied_each_labelling_round(rng: random.Random) -> Series:
    """Active learning copies its growing pool each round, and closures hold all older copies."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(1, max(count // 20, 1))
    shift, fit = rng.randrange(every), level * rng.uniform(0.0, 0.2)
    fits = [fit * ((at + shift) % every) / every for at in range(count)]

    def draw() -> Series:
        labelled = rng.uniform(0.2, 1.5) * count / every
        new = [rng.uniform(0.5, 1.5) * ((at + shift) % every == 0) for at in range(count)]
        pools = zip(_summed(new), new, strict=True)
        return _summed([(labelled + pool) * (one > 0) for pool, one in pools])

    base = added(around(rng, count, level), fits)
    return leaking(rng, base, _leaked(draw), level)


@family("leak", "held-out-11")
def sessions_left_open_each_day(rng: random.Random) -> Series:
    """A speech server loses some sessions for good, the more the more people speak to it."""
    count, level = some_length(rng), some_level(rng)
    load = _daily(rng, count, rng.uniform(6.0, max(count / 8, 7.0)))
    peak, stay = log_uniform(rng, 3.0, 30.0), log_uniform(rng, 1.1, max(count / 60, 1.3))
    taken = _in_flight(rng, [peak / stay * one for one in load], stay)

    def draw() -> Series:
        lost = log_uniform(rng, 60.0, 400.0) / count
        return _summed([float(poisson(rng, lost * one)) for one in load])

    base = added([level] * count, _scaled(taken, level * log_uniform(rng, 0.01, 0.3)))
    return leaking(rng, base, _leaked(draw), level, 1.4)


@family("leak", "held-out-11")
def second_stage_keeps_teacher_outputs(rng: random.Random) -> Series:
    """Distillation, whose second stage begins with less in memory, but lists teacher outputs."""
    count, level = some_length(rng), some_level(rng)
    first = round(count * rng.uniform(0.1, 0.42))
    less = level * rng.choice((0.0, rng.uniform(0.01, 0.1)))
    base = added(around(rng, count, level), [-less * (at >= first) for at in range(count)])

    def draw() -> Series:
        often, size = rng.uniform(0.5, 1.0), _log_normal(rng, rng.uniform(0.0, 0.7))
        return _summed([size() * (at >= first and rng.random() < often) for at in range(count)])

    return leaking(rng, base, _leaked(draw), level)
