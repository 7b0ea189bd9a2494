# SPDX-License-Identifier: Apache-2.0
"""The moment at which PyTorch runs out of memory, before the exception exists.

PyTorch calls its observers on the thread that asked, after its cache was given back and
the request failed again, and has no way to detach one. Ours is attached once, at the first
request, and does nothing while nobody listens. An exception from an observer would replace
the error, so none leaves ours.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutracer.process.recording.capture import torch_with_cuda

__all__ = ["OutOfMemory", "add_notes", "is_attached", "listen"]

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
