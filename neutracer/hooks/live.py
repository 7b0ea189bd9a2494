# SPDX-License-Identifier: Apache-2.0
"""`live()`: snapshots of this process from the rings of the hooks, without stopping it."""

from __future__ import annotations

import threading
import warnings
from typing import Any

from neutracer._native import core
from neutracer.arguments import whole_number
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError
from neutracer.hooks import shim as hooks
from neutracer.hooks.cache_calls import CACHE_CALLS, note_in_snapshot
from neutracer.hooks.modules import Marks, check_model, marks_by
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count

# The core's numbers of what an allocator serves.
_DEVICE_TYPES = {"cuda": 0, "cpu": 1}

# What is recorded where nobody says how much: events of each device, frames of each event.
_EVENTS = 100_000
_FRAMES = 8

# Tables of a ring that can be full: what then goes without, and why.
_LOST = (
    (
        "lost_stacks",
        "event",
        "had a stack that did not fit into the tables: the program has more call sites than are "
        "kept",
    ),
    (
        "lost_origins",
        "block",
        "did not fit among those whose stack is kept while they are in use: the program has more "
        "blocks",
    ),
)


class LiveTail:
    """`neutracer.live`: a call gives a snapshot; `stop` ends the recording."""

    def __init__(self) -> None:
        self._asked = (_EVENTS, _FRAMES)
        self._lock = threading.Lock()
        self._marks: Marks | None = None
        self._model: Any = None

    def __call__(
        self,
        max_events: int | None = None,
        frames: int | None = None,
        *,
        modules: Any = None,
    ) -> Snapshot:
        """The allocator's last events, and what it holds now.

        The first call begins to record, natively and without the GIL, and so gives the
        layout with no event before it; later ones give what has happened since. The
        layout is the one after the last event exactly, whatever other threads do. A
        block's stack is known if it was allocated since the recording began, however long
        ago, with Python on the thread's stack; a segment's if that event is still kept.

        On a torch built for CUDA the snapshot has the CUDA devices. On one built for the
        CPU it has what the calling thread, and PyTorch on its behalf, allocates on the
        CPU, as device 0: that allocator has no segments, and each block counts as a
        segment of its own that is reserved and given back with it.

        `history_complete()` of the snapshot is True only where the recording began
        before the device's first allocation and no event since then is missing.

        Args:
            max_events: The most events of each device that are kept and given; None for as
                many as the call before, at first 100,000. A ring takes 64 bytes an event,
                and tables of stacks some 13 MiB a device. More than before starts anew: what
                was recorded is lost.
            frames: Python frames recorded of each event, from the innermost, 0 to 64; None
                for as many as before, at first 8.
            modules: A model whose modules mark what they allocate from now on, or True for
                every model that is called, for `holders(by="module")`; None leaves it as it
                is. On CUDA this needs torch 2.10.

        Returns:
            The snapshot. Every analysis, `save` and the pictures work on it.

        Raises:
            UnavailableError: PyTorch's allocator can't be followed here; `.install` says
                why, and what to do. `neutracer.snapshot()` needs no hooks.
            ValueError: `max_events` is below 1, or `frames` not 0 to 64.
            TypeError: `modules` is no model.

        Example:
            >>> import neutracer
            >>> def watched(train_step):
            ...     neutracer.live()  # begins the recording
            ...     train_step()
            ...     return neutracer.live().timeline().peak("allocated")
        """
        events = self._asked[0] if max_events is None else max_events
        depth = self._asked[1] if frames is None else frames
        events = whole_number("max_events", events, "a number of events")
        check_model(modules)
        hooks.attach(events, depth)
        self._asked = (events, depth)
        if modules is not None:
            self._mark(modules)
        return take(hooks.load().backend, events)

    def stop(self) -> None:
        """End the recording; the next call begins a new one.

        PyTorch can't detach what listens to its allocator: it stays, but is silent.
        """
        hooks.silence()
        self._asked = (_EVENTS, _FRAMES)
        self._mark(None)

    def _mark(self, model: Any) -> None:
        """Let the modules of this model mark what they allocate, and no others."""
        with self._lock:
            if model is self._model:
                return
            if self._marks is not None:
                self._marks.detach()
            self._marks = None if model is None else marks_by(hooks.load(), model)
            self._model = model

    def __reduce__(self) -> str:
        # By its name, as a function goes: it is the same in every process.
        return "live"

    def __repr__(self) -> str:
        return "<neutracer.live: call it for a Snapshot of the last events>"


live = LiveTail()


def take(backend: str, max_events: int, *, quiet: bool = False) -> Snapshot:
    """A snapshot from the hooks that are connected, whether they record or not.

    Args:
        backend: "cuda" or "cpu".
        max_events: The most events of each device.
        quiet: Warn of nothing.

    Raises:
        UnavailableError: The allocator gave no layout.
    """
    before = CACHE_CALLS.now() if backend == "cuda" else {}
    try:
        native, tails = core.live_snapshot(_DEVICE_TYPES[backend], max_events)
    except (OSError, RuntimeError) as error:
        if isinstance(error, NeutracerError):
            raise
        raise UnavailableError("the layout of PyTorch's allocator", str(error)) from error
    note_in_snapshot(native, before)
    for key, noun, said in _LOST:
        lost = sum(tail[key] for tail in tails)
        if lost and not quiet:
            warnings.warn(f"{format_count(lost, noun)} {said}", HistoryWarning, stacklevel=3)
    return Snapshot(native)
