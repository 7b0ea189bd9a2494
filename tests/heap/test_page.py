# SPDX-License-Identifier: Apache-2.0
"""The page of a graph in a browser: it runs under its own policy, and loads nothing."""

from __future__ import annotations

import pytest
from chromium import PROGRAM, Browser
from object_graphs import cache_of, callback_cycle, named

from neutracer.heap import drawing as drawing_spawn

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

SCALE = "document.querySelector('#stage svg').getScreenCTM().a"


@pytest.fixture(params=["graphviz", "own layout"])
def layout(request, monkeypatch):
    if request.param == "own layout":
        monkeypatch.setattr(drawing_spawn, "_module_path", lambda: None)


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "profile") as browser:
        yield browser


def test_page_tells_pans_zooms_and_finds(browser, layout, tmp_path):
    path = tmp_path / "graph.html"
    callback_cycle().to_html(path)
    browser.open(path)

    # Whole at first, and no larger than it is.
    assert 0.3 < browser.value(SCALE) <= 1.34
    boxes = browser.value(
        "[...document.querySelectorAll('.nt-node')].map(n => n.getBoundingClientRect().toJSON())"
    )
    assert all(box["left"] > 0 and box["right"] < 1200 and box["bottom"] < 800 for box in boxes)

    # A click tells everything about a box.
    browser.click("[data-node='3']")
    told = browser.value("document.getElementById('panel').innerText")
    for words in ("[64, 512, 512]", "64 MiB (67,108,864 bytes)", "wait /srv/app/train.py:38"):
        assert words in told
    assert ".tensor of AwaitableTensor" in told
    browser.click("#panel li button")
    assert browser.value("document.querySelector('#panel h2').innerText") == "AwaitableTensor"
    browser.press("Escape")
    assert "Click a box" in browser.value("document.getElementById('panel').innerText")

    # The wheel zooms where the mouse is; dragging moves.
    before = browser.value(SCALE)
    x, y = browser.middle("[data-node='0']")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    assert browser.value(SCALE) > before * 1.3
    assert browser.middle("[data-node='0']") == pytest.approx((x, y), abs=1.5)
    for kind, step in (("mousePressed", 0), ("mouseMoved", 20), ("mouseMoved", 50)):
        browser.mouse(kind, x + step, y + step, buttons=1)
    browser.mouse("mouseReleased", x + 50, y + 50)
    assert browser.middle("[data-node='0']") == pytest.approx((x + 50, y + 50), abs=1.5)
    browser.click("[data-zoom='0']")
    assert browser.value(SCALE) == pytest.approx(before, rel=0.01)

    # A search finds by type, name and file.
    browser.click("#search")
    browser.keys("train.py wait")
    assert browser.value("document.getElementById('found').innerText") == "1 of 4"
    assert browser.value("document.querySelectorAll('.nt-node.found').length") == 1
    browser.press("Enter")
    assert "Tensor" in browser.value("document.querySelector('#panel h2').innerText")

    assert browser.requested() == [path.as_uri()]
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<img src=http://x/y>"])
def test_hostile_names_run_nothing(browser, name, tmp_path):
    path = tmp_path / "graph.html"
    named(name).to_html(path)
    browser.open(path)
    browser.click("[data-node='1']")
    assert name in browser.value("document.getElementById('panel').innerText")
    assert browser.requested() == [path.as_uri()]
    assert browser.complaints() == []
    assert not any(event["method"] == "Page.javascriptDialogOpening" for event in browser.events)


def test_folded_boxes_tell_their_count(browser, tmp_path):
    path = tmp_path / "graph.html"
    cache_of(300).to_html(path)
    browser.open(path)
    browser.click("[data-node='2']")
    told = browser.value("document.getElementById('panel').innerText")
    assert "300 objects" in told
    assert "1,200 MiB" in told
