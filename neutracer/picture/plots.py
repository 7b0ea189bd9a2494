# SPDX-License-Identifier: Apache-2.0
"""`mdtp` and the plots of a snapshot; matplotlib is imported when they draw."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from neutracer.arguments import text, whole_number
from neutracer.oom.explain import ExplainReport, explain
from neutracer.picture.extra import marked, opened, picture_file, save_picture, source_name
from neutracer.render.document import Palette
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.whatif.replaying import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neutracer.picture.draw import Request
else:
    # matplotlib is imported when something is drawn; `typing.get_type_hints` works without.
    Figure = Any


def mdtp(
    before: Snapshot | SnapshotSource | Outcome,
    after: Snapshot | SnapshotSource | Outcome | None = None,
    *,
    device: int | None = None,
    x: str = "time",
    style: str = "default",
    stream: int | None = None,
    pool: tuple[int, int] | None = None,
    time_range: tuple[float, float] | None = None,
    address_range: tuple[int | str, int | str] | str | None = None,
    raw_addresses: bool = False,
    holes: bool = True,
    title: str | tuple[str, str] | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw memory over time: each block at its address, for as long as it lived.

    Blocks are blue, darker where larger; holes in what is reserved are sand; a slanted stroke
    on the axis marks left-out addresses that were never reserved; moments of OOM are red
    columns. Above are the allocated and reserved bytes. The largest holes get a letter, and a
    line below that says what pins them. A pixel that has seen a block or a hole shows it. Where the
    snapshot has uses, blocks past their last use are hatched, and those that are never used.

    Args:
        before: A snapshot, or what `load` takes; or an outcome of `what_if`, which is drawn
            beside what was recorded.
        after: Another one, drawn beside it on the same scale.
        device: The device; None is the only one.
        x: "time" in seconds since the first event, or "event". A file without times
            (before torch 2.2) is drawn by events.
        style: "default", or "classic": addresses from 0 to 1, neighbouring allocations
            merged into runs coloured by the run's size, a column a frame.
        stream: Only what belongs to this stream: a raw stream, or its number in the key.
        pool: Only what belongs to this private pool; (0, 0) is the default pool.
        time_range: Only from .. to, in seconds, or in events.
        address_range: Only addresses from .. to, as the device counts them: numbers, or texts
            like "0x7f3a00"; or one block, as PyTorch's viewer names it: "b7f3a00_2".
        raw_addresses: Leave nothing out of the address axis.
        holes: Name the largest holes.
        title: The title, or a pair for two snapshots; None is the file's name.
        dark: For a dark page; None follows the style of matplotlib that is in force.
        output: A file to write as well: .png, .svg, .pdf or what else matplotlib writes by
            its name; a binary file gets a PNG.

    Returns:
        The matplotlib figure; `.savefig("memory.png")` writes it.

    Raises:
        UnavailableError: matplotlib is not installed.
        SnapshotError: A file can't be read.
        OSError: A file can't be read or written.
        ValueError: `output` ends in no format of matplotlib's; there is no such device,
            axis or style, or nothing in that range.

    Example:
        >>> import neutracer
        >>> figure = neutracer.mdtp("tests/data/frag_default.pickle")
        >>> [axes.get_label() for axes in figure.axes]
        ['strip', 'map', 'sizes']
    """
    if style not in ("default", "classic"):
        raise ValueError(f"style must be 'default' or 'classic', not {style!r}")
    sources = _sources(before, after)
    target = picture_file(output, *sources)
    from neutracer.picture.draw import Request

    request = Request(device, x, stream, pool, time_range, address_range, raw_addresses)
    titled = zip(sources, _titles(sources, title), strict=True)
    return cast("Figure", save_picture(_drawer(titled, request, style, holes), target, dark))


def _drawer(
    titled: Iterable[tuple[Snapshot | SnapshotSource | Outcome, str]],
    request: Request,
    style: str,
    holes: bool,
) -> Callable[[Palette], Figure]:
    """A function that draws the scenes with a palette."""
    from neutracer.picture.draw import Scene, draw_classic, draw_scenes

    snaps = [(opened(source), name) for source, name in titled]
    scenes = [Scene(snap, request, marked(name, snap)) for snap, name in snaps]
    if len({scene.by_time for scene in scenes}) > 1:
        # One of them has no times.
        by_event = replace(request, x="event")
        scenes = [Scene(scene.snapshot, by_event, scene.title) for scene in scenes]
    if style == "classic":
        return partial(draw_classic, scenes)
    return partial(draw_scenes, scenes, labels=holes)


def _sources(
    before: Snapshot | SnapshotSource | Outcome, after: Snapshot | SnapshotSource | Outcome | None
) -> list[Snapshot | SnapshotSource | Outcome]:
    """The sources to draw; a single outcome goes beside its recording."""
    if after is not None:
        return [before, after]
    return [before.recorded, before] if isinstance(before, Outcome) else [before]


def _titles(
    sources: list[Snapshot | SnapshotSource | Outcome], title: str | tuple[str, str] | None
) -> list[str]:
    if title is not None:
        several = title if isinstance(title, (tuple, list)) else [title]
        titles = [text("title", one) for one in several]
        if len(titles) != len(sources):
            raise ValueError(f"{len(titles)} titles for {len(sources)} snapshots")
        return titles
    names = [source_name(source) for source in sources]
    after = sources[-1]
    if isinstance(after, Outcome) and sources[0] is after.recorded:
        own = after.recorded
        settings = settings_words(own.settings_in_force["text"], is_stated=own.settings_stated)
        names[0] = settings if own.rehearsed else f"recorded: {settings}"
    if len(sources) == 1:
        return [names[0] or "GPU memory"]
    names = [name or word for name, word in zip(names, ("before", "after"), strict=True)]
    if names[0] == names[1]:
        return [f"{names[0]}, {word}" for word in ("before", "after")]
    return names


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
    """Draw allocated bytes over time, stacked by holder.

    Above the stack runs the line of what was reserved; moments of OOM are red. Each column
    of pixels shows the moment in it at which the most was allocated. Where the snapshot has
    uses, the part of a band that is past its last use, or never used, is hatched.

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
    from neutracer.picture.curves import draw_stacked
    from neutracer.picture.draw import Request, Scene

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
    from neutracer.picture.curves import draw_fragmentation
    from neutracer.picture.draw import Request, Scene

    name = source_name(source) or "GPU memory" if title is None else text("title", title)
    snap = opened(source)
    scene = Scene(snap, Request(device, x), marked(name, snap))
    draw = partial(draw_fragmentation, scene, event)
    return cast("Figure", save_picture(draw, target, dark))


def plot_bill(
    why: ExplainReport | Snapshot | SnapshotSource,
    *,
    title: str | None = None,
    dark: bool | None = None,
    output: str | os.PathLike[str] | BinaryIO | None = None,
) -> Figure:
    """Draw where every byte of the limit was when a request failed, as a waterfall.

    From the top down each bar begins where the last one ends: other processes, what is not
    PyTorch's, the lines that hold memory, and what is free. The request lies below what is free,
    and what it lacks past the limit, in red. Lines are split by the rounds before: what stands,
    what piled up, and what came in this round.

    Args:
        why: The result of `explain`, or its argument.
        title: The title; None is the file's name.
        dark: For a dark page; None follows the style of matplotlib that is in force.
        output: A file to write as well: .png, .svg, .pdf or what else matplotlib writes by
            its name; a binary file gets a PNG.

    Raises:
        UnavailableError: matplotlib is not installed.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.
        ValueError: `output` ends in no format of matplotlib's; or no request failed.

    Example:
        >>> import neutracer
        >>> figure = neutracer.plot_bill("tests/data/frag_default.pickle")
        >>> [words.get_text() for words in figure.axes[0].texts][:4]
        ['the limit of the process', '2,048 MiB', 'frag train.py:155', '406 MiB']
    """
    target = picture_file(output, why)
    from neutracer.picture.curves import draw_bill

    named = source_name(why) or "Out of memory" if title is None else text("title", title)
    report = why if isinstance(why, ExplainReport) else explain(why)
    return cast("Figure", save_picture(partial(draw_bill, report, named), target, dark))
