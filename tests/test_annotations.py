# SPDX-License-Identifier: Apache-2.0
"""Tools that read annotations at run time can read those of every public name."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import neutracer


def functions_of(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The methods and properties of a class that are neutracer's, inherited ones too."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, functools.cached_property):
            member = member.func
        function = getattr(member, "__func__", member)
        if isinstance(function, types.FunctionType) and function.__module__.startswith("neutr"):
            yield name, function


def public_things() -> Iterator[tuple[str, Any]]:
    for place in (neutracer, neutracer.reports):
        yield from ((name, getattr(place, name)) for name in place.__all__)


def public_annotations() -> Iterator[tuple[str, Any]]:
    for name, thing in public_things():
        if inspect.isclass(thing):
            yield name, thing
            yield from ((f"{name}.{method}", found) for method, found in functions_of(thing))
        else:
            yield name, thing if inspect.isfunction(thing) else type(thing).__call__


def unreadable() -> dict[str, str]:
    wrong = {}
    for name, thing in public_annotations():
        try:
            typing.get_type_hints(thing)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    return wrong


def test_hints_of_every_public_name_resolve() -> None:
    names = dict(public_annotations())
    assert {"explain", "live", "Report", "FragmentationReport.fits", "Outcome.ratio"} <= set(names)
    assert unreadable() == {}


def test_signatures_of_reports_resolve() -> None:
    for name, thing in public_things():
        if inspect.isclass(thing) and issubclass(thing, neutracer.reports.Report):
            found = inspect.signature(thing, eval_str=True).parameters["findings"]
            assert found.annotation == tuple[neutracer.reports.Finding, ...], name


@pytest.mark.parametrize("name", ["mdtp", "plot_timeline", "plot_fragmentation"])
def test_hints_of_pictures_need_no_matplotlib(name: str) -> None:
    script = (
        "import sys, typing; sys.modules['matplotlib'] = None\n"
        f"import neutracer; print(typing.get_type_hints(neutracer.{name})['dark'] == bool | None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.stdout == "True\n", done.stderr
