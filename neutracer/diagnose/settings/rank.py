# SPDX-License-Identifier: Apache-2.0
"""The settings that were tried, ranked, and the best of them with their ranges."""

from __future__ import annotations

from neutracer.diagnose.settings.replaying import Replayer
from neutracer.diagnose.settings.search import Survey, order_of, smallest_capacities
from neutracer.diagnose.settings.what_if_parts import Outcome

__all__ = ["ALIKE", "Row", "best_of", "is_worth", "rank"]

#: Figures of up to this share above the least are as good, for the model is of one run; and
#: a setting that saves less than it is no better than the recorded one.
ALIKE = 0.02

# How many candidates may get a range.
_RANGED = 6

# The search for the smallest capacity of every candidate takes at most about so many steps
# of the program, some ten seconds of one core; of a longer trace fewer candidates have it.
_STEPS = 60_000_000
_RUNS_A_SEARCH = 16

#: An outcome, and its smallest capacity where that was searched for.
Row = tuple[Outcome, int | None]


def rank(replayer: Replayer, objective: str, found: Survey) -> list[Row]:
    """What was tried, the best first.

    Returns:
        Outcomes without ranges, with smallest capacities where they are ranked by them.
    """
    distinct: dict[tuple[object, ...], Outcome] = {}
    for outcome in found.outcomes:
        figures = (outcome.peak_reserved_bytes, outcome.reserved_bytes, outcome.device_allocs)
        distinct.setdefault((*figures, outcome.device_frees, outcome.ooms), outcome)
    tried = sorted(distinct.values(), key=lambda each: order_of(objective, each, None))
    if objective != "fit":
        return _ranked(objective, [(each, None) for each in tried])
    tried = tried[: max(_RANGED, _STEPS // _RUNS_A_SEARCH // replayer.facts["steps"])]
    beaten_by = _beaten_by(found, tried)
    needs = smallest_capacities(replayer, tried, found, beaten_by)
    rows = [(each, needs[each.settings]) for each in tried]
    if beaten_by is not None:
        rows = [(each, nbytes) for each, nbytes in rows if nbytes is not None]
    return _ranked(objective, rows)


def _ranked(objective: str, rows: list[Row]) -> list[Row]:
    """The rows, the best first."""
    alike = _alike(objective, rows)
    return sorted(rows, key=lambda row: order_of(objective, row[0], row[1], alike))


def _alike(objective: str, rows: list[Row]) -> tuple[int, int]:
    """Up to which values the two figures of an objective are as good as the least."""
    keys = [order_of(objective, *row)[:4] for row in rows]
    if not keys:
        return (0, 0)
    *failures, first, _ = min(keys)
    first = _above(first)
    seconds = [key[3] for key in keys if [*key[:2]] == failures and key[2] <= first]
    return first, _above(min(seconds))


def _above(figure: int) -> int:
    return int(figure * (1 + ALIKE))


def is_worth(objective: str, row: Row, recorded: Row) -> bool:
    """Whether a setting does enough better than the recorded one to be worth a change.

    It fails less; or it is better by the objective, and by more than `ALIKE` in it or, where
    the two are alike in it, in the figure that decides then. Where both stop for lack of
    memory, their figures up to there decide nothing; the memory that the whole program needs
    does.
    """
    mine, own = (order_of(objective, *each)[:4] for each in (row, recorded))
    if mine[:2] != own[:2]:
        return mine < own
    is_less = [_above(here) < there for here, there in zip(mine[2:], own[2:], strict=True)]
    if recorded[0].stopped_event is not None:
        is_known = objective == "fit" and None not in (row[1], recorded[1])
        return is_known and is_less[0]
    return mine[2] < own[2] and any(is_less)


def _beaten_by(found: Survey, tried: list[Outcome]) -> int | None:
    """The smallest capacity above which nothing that was tried does better than the recorded
    settings, nor is as good as what does; None where something does better for another
    reason: it fails less."""

    def failures(outcome: Outcome) -> tuple[int, ...]:
        return order_of("fit", outcome, None)[:2]

    fails_less = any(failures(each) < failures(found.recorded) for each in tried)
    return None if fails_less or found.smallest is None else _above(found.smallest)


def best_of(
    replayer: Replayer, objective: str, found: Survey, ranked: list[Row], most: int
) -> list[Row]:
    """The rows that do better than the recorded settings, `most` of them, with ranges.

    A range makes an outcome no better, and so only those get one that are among the best
    without; the rows are what `rank` made.
    """
    rows, own = ranked[:_RANGED], (found.recorded, found.smallest)
    ranged: set[str] = set()
    while True:
        able = _ranked(objective, [row for row in rows if is_worth(objective, row, own)])[:most]
        missing = [row for row in able if row[0].settings not in ranged]
        if not missing:
            return able
        names = [outcome.settings for outcome, _ in missing]
        ranges = dict(zip(names, replayer.map(replayer.outcome, names), strict=True))
        rows = [(ranges.get(outcome.settings, outcome), nbytes) for outcome, nbytes in rows]
        ranged.update(names)
