# SPDX-License-Identifier: Apache-2.0
"""The folder of the compiled hooks: where it is, and whether others can write to it."""

from __future__ import annotations

import grp
import os
import pwd
import resource
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from neutracer.errors import UnavailableError
from neutracer.units import format_bytes

__all__ = ["Place", "cache_folder", "prepare", "resolved", "unsafe", "why_not"]

#: Whose a build in the cache is, and who may use one in a folder that somebody named: an
#: image's, say, which root builds for all of its users. The umask can take away from both.
_PRIVATE, _READABLE = 0o700, 0o755
_WRITABLE_BY_OTHERS = 0o022

#: Ten times what a build takes, with the files that a compiler makes for itself.
_NEEDED_BYTES = 4 << 20

_WHAT = "a folder for the hooks"


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
    """Where the hooks are kept for this user; NEUTRACER_CACHE names another place.

    Raises:
        UnavailableError: This user has no home.
    """
    return _cache()[0]


def _cache() -> tuple[Path, int]:
    """The cache, and how many of its last levels are neutracer's own."""
    named = os.environ.get("NEUTRACER_CACHE")
    if named:
        return Path(named).absolute() / "hooks", 1
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Its specification has a relative one ignored.
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or os.environ.get("HOME") == "":
            raise UnavailableError(_WHAT, f"this user has no home; {_hint(None)}")
        base = os.path.join(home, ".cache")
    return Path(base, "neutracer", "hooks"), 2


def _hint(folder: Path | None) -> str:
    return "NEUTRACER_CACHE names another place" if folder is None else "name another one"


def resolved(path: Path) -> Path:
    """What a path names, without links that somebody could turn elsewhere after a check."""
    return Path(os.path.realpath(path))


def unsafe(path: Path) -> str:
    """Why others than this user and root could exchange a file or folder, or "".

    They could if they may write to it, or to any folder above it. In a sticky folder, as
    /tmp is one, they can only exchange what is theirs.

    Args:
        path: Where it is; it is `resolved`.

    Raises:
        OSError: It can't be looked at.
    """
    for level in (path, *path.parents):
        found = level.lstat()
        above = level != path
        if found.st_uid not in (os.geteuid(), 0) and not (above and _is_unmapped(found.st_uid)):
            return f"{level} belongs to another user"
        sticky = above and found.st_mode & stat.S_ISVTX
        if not sticky and _is_open(level, found):
            return f"{level} can be written by others ('chmod go-w' ends that)"
    return ""


def _is_open(level: Path, found: os.stat_result) -> bool:
    """Whether its mode lets others write to it; a group of this user alone is no others."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(level, found.st_gid)


def _is_own_group(level: Path, gid: int) -> bool:
    """Whether a group is the one that a system makes for each user, or root's.

    Members can be unknown here, where a directory service has them: so it has the user's
    name as well. With an access list the bits of the group are those of others, too.
    """
    try:
        if "system.posix_acl_access" in os.listxattr(level):
            return False
    except OSError:
        # A file system without access lists.
        pass
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == gid)}
    return group.gr_name in (user, "root") and members <= {user, "root"}


def _is_unmapped(uid: int) -> bool:
    """Whether this is how a user namespace, as a container without root has it, shows the
    owners that it doesn't know: root of the machine is one of them."""
    try:
        shown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except (OSError, ValueError):
        return False
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return uid == shown and not any(first <= uid < first + count for first, count in ranges)


def why_not(folder: Path | None, key: str) -> str:
    """Why a build can't be put there, and what to do, in one sentence; "" if it can.

    It leaves nothing behind: a folder that it makes to try is removed at once.

    Args:
        folder: What the user named, None for the cache.
        key: The build's own level under it.
    """
    try:
        home, own = _cache() if folder is None else (folder, 0)
        levels = [home / key, *(home / key).parents]
        there = next(level for level in levels if os.path.lexists(level))
        with tempfile.TemporaryDirectory(dir=there):
            pass
        # What belongs to this user of neutracer's own levels, `prepare` closes to others.
        kept = [level for level in levels[own + 1 :] if level.exists()] or [there]
        problem = unsafe(resolved(kept[0])) or _no_room(there)
    except UnavailableError as error:
        return error.install
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else str(there)
        shown = str(there) if Path(name).parent == there else name
        problem = f"nothing can be written to {shown} ({error.strerror})"
    return f"{problem}; {_hint(folder)}" if problem else ""


def _no_room(there: Path) -> str:
    """Why a build is too large to be written, or ""."""
    disk, needed = os.statvfs(there), format_bytes(_NEEDED_BYTES)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _NEEDED_BYTES:
        return f"the disk of {there} is full, and a build takes {needed}"
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= largest < _NEEDED_BYTES:
        return f"'ulimit -f' lets files have {format_bytes(largest)}, and a build takes {needed}"
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
    problem = why_not(folder, key)
    if problem:
        raise UnavailableError(_WHAT, problem)
    home, own = _cache() if folder is None else (folder, 0)
    mode = _PRIVATE if folder is None else _READABLE
    path = home / key
    try:
        _make(path, mode)
        levels = [path, *path.parents][: own + 1]
        # From the outside in: what is inside a closed folder can't be exchanged.
        mended = [_mend(level, mode) for level in reversed(levels)]
        path = resolved(path)
        reason = unsafe(path)
    except OSError as error:
        raise UnavailableError(_WHAT, f"{error}; {_hint(folder)}") from error
    if reason:
        raise UnavailableError(_WHAT, f"{reason}; {_hint(folder)}")
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
