# SPDX-License-Identifier: Apache-2.0
"""Every picture and graph is a file by the ending of its name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from bundle import DATA

import neutracer
from neutracer.heap.objects import Edge, Node

BEGINS = {
    "png": b"\x89PNG",
    "svg": b"<?xml",
    "pdf": b"%PDF",
    "html": b"<!DOCTYPE html>",
}

GRAPH = neutracer.ObjectGraph(
    nodes=(Node(0, "app.Ring", "Ring"),),
    edges=(Edge(0, 0, "me", kind="attribute", in_cycle=True, cut=True),),
)


@pytest.mark.parametrize("ending", BEGINS)
def test_figures_are_saved_by_their_ending(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory.{ending.upper()}"
    neutracer.plot_timeline(DATA / "frag_default.pickle").save(path)
    assert path.read_bytes().startswith(BEGINS[ending])


def test_figure_of_no_format_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = neutracer.mdtp(DATA / "frag_default.pickle")
    with pytest.raises(ValueError, match=r"ends in .*\.html, .*\.png"):
        figure.save(tmp_path / "memory.docx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["svg", "png", "html", "dot", "json"])
def test_graphs_are_saved_by_their_ending(ending: str, tmp_path: Path) -> None:
    if ending in ("svg", "png") and importlib.util.find_spec("neutracer._graphviz") is None:
        pytest.skip("built without Graphviz")
    path = tmp_path / f"ring.{ending}"
    GRAPH.save(path)
    made = getattr(GRAPH, f"to_{ending}")()
    assert path.read_bytes() == (made if isinstance(made, bytes) else made.encode())
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.html"):
        GRAPH.save(tmp_path / "ring.pdf")
