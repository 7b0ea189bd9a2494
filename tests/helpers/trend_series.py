# SPDX-License-Identifier: Apache-2.0
"""Series of a program's memory with a known truth, one value a step, made from a seed."""

from __future__ import annotations

import math
import random

LEVEL = 8 << 30

# Innovations of the noise, and how much of a value the next one remembers.
NOISE = 0.003
MEMORIES = (0.0, 0.3, 0.6, 0.9)

LEAK = 0.001  # of the memory, a step

# What disturbs a series without being growth.
DISTURBANCES = ("none", "warmup", "bursts", "steps", "saw-teeth", "warmup and bursts")

Series = list[float]


def noise(rng: random.Random, count: int, memory: float) -> Series:
    """An AR(1) series around 0, in bytes."""
    value = rng.gauss(0.0, NOISE * LEVEL) / math.sqrt(1.0 - memory * memory)
    found = [value]
    while len(found) < count:
        value = memory * value + rng.gauss(0.0, NOISE * LEVEL)
        found.append(value)
    return found


def level(rng: random.Random, count: int, memory: float) -> Series:
    """Noise around what the program holds."""
    return [LEVEL + one for one in noise(rng, count, memory)]


def warmed(rng: random.Random, series: Series) -> Series:
    """The first steps lower, higher, or on the way to the level."""
    kind, length, height = rng.randrange(3), rng.randint(1, 5), LEVEL * rng.uniform(0.1, 0.5)
    if kind == 2:
        pace = rng.uniform(1.0, 4.0)
        return [one - height * math.exp(-at / pace) for at, one in enumerate(series)]
    off = height if kind else -height
    return [one + off if at < length else one for at, one in enumerate(series)]


def with_bursts(rng: random.Random, series: Series) -> Series:
    """An evaluation every so many steps, for one to three of them."""
    period, width = rng.randint(8, 20), rng.randint(1, 3)
    first, height = rng.randint(3, period), LEVEL * rng.uniform(0.02, 0.3)
    return [
        one + height if at >= first and (at - first) % period < width else one
        for at, one in enumerate(series)
    ]


def with_steps(rng: random.Random, series: Series) -> Series:
    """One to three times the level changes at once, mostly upwards."""
    found = list(series)
    for _ in range(rng.randint(1, 3)):
        height = LEVEL * rng.uniform(0.005, 0.2) * (1 if rng.random() < 0.8 else -1)
        at = rng.randint(3, len(series) - 3)
        found[at:] = [one + height for one in found[at:]]
    return found


def disturbed(rng: random.Random, series: Series, how: str) -> Series:
    """The series with one of `DISTURBANCES`; saw-teeth are made by `within_steps`."""
    if "warmup" in how:
        series = warmed(rng, series)
    if "bursts" in how:
        series = with_bursts(rng, series)
    return with_steps(rng, series) if how == "steps" else series


def within_steps(rng: random.Random, floors: Series) -> tuple[list[int], list[int]]:
    """Forward and backward above each floor, and where the steps begin."""
    values: list[int] = []
    starts: list[int] = []
    for floor in floors:
        starts.append(len(values))
        top = LEVEL * rng.uniform(0.2, 0.6)
        climb = rng.randint(3, 8)
        shape = [*range(climb + 1), *range(climb - 1, -1, -1)]
        values += [max(round(floor + top * at / climb), 0) for at in shape]
    return values, starts


def whole(series: Series) -> list[int]:
    """Bytes: whole numbers from 0 on."""
    return [max(round(one), 0) for one in series]


def leaking(series: Series, rate: float = LEAK) -> Series:
    """The series growing by a share of the memory a step."""
    return [one + rate * LEVEL * at for at, one in enumerate(series)]


def sawtooth(rng: random.Random, series: Series) -> Series:
    """Garbage that piles up and goes, three times and more."""
    period = rng.randint(8, max(len(series) // 3 - 1, 8))
    rate, phase = LEVEL * rng.uniform(0.005, 0.03), rng.randrange(period)
    return [one + rate * ((at + phase) % period) for at, one in enumerate(series)]


def columns(rng: random.Random, count: int, memory: float, kind: str) -> dict[str, list[int]]:
    """The series of a monitor in which something besides the live bytes may grow."""
    live = level(rng, count, memory)
    rate = LEVEL * rng.uniform(0.002, 0.01)
    # Segments come in pieces: what grows, grows by one every other step or so.
    grown, total = [], 0.0
    for _ in range(count):
        total += rate * rng.uniform(0.0, 2.0) if rng.random() < 0.7 else 0.0
        grown.append(total)
    none = [0.0] * count
    cache = grown if kind in ("cache_growth", "fragmentation_growth") else none
    outside = grown if kind == "non_torch_growth" else none
    reserved = [1.3 * LEVEL + more for more in cache]
    stuck = grown if kind == "fragmentation_growth" else none
    split = [
        0.05 * LEVEL + more + off for more, off in zip(stuck, noise(rng, count, 0.3), strict=True)
    ]
    used = [
        held + 0.06 * LEVEL + more + off / 10
        for held, more, off in zip(reserved, outside, noise(rng, count, memory), strict=True)
    ]
    return {
        "allocated": whole(live),
        "reserved": whole(reserved),
        "inactive_split": whole(split),
        "device_used": whole(used),
    }
