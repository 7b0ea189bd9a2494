# SPDX-License-Identifier: Apache-2.0
"""Set b: programs of serving and training, with driftless walks among the steady ones."""

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
    leaking,
    log_uniform,
    poisson,
    some_length,
    some_level,
    steady,
)


def _sizes(rng: random.Random) -> Callable[[], float]:
    kind = rng.choice(("equal", "few", "exponential", "lognormal", "pareto", "uniform"))
    spread = rng.uniform(0.2, 1.0)
    few = [log_uniform(rng, 0.3, 3.0) for _ in range(rng.randint(2, 5))]
    tail = rng.uniform(1.3, 3.0)

    def one() -> float:
        if kind == "equal":
            return 1.0
        if kind == "few":
            return rng.choice(few)
        if kind == "exponential":
            return min(rng.expovariate(1.0), 8.0) + 0.01
        if kind == "lognormal":
            return min(rng.lognormvariate(-spread * spread / 2, spread), 10.0)
        if kind == "pareto":
            return min(rng.paretovariate(tail), 12.0) * (tail - 1) / tail
        return rng.uniform(1 - spread, 1 + spread) + 0.01

    return one


def _piled(sizes: Series) -> Series:
    return list(itertools.accumulate(sizes[1:], initial=0.0))


def _begin(rng: random.Random, count: int) -> int:
    return rng.choice((0, 0, round(rng.uniform(0.0, 0.42) * count)))


def _quiet(rng: random.Random, count: int, level: float) -> Series:
    return around(rng, count, level, log_uniform(rng, 0.0003, 0.008))


def _spells(rng: random.Random, count: int, calm: float, busy: float) -> list[bool]:
    now = rng.random() < busy / (calm + busy)
    found = []
    for _ in range(count):
        found.append(now)
        if rng.random() < 1 / max(busy if now else calm, 1.0):
            now = not now
    return found


def _every(rng: random.Random, count: int, least: float, most: float) -> int:
    return max(round(count / log_uniform(rng, least, most)), 2)


def _wandering(level: float, changes: Series) -> Series:
    changes = [min(max(one, -0.0199), 0.0199) for one in changes]
    walk = list(itertools.accumulate(changes[1:], initial=0.0))
    farthest = max(abs(one) for one in walk)
    factor = min(1.0, 0.7 / farthest) if farthest else 1.0
    return [level * (1.0 + factor * one) for one in walk]


def _jitter(rng: random.Random, count: int, level: float) -> Series:
    size, values = level * log_uniform(rng, 0.0002, 0.002), rng.randint(1, 4)
    return [size * rng.randint(-values, values) / values for _ in range(count)]


@family("steady", "b")
def speculative_decoding_with_a_draft_length_that_follows_acceptance(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    most, width = rng.randint(3, 16), rng.choice((1, 1, 2, 4))
    easy, hard = rng.uniform(0.55, 0.9), rng.uniform(0.1, 0.5)
    spells = _spells(rng, count, rng.uniform(1, count / 25 + 1), rng.uniform(1, count / 25 + 1))
    token = level * log_uniform(rng, 0.0005, 0.02) / width
    harsh = rng.random() < 0.5
    draft, found = rng.randint(1, most), []
    for spell in spells:
        accepted = 0
        while accepted < draft and rng.random() < (easy if spell else hard) ** (1 / width):
            accepted += 1
        found.append(token * (draft * width + accepted))
        if accepted == draft:
            draft = min(draft + rng.choice((1, 2)), most)
        else:
            draft = max(accepted if harsh else draft - 1, 1)
    return steady(rng, added(_quiet(rng, count, level), found), 0.5 * level)


@family("steady", "b")
def prefix_tree_of_shared_prompts_evicted_down_to_a_low_watermark(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    full = max(round(count * log_uniform(rng, 0.03, 0.4)), 2)
    size, hits = _sizes(rng), rng.uniform(0.0, 0.8)
    room = level * log_uniform(rng, 0.05, 3.0)
    brought = [0.0 if rng.random() < hits else size() for _ in range(count)]
    brought[0] = size()
    unit = room / math.fsum(brought[:full])
    gap = min(rng.uniform(0.01, 0.25) * room, unit * math.fsum(brought) / 14)
    held, found = 0.0, []
    for one in brought:
        held += min(one * unit, room)
        if held > room:
            held = room - gap * rng.uniform(0.8, 1.0)
        found.append(held)
    return steady(rng, added(_quiet(rng, count, level), found), 0.2 * level)


@family("steady", "b")
def checkpoint_copied_on_the_device_and_drained_by_a_background_upload(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    often, kinds = _every(rng, count, 7, 60), rng.choice((1, 1, 2, 3))
    if often * kinds > count / 6:
        kinds = 1
    copies = [level * log_uniform(rng, 0.01, 0.6) for _ in range(kinds)]
    shards, drain = rng.randint(1, 8), rng.uniform(0.2, 1.0) * often
    waits, phase = rng.uniform(0.0, 0.4), rng.randrange(often)
    found = []
    for at in range(count):
        number, since = divmod(at + phase, often)
        part = min(max((since - waits * often) / max(drain, 1.0), 0.0), 1.0)
        left = math.ceil((1.0 - part) * shards) / shards if since < often * 0.95 else 0.0
        found.append(copies[number % kinds] * left)
    return steady(rng, added(_quiet(rng, count, level), found), 0.4 * level)


@family("steady", "b")
def sparse_experts_whose_fullest_one_sets_the_rounded_up_buffers(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    experts, layers = rng.choice((4, 8, 16, 32)), rng.randint(1, 3)
    uneven, soon = rng.uniform(0.05, 0.6), count * log_uniform(rng, 0.005, 0.07)
    early = rng.choice((0.0, rng.uniform(0.1, 1.5)))
    grain, room = rng.choice((0.02, 0.1, 0.25, 0.5)), level * log_uniform(rng, 0.01, 0.5)
    found = []
    for at in range(count):
        whole = 0.0
        spread = uneven * (1.0 + early * math.exp(-at / soon))
        for _ in range(layers):
            fullest = max(rng.gauss(0.0, spread) for _ in range(experts))
            whole += math.ceil(math.exp(min(fullest, 2.5)) / grain) * grain
        found.append(room * whole / layers)
    return steady(rng, added(_quiet(rng, count, level), found), 0.5 * level)


@family("steady", "b")
def server_that_captures_a_graph_for_each_batch_size_then_only_replays(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    until = max(round(count * log_uniform(rng, 0.05, 0.42)), 3)
    graphs, lazy = rng.randint(3, 40), rng.random() < 0.5
    shared, power = rng.uniform(0.0, 0.9), rng.uniform(0.0, 1.2)
    costs = [(1 - shared) * ((k + 1) / graphs) ** power + 0.02 for k in range(graphs)]
    costs.reverse()
    costs[0] += shared
    unit = level * log_uniform(rng, 0.03, 1.0) / math.fsum(costs)
    seen: set[int] = set()
    found, skew = [], rng.uniform(1.0, 2.5)
    running = level * log_uniform(rng, 0.0005, 0.02)
    for at in range(count):
        batch = min(int(graphs * rng.random() ** skew), graphs - 1)
        if at < until:
            seen.update([batch] if lazy else range(math.ceil(graphs * (at + 1) / until)))
        used = running * batch / graphs if at >= until or lazy else 0.0
        found.append(unit * math.fsum(costs[one] for one in seen) + used)
    return steady(rng, added(_quiet(rng, count, level), found), 0.1 * level)


@family("steady", "b")
def adapters_of_many_ranks_swapped_through_a_few_device_slots(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    slots, known = rng.randint(2, 12), rng.randint(20, 300)
    ranks = [float(rng.choice((4, 8, 8, 16, 16, 32, 64))) for _ in range(known)]
    popular = [(k + 1) ** -rng.uniform(0.1, 0.8) for k in range(known)]
    unit = level * log_uniform(rng, 0.02, 0.5) / (slots * 20)
    asked = rng.randint(2, 8) + slots // 3
    used: dict[int, None] = {}
    found = []
    for batch in range(count):
        for one in rng.choices(range(known), popular, k=asked if batch else asked + 2 * slots):
            used.pop(one, None)
            used[one] = None
            if len(used) > slots:
                del used[next(iter(used))]
        found.append(unit * math.fsum(ranks[one] for one in used))
    return steady(rng, added(_quiet(rng, count, level), found), 0.3 * level)


@family("steady", "b")
def kernel_search_that_tries_workspaces_and_settles_on_the_fastest(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    until = max(round(count * log_uniform(rng, 0.04, 0.45)), 2)
    operators = rng.randint(1, min(6, until))
    most, spread = level * log_uniform(rng, 0.02, 0.8), rng.uniform(0.3, 1.3)
    best = [most * rng.uniform(0.0, 0.3) for _ in range(operators)]
    before = [most * rng.uniform(0.0, 0.6) for _ in range(operators)]
    layouts = [most * rng.choice((0.0, rng.uniform(0.0, 0.2))) for _ in range(rng.randint(1, 6))]
    found = []
    for at in range(count):
        tuned = min(at * operators // until, operators)
        held = math.fsum(best[:tuned]) + math.fsum(before[tuned:])
        if at < until:
            held += most * min(rng.lognormvariate(-1.0, spread), 3.0)
        found.append(held + layouts[at % len(layouts)])
    return steady(rng, added(_quiet(rng, count, level), found), 0.2 * level)


@family("steady", "b")
def decode_pool_whose_requests_migrate_in_and_out_alike_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    size, rate = _sizes(rng), log_uniform(rng, 0.1, 6.0)
    unit = log_uniform(rng, 0.0004, 0.006) / math.sqrt(1.0 + rate)
    changes = []
    for _ in range(count):
        came = math.fsum(size() for _ in range(poisson(rng, rate)))
        went = math.fsum(size() for _ in range(poisson(rng, rate)))
        changes.append(unit * (came - went))
    return steady(rng, _wandering(level, changes), 0.0)


@family("steady", "b")
def dynamic_graph_store_with_edges_put_in_and_cut_in_bursts_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    spells = _spells(rng, count, rng.uniform(2, 30), rng.uniform(2, 20))
    busy = log_uniform(rng, 0.001, 0.012)
    calm, idle = max(busy * rng.choice((0.1, 0.3)), 0.0003), rng.uniform(0.0, 0.7)
    heavy, changes = rng.random() < 0.5, []
    for spell in spells:
        one = rng.expovariate(1.0) if heavy else abs(rng.gauss(0.0, 1.0))
        one *= rng.choice((-1.0, 1.0)) * (busy if spell else calm)
        changes.append(0.0 if not spell and rng.random() < idle else one)
    if not any(changes[1:]):
        changes[count // 2] = rng.choice((-busy, busy))
    return steady(rng, _wandering(level, changes), 0.0)


@family("steady", "b")
def tenants_given_and_taken_pages_by_a_broker_with_momentum_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    unit, keeps = log_uniform(rng, 0.0005, 0.008), rng.uniform(0.2, 0.85)
    smooth, size = rng.random() < 0.5, _sizes(rng)
    way, push, changes = rng.choice((-1.0, 1.0)), rng.gauss(0.0, 1.0), []
    for _ in range(count):
        changes.append(unit * (push if smooth else way * size()))
        push = keeps * push + math.sqrt(1 - keeps * keeps) * rng.gauss(0.0, 1.0)
        if rng.random() < (1 - keeps) / 2:
            way = -way
    return steady(rng, _wandering(level, changes), 0.0)


@family("steady", "b")
def embedding_shards_traded_between_ranks_now_and_then_walk(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    often = rng.uniform(4 / count, 0.5)
    shards = [log_uniform(rng, 0.002, 0.018) for _ in range(rng.choice((1, 1, 2, 4)))]
    changes = [
        rng.choice((-1.0, 1.0)) * rng.choice(shards) if rng.random() < often else 0.0
        for _ in range(count)
    ]
    if not any(changes[1:]):
        changes[rng.randrange(1, count)] = rng.choice((-1.0, 1.0)) * shards[0]
    noise = [0.0] * count if rng.random() < 0.3 else _jitter(rng, count, level)
    return steady(rng, added(_wandering(level, changes), noise), 0.0)


@family("cycle_garbage", "b")
def request_spans_linked_in_rings_until_an_old_generation_is_collected(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    often = max(count / log_uniform(rng, 4.6, max(count / 5, 5.0)), 3.0)
    uneven = rng.choice((0.0, rng.uniform(0.0, 0.15)))
    young, left = rng.choice((1, 1, 2, 3, 5)), rng.uniform(0.3, 0.9)
    size, idle = _sizes(rng), rng.choice((0.0, 0.0, rng.uniform(0.1, 0.5)))
    unit = level * log_uniform(rng, 0.02, 1.0) / often
    due = often * rng.uniform(0.3, 1.0)
    pile, begun, looks, found = 0.0, 0.0, 0, []
    for at in range(count):
        pile += 0.0 if rng.random() < idle else unit * size()
        if at >= due:
            pile, begun, looks = 0.0, due, 0
            due += often * (1.0 + rng.uniform(-uneven, uneven))
        elif at - begun >= (looks + 1) * often / young and looks < young - 1:
            pile, looks = pile * left, looks + 1
        found.append(pile)
    return steady(rng, added(_quiet(rng, count, level), found), 0.2 * level)


@family("leak", "b")
def streaming_server_that_never_returns_pages_of_cancelled_streams(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    batch = level * log_uniform(rng, 0.001, 0.03)
    running = [batch * poisson(rng, 4.0) / 4 for _ in range(count)]

    def draw() -> Series:
        rate, size, begin = log_uniform(rng, 16 / count, 2.0), _sizes(rng), _begin(rng, count)
        return _piled(
            [
                math.fsum(size() for _ in range(poisson(rng, rate))) if at >= begin else 0.0
                for at in range(count)
            ]
        )

    base = added(_quiet(rng, count, level), running)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "b")
def compiler_that_keeps_a_plan_for_every_exact_length_it_ever_met(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        tail, asked = rng.uniform(0.3, 1.2), rng.choice((1, 1, 2, 4))
        scale, power = log_uniform(rng, 1.0, 40.0), rng.choice((0.0, 0.3))
        size, met = _sizes(rng), set[int]()
        new = []
        for _ in range(count):
            lengths = {int(scale * min(rng.paretovariate(tail), 1e9)) for _ in range(asked)}
            cost = math.fsum(size() * (1 + math.log(one)) ** power for one in lengths - met)
            met |= lengths
            new.append(cost)
        return _piled(new)

    lengths = [rng.lognormvariate(0.0, 0.4) for _ in range(count)]
    room = level * log_uniform(rng, 0.0005, 0.02)
    base = added(_quiet(rng, count, level), [room * min(one, 4.0) for one in lengths])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "b")
def tracer_that_holds_tensors_of_each_scheduled_window(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        often = _every(rng, count, 6, 30)
        window = max(round(often * rng.uniform(0.1, 0.7)), 1)
        begin, phase, size = _begin(rng, count), rng.randrange(often), _sizes(rng)
        return _piled(
            [
                size() if at >= begin and (at + phase) % often < window else 0.0
                for at in range(count)
            ]
        )

    return leaking(rng, _quiet(rng, count, level), drawn_until_enough(draw), level)


@family("leak", "b")
def elastic_job_that_forgets_the_old_communicator_at_each_resize(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    shares = [rng.uniform(0.0, 1.0) for _ in range(rng.randint(2, 4))]
    room = level * log_uniform(rng, 0.002, 0.05)
    resizes: list[int] = []

    def draw() -> Series:
        rest, begin = rng.randint(1, max(count // 18, 1)), _begin(rng, count)
        uneven, size = rng.uniform(0.0, 0.8), rng.choice((lambda: 1.0, _sizes(rng)))
        resizes[:] = [begin + rng.randint(1, rest)]
        while resizes[-1] < count:
            resizes.append(resizes[-1] + max(round(rest * rng.uniform(1 - uneven, 1 + uneven)), 1))
        chosen = set(resizes)
        return _piled([size() if at in chosen else 0.0 for at in range(count)])

    kept = drawn_until_enough(draw)
    chosen, share, held = set(resizes), shares[0], []
    for at in range(count):
        share = rng.choice(shares) if at in chosen else share
        held.append(room * share)
    return leaking(rng, added(_quiet(rng, count, level), held), kept, level)


@family("leak", "b")
def retrieval_index_that_appends_each_query_in_chunks_beside_reranking(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    often, room = rng.randint(2, max(count // 8, 3)), level * log_uniform(rng, 0.002, 0.2)
    takes = rng.randint(1, max(often // 3, 1))
    reranking = [room if at % often < takes else 0.0 for at in range(count)]

    def draw() -> Series:
        size, begin = _sizes(rng), _begin(rng, count)
        chunk = rng.uniform(1.0, max(count / 20, 1.5))
        kept, filled = [], 0.0
        for at in range(count):
            filled += size() if at >= begin else 0.0
            kept.append(chunk * math.floor(filled / chunk))
        return [one - kept[0] for one in kept]

    base = added(_quiet(rng, count, level), reranking)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "b")
def retried_batches_whose_tracebacks_free_but_part_of_what_they_held(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)

    def draw() -> Series:
        rate, size, begin = log_uniform(rng, 18 / count, 0.9), _sizes(rng), _begin(rng, count)
        back, later = rng.uniform(0.1, 0.6), rng.uniform(1.0, max(count / 30, 2.0))
        changes = [0.0] * count
        for at in range(max(begin, 1), count):
            if rng.random() < rate:
                one, then = size(), at + 1 + int(rng.expovariate(1 / later))
                changes[at] += one
                if then < count:
                    changes[then] -= back * one
        return _piled(changes)

    return leaking(rng, _quiet(rng, count, level), drawn_until_enough(draw), level)


@family("leak", "b")
def validation_that_hooks_the_model_once_more_each_time_it_runs(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    often = _every(rng, count, 5, 25)
    peak = level * rng.choice((0.0, log_uniform(rng, 0.005, 0.3)))
    validating = [peak if at % often == often - 1 else 0.0 for at in range(count)]

    def draw() -> Series:
        first, size = rng.uniform(2.0, 12.0), _sizes(rng)
        share = rng.choice((1.0, rng.uniform(0.2, 1.0)))
        return _piled(
            [
                (first + 25.0 * often / count * (at // often)) * size()
                if rng.random() < share
                else 0.0
                for at in range(count)
            ]
        )

    base = added(_quiet(rng, count, level), validating)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "b")
def self_play_search_that_leaves_branches_of_each_finished_game(rng: random.Random) -> Series:
    count, level = some_length(rng, 40), some_level(rng)
    tree, bent = level * log_uniform(rng, 0.005, 0.15), rng.uniform(0.4, 1.2)
    ends: list[int] = []
    lasts: list[int] = []

    def draw() -> Series:
        most, size = rng.uniform(1.5, count / 16), _sizes(rng)
        ends.clear()
        lasts.clear()
        at = -rng.randrange(max(round(most), 1))
        while at < count:
            lasts.append(max(round(most * rng.uniform(0.5, 1.3)), 1))
            at += lasts[-1]
            ends.append(at)
        chosen = set(ends)
        return _piled([size() if at in chosen else 0.0 for at in range(count)])

    kept = drawn_until_enough(draw)
    mean, game, trees = sum(lasts) / len(lasts), 0, []
    for at in range(count):
        if at >= ends[game]:
            game += 1
        trees.append(tree * (max(at - ends[game] + lasts[game], 0) / mean) ** bent)
    return leaking(rng, added(_quiet(rng, count, level), trees), kept, level)


@family("leak", "b")
def chat_sessions_never_closed_under_a_daily_wave_of_users(rng: random.Random) -> Series:
    count, level = some_length(rng), some_level(rng)
    day, phase = count / rng.uniform(3.0, 12.0), rng.random()
    swing, room = rng.uniform(0.2, 1.0), level * log_uniform(rng, 0.003, 0.08)
    turns = [math.sin(2 * math.pi * (at / day + phase)) for at in range(count)]

    def draw() -> Series:
        rate, size, begin = log_uniform(rng, 30 / count, 8.0), _sizes(rng), _begin(rng, count)
        return _piled(
            [
                math.fsum(size() for _ in range(poisson(rng, rate * (1 + swing * turns[at]))))
                if at >= begin
                else 0.0
                for at in range(count)
            ]
        )

    base = added(_quiet(rng, count, level), [room * one for one in turns])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "b")
def reward_model_whose_rare_branch_appends_to_a_list_with_its_graph(
    rng: random.Random,
) -> Series:
    count, level = some_length(rng), some_level(rng)
    batch = level * log_uniform(rng, 0.0005, 0.02)
    lengths = [batch * rng.triangular(0.0, 2.0, 0.7) for _ in range(count)]

    def draw() -> Series:
        calm, busy = rng.uniform(1.0, count / 15), rng.uniform(1.0, count / 15 + 1)
        spells, begin = _spells(rng, count, calm, busy), _begin(rng, count)
        size, drip = _sizes(rng), rng.choice((0.0, rng.uniform(0.02, 0.4)))
        return _piled(
            [size() * (1.0 if spells[at] else drip) if at >= begin else 0.0 for at in range(count)]
        )

    base = added(_quiet(rng, count, level), lengths)
    return leaking(rng, base, drawn_until_enough(draw), level)
