# SPDX-License-Identifier: Apache-2.0
"""The eighth held-out set of families of series: written without a look at the method.

Its rules are those of the seventh set (trend_families_seventh.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
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


def _scaled(found: Series, size: float) -> Series:
    return [size * one for one in found]


def _piled(draw: Callable[[], Series]) -> Series:
    """What is kept in all, drawn until the last quarter leaves a seventh of it."""
    while True:
        kept = drawn_until_enough(lambda: list(itertools.accumulate(draw())))
        if 7 * (kept[-1] - kept[3 * len(kept) // 4]) > kept[-1] - kept[0]:
            return kept


def _teeth(
    rng: random.Random, count: int, lengths: tuple[int, int], bend: float = 1.0, apart: float = 0.0
) -> Series:
    """Rises from 0 toward 1 that end in a drop, their lengths and (so far apart) heights random."""
    skipped = rng.randrange(lengths[1])
    found: Series = []
    while len(found) < count + skipped:
        length = rng.randint(*lengths)
        top = rng.uniform(1.0 - apart, 1.0)
        found += [top * math.pow(at / length, bend) for at in range(length)]
    return found[skipped : skipped + count]


def _dwells(rng: random.Random, count: int, longest: int, draw: Callable[[], float]) -> Series:
    """One value for a while of random length, then another one."""
    skipped = rng.randrange(longest)
    found: Series = []
    while len(found) < count + skipped:
        found += [draw()] * rng.randint(1, longest)
    return found[skipped : skipped + count]


def _visits(rng: random.Random, count: int, at_once: float, longest: int) -> Series:
    """What visitors hold who come at random, need more the longer they stay, and go again."""
    found = [0.0] * count
    rate = at_once / longest
    for start in range(-longest, count):
        for _ in range(poisson(rng, rate)):
            size = rng.lognormvariate(0.0, 0.4)
            for age in range(rng.randint(1, longest)):
                if 0 <= start + age < count:
                    found[start + age] += size * (0.5 + age / longest)
    return found


def _garbage(rng: random.Random, count: int) -> Series:
    """What cycles hold until the collector comes: often for the young, now and then for all."""
    whole = max(rng.randint(count // 30, count // 8), 3)
    young = rng.randint(1, max(whole // 4, 2))
    survives = rng.uniform(0.1, 0.6)
    since = rng.randrange(whole)
    new, old = 0.0, since * survives
    found: Series = []
    for at in range(since, since + count):
        new += rng.uniform(0.9, 1.1)
        if at % whole == 0:
            new = old = 0.0
        elif at % young == 0:
            new, old = 0.0, old + survives * new
        found.append((new + old) / whole)
    return found


# Programs that do not leak.


@family("steady", "held-out-8")
def ragged_batch_holdover(rng: random.Random) -> Series:
    """Fine-tunes on texts of all lengths; the loop's variable holds the last batch, cut at most."""
    count, level = some_length(rng), some_level(rng)
    longest = rng.uniform(1.2, 4.0)
    spread = rng.uniform(0.2, 0.9)
    texts = rng.choice((1, 2, 4, 8))
    batches = [
        max(min(rng.lognormvariate(0.0, spread), longest) for _ in range(texts))
        for _ in range(count)
    ]
    size = level * log_uniform(rng, 0.005, 0.3)
    found = added(around(rng, count, level, 0.0003), _scaled(batches, size))
    return steady(rng, found, 0.4 * level)


@family("steady", "held-out-8")
def experience_store_brimful(rng: random.Random) -> Series:
    """Learns off-policy from a store on the card that episodes fill, then overwrite in a ring."""
    count, level = some_length(rng), some_level(rng)
    room = rng.uniform(0.06, 0.33) * count
    seldom = rng.uniform(0.0, 0.5)
    stored, found = 0.0, list[float]()
    for _ in range(count):
        if rng.random() >= seldom:
            stored = min(stored + rng.uniform(0.6, 1.4) / (1.0 - seldom), room)
        found.append(stored / room)
    size = level * log_uniform(rng, 0.05, 3.0)
    part = rng.choice((0.0, 0.0003, 0.001))
    return steady(rng, added(around(rng, count, level, part), _scaled(found, size)), 0.3 * level)


@family("steady", "held-out-8")
def adapter_shelf_in_turn(rng: random.Random) -> Series:
    """Serves many fine-tuned adapters of differing rank; the oldest go when the shelf is full."""
    count, level = some_length(rng), some_level(rng)
    room = rng.uniform(20.0, 60.0)
    rate = room / (rng.uniform(0.05, 0.28) * count)
    kinds: list[list[float]] = [[0.5, 1.0, 1.5], [0.25, 0.5, 1.0, 2.25], [1.0], [0.5, 0.5, 2.0]]
    ranks = rng.choice(kinds)
    shelf = deque[float]()
    held, found = 0.0, list[float]()
    for _ in range(count):
        for _ in range(poisson(rng, rate)):
            shelf.append(rng.choice(ranks))
            held += shelf[-1]
            while held > room:
                held -= shelf.popleft()
        found.append(held / room)
    size = level * log_uniform(rng, 0.05, 1.0)
    found = added(around(rng, count, level, 0.0002), _scaled(found, size))
    return steady(rng, found, 0.1 * level)


@family("steady", "held-out-8")
def turnstile_chat_pages(rng: random.Random) -> Series:
    """Answers chats: each takes pages of keys and values while it goes on and gives them back."""
    count, level = some_length(rng), some_level(rng)
    longest = max(rng.randint(2, max(count // 20, 2)), 2)
    chats = _visits(rng, count, log_uniform(rng, 1.0, 20.0), longest)
    size = level * log_uniform(rng, 0.003, 0.06)
    part = rng.choice((0.0, 0.0003))
    return steady(rng, added(around(rng, count, level, part), _scaled(chats, size)), 0.2 * level)


@family("steady", "held-out-8")
def short_to_long_epochs(rng: random.Random) -> Series:
    """Trains a speech model on clips sorted by length, from short to long, anew each epoch."""
    count, level = some_length(rng), some_level(rng)
    clips = rng.randint(max(count // 25, 4), max(count // 7, 4))
    ramps = _teeth(rng, count, (clips, clips), rng.uniform(0.5, 3.0))
    if rng.random() < 0.3:
        ramps = [1.0 - one for one in ramps]
    size = level * log_uniform(rng, 0.01, 0.6)
    found = added(around(rng, count, level, 0.02 * size / level), _scaled(ramps, size))
    return steady(rng, found, 0.3 * level)


@family("steady", "held-out-8")
def vortex_mesh_refiner(rng: random.Random) -> Series:
    """Simulates a flow that sheds eddies; tiles of the mesh are split and merged as they pass."""
    count, level = some_length(rng), some_level(rng)
    period = rng.uniform(max(count / 25, 4.0), max(count / 6, 4.5))
    regrid = rng.randint(1, max(int(period) // 4, 1))
    tiles = rng.randint(6, 60)
    start, second = rng.uniform(0.0, math.tau), rng.uniform(0.0, math.tau)
    harmonic = rng.uniform(0.0, 0.5)
    found: Series = []
    for at in range(count):
        turn = math.tau * (at - at % regrid) / period
        eddy = math.sin(turn + start) + harmonic * math.sin(2 * turn + second)
        found.append(round(tiles * eddy + rng.gauss(0.0, 0.03 * tiles)) / tiles)
    size = level * log_uniform(rng, 0.01, 0.25)
    return steady(rng, [level + size * one for one in found], 0.3 * level)


@family("steady", "held-out-8")
def board_game_branches(rng: random.Random) -> Series:
    """Plays against itself; the search tree of each game grows on the card until the game ends."""
    count, level = some_length(rng), some_level(rng)
    longest = rng.randint(max(count // 40, 4), max(count // 12, 4))
    shortest = rng.randint(2, max(longest // 2, 2))
    bend, apart = rng.uniform(0.4, 1.5), rng.uniform(0.1, 0.6)
    games = [_teeth(rng, count, (shortest, longest), bend, apart) for _ in range(rng.randint(1, 5))]
    size = level * log_uniform(rng, 0.01, 0.5)
    found = added(around(rng, count, level, 0.0002), _scaled(added(*games), size))
    return steady(rng, found, 0.3 * level)


@family("steady", "held-out-8")
def analyst_underscore_cell(rng: random.Random) -> Series:
    """Runs an analyst's cells; a single variable holds the last result until the next one comes."""
    count, level = some_length(rng), some_level(rng)
    longest = max(rng.randint(1, max(count // 20, 1)), 2)
    results = [rng.lognormvariate(0.0, 0.8) for _ in range(rng.randint(3, 9))]
    few = rng.random() < 0.5

    def draw() -> float:
        return rng.choice(results) if few else min(rng.lognormvariate(0.0, 0.6), 4.0)

    size = level * log_uniform(rng, 0.01, 0.4)
    found = _scaled(_dwells(rng, count, longest, draw), size)
    return steady(rng, [level + one for one in found], 0.2 * level)


@family("steady", "held-out-8")
def idle_unload_painter(rng: random.Random) -> Series:
    """Paints pictures on demand; when nobody asks for a while the model leaves the card."""
    count, level = some_length(rng), some_level(rng)
    used = max(rng.randint(1, max(count // 10, 1)), 2)
    idle = rng.randint(1, max(count // 25, 2))
    left = rng.uniform(0.0, 0.4)
    picture = rng.uniform(0.0, 0.03)
    found: Series = []
    skipped = rng.randrange(used)
    while len(found) < count + skipped:
        found += [1.0 + picture * rng.random() for _ in range(rng.randint(1, used))]
        found += [left] * rng.randint(1, idle)
    return steady(rng, _scaled(found[skipped : skipped + count], level), 0.1 * level)


@family("steady", "held-out-8")
def thawing_layers_early(rng: random.Random) -> Series:
    """Fine-tunes the head, then thaws block after block, each with its optimizer state."""
    count, level = some_length(rng), some_level(rng)
    blocks = rng.randint(3, 8)
    last = rng.uniform(0.12, 0.38) * count
    at_step = [round(last * (one + 1) / blocks) for one in range(blocks)]
    sizes = [rng.uniform(0.5, 1.5) for _ in range(blocks)]
    thawed = [
        math.fsum(size for when, size in zip(at_step, sizes, strict=True) if when <= at) / blocks
        for at in range(count)
    ]
    size = level * log_uniform(rng, 0.05, 2.0)
    part = rng.choice((0.0, 0.0003, 0.001))
    return steady(rng, added(around(rng, count, level, part), _scaled(thawed, size)), 0.0)


@family("steady", "held-out-8")
def pruned_to_budget(rng: random.Random) -> Series:
    """Prunes channels of a network round after round down to a budget, then trains what is left."""
    count, level = some_length(rng), some_level(rng)
    every = max(round(rng.uniform(0.01, 0.06) * count), 1)
    end = rng.uniform(0.1, 0.4) * count
    left = rng.uniform(0.8, 0.98)
    shares = [math.pow(left, min(at, end) // every) for at in range(count)]
    floor = rng.uniform(0.05, 0.5)
    batches = _dwells(rng, count, 2, lambda: rng.choice((0.0, 0.5, 1.0)))
    size = level * rng.choice((0.0, log_uniform(rng, 0.002, 0.03)))
    found = [level * (floor + one) for one in shares]
    return steady(rng, added(found, around(rng, count, 0.2 * level), _scaled(batches, size)), 0.0)


@family("cycle_garbage", "held-out-8")
def closures_in_a_ring(rng: random.Random) -> Series:
    """Trains with callbacks that point at their trainer; their tensors wait for the collector."""
    count, level = some_length(rng), some_level(rng)
    size = level * log_uniform(rng, 0.02, 1.0)
    part = rng.choice((0.0, 0.01 * size / level))
    found = added(around(rng, count, level, part), _scaled(_garbage(rng, count), size))
    return steady(rng, found, 0.3 * level)


# Programs that leak.


@family("leak", "held-out-8")
def validation_scores_pile(rng: random.Random) -> Series:
    """Trains and validates by turns; the list of scores on the card is never emptied."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        period = rng.randint(max(count // 25, 3), max(count // 7, 4))
        scored = max(round(rng.uniform(0.25, 0.6) * period), 1)
        start = rng.randrange(period)
        return [float((at + start) % period < scored) for at in range(count)]

    return leaking(rng, around(rng, count, level), _piled(draw), level)


@family("leak", "held-out-8")
def prompt_heads_hoarded(rng: random.Random) -> Series:
    """Serves a model and keeps the state of each new beginning of a prompt; ever fewer are new."""
    count, level = some_length(rng), some_level(rng)
    rate, heads = log_uniform(rng, 2.0, 20.0), rng.uniform(0.6, 0.85)

    def draw() -> Series:
        return [
            math.fsum(
                rng.uniform(0.3, 1.7)
                for _ in range(poisson(rng, rate * math.pow(1 + at, heads - 1)))
            )
            for at in range(count)
        ]

    longest = max(count // 30, 2)
    asked = _scaled(_visits(rng, count, 4.0, longest), level * log_uniform(rng, 0.001, 0.02))
    return leaking(rng, added(around(rng, count, level, 0.0), asked), _piled(draw), level, 1.3)


@family("leak", "held-out-8")
def hooks_per_evaluation(rng: random.Random) -> Series:
    """Hooks its layers once more at each evaluation; each hook appends a statistic each step."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(1, max(count // 10, 1))
    first = count / every * rng.uniform(0.5, 2.0)
    start = rng.randrange(every)
    kept = _piled(lambda: [first + (at + start) // every for at in range(count)])
    return leaking(rng, around(rng, count, level), kept, level)


@family("leak", "held-out-8")
def hung_up_callers_pages(rng: random.Random) -> Series:
    """Answers calls; the pages of those who hang up in the middle of an answer are not freed."""
    count, level = some_length(rng), some_level(rng)
    longest = rng.randint(2, max(count // 20, 2))
    base = _scaled(_visits(rng, count, log_uniform(rng, 1.0, 15.0), longest), 0.02 * level)

    def draw() -> Series:
        rate = log_uniform(rng, 18.0, 3.0 * count) / count
        return [
            math.fsum(rng.lognormvariate(0.0, 0.5) for _ in range(poisson(rng, rate)))
            for _ in range(count)
        ]

    return leaking(rng, [level + one for one in base], _piled(draw), level, 1.3)


@family("leak", "held-out-8")
def numbered_outputs_kept(rng: random.Random) -> Series:
    """Runs a notebook whose numbered outputs hold each result; its user works in bursts."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        longest = max(rng.randint(1, max(count // 20, 1)), 2)
        shown = rng.uniform(0.4, 1.0)
        busy = _dwells(rng, count, longest, lambda: float(rng.random() < 0.6))
        return [one * rng.lognormvariate(0.0, 0.6) if rng.random() < shown else 0.0 for one in busy]

    base = _dwells(rng, count, 3, lambda: rng.choice((0.0, 0.0, 1.0, 2.0)))
    size = level * log_uniform(rng, 0.0005, 0.02)
    return leaking(rng, [level + size * one for one in base], _piled(draw), level, 1.5)


@family("leak", "held-out-8")
def sweep_trials_residue(rng: random.Random) -> Series:
    """Searches settings: each trial loads more and more, frees that at its end, but not all."""
    count, level = some_length(rng), some_level(rng)
    length = rng.randint(2, max(count // 14, 2))
    start, bend = rng.randrange(length), rng.uniform(0.3, 2.0)
    within = [math.pow((at + start) % length / length, bend) for at in range(count)]

    def draw() -> Series:
        return [rng.uniform(0.6, 1.4) * ((at + start) % length == 0) for at in range(count)]

    base = added(
        around(rng, count, level, 0.0005), _scaled(within, level * log_uniform(rng, 0.005, 0.4))
    )
    return leaking(rng, base, _piled(draw), level)


@family("leak", "held-out-8")
def failed_attempts_frames(rng: random.Random) -> Series:
    """Retries what fails and keeps the exceptions, whose frames hold tensors."""
    count, level = some_length(rng), some_level(rng)
    same = rng.random() < 0.5

    def draw() -> Series:
        often = min(rng.uniform(14.0, 40.0) / count, 0.8)
        return [
            (1.0 if same else rng.uniform(0.3, 1.7)) * (rng.random() < often) for _ in range(count)
        ]

    base = around(rng, count, level, 0.0002)
    if rng.random() < 0.5:
        base = added(base, _scaled(_garbage(rng, count), level * log_uniform(rng, 0.003, 0.1)))
    return leaking(rng, base, _piled(draw), level)


@family("leak", "held-out-8")
def snapshots_of_all_past_players(rng: random.Random) -> Series:
    """Plays against copies of its former policies, of which it puts ever more on the card."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(1, max(count // 14, 1))
    start = rng.randrange(every)
    longest = max(count // 20, 4)
    games = _teeth(rng, count, (2, longest), 1.0, 0.5)
    base = added(
        around(rng, count, level, 0.0), _scaled(games, level * log_uniform(rng, 0.002, 0.1))
    )
    kept = _piled(lambda: [float((at + start) % every == 0) for at in range(count)])
    return leaking(rng, base, kept, level)


@family("leak", "held-out-8")
def posterior_draws_on_card(rng: random.Random) -> Series:
    """Samples a posterior: nothing is kept in the burn-in, then each draw that thinning leaves."""
    count, level = some_length(rng), some_level(rng)
    burn_in = round(rng.uniform(0.05, 0.42) * count)
    thin = rng.randint(1, max(count // 30, 1))
    kept = _piled(lambda: [float(at > burn_in and at % thin == 0) for at in range(count)])
    leaps = [rng.choice((0.0, 0.0, 0.5, 1.0)) for _ in range(count)]
    size = level * rng.choice((0.0, log_uniform(rng, 0.0005, 0.01)))
    return leaking(rng, added(around(rng, count, level), _scaled(leaps, size)), kept, level)


@family("leak", "held-out-8")
def unmatched_keys_by_day(rng: random.Random) -> Series:
    """Joins two streams whose traffic has days and nights; keys that find no partner stay."""
    count, level = some_length(rng), some_level(rng)
    day = rng.uniform(max(count / 15, 4.0), max(count / 6, 4.5))
    start, depth = rng.uniform(0.0, math.tau), rng.uniform(0.3, 1.0)
    traffic = [1.0 + depth * math.sin(math.tau * at / day + start) for at in range(count)]
    rate = log_uniform(rng, 0.8, 10.0)
    kept = _piled(lambda: [float(poisson(rng, rate * one)) for one in traffic])
    windows = [one + rng.gauss(0.0, 0.05) for one in traffic]
    size = level * log_uniform(rng, 0.003, 0.1)
    return leaking(rng, [level + size * one for one in windows], kept, level)
