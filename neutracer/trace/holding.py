# SPDX-License-Identifier: Apache-2.0
"""What a timeline answers with: moments, who holds bytes, what was allocated where."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from neutracer import units
from neutracer.render.escape import sentence
from neutracer.render.row import PlainRow
from neutracer.trace.places import UNKNOWN_PLACE, place_of
from neutracer.trace.stacks import Frame

__all__ = ["NO_STACK", "Churn", "Holder", "Key", "Moment", "merged"]

#: What is called so where no stack was recorded.
NO_STACK = UNKNOWN_PLACE.function

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, repr=False)
class Holder:
    """Who holds bytes at one moment.

    Attributes:
        bytes: The sum of its blocks' sizes, as the allocator rounded them.
        requested_bytes: The sum of the requested sizes.
        count: How many allocations that is.
        key: Its name; by "stack" the frames, innermost first, and empty where no stack was
            recorded.
        share: Its share of all allocated bytes at that moment.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/frag_default.pickle").timeline()
        >>> tl.holders(limit=1)[0]
        <Holder 415 MiB (70.2 %) in 60 blocks: frag (train.py:155)>
    """

    bytes: int
    requested_bytes: int
    count: int
    key: str | tuple[Frame, ...]
    share: float

    def to_dict(self) -> dict[str, Any]:
        """The holder as plain data; frames are dicts with PyTorch's own keys."""
        key = self.key if isinstance(self.key, str) else [frame._asdict() for frame in self.key]
        numbers = {"bytes": self.bytes, "requested_bytes": self.requested_bytes}
        return {"key": key, **numbers, "count": self.count, "share": self.share}

    def __repr__(self) -> str:
        key = self.key
        if not isinstance(key, str):
            at = f"{place_of(key)}, {units.format_count(len(key), 'frame')}" if key else ""
            key = at or NO_STACK
        held = f"{units.format_bytes(self.bytes)} ({units.format_share(self.share)})"
        return f"<Holder {held} in {units.format_count(self.count, 'block')}: {sentence(key)}>"


def merged(
    rows: Iterable[tuple[Key, int, int, int]],
) -> list[tuple[Key, int, int, int]]:
    """Rows of a key, bytes, requested bytes and a count, one a key, the most bytes first."""
    sums: dict[Key, list[int]] = {}
    for key, nbytes, requested, count in rows:
        held = sums.setdefault(key, [0, 0, 0])
        held[0] += nbytes
        held[1] += requested
        held[2] += count
    ranked = [(key, held[0], held[1], held[2]) for key, held in sums.items()]
    return sorted(ranked, key=lambda row: -row[1])


@dataclass(frozen=True)
class Moment(PlainRow):
    """When a series had a value.

    Attributes:
        event: The event after which it did, counted within the device's trace; -1 is
            before the first.
        time_us: When that was, in microseconds since the epoch; None where unknown.
        bytes: The value.
    """

    event: int
    time_us: int | None
    bytes: int


@dataclass(frozen=True)
class Churn(PlainRow):
    """What one stack allocated over the whole trace.

    Attributes:
        stack: Where, innermost first; empty where none was recorded.
        count: Allocations made in the trace.
        bytes: Their sizes added up.
        peak_bytes: The most that it held at once.
        peak_event: When that was.
    """

    stack: tuple[Frame, ...]
    count: int
    bytes: int
    peak_bytes: int
    peak_event: int
