# SPDX-License-Identifier: Apache-2.0
"""Which causes a failure has, and in which order they are told."""

from __future__ import annotations

from neutracer.diagnose.oom.buys import ranked
from neutracer.diagnose.oom.capacity import new_holder, too_large_a_step, too_little
from neutracer.diagnose.oom.case import Case, Cause
from neutracer.diagnose.oom.inside import cycle_garbage, fragmentation, other_pool
from neutracer.diagnose.oom.limits import had_room, non_torch, process_cap, unreasonable_request
from neutracer.diagnose.oom.parts import KINDS, Verdict
from neutracer.diagnose.oom.piled import cache_growth, leak

__all__ = ["looked_at", "verdicts_of"]

# After an unreasonable request; what is left is a program that needs too much.
_CAUSES: tuple[Cause, ...] = (
    fragmentation,
    cycle_garbage,
    other_pool,
    non_torch,
    leak,
    cache_growth,
    process_cap,
)


def verdicts_of(case: Case) -> tuple[Verdict, ...]:
    """What was in the way: first what lets the program go on, or takes it furthest."""
    if case.room.holds:
        return (had_room(case),)
    hopeless = unreasonable_request(case)
    if hopeless is not None:
        return (hopeless,)
    found = [verdict for cause in _CAUSES if (verdict := cause(case)) is not None]
    needs = None
    if case.growth is None:
        needs = new_holder(case) or too_large_a_step(case)
    first = ranked(case, found)
    if needs is None and not any(_helps(verdict) for verdict in first):
        needs = too_little(case)
    return first if needs is None else ranked(case, (*found, needs))


def looked_at(case: Case) -> tuple[str, ...]:
    """The kinds of verdicts that what is known could have shown."""
    known = dict.fromkeys(KINDS, True)
    known["leak"] = known["cache_growth"] = case.rounds is not None
    known["cycle_garbage"] = case.facts.garbage_bytes is not None or case.rounds is not None
    known["non_torch"] = case.room.budget.non_torch is not None
    known["process_cap"] = case.room.budget.device_free is not None
    return tuple(kind for kind in KINDS if known[kind])


def _helps(verdict: Verdict) -> bool:
    """Whether the program gets on with this cause removed, as far as anyone can see."""
    return verdict.suffices and verdict.finishes is not False
