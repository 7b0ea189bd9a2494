# SPDX-License-Identifier: Apache-2.0
"""Where a program's steps begin: in a series, in a monitor's readings, in a trace."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from neutracer.diagnose.leaks.series import windows
from neutracer.trace.timeline import Timeline
from neutracer.units import format_count, format_duration_us

__all__ = ["checked_steps", "is_named", "step_marks", "time_steps", "trace_steps"]

_DIGITS = re.compile(r"\d+")


def checked_steps(steps: Sequence[int], count: int, what: str) -> list[int]:
    """Where steps begin among `count` values.

    Raises:
        ValueError: They are not whole numbers, don't rise, or are out of range.
    """
    try:
        starts = [int(step) for step in steps]
    except (TypeError, ValueError, OverflowError):
        raise ValueError("steps= must be whole numbers: where each step begins") from None
    if not starts or any(b <= a for a, b in pairwise(starts)):
        raise ValueError("steps= must be rising numbers, one for each step's beginning")
    if starts[0] < 0 or starts[-1] >= count:
        raise ValueError(f"steps= must begin among the {format_count(count, what)} there are")
    return starts


def step_marks(phases: Any) -> list[int] | None:
    """The phases at which steps begin: those with the commonest label but for a number."""
    labels = _labels(phases)
    patterns = [_DIGITS.sub("#", label) if label else None for label in labels or ()]
    common = Counter(pattern for pattern in patterns if pattern).most_common(1)
    if not common or common[0][1] < 3:
        return None
    return [row for row, pattern in enumerate(patterns) if pattern == common[0][0]]


def time_steps(
    times: Sequence[int],
    count: int,
    monitor: Any,
    steps: Sequence[int] | None,
    step_us: float | None,
) -> tuple[list[int], str, str]:
    """Where steps begin in a series with times, what they are, and what they are called.

    Raises:
        ValueError: The steps given are no times, or none of the series' own.
    """
    if steps is None and not step_us:
        given = [_mark_time(mark) for mark in getattr(monitor, "marks", ())]
        steps = [at for at in given if at is not None] if len(given) >= 3 else None
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
    """The first item at or after each of these times."""
    try:
        return sorted({bisect_left(times, at) for at in steps if at <= times[-1]})
    except TypeError:
        raise ValueError("steps= of a monitor are times in microseconds") from None


def _each_period(times: Sequence[int], step_us: float) -> list[int]:
    """The first item of each period that has one, from the first item's time on."""
    first, length = times[0], max(int(step_us), 1)
    periods = [(time - first) // length for time in times]
    return [0, *(at for at, (a, b) in enumerate(pairwise(periods), 1) if b > a)]


def _mark_time(mark: Any) -> int | None:
    time = getattr(mark, "time_us", mark)
    time = time[0] if isinstance(time, tuple) else time
    return int(time) if isinstance(time, (int, float)) else None


def _labels(phases: Any) -> Any:
    """The column "label" of a mapping or a Table; None where it has none."""
    columns = phases if isinstance(phases, Mapping) else getattr(phases, "columns", ())
    return phases["label"] if "label" in columns else None


def trace_steps(
    timeline: Timeline, steps: Sequence[int] | None, step_us: float | None
) -> tuple[list[int], int, str, str]:
    """Where steps begin, where the last ends, what they are, and what they are called."""
    count = len(timeline)
    if steps is not None:
        starts = checked_steps(steps, count, "event")
        return starts, count, "Steps begin at the events given.", "step"
    if step_us:
        if not timeline.time_us[-1]:
            raise ValueError("the events of this snapshot have no times: step_us can't cut it")
        text = f"A step is {format_duration_us(step_us)} of the trace."
        return _each_period(timeline.time_us, step_us), count, text, "step"
    found = timeline.steps
    if len(found) >= 3:
        return [step.first for step in found], found[-1].end, found.explanation, "step"
    text = "No steps were found: the trace was cut into windows of equally many events."
    return windows(count), count, text, "window"


def is_named(timeline: Timeline) -> bool:
    """Whether a trace's steps are the program's by name, and not only by what recurs."""
    return timeline.steps.how not in ("repetition", "none")
