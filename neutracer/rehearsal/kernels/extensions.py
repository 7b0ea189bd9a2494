# SPDX-License-Identifier: Apache-2.0
"""Scratch memory of custom operators, as their authors register it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Scratch = int | tuple[int, int] | Sequence[int | tuple[int, int]]

_NAME = re.compile(r"\w+::\w+(\.\w+)?")

_registry: dict[str, Callable[[tuple[Any, ...], dict[str, Any], Any], Scratch]] = {}


def register_scratch(
    operator: str, function: Callable[[tuple[Any, ...], dict[str, Any], Any], Scratch] | None
) -> None:
    """Register the scratch memory of a custom operator, for all rehearsals of the process.

    An operator also needs a fake kernel (`torch.library.register_fake`), for its
    results.

    Args:
        operator: Its name, "my_extension::attention"; with an overload, "my_extension::add.out",
            for that one only.
        function: Gets the operator's arguments, its keyword arguments and its result, fake
            tensors with shapes and types, and gives the bytes: of one request, or of several
            in a list; (least, most) of one that is not known exactly. None removes the
            registration.

    Raises:
        TypeError: `function` can't be called.
        ValueError: `operator` is not an operator name.

    Example:
        >>> import neutracer
        >>> def scratch(args, kwargs, result):
        ...     query = args[0]
        ...     return [4 * query.numel(), (0, 1 << 20)]
        >>> neutracer.register_scratch("my_extension::attention", scratch)
        >>> neutracer.register_scratch("my_extension::attention", None)
    """
    if not isinstance(operator, str) or not _NAME.fullmatch(operator):
        raise ValueError(f"an operator has a name like 'extension::operator', not {operator!r}")
    if function is None:
        _registry.pop(operator, None)
        return
    if not callable(function):
        raise TypeError(f"function must be callable or None, not {type(function).__name__}")
    _registry[operator] = function


def registered_scratch(
    func: Any, args: Any, kwargs: Any, result: Any
) -> list[tuple[int, int, int]] | None:
    """Likely, least and most bytes of each request of a call; None if nothing is registered."""
    if not _registry:
        return None
    name, overload = func._schema.name, func._schema.overload_name
    function = _registry.get(f"{name}.{overload or 'default'}") or _registry.get(name)
    if function is None:
        return None
    found = function(args, kwargs, result)
    parts = list(found) if isinstance(found, list) else [found]
    return [_sizes(name, part) for part in parts]


def _sizes(name: str, part: Any) -> tuple[int, int, int]:
    both = part if isinstance(part, tuple) else (part, part)
    if len(both) != 2 or not all(isinstance(n, int) and n >= 0 for n in both) or both[0] > both[1]:
        raise ValueError(
            f"the scratch function of {name} returned {part!r}, which is neither a number of bytes "
            "nor (least, most)"
        )
    return (both[0] + both[1]) // 2, both[0], both[1]
