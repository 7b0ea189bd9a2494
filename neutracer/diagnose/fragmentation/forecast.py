# SPDX-License-Identifier: Apache-2.0
"""When the largest hole will be smaller than the largest request, where holes keep shrinking.

Before each step's largest request the trace is asked how large a request the reserved memory
could serve. Where that falls, by the test that `leak_trend` uses (`nt_trend`: Theil-Sen and
Mann-Kendall, with the series' memory taken off), the line is drawn on to the request.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutracer._native import core
from neutracer.diagnose.settings.advice import Replayed
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes

__all__ = ["ShrinkingHoles", "forecast_findings", "forecast_of"]

# A fall is believed below this p-value, as a growth that is besides a program's live bytes is.
_ALPHA = 0.0025
_ROOT_HALF = math.sqrt(0.5)

# The core's codes of segment_alloc, segment_free, segment_map and segment_unmap.
_RESERVING = (3, 4, 5, 6)

# What may be a walk, by the bound of its autocorrelation, is held against how far a walk comes:
# by so many standard deviations one in a thousand does.
_REMEMBERS = 0.5
_WALK = 3.1

# With fewer steps nothing is said.
_FEWEST = 12

# Steps that are looked at: each costs a layout of the whole device.
_MOST_STEPS = 48

# Longer traces are left alone, so that a report costs little more than its file.
_MOST_EVENTS = 300_000

# The request is the usual one of so many steps, the last.
_RECENT = 8

# Nobody can tell what happens after so many times the steps that were seen.
_HORIZON = 10

# A fall of less than this share of the hole over all steps matters to nobody.
_MATERIAL = 0.02


@dataclass(frozen=True)
class ShrinkingHoles:
    """Holes that shrink step after step.

    Attributes:
        step: The step at which the largest hole falls below the request, at this rate.
        between: The first and the last step that the 95 % interval of the rate allows; the last
            is None where that may be never.
        steps: How many steps the trace has.
        hole_bytes: The largest hole now.
        request_bytes: The largest request of a step, as usual of late.
        bytes_per_step: By how much the hole shrinks, a step.
        event: The last of these requests.
    """

    step: int
    between: tuple[int, int | None]
    steps: int
    hole_bytes: int
    request_bytes: int
    bytes_per_step: float
    event: int = -1


def forecast_of(
    holes: Sequence[int], request: int, stride: int = 1, event: int = -1
) -> ShrinkingHoles | None:
    """When a series of holes, one every `stride` steps, falls below a request.

    Args:
        holes: Bytes of the largest hole before each step's largest request.
        request: Bytes.
        stride: Steps from one value to the next.
        event: The request that it is about, for the result.

    Returns:
        The forecast; None where no fall is proved, it is too small to matter or ends by itself,
        or the request does not fit by now.
    """
    if len(holes) < _FEWEST:
        return None
    top = max(holes)
    found: dict[str, Any] = core.find_trend(array("Q", (top - hole for hole in holes)))
    slope, low, high = found["slope"], found["low"], found["high"]
    looked = len(holes) - found["warmup"]
    # `last` is the middle of the last five.
    now = top - found["last"] - 2 * slope
    room = now - request
    # A walk gets as far by chance in so many steps; what forgets where it was does not.
    chance = _WALK * found["noise"] * math.sqrt(looked)
    walks = found["memory"] >= _REMEMBERS and slope * looked <= chance
    small = slope * looked <= _MATERIAL * top
    ends = found["is_levelling"] or found["teeth"] >= 2 or _comes_back(found, slope * looked)
    if not found["grows"] or low <= 0 or walks or small or ends or room <= 0:
        return None

    def after(rate: float) -> int:
        return (len(holes) - 1) * stride + int(room / rate * stride) + 1

    if after(slope) > _HORIZON * len(holes) * stride:
        return None
    return ShrinkingHoles(
        step=after(slope),
        between=(after(max(high, slope)), after(low)),
        steps=len(holes) * stride,
        hole_bytes=round(now),
        request_bytes=request,
        bytes_per_step=slope / stride,
        event=event,
    )


def _comes_back(found: dict[str, Any], lost: float) -> bool:
    """Whether jumps gave back more than half of what was lost over all steps.

    A hole that came back early and fell further since is below where it came back from: what
    once ended the fall does so no longer.
    """
    return bool(-sum(nbytes for _, nbytes in found["jumps"] if nbytes < 0) > lost / 2)


def _shrinking(snap: Snapshot, timeline: Timeline) -> ShrinkingHoles | None:
    """The forecast of a device's trace by its steps; None where there is none to make.

    Args:
        snap: The snapshot.
        timeline: Of the device.
    """
    steps = timeline.steps
    if len(steps) < _FEWEST or len(timeline) > _MOST_EVENTS or snap.partial is not None:
        return None
    stride = -(-len(steps) // _MOST_STEPS)
    action, size = timeline.events.codes("action"), timeline.events.codes("size")
    largest = []
    for step in steps[len(steps) % stride :]:
        made = [event for event in range(step.first, step.end) if action[event] == 0]
        if made:
            largest.append(max(made, key=lambda event: size[event]))
    asked = largest[-_RECENT:]
    if not asked:
        return None
    request = sorted(size[event] for event in asked)[(len(asked) - 1) // 2]
    event = next(event for event in reversed(asked) if size[event] >= request)
    stream = timeline.events[event].stream
    holes = [_room(snap, timeline, before, stream) for before in largest[::stride]]
    return forecast_of(holes, request, stride, event)


def _room(snap: Snapshot, timeline: Timeline, event: int, stream: int) -> int:
    """The largest request that the default pool could serve a stream before an event."""
    # A segment that was made for the request is none of the holes it could have had.
    action = timeline.events.codes("action")
    while event > 0 and action[event - 1] in _RESERVING:
        event -= 1
    layout = timeline.native.layout(event - 1)
    groups = core.Fragment(snap.native, layout, timeline.device).groups()
    mine = [one for one in groups if one["pool"] == (0, 0) and one["stream"] == stream]
    return max((int(one["largest_request"]) for one in mine), default=0)


def forecast_findings(
    snap: Snapshot, timeline: Timeline, replayed: Replayed
) -> tuple[Finding, ...]:
    """When the largest hole will no longer serve the largest request, where that is coming."""
    found = _shrinking(snap, timeline)
    if found is None:
        return ()
    place = place_of(timeline.events[found.event].stack)
    first, last = found.between
    span = f"at step {first:,} at the earliest"
    if last is not None:
        span = f"between steps {first:,} and {last:,}" if first != last else f"at step {first:,}"
    message = (
        f"at this trend the largest hole falls below the largest request at step {found.step:,}"
    )
    notes = (
        Note(
            f"The largest hole shrinks by {format_bytes(round(found.bytes_per_step))} a step: "
            f"{format_bytes(found.hole_bytes)} after {found.steps:,} steps; "
            f"{format_bytes(found.request_bytes)} are asked for by",
            place,
        ),
        Note(f"With 95 % confidence {span}; from then on each such request needs new memory."),
    )
    advice = (Note(replayed.advice),) if replayed.is_possible else ()
    return (
        Finding(
            "fragmentation_forecast",
            Severity.MODERATE,
            found.request_bytes,
            message,
            notes,
            advice,
            found.event,
        ),
    )
