# SPDX-License-Identifier: Apache-2.0
"""Has another Python process of this machine do something, and waits for its answer (3.14 on).

The two speak through a folder that only their user can read. The request is a file in it,
which one of them renames: the process that it is for when it comes to it, or this one when it
has waited long enough. The folder is gone when this one ends, whatever happened.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import neutracer.process.remote.begin as remote_begin
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.process.remote.begin import REPLY, REQUEST
from neutracer.process.remote.processes import (
    check_reachable,
    has_ended,
    inner_number,
    python_of,
    refusal,
    sees,
    silence,
)

__all__ = ["ask"]

# Between two looks for an answer, in seconds.
_LOOK_S = 0.02

# An answer is no longer than this.
_MOST_BYTES = 8 << 20

# Run by the other process's main thread wherever that is: it only starts a thread, by the one
# call that takes no lock. Where the folder is gone the request was taken back.
_SCRIPT = """\
import _thread
def begin(folder={folder!r}, package={package!r}, suffix={suffix!r}):
    try:
        with open(folder + "/begin.py", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return
    names = {{"__name__": "neutracer_begin"}}
    exec(text, names)
    names["begin"](folder, package, suffix)
_thread.start_new_thread(begin, ())
"""


def ask(pid: int, request: Mapping[str, Any], *, wait_s: float, work_s: float) -> dict[str, Any]:
    """Have `neutracer.diagnose.overview.attached` of another process answer a request.

    Args:
        pid: The process.
        request: What it is asked, as plain data.
        wait_s: How long to wait until its main thread comes to a safe point.
        work_s: How long, after that, its work may take.

    Returns:
        Its answer.

    Raises:
        NeutracerError: It can't be asked, does not answer, or could not do it; the message
            is a sentence.
        UnavailableError: This Python can't do that.
    """
    _check_this_python()
    check_reachable(pid)
    _check_version(pid)
    folder = os.path.realpath(tempfile.mkdtemp(prefix="neutracer-attach-"))
    try:
        if not sees(pid, folder):
            raise NeutracerError(
                f"process {pid} does not see this one's {os.path.dirname(folder)}, as in a "
                f"container: run 'neutracer attach {inner_number(pid)}' where it runs"
            )
        script = _written(folder, request)
        _send(pid, script)
        _wait_until_taken(pid, folder, wait_s)
        return _answer(pid, folder, work_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_this_python() -> None:
    if not hasattr(sys, "remote_exec"):
        raise UnavailableError(
            f"attaching with Python {platform.python_version()}",
            "it needs 3.14 or later: run 'neutracer attach' with the job's Python",
        )
    if not sys.is_remote_debug_enabled():  # type: ignore[attr-defined,unused-ignore]
        raise UnavailableError(
            "attaching with this Python",
            "it was built without remote debugging, or started with "
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug",
        )


def _check_version(pid: int) -> None:
    there = python_of(pid)
    if there is None or there == sys.version_info[:2]:
        return
    words = "{}.{}".format(*there)
    if there < (3, 14):
        raise NeutracerError(
            f"process {pid} runs Python {words}: only 3.14 and later let in others"
        )
    raise NeutracerError(
        f"process {pid} runs Python {words}, and this is {platform.python_version()}: "
        "run 'neutracer attach' with the job's Python"
    )


def _written(folder: str, request: Mapping[str, Any]) -> str:
    """The path of the script, in the folder with all that it needs."""
    package = str(Path(__file__).absolute().parents[2])
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    texts = {
        REQUEST: json.dumps(dict(request)),
        "begin.py": inspect.getsource(remote_begin),
        "script.py": _SCRIPT.format(folder=folder, package=package, suffix=suffix),
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return os.path.join(folder, "script.py")


def _send(pid: int, script: str) -> None:
    remote_exec: Any = sys.remote_exec  # type: ignore[attr-defined,unused-ignore]
    try:
        remote_exec(pid, script)
    except Exception as error:
        raise NeutracerError(_reason(pid, error)) from None


def _reason(pid: int, error: Exception) -> str:
    """What the interpreter's refusal means."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    if any(isinstance(one, PermissionError) for one in chain):
        return refusal(pid)
    words = " ".join(map(str, chain))
    if "not enabled in the remote" in words:
        return (
            f"process {pid} lets nobody in: it was started with PYTHON_DISABLE_REMOTE_DEBUG or "
            "-X disable-remote-debug, or its Python was built without remote debugging"
        )
    if "PyRuntime" in words:
        return f"process {pid} is not a Python program, or runs a Python before 3.14"
    return f"process {pid} can't be reached: {error}"


def _wait_until_taken(pid: int, folder: str, seconds: float) -> None:
    request = os.path.join(folder, REQUEST)
    end = time.monotonic() + seconds
    while os.path.exists(request):
        if time.monotonic() < end and not has_ended(pid):
            time.sleep(_LOOK_S)
            continue
        try:
            os.rename(request, os.path.join(folder, "withdrawn.json"))
        except FileNotFoundError:
            # It was taken just now.
            return
        told = silence(pid, seconds)
        with suppress(Exception):
            # In the place of the script, which will not be there any more: of a script that
            # it can't open a process complains.
            sys.remote_exec(pid, os.devnull)  # type: ignore[attr-defined,unused-ignore]
        raise NeutracerError(told)


def _answer(pid: int, folder: str, seconds: float) -> dict[str, Any]:
    reply = os.path.join(folder, REPLY)
    end = time.monotonic() + seconds
    while not os.path.exists(reply):
        if has_ended(pid) and not os.path.exists(reply):
            raise NeutracerError(f"process {pid} has ended before it answered")
        if time.monotonic() > end:
            raise NeutracerError(f"process {pid} has begun, and not answered in {seconds:g} s")
        time.sleep(_LOOK_S)
    try:
        with open(reply, encoding="utf-8") as file:
            answer = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise NeutracerError(f"process {pid} has answered something else: {error}") from None
    if not isinstance(answer, dict):
        raise NeutracerError(f"process {pid} has answered something else")
    if "error" in answer:
        raise NeutracerError(f"process {pid}: {answer['error']}")
    return answer
