# SPDX-License-Identifier: Apache-2.0
"""All that docs/stability.md promises, a line each: `python tests/helpers/public_names.py`.

Written to tests/data/public_names.txt, which a test compares with the code. With the word
"release" also to released_names.txt, behind the version: what later releases are held to.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import neutracer  # noqa: E402
from neutracer.cli import main as commands  # noqa: E402

LIST = ROOT / "tests" / "data" / "public_names.txt"
RELEASED = LIST.with_name("released_names.txt")


def arguments_of(function: Any) -> str:
    """Names, kinds and defaults; annotations are promised by the pages alone."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    bare = [p for p in bare if p.name not in {"self", "cls"}]
    told = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return str(told)


def members_of(cls: type) -> Iterator[str]:
    for name in sorted(dir(cls)):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(cls, name)
        member = getattr(member, "__func__", member)
        if inspect.isfunction(member):
            yield f"{cls.__name__}.{name}{arguments_of(member)}"
        elif isinstance(member, property | functools.cached_property):
            yield f"{cls.__name__}.{name}"
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if not field.name.startswith("_"):
                yield f"{cls.__name__}.{field.name} (field)"


def python_names() -> Iterator[str]:
    for name in neutracer.__all__:
        thing = getattr(neutracer, name)
        if not inspect.isclass(thing):
            yield f"{name}{arguments_of(thing)}"
    for place in (neutracer, neutracer.reports):
        for name in place.__all__:
            yield from class_names(name, getattr(place, name))


def class_names(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        ours = [one.__name__ for one in thing.__mro__[1:] if one is not object]
        yield f"class {name}({', '.join(ours)})"
        if not issubclass(thing, BaseException):
            yield from members_of(thing)


def command_options() -> Iterator[str]:
    for name, command in commands.COMMANDS.items():
        below = argparse.ArgumentParser().add_subparsers()
        module = import_module(f"neutracer.cli.{command.module}")
        getattr(module, f"add_{name.replace('-', '_')}")(below, "")
        yield from options_of(name, below.choices[name])


def options_of(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part, below in action.choices.items():
                yield from options_of(f"{name} {part}", below)
        else:
            words = " ".join(action.option_strings) or action.dest
            yield f"neutracer {name}: {words}"


def schema_fields() -> Iterator[str]:
    from report_schemas import report_classes, schema_of

    for report in report_classes():
        schema = schema_of(report)
        yield from (f"{report.schema}: {name}" for name in schema["properties"])
        for title, definition in schema["$defs"].items():
            fields = definition.get("properties", ())
            yield from (f"{report.schema}: {title}.{name}" for name in fields)


def public_names() -> list[str]:
    """Every line, sorted and once."""
    return sorted({*python_names(), *command_options(), *schema_fields()})


def promised(version: str) -> tuple[int, ...]:
    """The part of a version that has to grow before a name may go: the first number, or the
    second one before 1.0."""
    first, second = (int(number) for number in version.split(".")[:2])
    return (first,) if first else (first, second)


def broken_promises(released: list[str], version: str, names: list[str]) -> list[str]:
    """The names of the last release that are gone without the notice that they were promised.

    Args:
        released: The version of that release, and its names.
        version: Of the code now.
        names: Of the code now.
    """
    before, *kept = released
    if promised(version) > promised(before):
        return []
    return sorted(set(kept) - set(names))


def main(words: list[str]) -> None:
    """Writes the list, and with "release" that of the release."""
    text = "\n".join(public_names()) + "\n"
    LIST.write_text(text, encoding="utf-8")
    if words == ["release"]:
        RELEASED.write_text(f"{neutracer.__version__}\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
