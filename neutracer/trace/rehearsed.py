# SPDX-License-Identifier: Apache-2.0
"""What a rehearsed snapshot was made under, as it is kept in the snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from neutracer.trace.flaws import REHEARSED, Caveat
from neutracer.units import format_bytes, format_count, parse_bytes

__all__ = ["KEY", "Rehearsed", "rehearsed_of"]

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
