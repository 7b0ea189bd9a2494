# SPDX-License-Identifier: Apache-2.0
"""The lives of a trace's allocations as their uses show them: which are past their last use."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.trace.uses import NEVER, UNKNOWN

# So many blocks of one kind tell where the next one is used last.
_FEW = 2


def has_uses(timeline: Timeline) -> bool:
    """Whether the uses of a timeline's allocations were observed."""
    return "last_use_event" in timeline.allocations.columns


def lives_of(snap: Snapshot, timeline: Timeline) -> Lives | None:
    """The lives of one device's allocations; None where the snapshot has no uses."""
    return Lives(snap, timeline) if has_uses(timeline) else None


class Lives:
    """The lives of a timeline's allocations, by row; the snapshot has uses."""

    def __init__(self, snap: Snapshot, timeline: Timeline) -> None:
        rows = timeline.allocations
        self.snap, self.timeline = snap, timeline
        self.made: Sequence[int] = rows.codes("alloc_event").tolist()
        self.freed: Sequence[int] = rows.codes("free_event").tolist()
        self.first: Sequence[int] = rows.codes("first_use_event").tolist()
        self.last: Sequence[int] = rows.codes("last_use_event").tolist()
        self._end = _end_of(snap, timeline)
        # The last step of a recording may have no end in it.
        whole = timeline.steps.steps[: None if snap.rehearsed else -1]
        self._last_step = whole[-1].first if whole else NEVER

    def __len__(self) -> int:
        return len(self.made)

    def is_known(self, row: int) -> bool:
        """Whether the last use is known. A block that the trace does not free may be used behind
        its end, unless a whole step went by without a use, or all blocks that its stack made
        before were used last where it was."""
        if self.first[row] == UNKNOWN:
            return False
        return self.is_freed(row) or self.last[row] < self._last_step or row in self._as_before

    @cached_property
    def _as_before(self) -> dict[int, int]:
        """The rows that the trace does not free, used last at the stack at which all the others of
        their stack, or of their stack and size, were: each with the newest of these, of which there
        are a few. One stack makes several kinds of blocks where an operator casts its arguments."""
        stacks = self.timeline.events.codes("stack").tolist()
        sizes = self.timeline.allocations.codes("size").tolist()
        freed: list[int] = []
        left: list[int] = []
        for row, (made, first) in enumerate(zip(self.made, self.first, strict=True)):
            if made >= 0 and first != UNKNOWN:
                (freed if self.is_freed(row) else left).append(row)
        wanted = {stacks[self.made[row]] for row in left}
        others: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for row in freed:
            if (stack := stacks[self.made[row]]) in wanted:
                others[stack, None].append(row)
                others[stack, sizes[row]].append(row)
        ends = {kind: {stacks[self.last[row]] for row in alike} for kind, alike in others.items()}
        found = {}
        for row in left:
            stack, last = stacks[self.made[row]], {stacks[self.last[row]]}
            for kind in ((stack, None), (stack, sizes[row])):
                if ends.get(kind) == last and len(others[kind]) >= _FEW:
                    found[row] = others[kind][-1]
        return found

    def is_freed(self, row: int) -> bool:
        """Whether the program frees a block within the trace."""
        return 0 <= self.freed[row] <= self._end

    def is_idle(self, row: int, event: int) -> bool:
        """Whether a block that is alive after an event is past its last use, or never used."""
        return event > self.last[row] and self.is_known(row)

    def idle(self) -> Iterator[tuple[int, int, int]]:
        """The rows that are kept past their last use, or never used: the row, the first event
        after which it is idle, and the one that frees it, or the trace's length."""
        for row, (last, freed) in enumerate(zip(self.last, self.freed, strict=True)):
            end = freed if freed >= 0 else len(self.timeline)
            if last + 1 < end and self.is_known(row):
                yield row, last + 1, end


def peak_if_freed(timeline: Timeline, ends: Iterable[tuple[int, int]]) -> int:
    """The peak of allocated if some blocks had been freed earlier, each of the size it has: of each
    its row, and the event after which it is freed."""
    last = array("i", [NEVER]) * len(timeline.allocations)
    for row, end in ends:
        last[row] = end
    return timeline.native.peak_if_freed(last)


def _end_of(snap: Snapshot, timeline: Timeline) -> int:
    """The last event that is the program's: a rehearsal ends it after some steps, and what it frees
    then would live on."""
    ends = [one.time_us for one in snap.annotations if one.stage == "END"]
    return timeline.event_at(ends[-1]) if snap.rehearsed and ends else len(timeline)
