# SPDX-License-Identifier: Apache-2.0
"""Replays of a trace under other settings, each compared with the recording first.

A replay's figures are points where the model reproduces the file's own settings exactly, else
ranges over address orders and event timings.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections import Counter
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

# A recorded program made into another one: freed earlier, emptied, without reference cycles,
# or with another batch.

#: By event the sizes of requests (None: as recorded) and where blocks end; and the events
#: after which empty_cache() is called.
Edits = tuple["array[int] | None", "array[int]", "array[int]"]

# The core's word for a block that ends as it did.
_AS_IT_WAS = -1

# CPython's functions that free garbage, as C++ stacks name them.
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

# A batch so many times as large fits nowhere.
_MOST_BATCHES = 1 << 20

# What is as large whatever the batch is.
_FIXED = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True)
class Change:
    """A program that is not the recorded one.

    Attributes:
        edits: What `core.Program.edit` makes it of: sizes, ends, and calls of empty_cache().
        notes: What was changed, and what was assumed, a sentence each.
        name: What was changed, in a few words: "batch x 2".
    """

    edits: Edits
    notes: tuple[str, ...]
    name: str


def change_program(
    snap: Snapshot,
    timeline: Timeline,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
) -> Change | None:
    """The program with changes in it; None where there are none.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        empty_cache_after: Events after which the program calls empty_cache().
        free_at_once: Whose blocks are freed as soon as they are made: functions as
            "forward", or lines as "train.py:155"; any frame of a stack counts.
        batch: How many times as large the batch is.
        no_cycles: Whether what collections freed is freed earlier; or the functions or
            lines at which collections ran.

    Raises:
        TypeError: One is of another type.
        ValueError: There is no such event, nobody of that name allocated or freed anything,
            the batch is not above 0, or it is unknown what collections freed.
    """
    calls = _events(empty_cache_after, len(timeline))
    notes, names, sizes = [], [], None
    ends = array("i", [_AS_IT_WAS]) * len(timeline)
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
    """The numbers of events in a trace of this many, each once."""
    name = "empty_cache_after"
    listed = several(name, events, "the numbers of events")
    found = sorted({whole_number(name, event, "the numbers of events") for event in listed})
    for event in found:
        if not 0 <= event < count:
            raise ValueError(f"{name}: there is no event {event}; the trace has {count}")
    return found


def _names(name: str, places: Iterable[str], wanted: str) -> tuple[str, ...]:
    """Functions and lines; one counts as a list of one."""
    listed = [places] if isinstance(places, str) else places
    return tuple(checked_text(name, each) for each in several(name, listed, wanted))


def _is_named(frame: Frame, name: str) -> bool:
    if frame.name == name:
        return True
    place = f"{frame.filename}:{frame.line}"
    return place == name or place.endswith(f"/{name}")


class _Chosen:
    """Which stacks have one of these frames: functions, or lines as "train.py:155"."""

    def __init__(self, snap: Snapshot, names: tuple[str, ...]) -> None:
        self._snap = snap
        self._names = names
        self._known: dict[int, frozenset[str]] = {}

    def __call__(self, stack: int) -> frozenset[str]:
        """The names that a stack has."""
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
    """Ends each block of one of these as it is made; a note that says so."""
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
        f"({format_bytes(nbytes)} in all) are freed as soon as they are made; their last use "
        "is not recorded."
    )


def _free_cycles(
    snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None, ends: array[int]
) -> str:
    """Ends each block that a collection freed when its line makes the next one.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        places: The functions or lines at which collections ran; None is where the collector's
            own frames are.
        ends: By event, where the block that it makes ends; written to.

    Raises:
        ValueError: Nothing is seen to be freed there.
    """
    rows, stacks = timeline.allocations, timeline.events.codes("stack")
    chosen = _Chosen(snap, _COLLECTOR if places is None else places)
    collected, nbytes, earlier = 0, 0, 0
    # By stack: the block that it made last, if a collection freed it, and when.
    latest: dict[int, tuple[int, int]] = {}
    columns = (rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("size"))
    for made, freed, size in sorted(zip(*columns, strict=True)):
        if made < 0:
            continue
        before = latest.pop(stacks[made], None)
        if before is not None and made < before[1]:
            ends[before[0]] = made if ends[before[0]] == _AS_IT_WAS else ends[before[0]]
            earlier += 1
        if freed >= 0 and chosen(stacks[freed]):
            latest[stacks[made]] = (made, freed)
            collected += 1
            nbytes += size
    if not collected:
        raise ValueError(_untold(snap, timeline, places))
    return (
        f"Changed: of {format_count(collected, 'block')} that collections freed "
        f"({format_bytes(nbytes)} in all) {format_count(earlier)} are freed as soon as the line "
        "that made them makes its next one, as if no cycle kept them; their last use is not "
        "recorded."
    )


def _untold(snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None) -> str:
    """Why it is unknown what collections freed."""
    if places is not None:
        return f"nothing was freed at {', '.join(places)} in this trace"
    text = (
        "what a collection freed can't be told from what the program freed: no stack of this "
        "trace has a frame of Python's collector, as those recorded with stacks='all' have"
    )
    stacks = timeline.events.codes("stack")
    frees = timeline.allocations.codes("free_event")
    counts = Counter(stacks[freed] for freed in frees if freed >= 0)
    for stack, count in counts.most_common(1):
        frame = user_frame(snap.stacks[stack]) if stack != NONE else None
        if frame is not None:
            place = f"{base_name(frame.filename)}:{frame.line}"
            text += (
                "; if collections ran at known lines, name these: most is freed at "
                f"{place} ({format_count(count, 'block')})"
            )
    return text


def _scaled(timeline: Timeline, batch: float) -> tuple[array[int], str]:
    """The sizes of requests with a batch this many times as large."""
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
        f"optimizer state ({share} of the bytes asked for) and what was there before the trace "
        "keep their sizes, all else is in proportion to the batch."
    )


# ---- Fidelity ----------------------------------------------------------------------------

# How faithfully the model replays a recording under the recording's own settings.


@dataclass(frozen=True)
class Fidelity(PlainRow):
    """How faithfully the model replays a recording under the recording's own settings.

    The model gets the addresses that cudaMalloc gave then; all else it decides itself.

    Attributes:
        value: The share of addresses and device events that are the recorded ones; 1.0
            only where all are, none came in addition, and the state at the end is the
            snapshot's.
        addresses: Requests of the trace.
        addresses_same: Those that the model put at the recorded address.
        device_events: Segments, mappings and out-of-memory events of the trace.
        device_events_same: Those that the model made as well, in the same place.
        is_end_same: Whether the blocks at the end are the snapshot's: address, size,
            state and segment of each.
        first_event: The first event that is not as recorded, or None.
        recorded: What was recorded there, in words.
        modelled: What the model did there, in words.
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
        """Whether every address, every size and the end are as recorded."""
        return self.value == 1.0

    @property
    def sentence(self) -> str:
        """What this means, in one sentence."""
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
            "the state at the end" if self.is_end_same else "not the state at the end",
        ]
        text = f"The model reproduces {', '.join(parts)} ({format_share(self.value)})."
        if self.first_event is not None:
            text += (
                f" It first differs at event {format_count(self.first_event)}: recorded "
                f"{self.recorded}, modelled {self.modelled}."
            )
        return text


def fidelity_of(found: dict[str, Any], actions: list[str]) -> Fidelity:
    """The fidelity that the core's comparison means."""
    same = found["mallocs_same"] + found["device_events_same"]
    total = found["mallocs"] + found["device_events"]
    exact = found["is_same"] and found["is_end_same"]
    # What differs only in more events, or only at the end, is not all of it.
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
        _deed(found["recorded"], actions) if differs else "",
        _deed(found["modelled"], actions) if differs else "",
    )


def _deed(deed: tuple[int, int, int] | None, actions: list[str]) -> str:
    if deed is None:
        return "nothing"
    action, address, size = deed
    where = f" at {address:#x}" if address else ""
    return f"{actions[action]} of {format_bytes(size)}{where}"


# ---- What if parts -----------------------------------------------------------------------

# What came of a program under one setting.

#: Why what really happens can differ from a figure, by the word in `Outcome.causes`.
CAUSES = {
    "ties": "the driver's addresses decide between free blocks of one size",
    "timing": "streams decide when a block that another one used is free again",
    "beyond": "a request ends differently than when recorded, and the trace does not show "
    "what the program would have done then",
    "start": "the state before the trace is not all known, or was left by other settings",
    "silent": "the program calls empty_cache() or ends private pools; where that had nothing "
    "to give back it left no trace, and may have something under other settings",
    "restored": "the pool of a captured graph was put back to an earlier state, which these "
    "settings lay out otherwise",
    "limit": "how much memory the process was allowed is known only roughly",
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
    """What the allocator would have done under one setting.

    Attributes:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        peak_reserved_bytes: The most it took: reserved_bytes.all.peak.
        reserved_bytes: At the end: reserved_bytes.all.current.
        peak_allocated_bytes: The most in live blocks: allocated_bytes.all.peak.
        allocated_bytes: At the end: allocated_bytes.all.current.
        segments: At the end: segment.all.current, which counts no expandable ones.
        device_allocs: cudaMalloc calls and mappings: num_device_alloc. What was there
            before the trace counts as one for each segment or mapped range.
        device_frees: cudaFree calls and unmappings: num_device_free.
        ooms: Requests that failed: num_ooms.
        retries: How often the cache was given back to try again: num_alloc_retries.
        stopped_event: The event at which a request failed that had not failed when it was
            recorded, so that the program ends there; -1 is before the first; None: none.
        beyond_event: The event at which a request succeeded that had failed when it was
            recorded; the trace does not show how the program would have gone on.
        ranges: By figure, the lowest and the highest over other orders of addresses and
            other timings, for figures that are not exact; None where nothing bounds it.
        causes: Why there are ranges: keys of `CAUSES`.
        runs: How many times the program was run for this.
        start_rebuilt: The state before the trace could not stay in place.
        headroom_bytes: What the capacity leaves above the peak; None without a capacity.
        change: What the program does otherwise, in a few words: "batch x 2"; "" is nothing.
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
            ValueError: This outcome stands alone, apart from the plan that it came from.
        """
        if self._recorded is None:
            raise ValueError("this outcome stands alone, without its recording")
        return self._recorded

    def snapshot(self) -> Snapshot:
        """The trace and the blocks that there would have been, as a snapshot.

        You can draw, save and query it like any other. Addresses are made up; times,
        stacks and annotations are those of the recorded events. It ends where the program
        would have ended.

        Raises:
            ValueError: This outcome stands alone, apart from the plan that it came from.

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
        made = self._trace()
        if self._recorded is not None:
            made.origin = self._recorded.origin
            made.beside = Beside(rooms=self._recorded.beside.rooms)
        return made

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved at the end; 0 where nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)

    @property
    def fits(self) -> bool:
        """Whether no request fails."""
        return self.ooms == 0 and self.stopped_event is None

    @property
    def device_calls(self) -> int:
        """cudaMalloc, cudaFree, mappings and unmappings: what a setting costs in time."""
        return self.device_allocs + self.device_frees

    def range(self, figure: str) -> Range:
        """The lowest and the highest of a figure; the same number twice where it is exact.

        Raises:
            KeyError: There is no such figure.
        """
        if figure not in RANGED:
            raise KeyError(figure)
        value = getattr(self, figure)
        return self.ranges.get(figure, (value, value))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    """The core's figures under the names of an Outcome."""
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
    """The outcome with ranges that take others in: of the same setting under other limits."""
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
    """A row of a table: peak, its range, calls to the device, failures, setting."""
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
    """The settings of an outcome as a reader knows them, with what was changed."""
    if not outcome.change and outcome.settings:
        return Copyable(outcome.settings)
    name = settings_words(outcome.settings, is_stated=True)
    return f"{outcome.change}: {name}" if outcome.change else name


def named_recorded(outcome: Outcome, *, is_stated: bool) -> str:
    """The same of the recorded outcome; `is_stated` as `settings_words` takes it."""
    return f"as recorded: {settings_words(outcome.settings, is_stated=is_stated)}"


def stop_of(outcome: Outcome) -> str | None:
    """The event at which a program stops for lack of memory, or None."""
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
    """How far to trust the figures of a page: fidelity, causes of ranges, gaps."""
    blocks: list[Block] = [Paragraph(check.sentence)]
    causes = {cause for outcome in outcomes for cause in outcome.causes}
    pairs = tuple((word, text) for word, text in CAUSES.items() if word in causes)
    if pairs:
        blocks.append(KeyValues("What the figures depend on", pairs))
    blocks += [Paragraph(note) for note in notes]
    return tuple(blocks)


def doubt(check: Fidelity) -> tuple[Note, ...]:
    """What a finding of replayed figures should say where the model is not exact."""
    if check.is_exact:
        return ()
    share = format_share(check.value)
    return (Note(f"replayed, and doubtful: the model reproduces {share} of this recording"),)


# ---- Replay notes ------------------------------------------------------------------------

# What a trace can't tell of the program that it is replayed for, in sentences.


def _unstated(inferred: str, is_exact: bool) -> str:
    """What a file that states no settings is taken for."""
    if inferred:
        text = f"Settings not recorded; the trace shows {inferred}"
    else:
        text = "Settings not recorded; the default is assumed"
    return f"{text}, with which the model reproduces it." if is_exact else f"{text}."


def start_notes(snap: Snapshot, timeline: Timeline, is_exact: bool) -> list[str]:
    """What is not known of the state before the trace, or of the file as a whole.

    Args:
        snap: The snapshot.
        timeline: That of the device.
        is_exact: Whether the model reproduces the recording exactly.
    """
    facts, notes = timeline.facts, []
    if not snap.settings_stated:
        notes.append(_unstated(str(snap.settings_in_force["text"]), is_exact))
    if snap.history_overflowed(timeline.device):
        notes.append(
            "The ring of events wrapped: what came before its first event is not replayed."
        )
    if facts["preexisting"]:
        blocks = format_count(facts["preexisting"], "block")
        notes.append(
            f"{blocks} were there before the first event and stay in place; settings "
            "of another kind allocate them anew first."
        )
    if facts["slack_bound"]:
        bound = format_bytes(facts["slack_bound"])
        notes.append(f"Blocks from before the trace may be up to {bound} larger than assumed.")
    return notes


def event_notes(timeline: Timeline, program: dict[str, Any], is_exact: bool) -> list[str]:
    """What events are missing, or do not say.

    Args:
        timeline: The device's.
        program: What the core knows of its program.
        is_exact: Whether the model reproduces the recording exactly.
    """
    facts, notes = timeline.facts, []
    if facts["unmatched"]:
        events = format_count(facts["unmatched"], "event")
        notes.append(f"The trace has gaps: {events} fit nothing in it and are left out.")
    if program["segments_without_pool"] and (
        program["pools"] > 1 or not (facts["unmatched"] or is_exact)
    ):
        segments = format_count(program["segments_without_pool"], "segment")
        notes.append(
            "The events of this file do not name their pool, and "
            f"{segments} were gone at its end: these count as the default pool's. Where "
            "the program used others (CUDA graphs, MemPool) figures may be outside their "
            "ranges."
        )
    if not program["calls_known"]:
        notes.append(
            "Without stacks an empty_cache() of the program can't always be told from the "
            "allocator's own."
        )
    return notes


# ---- Variants ----------------------------------------------------------------------------

# The runs of which ranges are made, side by side.

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Calls a function with each of some items, in any order; results in theirs.
Each = Callable[[Callable[["_Run"], bytes], Iterable["_Run"]], list[bytes]]


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of some settings at one limit.

    Attributes:
        program: What is run.
        settings: The text of the settings; None are the recorded ones.
        name: What they are called in the outcome.
        options: The keywords of the core's `find_range`.
        compare: Runs the recorded settings with the addresses of the trace, which then is the
            first run where it came out exactly: its figures, and whether; or None.
    """

    program: core.Program
    settings: str | None
    name: str
    options: dict[str, Any]
    compare: Callable[[], tuple[bytes, bool]] | None

    def runs(self) -> list[_Run]:
        """The runs to make."""
        count = self.program.count_variants(self.settings, **self.options)
        return [_Run(self, index) for index in range(count)]


@dataclass(frozen=True, eq=False)
class _Run:
    plan: Plan
    index: int

    def __call__(self) -> bytes:
        """Its figures, as the core has them."""
        plan = self.plan
        if self.index == 0 and plan.compare is not None:
            figures, is_exact = plan.compare()
            if is_exact:
                return figures
        return plan.program.run_variant(plan.settings, index=self.index, **plan.options)


def run_plans(plans: list[Plan], each: Each) -> list[Outcome]:
    """The outcome of each plan.

    Args:
        plans: What to run.
        each: Makes the runs.
    """
    todo = [run for plan in plans for run in plan.runs()]
    figures = dict(zip(todo, each(_Run.__call__, todo), strict=True))
    outcomes = []
    for plan in plans:
        variants = [made for run, made in figures.items() if run.plan is plan]
        found = plan.program.join_variants(plan.settings, variants=variants, **plan.options)
        outcomes.append(outcome_of(plan.name, *found))
    return outcomes


def _tell_done(futures: list[Future[Result]]) -> None:
    """Say how many are done, and of how many."""
    done = itertools.count(1)
    for future in futures:
        future.add_done_callback(lambda _: tell(f"replayed {next(done)} of {len(futures)}"))


def side_by_side(
    work: Callable[[Item], Result], items: Iterable[Item], stop: Event
) -> list[Result]:
    """`work` on each item, in one thread per core; results in order.

    Args:
        work: What is done.
        items: To what.
        stop: Is set while the others end after a failure.
    """
    listed = list(items)
    # Where the interpreter is about to end, as in what atexit calls, no thread begins.
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return [work(item) for item in listed]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            futures = [pool.submit(work, item) for item in listed]
            _tell_done(futures)
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

# One device's program run on the model of the allocator, under many settings at a time.

# A report only replays: what else it takes to compare settings, the methods that do import.


class _StoppedError(Exception):
    """Another run has failed: the rest is no longer needed."""


class Replayer:
    """Runs what one device's trace asked of the allocator under other settings.

    Any number of threads may use one. A pickled one takes its snapshot along, and replays it
    again when needed.

    Attributes:
        device: The device.
        asked: The memory that the question is about, or None: as when recorded.
        room: What limited the process when it was recorded, where somebody wrote that down.
        version: PyTorch's, whose rules apply: major * 1000 + minor; 0 is the newest known.
        edits: What makes another program of the recorded one, which runs in its place, except
            under the recorded settings where these are given as None; None is none.
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
        """
        Raises:
            ValueError: There is nothing to replay, or it is not the native allocator's; or
                that is no version, no capacity or no fraction of something known.
        """
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
                f"the snapshot has no history of cuda:{device} to replay; it is recorded "
                "after torch.cuda.memory._record_memory_history()"
            )
        self.edits: Edits | None = None
        self._stop = Event()

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "snap", "device", "asked", "room", "edits")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stop = Event()

    @cached_property
    def timeline(self) -> Timeline:
        """The device's."""
        return self.snap.timeline(self.device)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the core knows of the program: limits, lanes, what is ambiguous."""
        return self.program.facts()

    @cached_property
    def changed(self) -> core.Program | None:
        """The program that `edits` make."""
        return None if self.edits is None else self.program.edit(*self.edits)

    def change(self, edits: Edits) -> None:
        """Run another program from now on."""
        self.edits = edits
        self.changed = self.program.edit(*edits)

    @property
    def recorded_settings(self) -> str:
        """The file's own settings as text."""
        return str(self.snap.settings_in_force["text"])

    @property
    def program(self) -> core.Program:
        """What the trace requested."""
        return self.timeline.program

    @property
    def capacity(self) -> int | None:
        """The most bytes that the process may have, or None: as when recorded."""
        return None if self.asked is None else self.asked.bytes

    @property
    def is_capped(self) -> bool:
        """Whether PyTorch itself kept the process below a limit when it was recorded."""
        if self.room is not None and self.room.fraction == 1.0:
            return False
        shown = self.facts["limit_high"] is not None and not self.facts["is_device"]
        return shown or self._told_limit is not None

    @property
    def is_limited(self) -> bool:
        """Whether PyTorch itself keeps the process below what it may have: then garbage is
        collected, and what is asked for is held against it before it is rounded up to pages."""
        if self.asked is not None and self.asked.fraction is not None:
            return self.asked.is_share
        return self.is_capped

    @cached_property
    def _told_limit(self) -> int | None:
        """PyTorch's own limit as it was written down, if the trace can have had it."""
        limit = None if self.room is None else self.room.limit_bytes
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if limit is None or limit < low or (high is not None and limit > high):
            return None
        return limit

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The limit to assume in bytes, then others that are as likely; 0: as recorded.

        A trace that shows failures says of the limit only that it was at least what was
        reserved, and too small for what failed; people choose round ones.
        """
        if self.asked is not None:
            return (self.asked.bytes,)
        if self._told_limit is not None:
            return (self._told_limit,)
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if not self.is_capped or low >= high:
            return (0,)
        low = max(low, 1)  # 0 is as recorded.
        guess = roundest(low, high)
        return tuple(dict.fromkeys((guess, low, high)))

    @cached_property
    def silent_places(self) -> int | None:
        """Where calls of empty_cache() and ends of pools may have left no trace.

        None where it does not look: in programs without visible calls of it and without pools
        of their own.
        """
        if not self.facts["calls"] and self.facts["pools"] < 2:
            return None
        return self.program.find_silence(self._look)

    @property
    def _silence(self) -> int:
        """What the core should make of what left no trace: 0 nothing, 1 that pools of graphs
        are put back as they were, 2 that there may be silent calls of empty_cache() too."""
        return 0 if self.silent_places is None else 2 if self.silent_places else 1

    @property
    def knows_large_segments(self) -> bool:
        """Whether this PyTorch has `large_segment_size_mb`, which came with 2.10."""
        # Events have this column since that version.
        has_column = "user_metadata" in self.snap.native.tables()["events"]
        return self.version >= version_number("2.10") if self.version else has_column

    def options(self, limit: int, *, is_share: bool | None = None) -> dict[str, Any]:
        """The keywords of a run in which the process may have `limit` bytes.

        Args:
            limit: Bytes; 0 is as recorded.
            is_share: Whether PyTorch itself keeps it below them, or the device has no more;
                None is what the question says, or the recording.
        """
        options = {"version": self.version, "silent": min(self._silence, 1)}
        if limit == 0:
            return options
        if self.is_limited if is_share is None else is_share:
            return {**options, "limit": limit, **self._device}
        return {**options, "limit": 0, "device_total": limit, "device_other": 0}

    @property
    def _device(self) -> dict[str, int]:
        """The device on which PyTorch keeps the process below a limit."""
        if self.asked is not None and self.asked.total_bytes is not None:
            return {"device_total": self.asked.total_bytes, "device_other": 0}
        if self.room is not None:
            return {"device_total": self.room.total_bytes, "device_other": 0}
        return {"device_total": self.facts["device_total"]}

    def quick(
        self,
        settings: str | None,
        limit: int | None = None,
        *,
        is_share: bool | None = None,
        **changes: int,
    ) -> Outcome:
        """What comes out, without its range; None are the recorded settings.

        Args:
            settings: The text of the settings.
            limit: Bytes, as `options` has them; None is what is assumed of them.
            is_share: As `options` has it.
            changes: Other keywords of the core's `run`.
        """

        assumed = self.limits[0] if limit is None else limit
        options = {**self.options(assumed, is_share=is_share), **changes}
        found = self._asked(settings).run(settings, progress=self._look, **options)
        return outcome_of(self._name(settings), found)

    def outcome(self, settings: str | None, runs: int = 0) -> Outcome:
        """What comes out, with its range; None are the recorded settings.

        Args:
            settings: The text of the settings.
            runs: How many runs for the range at each limit; 0 leaves it to the core.
        """
        return self._outcomes([settings], runs, lambda work, items: [work(i) for i in items])[0]

    def outcomes(self, settings: Iterable[str | None]) -> list[Outcome]:
        """The same of several settings, all their runs side by side."""
        return self._outcomes(list(settings), 0, self.map)

    def _outcomes(self, listed: list[str | None], runs: int, each: Each) -> list[Outcome]:

        plans = [self._plans(settings, runs) for settings in listed]
        found = iter(run_plans([plan for own in plans for plan in own], each))
        return [
            self._finished(settings, [next(found) for _ in own])
            for settings, own in zip(listed, plans, strict=True)
        ]

    def _plans(self, settings: str | None, runs: int) -> list[Plan]:
        """The runs of some settings at each limit that they may have had."""

        # Under its own settings the program ran as recorded whatever its limit was.
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
        """The snapshot that there would have been; None are the recorded settings."""
        options = self.options(self.limits[0])
        return Snapshot(self._asked(settings).trace(settings, progress=self._look, **options))

    def _asked(self, settings: str | None) -> core.Program:
        return self.program if settings is None or self.changed is None else self.changed

    def _name(self, settings: str | None) -> str:
        return self.recorded_settings if settings is None else settings

    def fits(self, settings: str | None, nbytes: int) -> bool:
        """Whether every request succeeds where the process may have this many bytes."""
        return self.quick(settings, nbytes).fits

    @cached_property
    def _checked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """How the model's replay of the recording compares with it, and its figures."""
        return self.program.check(progress=self._look, version=self.version)

    @property
    def check(self) -> Fidelity:
        """How faithfully the model replays the recording's own settings."""
        return fidelity_of(self._checked[0], self.snap.native.actions())

    def series(self, settings: str | None, **options: Any) -> dict[str, memoryview]:
        """The values after each event: bytes, segments, calls and failures so far."""
        chosen = {**self.options(self.limits[0]), **options}
        _, columns = self._asked(settings).series(settings, progress=self._look, **chosen)
        wide = ("allocated", "active", "reserved", "requested")
        return {
            name: memoryview(data).cast("Q" if name in wide else "I")
            for name, data in columns.items()
        }

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`work` on each item, in one thread per core; results in order."""

        return side_by_side(work, items, self._stop)

    def _look(self, done: int) -> None:
        """Called now and then by a run: ends it where another one has failed."""
        if self._stop.is_set():
            raise _StoppedError

    def notes(self) -> tuple[str, ...]:
        """What the trace can't tell, a sentence each."""

        is_exact = self.check.is_exact
        return (
            *start_notes(self.snap, self.timeline, is_exact),
            *event_notes(self.timeline, self.facts, is_exact),
            *limit_notes(self.asked, self.room, self.facts, self.limits),
        )
