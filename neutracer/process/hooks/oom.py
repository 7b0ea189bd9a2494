# SPDX-License-Identifier: Apache-2.0
"""Out of memory: the observer on PyTorch's allocator, and its listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from neutracer.errors import UnavailableError
from neutracer.process.hooks.shim import call, load, loaded

__all__ = ["OomFact", "OomSubscription", "on_oom", "oom_descriptor", "oom_errors", "oom_facts"]

#: Errors of callbacks that are kept.
_MOST_ERRORS = 32


@dataclass(frozen=True)
class OomFact:
    """What was known when an allocator ran out of memory.

    Attributes:
        device: The device's number; of the CPU's allocator 0.
        asked_bytes: The request, rounded to the segment that it needed.
        total_bytes: The device's bytes, or the cap where a fraction is set.
        free_bytes: The device's free bytes.
        time_ns: When, since the epoch.
        thread_id: The operating system's id of the asking thread.
    """

    device: int
    asked_bytes: int
    total_bytes: int
    free_bytes: int
    time_ns: int
    thread_id: int


class OomSubscription:
    """A callback for out-of-memory events. Use as a context manager, or call `remove`."""

    def __init__(self, callback: Callable[[OomFact], object]) -> None:
        self._callback: Callable[[OomFact], object] | None = callback

    def remove(self) -> None:
        """Call the callback no more; PyTorch keeps the observer, which then does nothing."""
        with _lock:
            self._callback = None
            if self in _listeners:
                _listeners.remove(self)

    def __enter__(self) -> OomSubscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _tell(self, fact: OomFact) -> None:
        callback = self._callback
        if callback is not None:
            callback(fact)


_lock = threading.RLock()
_listeners: list[OomSubscription] = []
_errors: list[str] = []


def on_oom(callback: Callable[[OomFact], object]) -> OomSubscription:
    """Call `callback` when the allocator runs out of memory, before the exception is raised.

    The call is in the asking thread, without the allocator's lock. What it raises does not
    reach the program, which gets PyTorch's own exception; `oom_errors` has it.

    Args:
        callback: Gets the `OomFact`. It is not called for errors that it causes itself.

    Raises:
        UnavailableError: There are no hooks, or CUDA was not initialised.
    """
    module = load()
    subscription = OomSubscription(callback)
    with _lock:
        call(module.attach_oom)
        _listeners.append(subscription)
        module.oom_listen(_on_oom)
    return subscription


def _on_oom(*figures: int) -> None:
    fact = OomFact(*figures)
    for listener in list(_listeners):
        try:
            listener._tell(fact)
        except BaseException as error:
            del _errors[: 1 - _MOST_ERRORS]
            _errors.append(f"{type(error).__name__}: {error}")


def oom_errors() -> list[str]:
    """What callbacks of `on_oom` raised, the latest last, as text."""
    last = None if loaded() is None else loaded().oom_error()
    return [*_errors, *([last] if last else [])]


def oom_facts() -> list[OomFact]:
    """The last out-of-memory events since the observer was attached, the oldest first."""
    if loaded() is None:
        return []
    rows = loaded().oom_facts()
    return [
        OomFact(device, asked, total, free, time_ns, thread)
        for _, device, asked, total, free, time_ns, thread in rows
    ]


def oom_descriptor() -> int:
    """An eventfd that becomes readable with each out-of-memory event; reading resets it.

    Raises:
        UnavailableError: There are no hooks, CUDA was not initialised, or there is no
            descriptor left.
    """
    module = load()
    call(module.attach_oom)
    descriptor: int = module.oom_descriptor()
    if descriptor < 0:
        raise UnavailableError("a file descriptor", "close some, or raise the limit")
    return descriptor
