# SPDX-License-Identifier: Apache-2.0
"""What the system tells of another process: whose it is, which Python, whether it is stopped."""

from __future__ import annotations

import os
import re

from neutracer.errors import NeutracerError

__all__ = [
    "check_reachable",
    "has_ended",
    "inner_number",
    "python_of",
    "refusal",
    "sees",
    "silence",
]

# Files that a process of a Python has mapped: its library, its executable, its own modules.
_OF_PYTHON = re.compile(r"(?:lib)?python(\d)\.(\d+)|.*\.cpython-(\d)(\d+)[a-z]*-")

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def check_reachable(pid: int) -> None:
    """See whether there is such a process, of this user, that runs.

    Raises:
        NeutracerError: There is none; the message is a sentence.
    """
    if pid == os.getpid():
        raise NeutracerError(f"process {pid} is this command itself")
    if has_ended(pid):
        if _state(pid):
            raise NeutracerError(f"process {pid} has ended, and waits for its parent to ask")
        raise NeutracerError(f"there is no process {pid}")
    status = _status(pid)
    group = status.get("Tgid", str(pid))
    if group != str(pid):
        raise NeutracerError(f"{pid} is a thread of process {group}, not a process")
    # Of a process that may not be looked into /proc itself belongs to root; this line does not.
    owner = status.get("Uid", "").split()
    if owner and int(owner[1]) != os.geteuid():
        raise NeutracerError(
            f"process {pid} belongs to {_user(int(owner[1]))}: only its own user can attach to it"
        )
    if _state(pid) in ("T", "t"):
        raise NeutracerError(f"process {pid} is stopped: 'kill -CONT {pid}' lets it go on")


def has_ended(pid: int) -> bool:
    """Whether there is no such process any more, or only what its parent has not asked for."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return _state(pid) in ("Z", "X")


def python_of(pid: int) -> tuple[int, int] | None:
    """The major and minor version of the Python that a process runs; None where nothing tells."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            files = {line.split(maxsplit=5)[5].rstrip() for line in file if "/" in line}
    except OSError:
        return None
    found = {match for file in files if (match := _OF_PYTHON.match(os.path.basename(file)))}
    versions = {(int(one[1] or one[3]), int(one[2] or one[4])) for one in found}
    return max(versions) if len(versions) == 1 else None


def sees(pid: int, path: str) -> bool:
    """Whether another process finds the same file or folder at an absolute path.

    Where the system does not tell, it is taken to.
    """
    root = f"/proc/{pid}/root"
    if not os.path.isdir(root):
        return True
    try:
        return os.path.samefile(path, root + path)
    except OSError:
        return False


def inner_number(pid: int) -> int:
    """The number that a process has for itself, in a container another one."""
    return int(_status(pid).get("NSpid", str(pid)).split()[-1])


def refusal(pid: int) -> str:
    """Why this process may not look into that one of the same user, and what helps."""
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope:
        return (
            f"the system lets no process look into another (kernel.yama.ptrace_scope is {scope}): "
            "'sysctl kernel.yama.ptrace_scope=0' by root allows it until the next start, and for "
            "a container '--cap-add SYS_PTRACE'"
        )
    return (
        f"the system does not let this process look into process {pid}; in a container "
        "'--cap-add SYS_PTRACE' allows it"
    )


def silence(pid: int, seconds: float) -> str:
    """Why a process has not come to what it was to do."""
    try:
        check_reachable(pid)
    except NeutracerError as error:
        return str(error)
    at = {"R": "it computes in C code", "D": "it waits for a device or a disk"}
    where = at.get(_state(pid), "it waits for something, or is in C code")
    return (
        f"the main thread of process {pid} has not come back to Python in {seconds:g} s: {where}; "
        "--wait SECONDS waits longer"
    )


def _status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status; none where there is no such file."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in lines}


def _state(pid: int) -> str:
    """The letter of what a process's main thread is at, as ps has it; "" where unknown."""
    return _status(pid).get("State", "")[:1]


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"
