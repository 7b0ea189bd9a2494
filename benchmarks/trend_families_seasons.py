# SPDX-License-Identifier: Apache-2.0
"""Families of series with seasons, pauses and rare rises, which the method was chosen on."""

from __future__ import annotations

import math
import random

from trend_families import Series, around, family, some_level

__all__: list[str] = []


def _rate(rng: random.Random, level: float) -> float:
    """What a leak leaves a step, in bytes: 0.1 % to 0.6 % of the level, the small as often."""
    return level * math.exp(rng.uniform(math.log(0.001), math.log(0.006)))


def _wave(kind: int, part: float) -> float:
    """A period's shape from 0 to 1: sine, hill, triangle, plateau, or a sine with overtone."""
    turn = 2 * math.pi * part
    shapes = (
        math.sin(turn),
        abs(math.sin(turn / 2)),
        4 * abs(part - 0.5) - 1,
        float(part < 0.4),
        math.sin(turn) + 0.5 * math.sin(2 * turn + 1),
    )
    return shapes[kind]


def _season(rng: random.Random, count: int, level: float) -> Series:
    """Four to sixteen waves of 0.5 % to 6 % of the level, a third of them not quite even."""
    period, height = count / rng.uniform(3.6, 16), level * rng.uniform(0.005, 0.06)
    kind, uneven, at = rng.randrange(5), rng.choice((0.0, 0.0, 0.3)), rng.random()
    found = []
    for _ in range(count):
        at += rng.uniform(1 - uneven, 1 + uneven) / period
        found.append(height * _wave(kind, at % 1))
    return found


# ---- steady ---------------------------------------------------------------------------------


@family("steady", "looked-at")
def season(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(60, 450)
    pairs = zip(around(rng, count, level, 0.002), _season(rng, count, level), strict=True)
    return [one + wave for one, wave in pairs]


@family("steady", "looked-at")
def season_and_a_rise(rng: random.Random) -> Series:
    """And from some step on the program holds more."""
    level, count = some_level(rng), rng.randint(80, 450)
    at, height = rng.randint(1, count - 1), level * rng.uniform(0.01, 0.3)
    pairs = zip(around(rng, count, level, 0.002), _season(rng, count, level), strict=True)
    return [one + wave + height * (step >= at) for step, (one, wave) in enumerate(pairs)]


@family("steady", "looked-at")
def stairs_that_end(rng: random.Random) -> Series:
    """Rises each two to eight steps, at random, until a fifth to two thirds of all steps."""
    level, count = some_level(rng), rng.randint(80, 450)
    end, apart = count * rng.uniform(0.2, 0.65), rng.uniform(2, 8)
    each, total, found = level * rng.uniform(0.003, 0.02), 0.0, []
    for step, one in enumerate(around(rng, count, level, 0.001)):
        if step < end and rng.random() < 1 / apart:
            total += each * rng.uniform(0.4, 1.6)
        found.append(one + total)
    return found


@family("steady", "looked-at")
def rare_changes_of_the_level(rng: random.Random) -> Series:
    """Each three to fourteen steps it goes up or down, and stays."""
    level, count = some_level(rng), rng.randint(60, 450)
    apart, each = rng.uniform(3, 14), level * rng.uniform(0.003, 0.03)
    varies, total, found = rng.random() < 0.5, 0.0, []
    for one in around(rng, count, level, 0.001):
        if rng.random() < 1 / apart:
            total += rng.choice((-1, 1)) * each * (rng.uniform(0.3, 1.7) if varies else 1.0)
        total = max(total, -0.5 * level)
        found.append(one + total)
    return found


# ---- leaks ----------------------------------------------------------------------------------


@family("leak", "looked-at")
def leak_that_rests(rng: random.Random) -> Series:
    """It leaks for 5 to 25 steps, and rests for half of that to a little more."""
    level, count = some_level(rng), rng.randint(110, 450)
    each, works = _rate(rng, level), rng.randint(5, 25)
    whole = works + max(1, round(works * rng.uniform(0.5, 1.2)))
    first, total, found = rng.randrange(whole), 0.0, []
    for at, one in enumerate(around(rng, count, level, 0.002)):
        total += each * whole / works * ((first + at) % whole < works)
        found.append(one + total)
    return found


@family("leak", "looked-at")
def leak_in_rare_rises(rng: random.Random) -> Series:
    """Each 3 to 13 steps in the mean, at random, fourteen of them and more in the mean."""
    level, count = some_level(rng), rng.randint(150, 450)
    each, apart = _rate(rng, level), rng.uniform(3, min(13, count / 14))
    kind, total, found = rng.randrange(3), 0.0, []
    for one in around(rng, count, level, 0.002):
        if rng.random() < 1 / apart:
            size = (rng.uniform(0.4, 1.6), 1.0, min(rng.expovariate(1), 3))[kind]
            total += each * apart * size
        found.append(one + total)
    return found


@family("leak", "looked-at")
def leak_beneath_a_season(rng: random.Random) -> Series:
    level, count = some_level(rng), rng.randint(100, 450)
    each = _rate(rng, level)
    pairs = zip(around(rng, count, level, 0.002), _season(rng, count, level), strict=True)
    return [one + wave + each * at for at, (one, wave) in enumerate(pairs)]


@family("leak", "looked-at")
def leak_in_rises_beneath_a_season(rng: random.Random) -> Series:
    """Each two to six steps, at random."""
    level, count = some_level(rng), rng.randint(180, 450)
    each, apart, total, found = _rate(rng, level), rng.uniform(2, 6), 0.0, []
    pairs = zip(around(rng, count, level, 0.001), _season(rng, count, level), strict=True)
    for one, wave in pairs:
        if rng.random() < 1 / apart:
            total += each * apart * rng.uniform(0.5, 1.5)
        found.append(one + wave + total)
    return found


@family("leak", "looked-at")
def leak_beside_long_evaluations(rng: random.Random) -> Series:
    """Evaluations of a tenth to half of all steps."""
    level, count = some_level(rng), rng.randint(100, 450)
    each, period = _rate(rng, level), rng.randint(6, max(7, count // 6))
    width, height = max(1, round(period * rng.uniform(0.1, 0.5))), level * rng.uniform(0.02, 0.3)
    return [
        one + each * at + height * (at % period >= period - width)
        for at, one in enumerate(around(rng, count, level))
    ]
