# SPDX-License-Identifier: Apache-2.0
"""`watch_ranks`: each rank publishes its digest, and any process has the job's report."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from neutracer.arguments import number, path_name
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.monitor.device_report import PYTORCH, current_attribution
from neutracer.monitor.exporter import Probes, layout_now
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.pickling import StaysHere
from neutracer.rank.digest import (
    MOST_BINS,
    Held,
    RankDigest,
    RankStore,
    address_of,
    opened_store,
    read_digests,
)
from neutracer.rank.jobs import Odd, jobs_of
from neutracer.rank.reduce import growth_of
from neutracer.rank.report import RanksReport, ranks_report
from neutracer.recording.long_history import OutOfMemory, listen
from neutracer.recording.program import OnDemand
from neutracer.recording.recorder import is_for_cpu
from neutracer.recording.sidecar import (
    facts_of,
    file_stem,
    job_facts,
    rank_facts,
    running_program,
    save_with,
)
from neutracer.trace.events import device_name
from neutracer.trace.stacks import Frame, Owner, origin_of, owner_path, place_of
from neutracer.units import format_duration_us

_LOGGER = logging.getLogger("neutracer")

# ---- Main thread -------------------------------------------------------------------------

_MOST_FRAMES = 64  # Deeper stacks lose their outer end.
_PACKAGE_DIR = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def _main_thread_frames() -> tuple[Frame, ...]:
    """The main thread's frames, innermost first, read without stopping it."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident or 0)
    # Skip this package's frames: PyTorch calls it when memory runs out.
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIR):
        frame = frame.f_back
    found: list[Frame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(found)


class _MainThread:
    """The main thread's line, and how long it has stayed there; sampled by `update`."""

    def __init__(self) -> None:
        self._position: tuple[tuple[Frame, ...], int] = ((), -1)
        self._since = time.monotonic()

    def update(self, steps: int) -> None:
        """Sample the stack; a running loop returns to its lines with a higher step count."""
        position = _main_thread_frames(), steps
        if position != self._position:
            self._position, self._since = position, time.monotonic()

    @property
    def where(self) -> str:
        """Its line, as `Timeline.holders(by="place")` names it."""
        frames = self._position[0]
        return str(place_of(frames)) if frames else ""

    @property
    def is_in_torch(self) -> bool:
        """Whether PyTorch owns the innermost frame: the thread waits in a collective or for the
        device."""
        frames = self._position[0]
        return bool(frames) and origin_of(owner_path(frames[0])).owner is Owner.TORCH

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since


# ---- Reading -----------------------------------------------------------------------------

_READING_S = 1.0  # Between readings; PyTorch counts the peaks between them.
_MARK_S = 0.5  # Least time between two step marks.
_HISTORY = 2048  # Readings kept; neighbours are merged beyond that.
_LAYOUT_S = 60.0  # Between reads of the layout, which take milliseconds.


class Reading:
    """This process's figures, holders and status, as a digest."""

    def __init__(self) -> None:
        self._monitor = MemoryMonitor(_READING_S, None, history=_HISTORY)
        self._probes = Probes(_LAYOUT_S, None)
        self._marked = 0.0
        self._started = False
        self._hook: Any = None
        self._ooms: list[tuple[int, int]] = []
        self.main_thread = _MainThread()
        self.steps = 0
        self.why = ""

    def start(self) -> None:
        """Start, once; `why` gives the reason if there are no figures."""
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
            self._hook = None  # Steps are not counted.

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._monitor.stop()

    def on_oom(self, time_us: int, asked_bytes: int) -> None:
        """Record an out-of-memory error, and take a reading."""
        self._ooms.append((time_us, asked_bytes))
        self._monitor.mark("out of memory")

    def _on_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """Count an optimizer step, on the program's thread."""
        self.steps += 1
        now = time.monotonic()
        if now - self._marked >= _MARK_S:
            self._marked = now
            self._monitor.mark(self.steps)

    def digest(self, reason: str, interval_s: float) -> RankDigest:
        """The current digest, for "interval", "oom", "peer", "terminated" or "exit"."""
        self.main_thread.update(self.steps)
        facts, job = rank_facts(), job_facts()
        first_oom_us, oom_bytes = self._ooms[0] if self._ooms else (None, 0)
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
            first_oom_us=first_oom_us,
            oom_bytes=oom_bytes,
            steps=self.steps,
            where=self.main_thread.where,
            waits=self.main_thread.is_in_torch,
            where_s=round(self.main_thread.seconds, 1),
            interval_s=interval_s,
            **self._figures(),
        )

    def _figures(self) -> dict[str, Any]:
        devices = self._monitor.devices if self._monitor.running else ()
        if not devices:
            return {}
        stats = {one: self._monitor.get_stats(one) for one in devices}
        device = max(devices, key=lambda one: int(stats[one]["peak_reserved_bytes"]))
        figures = stats[device]
        self._probes.look(devices)
        name = device_name(device)
        places = [one for one in self._probes.holders if one["device"] == name]
        return {
            "device": name,
            "total_bytes": figures["limit_bytes"] or figures["total_bytes"] or None,
            "allocated_bytes": figures["current_bytes"],
            "reserved_bytes": figures["reserved_bytes"],
            "peak_allocated_bytes": figures["peak_bytes"],
            "peak_reserved_bytes": figures["peak_reserved_bytes"],
            "largest_hole_bytes": self._probes.largest_free.get(device),
            "other_bytes": figures["non_torch_bytes"] if figures["device_used_bytes"] else None,
            "libraries": _libraries(device),
            "places": tuple(
                Held(f"{one['function']} ({one['place']})", one["bytes"], one["count"])
                for one in places
            ),
            **growth_of(self._monitor, device, steps=self.steps),
            **_curve(self._monitor, device),
        }


def _libraries(device: int) -> dict[str, int]:
    """Bytes by library other than PyTorch, while an attribution is on."""
    attribution = current_attribution()
    if attribution is None or not attribution.is_on:
        return {}
    uses = attribution.by_library(device)
    return {use.library: use.bytes for use in uses if use.library != PYTORCH}


def _curve(monitor: MemoryMonitor, device: int) -> dict[str, Any]:
    """The peak of allocated in each of `MOST_BINS` parts of the time since the start."""
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
        bins[at] = last = value or last  # Constant between two readings.
    return {"begin_us": begin, "end_us": times[-1], "curve": tuple(bins)}


# ---- Publisher ---------------------------------------------------------------------------

_POLL_S = 0.5  # Between looks at the alarm and at the main thread.
_RETRY_S = 5.0  # Before a missing or lost store is tried again.
_EVENTS = 10_000  # Events kept in a layout's file, if the hooks have them.
_JOIN_S = 5.0  # Timeout for the thread at exit: longer than a call to a lost store.
_REQUEST_S = 1.0  # Timeout for a digest request, as after an out-of-memory error.
_LAST_S = 0.5  # The same once files are written: the signal ends the process in two seconds.


class _Request:
    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.done = threading.Event()
        self.published = False


class Publisher:
    """The thread that writes this rank's digest to the job's store and answers its alarms.

    Args:
        reading: The source of the digests.
        directory: Where layouts go when another rank runs out of memory.
        interval_s: Seconds between two digests.
        early: Use the launcher's store before the process has joined its group.
    """

    def __init__(
        self, reading: Reading, directory: str, interval_s: float, early: bool = True
    ) -> None:
        self._reading = reading
        self._directory = directory
        self._interval_s = interval_s
        self._early = early
        self._store: RankStore | None = None
        # Only the thread talks to the store, which may block forever.
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
        self._thread.start()

    def stop(self) -> None:
        """Publish the last digest and end the thread."""
        if self._process != os.getpid() or self._ended.is_set():
            return
        self._ended.set()
        self._requests.put(_Request("exit"))
        self._thread.join(_JOIN_S)

    def publish(self, reason: str) -> bool:
        """Publish a digest now; returns whether that took less than a second."""
        request = self._request(reason)
        if self._late is None or self._late.done.is_set():
            request.done.wait(_REQUEST_S)
            self._late = None if request.done.is_set() else request
        return request.published

    def _request(self, reason: str) -> _Request:
        request = _Request(reason)
        if self._process == os.getpid() and not self._ended.is_set():
            self._requests.put(request)
        else:
            request.done.set()
        return request

    def on_oom(self, error: OutOfMemory) -> None:
        """Publish this process's out-of-memory error, and alert the other ranks."""
        self._reading.on_oom(error.time_us, error.asked_bytes)
        self._answered = True
        self.publish("oom")

    def publish_last(self, write_files: Callable[[], bool] = bool) -> None:
        """Publish and write before a signal ends this process."""
        request = self._request("terminated")
        if not write_files():
            self._write_layout("terminated")
        request.done.wait(_LAST_S)

    def _connected(self) -> RankStore | None:
        """The store; None until there is one and this process has a rank."""
        if self._store is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_S
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
                request = self._requests.get(timeout=_POLL_S)
            except Empty:
                request = None
            try:
                self._reading.main_thread.update(self._reading.steps)
                if request is not None:
                    request.published = self._write_digest(request.reason)
                elif time.monotonic() >= due and self._write_digest("interval"):
                    due = time.monotonic() + self._interval_s
                self._answer_alarm()
            except Exception:
                _LOGGER.exception("failed to publish this rank's status")
            finally:
                if request is not None:
                    request.done.set()
            if request is not None and request.reason == "exit":
                return

    def _write_digest(self, reason: str) -> bool:
        try:
            store = self._connected()
            if store is None:
                return False
            store.write(self._reading.digest(reason, self._interval_s))
            self.written += 1
            if reason == "oom":
                store.raise_alarm(rank_facts()["rank"], _attempt(), "oom")
            return True
        except RuntimeError as error:
            self._lost(error)
            return False

    def _answer_alarm(self) -> None:
        if self._answered or self._store is None or self._ended.is_set():
            return
        try:
            alarm = self._store.alarm(_attempt())
        except RuntimeError as error:
            self._lost(error)
            return
        if alarm is None:
            return
        self._answered = True
        if alarm.get("rank") != rank_facts()["rank"]:
            self._write_digest("peer")
            self._write_layout("peer")

    def _write_layout(self, reason: str) -> None:
        try:
            snap = layout_now(_EVENTS)
            # An empty CPU layout: the hooks follow another thread than the program's.
            if snap is None or (snap.is_cpu and not len(snap.blocks)):
                return
            os.makedirs(self._directory, exist_ok=True)
            path = os.path.join(self._directory, f"{file_stem('ranks')}-{reason}.pickle")
            asker = "another rank" if reason == "peer" else "SIGTERM"
            save_with(snap, path, facts_of(snap, {"asked_by": asker}))
            self.files.append(path)
        except (NeutracerError, OSError, RuntimeError) as error:
            _LOGGER.warning("failed to write this rank's layout: %s", error)


def _attempt() -> int | None:
    attempt = job_facts()["attempt"]
    return attempt if isinstance(attempt, int) else None


# ---- Debug server ------------------------------------------------------------------------

#: The handler of each rank's worker server (torch 2.11 on): POST /handler/neutracer.
HANDLER = "neutracer"

# A handler can't be unregistered, so it looks up the current source here.
_answers: dict[str, Callable[[], RankDigest] | None] = {}


def answer_debug_server(digest: Callable[[], RankDigest] | None) -> str:
    """Answer `torch.distributed.debug` in this process from now on.

    `digest` makes the digest; None answers that no watch is on. It returns "", or why this torch
    has no debug server.
    """
    is_registered = HANDLER in _answers
    _answers[HANDLER] = digest
    if is_registered or digest is None:
        return ""
    try:
        c10d = importlib.import_module("torch._C._distributed_c10d")
        # torch frees its handlers after the interpreter has ended, without the GIL, which would
        # crash: one more reference keeps this one.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
        c10d._register_handler(HANDLER, _answer)
    except (ImportError, AttributeError, RuntimeError) as error:
        del _answers[HANDLER]
        return f"this torch has no debug server: {error}"
    return ""


def _answer(request: Any, response: Any) -> None:
    """Answer on a thread of the worker server; raising here would end the process."""
    digest = _answers.get(HANDLER)
    try:
        if digest is None:
            raise RuntimeError("neutracer.watch_ranks() is not on in this rank")
        response.set_content(digest().to_bytes().decode(), "application/json")
        response.set_status(200)
    except Exception as error:
        _LOGGER.debug("no digest for the debug server", exc_info=True)
        response.set_content(str(error), "text/plain")
        response.set_status(500)


# ---- Running job -------------------------------------------------------------------------

_SILENT = 3.0  # Intervals without a digest after which a rank is silent.
_STILL = 3.0  # Intervals, and seconds, at one line after which a rank has stalled.
_STILL_S = 1.0
_ENDED = ("exit", "terminated")  # Reasons of a last digest: silence is expected after it.


def parsed_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; raises ValueError if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a store: write it like 'node7:29500'")
    return host.strip("[]") or "localhost", int(port)


def stored_ranks(address: str) -> RanksReport:
    """Report on a running job from the digests in its store."""
    return _running_ranks(*parsed_address(address))


def _running_ranks(host: str, port: int) -> RanksReport:
    digests = read_digests(host, port)
    if not digests:
        raise ValueError(
            f"{host}:{port}: no rank has reported there; "
            "call neutracer.watch_ranks() in the program"
        )
    return report_of(digests, time.time())


def report_of(digests: Sequence[RankDigest], now_s: float) -> RanksReport:
    """Report on a running job's digests as of `now_s`, Unix time of this machine's clock."""
    # Ages are relative to the newest digest: the ranks' clocks may differ from this one.
    newest = max(one.written_s or 0.0 for one in digests)
    current = [replace(one, reason=_state(one, newest)) for one in digests]
    jobs = sorted(jobs_of(current), key=lambda job: -job.ended_s)
    running = [one for one in jobs[0].ranks if one.reason == "running"]
    silent = [one for one in jobs[0].ranks if one.reason == "silent"]
    odd = [_silent(one, newest - (one.written_s or 0.0)) for one in silent]
    odd += _stalled(running)
    report = ranks_report(jobs, (), odd)
    age = now_s - newest
    interval = max((one.interval_s or 0.0 for one in digests), default=0.0)
    if age <= _SILENT * interval + 1:
        return report
    note = f"the latest report of any rank is {format_duration_us(age * 1e6)} old"
    return replace(report, clocks=f"{report.clocks} {note}".strip())


def _state(one: RankDigest, newest: float) -> str:
    if one.reason in _ENDED:
        return one.reason
    age = newest - (one.written_s or 0.0)
    return "silent" if age > _SILENT * (one.interval_s or 0.0) + 1 else "running"


def _silent(one: RankDigest, age_s: float) -> Odd:
    at = f"; it was at {one.where} then" if one.where else ""
    why = f"it has not reported for {format_duration_us(age_s * 1e6)}{at}"
    return Odd(one.rank, 0, why, "silent", one.where)


def _stalled(running: Sequence[RankDigest]) -> list[Odd]:
    """The ranks that the others wait for: all have stalled, these at another line."""
    still = [
        one
        for one in running
        if one.where and one.where_s >= max(_STILL * (one.interval_s or 0.0), _STILL_S)
    ]
    if len(still) < 2 or len(still) < len(running):
        return []
    waiting = [one for one in still if one.waits]
    late = [one for one in still if not one.waits]
    if not waiting or not late or len(late) >= len(still) - len(late) + 1:
        waiting, late = _by_line(still)
    if not late:
        return []
    where = Counter(one.where for one in waiting).most_common(1)[0][0]
    return [
        Odd(
            one.rank,
            0,
            f"it has been at {one.where} for {format_duration_us(one.where_s * 1e6)}, in step "
            f"{one.steps:,}, while the others wait at {where}",
            "waits_elsewhere",
            one.where,
            "",
            one.steps,
        )
        for one in late
    ]


def _by_line(still: Sequence[RankDigest]) -> tuple[list[RankDigest], list[RankDigest]]:
    """Split (waiting, late) by the most common line, or else by the step count."""
    lines = Counter(one.where for one in still)
    most, count = lines.most_common(1)[0]
    if 2 * count > len(still):
        return (
            [one for one in still if one.where == most],
            [one for one in still if one.where != most],
        )
    furthest = max(one.steps for one in still)
    late = [one for one in still if one.steps < furthest]
    return [one for one in still if one.steps == furthest], late


# ---- Watch -------------------------------------------------------------------------------

DEFAULT_DIRECTORY = "neutracer-ranks"
_INTERVAL_S = 10.0  # A digest takes a few milliseconds of one thread.


def watch_ranks(
    interval: float = _INTERVAL_S,
    *,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    signals: bool = True,
) -> RanksWatch:
    """Publish this rank's memory status to the job's store; call it in each rank.

    A digest of a few kilobytes (figures, growth, the main thread's line) goes to the TCPStore
    under the process group, over its own connection, without collectives and without waiting
    for other ranks. `watch.report()` in any rank, or `neutracer ranks --store HOST:PORT` anywhere,
    then names the odd ranks, those near the limit, those that the others wait for, and the last
    digest of a rank that died.

    When a rank runs out of memory it reports at once, and each other rank writes its layout
    into the directory. SIGTERM, with which a launcher ends the remaining ranks, is delayed by up
    to two seconds for the same.

    Args:
        interval: Seconds between two digests.
        directory: Where layouts go; created with the first one.
        signals: Whether to delay SIGTERM. A handler set by the program replaces this one.

    Returns:
        The active watch; `remove()`, or leaving it as a context manager, ends it. It waits for
        a process group if there is none yet. A second call returns the first watch.

    Raises:
        UnavailableError: torch is not imported, or built without torch.distributed.
        ValueError: `interval` is below 0.1 seconds.
        TypeError: An argument has the wrong type.

    Example:
        >>> import neutracer
        >>> watch = neutracer.watch_ranks()     # doctest: +SKIP
        >>> print(watch.report())               # doctest: +SKIP
    """
    folder = path_name(directory, "directory")
    if not 0.1 <= number("interval", interval, "a number of seconds") < 1e6:
        raise ValueError(f"interval is {interval}: it must be 0.1 seconds or more")
    torch = sys.modules.get("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch first")
    if not torch.distributed.is_available():
        raise UnavailableError("torch.distributed", "this torch is built without it")
    current = current_watch()
    return RanksWatch(folder, float(interval), signals).start() if current is None else current


class RanksWatch(StaysHere, instead="it watches this process: send its report()"):
    """The handle of a watch for ranks."""

    def __init__(
        self,
        directory: str,
        interval_s: float = _INTERVAL_S,
        signals: bool = False,
        early: bool = True,
    ) -> None:
        """Use `watch_ranks` instead. `early`: as for `Publisher`."""
        self._reading = Reading()
        self._publisher = Publisher(self._reading, directory, interval_s, early)
        self._signals = signals
        self._early = early
        #: Why PyTorch's debug server can't have a page; "" if it can.
        self.no_debug_page = ""
        self._process = 0
        self._ends: list[Callable[[], object]] = []

    @property
    def active(self) -> bool:
        """Whether it is on; a forked child has none."""
        return bool(self._ends) and self._process == os.getpid()

    @property
    def why(self) -> str:
        """Why nothing is being published; "" if it is."""
        return self._publisher.why

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the store, once there is one."""
        return self._publisher.address

    @property
    def written(self) -> int:
        """The number of published digests."""
        return self._publisher.written

    @property
    def files(self) -> tuple[str, ...]:
        """The layouts written so far."""
        return tuple(self._publisher.files)

    def start(self) -> RanksWatch:
        """Start, once; returns the watch."""
        global _current
        if self.active:
            return self
        self._process = os.getpid()
        # The hooks follow CPU blocks on the thread that starts them: the program's here.
        if self._early or is_for_cpu(sys.modules.get("torch")):
            self._reading.start()
        self._ends.append(self._reading.stop)
        self.no_debug_page = answer_debug_server(self.digest)
        self._ends.append(lambda: answer_debug_server(None))
        try:
            self._ends.append(listen(self._publisher.on_oom))
        except UnavailableError:
            _LOGGER.debug("this torch has no CUDA: it reports no out-of-memory errors")
        self._publisher.start()
        self._ends.append(self._publisher.stop)
        if self._signals:
            on_signal = OnDemand(
                lambda reason: None,
                every_s=None,
                signum=None,
                last_signum=signal.SIGTERM,
                last=self.publish_last,
            )
            on_signal.start()
            self._ends.append(on_signal.stop)
        atexit.register(self.remove)
        _current = self
        return self

    def publish(self) -> bool:
        """Publish a digest now; returns whether that succeeded."""
        return self.active and self._publisher.publish("interval")

    def digest(self) -> RankDigest:
        """This rank's current digest."""
        return self._reading.digest("interval", 0.0)

    def report(self) -> RanksReport:
        """The report on all ranks.

        Raises:
            UnavailableError: There is no process group yet, or its store does not answer.
            ValueError: No rank has reported.
        """
        address = self.address
        if address is None:
            raise UnavailableError(
                "the store of this job", f"nothing has been reported so far ({self.why})"
            )
        return _running_ranks(*address)

    def publish_last(self, write_files: Callable[[], bool] = bool) -> None:
        """Publish and write before a signal ends this process; see `Publisher.publish_last`."""
        self._publisher.publish_last(write_files)

    def remove(self) -> None:
        """End it, once, with a last digest."""
        global _current
        ends, self._ends = self._ends, []
        if self._process == os.getpid():
            atexit.unregister(self.remove)
            for end in reversed(ends):
                end()
        if _current is self:
            _current = None

    def __enter__(self) -> RanksWatch:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "on" if self.active else "removed"
        return f"<RanksWatch: {state}, {self.why or f'{self.written} digests written'}>"


_current: RanksWatch | None = None


def current_watch() -> RanksWatch | None:
    """The watch that is on in this process, or None."""
    return _current if _current is not None and _current.active else None
