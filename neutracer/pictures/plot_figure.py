# SPDX-License-Identifier: Apache-2.0
"""A matplotlib figure without a window. Importing this imports matplotlib."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neutracer import units
from neutracer.render.palette import Palette

__all__ = ["Picture", "byte_axis", "plain_axes", "time_axis"]


class Picture(Figure):  # type: ignore[misc]
    """A figure that shows itself in a notebook, without pyplot and its list of figures."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()


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
    """Ticks at round numbers of one binary unit; the unit is the axis' name.

    Args:
        axis: A matplotlib axis of bytes from 0 on.
        most: Its upper end.
        count: Steps at most.
        labelled: Whether it has numbers and a name.
    """
    unit = "KiB" if most < 4 << 20 else "MiB" if most < 10_000 << 20 else "GiB"
    factor = units.BYTE_UNITS[unit]
    steps = (size * 10**power for power in range(-1, 13) for size in (1, 2, 5))
    step = next(step for step in steps if most / factor / step <= count)
    ticks = np.arange(0, most / factor + step / 1000, step)
    texts = [f"{tick:,.6g}" for tick in ticks] if labelled else [""] * len(ticks)
    axis.set_ticks(ticks * factor, texts)
    axis.set_label_text(unit if labelled else "")


def time_axis(axes: Any, by_time: bool) -> None:
    """Ticks and name of an axis of seconds, or of events."""
    axes.set_xlabel("time, seconds" if by_time else "allocator event")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not by_time))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
