# SPDX-License-Identifier: Apache-2.0
"""What a picture of a graph shows, before it is drawn: boxes, arrows, words.

All text here is clean (`neutracer.render.escape`), cut to what a picture has room for, and
without markup; whoever writes it into a format escapes it for that format.

Example:
    >>> drawn = scene(GraphData((Node(0, "app.Ring", "Ring", bytes=64 << 20),), ()))
    >>> drawn.boxes[0].lines, drawn.boxes[0].role
    (('Ring', '64 MiB'), 'tensor')
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neutracer.heap.objects import Edge, GraphData, Node, TensorFacts
from neutracer.render.document import Place
from neutracer.render.escape import (
    clean,
    display_width,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)
from neutracer.units import format_bytes, format_count

__all__ = ["Arrow", "Box", "Scene", "node_words", "scene"]

# Columns of text; a picture of a few boxes in a row then fits a page.
_TITLE_COLUMNS = 116
_LABEL_COLUMNS = 34
_PLACE_COLUMNS = 34
_EDGE_COLUMNS = 26

_MOST_TITLE_LINES = 6
_MOST_NOTES = 6

# Parallel edges are named up to this many.
_MOST_NAMES = 3

_TIMES = "\N{MULTIPLICATION SIGN}"

# A file of such a name is known by its folder.
_NAMELESS_FILES = ("__init__.py", "__main__.py")


@dataclass(frozen=True)
class Box:
    """A node.

    Attributes:
        lines: Its text, one line or more.
        role: "tensor", "cycle" (a part of the marked cycle), "root" or "plain".
        rounded: An object of Python; what lives in C++, and a root, has corners.
        stacked: It represents several.
        size: From 0 to 1, how large its bytes are among the others'.
    """

    lines: tuple[str, ...]
    role: str
    rounded: bool
    stacked: bool
    size: float


@dataclass(frozen=True)
class Arrow:
    """One or more references between two boxes.

    Attributes:
        tail: The box that refers, by its position.
        head: The box that is referred to.
        lines: The text beside it; may be empty.
        role: "cut" (the one to break), "cycle" or "plain".
    """

    tail: int
    head: int
    lines: tuple[str, ...]
    role: str


@dataclass(frozen=True)
class Scene:
    """A picture as plain data; a box's position is its node's id."""

    title: tuple[str, ...]
    notes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def scene(graph: GraphData) -> Scene:
    """What a picture of the graph, as it is, shows."""
    in_cycle = {end for e in graph.edges if e.in_cycle for end in (e.source, e.target)}
    largest = max((node.bytes for node in graph.nodes), default=0)
    smallest = min((node.bytes for node in graph.nodes if node.bytes), default=0)
    # Boxes that are all of one size tell nothing, and stay as small as their text.
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
    """The text in as few lines as it takes, none of them a single leftover word."""
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
    lines = _tensor_lines(label, node, node.tensor) if node.tensor else _label(label)
    if node.tensor is None and node.bytes:
        lines.append(_bytes(node))
    elif node.tensor is None and node.place is not None:
        lines.append(_where(node.place))
    return lines


def _label(label: str) -> list[str]:
    """A label in at most two lines."""
    first, *rest = wrap(label, _LABEL_COLUMNS)
    return [first, *[shorten_right(" ".join(rest), _LABEL_COLUMNS)] * bool(rest)]


def _tensor_lines(label: str, node: Node, tensor: TensorFacts) -> list[str]:
    shape = f"[{', '.join(map(str, tensor.shape))}] {clean(tensor.dtype)}"
    shape = shorten_right(shape, _LABEL_COLUMNS)
    # A label may tell the shape already.
    first = label if "[" in label else f"{label}  {shape}"
    lines = [first] if display_width(first) <= _LABEL_COLUMNS + 6 else [*_label(label), shape]
    device = shorten_right(clean(tensor.device), 16)
    lines.append(f"{device}  {_bytes(node)}")
    if tensor.frames:
        lines.append(f"allocated at {_where(tensor.frames[0], with_function=True)}")
    return lines


def _bytes(node: Node) -> str:
    return format_bytes(node.bytes) + (" in all" if node.count > 1 else "")


def _where(place: Place, *, with_function: bool = False) -> str:
    """File and line, without the folders that every file of a program has."""
    parts = clean(place.location).replace("\\", "/").split("/")
    kept = 2 if parts[-1].startswith(_NAMELESS_FILES) else 1
    where = shorten_left("/".join(parts[-kept:]), _PLACE_COLUMNS)
    function = shorten_right(clean(place.function), 20) if with_function else ""
    return f"{where} {function}".rstrip()


def _arrows(edges: tuple[Edge, ...]) -> tuple[Arrow, ...]:
    """Edges between the same two boxes and of the same role become one arrow."""
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
