# SPDX-License-Identifier: Apache-2.0
"""A step that does more of the same: as losses that are summed before one backward pass."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
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

# And there is so many times as much of it: a step that failed on its way has done less than it
# would have.
_MORE = 1.2

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
    held = _held(case, timeline, rounds.begins[-1])
    before = _most_before(timeline, rounds.begins[-_COMPARED - 1 :])
    same = {what: count for what, count in held.items() if what in before}
    whole = sum(size * count for (_, size), count in held.items())
    known = sum(size * count for (_, size), count in same.items())
    usual = sum(size * before[stack, size] for stack, size in same)
    if not usual or known < _SAME * whole or known < _MORE * usual:
        return None
    stack, _ = max(same, key=lambda what: what[1] * same[what])
    frames = case.snap.stacks[stack]
    return Repeats(place_of(frames), callers_of(frames), known / usual)


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
    made, stacks, sizes = (timeline.allocations.codes(name) for name in _COLUMNS)
    most: Counter[tuple[int, int]] = Counter()
    for begin, end in pairwise(begins):
        rows = range(bisect_left(made, begin), bisect_left(made, end))
        most |= Counter((stacks[row], sizes[row]) for row in rows)
    return most
