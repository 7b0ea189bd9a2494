# SPDX-License-Identifier: Apache-2.0
"""`fragmentation_report`: reserved, allocated and free bytes of a moment, and what would fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import neutracer.fragmentation.findings as layout
from neutracer._native import core
from neutracer.arguments import number_pair, whole_number
from neutracer.errors import UnavailableError
from neutracer.fragmentation.findings import (
    Hole,
    PoolFragmentation,
    SegmentFragmentation,
    band,
    findings_of,
    severity_of,
)
from neutracer.question import after_caveats, opened
from neutracer.render.document import Block, Document, Figure, Note, Paragraph, Severity, Table
from neutracer.render.report import Finding, Report
from neutracer.trace.events import cache_emptier, device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.timeline import unused_share
from neutracer.units import format_bytes, format_event, format_share

# ---- Readings ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Readings:
    """A monitor's readings of one device, for a report without a layout."""

    device: int  # Its number; -1 is the CPU.
    figures: dict[str, Any]  # The byte fields of a FragmentationReport, from the last reading.
    # The bytes that the process may have: its limit, else the device, else the most that it
    # reserved.
    room: int
    spared: int  # The most reserved minus the most allocated, in bytes; no cure gives back more.
    spared_ratio: float  # The same as a share of the most reserved.
    largest: float  # The largest ratio of any reading.
    mean: float
    history: bytes  # The ratio of each row of the monitor's series, as native doubles.
    ooms: int  # Out-of-memory errors by the allocator's count.
    retries: int  # Releases of the cache to retry an allocation.

    def findings(self) -> tuple[Finding, ...]:
        """The finding about the last reading, if any."""
        reserved, allocated = (self.figures[f"{name}_bytes"] for name in ("reserved", "allocated"))
        ratio = (reserved - allocated) / reserved if reserved else 0.0
        unused = reserved - allocated
        if band(ratio) == "good":
            return ()
        text = f"{format_share(ratio)} of the {format_bytes(reserved)} reserved was unused"
        note = Note(f"At most {format_share(self.largest)} while the monitor ran.")
        severity = min(
            severity_of(ratio, unused, self.room),
            severity_of(self.spared_ratio, self.spared, self.room),
        )
        return (Finding("fragmentation", severity, unused, text, (note,)),)


@runtime_checkable
class Monitor(Protocol):
    """The interface of MemoryMonitor: its last reading, and the series of all."""

    def get_stats(self, device: Any = None) -> Any: ...
    def device_series(self, device: Any = None) -> Any: ...


def readings_of(monitor: Monitor, device: object) -> Readings:
    """A monitor's readings of a device."""
    stats = monitor.get_stats(device)
    series = monitor.device_series(device)
    name = stats["device"]
    reserved, active = stats["reserved_bytes"], stats["active_bytes"]
    requested = stats["requested_bytes"] or active
    figures = {
        "reserved_bytes": reserved,
        "allocated_bytes": stats["current_bytes"],
        "active_bytes": active,
        "requested_bytes": requested,
        "internal_bytes": max(active - requested, 0),
        "external_bytes": max(reserved - active, 0),
        "reclaimable_bytes": 0,
        "largest_request": 0,
    }
    return Readings(
        device=-1 if name == "cpu" else int(name.rpartition(":")[2]),
        figures=figures,
        room=stats["limit_bytes"] or stats["peak_reserved_bytes"],
        spared=max(stats["peak_reserved_bytes"] - stats["peak_bytes"], 0),
        spared_ratio=unused_share(stats["peak_reserved_bytes"], stats["peak_bytes"]),
        largest=stats["max_ratio"],
        mean=stats["avg_ratio"],
        history=bytes(series.codes("ratio")),
        ooms=stats["ooms"],
        retries=stats["retries"],
    )


# ---- Report ------------------------------------------------------------------------------

if TYPE_CHECKING:
    Doubles = memoryview[float]
else:
    # memoryview is generic at run time from Python 3.14 on.
    Doubles = memoryview

# Holes of the printed report.
_SHOWN_HOLES = 5


@dataclass(frozen=True, kw_only=True, repr=False)
class FragmentationReport(Report):
    """The use of reserved memory, and the causes of its free bytes.

    Also a mapping of the figures of the usual guide: `report["max_fragmentation"]`,
    `["avg_fragmentation"]`, `["current_fragmentation"]`, `["fragmentation_history"]`.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        reserved_bytes: PyTorch's reserved_bytes.all.current.
        allocated_bytes: PyTorch's allocated_bytes.all.current.
        active_bytes: PyTorch's active_bytes.all.current: allocated, or waiting for a stream.
        requested_bytes: PyTorch's requested_bytes.all.current, in active blocks.
        internal_bytes: Active minus requested: rounding and unsplit remainders.
        external_bytes: Reserved minus active: holes and cached segments.
        reclaimable_bytes: Released by torch.cuda.empty_cache(), or for pinned memory by
            torch.accelerator.empty_host_cache().
        largest_request: The largest request on any stream that needs no new segment; `pools`
            has it per pool.
        max_fragmentation: The largest ratio, over all events and now.
        max_event: Its first event; None if it is now or from a monitor.
        avg_fragmentation: The mean of the ratio over all events.
        oom_count: Out-of-memory events in the trace.
        retries: Releases of the cache to retry an allocation; None if unknown.
        pools: By pool and stream, the most reserved bytes first.
        segments: By segment, in the order of the snapshot.
        holes: The free blocks, the largest first.
        end_known: False if the file has a history but no segments: the bytes are then unknown,
            and 0.
    """

    schema = "neutracer.fragmentation/1"
    derived = ("ratio", "severity", "current_fragmentation")

    device: int
    reserved_bytes: int
    allocated_bytes: int
    active_bytes: int
    requested_bytes: int
    internal_bytes: int
    external_bytes: int
    reclaimable_bytes: int
    largest_request: int
    max_fragmentation: float
    max_event: int | None
    avg_fragmentation: float
    oom_count: int
    retries: int | None
    pools: tuple[PoolFragmentation, ...]
    segments: tuple[SegmentFragmentation, ...]
    holes: tuple[Hole, ...]
    end_known: bool = True
    _served: layout.Served | None = field(compare=False)
    _history: bytes = field(compare=False)

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved; 0 if nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)

    @property
    def severity(self) -> str:
        """The band of the ratio: "good", "moderate", "serious", "severe", or "unknown".

        The findings and `judged` also weigh reclaimable bytes and the use at the peak.
        """
        return band(self.ratio) if self.end_known else "unknown"

    @property
    def judged(self) -> str:
        """The findings' verdict on the ratio: a severity, "mostly cached" or "little" for a
        harmless one, "good", or "not known"."""
        if not self.end_known:
            return "not known"
        found = next((one for one in self.findings if one.kind == "fragmentation"), None)
        if found is None:
            return "good"
        if found.severity is not Severity.INFO:
            return str(found.severity)
        unused = self.reserved_bytes - self.allocated_bytes
        return "mostly cached" if 2 * self.reclaimable_bytes >= unused else "little"

    @property
    def current_fragmentation(self) -> float:
        """The ratio now."""
        return self.ratio

    @cached_property
    def fragmentation_history(self) -> Doubles:
        """The ratio after each event of the trace."""
        return memoryview(self._history).cast("d")

    def fits(self, nbytes: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> bool:
        """Check if a request would succeed now without a new segment.

        Args:
            nbytes: The request in bytes.
            stream: The raw stream; 0 is the default stream.
            pool: The private pool; (0, 0) is the default pool.

        Raises:
            UnavailableError: The report is of a monitor's readings alone, or of a file without
                segments.
        """
        if self._served is None:
            why = (
                "a monitor's readings don't" if self.end_known else "the file lists no segments to"
            )
            raise UnavailableError("the layout", f"{why} show it")
        nbytes = whole_number("nbytes", nbytes, least=0)
        pool, stream = number_pair("pool", pool, whole=True), whole_number("stream", stream)
        ranges = self._served.get((pool, stream), ())
        return nbytes == 0 or any(least <= nbytes <= most for least, most in ranges)

    def __getitem__(self, key: str) -> Any:
        """A figure by name, as in the usual guide."""
        if not isinstance(key, str) or key.startswith("_") or not hasattr(self, key):
            raise KeyError(f"no figure {key!r}; .to_dict() lists all")
        return getattr(self, key)

    def document(self) -> Document:
        """The report as a document."""
        name = device_name(self.device)
        if not self.end_known:
            return Document("Fragmentation", (name,), (*self.finding_blocks(), self._of_history()))
        facts = (name, f"{format_share(self.ratio)} unused, {self.judged}")
        blocks = (self._totals(), *self._pool_table(), *self._hole_table())
        return Document("Fragmentation", facts, (*self.finding_blocks(), *blocks))

    def _of_history(self) -> Block:
        most = format_share(self.max_fragmentation)
        at = f" ({format_event(self.max_event)})" if self.max_event is not None else ""
        return Paragraph(
            "Reserved and allocated memory at the end are not known. During the trace at most"
            f" {most} of the reserved memory was unused{at}."
        )

    def _totals(self) -> Table:
        taken = f"taken from the {'device' if self.device >= 0 else 'system'}"
        emptier = cache_emptier(self.device).rpartition(".")[2]
        rows = (
            ("reserved", Figure.bytes(self.reserved_bytes), taken),
            ("allocated", Figure.bytes(self.allocated_bytes), "in live blocks"),
            ("requested", Figure.bytes(self.requested_bytes), "by the program, in active blocks"),
            ("internal", Figure.bytes(self.internal_bytes), "rounding and unsplit remainders"),
            ("external", Figure.bytes(self.external_bytes), "in holes and cached segments"),
            ("reclaimable", Figure.bytes(self.reclaimable_bytes), f"by {emptier}"),
            ("largest request", Figure.bytes(self.largest_request), "that needs no new segment"),
        )
        return Table("Bytes", rows)

    def _pool_table(self) -> tuple[Table, ...]:
        rows = tuple(
            (
                pool.kind if pool.pool == (0, 0) else f"{pool.kind}, private {pool.pool}",
                f"stream {pool.stream:#x}" if pool.stream else "default stream",
                Figure.bytes(pool.reserved_bytes),
                Figure.bytes(pool.allocated_bytes),
                Figure.share(pool.ratio),
                Figure.bytes(pool.largest_request),
            )
            for pool in self.pools
        )
        heads = ("", "", "reserved", "allocated", "unused", "largest request")
        return (Table("Pools", rows, heads),) if rows else ()

    def _hole_table(self) -> tuple[Table, ...]:
        shown = self.holes[:_SHOWN_HOLES]
        if not shown:
            return ()
        rows = tuple(
            (Figure.bytes(hole.size), f"{hole.address:#x}", hole.before or hole.after or "")
            for hole in shown
        )
        title = f"Largest holes ({len(shown)} of {len(self.holes)}) and their neighbours"
        return (Table(title, rows),)


def fragmentation_report(
    source: Snapshot | Monitor | SnapshotSource | None = None, *, device: int | None = None
) -> FragmentationReport:
    """The use of reserved memory, and the causes of its free bytes.

    Args:
        source: A Snapshot, or a source for `load`; None is this process's device, now; a
            MemoryMonitor adds its readings as the history, and without CUDA gives those alone,
            without pools, segments and holes.
        device: The device; None is the only one.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: There is no such device.

    Example:
        >>> import neutracer
        >>> report = neutracer.fragmentation_report("tests/data/frag_default.pickle")
        >>> report.severity, round(report.ratio, 3), report.fits(30 << 20)
        ('moderate', 0.248, True)
    """
    if isinstance(source, Monitor):
        return _of_monitor(readings_of(source, device))
    return _begun(opened(source), device)


def _begun(snap: Snapshot, device: int | None) -> FragmentationReport:
    """A device's report, with the findings on the file itself first."""
    number = snap.device(device)
    return after_caveats(device_fragmentation(snap, number), snap, device=number)


def device_fragmentation(snap: Snapshot, number: int) -> FragmentationReport:
    """The report on one device, without the findings on the file itself."""
    known = end_is_known(snap, number)
    fragment = core.Fragment(snap.native, None, number)
    pools = layout.pools_of(fragment.groups())
    figures = _figures(snap.memory_stats(number), pools)
    timeline = snap.timeline(number)
    history, largest, at, mean, _ = core.ratios(
        timeline.allocated, timeline.reserved, timeline.events.codes("action")
    )
    now = unused_share(figures["reserved_bytes"], figures["allocated_bytes"])
    is_now = at < 0 or now > largest
    return FragmentationReport(
        device=shown_device(snap, number),
        **figures,
        max_fragmentation=max(largest, now),
        max_event=None if is_now else at,
        avg_fragmentation=mean if len(timeline) else now,
        oom_count=timeline.facts["oom_count"],
        retries=timeline.facts["retries"] if timeline.facts["retries_known"] else None,
        pools=pools,
        segments=layout.segments_of(snap, fragment, timeline),
        holes=layout.holes_of(snap, fragment),
        findings=findings_of(snap, number, fragment),
        end_known=known,
        _served=layout.served_of(snap, fragment) if known else None,
        _history=history,
    )


def _of_monitor(readings: Readings) -> FragmentationReport:
    """The layout now, if this process has one, with a monitor's history."""
    known: dict[str, Any] = {
        "max_event": None,
        "avg_fragmentation": readings.mean,
        "_history": readings.history,
    }
    try:
        snap = opened(None)
    except UnavailableError:
        snap = None
    if snap is not None and readings.device in snap.devices:
        now = _begun(snap, readings.device)
        largest = max(readings.largest, now.ratio)
        return replace(now, max_fragmentation=largest, retries=readings.retries, **known)
    return FragmentationReport(
        device=readings.device,
        **readings.figures,
        max_fragmentation=readings.largest,
        oom_count=readings.ooms,
        retries=readings.retries,
        pools=(),
        segments=(),
        holes=(),
        findings=readings.findings(),
        _served=None,
        **known,
    )


def _figures(stats: Mapping[str, int], pools: Iterable[PoolFragmentation]) -> dict[str, int]:
    names = ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes")
    figures = {name: stats[f"{name}.all.current"] for name in names}
    figures["internal_bytes"] = figures["active_bytes"] - figures["requested_bytes"]
    figures["external_bytes"] = figures["reserved_bytes"] - figures["active_bytes"]
    figures["reclaimable_bytes"] = sum(pool.reclaimable_bytes for pool in pools)
    figures["largest_request"] = max((pool.largest_request for pool in pools), default=0)
    return figures
