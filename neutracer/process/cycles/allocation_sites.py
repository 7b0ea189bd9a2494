# SPDX-License-Identifier: Apache-2.0
"""Where and when the memory of tensors was allocated, while PyTorch records its history."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from neutracer.cells import reader_name
from neutracer.heap.objects import Allocation
from neutracer.render.document import Place

__all__ = ["allocations_of_freed", "allocations_of_live"]

# PyTorch's own frames on the way into the allocator say nothing of the program.
_OWN_FILES = ("??", "torch/cuda/memory.py")


def allocations_of_live(pointers: Iterable[int]) -> dict[int, Allocation]:
    """The allocations of memory that is in use on a CUDA device.

    This does not initialise CUDA. It asks PyTorch's lookup by address where this torch has
    one, else its list of segments.

    Args:
        pointers: Device addresses at which storages begin; 0 is skipped.

    Returns:
        What was recorded, by pointer; empty where PyTorch does not record its history now.
    """
    wanted = {pointer for pointer in pointers if pointer}
    memory = _recording_memory() if wanted else None
    if memory is None:
        return {}
    lookup = getattr(memory, "_allocation_traceback", None)
    if lookup is not None:
        stacks = {pointer: lookup(pointer) for pointer in wanted}
    else:
        stacks = _stacks_of_blocks(memory, wanted)
    made = {pointer: Allocation(_places(frames or ())) for pointer, frames in stacks.items()}
    return {pointer: allocation for pointer, allocation in made.items() if allocation.frames}


def allocations_of_freed(pointers: Iterable[int]) -> dict[int, Allocation]:
    """The last allocations of memory that was in use a moment ago, from PyTorch's trace.

    This takes as long as PyTorch needs for a snapshot: some microseconds for each event
    that it holds.

    Args:
        pointers: Device addresses at which storages began; 0 is skipped.

    Returns:
        What was recorded, by pointer; empty where PyTorch does not record its history now.
    """
    wanted = {pointer for pointer in pointers if pointer}
    memory = _recording_memory() if wanted else None
    if memory is None:
        return {}
    found: dict[int, Allocation] = {}
    now_us = time.time_ns() // 1000
    for trace in memory._snapshot()["device_traces"]:
        for event in reversed(trace):
            if not wanted:
                break
            if event["action"] == "alloc" and event["addr"] in wanted:
                wanted.remove(event["addr"])
                age = max(now_us - event["time_us"], 0) if event.get("time_us") else None
                found[event["addr"]] = Allocation(_places(event.get("frames", ())), age)
    return found


def _recording_memory() -> Any:
    """torch.cuda.memory if the history of allocations is on, or None."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return None
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is None or not torch.cuda.is_initialized() or not enabled():
        return None
    return torch.cuda.memory


def _stacks_of_blocks(memory: Any, wanted: set[int]) -> dict[int, Any]:
    stacks: dict[int, Any] = {}
    for segment in memory.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if start in wanted and block["state"] == "active_allocated":
                stacks[start] = block.get("frames", ())
            address = start + block["size"]
    return stacks


def _places(frames: Any) -> tuple[Place, ...]:
    places = (
        Place(str(frame["name"]), reader_name(str(frame["filename"])), int(frame["line"]))
        for frame in frames
    )
    return tuple(place for place in places if not place.filename.endswith(_OWN_FILES))
