# SPDX-License-Identifier: Apache-2.0
"""Families of series of a program's live memory, one value a step, each with its truth.

A family makes a series from a seed. By those looked at (trend_families_seasons.py has some of them)
neutracer's method was chosen. The held-out sets (trend_families_second.py and so on) had no part in
what it was when each was counted for the first time. The first six, the twelfth and the thirteenth
have one now: with random programs (trend_training.py) they are what tools/fit_trend.py fits on, by
other seeds than are counted. Those in UNSEEN have none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

__all__ = [
    "FAMILIES",
    "UNSEEN",
    "Family",
    "Group",
    "Series",
    "around",
    "family",
    "gaussian_walk",
    "some_level",
]

GIB = 1 << 30

Series = list[float]
Group = Literal[
    "training",
    "looked-at",
    "held-out",
    "held-out-2",
    "held-out-3",
    "held-out-4",
    "held-out-5",
    "held-out-6",
    "held-out-7",
    "held-out-8",
    "held-out-9",
    "held-out-10",
    "held-out-11",
    "held-out-12",
    "held-out-13",
    "held-out-14",
    "held-out-15",
    "held-out-16",
    "held-out-17",
    "held-out-18",
    "held-out-19",
]

# Held-out sets that nothing is fitted on.
UNSEEN: tuple[Group, ...] = (
    "held-out-7",
    "held-out-8",
    "held-out-9",
    "held-out-10",
    "held-out-11",
    "held-out-14",
    "held-out-15",
    "held-out-16",
    "held-out-17",
    "held-out-18",
    "held-out-19",
)


class Family(NamedTuple):
    """Series of one kind.

    Attributes:
        truth: "steady", "leak" or "cycle_garbage", which is steady to whoever sees but numbers.
        group: "training" (made to be fitted on), "looked-at" (the method was chosen on it), or a
            held-out set.
        make: Makes a series, in bytes.
    """

    truth: str
    group: Group
    make: Callable[[random.Random], Series]


FAMILIES: dict[str, Family] = {}


def family(truth: str, group: Group) -> Callable[..., Callable[[random.Random], Series]]:
    def add(make: Callable[[random.Random], Series]) -> Callable[[random.Random], Series]:
        if make.__name__ in FAMILIES:
            raise ValueError(f"two families are called {make.__name__}")
        FAMILIES[make.__name__] = Family(truth, group, make)
        return make

    return add


def some_level(rng: random.Random) -> float:
    """What a program holds, in bytes: 16 MiB to 64 GiB."""
    return math.pow(2.0, rng.uniform(24, 36))


def _noise(rng: random.Random, count: int, size: float) -> Series:
    """Noise that remembers between nothing and 0.9; a third of the programs have none."""
    if rng.random() < 1 / 3:
        return [0.0] * count
    memory = rng.choice((0.0, 0.3, 0.6, 0.9))
    value = rng.gauss(0.0, size) / math.sqrt(1 - memory * memory)
    found = [value]
    while len(found) < count:
        value = memory * value + rng.gauss(0.0, size)
        found.append(value)
    return found


def around(rng: random.Random, count: int, level: float, part: float = 0.003) -> Series:
    """The level in noise whose changes are so large a part of it."""
    return [level + one for one in _noise(rng, count, part * level)]


# ---- steady, looked at ----------------------------------------------------------------------


@family("steady", "looked-at")
def noise(rng: random.Random) -> Series:
    return around(rng, rng.randint(24, 400), some_level(rng))


def gaussian_walk(rng: random.Random, level: float, count: int) -> Series:
    """Gaussian changes that nothing takes back."""
    size, value, found = level * rng.choice((0.0005, 0.001, 0.003)), level, []
    for _ in range(count):
        value = max(value + rng.gauss(0.0, size), 0.0)
        found.append(value)
    return found


@family("steady", "looked-at")
def random_walk(rng: random.Random) -> Series:
    return gaussian_walk(rng, some_level(rng), rng.randint(30, 400))


@family("steady", "looked-at")
def exponential_warmup(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(40, 300)
    height, pace = level * rng.uniform(0.1, 0.6), rng.uniform(1.0, count / 8)
    rest = around(rng, count, level)
    return [one - height * math.exp(-at / pace) for at, one in enumerate(rest)]


@family("steady", "looked-at")
def stepped_warmup(rng: random.Random) -> Series:
    """Some steps of the level in the first third, as lazily made state and caches make."""
    level, count = some_level(rng), rng.randint(40, 300)
    found = around(rng, count, level)
    for _ in range(rng.randint(1, 5)):
        at, height = rng.randint(1, count // 3), level * rng.uniform(0.02, 0.3)
        found = [one - height if step < at else one for step, one in enumerate(found)]
    return [max(one, 0.0) for one in found]


@family("steady", "looked-at")
def evaluations(rng: random.Random) -> Series:
    """Every so many steps an evaluation holds more for a few."""
    level, count = some_level(rng), rng.randint(40, 400)
    period, width = rng.randint(5, 50), rng.randint(1, 4)
    height, first = level * rng.uniform(0.02, 0.4), rng.randrange(5, 60)
    found = around(rng, count, level)
    return [
        one + height if at >= first and (at - first) % period < width else one
        for at, one in enumerate(found)
    ]


@family("steady", "looked-at")
def filled_queue(rng: random.Random) -> Series:
    """A queue with a bound: a straight rise to half or three quarters, flat from there."""
    level, count = some_level(rng), rng.randint(60, 400)
    full = round(count * rng.uniform(0.2, 0.75))
    height = level * rng.uniform(0.05, 1.0)
    found = around(rng, count, level, 0.001)
    return [one + height * min(at / full, 1.0) for at, one in enumerate(found)]


@family("steady", "looked-at")
def key_cache(rng: random.Random) -> Series:
    """A cache by key: each of so many keys, drawn at random, takes its place once."""
    level, count = some_level(rng), rng.randint(60, 400)
    keys, each = rng.randint(3, max(count // 6, 4)), level * rng.uniform(0.002, 0.05)
    seen: set[int] = set()
    found = []
    for one in around(rng, count, level, 0.001):
        seen.add(rng.randrange(keys))
        found.append(one + each * len(seen))
    return found


@family("steady", "looked-at")
def two_levels(rng: random.Random) -> Series:
    """Short and long batches: the floor is one of two, at random."""
    level, count = some_level(rng), rng.randint(30, 300)
    high, share = level * (1 + rng.uniform(0.01, 0.5)), rng.uniform(0.1, 0.9)
    return [high if rng.random() < share else level for _ in range(count)]


# ---- steady, first held out -----------------------------------------------------------------


@family("steady", "held-out")
def walk_of_blocks(rng: random.Random) -> Series:
    """A pool that takes and gives blocks of a few sizes, as often the one as the other."""
    level, count = some_level(rng), rng.randint(30, 400)
    each = level * rng.uniform(0.0002, 0.004)
    held, found = rng.randint(0, 40), []
    for _ in range(count):
        held = max(held + rng.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2)), 0)
        found.append(level + each * held)
    return found


@family("steady", "held-out")
def laplace_walk(rng: random.Random) -> Series:
    """A walk that mostly rests, and then goes some way."""
    level, count = some_level(rng), rng.randint(40, 400)
    size, value, found = level * rng.uniform(0.001, 0.01), level, []
    for _ in range(count):
        if rng.random() < 0.2:
            value += rng.choice((-1, 1)) * rng.expovariate(1 / size)
        value = max(value, 0.0)
        found.append(value)
    return found


@family("steady", "held-out")
def root_warmup(rng: random.Random) -> Series:
    """A way to the level as of a root or a sine, in the first two fifths at most."""
    level, count = some_level(rng), rng.randint(50, 300)
    end = max(round(count * rng.uniform(0.05, 0.4)), 2)
    height, is_root = level * rng.uniform(0.1, 0.6), rng.random() < 0.5
    found = []
    for at, one in enumerate(around(rng, count, level)):
        part = min(at / end, 1.0)
        shape = math.sqrt(part) if is_root else math.sin(part * math.pi / 2)
        found.append(one - height * (1 - shape))
    return found


@family("steady", "held-out")
def falling_warmup(rng: random.Random) -> Series:
    """It begins higher: what loading needed is let go, in one piece or several."""
    level, count = some_level(rng), rng.randint(30, 300)
    found = around(rng, count, level)
    for _ in range(rng.randint(1, 4)):
        until, height = rng.randint(1, count // 4), level * rng.uniform(0.05, 1.0)
        found = [one + height if at < until else one for at, one in enumerate(found)]
    return found


@family("steady", "held-out")
def checkpoints(rng: random.Random) -> Series:
    """Evaluations of changing length and height, and a checkpoint less often."""
    level, count = some_level(rng), rng.randint(60, 400)
    period, seldom = rng.randint(6, 40), rng.randint(30, 120)
    found = around(rng, count, level, 0.002)
    for first in range(period, count, period):
        height = level * rng.uniform(0.05, 0.2)
        for at in range(first, min(first + rng.randint(1, 3), count)):
            found[at] += height
    for first in range(seldom, count, seldom):
        found[first] += level * 0.5
    return found


@family("steady", "held-out")
def saturating_cache(rng: random.Random) -> Series:
    """A cache whose keys have Zipf's frequencies, with a bound that it reaches."""
    level, count = some_level(rng), rng.randint(80, 400)
    bound, each = rng.randint(4, count // 8), level * rng.uniform(0.002, 0.05)
    weights = [1 / (rank + 1) for rank in range(4 * bound)]
    seen: set[int] = set()
    found = []
    for one in around(rng, count, level, 0.001):
        if len(seen) < bound:
            seen.update(rng.choices(range(4 * bound), weights, k=2))
        found.append(one + each * min(len(seen), bound))
    return found


@family("steady", "held-out")
def sequence_lengths(rng: random.Random) -> Series:
    """What is left depends on the batch: a length from a wide distribution."""
    level, count = some_level(rng), rng.randint(30, 300)
    each = level * rng.uniform(0.01, 0.3)
    return [level + each * round(rng.lognormvariate(0, 0.6), 2) for _ in range(count)]


@family("steady", "held-out")
def late_rise(rng: random.Random) -> Series:
    """A second part of the program holds more, from some step on, in one to three steps."""
    level, count = some_level(rng), rng.randint(40, 300)
    at, height = rng.randint(10, count - 10), level * rng.uniform(0.05, 0.6)
    width = rng.randint(1, 3)
    found = around(rng, count, level)
    return [one + height * min(max((s - at + 1) / width, 0.0), 1.0) for s, one in enumerate(found)]


@family("steady", "held-out")
def walk_with_momentum(rng: random.Random) -> Series:
    """What it did last it does again, by half, up as well as down."""
    level, count = some_level(rng), rng.randint(60, 400)
    size, value, change = level * rng.choice((0.0005, 0.001)), level, 0.0
    found = []
    for _ in range(count):
        change = 0.5 * change + rng.gauss(0.0, size)
        value = max(value + change, 0.0)
        found.append(value)
    return found


@family("steady", "held-out")
def walk_in_noise(rng: random.Random) -> Series:
    """A level that wanders, and around it what each batch takes."""
    level, count = some_level(rng), rng.randint(40, 400)
    size, value = level * rng.choice((0.0005, 0.001)), level
    found = []
    for _ in range(count):
        value += rng.gauss(0.0, size)
        found.append(max(value + rng.gauss(0.0, 2.0 * size), 0.0))
    return found


@family("steady", "held-out")
def walk_with_wild_days(rng: random.Random) -> Series:
    """Its changes are of Student's t with three degrees, and larger for a while."""
    level, count = some_level(rng), rng.randint(40, 400)
    size, value = level * 0.0008, level
    first = rng.randrange(count)
    found = []
    for at in range(count):
        wide = 4.0 if first <= at < first + count // 5 else 1.0
        square = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3
        value = max(value + wide * size * rng.gauss(0.0, 1.0) / math.sqrt(square), 0.0)
        found.append(value)
    return found


@family("steady", "held-out")
def level_that_lingers(rng: random.Random) -> Series:
    """It comes back to its level, but takes 30 to 100 steps for it."""
    level, count = some_level(rng), rng.randint(60, 400)
    memory, size = 1 - 1 / rng.uniform(30, 100), level * 0.001
    value = rng.gauss(0.0, size) / math.sqrt(1 - memory * memory)
    found = []
    for _ in range(count):
        value = memory * value + rng.gauss(0.0, size)
        found.append(max(level + value, 0.0))
    return found


# ---- leaks, looked at -----------------------------------------------------------------------


@family("leak", "looked-at")
def same_each_step(rng: random.Random) -> Series:
    """From 30 steps on, each leaves the same."""
    level, count = some_level(rng), rng.randint(30, 200)
    each = max(level * rng.uniform(0.0002, 0.02), 512)
    return [level + each * at for at in range(count)]


@family("leak", "looked-at")
def leak_in_noise(rng: random.Random) -> Series:
    """0.1 % a step and more, over sixty steps and more, in noise of as much as three of it."""
    level, count = some_level(rng), rng.randint(60, 200)
    each = level * rng.uniform(0.001, 0.005)
    return [one + each * at for at, one in enumerate(around(rng, count, level))]


@family("leak", "looked-at")
def leak_after_warmup(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(80, 300)
    height, pace = level * rng.uniform(0.1, 0.5), rng.uniform(1.0, 6.0)
    each = level * rng.uniform(0.001, 0.005)
    rest = around(rng, count, level)
    return [one + each * at - height * math.exp(-at / pace) for at, one in enumerate(rest)]


@family("leak", "looked-at")
def leak_now_and_then(rng: random.Random) -> Series:
    """A step in three leaves something."""
    level, count = some_level(rng), rng.randint(90, 300)
    each, total, found = level * rng.uniform(0.003, 0.02), 0.0, []
    for one in around(rng, count, level, 0.001):
        total += each if rng.random() < 1 / 3 else 0.0
        found.append(one + total)
    return found


@family("leak", "looked-at")
def leak_beside_evaluations(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(80, 300)
    period, width = rng.randint(8, 30), rng.randint(1, 3)
    height, each = level * rng.uniform(0.05, 0.3), level * rng.uniform(0.001, 0.005)
    return [
        one + each * at + (height if at % period >= period - width else 0.0)
        for at, one in enumerate(around(rng, count, level))
    ]


# ---- leaks, first held out ------------------------------------------------------------------


@family("leak", "held-out")
def leak_each_epoch(rng: random.Random) -> Series:
    """Something is left each ten steps or so."""
    level, period = some_level(rng), rng.randint(4, 12)
    count, each = period * rng.randint(14, 30), level * rng.uniform(0.01, 0.05)
    rest = around(rng, count, level, 0.001)
    return [one + each * (at // period) for at, one in enumerate(rest)]


@family("leak", "held-out")
def leak_by_batch(rng: random.Random) -> Series:
    """What is left depends on the batch, from nothing to four times the mean."""
    level, count = some_level(rng), rng.randint(60, 300)
    each, total, found = level * rng.uniform(0.001, 0.01), 0.0, []
    for one in around(rng, count, level, 0.002):
        total += each * min(rng.expovariate(1.0), 4.0)
        found.append(one + total)
    return found


@family("leak", "held-out")
def leak_with_stepped_warmup(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(80, 300)
    each = level * rng.uniform(0.0015, 0.006)
    found = [one + each * at for at, one in enumerate(around(rng, count, level))]
    for _ in range(rng.randint(1, 3)):
        at, height = rng.randint(1, 8), level * rng.uniform(0.05, 0.3)
        found = [one - height if step < at else one for step, one in enumerate(found)]
    return [max(one, 0.0) for one in found]


@family("leak", "held-out")
def exact_leak_of_pairs(rng: random.Random) -> Series:
    """Two sizes in turn or at random, exact to the byte, from 30 steps on."""
    level, count = some_level(rng), rng.randint(30, 150)
    sizes = [max(level * rng.uniform(0.0005, 0.01), 512) for _ in range(2)]
    by_turns = rng.random() < 0.5
    value, found = level, []
    for at in range(count):
        found.append(value)
        value += sizes[at % 2] if by_turns else rng.choice(sizes)
    return found


@family("leak", "held-out")
def leak_among_levels(rng: random.Random) -> Series:
    """The floor is one of two at random, and both grow."""
    level, count = some_level(rng), rng.randint(100, 300)
    high = level * rng.uniform(0.01, 0.1)
    each = high * rng.uniform(0.03, 0.1)
    return [level + each * at + (high if rng.random() < 0.4 else 0.0) for at in range(count)]


@family("leak", "held-out")
def walk_with_drift(rng: random.Random) -> Series:
    """It wanders, and each step leaves half of what a step changes it by."""
    level, count = some_level(rng), rng.randint(100, 400)
    size, value = level * rng.choice((0.0005, 0.001)), level
    found = []
    for _ in range(count):
        value += rng.gauss(0.5 * size, size)
        found.append(value)
    return found


@family("leak", "held-out")
def leak_in_long_noise(rng: random.Random) -> Series:
    """0.15 % a step and more, in noise of 0.3 % that remembers between 0.8 and 0.95."""
    level, count = some_level(rng), rng.randint(100, 300)
    memory, size = rng.uniform(0.8, 0.95), 0.003 * level
    each, value = level * rng.uniform(0.0015, 0.005), 0.0
    found = []
    for at in range(count):
        value = memory * value + rng.gauss(0.0, size)
        found.append(level + value + each * at)
    return found


@family("leak", "held-out")
def leak_in_wild_noise(rng: random.Random) -> Series:
    """What each batch takes besides is of Student's t with three degrees."""
    level, count = some_level(rng), rng.randint(60, 300)
    each, size = level * rng.uniform(0.001, 0.005), level * 0.002
    found = []
    for at in range(count):
        square = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3
        noise = size * rng.gauss(0.0, 1.0) / math.sqrt(square)
        found.append(max(level + each * at + noise, 0.0))
    return found
