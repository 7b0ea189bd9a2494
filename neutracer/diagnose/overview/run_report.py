# SPDX-License-Identifier: Apache-2.0
"""Runs an unchanged program, and writes down what its GPU memory did."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neutracer.diagnose.oom.page import OomReport
from neutracer.diagnose.oom.watch import OomWatch, oom_report
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.process.recording.imports import when_imported
from neutracer.process.recording.on_demand import OnDemand
from neutracer.process.recording.program import run_program
from neutracer.process.recording.recorder import DEFAULT_MAX_ENTRIES, Recording, record
from neutracer.process.recording.sidecar import file_stem, rank_facts, rank_text, write_text
from neutracer.render.document import Block, Document, KeyValues, Paragraph
from neutracer.render.report import Report
from neutracer.render.text import render_text
from neutracer.units import format_count, format_duration_us

__all__ = ["DEFAULT_DIRECTORY", "RunReport", "run_and_report"]

_LOGGER = logging.getLogger("neutracer")

# Events, and seconds between two reports, that no program comes to.
_MOST = 1_000_000_000

DEFAULT_DIRECTORY = "neutracer-run"

_UNUSED = (
    "This program never used CUDA. Programs that it started are not followed: "
    "'torchrun -m neutracer run train.py' follows each rank."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport(Report):
    """What a program's run did to the memory of its devices.

    Attributes:
        program: What was run.
        exit_code: What it ended with.
        seconds: How long it ran.
        rank: Its rank, by torch.distributed or its launcher; None where there is none.
        world_size: How many ranks there are.
        host: The machine's name.
        pid: The process's number.
        recorded: Why there is nothing to tell; "" where there is.
        overview: What the snapshot at the end shows, its trace included.
        ooms: The out-of-memory errors that were written down.
        ooms_seen: All of them, those at a place that was written down already too.
        files: The snapshots that were written, each with a text and a JSON beside it.
        notes: What a reader should know of the recording.
    """

    schema = "neutracer.run/1"

    program: str
    exit_code: int
    seconds: float
    rank: int | None
    world_size: int | None
    host: str
    pid: int
    recorded: str
    overview: OverviewReport | None
    ooms: tuple[OomReport, ...]
    ooms_seen: int
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> Document:
        """The report as a page."""
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        ended = [f"exit code {self.exit_code}", format_duration_us(self.seconds * 1e6)]
        facts = [rank, *ended] if rank else ended
        blocks: list[Block] = []
        if self.recorded:
            blocks.append(Paragraph(self.recorded))
        if self.overview is not None:
            page = self.overview.document()
            facts += page.facts
            blocks += page.blocks
        pairs: list[tuple[str, str]] = []
        for oom in self.ooms:
            told = f"{oom.verdict or 'no verdict'} ({os.path.basename(oom.text)})"
            pairs.append(("out of memory", told))
        if self.ooms_seen > len(self.ooms):
            again = format_count(self.ooms_seen - len(self.ooms), "time")
            pairs.append(("out of memory", f"{again} more, at the same places or too often"))
        # Names and folders apart: a long path would be broken where nobody can copy it.
        pairs += [("written", os.path.basename(file)) for file in self.files]
        if self.files:
            pairs.append(("in", os.path.relpath(os.path.dirname(self.files[0]))))
        pairs += [("note", note) for note in self.notes]
        if pairs:
            blocks.append(KeyValues("This run", tuple(pairs)))
        return Document(os.path.basename(self.program), tuple(facts), tuple(blocks))


def run_and_report(
    command: Sequence[str],
    *,
    module: bool = False,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    stacks: str = "python",
    every_s: float | None = None,
) -> RunReport:
    """Run a program in this process, recording from when it initialises CUDA.

    torch is not imported before the program does, and CUDA not initialised. Reports are
    written when it ends, at out-of-memory errors, at SIGUSR2, and every few seconds if
    asked. A program that ends itself with `os._exit`, or is killed, writes none at its end,
    nor do its children.

    Args:
        command: The script, or the module's name, and its arguments.
        module: Whether it is a module.
        directory: Where the files go; it is made when the first is written.
        max_entries: As for `record`.
        stacks: As for `record`.
        every_s: Seconds between reports while it runs; None writes none.

    Returns:
        The report; the exit code in it is the program's own.

    Raises:
        NeutracerError: There is no such script or module, or the directory can't be written to.
        ValueError: An argument is out of its range.
        SystemExit: This is a child that the program has forked.
    """
    if max_entries < 1 or (every_s is not None and not every_s > 0):
        raise ValueError("max_entries and the time between reports are above 0")
    if max(max_entries, every_s or 0) > _MOST:
        raise ValueError(f"max_entries and the time between reports are at most {_MOST:,}")
    _check_writable(os.path.abspath(directory))
    run = _Run(os.fspath(directory), max_entries, stacks)
    beside = OnDemand(run.write, every_s=every_s, signum=getattr(signal, "SIGUSR2", None))
    cancel = when_imported("torch", run.begin)
    begin = time.monotonic()
    beside.start()
    try:
        code = run_program(command, module=module)
    finally:
        cancel()
        try:
            # A signal that comes meanwhile would end the process if nobody waited for it.
            run.end()
        finally:
            beside.stop()
    return run.report(command[0], code, time.monotonic() - begin)


def _check_writable(directory: str) -> None:
    """Say before the program runs for hours that its reports can't be written."""
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise NeutracerError(f"{directory}: no files can be written there")


class _Run:
    """The recording of one program, and what was written of it."""

    def __init__(self, directory: str, max_entries: int, stacks: str) -> None:
        self._directory = os.path.abspath(directory)
        self._max_entries = max_entries
        self._stacks = stacks
        self._process = os.getpid()
        # Held while files are written: by the program's thread, or by that beside it.
        self._lock = threading.Lock()
        self._ended = False
        self._recording: Recording | None = None
        self._watch: OomWatch | None = None
        self._why = ""
        self._files: list[str] = []
        self._notes: list[str] = []
        self._last: OverviewReport | None = None

    def begin(self) -> None:
        """torch was imported: record from when CUDA is initialised."""
        if self._process != os.getpid():
            return
        try:
            watch = oom_report(self._directory, max_entries=0)
            recording = record(self._max_entries, self._stacks)
            # Told in the report, and not in the middle of the program's output.
            recording.quiet = True
            self._recording = recording.start()
            self._watch = watch.start()
        except UnavailableError as error:
            self._why = f"Nothing was recorded: {error}."

    def write(self, reason: str) -> None:
        """Write a snapshot, its sidecar and a page; `reason` is in their names."""
        recording = self._recording
        with self._lock:
            if self._ended:
                return
            if recording is None or recording.waiting:
                _LOGGER.warning("no report: this program has not used CUDA so far")
                return
            self._write(recording, reason)

    def _write(self, recording: Recording, reason: str) -> None:
        stem = os.path.join(self._directory, f"{file_stem('run')}-{reason}")
        try:
            os.makedirs(self._directory, exist_ok=True)
            snap = recording.save(f"{stem}.pickle")
            shown = overview(snap, f"{stem}.pickle", path=f"{stem}.pickle")
            write_text(f"{stem}.txt", render_text(shown.document()))
        except (NeutracerError, OSError, ValueError) as error:
            self._notes.append(f"{os.path.basename(stem)}: {error}")
            return
        self._last = shown
        self._files.append(f"{stem}.pickle")

    def end(self) -> None:
        """The program is over: write the last report, switch everything off."""
        # A child of a fork leaves alone what is its parent's, and the lock too.
        if self._process != os.getpid():
            return
        if self._watch is not None:
            self._watch.remove()
        with self._lock:
            self._ended = True
            recording = self._recording
            if recording is None:
                return
            if recording.waiting:
                recording.discard()
                self._why = _UNUSED
                return
            recording.stop()
            self._write(recording, "exit")

    def report(self, program: str, code: int, seconds: float) -> RunReport:
        """What is to be told of it all."""
        if self._recording is None and not self._why:
            self._why = "This program never imported torch: nothing was recorded."
        watch = self._watch
        shown = self._last and replace(self._last, file=os.path.basename(program))
        facts = rank_facts()
        return RunReport(
            program=program,
            exit_code=code,
            seconds=seconds,
            rank=facts["rank"],
            world_size=facts["world_size"],
            host=socket.gethostname(),
            pid=self._process,
            recorded=self._why,
            overview=shown,
            ooms=() if watch is None else watch.reports,
            ooms_seen=0 if watch is None else watch.seen,
            files=tuple(self._files),
            notes=tuple(self._notes),
            findings=() if shown is None else shown.findings,
        )
