# SPDX-License-Identifier: Apache-2.0
"""The files of a job: in folders, one by one, or where `fsspec` reaches them."""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from neutracer.arguments import path_name
from neutracer.errors import UnavailableError, pip_install
from neutracer.trace.beside import MOST_SIDECAR_BYTES, sidecar_paths, sidecars

__all__ = ["Named", "facts_of", "listed", "named", "opened_file", "size_of"]

# What a snapshot's name ends in, before what says how it is packed.
_SNAPSHOT = re.compile(r"\.(?:pickle|pkl|snapshot)(?:\.(?:gz|xz|zst))?$")

# "rank3", "rank_3", "rank-3", "RANK=3" as a word of its own in a file's or a folder's name.
_RANK = re.compile(r"(?<![a-z])rank[-_=]?(\d{1,7})(?!\d)", re.IGNORECASE)

# A file that neutracer has named: kind-day-time-host-rank-process-number-reason.
_OWN = re.compile(r"^(\w+)-\d{8}-\d{6}-(.*?)-(?:rank\d+-)?(\d+)-\d+(?:-([a-z]+))?$")


class Named:
    """What a file's name says.

    Attributes:
        rank: The rank, or None.
        host: The host, or "".
        pid: The process, or None.
        reason: Why it was written: "exit", "oom", ..., or "".
    """

    def __init__(self, rank: int | None, host: str, pid: int | None, reason: str) -> None:
        self.rank, self.host, self.pid, self.reason = rank, host, pid, reason


def named(path: str) -> Named:
    """What the name of a file says, or else that of its folder.

    Example:
        >>> one = named("reports/run-20260131-120000-node7-rank3-4711-1-exit.pickle")
        >>> one.rank, one.host, one.pid, one.reason
        (3, 'node7', 4711, 'exit')
    """
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    found = _RANK.findall(name) or _RANK.findall(folder.rpartition("/")[2])
    rank = int(found[-1]) if found else None
    own = _OWN.match(_SNAPSHOT.sub("", name))
    if own is None:
        return Named(rank, "", None, "oom" if re.search(r"(?<![a-z])oom", name.lower()) else "")
    return Named(rank, own[2], int(own[3]), own[4] or own[1])


def _is_remote(path: str) -> bool:
    return "://" in path


def _filesystem(path: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        UnavailableError: fsspec, or what it needs for this kind of URL, is not installed.
        ValueError: There is no such kind.
    """
    scheme = path.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        system, inner = fsspec.core.url_to_fs(path)
    except ImportError as error:
        install = f'install it with "{pip_install("fsspec")}" ({error})'
        raise UnavailableError(f"a reader of {scheme}:// paths", install) from None
    return system, inner


def listed(sources: Iterable[str | os.PathLike[str]]) -> tuple[dict[str, bool], list[str]]:
    """The snapshots among files and in folders, and the other files of these folders.

    Args:
        sources: Paths of files, which are taken whatever they are called, and of folders, which
            are searched with all that is below.

    Returns:
        The snapshots without repetition in the order of their names within each source, with
        whether each was named itself, and was not only found; and what was passed over, among it
        folders that can't be read. Sidecars and texts beside snapshots are neither.

    Raises:
        UnavailableError: A URL needs a library that is not here.
        OSError: One of the folders can't be read.
    """
    found: dict[str, tuple[str, bool]] = {}
    others: list[str] = []
    for source in sources:
        path = path_name(source, "sources")
        inside = _inside(path)
        if inside is None:
            found[_spelled(path)] = path, True
            continue
        snapshots, rest = _parted(inside)
        for name in snapshots:
            found.setdefault(_spelled(name), (name, False))
        beside = {_stem(name) for name in snapshots}
        others += [name for name in rest if _stem(name) not in beside]
    return dict(found.values()), list(dict.fromkeys(others))


def _spelled(path: str) -> str:
    """The same for all spellings of a path; links are files of their own."""
    return path if _is_remote(path) else os.path.abspath(path)


def _parted(inside: Iterable[str]) -> tuple[list[str], list[str]]:
    """What may be snapshots, and the rest, each in the order of the names."""
    names = sorted(inside)
    found = [name for name in names if _SNAPSHOT.search(name) and not _is_endless(name)]
    known = set(found)
    return found, [name for name in names if name not in known]


def _is_endless(path: str) -> bool:
    """Whether it is a pipe or a device: who opens one may wait for ever."""
    try:
        return not _is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        # A file that is gone, or a link that leads nowhere: reading it says so.
        return False


def _inside(path: str) -> list[str] | None:
    """All files below a folder, and folders there that can't be read; None for what is no
    folder."""
    if _is_remote(path):
        system, inner = _filesystem(path)
        if not system.isdir(inner):
            return None
        return [system.unstrip_protocol(name) for name in system.find(inner)]
    if not os.path.isdir(path):
        return None

    unread: list[str] = []

    def passed(error: OSError) -> None:
        if error.filename == path:
            raise error
        unread.append(str(error.filename))

    walk = os.walk(path, onerror=passed)
    return [os.path.join(folder, name) for folder, _, names in walk for name in names] + unread


def _stem(path: str) -> str:
    """A snapshot's name, or that of what lies beside one, without its endings."""
    return _SNAPSHOT.sub("", path.removesuffix(".json").removesuffix(".txt"))


@contextmanager
def opened_file(path: str) -> Iterator[str | BinaryIO]:
    """What `load` takes for a path: itself, or an open file where it is a URL."""
    if not _is_remote(path):
        yield path
        return
    system, inner = _filesystem(path)
    with system.open(inner, "rb") as file:
        yield cast(BinaryIO, file)


def size_of(path: str) -> int:
    """Bytes of a local file; 0 where that is not known."""
    try:
        return 0 if _is_remote(path) else os.path.getsize(path)
    except (OSError, ValueError):
        return 0


def facts_of(path: str) -> dict[str, Any]:
    """What the JSON beside a snapshot says; nothing where there is none, or it is damaged."""
    for plain in _remote_sidecars(path) if _is_remote(path) else sidecars(path)[0]:
        if str(plain.get("schema", "")).startswith("neutracer."):
            return plain
    return {}


def _remote_sidecars(path: str) -> Iterator[dict[str, Any]]:
    """The JSON objects beside a snapshot at a URL; what can't be read is passed over."""
    for beside in sidecar_paths(path):
        try:
            system, inner = _filesystem(beside)
            with system.open(inner, "rb") as file:
                plain = json.loads(file.read(MOST_SIDECAR_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(plain, dict):
            yield plain
