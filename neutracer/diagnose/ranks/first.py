# SPDX-License-Identifier: Apache-2.0
"""Who ran out of memory first by clock, and what became of the others."""

from __future__ import annotations

from collections.abc import Sequence

from neutracer.diagnose.ranks.clocks import Clocks
from neutracer.diagnose.ranks.jobs import Job
from neutracer.diagnose.ranks.parts import FirstOom
from neutracer.process.ranks.digest import RankDigest
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["first_oom", "named_ranks"]

# Ranks that a sentence lists.
_SHOWN = 8


def first_oom(job: Job, clocks: Clocks) -> FirstOom | None:
    """The first out-of-memory error of a job; None where there was none."""
    failed = [one for one in job.ranks if one.ooms]
    if not failed:
        return None
    timed = [
        (clocks.common(one, one.first_oom_us), one)
        for one in failed
        if one.first_oom_us is not None
    ]
    timed.sort(key=lambda row: row[0])
    at, first = timed[0] if timed else (None, failed[0])
    later = tuple((one.rank, when - at) for when, one in timed[1:] if at is not None)
    loose = clocks.within_us if first.host in clocks.ahead_us else 0
    near = [gap for _, gap in later if gap <= loose]
    certain = len(failed) == 1 or (bool(timed) and not near and not _unaligned(timed, clocks))
    ended = tuple(
        one.rank
        for one in job.ranks
        if not one.ooms and not one.trouble and _ended(one, at, clocks)
    )
    lost = (*job.missing, *(one.rank for one in job.ranks if one.trouble))
    why = _said(first, at, later, ended, lost, certain)
    return FirstOom(first.rank, at, first.oom_bytes, certain, later, ended, lost, why)


def _unaligned(timed: Sequence[tuple[int, RankDigest]], clocks: Clocks) -> bool:
    """Whether clocks that could not be aligned are compared."""
    hosts = {one.host for _, one in timed}
    return len(hosts) > 1 and not hosts <= clocks.ahead_us.keys()


def _ended(one: RankDigest, at: int | None, clocks: Clocks) -> bool:
    """Whether a rank ended because the launcher ended it, once another had run out."""
    written = clocks.common(one, round((one.written_s or 0) * 1e6))
    return one.reason == "terminated" and (at is None or written >= at)


def _said(
    first: RankDigest,
    at: int | None,
    later: Sequence[tuple[int | None, int]],
    ended: Sequence[int | None],
    lost: Sequence[int | None],
    certain: bool,
) -> str:
    """All of it as a sentence."""
    asked = f", when it asked for {format_bytes(first.oom_bytes)}" if first.oom_bytes else ""
    parts = [f"{_rank(first.rank)} ran out of memory{' first' if later else ''}{asked}"]
    if later:
        gap = later[0][1]
        when = f"{format_duration_us(gap)} later" if gap else "in the same microsecond"
        whose = "" if len(later) == 1 else "the first of them "
        ran = named_ranks([rank for rank, _ in later])
        parts.append(f"{ran} ran out too, {whose}{when}")
    if ended:
        whom = "it" if len(ended) == 1 else "them"
        parts.append(f"{named_ranks(ended)} did not: the launcher then ended {whom}")
    if lost:
        parts.append(f"{named_ranks(lost)} left nothing that can be read")
    if not certain:
        parts.append("which was first is not certain: their times are not known so exactly")
    return "; ".join(parts) + "."


def _rank(rank: int | None) -> str:
    return "a rank without a number" if rank is None else f"rank {rank}"


def named_ranks(ranks: Sequence[int | None]) -> str:
    """Ranks in words, runs of them as such.

    Example:
        >>> named_ranks([0, 1, 2, 5])
        'ranks 0 to 2 and 5'
    """
    known = sorted(rank for rank in ranks if rank is not None)
    if len(known) < len(ranks):
        rest = format_count(len(ranks) - len(known), "rank without a number")
        rest = rest.replace("rank without a numbers", "ranks without a number")
        return f"{named_ranks(known)} and {rest}" if known else rest
    runs: list[list[int]] = []
    for rank in known:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    if len(runs) > _SHOWN:
        return f"{format_count(len(known), 'rank')}, {known[0]} the first of them"
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"{'rank' if len(known) == 1 else 'ranks'} {text}"
