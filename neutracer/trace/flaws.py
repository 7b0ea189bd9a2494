# SPDX-License-Identifier: Apache-2.0
"""Caveats on a file: its flaws, and the assumptions of a rehearsal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from neutracer.render.report import PlainRow
from neutracer.trace.beside import Beside
from neutracer.units import format_bytes, format_count, parse_bytes

# ---- Flaws -------------------------------------------------------------------------------

# The core checks once, on reading a file and on replaying a trace, and leaves out or repairs
# what it finds, so no figure depends on it.

_PARTIAL, _BROKEN, _BESIDE = "partial_file", "broken_file", "broken_sidecar"

#: The kinds of the caveats of a part of a trace, and of a run that has not happened.
WINDOW, REHEARSED = "window", "rehearsed"

#: The kinds of all caveats.
CAVEAT_KINDS = (_PARTIAL, _BROKEN, _BESIDE, WINDOW, REHEARSED)

#: The kind of the flaw of a device that has a trace and no segments.
SEGMENTS_MISSING = "segments_missing"

# What follows from segments that the file does not list.
_OF_SEGMENTS = ("live_set", "segment", "unreserved")

# By the core's number: the word for programs; what is counted, in the singular and the
# plural; and the rest of the sentence. "{bytes}" is how much memory it is about.
_WORDS = (
    (
        *("block_outside", "block lies", "blocks lie"),
        "outside the segment that lists it ({bytes}): left out of every figure",
    ),
    (
        *("block_order", "segment lists", "segments list"),
        "blocks that are not in the order of their addresses: sorted",
    ),
    (
        *("unfilled", "segment is", "segments are"),
        "not filled by blocks: {bytes} of which nothing is known count as unused",
    ),
    (
        *("requested", "block says", "blocks say"),
        "that more was requested than it has ({bytes} more): its size counts",
    ),
    (
        *("segment_overlap", "segment lies", "segments lie"),
        "where the device has another ({bytes}): left out of every figure, with its blocks",
    ),
    (
        *("segment_shared", "segment lies", "segments lie"),
        "at an address that another device has too ({bytes})",
    ),
    (
        *("sums", "segment has", "segments have"),
        "sums that are not those of its blocks: the blocks count",
    ),
    (
        *("expandable", "segment is", "segments are"),
        "expandable by the file and not by the trace, or the other way round: the trace counts",
    ),
    (
        *("time", "event has", "events have"),
        "a time before that of the event before it, or one that no clock shows: no times are used",
    ),
    (
        *("time_missing", "event has", "events have"),
        "no time: that of the event before it counts",
    ),
    (
        *("free", "event frees", "events free"),
        "what is not allocated, or was freed already: left out",
    ),
    (
        *("alloc", "allocation is", "allocations are"),
        "where a block still is ({bytes})",
    ),
    (
        *("unreserved", "allocation is", "allocations are"),
        "where no segment is reserved ({bytes})",
    ),
    (
        *("segment_free", "segment goes", "segments go"),
        "back to the device with blocks in it ({bytes})",
    ),
    (
        *("segment", "segment event fits", "segment events fit"),
        "nothing before it",
    ),
    (
        *("live_set", "block is", "blocks are"),
        "left by the trace and not in the segments, or the other way round ({bytes})",
    ),
)


_NO_SEGMENTS = (
    "No segments are listed, though the trace leaves {count} in use ({bytes}): what was there "
    "before the trace counts nowhere"
)
_READ_WITH_CARE = "the file says what no allocator can have done, so read its figures with care"
_ONLY_HISTORY = "the file has a history and no segments: its figures are the history's"

#: The same for a program in another language.
FLAW_RULES = {
    "words": _WORDS,
    "of_segments": _OF_SEGMENTS,
    "no_segments": _NO_SEGMENTS,
    "read_with_care": _READ_WITH_CARE,
    "only_history": _ONLY_HISTORY,
}


@dataclass(frozen=True)
class Flaw(PlainRow):
    """One thing that can't be as a snapshot says.

    Attributes:
        kind: A stable word for programs: "block_outside", "block_order", "unfilled",
            "requested", "segment_overlap", "segment_shared", "sums", "expandable", "time",
            "time_missing", "free", "alloc", "unreserved", "segment_free", "segment",
            "live_set" or "segments_missing".
        device: The device it is on.
        count: How many blocks, segments or events.
        bytes: How much memory that is; 0 where it is not about memory.
        message: It in words, with what was done about it.
    """

    kind: str
    device: int
    count: int
    bytes: int
    message: str


@dataclass(frozen=True)
class Caveat:
    """A limit on every figure of a snapshot: it breaks off, is a part, can't be right.

    Attributes:
        kind: One of `CAVEAT_KINDS`.
        severity: "info", "moderate" or "severe".
        message: The caveat in one line.
        details: Sentences on it.
    """

    kind: str
    severity: str
    message: str
    details: tuple[str, ...] = ()


def flaws_of(notes: Iterable[tuple[int, int, int, int]]) -> tuple[Flaw, ...]:
    """The core's notes (kind, device, count, bytes) in words."""
    found = []
    for kind, device, count, nbytes in notes:
        word, one, more, rest = _WORDS[kind]
        text = f"{format_count(count, one, more)} {rest.format(bytes=format_bytes(nbytes))}"
        found.append(Flaw(word, device, count, nbytes, text))
    return tuple(found)


class _Replayed(Protocol):
    """What is asked of a timeline."""

    device: int

    @property
    def native(self) -> Any: ...


def trace_flaws(timeline: _Replayed, devices: Iterable[object]) -> tuple[Flaw, ...]:
    """The flaws of a trace.

    Where the file lists no segments and the trace leaves something in use, that is told in
    place of what follows from it.

    Args:
        timeline: The trace, replayed.
        devices: That of each segment of the file.
    """
    found = flaws_of(timeline.native.broken())
    left = next((one for one in found if one.kind == "live_set"), None)
    if left is None or timeline.device in devices:
        return found
    text = _NO_SEGMENTS.format(
        count=format_count(left.count, "block"), bytes=format_bytes(left.bytes)
    )
    told = Flaw(SEGMENTS_MISSING, left.device, left.count, left.bytes, text)
    return (told, *(one for one in found if one.kind not in _OF_SEGMENTS))


class _Window(Protocol):
    def caveat(self, origin: str) -> Caveat: ...


class _Rehearsed(Protocol):
    def caveat(self) -> Caveat: ...


class _Read(Protocol):
    """What is asked of a snapshot."""

    origin: str
    beside: Beside

    @property
    def partial(self) -> str | None: ...
    @property
    def flaws(self) -> tuple[Flaw, ...]: ...
    @property
    def rehearsed(self) -> _Rehearsed | None: ...
    @property
    def window(self) -> _Window | None: ...


def end_is_known(snap: _Read, device: int) -> bool:
    """Whether a snapshot says what a device holds at its end; a history without segments
    does not."""
    return not any(flaw.kind == SEGMENTS_MISSING and flaw.device == device for flaw in snap.flaws)


def caveats_of(*snaps: _Read, device: int | None = None) -> tuple[Caveat, ...]:
    """The caveats of snapshots; none of a sound recording.

    Args:
        snaps: The snapshots.
        device: Only flaws of this device; None is all.
    """
    found = [_of_partial(snap, snap.partial) for snap in snaps if snap.partial]
    flaws = [flaw for snap in snaps for flaw in snap.flaws]
    chosen = [flaw for flaw in flaws if device is None or flaw.device == device]
    if chosen:
        is_history = all(flaw.kind == SEGMENTS_MISSING for flaw in chosen)
        message = _ONLY_HISTORY if is_history else _READ_WITH_CARE
        details = tuple(f"{flaw.message}." for flaw in chosen)
        found.append(Caveat(_BROKEN, "severe", message, details))
    found += [_of_sidecar(snap) for snap in snaps if snap.beside.damage]
    found += [snap.window.caveat(snap.origin) for snap in snaps if snap.window]
    marks = (snap.rehearsed for snap in snaps)
    return (*found, *(mark.caveat() for mark in marks if mark is not None))


def _of_partial(snap: _Read, why: str) -> Caveat:
    name = os.path.basename(snap.origin) or "the file"
    message = f"only a part of {name} could be read, and all figures are of that part"
    return Caveat(_PARTIAL, "severe", message, (f"{why[:1].upper()}{why[1:]}.",))


def _of_sidecar(snap: _Read) -> Caveat:
    name = os.path.basename(snap.origin) or "the file"
    message = f"the JSON beside {name} can't be read: what it says of the process counts nowhere"
    return Caveat(_BESIDE, "info", message, tuple(f"{why}." for why in snap.beside.damage))


# ---- Rehearsed ---------------------------------------------------------------------------

#: The key of allocator_settings under which it lies in a file.
KEY = REHEARSED

_VERSION = 1

# Notes on a page, and files that are named in one; all of them are in `Rehearsed.notes`.
_MOST_NOTES = 6
_MOST_FILES = 12

# The end of a note on a file, of which the page makes one.
_WRITTEN = " would be written."

# Operators that are named, those with the largest ranges first.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Rehearsed:
    """What was assumed of a run that has not happened.

    Attributes:
        device: The card that the run would be on.
        capacity_bytes: What of its memory PyTorch's allocator could have.
        needed_bytes: The least that the program gets by with, which the allocator would have
            to have: with less it runs out of memory.
        steps: How many steps were made.
        settings: The text for PYTORCH_CUDA_ALLOC_CONF.
        torch: The version of PyTorch that made the steps.
        ranges: By figure ("peak_allocated_bytes", "peak_reserved_bytes", "needed_bytes") the
            least and the most that it can be: what kernels take is in part known only as a range,
            and segments come of the order of requests.
        operators: By operator the least and the most bytes of what its kernels take that is not
            known exactly.
        notes: What was made up, with the line that asked for it.
        stopped: Why the program did not make all of its steps, or "".
        world_size: How many ranks there would be.
        strategy: How the model is spread over them: "ddp", "fsdp2", or None.
        outside: What takes memory of the card outside of PyTorch's allocator ("CUDA's context",
            "NCCL"), with the least and the most bytes; it is in no figure of the snapshot.
    """

    device: str
    capacity_bytes: int
    needed_bytes: int
    steps: int
    settings: str
    torch: str
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    operators: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stopped: str = ""
    world_size: int = 1
    strategy: str | None = None
    outside: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        ranks = f", rank 0 of {self.world_size}" if self.world_size > 1 else ""
        return (
            f"Rehearsed, not recorded: {format_count(self.steps, 'step')} on {self.device}{ranks} "
            f"with {format_bytes(self.capacity_bytes)} for PyTorch"
        )

    def fits(self, capacity: int | str | None = None) -> bool:
        """Whether PyTorch's allocator gets by with so much memory.

        Where what kernels take is known as a range, with the most of it.

        Args:
            capacity: Bytes, or a text like "24GiB"; None is what the card has.

        Example:
            >>> Rehearsed("NVIDIA L4", 22 << 30, 9 << 30, 3, "", "2.11.0").fits("8GiB")
            False
        """
        room = self.capacity_bytes if capacity is None else parse_bytes(capacity)
        return room >= self._needs()[1]

    def caveat(self) -> Caveat:
        """That this is no recording, whether it fits, and what that rests on."""
        least, most = self._needs()
        needs, severity = _range((least, most)), "info"
        told = f"it fits, and needs {needs}"
        if least > self.capacity_bytes:
            told, severity = f"it does not fit: it needs {needs}", "severe"
        elif most > self.capacity_bytes:
            told, severity = f"it may or may not fit: it needs {needs}", "moderate"
        elif self.stopped:
            told = f"until it stopped it needs {needs}"
        notes = [f"It stopped early: {self.stopped.rstrip('.')}."] if self.stopped else []
        notes += [*self._figures(), *self._assumed()]
        return Caveat(REHEARSED, severity, f"{self}: {told}", tuple(notes))

    def _figures(self) -> Iterator[str]:
        """The ranges, and what they come from."""
        for name, (low, high) in self.ranges.items():
            if name != "needed_bytes":
                words = name.removesuffix("_bytes").replace("_", " ")
                yield f"{words}: {format_bytes(low)} to {format_bytes(high)}."
        if self.operators:
            named = sorted(self.operators, key=lambda name: -self.operators[name][1])
            yield f"The ranges come mostly from the kernels of {_listed(named, _MOST_NAMED)}."
        if self.outside:
            told = ", ".join(f"{name} {_range(sizes)}" for name, sizes in self.outside.items())
            yield f"Outside of PyTorch's figures, about: {told}."

    def _assumed(self) -> Iterator[str]:
        """What was made up or left out."""
        files = [note.removesuffix(_WRITTEN) for note in self.notes if note.endswith(_WRITTEN)]
        if files:
            yield f"Not written: {_listed(files, _MOST_FILES)}."
        rest = [note for note in self.notes if not note.endswith(_WRITTEN)]
        yield from rest[:_MOST_NOTES]
        if len(rest) > _MOST_NOTES:
            yield f"and {format_count(len(rest) - _MOST_NOTES, 'more note')}."

    def _needs(self) -> tuple[int, int]:
        """The least and the most that the program gets by with."""
        return self.ranges.get("needed_bytes", (self.needed_bytes, self.needed_bytes))

    def to_text(self) -> str:
        """As it is kept in a file."""
        return json.dumps({"version": _VERSION, **asdict(self)})


def _range(sizes: tuple[int, int]) -> str:
    least, most = (format_bytes(size) for size in sizes)
    return least if least == most else f"{least} to {most}"


def _listed(names: list[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def rehearsed_of(settings: Mapping[str, Any]) -> Rehearsed | None:
    """What a file's settings say of it; None of a recording.

    What neutracer can't have written counts as nothing known of it.
    """
    text = settings.get(KEY)
    if not isinstance(text, str):
        return None
    try:
        plain = json.loads(text)
        return Rehearsed(
            device=str(plain["device"]),
            capacity_bytes=int(plain["capacity_bytes"]),
            needed_bytes=int(plain["needed_bytes"]),
            steps=int(plain["steps"]),
            settings=str(plain["settings"]),
            torch=str(plain["torch"]),
            ranges=_ranges(plain["ranges"]),
            operators=_ranges(plain["operators"]),
            notes=tuple(map(str, plain["notes"])),
            stopped=str(plain["stopped"]),
            world_size=int(plain["world_size"]),
            strategy=None if plain["strategy"] is None else str(plain["strategy"]),
            outside=_ranges(plain.get("outside", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return Rehearsed("an unknown card", 0, 0, 0, "", "")


def _ranges(plain: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {str(name): (int(low), int(high)) for name, (low, high) in plain.items()}
