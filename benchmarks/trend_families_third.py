# SPDX-License-Identifier: Apache-2.0
"""The third held-out set of families of series: written without a look at the method.

Lengths are 30 to 500 steps, and values whole blocks of 512 bytes, as PyTorch's allocator gives
them. What is steady has the same mean, apart from a regular part, from half of its length on.

A leak can be seen, in principle, in the whole of its series: it has twelve events or more, some
in each third of the part that leaks, and in all it leaves five times and more the standard
deviation of the same series without it. Where a series has a regular part, such as the height of
an evaluation or the hour of the day, that deviation is of what remains once this part is known.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

from trend_families import Series, around, family, some_level

__all__: list[str] = []

BLOCK = 512
MIB = 1 << 20


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _poisson(rng: random.Random, mean: float) -> int:
    """How many come in a step, of what comes at random and so many a step in the mean."""
    at, number = rng.expovariate(1.0), 0
    while at < mean:
        at, number = at + rng.expovariate(1.0), number + 1
    return number


def _in_blocks(found: Series) -> Series:
    return [max(float(round(one / BLOCK) * BLOCK), 0.0) for one in found]


def _padded_batch(rng: random.Random, texts: int, tail: float, limit: int, unit: int) -> int:
    """The tokens of a text of a batch: its longest, cut at a limit, in whole units."""
    longest = max(round(32 * rng.paretovariate(tail)) for _ in range(texts))
    return min(math.ceil(longest / unit) * unit, limit)


def _padded_batches(rng: random.Random, count: int, height: float) -> Series:
    """What padded batches take, where one of the longest texts takes the height."""
    texts, tail = rng.choice((4, 8, 16, 32)), rng.uniform(1.6, 3.0)
    limit, unit = rng.choice((512, 1024, 2048)), rng.choice((1, 8, 64))
    return [height * _padded_batch(rng, texts, tail, limit, unit) / limit for _ in range(count)]


def _day(rng: random.Random, count: int) -> Series:
    """The load of a server, 0 to 1, in days of the same shape: six of them or more."""
    period, phase = rng.randint(12, count // 6), rng.uniform(0.0, 2 * math.pi)
    sharp = rng.uniform(0.7, 3.0)
    angles = (2 * math.pi * at / period + phase for at in range(count))
    return [((1 + math.sin(angle)) / 2) ** sharp for angle in angles]


# ---- steady ---------------------------------------------------------------------------------


@family("steady", "held-out-3")
def padded_to_the_longest(rng: random.Random) -> Series:
    """Batches padded to their longest text, of lengths with a heavy tail, stay until the next."""
    level, count = some_level(rng), rng.randint(30, 500)
    batches = _padded_batches(rng, count, level * rng.uniform(0.05, 1.0))
    return _in_blocks([level + one for one in batches])


@family("steady", "held-out-3")
def curriculum_of_buckets(rng: random.Random) -> Series:
    """The longest bucket doubles in stages until all are in use, in the first half."""
    level, count = some_level(rng), rng.randint(60, 500)
    stages, end = rng.randint(3, 6), count * rng.uniform(0.12, 0.48)
    longest_only = rng.random() < 0.3
    height = level * rng.uniform(0.1, 1.0)
    found = []
    for at, one in enumerate(around(rng, count, level, 0.0005)):
        stage = min(math.floor(stages * at / end), stages)
        bucket = stage if longest_only else rng.randint(max(stage - 3, 0), stage)
        found.append(one + height * 2.0 ** (bucket - stages))
    return _in_blocks(found)


@family("steady", "held-out-3")
def cache_of_last_used(rng: random.Random) -> Series:
    """A cache that lets go of what was used longest ago; it is full before half."""
    level, count = some_level(rng), rng.randint(60, 500)
    keys, a_step = rng.randint(100, 1500), rng.randint(1, 6)
    steep = rng.uniform(0.6, 1.1)
    weights = [(rank + 1) ** -steep for rank in range(keys)]
    asked = rng.choices(range(keys), weights, k=a_step * count)
    bound = max(len(set(asked[: round(a_step * count * rng.uniform(0.05, 0.45))])), 3)
    sizes = [rng.lognormvariate(0.0, rng.choice((0.0, 0.3, 0.7))) for _ in range(keys)]
    each = level * rng.uniform(0.03, 1.0) / bound
    cache: dict[int, float] = {}
    found = []
    for at in range(count):
        for key in asked[at * a_step : (at + 1) * a_step]:
            cache.pop(key, None)
            cache[key] = each * sizes[key]
            if len(cache) > bound:
                del cache[next(iter(cache))]
        found.append(level + sum(cache.values()))
    return _in_blocks(found)


@family("steady", "held-out-3")
def settling_warmup(rng: random.Random) -> Series:
    """A way to the level in an S, ever faster, past it and back, or in uneven parts; then noise."""
    level, count = some_level(rng), rng.randint(50, 500)
    end, height = count * rng.uniform(0.08, 0.48), level * rng.uniform(0.05, 0.7)
    shape, bend = rng.choice(("s", "faster", "past", "parts")), rng.uniform(1.5, 4.0)
    parts = sorted(rng.random() for _ in range(rng.randint(3, 12)))
    found = []
    for at, one in enumerate(around(rng, count, level, 0.002)):
        part = min(at / end, 1.0)
        if shape == "s":
            done = part**bend / (part**bend + (1 - part) ** bend)
        elif shape == "faster":
            done = part**bend
        elif shape == "past":
            done = 1 - (1 - part) ** 2 + bend * part * (1 - part) ** 2
        else:
            done = sum(one_part <= part for one_part in parts) / len(parts)
        found.append(one - height * (1 - done))
    return _in_blocks(found)


@family("steady", "held-out-3")
def rounded_to_segments(rng: random.Random) -> Series:
    """What is needed is noise that remembers; it is had in whole segments."""
    segment, count = rng.choice((2, 20, 32)) * MIB, rng.randint(30, 500)
    level, memory = segment * rng.uniform(10, 400), rng.choice((0.4, 0.7, 0.85, 0.93))
    spread = segment * rng.uniform(0.25, 2.0)
    value = rng.gauss(0.0, spread)
    found = []
    for _ in range(count):
        found.append(float(segment * math.ceil((level + value) / segment)))
        value = memory * value + rng.gauss(0.0, spread * math.sqrt(1 - memory * memory))
    return _in_blocks(found)


@family("steady", "held-out-3")
def gathered_predictions(rng: random.Random) -> Series:
    """Evaluations gather predictions step by step and let them go; some write a checkpoint."""
    level, count = some_level(rng), rng.randint(80, 500)
    period = rng.randint(8, count // 7)
    width, seldom = rng.randint(3, max(period // 2, 3)), rng.randint(1, 3)
    each, model = level * rng.uniform(0.02, 0.5) / width, level * rng.uniform(0.0, 0.4)
    found = around(rng, count, level, 0.001)
    for number, first in enumerate(range(period - width, count, period)):
        for at in range(first, min(first + width, count)):
            found[at] += each * (at - first + 1)
        if number % seldom == seldom - 1 and first + width < count:
            found[first + width] += model
    return _in_blocks(found)


@family("steady", "held-out-3")
def server_by_day(rng: random.Random) -> Series:
    """Requests by the hour of the day, some days busier than others; each gives all back."""
    level, count = some_level(rng), rng.randint(90, 500)
    night, more = rng.uniform(0.2, 4.0), rng.uniform(3.0, 25.0)
    each, spread = level * rng.uniform(0.002, 0.03), rng.uniform(0.1, 0.8)
    found = []
    for load in _day(rng, count):
        number = _poisson(rng, night + more * load)
        found.append(level + sum(each * rng.lognormvariate(0.0, spread) for _ in range(number)))
    return _in_blocks(found)


@family("steady", "held-out-3")
def conversations(rng: random.Random) -> Series:
    """Each conversation holds more blocks of a cache by the step, until it ends or is full."""
    level, count = some_level(rng), rng.randint(60, 500)
    mean_life, a_step = rng.uniform(3.0, count / 12), rng.uniform(0.1, 1.5)
    full, block = math.ceil(5 * mean_life), level * rng.uniform(0.0005, 0.004)
    lives: list[tuple[float, int]] = []
    found = []
    for _ in range(count):
        lives = [
            (blocks + rng.choice((0, 1, 1, 2)), age + 1)
            for blocks, age in lives
            if age < full and rng.random() > 1 / mean_life
        ]
        lives += [(float(rng.randint(1, 8)), 0) for _ in range(_poisson(rng, a_step))]
        found.append(level + block * sum(blocks for blocks, _ in lives))
    return _in_blocks(found)


@family("steady", "held-out-3")
def rollouts_and_updates(rng: random.Random) -> Series:
    """Two regimes that last a random while each, with a level and a noise of their own."""
    level, count = some_level(rng), rng.randint(80, 500)
    stay = [rng.uniform(2.0, count / 14) for _ in range(2)]
    levels = [level, level * (1 + rng.uniform(0.03, 0.8))]
    spreads = [level * rng.choice((0.0, 0.001, 0.01)) for _ in range(2)]
    now, found = int(rng.random() < stay[1] / sum(stay)), []
    for _ in range(count):
        found.append(rng.gauss(levels[now], spreads[now]))
        if rng.random() < 1 / stay[now]:
            now = 1 - now
    return _in_blocks(found)


@family("cycle_garbage", "held-out-3")
def collected_by_generation(rng: random.Random) -> Series:
    """Cycles with tensors: most go with a young collection, the old ones with a full one."""
    level, count = some_level(rng), rng.randint(60, 500)
    a_step, survive = rng.uniform(1.0, 12.0), rng.choice((0.0, 0.1, 0.3, 1.0))
    fulls = rng.randint(2, 6)
    young_limit = a_step * rng.uniform(1.5, count / (7 * fulls))
    each = level * rng.uniform(0.001, 0.02)
    young, old, collections, found = 0, 0, 0, []
    for one in around(rng, count, level, 0.0005):
        young += _poisson(rng, a_step)
        if young > young_limit:
            collections += 1
            old = 0 if collections % fulls == 0 else old + round(survive * young)
            young = 0
        found.append(one + each * (young + old))
    return _in_blocks(found)


# ---- leaks ----------------------------------------------------------------------------------


def _total(rng: random.Random, level: float, scatter: float) -> float:
    """What leaks in all: 6 to 60 times the scatter, or a part of the level where there is none."""
    if scatter < level / 1e6:
        return level * _log_uniform(rng, 0.002, 0.5)
    return scatter * _log_uniform(rng, 6.0, 60.0)


def _kept(events: Series, total: float) -> Series:
    """What is kept after each step: the events so far, as parts of the total, in whole blocks."""
    scale = total / sum(events)
    return list(itertools.accumulate(math.ceil(one * scale / BLOCK) * BLOCK for one in events))


def _leaking(rest: Series, regular: Series, kept: Series) -> Series:
    """All of it together: what remains of the program, its regular part, and what leaks."""
    return _in_blocks([sum(three) for three in zip(rest, regular, kept, strict=True)])


@family("leak", "held-out-3")
def list_of_losses(rng: random.Random) -> Series:
    """A list keeps a block or some of each step; else it is exact, in shapes by turns."""
    level, count = some_level(rng), rng.randint(40, 500)
    each = BLOCK * round(_log_uniform(rng, 1, 200))
    shapes = [level * rng.uniform(0.0, 0.1) for _ in range(rng.choice((0, 2, 3, 5)))] or [0.0]
    regular = [shapes[at % len(shapes)] for at in range(count)]
    made = rng.randint(0, 3)
    regular[:made] = [-level * rng.uniform(0.3, 0.6)] * made
    return _leaking([level] * count, regular, _kept([1.0] * count, each * count))


@family("leak", "held-out-3")
def history_of_epochs(rng: random.Random) -> Series:
    """Each epoch leaves something at its end; its last batch is a smaller one."""
    level, epochs = some_level(rng), rng.randint(14, 40)
    period = rng.randint(3, min(500 // epochs, 30))
    count, less = epochs * period, level * rng.choice((0.0, 0.02, 0.1, 0.3))
    rest = around(rng, count, level, 0.001)
    ends = [float(at % period == period - 1) for at in range(count)]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [-less * one for one in ends], _kept(ends, total))


@family("leak", "held-out-3")
def kept_by_exceptions(rng: random.Random) -> Series:
    """A step fails now and then, and its traceback keeps what the step held."""
    level, count = some_level(rng), rng.randint(120, 500)
    share, spread = rng.uniform(20 / count, 0.35), rng.uniform(0.0, 0.6)
    batches = _padded_batches(rng, count, level * rng.uniform(0.01, 0.3))
    rest = [level + one for one in batches]
    while True:
        failed = [rng.random() < share for _ in range(count)]
        thirds = [sum(failed[part * count // 3 : (part + 1) * count // 3]) for part in range(3)]
        if sum(thirds) >= 12 and min(thirds) >= 3:
            break
    events = [rng.lognormvariate(0.0, spread) if one else 0.0 for one in failed]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [0.0] * count, _kept(events, total))


@family("leak", "held-out-3")
def from_a_third_on(rng: random.Random) -> Series:
    """A part of the program that comes in after a third, often with state of its own, leaks."""
    level, count = some_level(rng), rng.randint(90, 500)
    first = math.ceil(count * rng.uniform(0.34, 0.45))
    height = level * rng.choice((0.0, rng.uniform(0.005, 0.2)))
    rest = around(rng, count, level, 0.002)
    events = [0.0 if at < first else 1.0 for at in range(count)]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [height * one for one in events], _kept(events, total))


@family("leak", "held-out-3")
def under_long_evaluations(rng: random.Random) -> Series:
    """Training leaks a little each step; evaluations, which do not, hold much more for a while."""
    level, count = some_level(rng), rng.randint(80, 500)
    period = rng.randint(8, max(count // 6, 9))
    width = rng.randint(max(period // 5, 1), period // 2)
    height = level * rng.uniform(0.1, 0.9)
    rest = around(rng, count, level, 0.002)
    evaluates = [at % period >= period - width for at in range(count)]
    events = [0.0 if one else 1.0 for one in evaluates]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [height * one for one in evaluates], _kept(events, total))


@family("leak", "held-out-3")
def tensors_of_many_sizes(rng: random.Random) -> Series:
    """Steps, or some of them, leave a tensor whose size is lognormal, up to a limit."""
    level, count = some_level(rng), rng.randint(100, 500)
    share, spread = rng.choice((rng.uniform(0.35, 0.9), 1.0)), rng.uniform(0.8, 1.4)
    rest = around(rng, count, level, 0.003)
    events = [
        min(rng.lognormvariate(0.0, spread), 10.0) if rng.random() < share else 0.0
        for _ in range(count)
    ]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [0.0] * count, _kept(events, total))


@family("leak", "held-out-3")
def share_of_the_requests(rng: random.Random) -> Series:
    """A server with day and night keeps something of a share of its requests."""
    level, count = some_level(rng), rng.randint(120, 500)
    night, more = rng.uniform(0.5, 4.0), rng.uniform(3.0, 20.0)
    share, spread = rng.uniform(0.05, 0.4), rng.uniform(0.1, 0.6)
    each = level * rng.uniform(0.001, 0.02)
    regular, rest, events = [], [], []
    for load in _day(rng, count):
        mean = night + more * load
        sizes = [rng.lognormvariate(0.0, spread) for _ in range(_poisson(rng, mean))]
        regular.append(each * mean * math.exp(spread * spread / 2))
        rest.append(level + each * sum(sizes) - regular[-1])
        events.append(sum(one for one in sizes if rng.random() < share))
    season = max(regular) - min(regular)
    total = max(_total(rng, level, statistics.pstdev(rest)), season)
    return _leaking(rest, regular, _kept(events, total))


@family("leak", "held-out-3")
def half_as_fast_from_then(rng: random.Random) -> Series:
    """Its rate halves once, as when half of the heads are frozen."""
    level, count = some_level(rng), rng.randint(60, 500)
    then = round(count * rng.uniform(0.25, 0.65))
    rest = around(rng, count, level, 0.002)
    events = [1.0 if at < then else 0.5 for at in range(count)]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [0.0] * count, _kept(events, total))


@family("leak", "held-out-3")
def beneath_slow_noise(rng: random.Random) -> Series:
    """Noise that takes tens of steps to come back, and some of each batch, over a leak a step."""
    level, count = some_level(rng), rng.randint(180, 500)
    memory = math.exp(-1 / rng.uniform(6.0, count / 16))
    spread, batch = level * rng.uniform(0.002, 0.02), level * rng.choice((0.0, 0.001, 0.005))
    value, rest = rng.gauss(0.0, spread), []
    for _ in range(count):
        rest.append(level + value + rng.gauss(0.0, batch))
        value = memory * value + rng.gauss(0.0, spread * math.sqrt(1 - memory * memory))
    scatter = max(math.hypot(spread, batch), statistics.pstdev(rest))
    return _leaking(rest, [0.0] * count, _kept([1.0] * count, _total(rng, level, scatter)))


@family("leak", "held-out-3")
def only_when_evaluating(rng: random.Random) -> Series:
    """Steps of an evaluation leave something, those of training nothing."""
    level, evaluations = some_level(rng), rng.randint(14, 35)
    period = rng.randint(6, min(500 // evaluations, 32))
    width, count = rng.randint(1, max(period // 4, 1)), evaluations * period
    height = level * rng.choice((0.0, rng.uniform(0.02, 0.5)))
    rest = around(rng, count, level, 0.001)
    events = [float(at % period >= period - width) for at in range(count)]
    total = _total(rng, level, statistics.pstdev(rest))
    return _leaking(rest, [height * one for one in events], _kept(events, total))
