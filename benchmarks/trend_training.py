# SPDX-License-Identifier: Apache-2.0
"""Programs of random parts, which leak_trend's decision is fitted on (tools/fit_trend.py).

A series is what a program holds, in noise, with up to three parts that come and go, a warm-up, and
something that its truth is about: a rise that ends, a walk, other levels, or a leak of one of nine
forms. All parameters are drawn widely, so that what the decision rests on is the shape alone.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator

from trend_families import Series, family, some_level
from trend_programs import added, in_blocks, log_uniform, poisson

__all__: list[str] = []

Draw = Callable[[], float]


def _length(rng: random.Random, least: int = 10) -> int:
    """Mostly as long as the sets of families are, and one in ten as short as what is looked at."""
    few = rng.random() < 0.1
    return max(rng.randint(10, 30) if few else round(log_uniform(rng, 24, 500)), least)


def _student(rng: random.Random) -> float:
    """Of Student's distribution with three degrees of freedom."""
    return rng.gauss(0.0, 1.0) / math.sqrt(sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3)


def _changes(rng: random.Random) -> Draw:
    """Changes of one kind: normal, of Laplace, with heavy tails, of blocks, or now and then."""
    often = log_uniform(rng, 0.05, 0.5)
    kinds: tuple[Draw, ...] = (
        lambda: rng.gauss(0.0, 1.0),
        lambda: rng.choice((-1, 1)) * rng.expovariate(1.0),
        lambda: _student(rng),
        lambda: float(rng.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2))),
        lambda: rng.choice((-1, 1)) * rng.expovariate(1.0) if rng.random() < often else 0.0,
    )
    return rng.choice(kinds)


def _remembered(count: int, memory: float, draw: Draw) -> Series:
    """An autoregression that has gone on for long."""
    before = min(round(5 / (1 - memory)), 2000)
    values = itertools.accumulate(
        (draw() for _ in range(before + count)), lambda last, one: memory * last + one
    )
    return list(itertools.islice(values, before, None))


# What comes and goes, each part as large as one


def _noise(rng: random.Random, count: int) -> Series:
    return _remembered(count, rng.choice((0.0, 0.0, 0.3, 0.6, 0.8, 0.9)), _changes(rng))


def _lingering(rng: random.Random, count: int) -> Series:
    """Noise that takes up to a tenth of the series to come back."""
    steps = log_uniform(rng, 3.0, max(count / 10, 3.5))
    return _remembered(count, 1 - 1 / steps, _changes(rng))


def _two_levels(rng: random.Random, count: int) -> Series:
    share = rng.uniform(0.05, 0.95)
    return [float(rng.random() < share) for _ in range(count)]


def _text_lengths(rng: random.Random, count: int) -> Series:
    spread = rng.uniform(0.2, 1.0)
    return [rng.lognormvariate(0.0, spread) for _ in range(count)]


def _requests(rng: random.Random, count: int) -> Series:
    mean = log_uniform(rng, 0.3, 30.0)
    return [poisson(rng, mean) / mean for _ in range(count)]


def _evaluations(rng: random.Random, count: int) -> Series:
    """Plateaus that come again, evenly or not, as high or not."""
    period = max(log_uniform(rng, 3.0, max(count / 3, 4.0)), 2.0)
    width, uneven = period * rng.uniform(0.02, 0.5), rng.choice((0.0, 0.0, 0.3, 0.6))
    heights, found = rng.choice((0.0, 0.0, 0.4)), [0.0] * count
    at = rng.uniform(0.0, period)
    while at < count:
        lasts = max(round(width * (1 + uneven * rng.uniform(-1, 1))), 1)
        height = 1 + heights * rng.uniform(-1, 1)
        for step in range(int(at), min(int(at) + lasts, count)):
            found[step] = height
        at += max(period * (1 + uneven * rng.uniform(-1, 1)), lasts + 1)
    return found


def _wave(kind: int, turn: float) -> float:
    angle, part = math.tau * turn, turn % 1
    shapes = (
        math.sin(angle),
        abs(math.sin(angle / 2)),
        4 * abs(part - 0.5) - 1,
        float(part < 0.4),
        math.sin(angle) + 0.5 * math.sin(2 * angle + 1),
    )
    return shapes[kind]


def _season(rng: random.Random, count: int) -> Series:
    turns, kind = log_uniform(rng, 2.5, 40.0), rng.randrange(5)
    uneven, at = rng.choice((0.0, 0.0, 0.3)), rng.random()
    steps = (turns / count * rng.uniform(1 - uneven, 1 + uneven) for _ in range(count))
    return [_wave(kind, turn) for turn in itertools.accumulate(steps, initial=at)][1:]


def _saw_teeth(rng: random.Random, count: int) -> Series:
    """What piles up, evenly or not, until all or most of it goes."""
    period, uneven = max(log_uniform(rng, count / 45, count / 4), 3.0), rng.choice((0.0, 0.3, 0.7))
    spread, stays = rng.choice((0.0, 0.5)), rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5)))
    held, left, found = rng.random() * period, period * rng.uniform(0.2, 1.5), list[float]()
    for _ in range(count):
        held += rng.lognormvariate(-spread * spread / 2, spread)
        found.append(held / period)
        left -= 1
        if left <= 0:
            held *= stays * rng.random()
            left = period * (1 + uneven * rng.uniform(-1, 1))
    return found


def _in_flight(rng: random.Random, count: int) -> Series:
    """Requests that are held for a while, each as long as it takes."""
    life = log_uniform(rng, 1.0, max(count / 15, 1.5))
    often, sizes = log_uniform(rng, 0.3, 20.0) / life, rng.choice(((1,), (1, 2, 4), (1, 1, 8)))
    found, at = [0.0] * count, -8 * life
    while (at := at + rng.expovariate(often)) < count:
        end, size = at + rng.expovariate(1 / life), rng.choice(sizes)
        for step in range(max(math.ceil(at), 0), min(math.ceil(end), count)):
            found[step] += size / (often * life)
    return found


def _phases(rng: random.Random, count: int) -> Series:
    """Levels at random, each for a random while."""
    lasts, spread = max(count / log_uniform(rng, 15.0, 120.0), 1.5), rng.uniform(0.2, 0.9)
    found: Series = []
    while len(found) < count:
        steps = 1 + int(rng.expovariate(1 / lasts))
        found += [rng.lognormvariate(0.0, spread)] * steps
    return found[:count]


PARTS = (
    _noise,
    _lingering,
    _two_levels,
    _text_lengths,
    _requests,
    _evaluations,
    _season,
    _saw_teeth,
    _in_flight,
    _phases,
)


def _program(rng: random.Random, count: int, level: float, has_parts: bool = True) -> Series:
    """A level, up to three parts beside it, and noise in two of three."""
    found = [level] * count
    for part in rng.sample(PARTS, rng.choice((0, 1, 1, 1, 2, 2, 3)) if has_parts else 0):
        size = level * log_uniform(rng, 0.0005, 0.5)
        found = added(found, [size * one for one in part(rng, count)])
    if rng.random() < 0.7:
        size, memory = level * log_uniform(rng, 0.0002, 0.004), rng.choice((0.0, 0.3, 0.6, 0.9))
        found = added(found, [size * one for one in _remembered(count, memory, _changes(rng))])
    return found


def _warm_up(rng: random.Random, count: int, level: float, most: float) -> Series:
    """Nothing, less or more at first, a way to the level, or steps to it."""
    end, height = max(round(count * rng.uniform(0.0, most)), 1), level * log_uniform(rng, 0.02, 1)
    kind = rng.choice(("none", "none", "less", "more", "slow", "steps"))
    if kind == "none":
        return [0.0] * count
    if kind == "slow":
        pace = max(end / 4, 0.3)
        return [-height * math.exp(-at / pace) for at in range(count)]
    ends = [rng.randint(1, end) for _ in range(rng.randint(1, 4) if kind == "steps" else 1)]
    each = height if kind == "more" else -height
    return [sum(each * (at < one) for one in ends) / len(ends) for at in range(count)]


def _whole(rng: random.Random, *parts: Series) -> Series:
    """All parts together, from 0 on, and half of them in whole blocks."""
    found = added(*parts)
    least = min(*found, 0.0)
    lifted = [one - least for one in found]
    return in_blocks(lifted) if rng.random() < 0.5 else lifted


# What is steady


def _ramp(rng: random.Random, count: int) -> Series:
    """A straight way, a root, a sine or one that comes ever nearer, up to three quarters."""
    end, kind = max(count * rng.uniform(0.05, 0.75), 2.0), rng.randrange(4)
    pace = count * log_uniform(rng, 0.004, 0.2)
    done = [min(at / end, 1.0) for at in range(count)]
    shapes: tuple[Callable[[int], float], ...] = (
        lambda at: done[at],
        lambda at: math.sqrt(done[at]),
        lambda at: math.sin(done[at] * math.pi / 2),
        lambda at: 1 - math.exp(-at / pace),
    )
    return [shapes[kind](at) for at in range(count)]


def _keys_seen(rng: random.Random, count: int) -> Series:
    """A cache by keys, all as often or by Zipf's law, which is full before three quarters."""
    bound = rng.randint(3, max(count // 6, 4))
    each, is_even = rng.randint(1, 3), rng.random() < 0.5
    weights = [1.0] * bound if is_even else [1 / (rank + 1) for rank in range(4 * bound)]
    drawn = rng.choices(range(len(weights)), weights, k=each * count)
    seen: set[int] = set()
    found = []
    for at in range(count):
        if len(seen) < bound:
            seen.update(drawn[each * at : each * (at + 1)])
        found.append(min(len(seen), bound) / bound)
    return found


def _stairs(rng: random.Random, count: int) -> Series:
    """Up to twelve rises in the first three quarters, or up to three anywhere."""
    is_late = rng.random() < 0.3
    number = rng.randint(1, 3) if is_late else rng.randint(2, 12)
    end = count * (0.97 if is_late else rng.uniform(0.05, 0.75))
    at = sorted(rng.uniform(0.0, end) for _ in range(number))
    sizes = list(itertools.accumulate((rng.expovariate(1.0) for _ in at), initial=0.0))
    return [sizes[bisect.bisect_right(at, step)] / sizes[-1] for step in range(count)]


def _filled(rng: random.Random, count: int) -> Series:
    """A bound is reached by pieces of any size, in some of the steps."""
    end, often = count * rng.uniform(0.05, 0.5), rng.uniform(0.3, 1.0)
    held, found = 0.0, []
    for _ in range(count):
        held += rng.uniform(0.3, 1.7) / (end * often) if rng.random() < often else 0.0
        found.append(min(held, 1.0))
    return found


def _rise_that_ends(rng: random.Random, count: int) -> Series:
    while True:
        found = rng.choice((_ramp, _ramp, _keys_seen, _stairs, _filled))(rng, count)
        late = found[-1] - found[3 * count // 4]
        steps = len({round(one, 9) for one in found[count // 2 :]})
        if late < 0.02 * found[-1] or steps <= 3:
            return found


@family("steady", "training")
def parts_that_come_and_go(rng: random.Random) -> Series:
    count, level = _length(rng), some_level(rng)
    return _whole(rng, _program(rng, count, level), _warm_up(rng, count, level, 0.2))


@family("steady", "training")
def rises_that_end(rng: random.Random) -> Series:
    count, level = _length(rng, 30), some_level(rng)
    height = level * log_uniform(rng, 0.02, 2.0)
    rise = [height * one for one in _rise_that_ends(rng, count)]
    return _whole(rng, _program(rng, count, level, rng.random() < 0.6), rise)


@family("steady", "training")
def falls_that_end(rng: random.Random) -> Series:
    count, level = _length(rng, 30), some_level(rng)
    height = level * log_uniform(rng, 0.02, 1.0)
    fall = [-height * one for one in _rise_that_ends(rng, count)]
    return _whole(rng, _program(rng, count, 2 * level), fall)


@family("steady", "training")
def levels_up_and_down(rng: random.Random) -> Series:
    count, level = _length(rng), some_level(rng)
    found = _program(rng, count, 2 * level, rng.random() < 0.5)
    for _ in range(rng.randint(1, 8)):
        size = level * log_uniform(rng, 0.01, 0.4) * rng.choice((-1, 1, 1))
        at = rng.randrange(count)
        found[at:] = [one + size for one in found[at:]]
    return _whole(rng, found)


@family("steady", "training")
def humps(rng: random.Random) -> Series:
    """Something is built up and taken down again, before the end."""
    count, level = _length(rng, 30), some_level(rng)
    begin, top, end = sorted(rng.uniform(0.0, 0.93) for _ in range(3))
    top, end = max(top, begin + 0.02), max(end, begin + 0.04)
    height, found = level * log_uniform(rng, 0.02, 1.0), list[float]()
    for at in range(count):
        part = at / count
        up, down = (part - begin) / (top - begin), (end - part) / max(end - top, 0.02)
        found.append(height * min(max(min(up, down), 0.0), 1.0))
    return _whole(rng, _program(rng, count, level, rng.random() < 0.5), found)


def _bounded(walk: Iterator[float], bound: float) -> Iterator[float]:
    """Changes that turn back at 0 and at a bound."""
    at = bound / 2
    for change in walk:
        at = abs(at + change)
        at = max(bound - abs(bound - at), 0.0)
        yield at


def _walk(rng: random.Random, count: int) -> Series:
    """No level to return to: plain, with a momentum, wild days, pauses or bounds, or a level to
    which it takes a sixth of the series and more to return."""
    draw = _changes(rng)
    kind = rng.choice(("plain", "plain", "momentum", "wild", "pauses", "bounds", "far"))
    if kind == "far":
        return _remembered(count, 1 - 1 / max(count * log_uniform(rng, 0.15, 1.0), 2), draw)
    if kind == "bounds":
        changes = (draw() for _ in range(count))
        return list(_bounded(changes, log_uniform(rng, 5.0, 60.0)))
    if kind == "momentum":
        return list(itertools.accumulate(_remembered(count, rng.uniform(0.3, 0.7), draw)))
    often = log_uniform(rng, 0.03, 0.3) if kind == "pauses" else 1.0
    wild = rng.randrange(count) if kind == "wild" else count
    sizes = (4.0 if wild <= at < wild + count // 5 else 1.0 for at in range(count))
    return list(itertools.accumulate(size * draw() * (rng.random() < often) for size in sizes))


def _walking(rng: random.Random, count: int) -> Series:
    """A walk by itself, in noise, or beside what comes and goes."""
    level = some_level(rng)
    size = level * log_uniform(rng, 0.0003, 0.03)
    found = [level + size * one for one in _walk(rng, count)]
    kind = rng.randrange(4)
    if kind == 1:
        noise = size * log_uniform(rng, 0.3, 4.0)
        return _whole(rng, [one + rng.gauss(0.0, noise) for one in found])
    return _whole(rng, found, *([_program(rng, count, level)] if kind == 2 else []))


@family("steady", "training")
def walks(rng: random.Random) -> Series:
    return _walking(rng, _length(rng))


@family("steady", "training")
def long_walks(rng: random.Random) -> Series:
    return _walking(rng, rng.randint(100, 500))


@family("steady", "training")
def short_walks(rng: random.Random) -> Series:
    return _walking(rng, rng.randint(24, 100))


# Leaks


def _busy(rng: random.Random, kept: Series) -> Series:
    """More of it by day than by night."""
    days, phase, deep = rng.uniform(3.0, 14.0), math.tau * rng.random(), rng.uniform(0.0, 0.8)
    count = len(kept)
    angles = (math.tau * days * at / count + phase for at in range(count))
    return [one * (1 + deep * math.sin(at)) for one, at in zip(kept, angles, strict=True)]


def _kept_by_chance(rng: random.Random, count: int, least: float) -> Series:
    """What some steps keep: the same, of many sizes, or as many blocks as come."""
    often, spread = log_uniform(rng, least, 1.0), rng.choice((0.0, rng.uniform(0.1, 1.6)))
    if rng.random() < 0.6:
        kept = (rng.random() < often for _ in range(count))
        return [one * rng.lognormvariate(0.0, spread) for one in kept]
    mean, sizes = log_uniform(rng, least, 5.0), rng.choice(((1,), (1, 2, 4), (1, 4)))
    return [float(sum(rng.choices(sizes, k=poisson(rng, mean)))) for _ in range(count)]


def _kept_by_the_clock(rng: random.Random, count: int) -> Series:
    """What each epoch keeps, or the steps of a phase that comes again."""
    if rng.random() < 0.5:
        period, on, at = count / log_uniform(rng, 5.0, 25.0), rng.uniform(0.15, 0.8), rng.random()
        return [float((step / period + at) % 1 < on) for step in range(count)]
    period, uneven = max(count / log_uniform(rng, 12.0, 60.0), 1.0), rng.choice((0.0, 0.3))
    kept, spread = [0.0] * count, rng.choice((0.0, 0.4))
    after = rng.uniform(0.0, period)
    while after < count:
        kept[int(after)] += rng.lognormvariate(0.0, spread)
        after += period * (1 + uneven * rng.uniform(-1, 1))
    return kept


def _kept_at_a_pace(rng: random.Random, count: int) -> Series:
    """The same each step, or ever more or less of it, or from some step on."""
    kind = rng.randrange(3)
    if kind == 0:
        power = rng.uniform(0.6, 2.0)
        return [((at + 1) / count) ** power - (at / count) ** power for at in range(count)]
    changes, then = rng.uniform(0.3, 0.7) * count, rng.choice((0.4, 0.5, 2.0, 3.0))
    return [then if kind == 1 and at >= changes else 1.0 for at in range(count)]


def _given_back(rng: random.Random, kept: Series) -> Series:
    """Up to half of it goes a while later."""
    share, lag = rng.uniform(0.05, 0.5), max(round(len(kept) * rng.uniform(0.02, 0.15)), 1)
    return [one - share * kept[at - lag] if at >= lag else one for at, one in enumerate(kept)]


def _goes_on(kept: Series, begin: int) -> bool:
    """Has it a dozen rises, none of them a quarter of all, in each third and at the end?"""
    count, whole = len(kept), math.fsum(kept)
    if whole <= 0 or math.fsum(kept[7 * count // 8 :]) < 0.04 * whole:
        return False
    if count < 24:
        return sum(one > 0 for one in kept) > 0.7 * count
    ends = [begin + (count - begin) * third // 3 for third in range(4)]
    thirds = [math.fsum(kept[first:end]) for first, end in itertools.pairwise(ends)]
    is_often = sum(one > 0 for one in kept) >= 12 and max(kept) < 0.25 * whole
    return is_often and min(thirds) > 0.1 * whole


def _leaked(rng: random.Random, count: int) -> Series:
    """What leaks, by the end as large as one."""
    for _ in range(200):
        begin = 0 if rng.random() < 0.7 else int(count * rng.uniform(0.0, 0.5))
        least = min(14 / (count - begin + 1), 0.9)
        kept = rng.choice(
            (
                lambda least=least: _kept_by_chance(rng, count, least),
                lambda: _kept_by_the_clock(rng, count),
                lambda: _kept_at_a_pace(rng, count),
            )
        )()
        kept = _busy(rng, kept) if rng.random() < 0.25 else kept
        kept = [one * (at >= begin) for at, one in enumerate(kept)]
        kept = _given_back(rng, kept) if rng.random() < 0.12 else kept
        if _goes_on(kept, begin):
            whole = math.fsum(kept)
            return [one / whole for one in itertools.accumulate(kept)]
    return [(at + 1) / count for at in range(count)]


def _seen(rng: random.Random, base: Series, level: float) -> float:
    """How much leaks beside what the rest of the series does: some of its long-run deviations."""
    mean = math.fsum(base) / len(base)
    apart = [one - mean for one in base]
    squares = math.fsum(one * one for one in apart)
    alike = math.fsum(one * after for one, after in itertools.pairwise(apart))
    memory = min(max(alike / squares, 0.0), 0.97) if squares > 0 else 0.0
    free = max(len(base) * (1 - memory) / (1 + memory), 2.0)
    least = math.sqrt(squares / len(base)) * (4 + 10 / math.sqrt(free))
    return max(level * log_uniform(rng, 0.003, 3.0), least * log_uniform(rng, 1.0, 2.5))


def _leaking(rng: random.Random, base: Series, level: float) -> Series:
    size = _seen(rng, base, level)
    return added(base, [size * one for one in _leaked(rng, len(base))])


@family("leak", "training")
def leaks_in_noise(rng: random.Random) -> Series:
    count, level = _length(rng), some_level(rng)
    return _whole(rng, _leaking(rng, _program(rng, count, level, has_parts=False), level))


@family("leak", "training")
def leaks_beneath_parts(rng: random.Random) -> Series:
    count, level = _length(rng), some_level(rng)
    return _whole(rng, _leaking(rng, _program(rng, count, level), level))


@family("leak", "training")
def leaks_behind_a_warm_up(rng: random.Random) -> Series:
    count, level = _length(rng, 30), some_level(rng)
    found = _leaking(rng, _program(rng, count, level), level)
    return _whole(rng, found, _warm_up(rng, count, 0.4 * level, 0.12))


@family("leak", "training")
def leaks_among_levels(rng: random.Random) -> Series:
    count, level = _length(rng, 60), some_level(rng)
    found = _leaking(rng, _program(rng, count, level, has_parts=False), level)
    risen = abs(found[-1] - found[0])
    for _ in range(rng.randint(1, 2)):
        at, size = rng.randrange(count), risen * rng.uniform(0.05, 0.5) * rng.choice((-1, 1))
        found[at:] = [one + size for one in found[at:]]
    return _whole(rng, found)


@family("leak", "training")
def small_leaks_in_sixty_steps(rng: random.Random) -> Series:
    """A third of what the noise changes by, and more, a step."""
    count, level = rng.randint(60, 120), some_level(rng)
    noise = _remembered(count, rng.choice((0.0, 0.3, 0.6, 0.9)), lambda: rng.gauss(0.0, 1.0))
    each = level * log_uniform(rng, 0.001, 0.003)
    return _whole(rng, [level * (1 + 0.003 * one) + each * at for at, one in enumerate(noise)])


@family("leak", "training")
def leaks_of_many_sizes(rng: random.Random) -> Series:
    """Most of what is left is less than the noise, and a few times it is more."""
    count, level = _length(rng, 60), some_level(rng)
    often, spread = log_uniform(rng, 20 / count, 1.0), rng.uniform(0.8, 1.7)
    size = level * log_uniform(rng, 0.0003, 0.01)
    noise, memory = size * log_uniform(rng, 0.3, 2.0), rng.choice((0.0, 0.3, 0.6))
    beside = _remembered(count, memory, lambda: rng.gauss(0.0, noise))
    while True:
        kept = [rng.lognormvariate(0.0, spread) * (rng.random() < often) for _ in range(count)]
        if sum(one > 0 for one in kept) >= 12 and max(kept) < 0.35 * math.fsum(kept):
            break
    risen = [level + size * one for one in itertools.accumulate(kept)]
    return _whole(rng, risen, beside)


@family("leak", "training")
def walks_that_drift(rng: random.Random) -> Series:
    """Changes whose mean is beyond 0 by five standard errors and more."""
    count, level = _length(rng, 60), some_level(rng)
    draw, size = _changes(rng), level * log_uniform(rng, 0.0003, 0.005)
    drawn = [draw() for _ in range(400)]
    deviation = math.sqrt(sum(one * one for one in drawn) / len(drawn))
    drift = rng.uniform(5.0, 9.0) / math.sqrt(count) * deviation
    walk = itertools.accumulate(draw() + drift for _ in range(count))
    return _whole(rng, [level + size * one for one in walk])
