# SPDX-License-Identifier: Apache-2.0
"""Families of series of a program's live memory, one value per step, each with its truth.

A family makes a series from a seed. The two sets (series_set_a.py, series_set_b.py) were
written without a look at leak_trend's method, and nothing is fitted on them.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable
from typing import Literal, NamedTuple

BLOCK = 512

Series = list[float]
Group = Literal["a", "b"]


class Family(NamedTuple):
    """Series of one kind.

    Attributes:
        truth: "steady", "leak", or "cycle_garbage", which numbers alone show as steady.
        group: Its set.
        is_walk: A steady series without a level: a random walk without drift.
        make: Makes a series, in bytes.
    """

    truth: str
    group: Group
    is_walk: bool
    make: Callable[[random.Random], Series]


FAMILIES: dict[str, Family] = {}


def family(truth: str, group: Group) -> Callable[..., Callable[[random.Random], Series]]:
    def add(make: Callable[[random.Random], Series]) -> Callable[[random.Random], Series]:
        if make.__name__ in FAMILIES:
            raise ValueError(f"two families are called {make.__name__}")
        FAMILIES[make.__name__] = Family(truth, group, make.__name__.endswith("_walk"), make)
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


def log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def some_length(rng: random.Random, least: int = 30) -> int:
    return round(log_uniform(rng, least, 500))


def poisson(rng: random.Random, mean: float) -> int:
    """How many come in a step, of what comes at random and so many a step in the mean."""
    at, number = rng.expovariate(1.0), 0
    while at < mean:
        at, number = at + rng.expovariate(1.0), number + 1
    return number


def added(*parts: Series) -> Series:
    return [math.fsum(values) for values in zip(*parts, strict=True)]


def _warm_up(rng: random.Random, count: int, height: float) -> Series:
    """What the first steps hold less (no optimizer state yet) or more (kernels are tried out)."""
    steps = rng.choice((0, rng.randint(1, max(count // 20, 1))))
    missing = -height if rng.random() < 0.7 else height
    return [missing] * steps + [0.0] * (count - steps)


def in_blocks(*parts: Series) -> Series:
    return [max(float(round(one / BLOCK) * BLOCK), 0.0) for one in added(*parts)]


def steady(rng: random.Random, found: Series, height: float) -> Series:
    """A series without a leak, with a warm-up of at most this height."""
    return in_blocks(found, _warm_up(rng, len(found), height * rng.random()))


def _enough(kept: Series) -> bool:
    """Has a leak the events that the rules ask for, and is no single one nearly all of it?"""
    count = len(kept)
    rises = {at: kept[at] - kept[at - 1] for at in range(1, count) if kept[at] > kept[at - 1]}
    if len(rises) < 12 or min(rises) > count / 2 or max(rises) < 0.9 * count:
        return False
    thirds = [0.0, 0.0, 0.0]
    for at, size in rises.items():
        thirds[3 * (at - min(rises)) // (count - min(rises))] += size
    whole = sum(thirds)
    late = sum(size for at, size in rises.items() if at >= 7 * count / 8)
    return min(thirds) > 0.15 * whole and max(rises.values()) < 0.2 * whole and late > 0.05 * whole


def drawn_until_enough(draw: Callable[[], Series]) -> Series:
    while not _enough(kept := draw()):
        pass
    return kept


def _deviations(base: Series) -> float:
    """How many deviations of the series without it a leak must leave, so that a plot shows it.

    More where neighbours are alike (autocorrelation at lag one), as in a slow wave, since such a
    series is worth only a few values that have nothing to do with each other.
    """
    mean = statistics.fmean(base)
    apart = [one - mean for one in base]
    square = math.fsum(one * one for one in apart)
    alike = math.fsum(one * after for one, after in itertools.pairwise(apart)) / max(square, 1.0)
    alike = min(max(alike, 0.0), 0.95)
    return 6.0 + 12.0 / math.sqrt(len(base) * (1 - alike) / (1 + alike))


def sized(
    rng: random.Random, base: Series, kept: Series, level: float, factor: float = 1.0
) -> Series:
    """What leaked, so much of it that it is seen beside the series without it."""
    least = max(factor * _deviations(base) * statistics.pstdev(base), 0.012 * level)
    whole = max(level * log_uniform(rng, 0.012, 1.5), least * rng.uniform(1.0, 1.8))
    return [one * whole / (kept[-1] - kept[0]) for one in kept]


def leaking(
    rng: random.Random, base: Series, kept: Series, level: float, factor: float = 1.0
) -> Series:
    """A series with a leak, of which only the form is given, and a warm-up lower than it."""
    kept = sized(rng, base, kept, level, factor)
    height = min(kept[-1], *base) * rng.uniform(0.0, 0.5)
    return in_blocks(base, kept, _warm_up(rng, len(base), height))
