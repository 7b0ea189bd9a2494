# SPDX-License-Identifier: Apache-2.0
"""A report as plain data, before anything is laid out.

Every report is a `Document`: figures, paragraphs, tables, places in code. The renderers (`text`,
`html`, `report`) show the same document; nothing else decides how a figure looks. Escaping of
strings from files and the palette of severities are here too, so that all renderers share them.
"""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, groupby

from neutracer import units

# ---- Document ----------------------------------------------------------------------------

# Strings are raw data here: renderers escape and align them. All classes are frozen, all sequences
# tuples.


class Severity(str, enum.Enum):
    """How bad a finding is: a word that compares by rank, not by letters.

    It equals its word, and compares with a word too, so that `--fail-on serious` is
    `finding.severity >= "serious"`.

    Example:
        >>> Severity.SEVERE > Severity.INFO, Severity("serious") >= "severe"
        (True, False)
    """

    INFO = "info"
    MODERATE = "moderate"
    SERIOUS = "serious"
    SEVERE = "severe"

    @property
    def rank(self) -> int:
        """0 for info, up to 3 for severe."""
        return tuple(Severity).index(self)

    def __str__(self) -> str:
        return self.value

    # Written out, so that a type checker knows that a severity may equal a word.
    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def __lt__(self, other: str) -> bool:
        return self.rank < Severity(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Severity(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Severity(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Severity(other).rank


class Copyable(str):
    """A text that somebody copies: a command, settings, the path of a file.

    A page shows it whole and on one line, whatever the width. It may be a cell of a table, or
    the text or the detail of a `Note`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a program: shown as `frag   train.py:159`, in two aligned columns.

    A line of a library has the library's name before it, and after it the line of the
    program that led there: `forward   transformers activations.py:66, from train.py:42`.

    Attributes:
        function: The function's name as PyTorch gives it.
        filename: The file's name as PyTorch gives it; a long one is cut at its left.
        line: The line from 1, or 0 where only the file is known.
        package: The library that the file belongs to; empty for the program's own.
        caller: File and line of the program's own code that led there; may be empty.
    """

    function: str
    filename: str
    line: int = 0
    package: str = ""
    caller: str = ""

    @property
    def location(self) -> str:
        """Package, file and line, and where the program called that."""
        where = f"{self.filename}:{self.line}" if self.line else self.filename
        where = f"{self.package} {where}" if self.package else where
        return f"{where}, from {self.caller}" if self.caller else where

    def __str__(self) -> str:
        return f"{self.function} ({self.location})" if self.location else self.function


@dataclass(frozen=True)
class Figure:
    """A number with its unit, as readers see it.

    Figures of one column are aligned at the decimal point, and their units below each
    other. Make them with `bytes`, `share` and `count`.

    Attributes:
        number: The digits, as written: "2,028.0".
        unit: What follows them: "MiB", "%", "blocks"; may be empty.
    """

    number: str
    unit: str = ""

    @classmethod
    def bytes(cls, nbytes: int, unit: str | None = "MiB", decimals: int | None = 1) -> Figure:
        """A size; `units.format_bytes` says what the arguments mean."""
        return cls(*units.split_bytes(nbytes, unit, decimals=decimals))

    @classmethod
    def share(cls, share: float, decimals: int = 1) -> Figure:
        """A share as a percentage; 1.0 is all of it."""
        return cls(*units.split_share(share, decimals=decimals))

    @classmethod
    def count(cls, count: int, noun: str = "", plural: str = "") -> Figure:
        """A count with what is counted; `units.format_count` says how it is written."""
        number, _, unit = units.format_count(count, noun, plural).partition(" ")
        return cls(number, unit)

    def __str__(self) -> str:
        return f"{self.number} {self.unit}" if self.unit else self.number


Cell = str | Figure | Place


@dataclass(frozen=True)
class Note:
    """One sentence below a finding: a piece of evidence, or a piece of advice.

    Attributes:
        text: The sentence, or its beginning.
        place: Where in the program, which ends the sentence, or None.
        detail: What ends the sentence where there is no place: what the advice would change, and
            how that is known. A `Copyable` one is a command or a setting.
    """

    text: str
    place: Place | None = None
    detail: str = ""

    @property
    def opening(self) -> str:
        """The text up to the place or the detail, which a colon introduces."""
        return f"{self.text}:" if self.detail and not self.text.endswith(":") else self.text

    def __str__(self) -> str:
        ending = str(self.place) if self.place else self.detail
        return f"{self.opening} {ending}" if ending else self.text


@dataclass(frozen=True)
class Entry:
    """One finding on the page.

    Attributes:
        severity: Its word is in the left column.
        headline: The finding in one line, with its bytes.
        when: The text at the right edge of that line: "event 2,048"; may be empty.
        notes: The evidence.
        advice: What to do.
    """

    severity: Severity
    headline: str
    when: str = ""
    notes: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()

    def in_short(self) -> Entry:
        """The headline, the line of code and what to do, in a sentence each."""
        located = [note for note in self.notes if note.place is not None]
        return replace(self, notes=tuple((located or self.notes)[:1]), advice=self.advice[:1])

    def answer_first(self) -> Entry:
        """The same with the sentences of `in_short` before the rest of the evidence."""
        short = self.in_short()
        rest = [note for note in self.notes if not any(note is one for one in short.notes)]
        return replace(short, notes=(*short.notes, *short.advice, *rest), advice=self.advice[1:])


@dataclass(frozen=True)
class Findings:
    """Findings below each other, in the order given: the worst first."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells below a title.

    Without column headings the title is alone above the rows. With them it shares
    their line, and the columns of figures are equally wide, so that they compare.

    Attributes:
        title: What the rows are; may be empty.
        columns: One heading a column, or empty for no headings; "" is a column without.
        rows: Cells, row by row; each row has the same number of them. A cell that does
            not apply is "".
        notes: Lines below the rows.
        is_detail: Only full pages show it.
    """

    title: str
    rows: tuple[tuple[Cell, ...], ...]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_detail: bool = False

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.rows} | ({len(self.columns)} - {0})
        if len(widths) > 1:
            raise ValueError(f"a table with rows of different lengths: {sorted(widths)}")


@dataclass(frozen=True)
class KeyValues:
    """Names with their values below a title; a long value flows in its own column."""

    title: str
    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Heading:
    """A line above the block that follows."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A text over the whole width."""

    text: str


Block = Findings | Table | KeyValues | Heading | Paragraph


@dataclass(frozen=True)
class Document:
    """A page."""

    title: str  # What the page is about: a file's name.
    # What else fits on its line: what kind of file, how long, how complete.
    facts: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    more: str = ""  # The command that shows the rest; a renderer that has to cut names it.
    # "nothing wrong found", and what was looked at. It is the answer of a page whose findings are
    # at most info.
    healthy: str = ""

    @property
    def answer(self) -> Entry | None:
        """The worst finding of the page, the first of equals; None: a healthy page, or none."""
        found = (block.entries for block in self.blocks if isinstance(block, Findings))
        worst = max(chain(*found), key=lambda entry: entry.severity.rank, default=None)
        is_fine = worst is None or worst.severity is Severity.INFO
        return None if self.healthy and is_fine else worst

    def arranged(self, *, brief: bool = False) -> tuple[Block | None, Document]:
        """The answer as a block, and the page without it; equal headlines in a row are one.

        Args:
            brief: The answer has three sentences at most.
        """
        blocks: list[Block] = [
            Findings(merged(block.entries)) if isinstance(block, Findings) else block
            for block in self.blocks
        ]
        joined = replace(self, blocks=tuple(blocks))
        answer = joined.answer
        if answer is None:
            return (Paragraph(self.healthy) if self.healthy else None), joined
        rest: list[Block] = []
        for block in blocks:
            if isinstance(block, Findings):
                block = Findings(tuple(one for one in block.entries if one is not answer))
            if not isinstance(block, Findings) or block.entries:
                rest.append(block)
        shown = replace(answer.in_short(), when="") if brief else answer.answer_first()
        return Findings((shown,)), replace(self, blocks=tuple(rest))

    def in_short(self) -> Document:
        """The page with the answer whole, other findings in three sentences, and no details."""
        answer = self.answer
        blocks: list[Block] = []
        for block in self.blocks:
            if isinstance(block, Findings):
                short = (one if one is answer else one.in_short() for one in block.entries)
                block = Findings(tuple(short))
            if not isinstance(block, Table) or not block.is_detail:
                blocks.append(block)
        return replace(self, blocks=tuple(blocks))


def merged(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Entries, with neighbours of one headline as one that has the notes of all.

    Example:
        >>> one = Entry(Severity.INFO, "a leak", "event 1", (Note("here"),))
        >>> [len(entry.notes) for entry in merged((one, replace(one, notes=(Note("there"),))))]
        [2]
    """
    return tuple(
        _as_one(list(same))
        for _, same in groupby(entries, key=lambda entry: (entry.severity, entry.headline))
    )


def _as_one(entries: list[Entry]) -> Entry:
    first = entries[0]
    if len(entries) == 1:
        return first
    when = ", ".join(dict.fromkeys(entry.when for entry in entries if entry.when))
    # Advice that not all share stands below what it is about.
    groups = [(list(same), advice) for advice, same in groupby(entries, key=lambda one: one.advice)]
    notes = [
        (*chain.from_iterable(one.notes for one in same), *(advice if len(groups) > 1 else ()))
        for same, advice in groups
    ]
    advice = first.advice if len(groups) == 1 else ()
    told = tuple(dict.fromkeys(chain.from_iterable(notes)))
    return Entry(first.severity, first.headline, when, told, advice)


# ---- Escape ------------------------------------------------------------------------------

# Names in a snapshot are untrusted. Characters that can move a cursor, colour a terminal, reorder
# letters or break a line become visible backslash escapes.

# Real scripts stack at most a few marks on a letter; more only paint over other lines.
_MOST_MARKS = 4

_ELLIPSIS = "…"

# A text from data that flows is never longer than a few lines.
_MOST_SENTENCE = 500


def clean(text: str) -> str:
    r"""Spell out every character that is not plainly visible.

    Control characters, ANSI escapes, BiDi and zero-width characters, line separators,
    unpaired surrogates and unassigned characters become `\x1b`, `\u202e` and the like.
    Newlines and tabs become escapes too: the result is always one line.
    """
    if text.isascii() and text.isprintable():
        return text
    parts: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        parts.append(char if char.isprintable() and marks <= _MOST_MARKS else _escaped(char))
    return "".join(parts)


def sentence(text: str, width: int | None = None) -> str:
    """A clean text for one place of a page, cut to `width` columns or else to 500."""
    return shorten_right(clean(text), _MOST_SENTENCE if width is None else width)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """The columns that a clean text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int) -> str:
    """The text with spaces at its right up to `width` columns."""
    return text + " " * (width - display_width(text))


def shorten_right(text: str, width: int) -> str:
    """The beginning of a clean text in at most `width` columns; a cut is marked."""
    if display_width(text) <= width:
        return text
    return _head(text, width - 1) + _ELLIPSIS


def shorten_left(text: str, width: int) -> str:
    """The end of a clean text in at most `width` columns; a cut is marked.

    Where a path is cut, the cut is moved on to the next separator.
    """
    if display_width(text) <= width:
        return text
    tail = _head(text[::-1], width - 1)[::-1]
    separator = tail.find("/")
    return _ELLIPSIS + (tail[separator:] if separator > 0 else tail)


def _head(text: str, width: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break a clean text at its spaces into lines of at most `width` columns.

    A word that is longer than a line is cut into lines, each of at least one character,
    behind a comma where there is one.
    Spaces inside a line are kept as they are. An empty text is one empty line.
    """
    lines: list[str] = []
    rest = text.strip(" ")
    while display_width(rest) > width:
        line, rest = _take_line(rest, width)
        lines.append(line)
    lines.append(rest)
    return lines


def _take_line(text: str, width: int) -> tuple[str, str]:
    head = _head(text, width) or text[:1]
    end = len(head) if text[len(head) : len(head) + 1] == " " else head.rfind(" ")
    if end <= 0:
        end = head.rfind(",") + 1 or len(head)
        return text[:end], text[end:]
    return text[:end].rstrip(" "), text[end:].lstrip(" ")


# ---- Palette -----------------------------------------------------------------------------

# Allocated memory is blue, darker for larger blocks; reserved but free memory is sand; trouble is
# red. The three also differ in lightness, for greyscale print and colour-blind readers.


@dataclass(frozen=True)
class Palette:
    """Colours as `#rrggbb`, for one kind of page."""

    page: str  # The background, which is also memory that was never reserved.
    ink: str
    grey: str  # Text of second rank, axes.
    line: str  # Hairlines: borders of segments, rules between rows.
    allocated: tuple[str, ...]  # The blue scale, from the smallest block to the largest.
    # Bands of blocks that must differ, without an order: kinds of blue, each of which differs from
    # every other one also for those who see no red or no green. Neighbours in this order differ
    # most, the last and the first too.
    groups: tuple[str, ...]
    # Who or what for, where nothing else has a colour: eight hues, each of which differs from every
    # other one also for those who see no red or no green.
    hues: tuple[str, ...]
    sand: str
    sand_ink: str  # Lines and words about what is free.
    red: str  # Trouble: running out of memory, cycles.
    red_fill: str  # What trouble is about, as a surface under text.
    surface: str  # Everything else that is drawn as a surface under text.

    def blue(self, share: float) -> str:
        """The blue of a block, between the smallest (0.0) and the largest (1.0)."""
        position = min(max(share, 0.0), 1.0) * (len(self.allocated) - 1)
        index = min(int(position), len(self.allocated) - 2)
        return mixed(self.allocated[index], self.allocated[index + 1], position - index)


def mixed(one: str, other: str, share: float = 0.5) -> str:
    """Between two colours: the first at a share of 0, the second at 1."""
    pairs = zip(_channels(one), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


LIGHT = Palette(
    page="#ffffff",
    ink="#22303c",
    grey="#5b6770",
    line="#d9dfe4",
    allocated=("#c3daee", "#82b4db", "#3f83c0", "#1a5a9e", "#0b2f66"),
    groups=(
        "#1b377d",
        "#658fdc",
        "#336a70",
        "#a0d5df",
        "#545f9f",
        "#8dbffe",
        "#01464f",
        "#578699",
    ),
    hues=(
        "#1f5fa8",
        "#d98200",
        "#0b7a5e",
        "#8a4fa3",
        "#5aa9d6",
        "#6b4226",
        "#93a90f",
        "#d67fb5",
    ),
    sand="#fae3c6",
    sand_ink="#8a5a12",
    red="#b3202a",
    red_fill="#fde3e1",
    surface="#f4f6f8",
)

DARK = Palette(
    page="#12181e",
    ink="#dfe6ec",
    grey="#98a6b2",
    line="#33404b",
    allocated=("#d6e8f8", "#a5cdef", "#72abe0", "#4f8ccb", "#3d76b5"),
    groups=(
        "#6c95f9",
        "#82cbc6",
        "#4d86aa",
        "#9df2de",
        "#679c98",
        "#5460c4",
        "#5daec5",
        "#295f7f",
    ),
    hues=(
        "#5b9be6",
        "#e09a2d",
        "#2f9e7d",
        "#a678c8",
        "#8fd0f2",
        "#a8744d",
        "#b9c93c",
        "#e6a3cd",
    ),
    sand="#5c4a30",
    sand_ink="#e5b878",
    red="#ff7a73",
    red_fill="#4a1f22",
    surface="#1c252d",
)

# A terminal has its own background, which can't be queried; its named colours are
# readable on it, so the roles of a text are given by name.
TERMINAL_STYLES = {
    "strong": "bold",
    "muted": "dim",
    "info": "blue",
    "moderate": "yellow",
    "serious": "red",
    "severe": "bold red",
}
