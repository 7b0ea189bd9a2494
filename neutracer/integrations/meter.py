# SPDX-License-Identifier: Apache-2.0
"""What one test took of each CUDA device: bytes as PyTorch's allocator counts them, and lines.

Counters and not samples: two runs of the same test give the same figures. What would make
them differ is put out of the way first: garbage of earlier tests is collected, and the
workspaces that cuBLAS keeps are given back, so that each test pays for its own.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import neutracer
from neutracer.process.recording.capture import dumped
from neutracer.process.recording.history import HISTORY
from neutracer.trace.places import grouped

__all__ = ["Measured", "Meter", "Place", "allocated", "no_device", "places_of"]

#: Who holds bytes, in words ("forward (model.py:7)"), how many bytes, in how many blocks.
Place = tuple[str, int, int]


@dataclass
class Measured:
    """What a test took.

    Attributes:
        device: The device on which its peak was highest.
        start_bytes: Allocated there when the test's own code began.
        fixture_bytes: What the fixtures allocated before, above what there was.
        peak_bytes: The most that the test allocated above its start.
        left_bytes: What more was allocated when its code had ended.
        allocated_peak_bytes: The most that was allocated, what was there before included.
        reserved_peak_bytes: The most that was reserved.
        cycles: Reference cycles with tensors that were collected in it or at its end.
        cycle_bytes: Bytes of CUDA tensors that these kept: when the collector came decides
            whether they are in the peak.
        places: Who held the peak, the most bytes first; empty where it was not asked.
        rehearsed: The card that the test took itself to have; "" where there was a device.
    """

    device: int = 0
    start_bytes: int = 0
    fixture_bytes: int = 0
    peak_bytes: int = 0
    left_bytes: int = 0
    allocated_peak_bytes: int = 0
    reserved_peak_bytes: int = 0
    cycles: list[neutracer.TensorCycle] = field(default_factory=list)
    cycle_bytes: int = 0
    places: list[Place] = field(default_factory=list)
    rehearsed: str = ""

    @property
    def fragmentation(self) -> float:
        """The share of the most reserved bytes that the most allocated bytes leave unused."""
        if not self.reserved_peak_bytes:
            return 0.0
        return 1 - self.allocated_peak_bytes / self.reserved_peak_bytes


def no_device() -> str:
    """Why nothing can be measured on a CUDA device here; "" if it can. Imports torch."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if getattr(torch.version, "cuda", None) is None:
        return "this torch is built without CUDA"
    return "" if torch.cuda.device_count() else "there is no CUDA device"


def _cuda() -> Any:
    """torch.cuda where it is in use, else None; nothing is imported or initialised."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _stats() -> dict[int, dict[str, int]]:
    cuda = _cuda()
    if cuda is None:
        return {}
    return {device: cuda.memory_stats(device) for device in range(cuda.device_count())}


def allocated() -> dict[int, int]:
    """Allocated bytes of each device; empty before CUDA is in use."""
    return {device: stats.get(_CURRENT, 0) for device, stats in _stats().items()}


_CURRENT, _PEAK = "allocated_bytes.all.current", "allocated_bytes.all.peak"
_RESERVED_PEAK = "reserved_bytes.all.peak"


def _give_back_workspaces() -> None:
    """Free what cuBLAS keeps, as PyTorch's own leak checks do; its next use allocates it."""
    cuda = _cuda()
    clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None) if cuda else None
    if clear is not None:
        clear()


class Meter:
    """Measures one test: `begin` before its code, `end` after it, `left` after its fixtures.

    Args:
        before_setup: `allocated()` before its fixtures were made.
        lines: Whether lines may be asked for: the allocator's history is on meanwhile.
        empty_cache: Whether it begins with an empty cache.
        cycles: Whether reference cycles are watched for, and on which devices: "all", ...
        min_bytes: Cycles that keep less are ignored.
    """

    def __init__(
        self,
        before_setup: dict[int, int],
        *,
        lines: bool = True,
        empty_cache: bool = False,
        cycles: object = "all",
        min_bytes: int = 0,
    ) -> None:
        self._before_setup = before_setup
        self._lines = lines
        self._empty_cache = empty_cache
        self._cycles = (cycles, min_bytes)
        self._found: list[neutracer.TensorCycle] = []
        self._watch: neutracer.reports.CycleWatch | None = None
        self._recording: neutracer.reports.Recording | None = None
        self._joined = False
        self._start: dict[int, int] = {}
        self._began_us = 0
        #: Why cycles could not be watched; "" if they were.
        self.blind = ""
        self.measured = Measured()

    def begin(self) -> None:
        """The test's code comes next."""
        gc.collect()
        _give_back_workspaces()
        cuda = _cuda()
        if cuda is not None:
            if self._empty_cache:
                cuda.empty_cache()
            for device in range(cuda.device_count()):
                cuda.reset_peak_memory_stats(device)
        self._start = allocated()
        self._watch_cycles()
        self._began_us = time.time_ns() // 1000
        if self._lines:
            self._record()

    def _watch_cycles(self) -> None:
        # pytest restores the filters when the test is over.
        warnings.filterwarnings("ignore", category=neutracer.TensorCycleWarning)
        device, min_bytes = self._cycles
        try:
            self._watch = neutracer.warn_tensor_cycles(
                device, min_bytes=min_bytes, callback=self._found.append
            )
        except neutracer.UnavailableError as error:
            self.blind = str(error)

    def _record(self) -> None:
        try:
            recording = neutracer.record()
            recording.quiet = True
            self._recording = recording.start()
        except neutracer.UnavailableError:
            return
        self._joined = HISTORY.is_foreign()

    def end(self) -> Measured:
        """The test's code has ended; its fixtures are still there."""
        seen = _stats()
        gc.collect()
        if self._watch is not None:
            self._watch.remove()
        _give_back_workspaces()
        after = allocated()
        rows = [self._row(device, stats, after) for device, stats in seen.items()]
        self.measured = max(rows, key=lambda row: row.peak_bytes, default=Measured())
        self.measured.cycles = self._found
        self.measured.cycle_bytes = sum(
            nbytes
            for cycle in self._found
            for device, nbytes in cycle.device_bytes.items()
            if device.startswith("cuda")
        )
        return self.measured

    def _row(self, device: int, stats: dict[str, int], after: dict[int, int]) -> Measured:
        start = self._start.get(device, 0)
        peak = stats.get(_PEAK, 0)
        return Measured(
            device=device,
            start_bytes=start,
            fixture_bytes=start - self._before_setup.get(device, 0),
            peak_bytes=max(peak - start, 0),
            left_bytes=after[device] - start,
            allocated_peak_bytes=peak,
            reserved_peak_bytes=stats.get(_RESERVED_PEAK, 0),
        )

    def find_places(self) -> list[Place]:
        """Who held the test's peak: only what the test itself allocated."""
        timeline = self._timeline(self.measured.device)
        if timeline is not None:
            self.measured.places = places_of(timeline, self._first_event(timeline))
        return self.measured.places

    def left(self) -> tuple[int, list[Place]]:
        """What the test allocated and is still there: bytes of all devices, and their lines.

        Where the history is not whole, what more is allocated than before the test.
        """
        gc.collect()
        _give_back_workspaces()
        now, total, places = allocated(), 0, []
        for device, nbytes in now.items():
            timeline = self._timeline(device)
            if timeline is None:
                total += max(nbytes - self._start.get(device, 0), 0)
            elif len(timeline):
                held = _places(timeline, len(timeline) - 1, self._first_event(timeline))
                total += sum(place[1] for place in held)
                places += held
        return total, places

    def close(self) -> None:
        """Nothing more is asked."""
        if self._recording is not None:
            self._recording.discard()
            self._recording = None

    def _timeline(self, device: int) -> neutracer.Timeline | None:
        """What the device's allocator did; None where it is not known from the start."""
        if self._recording is None or self._recording.waiting:
            return None
        try:
            # Its blocks' stacks are what is asked: not what each of them is to the program.
            snap = neutracer.load(dumped(_cuda()))
            whole = device in snap.devices and not snap.history_overflowed(device)
            return snap.timeline(device) if whole else None
        except neutracer.NeutracerError:
            return None

    def _first_event(self, timeline: neutracer.Timeline) -> int:
        """The test's first event: a history that the program had on has earlier ones too."""
        if not self._joined:
            return 0
        times = timeline.time_us
        return next((k for k in range(len(times)) if times[k] >= self._began_us), len(times))


def places_of(timeline: neutracer.Timeline, first: int) -> list[Place]:
    """Who held the most that was allocated from an event on, of what was allocated since."""
    levels = timeline.allocated[first:]
    if not len(levels):
        return []
    return _places(timeline, first + max(range(len(levels)), key=levels.__getitem__), first)


def _places(timeline: neutracer.Timeline, event: int, first: int) -> list[Place]:
    rows: list[Any] = [row for row in timeline.alive(event) if row.alloc_event >= first]
    here, rule = {row.alloc_event for row in rows}, timeline.categories.rule
    made = {
        event
        for row, event in enumerate(timeline.allocations["alloc_event"])
        if event in here and rule(row)[0] == "workspace"
    }
    workspaces = [row for row in rows if row.alloc_event in made]
    others = [row for row in rows if row.alloc_event not in made]
    found = [
        (f"{words}{place}", nbytes, count)
        for words, some in (("", others), ("workspace of cuBLAS or cuDNN, from ", workspaces))
        for place, nbytes, count in grouped((row.stack, row.size, 1) for row in some)
    ]
    return sorted(found, key=lambda place: -place[1])
