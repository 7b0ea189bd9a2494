# SPDX-License-Identifier: Apache-2.0
"""A step that does more of the same: as losses that are summed before one backward pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from neutracer.diagnose.oom.case import Case
from neutracer.render.document import Place
from neutracer.trace.places import callers_of, place_of
from neutracer.trace.roles import Role, role_of
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["Repeats", "repeats_of"]

# Of what modules made in the step and is still there, so much at least is of sizes that a step
# before it made by the same lines: of a longer sequence or a larger batch next to nothing is.
_SAME = 0.8

# And so many times as much of these was made as in any step before: a step that does the same
# again makes no more of them, and one that failed on its way has made less than it would have.
_MORE = 1.1

# Steps before the failing one that it is compared with.
_COMPARED = 8

_COLUMNS = ("alloc_event", "stack", "size")


@dataclass(frozen=True)
class Repeats:
    """What a step made more often than any before it.

    Attributes:
        place: The line that made most of it.
        callers: The lines that called it, innermost first.
        times: How many times as often as the step before it that did so most often.
    """

    place: Place
    callers: tuple[Place, ...]
    times: float


def repeats_of(case: Case) -> Repeats | None:
    """Of a program that trains: what modules made in the failing step more often than in any of
    those before it, each time as much, and was kept for the backward pass."""
    timeline, rounds = case.timeline, case.rounds
    if timeline is None or rounds is None or not timeline.passes.backward:
        return None
    *earlier, last = rounds.begins[-_COMPARED - 1 :]
    held = _held(case, timeline, last)
    before = _most_before(timeline, [*earlier, last])
    same = [what for what in held if what in before]
    if not same or _bytes(held, same) < _SAME * _bytes(held, held):
        return None
    times = _bytes(_made(timeline, last, case.at + 1), same) / _bytes(before, same)
    if times < _MORE:
        return None
    stack, _ = max(same, key=lambda what: what[1] * held[what])
    frames = case.snap.stacks[stack]
    return Repeats(place_of(frames), callers_of(frames), times)


def _bytes(counts: Counter[tuple[int, int]], of: Iterable[tuple[int, int]]) -> int:
    """What the blocks of some stacks and sizes take together, where there are so many of each."""
    return sum(size * counts[stack, size] for stack, size in of)


def _held(case: Case, timeline: Timeline, begin: int) -> Counter[tuple[int, int]]:
    """How many blocks modules made from an event on that are still there, by stack and size."""
    made, stacks, sizes = (timeline.allocations.codes(name) for name in _COLUMNS)
    held = Counter((stacks[row], sizes[row]) for row in case.live_rows if made[row] >= begin)
    roles = {stack: role_of(case.snap.stacks[stack]) for stack, _ in held if stack != NONE}
    return Counter(
        {what: count for what, count in held.items() if roles.get(what[0]) is Role.MODULE}
    )


def _most_before(timeline: Timeline, begins: Sequence[int]) -> Counter[tuple[int, int]]:
    """How many a step made of each stack and size, the one that made most of them."""
    most: Counter[tuple[int, int]] = Counter()
    for begin, end in pairwise(begins):
        most |= _made(timeline, begin, end)
    return most


def _made(timeline: Timeline, begin: int, end: int) -> Counter[tuple[int, int]]:
    """How many blocks were made from an event on and before another, by stack and size."""
    made, stacks, sizes = (timeline.allocations.codes(name) for name in _COLUMNS)
    rows = range(bisect_left(made, begin), bisect_left(made, end))
    return Counter((stacks[row], sizes[row]) for row in rows)
