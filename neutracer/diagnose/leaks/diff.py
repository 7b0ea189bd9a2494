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
    Held,
    Peaks,
    by_line,
    change_table,
    changes,
    held_in,
    peaks_of,
)
from neutracer.diagnose.leaks.told import ToldReport, told_report
from neutracer.diagnose.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Cell,
    Document,
    Figure,
    Paragraph,
    Table,
)
from neutracer.render.report import Finding, Report, ranked
from neutracer.trace.devices import device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
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
    return opened(cast(SnapshotSource, source))


@dataclass(frozen=True)
class _Side:
    """What is compared of one of the two."""

    device: int
    allocated: int
    reserved: int
    end_known: bool
    peaks: Peaks
    held: Held


def _side(snap: Snapshot, device: int) -> _Side:
    stats = snap.memory_stats(device)
    return _Side(
        shown_device(snap, device),
        stats["allocated_bytes.all.current"],
        stats["reserved_bytes.all.current"],
        end_is_known(snap, device),
        peaks_of(snap, device),
        held_in(snap, device),
    )


def _told_side(told: ToldReport, device: int) -> _Side:
    """What a report says: the totals, and who held the peak."""
    stats = told.stats(device)
    return _Side(
        device,
        stats["allocated_bytes.all.current"],
        stats["reserved_bytes.all.current"],
        told.end_known(device),
        told.peaks(device),
        NOTHING,
    )


def _devices(
    before: Snapshot | ToldReport, after: Snapshot | ToldReport, device: int | None
) -> tuple[int, int]:
    """The device of each: the only one, as two ranks have theirs, or the same."""
    number = after.device(device)
    only = device is None and len(before.devices) == 1
    return before.device(None if only else number), number


def _compared(
    before: _Side, after: _Side, first: tuple[Finding, ...], *, of_reports: bool
) -> DiffReport:
    """How the two differ; `first` are the findings that come before all others."""
    ends_known = before.end_known and after.end_known
    held, holds = (before.held, after.held) if ends_known else (NOTHING, NOTHING)
    lines = changes(by_line(held.by_stack), by_line(holds.by_stack))
    peaks = before.peaks, after.peaks
    have_peaks = all(peak.allocated is not None for peak in peaks)
    at_peak = changes(peaks[0].held, peaks[1].held) if have_peaks else ()
    found = (*peak_findings(peaks, at_peak), *line_findings(lines, before.allocated))
    return DiffReport(
        device=after.device,
        before_device=before.device,
        before_allocated_bytes=before.allocated,
        after_allocated_bytes=after.allocated,
        before_reserved_bytes=before.reserved,
        after_reserved_bytes=after.reserved,
        before_peak_allocated_bytes=peaks[0].allocated,
        after_peak_allocated_bytes=peaks[1].allocated,
        before_peak_reserved_bytes=peaks[0].reserved,
        after_peak_reserved_bytes=peaks[1].reserved,
        at_peak=at_peak,
        by_stack=changes(held.by_stack, holds.by_stack),
        by_line=lines,
        by_category=changes(held.by_category, holds.by_category),
        by_size=changes(held.by_size, holds.by_size),
        before_end_known=before.end_known,
        after_end_known=after.end_known,
        findings=(*first, *ranked(found)),
        _of_reports=of_reports,
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
    was, now = told_report(before), told_report(after)
    if was is not None and now is not None:
        earlier, number = _devices(was, now, device)
        sides = _told_side(was, earlier), _told_side(now, number)
        return _compared(*sides, (), of_reports=True)
    if was is not None or now is not None:
        raise ValueError("one of the two is JSON of a report, the other not: give two of a kind")
    first, second = _opened(cast(Any, before)), _opened(cast(Any, after))
    earlier, number = _devices(first, second, device)
    sides = _side(first, earlier), _side(second, number)
    return _compared(*sides, first_findings(first, second), of_reports=False)
