# SPDX-License-Identifier: Apache-2.0
"""How much memory there is for what is read: of the machine, the container, the process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment,unused-ignore]

__all__ = ["bounded_process", "free_share", "memory_bound"]

# What is left to the rest of the machine, as a share of what is free.
_SHARE = 0.9

# Where nothing tells how much is free.
_UNKNOWN = 16 << 30

# How long a figure of the machine counts, in seconds: many small files are read at one look.
_FRESH_S = 0.25

# When this machine was looked at last, and what it had; replaced as a whole, by any thread.
_seen: tuple[float, int] = (float("-inf"), 0)

# The interpreter's own needs, and those of threads that a library starts.
_SLACK = 64 << 20

# How many threads NumPy's OpenBLAS starts when it is loaded; else one a core.
_THREADS = "OPENBLAS_NUM_THREADS"


def memory_bound() -> int:
    """Bytes that this process may take: nine tenths of what is free.

    That is the least of the machine's available memory, what each control group around this
    process (version 1 or 2) still allows, and what its address space may still grow by
    (`ulimit -v`).

    A figure of the last quarter of a second is taken as it is.
    """
    global _seen
    at, bound = _seen
    now = time.monotonic()
    if now - at > _FRESH_S:
        bound = free_share("/")
        _seen = (now, bound)
    return bound


def free_share(root: str) -> int:
    """The same, looked up now.

    Args:
        root: Where /proc and /sys are.
    """
    found = (_machine(root), _address_space(root), *_groups(root))
    frees = [free for free in found if free is not None]
    return int(max(0, min(frees)) * _SHARE) if frees else _UNKNOWN


@contextlib.contextmanager
def bounded_process(limit: int) -> Iterator[None]:
    """Refuse this process more than `limit` bytes beside what it has now, while it lasts.

    What asks for more gets a MemoryError; where the system has no such bound, nothing.
    """
    if resource is None or not sys.platform.startswith("linux"):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _own_data() + limit + _SLACK
    most = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(wanted, *most, sys.maxsize), hard))
    # Where there is no room for a thread, OpenBLAS ends the process as Ctrl-C does. Nothing
    # here computes with it.
    is_set = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if not is_set:
            os.environ.pop(_THREADS, None)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() else None


def _field(text: str, name: str) -> int | None:
    """A line "name: 12 kB" of a file under /proc, in bytes."""
    for line in text.splitlines():
        if line.startswith(name):
            kilobytes = _number(line.split()[1]) if len(line.split()) > 1 else None
            return None if kilobytes is None else kilobytes << 10
    return None


def _machine(root: str) -> int | None:
    return _field(_read(Path(root, "proc/meminfo")), "MemAvailable:")


def _address_space(root: str) -> int | None:
    """What is left to this process of the addresses that it may have."""
    used = _field(_read(Path(root, "proc/self/status")), "VmSize:")
    if resource is None or used is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft - used


def _own_data() -> int:
    return _field(_read(Path("/proc/self/status")), "VmData:") or 0


def _groups(root: str) -> Iterator[int | None]:
    """What each control group around this process has left."""
    for line in _read(Path(root, "proc/self/cgroup")).splitlines():
        number, controllers, name = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from _levels(Path(root, "sys/fs/cgroup"), name, _left_v2)
        elif "memory" in controllers.split(","):
            yield from _levels(Path(root, "sys/fs/cgroup/memory"), name, _left_v1)


def _levels(mount: Path, name: str, left: Callable[[Path], int | None]) -> Iterator[int | None]:
    """The group `name` and those above it; in a container its root is the group itself."""
    folder = mount / name.lstrip("/")
    if ".." in folder.parts:  # a group outside of what is mounted here
        folder = mount
    while folder != mount:
        yield left(folder)
        folder = folder.parent
    yield left(mount)


def _left_v2(folder: Path) -> int | None:
    most = _number(_read(folder / "memory.max"))
    used = _number(_read(folder / "memory.current"))
    return _left(folder, most, used, "inactive_file")


def _left_v1(folder: Path) -> int | None:
    most = _number(_read(folder / "memory.limit_in_bytes"))
    used = _number(_read(folder / "memory.usage_in_bytes"))
    return _left(folder, most, used, "total_inactive_file")


def _left(folder: Path, most: int | None, used: int | None, cache: str) -> int | None:
    """What is left of `most`; pages of files that nobody uses are given up for it."""
    if most is None or used is None:
        return None
    lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
    idle = next((_number(line[1]) for line in lines if len(line) == 2 and line[0] == cache), 0)
    return most - used + min(idle or 0, used)
