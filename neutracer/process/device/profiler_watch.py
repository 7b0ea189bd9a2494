# SPDX-License-Identifier: Apache-2.0
"""A call before PyTorch's profiler takes CUPTI.

PyTorch has no hook for this, but there is one way in: every profiler that records on the
device, with a schedule or without, calls `torch.autograd.profiler._prepare_profiler` by its
name in that module before it touches CUPTI. While somebody waits for that, the name leads
to a function here, which calls the waiting function and then PyTorch's own. Afterwards it
is PyTorch's again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ProfilerWatch", "profiler_is_active"]

_NAME = "_prepare_profiler"

_lock = threading.Lock()


def _profiler_module() -> Any:
    return sys.modules.get("torch.autograd.profiler")


def profiler_is_active() -> bool:
    """Whether PyTorch's profiler is recording, according to PyTorch itself."""
    return bool(getattr(_profiler_module(), "_is_profiler_enabled", False))


class ProfilerWatch:
    """Calls a function before a profiler of the device begins, until it is removed."""

    def __init__(self, before: Callable[[], None]) -> None:
        """Begin to watch.

        Args:
            before: Is called in the thread that starts the profiler, each time, before
                the profiler does anything.
        """
        self._before: Callable[[], None] | None = before
        self._module = _profiler_module()
        self._replaced: Any = None
        with _lock:
            original = getattr(self._module, _NAME, None)
            if original is not None:
                self._replaced = original
                self._stand_in = self._make(original)
                setattr(self._module, _NAME, self._stand_in)

    @property
    def is_watching(self) -> bool:
        """False where this torch has no such function, or none was imported."""
        return self._before is not None and self._replaced is not None

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_profiler(config: Any, activities: Any, *rest: Any, **more: Any) -> Any:
            before = self._before
            if before is not None and _uses_device(activities):
                before()
            return original(config, activities, *rest, **more)

        return prepare_profiler

    def remove(self) -> None:
        """End the watch; if somebody else has replaced the name since, it only goes silent."""
        self._before = None
        with _lock:
            if self._replaced is not None and getattr(self._module, _NAME) is self._stand_in:
                setattr(self._module, _NAME, self._replaced)
            self._replaced = None


def _uses_device(activities: Any) -> bool:
    """Whether these activities of a profiler take CUPTI; those that can't be read might."""
    try:
        return any(str(activity).endswith("CUDA") for activity in activities)
    except TypeError:
        return True
