# SPDX-License-Identifier: Apache-2.0
"""Documents as terminal text (wrapped paragraphs, aligned tables, curves of blocks) and Markdown.

Widths are in terminal cells. Colour is added only on a terminal (`Console`), never in pipes.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, TextIO, TypeVar

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

# Figures are aligned at the decimal point; a place takes two columns, function and location. Text
# wraps in its column. A place or a copyable text in the last column has a line of its own below
# the row where it would have to be cut, so that a wider page never shows less than a narrower one.

GAP = 3

# Two columns of figures with headings stand further apart, as their headings do, and all columns
# closer where the row has no room otherwise.
_HEADED_GAP = 4
_CLOSE_GAP = 2

# The most columns of a text and a place where more columns follow, and the least of a text.
_MOST_TEXT = 40
_MOST_PLACE = 56
_LEAST_FLOW = 16
_LEAST_NAME = 8

# The column at which a last cell without room begins, on lines of its own.
_HUNG = 2 * GAP


def _place_text(place: Place, names: int = 0) -> str:
    """Function and location, the location after `names` columns."""
    function, location = clean(place.function), clean(place.location)
    if not (location and (function or names)):
        return function or location
    return f"{pad(function, names)}{' ' * GAP}{location}"


def _cut_place(place: Place, width: int) -> str:
    """Function and location in `width` columns; the line itself says more than its caller."""
    text = _place_text(place)
    if display_width(text) <= width or not place.location:
        return shorten_right(text, width)
    function, location = clean(place.function), clean(replace(place, caller="").location)
    room = max(width - GAP - display_width(location), _LEAST_NAME)
    function = shorten_right(function, room)
    gap = " " * GAP if function else ""
    return f"{function}{gap}{shorten_left(location, width - display_width(function + gap))}"


class _Column:
    """One column's cells; `inset` is the indent of its heading above the widest figure."""

    def __init__(self, cells: Sequence[Cell], heading: str) -> None:
        self.cells = cells
        self.heading = sentence(heading, _MOST_TEXT)
        self.is_figures = any(isinstance(cell, Figure) for cell in cells)
        self.texts = _figure_texts(cells) if self.is_figures else [_cell_text(c) for c in cells]
        self.width = max(map(display_width, [*self.texts, self.heading]), default=0)
        self.inset = 0
        self._names = 0

    def widen(self, width: int) -> None:
        """Give figures `width` columns; they are at the right of them."""
        self.inset = width - self.width
        self.width = width
        self.texts = [" " * (width - display_width(text)) + text for text in self.texts]

    def narrow(self, room: int) -> None:
        """Lay out a column that others follow in `room` columns."""
        if not self.is_figures:
            places = any(isinstance(cell, Place) for cell in self.cells)
            self.width = min(
                self.width, max(room, _LEAST_FLOW), _MOST_PLACE if places else _MOST_TEXT
            )

    def align(self, room: int) -> None:
        """Put the locations of the last column, as far as they have room, below each other."""
        places = [cell for cell in self.cells if isinstance(cell, Place) and cell.location]
        sizes = [
            (display_width(clean(p.function)), display_width(clean(p.location))) for p in places
        ]
        fitting = [name for name, location in sizes if name + GAP + location <= room]
        self._names = max(fitting, default=0)

    def lines(self, row: int, room: int) -> list[str]:
        """A cell that wraps or is cut, in `room` columns."""
        cell, text = self.cells[row], self.texts[row]
        if self.is_figures or display_width(text) <= room:
            return [text]
        return [_cut_place(cell, room)] if isinstance(cell, Place) else wrap(text, room)

    def last_lines(self, row: int, room: int, width: int) -> tuple[list[str], list[str]]:
        """A cell of the last column in `room` columns: beside its row, and below it."""
        cell, text = self.cells[row], self.texts[row]
        if isinstance(cell, Place):
            aligned = _place_text(cell, self._names) if cell.location else text
            text = aligned if display_width(aligned) <= room else text
        if display_width(text) <= room or self.is_figures:
            return [text], []
        below = max(width - _HUNG, _LEAST_FLOW)
        if isinstance(cell, Copyable):
            return [""], [Copyable(" " * _HUNG + text)]
        if isinstance(cell, Place):
            return [""], [" " * _HUNG + _cut_place(cell, below)]
        if room < _LEAST_FLOW:
            return [""], [" " * _HUNG + line for line in wrap(text, below)]
        return wrap(text, room), []


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, Place):
        return _place_text(cell)
    return clean(cell) if isinstance(cell, Copyable) else sentence(str(cell))


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
    if columns and not columns[-1].heading and not any(columns[-1].cells):
        columns.pop()
    begins = _place_columns(columns, headed=bool(headings), width=width)
    heads = [
        (begin + column.inset, column.heading)
        for begin, column in zip(begins, columns, strict=True)
        if column.heading
    ]
    lines = [line for row in range(len(rows)) for line in _row_lines(columns, begins, row, width)]
    return heads, lines


def _place_columns(columns: Sequence[_Column], *, headed: bool, width: int) -> list[int]:
    """The first column of each; figures under headings are equally wide where there is room."""
    *others, last = columns or [_Column((), "")]
    gaps = [_HEADED_GAP if headed and column.is_figures else GAP for column in columns]
    widest = max((column.width for column in columns if column.is_figures), default=0)
    wide = [widest if headed and one.is_figures else min(one.width, _MOST_PLACE) for one in others]
    least = max(_LEAST_FLOW, display_width(last.heading))
    if last.is_figures:
        least = widest if headed else last.width
    begin = 2 if headed else GAP
    if begin + sum(wide) + sum(gaps[1:]) + least > width:
        gaps = [_CLOSE_GAP] * len(columns)
    elif headed:
        for column in columns:
            if column.is_figures:
                column.widen(widest)
    least = last.width if last.is_figures else least
    # Each column of texts leaves the others what they need at least.
    needs = [
        one.width if one.is_figures or one is last else min(one.width, _LEAST_FLOW)
        for one in columns
    ]
    fixed = begin + sum(gaps[1:]) + least + sum(needs[:-1])
    begins = []
    for index, column in enumerate(columns):
        begin += gaps[index] if index else 0
        begins.append(begin)
        if column is not last:
            column.narrow(width - fixed + needs[index])
            fixed += column.width - needs[index]
        begin += column.width
    if columns:
        last.align(width - begins[-1])
    return begins


def _row_lines(
    columns: Sequence[_Column], begins: Sequence[int], row: int, width: int
) -> list[str]:
    """The lines of one row: one, or more where a text flows or has no room beside the others."""
    cells = [column.lines(row, column.width) for column in columns[:-1]]
    last, below = columns[-1].last_lines(row, width - begins[-1], width)
    lines = []
    for number in range(max(map(len, [*cells, last]))):
        line = ""
        for texts, begin in zip([*cells, last], begins, strict=True):
            if number < len(texts) and texts[number]:
                line = pad(line, begin) + texts[number]
        copied = not number and isinstance(columns[-1].cells[row], Copyable) and last[0]
        lines.append(Copyable(line) if copied else line)
    return [*lines, *below]


# ---- Text --------------------------------------------------------------------------------

# Layout yields lines of spans with roles ("strong", "muted", a severity); plain text ignores the
# roles. Only copyable text exceeds the width.

WIDTH = 100

# Of a pipe or a file, unless COLUMNS is set.
_PIPED_WIDTH = 80

# Narrower than this the columns would only be ellipses.
_LEAST_WIDTH = 40

# The left column: the longest severity, and a space.
_SEVERITY_WIDTH = 9


class Span(NamedTuple):
    """A piece of a line. Role: "", "strong", "muted", or the word of a severity."""

    text: str
    role: str = ""


Line = tuple[Span, ...]


def render_text(document: Document, width: int = WIDTH, max_lines: int | None = None) -> str:
    """Write a document as plain text."""
    return "\n".join(map(line_text, layout(document, width, max_lines)))


def layout(document: Document, width: int = WIDTH, max_lines: int | None = None) -> list[Line]:
    """Lay a document out as lines of spans; the arguments are those of `render_text`."""
    width = max(width, _LEAST_WIDTH)
    answer, page = document.arranged()
    parts = [] if answer is None else [_block_lines(answer, width)]
    parts.append(_title_lines(page, width))
    previous: Block | None = None
    for block in page.blocks:
        shown = _block_lines(block, width)
        if isinstance(previous, Heading):
            parts[-1] += shown
        else:
            parts.append(shown)
        previous = block
    lines = list(chain.from_iterable(((), *part) for part in parts if part))[1:]
    lines = [_cut(line, width) for line in lines]
    if max_lines is not None and len(lines) > max_lines:
        kept = max_lines - 1
        # A table's head without a row says nothing.
        kept = next((at + 1 for at in range(max(kept - 3, 0), kept) if not lines[at]), kept)
        missing = format_count(len(lines) - kept, "more line")
        rest = f": {sentence(document.more)}" if document.more else ""
        lines[kept:] = [_cut((Span(f"… {missing}{rest}", "muted"),), width)]
    return lines


# The answer takes this many lines.
_BRIEF_LINES = 5

#: Budgets of a page: only its answer, and all of it.
BRIEF, WHOLE = 0.0, math.inf

# Of the line that says how to get more.
_MORE_BYTES = 80

Part = TypeVar("Part", Line, str)


def fitted(
    document: Document, budget: float | None, laid: Callable[[Document], list[Part]]
) -> tuple[list[Part], str]:
    """As much of a page as fits a budget, its beginning first."""
    short = laid(document.in_short())
    if budget is None:
        return short, ""
    whole = laid(document)
    if fitting(whole, budget) == len(whole):
        return whole, ""
    count = fitting(short, budget - _MORE_BYTES)
    missing = format_count(len(whole) - count, "more line")
    return short[:count], f"… {missing}: --full, or a larger --budget"


def fitting(lines: Sequence[Line | str], budget: float) -> int:
    """The number of lines that fit a budget of bytes; empty ones at their end are left out."""
    texts = list(map(line_text, lines))
    ends = accumulate(len(text.encode("utf-8", "replace")) + 1 for text in texts)
    count = sum(end <= budget for end in ends)
    while count and not texts[count - 1]:
        count -= 1
    return count


def line_text(line: Line | str) -> str:
    """A line as plain text, without trailing spaces."""
    return line if isinstance(line, str) else "".join(span.text for span in line).rstrip()


def text_lines(document: Document, width: int, budget: float | None) -> list[Line]:
    """Lay out as much of a document as fits a budget.

    Args:
        width: As for `render_text`.
        budget: As for `fitted`; `BRIEF` is the answer in five lines: verdict, line of code, what
            to do, title. A page without an answer begins with its title.
    """
    if budget != BRIEF:
        lines, more = fitted(document, budget, lambda page: layout(page, width))
        return [*lines, (Span(more, "muted"),)] if more else lines
    answer, page = document.in_short().arranged(brief=True)
    lines = [] if answer is None else _block_lines(answer, width)
    if not lines:
        lines = [line for line in layout(page, width) if line]
    elif len(lines) < _BRIEF_LINES:
        lines += _title_lines(page, width)[:1]
    shown = [_cut(line, width) for line in lines[:_BRIEF_LINES]]
    if len(lines) > _BRIEF_LINES:
        shown[-1] = _cut((*shown[-1], Span(" …")), width)
    return shown


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
        for note in entry.notes + entry.advice:
            lines += _note_lines(note, width - _SEVERITY_WIDTH)
    return lines


def _headline(entry: Entry, width: int) -> list[Line]:
    """Severity and the finding, with its event after it or on the next line."""
    room = width - _SEVERITY_WIDTH
    word = Span(pad(entry.severity.value.upper(), _SEVERITY_WIDTH), entry.severity.value)
    indent = Span(" " * _SEVERITY_WIDTH)
    rows = wrap(sentence(entry.headline), room)
    lines: list[Line] = [(word, Span(rows[0], "strong"))]
    lines += [(indent, Span(row, "strong")) for row in rows[1:]]
    for row in wrap(sentence(entry.when), room) if entry.when else ():
        gap = Span(" " * GAP)
        if sum(display_width(span.text) for span in (*lines[-1], gap)) + len(row) <= width:
            lines[-1] += (gap, Span(row, "muted"))
        else:
            lines.append((indent, Span(row, "muted")))
    return lines


def _note_lines(note: Note, width: int) -> list[Line]:
    """The sentence; what is to be copied is never cut, and a setting alone on its line."""
    if isinstance(note.text, Copyable):
        ending = _ending(note, width)
        rows = [Copyable(clean(note.text)), *(wrap(ending, width) if ending else ())]
    elif isinstance(note.detail, Copyable) and not note.place:
        rows, copied = wrap(sentence(note.opening), width), clean(note.detail)
        if display_width(f"{rows[-1]} {copied}") <= width:
            rows[-1] += f" {copied}"
        else:
            rows.append(Copyable(f"  {copied}"))
    else:
        rows = wrap(f"{sentence(note.opening)} {_ending(note, width)}", width)
    indent = " " * _SEVERITY_WIDTH
    # A place is broken nowhere: its spaces are those that a clean text can't have.
    texts = [(indent + row).replace(_UNBROKEN, " ") for row in rows]
    return [
        (Span(Copyable(text) if isinstance(row, Copyable) else text),)
        for row, text in zip(rows, texts, strict=True)
    ]


_UNBROKEN = "\xa0"


def _ending(note: Note, width: int) -> str:
    """The place or the detail of a note."""
    if note.place is None:
        return sentence(note.detail)
    text = clean(str(note.place))
    if display_width(text) > width and note.place.location:
        location = shorten_left(clean(replace(note.place, caller="").location), width * 3 // 4)
        room = max(width - display_width(location) - 3, 1)
        text = f"{shorten_right(clean(note.place.function), room)} ({location})"
    return shorten_right(text, width).replace(" ", _UNBROKEN)


# ---- Terminal ----------------------------------------------------------------------------

# Colours need rich (the extra `cli`) and a terminal, and respect NO_COLOR and TERM=dumb.

# Typography that an encoding may lack, and its replacement.
_PLAINER = str.maketrans({"·": "-", "…": "~", "│": "|"})


def show(document: Document, stream: TextIO | None = None, max_lines: int | None = None) -> None:
    """Print a document to a stream (None: standard output); `max_lines` as for `render_text`."""
    stream = sys.stdout if stream is None else stream
    show_lines(layout(document, terminal_width(stream), max_lines), stream)


def terminal_width(stream: TextIO) -> int:
    """The columns that a page has on a stream: those of COLUMNS, else a terminal's own, else 80,
    so that a pager on the narrowest of usual terminals breaks no word."""
    return shutil.get_terminal_size().columns if stream.isatty() else _columns()


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and int(text) else _PIPED_WIDTH


def show_lines(lines: list[Line], stream: TextIO) -> None:
    """Print laid-out lines."""
    if not (stream.isatty() and colour_wanted() and _show_rich(lines, stream)):
        write("\n".join(map(line_text, lines)) + "\n", stream)


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
        outer: Of the same length; the part above `inner` is shaded.
        top: The bytes at the upper edge.
        plain: Only ASCII.
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
    return [max(values[a:b]) for a, b in pairwise(edges)]


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
        outer: Of the same length or empty; an outline around it: what was reserved.
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
    folded = _folded(values, min(len(values), _COLUMNS))
    step = _WIDTH / len(folded)
    points = []
    for column, value in enumerate(folded):
        y = round(_HEIGHT - (max(value - base, 0)) / (top - base) * (_HEIGHT - 1), 1)
        points.append(f"V{y:g}H{round((column + 1) * step, 1):g}")
    return f'<path d="M0,{_HEIGHT}{"".join(points)}V{_HEIGHT}Z" fill="{fill}" stroke="{stroke}"/>'


# ---- Markdown ----------------------------------------------------------------------------


# Columns of a fence that a comment shows without scrolling.
_FENCE_WIDTH = 100

# Characters that are markup in a sentence; an underscore inside a word is none. A mention, which
# would notify its account, is none inside of a code span.
_MARKUP = re.compile(r"@\w[\w/-]*|[\\`*<>\[\]~|]|(?<!\w)[_#]|_(?!\w)")


def render_markdown(document: Document, budget: float | None = WHOLE) -> str:
    """Write a document as Markdown: its answer, its title, and below them the rest.

    Example:
        >>> print(render_markdown(Document("run.pickle", ("1 device", "complete"))))
        **run.pickle** · 1 device · complete
    """
    if budget == BRIEF:
        return "\n".join(_lines(document.in_short(), brief=True))
    lines, more = fitted(document, budget, _lines)
    return "\n".join([*lines, "", more] if more else lines)


def _lines(document: Document, *, brief: bool = False) -> list[str]:
    """A page in lines, of which a fence is one."""
    answer, page = document.arranged(brief=brief)
    parts = [] if answer is None else [_block(answer)]
    title = [f"**{_text(page.title)}**"] if page.title else []
    parts.append(" · ".join([*title, *map(_text, page.facts)]))
    if not brief:
        parts += map(_block, page.blocks)
    shown = ([part] if part.startswith("```") else part.split("\n") for part in parts if part)
    return list(chain.from_iterable(("", *lines) for lines in shown))[1:]


def _block(block: Block) -> str:
    if isinstance(block, Findings):
        return "\n\n".join(map(_entry, block.entries))
    if isinstance(block, Heading):
        return f"**{_text(block.text)}**"
    if isinstance(block, Paragraph):
        return _code(block.text) if isinstance(block.text, Copyable) else _text(block.text)
    text = render_text(Document("", blocks=(block,)), _FENCE_WIDTH)
    return f"```text\n{text.replace('`', chr(39))}\n```"


def _entry(entry: Entry) -> str:
    when = f" ({_text(entry.when)})" if entry.when else ""
    head = f"**{entry.severity.value.upper()}** {_text(entry.headline)}{when}"
    return "\n".join([head, *(f"- {_note(note)}" for note in entry.notes + entry.advice)])


def _note(note: Note) -> str:
    colon = note.opening.removeprefix(note.text)
    is_copied = isinstance(note.text, Copyable)
    opening = f"{_code(note.text)}{colon}" if is_copied else _text(note.opening)
    if note.place is not None:
        return f"{opening} {_code(str(note.place))}"
    ending = _code(note.detail) if isinstance(note.detail, Copyable) else _text(note.detail)
    return f"{opening} {ending}".rstrip() if note.detail else opening


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', chr(39))}`"


def _text(text: str) -> str:
    return _MARKUP.sub(_escaped, sentence(text))


def _escaped(match: re.Match[str]) -> str:
    return f"`{match[0]}`" if match[0].startswith("@") else f"\\{match[0]}"
