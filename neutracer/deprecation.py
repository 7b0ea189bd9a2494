# SPDX-License-Identifier: Apache-2.0
"""How a public function says that it will go (docs/stability.md)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["deprecated"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def deprecated(since: str, instead: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make each call of a function or method warn its caller.

    Args:
        since: The release that is the first to warn, as "1.2".
        instead: What to call, as it would be written.

    Returns:
        A decorator. What it returns does the same, after a `DeprecationWarning`, and says so
        in its docstring.

    Example:
        >>> @deprecated("1.2", "total(sizes)")
        ... def add(sizes: list[int]) -> int:
        ...     return sum(sizes)
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     add([1, 2])
        3
        >>> print(told[0].message)
        add() is deprecated since neutracer 1.2: use total(sizes)
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        text = f"{function.__name__}() is deprecated since neutracer {since}: use {instead}"

        @functools.wraps(function)
        def warned(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            # 2: the line that called it.
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        note = f"Deprecated since {since}: use {instead}."
        warned.__doc__ = f"{function.__doc__ or ''}\n\n{note}".lstrip()
        return warned

    return decorate
