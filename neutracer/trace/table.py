# SPDX-License-Identifier: Apache-2.0
"""Columns of the C core as tables: zero-copy, sliceable, with small row objects."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

from neutracer._native import core
from neutracer.arguments import whole_number
from neutracer.pickling import Unchanging
from neutracer.render.document import Document
from neutracer.render.document import Table as TableBlock
from neutracer.render.inline import inline_html

__all__ = ["MODULE_MARK", "Column", "Frame", "Row", "Stacks", "Table"]

# The id of "no string" and "no stack" in the core.
NONE = 0xFFFFFFFF

#: What `record(modules=model)` writes before the path of a module into user_metadata.
MODULE_MARK = "nn.Module: "

# Rows that the rich display shows.
_SHOWN_ROWS = 10


class Frame(NamedTuple):
    """One frame of a stack, as PyTorch gives it.

    Attributes:
        filename: The file's name.
        line: The line, from 1; 0 where it is unknown.
        name: The function's name.
    """

    filename: str
    line: int
    name: str


class Stacks:
    """The stacks of one snapshot: spelt out when needed, and then kept."""

    def __init__(self, snapshot: core.Snapshot, strings: Sequence[str]) -> None:
        self._frames = [
            Frame(strings[filename], line, strings[name])
            for name, filename, line in snapshot.frames()
        ]
        innermost, parent = snapshot.stacks()
        self._innermost = memoryview(innermost)
        self._parent = memoryview(parent)
        self._known: dict[int, tuple[Frame, ...]] = {NONE: ()}

    def __getitem__(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack id, innermost first; empty where none were recorded."""
        known = self._known.get(stack)
        if known is None:
            frames = []
            at = stack
            while at:
                frames.append(self._frames[self._innermost[at]])
                at = self._parent[at]
            known = self._known[stack] = tuple(frames)
        return known

    @property
    def frames(self) -> Sequence[Frame]:
        """All frames, by frame id."""
        return self._frames

    def frame(self, frame: int) -> Frame:
        """The frame of a frame id."""
        return self._frames[frame]

    def innermost(self, stack: int) -> Frame:
        """The innermost frame of a stack id that has one."""
        return self._frames[self._innermost[stack]]

    def caller(self, stack: int) -> int:
        """The stack id without its innermost frame; 0 is the empty one."""
        return self._parent[stack]


@dataclass(frozen=True)
class Column:
    """One column: numbers, or codes of strings.

    Attributes:
        make: Gives the numbers, an object with the buffer protocol; called once, when
            the column is first used.
        names: The strings by code, or None for plain numbers.
        null: The code of None, or None where every row has a value.
        is_flag: Numbers 0 and 1 that rows show as bool.
    """

    make: Callable[[], Any]
    names: Sequence[str] | None = None
    null: int | None = None
    is_flag: bool = False
    _made: list[memoryview] = field(default_factory=list, repr=False, compare=False)

    @property
    def numbers(self) -> memoryview:
        """The column's numbers."""
        if not self._made:
            self._made.append(memoryview(self.make()).toreadonly())
        return self._made[0]

    def value(self, row: int) -> Any:
        """What row `row` holds."""
        number = self.numbers[row]
        if number == self.null:
            return None
        if self.names is not None:
            return self.names[number]
        return bool(number) if self.is_flag else number


def constant(code: str, value: int, count: int) -> Callable[[], array[int]]:
    """A column that holds one number: for keys that the file does not have."""
    return lambda: array(code, [value]) * count


class Row(Unchanging, instead="send row.to_dict()"):
    """One row of a table; columns are attributes.

    Example:
        >>> import neutracer
        >>> snap = neutracer.load("tests/data/frag_default.pickle")
        >>> snap.events[0].action, snap.events[0].size
        ('segment_alloc', 23068672)
    """

    __slots__ = ("_index", "_table")

    def __init__(self, table: Table, index: int) -> None:
        self._table = table
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._table._cell(name, self._index)

    def __dir__(self) -> list[str]:
        return [*self._table._row_names(), "to_dict"]

    def to_dict(self) -> dict[str, Any]:
        """The row as a dict; the stack spelt out."""
        return {name: getattr(self, name) for name in self._table._row_names()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        cells = []
        for name, value in self.to_dict().items():
            if name == "stack":
                value = f"<{len(value)} frames>"
            cells.append(f"{name}={value!r}" if name != "stack" else f"{name}={value}")
        return f"<{self._table.name} row: {', '.join(cells)}>"


class Table(Unchanging, instead="send table.to_dict(), or what pyarrow.table(table) makes"):
    """Rows in columns. Slices share the columns; nothing is copied.

    `table["size"]` is a memoryview of numbers, or a list of strings; `table[3]` a row with
    attributes; `table[3:9]` a table. pyarrow, polars, pandas and duckdb take a table as it
    is (`pyarrow.table(table)`), through the Arrow C stream interface.

    Example:
        >>> import neutracer
        >>> blocks = neutracer.load("tests/data/frag_default.pickle").blocks
        >>> len(blocks), sum(blocks["size"]), blocks[0].state
        (83, 566231040, 'active_allocated')
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, Column],
        count: int,
        stacks: Stacks | None = None,
        pairs: Mapping[str, tuple[str, str]] | None = None,
        first: int = 0,
    ) -> None:
        """Made by `Snapshot`, `Timeline`, `Layout` and `MemoryMonitor`; not by users.

        Args:
            name: What a row is, in one word.
            columns: By name, each of at least `first + count` rows.
            count: Rows of this table.
            stacks: Spells out the column `stack`; None where there is no such column.
            pairs: Attributes of a row that are tuples made of two columns.
            first: Row of the columns at which this table begins.
        """
        self.name = name
        self._columns = dict(columns)
        self._count = count
        self._stacks = stacks
        self._pairs = dict(pairs or {})
        self._first = first

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(self._columns)

    def _row_names(self) -> list[str]:
        hidden = {column for pair in self._pairs.values() for column in pair}
        return [name for name in self._columns if name not in hidden] + list(self._pairs)

    def _cell(self, name: str, index: int) -> Any:
        row = self._first + index
        if name in self._pairs:
            first, second = self._pairs[name]
            return self._columns[first].value(row), self._columns[second].value(row)
        column = self._columns.get(name)
        if column is None:
            article = "an" if self.name[:1] in "aeiou" else "a"
            raise AttributeError(
                f"{article} {self.name} has no {name!r}; it has {', '.join(self._row_names())}"
            )
        if name == "stack" and self._stacks is not None:
            return self._stacks[column.numbers[row]]
        return column.value(row)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    @overload
    def __getitem__(self, key: str) -> memoryview | list[str | None]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            return self._column_values(key)
        if isinstance(key, slice):
            start, stop, step = key.indices(self._count)
            if step != 1:
                raise ValueError("a table's slice must have a step of 1")
            return self._part(start, max(stop, start))
        number = whole_number("a row of a table", key, "its number, a slice or a column's name")
        index = number + self._count if number < 0 else number
        if not 0 <= index < self._count:
            raise IndexError(f"row {key} of a table of {self._count}")
        return Row(self, index)

    def _part(self, start: int, stop: int) -> Table:
        return Table(
            self.name, self._columns, stop - start, self._stacks, self._pairs, self._first + start
        )

    def _column_values(self, name: str) -> memoryview | list[str | None]:
        column = self._column(name)
        numbers = column.numbers[self._first : self._first + self._count]
        if column.names is None:
            return numbers
        names = column.names
        return [None if code == column.null else names[code] for code in numbers]

    def _column(self, name: str) -> Column:
        if not isinstance(name, str) or name not in self._columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self._columns)}")
        return self._columns[name]

    def codes(self, name: str) -> memoryview:
        """A column's numbers, also where they are codes of strings.

        Raises:
            KeyError: There is no such column.
        """
        return self._column(name).numbers[self._first : self._first + self._count]

    def texts(self, name: str) -> Sequence[str]:
        """The strings that a column's codes stand for, and maybe others; empty where it has none.

        Raises:
            KeyError: There is no such column.
        """
        return self._column(name).names or ()

    def find(self, name: str, text: str) -> list[int]:
        """The rows in which a column of strings has this one; no strings are made for it.

        Raises:
            KeyError: There is no such column.
        """
        names = self._column(name).names
        if names is None or text not in names:
            return []
        code, codes = names.index(text), self.codes(name)
        if codes.itemsize > 1:
            return [row for row, other in enumerate(codes) if other == code]
        # A million rows in half a millisecond.
        return [match.start() for match in re.finditer(re.escape(bytes([code])), codes)]

    def __iter__(self) -> Iterator[Row]:
        return (Row(self, index) for index in range(self._count))

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns as lists."""
        return {name: list(self._column_values(name)) for name in self._columns}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for Arrow's C stream interface; numbers are not copied."""
        columns = [
            (name, column.numbers, self._first, column.names, column.null)
            for name, column in self._columns.items()
        ]
        return core.arrow_stream(columns, self._count)

    def __repr__(self) -> str:
        return f"<Table of {self._count:,} {self.name}s: {', '.join(self._columns)}>"

    def _repr_html_(self) -> str:
        names = [name for name in self._row_names() if name != "stack"]
        rows = tuple(tuple(str(getattr(row, name)) for name in names) for row in self[:_SHOWN_ROWS])
        title = f"{self._count:,} {self.name}s, the first {len(rows)}"
        return inline_html(Document(title, blocks=(TableBlock("", rows, tuple(names)),)))
