# SPDX-License-Identifier: Apache-2.0
"""The seventeenth held-out set of families of series: written without a look at the method.

Its rules are those of the twelfth set (trend_families_twelfth.py), and its author another.
"""

from __future__ import annotations

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


def _law(rng: random.Random, wildest: float = 1.0) -> Law:
    """A law of positive sizes around one: all equal, spread, of two kinds, or with a tail."""
    kind = rng.choice(("equal", "spread", "two", "waiting", "log_normal", "pareto"))
    if kind == "equal":
        return lambda: 1.0
    if kind == "spread":
        half = rng.uniform(0.1, 0.9)
        return lambda: rng.uniform(1 - half, 1 + half)
    if kind == "two":
        large, share = rng.uniform(1.5, 5.0), rng.uniform(0.1, 0.6)
        return lambda: large if rng.random() < share else 0.6
    if kind == "waiting":
        return lambda: 0.05 + rng.expovariate(1.0)
    if kind == "log_normal":
        sigma = rng.uniform(0.1, wildest)
        return lambda: rng.lognormvariate(-sigma * sigma / 2, sigma)
    shape = rng.uniform(3.0 / wildest, 6.0 / wildest)
    return lambda: min(rng.paretovariate(shape), 12.0) * 0.7


def _summed(changes: Series) -> Series:
    """What changes make of nothing, one after the other."""
    value, found = 0.0, []
    for one in changes:
        value += one
        found.append(value)
    return found


def _start(rng: random.Random, count: int) -> int:
    """When a leak begins: at once, or before two fifths of the series."""
    return 1 if rng.random() < 0.5 else rng.randint(1, max(int(0.4 * count), 1))


def _gap(rng: random.Random, steps: int, events: int = 14) -> int:
    """Steps from one event to the next, so that at least so many fit in."""
    return max(int(log_uniform(rng, 1.0, max(steps / events, 1.0) + 1e-9)), 1)


def _independent(rng: random.Random, count: int, size: float) -> Series:
    """Extra memory that differs from step to step, after one law."""
    draw = _law(rng)
    return [size * draw() for _ in range(count)]


def _now_and_then(rng: random.Random, count: int, every: int, lasts: int, size: float) -> Series:
    """Extra memory for a few steps, at regular times."""
    first = rng.randrange(every)
    return [size if (at + first) % every >= every - lasts else 0.0 for at in range(count)]


# ------------------------------------------------------------------------------------- steady


@family("steady", "held-out-17")
def protein_folding_server_recycles_chains_of_very_different_lengths(rng: random.Random) -> Series:
    """Folds one chain after the other, each a few steps long, with memory as its length squared."""
    count, level = some_length(rng), some_level(rng)
    recycles, cropped = rng.randint(1, max(count // 25, 1)), rng.uniform(1.2, 3.0)
    sigma, power = rng.uniform(0.1, 0.7), rng.choice((1.0, 2.0, 2.0, 3.0))
    share, shrinks = log_uniform(rng, 0.01, 1.0), rng.choice((0.0, 0.0, 0.3))
    early_exit = rng.random() < 0.5
    found: Series = []
    while len(found) < count:
        length = min(rng.lognormvariate(0.0, sigma), cropped)
        steps = rng.randint(1, recycles) if early_exit else recycles
        for turn in range(steps):
            part = 1 - shrinks if turn == steps - 1 and steps > 1 else 1.0
            found.append(share * level * part * length**power)
    return steady(rng, added(around(rng, count, level, 0.001), found[:count]), 0.5 * level)


@family("steady", "held-out-17")
def radiance_field_trainer_prunes_its_occupancy_grid_until_it_settles(rng: random.Random) -> Series:
    """Samples fewer points of each ray while it finds empty space, then as many always."""
    count, level = some_length(rng), some_level(rng)
    ends = max(count * rng.uniform(0.05, 0.38), 2.0)
    power, extra = rng.uniform(0.8, 5.0), level * log_uniform(rng, 0.05, 3.0)
    every = rng.randint(1, max(count // 12, 1))
    in_stairs = rng.random() < 0.6
    found: Series = []
    for at in range(count):
        seen = at - at % every if in_stairs else at
        found.append(extra * max(1 - seen / ends, 0.0) ** power)
    rays = _independent(rng, count, level * log_uniform(rng, 0.001, 0.1))
    update = level * rng.choice((0.0, log_uniform(rng, 0.01, 0.3)))
    spikes = _now_and_then(rng, count, every, 1, update)
    return steady(rng, added(around(rng, count, level), found, rays, spikes), 0.2 * level)


@family("steady", "held-out-17")
def chat_server_keeps_key_values_for_a_fixed_number_of_clients(rng: random.Random) -> Series:
    """Decodes for clients who ask, wait for the answer, think and ask again."""
    count, level = some_length(rng), some_level(rng)
    clients, answer = rng.randint(2, 20), log_uniform(rng, 1.5, max(count / 14, 2.0))
    prompt, think = answer * log_uniform(rng, 0.1, 8.0), answer * rng.uniform(0.0, 1.5)
    lengths, prompts, thoughts = _law(rng, 0.8), _law(rng, 0.8), _law(rng, 0.8)
    late = rng.uniform(0.0, min(0.15 * count, 4 * answer))
    longest = 0.12 * count
    held = [0.0] * count
    for _ in range(clients):
        at = int(rng.uniform(0.0, late))
        while at < count:
            steps = max(round(min(answer * lengths(), longest)), 1)
            asked = prompt * min(prompts(), 6.0)
            for turn in range(min(steps, count - at)):
                held[at + turn] += asked + turn
            at += steps + round(min(think * thoughts(), longest))
    token = level * log_uniform(rng, 0.02, 1.5) / (clients * (prompt + answer / 2))
    found = [token * one for one in held]
    return steady(rng, added(around(rng, count, level, 0.0005), found), 0.3 * level)


@family("steady", "held-out-17")
def graph_sampler_caches_features_of_neighbours_up_to_a_bound(rng: random.Random) -> Series:
    """Keeps features of the nodes it met until the cache is full, then evicts one or many."""
    count, level = some_length(rng), some_level(rng)
    full_at = max(count * log_uniform(rng, 0.04, 0.42), 2.0)
    bound, power = level * log_uniform(rng, 0.03, 1.5), rng.uniform(0.35, 1.1)
    draw = _law(rng, 0.6)
    weights = [draw() for _ in range(int(full_at) + 1)]
    filled, whole = _summed(weights), math.fsum(weights)
    cache = [bound * (one / whole) ** power for one in filled][:count]
    evicted = rng.choice((0.0, 0.0, rng.uniform(0.03, 0.3)))
    refill, phase = rng.randint(2, max(count // 14, 2)), 0
    while len(cache) < count:
        phase = (phase + 1) % refill
        cache.append(bound * (1 - evicted * (1 - phase / refill) * (phase > 0)))
    batch = _independent(rng, count, level * log_uniform(rng, 0.002, 0.15))
    return steady(rng, added(around(rng, count, level, 0.001), cache, batch), 0.2 * level)


@family("steady", "held-out-17")
def self_play_by_tree_search_reuses_the_subtree_of_each_move(rng: random.Random) -> Series:
    """Grows a tree in each move of a game, keeps the branch played, and starts anew at its end."""
    count, level = some_length(rng), some_level(rng)
    boards, longest = rng.randint(1, 8), max(int(count * rng.uniform(0.04, 0.14)), 3)
    reused, spread = rng.uniform(0.2, 0.97), rng.uniform(0.0, 0.25)
    together, draw = rng.random() < 0.3, _law(rng, 0.6)
    nodes = [0.0] * count
    ends = [rng.randint(1, longest) for _ in range(boards)]
    trees = [0.0] * boards
    for at in range(count):
        for board in range(boards):
            if at >= ends[board]:
                trees[board] = 0.0
                steps = longest if together else rng.randint(max(longest // 2, 1), longest)
                ends[board] = at + steps
            kept = min(max(reused + rng.uniform(-spread, spread), 0.0), 0.98)
            trees[board] = kept * trees[board] + draw()
        nodes[at] = math.fsum(trees)
    size = level * log_uniform(rng, 0.03, 1.5) / max(nodes)
    found = [size * one for one in nodes]
    return steady(rng, added(around(rng, count, level, 0.001), found), 0.3 * level)


@family("steady", "held-out-17")
def image_trainer_enlarges_its_crops_in_stages_and_validates_often(rng: random.Random) -> Series:
    """Goes through stages of resolution, some with smaller batches, and validates between steps."""
    count, level = some_length(rng), some_level(rng)
    stages, last = rng.randint(2, 6), count * rng.uniform(0.08, 0.43)
    ends = [*sorted(rng.uniform(0.0, last) for _ in range(stages - 2)), last]
    side, sides = 1.0, []
    for _ in ends:
        side /= rng.uniform(1.05, 1.5)
        sides.append(side)
    sides.reverse()
    batches = [rng.choice((1.0, 1.0, 1.3, 2.0)) for _ in ends]
    activations = level * log_uniform(rng, 0.1, 3.0)
    found: Series = []
    for at in range(count):
        stage = sum(at >= end for end in ends)
        part = sides[stage] ** 2 * batches[stage] if stage < len(ends) else 1.0
        found.append(activations * part)
    every = rng.randint(2, max(count // 8, 3))
    size = activations * rng.choice((-1.0, 1.0)) * rng.uniform(0.02, 0.6)
    checks = _now_and_then(rng, count, every, rng.randint(1, max(every // 3, 1)), size)
    return steady(rng, added(around(rng, count, level, 0.002), found, checks), 0.2 * level)


@family("steady", "held-out-17")
def video_generator_moves_its_models_in_and_out_between_phases(rng: random.Random) -> Series:
    """Encodes the text, denoises, enlarges and decodes, one order after the other."""
    count, level = some_length(rng), some_level(rng)
    phases = rng.randint(2, 5)
    weights = [log_uniform(rng, 0.1, 1.0) for _ in range(phases)]
    heights = [level * log_uniform(rng, 0.02, 1.5) for _ in range(phases)]
    whole = max(count * rng.uniform(0.03, 0.12), float(phases))
    lasts = [max(round(whole * one / math.fsum(weights)), 1) for one in weights]
    draw, jitter = _law(rng, 0.5), rng.choice((0.0, 0.0, 0.4))
    skips = rng.choice((0.0, 0.0, rng.uniform(0.1, 0.6)))
    found: Series = []
    while len(found) < count + whole:
        order = min(draw(), 4.0)
        for phase in range(phases):
            if phase and rng.random() < skips:
                continue
            steps = max(round(lasts[phase] * (1 + rng.uniform(-jitter, jitter))), 1)
            found += [heights[phase] * (0.5 + 0.5 * order)] * steps
    first = rng.randint(0, int(whole))
    found = found[first : first + count]
    return steady(rng, added(around(rng, count, level, 0.001), found), 0.3 * level)


# -------------------------------------------------------------------------------------- walks


def _change(rng: random.Random, count: int, deviation: float = 1.0) -> float:
    """A part of the level, so that steps of so many such parts do not walk down to nothing."""
    most = min(0.02, 0.18 / (deviation * math.sqrt(count)))
    return log_uniform(rng, 0.0002, max(most, 0.0003))


@family("steady", "held-out-17")
def particle_filter_splits_and_merges_tracks_of_one_size_walk(rng: random.Random) -> Series:
    """Adds and drops tracks of one size, as many of each in the mean, few or many a step."""
    count, level = some_length(rng), some_level(rng)
    rate = log_uniform(rng, 0.05, 4.0)
    size = level * _change(rng, count, math.sqrt(2 * max(rate, 0.5)))
    steps = [size * (poisson(rng, rate) - poisson(rng, rate)) for _ in range(count)]
    noise = around(rng, count, level, size / level * rng.choice((0.0, 0.3, 1.5)))
    return steady(rng, added(noise, _summed(steps)), 0.0)


@family("steady", "held-out-17")
def scene_editor_swaps_assets_of_very_different_sizes_walk(rng: random.Random) -> Series:
    """Loads and unloads assets, either as likely, most of them small and a few large."""
    count, level = some_length(rng), some_level(rng)
    often, shape = log_uniform(rng, min(0.05 + 8 / count, 0.5), 1.0), rng.uniform(0.3, 2.5)
    largest = _change(rng, count)
    least = max(largest * log_uniform(rng, 0.01, 0.3), 0.0002)
    steps: Series = []
    for _ in range(count):
        size = min(least * rng.paretovariate(shape), max(largest, least))
        steps.append(rng.choice((-1, 1)) * size * level if rng.random() < often else 0.0)
    noise = around(rng, count, level, rng.choice((0.0, 0.0, least * 0.5)))
    return steady(rng, added(noise, _summed(steps)), 0.0)


@family("steady", "held-out-17")
def market_simulator_holds_orders_in_calm_and_busy_spells_walk(rng: random.Random) -> Series:
    """Holds orders that come and go alike, in spells with small changes and spells with large."""
    count, level = some_length(rng), some_level(rng)
    busy, calm = rng.uniform(3.0, 0.15 * count + 4), rng.uniform(3.0, 0.2 * count + 4)
    most = _change(rng, count)
    least = max(most * log_uniform(rng, 0.03, 0.5), 0.0002) * rng.choice((0.0, 1.0, 1.0))
    two_sided = rng.random() < 0.5
    is_busy = rng.random() < busy / (busy + calm)
    steps: Series = []
    for _ in range(count):
        size = level * (most if is_busy else least)
        if two_sided:
            steps.append(rng.choice((-1, 1)) * size * min(rng.expovariate(1.0), 4.0) * 0.7)
        else:
            steps.append(rng.gauss(0.0, size))
        if rng.random() < 1 / (busy if is_busy else calm):
            is_busy = not is_busy
    noise = around(rng, count, level, most * rng.choice((0.0, 0.2, 1.0)))
    return steady(rng, added(noise, _summed(steps)), 0.0)


@family("steady", "held-out-17")
def swarm_simulator_whose_agents_join_and_leave_in_fashions_walk(rng: random.Random) -> Series:
    """Holds agents who join, or leave, for a while as others do, with no end favoured."""
    count, level = some_length(rng), some_level(rng)
    memory = rng.choice((0.2, 0.5, 0.7, 0.85))
    longer = math.sqrt((1 + memory) / (1 - memory))
    size, stays = _change(rng, count, longer), rng.choice((0.0, 0.0, rng.uniform(0.2, 0.7)))
    pace, steps = rng.gauss(0.0, 1.0), []
    for _ in range(count):
        steps.append(0.0 if rng.random() < stays else size * level * pace)
        pace = memory * pace + math.sqrt(1 - memory * memory) * rng.gauss(0.0, 1.0)
    noise = around(rng, count, level, size * rng.choice((0.0, 0.3, 1.0)))
    return steady(rng, added(noise, _summed(steps)), 0.0)


# ------------------------------------------------------------------------------ cycle garbage


@family("cycle_garbage", "held-out-17")
def physics_solver_ties_states_in_rings_until_the_collector_runs(rng: random.Random) -> Series:
    """Leaves states that point at each other, which go when the collector has its turn."""
    count, level = some_length(rng), some_level(rng)
    turn = max(log_uniform(rng, 3.0, max(count / 6.5, 3.2)), 3.0)
    jitter = rng.choice((0.0, 0.05, 0.25))
    draw, often = _law(rng, 0.6), rng.choice((1.0, 1.0, rng.uniform(0.4, 0.9)))
    young = rng.choice((0, 0, rng.randint(2, max(int(turn / 2), 2))))
    taken = rng.uniform(0.1, 0.5)
    pile, piles, age = 0.0, [], rng.uniform(0.0, turn)
    for at in range(count):
        age += 1
        if age >= turn:
            pile, age = 0.0, rng.uniform(-jitter, jitter) * turn
        elif young and at % young == 0:
            pile *= 1 - taken
        if rng.random() < often:
            pile += draw()
        piles.append(pile)
    size = level * log_uniform(rng, 0.03, 1.5) / max(piles)
    part = rng.choice((0.0, 0.0005, 0.002))
    found = added(around(rng, count, level, part), [size * one for one in piles])
    return steady(rng, found, 0.2 * level)


# -------------------------------------------------------------------------------------- leaks


@family("leak", "held-out-17")
def league_trainer_keeps_every_frozen_opponent_on_the_device(rng: random.Random) -> Series:
    """Plays and learns in turn, and freezes a copy of itself every few rounds, for ever."""
    count, level = some_length(rng), some_level(rng)
    rounds = rng.randint(2, max(count // 12, 3))
    swing = level * rng.choice((0.0, log_uniform(rng, 0.003, 0.2)))
    learns = _now_and_then(rng, count, rounds, rng.randint(1, rounds - 1), swing)
    base = added(around(rng, count, level, 0.002), learns)

    def draw() -> Series:
        start, jitter = _start(rng, count), rng.choice((0.0, 0.0, 0.3))
        gap, due, steps = _gap(rng, count - start, 16), float(start), []
        for at in range(count):
            comes = at >= due
            steps.append(1.0 if comes else 0.0)
            if comes:
                due += gap * (1 + rng.uniform(-jitter, jitter))
        return _summed([0.0, *steps[1:]])

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def adapter_server_loads_weights_of_each_new_tenant_and_never_evicts(rng: random.Random) -> Series:
    """Serves tenants of whom new ones come ever more slowly, but without an end."""
    count, level = some_length(rng), some_level(rng)
    requests = _independent(rng, count, level * log_uniform(rng, 0.001, 0.1))
    base = added(around(rng, count, level, 0.001), requests)

    def draw() -> Series:
        power, tenants = rng.uniform(0.6, 0.95), log_uniform(rng, 25.0, 3.0 * count)
        sizes, steps = _law(rng, 0.7), [0.0]
        for at in range(1, count):
            mean = tenants * ((at + 1) ** power - at**power) / count**power
            steps.append(math.fsum(sizes() for _ in range(poisson(rng, mean))))
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def calibration_metric_appends_logits_in_each_validation_unreset(rng: random.Random) -> Series:
    """Trains, and in each validation adds its logits to a list that nobody empties."""
    count, level = some_length(rng), some_level(rng)
    every = max(_gap(rng, count, 15), 2)
    lasts = rng.randint(1, max(every // 2, 1))
    first = rng.randrange(every)
    size = level * rng.choice((-1.0, 1.0)) * rng.choice((0.0, log_uniform(rng, 0.005, 0.3)))
    valid = [(at + first) % every >= every - lasts for at in range(count)]
    checks = [size if one else 0.0 for one in valid]
    base = added(around(rng, count, level, 0.002), checks)

    def draw() -> Series:
        start = rng.choice((1, rng.randint(1, max(int(0.2 * count), 1))))
        sizes = _law(rng, 0.4)
        steps = [sizes() if one and at >= start else 0.0 for at, one in enumerate(valid)]
        return _summed([0.0, *steps[1:]])

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def live_transcriber_leaves_decoder_states_of_dropped_calls(rng: random.Random) -> Series:
    """Transcribes calls that come and end, and forgets to free the few that break off."""
    count, level = some_length(rng), some_level(rng)
    calls, lasts = log_uniform(rng, 2.0, 40.0), log_uniform(rng, 1.0, max(count / 50, 1.5))
    open_calls, changing = calls, []
    for _ in range(count):
        open_calls += (calls - open_calls) / lasts + rng.gauss(0.0, math.sqrt(2 * calls / lasts))
        open_calls = min(max(open_calls, 0.0), 3 * calls)
        changing.append(open_calls / calls * level * 0.02)
    base = added(around(rng, count, level, 0.0005), changing)

    def draw() -> Series:
        start, sizes = _start(rng, count), _law(rng, 0.8)
        rate = log_uniform(rng, 20.0, 60.0) / (count - start)
        steps = [0.0] * count
        for at in range(start, count):
            steps[at] = math.fsum(sizes() for _ in range(poisson(rng, rate)))
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def surrogate_search_keeps_the_kernel_matrix_of_every_trial(rng: random.Random) -> Series:
    """Tries one setting after the other, and keeps for each a matrix larger than the last."""
    count, level = some_length(rng), some_level(rng)
    trial = rng.randint(1, max(count // 16, 1))
    sizes = _law(rng, 0.5)
    heights = [sizes() for _ in range(count // trial + 2)]
    share = level * rng.choice((0.0, log_uniform(rng, 0.005, 0.1)))
    needed = [share * heights[at // trial] for at in range(count)]
    base = added(around(rng, count, level, 0.001), needed)

    def draw() -> Series:
        power, before = rng.uniform(1.1, 3.0), rng.uniform(0.0, 1.5)
        rough, steps = rng.uniform(0.0, 0.5), [0.0]
        for at in range(1, count):
            gain = power * (before + at / count) ** (power - 1)
            steps.append(gain * (1 + rng.uniform(-rough, rough)) if at % trial == 0 else 0.0)
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def compiled_detector_keeps_a_plan_for_each_image_shape_it_meets(rng: random.Random) -> Series:
    """Reads shard after shard, each with a burst of new shapes for which plans are stored."""
    count, level = some_length(rng), some_level(rng)
    images = _independent(rng, count, level * log_uniform(rng, 0.002, 0.2))
    base = added(around(rng, count, level, 0.0005), images)

    def draw() -> Series:
        shard, sizes = rng.uniform(2.0, max(count / 8, 3.0)), _law(rng, 0.7)
        fades = shard * rng.uniform(0.1, 1.0)
        rate = log_uniform(rng, 30.0, 200.0) / count * shard / fades
        steps, age, ends = [0.0], 0.0, shard
        while len(steps) < count:
            mean = min(rate * math.exp(-age / fades), 30.0)
            steps.append(math.fsum(sizes() for _ in range(poisson(rng, mean))))
            age += 1
            if age >= ends:
                age, ends = 0.0, shard * rng.uniform(0.7, 1.3)
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def prefetcher_loses_staged_batches_whenever_its_workers_restart(rng: random.Random) -> Series:
    """Stages batches during each short epoch, and loses some of them when the epoch ends."""
    count, level = some_length(rng), some_level(rng)
    epoch = max(_gap(rng, count, 16), 2)
    fills, depth = rng.randint(1, epoch), level * log_uniform(rng, 0.005, 0.3)
    drains = rng.random() < 0.5
    queue: Series = []
    for at in range(count):
        age = at % epoch
        part = min((age + 1) / fills, 1.0)
        queue.append(depth * (1 - part if drains else part))
    base = added(around(rng, count, level, 0.001), queue)

    def draw() -> Series:
        most, grows = rng.randint(1, 6), rng.choice((0.0, 0.0, rng.uniform(0.02, 2.0)))
        misses, steps = rng.choice((0.0, 0.0, 0.2)), [0.0] * count
        for at in range(epoch, count, epoch):
            if rng.random() >= misses:
                steps[at] = rng.randint(1, most) * (1 + grows * at / count)
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def molecule_simulator_regrows_neighbour_lists_and_frees_a_part(rng: random.Random) -> Series:
    """Builds new lists of neighbours from time to time, and frees most of what was built."""
    count, level = some_length(rng), some_level(rng)
    base = around(rng, count, level, 0.003)
    if rng.random() < 0.5:
        every = rng.randint(2, max(count // 10, 2))
        base = added(base, _now_and_then(rng, count, every, 1, level * rng.uniform(0.01, 0.2)))

    def draw() -> Series:
        start, sizes = _start(rng, count), _law(rng, 0.5)
        gap, back = max(_gap(rng, count - start, 16), 1), rng.uniform(0.2, 0.75)
        slow = rng.randint(1, max(gap - 1, 1))
        jitter, steps, at = rng.choice((0, 0, gap // 3)), [0.0] * count, start
        while at < count:
            size = sizes()
            steps[at] += size
            for turn in range(1, slow + 1):
                if at + turn < count:
                    steps[at + turn] -= size * back / slow
            at += max(gap + rng.randint(-jitter, jitter), 1)
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def speculative_decoder_orphans_pages_of_rejected_drafts(rng: random.Random) -> Series:
    """Drafts tokens in every step, and does not give back the pages of all that were rejected."""
    count, level = some_length(rng), some_level(rng)
    draft, accepted = rng.randint(2, 12), rng.uniform(0.3, 0.85)
    rejected: Series = []
    for _ in range(count):
        taken = 0
        while taken < draft and rng.random() < accepted:
            taken += 1
        rejected.append(float(draft - taken))
    page = level * log_uniform(rng, 0.0005, 0.02)
    bursts = log_uniform(rng, 0.01, 0.15)
    burst = level * rng.choice((0.0, rng.uniform(0.01, 0.3)))
    load = [burst * min(rng.expovariate(1.0), 3.0) * (rng.random() < bursts) for _ in range(count)]
    base = added(around(rng, count, level), [page * one for one in rejected], load)

    def draw() -> Series:
        lost, rough = rng.uniform(0.0, 1.0), rng.uniform(0.0, 0.9)
        steps = [(1 + lost * one) * (1 + rng.uniform(-rough, rough)) for one in rejected]
        return _summed([0.0, *steps[1:]])

    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-17")
def camera_tracker_keeps_embeddings_of_people_who_left_the_view(rng: random.Random) -> Series:
    """Follows crowds that swell and thin out, and once it matches again it keeps whom it lost."""
    count, level = some_length(rng), some_level(rng)
    wave = max(count / rng.uniform(6.0, 14.0), 3.0)
    shift, swell = rng.uniform(0.0, 2 * math.pi), rng.uniform(0.3, 1.0)
    crowd = [1 + swell * math.sin(2 * math.pi * at / wave + shift) for at in range(count)]
    tracked = level * log_uniform(rng, 0.002, 0.15)
    base = added(around(rng, count, level, 0.001), [tracked * one for one in crowd])

    def draw() -> Series:
        start, sizes = rng.randint(max(count // 10, 2), int(0.42 * count)), _law(rng, 0.6)
        people = log_uniform(rng, 40.0, 600.0) / (count - start)
        steps = [0.0] * count
        for at in range(start, count):
            left = poisson(rng, min(people * crowd[at], 20.0))
            steps[at] = math.fsum(sizes() for _ in range(left))
        return _summed(steps)

    return leaking(rng, base, drawn_until_enough(draw), level)
