# SPDX-License-Identifier: Apache-2.0
"""`leak_trend`: memory that keeps growing, its rate, and the lines that hold it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from neutracer.leak.growth import (
    RUN,
    VERDICTS,
    Forecast,
    Growth,
    Survivors,
    Verdict,
    forecast,
    growth_of,
    held_against,
    judge,
    proved_by_blocks,
    snapshot_growth,
)
from neutracer.leak.series import Observed, Trend, observe, observe_trace
from neutracer.question import after_caveats
from neutracer.render.document import Block, Document, Figure, Note, Paragraph, Severity, Table
from neutracer.render.report import Finding, PlainRow, Report
from neutracer.trace.events import CPU, PINNED
from neutracer.trace.flaws import CAVEAT_KINDS
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.units import (
    format_bytes,
    format_count,
    format_duration_us,
    format_share,
    split_bytes,
)
from neutracer.whatif.settings import capacity_bytes, expandable_advice

# ---- Findings ----------------------------------------------------------------------------

# Growth that fills the memory within this multiple of the steps so far is severe.
_SOON = 20

# Growth by the end of a long run: serious from here on, and moderate.
_COSTLY = 1 << 30
_NOTABLE = 64 << 20

# Stacks that a finding names.
_NAMED = 3

# Advice on kept tensors, with and without evidence of a kept graph.
_WITH_GRAPH = (
    "a kept tensor keeps its graph and its whole storage: keep loss.item(), or "
    "x.detach().cpu(), or a clone() of a view"
)
_WITHOUT_GRAPH = (
    "a kept tensor keeps its whole storage: keep x.item() or x.cpu(), or a clone() of a view"
)

_WITH_LINES = Note("leak_trend on a snapshot of neutracer.record() names the line")

# The same for host memory, where cpu() returns the tensor itself.
_WITH_GRAPH_ON_CPU = (
    "a kept tensor keeps its graph and its whole storage: keep loss.item(), or x.detach(), or a "
    "clone() of a view"
)
_WITHOUT_GRAPH_ON_CPU = (
    "a kept tensor keeps its whole storage: keep x.item(), or a clone() of a view"
)
_PINNED = (
    "a kept tensor keeps its whole storage pinned: keep x.item(), or x.clone(), which is not pinned"
)


def suspect_of(survivors: Survivors) -> Growth | None:
    """The stack of a backward(create_graph=True), if any.

    The gradient of the loss, the first of a backward pass, outlives the pass only if the pass
    itself was recorded as a graph.
    """
    for grown in survivors.growth:
        if role_of(grown.stack) is Role.SEED:
            return grown
    return None


def chance_text(p_value: float) -> str:
    """A p-value in words: "p = 0.0238", or "p < 0.0001"."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.4f}"


def findings_of(
    seen: Observed,
    verdict: Verdict,
    coming: Forecast,
    survivors: Survivors,
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """The finding on a verdict; none for "steady"."""
    trend = verdict.trend
    if verdict.kind == "steady":
        return ()
    if verdict.kind == "unknown":
        evidence: tuple[Note, ...] = (Note(verdict.because),)
        advice = _to_be_sure(seen)
        message = "can't tell whether memory grows"
        return (Finding("unknown", Severity.INFO, 0, message, evidence, advice),)
    notes = [_how_sure(seen, trend), Note(verdict.because)]
    notes += _who(survivors)
    notes += _when(coming, seen) or _cost(verdict, seen.unit)
    kind, severity = verdict.kind, _severity(seen, verdict, coming)
    nbytes = round(trend.tooth if kind == "cycle_garbage" else max(trend.growth, 0.0))
    message = f"{VERDICTS[kind]}: {_rate(trend, seen.unit, kind)}"
    advice = _advice(kind, survivors, seen.device, settings)
    return (Finding(kind, severity, nbytes, message, tuple(notes), advice),)


def _to_be_sure(seen: Observed) -> tuple[Note, ...]:
    unit = seen.unit
    if seen.timeline is None and seen.live.is_in_doubt:
        return (Note(_more(unit)), _WITH_LINES)
    return (Note(f"{_more(unit)}: about sixty {unit}s show a leak of 0.1 % per {unit}"),)


def _more(unit: str) -> str:
    if unit == "window":
        return "record longer, or give the beginnings of steps with steps="
    return f"look at more {unit}s"


def _rate(trend: Trend, unit: str, kind: str) -> str:
    if kind == "cycle_garbage":
        times = format_count(trend.teeth, "fall")
        return f"{times}, of {format_bytes(round(trend.tooth))} each"
    return f"{format_bytes(round(trend.slope))} per {unit}"


def _as_recorded(survivors: Survivors, holders: Mapping[str, str]) -> Survivors:
    """The growths, with the holders that the process wrote down beside its snapshot."""
    growth = tuple(
        one
        if one.holders or str(one.place) not in holders
        else replace(one, holders=tuple(holders[str(one.place)].split("; ")))
        for one in survivors.growth
    )
    return replace(survivors, growth=growth)


def _how_sure(seen: Observed, trend: Trend) -> Note:
    unit = seen.unit
    chance = f", {chance_text(trend.p_value)}" if seen.has_blocks else ""
    steps = format_count(trend.steps, unit)
    set_aside = f", {format_count(trend.warmup)} set aside as warm-up" if trend.warmup else ""
    if trend.is_sawtooth:
        rise = format_bytes(round(trend.tooth_slope))
        return Note(f"Seen in {steps}{set_aside}; between two falls it rises by {rise} per {unit}.")
    low, high = (format_bytes(round(end)) for end in trend.interval)
    span = f": 95 % interval {low} to {high}" if low != high else ""
    return Note(f"Seen in {steps}{set_aside}{span}{chance}.")


def _who(survivors: Survivors) -> list[Note]:
    notes = []
    for grown in survivors.growth[:_NAMED]:
        blocks = format_count(grown.count, "block")
        kind = "" if grown.category == "unknown" else f" ({grown.category})"
        share = f"{format_share(grown.share, decimals=0)}: " if grown.share else ""
        size = f"{share}{format_bytes(grown.bytes)} in {blocks}{kind}"
        if grown.holders:
            # Who keeps it is the program's to change, more than the line that made it.
            size += f", held by {'; '.join(grown.holders)}; made"
        notes.append(Note(f"{size} by", grown.place))
    if survivors.freed:
        place, count = survivors.freed[0]
        notes.append(Note(f"{format_count(count, 'block')} freed at", place))
    return notes


def _when(coming: Forecast, seen: Observed) -> list[Note]:
    if coming.step is None or seen.capacity is None:
        return []
    whole = format_bytes(seen.capacity)
    span = ""
    if coming.between is not None:
        first, last = coming.between
        end = "never" if last is None else format_count(last)
        span = f" (95 %: {format_count(first)} to {end})"
    text = f"At this rate {whole} will be full at {seen.unit} {format_count(coming.step)}{span}"
    if coming.in_us is not None:
        text += f", in {format_duration_us(coming.in_us)}"
    return [Note(text + ".")]


def _cost(verdict: Verdict, unit: str) -> list[Note]:
    """The cost of a long run, for a leak without a forecast."""
    if verdict.kind not in ("leak", "growing", "non_torch_growth", "fragmentation_growth"):
        return []
    run = RUN[unit]
    cost = format_bytes(round(max(verdict.trend.slope, 0.0) * run))
    return [Note(f"At this rate it is {cost} after {format_count(run, unit)}.")]


def _severity(seen: Observed, verdict: Verdict, coming: Forecast) -> Severity:
    """The severity, by the cost until the memory is full or the run ends."""
    if verdict.kind in ("cycle_garbage", "cache_growth"):
        return Severity.MODERATE
    seen_steps, run = len(seen.allocated), RUN[seen.unit]
    most = Severity.SERIOUS if verdict.kind == "fragmentation_growth" else Severity.SEVERE
    if coming.step is not None and coming.step < _SOON * seen_steps:
        return most
    cost = max(verdict.trend.slope, 0.0) * run
    is_full = coming.step is not None and coming.step <= seen_steps + run
    if is_full or (coming.step is None and cost >= _COSTLY):
        is_stuck = verdict.kind == "fragmentation_growth"
        return Severity.MODERATE if is_stuck else Severity.SERIOUS
    return Severity.MODERATE if cost >= _NOTABLE else Severity.INFO


def _advice(
    kind: str, survivors: Survivors, device: int, settings: Mapping[str, Any]
) -> tuple[Note, ...]:
    if kind in ("leak", "growing"):
        return _leak_advice(survivors, device)
    if kind == "cycle_garbage":
        return (
            Note(
                "neutracer.warn_tensor_cycles() in the program names the objects of each "
                "cycle and the reference to cut"
            ),
        )
    if kind == "non_torch_growth":
        return (
            Note("neutracer.attribute_device_memory() names the library"),
            Note("neutracer.device_report() names the process"),
        )
    if device < 0:
        # The CUDA allocator's settings do not apply.
        return (Note("sizes that change from step to step are each cached: pad them to a few"),)
    notes = (
        []
        if settings.get("expandable_segments")
        else [Note(expandable_advice(str(settings.get("text", ""))))]
    )
    if kind == "cache_growth":
        notes.append(
            Note(
                "sizes that change from step to step are each cached separately: pad them to "
                "a few, or set roundup_power2_divisions"
            )
        )
    notes.append(Note("neutracer.what_if(snapshot) replays the trace under other settings"))
    return tuple(notes)


def _to_keep(device: int, shows_graph: bool) -> str:
    if device == PINNED:
        return _PINNED
    if device == CPU:
        return _WITH_GRAPH_ON_CPU if shows_graph else _WITHOUT_GRAPH_ON_CPU
    return _WITH_GRAPH if shows_graph else _WITHOUT_GRAPH


def _leak_advice(survivors: Survivors, device: int) -> tuple[Note, ...]:
    suspect = suspect_of(survivors)
    if suspect is not None:
        return (
            Note(
                "suspect: backward(create_graph=True). Parameter and gradient keep each other "
                "alive through the autograd graph, which Python's collector can't see:",
                suspect.place,
            ),
            Note("use torch.autograd.grad(..., create_graph=True), or set .grad to None after it"),
            Note("neutracer.find_autograd_cycles() in the program names the cycle"),
        )
    if survivors.growth:
        keep = Note(_to_keep(device, survivors.shows_graph))
        if any(grown.holders for grown in survivors.growth):
            return (keep,)
        return keep, Note("neutracer.why_alive(tensor) in the program shows the holders of one")
    return (_WITH_LINES,)


# ---- Trend -------------------------------------------------------------------------------

# Stacks and change points of the printed report.
_SHOWN = 6

# Ten years: a bound on step_us that keeps times within 64 bits.
_LONGEST_STEP_US = 3.2e14


@dataclass(frozen=True)
class ChangePoint(PlainRow):
    """A sudden, lasting change of the level.

    Attributes:
        step: The first step at the new level.
        bytes: The change; negative for a fall.
    """

    step: int
    bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LeakTrendReport(Report):
    """Growth of memory step after step.

    Attributes:
        verdict: "leak" or "cycle_garbage" (only with the blocks of a trace or several snapshots
            as evidence), "growing" (the same rise in numbers alone, which cannot tell a random
            walk from slow growth), "non_torch_growth", "fragmentation_growth", "cache_growth",
            "steady" or "unknown".
        series: The series that decided: "allocated" (live bytes), "reserved", or "non_torch"
            (used on the device outside PyTorch).
        bytes_per_step: Its growth (Theil-Sen slope of the least value of each step).
        interval: The 95 % interval of that.
        p_value: Of Mann-Kendall's one-sided test; None for numbers alone, since the test does
            not account for random walks.
        unit: "step", "snapshot", or "window" if steps are unknown.
        steps: The number of steps used, after the warm-up.
        warmup_steps: The number of steps set aside before them.
        level_bytes: The median of the series after the warm-up.
        resets: The number of falls that ended a gradual rise.
        reset_bytes: The median fall.
        change_points: Sudden changes of the level.
        oom_step: The step at which `capacity` is full at this rate, counted from 0; None for
            never, or without a capacity.
        oom_between: First and last step by `interval`; a last of None is never.
        oom_in_us: Microseconds from the last step to `oom_step`; None if unknown.
        capacity: Bytes available to the process; None if unknown.
        growth: The growth by stack, the most bytes first; empty without stacks.
        suspect: "create_graph" if the growth has its marks, else None.
        how: The definition of a step, as a sentence.
        because: The reason for the verdict, as a sentence.
    """

    schema = "neutracer.leak_trend/1"

    verdict: str
    series: str
    bytes_per_step: float
    interval: tuple[float, float]
    p_value: float | None
    unit: str
    steps: int
    warmup_steps: int
    level_bytes: int
    resets: int
    reset_bytes: int
    change_points: tuple[ChangePoint, ...]
    oom_step: int | None
    oom_between: tuple[int, int | None] | None
    oom_in_us: float | None
    capacity: int | None
    growth: tuple[Growth, ...]
    suspect: str | None
    how: str
    because: str
    _seen: Observed = field(compare=False)

    @property
    def floors(self) -> Sequence[int]:
        """The least live bytes of each step."""
        return self._seen.allocated

    def document(self) -> Document:
        """The report as a document."""
        facts = (self.verdict.replace("_", " "), format_count(self.steps, self.unit))
        blocks: tuple[Block, ...] = self.finding_blocks()
        if all(one.kind in CAVEAT_KINDS for one in self.findings):
            blocks += (Paragraph(f"{VERDICTS[self.verdict].capitalize()}. {self.because}"),)
        blocks += (self._series_table(),)
        if self.change_points:
            blocks += (self._change_table(),)
        if self.growth:
            blocks += (self._growth_table(),)
        return Document("Leak trend", facts, (*blocks, Paragraph(self.how)))

    def _series_table(self) -> Table:
        seen = self._seen
        trends = [seen.live, *(one for one in (seen.cached, seen.outside) if one is not None)]
        names = {"allocated": "live", "reserved": "reserved", "non_torch": "not PyTorch's"}
        has_chance = self.p_value is not None
        rates = _rates([trend.slope for trend in trends])
        rows = tuple(
            (
                names[trend.name],
                Figure.bytes(round(trend.level)),
                Figure.bytes(round(trend.last)),
                rate,
                *((chance_text(trend.p_value),) if has_chance else ()),
                format_count(trend.warmup),
            )
            for trend, rate in zip(trends, rates, strict=True)
        )
        chance = ("growth by chance",) if has_chance else ()
        heads = ("", "median", "last", f"per {self.unit}", *chance, "warm-up")
        return Table("Least of each " + self.unit, rows, heads)

    def _change_table(self) -> Table:
        points = self.change_points[:_SHOWN]
        rows = tuple(
            (f"{self.unit} {format_count(point.step)}", Figure.bytes(point.bytes))
            for point in points
        )
        return Table("The level changed at once", rows)

    def _growth_table(self) -> Table:
        rates = _rates([grown.bytes_per_step for grown in self.growth[:_SHOWN]])
        rows = tuple(
            (
                rate,
                Figure.bytes(grown.bytes),
                Figure.count(grown.count, "block"),
                grown.category,
                grown.place,
            )
            for grown, rate in zip(self.growth, rates, strict=False)
        )
        shown = f"{len(rows)} of {len(self.growth)}" if len(self.growth) > len(rows) else ""
        title = "Left behind" + (f" ({shown})" if shown else "")
        return Table(title, rows, (f"per {self.unit}", "in all", "", "", ""))


def _rates(slopes: Sequence[float]) -> list[Figure]:
    """The rates of a column, each in its own unit (0 in the largest's), with equal decimals."""
    sizes = [round(slope) for slope in slopes]
    largest = split_bytes(max(sizes, key=abs))[1]
    parts = [split_bytes(size, None if size else largest) for size in sizes]
    places = max(len(number.partition(".")[2]) for number, _ in parts)
    pairs = zip(sizes, parts, strict=True)
    return [Figure.bytes(size, unit, places) for size, (_, unit) in pairs]


def leak_trend(
    source: Any,
    *,
    step_us: float | None = None,
    steps: Sequence[int] | None = None,
    capacity: int | str | None = None,
    device: int | None = None,
    live: bool | None = None,
) -> LeakTrendReport:
    """Find memory that grows step after step.

    The series is the least value of each step; warm-up, bursts that are taken back and sudden
    changes of the level do not count. The slope is Theil-Sen's (Sen, JASA 63, 1968) and the test
    Mann-Kendall's, after removing autocorrelation (Yue and others, Hydrological Processes 16,
    2002). A rise is growth if the medians and floors of twelve parts of the series, and of its
    last 65 %, rise too. A series of more than 1,024 steps is first put into bins.

    Args:
        source: One of
            a sequence of numbers, bytes per step;
            a mapping of sequences: "allocated", and optionally "reserved", "inactive_split"
            and "device_used";
            a Snapshot with a trace, or a source for `load`;
            a sequence of Snapshots, one per step;
            a MemoryMonitor, by its marks, or else by windows of time.
        step_us: Length of a step in microseconds, which cuts a trace or a monitor's readings.
            For numbers and snapshots it only serves the forecast.
        steps: The beginnings of steps, ascending: indices of a series, events of a trace, or a
            monitor's times in microseconds.
        capacity: Bytes available to the process, or a text like "24GiB"; a monitor has its own.
        device: The device, if there are several.
        live: Search this process's tensors for holders of the growing memory; None does so
            for a monitor.

    Raises:
        TypeError: The source is none of these.
        ValueError: The source is empty; steps don't rise or don't fit; `step_us` is not a
            duration; one of several snapshots lists no segments.
        SnapshotError: The file can't be read.

    Example:
        >>> import neutracer
        >>> trend = neutracer.leak_trend("tests/data/create_graph_leak.pickle.xz")
        >>> trend.verdict, round(trend.bytes_per_step / 2**20), trend.suspect
        ('leak', 8, 'create_graph')
    """
    most = capacity_bytes(capacity)
    if step_us is not None and not _is_duration(step_us):
        raise ValueError(f"step_us is {step_us!r}: it must be a step's length in microseconds")
    seen, shots = observe(source, step_us, steps, most, device)
    is_monitor = seen.timeline is None and not shots and hasattr(source, "mark")
    report = _trend(seen, shots, device, is_monitor, live)
    return after_caveats(report, *shots, device=device)


def trend_of_trace(snap: Snapshot, device: int) -> LeakTrendReport:
    """`leak_trend` of one device of a snapshot, without the findings on the file itself.

    Raises:
        ValueError: The file has no steps.
    """
    return _trend(observe_trace(snap, None, None, None, device), (snap,), device, False, None)


def _trend(
    seen: Observed,
    shots: Sequence[Snapshot],
    device: int | None,
    is_monitor: bool,
    live: bool | None,
) -> LeakTrendReport:
    verdict = proved_by_blocks(seen, judge(seen))
    survivors = _survivors(seen, verdict, shots, device)
    verdict = held_against(seen, verdict, survivors)
    survivors = _with_holders(seen, verdict, survivors, is_monitor, live)
    if len(shots) == 1:
        # A CPU is -1 in reports, and the first device of its snapshot.
        survivors = _as_recorded(survivors, shots[0].beside.holders.get(max(seen.device, 0), {}))
    return _report(seen, verdict, survivors, shots[-1].settings_in_force if shots else {})


def _is_duration(step_us: Any) -> bool:
    is_number = isinstance(step_us, Real)
    return is_number and bool(0 < step_us < _LONGEST_STEP_US)


def _report(
    seen: Observed, verdict: Verdict, survivors: Survivors, settings: Mapping[str, Any]
) -> LeakTrendReport:
    trend, coming = verdict.trend, forecast(seen, verdict)
    is_suspect = verdict.kind == "leak" and suspect_of(survivors) is not None
    return LeakTrendReport(
        verdict=verdict.kind,
        series=trend.name,
        bytes_per_step=trend.slope,
        interval=trend.interval,
        p_value=trend.p_value if seen.has_blocks else None,
        unit=seen.unit,
        steps=trend.steps,
        warmup_steps=trend.warmup,
        level_bytes=round(trend.level),
        resets=trend.teeth,
        reset_bytes=round(trend.tooth),
        change_points=tuple(ChangePoint(at, round(nbytes)) for at, nbytes in trend.jumps),
        oom_step=coming.step,
        oom_between=coming.between,
        oom_in_us=coming.in_us,
        capacity=seen.capacity,
        growth=survivors.growth,
        suspect="create_graph" if is_suspect else None,
        how=seen.how,
        because=verdict.because,
        findings=findings_of(seen, verdict, coming, survivors, settings),
        _seen=seen,
    )


def _survivors(
    seen: Observed, verdict: Verdict, shots: Sequence[Snapshot], device: int | None
) -> Survivors:
    if verdict.kind not in ("leak", "cycle_garbage"):
        return Survivors()
    if seen.timeline is not None:
        return growth_of(seen, verdict.trend.warmup, fell=verdict.trend.is_sawtooth)
    if len(shots) > 1:
        return Survivors(snapshot_growth(shots, device, verdict.trend.warmup))
    return Survivors()


def _with_holders(
    seen: Observed, verdict: Verdict, survivors: Survivors, is_monitor: bool, live: bool | None
) -> Survivors:
    kinds = ("leak", "growing", "cycle_garbage")
    if verdict.kind not in kinds or live is False:
        return survivors if verdict.kind in kinds else Survivors()
    if not (live or is_monitor):
        return survivors
    # Imports the walker of live objects, which reading a file does not need.
    from neutracer.leak.holders import alike_tensors, with_holders

    if survivors.addresses and live:
        return with_holders(survivors)
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    alike = alike_tensors(verdict.trend.steps, "cuda" if has_cuda else "cpu")
    return survivors if survivors.growth else alike
