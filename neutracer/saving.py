# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, compressed as their names say."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from neutracer.errors import UnavailableError

__all__ = ["atomic_file"]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary stream whose contents stand at `path` once the block ends without an error.

    Until then they stand in a file of another name beside it, so that a reader, or a crash,
    never meets half a file. A symbolic link keeps pointing where it did.

    Args:
        path: Where to; what is written is compressed if it ends in .gz, .xz or .zst.

    Raises:
        UnavailableError: The name asks for a compression that nothing here writes.
        OSError: It can't be written.
    """
    name = os.path.realpath(path)
    temporary = f"{name}.{secrets.token_hex(4)}.tmp"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # The name that the caller knows.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            with _compressed(file, os.fspath(path)) as packed:
                yield packed
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
