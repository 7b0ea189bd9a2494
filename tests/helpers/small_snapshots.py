# SPDX-License-Identifier: Apache-2.0
"""Snapshots small enough to know every figure of, in PyTorch's own structure."""

from __future__ import annotations

import pickle
from typing import Any

from neutracer.trace.uses import KEY, Uses

MIB = 1 << 20
BASE = 0x7F0000000000

FRAME = {"name": "forward", "filename": "model.py", "line": 7}
CALLER = {"name": "main", "filename": "train.py", "line": 3}


def event(action: str, addr: int, size: int, time_us: int = 0, **keys: Any) -> dict[str, Any]:
    """One trace entry."""
    frames = [FRAME, CALLER]
    entry = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames}
    return {**entry, "time_us": time_us, **keys}


def block(address: int, size: int, state: str = "inactive", requested: int = 0) -> dict[str, Any]:
    """One block."""
    keys = {"address": address, "size": size, "requested_size": requested, "state": state}
    return {**keys, "frames": [FRAME] if state != "inactive" else []}


def segment(address: int, blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    """A segment of the large pool around its blocks."""
    held = [b for b in blocks if b["state"] == "active_allocated"]
    active = [b for b in blocks if b["state"] != "inactive"]
    return {
        "device": device,
        "address": address,
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": sum(b["size"] for b in held),
        "active_size": sum(b["size"] for b in active),
        "requested_size": sum(b["requested_size"] for b in active),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def one_program(device: int = 0, base: int = BASE) -> dict[str, Any]:
    """A segment of 20 MiB; 4 MiB held all the time and 6 MiB for a while.

    Events: segment_alloc, alloc (4), alloc (6), free_requested (6), free_completed (6), at
    1,000, 1,010 ... microseconds.
    """
    trace = [
        event("segment_alloc", base, 20 * MIB, 1000),
        event("alloc", base, 4 * MIB, 1010),
        event("alloc", base + 4 * MIB, 6 * MIB, 1020),
        event("free_requested", base + 4 * MIB, 6 * MIB, 1030),
        event("free_completed", base + 4 * MIB, 6 * MIB, 1040),
    ]
    blocks = [
        block(base, 4 * MIB, "active_allocated", 4 * MIB),
        block(base + 4 * MIB, 16 * MIB),
    ]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device)]
    return {
        "segments": [segment(base, blocks, device)],
        "device_traces": [*traces, trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [
            {"stage": "START", "name": "step", "device": device, "time_us": 1005}
        ],
    }


def used_program() -> dict[str, Any]:
    """The same with uses: nothing uses the 6 MiB, which are there after events 2 and 3."""
    snapshot = one_program()
    [trace] = snapshot["device_traces"]
    trace.insert(3, event("alloc", BASE + 10 * MIB, 2 * MIB, 1025))
    snapshot["segments"][0]["blocks"][1:] = [
        block(BASE + 4 * MIB, 6 * MIB),
        block(BASE + 10 * MIB, 2 * MIB, "active_allocated", 2 * MIB),
        block(BASE + 12 * MIB, 8 * MIB),
    ]
    uses = Uses()
    for request in (1, 2, 3):
        uses.request()
        uses.made(request)
        uses.use(1)
    snapshot["allocator_settings"][KEY] = uses.text(0)
    return snapshot


def two_devices() -> dict[str, Any]:
    """The program on device 0 and on device 2; device 1 has an empty trace."""
    first, second = one_program(0), one_program(2, BASE + (1 << 32))
    second["device_traces"][0] = first["device_traces"][0]
    second["segments"] = first["segments"] + second["segments"]
    return second


def dumped(snapshot: Any, protocol: int = 4) -> bytes:
    """The snapshot as PyTorch's `_dump_snapshot` writes it."""
    return pickle.dumps(snapshot, protocol)
