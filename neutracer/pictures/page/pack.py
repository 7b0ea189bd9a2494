# SPDX-License-Identifier: Apache-2.0
"""A timeline as the payload of its page: allocations, segments, events, stacks.

Up to a stated number of allocations the payload is the whole trace, and the page computes
every series from it. Beyond that the allocations that matter most (bytes times events lived,
those of the focus first) are kept one by one; the totals after each event that is kept stay
exact, and what is left out shows as a band of its own on the timeline, and as the cells of a
coarse picture on the map.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any, cast

from neutracer._native import core
from neutracer.pictures.page.columns import Packer
from neutracer.render.escape import sentence
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.origins import Owner, origin_of
from neutracer.trace.places import Places
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["MOST_ALLOCATIONS", "pack"]

# Allocations that a page holds one by one: with their events some 9 MB.
MOST_ALLOCATIONS = 500_000

# Cells of the coarse picture of what is not kept: its events, and its addresses.
_COARSE_WIDE, _COARSE_HIGH = 4096, 512

# The most columns that a page shows of one name; a hostile one ends here.
_MOST_NAME = 300


@dataclass(frozen=True)
class _Kept:
    """The rows of a timeline that go into a page, and the events they refer to.

    Attributes:
        rows: Rows of `allocations`, as native 32-bit numbers; None is all.
        events: Events of the trace, rising, as such numbers; None is all.
        places: By event of the trace, how many kept events come before it.
        base: The lowest address, from which the page counts.
    """

    rows: bytes | None
    events: bytes | None
    places: bytes
    base: int

    def event(self, number: int) -> int:
        """An event's place among the kept ones; negative numbers stay what they mean."""
        return self.numbers(array("i", [number]))[0]

    def numbers(self, events: memoryview | array[int]) -> Sequence[int]:
        """The places of a column of events."""
        if self.events is None:
            return events
        return memoryview(core.renumber(events, self.places)).cast("i")


def pack(
    snap: Snapshot,
    timeline: Timeline,
    facts: dict[str, Any],
    most: int,
    focus: tuple[int, int] | None = None,
) -> bytes:
    """The payload of a page.

    Args:
        snap: The snapshot.
        timeline: The device's timeline.
        facts: More for the header, as plain data.
        most: Allocations to keep one by one.
        focus: Events from .. to; what lives in them is kept first.

    Returns:
        A deflated stream as `view_columns` has it.
    """
    kept = _choose(timeline, most, focus)
    packer = Packer()
    stacks = _Stacks(snap)
    _add_allocations(packer, timeline, kept, stacks)
    _add_segments(packer, timeline, kept, stacks)
    _add_events(packer, snap, timeline, kept, stacks)
    _add_series(packer, timeline, kept)
    _add_coarse(packer, timeline, kept)
    stacks.add_to(packer)
    first_us = timeline.time_us[0] if len(timeline) else 0
    header = {
        **facts,
        "events": len(timeline),
        "focus": [kept.event(event) for event in focus] if focus else None,
        "coarse": [_COARSE_WIDE, _COARSE_HIGH],
        "allocations": len(timeline.allocations),
        "first_us": first_us,
        "base": hex(kept.base),
        "categories": CATEGORIES,
        "actions": [_name(action) for action in snap.native.actions()],
        "frames": stacks.frames(),
        "places": stacks.places,
        "peak_event": kept.event(timeline.peak("allocated").event),
        "reserved_peak_event": kept.event(timeline.peak("reserved").event),
    }
    return packer.packed(header)


class _Stacks:
    """The stacks that a page refers to, numbered anew; 0 is none."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._numbers: dict[int, int] = {NONE: 0}
        self._placed = Places(snap.stacks)
        self._place_numbers: dict[tuple[str, str, int, str], int] = {}
        self.places: list[tuple[str, str, int, str]] = []
        self._place_of = [self._place(NONE)]

    def _place(self, stack: int) -> int:
        place = self._placed[stack]
        file = f"{place.package} {place.filename}" if place.package else place.filename
        words = (_name(place.function), _name(file), place.line, _name(place.caller))
        if words not in self._place_numbers:
            self._place_numbers[words] = len(self.places)
            self.places.append(words)
        return self._place_numbers[words]

    def numbers(self, ids: Sequence[int]) -> array[int]:
        """The new numbers of a column of stack ids."""
        for stack in sorted(set(ids) - self._numbers.keys()):
            self._numbers[stack] = len(self._numbers)
            self._place_of.append(self._place(stack))
        return array("I", map(self._numbers.__getitem__, ids))

    def frames(self) -> list[tuple[str, str, int, int]]:
        """Every frame of the snapshot: name, file, line, and 1 for the program's own."""
        names = self._snap.strings
        strings = [_name(text) for text in names]
        return [
            (strings[name], strings[file], line, int(origin_of(names[file]).owner is Owner.OWN))
            for name, file, line in self._snap.native.frames()
        ]

    def add_to(self, packer: Packer) -> None:
        """The prefix tree of frames, and by stack its node and the line that represents
        it."""
        innermost, parent = self._snap.native.stacks()
        packer.add("node.frame", memoryview(innermost))
        packer.add("node.parent", memoryview(parent))
        # Node 0 is the root, which no stack is.
        nodes = [0 if stack == NONE else stack for stack in self._numbers]
        packer.add("stack.node", nodes, delta=True)
        packer.add("stack.place", self._place_of)


def _name(text: str) -> str:
    return sentence(text, _MOST_NAME)


def _numbers(table: Any, name: str) -> memoryview:
    return cast(memoryview, table.codes(name))


def _choose(timeline: Timeline, most: int, focus: tuple[int, int] | None) -> _Kept:
    table, segments = timeline.allocations, timeline.segments
    rows = events = None
    places = b""
    if len(table) > most:
        first, last = focus or (0, -1)
        rows, events, places = core.excerpt(timeline.native, most, first, last + 1)
    columns = (_picked(_numbers(table, "address"), rows), _numbers(segments, "address"))
    base = min((min(column) for column in columns if len(column)), default=0)
    return _Kept(rows, events, places, base)


def _picked(column: memoryview, rows: bytes | None) -> memoryview:
    if rows is None:
        return column
    return memoryview(core.pick(column, rows)).cast(cast(Any, column.format))


def _add_allocations(packer: Packer, timeline: Timeline, kept: _Kept, stacks: _Stacks) -> None:
    table = timeline.allocations

    def column(name: str) -> memoryview:
        return _picked(_numbers(table, name), kept.rows)

    size = column("size")
    packer.add("alloc.address", column("address"), grained=True, base=kept.base)
    packer.add("alloc.size", size, grained=True)
    packer.add("alloc.slack", array("q", map(sub, size, column("requested_size"))))
    packer.add("alloc.stream", _signed(column("stream")))
    made, freed, done = (
        kept.numbers(column(name)) for name in ("alloc_event", "free_event", "completed_event")
    )
    packer.add("alloc.made", made, delta=True)
    packer.add("alloc.freed", freed)
    packer.add("alloc.waited", array("q", map(sub, done, freed)))
    packer.add("alloc.stack", stacks.numbers(column("stack")))
    packer.add("alloc.category", column("category"))


def _signed(numbers: memoryview) -> Sequence[int]:
    """Streams, pools and sizes within 53 bits: those of other libraries are addresses."""
    most = (1 << 53) - 1
    small = max(numbers, default=0) <= most
    return numbers if small else array("q", map(most.__and__, numbers))


def _add_segments(packer: Packer, timeline: Timeline, kept: _Kept, stacks: _Stacks) -> None:
    table = timeline.segments
    packer.add("segment.address", _numbers(table, "address"), grained=True, base=kept.base)
    packer.add("segment.size", _numbers(table, "size"), grained=True)
    packer.add("segment.stream", _signed(_numbers(table, "stream")))
    for name, column in (
        ("kind", "segment_type"),
        ("expandable", "is_expandable"),
        ("pool_first", "pool_first"),
        ("pool_second", "pool_second"),
    ):
        packer.add(f"segment.{name}", _signed(_numbers(table, column)))
    for name in ("alloc_event", "free_event"):
        short = "made" if name == "alloc_event" else "freed"
        packer.add(f"segment.{short}", kept.numbers(_numbers(table, name)))
    packer.add("segment.stack", stacks.numbers(_numbers(table, "stack")))


def _add_events(
    packer: Packer, snap: Snapshot, timeline: Timeline, kept: _Kept, stacks: _Stacks
) -> None:
    table = timeline.events
    actions = _numbers(table, "action")
    packer.add("event.action", _picked(actions, kept.events))
    if len(timeline) and timeline.time_us[-1]:
        times = _picked(timeline.time_us, kept.events)
        packer.add("event.time", times, delta=True, base=times[0])
    if kept.events is not None:
        packer.add("event.number", memoryview(kept.events).cast("I"), delta=True)
    packer.add("event.stack", stacks.numbers(_picked(timeline.passes.stack, kept.events)))
    # What an allocation or a segment does not tell: the room left at an out-of-memory event.
    oom = snap.native.actions().index("oom")
    others = [found.start() for found in re.finditer(re.escape(bytes([oom])), actions)]
    found = array("I", others).tobytes()
    packer.add("oom.event", [kept.event(event) for event in others])
    packer.add("oom.asked", _signed(_picked(_numbers(table, "size"), found)))
    packer.add("oom.free", _signed(_picked(_numbers(table, "device_free"), found)))


def _add_series(packer: Packer, timeline: Timeline, kept: _Kept) -> None:
    """The state before the trace, and the series where the allocations don't add up to it."""
    allocated, _, reserved, _ = timeline.facts["start_bytes"]
    start = {"allocated": allocated, "reserved": reserved}
    for what, (name, nbytes) in enumerate(start.items()):
        series: memoryview = getattr(timeline, name)
        packer.add(f"start.{name}", [nbytes])
        if kept.events is not None or not core.adds_up(timeline.native, what, nbytes, series):
            packer.add(f"series.{name}", _picked(series, kept.events), delta=True)


def _add_coarse(packer: Packer, timeline: Timeline, kept: _Kept) -> None:
    """What the allocations that are not kept cover: a cell the class of its largest."""
    if kept.rows is not None:
        raster = core.Raster(timeline.native, False)
        packer.add_bytes("coarse", raster.paint(kept.rows, _COARSE_WIDE, _COARSE_HIGH))
