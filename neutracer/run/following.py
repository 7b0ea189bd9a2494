# SPDX-License-Identifier: Apache-2.0
"""Records a program that knows nothing about it, and writes down what its GPU memory did."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable

from neutracer.errors import NeutracerError, UnavailableError
from neutracer.oom.page import OomReport
from neutracer.oom.watch import OomWatch, oom_report
from neutracer.overview import OverviewReport, overview
from neutracer.recording.long_history import ProgramRecording, recording_facts
from neutracer.recording.recorder import snapshot
from neutracer.recording.sidecar import file_stem, sidecar, sidecar_path, write_text
from neutracer.render.document import Copyable
from neutracer.render.text import render_text
from neutracer.trace.snapshot import Snapshot

_LOGGER = logging.getLogger("neutracer")

DEFAULT_DIRECTORY = "neutracer-run"

# In the names of what is written when a signal ends the process.
_TERMINATED = "terminated"

# For the last report before a signal ends the process, which it does after two seconds.
_SOON_S = 1.8

_UNUSED = (
    "This program never used CUDA. 'neutracer rehearse train.py' says what it would need on a "
    "card. Programs that it started are not followed: 'torchrun -m neutracer run train.py' follows "
    "each rank."
)


def check_writable(directory: str) -> None:
    """Say before a program is followed for hours that its reports can't be written.

    Raises:
        NeutracerError: They can't.
    """
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise NeutracerError(f"{directory}: no files can be written there")


def written_pairs(files: Iterable[str], notes: Iterable[str]) -> list[tuple[str, str]]:
    """The lines of a page that say which snapshots were written, and what to know about them."""
    files = list(files)
    # Names and folders apart: a long path would be broken where nobody can copy it.
    pairs = [("written", Copyable(os.path.basename(file))) for file in files]
    if files:
        pairs.append(("in", Copyable(os.path.relpath(os.path.dirname(files[0])))))
    return pairs + [("note", note) for note in notes]


class Following:
    """The recording of this process, and the files written from it.

    Attributes:
        directory: Where the files go.
        command: Which command began it, without "neutracer"; it is in the files' names.
        why: Why there is nothing to report; "" if there is.
        last: What the snapshot that was written last shows.
    """

    def __init__(
        self,
        directory: str,
        max_entries: int | None,
        stacks: str,
        command: str = "run",
        *,
        context: str = "alloc",
        recorder: str = "auto",
        modules: bool = False,
    ) -> None:
        """Set up; `begin` begins.

        Args:
            directory: Where the files go; it is made when the first is written.
            max_entries: As for `ProgramRecording`; 0 records nothing.
            stacks: As for `ProgramRecording`, and so `context` and `recorder`.
            command: Which command it is for.
            modules: Whether allocations are marked with the module that made them.
        """
        self.directory = os.path.abspath(directory)
        self.command = command
        self.why = ""
        self.last: OverviewReport | None = None
        self._max_entries = max_entries
        self._how = (stacks, context, recorder, True if modules else None)
        self._process = os.getpid()
        # Held while files are written: by the program's thread, or by that beside it.
        self._lock = threading.Lock()
        self._ended = False
        self._recording: ProgramRecording | None = None
        self._watch: OomWatch | None = None
        self._files: list[str] = []
        self._notes: list[str] = []

    @property
    def files(self) -> tuple[str, ...]:
        """The snapshots that were written, each with a text and a JSON beside it."""
        return tuple(self._files)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the recording."""
        untold = "" if self._watch is None else self._watch.untold
        return (*self._notes, *([f"out of memory: {untold}"] if untold else ()))

    @property
    def is_recording(self) -> bool:
        """Whether a recording has been begun."""
        return self._recording is not None

    @property
    def ooms(self) -> tuple[OomReport, ...]:
        """The out-of-memory errors that were written down."""
        return () if self._watch is None else self._watch.reports

    @property
    def ooms_seen(self) -> int:
        """All of them, including those at a place that has a report already."""
        return 0 if self._watch is None else self._watch.seen

    @classmethod
    def watching(cls) -> Following | None:
        """Whose watch for out-of-memory errors is on in this process."""
        now = _watching
        return now if now is not None and now._process == os.getpid() else None

    def begin(self, *, watch: bool = True) -> None:
        """Record from now on, or from when CUDA is initialised; torch has been imported.

        Where that can't be done, `why` says so.

        Args:
            watch: Write down out-of-memory errors too.
        """
        if self._process != os.getpid():
            return
        try:
            ooms = oom_report(self.directory, max_entries=0) if watch else None
            if self._max_entries != 0:
                recording = ProgramRecording(self._max_entries, *self._how)
                self._recording = recording.start()
                if recording.why:
                    self.why = f"Nothing was recorded: {recording.why}."
            if ooms is not None:
                self._watch = ooms.start()
                _set_watching(self)
        except UnavailableError as error:
            self.why = f"Nothing was recorded: {error}."

    def write(self, reason: str) -> None:
        """Write a snapshot, its sidecar and a page; `reason` is in their names."""
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
            snap = self._save(f"{stem}.pickle")
            self._files.append(f"{stem}.pickle")
        except (NeutracerError, OSError, ValueError) as error:
            self._notes.append(f"{os.path.basename(stem)}: {error}")
            return
        try:
            shown = overview(snap, f"{stem}.pickle")
            write_text(f"{stem}.txt", render_text(shown.document()))
        except Exception as error:
            # What the program came to must not depend on what can be said of it.
            kind = "" if isinstance(error, (NeutracerError, OSError)) else type(error).__name__
            why = ": ".join(part for part in (kind, str(error)) if part)
            self._notes.append(f"{stem}.pickle is whole, but has no report ({why})")
            return
        self.last = shown

    def _save(self, path: str) -> Snapshot:
        if self._recording is not None:
            return self._recording.save(path)
        snap = snapshot()
        snap.save(path)
        facts = sidecar(snap.devices, recording=recording_facts(), tensors=snap.beside.tensors)
        write_text(sidecar_path(path), facts)
        return snap

    def end_soon(self) -> bool:
        """Do what `end` does, in less than two seconds: a signal ends this process then.

        Returns:
            Whether there was something to write.
        """
        ending = threading.Thread(target=self.end, args=(_TERMINATED,), daemon=True)
        ending.start()
        ending.join(_SOON_S)
        files = [file for file in self._files if file.endswith(f"-{_TERMINATED}.pickle")]
        told = files[0] if files else "none could be written in time"
        if sys.stderr is not None and not self.why:
            print(f"neutracer: the program is being terminated; report: {told}", file=sys.stderr)
        return not self.why

    def end(self, reason: str | None = "exit") -> None:
        """Write the last report, switch everything off; a second time does nothing.

        Args:
            reason: As for `write`; None writes none.
        """
        # A forked child leaves alone what is its parent's, including the lock.
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
            if recording.because:
                self._notes.append(f"recorded with PyTorch's own recorder: {recording.because}")
            if recording.unmarked:
                self._notes.append(f"no modules: {recording.unmarked}")
            if reason != _TERMINATED:
                # PyTorch complains on standard error where another thread ends its history than
                # began it; this one ends with the process.
                recording.stop()
            self._write(reason)


_watching: Following | None = None


def _set_watching(following: Following | None) -> None:
    global _watching
    _watching = following
