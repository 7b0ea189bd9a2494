# SPDX-License-Identifier: Apache-2.0
"""Checks of public functions' arguments, with errors that name them; notebook cells."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

# ---- Arguments ---------------------------------------------------------------------------


def _no(name: str, wanted: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def number(name: str, value: Any, wanted: str = "a number") -> Any:
    """`value`, which is an int, a float or one of NumPy's.

    Args:
        name: What the caller calls it.
        value: What was given.
        wanted: What it should be, as a noun with its unit: "a number of seconds".

    Raises:
        TypeError: It is something else; a bool too.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _no(name, wanted, value)
    return value


def whole_number(
    name: str, value: Any, wanted: str = "a whole number", least: int | None = None
) -> int:
    """`value` as an int; NumPy's integers are taken too.

    Args:
        name: What the caller calls it.
        value: What was given.
        wanted: What it should be, as a noun.
        least: The least that it may be.

    Raises:
        TypeError: It is something else; a bool too.
        ValueError: It is below `least`.
    """
    if isinstance(value, (bool, type)) or not hasattr(value, "__index__"):
        raise _no(name, wanted, value)
    try:
        found = operator.index(value)
    except TypeError:
        # An array of several has the method too.
        raise _no(name, wanted, value) from None
    if least is not None and found < least:
        wrong = f"it must be {least} or more" if least else "it must not be negative"
        raise ValueError(f"{name} is {found}: {wrong}")
    return found


def number_pair(name: str, value: Any, *, whole: bool = False) -> tuple[Any, Any]:
    """`value` as a tuple of two numbers.

    Raises:
        TypeError: It is no pair, or not of numbers.
        ValueError: It is of another length, or one of the two is not a number (nan).
    """
    wanted = "two whole numbers" if whole else "two numbers"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _no(name, wanted, value)
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
    """Check something that is called with each `what`, or None.

    Raises:
        TypeError: It can't be called.
    """
    if value is not None and not callable(value):
        raise TypeError(
            f"{name} is called with each {what}: a {type(value).__name__} can't be called"
        )


def text(name: str, value: Any) -> str:
    """`value`, which is a str.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, str):
        raise _no(name, "a text", value)
    return value


def several(name: str, value: Any, wanted: str) -> list[Any]:
    """`value`, a list of things or what gives them one by one, as a list.

    Args:
        name: What the caller calls it.
        value: What was given.
        wanted: What they should be, as a plural.

    Raises:
        TypeError: It is something else; a text too.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _no(name, f"a list of {wanted}", value)
    return list(value)


def path_name(value: str | bytes | os.PathLike[Any], name: str = "path") -> str:
    """A path as text.

    Args:
        value: What was given.
        name: What the caller calls it.

    Raises:
        TypeError: It is no path.
        ValueError: It has a null character, which no file system takes.
    """
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _no(name, "a path (a str or an os.PathLike)", value)
    text = os.fsdecode(value)
    if "\0" in text:
        raise ValueError(f"{name} has a null character in it: {text!r}")
    return text


# ---- Cells -------------------------------------------------------------------------------


def reader_name(filename: str) -> str:
    """The name of a file as a reader knows it: "In[3]" for that of the third cell.

    Args:
        filename: As a frame or a code object has it.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shell: Any = getattr(getattr(module, "InteractiveShell", None), "_instance", None)
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    told = None if named is None else named(filename)
    return filename if told is None else str(told[1])
