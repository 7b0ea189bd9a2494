# SPDX-License-Identifier: Apache-2.0
"""Columns of integers as few bytes: narrow, delta-encoded where told, deflated as one stream.

The stream holds the length of a JSON header (32 bits), the header, and the columns one
behind the other. A column is stored by planes: the lowest bytes of all its numbers, then
the next ones, little-endian, which deflates better than numbers side by side. `decode.js`
reads this; `unpack` here says the same in Python.

Example:
    >>> packer = Packer()
    >>> packer.add("time", [7, 9, 12], delta=True)
    >>> unpack(packer.packed({"title": "x"}))
    ({'title': 'x'}, {'time': [7, 9, 12]})
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, islice
from operator import sub
from typing import Any

__all__ = ["Packer", "unpack"]

# Typecodes with their least and largest number, the narrowest first.
_TYPES = tuple(
    (code, low, high)
    for width, pair in ((1, "Bb"), (2, "Hh"), (4, "Ii"))
    for code, low, high in (
        (pair[0], 0, (1 << 8 * width) - 1),
        (pair[1], -(1 << 8 * width - 1), (1 << 8 * width - 1) - 1),
    )
)
_WIDEST = ("q", -(1 << 63), (1 << 63) - 1)

# The allocator's grain: addresses and sizes of blocks are multiples of it.
_GRAIN = 512

# Most of what deflate gains is gained here; the levels above take three times as long.
_LEVEL = 6


class Packer:
    """Collects columns, and packs them with a header."""

    def __init__(self) -> None:
        self._specs: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add(
        self, name: str, values: Sequence[int], *, delta: bool = False, grained: bool = False
    ) -> None:
        """Adds a column.

        Args:
            name: Its name in the page.
            values: Integers of at most 53 bits, so that JavaScript has them exactly.
            delta: Store each number as the difference to the one before it.
            grained: Store numbers that are all multiples of 512 divided by it.

        Raises:
            OverflowError: A number is too large.
        """
        low, high = (min(values), max(values)) if len(values) else (0, 0)
        if max(high, -low, high - low if delta else 0) >= 1 << 53:
            raise OverflowError(f"column {name!r} holds a number of more than 53 bits")
        scale = _GRAIN if grained and not any(map((_GRAIN - 1).__and__, values)) else 1
        stored: Sequence[int] = values
        if scale > 1:
            stored = array("q", map(scale.__rfloordiv__, values))
        if delta and len(values):
            stored = array("q", chain(stored[:1], map(sub, islice(stored, 1, None), stored)))
        code, data = _narrow(stored)
        spec = {"name": name, "count": len(values), "type": code}
        spec |= {"delta": 1} if delta else {}
        spec |= {"scale": scale} if scale > 1 else {}
        spec |= {"wide": 1} if low < -(1 << 31) or high >= 1 << 31 else {}
        self._specs.append(spec)
        self._parts.append(data)

    def packed(self, header: dict[str, Any]) -> bytes:
        """Everything as one deflated stream (zlib format).

        Args:
            header: Plain data; the columns' places are added to it.
        """
        text = json.dumps({**header, "columns": self._specs}, separators=(",", ":")).encode()
        squeeze = zlib.compressobj(_LEVEL)
        parts = (len(text).to_bytes(4, "little"), text, *self._parts)
        return b"".join([squeeze.compress(part) for part in parts]) + squeeze.flush()


def _narrow(values: Sequence[int]) -> tuple[str, bytes]:
    """The narrowest type that holds the values, and their bytes plane by plane."""
    low, high = (min(values), max(values)) if len(values) else (0, 0)
    code = next((c for c, least, most in _TYPES if least <= low and high <= most), _WIDEST[0])
    numbers = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    data = numbers.tobytes()
    width = numbers.itemsize
    return code, b"".join(data[plane::width] for plane in range(width)) if width > 1 else data


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The header and the columns of what `Packer.packed` made."""
    data = zlib.decompress(packed)
    at = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:at])
    columns = {}
    for spec in header.pop("columns"):
        width = array(spec["type"]).itemsize
        count = spec["count"]
        planes = data[at : at + count * width]
        at += count * width
        joined = bytearray(count * width)
        for plane in range(width):
            joined[plane::width] = planes[plane * count : (plane + 1) * count]
        numbers = array(spec["type"], bytes(joined))
        if sys.byteorder == "big":
            numbers.byteswap()
        values = list(accumulate(numbers)) if spec.get("delta") else list(numbers)
        columns[spec["name"]] = [value * spec.get("scale", 1) for value in values]
    return header, columns
