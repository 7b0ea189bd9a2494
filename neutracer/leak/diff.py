# SPDX-License-Identifier: Apache-2.0
"""`diff`: two snapshots compared by the line that allocated."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from neutracer.errors import SnapshotError
from neutracer.leak.series import allocated_blocks
from neutracer.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Cell,
    Copyable,
    Document,
    Figure,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.trace.beside import parse_json
from neutracer.trace.events import device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import Frame, place_of
from neutracer.units import format_bytes, format_count
from neutracer.whatif.drag import drag_findings

# ---- Diff parts --------------------------------------------------------------------------

Sums = dict[Any, tuple[int, int]]

# Rows of each table of the printed report.
_SHOWN = 8


@dataclass(frozen=True)
class Change(PlainRow):
    """The difference of one stack, line, category or size class between two snapshots.

    Attributes:
        kind: "new" (no blocks before), "gone" (no blocks after), "grown", "shrunk" or "same".
        key: Its name: a line, a category, or a range of sizes.
        before_bytes: Allocated bytes before.
        after_bytes: And after.
        before_count: Allocated blocks before.
        after_count: And after.
        stack: The frames of a stack, innermost first; else empty.
        place: The line, or the program's line that represents a stack; else None.
    """

    kind: str
    key: str
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int
    stack: tuple[Frame, ...] = ()
    place: Place | None = None

    @property
    def bytes(self) -> int:
        """After minus before."""
        return self.after_bytes - self.before_bytes

    @property
    def count(self) -> int:
        """Blocks after minus blocks before."""
        return self.after_count - self.before_count


@dataclass(frozen=True)
class Held:
    """The allocated blocks of one snapshot: (bytes, blocks) by stack, category and size."""

    by_stack: Sums
    by_category: Sums
    by_size: Sums


@dataclass(frozen=True)
class Peaks:
    """The peaks of one snapshot's trace; None and -1 without events."""

    allocated: int | None  # The most bytes allocated.
    reserved: int | None  # The most bytes reserved.
    event: int  # The event of the most bytes allocated.
    held: Sums  # (bytes, blocks) allocated then, by place.


def peaks_of(snap: Snapshot, device: int) -> Peaks:
    if not snap.trace_length(device):
        return Peaks(None, None, -1, {})
    timeline = snap.timeline(device)
    peak, most = timeline.peak("allocated"), timeline.peak("reserved")
    held = {place: (nbytes, count) for place, nbytes, _, count in timeline.held_by_place()}
    return Peaks(peak.bytes, most.bytes, peak.event, held)


def size_class(nbytes: int) -> int:
    """The power of two at or above a size, at least 512.

    Example:
        >>> size_class(512), size_class(513), size_class(3 << 20) >> 20
        (512, 1024, 4)
    """
    return max(512, 1 << (nbytes - 1).bit_length())


#: Compared instead of an unknown end.
NOTHING = Held({}, {}, {})


def held_in(snap: Snapshot, device: int) -> Held:
    held = Held({}, {}, {})
    categories = _categories(snap, device)
    for frames, size, address in allocated_blocks(snap, device):
        _add(held.by_stack, frames, size)
        _add(held.by_category, categories.get(address, "unknown"), size)
        _add(held.by_size, size_class(size), size)
    return held


def _categories(snap: Snapshot, device: int) -> Mapping[int, str]:
    """The category of each allocation alive at the end of the trace, by address."""
    if not snap.trace_length(device):
        return {}
    timeline = snap.timeline(device)
    rows = timeline.allocations
    columns = zip(rows.codes("address"), rows.codes("free_event"), strict=True)
    names = timeline.categories
    return {address: names.name(row) for row, (address, freed) in enumerate(columns) if freed == -1}


def _add(sums: Sums, key: Any, size: int) -> None:
    nbytes, count = sums.get(key, (0, 0))
    sums[key] = (nbytes + size, count + 1)


def changes(before: Sums, after: Sums) -> tuple[Change, ...]:
    """The change of each key, the largest first."""
    found = []
    for key in dict.fromkeys((*before, *after)):
        held, count = before.get(key, (0, 0))
        holds, counts = after.get(key, (0, 0))
        stack = () if isinstance(key, (str, int, Place)) else key
        place = None if isinstance(key, (str, int)) else _place(key)
        text = _text(key) if place is None else str(place)
        kind = _kind(held, holds, count, counts)
        found.append(Change(kind, text, held, holds, count, counts, stack, place))
    return tuple(sorted(found, key=lambda one: (-abs(one.bytes), -one.after_bytes, one.key)))


def by_line(sums: Sums) -> Sums:
    """Group stacks by the program's line that represents them."""
    lines: Sums = {}
    for stack, (nbytes, count) in sums.items():
        place = place_of(stack)
        held, counted = lines.get(place, (0, 0))
        lines[place] = (held + nbytes, counted + count)
    return lines


def _place(key: Place | tuple[Frame, ...]) -> Place:
    return key if isinstance(key, Place) else place_of(key)


def _text(key: str | int) -> str:
    if isinstance(key, str):
        return key
    if key == 512:
        return "up to 512 B"
    low, high = format_bytes(key // 2), format_bytes(key)
    return f"{low.removesuffix(high[-4:])} to {high}"


def _kind(before: int, after: int, count: int, counts: int) -> str:
    if not count:
        return "new"
    if not counts:
        return "gone"
    return "grown" if after > before else "shrunk" if after < before else "same"


def change_table(title: str, found: list[Change]) -> Table:
    rows = tuple(
        (
            one.kind,
            Figure.bytes(one.before_bytes),
            Figure.bytes(one.after_bytes),
            Figure.bytes(one.bytes),
            f"{one.before_count:,} → {one.after_count:,}",
            one.place if one.place is not None else one.key,
        )
        for one in found[:_SHOWN]
    )
    shown = f" ({len(rows)} of {len(found)})" if len(rows) < len(found) else ""
    heads = ("", "before", "after", "difference", "blocks", "")
    return Table(title + shown, rows, heads)


# ---- Saved reports -----------------------------------------------------------------------

_SCHEMA = "neutracer.report/"
_VERSION = 1

# Far above a report's usual size, some hundred kilobytes.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class SavedReport:
    """A report saved by `neutracer report --json`."""

    name: str  # The file's name, for messages.
    devices: Mapping[int, Mapping[str, Any]]  # The entry of each device, by number.

    def device(self, device: int | None) -> int:
        """The device, or the only one."""
        known = tuple(self.devices)
        if device is None and len(known) == 1:
            return known[0]
        if device is None:
            which = "say which with device= (--device)"
            raise ValueError(f"the report has several devices, {which}: {known}")
        if device not in self.devices:
            raise ValueError(f"the report has no device {device}, only {known}")
        return device

    def stats(self, device: int) -> Mapping[str, int]:
        """PyTorch's figures at the end."""
        stats: Mapping[str, int] = self.devices[device]["memory_stats"]
        return stats

    def end_known(self, device: int) -> bool:
        """The figures are known; a file without segments has none."""
        return self.devices[device].get("end_known") is not False

    def peaks(self, device: int) -> Peaks:
        """The peaks, with the holders of allocated, in requested bytes."""
        entry = self.devices[device]
        if not _typed(entry["events"], int):
            return Peaks(None, None, -1, {})
        peak = entry["peak"]
        held = {
            _place_of(one): (_typed(one["requested_bytes"], int), _typed(one["count"], int))
            for one in peak["holders"]
        }
        most = _typed(entry["reserved_peak"]["reserved_bytes"], int)
        event = peak["event"] if peak["event"] == -1 else _typed(peak["event"], int)
        return Peaks(_typed(peak["allocated_bytes"], int), most, event, held)


def _place_of(one: Mapping[str, Any]) -> Place:
    function, filename, line, package, caller = (
        one[name] for name in ("function", "filename", "line", "package", "caller")
    )
    for text in (function, filename, package, caller):
        _typed(text, str)
    return Place(function, filename, _typed(line, int), package, caller)


def _typed(value: Any, kind: type[Any]) -> Any:
    """A value of exactly that type; TypeError for others, ValueError for numbers below 0."""
    if type(value) is not kind:
        raise TypeError(value)
    if isinstance(value, int) and not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value


def saved_report(source: object) -> SavedReport | None:
    """The report at a path or from `to_dict()`; None for any other source."""
    if isinstance(source, SavedReport):
        return source
    if isinstance(source, Mapping):
        return _checked(source, "the report")
    if not isinstance(source, (str, os.PathLike)) or not _is_json(source):
        return None
    with open(source, encoding="utf-8") as file:
        try:
            plain = parse_json(file.read())
        except ValueError as error:
            raise SnapshotError(f"not valid JSON: {error}") from None
    return _checked(plain, os.path.basename(os.fspath(source)))


def _is_json(path: str | os.PathLike[str]) -> bool:
    if not os.path.isfile(path) or os.path.getsize(path) > _MOST_BYTES:
        return False
    with open(path, "rb") as file:
        head = file.read(256)
    return head.lstrip()[:1] == b"{" and b'"schema"' in head


def _checked(plain: Any, name: str) -> SavedReport:
    schema = str(plain.get("schema", "")) if isinstance(plain, Mapping) else ""
    if not schema.startswith(_SCHEMA):
        raise SnapshotError(
            f"JSON with {schema or 'no schema'} is not a report of neutracer report --json"
        )
    if schema != f"{_SCHEMA}{_VERSION}":
        raise SnapshotError(f"{schema} is from another version of neutracer")
    try:
        made = SavedReport(name, {_device(one["device"]): one for one in plain["devices"]})
        for device in made.devices:
            made.peaks(device)
            for figure in ("allocated_bytes", "reserved_bytes"):
                _typed(made.stats(device)[f"{figure}.all.current"], int)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise SnapshotError("the report is incomplete, or not as neutracer wrote it") from None
    return made


def _device(value: Any) -> int:
    """The number of a device; -1 is the CPU, -2 the host's pinned memory."""
    return int(value) if value in (-1, -2) else int(_typed(value, int))


# ---- Diff findings -----------------------------------------------------------------------

# A line's growth is serious or severe from these bytes on, and moderate from a share of the
# total before.
_SERIOUS = 64 << 20
_SEVERE = 1 << 30
_MODERATE_SHARE = 0.1

# The peak decides if a program fits, so a smaller share of it is moderate.
_MODERATE_PEAK = 0.02

# Lines that become findings.
_FINDINGS = 5

# Places named for a higher peak.
_PEAK_PLACES = 3


def peak_findings(peaks: tuple[Peaks, Peaks], at_peak: tuple[Change, ...]) -> list[Finding]:
    """The finding on a higher peak of allocated, with the places that hold more."""
    before, after = peaks[0].allocated, peaks[1].allocated
    if before is None or after is None or after <= before:
        return []
    more = after - before
    message = f"the peak is {format_bytes(more)} higher: {format_bytes(after)}"
    message += f", up from {format_bytes(before)}"
    grown = [one for one in at_peak if one.bytes > 0][:_PEAK_PLACES]
    evidence = tuple(Note(f"{format_bytes(one.bytes)} more there by", one.place) for one in grown)
    severity = _severity(more, before, _MODERATE_PEAK)
    return [Finding("peak_grown", severity, more, message, evidence, event=peaks[1].event)]


def more_drag(
    before: tuple[Finding, ...], after: tuple[Finding, ...], peak: int | None
) -> Iterator[Finding]:
    """The findings on what is kept past its last use at the later peak, where it is more than
    before by a share of the former peak."""
    was = Counter[Place | None]()
    for one in before:
        was[one.evidence[0].place] += one.bytes
    for one in after:
        known = was[one.evidence[0].place]
        if one.bytes - known >= _MODERATE_PEAK * (peak or 0):
            note = (Note(f"{format_bytes(known)} before."),) if known else ()
            yield replace(one, evidence=(*one.evidence, *note))


def line_findings(lines: Iterable[Change], total: int) -> tuple[Finding, ...]:
    """The findings on the lines that grew most."""
    grown = [one for one in lines if one.bytes > 0][:_FINDINGS]
    return ranked(_finding(one, total) for one in grown)


def _finding(one: Change, total: int) -> Finding:
    size = format_bytes(one.bytes)
    text = f"{size} new" if one.kind == "new" else f"{size} more than before"
    blocks = (
        format_count(one.count, "more block")
        if one.count > 0
        else "in fewer blocks"
        if one.count
        else "in as many blocks"
    )
    evidence = Note(f"{blocks}, {format_bytes(one.after_bytes)} in all, from", one.place)
    return Finding(one.kind, _severity(one.bytes, total), one.bytes, text, (evidence,))


_ADVICE = {
    "peak_grown": "find what changed at these lines: a higher peak may no longer fit",
    "new": "if it should be gone by then, neutracer.why_alive() in the program names its holder",
}
_ADVICE["grown"] = _ADVICE["new"]


def _advice(one: Finding, *files: str) -> tuple[Note, ...]:
    """What to do about a finding; the files are "" where unknown."""
    advice = Note(_ADVICE[one.kind])
    if not all(files):
        return (advice,)
    command = f"neutracer plot {shlex.join(map(_short, files))}"
    return advice, Note("more", detail=Copyable(command))


def _short(path: str) -> str:
    # The current directory may be gone.
    with suppress(OSError):
        return min(path, os.path.relpath(path), key=len)
    return path


def _severity(nbytes: int, total: int, moderate: float = _MODERATE_SHARE) -> Severity:
    if nbytes >= _SEVERE:
        return Severity.SEVERE
    if nbytes >= _SERIOUS:
        return Severity.SERIOUS
    return Severity.MODERATE if nbytes >= moderate * total else Severity.INFO


# ---- Diff --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffReport(Report):
    """The difference between the memory of two snapshots.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        before_device: The device before; another one if two ranks are compared.
        before_allocated_bytes: allocated_bytes.all.current before.
        after_allocated_bytes: And after.
        before_reserved_bytes: reserved_bytes.all.current before.
        after_reserved_bytes: And after.
        before_peak_allocated_bytes: The most allocated in its trace; None without events.
        after_peak_allocated_bytes: And after.
        before_peak_reserved_bytes: The most reserved in its trace; None without events.
        after_peak_reserved_bytes: And after.
        at_peak: Changes by place at the peaks of allocated, the largest first; empty if a trace
            has no events.
        by_stack: Changes by stack at the end, the largest first.
        by_line: The same by the program's line that represents a stack.
        by_category: The same by category, as far as the traces show it.
        by_size: The same by size class, powers of two.
        before_end_known: False if the first file has a history but no segments: its figures at
            the end are then 0, and only peaks are compared.
        after_end_known: The same for the second.
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
        """Allocated after minus before."""
        return self.after_allocated_bytes - self.before_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Reserved after minus before."""
        return self.after_reserved_bytes - self.before_reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The peak of allocated after minus before; None if one is unknown."""
        return _less(self.after_peak_allocated_bytes, self.before_peak_allocated_bytes)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The peak of reserved after minus before; None if one is unknown."""
        return _less(self.after_peak_reserved_bytes, self.before_peak_reserved_bytes)

    @property
    def new(self) -> tuple[Change, ...]:
        """Stacks that held nothing before."""
        return tuple(one for one in self.by_stack if one.kind == "new")

    @property
    def gone(self) -> tuple[Change, ...]:
        """Stacks that hold nothing after."""
        return tuple(one for one in self.by_stack if one.kind == "gone")

    @property
    def grown(self) -> tuple[Change, ...]:
        """Stacks that hold more than before."""
        return tuple(one for one in self.by_stack if one.kind == "grown")

    @property
    def _ends_known(self) -> bool:
        return self.before_end_known and self.after_end_known

    def document(self) -> Document:
        """The report as a document."""
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
            text = "In requested bytes, as in reports. Two snapshots also show the end."
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
        return Document("Difference", tuple(facts), blocks, more="all: .to_dict()")

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
    """A report with its snapshot."""

    @property
    def snapshot(self) -> Snapshot | None: ...


def _opened(source: Snapshot | HasSnapshot | SnapshotSource) -> Snapshot:
    if isinstance(source, Report) and hasattr(source, "snapshot"):
        if source.snapshot is None:
            raise ValueError("this report has no snapshot: pass the snapshot itself")
        source = source.snapshot
    return opened(cast(SnapshotSource, source))


@dataclass(frozen=True)
class _Side:
    """One of the two sides."""

    device: int
    allocated: int
    reserved: int
    end_known: bool
    peaks: Peaks
    held: Held
    drag: tuple[Finding, ...] = ()


def _side(snap: Snapshot, device: int) -> _Side:
    stats = snap.memory_stats(device)
    return _Side(
        shown_device(snap, device),
        stats["allocated_bytes.all.current"],
        stats["reserved_bytes.all.current"],
        end_is_known(snap, device),
        peaks_of(snap, device),
        held_in(snap, device),
        drag_findings(snap, snap.timeline(device)),
    )


def _saved_side(saved: SavedReport, device: int) -> _Side:
    stats = saved.stats(device)
    return _Side(
        device,
        stats["allocated_bytes.all.current"],
        stats["reserved_bytes.all.current"],
        saved.end_known(device),
        saved.peaks(device),
        NOTHING,
    )


def _devices(
    before: Snapshot | SavedReport, after: Snapshot | SavedReport, device: int | None
) -> tuple[int, int]:
    """The device of each side; without `device`, each side's only one."""
    number = after.device(device)
    only = device is None and len(before.devices) == 1
    return before.device(None if only else number), number


def _compared(
    before: _Side, after: _Side, first: tuple[Finding, ...], *, of_reports: bool
) -> DiffReport:
    """Compare two sides; `first` are the findings to put first."""
    ends_known = before.end_known and after.end_known
    held, holds = (before.held, after.held) if ends_known else (NOTHING, NOTHING)
    lines = changes(by_line(held.by_stack), by_line(holds.by_stack))
    peaks = before.peaks, after.peaks
    have_peaks = all(peak.allocated is not None for peak in peaks)
    at_peak = changes(peaks[0].held, peaks[1].held) if have_peaks else ()
    found = (
        *peak_findings(peaks, at_peak),
        *more_drag(before.drag, after.drag, before.peaks.allocated),
        *line_findings(lines, before.allocated),
    )
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
    """Compare the memory of two snapshots.

    Args:
        before: A Snapshot, a report with one (of `report` or of a cell), or a source for `load`.
            Or a report's JSON, as a file or from `to_dict()`: two of these give totals and
            holders of the peaks, in requested bytes.
        after: A later one, or one of another run.
        device: The device; None is the only one of each.

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
    was, now = saved_report(before), saved_report(after)
    if was is not None and now is not None:
        earlier, number = _devices(was, now, device)
        sides = _saved_side(was, earlier), _saved_side(now, number)
        return _compared(*sides, (), of_reports=True)
    if was is not None or now is not None:
        raise ValueError(
            "only one of the two is a report's JSON: pass two reports or two snapshots"
        )
    first, second = _opened(cast(Any, before)), _opened(cast(Any, after))
    earlier, number = _devices(first, second, device)
    sides = _side(first, earlier), _side(second, number)
    report = _compared(*sides, first_findings(first, second), of_reports=False)
    worst = next((one for one in report.findings if one.kind in _ADVICE), None)
    if worst is None or worst.severity is Severity.INFO:
        return report
    advised = replace(worst, advice=_advice(worst, first.origin, second.origin))
    findings = (advised if one is worst else one for one in report.findings)
    return replace(report, findings=tuple(findings))
