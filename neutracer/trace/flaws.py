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

#: The kinds of caveats on a part of a trace, and on a rehearsal.
WINDOW, REHEARSED = "window", "rehearsed"

#: The kinds of all caveats.
CAVEAT_KINDS = (_PARTIAL, _BROKEN, _BESIDE, WINDOW, REHEARSED)

#: The kind of flaw of a device that has a trace and no segments.
SEGMENTS_MISSING = "segments_missing"

# Kinds that follow from missing segments.
_OF_SEGMENTS = ("live_set", "segment", "unreserved")

# By the core's code: the kind; subject and verb in the singular and the plural; and the rest of
# the sentence, in which "{bytes}" is the affected memory.
_WORDS = (
    (
        *("block_outside", "block lies", "blocks lie"),
        "outside the segment that lists it ({bytes}): left out of every figure",
    ),
    (
        *("block_order", "segment lists", "segments list"),
        "blocks that are not sorted by address: sorted now",
    ),
    (
        *("unfilled", "segment is", "segments are"),
        "not filled by blocks: the unaccounted {bytes} count as unused",
    ),
    (
        *("requested", "block has", "blocks have"),
        "a requested size larger than the block ({bytes} more): the block's size is used",
    ),
    (
        *("segment_overlap", "segment overlaps", "segments overlap"),
        "another one on the device ({bytes}): left out of every figure, with its blocks",
    ),
    (
        *("segment_shared", "segment has", "segments have"),
        "an address also used on another device ({bytes})",
    ),
    (
        *("sums", "segment has", "segments have"),
        "sums that differ from those of its blocks: the blocks are used",
    ),
    (
        *("expandable", "segment is", "segments are"),
        "expandable in the segments or in the trace, but not in both: the trace is used",
    ),
    (
        *("time", "event has", "events have"),
        "a time before the previous event's, or an impossible one: no times are used",
    ),
    (
        *("time_missing", "event has", "events have"),
        "no time: that of the previous event is used",
    ),
    (
        *("free", "event frees", "events free"),
        "memory that is not allocated: left out",
    ),
    (
        *("alloc", "allocation overlaps", "allocations overlap"),
        "a live block ({bytes})",
    ),
    (
        *("unreserved", "allocation is", "allocations are"),
        "outside of every segment ({bytes})",
    ),
    (
        *("segment_free", "segment is", "segments are"),
        "released with blocks in it ({bytes})",
    ),
    (
        *("segment", "segment event matches", "segment events match"),
        "no earlier event",
    ),
    (
        *("live_set", "block is", "blocks are"),
        "present in the trace or in the segments, but not in both ({bytes})",
    ),
)


_NO_SEGMENTS = (
    "No segments are listed, though the trace leaves {count} in use ({bytes}): memory from "
    "before the trace is not counted"
)
_READ_WITH_CARE = "the file is inconsistent; treat its figures with caution"
_ONLY_HISTORY = "the file has a history but no segments: its figures are those of the history"

#: These messages by name, for the page.
FLAW_RULES = {
    "words": _WORDS,
    "of_segments": _OF_SEGMENTS,
    "no_segments": _NO_SEGMENTS,
    "read_with_care": _READ_WITH_CARE,
    "only_history": _ONLY_HISTORY,
}


@dataclass(frozen=True)
class Flaw(PlainRow):
    """One inconsistency of a snapshot.

    Attributes:
        kind: A stable word for programs: "block_outside", "block_order", "unfilled",
            "requested", "segment_overlap", "segment_shared", "sums", "expandable", "time",
            "time_missing", "free", "alloc", "unreserved", "segment_free", "segment",
            "live_set" or "segments_missing".
        device: The affected device.
        count: The number of affected blocks, segments or events.
        bytes: The affected memory; 0 if it is not about memory.
        message: The flaw in words, and how it was handled.
    """

    kind: str
    device: int
    count: int
    bytes: int
    message: str


@dataclass(frozen=True)
class Caveat:
    """A limit on the figures of a truncated, partial, inconsistent or rehearsed snapshot."""

    kind: str  # One of `CAVEAT_KINDS`.
    severity: str  # "info", "moderate" or "severe".
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
    device: int

    @property
    def native(self) -> Any: ...


def trace_flaws(timeline: _Replayed, devices: Iterable[object]) -> tuple[Flaw, ...]:
    """The flaws of a trace; missing segments replace the flaws that follow from them.

    Args:
        devices: The device of each segment of the file.
    """
    found = flaws_of(timeline.native.broken())
    left = next((one for one in found if one.kind == "live_set"), None)
    if left is None or timeline.device in devices:
        return found
    text = _NO_SEGMENTS.format(
        count=format_count(left.count, "block"), bytes=format_bytes(left.bytes)
    )
    missing = Flaw(SEGMENTS_MISSING, left.device, left.count, left.bytes, text)
    return (missing, *(one for one in found if one.kind not in _OF_SEGMENTS))


class _Window(Protocol):
    def caveat(self, origin: str) -> Caveat: ...


class _Read(Protocol):
    origin: str
    beside: Beside

    @property
    def partial(self) -> str | None: ...
    @property
    def flaws(self) -> tuple[Flaw, ...]: ...
    @property
    def rehearsed(self) -> Rehearsed | None: ...
    @property
    def window(self) -> _Window | None: ...


def end_is_known(snap: _Read, device: int) -> bool:
    """Whether a snapshot has a device's final state, which a history without segments lacks."""
    return not any(flaw.kind == SEGMENTS_MISSING and flaw.device == device for flaw in snap.flaws)


def caveats_of(*snaps: _Read, device: int | None = None) -> tuple[Caveat, ...]:
    """The caveats of snapshots, with flaws of one device (None: all); none if sound."""
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
    message = f"the JSON beside {name} can't be read: its facts on the process are ignored"
    return Caveat(_BESIDE, "info", message, tuple(f"{why}." for why in snap.beside.damage))


# ---- Rehearsed ---------------------------------------------------------------------------

#: The key in allocator_settings of a file.
KEY = REHEARSED

_VERSION = 1

# The most notes on a page, and file names in one of them; `Rehearsed.notes` has all.
_MOST_NOTES = 6
_MOST_FILES = 12

# The end of a note on a file; a page merges these notes.
_WRITTEN = " would be written."

# The most operators named, largest ranges first.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Rehearsed:
    """The assumptions and results of a rehearsal.

    Attributes:
        device: The assumed card.
        capacity_bytes: Memory of the card available to PyTorch's allocator.
        needed_bytes: The least capacity with which the program does not run out of memory.
        steps: The number of rehearsed steps.
        settings: The text for PYTORCH_CUDA_ALLOC_CONF.
        torch: The version of PyTorch that ran the steps.
        ranges: By figure ("peak_allocated_bytes", "peak_reserved_bytes", "needed_bytes") its
            lowest and highest value: kernels' scratch memory is partly known only as a range.
        operators: By operator, the least and the most bytes of scratch memory that is not known
            exactly.
        notes: Faked values and effects, with the line of the program.
        stopped: Why the program stopped before its last step, or "".
        world_size: The assumed number of ranks.
        strategy: The distribution of the model over them: "ddp", "fsdp2", or None.
        outside: Memory of the card used outside of PyTorch's allocator ("CUDA's context",
            "NCCL"), the least and the most bytes; not part of the snapshot's figures.
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
        """Whether the program fits in a capacity, at the upper end of the range of its needs.

        Args:
            capacity: Bytes, or a text like "24GiB"; None is the card's capacity.

        Example:
            >>> Rehearsed("NVIDIA L4", 22 << 30, 9 << 30, 3, "", "2.11.0").fits("8GiB")
            False
        """
        room = self.capacity_bytes if capacity is None else parse_bytes(capacity)
        return room >= self.needs[1]

    def caveat(self) -> Caveat:
        """The caveat: a rehearsal, whether the program fits, and the assumptions."""
        least, most = self.needs
        needs, severity = _range((least, most)), "info"
        verdict = f"it fits, and needs {needs}"
        if least > self.capacity_bytes:
            verdict, severity = f"it does not fit: it needs {needs}", "severe"
        elif most > self.capacity_bytes:
            verdict, severity = f"it may or may not fit: it needs {needs}", "moderate"
        elif self.stopped:
            verdict = f"it needs {needs} up to the point where it stopped"
        notes = [f"It stopped early: {self.stopped.rstrip('.')}."] if self.stopped else []
        notes += [*self._figures(), *self._assumed()]
        return Caveat(REHEARSED, severity, f"{self}: {verdict}", tuple(notes))

    def _figures(self) -> Iterator[str]:
        """Sentences on what the figures are, on the ranges and their sources."""
        yield "needs: the least memory for PyTorch in which every request succeeds."
        for name, (low, high) in self.ranges.items():
            if name != "needed_bytes":
                words = name.removesuffix("_bytes").replace("_", " ")
                yield f"{words}: {format_bytes(low)} to {format_bytes(high)}."
        if self.operators:
            named = sorted(self.operators, key=lambda name: -self.operators[name][1])
            yield f"The ranges come mostly from the kernels of {_listed(named, _MOST_NAMED)}."
        if self.outside:
            outside = ", ".join(f"{name} {_range(sizes)}" for name, sizes in self.outside.items())
            yield f"In addition, outside of PyTorch's allocator, about: {outside}."

    def _assumed(self) -> Iterator[str]:
        """Sentences on faked values and omitted files."""
        files = [note.removesuffix(_WRITTEN) for note in self.notes if note.endswith(_WRITTEN)]
        if files:
            yield f"Not written: {_listed(files, _MOST_FILES)}."
        rest = [note for note in self.notes if not note.endswith(_WRITTEN)]
        yield from rest[:_MOST_NOTES]
        if len(rest) > _MOST_NOTES:
            yield f"and {format_count(len(rest) - _MOST_NOTES, 'more note')}."

    @property
    def needs(self) -> tuple[int, int]:
        """The least and the most of `needed_bytes`."""
        return self.ranges.get("needed_bytes", (self.needed_bytes, self.needed_bytes))

    def to_text(self) -> str:
        """The JSON stored in a file."""
        return json.dumps({"version": _VERSION, **asdict(self)})


def _range(sizes: tuple[int, int]) -> str:
    least, most = (format_bytes(size) for size in sizes)
    return least if least == most else f"{least} to {most}"


def _listed(names: list[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def rehearsed_of(settings: Mapping[str, Any]) -> Rehearsed | None:
    """The rehearsal stored in a file's settings; None for a recording. Malformed JSON gives one of
    an unknown card."""
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
