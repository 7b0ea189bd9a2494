# SPDX-License-Identifier: Apache-2.0
"""The settings that were tried, ranked, and the best of them with their ranges."""

from __future__ import annotations

from neutracer.diagnose.recommend_search import Survey, order_of, smallest_capacities
from neutracer.diagnose.replaying import Replayer
from neutracer.diagnose.what_if_parts import Outcome

__all__ = ["Row", "best_of", "rank"]

# How many candidates may get a range.
_RANGED = 6

# Capacities up to this much above the smallest one are as good: the model is of one run.
_ALIKE = 1.02

# The search for the smallest capacity of every candidate takes at most about so many steps
# of the program, some ten seconds of one core; of a longer trace fewer candidates have it.
_STEPS = 60_000_000
_RUNS_A_SEARCH = 16

#: An outcome, and its smallest capacity where that was searched for.
Row = tuple[Outcome, int | None]


def rank(replayer: Replayer, objective: str, found: Survey) -> tuple[list[Row], int]:
    """What was tried, the best first.

    Returns:
        Outcomes without ranges, with smallest capacities where they are ranked by them; and
        below how many bytes these are no better than others.
    """
    distinct: dict[tuple[object, ...], Outcome] = {}
    for outcome in found.outcomes:
        figures = (outcome.peak_reserved_bytes, outcome.reserved_bytes, outcome.device_allocs)
        distinct.setdefault((*figures, outcome.device_frees, outcome.ooms), outcome)
    tried = sorted(distinct.values(), key=lambda each: order_of(objective, each, None))
    if objective != "fit":
        return [(each, None) for each in tried], 0
    tried = tried[: max(_RANGED, _STEPS // _RUNS_A_SEARCH // replayer.facts["steps"])]
    beaten_by = _beaten_by(found, tried)
    needs = smallest_capacities(replayer, tried, found, beaten_by)
    known = [nbytes for nbytes in needs.values() if nbytes is not None]
    alike = int(min(known, default=0) * _ALIKE)
    rows = [(each, needs[each.settings]) for each in tried]
    if beaten_by is not None:
        rows = [(each, nbytes) for each, nbytes in rows if nbytes is not None]
    rows.sort(key=lambda row: order_of(objective, row[0], row[1], alike))
    return rows, alike


def _beaten_by(found: Survey, tried: list[Outcome]) -> int | None:
    """The smallest capacity above which nothing that was tried does better than the recorded
    settings, nor is as good as what does; None where something does better for another
    reason: it fails less."""

    def failures(outcome: Outcome) -> tuple[int, ...]:
        return order_of("fit", outcome, None)[:2]

    fails_less = any(failures(each) < failures(found.recorded) for each in tried)
    return None if fails_less or found.smallest is None else int(found.smallest * _ALIKE)


def best_of(
    replayer: Replayer, objective: str, found: Survey, ranked: list[Row], alike: int, most: int
) -> list[Row]:
    """The rows that do better than the recorded settings, `most` of them, with ranges.

    A range makes an outcome no better, and so only those get one that are among the best
    without; the rows are what `rank` made, with its `alike`.
    """
    rows = ranked[:_RANGED]
    base = order_of(objective, found.recorded, found.smallest)[:3]
    is_ranged = [False] * len(rows)
    while True:
        able = [i for i, row in enumerate(rows) if order_of(objective, *row)[:3] < base]
        able.sort(key=lambda i: order_of(objective, rows[i][0], rows[i][1], alike))
        missing = [i for i in able[:most] if not is_ranged[i]]
        if not missing:
            return [rows[i] for i in able[:most]]
        outcomes = replayer.map(replayer.outcome, [rows[i][0].settings for i in missing])
        for i, outcome in zip(missing, outcomes, strict=True):
            rows[i], is_ranged[i] = (outcome, rows[i][1]), True
