# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, compressed as their names say."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from neutracer.arguments import path_name
from neutracer.errors import UnavailableError

__all__ = ["atomic_file"]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose contents are at `path` once the block ends without an error.

    Until then they are in a file of another name beside it, so that a reader, or a crash,
    never meets half a file. A symbolic link keeps pointing where it did. What is no file
    (a pipe, /dev/stdout, /dev/null) is written to as it is.

    Args:
        path: Where to; what is written is compressed if it ends in .gz, .xz or .zst.

    Raises:
        UnavailableError: The name asks for a compression that nothing here writes.
        OSError: It can't be written; `filename` is `path`.
        TypeError: It is no path.
        ValueError: It has a null character in it.
    """
    given = path_name(path)
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
    name = os.path.realpath(given)
    kind = _file_kind(given)
    if not given or kind == stat.S_IFDIR:
        wrong = errno.EISDIR if given else errno.ENOENT
        raise OSError(wrong, os.strerror(wrong), given)
    if kind not in (None, stat.S_IFREG):
        with open(given, "wb") as stream:
            yield stream
        return
    temporary = f"{name}.{secrets.token_hex(4)}.tmp"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, given) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        try:
            os.replace(temporary, name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, given) from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _file_kind(name: str) -> int | None:
    """What is there, as `stat.S_IFMT` has it; None for nothing."""
    try:
        return stat.S_IFMT(os.stat(name).st_mode)
    except OSError:
        return None


@contextlib.contextmanager
def _compressed(file: BinaryIO, name: str) -> Iterator[BinaryIO]:
    stream: Any = None
    if name.endswith(".gz"):
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
            "zstd compression", "pip install 'neutracer[zstd]' (or Python 3.14)"
        ) from None
    return zstandard.ZstdCompressor().stream_writer(file, closefd=False)
