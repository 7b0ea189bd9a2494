# SPDX-License-Identifier: Apache-2.0
"""The series of a trend: from a trace, several snapshots, a monitor, or plain numbers."""

from __future__ import annotations

import math
import os
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

from neutracer._native import core
from neutracer.pickling import FieldsOnly
from neutracer.question import opened
from neutracer.trace.events import shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_count, format_duration_us

# ---- Series ------------------------------------------------------------------------------

# A series without steps is cut into at most so many windows, of at least so many values.
_WINDOWS = 64
_WINDOW_VALUES = 8


@dataclass(frozen=True)
class Trend:
    """The trend of one series.

    Attributes:
        name: The series: "allocated", "reserved", "non_torch", "stuck".
        warmup: Steps set aside at the beginning.
        steps: Steps after the warm-up.
        slope: Growth in bytes per step (Theil-Sen).
        interval: Its 95 % interval.
        p_value: Of Mann-Kendall's one-sided test, which ignores random walks.
        grows: It rises by that test, and so do its medians and floors (`nt_trend.h`).
        level: The median, in bytes.
        last: The median of the last five steps, in bytes.
        memory: An upper bound of the autocorrelation.
        is_levelling: Its growth slows down.
        is_in_doubt: Rising by the test, but not distinguishable from a random walk.
        teeth: Falls that ended a gradual rise: 0, or at least 2.
        tooth: The median fall in bytes.
        tooth_slope: The median rise in bytes per step between two falls.
        jumps: (step, bytes) of each sudden change of the level.
    """

    name: str
    warmup: int
    steps: int
    slope: float
    interval: tuple[float, float]
    p_value: float
    grows: bool
    level: float
    last: float
    memory: float
    is_levelling: bool
    is_in_doubt: bool
    teeth: int
    tooth: float
    tooth_slope: float
    jumps: tuple[tuple[int, float], ...]

    @property
    def growth(self) -> float:
        """Bytes grown over all steps."""
        return self.slope * max(self.steps - 1, 0)

    @property
    def is_sawtooth(self) -> bool:
        return self.teeth >= 2


def trend_of(name: str, values: array[int], unit: str = "step") -> Trend:
    """The trend of a non-empty series of unsigned 64-bit numbers."""
    found: dict[str, Any] = core.find_trend(values, True, unit == "window")
    warmup = min(found["warmup"], len(values))
    names = ("slope", "grows", "level", "last", "memory", "is_levelling", "is_in_doubt")
    return Trend(
        name=name,
        warmup=warmup,
        steps=len(values) - warmup,
        interval=(found["low"], found["high"]),
        p_value=math.erfc(found["score"] / math.sqrt(2)) / 2,
        teeth=found["teeth"] if found["teeth"] >= 2 else 0,
        jumps=tuple(found["jumps"]),
        **{name: found[name] for name in (*names, "tooth", "tooth_slope")},
    )


@dataclass(frozen=True)
class Observed(FieldsOnly):
    """A program's memory, step by step.

    Attributes:
        allocated: The least live bytes of each step.
        how: The definition of a step, as a sentence.
        unit: "step", "snapshot" or "window".
        reserved: Reserved bytes; None if unknown, as below.
        pending: Bytes in freed blocks that wait for a stream.
        non_torch: Bytes used on the device, minus reserved.
        make_stuck: Computes, by step, the free bytes that empty_cache() can't release.
        peaks: The most live bytes of each step.
        time_us: The beginning of each step, in microseconds.
        step_us: The length of a step, if there are no times.
        capacity: Bytes available to the process.
        timeline: The trace behind it.
        starts: The first event of each step, then the end of the last step.
        is_named: Steps come from the program (its texts, optimizer or backward passes) or the
            caller, and not from repetition.
        device: The device as in reports: -1 is the CPU, -2 the host's pinned memory.
        has_garbage: The JSON beside the snapshot counts memory that only a collection would free.
        failed: The event after an out-of-memory error that ended the program, or None; blocks
            freed from there on count as alive to the end.
    """

    allocated: array[int]
    how: str
    unit: str = "step"
    reserved: array[int] | None = None
    pending: array[int] | None = None
    non_torch: array[int] | None = None
    make_stuck: Callable[[], array[int] | None] | None = None
    peaks: array[int] | None = None
    time_us: Sequence[int] = ()
    step_us: float | None = None
    capacity: int | None = None
    timeline: Timeline | None = None
    starts: tuple[int, ...] = ()
    is_named: bool = True
    device: int = 0
    has_garbage: bool = False
    failed: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A report needs the series, and not their sources.
        return {**super().__getstate__(), "make_stuck": None, "timeline": None}

    @property
    def has_blocks(self) -> bool:
        """There are blocks behind the numbers: a trace's, or those of several snapshots."""
        return self.timeline is not None or self.unit == "snapshot"

    @cached_property
    def live(self) -> Trend:
        return trend_of("allocated", self.allocated, self.unit)

    @cached_property
    def cached(self) -> Trend | None:
        return None if self.reserved is None else trend_of("reserved", self.reserved, self.unit)

    @cached_property
    def waiting(self) -> Trend | None:
        return None if self.pending is None else trend_of("pending", self.pending, self.unit)

    @cached_property
    def outside(self) -> Trend | None:
        return None if self.non_torch is None else trend_of("non_torch", self.non_torch, self.unit)

    @cached_property
    def stuck(self) -> Trend | None:
        """The trend of the free bytes that empty_cache() can't release."""
        values = None if self.make_stuck is None else self.make_stuck()
        if values is None:
            return None
        # One value may stand for several steps.
        steps = len(self.allocated) // len(values)
        found = trend_of("stuck", values)
        low, high = found.interval
        return replace(found, slope=found.slope / steps, interval=(low / steps, high / steps))

    def duration_us(self) -> float | None:
        """The median length of a step."""
        times = [b - a for a, b in zip(self.time_us, self.time_us[1:], strict=False) if b > a]
        return float(sorted(times)[len(times) // 2]) if times else self.step_us


def numbers(values: object, what: str = "a series") -> array[int]:
    """Bytes as unsigned 64-bit numbers.

    Args:
        values: A sequence of numbers, or a buffer of them.
    """
    if isinstance(values, array) and values.typecode == "Q":
        return values
    if not isinstance(values, Iterable):
        raise TypeError(
            f"{what} must be a sequence of numbers (bytes), not {type(values).__name__}"
        )
    found = array("Q")
    for value in values:
        is_number = hasattr(value, "__float__") and not getattr(value, "shape", ())
        if isinstance(value, bool) or not is_number:
            raise TypeError(f"{what} must hold numbers (bytes), not a {type(value).__name__}")
        if not 0 <= value < 1 << 63:
            raise ValueError(f"{what} must hold numbers of bytes, not {value!r}")
        found.append(round(value))
    return found


def floors(values: array[int] | memoryview, starts: Sequence[int]) -> array[int]:
    """The least value of each step that begins at `starts`; the last goes to the end."""
    found = array("Q")
    found.frombytes(core.step_floors(values, array("Q", starts)))
    return found


def highs(values: array[int] | memoryview, starts: Sequence[int]) -> array[int]:
    """The largest value of each step that begins at `starts`; the last goes to the end."""
    found = array("Q")
    found.frombytes(core.step_highs(values, array("Q", starts)))
    return found


def allocated_blocks(snap: Snapshot, device: int) -> Iterator[tuple[tuple[Frame, ...], int, int]]:
    """The stack, size and address of each allocated block of a device."""
    devices, blocks = snap.segments.codes("device"), snap.blocks
    numbers = (blocks.codes(name) for name in ("segment", "stack", "size", "address"))
    for state, segment, stack, size, at in zip(blocks["state"], *numbers, strict=True):
        if state == "active_allocated" and devices[segment] == device:
            yield snap.stacks[stack], size, at


def windows(count: int) -> list[int]:
    """The beginnings of equal windows of at least eight of `count` values, or of one window.

    The first may be a little longer than the others.
    """
    number = min(_WINDOWS, count // _WINDOW_VALUES) or 1
    width = count // number
    return [0, *(count - width * (number - k) for k in range(1, number))]


# ---- Steps -------------------------------------------------------------------------------

_DIGITS = re.compile(r"\d+")


def checked_steps(steps: Sequence[int], count: int, what: str) -> list[int]:
    """Validated beginnings of steps among `count` values."""
    try:
        starts = [int(step) for step in steps]
    except (TypeError, ValueError, OverflowError):
        raise ValueError("steps= must be whole numbers, the beginning of each step") from None
    if not starts or any(b <= a for a, b in pairwise(starts)):
        raise ValueError("steps= must be ascending, one number per step")
    if starts[0] < 0 or starts[-1] >= count:
        raise ValueError(f"steps= must be within the {format_count(count, what)}")
    return starts


def step_marks(phases: Any) -> list[int] | None:
    """The phases that begin steps: those with the commonest label, digits aside."""
    patterns = [_DIGITS.sub("#", label) if label else None for label in phases["label"]]
    common = Counter(pattern for pattern in patterns if pattern).most_common(1)
    if not common or common[0][1] < 3:
        return None
    return [row for row, pattern in enumerate(patterns) if pattern == common[0][0]]


def time_steps(
    times: Sequence[int], count: int, steps: Sequence[int] | None, step_us: float | None
) -> tuple[list[int], str, str]:
    """The beginnings of steps in a series with times, their definition, and their unit."""
    if times and steps is not None:
        starts = _at_times(times, steps)
        if not starts:
            raise ValueError("no step begins within the monitor's readings")
        return starts, "Steps begin at the times given.", "step"
    if times and step_us:
        text = f"A step is {format_duration_us(step_us)} of the readings."
        return _each_period(times, step_us), text, "step"
    text = "No steps are marked: the run was cut into windows of equal length."
    return windows(count), text, "window"


def _at_times(times: Sequence[int], steps: Sequence[int]) -> list[int]:
    try:
        return sorted({bisect_left(times, at) for at in steps if at <= times[-1]})
    except TypeError:
        raise ValueError("steps= of a monitor are times in microseconds") from None


def _each_period(times: Sequence[int], step_us: float) -> list[int]:
    """The first item of each non-empty period, from the first item's time on."""
    first, length = times[0], max(int(step_us), 1)
    periods = [(time - first) // length for time in times]
    return [0, *(at for at, (a, b) in enumerate(pairwise(periods), 1) if b > a)]


def trace_steps(
    timeline: Timeline, steps: Sequence[int] | None, step_us: float | None
) -> tuple[list[int], int, str, str]:
    """The beginnings of steps, the end of the last, their definition, and their unit."""
    count = len(timeline)
    if steps is not None:
        starts = checked_steps(steps, count, "event")
        return starts, count, "Steps begin at the events given.", "step"
    if step_us:
        if not timeline.time_us[-1]:
            raise ValueError("step_us needs times, which the events of this snapshot lack")
        text = f"A step is {format_duration_us(step_us)} of the trace."
        return _each_period(timeline.time_us, step_us), count, text, "step"
    found = timeline.steps
    if len(found) >= 3:
        return [step.first for step in found], found[-1].end, found.explanation, "step"
    text = "No steps were found: the trace was cut into windows of equally many events."
    return windows(count), count, text, "window"


def is_named(timeline: Timeline) -> bool:
    """A trace's steps come from the program, and not from repetition."""
    return timeline.steps.how not in ("repetition", "none")


# ---- Sources -----------------------------------------------------------------------------

# The most layouts of a trace to build for the growth of fragmentation.
_LAYOUTS = 48

# Names of a monitor's columns, by preference.
_COLUMNS = {
    "allocated": ("allocated_low", "allocated", "allocated_bytes"),
    "reserved": ("reserved_low", "reserved", "reserved_bytes"),
    "device_used": ("device_used", "device_used_bytes"),
    "inactive_split": ("inactive_split", "inactive_split_bytes"),
    "peaks": ("allocated_high", "allocated_peak", "allocated"),
    "time_us": ("begin_us", "time_us"),
}


def observe(
    source: Any,
    step_us: float | None,
    steps: Sequence[int] | None,
    capacity: int | None,
    device: int | None,
) -> tuple[Observed, tuple[Snapshot, ...]]:
    """A source as one value per step, and its snapshots."""
    if isinstance(source, (str, bytes, bytearray, os.PathLike)) or hasattr(source, "read"):
        source = opened(cast(Any, source))
    if isinstance(source, Snapshot):
        return observe_trace(source, step_us, steps, capacity, device), (source,)
    if hasattr(source, "device_series") and not isinstance(source, type):
        return _of_monitor(source, step_us, steps, capacity, device), ()
    if isinstance(source, Mapping):
        return _of_columns(source, step_us, steps, capacity), ()
    items = _items(source)
    if len(items) and isinstance(items[0], (Snapshot, str, os.PathLike)):
        shots = tuple(opened(cast(Any, one)) for one in items)
        if steps is not None:
            raise ValueError("with several snapshots each one is a step: leave out steps=")
        return _of_snapshots(shots, step_us, capacity, device), shots
    return _of_columns({"allocated": items}, step_us, steps, capacity), ()


def _items(source: Any) -> Sequence[Any]:
    try:
        return source if isinstance(source, (Sequence, array, memoryview)) else list(source)
    except TypeError:
        what = "None" if source is None else f"a {type(source).__name__}"
        raise TypeError(
            "a trend needs a monitor, a snapshot, several snapshots or a series of bytes, not "
            + what
        ) from None


def _of_columns(
    source: Mapping[str, Any],
    step_us: float | None,
    steps: Sequence[int] | None,
    capacity: int | None,
) -> Observed:
    known = {name: _any_of(source, names) for name, names in _COLUMNS.items()}
    if known["allocated"] is None:
        raise ValueError(f"no series 'allocated' among {', '.join(map(str, source)) or 'none'}")
    found = {
        name: numbers(values, f"the series {name!r}")
        for name, values in known.items()
        if values is not None and name != "peaks"
    }
    count = len(found["allocated"])
    if not count:
        raise ValueError("a series without values has no trend")
    if any(len(values) != count for values in found.values()):
        raise ValueError("the series differ in length")
    how = "Each value is a step."
    if steps is not None:
        starts = checked_steps(steps, count, "value")
        peaks = highs(found["allocated"], starts)
        found = {name: floors(values, starts) for name, values in found.items()}
        how = "The least value of each given step counts."
        return _observed(found, how, capacity, step_us, peaks)
    return _observed(found, how, capacity, step_us, None)


def _observed(
    found: Mapping[str, array[int]],
    how: str,
    capacity: int | None,
    step_us: float | None,
    peaks: array[int] | None,
    unit: str = "step",
) -> Observed:
    used, reserved, split = (
        found.get(name) for name in ("device_used", "reserved", "inactive_split")
    )
    outside = None
    if used is not None and reserved is not None and any(used):
        pairs = zip(used, reserved, strict=True)
        outside = array("Q", (max(a - b, 0) for a, b in pairs))
    return Observed(
        allocated=found["allocated"],
        how=how,
        unit=unit,
        reserved=reserved,
        non_torch=outside,
        make_stuck=None if split is None else lambda: split,
        peaks=peaks,
        time_us=found.get("time_us", ()),
        step_us=step_us,
        capacity=capacity,
    )


def _any_of(table: Any, names: Iterable[str]) -> Any:
    """The first of these columns that a mapping or a Table has."""
    columns = table if isinstance(table, Mapping) else getattr(table, "columns", ())
    return next((table[name] for name in names if name in columns), None)


def _of_monitor(
    monitor: Any,
    step_us: float | None,
    steps: Sequence[int] | None,
    capacity: int | None,
    device: int | None,
) -> Observed:
    """A MemoryMonitor: by its marks, or else by windows of time."""
    if capacity is None:
        capacity = int(monitor.get_stats().get("total_bytes", 0)) or None
    table = monitor.device_phases(device)
    marks = None if steps is not None or step_us else step_marks(table)
    if marks is None:
        table = monitor.device_series(device)
    found: dict[str, array[int]] = {}
    for name, names in _COLUMNS.items():
        column = _any_of(table, names)
        if column is not None and len(column):
            found[name] = numbers(column, f"the monitor's {name!r}")
    if not found.get("allocated"):
        raise ValueError("the monitor has no readings yet")
    how = "A step runs from one mark of the monitor to the next like it."
    unit = "step"
    if marks is None:
        times = found.get("time_us", array("Q"))
        marks, how, unit = time_steps(times, len(found["allocated"]), steps, step_us)
    peaks = found.pop("peaks", found["allocated"])
    most = highs(peaks, marks)
    used = found.get("device_used")
    by_step = {name: floors(values, marks) for name, values in found.items()}
    if used is not None:
        # Read less often than the others, so use the median of a step.
        edges = pairwise([*marks, len(used)])
        by_step["device_used"] = array("Q", (sorted(used[a:b])[(b - a) // 2] for a, b in edges))
    return _observed(by_step, how, capacity, step_us, most, unit)


def _of_snapshots(
    shots: tuple[Snapshot, ...], step_us: float | None, capacity: int | None, device: int | None
) -> Observed:
    numbers_of = [shot.device(device) for shot in shots]
    names = {shot.device_name(one) for shot, one in zip(shots, numbers_of, strict=True)}
    if len(names) > 1:
        listed = ", ".join(sorted(names))
        raise ValueError(
            f"the snapshots are of different devices ({listed}): they have no common trend"
        )
    for shot, one in zip(shots, numbers_of, strict=True):
        if not end_is_known(shot, one):
            name = shot.origin or "one of the snapshots"
            raise ValueError(
                f"{name} lists no segments, so its memory at the end is not known: leave it out, "
                "or give it alone"
            )
    stats = [shot.memory_stats(one) for shot, one in zip(shots, numbers_of, strict=True)]

    def column(name: str) -> array[int]:
        return array("Q", (one[f"{name}.all.current"] for one in stats))

    return Observed(
        allocated=column("allocated_bytes"),
        how="Each snapshot is a step.",
        unit="snapshot",
        reserved=column("reserved_bytes"),
        make_stuck=lambda: array("Q", (_stuck(shot, shot.device(device)) for shot in shots)),
        step_us=step_us,
        capacity=capacity,
        device=shown_device(shots[-1], numbers_of[-1]),
    )


def observe_trace(
    snap: Snapshot,
    step_us: float | None,
    steps: Sequence[int] | None,
    capacity: int | None,
    device: int | None,
) -> Observed:
    """One snapshot's trace, cut into the program's steps."""
    timeline = snap.timeline(device)
    if not len(timeline):
        return _of_snapshots((snap,), step_us, capacity, device)
    starts, end, how, unit = trace_steps(timeline, steps, step_us)
    failed = _failed_for_good(timeline) if steps is None else None
    if failed is not None and starts[0] < failed:
        starts, end = [at for at in starts if at < failed], min(end, failed)
        if unit == "window":
            starts = windows(failed)
    if not end_is_known(snap, timeline.device) and starts[-1] < len(timeline) - 1:
        # The replay frees the remaining blocks at the last event.
        end = min(end, len(timeline) - 1)
    edges = (*starts, end)
    times = timeline.time_us
    timed = times[0] > 0
    is_given = steps is not None or step_us is not None
    allocated = floors(timeline.allocated[:end], starts)
    return Observed(
        allocated=allocated,
        how=how,
        unit=unit,
        reserved=floors(timeline.reserved[:end], starts),
        pending=_waiting(floors(timeline.active[:end], starts), allocated),
        make_stuck=lambda: _stuck_by_step(snap, timeline, edges),
        peaks=highs(timeline.allocated[:end], starts),
        time_us=[times[at] for at in starts] if timed else (),
        step_us=step_us,
        capacity=capacity,
        timeline=timeline,
        starts=edges,
        is_named=unit == "step" and (is_given or is_named(timeline)),
        device=shown_device(snap, timeline.device),
        has_garbage=_has_garbage(snap),
        failed=failed,
    )


def _has_garbage(snap: Snapshot) -> bool:
    oom = snap.beside.oom
    garbage = oom.get("garbage_bytes") if isinstance(oom, Mapping) else None
    return isinstance(garbage, int) and garbage > 0


def _waiting(active: array[int], allocated: array[int]) -> array[int]:
    """Freed bytes that wait for a stream, at each step's least active bytes."""
    pairs = zip(active, allocated, strict=True)
    return array("Q", (max(one - held, 0) for one, held in pairs))


def _failed_for_good(timeline: Timeline) -> int | None:
    """The event after the last out-of-memory error, if nothing was allocated after it.

    The frees of the error's unwinding would hide the growth.
    """
    if not timeline.facts["oom_count"]:
        return None
    actions = cast("list[str]", timeline.events["action"])
    last = len(actions) - actions[::-1].index("oom")
    return None if "alloc" in actions[last:] else last


def _stuck(snap: Snapshot, device: int, layout: core.Layout | None = None) -> int:
    """Free bytes that empty_cache() can't release."""
    held: int = sum(
        group["reserved_bytes"] - group["active_bytes"] - group["reclaimable_bytes"]
        for group in core.Fragment(snap.native, layout, device).groups()
    )
    return max(held, 0)


def _stuck_by_step(snap: Snapshot, timeline: Timeline, edges: Sequence[int]) -> array[int]:
    """The same at each step's least live bytes."""
    free = []
    stride = (len(edges) - 2) // _LAYOUTS + 1
    for first, end in list(pairwise(edges))[::stride]:
        part = timeline.allocated[first:end]
        event = first + min(range(len(part)), key=part.__getitem__)
        free.append(_stuck(snap, timeline.device, timeline.at(event).native))
    return array("Q", free)
