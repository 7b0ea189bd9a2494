# SPDX-License-Identifier: Apache-2.0
"""The part of `neutracer attach` that runs inside the target process."""

from __future__ import annotations

import _thread
import itertools
import json
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import neutracer.hooks.shim as hooks
from neutracer.errors import NeutracerError
from neutracer.monitor.exporter import MetricsServer, serve_metrics
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.recording.program import OnDemand
from neutracer.recording.sidecar import rank_facts, running_program
from neutracer.run.begin import TAKEN, reply
from neutracer.run.following import Following, check_writable

# ---- Safe point --------------------------------------------------------------------------

# Something done by the main thread, between two steps of whatever it is at.

# A Ctrl-C that came meanwhile is given to the program again after so many seconds.
_LATER_S = 0.05

_numbers = itertools.count(1)
_errands: dict[int, _Errand] = {}


class _Errand:
    """What is to be done, and what became of it."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.error: BaseException | None = None
        # Released when it is done. The plainest of locks: the main thread may be anywhere.
        self.undone = _thread.allocate_lock()
        self.undone.acquire()


def in_main_thread(action: Callable[[], object], seconds: float) -> None:
    """Have the main thread call something as soon as it runs Python's bytecode (3.14 on).

    The call comes between two steps of the program, as that of a signal's handler does, so
    it is short, and waits for nothing that the main thread may hold.

    Args:
        action: What it calls.
        seconds: How long to wait for it.

    Raises:
        NeutracerError: The main thread has not come back to Python in that time; it will not
            call it any more.
        Exception: What the action raised.
    """
    if threading.current_thread() is threading.main_thread():
        action()
        return
    number, errand = next(_numbers), _Errand(action)
    _errands[number] = errand
    try:
        _send(number, errand, seconds)
    finally:
        _errands.pop(number, None)
    if isinstance(errand.error, KeyboardInterrupt):
        # It was meant for the program, which has not seen it.
        threading.Timer(_LATER_S, _thread.interrupt_main).start()
    if errand.error is not None:
        raise errand.error


def _send(number: int, errand: _Errand, seconds: float) -> None:
    remote_exec: Any = sys.remote_exec  # type: ignore[attr-defined,unused-ignore]
    handle, script = tempfile.mkstemp(".py", "neutracer-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.modules[{__name__!r}].run_errand({number})\n")
        remote_exec(os.getpid(), script)
        if errand.undone.acquire(timeout=seconds):
            return
        # Whoever takes it out of the list has it: the main thread may just be beginning.
        if _errands.pop(number, None) is None:
            errand.undone.acquire()
            return
        with suppress(Exception):
            # In the place of the script, which will not be there any more.
            remote_exec(os.getpid(), os.devnull)
        raise NeutracerError(f"the main thread has not come back to Python in {seconds:g} s")
    finally:
        os.unlink(script)


def run_errand(number: int) -> None:
    """Do what was asked for under this number, if it still is; nothing is raised."""
    errand = _errands.pop(number, None)
    if errand is None:
        return
    try:
        errand.action()
    except BaseException as error:
        errand.error = error
    finally:
        errand.undone.release()


# ---- Attached ----------------------------------------------------------------------------

# What `neutracer attach` has begun in this process, and how its requests are answered.

# Between two looks whether anybody still waits for a recording, in seconds.
_LOOK_S = 0.1

# How long the main thread may take to come to a safe point once more: it was at one just now.
_MAIN_WAIT_S = 30.0


class _On:
    """What is on in this process until it is ended."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # Held while something is begun or ended.
        self.lock = threading.Lock()
        self.following: Following | None = None
        self.beside: OnDemand | None = None
        self.server: MetricsServer | None = None


_on = _On()


def _mine() -> _On:
    """What is on here; in the child of a fork nothing is."""
    global _on
    if _on.process != os.getpid():
        _on = _On()
    return _on


def answer(folder: str) -> None:
    """Do what a folder's request says, and answer there; raises nothing.

    It ends what it has begun if it could not do all of it, or nobody waits for the answer
    any more.
    """
    try:
        with ExitStack() as undo:
            told = _done(Path(folder), undo)
            if reply(folder, told):
                undo.pop_all()
    except (NeutracerError, OSError, ValueError) as error:
        reply(folder, {"error": str(error)})
    except Exception as error:
        reply(folder, {"error": f"{type(error).__name__}: {error}"})


def _done(folder: Path, undo: ExitStack) -> dict[str, Any]:
    asked = json.loads((folder / TAKEN).read_text(encoding="utf-8"))
    needs_cuda = asked["report"] or asked["watch"] or asked["record_s"] is not None
    _check_torch(needs_cuda)
    if needs_cuda:
        check_writable(asked["directory"])
    on = _mine()
    told = _facts()
    if asked["report"]:
        _write(Following(asked["directory"], 0, asked["stacks"], "attach"), "report", told)
    with on.lock:
        if asked["detach"]:
            told["ended"] = _detach(on, told)
        if asked["watch"]:
            _watch(on, asked, undo, told)
        if asked["port"] is not None:
            _serve(on, asked["port"], undo, told)
    if asked["record_s"] is not None:
        _record(asked, folder, told)
    told["watching"] = "" if on.following is None else on.following.directory
    told["metrics"] = "" if on.server is None else on.server.url
    return told


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


def _write(following: Following, reason: str, told: dict[str, Any]) -> None:
    """Write a report."""
    following.write(reason)
    if not following.files:
        raise NeutracerError(following.notes[0])
    told["files"] += following.files


def _record(asked: dict[str, Any], folder: Path, told: dict[str, Any]) -> None:
    """Record for some seconds, as long as somebody waits for it."""
    following = _begun(asked, watch=False)
    try:
        end = time.monotonic() + asked["record_s"]
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            if not folder.exists():
                raise NeutracerError("nobody waits for the recording")
        _write(following, "record", told)
    finally:
        following.end(None)


def _begun(asked: dict[str, Any], *, watch: bool) -> Following:
    following = Following(
        # A process that somebody else runs is not kept waiting for a compiler.
        *(asked["directory"], asked["max_entries"], asked["stacks"], "attach"),
        recorder="pytorch",
    )
    following.begin(watch=watch)
    if following.why:
        following.end(None)
        raise NeutracerError(following.why)
    return following


def _watch(on: _On, asked: dict[str, Any], undo: ExitStack, told: dict[str, Any]) -> None:
    """Write reports of out-of-memory errors, and at SIGUSR2, from now on."""
    there = Following.watching()
    if there is not None:
        raise NeutracerError(
            f"it is watched by 'neutracer {there.command}' already: reports go to {there.directory}"
        )
    signum = getattr(signal, "SIGUSR2", None)
    if signum is not None and _is_taken(signum):
        told["notes"].append("the program handles SIGUSR2 itself: no report is written at it")
        signum = None
    following = _begun(asked, watch=True)
    undo.callback(following.end, None)
    beside = OnDemand(following.write, every_s=None, signum=signum, in_main=_in_main)
    beside.start()
    undo.callback(beside.stop)
    on.following, on.beside = following, beside
    undo.callback(_forget_watch, on)


def _in_main(action: Callable[[], object]) -> None:
    in_main_thread(action, _MAIN_WAIT_S)


def _forget_watch(on: _On) -> None:
    on.following, on.beside = None, None


def _is_taken(signum: int) -> bool:
    """Whether the program does something at a signal, in Python or in C."""
    if signal.getsignal(signum) != signal.SIG_DFL:
        return True
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signum - 1) & 1)
    return False


def _serve(on: _On, port: int, undo: ExitStack, told: dict[str, Any]) -> None:
    """Serve metrics from now on."""
    if on.server is not None:
        raise NeutracerError(f"it serves metrics already: {on.server.url}")
    if reason := hooks.why_none():
        told["notes"].append(f"the metrics are read by PyTorch's Python entry points: {reason}")
    # Users of metrics have alerts of their own; nothing goes into the program's log.
    monitor = MemoryMonitor(actions=()).start()
    undo.callback(monitor.stop)
    on.server = serve_metrics(monitor, port)
    undo.callback(_stop_serving, on)


def _stop_serving(on: _On) -> None:
    server, on.server = on.server, None
    if server is not None:
        server.stop()
        server.monitor.stop()


def _detach(on: _On, told: dict[str, Any]) -> list[str]:
    """End what is on; returns what that was, in words."""
    ended = []
    if on.following is not None:
        if on.beside is not None:
            # If this fails, nothing has changed.
            on.beside.stop()
        on.following.end(None)
        told["files"] += on.following.files
        told["notes"] += on.following.notes
        told["ooms_seen"] = on.following.ooms_seen
        _forget_watch(on)
        ended.append("the watch")
    if on.server is not None:
        _stop_serving(on)
        ended.append("the metrics")
    if not ended:
        raise NeutracerError("nothing of 'neutracer attach' is on there")
    return ended
