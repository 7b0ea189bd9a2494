# SPDX-License-Identifier: Apache-2.0
"""Two curves over each other as lines of text: what is used, and the room around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from neutracer.render.text import Line, Span
from neutracer.units import format_bytes

__all__ = ["curve_lines"]

_STEPS = " ▁▂▃▄▅▆▇█"
_ROOM = "░"

# The column of the axis' words.
_AXIS = 11


def curve_lines(
    inner: Sequence[int],
    outer: Sequence[int],
    top: int,
    *,
    width: int,
    height: int = 6,
    plain: bool = False,
) -> list[Line]:
    """Draw bytes over time, oldest at the left.

    Args:
        inner: Drawn as solid columns.
        outer: Of the same length; what it has above `inner` is drawn as a shade.
        top: The bytes at the upper edge.
        width: Columns in all.
        height: Lines.
        plain: Only ASCII.

    Example:
        >>> for line in curve_lines([1, 2, 4], [4, 4, 4], 4, width=14, height=2):
        ...     print("".join(span.text for span in line))
              4 B │░░█
                  │▄██
    """
    room = max(width - _AXIS, 1)
    if not inner or top <= 0:
        return []
    columns = min(room, len(inner))
    solid, shade = _folded(inner, columns), _folded(outer, columns)
    lines: list[Line] = []
    for row in range(height - 1, -1, -1):
        word = format_bytes(top) if row == height - 1 else ""
        bar = "|" if plain else "│"
        cells = "".join(
            _cell(low, high, row, top, height, plain)
            for low, high in zip(solid, shade, strict=True)
        )
        lines.append((Span(f"{word:>{_AXIS - 2}} {bar}", "muted"), Span(cells)))
    return lines


def _folded(values: Sequence[int], columns: int) -> list[int]:
    """The largest value of each column's share."""
    edges = [number * len(values) // columns for number in range(columns + 1)]
    return [max(values[a:b]) for a, b in itertools.pairwise(edges)]


def _cell(solid: int, shade: int, row: int, top: int, height: int, plain: bool) -> str:
    def level(value: int) -> int:
        return min(max(value * height * 8 // top - row * 8, 0), 8)

    if plain:
        return "#" if level(solid) >= 4 else "." if level(shade) >= 4 else " "
    if level(solid):
        return _STEPS[level(solid)]
    return _ROOM if level(shade) >= 4 else " "
