# SPDX-License-Identifier: Apache-2.0
"""The thirteenth held-out set of families of series: written without a look at the method.

Its rules are those of the twelfth set (trend_families_twelfth.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics

from trend_families import Series, around, family, some_level
from trend_programs import (
    added,
    drawn_until_enough,
    in_blocks,
    leaking,
    log_uniform,
    poisson,
    some_length,
    steady,
)

__all__: list[str] = []


def _summed(changes: Series) -> Series:
    return list(itertools.accumulate(changes))


def _quiet(rng: random.Random, count: int, level: float) -> Series:
    """What hardly changes: weights, optimizer state and batches of one size."""
    return around(rng, count, level, log_uniform(rng, 0.0002, 0.006))


def _repeated(rng: random.Random, count: int, cycle: Series) -> Series:
    """A cycle again and again, from anywhere in it."""
    start = rng.randrange(len(cycle))
    return [cycle[(start + at) % len(cycle)] for at in range(count)]


def _inspected(rng: random.Random, count: int, height: float, every: int) -> Series:
    """Every so many steps something more is held for a step or two."""
    wide = rng.randint(1, max(1, every // 4))
    return _repeated(rng, count, [height] * wide + [0.0] * (every - wide))


def _padded(rng: random.Random, count: int, mean: float) -> Series:
    """Batches padded to their longest text, in steps of eight tokens."""
    texts, spread = rng.randint(2, 32), rng.uniform(0.1, 0.6)
    longest = [
        math.ceil(max(rng.lognormvariate(3.5, spread) for _ in range(texts)) / 8)
        for _ in range(count)
    ]
    return [mean * one / statistics.fmean(longest) for one in longest]


def _guests(rng: random.Random, count: int, mean: float) -> Series:
    """Requests, tracks or clients that come and go, each with its own size, full from the start."""
    many, stay = log_uniform(rng, 4, 40), 1 - 1 / rng.uniform(1.5, max(count / 25, 2.5))
    sizes = [rng.lognormvariate(0.0, 0.4) for _ in range(poisson(rng, many))]
    found: Series = []
    for _ in range(count):
        found.append(mean * math.fsum(sizes) / many)
        new = [rng.lognormvariate(0.0, 0.4) for _ in range(poisson(rng, many * (1 - stay)))]
        sizes = [one for one in sizes if rng.random() < stay] + new
    return found


def _onset(rng: random.Random, count: int) -> int:
    """From where on it leaks: the start in half of the programs."""
    return rng.choice((0, rng.randint(0, round(0.4 * count))))


def _chance(rng: random.Random, steps: int) -> float:
    """How likely an event is at a step, so that so many steps see enough of them."""
    return log_uniform(rng, min(20 / steps, 0.9), 1.0)


@family("steady", "held-out-13")
def search_tree_is_cut_back_to_the_chosen_move(rng: random.Random) -> Series:
    """Games search with trees of evaluated positions; a move keeps the branch below it only."""
    count, level = some_length(rng), some_level(rng)
    every, games, keep = rng.randint(2, 6), rng.randint(1, 12), rng.uniform(0.05, 0.5)
    ends = rng.choice((0.0, rng.uniform(0.01, 0.1)))
    trees, found = [rng.uniform(0.5, 1.5) * every for _ in range(games)], []
    for at in range(count):
        for game in range(games):
            trees[game] += rng.uniform(0.7, 1.3)
            if (at + game) % every == 0:
                kept = 0.0 if rng.random() < ends else keep * rng.uniform(0.5, 1.5)
                trees[game] *= min(kept, 0.8)
        found.append(math.fsum(trees))
    unit = level * log_uniform(rng, 0.02, 0.6) / (games * every)
    whole = added(_quiet(rng, count, level), [unit * one for one in found])
    return steady(rng, whole, 0.5 * level)


@family("steady", "held-out-13")
def curvature_pairs_fill_and_are_dropped_at_restarts(rng: random.Random) -> Series:
    """A quasi-Newton optimizer keeps its last pairs of vectors and forgets them at restarts."""
    count, level = some_length(rng), some_level(rng)
    history = rng.randint(2, max(3, count // 8))
    pair = level * log_uniform(rng, 0.05, 1.5) / history
    accepted, held, found = rng.uniform(0.8, 1.0), 0, []
    restart = rng.choice((0.0, rng.uniform(0.5, 3.0))) / count
    search = level * rng.uniform(0.0, 0.05)
    for _ in range(count):
        if rng.random() < restart:
            held = 0
        elif rng.random() < accepted:
            held = min(held + 1, history)
        tries = min(poisson(rng, 0.3), 4)
        found.append(pair * held + search * tries)
    return steady(rng, added(_quiet(rng, count, level), found), 0.1 * level)


@family("steady", "held-out-13")
def input_products_of_the_layer_being_quantized(rng: random.Random) -> Series:
    """Layer after layer is quantized with the matrix of products of its inputs, block by block."""
    count, level = some_length(rng), some_level(rng)
    wide, narrow = rng.uniform(2.0, 4.5) ** 2, rng.randint(1, 5)
    kinds = [1.0] * narrow + [wide] * rng.choice((1, 1, 2))
    each = rng.randint(1, max(1, min(4, count // (5 * len(kinds)))))
    solving = rng.uniform(1.0, 2.5)
    parts = [1.0] * (each - 1) + [solving]
    cycle = [size * part for size in kinds for part in parts]
    cycle[0] += rng.choice((0.0, rng.uniform(0.5, wide)))
    height = level * log_uniform(rng, 0.02, 0.8) / max(cycle)
    products = [height * one for one in _repeated(rng, count, cycle)]
    if rng.random() < 0.5:
        products = added(products, _padded(rng, count, level * rng.uniform(0.01, 0.1)))
    return steady(rng, added(_quiet(rng, count, level), products), 0.6 * level)


@family("steady", "held-out-13")
def discriminator_penalties_come_every_few_steps(rng: random.Random) -> Series:
    """Two networks play; each has a penalty with second derivatives, each at its own interval."""
    count, level = some_length(rng), some_level(rng)
    often, seldom = rng.randint(2, 5), rng.randint(5, max(6, min(32, count // 5)))
    first = level * log_uniform(rng, 0.01, 0.3)
    second = first * log_uniform(rng, 0.5, 5.0)
    penalties = added(
        _inspected(rng, count, first, often),
        [one * rng.uniform(0.9, 1.1) for one in _inspected(rng, count, second, seldom)],
    )
    images = around(rng, count, level * rng.uniform(0.05, 0.3), rng.uniform(0.0, 0.05))
    return steady(rng, added(_quiet(rng, count, level), penalties, images), 0.7 * level)


def _microbatches_in_flight(rng: random.Random, slots: int) -> list[int]:
    """How many microbatches a stage holds in each slot of a step of the whole pipeline."""
    if rng.random() < 0.4:
        up = list(range(1, slots // 2 + 1))
        return [*up, *reversed(up), 0]
    most = rng.randint(2, max(2, slots // 3))
    middle = [most - at % 2 for at in range(max(slots - 2 * most, 1))]
    return [*range(1, most), *middle, *range(most - 1, -1, -1)]


@family("steady", "held-out-13")
def pipeline_stage_fills_and_drains_its_microbatches(rng: random.Random) -> Series:
    """A stage of a pipeline holds activations of the microbatches that are not yet back."""
    count, level = some_length(rng), some_level(rng)
    slots = rng.randint(6, max(7, min(40, count // 5)))
    flight = [float(one) for one in _microbatches_in_flight(rng, slots)]
    if rng.random() < 0.5:
        flight += [flight[0] * rng.uniform(0.0, 3.0)] * rng.randint(1, 3)
    unit = level * log_uniform(rng, 0.03, 2.0) / max(flight)
    spread = rng.choice((0.0, rng.uniform(0.01, 0.15)))
    held = [unit * one * rng.gauss(1.0, spread) for one in _repeated(rng, count, flight)]
    return steady(rng, added(_quiet(rng, count, level), held), 0.4 * level)


@family("steady", "held-out-13")
def solver_evaluations_settle_as_the_field_learns(rng: random.Random) -> Series:
    """States of an adaptive solver are kept for the backward pass; their number soon settles."""
    count, level = some_length(rng), some_level(rng)
    stages, final = rng.choice((2, 3, 4, 6)), log_uniform(rng, 4, 60)
    begin, pace = rng.uniform(0.3, 1.5), count / rng.uniform(14, 60)
    hard = around(rng, count, 1.0, rng.uniform(0.01, 0.12))
    state = level * log_uniform(rng, 0.05, 1.2) / (final * stages)
    late = rng.choice((0.0, rng.uniform(0.0, 0.08)))
    found: Series = []
    for at in range(count):
        mean = final * (1 + (begin - 1) * math.exp(-at / pace))
        rejected = poisson(rng, late * final)
        found.append(state * stages * (max(round(mean * hard[at]), 1) + rejected))
    return steady(rng, added(_quiet(rng, count, level), found), 0.3 * level)


@family("steady", "held-out-13")
def sparse_voxels_of_one_drive_after_another(rng: random.Random) -> Series:
    """Sparse convolutions over drives: frames of a drive are alike, another drive is other."""
    count, level = some_length(rng), some_level(rng)
    mean, spread = rng.uniform(1.5, max(2.0, count / 20)), rng.uniform(0.1, 0.6)
    shaky, sizes = rng.uniform(0.0, 0.1), []
    drives = rng.choice((count, max(2, count // rng.randint(5, 9))))
    while len(sizes) < drives:
        drive = rng.lognormvariate(0.0, spread)
        sizes += [drive] * (1 + poisson(rng, mean - 1))
    unit = level * log_uniform(rng, 0.03, 0.8)
    frames = [unit * one * rng.gauss(1.0, shaky) for one in _repeated(rng, count, sizes[:drives])]
    return steady(rng, added(_quiet(rng, count, level), frames), 0.4 * level)


def _change(rng: random.Random, steps: float, alike: float = 0.0) -> float:
    """How large a change of a walk is beside its level: too small for it to reach zero."""
    farthest = 0.12 / math.sqrt(steps * (1 + alike) / (1 - alike))
    return log_uniform(rng, 0.0002, min(0.02, farthest))


def _walk(rng: random.Random, changes: Series, level: float, change: float) -> Series:
    """A walk from the level, with noise around it in half of the programs."""
    part = rng.choice((0.0, change * rng.uniform(0.2, 1.5)))
    return in_blocks(around(rng, len(changes), level, part), _summed(changes))


@family("steady", "held-out-13")
def expression_trees_drift_under_crossover_walk(rng: random.Random) -> Series:
    """A walk: expression trees, which hold a column of values a node, get branches of each other.

    A branch that comes is as large as one that goes, for both are drawn from the same sizes.
    """
    count, level = some_length(rng), some_level(rng)
    mean = log_uniform(rng, max(0.15, 8 / count), 4.0)
    sizes = rng.choice(((1, 3), (1, 2, 4, 8), (1, 1, 1, 3, 5), (1, 3, 7, 15), range(1, 10)))
    change = _change(rng, count)
    node = level * change / math.sqrt(2 * mean * statistics.pvariance(sizes))
    changes = [
        node * sum(rng.choice(sizes) - rng.choice(sizes) for _ in range(poisson(rng, mean)))
        for _ in range(count)
    ]
    return _walk(rng, changes, level, change)


@family("steady", "held-out-13")
def splats_are_cloned_and_pruned_alike_walk(rng: random.Random) -> Series:
    """A walk: every few steps as many splats of a scene are cloned as are pruned, in the mean."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(1, max(2, min(12, count // 12)))
    alike = rng.choice((0.0, 0.0, 0.3, 0.6))
    change = _change(rng, count, alike)
    event = level * change * math.sqrt(every)
    start, own = rng.randrange(every), rng.gauss(0.0, 1.0)
    changes: Series = []
    for at in range(count):
        due = at % every == start
        if due:
            own = alike * own + math.sqrt(1 - alike * alike) * rng.gauss(0.0, 1.0)
        changes.append(event * own if due else 0.0)
    return _walk(rng, changes, level, change)


@family("steady", "held-out-13")
def quantum_walkers_branch_and_die_alike_walk(rng: random.Random) -> Series:
    """A walk: each walker of a Monte Carlo ensemble dies as often as it becomes two."""
    count, level = some_length(rng), some_level(rng)
    change, rate = _change(rng, count), log_uniform(rng, 0.05, 0.5)
    share, ensembles = rng.uniform(0.4, 1.0), rng.randint(1, 4)
    first = max(round(rate * (share / change) ** 2 / ensembles), 40)
    walkers, changes = [first] * ensembles, []
    for _ in range(count):
        new = [round(rng.gauss(0.0, math.sqrt(rate * one))) for one in walkers]
        walkers = [one + more for one, more in zip(walkers, new, strict=True)]
        changes.append(share * level * sum(new) / (first * ensembles))
    return _walk(rng, changes, level, change)


@family("steady", "held-out-13")
def crowds_cross_an_open_border_walk(rng: random.Random) -> Series:
    """A walk: simulated people come and go in groups, a few of them large, spread over steps."""
    count, level = some_length(rng), some_level(rng)
    often, tail = log_uniform(rng, min(8 / count, 0.5), 1.0), rng.uniform(2.2, 4.0)
    same, spread = rng.choice((0.5, 0.5, 0.65, 0.8)), rng.choice((1, 1, 2, 4))
    change = _change(rng, count * spread, 2 * same - 1)
    unit = level * change * math.sqrt(spread * (tail - 2) / (tail * often))
    way, groups = rng.choice((-1, 1)), []
    for _ in range(count + spread):
        way = way if rng.random() < same else -way
        group = unit * min(rng.paretovariate(tail), 12.0)
        groups.append(way * group if rng.random() < often else 0.0)
    changes = [math.fsum(groups[at : at + spread]) / spread for at in range(count)]
    return _walk(rng, changes, level, change)


@family("cycle_garbage", "held-out-13")
def parse_trees_with_parent_links_await_the_collector(rng: random.Random) -> Series:
    """Nodes of parse trees know their parents and hold states, until the collector finds them."""
    count, level = some_length(rng), some_level(rng)
    times = log_uniform(rng, 4.2, min(count / 6.5, 16))
    limit, spread, parsed = count / times, rng.uniform(0.1, 0.8), rng.uniform(0.5, 1.0)
    by_steps, left = rng.random() < 0.3, rng.choice((0.0, 0.0, rng.uniform(0.02, 0.25)))
    unit = level * log_uniform(rng, 0.04, 1.0) / limit
    garbage, since, found = 0.0, rng.uniform(0.0, 0.6) * limit, []
    for _ in range(count):
        new = rng.lognormvariate(0.0, spread) if rng.random() < parsed else 0.0
        garbage += new / (parsed * math.exp(spread * spread / 2))
        since += 1.0 if by_steps else new / (parsed * math.exp(spread * spread / 2))
        if since >= limit:
            garbage, since = garbage * left * rng.random(), 0.0
        found.append(unit * garbage)
    base = around(rng, count, level, rng.uniform(0.003, 0.05) * unit * limit / level)
    return steady(rng, added(base, found), 0.5 * level)


@family("leak", "held-out-13")
def flushes_of_pending_records_miss_the_odd_ones(rng: random.Random) -> Series:
    """Records wait on the device for a flush every few steps, which passes over some kinds."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(2, max(3, min(25, count // 6)))
    unit = level * log_uniform(rng, 0.003, 0.08) / every
    pending = [unit * one for one in _repeated(rng, count, [float(at) for at in range(every)])]

    def draw() -> Series:
        start, odd = _onset(rng, count), _chance(rng, count // 2) * 3
        return _summed([float(poisson(rng, odd)) if at >= start else 0.0 for at in range(count)])

    base = added(_quiet(rng, count, level), pending)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def kernels_are_captured_for_every_new_shape(rng: random.Random) -> Series:
    """A graph with its own buffers is captured for each shape; new shapes become rarer."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        power, before = rng.uniform(0.6, 0.95), rng.uniform(1.0, 0.1 * count)
        many = max(log_uniform(rng, 0.1, 1.0) * count, 24)
        scale, spread = many / count**power, rng.uniform(0.0, 0.6)
        new = [
            poisson(rng, scale * ((at + 1 + before) ** power - (at + before) ** power))
            for at in range(count)
        ]
        return _summed([math.fsum(rng.lognormvariate(0, spread) for _ in range(n)) for n in new])

    base = added(
        _quiet(rng, count, level), _padded(rng, count, level * log_uniform(rng, 0.003, 0.2))
    )
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def probes_are_hooked_on_again_at_every_inspection(rng: random.Random) -> Series:
    """Each inspection adds hooks and removes none; each hook stores what it sees from then on."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        start = _onset(rng, count)
        every = rng.randint(1, max(1, (count - start) // 14))
        whole, more = (count - start) / every, rng.choice((0.0, rng.uniform(0.5, 2.0)))
        shaky = rng.choice((0.0, 0.2))
        changes = [0.0] * count
        for number, at in enumerate(range(start, count, every)):
            changes[at] = (1 + more * number / whole) * rng.uniform(1 - shaky, 1 + shaky)
        return _summed(changes)

    height = level * rng.choice((0.0, log_uniform(rng, 0.005, 0.1)))
    spikes = _inspected(rng, count, height, rng.randint(3, max(4, count // 10)))
    base = added(_quiet(rng, count, level), spikes)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def communicators_of_former_worker_sets_stay_open(rng: random.Random) -> Series:
    """Workers come and go; each new set gets communicators with buffers, old sets keep theirs."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        start = _onset(rng, count)
        chance = log_uniform(rng, min(18 / (count - start), 0.8), min(60 / (count - start), 0.9))
        changes = [
            float(rng.randint(2, 8)) if at >= start and rng.random() < chance else 0.0
            for at in range(count)
        ]
        return _summed(changes)

    kept, workers = drawn_until_enough(draw), 4.0
    sharded = level * rng.choice((0.0, log_uniform(rng, 0.002, 0.05)))
    shards = [sharded]
    for before, after in itertools.pairwise(kept):
        workers = after - before or workers
        shards.append(sharded * 4 / workers)
    return leaking(rng, added(_quiet(rng, count, level), shards), kept, level)


@family("leak", "held-out-13")
def adapters_of_tenants_are_not_all_unloaded(rng: random.Random) -> Series:
    """A server loads an adapter for each tenant and unloads it, but not if it was loaded twice."""
    count, level = some_length(rng), some_level(rng)
    ranks, unit = rng.choice(((8, 16), (8, 16, 32, 64), (4, 64), (16,))), rng.uniform(0.0, 0.002)
    stays, loads = rng.uniform(1.0, max(count / 30, 2.0)), rng.uniform(0.3, 4.0)
    loaded = [0.0] * (count + 1)
    for _ in range(poisson(rng, loads * (count + 5 * stays))):
        begin, size = rng.uniform(-5 * stays, count), level * unit * rng.choice(ranks) / loads
        end = begin + rng.expovariate(1 / stays)
        loaded[min(max(math.ceil(begin), 0), count)] += size
        loaded[min(max(math.ceil(end), 0), count)] -= size

    def draw() -> Series:
        start = _onset(rng, count)
        twice = _chance(rng, count - start) * rng.choice((1, 2))
        new = [poisson(rng, twice) if at >= start else 0 for at in range(count)]
        return _summed([float(sum(rng.choice(ranks) for _ in range(one))) for one in new])

    base = added(_quiet(rng, count, level), _summed(loaded[:count]))
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def dropped_streams_keep_their_key_value_pages(rng: random.Random) -> Series:
    """Answers are streamed to clients; pages of those that hang up are never given back."""
    count, level = some_length(rng), some_level(rng)
    page = rng.choice((0.05, 0.25, 1.0))

    def draw() -> Series:
        start, spread = _onset(rng, count), rng.uniform(0.1, 0.7)
        chance = _chance(rng, count - start)
        changes = [0.0] * count
        for at in range(start, count):
            if rng.random() < chance:
                changes[at] = math.ceil(rng.lognormvariate(0.0, spread) / page)
        return _summed(changes)

    base = added(
        _quiet(rng, count, level), _guests(rng, count, level * log_uniform(rng, 0.005, 0.25))
    )
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def second_order_gradients_tie_parameters_to_graphs(rng: random.Random) -> Series:
    """Gradients with a graph are left in parameters, in the phases of meta-learning only."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        start, phases = _onset(rng, count), rng.randint(3, max(3, min(15, count // 8)))
        every, share = max((count - start) // phases, 1), rng.uniform(0.4, 0.9)
        share, spread = rng.choice((share, 1.0)), rng.uniform(0.0, 0.3)
        first = rng.randrange(every)
        return _summed(
            [
                rng.lognormvariate(0.0, spread)
                if at >= start and (at + first) % every < share * every
                else 0.0
                for at in range(count)
            ]
        )

    inner = [float(rng.randint(1, 5)) for _ in range(count)]
    unit = level * rng.choice((0.0, log_uniform(rng, 0.001, 0.02)))
    base = added(_quiet(rng, count, level), [unit * one for one in inner])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def moments_of_replaced_units_stay_in_the_optimizer(rng: random.Random) -> Series:
    """Dead units are replaced by new parameters, more of them at first; old moments stay."""
    count, level = some_length(rng, 40), some_level(rng)
    wide = rng.choice(((1.0,), (1.0, 2.0), (0.5, 1.0, 4.0)))

    def draw() -> Series:
        every = rng.randint(1, max(1, count // 16))
        more, pace = rng.uniform(0.0, 3.0), count * rng.uniform(0.1, 0.4)
        units = log_uniform(rng, 1.5, 60)
        changes = [0.0] * count
        for at in range(rng.randrange(every), count, every):
            dead = poisson(rng, units * (1 + more * math.exp(-at / pace)))
            changes[at] = math.fsum(rng.choice(wide) for _ in range(dead))
        return _summed(changes)

    height = level * log_uniform(rng, 0.005, 0.15)
    validated = _inspected(rng, count, height, rng.randint(2, max(3, count // 8)))
    base = added(_quiet(rng, count, level), validated)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def league_of_former_selves_is_never_retired(rng: random.Random) -> Series:
    """A player joins its league as often as it has learned enough; no former self ever leaves."""
    count, level = some_length(rng, 40), some_level(rng)

    def draw() -> Series:
        start = _onset(rng, count)
        enough = log_uniform(rng, 1.0, max((count - start) / 20, 1.05))
        harder, spread = rng.uniform(1.0, 1.03), rng.uniform(0.1, 1.0)
        learned, changes = 0.0, [0.0] * start
        while len(changes) < count:
            learned += max(rng.gauss(1.0, spread), 0.0)
            joins = learned >= enough
            changes.append(1.0 if joins else 0.0)
            if joins:
                learned, enough = 0.0, enough * harder
        return _summed(changes)

    play, learn = rng.randint(1, 8), rng.randint(1, 4)
    phases = _repeated(rng, count, [0.0] * play + [level * log_uniform(rng, 0.003, 0.2)] * learn)
    base = added(_quiet(rng, count, level), phases)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-13")
def thumbnails_pin_the_frames_they_were_cut_from(rng: random.Random) -> Series:
    """Thumbnails of tracks are views, so their whole frames stay; busy times have more tracks."""
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        start, busy = _onset(rng, count), rng.random() < 0.5
        quiet, turn = rng.uniform(0.0, 0.6), 1 / rng.uniform(1.5, max(2.0, count / 20))
        often = _chance(rng, count - start) * rng.uniform(1.0, 4.0)
        changes = [0.0] * count
        for at in range(start, count):
            busy = busy if rng.random() > turn else not busy
            changes[at] = float(poisson(rng, often if busy else quiet * often))
        return _summed(changes)

    base = added(
        _quiet(rng, count, level), _guests(rng, count, level * log_uniform(rng, 0.003, 0.15))
    )
    return leaking(rng, base, drawn_until_enough(draw), level)
