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
    """The blocks behind a growth.

    Attributes:
        growth: By stack, the most bytes first.
        addresses: (address, size) of blocks alive at the end of the trace, the newest first,
            per stack of `growth`.
        freed: The lines that freed blocks in falls, with their number of blocks.
        has_graph: An inspected tensor has an autograd graph.
    """

    growth: tuple[Growth, ...] = ()
    addresses: tuple[tuple[tuple[int, int], ...], ...] = ()
    freed: tuple[tuple[Place, int], ...] = ()
    has_graph: bool = False

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
        warmup: Steps to set aside.
        fell: The series is a saw-tooth: blocks freed later count too.
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
    if count < _AT_ONE_LINE * freed.total() or _does_more(timeline, code):
        return None
    stack = timeline.events[list(stacks).index(code)].stack
    return place_of(stack) if stack and _text(stack[0]) else None


def _does_more(timeline: Timeline, code: int) -> bool:
    stacks = timeline.events.codes("stack")
    actions = cast("list[str]", timeline.events["action"])
    pairs = zip(stacks, actions, strict=True)
    return any(stack == code and action == "alloc" for stack, action in pairs)


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
    """When the memory is full, at this rate.

    Attributes:
        step: The step, counted as in the series; None for never, or without a capacity.
        between: The first and last step by the growth's interval; a last of None is never.
        in_us: Microseconds from the last step on; None if a step's length is unknown.
    """

    step: int | None
    between: tuple[int, int | None] | None
    in_us: float | None


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
