# SPDX-License-Identifier: Apache-2.0
"""Recording through the hooks (a history longer than PyTorch's ring), and OOM observers."""

from __future__ import annotations

import _thread
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.hooks import shim as hooks
from neutracer.hooks.build import target
from neutracer.hooks.live import take
from neutracer.hooks.modules import Marks, check_model, check_modules
from neutracer.recording.recorder import (
    HISTORY,
    Recording,
    Wish,
    ask_tensors,
    follow,
    is_for_cpu,
    other_allocator,
    pushed,
    pushed_since,
    snapshot,
    torch_with_cuda,
    wrapped_ring,
)
from neutracer.recording.sidecar import (
    facts_of,
    file_stem,
    save_with,
)
from neutracer.recording.uses import UsesOfSteps
from neutracer.trace.snapshot import Snapshot

# ---- Observer ----------------------------------------------------------------------------

# PyTorch calls its observers on the requesting thread, after it has emptied its cache and failed
# again, before the exception exists. An observer can't be detached: ours is attached once, is idle
# without listeners, and lets no exception out, since that would replace the error.

_LOGGER = logging.getLogger("neutracer")


@dataclass(frozen=True)
class OutOfMemory:
    """The arguments of PyTorch's observers."""

    device: int
    asked_bytes: int  # The request to the device, rounded to a segment.
    limit_bytes: int  # The process's cap if one is set, else the device's size.
    free_bytes: int  # The device's free bytes.
    time_us: int  # Microseconds since the epoch.


Listener = Callable[[OutOfMemory], object]


class _Observer:
    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.attached_to: Any = None
        self.lock = threading.RLock()
        self._inside = threading.local()

    def attach(self, torch: Any) -> None:
        with self.lock:
            # Other allocators refuse observers.
            native = torch.cuda.memory.get_allocator_backend() == "native"
            if native and self.attached_to is not torch and self.listeners:
                torch._C._cuda_attach_out_of_memory_observer(self)
                self.attached_to = torch

    def attach_late(self, torch: Any) -> None:
        # An exception here would abort the initialisation of CUDA.
        try:
            self.attach(torch)
        except Exception as error:
            _LOGGER.warning("cannot watch for out-of-memory errors: %s", error)

    def __call__(self, device: int, asked: int, limit: int, free: int) -> None:
        listeners = self.listeners
        # Ignore errors that a listener causes itself.
        if not listeners or getattr(self._inside, "listener", False):
            return
        self._inside.listener = True
        try:
            fact = OutOfMemory(device, asked, limit, free, time.time_ns() // 1000)
            for listener in listeners:
                _notify(listener, fact)
        finally:
            self._inside.listener = False

    def forget(self) -> None:
        """Drop the parent's listeners in a forked child."""
        self.listeners = ()
        self.lock = threading.RLock()


def _notify(listener: Listener, fact: OutOfMemory) -> None:
    try:
        listener(fact)
    except KeyboardInterrupt:
        # Deliver Ctrl-C a moment later, so that it doesn't replace the error.
        threading.Timer(0.05, _thread.interrupt_main).start()
    except BaseException:
        _LOGGER.exception("a listener to an out-of-memory error failed")


_observer = _Observer()
os.register_at_fork(after_in_child=_observer.forget)


def listen(listener: Listener) -> Callable[[], None]:
    """Call a function at each out-of-memory error, on the requesting thread.

    The device's lock is not held, and the exception does not exist yet. Errors that a listener
    causes itself are ignored.
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


def add_notes(source: Callable[[str], str | None]) -> Callable[[], None]:
    """Add a note to each new out-of-memory exception of PyTorch.

    This includes `AcceleratorError`, raised while PyTorch's own allocator is disabled. The
    exception's `__init__` is replaced until the returned function is called, so that every handler
    finds what `source` returns for its message. Python before 3.11 has no notes.
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
    def __init__(self) -> None:
        self._sources: list[tuple[Any, Callable[[str], str | None]]] = []
        # Original `__init__` by class, or None if it is inherited, as in PyTorch.
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

# Recording through the hooks if available, else through PyTorch's own recorder.

# Events per device that fit 256 MiB of host memory. With the hooks an event takes 84 bytes (a ring
# of 64 MiB, tables of 13 MiB), 126 during a snapshot; with PyTorch's recorder 350, then 640 more.
HOOK_ENTRIES = 800_000
RECORDER_ENTRIES = 250_000

#: "auto" prefers the hooks.
RECORDERS = ("auto", "hooks", "pytorch")

#: Frames per stack, the most that a ring can hold; today's libraries need some 40.
FRAMES = 64

# Options of the active recordings through the hooks.
_followed: dict[object, dict[str, Any]] = {}


def hook_events() -> int:
    """Events per device of the active recording through the hooks; 0 without one."""
    return max((facts["max_entries"] for facts in _followed.values()), default=0)


def recording_facts() -> dict[str, Any]:
    """The active recording's options, for the sidecar."""
    if _followed and not HISTORY.in_force():
        return max(_followed.values(), key=lambda facts: int(facts["max_entries"]))
    return {"recorder": "pytorch", **HISTORY.facts()}


def snapshot_now() -> Snapshot:
    """A snapshot of this process: by the hooks while they record, else by PyTorch.

    Of a torch that is built for the CPU the hooks alone can take one.

    The hooks' is taken without the GIL. It has no categories of live tensors: to find them is one
    call that keeps the GIL while it lists the heap.
    """
    state = hooks.state()
    if state is not None and state.active:
        return take(state.backend, max(hook_events(), state.events), quiet=True)
    return snapshot()


def save_now(snap: Snapshot, directory: str) -> str:
    """Write a snapshot of this process with its sidecar into a folder; return the file's path."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f"{file_stem('demand')}.pickle")
    facts = facts_of(snap, recording_facts())
    if snap.beside.holders:
        facts["holders"] = {str(device): dict(one) for device, one in snap.beside.holders.items()}
    save_with(snap, path, facts)
    return path


def _recordable(recorder: str) -> Any:
    """The imported torch, if it is built for CUDA, or for the CPU, where only the hooks record."""
    torch: Any = sys.modules.get("torch")
    return torch if is_for_cpu(torch) and recorder != "pytorch" else torch_with_cuda()


class ProgramRecording(Recording):
    """A recording that begins whenever the program does, and whose failures are texts.

    Attributes:
        why: Why nothing is recorded though CUDA is in use, or "".
        because: Why PyTorch's recorder is used instead of the hooks, or "".
        unmarked: Why allocations lack the requested module marks, or "".
    """

    def __init__(
        self,
        max_entries: int | None,
        stacks: str = "python",
        context: str = "alloc",
        recorder: str = "auto",
        modules: Any = None,
        pinned: bool = False,
        uses: int = 0,
        observed: Callable[[], object] = lambda: None,
    ) -> None:
        """Set up; `start` begins.

        Args:
            max_entries: Events kept per device; None fills 256 MiB.
            stacks: As for `record`. Only PyTorch's recorder has C++ frames.
            context: As for `record`; the hooks give every event a stack.
            recorder: One of `RECORDERS`.
            modules: As for `record`.
            pinned: As for `record`. Only PyTorch's recorder has that memory.
            uses: Optimizer steps after the first up to whose end uses are observed; 0 observes
                none.
            observed: Called after these steps, before observing ends.
        """
        check_model(modules)
        only_pytorch = recorder == "auto" and (stacks == "all" or pinned)
        self._recorder = "pytorch" if only_pytorch else recorder
        _recordable(self._recorder)
        wish = Wish(max_entries or RECORDER_ENTRIES, stacks, context, pinned=pinned)
        super().__init__(wish, modules=modules)
        # Reports mention a wrapped ring; the program's output should not.
        self.quiet = True
        self._steps = UsesOfSteps(uses, observed) if uses else None
        self._asked = max_entries
        self._end_following: Callable[[], None] | None = None
        self._before: Mapping[int, int] = {}
        self.why = self.because = self.unmarked = ""

    @property
    def waiting(self) -> bool:
        """True while on and waiting for CUDA."""
        return super().waiting and not self.why

    def start(self) -> ProgramRecording:
        """Start, and return the recording; a second call does nothing."""
        torch = _recordable(self._recorder)
        if self.active:
            return self
        self._switch_on()
        self.why = self.because = ""
        if is_for_cpu(torch) or torch.cuda.is_initialized():
            self._begin_late(torch)
        else:
            torch.cuda._lazy_call(functools.partial(self._begin_late, torch))
        return self

    def now(self) -> tuple[Snapshot, dict[str, Any]]:
        """The snapshot, as of the end where it has ended, and the content of its sidecar."""
        if self._taken is None and (not self.active or self._begun is None):
            why = self.why or "the program has not used CUDA yet"
            raise UnavailableError("a recording with CUDA in it", why)
        return self._now()

    def _begin_late(self, torch: Any) -> None:
        # An exception here would abort the initialisation of CUDA.
        try:
            if self.waiting:
                self._begin(torch)
        except Exception as error:
            self.why = f"{error}"
            _LOGGER.info("nothing is recorded: %s", error)

    def _switch_history_on(self, torch: Any, begun: Wish) -> None:
        other = "" if is_for_cpu(torch) else other_allocator(torch)
        if other:
            raise UnavailableError("a history of its memory", other)
        if self._recorder != "pytorch":
            try:
                self._follow()
                return
            except (UnavailableError, ValueError) as error:
                if self._recorder == "hooks" or is_for_cpu(torch):
                    raise
                self.because = str(error)
        super()._switch_history_on(torch, begun)

    def _follow(self) -> None:
        if target().torch.backend != "cuda" and not is_for_cpu(sys.modules.get("torch")):
            raise UnavailableError("use of the hooks", "they were built for a torch without CUDA")
        events = self._asked or HOOK_ENTRIES
        try:
            self._end_following = follow(events, FRAMES)
            self._before = pushed()
        except UnavailableError as error:
            # The user may have waited for their compilation. A torch for the CPU has no recorder.
            if sys.stderr is not None and not is_for_cpu(sys.modules.get("torch")):
                reason = str(error).replace("\n", " ")
                text = f"neutracer: using PyTorch's own recorder, which costs more: {reason}"
                print(text, file=sys.stderr, flush=True)
            raise
        _followed[self] = {
            "recorder": "hooks",
            "joined": False,
            "max_entries": events,
            "stacks": "python",
            "context": "all",
            "frames": FRAMES,
        }

    def _switch_off(self, begun: Wish) -> None:
        end, self._end_following = self._end_following, None
        if end is None:
            super()._switch_off(begun)
        else:
            _followed.pop(self, None)
            end()

    def _observe(self, torch: Any) -> None:
        if self._steps is not None:
            self._steps.begin(torch)
            self._uses = self._steps

    def _marked(self, torch: Any) -> Marks | None:
        try:
            check_modules(torch, self._modules)
            return super()._marked(torch)
        except UnavailableError as error:
            self.unmarked = str(error)
            return None

    def _take(self) -> tuple[Snapshot, dict[str, Any]]:
        if self in _followed:
            recording = dict(_followed[self])
            backend = hooks.load().backend
            snap = ask_tensors(take(backend, recording["max_entries"], quiet=True))
            recording["wrapped"] = pushed_since(self._before) >= recording["max_entries"]
        else:
            snap = snapshot()
            recording = {"recorder": "pytorch", "because": self.because, **HISTORY.facts()}
            recording["wrapped"] = wrapped_ring(snap)
        if self._uses is not None:
            self._uses.note(snap)
        return snap, facts_of(snap, recording, program=self._program)


os.register_at_fork(after_in_child=_followed.clear)
