# SPDX-License-Identifier: Apache-2.0
"""The loaded shim: attaching to the CUDA and CPU allocators."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from neutracer._native import core, load_hooks
from neutracer.arguments import whole_number
from neutracer.errors import UnavailableError
from neutracer.hooks.build import (
    FALLBACK,
    PREBUILT,
    PROFILER_FUNCTIONS,
    build,
    difference,
    find,
    target,
)
from neutracer.hooks.cache_calls import CACHE_CALLS

# ---- Shim --------------------------------------------------------------------------------

_COMPILING = "neutracer: compiling the allocator hooks for torch {}; this takes some seconds, once"


class _Shim:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.module: Any = None
        self.path: Path | None = None
        self.failure: UnavailableError | None = None
        self.reported = False


_shim = _Shim()


def load(*, compile: bool = True) -> Any:
    """Load the module `_torch`, compiling it at first use if needed; attaches nothing.

    Args:
        compile: False uses only a compiled module.
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
            if path is None:
                print(_COMPILING.format(goal.torch.version), file=sys.stderr, flush=True)
                path = build(goal)
            module = _connected(path)
        except UnavailableError as error:
            # Don't retry at every call.
            _shim.failure = error
            raise
        _shim.module, _shim.path = module, path
        return module


def _loads(path: Path) -> bool:
    """True if a wheel's module loads; the C++ library here may be too old."""
    try:
        load_hooks(path)
    except ImportError:
        return False
    return True


def _connected(path: Path) -> ModuleType:
    what = "use of the hooks on PyTorch's allocator"
    try:
        module = load_hooks(path)
        differs = difference(module)
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(what, str(error)) from error
    if differs:
        version = sys.modules["torch"].__version__
        raise UnavailableError(what, f"torch {version} is not supported: {differs}; {FALLBACK}")
    core.live_set_source(module.live_source)
    return module


def try_load() -> Any:
    """The module `_torch`, or None with one warning per process."""
    try:
        return load()
    except UnavailableError as error:
        with _shim.lock:
            reported, _shim.reported = _shim.reported, True
        if not reported:
            warnings.warn(f"neutracer uses PyTorch's Python entry points: {error}", stacklevel=3)
        return None


def why_none() -> str:
    """Why there are no hooks here, or ""; suppresses the warning of `try_load`."""
    try:
        load()
    except UnavailableError as error:
        with _shim.lock:
            _shim.reported = True
        return str(error)
    return ""


def loaded() -> Any:
    """The module `_torch` if this process has loaded it, else None."""
    return _shim.module


def call(function: Callable[..., object], *arguments: object) -> None:
    """Call a function of the shim."""
    try:
        function(*arguments)
    except RuntimeError as error:
        raise UnavailableError("following PyTorch's allocator", str(error)) from error


# ---- CPU ---------------------------------------------------------------------------------

# c10 reports to one slot per thread, and PyTorch's profiler refuses to start if it is taken. While
# threads are watched, wrappers around two functions of `torch.autograd.profiler` free the slot for
# the profiler and take it back afterwards.

_cpu_lock = threading.RLock()
_stepped_aside = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
_wrappers: dict[str, Callable[..., Any]] = {}


def watch_thread() -> None:
    """Also follow the calling thread's CPU allocations; a no-op for CUDA.

    This covers threads that called this or `attach`, and PyTorch's work for them on other
    threads (backward). PyTorch's profiler takes over a thread's reports while it runs, and the
    recording before is set apart. A block freed by an unwatched thread stays in the layout
    until its address is reused.
    """
    module = load()
    if module.backend != "cpu":
        return
    call(module.watch_thread)
    with _cpu_lock:
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if not _originals:
            _originals.update({name: getattr(profiler, name) for name in PROFILER_FUNCTIONS})
            _wrappers.update({"_enable_profiler": _enable, "_disable_profiler": _disable})
            for name, wrapper in _wrappers.items():
                setattr(profiler, name, wrapper)


def unwatch_thread() -> None:
    """Stop following the calling thread; the last one removes the wrappers."""
    module = loaded()
    if module is None or module.backend != "cpu":
        return
    call(module.unwatch_thread)
    _stepped_aside.value = False
    with _cpu_lock:
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if module.state()["threads"] == 0 and all(
            getattr(profiler, name) is wrapper for name, wrapper in _wrappers.items()
        ):
            for name, original in _originals.items():
                setattr(profiler, name, original)
            _originals.clear()
            _wrappers.clear()


def _enable(*arguments: Any, **options: Any) -> Any:
    module, original = loaded(), _original("_enable_profiler")
    _stepped_aside.value = module.unwatch_thread()
    try:
        return original(*arguments, **options)
    except BaseException:
        _come_back(module)
        raise


def _disable(*arguments: Any, **options: Any) -> Any:
    try:
        return _original("_disable_profiler")(*arguments, **options)
    finally:
        _come_back(loaded())


def _original(name: str) -> Callable[..., Any]:
    """PyTorch's function, also for a wrapper that was kept after its removal."""
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
            # Frees in between were reported to the profiler only.
            call(module.start, now["frames"])


# ---- Attach ------------------------------------------------------------------------------

# PyTorch can't detach an allocator's tracker: it is attached once, at its first use, and costs some
# ten ns per event from then on, even when silent.

_attach_lock = threading.RLock()


class _Wanted:
    """The users of events: callers of `attach`, and followers with their options."""

    def __init__(self) -> None:
        # The frames that `attach` asked for last; None: it was not called, or silenced.
        self.attached: int | None = None
        self.followers: dict[object, tuple[int, int]] = {}

    def forget(self) -> None:
        """Drop the parent's users in a forked child."""
        global _attach_lock
        _attach_lock = threading.RLock()
        self.attached = None
        self.followers.clear()

    def frames(self) -> int:
        """The most frames that any user needs."""
        return max(self.attached or 0, *(frames for _, frames in self.followers.values()), 0)


_wanted = _Wanted()
os.register_at_fork(after_in_child=_wanted.forget)


@dataclass(frozen=True)
class HookState:
    """The state of the hooks in this process."""

    built_at: str
    backend: str  # The allocator that is followed: "cuda" or "cpu".
    attached: bool  # The tracker is attached; it stays so until the process ends.
    active: bool
    frames: int
    events: int
    pushed: dict[int, int] = field(hash=False)
    threads: int  # Watched threads (CPU only).


def attach(events: int = 100_000, frames: int = 0) -> None:
    """Follow the allocator from now on, through one ring of events per device.

    PyTorch can't detach the tracker: `silence` makes it almost idle. A running recording goes
    on; more events make new rings. On a torch for the CPU this watches the calling thread and
    PyTorch's work for it.
    """
    events = min(whole_number("events", events), sys.maxsize)
    frames = whole_number("frames", frames)
    if events < 1 or not 0 <= frames <= 64:
        raise ValueError("events must be 1 or more, and frames 0 to 64")
    with _attach_lock:
        before, _wanted.attached = _wanted.attached, frames
        try:
            _begin(events)
        except BaseException:
            _wanted.attached = before
            raise


def _begin(events: int) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None and torch.cuda.device_count() == 0:
        # Before anything is compiled.
        raise UnavailableError(
            "a CUDA device in this process",
            "torch finds none, and a torch built for CUDA does not report its CPU allocations",
        )
    module = load()
    watch_thread()
    if module.backend == "cuda":
        # Before events are pushed: calls of empty_cache() are noted too.
        CACHE_CALLS.begin(sys.modules["torch"], _wanted)
    try:
        _record(module, events)
    finally:
        _note_no_calls(module)


def _note_no_calls(module: Any) -> None:
    if not module.state()["active"]:
        CACHE_CALLS.end(_wanted)


def _record(module: Any, events: int) -> None:
    now, frames = module.state(), _wanted.frames()
    if now["active"] and _capacity(now) >= events:
        if now["frames"] != frames:
            call(module.keep_frames, frames)
        return
    if _capacity(now) < events:
        call(module.attach, events)
    call(module.start, frames)


def follow(events: int, frames: int) -> Callable[[], None]:
    """As `attach`, until the returned function is called.

    Meanwhile `silence` changes nothing, and `attach` records at least as many frames.
    """
    key = object()
    with _attach_lock:
        _wanted.followers[key] = (events, frames)
        try:
            _begin(events)
        except BaseException:
            del _wanted.followers[key]
            raise

    def end() -> None:
        with _attach_lock:
            if _wanted.followers.pop(key, None) is not None and _wanted.attached is None:
                _stop()

    return end


def silence() -> None:
    """Record nothing until `attach`; a no-op with a follower or nothing attached.

    On CUDA the recording so far is set apart at once, since the layout changes without it.
    """
    with _attach_lock:
        _wanted.attached = None
        _stop()


def _stop() -> None:
    if not _wanted.followers and loaded() is not None and loaded().state()["active"]:
        call(loaded().stop)
        _note_no_calls(loaded())


def state() -> HookState | None:
    """The state of the hooks in this process; None if they are not loaded.

    Example:
        >>> now = state()
        >>> now is None or now.backend in ("cuda", "cpu")
        True
    """
    module = loaded()
    if module is None:
        return None
    now = module.state()
    return HookState(
        **{name: now[name] for name in ("attached", "active", "frames")},
        built_at=str(_shim.path),
        backend=module.backend,
        events=_capacity(now),
        pushed={device: pushed for device, pushed, _ in now["rings"]},
        threads=now.get("threads", 0),
    )


def _capacity(now: dict[str, Any]) -> int:
    return min((entries - 1 for _, _, entries in now["rings"]), default=0)
