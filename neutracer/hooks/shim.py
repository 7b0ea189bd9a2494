# SPDX-License-Identifier: Apache-2.0
"""The loaded shim: attaching to CUDA's and the CPU's allocators, detaching, and OOM callbacks."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from neutracer._native import core, load_hooks
from neutracer.arguments import whole_number
from neutracer.errors import UnavailableError
from neutracer.hooks.build import (
    FALLBACK,
    PREBUILT,
    PROFILER_FUNCTIONS,
    Target,
    build,
    difference,
    find,
    target,
)
from neutracer.hooks.cache_calls import CACHE_CALLS

# ---- Shim --------------------------------------------------------------------------------

# The compiled hooks of this process: loaded once, or why there are none.

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


# ---- Cpu ---------------------------------------------------------------------------------

# The CPU's allocator: which threads are watched, and how the watch makes way for the
# profiler.
#
# c10 reports to one place a thread, which PyTorch's profiler wants for itself: it refuses to
# start where the place is taken. While threads are watched, wrappers around two functions of
# `torch.autograd.profiler` free the place for a profiler, and the watch takes it again when the
# profiler has gone.

_cpu_lock = threading.RLock()
_stepped_aside = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
_wrappers: dict[str, Callable[..., Any]] = {}


def watch_cpu_thread(module: Any) -> None:
    """Watch the calling thread.

    Raises:
        UnavailableError: PyTorch's profiler is running in it.
    """
    call(module.watch_thread)
    with _cpu_lock:
        profiler: Any = sys.modules.get("torch.autograd.profiler")
        if not _originals:
            _originals.update({name: getattr(profiler, name) for name in PROFILER_FUNCTIONS})
            _wrappers.update({"_enable_profiler": _enable, "_disable_profiler": _disable})
            for name, wrapper in _wrappers.items():
                setattr(profiler, name, wrapper)


def unwatch_cpu_thread(module: Any) -> None:
    """Leave the calling thread alone; the last one to go takes the wrappers off.

    Raises:
        UnavailableError: Something else is on top of the watch, and must go first.
    """
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


# ---- Oom ---------------------------------------------------------------------------------

# Out of memory: the observer on PyTorch's allocator, and its listeners.

#: Errors of callbacks that are kept.
_MOST_ERRORS = 32


@dataclass(frozen=True)
class OomFact:
    """What was known when an allocator ran out of memory.

    Attributes:
        device: The device's number; of the CPU's allocator 0.
        asked_bytes: The request, rounded to the segment that it needed.
        total_bytes: The device's bytes, or the cap where a fraction is set.
        free_bytes: The device's free bytes.
        time_ns: When, since the epoch.
        thread_id: The operating system's id of the asking thread.
    """

    device: int
    asked_bytes: int
    total_bytes: int
    free_bytes: int
    time_ns: int
    thread_id: int


class OomSubscription:
    """A callback for out-of-memory events. Use as a context manager, or call `remove`."""

    def __init__(self, callback: Callable[[OomFact], object]) -> None:
        self._callback: Callable[[OomFact], object] | None = callback

    def remove(self) -> None:
        """Call the callback no more; PyTorch keeps the observer, which then does nothing."""
        with _oom_lock:
            self._callback = None
            if self in _listeners:
                _listeners.remove(self)

    def __enter__(self) -> OomSubscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()

    def _tell(self, fact: OomFact) -> None:
        callback = self._callback
        if callback is not None:
            callback(fact)


_oom_lock = threading.RLock()
_listeners: list[OomSubscription] = []
_errors: list[str] = []


def on_oom(callback: Callable[[OomFact], object]) -> OomSubscription:
    """Call `callback` when the allocator runs out of memory, before the exception is raised.

    The call is in the asking thread, without the allocator's lock. What it raises does not
    reach the program, which gets PyTorch's own exception; `oom_errors` has it.

    Args:
        callback: Gets the `OomFact`. It is not called for errors that it causes itself.

    Raises:
        UnavailableError: There are no hooks, or CUDA was not initialised.
    """
    module = load()
    subscription = OomSubscription(callback)
    with _oom_lock:
        call(module.attach_oom)
        _listeners.append(subscription)
        module.oom_listen(_on_oom)
    return subscription


def _on_oom(*figures: int) -> None:
    fact = OomFact(*figures)
    for listener in list(_listeners):
        try:
            listener._tell(fact)
        except BaseException as error:
            del _errors[: 1 - _MOST_ERRORS]
            _errors.append(f"{type(error).__name__}: {error}")


def oom_errors() -> list[str]:
    """What callbacks of `on_oom` raised, the latest last, as text."""
    last = None if loaded() is None else loaded().oom_error()
    return [*_errors, *([last] if last else [])]


def oom_facts() -> list[OomFact]:
    """The last out-of-memory events since the observer was attached, the oldest first."""
    if loaded() is None:
        return []
    rows = loaded().oom_facts()
    return [
        OomFact(device, asked, total, free, time_ns, thread)
        for _, device, asked, total, free, time_ns, thread in rows
    ]


def oom_descriptor() -> int:
    """An eventfd that becomes readable with each out-of-memory event; reading resets it.

    Raises:
        UnavailableError: There are no hooks, CUDA was not initialised, or there is no
            descriptor left.
    """
    module = load()
    call(module.attach_oom)
    descriptor: int = module.oom_descriptor()
    if descriptor < 0:
        raise UnavailableError("a file descriptor", "close some, or raise the limit")
    return descriptor


# ---- Attach ------------------------------------------------------------------------------

# The hooks on PyTorch's allocators: found or compiled, attached on request, silenced.
#
# PyTorch can't detach an allocator's tracker or an out-of-memory observer: each is attached
# at the first request and once, and costs some ten ns an event from then on even when silent.

_attach_lock = threading.RLock()


class _Wanted:
    """Who wants events: whoever called `attach`, and followers with what they asked for."""

    def __init__(self) -> None:
        self.attached = False
        self.followers: dict[object, tuple[int, int]] = {}

    def forget(self) -> None:
        """Start anew in the child of a fork: its parent's followers are not there."""
        global _attach_lock
        _attach_lock = threading.RLock()
        self.attached = False
        self.followers.clear()

    def frames(self, asked: int) -> int:
        """The frames that an event has to have where somebody asks for so many."""
        return max(asked, *(frames for _, frames in self.followers.values()), 0)


_wanted = _Wanted()
os.register_at_fork(after_in_child=_wanted.forget)


@dataclass(frozen=True)
class HookState:
    """What the hooks do in this process.

    Attributes:
        built_at: The compiled module.
        built_for: The version of torch that it was built for.
        backend: "cuda" or "cpu": whose allocator is followed.
        attached: The tracker is attached; it stays so until the process ends.
        active: It records.
        frames: Python frames that are kept of each event.
        frames_refused: Why no frames can be kept in this interpreter, or "".
        events: Events that each ring keeps.
        pushed: Events that were pushed so far, by device.
        oom_attached: The out-of-memory observer is attached; it stays so as well.
        ooms: Out-of-memory events seen since then.
        threads: Threads that asked to be watched (CPU only).
        gaps: Times when reports went to PyTorch's profiler or another one (CPU only).
    """

    built_at: str
    built_for: str
    backend: str
    attached: bool
    active: bool
    frames: int
    frames_refused: str
    events: int
    pushed: dict[int, int] = field(hash=False)
    oom_attached: bool
    ooms: int
    threads: int
    gaps: int


def attach(events: int = 100_000, frames: int = 0) -> None:
    """Follow the allocator from now on, through a ring of events for each device.

    PyTorch can't detach the tracker: `silence` makes it almost idle. It does not disturb what
    already runs; another number of events makes new rings. On a torch for the CPU the calling
    thread is watched, and what PyTorch runs for it.

    Args:
        events: How many each ring keeps; older ones are overwritten. 64 bytes each.
        frames: Python frames kept of each event, from the innermost, at most 64.

    Raises:
        UnavailableError: There are no hooks here, or no device for a torch that is built
            for CUDA; CUDA was not initialised, another allocator than PyTorch's own is in
            use, PyTorch's profiler is running in this thread (CPU), or frames can't be read
            in this interpreter.
        ValueError: `events` is below 1, or `frames` not 0 to 64.
    """
    events = min(whole_number("events", events), sys.maxsize)
    frames = whole_number("frames", frames)
    if events < 1 or not 0 <= frames <= 64:
        raise ValueError("events must be 1 or more, and frames 0 to 64")
    with _attach_lock:
        _begin(events, frames)
        _wanted.attached = True


def _begin(events: int, frames: int) -> None:
    _refuse_without_device()
    module = load()
    if module.backend == "cpu":
        watch_cpu_thread(module)
    _note_calls(module)
    try:
        _record(module, events, frames)
    finally:
        _note_no_calls(module)


def _note_calls(module: Any) -> None:
    """Note the calls of empty_cache() too, before events are pushed."""
    if module.backend == "cuda":
        CACHE_CALLS.begin(sys.modules["torch"], _wanted)


def _note_no_calls(module: Any) -> None:
    """Note them no longer where no events are pushed."""
    if not module.state()["active"]:
        CACHE_CALLS.end(_wanted)


def _record(module: Any, events: int, frames: int) -> None:
    now = module.state()
    frames = _wanted.frames(frames)
    if now["active"] and _capacity(now) >= events:
        if now["frames"] != frames:
            call(module.keep_frames, frames)
        return
    if _capacity(now) < events:
        call(module.attach, events)
    call(module.start, frames)


def follow(events: int, frames: int) -> Callable[[], None]:
    """Do what `attach` does, until what this returns is called.

    Meanwhile `silence` changes nothing, and `attach` records as many frames at least.

    Args:
        events: As for `attach`.
        frames: As for `attach`.

    Returns:
        Ends it. Where nobody else wants events the hooks are silent then.

    Raises:
        UnavailableError: As for `attach`.
    """
    key = object()
    with _attach_lock:
        _begin(events, frames)
        _wanted.followers[key] = (events, frames)

    def end() -> None:
        with _attach_lock:
            if _wanted.followers.pop(key, None) is not None and not _wanted.attached:
                _stop()

    return end


def silence() -> None:
    """Record nothing until `resume` or `attach`; fine where nothing is attached.

    On CUDA what was recorded is set apart at once, since the layout goes on without it.
    Where something follows (`follow`) it goes on.
    """
    with _attach_lock:
        _wanted.attached = False
        _stop()


def _stop() -> None:
    if not _wanted.followers and loaded() is not None and loaded().state()["active"]:
        call(loaded().stop)
        _note_no_calls(loaded())


def resume(frames: int | None = None) -> None:
    """Record again; what was recorded before `silence` is set apart.

    Args:
        frames: As for `attach`; None for none.

    Raises:
        UnavailableError: Nothing is attached.
    """
    module = loaded()
    if module is None or not module.state()["attached"]:
        raise UnavailableError("an attached tracker", "call attach() first")
    if not module.state()["active"]:
        _note_calls(module)
        try:
            call(module.start, _wanted.frames(frames or 0))
        finally:
            _note_no_calls(module)


def state() -> HookState | None:
    """What the hooks do in this process; None where they were not loaded.

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
        built_at=str(loaded_path()),
        built_for=module.built_for,
        backend=module.backend,
        attached=now["attached"],
        active=now["active"],
        frames=now["frames"],
        frames_refused=module.frames_refused,
        events=_capacity(now),
        pushed={device: pushed for device, pushed, _ in now["rings"]},
        oom_attached=now["oom_attached"],
        ooms=now["ooms"],
        threads=now.get("threads", 0),
        gaps=now.get("gaps", 0),
    )


def device_stats(device: int) -> dict[str, int]:
    """The figures of `torch.cuda.memory_stats(device)` under the same keys, without the GIL.

    Args:
        device: The device's number. -1 is the CPU where its allocator is followed: what
            the watched threads allocated since.

    Raises:
        UnavailableError: There are no hooks, no such device, or CUDA is not initialised.
    """
    stats: dict[str, int] | None = load().device_stats(device)
    if stats is None:
        raise UnavailableError(f"device {device} in this process", "use the device first")
    return stats


def watch_thread() -> None:
    """Follow what the calling thread allocates on the CPU too; nothing to do for CUDA.

    Seen are threads that called this or `attach`, and what PyTorch runs for them on others
    (backward). While PyTorch's profiler runs in a thread it gets the reports, and what was
    recorded before is set apart. A block that a watched thread allocated and another one
    frees stays in the layout until its address is given out again.

    Raises:
        UnavailableError: There are no hooks, or PyTorch's profiler is running here.
    """
    module = load()
    if module.backend == "cpu":
        watch_cpu_thread(module)


def unwatch_thread() -> None:
    """Leave the calling thread alone again.

    Raises:
        UnavailableError: Something else was put on top, and must go first.
    """
    if loaded() is not None and loaded().backend == "cpu":
        unwatch_cpu_thread(loaded())


def _refuse_without_device() -> None:
    """Before anything is compiled: a torch for CUDA without a device has nothing to follow."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None and torch.cuda.device_count() == 0:
        raise UnavailableError(
            "a CUDA device in this process",
            "torch sees none, and one that is built for CUDA does not report what it allocates "
            "on the CPU",
        )


def _capacity(now: dict[str, Any]) -> int:
    """Events that each ring keeps; a ring keeps one less than it has entries."""
    return min((entries - 1 for _, _, entries in now["rings"]), default=0)
