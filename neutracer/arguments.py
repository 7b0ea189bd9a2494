# SPDX-License-Identifier: Apache-2.0
"""Checks of public functions' arguments, with errors that name them; notebook cells."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any


def _wrong_type(name: str, wanted: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def number(name: str, value: Any, wanted: str = "a number") -> Any:
    """`value`, which must be an int, a float or a NumPy number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong_type(name, wanted, value)
    return value


def whole_number(
    name: str, value: Any, wanted: str = "a whole number", least: int | None = None
) -> int:
    """`value` as an int, also of a NumPy integer; arguments as for `number`."""
    if isinstance(value, (bool, type)) or not hasattr(value, "__index__"):
        raise _wrong_type(name, wanted, value)
    try:
        found = operator.index(value)
    except TypeError:
        # Arrays of any length have the method.
        raise _wrong_type(name, wanted, value) from None
    if least is not None and found < least:
        wrong = f"it must be {least} or more" if least else "it must not be negative"
        raise ValueError(f"{name} is {found}: {wrong}")
    return found


def number_pair(name: str, value: Any, *, whole: bool = False) -> tuple[Any, Any]:
    """`value` as a tuple of two numbers."""
    wanted = "two whole numbers" if whole else "two numbers"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong_type(name, wanted, value)
    pair = tuple(value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be {wanted}, not {len(pair)}")
    if whole:
        return whole_number(name, pair[0], wanted), whole_number(name, pair[1], wanted)
    first, second = (number(name, one, wanted) for one in pair)
    if first != first or second != second:
        raise ValueError(f"{name} must be {wanted}, not nan")
    return first, second


def callback(name: str, value: Any, what: str) -> None:
    """Raises a TypeError unless `value`, which is called with each `what`, is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} is called with each {what}: a {type(value).__name__} can't be called"
        )


def text(name: str, value: Any) -> str:
    """`value`; raises a TypeError unless it is a str."""
    if not isinstance(value, str):
        raise _wrong_type(name, "a text", value)
    return value


def several(name: str, value: Any, wanted: str) -> list[Any]:
    """`value`, an iterable of `wanted` (a plural noun), as a list."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong_type(name, f"a list of {wanted}", value)
    return list(value)


def path_name(value: str | bytes | os.PathLike[Any], name: str = "path") -> str:
    """A path as a str."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _wrong_type(name, "a path (a str or an os.PathLike)", value)
    text = os.fsdecode(value)
    if "\0" in text:
        raise ValueError(f"{name} has a null character in it: {text!r}")
    return text


# ---- Cells -------------------------------------------------------------------------------


def running_shell() -> Any:
    """IPython's shell in this process, or None."""
    module = sys.modules.get("IPython.core.interactiveshell")
    return getattr(getattr(module, "InteractiveShell", None), "_instance", None)


def reader_name(filename: str) -> str:
    """The display name of a code object's file: "In[3]" for a notebook's third cell.

    Without IPython in this process it is `filename`.
    """
    format_name = getattr(getattr(running_shell(), "compile", None), "format_code_name", None)
    label = None if format_name is None else format_name(filename)
    return filename if label is None else str(label[1])
