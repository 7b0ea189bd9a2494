# SPDX-License-Identifier: Apache-2.0
"""Timelines, fragmentation over time and the bill of a failure, drawn with matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import PercentFormatter

from neutracer import units
from neutracer._native import core
from neutracer.fragmentation.report import BANDS, fragmentation_report
from neutracer.oom.bill import Bill, BillTerm
from neutracer.oom.explain import ExplainReport
from neutracer.picture.draw import HATCH, Scene, block_scale, blues, draw_ooms
from neutracer.picture.extra import moment, picture, place_text
from neutracer.picture.figure import byte_axis, plain_axes, size_text, time_axis
from neutracer.render.document import Palette, Place, Severity, clean, mixed, sentence, shorten_left
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.stacks import NONE, base_name

# ---- Segments ----------------------------------------------------------------------------

_MOST_SEGMENTS = 24
_COLUMNS = 900


def unused_shares(scene: Scene) -> Any:
    """(reserved - allocated) / reserved after each event, as in `fragmentation_report`."""
    raw, *_ = core.ratios(
        scene.allocated[1:].astype(np.uint64).tobytes(),
        scene.reserved[1:].astype(np.uint64).tobytes(),
        np.asarray(scene.timeline.events.codes("action")).tobytes(),
    )
    return np.frombuffer(raw, np.float64)


def draw_fragmentation(scene: Scene, event: int | None, palette: Palette) -> Any:
    """The figure of `plot_fragmentation`."""
    if event is None:
        unused = np.where(scene.settled, scene.reserved - scene.active, -1)
        # Where nothing was ever unused, the moment with the most reserved shows that.
        if unused.max() <= 0:
            unused = np.where(scene.settled, scene.reserved, -1)
        event = int(np.argmax(unused)) - 1
    layout = scene.timeline.at(event)
    figure = picture(11.5, 7.4, palette.page)
    share = figure.add_axes([0.085, 0.60, 0.89, 0.28], label="share")
    _draw_share(scene, share, event, palette)
    axes = figure.add_axes([0.085, 0.075, 0.89, 0.39], label="segments")
    shown, count = _draw_segments(layout, axes, palette)
    when = f"event {event:,}" if event >= 0 else "the start"
    head = f"segments after {when}, by size"
    if shown < count:
        head = f"the {shown} largest of {count} segments after {when}"
    head = f"{head}: blocks are blue, holes sand" if count else f"nothing reserved after {when}"
    axes.set_title(head, loc="left", fontsize=9.5, color=palette.ink)
    title = sentence(scene.title, 80)
    figure.text(0.085, 0.985, title, color=palette.ink, size=13, weight="bold", va="top")
    state = event + 1
    unused = int(scene.reserved[state] - scene.allocated[state])
    facts = f"most unused: {size_text(unused)} of "
    facts += f"{size_text(int(scene.reserved[state]))} reserved, after {when}"
    report = fragmentation_report(scene.snapshot, device=scene.timeline.device)
    kinds = ("fragmentation", "fragmentation_peak")
    judged = (one.severity for one in report.findings if one.kind in kinds)
    worst = max(judged, default=Severity.INFO)
    if worst > Severity.INFO:
        facts += f" · {worst}"
    colour = palette.red if worst >= Severity.SERIOUS else palette.grey
    figure.text(0.085, 0.94, facts, color=colour, size=9.5, va="top")
    return figure


def _draw_share(scene: Scene, axes: Any, event: int, palette: Palette) -> None:
    """The largest share that each column has seen, over the bands."""
    plain_axes(axes, palette)
    reserved = int(scene.reserved[0])
    start = (reserved - int(scene.allocated[0])) / reserved if reserved else 0.0
    shares = np.append(start, unused_shares(scene))
    x_first, x_end = (float(scene.axis_x(v)) for v in scene.view[:2])
    columns = min(_COLUMNS, max(1, scene.view[1] - scene.view[0]))
    first, end = scene.column_states(columns)
    most = np.array([shares[a:b].max() for a, b in zip(first, end, strict=True)])
    edges = np.linspace(x_first, x_end, columns + 1)
    low = 0.0
    for high, word in (*BANDS, (1.0, "severe")):
        axes.axhline(high, color=palette.line, linewidth=0.8, zorder=1)
        axes.text(
            1.003, (low + high) / 2, word, transform=axes.get_yaxis_transform(), size=8,
            color=palette.grey, va="center",
        )  # fmt: skip
        low = high
    steps = np.append(most, most[-1:])
    axes.fill_between(edges, steps, step="post", color=palette.sand, linewidth=0, zorder=2)
    axes.step(edges, steps, where="post", color=palette.sand_ink, linewidth=1.1, zorder=3)
    axes.set_xlim(x_first, x_end)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_ylabel("reserved, unused")
    moment = float(scene.axis_x(float(scene.states[event + 1])))
    axes.axvline(moment, color=palette.ink, linewidth=0.9, linestyle=":", zorder=4)
    side = "right" if moment > (x_first + x_end) / 2 else "left"
    axes.annotate(
        "the segments below", (moment, 1.0), xytext=(-4 if side == "right" else 4, -9),
        textcoords="offset points", ha=side, size=8, color=palette.ink, zorder=5,
    )  # fmt: skip
    time_axis(axes, scene.by_time, len(scene.timeline))
    draw_ooms(scene, None, axes, palette)
    box = axes.get_position()
    axes.set_position([box.x0, box.y0, box.width - 0.055, box.height])


def _draw_segments(layout: Any, axes: Any, palette: Palette) -> tuple[int, int]:
    """Draw a bar per largest segment; return the numbers drawn and in all."""
    plain_axes(axes, palette, ("bottom",))
    segments, blocks = layout.segments, layout.blocks
    sizes = np.asarray(segments.codes("total_size")).astype(np.int64)
    order = np.argsort(-sizes, kind="stable")[:_MOST_SEGMENTS]
    starts, lengths = blocks.codes("address"), blocks.codes("size")
    states = blocks.codes("state")
    largest = max((int(n) for n, state in zip(lengths, states, strict=True) if state), default=1)
    scale = block_scale(largest)
    patches, colours = [], []
    for row, segment in enumerate(order):
        base = segments.codes("address")[segment]
        patches.append(Rectangle((0, row - 0.4), int(sizes[segment]), 0.8))
        colours.append(palette.sand)
        first = segments.codes("block_first")[segment]
        for block in range(first, first + segments.codes("block_count")[segment]):
            if states[block]:
                place = (starts[block] - base, row - 0.4)
                patches.append(Rectangle(place, lengths[block], 0.8))
                colours.append(blues(palette)(float(scale(lengths[block]))))
    axes.add_collection(
        PatchCollection(patches, facecolors=colours, edgecolors=palette.page, linewidths=0.3),
        autolim=False,
    )
    most = int(sizes.max()) if len(sizes) else 1
    axes.set_xlim(0, most)
    axes.set_ylim(max(len(order), 1) - 0.5, -0.5)
    names = [units.format_bytes(int(sizes[segment])) for segment in order]
    axes.set_yticks(range(len(order)), names, fontsize=7)
    byte_axis(axes.xaxis, most, 8)
    return len(order), len(sizes)


# ---- Stacked -----------------------------------------------------------------------------

# The picture has some 775 pixels for them at 100 an inch.
_STACK_COLUMNS = 700

_OTHERS = "all others"
_UNKNOWN = CATEGORIES[0]
_IDLE = "past its last use, or never used"

# Characters of a name for which the legend has room.
_MOST_NAME = 46


def stacked_bands(scene: Scene, by: str, top: int) -> tuple[Any, list[tuple[str, Any, Any]]]:
    """Bytes by holder in one state of each column: the one with the most allocated.

    Returns:
        The states, and (name, bytes in each of them, those of them that are past their last use
        or never used): the largest at the peak first, all others last.
    """
    columns = min(_STACK_COLUMNS, max(1, scene.view[1] - scene.view[0]))
    spans, held = zip(*scene.column_states(columns), strict=True), scene.allocated
    states = np.array([first + int(np.argmax(held[first:end])) for first, end in spans])
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
    rest = scene.allocated[states]
    row, since, until = scene.idle.T
    idle_rest = _over_states(scene, since, until, size[row])[states]
    for group in order:
        rows = lives & (groups == group)
        values = _over_states(scene, begin[rows], end[rows], size[rows])[states]
        mine = groups[row] == group
        idle = _over_states(scene, since[mine], until[mine], size[row[mine]])[states]
        rest, idle_rest = rest - values, idle_rest - idle
        bands.append((names[group], values, idle))
    if rest.any():
        bands.append((_OTHERS, rest, idle_rest))
    return states, bands


def _over_states(scene: Scene, begin: Any, end: Any, size: Any) -> Any:
    """The bytes in each state of blocks that are there from one state up to another."""
    change = np.zeros(len(scene.states) + 1, np.int64)
    np.add.at(change, begin, size)
    np.add.at(change, end, -size)
    return np.cumsum(change)


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
    for number, (name, values, idle) in enumerate(bands):
        high = low + np.append(values, values[-1:])
        # Columns are wider than pixels, so that without blurred edges none of them is lost.
        colour = _colour(by, name, number, palette)
        style = {"step": "post", "color": colour, "linewidth": 0, "antialiased": False}
        label = name.replace("_", " ") if by == "category" else name
        axes.fill_between(edges, low, high, label=label, **style)
        if idle.any():
            look = {"facecolor": "none", "edgecolor": palette.page, "linewidth": 0}
            used = high - np.append(idle, idle[-1:])
            axes.fill_between(edges, used, high, step="post", hatch=HATCH, **look)
        low = high
    if len(scene.idle):
        # What is hatched has no colour of its own: the legend shows it on grey.
        swatch = {"facecolor": palette.grey, "edgecolor": palette.page, "linewidth": 0}
        axes.add_patch(Rectangle((x_first, 0), 0, 0, hatch=HATCH, label=_IDLE, **swatch))
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
    title = sentence(scene.title, 80)
    figure.text(0.075, 0.985, title, color=palette.ink, size=13, weight="bold", va="top")
    state, nbytes = scene.peak(scene.allocated)
    facts = (
        f"peak allocated {size_text(nbytes)} {moment(state - 1)}"
        f" · peak reserved {size_text(scene.peak(scene.reserved)[1])}"
    )
    figure.text(0.075, 0.928, facts, color=palette.grey, size=9.5, va="top")
    return figure


def _colour(by: str, name: str, number: int, palette: Palette) -> str:
    """The colour of a band: greys for what has no name, and a category's own as on the page."""
    if name == _OTHERS:
        return mixed(palette.line, palette.grey)
    if name == _UNKNOWN:
        return palette.grey
    if by == "category":
        return palette.hues[CATEGORIES.index(name) - 1]
    return palette.groups[number % len(palette.groups)]


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
        text.set_text(sentence(name, _MOST_NAME))
    axes.figure.escape_texts()
    place = axes.get_position()
    share = legend.get_window_extent().width / axes.figure.bbox.width
    # 1 % of the axes between them and the legend, 1 % of the figure right of it.
    axes.set_position([place.x0, place.y0, (0.99 - place.x0 - share) / 1.01, place.height])


# ---- The bill ----------------------------------------------------------------------------


# Inches.
_WIDE, _LEFT, _RIGHT = 11.5, 3.7, 1.05
_ROW, _TOP, _BOTTOM = 0.3, 1.25, 0.95

_HIGH = 0.62  # of a row, that a bar has

# Characters of a name, and of a line of text over the whole width.
_MOST_TERM, _LINE = 48, 118

# What the request can have comes last, so that its own bar lies below that.
_LAST = {"waiting": 1, "free elsewhere": 2, "free": 3, "not reserved": 4}


def draw_bill(why: ExplainReport, title: str, palette: Palette) -> Any:
    """The figure of `plot_bill`."""
    bars = _bars(why, palette)
    head = textwrap.wrap(sentence(why.headline, 2 * _LINE), _LINE)
    high = _TOP + 0.2 * (len(head) - 1) + _ROW * len(bars) + _BOTTOM
    figure = picture(_WIDE, high, palette.page)
    box = [_LEFT / _WIDE, _BOTTOM / high, 1 - (_LEFT + _RIGHT) / _WIDE, _ROW * len(bars) / high]
    axes = figure.add_axes(box, label="bill")
    plain_axes(axes, palette, ("bottom",))
    axes.set_yticks([])
    for row, bar in enumerate(bars):
        _draw_bar(axes, row, bar, palette)
    limit = why.bill.limit_bytes
    most = max(limit + why.bill.missing_bytes, 1)
    axes.set_xlim(0, most)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.axvline(limit, color=palette.ink, linewidth=0.9, linestyle="--", zorder=1)
    byte_axis(axes.xaxis, most, 8)
    _write(figure, why, title, head, palette)
    return figure


@dataclass(frozen=True)
class _Bar:
    """One row of the waterfall. Sizes in bytes."""

    name: str
    size: int
    begin: int  # Where the bar begins.
    parts: tuple[tuple[int, str], ...]  # Sizes of its parts, with their colours.
    ink: str


def _bars(why: ExplainReport, palette: Palette) -> list[_Bar]:
    """The limit, each term from where the last one ends, the request and what it lacks."""
    bill, at = why.bill, 0
    limit, asked, lacks = bill.limit_bytes, bill.request_bytes, bill.missing_bytes
    bars = [_Bar(bill.limit_text(), limit, 0, ((limit, palette.surface),), palette.ink)]
    begins = []
    for term in sorted(bill.shown_terms(), key=lambda one: _LAST.get(one.term, 0)):
        parts = _parts(why, term, palette)
        bars.append(_Bar(_name(bill, term), term.bytes, at, parts, palette.ink))
        if term.term in ("free", "not reserved"):
            begins.append(at)
        at += term.bytes
    if asked:
        begin, fits = min(begins, default=at), (asked - lacks, palette.red_fill)
        bars.append(_Bar("the request", asked, begin, (fits,), palette.red))
    if lacks:
        bars.append(_Bar("missing", lacks, limit, ((lacks, palette.red),), palette.red))
    return bars


def _name(bill: Bill, term: BillTerm) -> str:
    """A term's words; of a line the function is cut, not the place, and who called it left out."""
    if term.place is None:
        return sentence(bill.words(term))
    where = shorten_left(clean(replace(term.place, caller="").location), _MOST_TERM)
    room = max(_MOST_TERM - len(where), 2)
    return f"{sentence(term.place.function, room)} {where}".strip()


def _parts(why: ExplainReport, term: BillTerm, palette: Palette) -> tuple[tuple[int, str], ...]:
    """The parts of a term's bar: bytes and colour."""
    elsewhere = mixed(palette.sand, palette.sand_ink, 0.35)
    free = {"free": palette.sand, "free elsewhere": elsewhere, "not reserved": palette.page}
    if term.term in free:
        return ((term.bytes, free[term.term]),)
    if not (term.stands or term.piled_up or term.this_round):
        return ((term.bytes, palette.grey),)
    if not why.bill.rounds:
        return ((term.bytes, palette.allocated[2]),)
    sizes = (term.stands, term.piled_up, term.this_round)
    return tuple(zip(sizes, part_colours(palette), strict=True))


def part_colours(palette: Palette) -> tuple[str, str, str]:
    """The blues of what stands, piled up, and came in this round."""
    return palette.allocated[2], palette.allocated[4], palette.allocated[0]


def _draw_bar(axes: Any, row: int, bar: _Bar, palette: Palette) -> None:
    at = bar.begin
    for size, colour in bar.parts:
        if size:
            place, look = (at, row - _HIGH / 2), {"facecolor": colour, "edgecolor": palette.grey}
            axes.add_patch(Rectangle(place, size, _HIGH, linewidth=0.6, **look))
        at += size
    words: dict[str, Any] = {
        "xycoords": ("axes fraction", "data"),
        "textcoords": "offset points",
        "ha": "right",
        "va": "center",
        "annotation_clip": False,
    }
    axes.annotate(bar.name, (0, row), (-6, 0), size=9, color=bar.ink, **words)
    figure = size_text(bar.size)
    axes.annotate(figure, (1, row), (_RIGHT * 72 - 12, 0), size=9, color=bar.ink, **words)


def _bill_legend(why: ExplainReport, palette: Palette) -> Iterator[Patch]:
    named = list(zip(why.bill.parts(), part_colours(palette), strict=True))
    if not why.bill.rounds:
        named = [("in use", palette.allocated[2])]
    for name, colour in (*named, ("free", palette.sand)):
        yield Patch(facecolor=colour, edgecolor=palette.grey, linewidth=0.6, label=name)


def _pieces(why: ExplainReport) -> tuple[str, ...]:
    """Why a request that lacks no bytes failed: what is free is not one piece."""
    if why.bill.missing_bytes or why.fits is not False:
        return ()
    return (f"The largest free block has {size_text(why.largest_hole_bytes)}.",)


def _write(figure: Any, why: ExplainReport, title: str, head: list[str], palette: Palette) -> None:
    """The title, the cause, the key and what the lines are compared with."""
    high = figure.get_size_inches()[1]
    left = 0.3 / _WIDE
    name, style = sentence(title, 80), {"color": palette.ink, "weight": "bold", "va": "top"}
    figure.text(left, 1 - 0.16 / high, name, size=13, **style)
    for number, line in enumerate(head):
        y = 1 - (0.5 + 0.2 * number) / high
        figure.text(left, y, line, color=palette.grey, size=9.5, va="top")
    figure.legend(
        handles=list(_bill_legend(why, palette)),
        loc="upper left",
        bbox_to_anchor=(_LEFT / _WIDE, 1 - (0.66 + 0.2 * len(head)) / high),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        labelcolor=palette.ink,
        borderaxespad=0,
        borderpad=0,
    )
    notes = " ".join((*_pieces(why), *why.bill.notes()))
    figure.text(left, 0.3 / high, notes, color=palette.grey, size=8.5, va="top")
