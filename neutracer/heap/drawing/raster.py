# SPDX-License-Identifier: Apache-2.0
"""An SVG as PNG, by resvg: for a Graphviz that writes no PNG of its own."""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from pathlib import Path
from typing import Any

from neutracer.errors import NeutracerError, UnavailableError, pip_install

__all__ = ["rasterize"]

# Pixels an inch, as Graphviz has them.
_DPI = 96.0

# The most pixels of a picture: in memory four bytes each.
_MOST_PIXELS = 50_000_000

_POINTS_AN_INCH = 72.0

_SIZE = re.compile(r'<svg [^>]*width="([0-9.]+)pt" height="([0-9.]+)pt"')
_FAMILY = re.compile(r'<svg [^>]*font-family="([^"]+)"')


def rasterize(svg: str) -> bytes:
    """A picture of an object graph as PNG.

    A picture of more than 50 million pixels is made smaller than its size in the SVG.

    Args:
        svg: The picture, with its size in points.

    Raises:
        UnavailableError: There is no resvg here, or no font that it can write with.
        NeutracerError: resvg did not take the picture.
    """
    resvg = _resvg()
    fonts = _fonts()
    family = _FAMILY.search(svg)
    if not _can_write(family[1] if family else "sans-serif", tuple(fonts)):
        raise UnavailableError(
            "drawing PNG",
            "there is no font for it: install DejaVu Sans (on Debian: apt install "
            "fonts-dejavu-core) or matplotlib, which brings it; or use to_svg() or to_html()",
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
            "the Graphviz in neutracer's wheels draws SVG: install what turns it into PNG with "
            f'"{pip_install("resvg-py")}", or use to_svg() or to_html()',
        ) from None
    return resvg_py


def _fonts() -> list[str]:
    """Folders with fonts beside those of the system: matplotlib's, where it is installed."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf")]


@functools.cache
def _can_write(family: str, fonts: tuple[str, ...]) -> bool:
    """Whether a letter leaves anything in a picture: resvg leaves out what it has no font for."""
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
