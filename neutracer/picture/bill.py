# SPDX-License-Identifier: Apache-2.0
"""The bill of a failure as a waterfall, drawn with matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.patches import Patch, Rectangle

from neutracer.oom.bill import Bill, BillTerm
from neutracer.oom.explain import ExplainReport
from neutracer.picture.extra import picture
from neutracer.picture.figure import byte_axis, plain_axes, size_text
from neutracer.render.document import Palette, clean, mixed, sentence, shorten_left

# Inches.
_WIDE, _LEFT, _RIGHT = 11.5, 3.7, 1.05
_ROW, _TOP, _BOTTOM = 0.3, 1.25, 0.95

_HIGH = 0.62  # of a row, that a bar has

# Characters of a name, and of a line of text over the whole width.
_MOST_NAME, _LINE = 48, 118

# What the request can have comes last, so that its own bar lies below that.
_LAST = ("waiting", "free elsewhere", "free", "not reserved")


def draw_bill(why: ExplainReport, title: str, palette: Palette) -> Any:
    """The figure of `plot_bill`."""
    bars = _bars(why, palette)
    head = textwrap.wrap(sentence(why.headline, 2 * _LINE), _LINE)
    high = _TOP + 0.2 * (len(head) - 1) + _ROW * len(bars) + _BOTTOM
    figure = picture(_WIDE, high, palette.page)
    box = [_LEFT / _WIDE, _BOTTOM / high, 1 - (_LEFT + _RIGHT) / _WIDE, _ROW * len(bars) / high]
    axes = figure.add_axes(box, label="bill")
    plain_axes(axes, palette, ("bottom",))
    axes.set_yticks([])
    for row, bar in enumerate(bars):
        _draw_bar(axes, row, bar, palette)
    limit = why.bill.limit_bytes
    most = max(limit + why.bill.missing_bytes, 1)
    axes.set_xlim(0, most)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.axvline(limit, color=palette.ink, linewidth=0.9, linestyle="--", zorder=1)
    byte_axis(axes.xaxis, most, 8)
    _write(figure, why, title, head, palette)
    return figure


@dataclass(frozen=True)
class _Bar:
    """One row of the waterfall. Sizes in bytes.

    Attributes:
        name: At its left.
        size: The figure at its right.
        begin: Where the bar begins.
        parts: Sizes of its parts, with their colours.
        ink: The colour of the words.
    """

    name: str
    size: int
    begin: int
    parts: tuple[tuple[int, str], ...]
    ink: str


def _bars(why: ExplainReport, palette: Palette) -> list[_Bar]:
    """The limit, each term from where the last one ends, the request and what it lacks."""
    bill, at = why.bill, 0
    limit, asked, lacks = bill.limit_bytes, bill.request_bytes, bill.missing_bytes
    bars = [_Bar(bill.limit_text(), limit, 0, ((limit, palette.surface),), palette.ink)]
    begins = []
    for term in sorted(bill.shown_terms(), key=_order):
        parts = _parts(why, term, palette)
        bars.append(_Bar(_name(bill, term), term.bytes, at, parts, palette.ink))
        if term.term in ("free", "not reserved"):
            begins.append(at)
        at += term.bytes
    if asked:
        begin, fits = min(begins, default=at), (asked - lacks, palette.red_fill)
        bars.append(_Bar("the request", asked, begin, (fits,), palette.red))
    if lacks:
        bars.append(_Bar("missing", lacks, limit, ((lacks, palette.red),), palette.red))
    return bars


def _order(term: BillTerm) -> int:
    return _LAST.index(term.term) + 1 if term.term in _LAST else 0


def _name(bill: Bill, term: BillTerm) -> str:
    """A term's words; of a line the function is cut, not the place, and who called it left out."""
    if term.place is None:
        return sentence(bill.words(term))
    where = shorten_left(clean(replace(term.place, caller="").location), _MOST_NAME)
    room = max(_MOST_NAME - len(where), 2)
    return f"{sentence(term.place.function, room)} {where}".strip()


def _parts(why: ExplainReport, term: BillTerm, palette: Palette) -> tuple[tuple[int, str], ...]:
    """The parts of a term's bar: bytes and colour."""
    if term.term == "free":
        return ((term.bytes, palette.sand),)
    if term.term == "free elsewhere":
        return ((term.bytes, mixed(palette.sand, palette.sand_ink, 0.35)),)
    if term.term == "not reserved":
        return ((term.bytes, palette.page),)
    if not (term.stands or term.piled_up or term.this_round):
        return ((term.bytes, palette.grey),)
    if not why.bill.rounds:
        return ((term.bytes, palette.allocated[2]),)
    sizes = (term.stands, term.piled_up, term.this_round)
    return tuple(zip(sizes, part_colours(palette), strict=True))


def part_colours(palette: Palette) -> tuple[str, str, str]:
    """The blues of what stands, piled up, and came in this round."""
    return palette.allocated[2], palette.allocated[4], palette.allocated[0]


def _draw_bar(axes: Any, row: int, bar: _Bar, palette: Palette) -> None:
    at = bar.begin
    for size, colour in bar.parts:
        if size:
            place, look = (at, row - _HIGH / 2), {"facecolor": colour, "edgecolor": palette.grey}
            axes.add_patch(Rectangle(place, size, _HIGH, linewidth=0.6, **look))
        at += size
    words: dict[str, Any] = {"xycoords": ("axes fraction", "data")}
    words |= {
        "textcoords": "offset points",
        "ha": "right",
        "va": "center",
        "annotation_clip": False,
    }
    axes.annotate(bar.name, (0, row), (-6, 0), size=9, color=bar.ink, **words)
    figure = size_text(bar.size)
    axes.annotate(figure, (1, row), (_RIGHT * 72 - 12, 0), size=9, color=bar.ink, **words)


def _legend(why: ExplainReport, palette: Palette) -> Iterator[Patch]:
    named = list(zip(why.bill.parts(), part_colours(palette), strict=True))
    if not why.bill.rounds:
        named = [("in use", palette.allocated[2])]
    for name, colour in (*named, ("free", palette.sand)):
        yield Patch(facecolor=colour, edgecolor=palette.grey, linewidth=0.6, label=name)


def _pieces(why: ExplainReport) -> tuple[str, ...]:
    """Why a request that lacks no bytes failed: what is free is not one piece."""
    if why.bill.missing_bytes or why.fits is not False:
        return ()
    return (f"The largest free block has {size_text(why.largest_hole_bytes)}.",)


def _write(figure: Any, why: ExplainReport, title: str, head: list[str], palette: Palette) -> None:
    """The title, the cause, the key and what the lines are compared with."""
    high = figure.get_size_inches()[1]
    left = 0.3 / _WIDE
    style: dict[str, Any] = {"va": "top"}
    name = sentence(title, 80)
    figure.text(left, 1 - 0.16 / high, name, color=palette.ink, size=13, weight="bold", **style)
    for number, line in enumerate(head):
        y = 1 - (0.5 + 0.2 * number) / high
        figure.text(left, y, line, color=palette.grey, size=9.5, **style)
    figure.legend(
        handles=list(_legend(why, palette)),
        loc="upper left",
        bbox_to_anchor=(_LEFT / _WIDE, 1 - (0.66 + 0.2 * len(head)) / high),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        labelcolor=palette.ink,
        borderaxespad=0,
        borderpad=0,
    )
    notes = " ".join((*_pieces(why), *why.bill.notes()))
    figure.text(left, 0.3 / high, notes, color=palette.grey, size=8.5, **style)
