# SPDX-License-Identifier: Apache-2.0
"""Recording through the hooks: a history longer than PyTorch's ring, and observers of OOMs."""

from __future__ import annotations

import _thread
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.hooks import shim as hooks
from neutracer.hooks.build import target
from neutracer.hooks.live import take
from neutracer.hooks.modules import Marks, check_model, check_modules, marks_of
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import (
    HISTORY,
    Recording,
    ask_tensors,
    other_allocator,
    record,
    torch_with_cuda,
    wrapped_ring,
)
from neutracer.recording.sidecar import (
    rank_facts,
    running_program,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.trace.snapshot import Snapshot

# ---- Observer ----------------------------------------------------------------------------

# The moment at which PyTorch runs out of memory, before the exception exists.
#
# PyTorch calls its observers on the thread that asked, after its cache was given back and
# the request failed again, and has no way to detach one. Ours is attached once, at the first
# request, and does nothing while nobody listens. An exception from an observer would replace
# the error, so none leaves ours.

_LOGGER = logging.getLogger("neutracer")


@dataclass(frozen=True)
class OutOfMemory:
    """What PyTorch passes to its observers.

    Attributes:
        device: The CUDA device.
        asked_bytes: What was asked of the device: the request rounded to a segment.
        limit_bytes: The process's cap where one is set, else the device's size.
        free_bytes: What the device had left.
        time_us: When, in microseconds since the epoch.
    """

    device: int
    asked_bytes: int
    limit_bytes: int
    free_bytes: int
    time_us: int


Listener = Callable[[OutOfMemory], object]


class _Observer:
    """The one observer of a process, and who listens to it."""

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.attached_to: Any = None
        self.lock = threading.RLock()
        self._inside = threading.local()

    def attach(self, torch: Any) -> None:
        with self.lock:
            # Other allocators have no observers, and refuse them.
            native = torch.cuda.memory.get_allocator_backend() == "native"
            if native and self.attached_to is not torch and self.listeners:
                torch._C._cuda_attach_out_of_memory_observer(self)
                self.attached_to = torch

    def attach_late(self, torch: Any) -> None:
        # What is raised here would end the initialisation of CUDA.
        try:
            self.attach(torch)
        except Exception as error:
            _LOGGER.warning("out-of-memory errors can't be watched: %s", error)

    def __call__(self, device: int, asked: int, limit: int, free: int) -> None:
        listeners = self.listeners
        # A listener that runs out of memory itself is not told of it.
        if not listeners or getattr(self._inside, "listener", False):
            return
        self._inside.listener = True
        try:
            told = OutOfMemory(device, asked, limit, free, time.time_ns() // 1000)
            for listener in listeners:
                _tell(listener, told)
        finally:
            self._inside.listener = False

    def forget(self) -> None:
        """Nobody listens in the child of a fork: what there is belongs to the parent."""
        self.listeners = ()
        self.lock = threading.RLock()


def _tell(listener: Listener, told: OutOfMemory) -> None:
    try:
        listener(told)
    except KeyboardInterrupt:
        # Ctrl-C ends the program, but a moment later: not in the place of the error.
        threading.Timer(0.05, _thread.interrupt_main).start()
    except BaseException:
        _LOGGER.exception("a listener to an out-of-memory error failed")


_observer = _Observer()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_observer.forget)


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function at each out-of-memory error, on the thread that asked.

    The device's lock is not held, and the exception is not made yet. A thread that is already
    in a listener gets no call for errors that it causes itself.

    Args:
        listener: What is called; what it raises is logged.

    Returns:
        Ends it; the observer stays attached, and idle, for as long as the process lives.

    Raises:
        UnavailableError: torch is not imported, or has no CUDA.

    Example:
        >>> remove = listen(print)  # doctest: +SKIP
    """
    torch = torch_with_cuda()
    with _observer.lock:
        _observer.listeners += (listener,)
    if torch.cuda.is_initialized():
        _observer.attach(torch)
    else:
        torch.cuda._lazy_call(lambda: _observer.attach_late(torch))

    def remove() -> None:
        with _observer.lock:
            _observer.listeners = tuple(one for one in _observer.listeners if one is not listener)

    return remove


def is_attached() -> bool:
    """Whether the observer is attached to the torch of this process; it stays so."""
    return _observer.attached_to is not None and _observer.attached_to is sys.modules.get("torch")


def add_notes(source: Callable[[str], str | None]) -> Callable[[], None]:
    """Add a note to each out-of-memory exception of PyTorch when it is made.

    `AcceleratorError` is one too: it is raised where PyTorch's own allocator is switched off.
    The exception's class has an `__init__` of ours while anybody adds notes, so that the note
    is there whoever catches the exception. Python before 3.11 has no notes: nothing is added.

    Args:
        source: Gives the note for an exception with this message, or None.

    Returns:
        Ends it.
    """
    if not hasattr(BaseException, "add_note"):
        return lambda: None
    torch: Any = torch_with_cuda()
    made = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    ends = [_notes.begin(made, source)]
    if hasattr(torch, "AcceleratorError"):
        ends.append(_notes.begin(torch.AcceleratorError, source))

    def end() -> None:
        for one in ends:
            one()

    return end


class _Notes:
    """The `__init__` of PyTorch's exception, while somebody adds notes."""

    def __init__(self) -> None:
        self._sources: list[tuple[Any, Callable[[str], str | None]]] = []
        # By class, what it has of its own; PyTorch's have none.
        self._own: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def begin(self, made: Any, source: Callable[[str], str | None]) -> Callable[[], None]:
        entry = (made, source)
        with self._lock:
            if not any(one is made for one, _ in self._sources):
                self._own[made] = vars(made).get("__init__")
                made.__init__ = self._initialiser(made)
            self._sources.append(entry)

        def end() -> None:
            with self._lock:
                if entry in self._sources:
                    self._sources.remove(entry)
                    if not any(one is made for one, _ in self._sources):
                        self._restore(made)

        return end

    def _restore(self, made: Any) -> None:
        own = self._own.pop(made)
        if own is None:
            del made.__init__
        else:
            made.__init__ = own

    def _initialiser(self, made: Any) -> Callable[..., None]:
        inherited = made.__init__

        def initialise(error: BaseException, *args: object, **kwargs: object) -> None:
            inherited(error, *args, **kwargs)
            for one, source in tuple(self._sources):
                if one is made:
                    _add_note(error, source)

        return initialise


def _add_note(error: Any, source: Callable[[str], str | None]) -> None:
    try:
        note = source(str(error))
        if note:
            error.add_note(note)
    except Exception:
        _LOGGER.exception("no note could be added to an out-of-memory error")


_notes = _Notes()


# ---- Long history ------------------------------------------------------------------------

# A long history of a program that knows nothing of it: through our hooks where they can be
# had, through PyTorch's own recorder where not.

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
            _announce(f"neutracer: PyTorch's own recorder is used, which costs more: {error}")
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


def _announce(line: str) -> None:
    """One line to who runs the program, where there is somebody."""
    if sys.stderr is not None:
        print(line.replace("\n", " "), file=sys.stderr, flush=True)


os.register_at_fork(after_in_child=_on.clear)
