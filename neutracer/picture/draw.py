# SPDX-License-Identifier: Apache-2.0
"""The MDTP plot (address x time): its numbers, and both styles drawn with matplotlib."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb, to_rgba
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import blended_transform_factory

from neutracer import units
from neutracer._native import core
from neutracer.arguments import number_pair, whole_number
from neutracer.picture.extra import picture, place_text
from neutracer.picture.figure import byte_axis, plain_axes, power_name, size_text, time_axis
from neutracer.render.document import Palette, sentence
from neutracer.trace.events import cache_emptier, shown_device
from neutracer.trace.lives import lives_of
from neutracer.trace.marks import nested_turns, turns_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE, UNKNOWN_PLACE, place_of
from neutracer.trace.timeline import Layout, Timeline, int_address

SEEN_BLOCK, SEEN_HOLE, SEEN_RESERVED = 1, 2, 4

# Events that only make room for the allocation after them.
_OPENING = ("segment_alloc", "segment_map")

# Seconds, or events, after the end of every axis.
_FARTHEST = 1e12

_ALLOCATED, _ACTIVE, _RESERVED = 0, 1, 2

#: The strokes over what is past its last use, or never used.
HATCH = "////"

# The blocks with the largest areas are hatched, at most so many.
_MOST_HATCHED = 2000


@dataclass(frozen=True)
class Request:
    """The part of a snapshot to draw, and the style, as for `mdtp`."""

    device: int | None = None
    x: str = "time"
    stream: int | None = None
    pool: tuple[int, int] | None = None
    time_range: tuple[float, float] | None = None
    address_range: tuple[int | str, int | str] | str | None = None
    raw_addresses: bool = False


@dataclass(frozen=True)
class Oom:
    """A moment at which memory ran out."""

    state: int  # The state after it; state e + 1 is the one after event e.
    asked: int  # Bytes that were requested.
    device_free: int  # Bytes that the device had free.


@dataclass(frozen=True)
class Planes:
    """A view's pixels, rows from the lowest address; see `nt_raster.h` for the rules."""

    largest: Any  # Bytes of the largest block that a pixel has seen.
    used: Any  # The share of its area that was in blocks.
    reserved: Any  # The share of its area that was reserved.
    seen: Any  # What it has seen: SEEN_BLOCK, SEEN_HOLE, SEEN_RESERVED.


class Scene:
    """One device of one snapshot on the axes of a picture.

    Positions are the core's: microseconds, or states, to the right; bytes upwards.

    Attributes:
        snapshot: The snapshot.
        timeline: The device's timeline.
        by_time: Whether the axis is time; else it is events.
        title: Its title.
        view: The positions shown: x first, x end, y first, y end.
    """

    def __init__(self, snapshot: Snapshot, request: Request, title: str) -> None:
        if request.x not in ("time", "event"):
            raise ValueError(f"x must be 'time' or 'event', not {request.x!r}")
        request = _checked(request)
        self.snapshot = snapshot
        self.timeline: Timeline = snapshot.timeline(request.device)
        times = self.timeline.time_us
        has_times = len(times) > 0 and times[-1] > 0 and any(time != times[0] for time in times)
        self.by_time = request.x == "time" and has_times
        self.title = title
        #: The number of each raw stream: 0 is the default stream, then as they first appear.
        self.streams = _numbered(self.timeline)
        numbers = {number: stream for stream, number in self.streams.items()}
        if request.stream is not None and request.stream not in self.streams:
            request = replace(request, stream=numbers.get(request.stream, request.stream))
        self.request = request
        self.raster = core.Raster(
            self.timeline.native,
            self.by_time,
            request.raw_addresses,
            stream=request.stream,
            pool=request.pool,
        )
        self.ranges = self.raster.ranges()
        self._starts = [address for address, _, _ in self.ranges]
        edges = np.frombuffer(self.raster.states(), "Q").astype(np.int64)
        #: Where each state begins.
        self.states = edges[:-1]
        self._end = int(edges[-1])
        self.view = (*self._x_view(), *self._y_view())
        if (request.stream, request.pool) != (None, None) and not self.segment_lives():
            raise ValueError(f"no segment is of stream {request.stream}, pool {request.pool}")

    # Axes -------------------------------------------------------------------------------

    def axis_x(self, position: Any) -> Any:
        """A position, or several, as the axis counts: seconds, or events."""
        return position / 1e6 if self.by_time else position - 1.0

    def _x_view(self) -> tuple[int, int]:
        """All of the trace, without the state before it where events have a width."""
        first = 0 if self.by_time or len(self.timeline) == 0 else 1
        if self.request.time_range is None:
            return first, self._end
        # A bound that no axis reaches (inf) is the axis' end.
        bounds = (min(max(value, -_FARTHEST), _FARTHEST) for value in self.request.time_range)
        low, high = (round(one * 1e6) if self.by_time else round(one) + 1 for one in bounds)
        low, high = max(low, first), min(high, self._end)
        if low >= high:
            raise ValueError(f"nothing in the trace falls within {self.request.time_range}")
        return low, high

    def _y_view(self) -> tuple[int, int]:
        height = self.raster.extent()[1]
        if self.request.address_range is None:
            return 0, height
        first, end = _addresses(self.timeline, self.request.address_range)
        low, high = self.position(first), self.position(end)
        if low >= high:
            raise ValueError("nothing in that range of addresses was ever reserved")
        return low, high

    def position(self, address: int) -> int:
        """Where an address is drawn; one that was never reserved as the next that was."""
        row = bisect_right(self._starts, address) - 1
        if row < 0:
            return 0
        start, size, position = self.ranges[row]
        return position + min(address - start, size)

    def address(self, position: int) -> int:
        """Which address is at a position."""
        row = bisect_right([p for _, _, p in self.ranges], position) - 1
        if row < 0:
            return 0
        start, _, first = self.ranges[row]
        return start + position - first

    # What is shown ----------------------------------------------------------------------

    def planes(self, width: int, height: int) -> Planes:
        """The view's pixels."""
        raw = self.raster.draw((*self.view, width, height))
        kinds = (np.uint64, np.float64, np.float64, np.uint8)
        shaped = (
            np.frombuffer(part, kind).reshape(height, width)
            for part, kind in zip(raw, kinds, strict=True)
        )
        return Planes(*shaped)

    @cached_property
    def shown_states(self) -> tuple[int, int]:
        """The first state of the view, and the one after its last."""
        first = int(self._first_states(np.array([self.view[0]]))[0])
        return first, int(np.searchsorted(self.states, self.view[1], "left"))

    def _series(self, metric: int) -> Any:
        return np.frombuffer(self.raster.series(metric), np.uint64).astype(np.int64)

    @cached_property
    def allocated(self) -> Any:
        """Bytes in allocated blocks in each state."""
        return self._series(_ALLOCATED)

    @cached_property
    def active(self) -> Any:
        """Bytes in blocks, those that wait for a stream as well, in each state."""
        return self._series(_ACTIVE)

    @cached_property
    def reserved(self) -> Any:
        """Bytes reserved in each state."""
        return self._series(_RESERVED)

    def column_states(self, width: int) -> tuple[Any, Any]:
        """Of each of the view's columns the first state it sees, and the one after the
        last."""
        x_first, x_end = self.view[:2]
        edges = x_first + (x_end - x_first) * np.arange(width + 1) / width
        first = self._first_states(edges[:-1])
        end = np.searchsorted(self.states, edges[1:], "left")
        return first, np.maximum(end, first + 1)

    def _first_states(self, positions: Any) -> Any:
        """The first state that is seen from each position on: of several that begin there,
        all but the last without width, the first."""
        begins = np.searchsorted(self.states, positions, "left")
        lasts = np.maximum(np.searchsorted(self.states, positions, "right") - 1, 0)
        return np.minimum(begins, lasts)

    def column_extremes(self, series: Any, width: int) -> tuple[Any, Any]:
        """The least and the largest value that each of the view's columns has seen."""
        first, end = (edge.astype(np.uint64) for edge in self.column_states(width))
        pyramid = core.Pyramid(series.astype(np.uint64).tobytes())
        least, largest = pyramid.extremes(first.tobytes(), end.tobytes())
        return np.frombuffer(least, np.uint64), np.frombuffer(largest, np.uint64)

    @cached_property
    def settled(self) -> Any:
        """The states visible to a program: not those between a segment and its allocation."""
        names = self.snapshot.native.actions()
        opening = [names.index(name) for name in _OPENING if name in names]
        actions = np.asarray(self.timeline.events.codes("action"))
        seen = np.ones(len(self.states), bool)
        seen[1:-1] = ~np.isin(actions[:-1], opening)
        return seen

    def settled_state(self, state: int) -> int:
        """The first settled state that is not before `state`."""
        return state + int(np.argmax(self.settled[state:]))

    def peak(self, series: Any) -> tuple[int, int]:
        """The view's first state with the series' largest value, and the value."""
        first, end = self.shown_states
        state = first + int(np.argmax(series[first:end]))
        return state, int(series[state])

    @cached_property
    def ooms(self) -> list[Oom]:
        """The moments in the view at which memory ran out."""
        events = self.timeline.events
        names = self.snapshot.native.actions()
        code = names.index("oom") if "oom" in names else -1
        found = np.flatnonzero(np.asarray(events.codes("action")) == code)
        first, end = self.shown_states
        sizes, free = events["size"], events["device_free"]
        return [
            Oom(int(event) + 1, int(sizes[event]), int(free[event]))
            for event in found
            if first <= event + 1 < end
        ]

    @cached_property
    def idle(self) -> Any:
        """The allocations that are kept past their last use, or never used, a line each: the row,
        the first state in which it is, and the one after the last; no lines without uses."""
        lives = lives_of(self.snapshot, self.timeline)
        found = [] if lives is None else [(row, at + 1, end + 1) for row, at, end in lives.idle()]
        return np.array(found, np.int64).reshape(-1, 3)

    @cached_property
    def idle_boxes(self) -> Any:
        """Where in the view the largest of these are: positions x first, x end, y first, y end."""
        rows, begin, end = self.idle.T
        if not len(rows) or not self.ranges:
            return np.zeros((0, 4))
        table = self.timeline.allocations
        address, size = (np.asarray(table.codes(name))[rows] for name in ("address", "size"))
        starts, lengths, positions = np.array(self.ranges, np.uint64).T
        at = np.searchsorted(starts, address, "right") - 1
        drawn = (at >= 0) & (address - starts[at] < lengths[at])
        low = (positions[at] + (address - starts[at])).astype(np.int64)
        if (self.request.stream, self.request.pool) != (None, None):
            # Segments of others may have been at the same addresses.
            lives = self.segment_lives()
            drawn &= np.any(
                [
                    (low >= first) & (low < top) & (begin >= born) & (begin < gone)
                    for first, top, born, gone, _ in lives
                ],
                axis=0,
            )
        edges = np.append(self.states, self._end)
        x = np.clip([edges[begin], edges[end]], *self.view[:2])
        y = np.clip([low, low + size.astype(np.int64)], *self.view[2:])
        areas = np.where(drawn, (x[1] - x[0]).astype(float) * (y[1] - y[0]), 0.0)
        largest = np.argsort(-areas, kind="stable")[:_MOST_HATCHED]
        return np.stack([*x, *y], 1)[largest[areas[largest] > 0]]

    def segment_lives(self) -> list[tuple[int, int, int, int, tuple[int, int, int]]]:
        """The segments that are drawn: positions first and end, states first and end, and
        the stream with the two numbers of the pool."""
        table = self.timeline.segments
        count = len(self.states)
        rows = []
        for address, size, stream, one, two, begin, end in zip(
            table["address"],
            table["size"],
            table["stream"],
            table["pool_first"],
            table["pool_second"],
            table["alloc_event"],
            table["free_event"],
            strict=True,
        ):
            if self.passes(stream, (one, two)):
                low = self.position(address)
                life = (begin + 1, count if end == -1 else end + 1)
                rows.append((low, low + size, *life, (stream, one, two)))
        return rows

    def passes(self, stream: int, pool: tuple[int, int]) -> bool:
        """A segment of this stream and pool is drawn."""
        request = self.request
        return request.stream in (None, stream) and request.pool in (None, pool)


def _numbered(timeline: Timeline) -> dict[int, int]:
    """The raw streams that segments were of, with their numbers."""
    others = dict.fromkeys(stream for stream in timeline.segments.codes("stream") if stream)
    return {0: 0, **{stream: number for number, stream in enumerate(others, 1)}}


def _checked(request: Request) -> Request:
    """The request, with what it says of parts as numbers."""
    stream, pool = request.stream, request.pool
    times = request.time_range
    if stream is not None:
        stream = whole_number("stream", stream, least=0)
    if pool is not None:
        pool = number_pair("pool", pool, whole=True)
    for one in (stream or 0, *(pool or ())):
        if not 0 <= one < 1 << 64:
            raise ValueError(f"there is no stream or pool {one}: its number must be 0 to 2**64 - 1")
    return replace(
        request,
        stream=stream,
        pool=pool,
        time_range=None if times is None else number_pair("time_range", times),
    )


def _addresses(timeline: Timeline, given: Any) -> tuple[int, int]:
    """A range of addresses: two of them, as numbers or texts, or one block by its name."""
    if not isinstance(given, str):
        if isinstance(given, (tuple, list)):
            given = tuple(int_address(one) if isinstance(one, str) else one for one in given)
        first, end = number_pair("address_range", given, whole=True)
        return first, end
    blocks = timeline.named(given)
    if not len(blocks):
        raise ValueError(f"the trace has no block {given}")
    # All of them begin at one address.
    first = int(blocks.codes("address")[0])
    return first, first + max(map(int, blocks.codes("size")))


# ---- Colours -----------------------------------------------------------------------------

# Blocks are blue, darker if larger; holes are sand; unreserved addresses are blank. A pixel
# with both mixes them by area, between these shares of blue, so that thin ones stay visible.
# The page has the same shares (strip.js).
_LEAST_BLUE = 0.45
_MOST_BLUE = 0.88

# Smaller blocks than this share one colour: most of them are thinner than a pixel.
_SMALLEST = 64 << 10

# The scale has at least this much above its lower end, also without any block.
_LEAST_TOP = 4095


def blues(palette: Palette) -> Any:
    """The blue scale, from the smallest block to the largest."""
    return LinearSegmentedColormap.from_list("neutracer", list(palette.allocated))


def block_scale(largest: int) -> Any:
    """Block sizes to 0 .. 1, by their logarithm; up to the power of two above `largest`."""
    top = 1 << max(largest - 1, _LEAST_TOP).bit_length()
    return LogNorm(min(_SMALLEST, top // 16), top, clip=True)


def pixel_colours(planes: Planes, scale: Any, palette: Palette) -> Any:
    """The picture, RGBA bytes with rows from the lowest address."""
    blocks = (planes.seen & SEEN_BLOCK) != 0
    holes = (planes.seen & SEEN_HOLE) != 0
    covered = (planes.seen & (SEEN_BLOCK | SEEN_RESERVED)) != 0
    share = np.divide(
        planes.used, planes.reserved, out=np.zeros_like(planes.used), where=planes.reserved > 0
    )
    share = _LEAST_BLUE + (_MOST_BLUE - _LEAST_BLUE) * np.clip(share, 0.0, 1.0)
    share = np.where(blocks, np.where(holes, share, 1.0), 0.0)[..., None]
    blue = blues(palette)(scale(np.maximum(planes.largest, 1).astype(np.float64)))
    sand = np.array([*to_rgb(palette.sand), 1.0])
    mixed = share * blue + (1 - share) * sand
    mixed[~covered] = (*to_rgb(palette.page), 0.0)
    return (mixed * 255).round().astype(np.uint8)


def extra_colours(palette: Palette) -> tuple[str, ...]:
    """Colours of streams and pools: none of them blue, sand or red."""
    dark = palette.page != "#ffffff"
    if dark:
        return ("#98a6b2", "#7fd1ae", "#c9a0e8", "#d9d26a", "#e8a0c8", "#7fd8e0")
    return ("#8a949c", "#2e8b6f", "#7b4ea3", "#8f8a1e", "#b04a86", "#1e8a96")


# ---- Notes -------------------------------------------------------------------------------

# Smaller holes, as a share of the peak of reserved, get no note.
_LEAST_SHARE = 0.015


@dataclass(frozen=True)
class HoleNote:
    """A hole that deserves a line."""

    state: int  # When: state e + 1 is the one after event e.
    first: int  # Position of its first byte.
    end: int  # Position after its last byte.
    size: int  # Its bytes.
    text: str


def hole_notes(scene: Scene) -> list[HoleNote]:
    """The largest hole when the most was unused, and the largest that something pins
    when memory ran out (or else at the end).
    """
    first, end = scene.shown_states
    unused = np.where(scene.settled, scene.reserved - scene.active, -1)
    least = max(1, int(scene.reserved[first:end].max() * _LEAST_SHARE))
    emptiest = first + int(np.argmax(unused[first:end]))
    when = "when the most was unused" if len(scene.timeline) else "at the moment of the snapshot"
    moments = [(emptiest, False, when)]
    if scene.ooms:
        moments.append((max(scene.ooms[-1].state - 1, first), True, "when memory ran out"))
    elif end - 1 != emptiest:
        moments.append((end - 1, True, "at the end"))
    notes: list[HoleNote] = []
    for state, only_pinned, when in moments:
        note = _largest_hole(scene, state, only_pinned, when, least)
        if note and all((note.first, note.size) != (n.first, n.size) for n in notes):
            notes.append(note)
    return notes[:2]


def _largest_hole(
    scene: Scene, state: int, only_pinned: bool, when: str, least: int
) -> HoleNote | None:
    layout = scene.timeline.at(state - 1)
    fragment = core.Fragment(scene.snapshot.native, layout.native, scene.timeline.device)
    pins = {row: pin for row, _, _, _, _, pin in fragment.segments()}
    segments = layout.segments
    streams, ones, twos = (segments.codes(n) for n in ("stream", "pool_first", "pool_second"))
    for _, segment, address, size, before, after in fragment.holes():
        pinned = pins.get(segment, NONE) != NONE
        drawn = scene.passes(streams[segment], (ones[segment], twos[segment]))
        position = scene.position(address)
        if not drawn or (only_pinned and not pinned) or position >= scene.view[3]:
            continue
        if size < least or position < scene.view[2]:
            return None
        holes = sum(1 for hole in fragment.holes() if hole[3] == size)
        others = f", one of {holes}" if holes > 1 else ""
        head = f"{units.format_bytes(size)} free{others}, {when}"
        pin = pins.get(segment, NONE)
        if pin == NONE:
            emptier = cache_emptier(shown_device(scene.snapshot, scene.timeline.device))
            by = emptier.rpartition(".")[2]
            tail = f"a whole cached segment; nothing pins it, {by} gives it back"
        else:
            tail = _pin_text(layout, pin, before, after)
        return HoleNote(state, position, position + size, size, f"{head}: {tail}")
    return None


def _pin_text(layout: Layout, pin: int, before: int, after: int) -> str:
    """The block that pins a hole's segment, and the neighbours of the hole."""
    block = layout.blocks[pin]
    size = units.format_bytes(block.size)
    place = place_of(block.stack)
    by = "" if place == UNKNOWN_PLACE else f" of {place_text(place)}"
    if pin in (before, after):
        return f"pinned by the {size} block{by} beside it"
    return f"its segment is pinned by a {size} block{by}"


# ---- Marks -------------------------------------------------------------------------------

# The least width of a column of OOM, and the size of a marker.
_OOM_PIXELS = 3
_MARKER_PIXELS = 17

# The number of colours for streams and pools.
_MOST_GROUPS = 6

# More gaps than this can't be told apart.
_MOST_GAPS = 60

# Labels of OOMs keep this distance, as a share of the axis.
_LABEL_DISTANCE = 0.45


def draw_ooms(scene: Scene, strip: Any | None, axes: Any, palette: Palette) -> None:
    """A red column for each OOM; above it the request and what the device had.

    Args:
        strip: Axes above the others, which get the columns too; None: there are none.
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
            style = {"color": palette.red, "linewidth": 0, "zorder": 4, "label": "OOM"}
            for pane in (axes,) if strip is None else (strip, axes):
                pane.axvspan(left, left + width, **style)
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
    for number, text in row:
        _swatch(figure, left, top - 0.125, 0.12, colours[number])
        _text(figure, left + 0.17, top, text, palette.ink, 8.5)
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


# ---- Draw --------------------------------------------------------------------------------

_LEFT, _RIGHT, _BETWEEN, _TOP = 0.95, 1.4, 0.42, 1.0  # inches, as all below
_STRIP, _GAP, _MAP, _AXIS = 1.1, 0.14, 4.6, 0.55
_WIDE, _HALF = 9.9, 6.3
_NOTE = 0.19
_CHARACTER = 0.063  # of a note

# The least notable rise of the unused share.
_NOTEWORTHY = 0.05

# A border between segments is drawn where they are at least this high.
_BORDER_PIXELS = 6


@dataclass
class _Panel:
    """One scene on its way onto the figure."""

    scene: Scene
    left: float
    width: float
    x: tuple[int, int]  # The positions of the axes' ends; all panels have the same.
    planes: Planes | None = None
    notes: tuple[HoleNote, ...] = ()  # Of its largest holes.


def draw_scenes(scenes: list[Scene], palette: Palette, labels: bool) -> Any:
    """One or two scenes side by side, on one scale.

    Args:
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
    tops = (max(one.peak(one.reserved)[1], one.peak(one.allocated)[1]) for one in scenes)
    most = max(1, *tops)
    for number, (panel, text, key) in enumerate(zip(panels, lines, keys, strict=True)):
        first = number == 0
        strip = _strip(figure, panel, foot + _AXIS + _MAP + _GAP, most, palette, first)
        axes = _map(figure, panel, foot + _AXIS, max(heights), scale, palette, first)
        if not first:
            draw_difference(strip, scenes[0], panel.scene, palette)
        draw_ooms(panel.scene, strip, axes, palette)
        _phases(figure, panel, foot + _AXIS + _MAP, palette)
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


def _box(figure: Any, left: float, bottom: float, width: float, height: float) -> list[float]:
    wide, high = figure.get_size_inches()
    return [left / wide, bottom / high, width / wide, height / high]


def _text(figure: Any, x: float, y: float, text: str, colour: str, size: float, **more: Any) -> Any:
    """Text at inches from the lower left."""
    wide, high = figure.get_size_inches()
    return figure.text(x / wide, y / high, text, color=colour, fontsize=size, va="top", **more)


def _swatch(figure: Any, left: float, bottom: float, width: float, colour: str) -> None:
    """A rectangle of a key, at inches from the lower left."""
    corner = _box(figure, left, bottom, width, 0.1)
    style = {"color": colour, "lw": 0, "transform": figure.transFigure}
    figure.patches.append(Rectangle(corner[:2], *corner[2:], **style))


def _columns(panel: _Panel, figure: Any) -> int:
    """Pixels of the axes that the scene fills; a longer one beside it fills all of them."""
    first, end = panel.scene.view[:2]
    pixels: float = panel.width * figure.dpi * (end - first) / max(panel.x[1] - panel.x[0], 1)
    return max(1, round(pixels))


def _ends_early(panel: _Panel) -> bool:
    return bool(panel.x[1] - panel.scene.view[1] > (panel.x[1] - panel.x[0]) / 100)


def _key_lines(panels: list[_Panel]) -> list[str]:
    words = [
        "Blocks are blue, the more so the fuller the pixel; sand is reserved but not allocated, "
        "blank is not reserved.",
        "Above, the darker blue reaches up to the most that was allocated within a pixel's time.",
    ]
    if any(_gaps(panel.scene) for panel in panels):
        words.append("Slanted strokes mark addresses left out, which were never reserved.")
    if any(len(panel.scene.idle_boxes) for panel in panels):
        words.append("Hatched blocks are past their last use, or never used.")
    if any(_ends_early(panel) for panel in panels):
        words.append("The dotted line is the last event.")
    room = int(panels[0].width / _CHARACTER)
    return textwrap.wrap(" ".join(words), room)


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
    # Only events show a peak.
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
            _swatch(figure, x, y - 0.115, 0.18, colour)
            _text(figure, x + 0.24, y, name, palette.ink, 8.5)
            x += 0.38 + len(name) * _CHARACTER
    return axes


# Phases inside others are drawn up to this depth.
_MOST_DEPTH = 3


def _phases(figure: Any, panel: _Panel, bottom: float, palette: Palette) -> None:
    """The phases that the program marked, as named bars between the curves and the map."""
    scene = panel.scene
    turns = turns_of(scene.snapshot, scene.request.device)
    rows = [(turn, depth) for turn, depth in nested_turns(turns) if depth < _MOST_DEPTH]
    if not rows:
        return
    box = _box(figure, panel.left, bottom + 0.1 * _GAP, panel.width, 0.8 * _GAP)
    axes = figure.add_axes(box, label="phases")
    axes.set_axis_off()
    axes.set_xlim(*(float(scene.axis_x(v)) for v in panel.x))
    axes.set_ylim(0, 1 + max(depth for _, depth in rows))
    tints, first_us = extra_colours(palette), scene.timeline.time_us[0]
    number: dict[str, int] = {}
    span = axes.get_xlim()[1] - axes.get_xlim()[0]
    for turn, depth in rows:
        first, end = float(turn.first), float(turn.end)
        if scene.by_time:
            first, end = ((at - first_us) / 1e6 for at in (turn.begin_us, turn.end_us))
        tint = tints[number.setdefault(turn.phase, len(number)) % len(tints)]
        base = axes.get_ylim()[1] - 1 - depth
        axes.broken_barh([(first, end - first)], (base, 0.9), color=tint, linewidth=0)
        room = int((end - first) / (span or 1.0) * panel.width / _CHARACTER)
        if depth == 0 and room >= len(turn.phase):
            x = (max(first, axes.get_xlim()[0]) + min(end, axes.get_xlim()[1])) / 2
            text = sentence(turn.phase, room)
            axes.text(
                x,
                base + 0.45,
                text,
                ha="center",
                va="center",
                fontsize=6.5,
                parse_math=False,
                color=palette.page,
                clip_on=True,
            )


def _map(
    figure: Any,
    panel: _Panel,
    bottom: float,
    height: int,
    scale: Any,
    palette: Palette,
    first: bool,
) -> Any:
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
    _hatch(scene, axes, palette)
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


def _hatch(scene: Scene, axes: Any, palette: Palette) -> None:
    """Strokes over blocks that are kept past their last use, or never used."""
    boxes = scene.idle_boxes
    if len(boxes):
        corners = np.stack([scene.axis_x(boxes[:, [0, 1, 1, 0]]), boxes[:, [2, 2, 3, 3]]], -1)
        path = Path.make_compound_path_from_polys(corners.astype(float))
        look = {"facecolor": "none", "edgecolor": palette.page, "linewidth": 0, "hatch": HATCH}
        axes.add_patch(PathPatch(path, label="idle", **look))


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


# ---- Classic -----------------------------------------------------------------------------

# A column is a frame, the layout after one event; one without memory left is all red. Addresses
# run from 0, the lowest reserved, to 1. Adjacent allocations make one run, coloured by size.

#: States, each with its runs.
Frames = list[tuple[int, Any]]

# More frames are thinned out to this number of columns.
_MOST_FRAMES = 335
_ROWS = 460

# The event of an end that is not in the trace; below it, one from before the trace.
_NEVER = -1

# Inches of one scene: two pixels a frame, one a row.
_CLASSIC_WIDE, _FRAMES_WIDE, _HIGH = 7.2, 6.7, 4.6


def draw_classic(scenes: list[Scene], palette: Palette) -> Any:
    """One or two scenes in the original look, on one colour scale."""
    wide, high = _CLASSIC_WIDE * len(scenes) + 0.9 + 1.6, _HIGH + 1.2
    figure = picture(wide, high, palette.page)
    frames = [classic_frames(scene) for scene in scenes]
    largest = max(
        (int((runs[1] - runs[0]).max()) for one in frames for _, runs in one if runs.size),
        default=1,
    )
    scale = LogNorm(min(64 << 10, largest), max(largest, 2), clip=True)
    for number, (scene, shown) in enumerate(zip(scenes, frames, strict=True)):
        left = 0.9 + number * _CLASSIC_WIDE
        box = [left / wide, 0.6 / high, _FRAMES_WIDE / wide, _HIGH / high]
        axes = figure.add_axes(box, label="classic")
        axes.set_ylabel("address, 0 to 1" if number == 0 else "")
        _draw_frames(axes, scene, shown, _pixels(scene, shown, scale, palette), palette)
    box = [(wide - 1.5) / wide, 0.6 / high, 0.16 / wide, _HIGH / high]
    _classic_colour_bar(figure, figure.add_axes(box, label="sizes"), scale, palette)
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
    style = {"color": palette.ink, "loc": "left", "fontsize": 12}
    axes.set_title(sentence(scene.title, 60), pad=18, **style)
    ooms = {oom.state for oom in scene.ooms}
    for column, (state, _) in enumerate(frames):
        if state in ooms:
            axes.text(column + 0.5, 1.01, "OOM", color=palette.red, ha="center", fontweight="bold")


def _classic_colour_bar(figure: Any, axes: Any, scale: Any, palette: Palette) -> None:
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
