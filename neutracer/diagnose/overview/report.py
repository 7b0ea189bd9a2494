# SPDX-License-Identifier: Apache-2.0
"""What a snapshot shows, on one page: totals, peak and its holders, findings, oddities."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from neutracer.diagnose.fragmentation.report import device_fragmentation
from neutracer.diagnose.oom.facts import facts_of
from neutracer.diagnose.overview.devices import (
    DeviceOverview,
    Holding,
    OutOfMemory,
    device_name,
    device_overview,
    holder_tables,
    totals_table,
)
from neutracer.diagnose.overview.findings import failure_findings, trend_findings
from neutracer.diagnose.overview.late_gradients import late_gradients_finding
from neutracer.diagnose.overview.oddities import oddities
from neutracer.diagnose.overview.tree import PeakTreeReport, peak_tree
from neutracer.diagnose.question import after_caveats, first_findings, opened
from neutracer.render.document import Block, Document, Findings, KeyValues
from neutracer.render.report import Finding, Report, ranked
from neutracer.trace.devices import PINNED
from neutracer.trace.devices import device_name as name_of
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.units import format_count, format_duration_us

__all__ = ["DeviceOverview", "Holding", "OutOfMemory", "OverviewReport", "overview", "report"]


@dataclass(frozen=True, kw_only=True, repr=False)
class OverviewReport(Report):
    """What `neutracer report` prints.

    Attributes:
        file: The file's name, or "" for a live process.
        devices: One entry a device.
        partial: Why only a part was read, or None.
        ignored_keys: Keys of the file that are not read.
        settings: The PYTORCH_CUDA_ALLOC_CONF in force; "" is PyTorch's default.
        settings_recorded: Whether the file states its settings. If not, `settings` is what its
            trace shows of them.
        rehearsed: Whether it is of a run that has not happened.
        window: Which events were read, where that is a part of the trace; else "".
        is_host: Whether it is of the host's pinned memory, not of a device's.
    """

    schema = "neutracer.report/1"

    file: str
    devices: tuple[DeviceOverview, ...]
    partial: str | None
    ignored_keys: tuple[str, ...]
    settings: str
    settings_recorded: bool = True
    rehearsed: bool = False
    window: str = ""
    is_host: bool = False
    _odd: tuple[tuple[str, str], ...] = field(compare=False)
    _flaws: tuple[Finding, ...] = field(compare=False, default=())
    _found: tuple[tuple[int, tuple[Finding, ...]], ...] = field(compare=False, default=())

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that it is about; None in a copy that came from another process."""
        return getattr(self, "_snapshot", None)

    def tree(self, device: int | None = None) -> PeakTreeReport:
        """Who led to the peak of a device: its stacks as a tree of callers.

        Args:
            device: The device; None is the only one of the report.

        Raises:
            ValueError: There is no such device, or this is a copy from another process, which
                has no snapshot.
        """
        if self.snapshot is None:
            raise ValueError("this report has no snapshot: ask the one that it was made of")
        if device is None and len(self.devices) == 1:
            device = self.devices[0].device
        return peak_tree(self.snapshot, device)

    @property
    def settings_told(self) -> str:
        """The settings in words."""
        return settings_words(self.settings, is_stated=self.settings_recorded)

    def findings_of(self, device: int) -> tuple[Finding, ...]:
        """What is worth reporting of one device, without its name; the worst first."""
        return next((found for number, found in self._found if number == device), ())

    def document(self) -> Document:
        """The report as a page."""
        # What the file lacks or says that can't be comes before any figure.
        blocks = _entries(self._flaws)
        for device in self.devices:
            blocks.append(totals_table(device))
        blocks.extend(_entries(self.findings[len(self._flaws) :]))
        for device in self.devices:
            blocks.extend(holder_tables(device, len(self.devices) > 1))
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
        elif self.window:
            history = self.window
        return (
            self._kind(),
            *(() if self.is_host else (format_count(len(self.devices), "device"),)),
            format_count(events, "event") + length,
            *((history,) if known else ("no history recorded",)),
            *(() if self.is_host else (self.settings_told,)),
        )

    def _kind(self) -> str:
        if self.is_host:
            return name_of(PINNED)
        return "Rehearsed, not recorded" if self.rehearsed else "PyTorch snapshot"


def report(
    source: Snapshot | SnapshotSource | None = None, *, device: int | None = None
) -> OverviewReport:
    """What a snapshot shows, on one page: what `neutracer report` prints.

    Args:
        source: A Snapshot or what `load` takes; None is this process, now.
        device: Only this device; None is all on which anything was reserved.

    Returns:
        The report: totals, the peak and who held it, and the findings of `explain`,
        `leak_trend` and `fragmentation_report`.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: There is no such device.

    Example:
        >>> import neutracer
        >>> found = neutracer.report("tests/data/frag_default.pickle")
        >>> found.worst == "severe", found.devices[0].peak["allocated_bytes"] >> 20
        (True, 590)
    """
    snap = opened(source)
    file = snap.origin
    if file and isinstance(source, (str, os.PathLike)):
        file = os.fspath(source)
    return overview(snap, file, title="" if source is None else "snapshot", device=device)


def overview(
    snap: Snapshot, file: str = "", *, title: str = "", device: int | None = None
) -> OverviewReport:
    """What a snapshot shows.

    Args:
        snap: The snapshot.
        file: The name of its file, for the title and in commands that say more; "" is none.
        title: The title where it has no file.
        device: Only this device; None is all on which anything was reserved.

    Example:
        >>> import neutracer
        >>> from neutracer.diagnose.overview.report import overview
        >>> overview(neutracer.load("tests/data/frag_default.pickle")).worst
        <Severity.SEVERE: 'severe'>
    """
    chosen = snap.devices if device is None else (snap.device(device),)
    entries = [_entry(snap, number) for number in chosen]
    if device is None:
        # A process that uses one device of several has the others in its file, empty.
        entries = [pair for pair in entries if _is_used(pair[0])] or entries
    devices = tuple(entry for entry, _ in entries)
    findings: list[Finding] = []
    by_device = []
    # Follow-up commands on a file are about its devices, not the host's pinned memory.
    name = "" if snap.is_pinned else file
    for entry, fragmented in entries:
        found = _found_on(snap, entry, name, fragmented)
        where = f"{device_name(entry)}: " if len(devices) > 1 else ""
        findings += [replace(one, message=where + one.message) for one in found]
        told = (*first_findings(snap, device=entry.device), *ranked(found))
        by_device.append((entry.device, told))
    first = first_findings(snap, device=None if device is None else chosen[0])
    made = OverviewReport(
        file=os.path.basename(file or title),
        devices=devices,
        partial=snap.partial,
        ignored_keys=snap.ignored_keys,
        settings=str(snap.settings_in_force["text"]),
        settings_recorded=snap.settings_stated,
        rehearsed=snap.rehearsed is not None,
        window=str(snap.window or ""),
        is_host=snap.is_pinned,
        findings=(*first, *ranked(findings)),
        _odd=oddities(snap, {entry.device: entry.fragmentation for entry in devices}),
        _flaws=first,
        _found=tuple(by_device),
    )
    # No field: what is pickled of a report is what it says.
    object.__setattr__(made, "_snapshot", snap)
    return made


def _entry(snap: Snapshot, number: int) -> tuple[DeviceOverview, tuple[Finding, ...]]:
    """A device, and the findings on its fragmentation."""
    fragmentation = device_fragmentation(snap, number)
    whole = after_caveats(fragmentation, snap, device=number)
    return device_overview(snap, number, whole), fragmentation.findings


def _is_used(entry: DeviceOverview) -> bool:
    """Whether the device was ever used, or an allocation on it failed."""
    return bool(entry.reserved_peak["reserved_bytes"] or entry.oom)


def _found_on(
    snap: Snapshot, entry: DeviceOverview, name: str, fragmented: tuple[Finding, ...]
) -> list[Finding]:
    """What is worth reporting of one device; `name` is its file's in commands."""
    timeline = snap.timeline(entry.device)
    failures, causes = failure_findings(snap, timeline, name, facts_of(snap.beside))
    if any(one.kind == "pending_frees" for one in fragmented):
        # Reserved memory grows because blocks wait, and not because sizes differ.
        causes |= {"cache_growth"}
    return [
        *failures,
        *trend_findings(snap, timeline, name, causes),
        *fragmented,
        *late_gradients_finding(timeline),
    ]


def _entries(findings: tuple[Finding, ...]) -> list[Block]:
    return [Findings(tuple(finding.entry() for finding in findings))] if findings else []
