# SPDX-License-Identifier: Apache-2.0
"""The original look of a Memory Distribution Timeline Plot. Importing this imports matplotlib.

A column is a frame: the layout after one event. Addresses run from 0, the lowest that was
ever reserved, to 1, the highest. Allocations that touch make one run, which has the colour
of its size. The column of a frame in which memory ran out is red throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, to_rgba

from neutracer.pictures.extra import picture
from neutracer.pictures.figure import plain_axes, power_name
from neutracer.pictures.mdtp.colours import blues
from neutracer.pictures.mdtp.scene import Scene
from neutracer.render.escape import sentence
from neutracer.render.palette import Palette

__all__ = ["Frames", "classic_frames", "draw_classic"]

#: States, each with its runs.
Frames = list[tuple[int, Any]]

# More frames than this are thinned out: a picture has no more columns.
_MOST_FRAMES = 335
_ROWS = 460

# The event of an end that is not in the trace; below it, one from before the trace.
_NEVER = -1

# Inches of one scene: two pixels a frame, one a row.
_WIDE, _FRAMES_WIDE, _HIGH = 7.2, 6.7, 4.6


def draw_classic(scenes: list[Scene], palette: Palette) -> Any:
    """One or two scenes in the original look, on one colour scale."""
    wide, high = _WIDE * len(scenes) + 0.9 + 1.6, _HIGH + 1.2
    figure = picture(wide, high, palette.page)
    frames = [classic_frames(scene) for scene in scenes]
    largest = max(
        (int((runs[1] - runs[0]).max()) for one in frames for _, runs in one if runs.size),
        default=1,
    )
    scale = LogNorm(min(64 << 10, largest), max(largest, 2), clip=True)
    for number, (scene, shown) in enumerate(zip(scenes, frames, strict=True)):
        left = 0.9 + number * _WIDE
        box = [left / wide, 0.6 / high, _FRAMES_WIDE / wide, _HIGH / high]
        axes = figure.add_axes(box, label="classic")
        axes.set_ylabel("address, 0 to 1" if number == 0 else "")
        _draw_frames(axes, scene, shown, _pixels(scene, shown, scale, palette), palette)
    box = [(wide - 1.5) / wide, 0.6 / high, 0.16 / wide, _HIGH / high]
    _colour_bar(figure, figure.add_axes(box, label="sizes"), scale, palette)
    return figure


def _draw_frames(axes: Any, scene: Scene, frames: Frames, pixels: Any, palette: Palette) -> None:
    plain_axes(axes, palette)
    axes.imshow(
        pixels,
        origin="lower",
        aspect="auto",
        extent=(0, len(frames), 0, 1),
        interpolation="nearest",
    )
    axes.set_xlabel("frame")
    style = {"color": palette.ink, "loc": "left", "fontsize": 12, "parse_math": False}
    axes.set_title(sentence(scene.title, 60), pad=18, **style)
    ooms = {oom.state for oom in scene.ooms}
    for column, (state, _) in enumerate(frames):
        if state in ooms:
            axes.text(column + 0.5, 1.01, "OOM", color=palette.red, ha="center", fontweight="bold")


def _colour_bar(figure: Any, axes: Any, scale: Any, palette: Palette) -> None:
    plain_axes(axes, palette, ())
    bar = figure.colorbar(ScalarMappable(scale, blues(palette)), cax=axes)
    low, top = int(scale.vmin), int(scale.vmax)
    ticks = [low << power for power in range(0, 60, 2) if low << power <= top]
    bar.set_ticks(ticks, labels=[power_name(tick) for tick in ticks])
    bar.ax.yaxis.set_ticks([], minor=True)
    bar.set_label("size of allocations that touch, together", color=palette.ink)


def classic_frames(scene: Scene) -> Frames:
    """The frames: the state of each, and the runs in it: their addresses, and those after
    their ends."""
    first, end = scene.shown_states
    count = min(end - first, _MOST_FRAMES)
    states = {first + (end - 1 - first) * number // max(count - 1, 1) for number in range(count)}
    # A moment of OOM is never thinned out.
    states |= {oom.state for oom in scene.ooms}
    ordered = sorted(states)
    blocks = _Rows(scene.timeline.allocations, ordered)
    table = scene.timeline.segments
    names = ("stream", "pool_first", "pool_second")
    streams, one, two = (table.codes(name).tolist() for name in names)
    drawn = [scene.passes(stream, (a, b)) for stream, a, b in zip(streams, one, two, strict=True)]
    segments = _Rows(table, ordered, np.array(drawn, bool))
    return [
        (state, _runs(*blocks.at(column), *segments.at(column)))
        for column, state in enumerate(ordered)
    ]


class _Rows:
    """Blocks or segments, with the columns of the picture that they are in."""

    def __init__(self, table: Any, states: list[int], drawn: Any = None) -> None:
        born, gone = (
            np.asarray(table.codes(name)).astype(np.int64) for name in ("alloc_event", "free_event")
        )
        begin = np.searchsorted(states, born + 1)
        end = np.searchsorted(states, gone + 1)
        end[gone == _NEVER] = len(states)
        end[gone < _NEVER] = 0
        seen = begin < end if drawn is None else (begin < end) & drawn
        address = np.asarray(table.codes("address"))
        size = np.asarray(table.codes("size"))
        # Most stand in one column only: those of a column lie side by side.
        once, long = (np.flatnonzero(seen & part) for part in (end - begin == 1, end - begin > 1))
        once = once[np.argsort(begin[once], kind="stable")]
        self._bounds = np.searchsorted(begin[once], np.arange(len(states) + 1))
        self._once = address[once], address[once] + size[once]
        self._long = address[long], address[long] + size[long]
        self._begin, self._end = begin[long].astype(np.int32), end[long].astype(np.int32)

    def at(self, column: int) -> tuple[Any, Any]:
        """The addresses of what is in a column, rising, and those after its ends."""
        part = slice(*self._bounds[column : column + 2])
        stands = (self._begin <= column) & (self._end > column)
        first, last = (
            np.concatenate([once[part], long[stands]])
            for once, long in zip(self._once, self._long, strict=True)
        )
        order = np.argsort(first, kind="stable")
        return first[order], last[order]


def _runs(first: Any, last: Any, segment_first: Any, segment_last: Any) -> Any:
    """The blocks in a segment, those that touch merged; two rows: begins and ends."""
    if not len(segment_first):
        return np.zeros((2, 0), np.uint64)
    at = np.searchsorted(segment_first, first, "right") - 1
    inside = (at >= 0) & (first < segment_last[at])
    first, last = first[inside], last[inside]
    begins = np.append(True, first[1:] != last[:-1])[: len(first)]
    ends = np.append(begins[1:], True)[: len(first)]
    return np.stack([first[begins], last[ends]])


def _pixels(scene: Scene, frames: Frames, scale: Any, palette: Palette) -> Any:
    """The frames as columns, RGBA."""
    ranges = scene.ranges or [(0, 1, 0)]
    low = ranges[0][0]
    height = ranges[-1][0] + ranges[-1][1] - low
    sizes = np.zeros((_ROWS, len(frames)))
    for column, (_, runs) in enumerate(frames):
        begin, end = ((edge - np.uint64(low)).astype(np.float64) for edge in runs)
        first = (begin * _ROWS / height).astype(np.int64)
        count = np.maximum(np.ceil(end * _ROWS / height).astype(np.int64) - first, 1)
        # One entry a pixel that a run covers.
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pixel = np.minimum(np.repeat(first, count) + within, _ROWS - 1)
        np.maximum.at(sizes[:, column], pixel, np.repeat(end - begin, count))
    pixels = blues(palette)(scale(np.maximum(sizes, 1)))
    pixels[sizes == 0] = to_rgba(palette.page)
    ooms = {oom.state for oom in scene.ooms}
    for column, (state, _) in enumerate(frames):
        if state in ooms:
            pixels[:, column] = to_rgba(palette.red)
    return pixels
