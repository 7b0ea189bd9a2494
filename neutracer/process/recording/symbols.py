# SPDX-License-Identifier: Apache-2.0
"""PyTorch's frames spelt out without importing half of torch.

The first time that PyTorch spells out Python frames it asks whether `torch._inductor` is
there, to map frames of compiled code back to their source, and the question imports that
package, with some seconds and a hundred megabytes. Where nothing is compiled there are no
such frames, and the answer is no.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["light_symbols"]

_NAME = "_inductor"


class _NotImported(ModuleType):
    """Takes the place of `torch._inductor` until that is imported. To the threads that spell
    out frames it is empty. To any other it is the real package, imported on request, as it
    would have been without this.
    """

    def __init__(self) -> None:
        super().__init__(f"torch.{_NAME}")
        self.empty_for: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() in self.empty_for:
            raise AttributeError(name)
        return getattr(importlib.import_module(f"torch.{_NAME}"), name)


_lock = threading.Lock()


@contextlib.contextmanager
def light_symbols() -> Iterator[None]:
    """While this is open, frames that this thread has spelt out import nothing.

    Nothing is lost: where `torch._inductor` was imported it is used.

    Example:
        >>> with light_symbols():
        ...     pass  # torch.cuda.memory._snapshot()
    """
    torch = sys.modules.get("torch")
    thread = threading.get_ident()
    space = {} if torch is None else vars(torch)
    with _lock:
        stand_in = space.get(_NAME)
        if stand_in is None and torch is not None:
            stand_in = space[_NAME] = _NotImported()
        nested = not isinstance(stand_in, _NotImported) or thread in stand_in.empty_for
        if isinstance(stand_in, _NotImported):
            stand_in.empty_for.add(thread)
    try:
        yield
    finally:
        with _lock:
            if isinstance(stand_in, _NotImported) and not nested:
                stand_in.empty_for.discard(thread)
                # An import by another thread has put the real one in its place.
                if not stand_in.empty_for and space.get(_NAME) is stand_in:
                    del space[_NAME]
