# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, compressed as their names say."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from neutracer.arguments import path_name
from neutracer.errors import UnavailableError, pip_install

# Names of files in the making: the running kernel, the machine, and something random. They
# are short, since the name of the file itself may take all of the 255 bytes of a name.
_UNFINISHED = re.compile(r"\.neutracer-([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{8}\.tmp")

_MODE_BITS = 0o777
_ACCESS_LIST = "system.posix_acl_access"


def check_output(output: str | bytes | os.PathLike[Any] | None, *inputs: object) -> None:
    """Check, before anything is opened, that a file to write is none of those to read.

    Args:
        output: Where to; None is nowhere.
        inputs: What is read: paths, "-" for standard input, open files, and objects whose
            `origin` is the path that they were read from. Anything else is no file.

    Raises:
        ValueError: It is one of them, by whatever name or link.
    """
    if output is None:
        return
    name = os.fsdecode(output)
    there = _status(name)
    if there is None or not stat.S_ISREG(there.st_mode):
        return
    for source in inputs:
        read = _status_of_input(getattr(source, "origin", source))
        if read is not None and os.path.samestat(there, read):
            raise ValueError(f"the output {name!r} is a file that is read; give it another name")


def _status_of_input(source: Any) -> os.stat_result | None:
    if isinstance(source, (str, os.PathLike)):
        return _status(0 if source == "-" else os.fspath(source))
    try:
        return _status(source.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def _status(file: str | int) -> os.stat_result | None:
    """The facts of a file, or None for what is not there."""
    try:
        return os.stat(file)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *inputs: object) -> Iterator[BinaryIO]:
    """A binary stream whose contents are at `path` once the block ends without an error.

    Until then they are in a file of another name beside it, so that a reader, or a crash,
    never meets half a file. What a process that was killed has left of these is removed by
    the next one that writes to the folder.

    A file that was there gives its mode, owner and extended attributes to the new one, as
    far as this user may. A symbolic link keeps pointing where it did: the file that it leads
    to is written. What is no file (a pipe, /dev/stdout, /dev/null) is written to as it is.

    Args:
        path: Where to; what is written is compressed if it ends in .gz, .xz or .zst.
        inputs: What was read, as for `check_output`.

    Raises:
        UnavailableError: The name asks for a compression that nothing here writes.
        OSError: It can't be written; `filename` is `path`.
        TypeError: It is no path.
        ValueError: It has a null character in it, or is one of `inputs`.
    """
    given = path_name(path)
    check_output(given, *inputs)
    try:
        with _whole_or_not(given) as file, _compressed(file, given) as packed:
            yield packed
    except OSError as error:
        if error.errno is None or error.filename not in (None, given):
            raise
        # The name that the caller knows.
        raise OSError(error.errno, error.strerror, given) from None


@contextlib.contextmanager
def _whole_or_not(given: str) -> Iterator[BinaryIO]:
    """The file as it is written; its errors name `given`, or nothing."""
    old = _replaced(given)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(given, "wb") as stream:
            yield stream
        return
    name = os.path.realpath(given)
    folder = os.path.dirname(name)
    with _errors_of(given):
        _remove_leftovers(folder)
        handle, temporary = _unfinished(folder, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            with _errors_of(given):
                if old is not None:
                    _inherit(handle, name, old)
                os.fsync(handle)
                # Until the file is closed its lock says that its writer lives.
                os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _errors_of(given: str) -> Iterator[None]:
    """Errors of the system have the name that the caller gave."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, given) from None


def _replaced(given: str) -> os.stat_result | None:
    """The facts of what is there; None for nothing.

    Raises:
        OSError: Nothing can be written there: a folder, a loop of links, a name that is too
            long, or a file that this user may not write to.
    """
    with _errors_of(given):
        try:
            found = os.stat(given)
        except FileNotFoundError:
            if not given:
                raise
            return None
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        effective = os.access in os.supports_effective_ids
        if not os.access(given, os.W_OK, effective_ids=effective):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return found


@functools.cache
def _marks() -> tuple[str, str]:
    """What names the running kernel and this machine."""
    # Most who import this write nothing.
    import hashlib

    machine = os.fsencode(os.uname().nodename) + _content("/etc/machine-id")
    kernel = _content("/proc/sys/kernel/random/boot_id") or machine
    first, second = (hashlib.sha256(facts).hexdigest()[:8] for facts in (kernel, machine))
    return first, second


def _content(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(64)
    return b""


def unfinished_name() -> str:
    """A new name for a file or folder in the making."""
    return f".neutracer-{'-'.join((*_marks(), os.urandom(4).hex()))}.tmp"


def made_here(name: str) -> bool:
    """Whether an `unfinished_name` was made under this kernel or on this machine, whose locks
    tell whether its maker lives."""
    named = _UNFINISHED.fullmatch(name)
    return named is not None and any(map(str.__eq__, named.groups(), _marks()))


def _unfinished(folder: str, mode: int) -> tuple[int, str]:
    """A new file, locked by this process for as long as it is open, and its name."""
    while True:
        path = os.path.join(folder, unfinished_name())
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process took it for a leftover before it was locked.
            os.close(handle)
            continue
        except OSError:
            # No locks here: nobody can take it for a leftover.
            return handle, path
        if os.fstat(handle).st_nlink:
            return handle, path
        os.close(handle)


def _remove_leftovers(folder: str) -> None:
    """Remove what writers that are gone have left in a folder.

    A lock that can be had shows that the writer is gone. Locks of another machine may be
    unknown here, so only files of this kernel or this machine, and of this user, are tried.
    """
    with contextlib.suppress(OSError), os.scandir(folder or os.curdir) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(".neutracer-")]
        for name in names:
            if made_here(name):
                _remove_leftover(os.path.join(folder, name))


def _remove_leftover(path: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(handle)


def _inherit(handle: int, name: str, old: os.stat_result) -> None:
    """Give a new file the owner, mode and extended attributes of the one that it replaces.

    What this user may not give is left out. Where that is the group, the new group may do no
    more than everybody might.
    """
    mode = stat.S_IMODE(old.st_mode) & _MODE_BITS
    with contextlib.suppress(OSError):
        os.fchown(handle, -1, old.st_gid)
    with contextlib.suppress(OSError):
        os.fchown(handle, old.st_uid, -1)
    if os.fstat(handle).st_gid != old.st_gid:
        mode &= 0o707 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):
        os.fchmod(handle, mode)
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        there = os.listxattr(name)
        for attribute in set(os.listxattr(handle)) - set(there):
            with contextlib.suppress(OSError):
                os.removexattr(handle, attribute)
        for attribute in there:
            with contextlib.suppress(OSError):
                os.setxattr(handle, attribute, os.getxattr(name, attribute))


@contextlib.contextmanager
def _compressed(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    stream: Any = None
    if name.endswith(".gz"):
        import gzip

        stream = gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    elif name.endswith(".xz"):
        stream = _xz(file)
    elif name.endswith(".zst"):
        stream = _zstd(file)
    if stream is None:
        yield file
        return
    with stream:
        yield cast(BinaryIO, stream)


def _xz(file: BinaryIO) -> Any:
    try:
        import lzma
    except ImportError:
        raise UnavailableError(
            "xz compression", "this Python was built without liblzma; use .gz"
        ) from None
    return lzma.LZMAFile(file, "wb")


def _zstd(file: BinaryIO) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdFile(file, "wb")
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UnavailableError(
            "zstd compression", f"{pip_install('zstandard')} (or Python 3.14)"
        ) from None
    return zstandard.ZstdCompressor().stream_writer(file, closefd=False)
