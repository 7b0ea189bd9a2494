# SPDX-License-Identifier: Apache-2.0
"""What `leak_trend` can look at: series, snapshots, a trace, a monitor; each as steps."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from neutracer._native import core
from neutracer.diagnose.leak_trend_series import Observed, floors, numbers, windows
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.timeline import Timeline
from neutracer.units import format_count, format_duration_us

__all__ = ["observe"]

_DIGITS = re.compile(r"\d+")

# Layouts of a trace that are made for the growth of fragmentation: it takes that many.
_LAYOUTS = 48

# Names of a monitor's columns, the least value of a row first.
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
    """A source as one value a step, and the snapshots that it has.

    Raises:
        TypeError: It is nothing of what `leak_trend` takes.
        ValueError: It is empty, or steps and source don't fit.
    """
    if isinstance(source, (str, bytes, os.PathLike)) or hasattr(source, "read"):
        source = load(cast(Any, source))
    if isinstance(source, Snapshot):
        return _of_trace(source, step_us, steps, capacity, device), (source,)
    if hasattr(source, "series") and not isinstance(source, Mapping):
        return _of_monitor(source, step_us, steps, capacity, device), ()
    if isinstance(source, Mapping):
        return _of_columns(source, step_us, steps, capacity), ()
    if not isinstance(source, Iterable):
        raise TypeError(
            "a trend is of a monitor, a snapshot, several snapshots or a series of bytes, not of "
            f"{'None' if source is None else 'a ' + type(source).__name__}"
        )
    items = source if isinstance(source, (Sequence, array, memoryview)) else list(source)
    if len(items) and isinstance(items[0], (Snapshot, str, os.PathLike)):
        shots = tuple(one if isinstance(one, Snapshot) else load(cast(Any, one)) for one in items)
        if steps is not None:
            raise ValueError("of several snapshots each is a step: there are no other steps")
        return _of_snapshots(shots, step_us, capacity, device), shots
    return _of_columns({"allocated": items}, step_us, steps, capacity), ()


def _checked_steps(steps: Sequence[int], count: int, what: str) -> list[int]:
    try:
        starts = [int(step) for step in steps]
    except (TypeError, ValueError):
        raise ValueError("steps= are whole numbers: where each step begins") from None
    if not starts or any(b <= a for a, b in pairwise(starts)):
        raise ValueError("steps= are numbers that rise, one at each step's beginning")
    if starts[0] < 0 or starts[-1] >= count:
        raise ValueError(f"steps= begin among the {format_count(count, what)} there are")
    return starts


def _of_columns(
    source: Mapping[str, Any],
    step_us: float | None,
    steps: Sequence[int] | None,
    capacity: int | None,
) -> Observed:
    """Series by their names: allocated, and others where there are."""
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
        starts = _checked_steps(steps, count, "value")
        peaks = [max(found["allocated"][a:b]) for a, b in pairwise([*starts, count])]
        found = {name: floors(values, starts) for name, values in found.items()}
        how = "Of each step given the least value counts."
        return _observed(found, how, capacity, step_us, numbers(peaks))
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
    if capacity is None and hasattr(monitor, "get_stats"):
        capacity = int(monitor.get_stats().get("total_bytes", 0)) or None
    table = _rows(monitor, "phases", device)
    marks = None if table is None or steps is not None or step_us else _step_marks(table)
    if table is None or marks is None:
        table = _rows(monitor, "series", device)
    found: dict[str, array[int]] = {}
    for name, names in _COLUMNS.items():
        column = _any_of(table, names)
        if column is not None and len(column):
            found[name] = numbers(column, f"the monitor's {name!r}")
    if not found.get("allocated"):
        raise ValueError("the monitor has no readings yet")
    how = "A step is from a mark of the monitor to the next like it."
    unit = "step"
    if marks is None:
        times = found.get("time_us", array("Q"))
        marks, how, unit = _time_steps(times, len(found["allocated"]), monitor, steps, step_us)
    peaks = found.pop("peaks", found["allocated"])
    highs = [max(peaks[a:b]) for a, b in pairwise([*marks, len(peaks)])]
    used = found.get("device_used")
    by_step = {name: floors(values, marks) for name, values in found.items()}
    if used is not None:
        # Read less often than the others: the median of a step, not an old reading.
        edges = pairwise([*marks, len(used)])
        by_step["device_used"] = array("Q", (sorted(used[a:b])[(b - a) // 2] for a, b in edges))
    return _observed(by_step, how, capacity, step_us, numbers(highs), unit)


def _rows(monitor: Any, name: str, device: int | None) -> Any:
    """A monitor's table of one device."""
    of_device = getattr(monitor, f"device_{name}", None)
    if of_device is not None:
        return of_device(device)
    return getattr(monitor, name, None)


def _step_marks(phases: Any) -> list[int] | None:
    """The phases at which steps begin: those with the commonest label but for a number."""
    labels = _any_of(phases, ("label",))
    patterns = [_DIGITS.sub("#", label) if label else None for label in labels or ()]
    common = Counter(pattern for pattern in patterns if pattern).most_common(1)
    if not common or common[0][1] < 3:
        return None
    return [row for row, pattern in enumerate(patterns) if pattern == common[0][0]]


def _time_steps(
    times: Sequence[int],
    count: int,
    monitor: Any,
    steps: Sequence[int] | None,
    step_us: float | None,
) -> tuple[list[int], str, str]:
    """Where steps begin in a series with times, what they are, and what they are called."""
    if steps is None and not step_us:
        given = [_mark_time(mark) for mark in getattr(monitor, "marks", ())]
        steps = [at for at in given if at is not None] if len(given) >= 3 else None
    if steps is None and step_us and times:
        steps = range(times[0], times[-1] + 1, max(int(step_us), 1))
    if steps is None or not times:
        text = "No steps are marked: the run was cut into windows of equal length."
        return windows(count), text, "window"
    starts = sorted({_first_at(times, at) for at in steps if at <= times[-1]})
    if not starts:
        raise ValueError("no step begins within the monitor's readings")
    return starts, "Steps begin at the times given.", "step"


def _first_at(times: Sequence[int], at: float) -> int:
    return next(row for row, time in enumerate(times) if time >= at)


def _mark_time(mark: Any) -> int | None:
    time = getattr(mark, "time_us", mark)
    time = time[0] if isinstance(time, tuple) else time
    return int(time) if isinstance(time, (int, float)) else None


def _of_snapshots(
    shots: tuple[Snapshot, ...], step_us: float | None, capacity: int | None, device: int | None
) -> Observed:
    """Each snapshot as a step."""
    stats = [shot.memory_stats(shot.device(device)) for shot in shots]

    def column(name: str) -> array[int]:
        return array("Q", (one[f"{name}.all.current"] for one in stats))

    def stuck() -> array[int]:
        free = []
        for shot, one in zip(shots, stats, strict=True):
            fragment = core.Fragment(shot.native, None, shot.device(device))
            given = sum(group["reclaimable_bytes"] for group in fragment.groups())
            held = one["reserved_bytes.all.current"] - one["active_bytes.all.current"]
            free.append(max(held - given, 0))
        return array("Q", free)

    return Observed(
        allocated=column("allocated_bytes"),
        how="Each snapshot is a step.",
        unit="snapshot",
        reserved=column("reserved_bytes"),
        make_stuck=stuck,
        step_us=step_us,
        capacity=capacity,
    )


def _of_trace(
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
    starts, end, how, unit = _trace_steps(timeline, steps, step_us)
    failed = _failed_for_good(timeline) if steps is None else None
    if failed is not None and starts[0] < failed:
        starts, end = [at for at in starts if at < failed], min(end, failed)
        if unit == "window":
            starts = windows(failed)
    edges = (*starts, end)
    times = timeline.time_us
    timed = times[0] > 0
    return Observed(
        allocated=floors(timeline.allocated[:end], starts),
        how=how,
        unit=unit,
        reserved=floors(timeline.reserved[:end], starts),
        make_stuck=lambda: _stuck(snap, timeline, edges),
        peaks=array("Q", (max(timeline.allocated[a:b]) for a, b in pairwise(edges))),
        time_us=[times[at] for at in starts] if timed else (),
        step_us=step_us,
        capacity=capacity,
        timeline=timeline,
        starts=edges,
        failed=failed,
    )


def _failed_for_good(timeline: Timeline) -> int | None:
    """The event behind the last out-of-memory error, if nothing was allocated after it.

    What the error frees on its way out would hide what had piled up.
    """
    if not timeline.facts["oom_count"]:
        return None
    actions = cast("list[str]", timeline.events["action"])
    last = len(actions) - actions[::-1].index("oom")
    return None if "alloc" in actions[last:] else last


def _trace_steps(
    timeline: Timeline, steps: Sequence[int] | None, step_us: float | None
) -> tuple[list[int], int, str, str]:
    """Where steps begin, where the last ends, what they are, and what they are called."""
    count = len(timeline)
    if steps is not None:
        starts = _checked_steps(steps, count, "event")
        return starts, count, "Steps begin at the events given.", "step"
    if step_us:
        first, last = timeline.time_us[0], timeline.time_us[-1]
        marks = range(first, last + 1, max(int(step_us), 1))
        starts = sorted({max(timeline.event_at(at - 1) + 1, 0) for at in marks})
        text = f"A step is {format_duration_us(step_us)} of the trace."
        return [at for at in starts if at < count], count, text, "step"
    found = timeline.steps
    if len(found) >= 3:
        return [step.first for step in found], found[-1].end, found.explanation, "step"
    text = "No steps were found: the trace was cut into windows of as many events each."
    return windows(count), count, text, "window"


def _stuck(snap: Snapshot, timeline: Timeline, edges: Sequence[int]) -> array[int]:
    """Free bytes in segments that something keeps, where each step held least."""
    free = []
    stride = (len(edges) - 2) // _LAYOUTS + 1
    for first, end in list(pairwise(edges))[::stride]:
        part = timeline.allocated[first:end]
        event = first + min(range(len(part)), key=part.__getitem__)
        fragment = core.Fragment(snap.native, timeline.at(event).native, timeline.device)
        groups = fragment.groups()
        held = sum(group["reserved_bytes"] - group["active_bytes"] for group in groups)
        free.append(max(held - sum(group["reclaimable_bytes"] for group in groups), 0))
    return array("Q", free)
