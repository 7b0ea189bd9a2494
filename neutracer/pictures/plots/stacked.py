# SPDX-License-Identifier: Apache-2.0
"""Allocated bytes stacked by who allocated them. Importing this imports matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from neutracer.pictures.extra import moment, picture, place_text
from neutracer.pictures.figure import byte_axis, plain_axes, size_text, time_axis
from neutracer.pictures.mdtp.marks import draw_ooms
from neutracer.pictures.mdtp.scene import Scene
from neutracer.render.document import Place
from neutracer.render.escape import sentence
from neutracer.render.palette import Palette, mixed
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.origins import base_name
from neutracer.trace.stacks import NONE

__all__ = ["draw_stacked", "stacked_bands"]

# The picture has some 775 pixels for them at 100 an inch.
_COLUMNS = 700

_OTHERS = "all others"
_UNKNOWN = CATEGORIES[0]

# Characters of a name for which the legend has room.
_MOST_NAME = 46


def stacked_bands(scene: Scene, by: str, top: int) -> tuple[Any, list[tuple[str, Any]]]:
    """Bytes by holder in one state of each column: the one with the most allocated.

    Returns:
        The states, and (name, bytes in each of them): the largest at the peak first, all
        others last.
    """
    columns = min(_COLUMNS, max(1, scene.view[1] - scene.view[0]))
    states = _fullest_states(scene, columns)
    table = scene.timeline.allocations
    stacks = np.asarray(table.codes("stack"))
    groups, names = _groups(scene, stacks, by)
    begin = np.asarray(table.codes("alloc_event")).astype(np.int64) + 1
    freed = np.asarray(table.codes("free_event")).astype(np.int64)
    count = len(scene.states)
    end = np.where(freed == -1, count, np.maximum(freed + 1, 0))
    size = np.asarray(table.codes("size")).astype(np.int64)
    lives = begin < end
    peak = scene.peak(scene.allocated)[0]
    at_peak = lives & (begin <= peak) & (end > peak)
    held = np.bincount(groups[at_peak], size[at_peak], len(names))
    order = [group for group in np.argsort(-held, kind="stable")[:top] if held[group]]
    bands = []
    total = scene.allocated[states]
    rest = total.copy()
    for group in order:
        rows = lives & (groups == group)
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, begin[rows], size[rows])
        np.add.at(change, end[rows], -size[rows])
        values = np.cumsum(change)[states]
        rest -= values
        bands.append((names[group], values))
    if rest.any():
        bands.append((_OTHERS, rest))
    return states, bands


def _fullest_states(scene: Scene, columns: int) -> Any:
    """The state of each column in which the most was allocated."""
    first, end = scene.column_states(columns)
    return np.array(
        [a + int(np.argmax(scene.allocated[a:b])) for a, b in zip(first, end, strict=True)]
    )


def _groups(scene: Scene, stacks: Any, by: str) -> tuple[Any, list[str]]:
    """A number for each allocation, and the numbers' names."""
    if by == "category":
        codes = np.frombuffer(scene.timeline.categories.codes, np.uint8)
        return codes.astype(np.int64), list(CATEGORIES)
    known, inverse = np.unique(stacks, return_inverse=True)
    numbers: dict[Any, int] = {}
    names: list[str] = []
    of_stack = []
    for stack in known.tolist():
        place = scene.timeline.places[stack]
        if by == "line" and stack not in (0, NONE):
            frame = scene.snapshot.stacks.innermost(stack)
            place = Place(frame.name, base_name(frame.filename), frame.line)
        key = stack if by == "stack" else place
        if key not in numbers:
            numbers[key] = len(names)
            names.append(place_text(place))
        of_stack.append(numbers[key])
    return np.array(of_stack, np.int64)[inverse] if of_stack else inverse, names


def draw_stacked(scene: Scene, by: str, top: int, palette: Palette) -> Any:
    """The figure of `plot_timeline`."""
    states, bands = stacked_bands(scene, by, top)
    figure = picture(12.5, 5.2, palette.page)
    axes = figure.add_axes([0.075, 0.115, 0.62, 0.72], label="timeline")
    plain_axes(axes, palette)
    x_first, x_end = (float(scene.axis_x(v)) for v in scene.view[:2])
    edges = np.linspace(x_first, x_end, len(states) + 1)
    low = np.zeros(len(states) + 1)
    for number, (name, values) in enumerate(bands):
        high = low + np.append(values, values[-1:])
        # Columns are wider than pixels, so that without blurred edges none of them is lost.
        colour = _colour(name, number, palette)
        style = {"step": "post", "color": colour, "linewidth": 0, "antialiased": False}
        label = name.replace("_", " ") if by == "category" else name
        axes.fill_between(edges, low, high, label=label, **style)
        low = high
    _, reserved = scene.column_extremes(scene.reserved, len(states))
    steps = np.append(reserved, reserved[-1:]).astype(float)
    line = {"where": "post", "color": palette.sand_ink, "linewidth": 1.3}
    axes.step(edges, steps, label="reserved", **line)
    most = max(1, scene.peak(scene.reserved)[1])
    axes.set_xlim(x_first, x_end)
    axes.set_ylim(0, most * 1.05)
    byte_axis(axes.yaxis, most, 6)
    time_axis(axes, scene.by_time, len(scene.timeline))
    _legend(axes, palette)
    draw_ooms(scene, None, axes, palette)
    written: dict[str, Any] = {"parse_math": False, "va": "top"}
    title = sentence(scene.title, 80)
    figure.text(0.075, 0.985, title, color=palette.ink, size=13, weight="bold", **written)
    state, nbytes = scene.peak(scene.allocated)
    facts = (
        f"peak allocated {size_text(nbytes)} {moment(state - 1)}"
        f" · peak reserved {size_text(scene.peak(scene.reserved)[1])}"
    )
    figure.text(0.075, 0.928, facts, color=palette.grey, size=9.5, **written)
    return figure


def _colour(name: str, number: int, palette: Palette) -> str:
    """The colour of a band: greys for what has no name."""
    if name == _OTHERS:
        return mixed(palette.line, palette.grey)
    return palette.grey if name == _UNKNOWN else palette.groups[number % len(palette.groups)]


def _legend(axes: Any, palette: Palette) -> None:
    """The bands from the top down, as they lie; the axes take the room that they leave."""
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    shown = [(handle, name) for handle, name in named if name != "OOM"][::-1]
    legend = axes.legend(
        [handle for handle, _ in shown],
        [""] * len(shown),
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=8.5,
        labelcolor=palette.ink,
    )
    for text, (_, name) in zip(legend.get_texts(), shown, strict=True):
        text.set_parse_math(False)
        text.set_text(sentence(name, _MOST_NAME))
    axes.figure.escape_texts()
    place = axes.get_position()
    share = legend.get_window_extent().width / axes.figure.bbox.width
    # 1 % of the axes between them and the legend, 1 % of the figure right of it.
    axes.set_position([place.x0, place.y0, (0.99 - place.x0 - share) / 1.01, place.height])
