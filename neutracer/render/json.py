# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON: stable, exact, and only of types that JSON knows.

Integers stay integers (a device address needs all of its 64 bits), the order of the keys
is the order of the fields, and what is not ASCII is escaped, so that the text is safe to
print anywhere.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, TextIO, cast

from neutracer.render.document import Place

__all__ = ["dump", "dumps", "shown_items", "to_plain"]

# Places whose texts are kept while a report is written.
_MOST_PLACES = 4096


def to_plain(value: object, where: str = "value") -> Any:
    """Turn a value into dicts, lists, strings, numbers, booleans and None.

    Tuples become lists, enums their values, dataclasses dicts of their fields, columns
    (memoryviews of numbers) lists, and objects with `to_dict()` what that returns.

    Args:
        value: The value. where: The value's name in error messages.

    Raises:
        TypeError: The value, or one inside it, is of another type, or a key is not a string.
        ValueError: A number is not finite.

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
    """Write a report, or a list of several, as `dumps` would write what `to_dict` returns.

    Nothing is kept of what is written: a report may list hundreds of thousands of segments.

    Args:
        report: A report, or a mapping with "schema" and reports.
        out: Where to.

    Raises:
        TypeError: A field holds what JSON can't express.
        ValueError: A number is not finite.
    """
    _Writer(out.write).write(report, "\n")
    out.write("\n")


class _Writer:
    """Puts the text of values piece by piece. `line` begins a new line at a value's level."""

    def __init__(self, put: Callable[[str], object]) -> None:
        self._put = put
        # The texts of places, which repeat from row to row, by the place's identity; the place
        # is kept so that it stays its own.
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
    told = (field for field in fields(kind) if field.repr)
    return tuple(field.name for field in told if not field.name.startswith("_"))


def shown_items(value: object) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass that are told, in JSON as in its repr: all but those with
    repr=False, and those whose names begin with an underscore."""
    kind: Any = type(value)
    return ((name, getattr(value, name)) for name in _shown_fields(kind))


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where}: a JSON key must be a string, not a {type(key).__name__}")
    return str(key)


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Write a value as JSON text.

    Args:
        value: Anything that `to_plain` takes; at the top it is a dict with "schema".
        indent: Spaces a level, or None for one line.

    Raises:
        TypeError: The value can't be written, or has no "schema".
        ValueError: A number is not finite.

    Example:
        >>> dumps({"schema": "neutracer.example/1", "bytes": 1 << 60}, indent=None)
        '{"schema": "neutracer.example/1", "bytes": 1152921504606846976}'
    """
    plain = to_plain(value)
    if not isinstance(plain, dict) or not isinstance(plain.get("schema"), str):
        raise TypeError("a document of JSON is a dict with a 'schema'")
    return json.dumps(plain, indent=indent, allow_nan=False)
