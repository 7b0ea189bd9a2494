# SPDX-License-Identifier: Apache-2.0
"""The fifteenth held-out set of families of series: written without a look at the method.

Its rules are those of the twelfth set (trend_families_twelfth.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import OrderedDict

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


def _onset(rng: random.Random, count: int) -> int:
    """The step from which a program leaks: the first one, or one before half."""
    return rng.choice((0, rng.randint(0, 2 * count // 5)))


def _piled(gains: Series) -> Series:
    return list(itertools.accumulate(gains))


def _padded_batches(rng: random.Random, count: int, most: float) -> Series:
    """What batches take that are padded to a few lengths, or to their longest sample."""
    buckets = [rng.uniform(0.1, 1.0) for _ in range(rng.randint(2, 9))]
    samples, spread = rng.choice((4, 16, 64)), rng.uniform(0.05, 0.4)
    power, padded = rng.choice((1, 1, 2)), rng.random() < 0.5

    def one() -> float:
        if padded:
            return rng.choice(buckets)
        return min(max(rng.lognormvariate(-1.2, spread) for _ in range(samples)), 1.0)

    return [most * math.pow(one(), power) for _ in range(count)]


def _training(rng: random.Random, count: int, level: float, most: float = 0.4) -> Series:
    """Weights and optimizer states, and batches that differ in size."""
    share = level * log_uniform(rng, 0.002, most)
    return added(around(rng, count, level, 0.001), _padded_batches(rng, count, share))


def _requests(
    rng: random.Random, count: int, longest: int, share: float, growing: bool, first: int
) -> Series:
    """What requests hold, that come at random from a first step on; about a share in the mean."""
    held, rate = [0.0] * count, log_uniform(rng, 10.0, 60.0) / longest
    prompt = longest * log_uniform(rng, 0.1, 3.0)
    one = share / (rate * longest * (prompt + longest / 3 if growing else prompt) / 2)
    for start in range(first, count):
        for _ in range(poisson(rng, rate)):
            steps, size = rng.randint(1, longest), rng.uniform(0.2, 1.8) * prompt
            for at in range(max(start, 0), min(start + steps, count)):
                held[at] += one * (size + (at - start if growing else 0))
    return held


def _serving(rng: random.Random, count: int, level: float, growing: bool) -> Series:
    """Weights, and what the requests hold that are under way."""
    longest = rng.randint(2, max(count // 15, 3))
    share = level * log_uniform(rng, 0.01, 0.5)
    return added(
        around(rng, count, level, 0.0005),
        _requests(rng, count, longest, share, growing, -longest),
    )


def _slots_in_use(
    rng: random.Random, count: int, slots: int, sizes: Series, a_step: float
) -> tuple[Series, int]:
    """What slots hold of which the stalest is reused, and the step from which all are in use."""
    popular = rng.uniform(0.0, 0.7)
    weights = [math.pow(at + 1, -popular) for at in range(len(sizes))]
    slot: OrderedDict[int, float] = OrderedDict()
    held, full = [0.0] * count, count
    for at in range(count):
        for name in rng.choices(range(len(sizes)), weights, k=poisson(rng, a_step)):
            slot[name] = sizes[name]
            slot.move_to_end(name)
            if len(slot) > slots:
                slot.popitem(last=False)
        held[at] = math.fsum(slot.values())
        full = min(full, at) if len(slot) == slots else full
    return held, full


@family("steady", "held-out-15")
def low_rank_adapters_swapped_in_a_multi_tenant_server(rng: random.Random) -> Series:
    """A server loads the adapters that requests name, into slots of which the stalest is reused."""
    count, level = some_length(rng), some_level(rng)
    slots, many = rng.randint(3, 24), rng.uniform(1.3, 5.0)
    ranks = rng.sample((4, 8, 16, 32, 64, 128), rng.randint(2, 4))
    sizes = [float(rng.choice(ranks)) for _ in range(slots + math.ceil(slots * many))]
    scale = level * log_uniform(rng, 0.02, 0.6) / sum(sizes[:slots])
    sizes = [scale * size for size in sizes]
    a_step = slots * log_uniform(rng, 0.3, 3.0) * 12 / count
    held, full = _slots_in_use(rng, count, slots, sizes, a_step)
    while full > count / 8:
        a_step *= 1.3
        held, full = _slots_in_use(rng, count, slots, sizes, a_step)
    return steady(rng, added(around(rng, count, level, 0.001), held), 0.3 * level)


@family("steady", "held-out-15")
def fine_tuning_on_buckets_with_beam_search_evaluations(rng: random.Random) -> Series:
    """Fine-tuning in length buckets; every so many steps, beams are decoded with growing caches."""
    count, level = some_length(rng), some_level(rng)
    every = rng.randint(4, max(count // 5, 5))
    decoding = rng.randint(1, max(every // 2, 1))
    beams = level * log_uniform(rng, 0.01, 0.8)
    dropped = level * rng.choice((0.0, rng.uniform(0.0, 0.3)))
    phase, shape = rng.randrange(every), rng.choice((0.0, 0.5, 1.0))
    held = [0.0] * count
    for at in range(count):
        turn = (at + phase) % every - (every - decoding)
        if turn >= 0:
            held[at] = beams * math.pow((turn + 1) / decoding, shape) - dropped
    return steady(rng, added(_training(rng, count, level), held), 0.4 * level)


@family("steady", "held-out-15")
def image_service_that_denoises_and_then_decodes_latents(rng: random.Random) -> Series:
    """A service makes images of a few resolutions one after the other, and idles between them."""
    count, level = some_length(rng), some_level(rng)
    longest = max(count // 10, 3)
    kinds = [
        (rng.randint(1, longest), level * log_uniform(rng, 0.01, 0.5))
        for _ in range(rng.randint(1, 4))
    ]
    decoder, idle = rng.uniform(1.0, 2.5), rng.choice((0, 1, rng.randint(1, longest)))
    tiles, kept = rng.randint(1, 2), rng.uniform(0.0, 0.4)
    held: Series = []
    while len(held) < count + longest:
        steps, size = rng.choice(kinds)
        held += [size] * steps + [decoder * size] * tiles + [kept * size] * rng.randint(0, idle)
    start = rng.randrange(longest)
    found = added(around(rng, count, level, 0.001), held[start : start + count])
    return steady(rng, found, 0.3 * level)


@family("steady", "held-out-15")
def policy_rollouts_gathered_and_dropped_at_each_update(rng: random.Random) -> Series:
    """Transitions are gathered step by step, learned from for some epochs, and dropped."""
    count, level = some_length(rng), some_level(rng)
    gather = rng.randint(2, max(count // 10, 3))
    learn = rng.randint(1, max(count // 20, 2))
    height, extra = log_uniform(rng, 0.01, 1.0) * level, rng.uniform(-0.2, 1.0)
    uneven, at_once = rng.choice(((False, False), (True, False), (False, True)))
    held: Series = []
    while len(held) < count + gather + learn:
        steps = rng.randint(max(gather // 2, 1), gather) if uneven else gather
        top = height * steps / gather
        held += [top if at_once else top * (at + 1) / steps for at in range(steps)]
        held += [top + extra * height * rng.uniform(0.8, 1.0) for _ in range(learn)]
    start = rng.randrange(gather + learn)
    found = added(around(rng, count, level, 0.001), held[start : start + count])
    return steady(rng, found, 0.3 * level)


@family("steady", "held-out-15")
def paged_decoding_that_fills_up_after_the_server_opens(rng: random.Random) -> Series:
    """A decoder starts with no requests or amid them; its pages follow those under way."""
    count, level = some_length(rng), some_level(rng)
    longest = rng.randint(2, max(count // 12, 3))
    first = rng.choice((-longest, 0, rng.randint(0, count // 10)))
    share = level * log_uniform(rng, 0.02, 1.5)
    held = _requests(rng, count, longest, share, rng.random() < 0.8, first)
    page = share * rng.choice((0.001, 0.01, 0.05))
    paged = [math.ceil(one / page) * page for one in held]
    return in_blocks(around(rng, count, level, 0.0005), paged)


@family("steady", "held-out-15")
def graphs_captured_for_batch_sizes_until_the_limit(rng: random.Random) -> Series:
    """A graph is captured for each new batch size; past a limit, batches are padded."""
    count, level = some_length(rng), some_level(rng)
    kinds, whole = rng.randint(3, 40), level * log_uniform(rng, 0.02, 1.0)
    sizes = [rng.uniform(0.3, 1.0) for _ in range(kinds)]
    popular = [math.pow(at + 1, -rng.uniform(0.0, 1.5)) for at in range(kinds)]
    end, a_step = round(count * rng.uniform(0.05, 0.38)), rng.choice((1, 1, 2, 5))
    captured: set[int] = set()
    held: Series = []
    for at in range(count):
        if at < end:
            captured.update(rng.choices(range(kinds), popular, k=a_step))
        held.append(whole * math.fsum(sizes[one] for one in captured) / sum(sizes))
    batch = _padded_batches(rng, count, level * log_uniform(rng, 0.001, 0.1))
    return in_blocks(around(rng, count, level, 0.0005), held, batch)


@family("steady", "held-out-15")
def sampled_neighbourhoods_with_hubs_and_layerwise_inference(rng: random.Random) -> Series:
    """Subgraphs vary with the hubs in them; each epoch ends with layers of the whole graph."""
    count, level = some_length(rng), some_level(rng)
    epoch, share = rng.randint(5, max(count // 5, 6)), level * log_uniform(rng, 0.005, 0.3)
    layers, whole = rng.choice((0, 1, 2, 3)), level * log_uniform(rng, 0.02, 0.8)
    tail, fanout = rng.uniform(1.2, 3.0), rng.uniform(3.0, 20.0)
    last, phase = rng.random(), rng.randrange(epoch)
    held: Series = []
    for at in range(count):
        turn = (at + phase) % epoch
        if turn >= epoch - layers:
            held.append(whole * (1.0 if turn < epoch - 1 else 0.6))
            continue
        hubs = math.fsum(min(rng.paretovariate(tail), fanout) for _ in range(6)) / 6
        held.append(share * hubs * (last if turn == epoch - layers - 1 else 1.0))
    return steady(rng, added(around(rng, count, level, 0.001), held), 0.3 * level)


def _walk_part(rng: random.Random, count: int, alike: float = 1.0) -> float:
    """How large a part of the level a walk's changes are, so that it keeps far from 0."""
    return log_uniform(rng, 0.0002, min(0.02, 0.13 / math.sqrt(count * alike)))


def _walked(rng: random.Random, changes: Series, level: float, part: float) -> Series:
    """A walk from a level, in half of the programs with noise around it."""
    count = len(changes) + 1
    beside = around(rng, count, level, part * rng.choice((0.0, 0.0, 0.5, 1.5)))
    return in_blocks(beside, [0.0, *_piled(changes)])


@family("steady", "held-out-15")
def recommender_rows_admitted_and_expired_alike_walk(rng: random.Random) -> Series:
    """A walk: an online recommender admits new rows as often as it lets old ones expire."""
    count, level = some_length(rng), some_level(rng)
    part, mean = _walk_part(rng, count), log_uniform(rng, 0.2, 12.0)
    row = part * level / math.sqrt(2 * mean)
    changes = [row * (poisson(rng, mean) - poisson(rng, mean)) for _ in range(count - 1)]
    return _walked(rng, changes, level, part)


@family("steady", "held-out-15")
def handles_of_a_few_sizes_opened_and_closed_seldom_walk(rng: random.Random) -> Series:
    """A walk: now and then a handle's buffer, of one of a few sizes, is opened or closed."""
    count, level = some_length(rng), some_level(rng)
    often = log_uniform(rng, min(12 / count, 0.4), 0.5)
    part = _walk_part(rng, count)
    sizes = [part * level * rng.choice((0.4, 0.7, 1.0)) for _ in range(rng.randint(1, 3))]
    scale = min(1.0 / math.sqrt(often), 3.0)
    changes = [
        scale * rng.choice(sizes) * rng.choice((-1, 1)) if rng.random() < often else 0.0
        for _ in range(count - 1)
    ]
    return _walked(rng, changes, level, part / 2)


@family("steady", "held-out-15")
def buffers_that_follow_a_stream_of_drifting_documents_walk(rng: random.Random) -> Series:
    """A walk: buffers follow the mean length in a stream, whose drift lasts for a few steps."""
    count, level = some_length(rng), some_level(rng)
    lasts = rng.uniform(0.2, 0.8)
    part = _walk_part(rng, count, (1 + lasts) / (1 - lasts))
    change = rng.gauss(0.0, part * level)
    fresh = part * level * math.sqrt(1 - lasts * lasts)
    changes: Series = []
    for _ in range(count - 1):
        changes.append(change)
        change = lasts * change + rng.gauss(0.0, fresh)
    return _walked(rng, changes, level, part)


@family("steady", "held-out-15")
def fragments_left_and_reclaimed_in_calm_and_busy_spells_walk(rng: random.Random) -> Series:
    """A walk: fragments with heavy tails of size come and go alike, in calm and in busy spells."""
    count, level = some_length(rng), some_level(rng)
    part, tail, calm = _walk_part(rng, count), rng.uniform(1.8, 4.0), rng.choice((0.1, 0.3, 1.0))
    turns, busy = 1 / rng.uniform(2.0, 25.0), rng.random() < 0.5
    changes: Series = []
    for _ in range(count - 1):
        size = rng.paretovariate(tail) - 1
        while size > 8:
            size = rng.paretovariate(tail) - 1
        size *= 0.6 * part * level * (1.0 if busy else calm)
        changes.append(size * rng.choice((-1, 1)))
        busy = busy != (rng.random() < turns)
    return _walked(rng, changes, level, part / 2)


@family("cycle_garbage", "held-out-15")
def agents_with_back_references_that_wait_for_the_collector(rng: random.Random) -> Series:
    """Finished agents refer to themselves; young and full collections free some and all of them."""
    count, level = some_length(rng), some_level(rng)
    limit = count / rng.uniform(4.6, min(count / 6, 14.0))
    rough, busy = rng.choice((0.0, 0.3, 0.5)), rng.choice((1.0, 1.0, 0.7))
    timed, freed = rng.random() < 0.4, rng.choice((0.0, rng.uniform(0.2, 0.5)))
    young_every, height = max(round(limit / 4), 1), level * log_uniform(rng, 0.03, 1.0)
    old = young = 0.0
    since, held = limit * rng.random(), [0.0] * count
    for at in range(count):
        gain = (1 - rough + rough * rng.expovariate(1.0)) * (rng.random() < busy) / busy
        young, since = young + gain, since + (1.0 if timed else gain)
        if since >= limit:
            old, young, since = 0.0, 0.0, 0.0
        elif at % young_every == 0:
            old, young = old + (1 - freed) * young, 0.0
        held[at] = height * (old + young) / limit
    return in_blocks(around(rng, count, level, 0.0008), held)


@family("leak", "held-out-15")
def evaluation_predictions_never_cleared_between_epochs(rng: random.Random) -> Series:
    """A metric keeps the predictions of every evaluation, for its reset is never called."""
    count, level = some_length(rng), some_level(rng)
    start = min(_onset(rng, count), count - 28)
    every = rng.randint(2, max((count - start) // 14, 2))
    lasts, uneven = rng.randint(1, max(every // 2, 1)), rng.uniform(0.0, 0.5)
    other, phase = level * rng.uniform(-0.3, 0.3) * rng.randint(0, 1), rng.randrange(every)
    evaluates = [(at + phase) % every < lasts for at in range(count)]

    def draw() -> Series:
        return _piled(
            [rng.uniform(1 - uneven, 1) * (evaluates[at] and at >= start) for at in range(count)]
        )

    base = added(_training(rng, count, level), [other * now for now in evaluates])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def prompt_prefixes_cached_under_keys_that_never_match(rng: random.Random) -> Series:
    """Prefixes stay in a cache whose keys hold the time, so that none is found or replaced."""
    count, level = some_length(rng), some_level(rng)
    start, rate, spread = _onset(rng, count), log_uniform(rng, 0.8, 8.0), rng.uniform(0.1, 1.0)

    def prefixes() -> float:
        return math.fsum(rng.lognormvariate(0, spread) for _ in range(poisson(rng, rate)))

    def draw() -> Series:
        return _piled([prefixes() if at >= start else 0.0 for at in range(count)])

    base = _serving(rng, count, level, growing=True)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def streams_cut_by_their_client_keep_their_window(rng: random.Random) -> Series:
    """A stream of speech that the client cuts off is not finished, and its window stays."""
    count, level = some_length(rng), some_level(rng)
    start, spread = _onset(rng, count), rng.uniform(0.2, 0.9)
    left = count - start
    often = log_uniform(rng, min(18 / left, 0.8), max(min(60 / left, 0.9), 0.81 * 18 / left))

    def draw() -> Series:
        cut = [at >= start and rng.random() < often for at in range(count)]
        return _piled([rng.lognormvariate(0, spread) if one else 0.0 for one in cut])

    base = _serving(rng, count, level, growing=False)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def decoded_crops_memoised_by_a_dataset_without_bound(rng: random.Random) -> Series:
    """A dataset memoises each decoded crop on the device; crops seen before come more often."""
    count, level = some_length(rng), some_level(rng)
    batch, start = rng.randint(2, 48), _onset(rng, count)
    crops = round(batch * (count - start) / log_uniform(rng, 0.15, 1.2))
    sizes = [rng.choice((1.0, 1.5, 2.0)) for _ in range(rng.randint(1, 16))]

    def draw() -> Series:
        seen: set[int] = set()
        gains = [0.0] * count
        for at in range(start, count):
            fresh = {rng.randrange(crops) for _ in range(batch)} - seen
            gains[at] = math.fsum(sizes[one % len(sizes)] for one in fresh)
            seen |= fresh
        return _piled(gains)

    return leaking(rng, _training(rng, count, level, 0.1), drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def forward_hooks_registered_again_at_every_epoch(rng: random.Random) -> Series:
    """Each epoch registers its hooks again, and every hook keeps a summary of each step."""
    count, level = some_length(rng), some_level(rng)
    hooks, epochs = rng.randint(2, 5), rng.randint(2, 7)
    every, uneven, per = rng.choice((1, 1, 2)), rng.uniform(0.0, 0.9), count / epochs

    def draw() -> Series:
        return _piled(
            [
                (hooks + int(at / per)) * rng.uniform(1 - uneven, 1) * (at % every == 0)
                for at in range(count)
            ]
        )

    return leaking(rng, _training(rng, count, level), drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def kernels_compiled_for_every_sequence_length_not_met_before(rng: random.Random) -> Series:
    """Inference compiles for every new length and keeps it; new ones get rarer, but never end."""
    count, level = some_length(rng), some_level(rng)
    power, fresh = rng.uniform(0.55, 0.95), log_uniform(rng, max(12 - count / 10, 1.0), 40.0)
    uneven, together = rng.uniform(0.0, 0.8), rng.choice((1, 1, 2, 4))

    def draw() -> Series:
        gains, met, kinds = [0.0] * count, 0, 0
        for at in range(count):
            for _ in range(together):
                if rng.random() < (fresh + power * kinds) / (fresh + met):
                    kinds, gains[at] = kinds + 1, gains[at] + rng.uniform(1 - uneven, 1)
                met += 1
        return _piled(gains)

    return leaking(rng, _training(rng, count, level, 0.2), drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def sweep_trials_whose_models_stay_in_the_study(rng: random.Random) -> Series:
    """A sweep trains one model after the other, and the study's callbacks keep each of them."""
    count, level = some_length(rng), some_level(rng)
    most = max(count // 16, 2)
    least, widths = rng.randint(max(most // 3, 2), most), rng.sample(range(4, 13), 4)
    works, loading = level * log_uniform(rng, 0.02, 0.6), rng.random() < 0.5

    def trials() -> tuple[Series, Series]:
        runs: Series = []
        gains: Series = []
        while len(runs) < count:
            size, steps = (rng.choice(widths) / 12) ** 2, rng.randint(least, most)
            first = rng.uniform(0.2, 0.7) if loading else 1.0
            runs += [works * size * first] + [works * size] * (steps - 1)
            gains += [0.0] * (steps - 1) + [size]
        return runs[:count], _piled(gains[:count])

    runs: Series = []

    def draw() -> Series:
        runs[:], kept = trials()
        return kept

    kept = drawn_until_enough(draw)
    return leaking(rng, added(around(rng, count, level, 0.001), runs), kept, level)


@family("leak", "held-out-15")
def temporal_graph_messages_kept_for_vertices_fallen_silent(rng: random.Random) -> Series:
    """Messages wait for their vertex to act again; many never do, more in the busy hours."""
    count, level = some_length(rng), some_level(rng)
    day, swing = max(count / rng.uniform(3.0, 14.0), 5.0), rng.uniform(0.4, 1.0)
    phase, rate = rng.uniform(0, 2 * math.pi), log_uniform(rng, 0.8, 8.0)
    busy = [1 + swing * math.sin(phase + 2 * math.pi * at / day) for at in range(count)]
    start, follows = _onset(rng, count), level * rng.choice((0.0, log_uniform(rng, 0.001, 0.1)))

    def draw() -> Series:
        gains = [poisson(rng, rate * now) for now in busy]
        return _piled([float(gain) * (at >= start) for at, gain in enumerate(gains)])

    base = added(_training(rng, count, level, 0.1), [follows * now for now in busy])
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def workspaces_of_worker_threads_that_are_never_joined(rng: random.Random) -> Series:
    """Threads are started in bursts for slow requests; each keeps its workspace for good."""
    count, level = some_length(rng), some_level(rng)
    bursts, most = log_uniform(rng, 18, min(max(0.7 * count, 20), 90)), rng.choice((1, 2, 4))
    together = rng.uniform(0.0, 0.5)

    def draw() -> Series:
        gains, gap, wait = [0.0] * count, (count - 1) / bursts, 0.0
        at = rng.uniform(0.0, gap)
        while at < count:
            gains[int(at)] += rng.randint(1, most)
            wait = rng.uniform(0.3, 1.7) if rng.random() > together else rng.uniform(0.0, 0.4)
            at += gap * wait / (1 - 0.8 * together)
        return _piled(gains)

    quiet = rng.random() < 0.5
    base = _training(rng, count, level, 0.02) if quiet else _serving(rng, count, level, True)
    return leaking(rng, base, drawn_until_enough(draw), level)


@family("leak", "held-out-15")
def logged_losses_with_graphs_that_reports_free_in_part(rng: random.Random) -> Series:
    """Logged losses hold their graphs; a report drops most of them, a second list keeps some."""
    count, level = some_length(rng), some_level(rng)
    every, often = rng.randint(3, max(count // 8, 4)), rng.choice((1.0, 1.0, 0.6))
    height, uneven = level * log_uniform(rng, 0.005, 0.5), rng.uniform(0.0, 0.9)
    phase, share = rng.randrange(every), rng.uniform(0.6, 1.0)
    teeth = [height * ((at + phase) % every) / every for at in range(count)]

    def draw() -> Series:
        return _piled(
            [rng.uniform(1 - uneven, 1) * (rng.random() < often * share) for _ in range(count)]
        )

    base = added(_training(rng, count, level, 0.05), teeth)
    return leaking(rng, base, drawn_until_enough(draw), level)
