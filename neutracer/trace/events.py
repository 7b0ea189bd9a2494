# SPDX-License-Identifier: Apache-2.0
"""Trace events as a table, the devices of a snapshot, and the window of events to read."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from neutracer._native import core
from neutracer.arguments import number, number_pair, whole_number
from neutracer.render.report import PlainRow
from neutracer.trace.flaws import WINDOW, Caveat
from neutracer.trace.stacks import NONE, ForwardTexts, Stacks
from neutracer.trace.table import Column, Table, columns_of, constant
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- Devices -----------------------------------------------------------------------------

#: The device numbers that reports use for CPU memory and for pinned host memory.
CPU, PINNED = -1, -2


def chosen_device(devices: tuple[int, ...], traced: int, device: int | None) -> int:
    """The device, or the only one.

    Args:
        devices: The devices with segments or events.
        traced: The number of traces, empty ones included.
        device: Its number; None is the only one.
    """
    if device is None:
        if len(devices) > 1:
            which = "say which with device= (--device)"
            raise ValueError(f"the snapshot has several devices, {which}: {devices}")
        return devices[0] if devices else 0
    if isinstance(device, str):
        raise TypeError(f"a snapshot's device must be its number, like 0, not {device!r}")
    device = whole_number("a snapshot's device", device, "its number, as 0")
    if device not in devices and not 0 <= device < traced:
        others = f"only {devices}" if devices else "nor any other"
        raise ValueError(f"the snapshot has no device {device}, {others}")
    return device


class _Placed(Protocol):
    @property
    def is_cpu(self) -> bool: ...

    @property
    def is_pinned(self) -> bool: ...


def shown_device(snap: _Placed, number: int) -> int:
    """The device number that reports use for device `number` of a snapshot."""
    return PINNED if snap.is_pinned else CPU if snap.is_cpu else number


def cache_emptier(device: int) -> str:
    """The call that releases the cached memory of a report's device."""
    if device == PINNED:
        return "torch.accelerator.empty_host_cache()"
    return "torch.cuda.empty_cache()"


def device_name(device: int) -> str:
    """The name of a report's device: "cuda:0", "cpu" or "pinned host memory"."""
    return {CPU: "cpu", PINNED: "pinned host memory"}.get(device, f"cuda:{device}")


# ---- Events ------------------------------------------------------------------------------

_STAGES = ("START", "END")


def event_table(
    c: Mapping[str, core.Column],
    traces: Sequence[tuple[int, int]],
    actions: Sequence[str],
    strings: Sequence[str],
    stacks: Stacks,
) -> Table:
    """The table of a snapshot's events, device by device.

    Args:
        c: The core's columns, without those of keys missing in the file.
        traces: By device, the first row and the number of its events.
    """
    count = len(c["action"])

    def optional(name: str, code: str, absent: int) -> Callable[[], Any]:
        return (lambda: c[name]) if name in c else constant(code, absent, count)

    columns = {
        "device": Column(lambda: _devices(traces)),
        "action": Column(lambda: c["action"], names=actions),
        **columns_of(c, "addr", "size", "stream"),
        "time_us": Column(optional("time_us", "q", 0)),
        "device_free": Column(optional("device_free", "Q", 0)),
        "pool_first": Column(optional("pool_first", "Q", 0)),
        "pool_second": Column(optional("pool_second", "Q", 0)),
        **{
            name: Column(optional(name, "I", NONE), strings, NONE)
            for name in ("compile_context", "user_metadata", "internal_metadata")
        },
        "forward_frames": Column(
            optional("forward", "I", NONE), ForwardTexts(stacks) if "forward" in c else (), NONE
        ),
        "stack": Column(lambda: c["stack"], null=NONE),
    }
    return Table("event", columns, count, stacks, {"pool_id": ("pool_first", "pool_second")})


def _devices(traces: Sequence[tuple[int, int]]) -> Any:
    devices = constant("i", 0, 0)()
    for device, (_, events) in enumerate(traces):
        devices += constant("i", device, events)()
    return devices


def annotation_table(c: Mapping[str, core.Column], strings: Sequence[str], stacks: Stacks) -> Table:
    """The table of a snapshot's annotations; they have no stacks."""
    columns = {
        "stage": Column(lambda: c["stage"], names=_STAGES),
        "name": Column(lambda: c["name"], names=strings, null=NONE),
        **columns_of(c, "device", "time_us"),
    }
    return Table("annotation", columns, len(c["stage"]), stacks)


def trace_flag(settings: Mapping[str, Any], key: str, device: int) -> bool | None:
    """A flag of a device's trace in the allocator's settings, or None.

    It is stored in a dict by the device's number, in a list, or as one value for all devices.
    """
    flag = settings.get(key)
    if isinstance(flag, dict):
        flag = flag.get(str(device))
    elif isinstance(flag, list):
        flag = flag[device] if device < len(flag) else None
    return None if flag is None else bool(flag)


def event_range(events: range | slice | tuple[int, int], count: int) -> tuple[int, int]:
    """The first event of a range and the one after its last."""
    if isinstance(events, slice):
        events = range(*events.indices(count))
    if isinstance(events, range):
        if events.step != 1:
            raise ValueError("a range of events must have a step of 1")
        events = (events.start, max(events.start, events.stop))
    first, end = number_pair("events", events, whole=True)
    if not 0 <= first <= end <= count:
        raise ValueError(f"events {first} to {end} are not among the {count} there are")
    return first, end


# ---- Window ------------------------------------------------------------------------------

#: Requested events: a range, a slice, or the first one and the one after the last.
EventWindow = range | slice | tuple[int, int]

#: Requested seconds since the file's first event; None is the beginning or the end.
SecondWindow = tuple[float | None, float | None]


@dataclass(frozen=True, repr=False)
class WindowPart(PlainRow):
    """The part of one device's trace that was read.

    Attributes:
        device: The device.
        first: The number of its first event in the whole trace.
        end: The number of the event after its last.
        events: The number of events in the whole trace.
        unknown_count: Live blocks allocated before the recording began, whose stacks are unknown.
        unknown_bytes: Their bytes.
        slack_bytes: The most by which blocks from before the recording may be larger than known.
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
    """The part of a longer trace that `load(events=)` read.

    Attributes:
        parts: One per device.
    """

    parts: tuple[WindowPart, ...]

    def __str__(self) -> str:
        if len(self.parts) == 1:
            return str(self.parts[0])
        return "; ".join(f"cuda:{part.device} {part}" for part in self.parts)

    def reaches_end(self, device: int) -> bool:
        """Whether it includes the last event of a device's trace."""
        return any(part.device == device and part.end == part.events for part in self.parts)

    def caveat(self, origin: str) -> Caveat:
        """The caveat: a part of a trace, and the gaps in its facts."""
        name = os.path.basename(origin) or "the trace"
        notes = ["Events are numbered from the part's first one, event 0."]
        for part in self.parts:
            notes += _unknown(part)
        message = f"only a part of {name}: {self}"
        return Caveat(WINDOW, "info", message, tuple(notes))


def _unknown(part: WindowPart) -> list[str]:
    """Notes on blocks from before a part."""
    notes = []
    if part.unknown_count:
        blocks = format_count(part.unknown_count, "block")
        were = "was" if part.unknown_count == 1 else "were"
        notes.append(
            f"{blocks} ({format_bytes(part.unknown_bytes)}) {were} allocated before the recording "
            "began, without a known stack."
        )
    if part.slack_bytes:
        bound = format_bytes(part.slack_bytes)
        notes.append(f"Blocks from before the recording may be up to {bound} larger.")
    return notes


class _Whole(Protocol):
    @property
    def devices(self) -> tuple[int, ...]: ...
    def device(self, device: int | None) -> int: ...
    def trace_length(self, device: int | None = None) -> int: ...
    def timeline(self, device: int | None = None) -> Any: ...


def window_of(
    whole: _Whole, events: EventWindow | None, seconds: SecondWindow | None, device: int | None
) -> Window:
    """The part that `load` is asked for; errors are those of `load`."""
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
    """One device's part, with the blocks of unknown stack that precede it."""
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
    the events' non-decreasing times in microseconds."""
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
        return 0 if seconds < 0 else len(times)
    return bisect_left(times, at)
