# SPDX-License-Identifier: Apache-2.0
"""Makes large graphs small enough to read, and says in words what was done.

Three steps, each only where the one before left too much: the middle of a long cycle
becomes one node; runs of alike objects become one node each; what is furthest from the
cycle is left out. Objects are alike when they are of one type and shape and have alike
neighbours. The result is a graph again, whose notes say what was folded.

Example:
    >>> ring = range(100)
    >>> graph = GraphData(
    ...     nodes=tuple(Node(i, "app.Link", "Link") for i in ring),
    ...     edges=tuple(Edge(i, (i + 1) % 100, "next", "attribute", in_cycle=True) for i in ring),
    ... )
    >>> small = fold(graph)
    >>> len(small.nodes), small.notes
    (7, ('The cycle has 100 objects; 94 of them, in its middle, are folded into one.',))
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from neutracer.heap.drawing.merge import merged_edges, merged_node
from neutracer.heap.objects import MOST_NODES, Edge, GraphData, Node
from neutracer.units import format_count

__all__ = ["fold"]

# A graph up to this size needs no folding.
_SMALL = 16

# From so many on, similar objects become one: fewer are seen at a glance.
_SHORTEST_RUN = 6

# A cycle up to this long is drawn whole; of a longer one, so many objects are kept at
# the edge to cut, on either side, and so many of those in its middle that hold a tensor.
_LONGEST_CYCLE = 12
_KEPT_ENDS = 3
_KEPT_HOLDERS = 4

# How far the neighbours reach that decide which objects are alike.
_ROUNDS = 3

# Tensors that stay apart when everything else is folded by type.
_KEPT_TENSORS = 8


def fold(graph: GraphData, most_nodes: int = MOST_NODES) -> GraphData:
    """A graph of at most about `most_nodes` nodes that shows the same.

    Args:
        graph: The graph.
        most_nodes: How many nodes it may have; from 1.

    Returns:
        The graph itself where it is small and its cycle short.
    """
    ring = cycle_order(graph)
    if len(graph.nodes) <= _SMALL and len(graph.nodes) <= most_nodes:
        return graph
    fixed = _fixed_keys(graph, ring)
    keys = _grouped(_colours(graph, fixed), fixed)
    if len(set(keys)) > most_nodes:
        kept = _fixed_near(graph, fixed, most_nodes)
        keys = _grouped(_rough_colours(graph, fixed, kept), kept)
    return _folded(graph, ring, _cut_far(graph, keys, fixed, most_nodes))


def cycle_order(graph: GraphData) -> list[int]:
    """The nodes of the marked cycle, from after the edge to cut to before it."""
    marked = [edge for edge in graph.edges if edge.in_cycle]
    after: dict[int, int] = {}
    for edge in marked:
        after.setdefault(edge.source, edge.target)
    if not marked:
        return []
    at = next((edge.target for edge in marked if edge.cut), marked[0].source)
    order: dict[int, None] = {}
    while at in after and at not in order:
        order[at] = None
        at = after[at]
    return list(order)


def _fixed_keys(graph: GraphData, ring: Sequence[int]) -> dict[int, Hashable]:
    """What is drawn unchanged, and the middle of a long cycle, by the key of its group."""
    fixed: dict[int, Hashable] = {
        node.id: ("node", node.id) for node in graph.nodes if node.kind == "root"
    }
    fixed.update((end, ("node", end)) for e in graph.edges if e.cut for end in (e.source, e.target))
    kept = _kept_of_cycle(graph, ring)
    run: list[int] = []
    for position, node in enumerate(ring):
        if position in kept:
            fixed[node] = ("node", node)
        else:
            run.append(node)
        if run and (position in kept or position == len(ring) - 1):
            key = [("run", run[0]) if len(run) > 2 else ("node", member) for member in run]
            fixed.update(zip(run, key, strict=True))
            run = []
    return fixed


def _kept_of_cycle(graph: GraphData, ring: Sequence[int]) -> set[int]:
    length = len(ring)
    if length <= _LONGEST_CYCLE:
        return set(range(length))
    kept = {*range(_KEPT_ENDS), *range(length - _KEPT_ENDS, length)}
    place = {node: position for position, node in enumerate(ring)}
    holders = {
        place[edge.source]
        for edge in graph.edges
        if edge.source in place and not edge.in_cycle and graph.nodes[edge.target].bytes
    }
    # Where each object of the cycle holds one, those in its middle say nothing more.
    return kept | holders if len(holders - kept) <= _KEPT_HOLDERS else kept


def _fixed_near(
    graph: GraphData, fixed: dict[int, Hashable], most_nodes: int
) -> dict[int, Hashable]:
    """The fixed ones, with the largest tensors and what the cycle refers to, where it fits."""
    by_bytes = sorted(graph.nodes, key=lambda node: -node.bytes)[:_KEPT_TENSORS]
    near = {node.id for node in by_bytes if node.bytes}
    whole = {node for node, key in fixed.items() if key == ("node", node)}
    around = {edge.target for edge in graph.edges if edge.source in whole}
    near |= around if len(around) <= most_nodes // 4 else set()
    return {**{node: ("node", node) for node in near}, **fixed}


def _grouped(colours: list[int], fixed: dict[int, Hashable]) -> list[Hashable]:
    """For each node the key of its group."""
    sizes = Counter(colours)
    return [
        fixed.get(i, ("alike", colour) if sizes[colour] >= _SHORTEST_RUN else ("node", i))
        for i, colour in enumerate(colours)
    ]


def _colours(graph: GraphData, fixed: dict[int, Hashable]) -> list[int]:
    """Equal numbers for nodes that look alike up to some references away."""
    colours = _numbered(fixed.get(node.id) or _looks(node) for node in graph.nodes)
    for _ in range(_ROUNDS):
        around: list[set[Hashable]] = [set() for _ in colours]
        for edge in graph.edges:
            around[edge.source].add((edge.kind, colours[edge.target]))
            around[edge.target].add((colours[edge.source], edge.kind))
        colours = _numbered(
            fixed.get(i) or (colours[i], frozenset(seen)) for i, seen in enumerate(around)
        )
    return colours


def _rough_colours(
    graph: GraphData, fixed: dict[int, Hashable], kept: dict[int, Hashable]
) -> list[int]:
    """Equal numbers for nodes of one type that are equally far from the cycle."""
    near: dict[Hashable, list[Hashable]] = {node.id: [] for node in graph.nodes}
    for edge in graph.edges:
        near[edge.source].append(edge.target)
        near[edge.target].append(edge.source)
    distance: dict[Hashable, int] = {}
    for key, other in _spread(near, sorted(fixed)).items():
        distance[key] = 0 if key == other else distance[other] + 1
    return _numbered(
        kept.get(node.id) or (node.type, node.kind, distance.get(node.id)) for node in graph.nodes
    )


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _looks(node: Node) -> Hashable:
    tensor = node.tensor
    facts = tensor and (tensor.shape, tensor.dtype, tensor.device)
    return (node.type, node.label, node.kind, node.place, facts)


def _cut_far(
    graph: GraphData, keys: list[Hashable], fixed: dict[int, Hashable], most_nodes: int
) -> list[Hashable | None]:
    """The keys, with None for the nodes of groups that are too far away to be drawn.

    The largest tensors are drawn however far they are, with the way to them, up to half of
    the picture.
    """
    if len(set(keys)) <= most_nodes:
        return list(keys)
    weight: Counter[Hashable] = Counter()
    near: dict[Hashable, list[Hashable]] = {key: [] for key in keys}
    for node in graph.nodes:
        weight[keys[node.id]] += node.bytes
    for edge in graph.edges:
        near[keys[edge.source]].append(keys[edge.target])
        near[keys[edge.target]].append(keys[edge.source])
    before = _spread(near, [fixed[i] for i in sorted(fixed)])
    ways: dict[Hashable, None] = {}
    for key, held in weight.most_common(_KEPT_TENSORS):
        way = _way_to(key, before) if held and key in before else []
        if len(ways.keys() | way) <= most_nodes // 2:
            ways.update(dict.fromkeys(way))
    rest = [*before, *(key for key in near if key not in before)]
    drawn = set(list(dict.fromkeys([*_starts(before), *ways, *rest]))[:most_nodes])
    return [key if key in drawn else None for key in keys]


def _starts(before: dict[Hashable, Hashable]) -> list[Hashable]:
    return [key for key, other in before.items() if key == other]


def _way_to(key: Hashable, before: dict[Hashable, Hashable]) -> list[Hashable]:
    way = [key]
    while before[way[-1]] != way[-1]:
        way.append(before[way[-1]])
    return way


def _spread(
    near: dict[Hashable, list[Hashable]], start: Sequence[Hashable]
) -> dict[Hashable, Hashable]:
    """Each key that can be reached with the one before it on the way, the nearest first.

    References count in either direction. A key to start from comes before itself.
    """
    before: dict[Hashable, Hashable] = {key: key for key in start or [next(iter(near))]}
    queue = deque(before)
    while queue:
        key = queue.popleft()
        for other in near[key]:
            if other not in before:
                before[other] = key
                queue.append(other)
    return before


def _folded(graph: GraphData, ring: Sequence[int], keys: Sequence[Hashable | None]) -> GraphData:
    members: dict[Hashable, list[Node]] = {}
    for node, key in zip(graph.nodes, keys, strict=True):
        if key is not None:
            members.setdefault(key, []).append(node)
    number = {key: place for place, key in enumerate(members)}
    nodes = tuple(merged_node(number[key], nodes) for key, nodes in members.items())
    ends = [None if key is None else number[key] for key in keys]
    runs = {number[key] for key in number if isinstance(key, tuple) and key[0] == "run"}
    edges = merged_edges(_moved(graph.edges, ends, runs))
    notes = _notes(members, len(ring), sum(key is None for key in keys))
    return replace(graph, nodes=nodes, edges=edges, notes=(*graph.notes, *notes))


def _moved(edges: Iterable[Edge], ends: Sequence[int | None], runs: set[int]) -> Iterable[Edge]:
    """The edges between groups; those inside the folded middle of a cycle go."""
    for edge in edges:
        source, target = ends[edge.source], ends[edge.target]
        if source is not None and target is not None and (source != target or source not in runs):
            yield replace(edge, source=source, target=target)


def _notes(members: dict[Hashable, list[Node]], length: int, left_out: int) -> list[str]:
    notes = []
    runs = [len(nodes) for key, nodes in members.items() if key[0] == "run"]  # type: ignore[index]
    alike = [len(nodes) for nodes in members.values() if len(nodes) > 1]
    if runs:
        into = "one" if len(runs) == 1 else f"{len(runs)} runs"
        notes.append(
            f"The cycle has {format_count(length, 'object')}; {format_count(sum(runs))} of "
            f"them, in its middle, are folded into {into}."
        )
    if len(alike) > len(runs):
        folded = sum(alike) - sum(runs)
        notes.append(
            f"{format_count(folded, 'alike object')} are folded into "
            f"{format_count(len(alike) - len(runs), 'box', 'boxes')}, with their counts."
        )
    if left_out:
        are = "is" if left_out == 1 else "are"
        notes.append(f"{format_count(left_out, 'object')} further away {are} left out.")
    return notes
