# SPDX-License-Identifier: Apache-2.0
"""Reference cycles that hold tensors: found in the heap, seen at collections, collected in need."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, overload

from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import number, path_name, reader_name, whole_number
from neutracer.errors import TensorCycleWarning
from neutracer.heap.cycles import (
    ACCELERATORS,
    TensorCycle,
    by_shape,
    cycle_from_core,
    cycles_graph,
    device_filter,
    finding_of,
    garbage_held,
    least_bytes,
    prepare_heap,
)
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Allocation
from neutracer.pickling import StaysHere
from neutracer.recording.sidecar import rank_facts, rank_text
from neutracer.render.document import Block, Document, Paragraph, Place, Severity
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count, format_share

_LOGGER = logging.getLogger("neutracer")

# ---- Allocation sites --------------------------------------------------------------------

# PyTorch's frames on the way into the allocator, which do not help to find a place.
_OWN_FILES = ("??", "torch/cuda/memory.py")


def allocations_of(pointers: Iterable[int], *, are_live: bool) -> dict[int, Allocation]:
    """The recorded allocations of storages on a CUDA device; CUDA is not initialised.

    Those of memory that was just freed take a PyTorch snapshot: some microseconds per event.

    Args:
        pointers: Device addresses at which storages begin, or began; 0 is skipped.

    Returns:
        Allocations by pointer; empty while PyTorch's history is off.
    """
    wanted = {pointer for pointer in pointers if pointer}
    memory = _recording_memory() if wanted else None
    if memory is None:
        return {}
    return _live_allocations(memory, wanted) if are_live else _last_allocations(memory, wanted)


def _live_allocations(memory: Any, wanted: set[int]) -> dict[int, Allocation]:
    lookup = getattr(memory, "_allocation_traceback", None)
    if lookup is not None:
        stacks = {pointer: lookup(pointer) for pointer in wanted}
    else:
        stacks = _stacks_of_blocks(memory, wanted)
    made = {pointer: Allocation(_places(frames or ())) for pointer, frames in stacks.items()}
    return {pointer: allocation for pointer, allocation in made.items() if allocation.frames}


def _last_allocations(memory: Any, wanted: set[int]) -> dict[int, Allocation]:
    found: dict[int, Allocation] = {}
    now_us = time.time_ns() // 1000
    for trace in memory._snapshot()["device_traces"]:
        for event in reversed(trace):
            if not wanted:
                break
            if event["action"] == "alloc" and event["addr"] in wanted:
                wanted.remove(event["addr"])
                age = max(now_us - event["time_us"], 0) if event.get("time_us") else None
                found[event["addr"]] = Allocation(_places(event.get("frames", ())), age)
    return found


def _recording_memory() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return None
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or not torch.cuda.is_initialized() or not enabled():
        return None
    return torch.cuda.memory


def _stacks_of_blocks(memory: Any, wanted: set[int]) -> dict[int, Any]:
    stacks: dict[int, Any] = {}
    for segment in memory.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if start in wanted and block["state"] == "active_allocated":
                stacks[start] = block.get("frames", ())
            address = start + block["size"]
    return stacks


def _places(frames: Any) -> tuple[Place, ...]:
    places = (
        Place(str(frame["name"]), reader_name(str(frame["filename"])), int(frame["line"]))
        for frame in frames
    )
    return tuple(place for place in places if not place.filename.endswith(_OWN_FILES))


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
    rows = (row for part, _ in parts for plain in part["cycles"] for row in plain["nodes"])
    pointers = (row[6][5] for row in rows if row[6] is not None)
    allocations = allocations_of(pointers, are_live=True)
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
    kind = "cycle_garbage" if cycle.garbage else "cycle_alive"
    return finding_of(cycle, kind, _severity(cycle))


def _severity(cycle: TensorCycle) -> Severity:
    if not cycle.garbage:
        return Severity.MODERATE if cycle.bytes >= _GIB else Severity.INFO
    if cycle.bytes >= _GIB:
        return Severity.SEVERE
    return Severity.SERIOUS if cycle.bytes >= 64 << 20 else Severity.MODERATE


# ---- Watch -------------------------------------------------------------------------------

# When a collection begins, the core predicts in C, without taking references, which objects the
# collector will find; when it ends, the watch reports the cycles. The collector is unchanged.

# Shapes described per collection; further ones are only counted.
_MOST_WATCHED = 50

# Counters of the whole process, from which a watch subtracts their values at its start.
_COUNTED = ("collections", "walked", "predicted", "described", "survivors", "refused", "spent_ns")

# Summed figures of repeats, apart from devices.
_NOTHING = {"bytes": 0, "count": 0, "tensors": 0, "survivors": 0}


def warn_tensor_cycles(
    device: object = None,
    min_bytes: int = 0,
    callback: Callable[[TensorCycle], object] | None = None,
    html_dir: str | os.PathLike[str] | None = None,
    once_per_signature: bool = True,
) -> CycleWatch:
    """Warn when a garbage collection finds reference cycles that kept tensors.

    A tensor in a cycle, or reachable from one, is not freed when the program drops it but
    when Python's collector next runs. The watch inspects every collection, automatic or not,
    and reports the objects of each cycle, the tensors they kept and the reference to break: as
    a `TensorCycleWarning` (subject to the filters of `warnings`), to the logger "neutracer",
    and to `callback`.

    It runs no collection, sets no debug flag and keeps no object alive. It lasts until you
    remove it, whether or not you keep its handle; several watches are independent.

    Args:
        device: The devices whose tensors count: None for all accelerators, "cpu", "cuda",
            "cuda:1", or "all".
        min_bytes: Ignore cycles that keep less.
        callback: Called with each `TensorCycle` of each collection, including repeats.
        html_dir: A folder, created if needed, for an offline page with the object graph of
            each shape: `cycle-<signature>.html`, with a rank `cycle-<signature>-rank3.html`.
            Forked children write none.
        once_per_signature: Warn once per shape and count repeats; False warns in every
            collection.

    Returns:
        The handle: `remove()` ends the watch, and so does leaving it as a context manager;
        `cycles` lists the cycles found, and `print(watch)` summarizes them.

    Raises:
        UnavailableError: torch is not imported, or the memory layout of this Python or
            this torch is unknown; `.install` says which and why.
        ValueError: The device is unknown, or min_bytes is negative.

    Example:
        >>> import torch, gc, neutracer
        >>> def leak():
        ...     ring = [torch.zeros(1024)]
        ...     ring.append(ring)
        >>> with neutracer.warn_tensor_cycles(device="cpu", callback=print) as watch:
        ...     leak()
        ...     _ = gc.collect()    # doctest: +SKIP
        >>> len(watch.cycles)       # doctest: +SKIP
        1
    """
    min_bytes = least_bytes(min_bytes)
    called_back("callback", callback, "cycle")
    wanted = device_filter(device)
    prepare_heap()
    folder = None if html_dir is None else path_name(html_dir, "html_dir")
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
        # A page may be due during shutdown, when imports fail.
        importlib.import_module("neutracer.heap.drawing")
    watch = CycleWatch(callback, folder, once_per_signature)
    watch._begin(*wanted, min_bytes)
    return watch


class CycleWatch(StaysHere, instead="it watches this process: send its .cycles"):
    """The handle of a watch, as `warn_tensor_cycles` returns it."""

    def __init__(
        self,
        callback: Callable[[TensorCycle], object] | None,
        html_dir: str | None,
        once_per_signature: bool,
    ) -> None:
        self._callback = callback
        self._html_dir = html_dir
        self._once = once_per_signature
        self._shapes: dict[str, TensorCycle] = {}
        # Figures of repeats not yet added to `_shapes`, by the core's signature.
        self._repeats: dict[int, dict[str, Any]] = {}
        self._counted_only = 0
        self._id: int | None = None
        self._whose = ""
        self._process = os.getpid()
        self._before: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = None

    def _begin(self, device_type: int, device_index: int, min_bytes: int) -> None:
        self._whose = " of an accelerator" if device_type == ACCELERATORS else ""
        # The core owns the watch: it outlives its handle.
        self._id = core.watch_cycles(
            self._receive, device_type, device_index, min_bytes, _MOST_WATCHED
        )
        self._before = core.watch_status()

    def remove(self) -> None:
        """End the watch; a second time does nothing."""
        if self._id is not None:
            self._ended = self.status
            core.unwatch_cycles(self._id)
            self._id = None

    def __enter__(self) -> CycleWatch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    @property
    def cycles(self) -> tuple[TensorCycle, ...]:
        """The cycles found so far, one entry per shape with its count, most bytes first."""
        while self._repeats:
            number, repeats = self._repeats.popitem()
            signature = f"{number:016x}"
            self._shapes[signature] = self._shapes[signature].with_figures_of(repeats)
        return tuple(sorted(self._shapes.values(), key=lambda cycle: -cycle.bytes))

    @property
    def status(self) -> dict[str, Any]:
        """Costs of this watch: "collections", "walked" (objects) and "spent_ns"; "refused" and
        "refusal" for collections that could not be inspected.

        Several watches share one inspection per collection, and each counts it. "longest_ns" is
        the longest inspection of the process.
        """
        if self._ended is not None:
            return dict(self._ended)
        status: dict[str, Any] = core.watch_status()
        # A forked child counts anew.
        if self._process == os.getpid():
            for name in _COUNTED:
                status[name] -= self._before.get(name, 0)
        return status

    def __repr__(self) -> str:
        state = "removed" if self._id is None else "on"
        return f"<CycleWatch: {state}, {format_count(len(self._shapes), 'shape')} of cycles seen>"

    def __str__(self) -> str:
        status = self.status
        spent = f"{status['spent_ns'] / 1e6:,.1f} ms inside the watch"
        cost = f"{format_count(status['collections'], 'collection')} watched, {spent}"
        lines = [f"no tensor{self._whose} was kept by a reference cycle   ({cost})"]
        if self._shapes:
            cycles = self.cycles
            total = sum(cycle.bytes for cycle in cycles)
            count = sum(cycle.count for cycle in cycles)
            lines = [
                f"{format_count(count, 'reference cycle')} of "
                f"{format_count(len(cycles), 'shape')} kept {format_bytes(total)} "
                f"until the collector ran   ({cost})"
            ]
            for cycle in cycles[:10]:
                lines += ["", str(cycle)]
            if len(cycles) > 10:
                lines += ["", f"and {format_count(len(cycles) - 10, 'more shape')}: .cycles"]
        if self._counted_only:
            lines.append(f"{format_count(self._counted_only, 'more shape')} counted only")
        if self._id is not None and not status["listed"]:
            lines.append("gc.callbacks was cleared; the watch has stopped")
        if status["refused"]:
            lines.append(
                f"{format_count(status['refused'], 'collection')} could not be inspected: "
                f"{status['refusal']}"
            )
        return "\n".join(lines)

    # The core calls this at the end of a collection, on the thread that ran it.
    # Returns the signatures whose repeats need no description.
    def _receive(self, found: Mapping[str, Any], generation: int) -> tuple[int, ...]:
        if sys.is_finalizing():
            # Cycles left by the interpreter's own shutdown are not the program's.
            return ()
        self._counted_only += found["left_out"]
        errors: list[Exception] = []
        for plain in found["cycles"]:
            try:
                if plain["nodes"] is None:
                    self._count(plain)
                else:
                    self._report(plain)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        if not self._once or self._callback is not None or _LOGGER.isEnabledFor(logging.DEBUG):
            return ()
        return tuple(plain["signature"] for plain in found["cycles"] if plain["nodes"] is not None)

    def _count(self, plain: Mapping[str, Any]) -> None:
        more = self._repeats.setdefault(plain["signature"], dict(_NOTHING, devices={}))
        for name in _NOTHING:
            more[name] += plain[name]
        for device, size in plain["devices"].items():
            more["devices"][device] = more["devices"].get(device, 0) + size

    def _report(self, plain: Mapping[str, Any]) -> None:
        signature = f"{plain['signature']:016x}"
        before = self._shapes.get(signature)
        if before is None:
            self._report_new(signature, plain)
        else:
            cycle = cycle_from_core(plain, garbage=True)
            self._shapes[signature] = total = before.with_figures_of(plain)
            text = _warning_text(cycle, total)
            _LOGGER.debug("%s", text)
            self._hand_on(cycle, text, warned=self._once)

    def _report_new(self, signature: str, plain: Mapping[str, Any]) -> None:
        pointers = (row[6][5] for row in plain["nodes"] if row[6] is not None)
        allocations = allocations_of(pointers, are_live=False)
        cycle = cycle_from_core(plain, garbage=True, allocations=allocations)
        self._shapes[signature] = cycle
        text = _warning_text(cycle, cycle)
        _LOGGER.info("%s", text)
        try:
            # Only the parent writes pages; DataLoader workers would overwrite them.
            if self._html_dir is not None and self._process == os.getpid():
                rank = rank_facts()["rank"]
                whose = "" if rank is None else f"-rank{rank}"
                page = os.path.join(self._html_dir, f"cycle-{signature}{whose}.html")
                cycle.graph.to_html(page)
        finally:
            self._hand_on(cycle, text, warned=False)

    def _hand_on(self, cycle: TensorCycle, text: str, *, warned: bool) -> None:
        try:
            if self._callback is not None:
                self._callback(cycle)
        finally:
            if not warned:
                _warn(text, cycle)


def _warning_text(cycle: TensorCycle, total: TensorCycle) -> str:
    _, *rest = str(cycle).splitlines()
    again = "" if total.count == cycle.count else f", {total.count:,} of this shape so far"
    verb = "kept" if cycle.resurrected < cycle.count else "lives on with"
    cycles = "a reference cycle" if cycle.count == 1 else f"{cycle.count:,} reference cycles"
    headline = f"{cycles} {verb} {cycle.size_text} until the garbage collector ran{again}"
    if cycle.resurrected >= cycle.count:
        headline = f"{cycles} with {cycle.size_text} survived a collection: a finalizer kept it"
    elif cycle.resurrected:
        headline += f" ({cycle.resurrected:,} were brought back by a finalizer)"
    return "\n".join([headline, *rest])


def _module_file(cycle: TensorCycle) -> str:
    """The file that defines a class of the cycle; "neutracer" if none is known."""
    for node in cycle.graph.nodes:
        name = node.type
        while node.tensor is None and "." in name:
            name = name.rpartition(".")[0]
            module = sys.modules.get(name)
            # An object of another type in sys.modules may run code on access.
            file = vars(module).get("__file__") if type(module) is ModuleType else None
            if isinstance(file, str):
                return file
    return "neutracer"


def _warn(text: str, cycle: TensorCycle) -> None:
    """Warn at the place of the reference to break, not where the collector ran."""
    filename, line = _module_file(cycle), 1
    if cycle.place is not None:
        filename, line = cycle.place.filename, max(cycle.place.line, 1)
    warnings.warn_explicit(text, TensorCycleWarning, filename, line)


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
    """Summarize a program's watched run and the garbage left at its end."""
    cycles = by_shape(watch.cycles, find_tensor_cycles(device, min_bytes, include_alive=False))
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
    index, use = _cuda_device(device)
    collector = PressureCollector(
        use, f"cuda:{index}", fraction, min_garbage, max_garbage, interval, callback
    )
    collector._thread.start()
    return collector


def _cuda_device(device: object) -> tuple[int, Callable[[], _Use]]:
    """The number of a device that is in use, and a function that reads its use."""
    torch: Any = sys.modules["torch"]
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        # The recorder, which a watch does not need.
        from neutracer.recording.recorder import without_cuda

        raise without_cuda(torch)
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise ValueError(f"device is {chosen}: it must be a CUDA device")
    index: int = torch.cuda.current_device() if chosen.index is None else chosen.index

    def use() -> _Use:
        free, total = torch.cuda.mem_get_info(index)
        allocated = torch.cuda.memory_allocated(index)
        cached = torch.cuda.memory_reserved(index) - allocated
        return _Use(total - free - cached, allocated, total)

    return index, use


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
            if self._max_garbage is None and self._measure().share < self._fraction:
                self._wait_s = _FIRST_WAIT_S
                self._next_walk = 0.0
            elif time.monotonic() >= self._next_walk:
                self._pending = True
                self._pending = core.call_at_safe_point(self._collect)

    # On the main thread, between two bytecodes.
    def _collect(self) -> None:
        try:
            if not self._ended.is_set():
                self._collect_if_worth_it()
        finally:
            self._pending = False

    def _collect_if_worth_it(self) -> None:
        begin = time.monotonic()
        garbage = garbage_held(*self._filter)
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
        # Of cycles that hold each other through autograd's nodes one collection frees the first.
        for _ in range(_MOST_LAYERS):
            if garbage_held(*self._filter) < max(self._min_garbage, 1):
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
