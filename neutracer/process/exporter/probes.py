# SPDX-License-Identifier: Apache-2.0
"""What an exporter reports beyond the monitor's readings: the largest free block, who holds
the memory, and what only a garbage collection would free. Each is looked at now and then,
when somebody asks."""

from __future__ import annotations

import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import neutracer.process.hooks.attach as hooks
from neutracer._native import core
from neutracer.errors import HistoryWarning, NeutracerError
from neutracer.heap.cycles import device_filter
from neutracer.process.cycles.watch import prepare_heap
from neutracer.process.hooks.tail import take
from neutracer.process.recording.capture import torch_with_cuda
from neutracer.process.recording.symbols import light_symbols
from neutracer.trace.devices import device_name
from neutracer.trace.places import grouped
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["Probes"]

# Walking the heap, which holds the GIL, takes at most this share of the time.
_MOST_SHARE = 0.001

# How long a request waits for a look, in seconds; what comes later is reported the next time.
_PATIENCE_S = 0.5

# Events in which the stacks of live blocks are looked for.
_TAIL_EVENTS = 100_000

_MOST_HOLDERS = 10


class Probes:
    """Answers that are kept for a while.

    Args:
        layout_interval: Seconds between two looks at the allocator's layout (milliseconds
            for some ten thousand blocks); None for none.
        garbage_interval: The least seconds between two walks of Python's heap; None for none.
            They run less often where they take more than 0.1 % of the time.
    """

    def __init__(self, layout_interval: float | None, garbage_interval: float | None) -> None:
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._layout_interval = layout_interval
        self._garbage_interval = garbage_interval
        self._layout_at = self._garbage_at = 0.0
        self._largest: dict[int, int] = {}
        self._holders: list[dict[str, Any]] = []
        self._garbage: dict[int, int] = {}

    def look(self, devices: tuple[int, ...]) -> None:
        """Look again at what is due, beside the caller, who waits for a moment at most."""
        with self._lock:
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(
                    target=self._look, args=(devices,), name="neutracer-probes", daemon=True
                )
                self._looking.start()
            looking = self._looking
        looking.join(_PATIENCE_S)

    def _look(self, devices: tuple[int, ...]) -> None:
        """What can't be looked at is left out."""
        now = time.monotonic()
        if self._layout_interval is not None and now >= self._layout_at:
            self._layout_at = now + self._layout_interval
            self._attempt(self._look_at_layout)
        if self._garbage_interval is not None and now >= self._garbage_at and devices:
            begin = time.monotonic()
            self._attempt(lambda: self._look_at_garbage(devices))
            spent = time.monotonic() - begin
            self._garbage_at = now + max(self._garbage_interval, spent / _MOST_SHARE)

    @staticmethod
    def _attempt(look: Callable[[], None]) -> None:
        try:
            look()
        except (NeutracerError, RuntimeError, OSError):
            # The reading goes on without it.
            return

    def _look_at_layout(self) -> None:
        snap = _layout()
        largest: dict[int, int] = {}
        holders: list[dict[str, Any]] = []
        for device in snap.devices:
            groups = core.Fragment(snap.native, None, device).groups()
            number = -1 if _on_cpu() else device
            largest[number] = max((group["largest_hole"] for group in groups), default=0)
            holders += _holders(snap, device, number)
        holders.sort(key=lambda holder: -int(holder["bytes"]))
        self._largest, self._holders = largest, holders[:_MOST_HOLDERS]

    def _look_at_garbage(self, devices: tuple[int, ...]) -> None:
        prepare_heap()
        garbage: dict[int, int] = {}
        for device in devices:
            wanted = device_filter(device_name(device))
            found = core.find_cycles(*wanted, 0, 0, False)["garbage"]
            garbage[device] = 0 if found is None else found["bytes"] + found["loose_bytes"]
        self._garbage = garbage

    def largest_free(self, device: int) -> int | None:
        """Bytes of the largest free block in a device's segments; None: not looked at."""
        return self._largest.get(device)

    def garbage(self, device: int) -> int | None:
        """Bytes of tensors that only a collection would free; None: not looked at."""
        return self._garbage.get(device)

    def holders(self) -> list[dict[str, Any]]:
        """Who allocated what is live, where the allocator's history says, largest first."""
        return list(self._holders)


def _on_cpu() -> bool:
    state = hooks.state()
    return state is not None and state.backend == "cpu"


def _layout() -> Snapshot:
    """The layout now: from the hooks if they follow the allocator, else PyTorch's dump."""
    state = hooks.state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        if state is not None and state.attached:
            return take(state.backend, _TAIL_EVENTS)
        torch = torch_with_cuda()
        if not torch.cuda.is_initialized():
            raise NeutracerError("CUDA is not in use yet")
        with light_symbols():
            return load(pickle.dumps(_dump(), protocol=4))


def _dump() -> Any:
    """PyTorch's own dump, without the traces where PyTorch can leave them out."""
    dump = sys.modules["torch"]._C._cuda_memorySnapshot
    try:
        return dump((0, 0, False))
    except (TypeError, RuntimeError):
        return dump(None)


def _holders(snap: Snapshot, device: int, number: int) -> list[dict[str, Any]]:
    segments, blocks = snap.segments, snap.blocks
    rows = [
        (block.stack, block.size, 1)
        for block in blocks
        if block.state == "active_allocated" and segments[block.segment].device == device
    ]
    return [
        {
            "device": device_name(number),
            "place": place.location,
            "function": place.function,
            "bytes": nbytes,
            "count": count,
        }
        for place, nbytes, count in grouped(row for row in rows if row[0])[:_MOST_HOLDERS]
    ]
