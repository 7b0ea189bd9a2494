# SPDX-License-Identifier: Apache-2.0
"""`drag`: bytes kept after their last use, the peak without them, and the edits that free them.

The life of a block has four moments: made, first used, last used, freed. It lags until its first
use, drags after its last, and is void if nothing uses it.
"""

from __future__ import annotations

import linecache
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice, takewhile
from operator import attrgetter, itemgetter
from typing import cast

from neutracer.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Cell,
    Document,
    Figure,
    KeyValues,
    Note,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlacedRow, PlainRow, Report, ranked
from neutracer.trace.events import device_name, shown_device
from neutracer.trace.lives import Lives, has_uses
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import Frame, base_name, is_own
from neutracer.trace.timeline import Moment, Timeline
from neutracer.trace.uses import NEVER, UNKNOWN, unseen_uses
from neutracer.units import format_bytes, format_count, format_share

# ---- Lives -------------------------------------------------------------------------------

#: The states of a block at a moment.
STATES = ("in_use", "drag", "lag", "void", "unknown")

# The core's code for a block that ends as recorded, and its codes of actions.
_AS_RECORDED = -1
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = range(3)

# The stacks that made a block, used it last and freed it (-1: it is not freed), its category, and
# whether it lives on through a whole step. One edit frees all blocks of one kind.
_Kind = tuple[int, int, int, int, bool]

_NO_USES = (
    "the snapshot has no uses: record them ('neutracer run --uses 3 PROGRAM'), or rehearse the "
    "program ('neutracer rehearse PROGRAM')"
)


class _Lives(Lives):
    """The lives of a timeline's allocations, by row, with the code that made and ended them."""

    def __init__(self, snap: Snapshot, timeline: Timeline) -> None:
        super().__init__(snap, timeline)
        self.sizes: Sequence[int] = timeline.allocations.codes("size").tolist()
        self.stacks: Sequence[int] = timeline.events.codes("stack").tolist()
        self.actions = timeline.events.codes("action")
        self._frames: dict[int, tuple[Frame, ...]] = {}

    def is_held(self, row: int) -> bool:
        """Whether a block lives on through a whole step that does not use it: no local variable of
        a step keeps it then."""
        end = self.freed[row] if self.is_freed(row) else len(self.timeline)
        return self._held_from[self.last[row]] <= end

    @cached_property
    def _held_from(self) -> list[int]:
        """By the event of a last use, the end of the next whole step."""
        found: list[int] = []
        for step in self.timeline.steps.steps:
            if step.first <= self._last_step:
                found += [step.end] * (step.first - len(found))
        never = len(self.timeline) + 1
        return found + [never] * (len(self.timeline) - len(found))

    def kinds(self, stacks: Set[int]) -> Iterator[tuple[int, _Kind]]:
        """The rows that some stacks made, each with its kind; none that the uses do not show."""
        columns = (self.made, self.first, self.last, self.freed, self.timeline.categories.codes)
        by_event, held, trace_end, count = self.stacks, self._held_from, self._end, len(self.stacks)
        for row, (made, first, last, freed, code) in enumerate(zip(*columns, strict=True)):
            if made >= 0 and first != UNKNOWN and by_event[made] in stacks:
                if 0 <= freed <= trace_end:
                    is_held = held[last] <= freed
                    yield row, (by_event[made], by_event[last], by_event[freed], code, is_held)
                elif row in self._as_before:
                    # The end of the trace keeps it: the others of its stack tell what would not.
                    like = self._as_before[row]
                    is_held = held[self.last[like]] <= self.freed[like]
                    end = by_event[self.freed[like]]
                    yield row, (by_event[made], by_event[last], end, code, is_held)
                else:
                    yield row, (by_event[made], by_event[last], -1, code, held[last] <= count)

    def alive(self, event: int) -> list[int]:
        """The rows allocated after an event."""
        lives = enumerate(zip(self.made, self.freed, strict=True))
        return [row for row, (begin, end) in lives if begin <= event and (end > event or end == -1)]

    @cached_property
    def peak_states(self) -> dict[int, str]:
        """The state of each row that is alive at the peak."""
        return self.states(self.timeline.peak("allocated").event)

    def states(self, event: int) -> dict[int, str]:
        """The state of each row that is alive after an event."""
        begun = self._operator_at(event)
        return {row: self._state(row, event, begun) for row in self.alive(event)}

    def _state(self, row: int, event: int, begun: int) -> str:
        first, last = self.first[row], self.last[row]
        if first != UNKNOWN and event <= last:
            is_lag = first > event and self.made[row] < begun
            return "lag" if is_lag else "in_use"
        if not self.is_idle(row, event):
            return "unknown"
        return "void" if first == NEVER else "drag"

    def _operator_at(self, event: int) -> int:
        """The first request of the operator that is under way at an event: what it makes is in
        use by it."""
        begun = event
        while begun > 0 and self.stacks[begun - 1] == self.stacks[event]:
            if self.actions[begun - 1] in (_FREE_REQUESTED, _FREE_COMPLETED):
                break
            begun -= 1
        return begun

    def frames(self, event: int) -> tuple[Frame, ...]:
        """The program's own frames at an event, innermost first."""
        stack = self.stacks[event]
        if stack not in self._frames:
            self._frames[stack] = tuple(f for f in self.snap.stacks[stack] if is_own(f))
        return self._frames[stack]

    def is_zero_grad(self, event: int) -> bool:
        """Whether an event's stack has the function `zero_grad`."""
        return any(frame.name == "zero_grad" for frame in self.snap.stacks[self.stacks[event]])

    @cached_property
    def requests(self) -> list[int]:
        """The events that are requests."""
        find = self.timeline.events.find
        return sorted((*find("action", "alloc"), *find("action", "oom")))

    def requests_between(self, event: int, end: int) -> Iterator[int]:
        """The requests after one event, up to another."""
        begin, end = (bisect_right(self.requests, at) for at in (event, end))
        return (self.requests[at] for at in range(begin, end))

    def runs_again(self, row: int, event: int) -> bool:
        """Whether the stack that made a block makes another one between an event and its end."""
        same = self._by_stack[self.stacks[self.made[row]]]
        at = bisect_right(same, event)
        return at < len(same) and same[at] < self.freed[row]

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The row of each event that made a block."""
        return {made: row for row, made in enumerate(self.made) if made >= 0}

    @cached_property
    def _by_stack(self) -> dict[int, list[int]]:
        """The requests of each stack."""
        found: dict[int, list[int]] = defaultdict(list)
        for event in self.requests:
            found[self.stacks[event]].append(event)
        return found

    def is_replaced(self, row: int) -> bool:
        """Whether the line that made a block ran again in the step in which the block was freed: a
        variable that is bound again."""
        same = self._by_stack[self.stacks[self.made[row]]]
        at = bisect_right(same, self.made[row])
        if at == len(same) or not self.is_freed(row) or same[at] > self.freed[row]:
            return False
        steps = self.timeline.steps.steps
        number = bisect_right(steps, same[at], key=attrgetter("first")) - 1
        return number < 0 or self.freed[row] <= steps[number].end

    def in_backward(self, event: int) -> bool:
        """Whether an event is of a backward pass."""
        passes = self.timeline.passes.backward
        at = bisect_right(passes, event, key=itemgetter(0)) - 1
        return at >= 0 and event < passes[at][1]

    def ends(self, rows: Iterable[int]) -> array[int]:
        """By event, the event after which its block is freed: of some rows the last use."""
        ends = array("i", [_AS_RECORDED]) * len(self.timeline)
        for row in rows:
            if self._ends[row] != _AS_RECORDED:
                ends[self.made[row]] = self._ends[row]
        return ends

    def peak_without(self, rows: Iterable[int] | None = None) -> int:
        """The peak of allocated if all blocks, or these, end at their last use."""
        if rows is None:
            return self.timeline.native.peak_if_freed(self._ends)
        ends = array("i", [_AS_RECORDED]) * len(self)
        for row in rows:
            ends[row] = self._ends[row]
        return self.timeline.native.peak_if_freed(ends)

    @cached_property
    def _ends(self) -> array[int]:
        """By row, the last use where it is known."""
        columns = zip(self.made, self.last, self.freed, strict=True)
        # What nothing uses may be freed before its operator has ended.
        ends = (
            last if made >= 0 and not -1 < freed <= last and self.is_known(row) else _AS_RECORDED
            for row, (made, last, freed) in enumerate(columns)
        )
        return array("i", ends)


# ---- Edits -------------------------------------------------------------------------------

_AUTOGRAD = "none: autograd frees it when the node of the backward pass that uses it ends"
_HELD = (
    "release what holds it through whole steps, or keep a copy on the CPU; neutracer.why_alive() "
    "names the holder"
)

# Fewer events than these are between two frees of one thing.
_BETWEEN_FREES = 4

# Requests behind a last use that tell which function is not over.
_MOST_BETWEEN = 2000

_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*=[^=]")


@dataclass(frozen=True)
class _Edit:
    kind: str
    text: str


def _line(frame: Frame) -> str:
    return f"{base_name(frame.filename)}:{frame.line}"


class _SavedForNothing:
    """The line of a forward pass whose intermediate results no backward pass used, by row.

    Such a pass makes several blocks that nothing uses after it, and that go all at once: with the
    graph that saved them. Without a graph each would have gone within the pass.
    """

    def __init__(self, lives: _Lives) -> None:
        self._lives = lives
        rows = {freed: row for row, freed in enumerate(lives.freed) if freed >= 0}
        self._frees = [event for event in sorted(rows) if lives.is_freed(rows[event])]
        self._rows = [rows[event] for event in self._frees]
        self._found: dict[int, Frame | None] = {}

    def line(self, row: int) -> Frame | None:
        """The line that made a block which no backward pass used; None for others."""
        if row not in self._found:
            rows = self._together(row)
            self._found.update(dict.fromkeys(rows))
            self._found.update(self._lines(rows))
        return self._found[row]

    def _lines(self, rows: list[int]) -> dict[int, Frame]:
        found: dict[int, Frame] = {}
        lives = self._lives
        calls: dict[Frame, list[int]] = defaultdict(list)
        kept = [row for row in rows if _is_inner(lives, row)]
        used = max((lives.last[row] for row in kept), default=0)
        for row in kept:
            call = _call_of(lives, row, used)
            if call is not None and call in lives.frames(lives.last[row]):
                calls[call].append(row)
        for call, inner in calls.items():
            if len(inner) > 1 and _is_past(lives, call, inner):
                found.update(dict.fromkeys(inner, call))
        return found

    def _together(self, row: int) -> list[int]:
        """The rows that one thing kept: freed one after the other from one place."""
        if not self._lives.is_freed(row):
            return [row]
        at = bisect_left(self._frees, self._lives.freed[row])
        begin, end = at, at + 1
        while begin > 0 and self._follows(begin):
            begin -= 1
        while end < len(self._frees) and self._follows(end):
            end += 1
        return self._rows[begin:end]

    def _follows(self, at: int) -> bool:
        """Whether a free comes with the one before it. Between the requests of two frees the first
        is completed, and may leave a segment empty."""
        before, event = self._frees[at - 1 : at + 1]
        between = self._lives.actions[before + 1 : event]
        return (
            len(between) < _BETWEEN_FREES
            and not {_ALLOC, _FREE_REQUESTED}.intersection(between)
            and self._lives.stacks[event] == self._lives.stacks[before]
        )


def _call_of(lives: _Lives, row: int, used: int) -> Frame | None:
    """The line that made a block, of the function that held it until it was freed."""
    made = lives.frames(lives.made[row])[::-1]
    for holder in lives.frames(lives.freed[row])[:1]:
        same = [at for at, f in enumerate(made) if (f.filename, f.name) == holder[::2]]
        if same and made[same[-1]] != holder:
            return made[same[-1]]
        # The line ran again and its new result replaced the old one, or a function returned to it.
        if same and (lives.runs_again(row, used) or same[-1] + 1 == len(made)):
            return holder
        if same:
            return made[same[-1] + 1]
    return None


def _is_inner(lives: _Lives, row: int) -> bool:
    """Whether a block was used, and outlived its last use."""
    is_used = lives.first[row] >= 0 and lives.made[row] >= 0
    return is_used and lives.is_known(row) and lives.last[row] < lives.freed[row]


def _is_past(lives: _Lives, call: Frame, inner: list[int]) -> bool:
    """Whether some blocks have all their uses in one call of a line, stay behind it, and no
    backward pass uses anything that the call makes, but for its result: as a target, say."""
    begin, end = min(lives.made[row] for row in inner), max(lives.last[row] for row in inner)
    freed = lives.freed[inner[0]]
    if any(call not in lives.frames(event) for event in lives.requests_between(begin - 1, end)):
        return False
    if call in lives.snap.stacks[lives.stacks[freed]][1:] or lives.in_backward(freed):
        return False
    events = lives.requests_between(begin - 1, end)
    *made, _ = (lives.row_of[event] for event in events if event in lives.row_of)
    return not any(lives.in_backward(lives.last[row]) for row in made)


def _edit(lives: _Lives, row: int, category: str, saved: _SavedForNothing) -> _Edit:
    """The smallest edit that would free a block at its last use, as far as frames tell."""
    freed = lives.freed[row]
    if category != "gradient" and (lives.in_backward(freed) or lives.in_backward(lives.made[row])):
        return _Edit("", _AUTOGRAD)
    if lives.is_held(row) and not lives.is_replaced(row):
        return _Edit("release", _HELD)
    call = saved.line(row)
    if call is not None:
        text = f"put torch.no_grad() around {_line(call)}: no backward pass uses its graph"
        return _Edit("no_grad", text)
    if lives.is_freed(row) and (category == "gradient" or lives.is_zero_grad(freed)):
        return _Edit("zero_grad", "call optimizer.zero_grad() right after optimizer.step()")
    made = _bound_at(lives, row)
    if made is None:
        return _Edit("", "")
    name = _NAME.match(linecache.getline(made.filename, made.line))
    what = f"run `del {name[1]}`" if name else f"drop what {_line(made)} makes"
    after = _next_line(lives, row, made)
    if after is None and lives.is_freed(row) and _is_inside(lives, row, made):
        return _Edit("", f"none: the expression at {_line(made)} holds it until it ends")
    if after is None:
        return _Edit("del", f"{what} after its last use, or end its scope there")
    if after == made:
        return _Edit("del", f"{what} before {_line(after)} runs again")
    return _Edit("del", f"{what} before {_line(after)} makes its next tensor")


def _bound_at(lives: _Lives, row: int) -> Frame | None:
    """The line that made a block, of the innermost function that is not over while it drags: what
    a function returned is held by its caller."""
    made = lives.frames(lives.made[row])
    end = lives.freed[row] if lives.is_freed(row) else len(lives.stacks)
    running = {(frame.filename, frame.name) for frame in made}
    for event in islice(lives.requests_between(lives.last[row], end - 1), _MOST_BETWEEN):
        own = {(frame.filename, frame.name) for frame in lives.frames(event)}
        # Autograd's threads have no frames.
        running &= own or running
    held = (frame for frame in made if (frame.filename, frame.name) in running)
    return next(held, next(iter(made), None))


def _is_inside(lives: _Lives, row: int, line: Frame) -> bool:
    """Whether a block goes before the line that made it has ended."""
    return line in lives.frames(lives.freed[row]) and not lives.runs_again(row, lives.made[row])


def _next_line(lives: _Lives, row: int, made: Frame) -> Frame | None:
    """The line of the function that made a block at which the next memory is requested after the
    block's last use."""
    used = _within(lives, lives.last[row], made)
    end = lives.freed[row] if lives.is_freed(row) else len(lives.stacks)
    for event in lives.requests_between(lives.last[row], end - 1):
        frame = _within(lives, event, made)
        if frame is None:
            return None
        if frame != used:
            return frame
    return None


def _within(lives: _Lives, event: int, made: Frame) -> Frame | None:
    """The frame of a function at an event."""
    frames = lives.frames(event)
    same = (f for f in frames if f.filename == made.filename and f.name == made.name)
    return next(same, None)


# ---- Report ------------------------------------------------------------------------------

# Lines whose peak is replayed, those with the most bytes in drag or void.
_MOST_REPLAYS = 20

# Lines of a finding, those with the most bytes.
_PLACES = 3

# Lines of the page, and the least share of the peak that they have; the JSON has all.
_SHOWN, _SMALL = 10, 0.001

# Above these shares of the peak, what an edit would save is a finding, and a serious one; lines
# that are fewer bytes than the third are not added up.
_LEAST, _SERIOUS, _PART = 0.05, 0.25, 0.01


@dataclass(frozen=True)
class DragMoment(PlainRow):
    """The allocated bytes at one moment by the uses before and after it.

    Attributes:
        name: "peak" or "failure".
        event: The event, counted within the device's trace.
        allocated_bytes: All allocated bytes.
        in_use_bytes: Used before, or being made, and used again.
        drag_bytes: Used for the last time before.
        lag_bytes: Used for the first time later.
        void_bytes: Never used.
        unknown_bytes: Kept by libraries, in use where the dispatcher does not see it, from before
            the trace, or alive at its end without a whole step in between.
    """

    name: str
    event: int
    allocated_bytes: int
    in_use_bytes: int
    drag_bytes: int
    lag_bytes: int
    void_bytes: int
    unknown_bytes: int


@dataclass(frozen=True)
class DragLine(PlacedRow):
    """The blocks of one line at the peak.

    Attributes:
        function, filename, line, package, caller: The place, as `Place` has it.
        category: The category with the most of its bytes, as `Timeline.categories` has them.
        drag_bytes: Bytes past their last use.
        lag_bytes: Bytes whose first use comes later.
        void_bytes: Bytes that nothing uses.
        count: The number of blocks in drag or void.
        peak_bytes: The peak of allocated if each block of the line were freed at its last use;
            None if it was not replayed.
        saved_bytes: By how much that lowers the peak.
        edit: A stable word for the edit: "no_grad", "zero_grad", "release", "del", or "" if
            frames show none.
        advice: The edit, or why there is none.
    """

    function: str
    filename: str
    line: int
    package: str
    caller: str
    category: str
    drag_bytes: int
    lag_bytes: int
    void_bytes: int
    count: int
    peak_bytes: int | None
    saved_bytes: int
    edit: str
    advice: str

    @property
    def idle_bytes(self) -> int:
        """Bytes in drag or void: those that freeing at the last use would free."""
        return self.drag_bytes + self.void_bytes


@dataclass(frozen=True, kw_only=True, repr=False)
class DragReport(Report):
    """Memory that is kept after its last use.

    Attributes:
        device: The device; -1 is the CPU.
        peak_allocated_bytes: The recorded peak of allocated.
        least_peak_bytes: The peak if each block were freed at its last use: no program that makes
            the same tensors in the same order has a lower one.
        moments: The peak, and the first failure if there is one, by state.
        lines: The lines with bytes in drag, lag or void at the peak, most savings first.
        unseen: What took memory where no use of it shows, as clauses: it is unknown.
    """

    schema = "neutracer.drag/1"

    device: int
    peak_allocated_bytes: int
    least_peak_bytes: int
    moments: tuple[DragMoment, ...]
    lines: tuple[DragLine, ...]
    unseen: tuple[str, ...] = ()

    def document(self) -> Document:
        """The report as a page."""
        peak, freed = format_bytes(self.peak_allocated_bytes), format_bytes(self.least_peak_bytes)
        facts = (device_name(self.device), f"peak {peak}, {freed} if freed at the last use")
        blocks: list[Block] = [*self.finding_blocks(), self._states()]
        least = self.peak_allocated_bytes * _SMALL
        large = [one for one in self.lines if one.idle_bytes + one.lag_bytes >= least][:_SHOWN]
        rows = tuple(
            (
                Figure.bytes(one.drag_bytes),
                Figure.bytes(one.void_bytes),
                Figure.bytes(one.lag_bytes),
                Figure.bytes(one.saved_bytes),
                one.edit,
                one.category,
                one.place,
            )
            for one in large
        )
        left = len(self.lines) - len(rows)
        notes = (f"and {format_count(left, 'smaller line')}",) if left else ()
        if rows:
            heads = ("drag", "void", "lag", "saves", "edit", "", "")
            blocks.append(Table("Lines at the peak", rows, heads, notes))
        if self.unseen:
            blocks.append(KeyValues("Not known", tuple(("used by", one) for one in self.unseen)))
        return Document("Drag", facts, tuple(blocks))

    def _states(self) -> Table:
        words = ("used later", "last use is past", "first use is to come", "never used", "")
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (state.replace("_", " "), *self._amounts(state), meaning)
            for state, meaning in zip(STATES, words, strict=True)
        )
        heads = ("", *(one.name for one in self.moments), "")
        return Table("Allocated", rows, heads)

    def _amounts(self, state: str) -> tuple[Figure, ...]:
        return tuple(Figure.bytes(getattr(one, f"{state}_bytes")) for one in self.moments)


def drag(source: Snapshot | SnapshotSource, device: int | None = None) -> DragReport:
    """Find memory that is kept after its last use, and what freeing it there would give.

    Args:
        source: A Snapshot with uses, as `rehearse` gives it, or what `load` takes.
        device: The device; None is the only one.

    Returns:
        The report; `.lines` are the lines with such memory at the peak, most savings first.

    Raises:
        ValueError: The snapshot has no uses.

    Example:
        >>> import torch, neutracer
        >>> def step():
        ...     out = torch.zeros(1 << 20, device="cuda")
        ...     mean = out.mean()
        ...     return torch.zeros(1 << 22, device="cuda")
        >>> snap = neutracer.rehearse(step, steps=2)  # doctest: +SKIP
        >>> report = neutracer.drag(snap)  # doctest: +SKIP
        >>> report.lines[0].drag_bytes, report.lines[0].advice  # doctest: +SKIP
        (4194304, 'del out before step.py:4 makes its next tensor')
    """
    snap = opened(source)
    number = snap.device(device)
    timeline = snap.timeline(number)
    unseen = unseen_uses(snap.settings)
    if not has_uses(timeline):
        raise ValueError("; ".join((_NO_USES, *unseen)))
    lives = _Lives(snap, timeline)
    peak, found = timeline.peak("allocated"), _lines(lives)
    return DragReport(
        device=shown_device(snap, number),
        peak_allocated_bytes=peak.bytes,
        least_peak_bytes=lives.peak_without(),
        moments=tuple(_moments(lives)),
        lines=tuple(line for line, _ in found),
        unseen=unseen,
        findings=(*first_findings(snap, device=number), *_findings(lives, found)),
    )


def drag_findings(snap: Snapshot, timeline: Timeline) -> tuple[Finding, ...]:
    """The findings of `drag` on one device; none of a snapshot without uses."""
    if not has_uses(timeline):
        return ()
    lives = _Lives(snap, timeline)
    return _findings(lives, _lines(lives, timeline.peak("allocated").bytes * _PART))


def _moments(lives: _Lives) -> Iterator[DragMoment]:
    yield _moment(lives, "peak", lives.timeline.peak("allocated").event, lives.peak_states)
    for event in lives.timeline.events.find("action", "oom")[:1]:
        yield _moment(lives, "failure", event, lives.states(event))


def _moment(lives: _Lives, name: str, event: int, states: dict[int, str]) -> DragMoment:
    sums = dict.fromkeys(STATES, 0)
    for row, state in states.items():
        sums[state] += lives.sizes[row]
    return DragMoment(name, event, sum(sums.values()), *sums.values())


def freed_at_last_use(snap: Snapshot, timeline: Timeline) -> Iterator[tuple[DragLine, array[int]]]:
    """The lines of which an edit frees blocks at the peak earlier, most bytes first, each with the
    event after which its block is freed, by event of the trace, as `Program.edit` takes them.

    Args:
        snap: The snapshot; without uses there are none.
        timeline: Of one device.
    """
    if not has_uses(timeline) or snap.is_cpu:
        return
    lives = _Lives(snap, timeline)
    for line, rows in _idle(lives):
        if line.edit and line.idle_bytes:
            yield line, lives.ends(rows)


# A line, and the rows of all blocks that its edit frees.
_Idle = tuple[DragLine, list[int]]


def _lines(lives: _Lives, least: float = 0) -> list[_Idle]:
    """The lines with blocks in drag, lag or void at the peak, most savings first; those alone that
    may save some bytes."""
    peak = lives.timeline.peak("allocated").bytes
    lines: list[_Idle] = []
    for line, rows in _idle(lives, least):
        saves = len(lines) < _MOST_REPLAYS and line.idle_bytes > 0
        left = lives.peak_without(rows) if saves else None
        saved = 0 if left is None else peak - left
        lines.append((replace(line, peak_bytes=left, saved_bytes=saved), rows))
    return sorted(lines, key=lambda one: (-one[0].saved_bytes, -one[0].idle_bytes))


def _idle(lives: _Lives, least: float = 0) -> Iterator[_Idle]:
    """The lines with blocks in drag, lag or void at the peak, most bytes first, and all rows of
    each; of one line the blocks that one edit frees, if they are some bytes."""
    states = lives.peak_states
    there = [row for row, state in states.items() if state in ("drag", "lag", "void")]
    places, sums = lives.timeline.allocations.codes("place"), Counter[int]()
    for row in there:
        sums[places[row]] += lives.sizes[row]
    stacks = {
        stack
        for stack, place in zip(lives.timeline.allocations.codes("stack"), places, strict=True)
        if place in sums and sums[place] >= least
    }
    rows: dict[_Kind, list[int]] = defaultdict(list)
    for row, kind in lives.kinds(stacks):
        rows[kind].append(row)
    groups: dict[tuple[int, _Edit], list[int]] = defaultdict(list)
    saved, at_peak = _SavedForNothing(lives), set(there)
    for kind, alike in rows.items():
        shown = [row for row in alike if row in at_peak and lives.is_freed(row)]
        typical = next(iter(shown or filter(lives.is_freed, alike)), alike[0])
        groups[places[typical], _edit(lives, typical, CATEGORIES[kind[3]], saved)] += alike
    found = []
    for (_, edit), group in groups.items():
        idle = [row for row in group if row in at_peak]
        if idle:
            found.append((_drag_line(lives, idle, states, edit), group))
    found.sort(key=lambda one: -one[0].idle_bytes)
    return takewhile(lambda one: one[0].idle_bytes >= least, found)


def _drag_line(lives: _Lives, rows: list[int], states: dict[int, str], edit: _Edit) -> DragLine:
    sums = dict.fromkeys(STATES, 0)
    categories = Counter[str]()
    names = cast("list[str]", lives.timeline.allocations["category"])
    for row in rows:
        sums[states[row]] += lives.sizes[row]
        categories[names[row]] += lives.sizes[row]
    place = lives.timeline.places[lives.timeline.allocations.codes("stack")[rows[0]]]
    return DragLine(
        **asdict(place),
        category=categories.most_common(1)[0][0],
        drag_bytes=sums["drag"],
        lag_bytes=sums["lag"],
        void_bytes=sums["void"],
        count=sum(states[row] != "lag" for row in rows),
        peak_bytes=None,
        saved_bytes=0,
        edit=edit.kind,
        advice=edit.text,
    )


def _findings(lives: _Lives, found: Iterable[_Idle]) -> tuple[Finding, ...]:
    """The edits that are worth it; the other lines are in the table."""
    peak = lives.timeline.peak("allocated")
    edits: dict[object, list[_Idle]] = defaultdict(list)
    for line, rows in found:
        if line.edit:
            # What holds the blocks of two lines through whole steps need not be one thing.
            edits[line.place if line.edit == "release" else line.advice].append((line, rows))
    findings = []
    for group in edits.values():
        lines = [line for line, _ in group]
        saved = lines[0].saved_bytes
        if len(group) > 1 and sum(line.idle_bytes for line in lines) > peak.bytes * _LEAST:
            saved = peak.bytes - lives.peak_without(chain.from_iterable(rows for _, rows in group))
        if saved > peak.bytes * _LEAST:
            findings.append(_finding(lines, saved, peak))
    return ranked(findings)


def _finding(lines: list[DragLine], saved: int, peak: Moment) -> Finding:
    """What is kept past its last use, and what an edit that frees it there would give."""
    share = saved / peak.bytes
    drags = sum(line.drag_bytes for line in lines) >= sum(line.void_bytes for line in lines)
    kept = "kept past the last use" if drags else "never used"
    falls = f"{format_bytes(saved)} ({format_share(share)})"
    idle, count = sum(line.idle_bytes for line in lines), sum(line.count for line in lines)
    largest = sorted(lines, key=lambda line: -line.idle_bytes)[:_PLACES]
    return Finding(
        "drag",
        Severity.SERIOUS if share >= _SERIOUS else Severity.MODERATE,
        idle,
        f"{format_bytes(idle)} in {format_count(count, 'block')} {kept}",
        (
            *(Note("made at", line.place) for line in largest),
            Note(
                f"Freed at the last use, the peak falls by {falls} to "
                f"{format_bytes(peak.bytes - saved)}."
            ),
        ),
        (Note(f"{lines[0].advice[:1].upper()}{lines[0].advice[1:]}."),),
        peak.event,
    )
