# SPDX-License-Identifier: Apache-2.0
"""PNG where Graphviz writes none, as in wheels: resvg turns the SVG into it."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from object_graphs import callback_cycle

from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap import drawing as draw
from neutracer.heap import drawing as raster
from neutracer.heap.drawing import NoRendererError, render

NEEDS_GRAPHVIZ = pytest.mark.skipif(
    importlib.util.find_spec("neutracer._graphviz") is None,
    reason="neutracer was built without Graphviz",
)
NEEDS_RESVG = pytest.mark.skipif(
    importlib.util.find_spec("resvg_py") is None, reason="needs the package 'resvg-py'"
)
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{}pt" height="{}pt" font-family="sans-serif">'
    '<rect width="9" height="9"/></svg>'
)


@pytest.fixture
def any_font(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures without a text need no font, which a bare machine lacks."""
    monkeypatch.setattr(raster, "_can_write", lambda family, fonts: True)


def png_size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.fixture
def graphviz_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphviz as it is in wheels: it writes SVG and no PNG."""

    def without_png(plan: object, form: str) -> bytes:
        if form == "png":
            raise NoRendererError("renderer for png is unavailable")
        return render(plan, form)  # type: ignore[arg-type]

    monkeypatch.setattr(draw, "render", without_png)


@NEEDS_GRAPHVIZ
@NEEDS_RESVG
def test_png_of_a_wheel_is_as_large_as_graphviz_s_own(
    graphviz_of_wheels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = callback_cycle()
    graph.save(tmp_path / "graph.png")
    png = (tmp_path / "graph.png").read_bytes()
    assert png == graph.to_png()
    monkeypatch.setattr(draw, "render", render)
    own = png_size(graph.to_png())
    assert all(abs(one - other) <= 2 for one, other in zip(png_size(png), own, strict=True))


@NEEDS_GRAPHVIZ
def test_without_resvg_a_sentence_says_what_to_install(
    graphviz_of_wheels: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UnavailableError, match=r"drawing PNG .*resvg-py.*use to_svg"):
        callback_cycle().save(tmp_path / "graph.png")
    assert list(tmp_path.iterdir()) == []


@NEEDS_RESVG
def test_texts_are_not_left_out_for_want_of_a_font(monkeypatch: pytest.MonkeyPatch) -> None:
    resvg = raster._resvg()
    bare = SimpleNamespace(
        svg_to_bytes=lambda **how: resvg.svg_to_bytes(**how, skip_system_fonts=True)
    )
    monkeypatch.setattr(raster, "_resvg", lambda: bare)
    monkeypatch.setattr(raster, "_fonts", list)
    raster._can_write.cache_clear()
    try:
        with pytest.raises(UnavailableError, match="no font was found: install DejaVu Sans"):
            raster.rasterize(SVG.format(9, 9))
    finally:
        raster._can_write.cache_clear()


@NEEDS_RESVG
def test_a_large_picture_is_made_smaller(any_font: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raster, "_MOST_PIXELS", 10_000)
    width, height = png_size(raster.rasterize(SVG.format(72_000, 18_000)))
    assert 9_000 < width * height <= 10_500
    assert width / height == pytest.approx(4, rel=0.05)
    assert png_size(raster.rasterize(SVG.format(36, 18))) == (48, 24)


@NEEDS_RESVG
def test_what_resvg_refuses_is_an_error_of_ours(any_font: None) -> None:
    with pytest.raises(NeutracerError, match="could not be drawn as PNG"):
        raster.rasterize("<svg")
