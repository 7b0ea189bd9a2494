# SPDX-License-Identifier: Apache-2.0
"""What is on and beside a map: moments of OOM, markers of holes, gaps between ranges,
streams and pools, how two runs differ. Importing this imports matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from matplotlib.transforms import blended_transform_factory

from neutracer import units
from neutracer.pictures.figure import size_text
from neutracer.pictures.mdtp.notes import HoleNote
from neutracer.pictures.mdtp.scene import SEEN_BLOCK, SEEN_RESERVED, Planes, Scene
from neutracer.render.palette import Palette

__all__ = [
    "draw_difference",
    "draw_gaps",
    "draw_groups",
    "draw_key",
    "draw_ooms",
    "group_rows",
    "has_gaps",
    "place_markers",
]

# A column of OOM is at least so wide, and a marker so large.
_OOM_PIXELS = 3
_MARKER_PIXELS = 17

# There are so many colours for streams and pools.
_MOST_GROUPS = 6

# More gaps than this can't be told apart.
_MOST_GAPS = 60

# Labels of OOMs keep this distance, as a share of the axis.
_LABEL_DISTANCE = 0.45


def _draw_column(panes: Iterable[Any], left: float, width: float, palette: Palette) -> None:
    for pane in panes:
        pane.axvspan(left, left + width, color=palette.red, linewidth=0, zorder=4, label="OOM")


def draw_ooms(scene: Scene, strip: Any | None, axes: Any, palette: Palette) -> None:
    """A red column for each OOM; above it the request and what the device had.

    Args:
        scene: What is drawn.
        strip: Axes above the others, which get the columns too; None: there are none.
        axes: The axes.
        palette: Its colours.
    """
    upper = axes if strip is None else strip
    x_first, x_end = axes.get_xlim()
    pixel = (x_end - x_first) / (axes.bbox.width or 1)
    groups: list[list[Any]] = []
    drawn = -float("inf")
    for oom in scene.ooms:
        left = float(scene.axis_x(float(scene.states[oom.state])))
        width = _OOM_PIXELS * pixel
        if not scene.by_time:
            width = max(width, 1.0)
        left = min(left, x_end - width)
        # One more in a pixel that has its column can't be seen.
        if left - drawn >= pixel / 2:
            drawn = left
            _draw_column({id(upper): upper, id(axes): axes}.values(), left, width, palette)
        share = (left - x_first) / (x_end - x_first)
        if not groups or share - groups[-1][0] > _LABEL_DISTANCE:
            groups.append([share, []])
        groups[-1][1].append(oom)
    for share, ooms in groups:
        last = ooms[-1]
        text = f"OOM  needed {units.format_bytes(last.asked)}"
        # A simulated failure knows the limit that it met, not the device.
        if last.device_free:
            text += f", device had {units.format_bytes(last.device_free)} free"
        if len(ooms) > 1:
            text = f"{text} (the last of {len(ooms)})"
        x, side = (min(share + 0.003, 1.0), "right") if share > 0.5 else (share, "left")
        upper.annotate(
            text,
            (x, 1.0),
            xytext=(0, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            ha=side,
            color=palette.red,
            fontsize=9.5,
            fontweight="bold",
            annotation_clip=False,
        )


def _gaps(scene: Scene) -> list[int]:
    """Where addresses are left out; empty where too many are to be told apart."""
    inner = [position for _, _, position in scene.ranges if position > scene.view[2]]
    return [] if scene.request.raw_addresses or len(inner) > _MOST_GAPS else inner


def has_gaps(scene: Scene) -> bool:
    """Whether `draw_gaps` draws anything."""
    return bool(_gaps(scene))


def draw_gaps(scene: Scene, axes: Any, palette: Palette) -> None:
    """A small slanted stroke on the axis wherever addresses were left out."""
    inner = _gaps(scene)
    if not inner:
        return
    axes.plot(
        [0] * len(inner),
        inner,
        transform=blended_transform_factory(axes.transAxes, axes.transData),
        linestyle="",
        marker=[(-1, -0.5), (1, 0.5)],
        markersize=7,
        markeredgecolor=palette.grey,
        markeredgewidth=0.8,
        clip_on=False,
        zorder=5,
        label="gaps",
    )
    axes.set_ylim(axes.get_ylim())


def place_markers(
    scene: Scene, axes: Any, planes: Planes, notes: Sequence[HoleNote], palette: Palette
) -> None:
    """Each note's letter in its hole where no block is under it, else beside the map."""
    box = {"boxstyle": "circle,pad=0.18", "facecolor": palette.page, "edgecolor": palette.sand_ink}
    style: dict[str, Any] = {
        "fontsize": 8.5,
        "fontweight": "bold",
        "color": palette.sand_ink,
        "ha": "center",
        "va": "center",
        "bbox": {**box, "linewidth": 0.9},
        "zorder": 6,
    }
    # Heights of the letters beside the map, in pixels: they keep clear of each other.
    taken: list[float] = []
    for letter, note in zip("AB", notes, strict=False):
        spot = _free_spot(scene, planes, note)
        if spot is not None:
            axes.text(*spot, letter, **style)
            continue
        middle = min(max((note.first + note.end) / 2, scene.view[2]), scene.view[3])
        pixel = float(axes.transData.transform((0, middle))[1])
        shift = 0.0
        if any(abs(pixel - other) < _MARKER_PIXELS + 3 for other in taken):
            shift = taken[0] - pixel + (_MARKER_PIXELS + 3) * (1 if pixel >= taken[0] else -1)
        taken.append(pixel + shift)
        axes.annotate(
            letter,
            (1.0, middle),
            xytext=(14, shift * 72 / axes.figure.dpi),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": palette.sand_ink, "linewidth": 0.9},
            **style,
        )


def _free_spot(scene: Scene, planes: Planes, note: HoleNote) -> tuple[float, float] | None:
    """The middle of a square of pixels of the hole that have seen no block, nearest to
    the note's moment; None where there is none."""
    height, width = planes.seen.shape
    x_first, x_end, y_first, y_end = scene.view
    low, high = (
        int(np.clip((at - y_first) * height / (y_end - y_first), 0, height))
        for at in (note.first, note.end)
    )
    half = _MARKER_PIXELS // 2
    if high - low < _MARKER_PIXELS:
        return None
    middle = (low + high) // 2
    band = planes.seen[middle - half : middle + half + 1]
    clear = ((band & SEEN_RESERVED) != 0).all(axis=0) & ((band & SEEN_BLOCK) == 0).all(axis=0)
    runs = np.convolve(clear, np.ones(_MARKER_PIXELS), "same") >= _MARKER_PIXELS
    columns = np.flatnonzero(runs)
    if not len(columns):
        return None
    moment = (int(scene.states[note.state]) - x_first) * width / (x_end - x_first)
    column = int(columns[np.argmin(abs(columns - moment))])
    column = min(max(column, half), width - 1 - half)
    x = x_first + (column + 0.5) * (x_end - x_first) / width
    y = y_first + (middle + 0.5) * (y_end - y_first) / height
    return float(scene.axis_x(x)), y


def group_rows(scene: Scene, width: float) -> list[list[tuple[int, str]]]:
    """The key of streams and pools in rows of `width` inches: (number, name) of each; empty
    where there is only one."""
    groups = list(dict.fromkeys(life[4] for life in scene.segment_lives()))
    if len(groups) < 2:
        return []
    rows: list[list[tuple[int, str]]] = [[]]
    room = width
    for number, group in enumerate(groups[:_MOST_GROUPS]):
        text = _group_text(scene, group)
        if number == _MOST_GROUPS - 1 and len(groups) > _MOST_GROUPS:
            text = f"and {len(groups) - number} others"
        room -= _key_width(text)
        if room < 0 and rows[-1]:
            rows.append([])
            room = width - _key_width(text)
        rows[-1].append((number, text))
    return rows


def draw_groups(figure: Any, scene: Scene, axes: Any, colours: tuple[str, ...]) -> None:
    """A thin strip at the map's left that shows streams and private pools."""
    box = axes.get_position()
    wide = figure.get_size_inches()[0]
    strip = figure.add_axes(
        [box.x0 - 0.13 / wide, box.y0, 0.09 / wide, box.height], label="streams and pools"
    )
    strip.set_axis_off()
    strip.set_xlim(0, 1)
    strip.set_ylim(axes.get_ylim())
    axes.tick_params(axis="y", pad=12)
    lives = scene.segment_lives()
    numbers = {group: n for n, group in enumerate(dict.fromkeys(life[4] for life in lives))}
    patches = [Rectangle((0, low), 1, top - low) for low, top, *_ in lives]
    tints = [colours[min(numbers[life[4]], _MOST_GROUPS - 1)] for life in lives]
    strip.add_collection(PatchCollection(patches, facecolors=tints, linewidths=0), autolim=False)


def draw_key(
    figure: Any,
    left: float,
    top: float,
    row: list[tuple[int, str]],
    colours: tuple[str, ...],
    palette: Palette,
) -> None:
    """One row of the strip's key, at inches from the lower left."""
    wide, high = figure.get_size_inches()
    for number, text in row:
        patch = Rectangle(
            (left / wide, (top - 0.125) / high),
            0.12 / wide,
            0.1 / high,
            color=colours[number],
            lw=0,
            transform=figure.transFigure,
        )
        figure.patches.append(patch)
        x = (left + 0.17) / wide
        figure.text(x, top / high, text, fontsize=8.5, color=palette.ink, va="top")
        left += _key_width(text)


def _key_width(text: str) -> float:
    """Inches that a text of the key takes, with its colour before it."""
    return 0.35 + 0.066 * len(text)


def _group_text(scene: Scene, group: tuple[int, int, int]) -> str:
    stream, first, second = group
    name = f"stream {scene.streams[stream]} ({stream:#x})" if stream else "default stream"
    return f"{name}, pool ({first}, {second})" if first or second else name


def draw_difference(strip: Any, before: Scene, after: Scene, palette: Palette) -> None:
    """A line at the first run's peak, and how far the second is from it: of reserved bytes, or
    where these are as many of allocated ones."""
    level, own = before.peak(before.reserved)[1], after.peak(after.reserved)[1]
    of = ""
    if level == own:
        level, own = before.peak(before.allocated)[1], after.peak(after.allocated)[1]
        of = " allocated"
    if level == own:
        return
    strip.axhline(level, color=palette.ink, linewidth=0.9, linestyle="--", zorder=5)
    word = "less" if own < level else "more"
    strip.annotate(
        f"peak{of} at the left; {size_text(abs(own - level))} {word} here",
        (0.995, level),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        size=8,
        color=palette.ink,
        bbox={"facecolor": palette.page, "alpha": 0.85, "linewidth": 0, "pad": 1.0},
        zorder=6,
    )
