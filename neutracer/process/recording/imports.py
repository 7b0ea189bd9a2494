# SPDX-License-Identifier: Apache-2.0
"""An action when a program imports a module, and not before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]

_LOGGER = logging.getLogger("neutracer")


def when_imported(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Call something once a module has been imported: now, if it has been.

    This does not import the module, which so reads its environment when the program wants it
    to. What the action raises is logged, and does not reach the import.

    Args:
        name: The module's full name.
        action: What to call, at most once, in the importing thread.

    Returns:
        Takes it back, where it has not happened yet.

    Example:
        >>> done = []
        >>> cancel = when_imported("sys", lambda: done.append("imported"))
        >>> done
        ['imported']
    """
    if name in sys.modules:
        _act(action)
        return lambda: None
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.cancel


def _act(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        _LOGGER.exception("the action at an import failed")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as it would be found without this, and adds the action to it."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name = name
        self._action = action
        self._asking = threading.local()

    def cancel(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or getattr(self._asking, "others", False):
            return None
        self._asking.others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.others = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        # A program may look for a module and not import it: it is waited for until then.
        if self in sys.meta_path:
            self.cancel()
            self._action()


class _Loader(importlib.abc.Loader):
    """A module's own loader, and then the action."""

    def __init__(self, inner: Any, action: Callable[[], object]) -> None:
        self._inner = inner
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module finds itself as it would without this.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _act(self._action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
