# SPDX-License-Identifier: Apache-2.0
"""Rank x time: the most that was allocated, and as a small picture for a page."""

from __future__ import annotations

from collections.abc import Sequence

from neutracer.diagnose.ranks.clocks import Clocks
from neutracer.diagnose.ranks.parts import HeatMap
from neutracer.process.ranks.digest import MOST_BINS, RankDigest
from neutracer.render.palette import LIGHT
from neutracer.units import format_bytes, format_duration_us

__all__ = ["heat_map", "heat_svg"]

_WIDTH = 640

# Rows of the small picture: of more ranks, the highest of each group of neighbours is one.
_MOST_ROWS = 128
_ROW = 12
_LEAST_ROW = 3

# Shades of the small picture; a run of columns with one shade is one shape.
_SHADES = 12


def heat_map(digests: Sequence[RankDigest], clocks: Clocks) -> HeatMap | None:
    """The curves of all ranks on one axis of time; None where no trace has times.

    Args:
        digests: The ranks, a row each.
        clocks: The hosts' clocks, by which the axis is the first host's.
    """
    spans = [_span(one, clocks) for one in digests]
    known = [span for span in spans if span is not None]
    if not known:
        return None
    begin, end = min(a for a, _ in known), max(b for _, b in known)
    pairs = list(zip(digests, spans, strict=True))
    ooms = [
        (row, clocks.common(one, one.first_oom_us))
        for row, one in enumerate(digests)
        if one.first_oom_us is not None
    ]
    return HeatMap(
        tuple(one.rank for one in digests),
        begin,
        end,
        tuple(_row(one, span, begin, end) for one, span in pairs),
        tuple(ooms),
    )


def _span(one: RankDigest, clocks: Clocks) -> tuple[int, int] | None:
    if not one.curve or one.begin_us is None or one.end_us is None or one.end_us <= one.begin_us:
        return None
    return clocks.common(one, one.begin_us), clocks.common(one, one.end_us)


def _row(
    one: RankDigest, span: tuple[int, int] | None, begin: int, end: int
) -> tuple[int | None, ...]:
    """A rank's curve in the columns of all: the most of what meets a column."""
    if span is None:
        return (None,) * MOST_BINS
    low, high = span
    count, width = len(one.curve), end - begin
    found: list[int | None] = []
    for column in range(MOST_BINS):
        left = begin + width * column // MOST_BINS
        right = begin + width * (column + 1) // MOST_BINS
        if right <= low or left >= high:
            found.append(None)
            continue
        first = max(left - low, 0) * count // (high - low)
        last = -(-min(right - low, high - low) * count // (high - low))
        found.append(max(one.curve[first : max(last, first + 1)], default=None))
    return tuple(found)


def heat_svg(heat: HeatMap) -> str:
    """The map as an `<svg>` of some ten kB; darker is more, blank is outside of a rank's trace."""
    rows = _folded(heat.rows)
    top = max((value for row in rows for value in row if value is not None), default=0)
    if not top:
        return ""
    tall = max(_LEAST_ROW, min(_ROW, 384 // len(rows)))
    height = tall * len(rows)
    shapes = "".join(_rects(row, at * tall, tall, top) for at, row in enumerate(rows))
    marks = "".join(_mark(heat, row, time_us, len(rows), tall) for row, time_us in heat.ooms_us)
    spent = format_duration_us(heat.end_us - heat.begin_us)
    return (
        f'<p><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="allocated bytes by rank and time">{shapes}{marks}</svg><br>'
        f'<span class="nt-muted">allocated bytes of {len(heat.ranks)} ranks over {spent}, the '
        f"first at the top; the darkest is {format_bytes(top)}, red is out of memory</span></p>"
    )


def _folded(rows: Sequence[tuple[int | None, ...]]) -> list[tuple[int | None, ...]]:
    each = -(-len(rows) // _MOST_ROWS)
    groups = [rows[at : at + each] for at in range(0, len(rows), each)]
    return [tuple(_most(column) for column in zip(*group, strict=True)) for group in groups]


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _rects(row: Sequence[int | None], y: int, tall: int, top: int) -> str:
    """A row as runs of columns of one shade."""
    shades = [None if value is None else round(_SHADES * value / top) for value in row]
    step = _WIDTH / len(shades)
    found, begin = [], 0
    for at in range(1, len(shades) + 1):
        if at < len(shades) and shades[at] == shades[begin]:
            continue
        shade = shades[begin]
        if shade is not None:
            x, wide = begin * step, (at - begin) * step
            found.append(_rect(x, y, wide, tall, LIGHT.blue(shade / _SHADES)))
        begin = at
    return "".join(found)


def _mark(heat: HeatMap, row: int, time_us: int, rows: int, tall: int) -> str:
    x = _WIDTH * (time_us - heat.begin_us) / (heat.end_us - heat.begin_us)
    y = row * rows // len(heat.rows) * tall
    return _rect(min(x, _WIDTH - 3), y, 3, tall, LIGHT.red)


def _rect(x: float, y: int, wide: float, tall: int, colour: str) -> str:
    return f'<rect x="{x:.5g}" y="{y}" width="{wide:.5g}" height="{tall}" fill="{colour}"/>'
