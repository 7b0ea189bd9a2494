# SPDX-License-Identifier: Apache-2.0
"""`ranks`: one report of a whole job, its first failure and its odd ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from neutracer.arguments import callback, several
from neutracer.rank.digest import MOST_BINS, RankDigest
from neutracer.rank.jobs import (
    FIGURES,
    Clocks,
    FirstOom,
    HeatMap,
    Job,
    Odd,
    OtherJob,
    RankRow,
    Shape,
    Spread,
    clocks_of,
    jobs_of,
    odd_ranks,
    shapes_of,
)
from neutracer.rank.reduce import digests, listed, stem_of
from neutracer.render.document import (
    LIGHT,
    Block,
    Cell,
    Document,
    Figure,
    KeyValues,
    Note,
    Paragraph,
    Severity,
    Table,
)
from neutracer.render.report import Finding, Report, ranked
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- First failure -----------------------------------------------------------------------

_MOST_LISTED = 8  # Ranks, or runs of them, that a sentence lists.


def first_oom(job: Job, clocks: Clocks) -> FirstOom | None:
    """The first out-of-memory error of a job, or None."""
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
    why = _sentence(first, at, later, ended, lost, certain)
    return FirstOom(first.rank, at, first.oom_bytes, certain, later, ended, lost, why)


def _unaligned(timed: Sequence[tuple[int, RankDigest]], clocks: Clocks) -> bool:
    """Whether the times come from clocks that could not be aligned."""
    hosts = {one.host for _, one in timed}
    return len(hosts) > 1 and not hosts <= clocks.ahead_us.keys()


def _ended(one: RankDigest, at: int | None, clocks: Clocks) -> bool:
    """Whether the launcher ended a rank after another one had run out."""
    written = clocks.common(one, round((one.written_s or 0) * 1e6))
    return one.reason == "terminated" and (at is None or written >= at)


def _sentence(
    first: RankDigest,
    at: int | None,
    later: Sequence[tuple[int | None, int]],
    ended: Sequence[int | None],
    lost: Sequence[int | None],
    certain: bool,
) -> str:
    asked = f", when it asked for {format_bytes(first.oom_bytes)}" if first.oom_bytes else ""
    who = rank_name(first.rank, first.source)
    parts = [f"{who} ran out of memory{' first' if later else ''}{asked}"]
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
        parts.append(f"{named_ranks(lost)} left no readable file")
    if not certain:
        parts.append("the order is uncertain: the clocks are not known that exactly")
    return "; ".join(parts) + "."


def rank_name(rank: int | None, source: str = "") -> str:
    """A rank, or if its number is unknown, its file's name.

    Example:
        >>> rank_name(3, "run/rank3.pickle"), rank_name(None, "run/engine.pickle")
        ('rank 3', 'engine.pickle')
    """
    if rank is not None:
        return f"rank {rank}"
    return source.replace(os.sep, "/").rpartition("/")[2] or "a rank without a number"


def named_ranks(ranks: Sequence[int | None]) -> str:
    """A list of ranks as text.

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
    if len(runs) > _MOST_LISTED:
        return f"{format_count(len(known), 'rank')}, {known[0]} the first of them"
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'rank' if len(known) == 1 else 'ranks'} {text}"


# ---- Heat map ----------------------------------------------------------------------------

_WIDTH = 640
_MOST_MAP_ROWS = 128  # With more ranks, neighbours share a row that shows their highest.
_ROW = 12
_LEAST_ROW = 3
_SHADES = 12  # Neighbouring columns of one shade are drawn as one rectangle.


def heat_map(digests: Sequence[RankDigest], clocks: Clocks) -> HeatMap | None:
    """The ranks' curves, one row per rank, by the first host's clock; None without times."""
    spans = [_span(one, clocks) for one in digests]
    known = [span for span in spans if span is not None]
    if not known:
        return None
    begin, end = min(a for a, _ in known), max(b for _, b in known)
    pairs = zip(digests, spans, strict=True)
    ooms = (
        (row, clocks.common(one, one.first_oom_us))
        for row, one in enumerate(digests)
        if one.first_oom_us is not None
    )
    rows = tuple(_row(one, span, begin, end) for one, span in pairs)
    return HeatMap(tuple(one.rank for one in digests), begin, end, rows, tuple(ooms))


def _span(one: RankDigest, clocks: Clocks) -> tuple[int, int] | None:
    if not one.curve or one.begin_us is None or one.end_us is None or one.end_us <= one.begin_us:
        return None
    return clocks.common(one, one.begin_us), clocks.common(one, one.end_us)


def _row(
    one: RankDigest, span: tuple[int, int] | None, begin: int, end: int
) -> tuple[int | None, ...]:
    """A rank's curve on the common axis: each column is the peak of the bins it overlaps."""
    if span is None:
        return (None,) * MOST_BINS
    low, high = span
    count, width = len(one.curve), end - begin
    found: list[int | None] = []
    for column in range(MOST_BINS):
        left = begin + width * column // MOST_BINS
        right = begin + width * (column + 1) // MOST_BINS
        if right <= low or left >= high:
            found.append(None)
            continue
        first = max(left - low, 0) * count // (high - low)
        last = -(-min(right - low, high - low) * count // (high - low))
        found.append(max(one.curve[first : max(last, first + 1)], default=None))
    return tuple(found)


def heat_svg(heat: HeatMap) -> str:
    """The map as an `<svg>` of about 10 kB; darker is more, blank is outside a rank's trace."""
    rows = _folded(heat.rows)
    top = max((value for row in rows for value in row if value is not None), default=0)
    if not top:
        return ""
    tall = max(_LEAST_ROW, min(_ROW, 384 // len(rows)))
    height = tall * len(rows)
    shapes = "".join(_rects(row, at * tall, tall, top) for at, row in enumerate(rows))
    marks = "".join(_mark(heat, row, time_us, len(rows), tall) for row, time_us in heat.ooms_us)
    spent = format_duration_us(heat.end_us - heat.begin_us)
    return (
        f'<p><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="allocated bytes by rank and time">{shapes}{marks}</svg><br>'
        f'<span class="nt-muted">allocated bytes of {len(heat.ranks)} ranks over {spent}, the '
        f"first at the top; darkest: {format_bytes(top)}; red: out of memory</span></p>"
    )


def _folded(rows: Sequence[tuple[int | None, ...]]) -> list[tuple[int | None, ...]]:
    each = -(-len(rows) // _MOST_MAP_ROWS)
    groups = [rows[at : at + each] for at in range(0, len(rows), each)]
    return [tuple(_most(column) for column in zip(*group, strict=True)) for group in groups]


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _rects(row: Sequence[int | None], y: int, tall: int, top: int) -> str:
    shades = [None if value is None else round(_SHADES * value / top) for value in row]
    step = _WIDTH / len(shades)
    found, begin = [], 0
    for at in range(1, len(shades) + 1):
        if at < len(shades) and shades[at] == shades[begin]:
            continue
        shade = shades[begin]
        if shade is not None:
            x, wide = begin * step, (at - begin) * step
            found.append(_rect(x, y, wide, tall, LIGHT.blue(shade / _SHADES)))
        begin = at
    return "".join(found)


def _mark(heat: HeatMap, row: int, time_us: int, rows: int, tall: int) -> str:
    x = _WIDTH * (time_us - heat.begin_us) / (heat.end_us - heat.begin_us)
    y = row * rows // len(heat.rows) * tall
    return _rect(min(x, _WIDTH - 3), y, 3, tall, LIGHT.red)


def _rect(x: float, y: int, wide: float, tall: int, colour: str) -> str:
    return f'<rect x="{x:.5g}" y="{y}" width="{wide:.5g}" height="{tall}" fill="{colour}"/>'


# ---- Findings ----------------------------------------------------------------------------

_MOST_ODD = 8  # Odd ranks with a finding of their own.
_MOST_BROKEN = 5  # Unreadable files whose reason is shown.
_SOON_STEPS = 1000  # A rank whose memory is full within this many steps is a finding.

_ADVICE = {
    "leak": "find what keeps it: neutracer report FILE of this rank names the line",
    "larger_blocks": "give the ranks batches of equal size, or cap the sequence length",
    "more_blocks": "compare this rank's work at that line with the others'",
    "own_line": "check why only this rank reaches that line: a gather, a log, a checkpoint",
    "cache": "neutracer what-if FILE of this rank shows settings that fragment less",
    "not_torch": "neutracer.attribute_device_memory() in the program names the library",
    "stage": "move layers, or microbatches, to the stages that hold less",
    "waits_elsewhere": "look at this line: the others wait for this rank",
    "silent": "check the end of this rank's log, and the host's log for a killed process",
}


def findings_of(
    job: Job, rows: Sequence[RankRow], odd: Sequence[Odd], first: FirstOom | None, clocks: Clocks
) -> tuple[Finding, ...]:
    """The findings of one job, worst first."""
    found = [] if first is None else [_out(first, clocks)]
    found += [_odd(one) for one in odd[:_MOST_ODD]]
    if len(odd) > _MOST_ODD:
        message = format_count(len(odd) - _MOST_ODD, "more deviation")
        known = {one.rank for one in odd[_MOST_ODD:] if one.rank is not None}
        if known:
            message += f" of {named_ranks(sorted(known))}"
        found.append(Finding("odd_ranks", Severity.INFO, 0, message))
    found += _soon(rows)
    found += _gaps(job, rows)
    return ranked(found)


def _out(first: FirstOom, clocks: Clocks) -> Finding:
    evidence = (Note(clocks.summary()),) if clocks.summary() and first.later else ()
    message = first.why.rstrip(".")
    return Finding("first_oom", Severity.SEVERE, first.asked_bytes, message, evidence)


def _odd(odd: Odd) -> Finding:
    severity = {"stage": Severity.INFO, "cache": Severity.MODERATE}.get(odd.cause, Severity.SERIOUS)
    headline, _, rest = odd.why.partition(": ")
    evidence = (Note(rest),) if rest else ()
    advice = (Note(_ADVICE[odd.cause]),) if odd.cause in _ADVICE else ()
    message = f"{rank_name(odd.rank, odd.source)}: {headline}"
    return Finding("odd_rank", severity, odd.bytes, message, evidence, advice)


# States of processes that make no further step.
_ENDED = ("out of memory", "exit", "terminated")


def _soon(rows: Sequence[RankRow]) -> list[Finding]:
    """The rank that runs and whose memory is full first at its present growth."""
    due = [row for row in rows if row.steps_to_oom is not None and row.state not in _ENDED]
    first = min(due, key=lambda row: row.steps_to_oom or 0, default=None)
    if first is None or first.steps_to_oom is None or first.steps_to_oom > _SOON_STEPS:
        return []
    left = format_count(first.steps_to_oom, "step")
    rate = format_bytes(first.bytes_per_step)
    name = rank_name(first.rank, first.source)
    message = f"{name} runs out of memory in {left}: it grows by {rate} per step"
    severity = Severity.SEVERE if first.steps_to_oom < _SOON_STEPS // 10 else Severity.SERIOUS
    return [Finding("near_the_limit", severity, first.bytes_per_step, message)]


def _gaps(job: Job, rows: Sequence[RankRow]) -> list[Finding]:
    """Missing, unreadable, mixed and duplicate files."""
    found = []
    if job.missing:
        message = f"{named_ranks(job.missing)} of {job.world_size:,}: no file"
        found.append(Finding("missing_ranks", Severity.MODERATE, 0, message))
    broken = [row for row in rows if row.state == "can't be read"]
    if broken:
        whose = named_ranks([row.rank for row in broken])
        message = f"{whose}: unreadable {'file' if len(broken) == 1 else 'files'}"
        evidence = [Note(f"{row.source}: {row.note}") for row in broken[:_MOST_BROKEN]]
        if len(broken) > _MOST_BROKEN:
            rest = format_count(len(broken) - _MOST_BROKEN, "more file")
            evidence.append(Note(f"and {rest}, in the JSON"))
        found.append(Finding("unreadable", Severity.MODERATE, 0, message, tuple(evidence)))
    ran: dict[str, list[int | None]] = {}
    for row in rows:
        ran.setdefault(row.torch, []).append(row.rank)
    ran.pop("", None)
    if len(ran) > 1:
        parts = [f"{version} ({named_ranks(ranks)})" for version, ranks in sorted(ran.items())]
        message = f"the ranks ran different releases of PyTorch: {', '.join(parts)}"
        found.append(Finding("versions", Severity.MODERATE, 0, message))
    again = [rank for rank, _ in job.again]
    if again:
        message = f"{named_ranks(again)}: several files; the one with the highest peak is used"
        found.append(Finding("same_rank", Severity.INFO, 0, message))
    return found


# ---- Report ------------------------------------------------------------------------------

_MOST_ROWS = 16  # Rows of the printed table; larger jobs show the highest.
_MOST_ABSENT = 4096  # Ranks without a file that get a row.
_MOST_SKIPPED = 3  # Skipped files that are named.
_NAME = 16  # Characters of a file's name shown in place of a rank's number.

# Text in a row for the reason its file was written, where it differs from the reason.
_STATES = {"exit": "", "interval": "", "signal": "", "peer": "when another rank ran out of memory"}

_SPREAD_SHOWN = ("peak_allocated_bytes", "peak_reserved_bytes", "unused_bytes", "other_bytes")


@dataclass(frozen=True, kw_only=True, repr=False)
class RanksReport(Report):
    """The ranks of one job, compared.

    Attributes:
        job: The launcher's name for the job; "" if unknown.
        attempt: Number of earlier attempts, or None.
        world_size: Number of ranks; None if unknown.
        rows: One row per rank, including up to 4,096 ranks without a file.
        shapes: The ranks of each shape, that is, with the same parameters.
        spread: Each figure over the ranks.
        odd: The odd ranks, most bytes first.
        first_oom: The first rank to run out of memory; None if none did.
        heat: Allocated bytes by rank and time; None if no trace has times.
        clocks: How the clocks of several hosts were aligned; "" for one host.
        other_jobs: Other jobs, or runs, found among the files.
        passed_over: Skipped files: no snapshots, or unreadable and without a rank.
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
        if not self.odd and sum(map(len, self.shapes)) > 1:
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
        if len(shown) > _MOST_ROWS:
            named = {one.rank for one in (*self.odd, self.first_oom) if one is not None} - {None}
            peaks = sorted(shown, key=lambda row: -(row.peak_allocated_bytes or 0))
            shown = tuple(sorted(peaks, key=lambda row: row.rank not in named)[:_MOST_ROWS])
        cells = tuple(_cells(row, len(self.shapes) > 1) for row in shown)
        heads = ("", "peak", "peak reserved", "unused at end", "not PyTorch's", "", "")
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
            what = f"{count:,} files that are not snapshots"
            what = "1 file that is not a snapshot" if count == 1 else what
            names = ", ".join(self.passed_over[:_MOST_SKIPPED])
            names += ", ..." if count > _MOST_SKIPPED else ""
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

    process = "" if row.rank is not None or row.pid is None else f"process {row.pid}"
    notes = [" ".join(filter(None, (row.role, process))), _STATES.get(row.state, row.state)]
    if row.verdict not in ("steady", "unknown"):
        notes.append(row.verdict.replace("_", " "))
    if row.peak_allocated_bytes is not None:
        notes.append(row.note)  # The note of a row without figures is a finding instead.
    shape = f"shape {row.shape + 1}" if with_shape and row.shape is not None else ""
    return (
        _name(row),
        figure(row.peak_allocated_bytes),
        figure(row.peak_reserved_bytes),
        figure(row.unused_bytes),
        figure(row.other_bytes),
        shape,
        "; ".join(note for note in notes if note),
    )


def _name(row: RankRow) -> str:
    """The rank, or if unknown, the end of the file's name without its extension."""
    if row.rank is not None:
        return f"rank {row.rank}"
    # SGLang's names have a time with a dot in them: "1758551300.15-TP-0-memory.pickle".
    whole = row.source.replace(os.sep, "/").rpartition("/")[2]
    name = stem_of(whole) or whole
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"


def ranks_report(
    jobs: Sequence[Job], passed_over: Sequence[str] = (), extra: Sequence[Odd] = ()
) -> RanksReport:
    """The report on the first of the jobs that `jobs_of` found; the others are only named."""
    job = jobs[0] if jobs else Job("", None, None, ())
    clocks = clocks_of(one for one in job.ranks if not one.trouble)
    shapes = shapes_of(job.ranks)
    odd = (*extra, *odd_ranks(shapes, clocks))
    first = first_oom(job, clocks)
    rows = _rows_of(job, shapes)
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
        clocks=clocks.summary(),
        other_jobs=tuple(
            OtherJob(one.name, one.attempt, one.world_size, tuple(r.source for r in one.ranks))
            for one in jobs[1:]
        ),
        passed_over=tuple(passed_over),
        findings=findings_of(job, rows, odd, first, clocks),
        _digests=job.ranks,
    )


def _rows_of(job: Job, shapes: Sequence[Shape]) -> tuple[RankRow, ...]:
    """One row per rank, in order; ranks without a number come last."""
    shape_of = {id(one): at for at, shape in enumerate(shapes) for one in shape.members}
    rows = [_table_row(one, shape_of.get(id(one))) for one in job.ranks]
    rows += [
        RankRow(rank=rank, state="no file", libraries={}, categories={})
        for rank in job.missing[:_MOST_ABSENT]
    ]
    rows.sort(key=lambda row: (row.rank is None, row.rank or 0))
    return tuple(rows)


# What a row has of its digest as it is: of each one, and of one with figures.
_SAME = ("rank", "host", "pid", "role", "source", "torch")
_SAME_FIGURES = (
    *("peak_allocated_bytes", "peak_reserved_bytes", "other_bytes", "libraries", "ooms"),
    *("verdict", "bytes_per_step", "steps_to_oom", "steps", "where", "categories"),
)
_AT_END = ("allocated_bytes", "reserved_bytes", "largest_hole_bytes")


def _table_row(one: RankDigest, shape: int | None) -> RankRow:
    same = {name: getattr(one, name) for name in _SAME}
    if one.trouble:
        why: dict[str, Any] = {"state": "can't be read", "note": one.trouble}
        return RankRow(**same, **why, libraries={}, categories={})
    figures = {name: getattr(one, name) for name in _SAME_FIGURES}
    if one.end_known:
        figures |= {name: getattr(one, name) for name in _AT_END}
        figures["unused_bytes"] = max(one.reserved_bytes - one.allocated_bytes, 0)
    return RankRow(
        **same,
        **figures,
        state="out of memory" if one.ooms else one.reason,
        note="; ".join(one.notes),
        shape=shape,
    )


def _spreads(rows: Sequence[RankRow]) -> tuple[Spread, ...]:
    found = []
    for figure in FIGURES:
        known = [(getattr(row, figure), row.rank) for row in rows if row.shape is not None]
        known = [(value, rank) for value, rank in known if value is not None]
        if known:
            most, rank = max(known, key=lambda one: int(one[0]))
            values = [value for value, _ in known]
            found.append(Spread(figure, min(values), round(median(values)), most, rank))
    return tuple(found)


# ---- Ranks -------------------------------------------------------------------------------


def ranks(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RanksReport:
    """Compare the ranks of a job: which are odd and why, and which ran out of memory first.

    Each file is reduced to a few kilobytes where it is read, so a reading process needs the
    memory of one file at a time. Ranks with the same parameters are compared with each other;
    pipeline stages and experts form groups of their own. A rank is odd if its peak, its cache
    or its non-PyTorch memory exceeds the median by 5 % and by four times the usual deviation;
    of two ranks, if it exceeds the other by 5 %.

    Args:
        sources: A folder (searched recursively), a snapshot, or several of them; URLs
            ("s3://bucket/job") need `fsspec`. A file's rank is read from the JSON beside it,
            or else from "rank3" in its name.
        executor: Any `concurrent.futures.Executor` to read the files with, such as
            `dask.distributed.Client.get_executor()`; its workers need neutracer and access to
            the files. None uses one local process per core.
        progress: Called with the number of files done and the total.

    Returns:
        The report on the job with the most ranks; it names the others. An unreadable file, or a
        rank without a file, is a row with the reason.

    Raises:
        ValueError: There is no snapshot.
        TypeError: An argument has the wrong type.
        UnavailableError: A URL needs a library that is not installed.
        OSError: A folder can't be read.

    Example:
        >>> import neutracer
        >>> job = neutracer.ranks("tests/data/frag_default.pickle")
        >>> job.rows[0].peak_allocated_bytes, job.rows[0].ooms, job.odd
        (619585536, 1, ())
    """
    callback("progress", progress, "file")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must be an Executor or None, not {type(executor).__name__}")
    single = isinstance(sources, (str, os.PathLike))
    paths = [sources] if single else several("sources", sources, "paths")
    return ranks_of(paths, listed(paths), executor, progress)  # type: ignore[arg-type]


def ranks_of(
    paths: Sequence[str | os.PathLike[str]],
    found: tuple[dict[str, bool], list[str]],
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RanksReport:
    """`ranks` for the files that `listed` found; raises ValueError if there are none."""
    files, others = found
    if not files:
        where = ", ".join(os.fspath(path) for path in paths[:3])
        raise ValueError(f"{where or 'no sources'}: there are no snapshots (.pickle, .pkl)")
    read, strange = _parted(digests(list(files), executor, progress), files)
    return ranks_report(jobs_of(read), [*strange, *others])


def _parted(
    found: Sequence[RankDigest], named: Mapping[str, bool]
) -> tuple[list[RankDigest], list[str]]:
    """Split into the job's digests and stray files: unreadable, and not known to be a rank's."""
    strange = [
        one.source
        for one in found
        if one.trouble and one.rank is None and not one.host and not named.get(one.source)
    ]
    if len(strange) == len(found):
        return list(found), []
    known = set(strange)
    return [one for one in found if one.source not in known], strange
