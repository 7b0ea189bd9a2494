# SPDX-License-Identifier: Apache-2.0
"""What a rehearsed snapshot was made under, as it is kept in the snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding
from neutracer.units import format_bytes, format_count, parse_bytes

__all__ = ["KEY", "Rehearsed", "rehearsed_of"]

#: The key of allocator_settings under which it lies in a file.
KEY = "rehearsed"

_VERSION = 1

# Notes on a page; all of them are in `Rehearsed.notes`.
_MOST_NOTES = 6

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
        return room >= self.ranges.get("needed_bytes", (0, self.needed_bytes))[1]

    def findings(self) -> tuple[Finding, ...]:
        """What comes first in every report: that this is no recording, and what it rests on."""
        verdict = "it fits" if self.fits() else "it does not fit"
        message = f"{self}: {verdict}, it needs {self._needs()}"
        notes = [f"It stopped early: {self.stopped}."] if self.stopped else []
        for name, (low, high) in self.ranges.items():
            if name != "needed_bytes":
                words = name.removesuffix("_bytes").replace("_", " ")
                notes.append(f"{words}: {format_bytes(low)} to {format_bytes(high)}.")
        if self.operators:
            named = sorted(self.operators, key=lambda name: -self.operators[name][1])
            more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            told = ", ".join(named[:_MOST_NAMED])
            notes.append(f"Ranges come most of what the kernels of {told}{more} take.")
        if self.outside:
            told = ", ".join(f"{name} {_range(sizes)}" for name, sizes in self.outside.items())
            notes.append(f"Outside of PyTorch's figures, about: {told}.")
        notes += self.notes[:_MOST_NOTES]
        if len(self.notes) > _MOST_NOTES:
            notes.append(f"and {format_count(len(self.notes) - _MOST_NOTES, 'more note')}.")
        severity = Severity.INFO if self.fits() else Severity.SEVERE
        return (Finding(KEY, severity, 0, message, tuple(Note(text) for text in notes)),)

    def _needs(self) -> str:
        """What the program gets by with, as a range where it is one."""
        return _range(self.ranges.get("needed_bytes", (self.needed_bytes, self.needed_bytes)))

    def to_text(self) -> str:
        """As it is kept in a file."""
        return json.dumps({"version": _VERSION, **asdict(self)})


def _range(sizes: tuple[int, int]) -> str:
    least, most = (format_bytes(size) for size in sizes)
    return least if least == most else f"{least} to {most}"


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
