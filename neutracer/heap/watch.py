# SPDX-License-Identifier: Apache-2.0
"""`warn_tensor_cycles`: the collector observed, and each cycle that holds tensors reported."""

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

# Where and when the memory of tensors was allocated, while PyTorch records its history.

# PyTorch's own frames on the way into the allocator say nothing of the program.
_OWN_FILES = ("??", "torch/cuda/memory.py")


def allocations_of_live(pointers: Iterable[int]) -> dict[int, Allocation]:
    """The allocations of memory that is in use on a CUDA device.

    This does not initialise CUDA. It asks PyTorch's lookup by address where this torch has
    one, else its list of segments.

    Args:
        pointers: Device addresses at which storages begin; 0 is skipped.

    Returns:
        What was recorded, by pointer; empty where PyTorch does not record its history now.
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
    """The last allocations of memory that was in use a moment ago, from PyTorch's trace.

    This takes as long as PyTorch needs for a snapshot: some microseconds for each event
    that it holds.

    Args:
        pointers: Device addresses at which storages began; 0 is skipped.

    Returns:
        What was recorded, by pointer; empty where PyTorch does not record its history now.
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
    """torch.cuda.memory if the history of allocations is on, or None."""
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

# The watch for reference cycles that keep tensors until the garbage collector runs.
#
# It changes nothing about the collector: when a collection begins, the core works out what the
# collector is about to find, in C and without a reference to anything; when it has ended, the
# watch reports it.

_LOGGER = logging.getLogger("neutracer")

# Shapes that are described in one collection; of more only the sum is reported.
_MOST_SHAPES = 50

# What the core counts for all watches of the process, and a watch from its own beginning
# on.
_COUNTED = ("collections", "walked", "predicted", "described", "survivors", "refused", "spent_ns")

# What of a repeat is added up, and devices.
_NOTHING = {"bytes": 0, "count": 0, "tensors": 0, "survivors": 0}


def warn_tensor_cycles(
    device: object = None,
    min_bytes: int = 0,
    callback: Callable[[TensorCycle], object] | None = None,
    html_dir: str | os.PathLike[str] | None = None,
    once_per_signature: bool = True,
) -> CycleWatch:
    """Warn when a garbage collection finds reference cycles that kept tensors.

    A tensor in a cycle, or behind one, is not freed when the program lets go of it, but
    when Python's collector happens to run; until then its memory is lost. The watch looks
    at every collection, automatic or not, and names the objects of each cycle, the tensors
    they kept and the reference to break: as a `TensorCycleWarning` (which the filters of
    `warnings` apply to), to the logger "neutracer", and to `callback`.

    It runs no collection, sets no debug flag and keeps no object alive. It works until you
    remove it, whether or not you keep its handle; several watches don't disturb each other.

    Args:
        device: Whose tensors count: None for those of every accelerator, "cpu", "cuda",
            "cuda:1", or "all".
        min_bytes: Cycles that keep less are ignored.
        callback: Called with each `TensorCycle` of each collection, even of a shape that it
            has warned of before.
        html_dir: A folder, created if needed, for an offline page with the object graph of
            each shape: `cycle-<signature>.html`, with a rank `cycle-<signature>-rank3.html`.
            The children of a fork write none.
        once_per_signature: Warn once of each shape and count its repeats; False warns in
            every collection.

    Returns:
        The handle: `remove()` ends the watch, and so does leaving it as a context manager;
        `cycles` has what was found, and `print(watch)` sums it up.

    Raises:
        UnavailableError: torch is not imported, or the memory layout of this Python or
            this torch is unknown; `.install` says which and why.
        ValueError: There is no such device, or min_bytes is negative.

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
        # A page may be due at the end of the program, when nothing can be imported any more.
        importlib.import_module("neutracer.heap.drawing")
    watch = CycleWatch(callback, folder, once_per_signature)
    watch._begin(*wanted, min_bytes)
    return watch


def prepare_heap() -> None:
    """Learn how torch lays out its tensors, and check how this Python lays out its heap.

    Raises:
        UnavailableError: torch is not imported, or a layout is not known.
    """
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
        self._seen: dict[str, TensorCycle] = {}
        # Figures of repeats that are not in `_seen` yet, by the core's signature.
        self._repeats: dict[int, dict[str, Any]] = {}
        self._untold = 0
        self._id: int | None = None
        self._whose = ""
        self._process = os.getpid()
        self._before: dict[str, Any] = {}
        self._ended: dict[str, Any] | None = None

    def _begin(self, device_type: int, device_index: int, min_bytes: int) -> None:
        self._whose = " of an accelerator" if device_type == ACCELERATORS else ""
        # The core keeps the watch, so that it lives without its handle.
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
        """What was found until now, one entry a shape with its count, most bytes first."""
        while self._repeats:
            number, repeats = self._repeats.popitem()
            signature = f"{number:016x}"
            self._seen[signature] = self._seen[signature].with_figures_of(repeats)
        return tuple(sorted(self._seen.values(), key=lambda cycle: -cycle.bytes))

    @property
    def status(self) -> dict[str, Any]:
        """What the watching cost while this watch was on: "collections", "walked" (objects),
        "spent_ns", and whether any collection was not looked at ("refused" and "refusal").

        Several watches share one look at each collection, and each counts it. "longest_ns" is
        the longest look of all watches of the process.
        """
        if self._ended is not None:
            return dict(self._ended)
        status: dict[str, Any] = core.watch_status()
        # The child of a fork counts anew.
        if self._process == os.getpid():
            for name in _COUNTED:
                status[name] -= self._before.get(name, 0)
        return status

    def __repr__(self) -> str:
        state = "removed" if self._id is None else "on"
        return f"<CycleWatch: {state}, {format_count(len(self._seen), 'shape')} of cycles seen>"

    def __str__(self) -> str:
        status = self.status
        spent = f"{status['spent_ns'] / 1e6:,.1f} ms inside the watch"
        seen = f"{format_count(status['collections'], 'collection')} watched, {spent}"
        lines = [f"no tensor{self._whose} was kept by a reference cycle   ({seen})"]
        if self._seen:
            cycles = self.cycles
            total = sum(cycle.bytes for cycle in cycles)
            count = sum(cycle.count for cycle in cycles)
            lines = [
                f"{format_count(count, 'reference cycle')} of "
                f"{format_count(len(cycles), 'shape')} kept {format_bytes(total)} "
                f"until the collector ran   ({seen})"
            ]
            for cycle in cycles[:10]:
                lines += ["", str(cycle)]
            if len(cycles) > 10:
                lines += ["", f"and {format_count(len(cycles) - 10, 'more shape')}: .cycles"]
        if self._untold:
            lines.append(f"{format_count(self._untold, 'shape')} more were only counted")
        if self._id is not None and not status["listed"]:
            lines.append("gc.callbacks was emptied or replaced: nothing is seen any more")
        if status["refused"]:
            lines.append(
                f"{format_count(status['refused'], 'collection')} could not be looked at: "
                f"{status['refusal']}"
            )
        return "\n".join(lines)

    # Called by the core at the end of a collection, in the thread that ran it.
    # Returns the signatures of which nobody reads more than their figures.
    def _receive(self, found: Mapping[str, Any], generation: int) -> tuple[int, ...]:
        if sys.is_finalizing():
            # The interpreter takes its modules apart: what that leaves is no cycle of the program.
            return ()
        self._untold += found["left_out"]
        errors: list[Exception] = []
        for plain in found["cycles"]:
            try:
                if plain["nodes"] is None:
                    self._count(plain)
                else:
                    self._tell(plain)
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

    def _tell(self, plain: Mapping[str, Any]) -> None:
        signature = f"{plain['signature']:016x}"
        before = self._seen.get(signature)
        if before is None:
            self._tell_new(signature, plain)
        else:
            cycle = cycle_from_core(plain, garbage=True)
            self._seen[signature] = total = before.with_figures_of(plain)
            text = _warning_text(cycle, total)
            _LOGGER.debug("%s", text)
            self._hand_on(cycle, text, warned=self._once)

    def _tell_new(self, signature: str, plain: Mapping[str, Any]) -> None:
        pointers = (row[6][5] for row in plain["nodes"] if row[6] is not None)
        allocations = allocations_of_freed(pointers)
        cycle = cycle_from_core(plain, garbage=True, allocations=allocations)
        self._seen[signature] = cycle
        text = _warning_text(cycle, cycle)
        _LOGGER.info("%s", text)
        try:
            # The pages are the parent's: the workers of a DataLoader would write theirs over them.
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
    """What is reported of a collected cycle."""
    first, *rest = str(cycle).splitlines()
    again = "" if total.count == cycle.count else f", {total.count:,} of this shape so far"
    verb = "kept" if cycle.resurrected < cycle.count else "lives on with"
    cycles = "a reference cycle" if cycle.count == 1 else f"{cycle.count:,} reference cycles"
    first = f"{cycles} {verb} {cycle.size_text} until the garbage collector ran{again}"
    if cycle.resurrected >= cycle.count:
        first = f"{cycles} with {cycle.size_text} lived through a collection: a finalizer kept it"
    elif cycle.resurrected:
        first += f" ({cycle.resurrected:,} were brought back by a finalizer)"
    return "\n".join([first, *rest])


def _module_file(cycle: TensorCycle) -> str:
    """The file of the module that a class of the cycle is defined in; "neutracer" if none is."""
    for node in cycle.graph.nodes:
        name = node.type
        while node.tensor is None and "." in name:
            name = name.rpartition(".")[0]
            module = sys.modules.get(name)
            # A module that is an object of another kind may run code on access.
            file = vars(module).get("__file__") if type(module) is ModuleType else None
            if isinstance(file, str):
                return file
    return "neutracer"


def _warn(text: str, cycle: TensorCycle) -> None:
    """The warning, with the place of the reference to break, not the collector's."""
    filename, line = _module_file(cycle), 1
    if cycle.place is not None:
        filename, line = cycle.place.filename, max(cycle.place.line, 1)
    warnings.warn_explicit(text, TensorCycleWarning, filename, line)
