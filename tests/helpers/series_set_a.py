# SPDX-License-Identifier: Apache-2.0
"""Set a: programs of simulation, search and design, with driftless walks among the steady ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

from series_families import (
    Series,
    added,
    around,
    drawn_until_enough,
    family,
    in_blocks,
    leaking,
    log_uniform,
    poisson,
    some_length,
    some_level,
    steady,
)

# --- what several programs have in common ---


def _law(rng: random.Random) -> Callable[[], float]:
    kind = rng.randrange(6)
    if kind == 0:
        return lambda: 1.0
    if kind == 1:
        large, share = rng.uniform(1.5, 4.0), rng.uniform(0.1, 0.6)
        return lambda: large if rng.random() < share else 1.0
    if kind == 2:
        least = rng.uniform(0.1, 0.9)
        return lambda: rng.uniform(least, 1.0)
    if kind == 3:
        spread = rng.uniform(0.1, 0.8)
        return lambda: rng.lognormvariate(0.0, spread)
    if kind == 4:
        return lambda: 0.1 + rng.expovariate(1.0)
    powers = rng.randint(1, 3)
    return lambda: math.pow(2.0, rng.randint(0, powers))


def _spells(rng: random.Random, count: int, busy: float, calm: float) -> list[bool]:
    state = rng.random() < busy / (busy + calm)
    found = []
    for _ in range(count):
        found.append(state)
        if rng.random() < 1.0 / (busy if state else calm):
            state = not state
    return found


def _quiet(rng: random.Random, count: int, level: float) -> Series:
    return around(rng, count, level, log_uniform(rng, 0.0002, 0.006))


def _every(rng: random.Random, count: int, period: int, height: float, width: int = 1) -> Series:
    first = rng.randrange(period)
    return [height if (at + first) % period < width else 0.0 for at in range(count)]


def _summed(changes: Series) -> Series:
    return list(itertools.accumulate([0.0, *changes[1:]]))


def _first_leaking(rng: random.Random, count: int) -> int:
    return rng.choice((1, 1, rng.randint(1, max(1, min(round(0.42 * count), count - 22)))))


def _chance(rng: random.Random, steps: int) -> float:
    return log_uniform(rng, min(1.0, 20 / steps), 1.0)


def _wandering(rng: random.Random, level: float, changes: Series) -> Series:
    walk = _summed(changes)
    largest = max(abs(one) for one in changes[1:]) or 1.0
    farthest = max(abs(one) for one in walk) or 1.0
    unit = level * min(log_uniform(rng, 0.004, 0.019) / largest, 0.6 / farthest)
    return [unit * one for one in walk]


# --- steady ---


@family("steady", "a")
def radiance_field_training_prunes_the_empty_cells_of_its_grid(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    last = rng.uniform(0.06, 0.42) * count
    every = rng.randint(1, max(1, round(last / 3)))
    grid, rest = level * log_uniform(rng, 0.03, 1.5), rng.uniform(0.2, 0.95)
    pruned: Series = []
    for at in range(count):
        if at and at % every == 0 and at <= last:
            grid *= rest + (1 - rest) * rng.random()
        pruned.append(grid)
    size = level * log_uniform(rng, 0.0005, 0.03)
    spread = rng.uniform(0.05, 0.6)
    rays = [size * min(rng.lognormvariate(0.0, spread), 4.0) for _ in range(count)]
    views: Series = [0.0] * count
    if rng.random() < 0.4:
        period = rng.randint(3, max(4, count // 5))
        views = _every(rng, count, period, level * rng.uniform(-0.1, 0.3), rng.randint(1, 2))
    return steady(rng, added(_quiet(rng, count, level), pruned, rays, views), 0.4 * level)


@family("steady", "a")
def molecule_beam_search_widens_its_beam_and_drops_it_for_each_target(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    longest = rng.randint(3, max(4, count // 7))
    shortest = rng.randint(2, longest)
    growth, width = rng.uniform(1.2, 4.0), log_uniform(rng, 4.0, 200.0)
    law, fixed = _law(rng), rng.random() < 0.4
    whole = level * log_uniform(rng, 0.01, 0.8)
    frontier: Series = []
    skipped = rng.randrange(longest)
    while len(frontier) < count + skipped:
        steps, kept, size = rng.randint(shortest, longest), 1.0, 1.0 if fixed else law()
        size = min(size, 5.0)
        for _ in range(steps):
            frontier.append(whole * size * min(kept, width) / width)
            kept *= growth * rng.uniform(0.8, 1.2)
    base = _quiet(rng, count, level)
    return steady(rng, added(base, frontier[skipped : skipped + count]), 0.3 * level)


@family("steady", "a")
def subtitle_service_interleaves_streams_whose_caches_end_with_each_sentence(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    streams = rng.randint(1, 16)
    longest = rng.randint(3, max(4, min(count // 7, 60)))
    shortest = rng.randint(2, longest)
    page = rng.choice((1, 1, 2, 4))
    before = longest * rng.choice((0, 1, 4))
    tokens = [0.0] * count
    for _ in range(streams):
        at = -before
        while at < count:
            length = rng.randint(shortest, longest)
            for step in range(max(at, 0), min(at + length, count)):
                tokens[step] += math.ceil((step - at + 1) / page) * page
            at += length
            if rng.random() < 0.2:
                at += rng.randint(1, 3)
    unit = level * log_uniform(rng, 0.01, 1.0) / (streams * longest)
    base = _quiet(rng, count, level)
    return steady(rng, added(base, [unit * one for one in tokens]), 0.3 * level)


@family("steady", "a")
def granular_flow_simulator_enlarges_its_contact_lists_until_they_fit(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    times = rng.randint(1, 6)
    last = rng.uniform(0.04, 0.42) * count
    at_steps = sorted(rng.uniform(0.0, last) for _ in range(times))
    factor = rng.choice((1.25, 1.5, 2.0, 2.0))
    final = level * log_uniform(rng, 0.05, 1.2)
    lists: Series = []
    for at in range(count):
        missing = sum(1 for one in at_steps if one > at)
        lists.append(final / math.pow(factor, missing))
    copied = rng.random() < 0.5
    for one in at_steps:
        if copied:
            lists[math.ceil(one)] *= 1 + 1 / factor
    burst = level * log_uniform(rng, 0.001, 0.15)
    busy = _spells(rng, count, rng.uniform(1.0, 3.0), rng.uniform(2.0, 12.0))
    contacts = [burst * rng.uniform(0.3, 1.0) if one else 0.0 for one in busy]
    return steady(rng, added(_quiet(rng, count, level), lists, contacts), 0.3 * level)


@family("steady", "a")
def brackets_of_tiny_networks_are_halved_until_one_is_left(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    rungs = rng.randint(2, 5)
    left = rng.choice((1 / 2, 1 / 2, 1 / 3, 2 / 3))
    stay = rng.randint(1, max(1, count // (5 * rungs)))
    longer = rng.random() < 0.3 and stay * rungs * 2 < count // 4
    size = level * log_uniform(rng, 0.02, 1.5)
    law, unequal = _law(rng), rng.random() < 0.4
    skipped = rng.randrange(stay * rungs)
    found: Series = []
    while len(found) < count + skipped:
        bracket = size * (min(law(), 4.0) if unequal else 1.0)
        for rung in range(rungs):
            steps = stay + (rung * stay // rungs if longer else 0)
            found += [bracket * math.pow(left, rung)] * steps
        if rng.random() < 0.3:
            found.append(bracket * 0.05)
    base = _quiet(rng, count, level)
    return steady(rng, added(base, found[skipped : skipped + count]), 0.3 * level)


@family("steady", "a")
def continuous_depth_network_takes_more_solver_stages_on_stiff_batches(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    stages, jitter = rng.randint(4, 60), rng.uniform(0.02, 0.4)
    stage = level * log_uniform(rng, 0.02, 0.8) / stages
    stiff = rng.uniform(1.0, 2.5)
    busy = _spells(rng, count, rng.uniform(1.0, 3.0), rng.uniform(1.0, 10.0))
    memory, state = rng.choice((0.0, 0.0, 0.5)), 0.0
    settles = rng.choice((0.0, rng.uniform(0.03, 0.08) * count))
    eased = rng.uniform(0.2, 1.0) * rng.choice((1, -1)) * 0.8
    found: Series = []
    for at, one in enumerate(busy):
        state = memory * state + rng.gauss(0.0, jitter)
        mean = stages * (stiff if one else 1.0)
        if settles:
            mean *= 1 + eased * math.exp(-at / settles)
        found.append(stage * max(2, min(round(mean * math.exp(state)), 5 * stages)))
    return steady(rng, added(_quiet(rng, count, level), found), 0.3 * level)


@family("steady", "a")
def voices_of_readers_stay_loaded_until_the_shelf_is_full(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    places = rng.randint(3, max(4, min(count // 8, 60)))
    full = max(2.0, rng.uniform(0.05, 0.36) * count)
    law = _law(rng)
    shelf: Series = []
    capacity = places * sum(min(law(), 4.0) for _ in range(50)) / 50
    most, missed = places / full, log_uniform(rng, min(8 * places / count, 1.0), 1.0)
    found: Series = []
    filled = False
    for at in range(count):
        if filled:
            loads = int(rng.random() < missed)
        else:
            loads = poisson(rng, most) if at < full else math.ceil(2 * most)
        for _ in range(loads):
            shelf.append(min(law(), 4.0))
            while sum(shelf) > capacity and len(shelf) > 1:
                shelf.pop(0)
                filled = True
        found.append(sum(shelf))
    unit = level * log_uniform(rng, 0.03, 1.5) / capacity
    speech = level * log_uniform(rng, 0.0003, 0.02)
    spoken = [speech * rng.random() for _ in range(count)]
    base = _quiet(rng, count, level)
    return steady(rng, added(base, [unit * one for one in found], spoken), 0.2 * level)


# --- steady: walks ---


@family("steady", "a")
def students_of_a_shared_notebook_load_and_drop_tensors_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    chance = log_uniform(rng, min(10 / count, 0.5), 0.6)
    power = rng.uniform(0.8, 2.5)
    changes: Series = []
    for _ in range(count):
        size = min(rng.paretovariate(power), 12.0)
        changes.append(rng.choice((1, -1)) * size if rng.random() < chance else 0.0)
    noise = around(rng, count, level, log_uniform(rng, 0.00002, 0.0006))
    return steady(rng, added(noise, _wandering(rng, level, changes)), 0.0)


@family("steady", "a")
def flock_simulator_is_born_and_dies_with_momentum_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    memory = rng.choice((rng.uniform(-0.3, 0.3), rng.uniform(0.3, 0.8)))
    tailed = rng.random() < 0.4
    going = rng.gauss(0.0, 1.0) / math.sqrt(1 - memory * memory)
    changes: Series = []
    for _ in range(count):
        shock = rng.gauss(0.0, 1.0)
        if tailed:
            shock *= min(rng.lognormvariate(0.0, 0.5), 4.0)
        going = memory * going + shock
        changes.append(going)
    noise = around(rng, count, level, 0.0003 * rng.random())
    return steady(rng, added(noise, _wandering(rng, level, changes)), 0.0)


@family("steady", "a")
def odds_maker_opens_and_settles_bets_in_busy_and_calm_spells_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    longest, busy = min(25.0, count / 8), [False]
    while sum(busy) < 5:
        lengths = log_uniform(rng, 2.0, longest), log_uniform(rng, 2.0, longest)
        busy = _spells(rng, count, *lengths)
    calm, two_sided = rng.choice((0.0, rng.uniform(0.2, 0.5))), rng.random() < 0.5
    law = _law(rng)
    changes: Series = []
    for one in busy:
        size = min(law(), 5.0) * rng.choice((1, -1)) if two_sided else rng.gauss(0.0, 1.0)
        changes.append(size * (1.0 if one else calm))
    noise = around(rng, count, level, log_uniform(rng, 0.00002, 0.0004))
    return steady(rng, added(noise, _wandering(rng, level, changes)), 0.0)


@family("steady", "a")
def scene_editor_adds_and_deletes_meshes_of_a_few_sizes_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    sizes = [log_uniform(rng, 1.0, 6.0) for _ in range(rng.randint(1, 3))]
    mean = log_uniform(rng, min(6 / count, 0.3), 3.0)
    changes: Series = []
    for _ in range(count):
        come = math.fsum(rng.choice(sizes) for _ in range(poisson(rng, mean)))
        gone = math.fsum(rng.choice(sizes) for _ in range(poisson(rng, mean)))
        changes.append(come - gone)
    drawn = level * rng.choice((0.0, log_uniform(rng, 0.0002, 0.002)))
    frames = [drawn * rng.random() for _ in range(count)]
    walk = _wandering(rng, level, changes)
    return steady(rng, added([level] * count, walk, frames), 0.0)


# --- garbage in cycles ---


@family("cycle_garbage", "a")
def proof_search_leaves_trees_with_parent_links_to_the_collector(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    interval = count / rng.uniform(5.0, max(5.5, min(count / 5, 30.0)))
    jitter = rng.choice((0.0, rng.uniform(0.0, 0.25)))
    mean = log_uniform(rng, max(0.6, 6 / interval), 8.0)
    law, minor = _law(rng), rng.choice((0.0, 0.0, rng.uniform(0.05, 0.2)))
    kept = rng.uniform(0.3, 0.8)
    pile, due = 0.0, interval * rng.uniform(0.3, 1.0)
    piles: Series = []
    for at in range(count):
        if at >= due:
            pile, due = 0.0, due + interval * rng.uniform(1 - jitter, 1 + jitter)
        else:
            if rng.random() < minor:
                pile *= kept
            pile += math.fsum(law() for _ in range(poisson(rng, mean)))
        piles.append(pile)
    height = level * log_uniform(rng, 0.02, 1.2)
    unit = height / max(piles)
    noise = around(rng, count, level, 0.02 * height / level * rng.random())
    return in_blocks(noise, [unit * one for one in piles])


# --- leaks ---


@family("leak", "a")
def herbarium_classifier_keeps_the_saliency_maps_of_disputed_leaves(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    swing = level * log_uniform(rng, 0.0005, 0.05)
    requests = [swing * rng.random() for _ in range(count)]

    def draw() -> Series:
        first, law = _first_leaking(rng, count), _law(rng)
        chance = _chance(rng, count - first)
        return _summed(
            [law() if at >= first and rng.random() < chance else 0.0 for at in range(count)]
        )

    base = added(_quiet(rng, count, level), requests)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def tuner_keeps_the_best_weights_of_every_abandoned_trial(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    longest = rng.randint(2, max(2, count // 18))
    shortest = rng.randint(1, longest) if longest > 2 else 1
    unequal = level * log_uniform(rng, 0.002, 0.1)
    bent = rng.uniform(0.3, 1.0)
    ends: list[int] = []
    trials: Series = []
    while len(trials) < count:
        steps, size = rng.randint(shortest, longest), unequal * rng.random()
        trials += [size * (bent if step == 0 else 1.0) for step in range(steps)]
        ends.append(len(trials))
    over = {one for one in ends if one < count}
    share = rng.choice((1.0, rng.uniform(0.75, 1.0)))

    def draw() -> Series:
        law = _law(rng)
        return _summed(
            [law() if at in over and rng.random() < share else 0.0 for at in range(count)]
        )

    if len(over) < 14:
        over = set(range(1, count, 2))
    base = added(_quiet(rng, count, level), trials[:count])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def archive_of_novel_gaits_admits_ever_fewer_but_never_forgets(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    power = rng.uniform(0.65, 0.95)
    born = level * log_uniform(rng, 0.0005, 0.04)
    young = [born * rng.betavariate(2.0, 3.0) for _ in range(count)]

    def draw() -> Series:
        law = _law(rng)
        whole = log_uniform(rng, max(30.0, count / 4), max(150.0, 3.0 * count))
        means = [0.0] + [
            whole * (math.pow(at / count, power) - math.pow((at - 1) / count, power))
            for at in range(1, count)
        ]
        return _summed([math.fsum(law() for _ in range(poisson(rng, one))) for one in means])

    base = added(_quiet(rng, count, level), young)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def crystal_energies_compile_a_graph_with_workspace_for_each_new_cell(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    spread, size = rng.uniform(0.1, 0.7), level * log_uniform(rng, 0.001, 0.1)
    cells = [size * min(rng.lognormvariate(0.0, spread), 4.0) for _ in range(count)]
    workspace = rng.choice((0.0, rng.uniform(0.0, 0.8)))

    def draw() -> Series:
        first, found = _first_leaking(rng, count), [0.0] * count
        chance = _chance(rng, count - first)
        for at in range(first, count):
            if rng.random() < chance:
                found[at] = (1 - workspace) + workspace * cells[at] / (4 * size)
        return _summed(found)

    base = added(_quiet(rng, count, level), cells)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def probes_are_hooked_again_at_each_checkup_and_hold_ever_more(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    period = rng.randint(1, max(1, count // 18))
    phase = rng.randrange(period)
    power = rng.uniform(0.1, 0.45)
    uneven = rng.uniform(0.0, 0.5)
    height = level * rng.choice((0.0, log_uniform(rng, 0.003, 0.2)))
    checks: Series = [height if at % period == phase else 0.0 for at in range(count)]
    if period == 1:
        checks = [0.0] * count

    def draw() -> Series:
        found, times = [0.0] * count, 0
        for at in range(1, count):
            if at % period == phase:
                times += 1
                found[at] = math.pow(times, power) * rng.uniform(1 - uneven, 1.0)
        return _summed(found)

    base = added(_quiet(rng, count, level), checks)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def go_player_trims_only_some_branches_of_the_games_it_remembers(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    game = rng.randint(2, max(3, count // 10))
    back = rng.uniform(0.1, 0.65)
    jitter = rng.choice((0.0, rng.uniform(0.1, 0.4)))

    def draw() -> Series:
        law = _law(rng)
        found: Series = [0.0] * count
        new, due = 0.0, float(game)
        for at in range(1, count):
            if at >= due:
                found[at], new = -back * new, 0.0
                due += game * rng.uniform(1 - jitter, 1 + jitter)
            else:
                found[at] = law()
                new += found[at]
        return _summed(found)

    return leaking(rng, _quiet(rng, count, level), drawn_until_enough(draw), level)


@family("leak", "a")
def dropped_video_calls_leave_their_background_masks_in_bursts(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    call = level * log_uniform(rng, 0.0005, 0.01)
    capacity = rng.randint(4, 40)
    calls = float(rng.randint(0, capacity))
    open_calls: Series = []
    for _ in range(count):
        calls += round((capacity / 2 - calls) * 0.4) + rng.randint(-2, 2)
        open_calls.append(call * max(calls, 0.0) / math.sqrt(capacity))

    def draw() -> Series:
        bad = log_uniform(rng, 1.5, max(2.0, count / 40))
        good = bad * rng.uniform(0.4, 1.0 if count < 60 else 3.0)
        mean, rest = log_uniform(rng, 0.8, 4.0), rng.choice((0.0, 0.05))
        law = _law(rng)
        return _summed(
            [
                math.fsum(law() for _ in range(poisson(rng, mean if one else rest)))
                for one in _spells(rng, count, bad, good)
            ]
        )

    base = added(_quiet(rng, count, level), open_calls)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def curvature_scan_chains_the_sum_of_its_losses_by_their_graphs(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    row = rng.randint(3, max(4, count // 8))
    swing = level * rng.choice((0.0, log_uniform(rng, 0.001, 0.15)))
    kind, first = rng.randrange(3), rng.randrange(row)
    scan: Series = []
    for at in range(count):
        part = (at + first) % row / row
        form = (part, math.sin(2 * math.pi * part), float(part < 0.5))[kind]
        scan.append(swing * form)
    uneven = rng.choice((0.0, rng.uniform(0.0, 0.9)))
    edge = rng.choice((1.0, rng.uniform(0.0, 3.0)))

    def draw() -> Series:
        return _summed(
            [
                rng.uniform(1 - uneven, 1.0) * (edge if (at + first) % row == 0 else 1.0)
                for at in range(count)
            ]
        )

    base = added(_quiet(rng, count, level), scan)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def turbine_monitor_keeps_suspicious_windows_since_an_alarm(rng: random.Random) -> Series:
    count, level = some_length(rng, 40), some_level(rng)
    alarm = round(count * rng.uniform(0.12, 0.42))
    size = level * log_uniform(rng, 0.0003, 0.03)
    period = rng.randint(2, max(3, count // 8))
    reports = _every(rng, count, period, size * rng.uniform(0.0, 3.0))
    windows = [size * rng.triangular() for _ in range(count)]

    def draw() -> Series:
        law, share = _law(rng), log_uniform(rng, min(1.0, 22 / (count - alarm)), 1.0)
        faster = rng.choice((0.0, rng.uniform(0.0, 1.5)))
        found: Series = [0.0] * count
        for at in range(alarm, count):
            if rng.random() < share:
                found[at] = law() * (1 + faster * (at - alarm) / (count - alarm))
        return _summed(found)

    base = added(_quiet(rng, count, level), windows, reports)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "a")
def federated_server_never_frees_the_updates_of_devices_that_drop_out(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    period = rng.randint(2, max(2, count // 20))
    update = level * log_uniform(rng, 0.001, 0.2) / period
    rounds = [update * (at % period) * rng.uniform(0.8, 1.0) for at in range(count)]
    at_end = rng.random() < 0.5 and count // period >= 15

    def draw() -> Series:
        law = _law(rng)
        mean = log_uniform(rng, 1.5, 8.0)
        found: Series = [0.0] * count
        for at in range(1, count):
            if not at_end:
                found[at] = math.fsum(law() for _ in range(poisson(rng, mean / period)))
            elif at % period == 0:
                found[at] = math.fsum(law() for _ in range(poisson(rng, mean)))
        if not at_end and mean / period * count < 20:
            found = [one + (law() if rng.random() < 0.7 else 0.0) for one in found]
        return _summed(found)

    base = added(_quiet(rng, count, level), rounds)
    return leaking(rng, base, drawn_until_enough(draw), level)
