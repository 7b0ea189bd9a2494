# SPDX-License-Identifier: Apache-2.0
"""The sixteenth held-out set of families of series: written without a look at the method.

Its rules are those of the twelfth set (trend_families_twelfth.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
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

Law = Callable[[], float]


def _law_of_sizes(rng: random.Random, wildest: float = 1.0) -> Law:
    """A law of positive sizes around one: equal, a few kinds, even, exponential or log-normal."""
    kind = rng.choice(("equal", "kinds", "even", "exponential", "log-normal"))
    if kind == "equal":
        return lambda: 1.0
    if kind == "kinds":
        kinds = [log_uniform(rng, 0.3, 2.5) for _ in range(rng.randint(2, 5))]
        return lambda: rng.choice(kinds)
    if kind == "even":
        half = rng.uniform(0.1, 0.9)
        return lambda: rng.uniform(1 - half, 1 + half)
    if kind == "exponential":
        least = rng.uniform(0.02, 0.5)
        return lambda: least + rng.expovariate(1.0)
    spread = rng.uniform(0.1, wildest)
    return lambda: rng.lognormvariate(0.0, spread)


def _some_noise(rng: random.Random, count: int, level: float, most: float = 0.006) -> Series:
    """The level in more or less noise."""
    return around(rng, count, level, log_uniform(rng, 0.0002, most))


def _every(count: int, period: int, first: int, long: int, height: float) -> Series:
    """What is held for so many steps in each period, as in an evaluation."""
    return [height if (at - first) % period < long else 0.0 for at in range(count)]


def _some_evaluations(rng: random.Random, count: int, level: float) -> Series:
    """Evaluations every so many steps, which hold more or less, or none."""
    period = max(round(log_uniform(rng, 3, max(count / 6, 4))), 3)
    long = rng.randint(1, max(period // 4, 1))
    height = level * rng.choice((0.0, 1.0, 1.0, -0.5)) * log_uniform(rng, 0.005, 0.3)
    return _every(count, period, rng.randrange(period), long, height)


def _summed(changes: Series) -> Series:
    """What has come in all, where nothing has come in the first step."""
    return list(itertools.accumulate(changes[1:], initial=0.0))


def _begin(rng: random.Random, count: int) -> int:
    """Where a leak begins: in most programs at once, in the others before half."""
    return 0 if rng.random() < 0.55 else rng.randint(1, int(0.42 * count))


def _chance(rng: random.Random, count: int, begin: int) -> float:
    """How often something happens in a step, so that it happens often enough in all."""
    return log_uniform(rng, min(18 / (count - begin), 0.9), 1.0)


@family("steady", "held-out-16")
def diffusion_sampler_guided_in_a_window_of_the_denoising_steps(rng: random.Random) -> Series:
    """Denoises image after image, with twice the batch while guided, and decodes it at the end."""
    count, level = some_length(rng), some_level(rng)
    period = max(round(log_uniform(rng, 3, max(count / 8, 3.5))), 3)
    sides = [rng.choice((0.6, 1.0, 1.0, 1.3, 1.8)) for _ in range(rng.randint(1, 4))]
    act, decode = log_uniform(rng, 0.005, 0.25), log_uniform(rng, 0.01, 0.8)
    begin, end = sorted((rng.random(), rng.random()))
    mixed, vary = rng.random() < 0.5, rng.random() < 0.4
    found: Series = []
    for job in itertools.count():
        side = rng.choice(sides) if mixed else sides[job % len(sides)]
        steps = rng.randint(max(period // 2, 2), period) if vary else period
        for at in range(steps):
            guided = begin <= at / steps <= end
            held = side * act * (2.0 if guided else 1.0)
            found.append(level * (held + (side * decode if at == steps - 1 else 0.0)))
        if len(found) >= count:
            break
    return steady(rng, added(found[:count], _some_noise(rng, count, level)), 0.6 * level)


@family("steady", "held-out-16")
def experts_buffers_as_large_as_the_fullest_until_the_router_balances(
    rng: random.Random,
) -> Series:
    """Sends tokens to experts, whose buffers fit the fullest of them, ever more evenly at first."""
    count, level = some_length(rng), some_level(rng)
    experts = rng.choice((4, 8, 16, 32))
    uneven, slow = log_uniform(rng, 0.1, 4.0), count * log_uniform(rng, 0.02, 0.07)
    spread = log_uniform(rng, 0.02, 0.4)
    limit = rng.choice((math.inf, math.inf, 1 + 2.0 * spread, 1.5 + uneven / 2))
    grain = rng.choice((0.0, 0.0, 0.05, 0.2))
    part = log_uniform(rng, 0.03, 0.5)
    found: Series = []
    for at in range(count):
        fullest = 1 + spread * max(rng.gauss(0.0, 1.0) for _ in range(experts))
        fullest = min(fullest + uneven * math.exp(-at / slow), limit)
        if grain:
            fullest = math.ceil(fullest / grain) * grain
        found.append(level * part * fullest)
    parts = [found, _some_noise(rng, count, level, 0.002)]
    if rng.random() < 0.4:
        parts.append(_some_evaluations(rng, count, level))
    return steady(rng, added(*parts), rng.choice((0.0, 0.1, 0.5)) * level)


@family("steady", "held-out-16")
def supernet_search_that_draws_a_subnet_of_other_depth_and_width(rng: random.Random) -> Series:
    """Trains parts of a large network, drawn anew every few steps or by the sandwich rule."""
    count, level = some_length(rng), some_level(rng)
    depths = [rng.uniform(0.4, 1.0) for _ in range(rng.randint(1, 5))]
    widths = [rng.uniform(0.3, 1.0) for _ in range(rng.randint(2, 6))]
    power, part = rng.uniform(1.0, 2.0), log_uniform(rng, 0.02, 1.2)
    hold, jitter = rng.randint(1, max(count // 25, 1)), rng.choice((0.0, 0.02, 0.1))
    sandwich = rng.random() < 0.4
    found: Series = []
    for turn in itertools.count():
        size = rng.choice(depths) * rng.choice(widths) ** power
        if sandwich and turn % 4 == 0:
            size = max(depths) * max(widths) ** power
        elif sandwich and turn % 4 == 1:
            size = min(depths) * min(widths) ** power
        found += [level * part * size * (1 + jitter * rng.random()) for _ in range(hold)]
        if len(found) >= count:
            break
    base = _some_noise(rng, count, level, 0.003)
    parts = added(found[:count], base, _some_evaluations(rng, count, level))
    return steady(rng, parts, 0.5 * level)


@family("steady", "held-out-16")
def street_camera_tracker_with_a_template_for_each_object_in_sight(rng: random.Random) -> Series:
    """Follows what walks into view and out of it, each with its templates, across scene cuts."""
    count, level = some_length(rng), some_level(rng)
    stay = log_uniform(rng, 1.0, max(count / 40, 1.5))
    come = log_uniform(rng, 1.0, 40.0) / stay
    size, law = log_uniform(rng, 0.002, 0.05), _law_of_sizes(rng)
    cut = rng.choice((0.0, 0.0, 1 / (6 * stay), 1 / (3 * stay)))
    most = rng.choice((math.inf, math.inf, 1.3 * come * stay + 2))
    seen: list[tuple[float, float]] = []
    found: Series = []
    for at in range(-rng.choice((0, int(6 * stay))), count):
        seen = [one for one in seen if one[0] > at]
        if rng.random() < cut:
            seen = []
        for _ in range(poisson(rng, come)):
            if len(seen) < most:
                seen.append((at + rng.expovariate(1 / stay), size * law()))
        if at >= 0:
            found.append(level * math.fsum(one[1] for one in seen))
    return steady(rng, added(found, _some_noise(rng, count, level, 0.002)), 0.4 * level)


@family("steady", "held-out-16")
def fine_tuning_that_thaws_layer_groups_one_by_one_and_then_stays(rng: random.Random) -> Series:
    """Thaws groups of layers early, each with its gradients and moments, and then only trains."""
    count, level = some_length(rng), some_level(rng)
    last = max(int(count * rng.uniform(0.08, 0.38)), 3)
    groups, law = rng.randint(2, 7), _law_of_sizes(rng)
    whole, moments = log_uniform(rng, 0.05, 2.0), rng.uniform(0.0, 2.0)
    evenly = rng.random() < 0.6
    shrink = rng.choice((0.0, 0.0, rng.uniform(0.1, 0.5)))
    changes = [0.0] * count
    for group in range(groups):
        at = last * (group + 1) // groups if evenly else rng.randint(1, last)
        size = level * whole * law() / groups
        changes[at] += size * (1 - shrink)
        changes[at + 1] += size * moments * (1 - shrink)
        if rng.random() < 0.2:
            changes[at] -= 0.5 * size
    batch = level * rng.choice((0.0, log_uniform(rng, 0.002, 0.1)))
    lengths = [batch * rng.betavariate(2.0, 3.0) for _ in range(count)]
    base = added(_some_noise(rng, count, level, 0.004), lengths)
    return steady(rng, added(_summed(changes), base, _some_evaluations(rng, count, level)), 0.0)


@family("steady", "held-out-16")
def recommender_that_fetches_popular_rows_until_its_cache_is_full(rng: random.Random) -> Series:
    """Caches rows of a table in host memory, fast at first, and evicts some when it is full."""
    count, level = some_length(rng), some_level(rng)
    fill = max(count * log_uniform(rng, 0.05, 0.4), 2.0)
    shape, full = rng.uniform(0.3, 1.0), level * log_uniform(rng, 0.05, 2.0)
    wild, misses = _law_of_sizes(rng, 0.7), log_uniform(rng, 0.002, 0.03)
    evict = rng.choice((0.0, rng.uniform(1.0, max(count / 12, 1.5)) * misses))
    used, filled, found = 0.0, False, [0.0]
    for at in range(1, count):
        if filled:
            used += misses * wild()
        else:
            used = max(used, (at / fill) ** shape * (1 + 0.02 * rng.random()))
        if used >= 1.0:
            used, filled = (1.0 - evict if filled else 1.0), True
        found.append(full * used)
    batch = level * rng.choice((0.0, log_uniform(rng, 0.001, 0.05)))
    users = [batch * rng.expovariate(1.0) for _ in range(count)]
    return steady(rng, added(found, users, _some_noise(rng, count, level, 0.003)), 0.0)


@family("steady", "held-out-16")
def self_play_with_a_search_tree_cut_to_the_subtree_of_each_move(rng: random.Random) -> Series:
    """Plays games against itself; a tree grows in each search and is cut to the move's subtree."""
    count, level = some_length(rng), some_level(rng)
    search = max(round(log_uniform(rng, 1, max(count / 30, 1.5))), 1)
    moves = rng.randint(2, max(count // (10 * search), 3))
    games = rng.choice((1, 1, 2, 6, 20))
    reuse = rng.choice((0.0, rng.uniform(0.05, 0.6)))
    size, law = level * log_uniform(rng, 0.003, 0.2) / games, _law_of_sizes(rng, 0.6)
    together = rng.random() < 0.4
    resign = rng.choice((0.0, 0.1))
    found = [0.0] * count
    for _ in range(games):
        at = 0 if together else -rng.randrange(search * moves)
        while at < count:
            tree = 0.0
            for _ in range(moves):
                for _ in range(search):
                    tree += size * law()
                    if 0 <= at < count:
                        found[at] += tree
                    at += 1
                tree *= reuse * rng.uniform(0.5, 1.0)
                if rng.random() < resign:
                    break
    return steady(rng, added(found, _some_noise(rng, count, level, 0.003)), 0.3 * level)


def _walk_scale(rng: random.Random, count: int, factor: float = 1.0) -> float:
    """The size of a walk's changes: so small that the walk stays far above nothing."""
    return log_uniform(rng, 0.0003, min(0.018, 0.22 / (factor * math.sqrt(count))))


def _one_change(size: float) -> float:
    """A change of a walk, as a part of the level, that is none of the too large ones."""
    return min(max(size, -0.02), 0.02)


def _walked(rng: random.Random, level: float, changes: Series, scale: float) -> Series:
    """A walk of these changes, in noise around it or without, as a program's series."""
    count = len(changes)
    noise = rng.choice((0.0, 0.0, log_uniform(rng, 0.1, 2.0))) * scale
    parts = [
        [level * one for one in _summed(changes)],
        around(rng, count, level, noise),
    ]
    if rng.random() < 0.2:
        parts.append(_some_evaluations(rng, count, level))
    return steady(rng, added(*parts), rng.choice((0.0, 0.0, 0.01, 0.1)) * level)


@family("steady", "held-out-16")
def sparse_voxels_of_a_mapped_room_split_and_pruned_walk(rng: random.Random) -> Series:
    """Maps a room in voxel blocks of one size; as many are pruned as are split."""
    count, level = some_length(rng), some_level(rng)
    chance, blocks = log_uniform(rng, min(12 / count, 0.4), 1.0), rng.randint(1, 3)
    scale = _walk_scale(rng, count, math.sqrt(chance) * blocks)
    changes = [
        _one_change(scale * rng.choice((-1, 1)) * rng.randint(1, blocks))
        if rng.random() < chance
        else 0.0
        for _ in range(count)
    ]
    return _walked(rng, level, changes, scale)


@family("steady", "held-out-16")
def adapter_host_whose_tenants_of_all_sizes_come_and_go_walk(rng: random.Random) -> Series:
    """Serves adapters of tenants of which few are large; as much is unloaded as is loaded."""
    count, level = some_length(rng), some_level(rng)
    rate, tail = log_uniform(rng, min(12 / count, 0.4), 3.0), rng.uniform(1.2, 3.0)
    scale = _walk_scale(rng, count, 2.0 * math.sqrt(rate)) / 2
    scale = max(scale, 0.0002)
    changes = [
        _one_change(
            scale
            * math.fsum(
                rng.choice((-1, 1)) * min(rng.paretovariate(tail), 20.0)
                for _ in range(poisson(rng, rate))
            )
        )
        for _ in range(count)
    ]
    return _walked(rng, level, changes, scale)


@family("steady", "held-out-16")
def flow_solver_whose_mesh_is_refined_and_coarsened_in_sweeps_walk(rng: random.Random) -> Series:
    """Solves a flow on a mesh whose changes go on for some steps, up as often as down."""
    count, level = some_length(rng), some_level(rng)
    momentum = rng.choice((rng.uniform(0.2, 0.6), rng.uniform(0.6, 0.9), -0.3))
    scale = _walk_scale(rng, count, math.sqrt((1 + momentum) / (1 - momentum)))
    pace = rng.choice((1, 1, 1, 2, 5)) if count >= 80 else 1
    value, changes = rng.gauss(0.0, scale), [0.0]
    while len(changes) < count:
        if len(changes) % pace:
            changes.append(0.0)
            continue
        changes.append(_one_change(value))
        value = momentum * value + math.sqrt(1 - momentum**2) * rng.gauss(0.0, scale)
    return _walked(rng, level, changes, scale)


@family("steady", "held-out-16")
def news_clusterer_whose_topics_live_in_calm_and_busy_spells_walk(rng: random.Random) -> Series:
    """Clusters news; topics are made and merged, little in calm spells and much in busy ones."""
    count, level = some_length(rng), some_level(rng)
    scale, calm = _walk_scale(rng, count, 1.2), rng.choice((0.0, rng.uniform(0.02, 0.3)))
    into, out = log_uniform(rng, max(0.04, 10 / count), 0.4), log_uniform(rng, 0.06, 0.4)
    even = rng.random() < 0.5
    busy, changes = rng.random() < into / (into + out), []
    for _ in range(count):
        size = rng.uniform(-1.7, 1.7) if even else rng.gauss(0.0, 1.0)
        changes.append(_one_change(size * scale * (1.0 if busy else calm)))
        busy = rng.random() >= out if busy else rng.random() < into
    return _walked(rng, level, changes, scale)


@family("cycle_garbage", "held-out-16")
def program_synthesiser_whose_candidates_refer_to_each_other(rng: random.Random) -> Series:
    """Scores candidate programs that refer to each other until the collector comes, or a part."""
    count, level = some_length(rng), some_level(rng)
    period = rng.uniform(3.0, count / 5.5)
    chance, law = log_uniform(rng, min(6 / period, 0.9), 1.0), _law_of_sizes(rng, 0.8)
    height = log_uniform(rng, 0.02, 1.5)
    how = rng.choice(("by number", "by number", "every so many steps", "generations"))
    young = max(round(period / rng.randint(2, 4)), 2)
    left = rng.choice((0.0, 0.0, rng.uniform(0.0, 0.1)))
    phase = rng.uniform(0.3, 1.0)
    held, number, since, found = 0.0, period * chance * (1 - phase), period * (1 - phase), [0.0]
    while len(found) < count:
        since += 1
        if rng.random() < chance:
            held, number = held + law(), number + 1
        if how == "by number":
            due = number >= period * chance or since >= 1.5 * period
        else:
            due = since >= period
        if due:
            held, number, since = left, 0.0, max(since - period, 0.0) % 1.0
        elif how == "generations" and int(since) % young == 0:
            held *= rng.uniform(0.4, 0.8)
        found.append(held)
    top = max(found)
    piled = [level * height * one / top for one in found]
    base = _some_noise(rng, count, level, min(0.006, 0.05 * height))
    return steady(rng, added(piled, base), 0.3 * level)


@family("leak", "held-out-16")
def vector_search_that_keeps_index_shards_of_tenants_that_left(rng: random.Random) -> Series:
    """Answers queries over shards on the GPU; of tenants that leave, a shard now and then stays."""
    count, level = some_length(rng), some_level(rng)
    burst, often = level * log_uniform(rng, 0.002, 0.15), rng.uniform(0.05, 0.5)
    queries = [burst * rng.expovariate(1.0) * (rng.random() < often) for _ in range(count)]

    def draw() -> Series:
        begin, law = _begin(rng, count), _law_of_sizes(rng)
        chance = _chance(rng, count, begin)
        return _summed(
            [law() if at > begin and rng.random() < chance else 0.0 for at in range(count)]
        )

    base = added(_some_noise(rng, count, level), queries)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def trial_scheduler_that_keeps_the_weights_of_trials_on_the_gpu(rng: random.Random) -> Series:
    """Runs trials of models of other sizes one by one; the weights of those not pruned stay."""
    count, level = some_length(rng, 60), some_level(rng)
    period = rng.randint(2, max(count // 20, 2))
    law, pruned = _law_of_sizes(rng, 0.5), rng.choice((0.0, 0.0, 0.15))
    part, ramp = log_uniform(rng, 0.002, 0.2), rng.choice((0.0, rng.uniform(0.0, 0.5)))
    sizes = [law() for _ in range(count // period + 1)]
    base = [
        level * part * sizes[at // period] * (1 + ramp * (at % period) / period)
        for at in range(count)
    ]

    def draw() -> Series:
        stays = [0.0] * count
        least, alike = rng.uniform(0.3, 1.0), rng.random() < 0.5
        for at in range(period, count, period):
            if rng.random() >= pruned:
                stays[at] = least + (0.0 if alike else sizes[at // period - 1] * rng.random())
        return _summed(stays)

    base = added(base, _some_noise(rng, count, level, 0.004))
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def captioner_that_keeps_attention_maps_of_each_validation(rng: random.Random) -> Series:
    """Trains and validates every so many steps; the maps it logs stay, for one or all batches."""
    count, level = some_length(rng, 60), some_level(rng)
    period = rng.randint(3, max(count // 20, 3))
    long = rng.randint(1, max(period // 3, 1))
    height = level * rng.choice((1.0, 1.0, -0.4)) * log_uniform(rng, 0.003, 0.25)
    first = rng.randrange(period)

    def draw() -> Series:
        begin = min(_begin(rng, count), count - 16 * period)
        law, each = _law_of_sizes(rng, 0.6), rng.random() < 0.5
        changes = [0.0] * count
        for at in range(max(begin, 0) + 1, count):
            since = (at - first) % period
            if since < long and (each or since == 0):
                changes[at] = law()
        return _summed(changes)

    base = added(_some_noise(rng, count, level, 0.004), _every(count, period, first, long, height))
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def translation_gateway_that_loses_beams_of_cancelled_requests(rng: random.Random) -> Series:
    """Translates under a load that comes in waves; the more load, the more beams are lost."""
    count, level = some_length(rng), some_level(rng)
    period = rng.uniform(6.0, max(count / 4, 7.0))
    phase, deep = rng.uniform(0.0, math.tau), rng.uniform(0.2, 0.9)
    power = rng.choice((1.0, 1.0, 3.0))
    load = [
        (1 - deep) + deep * (0.5 + 0.5 * math.sin(phase + math.tau * at / period)) ** power
        for at in range(count)
    ]
    part, rough = log_uniform(rng, 0.003, 0.15), log_uniform(rng, 0.01, 0.2)
    busy = [level * part * one * max(1 + rng.gauss(0.0, rough), 0.1) for one in load]

    def draw() -> Series:
        begin, law, rate = _begin(rng, count), _law_of_sizes(rng), log_uniform(rng, 0.7, 8.0)
        return _summed(
            [
                math.fsum(law() for _ in range(poisson(rng, rate * one))) if at > begin else 0.0
                for at, one in enumerate(load)
            ]
        )

    base = added(_some_noise(rng, count, level, 0.003), busy)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def critic_penalty_that_chains_its_graph_from_step_to_step(rng: random.Random) -> Series:
    """Trains critic and generator in turns; a running penalty keeps each critic step's graph."""
    count, level = some_length(rng), some_level(rng)
    turns = rng.randint(1, 5) if count >= 60 else rng.randint(2, 5)
    apart = level * log_uniform(rng, 0.001, 0.3) * rng.choice((-1, 1)) * 0.5
    base = added(_some_noise(rng, count, level, 0.004), _every(count, turns + 1, 0, 1, apart))
    spread = rng.choice((0.0, 0.0, 0.05, 0.4))

    def draw() -> Series:
        begin = _begin(rng, count)
        return _summed(
            [
                max(1 + rng.gauss(0.0, spread), 0.05) if at > begin and at % (turns + 1) else 0.0
                for at in range(count)
            ]
        )

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def kernels_specialised_for_each_new_shape_pile_up_more_slowly(rng: random.Random) -> Series:
    """Compiles for each shape it has not seen, with its own workspace, ever rarer but for ever."""
    count, level = some_length(rng), some_level(rng)
    batch, kind = level * log_uniform(rng, 0.002, 0.15), rng.choice(("beta", "log", "buckets"))
    buckets = [rng.random() for _ in range(rng.randint(3, 9))]
    shapes: Series = []
    for _ in range(count):
        if kind == "beta":
            shapes.append(batch * rng.betavariate(1.5, 4.0))
        elif kind == "log":
            shapes.append(batch * min(rng.lognormvariate(-1.0, 0.6), 4.0))
        else:
            shapes.append(batch * rng.choice(buckets))

    def draw() -> Series:
        power, law = rng.uniform(0.6, 0.92), _law_of_sizes(rng, 0.7)
        rate = log_uniform(rng, max(0.8, 40 / count), 5.0)
        changes = [0.0] * count
        for at in range(1, count):
            number = poisson(rng, rate * (at / count) ** (power - 1) * power)
            changes[at] = math.fsum(law() for _ in range(number))
        return _summed(changes)

    base = added(_some_noise(rng, count, level, 0.004), shapes)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def probing_hooks_added_anew_each_epoch_that_keep_ever_more(rng: random.Random) -> Series:
    """Adds its hooks again in each epoch, so that each step keeps the features once more often."""
    count, level = some_length(rng), some_level(rng)
    epoch = rng.randint(3, max(count // 7, 4))
    last = -level * rng.choice((0.0, log_uniform(rng, 0.005, 0.3)))
    ends = _every(count, epoch, epoch - 1, 1, last)

    def draw() -> Series:
        begin, growth = _begin(rng, count), rng.uniform(0.8, 4.5)
        chance, law = rng.choice((1.0, 1.0, rng.uniform(0.5, 1.0))), _law_of_sizes(rng, 0.5)
        epochs = max((count - begin) // epoch, 1)
        return _summed(
            [
                law() * (1 + growth * ((at - begin) // epoch) / epochs)
                if at > begin and rng.random() < chance
                else 0.0
                for at in range(count)
            ]
        )

    base = added(_some_noise(rng, count, level, 0.006), ends)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def video_reader_whose_trims_give_back_only_a_part_of_its_frames(rng: random.Random) -> Series:
    """Decodes clips on the GPU; every so often a trim gives back some of the frames held since."""
    count, level = some_length(rng), some_level(rng)
    clips = level * log_uniform(rng, 0.001, 0.08)
    base = added(
        _some_noise(rng, count, level, 0.005), [clips * rng.random() for _ in range(count)]
    )

    def draw() -> Series:
        begin, law = _begin(rng, count), _law_of_sizes(rng, 0.7)
        trim = rng.randint(2, max((count - begin) // 12, 2))
        back, vary = rng.uniform(0.2, 0.65), rng.uniform(0.0, 0.2)
        jitter = rng.random() < 0.5
        changes, since, due = [0.0] * (begin + 1), 0.0, begin + 1 + trim
        while len(changes) < count:
            if len(changes) >= due:
                due += max(round(trim * rng.uniform(0.5, 1.5)), 2) if jitter else trim
                changes.append(-since * min(back + vary * rng.random(), 0.7))
                since = 0.0
            else:
                changes.append(law())
                since += changes[-1]
        return _summed(changes)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def error_reports_that_hold_activations_of_batches_that_failed(rng: random.Random) -> Series:
    """Catches failures that come in spells and stores each with its frames, and so its tensors."""
    count, level = some_length(rng), some_level(rng)
    batch, spread = level * log_uniform(rng, 0.002, 0.12), rng.uniform(0.2, 0.8)
    works = [batch * min(rng.lognormvariate(0.0, spread), 5.0) for _ in range(count)]

    def draw() -> Series:
        begin, law, chance = _begin(rng, count), _law_of_sizes(rng), rng.uniform(0.5, 1.0)
        calm = rng.uniform(1.0, max((count - begin) / 14, 1.5))
        spell = rng.uniform(1.0, max((count - begin) / 18, 2.5))
        failing, changes = False, [0.0] * count
        for at in range(begin + 1, count):
            failing = rng.random() > 1 / spell if failing else rng.random() < 1 / calm
            if failing and rng.random() < chance:
                changes[at] = law()
        return _summed(changes)

    base = added(_some_noise(rng, count, level, 0.004), works)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-16")
def speech_sessions_of_which_a_dropped_line_leaves_its_state(rng: random.Random) -> Series:
    """Transcribes calls that grow while they last; a call cut off leaves all it has grown to."""
    count, level = some_length(rng), some_level(rng)
    last = log_uniform(rng, 1.5, max(count / 25, 2.5))
    come, size = log_uniform(rng, 0.5, 12.0) / last, level * log_uniform(rng, 0.001, 0.02)
    calls: list[tuple[int, float]] = []
    active: Series = []
    for at in range(-int(5 * last), count):
        calls += [(at, at + rng.expovariate(1 / last)) for _ in range(poisson(rng, come))]
        calls = [one for one in calls if one[1] > at]
        if at >= 0:
            active.append(size * math.fsum(at + 1 - start for start, _ in calls) / last)

    def draw() -> Series:
        begin, flat = _begin(rng, count), rng.uniform(0.0, 1.0)
        rate = log_uniform(rng, min(24 / (count - begin), 1.0), 4.0)
        return _summed(
            [
                math.fsum(flat + rng.expovariate(1.0) for _ in range(poisson(rng, rate)))
                if at > begin
                else 0.0
                for at in range(count)
            ]
        )

    base = added(_some_noise(rng, count, level, 0.003), active)
    return leaking(rng, base, drawn_until_enough(draw), level)
