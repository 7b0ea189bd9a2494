# SPDX-License-Identifier: Apache-2.0
"""The places where IPython and the interpreter keep values of the past.

A holding is one value with all the references that must go before it can be freed: an
output is in `Out`, under `_7`, perhaps under `_`, and once more inside of IPython.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

__all__ = ["Holding", "find_holdings", "let_go"]

_NEWEST = ("_", "__", "___")
_LAST = ("last_exc", "last_value", "last_traceback")


@dataclass
class Holding:
    """One value that something keeps. This refers to the value too: drop it soon.

    Attributes:
        names: What a reader calls the references.
        kind: "output", "exception" or "input".
        type: The value's type, with its module.
        pairs: Container, value, container, value: the references, for the core.
        drop: What lets go of each.
    """

    names: tuple[str, ...]
    kind: str
    type: str
    pairs: list[Any] = field(default_factory=list)
    drop: list[Callable[[], object]] = field(default_factory=list)


@dataclass
class _Reference:
    """A place that holds a value: an entry of a dict, or an attribute."""

    name: str
    container: object
    value: object
    drop: Callable[[], object]


def find_holdings() -> list[Holding]:
    """All values that are still held, each once: outputs, exceptions, and the input history."""
    shell = _shell()
    found: dict[object, Holding] = {}
    for reference in _outputs(shell):
        _add(found, "output", id(reference.value), reference)
    error = vars(sys).get("last_exc", vars(sys).get("last_value"))
    for reference in _exceptions(shell):
        # A traceback goes with its exception.
        owner = error if isinstance(reference.value, TracebackType) else reference.value
        _add(found, "exception", id(owner), reference)
    holdings = list(found.values())
    inputs = shell.user_ns.get("In") if shell is not None else None
    if type(inputs) is list and len(inputs) > 1:
        holdings.append(Holding((f"In[1:{len(inputs)}]",), "input", "list"))
    return holdings


def let_go(holdings: list[Holding]) -> None:
    """Drop every reference of these; the list is emptied."""
    while holdings:
        holding = holdings.pop()
        holding.pairs.clear()
        while holding.drop:
            holding.drop.pop()()


def _add(found: dict[object, Holding], kind: str, owner: int, reference: _Reference) -> None:
    cls = type(reference.value)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    holding = found.setdefault((kind, owner), Holding((), kind, f"{module}{cls.__qualname__}"))
    if reference.name not in holding.names:
        holding.names += (reference.name,)
    holding.pairs += [reference.container, reference.value]
    holding.drop.append(reference.drop)


def _shell() -> Any:
    """IPython's shell, where one runs in this process."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shell_type = getattr(module, "InteractiveShell", None)
    shell = getattr(shell_type, "_instance", None)
    return shell if type(getattr(shell, "user_ns", None)) is dict else None


def _entry(space: dict[Any, Any], key: object, name: str, empty: object = None) -> _Reference:
    """An entry of a dict; `empty` takes its place afterwards, or nothing if None."""

    def drop() -> None:
        if empty is None:
            space.pop(key, None)
        elif key in space:
            space[key] = empty

    return _Reference(name, space, space[key], drop)


def _attributes(owner: object, names: tuple[str, ...], text: str) -> Iterator[_Reference]:
    """Attributes of an object of IPython's own that hold something; set to None."""
    space = getattr(owner, "__dict__", None)
    for name in names:
        if type(space) is dict and not _is_nothing(space.get(name)):
            value = space[name]

            def drop(name: str = name) -> None:
                setattr(owner, name, "" if name in _NEWEST else None)

            # Where the object keeps its attributes without a dict, it is the container.
            yield _Reference(text.format(name), space, value, drop)
            yield _Reference(text.format(name), owner, value, drop)


def _is_nothing(value: object) -> bool:
    return value is None or (type(value) is str and not value)


def _outputs(shell: Any) -> Iterator[_Reference]:
    if shell is None:
        # gettext may have put its function there; only a prompt puts a result there.
        if hasattr(sys, "ps1") and not _is_nothing(vars(builtins).get("_")):
            yield _entry(vars(builtins), "_", "_")
        return
    # In a second namespace IPython remembers its own names, with their values.
    hidden = getattr(shell, "user_ns_hidden", None)
    spaces = [shell.user_ns, *([hidden] if type(hidden) is dict else [])]
    out = shell.user_ns.get("_oh")
    if isinstance(out, dict):
        for number in list(out):
            yield _entry(out, number, f"Out[{number}]")
            name = f"_{number}"
            for space in spaces:
                if name in space and space[name] is out[number]:
                    yield _entry(space, name, name)
    for space in spaces:
        for name in _NEWEST:
            if not _is_nothing(space.get(name)):
                yield _entry(space, name, name, empty="")
    yield from _attributes(getattr(shell, "displayhook", None), _NEWEST, "{}")
    result = getattr(shell, "last_execution_result", None)
    yield from _attributes(result, ("result",), "IPython's last result")


def _exceptions(shell: Any) -> Iterator[_Reference]:
    space = vars(sys)
    for name in _LAST:
        if not _is_nothing(space.get(name)):
            yield _entry(space, name, f"sys.{name}")
    if shell is None:
        return
    for owner in ("InteractiveTB", "SyntaxTB"):
        formatter = getattr(shell, owner, None)
        yield from _attributes(formatter, ("evalue", "tb"), f"IPython's {owner}.{{}}")
    result = getattr(shell, "last_execution_result", None)
    names = ("error_in_exec", "error_before_exec")
    yield from _attributes(result, names, "IPython's last result")
