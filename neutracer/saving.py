# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of files, compressed by their suffix."""

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

# Names of unfinished files: hashes of the running kernel and of the machine, and a random part;
# independent of the final name, which may already use all 255 bytes of a name.
_UNFINISHED = re.compile(r"\.neutracer-([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{8}\.tmp")

_MODE_BITS = 0o777


def check_output(output: str | bytes | os.PathLike[Any] | None, *inputs: object) -> None:
    """Check that an output file is not one of the inputs, by any name or link."""
    if output is None:
        return
    name = os.fsdecode(output)
    there = _status(name)
    if there is None or not stat.S_ISREG(there.st_mode):
        return
    for source in inputs:
        read = _status_of_input(getattr(source, "origin", source))
        if read is not None and os.path.samestat(there, read):
            raise ValueError(f"the output {name!r} is also an input; give it another name")


def _status_of_input(source: Any) -> os.stat_result | None:
    if isinstance(source, (str, os.PathLike)):
        return _status(0 if source == "-" else os.fspath(source))
    try:
        return _status(source.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def _status(file: str | int) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *inputs: object) -> Iterator[BinaryIO]:
    """A binary stream whose contents appear at `path` if the block ends without an error.

    Until then they are in a temporary file in the same folder; the next process that writes there
    removes temporary files of killed processes.

    The new file inherits mode, owner and extended attributes of the one it replaces, as far as
    this user may set them. Symbolic links are followed. Anything but a regular file (a pipe,
    /dev/stdout, /dev/null) is written to directly.
    """
    given = path_name(path)
    check_output(given, *inputs)
    try:
        with _whole_or_not(given) as file, _compressed(file, given) as packed:
            yield packed
    except OSError as error:
        if error.errno is None or error.filename not in (None, given):
            raise
        raise OSError(error.errno, error.strerror, given) from None


@contextlib.contextmanager
def _whole_or_not(given: str) -> Iterator[BinaryIO]:
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
                # Before closing: the lock marks the file as in use.
                os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _errors_of(given: str) -> Iterator[None]:
    """Report system errors with the caller's file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, given) from None


def _replaced(given: str) -> os.stat_result | None:
    """The status of the file to be replaced, or None; raises an OSError if it is not writable."""
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
    """Hashes that identify the running kernel and this machine."""
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
    """A new name for an unfinished file or folder."""
    return f".neutracer-{'-'.join((*_marks(), os.urandom(4).hex()))}.tmp"


def made_here(name: str) -> bool:
    """Whether an `unfinished_name` is of this kernel or machine, so that its lock shows whether
    its writer is alive."""
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
            # Without locks, no process removes leftovers either.
            return handle, path
        if os.fstat(handle).st_nlink:
            return handle, path
        os.close(handle)


def _remove_leftovers(folder: str) -> None:
    """Remove unfinished files whose writers are gone, which an available lock shows.

    Locks of other machines may be invisible, so only files of this kernel or machine, and of
    this user, are tried.
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
    """Copy owner, mode and extended attributes to a file from the one that it replaces, as far as
    permitted. If the group can't be set, group permissions are reduced to those of others."""
    mode = stat.S_IMODE(old.st_mode) & _MODE_BITS
    with contextlib.suppress(OSError):
        os.fchown(handle, -1, old.st_gid)
    with contextlib.suppress(OSError):
        os.fchown(handle, old.st_uid, -1)
    if os.fstat(handle).st_gid != old.st_gid:
        mode &= 0o707 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):
        os.fchmod(handle, mode)
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
