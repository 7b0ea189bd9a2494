# SPDX-License-Identifier: Apache-2.0
"""A recorded program made into another one: freed earlier, emptied, without reference cycles,
or with another batch."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from neutracer.arguments import number, several, whole_number
from neutracer.arguments import text as checked_text
from neutracer.trace.origins import base_name
from neutracer.trace.places import user_frame
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE, Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["Change", "Edits", "change_program"]

#: By event the sizes of requests (None: as recorded) and where blocks end; and the events
#: after which empty_cache() is called.
Edits = tuple["array[int] | None", "array[int]", "array[int]"]

# The core's word for a block that ends as it did.
_AS_IT_WAS = -1

# CPython's functions that free garbage, as C++ stacks name them.
_COLLECTOR = (
    "_PyGC_Collect",
    "_Py_RunGC",
    "PyGC_Collect",
    "gc_collect_generations",
    "gc_collect_internal",
    "gc_collect_main",
    "gc_collect_region",
    "gc_collect_with_callback",
)

# A batch so many times as large fits nowhere.
_MOST_BATCHES = 1 << 20

# What is as large whatever the batch is.
_FIXED = ("parameter", "gradient", "optimizer_state")


@dataclass(frozen=True)
class Change:
    """A program that is not the recorded one.

    Attributes:
        edits: What `core.Program.edit` makes it of: sizes, ends, and calls of empty_cache().
        notes: What was changed, and what was assumed, a sentence each.
        name: What was changed, in a few words: "batch x 2".
    """

    edits: Edits
    notes: tuple[str, ...]
    name: str


def change_program(
    snap: Snapshot,
    timeline: Timeline,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
) -> Change | None:
    """The program with changes in it; None where there are none.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        empty_cache_after: Events after which the program calls empty_cache().
        free_at_once: Whose blocks are freed as soon as they are made: functions as
            "forward", or lines as "train.py:155"; any frame of a stack counts.
        batch: How many times as large the batch is.
        no_cycles: Whether what collections freed is freed earlier; or the functions or
            lines at which collections ran.

    Raises:
        TypeError: One is of another type.
        ValueError: There is no such event, nobody of that name allocated or freed anything,
            the batch is not above 0, or it is unknown what collections freed.
    """
    calls = _events(empty_cache_after, len(timeline))
    notes, names, sizes = [], [], None
    ends = array("i", [_AS_IT_WAS]) * len(timeline)
    if calls:
        names.append(f"{format_count(len(calls), 'more call')} of empty_cache()")
        notes.append(f"Changed: {names[-1]}.")
    chosen = _names("free_at_once", free_at_once, "functions and lines")
    if chosen:
        notes.append(_free_at_once(snap, timeline, chosen, ends))
        names.append(f"{', '.join(chosen)} freed at once")
    places = None
    if not isinstance(no_cycles, bool):
        places = _names("no_cycles", no_cycles, "functions and lines, or a bool")
    if no_cycles is True or places:
        notes.append(_free_cycles(snap, timeline, places, ends))
        names.append("no cycles")
    number("batch", batch, "a number of times the recorded batch")
    if batch != 1.0:
        sizes, note = _scaled(timeline, batch)
        notes.append(note)
        names.append(f"batch x {float(batch):g}")
    if not notes:
        return None
    return Change((sizes, ends, array("i", calls)), tuple(notes), ", ".join(names))


def _events(events: Iterable[int], count: int) -> list[int]:
    """The numbers of events in a trace of this many, each once."""
    name = "empty_cache_after"
    listed = several(name, events, "the numbers of events")
    found = sorted({whole_number(name, event, "the numbers of events") for event in listed})
    for event in found:
        if not 0 <= event < count:
            raise ValueError(f"{name}: there is no event {event}; the trace has {count}")
    return found


def _names(name: str, places: Iterable[str], wanted: str) -> tuple[str, ...]:
    """Functions and lines; one counts as a list of one."""
    listed = [places] if isinstance(places, str) else places
    return tuple(checked_text(name, each) for each in several(name, listed, wanted))


def _is_named(frame: Frame, name: str) -> bool:
    if frame.name == name:
        return True
    place = f"{frame.filename}:{frame.line}"
    return place == name or place.endswith(f"/{name}")


class _Chosen:
    """Which stacks have one of these frames: functions, or lines as "train.py:155"."""

    def __init__(self, snap: Snapshot, names: tuple[str, ...]) -> None:
        self._snap = snap
        self._names = names
        self._known: dict[int, frozenset[str]] = {}

    def __call__(self, stack: int) -> frozenset[str]:
        """The names that a stack has."""
        if stack == NONE:
            return frozenset()
        if stack not in self._known:
            frames = self._snap.stacks[stack]
            found = (n for n in self._names if any(_is_named(f, n) for f in frames))
            self._known[stack] = frozenset(found)
        return self._known[stack]


def _free_at_once(
    snap: Snapshot, timeline: Timeline, names: tuple[str, ...], ends: array[int]
) -> str:
    """Ends each block of one of these as it is made; a note that says so."""
    events, chosen = timeline.events, _Chosen(snap, names)
    counts, nbytes, blocks = dict.fromkeys(names, 0), 0, 0
    stacks, sizes = events.codes("stack"), events.codes("size")
    for event, action in enumerate(events["action"]):
        found = chosen(stacks[event]) if action == "alloc" else ()
        for name in found:
            counts[name] += 1
        if found:
            ends[event] = event
            nbytes += sizes[event]
            blocks += 1
    for name, count in counts.items():
        if not count:
            raise ValueError(f"{name!r} allocated nothing in this trace")
    return (
        f"Changed: {format_count(blocks, 'block')} of {', '.join(names)} "
        f"({format_bytes(nbytes)} in all) are freed as soon as they are made; their last use "
        "is not recorded."
    )


def _free_cycles(
    snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None, ends: array[int]
) -> str:
    """Ends each block that a collection freed when its line makes the next one.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        places: The functions or lines at which collections ran; None is where the collector's
            own frames are.
        ends: By event, where the block that it makes ends; written to.

    Raises:
        ValueError: Nothing is seen to be freed there.
    """
    rows, stacks = timeline.allocations, timeline.events.codes("stack")
    chosen = _Chosen(snap, _COLLECTOR if places is None else places)
    collected, nbytes, earlier = 0, 0, 0
    # By stack: the block that it made last, if a collection freed it, and when.
    latest: dict[int, tuple[int, int]] = {}
    columns = (rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("size"))
    for made, freed, size in sorted(zip(*columns, strict=True)):
        if made < 0:
            continue
        before = latest.pop(stacks[made], None)
        if before is not None and made < before[1]:
            ends[before[0]] = made if ends[before[0]] == _AS_IT_WAS else ends[before[0]]
            earlier += 1
        if freed >= 0 and chosen(stacks[freed]):
            latest[stacks[made]] = (made, freed)
            collected += 1
            nbytes += size
    if not collected:
        raise ValueError(_untold(snap, timeline, places))
    return (
        f"Changed: of {format_count(collected, 'block')} that collections freed "
        f"({format_bytes(nbytes)} in all) {format_count(earlier)} are freed as soon as the line "
        "that made them makes its next one, as if no cycle kept them; their last use is not "
        "recorded."
    )


def _untold(snap: Snapshot, timeline: Timeline, places: tuple[str, ...] | None) -> str:
    """Why it is unknown what collections freed."""
    if places is not None:
        return f"nothing was freed at {', '.join(places)} in this trace"
    text = (
        "what a collection freed can't be told from what the program freed: no stack of this "
        "trace has a frame of Python's collector, as those recorded with stacks='all' have"
    )
    stacks = timeline.events.codes("stack")
    frees = timeline.allocations.codes("free_event")
    counts = Counter(stacks[freed] for freed in frees if freed >= 0)
    for stack, count in counts.most_common(1):
        frame = user_frame(snap.stacks[stack]) if stack != NONE else None
        if frame is not None:
            place = f"{base_name(frame.filename)}:{frame.line}"
            text += (
                "; if collections ran at known lines, name these: most is freed at "
                f"{place} ({format_count(count, 'block')})"
            )
    return text


def _scaled(timeline: Timeline, batch: float) -> tuple[array[int], str]:
    """The sizes of requests with a batch this many times as large."""
    if not 0 < batch <= _MOST_BATCHES:
        raise ValueError(f"batch must be above 0 and at most {_MOST_BATCHES}")
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
    share, times = format_share(fixed / total if total else 0.0), f"{float(batch):g}"
    return sizes, (
        f"Changed: the batch is {times} times as large. Assumed: parameters, gradients and "
        f"optimizer state ({share} of the bytes asked for) and what was there before the trace "
        "keep their sizes, all else is in proportion to the batch."
    )
