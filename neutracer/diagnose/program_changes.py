# SPDX-License-Identifier: Apache-2.0
"""A recorded program made into another one: freed earlier, emptied, or with another batch."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from neutracer._native import core
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.table import NONE, Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["Change", "change_program"]

# What is as large whatever the batch is.
_FIXED = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True)
class Change:
    """A program that is not the recorded one.

    Attributes:
        program: What it asks of the allocator.
        notes: What was changed, and what was assumed, a sentence each.
    """

    program: core.Program
    notes: tuple[str, ...]


def change_program(
    snap: Snapshot,
    timeline: Timeline,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
) -> Change | None:
    """The program with changes in it; None where there are none.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        empty_cache_after: Events after which the program calls empty_cache().
        free_at_once: Whose blocks are freed as soon as they are made: functions as
            "forward", or lines as "train.py:155"; any frame of a stack counts.
        batch: How many times as large the batch is.

    Raises:
        ValueError: There is no such event, nobody of that name allocated anything, or the
            batch is not above 0.
    """
    calls = sorted(set(empty_cache_after))
    notes, sizes, freed = [], None, None
    if calls and not 0 <= calls[0] <= calls[-1] < len(timeline):
        raise ValueError(f"no event {calls[0]} or {calls[-1]}; the trace has {len(timeline)}")
    if calls:
        notes.append(f"Changed: {format_count(len(calls), 'more call')} of empty_cache().")
    chosen = tuple(free_at_once)
    if chosen:
        freed, note = _freed(snap, timeline, chosen)
        notes.append(note)
    if batch != 1.0:
        sizes, note = _scaled(timeline, batch)
        notes.append(note)
    if not notes:
        return None
    return Change(timeline.program.edit(sizes, freed, array("i", calls)), tuple(notes))


def _is_named(frame: Frame, name: str) -> bool:
    if frame.name == name:
        return True
    place = f"{frame.filename}:{frame.line}"
    return place == name or place.endswith(f"/{name}")


def _freed(snap: Snapshot, timeline: Timeline, names: tuple[str, ...]) -> tuple[bytes, str]:
    """A flag for each event: whether it makes a block of one of these."""
    events, flags = timeline.events, bytearray(len(timeline))
    known: dict[int, frozenset[str]] = {}
    counts, nbytes = dict.fromkeys(names, 0), 0
    stacks, sizes = events.codes("stack"), events.codes("size")
    for event, action in enumerate(events["action"]):
        stack = stacks[event]
        if action != "alloc" or stack == NONE:
            continue
        if stack not in known:
            frames = snap.stacks[stack]
            known[stack] = frozenset(n for n in names if any(_is_named(f, n) for f in frames))
        for name in known[stack]:
            counts[name] += 1
        if known[stack]:
            flags[event] = 1
            nbytes += sizes[event]
    for name, count in counts.items():
        if not count:
            raise ValueError(f"{name!r} allocated nothing in this trace")
    blocks = format_count(sum(flags), "block")
    return bytes(flags), (
        f"Changed: {blocks} of {', '.join(names)} ({format_bytes(nbytes)} in all) are freed as "
        "soon as they are made; when they were used last is not recorded."
    )


def _scaled(timeline: Timeline, batch: float) -> tuple[array[int], str]:
    """The sizes of requests with a batch so many times as large."""
    if not (math.isfinite(batch) and batch > 0):
        raise ValueError(f"a batch is scaled by a number above 0, not {batch}")
    rows, events = timeline.allocations, timeline.events
    sizes = array("Q", events.codes("size"))
    for event, action in enumerate(events["action"]):
        if action == "oom":
            sizes[event] = max(round(sizes[event] * batch), 1)
    fixed = total = 0
    made, category = rows.codes("alloc_event"), rows["category"]
    for row, event in enumerate(made):
        if event < 0:
            continue
        total += sizes[event]
        if category[row] in _FIXED:
            fixed += sizes[event]
        else:
            sizes[event] = max(round(sizes[event] * batch), 1)
    share = format_share(fixed / total if total else 0.0)
    return sizes, (
        f"Changed: the batch is {batch:g} times as large. Assumed: parameters, gradients and "
        f"optimizer state ({share} of the bytes asked for) and what was there before the trace "
        "keep their sizes, all else is in proportion to the batch."
    )
