# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job on one page: spread, odd ranks, who ran out first, a row a rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from neutracer.diagnose.ranks.clocks import clocks_of
from neutracer.diagnose.ranks.findings import findings_of
from neutracer.diagnose.ranks.first import first_oom
from neutracer.diagnose.ranks.heat import heat_map, heat_svg
from neutracer.diagnose.ranks.jobs import Job
from neutracer.diagnose.ranks.odd import odd_ranks
from neutracer.diagnose.ranks.parts import (
    FIGURES,
    FirstOom,
    HeatMap,
    Odd,
    OtherJob,
    RankRow,
    Spread,
)
from neutracer.diagnose.ranks.shapes import Shape, shapes_of
from neutracer.process.ranks.digest import RankDigest
from neutracer.render.document import (
    Block,
    Cell,
    Document,
    Figure,
    KeyValues,
    Paragraph,
    Table,
)
from neutracer.render.report import Finding, Report, ranked
from neutracer.units import format_count

__all__ = ["RanksReport", "ranks_report"]

# Rows of the printed table: all of small jobs, of others the highest.
_SHOWN = 16

# Ranks without a file that have a row; of a thousand files a few may be all that is left.
_MOST_ABSENT = 4096

# Files that were passed over, and characters of a file's name that stand for a rank's number.
_NAMED = 3
_NAME = 16

# What a row says of the reason for which its file was written.
_STATES = {"exit": "", "interval": "", "signal": "", "peer": "when another rank ran out of memory"}

_SPREAD_SHOWN = ("peak_allocated_bytes", "peak_reserved_bytes", "unused_bytes", "other_bytes")


@dataclass(frozen=True, kw_only=True, repr=False)
class RanksReport(Report):
    """The ranks of one job, compared.

    Attributes:
        job: What its launcher calls it; "" where nothing says.
        attempt: How often it had been started before, or None.
        world_size: How many ranks it has; None where nothing says.
        rows: A row a rank, those without a file too, of which the first 4,096.
        shapes: The ranks of each shape: those that hold the same parameters.
        spread: Each figure over the ranks.
        odd: The odd ranks, those with the most bytes first.
        first_oom: Who ran out of memory first; None where nobody did.
        heat: Allocated bytes by rank and time; None where no trace has times.
        clocks: How the clocks of several hosts were aligned; "" for one host.
        other_jobs: Other jobs, or runs, whose files were there too.
        passed_over: Files in the folders that are no snapshots, or can't be read and say nothing of
            a rank.
    """

    schema = "neutracer.ranks/1"

    job: str
    attempt: int | None
    world_size: int | None
    rows: tuple[RankRow, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    spread: tuple[Spread, ...]
    odd: tuple[Odd, ...]
    first_oom: FirstOom | None
    heat: HeatMap | None
    clocks: str
    other_jobs: tuple[OtherJob, ...]
    passed_over: tuple[str, ...]
    _digests: tuple[RankDigest, ...] = field(compare=False, default=())

    def document(self) -> Document:
        """The report as a page."""
        title = f"Job {self.job}" if self.job else "Job"
        with_figures = sum(row.peak_allocated_bytes is not None for row in self.rows)
        facts = [format_count(self.world_size or len(self.rows), "rank")]
        if with_figures < (self.world_size or len(self.rows)):
            facts.append(f"{format_count(with_figures)} with figures")
        hosts = {row.host for row in self.rows if row.host}
        if len(hosts) > 1:
            facts.append(format_count(len(hosts), "host"))
        if len(self.shapes) > 1:
            facts.append(format_count(len(self.shapes), "shape"))
        if self.attempt:
            facts.append(f"attempt {self.attempt + 1}")
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not self.odd and with_figures > 1:
            of = " of its shape" if len(self.shapes) > 1 else ""
            blocks += (Paragraph(f"No rank is odd: each is like the others{of}."),)
        if self.spread:
            blocks += (self._spread(),)
        blocks += (self._rows(),)
        also = self._also()
        if also:
            blocks += (KeyValues("Also", also),)
        return Document(title, tuple(facts), blocks)

    def picture(self) -> str:
        """The heat map."""
        return "" if self.heat is None else heat_svg(self.heat)

    def _spread(self) -> Table:
        rows = tuple(
            (
                FIGURES[one.figure],
                Figure.bytes(one.least),
                Figure.bytes(one.median),
                Figure.bytes(one.most),
                "" if one.most_rank is None or one.least == one.most else f"rank {one.most_rank}",
            )
            for one in self.spread
            if one.figure in _SPREAD_SHOWN
        )
        return Table("Over the ranks", rows, ("", "least", "median", "most", ""))

    def _rows(self) -> Table:
        shown = self.rows
        if len(shown) > _SHOWN:
            odd = {one.rank for one in self.odd}
            first = None if self.first_oom is None else self.first_oom.rank
            shown = tuple(
                sorted(
                    self.rows,
                    key=lambda row: (
                        row.rank is None or (row.rank != first and row.rank not in odd),
                        -(row.peak_allocated_bytes or 0),
                    ),
                )[:_SHOWN]
            )
        cells = tuple(_cells(row, len(self.shapes) > 1) for row in shown)
        heads = ("", "peak", "reserved", "unused", "not PyTorch's", "", "")
        rest = len(self.rows) - len(shown)
        notes = (f"and {format_count(rest, 'more rank')}; all are in the JSON",) if rest else ()
        return Table("Ranks", cells, heads, notes)

    def _also(self) -> tuple[tuple[str, Cell], ...]:
        pairs: list[tuple[str, Cell]] = []
        if self.clocks:
            pairs.append(("clocks", self.clocks))
        for other in self.other_jobs:
            is_same = (other.job, other.world_size) == (self.job, self.world_size)
            label = "another run" if is_same else "another job"
            pairs.append((label, f"{_whose(other)}, not in these figures: {other.sources[0]}"))
        if self.passed_over:
            count = len(self.passed_over)
            what = (
                "1 file that is not a snapshot"
                if count == 1
                else f"{count:,} files that are not snapshots"
            )
            names = ", ".join(self.passed_over[:_NAMED]) + (", ..." if count > _NAMED else "")
            pairs.append(("passed over", f"{what}: {names}"))
        return tuple(pairs)


def _whose(other: OtherJob) -> str:
    """The files of another job: "2 files of job 4711 of 8 ranks"."""
    parts = [format_count(len(other.sources), "file")]
    parts.append(f"of job {other.job}" if other.job else "of a job")
    if other.world_size is not None:
        parts.append(f"of {format_count(other.world_size, 'rank')}")
    if other.attempt:
        parts.append(f"(attempt {other.attempt + 1})")
    return " ".join(parts)


def _cells(row: RankRow, with_shape: bool) -> tuple[Cell, ...]:
    def figure(nbytes: int | None) -> Cell:
        return "" if nbytes is None else Figure.bytes(nbytes)

    words = [_STATES.get(row.state, row.state)]
    if row.verdict not in ("steady", "unknown"):
        words.append(row.verdict.replace("_", " "))
    if row.peak_allocated_bytes is not None:
        # Why there are no figures is a finding.
        words.append(row.note)
    shape = f"shape {row.shape + 1}" if with_shape and row.shape is not None else ""
    return (
        _name(row),
        figure(row.peak_allocated_bytes),
        figure(row.peak_reserved_bytes),
        figure(row.unused_bytes),
        figure(row.other_bytes),
        shape,
        "; ".join(word for word in words if word),
    )


def _name(row: RankRow) -> str:
    """The rank, or where nothing tells it the end of the file's name, without what it ends in."""
    if row.rank is not None:
        return f"rank {row.rank}"
    whole = row.source.replace(os.sep, "/").rpartition("/")[2]
    name = whole.partition(".")[0] or whole
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def ranks_report(
    jobs: Sequence[Job], passed_over: Sequence[str] = (), extra: Sequence[Odd] = ()
) -> RanksReport:
    """The report on the first of some jobs.

    Args:
        jobs: As `jobs_of` has them; the first is reported, the others named.
        passed_over: Files that are no snapshots.
        extra: Odd ranks that are known otherwise.
    """
    job = jobs[0] if jobs else Job("", None, None, ())
    clocks = clocks_of(one for one in job.ranks if not one.trouble)
    shapes = shapes_of(job.ranks)
    odd = (*extra, *odd_ranks(shapes, clocks))
    first = first_oom(job, clocks)
    rows = _rows_of(job, shapes)
    findings: tuple[Finding, ...] = findings_of(job, rows, odd, first, clocks)
    return RanksReport(
        job=job.name,
        attempt=job.attempt,
        world_size=job.world_size,
        rows=rows,
        shapes=tuple(tuple(one.rank for one in shape.members) for shape in shapes),
        spread=_spreads(rows),
        odd=odd,
        first_oom=first,
        heat=heat_map([one for one in job.ranks if not one.trouble], clocks),
        clocks=clocks.said(),
        other_jobs=tuple(
            OtherJob(one.name, one.attempt, one.world_size, tuple(r.source for r in one.ranks))
            for one in jobs[1:]
        ),
        passed_over=tuple(passed_over),
        findings=ranked(findings),
        _digests=job.ranks,
    )


def _rows_of(job: Job, shapes: Sequence[Shape]) -> tuple[RankRow, ...]:
    """A row a rank, in the order of the ranks; those without a number come last."""
    shape_of = {id(one): at for at, shape in enumerate(shapes) for one in shape.members}
    rows = [_row(one, shape_of.get(id(one))) for one in job.ranks]
    rows += [
        RankRow(rank=rank, state="no file", libraries={}, categories={})
        for rank in job.missing[:_MOST_ABSENT]
    ]
    rows.sort(key=lambda row: (row.rank is None, row.rank or 0))
    return tuple(rows)


def _at_end(one: RankDigest) -> dict[str, int | None]:
    """The figures of the end; nothing where it is not known."""
    if not one.end_known:
        return {}
    return {
        "allocated_bytes": one.allocated_bytes,
        "reserved_bytes": one.reserved_bytes,
        "unused_bytes": max(one.reserved_bytes - one.allocated_bytes, 0),
        "largest_hole_bytes": one.largest_hole_bytes,
    }


def _row(one: RankDigest, shape: int | None) -> RankRow:
    if one.trouble:
        return RankRow(
            rank=one.rank,
            host=one.host,
            source=one.source,
            state="can't be read",
            note=one.trouble,
            libraries={},
            categories={},
            torch=one.torch,
        )
    return RankRow(
        rank=one.rank,
        host=one.host,
        source=one.source,
        state="out of memory" if one.ooms else one.reason,
        note="; ".join(one.notes),
        shape=shape,
        peak_allocated_bytes=one.peak_allocated_bytes,
        peak_reserved_bytes=one.peak_reserved_bytes,
        **_at_end(one),
        other_bytes=one.other_bytes,
        libraries=one.libraries,
        ooms=one.ooms,
        verdict=one.verdict,
        bytes_per_step=one.bytes_per_step,
        steps_to_oom=one.steps_to_oom,
        steps=one.steps,
        where=one.where,
        categories=one.categories,
        torch=one.torch,
    )


def _spreads(rows: Sequence[RankRow]) -> tuple[Spread, ...]:
    found = []
    for figure in FIGURES:
        known = [(getattr(row, figure), row.rank) for row in rows]
        known = [(value, rank) for value, rank in known if value is not None]
        if known:
            most, rank = max(known, key=lambda one: int(one[0]))
            values = [value for value, _ in known]
            found.append(Spread(figure, min(values), round(median(values)), most, rank))
    return tuple(found)
