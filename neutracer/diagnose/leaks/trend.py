# SPDX-License-Identifier: Apache-2.0
"""Is it leaking? Which memory grows, how fast, from which line, and when is it full?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from neutracer.diagnose.leaks.findings import chance_text, findings_of, suspect_of
from neutracer.diagnose.leaks.growth import Growth, Survivors, growth_of, snapshot_growth
from neutracer.diagnose.leaks.proof import held_against, proved_by_blocks
from neutracer.diagnose.leaks.series import Observed
from neutracer.diagnose.leaks.sources import observe, observe_trace
from neutracer.diagnose.leaks.verdict import VERDICTS, Verdict, forecast, judge
from neutracer.diagnose.question import after_caveats
from neutracer.diagnose.settings.capacity import capacity_bytes
from neutracer.render.document import Block, Document, Figure, Paragraph, Table
from neutracer.render.report import Report
from neutracer.render.row import PlainRow
from neutracer.trace.flaws import CAVEAT_KINDS
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count, split_bytes

__all__ = ["ChangePoint", "LeakTrendReport", "leak_trend"]

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
        rates = _rates([trend.slope for trend in trends])
        rows = tuple(
            (
                names[trend.name],
                Figure.bytes(round(trend.level)),
                Figure.bytes(round(trend.last)),
                rate,
                *((chance_text(trend.p_value),) if seen.has_blocks else ()),
                format_count(trend.warmup),
            )
            for trend, rate in zip(trends, rates, strict=True)
        )
        chance = ("growth by chance",) if seen.has_blocks else ()
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
    from neutracer.diagnose.leaks.holders import alike_tensors, with_holders

    if survivors.addresses and live:
        return with_holders(survivors)
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    alike = alike_tensors(verdict.trend.steps, "cuda" if has_cuda else "cpu")
    return survivors if survivors.growth else alike
