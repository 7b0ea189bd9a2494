# SPDX-License-Identifier: Apache-2.0
"""One device of a snapshot: its totals, its peak and who held it, and how a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutracer.diagnose.fragmentation.report import FragmentationReport, band
from neutracer.diagnose.holds.by_module import module_tables
from neutracer.render.document import Figure, Table
from neutracer.render.row import PlacedRow, PlainRow
from neutracer.trace.devices import device_name as name_of
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_bytes, format_count

__all__ = [
    "DeviceOverview",
    "Holding",
    "OutOfMemory",
    "device_name",
    "device_overview",
    "holder_tables",
    "totals_table",
]

# Holders on the printed page; all of them are in the JSON up to a bound.
_SHOWN_HOLDERS = 6
_MOST_HOLDERS = 50

# Stands for a figure that the file does not have.
_NOT_KNOWN = Figure("", "not known")


@dataclass(frozen=True)
class Holding(PlacedRow):
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


@dataclass(frozen=True)
class OutOfMemory(PlainRow):
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
class DeviceOverview(PlainRow):
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
        end_known: False where the file has a history and lacks the segments: then
            `memory_stats` says nothing.
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
    end_known: bool = True


def device_overview(
    snap: Snapshot, device: int, fragmentation: FragmentationReport
) -> DeviceOverview:
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
        fragmentation=fragmentation,
        oom=_ooms(snap, device),
        events=len(timeline),
        duration_us=duration,
        history_complete=snap.history_complete(device),
        end_known=end_is_known(snap, device),
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


def totals_table(device: DeviceOverview) -> Table:
    now, stats = device.fragmentation, device.memory_stats
    allocated = Figure.bytes(stats["allocated_bytes.all.current"])
    reserved = Figure.bytes(stats["reserved_bytes.all.current"])
    unused = Figure.share(now.ratio)
    if not device.events:
        # A peak is known from events alone.
        last = ("unused", unused, now.judged)
        rows = (("allocated", allocated, ""), ("reserved", reserved, ""), last)
        return Table(device_name(device), rows, ("", "now", ""), _attempts(device))
    peak, most = device.peak, device.reserved_peak
    at_peak = device.fragmentation.fragmentation_history
    then = at_peak[most["event"]] if most["event"] >= 0 else now.ratio
    words = ", ".join(filter(None, (f"{now.judged} now", _judged_peak(now, then))))
    if not device.end_known:
        allocated = reserved = unused = _NOT_KNOWN
        words = _judged_peak(now, then)
    full = (
        ("allocated", allocated, Figure.bytes(peak["allocated_bytes"]), _when(peak["event"])),
        ("reserved", reserved, Figure.bytes(most["reserved_bytes"]), _when(most["event"])),
        ("unused", unused, Figure.share(then), words),
    )
    return Table(device_name(device), full, ("", "now", "peak", ""), _attempts(device))


def _judged_peak(report: FragmentationReport, then: float) -> str:
    """What the findings say of the share that was unused at the peak of reserved."""
    found = next((one for one in report.findings if one.kind == "fragmentation_peak"), None)
    word = str(found.severity) if found else "good" if band(then) == "good" else ""
    return f"{word} at the peak of reserved" if word else ""


def device_name(device: DeviceOverview) -> str:
    return name_of(device.fragmentation.device)


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


def holder_tables(device: DeviceOverview, several: bool) -> tuple[Table, ...]:
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
    where = f" of {device_name(device)}" if several else ""
    asked = format_bytes(device.peak["requested_bytes"], "MiB", decimals=1)
    allocated = format_bytes(device.peak["allocated_bytes"], "MiB", decimals=1)
    rest = len(holders) - len(shown)
    notes = (f"and {format_count(rest, 'more place')}",) if rest else ()
    what = "the peak" if device.events else "it now"
    title = f"Who holds {what}{where} ({asked} asked for, {allocated} allocated)"
    return (Table(title, rows, notes=notes), *module_tables(f"By module{where}", device.modules))
