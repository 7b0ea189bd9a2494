# SPDX-License-Identifier: Apache-2.0
"""The cells of a table as text of equal width, column by column.

Figures are aligned at the decimal point and units below units; places take two columns,
function and location; among plain texts only the last column wraps. What is to be copied is
never cut: where a last column of such texts, or of places, has no room, they have lines of their
own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neutracer.render.document import Cell, Copyable, Figure, Place
from neutracer.render.escape import (
    clean,
    display_width,
    pad,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)

__all__ = ["GAP", "function_width", "location_width", "place_text", "table_lines"]

GAP = 3

# Two columns of figures with headings stand further apart, as their headings do.
_HEADED_GAP = 4

# What a text and a place may take of a row where more columns follow, and the least that
# the last column gets.
_MOST_TEXT = 40
_MOST_PLACE = 56
_LEAST_FLOW = 16
_LEAST_NAME = 8

# The column at which a last column without room begins, on lines of its own.
_HUNG = 2 * GAP


def place_text(place: Place, function_width: int, width: int) -> str:
    """Function and location, the location beginning at one column for all.

    Args:
        place: Where in a program.
        function_width: Columns of the function's name; a longer one is cut.
        width: Columns of all, so that the location is cut at its left.
    """
    if not place.location:
        return shorten_right(clean(place.function), max(width, _LEAST_NAME))
    function = pad(shorten_right(clean(place.function), function_width), function_width)
    room = max(width - function_width - GAP, _LEAST_FLOW)
    location = clean(place.location)
    if display_width(location) > room:
        # Where it was called from says less than the line itself.
        location = shorten_left(clean(replace(place, caller="").location), room)
    return f"{function}{' ' * GAP}{location}" if function_width else location


def location_width(places: Sequence[Place]) -> int:
    """The columns of the longest location without the line that it was called from."""
    plain = (replace(place, caller="").location for place in places)
    return max((display_width(clean(location)) for location in plain), default=0)


def function_width(places: Sequence[Place], width: int) -> int:
    """The columns for the functions of some places that have `width` in all.

    A location says more than a function: it is cut only where the function would have less
    than `_LEAST_NAME`.
    """
    named = [place for place in places if place.location]
    names = max((display_width(clean(place.function)) for place in named), default=0)
    files = max((display_width(clean(place.location)) for place in named), default=0)
    names = min(names, max(width - GAP - files, (width - GAP) // 2))
    return min(names, max(width - GAP - location_width(named), _LEAST_NAME))


def _least_width(places: Sequence[Place]) -> int:
    """The columns that some places need with their functions' names cut and their files not."""
    bare = [display_width(clean(place.function)) for place in places if not place.location]
    located = [place for place in places if place.location]
    return max([*bare, _LEAST_NAME + GAP + location_width(located) if located else 0])


class _Column:
    """One column: its cells as texts, and where they begin.

    `inset` is how far right of the column's beginning its heading is, so that it is
    above the widest figure.
    """

    def __init__(self, cells: Sequence[Cell], heading: str) -> None:
        self.cells = cells
        self.heading = sentence(heading, _MOST_TEXT)
        self.is_figures = any(isinstance(cell, Figure) for cell in cells)
        copied = (display_width(clean(cell)) for cell in cells if isinstance(cell, Copyable))
        places = [cell for cell in cells if isinstance(cell, Place)]
        self.whole_width = max([*copied, _least_width(places)])
        self.texts = _figure_texts(cells) if self.is_figures else []
        self.width = max(map(display_width, [*self.texts, self.heading]), default=0)
        self.inset = 0

    def widen(self, width: int) -> None:
        """Give figures `width` columns; they are at the right of them."""
        self.inset = width - self.width
        self.width = width
        self.texts = [" " * (width - display_width(text)) + text for text in self.texts]

    def fit(self, room: int, *, flows: bool) -> None:
        """Lay out what is not figures, in at most `room` columns."""
        if self.is_figures:
            return
        self.texts = []
        places = [cell for cell in self.cells if isinstance(cell, Place)]
        place_room = room if flows else min(room, _MOST_PLACE)
        names = function_width(places, place_room)
        for cell in self.cells:
            if isinstance(cell, Place):
                self.texts.append(place_text(cell, names, place_room))
            elif isinstance(cell, Copyable):
                self.texts.append(clean(cell))
            else:
                self.texts.append(sentence(str(cell), None if flows else min(room, _MOST_TEXT)))
        self.width = max(map(display_width, [*self.texts, self.heading]), default=0)


def _figure_texts(cells: Sequence[Cell]) -> list[str]:
    """Figures aligned at the decimal point, their units below each other."""
    figures = [cell for cell in cells if isinstance(cell, Figure)]
    wholes, fractions, units = 0, 0, 0
    for figure in figures:
        whole, fraction, unit = _figure_parts(figure)
        wholes = max(wholes, display_width(whole))
        fractions = max(fractions, display_width(fraction))
        units = max(units, display_width(unit))
    texts = []
    for cell in cells:
        if isinstance(cell, Figure):
            whole, fraction, unit = _figure_parts(cell)
            text = " " * (wholes - display_width(whole)) + whole + pad(fraction, fractions)
            texts.append(f"{text} {pad(unit, units)}" if units else text)
        else:
            texts.append(sentence(str(cell), _MOST_TEXT))
    width = max(map(display_width, texts), default=0)
    return [" " * (width - display_width(text)) + text for text in texts]


def _figure_parts(figure: Figure) -> tuple[str, str, str]:
    whole, point, rest = sentence(figure.number, _MOST_TEXT).partition(".")
    return whole, point + rest, sentence(figure.unit, _MOST_TEXT)


def table_lines(
    rows: Sequence[Sequence[Cell]], headings: Sequence[str], width: int
) -> tuple[list[tuple[int, str]], list[str]]:
    """Lay rows out in at most `width` columns.

    Args:
        rows: Cells, the same number in every row.
        headings: One a column, or none.
        width: Columns from the left edge; the rows are indented within them.

    Returns:
        The headings with the columns at which they begin, and the lines of the rows.
    """
    count = len(rows[0]) if rows else len(headings)
    columns = [
        _Column([row[index] for row in rows], headings[index] if headings else "")
        for index in range(count)
    ]
    if headings:
        widest = max((c.width for c in columns if c.is_figures), default=0)
        for column in columns:
            if column.is_figures:
                column.widen(widest)
    if columns and not columns[-1].heading and not any(columns[-1].cells):
        columns.pop()
    begins = _place_columns(columns, headed=bool(headings), width=width)
    hangs = len(columns) > 1 and begins[-1] + columns[-1].whole_width > width
    hung = columns.pop() if hangs else None
    if hung is not None:
        begins = _place_columns(columns, headed=bool(headings), width=width)
        hung.fit(max(width - _HUNG, _LEAST_FLOW), flows=True)
    heads = [
        (begin + column.inset, column.heading)
        for begin, column in zip(begins, columns, strict=True)
        if column.heading
    ]
    lines = []
    for row in range(len(rows)):
        lines += _row_lines(columns, begins, row, width)
        lines += _hung_lines(hung, row, width) if hung is not None else []
    return heads, lines


def _place_columns(columns: Sequence[_Column], *, headed: bool, width: int) -> list[int]:
    begins = []
    begin = 2 if headed else GAP
    for index, column in enumerate(columns):
        if index:
            begin += _HEADED_GAP if headed and column.is_figures else GAP
        later = sum(_HEADED_GAP + more.width for more in columns[index + 1 :] if more.is_figures)
        column.fit(max(width - begin - later, _LEAST_FLOW), flows=index == len(columns) - 1)
        begins.append(begin)
        begin += column.width
    return begins


def _hung_lines(column: _Column, row: int, width: int) -> list[str]:
    """The cell of a last column without room, below its row."""
    indent, text = " " * _HUNG, column.texts[row]
    if not text:
        return []
    if isinstance(column.cells[row], Copyable):
        return [Copyable(indent + text)]
    if isinstance(column.cells[row], Place):
        return [indent + text]
    return [indent + line for line in wrap(text, max(width - len(indent), _LEAST_FLOW)) if line]


def _row_lines(
    columns: Sequence[_Column], begins: Sequence[int], row: int, width: int
) -> list[str]:
    """The lines of one row: one, or more where the text of its last column flows."""
    line = ""
    for column, begin in zip(columns[:-1], begins[:-1], strict=True):
        line = pad(line, begin) + column.texts[row]
    begin = begins[-1]
    last = columns[-1].texts[row]
    if isinstance(columns[-1].cells[row], Copyable):
        return [Copyable(pad(line, begin) + last) if last else line]
    flowing = isinstance(columns[-1].cells[row], str) and not columns[-1].is_figures
    texts = wrap(last, max(width - begin, _LEAST_FLOW)) if flowing else [last]
    return [(pad(line, begin) + texts[0]).rstrip(), *(" " * begin + more for more in texts[1:])]
