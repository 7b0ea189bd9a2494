# SPDX-License-Identifier: Apache-2.0
"""A passage of a program, recorded: PyTorch's recorder on CUDA, the hooks on the CPU."""

from __future__ import annotations

import sys
import time
from typing import Any

from neutracer.cells import reader_name
from neutracer.errors import UnavailableError
from neutracer.process.hooks import attach as hooks
from neutracer.process.hooks.tail import take
from neutracer.process.recording.capture import torch_with_cuda
from neutracer.process.recording.history import HISTORY
from neutracer.process.recording.recorder import DEFAULT_MAX_ENTRIES, Recording, record
from neutracer.trace.snapshot import Snapshot

__all__ = ["Passage"]

# Python frames of an event on the CPU, from the innermost: the hooks' most.
_FRAMES = 16


class Passage:
    """What the allocator did from `begin` to `end`; nothing stays on that was off before.

    On a torch that is built for CUDA these are the CUDA devices, through PyTorch's own
    recorder; on one for the CPU, what this thread allocates there, through the hooks.

    Attributes:
        backend: "cuda" or "cpu".
        follows: False on a torch that is built for CUDA where there is no device for it:
            it does not report what it allocates on the CPU.
        snapshot: What was recorded; None before the end, and where CUDA was not used.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        """Nothing is recorded yet.

        Args:
            max_entries: Events that are kept, of each device.

        Raises:
            UnavailableError: torch is not imported.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise UnavailableError("torch in this process", "import torch first")
        self.backend = "cpu" if torch.version.cuda is None else "cuda"
        self.follows = self.backend == "cpu" or bool(torch.cuda.device_count())
        self.snapshot: Snapshot | None = None
        self._most = max_entries
        self._recording: Recording | None = None
        self._before: hooks.HookState | None = None
        self._fresh = True
        self._begun_us = 0

    def begin(self) -> None:
        """Record from now on.

        Raises:
            UnavailableError: The allocator can't be followed here.
        """
        if self.backend == "cuda":
            self._fresh = HISTORY.in_force() is None and not _cuda_history_is_on()
            self._recording = record(self._most)
            # Who reads the passage tells of a ring that wrapped.
            self._recording.quiet = True
            self._recording.start()
        else:
            self._before = before = hooks.state()
            self._fresh = before is None or not before.active
            if self._fresh:
                hooks.attach(self._most, _FRAMES)
            else:
                hooks.watch_thread()
        self._begun_us = time.time_ns() // 1000

    def end(self) -> None:
        """Keep what was recorded, and put everything back as it was."""
        taken = self._end_cuda() if self.backend == "cuda" else self._end_cpu()
        if taken is not None:
            named = ((text, reader_name(text)) for text in taken.strings)
            renamed = {text: name for text, name in named if name != text}
            self.snapshot = Snapshot(taken.native, renamed) if renamed else taken

    def _end_cpu(self) -> Snapshot:
        state = hooks.state()
        try:
            return take("cpu", state.events if state is not None else self._most)
        finally:
            if self._fresh:
                hooks.silence()
            if self._before is None or not self._before.threads:
                hooks.unwatch_thread()

    def _end_cuda(self) -> Snapshot | None:
        recording, self._recording = self._recording, None
        if recording is None or recording.waiting:
            # CUDA was not initialised meanwhile.
            if recording is not None:
                recording.discard()
            return None
        recording.stop()
        return recording.snapshot()

    def first(self, device: int) -> int:
        """The first event of the passage in the timeline of a device."""
        if self.snapshot is None or self._fresh:
            return 0
        timeline = self.snapshot.timeline(device)
        return timeline.event_at(self._begun_us) + 1 if len(timeline) else 0


def _cuda_history_is_on() -> bool:
    torch = torch_with_cuda()
    return bool(torch.cuda.is_initialized() and torch._C._cuda_isHistoryEnabled())
