# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program in this process as if it had been started alone."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import TextIO

from neutracer.errors import NeutracerError
from neutracer.process.recording.streams import can_be_restored

__all__ = ["end_by", "run_program", "shell_code"]

# What programs put in place of the standard streams: where one of them is thrown away, it
# closes the standard stream's own buffer, which it may write to.
_kept: list[object] = []

_EXPECTED = "give a Python script, or with -m a module, without 'python' before it"


def run_program(
    arguments: Sequence[str],
    *,
    module: bool = False,
    keep: list[object] | None = None,
    exits: list[BaseException] | None = None,
) -> int:
    """Run a script or a module as `__main__`, with its own arguments and search path.

    Streams that it put in place of standard output and error are flushed and taken out
    again; those that took over what the standard ones wrote to stay. A child that the
    program forks and that comes to the program's end, ends there.

    Args:
        arguments: The script's path, or the module's name, and what follows it.
        module: Whether the first is a module's name, as after `python -m`.
        keep: Gets what keeps the program's variables alive; without it they go when the
            program ends, and those that its functions refer to become garbage then.
        exits: Gets the SystemExit that the program ended with, if it did.

    Returns:
        The exit code that the program ended with; 1 where an exception ended it, which is
        printed as Python prints it; -SIGINT where that is KeyboardInterrupt, since Python
        then ends by that signal (`end_by`).

    Raises:
        NeutracerError: There is no such script or module.
        SystemExit: This is a child of a fork: what follows is for its parent to do.

    Example:
        >>> run_program(["this"], module=True)  # doctest: +SKIP
        0
    """
    process = os.getpid()
    code = _ended(arguments, module, [] if keep is None else keep, [] if exits is None else exits)
    if process != os.getpid():
        end_by(code)
        raise SystemExit(shell_code(code))
    return code


def shell_code(code: int) -> int:
    """What a shell calls the end of a program: 128 and the signal, where one ended it.

    Example:
        >>> shell_code(3), shell_code(-2)
        (3, 130)
    """
    return 128 - code if code < 0 else code


def end_by(code: int) -> None:
    """End this process by the signal that `code` stands for, as Python ends by Ctrl-C.

    Anything else, and a process without that way of ending, goes on.

    Args:
        code: As `run_program` returns it.
    """
    if code >= 0 or os.name != "posix" or threading.current_thread() is not threading.main_thread():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _ended(
    arguments: Sequence[str], module: bool, keep: list[object], exits: list[BaseException]
) -> int:
    """The program's exit code, in whichever process came to its end."""
    name = arguments[0]
    if not module and not os.path.exists(name):
        raise NeutracerError(f"{name}: there is no such file; {_EXPECTED}")
    saved = sys.argv, list(sys.path)
    streams = sys.stdout, sys.stderr
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
        # What the program was, not how it was started.
        error.__traceback__ = _own_frames_off(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.argv, sys.path[:] = saved[0], saved[1]
        sys.stdout, sys.stderr = map(_own_stream, streams, (sys.stdout, sys.stderr))
    return 0


def _variables(traceback: TracebackType | None) -> Iterator[object]:
    """The variables of the program that an exception came out of."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__") == "__main__":
            yield traceback.tb_frame.f_globals
        traceback = traceback.tb_next


def _run_script(name: str, keep: list[object]) -> None:
    """Run a script as `python name` does.

    Its folder is that of the file that a link leads to, and its `__file__` is absolute, so
    that workers which it spawns find it wherever the program has changed to by then.
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
    """The stream to go on with, where a program has left `theirs` in place of `mine`."""
    if theirs is mine:
        return mine
    _kept.append(theirs)
    # What a program makes of a stream may raise anything.
    with suppress(Exception):
        theirs.flush()
    return mine if can_be_restored(mine) else theirs


class _NoModuleError(Exception):
    """There is nothing of this name; no program can raise it."""


def _check_module(name: str) -> None:
    """Look for a module as Python's `-m` does; only its packages are imported for that."""
    if name.startswith("."):
        raise _NoModuleError(f"there is no module {name}: its name begins with a dot")
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{name}.__main__")
    except (ModuleNotFoundError, ValueError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or name == missing or name.startswith(f"{missing}."):
            raise _NoModuleError(f"there is no module {name}") from None
        raise
    if found is None:
        raise _NoModuleError(f"there is no module {name}, or it is a package that can't be run")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
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
