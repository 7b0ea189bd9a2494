# SPDX-License-Identifier: Apache-2.0
"""Calls to `empty_cache()` and the lines that made them, noted while a recording runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from neutracer._native import core

# ---- Call places -------------------------------------------------------------------------

# Where in a trace something was that has no event in it, by what the allocator had served.

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


# ---- Cache calls -------------------------------------------------------------------------

# The calls of empty_cache() that a program makes while it is recorded.
#
# One that finds nothing to give back leaves no trace, and under other settings it may have found
# something. So each is noted with the allocator's own counts of what it served before: requests,
# frees, and requests that failed. Each of these is one event of a trace, whoever records it, and
# counting them from the end tells after which event the call came, whatever a ring has lost.

_LOGGER = logging.getLogger("neutracer")

# What torch.cuda.empty_cache() and torch.accelerator.empty_cache() call: whoever has got hold of
# one of these has it noted, and they stay what they are.
_FUNCTIONS = ("_cuda_emptyCache", "_accelerator_emptyCache")

# Calls kept for each device: as many as one for every 48 of the events that the hooks keep
# (HOOK_ENTRIES of process/hooks/long_history.py).
_MOST_CALLS = 1 << 14

# Where they are among allocator_settings: by the device's number, the events of its trace.
KEY = "trace_empty_cache_calls"


class _Device:
    """The calls on one device."""

    def __init__(self, now: Counts | None) -> None:
        # All calls behind this one are noted; None: nothing is known.
        self.since = now
        self.last = now
        self.calls: deque[tuple[Counts, int]] = deque()

    def note(self, before: Counts | None, after: Counts | None, time_us: int) -> None:
        """A call, and the counts around it."""
        last = self.last
        went_on = before is not None and last is not None and before.waits == last.waits
        if not went_on or any(a > b for a, b in zip(last or (), before or (), strict=False)):
            # Somebody else has called it, or has set the counts back.
            self._forget(before)
        if before is None or after is None or before.events != after.events:
            # Another thread came in between.
            self._forget(after)
        elif after.waits > before.waits:
            self.calls.append((before, time_us))
            if len(self.calls) > _MOST_CALLS:
                self.since = self.calls.popleft()[0]
        self.last = after

    def _forget(self, since: Counts | None) -> None:
        self.calls.clear()
        self.since = since


class CacheCalls:
    """Notes the calls of empty_cache() for as long as anybody records."""

    def __init__(self) -> None:
        # A signal's handler may call it while a call is noted.
        self._lock = threading.RLock()
        self._wanted: list[object] = []
        self._torch: Any = None
        self._devices: dict[int, _Device] = {}
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def begin(self, torch: Any, key: object) -> None:
        """Note calls until `end` is called with the same key; before the recording begins.

        Where this torch can't be asked what has to be known, nothing is noted.
        """
        with self._lock:
            if any(one is key for one in self._wanted):
                return
            self._wanted.append(key)
            if len(self._wanted) == 1:
                self._torch = torch
                try:
                    self._replace(torch)
                except Exception:
                    _LOGGER.debug("calls of empty_cache() can't be noted", exc_info=True)
                    self._put_back()

    def end(self, key: object) -> None:
        """Note no more for whoever gave this key; fine where it did not."""
        with self._lock:
            if any(one is key for one in self._wanted):
                self._wanted = [one for one in self._wanted if one is not key]
                if not self._wanted:
                    self._put_back()

    def forget(self) -> None:
        """Start anew in the child of a fork, which has no CUDA."""
        self._lock = threading.RLock()
        self._wanted = []
        self._put_back()

    def _replace(self, torch: Any) -> None:
        for device, now in self._counts().items():
            self._devices[device] = _Device(now)
        for name in _FUNCTIONS:
            function = getattr(torch._C, name, None)
            if function is not None:
                noting = core.Around(function, self._before, self._after)
                setattr(torch._C, name, noting)
                self._replaced[name] = (noting, function)

    def _put_back(self) -> None:
        for name, (noting, function) in self._replaced.items():
            # What somebody else has put around it since, goes on calling it.
            if vars(self._torch._C).get(name) is noting:
                setattr(self._torch._C, name, function)
        self._replaced = {}
        self._devices = {}
        self._torch = None

    def _before(self) -> tuple[dict[int, Counts | None], int] | None:
        """What `_after` is given: the counts, and the time."""
        if not self._wanted:
            return None
        return self._counts(), time.time_ns() // 1000

    def _after(self, begun: tuple[dict[int, Counts | None], int] | None) -> None:
        if begun is None:
            # Nothing is known of a call that was not noted.
            with self._lock:
                self._devices = {device: _Device(None) for device in self._devices}
            return
        before, time_us = begun
        with self._lock:
            for device, after in self._counts().items():
                known = self._devices.setdefault(device, _Device(UNUSED))
                known.note(before.get(device, UNUSED), after, time_us)

    def _counts(self) -> dict[int, Counts | None]:
        """The counts of the devices; None where this torch does not tell.

        Also of those without a context: a call has made their allocators wait all the same.
        """
        torch = self._torch
        if torch is None or not torch.cuda.is_initialized():
            return {}
        return {device: _counts_of(torch, device) for device in range(torch.cuda.device_count())}

    def now(self) -> dict[int, Counts | None]:
        """What `noted` is to be given: to be asked for before a trace is taken."""
        try:
            return self._counts() if self._wanted else {}
        except Exception:
            _LOGGER.debug("the allocator's counts could not be read", exc_info=True)
            return {}

    def noted(
        self, before: Mapping[int, Counts | None], traces: Mapping[int, Callable[[], Trace]]
    ) -> dict[int, array[int]]:
        """By device, the events of the traces after which there was a call.

        A device is there if all calls since its trace begins were noted. Where it was at work
        while its trace was taken, nobody can say, and it is not.

        Args:
            before: `now()`, from before the traces were taken.
            traces: The traces, by device.
        """
        try:
            return self._noted(before, traces) if before else {}
        except Exception:
            # What a later torch may write or tell: the snapshot is worth more than the notes.
            _LOGGER.debug("calls of empty_cache() could not be noted", exc_info=True)
            return {}

    def _noted(
        self, before: Mapping[int, Counts | None], traces: Mapping[int, Callable[[], Trace]]
    ) -> dict[int, array[int]]:
        after = self.now()
        found = {}
        for device, trace in traces.items():
            counts = after.get(device)
            if counts is None or before.get(device) != counts:
                continue
            with self._lock:
                # One that is not there is in use since, and there was no call.
                known = self._devices.get(device, _Device(UNUSED))
                since, last, calls = known.since, known.last, tuple(known.calls)
            if since is None or last is None or last.waits != counts.waits:
                continue
            events = places(trace(), counts, since, calls)
            if events is not None:
                found[device] = events
        return found


def _counts_of(torch: Any, device: int) -> Counts | None:
    try:
        stats = torch._C._cuda_memoryStats(device)
        served = stats["allocation"]["all"]
        waits = stats["num_sync_all_streams"] - stats["num_alloc_retries"]
        return Counts(served["allocated"], served["freed"], stats["num_ooms"], waits)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return None


def note_in_dump(plain: Any, before: Mapping[int, Counts | None]) -> None:
    """Note the calls in PyTorch's own dump, which was taken since `before`."""
    settings = plain.get("allocator_settings") if before and isinstance(plain, dict) else None
    traces = plain.get("device_traces") if isinstance(settings, dict) else None
    if isinstance(settings, dict) and isinstance(traces, (list, tuple)):
        by_device = {device: partial(dumped_trace, events) for device, events in enumerate(traces)}
        calls = CACHE_CALLS.noted(before, by_device)
        if calls:
            settings[KEY] = {str(device): list(events) for device, events in calls.items()}


def note_in_snapshot(native: core.Snapshot, before: Mapping[int, Counts | None]) -> None:
    """Note the calls in a snapshot that the core has just made of its own traces."""
    if before:
        for device, events in CACHE_CALLS.noted(before, native_traces(native)).items():
            native.note_calls(device, events)


CACHE_CALLS = CacheCalls()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CACHE_CALLS.forget)
