# SPDX-License-Identifier: Apache-2.0
"""The calls of empty_cache() that a program makes while it is recorded.

One that finds nothing to give back leaves no trace, and under other settings it may have found
something. So each is noted with the allocator's own counts of what it served before: requests,
frees, and requests that failed. Each of these is one event of a trace, whoever records it, and
counting them from the end tells after which event the call came, whatever a ring has lost.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from neutracer._native import core
from neutracer.process.recording.call_places import (
    UNUSED,
    Counts,
    Trace,
    dumped_trace,
    native_traces,
    places,
)

__all__ = ["CACHE_CALLS", "KEY", "CacheCalls", "note_in_dump", "note_in_snapshot"]

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
