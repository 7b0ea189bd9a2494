# SPDX-License-Identifier: Apache-2.0
"""`warn_tensor_cycles`: observe the collector and report each cycle that holds tensors."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import path_name, reader_name
from neutracer.errors import TensorCycleWarning, UnavailableError
from neutracer.heap.cycles import (
    ACCELERATORS,
    TensorCycle,
    cycle_from_core,
    device_filter,
    least_bytes,
)
from neutracer.heap.objects import Allocation
from neutracer.pickling import StaysHere
from neutracer.recording.sidecar import rank_facts
from neutracer.render.document import Place
from neutracer.units import format_bytes, format_count

# ---- Allocation sites --------------------------------------------------------------------

# PyTorch's frames on the way into the allocator, which do not help to find a place.
_OWN_FILES = ("??", "torch/cuda/memory.py")


def allocations_of_live(pointers: Iterable[int]) -> dict[int, Allocation]:
    """The recorded allocations of memory in use on a CUDA device; CUDA is not initialised.

    Args:
        pointers: Device addresses at which storages begin; 0 is skipped.

    Returns:
        Allocations by pointer; empty while PyTorch's history is off.
    """
    wanted = {pointer for pointer in pointers if pointer}
    memory = _recording_memory() if wanted else None
    if memory is None:
        return {}
    lookup = getattr(memory, "_allocation_traceback", None)
    if lookup is not None:
        stacks = {pointer: lookup(pointer) for pointer in wanted}
    else:
        stacks = _stacks_of_blocks(memory, wanted)
    made = {pointer: Allocation(_places(frames or ())) for pointer, frames in stacks.items()}
    return {pointer: allocation for pointer, allocation in made.items() if allocation.frames}


def allocations_of_freed(pointers: Iterable[int]) -> dict[int, Allocation]:
    """The last allocations of memory that was just freed, from PyTorch's trace.

    It takes a PyTorch snapshot: some microseconds per event.

    Args:
        pointers: Device addresses at which storages began; 0 is skipped.

    Returns:
        Allocations by pointer; empty while PyTorch's history is off.
    """
    wanted = {pointer for pointer in pointers if pointer}
    memory = _recording_memory() if wanted else None
    if memory is None:
        return {}
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


# ---- Watch -------------------------------------------------------------------------------

# When a collection begins, the core predicts in C, without taking references, which objects the
# collector will find; when it ends, the watch reports the cycles. The collector is unchanged.

_LOGGER = logging.getLogger("neutracer")

# Shapes described per collection; further ones are only counted.
_MOST_SHAPES = 50

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


def prepare_heap() -> None:
    """Learn torch's tensor layout and check this Python's heap layout."""
    if sys.modules.get("torch") is None:
        raise UnavailableError("torch in this process", "import torch first")
    core.heap_prepare()
    core.names_prepare()
    core.tensor_prepare()


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
            self._receive, device_type, device_index, min_bytes, _MOST_SHAPES
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
        allocations = allocations_of_freed(pointers)
        cycle = cycle_from_core(plain, garbage=True, allocations=allocations)
        self._shapes[signature] = cycle
        text = _warning_text(cycle, cycle)
        _LOGGER.info("%s", text)
        try:
            # Only the parent writes pages; DataLoader workers would overwrite them.
            if self._html_dir is not None and self._process == os.getpid():
                cycle.graph.to_html(os.path.join(self._html_dir, _page_name(signature)))
        finally:
            self._hand_on(cycle, text, warned=False)

    def _hand_on(self, cycle: TensorCycle, text: str, *, warned: bool) -> None:
        try:
            if self._callback is not None:
                self._callback(cycle)
        finally:
            if not warned:
                _warn(text, cycle)


def _page_name(signature: str) -> str:
    rank = rank_facts()["rank"]
    return f"cycle-{signature}.html" if rank is None else f"cycle-{signature}-rank{rank}.html"


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
