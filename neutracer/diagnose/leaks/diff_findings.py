# SPDX-License-Identifier: Apache-2.0
"""What a difference between two snapshots amounts to: a higher peak, and lines that hold more."""

from __future__ import annotations

from collections.abc import Iterable

from neutracer.diagnose.leaks.diff_parts import Change, Peaks
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding, ranked
from neutracer.units import format_bytes, format_count

__all__ = ["line_findings", "peak_findings"]

# What a line added is serious or severe from so many bytes on, and moderate from a tenth of
# what there was before.
_SERIOUS = 64 << 20
_SEVERE = 1 << 30
_MODERATE_SHARE = 0.1

# A peak is what decides whether a program fits: it is moderate from this share on.
_MODERATE_PEAK = 0.02

# Lines that become findings; the others are in `by_line`.
_FINDINGS = 5

# Places that are named for a higher peak.
_PEAK_PLACES = 3


def peak_findings(peaks: tuple[Peaks, Peaks], at_peak: tuple[Change, ...]) -> list[Finding]:
    """That the peak of allocated is higher than before, and what holds more there."""
    before, after = peaks[0].allocated, peaks[1].allocated
    if before is None or after is None or after <= before:
        return []
    more = after - before
    message = f"the peak is {format_bytes(more)} higher: {format_bytes(after)}"
    message += f", where it was {format_bytes(before)}"
    grown = [one for one in at_peak if one.bytes > 0][:_PEAK_PLACES]
    evidence = tuple(Note(f"{format_bytes(one.bytes)} more there by", one.place) for one in grown)
    severity = _severity(more, before, _MODERATE_PEAK)
    return [Finding("peak_grown", severity, more, message, evidence, event=peaks[1].event)]


def line_findings(lines: Iterable[Change], total: int) -> tuple[Finding, ...]:
    """The lines that hold most more than before, as findings."""
    grown = [one for one in lines if one.bytes > 0][:_FINDINGS]
    return ranked(_finding(one, total) for one in grown)


def _finding(one: Change, total: int) -> Finding:
    size = format_bytes(one.bytes)
    said = f"{size} new" if one.kind == "new" else f"{size} more than before"
    blocks = (
        format_count(one.count, "more block")
        if one.count > 0
        else "in fewer blocks"
        if one.count
        else "in as many blocks"
    )
    evidence = Note(f"{blocks}, {format_bytes(one.after_bytes)} in all, from", one.place)
    return Finding(one.kind, _severity(one.bytes, total), one.bytes, said, (evidence,))


def _severity(nbytes: int, total: int, moderate: float = _MODERATE_SHARE) -> Severity:
    if nbytes >= _SEVERE:
        return Severity.SEVERE
    if nbytes >= _SERIOUS:
        return Severity.SERIOUS
    return Severity.MODERATE if nbytes >= moderate * total else Severity.INFO
