# SPDX-License-Identifier: Apache-2.0
"""Object graphs to draw: a small cycle, long and wide ones, and one with a given name."""

from __future__ import annotations

from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Edge, Node, TensorFacts
from neutracer.render.document import Place

MIB = 1 << 20


def tensor_facts(mib: int, storage: int = 0, frames: tuple[Place, ...] = ()) -> TensorFacts:
    return TensorFacts((mib, 512, 512), "float32", "cuda:0", mib * MIB, storage, 0, False, frames)


def tensor_node(number: int, mib: int, storage: int = 0) -> Node:
    frames = (Place("wait", "/srv/app/train.py", 38), Place("main", "/srv/app/train.py", 80))
    facts = tensor_facts(mib, storage, frames)
    return Node(number, "torch.Tensor", "Tensor", "tensor", bytes=mib * MIB, tensor=facts)


def callback_cycle() -> ObjectGraph:
    """An object whose attribute is its own bound method, which keeps a tensor."""
    nodes = (
        Node(0, "hooks.Callback", "Callback", place=Place("", "/srv/app/hooks.py", 12)),
        Node(1, "builtins.method", "method view", "method", Place("view", "hooks.py", 19)),
        Node(2, "hooks.AwaitableTensor", "AwaitableTensor"),
        tensor_node(3, 64),
    )
    edges = (
        Edge(0, 1, "view_callback", "attribute", in_cycle=True),
        Edge(1, 0, "__self__", "self", in_cycle=True, cut=True),
        Edge(0, 2, "awaitable", "attribute"),
        Edge(2, 3, "tensor", "attribute"),
    )
    return ObjectGraph(nodes, edges, "Callback keeps 64 MiB on cuda:0\nBreak it: use a weakref")


def ring(length: int) -> ObjectGraph:
    """One cycle, with a tensor half the way around."""
    nodes = [Node(i, "app.Link", "Link") for i in range(length)]
    edges = [
        Edge(i, (i + 1) % length, "next", "attribute", in_cycle=True, cut=i == length - 1)
        for i in range(length)
    ]
    edges.append(Edge(length // 2, length, "payload", "attribute"))
    return ObjectGraph((*nodes, tensor_node(length, 8)), tuple(edges), f"a ring of {length}")


def cache_of(count: int) -> ObjectGraph:
    """A cycle of two with a list of `count` tensors of one size."""
    nodes = [Node(0, "app.Cache", "Cache"), Node(1, "builtins.list", "list", "container")]
    nodes += [tensor_node(2 + i, 4, storage=i + 1) for i in range(count)]
    edges = [
        Edge(0, 1, "entries", "attribute", in_cycle=True),
        Edge(1, 0, "0", "item", in_cycle=True, cut=True),
    ]
    edges += [Edge(1, 2 + i, str(i + 1), "item") for i in range(count)]
    return ObjectGraph(tuple(nodes), tuple(edges))


def named(name: str) -> ObjectGraph:
    """A graph in which every text that comes from a program is `name`."""
    place = Place(name, name, 3)
    facts = TensorFacts((2, 3), name, name, 24, 1, 4096, True, (place, place))
    nodes = (
        Node(0, name, name, place=place),
        Node(1, name, name, "tensor", place, 24, 1, facts),
        Node(2, name, name, name, place, 0, 9),
    )
    edges = (
        Edge(0, 1, name, "attribute", in_cycle=True),
        Edge(1, 0, name, "value", in_cycle=True, cut=True),
        Edge(1, 2, name, name),
    )
    return ObjectGraph(nodes, edges, name, (name, name))
