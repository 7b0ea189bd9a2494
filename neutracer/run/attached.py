# SPDX-License-Identifier: Apache-2.0
"""The part of `neutracer attach` that runs inside the target process."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import neutracer.hooks.shim as hooks
from neutracer.errors import NeutracerError
from neutracer.monitor.exporter import MetricsServer
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.recording.program import OnDemand
from neutracer.recording.sidecar import rank_facts, running_program
from neutracer.run.begin import TAKEN, reply
from neutracer.run.following import Following, check_writable
from neutracer.run.serve import serve_metrics

# ---- Attached ----------------------------------------------------------------------------

_POLL_S = 0.1  # Between checks that the command still waits for a recording.


class _State:
    """The watch and server that `neutracer attach` has started in this process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()  # Held while starting or ending a part.
        self.following: Following | None = None
        self.on_demand: OnDemand | None = None
        self.server: MetricsServer | None = None


_state = _State()


def _own_state() -> _State:
    """This process's state; new in a forked child."""
    global _state
    if _state.process != os.getpid():
        _state = _State()
    return _state


def answer(folder: str) -> None:
    """Handle the request in a folder and reply there; raises nothing.

    On failure, or if the command no longer waits for the reply, everything started is ended.
    """
    try:
        with ExitStack() as undo:
            result = _handle(Path(folder), undo)
            if reply(folder, result):
                undo.pop_all()
    except (NeutracerError, OSError, ValueError) as error:
        reply(folder, {"error": str(error)})
    except Exception as error:
        reply(folder, {"error": f"{type(error).__name__}: {error}"})


def _handle(folder: Path, undo: ExitStack) -> dict[str, Any]:
    request = json.loads((folder / TAKEN).read_text(encoding="utf-8"))
    needs_cuda = request["report"] or request["watch"] or request["record_s"] is not None
    _check_torch(needs_cuda)
    if needs_cuda:
        check_writable(request["directory"])
    state = _own_state()
    result = _facts()
    if request["report"]:
        _write(Following(request["directory"], 0, request["stacks"], "attach"), "report", result)
    with state.lock:
        if request["detach"]:
            result["ended"] = _detach(state, result)
        if request["watch"]:
            _watch(state, request, undo, result)
        if request["port"] is not None:
            _serve(state, request["port"], undo, result)
    if request["record_s"] is not None:
        _record(request, folder, result)
    result["watching"] = "" if state.following is None else state.following.directory
    result["metrics"] = "" if state.server is None else state.server.url
    return result


def _facts() -> dict[str, Any]:
    facts = rank_facts()
    return {
        "program": running_program(),
        "rank": facts["rank"],
        "world_size": facts["world_size"],
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "torch": str(getattr(sys.modules["torch"], "__version__", "")),
        "ended": [],
        "files": [],
        "notes": [],
        "ooms_seen": 0,
    }


def _check_torch(needs_cuda: bool) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        raise NeutracerError("it has not imported torch")
    if needs_cuda and getattr(torch.version, "cuda", None) is None:
        raise NeutracerError("its torch is built without CUDA")
    if needs_cuda and not torch.cuda.is_initialized():
        raise NeutracerError("it has not used CUDA so far")


def _write(following: Following, reason: str, result: dict[str, Any]) -> None:
    following.write(reason)
    if not following.files:
        raise NeutracerError(following.notes[0])
    result["files"] += following.files


def _record(request: dict[str, Any], folder: Path, result: dict[str, Any]) -> None:
    """Record for some seconds, unless the command goes away."""
    following = _begun(request, watch=False)
    try:
        end = time.monotonic() + request["record_s"]
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))
            if not folder.exists():
                raise NeutracerError("the command no longer waits for the recording")
        _write(following, "record", result)
    finally:
        following.end(None)


def _begun(request: dict[str, Any], *, watch: bool) -> Following:
    following = Following(
        # PyTorch's recorder: compiling the hooks would stall someone else's program.
        *(request["directory"], request["max_entries"], request["stacks"], "attach"),
        recorder="pytorch",
    )
    following.begin(watch=watch)
    if following.why:
        following.end(None)
        raise NeutracerError(following.why)
    return following


def _watch(state: _State, request: dict[str, Any], undo: ExitStack, result: dict[str, Any]) -> None:
    """Write reports of out-of-memory errors, and at SIGUSR2, from now on."""
    there = Following.watching()
    if there is not None:
        raise NeutracerError(
            f"'neutracer {there.command}' already watches it: reports go to {there.directory}"
        )
    following = _begun(request, watch=True)
    undo.callback(following.end, None)
    beside = OnDemand(following.write, every_s=None, signum=signal.SIGUSR2)
    beside.start()
    if beside.signum is None:
        result["notes"].append("the program handles SIGUSR2 itself: the signal writes no report")
    undo.callback(beside.stop)
    state.following, state.on_demand = following, beside
    undo.callback(_forget_watch, state)


def _forget_watch(state: _State) -> None:
    state.following, state.on_demand = None, None


def _serve(state: _State, port: int, undo: ExitStack, result: dict[str, Any]) -> None:
    if state.server is not None:
        raise NeutracerError(f"it already serves metrics: {state.server.url}")
    if reason := hooks.why_none():
        result["notes"].append(f"the metrics are read through PyTorch's Python API: {reason}")
    # No actions: metrics have alerts of their own, and the log is the program's.
    monitor = MemoryMonitor(actions=()).start()
    undo.callback(monitor.stop)
    state.server = serve_metrics(monitor, port)
    undo.callback(_stop_serving, state)


def _stop_serving(state: _State) -> None:
    server, state.server = state.server, None
    if server is not None:
        server.stop()
        server.monitor.stop()


def _detach(state: _State, result: dict[str, Any]) -> list[str]:
    """End everything; returns the names of the ended parts."""
    ended = []
    if state.following is not None:
        if state.on_demand is not None:
            state.on_demand.stop()  # First: if this fails, nothing has changed.
        state.following.end(None)
        result["files"] += state.following.files
        result["notes"] += state.following.notes
        result["ooms_seen"] = state.following.ooms_seen
        _forget_watch(state)
        ended.append("the watch")
    if state.server is not None:
        _stop_serving(state)
        ended.append("the metrics")
    if not ended:
        raise NeutracerError("'neutracer attach' has nothing running there")
    return ended
