# SPDX-License-Identifier: Apache-2.0
"""What `leak_trend` can look at: series, snapshots, a trace, a monitor; each as steps."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from neutracer._native import core
from neutracer.diagnose.leaks.series import Observed, floors, highs, numbers, windows
from neutracer.diagnose.leaks.steps import (
    checked_steps,
    is_named,
    step_marks,
    time_steps,
    trace_steps,
)
from neutracer.diagnose.question import opened
from neutracer.trace.devices import shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline

__all__ = ["observe", "observe_trace"]

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
    if isinstance(source, (str, bytes, bytearray, os.PathLike)) or hasattr(source, "read"):
        source = opened(cast(Any, source))
    if isinstance(source, Snapshot):
        return observe_trace(source, step_us, steps, capacity, device), (source,)
    if hasattr(source, "series") and not isinstance(source, (Mapping, type)):
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
    """The items of what is neither a file nor a monitor.

    Raises:
        TypeError: It has none.
    """
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
    if capacity is None and hasattr(monitor, "get_stats"):
        capacity = int(monitor.get_stats().get("total_bytes", 0)) or None
    table = _rows(monitor, "phases", device)
    marks = None if table is None or steps is not None or step_us else step_marks(table)
    if table is None or marks is None:
        table = _rows(monitor, "series", device)
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
        marks, how, unit = time_steps(times, len(found["allocated"]), monitor, steps, step_us)
    peaks = found.pop("peaks", found["allocated"])
    most = highs(peaks, marks)
    used = found.get("device_used")
    by_step = {name: floors(values, marks) for name, values in found.items()}
    if used is not None:
        # Read less often than the others: the median of a step, not an old reading.
        edges = pairwise([*marks, len(used)])
        by_step["device_used"] = array("Q", (sorted(used[a:b])[(b - a) // 2] for a, b in edges))
    return _observed(by_step, how, capacity, step_us, most, unit)


def _rows(monitor: Any, name: str, device: int | None) -> Any:
    """A monitor's table of one device."""
    of_device = getattr(monitor, f"device_{name}", None)
    if of_device is not None:
        return of_device(device)
    return getattr(monitor, name, None)


def _of_snapshots(
    shots: tuple[Snapshot, ...], step_us: float | None, capacity: int | None, device: int | None
) -> Observed:
    """Each snapshot as a step."""
    numbers_of = [shot.device(device) for shot in shots]
    names = {shot.device_name(one) for shot, one in zip(shots, numbers_of, strict=True)}
    if len(names) > 1:
        told = ", ".join(sorted(names))
        raise ValueError(
            f"the snapshots are of different devices ({told}): they have no common trend"
        )
    for shot, one in zip(shots, numbers_of, strict=True):
        if not end_is_known(shot, one):
            name = shot.origin or "one of the snapshots"
            raise ValueError(
                f"{name} lists no segments, so what it holds at its end is not known: leave it "
                "out, or give it alone"
            )
    stats = [shot.memory_stats(one) for shot, one in zip(shots, numbers_of, strict=True)]

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
        # What the trace leaves in use ends with its last event in the replay alone.
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
        make_stuck=lambda: _stuck(snap, timeline, edges),
        peaks=highs(timeline.allocated[:end], starts),
        time_us=[times[at] for at in starts] if timed else (),
        step_us=step_us,
        capacity=capacity,
        timeline=timeline,
        starts=edges,
        is_named=unit == "step" and (is_given or is_named(timeline)),
        device=shown_device(snap, timeline.device),
        failed=failed,
    )


def _waiting(active: array[int], allocated: array[int]) -> array[int]:
    """Freed bytes that wait for a stream, where each step has fewest active ones."""
    pairs = zip(active, allocated, strict=True)
    return array("Q", (max(one - held, 0) for one, held in pairs))


def _failed_for_good(timeline: Timeline) -> int | None:
    """The event after the last out-of-memory error, if nothing was allocated after it.

    What the error frees on its way out would hide what had piled up.
    """
    if not timeline.facts["oom_count"]:
        return None
    actions = cast("list[str]", timeline.events["action"])
    last = len(actions) - actions[::-1].index("oom")
    return None if "alloc" in actions[last:] else last


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
