# SPDX-License-Identifier: Apache-2.0
"""What a notebook keeps is small, whatever it is asked to show, and says what it left out."""

from __future__ import annotations

import dataclasses
import re

import pytest
from bundle import DATA
from hostile_names import HOSTILE_NAMES
from small_snapshots import dumped, one_program

import neutracer
from neutracer.heap.objects import Edge, Node
from neutracer.render.document import Document, Entry, Findings, KeyValues, Note, Severity, Table
from neutracer.render.html import MOST_INLINE, inline_html, render_html
from neutracer.render.text import strip_svg


def test_small_document_is_shown_whole() -> None:
    document = Document("small", blocks=(Table("", (("one",),)),))
    assert inline_html(document) == render_html(document)


@pytest.mark.parametrize(
    "block",
    [
        Table("", tuple((f"row {n}", "x" * 50) for n in range(50_000))),
        KeyValues("", tuple((f"row {n}", "x" * 50) for n in range(50_000))),
        Findings(tuple(Entry(Severity.INFO, f"{n} {'x' * 90}") for n in range(50_000))),
        Findings(
            (
                Entry(
                    Severity.INFO, "x", notes=tuple(Note(f"{n} {'x' * 90}") for n in range(50_000))
                ),
            )
        ),
    ],
    ids=["table", "key values", "findings", "notes"],
)
def test_large_document_is_cut_and_says_so(block: Table | KeyValues | Findings) -> None:
    page = inline_html(Document("large", blocks=(block,)), whole="report.to_dict()")
    assert len(page.encode()) <= MOST_INLINE
    assert "Cut for the notebook, which keeps at most 1 MB" in page
    assert "MB: report.to_dict() has it" in page


def test_many_blocks_are_cut_too() -> None:
    page = inline_html(Document("many", blocks=(KeyValues("x" * 90, ()),) * 30_000))
    assert len(page.encode()) <= MOST_INLINE
    assert "Cut for the notebook" in page


def test_large_graph_is_folded_until_it_fits() -> None:
    words = "\N{CJK UNIFIED IDEOGRAPH-6570}" * 400
    nodes = tuple(Node(i, f"app.T{i}", f"{i}{words}") for i in range(60))
    edges = tuple(Edge(i, i + 1, words, "attribute") for i in range(59))
    shown = neutracer.ObjectGraph(nodes, edges, "long names")._repr_html_()
    assert len(shown.encode()) <= MOST_INLINE


def test_large_figure_has_fewer_pixels() -> None:
    pytest.importorskip("matplotlib")
    np = pytest.importorskip("numpy")
    from neutracer.picture.figure import Picture

    figure = Picture(figsize=(7, 7), dpi=100)
    noise = np.random.default_rng(1).random((700, 700, 3))
    figure.add_axes((0, 0, 1, 1)).imshow(noise, interpolation="nearest", aspect="auto")
    assert len(figure._repr_png_()) <= MOST_INLINE


def test_strip_marks_the_highest_of_each_column() -> None:
    values = [0] * 10_000
    values[7_777] = 8 << 20
    picture = strip_svg(values)
    assert "8 MiB" in picture
    assert "V1H" in picture
    assert len(picture) < 10_000


def test_strip_of_nothing_is_empty() -> None:
    assert strip_svg([]) == ""
    assert strip_svg([5, 5, 5], base=5) == ""


def test_hostile_names_stay_text() -> None:
    for name in HOSTILE_NAMES:
        program = one_program()
        for event in program["device_traces"][0]:
            event["frames"] = [{"filename": name, "line": 1, "name": name}]
        page = neutracer.load(dumped(program)).timeline()._repr_html_()
        assert not re.search(r"<(script|img|iframe|a|svg onload)\b", page, re.I), name


def test_report_shows_its_text_in_a_terminal() -> None:
    report = neutracer.fragmentation_report(DATA / "frag_default.pickle")
    parts: list[str] = []

    @dataclasses.dataclass
    class Printer:
        stack: list[int]

        def text(self, text: str) -> None:
            parts.append(text)

    report._repr_pretty_(Printer([1]), False)
    report._repr_pretty_(Printer([1, 2]), False)
    assert parts == [str(report), repr(report)]
