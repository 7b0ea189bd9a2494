# SPDX-License-Identifier: Apache-2.0
"""`leak_trend`: memory that keeps growing, its rate, and the lines that hold it.

The evidence behind a verdict are the blocks that outlive their steps, by line.
"""

from __future__ import annotations

import linecache
import math
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any, cast

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.leak.series import Observed, Trend, allocated_blocks, observe, observe_trace
from neutracer.question import after_caveats
from neutracer.render.document import (
    Block,
    Document,
    Figure,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlainRow, Report
from neutracer.trace.events import CPU, PINNED, cache_emptier
from neutracer.trace.flaws import CAVEAT_KINDS
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import UNKNOWN_PLACE, Frame, place_of
from neutracer.trace.timeline import Timeline
from neutracer.units import (
    format_bytes,
    format_count,
    format_duration_us,
    format_share,
    split_bytes,
)
from neutracer.whatif.settings import capacity_bytes, expandable_advice

# ---- Growth ------------------------------------------------------------------------------

# A stack grows if it leaves blocks in at least so many steps, and at least once per so many
# steps: weights are made in one step, and an optimizer's state in one or two.
_FEWEST_STEPS = 3
_RAREST = 20


@dataclass(frozen=True)
class Growth(PlainRow):
    """The blocks that one stack leaves behind, step after step.

    Attributes:
        place: The line of the program.
        stack: The frames, innermost first; empty where none were recorded.
        category: The category of most of its bytes.
        bytes: The bytes left, and still held or held at the fall.
        count: The number of blocks.
        steps: The number of steps that left any.
        bytes_per_step: The mean over all steps used.
        share: Of the bytes left by all stacks.
        holders: Chains of `why_alive` in this process; empty unless requested.
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
    """The blocks behind a growth."""

    growth: tuple[Growth, ...] = ()  # By stack, the most bytes first.
    # (address, size) of blocks alive at the end of the trace, the newest first, per stack of
    # `growth`.
    addresses: tuple[tuple[tuple[int, int], ...], ...] = ()
    # The lines that freed blocks in falls, with their number of blocks.
    freed: tuple[tuple[Place, int], ...] = ()
    has_graph: bool = False  # An inspected tensor has an autograd graph.

    @property
    def shows_graph(self) -> bool:
        """Evidence of a kept graph: a tensor's, or blocks of several operations in a module's
        call, of which a program would hold only the last."""
        inside = sum(role_of(grown.stack) is Role.MODULE for grown in self.growth)
        return self.has_graph or inside > 1


def growth_of(seen: Observed, warmup: int, *, fell: bool) -> Survivors:
    """The blocks of a trace that outlive the step after their own.

    Args:
        seen: The observed program, with its trace.
        fell: The series is a saw-tooth: blocks freed later count too.
    """
    timeline = seen.timeline
    if timeline is None:
        return Survivors()
    trace = _Trace(seen, timeline, warmup)
    groups = trace.outliving(fell=fell)
    if not fell:
        groups = trace.without_replacements(groups)
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
    """The events that freed blocks that had outlived the step after their own."""
    if seen.timeline is None:
        return []
    trace = _Trace(seen, seen.timeline, warmup)
    groups = trace.outliving(fell=True)
    return [
        trace.freed[row] for found in groups.values() for _, row in found if trace.freed[row] != -1
    ]


class _Trace:
    """The allocations of a trace, by step."""

    def __init__(self, seen: Observed, timeline: Timeline, warmup: int) -> None:
        self.timeline, self.starts, self.warmup = timeline, seen.starts, warmup
        self.last = len(seen.starts) - 2
        self.rows = timeline.allocations
        self.sizes = self.rows.codes("size")
        self.freed = _frees(timeline)
        # Blocks freed in the last step or later, as at the program's end, count as kept.
        end = seen.starts[max(self.last, 0)]
        end = end if seen.failed is None else min(end, seen.failed)
        self.ended = [-1 if event >= end else event for event in self.freed]

    def outliving(self, *, fell: bool) -> dict[int, list[tuple[int, int]]]:
        """(step, row) of blocks that outlive the step after their own, by stack, without state."""
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

    def without_replacements(
        self, groups: dict[int, list[tuple[int, int]]]
    ) -> dict[int, list[tuple[int, int]]]:
        """The groups without blocks that came for others of their size, from before the trace, as
        in a full buffer: for each that went, one made in the step before it or later."""
        begin, end = self.starts[min(self.warmup, self.last)], self.starts[self.last]
        made = self.rows.codes("alloc_event")
        gone: defaultdict[int, list[int]] = defaultdict(list)
        for row, freed in enumerate(self.ended):
            if made[row] < 0 and begin <= freed < end:
                gone[self.sizes[row]].append(bisect_right(self.starts, freed) - 1)
        if not gone:
            return groups
        steps = {size: deque(sorted(found)) for size, found in gone.items()}
        kept: dict[int, list[tuple[int, int]]] = {}
        for step, row, stack in sorted((*one, key) for key, each in groups.items() for one in each):
            going = steps.get(self.sizes[row])
            if going and going[0] <= step + 1:
                going.popleft()
            else:
                kept.setdefault(stack, []).append((step, row))
        return kept

    def growth(self, items: Sequence[tuple[int, int]], total: int) -> Growth:
        """One stack's growth, of `total` bytes of all."""
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
        """(address, size) of a stack's blocks that were never freed, the newest first."""
        addresses = self.rows.codes("address")
        newest = (row for _, row in reversed(items) if self.freed[row] == -1)
        return tuple((addresses[row], self.sizes[row]) for row in newest)


def _frees(timeline: Timeline) -> list[int]:
    """The event that freed each allocation, or -1.

    A block missing from the segments ends with the last event (`nt_timeline.h`), which frees
    another block: such an end is none.
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
    """Check that blocks are left step after step, to the end."""
    looked = max(last - warmup, 1)
    if len(steps) < max(_FEWEST_STEPS, looked / _RAREST):
        return False
    middle = (warmup + last) / 2
    return min(steps) < middle <= max(steps)


def _lines(events: object, freed: Sequence[int]) -> tuple[tuple[Place, int], ...]:
    counts = Counter(place_of(events[event].stack) for event in freed)  # type: ignore[index]
    return tuple(counts.most_common())


def snapshot_growth(
    shots: Sequence[Snapshot], device: int | None, warmup: int
) -> tuple[Growth, ...]:
    """Growth by stack over snapshots after the warm-up.

    A stack counts if it grows between at least half of the pairs, and never shrinks.
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
    sums: dict[tuple[Frame, ...], tuple[int, int]] = {}
    for frames, nbytes, _ in allocated_blocks(shot, device):
        held, count = sums.get(frames, (0, 0))
        sums[frames] = (held + nbytes, count + 1)
    return sums


# ---- Emptied -----------------------------------------------------------------------------

# The share of the falls that one line must have freed.
_AT_ONE_LINE = 0.9

# The collector in a line of Python, and in the names of CPython's own functions.
_COLLECTS = re.compile(r"\bcollect\s*\(")
_COLLECTOR = re.compile(r"\b(_?PyGC_\w+|_Py_RunGC|gc_collect\w*|delete_garbage)\b")


def is_collected(seen: Observed, trend: Trend) -> bool:
    """Whether Python's collector freed the accumulated blocks: a frame of it is in most of the
    frees' stacks, or the heap had garbage when the file was written."""
    if seen.timeline is None or seen.has_garbage:
        return seen.has_garbage
    events = seen.timeline.events
    stacks = events.codes("stack")
    last = {stacks[event]: event for event in fallen(seen, trend.warmup)}
    shown = {code for code, event in last.items() if _is_collector(events[event].stack)}
    freed = [stacks[event] in shown for event in fallen(seen, trend.warmup)]
    return sum(freed) > len(freed) / 2


def _is_collector(stack: Sequence[Frame]) -> bool:
    if any(_COLLECTOR.search(frame.name) for frame in stack):
        return True
    innermost = next((frame for frame in stack if frame.line > 0), None)
    return innermost is not None and _COLLECTS.search(_text(innermost)) is not None


def emptied_at(seen: Observed, trend: Trend) -> Place | None:
    """The line at which the program frees its accumulated blocks; None if it is not certain.

    Python's collector runs at allocations, in lines that mostly do other things. A line that
    only frees is the program's own, unless its text is unavailable.
    """
    timeline = seen.timeline
    if timeline is None:
        return None
    stacks = timeline.events.codes("stack")
    freed = Counter[int](stacks[event] for event in fallen(seen, trend.warmup))
    if not freed:
        return None
    code, count = freed.most_common(1)[0]
    pairs = zip(stacks, timeline.events["action"], strict=True)
    does_more = any(stack == code and action == "alloc" for stack, action in pairs)
    if does_more or count < _AT_ONE_LINE * freed.total():
        return None
    stack = timeline.events[list(stacks).index(code)].stack
    return place_of(stack) if stack and _text(stack[0]) else None


def _text(frame: Frame) -> str:
    """The source of a frame's line, if this machine has it."""
    return linecache.getline(frame.filename, frame.line).strip()


# ---- Verdict -----------------------------------------------------------------------------

#: The verdicts of `leak_trend`, with their meanings.
VERDICTS = {
    "leak": "live memory grows step after step",
    "growing": "live memory rises step after step",
    "cycle_garbage": "live memory grows until Python's collector frees it",
    "non_torch_growth": "device memory outside PyTorch grows",
    "fragmentation_growth": "live blocks split more and more free memory",
    "cache_growth": "the cache grows while live memory does not",
    "steady": "nothing grows",
    "unknown": "no verdict is possible",
}

#: The assumed length of a run, by unit.
RUN = {"step": 100_000, "window": 1_000, "snapshot": 1_000}

# Smaller growth, as a share of the level, is ignored: of live bytes by the end of a run, of
# other series over the steps so far.
_MATERIAL = 0.002

# Falls of at least this share of the growth give it back.
_GIVEN_BACK = 0.5

# A saw-tooth this many falls above its median no longer falls back.
_UNRETURNED = 1.5

# A stair is a rise by this share of the level, stairs differ by less than this factor, and this
# share of them is still there.
_STAIR = 0.05
_ALIKE = 0.5

# Blocks waiting for a stream explain a cache's growth from this share on.
_WAITING = 0.5

# The fewest steps after the warm-up for any verdict, and for proof of growth. Windows need the
# latter for "steady" too.
_FEWEST = 3
_PROVABLE = 8


@dataclass(frozen=True)
class Verdict:
    """A verdict, and the trend behind it."""

    kind: str
    trend: Trend
    because: str


@dataclass(frozen=True)
class Forecast:
    """When the memory is full, at this rate."""

    step: int | None  # The step, counted as in the series; None for never, or without a capacity.
    # The first and last step by the growth's interval; a last of None is never.
    between: tuple[int, int | None] | None
    in_us: float | None  # Microseconds from the last step on; None if a step's length is unknown.


def judge(seen: Observed) -> Verdict:
    """The first verdict that the series support."""
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
    """The verdict on growing live bytes: a leak only with blocks as evidence."""
    if seen.has_blocks:
        return Verdict("leak", seen.live, because)
    text = f"{because} Numbers alone cannot tell a random walk from slow growth."
    return Verdict("growing", seen.live, text)


def _falls_back(seen: Observed) -> Verdict:
    """The verdict on a saw-tooth: garbage only where the collector or the heap shows it."""
    live = seen.live
    if is_collected(seen, live):
        text = "It rose step after step, until Python's collector took it back."
        return Verdict("cycle_garbage", live, text)
    falls = f"{format_count(live.teeth, 'fall')}, by {format_bytes(round(live.tooth))}"
    if live.last > live.level + _UNRETURNED * live.tooth:
        text = f"It rose and fell ({falls}), and is now higher than falls of this size take back."
        return Verdict("unknown", live, text)
    place = emptied_at(seen, live)
    if place is not None:
        text = f"It rose, and the program freed it at {place.location} each time."
    else:
        text = (
            f"It rises and falls: {falls}. The program may free it itself, or leave garbage in "
            "cycles, which neutracer.warn_tensor_cycles() in the program finds."
        )
    return _besides(seen) or Verdict("steady", live, text)


def _besides(seen: Observed) -> Verdict | None:
    outside, cached = seen.outside, seen.cached
    whole = seen.live.level if cached is None else cached.level
    if outside is not None and _settled(outside, whole + outside.level):
        return Verdict("non_torch_growth", outside, "PyTorch's own memory does not grow with it.")
    if cached is None or not _settled(cached, whole):
        return None
    if seen.live.slope >= _GIVEN_BACK * cached.slope:
        return Verdict("unknown", seen.live, "Live memory seems to grow, but this may be chance.")
    if seen.waiting is not None and seen.waiting.slope >= _WAITING * cached.slope:
        text = "The growth is freed blocks that wait for a stream."
        return Verdict("unknown", cached, text)
    stuck = seen.stuck
    if stuck is None:
        text = "These series don't show whether empty_cache() could give it back."
        return Verdict("cache_growth", cached, text)
    if stuck.grows and stuck.slope >= 0.5 * cached.slope:
        return Verdict("fragmentation_growth", cached, "The free bytes lie between live blocks.")
    return Verdict("cache_growth", cached, f"{cache_emptier(seen.device)} can return it.")


def _leaks(seen: Observed) -> bool:
    """Check that the growth of live bytes is proved, and matters by the end of a run."""
    return seen.live.grows and _would_matter(seen)


def _would_matter(seen: Observed) -> bool:
    """Check that the growth of live bytes would matter by the end of a run."""
    return seen.live.slope * RUN[seen.unit] > _MATERIAL * seen.live.level


def _settled(trend: Trend, whole: float) -> bool:
    """Check that a series' growth is proved, matters, and is not ending."""
    if trend.is_levelling or trend.is_sawtooth or _was_given_back(trend):
        return False
    return trend.grows and trend.growth > _MATERIAL * whole


def _was_given_back(trend: Trend) -> bool:
    """Check if falls took back most of the growth, as when a cache is emptied."""
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
        return Verdict(
            "unknown", live, f"It rose in each of {live.steps} {seen.unit}s, too few for proof."
        )
    stairs = _stairs(live, seen)
    if stairs:
        return Verdict("unknown", live, stairs)
    if live.grows:
        return Verdict("steady", live, "It grows by too little to matter.")
    if seen.timeline is None and live.is_in_doubt and not live.is_levelling and _would_matter(seen):
        rate, steps = format_bytes(round(live.slope)), format_count(live.steps, seen.unit)
        text = (
            f"It seems to rise by {rate} per {seen.unit}, over {steps}, but memory "
            "that wanders randomly could do the same."
        )
        return Verdict("unknown", live, text)
    return Verdict("steady", live, _given_back(seen) or "No growth shows after the warm-up.")


def _stairs(live: Trend, seen: Observed) -> str:
    """The rises at once that nothing took back, as a sentence, where there are several alike, as
    of a loop around the steps that keeps something of each turn."""
    rises = [(at, nbytes) for at, nbytes in live.jumps if at > 1 and nbytes > _STAIR * live.last]
    sizes = [nbytes for _, nbytes in rises]
    if seen.unit != "step" or len(rises) < _FEWEST or min(sizes) < _ALIKE * max(sizes):
        return ""
    kept = live.last - seen.allocated[rises[0][0] - 1]
    if kept < _ALIKE * sum(sizes):
        return ""
    at = " and ".join(format_count(at) for at, _ in (rises[0], rises[-1]))
    return (
        f"Between steps {at} it rose at once {len(rises)} times, by {format_bytes(round(kept))} "
        "that nothing gave back: a loop around the steps may keep something of each turn."
    )


def _given_back(seen: Observed) -> str:
    """The fall that took back a growth of reserved bytes, as a sentence."""
    cached = seen.cached
    if cached is None or cached.interval[0] <= 0 or not _was_given_back(cached):
        return ""
    at, nbytes = min(cached.jumps, key=lambda jump: jump[1])
    fall = f"by {format_bytes(-round(nbytes))} at {seen.unit} {format_count(at)}"
    return f"The cache grew and was given back: the reserved bytes fell {fall}."


def forecast(seen: Observed, verdict: Verdict) -> Forecast:
    """Forecast when the memory is full.

    A leak fills it when the highest live bytes of a step reach the capacity, fragmentation when
    the reserved bytes do. Caches and garbage are freed before that.
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
    """Bytes left until the capacity; None if unknown, or if nothing fills up."""
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

# The share of a trace's growth that surviving blocks must explain, and the share of the windows
# that a line must leave blocks in, if steps are unknown.
_EXPLAINED = 0.5
_OF_WINDOWS = 0.5

# Lines that leave blocks in this share of the steps prove a leak by themselves, given so many
# steps, without the first part (one-time allocations), and undiminished in the last third.
_OFTEN = 0.45
_PROVING = 30
_FIRST = 0.25
_LATE = 0.75

# The most layers of one kind in a model.
_MOST_LAYERS = 256


def held_against(seen: Observed, verdict: Verdict, survivors: Survivors) -> Verdict:
    """The verdict, corrected if the trace's blocks contradict it."""
    if verdict.kind != "leak" or seen.timeline is None or verdict.trend.is_sawtooth:
        return verdict
    kept = survivors.growth
    if not seen.is_named and _is_loading(seen):
        text = "Live memory rose, but hardly anything was freed: the program may be loading."
        return replace(verdict, kind="unknown", because=text)
    if seen.unit == "window":
        kept = tuple(one for one in kept if one.steps >= _OF_WINDOWS * verdict.trend.steps)
    if sum(one.bytes_per_step for one in kept) < _EXPLAINED * verdict.trend.slope:
        text = "Live memory rose, but no line leaves blocks behind step after step."
        return replace(verdict, kind="unknown", because=text)
    if not seen.is_named and _may_be_layers(seen, kept):
        text = "Modules left it, about once per layer: this may be a single forward pass."
        return replace(verdict, kind="unknown", because=text)
    return verdict


def proved_by_blocks(seen: Observed, verdict: Verdict) -> Verdict:
    """The verdict, or a leak that only the trace's blocks show.

    A small or irregular leak drowns in the noise of a series. In a trace, the same lines leaving
    blocks in about every second step up to the end, by as much as live memory rises, are proof.
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
    text = "The same lines leave blocks behind again and again, up to the end."
    return replace(verdict, kind="leak", trend=seen.live, because=text)


def _may_be_layers(seen: Observed, kept: Sequence[Growth]) -> bool:
    """Check if most bytes left may be the activations of one pass's layers.

    Not so if most steps allocate outside of modules: those are rounds of a program's loop.
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
    """Check if most parts of a trace free nothing, so that nothing repeats there."""
    if seen.timeline is None:
        return False
    actions = cast("list[str]", seen.timeline.events["action"])
    parts = [actions[begin:end] for begin, end in pairwise(seen.starts)]
    return 2 * sum("free_completed" in part for part in parts) < len(parts)


# ---- Findings ----------------------------------------------------------------------------

# Growth that fills the memory within this multiple of the steps so far is severe.
_SOON = 20

# Growth by the end of a long run: serious from here on, and moderate.
_COSTLY = 1 << 30
_NOTABLE = 64 << 20

# Stacks that a finding names.
_NAMED = 3

_WITH_LINES = Note("leak_trend on a snapshot of neutracer.record() names the line")

_PINNED = (
    "a kept tensor keeps its whole storage pinned: keep x.item(), or x.clone(), which is not pinned"
)


def suspect_of(survivors: Survivors) -> Growth | None:
    """The stack of a backward(create_graph=True), if any.

    The gradient of the loss, the first of a backward pass, outlives the pass only if the pass
    itself was recorded as a graph.
    """
    for grown in survivors.growth:
        if role_of(grown.stack) is Role.SEED:
            return grown
    return None


def chance_text(p_value: float) -> str:
    """A p-value in words: "p = 0.0238", or "p < 0.0001"."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.4f}"


def findings_of(
    seen: Observed,
    verdict: Verdict,
    coming: Forecast,
    survivors: Survivors,
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """The finding on a verdict; none for "steady"."""
    trend = verdict.trend
    if verdict.kind == "steady":
        return ()
    if verdict.kind == "unknown":
        evidence: tuple[Note, ...] = (Note(verdict.because),)
        advice = _to_be_sure(seen)
        message = "can't tell whether memory grows"
        return (Finding("unknown", Severity.INFO, 0, message, evidence, advice),)
    notes = [_how_sure(seen, trend), Note(verdict.because)]
    notes += _who(survivors)
    notes += _when(coming, seen) or _cost(verdict, seen.unit)
    kind, severity = verdict.kind, _severity(seen, verdict, coming)
    nbytes = round(trend.tooth if kind == "cycle_garbage" else max(trend.growth, 0.0))
    message = f"{VERDICTS[kind]}: {_rate(trend, seen.unit, kind)}"
    advice = _advice(kind, survivors, seen.device, settings)
    return (Finding(kind, severity, nbytes, message, tuple(notes), advice),)


def _to_be_sure(seen: Observed) -> tuple[Note, ...]:
    unit = seen.unit
    if seen.timeline is None and seen.live.is_in_doubt:
        return (Note(_more(unit)), _WITH_LINES)
    return (Note(f"{_more(unit)}: about sixty {unit}s show a leak of 0.1 % per {unit}"),)


def _more(unit: str) -> str:
    if unit == "window":
        return "record longer, or give the beginnings of steps with steps="
    return f"look at more {unit}s"


def _rate(trend: Trend, unit: str, kind: str) -> str:
    if kind == "cycle_garbage":
        times = format_count(trend.teeth, "fall")
        return f"{times}, of {format_bytes(round(trend.tooth))} each"
    return f"{format_bytes(round(trend.slope))} per {unit}"


def _as_recorded(survivors: Survivors, holders: Mapping[str, str]) -> Survivors:
    """The growths, with the holders that the process wrote down beside its snapshot."""
    growth = tuple(
        one
        if one.holders or str(one.place) not in holders
        else replace(one, holders=tuple(holders[str(one.place)].split("; ")))
        for one in survivors.growth
    )
    return replace(survivors, growth=growth)


def _how_sure(seen: Observed, trend: Trend) -> Note:
    unit = seen.unit
    chance = f", {chance_text(trend.p_value)}" if seen.has_blocks else ""
    steps = format_count(trend.steps, unit)
    set_aside = f", {format_count(trend.warmup)} set aside as warm-up" if trend.warmup else ""
    if trend.is_sawtooth:
        rise = format_bytes(round(trend.tooth_slope))
        return Note(f"Seen in {steps}{set_aside}; between two falls it rises by {rise} per {unit}.")
    low, high = (format_bytes(round(end)) for end in trend.interval)
    span = f": 95 % interval {low} to {high}" if low != high else ""
    return Note(f"Seen in {steps}{set_aside}{span}{chance}.")


def _who(survivors: Survivors) -> list[Note]:
    notes = []
    for grown in survivors.growth[:_NAMED]:
        blocks = format_count(grown.count, "block")
        kind = "" if grown.category == "unknown" else f" ({grown.category})"
        share = f"{format_share(grown.share, decimals=0)}: " if grown.share else ""
        size = f"{share}{format_bytes(grown.bytes)} in {blocks}{kind}"
        if grown.holders:
            # Who keeps it is the program's to change, more than the line that made it.
            size += f", held by {'; '.join(grown.holders)}; made"
        notes.append(Note(f"{size} by", grown.place))
    if survivors.freed:
        place, count = survivors.freed[0]
        notes.append(Note(f"{format_count(count, 'block')} freed at", place))
    return notes


def _when(coming: Forecast, seen: Observed) -> list[Note]:
    if coming.step is None or seen.capacity is None:
        return []
    whole = format_bytes(seen.capacity)
    span = ""
    if coming.between is not None:
        first, last = coming.between
        end = "never" if last is None else format_count(last)
        span = f" (95 %: {format_count(first)} to {end})"
    text = f"At this rate {whole} will be full at {seen.unit} {format_count(coming.step)}{span}"
    if coming.in_us is not None:
        text += f", in {format_duration_us(coming.in_us)}"
    return [Note(text + ".")]


def _cost(verdict: Verdict, unit: str) -> list[Note]:
    """The cost of a long run, for a leak without a forecast."""
    if verdict.kind not in ("leak", "growing", "non_torch_growth", "fragmentation_growth"):
        return []
    run = RUN[unit]
    cost = format_bytes(round(max(verdict.trend.slope, 0.0) * run))
    return [Note(f"At this rate it is {cost} after {format_count(run, unit)}.")]


def _severity(seen: Observed, verdict: Verdict, coming: Forecast) -> Severity:
    """The severity, by the cost until the memory is full or the run ends."""
    if verdict.kind in ("cycle_garbage", "cache_growth"):
        return Severity.MODERATE
    seen_steps, run = len(seen.allocated), RUN[seen.unit]
    most = Severity.SERIOUS if verdict.kind == "fragmentation_growth" else Severity.SEVERE
    if coming.step is not None and coming.step < _SOON * seen_steps:
        return most
    cost = max(verdict.trend.slope, 0.0) * run
    is_full = coming.step is not None and coming.step <= seen_steps + run
    if is_full or (coming.step is None and cost >= _COSTLY):
        is_stuck = verdict.kind == "fragmentation_growth"
        return Severity.MODERATE if is_stuck else Severity.SERIOUS
    return Severity.MODERATE if cost >= _NOTABLE else Severity.INFO


def _advice(
    kind: str, survivors: Survivors, device: int, settings: Mapping[str, Any]
) -> tuple[Note, ...]:
    if kind in ("leak", "growing"):
        return _leak_advice(survivors, device)
    if kind == "cycle_garbage":
        return (
            Note(
                "neutracer.warn_tensor_cycles() in the program names the objects of each "
                "cycle and the reference to cut"
            ),
        )
    if kind == "non_torch_growth":
        return (
            Note("neutracer.attribute_device_memory() names the library"),
            Note("neutracer.device_report() names the process"),
        )
    if device < 0:
        # The CUDA allocator's settings do not apply.
        return (Note("sizes that change from step to step are each cached: pad them to a few"),)
    notes = (
        []
        if settings.get("expandable_segments")
        else [Note(expandable_advice(str(settings.get("text", ""))))]
    )
    if kind == "cache_growth":
        notes.append(
            Note(
                "sizes that change from step to step are each cached separately: pad them to "
                "a few, or set roundup_power2_divisions"
            )
        )
    notes.append(Note("neutracer.what_if(snapshot) replays the trace under other settings"))
    return tuple(notes)


def _to_keep(device: int, shows_graph: bool) -> str:
    if device == PINNED:
        return _PINNED
    if device == CPU:
        # There cpu() returns the tensor itself.
        keep = "loss.item(), or x.detach()," if shows_graph else "x.item(),"
    else:
        keep = "loss.item(), or x.detach().cpu()," if shows_graph else "x.item() or x.cpu(),"
    graph = "its graph and " if shows_graph else ""
    return f"a kept tensor keeps {graph}its whole storage: keep {keep} or a clone() of a view"


def _leak_advice(survivors: Survivors, device: int) -> tuple[Note, ...]:
    suspect = suspect_of(survivors)
    if suspect is not None:
        return (
            Note(
                "suspect: backward(create_graph=True). Parameter and gradient keep each other "
                "alive through the autograd graph, which Python's collector can't see:",
                suspect.place,
            ),
            Note("use torch.autograd.grad(..., create_graph=True), or set .grad to None after it"),
            Note("neutracer.find_autograd_cycles() in the program names the cycle"),
        )
    if survivors.growth:
        keep = Note(_to_keep(device, survivors.shows_graph))
        if any(grown.holders for grown in survivors.growth):
            return (keep,)
        return keep, Note("neutracer.why_alive(tensor) in the program shows the holders of one")
    return (_WITH_LINES,)


# ---- Trend -------------------------------------------------------------------------------

# Stacks and change points of the printed report.
_SHOWN = 6

# Ten years: a bound on step_us that keeps times within 64 bits.
_LONGEST_STEP_US = 3.2e14


@dataclass(frozen=True)
class ChangePoint(PlainRow):
    """A sudden, lasting change of the level.

    Attributes:
        step: The first step at the new level.
        bytes: The change; negative for a fall.
    """

    step: int
    bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LeakTrendReport(Report):
    """Growth of memory step after step.

    Attributes:
        verdict: "leak" or "cycle_garbage" (only with the blocks of a trace or several snapshots
            as evidence), "growing" (the same rise in numbers alone, which cannot tell a random
            walk from slow growth), "non_torch_growth", "fragmentation_growth", "cache_growth",
            "steady" or "unknown".
        series: The series that decided: "allocated" (live bytes), "reserved", or "non_torch"
            (used on the device outside PyTorch).
        bytes_per_step: Its growth (Theil-Sen slope of the least value of each step).
        interval: The 95 % interval of that.
        p_value: Of Mann-Kendall's one-sided test; None for numbers alone, since the test does
            not account for random walks.
        unit: "step", "snapshot", or "window" if steps are unknown.
        steps: The number of steps used, after the warm-up.
        warmup_steps: The number of steps set aside before them.
        level_bytes: The median of the series after the warm-up.
        resets: The number of falls that ended a gradual rise.
        reset_bytes: The median fall.
        change_points: Sudden changes of the level.
        oom_step: The step at which `capacity` is full at this rate, counted from 0; None for
            never, or without a capacity.
        oom_between: First and last step by `interval`; a last of None is never.
        oom_in_us: Microseconds from the last step to `oom_step`; None if unknown.
        capacity: Bytes available to the process; None if unknown.
        growth: The growth by stack, the most bytes first; empty without stacks.
        suspect: "create_graph" if the growth has its marks, else None.
        how: The definition of a step, as a sentence.
        because: The reason for the verdict, as a sentence.
    """

    schema = "neutracer.leak_trend/1"

    verdict: str
    series: str
    bytes_per_step: float
    interval: tuple[float, float]
    p_value: float | None
    unit: str
    steps: int
    warmup_steps: int
    level_bytes: int
    resets: int
    reset_bytes: int
    change_points: tuple[ChangePoint, ...]
    oom_step: int | None
    oom_between: tuple[int, int | None] | None
    oom_in_us: float | None
    capacity: int | None
    growth: tuple[Growth, ...]
    suspect: str | None
    how: str
    because: str
    _seen: Observed = field(compare=False)

    @property
    def floors(self) -> Sequence[int]:
        """The least live bytes of each step."""
        return self._seen.allocated

    def document(self) -> Document:
        """The report as a document."""
        facts = (self.verdict.replace("_", " "), format_count(self.steps, self.unit))
        blocks: tuple[Block, ...] = self.finding_blocks()
        if all(one.kind in CAVEAT_KINDS for one in self.findings):
            blocks += (Paragraph(f"{VERDICTS[self.verdict].capitalize()}. {self.because}"),)
        blocks += (self._series_table(),)
        if self.change_points:
            blocks += (self._change_table(),)
        if self.growth:
            blocks += (self._growth_table(),)
        return Document("Leak trend", facts, (*blocks, Paragraph(self.how)))

    def _series_table(self) -> Table:
        seen = self._seen
        trends = [seen.live, *(one for one in (seen.cached, seen.outside) if one is not None)]
        names = {"allocated": "live", "reserved": "reserved", "non_torch": "not PyTorch's"}
        has_chance = self.p_value is not None
        rates = _rates([trend.slope for trend in trends])
        rows = tuple(
            (
                names[trend.name],
                Figure.bytes(round(trend.level)),
                Figure.bytes(round(trend.last)),
                rate,
                *((chance_text(trend.p_value),) if has_chance else ()),
                format_count(trend.warmup),
            )
            for trend, rate in zip(trends, rates, strict=True)
        )
        chance = ("growth by chance",) if has_chance else ()
        heads = ("", "median", "last", f"per {self.unit}", *chance, "warm-up")
        return Table("Least of each " + self.unit, rows, heads)

    def _change_table(self) -> Table:
        points = self.change_points[:_SHOWN]
        rows = tuple(
            (f"{self.unit} {format_count(point.step)}", Figure.bytes(point.bytes))
            for point in points
        )
        left = len(self.change_points) - len(points)
        notes = (f"and {format_count(left, 'later change')}",) if left else ()
        return Table("The level changed at once", rows, notes=notes)

    def _growth_table(self) -> Table:
        rates = _rates([grown.bytes_per_step for grown in self.growth[:_SHOWN]])
        rows = tuple(
            (
                rate,
                Figure.bytes(grown.bytes),
                Figure.count(grown.count, "block"),
                grown.category,
                grown.place,
            )
            for grown, rate in zip(self.growth, rates, strict=False)
        )
        shown = f"{len(rows)} of {len(self.growth)}" if len(self.growth) > len(rows) else ""
        title = "Left behind" + (f" ({shown})" if shown else "")
        return Table(title, rows, (f"per {self.unit}", "in all", "", "", ""))


def _rates(slopes: Sequence[float]) -> list[Figure]:
    """The rates of a column, each in its own unit (0 in the largest's), with equal decimals."""
    sizes = [round(slope) for slope in slopes]
    largest = split_bytes(max(sizes, key=abs))[1]
    parts = [split_bytes(size, None if size else largest) for size in sizes]
    places = max(len(number.partition(".")[2]) for number, _ in parts)
    pairs = zip(sizes, parts, strict=True)
    return [Figure.bytes(size, unit, places) for size, (_, unit) in pairs]


def leak_trend(
    source: Any,
    *,
    step_us: float | None = None,
    steps: Sequence[int] | None = None,
    capacity: int | str | None = None,
    device: int | None = None,
    live: bool | None = None,
) -> LeakTrendReport:
    """Find memory that grows step after step.

    The series is the least value of each step; warm-up, bursts that are taken back and sudden
    changes of the level do not count. The slope is Theil-Sen's (Sen, JASA 63, 1968) and the test
    Mann-Kendall's, after removing autocorrelation (Yue and others, Hydrological Processes 16,
    2002). A rise is growth if the medians and floors of twelve parts of the series, and of its
    last 65 %, rise too. A series of more than 1,024 steps is first put into bins.

    Args:
        source: One of
            a sequence of numbers, bytes per step;
            a mapping of sequences: "allocated", and optionally "reserved", "inactive_split"
            and "device_used";
            a Snapshot with a trace, or a source for `load`;
            a sequence of Snapshots, one per step;
            a MemoryMonitor, by its marks, or else by windows of time.
        step_us: Length of a step in microseconds, which cuts a trace or a monitor's readings.
            For numbers and snapshots it only serves the forecast.
        steps: The beginnings of steps, ascending: indices of a series, events of a trace, or a
            monitor's times in microseconds.
        capacity: Bytes available to the process, or a text like "24GiB"; a monitor has its own.
        device: The device, if there are several.
        live: Search this process's tensors for holders of the growing memory; None does so
            for a monitor.

    Raises:
        TypeError: The source is none of these.
        ValueError: The source is empty; steps don't rise or don't fit; `step_us` is not a
            duration; one of several snapshots lists no segments.
        SnapshotError: The file can't be read.

    Example:
        >>> import neutracer
        >>> trend = neutracer.leak_trend("tests/data/create_graph_leak.pickle.xz")
        >>> trend.verdict, round(trend.bytes_per_step / 2**20), trend.suspect
        ('leak', 8, 'create_graph')
    """
    most = capacity_bytes(capacity)
    is_duration = isinstance(step_us, Real) and bool(0 < step_us < _LONGEST_STEP_US)
    if step_us is not None and not is_duration:
        raise ValueError(f"step_us is {step_us!r}: it must be a step's length in microseconds")
    seen, shots = observe(source, step_us, steps, most, device)
    is_monitor = hasattr(source, "device_series")
    report = _trend(seen, shots, device, is_monitor, live)
    return after_caveats(report, *shots, device=device)


def trend_of_trace(snap: Snapshot, device: int) -> LeakTrendReport:
    """`leak_trend` of one device of a snapshot, without the findings on the file itself."""
    return _trend(observe_trace(snap, None, None, None, device), (snap,), device, False, None)


def _trend(
    seen: Observed,
    shots: Sequence[Snapshot],
    device: int | None,
    is_monitor: bool,
    live: bool | None,
) -> LeakTrendReport:
    verdict = proved_by_blocks(seen, judge(seen))
    survivors = _survivors(seen, verdict, shots, device)
    verdict = held_against(seen, verdict, survivors)
    survivors = _with_holders(seen, verdict, survivors, is_monitor, live)
    if len(shots) == 1:
        # A CPU is -1 in reports, and the first device of its snapshot.
        survivors = _as_recorded(survivors, shots[0].beside.holders.get(max(seen.device, 0), {}))
    return _report(seen, verdict, survivors, shots[-1].settings_in_force if shots else {})


def _report(
    seen: Observed, verdict: Verdict, survivors: Survivors, settings: Mapping[str, Any]
) -> LeakTrendReport:
    trend, coming = verdict.trend, forecast(seen, verdict)
    is_suspect = verdict.kind == "leak" and suspect_of(survivors) is not None
    return LeakTrendReport(
        verdict=verdict.kind,
        series=trend.name,
        bytes_per_step=trend.slope,
        interval=trend.interval,
        p_value=trend.p_value if seen.has_blocks else None,
        unit=seen.unit,
        steps=trend.steps,
        warmup_steps=trend.warmup,
        level_bytes=round(trend.level),
        resets=trend.teeth,
        reset_bytes=round(trend.tooth),
        change_points=tuple(ChangePoint(at, round(nbytes)) for at, nbytes in trend.jumps),
        oom_step=coming.step,
        oom_between=coming.between,
        oom_in_us=coming.in_us,
        capacity=seen.capacity,
        growth=survivors.growth,
        suspect="create_graph" if is_suspect else None,
        how=seen.how,
        because=verdict.because,
        findings=findings_of(seen, verdict, coming, survivors, settings),
        _seen=seen,
    )


def _survivors(
    seen: Observed, verdict: Verdict, shots: Sequence[Snapshot], device: int | None
) -> Survivors:
    if verdict.kind not in ("leak", "cycle_garbage"):
        return Survivors()
    if seen.timeline is not None:
        return growth_of(seen, verdict.trend.warmup, fell=verdict.trend.is_sawtooth)
    if len(shots) > 1:
        return Survivors(snapshot_growth(shots, device, verdict.trend.warmup))
    return Survivors()


def _with_holders(
    seen: Observed, verdict: Verdict, survivors: Survivors, is_monitor: bool, live: bool | None
) -> Survivors:
    kinds = ("leak", "growing", "cycle_garbage")
    if verdict.kind not in kinds or live is False:
        return survivors if verdict.kind in kinds else Survivors()
    if not (live or is_monitor):
        return survivors
    if survivors.addresses and live:
        return _named_holders(survivors)
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    alike = _alike_tensors(verdict.trend.steps, "cuda" if has_cuda else "cpu")
    return survivors if survivors.growth else alike


# ---- Holders ----------------------------------------------------------------------------

# The walker of live objects is imported where it is needed: reading a file does without.

# The largest growths to inspect.
_MOST_GROWTHS = 3

# Tensors of one shape are a growth if there is at least one per this many steps.
_STEPS_PER_TENSOR = 4


def _named_holders(survivors: Survivors) -> Survivors:
    """Add the holders of the blocks of the largest growths.

    Blocks are matched with this process's tensors by address; others get no holder.
    """
    from neutracer.heap.owners import NO_OBJECT, holders_of, tensors_in

    grown = list(survivors.growth)
    lines = {str(at): blocks for at, blocks in enumerate(survivors.addresses[:_MOST_GROWTHS])}
    for line, holder in holders_of(lines).items():
        if holder != NO_OBJECT:
            grown[int(line)] = replace(grown[int(line)], holders=tuple(holder.split("; ")))
    tensors, _ = tensors_in(_live_tensors(), lines)
    facts = map(core.tensor_facts, tensors)
    has_graph = survivors.has_graph or any(one is not None and one["has_grad_fn"] for one in facts)
    return replace(survivors, growth=tuple(grown), has_graph=has_graph)


def _live_tensors() -> list[Any]:
    """All tensors of this process; none without torch, or if its layout is unknown."""
    if "torch" not in sys.modules:
        return []
    from neutracer.heap.cycles import prepare_heap

    try:
        prepare_heap()
    except UnavailableError:
        return []
    return core.heap_tensors()[0]


def _alike_tensors(steps: int, device_type: str) -> Survivors:
    """Groups of live tensors of one shape, at least one per few steps, with their holders."""
    from neutracer.heap.owners import holders_of

    groups: dict[tuple[Any, ...], dict[tuple[int, int], int]] = {}
    graphs = set[tuple[Any, ...]]()
    for tensor in _live_tensors():
        facts = core.tensor_facts(tensor)
        if facts is not None and facts["device_type"] == device_type and facts["data_ptr"]:
            key = (tuple(facts["shape"]), facts["dtype"], facts["storage_bytes"])
            block = facts["data_ptr"], facts["storage_bytes"]
            groups.setdefault(key, {})[block] = facts["storage_bytes"]
            if facts["has_grad_fn"]:
                graphs.add(key)
    least = max(_STEPS_PER_TENSOR, steps // _STEPS_PER_TENSOR)
    many = {key: held for key, held in groups.items() if len(held) >= least}
    ranked = sorted(many.items(), key=lambda item: -sum(item[1].values()))[:_MOST_GROWTHS]
    holders = holders_of({str(at): list(held) for at, (_, held) in enumerate(ranked)})
    found = []
    for at, ((shape, dtype, _), held) in enumerate(ranked):
        nbytes = sum(held.values())
        found.append(
            Growth(
                place=UNKNOWN_PLACE,
                stack=(),
                category=f"{len(held)} tensors {tuple(shape)} {dtype}",
                bytes=nbytes,
                count=len(held),
                steps=0,
                bytes_per_step=nbytes / max(steps, 1),
                share=0.0,
                holders=tuple(holders[str(at)].split("; ")) if str(at) in holders else (),
            )
        )
    return Survivors(tuple(found), has_graph=any(key in graphs for key, _ in ranked))
