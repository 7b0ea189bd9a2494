# SPDX-License-Identifier: Apache-2.0
"""The plugin and the worker extension for vLLM: its phases, and what each worker's memory is for.

vLLM loads the plugin in each of its processes; one that did not ask for neutracer loads nothing of
it but this file and `hosts`.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neutracer.integrations.hosts import quietly

if TYPE_CHECKING:
    from neutracer.budget import Budget
    from neutracer.monitor.phases import Phase
    from neutracer.trace.snapshot import Snapshot

_LOGGER = logging.getLogger("neutracer")

# ---- Phases ------------------------------------------------------------------------------

_BASE = "vllm.v1.worker.worker_base"

# A worker's methods by the names of vLLM 0.32, with their phases. Steps are "serve", all up to the
# next phase as one turn.
_WORKER = {
    "load_model": "load",
    "determine_available_memory": "profile",
    "initialize_from_config": "KV",
    "compile_or_warm_up_model": "warm-up",
    "execute_model": "serve",
    "sleep": "sleep",
    "wake_up": "wake",
    "reload_weights": "sync",
    "update_weights": "sync",
}
# The same of a worker's model runner, which exists once its device does: inside of "warm-up".
_RUNNER = {"capture_model": "capture"}

# Methods that return bytes that vLLM counts with.
_COUNTS = ("determine_available_memory", "capture_model")


@quietly
def plugin() -> None:
    """Mark the phases of this process's workers, if `NEUTRACER` is in the environment.

    vLLM calls it by the entry point `neutracer` of `vllm.general_plugins`. With `NEUTRACER=run`
    the process is recorded as well; any other value than 0 only marks.
    """
    if os.environ.get("NEUTRACER", "") in ("", "0"):
        return
    from neutracer.recording.imports import when_imported

    if _BASE not in sys.modules and importlib.util.find_spec(_BASE) is None:
        _note(f"this vLLM has no {_BASE}: no phases are marked")
    else:
        when_imported(_BASE, _follow_workers)


def _follow_workers() -> None:
    """Mark each class of workers when its first worker is made."""
    base: Any = getattr(sys.modules[_BASE], "WorkerBase", None)
    if base is None:
        _note("this vLLM has no WorkerBase: no phases are marked")
    elif not hasattr(base.__init__, "_neutracer"):
        base.__init__ = _marked(base.__init__, _begin_worker)


def _marked(method: Callable[..., Any], wrap: Callable[..., Any], *given: Any) -> Any:
    """The method inside of `wrap(method, *given, owner, *its arguments)`."""

    @functools.wraps(method)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrap(method, *given, self, *args, **kwargs)

    marked._neutracer = True  # type: ignore[attr-defined]
    return marked


def _begin_worker(initialise: Any, worker: Any, *args: Any, **kwargs: Any) -> None:
    _mark(type(worker), _WORKER)
    initialise(worker, *args, **kwargs)


@quietly
def _mark(owner: type, phases: Mapping[str, str]) -> None:
    """Mark a class's methods, once; a method that is not there is a note."""
    for name, phase in phases.items():
        method = getattr(owner, name, None)
        if not callable(method):
            _note(f"{owner.__name__} has no {name}(): {phase} is not marked")
        elif not hasattr(method, "_neutracer"):
            wrap = _step if phase == "serve" else _in_phase
            setattr(owner, name, _marked(method, wrap, name, phase))


def _step(method: Any, name: str, phase: str, *args: Any, **kwargs: Any) -> Any:
    # Profiling and warming up take steps too.
    if not _process.open:
        _process.begin(phase)
    return method(*args, **kwargs)


def _in_phase(method: Any, name: str, phase: str, *args: Any, **kwargs: Any) -> Any:
    if phase == "warm-up":
        _mark_runner(*args)
    is_begun = _process.begin(phase)
    try:
        result = method(*args, **kwargs)
    finally:
        if is_begun:
            _process.end(phase)
    if name in _COUNTS and isinstance(result, int):
        _process.counted[name] = result
    return result


@quietly
def _mark_runner(worker: Any, *_: Any) -> None:
    if getattr(worker, "model_runner", None) is not None:
        _mark(type(worker.model_runner), _RUNNER)


def _note(text: str) -> None:
    if text not in _process.notes:
        _process.notes.append(text)
        _LOGGER.warning("%s", text)


class _Process:
    """The phases of this process's worker.

    Attributes:
        open: The open turns, by phase.
        counted: What vLLM's methods returned, in bytes.
        notes: What could not be marked.
    """

    def __init__(self) -> None:
        self.open: dict[str, Phase] = {}
        self.counted: dict[str, int] = {}
        self.notes: list[str] = []

    @quietly
    def begin(self, phase: str) -> bool:
        """Begin a turn; False if one is open: a method that calls its base class's."""
        from neutracer.monitor.phases import Phase

        if phase in self.open:
            return False
        self.end("serve")
        self.open[phase] = Phase(phase).__enter__()
        return True

    @quietly
    def end(self, phase: str) -> None:
        turn = self.open.pop(phase, None)
        if turn is not None:
            turn.__exit__(None, None, None)


_process = _Process()


# ---- Counts ------------------------------------------------------------------------------

Count = tuple[str, str, int, int]


def _counts(worker: Any, budget: Budget) -> list[Count]:
    """(term, the words of vLLM's log, vLLM's bytes, the budget's) of all that both have."""
    terms = {one.term: one.bytes for one in budget.terms}
    peak = _bytes(worker, "peak_activation_memory")
    if peak is not None:
        peak -= _applied_estimate(worker)
    graphs = _process.counted.get("capture_model")
    cache = _bytes(worker, "available_kv_cache_memory_bytes")
    if cache is None:
        cache = _process.counted.get("determine_available_memory")
    weights = _bytes(getattr(worker, "model_runner", None), "model_memory_usage")
    rows = (
        ("weights", "Model loading took", weights),
        ("KV cache", "Available KV cache memory", cache),
        ("activations' peak", "for peak activation", peak),
        ("graphs' pools", "for CUDAGraph memory", graphs),
    )
    found = [(term, words, n, terms.get(term, 0)) for term, words, n in rows if n is not None]
    consumed = _bytes(worker, "total_consumed")
    begun = _bytes(getattr(worker, "init_snapshot", None), "cuda_memory")
    known = [n for n in (consumed, peak, cache) if n is not None]
    if len(known) == 3 and begun is not None and budget.device_bytes is not None:
        words = "all of these, and what is not PyTorch's"
        found.append(("in all", words, sum(known) + (graphs or 0), budget.device_bytes - begun))
    return found


def _bytes(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return int(value) if isinstance(value, (int, float)) else None


def _applied_estimate(worker: Any) -> int:
    """vLLM's estimate of the graphs' memory as far as it is in its activations' peak."""
    envs = sys.modules.get("vllm.envs")
    applied = getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False)
    return (_bytes(worker, "cudagraph_memory_estimate") or 0) if applied else 0


def _difference(counts: list[Count]) -> str:
    """Where the device and vLLM differ most, or ""."""
    from neutracer.units import format_bytes

    parts = [(found - counted, term) for term, _, counted, found in counts if term != "in all"]
    by, term = max(parts, key=lambda one: abs(one[0]), default=(0, ""))
    if not by:
        return ""
    words = "more" if by > 0 else "less"
    return f"the device has {format_bytes(abs(by))} {words} of {term} than vLLM counts"


# ---- Workers -----------------------------------------------------------------------------


class WorkerExtension:
    """What each worker of vLLM answers about its memory, through `collective_rpc`.

    Its answers are texts, numbers and dicts of these. Histories and phases are those of the
    worker's process: start vLLM with `NEUTRACER=run`.

    Example:
        >>> llm = LLM(                                                       # doctest: +SKIP
        ...     model, worker_extension_cls="neutracer.integrations.vllm.WorkerExtension")
        >>> print(llm.collective_rpc("neutracer_report")[0])                 # doctest: +SKIP
        >>> llm.collective_rpc("neutracer_snapshot", args=("snapshots",))    # doctest: +SKIP
    """

    def neutracer_snapshot(self, directory: str = "neutracer-run") -> str:
        """Write a snapshot with its sidecar; each worker's file has its rank in its name.

        Args:
            directory: The folder, as the worker sees it.

        Returns:
            The file's path.

        Raises:
            UnavailableError: The worker uses no CUDA.
            OSError: It can't be written.
        """
        from neutracer.recording.long_history import save_now

        return save_now(_held_now(), os.path.abspath(directory))

    def neutracer_report(self) -> str:
        """The report of the worker's memory, as `neutracer report` prints it of a file.

        Below it stands what vLLM counts beside the budget.

        Raises:
            UnavailableError: The worker uses no CUDA.
        """
        from neutracer.overview import overview
        from neutracer.render.document import Figure, Table
        from neutracer.render.text import render_text

        snap = _held_now()
        shown = overview(snap).document()
        counts = _counts(self, _budget(snap))
        rows = tuple(
            (term, Figure.bytes(counted), Figure.bytes(found), words)
            for term, words, counted, found in counts
        )
        notes = tuple(filter(None, (_difference(counts), *_process.notes)))
        columns = ("what vLLM counts", "vLLM", "budget", "")
        table = Table("", rows, columns, notes)
        blocks = (*shown.blocks, table) if rows or notes else shown.blocks
        return render_text(replace(shown, blocks=blocks))

    def neutracer_budget(self) -> dict[str, Any]:
        """The budget of the worker's device, and what vLLM counts beside it.

        Returns:
            "device", "device_bytes" (None if it can't be read), "reserved_bytes", "terms" (bytes
            by term), "vllm" (a dict for each figure: "term", "log" (vLLM's words for it),
            "counted_bytes", "found_bytes"), "difference" (where the two differ most) and
            "notes".

        Raises:
            UnavailableError: The worker uses no CUDA.
        """
        snap = _now()
        budget = _budget(snap)
        counts = _counts(self, budget)
        keys = ("term", "log", "counted_bytes", "found_bytes")
        return {
            "device": _device(snap),
            "device_bytes": budget.device_bytes,
            "reserved_bytes": budget.reserved_bytes,
            "terms": {one.term: one.bytes for one in budget.terms},
            "vllm": [dict(zip(keys, one, strict=True)) for one in counts],
            "difference": _difference(counts),
            "notes": list(_process.notes),
        }


def _now() -> Snapshot:
    """A snapshot of this process with the categories of its tensors."""
    from neutracer.recording.long_history import snapshot_now
    from neutracer.recording.recorder import ask_tensors

    return ask_tensors(snapshot_now())


def _held_now() -> Snapshot:
    """A snapshot with the owners of what is in use."""
    from neutracer.heap.owners import held_at_end

    snap = _now()
    snap.beside = replace(snap.beside, holders=held_at_end(snap))
    return snap


def _device(snap: Snapshot) -> int:
    """The worker's own device: the current one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return 0 if snap.is_cpu or cuda is None else int(cuda.current_device())


def _budget(snap: Snapshot) -> Budget:
    from neutracer.budget import budget_of, outside_now

    device = _device(snap)
    return budget_of(snap, device, None if snap.is_cpu else outside_now(device))
