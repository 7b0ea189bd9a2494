# SPDX-License-Identifier: Apache-2.0
"""Files of made-up ranks: a training program of a few lines, in PyTorch's own structure."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from small_snapshots import BASE, MIB, block, segment

START_US = 1_800_000_000_000_000
STEP_US = 100_000


def _frames(*names: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in names]


_MODULE = "/env/site-packages/torch/nn/modules/module.py"
_CALL = ("_call_impl", _MODULE, 1)
BUILD = _frames(("convert", _MODULE, 9), ("_apply", _MODULE, 8), ("build", "train.py", 10))
FORWARD = _frames(("linear", "/env/site-packages/torch/nn/functional.py", 2), _CALL,
                  ("train", "train.py", 20))  # fmt: skip
_TORCH = "/env/site-packages/torch"
BACKWARD = _frames(
    ("_engine_run_backward", f"{_TORCH}/autograd/graph.py", 7),
    ("backward", f"{_TORCH}/autograd/__init__.py", 6),
    ("backward", f"{_TORCH}/_tensor.py", 5),
    ("train", "train.py", 21),
)
_ADAM = f"{_TORCH}/optim/adamw.py"
STEP = _frames(("_init_group", _ADAM, 3), ("step", _ADAM, 4), ("train", "train.py", 22))
ZERO = _frames(("zero_grad", f"{_TORCH}/optim/optimizer.py", 1), ("train", "train.py", 25))
KEEP = _frames(("log", "train.py", 33), ("train", "train.py", 23))


class Trace:
    """A trace on one large segment in which no address is used twice."""

    def __init__(self, begin_us: int = START_US, room: int = 1 << 40) -> None:
        self.events: list[dict[str, Any]] = []
        self.time_us = begin_us
        self.next = BASE
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.room = room

    def event(self, action: str, addr: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.time_us += 10
        entry = {"action": action, "addr": addr, "size": size, "stream": 0}
        self.events.append({**entry, "time_us": self.time_us, "frames": frames})

    def alloc(self, size: int, frames: list[dict[str, Any]]) -> int:
        address, self.next = self.next, self.next + size
        self.event("segment_alloc", address, size, frames)
        self.event("alloc", address, size, frames)
        self.live[address] = (size, frames)
        return address

    def free(self, address: int, frames: list[dict[str, Any]]) -> None:
        size, _ = self.live.pop(address)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)
        self.event("segment_free", address, size, frames)

    def oom(self, size: int) -> None:
        self.event("oom", 0, size, FORWARD)

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {**block(address, size, "active_allocated", size), "frames": frames}
            for address, (size, frames) in sorted(self.live.items())
        ]
        segments = [segment(one["address"], [one]) for one in blocks]
        return {
            "segments": segments,
            "device_traces": [self.events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        }


def trained(
    *,
    layers: int = 8,
    layer: int = 4 * MIB,
    batch: int = 2 * MIB,
    steps: int = 20,
    leak: int = 0,
    leak_from: int = 0,
    extra: int = 0,
    once: int = 0,
    oom_at: int | None = None,
    begin_us: int = START_US,
    step_us: int = STEP_US,
) -> dict[str, Any]:
    """A rank's training: parameters, and in each step activations, gradients and an update.

    Args:
        layers, layer: Parameters: how many, and the bytes of each.
        batch: The bytes of the activations of a layer.
        steps: How many steps.
        leak: Bytes that a line keeps in each step from `leak_from` on.
        extra: Bytes that a line of its own holds from the start.
        once: Bytes of one more activation, which the same line makes.
        oom_at: The step in which memory runs out, which is the last then.
        begin_us: When it begins, by its host's clock.
        step_us: How long a step takes.
    """
    trace = Trace(begin_us)
    for _ in range(layers):
        trace.alloc(layer, BUILD)
    if extra:
        trace.alloc(extra, _frames(("gather", "train.py", 44), ("train", "train.py", 24)))
    for number in range(steps):
        trace.time_us = begin_us + (number + 1) * step_us
        activations = [trace.alloc(batch, FORWARD) for _ in range(layers)]
        activations += [trace.alloc(once, FORWARD)] if once else []
        if number == oom_at:
            trace.oom(64 * MIB)
            break
        if leak and number >= leak_from:
            trace.alloc(leak, KEEP)
        gradients = []
        for kept in reversed(activations):
            gradients.append(trace.alloc(layer, BACKWARD))
            trace.free(kept, BACKWARD)
        if number == 0:
            for _ in range(layers):
                trace.alloc(layer, STEP)
        for kept in gradients:
            trace.free(kept, ZERO)
    return trace.snapshot()


def write(
    folder: Path, rank: int, snapshot: dict[str, Any] | bytes, *, world: int = 4, **facts: Any
) -> Path:
    """Write a rank's snapshot and its sidecar; `facts` replace what the sidecar says."""
    host = facts.pop("host", "node0")
    pid = facts.pop("pid", 4000 + rank)
    reason = facts.pop("reason", "exit")
    stem = f"run-20260131-120000-{host}-rank{rank}-{pid}-1-{reason}.pickle"
    path = folder / stem
    raw = snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot, protocol=4)
    path.write_bytes(raw)
    said = {
        "schema": "neutracer.sidecar/1",
        "rank": rank,
        "world_size": world,
        "job": "j1",
        "attempt": 0,
        "host": host,
        "pid": pid,
        "time_s": START_US / 1e6 + 10,
        "program": "train.py",
        "torch": "2.11.0",
        "devices": {"0": {"total_bytes": 1 << 37, "other_bytes": 500 * MIB}},
    }
    said.update(facts)
    Path(f"{path}.json").write_text(json.dumps(said))
    return path
