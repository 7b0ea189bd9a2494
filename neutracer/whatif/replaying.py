# SPDX-License-Identifier: Apache-2.0
"""Replays of a trace on the model of PyTorch's allocator, under other settings or changed."""

from __future__ import annotations

import itertools
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from neutracer._native import core
from neutracer.arguments import number, several, whole_number
from neutracer.arguments import text as checked_text
from neutracer.render.document import Block, Cell, Copyable, Figure, KeyValues, Note, Paragraph
from neutracer.render.report import PlainRow
from neutracer.trace.beside import Beside, DeviceRoom
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import tell
from neutracer.trace.stacks import NONE, Frame, base_name, user_frame
from neutracer.trace.timeline import Timeline, unused_share
from neutracer.units import format_bytes, format_count, format_share, format_span
from neutracer.whatif.settings import (
    asked_capacity,
    limit_notes,
    refuse_others,
    roundest,
    version_number,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

# ---- Program changes ---------------------------------------------------------------------

#: By event, the sizes of requests (None: as recorded) and the events that end their blocks; and
#: the events after which empty_cache() is called.
Edits = tuple["array[int] | None", "array[int]", "array[int]"]

# The core's code for a block that ends as recorded.
_AS_RECORDED = -1

# CPython's functions that collect garbage, as named in C++ stacks.
_COLLECTOR = (
    "_PyGC_Collect",
    "_Py_RunGC",
    "PyGC_Collect",
    "gc_collect_generations",
    "gc_collect_internal",
    "gc_collect_main",
    "gc_collect_region",
    "gc_collect_with_callback",
)

# The largest factor of the batch.
_MOST_BATCHES = 1 << 20

# Categories that do not scale with the batch.
_FIXED = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True)
class Change:
    """Changes to the recorded program."""

    edits: Edits  # The arguments of `core.Program.edit`.
    notes: tuple[str, ...]  # Sentences on changes and assumptions.
    name: str  # The changes in a few words: "batch x 2".


def change_program(
    snap: Snapshot,
    timeline: Timeline,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
) -> Change | None:
    """The changes that `what_if` takes; None if there are none."""
    calls = _events(empty_cache_after, len(timeline))
    notes, names, sizes = [], [], None
    ends = array("i", [_AS_RECORDED]) * len(timeline)
    if calls:
        names.append(f"{format_count(len(calls), 'more call')} of empty_cache()")
        notes.append(f"Changed: {names[-1]}.")
    chosen = _names("free_at_once", free_at_once, "functions and lines")
    if chosen:
        notes.append(_free_at_once(snap, timeline, chosen, ends))
        names.append(f"{', '.join(chosen)} freed at once")
    places = None
    if not isinstance(no_cycles, bool):
        places = _names("no_cycles", no_cycles, "functions and lines, or a bool")
    if no_cycles is True or places:
        notes.append(_free_cycles(snap, timeline, places, ends))
        names.append("no cycles")
    number("batch", batch, "a number of times the recorded batch")
    if batch != 1.0:
        sizes, note = _scaled(timeline, batch)
        notes.append(note)
        names.append(f"batch x {float(batch):g}")
    if not notes:
        return None
    return Change((sizes, ends, array("i", calls)), tuple(notes), ", ".join(names))


def _events(events: Iterable[int], count: int) -> list[int]:
    """The event numbers, checked against the length of the trace, sorted and unique."""
    name = "empty_cache_after"
    listed = several(name, events, "the numbers of events")
    found = sorted({whole_number(name, event, "the numbers of events") for event in listed})
    for event in found:
        if not 0 <= event < count:
            raise ValueError(f"{name}: there is no event {event}; the trace has {count}")
    return found


def _names(name: str, places: Iterable[str], wanted: str) -> tuple[str, ...]:
    """Functions and lines, as a tuple also for a single one."""
    listed = [places] if isinstance(places, str) else places
    return tuple(checked_text(name, each) for each in several(name, listed, wanted))


def _is_named(frame: Frame, name: str) -> bool:
    if frame.name == name:
        return True
    place = f"{frame.filename}:{frame.line}"
    return place == name or place.endswith(f"/{name}")


class _Chosen:
    """The stacks with one of some frames: functions, or lines as "train.py:155"."""

    def __init__(self, snap: Snapshot, names: tuple[str, ...]) -> None:
        self._snap = snap
        self._names = names
        self._known: dict[int, frozenset[str]] = {}

    def __call__(self, stack: int) -> frozenset[str]:
        """The names found in a stack."""
        if stack == NONE:
            return frozenset()
        if stack not in self._known:
            frames = self._snap.stacks[stack]
            found = (n for n in self._names if any(_is_named(f, n) for f in frames))
            self._known[stack] = frozenset(found)
        return self._known[stack]


def _free_at_once(
    snap: Snapshot, timeline: Timeline, names: tuple[str, ...], ends: array[int]
) -> str:
    """End each block of some functions or lines as it is allocated; returns the note."""
    events, chosen = timeline.events, _Chosen(snap, names)
    counts, nbytes, blocks = dict.fromkeys(names, 0), 0, 0
    stacks, sizes = events.codes("stack"), events.codes("size")
    for event, action in enumerate(events["action"]):
        found = chosen(stacks[event]) if action == "alloc" else ()
        for name in found:
            counts[name] += 1
        if found:
            ends[event] = event
            nbytes += sizes[event]
            blocks += 1
    for name, count in counts.items():
        if not count:
            raise ValueError(f"{name!r} allocated nothing in this trace")
    return (
        f"Changed: {format_count(blocks, 'block')} of {', '.join(names)} "
        f"({format_bytes(nbytes)} in all) are freed as soon as they are allocated, since their "
        "last use is not recorded."
    )


def _free_cycles(
    snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None, ends: array[int]
) -> str:
    """End each block that a collection freed when its line allocates the next one; returns the
    note.
    """
    rows, stacks = timeline.allocations, timeline.events.codes("stack")
    chosen = _Chosen(snap, _COLLECTOR if places is None else places)
    collected, nbytes, earlier = 0, 0, 0
    # By stack, its latest block if a collection freed that: the events of its life.
    latest: dict[int, tuple[int, int]] = {}
    columns = (rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("size"))
    for made, freed, size in sorted(zip(*columns, strict=True)):
        if made < 0:
            continue
        before = latest.pop(stacks[made], None)
        if before is not None and made < before[1]:
            ends[before[0]] = made if ends[before[0]] == _AS_RECORDED else ends[before[0]]
            earlier += 1
        if freed >= 0 and chosen(stacks[freed]):
            latest[stacks[made]] = (made, freed)
            collected += 1
            nbytes += size
    if not collected:
        raise ValueError(_no_collections(snap, timeline, places))
    return (
        f"Changed: of {format_count(collected, 'block')} freed by collections "
        f"({format_bytes(nbytes)} in all), {format_count(earlier)} are freed as soon as their "
        "line allocates its next one, as if no cycle kept them; their last use is not recorded."
    )


def _no_collections(snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None) -> str:
    if places is not None:
        return f"nothing was freed at {', '.join(places)} in this trace"
    text = (
        "frees by collections can't be recognized: no stack of this trace has a frame of "
        "Python's collector, which stacks='all' records"
    )
    stacks = timeline.events.codes("stack")
    frees = timeline.allocations.codes("free_event")
    counts = Counter(stacks[freed] for freed in frees if freed >= 0)
    for stack, count in counts.most_common(1):
        frame = user_frame(snap.stacks[stack]) if stack != NONE else None
        if frame is not None:
            place = f"{base_name(frame.filename)}:{frame.line}"
            text += (
                "; if you know the lines at which collections ran, give those: most blocks are "
                f"freed at {place} ({format_count(count, 'block')})"
            )
    return text


def _scaled(timeline: Timeline, batch: float) -> tuple[array[int], str]:
    """The sizes of requests with a batch `batch` times as large, and the note."""
    if not 0 < batch <= _MOST_BATCHES:
        raise ValueError(f"batch must be above 0 and at most {_MOST_BATCHES}")
    rows, events = timeline.allocations, timeline.events
    sizes = array("Q", events.codes("size"))
    for event, action in enumerate(events["action"]):
        if action == "oom":
            sizes[event] = max(round(sizes[event] * batch), 1)
    fixed = total = 0
    made, category = rows.codes("alloc_event"), rows["category"]
    for row, event in enumerate(made):
        if event < 0:
            continue
        total += sizes[event]
        if category[row] in _FIXED:
            fixed += sizes[event]
        else:
            sizes[event] = max(round(sizes[event] * batch), 1)
    share, times = format_share(fixed / total if total else 0.0), f"{float(batch):g}"
    return sizes, (
        f"Changed: the batch is {times} times as large. Assumed: parameters, gradients and "
        f"optimizer state ({share} of the requested bytes) and blocks from before the trace keep "
        "their sizes; everything else scales with the batch."
    )


# ---- Fidelity ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Fidelity(PlainRow):
    """How faithfully the model replays a recording under the recording's own settings.

    The model gets the addresses returned by cudaMalloc; it decides everything else itself.

    Attributes:
        value: The share of addresses and device events that match the recording; 1.0 only if all
            match, there are no additional ones, and the final state is the snapshot's.
        addresses: Requests of the trace.
        addresses_same: Those that the model placed at the recorded address.
        device_events: Segments, mappings and out-of-memory events of the trace.
        device_events_same: Those that the model reproduced in the same place.
        is_end_same: Whether address, size, state and segment of all final blocks match.
        first_event: The first event that differs from the recording, or None.
        recorded: The recorded event, in words.
        modelled: The model's event, in words.
    """

    value: float
    addresses: int
    addresses_same: int
    device_events: int
    device_events_same: int
    is_end_same: bool
    first_event: int | None = None
    recorded: str = ""
    modelled: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether every address, every size and the final state match the recording."""
        return self.value == 1.0

    @property
    def sentence(self) -> str:
        """The comparison in one sentence."""
        addresses = format_count(self.addresses, "address", "addresses")
        events = format_count(self.device_events, "segment event")
        if self.is_exact:
            return (
                f"The model reproduces this recording exactly: {addresses}, {events} and "
                "the state at the end."
            )
        parts = [
            f"{format_count(self.addresses_same)} of {addresses}",
            f"{format_count(self.device_events_same)} of {events}",
            "the state at the end" if self.is_end_same else "but not the state at the end",
        ]
        text = f"The model reproduces {', '.join(parts)} ({format_share(self.value)})."
        if self.first_event is not None:
            text += (
                f" It first differs at event {format_count(self.first_event)}: recorded "
                f"{self.recorded}, modelled {self.modelled}."
            )
        return text


def fidelity_of(found: dict[str, Any], actions: list[str]) -> Fidelity:
    """The fidelity by the core's comparison."""
    same = found["mallocs_same"] + found["device_events_same"]
    total = found["mallocs"] + found["device_events"]
    exact = found["is_same"] and found["is_end_same"]
    # Below 1.0 also if only additional events, or only the final state, differ.
    share = 1.0 if exact else min(same / total if total else 0.0, 1 - 1 / (total + 1))
    differs = found["first_event"] is not None
    return Fidelity(
        share,
        found["mallocs"],
        found["mallocs_same"],
        found["device_events"],
        found["device_events_same"],
        found["is_end_same"],
        found["first_event"],
        _event_text(found["recorded"], actions) if differs else "",
        _event_text(found["modelled"], actions) if differs else "",
    )


def _event_text(event: tuple[int, int, int] | None, actions: list[str]) -> str:
    if event is None:
        return "nothing"
    action, address, size = event
    where = f" at {address:#x}" if address else ""
    return f"{actions[action]} of {format_bytes(size)}{where}"


# ---- Outcome -----------------------------------------------------------------------------

#: Reasons for ranges, by the word in `Outcome.causes`.
CAUSES = {
    "ties": "the driver's addresses decide between free blocks of one size",
    "timing": "streams decide when a block used by another stream is free again",
    "beyond": "a request that succeeded in the recording fails, or the reverse, and the trace does "
    "not show the program's reaction",
    "start": "the state before the trace is partly unknown, or results from other settings",
    "silent": "the program calls empty_cache() or ends private pools; calls with nothing to "
    "release left no trace, but may release memory under other settings",
    "restored": "the pool of a captured graph was restored to an earlier state, which has another "
    "layout under these settings",
    "limit": "the memory limit of the process is known only roughly",
}
_CAUSE_BITS = ("ties", "timing", "beyond", "start", "silent", "restored")

#: The figures of an Outcome that can have a range.
RANGED = (
    "peak_reserved_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "allocated_bytes",
    "segments",
    "device_allocs",
    "device_frees",
    "ooms",
    "retries",
)

#: The headings of `outcome_cells`.
OUTCOME_HEADS = ("peak reserved", "range", "calls", "OOM", "setting")

Range = tuple[int, int | None]


@dataclass(frozen=True)
class Outcome(PlainRow):
    """The replay of a program under one setting.

    Attributes:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        peak_reserved_bytes: reserved_bytes.all.peak.
        reserved_bytes: At the end: reserved_bytes.all.current.
        peak_allocated_bytes: allocated_bytes.all.peak.
        allocated_bytes: At the end: allocated_bytes.all.current.
        segments: At the end: segment.all.current, without expandable ones.
        device_allocs: cudaMalloc calls and mappings: num_device_alloc. Each segment or mapped
            range from before the trace counts as one.
        device_frees: cudaFree calls and unmappings: num_device_free.
        ooms: Failed requests: num_ooms.
        retries: Releases of the cache to retry a request: num_alloc_retries.
        stopped_event: The event at which a request fails that succeeded in the recording, which
            ends the program; -1: before the first event; None: none.
        beyond_event: The event at which a request succeeds that failed in the recording; the
            trace does not show how the program would have continued.
        ranges: By figure, the lowest and the highest value over other address orders and
            timings, for figures that are not exact; None: unbounded.
        causes: The reasons for ranges: keys of `CAUSES`.
        runs: The number of runs.
        start_rebuilt: Whether the state before the trace had to be rebuilt.
        headroom_bytes: The capacity minus the peak; None without a capacity.
        change: The change to the program in a few words: "batch x 2"; "" is none.
    """

    settings: str
    peak_reserved_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    allocated_bytes: int
    segments: int
    device_allocs: int
    device_frees: int
    ooms: int
    retries: int
    stopped_event: int | None = None
    beyond_event: int | None = None
    ranges: dict[str, Range] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    runs: int = 1
    start_rebuilt: bool = False
    headroom_bytes: int | None = None
    change: str = ""
    _recorded: Snapshot | None = field(default=None, compare=False, repr=False)
    _trace: Callable[[], Snapshot] | None = field(default=None, compare=False, repr=False)

    @property
    def recorded(self) -> Snapshot:
        """The snapshot that was replayed.

        Raises:
            ValueError: The outcome is detached from its plan.
        """
        if self._recorded is None:
            raise ValueError("this outcome stands alone, without its recording")
        return self._recorded

    def snapshot(self) -> Snapshot:
        """The replayed trace and its final blocks as a snapshot.

        You can draw, save and query it like any other. Addresses are made up; times, stacks and
        annotations are those of the recorded events. It ends where the program stops.

        Raises:
            ValueError: The outcome is detached from its plan.

        Example:
            >>> import neutracer
            >>> plan = neutracer.what_if(
            ...     "tests/data/frag_default.pickle", "expandable_segments:True", capacity="2GiB"
            ... )
            >>> plan["expandable_segments:True"].snapshot()
            <Snapshot: 1 device, 1 segment, 95 blocks, 2,348 events>
        """
        if self._trace is None:
            raise ValueError("this outcome stands alone, without its recording")
        return self._trace()

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved at the end; 0 if nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)

    @property
    def fits(self) -> bool:
        """Whether no request fails."""
        return self.ooms == 0 and self.stopped_event is None

    @property
    def device_calls(self) -> int:
        """cudaMalloc and cudaFree calls, mappings and unmappings: the time cost of a setting."""
        return self.device_allocs + self.device_frees

    def range(self, figure: str) -> Range:
        """The lowest and the highest value of a figure; equal if it is exact.

        Raises:
            KeyError: There is no such figure.
        """
        if figure not in RANGED:
            raise KeyError(figure)
        value = getattr(self, figure)
        return self.ranges.get(figure, (value, value))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "peak_reserved_bytes": figures["peak"]["reserved"],
        "reserved_bytes": figures["final"]["reserved"],
        "peak_allocated_bytes": figures["peak"]["allocated"],
        "allocated_bytes": figures["final"]["allocated"],
        **{name: figures[name] for name in RANGED[4:]},
    }


def outcome_of(
    settings: str,
    figures: dict[str, Any],
    low: dict[str, Any] | None = None,
    high: dict[str, Any] | None = None,
    causes: int = 0,
    runs: int = 1,
) -> Outcome:
    """The outcome of the core's figures and their bounds."""
    flat = _flat(figures)
    ranges: dict[str, Range] = {}
    if low is not None and high is not None:
        lowest, highest = _flat(low), _flat(high)
        for name in RANGED:
            if not lowest[name] == highest[name] == flat[name]:
                ranges[name] = (lowest[name], highest[name])
    return Outcome(
        settings,
        **flat,
        stopped_event=figures["stopped_event"],
        beyond_event=figures["beyond_event"],
        ranges=ranges,
        causes=tuple(word for bit, word in enumerate(_CAUSE_BITS) if causes >> bit & 1),
        runs=runs,
        start_rebuilt=figures["start_rebuilt"],
    )


def widened(outcome: Outcome, others: list[Outcome]) -> Outcome:
    """The outcome with ranges that include those of the same setting under other limits."""
    ranges: dict[str, Range] = {}
    causes = {cause for each in (outcome, *others) for cause in each.causes}
    for name in RANGED:
        bounds = [each.range(name) for each in (outcome, *others)]
        highs = [high for _, high in bounds]
        low = min(low for low, _ in bounds)
        high = None if None in highs else max(high for high in highs if high is not None)
        if (low, high) != (getattr(outcome, name),) * 2:
            ranges[name] = (low, high)
        if any(bound != bounds[0] for bound in bounds):
            causes.add("limit")
    return replace(
        outcome,
        ranges=ranges,
        causes=tuple(cause for cause in CAUSES if cause in causes),
        runs=outcome.runs + sum(other.runs for other in others),
    )


def outcome_cells(outcome: Outcome, name: str) -> tuple[Cell, ...]:
    """The outcome as a table row under `OUTCOME_HEADS`."""
    return (
        Figure.bytes(outcome.peak_reserved_bytes),
        _span(outcome),
        Figure.count(outcome.device_calls),
        _failures(outcome),
        name,
    )


def _span(outcome: Outcome) -> str:
    if "peak_reserved_bytes" not in outcome.ranges:
        return ""
    low, high = outcome.ranges["peak_reserved_bytes"]
    if high is None:
        return f"{format_bytes(low)} or more"
    return format_span(low, high)


def named(outcome: Outcome) -> str:
    """The settings and the change of an outcome, for a reader."""
    if not outcome.change and outcome.settings:
        return Copyable(outcome.settings)
    name = settings_words(outcome.settings, is_stated=True)
    return f"{outcome.change}: {name}" if outcome.change else name


def named_recorded(outcome: Outcome, *, is_stated: bool) -> str:
    """The settings of the recorded outcome, for a reader."""
    return f"as recorded: {settings_words(outcome.settings, is_stated=is_stated)}"


def stop_of(outcome: Outcome) -> str | None:
    """The event at which a program stops for lack of memory, formatted, or None."""
    event = outcome.stopped_event
    return None if event is None else format_count(max(event, 0))


def _failures(outcome: Outcome) -> str:
    stop = stop_of(outcome)
    if stop is not None:
        return f"at {stop}"
    low, high = outcome.range("ooms")
    if high is None:
        return f"{format_count(low)} or more"
    if low != high:
        return f"{format_count(low)} to {format_count(high)}"
    return format_count(low) if low else "no"


def trust_blocks(
    check: Fidelity, outcomes: tuple[Outcome, ...], notes: tuple[str, ...]
) -> tuple[Block, ...]:
    """The blocks on the reliability of a page: fidelity, causes of ranges, notes."""
    blocks: list[Block] = [Paragraph(check.sentence)]
    causes = {cause for outcome in outcomes for cause in outcome.causes}
    pairs = tuple((word, text) for word, text in CAUSES.items() if word in causes)
    if pairs:
        blocks.append(KeyValues("What the figures depend on", pairs))
    blocks += [Paragraph(note) for note in notes]
    return tuple(blocks)


def doubt(check: Fidelity) -> tuple[Note, ...]:
    """The evidence of a finding on replayed figures if the model is not exact."""
    if check.is_exact:
        return ()
    share = format_share(check.value)
    return (Note(f"replayed, not exact: the model reproduces {share} of this recording"),)


# ---- Replay notes ------------------------------------------------------------------------


def _unstated(inferred: str, is_exact: bool) -> str:
    if inferred:
        text = f"Settings not recorded; the trace shows {inferred}"
    else:
        text = "Settings not recorded; the default is assumed"
    return f"{text}, with which the model reproduces it." if is_exact else f"{text}."


def start_notes(snap: Snapshot, timeline: Timeline, is_exact: bool) -> list[str]:
    """Notes on the settings and the state before the trace; `is_exact`: the model reproduces the
    recording."""
    facts, notes = timeline.facts, []
    if not snap.settings_stated:
        notes.append(_unstated(str(snap.settings_in_force["text"]), is_exact))
    if snap.history_overflowed(timeline.device):
        notes.append("The ring of events wrapped: events before its first one are not replayed.")
    if facts["preexisting"]:
        blocks = format_count(facts["preexisting"], "block")
        notes.append(
            f"{blocks} existed before the first event and stay in place, unless settings "
            "of another kind require them to be allocated again."
        )
    if facts["slack_bound"]:
        bound = format_bytes(facts["slack_bound"])
        notes.append(f"Blocks from before the trace may be up to {bound} larger than assumed.")
    return notes


def event_notes(timeline: Timeline, program: dict[str, Any], is_exact: bool) -> list[str]:
    """Notes on missing events and unrecorded facts; `program` are the core's facts on it."""
    facts, notes = timeline.facts, []
    if facts["unmatched"]:
        events = format_count(facts["unmatched"], "event")
        notes.append(f"The trace has gaps: {events} match no earlier one and are left out.")
    if program["segments_without_pool"] and (
        program["pools"] > 1 or not (facts["unmatched"] or is_exact)
    ):
        segments = format_count(program["segments_without_pool"], "segment")
        notes.append(
            "The events of this file do not name their pool, and "
            f"{segments} were released before its end: the default pool is assumed for these. If "
            "the program used others (CUDA graphs, MemPool), figures may be outside their ranges."
        )
    if not program["calls_known"]:
        notes.append(
            "Without stacks, the program's empty_cache() calls can't always be distinguished from "
            "the allocator's own releases."
        )
    return notes


# ---- Variants ----------------------------------------------------------------------------

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Like `map`: calls a function with each item, in any order; results are in the items' order.
Each = Callable[[Callable[["_Run"], bytes], Iterable["_Run"]], list[bytes]]


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of some settings at one limit."""

    program: core.Program
    settings: str | None  # The text of the settings; None are the recorded ones.
    name: str
    options: dict[str, Any]  # The keywords of the core's `find_range`.
    # Runs the recorded settings with the addresses of the trace: figures, and whether they are
    # exact, in which case they serve as the first run; or None.
    compare: Callable[[], tuple[bytes, bool]] | None

    def runs(self) -> list[_Run]:
        count = self.program.count_variants(self.settings, **self.options)
        return [_Run(self, index) for index in range(count)]


@dataclass(frozen=True, eq=False)
class _Run:
    plan: Plan
    index: int

    def __call__(self) -> bytes:
        plan = self.plan
        if self.index == 0 and plan.compare is not None:
            figures, is_exact = plan.compare()
            if is_exact:
                return figures
        return plan.program.run_variant(plan.settings, index=self.index, **plan.options)


def run_plans(plans: list[Plan], each: Each) -> list[Outcome]:
    """The outcome of each plan; `each` makes the runs."""
    todo = [run for plan in plans for run in plan.runs()]
    figures = dict(zip(todo, each(_Run.__call__, todo), strict=True))
    outcomes = []
    for plan in plans:
        variants = [made for run, made in figures.items() if run.plan is plan]
        found = plan.program.join_variants(plan.settings, variants=variants, **plan.options)
        outcomes.append(outcome_of(plan.name, *found))
    return outcomes


def side_by_side(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    stop: Event,
    done: Callable[[Future[Result]], object],
) -> list[Result]:
    """`work` on each item, in one thread per core; results in order. After a failure, `stop` is
    set while the other threads end; each thread's end calls `done`."""
    listed = list(items)
    # At interpreter exit (in atexit callbacks) no thread can start.
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return [work(item) for item in listed]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            futures = [pool.submit(work, item) for item in listed]
            for future in futures:
                future.add_done_callback(done)
        except RuntimeError:
            pool.shutdown(cancel_futures=True)
            return [work(item) for item in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            stop.clear()
            raise


# ---- Replaying ---------------------------------------------------------------------------

# The core's number for no limit.
_NO_LIMIT = (1 << 64) - 1

# The keywords of the core's `run` that may be others in a run that goes the same way.
_FREE = ("limit", "device_total", "device_other", "order", "seed")


@dataclass(frozen=True)
class _Made:
    """A run that was made, and the core's word on which others would have gone the same way."""

    outcome: Outcome
    options: dict[str, Any]
    reach: tuple[tuple[int, int], tuple[int, int], tuple[int, int], bool]

    def serves(self, asked: dict[str, Any]) -> bool:
        """Whether a run with these keywords, the same but for `_FREE`, would be this one."""
        limits, rooms, reserves, any_order = self.reach
        total, made = asked["device_total"], self.options["device_total"]
        room = max(total - asked["device_other"], 0)
        return (
            limits[0] <= (asked["limit"] or _NO_LIMIT) <= limits[1]
            # Of a device of unknown size the core makes one, always the same.
            and bool(total) == bool(made)
            and (not total or rooms[0] <= room <= rooms[1])
            and (total == made or reserves[0] <= total + total // 8 <= reserves[1])
            and (any_order or all(asked[name] == self.options[name] for name in ("order", "seed")))
        )


class _StoppedError(Exception):
    """Another run has failed."""


class Replayer:
    """Replays one device's requests under other settings.

    Thread-safe. Pickles with its snapshot, which is replayed again when needed.

    Attributes:
        device: The device.
        asked: The requested memory limit; None is the recorded one.
        room: The limits of the process when it was recorded, if known.
        version: The PyTorch version whose rules apply: major * 1000 + minor; 0 is the newest known.
        edits: Changes to the program, or None. Settings of None run the recorded program.
    """

    def __init__(
        self,
        snap: Snapshot,
        device: int,
        capacity: int | str | None = None,
        torch_version: str | None = None,
        fraction: float | None = None,
        room: DeviceRoom | None = None,
    ) -> None:
        """Raises a ValueError if the trace can't be replayed or an argument is invalid."""
        self.version = version_number(torch_version)
        self.snap = snap
        self.device = device
        if room is None:
            room = snap.beside.rooms.get(device)
        self.room = room
        self.asked = asked_capacity(capacity, fraction, room)
        refuse_others(snap)
        if not self.facts["steps"]:
            raise ValueError(
                f"the snapshot has no history of cuda:{device} to replay; record one with "
                "torch.cuda.memory._record_memory_history()"
            )
        self.edits: Edits | None = None
        self._start()

    def _start(self) -> None:
        self._stop, self._done = Event(), itertools.count(1)
        self._made: defaultdict[tuple[object, ...], list[_Made]] = defaultdict(list)

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "snap", "device", "asked", "room", "edits")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @cached_property
    def timeline(self) -> Timeline:
        """The timeline of the device."""
        return self.snap.timeline(self.device)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The core's facts on the program: limits, lanes, ambiguities."""
        return self.program.facts()

    @cached_property
    def changed(self) -> core.Program | None:
        """The program with `edits` applied."""
        return None if self.edits is None else self.program.edit(*self.edits)

    def change(self, edits: Edits) -> None:
        """Run the program with these edits from now on."""
        self.edits = edits
        self.changed = self.program.edit(*edits)
        self._made.clear()

    @property
    def recorded_settings(self) -> str:
        """The file's own settings as text."""
        return str(self.snap.settings_in_force["text"])

    @property
    def program(self) -> core.Program:
        """The recorded program."""
        return self.timeline.program

    @property
    def capacity(self) -> int | None:
        """The memory limit of the process in bytes; None is the recorded one."""
        return None if self.asked is None else self.asked.bytes

    @property
    def is_capped(self) -> bool:
        """Whether PyTorch enforced a limit in the recording."""
        if self.room is not None and self.room.fraction == 1.0:
            return False
        shown = self.facts["limit_high"] is not None and not self.facts["is_device"]
        return shown or self._noted_limit is not None

    @property
    def is_limited(self) -> bool:
        """Whether PyTorch enforces the limit: it then collects garbage, and compares requests
        with the limit before rounding them up to pages."""
        if self.asked is not None and self.asked.fraction is not None:
            return self.asked.is_share
        return self.is_capped

    @cached_property
    def _noted_limit(self) -> int | None:
        """PyTorch's limit by the sidecar, if consistent with the trace."""
        limit = None if self.room is None else self.room.limit_bytes
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if limit is None or limit < low or (high is not None and limit > high):
            return None
        return limit

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The limit to assume in bytes, then others as likely; 0: as recorded.

        Failures in a trace only bound the limit: at least the reserved bytes, and too small for
        the failed request. The roundest number between is the likeliest.
        """
        if self.asked is not None:
            return (self.asked.bytes,)
        if self._noted_limit is not None:
            return (self._noted_limit,)
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if not self.is_capped or low >= high:
            return (0,)
        low = max(low, 1)  # 0 is as recorded.
        guess = roundest(low, high)
        return tuple(dict.fromkeys((guess, low, high)))

    @cached_property
    def silent_places(self) -> int | None:
        """The number of places where calls of empty_cache() or ends of pools may have left no
        trace; None for programs without visible calls and without private pools."""
        if not self.facts["calls"] and self.facts["pools"] < 2:
            return None
        return self.program.find_silence(self._look)

    @property
    def _silence(self) -> int:
        """The core's mode for silent operations: 0 none, 1 restored pools of graphs, 2 also
        silent calls of empty_cache()."""
        return 0 if self.silent_places is None else 2 if self.silent_places else 1

    @property
    def knows_large_segments(self) -> bool:
        """Whether this PyTorch has `large_segment_size_mb` (2.10 and later)."""
        # So does this column of events.
        has_column = "user_metadata" in self.snap.native.tables()["events"]
        return self.version >= version_number("2.10") if self.version else has_column

    def options(self, limit: int, *, is_share: bool | None = None) -> dict[str, Any]:
        """The core's keywords for a run with a memory limit.

        Args:
            limit: Bytes; 0 is as recorded.
            is_share: Whether PyTorch enforces the limit, or the device is that large; None is
                as requested or recorded.
        """
        options = {"version": self.version, "silent": min(self._silence, 1)}
        if limit == 0:
            return options
        if self.is_limited if is_share is None else is_share:
            return {**options, "limit": limit, **self._device(limit)}
        return {**options, "limit": 0, "device_total": limit, "device_other": 0}

    def _device(self, limit: int) -> dict[str, int]:
        """The device on which a limit is asked about: one that has more, though the recorded one
        was full; a total of 0 has no bound."""
        total = int(self.facts["device_total"])
        if self.asked is not None and self.asked.total_bytes is not None:
            total = self.asked.total_bytes
        elif self.room is not None:
            total = self.room.total_bytes
        return {"device_total": max(total, 2 * limit) if total else 0, "device_other": 0}

    def quick(
        self,
        settings: str | None,
        limit: int | None = None,
        *,
        is_share: bool | None = None,
        **changes: int,
    ) -> Outcome:
        """The outcome without ranges; of runs that would go the same way one is made.

        Args:
            settings: The text of the settings; None are the recorded ones.
            limit: As for `options`; None is the assumed limit.
            is_share: As for `options`.
            changes: Other keywords of the core's `run`.
        """
        assumed = self.limits[0] if limit is None else limit
        options = {name: self.facts.get(name, 0) for name in _FREE}
        options |= {**self.options(assumed, is_share=is_share), **changes}
        rest = sorted((name, value) for name, value in options.items() if name not in _FREE)
        key = (settings, *rest)
        made = self._made[key]
        for one in made:
            if one.serves(options):
                return one.outcome
        found = self._asked(settings).run(settings, progress=self._look, **options)
        made.append(_Made(outcome_of(self._name(settings), found), options, found["reach"]))
        return made[-1].outcome

    def outcome(self, settings: str | None, runs: int = 0) -> Outcome:
        """The outcome with ranges, from `runs` runs at each limit (0: the core decides)."""
        return self._outcomes([settings], runs, lambda work, items: [work(i) for i in items])[0]

    def outcomes(self, settings: Iterable[str | None]) -> list[Outcome]:
        """The outcomes of several settings with ranges, all runs in parallel."""
        return self._outcomes(list(settings), 0, self.map)

    def _outcomes(self, listed: list[str | None], runs: int, each: Each) -> list[Outcome]:
        plans = [self._plans(settings, runs) for settings in listed]
        found = iter(run_plans([plan for own in plans for plan in own], each))
        return [
            self._finished(settings, [next(found) for _ in own])
            for settings, own in zip(listed, plans, strict=True)
        ]

    def _plans(self, settings: str | None, runs: int) -> list[Plan]:
        # Under its own settings the program ran as recorded, whatever its limit was.
        limits = self.limits[:1] if settings is None else self.limits
        silent = min(self._silence, 1 if settings is None else 2)
        more = {"silent": silent, "runs": runs, "progress": self._look}
        compare = self._compared if settings is None and self.asked is None else None
        program, name = self._asked(settings), self._name(settings)
        return [
            Plan(program, settings, name, {**self.options(limit), **more}, compare)
            for limit in limits
        ]

    def _compared(self) -> tuple[bytes, bool]:
        return self._checked[0]["variant"], self.check.is_exact

    def _finished(self, settings: str | None, found: list[Outcome]) -> Outcome:
        outcome = replace(
            widened(found[0], found[1:]),
            _recorded=self.snap,
            _trace=partial(self.trace, settings),
        )
        if self.capacity is None:
            return outcome
        return replace(outcome, headroom_bytes=self.capacity - outcome.peak_reserved_bytes)

    def trace(self, settings: str | None) -> Snapshot:
        """The snapshot of a replay; None are the recorded settings."""
        program, known = self._asked(settings), self.snap.beside
        beside = Beside(rooms=known.rooms, libraries=known.libraries)
        native = program.trace(settings, progress=self._look, **self.options(self.limits[0]))
        return Snapshot(native, origin=self.snap.origin, beside=beside)

    def _asked(self, settings: str | None) -> core.Program:
        return self.program if settings is None or self.changed is None else self.changed

    def _name(self, settings: str | None) -> str:
        return self.recorded_settings if settings is None else settings

    def fits(self, settings: str | None, nbytes: int) -> bool:
        """Whether every request succeeds under a limit in bytes."""
        return self.quick(settings, nbytes).fits

    @cached_property
    def _checked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The core's comparison of its replay with the recording, and the replay's figures."""
        return self.program.check(progress=self._look, version=self.version)

    @property
    def check(self) -> Fidelity:
        """How faithfully the model replays the recording's own settings."""
        return fidelity_of(self._checked[0], self.snap.native.actions())

    def series(self, settings: str | None, **options: Any) -> dict[str, memoryview]:
        """The state after each event: bytes, segments, running counts of calls and failures."""
        chosen = {**self.options(self.limits[0]), **options}
        _, columns = self._asked(settings).series(settings, progress=self._look, **chosen)
        wide = ("allocated", "active", "reserved", "requested")
        return {
            name: memoryview(data).cast("Q" if name in wide else "I")
            for name, data in columns.items()
        }

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`work` on each item, in one thread per core; results in order."""
        # One count for all rounds of a search, whose number is not known before.
        return side_by_side(
            work, items, self._stop, lambda _: tell(f"{next(self._done)} replays done")
        )

    def _look(self, done: int) -> None:
        """A run's progress callback: ends the run if another one has failed."""
        if self._stop.is_set():
            raise _StoppedError

    def notes(self) -> tuple[str, ...]:
        """Sentences on the limits of the trace."""
        is_exact = self.check.is_exact
        return (
            *start_notes(self.snap, self.timeline, is_exact),
            *event_notes(self.timeline, self.facts, is_exact),
            *limit_notes(self.asked, self.room, self.facts, self.limits),
        )
