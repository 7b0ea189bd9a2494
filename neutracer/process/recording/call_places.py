# SPDX-License-Identifier: Apache-2.0
"""Where in a trace something was that has no event in it, by what the allocator had served."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from neutracer._native import core

__all__ = ["UNUSED", "Counts", "Trace", "dumped_trace", "native_traces", "places"]

# How far the clock of a trace and Python's may be apart.
_CLOCKS_US = 100_000

# The marks of events, a byte each, and of which actions; the first three are counted in `Counts`.
_NONE, _ALLOC, _FREE, _OOM, _COMPLETED = range(5)
_MARKS = {"alloc": _ALLOC, "free_requested": _FREE, "oom": _OOM, "free_completed": _COMPLETED}
_COUNTED = (_ALLOC, _FREE, _OOM)
_IS_COUNTED = bytes(mark in _COUNTED for mark in range(256))


class Counts(NamedTuple):
    """What a device's allocator has served so far, and how often it was told to wait.

    Attributes:
        allocs: Requests that went through.
        frees: Frees that were asked for.
        ooms: Requests that failed.
        waits: Calls that made it wait for all streams, other than requests short of memory.
    """

    allocs: int
    frees: int
    ooms: int
    waits: int

    @property
    def events(self) -> tuple[int, int, int]:
        """What a trace has an event of."""
        return self.allocs, self.frees, self.ooms


#: Those of a device that the process has not used.
UNUSED = Counts(0, 0, 0, 0)


class Trace(NamedTuple):
    """What is asked of a device's trace.

    Attributes:
        marks: A byte an event: 1 alloc, 2 free_requested, 3 oom, 4 free_completed, else 0.
        address: Of event i.
        time_us: Of event i, since the epoch; 0 where it has none.
    """

    marks: bytes
    address: Callable[[int], int]
    time_us: Callable[[int], int]


def places(
    trace: Trace, end: Counts, since: Counts, calls: Sequence[tuple[Counts, int]]
) -> array[int] | None:
    """The events of a trace after which there was a call; None where that can't be said.

    Args:
        trace: The trace.
        end: The counts at its end.
        since: All calls from here on are in `calls`.
        calls: The counts at each, and when it was in microseconds since the epoch.

    Example:
        >>> trace = Trace(bytes([1, 1, 2, 4]), lambda i: 0, lambda i: 0)
        >>> list(places(trace, Counts(9, 3, 0, 2), Counts(7, 0, 0, 0), [(Counts(8, 2, 0, 1), 0)]))
        [0]
    """
    in_trace = tuple(trace.marks.count(mark) for mark in _COUNTED)
    begin = tuple(a - b for a, b in zip(end.events, in_trace, strict=True))
    if any(a < b for a, b in zip(begin, since.events, strict=True)):
        return None
    found, counted = array("i"), _Counted(trace.marks)
    for counts, time_us in calls:
        behind = tuple(a - b for a, b in zip(counts.events, begin, strict=True))
        if max(behind) <= 0:
            # Before the first event, whose state is known.
            continue
        event = counted.last_of(behind)
        if event is None:
            return None
        event = _completed(trace, event)
        if not _is_then(trace, event, time_us):
            return None
        if not found or event > found[-1]:
            found.append(event)
    return found


class _Counted:
    """The events of a trace that are counted."""

    def __init__(self, marks: bytes) -> None:
        self._marks = marks
        self._events: array[int] | None = None
        # How many of each there are among the first so many.
        self._passed, self._so_far = 0, [0, 0, 0]

    def last_of(self, counts: tuple[int, ...]) -> int | None:
        """The last of the first so many of each; None where others come first."""
        if self._events is None:
            is_counted = self._marks.translate(_IS_COUNTED)
            self._events = array("i", compress(range(len(self._marks)), is_counted))
        number = sum(counts)
        if min(counts) < 0 or number > len(self._events):
            return None
        event = self._events[number - 1]
        if event + 1 < self._passed:
            self._passed, self._so_far = 0, [0, 0, 0]
        more = (self._marks.count(mark, self._passed, event + 1) for mark in _COUNTED)
        self._so_far = [a + b for a, b in zip(self._so_far, more, strict=True)]
        self._passed = event + 1
        return event if tuple(self._so_far) == counts else None


def _completed(trace: Trace, event: int) -> int:
    """The event, or the next one, which completes the free that it asks for."""
    follows = trace.marks[event : event + 2] == bytes([_FREE, _COMPLETED])
    return event + 1 if follows and trace.address(event) == trace.address(event + 1) else event


def _is_then(trace: Trace, event: int, time_us: int) -> bool:
    """Whether a call at that time may have come between this event and the next."""
    after, is_last = trace.time_us(event), event + 1 == len(trace.marks)
    before = 0 if is_last else trace.time_us(event + 1)
    return (after == 0 or after <= time_us + _CLOCKS_US) and (
        before == 0 or before >= time_us - _CLOCKS_US
    )


def dumped_trace(events: Sequence[Mapping[str, Any]]) -> Trace:
    """A device's trace as PyTorch's own dump has it."""
    return Trace(
        bytes([_MARKS.get(event["action"], _NONE) for event in events]),
        lambda i: int(events[i].get("addr", 0)),
        lambda i: int(events[i].get("time_us", 0)),
    )


def native_traces(native: core.Snapshot) -> dict[int, Callable[[], Trace]]:
    """By device, what gives its trace in a snapshot of the core."""
    marks = bytes(_MARKS.get(name, _NONE) for name in native.actions()).ljust(256, b"\0")
    columns = native.tables()["events"]

    def trace(first: int, count: int) -> Trace:
        address, times = memoryview(columns["addr"]), memoryview(columns["time_us"])
        actions = bytes(memoryview(columns["action"])[first : first + count])
        return Trace(
            actions.translate(marks),
            lambda i: int(address[first + i]),
            lambda i: int(times[first + i]),
        )

    return {device: partial(trace, *rows) for device, rows in enumerate(native.traces())}
