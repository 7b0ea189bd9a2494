# SPDX-License-Identifier: Apache-2.0
"""A thread that tells a job's store how this rank is, and what it has when another rank asks."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import neutracer.process.hooks.attach as hooks
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.process.hooks.observer import OutOfMemory
from neutracer.process.hooks.tail import take
from neutracer.process.ranks.reading import Reading
from neutracer.process.ranks.store import RankStore, address_of, opened_store
from neutracer.process.recording.capture import dumped
from neutracer.process.recording.sidecar import (
    file_stem,
    job_facts,
    rank_facts,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["Teller"]

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
