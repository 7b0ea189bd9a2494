# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program in this process as if it had been started by itself."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

from neutracer.errors import NeutracerError

__all__ = ["run_program"]


def run_program(arguments: Sequence[str], *, module: bool = False) -> int:
    """Run a script or a module as `__main__`, with its own arguments and search path.

    Args:
        arguments: The script's path, or the module's name, and what follows it.
        module: Whether the first is a module's name, as after `python -m`.

    Returns:
        The exit code that the program ended with; 1 where an exception ended it, which is
        printed as Python prints it.

    Raises:
        NeutracerError: There is no such script.

    Example:
        >>> run_program(["this"], module=True)  # doctest: +SKIP
        0
    """
    name = arguments[0]
    if not module and not os.path.exists(name):
        raise NeutracerError(f"{name}: there is no such file")
    saved = sys.argv, list(sys.path)
    sys.argv = list(arguments)
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as ending:
        return _exit_code(ending.code)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        # What the program was, not how it was started.
        error.__traceback__ = _own_frames_off(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[:] = saved[0], saved[1]
    return 0


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
