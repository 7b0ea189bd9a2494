# SPDX-License-Identifier: Apache-2.0
"""The seventh held-out set of families of series: written without a look at the method.

Its author saw neither the method nor another set, but the rules of the fifth one and
trend_programs.py, and looked at twelve plots of each family.
"""

from __future__ import annotations

import collections
import itertools
import math
import random
from collections.abc import Callable

from trend_families import Series, family, some_level
from trend_programs import drawn_until_enough, leaking, log_uniform, poisson, some_length, steady

__all__: list[str] = []


def _quivering(rng: random.Random, count: int, level: float) -> Series:
    """The level, in noise that forgets within a fiftieth of the series; a third have none."""
    if rng.random() < 1 / 3:
        return [level] * count
    memory = math.exp(-1 / rng.uniform(0.2, max(count / 50, 0.5)))
    size = level * log_uniform(rng, 0.0003, 0.006) * math.sqrt(1 - memory * memory)
    value, found = 0.0, []
    for _ in range(2 * count):
        value = memory * value + rng.gauss(0.0, size)
        found.append(level + value)
    return found[count:]


def _beside(rng: random.Random, level: float, found: Series, share: float) -> Series:
    """What comes and goes, of which one is so many bytes, beside the level."""
    quivering = _quivering(rng, len(found), level)
    return [one + share * other for one, other in zip(quivering, found, strict=True)]


def _lumps(rng: random.Random, number: int, spread: float) -> float:
    """What so many things hold together whose sizes are spread so."""
    return math.fsum(rng.lognormvariate(0.0, spread) for _ in range(number))


def _climbing(sizes: Series) -> Series:
    """What is held of things that are never given back, of which these came, one sum a step."""
    return list(itertools.accumulate(sizes))


def _spells(rng: random.Random, count: int, draw: Callable[[], Series]) -> Series:
    """One spell of a program after another, seen from an instant long after the first began."""
    skipped = rng.randint(count, 2 * count)
    found: Series = []
    while len(found) < skipped + count:
        found += draw()
    return found[skipped : skipped + count]


def _spell_length(rng: random.Random, count: int, least: int, part: float) -> int:
    """How many steps something takes that comes back: no more than so small a part of all."""
    return round(log_uniform(rng, least, max(part * count, least)))


def _kept(draw: Callable[[], Series]) -> Series:
    """A leak's form, whose last quarter leaves a seventh of the whole or more."""
    while True:
        kept = drawn_until_enough(draw)
        late = kept[-1] - kept[3 * len(kept) // 4]
        if late > 0.15 * (kept[-1] - kept[0]):
            return kept


def _event_rate(rng: random.Random, count: int, most: float = 2.0) -> float:
    """Events a step of a leak that comes at random: eighteen or more in all are expected."""
    return log_uniform(rng, max(18 / count, 0.03), max(most, 0.7))


def _sorted_lengths(rng: random.Random, count: int) -> Series:
    """How long the sequences of each step's batch are, in parts of the longest."""
    steps = max(4, _spell_length(rng, count, 4, 0.16))
    least, power = rng.uniform(0.05, 0.7), rng.uniform(0.5, 3.0)
    buckets = rng.choice((1000, 1000, 4, 8))
    ramp = [least + (1 - least) * ((at + 1) / steps) ** power for at in range(steps)]
    ramp = [math.ceil(one * buckets) / buckets for one in ramp]
    if rng.random() < 0.3:
        ramp.reverse()
    wobble = rng.choice((0.0, 0.01, 0.025))
    return _spells(rng, count, lambda: [one * (1 + wobble * rng.gauss(0, 1)) for one in ramp])


def _chats(rng: random.Random, count: int) -> Series:
    """Pages of the chats in flight: each comes with its prompt, grows and is freed at its end."""
    rate, mean = log_uniform(rng, 0.5, 4.0), _spell_length(rng, count, 2, 0.035)
    prompt, page = log_uniform(rng, 1.0, 100.0), rng.choice((1, 4, 16))
    before = 6 * mean
    found = [0.0] * (before + count)
    for start in range(before + count):
        for _ in range(poisson(rng, rate)):
            asked = prompt * rng.lognormvariate(0.0, 0.6)
            stop = start + min(1 + round(rng.expovariate(1 / mean)), 3 * mean)
            for at in range(start, min(stop, before + count)):
                found[at] += math.ceil((asked + at - start) / page)
    return found[before:]


def _rebound(rng: random.Random, count: int) -> Series:
    """What a user's variable holds who runs a cell again and again, and sometimes deletes it."""
    mean, spread = _spell_length(rng, count, 2, 0.035), rng.uniform(0.1, 0.7)
    deleted, both = rng.uniform(0.0, 0.3), rng.random() < 0.5

    def one_run() -> Series:
        size = min(rng.lognormvariate(0.0, spread), 3.0) * (rng.random() >= deleted)
        idle = rng.randint(1, 2 * mean - 1)
        return [size + 1.0 * both] * (idle > 2) + [size] * idle

    return _spells(rng, count, one_run)


def _evaluated(rng: random.Random, count: int) -> Series:
    """Nothing while it trains, then a ramp of predictions that a metric gathers and drops."""
    trained = _spell_length(rng, count, 3, 0.12)
    batches = rng.randint(1, max(count // 16, 2))
    tail = rng.randint(0, min(batches, 2))
    spell = [0.0] * trained + [(at + 1) / batches for at in range(batches)] + [1.0] * tail
    return _spells(rng, count, lambda: spell)


@family("steady", "held-out-7")
def neighbour_lists_redone_on_drift(rng: random.Random) -> Series:
    """Molecules: pair lists of differing sizes, each held until an atom has moved half a skin."""
    count, level = some_length(rng), some_level(rng)
    mean = _spell_length(rng, count, 1, 0.06)
    share, even = level * log_uniform(rng, 0.002, 0.1), rng.random() < 0.5

    def one_list() -> Series:
        return [rng.gauss(0.0, 1.0)] * (mean if even else rng.randint(1, 2 * mean))

    return steady(rng, _beside(rng, level, _spells(rng, count, one_list), share), 0.3 * level)


@family("steady", "held-out-7")
def game_tree_thrown_away_after_each_move(rng: random.Random) -> Series:
    """Search in a game: a tree grows while it thinks, and the move keeps one branch of it."""
    count, level = some_length(rng), some_level(rng)
    mean, spread = _spell_length(rng, count, 4, 0.1), rng.uniform(0.0, 0.5)
    power, carried = rng.uniform(0.5, 1.1), rng.uniform(0.0, 0.5)

    def one_move() -> Series:
        thought = max(2, round(mean * rng.uniform(1 - spread, 1 + spread)))
        branch = carried * rng.random()
        return [branch + ((at + 1) / mean) ** power for at in range(thought)]

    share = level * log_uniform(rng, 0.02, 1.0)
    return steady(rng, _beside(rng, level, _spells(rng, count, one_move), share), 0.3 * level)


@family("steady", "held-out-7")
def paged_cache_of_chats_that_end(rng: random.Random) -> Series:
    """Serving of a chat model: pages of the chats in flight, all given back when they end."""
    count, level = some_length(rng), some_level(rng)
    chats = _chats(rng, count)
    share = level * log_uniform(rng, 0.01, 0.6) / max(*chats, 1.0)
    return steady(rng, _beside(rng, level, chats, share), 0.2 * level)


@family("steady", "held-out-7")
def episodes_in_a_buffer_soon_full(rng: random.Random) -> Series:
    """RL: episodes go to a buffer on the device, and once it is full the oldest give way."""
    count, level = some_length(rng), some_level(rng)
    filled, spread = rng.uniform(0.06, 0.38) * count, rng.uniform(0.05, 0.6)
    often = rng.choice((1, 1, 2, 3))
    sizes: collections.deque[float] = collections.deque()
    whole, held = filled / often, []
    for at in range(count):
        if at % often == 0:
            sizes.append(min(rng.lognormvariate(0.0, spread), 3.0))
        while math.fsum(sizes) > whole:
            sizes.popleft()
        held.append(math.fsum(sizes) / whole)
    share = level * log_uniform(rng, 0.05, 2.0)
    return steady(rng, _beside(rng, level, held, share), 0.2 * level)


@family("steady", "held-out-7")
def epochs_from_short_to_long_texts(rng: random.Random) -> Series:
    """Fine-tuning on texts in the order of their lengths, anew in every short epoch."""
    count, level = some_length(rng), some_level(rng)
    share = level * log_uniform(rng, 0.02, 1.5)
    return steady(rng, _beside(rng, level, _sorted_lengths(rng, count), share), 0.2 * level)


@family("steady", "held-out-7")
def predictions_gathered_then_scored(rng: random.Random) -> Series:
    """Training with validations: each gathers its predictions on the device, scores, drops."""
    count, level = some_length(rng), some_level(rng)
    share = level * log_uniform(rng, 0.02, 1.0)
    return steady(rng, _beside(rng, level, _evaluated(rng, count), share), 0.3 * level)


@family("steady", "held-out-7")
def heads_pruned_in_early_rounds(rng: random.Random) -> Series:
    """Compression: rounds of pruning make the model smaller, then it is tuned as it is."""
    count, level = some_length(rng), some_level(rng)
    rounds, first = rng.randint(2, 7), rng.uniform(0.02, 0.15)
    apart = (rng.uniform(0.2, 0.42) - first) / rounds
    cut, whole = rng.uniform(0.03, 0.3), level * rng.uniform(0.2, 0.9)
    times = [round(count * (first + apart * one)) for one in range(rounds)]
    pruned = [(1 - cut) ** sum(at >= time for time in times) for at in range(count)]
    return steady(rng, _beside(rng, level, pruned, whole), 0.1 * level)


@family("steady", "held-out-7")
def averaged_weights_switched_on(rng: random.Random) -> Series:
    """Training in which a copy is made early: averaged weights, a teacher, layers unfrozen."""
    count, level = some_length(rng), some_level(rng)
    copies = [
        (rng.uniform(0.03, 0.42) * count, log_uniform(rng, 0.03, 0.6))
        for _ in range(rng.randint(1, 3))
    ]
    held = [math.fsum(size for time, size in copies if at >= time) for at in range(count)]
    return steady(rng, _beside(rng, level, held, level), 0.1 * level)


@family("steady", "held-out-7")
def tides_on_a_mesh_that_refines(rng: random.Random) -> Series:
    """A model of a coast whose mesh is finer at high water, and coarse again after it."""
    count, level = some_length(rng), some_level(rng)
    period = log_uniform(rng, 5.0, max(count / 5, 5.1))
    power, odd, phase = rng.uniform(0.5, 4.0), rng.uniform(0.0, 0.5), rng.random()
    share, cells = level * log_uniform(rng, 0.01, 0.8), rng.choice((6, 20, 1000))
    water = []
    for at in range(count):
        angle = 2 * math.pi * (at / period + phase)
        height = (1 + math.sin(angle) + odd * (1 + math.sin(2 * angle))) / (2 + 2 * odd)
        water.append(round(cells * height**power) / cells)
    return steady(rng, _beside(rng, level, water, share), 0.2 * level)


@family("steady", "held-out-7")
def cell_that_rebinds_its_variable(rng: random.Random) -> Series:
    """A notebook: a cell is run again with other sizes, and its variable holds the last only."""
    count, level = some_length(rng), some_level(rng)
    share = level * log_uniform(rng, 0.01, 0.5)
    return steady(rng, _beside(rng, level, _rebound(rng, count), share), 0.1 * level)


@family("steady", "held-out-7")
def adapters_of_tenants_in_slots(rng: random.Random) -> Series:
    """Serving with an adapter for each tenant: the slots fill up, then the oldest is replaced."""
    count, level = some_length(rng), some_level(rng)
    slots, ranks = rng.randint(3, 24), rng.choice(((8, 16), (8, 16, 32, 64), (4, 128), (16,)))
    tenants = [rng.choice(ranks) for _ in range(slots * rng.randint(3, 9))]
    filled = rng.uniform(1.0, max(0.06 * count, 1.5))
    held: collections.OrderedDict[int, int] = collections.OrderedDict()
    found = []
    for _ in range(count):
        for _ in range(poisson(rng, slots / filled)):
            tenant = rng.randrange(len(tenants))
            held[tenant] = tenants[tenant]
            held.move_to_end(tenant)
            if len(held) > slots:
                held.popitem(last=False)
        found.append(float(sum(held.values())))
    share = level * log_uniform(rng, 0.01, 0.5) / max(*found, 1.0)
    return steady(rng, _beside(rng, level, found, share), 0.1 * level)


@family("cycle_garbage", "held-out-7")
def closures_in_rings_swept_at_thresholds(rng: random.Random) -> Series:
    """Training with rings of closures: young sweeps free most, and a full sweep frees the rest."""
    count, level = some_length(rng), some_level(rng)
    between, sweeps = log_uniform(rng, 3.0, max(count / 7, 4.0)), rng.choice((1, 1, 2, 3, 5))
    survives, often = rng.uniform(0.1, 0.8), rng.choice((1.0, rng.uniform(0.4, 1.0)))
    uneven = rng.uniform(0.0, 0.6)
    skipped = rng.randint(count, 2 * count)
    young = old = made = 0.0
    number, found = 0, []
    for _ in range(skipped + count):
        young += rng.uniform(0.7, 1.3) * (rng.random() < often)
        made += rng.uniform(1 - uneven, 1 + uneven)
        if made >= between / sweeps:
            made, number = 0.0, number + 1
            old, young = old + survives * young, 0.0
            old *= number % sweeps != 0
        found.append(young + old)
    garbage = found[skipped:]
    share = level * log_uniform(rng, 0.01, 1.0) / max(*garbage, 1.0)
    return steady(rng, _beside(rng, level, garbage, share), 0.2 * level)


@family("leak", "held-out-7")
def memo_keyed_by_the_tensor_itself(rng: random.Random) -> Series:
    """A cache of masks, keyed by tensors that never come again, as long as each batch is."""
    count, level = some_length(rng), some_level(rng)
    lengths = _sorted_lengths(rng, count)
    missed, power = rng.choice((1.0, rng.uniform(0.7, 1.0))), rng.choice((0.0, 1.0, 2.0))

    def masks() -> Series:
        return _climbing([max(one, 0.0) ** power * (rng.random() < missed) for one in lengths])

    base = _beside(rng, level, lengths, level * log_uniform(rng, 0.005, 0.2))
    return leaking(rng, base, _kept(masks), level)


@family("leak", "held-out-7")
def captured_graphs_of_ever_new_shapes(rng: random.Random) -> Series:
    """Inference that captures a graph for each new shape of input, and new ones still come."""
    count, level = some_length(rng), some_level(rng)
    power, spread = rng.uniform(0.65, 0.95), rng.choice((0.0, rng.uniform(0.1, 0.6)))
    often = log_uniform(rng, max(20 / count, 0.1), 1.5)

    def graphs() -> Series:
        rates = [often * power * ((at + 1) / count) ** (power - 1) for at in range(count)]
        return _climbing([_lumps(rng, poisson(rng, rate), spread) for rate in rates])

    return leaking(rng, _quivering(rng, count, level), _kept(graphs), level)


@family("leak", "held-out-7")
def pages_of_clients_that_hung_up(rng: random.Random) -> Series:
    """Serving of a chat model that never frees the pages of those who hang up in a chat."""
    count, level = some_length(rng), some_level(rng)
    chats = _chats(rng, count)
    share = level * log_uniform(rng, 0.01, 0.3) / max(*chats, 1.0)
    base = _beside(rng, level, chats, share)
    rate, spread = _event_rate(rng, count), rng.uniform(0.1, 0.8)

    def pages() -> Series:
        return _climbing([_lumps(rng, poisson(rng, rate), spread) for _ in range(count)])

    return leaking(rng, base, _kept(pages), level, 1.2)


@family("leak", "held-out-7")
def hooks_added_again_every_epoch(rng: random.Random) -> Series:
    """A study of activations that adds its hook once more each epoch; all hooks keep outputs."""
    count, level = some_length(rng), some_level(rng)
    steps = rng.randint(2, max(count // 14, 2))
    at_end, phase, other = rng.random() < 0.5, rng.randrange(steps), rng.uniform(0.4, 2.0)

    def outputs() -> Series:
        sizes = []
        for at in range(count):
            hooks = math.ceil(other * count / steps) + (at + phase) // steps
            called = not at_end or (at + phase) % steps == 0
            sizes.append(hooks * rng.uniform(0.8, 1.2) * called)
        return _climbing(sizes)

    return leaking(rng, _quivering(rng, count, level), _kept(outputs), level)


@family("leak", "held-out-7")
def tracebacks_that_hold_their_batches(rng: random.Random) -> Series:
    """A data pipeline that collects its exceptions, whose frames hold batches of any size."""
    count, level = some_length(rng), some_level(rng)
    rate, heavy = _event_rate(rng, count, 0.7), rng.uniform(1.3, 3.0)
    skew = [rng.random() ** 3 for _ in range(count)]
    base = _beside(rng, level, skew, level * log_uniform(rng, 0.001, 0.05))

    def frames() -> Series:
        return _climbing(
            [min(rng.paretovariate(heavy), 8.0) * (rng.random() < rate) for _ in range(count)]
        )

    return leaking(rng, base, _kept(frames), level)


@family("leak", "held-out-7")
def recorder_left_on_from_some_step(rng: random.Random) -> Series:
    """Training with validations in which someone turns on a recorder of tensors for good."""
    count, level = some_length(rng), some_level(rng)
    base = _beside(rng, level, _evaluated(rng, count), level * log_uniform(rng, 0.005, 0.1))
    begun, often = rng.uniform(0.05, 0.42) * count, rng.choice((1, 1, 2, 4))
    often = min(often, max(count // 40, 1))

    def recorded() -> Series:
        return _climbing(
            [rng.uniform(0.5, 1.5) * (at > begun and at % often == 0) for at in range(count)]
        )

    return leaking(rng, base, _kept(recorded), level, 1.3)


@family("leak", "held-out-7")
def league_of_all_past_selves(rng: random.Random) -> Series:
    """Self-play: rollouts gather and go in each generation, whose policy joins a league."""
    count, level = some_length(rng), some_level(rng)
    steps = rng.randint(2, max(count // 14, 2))
    phase, won = rng.randrange(steps), rng.choice((1.0, rng.uniform(0.75, 1.0)))

    def league() -> Series:
        return _climbing(
            [float((at + phase) % steps == 0 and rng.random() < won) for at in range(count)]
        )

    power = rng.uniform(0.5, 1.5)
    rollouts = [(((at + phase) % steps) / steps) ** power for at in range(count)]
    base = _beside(rng, level, rollouts, level * log_uniform(rng, 0.003, 0.2))
    return leaking(rng, base, _kept(league), level)


@family("leak", "held-out-7")
def inflow_of_particles_never_culled(rng: random.Random) -> Series:
    """Plasma driven in pulses: particles come with each, and those that left are still held."""
    count, level = some_length(rng), some_level(rng)
    pulse: Series = []

    def particles() -> Series:
        # Of long and deep pulses some end between two: they are drawn anew as well.
        period, depth = log_uniform(rng, 4.0, max(count / 6, 4.1)), rng.uniform(0.2, 2.0)
        phase, uneven = rng.random(), rng.uniform(0.0, 0.5)
        pulse[:] = [math.sin(2 * math.pi * (at / period + phase)) for at in range(count)]
        return _climbing(
            [max(1 + depth * one, 0.0) * rng.uniform(1 - uneven, 1 + uneven) for one in pulse]
        )

    kept = _kept(particles)
    base = _beside(rng, level, pulse, level * log_uniform(rng, 0.001, 0.05))
    return leaking(rng, base, kept, level)


@family("leak", "held-out-7")
def cells_whose_outputs_stay_in_history(rng: random.Random) -> Series:
    """A notebook whose history keeps every output: bursts of cells, and the user thinks."""
    count, level = some_length(rng), some_level(rng)
    base = _beside(rng, level, _rebound(rng, count), level * log_uniform(rng, 0.005, 0.1))
    thinks, cells = _spell_length(rng, count, 1, 0.06), rng.randint(2, 8)
    spread = rng.uniform(0.1, 0.8)

    def outputs() -> Series:
        sizes: Series = []
        while len(sizes) < count:
            sizes += [rng.lognormvariate(0.0, spread) for _ in range(rng.randint(1, cells))]
            sizes += [0.0] * rng.randint(1, max(2 * thinks - 1, 1))
        return _climbing(sizes[:count])

    return leaking(rng, base, _kept(outputs), level, 1.2)


@family("leak", "held-out-7")
def restarted_actors_and_their_ghosts(rng: random.Random) -> Series:
    """RL with actors that crash: each restart loads the policy anew, and the old one stays."""
    count, level = some_length(rng), some_level(rng)
    rate, away = _event_rate(rng, count, 0.4), rng.choice((0, 1, 1, 2))

    def ghosts() -> Series:
        return _climbing([float(rng.random() < min(rate, 0.7)) for _ in range(count)])

    kept = _kept(ghosts)
    loading = [-float(kept[at] > kept[max(at - away, 0)]) for at in range(count)]
    base = _beside(rng, level, loading, level * log_uniform(rng, 0.003, 0.1))
    return leaking(rng, base, kept, level)
