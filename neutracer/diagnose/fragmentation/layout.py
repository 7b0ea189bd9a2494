# SPDX-License-Identifier: Apache-2.0
"""What a layout says of its free bytes: segments, holes, and which requests these serve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

from neutracer._native import core
from neutracer.diagnose.fragmentation.parts import Hole, PoolFragmentation, SegmentFragmentation
from neutracer.pickling import FieldsOnly
from neutracer.render.document import Place
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["Room", "holes_of", "pools_of", "room_of", "segments_of"]

#: A free block as a request sees it: its pool, its stream, "small" or "large", its bytes.
FreeBlock = tuple[tuple[int, int], int, str, int]


@dataclass(frozen=True)
class Room(FieldsOnly):
    """The free blocks of one device as requests see them, and nothing of who made them.

    Attributes:
        blocks: Of each free block its pool, its stream, "small" or "large", and its bytes;
            alike ones once, since a request takes one.
        settings: The allocator's, as the file has them.
    """

    blocks: frozenset[FreeBlock]
    settings: Mapping[str, Any]

    def fits(self, pool: tuple[int, int], stream: int, nbytes: int) -> bool:
        """Whether a request finds a free block."""
        return self._fragment.fits(0, pool, stream, nbytes)

    @cached_property
    def _fragment(self) -> core.Fragment:
        """The core's object, which knows the allocator's rules: of a snapshot in which each
        free block is a segment."""
        import pickle

        segments: list[dict[str, Any]] = []
        address = 0
        for pool, stream, kind, size in self.blocks:
            block = {"address": address, "size": size, "requested_size": 0, "state": "inactive"}
            segments.append(
                {
                    "device": 0,
                    "address": address,
                    "total_size": size,
                    "stream": stream,
                    "segment_type": kind,
                    "segment_pool_id": pool,
                    "blocks": [{**block, "frames": []}],
                }
            )
            address += size
        plain = {"segments": segments, "device_traces": [], "allocator_settings": self.settings}
        saved = pickle.dumps(plain, protocol=4)
        return core.Fragment(core.load(saved, sys.maxsize, None), None, 0)


def room_of(snap: Snapshot, fragment: core.Fragment) -> Room:
    """The free blocks that a device's fragmentation is about."""
    firsts, seconds, streams = map(snap.segments.codes, ("pool_first", "pool_second", "stream"))
    kinds = cast("list[str]", snap.segments["segment_type"])
    blocks = frozenset(
        ((firsts[row], seconds[row]), streams[row], kinds[row], size)
        for _, row, _, size, _, _ in fragment.holes()
    )
    return Room(blocks, dict(snap.settings))


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
