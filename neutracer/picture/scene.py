# SPDX-License-Identifier: Apache-2.0
"""The numbers behind a Memory Distribution Timeline Plot. Importing this imports numpy."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from neutracer._native import core
from neutracer.arguments import number_pair, whole_number
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline, int_address

SEEN_BLOCK, SEEN_HOLE, SEEN_RESERVED = 1, 2, 4

# Events that only make room for the allocation after them.
_OPENING = ("segment_alloc", "segment_map")

# Seconds, or events, after the end of every axis.
_FARTHEST = 1e12

_ALLOCATED, _ACTIVE, _RESERVED = 0, 1, 2


@dataclass(frozen=True)
class Request:
    """The part of a snapshot to draw, and the style, as for `mdtp`."""

    device: int | None = None
    x: str = "time"
    stream: int | None = None
    pool: tuple[int, int] | None = None
    time_range: tuple[float, float] | None = None
    address_range: tuple[int | str, int | str] | str | None = None
    raw_addresses: bool = False


@dataclass(frozen=True)
class Oom:
    """A moment at which memory ran out.

    Attributes:
        state: The state after it; state e + 1 is the one after event e.
        asked: Bytes that were requested.
        device_free: Bytes that the device had free.
    """

    state: int
    asked: int
    device_free: int


@dataclass(frozen=True)
class Planes:
    """A view's pixels, rows from the lowest address; see `nt_raster.h` for the rules.

    Attributes:
        largest: Bytes of the largest block that a pixel has seen.
        used: The share of its area that was in blocks.
        reserved: The share of its area that was reserved.
        seen: What it has seen: SEEN_BLOCK, SEEN_HOLE, SEEN_RESERVED.
    """

    largest: Any
    used: Any
    reserved: Any
    seen: Any


class Scene:
    """One device of one snapshot on the axes of a picture.

    Positions are the core's: microseconds, or states, to the right; bytes upwards.

    Attributes:
        snapshot: The snapshot.
        timeline: The device's timeline.
        by_time: Whether the axis is time; else it is events.
        title: Its title.
        view: The positions shown: x first, x end, y first, y end.
    """

    def __init__(self, snapshot: Snapshot, request: Request, title: str) -> None:
        if request.x not in ("time", "event"):
            raise ValueError(f"x must be 'time' or 'event', not {request.x!r}")
        request = _checked(request)
        self.snapshot = snapshot
        self.timeline: Timeline = snapshot.timeline(request.device)
        self.by_time = request.x == "time" and _has_times(self.timeline)
        self.title = title
        #: The number of each raw stream: 0 is the default stream, then as they first appear.
        self.streams = _numbered(self.timeline)
        numbers = {number: stream for stream, number in self.streams.items()}
        if request.stream is not None and request.stream not in self.streams:
            request = replace(request, stream=numbers.get(request.stream, request.stream))
        self.request = request
        self.raster = core.Raster(
            self.timeline.native,
            self.by_time,
            request.raw_addresses,
            stream=request.stream,
            pool=request.pool,
        )
        self.ranges = self.raster.ranges()
        self._starts = [address for address, _, _ in self.ranges]
        edges = np.frombuffer(self.raster.states(), "Q").astype(np.int64)
        #: Where each state begins.
        self.states = edges[:-1]
        self._end = int(edges[-1])
        self.view = (*self._x_view(), *self._y_view())
        if (request.stream, request.pool) != (None, None) and not self.segment_lives():
            raise ValueError(f"no segment is of stream {request.stream}, pool {request.pool}")

    # Axes -------------------------------------------------------------------------------

    def axis_x(self, position: Any) -> Any:
        """A position, or several, as the axis counts: seconds, or events."""
        return position / 1e6 if self.by_time else position - 1.0

    def _x_position(self, value: float) -> int:
        return round(value * 1e6) if self.by_time else round(value) + 1

    def _x_view(self) -> tuple[int, int]:
        """All of the trace, without the state before it where events have a width."""
        first = 0 if self.by_time or len(self.timeline) == 0 else 1
        if self.request.time_range is None:
            return first, self._end
        # A bound that no axis reaches (inf) is the axis' end.
        low, high = (
            self._x_position(min(max(value, -_FARTHEST), _FARTHEST))
            for value in self.request.time_range
        )
        low, high = max(low, first), min(high, self._end)
        if low >= high:
            raise ValueError(f"nothing in the trace falls within {self.request.time_range}")
        return low, high

    def _y_view(self) -> tuple[int, int]:
        height = self.raster.extent()[1]
        if self.request.address_range is None:
            return 0, height
        first, end = _addresses(self.timeline, self.request.address_range)
        low, high = self.position(first), self.position(end)
        if low >= high:
            raise ValueError("nothing in that range of addresses was ever reserved")
        return low, high

    def position(self, address: int) -> int:
        """Where an address is drawn; one that was never reserved as the next that was."""
        row = bisect_right(self._starts, address) - 1
        if row < 0:
            return 0
        start, size, position = self.ranges[row]
        return position + min(address - start, size)

    def address(self, position: int) -> int:
        """Which address is at a position."""
        row = bisect_right([p for _, _, p in self.ranges], position) - 1
        if row < 0:
            return 0
        start, _, first = self.ranges[row]
        return start + position - first

    # What is shown ----------------------------------------------------------------------

    def planes(self, width: int, height: int, y_end: int | None = None) -> Planes:
        """The view's pixels; up to another address position where `y_end` says so."""
        x_first, x_end, y_first, y = self.view
        view = (x_first, x_end, y_first, min(y_end or y, y), width, height)
        raw = self.raster.draw(view)
        kinds = (np.uint64, np.float64, np.float64, np.uint8)
        shaped = (
            np.frombuffer(part, kind).reshape(height, width)
            for part, kind in zip(raw, kinds, strict=True)
        )
        return Planes(*shaped)

    @cached_property
    def shown_states(self) -> tuple[int, int]:
        """The first state of the view, and the one after its last."""
        first = int(self._first_states(np.array([self.view[0]]))[0])
        return first, int(np.searchsorted(self.states, self.view[1], "left"))

    def _series(self, metric: int) -> Any:
        return np.frombuffer(self.raster.series(metric), np.uint64).astype(np.int64)

    @cached_property
    def allocated(self) -> Any:
        """Bytes in allocated blocks in each state."""
        return self._series(_ALLOCATED)

    @cached_property
    def active(self) -> Any:
        """Bytes in blocks, those that wait for a stream as well, in each state."""
        return self._series(_ACTIVE)

    @cached_property
    def reserved(self) -> Any:
        """Bytes reserved in each state."""
        return self._series(_RESERVED)

    def column_states(self, width: int) -> tuple[Any, Any]:
        """Of each of the view's columns the first state it sees, and the one after the
        last."""
        x_first, x_end = self.view[:2]
        edges = x_first + (x_end - x_first) * np.arange(width + 1) / width
        first = self._first_states(edges[:-1])
        end = np.searchsorted(self.states, edges[1:], "left")
        return first, np.maximum(end, first + 1)

    def _first_states(self, positions: Any) -> Any:
        """The first state that is seen from each position on: of several that begin there,
        all but the last without width, the first."""
        begins = np.searchsorted(self.states, positions, "left")
        lasts = np.maximum(np.searchsorted(self.states, positions, "right") - 1, 0)
        return np.minimum(begins, lasts)

    def column_extremes(self, series: Any, width: int) -> tuple[Any, Any]:
        """The least and the largest value that each of the view's columns has seen."""
        first, end = (edge.astype(np.uint64) for edge in self.column_states(width))
        pyramid = core.Pyramid(series.astype(np.uint64).tobytes())
        least, largest = pyramid.extremes(first.tobytes(), end.tobytes())
        return np.frombuffer(least, np.uint64), np.frombuffer(largest, np.uint64)

    @cached_property
    def settled(self) -> Any:
        """The states visible to a program: not those between a segment and its allocation."""
        names = self.snapshot.native.actions()
        opening = [names.index(name) for name in _OPENING if name in names]
        actions = np.asarray(self.timeline.events.codes("action"))
        seen = np.ones(len(self.states), bool)
        seen[1:-1] = ~np.isin(actions[:-1], opening)
        return seen

    def settled_state(self, state: int) -> int:
        """The first settled state that is not before `state`."""
        return state + int(np.argmax(self.settled[state:]))

    def peak(self, series: Any) -> tuple[int, int]:
        """The view's first state with the series' largest value, and the value."""
        first, end = self.shown_states
        state = first + int(np.argmax(series[first:end]))
        return state, int(series[state])

    @cached_property
    def ooms(self) -> list[Oom]:
        """The moments in the view at which memory ran out."""
        events = self.timeline.events
        names = self.snapshot.native.actions()
        code = names.index("oom") if "oom" in names else -1
        found = np.flatnonzero(np.asarray(events.codes("action")) == code)
        first, end = self.shown_states
        sizes, free = events["size"], events["device_free"]
        return [
            Oom(int(event) + 1, int(sizes[event]), int(free[event]))
            for event in found
            if first <= event + 1 < end
        ]

    def segment_lives(self) -> list[tuple[int, int, int, int, tuple[int, int, int]]]:
        """The segments that are drawn: positions first and end, states first and end, and
        the stream with the two numbers of the pool."""
        table = self.timeline.segments
        count = len(self.states)
        rows = []
        for address, size, stream, one, two, begin, end in zip(
            table["address"],
            table["size"],
            table["stream"],
            table["pool_first"],
            table["pool_second"],
            table["alloc_event"],
            table["free_event"],
            strict=True,
        ):
            if self.passes(stream, (one, two)):
                low = self.position(address)
                life = (begin + 1, count if end == -1 else end + 1)
                rows.append((low, low + size, *life, (stream, one, two)))
        return rows

    def passes(self, stream: int, pool: tuple[int, int]) -> bool:
        """A segment of this stream and pool is drawn."""
        request = self.request
        return request.stream in (None, stream) and request.pool in (None, pool)


def _numbered(timeline: Timeline) -> dict[int, int]:
    """The raw streams that segments were of, with their numbers."""
    others = dict.fromkeys(stream for stream in timeline.segments.codes("stream") if stream)
    return {0: 0, **{stream: number for number, stream in enumerate(others, 1)}}


def _checked(request: Request) -> Request:
    """The request, with what it says of parts as numbers.

    Raises:
        TypeError: Something is not a number, or not a pair of them.
        ValueError: There can be no such stream or pool.
    """
    stream, pool = request.stream, request.pool
    times = request.time_range
    if stream is not None:
        stream = whole_number("stream", stream, least=0)
    if pool is not None:
        pool = number_pair("pool", pool, whole=True)
    for one in (stream or 0, *(pool or ())):
        if not 0 <= one < 1 << 64:
            raise ValueError(f"there is no stream or pool {one}: its number must be 0 to 2**64 - 1")
    return replace(
        request,
        stream=stream,
        pool=pool,
        time_range=None if times is None else number_pair("time_range", times),
    )


def _addresses(timeline: Timeline, given: Any) -> tuple[int, int]:
    """A range of addresses: two of them, as numbers or texts, or one block by its name.

    Raises:
        ValueError: The trace has no such block, or a text is no address.
        TypeError: It is no pair of addresses.
    """
    if not isinstance(given, str):
        if isinstance(given, (tuple, list)):
            given = tuple(int_address(one) if isinstance(one, str) else one for one in given)
        first, end = number_pair("address_range", given, whole=True)
        return first, end
    blocks = timeline.named(given)
    if not len(blocks):
        raise ValueError(f"the trace has no block {given}")
    # All of them begin at one address.
    first = int(blocks.codes("address")[0])
    return first, first + max(map(int, blocks.codes("size")))


def _has_times(timeline: Timeline) -> bool:
    times = timeline.time_us
    return len(times) > 0 and times[-1] > 0 and any(time != times[0] for time in times)
