# SPDX-License-Identifier: Apache-2.0
"""Backward passes whose own graph is kept, as backward(create_graph=True) does."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from neutracer.diagnose.oom.rounds import Rounds
from neutracer.render.document import Place
from neutracer.trace.places import place_of
from neutracer.trace.roles import Role
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline

__all__ = ["graph_keeper"]

# A pass leaves one gradient for each parameter behind: where the model is kept, they take as much
# as it does, and a graph some more.
_MORE = 1.1

# A graph has part of what the modules' forward made, which a backward pass frees otherwise: with a
# model that is kept so much of it at least, and of one that stays most of it.
_FORWARD_OF_A_NEW = 0.1
_FORWARD = 0.4

# So many of the steps keep a graph.
_STEPS = 0.6


@dataclass
class _Step:
    """What one step made that is still there, in bytes, by role; and what it made."""

    kept: Counter[int] = field(default_factory=Counter)
    made: Counter[int] = field(default_factory=Counter)

    @property
    def keeps_graph(self) -> bool:
        """Whether its backward pass left more than gradients, and its forward pass something."""
        models, gradients = self.kept[Role.BUILD], self.kept[Role.BACKWARD]
        least = _FORWARD_OF_A_NEW if models else _FORWARD
        keeps_forward = self.kept[Role.MODULE] >= least * self.made[Role.MODULE] > 0
        return keeps_forward and gradients > _MORE * models


def graph_keeper(snap: Snapshot, timeline: Timeline, rounds: Rounds, event: int) -> Place | None:
    """The line whose backward passes leave more behind than a gradient for each parameter, and
    the forward passes before them; None where none does.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        rounds: The steps up to the event.
        event: The event that is asked about.
    """
    role, rows, begins = timeline.passes.role, timeline.allocations, rounds.begins
    steps = [_Step() for _ in begins[:-1]]
    backward: list[tuple[int, int]] = []
    columns = zip(
        rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("size"), strict=True
    )
    for at, freed, size in columns:
        if begins[0] <= at < begins[-1]:
            step = steps[bisect_right(begins, at) - 1]
            step.made[role[at]] += size
            if freed == -1 or freed > event:
                step.kept[role[at]] += size
                if role[at] == Role.BACKWARD:
                    backward.append((at, size))
    if sum(step.keeps_graph for step in steps) < _STEPS * len(steps):
        return None
    return _caller(snap, timeline, backward)


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
