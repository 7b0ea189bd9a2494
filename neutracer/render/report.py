# SPDX-License-Identifier: Apache-2.0
"""The base classes of all reports: `Report`, `Finding`, rows with named fields, and their JSON."""

from __future__ import annotations

import abc
import enum
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, TextIO, cast

from neutracer.pickling import FieldsOnly
from neutracer.render.document import (
    Block,
    Document,
    Entry,
    Figure,
    Findings,
    Note,
    Place,
    Severity,
    sentence,
)
from neutracer.render.text import render_text
from neutracer.units import format_count, format_event

# ---- Json --------------------------------------------------------------------------------

# Integers stay integers (addresses need 64 bits), keys keep the order of the fields, and
# non-ASCII text is escaped.

# Places whose texts are kept while a report is written.
_MOST_PLACES = 4096


def to_plain(value: object, where: str = "value") -> Any:
    """Turn a value into dicts, lists, strings, numbers, booleans and None.

    Tuples become lists, enums their values, dataclasses dicts of their fields, columns
    (memoryviews of numbers) lists, and objects with `to_dict()` what that returns.

    Example:
        >>> to_plain({"range": (1, 2)})
        {'range': [1, 2]}
    """
    if isinstance(value, enum.Enum):
        return to_plain(value.value, where)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: JSON has no {value}")
        return value
    if isinstance(value, Mapping) and not hasattr(value, "to_dict"):
        return {_key(key, where): to_plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return _plain_object(value, where)


def _plain_object(value: object, where: str) -> Any:
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, type):
        return to_plain(to_dict(), where)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(item, f"{where}.{name}") for name, item in shown_items(value)}
    if isinstance(value, memoryview):
        return to_plain(value.tolist(), where)
    raise TypeError(f"{where}: a {type(value).__name__} can't be written as JSON")


def dump(report: object, out: TextIO) -> None:
    """Stream a report, or a mapping with "schema" and reports, as JSON text; as `dumps`, but
    without building it in memory.
    """
    _Writer(out.write).write(report, "\n")
    out.write("\n")


class _Writer:
    """Puts the text of values piece by piece. `line` begins a new line at a value's level."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put = put
        # The texts of places, which repeat from row to row, by identity; the place is kept alive.
        self._places: dict[tuple[int, str], tuple[Place, str]] = {}

    def write(self, value: object, line: str) -> None:
        text = self._text(value, line)
        if text is not None:
            self._put(text)
        elif isinstance(value, Mapping):
            self._object(((_key(key, "value"), item) for key, item in value.items()), line)
        elif isinstance(value, (tuple, list, memoryview)):
            self._array(cast("Iterable[object]", value), line)
        elif (items := getattr(value, "json_items", None)) is not None:
            self._object(items(), line)
        elif is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "to_dict"):
            self._object(shown_items(value), line)
        else:
            self._put(json.dumps(to_plain(value), indent=2, allow_nan=False).replace("\n", line))

    def _text(self, value: object, line: str) -> str | None:
        """The whole text of what is short; None: it is put piece by piece."""
        kind = type(value)
        if kind is int:
            return repr(value)
        if isinstance(value, str) and kind is str:
            return encode_basestring_ascii(value)
        if value is None:
            return "null"
        if kind is bool:
            return "true" if value else "false"
        return self._place(value, line) if isinstance(value, Place) and kind is Place else None

    def _place(self, place: Place, line: str) -> str:
        known = self._places.get((id(place), line))
        if known is not None:
            return known[1]
        if len(self._places) >= _MOST_PLACES:
            self._places.clear()
        parts: list[str] = []
        _Writer(parts.append)._object(shown_items(place), line)
        text = "".join(parts)
        self._places[id(place), line] = (place, text)
        return text

    def _object(self, items: Iterable[tuple[str, object]], line: str) -> None:
        inner = line + "  "
        begin, between = "{" + inner, "," + inner
        parts: list[str] = []
        for name, item in items:
            text = self._text(item, inner)
            parts.append(f"{begin}{encode_basestring_ascii(name)}: {text or ''}")
            begin = between
            if text is None:
                self._put("".join(parts))
                parts.clear()
                self.write(item, inner)
        parts.append(f"{line}}}" if begin == between else "{}")
        self._put("".join(parts))

    def _array(self, items: Iterable[object], line: str) -> None:
        inner = line + "  "
        begin, between = "[" + inner, "," + inner
        for item in items:
            self._put(begin)
            self.write(item, inner)
            begin = between
        self._put(f"{line}]" if begin == between else "[]")


@lru_cache(maxsize=256)
def _shown_fields(kind: type[Any]) -> tuple[str, ...]:
    names = (field.name for field in fields(kind) if field.repr)
    return tuple(name for name in names if not name.startswith("_"))


def shown_items(value: object) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass in JSON and repr: not private, and without repr=False."""
    kind: Any = type(value)
    return ((name, getattr(value, name)) for name in _shown_fields(kind))


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where}: a JSON key must be a string, not a {type(key).__name__}")
    return str(key)


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Write a value as JSON text.

    Example:
        >>> dumps({"schema": "neutracer.example/1", "bytes": 1 << 60}, indent=None)
        '{"schema": "neutracer.example/1", "bytes": 1152921504606846976}'
    """
    plain = to_plain(value)
    if not isinstance(plain, dict) or not isinstance(plain.get("schema"), str):
        raise TypeError("a document of JSON is a dict with a 'schema'")
    return json.dumps(plain, indent=indent, allow_nan=False)


# ---- Row ---------------------------------------------------------------------------------

# Longer values are counted, or cut.
_MOST_ITEMS = 4
_MOST_TEXT = 80


class PlainRow:
    """The base of a dataclass that is one row of a report.

    Private fields, and those with repr=False, are left out of its repr and JSON.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The dataclass would write one of its own, and leaves alone what is there.
        if "__repr__" not in vars(cls):
            cls.__repr__ = PlainRow.__repr__  # type: ignore[method-assign]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data for JSON."""
        return {name: to_plain(value, name) for name, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """What `to_dict` has, one after the other, and as it is."""
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


# ---- Report ------------------------------------------------------------------------------

# Annotations are objects in this module, not text: subclasses elsewhere inherit the fields,
# and `typing.get_type_hints` finds no Finding there.

# One screen: the command that the document names shows the rest.
_SCREEN_LINES = 40


@dataclass(frozen=True)
class Finding(PlainRow):
    """A finding with its evidence and advice.

    Attributes:
        kind: A stable word for programs: "fragmentation", "out_of_memory".
        severity: Its severity.
        bytes: The affected bytes; 0 if it is not about bytes.
        message: The finding in one line, with its bytes.
        evidence: The proof, with places in the program.
        advice: Changes with their effects; empty if nothing is known to help.
        event: The event of the trace at which it shows, or None.
    """

    kind: str
    severity: Severity
    bytes: int
    message: str
    evidence: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()
    event: int | None = None

    def entry(self) -> Entry:
        """The finding as a page shows it."""
        when = "" if self.event is None else format_event(self.event)
        return Entry(self.severity, self.message, when, self.evidence, self.advice)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings from the worst to the least; among equals failures first, then the most bytes."""
    return tuple(
        sorted(findings, key=lambda f: (-f.severity.rank, f.kind != "out_of_memory", -f.bytes))
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(FieldsOnly, abc.ABC):
    """The base of every report. Reports can be pickled and copied.

    A subclass is a `@dataclass(frozen=True, kw_only=True, repr=False)` that sets `schema`
    and writes `document()`. Fields whose names begin with an underscore stay out of
    `to_dict()`; properties named in `derived` go into it.

    Attributes:
        findings: The findings, the worst first.
    """

    schema: ClassVar[str]
    derived: ClassVar[tuple[str, ...]] = ()

    findings: tuple[Finding, ...] = ()

    @abc.abstractmethod
    def document(self) -> Document:
        """The report as a page."""

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding, or None where there is none."""
        ranks = [finding.severity for finding in self.findings]
        return max(ranks, key=lambda severity: severity.rank, default=None)

    def finding_blocks(self) -> tuple[Block, ...]:
        """The findings as blocks of a page; empty where there are none."""
        if not self.findings:
            return ()
        return (Findings(tuple(finding.entry() for finding in self.findings)),)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON: schema first, findings last.

        Raises:
            TypeError: A field holds what JSON can't express.
        """
        return {name: to_plain(value, name) for name, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """The items of `to_dict`, unconverted."""
        names = [field.name for field in fields(self) if not field.name.startswith("_")]
        names.remove("findings")
        yield "schema", self.schema
        for name in (*names, *self.derived, "findings"):
            yield name, getattr(self, name)

    def __str__(self) -> str:
        return render_text(self.document(), max_lines=_SCREEN_LINES)

    def __repr__(self) -> str:
        found = format_count(len(self.findings), "finding")
        worst = f", worst {self.worst}" if self.worst else ""
        return f"<{type(self).__name__}: {found}{worst}>"

    def picture(self) -> str:
        """Safe HTML for a notebook, below the title; usually none."""
        return ""

    def _repr_html_(self) -> str:
        from neutracer.render.html import inline_html

        return inline_html(self.document(), self.picture(), "print(report), or report.to_dict(),")

    # IPython's text: the whole report where it is shown by itself.
    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        alone = not cycle and len(getattr(printer, "stack", ())) <= 1
        printer.text(str(self) if alone else repr(self))
