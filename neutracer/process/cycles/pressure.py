# SPDX-License-Identifier: Apache-2.0
"""Collects garbage when a device runs short of memory that garbage holds.

Python's collector counts objects, not device memory: a few dead tensors of a gigabyte each
don't wake it. A thread looks at the device's use a few times a second, which costs
microseconds. When the use passes a bound, it walks the heap for garbage; when there is
enough of it, it runs a collection, in the main thread between two bytecodes.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import number, whole_number
from neutracer.heap.cycles import device_filter
from neutracer.pickling import StaysHere
from neutracer.process.cycles.watch import prepare_heap
from neutracer.process.recording.capture import without_cuda
from neutracer.render.row import PlainRow
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["PressureCollection", "PressureCollector", "collect_on_pressure"]

_LOGGER = logging.getLogger("neutracer")

# After a walk that found little, the next waits at least so long; each such wait doubles.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0

# Walking takes at most this share of the time.
_MOST_SHARE = 0.01


@dataclass(frozen=True)
class PressureCollection(PlainRow):
    """One collection that was run because of pressure.

    Attributes:
        used_share: The device's use at the decision, of 1.0.
        garbage_bytes: Tensor bytes that were found to be garbage.
        freed_bytes: By how much the allocated bytes of the device fell.
        duration_us: How long the collection took.
    """

    used_share: float
    garbage_bytes: int
    freed_bytes: int
    duration_us: int

    def __str__(self) -> str:
        return (
            f"collected at {format_share(self.used_share)} of the device: "
            f"{format_bytes(self.freed_bytes)} freed of {format_bytes(self.garbage_bytes)} "
            f"that garbage held, in {self.duration_us / 1000:,.1f} ms"
        )


@dataclass(frozen=True)
class _Use:
    """A device's memory: what is in use and not available, what tensors hold, and all of
    it."""

    used_bytes: int
    allocated_bytes: int
    total_bytes: int

    @property
    def share(self) -> float:
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


def collect_on_pressure(
    fraction: float = 0.9,
    min_garbage: int = 64 << 20,
    *,
    max_garbage: int | None = None,
    device: object = None,
    interval: float = 0.1,
    callback: Callable[[PressureCollection], object] | None = None,
) -> PressureCollector:
    """Run Python's collector when a device runs short of memory that garbage holds.

    Args:
        fraction: The device's use, of 1.0, from which it looks for garbage. What the
            caching allocator holds unused counts as free.
        min_garbage: Bytes: with less garbage than this nothing is collected.
        max_garbage: Bytes of garbage that it collects even while the device has room; None
            does not look for garbage before the device is short.
        device: The CUDA device as torch names it; None is the current one.
        interval: Seconds between two looks at the device's use.
        callback: Called with each `PressureCollection`, in the main thread.

    Returns:
        The handle: `remove()` ends it, and so does leaving it as a context manager;
        `collections` has what was done.

    Raises:
        UnavailableError: torch is not imported, has no initialised CUDA device, or the
            memory layout of this Python is not known.
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> handle = neutracer.collect_on_pressure(0.85)    # doctest: +SKIP
        >>> handle.remove()                                 # doctest: +SKIP
    """
    if not 0.0 < number("fraction", fraction, "a share of 1.0") <= 1.0:
        raise ValueError(f"fraction is {fraction}: it must be above 0 and at most 1")
    min_garbage = whole_number("min_garbage", min_garbage, "a number of bytes")
    if max_garbage is not None:
        max_garbage = whole_number("max_garbage", max_garbage, "a number of bytes")
    if min_garbage < 0 or (max_garbage is not None and max_garbage < 0):
        raise ValueError("min_garbage and max_garbage can't be negative")
    if not 0 < number("interval", interval, "a number of seconds") < threading.TIMEOUT_MAX:
        raise ValueError(f"interval is {interval}: it must be seconds, above 0")
    called_back("callback", callback, "collection")
    prepare_heap()
    measure = _CudaDevice(device)
    index = measure.index
    collector = PressureCollector(
        measure.use, f"cuda:{index}", fraction, min_garbage, max_garbage, interval, callback
    )
    collector._start()
    return collector


class _CudaDevice:
    """Measures one CUDA device without touching others."""

    def __init__(self, device: object) -> None:
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            raise without_cuda(torch)
        chosen = torch.device("cuda" if device is None else device)
        if chosen.type != "cuda":
            raise ValueError(f"device is {chosen}: it must be a CUDA device")
        self._cuda = torch.cuda
        self.index: int = torch.cuda.current_device() if chosen.index is None else chosen.index

    def use(self) -> _Use:
        free, total = self._cuda.mem_get_info(self.index)
        allocated = self._cuda.memory_allocated(self.index)
        cached = self._cuda.memory_reserved(self.index) - allocated
        return _Use(total - free - cached, allocated, total)


class PressureCollector(StaysHere, instead="it watches this process: send its .collections"):
    """The handle that `collect_on_pressure` returns."""

    def __init__(
        self,
        measure: Callable[[], _Use],
        device: str,
        fraction: float,
        min_garbage: int,
        max_garbage: int | None,
        interval: float,
        callback: Callable[[PressureCollection], object] | None,
    ) -> None:
        self._measure = measure
        self._filter = device_filter(device)
        self._fraction = fraction
        self._min_garbage = min_garbage
        self._max_garbage = max_garbage
        self._interval = interval
        self._callback = callback
        self._ended = threading.Event()
        self._pending = False
        self._wait_s = _FIRST_WAIT_S
        self._next_walk = 0.0
        self._collections: list[PressureCollection] = []
        self._thread = threading.Thread(target=self._run, name="neutracer-pressure", daemon=True)

    def _start(self) -> None:
        self._thread.start()

    def remove(self) -> None:
        """End it; a second time does nothing."""
        self._ended.set()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> PressureCollector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @property
    def collections(self) -> tuple[PressureCollection, ...]:
        """The collections that were run, in order."""
        return tuple(self._collections)

    def __repr__(self) -> str:
        state = "removed" if self._ended.is_set() else "on"
        return f"<PressureCollector: {state}, {format_count(len(self._collections), 'collection')}>"

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            if self._pending:
                continue
            if not self._due():
                self._wait_s = _FIRST_WAIT_S
                self._next_walk = 0.0
            elif time.monotonic() >= self._next_walk:
                self._pending = True
                self._pending = core.call_at_safe_point(self._collect)

    def _due(self) -> bool:
        return self._max_garbage is not None or self._measure().share >= self._fraction

    # In the main thread, between two bytecodes.
    def _collect(self) -> None:
        try:
            if not self._ended.is_set():
                self._collect_if_worth_it()
        finally:
            self._pending = False

    def _collect_if_worth_it(self) -> None:
        begin = time.monotonic()
        found = core.find_cycles(*self._filter, 0, 0, False)["garbage"]
        garbage = 0 if found is None else found["bytes"] + found["loose_bytes"]
        walked = time.monotonic() - begin
        before = self._measure()
        short = before.share >= self._fraction and garbage >= max(self._min_garbage, 1)
        full = self._max_garbage is not None and garbage >= self._max_garbage
        if not (short or full):
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
        else:
            self._wait_s = _FIRST_WAIT_S
            self._run_collector(before, garbage)
        self._next_walk = time.monotonic() + max(self._wait_s, walked / _MOST_SHARE)

    def _run_collector(self, before: _Use, garbage: int) -> None:
        begin = time.monotonic()
        gc.collect()
        done = PressureCollection(
            before.share,
            garbage,
            before.allocated_bytes - self._measure().allocated_bytes,
            round((time.monotonic() - begin) * 1e6),
        )
        self._collections.append(done)
        _LOGGER.info("%s", done)
        if self._callback is not None:
            self._callback(done)
