# SPDX-License-Identifier: Apache-2.0
"""A matplotlib figure without a window. Importing this imports matplotlib."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neutracer import units
from neutracer.arguments import path_name
from neutracer.render.document import Palette
from neutracer.render.html import MOST_INLINE, theme_rules
from neutracer.saving import atomic_file

# Names of a file are in the texts: nothing in them is a formula, and TeX would run them as a
# program.
_PLAIN_TEXT = {"text.usetex": False, "text.parse_math": False}

# In a light theme the first of two pictures is shown, in a dark one the second. Where a page has
# rules for pictures these are stronger; where it drops all of these, the second has no size.
_STYLE = (
    ".neutracer-dark{display:none!important}"
    + theme_rules(
        ".neutracer-dark",
        "display:inline!important;width:auto!important;height:auto!important",
    )
    + theme_rules(".neutracer-light", "display:none!important")
)
_SHOWN = {"light": "", "dark": 'hidden width="0" height="0" '}

# A text with escapes in it grows to at most so many characters, or twice what it had.
_MOST_ESCAPED = 60

# Bytes from which a picture counts in GiB.
_GIB_FROM = 4 << 30

# Units of a time axis in seconds, and the least upper end from which each is used.
_TIME_UNITS = (
    ("hours", 3600.0, 10_800.0),
    ("minutes", 60.0, 300.0),
    ("seconds", 1.0, 1.0),
    ("milliseconds", 1e-3, 1e-3),
)


def in_plain_text(draw: Callable[[Palette], Any]) -> Callable[[Palette], Any]:
    """A function that draws as this one does, without TeX and formulas."""

    def drawn(palette: Palette) -> Any:
        with rc_context(_PLAIN_TEXT):
            return draw(palette)

    return drawn


class _Canvas(FigureCanvasAgg):  # type: ignore[misc]
    """A canvas that writes no file which is a program in TeX."""

    filetypes: ClassVar[dict[str, str]] = {
        name: what for name, what in FigureCanvasAgg.filetypes.items() if name != "pgf"
    }

    def print_pgf(self, *unused: Any, **options: Any) -> None:
        """Refused: the names would be part of the program."""
        raise ValueError("a picture can't be .pgf: names of the file would be run as TeX")


class Picture(Figure):  # type: ignore[misc]
    """A figure that shows itself in a notebook, without pyplot and its list of figures.

    A character of a name that no font in force has is drawn as its escape. No text is set by TeX.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _Canvas(self)
        self._dark: Callable[[], Picture] | None = None
        self._is_drawn = 0

    def follow_theme(self, dark: Callable[[], Picture]) -> None:
        """Have a notebook show another picture where its theme is dark, also when that changes.

        It does so until the figure is changed: what it shows is then this figure alone.
        """
        self._dark = dark
        self.stale_callback = Picture._changed

    def _changed(self, _: bool) -> None:
        # Drawing changes a figure too.
        if not self._is_drawn:
            self._dark = None

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        self._is_drawn += 1
        try:
            # Ticks are made where they are drawn.
            with rc_context(_PLAIN_TEXT):
                yield
        finally:
            self._is_drawn -= 1

    def draw(self, renderer: Any) -> None:
        """Draw the figure."""
        with self._drawing():
            self.escape_texts()
            super().draw(renderer)

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Write the figure, as matplotlib's figures do."""
        with self._drawing():
            super().savefig(*arguments, **options)

    def escape_texts(self) -> None:
        """Make all texts drawable; before anything measures them."""
        for text in self.findobj(Text):
            words = text.get_text()
            if not words.isascii():
                text.set_text(_drawable(words, text.get_fontproperties()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as a file, in the format that its name ends in, whole or not at all."""
        name = path_name(path, "path")
        ending = os.path.splitext(name)[1].lower().removeprefix(".")
        known = {**self.canvas.get_supported_filetypes(), "html": ""}
        if ending not in known:
            raise ValueError(f"{name}: a picture's file ends in .{', .'.join(sorted(known))}")
        drawn = io.BytesIO()
        self.savefig(drawn, format="png" if ending == "html" else ending)
        with atomic_file(name) as file:
            file.write(_page(drawn.getvalue()) if ending == "html" else drawn.getvalue())

    def _repr_png_(self) -> bytes:
        """What a notebook keeps: at most 1 MB, with fewer pixels where that needs it."""
        dots = self.dpi
        while True:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=dots)
            if out.tell() <= MOST_INLINE or dots < 20:
                return out.getvalue()
            dots *= 0.7

    def _repr_html_(self) -> str | None:
        """The picture and its twin for a dark theme; None where it has none, or both are too
        large for a notebook."""
        if self._dark is None:
            return None
        pictures = "".join(
            f'<img class="neutracer-{scheme}" alt="" {_SHOWN[scheme]}style="max-width:100%" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode("ascii")}">'
            for scheme, png in (
                ("light", self._repr_png_()),
                ("dark", self._dark()._repr_png_()),
            )
        )
        page = f"<style>{_STYLE}</style>{pictures}"
        return page if len(page) <= MOST_INLINE else None


def _page(png: bytes) -> bytes:
    """A page with a picture in it, which loads nothing."""
    policy = "default-src 'none'; img-src data:"
    data = base64.b64encode(png).decode("ascii")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>neutracer</title></head>\n<body><img alt="" src="data:image/png;base64,{data}">'
        "</body></html>\n"
    ).encode("ascii")


def _drawable(words: str, properties: Any) -> str:
    """A text without the characters that none of its fonts has."""
    fonts = [get_font(path) for path in _font_paths(properties)]
    known = {
        char: char.isspace() or any(font.get_char_index(ord(char)) for font in fonts)
        for char in set(words)
    }
    if all(known.values()):
        return words
    escaped = "".join(
        char if known[char] else char.encode("unicode_escape").decode("ascii") for char in words
    )
    most = max(_MOST_ESCAPED, 2 * len(words))
    return escaped if len(escaped) <= most else escaped[: most - 3] + "..."


def _font_paths(properties: Any) -> list[str]:
    """The fonts that matplotlib tries in turn: one for each family that it finds."""
    paths = []
    for family in properties.get_family():
        one: FontProperties = properties.copy()
        one.set_family(family)
        try:
            paths.append(findfont(one, fallback_to_default=False))
        except ValueError:
            continue
    return paths or [findfont(properties)]


def plain_axes(axes: Any, palette: Palette, spines: tuple[str, ...] = ("left", "bottom")) -> None:
    """Thin grey axes, and text in ink."""
    axes.set_facecolor(palette.page)
    for name, spine in axes.spines.items():
        spine.set_visible(name in spines)
        spine.set_color(palette.grey)
        spine.set_linewidth(0.8)
    axes.tick_params(colors=palette.ink, labelsize=9, width=0.8, length=3.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(palette.ink)
        label.set_fontsize(9.5)


def byte_axis(axis: Any, most: int, count: int, labelled: bool = True) -> None:
    """Ticks at round numbers of one binary unit; the unit is the axis' name."""
    unit = "KiB" if most < 4 << 20 else "MiB" if most < _GIB_FROM else "GiB"
    factor = units.BYTE_UNITS[unit]
    steps = (size * 10**power for power in range(-1, 13) for size in (1, 2, 5))
    step = next(step for step in steps if most / factor / step <= count)
    ticks = np.arange(0, most / factor + step / 1000, step)
    texts = [f"{tick:,.6g}" for tick in ticks] if labelled else [""] * len(ticks)
    axis.set_ticks(ticks * factor, texts)
    axis.set_label_text(unit if labelled else "")


def size_text(nbytes: int) -> str:
    """A size in the unit in which an axis up to it counts."""
    return units.format_bytes(nbytes, "GiB" if nbytes >= _GIB_FROM else None)


def power_name(nbytes: int) -> str:
    """A power of two in the largest unit that leaves it whole, as the ticks of a scale have
    it."""
    unit = [name for name, factor in units.BYTE_UNITS.items() if nbytes >= factor][-1]
    return f"{nbytes // units.BYTE_UNITS[unit]:,} {unit}"


class _ScaledLocator(MaxNLocator):  # type: ignore[misc]
    """Ticks at round numbers of a unit."""

    def __init__(self, unit: float, integer: bool) -> None:
        super().__init__(6, integer=integer, steps=[1, 2, 5, 10])
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """The ticks of an axis between two values."""
        return super().tick_values(vmin / self._unit, vmax / self._unit) * self._unit


def time_axis(axes: Any, by_time: bool, events: int) -> None:
    """Ticks and name of an axis of seconds, written in the unit that fits, or of events.

    Args:
        by_time: Whether they are seconds.
        events: How many there are; with none there is only one moment, and nothing to
            count.
    """
    if not events:
        axes.set_xlabel("no history: the moment of the snapshot")
        axes.set_xticks([])
        return
    unit, factor = "", 1.0
    if by_time:
        most = max(axes.get_xlim())
        unit, factor = next(
            ((name, size) for name, size, least in _TIME_UNITS if most >= least),
            ("microseconds", 1e-6),
        )
    digits = ",.6g" if by_time else ",.0f"
    axes.set_xlabel(f"time, {unit}" if by_time else "allocator event")
    axes.xaxis.set_major_locator(_ScaledLocator(factor, not by_time))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:{digits}}"))
