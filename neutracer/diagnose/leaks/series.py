# SPDX-License-Identifier: Apache-2.0
"""Series of one value a step: the input of a trend, and what it finds there."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neutracer._native import core
from neutracer.pickling import FieldsOnly
from neutracer.trace.timeline import Timeline

__all__ = ["Observed", "Trend", "floors", "highs", "numbers", "windows"]

# A series without steps is cut into so many equal windows at most, each of so many values.
_WINDOWS = 64
_WINDOW_VALUES = 8

# The normal distribution has so much beyond a deviate: 1 / sqrt(2).
_ROOT_HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class Trend:
    """What one series does.

    Attributes:
        name: The series: "allocated", "reserved", "non_torch", "stuck".
        warmup: Steps set aside at the beginning.
        steps: Steps that were looked at, after these.
        slope: Growth in bytes a step (Theil-Sen).
        interval: Its 95 % interval.
        p_value: Of Mann-Kendall's one-sided test, which knows no random walks.
        grows: It rises by that test, and its medians and floors rise to the end
            (`nt_trend.h`).
        level: The median, in bytes.
        last: The median of the last five steps, in bytes.
        memory: The autocorrelation that was reckoned with: an upper bound of it.
        is_levelling: It grows, ever more slowly.
        is_in_doubt: Rising by the test, but not distinguishable from a random walk.
        teeth: How often a gradual rise ended in a fall; 0 or at least 2.
        tooth: The median fall in bytes.
        tooth_slope: The median rise in bytes a step between two falls.
        bursts: How often it rose and came back within a few steps.
        jumps: (step, bytes) of each change of the level at once.
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
    bursts: int
    jumps: tuple[tuple[int, float], ...]

    @property
    def growth(self) -> float:
        """Bytes grown over the steps that were looked at."""
        return self.slope * max(self.steps - 1, 0)

    @property
    def is_sawtooth(self) -> bool:
        """Whether gradual rises ended in falls."""
        return self.teeth >= 2


def trend_of(name: str, values: array[int], unit: str = "step") -> Trend:
    """The trend of a series with at least one value, of unsigned 64-bit numbers."""
    found: dict[str, Any] = core.find_trend(values, True, unit == "window")
    return Trend(
        name=name,
        warmup=min(found["warmup"], len(values)),
        steps=len(values) - min(found["warmup"], len(values)),
        slope=found["slope"],
        interval=(found["low"], found["high"]),
        p_value=math.erfc(found["score"] * _ROOT_HALF) / 2,
        grows=found["grows"],
        level=found["level"],
        last=found["last"],
        memory=found["memory"],
        is_levelling=found["is_levelling"],
        is_in_doubt=found["is_in_doubt"],
        teeth=found["teeth"] if found["teeth"] >= 2 else 0,
        tooth=found["tooth"],
        tooth_slope=found["tooth_slope"],
        bursts=found["bursts"],
        jumps=tuple(found["jumps"]),
    )


@dataclass(frozen=True)
class Observed(FieldsOnly):
    """What is known of a program's memory, step by step.

    Attributes:
        allocated: Live bytes: the least of each step.
        how: What a step is, as a sentence.
        unit: What it is called: "step", "snapshot", "window".
        reserved: Reserved bytes; None where unknown (so below).
        pending: Bytes in freed blocks that wait for a stream.
        non_torch: Used on the device and not PyTorch's reserved bytes.
        make_stuck: Gives the free bytes in segments that something keeps, by step: what
            empty_cache() can't give back. Called only when needed.
        peaks: The most live bytes of each step.
        time_us: When each step began, in microseconds.
        step_us: How long a step takes, where no times are known.
        capacity: Bytes that the process can have.
        timeline: The trace behind it.
        starts: Where in the trace the steps begin, and last the end of the last one.
        is_named: Whether the program says what its steps are, by its texts, its optimizer or
            its backward passes, or whoever asks did; else they were found by what recurs.
        device: The device as reports have it: -1 is the CPU, -2 the host's pinned memory.
        failed: The event after an out-of-memory error that ended the program; what is freed
            from there on was alive to the end. None where there was none.
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
    failed: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The series are what a report needs of it; what they come from stays here.
        return {**super().__getstate__(), "make_stuck": None, "timeline": None}

    @property
    def has_blocks(self) -> bool:
        """Whether blocks stand behind the numbers: a trace's, or those of several snapshots."""
        return self.timeline is not None or self.unit == "snapshot"

    @cached_property
    def live(self) -> Trend:
        """The trend of the live bytes."""
        return trend_of("allocated", self.allocated, self.unit)

    @cached_property
    def cached(self) -> Trend | None:
        """The trend of the reserved bytes."""
        return None if self.reserved is None else trend_of("reserved", self.reserved, self.unit)

    @cached_property
    def waiting(self) -> Trend | None:
        """The trend of the freed bytes that wait for a stream."""
        return None if self.pending is None else trend_of("pending", self.pending, self.unit)

    @cached_property
    def outside(self) -> Trend | None:
        """The trend of what is not PyTorch's."""
        return None if self.non_torch is None else trend_of("non_torch", self.non_torch, self.unit)

    @cached_property
    def stuck(self) -> Trend | None:
        """The trend of the free bytes that can't be given back."""
        values = None if self.make_stuck is None else self.make_stuck()
        if values is None:
            return None
        # They may be fewer than the steps: one value for several of these.
        steps = len(self.allocated) // len(values)
        found = trend_of("stuck", values)
        low, high = found.interval
        return replace(found, slope=found.slope / steps, interval=(low / steps, high / steps))

    def duration_us(self) -> float | None:
        """How long a step takes: the median."""
        times = [b - a for a, b in zip(self.time_us, self.time_us[1:], strict=False) if b > a]
        return float(sorted(times)[len(times) // 2]) if times else self.step_us


def numbers(values: object, what: str = "a series") -> array[int]:
    """Bytes as unsigned 64-bit numbers.

    Args:
        values: A sequence of numbers, or a buffer of them.
        what: What it is called where it is wrong.

    Raises:
        TypeError: It holds something else.
        ValueError: A value is negative, not finite, or above 2**63.
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


def windows(count: int) -> list[int]:
    """Where equal windows begin in a series of `count` values, none short of eight; all of
    them are as long but the first, which may be a little longer. Fewer values than eight
    are one window."""
    number = min(_WINDOWS, count // _WINDOW_VALUES) or 1
    width = count // number
    return [0, *(count - width * (number - k) for k in range(1, number))]
