# SPDX-License-Identifier: Apache-2.0
"""Renders graphs as DOT, SVG, PNG, HTML and JSON; Graphviz runs in a child process.

A graph becomes a scene first: repeats merged, chains folded, nodes placed. Positions and sizes are
in points; the layout is Graphviz's where the extension is built, else ours.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import neutracer.heap.drawing_child as drawing_child
from neutracer.arguments import whole_number
from neutracer.errors import NeutracerError, UnavailableError, pip_install
from neutracer.heap.objects import MOST_NODES, MOST_ON_PAGE, Edge, GraphData, Node, TensorFacts
from neutracer.render.document import (
    DARK,
    LIGHT,
    Palette,
    Place,
    clean,
    display_width,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)
from neutracer.render.html import MOST_INLINE, page_shell
from neutracer.render.report import to_plain
from neutracer.units import format_bytes, format_count

# ---- Merge -------------------------------------------------------------------------------

# Named types of a mixed run.
_NAMED_TYPES = 3


def merged_node(number: int, nodes: Sequence[Node]) -> Node:
    """Merge nodes into one with their count and bytes, each storage once."""
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
    most = names.most_common(_NAMED_TYPES)
    rest = names.total() - sum(count for _, count in most)
    named = [f"{count:,} {name}" for name, count in most]
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
    if any(_facts(other) != _facts(first) for other in tensors):
        return None
    same = all(other is not None and other.frames == first.frames for other in tensors)
    return replace(first, storage=0, data_ptr=0, frames=first.frames if same else ())


def _facts(tensor: TensorFacts | None) -> Hashable:
    return tensor and (tensor.shape, tensor.dtype, tensor.device)


def merged_edges(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Merge parallel edges of one kind into one, named "first … last"."""
    found: dict[tuple[int, int, str, bool, bool], list[str]] = {}
    for edge in edges:
        key = (edge.source, edge.target, edge.kind, edge.in_cycle, edge.cut)
        names = found.setdefault(key, [edge.name, edge.name])
        names[1] = edge.name
    return tuple(
        Edge(source, target, first if first == last else f"{first} … {last}", kind, cycle, cut)
        for (source, target, kind, cycle, cut), (first, last) in found.items()
    )


# ---- Fold --------------------------------------------------------------------------------

# Three steps, each only if the last left too many nodes: fold the middle of a long cycle, fold
# runs of alike objects (equal type, shape and neighbours), drop the nodes furthest from the cycle.

# Graphs of at most this many nodes are not folded.
_SMALL = 16

# The fewest alike objects to fold.
_SHORTEST_RUN = 6

# The longest cycle drawn whole; of longer ones, the objects kept on each side of the cut, and the
# most tensor holders kept in the middle.
_LONGEST_CYCLE = 12
_KEPT_ENDS = 3
_KEPT_HOLDERS = 4

# The distance to which neighbours of alike objects must match.
_ROUNDS = 3

# Tensors that are not folded by type.
_KEPT_TENSORS = 8


def fold(graph: GraphData, most_nodes: int = MOST_NODES) -> GraphData:
    """Fold a graph to at most about `most_nodes` nodes; notes say what was folded."""
    ring = cycle_order(graph)
    if len(graph.nodes) <= _SMALL and len(graph.nodes) <= most_nodes:
        return graph
    fixed = _fixed_keys(graph, ring)
    keys = _grouped(_colours(graph, fixed), fixed)
    if len(set(keys)) > most_nodes:
        kept = _fixed_near(graph, fixed, most_nodes)
        keys = _grouped(_rough_colours(graph, fixed, kept), kept)
    return _keyed(graph, ring, _cut_far(graph, keys, fixed, most_nodes))


def cycle_order(graph: GraphData) -> list[int]:
    """The nodes of the marked cycle in order, starting after the cut."""
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
    """Group keys of the nodes drawn unchanged and of the middle of a long cycle."""
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
    # If every object of the cycle holds a tensor, the middle ones add nothing.
    return kept | holders if len(holders - kept) <= _KEPT_HOLDERS else kept


def _fixed_near(
    graph: GraphData, fixed: dict[int, Hashable], most_nodes: int
) -> dict[int, Hashable]:
    """`fixed` plus the largest tensors and, if they fit, the cycle's referents."""
    by_bytes = sorted(graph.nodes, key=lambda node: -node.bytes)[:_KEPT_TENSORS]
    near = {node.id for node in by_bytes if node.bytes}
    whole = {node for node, key in fixed.items() if key == ("node", node)}
    around = {edge.target for edge in graph.edges if edge.source in whole}
    near |= around if len(around) <= most_nodes // 4 else set()
    return {**{node: ("node", node) for node in near}, **fixed}


def _grouped(colours: list[int], fixed: dict[int, Hashable]) -> list[Hashable]:
    sizes = Counter(colours)
    return [
        fixed.get(i, ("alike", colour) if sizes[colour] >= _SHORTEST_RUN else ("node", i))
        for i, colour in enumerate(colours)
    ]


def _colours(graph: GraphData, fixed: dict[int, Hashable]) -> list[int]:
    """Equal numbers for nodes whose surroundings look alike, to a distance of `_ROUNDS`."""
    colours = _numbered(
        fixed.get(node.id) or (node.type, node.label, node.kind, node.place, _facts(node.tensor))
        for node in graph.nodes
    )
    for _ in range(_ROUNDS):
        around: list[set[Hashable]] = [set() for _ in colours]
        for edge in graph.edges:
            around[edge.source].add((edge.kind, colours[edge.target]))
            around[edge.target].add((colours[edge.source], edge.kind))
        colours = _numbered(
            fixed.get(i) or (colours[i], frozenset(near)) for i, near in enumerate(around)
        )
    return colours


def _rough_colours(
    graph: GraphData, fixed: dict[int, Hashable], kept: dict[int, Hashable]
) -> list[int]:
    """Equal numbers for nodes of one type at one distance from the cycle."""
    near = _neighbours(graph, [node.id for node in graph.nodes])
    distance: dict[Hashable, int] = {}
    for key, other in _spread(near, sorted(fixed)).items():
        distance[key] = 0 if key == other else distance[other] + 1
    return _numbered(
        kept.get(node.id) or (node.type, node.kind, distance.get(node.id)) for node in graph.nodes
    )


def _neighbours(graph: GraphData, keys: Sequence[Hashable]) -> dict[Hashable, list[Hashable]]:
    """The keys of neighbours in either direction, by the key of a node."""
    near: dict[Hashable, list[Hashable]] = {key: [] for key in keys}
    for edge in graph.edges:
        near[keys[edge.source]].append(keys[edge.target])
        near[keys[edge.target]].append(keys[edge.source])
    return near


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _cut_far(
    graph: GraphData, keys: list[Hashable], fixed: dict[int, Hashable], most_nodes: int
) -> list[Hashable | None]:
    """The keys, with None for groups too far away to draw.

    The largest tensors and the ways to them are always drawn, up to half of the picture.
    """
    if len(set(keys)) <= most_nodes:
        return list(keys)
    weight: Counter[Hashable] = Counter()
    for node in graph.nodes:
        weight[keys[node.id]] += node.bytes
    near = _neighbours(graph, keys)
    before = _spread(near, [fixed[i] for i in sorted(fixed)])
    ways: dict[Hashable, None] = {}
    for key, held in weight.most_common(_KEPT_TENSORS):
        way = [key] if held and key in before else []
        while way and before[way[-1]] != way[-1]:
            way.append(before[way[-1]])
        if len(ways.keys() | way) <= most_nodes // 2:
            ways.update(dict.fromkeys(way))
    rest = [*before, *(key for key in near if key not in before)]
    starts = [key for key, other in before.items() if key == other]
    drawn = set(list(dict.fromkeys([*starts, *ways, *rest]))[:most_nodes])
    return [key if key in drawn else None for key in keys]


def _spread(
    near: dict[Hashable, list[Hashable]], start: Sequence[Hashable]
) -> dict[Hashable, Hashable]:
    """Breadth-first search: each reachable key with its predecessor; a start has itself."""
    before: dict[Hashable, Hashable] = {key: key for key in start or [next(iter(near))]}
    queue = deque(before)
    while queue:
        key = queue.popleft()
        for other in near[key]:
            if other not in before:
                before[other] = key
                queue.append(other)
    return before


def _keyed(graph: GraphData, ring: Sequence[int], keys: Sequence[Hashable | None]) -> GraphData:
    members: dict[Hashable, list[Node]] = {}
    for node, key in zip(graph.nodes, keys, strict=True):
        if key is not None:
            members.setdefault(key, []).append(node)
    number = {key: place for place, key in enumerate(members)}
    nodes = tuple(merged_node(number[key], nodes) for key, nodes in members.items())
    ends = {at: number[key] for at, key in enumerate(keys) if key is not None}
    kept = [edge for edge in graph.edges if edge.source in ends and edge.target in ends]
    runs = {number[key] for key in number if isinstance(key, tuple) and key[0] == "run"}
    moved = [replace(edge, source=ends[edge.source], target=ends[edge.target]) for edge in kept]
    edges = merged_edges(e for e in moved if e.source != e.target or e.source not in runs)
    notes = _notes(members, len(ring), sum(key is None for key in keys))
    return replace(graph, nodes=nodes, edges=edges, notes=(*graph.notes, *notes))


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


# ---- Scene -------------------------------------------------------------------------------

# Text of a scene is clean (`neutracer.render.document`), shortened and free of markup; each output
# format escapes it.

# Columns of text, so that a few boxes in a row fit a page.
_TITLE_COLUMNS = 116
_LABEL_COLUMNS = 34
_PLACE_COLUMNS = 34
_EDGE_COLUMNS = 26

_MOST_TITLE_LINES = 6
_MOST_NOTES = 6

# Names shown on parallel edges.
_MOST_NAMES = 3

_TIMES = "\N{MULTIPLICATION SIGN}"

# Files shown with their folder.
_NAMELESS_FILES = ("__init__.py", "__main__.py")


@dataclass(frozen=True)
class Box:
    """A node."""

    lines: tuple[str, ...]  # Its text, one line or more.
    role: str  # "tensor", "cycle" (a part of the marked cycle), "root" or "plain".
    rounded: bool  # True for a Python object; C++ objects and roots have corners.
    stacked: bool  # True if it represents several objects.
    size: float  # Its bytes relative to the largest box, 0 to 1.


@dataclass(frozen=True)
class Arrow:
    """One or more references between two boxes."""

    tail: int
    head: int  # The position of the box referred to.
    lines: tuple[str, ...]  # The text beside it; may be empty.
    role: str  # "cut" (the one to break), "cycle" or "plain".


@dataclass(frozen=True)
class Scene:
    """A picture as plain data; a box's position is its node's id."""

    title: tuple[str, ...]
    notes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def scene(graph: GraphData) -> Scene:
    """The picture of a graph."""
    in_cycle = {end for e in graph.edges if e.in_cycle for end in (e.source, e.target)}
    largest = max((node.bytes for node in graph.nodes), default=0)
    smallest = min((node.bytes for node in graph.nodes if node.bytes), default=0)
    # If all boxes have one size, they stay as small as their text.
    scale = largest if largest > smallest else 0
    return Scene(
        title=_title(graph.title),
        notes=tuple(
            line for note in graph.notes[:_MOST_NOTES] for line in wrap(sentence(note), 120)
        ),
        boxes=tuple(_box(node, node.id in in_cycle, scale) for node in graph.nodes),
        arrows=_arrows(graph.edges),
    )


def _title(title: str) -> tuple[str, ...]:
    parts = [part for part in title.split("\n") if part.strip()]
    lines = [line for part in parts for line in _balanced(sentence(part))]
    return tuple(lines[:_MOST_TITLE_LINES])


def _balanced(text: str) -> list[str]:
    """Wraps text into the fewest lines, of similar length."""
    count = len(wrap(text, _TITLE_COLUMNS))
    columns = display_width(text) // count
    while count > 1 and columns < _TITLE_COLUMNS and len(wrap(text, columns)) > count:
        columns += 1
    return wrap(text, columns if count > 1 else _TITLE_COLUMNS)


def _box(node: Node, in_cycle: bool, scale: int) -> Box:
    role = "cycle" if in_cycle else "root" if node.kind == "root" else "plain"
    if node.bytes or node.tensor or node.kind == "tensor":
        role = "tensor"
    return Box(
        lines=tuple(_lines(node)),
        role=role,
        rounded=node.kind not in ("autograd", "root"),
        stacked=node.count > 1,
        size=math.sqrt(node.bytes / scale) if scale else 0.0,
    )


def _lines(node: Node) -> list[str]:
    several = f"{format_count(node.count)} {_TIMES} " if node.count > 1 else ""
    label = several + (clean(node.label).strip() or "object")
    lines = _tensor_lines(label, node, node.tensor) if node.tensor else _node_label(label)
    if node.tensor is None and node.bytes:
        lines.append(_node_bytes(node))
    elif node.tensor is None and node.place is not None:
        lines.append(_where(node.place))
    return lines


def _node_label(label: str) -> list[str]:
    """A label in at most two lines."""
    first, *rest = wrap(label, _LABEL_COLUMNS)
    return [first, *[shorten_right(" ".join(rest), _LABEL_COLUMNS)] * bool(rest)]


def _tensor_lines(label: str, node: Node, tensor: TensorFacts) -> list[str]:
    shape = f"[{', '.join(map(str, tensor.shape))}] {clean(tensor.dtype)}"
    shape = shorten_right(shape, _LABEL_COLUMNS)
    # The label may have the shape already.
    whole = label if "[" in label else f"{label}  {shape}"
    lines = [whole] if display_width(whole) <= _LABEL_COLUMNS + 6 else [*_node_label(label), shape]
    device = shorten_right(clean(tensor.device), 16)
    lines.append(f"{device}  {_node_bytes(node)}")
    if tensor.frames:
        lines.append(f"allocated at {_where(tensor.frames[0], with_function=True)}")
    return lines


def _node_bytes(node: Node) -> str:
    return format_bytes(node.bytes) + (" in all" if node.count > 1 else "")


def _where(place: Place, *, with_function: bool = False) -> str:
    parts = clean(place.location).replace("\\", "/").split("/")
    kept = 2 if parts[-1].startswith(_NAMELESS_FILES) else 1
    where = shorten_left("/".join(parts[-kept:]), _PLACE_COLUMNS)
    function = shorten_right(clean(place.function), 20) if with_function else ""
    return f"{where} {function}".rstrip()


def _arrows(edges: tuple[Edge, ...]) -> tuple[Arrow, ...]:
    """One arrow for all edges of one role between two boxes."""
    found: dict[tuple[int, int, str], list[str]] = {}
    for edge in edges:
        role = "cut" if edge.cut else "cycle" if edge.in_cycle else "plain"
        names = found.setdefault((edge.source, edge.target, role), [])
        text = shorten_right(clean(edge.text), _EDGE_COLUMNS)
        if text and text not in names:
            names.append(text)
    return tuple(
        Arrow(tail, head, _arrow_lines(names, role), role)
        for (tail, head, role), names in found.items()
    )


def _arrow_lines(names: list[str], role: str) -> tuple[str, ...]:
    rest = len(names) - _MOST_NAMES
    lines = names[:_MOST_NAMES] + [f"and {rest} more"] * (rest > 0)
    if role == "cut":
        lines[-1:] = [f"{lines[-1]} · break here"] if lines else ["break here"]
    return tuple(lines)


def node_words(node: Node) -> str:
    """A node in one line, for screen readers and tooltips."""
    return " · ".join(_lines(node))


# ---- Plan --------------------------------------------------------------------------------

# The drawing process and the DOT text share one plan, so `dot` draws the text as `to_svg()` draws
# the graph. Labels escape Graphviz's backslash escapes and HTML entities. Nodes are n0, n1, ….

# Graphviz measures with the first; browsers have one of the others, none of which is wider.
FONTS = "DejaVu Sans,Verdana,Helvetica,Arial,sans-serif"

# Boxes up to which layers are legible and `dot` is quick.
_MOST_LAYERED = 300

# Arrows up to which names outside the cycle are legible.
_MOST_NAMED = 120

# Points.
_TITLE_SIZE = "12"
_TEXT_SIZE = "11"
_SMALL_SIZE = "9.5"

# Extra inches of the largest box.
_MORE_HEIGHT = 0.75
_MORE_WIDTH = 1.0

# Fill, border and ink of boxes by their role.
_BOXES = {
    "tensor": (LIGHT.red_fill, LIGHT.red, LIGHT.ink),
    "cycle": (LIGHT.surface, LIGHT.grey, LIGHT.ink),
    "root": (LIGHT.page, LIGHT.ink, LIGHT.ink),
    "plain": (LIGHT.surface, LIGHT.line, LIGHT.grey),
}

Attributes = dict[str, str]


@dataclass(frozen=True)
class Plan:
    """A graph in Graphviz's terms."""

    engine: str  # The layout: "dot" or "sfdp".
    # Alternative attributes of the graph, to be tried in this order.
    graphs: tuple[Attributes, ...]
    frame: Attributes | None  # Attributes of a cluster around all nodes, or None for no cluster.
    node: Attributes
    edge: Attributes
    nodes: tuple[tuple[str, Attributes], ...]
    edges: tuple[tuple[str, str, Attributes], ...]  # Tail, head and attributes of each edge.


def plan(scene: Scene, *, headings: bool = True) -> Plan:
    """Graphviz's attributes for a scene; `headings` includes its title and notes."""
    layered = len(scene.boxes) <= _MOST_LAYERED
    named = layered and len(scene.arrows) <= _MOST_NAMED
    title = _visible(scene.title) if headings else ()
    notes = _visible(scene.notes) if headings else ()
    # A graph has one label, so the title becomes the label of a frame.
    framed = layered and bool(title)
    graph = {
        "bgcolor": LIGHT.page,
        "fontname": FONTS,
        "pad": "0.12",
        "nodesep": "0.28",
        "ranksep": "0.5",
        **({} if framed else _heading((*title, *notes), "t")),
        **(_heading(notes, "b", LIGHT.grey, _SMALL_SIZE) if framed else {}),
    }
    return Plan(
        engine="dot" if layered else "sfdp",
        graphs=tuple({**graph, "rankdir": way} for way in ("LR", "TB"))
        if layered
        else ({**graph, "overlap": "prism", "splines": "line"},),
        frame={**_heading(title, "t"), "peripheries": "0", "margin": "10"} if framed else None,
        node={
            "shape": "box",
            "fontname": FONTS,
            "fontsize": _TEXT_SIZE,
            "margin": "0.14,0.08",
            "height": "0.36",
            "width": "0.6",
            "penwidth": "0.8",
        },
        edge={"fontname": FONTS, "fontsize": _SMALL_SIZE, "arrowsize": "0.65"},
        nodes=tuple((f"n{i}", _dot_node(box, f"n{i}")) for i, box in enumerate(scene.boxes)),
        edges=tuple(
            (f"n{arrow.tail}", f"n{arrow.head}", _edge(arrow, f"e{i}", named))
            for i, arrow in enumerate(scene.arrows)
        ),
    )


def _visible(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines, or none if all are blank: a graph label of only "\\n" crashes Graphviz 14."""
    return lines if any(line.strip() for line in lines) else ()


def _heading(
    lines: tuple[str, ...], where: str, colour: str = LIGHT.ink, size: str = _TITLE_SIZE
) -> Attributes:
    if not lines:
        return {}
    return {
        "label": _edge_label(lines) if where == "t" else _edge_label(lines, r"\l") + r"\l",
        "labelloc": where,
        "labeljust": "c" if where == "t" else "l",
        "fontcolor": colour,
        "fontsize": size,
        "fontname": FONTS,
    }


def _edge_label(lines: tuple[str, ...], end: str = r"\n") -> str:
    return end.join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)


def _dot_node(box: Box, name: str) -> Attributes:
    fill, border, ink = _BOXES[box.role]
    pen = {"tensor": "1.5", "plain": "0.8"}.get(box.role, "1.2")
    attributes = {
        "label": _edge_label(box.lines),
        "id": name,
        "class": f"nt-{box.role}",
        "style": "rounded,filled" if box.rounded else "filled",
        "fillcolor": fill,
        "color": border,
        "fontcolor": ink,
        "penwidth": pen,
    }
    if box.stacked:
        attributes["peripheries"] = "2"
    if box.size:
        attributes["height"] = f"{0.36 + _MORE_HEIGHT * box.size:.2f}"
        attributes["width"] = f"{0.6 + _MORE_WIDTH * box.size:.2f}"
    return attributes


def _edge(arrow: Arrow, name: str, named: bool) -> Attributes:
    colour = LIGHT.grey if arrow.role == "plain" else LIGHT.red
    attributes = {"id": name, "class": f"nt-{arrow.role}", "color": colour, "fontcolor": colour}
    if arrow.lines and (named or arrow.role != "plain"):
        # Spaces, and a blank line below a bold arrow's name, keep the label off the line.
        below = (" ",) * (arrow.role != "plain")
        attributes["label"] = _edge_label((*(f" {line} " for line in arrow.lines), *below))
    attributes["penwidth"] = "0.8" if arrow.role == "plain" else "1.9"
    if arrow.role != "plain":
        attributes["weight"] = "3"
    if arrow.role == "cut":
        attributes["style"] = "dashed"
    return attributes


def dot_text(drawn: Plan) -> str:
    """The plan in the DOT language, in its first form."""
    lines = ["digraph objects {", _statement("graph", drawn.graphs[0])]
    lines.append(f"  layout={_quoted(drawn.engine)};")
    lines += [_statement("node", drawn.node), _statement("edge", drawn.edge)]
    if drawn.frame is not None:
        lines += ["  subgraph cluster_frame {", _statement("graph", drawn.frame)]
    lines += [_statement(_quoted(name), attributes) for name, attributes in drawn.nodes]
    for tail, head, attributes in drawn.edges:
        lines.append(_statement(f"{_quoted(tail)} -> {_quoted(head)}", attributes))
    ends = ["}"] if drawn.frame is None else ["  }", "}"]
    return "\n".join([*lines, *ends]) + "\n"


def _statement(what: str, attributes: Attributes) -> str:
    listed = " ".join(f"{name}={_quoted(value)}" for name, value in attributes.items())
    return f"  {what} [{listed}];"


def _quoted(text: str) -> str:
    # In quotes a backslash is special only before a quote or a line's end; labels double theirs.
    return '"' + text.replace('"', '\\"') + '"'


# ---- Svg ---------------------------------------------------------------------------------

# Normalizes SVG from either layout engine, with an allow-list of elements and attributes. Boxes are
# `<g class="nt-node nt-tensor" data-node="3">`, arrows `<g class="nt-edge nt-cut" data-edge="0">`.

_SVG = "{http://www.w3.org/2000/svg}"

_NUMBER = re.compile(r"-?\d+(\.\d+)?(pt)?")
_NUMBERS = re.compile(r"[-\d.,eE\s]+")
_PATH = re.compile(r"[-\d.,eE\sA-Za-z]+")
_COLOUR = re.compile(r"#[0-9a-f]{6}|none|transparent|black|white")
_WORD = re.compile(r"[a-z]+")
_TRANSFORM = re.compile(r"[-\d.,\sa-z()]+")

# Allowed attributes by element, with the form of their values.
_SHAPE = {
    "fill": _COLOUR,
    "stroke": _COLOUR,
    "stroke-width": _NUMBER,
    "stroke-dasharray": _NUMBERS,
}
_ALLOWED: dict[str, dict[str, re.Pattern[str]]] = {
    "g": {"transform": _TRANSFORM},
    "path": {**_SHAPE, "d": _PATH},
    "polygon": {**_SHAPE, "points": _NUMBERS},
    "polyline": {**_SHAPE, "points": _NUMBERS},
    "ellipse": {**_SHAPE, "cx": _NUMBER, "cy": _NUMBER, "rx": _NUMBER, "ry": _NUMBER},
    "text": {
        "x": _NUMBER,
        "y": _NUMBER,
        "text-anchor": _WORD,
        "font-size": _NUMBER,
        "fill": _COLOUR,
    },
}
_PART = re.compile(r"([ne])(\d+)")


def element(tag: str, attributes: dict[str, str], content: str = "") -> str:
    """An element; its content is markup, its attributes are data."""
    listed = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{listed}>{content}</{tag}>" if content else f"<{tag}{listed}/>"


def text_of(line: str) -> str:
    """A line of text as markup; runs of spaces are preserved."""
    return escape(line.replace("\xa0", " ").replace("  ", "\xa0 "))


def picture(body: str, box: tuple[float, float, float, float], words: str) -> str:
    """The SVG document; `box` is left, top, width and height in points, `words` its label."""
    shown = {
        "xmlns": "http://www.w3.org/2000/svg",
        "class": "nt-graph",
        "role": "img",
        "aria-label": words,
        "width": f"{box[2]:.0f}pt",
        "height": f"{box[3]:.0f}pt",
        "viewBox": " ".join(f"{number:.2f}" for number in box),
        "font-family": FONTS,
        "font-size": "11",
    }
    return element("svg", shown, body)


def parts_of(svg: bytes, scene: Scene, box_words: tuple[str, ...]) -> str:
    """Normalize Graphviz's output for a scene."""
    try:
        root = ElementTree.fromstring(svg)
        left, top, width, height = (float(n) for n in root.get("viewBox", "").split())
    except (ElementTree.ParseError, ValueError) as error:
        raise NeutracerError(f"cannot read Graphviz's picture: {error}") from error
    body = "".join(_Writer(scene, box_words).children(root))
    return picture(body, (left, top, width, height), " ".join(scene.title) or "Object graph")


class _Writer:
    def __init__(self, scene: Scene, box_words: tuple[str, ...]) -> None:
        self._scene = scene
        self._box_words = box_words

    def children(self, parent: ElementTree.Element) -> Iterator[str]:
        for child in parent:
            tag = str(child.tag).removeprefix(_SVG)
            allowed = _ALLOWED.get(tag)
            if allowed is not None:
                yield self._element(tag, allowed, child)

    def _element(
        self, tag: str, allowed: dict[str, re.Pattern[str]], child: ElementTree.Element
    ) -> str:
        attributes = {
            name: "none" if value == "transparent" else value
            for name, value in child.attrib.items()
            if name in allowed and allowed[name].fullmatch(value)
        }
        if tag == "text":
            return element(tag, attributes, text_of(child.text or ""))
        if tag == "g" and child.get("class") == "graph":
            # Its first polygon is the background.
            return element(tag, {"class": "nt-whole", **attributes}, "".join(self.children(child)))
        part = _PART.fullmatch(child.get("id", "")) if tag == "g" else None
        about, title = self._about(part[1], int(part[2])) if part else ({}, "")
        return element(tag, {**about, **attributes}, title + "".join(self.children(child)))

    def _about(self, kind: str, number: int) -> tuple[dict[str, str], str]:
        if kind == "n":
            return _about_box(self._scene.boxes[number], number, self._box_words[number])
        return _about_arrow(self._scene.arrows[number], number)


def _about_box(box: Box, number: int, words: str) -> tuple[dict[str, str], str]:
    """The attributes of a box's group, and its title."""
    about = {"class": f"nt-node nt-{box.role}", "data-node": str(number)}
    return about, element("title", {}, escape(words))


def _about_arrow(arrow: Arrow, number: int) -> tuple[dict[str, str], str]:
    about = {"class": f"nt-edge nt-{arrow.role}", "data-edge": str(number)}
    return about, element("title", {}, escape(" ".join(arrow.lines)))


# ---- Layout ------------------------------------------------------------------------------

# The layout for pages without Graphviz. Boxes are in columns, right of their referrers except where
# a cycle closes. An arrow reserves a place in each column that it passes, between the boxes.

# Points: the widest character, the height of a line, and the gap.
_COLUMN = 7.0
_LINE = 14.0
_PADDING = 9.0
_BETWEEN_COLUMNS = 150.0
_BETWEEN_ROWS = 26.0
_MARGIN = 12.0
_TIP = 8.0

# The height of an arrow with its name in a column that it passes.
_PASSING = 16.0

# Rounds in which boxes move towards their neighbours.
_SWEEPS = 6


@dataclass(frozen=True)
class _Spot:
    """The top left corner and extent of a box, or of an arrow's place in a column."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width


def lay_out(scene: Scene, box_words: tuple[str, ...]) -> str:
    """A scene as SVG, without title and notes; `box_words` are the tooltips."""
    ranks = _ranks(scene)
    ways, columns = _columns(scene, ranks)
    spots = _spots(scene, columns)
    # Red ones last: they are on top.
    drawn = sorted(enumerate(scene.arrows), key=lambda entry: entry[1].role != "plain")
    arrows = [_arrow(arrow, i, [spots[at] for at in ways[i]]) for i, arrow in drawn]
    boxes = [_placed_box(box, i, spots[i], box_words[i]) for i, box in enumerate(scene.boxes)]
    width = max((spot.right for spot in spots.values()), default=0.0)
    height = max((spot.y + spot.height for spot in spots.values()), default=0.0)
    # Leave room for a loop and its name at the right.
    shown = (-_MARGIN, -_MARGIN, width + 6 * _MARGIN, height + 2 * _MARGIN)
    return picture("".join(boxes + arrows), shown, " ".join(scene.title) or "Object graph")


def _ranks(scene: Scene) -> list[int]:
    """The column of each box: right of its referrers, closing edges aside."""
    after: list[list[int]] = [[] for _ in scene.boxes]
    referred = [0] * len(scene.boxes)
    for arrow in scene.arrows:
        if arrow.role != "cut":
            after[arrow.tail].append(arrow.head)
            referred[arrow.head] += 1
    order = _finished(after, referred)
    place = {box: position for position, box in enumerate(order)}
    ranks = [0] * len(scene.boxes)
    for box in order:
        for head in after[box]:
            if place[head] > place[box]:
                ranks[head] = max(ranks[head], ranks[box] + 1)
    return ranks


def _finished(after: list[list[int]], referred: list[int]) -> list[int]:
    """The boxes in an order in which most references run forward."""
    order: list[int] = []
    visited = [False] * len(after)
    for start in sorted(range(len(after)), key=lambda box: referred[box]):
        stack = [] if visited[start] else [(start, iter(after[start]))]
        visited[start] = True
        while stack:
            box, heads = stack[-1]
            head = next((head for head in heads if not visited[head]), None)
            if head is None:
                order.append(box)
                stack.pop()
            else:
                visited[head] = True
                stack.append((head, iter(after[head])))
    return order[::-1]


def _columns(scene: Scene, ranks: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """The places on each arrow's way, and the places in each column from the top.

    Places are numbered: first the boxes, then one per column that an arrow passes.
    """
    columns: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box, rank in enumerate(ranks):
        columns[rank].append(box)
    ways: list[list[int]] = []
    count = len(ranks)
    for arrow in scene.arrows:
        start, end = ranks[arrow.tail], ranks[arrow.head]
        step = 1 if end > start else -1
        way = [arrow.tail]
        # A large graph has no room for them.
        for rank in range(start + step, end, step) if count < 4_000 else ():
            columns[rank].append(count)
            way.append(count)
            count += 1
        ways.append([*way, arrow.head])
    _settle(columns, ways, count)
    return ways, columns


def _settle(columns: list[list[int]], ways: list[list[int]], count: int) -> None:
    """Sorts each column by the mean height of neighbours, so that fewer arrows cross."""
    near: list[list[int]] = [[] for _ in range(count)]
    for way in ways:
        for one, other in itertools.pairwise(way):
            near[one].append(other)
            near[other].append(one)
    height = {at: i - len(column) / 2 for column in columns for i, at in enumerate(column)}
    for turn in range(_SWEEPS):
        for column in columns if turn % 2 == 0 else columns[::-1]:
            mean = {at: sum(height[o] for o in near[at]) / max(len(near[at]), 1) for at in column}
            column.sort(key=mean.__getitem__)
            height.update((at, i - len(column) / 2) for i, at in enumerate(column))


def _spots(scene: Scene, columns: list[list[int]]) -> dict[int, _Spot]:
    extents = {
        at: _extent(scene.boxes[at]) if at < len(scene.boxes) else (0.0, _PASSING)
        for column in columns
        for at in column
    }
    heights = [sum(extents[at][1] + _BETWEEN_ROWS for at in column) for column in columns]
    tallest = max(heights, default=0.0)
    spots: dict[int, _Spot] = {}
    x = 0.0
    for column, height in zip(columns, heights, strict=True):
        y = (tallest - height) / 2
        widest = max(extents[at][0] for at in column)
        for at in column:
            # A passing arrow runs level over the column's width.
            own_width = extents[at][0] if at < len(scene.boxes) else widest
            own_height = extents[at][1]
            spots[at] = _Spot(x + (widest - own_width) / 2, y, own_width, own_height)
            y += own_height + _BETWEEN_ROWS
        x += widest + _BETWEEN_COLUMNS
    return spots


def _extent(box: Box) -> tuple[float, float]:
    width = max(display_width(line) for line in box.lines) * _COLUMN + 2 * _PADDING
    return width + 40 * box.size, len(box.lines) * _LINE + 2 * _PADDING + 30 * box.size


def _svg_text(lines: tuple[str, ...], x: float, middle: float, colour: str, size: str) -> str:
    top = middle - (len(lines) - 1) * _LINE / 2 + 4
    return "".join(
        element(
            "text",
            {
                "x": f"{x:.1f}",
                "y": f"{top + i * _LINE:.1f}",
                "text-anchor": "middle",
                "font-size": size,
                "fill": colour,
            },
            text_of(line),
        )
        for i, line in enumerate(lines)
    )


def _placed_box(box: Box, number: int, spot: _Spot, words: str) -> str:
    fill, border, ink = _BOXES[box.role]
    frame = {
        "x": f"{spot.x:.1f}",
        "y": f"{spot.y:.1f}",
        "width": f"{spot.width:.1f}",
        "height": f"{spot.height:.1f}",
        "rx": "7" if box.rounded else "0",
        "fill": fill,
        "stroke": border,
        "stroke-width": "1.5" if box.role == "tensor" else "1",
    }
    behind = {**frame, "x": f"{spot.x + 4:.1f}", "y": f"{spot.y + 4:.1f}"}
    text = _svg_text(box.lines, spot.x + spot.width / 2, spot.middle, ink, "11")
    shapes = (element("rect", behind) if box.stacked else "") + element("rect", frame)
    about, title = _about_box(box, number, words)
    return element("g", about, title + shapes + text)


def _curve(way: list[_Spot]) -> tuple[str, tuple[float, float], str]:
    """The path of an arrow, the place of its name, and the corners of its tip."""
    tail, head = way[0], way[-1]
    forward = head.x > tail.right
    if not forward and head.right >= tail.x:
        return _loop(tail, head)
    # Opposite arrows between two boxes run side by side.
    shift = -5.0 if forward else 5.0
    side = 1 if forward else -1
    x, y = (tail.right if forward else tail.x), tail.middle + shift
    end_x, end_y = (head.x if forward else head.right), head.middle + shift
    path = f"M{x:.1f},{y:.1f}"
    # Names are near the end, where arrows from one box diverge.
    names = []
    for spot in [*way[1:-1], _Spot(end_x - side * _TIP, end_y, 0, 0)]:
        near, far = (spot.x, spot.right) if forward else (spot.right, spot.x)
        bend = (x + near) / 2
        names.append((x + 0.6 * (near - x), y + 0.65 * (spot.middle - y)))
        path += f" C{bend:.1f},{y:.1f} {bend:.1f},{spot.middle:.1f} {near:.1f},{spot.middle:.1f}"
        path += f" L{far:.1f},{spot.middle:.1f}" * (far != near)
        x, y = far, spot.middle
    name_x, name_y = names[len(names) // 2]
    tip = (
        f"{end_x - side * _TIP:.1f},{end_y - 4:.1f} {end_x:.1f},{end_y:.1f} "
        f"{end_x - side * _TIP:.1f},{end_y + 4:.1f}"
    )
    return path, (name_x, name_y + 1.6 * shift), tip


def _loop(tail: _Spot, head: _Spot) -> tuple[str, tuple[float, float], str]:
    """An arrow within one column, which leaves and returns at its right."""
    x0, y0 = tail.right, tail.middle + 6
    x1, y1 = head.right + _TIP, head.middle - 6
    out = max(x0, x1) + 36
    path = f"M{x0:.1f},{y0:.1f} C{out:.1f},{y0:.1f} {out:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    tip = f"{x1:.1f},{y1 - 4:.1f} {x1 - _TIP:.1f},{y1:.1f} {x1:.1f},{y1 + 4:.1f}"
    return path, (out, (y0 + y1) / 2), tip


def _arrow(arrow: Arrow, number: int, way: list[_Spot]) -> str:
    path, (x, y), tip = _curve(way)
    colour = LIGHT.grey if arrow.role == "plain" else LIGHT.red
    line = {"d": path, "fill": "none", "stroke": colour}
    line["stroke-width"] = "0.8" if arrow.role == "plain" else "1.9"
    if arrow.role == "cut":
        line["stroke-dasharray"] = "5,3"
    head = {"points": tip, "fill": colour, "stroke": colour}
    text = _svg_text(arrow.lines, x, y, colour, "9.5")
    shapes = element("path", line) + element("polygon", head)
    about, title = _about_arrow(arrow, number)
    return element("g", about, title + shapes + text)


# ---- Graphviz ----------------------------------------------------------------------------

# The drawing process is spawned, not forked: it shares nothing with a training job, and its
# failures become exceptions here.

# Seconds per picture; a few hundred boxes take less than one.
_TIMEOUT = 30

_INSTALL = (
    "install Graphviz (on Debian: apt install graphviz libgraphviz-dev), then build neutracer "
    "again in its checkout: pip install --force-reinstall . or `make build`; to_dot(), to_html() "
    "and to_json() work without it"
)


class NoRendererError(NeutracerError):
    """This Graphviz has no renderer for the format."""


def render(plan: Plan, form: str) -> bytes:
    """Draw a plan with Graphviz."""
    module = _module_path()
    if module is None or not sys.executable:
        raise UnavailableError("drawing with Graphviz", _INSTALL)
    request = {"format": form, "seconds": _TIMEOUT, "plan": asdict(plan)}
    return _drawn(module, json.dumps(request, sort_keys=True).encode("ascii"), _TIMEOUT)


def _module_path() -> str | None:
    spec = importlib.util.find_spec("neutracer._graphviz")
    return spec.origin if spec else None


# gvc's error without a PNG plugin.
_NO_FORMAT = "renderer for png is unavailable"


# A notebook renders the same picture as SVG and as HTML.
@functools.lru_cache(maxsize=4)
def _drawn(module: str, request: bytes, timeout: float) -> bytes:
    # -I and -S isolate the child from the program's paths, hooks and settings.
    command = [sys.executable, "-I", "-S", drawing_child.__file__, module]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise NeutracerError(
            f"the graph could not be drawn within {timeout:g} seconds; draw fewer nodes"
        ) from None
    except OSError as error:
        raise NeutracerError(f"the drawing process could not be started: {error}") from error
    return _picture(done)


def _picture(done: subprocess.CompletedProcess[bytes]) -> bytes:
    head, _, body = done.stdout.partition(b"\n")
    try:
        answer = json.loads(head)
    except ValueError:
        raise NeutracerError(f"the drawing process {_ended(done)}") from None
    if answer.get("missing"):
        reason = sentence(str(answer["error"]), 200)
        raise UnavailableError("drawing with Graphviz", f"{reason}; {_INSTALL}")
    if "error" in answer:
        reason = sentence(str(answer["error"]))
        if _NO_FORMAT in reason:
            raise NoRendererError(reason)
        raise NeutracerError(f"Graphviz could not draw the graph: {reason}")
    return body


def _ended(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        try:
            return f"was ended by {signal.Signals(-done.returncode).name}"
        except ValueError:
            return f"was ended by signal {-done.returncode}"
    reason = sentence(done.stderr.decode("utf-8", "replace").strip()[-300:])
    return f"ended with status {done.returncode}" + (f": {reason}" if reason else "")


# ---- Raster ------------------------------------------------------------------------------

# resvg renders the SVG of a Graphviz without PNG. Pixels per inch as in Graphviz.
_DPI = 96.0

# Four bytes of memory each.
_MOST_PIXELS = 50_000_000

_POINTS_AN_INCH = 72.0

_SIZE = re.compile(r'<svg [^>]*width="([0-9.]+)pt" height="([0-9.]+)pt"')
_FAMILY = re.compile(r'<svg [^>]*font-family="([^"]+)"')


def rasterize(svg: str) -> bytes:
    """Convert an SVG, with its size in points, to a PNG of at most 50 million pixels."""
    resvg = _resvg()
    fonts = _fonts()
    family = _FAMILY.search(svg)
    if not _can_write(family[1] if family else "sans-serif", tuple(fonts)):
        raise UnavailableError(
            "drawing PNG",
            "no font was found: install DejaVu Sans (on Debian: apt install "
            "fonts-dejavu-core) or matplotlib, which has it; or use to_svg() or to_html()",
        )
    try:
        return bytes(resvg.svg_to_bytes(svg_string=svg, dpi=_dpi(svg), font_dirs=fonts))
    except ValueError as error:
        raise NeutracerError(f"the picture could not be drawn as PNG: {error}") from None


def _resvg() -> Any:
    try:
        import resvg_py
    except ImportError:
        raise UnavailableError(
            "drawing PNG",
            "the Graphviz in neutracer's wheels draws only SVG: for PNG run "
            f'"{pip_install("resvg-py")}", or use to_svg() or to_html()',
        ) from None
    return resvg_py


def _fonts() -> list[str]:
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf")]


@functools.cache
def _can_write(family: str, fonts: tuple[str, ...]) -> bool:
    """Render a letter: resvg silently skips text without a font."""
    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" font-family="{}">{}</svg>'
    letter = frame.format(family, '<text y="9">A</text>')
    draw = _resvg().svg_to_bytes
    return bool(
        draw(svg_string=letter, font_dirs=list(fonts))
        != draw(svg_string=frame.format(family, ""), font_dirs=list(fonts))
    )


def _dpi(svg: str) -> float:
    size = _SIZE.search(svg)
    if size is None:
        return _DPI
    inches = float(size[1]) * float(size[2]) / _POINTS_AN_INCH**2
    return min(_DPI, math.sqrt(_MOST_PIXELS / max(inches, 1e-9)))


# ---- Page --------------------------------------------------------------------------------

# A self-contained page: shapes, data, `page.css` and `page.js` are inline, under a policy that
# allows nothing else.

# Columns of one text: a hostile name ends here.
_MOST_TEXT = 500
_MOST_FRAMES = 40

_LINE_KEY = '<path d="M1,6 H27" stroke-width="2"{}/>'
_KEYS = (
    (
        "nt-node nt-tensor",
        '<rect x="1" y="1" width="26" height="10" rx="3" fill="none"/>',
        "holds memory",
    ),
    ("nt-edge nt-cycle", _LINE_KEY.format(""), "the cycle"),
    ("nt-edge nt-cut", _LINE_KEY.format(' stroke-dasharray="5,3"'), "break here"),
)


def page(graph: GraphData, svg: str, *, without_graphviz: str = "") -> str:
    """The page of a graph with its picture; `without_graphviz` is why its layout is plainer."""
    title, *more = [line for line in graph.title.split("\n") if line.strip()] or ["Object graph"]
    notes = [*graph.notes, *([without_graphviz] if without_graphviz else [])]
    body = (
        f"<header><h1>{_text(title)}</h1>"
        + "".join(f"<p>{_text(line)}</p>" for line in more)
        + "".join(f'<p class="muted">{_text(note)}</p>' for note in notes)
        + _bar(graph)
        + f'</header><main><div id="stage">{svg}</div>'
        '<aside id="panel" aria-live="polite" hidden></aside></main>'
        f'<script type="application/json" id="data">{_data(graph)}</script>'
    )
    return page_shell(title, body, _style(), _part("page.js"))


@functools.lru_cache(maxsize=2)
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _variables(palette: Palette) -> str:
    return (
        f"--page:{palette.page};--ink:{palette.ink};--grey:{palette.grey};"
        f"--line:{palette.line};--surface:{palette.surface};--red:{palette.red};"
        f"--red-fill:{palette.red_fill};--blue:{palette.allocated[2]}"
    )


def _style() -> str:
    return (
        f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n{_part('page.css')}"
    )


def _bar(graph: GraphData) -> str:
    has = {
        "holds memory": any(node.bytes for node in graph.nodes),
        "the cycle": any(edge.in_cycle for edge in graph.edges),
        "break here": any(edge.cut for edge in graph.edges),
    }
    objects = format_count(sum(node.count for node in graph.nodes), "object")
    keys = "".join(
        f'<span class="key"><svg aria-hidden="true"><g class="{kind}">{shape}</g>'
        f"</svg>{word}</span>"
        for kind, shape, word in _KEYS
        if has[word]
    )
    return (
        '<div class="bar" hidden><input id="search" type="search" '
        'placeholder="search type, name, file ( / )" aria-label="search">'
        '<button data-zoom="1.25" aria-label="larger">+</button>'
        '<button data-zoom="0.8" aria-label="smaller">&minus;</button>'
        '<button data-zoom="0">whole</button>'
        '<span class="muted" id="found" aria-live="polite"></span>'
        f'<span class="muted">{objects}</span>{keys}</div>'
    )


def _text(text: str) -> str:
    return escape(_plain(text))


def _plain(text: str) -> str:
    return sentence(text, _MOST_TEXT)


def _data(graph: GraphData) -> str:
    """The details as JSON, escaped for a script element."""
    shared = Counter(node.tensor.storage for node in graph.nodes if node.tensor)
    details: dict[str, Any] = {
        "nodes": [_node(node, shared) for node in graph.nodes],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "text": _plain(edge.text),
                "role": "break here" if edge.cut else "in the cycle" if edge.in_cycle else "",
            }
            for edge in graph.edges
        ],
    }
    text = json.dumps(details, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _node(node: Node, shared: Counter[int]) -> dict[str, Any]:
    facts = [("type", _plain(node.type)), ("kind", _plain(node.kind))]
    if node.count > 1:
        facts.append(("represents", format_count(node.count, "object")))
    if node.place is not None:
        facts.append(("at", _place(node.place)))
    if node.bytes:
        exact = f"{format_bytes(node.bytes)} ({format_count(node.bytes)} bytes)"
        facts.append(("holds", exact if node.bytes >= 1024 else format_bytes(node.bytes)))
    if node.tensor:
        facts += _tensor_facts(node.tensor, shared)
    frames = node.tensor.frames[:_MOST_FRAMES] if node.tensor else ()
    label = node_words(node)
    texts = [label, node.label, *(value for _, value in facts), *(str(frame) for frame in frames)]
    return {
        "label": label,
        "facts": [fact for fact in facts if fact[1]],
        "frames": [_place(frame) for frame in frames],
        "searched": " ".join(map(_plain, texts)).lower(),
    }


def _tensor_facts(tensor: TensorFacts, shared: Counter[int]) -> list[tuple[str, str]]:
    facts = [
        ("shape", f"[{', '.join(map(str, tensor.shape))}]"),
        ("dtype", _plain(tensor.dtype)),
        ("device", _plain(tensor.device)),
        ("requires_grad", str(tensor.requires_grad)),
    ]
    if tensor.data_ptr:
        facts.append(("address", f"{tensor.data_ptr:#x}"))
    others = shared[tensor.storage] - 1
    if tensor.storage and others:
        facts.append(("storage", f"shared with {format_count(others, 'other tensor')}"))
    return facts


def _place(place: Place) -> str:
    return _plain(f"{place.function} {place.location}".strip())


# ---- Draw --------------------------------------------------------------------------------

# Large graphs are folded first, with a note in the picture; JSON has everything. SVG and PNG need
# Graphviz.

#: The most boxes that are laid out.
MOST_DRAWN = 5_000

_SCHEMA = "neutracer.graph/1"


def dot(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture in the DOT language.

    Example:
        >>> dot(GraphData((Node(0, "app.Ring", "Ring"),), ())).splitlines()[0]
        'digraph objects {'
    """
    return dot_text(plan(scene(_folded(graph, max_nodes))))


def svg(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture as SVG, with its title and notes."""
    return _svg(_folded(graph, max_nodes), headings=True)


def png(graph: GraphData, max_nodes: int = MOST_NODES) -> bytes:
    """The picture as PNG, with its title and notes."""
    small = _folded(graph, max_nodes)
    try:
        return render(plan(scene(small)), "png")
    except NoRendererError:
        return rasterize(_svg(small, headings=True))


def html(graph: GraphData, max_nodes: int = MOST_ON_PAGE) -> str:
    """A self-contained page; without Graphviz its layout is plainer."""
    small = _folded(graph, max_nodes)
    picture, why = _svg_or_own(small, headings=False)
    return page(small, picture, without_graphviz=why)


def fragment(graph: GraphData) -> str:
    """The picture for a notebook, folded until it takes at most 1 MB."""
    most = MOST_NODES
    while True:
        picture, _ = _svg_or_own(_folded(graph, most), headings=True)
        shown = f'<div class="neutracer" style="overflow-x:auto">{picture}</div>'
        if most == 1 or len(shown.encode("utf-8", "replace")) <= MOST_INLINE:
            return shown
        most //= 2


def graph_json(graph: GraphData) -> str:
    """The whole graph, nothing folded, as JSON of the schema "neutracer.graph/1"."""
    plain = {
        "schema": _SCHEMA,
        "title": graph.title,
        "notes": list(graph.notes),
        "nodes": to_plain(graph.nodes, "nodes"),
        "edges": [
            {**to_plain(edge, f"edges[{i}]"), "text": edge.text}
            for i, edge in enumerate(graph.edges)
        ],
    }
    return json.dumps(plain, indent=None if len(graph.nodes) > MOST_DRAWN else 2)


def _folded(graph: GraphData, max_nodes: int) -> GraphData:
    max_nodes = whole_number("max_nodes", max_nodes)
    if not 1 <= max_nodes <= MOST_DRAWN:
        raise ValueError(f"max_nodes must be from 1 to {MOST_DRAWN:,}, not {max_nodes}")
    return fold(graph, max_nodes)


def _tooltips(graph: GraphData) -> tuple[str, ...]:
    return tuple(node_words(node) for node in graph.nodes)


def _svg(small: GraphData, *, headings: bool) -> str:
    drawn = scene(small)
    return parts_of(render(plan(drawn, headings=headings), "svg"), drawn, _tooltips(small))


def _svg_or_own(small: GraphData, *, headings: bool) -> tuple[str, str]:
    """The picture, and why Graphviz did not lay it out, or ""."""
    try:
        return _svg(small, headings=headings), ""
    except UnavailableError:
        why = "not found. On Debian: apt install graphviz libgraphviz-dev; rebuild neutracer."
    except NeutracerError as error:
        why = str(error)
    return lay_out(scene(small), _tooltips(small)), f"Laid out without Graphviz: {why}"
