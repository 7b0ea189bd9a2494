# SPDX-License-Identifier: Apache-2.0
"""`live()`: snapshots of this process from the rings of the hooks, without stopping it."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any

from neutracer._native import core
from neutracer.arguments import whole_number
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError
from neutracer.hooks import shim as hooks
from neutracer.hooks.cache_calls import CACHE_CALLS, note_in_snapshot
from neutracer.hooks.modules import Marks, check_model, marks_by
from neutracer.monitor.phases import mark_snapshot
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count

# The core's numbers.
_DEVICE_TYPES = {"cuda": 0, "cpu": 1}

# Defaults: events per device, frames per event.
_EVENTS = 100_000
_FRAMES = 8

# Tables of a ring that can fill up: key, subject and text of the warning.
_LOST = (
    (
        "lost_stacks",
        "event",
        "lost the stack: the program has more call sites than the tables hold",
    ),
    (
        "lost_origins",
        "block",
        "lost the stack: the program has more live blocks than the tables hold",
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
        holders: bool = False,
    ) -> Snapshot:
        """The allocator's last events, and what it holds now.

        The first call starts recording, natively and without the GIL, and returns the current
        layout without events; later calls return the events since. The layout is exactly the
        one after the last event, whatever other threads do. A block has a stack if it was
        allocated from Python since the recording began; a segment, if its event is still kept.

        On a torch built for CUDA the snapshot has the CUDA devices. On one built for the
        CPU, device 0 has the CPU allocations of the calling thread and of PyTorch on its
        behalf; that allocator has no segments, so each block counts as a segment of its own.

        `history_complete()` of the snapshot is True only if the recording began before the
        device's first allocation and no event is missing.

        Args:
            max_events: The most events kept per device; None keeps the last value, at first
                100,000. A ring takes 64 bytes per event, and tables of stacks some 13 MiB per
                device. A larger value discards the recording so far.
            frames: Python frames per event, from the innermost, 0 to 64; None keeps the last
                value, at first 8.
            modules: A model whose modules mark their allocations from now on, or True for
                every model that is called, for `holders(by="module")`; None changes nothing.
                On CUDA this needs torch 2.10.
            holders: Also ask who holds what is in use, for the dozen lines that hold most: some
                0.3 microseconds per object of the program, under the GIL. `report`, `explain`
                and `leak_trend` of the snapshot then say it.

        Returns:
            The snapshot. Every analysis, `save` and the pictures work on it.

        Raises:
            UnavailableError: PyTorch's allocator can't be followed here; `.install` says
                why, and what to do. `neutracer.snapshot()` needs no hooks.
            ValueError: `max_events` is below 1, or `frames` not 0 to 64.
            TypeError: `modules` is not a model.

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
        snap = take(hooks.load().backend, events)
        if holders:
            # Imports the walker of live objects, which a snapshot does not need.
            from neutracer.heap.owners import held_at_end

            snap.beside = replace(snap.beside, holders=held_at_end(snap))
        return snap

    def stop(self) -> None:
        """Stop recording; the next call starts anew. The tracker stays attached, but idle."""
        hooks.silence()
        self._asked = (_EVENTS, _FRAMES)
        self._mark(None)

    def _mark(self, model: Any) -> None:
        """Mark the allocations of this model's modules only."""
        with self._lock:
            if model is self._model:
                return
            if self._marks is not None:
                self._marks.detach()
            self._marks = None if model is None else marks_by(hooks.load(), model)
            self._model = model

    def __reduce__(self) -> str:
        # Pickled by name, as a function is.
        return "live"

    def __repr__(self) -> str:
        return "<neutracer.live: call it for a Snapshot of the last events>"


live = LiveTail()


def take(backend: str, max_events: int, *, quiet: bool = False) -> Snapshot:
    """A snapshot from the connected hooks of "cuda" or "cpu", whether they record or not."""
    before = CACHE_CALLS.now() if backend == "cuda" else {}
    try:
        native, tails = core.live_snapshot(_DEVICE_TYPES[backend], max_events)
    except (OSError, RuntimeError) as error:
        if isinstance(error, NeutracerError):
            raise
        raise UnavailableError("the layout of PyTorch's allocator", str(error)) from error
    note_in_snapshot(native, before)
    mark_snapshot(native, before)
    for key, noun, text in _LOST:
        lost = sum(tail[key] for tail in tails)
        if lost and not quiet:
            warnings.warn(f"{format_count(lost, noun)} {text}", HistoryWarning, stacklevel=3)
    return Snapshot(native)
