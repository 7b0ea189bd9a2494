# SPDX-License-Identifier: Apache-2.0
"""What the steps of a program needed, and what the one that failed needs if it is to end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutracer.diagnose.leaks.series import highs
from neutracer.diagnose.oom.budget import Failure
from neutracer.diagnose.oom.growth import rises
from neutracer.diagnose.oom.rounds import Rounds
from neutracer.trace.stacks import NONE, Frame
from neutracer.trace.timeline import Timeline

__all__ = ["Demand", "demand_of", "optimizer_demand"]

# Steps before the failing one that it is compared with.
_COMPARED = 8

# A step that asks for so many times what any before asked for at that point is a larger one.
_LARGER = 1.1


# Bytes of state that optimizers keep for each byte of parameters, by a part of their file's name.
_STATES = (("adam", 2), ("adagrad", 1), ("rmsprop", 1), ("sgd", 1), ("lion", 1))


@dataclass(frozen=True)
class Demand:
    """What steps needed above what was in use when they began. Sizes in bytes.

    Attributes:
        floor: What was in use when the failing step began.
        typical: What a step needed, in the middle.
        largest: What the largest step before the failing one needed.
        so_far: What the failing step had in use of its own, its last request included.
        expected: What it needs in all, if it goes on as the steps before it did.
        steps: How many steps ended before it.
        unit: "step", or "round" where the trace shows none.
        rise: By how much a step needs more than the one before it, where that goes on.
        is_scaled: It was compared with others at the same point; else `expected` is the least
            that it can need.
    """

    floor: int
    typical: int
    largest: int
    so_far: int
    expected: int
    steps: int
    unit: str
    rise: int = 0
    is_scaled: bool = True

    @property
    def rest(self) -> int:
        """What the failing step needs besides the request that failed."""
        return max(self.expected - self.so_far, 0)

    @property
    def spread(self) -> int:
        """By how much the largest step before it is above the one in the middle."""
        return self.largest - self.typical

    @property
    def is_larger(self) -> bool:
        """Whether the failing step needs clearly more than any before."""
        return self.expected > _LARGER * self.largest


def demand_of(timeline: Timeline, rounds: Rounds | None, failure: Failure) -> Demand | None:
    """What the steps up to a failure needed.

    The failing step is compared with those before it at the same point, which is after as
    many allocations: it needs as many times their bytes in all as it had taken there.

    Args:
        timeline: Of the device.
        rounds: Its steps up to the failure.
        failure: The request that failed; one with an event.

    Returns:
        The demand; None where no step ended before the failure.
    """
    if rounds is None or failure.event is None:
        return None
    live, begins = timeline.allocated, rounds.begins
    floors = [live[begin - 1] if begin else 0 for begin in begins]
    peaks = highs(live[: begins[-1]], begins[:-1])
    needs = [peak - floor for peak, floor in zip(peaks, floors, strict=False)]
    if not needs:
        return None
    if len(needs) > 2:
        # In its first step a program makes what stays: gradients, the optimizer's state.
        del needs[0]
    so_far = max(live[failure.event] + failure.size - floors[-1], 0)
    ratios = _ratios(timeline, begins, floors, failure, so_far)
    scale = sorted(ratios)[len(ratios) // 2] if ratios else 0.0
    recent = sorted(needs[-_COMPARED:])
    expected = int(scale * recent[len(recent) // 2]) if scale else recent[len(recent) // 2]
    return Demand(
        floor=floors[-1],
        typical=sorted(needs)[len(needs) // 2],
        largest=max(needs),
        so_far=so_far,
        expected=max(expected, so_far),
        steps=len(begins) - 1,
        unit=rounds.unit,
        rise=(needs[-1] - needs[0]) // (len(needs) - 1) if rises(needs) else 0,
        is_scaled=bool(ratios),
    )


def optimizer_demand(
    live: int, failure: Failure, categories: Mapping[str, int], stack: Sequence[Frame]
) -> Demand | None:
    """What the first step of an optimizer needs, which makes the state of all parameters.

    Args:
        live: What was in use when its request failed.
        failure: The request.
        categories: The bytes in use by category.
        stack: Of the request, innermost first.

    Returns:
        The demand; None where the optimizer or its parameters are not known.
    """
    files = [frame.filename.replace("\\", "/") for frame in stack]
    names = [name.rsplit("/", 1)[-1] for name in files if "/torch/optim/" in name]
    times = next((times for part, times in _STATES for name in names if part in name), 0)
    state = categories.get("optimizer_state", 0)
    whole = times * categories.get("parameter", 0)
    if not whole:
        return None
    expected = max(whole, state + failure.size)
    return Demand(live - state, expected, expected, state + failure.size, expected, 0, "step")


def _ratios(
    timeline: Timeline,
    begins: Sequence[int],
    floors: Sequence[int],
    failure: Failure,
    so_far: int,
) -> list[float]:
    """How many times as much the failing step had taken as each of those before it had at
    the same point; empty where they do other things there."""
    made = timeline.events.find("action", "alloc")
    stacks = timeline.events.codes("stack")
    event = failure.event or 0
    own = made[bisect_left(made, begins[-1]) : bisect_left(made, event)]
    again = sum(stacks[at] == stacks[event] for at in own)
    ratios = []
    for number in range(max(len(begins) - 1 - _COMPARED, 0), len(begins) - 1):
        step = made[bisect_left(made, begins[number]) : bisect_left(made, begins[number + 1])]
        at = _same_point(step, stacks, stacks[event], len(own), again)
        taken = 0 if at is None else timeline.allocated[at] - floors[number]
        if taken > 0:
            ratios.append(so_far / taken)
    return ratios


def _same_point(
    step: Sequence[int], stacks: Sequence[int], stack: int, nth: int, again: int
) -> int | None:
    """The event of a step that a request of another step corresponds to: as many allocations
    into it, or else the allocation by the same line that has as many of that line before it."""
    if nth < len(step) and stacks[step[nth]] == stack:
        return step[nth]
    if stack == NONE:
        return None
    same = [at for at in step if stacks[at] == stack]
    return same[min(again, len(same) - 1)] if same else None
