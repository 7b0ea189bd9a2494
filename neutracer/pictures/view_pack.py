# SPDX-License-Identifier: Apache-2.0
"""A timeline as the payload of its page: allocations, segments, events, stacks.

Up to a stated number of allocations the payload is the whole trace, and the page reckons
every series from it. Beyond that the allocations that matter most (bytes times events
lived) are kept one by one; the totals after each event that is kept stay exact, and what
is left out shows as a band of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from operator import sub
from typing import Any, cast

from neutracer.pictures.view_columns import Packer
from neutracer.render.escape import sentence
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.table import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["MOST_ALLOCATIONS", "pack"]

# Allocations that a page holds one by one: with their events some 9 MB.
MOST_ALLOCATIONS = 500_000

# Stretches of a longer trace whose highest moment of each series is kept.
_STRETCHES = 4096

# What a page shows of one name, in columns; a hostile one ends here.
_MOST_NAME = 300


@dataclass(frozen=True)
class _Kept:
    """The rows of a timeline that go into a page, and the events they speak of.

    Attributes:
        rows: Rows of `allocations`; None is all.
        events: Events of the trace, ascending; None is all.
        places: By event of the trace, how many kept events come before it.
    """

    rows: list[int] | None
    events: list[int] | None
    places: Sequence[int]

    def event(self, number: int) -> int:
        """An event's place among the kept ones; negative numbers stay what they mean."""
        return self.places[number] if number >= 0 and self.events is not None else number


def pack(snap: Snapshot, timeline: Timeline, facts: dict[str, Any], most: int) -> bytes:
    """The payload of a page.

    Args:
        snap: The snapshot.
        timeline: The device's timeline.
        facts: More for the header, as plain data.
        most: Allocations to keep one by one.

    Returns:
        A deflated stream as `view_columns` has it.
    """
    kept = _choose(timeline, most)
    packer = Packer()
    stacks = _Stacks(snap)
    _add_allocations(packer, timeline, kept, stacks)
    _add_segments(packer, timeline, kept, stacks)
    _add_events(packer, snap, timeline, kept, stacks)
    _add_series(packer, timeline, kept)
    stacks.add_to(packer)
    first_us = timeline.time_us[0] if len(timeline) else 0
    header = {
        **facts,
        "events": len(timeline),
        "allocations": len(timeline.allocations),
        "first_us": first_us,
        "base": _base(timeline),
        "categories": CATEGORIES,
        "actions": [_name(action) for action in snap.native.actions()],
        "frames": stacks.frames(),
        "places": stacks.places,
        "peak_event": kept.event(timeline.peak("allocated").event),
        "reserved_peak_event": kept.event(timeline.peak("reserved").event),
    }
    return packer.packed(header)


class _Stacks:
    """The stacks that a page speaks of, numbered anew; 0 is none."""

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._numbers: dict[int, int] = {NONE: 0}
        self._place_numbers: dict[tuple[str, str, int], int] = {}
        self.places: list[tuple[str, str, int]] = []
        self._place_of = [self._place(NONE)]

    def _place(self, stack: int) -> int:
        place = place_of(self._snap.stacks[stack])
        words = (_name(place.function), _name(place.filename), place.line)
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

    def frames(self) -> list[tuple[str, str, int]]:
        """Every frame of the snapshot: name, file, line."""
        strings = [_name(text) for text in self._snap.strings]
        return [
            (strings[name], strings[file], line) for name, file, line in self._snap.native.frames()
        ]

    def add_to(self, packer: Packer) -> None:
        """The prefix tree of frames, and by stack its node and the line that stands for it."""
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


def _base(timeline: Timeline) -> str:
    """The lowest address, from which the columns count; as text, for it may have 64 bits."""
    return hex(_lowest(timeline))


def _lowest(timeline: Timeline) -> int:
    tables = (timeline.allocations, timeline.segments)
    return min((min(_numbers(table, "address")) for table in tables if len(table)), default=0)


def _choose(timeline: Timeline, most: int) -> _Kept:
    rows = timeline.allocations
    if len(rows) <= most:
        return _Kept(None, None, ())
    made, freed = _numbers(rows, "alloc_event"), _numbers(rows, "free_event")
    end = len(timeline)
    weights = [
        size * ((gone if gone != -1 else end) - born)
        for size, born, gone in zip(_numbers(rows, "size"), made, freed, strict=True)
    ]
    chosen = sorted(sorted(range(len(weights)), key=weights.__getitem__)[len(weights) - most :])
    mark = bytearray(end)
    for name in ("alloc_event", "free_event", "completed_event"):
        column = _numbers(rows, name)
        for row in chosen:
            if column[row] >= 0:
                mark[column[row]] = 1
    _mark_others(mark, timeline)
    places = array("q", accumulate(mark, initial=0))
    return _Kept(chosen, list(compress(range(end), mark)), places)


# By action's code, whether it is more than an allocation made or freed: the core's first three.
_IS_OTHER = bytes(3) + b"\x01" * 253


def _mark_others(mark: bytearray, timeline: Timeline) -> None:
    """Marks what is no allocation, and the extremes of each stretch of the trace."""
    end = len(mark)
    others = bytes(_numbers(timeline.events, "action")).translate(_IS_OTHER)
    marked = int.from_bytes(mark, "big") | int.from_bytes(others, "big")
    mark[:] = marked.to_bytes(end, "big")
    step = max(end // _STRETCHES, 1)
    for series in (timeline.allocated, timeline.reserved):
        for first in range(0, end, step):
            stretch = series[first : first + step]
            for value in (max(stretch), min(stretch)):
                mark[first + stretch.tolist().index(value)] = 1
    for metric in ("allocated", "reserved"):
        if timeline.peak(metric).event >= 0:
            mark[timeline.peak(metric).event] = 1
    mark[-1:] = b"\x01" * (end > 0)


def _picked(column: memoryview, rows: list[int] | None) -> Sequence[int]:
    return column if rows is None else array(column.format, map(column.__getitem__, rows))


def _add_allocations(packer: Packer, timeline: Timeline, kept: _Kept, stacks: _Stacks) -> None:
    table = timeline.allocations

    def column(name: str) -> Sequence[int]:
        return _picked(_numbers(table, name), kept.rows)

    def events(name: str) -> Sequence[int]:
        numbers = column(name)
        return numbers if kept.events is None else array("q", map(kept.event, numbers))

    base = _lowest(timeline)
    packer.add("alloc.address", array("q", map(base.__rsub__, column("address"))), grained=True)
    packer.add("alloc.size", column("size"), grained=True)
    packer.add("alloc.slack", array("q", map(sub, column("size"), column("requested_size"))))
    packer.add("alloc.stream", array("q", map(_signed, column("stream"))))
    made, freed = events("alloc_event"), events("free_event")
    packer.add("alloc.made", made, delta=True)
    packer.add("alloc.freed", freed)
    packer.add("alloc.waited", array("q", map(sub, events("completed_event"), freed)))
    packer.add("alloc.stack", stacks.numbers(column("stack")))
    packer.add("alloc.category", column("category"))


def _signed(stream: int) -> int:
    """A stream's number within 53 bits: those of other libraries are addresses."""
    return stream & (1 << 53) - 1


def _add_segments(packer: Packer, timeline: Timeline, kept: _Kept, stacks: _Stacks) -> None:
    table = timeline.segments
    base = _lowest(timeline)
    packer.add(
        "segment.address", array("q", map(base.__rsub__, _numbers(table, "address"))), grained=True
    )
    packer.add("segment.size", _numbers(table, "size"), grained=True)
    packer.add("segment.stream", array("q", map(_signed, _numbers(table, "stream"))))
    for name, column in (
        ("kind", "segment_type"),
        ("expandable", "is_expandable"),
        ("pool_first", "pool_first"),
        ("pool_second", "pool_second"),
    ):
        packer.add(f"segment.{name}", array("q", map(_signed, _numbers(table, column))))
    for name in ("alloc_event", "free_event"):
        short = "made" if name == "alloc_event" else "freed"
        packer.add(f"segment.{short}", array("q", map(kept.event, _numbers(table, name))))
    packer.add("segment.stack", stacks.numbers(_numbers(table, "stack")))


def _add_events(
    packer: Packer, snap: Snapshot, timeline: Timeline, kept: _Kept, stacks: _Stacks
) -> None:
    table = timeline.events
    actions = _numbers(table, "action")
    packer.add("event.action", _picked(actions, kept.events))
    if len(timeline) and timeline.time_us[-1]:
        packer.add("event.time", _relative(_picked(timeline.time_us, kept.events)), delta=True)
    if kept.events is not None:
        packer.add("event.number", kept.events, delta=True)
    packer.add("event.stack", stacks.numbers(_picked(_numbers(table, "stack"), kept.events)))
    # What an allocation or a segment does not tell: the room left at an out-of-memory event.
    oom = snap.native.actions().index("oom")
    others = [event for event, action in enumerate(actions) if action == oom]
    packer.add("oom.event", [kept.event(event) for event in others])
    packer.add("oom.asked", [_numbers(table, "size")[event] for event in others])
    packer.add("oom.free", [_signed(_numbers(table, "device_free")[event]) for event in others])


def _relative(times: Sequence[int]) -> Sequence[int]:
    return array("q", map(times[0].__rsub__, times)) if len(times) else times


def _add_series(packer: Packer, timeline: Timeline, kept: _Kept) -> None:
    """The state before the trace, and the series where the allocations don't add up to it."""
    allocated, _, reserved, _ = timeline.facts["start_bytes"]
    start = {"allocated": allocated, "reserved": reserved}
    for name, table, ending in (
        ("allocated", timeline.allocations, "free_event"),
        ("reserved", timeline.segments, "free_event"),
    ):
        series: memoryview = getattr(timeline, name)
        packer.add(f"start.{name}", [start[name]])
        if kept.events is not None:
            packer.add(f"series.{name}", _picked(series, kept.events), delta=True)
        elif _summed(table, ending, start[name], len(timeline)) != series.tolist():
            packer.add(f"series.{name}", series, delta=True)


def _summed(table: Any, ending: str, start: int, events: int) -> list[int]:
    """What a series is by the sizes of rows that come and go."""
    steps = [0] * events
    sizes = _numbers(table, "size")
    for size, born, gone in zip(
        sizes, _numbers(table, "alloc_event"), _numbers(table, ending), strict=True
    ):
        if born >= 0:
            steps[born] += size
        if gone >= 0:
            steps[gone] -= size
    return list(accumulate(steps, initial=start))[1:]
