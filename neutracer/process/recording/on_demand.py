# SPDX-License-Identifier: Apache-2.0
"""An action beside a running program: at signals, every few minutes, before a signal ends it."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from neutracer._native import core

__all__ = ["OnDemand"]

_LOGGER = logging.getLogger("neutracer")

# A signal that ends the process does so after that many seconds, whatever is being done.
_LAST_S = 2.0


def _pipe() -> tuple[int, int]:
    """A pipe on which nobody waits: where to read, and where to write."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _at_once(action: Callable[[], object]) -> None:
    action()


class OnDemand:
    """A thread that acts when a signal comes, and at intervals.

    The signal wakes it even while the main thread is inside C code, as in a collective that
    hangs, as long as that has released the GIL: Python writes the signal's number to a pipe
    at once, and runs handlers only when the main thread comes back. Where the program takes
    that pipe for itself (asyncio does) the handler wakes the thread. A program that handles
    the signal itself keeps its handler.
    """

    def __init__(
        self,
        action: Callable[[str], object],
        *,
        every_s: float | None,
        signum: int | None,
        last_signum: int | None = None,
        last: Callable[[], object] | None = None,
        in_main: Callable[[Callable[[], object]], object] = _at_once,
    ) -> None:
        """Set up; `start` begins.

        Args:
            action: Is called with "signal" or "interval", on the thread. What it raises
                is logged.
            every_s: Seconds between two actions, or None.
            signum: The signal, or None.
            last_signum: A signal that ends the process, which is put off until `last` has
                returned, for two seconds at most. Python and the program don't see that; a
                handler that the program sets takes its place. None for none.
            last: Is called then, on the thread; it has to be quicker than that.
            in_main: Has the main thread call something, and returns when it has: for who
                begins and ends this from another one.
        """
        self._action = action
        self._every_s = every_s
        self._signum = signum
        self._last_signum = last_signum
        self._last = last
        self._in_main = in_main
        self._read, self._write = -1, -1
        # Where signals go while Python is asked where they go.
        self._aside: tuple[int, int] = (-1, -1)
        self._process = 0
        self._previous: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; call it from the main thread, or have a way to it."""
        if self._every_s is None and self._signum is None and self._last_signum is None:
            return
        self._process = os.getpid()
        self._read, self._write = _pipe()
        self._aside = _pipe()
        if self._signum is not None:
            try:
                self._in_main(self._take)
            except BaseException:
                self._close()
                raise
        if self._last_signum is not None and not core.put_off_signal(
            self._last_signum, self._write, _LAST_S
        ):
            # Another handles it, who is not to lose it when this one stops.
            self._last_signum = None
        self._thread = threading.Thread(target=self._run, name="neutracer-reports", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for an action that is under way; call it as `start`."""
        if self._thread is None or self._process != os.getpid():
            return
        if self._last_signum is not None:
            core.put_back_signal()
        if self._signum is not None:
            self._in_main(self._give_back)
        os.write(self._write, b"\0")
        self._thread.join()
        self._thread = None
        # Whoever kept the handler may still call it.
        self._process = 0
        self._close()

    def _close(self) -> None:
        for end in (self._read, self._write, *self._aside):
            os.close(end)

    def _take(self) -> None:
        if self._signum is None or threading.current_thread() is not threading.main_thread():
            # Only the main thread may have a signal handled.
            self._signum = None
            return
        self._previous = signal.signal(self._signum, self._handle)
        if self._waiting() == -1:
            # Nobody else waits for signals there.
            signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave_child)

    def _give_back(self) -> None:
        if self._signum is None:
            return
        if signal.getsignal(self._signum) == self._handle:
            signal.signal(self._signum, self._previous)
        if self._waiting() == self._write:
            signal.set_wakeup_fd(-1)

    def _waiting(self) -> int:
        """The pipe in which Python reports signals, -1 for none; in the main thread.

        Python only gives it up for another in its place. What arrives there in that
        moment is passed on.
        """
        aside, end = self._aside
        current = signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        try:
            signal.set_wakeup_fd(current, warn_on_full_buffer=current != self._write)
        except (OSError, ValueError):
            # The program has closed its own.
            signal.set_wakeup_fd(-1)
            current = -1
        with suppress(OSError):
            came = os.read(aside, 4096)
            if current != -1:
                os.write(current, came)
        return current

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._process == os.getpid() and self._waiting() != self._write:
            os.write(self._write, bytes([signum]))

    def _leave_child(self) -> None:
        # The child of a fork meets the signal as it would without this.
        if self._thread is not None:
            self._give_back()
            if self._last_signum is not None:
                core.put_back_signal()
            self._thread = None

    def _run(self) -> None:
        due = None if self._every_s is None else time.monotonic() + self._every_s
        while True:
            timeout = None if due is None else max(due - time.monotonic(), 0.0)
            if select.select([self._read], [], [], timeout)[0]:
                came = os.read(self._read, 4096)
                if 0 in came:
                    return
                if self._last_signum is not None and self._last_signum + 128 in came:
                    self._end()
                if self._is_for_us(came):
                    self._act("signal")
            if due is not None and self._every_s is not None and time.monotonic() >= due:
                self._act("interval")
                due = time.monotonic() + self._every_s

    def _is_for_us(self, came: bytes) -> bool:
        if self._signum is None or self._signum not in came:
            return False
        return signal.getsignal(self._signum) == self._handle

    def _end(self) -> None:
        """What is done last, and then the signal again, which nothing handles any more."""
        try:
            if self._last is not None:
                self._last()
        except Exception:
            _LOGGER.exception("the last report could not be written")
        finally:
            os.kill(os.getpid(), self._last_signum or 0)

    def _act(self, reason: str) -> None:
        try:
            self._action(reason)
        except Exception:
            _LOGGER.exception("a report could not be written")
