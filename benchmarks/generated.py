# SPDX-License-Identifier: Apache-2.0
"""Snapshots of any length, in the form in which PyTorch's Python dump writes them.

A program of 100,000 events that ends where it began is written once and repeated with later
times, so that ten million events take seconds to make. Every event memoizes its dict, as
CPython does.
"""

from __future__ import annotations

import pickle
import random
import re
import struct
from pathlib import Path

_SLOT = 2 << 20
_SLOTS = 1000
_BASE = 0x7F0000000000
_CHUNK = 100_000
_BATCH = 1000

# Microseconds: of the first event, and between two.
_START = 1_700_000_000_000_000
_STEP = 3


def _int(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


class _Memo:
    """Strings written once, then fetched by index."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.count = 0

    def new(self) -> bytes:
        self.count += 1
        return b"\x94"

    def text(self, text: str) -> bytes:
        if text in self.index:
            return b"h" + bytes([self.index[text]])
        self.index[text] = self.count
        raw = text.encode()
        return b"\x8c" + bytes([len(raw)]) + raw + self.new()


def _events(seed: int) -> list[tuple[str, int, int, int]]:
    """(action, address, size, stack) of one round; what is allocated is freed in it."""
    chance = random.Random(seed)
    live: dict[int, tuple[int, int]] = {}
    free = list(range(_SLOTS))
    rows: list[tuple[str, int, int, int]] = []
    while len(rows) < _CHUNK:
        room = _CHUNK - len(rows)
        must_free = room <= 2 * len(live)
        if free and not must_free and (len(live) < 200 or chance.random() < 0.34):
            slot = free.pop(chance.randrange(len(free)))
            size, stack = chance.randrange(512, _SLOT // 2), chance.randrange(8)
            live[slot] = (size, stack)
            rows.append(("alloc", _BASE + slot * _SLOT, size, stack))
        elif live:
            slot = chance.choice(list(live)[:50])
            size, stack = live.pop(slot)
            free.append(slot)
            for action in ("free_requested", "free_completed"):
                rows.append((action, _BASE + slot * _SLOT, size, stack))
        else:
            rows.append(("snapshot", 0, 0, 0))
    return rows[:_CHUNK]


def write_snapshot(path: Path, events: int, seed: int = 7) -> None:
    """Write a snapshot.

    Args:
        path: Where to.
        events: How many events; rounded up to a whole number of 100,000.
        seed: Of the program.
    """
    memo = _Memo()
    keys = ("action", "addr", "size", "stream", "time_us", "compile_context")
    stacks = [
        [
            {"name": f"layer_{s}", "filename": "/srv/jobs/model.py", "line": 10 + s},
            {"name": "train", "filename": "/srv/jobs/train.py", "line": 40},
        ]
        for s in range(8)
    ]
    out = [b"\x80\x04}" + memo.new() + b"(" + memo.text("device_traces")]
    out.append(b"]" + memo.new() + b"]" + memo.new())
    # A first event with everything in it, so that all that is shared has its index.
    first = [b"}" + memo.new() + b"("]
    values = ("alloc", "free_requested", "free_completed", "snapshot", "N/A", "frames")
    first += [memo.text(f"unused {i}") + memo.text(text) for i, text in enumerate(values)]
    at: list[int] = []
    for s, stack in enumerate(stacks):
        first.append(memo.text(f"stack {s}"))
        at.append(memo.count)
        first.append(b"]" + memo.new() + b"(")
        for frame in stack:
            first.append(b"}" + memo.new() + b"(")
            for key, value in frame.items():
                first.append(memo.text(key))
                first.append(memo.text(value) if isinstance(value, str) else _int(value))
            first.append(b"u")
        first.append(b"e")
    first += [memo.text("action"), memo.text("segment_alloc")]
    for key, number in (
        ("addr", _BASE),
        ("size", _SLOT * _SLOTS),
        ("stream", 0),
        ("time_us", _START),
    ):
        first += [memo.text(key), _int(number)]
    first.append(memo.text("compile_context") + memo.text("N/A") + b"u")
    out.append(b"(" + b"".join(first) + b"e")
    rows = []
    for action, address, size, stack in _events(seed):
        fields = (memo.text(action), _int(address), _int(size), _int(0), _int(_START))
        pairs = b"".join(memo.text(k) + v for k, v in zip(keys, fields, strict=False))
        frames = memo.text("frames") + b"h" + bytes([at[stack]])
        rows.append(
            b"}\x94(" + pairs + memo.text("compile_context") + memo.text("N/A") + frames + b"u"
        )
    assert memo.count < 256
    batches = [b"(" + b"".join(rows[i : i + _BATCH]) + b"e" for i in range(0, _CHUNK, _BATCH)]
    chunk = bytearray(b"".join(batches))
    moment = _int(_START)
    places = [found.start() for found in re.finditer(re.escape(moment), chunk)]
    assert len(places) == _CHUNK
    segment = {
        "device": 0, "address": _BASE, "total_size": _SLOT * _SLOTS, "allocated_size": 0,
        "active_size": 0, "requested_size": 0, "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, 0], "is_expandable": False, "frames": [], "blocks": [
            {"address": _BASE, "size": _SLOT * _SLOTS, "requested_size": 0,
             "state": "inactive", "frames": []},
        ],
    }  # fmt: skip
    # Without memo and frames, so that it can stand behind what has its own.
    tail = _plain([segment])
    with path.open("wb") as file:
        file.write(b"".join(out))
        time_us = _START
        for _ in range(-(-events // _CHUNK)):
            for place in places:
                time_us += _STEP
                chunk[place : place + len(moment)] = _int(time_us)
            file.write(chunk)
        file.write(b"a" + b"\x8c\x08segments" + tail + b"u.")


def _plain(value: object) -> bytes:
    """A value as protocol 4 opcodes that use no memo."""
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return _int(value)
    if isinstance(value, str):
        return b"\x8c" + bytes([len(value)]) + value.encode()
    if isinstance(value, dict):
        return b"}(" + b"".join(_plain(k) + _plain(v) for k, v in value.items()) + b"u"
    assert isinstance(value, list)
    return b"](" + b"".join(map(_plain, value)) + b"e"


def check(path: Path) -> int:
    """The number of events that pickle.load finds in a file."""
    with path.open("rb") as file:
        return len(pickle.load(file)["device_traces"][0])
