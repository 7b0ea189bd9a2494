# SPDX-License-Identifier: Apache-2.0
"""Holders of growing memory, if it belongs to this process."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.heap.owners import NO_OBJECT, Block, holders_of, tensors_in
from neutracer.heap.watch import prepare_heap
from neutracer.leak.growth import Growth, Survivors
from neutracer.trace.stacks import UNKNOWN_PLACE

# The largest growths to inspect.
_MOST_GROWTHS = 3

# Tensors of one shape are a growth if there is at least one per this many steps.
_STEPS_PER_TENSOR = 4


def with_holders(survivors: Survivors) -> Survivors:
    """Add the holders of the blocks of the largest growths.

    Blocks are matched with this process's tensors by address; others get no holder.
    """
    grown = list(survivors.growth)
    lines = {str(at): blocks for at, blocks in enumerate(survivors.addresses[:_MOST_GROWTHS])}
    for line, holder in holders_of(lines).items():
        if holder != NO_OBJECT:
            grown[int(line)] = replace(grown[int(line)], holders=tuple(holder.split("; ")))
    tensors, _ = tensors_in(_live_tensors(), lines)
    has_graph = survivors.has_graph or any(map(_has_graph, tensors))
    return replace(survivors, growth=tuple(grown), has_graph=has_graph)


def _has_graph(tensor: Any) -> bool:
    facts = core.tensor_facts(tensor)
    return facts is not None and bool(facts["has_grad_fn"])


def _live_tensors() -> list[Any]:
    """All tensors of this process; none without torch, or if its layout is unknown."""
    if "torch" not in sys.modules:
        return []
    try:
        prepare_heap()
    except UnavailableError:
        return []
    return core.heap_tensors()


def alike_tensors(steps: int, device_type: str) -> Survivors:
    """Groups of live tensors of one shape, at least one per few steps, with their holders.

    Args:
        steps: The steps over which memory grew.
        device_type: "cuda" or "cpu".
    """
    groups: dict[tuple[Any, ...], dict[Block, int]] = {}
    graphs = set[tuple[Any, ...]]()
    for tensor in _live_tensors():
        facts = core.tensor_facts(tensor)
        if facts is not None and facts["device_type"] == device_type and facts["data_ptr"]:
            key = (tuple(facts["shape"]), facts["dtype"], facts["storage_bytes"])
            block = facts["data_ptr"], facts["storage_bytes"]
            groups.setdefault(key, {})[block] = facts["storage_bytes"]
            if facts["has_grad_fn"]:
                graphs.add(key)
    least = max(_STEPS_PER_TENSOR, steps // _STEPS_PER_TENSOR)
    many = {key: held for key, held in groups.items() if len(held) >= least}
    ranked = sorted(many.items(), key=lambda item: -sum(item[1].values()))[:_MOST_GROWTHS]
    holders = holders_of({str(at): list(held) for at, (_, held) in enumerate(ranked)})
    found = []
    for at, ((shape, dtype, _), held) in enumerate(ranked):
        nbytes = sum(held.values())
        found.append(
            Growth(
                place=UNKNOWN_PLACE,
                stack=(),
                category=f"{len(held)} tensors {tuple(shape)} {dtype}",
                bytes=nbytes,
                count=len(held),
                steps=0,
                bytes_per_step=nbytes / max(steps, 1),
                share=0.0,
                holders=tuple(holders[str(at)].split("; ")) if str(at) in holders else (),
            )
        )
    return Survivors(tuple(found), has_graph=any(key in graphs for key, _ in ranked))
