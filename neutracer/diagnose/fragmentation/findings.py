# SPDX-License-Identifier: Apache-2.0
"""What a device's fragmentation amounts to: findings, each with its evidence and next step.

Advice knows the settings in force: nothing is advised that is on already, and nothing that
does not move device addresses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neutracer._native import core
from neutracer.diagnose.fragmentation.forecast import forecast_findings
from neutracer.diagnose.fragmentation.parts import band, severity_of
from neutracer.diagnose.settings.advice import Replayed
from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding, ranked
from neutracer.trace.devices import cache_emptier, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.places import grouped
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE, Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["findings_of", "static_pool"]

# Fewer bytes that wait for a stream are no finding.
_LEAST_PENDING = 64 << 20

# Blocks that wait for a stream are told of where they are this share of what is reserved.
_PENDING_SHARE = 0.1

# A static pool is so few blocks, holding at least this share of what is reserved, since the
# first events of a trace that is long enough to tell.
_POOL_BLOCKS = 16
_POOL_SHARE = 0.5
_POOL_BEGIN = 0.05
_POOL_EVENTS = 100


@dataclass(frozen=True)
class _Unused:
    """Where the free bytes of one layout are."""

    reserved: int
    allocated: int
    cached: int
    cached_segments: int
    cached_by: Place | None
    in_holes: int
    holes: int
    largest_hole: int
    kept_by: Place | None
    pending: int
    pending_blocks: int
    pending_by: Place | None
    pending_streams: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.reserved - self.allocated

    @property
    def ratio(self) -> float:
        return self.total / self.reserved if self.reserved else 0.0


def _look(fragment: core.Fragment, segments: Any, blocks: Any) -> _Unused:
    """Sums of a layout's free bytes: in wholly free segments, and in holes of others."""
    cached, holed, kept, holes, largest = [], 0, [], 0, 0
    for row, count, free, biggest, _, pin in fragment.segments():
        if pin == NONE:
            cached.append((segments[row].stack, free, 1))
        elif free:
            holed += free
            holes += count
            largest = max(largest, biggest)
            kept.append((blocks[pin].stack, free, 1))
    groups = fragment.groups()
    waiting = _waiting(fragment, segments, blocks) if _has_pending(groups) else []
    by_waiting = grouped((stack, nbytes, 1) for _, stack, nbytes in waiting)
    by_cached, by_kept = grouped(cached), grouped(kept)
    return _Unused(
        reserved=sum(group["reserved_bytes"] for group in groups),
        allocated=sum(group["allocated_bytes"] for group in groups),
        cached=sum(nbytes for _, nbytes, _ in cached),
        cached_segments=len(cached),
        cached_by=by_cached[0][0] if by_cached else None,
        in_holes=holed,
        holes=holes,
        largest_hole=largest,
        kept_by=by_kept[0][0] if by_kept else None,
        pending=sum(nbytes for _, _, nbytes in waiting),
        pending_blocks=len(waiting),
        pending_by=by_waiting[0][0] if by_waiting else None,
        pending_streams=tuple(sorted({stream for stream, _, _ in waiting})),
    )


def _has_pending(groups: Sequence[Mapping[str, Any]]) -> bool:
    return any(group["pending_bytes"] for group in groups)


def _waiting(
    fragment: core.Fragment, segments: Any, blocks: Any
) -> list[tuple[int, tuple[Frame, ...], int]]:
    """Blocks that were freed and wait for another stream: the stream that they were
    allocated on, who allocated them, and their bytes."""
    of_device = {row for row, *_ in fragment.segments()}
    rows = zip(blocks["state"], blocks["segment"], strict=True)
    return [
        (segments[segment].stream, blocks[row].stack, blocks[row].size)
        for row, (state, segment) in enumerate(rows)
        if state == "active_pending_free" and segment in of_device
    ]


def _look_at(snap: Snapshot, timeline: Timeline, event: int) -> _Unused:
    layout = timeline.at(event)
    fragment = core.Fragment(snap.native, layout.native, timeline.device)
    return _look(fragment, layout.segments, layout.blocks)


def _evidence(unused: _Unused) -> tuple[Note, ...]:
    notes = []
    if unused.cached:
        segments = format_count(unused.cached_segments, "empty cached segment")
        text = f"{format_bytes(unused.cached)} in {segments}, first allocated by"
        notes.append(Note(text, unused.cached_by))
    if unused.in_holes:
        holes = format_count(unused.holes, "hole")
        notes.append(
            Note(
                f"{format_bytes(unused.in_holes)} in {holes} of at most "
                f"{format_bytes(unused.largest_hole)}, in segments kept by blocks of",
                unused.kept_by,
            )
        )
    return tuple(notes)


def _expandable_advice(replayed: Replayed, unused: _Unused, detail: str | None) -> tuple[Note, ...]:
    """Expandable segments, with what a replay says of them where there is one.

    Args:
        replayed: The trace under expandable segments.
        unused: The free bytes that it is about.
        detail: What the replay says; "" where it says that nothing is saved, and None
            where there is no replay to tell.
    """
    if not replayed.is_possible or detail == "":
        return ()
    why = "free ranges then serve any size" if unused.cached else "segments then grow as needed"
    return (Note(replayed.advice, detail=detail or why),)


def _last_state(timeline: Timeline, *, known: bool) -> int:
    """The event after which the state is the last one that the recording shows.

    Where the end is not known, the replay lets go of all blocks that are still in use with the
    last event.
    """
    return len(timeline) - 1 if known else len(timeline) - 2


def _whole_call(timeline: Timeline, event: int) -> int:
    """The event that ends the call of which a new segment is the first half."""
    rows = timeline.events
    while event + 1 < len(rows) and rows[event].action in ("segment_alloc", "segment_map"):
        event += 1
    return event


def _peak_finding(
    snap: Snapshot, timeline: Timeline, now: _Unused, replayed: Replayed
) -> tuple[Finding, ...]:
    """The state at the peak of reserved, where that is past."""
    peak = timeline.peak("reserved")
    if peak.event < 0 or peak.bytes <= now.reserved:
        return ()
    then = _look_at(snap, timeline, _whole_call(timeline, peak.event))
    severity = severity_of(then.ratio, then.total)
    if severity is Severity.INFO:
        return ()
    share, reserved = format_share(then.ratio), format_bytes(then.reserved)
    message = f"at its peak {share} of the {reserved} reserved was unused"
    return (
        Finding(
            "fragmentation_peak",
            severity,
            then.total,
            message,
            _evidence(then),
            _expandable_advice(replayed, then, replayed.at_peak()),
            peak.event,
        ),
    )


def _pending_finding(now: _Unused) -> tuple[Finding, ...]:
    """Blocks that wait for another stream, where they are much of what is unused."""
    if now.pending < max(_LEAST_PENDING, _PENDING_SHARE * now.reserved):
        return ()
    severity = severity_of(now.pending / now.reserved, now.pending)
    blocks = format_count(now.pending_blocks, "block")
    named = [f"{stream:#x}" if stream else "the default stream" for stream in now.pending_streams]
    of = f"of {named[0]}" if len(named) == 1 else f"of {format_count(len(named), 'stream')}"
    message = f"{format_bytes(now.pending)} is freed and waits for another stream to be done"
    evidence = Note(
        f"{blocks} {of}, which another stream uses by record_stream(). Allocated by",
        now.pending_by,
    )
    advice = (
        Note(
            "synchronize the two streams before the tensors are freed, and drop record_stream(): "
            "then a block can be used again at once"
        ),
        Note("or keep the host from running so far ahead: call synchronize() every few steps"),
    )
    return (Finding("pending_frees", severity, now.pending, message, (evidence,), advice),)


def _now_finding(
    now: _Unused, reclaimable: int, at_peak: float | None, replayed: Replayed, shown: int
) -> tuple[Finding, ...]:
    """The state at the end.

    What empty_cache() would give back is a cache and no damage; and what was used at the
    peak of allocated will be used again. So the severity is that of the rest, and not
    worse than at that peak.
    """
    if band(now.ratio) == "good":
        return ()
    stuck = max(now.total - reclaimable, 0)
    severity = severity_of(stuck / (now.reserved - reclaimable) if stuck else 0.0, stuck)
    notes = _evidence(now)
    if at_peak is not None:
        severity = min(severity, severity_of(at_peak, stuck), key=lambda word: word.rank)
        notes += (Note(f"At the peak of allocated {format_share(at_peak)} was unused."),)
    advice: tuple[Note, ...] = ()
    if severity is not Severity.INFO:
        advice += _expandable_advice(replayed, now, replayed.at_end())
    if reclaimable:
        whom = "the device" if shown >= 0 else "the system"
        advice += (
            Note(f"{cache_emptier(shown)} gives {format_bytes(reclaimable)} back to {whom}"),
        )
    message = (
        f"{format_share(now.ratio)} of the {format_bytes(now.reserved)} reserved is unused now"
    )
    return (Finding("fragmentation", severity, now.total, message, notes, advice),)


def static_pool(snap: Snapshot, timeline: Timeline) -> list[int]:
    """Rows of the allocations that are a static pool: few, large, there from the start.

    A serving engine takes most of the memory once and never gives it back; such blocks
    pin nothing that anybody else could have used.

    Returns:
        The rows, or nothing where there is no such pool.
    """
    if len(timeline) < _POOL_EVENTS:
        return []
    c = timeline.allocations
    freed, made, sizes = c.codes("free_event"), c.codes("alloc_event"), c.codes("size")
    begin = len(timeline) * _POOL_BEGIN
    # Rows are in the order in which they were made.
    early = bisect_right(made, begin)
    kept = [row for row, event in enumerate(freed[:early]) if event == -1]
    largest = sorted(kept, key=lambda row: -sizes[row])[:_POOL_BLOCKS]
    reserved = snap.memory_stats(timeline.device)["reserved_bytes.all.current"]
    held = 0
    for count, row in enumerate(largest, 1):
        held += sizes[row]
        if held >= _POOL_SHARE * reserved:
            return largest[:count]
    return []


def _pool_finding(snap: Snapshot, timeline: Timeline) -> tuple[Finding, ...]:
    rows = static_pool(snap, timeline)
    if not rows:
        return ()
    blocks = [timeline.allocations[row] for row in rows]
    held = sum(block.size for block in blocks)
    place = grouped((block.stack, block.size, 1) for block in blocks)[0][0]
    count = format_count(len(blocks), "block")
    message = f"{count} of {format_bytes(held)} in all never changed since the start"
    note = Note("A static pool (weights, a KV cache): no leak, and no cause of holes. From", place)
    return (Finding("static_pool", Severity.INFO, held, message, (note,)),)


def findings_of(
    snap: Snapshot, device: int, fragment: core.Fragment, at_peak: float | None
) -> tuple[Finding, ...]:
    """The findings about one device, the worst first.

    Args:
        snap: The snapshot.
        device: The device.
        fragment: Of the snapshot's own end state.
        at_peak: The ratio at the peak of allocated; None where that is unknown.
    """
    timeline = snap.timeline(device)
    known = end_is_known(snap, device)
    if len(timeline):
        # The trace knows who opened a segment also where the segment itself does not.
        now = _look_at(snap, timeline, _last_state(timeline, known=known))
    else:
        now = _look(fragment, snap.segments, snap.blocks)
    reclaimable = sum(group["reclaimable_bytes"] for group in fragment.groups())
    replayed = Replayed(snap, device)
    shown = shown_device(snap, device)
    unused = _now_finding(now, reclaimable, at_peak, replayed, shown) if known else ()
    return ranked(
        (
            *_peak_finding(snap, timeline, now, replayed),
            *forecast_findings(snap, timeline, replayed),
            *_pending_finding(now),
            *unused,
            *_pool_finding(snap, timeline),
        )
    )
