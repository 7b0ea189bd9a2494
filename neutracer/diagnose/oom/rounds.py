# SPDX-License-Identifier: Apache-2.0
"""The steps of a program up to a failure, or the rounds of what repeats in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from neutracer.trace.roles import Role
from neutracer.trace.timeline import Timeline

__all__ = ["FEWEST", "Rounds", "rounds_before"]

#: Fewer steps say nothing of what comes again in each.
FEWEST = 5

# A step is at most this many times as long as the middle one, in events.
_UNLIKE = 4

# So many blocks a line makes in a round, at most, as of a query, a key and a value. For each number
# the trace is looked through again from every anchor.
_MOST_TIMES = 3

# Stacks tried for what comes round where the trace has no steps.
_MOST_ANCHORS = 64


@dataclass(frozen=True)
class Rounds:
    """Where the steps of a program begin.

    Attributes:
        begins: The first event of each, in order; the last of them is of the step that failed, so
            that one less has ended.
        are_steps: Whether the trace shows steps; else they are rounds of what repeats in it.
        is_after_training: The program trained, and then began to do something else, whose
            rounds these are.
    """

    begins: tuple[int, ...]
    are_steps: bool
    is_after_training: bool = False

    @property
    def unit(self) -> str:
        """What to call one of them."""
        return "step" if self.are_steps else "round"


def rounds_before(timeline: Timeline, event: int) -> Rounds | None:
    """The steps up to an event, or else the rounds.

    A round begins where a line of the program outside of modules comes again, once or a few times
    in each: the layers of one forward pass are no steps. Where what follows the last backward
    pass is longer than a step, the program does something else there, and the rounds of that are
    taken.

    Args:
        timeline: Of the device.
        event: The event.

    Returns:
        The rounds; None where there are fewer than `FEWEST`.
    """
    steps = timeline.steps
    begins = [step.first for step in steps if step.first <= event]
    # What repeats may be the layers of one forward pass: these begin inside of a module.
    repeats = steps.how == "repetition"
    if begins and repeats and timeline.passes.role[begins[0]] != Role.USER:
        begins = []
    if begins and steps.steps[len(begins) - 1].end <= event:
        begins.append(steps.steps[len(begins) - 1].end)
    if len(begins) >= FEWEST:
        return _after_training(timeline, begins, event) or Rounds(tuple(begins), True)
    since = begins[-1] if begins else 0
    found = _rounds(timeline, since, event) or _rounds(timeline, 0, event)
    return Rounds(found, False, bool(begins and timeline.passes.backward)) if found else None


def _after_training(timeline: Timeline, begins: Sequence[int], event: int) -> Rounds | None:
    """The rounds of what follows the last real step, without a backward pass; None where that
    step is like the others."""
    lengths = sorted(end - begin for begin, end in pairwise(begins))
    if event - begins[-1] <= lengths[len(lengths) // 2] or not timeline.passes.backward:
        return None
    if any(begin >= begins[-1] for begin, _ in timeline.passes.backward):
        return None
    found = _rounds(timeline, begins[-1], event)
    return Rounds(found, False, is_after_training=True) if found else None


def _rounds(timeline: Timeline, first: int, event: int) -> tuple[int, ...]:
    """The events from `first` on at which the first stack outside of modules comes round that
    does so all along; empty where none does."""
    passes = timeline.passes
    at: dict[int, list[int]] = {}
    for number in range(first, event):
        if passes.allocates[number] and passes.role[number] == Role.USER:
            at.setdefault(passes.stack[number], []).append(number)
    several = sorted(found for found in at.values() if len(found) >= FEWEST)[:_MOST_ANCHORS]
    for found in several:
        if _are_alike([*found, event]):
            return tuple(found)
    # A line may make several blocks in each round, with the same others in between.
    for times in range(2, _MOST_TIMES + 1):
        for found in several:
            begins = found[::times]
            if len(begins) >= FEWEST and _are_alike([*begins, event]) and _repeat(timeline, begins):
                return tuple(begins)
    return ()


def _are_alike(edges: Sequence[int]) -> bool:
    """Whether what lies between these events is about as long each time."""
    lengths = [end - begin for begin, end in pairwise(edges)]
    return max(lengths) <= _UNLIKE * sorted(lengths)[len(lengths) // 2]


def _repeat(timeline: Timeline, begins: Sequence[int]) -> bool:
    """Whether all whole rounds are made by the same stacks in the same order, and by several."""
    passes = timeline.passes
    made = [
        tuple(passes.stack[at] for at in range(begin, end) if passes.allocates[at])
        for begin, end in pairwise(begins)
    ]
    return len(set(made)) == 1 and len(set(made[0])) > 1
