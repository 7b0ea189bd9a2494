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

from neutracer import units
from neutracer.pictures.mdtp_colours import blues
from neutracer.pictures.mdtp_scene import Scene
from neutracer.pictures.plot_extra import picture
from neutracer.pictures.plot_figure import plain_axes
from neutracer.render.escape import sentence
from neutracer.render.palette import Palette

__all__ = ["classic_frames", "draw_classic", "runs_of"]

# More frames than this are thinned out: a picture has no more columns.
_MOST_FRAMES = 335
_ROWS = 460

# Inches of one scene: two pixels a frame, one a row.
_WIDE, _FRAMES_WIDE, _HIGH = 7.2, 6.7, 4.6


def draw_classic(scenes: list[Scene], palette: Palette) -> Any:
    """One or two scenes in the original look, on one colour scale."""
    wide, high = _WIDE * len(scenes) + 0.9 + 1.6, _HIGH + 1.2
    figure = picture(wide, high, palette.page)
    frames = [classic_frames(scene) for scene in scenes]
    largest = max((size for one in frames for _, runs in one for _, _, size in runs), default=1)
    scale = LogNorm(min(64 << 10, largest), max(largest, 2), clip=True)
    for number, (scene, shown) in enumerate(zip(scenes, frames, strict=True)):
        left = 0.9 + number * _WIDE
        box = [left / wide, 0.6 / high, _FRAMES_WIDE / wide, _HIGH / high]
        axes = figure.add_axes(box, label="classic")
        plain_axes(axes, palette)
        axes.imshow(
            _pixels(scene, shown, scale, palette),
            origin="lower",
            aspect="auto",
            extent=(0, len(shown), 0, 1),
            interpolation="nearest",
        )
        axes.set_xlabel("frame")
        axes.set_ylabel("address, 0 to 1" if number == 0 else "")
        style = {"color": palette.ink, "loc": "left", "fontsize": 12, "parse_math": False}
        axes.set_title(sentence(scene.title, 60), pad=18, **style)
        ooms = {oom.state for oom in scene.ooms}
        for column, (state, _) in enumerate(shown):
            if state in ooms:
                axes.text(
                    column + 0.5, 1.01, "OOM", color=palette.red, ha="center", fontweight="bold"
                )
    axes = figure.add_axes(
        [(wide - 1.5) / wide, 0.6 / high, 0.16 / wide, _HIGH / high], label="sizes"
    )
    plain_axes(axes, palette, ())
    bar = figure.colorbar(ScalarMappable(scale, blues(palette)), cax=axes)
    low, top = int(scale.vmin), int(scale.vmax)
    ticks = [low << power for power in range(0, 60, 2) if low << power <= top]
    bar.set_ticks(ticks, labels=[units.format_bytes(tick) for tick in ticks])
    bar.ax.yaxis.set_ticks([], minor=True)
    bar.set_label("run of allocations", color=palette.ink)
    return figure


def classic_frames(scene: Scene) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """The frames: the state of each, and its runs as (address, end, bytes)."""
    first, end = scene.shown_states
    count = min(end - first, _MOST_FRAMES)
    states = {first + (end - 1 - first) * number // max(count - 1, 1) for number in range(count)}
    # A moment of OOM is never thinned out.
    states |= {oom.state for oom in scene.ooms}
    return [(state, runs_of(scene, state)) for state in sorted(states)]


def runs_of(scene: Scene, state: int) -> list[tuple[int, int, int]]:
    """Allocated blocks after a state's event, those that touch merged: (address, end, bytes)."""
    layout = scene.timeline.at(state - 1)
    segments, blocks = layout.segments, layout.blocks
    streams = np.asarray(segments.codes("stream"))
    one, two = (np.asarray(segments.codes(name)) for name in ("pool_first", "pool_second"))
    owner = np.asarray(blocks.codes("segment"))
    passes = np.array(
        [
            scene.passes(int(stream), (int(a), int(b)))
            for stream, a, b in zip(streams, one, two, strict=True)
        ],
        bool,
    )
    if not len(owner):
        return []
    kept = (np.asarray(blocks.codes("state")) == 1) & passes[owner]
    address = np.asarray(blocks.codes("address")).astype(np.int64)[kept]
    ends = address + np.asarray(blocks.codes("size")).astype(np.int64)[kept]
    if not len(address):
        return []
    starts = np.flatnonzero(np.append(True, address[1:] != ends[:-1]))
    lasts = np.append(starts[1:], len(address)) - 1
    return [
        (int(low), int(high), int(high - low))
        for low, high in zip(address[starts], ends[lasts], strict=True)
    ]


def _pixels(
    scene: Scene,
    frames: list[tuple[int, list[tuple[int, int, int]]]],
    scale: Any,
    palette: Palette,
) -> Any:
    """The frames as columns, RGBA."""
    ranges = scene.ranges or [(0, 1, 0)]
    low, high = ranges[0][0], ranges[-1][0] + ranges[-1][1]
    red = np.array(to_rgba(palette.red))
    ooms = {oom.state for oom in scene.ooms}
    sizes = np.zeros((_ROWS, len(frames)))
    for column, (_, runs) in enumerate(frames):
        for start, end, size in runs:
            first = (start - low) * _ROWS // (high - low)
            last = -((low - end) * _ROWS // (high - low))
            part = sizes[first:last, column]
            np.maximum(part, size, out=part)
    pixels = blues(palette)(scale(np.maximum(sizes, 1)))
    pixels[sizes == 0] = to_rgba(palette.page)
    for column, (state, _) in enumerate(frames):
        if state in ooms:
            pixels[:, column] = red
    return pixels
