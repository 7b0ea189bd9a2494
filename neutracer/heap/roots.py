# SPDX-License-Identifier: Apache-2.0
"""Ways through the object graph in a reader's words.

An instance's dict, a closure's tuple and its cells are how Python holds an attribute or a
variable; to a reader each is one step: `function → __closure__ → [0] → cell_contents` is
`function → closure x`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neutracer._native import core
from neutracer.heap.advice import reference_text
from neutracer.heap.autograd import read_autograd
from neutracer.heap.cycles import node_from_core
from neutracer.heap.objects import Edge, Node
from neutracer.render.document import Place

__all__ = ["OWN_FILES", "Found", "Way", "find_ways", "way_from_core"]

#: Frames of these files are neutracer's own.
OWN_FILES = os.path.dirname(os.path.dirname(read_autograd.__code__.co_filename)) + os.sep

_SUSPENDED = ("gi_frame", "cr_frame", "ag_frame")

# A chain shows so many steps from its beginning and from its end.
_CHAIN_ENDS = (7, 4)


@dataclass(frozen=True)
class Way:
    """Nodes, each with a reference to the next.

    Attributes:
        nodes: The nodes in order.
        edges: The references in order; a closed way's last leads back to the first node.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def closed(self) -> bool:
        """Whether the way leads back to where it began."""
        return len(self.edges) == len(self.nodes)

    @property
    def chain(self) -> str:
        """The way in one line: "module train → TRAINER → .model → ['weight']"."""
        parts = [_beginning(self.nodes[0])]
        for edge in self.edges:
            label = self.nodes[edge.target].label
            if edge.kind == "other" or not edge.text or self.nodes[edge.source].kind == "folded":
                parts.append(label)
            else:
                parts.append(edge.name if edge.kind == "global" else edge.text)
        head, tail = _CHAIN_ENDS
        if len(parts) > head + tail + 1:
            skipped = sum(node.count for node in self.nodes[head : len(parts) - tail])
            parts[head:-tail] = [f"… {skipped:,} more …"]
        return " → ".join(parts)

    @property
    def round_trip(self) -> str:
        """A closed way in one line: "Tensor.grad → Tensor.grad_fn → … → Tensor"."""
        parts = [reference_text(self.nodes, edge) for edge in self.edges]
        head, tail = _CHAIN_ENDS
        if len(parts) > head + tail + 1:
            parts[head:-tail] = [f"… {len(parts) - head - tail:,} more …"]
        return " → ".join([*parts, self.nodes[0].label])


@dataclass(frozen=True)
class Found:
    """What keeps an object.

    Attributes:
        target: The object.
        ways: The shortest ways to it, the shortest first.
        loose: The ways begin at objects that something unknown holds, because no module,
            thread or frame leads to the object.
        referrers: References to it that the walk shows, including those from dead objects.
        unexplained: References that neither Python nor autograd accounts for, less those that
            may belong to the call itself.
        native: References of a tensor's that C++ holds besides these.
        objects: Objects that were looked at.
        unread: Saved values that this torch doesn't show without running hooks.
        unfollowed: Nodes and tensors of a graph of more than 20,000 nodes that were not
            looked at.
    """

    target: Node
    ways: tuple[Way, ...]
    loose: bool
    referrers: int
    unexplained: int
    native: int
    objects: int
    unread: int
    unfollowed: int


def find_ways(target: list[Any], most: int) -> Found | None:
    """The shortest ways to the one object in a list.

    Args:
        target: A list that holds the object and nothing else; it does not count as a way.
            The caller keeps no other reference.
        most: How many ways at most.

    Returns:
        The findings; None if no object that the collector tracks leads to it.

    Raises:
        UnavailableError: A memory layout is not known.
    """
    links = read_autograd()
    found = core.alive_ways(
        target, links.objects, links.kinds, links.links, links.names, OWN_FILES, most
    )
    unread, unfollowed = links.unread, links.unfollowed
    del links
    if not found["walked"]:
        return None
    return Found(
        target=node_from_core(0, found["target"][0], {}),
        ways=tuple(way_from_core(way) for way in found["ways"]),
        loose=found["loose"],
        referrers=found["referrers"],
        unexplained=max(0, found["python"] - found["call"]),
        native=found["native"],
        objects=found["objects"],
        unread=unread,
        unfollowed=unfollowed,
    )


def way_from_core(plain: Mapping[str, Any]) -> Way:
    """A way from the core's description; steps that a reader sees as one are joined."""
    nodes = [node_from_core(at, row, {}) for at, row in enumerate(plain["nodes"])]
    threads = _thread_names(set(plain["threads"]) - {0})
    nodes = [
        _named_root(node, threads.get(thread, ""))
        for node, thread in zip(nodes, plain["threads"], strict=True)
    ]
    edges = [Edge(s, t, name, kind, in_cycle) for s, t, name, kind, in_cycle in plain["edges"]]
    kept: list[Node] = []
    steps: list[Edge] = []
    at = 0
    while at < len(nodes):
        kept.append(replace(nodes[at], id=len(kept)))
        if at == len(edges):
            break
        length, edge = _step(nodes, edges[at : at + 3])
        steps.append(replace(edge, source=len(kept) - 1, target=len(kept)))
        at += length
    if steps and len(edges) == len(nodes):
        steps[-1] = replace(steps[-1], target=0)
    return Way(tuple(kept), tuple(steps))


def _step(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[int, Edge]:
    """How many raw references make the next step, and its text."""
    kinds = tuple(edge.kind for edge in edges)
    first = edges[0]
    if kinds[:2] == ("instance_dict", "value"):
        name = edges[1].name
        if len(name) >= 2 and name[0] == name[-1] == "'":
            name = name[1:-1]
        holder = nodes[first.source].kind
        kind = {"module": "global", "type": "class"}.get(holder, "attribute")
        return 2, replace(first, name=name, kind=kind)
    if kinds[:2] == ("field", "value") and first.name == "f_locals":
        # A class's body, and what exec runs, has its variables in a dict.
        return 2, replace(first, name=edges[1].name.strip("'"), kind="local")
    if kinds == ("closure", "item", "cell"):
        return 3, replace(first, name=edges[2].name, kind="closure_variable")
    if kinds[:2] == ("local", "cell"):
        return 2, first
    if kinds[:2] == ("frame", "local") and first.name in _SUSPENDED:
        # Up to 3.10 a generator's variables belong to a frame object of their own.
        return 2, replace(edges[1], source=first.source)
    return 1, first


def _named_root(node: Node, thread: str) -> Node:
    if node.kind != "root":
        return node
    if node.label == "thread":
        return replace(node, label=f"thread {thread}" if thread else "main thread")
    return replace(node, label=f"{node.label} in thread {thread}") if thread else node


def _thread_names(idents: set[int]) -> dict[int, str]:
    """Names of threads by ident; without the main thread's, which needs no name."""
    threading = sys.modules.get("threading")
    active = getattr(threading, "_active", {}) if idents else {}
    main = getattr(getattr(threading, "_main_thread", None), "ident", None)
    names = {}
    for ident in idents - {main}:
        thread = active.get(ident)
        name = vars(thread).get("_name") if thread is not None else None
        names[ident] = name if isinstance(name, str) else f"{ident:#x}"
    return names


def _beginning(node: Node) -> str:
    place: Place | None = node.place
    if node.kind != "root" or place is None:
        return node.label
    return f"{node.label}, {os.path.basename(place.filename)}:{place.line}"
