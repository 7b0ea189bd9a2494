# SPDX-License-Identifier: Apache-2.0
"""Would the whole step fit? What the step that failed needs, as it is and with each remedy."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from neutracer.diagnose.oom.parts import Case, Verdict
from neutracer.trace.categories import CATEGORIES
from neutracer.units import format_share

__all__ = ["StepNeeds", "Trial", "step_needs"]


@dataclass(frozen=True)
class Trial:
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
class StepNeeds:
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
    usable = case.room.reserved + case.room.budget.headroom
    growth = case.growth if case.still_grows else None
    return StepNeeds(
        demand.unit,
        demand.steps,
        demand.floor,
        demand.typical,
        demand.largest,
        demand.expected,
        0 if growth is None else growth.bytes_per_step,
        usable,
        tuple(_trials(case, verdicts, usable)),
    )


def _trials(case: Case, verdicts: tuple[Verdict, ...], usable: int) -> list[Trial]:
    demand = case.demand
    if demand is None:
        return []
    lost = case.room.own_free + case.room.other_free
    whole = demand.floor + demand.expected

    def trial(remedy: str, needs: int) -> Trial:
        return Trial(remedy, needs, needs <= usable)

    trials = [
        trial("as it is", whole + lost),
        # The allocator gives its cache back itself before it fails.
        trial("torch.cuda.empty_cache() before it", whole + lost),
    ]
    for verdict in verdicts:
        remedy = verdict.remedy
        if remedy is None:
            continue
        if remedy.action == "settings":
            trials.append(trial(remedy.setting, whole + lost - case.gives_settings))
        elif remedy.action in ("release", "break_cycles", "no_grad") and verdict.bytes:
            place = f" by {remedy.place.function}" if remedy.place is not None else ""
            words = {"release": "without what is kept", "no_grad": "without the graphs"}
            text = words.get(remedy.action, "without the cycles") + place
            trials.append(trial(text, max(whole + lost - verdict.bytes, 0)))
        elif remedy.action == "smaller_step" and remedy.value is not None:
            part = format_share(remedy.value, decimals=0)
            needs = demand.floor + int(remedy.value * demand.expected) + lost
            trials.append(trial(f"{part} of the batch or length", needs))
    trials.append(trial("half of the batch or length", demand.floor + demand.expected // 2 + lost))
    saved = _checkpointed(case)
    if saved:
        trials.append(trial("activation checkpointing (about)", whole + lost - saved))
    return trials


def _checkpointed(case: Case) -> int:
    """What checkpointing every few of n layers saves of the activations: all but some
    2/sqrt(n) of them (Chen et al. 2016, "Training deep nets with sublinear memory cost")."""
    timeline = case.timeline
    activations = case.categories.get("activation", 0)
    if timeline is None or not timeline.passes.backward or not activations:
        return 0
    rows, wanted = timeline.allocations, CATEGORIES.index("activation")
    columns = (timeline.categories.codes, rows.codes("alloc_event"), rows.codes("free_event"))
    count = sum(
        category == wanted and made <= case.at and freed != -2 and not 0 <= freed <= case.at
        for category, made, freed in zip(*columns, strict=True)
    )
    return int(activations * max(1 - 2 / sqrt(max(count, 1)), 0.0))
