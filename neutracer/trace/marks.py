# SPDX-License-Identifier: Apache-2.0
"""The marks that `phase()` leaves among a recording's annotations, read as turns of phases."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from neutracer.render.report import PlainRow

#: The name of a phase's annotation begins with this.
PHASE_MARK = "neutracer.phase: "

#: The key of allocator_settings for readings of a device's memory in use: by device, times in
#: microseconds since the epoch, each followed by bytes.
DEVICE_USE = "trace_device_in_use"

# Phases of one name that are open at once have numbers, so that each end has its beginning.
_NUMBERED = re.compile(r" @\d+$")


def mark_name(name: str, number: int) -> str:
    """The annotation's name of the phase `name`, of which `number` others are open.

    Example:
        >>> mark_name("sleep", 0), mark_name("sleep", 1), mark_name("sleep @1", 0)
        ('neutracer.phase: sleep', 'neutracer.phase: sleep @1', 'neutracer.phase: sleep @1 @0')
    """
    suffix = f" @{number}" if number or _NUMBERED.search(name) else ""
    return f"{PHASE_MARK}{name}{suffix}"


def phase_of_mark(name: str) -> str | None:
    """The phase of an annotation, or None for a range of the program.

    Example:
        >>> phase_of_mark("neutracer.phase: sleep @1"), phase_of_mark("forward")
        ('sleep', None)
    """
    if not name.startswith(PHASE_MARK):
        return None
    return _NUMBERED.sub("", name[len(PHASE_MARK) :])


@dataclass(frozen=True)
class Turn(PlainRow):
    """One turn of a phase in a device's trace: its events from `first` up to, but not with, `end`.

    Attributes:
        phase: The phase's name.
        number: 0 for its first turn in the file.
        first, end: Its events.
        begin_us, end_us: Microseconds since the epoch. Without a mark in the file, those of the
            trace's first and last event.
        has_begun: False if the file has no mark of its beginning.
        has_ended: False if the file has no mark of its end.
    """

    phase: str
    number: int
    first: int
    end: int
    begin_us: int
    end_us: int
    has_begun: bool = True
    has_ended: bool = True

    def __str__(self) -> str:
        return f"{self.phase}[{self.number}]"


class _Marked(Protocol):
    @property
    def annotations(self) -> Any: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    def device(self, device: int | None) -> int: ...
    def timeline(self, device: int | None = None) -> Any: ...


def turns_of(snap: _Marked, device: int | None = None) -> tuple[Turn, ...]:
    """The turns of all phases that a snapshot has marks of, by their beginnings.

    Marks hold for all devices. A trace without times has no turns.
    """
    spans = sorted(_spans(snap.annotations), key=lambda span: (span[1] or 0, -(span[2] or 0)))
    times: Sequence[int] = snap.timeline(device).time_us if spans else ()
    if not len(times) or not times[0]:
        return ()
    counts: dict[str, int] = {}
    found = []
    for phase, begin, end in spans:
        if end is not None and end < times[0]:
            continue
        number = counts[phase] = counts.get(phase, -1) + 1
        first = 0 if begin is None else bisect_left(times, begin)
        last = len(times) if end is None else bisect_left(times, end)
        begin_us = times[0] if begin is None else begin
        end_us = times[-1] if end is None else end
        known = (begin is not None, end is not None)
        found.append(Turn(phase, number, first, max(first, last), begin_us, end_us, *known))
    return tuple(found)


def _spans(annotations: Any) -> Iterator[tuple[str, int | None, int | None]]:
    """(phase, beginning, end) of each turn; None: the file has no such mark."""
    begun: dict[str, int] = {}
    rows = zip(annotations["stage"], annotations["name"], annotations["time_us"], strict=True)
    marks = [(time_us, stage, name) for stage, name, time_us in rows if name is not None]
    for time_us, stage, name in sorted(marks, key=lambda mark: mark[0]):
        phase = phase_of_mark(name)
        if phase is None:
            continue
        if stage == "START":
            begun[name] = time_us
        else:
            yield phase, begun.pop(name, None), time_us
    for name, time_us in begun.items():
        yield phase_of_mark(name) or "", time_us, None


def nested_turns(turns: Iterable[Turn]) -> Iterator[tuple[Turn, int]]:
    """Turns, by their beginnings, with how many others each is inside of.

    Example:
        >>> pair = Turn("a", 0, 0, 9, 10, 90), Turn("b", 0, 2, 4, 20, 40)
        >>> [depth for _, depth in nested_turns(pair)]
        [0, 1]
    """
    open_ends: list[int] = []
    for turn in turns:
        open_ends = [end for end in open_ends if end > turn.begin_us]
        yield turn, len(open_ends)
        open_ends.append(turn.end_us)


def chosen_turns(turns: Iterable[Turn], wanted: str) -> tuple[Turn, ...]:
    """The turns of a phase, "sleep", or one of them, "sleep[2]"; "sleep[-1]" is its last."""
    turns = tuple(turns)
    found = tuple(turn for turn in turns if turn.phase == wanted)
    one = re.fullmatch(r"(.+)\[(-?\d+)\]", wanted, re.DOTALL)
    if not found and one is not None:
        named = [turn for turn in turns if turn.phase == one[1]]
        number = int(one[2])
        found = tuple(named[number : number + 1 or None] if number < len(named) else ())
    if not found:
        names = sorted({turn.phase for turn in turns})
        there = f"its phases are {', '.join(names)}" if names else "it has no marks of phases"
        raise ValueError(f"the file has no phase {wanted!r}: {there}")
    return found


def device_use(snap: _Marked, device: int) -> list[tuple[int, int]]:
    """(time_us, bytes) of each reading of the device's memory in use, by time."""
    by_device = snap.settings.get(DEVICE_USE)
    numbers = by_device.get(str(device)) if isinstance(by_device, Mapping) else None
    if not isinstance(numbers, list) or not all(type(one) is int for one in numbers):
        return []
    return sorted(zip(numbers[::2], numbers[1::2], strict=False))
