# SPDX-License-Identifier: Apache-2.0
"""Who held how much, over time; and how much of what was reserved stood empty."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from neutracer.arguments import text, whole_number
from neutracer.pictures.extra import (
    marked,
    opened,
    picture_file,
    save_picture,
    source_name,
)
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    # matplotlib is imported when something is drawn; `typing.get_type_hints` works without.
    Figure = Any

__all__ = ["plot_fragmentation", "plot_timeline"]


def plot_timeline(
    source: Snapshot | SnapshotSource,
    *,
    device: int | None = None,
    x: str = "time",
    by: str = "place",
    top: int = 8,
    title: str | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw allocated bytes over time, stacked by who allocated them.

    Above the stack runs the line of what was reserved; moments of OOM are red. Each column
    of pixels shows the moment in it at which the most was allocated.

    Args:
        source: A snapshot, or what `load` takes.
        device: The device; None is the only one.
        x: "time" in seconds since the first event, or "event".
        by: "place" (the program's own line that represents a stack, and a library's beside
            it), "line" (the innermost), "stack", or "category", as `Timeline.holders` has
            them.
        top: How many of them get a band of their own, those that held the most at the
            peak first; all others are one band, in grey.
        title: The title; None is the file's name.
        dark: For a dark page; None follows the style of matplotlib that is in force.
        output: A file to write as well: .png, .svg, .pdf or what else matplotlib writes by
            its name; a binary file gets a PNG.

    Raises:
        UnavailableError: matplotlib is not installed.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.
        ValueError: `output` ends in no format of matplotlib's; or there is no such device,
            axis or grouping.

    Example:
        >>> import neutracer
        >>> figure = neutracer.plot_timeline("tests/data/frag_default.pickle")
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['reserved', 'frag train.py:159', 'frag train.py:155']
    """
    if by not in ("place", "line", "stack", "category"):
        raise ValueError(f"by must be 'place', 'line', 'stack' or 'category', not {by!r}")
    top = whole_number("top", top, least=0)
    target = picture_file(output, source)
    from neutracer.pictures.mdtp.scene import Request, Scene
    from neutracer.pictures.plots.stacked import draw_stacked

    name = source_name(source) or "GPU memory" if title is None else text("title", title)
    snap = opened(source)
    scene = Scene(snap, Request(device, x), marked(name, snap))
    draw = partial(draw_stacked, scene, by, top)
    return cast("Figure", save_picture(draw, target, dark))


def plot_fragmentation(
    source: Snapshot | SnapshotSource,
    *,
    device: int | None = None,
    x: str = "time",
    event: int | None = None,
    title: str | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw the share of reserved bytes that was unused over time, and each segment at one
    moment with its blocks and holes.

    The share is (reserved - allocated) / reserved, with the usual bands behind it; it is
    the one of `fragmentation_report`. The segments are the largest at the moment at which
    the most bytes were unused.

    Args:
        source: A snapshot, or what `load` takes.
        device: The device; None is the only one.
        x: "time" in seconds since the first event, or "event".
        event: Another moment for the segments: after this event.
        title: The title; None is the file's name.
        dark: For a dark page; None follows the style of matplotlib that is in force.
        output: A file to write as well: .png, .svg, .pdf or what else matplotlib writes by
            its name; a binary file gets a PNG.

    Raises:
        UnavailableError: matplotlib is not installed.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.
        ValueError: `output` ends in no format of matplotlib's; or there is no such device,
            axis or event.

    Example:
        >>> import neutracer
        >>> figure = neutracer.plot_fragmentation("tests/data/frag_default.pickle")
        >>> [axes.get_label() for axes in figure.axes]
        ['share', 'segments']
    """
    target = picture_file(output, source)
    from neutracer.pictures.mdtp.scene import Request, Scene
    from neutracer.pictures.plots.segments import draw_fragmentation

    name = source_name(source) or "GPU memory" if title is None else text("title", title)
    snap = opened(source)
    scene = Scene(snap, Request(device, x), marked(name, snap))
    draw = partial(draw_fragmentation, scene, event)
    return cast("Figure", save_picture(draw, target, dark))
