# SPDX-License-Identifier: Apache-2.0
"""Writes down why memory ran out, before the program hears of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutracer.arguments import callback as called_back
from neutracer.arguments import number, path_name, whole_number
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.moment import asking_frame, free_text, python_stack, site_of
from neutracer.diagnose.oom.notebook import tell_after_cells
from neutracer.diagnose.oom.page import OomReport
from neutracer.diagnose.oom.write import DEFAULT_SECONDS, write_down
from neutracer.errors import UnavailableError
from neutracer.pickling import StaysHere
from neutracer.process.cycles.watch import prepare_heap
from neutracer.process.device.devices import devices
from neutracer.process.hooks.long_history import ProgramRecording
from neutracer.process.hooks.observer import OutOfMemory, add_notes, listen
from neutracer.process.recording.capture import other_allocator, torch_with_cuda
from neutracer.process.recording.modules import check_modules
from neutracer.units import format_count

__all__ = ["OomWatch", "oom_report", "watch_oom"]

_LOGGER = logging.getLogger("neutracer")

DEFAULT_DIRECTORY = "neutracer-oom"

# Reports in a row, and after how many seconds one more may be written.
_BURST = 5
_REFILL_S = 60.0

# A program that finds its batch size by running out has few places; these are many.
_MOST_SITES = 10_000


def watch_oom(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    max_entries: int | None = None,
    stacks: str = "python",
    modules: Any = None,
    limit: int = _BURST,
    seconds: float = DEFAULT_SECONDS,
    callback: Callable[[OomReport], object] | None = None,
) -> OomWatch:
    """Write a report whenever PyTorch runs out of CUDA memory, and go on.

    Before the exception reaches the program, three files are written: the snapshot, the
    report as text, and as JSON. The exception gets a note with the verdict (from Python
    3.11 on). Each place in the program is reported once, however often it runs out there.

    Nothing initialises CUDA, collects garbage or empties the cache. PyTorch can't detach
    an observer: ours is attached once, and idle when no watch is on.

    Args:
        directory: Where the files go; it is made when the first is written.
        max_entries: Events of each device's history to keep meanwhile; None is as many as 256
            MiB of the host's memory have room for: 800,000 through neutracer's hooks, or
            250,000 where only PyTorch's recorder can be had, which costs more time. 0 records
            nothing. The report then has the events of `neutracer.live`, if that is on;
            otherwise it says where memory is but not who took it.
        stacks: "python", or "all" with frames of C++, which only PyTorch's recorder has.
        modules: A model whose modules mark what they allocate, or True for every model that
            is called: the report then has a table of them. It needs torch 2.10.
        limit: How many reports may be written in a row; one more a minute after that.
        seconds: The most time that a report may take; what is not done by then is left out.
        callback: Called with each `OomReport` after it is written. What it raises is
            logged.

    Returns:
        The watch, which is on: `remove()` ends it, and so does leaving it as a context
        manager. It lives until then, kept or not.

    Raises:
        UnavailableError: torch is not imported, or has no CUDA.
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> watch = neutracer.watch_oom("reports")   # doctest: +SKIP
        >>> watch.remove()                           # doctest: +SKIP
    """
    watch = oom_report(
        directory,
        max_entries=max_entries,
        stacks=stacks,
        modules=modules,
        limit=limit,
        seconds=seconds,
        callback=callback,
    )
    return watch.start()


def oom_report(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    max_entries: int | None = None,
    stacks: str = "python",
    modules: Any = None,
    limit: int = _BURST,
    seconds: float = DEFAULT_SECONDS,
    callback: Callable[[OomReport], object] | None = None,
) -> OomWatch:
    """Do what `watch_oom` does for a block of the program.

    Args:
        directory: As for `watch_oom`, and so the others.
        max_entries: Events of history to keep; None is as for `watch_oom`, 0 records none.
        stacks: As for `record`.
        modules: As for `watch_oom`.
        limit: Reports in a row.
        seconds: The most time that a report may take.
        callback: Called with each report.

    Returns:
        The watch, to be entered with `with`; its `reports` has what was written.

    Raises:
        UnavailableError: torch is not imported, or has no CUDA.
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> with neutracer.oom_report(directory="reports") as watch:   # doctest: +SKIP
        ...     train()
    """
    folder = path_name(directory, "directory")
    if max_entries is not None:
        max_entries = whole_number("max_entries", max_entries, "a number of events")
    limit = whole_number("limit", limit, "a number of reports")
    number("seconds", seconds, "a number of seconds")
    if (max_entries or 0) < 0 or limit < 1 or not seconds > 0:
        raise ValueError("max_entries must be 0 or more, limit 1 or more, seconds above 0")
    called_back("callback", callback, "report")
    check_modules(torch_with_cuda(), modules)
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks is {stacks!r}: it must be 'python' or 'all'")
    recording = None if max_entries == 0 else ProgramRecording(max_entries, stacks, modules=modules)
    return OomWatch(folder, recording, limit, seconds, callback)


@dataclass
class _Site:
    """A place where memory ran out: how often, and which report has it."""

    count: int
    report: OomReport | None


@dataclass(frozen=True)
class _Note:
    """What an exception is to say: of which error, and whether its thread runs Python."""

    told: OutOfMemory
    text: str
    is_native: bool


class OomWatch(StaysHere, instead="it watches this process: send its .reports"):
    """The handle of a watch for out-of-memory errors."""

    def __init__(
        self,
        directory: str,
        recording: ProgramRecording | None,
        limit: int,
        seconds: float,
        callback: Callable[[OomReport], object] | None,
    ) -> None:
        """Made by `watch_oom` and `oom_report`; not by users."""
        self._directory = directory
        self._recording = recording
        self._limit = limit
        self._seconds = seconds
        self._callback = callback
        self._tokens, self._refilled = float(limit), time.monotonic()
        self._busy = threading.Lock()
        self._sites: dict[tuple[object, ...], _Site] = {}
        self._reports: list[OomReport] = []
        # By thread: what is to be added to the exception that is about to be made.
        self._notes: dict[int, _Note] = {}
        self._ends: list[Callable[[], object]] = []
        self._process = 0
        self._seen = 0
        #: What could be said of the last error of another allocator than PyTorch's, or "".
        self.untold = ""

    @property
    def active(self) -> bool:
        """Whether it is on; in the child of a fork it is not."""
        return bool(self._ends) and self._process == os.getpid()

    @property
    def reports(self) -> tuple[OomReport, ...]:
        """What was written, in order."""
        return tuple(self._reports)

    @property
    def seen(self) -> int:
        """Out-of-memory errors that were seen, those without a report of their own too."""
        return self._seen

    def start(self) -> OomWatch:
        """Begin; a second time does nothing. Returns the watch.

        Raises:
            UnavailableError: torch has no CUDA, or can't record.
        """
        if self.active:
            return self
        if self._process != os.getpid():
            # What is on in the parent of a fork is not to be ended here, nor waited for.
            self._process, self._ends, self._busy = os.getpid(), [], threading.Lock()
        try:
            # What is slow the first time is not left for the moment of need.
            devices()
            prepare_heap()
        except UnavailableError as error:
            _LOGGER.info("reports will not say what garbage holds: %s", error)
        if self._recording is not None:
            self._recording.start()
            self._ends.append(self._recording.discard)
        try:
            self._ends.append(listen(self._on_oom))
            self._ends.append(add_notes(self._note))
            self._ends.append(tell_after_cells(lambda: self.reports))
        except BaseException:
            self.remove()
            raise
        return self

    def remove(self) -> None:
        """End it; a second time does nothing. What was written stays."""
        ends, self._ends = self._ends, []
        if self._process == os.getpid():
            for end in reversed(ends):
                end()

    def __enter__(self) -> OomWatch:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "on" if self.active else "removed"
        return f"<OomWatch: {state}, {format_count(len(self._reports), 'report')}>"

    # On the thread that asked, before the exception exists.
    def _on_oom(self, told: OutOfMemory) -> None:
        self._seen += 1
        self._notes.pop(threading.get_ident(), None)
        frame = asking_frame()
        stack = python_stack(frame)
        site = site_of(told.device, stack)
        # Of several threads each gets its report, in the time that one may take.
        begin = time.monotonic()
        if not self._busy.acquire(timeout=min(self._seconds, threading.TIMEOUT_MAX)):
            return
        try:
            left = self._seconds - (time.monotonic() - begin)
            known = self._sites.get(site)
            if known is not None:
                known.count += 1
                self._leave_note(told, _again(known), frame is None)
            elif self._may_write():
                report = write_down(told, frame, self._directory, left)
                self._sites[site] = _Site(1, report)
                self._reports.append(report)
                self._leave_note(told, report.note, frame is None)
                self._call_back(report)
        finally:
            del frame
            self._busy.release()

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._limit, self._tokens + (now - self._refilled) / _REFILL_S)
        self._refilled = now
        if self._tokens < 1 or len(self._sites) >= _MOST_SITES:
            return False
        self._tokens -= 1
        return True

    def _call_back(self, report: OomReport) -> None:
        # The exception says it, where it can.
        has_notes = hasattr(BaseException, "add_note")
        _LOGGER.log(logging.INFO if has_notes else logging.WARNING, "%s", report.note)
        if self._callback is None:
            return
        try:
            self._callback(report)
        except Exception:
            _LOGGER.exception("the callback of an out-of-memory watch failed")

    def _leave_note(self, told: OutOfMemory, text: str, is_native: bool) -> None:
        self._notes[threading.get_ident()] = _Note(told, text, is_native)

    def _note(self, message: str) -> str | None:
        """The note for the exception that is being made, with PyTorch's message."""
        thread = threading.get_ident()
        # A backward pass runs out on a thread of C++, and raises on the one that called it.
        native = [one for one, note in list(self._notes.items()) if note.is_native]
        said = OomFacts.from_message(message)
        for left_by in (thread, *reversed(native)):
            note = self._notes.get(left_by)
            if note is not None and _is_same(said, note.told):
                del self._notes[left_by]
                return note.text
        return self._untold(message)

    def _untold(self, message: str) -> str | None:
        """What can be said where another allocator than PyTorch's ran out."""
        torch = torch_with_cuda()
        if "out of memory" not in message or not torch.cuda.is_initialized():
            return None
        other = other_allocator(torch)
        if not other:
            return None
        self._seen += 1
        free = free_text(torch.cuda.current_device())
        self.untold = f"{other}, so nothing tells who holds the memory{free}"
        return f"neutracer: {self.untold}"


def _again(site: _Site) -> str:
    where = site.report.text if site.report is not None else "no report"
    return f"neutracer: out of memory again at this place ({site.count} times); first: {where}"


def _is_same(said: OomFacts, told: OutOfMemory) -> bool:
    if said.segment_bytes is None or said.device not in (None, told.device):
        return False
    return said.is_of(told.asked_bytes)
