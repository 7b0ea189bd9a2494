# SPDX-License-Identifier: Apache-2.0
"""Documents as terminal text: wrapped paragraphs, aligned tables, curves in block characters.

Widths are in terminal cells. Colour is added only on a terminal (`Console`), never in pipes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TextIO

from neutracer.render.document import (
    TERMINAL_STYLES,
    Block,
    Cell,
    Copyable,
    Document,
    Entry,
    Figure,
    Findings,
    Heading,
    KeyValues,
    Note,
    Paragraph,
    Place,
    Table,
    clean,
    display_width,
    pad,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)
from neutracer.units import format_bytes, format_count

# ---- Columns -----------------------------------------------------------------------------

# Figures are aligned at the decimal point; a place takes two columns, function and location; only
# a last column of plain text wraps. Copyable text is never cut: without room for it, it goes on
# lines of its own.

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
    """Function and location in `width` columns, the location after `function_width`."""
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
    """The columns for the functions of some places in `width`; locations are cut only if the
    functions would have less than `_LEAST_NAME`."""
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
    """One column's cells as texts; `inset` is the indent of its heading above the widest figure."""

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
    """Lay rows out in `width` columns: the headings with their first columns, and the lines."""
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


# ---- Text --------------------------------------------------------------------------------

# Layout yields lines of spans with roles ("strong", "muted", a severity); plain text ignores the
# roles. Only copyable text exceeds the width.

WIDTH = 100

# Narrower than this the columns would only be ellipses.
_LEAST_WIDTH = 40

# The left column: the longest severity, and a space.
_SEVERITY_WIDTH = 9

# Where the right column of notes begins, as a share of the notes' width, and the tab
# stops to which a longer sentence pushes it.
_ASIDE_SHARE = (52, 91)
_ASIDE_STOP = 4

# The least that is left of that column, and what a function's name gets where the location
# beside it is long.
_LEAST_ASIDE = 4
_SHORT_NAME = 16


class Span(NamedTuple):
    """A piece of a line. Role: "", "strong", "muted", or the word of a severity."""

    text: str
    role: str = ""


Line = tuple[Span, ...]


def render_text(document: Document, width: int = WIDTH, max_lines: int | None = None) -> str:
    """Write a document as plain text.

    Args:
        document: The page.
        width: The columns that no line goes beyond, at least 40.
        max_lines: The most lines; if cut, the last one gives the number of missing lines and the
            command that shows them. None for all.

    Returns:
        Lines without trailing spaces, joined by newlines, without one at the end.

    Example:
        >>> print(render_text(Document("run.pickle", ("1 device", "complete"))))
        run.pickle   1 device · complete
    """
    lines = layout(document, width, max_lines)
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def layout(document: Document, width: int = WIDTH, max_lines: int | None = None) -> list[Line]:
    """Lay a document out as lines of spans; the arguments are those of `render_text`."""
    width = max(width, _LEAST_WIDTH)
    lines = _title_lines(document, width)
    previous: Block | None = None
    for block in document.blocks:
        if lines and not isinstance(previous, Heading):
            lines.append(())
        lines += _block_lines(block, width)
        previous = block
    lines = [_cut(line, width) for line in lines]
    if max_lines is not None and len(lines) > max_lines:
        missing = format_count(len(lines) - max_lines + 1, "more line")
        rest = f": {sentence(document.more)}" if document.more else ""
        lines[max_lines - 1 :] = [_cut((Span(f"… {missing}{rest}", "muted"),), width)]
    return lines


def _cut(line: Line, width: int) -> Line:
    """A line that is still too wide ends in an ellipsis, unless it is to be copied."""
    if any(isinstance(span.text, Copyable) for span in line):
        return line
    room = width
    kept: list[Span] = []
    for span in line:
        if display_width(span.text) > room:
            return (*kept, Span(shorten_right(span.text, max(room, 1)), span.role))
        kept.append(span)
        room -= display_width(span.text)
    return tuple(kept)


def _title_lines(document: Document, width: int) -> list[Line]:
    title = shorten_left(clean(document.title), width * 3 // 5)
    facts = [sentence(fact) for fact in document.facts]
    if not facts:
        return [(Span(title, "strong"),)] if title else []
    indent = display_width(title) + GAP if title else 0
    rows = _joined(facts, " · ", width - indent)
    first: Line = (
        Span(title, "strong"),
        Span(" " * (indent - display_width(title)) + rows[0], "muted"),
    )
    return [first, *((Span(" " * indent + row, "muted"),) for row in rows[1:])]


def _joined(parts: list[str], separator: str, width: int) -> list[str]:
    """Parts joined into lines; a part stays whole where it fits a line."""
    rows: list[str] = []
    for part in parts:
        if rows and display_width(rows[-1] + separator + part) <= width:
            rows[-1] += separator + part
        else:
            rows += wrap(part, width)
    return rows


def _block_lines(block: Block, width: int) -> list[Line]:
    if isinstance(block, Findings):
        return _findings_lines(block, width)
    if isinstance(block, Table):
        return _table_lines(block, width)
    if isinstance(block, KeyValues):
        return _table_lines(Table(block.title, block.pairs), width)
    if isinstance(block, Heading):
        return [(Span(row, "strong"),) for row in wrap(sentence(block.text), width)]
    return _paragraph_lines(block, width)


def _paragraph_lines(block: Paragraph, width: int) -> list[Line]:
    if isinstance(block.text, Copyable):
        return [(Span(Copyable(clean(block.text))),)]
    return [(Span(row),) for row in wrap(sentence(block.text), width)]


def _table_lines(table: Table, width: int) -> list[Line]:
    heads, rows = table_lines(table.rows, table.columns, width)
    lines = _heading_lines(sentence(table.title), heads, width)
    lines += [(Span(row),) for row in rows]
    for note in table.notes:
        lines += [(Span("  " + row),) for row in wrap(sentence(note), width - 2)]
    return lines


def _heading_lines(title: str, heads: list[tuple[int, str]], width: int) -> list[Line]:
    """The title, and the headings of the columns on its line where there is room."""
    titles: list[Line] = [(Span(row, "strong"),) for row in wrap(title, width) if row]
    if not heads:
        return titles
    text = ""
    shared = len(titles) <= 1 and display_width(title) < heads[0][0]
    start = display_width(title) if shared else 0
    for begin, heading in heads:
        text = pad(text, begin - start) + heading
    if shared:
        return [(Span(title, "strong"), Span(text, "muted"))]
    return [*titles, (Span(text, "muted"),)]


def _findings_lines(block: Findings, width: int) -> list[Line]:
    lines: list[Line] = []
    for entry in block.entries:
        if lines:
            lines.append(())
        lines += _headline(entry, width)
        lines += _notes_lines(entry.notes, width - _SEVERITY_WIDTH)
    return lines


def _headline(entry: Entry, width: int) -> list[Line]:
    """Severity, the finding, and its event at the right edge."""
    word = Span(pad(entry.severity.value.upper(), _SEVERITY_WIDTH), entry.severity.value)
    when = sentence(entry.when, width // 3)
    room = width - _SEVERITY_WIDTH
    rows = wrap(sentence(entry.headline), room - (display_width(when) + GAP if when else 0))
    first: Line = (word, Span(rows[0], "strong"))
    if when:
        first += (Span(" " * (room - display_width(rows[0]) - display_width(when))),)
        first += (Span(when, "muted"),)
    indent = Span(" " * _SEVERITY_WIDTH)
    return [first, *((indent, Span(row, "strong")) for row in rows[1:])]


def _notes_lines(notes: tuple[Note, ...], width: int) -> list[Line]:
    column = width * _ASIDE_SHARE[0] // _ASIDE_SHARE[1]
    places = [note.place for note in notes if note.place and note.place.location]
    if places:
        # A long location moves the column of all to the left.
        names = min(max(len(clean(place.function)) for place in places), _SHORT_NAME)
        column = max(min(column, width - names - GAP - location_width(places)), _LEAST_ASIDE)
    names = function_width(places, width - column)
    rows = [row for note in notes for row in _note_rows(note, names, column, width)]
    indent = " " * _SEVERITY_WIDTH
    return [
        (Span(Copyable(indent + row) if isinstance(row, Copyable) else indent + row),)
        for row in rows
    ]


def _note_rows(note: Note, names: int, column: int, width: int) -> list[str]:
    """The sentence, and in the right column its place or detail."""
    if isinstance(note.detail, Copyable):
        return _ending_in(note, width)
    if isinstance(note.text, Copyable):
        rows: list[str] = [Copyable(clean(note.text))]
    else:
        rows = wrap(sentence(note.text), width)
    if note.place:
        aside = [place_text(note.place, names, width - column)]
    elif note.detail:
        aside = wrap(sentence(note.detail), width - column)
    else:
        return rows
    if isinstance(rows[-1], Copyable) and display_width(rows[-1]) + GAP > column:
        return [*rows, *(" " * column + row for row in aside)]
    stops = -(-(display_width(rows[-1]) + GAP) // _ASIDE_STOP) * _ASIDE_STOP
    if stops > column and stops + max(map(display_width, aside)) <= width:
        column = stops
    if display_width(rows[-1]) + GAP > column:
        rows.append("")
    rows[-1] = pad(rows[-1], column) + aside[0]
    return rows + [" " * column + row for row in aside[1:]]


def _ending_in(note: Note, width: int) -> list[str]:
    """The sentence with what is to be copied after it, or below it where that has no room."""
    rows, copied = wrap(f"{sentence(note.text)}:", width), clean(note.detail)
    whole = f"{rows[-1]} {copied}"
    if display_width(whole) <= width:
        return [*rows[:-1], whole]
    return [*rows, Copyable(f"  {copied}")]


# ---- Terminal ----------------------------------------------------------------------------

# Colours need rich (the extra `cli`) and a terminal, and respect NO_COLOR and TERM=dumb.

# Typography that an encoding may lack, and its replacement.
_PLAINER = str.maketrans({"·": "-", "…": "~", "│": "|"})


def show(document: Document, stream: TextIO | None = None, max_lines: int | None = None) -> None:
    """Print a document to a stream (None: standard output); `max_lines` as for `render_text`."""
    stream = sys.stdout if stream is None else stream
    show_lines(layout(document, terminal_width(stream), max_lines), stream)


def terminal_width(stream: TextIO) -> int:
    """The columns that a page has on a stream: a terminal's own, else 100."""
    return shutil.get_terminal_size().columns if stream.isatty() else WIDTH


def show_lines(lines: list[Line], stream: TextIO) -> None:
    """Print laid-out lines."""
    if not (stream.isatty() and colour_wanted() and _show_rich(lines, stream)):
        text = "\n".join("".join(span.text for span in line).rstrip() for line in lines)
        write(text + "\n", stream)


def write(text: str, stream: TextIO) -> None:
    """Write text to a stream whose encoding may lack some of its characters."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plainer = text.translate(_PLAINER)
        text = plainer.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)


def colour_wanted() -> bool:
    """Whether the user wants colours, not plain text."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show_rich(lines: list[Line], stream: TextIO) -> bool:
    """Print lines in colour; False where rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return False
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    # In one write: several ranks may share the terminal.
    console.print(rich_text(lines), soft_wrap=True)
    return True


def rich_text(lines: list[Line]) -> Any:
    """Lines as one `Text` of rich, which must be installed."""
    from rich.text import Text

    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(span.text, TERMINAL_STYLES.get(span.role))
    return text


# ---- Curve -------------------------------------------------------------------------------

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
    """Draw bytes over time in block characters (`plain`: ASCII), oldest at the left.

    Args:
        inner: Drawn as solid columns.
        outer: Of the same length; the part above `inner` is shaded.
        top: The bytes at the upper edge.
        width: Total columns.
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


# ---- Strip -------------------------------------------------------------------------------

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
    folded = _folded_columns(values)
    step = _WIDTH / len(folded)
    points = []
    for column, value in enumerate(folded):
        y = round(_HEIGHT - (max(value - base, 0)) / (top - base) * (_HEIGHT - 1), 1)
        points.append(f"V{y:g}H{round((column + 1) * step, 1):g}")
    return f'<path d="M0,{_HEIGHT}{"".join(points)}V{_HEIGHT}Z" fill="{fill}" stroke="{stroke}"/>'


def _folded_columns(values: Sequence[int]) -> list[int]:
    """The most of each column of the picture."""
    count = len(values)
    columns = min(count, _COLUMNS)
    bounds = [column * count // columns for column in range(columns + 1)]
    return [max(values[low:high]) for low, high in pairwise(bounds)]
