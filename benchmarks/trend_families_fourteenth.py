# SPDX-License-Identifier: Apache-2.0
"""The fourteenth held-out set of families of series: written without a look at the method.

Its rules are those of the twelfth set (trend_families_twelfth.py), and its author another.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence

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


def _size_law(rng: random.Random) -> Callable[[], float]:
    """How large one thing is, about 1: always the same, of a few sizes, or spread more or less."""
    few = [rng.uniform(0.3, 2.0) for _ in range(rng.randint(2, 4))]
    spread = rng.uniform(0.2, 0.8)
    laws: Sequence[Callable[[], float]] = (
        lambda: 1.0,
        lambda: rng.choice(few),
        lambda: rng.uniform(0.3, 1.7),
        lambda: rng.lognormvariate(0.0, spread),
        lambda: min(rng.paretovariate(2.2), 8.0),
    )
    return rng.choice(laws)


def _period(rng: random.Random, least: float, most: float) -> int:
    return round(log_uniform(rng, least, max(most, least)))


def _held(level: float, share: float, units: Series) -> Series:
    """This share of the level in the mean, as large as the units tell."""
    mean = statistics.fmean(units)
    return [level * share * one / mean for one in units]


def _bumps(rng: random.Random, count: int, height: float, every: int) -> Series:
    """What is held more (or less) for some steps of each period, which starts anywhere."""
    steps, start = rng.randint(1, max(every // 3, 1)), rng.randrange(every)
    return [height if (at + start) % every < steps else 0.0 for at in range(count)]


def _slots(rng: random.Random, count: int, slots: int, life: int, cold: bool) -> Series:
    """Requests in slots: each starts with a prompt, grows every step, ends and is followed."""
    total, idle = [0.0] * count, rng.uniform(0.0, 0.6)
    for _ in range(slots):
        at = rng.randrange(2 * life) - (0 if cold else 6 * life)
        while at < count:
            steps = max(round(life * rng.lognormvariate(0.0, 0.5)), 1)
            prompt, speed = rng.uniform(0.1, 2.0), rng.uniform(0.5, 1.5) / life
            for step in range(max(at, 0), min(at + steps, count)):
                total[step] += prompt + speed * (step - at)
            at += steps + round(idle * life * rng.expovariate(1.0))
    return total


def _stages(rng: random.Random, count: int, draw: Callable[[], Series]) -> Series:
    """One drawn run after another, seen from some moment on when many are over."""
    runs = [draw() for _ in range(4)]
    skipped = rng.randrange(sum(map(len, runs)) // 2, sum(map(len, runs)))
    found = list(itertools.chain.from_iterable(runs))
    while len(found) < skipped + count:
        found.extend(draw())
    return found[skipped : skipped + count]


@family("steady", "held-out-14")
def expert_routing_buffers_whose_imbalance_settles_early(rng: random.Random) -> Series:
    """Expert buffers are padded to the fullest expert; the router finds its balance early on."""
    count, level = some_length(rng), some_level(rng)
    tastes = [rng.gauss(0.0, 1.0) for _ in range(rng.choice((4, 8, 16, 24)))]
    tokens, grain = log_uniform(rng, 512, 32768), rng.choice((1, 16, 64, 128))
    settled, jitter = log_uniform(rng, 0.05, 0.6), log_uniform(rng, 0.02, 0.3)
    early, ends = settled * rng.uniform(-0.9, 2.5), count / rng.uniform(15, 60)
    most = rng.choice((math.inf, rng.uniform(1.5, 4.0) * tokens / len(tastes)))
    units = []
    for at in range(count):
        spread = settled + early * math.exp(-at / ends)
        loads = [math.exp(spread * one + rng.gauss(0.0, jitter)) for one in tastes]
        fullest = min(tokens * max(loads) / sum(loads), most)
        units.append(math.ceil(fullest / grain) * float(grain))
    share = log_uniform(rng, 0.02, 0.6)
    return steady(rng, added(around(rng, count, level, 0.0004), _held(level, share, units)), level)


def _pages_of_a_draft_request(rng: random.Random, accept: float, life: int, page: int) -> Series:
    """The pages of one request at each step: what the draft model guessed well is kept."""
    tokens, found = rng.lognormvariate(0.0, 0.6) * 2.0 * life, []
    for _ in range(max(round(life * rng.lognormvariate(0.0, 0.4)), 1)):
        guessed = sum(rng.random() < accept for _ in range(4))
        tokens += 1 + guessed
        found.append(float(math.ceil((tokens + 4 - guessed) / page)))
    return found


@family("steady", "held-out-14")
def speculative_decoding_pages_of_a_draft_and_a_target(rng: random.Random) -> Series:
    """Requests decode in slots, several tokens a step; a freed slot waits for the next request."""
    count, level = some_length(rng), some_level(rng)
    life, page = _period(rng, 2, count / 18), rng.choice((1, 4, 16))
    accept, wait = rng.uniform(0.2, 0.9), rng.uniform(0.0, 0.8) * life

    def request() -> Series:
        idle = [0.0] * round(wait * rng.expovariate(1.0))
        return idle + _pages_of_a_draft_request(rng, accept, life, page)

    slots = _period(rng, 3, 24)
    units = added(*(_stages(rng, count, request) for _ in range(slots)))
    opened = rng.choice((1, round(count * rng.uniform(0.05, 0.22))))
    units = [one * min((at + 1) / opened, 1.0) for at, one in enumerate(units)]
    share = log_uniform(rng, 0.03, 0.6)
    return steady(rng, added(around(rng, count, level, 0.0006), _held(level, share, units)), level)


def _replay(rng: random.Random, count: int, kept: int, by_bytes: bool) -> Series:
    """A ring of episodes, one a step, which ends at so many episodes or at so many bytes."""
    size = _size_law(rng) if by_bytes else lambda: rng.uniform(0.9, 1.1)
    ring: list[float] = []
    found = []
    for _ in range(count):
        ring.append(size())
        while len(ring) > 1 and (math.fsum(ring) > kept if by_bytes else len(ring) > kept):
            ring.pop(0)
        found.append(math.fsum(ring))
    return found


@family("steady", "held-out-14")
def replay_ring_that_fills_while_rollouts_come_and_go(rng: random.Random) -> Series:
    """A replay ring fills early and is then overwritten; a rollout grows until each update."""
    count, level = some_length(rng), some_level(rng)
    kept = max(round(count * rng.uniform(0.03, 0.33)), 2)
    ring = _held(level, log_uniform(rng, 0.05, 2.0), _replay(rng, count, kept, rng.random() < 0.6))
    every = _period(rng, 2, count / 6)
    start, step = rng.randrange(every), level * log_uniform(rng, 0.003, 0.2) / every
    rollout = [step * ((at + start) % every) for at in range(count)]
    return steady(rng, added(around(rng, count, level, 0.001), ring, rollout), 0.4 * level)


@family("steady", "held-out-14")
def diffusion_pipeline_whose_parts_take_turns_on_the_device(rng: random.Random) -> Series:
    """Text encoder, denoiser and decoder run by turns, for pictures of a few shapes."""
    count, level = some_length(rng), some_level(rng)
    areas = [rng.uniform(0.4, 1.6) for _ in range(rng.randint(1, 5))]
    rounds, loose = _period(rng, 2, count / 8), rng.random() < 0.4
    encoder, denoiser, decoder = (log_uniform(rng, 0.05, 1.0) for _ in range(3))
    moved, size = rng.random() < 0.5, level * log_uniform(rng, 0.02, 0.5)

    def picture() -> Series:
        area, steps = rng.choice(areas), rng.randint(1, 2 * rounds) if loose else rounds
        found = [encoder] + [denoiser * area] * steps + [1.5 * decoder * area] * rng.randint(1, 2)
        return [size * one for one in found] + [0.0] * moved

    turns = _stages(rng, count, picture)
    return steady(rng, added(around(rng, count, level, 0.0005), turns), 0.5 * level)


@family("steady", "held-out-14")
def neighbour_sampling_beside_a_cache_of_node_features(rng: random.Random) -> Series:
    """Subgraphs differ, hubs are large; a cache of features fills, or refills each epoch."""
    count, level = some_length(rng), some_level(rng)
    bend, full = rng.uniform(0.3, 1.0), count * rng.uniform(0.04, 0.36)
    every, start = count, 0
    if rng.random() < 0.35:
        every = _period(rng, 5, count / 5)
        full, start = every * rng.uniform(0.2, 1.0), rng.randrange(every)
    cache = [min(((at + start) % every + 1) / full, 1.0) ** bend for at in range(count)]
    hubs, spread = rng.uniform(0.0, 0.1), rng.uniform(0.02, 0.5)
    sampled = [
        rng.lognormvariate(0.0, spread) + (rng.random() < hubs) * min(rng.paretovariate(1.5), 9.0)
        for _ in range(count)
    ]
    held = [level * log_uniform(rng, 0.02, 0.8)] * count
    held = [one * size for one, size in zip(held, cache, strict=True)]
    batch = _held(level, log_uniform(rng, 0.01, 0.3), sampled)
    return steady(rng, added([level] * count, held, batch), 0.3 * level)


def _staging(rng: random.Random, count: int, height: float, every: int) -> Series:
    """A staged checkpoint every so many steps, written out part by part."""
    steps, start = rng.randint(1, max(every // 2, 1)), rng.randrange(every)
    return [height * max(1 - (at + start) % every / steps, 0.0) for at in range(count)]


@family("steady", "held-out-14")
def gradient_accumulation_with_swapped_averages_and_checkpoints(rng: random.Random) -> Series:
    """Gradients live for some micro-steps; averaged weights and staged checkpoints come and go."""
    count, level = some_length(rng), some_level(rng)
    parts = [around(rng, count, level, log_uniform(rng, 0.0002, 0.002))]
    height = level * log_uniform(rng, 0.02, 0.4)
    parts.append(_bumps(rng, count, -height * rng.random(), rng.choice((2, 4, 8))))
    parts.append(_bumps(rng, count, height, _period(rng, 4, count / 5)))
    if rng.random() < 0.7:
        parts.append(_staging(rng, count, height * rng.uniform(0.3, 2), _period(rng, 5, count / 4)))
    if rng.random() < 0.4:
        stairs, until = rng.randint(1, 4), count * rng.uniform(0.05, 0.35)
        missing = level * rng.uniform(0.05, 0.3) / stairs
        steps = [min(math.floor(at * stairs / until), stairs) for at in range(count)]
        parts.append([missing * (step - stairs) for step in steps])
    return steady(rng, added(*parts), 0.2 * level)


@family("steady", "held-out-14")
def search_over_models_built_and_freed_trial_after_trial(rng: random.Random) -> Series:
    """A search trains one model after another; bad trials end early and all of each is freed."""
    count, level = some_length(rng), some_level(rng)
    models = [level * rng.uniform(0.3, 1.7) for _ in range(rng.randint(2, 6))]
    length, early = _period(rng, 3, count / 10), rng.uniform(0.0, 0.7)
    states, builds = rng.uniform(0.0, 1.0), rng.random() < 0.6
    jitter = log_uniform(rng, 0.0005, 0.03)

    def trial() -> Series:
        model = rng.choice(models)
        steps = rng.randint(1, length) if rng.random() < early else length
        found = [model * (1 + states + rng.gauss(0.0, jitter)) for _ in range(steps)]
        return [0.0, model] * builds + found

    rest = level * log_uniform(rng, 0.1, 3.0)
    return steady(rng, added([rest] * count, _stages(rng, count, trial)), 0.3 * rest)


def _walked(rng: random.Random, level: float, changes: Series) -> Series:
    """A level that only the changes move; they are of size 1 and so small that it stays above 0."""
    step = level * log_uniform(rng, 0.0002, min(0.02, 0.13 / math.sqrt(len(changes))))
    return [level + step * one for one in itertools.accumulate(changes)]


@family("steady", "held-out-14")
def communicator_handles_opened_as_often_as_closed_walk(rng: random.Random) -> Series:
    """A walk: handles of a few sizes are opened and closed, both at random and equally often."""
    count, level = some_length(rng), some_level(rng)
    sizes = [rng.choice((1.0, 2.0, 4.0, 8.0)) for _ in range(rng.randint(1, 3))]
    often = log_uniform(rng, 12 / count, 8.0)
    unit = math.sqrt(2 * often * statistics.fmean([one * one for one in sizes]))
    changes = []
    for _ in range(count):
        opened = [rng.choice(sizes) for _ in range(poisson(rng, often))]
        closed = [rng.choice(sizes) for _ in range(poisson(rng, often))]
        changes.append((math.fsum(opened) - math.fsum(closed)) / unit)
    return in_blocks(_walked(rng, level, changes))


@family("steady", "held-out-14")
def workspace_remainders_replaced_by_others_walk(rng: random.Random) -> Series:
    """A walk: now and then a workspace is replaced by a larger or a smaller one, rarely by far."""
    count, level = some_length(rng), some_level(rng)
    often = log_uniform(rng, min(15 / count, 0.9), 1.0)
    tail, most = rng.uniform(1.5, 4.0), rng.uniform(4.0, 9.0)
    drawn = [min(rng.paretovariate(tail), most) * rng.choice((-1, 1)) for _ in range(count)]
    unit = math.sqrt(often * 3.0 * tail / (tail + 1))
    changes = [one / unit if rng.random() < often else 0.0 for one in drawn]
    return in_blocks(_walked(rng, level, changes), around(rng, count, level / 50, 0.01))


@family("steady", "held-out-14")
def activations_that_follow_a_drifting_text_length_walk(rng: random.Random) -> Series:
    """A walk: batches follow a text length that drifts both ways, a few steps in the same way."""
    count, level = some_length(rng), some_level(rng)
    window = rng.choice((1, 2, 3, 4, 6))
    shocks = [rng.gauss(0.0, 1.0) for _ in range(count + window)]
    changes = [math.fsum(shocks[at : at + window]) / window for at in range(count)]
    found = _walked(rng, level, changes)
    grain = level * log_uniform(rng, 1e-6, 0.003)
    found = [round(one / grain) * grain for one in found]
    noise = level * rng.choice((0.0, log_uniform(rng, 0.0001, 0.01)))
    extra = rng.choice((0.0, level * log_uniform(rng, 0.001, 0.03)))
    regular = _bumps(rng, count, extra, rng.randint(4, 25))
    return in_blocks(found, regular, [rng.gauss(0.0, noise) for _ in range(count)])


@family("steady", "held-out-14")
def tenants_moved_between_replicas_in_busy_and_quiet_times_walk(rng: random.Random) -> Series:
    """A walk: tenants move to and from this replica, in busy times more and in quiet ones fewer."""
    count, level = some_length(rng), some_level(rng)
    quiet, lasting = rng.choice((0.0, rng.uniform(0.05, 0.5))), log_uniform(rng, 2, count / 5)
    busy = rng.random() < 0.5
    kind = rng.randrange(3)
    changes = []
    for _ in range(count):
        if rng.random() < 1 / lasting:
            busy = not busy
        laws = (rng.gauss(0.0, 1.0), rng.choice((-1.0, 1.0)), rng.uniform(-1.7, 1.7))
        changes.append(laws[kind] * (1.3 if busy else quiet))
    noise = level * rng.choice((0.0, log_uniform(rng, 0.00005, 0.002)))
    return in_blocks(_walked(rng, level, changes), [rng.gauss(0, noise) for _ in range(count)])


@family("cycle_garbage", "held-out-14")
def failed_requests_whose_tracebacks_hold_tensors_in_cycles(rng: random.Random) -> Series:
    """Exceptions hold frames and those hold tensors, until enough objects call a collector."""
    count, level = some_length(rng), some_level(rng)
    often, size = log_uniform(rng, 2, 20), _size_law(rng)
    period = log_uniform(rng, 4.5, count / 6)
    threshold = often * period
    young, spared = rng.choice((0.0, rng.uniform(0.2, 1.0))), rng.uniform(0.4, 0.8)
    objects, held = rng.uniform(0, threshold), []
    garbage = objects
    for _ in range(count):
        for _ in range(poisson(rng, often)):
            objects, garbage = objects + 1, garbage + size()
        if objects >= threshold:
            objects, garbage = 0.0, 0.0
        elif rng.random() < young / period:
            garbage *= spared
        held.append(garbage)
    height = level * log_uniform(rng, 0.01, 0.8)
    noise = around(rng, count, level, min(0.002, 0.02 * height / level))
    return in_blocks(noise, [height * one / max(held) for one in held])


def _leak(rng: random.Random, base: Series, kept: Series) -> Series:
    return leaking(rng, base, kept, statistics.fmean(base))


def _start(rng: random.Random, count: int, latest: float = 0.45) -> int:
    """When a leak begins: at once, or at some step before this part of the series."""
    return rng.choice((0, round(count * rng.uniform(0.0, latest))))


def _kept(changes: Series) -> Series:
    """All that came until each step, of which the first step has nothing."""
    return list(itertools.accumulate([0.0, *changes[1:]]))


@family("leak", "held-out-14")
def forward_hooks_added_again_at_each_evaluation_hold_outputs(rng: random.Random) -> Series:
    """Each evaluation adds a hook and removes none, and each hook holds what it saw last."""
    count, level = some_length(rng), some_level(rng)
    every, size = _period(rng, 1, count / 17), _size_law(rng)
    phase, shaky = rng.randrange(every), rng.choice((0, every // 3))

    def draw() -> Series:
        start, changes = _start(rng, count, 0.3), [0.0] * count
        for at in range(start + phase, count, every):
            changes[max(at - rng.randint(0, shaky), 0)] += size()
        return _kept(changes)

    height = level * log_uniform(rng, 0.003, 0.2)
    evaluations = [height if at % every == phase else 0.0 for at in range(count)]
    base = added(around(rng, count, level, log_uniform(rng, 0.0003, 0.003)), evaluations)
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def loss_tensors_with_graphs_kept_for_a_running_mean(rng: random.Random) -> Series:
    """The logged loss is kept with its graph, which is as large as the texts of the batch."""
    count, level = some_length(rng), some_level(rng)
    size, share = _size_law(rng), log_uniform(rng, 0.005, 0.3)
    often, texts = rng.choice((1.0, 1.0, rng.uniform(0.5, 1.0))), [0.0] * count

    def draw() -> Series:
        start = _start(rng, count)
        texts[:] = [size() + rng.uniform(0.0, 0.3) for _ in range(count)]
        logged = [at >= start and rng.random() < often for at in range(count)]
        return _kept([one * now for one, now in zip(texts, logged, strict=True)])

    kept = drawn_until_enough(draw)
    base = added(around(rng, count, level, 0.001), _held(level, share, texts))
    return _leak(rng, base, kept)


@family("leak", "held-out-14")
def cache_pages_of_cancelled_requests_never_given_back(rng: random.Random) -> Series:
    """Clients hang up at random, and the pages of their requests are never given back."""
    count, level = some_length(rng), some_level(rng)
    size, often = _size_law(rng), log_uniform(rng, min(18 / count, 0.9), 2.0)

    def draw() -> Series:
        start = _start(rng, count, 0.3)
        lost = [math.fsum(size() for _ in range(poisson(rng, often))) for _ in range(count)]
        return _kept([one if at >= start else 0.0 for at, one in enumerate(lost)])

    life, cold = _period(rng, 2, count / 8), rng.random() < 0.3
    units = _slots(rng, count, _period(rng, 3, 30), life, cold)
    base = added([level] * count, _held(level, log_uniform(rng, 0.01, 0.4), units))
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def compiled_graphs_for_shapes_never_seen_before_pile_up(rng: random.Random) -> Series:
    """Each shape not seen before is compiled and its buffers stay; new ones get a little rarer."""
    count, level = some_length(rng), some_level(rng)
    bend, size = rng.uniform(0.6, 1.0), _size_law(rng)
    wanted = log_uniform(rng, 24, max(count, 26))

    def draw() -> Series:
        changes = []
        for at in range(count):
            new = wanted * (((at + 1) / count) ** bend - (at / count) ** bend)
            changes.append(math.fsum(size() for _ in range(poisson(rng, new))))
        return _kept(changes)

    spread, share = rng.uniform(0.05, 0.6), log_uniform(rng, 0.005, 0.2)
    shapes = [rng.lognormvariate(0.0, spread) for _ in range(count)]
    base = added(around(rng, count, level, 0.001), _held(level, share, shapes))
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def opponents_of_a_league_keep_rollouts_that_get_longer(rng: random.Random) -> Series:
    """Snapshots of past players keep their last rollouts, which get longer as play gets better."""
    count, level = some_length(rng), some_level(rng)
    every, growth = _period(rng, 1, count / 18), rng.uniform(0.3, 1.8)
    loose = rng.uniform(0.0, 0.5)

    def draw() -> Series:
        start, changes = _start(rng, count, 0.25), [0.0] * count
        for at in range(start + 1, count, every):
            longer = 1 + growth * (at - start) / (count - start)
            changes[at] = longer * rng.lognormvariate(0.0, loose)
        return _kept(changes)

    update = _period(rng, 2, max(count / 10, 3))
    phase, step = rng.randrange(update), level * log_uniform(rng, 0.002, 0.15) / update
    rollout = [step * ((at + phase) % update) for at in range(count)]
    base = added(around(rng, count, level, 0.001), rollout)
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def predictions_gathered_in_each_validation_and_never_reset(rng: random.Random) -> Series:
    """Validation appends the predictions of its batches to a metric that nobody resets."""
    count, level = some_length(rng), some_level(rng)
    every = _period(rng, 3, count / 9)
    validated, phase = max(round(every * rng.uniform(0.45, 0.75)), 2), rng.randrange(every)
    size, start = _size_law(rng), rng.randint(0, count // 5)

    def draw() -> Series:
        within = [at >= start and (at + phase) % every < validated for at in range(count)]
        return _kept([size() * now for now in within])

    less = level * rng.uniform(-0.2, 0.05) * rng.random()
    regular = [less * ((at + phase) % every < validated) for at in range(count)]
    base = added(around(rng, count, level, log_uniform(rng, 0.0002, 0.002)), regular)
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def video_frames_of_a_clip_that_some_views_still_refer_to(rng: random.Random) -> Series:
    """The frames of a clip pile up and go at its end, but for a few that views still refer to."""
    count, level = some_length(rng), some_level(rng)
    clip, often = _period(rng, 2, count / 24), rng.uniform(0.7, 1.0)
    loose, size = rng.choice((0, clip - 1)), _size_law(rng)
    frames: Series = []

    def draw() -> Series:
        frames.clear()
        while len(frames) < count:
            frames.extend(map(float, range(rng.randint(clip - loose, clip + loose))))
        return _kept([size() * (one == 0 and rng.random() < often) for one in frames[:count]])

    kept = drawn_until_enough(draw)
    frame = level * log_uniform(rng, 0.003, 0.2) / (2 * clip)
    base = added(around(rng, count, level, 0.0008), [frame * one for one in frames[:count]])
    return _leak(rng, base, kept)


@family("leak", "held-out-14")
def hidden_states_not_detached_once_the_curriculum_turns(rng: random.Random) -> Series:
    """From a later stage on, states carry over from batch to batch with all of their graph."""
    count, level = some_length(rng), some_level(rng)
    spread, grain = rng.choice((0.0, 0.1, 0.4)), rng.choice((1, 1, 2))

    def draw() -> Series:
        start = round(count * rng.uniform(0.1, 0.47))
        chained = [rng.lognormvariate(0.0, spread) for _ in range(count)]
        return _kept([one * (at > start and at % grain == 0) for at, one in enumerate(chained)])

    parts = [around(rng, count, level, log_uniform(rng, 0.0002, 0.004))]
    parts.append(_bumps(rng, count, level * rng.uniform(-0.1, 0.1), _period(rng, 3, count / 6)))
    return _leak(rng, added(*parts), drawn_until_enough(draw))


@family("leak", "held-out-14")
def preview_pictures_kept_for_a_board_now_more_now_fewer(rng: random.Random) -> Series:
    """Previews stay on the device for a board; how many are drawn is changed a few times."""
    count, level = some_length(rng), some_level(rng)
    stages, size = rng.randint(2, 5), _size_law(rng)
    every = _period(rng, 1, count / 40)

    def draw() -> Series:
        rates = [rng.uniform(0.4, 2.5) for _ in range(stages)]
        changes = [0.0] * count
        for at in range(rng.randrange(every), count, every):
            number = poisson(rng, rates[at * stages // count])
            changes[at] = math.fsum(size() for _ in range(number))
        return _kept(changes)

    drawn = _bumps(rng, count, level * log_uniform(rng, 0.005, 0.2), _period(rng, 3, count / 6))
    base = added(around(rng, count, level, log_uniform(rng, 0.0003, 0.003)), drawn)
    return _leak(rng, base, drawn_until_enough(draw))


@family("leak", "held-out-14")
def adapters_loaded_and_unloaded_that_leave_a_remainder(rng: random.Random) -> Series:
    """Adapters of a few ranks are loaded and unloaded, and each leaves a part of it behind."""
    count, level = some_length(rng), some_level(rng)
    ranks = [float(rng.choice((4, 8, 16, 32, 64))) for _ in range(rng.randint(1, 4))]
    slots, live = _period(rng, 2, 12), [0.0] * count
    life, remains = _period(rng, 2, slots * count / 30), rng.uniform(0.5, 1.0)

    def draw() -> Series:
        loaded, changes = [rng.choice(ranks) for _ in range(slots)], [0.0] * count
        for at in range(count):
            for slot in range(slots):
                if rng.random() < 1 / life:
                    changes[at] += loaded[slot] * (rng.random() < remains)
                    loaded[slot] = rng.choice(ranks)
            live[at] = math.fsum(loaded)
        return _kept(changes)

    kept = drawn_until_enough(draw)
    share = log_uniform(rng, 0.005, 0.2)
    base = added(around(rng, count, level, 0.001), _held(level, share, live))
    return _leak(rng, base, kept)
