# SPDX-License-Identifier: Apache-2.0
"""Holders of growing memory, if it belongs to this process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.heap.alive import why_alive
from neutracer.heap.watch import prepare_heap
from neutracer.leak.growth import Growth, Survivors
from neutracer.trace.stacks import UNKNOWN_PLACE

# The largest growths to inspect, and the tensors of each.
_MOST_GROWTHS = 3
_MOST_TENSORS = 2

# Tensors of one shape are a growth if there is at least one per this many steps.
_STEPS_PER_TENSOR = 4


def _live_tensors() -> list[Any]:
    """All tensors of this process; none without torch, or if its layout is unknown."""
    if "torch" not in sys.modules:
        return []
    try:
        prepare_heap()
    except UnavailableError:
        return []
    return core.heap_tensors()


def with_holders(survivors: Survivors) -> Survivors:
    """Add the holders of the newest blocks of the largest growths.

    Blocks are matched with this process's tensors by address; others get no chain.
    """
    grown, has_graph = list(survivors.growth), survivors.has_graph
    tensors = _live_tensors()
    for number, blocks in enumerate(survivors.addresses[:_MOST_GROWTHS]):
        chosen = _in_blocks(tensors, blocks[: 4 * _MOST_TENSORS])
        has_graph = has_graph or any(map(_has_graph, chosen))
        grown[number] = replace(grown[number], holders=_chains(chosen, tensors))
        tensors = _live_tensors()
    return replace(survivors, growth=tuple(grown), has_graph=has_graph)


def holders_of(blocks: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Who holds a tensor of this process whose memory is in one of some blocks, each an address
    and a size, as a chain of names; empty where no Python object does.
    """
    tensors = _live_tensors()
    return _chains(_in_blocks(tensors, blocks), tensors)


def _has_graph(tensor: Any) -> bool:
    facts = core.tensor_facts(tensor)
    return facts is not None and bool(facts["has_grad_fn"])


def _in_blocks(tensors: Iterable[Any], blocks: Sequence[tuple[int, int]]) -> list[Any]:
    """Tensors whose memory is in one of the blocks, one per block."""
    found: dict[int, Any] = {}
    for tensor in tensors:
        facts = core.tensor_facts(tensor)
        at = 0 if facts is None else facts["data_ptr"]
        for address, size in blocks:
            if address <= at < address + size:
                found.setdefault(address, tensor)
    return list(found.values())[:_MOST_TENSORS]


def _chains(chosen: list[Any], tensors: list[Any]) -> tuple[str, ...]:
    """The shortest chain to each tensor. Empties both lists, which would be holders."""
    tensors.clear()
    chains: list[str] = []
    while chosen:
        chains += why_alive(chosen.pop(), max_paths=1).chains[:1]
    return tuple(dict.fromkeys(chains))


def alike_tensors(steps: int, device_type: str) -> Survivors:
    """Groups of live tensors of one shape, at least one per few steps, with their holders.

    Args:
        steps: The steps over which memory grew.
        device_type: "cuda" or "cpu".
    """
    groups: dict[tuple[Any, ...], dict[int, int]] = {}
    graphs = set[tuple[Any, ...]]()
    for tensor in _live_tensors():
        facts = core.tensor_facts(tensor)
        if facts is not None and facts["device_type"] == device_type and facts["data_ptr"]:
            key = (tuple(facts["shape"]), facts["dtype"], facts["storage_bytes"])
            groups.setdefault(key, {})[facts["storage"]] = facts["storage_bytes"]
            if facts["has_grad_fn"]:
                graphs.add(key)
    least = max(_STEPS_PER_TENSOR, steps // _STEPS_PER_TENSOR)
    many = {key: held for key, held in groups.items() if len(held) >= least}
    ranked = sorted(many.items(), key=lambda item: -sum(item[1].values()))[:_MOST_GROWTHS]
    found = []
    for (shape, dtype, _), held in ranked:
        nbytes = sum(held.values())
        newest = list(held)[-_MOST_TENSORS:]
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
                holders=_chains(*_of_storages(newest)),
            )
        )
    return Survivors(tuple(found), has_graph=any(key in graphs for key, _ in ranked))


def _of_storages(storages: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """One tensor on each of these storages, and the list that they came from."""
    tensors = _live_tensors()
    found: dict[int, Any] = {}
    for tensor in tensors:
        facts = core.tensor_facts(tensor)
        if facts is not None and facts["storage"] in storages:
            found.setdefault(facts["storage"], tensor)
    return list(found.values()), tensors
