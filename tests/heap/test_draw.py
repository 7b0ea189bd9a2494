# SPDX-License-Identifier: Apache-2.0
"""Graphs folded and put into words, and what needs no Graphviz: DOT, JSON, a page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from hostile_names import HOSTILE_NAMES
from object_graphs import MIB, cache_of, callback_cycle, named, ring, tensor_node

from neutracer.heap import drawing as drawing_spawn
from neutracer.heap.drawing import cycle_order, fold, merged_node, scene
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import MOST_NODES, Edge, Node

HOSTILE = pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)


@pytest.fixture
def no_graphviz(monkeypatch):
    monkeypatch.setattr(drawing_spawn, "_module_path", lambda: None)


def lines_of(graph):
    return [" ".join(box.lines) for box in scene(graph).boxes]


# ---- folding ---------------------------------------------------------------------------


def test_small_graphs_stay_as_they_are():
    graph = callback_cycle()
    assert fold(graph) is graph


def test_long_cycle_loses_its_middle():
    graph = fold(ring(100_000))
    assert "The cycle has 100,000 objects; 99,993 of them" in graph.notes[0]
    assert sum(node.count for node in graph.nodes) == 100_001
    # The edge to cut is whole, and so is the link with the tensor.
    cut = next(edge for edge in graph.edges if edge.cut)
    assert graph.nodes[cut.source].count == graph.nodes[cut.target].count == 1
    payload = next(edge for edge in graph.edges if edge.name == "payload")
    assert graph.nodes[payload.source].count == 1
    assert len(cycle_order(graph)) == len(graph.nodes) - 1 == 9


def test_alike_siblings_become_one_box():
    graph = fold(cache_of(300))
    assert len(graph.nodes) == 3
    assert graph.nodes[2].count == 300
    assert graph.nodes[2].bytes == 1200 * MIB
    assert [edge.text for edge in graph.edges if not edge.in_cycle] == ["[1 … 300]"]
    assert graph.notes == ("300 alike objects are folded into 1 box, with their counts.",)
    assert lines_of(graph)[2] == (
        "300 \N{MULTIPLICATION SIGN} Tensor  [4, 512, 512] float32 cuda:0  1,200 MiB in all "
        "allocated at train.py:38 wait"
    )


def test_siblings_with_other_contents_stay_apart():
    # Ten lists that hold a tensor, and ten that hold nothing.
    nodes = [Node(0, "app.Root", "Root")]
    nodes += [Node(i, "builtins.list", "list", "container") for i in range(1, 21)]
    nodes += [tensor_node(20 + i, 1, storage=i) for i in range(1, 11)]
    edges = [Edge(0, i, f"x{i}", "attribute") for i in range(1, 21)]
    edges += [Edge(i, 20 + i, "0", "item") for i in range(1, 11)]
    graph = fold(ObjectGraph(tuple(nodes), tuple(edges)))
    assert sorted(node.count for node in graph.nodes) == [1, 10, 10, 10]


def test_shared_storage_is_counted_once():
    views = [tensor_node(i, 4, storage=7) for i in range(8)]
    assert merged_node(0, views).bytes == 4 * MIB


def test_mixed_runs_name_their_types():
    nodes = [Node(i, "builtins.dict", "dict") for i in range(3)]
    nodes += [Node(3 + i, f"app.T{i}", f"T{i}") for i in range(4)]
    merged = merged_node(0, nodes)
    assert (merged.label, merged.type) == ("3 dict, 1 T0, 1 T1, 2 others", "")


@pytest.mark.parametrize("most", [1, 20, MOST_NODES])
def test_wide_graphs_keep_to_their_bound(most):
    # Every object of a type of its own, so that nothing is alike.
    nodes = [Node(i, f"app.T{i}", f"T{i}") for i in range(500)]
    nodes[499] = tensor_node(499, 64)
    edges = [Edge(i, (i + 1) % 4, "next", "attribute", True, i == 3) for i in range(4)]
    edges += [Edge((i - 1) // 2, i, "child", "attribute") for i in range(4, 500)]
    graph = fold(ObjectGraph(tuple(nodes), tuple(edges)), most)
    assert len(graph.nodes) == most
    assert f"{500 - most} objects further away are left out." in graph.notes
    if most > 1:
        assert sum(edge.in_cycle for edge in graph.edges) == 4
        assert any(node.bytes for node in graph.nodes)


def test_an_unmarked_ring_folds_too():
    edges = tuple(Edge(i, (i + 1) % 1000, "next", "attribute") for i in range(1000))
    graph = fold(ObjectGraph(tuple(Node(i, "app.Link", "Link") for i in range(1000)), edges))
    assert [node.count for node in graph.nodes] == [1000]


def test_an_empty_graph_is_drawn():
    graph = ObjectGraph((), ())
    assert fold(graph).nodes == ()
    assert graph.to_dot().startswith("digraph")
    assert json.loads(graph.to_json())["nodes"] == []
    assert "<svg" in graph.to_html()


# ---- words -----------------------------------------------------------------------------


def test_boxes_say_what_the_sketch_says():
    assert lines_of(callback_cycle()) == [
        "Callback hooks.py:12",
        "method view hooks.py:19",
        "AwaitableTensor",
        "Tensor  [64, 512, 512] float32 cuda:0  64 MiB allocated at train.py:38 wait",
    ]


def test_roles_follow_cycle_and_bytes():
    drawn = scene(callback_cycle())
    assert [box.role for box in drawn.boxes] == ["cycle", "cycle", "plain", "tensor"]
    assert [arrow.role for arrow in drawn.arrows] == ["cycle", "cut", "plain", "plain"]
    assert drawn.arrows[1].lines == ("__self__ · break here",)


def test_larger_tensors_have_larger_boxes():
    nodes = tuple(tensor_node(i, mib) for i, mib in enumerate((1, 4, 16)))
    assert [box.size for box in scene(ObjectGraph(nodes, ())).boxes] == [0.25, 0.5, 1.0]
    same = tuple(tensor_node(i, 4) for i in range(3))
    assert [box.size for box in scene(ObjectGraph(same, ())).boxes] == [0.0, 0.0, 0.0]


def test_parallel_references_share_an_arrow():
    edges = tuple(Edge(0, 1, f"x{i}", "attribute") for i in range(5))
    nodes = (Node(0, "app.A", "A"), Node(1, "app.B", "B"))
    (arrow,) = scene(ObjectGraph(nodes, edges)).arrows
    assert arrow.lines == (".x0", ".x1", ".x2", "and 2 more")


def test_long_titles_break_into_even_lines():
    drawn = scene(ObjectGraph((), (), "word " * 40 + "\nsecond"))
    assert len(drawn.title) == 3
    assert abs(len(drawn.title[0]) - len(drawn.title[1])) <= 5
    assert drawn.title[2] == "second"


@HOSTILE
def test_every_word_of_a_scene_is_plain(name):
    drawn = scene(named(name))
    words = [*drawn.title, *drawn.notes]
    words += [line for part in (*drawn.boxes, *drawn.arrows) for line in part.lines]
    assert all(word.isprintable() and len(word) < 130 for word in words)


# ---- DOT -------------------------------------------------------------------------------


@HOSTILE
def test_hostile_names_stay_inside_quotes(name):
    text = named(name).to_dot()
    # Without its quoted texts, in which a backslash goes with what follows it, only our
    # own words are left.
    bare = re.sub(r'"(?:\\.|[^"\\])*"', "", text)
    assert set(re.findall(r"[^\s\[\]{};=>-]+", bare)) <= {
        *("digraph", "objects", "graph", "node", "edge", "layout", "subgraph", "cluster_frame"),
        *("label", "labelloc", "labeljust", "fontname", "fontsize", "fontcolor", "bgcolor"),
        *("pad", "nodesep", "ranksep", "rankdir", "peripheries", "margin", "shape", "height"),
        *("width", "penwidth", "arrowsize", "id", "class", "style", "fillcolor", "color"),
        "weight",
    }
    assert all(line.isprintable() for line in text.splitlines())
    text.encode("utf-8")


@pytest.mark.skipif(not shutil.which("dot"), reason="needs Graphviz's dot program")
@HOSTILE
def test_dot_reads_the_text_back(name):
    text = named(name).to_dot()
    done = subprocess.run(["dot", "-Tjson0"], input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    labels = [o["label"] for o in read["objects"] if o["name"].startswith("n")]
    boxes = scene(named(name)).boxes
    # What dot shows of a label is what the scene says.
    ends = {"n": "\n"}
    shown = [re.sub(r"\\(.)", lambda m: ends.get(m[1], m[1]), label) for label in labels]
    assert shown == ["\n".join(box.lines).replace("&", "&amp;") for box in boxes]


def test_dot_marks_cycle_and_cut():
    lines = callback_cycle().to_dot().splitlines()
    edges = {line.split("[")[0].strip(): line for line in lines if "->" in line}
    assert 'style="dashed"' in edges['"n1" -> "n0"']
    assert 'class="nt-cut"' in edges['"n1" -> "n0"']
    assert 'class="nt-cycle"' in edges['"n0" -> "n1"']
    assert 'class="nt-plain"' in edges['"n2" -> "n3"']


# ---- JSON ------------------------------------------------------------------------------


def test_json_holds_all_there_is():
    graph = ring(1000)
    plain = json.loads(graph.to_json())
    assert plain["schema"] == "neutracer.graph/1"
    assert list(plain) == ["schema", "title", "notes", "nodes", "edges"]
    assert len(plain["nodes"]) == 1001
    assert plain["nodes"][1000]["tensor"]["shape"] == [8, 512, 512]
    assert plain["edges"][0] == {
        "source": 0,
        "target": 1,
        "name": "next",
        "kind": "attribute",
        "in_cycle": True,
        "cut": False,
        "text": ".next",
    }


@HOSTILE
def test_json_keeps_names_exactly(name):
    text = named(name).to_json()
    assert text.isascii()
    assert json.loads(text)["nodes"][0]["label"] == name


# ---- the page --------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags, attributes and data of a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags = set()
        self.attributes = []
        self.data = {}
        self.open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(dict(attrs).get("type", tag))

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.data[self.open[-1]] = self.data.get(self.open[-1], "") + data


@HOSTILE
def test_hostile_names_are_only_words_of_a_page(name, no_graphviz):
    harmless = Page(named("name").to_html())
    text = named(name).to_html()
    page = Page(text)
    assert page.tags <= harmless.tags
    assert {key for key, _ in page.attributes} <= {key for key, _ in harmless.attributes}
    assert page.data["script"] == harmless.data["script"]
    assert page.data["style"] == harmless.data["style"]
    assert len(text.encode("utf-8")) < 120_000
    details = json.loads(page.data["application/json"])
    values = [value for node in details["nodes"] for _, value in node["facts"]]
    assert all(value.isprintable() for value in values)


@pytest.mark.parametrize("with_graphviz", [False, True])
def test_a_page_loads_nothing(with_graphviz, monkeypatch):
    if not with_graphviz:
        monkeypatch.setattr(drawing_spawn, "_module_path", lambda: None)
    text = callback_cycle().to_html()
    page = Page(text)
    names = {key for key, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "style", "onclick", "onload", "srcset"}
    assert "http" not in text.replace('"http://www.w3.org/2000/svg"', "").replace("http-equiv", "")
    assert "url(" not in text
    assert "import(" not in text
    assert "default-src 'none'; style-src 'sha256-" in text
    assert "; script-src 'sha256-" in text


def test_a_page_tells_what_a_picture_tells(no_graphviz):
    page = Page(ring(1000).to_html())
    words = " ".join(page.data.values())
    assert "a ring of 1000" in page.data["h1"]
    assert "The cycle has 1,000 objects" in words
    assert "apt install graphviz libgraphviz-dev" in words
    details = json.loads(page.data["application/json"])
    tensor = next(node for node in details["nodes"] if node["frames"])
    assert ["holds", "8 MiB (8,388,608 bytes)"] in tensor["facts"]
    assert tensor["frames"] == ["wait /srv/app/train.py:38", "main /srv/app/train.py:80"]
    assert sum(edge["role"] == "break here" for edge in details["edges"]) == 1


@pytest.mark.parametrize("graph", [callback_cycle(), ring(40), cache_of(12), cache_of(200)])
def test_own_layout_keeps_boxes_apart(graph, no_graphviz):
    text = graph.to_html()
    boxes = re.findall(
        r'data-node="\d+".*?<rect x="([-\d.]+)" y="([-\d.]+)" width="([-\d.]+)" height="([-\d.]+)"',
        text,
    )
    corners = [tuple(map(float, box)) for box in boxes]
    assert len(corners) == len(fold(graph).nodes)
    for i, (x, y, width, height) in enumerate(corners):
        for other_x, other_y, other_width, other_height in corners[:i]:
            apart_x = x >= other_x + other_width or other_x >= x + width
            assert apart_x or y >= other_y + other_height or other_y >= y + height


# ---- files and arguments ---------------------------------------------------------------


def test_a_path_gets_what_is_returned(tmp_path, no_graphviz):
    graph = callback_cycle()
    for make, name in (
        (graph.to_dot, "g.dot"),
        (graph.to_json, "g.json"),
        (graph.to_html, "g.html"),
    ):
        text = make(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == text
    assert sorted(os.listdir(tmp_path)) == ["g.dot", "g.html", "g.json"]


@pytest.mark.parametrize("wrong", [0, -1, 5001])
def test_a_senseless_bound_is_refused(wrong):
    with pytest.raises(ValueError, match="max_nodes must be from 1 to 5,000"):
        callback_cycle().to_dot(max_nodes=wrong)
