# SPDX-License-Identifier: Apache-2.0
"""Two small snapshots of one program, of which the second holds other blocks."""

from __future__ import annotations

from typing import Any

from small_snapshots import BASE, block, dumped, segment

import neutracer

MIB = 1 << 20


def frames(line: int, caller: int = 3) -> list[dict[str, Any]]:
    return [
        {"name": "keep", "filename": "model.py", "line": line},
        {"name": "main", "filename": "train.py", "line": caller},
    ]


def state(held: list[tuple[int, int, int]]) -> neutracer.Snapshot:
    """A snapshot without a trace of blocks (bytes, line, caller's line)."""
    blocks, at = [], BASE
    for size, line, caller in held:
        one = block(at, size, "active_allocated", size)
        blocks.append({**one, "frames": frames(line, caller)})
        at += size
    blocks.append(block(at, BASE + 512 * MIB - at))
    return neutracer.load(dumped({"segments": [segment(BASE, blocks)], "device_traces": [[]]}))


BEFORE = [(8 * MIB, 10, 3), (4 * MIB, 20, 3), (4 * MIB, 20, 3), (16 * MIB, 30, 3)]
AFTER = [(8 * MIB, 10, 3), (4 * MIB, 20, 3), (2 * MIB, 40, 3), (16 * MIB, 30, 3), (MIB, 30, 3)]
