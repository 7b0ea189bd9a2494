# SPDX-License-Identifier: Apache-2.0
"""The CPU's allocator: which threads are watched, and how the watch makes way for the
profiler.

c10 reports to one place a thread, which PyTorch's profiler wants for itself: it refuses to
start where the place is taken. While threads are watched, wrappers around two functions of
`torch.autograd.profiler` free the place for a profiler, and the watch takes it again when the
profiler has gone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from neutracer.process.hooks.check import PROFILER_FUNCTIONS
from neutracer.process.hooks.shim import call, loaded

__all__ = ["unwatch_thread", "watch_thread"]

_lock = threading.RLock()
_stepped_aside = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
_wrappers: dict[str, Callable[..., Any]] = {}


def watch_thread(module: Any) -> None:
    """Watch the calling thread.

    Raises:
        UnavailableError: PyTorch's profiler is running in it.
    """
    call(module.watch_thread)
    with _lock:
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if not _originals:
            _originals.update({name: getattr(profiler, name) for name in PROFILER_FUNCTIONS})
            _wrappers.update({"_enable_profiler": _enable, "_disable_profiler": _disable})
            for name, wrapper in _wrappers.items():
                setattr(profiler, name, wrapper)


def unwatch_thread(module: Any) -> None:
    """Leave the calling thread alone; the last one to go takes the wrappers off.

    Raises:
        UnavailableError: Something else is on top of the watch, and must go first.
    """
    call(module.unwatch_thread)
    _stepped_aside.value = False
    with _lock:
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if module.state()["threads"] == 0 and all(
            getattr(profiler, name) is wrapper for name, wrapper in _wrappers.items()
        ):
            for name, original in _originals.items():
                setattr(profiler, name, original)
            _originals.clear()
            _wrappers.clear()


def _enable(*arguments: Any, **options: Any) -> Any:
    """PyTorch's `_enable_profiler`, with the watch out of its way."""
    module, original = loaded(), _original("_enable_profiler")
    _stepped_aside.value = module.unwatch_thread()
    try:
        return original(*arguments, **options)
    except BaseException:
        _come_back(module)
        raise


def _disable(*arguments: Any, **options: Any) -> Any:
    """PyTorch's `_disable_profiler`; the watch takes its place again."""
    try:
        return _original("_disable_profiler")(*arguments, **options)
    finally:
        _come_back(loaded())


def _original(name: str) -> Callable[..., Any]:
    """PyTorch's function, also for those who kept the wrapper after it was taken off."""
    kept = _originals.get(name)
    if kept is None:
        kept = getattr(sys.modules["torch.autograd"], name)
    return kept


def _come_back(module: Any) -> None:
    if getattr(_stepped_aside, "value", False):
        _stepped_aside.value = False
        call(module.watch_thread)
        now = module.state()
        if now["active"]:
            # What was freed in between was told to the profiler only.
            call(module.start, now["frames"])
