# SPDX-License-Identifier: Apache-2.0
"""Compressed streams unpacked piece by piece, within bounds.

gzip, xz and zstd, told by their first bytes. What breaks off ends there, so that the reader
gets all that was whole; what is damaged, or unfolds without end, is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from neutracer.errors import LimitError, SnapshotError, UnavailableError, pip_install

__all__ = ["UNPACK_RULES", "Reader", "Unpacked", "packed_kind", "unpack"]

# Compressed bytes taken at a time; small, because what follows a member is copied.
_CHUNK = 16 << 10

# An honest snapshot shrinks 10 to 100 times. What unfolds more is built to exhaust memory;
# below the floor nobody is harmed.
_MOST_RATIO = 1000
_RATIO_FLOOR = 64 << 20
_MOST_BYTES = 1 << 40

# Memory that what was unpacked may take, for each packed byte and at least. Snapshots take
# some ten times their packed size; opcodes that only make empty lists, thousands of times.
_MOST_MEMORY_RATIO = 500
_MEMORY_FLOOR = 256 << 20

# What unpacking xz may take: `xz -9` needs 65 MiB; a header can ask for 4 GiB.
_XZ_MEMORY = 256 << 20

_MAGIC = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "zstd": b"\x28\xb5\x2f\xfd"}

#: The bounds for the page, which unpacks gzip by itself (`feed.js`).
UNPACK_RULES: Mapping[str, object] = {
    "magic": _MAGIC,
    "most_ratio": _MOST_RATIO,
    "ratio_floor": _RATIO_FLOOR,
    "memory_ratio": _MOST_MEMORY_RATIO,
    "memory_floor": _MEMORY_FLOOR,
}


class Reader(Protocol):
    """Anything with a binary `read(n)`."""

    def read(self, count: int, /) -> bytes: ...


class _Decoder(Protocol):
    """What unpacks one member of a stream; it keeps the input that it has not used yet."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipDecoder:
    """zlib's decoder, which hands back the input that it has not used yet."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._tail = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        chunk = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return chunk


def packed_kind(head: bytes) -> str | None:
    """How a stream is compressed, by its first bytes: "gzip", "xz" or "zstd"; None: not."""
    return next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)


def unpack(kind: str, stream: Reader) -> Unpacked:
    """What a stream holds.

    Args:
        kind: As `packed_kind` gives it.
        stream: The compressed bytes, from the first one on.

    Raises:
        UnavailableError: Nothing here unpacks that kind.
    """
    if kind == "gzip":
        return _Members(stream, kind, _GzipDecoder, (zlib.error,))
    if kind == "xz":
        return _xz(stream)
    return _zstd(stream)


def _xz(stream: Reader) -> Unpacked:
    try:
        import lzma
    except ImportError:
        raise UnavailableError(
            "xz decompression", "this Python was built without liblzma; unpack the file first"
        ) from None

    def decoder() -> _Decoder:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    return _Members(stream, "xz", decoder, (lzma.LZMAError,))


def _zstd(stream: Reader) -> Unpacked:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return _Members(stream, "zstd", zstd.ZstdDecompressor, (zstd.ZstdError,))
    except ImportError:
        pass
    try:
        return _Frames(stream)
    except ImportError:
        raise UnavailableError(
            "zstd decompression", f"{pip_install('zstandard')} (or Python 3.14)"
        ) from None


class Unpacked:
    """A decompressed stream, bounded in what it may unfold to. Read with `read(n)`."""

    def __init__(self, stream: Reader, kind: str, errors: tuple[type[Exception], ...]) -> None:
        self.kind = kind
        self._stream = stream
        self._errors = errors
        self._taken = 0
        self._given = 0

    @property
    def allowance(self) -> int:
        """Memory that reading what was unpacked so far may take."""
        return _MEMORY_FLOOR + _MOST_MEMORY_RATIO * self._taken

    def read(self, count: int, /) -> bytes:
        """At most `count` bytes; none at the end, which may be where the data breaks off.

        Raises:
            SnapshotError: The compressed data is damaged.
            LimitError: It unfolds to more than an honest file would.
        """
        try:
            chunk = self._produce(count)
        except self._errors as error:
            if "emory usage limit" in str(error):
                raise LimitError(f"the {self.kind} data asks for too much memory") from error
            raise SnapshotError(f"the {self.kind} data is damaged: {error}") from error
        self._given += len(chunk)
        if self._given > max(_RATIO_FLOOR, _MOST_RATIO * self._taken):
            raise LimitError(f"the {self.kind} data unpacks to over {_MOST_RATIO:,} times its size")
        if self._given > _MOST_BYTES:
            raise LimitError(f"the {self.kind} data unpacks to over {_MOST_BYTES:,} bytes")
        return chunk

    def _produce(self, count: int) -> bytes:
        raise NotImplementedError

    def _take(self, count: int) -> bytes:
        data = self._stream.read(count)
        self._taken += len(data)
        return data


class _Frames(Unpacked):
    """zstd by the package zstandard, whose own reader goes from frame to frame."""

    def __init__(self, stream: Reader) -> None:
        import zstandard  # type: ignore[import-not-found,unused-ignore]

        super().__init__(stream, "zstd", (zstandard.ZstdError,))
        self._frames = zstandard.ZstdDecompressor().stream_reader(
            cast(Any, _Source(self._take)), read_across_frames=True
        )

    def _produce(self, count: int) -> bytes:
        return bytes(self._frames.read(count))


class _Source:
    """A function as the object with `read(n)` that zstandard wants."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.read = read


class _Members(Unpacked):
    """A decoder a member, one after the other, as `cat a.gz b.gz` makes them."""

    def __init__(
        self,
        stream: Reader,
        kind: str,
        decoder: Callable[[], _Decoder],
        errors: tuple[type[Exception], ...],
    ) -> None:
        super().__init__(stream, kind, errors)
        self._new = decoder
        self._decoder: _Decoder | None = decoder()
        self._rest = b""

    def _produce(self, count: int) -> bytes:
        while self._decoder is not None:
            chunk = self._decoder.decompress(b"", count)
            if not chunk and not self._decoder.eof:
                data = self._rest or self._take(_CHUNK)
                self._rest = b""
                if not data:
                    self._decoder = None
                    break
                chunk = self._decoder.decompress(data, count)
            if self._decoder.eof:
                self._begin_next(self._decoder.unused_data)
            if chunk:
                return chunk
        return b""

    def _begin_next(self, rest: bytes) -> None:
        """The next member; whatever else follows the last one is left alone."""
        magic = _MAGIC[self.kind]
        while len(rest) < len(magic) and (more := self._take(_CHUNK)):
            rest += more
        self._decoder = self._new() if rest.startswith(magic) else None
        self._rest = rest
