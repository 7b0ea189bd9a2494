# SPDX-License-Identifier: Apache-2.0
"""A long history of a program that knows nothing of it: through our hooks where they can be
had, through PyTorch's own recorder where not."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.pickling import StaysHere
from neutracer.process.hooks import attach as hooks
from neutracer.process.hooks.build import target
from neutracer.process.hooks.tail import take
from neutracer.process.recording.capture import other_allocator, torch_with_cuda
from neutracer.process.recording.history import HISTORY, wrapped_ring
from neutracer.process.recording.living import ask_tensors
from neutracer.process.recording.module_calls import Marks, marks_of
from neutracer.process.recording.modules import check_model, check_modules
from neutracer.process.recording.recorder import Recording, record
from neutracer.process.recording.sidecar import (
    rank_facts,
    running_program,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.trace.snapshot import Snapshot

__all__ = [
    "FRAMES",
    "HOOK_ENTRIES",
    "RECORDERS",
    "RECORDER_ENTRIES",
    "ProgramRecording",
    "hook_events",
    "recording_facts",
]

_LOGGER = logging.getLogger("neutracer")

# Events of each device that 256 MiB of the host's memory have room for. With the hooks an
# event takes 84 bytes of its ring (of 64 MiB, beside tables of 13 MiB), and 126 while a
# snapshot is taken; with PyTorch's recorder 350, and 640 more while a snapshot is.
HOOK_ENTRIES = 800_000
RECORDER_ENTRIES = 250_000

#: Who records: the hooks where they can be had, or one of the two only.
RECORDERS = ("auto", "hooks", "pytorch")

#: Frames of a stack: as many as a ring has room for; today's libraries have some 40.
FRAMES = 64

# What is on in this process, and how it records.
_on: dict[object, dict[str, Any]] = {}


def hook_events() -> int:
    """Events of each device that a program's recording through the hooks keeps; 0: none is."""
    return max((facts["max_entries"] for facts in _on.values()), default=0)


def recording_facts() -> dict[str, Any]:
    """How this process is recorded, for what is written beside a snapshot."""
    if _on and not HISTORY.in_force():
        return max(_on.values(), key=lambda facts: int(facts["max_entries"]))
    return {"recorder": "pytorch", **HISTORY.facts()}


class ProgramRecording(StaysHere, instead="it records this process: send its snapshot()"):
    """Records this process from when CUDA is initialised, as `Recording` does.

    Attributes:
        why: Why nothing is recorded though CUDA is in use; "" where something is.
        because: Why PyTorch's recorder is used and not the hooks; "" where they are.
        unmarked: Why allocations are not marked with their modules though they were to be.
    """

    def __init__(
        self,
        max_entries: int | None,
        stacks: str = "python",
        context: str = "alloc",
        recorder: str = "auto",
        modules: Any = None,
    ) -> None:
        """Set up; `start` begins.

        Args:
            max_entries: Events kept of each device; None is what 256 MiB have room for.
            stacks: As for `record`. Frames of C++ only PyTorch's recorder has.
            context: As for `record`, where that records. The hooks give all events stacks.
            recorder: One of `RECORDERS`.
            modules: As for `record`.

        Raises:
            UnavailableError: torch is not imported, or has no CUDA.
            TypeError: `modules` is no model.
        """
        check_model(modules)
        torch_with_cuda()
        self._modules = modules
        self._marks: Marks | None = None
        self.unmarked = ""
        self._asked = max_entries
        self._stacks = stacks
        self._context = context
        self._recorder = "pytorch" if stacks == "all" and recorder == "auto" else recorder
        self._process = 0
        self._program = ""
        self._lock = threading.Lock()
        self._inner: Recording | None = None
        self._end: Callable[[], None] | None = None
        self._taken: tuple[Snapshot, dict[str, Any]] | None = None
        self._is_on = False
        self.why = ""
        self.because = ""

    @property
    def waiting(self) -> bool:
        """Whether it is on and CUDA is not initialised."""
        begun = self._end is not None or self._inner is not None or self.why
        return self._mine() and not begun

    def _mine(self) -> bool:
        return self._is_on and self._process == os.getpid()

    def start(self) -> ProgramRecording:
        """Begin; a second time does nothing. Returns the recording."""
        torch = torch_with_cuda()
        with self._lock:
            if self._mine():
                return self
            self._process, self._program = os.getpid(), running_program()
            self._is_on, self._taken, self.why, self.because = True, None, "", ""
        if torch.cuda.is_initialized():
            self._begin(torch)
        else:
            torch.cuda._lazy_call(functools.partial(self._begin, torch))
        return self

    def _begin(self, torch: Any) -> None:
        # What is raised here would end the initialisation of CUDA.
        if not self.waiting:
            return
        try:
            self._choose(torch)
        except Exception as error:
            self.why = f"{error}"
            _LOGGER.info("nothing is recorded: %s", error)

    def _choose(self, torch: Any) -> None:
        other = other_allocator(torch)
        if other:
            raise UnavailableError("a history of its memory", other)
        # At the end of the recording the program may have left its group.
        rank_facts()
        self._record_by(torch)
        if self._modules is not None:
            try:
                check_modules(torch, self._modules)
                self._marks = marks_of(torch, self._modules)
            except UnavailableError as error:
                self.unmarked = str(error)

    def _record_by(self, torch: Any) -> None:
        if self._recorder != "pytorch":
            try:
                self._follow()
                return
            except (UnavailableError, ValueError) as error:
                if self._recorder == "hooks":
                    raise
                self.because = str(error)
        inner = record(self._asked or RECORDER_ENTRIES, self._stacks, context=self._context)
        # Told in reports, and not in the middle of the program's output.
        inner.quiet = True
        self._inner = inner.start_at_once(torch)

    def _follow(self) -> None:
        if target().torch.backend != "cuda":
            raise UnavailableError("use of the hooks", "they are built for a torch without CUDA")
        events = self._asked or HOOK_ENTRIES
        try:
            self._end = hooks.follow(events, FRAMES)
        except UnavailableError as error:
            # They are for this torch, and somebody may have waited for them.
            _tell(f"neutracer: PyTorch's own recorder is used, which costs more: {error}")
            raise
        _on[self] = {
            "recorder": "hooks",
            "joined": False,
            "max_entries": events,
            "stacks": "python",
            "context": "all",
            "frames": FRAMES,
        }

    def stop(self) -> None:
        """End, and keep what was recorded; a second time does nothing."""
        self._finish(keep=True)

    def discard(self) -> None:
        """End, and keep nothing; a second time does nothing."""
        self._finish(keep=False)

    def _finish(self, keep: bool) -> None:
        with self._lock:
            if not self._mine():
                return
            try:
                if keep and not self.waiting and not self.why:
                    self._taken = self._take()
            except UnavailableError as error:
                _LOGGER.warning("the end of a recording could not be read: %s", error)
            finally:
                self._is_on = False
                self._leave()

    def _leave(self) -> None:
        _on.pop(self, None)
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.detach()
        end, self._end = self._end, None
        inner, self._inner = self._inner, None
        if end is not None:
            end()
        if inner is not None:
            inner.discard()

    def snapshot(self) -> Snapshot:
        """What has been recorded: until now, or until it was stopped.

        Raises:
            UnavailableError: Nothing was.
        """
        return self._now()[0]

    def save(self, path: str | os.PathLike[str]) -> Snapshot:
        """Write the snapshot, and its sidecar as <path>.json; returns what was saved.

        Raises:
            UnavailableError: There is nothing to save.
            OSError: It can't be written.
        """
        snap, facts = self._now()
        snap.save(path)
        write_text(sidecar_path(path), facts)
        return snap

    def _now(self) -> tuple[Snapshot, dict[str, Any]]:
        if self._taken is not None:
            return self._taken
        if not self._mine() or self.waiting or self.why:
            raise UnavailableError(
                "a recording with CUDA in it", self.why or "the program has not used CUDA so far"
            )
        return self._take()

    def _take(self) -> tuple[Snapshot, dict[str, Any]]:
        if self._inner is not None:
            snap = self._inner.snapshot()
            recording = {"recorder": "pytorch", "because": self.because, **HISTORY.facts()}
            recording["wrapped"] = wrapped_ring(snap)
        else:
            recording = dict(_on[self])
            snap = ask_tensors(take("cuda", recording["max_entries"], quiet=True))
            recording["wrapped"] = any(
                pushed >= recording["max_entries"] for pushed in _pushed().values()
            )
        facts = sidecar(
            snap.devices, recording=recording, program=self._program, tensors=snap.beside.tensors
        )
        return snap, facts


def _pushed() -> dict[int, int]:
    now = hooks.state()
    return {} if now is None else now.pushed


def _tell(line: str) -> None:
    """One line to who runs the program, where there is somebody."""
    if sys.stderr is not None:
        print(line.replace("\n", " "), file=sys.stderr, flush=True)


os.register_at_fork(after_in_child=_on.clear)
