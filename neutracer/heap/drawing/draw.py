# SPDX-License-Identifier: Apache-2.0
"""A graph as DOT, SVG, PNG, a page or JSON.

Large graphs are folded first, and the picture says so; JSON has everything. SVG and
PNG need Graphviz; the others don't.

Example:
    >>> graph = GraphData((Node(0, "app.Ring", "Ring"),), (), title="one object")
    >>> dot(graph).splitlines()[0]
    'digraph objects {'
"""

from __future__ import annotations

import json as json_text

from neutracer.arguments import whole_number
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.drawing.fold import fold
from neutracer.heap.drawing.layout import lay_out
from neutracer.heap.drawing.page import page
from neutracer.heap.drawing.plan import dot_text, plan
from neutracer.heap.drawing.raster import rasterize
from neutracer.heap.drawing.scene import node_words, scene
from neutracer.heap.drawing.spawn import NoRendererError, render
from neutracer.heap.drawing.svg import parts_of
from neutracer.heap.objects import MOST_NODES, MOST_ON_PAGE, GraphData, Node
from neutracer.render.inline import MOST_INLINE
from neutracer.render.json import to_plain

__all__ = ["dot", "fragment", "html", "json", "png", "svg"]

#: The most boxes that are laid out.
MOST_DRAWN = 5_000

_SCHEMA = "neutracer.graph/1"


def dot(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture in the DOT language.

    Raises:
        ValueError: `max_nodes` is not between 1 and 5,000.
    """
    return dot_text(plan(scene(_folded(graph, max_nodes))))


def svg(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture as SVG, with its title and notes.

    Raises:
        ValueError: `max_nodes` is not between 1 and 5,000.
        UnavailableError: There is no Graphviz here.
        NeutracerError: Graphviz made no picture.
    """
    return _svg(_folded(graph, max_nodes), headings=True)


def png(graph: GraphData, max_nodes: int = MOST_NODES) -> bytes:
    """The picture as PNG, with its title and notes; errors as `svg`.

    Raises:
        UnavailableError: Graphviz writes no PNG, and there is no resvg either, or no font.
    """
    small = _folded(graph, max_nodes)
    try:
        return render(plan(scene(small)), "png")
    except NoRendererError:
        return rasterize(_svg(small, headings=True))


def html(graph: GraphData, max_nodes: int = MOST_ON_PAGE) -> str:
    """A page that needs nothing else; without Graphviz its layout is plainer.

    Raises:
        ValueError: `max_nodes` is not between 1 and 5,000.
    """
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


def json(graph: GraphData) -> str:
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
    return json_text.dumps(plain, indent=None if len(graph.nodes) > MOST_DRAWN else 2)


def _folded(graph: GraphData, max_nodes: int) -> GraphData:
    max_nodes = whole_number("max_nodes", max_nodes)
    if not 1 <= max_nodes <= MOST_DRAWN:
        raise ValueError(f"max_nodes must be from 1 to {MOST_DRAWN:,}, not {max_nodes}")
    return fold(graph, max_nodes)


def _words(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    return tuple(node_words(node) for node in nodes)


def _svg(small: GraphData, *, headings: bool) -> str:
    drawn = scene(small)
    return parts_of(render(plan(drawn, headings=headings), "svg"), drawn, _words(small.nodes))


def _svg_or_own(small: GraphData, *, headings: bool) -> tuple[str, str]:
    """The picture, and why its layout is our own; "" where it is Graphviz's."""
    try:
        return _svg(small, headings=headings), ""
    except UnavailableError:
        why = "it is not here. On Debian: apt install graphviz libgraphviz-dev; rebuild neutracer."
    except NeutracerError as error:
        why = str(error)
    return lay_out(scene(small), _words(small.nodes)), f"Laid out without Graphviz: {why}"
