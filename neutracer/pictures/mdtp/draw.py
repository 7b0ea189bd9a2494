# SPDX-License-Identifier: Apache-2.0
"""A Memory Distribution Timeline Plot in matplotlib. Importing this imports matplotlib."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from neutracer import units
from neutracer.pictures.extra import picture
from neutracer.pictures.figure import byte_axis, plain_axes, power_name, size_text, time_axis
from neutracer.pictures.mdtp.colours import block_scale, blues, extra_colours, pixel_colours
from neutracer.pictures.mdtp.marks import (
    draw_difference,
    draw_gaps,
    draw_groups,
    draw_key,
    draw_ooms,
    group_rows,
    has_gaps,
    place_markers,
)
from neutracer.pictures.mdtp.notes import HoleNote, hole_notes
from neutracer.pictures.mdtp.scene import Planes, Scene
from neutracer.render.escape import sentence
from neutracer.render.palette import Palette

__all__ = ["draw_scenes"]

# All in inches.
_LEFT, _RIGHT, _BETWEEN, _TOP = 0.95, 1.4, 0.42, 1.0
_STRIP, _GAP, _MAP, _AXIS = 1.1, 0.14, 4.6, 0.55
_WIDE, _HALF = 9.9, 6.3
_NOTE = 0.19
# Room of a character of a note.
_CHARACTER = 0.063

# A rise of the unused share that is worth mentioning.
_NOTEWORTHY = 0.05

# A border between segments is drawn where they are at least this high.
_BORDER_PIXELS = 6


@dataclass
class _Panel:
    """One scene on its way onto the figure.

    Attributes:
        scene: It.
        left: Inches to its axes.
        width: Inches of them.
        x: The positions of the axes' ends; all panels have the same.
        planes: The scene's pixels.
        notes: Of its largest holes.
    """

    scene: Scene
    left: float
    width: float
    x: tuple[int, int]
    planes: Planes | None = None
    notes: tuple[HoleNote, ...] = ()


def draw_scenes(scenes: list[Scene], palette: Palette, labels: bool) -> Any:
    """One or two scenes side by side, on one scale.

    Args:
        scenes: What is drawn.
        palette: Its colours.
        labels: Whether the largest holes are named.
    """
    width = _WIDE if len(scenes) == 1 else _HALF
    shared = min(scene.view[0] for scene in scenes), max(scene.view[1] for scene in scenes)
    panels = [
        _Panel(scene, _LEFT + number * (width + _BETWEEN), width, shared)
        for number, scene in enumerate(scenes)
    ]
    if labels:
        for panel in panels:
            panel.notes = tuple(hole_notes(panel.scene))
    lines = [_note_lines(panel) for panel in panels]
    marks = _key_lines(panels)
    lines[0][:0] = marks
    keys = [group_rows(panel.scene, panel.width) for panel in panels]
    foot = 0.1 + _NOTE * max(len(text) + len(key) for text, key in zip(lines, keys, strict=True))
    height = foot + _AXIS + _MAP + _GAP + _STRIP + _TOP
    figure = picture(panels[-1].left + width + _RIGHT, height, palette.page)
    heights = [scene.view[3] - scene.view[2] for scene in scenes]
    pixels_high = round(_MAP * figure.dpi)
    for panel, high in zip(panels, heights, strict=True):
        # Both panels share the scale: the lower one fills its part of the pixels.
        rows = max(1, round(pixels_high * high / max(heights)))
        panel.planes = panel.scene.planes(_columns(panel, figure), rows)
    largest = max(int(panel.planes.largest.max()) for panel in panels if panel.planes)
    scale = block_scale(largest)
    most = max(_most_reserved(scene) for scene in scenes)
    for number, (panel, text, key) in enumerate(zip(panels, lines, keys, strict=True)):
        first = number == 0
        strip = _strip(figure, panel, foot + _AXIS + _MAP + _GAP, most, palette, first)
        axes = _map(figure, panel, foot + _AXIS, max(heights), scale, palette, first)
        if not first:
            draw_difference(strip, scenes[0], panel.scene, palette)
        draw_ooms(panel.scene, strip, axes, palette)
        _heading(figure, panel, palette)
        base = foot - 0.1
        if key:
            draw_groups(figure, panel.scene, axes, extra_colours(palette))
        for row in key:
            draw_key(figure, panel.left, base, row, extra_colours(palette), palette)
            base -= _NOTE
        for line_number, line in enumerate(text):
            colour = palette.grey if first and line_number < len(marks) else palette.sand_ink
            _text(figure, panel.left, base - line_number * _NOTE, line, colour, 8.5)
    _colour_bar(figure, panels[-1].left + width + 0.35, foot + _AXIS, scale, palette)
    return figure


def _most_reserved(scene: Scene) -> int:
    return max(1, scene.peak(scene.reserved)[1], scene.peak(scene.allocated)[1])


def _box(figure: Any, left: float, bottom: float, width: float, height: float) -> list[float]:
    wide, high = figure.get_size_inches()
    return [left / wide, bottom / high, width / wide, height / high]


def _text(figure: Any, x: float, y: float, text: str, colour: str, size: float, **more: Any) -> Any:
    """Text of the file, in which nothing is a formula, at inches from the lower left."""
    wide, high = figure.get_size_inches()
    return figure.text(
        x / wide, y / high, text, color=colour, fontsize=size, parse_math=False, va="top", **more
    )


def _columns(panel: _Panel, figure: Any) -> int:
    """Pixels of the axes that the scene fills; a longer one beside it fills all of them."""
    first, end = panel.scene.view[:2]
    pixels: float = panel.width * figure.dpi * (end - first) / max(panel.x[1] - panel.x[0], 1)
    return max(1, round(pixels))


def _ends_early(panel: _Panel) -> bool:
    """Whether another scene is visibly longer."""
    return bool(panel.x[1] - panel.scene.view[1] > (panel.x[1] - panel.x[0]) / 100)


def _key_lines(panels: list[_Panel]) -> list[str]:
    """What the marks of the maps are."""
    words = [
        "blue: blocks",
        "sand: reserved, not allocated",
        "blank: not reserved",
        "darker blue above: allocated for a part of the pixel",
    ]
    if any(has_gaps(panel.scene) for panel in panels):
        words.append("slanted strokes: addresses left out, never reserved")
    if any(_ends_early(panel) for panel in panels):
        words.append("dotted: the last event")
    room = int(panels[0].width / _CHARACTER)
    return textwrap.wrap(" · ".join(words), room)


def _note_lines(panel: _Panel) -> list[str]:
    lines = []
    for letter, note in zip("AB", panel.notes, strict=False):
        room = int(panel.width / _CHARACTER) - 3
        first, *rest = textwrap.wrap(note.text, room)
        lines += [f"{letter}  {first}", *(f"    {line}" for line in rest)]
    return lines


def _heading(figure: Any, panel: _Panel, palette: Palette) -> None:
    scene = panel.scene
    top = figure.get_size_inches()[1]
    # A peak is known from events alone.
    peak = "peak " if len(scene.timeline) else ""
    pairs = (("allocated", scene.allocated), ("reserved", scene.reserved))
    facts = [f"{peak}{word} {size_text(scene.peak(series)[1])}" for word, series in pairs]
    room = int(panel.width / 0.115)
    title = sentence(scene.title, room)
    _text(figure, panel.left, top - 0.16, title, palette.ink, 13, fontweight="bold")
    words = " · ".join((*facts, _unused_text(scene)))
    _text(figure, panel.left, top - 0.45, words, palette.grey, 9.5)


def _unused_text(scene: Scene) -> str:
    """The unused share at the peak of reserved, and the largest while it stays there."""
    state, reserved = scene.peak(scene.reserved)
    if not reserved:
        return "nothing was reserved"
    at_peak = scene.settled & (scene.reserved == reserved)
    at_peak[: scene.shown_states[0]] = at_peak[scene.shown_states[1] :] = False
    shares = 1 - scene.allocated / reserved
    then = float(shares[scene.settled_state(state)])
    most = float(shares[at_peak].max()) if at_peak.any() else then
    text = f"{units.format_share(then, decimals=0)} of it unused then"
    if most - then >= _NOTEWORTHY:
        text += f", up to {units.format_share(most, decimals=0)} later"
    return text


def _strip(
    figure: Any, panel: _Panel, bottom: float, most: int, palette: Palette, first: bool
) -> Any:
    """Allocated and reserved bytes on the map's time axis."""
    scene = panel.scene
    axes = figure.add_axes(_box(figure, panel.left, bottom, panel.width, _STRIP), label="strip")
    plain_axes(axes, palette, ("left",))
    columns = _columns(panel, figure)
    x_first, x_end = (float(scene.axis_x(v)) for v in scene.view[:2])
    edges = np.linspace(x_first, x_end, columns + 1)

    def steps(values: Any) -> Any:
        return np.append(values, values[-1:]).astype(float)

    _, reserved = scene.column_extremes(scene.reserved, columns)
    low, allocated = scene.column_extremes(scene.allocated, columns)
    step: dict[str, Any] = {"step": "post", "linewidth": 0}
    axes.fill_between(edges, steps(reserved), color=palette.sand, label="reserved", **step)
    axes.fill_between(edges, steps(allocated), color=palette.allocated[3], label="most", **step)
    axes.fill_between(edges, steps(low), color=palette.allocated[2], label="least", **step)
    line = {"where": "post", "color": palette.sand_ink, "linewidth": 1.0}
    axes.step(edges, steps(reserved), **line)
    axes.set_xlim(*(float(scene.axis_x(v)) for v in panel.x))
    axes.set_ylim(0, most * 1.06)
    axes.set_xticks([])
    byte_axis(axes.yaxis, most, 3, first)
    if first:
        x, y = panel.left, bottom + _STRIP + 0.19
        keys = (("allocated", palette.allocated[2]), ("reserved, not allocated", palette.sand))
        for name, colour in keys:
            corner = _box(figure, x, y - 0.115, 0.18, 0.1)
            figure.patches.append(
                Rectangle(corner[:2], *corner[2:], color=colour, lw=0, transform=figure.transFigure)
            )
            _text(figure, x + 0.24, y, name, palette.ink, 8.5)
            x += 0.38 + len(name) * _CHARACTER
    return axes


def _map(
    figure: Any,
    panel: _Panel,
    bottom: float,
    height: int,
    scale: Any,
    palette: Palette,
    first: bool,
) -> Any:
    """The addresses over time."""
    scene, planes = panel.scene, panel.planes
    assert planes is not None
    axes = figure.add_axes(_box(figure, panel.left, bottom, panel.width, _MAP), label="map")
    plain_axes(axes, palette)
    x_first, x_end = (float(scene.axis_x(v)) for v in scene.view[:2])
    y_first, y_end = scene.view[2:]
    axes.imshow(
        pixel_colours(planes, scale, palette),
        extent=(x_first, x_end, y_first, y_end),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_xlim(*(float(scene.axis_x(v)) for v in panel.x))
    axes.set_ylim(y_first, y_first + height)
    if _ends_early(panel):
        axes.axvline(x_end, color=palette.grey, linewidth=0.9, linestyle=":", label="end")
    _borders(scene, axes, height, palette)
    draw_gaps(scene, axes, palette)
    time_axis(axes, scene.by_time, len(scene.timeline))
    times = scene.timeline.time_us
    if scene.request.x == "time" and not scene.by_time and len(times):
        why = "the times are all the same" if times[-1] > 0 else "the file has no times"
        axes.set_xlabel(f"allocator event ({why})")
    byte_axis(axes.yaxis, height, 7, first)
    what = "device address (reserved ranges only)"
    if scene.request.raw_addresses:
        what = f"device address from {scene.address(0):#x}"
    if first:
        axes.set_ylabel(f"{what}, {axes.yaxis.label.get_text()}")
    place_markers(scene, axes, planes, panel.notes, palette)
    return axes


def _borders(scene: Scene, axes: Any, height: int, palette: Palette) -> None:
    """A hairline under each segment, for as long as it exists."""
    least = height / (_MAP * axes.figure.dpi) * _BORDER_PIXELS
    ends = np.append(scene.states, scene.view[1])
    lines = []
    for low, high, begin, end, _ in scene.segment_lives():
        if high - low >= least and scene.view[2] < low < scene.view[3]:
            x = scene.axis_x(ends[[begin, end]].astype(float))
            lines.append(((x[0], low), (x[1], low)))
    axes.add_collection(
        LineCollection(lines, colors=palette.page, linewidths=0.6, label="borders"),
        autolim=False,
    )


def _colour_bar(figure: Any, left: float, bottom: float, scale: Any, palette: Palette) -> None:
    axes = figure.add_axes(_box(figure, left, bottom, 0.16, _MAP), label="sizes")
    plain_axes(axes, palette, ())
    low, high = float(scale.vmin), float(scale.vmax)
    values = np.geomspace(low, high, 256)
    axes.pcolormesh(
        [0, 1],
        np.geomspace(low, high, 257),
        blues(palette)(scale(values))[:, None, :],
        rasterized=True,
    )
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_xticks([])
    step = 2 if high / low > 1 << 7 else 1
    ticks = [int(low) << power for power in range(0, 60, step) if int(low) << power <= high]
    names = [power_name(tick) for tick in ticks]
    if low > 512:
        names[0] = f"≤ {names[0]}"
    axes.yaxis.set_ticks(ticks, names)
    axes.yaxis.set_ticks([], minor=True)
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.set_ylabel("block size", labelpad=2)
    axes.tick_params(labelsize=8.5)
