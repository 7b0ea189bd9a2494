# SPDX-License-Identifier: Apache-2.0
"""What a layout says of its free bytes: segments, holes, and which requests these serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from neutracer._native import core
from neutracer.diagnose.fragmentation.parts import Hole, PoolFragmentation, SegmentFragmentation
from neutracer.render.document import Place
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["Served", "holes_of", "pools_of", "segments_of", "served_of"]

#: The requests that need no new segment, of each pool and stream that serves any: ranges in
#: bytes, ascending, both ends included.
Served = Mapping[tuple[tuple[int, int], int], Sequence[tuple[int, int]]]


def served_of(snap: Snapshot, fragment: core.Fragment) -> Served:
    """The requests that the free blocks of a device serve.

    The allocator looks at the smallest block that is large enough, and at no other.
    """
    firsts, seconds, streams = map(snap.segments.codes, ("pool_first", "pool_second", "stream"))
    kinds = snap.segments["segment_type"]
    sizes: dict[tuple[tuple[int, int], int, bool], set[int]] = {}
    for _, row, _, size, _, _ in fragment.holes():
        key = (firsts[row], seconds[row]), streams[row], kinds[row] == "small"
        sizes.setdefault(key, set()).add(size)
    served: dict[tuple[tuple[int, int], int], list[tuple[int, int]]] = {}
    # Requests of the small pool are smaller than all others.
    for (pool, stream, small), free in sorted(sizes.items(), key=lambda item: not item[0][2]):
        ranges = served.setdefault((pool, stream), [])
        ascending = sorted(free)
        for below, size in zip((0, *ascending), ascending, strict=False):
            found = fragment.serves(size, below, small)
            if found is not None:
                _append(ranges, *found)
    return served


def _append(ranges: list[tuple[int, int]], least: int, most: int) -> None:
    """Add a range above all others; one that goes on where the last ends becomes part of it."""
    if ranges and ranges[-1][1] + 1 == least:
        least = ranges.pop()[0]
    ranges.append((least, most))


def _places(snap: Snapshot) -> Callable[[int], Place]:
    """Places by the codes of stacks, each looked for once."""
    return cache(lambda code: place_of(snap.stacks[code]))


def segments_of(
    snap: Snapshot, fragment: core.Fragment, timeline: Timeline
) -> tuple[SegmentFragmentation, ...]:
    """The segments of a device, in the layout's order."""
    place = _places(snap)
    addresses, sizes, openers = map(snap.segments.codes, ("address", "total_size", "stack"))
    block_sizes, block_stacks = map(snap.blocks.codes, ("size", "stack"))
    # The trace knows who opened a segment also where the segment itself does not.
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
    """The free blocks of a device, the largest first, with who is beside them."""
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
    """What the core says of each pool and stream, as a report has it."""
    names = PoolFragmentation.__dataclass_fields__
    return tuple(
        PoolFragmentation(
            kind="small" if group["small"] else "large",
            **{name: value for name, value in group.items() if name in names},
        )
        for group in groups
    )
