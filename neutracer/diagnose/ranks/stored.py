# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job that runs, by the digests in its store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from neutracer.diagnose.ranks.jobs import jobs_of
from neutracer.diagnose.ranks.parts import Odd
from neutracer.diagnose.ranks.report import RanksReport, ranks_report
from neutracer.process.ranks.digest import RankDigest
from neutracer.process.ranks.store import read_digests
from neutracer.units import format_duration_us

__all__ = ["parsed_address", "report_of", "running_ranks", "stored_ranks"]

# A rank of which nothing was heard for so many of its intervals is silent.
_SILENT = 3.0

# Ranks that have not moved for so many of their intervals, and this many seconds, stand still.
_STILL = 3.0
_STILL_S = 1.0

# What a rank tells of itself last, whose silence then is no news.
_LAST_WORDS = ("exit", "terminated")


def parsed_address(text: str) -> tuple[str, int]:
    """HOST:PORT.

    Raises:
        ValueError: It is not that.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a store: write it like 'node7:29500'")
    return host.strip("[]") or "localhost", int(port)


def stored_ranks(address: str) -> RanksReport:
    """What the ranks of a running job have told its store.

    Args:
        address: HOST:PORT of the store: MASTER_ADDR and MASTER_PORT of the job.

    Raises:
        ValueError: It is no address, or no rank has told anything.
        UnavailableError: Nobody answers there.
    """
    return running_ranks(*parsed_address(address))


def running_ranks(host: str, port: int) -> RanksReport:
    """The report on what is in a store.

    Raises:
        ValueError: No rank has told anything.
        UnavailableError: Nobody answers there.
    """
    digests = read_digests(host, port)
    if not digests:
        raise ValueError(
            f"{host}:{port}: no rank has reported there; "
            "call neutracer.watch_ranks() in the program"
        )
    return report_of(digests, time.time())


def report_of(digests: Sequence[RankDigest], now_s: float) -> RanksReport:
    """The report on the digests of a running job, as of a moment of this machine's clock."""
    told = [one.written_s or 0.0 for one in digests]
    # By the ranks' own clocks, of which the newest word shows where they are.
    newest = max(told)
    current = [replace(one, reason=_state(one, newest)) for one in digests]
    jobs = sorted(jobs_of(current), key=lambda job: -job.ended_s)
    running = [one for one in jobs[0].ranks if one.reason == "running"]
    silent = [one for one in jobs[0].ranks if one.reason == "silent"]
    odd = [_silent(one, newest - (one.written_s or 0.0)) for one in silent]
    odd += _standing(running)
    report = ranks_report(jobs, (), odd)
    age = now_s - newest
    interval = max((one.interval_s or 0.0 for one in digests), default=0.0)
    if age <= _SILENT * interval + 1:
        return report
    said = f"the latest report of any rank is {format_duration_us(age * 1e6)} old"
    return replace(report, clocks=f"{report.clocks} {said}".strip())


def _state(one: RankDigest, newest: float) -> str:
    """What a rank does, as a word for its row."""
    if one.reason in _LAST_WORDS:
        return one.reason
    age = newest - (one.written_s or 0.0)
    return "silent" if age > _SILENT * (one.interval_s or 0.0) + 1 else "running"


def _silent(one: RankDigest, age_s: float) -> Odd:
    at = f"; it was at {one.where} then" if one.where else ""
    why = f"it has not reported for {format_duration_us(age_s * 1e6)}{at}"
    return Odd(one.rank, 0, why, "silent", one.where)


def _standing(running: Sequence[RankDigest]) -> list[Odd]:
    """Ranks that others wait for: all stand still, and these at another line."""
    still = [
        one
        for one in running
        if one.where and one.where_s >= max(_STILL * (one.interval_s or 0.0), _STILL_S)
    ]
    if len(still) < 2 or len(still) < len(running):
        return []
    waiting = [one for one in still if one.waits]
    late = [one for one in still if not one.waits]
    if not waiting or not late or len(late) >= len(still) - len(late) + 1:
        waiting, late = _by_line(still)
    if not late:
        return []
    where = Counter(one.where for one in waiting).most_common(1)[0][0]
    return [
        Odd(
            one.rank,
            0,
            f"it has been at {one.where} for {format_duration_us(one.where_s * 1e6)}, in step "
            f"{one.steps:,}, while the others wait at {where}",
            "waits_elsewhere",
            one.where,
            "",
            one.steps,
        )
        for one in late
    ]


def _by_line(still: Sequence[RankDigest]) -> tuple[list[RankDigest], list[RankDigest]]:
    """Those at the line of most, and the others; of two ranks the one with fewer steps is late."""
    lines = Counter(one.where for one in still)
    most, count = lines.most_common(1)[0]
    if 2 * count > len(still):
        return (
            [one for one in still if one.where == most],
            [one for one in still if one.where != most],
        )
    furthest = max(one.steps for one in still)
    late = [one for one in still if one.steps < furthest]
    return [one for one in still if one.steps == furthest], late
