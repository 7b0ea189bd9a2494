# SPDX-License-Identifier: Apache-2.0
"""A fourth held-out set of families of series: ten that are steady and ten that leak.

It was written without a look at the method, at what the method gets wrong, or at any verdict of it:
from what programs of PyTorch do, and what an engineer would see in a plot of their memory.

What leaks keeps these rules, in each series:
- what is leaked by the end is 0.5 % of the level and more;
- it is six times the standard deviation of the same series without the leak and more, where a
  part that is exactly periodic is known, and so is not counted as a deviation;
- at least twelve steps leak, three or more of them in the last third of the series;
- it grows to the eye, and has not stopped: the last third grows by two of these standard deviations
  and more (up to four where what deviates lingers), and the last sixth by a twentieth of the whole.

What is steady has no trend in the last 60 % of the series, and no walk: what deviates there is
either regular or stationary, with a correlation time of a tenth of the length at most.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

from trend_families import Series, family

MIB = 1 << 20
GIB = 1 << 30


# ---- what several have in common --------------------------------------------------------------


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    """As likely between 1 and 2 as between 2 and 4."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _level(rng: random.Random) -> float:
    """What the program holds at all times, in bytes; with what comes and leaks at most 60 GiB."""
    return _log_uniform(rng, 100 * MIB, 32 * GIB)


def _poisson(rng: random.Random, mean: float) -> int:
    """How many of what happens at random, so many on average."""
    found, at = 0, rng.expovariate(1.0)
    while at < mean:
        found, at = found + 1, at + rng.expovariate(1.0)
    return found


def _small_noise(rng: random.Random, count: int, size: float) -> Series:
    """Nothing at all in one of three programs, else noise that forgets in a few steps."""
    if rng.random() < 1 / 3:
        return [0.0] * count
    memory = rng.choice((0.0, 0.0, 0.4, 0.7))
    value, found = rng.gauss(0.0, size), []
    for _ in range(count):
        found.append(value)
        value = memory * value + rng.gauss(0.0, size) * math.sqrt(1 - memory * memory)
    return found


def _padded(rng: random.Random, count: int) -> Series:
    """Tokens of a sample in each step's batch, padded to its longest: heavy-tailed, to a bound."""
    spread, batch = rng.uniform(0.4, 0.9), rng.choice((1, 4, 8, 16, 32))
    middle = rng.choice((40, 120, 300))
    found = []
    for _ in range(count):
        longest = max(rng.lognormvariate(math.log(middle), spread) for _ in range(batch))
        found.append(float(min(8 * math.ceil(longest / 8), 16 * middle)))
    return found


def _in_flight(rng: random.Random, count: int, many: float, lasts: float) -> Series:
    """What the requests hold that are open at the end of each step, in those of a usual size.

    So many are open on average, and each for so many steps.
    """
    spread = rng.uniform(0.3, 0.8)
    held = [rng.lognormvariate(0.0, spread) for _ in range(_poisson(rng, many))]
    found = []
    for _ in range(count):
        held = [one for one in held if rng.random() > 1 / lasts]
        held += [rng.lognormvariate(0.0, spread) for _ in range(_poisson(rng, many / lasts))]
        found.append(sum(held))
    return found


def _goes_on(amounts: Series) -> bool:
    """Whether enough steps leak, and also late ones, and none is a large part of the whole."""
    count, total = len(amounts), sum(amounts)
    steps = [at for at, one in enumerate(amounts) if one > 0 and at > 0]
    return (
        len(steps) >= 12
        and sum(at >= math.ceil(2 * count / 3) for at in steps) >= 3
        and sum(amounts[5 * count // 6 + 1 :]) >= 0.06 * total
        and sum(amounts[2 * count // 3 + 1 :]) >= 0.15 * total
        and max(amounts) <= 0.25 * total
    )


def _memory(rest: Series) -> float:
    """How alike what deviates is to itself one step on: 0 for what forgets at once, 1 at most."""
    mean = statistics.fmean(rest)
    square = sum((one - mean) ** 2 for one in rest)
    both = sum((one - mean) * (next_ - mean) for one, next_ in itertools.pairwise(rest))
    return max(both / square, 0.0) if square > 0 else 0.0


def _leaking(
    rng: random.Random,
    level: float,
    rest: Series,
    amounts: Series,
    regular: Series | None = None,
    widest: float = 10.0,
) -> Series:
    """The level, what is regular, what deviates, and a leak in these proportions.

    The leak is as large as the rules ask, or up to so many times that; where it is beneath
    something regular, a quarter of its height and more.
    """
    count = len(rest)
    regular = regular or [0.0] * count
    deviation = statistics.pstdev(rest)
    total, late = sum(amounts[1:]), sum(amounts[2 * count // 3 + 1 :])
    height = max(regular) - min(regular)
    lately = 2.1 * (1 + _memory(rest)) * deviation * total / late
    least = max(0.006 * level, 6.3 * deviation, lately, 0.25 * height)
    scale = max(min(least * _log_uniform(rng, 1.0, widest), 0.8 * level), least) / total
    leaked, found = 0.0, []
    for at in range(count):
        leaked += amounts[at] * scale
        found.append(level + regular[at] + rest[at] + leaked)
    return found


# ---- steady -----------------------------------------------------------------------------------


@family("steady", "held-out-4")
def outputs_of_padded_batches(rng: random.Random) -> Series:
    """The last batch and its outputs are still held: as much as its longest sample asks."""
    level, count = _level(rng), rng.randint(40, 500)
    lengths = _padded(rng, count)
    each = level * rng.uniform(0.02, 0.3) / statistics.fmean(lengths)
    return [level + each * one for one in lengths]


@family("steady", "held-out-4")
def dataset_cached_in_first_epoch(rng: random.Random) -> Series:
    """Decoded samples are kept: all of the first epoch, or as many as a bound allows."""
    level, count = _level(rng), rng.randint(60, 500)
    full = max(round(count * rng.uniform(0.05, 0.36)), 2)
    height, spread = level * rng.uniform(0.05, 0.8), rng.uniform(0.0, 0.5)
    slowing = rng.choice((0.0, 0.0, 1.5, 3.0))
    sizes = [rng.lognormvariate(0.0, spread) * math.exp(-slowing * at / full) for at in range(full)]
    total, held, found = sum(sizes), 0.0, []
    for at, one in enumerate(_small_noise(rng, count, 0.002 * level)):
        held += sizes[at] if at < full else 0.0
        found.append(level + height * held / total + one)
    return found


@family("steady", "held-out-4")
def curriculum_of_lengths(rng: random.Random) -> Series:
    """Sequences get longer in stages, the last of which begins in the first third."""
    level, count = _level(rng), rng.randint(60, 500)
    stages = rng.randint(2, 5)
    starts = sorted(rng.sample(range(2, max(count // 3, stages + 2)), stages - 1))
    longest, fill = level * rng.uniform(0.05, 0.5), rng.uniform(0.6, 1.0)
    grows = rng.choice((1.5, 2.0))
    found = []
    for at in range(count):
        to_go = sum(at < start for start in starts)
        found.append(level + longest / grows**to_go * rng.uniform(fill, 1.0))
    return found


@family("steady", "held-out-4")
def evaluations_and_slow_writes(rng: random.Random) -> Series:
    """An evaluation every so many steps, and after some a copy for a checkpoint until written."""
    level = _level(rng)
    period, width = rng.randint(5, 25), rng.randint(1, 3)
    each, slowest = rng.randint(1, 3), rng.randint(1, 4)
    count = min(period * each * rng.randint(8, 20) + rng.randrange(period), 500)
    first, height = rng.randrange(period), level * rng.uniform(0.02, 0.4)
    copy = level * rng.uniform(0.2, 1.0)
    found = [level + one for one in _small_noise(rng, count, 0.002 * level)]
    for number, start in enumerate(range(first, count, period)):
        for at in range(start, min(start + width, count)):
            found[at] += height
        if number % each == each - 1:
            written = start + width + rng.randint(1, slowest)
            for at in range(start + width, min(written, count)):
                found[at] += copy
    return found


@family("steady", "held-out-4")
def sessions_of_a_server(rng: random.Random) -> Series:
    """Each open session holds keys and values; they come at random and stay for a while."""
    level, count = _level(rng), rng.randint(80, 500)
    many = rng.uniform(3, 50)
    open_ones = _in_flight(rng, count, many, rng.uniform(1.5, count / 30))
    each = level * rng.uniform(0.03, 0.5) / many
    return [level + each * one for one in open_ones]


@family("steady", "held-out-4")
def pool_that_follows_the_day(rng: random.Random) -> Series:
    """A pool of blocks follows a load that comes and goes, and lets go of them some steps late."""
    level, days = _level(rng), rng.randint(6, 12)
    day = rng.randint(10, 500 // days)
    count = days * day + rng.randrange(min(day, 500 - days * day + 1))
    phase, swing = rng.uniform(0.0, 2 * math.pi), rng.uniform(0.2, 0.9)
    late, blocks = rng.randint(1, max(day // 6, 1)), rng.randint(6, 60)
    block, noise = level * rng.uniform(0.05, 0.6) / blocks, rng.uniform(0.02, 0.15)
    needed = [
        (1 + swing * math.sin(2 * math.pi * at / day + phase)) * max(rng.gauss(1.0, noise), 0.0)
        for at in range(count + late)
    ]
    return [
        level + block * math.ceil(blocks / 2 * max(needed[at : at + late + 1]))
        for at in range(count)
    ]


@family("steady", "held-out-4")
def gradients_of_micro_batches(rng: random.Random) -> Series:
    """Gradients are held for some steps, then used and freed; the losses are kept as long."""
    level, period = _level(rng), rng.choice((2, 3, 4, 4, 6, 8, 8, 16))
    count = rng.randint(max(30, 8 * period), min(500, 60 * period))
    gradients, kept = level * rng.uniform(0.1, 0.35), level * rng.choice((0.0, 0.001, 0.01))
    state = level * rng.choice((0.0, 0.3, 0.5))
    found = []
    for at, one in enumerate(_small_noise(rng, count, 0.002 * level)):
        turn = (at + 1) % period
        value = level + one + (gradients if turn else 0.0) + kept * turn
        found.append(value - (state if at + 1 < period else 0.0))
    return found


@family("steady", "held-out-4")
def tuning_at_the_start(rng: random.Random) -> Series:
    """Kernels are tried and graphs are captured at first; then the memory hardly moves."""
    level, count = _level(rng), rng.randint(40, 400)
    settled = max(round(count * rng.uniform(0.05, 0.3)), 3)
    wild, often = level * rng.uniform(0.02, 0.4), rng.uniform(0.3, 1.0)
    captured = sorted(rng.randrange(1, settled) for _ in range(rng.randint(0, 6)))
    graph = level * rng.uniform(0.005, 0.05)
    found = []
    for at, one in enumerate(_small_noise(rng, count, 0.001 * level)):
        value = level + one - graph * sum(at < start for start in captured)
        if at < settled and rng.random() < often:
            value += wild * rng.random() * (1 - at / settled)
        found.append(value)
    return found


@family("steady", "held-out-4")
def flat_but_for_a_few_steps(rng: random.Random) -> Series:
    """To the byte the same, but for a few odd steps: a short batch, a profile, a long sample."""
    level, count = _level(rng), rng.randint(30, 500)
    found = [level] * count
    for _ in range(rng.randint(2, 8)):
        start, width = rng.randrange(count), rng.randint(1, max(count // 40, 1))
        change = level * _log_uniform(rng, 0.002, 0.3) * rng.choice((1.0, 1.0, -0.3))
        for at in range(start, min(start + width, count)):
            found[at] = level + change
    return found


@family("cycle_garbage", "held-out-4")
def cycles_of_two_generations(rng: random.Random) -> Series:
    """Each step leaves cycles: most go with a young collection, the rest with an old one."""
    level = _level(rng)
    young, old = rng.randint(2, 7), rng.randint(2, 4)
    count = rng.randint(max(12 * young * old, 60), 500)
    each, stays = level * rng.uniform(0.002, 0.03), rng.uniform(0.1, 0.5)
    jitter, spread = rng.choice((0.0, 0.3)), rng.choice((0.0, 0.0, 0.4))
    made, collections = rng.uniform(0.0, young), rng.randrange(old)
    fresh, aged, found = each * made, each * stays * young * collections, []
    for _ in range(count):
        made += rng.uniform(1 - jitter, 1 + jitter)
        fresh += each * rng.lognormvariate(-spread * spread / 2, spread)
        if made >= young:
            made, collections = made - young, collections + 1
            fresh, aged = 0.0, aged + stays * fresh
            if collections % old == 0:
                aged = 0.0
        found.append(level + fresh + aged)
    return found


# ---- leaks ------------------------------------------------------------------------------------


@family("leak", "held-out-4")
def losses_with_their_graphs(rng: random.Random) -> Series:
    """The loss is put into a list each step, and holds as much as the step's batch was long."""
    level, count = _level(rng), rng.randint(30, 300)
    lengths = _padded(rng, count)
    held = level * rng.uniform(0.0, 0.03) / statistics.fmean(lengths)
    return _leaking(rng, level, [held * one for one in lengths], lengths)


@family("leak", "held-out-4")
def exceptions_hold_their_frames(rng: random.Random) -> Series:
    """Now and then a step fails, and what it had is held by the exception, which is kept."""
    while True:
        level, count = _level(rng), rng.randint(100, 500)
        often, lengths = rng.uniform(0.05, 0.25), _padded(rng, count)
        amounts = [one if rng.random() < often else 0.0 for one in lengths]
        if _goes_on(amounts):
            return _leaking(rng, level, _small_noise(rng, count, 0.002 * level), amounts)


@family("leak", "held-out-4")
def predictions_of_each_epoch(rng: random.Random) -> Series:
    """Each epoch ends with a validation that holds more, and some of it is never let go."""
    level, epoch, epochs = _level(rng), rng.randint(6, 24), rng.randint(14, 30)
    width = rng.randint(1, 3)
    count = min(epoch * epochs + rng.randint(0, epoch // 4), 500)
    height = level * rng.uniform(0.02, 0.2)
    regular = [height if at % epoch >= epoch - width else 0.0 for at in range(count)]
    amounts = [rng.uniform(0.8, 1.2) if at % epoch == epoch - 1 else 0.0 for at in range(count)]
    return _leaking(rng, level, _small_noise(rng, count, 0.002 * level), amounts, regular)


@family("leak", "held-out-4")
def small_leak_under_long_batches(rng: random.Random) -> Series:
    """Each step leaves the same little, far less than batches differ by."""
    level, count = _level(rng), rng.randint(120, 500)
    lengths = _padded(rng, count)
    held = level * rng.uniform(0.01, 0.1) / statistics.fmean(lengths)
    rest = [held * one for one in lengths]
    return _leaking(rng, level, rest, [1.0] * count, widest=3.0)


@family("leak", "held-out-4")
def something_for_each_new_length(rng: random.Random) -> Series:
    """A dict without a bound keeps a mask or a graph for each length that comes: ever fewer."""
    while True:
        level, count = _level(rng), rng.randint(80, 500)
        spread, part = rng.uniform(0.4, 0.9), rng.choice((1, 1, 2, 4, 8))
        power, seen, amounts = rng.choice((0, 1, 1)), set[int](), []
        for _ in range(count):
            length = math.ceil(rng.lognormvariate(math.log(200), spread) / part)
            amounts.append(0.0 if length in seen else float(length**power))
            seen.add(length)
        if _goes_on(amounts):
            return _leaking(rng, level, _small_noise(rng, count, 0.002 * level), amounts)


@family("leak", "held-out-4")
def feature_switched_on_later(rng: random.Random) -> Series:
    """From some step on histograms are kept each time that they are logged."""
    level, each = _level(rng), rng.choice((1, 1, 1, 2, 4))
    count = rng.randint(40 * each + 20, 400)
    start = round(count * rng.uniform(0.2, 0.5))
    amounts = [1.0 if at >= start and at % each == 0 else 0.0 for at in range(count)]
    return _leaking(rng, level, _small_noise(rng, count, 0.003 * level), amounts)


@family("leak", "held-out-4")
def cancelled_requests(rng: random.Random) -> Series:
    """A server whose open requests come and go, but those that are cancelled never go."""
    while True:
        level, count = _level(rng), rng.randint(100, 500)
        many, spread = rng.uniform(3, 40), rng.uniform(0.4, 0.9)
        often = rng.uniform(0.06, 0.6)
        open_ones = _in_flight(rng, count, many, rng.uniform(1.5, count / 40))
        amounts = [
            sum(rng.lognormvariate(0.0, spread) for _ in range(_poisson(rng, often)))
            for _ in range(count)
        ]
        if _goes_on(amounts):
            each = level * rng.uniform(0.005, 0.1) / many
            return _leaking(rng, level, [each * one for one in open_ones], amounts, widest=4.0)


@family("leak", "held-out-4")
def some_of_it_comes_back(rng: random.Random) -> Series:
    """Each step leaves something, and from time to time a part of the newest is let go."""
    while True:
        level, count = _level(rng), rng.randint(80, 400)
        soon, late = rng.randint(5, 10), rng.randint(11, 25)
        spread, due, recent, amounts = rng.uniform(0.0, 0.6), rng.randint(1, late), 0.0, []
        for at in range(count):
            left = rng.lognormvariate(0.0, spread)
            recent += left
            if at == due:
                back = recent * rng.uniform(0.2, 0.7)
                left, recent, due = left - back, 0.0, at + rng.randint(soon, late)
            amounts.append(left)
        if _goes_on(amounts):
            return _leaking(rng, level, _small_noise(rng, count, 0.002 * level), amounts)


@family("leak", "held-out-4")
def metrics_and_hooks(rng: random.Random) -> Series:
    """Two leaks: a metric that is kept each step, and hooks added anew every so many steps."""
    level, period = _level(rng), rng.randint(5, 30)
    count = min(period * rng.randint(6, 20) + rng.randrange(period), 500)
    count = max(count, 40)
    share, first = rng.uniform(0.25, 0.75), rng.randrange(period)
    amounts = [
        share / count + ((1 - share) * period / count if at % period == first else 0.0)
        for at in range(count)
    ]
    return _leaking(rng, level, _small_noise(rng, count, 0.003 * level), amounts)


@family("leak", "held-out-4")
def leak_of_each_optimizer_step(rng: random.Random) -> Series:
    """Gradients of micro-batches, evaluations, and something left each time the weights change."""
    level, turns, each = _level(rng), rng.choice((2, 4, 4, 8)), rng.randint(2, 8)
    period = turns * each
    count = rng.randint(max(7 * period, 16 * turns), min(500, 30 * period))
    gradients, height = level * rng.uniform(0.02, 0.25), level * rng.uniform(0.02, 0.3)
    regular = [
        (gradients if (at + 1) % turns else 0.0) + (height if (at + 1) % period == 0 else 0.0)
        for at in range(count)
    ]
    amounts = [0.0 if (at + 1) % turns else 1.0 for at in range(count)]
    rest = _small_noise(rng, count, 0.002 * level)
    return _leaking(rng, level, rest, amounts, regular)
