# SPDX-License-Identifier: Apache-2.0
"""A layout of our own, for pages without Graphviz.

Boxes are in columns, each to the right of those that refer to it, except where references
close a cycle. An arrow that passes a column has a place in it, like a box, so that it runs
between the boxes. The layout is plain and quick, and it never fails.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from html import escape

from neutracer.heap.drawing.scene import Arrow, Box, Scene
from neutracer.heap.drawing.svg import element, picture, text_of
from neutracer.render.escape import display_width
from neutracer.render.palette import LIGHT

__all__ = ["lay_out"]

# Points: what a column of text takes at most, the height of a line, and the gap.
_COLUMN = 7.0
_LINE = 14.0
_PADDING = 9.0
_BETWEEN_COLUMNS = 150.0
_BETWEEN_ROWS = 26.0
_MARGIN = 12.0
_TIP = 8.0

# What an arrow takes in a column that it passes, with its name.
_PASSING = 16.0

# Rounds in which boxes move towards their neighbours.
_ROUNDS = 6


@dataclass(frozen=True)
class _Spot:
    """Where a box is, or an arrow passes: its top left corner and its extent."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        return self.x + self.width


def lay_out(scene: Scene, box_words: tuple[str, ...]) -> str:
    """A scene as SVG, without its title and notes.

    Args:
        scene: What to draw.
        box_words: For each box what its tooltip says.
    """
    ranks = _ranks(scene)
    ways, columns = _columns(scene, ranks)
    spots = _spots(scene, columns)
    arrows = [_arrow(arrow, i, [spots[at] for at in ways[i]]) for i, arrow in _last_red(scene)]
    boxes = [_box(box, i, spots[i], box_words[i]) for i, box in enumerate(scene.boxes)]
    width = max((spot.right for spot in spots.values()), default=0.0)
    height = max((spot.y + spot.height for spot in spots.values()), default=0.0)
    # To the right of a box there may be a loop, with its name.
    shown = (-_MARGIN, -_MARGIN, width + 6 * _MARGIN, height + 2 * _MARGIN)
    return picture("".join(boxes + arrows), shown, " ".join(scene.title) or "Object graph")


def _last_red(scene: Scene) -> list[tuple[int, Arrow]]:
    """The arrows with their numbers, those of the cycle over the others."""
    return sorted(enumerate(scene.arrows), key=lambda entry: entry[1].role != "plain")


def _ranks(scene: Scene) -> list[int]:
    """The column of each box: one more than those before it, without the closing edges."""
    after: list[list[int]] = [[] for _ in scene.boxes]
    referred = [0] * len(scene.boxes)
    for arrow in scene.arrows:
        if arrow.role != "cut":
            after[arrow.tail].append(arrow.head)
            referred[arrow.head] += 1
    order = _finished(after, referred)
    place = {box: position for position, box in enumerate(order)}
    ranks = [0] * len(scene.boxes)
    for box in order:
        for head in after[box]:
            if place[head] > place[box]:
                ranks[head] = max(ranks[head], ranks[box] + 1)
    return ranks


def _finished(after: list[list[int]], referred: list[int]) -> list[int]:
    """The boxes in an order in which most references run forward."""
    order: list[int] = []
    seen = [False] * len(after)
    for start in sorted(range(len(after)), key=lambda box: referred[box]):
        stack = [] if seen[start] else [(start, iter(after[start]))]
        seen[start] = True
        while stack:
            box, heads = stack[-1]
            head = next((head for head in heads if not seen[head]), None)
            if head is None:
                order.append(box)
                stack.pop()
            else:
                seen[head] = True
                stack.append((head, iter(after[head])))
    return order[::-1]


def _columns(scene: Scene, ranks: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """For each arrow the places on its way, and what is in each column, downwards.

    The first places are the boxes; each column that an arrow passes gives it one more.
    """
    columns: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for box, rank in enumerate(ranks):
        columns[rank].append(box)
    ways: list[list[int]] = []
    count = len(ranks)
    for arrow in scene.arrows:
        start, end = ranks[arrow.tail], ranks[arrow.head]
        step = 1 if end > start else -1
        way = [arrow.tail]
        # A large graph has no room for all of them.
        for rank in range(start + step, end, step) if count < 4_000 else ():
            columns[rank].append(count)
            way.append(count)
            count += 1
        ways.append([*way, arrow.head])
    _settle(columns, ways, count)
    return ways, columns


def _settle(columns: list[list[int]], ways: list[list[int]], count: int) -> None:
    """Orders each column by where the neighbours stand, so that fewer arrows cross."""
    near: list[list[int]] = [[] for _ in range(count)]
    for way in ways:
        for one, other in itertools.pairwise(way):
            near[one].append(other)
            near[other].append(one)
    height = {at: i - len(column) / 2 for column in columns for i, at in enumerate(column)}
    for turn in range(_ROUNDS):
        for column in columns if turn % 2 == 0 else columns[::-1]:
            mean = {at: sum(height[o] for o in near[at]) / max(len(near[at]), 1) for at in column}
            column.sort(key=mean.__getitem__)
            height.update((at, i - len(column) / 2) for i, at in enumerate(column))


def _spots(scene: Scene, columns: list[list[int]]) -> dict[int, _Spot]:
    extents = {
        at: _extent(scene.boxes[at]) if at < len(scene.boxes) else (0.0, _PASSING)
        for column in columns
        for at in column
    }
    heights = [sum(extents[at][1] + _BETWEEN_ROWS for at in column) for column in columns]
    tallest = max(heights, default=0.0)
    spots: dict[int, _Spot] = {}
    x = 0.0
    for column, height in zip(columns, heights, strict=True):
        y = (tallest - height) / 2
        widest = max(extents[at][0] for at in column)
        for at in column:
            # What passes a column runs level as far as that is wide.
            own_width = extents[at][0] if at < len(scene.boxes) else widest
            own_height = extents[at][1]
            spots[at] = _Spot(x + (widest - own_width) / 2, y, own_width, own_height)
            y += own_height + _BETWEEN_ROWS
        x += widest + _BETWEEN_COLUMNS
    return spots


def _extent(box: Box) -> tuple[float, float]:
    width = max(display_width(line) for line in box.lines) * _COLUMN + 2 * _PADDING
    return width + 40 * box.size, len(box.lines) * _LINE + 2 * _PADDING + 30 * box.size


def _text(lines: tuple[str, ...], x: float, middle: float, colour: str, size: str) -> str:
    top = middle - (len(lines) - 1) * _LINE / 2 + 4
    return "".join(
        element(
            "text",
            {
                "x": f"{x:.1f}",
                "y": f"{top + i * _LINE:.1f}",
                "text-anchor": "middle",
                "font-size": size,
                "fill": colour,
            },
            text_of(line),
        )
        for i, line in enumerate(lines)
    )


def _box(box: Box, number: int, spot: _Spot, words: str) -> str:
    fill, border = {
        "tensor": (LIGHT.red_fill, LIGHT.red),
        "cycle": (LIGHT.surface, LIGHT.grey),
        "root": (LIGHT.page, LIGHT.ink),
        "plain": (LIGHT.surface, LIGHT.line),
    }[box.role]
    frame = {
        "x": f"{spot.x:.1f}",
        "y": f"{spot.y:.1f}",
        "width": f"{spot.width:.1f}",
        "height": f"{spot.height:.1f}",
        "rx": "7" if box.rounded else "0",
        "fill": fill,
        "stroke": border,
        "stroke-width": "1.5" if box.role == "tensor" else "1",
    }
    behind = {**frame, "x": f"{spot.x + 4:.1f}", "y": f"{spot.y + 4:.1f}"}
    ink = LIGHT.grey if box.role == "plain" else LIGHT.ink
    text = _text(box.lines, spot.x + spot.width / 2, spot.middle, ink, "11")
    shapes = (element("rect", behind) if box.stacked else "") + element("rect", frame)
    about = {"class": f"nt-node nt-{box.role}", "data-node": str(number)}
    return element("g", about, element("title", {}, escape(words)) + shapes + text)


def _curve(way: list[_Spot]) -> tuple[str, tuple[float, float], str]:
    """A path along the way, the place of its name, and the corners of its tip."""
    tail, head = way[0], way[-1]
    forward = head.x > tail.right
    if not forward and head.right >= tail.x:
        return _loop(tail, head)
    # The two ways between a pair of boxes run side by side.
    shift = -5.0 if forward else 5.0
    side = 1 if forward else -1
    x, y = (tail.right if forward else tail.x), tail.middle + shift
    end_x, end_y = (head.x if forward else head.right), head.middle + shift
    path = f"M{x:.1f},{y:.1f}"
    # A name is nearer to the end, where arrows from one box are apart.
    names = []
    for spot in [*way[1:-1], _Spot(end_x - side * _TIP, end_y, 0, 0)]:
        near, far = (spot.x, spot.right) if forward else (spot.right, spot.x)
        bend = (x + near) / 2
        names.append((x + 0.6 * (near - x), y + 0.65 * (spot.middle - y)))
        path += f" C{bend:.1f},{y:.1f} {bend:.1f},{spot.middle:.1f} {near:.1f},{spot.middle:.1f}"
        path += f" L{far:.1f},{spot.middle:.1f}" * (far != near)
        x, y = far, spot.middle
    name_x, name_y = names[len(names) // 2]
    tip = (
        f"{end_x - side * _TIP:.1f},{end_y - 4:.1f} {end_x:.1f},{end_y:.1f} "
        f"{end_x - side * _TIP:.1f},{end_y + 4:.1f}"
    )
    return path, (name_x, name_y + 1.6 * shift), tip


def _loop(tail: _Spot, head: _Spot) -> tuple[str, tuple[float, float], str]:
    """Out to the right of a column, and back into it."""
    x0, y0 = tail.right, tail.middle + 6
    x1, y1 = head.right + _TIP, head.middle - 6
    out = max(x0, x1) + 36
    path = f"M{x0:.1f},{y0:.1f} C{out:.1f},{y0:.1f} {out:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    tip = f"{x1:.1f},{y1 - 4:.1f} {x1 - _TIP:.1f},{y1:.1f} {x1:.1f},{y1 + 4:.1f}"
    return path, (out, (y0 + y1) / 2), tip


def _arrow(arrow: Arrow, number: int, way: list[_Spot]) -> str:
    path, (x, y), tip = _curve(way)
    colour = LIGHT.grey if arrow.role == "plain" else LIGHT.red
    line = {"d": path, "fill": "none", "stroke": colour}
    line["stroke-width"] = "0.8" if arrow.role == "plain" else "1.9"
    if arrow.role == "cut":
        line["stroke-dasharray"] = "5,3"
    head = {"points": tip, "fill": colour, "stroke": colour}
    text = _text(arrow.lines, x, y, colour, "9.5")
    about = {"class": f"nt-edge nt-{arrow.role}", "data-edge": str(number)}
    shapes = element("path", line) + element("polygon", head)
    title = element("title", {}, escape(" ".join(arrow.lines)))
    return element("g", about, title + shapes + text)
