# SPDX-License-Identifier: Apache-2.0
"""`phase()`: peaks and growth of named parts of a program, and their marks in recordings."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from neutracer._native import core
from neutracer.arguments import text
from neutracer.errors import UnavailableError
from neutracer.hooks.cache_calls import (
    CACHE_CALLS,
    Counts,
    Trace,
    dumped_trace,
    native_traces,
    times_between,
)
from neutracer.hooks.shim import load
from neutracer.pickling import StaysHere
from neutracer.trace.marks import DEVICE_USE, mark_name
from neutracer.units import format_bytes

# ---- Counters ----------------------------------------------------------------------------

# Peaks are never PyTorch's since a reset of ours: other parts of the program read those counters,
# and vLLM sizes its KV cache by them.


class Counters(NamedTuple):
    """A CUDA device at a boundary of phases, in bytes."""

    device: int
    allocated: int
    # allocated_peak, reserved_peak: Since the last boundary; if not `is_exact`, at least that.
    allocated_peak: int
    reserved: int
    reserved_peak: int
    retries: int
    ooms: int
    counts: Counts | None = None  # The allocator's counts of events, or None.
    is_exact: bool = False  # The peaks are complete: the hooks followed every event.


def _cuda() -> Any:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def prefer_hooks() -> None:
    """Load the hooks if they are already compiled: peaks of phases are exact with them."""
    torch = sys.modules.get("torch")
    has_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    if not has_cuda or getattr(torch, "__spec__", None) is None:
        return
    try:
        load(compile=False)
    except UnavailableError:
        return


# PyTorch's own peaks of allocated and reserved at the last boundary, by device.
_seen: dict[int, tuple[int, int]] = {}


def read(device: int | None = None, follow: bool = False) -> Counters | None:
    """A device's counters at a boundary; None (without initializing) before CUDA is used.

    `follow`: peaks are wanted from here to the next boundary.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    if device is None:
        device = cuda.current_device()
    span = core.live_span(device, follow)
    if span is not None:
        allocated, peak, reserved, reserved_peak, retries, ooms, allocs, frees = span
        counts = Counts(allocs, frees, ooms, 0)
        return Counters(
            device, allocated, peak, reserved, reserved_peak, retries, ooms, counts, True
        )
    stats = cuda.memory_stats_as_nested_dict(device)
    return _from_stats(device, stats) if stats else None


def _from_stats(device: int, stats: Mapping[str, Any]) -> Counters:
    """Counters without hooks. PyTorch's peak was reached since the last boundary if it has changed
    since: it has risen, or the program has reset it."""
    allocated = stats["allocated_bytes"]["all"]
    reserved = stats["reserved_bytes"]["all"]
    peaks = (allocated["peak"], reserved["peak"])
    before = _seen.get(device, peaks)
    _seen[device] = peaks
    known = [
        max(now["current"], peak if peak != last else 0)
        for now, peak, last in zip((allocated, reserved), peaks, before, strict=True)
    ]
    retries, ooms = stats.get("num_alloc_retries", 0), stats.get("num_ooms", 0)
    served = stats.get("allocation", {}).get("all")
    counts = None if served is None else Counts(served["allocated"], served["freed"], ooms, 0)
    return Counters(
        device, allocated["current"], known[0], reserved["current"], known[1], retries, ooms, counts
    )


def now() -> Counters | None:
    """The current device's counters, as another boundary of the open phases; None before CUDA."""
    with _lock:
        return _fold(follow=bool(_open))[0]


# ---- Device use --------------------------------------------------------------------------

# The driver's figure takes tens of microseconds, or more while the device is busy: readings take
# at most this share of the time.
_USE_SHARE = 0.02
_MOST_READINGS = 20_000


class _DeviceUse:
    """Readings of devices' memory in use by all processes, at boundaries of phases."""

    def __init__(self) -> None:
        self.readings: dict[int, deque[tuple[int, int]]] = {}
        self._next: dict[int, float] = {}

    def note(self, device: int) -> None:
        begin, cuda = time.perf_counter(), _cuda()
        if cuda is None or begin < self._next.get(device, 0.0):
            return
        try:
            free, total = cuda.mem_get_info(device)
        except (AttributeError, RuntimeError):
            # The device is in an error state.
            return
        now = time.time_ns() // 1000
        kept = self.readings.setdefault(device, deque(maxlen=_MOST_READINGS))
        kept.append((now, total - free))
        took = time.perf_counter() - begin
        self._next[device] = begin + took / _USE_SHARE


# ---- Marks -------------------------------------------------------------------------------

# Two for each turn of a phase, of some 300 bytes.
_MOST_MARKS = 20_000


class Mark(NamedTuple):
    """A boundary of a phase."""

    begins: bool  # Whether it is the beginning.
    name: str
    device: int  # The current device; 0 before CUDA is used.
    time_us: int  # Microseconds since the epoch.
    counts: Counts | None  # The device's counts of events, or None.


class _Marks:
    """The boundaries of this process's phases, for the recordings that are taken later."""

    def __init__(self) -> None:
        self.use = _DeviceUse()
        self._all: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._numbers: dict[str, set[int]] = {}

    def begin(self, name: str, now: Counters | None) -> str:
        """Mark a phase's beginning; returns the annotation's name, for its end."""
        numbers = self._numbers.setdefault(name, set())
        number = next(one for one in range(len(numbers) + 1) if one not in numbers)
        numbers.add(number)
        marked = mark_name(name, number)
        self._add(True, marked, now)
        return marked

    def end(self, name: str, marked: str, now: Counters | None) -> None:
        """Mark its end."""
        numbers = self._numbers.get(name, set())
        numbers -= {number for number in numbers if mark_name(name, number) == marked}
        if not numbers:
            self._numbers.pop(name, None)
        self._add(False, marked, now)

    def _add(self, begins: bool, marked: str, now: Counters | None) -> None:
        device = 0 if now is None else now.device
        counts = None if now is None else now.counts
        self._all.append(Mark(begins, marked, device, time.time_ns() // 1000, counts))
        if now is not None:
            self.use.note(device)

    def within(
        self, traces: Mapping[int, Callable[[], Trace]], before: Mapping[int, Counts | None]
    ) -> list[Mark]:
        """The marks of phases that are open or ended after the traces began.

        Where the device was idle while its trace was taken, a mark's time is moved between those
        of the events around it.

        Args:
            before: `CACHE_CALLS.now()` before they were taken.
        """
        marks = list(self._all)
        if not marks:
            return []
        made = {device: trace() for device, trace in traces.items()}
        begins = [trace.time_us(0) for trace in made.values() if trace.marks]
        if not begins:
            return []
        after = CACHE_CALLS.now()
        for device, trace in made.items():
            end = after.get(device)
            if trace.marks and end is not None and before.get(device) == end:
                marks = _at_events(marks, device, trace, end)
        return _since(marks, min(begins))

    def readings(self, since_us: int) -> dict[str, list[int]]:
        """Readings of each device's memory in use, as `DEVICE_USE` has them."""
        found = {}
        for device, rows in list(self.use.readings.items()):
            kept = [row for row in list(rows) if row[0] >= since_us]
            if kept:
                found[str(device)] = [number for row in kept for number in row]
        return found


def _at_events(marks: list[Mark], device: int, trace: Trace, end: Counts) -> list[Mark]:
    mine = {at: mark for at, mark in enumerate(marks) if mark.device == device and mark.counts}
    calls = [(mark.counts or end, mark.time_us) for mark in mine.values()]
    for at, time_us in zip(mine, times_between(trace, end, calls), strict=True):
        marks[at] = marks[at]._replace(time_us=time_us)
    return marks


def _since(marks: Iterable[Mark], begin_us: int) -> list[Mark]:
    """Without the turns that ended before."""
    open_marks: dict[str, Mark] = {}
    kept: list[Mark] = []
    for mark in marks:
        if mark.begins:
            open_marks[mark.name] = mark
            continue
        begun = open_marks.pop(mark.name, None)
        if mark.time_us >= begin_us:
            kept += [mark] if begun is None else [begun, mark]
    return sorted([*kept, *open_marks.values()], key=lambda mark: mark.time_us)


MARKS = _Marks()


def mark_dump(plain: Any, before: Mapping[int, Counts | None]) -> None:
    """Add the phases to PyTorch's own dump, taken after `before`."""
    traces = plain.get("device_traces") if isinstance(plain, dict) else None
    if not isinstance(traces, (list, tuple)):
        return
    by_device = {device: partial(dumped_trace, events) for device, events in enumerate(traces)}
    marks = MARKS.within(by_device, before)
    if not marks:
        return
    ranges = plain.setdefault("external_annotations", [])
    for mark in marks:
        stage = "START" if mark.begins else "END"
        row = {"stage": stage, "name": mark.name, "device": mark.device, "time_us": mark.time_us}
        ranges.append(row)
    readings = MARKS.readings(marks[0].time_us)
    settings = plain.get("allocator_settings")
    if readings and isinstance(settings, dict):
        settings[DEVICE_USE] = readings


def mark_snapshot(native: core.Snapshot, before: Mapping[int, Counts | None]) -> None:
    """Add the phases to a snapshot just made by the core, after `before`."""
    marks = MARKS.within(native_traces(native), before)
    for mark in marks:
        native.note_range(mark.begins, mark.name, mark.device, mark.time_us)
    if marks:
        for device, numbers in MARKS.readings(marks[0].time_us).items():
            native.note_numbers(DEVICE_USE, int(device), array("q", numbers))


# ---- Running -----------------------------------------------------------------------------

_MOST_TENSORS = 16  # Of a batch.


@dataclass
class Running:
    """The program's position and configuration, for out-of-memory reports; set by the trainer.

    Attributes:
        trainer: The trainer: "transformers.Trainer"; "" if unknown.
        step: The trainer's step number.
        batch: The shapes of the batch, from `shapes_of`.
        configuration: The trainer's configuration.
        phases: The names of the open phases, outermost first.
    """

    trainer: str = ""
    step: int | None = None
    phases: list[str] = field(default_factory=list)
    batch: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Copies of the known facts, for a report."""
        facts = {name: copy(value) for name, value in vars(self).items()}
        return {name: value for name, value in facts.items() if value not in ("", None, [], {})}

    def forget(self) -> None:
        """Clear everything but the open phases."""
        self.trainer, self.step, self.batch, self.configuration = "", None, {}, {}


RUNNING = Running()


def shapes_of(batch: object) -> dict[str, str]:
    """The dtypes and shapes of a batch's tensors, by path; keeps no reference.

    Example:
        >>> shapes_of({"labels": 3})
        {}
    """
    found: dict[str, str] = {}
    _collect(batch, "", found, depth=0)
    return found


def _collect(value: object, name: str, found: dict[str, str], depth: int) -> None:
    if len(found) >= _MOST_TENSORS or depth > 3:
        return
    if isinstance(value, Mapping):
        for key, one in list(value.items())[:_MOST_TENSORS]:
            _collect(one, f"{name}.{key}" if name else str(key), found, depth + 1)
    elif isinstance(value, (list, tuple)):
        for key, one in enumerate(value[:_MOST_TENSORS]):
            _collect(one, f"{name}[{key}]", found, depth + 1)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        found[name or "batch"] = f"{dtype} {list(value.shape)}"


# ---- Phase -------------------------------------------------------------------------------
def phase(name: str) -> Phase:
    """Measure a part of the program: its peak, and the memory that it leaves behind.

    Phases may be nested, come again (turns of a cycle) and be entered by any thread. Recordings of
    this process have marks of them: `neutracer.phases` of a file tells each turn. A report of an
    out-of-memory error names the open phases.

    Nothing of PyTorch's is reset. Peaks are exact with neutracer's hooks, and otherwise the most
    that was seen.

    Args:
        name: A name such as "rollout".

    Returns:
        The phase, as a context manager; its figures are complete at its end.

    Raises:
        TypeError: The name is not a str.
        ValueError: The name is empty.

    Example:
        >>> import neutracer
        >>> with neutracer.phase("rollout") as rollout:
        ...     pass    # generate
        >>> rollout
        <Phase rollout: no CUDA device in use>
    """
    if not text("name", name):
        raise ValueError("a phase's name must not be empty")
    # Names that `os.fsdecode` made of other bytes are no text of a file.
    return Phase(name.encode("utf-8", "backslashreplace").decode())


class Phase(StaysHere, instead="it measures this process: send its .peak_bytes"):
    """A measured part of the program, made by `phase`.

    Attributes:
        name: Its name.
        device: The current CUDA device at its start, or at the first phase boundary with CUDA in
            use; None if CUDA was not in use at its end.
        start_bytes: Allocated at its start; 0 before CUDA was in use.
        peak_bytes: Peak of allocated so far; at least that, if not `peak_is_exact`.
        reserved_peak_bytes: Peak of reserved so far; likewise.
        peak_is_exact: The hooks followed the device from its start to its end.
        end_bytes: Allocated at its end.
        seconds: Duration; does not wait for running kernels.
        ended: The counters of its device at its end; None before, and without CUDA.
    """

    def __init__(self, name: str, *, is_marked: bool = True) -> None:
        self.name = name
        self.device: int | None = None
        self.start_bytes = self.peak_bytes = self.reserved_peak_bytes = self.end_bytes = 0
        self.peak_is_exact = False
        self.seconds = 0.0
        self.ended: Counters | None = None
        self._is_marked = is_marked
        self._marked = ""
        self._began = 0.0

    @property
    def left_bytes(self) -> int:
        """end_bytes - start_bytes; may be negative."""
        return self.end_bytes - self.start_bytes

    def __enter__(self) -> Phase:
        self._began = time.perf_counter()
        self.peak_bytes = self.reserved_peak_bytes = 0
        with _lock:
            _hooks_once()
            now, _ = _fold(follow=True)
            if now is not None:
                self.device, self.start_bytes = now.device, now.allocated
                self.peak_bytes, self.reserved_peak_bytes = now.allocated, now.reserved
                self.peak_is_exact = now.is_exact
            _open.append(self)
            if self._is_marked:
                RUNNING.phases.append(self.name)
                self._marked = MARKS.begin(self.name, now)
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
            now, by_device = _fold(follow=len(_open) > 1)
            if self._is_marked:
                MARKS.end(self.name, self._marked, now)
                # The innermost of that name.
                names = RUNNING.phases
                del names[len(names) - 1 - names[::-1].index(self.name)]
            # The current device may have changed since.
            self.ended = None if self.device is None else by_device.get(self.device)
            if self.ended is not None:
                self.end_bytes = self.ended.allocated
            _open.remove(self)

    def __repr__(self) -> str:
        if self.device is None:
            return f"<Phase {self.name}: no CUDA device in use>"
        least = "" if self.peak_is_exact else "at least "
        figures = f"{least}{format_bytes(self.peak_bytes)} at its peak"
        return f"<Phase {self.name}: {figures}, {format_bytes(self.end_bytes)} at its end>"


_lock = threading.RLock()
_open: list[Phase] = []
_asked_for: list[Any] = []


def _hooks_once() -> None:
    """Load compiled hooks before the first phase of a torch with CUDA in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch not in _asked_for and _cuda() is not None:
        _asked_for[:] = [torch]
        with contextlib.suppress(RuntimeError):
            prefer_hooks()


def _forget() -> None:
    """In a forked child, which has no CUDA, the parent's phases are not open."""
    global _lock, MARKS
    _lock = threading.RLock()
    MARKS = _Marks()
    _open.clear()
    _seen.clear()
    RUNNING.phases.clear()


os.register_at_fork(after_in_child=_forget)


def _fold(*, follow: bool) -> tuple[Counters | None, dict[int, Counters]]:
    """Add the peaks since the last boundary to all open phases, on the current device and on
    theirs. Returns the current device's counters, and all of them by device."""
    now = read(None, follow)
    if now is None:
        return None, {}
    by_device = {now.device: now}
    for one in _open:
        one.device = now.device if one.device is None else one.device
        if one.device not in by_device:
            counters = read(one.device, follow)
            if counters is not None:
                by_device[one.device] = counters
    for one in _open:
        counters = by_device.get(-1 if one.device is None else one.device)
        if counters is not None:
            one.peak_bytes = max(one.peak_bytes, counters.allocated_peak)
            one.reserved_peak_bytes = max(one.reserved_peak_bytes, counters.reserved_peak)
            one.peak_is_exact = one.peak_is_exact and counters.is_exact
    return now, by_device
