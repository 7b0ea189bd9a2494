# SPDX-License-Identifier: Apache-2.0
"""Writes the files of an out-of-memory error, in bounded time, whatever else goes wrong."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import neutracer.process.hooks.attach as hooks
from neutracer.diagnose.oom.explain import ExplainReport, explain
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.moment import facts_of
from neutracer.diagnose.oom.page import OomReport
from neutracer.process.hooks.long_history import hook_events, recording_facts
from neutracer.process.hooks.observer import OutOfMemory
from neutracer.process.hooks.tail import take
from neutracer.process.phases.running import RUNNING
from neutracer.process.recording.capture import dumped
from neutracer.process.recording.history import HISTORY
from neutracer.process.recording.living import living_tensors
from neutracer.process.recording.sidecar import file_stem, sidecar, write_text
from neutracer.render.text import render_text
from neutracer.saving import atomic_file
from neutracer.trace.beside import TensorBlocks
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["DEFAULT_SECONDS", "write_down"]

_LOGGER = logging.getLogger("neutracer")

DEFAULT_SECONDS = 10.0

# What PyTorch takes to spell out an event and what we take to read it, at the worst; and what
# we take for one of the hooks.
_EVENT_S = 5e-6
_HOOK_EVENT_S = 2e-6


def write_down(
    told: OutOfMemory, frame: FrameType | None, directory: str, seconds: float
) -> OomReport:
    """Take the snapshot, explain it, write the three files; nothing is raised.

    Args:
        told: What PyTorch said.
        frame: The frame that asked.
        directory: Where the files go.
        seconds: The most time that may go by. A step that can't be interrupted is not
            begun where it would not end in time.

    Returns:
        The report. What is missing is in `left_out`.
    """
    # A collection in between would run the program's finalizers, and free what is reported.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Work(told, frame, directory, seconds).done()
    finally:
        if collects:
            gc.enable()


class _Work:
    """One report in the making."""

    def __init__(
        self, told: OutOfMemory, frame: FrameType | None, directory: str, seconds: float
    ) -> None:
        self._told = told
        self._frame = frame
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._folder = os.path.abspath(directory)
        self._stem = os.path.join(self._folder, file_stem("oom"))
        self._left_out: list[str] = []
        self._spent: dict[str, float] = {}
        self._writing = _Writing()

    def done(self) -> OomReport:
        """The report, written."""
        told = self._told
        self._tried("the folder", lambda: os.makedirs(self._folder, exist_ok=True))
        taken = self._tried("the snapshot", self._take)
        if taken is not None:
            path = f"{self._stem}.pickle"
            self._writing.add(path, lambda: _write(path, taken))
        # The file is read, without the GIL, while the heap is walked, which needs it.
        reading = _Ahead(lambda: _read(taken))
        facts = self._tried("the program's part", lambda: facts_of(told, self._frame))
        if facts is None:
            facts = OomFacts(device=told.device, segment_bytes=told.asked_bytes)
        tensors = self._tried("the program's tensors", lambda: living_tensors("cuda")) or {}
        process = self._tried("memory_stats()", lambda: self._process(tensors)) or {}
        explained = None
        if taken is not None:
            explained = self._tried(
                "the verdict", lambda: _explained(reading.result(), facts, tensors)
            )
        report = self._report(facts, process, explained, with_snapshot=taken is not None)
        self._writing.add(report.json, lambda: write_text(report.json, report.to_dict()))
        self._writing.add(report.text, lambda: write_text(report.text, _as_text(report)))
        waits = time.monotonic()
        problems = self._writing.finish(self._end - time.monotonic())
        self._spent["the files"] = time.monotonic() - waits
        return replace(
            report,
            left_out=(*report.left_out, *problems),
            seconds=time.monotonic() - self._begin,
            spent=dict(self._spent),
        )

    def _tried(self, what: str, step: Callable[[], Any]) -> Any:
        """What the step returns; None, with the reason written down, where there is nothing."""
        begin = time.monotonic()
        if begin >= self._end:
            self._left_out.append(f"{what}: time ran out")
            return None
        try:
            return step()
        except Exception as error:
            _LOGGER.debug("a part of an out-of-memory report failed", exc_info=True)
            self._left_out.append(f"{what}: {type(error).__name__}: {error}")
            return None
        finally:
            self._spent[what] = time.monotonic() - begin

    def _take(self) -> bytes | Snapshot:
        """PyTorch's own dump; where it records nothing and the hooks do, theirs."""
        torch = sys.modules["torch"]
        now = hooks.state()
        follows = now is not None and now.active and now.backend == "cuda"
        if now is not None and follows and not torch._C._cuda_isHistoryEnabled():
            most = int((self._end - time.monotonic()) / _HOOK_EVENT_S)
            return take(now.backend, max(min(hook_events() or now.events, most), 1), quiet=True)
        cuda = torch.cuda
        recorded = HISTORY.in_force()
        if recorded is not None and recorded.max_entries * _EVENT_S > self._end - time.monotonic():
            self._left_out.append(
                f"the trace: {recorded.max_entries:,} events may take longer than the time left"
            )
            return dumped(cuda, traces=False)
        return dumped(cuda)

    def _process(self, tensors: TensorBlocks) -> dict[str, Any]:
        process = sidecar((self._told.device,), recording=recording_facts(), tensors=tensors)
        running = RUNNING.facts()
        return {**process, "running": running} if running else process

    def _report(
        self,
        facts: OomFacts,
        process: dict[str, Any],
        explained: ExplainReport | None,
        with_snapshot: bool,
    ) -> OomReport:
        blocks = () if explained is None else explained.document().blocks
        main = explained.verdicts[0] if explained is not None and explained.verdicts else None
        return OomReport(
            device=self._told.device,
            asked_bytes=self._told.asked_bytes,
            free_bytes=self._told.free_bytes,
            phase="" if explained is None else explained.phase,
            verdict="" if main is None else main.message,
            oom=facts,
            process=process,
            snapshot=f"{self._stem}.pickle" if with_snapshot else None,
            text=f"{self._stem}.txt",
            json=f"{self._stem}.json",
            left_out=tuple(self._left_out),
            explained=None if explained is None else explained.to_dict(),
            seconds=time.monotonic() - self._begin,
            spent=dict(self._spent),
            findings=() if explained is None else explained.findings,
            _blocks=blocks,
        )


def _read(taken: bytes | Snapshot | None) -> Snapshot | None:
    return load(taken, progress=False) if isinstance(taken, bytes) else taken


def _explained(snap: Snapshot, facts: OomFacts, tensors: TensorBlocks) -> ExplainReport:
    snap.beside = replace(snap.beside, tensors=tensors)
    return explain(snap, facts=facts, device=facts.device, thorough=False)


def _as_text(report: OomReport) -> str:
    return render_text(report.document())


def _write(path: str, taken: bytes | Snapshot) -> None:
    if isinstance(taken, Snapshot):
        taken.save(path)
        return
    with atomic_file(path) as file:
        file.write(taken)


class _Ahead:
    """A step that another thread makes meanwhile."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step
        self._value: Any = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # The interpreter is ending, or there are no more threads.
            self._thread = None

    def _run(self) -> None:
        try:
            self._value = self._step()
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        """What the step returns, or raises."""
        if self._thread is None:
            return self._step()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value


class _Writing:
    """Files written by threads, so that a disk that hangs does not hang the program, and the
    files wait for the disk together."""

    def __init__(self) -> None:
        self._jobs: list[_Job] = []

    def add(self, path: str, write: Callable[[], object]) -> None:
        """Have a file written."""
        self._jobs.append(_Job(path, write))

    def finish(self, seconds: float) -> list[str]:
        """Wait for what is being written; what went wrong, in words."""
        end = time.monotonic() + seconds
        return [problem for job in self._jobs if (problem := job.wait(end - time.monotonic()))]


class _Job:
    """A file that is being written."""

    def __init__(self, path: str, write: Callable[[], object]) -> None:
        self._name = os.path.basename(path)
        self._write = write
        self._problem = ""
        self._done = threading.Event()
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:
            # The interpreter is ending, or there are no more threads: written here.
            self._run()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._problem = f"{self._name}: {error}"
        self._done.set()

    def wait(self, seconds: float) -> str:
        """What went wrong, "" for nothing."""
        if not self._done.wait(max(seconds, 0.0)):
            return f"{self._name}: still being written"
        return self._problem
