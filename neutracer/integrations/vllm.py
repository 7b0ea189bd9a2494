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
import threading
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

# A worker's methods in vLLM 0.32, by phase.
_WORKER = {
    "load": ("load_model",),
    "profile": ("determine_available_memory",),
    "KV": ("initialize_from_config",),
    "warm-up": ("compile_or_warm_up_model",),
    "serve": ("execute_model",),
    "sleep": ("sleep",),
    "wake": ("wake_up",),
    "sync": ("reload_weights", "update_weights"),
}
# The same of its model runner, which exists once the worker's device does: inside of "warm-up".
_RUNNER = {"capture": ("capture_model",)}

# Methods that return bytes that vLLM counts with, and the attributes that keep them.
_COUNTS = {name: f"_neutracer_{name}" for name in ("determine_available_memory", "capture_model")}


@quietly
def plugin() -> None:
    """Mark the phases of this process's workers, if `NEUTRACER` is in the environment.

    vLLM calls it by the entry point `neutracer` of `vllm.general_plugins`. With `NEUTRACER=run`
    the process is recorded as well; any other value than 0 only marks.
    """
    if os.environ.get("NEUTRACER", "") in ("", "0"):
        return
    from neutracer.recording.imports import when_imported

    try:
        is_there = _BASE in sys.modules or importlib.util.find_spec(_BASE) is not None
    except ModuleNotFoundError:  # One of its packages.
        is_there = False
    if is_there:
        when_imported(_BASE, _follow_workers)
    else:
        _note(f"this vLLM has no {_BASE}: no phases are marked")


@quietly
def _follow_workers() -> None:
    """Mark each class of workers when its first worker is made."""
    base: Any = getattr(sys.modules[_BASE], "WorkerBase", None)
    if base is None:
        _note("this vLLM has no WorkerBase: no phases are marked")
    elif not hasattr(base.__init__, "_neutracer"):
        base.__init__ = _wrapped(base.__init__, _begin_worker)


def _wrapped(method: Callable[..., Any], wrap: Callable[..., Any], *given: str) -> Any:
    """A method that calls `wrap(method, *given, self, *its arguments)`."""

    @functools.wraps(method)
    def wrapped(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return wrap(method, *given, self, *args, **kwargs)

    wrapped._neutracer = True  # type: ignore[attr-defined]
    return wrapped


def _begin_worker(initialise: Any, worker: Any, /, *args: Any, **kwargs: Any) -> None:
    _mark(type(worker), _WORKER)
    initialise(worker, *args, **kwargs)


@quietly
def _mark(owner: type, phases: Mapping[str, tuple[str, ...]]) -> None:
    """Wrap the methods of a class, once; a phase with none of its methods is a note."""
    for phase, names in phases.items():
        found = {name: getattr(owner, name, None) for name in names}
        if not any(map(callable, found.values())):
            _note(f"{owner.__name__} of this vLLM has no {names[0]}(): {phase} is not marked")
        for name, method in found.items():
            if callable(method) and not hasattr(method, "_neutracer"):
                wrap = _step if phase == "serve" else _turn
                setattr(owner, name, _wrapped(method, wrap, name, phase))


def _step(method: Any, name: str, phase: str, /, *args: Any, **kwargs: Any) -> Any:
    """All steps up to the next phase are one turn; those of profiling and warm-up are theirs."""
    if not _process.open:
        _process.begin(phase)
    return method(*args, **kwargs)


def _turn(method: Any, name: str, phase: str, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
    if phase == "warm-up":
        _mark_runner(owner)
    is_begun = _process.begin(phase)
    try:
        result = method(owner, *args, **kwargs)
    finally:
        if is_begun:
            _process.end(phase)
    if name in _COUNTS:
        _keep(owner, name, result)
    return result


@quietly
def _mark_runner(worker: Any) -> None:
    if getattr(worker, "model_runner", None) is not None:
        _mark(type(worker.model_runner), _RUNNER)


@quietly
def _keep(owner: Any, name: str, result: object) -> None:
    setattr(owner, _COUNTS[name], result)


def _note(text: str) -> None:
    if text not in _process.notes:
        _process.notes.append(text)
        _LOGGER.warning("%s", text)


class _Process:
    """The phases of this process's workers.

    Attributes:
        open: The open turns, by phase.
        notes: What could not be marked.
    """

    def __init__(self) -> None:
        self.open: dict[str, Phase] = {}
        self.notes: list[str] = []
        # Ray's steps come on another thread than its calls.
        self._lock = threading.RLock()

    @quietly
    def begin(self, phase: str) -> bool:
        """Begin a turn; False if one is open: a method that calls its base class's."""
        from neutracer.monitor.phases import Phase
        from neutracer.recording.sidecar import rank_facts

        with self._lock:
            if phase in self.open:
                return False
            # Kept for the last file: by then the worker has left its group.
            rank_facts()
            self.end("serve")
            self.open[phase] = Phase(phase).__enter__()
            return True

    @quietly
    def end(self, phase: str) -> None:
        with self._lock:
            turn = self.open.pop(phase, None)
            if turn is not None:
                turn.__exit__(None, None, None)


_process = _Process()


# ---- Counts ------------------------------------------------------------------------------


def _counts(worker: Any, budget: Budget) -> list[dict[str, Any]]:
    """What vLLM counts beside the budget's terms; the rows of `neutracer_budget`'s "vllm"."""
    terms = {one.term: one.bytes for one in budget.terms}
    runner = getattr(worker, "model_runner", None)
    cache = _bytes(worker, "available_kv_cache_memory_bytes")
    if cache is None:
        cache = _bytes(worker, _COUNTS["determine_available_memory"])
    peak = _bytes(worker, "peak_activation_memory")
    envs = sys.modules.get("vllm.envs")
    if peak is not None and getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False):
        # vLLM adds its estimate of the graphs' memory to the peak.
        peak -= _bytes(worker, "cudagraph_memory_estimate") or 0
    rows = (
        ("weights", "Model loading took", _bytes(runner, "model_memory_usage")),
        ("KV cache", "Available KV cache memory", cache),
        ("activations' peak", "for peak activation", peak),
        ("graphs' pools", "for CUDAGraph memory", _bytes(runner, _COUNTS["capture_model"])),
    )
    return [
        {"term": term, "log": log, "counted_bytes": n, "found_bytes": terms.get(term, 0)}
        for term, log, n in rows
        if n is not None
    ]


def _bytes(owner: Any, name: str) -> int | None:
    value = getattr(owner, name, None)
    return int(value) if isinstance(value, (int, float)) else None


def _difference(counts: list[dict[str, Any]]) -> str:
    """Where the device and vLLM differ most, or ""."""
    from neutracer.units import format_bytes

    parts = [(row["found_bytes"] - row["counted_bytes"], row["term"]) for row in counts]
    by, term = max(parts, key=lambda one: abs(one[0]), default=(0, ""))
    words = "more" if by > 0 else "less"
    text = f"the device has {format_bytes(abs(by))} {words} of {term} than vLLM counts"
    return text if by else ""


def _notes(counts: list[dict[str, Any]]) -> list[str]:
    missing = "this vLLM's worker has none of the figures that vLLM counts with"
    return [*_process.notes, *(() if counts else (missing,))]


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

        return save_now(_now(), os.path.abspath(directory))

    def neutracer_report(self) -> str:
        """The report of the worker's memory, as `neutracer report` prints it of a file.

        Below it stands what vLLM counts beside the budget.

        Raises:
            UnavailableError: The worker uses no CUDA.
        """
        from neutracer.overview import overview
        from neutracer.render.document import Figure, Table
        from neutracer.render.text import render_text

        snap = _now()
        shown = overview(snap).document()
        counts = _counts(self, _budget(snap))
        figure = Figure.bytes
        rows = tuple(
            (one["term"], figure(one["counted_bytes"]), figure(one["found_bytes"]), one["log"])
            for one in counts
        )
        notes = tuple(filter(None, (_difference(counts), *_notes(counts))))
        table = Table("", rows, ("what vLLM counts", "vLLM", "budget", ""), notes)
        return render_text(replace(shown, blocks=(*shown.blocks, table)))

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
        snap = _now(holders=False)
        budget = _budget(snap)
        counts = _counts(self, budget)
        return {
            "device": _device(snap),
            "device_bytes": budget.device_bytes,
            "reserved_bytes": budget.reserved_bytes,
            "terms": {one.term: one.bytes for one in budget.terms},
            "vllm": counts,
            "difference": _difference(counts),
            "notes": _notes(counts),
        }


def _now(*, holders: bool = True) -> Snapshot:
    """A snapshot of this process with its tensors' categories, and the owners of what is in use."""
    from neutracer.heap.owners import held_at_end
    from neutracer.recording.long_history import snapshot_now
    from neutracer.recording.recorder import ask_tensors

    snap = ask_tensors(snapshot_now())
    if holders:
        snap.beside = replace(snap.beside, holders=held_at_end(snap))
    return snap


def _device(snap: Snapshot) -> int:
    """The worker's own device: the current one."""
    return 0 if snap.is_cpu else int(sys.modules["torch"].cuda.current_device())


def _budget(snap: Snapshot) -> Budget:
    from neutracer.budget import budget_of, outside_now

    device = _device(snap)
    return budget_of(snap, device, None if snap.is_cpu else outside_now(device))
