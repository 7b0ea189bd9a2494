# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is that grows: the stacks of what survives step after step."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from neutracer.diagnose.leaks.series import Observed
from neutracer.render.document import Place
from neutracer.render.row import PlainRow
from neutracer.trace.places import place_of
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline

__all__ = [
    "Growth",
    "Survivors",
    "allocated_blocks",
    "fallen",
    "growth_of",
    "snapshot_growth",
]

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
