# SPDX-License-Identifier: Apache-2.0
"""The layout in which a request failed: where free bytes were, what would have held it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neutracer._native import core
from neutracer.diagnose.oom.budget import UNIT, Budget, Failure
from neutracer.trace.layout import Layout
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.trace.table import Table

__all__ = ["Room", "free_bytes"]

# Codes of the columns `segment_type` and `state`.
_SMALL = 0
_INACTIVE = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment as the request saw it.

    Attributes:
        row: Its row.
        is_own: Whether it is of the request's pool and stream.
        is_kind: Whether it is of the request's kind, small or large.
        is_default: Whether it is of the default pool.
        page: Bytes of a page, of an expandable one; 0 for others.
        address: Where it begins.
        size: Its bytes.
        first: Row of its first block.
        end: Row after its last block.
    """

    row: int
    is_own: bool
    is_kind: bool
    is_default: bool
    page: int
    address: int
    size: int
    first: int
    end: int


class Room:
    """The layout at a failure, and what would have held the request.

    Attributes:
        failure: The request.
        budget: What the device could still have given.
        segment: Bytes of the segment that it asked the device for.
        groups: The core's sums by pool, stream and kind.
        segments: The segments then, as `Snapshot.segments` has them.
        blocks: The blocks then, as `Snapshot.blocks` has them.
    """

    def __init__(
        self, snap: Snapshot, device: int, failure: Failure, layout: Layout | None, budget: Budget
    ) -> None:
        self.failure = failure
        self.budget = budget
        self.device = device
        settings = snap.settings_in_force
        self._page = UNIT if failure.is_small else int(settings["large_segment_size"])
        self.segment = failure.segment_size(int(settings["large_segment_size"]))
        self.segments: Table = snap.segments if layout is None else layout.segments
        self.blocks: Table = snap.blocks if layout is None else layout.blocks
        native = None if layout is None else layout.native
        self.fragment = core.Fragment(snap.native, native, device)
        self.groups: list[dict[str, Any]] = self.fragment.groups()
        self.is_expandable = bool(settings["expandable_segments"])

    def is_own(self, group: dict[str, Any]) -> bool:
        """Whether a group's free blocks could serve the request: its pool and its stream."""
        same_pool = tuple(group["pool"]) == self.failure.pool
        return same_pool and group["stream"] == self.failure.stream

    @property
    def own(self) -> list[dict[str, Any]]:
        """The groups of the request's pool and stream, small and large."""
        return [group for group in self.groups if self.is_own(group)]

    @property
    def others(self) -> list[dict[str, Any]]:
        """The groups of other pools and streams."""
        return [group for group in self.groups if not self.is_own(group)]

    @property
    def reserved(self) -> int:
        """Bytes taken from the device."""
        return sum(int(group["reserved_bytes"]) for group in self.groups)

    @property
    def allocated(self) -> int:
        """Bytes in allocated blocks."""
        return sum(int(group["allocated_bytes"]) for group in self.groups)

    @cached_property
    def kept_back(self) -> int:
        """Bytes of segments with nothing in them that were not given back before it failed.

        The allocator gives back those of the default pool before a request fails, but for
        while a graph is captured. Else such a segment is of a private pool that was gone
        when the snapshot was made, so that nobody says whose it was.
        """
        return sum(self._kept_back.values())

    @cached_property
    def _kept_back(self) -> dict[int, int]:
        """Sizes of these segments, by row."""
        if not self.failure.happened:
            return {}
        places = self._places
        return {
            row: free
            for row, _, free, _, _, pin in self._fragments
            if pin == NONE and places[row].is_default and not places[row].page
        }

    @cached_property
    def _fragments(self) -> list[tuple[int, int, int, int, int, int]]:
        return self.fragment.segments()

    @cached_property
    def _places(self) -> dict[int, _Place]:
        """The device's segments, by row."""
        names = (
            *("device", "pool_first", "pool_second", "stream", "segment_type", "is_expandable"),
            *("address", "total_size", "block_first", "block_count"),
        )
        columns = zip(*(self.segments.codes(name) for name in names), strict=True)
        places: dict[int, _Place] = {}
        for row, (device, *pool, stream, kind, growing, at, size, first, count) in enumerate(
            columns
        ):
            if device != self.device:
                continue
            is_small = kind == _SMALL
            places[row] = _Place(
                row=row,
                is_own=tuple(pool) == self.failure.pool and stream == self.failure.stream,
                is_kind=is_small == self.failure.is_small,
                is_default=tuple(pool) == (0, 0),
                page=0 if not growing else UNIT if is_small else self._page,
                address=at,
                size=size,
                first=first,
                end=first + count,
            )
        return places

    @property
    def own_free(self) -> int:
        """Free bytes inside the segments of the request's pool and stream."""
        own = sum(size for row, size in self._kept_back.items() if self._places[row].is_own)
        return sum(free_bytes(group) for group in self.own) - own

    @cached_property
    def own_hole(self) -> int:
        """The largest hole that the request could have used."""
        return self._largest(is_own=True)

    @property
    def own_fits(self) -> bool:
        """Whether a hole of its own would have served the request."""
        failure = self.failure
        if self.own_hole < failure.size:
            return False
        return self.fragment.fits(self.device, failure.pool, failure.stream, failure.size)

    @property
    def other_free(self) -> int:
        """Free bytes inside the segments of other pools and streams."""
        return sum(free_bytes(group) for group in self.groups) - self.own_free

    @cached_property
    def other_hole(self) -> int:
        """The largest hole of the request's kind in another pool or stream."""
        return self._largest(is_own=False)

    def _largest(self, is_own: bool) -> int:
        largest = 0
        for row, _, _, hole, _, _ in self._fragments:
            place = self._places[row]
            own = place.is_own and row not in self._kept_back
            if own is is_own and place.is_kind:
                largest = max(largest, hole)
        return largest

    @cached_property
    def other_whole(self) -> int:
        """Bytes of segments of other pools and streams with nothing in them."""
        return sum(
            free
            for row, _, free, _, _, pin in self._fragments
            if pin == NONE and (row in self._kept_back or not self._places[row].is_own)
        )

    @cached_property
    def holds(self) -> bool:
        """Whether the request would succeed in this very layout."""
        return self.would_hold()

    def would_hold(self, freed: Collection[int] = (), more: int = 0) -> bool:
        """Whether the request would have succeeded with some blocks free and more available.

        The allocator gives wholly free segments back before it fails, of every stream of
        the default pool, and of expandable ones the whole pages between their blocks.

        Args:
            freed: Addresses at which blocks begin that are free as well.
            more: Bytes that the device could give in addition.
        """
        hole, given_back = self._freed(freed) if freed else self._standing
        if hole >= self.failure.size:
            return True
        return self.budget.headroom + more + given_back >= self._need

    @cached_property
    def _standing(self) -> tuple[int, int]:
        return self._freed(())

    def _freed(self, freed: Collection[int]) -> tuple[int, int]:
        """With some blocks free: the largest run that the request could have used, and what
        the allocator gives back of all segments before it fails."""
        gone = freed if isinstance(freed, (set, frozenset, dict)) else frozenset(freed)
        largest = whole = 0
        for place in self._places.values():
            if place.row in self._kept_back:
                continue
            runs = list(self._runs(place, gone))
            if place.is_own and place.is_kind:
                largest = max(largest, max((size for size, _ in runs), default=0))
            whole += _given_back(place, runs)
        return largest, whole

    @property
    def _need(self) -> int:
        """What new memory the request takes where no hole serves it."""
        if self.is_expandable:
            return -(-self.failure.size // self._page) * self._page
        return self.segment

    @cached_property
    def _columns(self) -> tuple[memoryview, memoryview, memoryview]:
        """State, size and address of the blocks."""
        codes = self.blocks.codes
        return codes("state"), codes("size"), codes("address")

    def _runs(self, place: _Place, gone: Collection[int]) -> Iterator[tuple[int, int]]:
        """The free runs of a segment's blocks: size and address."""
        part = slice(place.first, place.end)
        size = begin = 0
        for state, nbytes, address in zip(*(one[part] for one in self._columns), strict=True):
            if state != _INACTIVE and address not in gone:
                if size:
                    yield size, begin
                size = 0
                continue
            if not size:
                begin = address
            size += nbytes
        if size:
            yield size, begin


def _given_back(place: _Place, runs: list[tuple[int, int]]) -> int:
    """What the allocator gives back of a segment before it fails."""
    if place.page:
        # The ranges of an expandable segment begin at a page.
        whole = 0
        for size, begin in runs:
            offset = begin - place.address
            low = -(-offset // place.page) * place.page
            whole += max((offset + size) // place.page * place.page - low, 0)
        return whole
    return place.size if place.is_default and runs and runs[0][0] == place.size else 0


def free_bytes(group: dict[str, Any]) -> int:
    """What a group of `Room.groups` has reserved and not in use."""
    return int(group["reserved_bytes"]) - int(group["active_bytes"])
