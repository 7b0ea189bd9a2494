# SPDX-License-Identifier: Apache-2.0
"""What is worth reporting of a job's ranks."""

from __future__ import annotations

from collections.abc import Sequence

from neutracer.diagnose.ranks.clocks import Clocks
from neutracer.diagnose.ranks.first import named_ranks
from neutracer.diagnose.ranks.jobs import Job
from neutracer.diagnose.ranks.parts import FirstOom, Odd, RankRow
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding, ranked
from neutracer.units import format_bytes, format_count

__all__ = ["findings_of"]

# Odd ranks that are findings each; the report has all.
_MOST_ODD = 8

# Files that can't be read whose reason is given.
_MOST_BROKEN = 5

# A rank whose memory is full in so few steps is worth a word of its own.
_SOON_STEPS = 1000

_ADVICE = {
    "leak": "find what keeps it: neutracer report FILE of this rank names the line",
    "larger_blocks": "give the ranks batches of equal size, or cap the length of a sequence",
    "more_blocks": "see what this rank does there that the others do not",
    "own_line": "see why only this rank reaches that line: a gather to one rank, a log, a save",
    "cache": "neutracer what-if FILE of this rank shows settings that fragment less",
    "not_torch": "neutracer.attribute_device_memory() in the program names the library",
    "stage": "move layers, or microbatches, to the stages that hold less",
    "waits_elsewhere": "look at this line: the others wait for this rank",
    "silent": "look at the end of this rank's log, and at the host's for a process that was killed",
}


def findings_of(
    job: Job, rows: Sequence[RankRow], odd: Sequence[Odd], first: FirstOom | None, clocks: Clocks
) -> tuple[Finding, ...]:
    """The findings of one job, the worst first."""
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
    evidence = (Note(clocks.said()),) if clocks.said() and first.later else ()
    message = first.why.rstrip(".")
    return Finding("first_oom", Severity.SEVERE, first.asked_bytes, message, evidence)


def _odd(odd: Odd) -> Finding:
    severity = {"stage": Severity.INFO, "cache": Severity.MODERATE}.get(odd.cause, Severity.SERIOUS)
    whose = "a rank without a number" if odd.rank is None else f"rank {odd.rank}"
    headline, _, rest = odd.why.partition(": ")
    evidence = (Note(rest),) if rest else ()
    advice = (Note(_ADVICE[odd.cause]),) if odd.cause in _ADVICE else ()
    return Finding("odd_rank", severity, odd.bytes, f"{whose}: {headline}", evidence, advice)


def _soon(rows: Sequence[RankRow]) -> list[Finding]:
    """The rank whose memory is full first, at the rate at which it grows."""
    due = [row for row in rows if row.steps_to_oom is not None]
    first = min(due, key=lambda row: row.steps_to_oom or 0, default=None)
    if first is None or first.steps_to_oom is None or first.steps_to_oom > _SOON_STEPS:
        return []
    left = format_count(first.steps_to_oom, "step")
    rate = format_bytes(first.bytes_per_step)
    message = f"rank {first.rank} runs out of memory in {left}: {rate} more with each"
    severity = Severity.SEVERE if first.steps_to_oom < _SOON_STEPS // 10 else Severity.SERIOUS
    return [Finding("near_the_limit", severity, first.bytes_per_step, message)]


def _gaps(job: Job, rows: Sequence[RankRow]) -> list[Finding]:
    """What the figures lack."""
    found = []
    if job.missing:
        message = f"{named_ranks(job.missing)} of {job.world_size:,}: no file"
        found.append(Finding("missing_ranks", Severity.MODERATE, 0, message))
    broken = [row for row in rows if row.state == "can't be read"]
    if broken:
        whose = named_ranks([row.rank for row in broken])
        message = f"{whose}: {'a file' if len(broken) == 1 else 'files'} that can't be read"
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
        message = (
            f"{named_ranks(again)}: several files, of which the one with the highest peak counts"
        )
        found.append(Finding("same_rank", Severity.INFO, 0, message))
    return found
