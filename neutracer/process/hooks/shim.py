# SPDX-License-Identifier: Apache-2.0
"""The compiled hooks of this process: loaded once, or why there are none."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from neutracer._native import core, load_hooks
from neutracer.errors import UnavailableError
from neutracer.process.hooks.build import PREBUILT, Target, build, find, target
from neutracer.process.hooks.check import FALLBACK, difference

__all__ = ["call", "load", "loaded", "loaded_path", "try_load", "why_none"]


_COMPILING = (
    "neutracer: compiling its hooks on the allocator of torch {}, once, which takes some seconds"
)


class _Shim:
    """The loaded module of this process, or why there is none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.module: Any = None
        self.path: Path | None = None
        self.failure: UnavailableError | None = None
        self.told = False


_shim = _Shim()


def load(*, compile: bool = True) -> Any:
    """The module `_torch`; what no wheel has is compiled at its first use here (some seconds).

    This attaches nothing.

    Args:
        compile: False takes only what is compiled already.

    Raises:
        UnavailableError: torch is not imported, is not one that the hooks are known to
            fit, does not behave as they expect, or they can't be compiled here;
            `.install` has the reason.
    """
    with _shim.lock:
        if _shim.module is not None:
            return _shim.module
        if _shim.failure is not None:
            raise _shim.failure
        if "torch" not in sys.modules:
            raise UnavailableError("torch in this process", "import torch first")
        goal = target()
        path = find(goal)
        if path is not None and path.is_relative_to(PREBUILT.resolve()) and not _loads(path):
            path = None
        if path is None and not compile:
            raise UnavailableError("a compiled module of hooks", "run 'neutracer setup hooks'")
        try:
            path = path or _built(goal)
            module = _connected(path)
        except UnavailableError as error:
            # What failed once is not tried again at every call.
            _shim.failure = error
            raise
        _shim.module, _shim.path = module, path
        return module


def _loads(path: Path) -> bool:
    """Whether a wheel's module can be loaded; the C++ library here may be too old for it."""
    try:
        load_hooks(path)
    except ImportError:
        return False
    return True


def _built(goal: Target) -> Path:
    # Whoever waits is to know for what.
    print(_COMPILING.format(goal.torch.version), file=sys.stderr, flush=True)
    return build(goal)


def _connected(path: Path) -> ModuleType:
    what = "use of the hooks on PyTorch's allocator"
    try:
        module = load_hooks(path)
        differs = difference(module)
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(what, str(error)) from error
    if differs:
        version = sys.modules["torch"].__version__
        raise UnavailableError(
            what, f"torch {version} is not as they need it: {differs}; {FALLBACK}"
        )
    core.live_set_source(module.live_source)
    return module


def try_load(*, compile: bool = True) -> Any:
    """The module `_torch`, or None; a warning says once why there is none.

    Args:
        compile: False takes only what is compiled already.
    """
    try:
        return load(compile=compile)
    except UnavailableError as error:
        with _shim.lock:
            told, _shim.told = _shim.told, True
        if not told:
            warnings.warn(f"neutracer uses PyTorch's Python entry points: {error}", stacklevel=3)
        return None


def why_none() -> str:
    """Why there are no hooks here, which is not warned of any more; "" where there are."""
    try:
        load()
    except UnavailableError as error:
        with _shim.lock:
            _shim.told = True
        return str(error)
    return ""


def loaded() -> Any:
    """The module `_torch` if this process has loaded it, else None."""
    return _shim.module


def loaded_path() -> Path | None:
    """Where the loaded module is, or None."""
    return _shim.path


def call(function: Callable[..., object], *arguments: object) -> None:
    """Call a function of the shim.

    Raises:
        UnavailableError: PyTorch refused; `.install` has its reason.
    """
    try:
        function(*arguments)
    except RuntimeError as error:
        raise UnavailableError("following PyTorch's allocator", str(error)) from error
