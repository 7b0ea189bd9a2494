# SPDX-License-Identifier: Apache-2.0
"""Programs of `gpu/oom_programs.py` run without a GPU, on neutracer's model of the allocator.

A stand-in for torch writes down what a program asks for and lets go of; the model then says
where all of it would have lain below the program's limit, and which request would have failed.
"""

from __future__ import annotations

import gc
import pickle
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from gpu.oom_programs import MIB, Program
from oom_snapshots import BASE

import neutracer

#: The device that is played, in bytes, and what of it is free when a capped process fails.
DEVICE = 140 << 30
DEVICE_FREE = 130 << 30


class _OutOfMemoryError(RuntimeError):
    """The program asks for so much that the model has failed long before."""


class _Recorder:
    """What PyTorch's history would hold on a device without end, a segment for each block."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.trace: list[dict[str, Any]] = []
        self.segments: list[tuple[int, int]] = []
        self.live = 0

    def add(self, action: str, address: int, size: int) -> None:
        frames = []
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code.co_filename != __file__:
                where = {"filename": code.co_filename, "line": frame.f_lineno}
                frames.append({"name": code.co_name, **where})
            frame = frame.f_back
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        self.trace.append({**entry, "time_us": 1000 + len(self.trace)})

    def empty(self, size: int, **_: Any) -> _Tensor:
        if self.live + size > 3 * self.limit:
            raise _OutOfMemoryError
        return _Tensor(self, size)

    def snapshot(self) -> neutracer.Snapshot:
        blank = {"device": 0, "allocated_size": 0, "active_size": 0, "requested_size": 0}
        kind = {"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
        segments = []
        for address, size in self.segments:
            block = {"address": address, "size": size, "requested_size": 0, "frames": []}
            place = {"address": address, "total_size": size, "stream": 0, "frames": []}
            blocks = [{**block, "state": "inactive"}]
            segments.append({**blank, **kind, **place, "blocks": blocks})
        plain = {"segments": segments, "device_traces": [self.trace], "external_annotations": []}
        return neutracer.load(pickle.dumps(plain, 4))


class _Tensor:
    """A block; freed when Python lets go of it."""

    def __init__(self, recorder: _Recorder, size: int) -> None:
        self.recorder, self.size = recorder, size
        self.shape = (size,)
        self.address = BASE + (len(recorder.segments) << 36)
        segment = -(-size // (2 * MIB)) * 2 * MIB if size >= 10 * MIB else 20 * MIB
        recorder.add("segment_alloc", self.address, segment)
        recorder.add("alloc", self.address, size)
        recorder.segments.append((self.address, segment))
        recorder.live += size

    def __del__(self) -> None:
        self.recorder.add("free_requested", self.address, self.size)
        self.recorder.add("free_completed", self.address, self.size)
        self.recorder.live -= self.size

    def zero_(self) -> _Tensor:
        return self

    def __getitem__(self, part: slice) -> Any:
        return SimpleNamespace(clone=lambda: self.recorder.empty(part.stop))


def ended(program: Program) -> bytes:
    """The snapshot of a capped program that only makes tensors, at its failure."""
    limit = (program.cap or 0) * MIB
    recorder = _Recorder(limit)
    gc.collect()
    # A loop without end is stopped by the model where its limit is.
    with suppress(_OutOfMemoryError):
        program.run(SimpleNamespace(uint8=1, empty=recorder.empty))
    gc.collect()
    plan = neutracer.what_if(recorder.snapshot(), program.conf, capacity=limit)
    plain = plan[program.conf].snapshot().to_dict()
    for entry in plain["device_traces"][0]:
        if entry["action"] == "oom":
            entry["device_free"] = DEVICE_FREE
    return pickle.dumps(plain, 4)
