# SPDX-License-Identifier: Apache-2.0
"""What a snapshot holds by stack, category and size, and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neutracer.render.document import Figure, Place, Table
from neutracer.render.row import PlainRow
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame
from neutracer.units import format_bytes

__all__ = [
    "NOTHING",
    "Change",
    "Held",
    "Peaks",
    "by_line",
    "change_table",
    "changes",
    "held_in",
    "peaks_of",
    "size_class",
]

Sums = dict[Any, tuple[int, int]]

# Rows of each table of the printed report.
_SHOWN = 8


@dataclass(frozen=True)
class Change(PlainRow):
    """How one stack, line, category or size class differs between two snapshots.

    Attributes:
        kind: "new" (nothing of it was there before), "gone" (nothing is left), "grown",
            "shrunk" or "same", by bytes.
        key: What it is in words: a line, a category, or a range of sizes.
        before_bytes: Its allocated blocks before.
        after_bytes: And after.
        before_count: How many blocks.
        after_count: And after.
        stack: Of a stack its frames, innermost first; else empty.
        place: The line itself, or the line of the program that represents a stack; else None.
    """

    kind: str
    key: str
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int
    stack: tuple[Frame, ...] = ()
    place: Place | None = None

    @property
    def bytes(self) -> int:
        """After less before."""
        return self.after_bytes - self.before_bytes

    @property
    def count(self) -> int:
        """Blocks after less blocks before."""
        return self.after_count - self.before_count


@dataclass(frozen=True)
class Held:
    """The allocated blocks of one snapshot: (bytes, blocks) by stack, category and size."""

    by_stack: Sums
    by_category: Sums
    by_size: Sums


@dataclass(frozen=True)
class Peaks:
    """The peaks of one snapshot's trace; None and -1 where it has no events.

    Attributes:
        allocated: The most bytes that were allocated.
        reserved: The most bytes that were reserved.
        event: When the most were allocated.
        held: The blocks that were allocated then: (bytes, blocks) by place.
    """

    allocated: int | None
    reserved: int | None
    event: int
    held: Sums


def peaks_of(snap: Snapshot, device: int) -> Peaks:
    """The peaks of a device's trace."""
    if not snap.trace_length(device):
        return Peaks(None, None, -1, {})
    timeline = snap.timeline(device)
    peak, most = timeline.peak("allocated"), timeline.peak("reserved")
    held = {place: (nbytes, count) for place, nbytes, _, count in timeline.held_by_place()}
    return Peaks(peak.bytes, most.bytes, peak.event, held)


def size_class(nbytes: int) -> int:
    """The power of two up to which a size reaches, from 512 bytes on.

    Example:
        >>> size_class(512), size_class(513), size_class(3 << 20) >> 20
        (512, 1024, 4)
    """
    return max(512, 1 << (nbytes - 1).bit_length())


#: What is compared where an end is not known.
NOTHING = Held({}, {}, {})


def held_in(snap: Snapshot, device: int) -> Held:
    """The allocated blocks of a device."""
    held = Held({}, {}, {})
    categories = _categories(snap, device)
    devices, blocks = snap.segments.codes("device"), snap.blocks
    columns = zip(
        blocks.codes("segment"),
        blocks["state"],
        blocks.codes("stack"),
        blocks.codes("size"),
        blocks.codes("address"),
        strict=True,
    )
    for segment, state, stack, size, address in columns:
        if state == "active_allocated" and devices[segment] == device:
            _add(held.by_stack, snap.stacks[stack], size)
            _add(held.by_category, categories.get(address, "unknown"), size)
            _add(held.by_size, size_class(size), size)
    return held


def _categories(snap: Snapshot, device: int) -> Mapping[int, str]:
    """The category of each allocation that lives at the end of the trace, by address."""
    if not snap.trace_length(device):
        return {}
    timeline = snap.timeline(device)
    rows = timeline.allocations
    columns = zip(rows.codes("address"), rows.codes("free_event"), strict=True)
    names = timeline.categories
    return {address: names.name(row) for row, (address, freed) in enumerate(columns) if freed == -1}


def _add(sums: Sums, key: Any, size: int) -> None:
    nbytes, count = sums.get(key, (0, 0))
    sums[key] = (nbytes + size, count + 1)


def changes(before: Sums, after: Sums) -> tuple[Change, ...]:
    """How each key differs, the largest difference first; equal ones are at the end."""
    found = []
    for key in before.keys() | after.keys():
        held, count = before.get(key, (0, 0))
        holds, counts = after.get(key, (0, 0))
        stack = () if isinstance(key, (str, int, Place)) else key
        place = None if isinstance(key, (str, int)) else _place(key)
        text = _text(key) if place is None else str(place)
        kind = _kind(held, holds, count, counts)
        found.append(Change(kind, text, held, holds, count, counts, stack, place))
    return tuple(sorted(found, key=lambda one: (-abs(one.bytes), -one.after_bytes, one.key)))


def by_line(sums: Sums) -> Sums:
    """Stacks grouped by the line of the program that represents them."""
    lines: Sums = {}
    for stack, (nbytes, count) in sums.items():
        place = place_of(stack)
        held, counted = lines.get(place, (0, 0))
        lines[place] = (held + nbytes, counted + count)
    return lines


def _place(key: Place | tuple[Frame, ...]) -> Place:
    return key if isinstance(key, Place) else place_of(key)


def _text(key: str | int) -> str:
    if isinstance(key, str):
        return key
    if key == 512:
        return "up to 512 B"
    return f"over {format_bytes(key // 2)} to {format_bytes(key)}"


def _kind(before: int, after: int, count: int, counts: int) -> str:
    if not count:
        return "new"
    if not counts:
        return "gone"
    return "grown" if after > before else "shrunk" if after < before else "same"


def change_table(title: str, found: list[Change]) -> Table:
    """The largest changes as a table."""
    rows = tuple(
        (
            one.kind,
            Figure.bytes(one.before_bytes),
            Figure.bytes(one.after_bytes),
            Figure.bytes(one.bytes),
            f"{one.before_count:,} → {one.after_count:,}",
            one.place if one.place is not None else one.key,
        )
        for one in found[:_SHOWN]
    )
    shown = f" ({len(rows)} of {len(found)})" if len(rows) < len(found) else ""
    heads = ("", "before", "after", "difference", "blocks", "")
    return Table(title + shown, rows, heads)
