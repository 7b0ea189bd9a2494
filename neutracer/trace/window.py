# SPDX-License-Identifier: Apache-2.0
"""A part of a trace: which events, what lived before them, and what can't be known of it."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from neutracer.arguments import number
from neutracer.render.row import PlainRow
from neutracer.trace.events import event_range
from neutracer.trace.flaws import WINDOW, Caveat
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["EventWindow", "SecondWindow", "Window", "WindowPart", "window_of"]

#: Which events are asked for: a range, a slice, or the first one and the one after the last.
EventWindow = range | slice | tuple[int, int]

#: Which seconds since the file's first event; None is its beginning, or its end.
SecondWindow = tuple[float | None, float | None]


@dataclass(frozen=True, repr=False)
class WindowPart(PlainRow):
    """The part of one device's trace that was read.

    Attributes:
        device: The device.
        first: The number that the first event has in the whole trace.
        end: That of the one after the last.
        events: How many events the whole trace has.
        unknown_count: Blocks that lived before the part and whose stack nobody knows, because
            they were allocated before the recording began.
        unknown_bytes: Their bytes.
        slack_bytes: By how much blocks from before the recording may be larger than is known.
    """

    device: int
    first: int
    end: int
    events: int
    unknown_count: int = 0
    unknown_bytes: int = 0
    slack_bytes: int = 0

    def __str__(self) -> str:
        if self.end - self.first == 1:
            return f"event {self.first:,} of {self.events:,}"
        return f"events {self.first:,} to {self.end - 1:,} of {self.events:,}"


@dataclass(frozen=True, repr=False)
class Window(PlainRow):
    """What part of a longer trace a snapshot is, as `load(events=)` reads it.

    Attributes:
        parts: One a device.
    """

    parts: tuple[WindowPart, ...]

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return str(self.parts[0])
        return "; ".join(f"cuda:{part.device} {part}" for part in self.parts)

    def reaches_end(self, device: int) -> bool:
        """Whether it has the last event of a device's trace."""
        return any(part.device == device and part.end == part.events for part in self.parts)

    def caveat(self, origin: str) -> Caveat:
        """That this is a part of a trace, and what is not known of it."""
        name = os.path.basename(origin) or "the trace"
        notes = ["Events are counted from the part's first one, which is event 0 here."]
        for part in self.parts:
            notes += _not_known(part)
        message = f"only a part of {name}: {self}"
        return Caveat(WINDOW, "info", message, tuple(notes))


def _not_known(part: WindowPart) -> list[str]:
    """What nobody can know of the blocks from before a part."""
    notes = []
    if part.unknown_count:
        blocks = format_count(part.unknown_count, "block")
        were = "was" if part.unknown_count == 1 else "were"
        notes.append(
            f"{blocks}, {format_bytes(part.unknown_bytes)}, {were} allocated before the recording "
            "began: no stack is known."
        )
    if part.slack_bytes:
        bound = format_bytes(part.slack_bytes)
        notes.append(f"Blocks from before the recording may be up to {bound} larger.")
    return notes


class _Whole(Protocol):
    """What is asked of the whole snapshot."""

    @property
    def devices(self) -> tuple[int, ...]: ...
    def device(self, device: int | None) -> int: ...
    def trace_length(self, device: int | None = None) -> int: ...
    def timeline(self, device: int | None = None) -> Any: ...


def window_of(
    whole: _Whole, events: EventWindow | None, seconds: SecondWindow | None, device: int | None
) -> Window:
    """The part that is asked for, as `load` has it.

    Raises:
        ValueError: It has no events, has gaps, or is not among those there are; there is no such
            device, or the events have no times.
        TypeError: It is neither a range, a slice nor a pair of numbers.
    """
    if events is not None:
        number = whole.device(device)
        return Window((_part_of(whole, number, *_among(events, whole.trace_length(number))),))
    devices = whole.devices if device is None else (whole.device(device),)
    times = [whole.timeline(one).time_us for one in devices]
    begin = min((spans[0] for spans in times if len(spans)), default=0)
    ranges = [_within(seconds or (None, None), spans, begin) for spans in times]
    if all(first == end for first, end in ranges):
        length = max((spans[-1] - begin for spans in times if len(spans)), default=0)
        lasts = format_duration_us(length)
        raise ValueError(f"there are no events in these seconds; the trace lasts {lasts}")
    found = zip(devices, ranges, strict=True)
    return Window(tuple(_part_of(whole, one, first, end) for one, (first, end) in found))


def _part_of(whole: _Whole, device: int, first: int, end: int) -> WindowPart:
    """One device's part, with what nobody can know of what lived before it."""
    timeline = whole.timeline(device)
    blocks = timeline.at(first - 1).blocks
    lost = [row.size for row in blocks if row.state != "inactive" and not row.stack]
    slack = timeline.facts["slack_bound"]
    return WindowPart(device, first, end, len(timeline), len(lost), sum(lost), slack)


def _among(events: EventWindow, count: int) -> tuple[int, int]:
    """The first event and the one after the last, among `count`."""
    first, end = event_range(events, count)
    if first == end:
        asked = f"{events.start}:{events.stop}" if isinstance(events, slice) else f"{events}"
        asked = asked.replace("None", "")
        raise ValueError(f"there are no events {asked}; the trace has {count:,}")
    return first, end


def _within(seconds: SecondWindow, times: Sequence[int], begin: int) -> tuple[int, int]:
    """The first event of a span of seconds since `begin` and the one after its last; `times` are
    those of a device's events, in microseconds, not falling."""
    if isinstance(seconds, (str, bytes)) or not hasattr(seconds, "__len__") or len(seconds) != 2:
        raise TypeError("seconds must be two numbers, from and to")
    low, high = (None if one is None else number("seconds", one) for one in seconds)
    if low != low or high != high:
        raise ValueError("seconds must be two numbers, not nan")
    if low is not None and high is not None and not low <= high:
        raise ValueError(f"seconds {low} to {high} end before they begin")
    if len(times) and not times[-1]:
        raise ValueError("the events of this snapshot have no times: use events=")
    first = 0 if low is None else _first_at(times, begin, low)
    end = len(times) if high is None else _first_at(times, begin, high)
    return first, max(first, end)


def _first_at(times: Sequence[int], begin: int, seconds: float) -> int:
    try:
        at = begin + round(seconds * 1e6)
    except OverflowError:
        # Beyond all times, infinite or not.
        return 0 if seconds < 0 else len(times)
    return bisect_left(times, at)
