# SPDX-License-Identifier: Apache-2.0
"""A self-contained page that shows a graph: pan, zoom, search, and details on a click.

The page loads nothing: shapes, data, style and program are in the page, under a policy that
allows these and nothing else. Its style and its program are `page.css` and `page.js`.
"""

from __future__ import annotations

import functools
import json
from html import escape
from pathlib import Path
from typing import Any

from neutracer.heap.drawing.scene import node_words
from neutracer.heap.objects import Edge, GraphData, Node, TensorFacts
from neutracer.render.document import Place
from neutracer.render.escape import sentence
from neutracer.render.html import page_shell
from neutracer.render.palette import DARK, LIGHT, Palette
from neutracer.units import format_bytes, format_count

__all__ = ["page"]

# What a page shows of one text, in columns; a hostile name ends here.
_MOST_TEXT = 500
_MOST_FRAMES = 40

_KEYS = (
    ("tensor", '<rect x="1" y="1" width="26" height="10" rx="3" fill="none"/>', "holds memory"),
    ("cycle", '<path d="M1,6 H27" stroke-width="2"/>', "the cycle"),
    ("cut", '<path d="M1,6 H27" stroke-width="2" stroke-dasharray="5,3"/>', "break here"),
)


def page(graph: GraphData, svg: str, *, without_graphviz: str = "") -> str:
    """The page of a graph.

    Args:
        graph: The graph as it is drawn.
        svg: Its picture, in the form of `drawing_svg`.
        without_graphviz: Why the picture has a plainer layout; empty where it has not.
    """
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
    objects = format_count(sum(node.count for node in graph.nodes), "object")
    keys = "".join(
        f'<span class="key"><svg aria-hidden="true"><g class="{_key_class(role)}">{shape}</g>'
        f"</svg>{word}</span>"
        for role, shape, word in _KEYS
        if _has(graph, role)
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


def _key_class(role: str) -> str:
    return "nt-node nt-tensor" if role == "tensor" else f"nt-edge nt-{role}"


def _has(graph: GraphData, role: str) -> bool:
    if role == "tensor":
        return any(node.bytes for node in graph.nodes)
    return any(edge.cut if role == "cut" else edge.in_cycle for edge in graph.edges)


def _text(text: str) -> str:
    return escape(_plain(text))


def _plain(text: str) -> str:
    return sentence(text, _MOST_TEXT)


def _data(graph: GraphData) -> str:
    """The details as JSON that can't end the element around it."""
    shared = _shared_storages(graph)
    details: dict[str, Any] = {
        "nodes": [_node(node, shared) for node in graph.nodes],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "text": _plain(edge.text),
                "role": _role(edge),
            }
            for edge in graph.edges
        ],
    }
    text = json.dumps(details, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _role(edge: Edge) -> str:
    return "break here" if edge.cut else "in the cycle" if edge.in_cycle else ""


def _shared_storages(graph: GraphData) -> dict[int, int]:
    """How many of the drawn tensors have each storage."""
    shared: dict[int, int] = {}
    for node in graph.nodes:
        if node.tensor and node.tensor.storage:
            shared[node.tensor.storage] = shared.get(node.tensor.storage, 0) + 1
    return shared


def _node(node: Node, shared: dict[int, int]) -> dict[str, Any]:
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
    words = [label, node.label, *(value for _, value in facts), *(str(frame) for frame in frames)]
    return {
        "label": label,
        "facts": [fact for fact in facts if fact[1]],
        "frames": [_place(frame) for frame in frames],
        "searched": " ".join(map(_plain, words)).lower(),
    }


def _tensor_facts(tensor: TensorFacts, shared: dict[int, int]) -> list[tuple[str, str]]:
    facts = [
        ("shape", f"[{', '.join(map(str, tensor.shape))}]"),
        ("dtype", _plain(tensor.dtype)),
        ("device", _plain(tensor.device)),
        ("requires_grad", str(tensor.requires_grad)),
    ]
    if tensor.data_ptr:
        facts.append(("address", f"{tensor.data_ptr:#x}"))
    others = shared.get(tensor.storage, 1) - 1
    if others:
        facts.append(("storage", f"shared with {format_count(others, 'other tensor')}"))
    return facts


def _place(place: Place) -> str:
    return _plain(f"{place.function} {place.location}".strip())
