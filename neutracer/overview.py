# SPDX-License-Identifier: Apache-2.0
"""`report`: the one-page summary of a snapshot, with the findings of every question."""

from __future__ import annotations

import json
import os
import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from neutracer.errors import NeutracerError
from neutracer.fragmentation.report import (
    FragmentationReport,
    device_fragmentation,
    room_of,
    whole_call,
)
from neutracer.leak.trend import trend_of_trace
from neutracer.oom.bill import Bill, bill_at
from neutracer.oom.facts import OomFacts, facts_at
from neutracer.phase_report import PhasesReport, phases_of
from neutracer.question import after_caveats, first_findings, opened
from neutracer.render.document import (
    Block,
    Cell,
    Copyable,
    Document,
    Figure,
    Findings,
    KeyValues,
    Note,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlacedRow, PlainRow, Report, ranked
from neutracer.trace.events import PINNED, device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.lives import has_uses, peak_if_freed
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import (
    EMPTY,
    NONE,
    Frame,
    Owner,
    base_name,
    module_tables,
    origin_of,
    owner_path,
    place_of,
)
from neutracer.trace.timeline import Timeline, unused_share
from neutracer.trace.uses import UNKNOWN
from neutracer.units import format_bytes, format_count, format_duration_us, format_event
from neutracer.whatif.drag import drag_findings

if TYPE_CHECKING:
    from neutracer.oom.explain import ExplainReport

# ---- Devices -----------------------------------------------------------------------------

# Holders on the printed page, and in the JSON.
_SHOWN_HOLDERS = 6
_MOST_HOLDERS = 50

_NOT_KNOWN = Figure("", "not known")


@dataclass(frozen=True)
class Holding(PlacedRow):
    """The blocks of one place in the program at the peak.

    Attributes:
        function, filename, line, package, caller: The place, as in `Place`.
        requested_bytes: The bytes it requested.
        count: The number of these blocks.
        share: Of all bytes requested in live blocks.
    """

    function: str
    filename: str
    line: int
    requested_bytes: int
    count: int
    share: float
    package: str = ""
    caller: str = ""


@dataclass(frozen=True)
class Held(PlainRow):
    """The blocks of one line of code at the end, and who in the process held them.

    Attributes:
        holder: Names of the program, as in `BillTerm.holder`.
        place: The line that allocated them.
        bytes: Their bytes.
        count: The number of these blocks.
    """

    holder: str
    place: Place
    bytes: int
    count: int


@dataclass(frozen=True)
class OutOfMemory(PlainRow):
    """One out-of-memory event.

    Attributes:
        event: Its number in the device's trace.
        time_us: Microseconds since the epoch; None if unknown.
        asked_bytes: The request, rounded by the allocator.
        device_free_bytes: The device's free memory.
    """

    event: int
    time_us: int | None
    asked_bytes: int
    device_free_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceOverview(PlainRow):
    """One device of a snapshot.

    Attributes:
        device: Its number.
        memory_stats: PyTorch's own figures at the end, under its keys.
        peak: The peak of allocated: allocated_bytes, event, the reserved_bytes and
            requested_bytes of that moment, holders.
        modules: The allocated bytes at that peak by module, the most first; empty if the
            recording has no modules.
        reserved_peak: The peak of reserved: reserved_bytes, event, and the allocated_bytes
            after the call that reserved them.
        fragmentation: Its fragmentation report.
        oom: The out-of-memory events.
        events: The number of events.
        duration_us: From the first event to the last; None if unknown.
        history_complete: As `Snapshot.history_complete`.
        end_known: False if the file has a history but no segments, and `memory_stats` is void.
        bill: Where the memory was at the last failure, as `explain` has it, else at the peak of
            allocated; None without a history.
        bill_event: The event after which the bill looks; -1 is before the first.
        held: Who held what was in use at the end; empty where the process was not asked.
        phases: The phases that the program marked; None: it marked none.
    """

    device: int
    memory_stats: dict[str, int]
    peak: dict[str, Any]
    modules: dict[str, int]
    reserved_peak: dict[str, int]
    fragmentation: FragmentationReport
    oom: tuple[OutOfMemory, ...]
    events: int
    duration_us: int | None
    history_complete: bool | None
    end_known: bool = True
    bill: Bill | None = None
    held: tuple[Held, ...] = ()
    bill_event: int | None = None
    phases: PhasesReport | None = None

    @property
    def bills_failure(self) -> bool:
        """Whether the bill is of a failure, not of the peak."""
        return any(one.event == self.bill_event for one in self.oom)


def device_overview(
    snap: Snapshot, device: int, fragmentation: FragmentationReport
) -> DeviceOverview:
    timeline = snap.timeline(device)
    peak, reserved = timeline.peak("allocated"), timeline.peak("reserved")
    held = timeline.held_by_place()
    total = sum(requested for _, _, requested, _ in held)
    held = sorted(held, key=lambda one: -one[2])
    holders = tuple(
        Holding(
            **asdict(place),
            requested_bytes=requested,
            count=count,
            share=requested / total if total else 0.0,
        )
        for place, _, requested, count in held[:_MOST_HOLDERS]
    )
    times = timeline.time_us
    duration = times[-1] - times[0] if len(times) and times[0] else None
    return DeviceOverview(
        device=device,
        memory_stats=snap.memory_stats(device),
        peak={
            "allocated_bytes": peak.bytes,
            "event": peak.event,
            "reserved_bytes": _bytes_at(timeline, peak.event)[1],
            "requested_bytes": total,
            "holders": holders,
        },
        modules=timeline.held_by_module(peak.event),
        reserved_peak={
            "reserved_bytes": reserved.bytes,
            "event": reserved.event,
            "allocated_bytes": _bytes_at(timeline, whole_call(timeline, reserved.event))[0],
        },
        fragmentation=fragmentation,
        oom=_ooms(snap, device),
        events=len(timeline),
        duration_us=duration,
        history_complete=snap.history_complete(device),
        end_known=end_is_known(snap, device),
        held=_held(snap, device),
        phases=_phases(snap, device),
    )


def _held(snap: Snapshot, device: int) -> tuple[Held, ...]:
    holders = snap.beside.holders.get(device, {})
    if not holders:
        return ()
    timeline = snap.timeline(device)
    by_place = timeline.held_by_place(len(timeline) - 1)
    return tuple(
        Held(holders[str(place)], place, nbytes, count)
        for place, nbytes, _, count in by_place
        if str(place) in holders
    )


def _bytes_at(timeline: Timeline, event: int) -> tuple[int, int]:
    """The bytes allocated and reserved after an event; -1 is before the first."""
    if event < 0:
        allocated, _, reserved, _ = timeline.facts["start_bytes"]
        return allocated, reserved
    return timeline.allocated[event], timeline.reserved[event]


def _phases(snap: Snapshot, device: int) -> PhasesReport | None:
    # Turns of a part are not those of the file.
    found = phases_of(snap, device) if snap.window is None else None
    return found if found is not None and found.turns else None


def _ooms(snap: Snapshot, device: int) -> tuple[OutOfMemory, ...]:
    timeline = snap.timeline(device)
    if not timeline.facts["oom_count"]:
        return ()
    rows = timeline.events
    return tuple(
        OutOfMemory(event, rows[event].time_us or None, rows[event].size, rows[event].device_free)
        for event, action in enumerate(rows["action"])
        if action == "oom"
    )


def totals_table(device: DeviceOverview) -> Table:
    """The figures of a device, one moment in each row."""
    stats, judged = device.memory_stats, device.fragmentation.judged
    now = stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
    rows = [_moment("now", *now, judged)]
    if not device.end_known:
        rows = [("now", _NOT_KNOWN, _NOT_KNOWN, _NOT_KNOWN, "")]
    if device.events:
        # Only events show a peak.
        rows += _peaks(device)
    retries, parts = device.fragmentation.retries, []
    if retries and device.fragmentation.device >= 0:
        word = format_count(retries, "retry", "retries")
        parts.append(f"{word} (cache released to find room)")
    if device.oom:
        parts.append(f"{format_count(len(device.oom))} out of memory")
    notes = (", ".join(parts),) if parts else ()
    heads = ("", "allocated", "reserved", "unused", "")
    return Table(named_device(device), tuple(rows), heads, notes)


def _peaks(device: DeviceOverview) -> list[tuple[Cell, ...]]:
    peak, most = device.peak, device.reserved_peak
    high = peak["allocated_bytes"], peak["reserved_bytes"]
    wide = most["allocated_bytes"], most["reserved_bytes"]
    found = device.fragmentation.findings
    worst = next((str(one.severity) for one in found if one.kind == "fragmentation_peak"), "")
    words = ", ".join(filter(None, (format_event(most["event"]), worst)))
    if high[1] == wide[1] and not worst:
        # The most of both at one moment.
        return [_moment("peak", *high, format_event(peak["event"]))]
    return [
        _moment("peak of allocated", *high, format_event(peak["event"])),
        _moment("peak of reserved", *wide, words),
    ]


def _moment(name: str, allocated: int, reserved: int, words: str) -> tuple[Cell, ...]:
    unused = Figure.share(unused_share(reserved, allocated))
    return (name, Figure.bytes(allocated), Figure.bytes(reserved), unused, words)


def named_device(device: DeviceOverview) -> str:
    return device_name(device.fragmentation.device)


def holder_tables(device: DeviceOverview, several: bool) -> tuple[Table, ...]:
    """Who holds the memory, where no bill says it, and by module."""
    holders = device.peak["holders"]
    if not holders:
        return ()
    where = f" of {named_device(device)}" if several else ""
    kept = tuple(
        (Figure.bytes(one.bytes), Figure.count(one.count, "block"), one.holder, one.place)
        for one in device.held[:_SHOWN_HOLDERS]
    )
    tables = (
        *((Table(f"Who keeps it{where}, and the line that made it", kept),) if kept else ()),
        *module_tables(f"By module{where}", device.modules),
    )
    if device.bill is not None:
        return tables
    shown = holders[:_SHOWN_HOLDERS]
    rows = tuple(
        (
            Figure.share(holder.share),
            Figure.bytes(holder.requested_bytes),
            Figure.count(holder.count, "block"),
            holder.place,
        )
        for holder in shown
    )
    asked = format_bytes(device.peak["requested_bytes"], "MiB", decimals=1)
    allocated = format_bytes(device.peak["allocated_bytes"], "MiB", decimals=1)
    rest = len(holders) - len(shown)
    notes = (f"and {format_count(rest, 'more place')}",) if rest else ()
    title = f"Who holds it now{where} ({asked} asked for, {allocated} allocated)"
    return (Table(title, rows, notes=notes), *tables)


# ---- Late gradients ----------------------------------------------------------------------

# A peak that would be lower by fewer bytes, or by a smaller share, is severity `info`.
_SMALL = 32 << 20
_MATTERS = 0.02


@dataclass(frozen=True)
class LateGradients(PlainRow):
    """Gradients that were freed between a forward pass and its backward pass.

    Attributes:
        bytes: The most that lived through one forward pass.
        count: The number of these gradients.
        passes: The number of forward passes with late gradients.
        forward: The first event of the forward pass of `bytes`.
        freed: The event that freed the first of them.
        peak_bytes: The most allocated between the two events.
        saved_bytes: By how much the peak of all would be lower without them.
        place: The line that freed them; None if frees have no stacks.
    """

    bytes: int
    count: int
    passes: int
    forward: int
    freed: int
    peak_bytes: int
    saved_bytes: int
    place: Place | None


def late_gradients(timeline: Timeline) -> LateGradients | None:
    """Find gradients that were freed too late for the forward pass to use their memory.

    A gradient counts if it was made in one backward pass, alive when the next forward pass
    first allocated, and freed before the backward pass after that. A later one is accumulated
    on purpose. If its uses are known, they and not its place in the step decide: `drag_findings`.
    """
    passes = timeline.passes
    if not passes.backward or not passes.forward:
        return None
    by_forward = _late_rows(timeline)
    if not by_forward:
        return None
    sizes, freed = timeline.allocations.codes("size"), timeline.allocations.codes("free_event")
    held = {forward: sum(sizes[row] for row in rows) for forward, rows in by_forward.items()}
    forward = max(held, key=lambda event: held[event])
    events = [freed[row] for row in by_forward[forward]]
    # A free that only has the stack of its allocation does not show the freeing line.
    known = [event for event in events if passes.stack[event] != NONE]
    places = Counter(place_of(timeline.events[event].stack) for event in known)
    place = places.most_common(1)[0][0] if places else None
    earlier = ((row, begin - 1) for begin, rows in by_forward.items() for row in rows)
    saved = timeline.peak("allocated").bytes - peak_if_freed(timeline, earlier)
    return LateGradients(
        bytes=held[forward],
        count=len(events),
        passes=len(by_forward),
        forward=forward,
        freed=min(events),
        peak_bytes=max(timeline.allocated[forward : min(events)]),
        saved_bytes=saved,
        place=place if place and place.line else None,
    )


def _late_rows(timeline: Timeline) -> dict[int, list[int]]:
    """Rows of late gradients whose uses are not known, by the first event of their forward pass."""
    gradient = CATEGORIES.index("gradient")
    rows, passes = timeline.allocations, timeline.passes
    begins = [begin for begin, _ in passes.backward]
    ends = [end for _, end in passes.backward]
    found: dict[int, list[int]] = {}
    allocs, frees = rows.codes("alloc_event"), rows.codes("free_event")
    uses = rows.codes("first_use_event") if has_uses(timeline) else None
    for row in [row for row, code in enumerate(timeline.categories.codes) if code == gradient]:
        made, freed = allocs[row], frees[row]
        if freed < 0 or (uses is not None and uses[row] != UNKNOWN):
            continue
        number = bisect_left(ends, made + 1)
        if number == len(ends):
            # Made after the last backward pass: by a hook that reduces or copies gradients.
            continue
        end = ends[number] if made >= 0 else 0
        forward = passes.next_forward(end - 1)
        coming = bisect_left(begins, end)
        limit = begins[coming] if coming < len(begins) else None
        if forward is not None and limit is not None and forward < freed <= limit:
            found.setdefault(forward, []).append(row)
    return found


def late_gradients_finding(timeline: Timeline, *, never_short: bool) -> tuple[Finding, ...]:
    """The finding on late gradients, if any; of a process that never ran short of memory it is
    `info`."""
    found = late_gradients(timeline)
    if found is None:
        return ()
    size, peak = format_bytes(found.bytes), format_bytes(found.peak_bytes)
    matters = found.saved_bytes >= max(_SMALL, _MATTERS * timeline.peak("allocated").bytes)
    lower = f": the peak would be {format_bytes(found.saved_bytes)} lower" if matters else ""
    notes = [
        Note(
            f"{format_count(found.count, 'gradient')} in each of "
            f"{format_count(found.passes, 'forward pass', 'forward passes')}, freed only then"
            f"{' by' if found.place else ''}",
            found.place,
        ),
        Note(f"Up to {peak} were allocated meanwhile{lower}."),
    ]
    advice = Note(
        "call optimizer.zero_grad(set_to_none=True) before the forward pass, not after it",
        detail="the forward pass then uses their memory",
    )
    return (
        Finding(
            "late_zero_grad",
            Severity.MODERATE if matters and not never_short else Severity.INFO,
            found.bytes,
            f"{size} of gradients live through the next forward pass",
            tuple(notes),
            (advice,),
            found.freed,
        ),
    )


# ---- Oddities ----------------------------------------------------------------------------

_UNKNOWN = "nothing earlier is known"

_BEGIN_HISTORY = "start one with neutracer.record() or torch.cuda.memory._record_memory_history()"


def oddities(
    snap: Snapshot, devices: Mapping[int, FragmentationReport]
) -> tuple[tuple[str, str], ...]:
    """Remarks on a snapshot: a name and a sentence each."""
    odd = []
    if snap.ignored_keys:
        odd.append(("not read", ", ".join(snap.ignored_keys)))
    if snap.host is not None:
        odd.append(("pinned", _of_host(snap.host)))
    for device, fragmentation in devices.items():
        of = f" of {device_name(fragmentation.device)}" if len(devices) > 1 else ""
        remarks = (*_of_history(snap, device), *_of_pools(fragmentation))
        odd.extend((name + of, remark) for name, remark in remarks)
    return tuple(odd)


def _of_host(host: Snapshot) -> str:
    stats = host.memory_stats(0)
    reserved, used = (stats[f"{one}_bytes.all.current"] for one in ("reserved", "active"))
    most = host.timeline(0).peak("reserved").bytes
    at_most = f" ({format_bytes(most)} at most)" if most > reserved else ""
    held = f"{format_bytes(reserved)} of the host's memory{at_most}, {format_bytes(used)} in use"
    return f"{held}; for its holders: --host, or snapshot.host"


def _of_history(snap: Snapshot, device: int) -> list[tuple[str, str]]:
    odd = []
    facts = snap.timeline(device).facts
    if snap.window:
        layout = snap.timeline(device).at(-1)
        alive = [block.size for block in layout.blocks if block.state != "inactive"]
        blocks = f"{format_count(len(alive), 'block')}, {format_bytes(sum(alive))},"
        odd.append(("history", f"{blocks if alive else 'nothing'} lived before these events"))
    elif snap.history_overflowed(device):
        odd.append(("history", "the ring of events wrapped; what came before it is unknown"))
    elif not snap.trace_length(device):
        odd.append(("history", f"none: {_BEGIN_HISTORY}"))
    elif not snap.history_complete(device):
        contradicts = any(flaw.device == device for flaw in snap.flaws)
        unknown = "events are missing, or contradict each other" if contradicts else _UNKNOWN
        blocks = format_count(facts["preexisting"], "block")
        were = "was" if facts["preexisting"] == 1 else "were"
        before = f"{blocks} {were} there before the first event"
        odd.append(("history", before if facts["preexisting"] else unknown))
    if facts["slack_bound"]:
        bound = format_bytes(facts["slack_bound"])
        odd.append(("estimate", f"blocks from before the trace may be up to {bound} larger"))
    return odd


def _of_pools(fragmentation: FragmentationReport) -> list[tuple[str, str]]:
    odd = []
    pools = fragmentation.pools
    private = [pool for pool in pools if pool.pool != (0, 0)]
    if private:
        size = format_bytes(sum(pool.reserved_bytes for pool in private))
        count = format_count(len({pool.pool for pool in private}), "private pool")
        odd.append(("private pools", f"{count} with {size} reserved"))
    pending = sum(pool.pending_bytes for pool in pools)
    if pending:
        odd.append(("pending", f"{format_bytes(pending)} freed, waiting for another stream"))
    streams = {pool.stream for pool in pools}
    if len(streams) > 1:
        odd.append(("streams", f"{len(streams)}: a free block of one is never used for another"))
    return odd


# ---- Findings ----------------------------------------------------------------------------

# Verdicts on a failure that explain why memory grew.
_GROWS = {"leak", "cache_growth", "cycle_garbage"}

# Longer traces are left to `leak_trend`, to bound the cost of an overview.
_MOST_EVENTS = 1_000_000

# A bill and its event.
_Billed = tuple[Bill, int] | None

# The most places of failed requests to explain; a batch-size finder has one.
_MOST_PLACES = 8


def failure_findings(
    snap: Snapshot, timeline: Timeline, file: str
) -> tuple[tuple[Finding, ...], set[str], _Billed]:
    """A finding per place of failed requests, with the verdict on its largest request.

    Returns:
        The findings, the kinds of the verdicts in them, and the bill of the last place with its
        event.
    """
    kinds: set[str] = set()
    billed: _Billed = None
    if not timeline.facts["oom_count"]:
        return (), kinds, None
    by_place: dict[Place, list[int]] = {}
    for event, name in enumerate(timeline.events["action"]):
        if name == "oom":
            by_place.setdefault(place_of(timeline.events[event].stack), []).append(event)
    sizes = timeline.events.codes("size")
    last = max(events[-1] for events in by_place.values())
    found = []
    for place, events in list(by_place.items())[-_MOST_PLACES:]:
        # Among equal sizes the last, which the facts beside the file describe.
        known = _described(snap, timeline, events)
        facts = [facts_at(snap.beside, timeline.events[one].time_us) for one in known]
        if facts and all(one is not None and one.raised is False for one in facts):
            # No exception told the program.
            found.append(_caught_inside(timeline, events, place))
            continue
        event = max(known or events, key=lambda number: (sizes[number], number))
        times = f", {format_count(len(events))} times from one place" if len(events) > 1 else ""
        why = _explained(snap, timeline, event)
        main = None if why is None else why.main
        billed = billed if why is None else (why.bill, event)
        asked = f"{format_bytes(sizes[event])} requested"
        message = f"out of memory: {asked if main is None else main.message}{times}"
        notes: tuple[Note, ...] = (Note(f"{asked} by", place),)
        advice: tuple[Note, ...] = ()
        if main is not None:
            kinds.add(main.kind)
            notes += main.evidence
            advice = main.advice
        if file and main is not None:
            more = f"neutracer explain {shlex.quote(file)}"
            which = f" --device {timeline.device}" if len(snap.devices) > 1 else ""
            which += "" if event == last else f" --event {event}"
            advice = (*advice, Note("more", detail=Copyable(f"{more}{which}")))
        kind, size = "out_of_memory", sizes[event]
        found.append(Finding(kind, Severity.SEVERE, size, message, notes, advice, event))
    return tuple(found), kinds, billed


def _caught_inside(timeline: Timeline, events: list[int], place: Place) -> Finding:
    """The finding on failures that no exception told the program of."""
    largest = max(map(timeline.events.codes("size").__getitem__, events))
    times = format_count(len(events), "request")
    message = f"{times} found no memory, and a library went on with less: no error was raised"
    notes = (Note(f"{format_bytes(largest)} at most, requested by", place),)
    return Finding("ran_short", Severity.INFO, largest, message, notes, (_ON_LESS,), events[-1])


_ON_LESS = Note("none is needed; with more room cuDNN may take a faster algorithm")


def _described(snap: Snapshot, timeline: Timeline, events: list[int]) -> set[int]:
    """Those failures of one place that the JSON beside the file describes, each written down just
    after it: of a place that runs out again and again, the first."""
    times = [one["time_us"] for one in snap.beside.ooms if isinstance(one.get("time_us"), int)]
    failed = timeline.events.find("action", "oom")
    at = [timeline.events[event].time_us for event in failed]
    before = (bisect_right(at, time) - 1 for time in times)
    return {failed[number] for number in before if number >= 0}.intersection(events)


def _explained(snap: Snapshot, timeline: Timeline, event: int) -> ExplainReport | None:
    from neutracer.oom.explain import explained

    facts = facts_at(snap.beside, timeline.events[event].time_us or None)
    try:
        return explained(snap, timeline.device, facts or OomFacts(), event=event)
    except (NeutracerError, ValueError):
        return None


def trend_findings(
    snap: Snapshot, timeline: Timeline, file: str, known: set[str]
) -> tuple[tuple[Finding, ...], str]:
    """Findings on growth, unless it already explains a failure.

    Returns:
        The findings, and why the trace does not show whether memory grows; "" if it does.
    """
    if not len(timeline):
        return (), _NO_HISTORY
    if len(timeline) > _MOST_EVENTS:
        return (), f"the trace has more than {_MOST_EVENTS:,} events: ask neutracer.leak_trend()"
    try:
        trend = trend_of_trace(snap, timeline.device)
    except (NeutracerError, ValueError) as error:
        return (), str(error)
    if trend.verdict == "unknown":
        # As a part of another sentence.
        return (), trend.because[:1].lower() + trend.because[1:].removesuffix(".")
    if trend.verdict == "steady" or known & _GROWS:
        return (), ""
    which = f", device={timeline.device}" if len(snap.devices) > 1 else ""
    call = Copyable(f"neutracer.leak_trend({json.dumps(file)}{which})")
    more = (Note("more", detail=call),) if file else ()
    return tuple(replace(one, advice=(*one.advice, *more)) for one in trend.findings), ""


# ---- What was not looked at --------------------------------------------------------------

_NO_HISTORY = "no history was recorded"

# Kinds of findings in words, in the order of the sentence.
_KIND_WORDS = {
    "out_of_memory": "failures",
    "leak": "growth",
    "fragmentation_peak": "the peak",
    "cycle_garbage": "garbage",
    "non_torch": "memory that is not PyTorch's",
    "drag": "memory kept past its last use",
}


def not_looked_at(snap: Snapshot, device: int, no_growth: str) -> dict[str, str]:
    """The kinds of findings that one device of a snapshot can't show, and why.

    Args:
        no_growth: Why it does not show growth; "" if it does.
    """
    found = {}
    if not len(snap.timeline(device)):
        found = dict.fromkeys(("out_of_memory", "fragmentation_peak"), _NO_HISTORY)
    if no_growth:
        found["leak"] = no_growth
    found["cycle_garbage"] = "a snapshot has no Python objects"
    room = snap.beside.rooms.get(device)
    has_device = not (snap.is_pinned or snap.is_cpu or snap.rehearsed is not None)
    if has_device and (room is None or room.other_bytes is None):
        found["non_torch"] = "no JSON beside the file has the device's figures"
    return found


# ---- Tree --------------------------------------------------------------------------------

# Smaller branches, as a share of the peak, and those beyond the limit are left out.
_LEAST_SHARE = 0.01
_MOST_BRANCHES = 200


@dataclass(frozen=True)
class Branch(PlainRow):
    """One frame of the tree, with the bytes allocated below it.

    Attributes:
        depth: 0 is the program's first line. Frames of PyTorch and Python, and those that pass
            on all of their bytes, are left out.
        function, filename, line, package: The frame, as in `Place`.
        bytes: Bytes of blocks allocated at the peak.
        count: The number of these blocks.
        share: Of the peak.
    """

    depth: int
    function: str
    filename: str
    line: int
    package: str
    bytes: int
    count: int
    share: float


@dataclass(frozen=True, kw_only=True, repr=False)
class PeakTreeReport(Report):
    """The call tree of a peak, as `neutracer report --tree` prints it.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        event: The event of the peak of allocated; -1 is before the first.
        peak_bytes: The bytes allocated then.
        branches: The tree in preorder, children by bytes, descending.
        left_out: The number of branches left out beside and below these: smaller than a hundredth
            of the peak, or beyond 200.
    """

    schema = "neutracer.peak_tree/1"

    device: int
    event: int
    peak_bytes: int
    branches: tuple[Branch, ...]
    left_out: int

    def document(self) -> Document:
        """The report as a document."""
        rows = tuple(
            (
                Figure.share(one.share),
                Figure.bytes(one.bytes),
                Figure.count(one.count, "block"),
                "│ " * one.depth + str(Place(one.function, one.filename, one.line, one.package)),
            )
            for one in self.branches
        )
        rest = format_count(self.left_out, "more branch", "more branches")
        notes = (f"and {rest}",) if self.left_out else ()
        when = format_event(self.event)
        facts = (device_name(self.device), format_bytes(self.peak_bytes), when)
        return Document("Peak by caller", facts, (Table("", rows, notes=notes),))


def peak_tree(snap: Snapshot, device: int | None = None) -> PeakTreeReport:
    """The stacks of the blocks allocated at the peak, as a tree.

    Args:
        device: The device; None is the only one.

    Example:
        >>> import neutracer
        >>> snap = neutracer.load("tests/data/frag_default.pickle")
        >>> [(branch.depth, branch.line) for branch in peak_tree(snap).branches]
        [(0, 166), (1, 155), (1, 159)]
    """
    number = snap.device(device)
    timeline = snap.timeline(number)
    peak = timeline.peak("allocated")
    kept, left = _Callers(snap, timeline, peak.event).branches(peak.bytes)
    return PeakTreeReport(
        device=shown_device(snap, number),
        event=peak.event,
        peak_bytes=peak.bytes,
        branches=tuple(kept[:_MOST_BRANCHES]),
        left_out=left + max(len(kept) - _MOST_BRANCHES, 0),
    )


class _Callers:
    """The blocks allocated after an event by caller, in columns by stack id: a file can have a
    stack for every few bytes. A stack's id is larger than its caller's."""

    def __init__(self, snap: Snapshot, timeline: Timeline, event: int) -> None:
        self._stacks = snap.stacks
        count = len(self._stacks)
        self._bytes, self._counts = array("Q", bytes(8 * count)), array("I", bytes(4 * count))
        # Stacks that are called from one, as a chain; 0 is its end.
        self._inner, self._next = array("I", bytes(4 * count)), array("I", bytes(4 * count))
        self._ends: dict[int, tuple[int, int]] = {}
        for stack, blocks, nbytes, _ in timeline.native.holders(event, 0):
            at = EMPTY if stack == NONE else stack
            held, counted = self._ends.get(at, (0, 0))
            self._ends[at] = (held + nbytes, counted + blocks)
            self._bytes[at] += nbytes
            self._counts[at] += blocks
        for stack in range(count - 1, 0, -1):
            if self._counts[stack]:
                caller = self._stacks.caller(stack)
                self._bytes[caller] += self._bytes[stack]
                self._counts[caller] += self._counts[stack]
                self._next[stack], self._inner[caller] = self._inner[caller], stack

    def branches(self, total: int) -> tuple[list[Branch], int]:
        """The branches from `_LEAST_SHARE` of a total on, in preorder, and the number of smaller
        ones beside and below them; frames that pass on all of their bytes are no branches."""
        found, left = [], 0
        waiting = [(node, 0) for node in self._below((0,), is_root=True)]
        while waiting:
            (place, nbytes, count, stacks), depth = waiting.pop()
            if nbytes < int(_LEAST_SHARE * total):
                left += 1
                continue
            inner = self._below(stacks)
            while len(inner) == 1 and inner[0][1] == nbytes:
                place, nbytes, count, stacks = inner[0]
                inner = self._below(stacks)
            where = (place.function, place.filename, place.line, place.package)
            share = nbytes / total if total else 0.0
            found.append(Branch(depth, *where, nbytes, count, share))
            waiting += [(node, depth + 1) for node in inner]
        return found, left

    def _below(
        self, stacks: Iterable[int], *, is_root: bool = False
    ) -> list[tuple[Place, int, int, list[int]]]:
        """The program's next places further in than some stacks, with their bytes, blocks and
        stacks, the largest last. Below the root, a stack without any is at its own place."""
        nodes: dict[Place, tuple[int, int, list[int]]] = {}

        def add(place: Place, nbytes: int, count: int, stack: int | None) -> None:
            held, counted, at = nodes.get(place, (0, 0, []))
            at += [] if stack is None else [stack]
            nodes[place] = (held + nbytes, counted + count, at)

        waiting = list(stacks)
        while waiting:
            stack = waiting.pop()
            if is_root and stack in self._ends:
                add(place_of(self._stacks[stack]), *self._ends[stack], None)
            inner = self._inner[stack]
            while inner:
                place = _program_place(self._stacks.innermost(inner))
                if place is None:
                    waiting.append(inner)
                else:
                    add(place, self._bytes[inner], self._counts[inner], inner)
                inner = self._next[inner]
        ranked = [(place, *node) for place, node in nodes.items()]
        return sorted(ranked, key=lambda node: node[1])


def _program_place(frame: Frame) -> Place | None:
    """A frame of the program or of a library; None for others."""
    origin = origin_of(owner_path(frame))
    if frame.line <= 0 or origin.owner not in (Owner.OWN, Owner.LIBRARY):
        return None
    package = origin.package if origin.owner is Owner.LIBRARY else ""
    return Place(frame.name, base_name(frame.filename), frame.line, package)


# ---- Report ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class OverviewReport(Report):
    """The one-page summary of a snapshot, as `neutracer report` prints it.

    Attributes:
        file: The file's name, or "" for a live process.
        devices: One entry per device.
        partial: Why only a part was read, or None.
        ignored_keys: Keys of the file that are not read.
        settings: The PYTORCH_CUDA_ALLOC_CONF in force; "" is PyTorch's default.
        settings_recorded: The file states its settings; else `settings` is inferred from its
            trace.
        rehearsed: It is of a rehearsal.
        window: The events read, for a part of a trace; else "".
        is_host: It is of the host's pinned memory, not of a device's.
        not_looked_at: The kinds of findings that the snapshot can't show, and why.
    """

    schema = "neutracer.report/1"

    file: str
    devices: tuple[DeviceOverview, ...]
    partial: str | None
    ignored_keys: tuple[str, ...]
    settings: str
    settings_recorded: bool = True
    rehearsed: bool = False
    window: str = ""
    is_host: bool = False
    not_looked_at: dict[str, str] = field(default_factory=dict)
    _odd: tuple[tuple[str, str], ...] = field(compare=False)
    _flaws: tuple[Finding, ...] = field(compare=False, default=())
    _found: tuple[tuple[int, tuple[Finding, ...]], ...] = field(compare=False, default=())

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot; None in a copy from another process."""
        return getattr(self, "_snapshot", None)

    def tree(self, device: int | None = None) -> PeakTreeReport:
        """The call tree of a device's peak.

        Args:
            device: The device; None is the only one of the report.

        Raises:
            ValueError: There is no such device, or the report is a copy from another process.
        """
        if self.snapshot is None:
            raise ValueError("this report has no snapshot: use the original report")
        if device is None and len(self.devices) == 1:
            device = self.devices[0].device
        return peak_tree(self.snapshot, device)

    @property
    def settings_text(self) -> str:
        """The settings in words."""
        return settings_words(self.settings, is_stated=self.settings_recorded)

    def findings_of(self, device: int) -> tuple[Finding, ...]:
        """The findings on one device, without its name; the worst first."""
        return next((found for number, found in self._found if number == device), ())

    def document(self) -> Document:
        """The report as a document."""
        # Flaws of the file come before any figure.
        blocks: list[Block] = [*_entries(self._flaws)]
        for device in self.devices:
            blocks.append(totals_table(device))
            if device.bill is not None:
                where = f" of {named_device(device)}" if len(self.devices) > 1 else ""
                moment = "" if device.bills_failure else " at the peak of allocated"
                blocks.append(replace(device.bill.block(), title=f"The bill{where}{moment}"))
        blocks.extend(_entries(tuple(map(_brief, self.findings[len(self._flaws) :]))))
        for device in self.devices:
            blocks.extend(holder_tables(device, len(self.devices) > 1))
        for device in self.devices:
            if device.phases is not None:
                blocks.extend(device.phases.blocks())
        if self._odd:
            blocks.append(KeyValues("Also", self._odd))
        title = self.file or "this process"
        return Document(title, self._facts(), tuple(blocks), healthy=self._healthy())

    def _healthy(self) -> str:
        """The answer of a page without findings above INFO."""
        if not self.devices:
            return "There is nothing to look at: no device has segments or events."
        if self.rehearsed:
            # Whether it fits is the answer.
            return ""
        # Only a card has memory that is not PyTorch's, and few recordings have uses.
        has_card = any(device.device >= 0 for device in self.devices)
        absent = ("drag",) if has_card else ("drag", "non_torch")
        unseen = {*self.not_looked_at, *absent}
        seen = ["fragmentation"] if any(device.end_known for device in self.devices) else []
        seen += [words for kind, words in _KIND_WORDS.items() if kind not in unseen]
        looked = f"Nothing wrong found. Looked at: {', '.join(seen) or 'the file alone'}."
        if not self.not_looked_at:
            return looked
        by_reason: dict[str, list[str]] = {}
        for kind, words in _KIND_WORDS.items():
            if kind in self.not_looked_at:
                by_reason.setdefault(self.not_looked_at[kind], []).append(words)
        reasons = (f"{', '.join(words)} ({why})" for why, words in by_reason.items())
        return f"{looked} Not looked at: {'; '.join(reasons)}."

    def _facts(self) -> tuple[str, ...]:
        events = sum(device.events for device in self.devices)
        spans = [device.duration_us for device in self.devices if device.duration_us]
        length = f" over {format_duration_us(max(spans))}" if spans else ""
        known = [device.history_complete for device in self.devices if device.events]
        history = "history complete" if all(known) else "history begins late"
        if self.partial:
            history = "read in part"
        elif self.window:
            history = self.window
        return (
            self._kind(),
            *(() if self.is_host else (format_count(len(self.devices), "device"),)),
            format_count(events, "event") + length,
            *((history,) if known else ("no history recorded",)),
            *(() if self.is_host else (self.settings_text,)),
        )

    def _kind(self) -> str:
        if self.is_host:
            return device_name(PINNED)
        return "Rehearsed, not recorded" if self.rehearsed else "PyTorch snapshot"


def led_by(finding: Finding, report: OverviewReport) -> OverviewReport:
    """A report with a finding before all of its own, the caveats of its file included."""
    found, flaws = (finding, *report.findings), (finding, *report._flaws)
    return replace(report, findings=found, _flaws=flaws)


def report(
    source: Snapshot | SnapshotSource | None = None, *, device: int | None = None
) -> OverviewReport:
    """Summarise a snapshot on one page, as `neutracer report` does.

    Args:
        source: A Snapshot, or a source for `load`; None is this process, now.
        device: Only this device; None is all devices in use.

    Returns:
        Totals, the peak and its holders, and the findings of `explain`, `leak_trend`,
        `fragmentation_report` and, where the snapshot has uses, `drag`.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: There is no such device.

    Example:
        >>> import neutracer
        >>> found = neutracer.report("tests/data/frag_default.pickle")
        >>> found.worst == "severe", found.devices[0].peak["allocated_bytes"] >> 20
        (True, 590)
    """
    snap = opened(source)
    file = snap.origin
    if file and isinstance(source, (str, os.PathLike)):
        file = os.fspath(source)
    return overview(snap, file, title="" if source is None else "snapshot", device=device)


def overview(
    snap: Snapshot, file: str = "", *, title: str = "", device: int | None = None
) -> OverviewReport:
    """Summarise a snapshot.

    Args:
        file: Its file, for the title and follow-up commands; "" is none.
        device: Only this device; None is all devices in use.
    """
    chosen = snap.devices if device is None else (snap.device(device),)
    entries = [_entry(snap, number) for number in chosen]
    findings: list[Finding] = []
    unseen: dict[str, dict[str, list[str]]] = {}
    by_device, billed = [], []
    # Follow-up commands on a file are about its devices, not the host's pinned memory.
    name = "" if snap.is_pinned else file
    for entry, fragmented in entries:
        found, bill, no_growth = _found_on(snap, entry, name, fragmented)
        if bill is None and entry.events:
            event = entry.peak["event"]
            bill = bill_at(snap, entry.device, event), event
        billed.append(entry if bill is None else replace(entry, bill=bill[0], bill_event=bill[1]))
        where = f"{named_device(entry)}: " if len(entries) > 1 else ""
        for kind, why in not_looked_at(snap, entry.device, no_growth).items():
            unseen.setdefault(kind, {}).setdefault(why, []).append(named_device(entry))
        findings += [replace(one, message=where + one.message) for one in found]
        own = (*first_findings(snap, device=entry.device), *ranked(found))
        by_device.append((entry.device, own))
    devices = tuple(billed)
    first = first_findings(snap, device=None if device is None else chosen[0])
    made = OverviewReport(
        file=os.path.basename(file or title),
        devices=devices,
        partial=snap.partial,
        ignored_keys=snap.ignored_keys,
        settings=str(snap.settings_in_force["text"]),
        settings_recorded=snap.settings_stated,
        rehearsed=snap.rehearsed is not None,
        window=str(snap.window or ""),
        is_host=snap.is_pinned,
        not_looked_at={
            kind: " and ".join(
                why if len(names) == len(entries) else f"on {', '.join(names)} {why}"
                for why, names in whys.items()
            )
            for kind, whys in unseen.items()
        },
        findings=(*first, *ranked(findings)),
        _odd=oddities(snap, {entry.device: entry.fragmentation for entry in devices}),
        _flaws=first,
        _found=tuple(by_device),
    )
    # Not a field, so that it is not pickled.
    object.__setattr__(made, "_snapshot", snap)
    return made


def _entry(snap: Snapshot, number: int) -> tuple[DeviceOverview, tuple[Finding, ...]]:
    fragmentation = device_fragmentation(snap, number)
    whole = after_caveats(fragmentation, snap, device=number)
    return device_overview(snap, number, whole), fragmentation.findings


def _found_on(
    snap: Snapshot, entry: DeviceOverview, name: str, fragmented: tuple[Finding, ...]
) -> tuple[list[Finding], _Billed, str]:
    """The findings on one device, the bill of its last failure, and why growth was not looked at
    ("" if it was); `name` is its file in follow-up commands."""
    timeline = snap.timeline(entry.device)
    failures, causes, bill = failure_findings(snap, timeline, name)
    if any(one.kind == "pending_frees" for one in fragmented):
        # Reserved memory grows because blocks wait, not because sizes differ.
        causes |= {"cache_growth"}
    growth, no_growth = trend_findings(snap, timeline, name, causes)
    found = [
        *failures,
        *growth,
        *fragmented,
        *drag_findings(snap, timeline),
        *late_gradients_finding(timeline, never_short=room_of(snap, entry.device)[1]),
        *(() if entry.phases is None else entry.phases.own_findings),
    ]
    return found, bill, no_growth


def _brief(finding: Finding) -> Finding:
    """A finding as the text has it: what needs no action is said, and where it is."""
    if finding.severity > Severity.INFO:
        return finding
    places = tuple(note for note in finding.evidence if note.place is not None)
    return replace(finding, evidence=places, advice=())


def _entries(findings: tuple[Finding, ...]) -> list[Block]:
    return [Findings(tuple(finding.entry() for finding in findings))] if findings else []
