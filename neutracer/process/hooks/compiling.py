# SPDX-License-Identifier: Apache-2.0
"""A compiler run in a build's folder: alone, leaving nothing half made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from neutracer.errors import UnavailableError
from neutracer.saving import made_here, unfinished_name

__all__ = ["alone", "compile_into"]

_LIMIT_S = 600


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """One process at a time in a build's folder, where the file system can lock.

    What builds that were killed have left is removed.

    Raises:
        OSError: Nothing can be written there.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(place / "lock", flags, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
            _remove_leftovers(place)
        yield
    finally:
        os.close(handle)


def _remove_leftovers(place: Path) -> None:
    """Remove what builds that were killed have left; whoever builds holds the lock."""
    for left in place.iterdir():
        if made_here(left.name) and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)


def compile_into(path: Path, mode: int, command: Callable[[Path], list[str]]) -> None:
    """Put a compiled module there, with its user's rights and those of `mode` at most.

    Args:
        path: Where to.
        mode: The bits that it may have.
        command: The call of the compiler that writes the file given.

    Raises:
        UnavailableError: The compiler failed; the reason ends with what it said.
        OSError: It can't be written.
    """
    scratch = path.parent / unfinished_name()
    scratch.mkdir(0o700)
    try:
        made = scratch / path.name
        _run(command(made), scratch)
        made.chmod(stat.S_IRWXU | (stat.S_IMODE(made.stat().st_mode) & mode))
        os.replace(made, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(words: list[str], scratch: Path) -> None:
    """Run a compiler, which has its own files in `scratch`."""
    what, environ = "a build of the hooks", {**os.environ, "TMPDIR": str(scratch)}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, env=environ, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(what, f"compiling took over {_LIMIT_S} s") from None
    except OSError as error:
        raise UnavailableError(what, f"{words[0]} can't be run ({error.strerror})") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise UnavailableError(what, f"{words[0]} was ended by {name}; try again")
    if done.returncode:
        raise UnavailableError(what, f"{words[0]} failed: {_last_words(done.stderr)}")


#: What a compiler says of a machine, and what to do. Its last line would not say it.
_REMEDIES = {
    "No space left": "make room there, or NEUTRACER_CACHE names another place",
    "quota exceeded": "make room there, or NEUTRACER_CACHE names another place",
    "File size limit": "'ulimit -f' says how large a file may be",
    "File too large": "'ulimit -f' says how large a file may be",
    "Killed signal": "memory may be short: try again",
}


def _last_words(text: str) -> str:
    """What a compiler said, without its position, and what to do where that is known."""
    for line in text.splitlines():
        remedy = next((_REMEDIES[words] for words in _REMEDIES if words in line), "")
        if remedy:
            return f"{line.strip()[:500]}; {remedy}"
    lines = [line for line in text.splitlines() if "error" in line.lower()]
    return (lines or text.splitlines() or ["it gave no reason"])[0].strip()[:500]
