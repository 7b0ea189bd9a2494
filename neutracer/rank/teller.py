# SPDX-License-Identifier: Apache-2.0
"""Publishes this rank's digest: memory, holders and status, from a background thread."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import neutracer.hooks.shim as hooks
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.hooks.live import take
from neutracer.monitor.device_report import PYTORCH, current_attribution
from neutracer.monitor.exporter import Probes
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.rank.digest import MOST_BINS, Held, RankDigest, RankStore, address_of, opened_store
from neutracer.recording.long_history import OutOfMemory
from neutracer.recording.recorder import dumped
from neutracer.recording.sidecar import (
    file_stem,
    job_facts,
    rank_facts,
    running_program,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.trace.events import device_name
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.stacks import Frame, Owner, origin_of, place_of
from neutracer.units import format_count

# ---- Standing ----------------------------------------------------------------------------

# Where the main thread is, seen from another one: its line, and for how long it has been there.

# Deeper stacks are cut at their outer end.
_MOST_FRAMES = 64

# The package's folder.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def main_frames() -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first; nothing is stopped for it."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident or 0)
    # Where it is in this package it was called, as by PyTorch when memory runs out.
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    found: list[Frame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(found)


class Standing:
    """Follows whether the main thread moves; `look` now and then."""

    def __init__(self) -> None:
        self._seen: tuple[tuple[Frame, ...], int] = ((), -1)
        self._since = time.monotonic()

    def look(self, steps: int) -> None:
        """See where it is.

        Args:
            steps: How many steps there were: a loop that goes on comes back to its lines.
        """
        frames = main_frames()
        if (frames, steps) == self._seen:
            return
        self._seen, self._since = (frames, steps), time.monotonic()

    @property
    def where(self) -> str:
        """Its line, as `Timeline.holders(by="place")` would name it."""
        frames = self._seen[0]
        return str(place_of(frames)) if frames else ""

    @property
    def is_in_torch(self) -> bool:
        """Whether its innermost frame is one of PyTorch's: so it is where a rank waits for the
        others in a collective, or for its device."""
        frames = self._seen[0]
        return bool(frames) and origin_of(frames[0].filename).owner is Owner.TORCH

    @property
    def seconds(self) -> float:
        """For how long it has been there."""
        return time.monotonic() - self._since


# ---- Reading -----------------------------------------------------------------------------

# This process as a digest: the monitor's figures, who holds the memory, where it stands.

#: Gives verdict, bytes_per_step, steps_to_oom and grows of a digest for what a monitor has seen
#: of a device over so many steps.
Trend = Callable[[MemoryMonitor, int, int], dict[str, Any]]

# Seconds between two readings (PyTorch counts the peaks between them), and between two marks of
# steps at the least.
_INTERVAL_S = 1.0
_MARK_S = 0.5

# Readings that are kept: neighbours become one.
_HISTORY = 2048

# The layout, which takes milliseconds, is looked at this often; and at most for this share of the
# time.
_LAYOUT_S = 60.0


class Reading:
    """What is read of this process while a watch for ranks is on.

    Args:
        trend: Says what grows.
    """

    def __init__(self, trend: Trend) -> None:
        self._trend = trend
        self._monitor = MemoryMonitor(_INTERVAL_S, None, history=_HISTORY)
        self._probes = Probes(_LAYOUT_S, None)
        self._marked = 0.0
        self._started = False
        self._hook: Any = None
        self._ooms: list[tuple[int, int]] = []
        self.standing = Standing()
        self.steps = 0
        self.why = ""

    def start(self) -> None:
        """Begin; where there are no figures, `why` says so. A second time does nothing."""
        if self._started:
            return
        self._started = True
        try:
            self._monitor.start()
        except NeutracerError as error:
            self.why = f"no figures: {error}"
        try:
            optimizers = importlib.import_module("torch.optim.optimizer")
            self._hook = optimizers.register_optimizer_step_post_hook(self._on_step)
        except (ImportError, AttributeError):
            # Steps are then not counted.
            self._hook = None

    def stop(self) -> None:
        """End it."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._monitor.stop()

    def ran_out(self, time_us: int, asked_bytes: int) -> None:
        """Keep an out-of-memory error, with a reading of its moment."""
        self._ooms.append((time_us, asked_bytes))
        self._monitor.mark("out of memory")

    # On the program's thread, after each step of an optimizer.
    def _on_step(self, optimizer: object, args: object, kwargs: object) -> None:
        self.steps += 1
        now = time.monotonic()
        if now - self._marked >= _MARK_S:
            self._marked = now
            self._monitor.mark(self.steps)

    def digest(self, reason: str, interval_s: float) -> RankDigest:
        """This process now.

        Args:
            reason: Why now: "interval", "oom", "peer", "terminated" or "exit".
            interval_s: The seconds between two digests.
        """
        self.standing.look(self.steps)
        facts, job = rank_facts(), job_facts()
        first = self._ooms[0] if self._ooms else (None, 0)
        return RankDigest(
            source="store",
            notes=(self.why,) if self.why else (),
            rank=facts["rank"],
            world_size=facts["world_size"],
            job=str(job["job"] or ""),
            attempt=None if job["attempt"] is None else int(job["attempt"]),
            host=socket.gethostname(),
            pid=os.getpid(),
            program=running_program(),
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
            written_s=time.time(),
            reason=reason,
            ooms=len(self._ooms),
            first_oom_us=first[0],
            oom_bytes=first[1],
            steps=self.steps,
            where=self.standing.where,
            waits=self.standing.is_in_torch,
            where_s=round(self.standing.seconds, 1),
            interval_s=interval_s,
            **self._figures(),
        )

    def _figures(self) -> dict[str, Any]:
        devices = self._monitor.devices if self._monitor.running else ()
        if not devices:
            return {}
        stats = {one: self._monitor.get_stats(one) for one in devices}
        device = max(devices, key=lambda one: int(stats[one]["peak_reserved_bytes"]))
        mine = stats[device]
        self._probes.look(devices)
        name = device_name(device)
        places = [one for one in self._probes.holders() if one["device"] == name]
        return {
            "device": name,
            "total_bytes": mine["limit_bytes"] or mine["total_bytes"] or None,
            "allocated_bytes": mine["current_bytes"],
            "reserved_bytes": mine["reserved_bytes"],
            "peak_allocated_bytes": mine["peak_bytes"],
            "peak_reserved_bytes": mine["peak_reserved_bytes"],
            "largest_hole_bytes": self._probes.largest_free(device),
            "other_bytes": mine["non_torch_bytes"] if mine["device_used_bytes"] else None,
            "libraries": _libraries(device),
            "places": tuple(
                Held(f"{one['function']} ({one['place']})", one["bytes"], one["count"])
                for one in places
            ),
            **self._trend(self._monitor, device, self.steps),
            **_curve(self._monitor, device),
        }

    def __repr__(self) -> str:
        return f"<Reading: {format_count(self.steps, 'step')}>"


def _libraries(device: int) -> dict[str, int]:
    """What other libraries hold, where an attribution is on."""
    attribution = current_attribution()
    if attribution is None or not attribution.is_on:
        return {}
    uses = attribution.by_library(device)
    return {use.library: use.bytes for use in uses if use.library != PYTORCH}


def _curve(monitor: MemoryMonitor, device: int) -> dict[str, Any]:
    """The most that was allocated in each part of the time since the start."""
    rows = monitor.device_series(device)
    times: list[int] = rows.codes("time_us").tolist()
    highs: list[int] = rows.codes("allocated_high").tolist()
    if len(times) < 2 or times[-1] <= times[0]:
        return {}
    bins = [0] * MOST_BINS
    begin, span = times[0], times[-1] - times[0]
    for time_us, high in zip(times, highs, strict=True):
        at = min((time_us - begin) * MOST_BINS // span, MOST_BINS - 1)
        bins[at] = max(bins[at], high)
    last = highs[0]
    for at, value in enumerate(bins):
        # Between two readings it is as it was.
        bins[at] = last = value or last
    return {"begin_us": begin, "end_us": times[-1], "curve": tuple(bins)}


# ---- Teller ------------------------------------------------------------------------------

# A thread that tells a job's store how this rank is, and what it has when another rank asks.

_LOGGER = logging.getLogger("neutracer")

# How often it looks whether another rank asks, and where the main thread is, in seconds.
_LOOK_S = 0.5

# After so long a store that was not there, or is gone, is tried again.
_AGAIN_S = 5.0

# The events in a layout's file: those before its moment, where the hooks keep them.
_EVENTS = 10_000

# A thread that is in a call to the store when the program ends is waited for so long: by then a
# store that is gone has been given up.
_GONE_S = 5.0

# Who asks for a digest waits so long: an out-of-memory error, and a program.
_PATIENCE_S = 1.0

# And a signal that ends the process in two seconds, when files have been written.
_LAST_S = 0.15


class _Request:
    """A digest that somebody wants told."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.done = threading.Event()
        self.told = False


class Teller:
    """What tells the store of this rank.

    Args:
        reading: What it tells.
        directory: Where layouts go that another rank's out-of-memory error asks for.
        interval_s: Seconds between two digests.
        early: Whether to tell before the process has joined its group, as soon as its launcher's
            store can be reached, and not only from then on.
    """

    def __init__(
        self, reading: Reading, directory: str, interval_s: float, early: bool = True
    ) -> None:
        self._reading = reading
        self._directory = directory
        self._interval_s = interval_s
        self._early = early
        self._store: RankStore | None = None
        # The thread alone speaks with the store, which may not answer for ever.
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._late: _Request | None = None
        self._ended = threading.Event()
        self._process = os.getpid()
        self._answered = False
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="neutracer-ranks", daemon=True)
        self.why = "no process group yet"
        self.address: tuple[str, int] | None = None
        self.written = 0
        self.files: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the last, and end."""
        if self._process != os.getpid() or self._ended.is_set():
            return
        self._ended.set()
        self._requests.put(_Request("exit"))
        self._thread.join(_GONE_S)

    def tell(self, reason: str) -> bool:
        """Have a digest told now; whether that was done within a second."""
        request = self._ask(reason)
        if self._late is None or self._late.done.is_set():
            request.done.wait(_PATIENCE_S)
            self._late = None if request.done.is_set() else request
        return request.told

    def _ask(self, reason: str) -> _Request:
        request = _Request(reason)
        if self._process == os.getpid() and not self._ended.is_set():
            self._requests.put(request)
        else:
            request.done.set()
        return request

    def ran_out(self, told: OutOfMemory) -> None:
        """An out-of-memory error of this process: told, and all other ranks asked."""
        self._reading.ran_out(told.time_us, told.asked_bytes)
        self._answered = True
        self.tell("oom")

    def last(self, meanwhile: Callable[[], bool] = bool) -> None:
        """What is told and written before a signal ends this process.

        Args:
            meanwhile: Writes what is written while the store is told; where it has nothing, the
                layout is.
        """
        request = self._ask("terminated")
        if not meanwhile():
            self._write("terminated")
        request.done.wait(_LAST_S)

    @staticmethod
    def _attempt() -> int | None:
        attempt = job_facts()["attempt"]
        return attempt if isinstance(attempt, int) else None

    def _connected(self) -> RankStore | None:
        """The store; None as long as there is none, or this process has no rank."""
        if self._store is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _AGAIN_S
            torch = sys.modules.get("torch")
            try:
                address = None if torch is None else address_of(torch, early=self._early)
                if address is not None and rank_facts()["rank"] is not None:
                    self._reading.start()
                    self._store, self.address, self.why = opened_store(*address), address, ""
            except UnavailableError as error:
                self.why = str(error)
        return self._store

    def _lost(self, error: RuntimeError) -> None:
        self._store = None
        self.why = f"the store does not answer: {str(error).partition(chr(10))[0]}"

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            try:
                request = self._requests.get(timeout=_LOOK_S)
            except Empty:
                request = None
            try:
                self._reading.standing.look(self._reading.steps)
                if request is not None:
                    request.told = self._tell(request.reason)
                elif time.monotonic() >= due and self._tell("interval"):
                    due = time.monotonic() + self._interval_s
                self._answer()
            except Exception:
                _LOGGER.exception("a rank could not tell how it is")
            finally:
                if request is not None:
                    request.done.set()
            if request is not None and request.reason == "exit":
                return

    def _tell(self, reason: str) -> bool:
        """Write a digest; whether that was done."""
        try:
            store = self._connected()
            if store is None:
                return False
            store.write(self._reading.digest(reason, self._interval_s))
            self.written += 1
            if reason == "oom":
                store.raise_alarm(rank_facts()["rank"], self._attempt(), "oom")
            return True
        except RuntimeError as error:
            self._lost(error)
            return False

    def _answer(self) -> None:
        """Do what another rank's alarm asks for, once."""
        if self._answered or self._store is None or self._ended.is_set():
            return
        try:
            alarm = self._store.alarm(self._attempt())
        except RuntimeError as error:
            self._lost(error)
            return
        if alarm is None:
            return
        self._answered = True
        if alarm.get("rank") != rank_facts()["rank"]:
            self._tell("peer")
            self._write("peer")

    def _write(self, reason: str) -> None:
        """Write this process's layout, with a sidecar."""
        try:
            snap = _layout()
            if snap is None:
                return
            os.makedirs(self._directory, exist_ok=True)
            path = os.path.join(self._directory, f"{file_stem('ranks')}-{reason}.pickle")
            snap.save(path)
            devices = () if snap.is_cpu else snap.devices
            asker = "another rank" if reason == "peer" else "SIGTERM"
            facts = sidecar(devices, recording={"asked_by": asker})
            write_text(sidecar_path(path), facts)
            self.files.append(path)
        except (NeutracerError, OSError, RuntimeError) as error:
            _LOGGER.warning("the layout of this rank could not be written: %s", error)


def _layout() -> Snapshot | None:
    """What is allocated now, from the hooks or from PyTorch; None where there is nothing."""
    state = hooks.state()
    if state is not None and state.attached:
        snap = take(state.backend, _EVENTS, quiet=True)
        # A CPU of which nothing is known was followed on another thread than the program's.
        return None if snap.is_cpu and not len(snap.blocks) else snap
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return load(dumped(torch.cuda, traces=False), progress=False)


# ---- Answering ---------------------------------------------------------------------------

# This rank's digest for PyTorch's debug server (`torch.distributed.debug`, torch 2.11 on).

#: The name under which each rank's worker server has it: POST /handler/neutracer.
HANDLER = "neutracer"

# A handler can't be taken back: it is registered once, and asks whoever is on.
_answers: dict[str, Callable[[], RankDigest] | None] = {}


def answer_debug_server(digest: Callable[[], RankDigest] | None) -> str:
    """Answer the debug server from now on, in this process.

    Args:
        digest: Gives the digest; None answers that no watch is on.

    Returns:
        "", or why this torch has no debug server.
    """
    is_registered = HANDLER in _answers
    _answers[HANDLER] = digest
    if is_registered or digest is None:
        return ""
    try:
        c10d = importlib.import_module("torch._C._distributed_c10d")
        # torch's table of handlers goes after the interpreter, and would free this without the
        # GIL, which ends the process: one reference more keeps it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
        c10d._register_handler(HANDLER, _answer)
    except (ImportError, AttributeError, RuntimeError) as error:
        del _answers[HANDLER]
        return f"this torch has no debug server: {error}"
    return ""


# On a thread of the worker server.
def _answer(request: Any, response: Any) -> None:
    digest = _answers.get(HANDLER)
    try:
        if digest is None:
            raise RuntimeError("neutracer.watch_ranks() is not on in this rank")
        response.set_content(digest().to_bytes().decode(), "application/json")
        response.set_status(200)
    except Exception as error:
        # What is raised here would end the process.
        _LOGGER.debug("no digest for the debug server", exc_info=True)
        response.set_content(str(error), "text/plain")
        response.set_status(500)
