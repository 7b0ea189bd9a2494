# SPDX-License-Identifier: Apache-2.0
"""Records an unmodified program's GPU memory, and writes the reports."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.owners import held_at_end
from neutracer.oom.page import OomReport
from neutracer.oom.watch import OomWatch, oom_report
from neutracer.overview import OverviewReport, overview
from neutracer.recording.long_history import ProgramRecording, recording_facts
from neutracer.recording.recorder import is_for_cpu, snapshot
from neutracer.recording.sidecar import facts_of, file_stem, save_with, write_text
from neutracer.render.document import Copyable
from neutracer.render.text import render_text
from neutracer.trace.beside import beside_file
from neutracer.trace.snapshot import Snapshot

_LOGGER = logging.getLogger("neutracer")

DEFAULT_DIRECTORY = "neutracer-run"
_TERMINATED = "terminated"  # The reason of a report written before a signal ends the process,
_SOON_S = 1.8  # and its timeout: the process ends after two seconds.

_UNUSED = (
    "This program never used CUDA. 'neutracer rehearse train.py' estimates its needs on a GPU. "
    "Child processes are recorded with --follow-children, and each rank of a job by "
    "'torchrun -m neutracer run train.py'."
)
_FOR_CPU = "this is memory of the CPU; 'neutracer rehearse' predicts what a GPU would need"


def check_writable(directory: str) -> None:
    """Raise NeutracerError if reports can't be written, before a long run starts."""
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise NeutracerError(f"{directory}: no files can be written there")


def written_pairs(files: Iterable[str], notes: Iterable[str]) -> list[tuple[str, str]]:
    """The lines of a page for the written snapshots and the notes."""
    files = list(files)
    # Name and folder on separate lines: a wrapped path can't be copied.
    pairs = [("written", Copyable(os.path.basename(file))) for file in files]
    if files:
        pairs.append(("in", Copyable(os.path.relpath(os.path.dirname(files[0])))))
    return pairs + [("note", note) for note in notes]


class Following:
    """The recording of this process, and the files written from it.

    Attributes:
        directory: Where the files go.
        command: The neutracer command that started it; part of the files' names.
        why: Why there is nothing to report; "" if there is.
        last: The overview of the last snapshot written.
    """

    def __init__(
        self,
        directory: str,
        max_entries: int | None,
        stacks: str = "python",
        command: str = "run",
        **how: Any,
    ) -> None:
        """Set up without starting.

        Args:
            directory: Where the files go; created with the first one.
            max_entries: As for `ProgramRecording`; 0 records nothing.
            stacks: As for `ProgramRecording`.
            how: More of its options; a report is written after the steps of `uses`.
        """
        self.directory = os.path.abspath(directory)
        self.command = command
        self.why = ""
        self.last: OverviewReport | None = None
        self._max_entries = max_entries
        self._how: dict[str, Any] = {"stacks": stacks, **how}
        self._process = os.getpid()
        # Held while files are written, by the program's thread or the one beside it.
        self._lock = threading.Lock()
        self._ended = False
        self._recording: ProgramRecording | None = None
        self._watch: OomWatch | None = None
        self._files: list[str] = []
        self._notes: list[str] = []

    @property
    def files(self) -> tuple[str, ...]:
        """The snapshots written, each with a text and a JSON beside it."""
        return tuple(self._files)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the recording."""
        untold = "" if self._watch is None else self._watch.untold
        return (*self._notes, *([f"out of memory: {untold}"] if untold else ()))

    @property
    def is_recording(self) -> bool:
        return self._recording is not None

    @property
    def ooms(self) -> tuple[OomReport, ...]:
        """The out-of-memory errors with a report."""
        return () if self._watch is None else self._watch.reports

    @property
    def ooms_seen(self) -> int:
        """All out-of-memory errors, including repeats at a reported place."""
        return 0 if self._watch is None else self._watch.seen

    @classmethod
    def watching(cls) -> Following | None:
        """The instance that watches for out-of-memory errors in this process, or None."""
        now = _watching
        return now if now is not None and now._process == os.getpid() else None

    def begin(self, *, watch: bool = True) -> None:
        """Record from now on, or from CUDA's initialization; torch must be imported.

        On failure `why` has the reason. `watch`: report out-of-memory errors too.
        """
        if self._process != os.getpid():
            return
        try:
            is_watched = watch and not is_for_cpu(sys.modules.get("torch"))
            ooms = oom_report(self.directory, max_entries=0) if is_watched else None
            if self._max_entries != 0:
                recording = ProgramRecording(
                    self._max_entries, **self._how, observed=lambda: self.write("uses")
                )
                self._recording = recording.start()
                if recording.why:
                    self.why = f"Nothing was recorded: {recording.why}."
            if ooms is not None:
                self._watch = ooms.start()
                _set_watching(self)
        except UnavailableError as error:
            self.why = f"Nothing was recorded: {error}."

    def write(self, reason: str) -> None:
        """Write a snapshot, its sidecar and a text; `reason` is part of their names."""
        recording = self._recording
        with self._lock:
            if self._ended:
                return
            if self._max_entries != 0 and (recording is None or recording.waiting):
                _LOGGER.warning("no report: this program has not used CUDA so far")
                return
            self._write(reason)

    def _write(self, reason: str) -> None:
        stem = os.path.join(self.directory, f"{file_stem(self.command)}-{reason}")
        try:
            os.makedirs(self.directory, exist_ok=True)
            snap = self._save(f"{stem}.pickle", with_holders=reason != _TERMINATED)
            self._files.append(f"{stem}.pickle")
        except (NeutracerError, OSError, ValueError) as error:
            self._notes.append(f"{os.path.basename(stem)}: {error}")
            return
        try:
            shown = overview(snap, f"{stem}.pickle")
            write_text(f"{stem}.txt", render_text(shown.document()))
        except Exception as error:
            # A failing report must not change how the program ends.
            kind = "" if isinstance(error, (NeutracerError, OSError)) else type(error).__name__
            why = ": ".join(part for part in (kind, str(error)) if part)
            self._notes.append(f"{stem}.pickle is whole, but has no report ({why})")
            return
        self.last = shown

    def _save(self, path: str, *, with_holders: bool) -> Snapshot:
        if self._recording is not None:
            snap, facts = self._recording.now()
        else:
            snap = snapshot()
            facts = facts_of(snap, recording_facts())
        if any(snap.timeline(device).facts["oom_count"] for device in snap.devices):
            facts = {**facts, "ooms": [oom.oom.to_dict() for oom in self.ooms]}
        if with_holders:
            facts = {**facts, "holders": self._holders(snap)}
        save_with(snap, path, facts)
        # What is said now is what is said of the file.
        snap.beside = beside_file(path)
        return snap

    def _holders(self, snap: Snapshot) -> dict[str, dict[str, str]]:
        """By device and line, who holds what is in use."""
        try:
            return {str(device): lines for device, lines in held_at_end(snap).items()}
        except Exception as error:
            # A failing walk must not change how the program ends.
            self._notes.append(f"holders are not known: {type(error).__name__}: {error}")
            return {}

    def end_soon(self) -> bool:
        """Like `end`, before a signal ends the process; returns whether anything was recorded."""
        ending = threading.Thread(target=self.end, args=(_TERMINATED,), daemon=True)
        ending.start()
        ending.join(_SOON_S)
        files = [file for file in self._files if file.endswith(f"-{_TERMINATED}.pickle")]
        report = files[0] if files else "none could be written in time"
        if sys.stderr is not None and not self.why:
            print(f"neutracer: the program is being terminated; report: {report}", file=sys.stderr)
        return not self.why

    def end(self, reason: str | None = "exit") -> None:
        """Write the last report (unless `reason` is None) and switch everything off, once."""
        # A forked child must not touch its parent's state, the lock included.
        if self._process != os.getpid():
            return
        if self._watch is not None:
            self._watch.remove()
            if _watching is self:
                _set_watching(None)
        with self._lock:
            if self._ended:
                return
            self._ended = True
            recording = self._recording
            if recording is None:
                return
            if recording.waiting:
                self.why = _UNUSED
            if recording.why:
                self.why = f"Nothing was recorded: {recording.why}."
            if recording.waiting or recording.why or reason is None:
                recording.discard()
                return
            if is_for_cpu(sys.modules.get("torch")):
                self._notes.append(_FOR_CPU)
            if recording.because:
                self._notes.append(f"recorded with PyTorch's own recorder: {recording.because}")
            if recording.unmarked:
                self._notes.append(f"no modules: {recording.unmarked}")
            if reason != _TERMINATED:
                # PyTorch warns on standard error if another thread than the first ends its
                # history; at termination the process ends it.
                recording.stop()
            self._write(reason)


_watching: Following | None = None


def _set_watching(following: Following | None) -> None:
    global _watching
    _watching = following
