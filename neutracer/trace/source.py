# SPDX-License-Identifier: Apache-2.0
"""Where a snapshot's bytes come from: paths, files, bytes, standard input, compressed or not.

What a file is, is told by its first bytes and not by its name. What is not a snapshot is
told apart in words before the reader sees it.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, cast

from neutracer.errors import LimitError, SnapshotError, UnavailableError

__all__ = ["SnapshotSource", "compressed_writer", "open_source"]

SnapshotSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

EXPECTED = "expected a PyTorch memory snapshot, as torch.cuda.memory._dump_snapshot() writes it"

_PEEK = 512

# An honest snapshot shrinks 10 to 100 times. What unfolds more is built to exhaust memory;
# below the floor nobody is harmed.
_MOST_RATIO = 1000
_RATIO_FLOOR = 64 << 20
_MOST_BYTES = 1 << 40


class Reader(Protocol):
    """Anything with a binary `read(n)`."""

    def read(self, count: int, /) -> bytes: ...


class _Joined:
    """The peeked head of a stream, then the rest of it. Counts what was read."""

    def __init__(self, head: bytes, rest: Reader) -> None:
        self._head = head
        self._rest = rest
        self.count = 0

    def read(self, count: int = -1, /) -> bytes:
        if self._head:
            taken = self._head if count < 0 else self._head[:count]
            self._head = self._head[len(taken) :]
        else:
            taken = self._rest.read(count)
        self.count += len(taken)
        return taken

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _Unfolded:
    """A decompressor with caps. A stream that breaks off ends there: the reader then says
    what was readable."""

    def __init__(self, stream: Reader, compressed: _Joined, kind: str) -> None:
        self._stream = stream
        self._compressed = compressed
        self._kind = kind
        self._count = 0

    def read(self, count: int, /) -> bytes:
        try:
            chunk = self._stream.read(count)
        except EOFError:
            return b""
        except (lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise SnapshotError(f"the {self._kind} data is damaged: {error}") from error
        self._count += len(chunk)
        ratio = self._count / max(self._compressed.count, 1)
        if (self._count > _RATIO_FLOOR and ratio > _MOST_RATIO) or self._count > _MOST_BYTES:
            raise LimitError(
                f"the {self._kind} data unfolds to more than {_MOST_RATIO:,} times its size",
            )
        return chunk


def _zstd_reader(stream: _Joined) -> Reader:
    raw = cast(BinaryIO, stream)
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return cast(Reader, zstd.ZstdFile(raw))
    except ImportError:
        pass
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UnavailableError(
            "zstd decompression", "pip install 'neutracer[zstd]' (or Python 3.14)"
        ) from None
    return cast(Reader, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))


def _unfold(head: bytes, stream: _Joined) -> Reader:
    """The stream itself, or what decompresses it."""
    if head.startswith(b"\x1f\x8b"):
        return _Unfolded(cast(Reader, gzip.GzipFile(fileobj=cast(Any, stream))), stream, "gzip")
    if head.startswith(b"\xfd7zXZ\x00"):
        return _Unfolded(cast(Reader, lzma.LZMAFile(cast(Any, stream))), stream, "xz")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _Unfolded(_zstd_reader(stream), stream, "zstd")
    return stream


def _is_compressed(head: bytes) -> bool:
    return head.startswith((b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"))


def check_head(head: bytes) -> None:
    """Tell what is not a pickle, by its first bytes.

    Raises:
        SnapshotError: It is empty, an archive, a checkpoint, or text.
    """
    if not head:
        raise SnapshotError(f"the file is empty (0 bytes): {EXPECTED}", 0)
    if head.startswith(b"PK\x03\x04"):
        raise SnapshotError(
            f"this is a zip archive, most likely a checkpoint written by torch.save(): {EXPECTED}",
            0,
        )
    if head.startswith(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."):
        raise SnapshotError(
            f"this is a checkpoint in the old format of torch.save(): {EXPECTED}", 0
        )
    if head[:1] not in b"(}]\x80" and all(byte in b"\t\n\r" or byte >= 32 for byte in head):
        start = head.lstrip()[:1]
        kind = {b"{": "JSON text", b"[": "JSON text", b"<": "an HTML or XML page"}.get(
            start, "a text file"
        )
        raise SnapshotError(f"this is {kind}: {EXPECTED}", 0)


@contextmanager
def _open_binary(source: SnapshotSource) -> Iterator[BinaryIO]:
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        if path == "-":
            yield sys.stdin.buffer
            return
        if os.path.isdir(path):
            raise SnapshotError(f"{path} is a directory: {EXPECTED}")
        with open(path, "rb", buffering=0) as file:
            yield cast(BinaryIO, file)
    else:
        yield cast(BinaryIO, source)


@contextmanager
def open_source(source: SnapshotSource) -> Iterator[Any]:
    """What the core reads: bytes, a file descriptor, or an object with `read(n)`.

    Args:
        source: A path, "-" for standard input, bytes, or a binary file.

    Raises:
        SnapshotError: It is a directory, empty, text, an archive or a checkpoint.
        UnavailableError: It is zstd-compressed and nothing here unpacks that.
        OSError: It can't be opened.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        head = bytes(memoryview(source)[:_PEEK])
        check_head(head)
        compressed = _is_compressed(head)
        yield _checked(head, _Joined(b"", io.BytesIO(source))) if compressed else source
        return
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        raise TypeError(
            f"a snapshot is loaded from a path, bytes or a binary file, not {type(source).__name__}"
        )
    with _open_binary(source) as file:
        head = file.read(_PEEK)
        if not isinstance(head, bytes):
            raise TypeError("the file is not open in binary mode")
        check_head(head)
        is_plain_path = isinstance(file, io.FileIO) and not _is_compressed(head)
        if is_plain_path and file.seekable():
            file.seek(0)
            yield file.fileno()
        else:
            yield _checked(head, _Joined(head, file))


def _checked(head: bytes, stream: _Joined) -> Reader:
    """The decompressed stream, its own head checked; or the stream itself."""
    unfolded = _unfold(head, stream)
    if unfolded is stream:
        return stream
    inner = unfolded.read(_PEEK)
    check_head(inner)
    return _Joined(inner, unfolded)


@contextmanager
def compressed_writer(file: BinaryIO, name: str) -> Iterator[Any]:
    """A binary stream onto `file`, compressed as the ending of `name` says.

    Raises:
        UnavailableError: The ending is .zst and nothing here writes that.
    """
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            yield packed
    elif name.endswith(".xz"):
        with lzma.LZMAFile(file, "wb") as packed_xz:
            yield packed_xz
    elif name.endswith(".zst"):
        with _zstd_writer(file) as packed_zst:
            yield packed_zst
    else:
        yield file


def _zstd_writer(file: BinaryIO) -> Any:
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
