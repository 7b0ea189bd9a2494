# SPDX-License-Identifier: Apache-2.0
"""The heat map of a job's ranks. Importing this imports matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neutracer.picture.extra import picture
from neutracer.picture.figure import byte_axis, plain_axes, time_axis
from neutracer.rank.jobs import HeatMap
from neutracer.rank.report import RanksReport
from neutracer.render.document import Palette, sentence
from neutracer.units import format_bytes, format_count

_NAMED = 32  # Rows that all have a label; beyond, only some have.
_ROW, _LEAST, _TALLEST = 0.24, 2.2, 9.0  # Inches per row, and of the smallest and largest figure.


def draw_ranks(report: RanksReport, heat: HeatMap, title: str | None, palette: Palette) -> Any:
    """The figure of `plot_ranks`."""
    count = len(heat.ranks)
    tall = min(max(_ROW * count, _LEAST), _TALLEST)
    figure = picture(11.5, tall + 1.4, palette.page)
    axes = figure.add_axes([0.09, 0.62 / (tall + 1.4), 0.73, tall / (tall + 1.4)], label="ranks")
    bar = figure.add_axes([0.93, 0.62 / (tall + 1.4), 0.013, tall / (tall + 1.4)], label="scale")
    _draw_rows(axes, bar, heat, palette)
    _name_rows(axes, report, heat, palette)
    name = f"Job {report.job}" if report.job else "Job"
    head = sentence(name) if title is None else title
    about = f"{format_count(count, 'rank')}: peak of allocated bytes over time; at the right"
    about += " each rank's peak · blank: outside its trace"
    if heat.ooms_us or report.odd:
        about += " · red: out of memory, or odd"
    figure.text(0.09, 1 - 0.34 / (tall + 1.4), head, size=13, color=palette.ink, weight="bold")
    figure.text(0.09, 1 - 0.58 / (tall + 1.4), about, size=9.5, color=palette.grey)
    return figure


def _draw_rows(axes: Any, bar: Any, heat: HeatMap, palette: Palette) -> None:
    rows = [[np.nan if value is None else value for value in row] for row in heat.rows]
    values = np.ma.masked_invalid(np.array(rows, dtype=float))
    seconds = (heat.end_us - heat.begin_us) / 1e6
    colours = LinearSegmentedColormap.from_list("allocated", palette.allocated)
    most = float(values.max()) if values.count() else 1.0
    image = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        vmin=0,
        vmax=max(most, 1.0),
        extent=(0, seconds, len(rows) - 0.5, -0.5),
    )
    plain_axes(axes, palette)
    time_axis(axes, True, 1)
    for row, time_us in heat.ooms_us:
        at = (time_us - heat.begin_us) / 1e6
        axes.plot([at, at], [row - 0.5, row + 0.5], color=palette.red, linewidth=2.5)
    axes.figure.colorbar(image, cax=bar)
    plain_axes(bar, palette, ())
    byte_axis(bar.yaxis, int(max(most, 1.0)), 6)


def _name_rows(axes: Any, report: RanksReport, heat: HeatMap, palette: Palette) -> None:
    count = len(heat.ranks)

    def name(at: float, _: int) -> str:
        row = round(at)
        if not 0 <= row < count or abs(at - row) > 0.01:
            return ""
        return "?" if heat.ranks[row] is None else str(heat.ranks[row])

    axes.set_ylabel("rank")
    axes.yaxis.set_major_locator(MaxNLocator(min(count, _NAMED), integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(name))
    axes.set_ylim(count - 0.5, -0.5)
    odd, failed = {one.rank for one in report.odd}, {row for row, _ in heat.ooms_us}
    peaks = {row.rank: row.peak_allocated_bytes for row in report.rows}
    # Ranks without a number have the same order in both.
    known = (row.peak_allocated_bytes for row in report.rows if row.rank is None)
    nameless = (nbytes for nbytes in known if nbytes is not None)
    for at, rank in enumerate(heat.ranks):
        is_odd = at in failed or (rank is not None and rank in odd)
        peak = next(nameless, None) if rank is None else peaks.get(rank)
        if count > _NAMED and not is_odd:
            continue
        axes.annotate(
            format_bytes(peak or 0),
            (1.01, at),
            xycoords=("axes fraction", "data"),
            va="center",
            size=8,
            color=palette.red if is_odd else palette.grey,
        )
