# SPDX-License-Identifier: Apache-2.0
"""`what_if`: replays of a program under other settings, or with changes to the program.

Without settings it searches for those with the smallest footprint that fits.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, product
from typing import Any, overload

from neutracer._native import core
from neutracer.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Copyable,
    Document,
    Figure,
    Note,
    Paragraph,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_share
from neutracer.whatif.replaying import (
    OUTCOME_HEADS,
    Change,
    Fidelity,
    Outcome,
    Replayer,
    change_program,
    doubt,
    named,
    named_recorded,
    outcome_cells,
    stop_of,
    trust_blocks,
)
from neutracer.whatif.settings import canonical, wanted_settings

# ---- Bound -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound(PlainRow):
    """The packing lower bound: no allocator can serve the program with less memory.

    Attributes:
        bytes: The peak of live blocks, each rounded up to 512 bytes, PyTorch's smallest unit.
        event: The event of that peak; -1: before the trace.
        with_failed_bytes: The same, counting the requests that failed in the recording.
    """

    bytes: int
    event: int
    with_failed_bytes: int
    _beyond: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def of(self, outcome: Outcome) -> int:
        """The bytes to compare an outcome's peak with.

        A replay ends with a request that failed in the recording and succeeds now; the bound
        is then of the live blocks up to there and that request.
        """
        if outcome.beyond_event is None:
            return self.bytes
        return self._beyond.get(outcome.beyond_event, self.bytes)


def packing_bound(timeline: Timeline, counts_failed: bool = True) -> Bound:
    """The packing lower bound of a trace."""
    rows = timeline.allocations
    changes = [0] * (len(timeline) + 1)
    columns = (rows.codes("requested_size"), rows.codes("alloc_event"), rows.codes("free_event"))
    for requested, made, freed in zip(*columns, strict=True):
        size = -(-requested // 512) * 512
        if freed != -2:  # -2: freed before the trace
            changes[made + 1] += size
        if freed >= 0:
            changes[freed + 1] -= size
    live = list(accumulate(changes))
    most = max(live)
    wanted, beyond = [most], {}
    if timeline.facts["oom_count"]:
        sizes, so_far = timeline.events.codes("size"), list(accumulate(live, max))
        for event in timeline.events.find("action", "oom"):
            size = sizes[event] if counts_failed else 0
            wanted.append(live[event + 1] + size)
            beyond[event] = max(so_far[event + 1], wanted[-1])
    return Bound(most, live.index(most) - 1, max(wanted), beyond)


# ---- Search ------------------------------------------------------------------------------

OBJECTIVES = ("fit", "reserved", "speed")

# Segments are multiples of this, so a finer capacity makes no difference.
_GRAIN = 2 << 20

# More than any device has.
_MOST = 1 << 50

_SPLITS = (20, 32, 64, 128, 256, 512, 1024)
_ROUNDUPS = ("2", "4", "8", "16", "[256:1,512:2,1024:4,>:8]")
_LARGES = (12, 40, 64)
_THRESHOLDS = ("0.6", "0.7", "0.8", "0.9")

# The core's codes for address orders, for the time at which blocks used by other streams become
# free, and for rebuilding the state before the trace.
_ORDERS, _RANDOM, _SEEDS = (2, 3), 1, (1, 2)
_TIMINGS = (1, 2)
_BEGINS = (1, 2, 3)


def candidates(replayer: Replayer) -> tuple[str, ...]:
    """About three dozen settings to try, simple ones first.

    They include the garbage collection threshold only if PyTorch limits the process: without a
    limit it has no effect.
    """
    splits = [f"max_split_size_mb:{size}" for size in _SPLITS]
    roundups = [f"roundup_power2_divisions:{each}" for each in _ROUNDUPS]
    found = ["", "expandable_segments:True", *splits, *roundups]
    found += [f"expandable_segments:True,{each}" for each in roundups]
    found += [f"{a},{b}" for a, b in product(splits[2:5], roundups[1:3])]
    found += [f"{each},max_non_split_rounding_mb:64" for each in splits[2:5]]
    if replayer.knows_large_segments:
        larges = [f"large_segment_size_mb:{size}" for size in _LARGES]
        found += [*larges, *(f"expandable_segments:True,{each}" for each in larges)]
    if replayer.is_limited:
        collecting = [f"garbage_collection_threshold:{each}" for each in _THRESHOLDS]
        found += collecting
        found += [f"{a},{b}" for a, b in product(splits[3:5], collecting[::2])]
        found += [f"{a},{b}" for a, b in product(roundups[1:3], collecting[::2])]
    return tuple(dict.fromkeys(canonical(each) for each in found))


def order_of(
    objective: str,
    outcome: Outcome,
    smallest: int | None,
    alike: tuple[int, int] = (0, 0),
) -> tuple[int, ...]:
    """The sort key of a candidate; the lowest is the best.

    A program that fails ranks behind one that does not, under any objective. Of two that stop
    for lack of memory, the one that gets further ranks first, under "fit" the one that needs
    less for all of the program: figures of different parts can't be compared.

    Args:
        smallest: Its smallest capacity in bytes, or None.
    """
    peak = outcome.peak_reserved_bytes
    highest = outcome.range("peak_reserved_bytes")[1]
    reserved = peak if highest is None or "beyond" in outcome.causes else highest
    stopped = outcome.stopped_event
    failures = (int(stopped is not None), outcome.ooms)
    if stopped is not None:
        failures = (1, 0 if objective == "fit" else -stopped)
    keys = {
        "fit": (peak if smallest is None else smallest, reserved),
        "reserved": (reserved, peak),
        "speed": (outcome.device_calls + outcome.retries, reserved),
    }
    figures = (max(key, up_to) for key, up_to in zip(keys[objective], alike, strict=True))
    simplicity = outcome.settings.count(":")
    return (*failures, *figures, simplicity, outcome.device_calls)


def distinct_rules(replayer: Replayer, tried: tuple[str, ...]) -> tuple[str, ...]:
    """The settings without those equivalent to an earlier one for this program, as a limit above
    every possible block is."""
    largest, held = _largest(replayer.timeline)
    found: dict[tuple[object, ...], str] = {}
    for settings in tried:
        found.setdefault(_rules(settings, largest, held), settings)
    return tuple(found.values())


def _largest(timeline: Timeline) -> tuple[int, int]:
    """The bytes of the largest request, and of the largest segment that precedes the trace."""
    events, segments = timeline.events, timeline.segments
    largest = max(timeline.allocations.codes("requested_size"), default=0)
    if timeline.facts["oom_count"]:
        sizes = events.codes("size")
        failed = [sizes[event] for event in events.find("action", "oom")]
        largest = max(largest, *failed)
    lives = zip(segments.codes("size"), segments.codes("alloc_event"), strict=True)
    return largest, max((size for size, made in lives if made < 0), default=0)


def _rules(settings: str, largest: int, held: int) -> tuple[object, ...]:
    """The effective settings for requests of up to `largest` bytes and existing segments of up
    to `held` bytes."""
    parsed = core.parse_settings(settings)
    # The table's first entry is for all up to 2 MiB, each further one for the next power.
    entry = min(max(largest.bit_length() - 21, 0), 15)
    divisions = [max(each, 1) for each in parsed["roundup_power2_divisions"][: entry + 1]]
    rounded = largest * 2 if max(divisions) > 1 else largest
    segment = max(-(-rounded // _GRAIN) * _GRAIN, parsed["large_segment_size"], held)
    split = (parsed["max_split_size"], parsed["max_non_split_rounding"])
    if split[0] is None or (split[0] > segment and not parsed["expandable_segments"]):
        split = (None, None)
    others = ("expandable_segments", "large_segment_size", "garbage_collection_threshold")
    rest = tuple(parsed[name] for name in (*others, "per_process_memory_fraction"))
    return (tuple(divisions), *split, *rest)


class _Fitting:
    """Whether a program succeeds with a number of bytes.

    It has to succeed both on a device of that size and under a limit of that size on a larger
    device. The two differ with expandable segments (a limit compares requests, a device needs
    whole pages) and with garbage collection (which starts at a share of a limit).

    Args:
        settings: The settings; None are the recorded ones.
        cases: Other keywords of `replayer.quick` with which it has to succeed too.
    """

    def __init__(
        self, replayer: Replayer, settings: str | None, cases: Iterable[dict[str, int]] = ({},)
    ) -> None:
        text = replayer.recorded_settings if settings is None else settings
        rules = core.parse_settings(text)
        collects = float(rules["garbage_collection_threshold"]) > 0.0
        differ = rules["expandable_segments"] or collects
        # With a limit on one device more runs go the same way than with other devices.
        kinds = (True, False) if differ else (replayer.is_limited,)
        self._quick = partial(replayer.quick, settings)
        self._cases = [(kind, case) for case in cases for kind in kinds]

    def __call__(self, nbytes: int) -> bool:
        for at, (is_share, case) in enumerate(self._cases):
            if not self._quick(nbytes, is_share=is_share, **case).fits:
                # It is the likeliest to fail with other sizes too.
                self._cases.insert(0, self._cases.pop(at))
                return False
        return True


def smallest_capacity(
    replayer: Replayer, settings: str | None, least: int, *, beaten_by: int | None = None
) -> int | None:
    """The least memory with which every request of the program succeeds, a multiple of 2 MiB; None
    if none was found up to `beaten_by`."""
    return _least(_Fitting(replayer, settings), least, max(least // 4, 1), beaten_by)


def _least(fits: Callable[[int], bool], least: int, step: int, beaten_by: int | None) -> int | None:
    """The least bytes that fit, from `least` on in growing steps, then by bisection."""
    most = _MOST if beaten_by is None else beaten_by
    low = high = -(-max(least, _GRAIN) // _GRAIN) * _GRAIN
    step = max(step // _GRAIN, 1) * _GRAIN
    while not fits(high):
        low, high, step = high, high + step, step + step // 4 // _GRAIN * _GRAIN
        if high > _MOST:
            return None
    while high - low > _GRAIN and low < most:
        middle = (low + high) // 2 // _GRAIN * _GRAIN
        if fits(middle):
            high = middle
        else:
            low = middle
    return high if high == low or low < most else None


def confirmed_capacity(replayer: Replayer, settings: str | None, nbytes: int) -> int:
    """`nbytes` of `smallest_capacity`, raised until runs with other address orders and stream
    timings succeed too; `settings` None are the recorded ones."""
    cases: list[dict[str, int]] = [{}, *({"order": order} for order in _ORDERS)]
    cases += [{"order": _RANDOM, "seed": seed} for seed in _SEEDS]
    if replayer.facts["has_later"]:
        cases += [{"timing": timing} for timing in _TIMINGS]
    if replayer.facts["areas"] and settings is not None:
        cases += [{"begin": begin} for begin in _BEGINS]
    found = _least(_Fitting(replayer, settings, cases), nbytes, nbytes // 64, None)
    return nbytes if found is None else found


@dataclass(frozen=True)
class Survey:
    """The runs of a program that settings are compared by."""

    recorded: Outcome  # The outcome of the recorded settings.
    smallest: int | None  # The smallest capacity under those, or None.
    bound: Bound
    outcomes: tuple[Outcome, ...]  # Those of the other distinct settings, without ranges.


def survey(replayer: Replayer, tried: tuple[str, ...]) -> Survey:
    """Run the program as recorded and under each setting, in parallel."""

    def own() -> tuple[Bound, int | None]:
        divisions = replayer.snap.settings_in_force["roundup_power2_divisions"]
        bound = packing_bound(replayer.timeline, max(divisions) <= 1)
        return bound, smallest_capacity(replayer, None, bound.with_failed_bytes)

    def recorded() -> tuple[Outcome, object]:
        return replayer.outcome(None), replayer.check

    def quick(settings: str) -> Callable[[], Outcome]:
        return lambda: replayer.quick(settings)

    # Computed once, before threads need it.
    _ = replayer.limits, replayer.silent_places
    jobs: list[Callable[[], Any]] = [own, recorded]
    jobs += [quick(settings) for settings in distinct_rules(replayer, tried)]
    (bound, smallest), (outcome, _check), *found = replayer.map(lambda job: job(), jobs)
    return Survey(outcome, smallest, bound, tuple(found))


def smallest_capacities(
    replayer: Replayer, outcomes: list[Outcome], found: Survey, beaten_by: int | None = None
) -> dict[str, int | None]:
    """The smallest capacity of each outcome, by its settings; arguments as for
    `smallest_capacity`."""

    def search(outcome: Outcome) -> int | None:
        if outcome.settings == replayer.recorded_settings:
            return found.smallest
        least = found.bound.with_failed_bytes
        return smallest_capacity(replayer, outcome.settings, least, beaten_by=beaten_by)

    needs = replayer.map(search, outcomes)
    return {each.settings: nbytes for each, nbytes in zip(outcomes, needs, strict=True)}


# ---- Rank --------------------------------------------------------------------------------

#: Figures within this share of the least count as equal, since the model is of one run; a
#: setting that saves less is no better than the recorded one.
ALIKE = 0.02

# The most candidates with ranges.
_RANGED = 6

# The budget of the search for smallest capacities, in replayed program steps (about ten seconds
# of one core): on a longer trace it covers fewer candidates.
_STEPS = 60_000_000
_RUNS_PER_SEARCH = 16

#: An outcome, and its smallest capacity if searched for.
Row = tuple[Outcome, int | None]


def rank(replayer: Replayer, objective: str, found: Survey) -> list[Row]:
    """The distinct outcomes without ranges, the best first; with smallest capacities if ranked
    by them."""
    distinct: dict[tuple[object, ...], Outcome] = {}
    for outcome in found.outcomes:
        figures = (outcome.peak_reserved_bytes, outcome.reserved_bytes, outcome.device_allocs)
        distinct.setdefault((*figures, outcome.device_frees, outcome.ooms), outcome)
    tried = sorted(distinct.values(), key=lambda each: order_of(objective, each, None))
    if objective != "fit":
        return _ranked(objective, [(each, None) for each in tried])
    tried = tried[: max(_RANGED, _STEPS // _RUNS_PER_SEARCH // replayer.facts["steps"])]
    beaten_by = _beaten_by(found, tried)
    needs = smallest_capacities(replayer, tried, found, beaten_by)
    rows = [(each, needs[each.settings]) for each in tried]
    if beaten_by is not None:
        rows = [(each, nbytes) for each, nbytes in rows if nbytes is not None]
    return _ranked(objective, rows)


def _ranked(objective: str, rows: list[Row]) -> list[Row]:
    alike = _alike(objective, rows)
    return sorted(rows, key=lambda row: order_of(objective, row[0], row[1], alike))


def _alike(objective: str, rows: list[Row]) -> tuple[int, int]:
    """The values up to which the two figures of an objective count as equal to the least."""
    keys = [order_of(objective, *row)[:4] for row in rows]
    if not keys:
        return (0, 0)
    *failures, first, _ = min(keys)
    first = _above(first)
    seconds = [key[3] for key in keys if [*key[:2]] == failures and key[2] <= first]
    return first, _above(min(seconds))


def _above(figure: int) -> int:
    return int(figure * (1 + ALIKE))


def is_worth(objective: str, row: Row, recorded: Row) -> bool:
    """Whether a setting beats the recorded one by enough to be worth a change.

    It fails less; or it is better by more than `ALIKE` in the objective, or in the second figure
    if the two are equal in the first. If both stop for lack of memory, only the memory that the
    whole program needs counts.
    """
    mine, own = (order_of(objective, *each)[:4] for each in (row, recorded))
    if mine[:2] != own[:2]:
        return mine < own
    is_less = [_above(here) < there for here, there in zip(mine[2:], own[2:], strict=True)]
    if recorded[0].stopped_event is not None:
        is_known = objective == "fit" and None not in (row[1], recorded[1])
        return is_known and is_less[0]
    return mine[2] < own[2] and any(is_less)


def _beaten_by(found: Survey, tried: list[Outcome]) -> int | None:
    """The smallest capacity above which a setting can't beat the recorded ones; None if some
    setting beats them by failing less."""

    def failures(outcome: Outcome) -> tuple[int, ...]:
        return order_of("fit", outcome, None)[:2]

    fails_less = any(failures(each) < failures(found.recorded) for each in tried)
    return None if fails_less or found.smallest is None else _above(found.smallest)


def best_of(
    replayer: Replayer, objective: str, found: Survey, ranked: list[Row], most: int
) -> list[Row]:
    """Up to `most` rows of `rank` that beat the recorded settings, with ranges.

    A range never improves a rank, so only the best rows without one get one.
    """
    rows, own = ranked[:_RANGED], (found.recorded, found.smallest)
    ranged: set[str] = set()
    while True:
        able = _ranked(objective, [row for row in rows if is_worth(objective, row, own)])[:most]
        missing = [row for row in able if row[0].settings not in ranged]
        if not missing:
            return able
        names = [outcome.settings for outcome, _ in missing]
        ranges = dict(zip(names, replayer.map(replayer.outcome, names), strict=True))
        rows = [(ranges.get(outcome.settings, outcome), nbytes) for outcome, nbytes in rows]
        ranged.update(names)


# ---- Messages ----------------------------------------------------------------------------


def gain(objective: str, row: Row, recorded: Row) -> tuple[int, str]:
    """The advantage of a setting over the recorded one: bytes saved, and a message."""
    (outcome, smallest), (before, own) = row, recorded
    name = named(outcome)
    if objective == "fit" and smallest is not None and own is not None and smallest < own:
        message = f"{name}: every request succeeds with {format_bytes(smallest)}"
        return own - smallest, f"{message} instead of {format_bytes(own)}"
    if before.stopped_event is not None:
        stop = stop_of(outcome)
        until = "the end of the trace" if stop is None else f"event {stop}"
        return 0, f"{name}: the program gets to {until} instead of event {stop_of(before)}"
    if outcome.ooms < before.ooms:
        errors = format_count(outcome.ooms, "out-of-memory error")
        return 0, f"{name}: {errors} instead of {format_count(before.ooms)}"
    peaks = outcome.peak_reserved_bytes, before.peak_reserved_bytes
    saved = max(peaks[1] - peaks[0], 0)
    if objective == "speed":
        calls = f"{format_count(outcome.device_calls)} device calls"
        return saved, f"{name}: {calls} instead of {format_count(before.device_calls)}"
    return saved, _less_reserved(outcome, before)


def _less_reserved(outcome: Outcome, before: Outcome) -> str:
    less, more = (format_bytes(one.peak_reserved_bytes) for one in (outcome, before))
    return f"{named(outcome)}: peak reserved {less} instead of {more}"


def cost(more: int) -> str:
    """The additional device calls of a choice, in words."""
    noun = "more device call" if more > 0 else "fewer device call"
    return format_count(abs(more), noun) if more else "as many device calls"


def stops(outcome: Outcome) -> tuple[Note, ...]:
    """A note that the figures of a choice cover only a part of the program."""
    stop = stop_of(outcome)
    text = f"it stops for lack of memory at event {stop}: the peak is of the part before"
    return () if stop is None else (Note(text),)


def near_least(
    objective: str, needed: int | None, least: tuple[int, str] | None
) -> tuple[Note, ...]:
    """A note on a setting that needs insignificantly less memory than the best one."""
    if objective != "fit" or least is None or needed is None:
        return ()
    if not least[0] < needed <= least[0] * (1 + ALIKE):
        return ()
    share = format_share(ALIKE, decimals=0)
    return (Note(f"within {share} of the least, {format_bytes(least[0])} with {least[1]}"),)


def above(outcome: Outcome, bound: Bound) -> float:
    """By how much the peak of an outcome exceeds its lower bound, as a share of the bound."""
    least = bound.of(outcome)
    return outcome.peak_reserved_bytes / least - 1 if least else 0.0


def bound_sentence(bound: Bound, recorded: Outcome, best: Outcome | None) -> str:
    """The lower bound, and how far above it the peaks of the recorded and the best settings are."""
    where = f"event {format_count(bound.event)}" if bound.event >= 0 else "the start"
    text = f"No allocator could manage with less than {format_bytes(bound.bytes)}, live at {where}"
    if bound.with_failed_bytes > bound.bytes:
        text += f", or {format_bytes(bound.with_failed_bytes)} with the failed requests"
    if recorded.stopped_event is not None or not bound.bytes:
        return f"{text}."
    shown = [(recorded, "as recorded")]
    if best is not None and best.stopped_event is None:
        shown.append((best, f"with {named(best)}"))
    parts: list[str] = []
    previous = 0
    for outcome, name in shown:
        least = bound.of(outcome)
        base = "it" if least == bound.with_failed_bytes == bound.bytes else format_bytes(least)
        over = "" if least == previous else f" above {base}"
        parts.append(f"{format_share(above(outcome, bound))}{over} {name}")
        previous = least
    return f"{text}. Reserved at its peak: {', '.join(parts)}."


# ---- Recommend ---------------------------------------------------------------------------

# The number of choices.
_SHOWN = 3

#: The smallest capacity of all settings in bytes, and the name of its setting.
Least = tuple[int, str]


@dataclass(frozen=True)
class Choice(PlainRow):
    """One setting that beats the recorded one.

    Attributes:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF.
        environment: The assignment for a shell.
        outcome: The replayed outcome.
        smallest_capacity_bytes: The least memory for PyTorch's allocator with which every
            request succeeds (including those that failed in the recording), as a device's size
            and as PyTorch's limit, also with other address orders; None if none was found.
            CUDA's context and other libraries come on top.
        saved_bytes: The peak of reserved under the recorded settings minus this one's.
        more_device_calls: Additional cudaMalloc and cudaFree calls, mappings and unmappings
            compared with the recorded settings; negative if there are fewer.
        above_bound: The excess of its peak of reserved over the packing lower bound (that of
            the replayed part if a failed request now succeeds), as a share of the bound. None
            if the program stops for lack of memory.
    """

    settings: str
    environment: str
    outcome: Outcome
    smallest_capacity_bytes: int | None
    saved_bytes: int
    more_device_calls: int
    above_bound: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class RecommendReport(Report):
    """The best of a few dozen settings for one program.

    Attributes:
        device: The device.
        events: Events of its trace.
        objective: "fit", "reserved" or "speed".
        capacity_bytes: The memory limit of the process; None is the recorded one.
        tried: The number of settings tried.
        recorded: The outcome under the file's own settings.
        settings_recorded: Whether the file states them; if not, they are inferred from its trace.
        recorded_capacity_bytes: The smallest capacity under those.
        choices: The best, at most three; empty if none beats the recorded settings.
        bound: The packing lower bound.
        check: How faithfully the model replays the recording.
        notes: Limits of the trace.
    """

    schema = "neutracer.recommend/1"
    derived = ("fidelity",)

    device: int
    events: int
    objective: str
    capacity_bytes: int | None
    tried: int
    recorded: Outcome
    recorded_capacity_bytes: int | None
    choices: tuple[Choice, ...]
    bound: Bound
    check: Fidelity
    notes: tuple[str, ...]
    settings_recorded: bool = True

    @property
    def fidelity(self) -> float:
        """1.0 where the model reproduces every address and size of the recording."""
        return self.check.value

    @property
    def best(self) -> Choice | None:
        """The first choice, or None if none beats the recorded settings."""
        return self.choices[0] if self.choices else None

    def document(self) -> Document:
        """The report as a page."""
        facts: tuple[str, ...] = (
            f"cuda:{self.device}",
            format_count(self.events, "event"),
            f"objective {self.objective}",
            f"{format_count(self.tried, 'setting')} tried",
        )
        if self.capacity_bytes is not None:
            facts = (*facts, f"at most {format_bytes(self.capacity_bytes)}")
        outcomes = (self.recorded, *(choice.outcome for choice in self.choices))
        blocks: list[Block] = [*self.finding_blocks(), self._table(), self._needs()]
        best = None if self.best is None else self.best.outcome
        blocks.append(Paragraph(bound_sentence(self.bound, self.recorded, best)))
        blocks += trust_blocks(self.check, outcomes, self.notes)
        return Document("Recommended settings", facts, tuple(blocks))

    def _named_recorded(self) -> str:
        return named_recorded(self.recorded, is_stated=self.settings_recorded)

    def _table(self) -> Table:
        rows = [outcome_cells(self.recorded, self._named_recorded())]
        rows += [outcome_cells(choice.outcome, named(choice.outcome)) for choice in self.choices]
        return Table("", tuple(rows), OUTCOME_HEADS)

    def _needs(self) -> Table:
        shown = [(self.recorded_capacity_bytes, self._named_recorded())]
        shown += [(each.smallest_capacity_bytes, named(each.outcome)) for each in self.choices]
        rows = tuple(
            ("none found" if nbytes is None else Figure.bytes(nbytes), name)
            for nbytes, name in shown
        )
        return Table("Smallest memory in which every request succeeds", rows)


def best_settings(replayer: Replayer, objective: str) -> RecommendReport:
    """Search the allocator's settings for the best ones by one of `OBJECTIVES`."""
    tried = candidates(replayer)
    found = survey(replayer, tried)
    choices, least = _choices(replayer, objective, found)
    if found.smallest is not None:
        found = replace(found, smallest=confirmed_capacity(replayer, None, found.smallest))
    return RecommendReport(
        device=replayer.device,
        events=len(replayer.timeline),
        objective=objective,
        capacity_bytes=replayer.capacity,
        tried=len(tried),
        recorded=found.recorded,
        recorded_capacity_bytes=found.smallest,
        choices=choices,
        bound=found.bound,
        check=replayer.check,
        notes=replayer.notes(),
        settings_recorded=replayer.snap.settings_stated,
        findings=(
            *first_findings(replayer.snap, device=replayer.device),
            *_findings(objective, choices, least, found, replayer),
        ),
    )


def _choices(
    replayer: Replayer, objective: str, found: Survey
) -> tuple[tuple[Choice, ...], Least | None]:
    """The best settings that beat the recorded ones, and the smallest capacity of all."""
    rows = rank(replayer, objective, found)
    best = best_of(replayer, objective, found, rows, _SHOWN)
    if objective != "fit":
        needs = smallest_capacities(replayer, [each for each, _ in best], found)
        best = [(outcome, needs[outcome.settings]) for outcome, _ in best]
    known = [*best, *rows, (found.recorded, found.smallest)]
    needs_of = [(nbytes, named(each)) for each, nbytes in known if nbytes is not None]
    least = min(needs_of, key=lambda pair: pair[0], default=None)

    def sure(row: Row) -> Row:
        outcome, nbytes = row
        if nbytes is None:
            return row
        return outcome, confirmed_capacity(replayer, outcome.settings, nbytes)

    rows = replayer.map(sure, best)
    return tuple(_choice(*row, found.recorded, found.bound) for row in rows), least


def _choice(outcome: Outcome, smallest: int | None, recorded: Outcome, bound: Bound) -> Choice:
    return Choice(
        outcome.settings,
        f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(outcome.settings)}",
        outcome,
        smallest,
        recorded.peak_reserved_bytes - outcome.peak_reserved_bytes,
        outcome.device_calls - recorded.device_calls,
        None if outcome.stopped_event is not None else above(outcome, bound),
    )


def _findings(
    objective: str,
    choices: tuple[Choice, ...],
    least: Least | None,
    found: Survey,
    replayer: Replayer,
) -> tuple[Finding, ...]:
    own, recorded = found.smallest, found.recorded
    if not choices:
        own_settings = settings_words(recorded.settings, is_stated=replayer.snap.settings_stated)
        message = f"no setting beats the program's own: {own_settings}"
        verdict = _verdict(None, least, found, replayer)
        return (*verdict, Finding("no_recommendation", Severity.INFO, 0, message))
    best = choices[0]
    saved, message = gain(objective, (best.outcome, best.smallest_capacity_bytes), (recorded, own))
    near = near_least(objective, best.smallest_capacity_bytes, least)
    # Calls of different parts of the program can't be compared.
    alike = best.outcome.stopped_event == recorded.stopped_event
    calls = cost(best.more_device_calls) if alike else ""
    evidence = (*near, *stops(best.outcome), *doubt(replayer.check))
    advice = (
        Note(Copyable(best.environment), detail=calls),
        Note("From torch 2.9 on the variable is also called PYTORCH_ALLOC_CONF."),
    )
    finding = Finding("recommendation", Severity.INFO, saved, message, evidence, advice)
    return (*_verdict(best, least, found, replayer), finding)


def _verdict(
    best: Choice | None, least: Least | None, found: Survey, replayer: Replayer
) -> tuple[Finding, ...]:
    if replayer.capacity is None:
        return ()
    room, own, recorded = format_bytes(replayer.capacity), found.smallest, found.recorded
    beyond = "; the program's behaviour beyond its trace is unknown"
    if recorded.fits:
        message = f"fits in {room} as it is"
        if own is not None:
            message += f": every request succeeds from {format_bytes(own)} on"
        if recorded.beyond_event is not None:
            message += beyond
        return (Finding("fits", Severity.INFO, 0, message),)
    if best is not None and best.outcome.fits:
        message = f"does not fit in {room} as it is, but does with {named(best.outcome)}"
        if best.outcome.beyond_event is not None:
            message += beyond
        return (Finding("fits_with_settings", Severity.SERIOUS, replayer.capacity, message),)
    message = f"does not fit in {room} under any of the settings tried"
    if least is not None:
        message += f"; {least[1]} needs {format_bytes(least[0])}"
    return (Finding("out_of_memory", Severity.SEVERE, replayer.capacity, message),)


# ---- What if -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class WhatIfReport(Report):
    """One program replayed under several allocator settings.

    `plan["expandable_segments:True"]` is the `Outcome` of that setting, in any spelling;
    `plan[""]` that of PyTorch's default. Iterating gives the settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        capacity_bytes: The memory limit of the process; None is the recorded one.
        recorded: The outcome under the file's own settings.
        settings_recorded: Whether the file states them; if not, they are inferred from its trace.
        outcomes: Those of the default and of the given settings, in that order.
        check: How faithfully the model replays the recording.
        notes: Changes to the program, and limits of the trace.
        is_changed: Whether the outcomes are of a changed program.
    """

    schema = "neutracer.what_if/1"
    derived = ("fidelity",)

    device: int
    events: int
    capacity_bytes: int | None
    recorded: Outcome
    outcomes: tuple[Outcome, ...]
    check: Fidelity
    notes: tuple[str, ...]
    is_changed: bool
    settings_recorded: bool = True
    _replayer: Replayer = field(compare=False)

    @property
    def fidelity(self) -> float:
        """1.0 where the model reproduces every address and size of the recording."""
        return self.check.value

    def __getitem__(self, settings: str) -> Outcome:
        wanted = canonical(settings)
        for outcome in (*self.outcomes, self.recorded):
            if canonical(outcome.settings) == wanted:
                return outcome
        raise KeyError(settings)

    def __iter__(self) -> Iterator[str]:
        return iter(outcome.settings for outcome in self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def series(self, settings: str) -> dict[str, memoryview]:
        """The state after each event of the trace under a setting.

        Returns:
            allocated, active, reserved and requested in bytes; segments; device_allocs,
            device_frees and ooms as running counts.

        Raises:
            SettingsError: PyTorch would not accept the settings.
        """
        return self._replayer.series(canonical(settings))

    def document(self) -> Document:
        """The report as a page."""
        facts: tuple[str, ...] = (f"cuda:{self.device}", format_count(self.events, "event"))
        if self.capacity_bytes is not None:
            facts += (f"at most {format_bytes(self.capacity_bytes)}",)
        own = None if self.is_changed else self.recorded.settings
        others = [each for each in self.outcomes if each.settings != own]
        first = named_recorded(self.recorded, is_stated=self.settings_recorded)
        rows = [outcome_cells(self.recorded, first)]
        rows += [outcome_cells(outcome, named(outcome)) for outcome in others]
        table = Table("", tuple(rows), OUTCOME_HEADS)
        blocks: list[Block] = [*self.finding_blocks(), table]
        shown = (self.recorded, *others)
        return Document("What if", facts, (*blocks, *trust_blocks(self.check, shown, self.notes)))


def _outcome_findings(
    recorded: Outcome, outcomes: tuple[Outcome, ...], check: Fidelity
) -> tuple[Finding, ...]:
    """Findings on settings that newly fail, and on the one that saves most."""
    found = []
    trust = (Note("replayed: " + check.sentence),)
    for outcome in outcomes:
        if not outcome.fits and recorded.fits:
            message = f"{named(outcome)}: a request fails that succeeded in the recording"
            event = outcome.stopped_event if (outcome.stopped_event or 0) >= 0 else None
            found.append(Finding("out_of_memory", Severity.SEVERE, 0, message, trust, event=event))
    able = [outcome for outcome in outcomes if outcome.fits or not recorded.fits]
    best = min(able, key=lambda outcome: outcome.peak_reserved_bytes, default=recorded)
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    if saved > 0 and best.beyond_event is None:
        message = _less_reserved(best, recorded)
        found.append(Finding("saves_memory", Severity.INFO, saved, message, doubt(check)))
    return ranked(found)


def open_replayer(
    source: Snapshot | SnapshotSource | None,
    capacity: int | str | None = None,
    device: int | None = None,
    torch_version: str | None = None,
    fraction: float | None = None,
) -> Replayer:
    """A replayer of one device of a source; arguments and errors are those of `what_if`."""
    snap = opened(source)
    return Replayer(snap, snap.device(device), capacity, torch_version, fraction)


@overload
def what_if(
    source: Snapshot | SnapshotSource | None,
    *,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    objective: str = "fit",
    torch_version: str | None = None,
) -> RecommendReport: ...


@overload
def what_if(
    source: Snapshot | SnapshotSource | None,
    *settings: str,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
    torch_version: str | None = None,
) -> WhatIfReport: ...


def what_if(
    source: Snapshot | SnapshotSource | None,
    *settings: str,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    objective: str = "fit",
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
    torch_version: str | None = None,
) -> WhatIfReport | RecommendReport:
    """Replay a trace under other allocator settings; without any, find the best ones.

    The requests and frees of the trace go to a model of PyTorch's caching allocator, which
    places each block anew. Figures that depend on facts missing from every trace (driver
    addresses, timing of other streams) have ranges, found by varying these.

    Without settings or changes to the program, about three dozen settings are replayed in
    parallel; one is recommended only if it beats the recorded settings.

    Args:
        source: A Snapshot or what `load` takes; None is this process's device, now.
        settings: Texts for PYTORCH_CUDA_ALLOC_CONF, as "expandable_segments:True". PyTorch's
            default, "", is always included.
        capacity: Memory limit of PyTorch's allocator: bytes, or a text like "24GiB"; None is
            the recorded limit. Subtract the memory of CUDA's context and of other processes.
            With `fraction`, the size of the whole device.
        fraction: The share to replay `set_per_process_memory_fraction` with, above 0 and at
            most 1. PyTorch then refuses requests beyond it, and garbage_collection_threshold
            takes effect. The device size comes from the JSON beside the file, else from
            `capacity`.
        device: The device; None is the only one.
        objective: The ranking if no settings are given: "fit" needs the least memory for every
            request to succeed, "reserved" has the lowest peak of reserved, "speed" the fewest
            device calls. Differences up to 2 % are ignored.
        empty_cache_after: Events after which the program calls empty_cache().
        free_at_once: Functions ("forward") or lines ("train.py:155") whose blocks are freed as
            soon as they are allocated. Any frame of a stack counts.
        batch: Factor of the batch size. Parameters, gradients and optimizer state keep their
            sizes; everything else scales with it.
        no_cycles: Free blocks without waiting for garbage collection: True if the trace has
            frames of Python's collector, else the lines at which collections ran
            ("train.py:95"). Each block is then freed when its line allocates the next one.
        torch_version: The PyTorch version whose rules apply, as "2.11"; None is the newest
            known. The settings tried are always those of the file's own version.

    Returns:
        The report; `str(report)` is one screen. With settings or changes a WhatIfReport; if the
        program is changed, `.outcomes` are of the changed program (also under the recorded
        settings) and `.recorded` of the recorded one. Otherwise a RecommendReport:
        `.recorded.fits` is whether the program fits in `capacity` as it is, and
        `.best.outcome.fits` whether it fits under the best setting.

    Raises:
        SettingsError: PyTorch would not accept a setting (`.position` is where), or it selects
            another allocator than the native one.
        SnapshotError: The file can't be read.
        ValueError: There are several devices, no history, or another allocator; a setting
            names a share of a device of unknown size; this trace does not allow the change;
            the objective or `torch_version` is unknown.

    Example:
        >>> import neutracer
        >>> file = "tests/data/frag_default.pickle"
        >>> plan = neutracer.what_if(file, "expandable_segments:True", capacity="2GiB")
        >>> plan.fidelity
        1.0
        >>> plan[""].peak_reserved_bytes >> 20
        2028
        >>> plan["expandable_segments:True"].peak_reserved_bytes >> 20
        680
        >>> best = neutracer.what_if(file, capacity="2GiB", objective="reserved").best
        >>> best.environment, best.saved_bytes >> 20
        ('PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True', 1348)
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)}")
    wanted = wanted_settings(settings, capacity is not None or fraction is not None)
    replayer = open_replayer(source, capacity, device, torch_version, fraction)
    change = change_program(
        replayer.snap, replayer.timeline, empty_cache_after, free_at_once, batch, no_cycles
    )
    if not settings and change is None:
        return best_settings(replayer, objective)
    return _compared(replayer, wanted, change)


def _compared(replayer: Replayer, wanted: list[str], change: Change | None) -> WhatIfReport:
    if change is not None:
        replayer.change(change.edits)
        wanted = [wanted[0], replayer.recorded_settings, *wanted[1:]]
    recorded, *outcomes = _outcomes(replayer, wanted)
    if change is not None:
        outcomes = [replace(outcome, change=change.name) for outcome in outcomes]
    check = replayer.check
    return WhatIfReport(
        device=replayer.device,
        events=len(replayer.timeline),
        capacity_bytes=replayer.capacity,
        recorded=recorded,
        outcomes=tuple(outcomes),
        check=check,
        notes=(*(change.notes if change else ()), *replayer.notes()),
        is_changed=change is not None,
        settings_recorded=replayer.snap.settings_stated,
        findings=(
            *first_findings(replayer.snap, device=replayer.device),
            *_outcome_findings(recorded, tuple(outcomes), check),
        ),
        _replayer=replayer,
    )


def _outcomes(replayer: Replayer, wanted: list[str]) -> list[Outcome]:
    """The outcomes of the recording and of each wanted setting, in that order."""
    keys: list[str | None] = [None, *dict.fromkeys(wanted)]
    own = keys.index(replayer.recorded_settings) if replayer.recorded_settings in keys else 0
    if own and len(replayer.limits) == 1 and replayer.changed is None:
        keys[own] = None  # The same runs, done once.
    unique = list(dict.fromkeys(keys))
    found = dict(zip(unique, replayer.outcomes(unique), strict=True))
    return [found[key] for key in keys]


# ---- Replay check ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(Report):
    """How faithfully the model replays a recording under its own settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        settings: The file's own settings.
        settings_recorded: Whether the file states them; if not, they are inferred from its trace.
        check: The comparison.
        notes: Limits of the trace.
    """

    schema = "neutracer.replay_check/1"

    device: int
    events: int
    settings: str
    check: Fidelity
    notes: tuple[str, ...]
    settings_recorded: bool = True

    def document(self) -> Document:
        """The report as a page."""
        name = settings_words(self.settings, is_stated=self.settings_recorded)
        facts = (f"cuda:{self.device}", format_count(self.events, "event"), name)
        blocks = (*self.finding_blocks(), *trust_blocks(self.check, (), self.notes))
        return Document("Replay check", facts, blocks)


def check_replay(
    source: Snapshot | SnapshotSource | None,
    *,
    device: int | None = None,
    torch_version: str | None = None,
) -> CheckReport:
    """Compare the model's replay of a recording with it; arguments are those of `what_if`."""
    replayer = open_replayer(source, None, device, torch_version)
    return CheckReport(
        device=replayer.device,
        events=len(replayer.timeline),
        settings=replayer.recorded_settings,
        settings_recorded=replayer.snap.settings_stated,
        check=replayer.check,
        notes=replayer.notes(),
        findings=first_findings(replayer.snap, device=replayer.device),
    )
