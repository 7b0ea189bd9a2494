# SPDX-License-Identifier: Apache-2.0
"""A sound snapshot, and changes of it that no allocator can have made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MIB = 1 << 20
FRAMES = [{"filename": "train.py", "line": 7, "name": "step"}]


def sound() -> dict[str, Any]:
    """A segment of 2 MiB with a block of 1 MiB, and the trace that led to it."""

    def event(action: str, size: int, time_us: int, addr: int = 4096) -> dict[str, Any]:
        row = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us}
        return {**row, "frames": FRAMES}

    def block(address: int, state: str) -> dict[str, Any]:
        asked = MIB if state != "inactive" else 0
        row = {"address": address, "size": MIB, "requested_size": asked, "state": state}
        return {**row, "frames": FRAMES}

    segment = {
        **{"device": 0, "address": 4096, "total_size": 2 * MIB, "stream": 0, "frames": FRAMES},
        **{"allocated_size": MIB, "active_size": MIB, "requested_size": MIB},
        **{"segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False},
        "blocks": [block(4096, "active_allocated"), block(4096 + MIB, "inactive")],
    }
    trace = [
        event("segment_alloc", 2 * MIB, 1000),
        event("alloc", MIB, 2000),
        event("alloc", MIB, 3000, 4096 + MIB),
        event("free_requested", MIB, 4000, 4096 + MIB),
        event("free_completed", MIB, 4001, 4096 + MIB),
    ]
    return {"segments": [segment], "device_traces": [trace]}


def put(*path: Any) -> Callable[[Any], None]:
    """A change: the last of `path` at the place that the others name."""

    def change(plain: Any) -> None:
        for step in path[:-2]:
            plain = plain[step]
        plain[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(plain: Any) -> None:
        for step in path[:-1]:
            plain = plain[step]
        del plain[path[-1]]

    return change


SEGMENT = ("segments", 0)
BLOCK = ("segments", 0, "blocks", 0)
EVENT = ("device_traces", 0, 1)

#: By the kind of the flaw that it has then.
SAID = {
    "block_outside": put("segments", 0, "blocks", 1, "address", 1 << 30),
    "unfilled": drop("segments", 0, "blocks", 1),
    "requested": put(*BLOCK, "requested_size", 2 * MIB),
    "sums": put(*SEGMENT, "allocated_size", 7),
    "expandable": put(*SEGMENT, "is_expandable", True),
    "time": put("device_traces", 0, 3, "time_us", 1500),
    "time_missing": drop("device_traces", 0, 3, "time_us"),
    "free": put("device_traces", 0, 1, "action", "free_completed"),
    "alloc": put("device_traces", 0, 2, "addr", 4096 + 512),
    "unreserved": put("device_traces", 0, 2, "addr", 1 << 33),
    "live_set": put(*BLOCK, "state", "inactive"),
}
