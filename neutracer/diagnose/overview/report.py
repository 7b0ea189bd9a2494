# SPDX-License-Identifier: Apache-2.0
"""What a snapshot shows, on one page: totals, peak and its holders, findings, oddities."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from neutracer.diagnose.fragmentation.report import FragmentationReport, band, fragmentation_report
from neutracer.diagnose.holds.by_module import module_tables
from neutracer.diagnose.oom.facts import facts_beside
from neutracer.diagnose.overview.findings import failure_findings, trend_findings
from neutracer.diagnose.overview.late_gradients import late_gradients_finding
from neutracer.diagnose.overview.oddities import oddities
from neutracer.render.document import Block, Document, Figure, Findings, KeyValues, Place, Table
from neutracer.render.report import Finding, Report, ranked
from neutracer.trace.flaws import BROKEN, flaw_findings
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["DeviceOverview", "Holding", "OutOfMemory", "OverviewReport", "overview"]

# Holders on the printed page; all of them are in the JSON up to a bound.
_SHOWN_HOLDERS = 6
_MOST_HOLDERS = 50


@dataclass(frozen=True)
class Holding:
    """What one place in the program holds at the peak.

    Attributes:
        function, filename, line, package, caller: The place, as `Place` has it.
        requested_bytes: What it requested.
        count: How many blocks that is.
        share: Of all bytes requested in live blocks then.
    """

    function: str
    filename: str
    line: int
    requested_bytes: int
    count: int
    share: float
    package: str = ""
    caller: str = ""

    @property
    def place(self) -> Place:
        """The place."""
        return Place(self.function, self.filename, self.line, self.package, self.caller)


@dataclass(frozen=True)
class OutOfMemory:
    """One out-of-memory event.

    Attributes:
        event: Its number in the device's trace.
        time_us: Microseconds since the epoch; None where unknown.
        asked_bytes: The request, rounded as the allocator does.
        device_free_bytes: What the device had left.
    """

    event: int
    time_us: int | None
    asked_bytes: int
    device_free_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceOverview:
    """One device of a snapshot.

    Attributes:
        device: Its number.
        memory_stats: PyTorch's own figures at the end, under its keys.
        peak: The peak of allocated: allocated_bytes, event, requested_bytes, holders.
        modules: The allocated bytes at that peak by module, the most first; empty where the
            recording knows no modules.
        reserved_peak: The peak of reserved: reserved_bytes, event.
        fragmentation: The report on it.
        oom: The out-of-memory events.
        events: The number of events.
        duration_us: From the first event to the last; None where unknown.
        history_complete: As `Snapshot.history_complete`.
    """

    device: int
    memory_stats: dict[str, int]
    peak: dict[str, Any]
    modules: dict[str, int]
    reserved_peak: dict[str, int]
    fragmentation: FragmentationReport
    oom: tuple[OutOfMemory, ...]
    events: int
    duration_us: int | None
    history_complete: bool | None


@dataclass(frozen=True, kw_only=True, repr=False)
class OverviewReport(Report):
    """What `neutracer report` prints.

    Attributes:
        file: The file's name, or "" for a live process.
        devices: One entry a device.
        partial: Why only a part was read, or None.
        ignored_keys: Keys of the file that are not read.
        settings: The PYTORCH_CUDA_ALLOC_CONF in force; "" is PyTorch's default.
    """

    schema = "neutracer.report/1"

    file: str
    devices: tuple[DeviceOverview, ...]
    partial: str | None
    ignored_keys: tuple[str, ...]
    settings: str
    _odd: tuple[tuple[str, str], ...] = field(compare=False)
    _flaws: tuple[Finding, ...] = field(compare=False, default=())
    _found: tuple[tuple[int, tuple[Finding, ...]], ...] = field(compare=False, default=())

    def findings_of(self, device: int) -> tuple[Finding, ...]:
        """What is worth reporting of one device, without its name; the worst first."""
        return next((found for number, found in self._found if number == device), ())

    def document(self) -> Document:
        """The report as a page."""
        # What the file says that can't be comes before any figure.
        blocks = _entries(self._flaws)
        for device in self.devices:
            blocks.append(_totals(device))
        blocks.extend(_entries(self.findings[len(self._flaws) :]))
        for device in self.devices:
            blocks.extend(_holders(device, len(self.devices) > 1))
        if self._odd:
            blocks.append(KeyValues("Also", self._odd))
        return Document(self.file or "this process", self._facts(), tuple(blocks))

    def _facts(self) -> tuple[str, ...]:
        events = sum(device.events for device in self.devices)
        spans = [device.duration_us for device in self.devices if device.duration_us]
        length = f" over {format_duration_us(max(spans))}" if spans else ""
        known = [device.history_complete for device in self.devices if device.events]
        history = "history complete" if all(known) else "history begins late"
        if self.partial:
            history = "read in part"
        return (
            "PyTorch snapshot",
            format_count(len(self.devices), "device"),
            format_count(events, "event") + length,
            *((history,) if known else ("no history recorded",)),
            self.settings or "default settings",
        )


def overview(
    snap: Snapshot, file: str = "", *, path: str = "", called: str | None = None
) -> OverviewReport:
    """What a snapshot shows.

    Args:
        snap: The snapshot.
        file: The name of its file, or another name, for the page's title.
        path: Where its file is: `explain` reads the facts beside it. Empty where it has none.
        called: The file's name in commands that say more; None for `path`.

    Example:
        >>> import neutracer
        >>> from neutracer.diagnose.overview.report import overview
        >>> overview(neutracer.load("tests/data/frag_default.pickle")).worst
        <Severity.SEVERE: 'severe'>
    """
    devices = tuple(_device(snap, device) for device in snap.devices)
    findings: list[Finding] = []
    by_device = []
    flaws = snap.flaws
    facts = facts_beside(path, []) if path else None
    name = path if called is None else called
    for device in devices:
        timeline = snap.timeline(device.device)
        failures, causes = failure_findings(snap, timeline, name, facts)
        if any(one.kind == "pending_frees" for one in device.fragmentation.findings):
            # Reserved memory grows because blocks wait, and not because sizes differ.
            causes |= {"cache_growth"}
        found = [
            *failures,
            *trend_findings(snap, timeline, name, causes),
            *(one for one in device.fragmentation.findings if one.kind != BROKEN),
            *late_gradients_finding(timeline),
        ]
        where = f"{_name(device)}: " if len(devices) > 1 else ""
        findings += [replace(one, message=where + one.message) for one in found]
        told = (*flaw_findings(flaws, device.device), *ranked(found))
        by_device.append((device.device, told))
    return OverviewReport(
        file=os.path.basename(file),
        devices=devices,
        partial=snap.partial,
        ignored_keys=snap.ignored_keys,
        settings=str(snap.settings_in_force["text"]),
        findings=(*flaw_findings(flaws), *ranked(findings)),
        _odd=oddities(snap, {entry.device: entry.fragmentation for entry in devices}),
        _flaws=flaw_findings(flaws),
        _found=tuple(by_device),
    )


def _entries(findings: tuple[Finding, ...]) -> list[Block]:
    return [Findings(tuple(finding.entry() for finding in findings))] if findings else []


def _device(snap: Snapshot, device: int) -> DeviceOverview:
    timeline = snap.timeline(device)
    peak, reserved = timeline.peak("allocated"), timeline.peak("reserved")
    held = timeline.held_by_place()
    total = sum(requested for _, _, requested, _ in held)
    held = sorted(held, key=lambda one: -one[2])
    holders = tuple(
        Holding(
            place.function,
            place.filename,
            place.line,
            requested,
            count,
            requested / total if total else 0.0,
            place.package,
            place.caller,
        )
        for place, _, requested, count in held[:_MOST_HOLDERS]
    )
    times = timeline.time_us
    duration = times[-1] - times[0] if len(times) and times[0] else None
    return DeviceOverview(
        device=device,
        memory_stats=snap.memory_stats(device),
        peak={
            "allocated_bytes": peak.bytes,
            "event": peak.event,
            "requested_bytes": total,
            "holders": holders,
        },
        modules=timeline.held_by_module(peak.event),
        reserved_peak={"reserved_bytes": reserved.bytes, "event": reserved.event},
        fragmentation=fragmentation_report(snap, device=device),
        oom=_ooms(snap, device),
        events=len(timeline),
        duration_us=duration,
        history_complete=snap.history_complete(device),
    )


def _ooms(snap: Snapshot, device: int) -> tuple[OutOfMemory, ...]:
    timeline = snap.timeline(device)
    if not timeline.facts["oom_count"]:
        return ()
    rows = timeline.events
    return tuple(
        OutOfMemory(event, rows[event].time_us or None, rows[event].size, rows[event].device_free)
        for event, action in enumerate(rows["action"])
        if action == "oom"
    )


def _totals(device: DeviceOverview) -> Table:
    now, stats = device.fragmentation, device.memory_stats
    allocated = Figure.bytes(stats["allocated_bytes.all.current"])
    reserved = Figure.bytes(stats["reserved_bytes.all.current"])
    unused = Figure.share(now.ratio)
    if not device.events:
        # A peak is known from events alone.
        last = ("unused", unused, str(now.severity))
        rows = (("allocated", allocated, ""), ("reserved", reserved, ""), last)
        return Table(_name(device), rows, ("", "now", ""), _attempts(device))
    peak, most = device.peak, device.reserved_peak
    at_peak = device.fragmentation.fragmentation_history
    then = at_peak[most["event"]] if most["event"] >= 0 else now.ratio
    words = f"{now.severity} now, {band(then)} at the peak of reserved"
    full = (
        ("allocated", allocated, Figure.bytes(peak["allocated_bytes"]), _when(peak["event"])),
        ("reserved", reserved, Figure.bytes(most["reserved_bytes"]), _when(most["event"])),
        ("unused", unused, Figure.share(then), words),
    )
    return Table(_name(device), full, ("", "now", "peak", ""), _attempts(device))


def _name(device: DeviceOverview) -> str:
    return "cpu" if device.fragmentation.device < 0 else f"cuda:{device.device}"


def _when(event: int) -> str:
    return f"event {format_count(event)}" if event >= 0 else "before the trace"


def _attempts(device: DeviceOverview) -> tuple[str, ...]:
    retries, ooms = device.fragmentation.retries, len(device.oom)
    parts = []
    if retries and device.fragmentation.device >= 0:
        word = format_count(retries, "retry", "retries")
        parts.append(f"{word} (cache given back to find room)")
    if ooms:
        parts.append(f"{format_count(ooms)} out of memory")
    return (", ".join(parts),) if parts else ()


def _holders(device: DeviceOverview, several: bool) -> tuple[Table, ...]:
    holders = device.peak["holders"]
    if not holders:
        return ()
    shown = holders[:_SHOWN_HOLDERS]
    rows = tuple(
        (
            Figure.share(holder.share),
            Figure.bytes(holder.requested_bytes),
            Figure.count(holder.count, "block"),
            holder.place,
        )
        for holder in shown
    )
    where = f" of {_name(device)}" if several else ""
    asked = format_bytes(device.peak["requested_bytes"], "MiB", decimals=1)
    allocated = format_bytes(device.peak["allocated_bytes"], "MiB", decimals=1)
    rest = len(holders) - len(shown)
    notes = (f"and {format_count(rest, 'more place')}",) if rest else ()
    what = "the peak" if device.events else "it now"
    title = f"Who holds {what}{where} ({asked} asked for, {allocated} allocated)"
    return (Table(title, rows, notes=notes), *module_tables(f"By module{where}", device.modules))
