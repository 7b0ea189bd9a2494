# SPDX-License-Identifier: Apache-2.0
"""A small picture of bytes over time for a notebook: SVG in the colours of the fragment.

Example:
    >>> strip_svg([0, 4 << 20, 1 << 20], [4 << 20, 4 << 20, 4 << 20]).count("<path")
    2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from neutracer.units import format_bytes

__all__ = ["strip_svg"]

_WIDTH, _HEIGHT = 640, 72
# One column of the picture shows the most of its events.
_COLUMNS = 320


def strip_svg(
    inner: Sequence[int], outer: Sequence[int] = (), marks: Iterable[int] = (), base: int = 0
) -> str:
    """Draw bytes after each event, the first at the left.

    Args:
        inner: Filled in blue.
        outer: Of the same length or empty; an outline around it: what was reserved.
        marks: Positions with a red line.
        base: The bytes at the lower edge.

    Returns:
        An `<svg>` of some 10 kB at most; empty where there is nothing to draw.
    """
    top = max(max(inner, default=0), max(outer, default=0))
    if top <= base:
        return ""
    shapes = []
    if outer:
        shapes.append(_path(outer, base, top, "var(--nt-free)", "none"))
    shapes.append(_path(inner, base, top, "none", "var(--nt-blue)"))
    step = _WIDTH / max(len(inner), 1)
    for mark in marks:
        x = round((mark + 0.5) * step, 1)
        shapes.append(f'<path d="M{x},0V{_HEIGHT}" stroke="var(--nt-red)" stroke-width="2"/>')
    return (
        f'<p><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="bytes over time" style="max-width:100%">{"".join(shapes)}</svg><br>'
        f'<span class="nt-muted">after each allocator event; the upper edge is '
        f"{format_bytes(top - base)}{' above the start' if base else ''}</span></p>"
    )


def _path(values: Sequence[int], base: int, top: int, stroke: str, fill: str) -> str:
    folded = _folded(values)
    step = _WIDTH / len(folded)
    points = []
    for column, value in enumerate(folded):
        y = round(_HEIGHT - (max(value - base, 0)) / (top - base) * (_HEIGHT - 1), 1)
        points.append(f"V{y:g}H{round((column + 1) * step, 1):g}")
    return f'<path d="M0,{_HEIGHT}{"".join(points)}V{_HEIGHT}Z" fill="{fill}" stroke="{stroke}"/>'


def _folded(values: Sequence[int]) -> list[int]:
    """The most of each column of the picture."""
    count = len(values)
    columns = min(count, _COLUMNS)
    bounds = [column * count // columns for column in range(columns + 1)]
    return [max(values[low:high]) for low, high in pairwise(bounds)]
