# SPDX-License-Identifier: Apache-2.0
"""Phases of a program, with the peak and the end of each."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from neutracer.arguments import text
from neutracer.pickling import StaysHere
from neutracer.process.phases import counters
from neutracer.process.phases.running import RUNNING
from neutracer.units import format_bytes

__all__ = ["Phase", "phase"]


def phase(name: str) -> Phase:
    """Measure a part of the program: what it allocates at its peak, and what it leaves.

    Phases may be nested. Peaks are those of PyTorch's own counters, which are reset when a
    phase begins or ends: `torch.cuda.max_memory_allocated()` is then the peak since that
    moment. A report of an out-of-memory error names the phases that were open.

    Args:
        name: What the program does: "rollout".

    Returns:
        The phase, for a with statement; its figures are there when it has ended.

    Raises:
        TypeError: The name is no text.

    Example:
        >>> import neutracer
        >>> with neutracer.phase("rollout") as rollout:
        ...     pass    # generate
        >>> rollout
        <Phase rollout: no CUDA device in use>
    """
    return Phase(text("name", name))


class Phase(StaysHere, instead="it measures this process: send its .peak_bytes"):
    """What `phase` returns.

    Attributes:
        name: Its name.
        device: The CUDA device that was current when it began, or at the first boundary at which
            CUDA was in use; None where it was not in use when it ended.
        start_bytes: Allocated there when it began; 0 before CUDA was in use.
        peak_bytes: The most that was allocated, until now or until its end.
        reserved_peak_bytes: The most that was reserved.
        end_bytes: Allocated at its end.
        seconds: How long it took; kernels that are still running do not count.
    """

    def __init__(self, name: str) -> None:
        """Made by `phase`; not by users."""
        self.name = name
        self.device: int | None = None
        self.start_bytes = self.peak_bytes = self.reserved_peak_bytes = self.end_bytes = 0
        self.seconds = 0.0
        self._began = 0.0

    @property
    def left_bytes(self) -> int:
        """What more was allocated at its end than at its beginning; may be negative."""
        return self.end_bytes - self.start_bytes

    def __enter__(self) -> Phase:
        self._began = time.perf_counter()
        self.peak_bytes = self.reserved_peak_bytes = 0
        with _lock:
            now = _fold()
            if now is not None:
                self.device, self.start_bytes = now.device, now.allocated
                self.peak_bytes, self.reserved_peak_bytes = now.allocated, now.reserved
            _open.append(self)
            RUNNING.phases.append(self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        with _lock:
            if self not in _open:
                return
            now = _fold()
            if now is not None and self.device not in (None, now.device):
                # Another device has become the current one meanwhile.
                now = counters.read(self.device)
            if now is not None:
                self.device, self.end_bytes = now.device, now.allocated
            place = _open.index(self)
            del _open[place], RUNNING.phases[place]

    def __repr__(self) -> str:
        if self.device is None:
            return f"<Phase {self.name}: no CUDA device in use>"
        figures = f"{format_bytes(self.peak_bytes)} at its peak"
        return f"<Phase {self.name}: {figures}, {format_bytes(self.end_bytes)} at its end>"


_lock = threading.RLock()
_open: list[Phase] = []


def _fold() -> counters.Counters | None:
    """Give the peak since the last boundary to all phases that are open, and begin a new one:
    on the current device and on theirs. Returns the current device's counters."""
    now = counters.read()
    if now is None:
        return None
    for one in _open:
        if one.device is None:
            one.device = now.device
    others = {one.device for one in _open} - {now.device}
    for seen in (now, *map(counters.read, others)):
        if seen is None:
            continue
        for one in _open:
            if one.device == seen.device:
                one.peak_bytes = max(one.peak_bytes, seen.allocated_peak)
                one.reserved_peak_bytes = max(one.reserved_peak_bytes, seen.reserved_peak)
        counters.reset_peak(seen)
    return now
