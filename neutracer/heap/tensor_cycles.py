# SPDX-License-Identifier: Apache-2.0
"""`find_tensor_cycles`, `garbage_bytes`, `collect_on_pressure`: search the heap for cycles."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import number, whole_number
from neutracer.heap.cycles import (
    TensorCycle,
    cycle_from_core,
    cycles_graph,
    device_filter,
    least_bytes,
    tensor_text,
)
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.watch import CycleWatch, allocations_of_live, prepare_heap
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import without_cuda
from neutracer.recording.sidecar import rank_facts, rank_text
from neutracer.render.document import Block, Document, Note, Paragraph, Severity
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count, format_share

# ---- Cycles ------------------------------------------------------------------------------

# Shapes that are described; further ones are only counted.
_MOST_SHAPES = 200

_NONE_FOUND = (
    "No reference cycle holds a tensor of the selected devices; without device= these are "
    "the accelerators."
)

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class TensorCyclesReport(Report, Sequence[TensorCycle]):
    """The cycles that hold tensors: a sequence of `TensorCycle`, most bytes first.

    Attributes:
        cycles: The cycles by shape, garbage and alive together, most bytes first.
        garbage_bytes: Tensor bytes that only a collection will free, including those outside
            cycles that wait for a finalizer.
        garbage_objects: Objects that a collection would find unreachable now.
        objects: Objects inspected.
        left_out_objects: Modules, their namespaces and types among them, which connect nearly
            everything: cycles through these are not listed.
        other_cycles: Cycles that hold no tensor of the selected devices.
        untold_shapes: Further shapes that keep tensors, only counted.
    """

    schema = "neutracer.tensor_cycles/1"

    cycles: tuple[TensorCycle, ...]
    garbage_bytes: int
    garbage_objects: int
    objects: int
    left_out_objects: int
    other_cycles: int
    untold_shapes: int

    @overload
    def __getitem__(self, index: int) -> TensorCycle: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorCycle]: ...
    def __getitem__(self, index: int | slice) -> TensorCycle | Sequence[TensorCycle]:
        return self.cycles[index]

    def __len__(self) -> int:
        return len(self.cycles)

    @property
    def graph(self) -> ObjectGraph:
        """The cycles that keep most, side by side."""
        return cycles_graph(self.cycles)

    def document(self) -> Document:
        facts = [
            f"{format_count(self.objects, 'object')} inspected",
            f"{format_bytes(self.garbage_bytes)} that only a collection frees",
        ]
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (Paragraph(_NONE_FOUND),)
        return Document(
            title="Reference cycles that hold tensors",
            facts=tuple(facts),
            blocks=(*blocks, *self._left_out()),
            more="the cycles one by one: .cycles, their pictures: .cycles[0].graph",
        )

    def _left_out(self) -> tuple[Paragraph, ...]:
        sentences = []
        if self.left_out_objects:
            sentences.append(
                f"Left out: {self.left_out_objects:,} modules, their namespaces and types, "
                "which connect most of a program."
            )
        if self.other_cycles:
            others = format_count(self.other_cycles, "other cycle")
            sentences.append(f"{others} without such tensors.")
        if self.untold_shapes:
            sentences.append(f"{format_count(self.untold_shapes, 'more shape')} counted only.")
        return (Paragraph(" ".join(sentences)),) if sentences else ()


def find_tensor_cycles(
    device: object = None, min_bytes: int = 0, include_alive: bool = True
) -> TensorCyclesReport:
    """Find the reference cycles that hold tensors now.

    The whole heap is walked in C with the GIL held, some 0.2 microseconds per object; the walk
    collects nothing and keeps nothing alive. A cycle is either garbage, which waits for the
    collector, or alive: still in use, and garbage once the program drops it. Objects set
    aside by `gc.freeze` are skipped, as in a collection.

    Args:
        device: The devices whose tensors count: None for all accelerators, "cpu", "cuda",
            "cuda:1", or "all".
        min_bytes: Ignore cycles that keep less.
        include_alive: Also find cycles that are alive.

    Returns:
        The cycles by shape, most bytes first, as a sequence and as a report.

    Raises:
        UnavailableError: torch is not imported, or a memory layout is unknown.
        ValueError: The device is unknown, or min_bytes is negative.

    Example:
        >>> import torch
        >>> ring = [torch.zeros(1024)]
        >>> ring.append(ring)
        >>> found = find_tensor_cycles(device="cpu")
        >>> [(cycle.chain, cycle.garbage) for cycle in found if cycle.objects == 1][0]
        ('list of 2[1] → list of 2', False)
    """
    return _cycles_report(_walked(device, min_bytes, _MOST_SHAPES, include_alive))


def _walked(device: object, min_bytes: int, shapes: int, include_alive: bool) -> dict[str, Any]:
    """What the core finds in the heap, as it is when this is called.

    Called first thing, and with nothing before it: what is allocated meanwhile would collect
    the garbage that is asked about. A context manager would be the first such object.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        least = least_bytes(min_bytes)
        device_type, index = device_filter(device)
        prepare_heap()
        return core.find_cycles(device_type, index, least, shapes, include_alive)
    finally:
        if collects:
            gc.enable()


def _cycles_report(found: dict[str, Any]) -> TensorCyclesReport:
    parts = [(found["garbage"], True), (found["alive"], False)]
    described = [(part, garbage) for part, garbage in parts if part is not None]
    cycles = _cycles(described)
    garbage = found["garbage"]
    return TensorCyclesReport(
        cycles=tuple(cycles),
        garbage_bytes=0 if garbage is None else garbage["bytes"] + garbage["loose_bytes"],
        garbage_objects=found["dead"],
        objects=found["objects"],
        left_out_objects=found["cut"],
        other_cycles=sum(part["others"] for part, _ in described),
        untold_shapes=sum(part["left_out"] for part, _ in described),
        findings=ranked(cycle_finding(cycle) for cycle in cycles),
    )


def _cycles(parts: Sequence[tuple[dict[str, Any], bool]]) -> list[TensorCycle]:
    """Build cycles from (description, is garbage) pairs, most bytes first."""
    allocations = allocations_of_live(
        row[6][5]
        for part, _ in parts
        for plain in part["cycles"]
        for row in plain["nodes"]
        if row[6] is not None
    )
    cycles = (
        cycle_from_core(plain, garbage=garbage, allocations=allocations)
        for part, garbage in parts
        for plain in part["cycles"]
    )
    return sorted(cycles, key=lambda cycle: -cycle.bytes)


def garbage_bytes(device: object = None) -> int:
    """The tensor bytes that only a collection would free, each storage once.

    Args:
        device: As for `find_tensor_cycles`.

    Raises:
        UnavailableError: torch is not imported, or a memory layout is unknown.
        ValueError: The device is unknown.

    Example:
        >>> import sys
        >>> garbage_bytes("cpu") if "torch" in sys.modules else 0   # doctest: +SKIP
        0
    """
    found = _walked(device, 0, 0, False)["garbage"]
    return 0 if found is None else int(found["bytes"] + found["loose_bytes"])


def cycle_finding(cycle: TensorCycle) -> Finding:
    """A cycle as a finding: its chain, its tensors, the reference to break."""
    evidence = [Note(cycle.chain), *(Note(f"keeps {tensor_text(t)}") for t in cycle.tensors[:3])]
    return Finding(
        kind="cycle_garbage" if cycle.garbage else "cycle_alive",
        severity=_severity(cycle),
        bytes=cycle.bytes,
        message=cycle.headline,
        evidence=tuple(evidence),
        advice=(Note(f"break it: {cycle.advice}", place=cycle.place),),
    )


def _severity(cycle: TensorCycle) -> Severity:
    if not cycle.garbage:
        return Severity.MODERATE if cycle.bytes >= _GIB else Severity.INFO
    if cycle.bytes >= _GIB:
        return Severity.SEVERE
    return Severity.SERIOUS if cycle.bytes >= 64 << 20 else Severity.MODERATE


# ---- Cycle run ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class CycleRunReport(Report):
    """The tensor cycles of a run.

    Attributes:
        program: The script or module.
        exit_code: Its exit code.
        rank: Its rank, by torch.distributed or its launcher; None without one.
        world_size: The number of ranks.
        cycles: By shape, most bytes first: those collected during the run and those still
            waiting at its end.
        bytes: Bytes kept by all of them.
        collections: Collections watched.
        watch_us: Time inside the watch.
        refused: Collections that could not be inspected.
    """

    schema = "neutracer.cycles/1"

    program: str
    exit_code: int
    rank: int | None
    world_size: int | None
    cycles: tuple[TensorCycle, ...]
    bytes: int
    collections: int
    watch_us: int
    refused: int

    @property
    def graph(self) -> ObjectGraph:
        """The cycles that keep most, side by side."""
        return cycles_graph(self.cycles)

    def document(self) -> Document:
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        facts = (
            *((rank,) if rank else ()),
            f"{format_count(self.collections, 'collection')} watched",
            f"{self.watch_us / 1000:,.1f} ms inside the watch",
            f"exit code {self.exit_code}",
        )
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (Paragraph("No reference cycle kept a tensor."),)
        else:
            kept = f"{format_bytes(self.bytes)} in {format_count(len(self.cycles), 'shape')}"
            blocks = (Paragraph(f"Kept until a collection: {kept} of cycles."), *blocks)
        if self.refused:
            text = f"{format_count(self.refused, 'collection')} could not be inspected."
            blocks = (*blocks, Paragraph(text))
        return Document(title=os.path.basename(self.program), facts=facts, blocks=blocks)


def cycle_run(
    watch: CycleWatch, program: str, exit_code: int, device: object, min_bytes: int
) -> CycleRunReport:
    """Summarize a watched run and the garbage left at its end.

    Args:
        program: The script or module, for the title.
        device: As for `find_tensor_cycles`.
        min_bytes: As for `find_tensor_cycles`.
    """
    shapes = {cycle.signature: cycle for cycle in watch.cycles}
    for cycle in find_tensor_cycles(device, min_bytes, include_alive=False):
        before = shapes.get(cycle.signature)
        shapes[cycle.signature] = cycle if before is None else before.merged(cycle)
    cycles = tuple(sorted(shapes.values(), key=lambda cycle: -cycle.bytes))
    status, facts = watch.status, rank_facts()
    return CycleRunReport(
        program=program,
        exit_code=exit_code,
        rank=facts["rank"],
        world_size=facts["world_size"],
        cycles=cycles,
        bytes=sum(cycle.bytes for cycle in cycles),
        collections=status["collections"],
        watch_us=round(status["spent_ns"] / 1000),
        refused=status["refused"],
        findings=ranked(cycle_finding(cycle) for cycle in cycles),
    )


# ---- Pressure ----------------------------------------------------------------------------

# A thread polls the device's use, which costs microseconds. Above a bound it walks the heap for
# garbage, and if there is enough, runs a collection on the main thread between two bytecodes.

_LOGGER = logging.getLogger("neutracer")

# The wait after a walk that found little garbage; it doubles each time.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0

# Collections one after another, of garbage that shows up as the garbage before it goes.
_MOST_LAYERS = 64

# The largest share of time spent walking.
_MOST_SHARE = 0.01


@dataclass(frozen=True)
class PressureCollection(PlainRow):
    """One collection that was run because of pressure.

    Attributes:
        used_share: The used share of the device, 0 to 1, before the collection.
        garbage_bytes: Tensor bytes held by garbage.
        freed_bytes: The drop in the device's allocated bytes.
        duration_us: The duration of the collection.
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
    """A device's memory. `used_bytes` leaves out the allocator's cache."""

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
    """Run Python's collector when a device runs short and garbage holds its memory.

    Args:
        fraction: The used share of the device, 0 to 1, above which to look for garbage. The
            caching allocator's unused memory counts as free.
        min_garbage: The fewest bytes of garbage worth a collection.
        max_garbage: Bytes of garbage to collect even while the device has room; None looks
            for garbage only when the device is short.
        device: The CUDA device as torch names it; None is the current one.
        interval: Seconds between two readings of the device's use.
        callback: Called with each `PressureCollection`, on the main thread.

    Returns:
        The handle: `remove()` ends it, and so does leaving it as a context manager;
        `collections` lists the collections that it ran.

    Raises:
        UnavailableError: torch is not imported, has no initialised CUDA device, or the
            memory layout of this Python is unknown.
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

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

    # On the main thread, between two bytecodes.
    def _collect(self) -> None:
        try:
            if not self._ended.is_set():
                self._collect_if_worth_it()
        finally:
            self._pending = False

    def _collect_if_worth_it(self) -> None:
        begin = time.monotonic()
        garbage = self._garbage()
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

    def _garbage(self) -> int:
        found = core.find_cycles(*self._filter, 0, 0, False)["garbage"]
        return 0 if found is None else int(found["bytes"] + found["loose_bytes"])

    def _run_collector(self, before: _Use, garbage: int) -> None:
        begin = time.monotonic()
        gc.collect()
        # Of cycles that hold each other through autograd's nodes one collection frees the first.
        for _ in range(_MOST_LAYERS):
            if self._garbage() < max(self._min_garbage, 1):
                break
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
