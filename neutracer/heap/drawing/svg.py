# SPDX-License-Identifier: Apache-2.0
"""SVG of one known form, whoever laid the picture out.

It reads what Graphviz wrote, and rewrites it with a short list of elements and attributes,
so that only shapes and text reach a page. Each box is a `<g class="nt-node nt-tensor"
data-node="3">`, each arrow a `<g class="nt-edge nt-cut" data-edge="0">`.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html import escape

from neutracer.errors import NeutracerError
from neutracer.heap.drawing.plan import FONTS
from neutracer.heap.drawing.scene import Scene

__all__ = ["element", "parts_of", "picture", "text_of"]

_SVG = "{http://www.w3.org/2000/svg}"

_NUMBER = re.compile(r"-?\d+(\.\d+)?(pt)?")
_NUMBERS = re.compile(r"[-\d.,eE\s]+")
_PATH = re.compile(r"[-\d.,eE\sA-Za-z]+")
_COLOUR = re.compile(r"#[0-9a-f]{6}|none|transparent|black|white")
_WORD = re.compile(r"[a-z]+")
_TRANSFORM = re.compile(r"[-\d.,\sa-z()]+")

# What an element may say, and how a value looks.
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
    """A line of text as markup, in which spaces side by side are kept apart."""
    return escape(line.replace("\xa0", " ").replace("  ", "\xa0 "))


def picture(body: str, box: tuple[float, float, float, float], words: str) -> str:
    """A whole picture around its parts.

    Args:
        body: The parts, as markup.
        box: What of the plane is shown: left, top, width and height, in points.
        words: The picture in words, for screen readers.
    """
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
    """What Graphviz drew, as a picture in the form of this module.

    Args:
        svg: Graphviz's output for the scene's plan.
        scene: What it was asked to draw.
        box_words: For each box what its tooltip says.

    Raises:
        NeutracerError: It is not a picture.
    """
    try:
        root = ElementTree.fromstring(svg)
        left, top, width, height = (float(n) for n in root.get("viewBox", "").split())
    except (ElementTree.ParseError, ValueError) as error:
        raise NeutracerError(f"Graphviz's picture can't be read: {error}") from error
    body = "".join(_Writer(scene, box_words).children(root))
    return picture(body, (left, top, width, height), " ".join(scene.title) or "Object graph")


class _Writer:
    """Writes Graphviz's elements anew."""

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
            # Its first polygon is the page's colour behind all of it.
            return element(tag, {"class": "nt-whole", **attributes}, "".join(self.children(child)))
        part = _PART.fullmatch(child.get("id", "")) if tag == "g" else None
        about, title = self._about(part[1], int(part[2])) if part else ({}, "")
        return element(tag, {**about, **attributes}, title + "".join(self.children(child)))

    def _about(self, kind: str, number: int) -> tuple[dict[str, str], str]:
        if kind == "n":
            box = self._scene.boxes[number]
            about = {"class": f"nt-node nt-{box.role}", "data-node": str(number)}
            return about, element("title", {}, escape(self._box_words[number]))
        arrow = self._scene.arrows[number]
        about = {"class": f"nt-edge nt-{arrow.role}", "data-edge": str(number)}
        return about, element("title", {}, escape(" ".join(arrow.lines)))
