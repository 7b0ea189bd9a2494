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

# Calls without an event are located in a trace by the allocator's counters at the time.

# The largest difference between the trace's clock and Python's.
_CLOCKS_US = 100_000

# One mark byte per event, by action; the first three are counted in `Counts`.
_NONE, _ALLOC, _FREE, _OOM, _COMPLETED = range(5)
_MARKS = {"alloc": _ALLOC, "free_requested": _FREE, "oom": _OOM, "free_completed": _COMPLETED}
_COUNTED = (_ALLOC, _FREE, _OOM)
_IS_COUNTED = bytes(mark in _COUNTED for mark in range(256))


class Counts(NamedTuple):
    """Counters of a device's allocator."""

    allocs: int
    frees: int
    ooms: int
    waits: int  # Synchronizations of all streams, other than for retried requests.

    @property
    def events(self) -> tuple[int, int, int]:
        """The counters of actions that are events of a trace."""
        return self.allocs, self.frees, self.ooms


#: The counters of an unused device.
UNUSED = Counts(0, 0, 0, 0)


class Trace(NamedTuple):
    """A device's trace."""

    marks: bytes  # One byte per event: 1 alloc, 2 free_requested, 3 oom, 4 free_completed, else 0.
    address: Callable[[int], int]
    time_us: Callable[[int], int]  # The time of event i since the epoch; 0 if unknown.


def places(
    trace: Trace, end: Counts, since: Counts, calls: Sequence[tuple[Counts, int]]
) -> array[int] | None:
    """The events of a trace that precede a call; None if they can't be determined.

    Args:
        since: The counts from which on `calls` is complete.
        calls: The counts and the time (microseconds since the epoch) of each call.
    """
    in_trace = tuple(trace.marks.count(mark) for mark in _COUNTED)
    begin = tuple(a - b for a, b in zip(end.events, in_trace, strict=True))
    if any(a < b for a, b in zip(begin, since.events, strict=True)):
        return None
    found, counted = array("i"), _Counted(trace.marks)
    for counts, time_us in calls:
        behind = tuple(a - b for a, b in zip(counts.events, begin, strict=True))
        if max(behind) <= 0:
            # Before the trace.
            continue
        event = counted.last_of(behind)
        if event is None:
            return None
        event = _completed(trace, event)
        # The call's time has to fit between this event and the next.
        after, is_last = trace.time_us(event), event + 1 == len(trace.marks)
        before = 0 if is_last else trace.time_us(event + 1)
        if (after and after > time_us + _CLOCKS_US) or (before and before < time_us - _CLOCKS_US):
            return None
        if not found or event > found[-1]:
            found.append(event)
    return found


def times_between(trace: Trace, end: Counts, calls: Sequence[tuple[Counts, int]]) -> list[int]:
    """The time of each call, moved between the events that it was made between.

    It comes after the event before, and not after the next one. Calls that can't be located keep
    their times.

    Args:
        calls: The counts and the time (microseconds since the epoch) of each call.

    Example:
        >>> trace = Trace(bytes([1, 1, 2]), lambda i: 0, lambda i: 100 + 10 * i)
        >>> times_between(trace, Counts(2, 1, 0, 0), [(Counts(1, 0, 0, 0), 125)])
        [110]
    """
    in_trace = tuple(trace.marks.count(mark) for mark in _COUNTED)
    begin = tuple(a - b for a, b in zip(end.events, in_trace, strict=True))
    counted, last, found = _Counted(trace.marks), len(trace.marks) - 1, []
    for counts, time_us in calls:
        behind = tuple(a - b for a, b in zip(counts.events, begin, strict=True))
        if max(behind) <= 0:
            found.append(min(time_us, trace.time_us(0)))
            continue
        event = counted.last_of(behind)
        if event is not None:
            event = _completed(trace, event)
            time_us = max(time_us, trace.time_us(event) + 1)
            if event < last:
                time_us = min(time_us, trace.time_us(event + 1))
        found.append(time_us)
    return found


class _Counted:
    def __init__(self, marks: bytes) -> None:
        self._marks = marks
        self._events: array[int] | None = None
        # Counts by mark among the first `_passed` events.
        self._passed, self._so_far = 0, [0, 0, 0]

    def last_of(self, counts: tuple[int, ...]) -> int | None:
        """The event at which the counts are exactly these; None if they never are."""
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
    follows = trace.marks[event : event + 2] == bytes([_FREE, _COMPLETED])
    return event + 1 if follows and trace.address(event) == trace.address(event + 1) else event


def dumped_trace(events: Sequence[Mapping[str, Any]]) -> Trace:
    """A device's trace in PyTorch's own dump."""
    return Trace(
        bytes([_MARKS.get(event["action"], _NONE) for event in events]),
        lambda i: int(events[i].get("addr", 0)),
        lambda i: int(events[i].get("time_us", 0)),
    )


def native_traces(native: core.Snapshot) -> dict[int, Callable[[], Trace]]:
    """By device, a function that reads its trace from a snapshot of the core."""
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

# An empty_cache() that frees nothing leaves no event, but might free memory under other settings.
# Each call is noted with the allocator's counters. Each counted action is one event of a trace, so
# counting from its end locates the call, whatever the ring has lost.

_LOGGER = logging.getLogger("neutracer")

# The functions behind torch.cuda.empty_cache() and torch.accelerator.empty_cache(), which are
# wrapped in place so that kept references to the public functions are noted too.
_FUNCTIONS = ("_cuda_emptyCache", "_accelerator_emptyCache")

# Calls kept per device, about one per 48 events of the hooks (`recording.long_history`).
_MOST_CALLS = 1 << 14

# The key in allocator_settings: events by device number.
KEY = "trace_empty_cache_calls"


class _Device:
    def __init__(self, now: Counts | None) -> None:
        # Counts from which on all calls are noted; None if unknown.
        self.since = now
        self.last = now
        self.calls: deque[tuple[Counts, int]] = deque()

    def note(self, before: Counts | None, after: Counts | None, time_us: int) -> None:
        """Note a call with the counts around it."""
        last = self.last
        went_on = before is not None and last is not None and before.waits == last.waits
        if not went_on or any(a > b for a, b in zip(last or (), before or (), strict=False)):
            # An unnoted call, or reset counters.
            self._forget(before)
        if before is None or after is None or before.events != after.events:
            # Another thread interfered.
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
    """Notes the calls of empty_cache() while a recording is on."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may call empty_cache() during a note.
        self._lock = threading.RLock()
        self._wanted: list[object] = []
        self._torch: Any = None
        self._devices: dict[int, _Device] = {}
        self._replaced: dict[str, tuple[Any, Any]] = {}

    def begin(self, torch: Any, key: object) -> None:
        """Note calls until `end` with the same key; call it before the recording begins.

        Without the counters, in another torch, nothing is noted.
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
        """Stop recording for `key`; a no-op if it never started."""
        with self._lock:
            if any(one is key for one in self._wanted):
                self._wanted = [one for one in self._wanted if one is not key]
                if not self._wanted:
                    self._put_back()

    def forget(self) -> None:
        """Reset in a forked child, which has no CUDA."""
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
            # A later wrapper of the program's keeps calling ours.
            if vars(self._torch._C).get(name) is noting:
                setattr(self._torch._C, name, function)
        self._replaced = {}
        self._devices = {}
        self._torch = None

    def _before(self) -> tuple[dict[int, Counts | None], int] | None:
        """The argument of `_after`: the counts, and the time."""
        if not self._wanted:
            return None
        return self._counts(), time.time_ns() // 1000

    def _after(self, begun: tuple[dict[int, Counts | None], int] | None) -> None:
        if begun is None:
            # The call began unnoted.
            with self._lock:
                self._devices = {device: _Device(None) for device in self._devices}
            return
        before, time_us = begun
        with self._lock:
            for device, after in self._counts().items():
                known = self._devices.setdefault(device, _Device(UNUSED))
                known.note(before.get(device, UNUSED), after, time_us)

    def _counts(self) -> dict[int, Counts | None]:
        """The counts of all devices, with or without a context; None where unknown."""
        torch = self._torch
        if torch is None or not torch.cuda.is_initialized():
            return {}
        return {device: _counts_of(torch, device) for device in range(torch.cuda.device_count())}

    def now(self) -> dict[int, Counts | None]:
        """The counts to pass to `noted`; call it before a trace is taken."""
        try:
            return self._counts() if self._wanted else {}
        except Exception:
            _LOGGER.debug("the allocator's counts could not be read", exc_info=True)
            return {}

    def noted(
        self, before: Mapping[int, Counts | None], traces: Mapping[int, Callable[[], Trace]]
    ) -> dict[int, array[int]]:
        """By device, the events of its trace that precede a call.

        Devices are left out unless all calls since the beginning of the trace were noted and
        the device was idle while the trace was taken.
        """
        found: dict[int, array[int]] = {}
        try:
            after = self.now() if before else {}
            for device, trace in traces.items():
                counts = after.get(device)
                if counts is None or before.get(device) != counts:
                    continue
                with self._lock:
                    # A device that is missing here has had no call since its first use.
                    known = self._devices.get(device, _Device(UNUSED))
                    since, last, calls = known.since, known.last, tuple(known.calls)
                if since is None or last is None or last.waits != counts.waits:
                    continue
                events = places(trace(), counts, since, calls)
                if events is not None:
                    found[device] = events
        except Exception:
            # A later torch may differ; never lose the snapshot over the notes.
            _LOGGER.debug("calls of empty_cache() could not be noted", exc_info=True)
            return {}
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
    """Note the calls in PyTorch's own dump, taken after `before`."""
    settings = plain.get("allocator_settings") if before and isinstance(plain, dict) else None
    traces = plain.get("device_traces") if isinstance(settings, dict) else None
    if isinstance(settings, dict) and isinstance(traces, (list, tuple)):
        by_device = {device: partial(dumped_trace, events) for device, events in enumerate(traces)}
        calls = CACHE_CALLS.noted(before, by_device)
        if calls:
            settings[KEY] = {str(device): list(events) for device, events in calls.items()}


def note_in_snapshot(native: core.Snapshot, before: Mapping[int, Counts | None]) -> None:
    """Note the calls in a snapshot just made by the core."""
    if before:
        for device, events in CACHE_CALLS.noted(before, native_traces(native)).items():
            native.note_calls(device, events)


CACHE_CALLS = CacheCalls()
os.register_at_fork(after_in_child=CACHE_CALLS.forget)
