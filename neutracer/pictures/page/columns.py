# SPDX-License-Identifier: Apache-2.0
"""Columns of integers in few bytes: narrow, delta-encoded on request, deflated as one stream.

The stream holds the length of a JSON header (32 bits), the header, and the columns one after
the other. A column is stored by planes: the lowest bytes of all its numbers, then the next
ones, little-endian, which deflates better than numbers side by side. `decode.js` reads this;
`unpack` here says the same in Python.

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
from itertools import accumulate
from typing import Any

from neutracer._native import core

__all__ = ["Packer", "unpack"]

# Most of what deflate gains is gained here; the levels above take three times as long.
_LEVEL = 6


class Packer:
    """Collects columns, and packs them with a header."""

    def __init__(self) -> None:
        self._specs: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add(
        self,
        name: str,
        values: Sequence[int],
        *,
        delta: bool = False,
        grained: bool = False,
        base: int = 0,
    ) -> None:
        """Adds a column.

        Args:
            name: Its name in the page.
            values: Integers of at most 53 bits less the base, so that JavaScript has them
                exactly.
            delta: Store each number as the difference to the one before it.
            grained: Store numbers that are all multiples of 512 divided by it.
            base: What is taken from each number.

        Raises:
            OverflowError: A number is too large.
        """
        numbers = values if isinstance(values, (array, memoryview)) else array("q", values)
        try:
            code, scale, is_wide, data = core.planes(numbers, delta, grained, base)
        except OverflowError as error:
            raise OverflowError(f"column {name!r} holds {error}") from None
        spec = {"name": name, "count": len(values), "type": code}
        spec |= {"delta": 1} if delta else {}
        spec |= {"scale": scale} if scale > 1 else {}
        spec |= {"wide": 1} if is_wide else {}
        self._specs.append(spec)
        self._parts.append(data)

    def add_bytes(self, name: str, data: bytes) -> None:
        """Adds a column of numbers of 8 bits."""
        self._specs.append({"name": name, "count": len(data), "type": "B"})
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
