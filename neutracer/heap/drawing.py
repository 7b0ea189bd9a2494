# SPDX-License-Identifier: Apache-2.0
"""Renders graphs as DOT, SVG, PNG, HTML and JSON; Graphviz runs in a child process."""

from __future__ import annotations

import functools
import importlib.util
import json
import json as json_text
import math
import re
import signal
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import neutracer.heap.drawing_child as drawing_child
from neutracer.arguments import whole_number
from neutracer.errors import NeutracerError, UnavailableError, pip_install
from neutracer.heap.objects import MOST_NODES, MOST_ON_PAGE, Edge, GraphData, Node, TensorFacts
from neutracer.heap.scene import Plan, dot_text, fold, lay_out, node_words, parts_of, plan, scene
from neutracer.render.document import DARK, LIGHT, Palette, Place, sentence
from neutracer.render.html import MOST_INLINE, page_shell
from neutracer.render.report import to_plain
from neutracer.units import format_bytes, format_count

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
    """Draw a plan with Graphviz.

    Args:
        plan: The graph with its attributes.
        form: "svg" or "png".

    Raises:
        UnavailableError: Graphviz is missing.
        NoRendererError: It has no renderer for PNG, as in wheels (no cairo, no fonts).
        NeutracerError: It failed, or took more than 30 seconds.
    """
    module = _module_path()
    if module is None or not sys.executable:
        raise UnavailableError("drawing with Graphviz", _INSTALL)
    request = {"format": form, "seconds": _TIMEOUT, "plan": plan.to_dict()}
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
    """Convert an SVG, with its size in points, to a PNG of at most 50 million pixels.

    Raises:
        UnavailableError: resvg or a font is missing.
        NeutracerError: resvg rejected the picture.
    """
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

_KEYS = (
    ("tensor", '<rect x="1" y="1" width="26" height="10" rx="3" fill="none"/>', "holds memory"),
    ("cycle", '<path d="M1,6 H27" stroke-width="2"/>', "the cycle"),
    ("cut", '<path d="M1,6 H27" stroke-width="2" stroke-dasharray="5,3"/>', "break here"),
)


def page(graph: GraphData, svg: str, *, without_graphviz: str = "") -> str:
    """The page of a graph.

    Args:
        graph: The graph as drawn.
        svg: Its picture, from `parts_of` or `lay_out`.
        without_graphviz: The reason for a plainer layout; empty for Graphviz's.
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
    """The details as JSON, escaped for a script element."""
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
    texts = [label, node.label, *(value for _, value in facts), *(str(frame) for frame in frames)]
    return {
        "label": label,
        "facts": [fact for fact in facts if fact[1]],
        "frames": [_place(frame) for frame in frames],
        "searched": " ".join(map(_plain, texts)).lower(),
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


# ---- Draw --------------------------------------------------------------------------------

# Large graphs are folded first, with a note in the picture; JSON has everything. SVG and PNG need
# Graphviz.

#: The most boxes that are laid out.
MOST_DRAWN = 5_000

_SCHEMA = "neutracer.graph/1"


def dot(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture in the DOT language.

    Raises:
        ValueError: `max_nodes` is not between 1 and 5,000.

    Example:
        >>> dot(GraphData((Node(0, "app.Ring", "Ring"),), ())).splitlines()[0]
        'digraph objects {'
    """
    return dot_text(plan(scene(_folded(graph, max_nodes))))


def svg(graph: GraphData, max_nodes: int = MOST_NODES) -> str:
    """The picture as SVG, with its title and notes.

    Raises:
        ValueError: `max_nodes` is not between 1 and 5,000.
        UnavailableError: Graphviz is missing.
        NeutracerError: Graphviz failed.
    """
    return _svg(_folded(graph, max_nodes), headings=True)


def png(graph: GraphData, max_nodes: int = MOST_NODES) -> bytes:
    """The picture as PNG, with its title and notes; errors as `svg`.

    Raises:
        UnavailableError: Graphviz has no PNG renderer, and resvg or a font is missing.
    """
    small = _folded(graph, max_nodes)
    try:
        return render(plan(scene(small)), "png")
    except NoRendererError:
        return rasterize(_svg(small, headings=True))


def html(graph: GraphData, max_nodes: int = MOST_ON_PAGE) -> str:
    """A self-contained page; without Graphviz its layout is plainer.

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
    return json_text.dumps(plain, indent=None if len(graph.nodes) > MOST_DRAWN else 2)


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
