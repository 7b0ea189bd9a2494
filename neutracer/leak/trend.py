# SPDX-License-Identifier: Apache-2.0
"""`leak_trend`: whether memory keeps growing, at which rate, and which lines hold the growth."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

# What a trend amounts to: findings with evidence, suspects and the next step.

# Growth that fills the memory within so many times the steps seen is severe.
_SOON = 20

# What grows by less than these until a long run ends is worth a look, and less than the second
# of them none.
_COSTLY = 1 << 30
_NOTABLE = 64 << 20

# Stacks that a finding names.
_NAMED = 3

# What to keep instead, where the blocks show that a graph is kept, and where they don't.
_WITH_GRAPH = (
    "a kept tensor keeps its graph and its whole storage: keep loss.item(), or "
    "x.detach().cpu(), or a clone() of a view"
)
_WITHOUT_GRAPH = (
    "a kept tensor keeps its whole storage: keep x.item() or x.cpu(), or a clone() of a view"
)

# Where there are numbers only.
_WITH_LINES = Note(
    "neutracer.record() and leak_trend on its snapshot say which line leaves it behind"
)

# The same of the host's memory, where cpu() is the tensor itself.
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
    """The stack that gives backward(create_graph=True) away; None where there is none.

    The first gradient of a backward pass, that of the loss, is freed when the pass ends,
    unless the pass itself was recorded as a graph.
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
    """The findings: one where something grows, and one where growth is too little."""
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
    """What would show whether memory grows."""
    unit = seen.unit
    if seen.timeline is None and seen.live.is_in_doubt:
        return (Note(_more(unit)), _WITH_LINES)
    return (Note(f"{_more(unit)}: about sixty {unit}s show a leak of 0.1 % a {unit}"),)


def _more(unit: str) -> str:
    """How to have more steps, by what they are."""
    if unit == "window":
        return "record longer, or say with steps= where steps begin"
    return f"look at more {unit}s"


def _rate(trend: Trend, unit: str, kind: str) -> str:
    if kind == "cycle_garbage":
        times = format_count(trend.teeth, "fall")
        return f"{times}, of {format_bytes(round(trend.tooth))} each"
    return f"{format_bytes(round(trend.slope))} a {unit}"


def _how_sure(seen: Observed, trend: Trend) -> Note:
    unit = seen.unit
    chance = f", {chance_text(trend.p_value)}" if seen.has_blocks else ""
    steps = format_count(trend.steps, unit)
    set_aside = f", {format_count(trend.warmup)} set aside as warm-up" if trend.warmup else ""
    if trend.is_sawtooth:
        rise = format_bytes(round(trend.tooth_slope))
        return Note(f"Seen in {steps}{set_aside}; between two falls it rises by {rise} a {unit}.")
    low, high = (format_bytes(round(end)) for end in trend.interval)
    return Note(f"Seen in {steps}{set_aside}: 95 % interval {low} to {high}{chance}.")


def _who(survivors: Survivors) -> list[Note]:
    notes = []
    for grown in survivors.growth[:_NAMED]:
        blocks = format_count(grown.count, "block")
        kind = "" if grown.category == "unknown" else f" ({grown.category})"
        share = f"{format_share(grown.share, decimals=0)}: " if grown.share else ""
        notes.append(Note(f"{share}{format_bytes(grown.bytes)} in {blocks}{kind}", grown.place))
        notes += [Note(f"held by {chain}") for chain in grown.holders]
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
    text = f"At this rate {whole} are full at {seen.unit} {format_count(coming.step)}{span}"
    if coming.in_us is not None:
        text += f", in {format_duration_us(coming.in_us)}"
    return [Note(text + ".")]


def _cost(verdict: Verdict, unit: str) -> list[Note]:
    """What a leak comes to, where nothing says when the memory is full."""
    if verdict.kind not in ("leak", "growing", "non_torch_growth", "fragmentation_growth"):
        return []
    run = RUN[unit]
    cost = format_bytes(round(max(verdict.trend.slope, 0.0) * run))
    return [Note(f"At this rate it is {cost} after {format_count(run, unit)}.")]


def _severity(seen: Observed, verdict: Verdict, coming: Forecast) -> Severity:
    """By what the growth costs until the memory is full or the run ends."""
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
            Note("neutracer.attribute_device_memory() says which library takes it"),
            Note("neutracer.device_report() says which process it is"),
        )
    if device < 0:
        # No setting of the CUDA allocator is about it.
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
    """What to keep instead of a tensor of a report's device."""
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
        return (
            Note(_to_keep(device, survivors.shows_graph)),
            Note("neutracer.why_alive(tensor) in the program says what holds one of them"),
        )
    return (_WITH_LINES,)


# ---- Trend -------------------------------------------------------------------------------

# Is it leaking? Which memory grows, how fast, from which line, and when is it full?

# Stacks and change points of the printed report.
_SHOWN = 6

# A step of ten years: what is longer is no duration, and times are 64-bit numbers.
_LONGEST_STEP_US = 3.2e14


@dataclass(frozen=True)
class ChangePoint(PlainRow):
    """Where the level changed at once and stayed so.

    Attributes:
        step: The first step at the new level.
        bytes: By how much; negative for a fall.
    """

    step: int
    bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LeakTrendReport(Report):
    """Whether memory grows step after step, and what grows.

    Attributes:
        verdict: "leak" or "cycle_garbage" (only where blocks bear it out: a trace or several
            snapshots), "growing" (the same rise seen in numbers alone, which cannot tell a
            random walk from slow growth), "non_torch_growth", "fragmentation_growth",
            "cache_growth", "steady" or "unknown".
        series: The series that decided: "allocated" (live bytes), "reserved", or
            "non_torch" (used on the device and not PyTorch's).
        bytes_per_step: Its growth (Theil-Sen slope of the least value of each step).
        interval: The 95 % interval of that.
        p_value: Of Mann-Kendall's one-sided test; None without blocks behind the numbers,
            since the test knows no random walks.
        unit: What a step is: "step", "snapshot", or "window" where steps are unknown.
        steps: How many were looked at, after the warm-up.
        warmup_steps: How many were set aside before them.
        level_bytes: The median of the series after the warm-up.
        resets: How often a gradual rise ended in a fall.
        reset_bytes: The median fall.
        change_points: Where the level changed at once.
        oom_step: The step at which `capacity` is full at this rate, the first of the series
            being step 0; None where that is never, or no capacity is known.
        oom_between: First and last step that `interval` allows; last is None for never.
        oom_in_us: The same from the last step on, in microseconds; None where unknown.
        capacity: Bytes that the process can have; None where unknown.
        growth: Who grows, the most bytes first; empty where no stacks are known.
        suspect: A known cause whose marks the growth has: "create_graph", or None.
        how: What the steps are, as a sentence.
        because: What decided, as a sentence.
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
        """The report as a page."""
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
        title = "What is left behind" + (f" ({shown})" if shown else "")
        return Table(title, rows, (f"a {self.unit}", "in all", "", "", ""))


def _rates(slopes: Sequence[float]) -> list[Figure]:
    """The rates of one column, each in the unit that fits it (none in that of the largest) and
    all with as many decimals."""
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
    """Whether a program's memory grows step after step, and what grows.

    It looks at the least of each step, so what comes and goes within a step does not count. It
    finds the warm-up and sets it aside, bridges bursts that are taken back, and does not take a
    sudden change of the level for growth. The slope is Theil-Sen's (Sen, JASA 63, 1968) and its
    test Mann-Kendall's, after the memory of the series (its autocorrelation, up to 0.9 for short
    ones) was taken off (Yue and others, Hydrological Processes 16, 2002). A rise is growth where
    the medians and the floors of twelve parts of the series, and of its last 65 %, rise too. A
    series of more than 1,024 steps is first put into bins.

    Args:
        source: One of
            a sequence of numbers, the bytes of one step each;
            a mapping of such, as {"allocated": ..., "reserved": ..., "inactive_split":
            ..., "device_used": ...}, of which the first must be there;
            a Snapshot with a trace, or what `load` takes;
            a sequence of Snapshots, one a step;
            a MemoryMonitor, by its marks, or else by windows of time.
        step_us: A step's length in microseconds, by which a trace or a monitor is cut. For
            numbers and snapshots it only says when memory will be full.
        steps: Where steps begin, rising: numbers of values of a series, events of a
            trace, or times in microseconds of a monitor.
        capacity: The bytes that the process can have, or a text like "24GiB"; a monitor
            knows it.
        device: The device, where there are several.
        live: Whether to look among the tensors of this process for what keeps the growing
            memory alive. None does so for a monitor.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        TypeError: The source is none of these.
        ValueError: It is empty; steps don't rise, or don't fit it; `step_us` is no duration;
            one of several snapshots does not say what it holds.
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
        ValueError: The file says nothing of steps.
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
    return _report(seen, verdict, survivors, shots[-1].settings_in_force if shots else {})


def _is_duration(step_us: Any) -> bool:
    is_number = isinstance(step_us, Real)
    return is_number and bool(0 < step_us < _LONGEST_STEP_US)


def _report(
    seen: Observed, verdict: Verdict, survivors: Survivors, settings: Mapping[str, Any]
) -> LeakTrendReport:
    """All that was found, as a report."""
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
    """Who grows, where stacks are known."""
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
    """The survivors with what keeps them alive, where that was asked."""
    kinds = ("leak", "growing", "cycle_garbage")
    if verdict.kind not in kinds or live is False:
        return survivors if verdict.kind in kinds else Survivors()
    if not (live or is_monitor):
        return survivors
    # Whoever only reads a file needs nothing that looks at objects.
    from neutracer.leak.holders import alike_tensors, with_holders

    if survivors.addresses and live:
        return with_holders(survivors)
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    alike = alike_tensors(verdict.trend.steps, "cuda" if has_cuda else "cpu")
    return survivors if survivors.growth else alike
