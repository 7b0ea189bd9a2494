# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as a heat map: rank x time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from neutracer.arguments import text
from neutracer.errors import UnavailableError
from neutracer.picture.extra import picture_file, save_picture
from neutracer.rank.report import RanksReport, ranks

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
    from neutracer.rank.draw import draw_ranks

    draw = partial(draw_ranks, report, report.heat, named)
    return cast("Figure", save_picture(draw, target, dark))
