# SPDX-License-Identifier: Apache-2.0
"""Would the whole step fit? What the step that failed needs, as it is and with each remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from neutracer.diagnose.oom.case import Case
from neutracer.diagnose.oom.demand import Demand
from neutracer.diagnose.oom.parts import Verdict
from neutracer.render.row import PlainRow
from neutracer.trace.categories import CATEGORIES
from neutracer.units import format_share

__all__ = ["StepNeeds", "Trial", "step_needs"]


@dataclass(frozen=True)
class Trial(PlainRow):
    """A remedy, and what the step then needs.

    Attributes:
        remedy: What is changed.
        needs_bytes: What would be in use at the most, with what the allocator can't use.
        fits: Whether the process may have so much.
    """

    remedy: str
    needs_bytes: int
    fits: bool


@dataclass(frozen=True)
class StepNeeds(PlainRow):
    """What steps need above what is in use when they begin, and what there is. Bytes.

    Attributes:
        unit: "step", or "round" where the trace shows no steps.
        steps: How many ended before the one that failed.
        floor_bytes: What was in use when it began.
        typical_bytes: What a step before it needed, in the middle.
        largest_bytes: What the largest needed.
        expected_bytes: What the failing one needs if it goes on as they did.
        growth_bytes: What each step leaves behind.
        usable_bytes: What the process could have reserved in all.
        trials: The remedies, and whether the step fits with each.
    """

    unit: str
    steps: int
    floor_bytes: int
    typical_bytes: int
    largest_bytes: int
    expected_bytes: int
    growth_bytes: int
    usable_bytes: int
    trials: tuple[Trial, ...]


def step_needs(case: Case, verdicts: tuple[Verdict, ...]) -> StepNeeds | None:
    """What the failing step needs; None where the trace shows no step that ended."""
    demand = case.demand
    if demand is None or not demand.steps:
        return None
    growth = case.growth if case.still_grows else None
    return StepNeeds(
        demand.unit,
        demand.steps,
        demand.floor,
        demand.typical,
        demand.largest,
        demand.expected,
        0 if growth is None else growth.bytes_per_step,
        case.usable,
        tuple(
            Trial(remedy, max(needs, 0), needs <= case.usable)
            for remedy, needs in _needs(case, demand, verdicts)
        ),
    )


# What a remedy takes away, before the line that makes it.
_WITHOUT = {
    "release": "without what is kept",
    "no_grad": "without the graphs",
    "break_cycles": "without the cycles",
}


def _needs(case: Case, demand: Demand, verdicts: tuple[Verdict, ...]) -> Iterator[tuple[str, int]]:
    """Remedies, and the most that would be in use with each, with what no request can use."""
    lost = case.room.own_free + case.room.other_free
    whole = demand.floor + demand.expected + lost
    yield "as it is", whole
    # The allocator gives its cache back itself before it fails.
    yield "torch.cuda.empty_cache() before it", whole
    for verdict in verdicts:
        remedy = verdict.remedy
        if remedy is None:
            continue
        if remedy.action == "settings":
            yield remedy.setting, whole - case.gives_settings
        elif remedy.action in _WITHOUT and verdict.bytes:
            place = f" by {remedy.place.function}" if remedy.place is not None else ""
            yield _WITHOUT[remedy.action] + place, whole - verdict.bytes
        elif remedy.action == "smaller_step" and remedy.value is not None:
            part = format_share(remedy.value, decimals=0)
            yield f"{part} of the batch or length", whole - _spared(demand, remedy.value)
    yield "half of the batch or length", whole - _spared(demand, 0.5)
    saved = _checkpointed(case)
    if saved:
        yield "activation checkpointing (about)", whole - saved


def _spared(demand: Demand, share: float) -> int:
    return demand.expected - int(share * demand.expected)


def _checkpointed(case: Case) -> int:
    """What checkpointing every few of n layers saves of the activations: all but some
    2/sqrt(n) of them (Chen et al. 2016, "Training deep nets with sublinear memory cost")."""
    timeline = case.timeline
    activations = case.categories.get("activation", 0)
    if timeline is None or not timeline.passes.backward or not activations:
        return 0
    wanted, codes = CATEGORIES.index("activation"), timeline.categories.codes
    count = sum(codes[row] == wanted for row in case.live_rows)
    return int(activations * max(1 - 2 / sqrt(max(count, 1)), 0.0))
