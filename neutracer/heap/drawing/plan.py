# SPDX-License-Identifier: Apache-2.0
"""A scene as Graphviz's attributes, and these as DOT text.

The one plan is what the drawing process hands to cgraph and what the DOT text says, so
that `dot` draws the text as `to_svg()` draws the graph. A label is escaped for what
Graphviz reads in it: backslash escapes and HTML entities. Names are our own: n0, n1.

Example:
    >>> from neutracer.heap.drawing.scene import scene
    >>> from neutracer.heap.objects import Edge, GraphData, Node
    >>> nodes = (Node(0, "app.Ring", 'a "ring"'), Node(1, "list", "list"))
    >>> text = dot_text(plan(scene(GraphData(nodes, (Edge(0, 1, "x", "attribute"),)))))
    >>> print(text.splitlines()[-4].split(" class=")[0])
      "n0" [label="a \\"ring\\"" id="n0"
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from neutracer.heap.drawing.scene import Arrow, Box, Scene
from neutracer.render.palette import LIGHT

__all__ = ["Plan", "dot_text", "plan"]

# The first is what Graphviz measures with where it is there; browsers have one of the rest,
# none of them wider.
FONTS = "DejaVu Sans,Verdana,Helvetica,Arial,sans-serif"

# With more boxes than this, nobody can see layers any more, and `dot` takes long.
_MOST_LAYERED = 300

# With more arrows than this, only the names of the cycle can be read.
_MOST_NAMED = 120

# Points. A browser shows a point as 4/3 of a pixel.
_TITLE_SIZE = "12"
_TEXT_SIZE = "11"
_SMALL_SIZE = "9.5"

# Inches that a box of the largest bytes is higher and wider than one of none.
_MORE_HEIGHT = 0.75
_MORE_WIDTH = 1.0

Attributes = dict[str, str]


@dataclass(frozen=True)
class Plan:
    """A graph in Graphviz's terms.

    Attributes:
        engine: The layout: "dot" or "sfdp".
        graphs: Attributes of the graph; several are tried in this order.
        frame: Attributes of a cluster around all nodes, or None for no cluster.
        node: What all nodes have.
        edge: What all edges have.
        nodes: Name and attributes of each node.
        edges: Tail, head and attributes of each edge.
    """

    engine: str
    graphs: tuple[Attributes, ...]
    frame: Attributes | None
    node: Attributes
    edge: Attributes
    nodes: tuple[tuple[str, Attributes], ...]
    edges: tuple[tuple[str, str, Attributes], ...]

    def to_dict(self) -> dict[str, object]:
        """The plan as plain data for JSON."""
        return asdict(self)


def plan(scene: Scene, *, headings: bool = True) -> Plan:
    """How Graphviz draws a scene.

    Args:
        scene: The scene.
        headings: Whether its title and notes are drawn too.
    """
    layered = len(scene.boxes) <= _MOST_LAYERED
    named = layered and len(scene.arrows) <= _MOST_NAMED
    title = _seen(scene.title) if headings else ()
    notes = _seen(scene.notes) if headings else ()
    # A graph has one label: where there are two to show, the title is that of a frame.
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
        nodes=tuple((f"n{i}", _node(box, f"n{i}")) for i, box in enumerate(scene.boxes)),
        edges=tuple(
            (f"n{arrow.tail}", f"n{arrow.head}", _edge(arrow, f"e{i}", named))
            for i, arrow in enumerate(scene.arrows)
        ),
    )


def _seen(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines, or none if all are blank: a graph's label that is only "\\n" ends Graphviz 14."""
    return lines if any(line.strip() for line in lines) else ()


def _heading(
    lines: tuple[str, ...], where: str, colour: str = LIGHT.ink, size: str = _TITLE_SIZE
) -> Attributes:
    if not lines:
        return {}
    return {
        "label": _label(lines) if where == "t" else _label(lines, r"\l") + r"\l",
        "labelloc": where,
        "labeljust": "c" if where == "t" else "l",
        "fontcolor": colour,
        "fontsize": size,
        "fontname": FONTS,
    }


def _label(lines: tuple[str, ...], end: str = r"\n") -> str:
    """Lines as a label; `end` sets each of them in the middle, or at the left."""
    return end.join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)


def _node(box: Box, name: str) -> Attributes:
    fill, border, ink, pen = {
        "tensor": (LIGHT.red_fill, LIGHT.red, LIGHT.ink, "1.5"),
        "cycle": (LIGHT.surface, LIGHT.grey, LIGHT.ink, "1.2"),
        "root": (LIGHT.page, LIGHT.ink, LIGHT.ink, "1.2"),
        "plain": (LIGHT.surface, LIGHT.line, LIGHT.grey, "0.8"),
    }[box.role]
    attributes = {
        "label": _label(box.lines),
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
        # The spaces, and a line below a bold arrow's name, keep a label off its line.
        below = (" ",) * (arrow.role != "plain")
        attributes["label"] = _label((*(f" {line} " for line in arrow.lines), *below))
    attributes["penwidth"] = "0.8" if arrow.role == "plain" else "1.9"
    if arrow.role != "plain":
        attributes["weight"] = "3"
    if arrow.role == "cut":
        attributes["style"] = "dashed"
    return attributes


def dot_text(drawn: Plan) -> str:
    """The plan in the DOT language, in its first form."""
    frame = drawn.frame is not None
    lines = ["digraph objects {", *_statement("  graph", drawn.graphs[0])]
    lines += _statement("  layout=" + _quoted(drawn.engine), None)
    lines += [*_statement("  node", drawn.node), *_statement("  edge", drawn.edge)]
    if drawn.frame is not None:
        lines += ["  subgraph cluster_frame {", *_statement("  graph", drawn.frame)]
    for name, attributes in drawn.nodes:
        lines += _statement("  " + _quoted(name), attributes)
    for tail, head, attributes in drawn.edges:
        lines += _statement(f"  {_quoted(tail)} -> {_quoted(head)}", attributes)
    return "\n".join([*lines, *["  }"] * frame, "}"]) + "\n"


def _statement(what: str, attributes: Attributes | None) -> list[str]:
    if attributes is None:
        return [what + ";"]
    listed = " ".join(f"{name}={_quoted(value)}" for name, value in attributes.items())
    return [f"{what} [{listed}];"]


def _quoted(text: str) -> str:
    # Inside quotes a backslash means something before a quote and at a line's end only,
    # and the labels have theirs doubled.
    return '"' + text.replace('"', '\\"') + '"'
