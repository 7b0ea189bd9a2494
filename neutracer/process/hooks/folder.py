# SPDX-License-Identifier: Apache-2.0
"""The folder of the compiled hooks: where it is, and whether others can write to it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from neutracer.errors import UnavailableError

__all__ = ["Place", "cache_folder", "prepare", "unsafe"]

#: Whose a build in the cache is, and who may use one in a folder that somebody named: an
#: image's, say, which root builds for all of its users. The umask can take away from both.
_PRIVATE, _READABLE = 0o700, 0o755
_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True)
class Place:
    """The folder of one build, which nobody else can write to.

    Attributes:
        path: The folder.
        mode: The bits that what is put there may have.
        trusted: Nobody else could write to it before, either.
    """

    path: Path
    mode: int
    trusted: bool


def cache_folder() -> Path:
    """Where the hooks are kept for this user; NEUTRACER_CACHE names another place."""
    return _cache()[0]


def _cache() -> tuple[Path, int]:
    """The cache, and how many of its last levels are neutracer's own."""
    named = os.environ.get("NEUTRACER_CACHE")
    if named:
        return Path(named, "hooks"), 1
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "neutracer", "hooks"), 2


def unsafe(path: Path) -> str:
    """Why the files there can't be trusted to be this user's or root's, or ""."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        return f"{path} can be written by others ('chmod go-w' ends that)"
    return ""


def prepare(folder: Path | None, key: str) -> Place:
    """Make the folder of one build, or repair the existing one.

    A level of neutracer's own that belongs to this user and that others can write to, as a
    umask of 002 leaves it, is closed to them. It leaves what the user named or made as it is.

    Args:
        folder: What the user named, None for the cache.
        key: The build's own level under it.

    Raises:
        UnavailableError: It can't be made, or is not safe; the reason says which.
    """
    home, own = _cache() if folder is None else (folder, 0)
    mode = _PRIVATE if folder is None else _READABLE
    path = home / key
    try:
        _make(path, mode)
        levels = [path, *path.parents][: own + 1]
        # From the outside in: what is inside a closed folder can't be exchanged.
        mended = [_mend(level, mode) for level in reversed(levels)]
        reasons = [unsafe(level) for level in (home, path)]
    except OSError as error:
        hint = "NEUTRACER_CACHE names another place" if folder is None else "name another one"
        raise UnavailableError("a folder for the hooks", f"{error}; {hint}") from error
    for reason in filter(None, reasons):
        raise UnavailableError("a safe folder for the hooks", reason)
    return Place(path, mode, not any(mended))


def _make(folder: Path, mode: int) -> None:
    """Make a folder; `Path.mkdir` would give its mode to the last level only."""
    if not folder.is_dir():
        _make(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)


def _mend(folder: Path, mode: int) -> bool:
    """Close a folder of this user's to others; whether they could write to it."""
    if folder.is_symlink():
        return False
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or not found.st_mode & _WRITABLE_BY_OTHERS:
            return False
        os.fchmod(handle, stat.S_IMODE(found.st_mode) & mode)
        return True
    finally:
        os.close(handle)
