# SPDX-License-Identifier: Apache-2.0
"""The second held-out set of families of series: written when the method was done.

Lengths are 24 to 430 steps. A leak leaves 0.1 % to 0.5 % of the level a step, as leak_in_noise of
the families looked at does: in the mean of the part that leaks, which is 80 steps and more.
"""

from __future__ import annotations

import math
import random

from trend_families import Series, around, family, some_level

__all__: list[str] = []


def _leak_a_step(rng: random.Random, level: float) -> float:
    return level * rng.uniform(0.001, 0.005)


# ---- steady ---------------------------------------------------------------------------------


@family("steady", "held-out-2")
def noise_of_several_speeds(rng: random.Random) -> Series:
    """The sum of three that come back to their mean: in a few steps, in tens, in up to sixty."""
    level, count = some_level(rng), rng.randint(24, 430)
    found = [level] * count
    for least, most in ((2, 5), (8, 20), (20, 60)):
        memory, spread = math.exp(-1 / rng.uniform(least, most)), level * rng.uniform(0.0005, 0.003)
        value = rng.gauss(0.0, spread)
        for at in range(count):
            found[at] += value
            value = memory * value + rng.gauss(0.0, spread * math.sqrt(1 - memory * memory))
    return found


@family("steady", "held-out-2")
def walk_between_bounds(rng: random.Random) -> Series:
    """A pool between a least and a greatest size, off which the walk is reflected."""
    level, count = some_level(rng), rng.randint(24, 430)
    width = level * rng.uniform(0.005, 0.05)
    size, at, found = width / rng.uniform(6, 20), rng.uniform(0.0, width), []
    for _ in range(count):
        at = abs(at + rng.gauss(0.0, size))
        at = width - abs(width - at)
        found.append(level + at)
    return found


@family("steady", "held-out-2")
def requests_in_flight(rng: random.Random) -> Series:
    """Requests come at random, hold something for a time, and give all of it back."""
    level, count = some_level(rng), rng.randint(24, 430)
    a_step, life = rng.uniform(0.3, 3.0), rng.uniform(2, 30)
    sizes = [level * rng.uniform(0.0005, 0.005) for _ in range(rng.randint(1, 4))]
    found = [level] * count
    come = -8 * life
    while (come := come + rng.expovariate(a_step)) < count:
        size, gone = rng.choice(sizes), come + rng.expovariate(1 / life)
        for at in range(max(math.ceil(come), 0), min(math.ceil(gone), count)):
            found[at] += size
    return found


@family("steady", "held-out-2")
def uneven_season(rng: random.Random) -> Series:
    """A hill again and again, no two of the same length, four of them and more."""
    level, count = some_level(rng), rng.randint(60, 430)
    period, height = count / rng.uniform(5, 15), level * rng.uniform(0.01, 0.2)
    found = around(rng, count, level, 0.002)
    at = -rng.uniform(0.0, period)
    while at < count:
        length = period * rng.uniform(0.7, 1.3)
        for step in range(max(math.ceil(at), 0), min(math.ceil(at + length), count)):
            found[step] += height * math.sin(math.pi * (step - at) / length)
        at += length
    return found


@family("steady", "held-out-2")
def least_recently_used(rng: random.Random) -> Series:
    """A cache of a bounded size, full after a fifth to three fifths: the oldest go from there."""
    level, count = some_level(rng), rng.randint(60, 430)
    each, full = level * rng.uniform(0.0005, 0.01), count * rng.uniform(0.2, 0.6)
    kept: list[float] = []
    bound = each * full * math.exp(0.18)
    found = []
    for one in around(rng, count, level, 0.001):
        kept.append(each * rng.lognormvariate(0.0, 0.6))
        while sum(kept) > bound:
            kept.pop(0)
        found.append(one + sum(kept))
    return found


@family("steady", "held-out-2")
def walk_in_clusters(rng: random.Random) -> Series:
    """A walk without drift whose large changes come together (GARCH(1, 1))."""
    level, count = some_level(rng), rng.randint(30, 430)
    usual = (level * rng.choice((0.0005, 0.001, 0.002))) ** 2
    fresh, memory = rng.uniform(0.1, 0.25), rng.uniform(0.6, 0.72)
    value, square, found = level, usual, []
    for _ in range(count):
        change = rng.gauss(0.0, math.sqrt(square))
        square = usual * (1 - fresh - memory) + fresh * change * change + memory * square
        value = max(value + change, 0.0)
        found.append(value)
    return found


@family("steady", "held-out-2")
def long_phases(rng: random.Random) -> Series:
    """Two to four kinds of work, each with its level, for 5 to 40 steps at a time."""
    level, count = some_level(rng), rng.randint(40, 430)
    levels = [level * rng.uniform(0.005, 0.2) for _ in range(rng.randint(2, 4))]
    stay, now, found = rng.uniform(5, 40), rng.choice(levels), []
    for one in around(rng, count, level, 0.002):
        if rng.random() < 1 / stay:
            now = rng.choice(levels)
        found.append(one + now)
    return found


@family("steady", "held-out-2")
def longest_batch_so_far(rng: random.Random) -> Series:
    """A buffer that grows to the longest batch there was; lengths are lognormal and cut off."""
    level, count = some_level(rng), rng.randint(24, 430)
    cut, each = rng.choice((512, 1024, 2048)), level * rng.uniform(0.02, 0.5)
    middle, wide, batch = rng.uniform(60, 200), rng.uniform(0.3, 0.7), rng.choice((8, 16, 32))
    longest, found = 0, []
    for one in around(rng, count, level, 0.001):
        lengths = (rng.lognormvariate(math.log(middle), wide) for _ in range(batch))
        longest = max(longest, min(math.ceil(max(lengths) / 8) * 8, cut))
        found.append(one + each * longest / cut)
    return found


@family("steady", "held-out-2")
def checkpoints_written_slowly(rng: random.Random) -> Series:
    """Each so many steps a copy of varied size, let go piece by piece as it is written."""
    level, count = some_level(rng), rng.randint(40, 430)
    period, most = rng.randint(10, 50), level * rng.uniform(0.1, 1.0)
    found = around(rng, count, level, 0.002)
    for first in range(rng.randint(1, period), count, period):
        size, steps = most * rng.uniform(0.2, 1.0), rng.randint(2, 9)
        for at in range(first, min(first + steps, count)):
            found[at] += size * (1 - (at - first) / steps)
    return found


@family("cycle_garbage", "held-out-2")
def collected_garbage(rng: random.Random) -> Series:
    """Garbage in cycles, by batch, until a collection at a threshold takes all of it: steady is
    right too."""
    level, count = some_level(rng), rng.randint(40, 430)
    each, steps = level * rng.uniform(0.001, 0.01), rng.uniform(4, count / 6)
    garbage = each * steps * rng.random()
    found = []
    for one in around(rng, count, level, 0.001):
        garbage += each * rng.expovariate(1.0)
        if garbage > each * steps:
            garbage = 0.0
        found.append(one + garbage)
    return found


# ---- leaks ----------------------------------------------------------------------------------


@family("leak", "held-out-2")
def leak_with_pauses(rng: random.Random) -> Series:
    """It leaks for 8 to 30 steps, and rests for a half of that to as long."""
    level, count = some_level(rng), rng.randint(120, 430)
    each, total, found = _leak_a_step(rng, level), 0.0, []
    works = rng.randint(8, 30)
    rests = round(works * rng.uniform(0.5, 1.0))
    first = rng.randrange(works + rests)
    for at, one in enumerate(around(rng, count, level, 0.002)):
        if (first + at) % (works + rests) < works:
            total += each * (works + rests) / works
        found.append(one + total)
    return found


@family("leak", "held-out-2")
def leak_that_begins_late(rng: random.Random) -> Series:
    """Nothing is left for the first tenth to two fifths, the same each step from there."""
    level, count = some_level(rng), rng.randint(140, 430)
    each, begin = _leak_a_step(rng, level), round(count * rng.uniform(0.1, 0.4))
    rest = around(rng, count, level, 0.002)
    return [one + each * max(at - begin, 0) for at, one in enumerate(rest)]


@family("leak", "held-out-2")
def leak_partly_given_back(rng: random.Random) -> Series:
    """Each 6 to 20 steps a third to two thirds of what was left since is given back."""
    level, count = some_level(rng), rng.randint(120, 430)
    each, period, back = _leak_a_step(rng, level), rng.randint(6, 20), rng.uniform(0.33, 0.67)
    gross, total, found = each / (1 - back), 0.0, []
    for at, one in enumerate(around(rng, count, level, 0.002)):
        total += gross * rng.uniform(0.5, 1.5)
        if at % period == period - 1:
            total -= gross * period * back
        found.append(one + total)
    return found


@family("leak", "held-out-2")
def leak_in_bursts(rng: random.Random) -> Series:
    """At random, each 4 to 12 steps in the mean, much is left at once, more or less of it."""
    level, count = some_level(rng), rng.randint(150, 430)
    each, apart = _leak_a_step(rng, level), rng.uniform(4, 12)
    total, found = 0.0, []
    for one in around(rng, count, level, 0.002):
        if rng.random() < 1 / apart:
            total += each * apart * rng.uniform(0.3, 1.7)
        found.append(one + total)
    return found


@family("leak", "held-out-2")
def leak_under_season(rng: random.Random) -> Series:
    """The load goes up and down in uneven waves, four and more; each step leaves the same."""
    level, count = some_level(rng), rng.randint(100, 430)
    each, period = _leak_a_step(rng, level), count / rng.uniform(4, 15)
    height, phase = level * rng.uniform(0.005, 0.05), rng.uniform(0.0, 2 * math.pi)
    found = []
    for at, one in enumerate(around(rng, count, level, 0.002)):
        phase += 2 * math.pi / period * rng.uniform(0.5, 1.5)
        found.append(one + each * at + height * math.sin(phase))
    return found


@family("leak", "held-out-2")
def leak_that_speeds_up(rng: random.Random) -> Series:
    """It begins at three tenths of its mean and ends at seventeen."""
    level, count = some_level(rng), rng.randint(80, 430)
    each, total, found = _leak_a_step(rng, level), 0.0, []
    for at, one in enumerate(around(rng, count, level, 0.002)):
        total += each * (0.3 + 1.4 * at / (count - 1))
        found.append(one + total)
    return found
