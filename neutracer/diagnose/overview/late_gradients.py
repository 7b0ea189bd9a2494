# SPDX-License-Identifier: Apache-2.0
"""Gradients of one step that live through the forward pass of the next."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding
from neutracer.render.row import PlainRow
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.places import place_of
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

__all__ = ["LateGradients", "late_gradients", "late_gradients_finding"]

# Gradients below this are reported, but only for information.
_SMALL = 64 << 20


@dataclass(frozen=True)
class LateGradients(PlainRow):
    """Gradients that were freed between a forward pass and its backward pass.

    Attributes:
        bytes: Of one step: the most that lived through a forward pass.
        count: How many gradients those are.
        passes: Through how many forward passes gradients lived so.
        forward: The first event of the forward pass that `bytes` is of.
        freed: The event that freed the first of them.
        peak_bytes: The most that was allocated between the two.
        place: The line that freed them; None where frees have no stacks.
    """

    bytes: int
    count: int
    passes: int
    forward: int
    freed: int
    peak_bytes: int
    place: Place | None


def late_gradients(timeline: Timeline) -> LateGradients | None:
    """Gradients that were freed too late for the forward pass to use their memory.

    A gradient counts if it was made in one backward pass, was alive when the next forward
    pass first allocated, and was freed before the backward pass after that. One that is still
    there then is being accumulated on purpose.

    Returns:
        What was found, or None.

    Example:
        >>> import neutracer
        >>> snap = neutracer.load("tests/data/train_resnet_late_zero_grad.pickle.xz")
        >>> found = late_gradients(snap.timeline())
        >>> found.count, found.passes
        (161, 4)
    """
    passes = timeline.passes
    if not passes.backward or not passes.forward:
        return None
    by_forward = _late_rows(timeline)
    if not by_forward:
        return None
    sizes, freed = timeline.allocations.codes("size"), timeline.allocations.codes("free_event")
    held = {forward: sum(sizes[row] for row in rows) for forward, rows in by_forward.items()}
    forward = max(held, key=lambda event: held[event])
    events = [freed[row] for row in by_forward[forward]]
    # A free that has only the stack of the allocation does not say who freed.
    known = [event for event in events if passes.stack[event] != NONE]
    places = Counter(place_of(timeline.events[event].stack) for event in known)
    place = places.most_common(1)[0][0] if places else None
    return LateGradients(
        bytes=held[forward],
        count=len(events),
        passes=len(by_forward),
        forward=forward,
        freed=min(events),
        peak_bytes=max(timeline.allocated[forward : min(events)]),
        place=place if place and place.line else None,
    )


def _late_rows(timeline: Timeline) -> dict[int, list[int]]:
    """The rows of such gradients, by the first event of the forward pass they lived through."""
    gradient = CATEGORIES.index("gradient")
    rows, passes = timeline.allocations, timeline.passes
    begins = [begin for begin, _ in passes.backward]
    ends = [end for _, end in passes.backward]
    found: dict[int, list[int]] = {}
    columns = zip(
        timeline.categories.codes, rows.codes("alloc_event"), rows.codes("free_event"), strict=True
    )
    for row, (code, made, freed) in enumerate(columns):
        if code != gradient or freed < 0:
            continue
        number = bisect_left(ends, made + 1)
        if number == len(ends):
            # Made after the last backward pass: by a hook that reduces or copies gradients.
            continue
        end = ends[number] if made >= 0 else 0
        forward = passes.next_forward(end - 1)
        coming = bisect_left(begins, end)
        limit = begins[coming] if coming < len(begins) else None
        if forward is not None and limit is not None and forward < freed <= limit:
            found.setdefault(forward, []).append(row)
    return found


def late_gradients_finding(timeline: Timeline) -> tuple[Finding, ...]:
    """The finding about gradients that live through the next forward pass, if there is one."""
    found = late_gradients(timeline)
    if found is None:
        return ()
    size, peak = format_bytes(found.bytes), format_bytes(found.peak_bytes)
    notes = [
        Note(
            f"{format_count(found.count, 'gradient')} in each of "
            f"{format_count(found.passes, 'forward pass', 'forward passes')}, freed only then"
            f"{' by' if found.place else ''}",
            found.place,
        ),
        Note(f"Up to {peak} were allocated while they waited."),
    ]
    advice = Note(
        "call optimizer.zero_grad(set_to_none=True) before the forward pass, not after it",
        detail="the forward pass then uses their memory",
    )
    return (
        Finding(
            "late_zero_grad",
            Severity.MODERATE if found.bytes >= _SMALL else Severity.INFO,
            found.bytes,
            f"{size} of gradients live through the next forward pass",
            tuple(notes),
            (advice,),
            found.freed,
        ),
    )
