# SPDX-License-Identifier: Apache-2.0
"""Digests told apart: which are of one job, and which one stands for a rank of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from neutracer.process.ranks.digest import RankDigest

__all__ = ["Job", "jobs_of"]


@dataclass(frozen=True)
class Job:
    """One attempt of one job.

    Attributes:
        name: What its launcher calls it; "" where nothing says.
        attempt: How often it had been started before, or None.
        world_size: How many ranks it has, or None.
        ranks: One digest a rank, in the order of the ranks; those without one come last.
        again: (rank, how many) of ranks of which more than one file was there.
    """

    name: str
    attempt: int | None
    world_size: int | None
    ranks: tuple[RankDigest, ...]
    again: tuple[tuple[int | None, int], ...] = ()

    @property
    def ended_s(self) -> float:
        """When the last of its files was written; 0 where nothing says."""
        return max((one.written_s or 0.0 for one in self.ranks), default=0.0)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of which there is nothing."""
        known = {one.rank for one in self.ranks}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in known)


def jobs_of(digests: Iterable[RankDigest]) -> list[Job]:
    """Digests by job, the one with the most ranks first, and of these the latest.

    A launcher's name, attempt and world size tell jobs apart; without a name the program does.
    So does time: where another process has the same rank, it is of a later run. Digests that
    say nothing of their job belong to the largest one.
    """
    buckets: dict[tuple[str, int | None, int | None, str], list[RankDigest]] = {}
    silent: list[RankDigest] = []
    for one in digests:
        if one.job or one.world_size is not None:
            key = (one.job, one.attempt, one.world_size, "" if one.job else one.program)
            buckets.setdefault(key, []).append(one)
        else:
            silent.append(one)
    if silent:
        largest = max(buckets, key=lambda key: len(buckets[key]), default=("", None, None, ""))
        buckets.setdefault(largest, []).extend(silent)
    jobs = [
        Job(name, attempt, size, ranks, again)
        for (name, attempt, size, _), found in buckets.items()
        for ranks, again in map(_one_a_rank, _runs(found))
    ]
    return sorted(jobs, key=lambda job: (-len(job.ranks), -job.ended_s))


def _runs(digests: Sequence[RankDigest]) -> list[list[RankDigest]]:
    """Runs one after the other: a rank that another process had before begins the next."""
    ordered = sorted(digests, key=lambda one: one.written_s or 0.0)
    runs: list[list[RankDigest]] = [[]]
    process: dict[int, tuple[str, int]] = {}
    for one in ordered:
        if one.rank is not None and one.pid is not None:
            mine = (one.host, one.pid)
            if process.get(one.rank, mine) != mine:
                runs.append([])
                process = {}
            process[one.rank] = mine
        runs[-1].append(one)
    return runs


def _one_a_rank(
    digests: Sequence[RankDigest],
) -> tuple[tuple[RankDigest, ...], tuple[tuple[int | None, int], ...]]:
    """One digest a rank, and the ranks that had more of them."""
    by_rank: dict[int, list[RankDigest]] = {}
    unknown = []
    for one in digests:
        if one.rank is None:
            unknown.append(one)
        else:
            by_rank.setdefault(one.rank, []).append(one)
    ranks = [_best(by_rank[rank]) for rank in sorted(by_rank)]
    again = [(rank, len(found)) for rank, found in sorted(by_rank.items()) if len(found) > 1]
    return (*ranks, *unknown), tuple(again)


def _best(same: Sequence[RankDigest]) -> RankDigest:
    """Of several files of a rank the one that shows the highest peak, the latest of these; with
    the first out-of-memory error of any, and how the last was written."""
    best = max(same, key=_weight)
    failed = [one for one in same if one.first_oom_us is not None]
    if failed and best.first_oom_us is None:
        first = min(failed, key=lambda one: one.first_oom_us or 0)
        best = replace(
            best, ooms=first.ooms, first_oom_us=first.first_oom_us, oom_bytes=first.oom_bytes
        )
    last = max(same, key=lambda one: one.written_s or 0.0)
    sized = next((one.total_bytes for one in same if one.total_bytes is not None), None)
    return replace(best, reason=last.reason or best.reason, total_bytes=best.total_bytes or sized)


def _weight(one: RankDigest) -> tuple[bool, int, float]:
    return not one.trouble, one.peak_allocated_bytes, one.written_s or 0.0
