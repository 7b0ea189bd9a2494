# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of the reports, made from the dataclasses that are the reports.

A field's type is its annotation, its description the docstring's; so a schema says what
`to_dict()` gives as long as the code says so itself.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from typing import Any

import neutracer
from neutracer.render.report import PlainRow, Report

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_LISTS = (list, tuple, collections.abc.Sequence, memoryview)
_DICTS = (dict, collections.abc.Mapping)


def report_classes() -> list[type[Report]]:
    """Every report of the package, by the name of its schema."""
    for module in pkgutil.walk_packages(neutracer.__path__, "neutracer."):
        if not module.name.rpartition(".")[2].startswith("_"):
            # What needs an extra that is not there has no report of its own.
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    found: list[type[Report]] = []
    waiting: list[type[Report]] = [Report]
    while waiting:
        below = [one for one in waiting.pop().__subclasses__() if _is_ours(one)]
        waiting += below
        found += [one for one in below if "schema" in vars(one)]
    return sorted(set(found), key=lambda one: one.schema)


def file_of(schema: str) -> str:
    """The name of a schema's file: "report-1.json" of "neutracer.report/1"."""
    return schema.removeprefix("neutracer.").replace("/", "-") + ".json"


def schema_of(report: type[Report]) -> dict[str, Any]:
    """The JSON Schema of what a report's `to_dict()` gives."""
    definitions: dict[str, Any] = {}
    plain = _object(report, definitions, _fields(report))
    order = [name for name in plain["properties"] if name != "findings"] + ["findings"]
    named = {"schema": {"const": report.schema}}
    named |= {name: plain["properties"][name] for name in order}
    return {
        "$schema": DRAFT,
        "title": report.schema,
        "description": plain["description"],
        "type": "object",
        "properties": named,
        "required": ["schema", *order],
        "$defs": dict(sorted(definitions.items())),
    }


def _is_ours(one: type) -> bool:
    return one.__module__.startswith("neutracer.")


def _fields(owner: type) -> list[tuple[str, Any, str]]:
    """Name, type and description of each thing that JSON has of a dataclass."""
    hints = typing.get_type_hints(owner, localns=_names(owner))
    told: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        told |= _attributes(base)
    names = [f.name for f in dataclasses.fields(owner) if f.repr and not f.name.startswith("_")]
    rows = [(name, hints[name], told.get(name, "")) for name in names]
    for name in getattr(owner, "derived", ()):
        getter = inspect.getattr_static(owner, name).fget
        kind = typing.get_type_hints(getter, localns=_names(owner)).get("return", Any)
        rows.append((name, kind, _first(getter)))
    return rows


def _object(owner: type, definitions: dict[str, Any], rows: list[Any]) -> dict[str, Any]:
    properties = {}
    for name, kind, said in rows:
        properties[name] = _type(kind, definitions)
        if said:
            properties[name] = {**properties[name], "description": said}
    return {
        "description": _first(owner),
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def _type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_type(one, definitions) for one in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in _PLAIN:
        return {"type": _PLAIN[origin]}
    if origin in _LISTS:
        return _list(arguments, definitions)
    if origin in _DICTS:
        return _mapping(arguments, definitions)
    if inspect.isclass(origin) and issubclass(origin, enum.Enum):
        return {"enum": [one.value for one in origin]}
    if inspect.isclass(origin) and issubclass(origin, Report):
        return {"$ref": file_of(origin.schema)}
    if dataclasses.is_dataclass(origin):
        return _reference(origin, definitions)
    if hasattr(origin, "_fields"):
        # A frame goes into a report as the tuple that it is.
        return _list(tuple(typing.get_type_hints(origin).values()), definitions)
    return {"type": "object"} if hasattr(origin, "to_dict") else {}


def _list(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if len(arguments) > 1 and arguments[-1] is not Ellipsis:
        items = [_type(one, definitions) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if not arguments:
        return {"type": "array"}
    return {"type": "array", "items": _type(arguments[0], definitions)}


def _mapping(arguments: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if not arguments:
        return {"type": "object"}
    return {"type": "object", "additionalProperties": _type(arguments[1], definitions)}


def _reference(owner: type, definitions: dict[str, Any]) -> dict[str, Any]:
    if owner.__name__ not in definitions:
        # Named before it is filled, because it may hold others of its kind.
        definitions[owner.__name__] = {}
        plain = _object(owner, definitions, _fields(owner))
        if getattr(owner, "to_dict", PlainRow.to_dict) is not PlainRow.to_dict:
            # It says itself what goes into JSON, and may leave out what is not known.
            plain["required"] = []
        definitions[owner.__name__] = plain
    return {"$ref": f"#/$defs/{owner.__name__}"}


def _names(owner: type) -> dict[str, Any]:
    """The package's own classes that a module may import for its annotations only."""
    found: dict[str, Any] = {"Sequence": collections.abc.Sequence}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("neutracer."):
            ours = vars(module).items()
            found |= {name: one for name, one in ours if inspect.isclass(one) and _is_ours(one)}
    # What the owner's module has under such a name is what its annotations mean.
    known = vars(sys.modules[owner.__module__])
    return {name: one for name, one in found.items() if name not in known}


def _first(thing: Any) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _attributes(owner: type) -> dict[str, str]:
    """What the section "Attributes" of a docstring says of each."""
    # Not getdoc of the class: that would be the base's where it has none itself.
    own = inspect.cleandoc(vars(owner).get("__doc__") or "")
    section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", own, re.M)
    if not section:
        return {}
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", section[1], re.M)
    return {name: " ".join(said.split()) for name, said in entries}
