# SPDX-License-Identifier: Apache-2.0
"""`Table`: columns from the core, exported through Arrow, pandas and polars without a copy."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, cast, overload

from neutracer._native import core
from neutracer.arguments import several, whole_number
from neutracer.errors import missing
from neutracer.pickling import Unchanging
from neutracer.render.document import Document, clean
from neutracer.render.document import Table as TableBlock
from neutracer.render.report import brief, shown
from neutracer.trace.stacks import Frame, Stacks

# ---- Frames ------------------------------------------------------------------------------


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise missing(name) from None


def pandas_frame(columns: Mapping[str, tuple[memoryview, Column]]) -> Any:
    """A `pandas.DataFrame` of columns, each with the numbers of its rows, which are copied."""
    pandas = _module("pandas")
    numpy = import_module("numpy")

    def filled(rows: memoryview, column: Column) -> Any:
        numbers = numpy.asarray(rows)
        if column.names is not None:
            used, codes = numpy.unique(numbers, return_inverse=True)
            values = numpy.empty(len(used), dtype=object)
            for at, code in enumerate(used.tolist()):
                values[at] = None if code == column.null else column.names[code]
            return values[codes]
        if column.null is not None:
            return pandas.arrays.IntegerArray(numbers.copy(), numbers == column.null)
        if column.is_flag:
            return numbers.astype(bool)
        # Differences of unsigned numbers are never below zero.
        fits = numbers.dtype == "uint64" and not (numbers >> 63).any()
        return numbers.astype("int64") if fits else numbers.copy()

    return pandas.DataFrame({name: filled(*one) for name, one in columns.items()})


# ---- Table -------------------------------------------------------------------------------

# Rows in the rich display.
_SHOWN_ROWS = 10

# How repr and the rich display write events that the history does not have.
_AFTER = {-1: "not in the history", -2: "before the history"}
_OUTSIDE = {
    "alloc_event": {-1: "before the history"},
    "free_event": _AFTER,
    "completed_event": _AFTER,
    "first_use_event": {-1: "none", -2: "unknown"},
    "last_use_event": {-2: "unknown"},
}


@dataclass(frozen=True)
class Column:
    """One column: numbers, or codes of strings."""

    # Gives the numbers, an object with the buffer protocol; called once, when the column is first
    # used.
    make: Callable[[], Any]
    names: Sequence[str] | None = None  # The strings by code, or None for plain numbers.
    null: int | None = None  # The code of None, or None where every row has a value.
    is_flag: bool = False  # Numbers 0 and 1 that rows show as bool.
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


def columns_of(c: Mapping[str, Any], *names: str) -> dict[str, Column]:
    """Columns of plain numbers by their own names, from the core's."""
    return {name: Column(partial(c.__getitem__, name)) for name in names}


class Row(Unchanging, Mapping[str, Any], instead="send row.to_dict()"):
    """One row of a table; columns are attributes, and keys as of a dict.

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

    def __getitem__(self, name: str) -> Any:
        if name not in self._table._row_names():
            raise KeyError(name)
        return self._table._cell(name, self._index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table._row_names())

    def __len__(self) -> int:
        return len(self._table._row_names())

    def __dir__(self) -> list[str]:
        return [*self._table._row_names(), "to_dict"]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data for JSON; of a stack each frame as a dict."""
        return {name: _plain(value) for name, value in self.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        cells = []
        for name in self:
            words = self._words(name)
            if name == "stack":
                words = f"<{len(self[name])} frames>"
            cells.append(f"{clean(name)}={words or brief(self[name])}")
        return f"<{self._table.name} row: {', '.join(cells)}>"

    def _words(self, name: str) -> str:
        """How a reader wants a number: addresses in hexadecimal, a block's version in its name
        in PyTorch's viewer, events that the history does not have in words; "" as it is."""
        if name in ("address", "addr"):
            return f"{self[name]:#x}"
        if name == "version":
            return f"{self[name]} (b{self['address']:x}_{self[name]})"
        outside = _OUTSIDE[name].get(self[name]) if name in _OUTSIDE else None
        return f"<{outside}>" if outside else ""


def _plain(value: Any) -> Any:
    """A cell as JSON has it."""
    if not isinstance(value, tuple):
        return value
    return [item.to_dict() if isinstance(item, Frame) else item for item in value]


class Table(Unchanging, instead="send table.to_dict(), or what pyarrow.table(table) makes"):
    """Rows in columns. Slices share the columns; nothing is copied.

    `table["size"]` is a memoryview of numbers, or a list of strings; `table[3]` a row with
    attributes; `table[3:9]` a table. pyarrow, polars and duckdb take a table as it is
    (`pyarrow.table(table)`), through the Arrow C stream interface, and so does
    `pandas.DataFrame(table)`, row by row; `to_pandas()` is faster, and has the
    columns in their order under pandas before 3.0.1 as well.

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
        """Made by `Snapshot`, `Timeline`, `Layout` and `MemoryMonitor`; not by users."""
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
        return Row(self, self._checked(key))

    def _checked(self, key: Any) -> int:
        """The number of a row, which may be counted from the end."""
        number = whole_number("a row of a table", key, "its number, a slice or a column's name")
        index = number + self._count if number < 0 else number
        if not 0 <= index < self._count:
            raise IndexError(f"row {key} of a table of {self._count}")
        return index

    def take(self, rows: Iterable[int]) -> Table:
        """The rows with these numbers, in their order.

        Raises:
            IndexError: There is no such row.
            TypeError: They are no numbers.

        Example:
            >>> import neutracer
            >>> blocks = neutracer.load("tests/data/frag_default.pickle").blocks
            >>> [row.size for row in blocks.take([2, 0])]
            [9192960, 11267072]
        """
        chosen_rows = several("rows", rows, "numbers of rows")
        numbers = array("I", (self._first + self._checked(row) for row in chosen_rows))
        chosen = numbers.tobytes()

        def picked(column: Column) -> memoryview:
            numbers = column.numbers
            return memoryview(core.pick(numbers, chosen)).cast(cast(Any, numbers.format))

        columns = {
            name: replace(column, make=partial(picked, column), _made=[])
            for name, column in self._columns.items()
        }
        return Table(self.name, columns, len(numbers), self._stacks, self._pairs)

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

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`, which has copies of the columns.

        A stack is a tuple of frames, as in a row; stacks that are equal are one object.

        Raises:
            UnavailableError: pandas is not installed.
        """
        columns = dict(self._columns)
        if "stack" in columns and self._stacks is not None:
            columns["stack"] = replace(columns["stack"], names=cast(Any, self._stacks), null=None)
        return pandas_frame({name: (self.codes(name), one) for name, one in columns.items()})

    def to_polars(self) -> Any:
        """The table as a `polars.DataFrame`; of a stack it has the number.

        Raises:
            UnavailableError: polars is not installed.
        """
        return _module("polars").DataFrame(self)

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
        # HTML is for notebooks.
        from neutracer.render.html import inline_html

        names = [name for name in self._row_names() if name != "stack"]
        rows = tuple(
            tuple(shown(row._words(name) or row[name]) for name in names)
            for row in self[:_SHOWN_ROWS]
        )
        title = f"{self._count:,} {self.name}s, the first {len(rows)}"
        return inline_html(Document(title, blocks=(TableBlock("", rows, tuple(names)),)))
