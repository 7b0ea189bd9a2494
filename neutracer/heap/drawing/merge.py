# SPDX-License-Identifier: Apache-2.0
"""Several nodes as one, and several edges as one: what stays true of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from neutracer.heap.objects import Edge, Node, TensorFacts

__all__ = ["merged_edges", "merged_node"]

# The types of a mixed run that are named.
_NAMED_TYPES = 3


def merged_node(number: int, nodes: Sequence[Node]) -> Node:
    """One node for all of them, with their count; a single one is itself.

    Bytes are added up with each storage counted once.

    Example:
        >>> merged_node(0, [Node(4, "builtins.list", "list of 1")] * 7).label
        'list of 1'
    """
    first = nodes[0]
    if len(nodes) == 1:
        return replace(first, id=number)
    types = Counter(node.type for node in nodes)
    return Node(
        id=number,
        type=first.type if len(types) == 1 else "",
        label=_label(nodes, types),
        kind="folded",
        place=first.place if all(node.place == first.place for node in nodes) else None,
        bytes=_bytes(nodes),
        count=sum(node.count for node in nodes),
        tensor=_tensor([node.tensor for node in nodes]),
    )


def _label(nodes: Sequence[Node], types: Counter[str]) -> str:
    if all(node.label == nodes[0].label for node in nodes):
        return nodes[0].label
    names = Counter[str]()
    for name, count in types.items():
        names[name.rpartition(".")[2]] += count
    if len(names) == 1:
        return next(iter(names))
    named = [f"{count:,} {name}" for name, count in names.most_common(_NAMED_TYPES)]
    rest = sum(names.values()) - sum(count for _, count in names.most_common(_NAMED_TYPES))
    return ", ".join(named + [f"{rest:,} others"] * (rest > 0))


def _bytes(nodes: Sequence[Node]) -> int:
    storages: dict[object, int] = {}
    for node in nodes:
        storage = node.tensor.storage if node.tensor else 0
        storages[storage or ("node", node.id)] = node.bytes
    return sum(storages.values())


def _tensor(tensors: Sequence[TensorFacts | None]) -> TensorFacts | None:
    first = tensors[0]
    if first is None:
        return None
    for other in tensors:
        if other is None or (other.shape, other.dtype, other.device) != (
            first.shape,
            first.dtype,
            first.device,
        ):
            return None
    same = all(other is not None and other.frames == first.frames for other in tensors)
    return replace(first, storage=0, data_ptr=0, frames=first.frames if same else ())


def merged_edges(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Edges of one kind between the same two nodes as one, named "first … last"."""
    found: dict[tuple[int, int, str, bool, bool], list[str]] = {}
    for edge in edges:
        key = (edge.source, edge.target, edge.kind, edge.in_cycle, edge.cut)
        names = found.setdefault(key, [edge.name, edge.name])
        names[1] = edge.name
    return tuple(
        Edge(source, target, first if first == last else f"{first} … {last}", kind, cycle, cut)
        for (source, target, kind, cycle, cut), (first, last) in found.items()
    )
