# SPDX-License-Identifier: Apache-2.0
"""Actions after an import. It imports no other module of neutracer: it may run in any process."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(name: str, action: Callable[[], object]) -> Callable[[], None]:
    """Call a function once a module is imported: now, if it is already.

    The module itself is not imported. Exceptions of the function are logged.
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
        import logging

        logging.getLogger("neutracer").exception("the action at an import failed")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders, and adds the action to its loader."""

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
        # A program may look up the module without importing it: stay until it does.
        if self in sys.meta_path:
            self.cancel()
            self._action()


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, action: Callable[[], object]) -> None:
        self._inner = inner
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Hide this loader from the module.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _act(self._action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
