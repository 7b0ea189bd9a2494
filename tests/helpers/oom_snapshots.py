# SPDX-License-Identifier: Apache-2.0
"""Snapshots of programs that ran out of memory, made block by block."""

from __future__ import annotations

import pickle
from typing import Any

import neutracer

MIB = 1 << 20
BASE = 0x7F0000000000

Frames = list[dict[str, Any]]


def frame(name: str, filename: str, line: int) -> dict[str, Any]:
    """One frame of a stack."""
    return {"name": name, "filename": filename, "line": line}


MAIN = [frame("main", "train.py", 3)]
SITE = "/site-packages/torch"

#: Stacks of the phases, innermost first, as PyTorch records them.
STACKS: dict[str, Frames] = {
    "loading": [
        frame("convert", f"{SITE}/nn/modules/module.py", 1341),
        frame("_apply", f"{SITE}/nn/modules/module.py", 930),
        frame("to", f"{SITE}/nn/modules/module.py", 1355),
        *MAIN,
    ],
    "weights": [frame("load", f"{SITE}/serialization.py", 1500), *MAIN],
    "forward": [
        frame("forward", f"{SITE}/nn/modules/linear.py", 134),
        frame("_call_impl", f"{SITE}/nn/modules/module.py", 1790),
        frame("step", "train.py", 20),
        *MAIN,
    ],
    "backward": [
        frame("_engine_run_backward", f"{SITE}/autograd/graph.py", 829),
        frame("backward", f"{SITE}/autograd/__init__.py", 354),
        frame("step", "train.py", 22),
        *MAIN,
    ],
    "seed": [
        frame("_make_grads", f"{SITE}/autograd/__init__.py", 120),
        frame("backward", f"{SITE}/autograd/__init__.py", 300),
        frame("sharpness", "work.py", 61),
        *MAIN,
    ],
    "build": [
        frame("__init__", f"{SITE}/nn/modules/linear.py", 108),
        frame("make_model", "work.py", 50),
        *MAIN,
    ],
    "gather": [
        frame("unshard", f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 250),
        frame("step", "train.py", 20),
        *MAIN,
    ],
    "optimizer": [
        frame("_init_group", f"{SITE}/optim/adam.py", 178),
        frame("step", f"{SITE}/optim/adam.py", 235),
        frame("step", "train.py", 23),
        *MAIN,
    ],
    "inference": [
        frame("forward", f"{SITE}/nn/modules/linear.py", 134),
        frame("_call_impl", f"{SITE}/nn/modules/module.py", 1790),
        frame("decorate_context", f"{SITE}/utils/_contextlib.py", 120),
        *MAIN,
    ],
    "program": [frame("work", "work.py", 12), *MAIN],
    "keep": [frame("keep", "work.py", 30), *MAIN],
    "cache": [frame("cache", "work.py", 44), *MAIN],
}


class Recording:
    """What PyTorch would have recorded, if every block lay where it is put here."""

    def __init__(self, conf: str = "", expandable: bool = False) -> None:
        self.trace: list[dict[str, Any]] = []
        self.segments: dict[int, dict[str, Any]] = {}
        self.live: dict[int, dict[str, Any]] = {}
        self.settings = {
            "PYTORCH_CUDA_ALLOC_CONF": conf,
            "expandable_segments": expandable,
            "max_split_size": -1,
        }
        self.metadata = ""

    def _add(self, action: str, stack: str, stream: int = 0, **keys: Any) -> None:
        entry = {"action": action, "stream": stream, "time_us": 1000 + 10 * len(self.trace)}
        if stack:
            entry["frames"] = STACKS[stack]
        if self.metadata:
            entry["user_metadata"] = self.metadata
        self.trace.append({**entry, **keys})

    def segment(
        self,
        mib: float,
        stack: str = "program",
        stream: int = 0,
        pool: tuple[int, int] = (0, 0),
        small: bool = False,
    ) -> int:
        """A new segment; returns its address."""
        last = max(self.segments, default=BASE)
        start = last + 4096 * MIB if self.segments else BASE
        size = int(mib * MIB)
        self._add("segment_alloc", stack, stream, addr=start, size=size, pool_id=pool)
        self.segments[start] = {"size": size, "stream": stream, "pool": pool, "small": small}
        return start

    def alloc(self, address: int, mib: float, stack: str = "program") -> int:
        """A block at an address; returns it."""
        size = int(mib * MIB)
        home = self._home(address)
        self.live[address] = {"size": size, "stack": stack}
        stream, pool = home["stream"], home["pool"]
        self._add("alloc", stack, stream, addr=address, size=size, pool_id=pool)
        return address

    def own(self, mib: float, stack: str = "program", **keys: Any) -> int:
        """A block that fills a segment of its own."""
        return self.alloc(self.segment(mib, stack, **keys), mib, stack)

    def free(self, address: int) -> None:
        """The block is freed."""
        block = self.live.pop(address)
        home = self._home(address)
        keys = {"addr": address, "size": block["size"], "pool_id": home["pool"]}
        self._add("free_requested", block["stack"], home["stream"], **keys)
        self._add("free_completed", block["stack"], home["stream"], **keys)

    def release(self, start: int) -> None:
        """The segment goes back to the device."""
        gone = self.segments.pop(start)
        keys = {"addr": start, "size": gone["size"], "pool_id": gone["pool"]}
        self._add("segment_free", "program", gone["stream"], **keys)

    def oom(
        self,
        mib: float,
        device_free: float,
        stack: str = "program",
        stream: int = 0,
        pool: tuple[int, int] = (0, 0),
    ) -> int:
        """A request fails; returns the event's number."""
        keys = {"size": int(mib * MIB), "device_free": int(device_free * MIB), "pool_id": pool}
        self._add("oom", stack, stream, **keys)
        return len(self.trace) - 1

    def fail(self, mib: float, device_free: float, stack: str = "program") -> int:
        """A request fails after the allocator has given back what was empty."""
        empty = [at for at in self.segments if not any(self._home(a) is self.segments[at]
                                                       for a in self.live)]  # fmt: skip
        for start in empty:
            device_free += self.segments[start]["size"] / MIB
            self.release(start)
        return self.oom(mib, device_free, stack)

    def _home(self, address: int) -> dict[str, Any]:
        start = max(start for start in self.segments if start <= address)
        return self.segments[start]

    def snapshot(self) -> dict[str, Any]:
        """PyTorch's structure."""
        segments = []
        for start, segment in sorted(self.segments.items()):
            blocks = self._blocks(start, segment["size"])
            held = sum(block["size"] for block in blocks if block["state"] != "inactive")
            segments.append(
                {
                    "device": 0,
                    "address": start,
                    "total_size": segment["size"],
                    "allocated_size": held,
                    "active_size": held,
                    "requested_size": held,
                    "stream": segment["stream"],
                    "segment_type": "small" if segment["small"] else "large",
                    "segment_pool_id": segment["pool"],
                    "is_expandable": False,
                    "frames": [],
                    "blocks": blocks,
                }
            )
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "allocator_settings": self.settings,
            "external_annotations": [],
        }

    def _blocks(self, start: int, size: int) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        at = start
        inside = [a for a in sorted(self.live) if start <= a < start + size]
        for address in [*inside, start + size]:
            if address > at:
                blocks.append(self._block(at, address - at, "inactive", []))
            if address < start + size:
                live = self.live[address]
                frames = STACKS[live["stack"]] if live["stack"] else []
                blocks.append(self._block(address, live["size"], "active_allocated", frames))
                at = address + live["size"]
        return blocks

    @staticmethod
    def _block(address: int, size: int, state: str, frames: Frames) -> dict[str, Any]:
        requested = size if state != "inactive" else 0
        keys = {"address": address, "size": size, "requested_size": requested}
        return {**keys, "state": state, "frames": frames}

    def dumped(self) -> bytes:
        """The snapshot as a pickle."""
        return pickle.dumps(self.snapshot(), 4)


def explained(
    recording: Recording, capacity: int | None = None, **known: Any
) -> neutracer.reports.ExplainReport:
    """Why it ran out; `known` is what else the process knew, the fields of `OomFacts`."""
    facts = neutracer.OomFacts(**known) if known else None
    return neutracer.explain(recording.dumped(), capacity, facts=facts)


def full(live_mib: int = 200) -> Recording:
    """A program with nothing free inside: one block of a segment of its own."""
    recording = Recording()
    recording.own(live_mib, "keep")
    return recording


def checkered(pins: int = 10, hole_mib: int = 10, pin_mib: int = 2) -> Recording:
    """One segment with holes of `hole_mib` between pins of `pin_mib`."""
    recording = Recording()
    start = recording.segment(pins * (hole_mib + pin_mib))
    at, holes = start, []
    for _ in range(pins):
        holes.append(recording.alloc(at, hole_mib))
        recording.alloc(at + hole_mib * MIB, pin_mib, "keep")
        at += (hole_mib + pin_mib) * MIB
    for hole in holes:
        recording.free(hole)
    return recording


def looping(steps: int = 12, kept_mib: int = 8, named: bool = True) -> Recording:
    """Steps that make and free a block, and each keep another."""
    recording = Recording()
    scratch = recording.segment(40)
    for step in range(steps):
        recording.metadata = f"step {step}" if named else ""
        block = recording.alloc(scratch, 30)
        recording.own(kept_mib, "cache")
        recording.free(block)
    return recording
