# SPDX-License-Identifier: Apache-2.0
"""Values of a pickle, made equal where they mean the same."""

from __future__ import annotations

from typing import Any


def comparable(value: Any) -> Any:
    """The same without what makes equal things unequal: the order of keys is settled,
    and a number that is none equals itself."""
    if isinstance(value, dict):
        return [(key, comparable(value[key])) for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(map(comparable, value))
    return repr(value) if isinstance(value, float) else value


def wrapped(value: Any) -> Any:
    """Integers as the C++ pickler writes them, whatever their size."""
    if isinstance(value, int) and not isinstance(value, bool):
        value &= (1 << 64) - 1
        return value - (1 << 64) if value >> 63 else value
    if isinstance(value, dict):
        return {key: wrapped(item) for key, item in value.items()}
    return type(value)(map(wrapped, value)) if isinstance(value, (list, tuple)) else value
