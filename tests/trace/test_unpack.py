# SPDX-License-Identifier: Apache-2.0
"""Compressed streams: all kinds, broken off, damaged, and made to exhaust memory."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import zlib

import pytest
from bundle import DATA
from small_snapshots import dumped, one_program

import neutracer
from neutracer import LimitError, SnapshotError, UnavailableError
from neutracer.trace import source as module
from neutracer.trace.source import packed_kind, unpack

FILE = DATA / "frag_default.pickle"


def zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        return pytest.importorskip("compression.zstd").compress(data)
    return pytest.importorskip("zstandard").compress(data)


def xz(data: bytes) -> bytes:
    """With a small dictionary: a reader makes room for it, whatever the data's size."""
    return lzma.compress(data, preset=0)


PACKERS = {"gzip": gzip.compress, "xz": xz, "zstd": zstd}


def unpacked(data: bytes, count: int = 1 << 16) -> bytes:
    stream = unpack(packed_kind(data), io.BytesIO(data))
    pieces = []
    while piece := stream.read(count):
        assert len(piece) <= count
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("kind", PACKERS)
def test_every_kind_unpacks(kind):
    data = FILE.read_bytes()
    packed = PACKERS[kind](data)
    assert packed_kind(packed) == kind
    assert unpacked(packed) == data
    assert unpacked(packed, 777) == data
    assert len(neutracer.load(packed).events) == 2375


@pytest.mark.parametrize("kind", PACKERS)
def test_members_follow_each_other(kind):
    first, second = b"a" * 100_000, b"b" * 50_000
    pack = PACKERS[kind]
    assert unpacked(pack(first) + pack(b"") + pack(second)) == first + second
    each = [pack(bytes([i])) for i in range(256)]
    many = b"".join(each[i % 256] for i in range(1200))
    assert unpacked(many) == bytes(i % 256 for i in range(1200))


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_bytes_behind_the_end_are_left_alone(kind):
    assert unpacked(PACKERS[kind](b"data") + b"\0" * 70_000) == b"data"


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_broken_off_gives_what_was_whole(kind, share):
    data = FILE.read_bytes() + bytes(range(256)) * 4096
    packed = PACKERS[kind](data)
    whole = unpacked(packed[: int(len(packed) * share)])
    # zstd gives whole blocks of 128 KiB; the others give all but the last few bytes.
    assert len(whole) > 50_000 or kind == "zstd"
    assert data.startswith(whole)


def test_broken_off_snapshot_is_partial():
    packed = gzip.compress(FILE.read_bytes())
    with pytest.warns(neutracer.HistoryWarning, match="only a part"):
        snap = neutracer.load(packed[: len(packed) // 2])
    assert 500 < len(snap.events) < 2375
    assert len(snap.segments) == 18
    assert snap.partial


@pytest.mark.parametrize("kind", PACKERS)
def test_broken_off_at_once_is_told(kind):
    packed = PACKERS[kind](FILE.read_bytes())
    with pytest.raises(SnapshotError, match=f"{kind} data is empty, or breaks off"):
        neutracer.load(packed[:16])


@pytest.mark.parametrize("kind", PACKERS)
def test_damage_is_told(kind):
    packed = bytearray(PACKERS[kind](FILE.read_bytes()))
    for at in range(len(packed) // 2, len(packed) // 2 + 24):
        packed[at] ^= 0xFF
    with pytest.raises(SnapshotError, match=f"the {kind} data is damaged"):
        unpacked(bytes(packed))


def test_wrong_checksum_is_told():
    packed = bytearray(gzip.compress(dumped(one_program())))
    packed[-6] ^= 1
    with pytest.raises(SnapshotError, match="gzip data is damaged"):
        neutracer.load(bytes(packed))


def bomb(size: int) -> bytes:
    """Zeros that shrink by more than a thousand."""
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(bytes(size)) + packer.flush()


def test_bombs_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_RATIO_FLOOR", 1 << 20)
    monkeypatch.setattr(module, "_MOST_RATIO", 100)
    with pytest.raises(LimitError, match="over 100 times its size"):
        unpacked(bomb(8 << 20))
    with pytest.raises(LimitError, match="over 100 times its size"):
        # Many members do not hide it.
        unpacked(b"".join(bomb(1 << 16) for _ in range(128)))


def test_small_bombs_do_no_harm():
    assert unpacked(bomb(4 << 20)) == bytes(4 << 20)


def test_absolute_size_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 20)
    with pytest.raises(LimitError, match="over 1,048,576 bytes"):
        unpacked(gzip.compress(bytes(range(256)) * 8192))


def test_greedy_xz_headers_are_refused():
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    packed = lzma.compress(b"small", format=lzma.FORMAT_XZ, filters=filters)
    with pytest.raises(LimitError, match="xz data asks for too much memory"):
        unpacked(packed)


@pytest.mark.parametrize(("kind", "missing"), [("xz", "lzma"), ("zstd", "zstandard")])
def test_missing_decompressors_say_what_to_do(kind, missing, monkeypatch):
    packed = PACKERS[kind](dumped(one_program()))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(UnavailableError, match=f"{kind} decompression") as caught:
        neutracer.load(packed)
    assert caught.value.install


def test_plain_data_is_of_no_kind():
    assert packed_kind(dumped(one_program())) is None
    assert packed_kind(b"") is None
