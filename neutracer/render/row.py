# SPDX-License-Identifier: Apache-2.0
"""What the rows of reports have in common: one line for a person, plain data for JSON.

Example:
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Held(PlainRow):
    ...     name: str
    ...     blocks: tuple[int, ...]
    >>> held = Held("cache", tuple(range(1000)))
    >>> held
    Held(name='cache', blocks=<1,000 items>)
    >>> held.to_dict()["blocks"][-1]
    999
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from typing import Any

from neutracer.render.document import Figure, Place
from neutracer.render.escape import sentence

__all__ = ["PlacedRow", "PlainRow", "brief", "shown"]

# What is longer is counted, or cut.
_MOST_ITEMS = 4
_MOST_TEXT = 80


class PlainRow:
    """The base of a dataclass that is one row of a report.

    Fields whose names begin with an underscore, and those with repr=False, stay out of both.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The dataclass would write one of its own, and leaves alone what is there.
        if "__repr__" not in vars(cls):
            cls.__repr__ = PlainRow.__repr__  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data for JSON."""
        # A page shows rows without it.
        from neutracer.render.json import to_plain

        return {name: to_plain(value, name) for name, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """What `to_dict` has, one after the other, and as it is."""
        from neutracer.render.json import shown_items

        return shown_items(self)

    def __repr__(self) -> str:
        cells = (f"{name}={brief(value)}" for name, value in self.json_items())
        return f"{type(self).__name__}({', '.join(cells)})"


class PlacedRow(PlainRow):
    """A row whose fields have the parts of a place."""

    __slots__ = ()

    function: str
    filename: str
    line: int
    package: str
    caller: str

    @property
    def place(self) -> Place:
        """The place."""
        return Place(self.function, self.filename, self.line, self.package, self.caller)


def shown(value: object) -> str | Figure:
    """A value of a row as the cell of a table, which has numbers below each other.

    Example:
        >>> shown(3), shown(True), shown("frag")
        (Figure(number='3', unit=''), 'True', 'frag')
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Figure(str(value)) if is_number else str(value)


def brief(value: object) -> str:
    """A value in a few words of one line, as `repr` has it where that is short.

    Example:
        >>> brief((1, 2)), brief([0] * 1000), brief("x" * 200)[-3:]
        ('(1, 2)', '<1,000 items>', "x…'")
    """
    if isinstance(value, str):
        return (
            f"{sentence(repr(value), _MOST_TEXT - 1)}'"
            if len(value) > _MOST_TEXT
            else (repr(str(value)))
        )
    if isinstance(value, (Sequence, Mapping, Set, memoryview)):
        return _brief_items(value)
    if is_dataclass(value) and not isinstance(value, type):
        return f"<{type(value).__name__}>" if len(repr(value)) > _MOST_TEXT else repr(value)
    return sentence(repr(value), _MOST_TEXT)


def _brief_items(value: Any) -> str:
    if len(value) <= _MOST_ITEMS and not isinstance(value, memoryview):
        text = repr(value)
        if len(text) <= _MOST_TEXT and "\n" not in text:
            return text
    return f"<{len(value):,} item{'' if len(value) == 1 else 's'}>"
