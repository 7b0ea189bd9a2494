# SPDX-License-Identifier: Apache-2.0
"""Pictures by Graphviz, in a process of its own that may fail in any way."""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import pytest
from hostile_names import HOSTILE_NAMES
from object_graphs import cache_of, callback_cycle, named, ring

from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap import drawing as drawing_spawn
from neutracer.heap import drawing_child
from neutracer.heap.drawing import parts_of, plan, scene
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Edge, Node

NEEDS_GRAPHVIZ = pytest.mark.skipif(
    importlib.util.find_spec("neutracer._graphviz") is None,
    reason="neutracer was built without Graphviz",
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def no_picture_from_before():
    drawing_spawn._drawn.cache_clear()
    yield
    drawing_spawn._drawn.cache_clear()


def texts_of(svg):
    """The lines of text of a picture, with its common spaces."""
    root = ElementTree.fromstring(svg)
    return [(text.text or "").replace("\xa0", " ").strip() for text in root.iter(f"{SVG}text")]


def png_size(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


# ---- pictures --------------------------------------------------------------------------


@NEEDS_GRAPHVIZ
def test_svg_shows_every_word():
    svg = callback_cycle().to_svg()
    drawn = scene(callback_cycle())
    lines = [*drawn.title, *(line for box in drawn.boxes for line in box.lines)]
    lines += [line for arrow in drawn.arrows for line in arrow.lines]
    assert sorted(text for text in texts_of(svg) if text) == sorted(lines)
    classes = [g.get("class") for g in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    assert classes.count("nt-node nt-tensor") == 1
    assert classes.count("nt-edge nt-cut") == 1


@NEEDS_GRAPHVIZ
def test_png_fits_a_page():
    width, height = png_size(callback_cycle().to_png())
    assert 600 < width < 1200
    assert 150 < height < 400


def test_graphviz_of_wheels_has_no_renderer_for_png():
    said = b"the picture could not be made: Error: renderer for png is unavailable "
    done = subprocess.CompletedProcess([], 1, b'{"error": "%s", "missing": false}\n' % said, b"")
    with pytest.raises(drawing_spawn.NoRendererError):
        drawing_spawn._picture(done)


@NEEDS_GRAPHVIZ
def test_long_cycles_run_down_a_page():
    width, height = png_size(ring(30).to_png())
    assert width < 1200
    assert height > width


@NEEDS_GRAPHVIZ
@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_are_only_text(name):
    harmless = {e.tag for e in ElementTree.fromstring(named("name").to_svg()).iter()}
    svg = named(name).to_svg()
    root = ElementTree.fromstring(svg)
    assert {element.tag for element in root.iter()} <= harmless
    assert not {key for e in root.iter() for key in e.keys()} & {"href", "onclick", "style"}  # noqa: SIM118
    drawn = scene(named(name))
    shown = texts_of(svg)
    for box in drawn.boxes:
        assert all(line.strip() in shown for line in box.lines)


def test_a_title_of_spaces_is_no_label():
    assert "label" in plan(scene(named("name"))).graphs[0]
    for graph in plan(scene(named("  "))).graphs:
        assert "label" not in graph


@NEEDS_GRAPHVIZ
def test_a_label_never_becomes_markup():
    graph = ObjectGraph((Node(0, "t", "<b>bold</b>"), Node(1, "t", "<table>")), ())
    assert texts_of(graph.to_svg()) == ["<b>bold</b>", "<table>"]


@NEEDS_GRAPHVIZ
def test_escapes_of_graphviz_are_shown_as_they_are():
    words = [r"\N and \G", r"back\\slash\n", r"end\ ", "&amp; &#60;", r"\\"]
    graph = ObjectGraph(tuple(Node(i, "t", word) for i, word in enumerate(words)), ())
    assert texts_of(graph.to_svg()) == [word.strip() for word in words]


@NEEDS_GRAPHVIZ
def test_hundreds_of_boxes_are_drawn_by_force():
    nodes = tuple(Node(i, f"app.T{i}", f"T{i}") for i in range(400))
    edges = tuple(Edge((i - 1) // 3, i, "x", "attribute") for i in range(1, 400))
    graph = ObjectGraph(nodes, edges, "four hundred")
    assert plan(scene(graph)).engine == "sfdp"
    assert {f"T{i}" for i in range(400)} <= set(texts_of(graph.to_svg(max_nodes=400)))
    assert plan(scene(cache_of(10))).engine == "dot"


@NEEDS_GRAPHVIZ
def test_files_hold_what_is_returned(tmp_path):
    graph = callback_cycle()
    assert graph.to_svg(tmp_path / "g.svg") == (tmp_path / "g.svg").read_text(encoding="utf-8")
    assert graph.to_png(str(tmp_path / "g.png")) == (tmp_path / "g.png").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["g.png", "g.svg"]


@NEEDS_GRAPHVIZ
def test_a_notebook_asks_once(monkeypatch):
    graph = callback_cycle()
    svg = graph.to_svg()
    monkeypatch.setattr(drawing_spawn.subprocess, "run", None)
    assert svg in graph._repr_html_()


@NEEDS_GRAPHVIZ
def test_this_process_loads_no_graphviz():
    callback_cycle().to_png()
    with open("/proc/self/maps") as maps:
        assert "libgvc" not in maps.read()
    assert "neutracer._graphviz" not in sys.modules


# ---- what can go wrong -----------------------------------------------------------------


@pytest.fixture
def child(monkeypatch, tmp_path):
    """A function that puts a program of the test in the place of the drawing process."""

    def replace(source):
        path = tmp_path / "child.py"
        path.write_text(source)
        monkeypatch.setattr(drawing_child, "__file__", str(path))
        monkeypatch.setattr(drawing_spawn, "_module_path", lambda: str(tmp_path / "module.so"))

    return replace


def test_a_layout_that_never_ends_is_ended(child, monkeypatch):
    child("import time; time.sleep(600)")
    monkeypatch.setattr(drawing_spawn, "_TIMEOUT", 0.5)
    start = time.monotonic()
    with pytest.raises(NeutracerError, match=r"within 0\.5 seconds; draw fewer nodes"):
        callback_cycle().to_svg()
    assert time.monotonic() - start < 120


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import sys; sys.exit('out of memory')", "ended with status 1: out of memory"),
        ("print('not an answer')", "ended with status 0"),
        (
            """print('{"error": "no \\\\u001b[31m", "missing": false}')""",
            r"could not draw the graph: no \x1b[31m",
        ),
    ],
)
def test_a_child_that_fails_is_told(child, source, words):
    child(source)
    with pytest.raises(NeutracerError) as raised:
        callback_cycle().to_png()
    assert words in str(raised.value)
    # The page is laid out without it.
    assert words.split(":")[0] in callback_cycle().to_html()


def test_a_library_that_does_not_load_is_told(monkeypatch, tmp_path):
    path = tmp_path / "_graphviz.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(drawing_spawn, "_module_path", lambda: str(path))
    with pytest.raises(UnavailableError, match="apt install graphviz libgraphviz-dev"):
        callback_cycle().to_svg()


def test_without_graphviz_the_rest_works(monkeypatch):
    monkeypatch.setattr(drawing_spawn, "_module_path", lambda: None)
    graph = callback_cycle()
    for picture in (graph.to_svg, graph.to_png):
        with pytest.raises(UnavailableError, match="apt install graphviz libgraphviz-dev"):
            picture()
    assert "<svg" in graph._repr_html_()
    assert graph.to_dot()
    assert graph.to_json()


def test_a_python_without_a_program_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(UnavailableError):
        callback_cycle().to_svg()


def test_foreign_markup_does_not_get_through():
    graph = callback_cycle()
    svg = (
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="alert(1)">'
        b'<script>alert(1)</script><image href="http://x/"/><g id="n0" onclick="x">'
        b'<text x="1" y="2" fill="url(#a)" style="x">ok</text><a href="http://x/"><text/></a></g></svg>'
    )
    written = parts_of(svg, scene(graph), ("a", "b", "c", "d"))
    for word in ("script", "image", "onload", "onclick", "href", "url(", "style"):
        assert word not in written
    assert '<text x="1" y="2">ok</text>' in written


def test_what_is_no_picture_is_refused():
    for wrong in (b"", b"<svg", b"<svg/>", b'<svg viewBox="a b c d"/>'):
        with pytest.raises(NeutracerError, match="cannot read"):
            parts_of(wrong, scene(callback_cycle()), ())


# ---- the compiled module, in a process of its own --------------------------------------

USE_MODULE = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("_graphviz", sys.argv[1])
spec = importlib.util.spec_from_file_location("_graphviz", sys.argv[1], loader=loader)
module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
try:
    print(module.render(*eval(sys.argv[2]))[0][:5])
except Exception as error:
    print(type(error).__name__, error)
"""


@NEEDS_GRAPHVIZ
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("('dot', 'svg', {}, None, {}, {}, [('a', {})], [])", r"b'<\?xml'"),
        ("('nope', 'svg', {}, None, {}, {}, [], [])", 'RuntimeError .*"nope" not recognized'),
        ("('dot', 'nope', {}, None, {}, {}, [('a', {})], [])", "RuntimeError the picture"),
        ("('dot', 'svg', {}, None, {}, {}, [('a', {})] * 2, [])", "ValueError two nodes"),
        ("('dot', 'svg', {}, None, {}, {}, [('a', {})], [('a', 'b', {})])", "ValueError no node"),
        ("('dot', 'svg', {'label': 'a\\0b'}, None, {}, {}, [], [])", "ValueError .*NUL"),
        ("('dot', 'svg', {}, None, {}, {}, [('a\\0b', {})], [])", "ValueError .*null"),
        ("('dot', 'svg', {'a': '\\ud800'}, None, {}, {}, [], [])", "UnicodeEncodeError"),
        ("('dot', 'svg', {'a': 1}, None, {}, {}, [], [])", "TypeError"),
        ("('dot', 'svg', {}, 1, {}, {}, [], [])", "TypeError frame"),
        ("('dot', 'svg', {}, None, {}, {}, ['a'], [])", "TypeError a node is a tuple"),
        ("('dot', 'svg', {}, None, {}, {}, [('a',)], [])", "TypeError"),
        ("('dot', 'svg', {}, None, {}, {}, [], [3])", "TypeError an edge is a tuple"),
    ],
)
def test_the_module_refuses_wrong_arguments(arguments, words):
    path = importlib.util.find_spec("neutracer._graphviz").origin
    done = drawing_spawn.subprocess.run(
        [sys.executable, "-c", USE_MODULE, path, arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.match(words, done.stdout), done.stdout
