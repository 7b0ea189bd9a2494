# SPDX-License-Identifier: Apache-2.0
"""The hooks on PyTorch's allocators: found or compiled, attached on request, silenced.

PyTorch can't detach an allocator's tracker or an out-of-memory observer: each is attached
at the first request and once, and costs some ten ns an event from then on even when silent.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from neutracer.arguments import whole_number
from neutracer.errors import UnavailableError
from neutracer.process.hooks.cpu import unwatch_thread as unwatch_here
from neutracer.process.hooks.cpu import watch_thread as watch_here
from neutracer.process.hooks.oom import (
    OomFact,
    OomSubscription,
    on_oom,
    oom_descriptor,
    oom_errors,
    oom_facts,
)
from neutracer.process.hooks.shim import call, load, loaded, loaded_path, try_load, why_none
from neutracer.process.recording.cache_calls import CACHE_CALLS

__all__ = [
    "HookState",
    "OomFact",
    "OomSubscription",
    "attach",
    "device_stats",
    "follow",
    "load",
    "on_oom",
    "oom_descriptor",
    "oom_errors",
    "oom_facts",
    "resume",
    "silence",
    "state",
    "try_load",
    "unwatch_thread",
    "watch_thread",
    "why_none",
]

_lock = threading.RLock()


class _Wanted:
    """Who wants events: whoever called `attach`, and followers with what they asked for."""

    def __init__(self) -> None:
        self.attached = False
        self.followers: dict[object, tuple[int, int]] = {}

    def forget(self) -> None:
        """Start anew in the child of a fork: its parent's followers are not there."""
        global _lock
        _lock = threading.RLock()
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
    with _lock:
        _begin(events, frames)
        _wanted.attached = True


def _begin(events: int, frames: int) -> None:
    _refuse_without_device()
    module = load()
    if module.backend == "cpu":
        watch_here(module)
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
    with _lock:
        _begin(events, frames)
        _wanted.followers[key] = (events, frames)

    def end() -> None:
        with _lock:
            if _wanted.followers.pop(key, None) is not None and not _wanted.attached:
                _stop()

    return end


def silence() -> None:
    """Record nothing until `resume` or `attach`; fine where nothing is attached.

    On CUDA what was recorded is set apart at once, since the layout goes on without it.
    Where something follows (`follow`) it goes on.
    """
    with _lock:
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
        watch_here(module)


def unwatch_thread() -> None:
    """Leave the calling thread alone again.

    Raises:
        UnavailableError: Something else was put on top, and must go first.
    """
    if loaded() is not None and loaded().backend == "cpu":
        unwatch_here(loaded())


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
