# SPDX-License-Identifier: Apache-2.0
"""Backward passes whose own graph is kept, as backward(create_graph=True) does."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from neutracer.diagnose.oom.rounds import FEWEST, Rounds
from neutracer.render.document import Place
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.places import place_of
from neutracer.trace.roles import Role
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline

__all__ = ["graph_keeper"]

# A pass leaves one gradient for each parameter behind, which take as much as these do; a tenth for
# what the allocator rounds up. With a graph it was 4 to 290 times as much, in models of linear
# layers, convolutions and attention.
_MORE = 1.1

# A graph has so much at least of what the modules' forward made: in the same models a quarter
# (where most of it are logits, which nothing saves) to three quarters.
_FORWARD = 0.1

# So many of the steps that can be judged keep a graph; a batch may be two rounds, of which one
# does.
_STEPS = 0.4

_PARAMETER = CATEGORIES.index("parameter")


@dataclass
class _Pass:
    """What the modules made in a step for one of its backward passes, in bytes."""

    made: int = 0
    kept: int = 0
    freed: int = 0

    @property
    def keeps_forward(self) -> bool:
        """Whether some of it is still there, and no backward pass freed any: a graph that is kept
        keeps what it saved."""
        return self.made > 0 and not self.freed and self.kept >= _FORWARD * self.made


@dataclass
class _Step:
    """What one step did: by role the bytes that are still there, and its backward passes."""

    kept: Counter[int] = field(default_factory=Counter)
    passes: defaultdict[int, _Pass] = field(default_factory=lambda: defaultdict(_Pass))

    def can_be_judged(self, parameters: int) -> bool:
        """Whether it ran forward and backward, and it is known what one gradient for each
        parameter takes."""
        return bool(self.passes) and (self.kept[Role.BUILD] or parameters) > 0

    def keeps_graph(self, parameters: int) -> bool:
        """Whether it left more than one gradient for each parameter behind, and one of its
        backward passes what had been made for it.

        Args:
            parameters: The bytes of those that were there before the steps.
        """
        one_each = self.kept[Role.BUILD] or parameters
        keeps_more = self.kept[Role.BACKWARD] > _MORE * one_each
        return keeps_more and any(one.keeps_forward for one in self.passes.values())


class _Passes:
    """The backward passes of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        passes = timeline.passes
        self._spans = passes.backward
        self.begins = [begin for begin, _ in passes.backward]
        made = (at for begin, end in passes.backward for at in range(begin, end))
        self._gradients = [
            at for at in made if passes.allocates[at] and passes.role[at] == Role.BACKWARD
        ]

    def after(self, made: int, end: int) -> int | None:
        """The number of the first one that begins after an event, and before another."""
        number = bisect_right(self.begins, made)
        return number if number < len(self.begins) and self.begins[number] < end else None

    def frees(self, made: int, freed: int) -> bool:
        """Whether one frees what was made before it.

        Where frees have no stacks of their own, those right behind a pass count as in it: what is
        freed before its last gradient is made is sure to be.
        """
        number = bisect_right(self.begins, freed) - 1
        if number < 0 or made >= self.begins[number]:
            return False
        later = bisect_right(self._gradients, freed)
        return later < len(self._gradients) and self._gradients[later] < self._spans[number][1]


def graph_keeper(snap: Snapshot, timeline: Timeline, rounds: Rounds, event: int) -> Place | None:
    """The line whose backward passes leave more behind than a gradient for each parameter, and
    the forward passes before them; None where none does, or where it can't be told.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        rounds: The steps up to the event.
        event: The event that is asked about.
    """
    role, rows, begins = timeline.passes.role, timeline.allocations, rounds.begins
    steps = [_Step() for _ in begins[:-1]]
    backward: list[tuple[int, int]] = []
    passes = _Passes(timeline)
    columns = [rows.codes(name) for name in ("alloc_event", "free_event", "size")]
    for at, freed, size in zip(*columns, strict=True):
        if not begins[0] <= at < begins[-1]:
            continue
        number = bisect_right(begins, at)
        step, is_kept = steps[number - 1], freed == -1 or freed > event
        step.kept[role[at]] += size * is_kept
        if role[at] == Role.BACKWARD and is_kept:
            backward.append((at, size))
        its = passes.after(at, begins[number]) if role[at] == Role.MODULE else None
        if its is not None:
            one = step.passes[its]
            one.made += size
            one.kept += size * is_kept
            one.freed += size * (freed < begins[number] and passes.frees(at, freed))
    parameters = _parameters(timeline, begins[0])
    votes = [one.keeps_graph(parameters) for one in steps if one.can_be_judged(parameters)]
    # The last of the fewest steps is the one that failed, which says nothing.
    if len(votes) < FEWEST - 1 or sum(votes) < _STEPS * len(votes):
        return None
    return _caller(snap, timeline, backward)


def _parameters(timeline: Timeline, event: int) -> int:
    """The bytes of the parameters that are there when an event comes."""
    rows, codes = timeline.allocations, timeline.categories.codes
    columns = [rows.codes(name) for name in ("alloc_event", "free_event", "size")]
    return sum(
        size
        for code, at, freed, size in zip(codes, *columns, strict=True)
        if code == _PARAMETER and at < event and (freed == -1 or freed >= event)
    )


def _caller(snap: Snapshot, timeline: Timeline, backward: list[tuple[int, int]]) -> Place | None:
    """The line that began most of the passes that made these, by their first gradients."""
    passes, stacks = timeline.passes, timeline.events.codes("stack")
    seeds = [
        at for at, role in enumerate(passes.role) if role == Role.SEED and passes.allocates[at]
    ]
    by: Counter[int] = Counter()
    for at, size in backward:
        before = bisect_right(seeds, at)
        if before:
            by[stacks[seeds[before - 1]]] += size
    return place_of(snap.stacks[by.most_common(1)[0][0]]) if by else None
