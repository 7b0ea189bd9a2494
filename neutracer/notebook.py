# SPDX-License-Identifier: Apache-2.0
"""IPython magics, loaded by `%load_ext neutracer`. Importing this module does not import IPython.

`%%neutracer` records a cell, `%neutracer_report` reports on a file or on this process,
`%neutracer_holders` lists tensors kept by the notebook itself.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, NoReturn, cast

from neutracer.arguments import reader_name
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.cycles import TensorCycle, by_shape
from neutracer.heap.holders import HoldersReport, notebook_holders, release_holders
from neutracer.heap.tensor_cycles import (
    CycleWatch,
    cycle_finding,
    find_tensor_cycles,
    warn_tensor_cycles,
)
from neutracer.hooks import shim as hooks
from neutracer.hooks.live import take
from neutracer.oom.explain import explain
from neutracer.overview import OverviewReport, overview
from neutracer.recording.recorder import (
    DEFAULT_MAX_ENTRIES,
    HISTORY,
    Recording,
    record,
    snapshot,
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
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- Cell recording ----------------------------------------------------------------------

_FRAMES = 16  # Python frames per CPU event: the hooks' limit.


class CellRecording:
    """The allocator's activity from `begin` to `end`, which restores the previous state.

    A CUDA build of torch records the CUDA devices, with PyTorch's recorder; a CPU build records
    this thread's CPU allocations, through the hooks.

    Attributes:
        backend: "cuda" or "cpu".
        follows: False for a CUDA build without a device: it does not report CPU allocations.
        snapshot: The recording; None before the end, and if CUDA was not used.
    """

    def __init__(self, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        """Set up without starting.

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
        self._unfollow: Callable[[], None] | None = None
        self._fresh = True
        self._begun_us = 0

    def begin(self) -> None:
        """Start; raises UnavailableError if the allocator can't be recorded here."""
        if self.backend == "cuda":
            torch = torch_with_cuda()
            is_on = torch.cuda.is_initialized() and torch._C._cuda_isHistoryEnabled()
            self._fresh = HISTORY.in_force() is None and not is_on
            self._recording = record(self._most)
            self._recording.quiet = True  # The cell's report covers a wrapped ring.
            self._recording.start()
        else:
            self._before = before = hooks.state()
            self._fresh = before is None or not before.active
            # Rings of another length would end the recording so far.
            events = self._most if before is None or self._fresh else before.events
            self._unfollow = hooks.follow(events, _FRAMES)
        self._begun_us = time.time_ns() // 1000

    def end(self) -> None:
        """Keep the recording, and restore the previous state."""
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
            if self._unfollow is not None:
                self._unfollow()
                self._unfollow = None
            now = hooks.state()
            others = now is not None and now.active
            if not others and (self._before is None or not self._before.threads):
                hooks.unwatch_thread()

    def _end_cuda(self) -> Snapshot | None:
        recording, self._recording = self._recording, None
        if recording is None or recording.waiting:
            if recording is not None:  # CUDA was never initialized.
                recording.discard()
            return None
        recording.stop()
        return recording.snapshot()

    def first(self, device: int) -> int:
        """The index of the recording's first event in a device's timeline."""
        if self.snapshot is None or self._fresh:
            return 0
        timeline = self.snapshot.timeline(device)
        return timeline.event_at(self._begun_us) + 1 if len(timeline) else 0


# ---- Cell report -------------------------------------------------------------------------

_SHOWN = 6  # Rows per printed table.
_SHOWN_CATEGORIES = ("parameter", "gradient", "optimizer_state", "activation")


@dataclass(frozen=True)
class CellPlace(PlacedRow):
    """The memory held by one place in the program.

    Attributes:
        function: The function's name.
        filename: The file without its folders; "In[3]" for a cell.
        line: The line.
        bytes: The bytes of its blocks.
        count: The number of blocks.
        category: "parameter", "gradient", "optimizer_state", "activation" or "unknown"
        package: The file's library; empty for the program's own files.
        caller: For a library's file, the program's own line that called it.
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
        start_bytes: Before the cell; 0 for the CPU, where it is unknown.
        peak_bytes: The peak.
        end_bytes: After the cell.
        allocations: The number of the cell's allocations.
        peak: The holders of the peak, largest first, including older blocks.
        left_bytes: Allocated by the cell and not freed.
        left: The places of these bytes, largest first.
        complete: False if the ring wrapped, so that the cell's beginning is missing.
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
    """A recorded cell's peak, and the memory that it left behind.

    Attributes:
        backend: "cuda", or "cpu" for a CPU build of torch.
        duration_us: Run time.
        devices: The devices that it used.
        cycles: The reference cycles whose tensors it left to the garbage collector.
        cycle_bytes: The bytes of these tensors.
        not_looked_at: Why the cycles were not searched; empty if they were.
    """

    schema = "neutracer.cell/1"

    backend: str
    duration_us: int
    devices: tuple[CellDevice, ...]
    cycles: tuple[TensorCycle, ...]
    cycle_bytes: int
    not_looked_at: str = ""
    _recording: CellRecording = field(compare=False)

    @property
    def snapshot(self) -> Snapshot | None:
        """The recording, for further analysis; None if CUDA was not used."""
        return self._recording.snapshot

    def document(self) -> Document:
        """The report as a page."""
        made = sum(device.allocations for device in self.devices)
        facts = (format_duration_us(self.duration_us), format_count(made, "allocation"))
        blocks: list[Block] = [_totals(device) for device in self.devices]
        if not self.devices:
            why = f"The cell allocated no {self.backend.upper()} memory."
            if not self._recording.follows:
                why = "There is no CUDA device, and a CUDA build of torch does not report its CPU "
                why += "allocations."
            blocks.append(Paragraph(why))
        blocks.extend(self.finding_blocks())
        for device in self.devices:
            where = "" if len(self.devices) == 1 else f" on {device.name}"
            blocks += _places(f"What it left behind{where}", device.left)
            blocks += _places(f"Who held the peak{where}", device.peak)
        if self.not_looked_at:
            blocks.append(Paragraph(f"Reference cycles were not searched: {self.not_looked_at}"))
        return Document("Cell", facts, tuple(blocks), more="the recording: .snapshot")

    def picture(self) -> str:
        strips = []
        for timeline, first in _timelines(self._recording):
            if len(timeline) > first:
                start = _before(timeline, first)
                low = min(start, min(timeline.allocated[first:]))
                strips.append(strip_svg(timeline.allocated[first:], base=low))
        return "".join(strips)


def cell_report(
    recording: CellRecording,
    duration_us: int,
    cycles: Sequence[TensorCycle] = (),
    not_looked_at: str = "",
) -> CellReport:
    """The report on an ended recording; see `CellReport` for the arguments."""
    devices = []
    findings = [cycle_finding(cycle) for cycle in cycles]
    for timeline, first in _timelines(recording):
        device = _device(recording, timeline, first)
        devices.append(device)
        if not device.complete:
            missing = f"the beginning of the cell is missing on {device.name}: the ring wrapped"
            more = Note("record more of it: %%neutracer --max-entries 1000000")
            findings.append(
                Finding("history_wrapped", Severity.MODERATE, 0, missing, advice=(more,))
            )
        if "oom" in timeline.events["action"][first:] and recording.snapshot is not None:
            with suppress(NeutracerError, ValueError):
                findings += explain(recording.snapshot, device=timeline.device).findings[:1]
    return CellReport(
        backend=recording.backend,
        duration_us=duration_us,
        devices=tuple(devices),
        cycles=tuple(cycles),
        cycle_bytes=sum(cycle.bytes for cycle in cycles),
        not_looked_at=not_looked_at,
        findings=ranked(findings),
        _recording=recording,
    )


def _timelines(recording: CellRecording) -> list[tuple[Timeline, int]]:
    """(timeline, index of the cell's first event) of each device that the cell used."""
    snap = recording.snapshot
    if snap is None:
        return []
    found = [(snap.timeline(device), recording.first(device)) for device in snap.devices]
    return [
        (timeline, first)
        for timeline, first in found
        if any(action == "alloc" for action in timeline.events["action"][first:])
    ]


def _before(timeline: Timeline, first: int) -> int:
    return int(timeline.allocated[first - 1] if first else timeline.facts["start_bytes"][0])


def _device(recording: CellRecording, timeline: Timeline, first: int) -> CellDevice:
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
    wrapped = recording.snapshot is not None and recording.snapshot.history_overflowed(
        timeline.device
    )
    return CellDevice(
        name=f"cuda:{timeline.device}" if recording.backend == "cuda" else "cpu",
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
    """Group allocations by place and category, most bytes first."""
    sums: dict[tuple[Place, str], list[int]] = {}
    stacks = timeline.allocations.codes("stack")
    for number in chosen:
        row = timeline.allocations[number]
        category = row.category if row.category in _SHOWN_CATEGORIES else "unknown"
        held = sums.setdefault((timeline.places[stacks[number]], category), [0, 0])
        held[0] += row.size
        held[1] += 1
    return tuple(
        CellPlace(**asdict(place), bytes=nbytes, count=count, category=category)
        for (place, category), (nbytes, count) in sorted(sums.items(), key=lambda item: -item[1][0])
    )


def _totals(device: CellDevice) -> Table:
    rows: tuple[tuple[str, Figure, str], ...] = (
        ("peak", Figure.bytes(device.peak_bytes - device.start_bytes), "above the start"),
        ("left behind", Figure.bytes(device.left_bytes), "allocated by the cell, and not freed"),
    )
    if device.name != "cpu":
        before = f"{format_bytes(device.start_bytes)} before"
        rows += (("allocated now", Figure.bytes(device.end_bytes), before),)
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


# ---- Magics ------------------------------------------------------------------------------

_CELL = "neutracer"
_LINES = ("neutracer_report", "neutracer_holders")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics with IPython's shell; called by `%load_ext neutracer`."""
    magics = Magics(shell)
    shell.register_magic_function(magics.record_cell, "cell", _CELL)
    for name, function in zip(_LINES, (magics.report, magics.holders), strict=True):
        shell.register_magic_function(function, "line", name)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; called by `%unload_ext neutracer`."""
    known = shell.magics_manager.magics
    known["cell"].pop(_CELL, None)
    for name in _LINES:
        known["line"].pop(name, None)


class _Arguments(argparse.ArgumentParser):
    """A parser that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise _wrong(f"{message}\n{self.format_usage()}")


def _wrong(message: str) -> Exception:
    """An error that IPython shows as one line, without a traceback."""
    error: Exception = importlib.import_module("IPython.core.error").UsageError(message)
    return error


def _loaded(path: str) -> Snapshot:
    try:
        return load(path)
    except FileNotFoundError:
        raise _wrong(f"{path!r} is neither a file nor a variable with a snapshot") from None
    except (NeutracerError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _wrong(f"{path}: {reason}") from None


class Magics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._last: Snapshot | None = None

    def record_cell(self, line: str, cell: str) -> object:
        """Run the cell, record its allocations, and show its peak and the memory still held.

        `%%neutracer [NAME] [--max-entries N]`: the report is assigned to NAME, and its
        `.snapshot` serves every other question. With a CPU-only torch it records CPU memory. It
        reports reference cycles that kept tensors.
        """
        parser = _Arguments(prog="%%neutracer", add_help=False, allow_abbrev=False)
        parser.add_argument("name", nargs="?", help="the report's name")
        parser.add_argument("--max-entries", type=int, default=DEFAULT_MAX_ENTRIES)
        options = parser.parse_args(shlex.split(line))
        if options.name is not None and not options.name.isidentifier():
            parser.error(f"not a variable name: {options.name!r}")
        imports, (statements, last) = self._compiled(cell)
        exec(imports, self._shell.user_ns)
        recording, cycles = _begun(options.max_entries)
        begun = time.perf_counter_ns()
        try:
            exec(statements, self._shell.user_ns)
            return None if last is None else eval(last, self._shell.user_ns)
        finally:
            spent = (time.perf_counter_ns() - begun) // 1000
            recording.end()
            report = cell_report(recording, spent, cycles.end(), cycles.refused)
            self._last = report.snapshot
            if options.name is not None:
                self._shell.user_ns[options.name] = report
            importlib.import_module("IPython.display").display(report)

    # For IPython: a semicolon at the end of the cell suppresses its value.
    record_cell._ipython_magic_output_can_be_silenced = True  # type: ignore[attr-defined]

    def report(self, line: str) -> OverviewReport:
        """Report on a snapshot: a file, the name of a variable, or this process.

        `%neutracer_report [FILE]`. With a CPU-only torch and without a file, it reports on the
        last cell that `%%neutracer` recorded.
        """
        names = shlex.split(line)
        if len(names) > 1:
            raise _wrong("usage: %neutracer_report [FILE]")
        if names:
            known = self._shell.user_ns.get(names[0])
            if isinstance(known, CellReport):
                known = known.snapshot
            if isinstance(known, Snapshot):
                return overview(known, title=names[0])
            return overview(_loaded(names[0]), names[0])
        try:
            return overview(snapshot())
        except UnavailableError as error:
            if self._last is None:
                raise _wrong(str(error)) from None
            return overview(self._last, title="the last recorded cell")

    def holders(self, line: str) -> HoldersReport:
        """List tensors kept by variables, and by the notebook's outputs and past exceptions.

        `%neutracer_holders [--release]`: `--release` drops outputs and exceptions.
        """
        options = shlex.split(line)
        if options not in ([], ["--release"]):
            raise _wrong("usage: %neutracer_holders [--release]")
        return release_holders() if options else notebook_holders()

    def _compiled(self, cell: str) -> tuple[Any, tuple[Any, Any]]:
        """The cell's leading imports if torch is not imported yet, its other statements, and its
        last expression if it ends in one."""
        shell = self._shell
        # The cell's first line is the magic; IPython drops empty lines after it.
        above = 1 + cell[: len(cell) - len(cell.lstrip())].count("\n")
        text = "\n" * above + shell.transform_cell(cell)
        name = shell.compile.cache(text, self._number(), raw_code=f"%%{_CELL}\n{cell}")
        module = shell.transform_ast(shell.compile.ast_parse(text, filename=name))
        begins = _imports(module) if "torch" not in sys.modules else ast.Module([], [])
        imports = shell.compile(begins, name, "exec")
        last = None
        if module.body and isinstance(module.body[-1], ast.Expr):
            last = shell.compile(ast.Expression(module.body.pop().value), name, "eval")
        return imports, (shell.compile(module, name, "exec"), last)

    def _number(self) -> int:
        """The number of the running cell in its prompt."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            digits = re.fullmatch(r"In\[(\d+)\]", reader_name(frame.f_code.co_filename))
            if digits:
                return int(digits[1])
            frame = frame.f_back
        return int(self._shell.execution_count)


def _imports(module: ast.Module) -> ast.Module:
    """Remove and return the leading imports of a module."""
    count = 0
    while count < len(module.body) and isinstance(module.body[count], (ast.Import, ast.ImportFrom)):
        count += 1
    begins, module.body = module.body[:count], module.body[count:]
    return ast.Module(begins, [])


def _begun(max_entries: int) -> tuple[CellRecording, _Cycles]:
    """Begin recording a cell and watching for its cycles."""
    try:
        recording = CellRecording(max_entries)
        on_cpu = recording.backend == "cpu" or not recording.follows
        cycles = _Cycles("cpu" if on_cpu else None)
        recording.begin()
    except UnavailableError as error:
        raise _wrong(str(error)) from None
    return recording, cycles


class _Cycles:
    """The reference cycles of a cell: those found by collections, and those left at its end."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._watch: CycleWatch | None = None
        self.refused = ""
        try:
            self._before = {cycle.signature: cycle.count for cycle in self._waiting()}
            self._watch = warn_tensor_cycles(device)
        except UnavailableError as error:
            self.refused = str(error)

    def _waiting(self) -> list[TensorCycle]:
        return list(find_tensor_cycles(self._device, include_alive=False))

    def end(self) -> tuple[TensorCycle, ...]:
        if self._watch is None:
            return ()
        self._watch.remove()
        before = self._before
        left = (one for one in self._waiting() if one.count > before.get(one.signature, 0))
        return by_shape(self._watch.cycles, left)
