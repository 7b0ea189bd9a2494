# SPDX-License-Identifier: Apache-2.0
"""What the removal of a cause buys: how far the program then goes, in bytes and in its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neutracer.diagnose.oom.case import Case
from neutracer.diagnose.oom.demand import Demand
from neutracer.diagnose.oom.parts import KINDS, Verdict
from neutracer.render.document import Note
from neutracer.units import format_bytes, format_count

__all__ = ["ranked"]

# The program counts as able to go on where it could make so many times the steps it has made.
_PLENTY = 10

# In a first step, of which nothing tells what it needs in all, less than this share of the
# reserved memory free inside is not what it lacks: it has hardly begun.
_OF_A_FIRST_STEP = 0.2

# What grows comes before other causes that let the program go on if it has this share of all.
_MUCH = 0.1


def ranked(case: Case, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts with what each buys: what lets the program go on first, then what takes it
    furthest.

    Of causes that let it go on the one that ends its growth comes first, else the order is that
    of `KINDS`. Where nothing shows what a step needs, what lets the request succeed comes
    first, in that order, and then the others, the most bytes first.
    """
    bought = [_with_headroom(case, verdict) for verdict in verdicts]
    return tuple(sorted(bought, key=lambda verdict: _rank(case, verdict)))


def _rank(case: Case, verdict: Verdict) -> tuple[int, float, float]:
    place = float(KINDS.index(verdict.kind))
    if verdict.kind in ("leak", "cache_growth") and not case.still_grows:
        # What came after the loop failed, and not the loop.
        place = float(len(KINDS))
    if verdict.finishes:
        ends = _is_much(case) and not _growth_without(case, verdict)
        return (0, 0.0 if ends else 1.0, place)
    if not verdict.suffices:
        return (3, -float(verdict.bytes), place)
    if verdict.finishes is None:
        return (1, 0.0, place)
    return (2, -float(verdict.headroom_bytes or 0), place)


def _is_much(case: Case) -> bool:
    """Whether what grows has taken a good part of what there is."""
    growth = case.growth
    return growth is not None and case.still_grows and growth.bytes >= _MUCH * case.usable


def _with_headroom(case: Case, verdict: Verdict) -> Verdict:
    demand = case.demand
    if demand is None or not case.failure.happened:
        hardly = verdict.kind == "fragmentation" and case.is_first_step
        few = case.room.own_free < _OF_A_FIRST_STEP * case.room.reserved
        return replace(verdict, finishes=False) if hardly and few else verdict
    if verdict.kind == "capacity":
        # It says how much smaller the step has to be: that is all it takes.
        return replace(verdict, finishes=_growth_without(case, verdict) == 0)
    gives = _gives(case, verdict)
    left = case.room.budget.headroom + gives - case.failure.size - demand.rest
    growth = _growth_without(case, verdict)
    steps = max(left, 0) // growth if growth else None
    goes_on = left >= 0 and (steps is None or steps >= _PLENTY * demand.steps)
    if verdict.kind == "fragmentation":
        # What it frees must be more than steps differ by: the next large one comes. And of a
        # step larger than any other the end has to be in sight.
        in_sight = demand.is_scaled or not demand.is_larger or case.asks_once
        goes_on = goes_on and verdict.suffices and demand.spread <= gives and in_sight
    told = () if goes_on else _told(demand, left, steps, growth)
    return replace(
        verdict,
        evidence=(*verdict.evidence, *told),
        headroom_bytes=left,
        headroom_steps=steps,
        finishes=goes_on,
    )


def _told(demand: Demand, left: int, steps: int | None, growth: int) -> tuple[Note, ...]:
    """How far the program comes without a cause that is not all."""
    if left < 0:
        missing = format_bytes(-left)
        return (Note(f"Without it the {demand.unit} would still lack {missing} to its end."),)
    if steps is None:
        return ()
    more, each = format_count(steps, f"more {demand.unit}"), format_bytes(growth)
    return (Note(f"Without it there is room for {more}, of which each leaves {each} behind."),)


def _gives(case: Case, verdict: Verdict) -> int:
    """The bytes that the removal of a cause gives."""
    room = case.room
    if verdict.kind == "fragmentation":
        return case.gives_settings
    if verdict.kind == "process_cap":
        return verdict.bytes - room.budget.headroom
    growers = () if case.growth is None else case.growth.growers
    if verdict.kind == "cache_growth" and case.place in [one.place for one in growers]:
        # Where the cache itself asked, the request and what it piles on are part of it.
        rest = 0 if case.demand is None else case.demand.rest
        return verdict.bytes + case.failure.size + rest
    return verdict.bytes


def _growth_without(case: Case, verdict: Verdict) -> int:
    """What each step leaves behind once the cause is gone."""
    growth = case.growth
    if growth is None or not case.still_grows or verdict.kind in ("leak", "cache_growth"):
        return 0
    if verdict.kind == "cycle_garbage" and case.growth_is_garbage:
        return 0
    return growth.bytes_per_step
