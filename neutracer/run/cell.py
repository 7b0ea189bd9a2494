# SPDX-License-Identifier: Apache-2.0
"""`%%neutracer`: a notebook cell recorded and reported."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from neutracer.arguments import reader_name
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.cycles import TensorCycle
from neutracer.heap.tensor_cycles import cycle_finding
from neutracer.hooks import shim as hooks
from neutracer.hooks.live import take
from neutracer.oom.explain import explain
from neutracer.recording.recorder import (
    DEFAULT_MAX_ENTRIES,
    HISTORY,
    Recording,
    record,
    torch_with_cuda,
)
from neutracer.render.document import (
    Block,
    Document,
    Figure,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlacedRow, PlainRow, Report, ranked
from neutracer.render.text import strip_svg
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- Passage -----------------------------------------------------------------------------

# A passage of a program, recorded: PyTorch's recorder on CUDA, the hooks on the CPU.

# Python frames of an event on the CPU, from the innermost: the hooks' most.
_FRAMES = 16


class Passage:
    """What the allocator did from `begin` to `end`; nothing stays on that was off before.

    On a torch that is built for CUDA these are the CUDA devices, through PyTorch's own
    recorder; on one for the CPU, what this thread allocates there, through the hooks.

    Attributes:
        backend: "cuda" or "cpu".
        follows: False on a torch that is built for CUDA where there is no device for it:
            it does not report what it allocates on the CPU.
        snapshot: What was recorded; None before the end, and where CUDA was not used.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        """Nothing is recorded yet.

        Args:
            max_entries: Events that are kept, of each device.

        Raises:
            UnavailableError: torch is not imported.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise UnavailableError("torch in this process", "import torch first")
        self.backend = "cpu" if torch.version.cuda is None else "cuda"
        self.follows = self.backend == "cpu" or bool(torch.cuda.device_count())
        self.snapshot: Snapshot | None = None
        self._most = max_entries
        self._recording: Recording | None = None
        self._before: hooks.HookState | None = None
        self._fresh = True
        self._begun_us = 0

    def begin(self) -> None:
        """Record from now on.

        Raises:
            UnavailableError: The allocator can't be followed here.
        """
        if self.backend == "cuda":
            self._fresh = HISTORY.in_force() is None and not _cuda_history_is_on()
            self._recording = record(self._most)
            # Who reads the passage tells of a ring that wrapped.
            self._recording.quiet = True
            self._recording.start()
        else:
            self._before = before = hooks.state()
            self._fresh = before is None or not before.active
            if self._fresh:
                hooks.attach(self._most, _FRAMES)
            else:
                hooks.watch_thread()
        self._begun_us = time.time_ns() // 1000

    def end(self) -> None:
        """Keep what was recorded, and put everything back as it was."""
        taken = self._end_cuda() if self.backend == "cuda" else self._end_cpu()
        if taken is not None:
            named = ((text, reader_name(text)) for text in taken.strings)
            renamed = {text: name for text, name in named if name != text}
            self.snapshot = Snapshot(taken.native, renamed) if renamed else taken

    def _end_cpu(self) -> Snapshot:
        state = hooks.state()
        try:
            return take("cpu", state.events if state is not None else self._most)
        finally:
            if self._fresh:
                hooks.silence()
            if self._before is None or not self._before.threads:
                hooks.unwatch_thread()

    def _end_cuda(self) -> Snapshot | None:
        recording, self._recording = self._recording, None
        if recording is None or recording.waiting:
            # CUDA was not initialised meanwhile.
            if recording is not None:
                recording.discard()
            return None
        recording.stop()
        return recording.snapshot()

    def first(self, device: int) -> int:
        """The first event of the passage in the timeline of a device."""
        if self.snapshot is None or self._fresh:
            return 0
        timeline = self.snapshot.timeline(device)
        return timeline.event_at(self._begun_us) + 1 if len(timeline) else 0


def _cuda_history_is_on() -> bool:
    torch = torch_with_cuda()
    return bool(torch.cuda.is_initialized() and torch._C._cuda_isHistoryEnabled())


# ---- Cell --------------------------------------------------------------------------------

# What did this cell use at most, and what did it leave behind?

# Lines of the program in each table; all of them are in the report's data.
_SHOWN = 6

# A block's purpose is shown if it says more than the line does.
_TOLD = ("parameter", "gradient", "optimizer_state", "activation")


@dataclass(frozen=True)
class CellPlace(PlacedRow):
    """What one place in the program holds.

    Attributes:
        function: The function's name.
        filename: The file without its folders; "In[3]" for a cell.
        line: The line.
        bytes: The sizes of its blocks.
        count: How many blocks these are.
        category: "parameter", "gradient", "optimizer_state", "activation" or "unknown"
        package: The library that the file belongs to; empty for the program's own.
        caller: The program's own line that led there, where the file is a library's.
    """

    function: str
    filename: str
    line: int
    bytes: int
    count: int
    category: str
    package: str = ""
    caller: str = ""


@dataclass(frozen=True)
class CellDevice(PlainRow):
    """One device of a cell's run; bytes of allocated blocks.

    Attributes:
        name: "cuda:0", or "cpu".
        start_bytes: Before the cell; of the CPU 0, since what was there is not known.
        peak_bytes: The most that was allocated at once.
        end_bytes: After the cell.
        allocations: How many it made.
        peak: Who held the peak, the most first; includes what was there before.
        left_bytes: What the cell allocated and did not free.
        left: Who allocated that, the most first.
        complete: False where the ring wrapped: what came first in the cell is not known.
    """

    name: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    allocations: int
    peak: tuple[CellPlace, ...]
    left_bytes: int
    left: tuple[CellPlace, ...]
    complete: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class CellReport(Report):
    """A recorded cell: its peak, and what it left behind.

    Attributes:
        backend: "cuda", or "cpu" on a torch that is built for the CPU.
        duration_us: How long it ran.
        devices: The devices that it used.
        cycles: The reference cycles whose tensors the cell left to the garbage collector,
            during its run and at its end.
        cycle_bytes: What these kept, all together.
        not_looked_at: Why no reference cycles were looked for; empty where they were.
    """

    schema = "neutracer.cell/1"

    backend: str
    duration_us: int
    devices: tuple[CellDevice, ...]
    cycles: tuple[TensorCycle, ...]
    cycle_bytes: int
    not_looked_at: str = ""
    _passage: Passage = field(compare=False)

    @property
    def snapshot(self) -> Snapshot | None:
        """What was recorded, for every other question and picture; None without CUDA use."""
        return self._passage.snapshot

    def document(self) -> Document:
        """The report as a page."""
        made = sum(device.allocations for device in self.devices)
        facts = (format_duration_us(self.duration_us), format_count(made, "allocation"))
        blocks: list[Block] = [_totals(device) for device in self.devices]
        if not self.devices:
            blocks.append(Paragraph(self._without_devices()))
        blocks.extend(self.finding_blocks())
        for device in self.devices:
            where = "" if len(self.devices) == 1 else f" on {device.name}"
            blocks += _places(f"What it left behind{where}", device.left)
            blocks += _places(f"Who held the peak{where}", device.peak)
        if self.not_looked_at:
            blocks.append(Paragraph(f"No reference cycles were looked for: {self.not_looked_at}"))
        return Document("Cell", facts, tuple(blocks), more="the recording: .snapshot")

    def _without_devices(self) -> str:
        if self._passage.follows:
            return f"The cell allocated no {self.backend.upper()} memory."
        return (
            "There is no CUDA device, and a torch that is built for CUDA does not report what "
            "it allocates on the CPU."
        )

    def picture(self) -> str:
        strips = []
        for timeline, first in _timelines(self._passage):
            if len(timeline) > first:
                start = _before(timeline, first)
                low = min(start, min(timeline.allocated[first:]))
                strips.append(strip_svg(timeline.allocated[first:], base=low))
        return "".join(strips)


def cell_report(
    passage: Passage,
    duration_us: int,
    cycles: Sequence[TensorCycle] = (),
    not_looked_at: str = "",
) -> CellReport:
    """What a recorded passage used and left behind.

    Args:
        passage: The passage, ended.
        duration_us: How long it took.
        cycles: Reference cycles that were left to the collector.
        not_looked_at: Why none were looked for.
    """
    devices = []
    findings = [cycle_finding(cycle) for cycle in cycles]
    for timeline, first in _timelines(passage):
        device = _device(passage, timeline, first)
        devices.append(device)
        if not device.complete:
            findings.append(_wrapped(device))
        findings += _out_of_memory(passage, timeline, first)
    return CellReport(
        backend=passage.backend,
        duration_us=duration_us,
        devices=tuple(devices),
        cycles=tuple(cycles),
        cycle_bytes=sum(cycle.bytes for cycle in cycles),
        not_looked_at=not_looked_at,
        findings=ranked(findings),
        _passage=passage,
    )


def _timelines(passage: Passage) -> list[tuple[Timeline, int]]:
    """The timelines of the devices that the passage used, with its first event in each."""
    snap = passage.snapshot
    if snap is None:
        return []
    found = [(snap.timeline(device), passage.first(device)) for device in snap.devices]
    return [
        (timeline, first)
        for timeline, first in found
        if any(action == "alloc" for action in timeline.events["action"][first:])
    ]


def _before(timeline: Timeline, first: int) -> int:
    """What was allocated before an event."""
    return int(timeline.allocated[first - 1] if first else timeline.facts["start_bytes"][0])


def _device(passage: Passage, timeline: Timeline, first: int) -> CellDevice:
    series = list(timeline.allocated[first:])
    start, peak = _before(timeline, first), max(series)
    at = first + series.index(peak) if peak > start else first - 1
    rows = timeline.allocations
    made, freed = cast("list[int]", rows["alloc_event"]), cast("list[int]", rows["free_event"])
    own = [row for row in range(len(rows)) if made[row] >= first]
    kept = [row for row in own if freed[row] == -1]
    live = [
        row for row in range(len(rows)) if made[row] <= at and (freed[row] == -1 or freed[row] > at)
    ]
    wrapped = passage.snapshot is not None and passage.snapshot.history_overflowed(timeline.device)
    return CellDevice(
        name=f"cuda:{timeline.device}" if passage.backend == "cuda" else "cpu",
        start_bytes=start,
        peak_bytes=max(peak, start),
        end_bytes=series[-1],
        allocations=len(own),
        peak=_grouped(timeline, live),
        left_bytes=sum(rows[row].size for row in kept),
        left=_grouped(timeline, kept),
        complete=not (wrapped and not first),
    )


def _grouped(timeline: Timeline, chosen: Iterable[int]) -> tuple[CellPlace, ...]:
    """Allocations grouped by place and category, the most bytes first."""
    sums: dict[tuple[Place, str], list[int]] = {}
    stacks = timeline.allocations.codes("stack")
    for number in chosen:
        row = timeline.allocations[number]
        category = row.category if row.category in _TOLD else "unknown"
        held = sums.setdefault((timeline.places[stacks[number]], category), [0, 0])
        held[0] += row.size
        held[1] += 1
    return tuple(
        CellPlace(
            place.function,
            place.filename,
            place.line,
            nbytes,
            count,
            category,
            place.package,
            place.caller,
        )
        for (place, category), (nbytes, count) in sorted(sums.items(), key=lambda item: -item[1][0])
    )


def _wrapped(device: CellDevice) -> Finding:
    return Finding(
        kind="history_wrapped",
        severity=Severity.MODERATE,
        bytes=0,
        message=f"the beginning of the cell is not known on {device.name}: its ring wrapped",
        advice=(Note("record more of it: %%neutracer --max-entries 1000000"),),
    )


def _out_of_memory(passage: Passage, timeline: Timeline, first: int) -> tuple[Finding, ...]:
    if "oom" not in timeline.events["action"][first:] or passage.snapshot is None:
        return ()
    try:
        return explain(passage.snapshot, device=timeline.device).findings[:1]
    except (NeutracerError, ValueError):
        return ()


def _totals(device: CellDevice) -> Table:
    rows: tuple[tuple[str, Figure, str], ...] = (
        ("peak", Figure.bytes(device.peak_bytes - device.start_bytes), "above the start"),
        ("left behind", Figure.bytes(device.left_bytes), "allocated by the cell, and not freed"),
    )
    if device.name != "cpu":
        words = f"{format_bytes(device.start_bytes)} before"
        rows += (("allocated now", Figure.bytes(device.end_bytes), words),)
    return Table(device.name, rows)


def _places(title: str, places: Sequence[CellPlace]) -> tuple[Table, ...]:
    if not places:
        return ()
    rows = tuple(
        (
            Figure.bytes(place.bytes),
            Figure.count(place.count, "block"),
            "" if place.category == "unknown" else place.category,
            place.place,
        )
        for place in places[:_SHOWN]
    )
    rest = len(places) - len(rows)
    notes = (f"and {format_count(rest, 'more line')}",) if rest else ()
    return (Table(title, rows, notes=notes),)
