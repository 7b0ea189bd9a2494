# SPDX-License-Identifier: Apache-2.0
"""`ObjectGraph`: an object graph and its renderings, DOT, SVG, PNG, HTML and JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutracer.arguments import path_name
from neutracer.heap.objects import MOST_NODES, MOST_ON_PAGE, GraphData
from neutracer.heap.objects import Edge as Edge  # ObjectGraph's hints are resolved here
from neutracer.heap.objects import Node as Node
from neutracer.saving import atomic_file

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class ObjectGraph(GraphData):
    """A described part of the object graph, with its pictures.

    Each `to_...` returns its output and, given a path, also writes it atomically. Pictures of
    large graphs are folded to at most `max_nodes` boxes (1 to 5,000), with a note on the folding.
    """

    def to_dot(self, path: Path | None = None, *, max_nodes: int = MOST_NODES) -> str:
        """The picture in the DOT language, which `dot` and other programs read.

        Args:
            path: A file to write as well.
            max_nodes: The most boxes in it.

        Raises:
            ValueError: `max_nodes` is out of range.
            OSError: The file can't be written.
        """
        return _text(_drawing().dot(self, max_nodes), path)

    def to_svg(self, path: Path | None = None, *, max_nodes: int = MOST_NODES) -> str:
        """The picture as SVG, laid out by Graphviz.

        Args:
            path: A file to write as well.
            max_nodes: The most boxes in it.

        Raises:
            ValueError: `max_nodes` is out of range.
            UnavailableError: Graphviz is missing; `.install` says what to install.
            NeutracerError: Graphviz failed, or took more than 30 seconds.
            OSError: The file can't be written.
        """
        return _text(_drawing().svg(self, max_nodes), path)

    def to_png(self, path: Path | None = None, *, max_nodes: int = MOST_NODES) -> bytes:
        """The picture as PNG, laid out by Graphviz; arguments and errors as `to_svg`.

        The Graphviz in wheels draws only SVG; resvg-py converts that to PNG.
        """
        return _written(_drawing().png(self, max_nodes), path)

    def to_html(self, path: Path | None = None, *, max_nodes: int = MOST_ON_PAGE) -> str:
        """A self-contained offline page: pan, zoom, search, click for details.

        Without Graphviz its layout is plainer, and a note gives the reason.

        Args:
            path: A file to write as well.
            max_nodes: The most boxes in it.

        Raises:
            ValueError: `max_nodes` is out of range.
            OSError: The file can't be written.
        """
        return _text(_drawing().html(self, max_nodes), path)

    def to_json(self, path: Path | None = None) -> str:
        """The whole graph, nothing folded, in the schema "neutracer.graph/1".

        Args:
            path: A file to write as well.

        Raises:
            OSError: The file can't be written.
        """
        return _text(_drawing().graph_json(self), path)

    def save(self, path: Path) -> None:
        """Write the picture to a file, in the format of its suffix.

        Args:
            path: A name that ends in .svg, .png, .html, .dot or .json.

        Raises:
            ValueError: The suffix is none of these.
            UnavailableError: Graphviz (.svg, .png) or, in a wheel, resvg-py (.png) is missing;
                `.install` says what to install.
            NeutracerError: Graphviz failed, or took more than 30 seconds.
            OSError: The file can't be written.
        """
        name = path_name(path, "path")
        formats: dict[str, Callable[[Path], object]] = {
            ".svg": self.to_svg,
            ".png": self.to_png,
            ".html": self.to_html,
            ".dot": self.to_dot,
            ".json": self.to_json,
        }
        write = formats.get(os.path.splitext(name)[1].lower())
        if write is None:
            raise ValueError(f"{name}: a graph's file ends in {', '.join(formats)}")
        write(name)

    def _repr_html_(self) -> str:
        fragment: str = _drawing().fragment(self)
        return fragment


def _drawing() -> Any:
    """Imported when something is drawn."""
    from neutracer.heap import drawing

    return drawing


def _text(text: str, path: Path | None) -> str:
    _written(text.encode("utf-8"), path)
    return text


def _written(data: bytes, path: Path | None) -> bytes:
    if path is not None:
        with atomic_file(path) as file:
            file.write(data)
    return data
