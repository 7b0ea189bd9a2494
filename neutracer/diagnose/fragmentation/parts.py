# SPDX-License-Identifier: Apache-2.0
"""What a fragmentation report is made of: its bands, pools, segments and holes."""

from __future__ import annotations

from dataclasses import dataclass

from neutracer.render.document import Place, Severity
from neutracer.render.row import PlainRow
from neutracer.trace.layout import unused_share

__all__ = [
    "BANDS",
    "Hole",
    "PoolFragmentation",
    "SegmentFragmentation",
    "band",
    "severity_of",
]

#: The usual bands of the ratio (reserved - allocated) / reserved: their upper ends, and their
#: words; above the last it is "severe".
BANDS = ((0.15, "good"), (0.30, "moderate"), (0.40, "serious"))


def band(ratio: float) -> str:
    """The word for a ratio: good < 0.15 <= moderate < 0.30 <= serious <= 0.40 < severe.

    Example:
        >>> band(0.1), band(0.15), band(0.4), band(0.41)
        ('good', 'moderate', 'serious', 'severe')
    """
    for limit, word in BANDS:
        if ratio < limit or (word == "serious" and ratio == limit):
            return word
    return "severe"


# Unused bytes below this are reported, but alarm nobody.
_SMALL = 64 << 20


def severity_of(ratio: float, nbytes: int) -> Severity:
    """How bad it is that a share of reserved memory is unused: the word of its band.

    Args:
        ratio: The share, (reserved - allocated) / reserved.
        nbytes: The bytes at stake; where they are few, or the band is "good", it is `info`.

    Example:
        >>> str(severity_of(0.35, 1 << 30)), str(severity_of(0.35, 1 << 20))
        ('serious', 'info')
    """
    word = band(ratio)
    return Severity.INFO if word == "good" or nbytes < _SMALL else Severity(word)


@dataclass(frozen=True)
class Hole(PlainRow):
    """A free block between others.

    Attributes:
        address: Where it begins.
        size: Its bytes.
        segment: Its row in the snapshot's `segments`.
        before: Who allocated the block at its lower end; None at the segment's border.
        after: The same at its upper end.
        before_bytes: That block's size, 0 at the border.
        after_bytes: The same at its upper end.
    """

    address: int
    size: int
    segment: int
    before: Place | None
    after: Place | None
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True)
class PoolFragmentation(PlainRow):
    """One pool of one stream. All sizes in bytes.

    Attributes:
        kind: "small" (requests up to 1 MiB) or "large".
        pool: The private pool's id; (0, 0) is the default pool.
        stream: The raw stream.
        segments: How many segments it has.
        holes: How many free blocks.
        reserved_bytes: Taken from the device.
        allocated_bytes: In allocated blocks.
        pending_bytes: Freed, but waiting for another stream.
        requested_bytes: What the program requested in the active blocks.
        reclaimable_bytes: What empty_cache() would give back of it.
        largest_hole: The largest free block.
        largest_request: The largest request that succeeds without asking the device.
    """

    kind: str
    pool: tuple[int, int]
    stream: int
    segments: int
    holes: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    requested_bytes: int
    reclaimable_bytes: int
    largest_hole: int
    largest_request: int

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved; 0 where nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)


@dataclass(frozen=True)
class SegmentFragmentation(PlainRow):
    """One segment. All sizes in bytes.

    Attributes:
        address: Where it begins.
        total_size: Its size.
        free_bytes: In holes.
        holes: How many.
        largest_hole: The largest of them.
        reclaimable_bytes: What empty_cache() would give back of it.
        opened_by: Who made the request that opened it.
        pinned_by: Who allocated the smallest block in it; None if it is all free.
        pinned_bytes: That block's size.
    """

    address: int
    total_size: int
    free_bytes: int
    holes: int
    largest_hole: int
    reclaimable_bytes: int
    opened_by: Place
    pinned_by: Place | None
    pinned_bytes: int
