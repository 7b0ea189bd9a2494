# SPDX-License-Identifier: Apache-2.0
"""The fifth held-out set of families of series: written without a look at the method.

Lengths are 30 to 500 steps, and values whole blocks of 512 bytes, as PyTorch's allocator gives
them. What is steady has the same mean, apart from a regular part, from half of its length on.

A leak can be seen, in principle, in the whole of its series: it has twelve events or more, some
in each third of the part that leaks; at least half of the series leaks, and it still leaks at the
end. In all it leaves at least 1 % of the level, and five times and more the standard deviation of
the same series without it, regular parts and all; only the warm-up is set aside.

An engineer who is shown only the plot would say of the leaks, and of nothing else, that they leak:
twelve plots of each family were looked at before the method was given any of its series, and
families were mended until that was so.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import NamedTuple

from trend_families import Series, around, family, some_level
from trend_programs import (
    added,
    drawn_until_enough,
    in_blocks,
    leaking,
    log_uniform,
    poisson,
    sized,
    some_length,
    steady,
)

__all__: list[str] = []

# What is steady


@family("steady", "held-out-5")
def replay_buffer_filled(rng: random.Random) -> Series:
    """A replay buffer on the device takes in episodes until it is full, and then overwrites."""
    count, level = some_length(rng), some_level(rng)
    full_at = max(rng.uniform(0.08, 0.4) * count, 2.0)
    held, buffer = 0.0, []
    for step in range(count):
        held += rng.uniform(0.5, 1.5) / full_at
        buffer.append(1.0 if 2 * step >= count else min(held, 1.0))
    capacity = level * log_uniform(rng, 0.06, 2.0)
    found = added(around(rng, count, level), [capacity * part for part in buffer])
    return steady(rng, found, 0.1 * level)


@family("steady", "held-out-5")
def shapes_all_compiled(rng: random.Random) -> Series:
    """Each new batch shape is compiled and keeps a pool; all that come were seen before half."""
    count, level = some_length(rng), some_level(rng)
    shapes, quiet = rng.randint(4, 24), rng.uniform(0.2, 0.48) * count
    often = [1.0 / (1 + place) for place in range(shapes)]
    rng.shuffle(often)
    pools = [level * rng.lognormvariate(0.0, 0.6) for _ in range(shapes)]
    share, activations = log_uniform(rng, 0.005, 0.1), level * rng.choice((0.0, 0.01, 0.05))
    found, seen = around(rng, count, level), set[int]()
    for step in range(count):
        left = [one if step < quiet or place in seen else 0.0 for place, one in enumerate(often)]
        (shape,) = rng.choices(range(shapes), left)
        seen.add(shape)
        found[step] += share * sum(pools[one] for one in seen) + activations * shape / shapes
    return steady(rng, found, 0.1 * level)


@family("steady", "held-out-5")
def one_chat_after_another(rng: random.Random) -> Series:
    """A key-value cache grows with each turn of a chat, until the next chat begins with none."""
    count, level = some_length(rng), some_level(rng)
    turns = max(count * log_uniform(rng, 1 / 50, 1 / 10), 3.0)
    longest, turn_bytes = round(2.5 * turns), level * log_uniform(rng, 0.02, 0.8) / turns
    caches: Series = []
    before = round(8 * turns)
    while len(caches) < before + count:
        cache = turn_bytes * rng.uniform(0.0, 0.3 * turns)
        for _ in range(min(1 + round(rng.expovariate(1 / turns)), longest)):
            cache += turn_bytes * rng.uniform(0.4, 1.6)
            caches.append(cache)
    held = caches[before : before + count]
    return steady(rng, added(around(rng, count, level, 0.001), held), 0.1 * level)


@family("steady", "held-out-5")
def rollout_and_update_phases(rng: random.Random) -> Series:
    """Online RL: the model that generates, the one that scores and the one that learns take the
    device in turns, and the others are offloaded meanwhile."""
    count, level = some_length(rng), some_level(rng)
    turn: Series = []
    for _ in range(rng.randint(2, 4) if count >= 60 else 2):
        steps = max(round(count * log_uniform(rng, 1 / 80, 1 / 20)), 1)
        height, grows = rng.uniform(0.1, 0.9), rng.choice((0.0, rng.uniform(0.0, 0.5)))
        turn += [level * (height + grows * at / steps) for at in range(steps)]
    start = rng.randrange(len(turn))
    phases = list(itertools.islice(itertools.cycle(turn), start, start + count))
    return steady(rng, added(around(rng, count, 0.3 * level, 0.01), phases), 0.1 * level)


def _in_flight(
    rng: random.Random, count: int, level: float, rate: float
) -> tuple[Series, list[tuple[int, float]]]:
    """The memory of a server's requests, of which so many come a step, and of each that ends
    when it does and what it holds then."""
    lasts = max(count * log_uniform(rng, 1 / 150, 1 / 25), 1.5)
    before = round(8 * lasts)
    one = level * log_uniform(rng, 0.02, 0.4) / (rate * lasts)
    held, ended = [0.0] * count, []
    for come in range(-before, count):
        for _ in range(poisson(rng, rate)):
            prompt, steps = one * rng.lognormvariate(0.0, 0.7), 1 + int(rng.expovariate(1 / lasts))
            for at in range(max(come, 0), min(come + steps, count)):
                held[at] += prompt + one * (at - come) / lasts
            if 0 < come + steps < count:
                ended.append((come + steps, prompt + one * steps / lasts))
    return held, ended


@family("steady", "held-out-5")
def continuous_batching(rng: random.Random) -> Series:
    """A server with continuous batching: requests come at random and hold more as they go on."""
    count, level = some_length(rng), some_level(rng)
    held, _ = _in_flight(rng, count, level, log_uniform(rng, 0.5, 12.0))
    return steady(rng, added(around(rng, count, level, 0.001), held), 0.05 * level)


@family("steady", "held-out-5")
def neighbours_of_a_batch(rng: random.Random) -> Series:
    """A graph network: how many neighbours a batch draws has a long tail, up to the fan-out."""
    count, level = some_length(rng), some_level(rng)
    share, spread, most = log_uniform(rng, 0.01, 0.3), rng.uniform(0.3, 1.2), rng.uniform(3, 12)
    found = around(rng, count, level, 0.001)
    batches = [level * share * min(rng.lognormvariate(0.0, spread), most) for _ in range(count)]
    return steady(rng, added(found, batches), 0.1 * level)


@family("steady", "held-out-5")
def predictions_of_evaluations(rng: random.Random) -> Series:
    """Each evaluation keeps its predictions on the device until its metric is known."""
    count, level = some_length(rng), some_level(rng)
    period = max(round(count * log_uniform(rng, 1 / 25, 1 / 6)), 4)
    steps, start = max(round(period * rng.uniform(0.2, 0.6)), 2), rng.randrange(period)
    height, idle = level * log_uniform(rng, 0.02, 0.8), level * rng.uniform(0.0, 0.1)
    found = around(rng, count, level)
    for step in range(count):
        at = (step + start) % period
        if at < steps:
            found[step] += height * (at + 1) / steps - idle
    return steady(rng, found, 0.1 * level)


class _Trial(NamedTuple):
    """A trial of a hyper-parameter sweep: which step it is over, and what it holds."""

    over: int
    held: float


def _sweep(rng: random.Random, count: int, level: float) -> list[_Trial]:
    """Trials for so many steps, of widths and depths at random; some are pruned half-way."""
    steps = max(count * log_uniform(rng, 1 / 45, 1 / 16), 2.0)
    depths, wide = rng.randint(1, 6), rng.uniform(0.3, 1.0)
    found, at, pruned = list[_Trial](), 0, rng.choice((0.0, 0.3, 0.6))
    while at < count:
        at += max(round(steps * (0.5 if rng.random() < pruned else 1.0)), 1)
        size = rng.choice((0.25, 0.5, 1.0)) ** wide * rng.randint(depths, 2 * depths) / depths
        found.append(_Trial(at, level * size))
    return found


def _of_trials(rng: random.Random, count: int, level: float, trials: list[_Trial]) -> Series:
    held, start = around(rng, count, 0.2 * level), 0
    for trial in trials:
        for at in range(start, min(trial.over, count)):
            held[at] += trial.held
        start = trial.over
    return held


@family("steady", "held-out-5")
def trials_of_a_sweep(rng: random.Random) -> Series:
    """A sweep in one process: each trial has a model of its own size, and gives all of it back."""
    count, level = some_length(rng), some_level(rng)
    return steady(rng, _of_trials(rng, count, level, _sweep(rng, count, level)), 0.1 * level)


@family("steady", "held-out-5")
def length_grouped_batches(rng: random.Random) -> Series:
    """Texts are shuffled into big groups, and each group is gone through from its longest on."""
    count, level = some_length(rng), some_level(rng)
    group = max(round(count * log_uniform(rng, 1 / 30, 1 / 6)), 3)
    spread, limit, power = rng.uniform(0.3, 0.9), rng.uniform(2, 5), rng.choice((1.0, 1.0, 2.0))
    lengths: Series = []
    while len(lengths) < count + group:
        drawn = (min(rng.lognormvariate(0.0, spread), limit) for _ in range(group))
        lengths += sorted(drawn, reverse=True)
    start, share = rng.randrange(group), log_uniform(rng, 0.01, 0.3)
    batches = [level * share * one**power for one in lengths[start : start + count]]
    return steady(rng, added(around(rng, count, level, 0.001), batches), 0.1 * level)


# Collected garbage


def _collected(collection: int) -> int:
    """Which generation Python's collection of this number takes, at thresholds of 10 and 10."""
    return 2 if collection % 121 == 0 else 1 if collection % 11 == 0 else 0


@family("cycle_garbage", "held-out-5")
def tensors_in_reference_cycles(rng: random.Random) -> Series:
    """Each step leaves a reference cycle with tensors in it, in use for about a step; Python's
    collector finds it young, or after it was moved to an older generation, much later."""
    count, level = some_length(rng), some_level(rng)
    oldest = max(count * log_uniform(rng, 1 / 25, 1 / 5), 4.0)
    pace, lives = 121 / oldest, rng.uniform(0.3, 1.5)
    before, phase = round(2 * oldest) + 2, 121 * rng.random()
    garbage = [0.0] * count
    for step in range(-before, count):
        made = step - rng.random()
        generation, number = 0, math.floor((made + before) * pace + phase) + 1
        while (number - phase) / pace - before < made + lives:
            if _collected(number) >= generation:
                generation = min(_collected(number) + 1, 2)
            number += 1
        while _collected(number) < generation:
            number += 1
        size, freed = rng.uniform(0.7, 1.3), math.ceil((number - phase) / pace - before)
        for at in range(max(step, 0), min(freed, count)):
            garbage[at] += size
    share = log_uniform(rng, 0.03, 1.0) / max(garbage)
    found = [level * share * one for one in garbage]
    return steady(rng, added(around(rng, count, level, 0.001), found), 0.1 * level)


# Leaks


@family("leak", "held-out-5")
def metric_never_reset(rng: random.Random) -> Series:
    """A metric that keeps all predictions is computed after each evaluation, but never reset."""
    count, level = some_length(rng), some_level(rng)
    period = max(int(count * log_uniform(rng, 1 / 60, 1 / 14)), 2)
    steps, start = max(round(period * rng.uniform(0.1, 0.6)), 1), rng.randrange(period)
    batch = level * rng.choice((0.0, rng.uniform(-0.1, 0.1)))
    base, kept, state = around(rng, count, level), [], 0.0
    for step in range(count):
        if (step + start) % period >= period - steps:
            state += 1.0
            base[step] += batch
        kept.append(state)
    return leaking(rng, base, kept, level)


@family("leak", "held-out-5")
def models_of_pruned_trials(rng: random.Random) -> Series:
    """A sweep keeps the exception of a trial that was pruned, and so its frames and its tensors."""
    count, level = some_length(rng), some_level(rng)
    trials: list[_Trial] = []

    def draw() -> Series:
        trials[:], pruned = _sweep(rng, count, level), rng.uniform(0.4, 1.0)
        kept = [0.0] * count
        for trial in trials:
            if rng.random() < pruned:
                kept[trial.over :] = [one + trial.held for one in kept[trial.over :]]
        return kept

    kept = drawn_until_enough(draw)
    return leaking(rng, _of_trials(rng, count, level, trials), kept, level)


@family("leak", "held-out-5")
def prompts_cached_for_ever(rng: random.Random) -> Series:
    """A cache by prompt without a limit: ever fewer prompts are new, but some always are."""
    count, level = some_length(rng), some_level(rng)
    rate, new = log_uniform(rng, 1.0, 20.0), rng.uniform(0.6, 0.9)
    at_first = log_uniform(rng, 1.0, 100.0)

    def draw() -> Series:
        held, asked, prompts, kept = 0.0, 0, 0, []
        for _ in range(count):
            for _ in range(poisson(rng, rate)):
                if rng.random() < (at_first + new * prompts) / (at_first + asked):
                    prompts, held = prompts + 1, held + rng.lognormvariate(0.0, 0.5)
                asked += 1
            kept.append(held)
        return kept

    base = around(rng, count, level, 0.002)
    return leaking(rng, base, drawn_until_enough(draw), level, 1.6)


@family("leak", "held-out-5")
def outputs_of_a_notebook(rng: random.Random) -> Series:
    """A notebook keeps each tensor that a cell displays; cells also bind what they use anew."""
    count, level = some_length(rng), some_level(rng)
    often, spread = rng.uniform(max(0.1, 16 / count), 0.7), rng.uniform(0.3, 1.0)

    def draw() -> Series:
        shown = ((rng.random() < often) * rng.lognormvariate(0.0, spread) for _ in range(count))
        return list(itertools.accumulate(shown))

    base, bound, sizes = around(rng, count, level, 0.0005), 0.0, rng.uniform(0.0, 0.1)
    for cell in range(count):
        if rng.random() < 0.15:
            bound = level * rng.uniform(-sizes, sizes)
        base[cell] += bound
    return leaking(rng, base, drawn_until_enough(draw), level, 1.3)


@family("leak", "held-out-5")
def hooks_of_every_epoch(rng: random.Random) -> Series:
    """Each epoch registers its forward hooks again; all of them keep the last step's output, so
    that a bigger batch is kept as often as there are hooks."""
    count, level = some_length(rng), some_level(rng)
    epoch = max(int(count * log_uniform(rng, 1 / 50, 1 / 14)), 2)
    spread, last = rng.choice((0.0, 0.05, 0.1)), rng.choice((0.0, rng.uniform(0.1, 0.4)))
    batches = [rng.gauss(1.0, spread) - last * (step % epoch == epoch - 1) for step in range(count)]
    batches = [max(batch, 0.2) for batch in batches]
    outputs = level * rng.uniform(0.0, 0.1)
    base = added(around(rng, count, level, 0.001), [outputs * batch for batch in batches])
    kept = sized(rng, base, [float(step // epoch) for step in range(count)], level)
    more = [hooks * (batch - 1.0) for hooks, batch in zip(kept, batches, strict=True)]
    return in_blocks(base, kept, more)


@family("leak", "held-out-5")
def penalty_of_the_critic(rng: random.Random) -> Series:
    """A GAN whose gradient penalty, now and then, makes graphs of gradients that refer to their
    own parameters, so that nothing frees them; critic and generator hold different amounts."""
    count, level = some_length(rng), some_level(rng)
    critic = rng.randint(1, 5)
    every = rng.randint(1, max(min(count // 14, 16), 1))
    generator = level * rng.choice((1, -1)) * log_uniform(rng, 0.005, 0.2)
    base, kept, graphs = around(rng, count, level, 0.002), [], 0
    for step in range(count):
        if step % (critic + 1) == critic:
            base[step] += generator
        graphs += step % every == 0
        kept.append(graphs * 1.0)
    return leaking(rng, base, kept, level)


@family("leak", "held-out-5")
def snapshots_of_the_average(rng: random.Random) -> Series:
    """Weights are averaged from some epoch on, and a copy of each average stays in a list."""
    count, level = some_length(rng), some_level(rng)
    start = round(rng.uniform(0.1, 0.45) * count)
    every = rng.randint(1, (count - start) // 13)
    kept = [float(max((step - start) // every + 1, 0)) for step in range(count)]
    bumps = level * rng.choice((0.0, log_uniform(rng, 0.005, 0.1)))
    base = around(rng, count, level, 0.002)
    for step in range(rng.randrange(every), count, every):
        base[step] += bumps
    return leaking(rng, base, kept, level)


@family("leak", "held-out-5")
def blocks_of_lost_clients(rng: random.Random) -> Series:
    """A server frees what a request held when it is answered, but not when its client is gone."""
    count, level = some_length(rng), some_level(rng)
    rate = log_uniform(rng, max(60 / count, 0.5), 12.0)
    gone = log_uniform(rng, max(20 / (rate * count), 0.02), 0.6)
    held, ended = _in_flight(rng, count, level, rate)

    def draw() -> Series:
        kept = [0.0] * count
        for at, size in ended:
            if rng.random() < gone:
                kept[at] += size
        return list(itertools.accumulate(kept))

    base = added(around(rng, count, level, 0.001), held)
    return leaking(rng, base, drawn_until_enough(draw), level, 1.4)


@family("leak", "held-out-5")
def history_concatenated_anew(rng: random.Random) -> Series:
    """All outputs so far are concatenated and the result is kept each time, so that every entry
    is longer than the one before; gradients are there in all but the first of some micro-steps."""
    count, level = some_length(rng), some_level(rng)
    every, first = rng.randint(1, max(count // 15, 1)), rng.choice((0, rng.randint(1, 8)))
    rows = itertools.accumulate(1 + first + step // every for step in range(0, count, every))
    entries = [0.0, *map(float, rows)]
    kept = [entries[(step + 1) // every] for step in range(count)]
    micro_steps, gradients = rng.randint(2, 8), level * rng.choice((0.0, rng.uniform(0.02, 0.3)))
    base = around(rng, count, level, 0.002)
    for step in range(0, count, micro_steps):
        base[step] -= gradients
    return leaking(rng, base, kept, level)


@family("leak", "held-out-5")
def loader_of_every_epoch(rng: random.Random) -> Series:
    """The workers of a loader hold more with each batch of an epoch; at its end nearly all of it
    comes back, but not what the old loader's iterator still holds."""
    count, level = some_length(rng), some_level(rng)
    epoch = max(int(count * log_uniform(rng, 1 / 40, 1 / 14)), 2)
    height, batch = level * log_uniform(rng, 0.005, 0.4), rng.uniform(0.0, 0.4)
    base = around(rng, count, level, 0.001)
    for step in range(count):
        base[step] += height * (step % epoch) / epoch * rng.uniform(1 - batch, 1 + batch)
    epochs = itertools.accumulate(rng.uniform(0.5, 1.5) for _ in range(count // epoch + 1))
    entries = [0.0, *epochs]
    kept = [entries[step // epoch] for step in range(count)]
    return leaking(rng, base, kept, level)
