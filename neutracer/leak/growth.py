# SPDX-License-Identifier: Apache-2.0
"""Blocks that outlive their steps, by line: the evidence behind a trend's verdict."""

from __future__ import annotations

import linecache
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from neutracer.leak.series import Observed, Trend
from neutracer.render.document import Place
from neutracer.render.report import PlainRow
from neutracer.trace.events import cache_emptier
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame, place_of
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

# ---- Growth ------------------------------------------------------------------------------

# Whose memory it is that grows: the stacks of what survives step after step.

# A stack grows if it leaves something in so many steps at least, and at least once in so
# many steps: weights are made in one step, and an optimizer's state in one or two.
_FEWEST_STEPS = 3
_RAREST = 20


@dataclass(frozen=True)
class Growth(PlainRow):
    """What one stack leaves behind, step after step.

    Attributes:
        place: The line of the program.
        stack: The frames, innermost first; empty where none were recorded.
        category: What the blocks are for, as far as the trace shows it.
        bytes: All that it left, and still holds, or held at the fall.
        count: In how many blocks.
        steps: In how many steps it left something.
        bytes_per_step: The mean over all steps that were looked at.
        share: Of what all stacks left.
        holders: What keeps some of it alive in this process, as `why_alive` says; empty
            where that was not asked.
    """

    place: Place
    stack: tuple[Frame, ...]
    category: str
    bytes: int
    count: int
    steps: int
    bytes_per_step: float
    share: float
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survivors:
    """The blocks behind a growth.

    Attributes:
        growth: By stack, the most bytes first.
        addresses: (address, size) of those that live at the end of the trace, the newest
            of each stack first, in the order of `growth`.
        freed: The lines that freed what fell, with bytes; empty where nothing fell.
        has_graph: Some of the tensors were looked at, and one has an autograd graph.
    """

    growth: tuple[Growth, ...] = ()
    addresses: tuple[tuple[tuple[int, int], ...], ...] = ()
    freed: tuple[tuple[Place, int], ...] = ()
    has_graph: bool = False

    @property
    def shows_graph(self) -> bool:
        """Whether the blocks show that a graph is kept: its tensors do, or what several
        operations of a module's call made, of which a program holds the last only."""
        inside = sum(role_of(grown.stack) is Role.MODULE for grown in self.growth)
        return self.has_graph or inside > 1


def growth_of(seen: Observed, warmup: int, *, fell: bool) -> Survivors:
    """What a trace's blocks say: those that outlive the step after their own.

    Args:
        seen: With its trace.
        warmup: Steps that are set aside.
        fell: Whether the series is a saw-tooth: then what was freed later counts too.
    """
    timeline = seen.timeline
    if timeline is None:
        return Survivors()
    trace = _Trace(seen, timeline, warmup)
    groups = trace.outliving(fell=fell)
    fallen = sorted(row for found in groups.values() for _, row in found)
    last = trace.last
    kept = [one for one in groups.values() if _recurs({step for step, _ in one}, warmup, last)]
    total = sum(trace.sizes[row] for found in kept for _, row in found)
    found = [(trace.growth(items, total), trace.alive(items)) for items in kept]
    found.sort(key=lambda one: -one[0].bytes)
    return Survivors(
        tuple(grown for grown, _ in found),
        tuple(alive for _, alive in found),
        _lines(timeline.events, [trace.freed[row] for row in fallen if trace.freed[row] != -1]),
    )


def fallen(seen: Observed, warmup: int) -> list[int]:
    """The events that freed what had outlived the step after its own."""
    if seen.timeline is None:
        return []
    trace = _Trace(seen, seen.timeline, warmup)
    groups = trace.outliving(fell=True)
    return [
        trace.freed[row] for found in groups.values() for _, row in found if trace.freed[row] != -1
    ]


class _Trace:
    """The allocations of a trace, and the steps that they were made in."""

    def __init__(self, seen: Observed, timeline: Timeline, warmup: int) -> None:
        self.timeline, self.starts, self.warmup = timeline, seen.starts, warmup
        self.last = len(seen.starts) - 2
        self.rows = timeline.allocations
        self.sizes = self.rows.codes("size")
        self.freed = _frees(timeline)
        # What goes with the last step or behind it, as all does where a program ends, was
        # kept as long as there were steps.
        end = seen.starts[max(self.last, 0)]
        end = end if seen.failed is None else min(end, seen.failed)
        self.ended = [-1 if event >= end else event for event in self.freed]

    def outliving(self, *, fell: bool) -> dict[int, list[tuple[int, int]]]:
        """(step, row) of what outlives the step after its own, by stack; no state's."""
        stacks, roles = self.rows.codes("stack"), dict[int, Role]()
        groups: dict[int, list[tuple[int, int]]] = {}
        begin, end = self.starts[min(self.warmup, self.last)], self.starts[self.last]
        for row, event in enumerate(self.rows.codes("alloc_event")):
            freed = self.ended[row]
            if not begin <= event < end or (freed != -1 and not fell):
                continue
            step = bisect_right(self.starts, event) - 1
            if freed != -1 and freed < self.starts[min(step + 2, self.last)]:
                continue
            if stacks[row] not in roles:
                roles[stacks[row]] = role_of(self.rows[row].stack)
            if roles[stacks[row]] is not Role.STATE:
                groups.setdefault(stacks[row], []).append((step, row))
        return groups

    def growth(self, items: Sequence[tuple[int, int]], total: int) -> Growth:
        """What one stack left, of `total` bytes that all left."""
        nbytes = sum(self.sizes[row] for _, row in items)
        names = Counter[str]()
        for _, row in items:
            names[self.timeline.categories.name(row)] += self.sizes[row]
        stack = self.rows[items[0][1]].stack
        return Growth(
            place=place_of(stack),
            stack=stack,
            category=names.most_common(1)[0][0],
            bytes=nbytes,
            count=len(items),
            steps=len({step for step, _ in items}),
            bytes_per_step=nbytes / max(self.last - self.warmup, 1),
            share=nbytes / total if total else 0.0,
        )

    def alive(self, items: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """(address, size) of those of a stack that nobody freed, the newest first."""
        addresses = self.rows.codes("address")
        newest = (row for _, row in reversed(items) if self.freed[row] == -1)
        return tuple((addresses[row], self.sizes[row]) for row in newest)


def _frees(timeline: Timeline) -> list[int]:
    """The event that freed each allocation; -1 where none did.

    What the segments lack at the end, as all is where a file lists none, ends with the last event
    (`nt_timeline.h`), which is of another block.
    """
    found, last = list(timeline.allocations.codes("free_event")), len(timeline.events) - 1
    event = timeline.events[last] if last >= 0 else None
    address = event.addr if event is not None and event.action.startswith("free") else None
    addresses, row = timeline.allocations.codes("address"), -1
    for _ in range(found.count(last)):
        row = found.index(last, row + 1)
        if addresses[row] != address:
            found[row] = -1
    return found


def _recurs(steps: set[int], warmup: int, last: int) -> bool:
    """Whether something is left step after step, to the end."""
    looked = max(last - warmup, 1)
    if len(steps) < max(_FEWEST_STEPS, looked / _RAREST):
        return False
    middle = (warmup + last) / 2
    return min(steps) < middle <= max(steps)


def _lines(events: object, freed: Sequence[int]) -> tuple[tuple[Place, int], ...]:
    """The lines that freed, with how many blocks."""
    counts = Counter(place_of(events[event].stack) for event in freed)  # type: ignore[index]
    return tuple(counts.most_common())


def snapshot_growth(
    shots: Sequence[Snapshot], device: int | None, warmup: int
) -> tuple[Growth, ...]:
    """Growth by stack over a sequence of snapshots, from the first after the warm-up on.

    A stack counts if it holds more from one snapshot to the next in half of the cases at
    least, and less in none.
    """
    series = [_held(shot, shot.device(device)) for shot in shots[warmup:]]
    if len(series) < 2:
        return ()
    grown = []
    for stack in series[-1]:
        held = [one.get(stack, (0, 0)) for one in series]
        rises = [b[0] - a[0] for a, b in pairwise(held)]
        up = sum(rise > 0 for rise in rises)
        if 2 * up >= len(rises) and min(rises) >= 0 and up >= min(2, len(rises)):
            nbytes, count = held[-1][0] - held[0][0], held[-1][1] - held[0][1]
            grown.append((stack, nbytes, count, up, nbytes / len(rises)))
    total = sum(nbytes for _, nbytes, *_ in grown)
    found = [
        Growth(place_of(stack), stack, "unknown", nbytes, count, up, rate, nbytes / total)
        for stack, nbytes, count, up, rate in grown
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _held(shot: Snapshot, device: int) -> dict[tuple[Frame, ...], tuple[int, int]]:
    """Allocated bytes and blocks by stack."""
    sums: dict[tuple[Frame, ...], tuple[int, int]] = {}
    for frames, nbytes in allocated_blocks(shot, device):
        held, count = sums.get(frames, (0, 0))
        sums[frames] = (held + nbytes, count + 1)
    return sums


def allocated_blocks(shot: Snapshot, device: int) -> Iterable[tuple[tuple[Frame, ...], int]]:
    """The stack and size of each allocated block of a device."""
    devices = shot.segments.codes("device")
    blocks = shot.blocks
    columns = zip(
        blocks.codes("segment"),
        blocks["state"],
        blocks.codes("stack"),
        blocks.codes("size"),
        strict=True,
    )
    for segment, state, stack, size in columns:
        if state == "active_allocated" and devices[segment] == device:
            yield shot.stacks[stack], size


# ---- Emptied -----------------------------------------------------------------------------

# Whether a program empties something of its own, or the collector finds garbage.

# So much of what fell must have been freed at one line.
_AT_ONE_LINE = 0.9

# What calls the collector.
_COLLECTS = re.compile(r"\bcollect\s*\(")


def emptied_at(seen: Observed, trend: Trend) -> Place | None:
    """The line at which the program lets go of what had piled up; None where a collection
    does, or may.

    Python's collector runs where objects are made, in lines that do other things most of
    the time. A line that frees only when memory falls is the program's own doing: it empties
    something, or calls the collector, as its text says. Without the text nothing is said.
    """
    timeline = seen.timeline
    if timeline is None:
        return None
    stacks = timeline.events.codes("stack")
    freed = Counter[int](stacks[event] for event in fallen(seen, trend.warmup))
    if not freed:
        return None
    code, count = freed.most_common(1)[0]
    if count < _AT_ONE_LINE * freed.total() or _does_more(timeline, code):
        return None
    stack = timeline.events[list(stacks).index(code)].stack
    text = _text(stack)
    return None if not text or _COLLECTS.search(text) else place_of(stack)


def _does_more(timeline: Timeline, code: int) -> bool:
    """Whether a stack allocates, too."""
    stacks = timeline.events.codes("stack")
    actions = cast("list[str]", timeline.events["action"])
    pairs = zip(stacks, actions, strict=True)
    return any(stack == code and action == "alloc" for stack, action in pairs)


def _text(stack: Sequence[Frame]) -> str:
    """The source of the innermost frame's line, if this machine has it."""
    if not stack:
        return ""
    frame = stack[0]
    return linecache.getline(frame.filename, frame.line).strip()


# ---- Verdict -----------------------------------------------------------------------------

# From the trends of several series to one verdict, and to when the memory is full.

#: What `leak_trend` can say, with what it means.
VERDICTS = {
    "leak": "live memory grows step after step",
    "growing": "live memory rises step after step",
    "cycle_garbage": "live memory grows until something lets go of it all at once",
    "non_torch_growth": "memory on the device that is not PyTorch's grows",
    "fragmentation_growth": "live blocks split up ever more free memory",
    "cache_growth": "the cache grows while live memory does not",
    "steady": "nothing grows",
    "unknown": "no verdict is possible",
}

#: How long a program may run, by what a step is: nobody says when it ends.
RUN = {"step": 100_000, "window": 1_000, "snapshot": 1_000}

# Growth below this share of what is held is too little to matter: of live bytes by the end of
# such a run, of the series besides over all steps seen.
_MATERIAL = 0.002

# Falls of this share of the growth together give it back.
_GIVEN_BACK = 0.5

# A saw-tooth that stands so many of its falls above its median no longer falls as it did.
_PILED = 1.5

# So much of a cache's growth in freed blocks that wait for a stream is what grows.
_WAITING = 0.5

# With fewer steps after the warm-up nothing can be said.
_FEWEST = 3
# With fewer no growth can be proved, and of windows, which are no steps, not its absence.
_PROVABLE = 8


@dataclass(frozen=True)
class Verdict:
    """What a program's memory does, and the trend that shows it."""

    kind: str
    trend: Trend
    because: str


@dataclass(frozen=True)
class Forecast:
    """When the memory is full, at this rate.

    Attributes:
        step: The step, counted as the series is; None: never, or no capacity is known.
        between: The first and the last step that the interval of the growth allows; the
            last is None where that may be never.
        in_us: Microseconds from the last step on; None where a step's length is unknown.
    """

    step: int | None
    between: tuple[int, int | None] | None
    in_us: float | None


def judge(seen: Observed) -> Verdict:
    """The first of the verdicts that the series bear out."""
    live = seen.live
    if live.is_sawtooth:
        if _leaks(seen):
            return _grows(seen, "The level after each fall grows.")
        return _falls_back(seen)
    if _leaks(seen):
        if live.is_levelling:
            return Verdict("unknown", live, "It grew ever more slowly and may level off.")
        return _grows(seen, "The lowest level of each step grows.")
    return _besides(seen) or _not_growing(live, seen)


def _grows(seen: Observed, because: str) -> Verdict:
    """The verdict on live bytes that grow: a leak only where blocks can bear it out."""
    if seen.has_blocks:
        return Verdict("leak", seen.live, because)
    text = f"{because} Numbers alone cannot tell a random walk from slow growth."
    return Verdict("growing", seen.live, text)


def _falls_back(seen: Observed) -> Verdict:
    """The verdict on a saw-tooth: whose the falls are, only a trace's lines can say."""
    live = seen.live
    if seen.timeline is not None:
        text = "It rose step after step and fell back to where it was."
        return Verdict("cycle_garbage", live, text)
    falls = f"{format_count(live.teeth, 'fall')}, by {format_bytes(round(live.tooth))}"
    if live.last > live.level + _PILED * live.tooth:
        text = (
            f"It rose and fell ({falls}), and stands higher now than falls of this size take back."
        )
        return Verdict("unknown", live, text)
    text = (
        f"Falls give back what piles up: {falls}. So it is with what the program empties itself, "
        "and with the garbage of cycles, which neutracer.warn_tensor_cycles() in the program finds."
    )
    return _besides(seen) or Verdict("steady", live, text)


def _besides(seen: Observed) -> Verdict | None:
    """A verdict that other series than the live bytes bear out."""
    outside, cached = seen.outside, seen.cached
    whole = seen.live.level if cached is None else cached.level
    if outside is not None and _settled(outside, whole + outside.level):
        return Verdict("non_torch_growth", outside, "PyTorch's own memory does not grow with it.")
    if cached is None or not _settled(cached, whole):
        return None
    if seen.live.slope >= _GIVEN_BACK * cached.slope:
        return Verdict("unknown", seen.live, "Live memory seems to grow, but not beyond doubt.")
    if seen.waiting is not None and seen.waiting.slope >= _WAITING * cached.slope:
        text = "What grows are freed blocks that wait for a stream."
        return Verdict("unknown", cached, text)
    stuck = seen.stuck
    if stuck is None:
        text = "These series don't show whether empty_cache() could give it back."
        return Verdict("cache_growth", cached, text)
    if stuck.grows and stuck.slope >= 0.5 * cached.slope:
        return Verdict("fragmentation_growth", cached, "The free bytes lie between live blocks.")
    return Verdict("cache_growth", cached, f"{cache_emptier(seen.device)} can give it back.")


def _leaks(seen: Observed) -> bool:
    """Whether the growth of the live bytes is proved, and matters before a long run ends."""
    return seen.live.grows and _would_matter(seen)


def _would_matter(seen: Observed) -> bool:
    """Whether live bytes that go on like this matter before a long run ends."""
    return seen.live.slope * RUN[seen.unit] > _MATERIAL * seen.live.level


def _settled(trend: Trend, whole: float) -> bool:
    """Whether another series' growth is proved, matters, and shows no sign of ending."""
    if trend.is_levelling or trend.is_sawtooth or _was_given_back(trend):
        return False
    return trend.grows and trend.growth > _MATERIAL * whole


def _was_given_back(trend: Trend) -> bool:
    """Whether falls took back most of what had grown, as when a cache is emptied."""
    fallen = sum(-nbytes for _, nbytes in trend.jumps if nbytes < 0)
    return fallen > _GIVEN_BACK * trend.growth


def _not_growing(live: Trend, seen: Observed) -> Verdict:
    if live.steps < (_PROVABLE if seen.unit == "window" else _FEWEST):
        verb = "is" if live.steps == 1 else "are"
        where = "left after the warm-up" if live.warmup else "there"
        text = f"Only {format_count(live.steps, seen.unit)} {verb} {where}."
        return Verdict("unknown", live, text)
    rises = live.interval[0] > 0 and live.growth > _MATERIAL * live.level
    if live.steps < _PROVABLE and rises:
        return Verdict("unknown", live, f"It rose in each of {live.steps} {seen.unit}s: too few.")
    if live.grows:
        return Verdict("steady", live, "It grows by too little to matter.")
    if seen.timeline is None and live.is_in_doubt and not live.is_levelling and _would_matter(seen):
        rate, steps = format_bytes(round(live.slope)), format_count(live.steps, seen.unit)
        text = (
            f"It seems to rise by {rate} a {seen.unit}, over {steps}, but memory "
            "that wanders up and down without a level may do so too."
        )
        return Verdict("unknown", live, text)
    return Verdict("steady", live, _given_back(seen) or "No growth shows after the warm-up.")


def _given_back(seen: Observed) -> str:
    """What a table's growth of the reserved bytes came to, where one fall took it back."""
    cached = seen.cached
    if cached is None or cached.interval[0] <= 0 or not _was_given_back(cached):
        return ""
    at, nbytes = min(cached.jumps, key=lambda jump: jump[1])
    fall = f"by {format_bytes(-round(nbytes))} at {seen.unit} {format_count(at)}"
    return f"The cache grew and was given back: the reserved bytes fell {fall}."


def forecast(seen: Observed, verdict: Verdict) -> Forecast:
    """When the memory is full.

    A leak fills it when the live bytes at their highest within a step reach what the
    process can have; what fragments, when the reserved bytes do. A cache is given back
    before memory runs out, and garbage collected.
    """
    trend = verdict.trend
    room = _room(seen, verdict)
    if room is None or trend.slope <= 0:
        return Forecast(None, None, None)
    last = len(seen.allocated) - 1

    def after(slope: float) -> int:
        return last + max(math.ceil(room / slope), 1)

    low, high = trend.interval
    step = after(trend.slope)
    step_us = seen.duration_us()
    between = (after(max(high, trend.slope)), after(low) if low > 0 else None)
    return Forecast(step, between, None if step_us is None else (step - last) * step_us)


def _room(seen: Observed, verdict: Verdict) -> float | None:
    """Bytes that may still be added; None where nothing fills up or nothing is known."""
    if seen.capacity is None:
        return None
    outside = seen.outside.last if seen.outside is not None else 0.0
    if verdict.kind in ("leak", "growing"):
        above = 0
        if seen.peaks is not None:
            recent = list(zip(seen.peaks, seen.allocated, strict=True))[-5:]
            above = max(peak - floor for peak, floor in recent)
        return max(seen.capacity - outside - seen.live.last - above, 0.0)
    if verdict.kind in ("fragmentation_growth", "non_torch_growth"):
        held = seen.cached.last if seen.cached is not None else seen.live.last
        return max(seen.capacity - outside - held, 0.0)
    return None


# ---- Proof -------------------------------------------------------------------------------

# A verdict on a trace held against its own blocks: who left them, and who freed them.

# Of a trace's growth so much must be blocks that are still there. Where no steps are known
# blocks must besides come from so many of the windows.
_EXPLAINED = 0.5
_OF_WINDOWS = 0.5

# Lines that leave something behind in so many of the steps, and no less in the last third of
# them, prove a leak by themselves, from so many steps on. The first steps are no proof: what
# is made once is made there.
_OFTEN = 0.45
_PROVING = 30
_FIRST = 0.25
_LATE = 0.75

# A model has fewer layers that are alike.
_MOST_LAYERS = 256


def held_against(seen: Observed, verdict: Verdict, survivors: Survivors) -> Verdict:
    """The verdict, unless the trace's own blocks don't bear it out."""
    if verdict.kind == "cycle_garbage" and seen.timeline is not None:
        # Only of what fell again is it asked where.

        place = emptied_at(seen, verdict.trend)
        if place is None:
            return verdict
        text = f"It rose, and the program itself let go of it at {place.location} each time."
        return replace(verdict, kind="steady", because=text)
    if verdict.kind != "leak" or seen.timeline is None or verdict.trend.is_sawtooth:
        return verdict
    kept = survivors.growth
    if not seen.is_named and _is_loading(seen):
        text = "Live memory rose, but hardly anything was freed: the program may be loading."
        return replace(verdict, kind="unknown", because=text)
    if seen.unit == "window":
        kept = tuple(one for one in kept if one.steps >= _OF_WINDOWS * verdict.trend.steps)
    if sum(one.bytes_per_step for one in kept) < _EXPLAINED * verdict.trend.slope:
        text = "Live memory rose, but no line leaves something behind step after step."
        return replace(verdict, kind="unknown", because=text)
    if not seen.is_named and _may_be_layers(seen, kept):
        text = "Modules left it, about once a layer: this may be a single forward pass."
        return replace(verdict, kind="unknown", because=text)
    return verdict


def proved_by_blocks(seen: Observed, verdict: Verdict) -> Verdict:
    """The verdict, or a leak that the series alone don't show and the trace's blocks do.

    A series can't tell a leak from noise where what is left differs from step to step, or is
    little beside what is held. In a trace each block has its line: where the same lines leave
    something behind in every step or every second one up to the end, and live memory rises by
    that, it is no chance.
    """
    last = len(seen.starts) - 2
    if verdict.kind not in ("steady", "unknown", "cache_growth") or seen.timeline is None:
        return verdict
    if seen.unit != "step" or last < _PROVING or seen.live.slope <= 0 or seen.live.is_sawtooth:
        return verdict
    begin = round(_FIRST * last)
    risen = seen.live.slope * (last - begin)
    left = {one.stack: one for one in growth_of(seen, begin, fell=False).growth}
    kept = [one for one in left.values() if one.steps >= _OFTEN * (last - begin)]
    total = sum(one.bytes for one in kept)
    if not _EXPLAINED * risen <= total <= risen / _EXPLAINED:
        return verdict
    third = growth_of(seen, last - (last - begin) // 3, fell=False).growth
    if 3 * sum(one.bytes for one in third if one.stack in left) < _LATE * total:
        return verdict
    if not seen.is_named and (_is_loading(seen) or _may_be_layers(seen, kept)):
        return verdict
    text = "The same lines leave something behind over and over, up to the end."
    return replace(verdict, kind="leak", trend=seen.live, because=text)


def _may_be_layers(seen: Observed, kept: Sequence[Growth]) -> bool:
    """Whether most of what is left may be what the layers of one pass keep for backward.

    Where most steps make something outside of modules, a program's loop makes them: what recurs
    may begin anywhere in the loop.
    """
    inside = [one for one in kept if role_of(one.stack) in (Role.MODULE, Role.EMPTY)]
    if 2 * sum(one.bytes for one in inside) < sum(one.bytes for one in kept):
        return False
    if max(one.count for one in inside) > _MOST_LAYERS:
        return False
    if seen.timeline is None or seen.unit == "window":
        return True
    passes = seen.timeline.passes
    own = sum(
        any(passes.allocates[at] and passes.role[at] == Role.USER for at in range(begin, end))
        for begin, end in pairwise(seen.starts)
    )
    return 2 * own < len(seen.starts) - 1


def _is_loading(seen: Observed) -> bool:
    """Whether most parts of a trace free nothing: nothing is done over and over there."""
    if seen.timeline is None:
        return False
    actions = cast("list[str]", seen.timeline.events["action"])
    parts = [actions[begin:end] for begin, end in pairwise(seen.starts)]
    return 2 * sum("free_completed" in part for part in parts) < len(parts)
