# SPDX-License-Identifier: Apache-2.0
"""Where a snapshot's bytes come from: paths, files, bytes, standard input, compressed or not.

The first bytes show what a file is, not its name. What is not a snapshot is named before the
reader sees it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from neutracer.arguments import path_name
from neutracer.errors import SnapshotError
from neutracer.trace.unpack import Reader, Unpacked, packed_kind, unpack

__all__ = ["FILE_RULES", "SnapshotSource", "check_head", "open_source", "source_path"]

SnapshotSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

EXPECTED = "expected a PyTorch memory snapshot, as torch.cuda.memory._dump_snapshot() writes it"

_PEEK = 512

# Files that are taken for snapshots, by their first bytes.
_OTHER_FILES = (
    (b"PK\x03\x04", "a zip archive, most likely a checkpoint written by torch.save()"),
    (
        b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
        "a checkpoint in the old format of torch.save()",
    ),
    (b"BZh", "compressed with bzip2 (gzip, xz and zstd are read)"),
    (b"\x7fELF", "a program or a library"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
)

#: The same for the page, which reads files in JavaScript (`feed.js`).
FILE_RULES: Mapping[str, object] = {"expected": EXPECTED, "others": _OTHER_FILES}


class _Joined:
    """The peeked head of a stream, then the rest of it."""

    def __init__(self, head: bytes, rest: Reader) -> None:
        self._head = head
        self._rest = rest

    @property
    def allowance(self) -> int | None:
        """Memory that reading the bytes so far may take; None leaves it to the caller."""
        return self._rest.allowance if isinstance(self._rest, Unpacked) else None

    def read(self, count: int, /) -> bytes:
        if not self._head:
            return self._rest.read(count)
        taken, self._head = self._head[:count], self._head[count:]
        return taken


def check_head(head: bytes, packed: str | None = None) -> None:
    """Name what is not a pickle, by its first bytes.

    Args:
        head: The first bytes, at least 16 where there are as many.
        packed: The kind of compression they were in, or None.

    Raises:
        SnapshotError: It is empty, text, or a file of another kind.
    """
    if not head:
        empty = "the file is empty (0 bytes)"
        if packed:
            empty = f"the {packed} data is empty, or breaks off before anything can be unpacked"
        raise SnapshotError(f"{empty}: {EXPECTED}", 0)
    kind = next((name for magic, name in _OTHER_FILES if head.startswith(magic)), None)
    if packed and packed_kind(head):
        kind = f"{packed_kind(head)} data again"
    kind = kind or _text_kind(head)
    if kind:
        subject = f"what is packed with {packed}" if packed else "this"
        raise SnapshotError(f"{subject} is {kind}: {EXPECTED}", 0)


def _text_kind(head: bytes) -> str | None:
    """What text it is, or None for what may be a pickle."""
    # The text pickles of protocol 0 begin with a dict or a list.
    if head.startswith((b"(d", b"(l")) or any(b < 32 and b not in b"\t\n\r" for b in head):
        return None
    if head[:1] == b"\x80":
        return None
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start in (b"{", b"["):
        return "a profiler's trace" if b'"traceEvents"' in head else "JSON text"
    return "an HTML or XML page" if start == b"<" else "a text file"


@contextmanager
def _open_binary(source: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    path = path_name(source, "source")
    if path == "-":
        yield sys.stdin.buffer
        return
    if os.path.isdir(path):
        raise SnapshotError(f"this is a directory: {EXPECTED}")
    with open(path, "rb", buffering=0) as file:
        yield cast(BinaryIO, file)


@contextmanager
def open_source(source: SnapshotSource) -> Iterator[Any]:
    """What the core reads: bytes, a file descriptor, or an object with `read(n)`.

    Args:
        source: A path, "-" for standard input, bytes, or a binary file, which is read from
            its position on.

    Raises:
        SnapshotError: It is a directory, empty, text, or a file of another kind.
        UnavailableError: It is compressed, and nothing here unpacks that.
        OSError: It can't be opened.
        ValueError: The path has a null character in it.
        TypeError: It is none of these.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        # What others can write to while it is read without the GIL is copied.
        data = source if isinstance(source, bytes) else bytes(source)
        yield _opened(data[:_PEEK], _Joined(b"", io.BytesIO(data)), data)
        return
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        raise TypeError(
            f"a snapshot must be a path, bytes or a binary file, not {type(source).__name__}"
        )
    with _open_binary(source) as file:
        head = _first_bytes(file)
        stream = _Joined(head, file)
        plain: Any = stream
        if isinstance(file, io.FileIO) and file is not source and file.seekable():
            plain = file.fileno()
        opened = _opened(head, stream, plain)
        if opened is plain and plain is not stream:
            file.seek(0)
        yield opened


def source_path(source: SnapshotSource) -> str:
    """The absolute path of the file that a source is; "" for what has none."""
    name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "")
    known = isinstance(name, (str, bytes, os.PathLike)) and name not in ("", b"", "-")
    return os.path.abspath(os.fsdecode(name)) if known else ""


def _first_bytes(file: BinaryIO) -> bytes:
    """As many as are looked at; a stream may give them in smaller pieces."""
    if not getattr(file, "readable", lambda: True)():
        raise ValueError("the file is not open for reading")
    head = b""
    while len(head) < _PEEK:
        piece = file.read(_PEEK - len(head))
        if piece is not None and not isinstance(piece, bytes):
            raise TypeError("the file is not open in binary mode")
        if not piece:
            break
        head += piece
    return head


def _opened(head: bytes, stream: _Joined, plain: Any) -> Any:
    """`plain`, or a reader of what `stream` holds where that is compressed."""
    check_head(head)
    kind = packed_kind(head)
    if kind is None:
        return plain
    unpacked = unpack(kind, stream)
    inner = unpacked.read(_PEEK)
    check_head(inner, kind)
    return _Joined(inner, unpacked)
