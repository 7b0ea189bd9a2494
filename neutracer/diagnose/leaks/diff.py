# SPDX-License-Identifier: Apache-2.0
"""What is there in one snapshot that was not in another, or is gone?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from neutracer.diagnose.leaks.diff_findings import line_findings, peak_findings
from neutracer.diagnose.leaks.diff_parts import (
    NOTHING,
    Change,
    by_line,
    change_table,
    changes,
    held_in,
    peaks_of,
)
from neutracer.diagnose.leaks.told import ToldReport, told_report
from neutracer.render.document import (
    Block,
    Cell,
    Document,
    Figure,
    Paragraph,
    Table,
)
from neutracer.render.report import Report, ranked
from neutracer.trace.devices import device_name, shown_device
from neutracer.trace.flaws import end_is_known, first_findings
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource
from neutracer.units import format_bytes

__all__ = ["Change", "DiffReport", "diff"]


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffReport(Report):
    """How what two snapshots hold differs.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        before_device: The device before: another one where two ranks are compared.
        before_allocated_bytes: allocated_bytes.all.current before.
        after_allocated_bytes: And after.
        before_reserved_bytes: reserved_bytes.all.current before.
        after_reserved_bytes: And after.
        before_peak_allocated_bytes: The most that was allocated in its trace; None where it
            has no events.
        after_peak_allocated_bytes: And after.
        before_peak_reserved_bytes: The most that was reserved in its trace.
        after_peak_reserved_bytes: And after.
        at_peak: Each place that holds blocks at one of the peaks of allocated, the largest
            difference first; empty where one has no events.
        by_stack: Each stack that holds blocks in one of them, the largest difference
            first; a stack is the same if all its frames are.
        by_line: The same by the line of the program that represents a stack.
        by_category: The same by category, as far as the traces show it.
        by_size: And by size class: powers of two.
        before_end_known: False where the first file has a history and lacks the segments: then
            what it holds at its end is not known, its figures of that are 0, and nothing is
            compared by stack, line, category and size.
        after_end_known: And the second.
    """

    schema = "neutracer.diff/1"
    derived = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes")

    device: int
    before_device: int
    before_allocated_bytes: int
    after_allocated_bytes: int
    before_reserved_bytes: int
    after_reserved_bytes: int
    before_peak_allocated_bytes: int | None
    after_peak_allocated_bytes: int | None
    before_peak_reserved_bytes: int | None
    after_peak_reserved_bytes: int | None
    at_peak: tuple[Change, ...]
    by_stack: tuple[Change, ...]
    by_line: tuple[Change, ...]
    by_category: tuple[Change, ...]
    by_size: tuple[Change, ...]
    before_end_known: bool = True
    after_end_known: bool = True
    _of_reports: bool = field(default=False, compare=False)

    @property
    def allocated_bytes(self) -> int:
        """Allocated after less before."""
        return self.after_allocated_bytes - self.before_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Reserved after less before."""
        return self.after_reserved_bytes - self.before_reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The peak of allocated after less before; None where one is not known."""
        return _less(self.after_peak_allocated_bytes, self.before_peak_allocated_bytes)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The peak of reserved after less before; None where one is not known."""
        return _less(self.after_peak_reserved_bytes, self.before_peak_reserved_bytes)

    @property
    def new(self) -> tuple[Change, ...]:
        """Stacks that held nothing before."""
        return tuple(one for one in self.by_stack if one.kind == "new")

    @property
    def gone(self) -> tuple[Change, ...]:
        """Stacks that hold nothing any more."""
        return tuple(one for one in self.by_stack if one.kind == "gone")

    @property
    def grown(self) -> tuple[Change, ...]:
        """Stacks that hold more than before."""
        return tuple(one for one in self.by_stack if one.kind == "grown")

    @property
    def _ends_known(self) -> bool:
        return self.before_end_known and self.after_end_known

    def document(self) -> Document:
        """The report as a page."""
        blocks: tuple[Block, ...] = (*self.finding_blocks(), self._totals())
        named = (
            ("At the peak", self.at_peak),
            ("At the end, by line", self.by_line),
            ("At the end, by category", self.by_category),
            ("At the end, by size of block", self.by_size),
        )
        for title, found in named:
            differing = [one for one in found if one.kind != "same"]
            if differing:
                blocks += (change_table(title, differing),)
        if self._of_reports:
            text = "In requested bytes, as reports have them. Two snapshots also show the end."
            blocks += (Paragraph(text),)
        elif self._ends_known and not any(one.kind != "same" for one in self.by_line):
            blocks += (Paragraph("At the end every line holds as many bytes as before."),)
        name = device_name(self.device)
        if self.before_device != self.device:
            name = f"{device_name(self.before_device)} → {name}"
        facts = [name]
        if self._ends_known:
            facts.append(f"{_signed(self.allocated_bytes)} allocated at the end")
        if self.peak_allocated_bytes is not None:
            facts.append(f"{_signed(self.peak_allocated_bytes)} at the peak")
        return Document("Difference", tuple(facts), blocks)

    def _totals(self) -> Table:
        peaks = (
            ("peak allocated", self.before_peak_allocated_bytes, self.after_peak_allocated_bytes),
            ("peak reserved", self.before_peak_reserved_bytes, self.after_peak_reserved_bytes),
        )
        was, now = self.before_end_known, self.after_end_known
        ends = (
            (
                "allocated at the end",
                self.before_allocated_bytes if was else None,
                self.after_allocated_bytes if now else None,
            ),
            (
                "reserved at the end",
                self.before_reserved_bytes if was else None,
                self.after_reserved_bytes if now else None,
            ),
        )
        rows = tuple(_total(*row) for row in (*peaks, *ends) if row[1:] != (None, None))
        return Table("", rows, ("", "before", "after", "difference"))


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _total(name: str, before: int | None, after: int | None) -> tuple[Cell, ...]:
    figures = (before, after, _less(after, before))
    return name, *("unknown" if one is None else Figure.bytes(one) for one in figures)


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"


class HasSnapshot(Protocol):
    """A report that has the snapshot that it is about."""

    @property
    def snapshot(self) -> Snapshot | None: ...


def _opened(source: Snapshot | HasSnapshot | SnapshotSource) -> Snapshot:
    """The snapshot that a source is, has or holds.

    Raises:
        ValueError: It is a report without one.
    """
    if isinstance(source, Report) and hasattr(source, "snapshot"):
        if source.snapshot is None:
            raise ValueError("this report has no snapshot: give the snapshot itself")
        source = source.snapshot
    return source if isinstance(source, Snapshot) else load(cast(SnapshotSource, source))


def _of_told(before: ToldReport, after: ToldReport, device: int | None) -> DiffReport:
    """What two reports say, and how it differs: the totals, and who held the peaks."""
    number = after.device(device)
    earlier = before.device(None if device is None and len(before.devices) == 1 else number)
    was, now = before.stats(earlier), after.stats(number)
    peaks = before.peaks(earlier), after.peaks(number)
    at_peak = changes(peaks[0].held, peaks[1].held)
    return DiffReport(
        device=number,
        before_device=earlier,
        before_allocated_bytes=was["allocated_bytes.all.current"],
        after_allocated_bytes=now["allocated_bytes.all.current"],
        before_reserved_bytes=was["reserved_bytes.all.current"],
        after_reserved_bytes=now["reserved_bytes.all.current"],
        before_peak_allocated_bytes=peaks[0].allocated,
        after_peak_allocated_bytes=peaks[1].allocated,
        before_peak_reserved_bytes=peaks[0].reserved,
        after_peak_reserved_bytes=peaks[1].reserved,
        at_peak=at_peak,
        by_stack=(),
        by_line=(),
        by_category=(),
        by_size=(),
        before_end_known=before.end_known(earlier),
        after_end_known=after.end_known(number),
        findings=ranked(peak_findings(peaks, at_peak)),
        _of_reports=True,
    )


def diff(
    before: Snapshot | HasSnapshot | SnapshotSource | Mapping[str, Any],
    after: Snapshot | HasSnapshot | SnapshotSource | Mapping[str, Any],
    *,
    device: int | None = None,
) -> DiffReport:
    """What two snapshots of a program hold, and how it differs.

    Args:
        before: A Snapshot, a report that has one (of `report` or of a cell), or what `load`
            takes. Or the JSON of a report, as a file or as `to_dict()` gives it: of two of these
            the totals are compared and who held the peaks, in requested bytes.
        after: A later one, or one of another run.
        device: The device; None is the only one of each, as two ranks have theirs.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        SnapshotError: A file can't be read.
        ValueError: There is no such device, or only one of the two is the JSON of a report.

    Example:
        >>> import neutracer
        >>> healthy = neutracer.load("tests/data/train_resnet_healthy.pickle.xz")
        >>> late = neutracer.load("tests/data/train_resnet_late_zero_grad.pickle.xz")
        >>> neutracer.diff(healthy, late).allocated_bytes
        1441792
    """
    told = told_report(before), told_report(after)
    if told[0] is not None and told[1] is not None:
        return _of_told(told[0], told[1], device)
    if told[0] is not None or told[1] is not None:
        raise ValueError("one of the two is JSON of a report, the other not: give two of a kind")
    first, second = _opened(cast(Any, before)), _opened(cast(Any, after))
    number = second.device(device)
    only = device is None and len(first.devices) == 1
    earlier = first.device(None if only else number)
    known = end_is_known(first, earlier), end_is_known(second, number)
    held, holds = (
        (held_in(first, earlier), held_in(second, number)) if all(known) else (NOTHING, NOTHING)
    )
    was, now = first.memory_stats(earlier), second.memory_stats(number)
    lines = changes(by_line(held.by_stack), by_line(holds.by_stack))
    total = was["allocated_bytes.all.current"]
    peaks = peaks_of(first, earlier), peaks_of(second, number)
    have_peaks = all(peak.allocated is not None for peak in peaks)
    at_peak = changes(peaks[0].held, peaks[1].held) if have_peaks else ()
    return DiffReport(
        device=shown_device(second, number),
        before_device=shown_device(first, earlier),
        before_allocated_bytes=total,
        after_allocated_bytes=now["allocated_bytes.all.current"],
        before_reserved_bytes=was["reserved_bytes.all.current"],
        after_reserved_bytes=now["reserved_bytes.all.current"],
        before_peak_allocated_bytes=peaks[0].allocated,
        after_peak_allocated_bytes=peaks[1].allocated,
        before_peak_reserved_bytes=peaks[0].reserved,
        after_peak_reserved_bytes=peaks[1].reserved,
        at_peak=at_peak,
        by_stack=changes(held.by_stack, holds.by_stack),
        by_line=lines,
        by_category=changes(held.by_category, holds.by_category),
        by_size=changes(held.by_size, holds.by_size),
        before_end_known=known[0],
        after_end_known=known[1],
        findings=(
            *first_findings(first, second),
            *ranked((*peak_findings(peaks, at_peak), *line_findings(lines, total))),
        ),
    )
