# SPDX-License-Identifier: Apache-2.0
"""A document as text, the same everywhere: no line is wider than the page but what is to be
copied.

The layout yields lines of spans; a span knows its role ("strong", "muted", or a severity),
so that `terminal` colours what is laid out here. Plain text is the spans without roles.
"""

from __future__ import annotations

from typing import NamedTuple

from neutracer.render.columns import (
    GAP,
    function_width,
    location_width,
    place_text,
    table_lines,
)
from neutracer.render.document import (
    Block,
    Copyable,
    Document,
    Entry,
    Findings,
    Heading,
    KeyValues,
    Note,
    Paragraph,
    Table,
)
from neutracer.render.escape import (
    clean,
    display_width,
    pad,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)
from neutracer.units import format_count

__all__ = ["WIDTH", "Line", "Span", "layout", "render_text"]

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
        max_lines: The lines that the text has at most; where it is cut, the last line says
            how many are missing and which command shows them. None for all.

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
