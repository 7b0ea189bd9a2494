# SPDX-License-Identifier: Apache-2.0
"""A page of findings, figures and tables as plain data, before it is rendered.

A question builds one `Document`; `text`, `html` and the notebook show it. Nothing here is
escaped or aligned: strings are data as they came, and each renderer makes them harmless
and lays them out. All classes are frozen, and all sequences are tuples.

A document is a title with a few facts beside it, and blocks below:

- `Findings`: what is wrong, worst first; each an `Entry` with its `Note` lines;
- `Table`: rows of cells; a cell is a text, a `Figure` (a number with its unit, aligned at
  the decimal point) or a `Place` (function, file and line, in aligned columns);
- `KeyValues`: names with values; `Heading`, `Paragraph`: words.

Example:
    >>> from neutracer.render.text import render_text
    >>> page = Document(
    ...     title="run.pickle",
    ...     facts=("1 device",),
    ...     blocks=(
    ...         Table(
    ...             title="cuda:0",
    ...             columns=("", "now", "peak"),
    ...             rows=(("allocated", Figure.bytes(3 << 20), Figure.bytes(5 << 20)),),
    ...         ),
    ...     ),
    ... )
    >>> print(render_text(page))
    run.pickle   1 device
    <BLANKLINE>
    cuda:0         now        peak
      allocated    3.0 MiB    5.0 MiB
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neutracer import units

__all__ = [
    "Block",
    "Cell",
    "Copyable",
    "Document",
    "Entry",
    "Figure",
    "Findings",
    "Heading",
    "KeyValues",
    "Note",
    "Paragraph",
    "Place",
    "Severity",
    "Table",
]


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


@dataclass(frozen=True)
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

    The text flows over as many lines as it needs; the place or the detail is then in
    an aligned column at its right.

    Attributes:
        text: The sentence: "and took a segment of its own:".
        place: Where in the program, or None.
        detail: A short text for the right column, where there is no place to show: what the
            advice would change, and how that is known. A `Copyable` one ends the sentence.
    """

    text: str
    place: Place | None = None
    detail: str = ""

    def __str__(self) -> str:
        aside = str(self.place) if self.place else self.detail
        colon = ":" if isinstance(self.detail, Copyable) else ""
        return f"{self.text}{colon} {aside}" if aside else self.text


@dataclass(frozen=True)
class Entry:
    """One finding on the page.

    Attributes:
        severity: Its word is in the left column.
        headline: The finding in one line, with its bytes.
        when: The text at the right edge of that line: "event 2,048"; may be empty.
        notes: Evidence first, then who, then what to do.
    """

    severity: Severity
    headline: str
    when: str = ""
    notes: tuple[Note, ...] = ()


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
    """

    title: str
    rows: tuple[tuple[Cell, ...], ...]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
    """A page.

    Attributes:
        title: What the page is about: a file's name.
        facts: What else fits on its line: what kind of file, how long, how complete.
        blocks: What is below, from the top down.
        more: The command that shows the rest; a renderer that has to cut names it.
    """

    title: str
    facts: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    more: str = ""
