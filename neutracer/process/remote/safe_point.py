# SPDX-License-Identifier: Apache-2.0
"""Something done by the main thread, between two steps of whatever it is at."""

from __future__ import annotations

import _thread
import itertools
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from neutracer.errors import NeutracerError

__all__ = ["in_main_thread", "run_errand"]

# A Ctrl-C that came meanwhile is given to the program again after so many seconds.
_LATER_S = 0.05

_numbers = itertools.count(1)
_errands: dict[int, _Errand] = {}


class _Errand:
    """What is to be done, and what became of it."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.error: BaseException | None = None
        # Released when it is done. The plainest of locks: the main thread may be anywhere.
        self.undone = _thread.allocate_lock()
        self.undone.acquire()


def in_main_thread(action: Callable[[], object], seconds: float) -> None:
    """Have the main thread call something as soon as it runs Python's bytecode (3.14 on).

    The call comes between two steps of the program, as that of a signal's handler does, so
    it is short, and waits for nothing that the main thread may hold.

    Args:
        action: What it calls.
        seconds: How long to wait for it.

    Raises:
        NeutracerError: The main thread has not come back to Python in that time; it will not
            call it any more.
        Exception: What the action raised.
    """
    if threading.current_thread() is threading.main_thread():
        action()
        return
    number, errand = next(_numbers), _Errand(action)
    _errands[number] = errand
    try:
        _send(number, errand, seconds)
    finally:
        _errands.pop(number, None)
    if isinstance(errand.error, KeyboardInterrupt):
        # It was meant for the program, which has not seen it.
        threading.Timer(_LATER_S, _thread.interrupt_main).start()
    if errand.error is not None:
        raise errand.error


def _send(number: int, errand: _Errand, seconds: float) -> None:
    remote_exec: Any = sys.remote_exec  # type: ignore[attr-defined,unused-ignore]
    handle, script = tempfile.mkstemp(".py", "neutracer-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"import sys\nsys.modules[{__name__!r}].run_errand({number})\n")
        remote_exec(os.getpid(), script)
        if errand.undone.acquire(timeout=seconds):
            return
        # Whoever takes it out of the list has it: the main thread may just be beginning.
        if _errands.pop(number, None) is None:
            errand.undone.acquire()
            return
        with suppress(Exception):
            # In the place of the script, which will not be there any more.
            remote_exec(os.getpid(), os.devnull)
        raise NeutracerError(f"the main thread has not come back to Python in {seconds:g} s")
    finally:
        os.unlink(script)


def run_errand(number: int) -> None:
    """Do what was asked for under this number, if it still is; nothing is raised."""
    errand = _errands.pop(number, None)
    if errand is None:
        return
    try:
        errand.action()
    except BaseException as error:
        errand.error = error
    finally:
        errand.undone.release()
