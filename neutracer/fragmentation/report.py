# SPDX-License-Identifier: Apache-2.0
"""`fragmentation_report`: reserved, allocated and free bytes of a moment, and what would fit.

Holes, the blocks that pin them, and findings on both with replayed advice.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from neutracer._native import core
from neutracer.arguments import number_pair, whole_number
from neutracer.errors import UnavailableError
from neutracer.oom.facts import OomFacts, are_caught, facts_of, with_room
from neutracer.question import after_caveats, opened
from neutracer.render.document import (
    Block,
    Document,
    Figure,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.trace.events import cache_emptier, device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import NONE, Frame, grouped, place_of
from neutracer.trace.timeline import Step, Timeline, unused_share
from neutracer.units import (
    format_bytes,
    format_count,
    format_event,
    format_share,
    format_span,
    split_bytes,
)
from neutracer.whatif.settings import expandable_advice

if TYPE_CHECKING:
    from neutracer.whatif.replaying import Replayer

_SETTINGS = "expandable_segments:True"


# The least saving worth a change of settings, as a share.
_WORTH = 0.05

# The core's codes for the time at which blocks used by other streams become free.
_TIMINGS = (0, 1, 2)

# Shares (of 2^32), and numbers, of the possible silent empty_cache() calls that are assumed real.
_SHARES = (0xFFFFFFFF, 0x7FFFFFFF, 0x1FFFFFFF)
_CALLS = (1, 4, 16)


class Replayed:
    """One device's trace under expandable segments, replayed when first needed.

    It gives figures only if the model reproduces the recording exactly. They are ranges where
    the timing of other streams, a roughly known limit or silent calls of empty_cache() matter.
    """

    def __init__(self, snap: Snapshot, device: int) -> None:
        self._snap = snap
        self._device = device
        self._timeline = snap.timeline(device)

    @property
    def is_possible(self) -> bool:
        """Whether expandable segments can be switched on."""
        settings = self._snap.settings_in_force
        if settings["expandable_segments"] or not settings["native_backend"]:
            return False
        if self._snap.is_cpu or self._snap.is_pinned:
            return False
        segments = self._snap.native.tables()["segments"]
        return not any(memoryview(segments["is_expandable"]))

    @property
    def advice(self) -> str:
        """The advice to set expandable segments alone, as they were replayed."""
        return expandable_advice(str(self._snap.settings_in_force["text"]))

    @cached_property
    def _runs(self) -> tuple[dict[str, memoryview], ...]:
        """The series under each possible limit, timing and number of silent calls; or none."""
        known = 0 < len(self._timeline) <= _MOST_EVENTS and self._snap.partial is None
        if not known or not self.is_possible:
            return ()
        # Most reports advise nothing, and replay nothing.
        from neutracer.whatif.replaying import Replayer

        try:
            return self._replay(Replayer(self._snap, self._device))
        except ValueError:
            return ()  # An inconsistent file: no figures.

    def _replay(self, replayer: Replayer) -> tuple[dict[str, memoryview], ...]:
        if not replayer.check.is_exact:
            return ()
        timings = _TIMINGS if replayer.facts["has_later"] else _TIMINGS[:1]
        cases: list[dict[str, int]] = [
            {**replayer.options(limit), "timing": timing}
            for limit in replayer.limits
            for timing in timings
        ]
        if replayer.silent_places:
            shares = (*_SHARES, *(0xFFFFFFFF // replayer.silent_places * n for n in _CALLS))
            cases += [{**cases[0], "silent": 2, "share": min(s, _SHARES[0])} for s in shares]
        return tuple(replayer.series(_SETTINGS, **case, goes_on=True) for case in cases)

    @cached_property
    def _peaks(self) -> tuple[list[int], int]:
        """The peaks of reserved up to the first failure: replayed, and as recorded."""
        failed = self._timeline.events.find("action", "oom")
        end = failed[0] if failed else len(self._timeline)
        start = self._timeline.facts["start_bytes"][2]
        peaks = [max(run["reserved"][:end], default=start) for run in self._runs]
        recorded = self._timeline.reserved
        if end == len(recorded):
            return peaks, self._timeline.peak("reserved").bytes
        return peaks, max(recorded[:end], default=start)

    @property
    def spared_at_peak(self) -> int | None:
        """The bytes that the replayed peak of reserved up to the first failure is lower by, at
        least; None without a replay."""
        if not self._runs:
            return None
        peaks, recorded = self._peaks
        return max(recorded - max(peaks), 0)

    def at_peak(self) -> str | None:
        """The replayed peak of reserved up to the first failure, formatted; "" if it saves too
        little, None without a replay."""
        return self._saved(*self._peaks) if self._runs else None

    def at_end(self) -> str | None:
        """The replayed reserved bytes at the end, as for `at_peak`."""
        if not self._runs:
            return None
        ends = [run["reserved"][-1] for run in self._runs]
        return self._saved(ends, self._timeline.reserved[-1])

    def _saved(self, simulated: list[int], recorded: int) -> str:
        low, high = min(simulated), max(simulated)
        if high >= recorded * (1 - _WORTH):
            return ""
        span = format_span(low, high, "MiB") if low != high else format_bytes(low, "MiB")
        was, was_unit = split_bytes(recorded, "MiB")
        if not span.endswith(f" {was_unit}"):
            was = f"{was} {was_unit}"
        return f"{span} instead of {was} (replayed; the model reproduces this file exactly)"


# ---- Parts -------------------------------------------------------------------------------

#: Upper ends of the bands of the ratio (reserved - allocated) / reserved; above is "severe".
BANDS = ((0.15, "good"), (0.30, "moderate"), (0.40, "serious"))


def band(ratio: float) -> str:
    """The word for a ratio: good < 0.15 <= moderate < 0.30 <= serious <= 0.40 < severe.

    Example:
        >>> band(0.1), band(0.15), band(0.4), band(0.41)
        ('good', 'moderate', 'serious', 'severe')
    """
    for limit, word in BANDS:
        if ratio < limit or (word == "serious" and ratio == limit):
            return word
    return "severe"


# Fewer unused bytes are severity `info`, and so is a smaller share of the room of the process.
_SMALL = 64 << 20
_MATTERS = 0.05
# A device whose size is not known is as large as the smallest that PyTorch runs on.
_LEAST_DEVICE = 2 << 30


def severity_of(ratio: float, nbytes: int, room: int) -> Severity:
    """The severity of a share of reserved memory that no request can use, by its band.

    Example:
        >>> gib = 1 << 30
        >>> [str(severity_of(0.35, gib, room)) for room in (8 * gib, 80 * gib)]
        ['serious', 'info']
    """
    word = band(ratio)
    is_little = nbytes < max(_SMALL, _MATTERS * room)
    return Severity.INFO if word == "good" or is_little else Severity(word)


# To release the cache and reserve anew takes some milliseconds, as thousands of requests do: once
# in so many events it is no matter.
_SELDOM = 10_000


def room_of(snap: Snapshot, device: int) -> tuple[int, bool]:
    """The bytes that the process may have of a device: its limit, else the device, else the most
    that it reserved or 2 GiB; and whether it was never short of them, where the limit or the device
    is known: no error was raised, and its cache was seldom released to find room."""
    facts = facts_of(snap.beside) or OomFacts()
    if facts.device not in (None, device):
        facts = OomFacts()
    facts = with_room(facts, snap.beside.rooms.get(device))
    known = facts.limit_bytes or facts.device_total_bytes
    timeline = snap.timeline(device)
    failed, retries = timeline.facts["oom_count"], timeline.facts["retries"]
    is_caught = are_caught(snap.beside, device)
    is_short = (failed and not is_caught) or (retries - failed) * _SELDOM > len(timeline)
    least = max(timeline.peak("reserved").bytes, _LEAST_DEVICE)
    return known or least, bool(known) and not is_short


@dataclass(frozen=True, slots=True)
class Hole(PlainRow):
    """A free block.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        segment: Its row in the snapshot's `segments`.
        before: The place that allocated the block below it; None at the segment's border.
        after: The same for the block above it.
        before_bytes: The size of the block below it; 0 at the border.
        after_bytes: The same for the block above it.
    """

    address: int
    size: int
    segment: int
    before: Place | None
    after: Place | None
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class PoolFragmentation(PlainRow):
    """One pool of one stream. All sizes in bytes.

    Attributes:
        kind: "small" (requests up to 1 MiB) or "large".
        pool: The private pool's id; (0, 0) is the default pool.
        stream: The raw stream.
        segments: The number of segments.
        holes: The number of free blocks.
        reserved_bytes: Taken from the device.
        allocated_bytes: In allocated blocks.
        pending_bytes: Freed, but waiting for another stream.
        requested_bytes: Requested by the program, in active blocks.
        reclaimable_bytes: Released by empty_cache().
        largest_hole: The largest free block.
        largest_request: The largest request that needs no new segment.
    """

    kind: str
    pool: tuple[int, int]
    stream: int
    segments: int
    holes: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    requested_bytes: int
    reclaimable_bytes: int
    largest_hole: int
    largest_request: int

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved; 0 if nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)


@dataclass(frozen=True, slots=True)
class SegmentFragmentation(PlainRow):
    """One segment. All sizes in bytes.

    Attributes:
        address: Where it begins.
        total_size: Its size.
        free_bytes: In holes.
        holes: The number of holes.
        largest_hole: The largest of them.
        reclaimable_bytes: Released by empty_cache().
        opened_by: The place whose request opened it.
        pinned_by: The place that allocated its smallest block; None if it is all free.
        pinned_bytes: That block's size.
    """

    address: int
    total_size: int
    free_bytes: int
    holes: int
    largest_hole: int
    reclaimable_bytes: int
    opened_by: Place
    pinned_by: Place | None
    pinned_bytes: int


# ---- Layout ------------------------------------------------------------------------------

#: Requests that need no new segment, by (pool, stream): ascending inclusive ranges in bytes.
Served = Mapping[tuple[tuple[int, int], int], Sequence[tuple[int, int]]]


def served_of(snap: Snapshot, fragment: core.Fragment) -> Served:
    """The requests that a device's free blocks serve; the allocator tries the best fit only."""
    firsts, seconds, streams = map(snap.segments.codes, ("pool_first", "pool_second", "stream"))
    kinds = snap.segments["segment_type"]
    sizes: dict[tuple[tuple[int, int], int, bool], set[int]] = {}
    for _, row, _, size, _, _ in fragment.holes():
        key = (firsts[row], seconds[row]), streams[row], kinds[row] == "small"
        sizes.setdefault(key, set()).add(size)
    served: dict[tuple[tuple[int, int], int], list[tuple[int, int]]] = {}
    # Requests of the small pool are below all others.
    for (pool, stream, small), free in sorted(sizes.items(), key=lambda item: not item[0][2]):
        ranges = served.setdefault((pool, stream), [])
        ascending = sorted(free)
        for below, size in zip((0, *ascending), ascending, strict=False):
            found = fragment.serves(size, below, small)
            if found is not None:
                # An adjacent range continues the last one.
                adjacent = ranges and ranges[-1][1] + 1 == found[0]
                ranges.append((ranges.pop()[0], found[1]) if adjacent else found)
    return served


def _places(snap: Snapshot) -> Callable[[int], Place]:
    """Cached lookup of a stack code's place."""
    return cache(lambda code: place_of(snap.stacks[code]))


def segments_of(
    snap: Snapshot, fragment: core.Fragment, timeline: Timeline
) -> tuple[SegmentFragmentation, ...]:
    """The segments of a device, in the layout's order."""
    place = _places(snap)
    addresses, sizes, openers = map(snap.segments.codes, ("address", "total_size", "stack"))
    block_sizes, block_stacks = map(snap.blocks.codes, ("size", "stack"))
    # The trace has the opener even if the segment lacks its stack.
    lives = timeline.segments
    stays = [row for row, event in enumerate(lives.codes("free_event")) if event == -1]
    bases, stacks = lives.codes("address"), lives.codes("stack")
    opened = {bases[row]: stacks[row] for row in stays}
    rows = []
    for row, holes, free, largest, reclaimable, pin in fragment.segments():
        known = bool(snap.stacks[openers[row]])
        rows.append(
            SegmentFragmentation(
                address=addresses[row],
                total_size=sizes[row],
                free_bytes=free,
                holes=holes,
                largest_hole=largest,
                reclaimable_bytes=reclaimable,
                opened_by=place(openers[row] if known else opened.get(addresses[row], NONE)),
                pinned_by=None if pin == NONE else place(block_stacks[pin]),
                pinned_bytes=0 if pin == NONE else block_sizes[pin],
            )
        )
    return tuple(rows)


def holes_of(snap: Snapshot, fragment: core.Fragment) -> tuple[Hole, ...]:
    """The free blocks of a device, largest first, with their neighbours."""
    by_code = _places(snap)
    ids, sizes = snap.blocks.codes("stack"), snap.blocks.codes("size")

    def place(row: int) -> Place | None:
        return None if row == NONE else by_code(ids[row])

    def size(row: int) -> int:
        return 0 if row == NONE else sizes[row]

    return tuple(
        Hole(address, nbytes, segment, place(before), place(after), size(before), size(after))
        for _, segment, address, nbytes, before, after in fragment.holes()
    )


def pools_of(groups: Iterable[Mapping[str, Any]]) -> tuple[PoolFragmentation, ...]:
    """The core's groups as rows of a report."""
    names = PoolFragmentation.__dataclass_fields__
    return tuple(
        PoolFragmentation(
            kind="small" if group["small"] else "large",
            **{name: value for name, value in group.items() if name in names},
        )
        for group in groups
    )


# ---- Forecast ----------------------------------------------------------------------------

# The largest request that reserved memory could serve before each step's largest request, as a
# series. If it falls by `leak_trend`'s test (`nt_trend`), it is extrapolated to the request.

# A fall is believed from this deviate of its parts on; the rule of `nt_trend.h` asks 2.8, by which
# one random walk in eleven grows.
_SURE = 3.5

# The core's codes of segment_alloc, segment_free, segment_map and segment_unmap.
_RESERVING = (3, 4, 5, 6)

# A series with at least this autocorrelation may be a random walk; the fall must exceed the
# distance, in standard deviations, that one walk in a thousand reaches.
_WALK_MEMORY = 0.5
_WALK = 3.1

# The fewest steps for a forecast, and the most sampled: each costs a layout of the device.
_FEWEST = 12
_MOST_STEPS = 48

# Longer traces get no forecast, to bound the cost of a report.
_MOST_EVENTS = 300_000

# The request is the median of this many last steps.
_RECENT = 8

# No forecast beyond this multiple of the steps in the trace.
_HORIZON = 10

# A smaller fall, as a share of the largest hole, is ignored.
_MATERIAL = 0.02


@dataclass(frozen=True)
class ShrinkingHoles:
    """Holes that shrink step after step."""

    step: int  # The step at which the largest hole falls below the request.
    # The first and last step by the 95 % interval of the rate; None is never.
    between: tuple[int, int | None]
    steps: int  # The number of steps in the trace.
    hole_bytes: int  # The largest hole now.
    request_bytes: int  # The median of recent steps' largest requests.
    bytes_per_step: float  # The shrinkage of the hole per step.
    event: int = -1  # The last of these requests.


def forecast_of(
    holes: Sequence[int], request: int, stride: int = 1, event: int = -1
) -> ShrinkingHoles | None:
    """Forecast when a series of holes falls below a request.

    Returns:
        The forecast; None if no fall is proved, it is negligible or ends by itself, or the
        request does not fit even now.
    """
    if len(holes) < _FEWEST:
        return None
    top = max(holes)
    found: dict[str, Any] = core.find_trend(array("Q", (top - hole for hole in holes)))
    slope, low, high = found["slope"], found["low"], found["high"]
    looked = len(holes) - found["warmup"]
    # `last` is the median of the last five.
    now = top - found["last"] - 2 * slope
    room = now - request
    # The distance that a random walk could cover by chance.
    chance = _WALK * found["noise"] * math.sqrt(looked)
    walks = found["memory"] >= _WALK_MEMORY and slope * looked <= chance
    small = slope * looked <= _MATERIAL * top
    given_back = -sum(nbytes for _, nbytes in found["jumps"] if nbytes < 0)
    ends = found["is_levelling"] or found["teeth"] >= 2 or given_back > slope * looked / 2
    falls = found["grows"] and found["deviate"] > _SURE and low > 0
    if not falls or walks or small or ends or room <= 0:
        return None

    def after(rate: float) -> int:
        return (len(holes) - 1) * stride + int(room / rate * stride) + 1

    if after(slope) > _HORIZON * len(holes) * stride:
        return None
    return ShrinkingHoles(
        step=after(slope),
        between=(after(max(high, slope)), after(low)),
        steps=len(holes) * stride,
        hole_bytes=round(now),
        request_bytes=request,
        bytes_per_step=slope / stride,
        event=event,
    )


def _shrinking(snap: Snapshot, timeline: Timeline) -> ShrinkingHoles | None:
    """The forecast for a device's trace, or None."""
    steps = timeline.steps
    if len(steps) < _FEWEST or len(timeline) > _MOST_EVENTS or snap.partial is not None:
        return None
    stride = -(-len(steps) // _MOST_STEPS)
    size = timeline.events.codes("size")
    asked = _largest_requests(timeline, steps[-_RECENT:])
    if not asked:
        return None
    request = sorted(size[event] for event in asked)[(len(asked) - 1) // 2]
    event = next(event for event in reversed(asked) if size[event] >= request)
    stream = timeline.events[event].stream
    sampled = _largest_requests(timeline, steps[len(steps) % stride :: stride])
    holes = [_room(snap, timeline, before, stream) for before in sampled]
    return forecast_of(holes, request, stride, event)


def _largest_requests(timeline: Timeline, steps: Iterable[Step]) -> list[int]:
    """The event of the largest request of each step that has one."""
    action, size = timeline.events.codes("action"), timeline.events.codes("size")
    largest = []
    for step in steps:
        made = [event for event in range(step.first, step.end) if action[event] == 0]
        if made:
            largest.append(max(made, key=lambda event: size[event]))
    return largest


def _room(snap: Snapshot, timeline: Timeline, event: int, stream: int) -> int:
    """The largest request that the default pool could serve a stream before an event."""
    # Look before the segments that were reserved for the request.
    action = timeline.events.codes("action")
    while event > 0 and action[event - 1] in _RESERVING:
        event -= 1
    layout = timeline.native.layout(event - 1)
    groups = core.Fragment(snap.native, layout, timeline.device).groups()
    mine = [one for one in groups if one["pool"] == (0, 0) and one["stream"] == stream]
    return max((int(one["largest_request"]) for one in mine), default=0)


def forecast_findings(
    snap: Snapshot, timeline: Timeline, replayed: Replayed
) -> tuple[Finding, ...]:
    found = _shrinking(snap, timeline)
    if found is None:
        return ()
    place = place_of(timeline.events[found.event].stack)
    first, last = found.between
    span = f"at step {first:,} or later"
    if last is not None:
        span = f"between steps {first:,} and {last:,}" if first != last else f"at step {first:,}"
    message = (
        f"at this trend the largest hole falls below the largest request at step {found.step:,}"
    )
    notes = (
        Note(
            f"The largest hole shrinks by {format_bytes(round(found.bytes_per_step))} per step: "
            f"{format_bytes(found.hole_bytes)} after {found.steps:,} steps; "
            f"{format_bytes(found.request_bytes)} are requested by",
            place,
        ),
        Note(f"With 95 % confidence {span}; from then on each such request needs new memory."),
    )
    advice = (Note(replayed.advice),) if replayed.is_possible else ()
    return (
        Finding(
            "fragmentation_forecast",
            Severity.MODERATE,
            found.request_bytes,
            message,
            notes,
            advice,
            found.event,
        ),
    )


# ---- Findings ----------------------------------------------------------------------------

# Bytes waiting for a stream are a finding from this size and share of reserved memory on.
_LEAST_PENDING = 64 << 20
_PENDING_SHARE = 0.1

# A static pool: at most this many blocks with at least this share of reserved memory, made in
# the first part of a trace of at least so many events.
_POOL_BLOCKS = 16
_POOL_SHARE = 0.5
_POOL_BEGIN = 0.05
_POOL_EVENTS = 100


@dataclass(frozen=True)
class _Unused:
    """The free bytes of one layout."""

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
    cached, holed, kept, holes, largest = [], 0, [], 0, 0
    for row, count, free, biggest, _, pin in fragment.segments():
        if pin == NONE:
            cached.append((segments[row].stack, free, 1))
        elif free:
            holed += free
            holes += count
            largest = max(largest, biggest)
            kept.append((blocks[pin].stack, free, 1))
    has_pending = any(group["pending_bytes"] for group in fragment.groups())
    waiting = _waiting(fragment, segments, blocks) if has_pending else []
    by_waiting = grouped((stack, nbytes, 1) for _, stack, nbytes in waiting)
    by_cached, by_kept = grouped(cached), grouped(kept)
    return _Unused(
        reserved=sum(group["reserved_bytes"] for group in fragment.groups()),
        allocated=sum(group["allocated_bytes"] for group in fragment.groups()),
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


def _waiting(
    fragment: core.Fragment, segments: Any, blocks: Any
) -> list[tuple[int, tuple[Frame, ...], int]]:
    """(stream of allocation, stack, bytes) of freed blocks that wait for another stream."""
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
    """Advice on expandable segments."""
    if not replayed.is_possible or detail == "":
        return ()
    why = "free ranges then serve any size" if unused.cached else "segments then grow as needed"
    return (Note(replayed.advice, detail=detail or why),)


def whole_call(timeline: Timeline, event: int) -> int:
    """The event that ends the call that began with a new segment."""
    rows = timeline.events
    while event + 1 < len(rows) and rows[event].action in ("segment_alloc", "segment_map"):
        event += 1
    return event


def _severity_at_peak(timeline: Timeline, replayed: Replayed, room: int) -> Severity:
    """The severity of the bytes that a cure gives back at the peak of reserved.

    No cure reserves less than the most that was active. A replay under expandable segments says
    how close one comes, but not where the process filled its limit and went on with its cache
    released: there it does so under any settings.
    """
    reserved = timeline.peak("reserved").bytes
    spared = reserved - timeline.peak("active").bytes
    severity = severity_of(spared / max(reserved, 1), spared, room)
    if severity is Severity.INFO or timeline.facts["retries"] > timeline.facts["oom_count"]:
        return severity
    replay = replayed.spared_at_peak
    spared = spared if replay is None else min(spared, replay)
    return severity_of(spared / reserved, spared, room)


def _peak_finding(
    snap: Snapshot, timeline: Timeline, severity: Severity, replayed: Replayed
) -> tuple[Finding, ...]:
    """The state at the peak of reserved, if that is in the trace and matters."""
    peak = timeline.peak("reserved")
    if peak.event < 0 or severity is Severity.INFO:
        return ()
    then = _look_at(snap, timeline, whole_call(timeline, peak.event))
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


def _pending_finding(now: _Unused, room: int) -> tuple[Finding, ...]:
    if now.pending < max(_LEAST_PENDING, _PENDING_SHARE * now.reserved):
        return ()
    severity = severity_of(now.pending / now.reserved, now.pending, room)
    blocks = format_count(now.pending_blocks, "block")
    named = [f"{stream:#x}" if stream else "the default stream" for stream in now.pending_streams]
    of = f"of {named[0]}" if len(named) == 1 else f"of {format_count(len(named), 'stream')}"
    message = f"{format_bytes(now.pending)} is freed and waits for another stream to finish"
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
    now: _Unused, reclaimable: int, severity: Severity, replayed: Replayed, shown: int
) -> tuple[Finding, ...]:
    """The state at the end, with its severity."""
    if band(now.ratio) == "good":
        return ()
    notes: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()
    if severity is not Severity.INFO:
        notes = _evidence(now)
        advice = _expandable_advice(replayed, now, replayed.at_end())
    if reclaimable:
        whom = "the device" if shown >= 0 else "the system"
        advice += (Note(f"{cache_emptier(shown)} returns {format_bytes(reclaimable)} to {whom}"),)
    message = (
        f"{format_share(now.ratio)} of the {format_bytes(now.reserved)} reserved is unused now"
    )
    return (Finding("fragmentation", severity, now.total, message, notes, advice),)


def static_pool(snap: Snapshot, timeline: Timeline) -> list[int]:
    """Rows of a static pool's allocations, empty without one.

    A serving engine allocates a few large blocks at the start and keeps them; these pin no
    memory that another allocation could use.
    """
    if len(timeline) < _POOL_EVENTS:
        return []
    c = timeline.allocations
    freed, made, sizes = c.codes("free_event"), c.codes("alloc_event"), c.codes("size")
    begin = len(timeline) * _POOL_BEGIN
    # Rows are in order of allocation.
    early = bisect_right(made, begin)
    kept = [row for row, event in enumerate(freed[:early]) if event == -1]
    # cuBLAS and cuDNN keep their workspaces too.
    by_size = sorted(kept, key=lambda row: -sizes[row])
    own = (row for row in by_size if role_of(c[row].stack) is not Role.WORKSPACE)
    largest = list(islice(own, _POOL_BLOCKS))
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


def findings_of(snap: Snapshot, device: int, fragment: core.Fragment) -> tuple[Finding, ...]:
    """The findings about one device, the worst first.

    Reclaimable bytes are a cache, and bytes that were in use at the peak will be used again: the
    severity of the end is that of the rest, and at most that of the peak. Of a process that never
    ran short of memory it is `info`: what it did not use was of use to nothing else in it.
    """
    timeline = snap.timeline(device)
    known = end_is_known(snap, device)
    if len(timeline):
        # The trace has the opener even if the segment lacks its stack. An unknown end frees all
        # blocks at the last event.
        now = _look_at(snap, timeline, len(timeline) - (1 if known else 2))
    else:
        now = _look(fragment, snap.segments, snap.blocks)
    reclaimable = sum(group["reclaimable_bytes"] for group in fragment.groups())
    replayed, (room, has_enough) = Replayed(snap, device), room_of(snap, device)
    stuck = max(now.total - reclaimable, 0)
    severity = severity_of(stuck / (now.reserved - reclaimable) if stuck else 0.0, stuck, room)
    peak: tuple[Finding, ...] = ()
    if len(timeline):
        then = Severity.INFO if has_enough else _severity_at_peak(timeline, replayed, room)
        severity = min(severity, then)
        if then > severity or timeline.peak("reserved").bytes > now.reserved:
            peak = _peak_finding(snap, timeline, then, replayed)
    shown = shown_device(snap, device)
    unused = _now_finding(now, reclaimable, severity, replayed, shown) if known else ()
    return ranked(
        (
            *peak,
            *forecast_findings(snap, timeline, replayed),
            *_pending_finding(now, room),
            *unused,
            *_pool_finding(snap, timeline),
        )
    )


# ---- Readings ----------------------------------------------------------------------------


@runtime_checkable
class Monitor(Protocol):
    """The interface of MemoryMonitor: its last reading, and the series of all."""

    def get_stats(self, device: Any = None) -> Any: ...
    def device_series(self, device: Any = None) -> Any: ...


def _reading_findings(stats: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The finding about a monitor's last reading, if any."""
    reserved, unused = stats["reserved_bytes"], stats["reserved_bytes"] - stats["current_bytes"]
    ratio = unused / reserved if reserved else 0.0
    if band(ratio) == "good":
        return ()
    text = f"{format_share(ratio)} of the {format_bytes(reserved)} reserved was unused"
    note = Note(f"At most {format_share(stats['max_ratio'])} while the monitor ran.")
    # The bytes that the process may have: its limit, else the most that it reserved. No cure gives
    # back more than the most reserved minus the most allocated.
    peak, most = stats["peak_reserved_bytes"], stats["peak_bytes"]
    room = stats["limit_bytes"] or peak
    spared = severity_of(unused_share(peak, most), max(peak - most, 0), room)
    severity = min(severity_of(ratio, unused, room), spared)
    return (Finding("fragmentation", severity, unused, text, (note,)),)


# ---- Report ------------------------------------------------------------------------------

if TYPE_CHECKING:
    Doubles = memoryview[float]
else:
    # memoryview is generic at run time from Python 3.14 on.
    Doubles = memoryview

# Holes of the printed report.
_SHOWN_HOLES = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class FragmentationReport(Report):
    """The use of reserved memory, and the causes of its free bytes.

    Also a mapping of the figures of the usual guide: `report["max_fragmentation"]`,
    `["avg_fragmentation"]`, `["current_fragmentation"]`, `["fragmentation_history"]`.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        reserved_bytes: PyTorch's reserved_bytes.all.current.
        allocated_bytes: PyTorch's allocated_bytes.all.current.
        active_bytes: PyTorch's active_bytes.all.current: allocated, or waiting for a stream.
        requested_bytes: PyTorch's requested_bytes.all.current, in active blocks.
        internal_bytes: Active minus requested: rounding and unsplit remainders.
        external_bytes: Reserved minus active: holes and cached segments.
        reclaimable_bytes: Released by torch.cuda.empty_cache(), or for pinned memory by
            torch.accelerator.empty_host_cache().
        largest_request: The largest request on any stream that needs no new segment; `pools`
            has it per pool.
        max_fragmentation: The largest ratio, over all events and now.
        max_event: Its first event; None if it is now or from a monitor.
        avg_fragmentation: The mean of the ratio over all events.
        oom_count: Out-of-memory events in the trace.
        retries: Releases of the cache to retry an allocation; None if unknown.
        pools: By pool and stream, the most reserved bytes first.
        segments: By segment, in the order of the snapshot.
        holes: The free blocks, the largest first.
        end_known: False if the file has a history but no segments: the bytes are then unknown,
            and 0.
    """

    schema = "neutracer.fragmentation/1"
    derived = ("ratio", "severity", "current_fragmentation")

    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    internal_bytes: int
    external_bytes: int
    reclaimable_bytes: int
    largest_request: int
    max_fragmentation: float
    max_event: int | None
    avg_fragmentation: float
    oom_count: int
    retries: int | None
    pools: tuple[PoolFragmentation, ...]
    segments: tuple[SegmentFragmentation, ...]
    holes: tuple[Hole, ...]
    end_known: bool = True
    _served: Served | None = field(compare=False)
    _history: bytes = field(compare=False)

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved; 0 if nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)

    @property
    def severity(self) -> str:
        """The band of the ratio: "good", "moderate", "serious", "severe", or "unknown".

        The findings and `judged` also weigh reclaimable bytes and the use at the peak.
        """
        return band(self.ratio) if self.end_known else "unknown"

    @property
    def judged(self) -> str:
        """The findings' verdict on the ratio: a severity, "mostly cached" or "little" for a
        harmless one, "good", or "not known"."""
        if not self.end_known:
            return "not known"
        found = next((one for one in self.findings if one.kind == "fragmentation"), None)
        if found is None:
            return "good"
        if found.severity is not Severity.INFO:
            return str(found.severity)
        unused = self.reserved_bytes - self.allocated_bytes
        return "mostly cached" if 2 * self.reclaimable_bytes >= unused else "little"

    @property
    def current_fragmentation(self) -> float:
        """The ratio now."""
        return self.ratio

    @cached_property
    def fragmentation_history(self) -> Doubles:
        """The ratio after each event of the trace."""
        return memoryview(self._history).cast("d")

    def fits(self, nbytes: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> bool:
        """Check if a request would succeed now without a new segment.

        Args:
            nbytes: The request in bytes.
            stream: The raw stream; 0 is the default stream.
            pool: The private pool; (0, 0) is the default pool.

        Raises:
            UnavailableError: The report is of a monitor's readings alone, or of a file without
                segments.
        """
        if self._served is None:
            why = (
                "a monitor's readings don't" if self.end_known else "the file lists no segments to"
            )
            raise UnavailableError("the layout", f"{why} show it")
        nbytes = whole_number("nbytes", nbytes, least=0)
        pool, stream = number_pair("pool", pool, whole=True), whole_number("stream", stream)
        ranges = self._served.get((pool, stream), ())
        return nbytes == 0 or any(least <= nbytes <= most for least, most in ranges)

    def __getitem__(self, key: str) -> Any:
        """A figure by name, as in the usual guide."""
        if not isinstance(key, str) or key.startswith("_") or not hasattr(self, key):
            raise KeyError(f"no figure {key!r}; .to_dict() lists all")
        return getattr(self, key)

    def document(self) -> Document:
        """The report as a document."""
        name = device_name(self.device)
        if not self.end_known:
            return Document("Fragmentation", (name,), (*self.finding_blocks(), self._of_history()))
        facts = (name, f"{format_share(self.ratio)} unused, {self.judged}")
        blocks = (self._totals(), *self._pool_table(), *self._hole_table())
        return Document("Fragmentation", facts, (*self.finding_blocks(), *blocks))

    def _of_history(self) -> Block:
        most = format_share(self.max_fragmentation)
        at = f" ({format_event(self.max_event)})" if self.max_event is not None else ""
        return Paragraph(
            "Reserved and allocated memory at the end are not known. During the trace at most"
            f" {most} of the reserved memory was unused{at}."
        )

    def _totals(self) -> Table:
        taken = f"taken from the {'device' if self.device >= 0 else 'system'}"
        emptier = cache_emptier(self.device).rpartition(".")[2]
        rows = (
            ("reserved", Figure.bytes(self.reserved_bytes), taken),
            ("allocated", Figure.bytes(self.allocated_bytes), "in live blocks"),
            ("requested", Figure.bytes(self.requested_bytes), "by the program, in active blocks"),
            ("internal", Figure.bytes(self.internal_bytes), "rounding and unsplit remainders"),
            ("external", Figure.bytes(self.external_bytes), "in holes and cached segments"),
            ("reclaimable", Figure.bytes(self.reclaimable_bytes), f"by {emptier}"),
            ("largest request", Figure.bytes(self.largest_request), "that needs no new segment"),
        )
        return Table("Bytes", rows)

    def _pool_table(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                pool.kind if pool.pool == (0, 0) else f"{pool.kind}, private {pool.pool}",
                f"stream {pool.stream:#x}" if pool.stream else "default stream",
                Figure.bytes(pool.reserved_bytes),
                Figure.bytes(pool.allocated_bytes),
                Figure.share(pool.ratio),
                Figure.bytes(pool.largest_request),
            )
            for pool in self.pools
        )
        heads = ("", "", "reserved", "allocated", "unused", "largest request")
        return (Table("Pools", rows, heads),) if rows else ()

    def _hole_table(self) -> tuple[Table, ...]:
        shown = self.holes[:_SHOWN_HOLES]
        if not shown:
            return ()
        rows = tuple(
            (Figure.bytes(hole.size), f"{hole.address:#x}", hole.before or hole.after or "")
            for hole in shown
        )
        title = f"Largest holes ({len(shown)} of {len(self.holes)}) and their neighbours"
        return (Table(title, rows),)


def fragmentation_report(
    source: Snapshot | Monitor | SnapshotSource | None = None, *, device: int | None = None
) -> FragmentationReport:
    """The use of reserved memory, and the causes of its free bytes.

    Args:
        source: A Snapshot, or a source for `load`; None is this process's device, now; a
            MemoryMonitor adds its readings as the history, and without CUDA gives those alone,
            without pools, segments and holes.
        device: The device; None is the only one.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: There is no such device.

    Example:
        >>> import neutracer
        >>> report = neutracer.fragmentation_report("tests/data/frag_default.pickle")
        >>> report.severity, round(report.ratio, 3), report.fits(30 << 20)
        ('moderate', 0.248, True)
    """
    if isinstance(source, Monitor):
        return _of_monitor(source, device)
    return _begun(opened(source), device)


def _begun(snap: Snapshot, device: int | None) -> FragmentationReport:
    """A device's report, with the findings on the file itself first."""
    number = snap.device(device)
    return after_caveats(device_fragmentation(snap, number), snap, device=number)


def device_fragmentation(snap: Snapshot, number: int) -> FragmentationReport:
    """The report on one device, without the findings on the file itself."""
    known = end_is_known(snap, number)
    fragment = core.Fragment(snap.native, None, number)
    pools = pools_of(fragment.groups())
    figures = _figures(snap.memory_stats(number), pools)
    timeline = snap.timeline(number)
    history, largest, at, mean, _ = core.ratios(
        timeline.allocated, timeline.reserved, timeline.events.codes("action")
    )
    now = unused_share(figures["reserved_bytes"], figures["allocated_bytes"])
    is_now = at < 0 or now > largest
    return FragmentationReport(
        device=shown_device(snap, number),
        **figures,
        max_fragmentation=max(largest, now),
        max_event=None if is_now else at,
        avg_fragmentation=mean if len(timeline) else now,
        oom_count=timeline.facts["oom_count"],
        retries=timeline.facts["retries"] if timeline.facts["retries_known"] else None,
        pools=pools,
        segments=segments_of(snap, fragment, timeline),
        holes=holes_of(snap, fragment),
        findings=findings_of(snap, number, fragment),
        end_known=known,
        _served=served_of(snap, fragment) if known else None,
        _history=history,
    )


def _of_monitor(monitor: Monitor, device: int | None) -> FragmentationReport:
    """The layout now, if this process has one, with a monitor's history."""
    stats = monitor.get_stats(device)
    name: str = stats["device"]
    number = -1 if name == "cpu" else int(name.rpartition(":")[2])
    known: dict[str, Any] = {
        "max_event": None,
        "avg_fragmentation": stats["avg_ratio"],
        "retries": stats["retries"],
        "_history": bytes(monitor.device_series(device).codes("ratio")),
    }
    try:
        snap = opened(None)
    except UnavailableError:
        snap = None
    if snap is not None and number in snap.devices:
        now = _begun(snap, number)
        return replace(now, max_fragmentation=max(stats["max_ratio"], now.ratio), **known)
    reserved, active = stats["reserved_bytes"], stats["active_bytes"]
    requested = stats["requested_bytes"] or active
    return FragmentationReport(
        device=number,
        reserved_bytes=reserved,
        allocated_bytes=stats["current_bytes"],
        active_bytes=active,
        requested_bytes=requested,
        internal_bytes=max(active - requested, 0),
        external_bytes=max(reserved - active, 0),
        reclaimable_bytes=0,
        largest_request=0,
        max_fragmentation=stats["max_ratio"],
        oom_count=stats["ooms"],
        pools=(),
        segments=(),
        holes=(),
        findings=_reading_findings(stats),
        _served=None,
        **known,
    )


def _figures(stats: Mapping[str, int], pools: Iterable[PoolFragmentation]) -> dict[str, int]:
    names = ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes")
    figures = {name: stats[f"{name}.all.current"] for name in names}
    figures["internal_bytes"] = figures["active_bytes"] - figures["requested_bytes"]
    figures["external_bytes"] = figures["reserved_bytes"] - figures["active_bytes"]
    figures["reclaimable_bytes"] = sum(pool.reclaimable_bytes for pool in pools)
    figures["largest_request"] = max((pool.largest_request for pool in pools), default=0)
    return figures
