# SPDX-License-Identifier: Apache-2.0
"""Runs a user's script in this process as `python script.py` would.

It also acts on signals and at intervals (`OnDemand`).
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import logging
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import TextIO

from neutracer._native import core
from neutracer.errors import NeutracerError

# ---- Streams -----------------------------------------------------------------------------


def can_be_restored(stream: object) -> bool:
    """True unless the program detached the standard stream's buffer."""
    try:
        # Raises without a buffer.
        getattr(stream, "closed", False)
    except ValueError:
        return False
    return True


_LOGGER = logging.getLogger("neutracer")

# ---- Program -----------------------------------------------------------------------------

# Streams that programs installed in place of the standard ones. They stay alive because their
# destruction may close the buffer that they share with the standard stream.
_kept: list[object] = []

_EXPECTED = "give a Python script, or with -m a module, without 'python' before it"


def run_program(
    arguments: Sequence[str],
    *,
    module: bool = False,
    keep: list[object] | None = None,
    exits: list[BaseException] | None = None,
) -> int:
    """Run a script or a module as `__main__`, with its own arguments and search path; returns its
    exit code, or -SIGINT after KeyboardInterrupt, for which Python ends by the signal (`end_by`).

    Replaced standard streams are flushed and restored afterwards, unless the program took over
    their buffers. A forked child that reaches the program's end exits there.
    """
    process = os.getpid()
    code = _ended(arguments, module, [] if keep is None else keep, [] if exits is None else exits)
    if process != os.getpid():
        end_by(code)
        raise SystemExit(shell_code(code))
    return code


class UnreportedError(NeutracerError):
    """A program that has ended without a report: a failure of ours, after it.

    Attributes:
        code: The result of `run_program`, which stays the program's.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"the program has ended, but there is no report on it: {why}")
        self.code = code


@contextmanager
def after_program(code: int) -> Iterator[None]:
    """Work after a program's end: whatever it took away, its exit code is not lost."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, NeutracerError) else type(error).__name__
        raise UnreportedError(code, ": ".join(filter(None, (kind, str(error))))) from None


def shell_code(code: int) -> int:
    """The exit code as a shell reports it: 128 plus the signal for a negative code.

    Example:
        >>> shell_code(3), shell_code(-2)
        (3, 130)
    """
    return 128 - code if code < 0 else code


def end_by(code: int) -> None:
    """End this process by signal `-code`, as Python does after Ctrl-C.

    It returns for other codes, and off the main thread.
    """
    if code >= 0 or threading.current_thread() is not threading.main_thread():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _ended(
    arguments: Sequence[str], module: bool, keep: list[object], exits: list[BaseException]
) -> int:
    name = arguments[0]
    if not module and not os.path.exists(name):
        raise NeutracerError(f"{name}: no such file; {_EXPECTED}")
    saved = sys.argv, list(sys.path)
    streams, modules = (sys.stdout, sys.stderr), dict(sys.modules)
    sys.argv = list(arguments)
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            _check_module(name)
            keep.append(runpy.run_module(name, run_name="__main__", alter_sys=True))
        else:
            _run_script(name, keep)
    except _NoModuleError as error:
        raise NeutracerError(str(error)) from None
    except SystemExit as ending:
        keep.extend(_variables(ending.__traceback__))
        exits.append(ending)
        return _exit_code(ending.code)
    except BaseException as error:
        keep.extend(_variables(error.__traceback__))
        # Show the program's frames only.
        error.__traceback__ = _own_frames_off(error)
        ended = _shown(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else ended
    finally:
        sys.argv, sys.path[:] = saved[0], saved[1]
        for one, loaded in modules.items():
            sys.modules.setdefault(one, loaded)
        sys.stdout, sys.stderr = map(_own_stream, streams, (sys.stdout, sys.stderr))
    return 0


def _shown(error: BaseException) -> int:
    """Print an exception as Python does at a program's end; returns the exit code."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as ending:
        return _exit_code(ending.code)
    except BaseException as second:
        # The program's own hook is missing or fails.
        for one in (second, error):
            with suppress(Exception):
                one.__traceback__ = _own_frames_off(one)
                sys.__excepthook__(type(one), one, one.__traceback__)
    return 1


def _variables(traceback: TracebackType | None) -> Iterator[object]:
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "__main__":
            yield traceback.tb_frame.f_globals
        traceback = traceback.tb_next


@contextmanager
def main_again(kept: Sequence[object]) -> Iterator[None]:
    """Let `__main__` be the program that `run_program` kept, so that its variables have names."""
    main = next((one for one in kept if isinstance(one, ModuleType)), None)
    space = next((one for one in kept if isinstance(one, dict)), None)
    if main is None and space is not None:
        main = ModuleType("__main__")
        vars(main).update(space)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = before if main is None else main
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _run_script(name: str, keep: list[object]) -> None:
    """Run a script as `python name` does.

    `sys.path[0]` is the folder behind a link; `__file__` is absolute, so that spawned workers
    find the script after a change of directory.
    """
    path = os.path.abspath(name)
    if pkgutil.get_importer(path) is not None or name.endswith(".pyc"):
        # A folder, an archive, or compiled code.
        sys.path.insert(0, os.path.dirname(path))
        keep.append(runpy.run_path(name, run_name="__main__"))
        return
    sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main, before = ModuleType("__main__"), sys.modules["__main__"]
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins)
    if sys.version_info < (3, 15):
        vars(main).update(__cached__=None)
    sys.modules["__main__"] = main
    keep.append(main)
    try:
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before


def _own_stream(mine: TextIO, theirs: TextIO) -> TextIO:
    """The stream to continue with after a program replaced `mine` by `theirs`."""
    if theirs is mine:
        return mine
    _kept.append(theirs)
    # A program's stream may raise anything.
    with suppress(Exception):
        theirs.flush()
    return mine if can_be_restored(mine) else theirs


class _NoModuleError(Exception):
    """The module does not exist; a private type, so that no program can raise it."""


def _check_module(name: str) -> None:
    """Look up a module as Python's `-m` does, importing only its packages."""
    if name.startswith("."):
        raise _NoModuleError(f"no module named {name}: relative names are not supported")
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")
    except (ModuleNotFoundError, ValueError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or name == missing or name.startswith(f"{missing}."):
            raise _NoModuleError(f"no module named {name}") from None
        raise
    if found is None:
        raise _NoModuleError(f"no module named {name}, or it is a package without __main__")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        # What the system keeps of it: below 0, a result of ours would be a signal.
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _own_frames_off(error: BaseException) -> TracebackType | None:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        traceback = traceback.tb_next
    return traceback


# ---- On demand ---------------------------------------------------------------------------

# Seconds by which a fatal signal is delayed at most.
_LAST_S = 2.0


class OnDemand:
    """A thread that acts on a signal and at intervals.

    It acts even while the main thread hangs in C code with the GIL released, and needs nothing
    that the program can take away: no descriptor, and no handler of Python's. A signal that the
    program handles, before or after the start, is the program's.

    Attributes:
        signum: The signal that it acts on; None if it was asked for none or the program handles
            it.
    """

    def __init__(
        self,
        action: Callable[[str], object],
        *,
        every_s: float | None,
        signum: int | None,
        last_signum: int | None = None,
        last: Callable[[], object] | None = None,
    ) -> None:
        """Set up; `start` begins."""
        self.signum = signum
        self._action = action
        self._every_s = every_s
        self._last_signum = last_signum
        self._last = last
        self._waiter = -1
        self._process = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start, on any thread."""
        if self._every_s is None and self.signum is None and self._last_signum is None:
            return
        self._process = os.getpid()
        self._waiter = core.signals_open()
        self.signum = self._taken(self.signum, 0.0)
        self._last_signum = self._taken(self._last_signum, _LAST_S)
        self._thread = threading.Thread(target=self._run, name="neutracer-reports", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a running action."""
        if self._thread is None or self._process != os.getpid():
            return
        core.signals_wake(self._waiter)
        self._thread.join()
        self._thread = None
        core.signals_close(self._waiter)

    def _taken(self, signum: int | None, seconds: float) -> int | None:
        """The signal, if it is not the program's."""
        if signum is None or not core.signals_take(self._waiter, signum, seconds):
            return None
        return signum

    def _run(self) -> None:
        due = None if self._every_s is None else time.monotonic() + self._every_s
        while True:
            timeout = -1.0 if due is None else max(due - time.monotonic(), 0.0)
            came = core.signals_wait(self._waiter, timeout)
            if self._last_signum is not None and came >> self._last_signum & 1:
                self._end(self._last_signum)
            if self.signum is not None and came >> self.signum & 1:
                self._act("signal")
            if came & 1:
                return
            if due is not None and self._every_s is not None and time.monotonic() >= due:
                self._act("interval")
                due = time.monotonic() + self._every_s

    def _end(self, signum: int) -> None:
        """Call `last`, then raise the signal again, now unhandled."""
        try:
            if self._last is not None:
                self._last()
        except Exception:
            _LOGGER.exception("the last report could not be written")
        finally:
            os.kill(os.getpid(), signum)

    def _act(self, reason: str) -> None:
        try:
            self._action(reason)
        except Exception:
            _LOGGER.exception("a report could not be written")
