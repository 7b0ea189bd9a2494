# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as a heat map: rank x time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from neutracer.arguments import text
from neutracer.errors import UnavailableError
from neutracer.picture.extra import picture, picture_file, save_picture
from neutracer.rank.jobs import HeatMap
from neutracer.rank.report import RanksReport, ranks
from neutracer.render.document import Palette, sentence
from neutracer.units import format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    # matplotlib is imported when something is drawn; `typing.get_type_hints` works without.
    Figure = Any


def debug_server_page() -> Any:
    """The page /neutracer for PyTorch's debug server: all ranks' memory, with a periodic dump.

    Every rank that has called `watch_ranks` appears on it.

    Returns:
        A handler for `torch.distributed.debug.start_debug_server`.

    Raises:
        UnavailableError: torch is older than 2.11, or Jinja2 is missing.

    Example:
        >>> from torch.distributed import debug     # doctest: +SKIP
        >>> debug.start_debug_server(handlers=[neutracer.debug_server_page()])   # doctest: +SKIP
    """
    try:
        from neutracer.rank.debug_page import RanksPage
    except (ImportError, AttributeError) as error:
        raise UnavailableError(
            "torch.distributed.debug", f"it needs torch 2.11 and Jinja2 ({error})"
        ) from None
    return RanksPage()


def plot_ranks(
    job: RanksReport | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    title: str | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw each rank's allocated bytes over time: one row per rank, darker for more.

    Each row is labelled with its peak. Red marks out-of-memory errors and odd ranks; blank
    areas are outside a rank's trace.

    Args:
        job: The result of `ranks`, or its argument.
        title: The title; None is the job's name.
        dark: Draw for a dark page; None follows matplotlib's current style.
        output: A file to write as well, in any format of matplotlib's by its extension (.png,
            .svg, .pdf, ...); a binary file object gets a PNG.

    Raises:
        UnavailableError: matplotlib is not installed.
        ValueError: `output` has an unknown extension, no trace has times, or there is no snapshot.
        OSError: A file can't be read or written.

    Example:
        >>> import neutracer
        >>> figure = neutracer.plot_ranks("tests/data/frag_default.pickle")
        >>> figure.axes[0].get_xlabel()
        'time, milliseconds'
    """
    named = None if title is None else text("title", title)
    target = picture_file(output)
    report = job if isinstance(job, RanksReport) else ranks(job)
    if report.heat is None:
        raise ValueError("no trace of these ranks has times: there is nothing to draw")
    draw = partial(_draw_ranks, report, report.heat, named)
    return cast("Figure", save_picture(draw, target, dark))


_NAMED = 32  # Rows that all have a label; beyond, only some have.
_ROW, _LEAST, _TALLEST = 0.24, 2.2, 9.0  # Inches per row, and of the smallest and largest figure.


def _draw_ranks(report: RanksReport, heat: HeatMap, title: str | None, palette: Palette) -> Any:
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
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    from neutracer.picture.figure import byte_axis, plain_axes, time_axis

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
    from matplotlib.ticker import FuncFormatter, MaxNLocator

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
