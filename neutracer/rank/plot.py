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
    """A page on the memory of all ranks for PyTorch's debug server, and its periodic dump.

    Each rank that has called `watch_ranks` answers the server. The page is /neutracer.

    Returns:
        What `torch.distributed.debug.start_debug_server` takes as one of its `handlers`.

    Raises:
        UnavailableError: This torch has no debug server (2.11 and later have), or Jinja2 is
            missing.

    Example:
        >>> from torch.distributed import debug     # doctest: +SKIP
        >>> debug.start_debug_server(handlers=[neutracer.debug_server_page()])   # doctest: +SKIP
    """
    try:
        from neutracer.rank.debug_page import RanksPage
    except (ImportError, AttributeError) as error:
        raise UnavailableError(
            "torch.distributed.debug", f"torch 2.11 and Jinja2 have it ({error})"
        ) from None
    return RanksPage()


def plot_ranks(
    job: RanksReport | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    title: str | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw what each rank had allocated over time: a row a rank, darker for more.

    Beside each row stands its peak; moments at which a rank ran out of memory, and odd ranks,
    are red. What is blank lies outside of a rank's trace.

    Args:
        job: What `ranks` returned, or what it takes.
        title: The title; None is the job's name.
        dark: For a dark page; None follows the style of matplotlib that is in force.
        output: A file to write as well: .png, .svg, .pdf or what else matplotlib writes by
            its name; a binary file gets a PNG.

    Raises:
        UnavailableError: matplotlib is not installed.
        ValueError: `output` ends in no format of matplotlib's; no trace has times; or there is
            no snapshot.
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
