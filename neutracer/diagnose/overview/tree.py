# SPDX-License-Identifier: Apache-2.0
"""Who led to the memory of a peak: its stacks as one tree, from the program's first line in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neutracer.render.document import Document, Figure, Place, Table
from neutracer.render.report import Report
from neutracer.render.row import PlainRow
from neutracer.trace.devices import device_name, shown_device
from neutracer.trace.origins import Owner, base_name, origin_of
from neutracer.trace.places import UNKNOWN_PLACE, place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame
from neutracer.units import format_bytes, format_count

__all__ = ["Branch", "PeakTreeReport", "peak_tree"]

# A branch with less of the peak is left out, and so is what comes after so many.
_LEAST_SHARE = 0.01
_MOST_BRANCHES = 200


@dataclass(frozen=True)
class Branch(PlainRow):
    """One frame of the tree, with all that was allocated from it on.

    Attributes:
        depth: 0 is the program's first line. Frames of PyTorch and Python are left out, and
            so are those that pass all of their bytes on.
        function, filename, line, package: The frame, as `Place` has it.
        bytes: Of the blocks that were allocated at the peak.
        count: How many blocks that is.
        share: Of the peak.
    """

    depth: int
    function: str
    filename: str
    line: int
    package: str
    bytes: int
    count: int
    share: float


@dataclass(frozen=True, kw_only=True, repr=False)
class PeakTreeReport(Report):
    """What `neutracer report --tree` prints.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        event: The event of the peak of allocated; -1 is before the first.
        peak_bytes: What was allocated then.
        branches: The tree from the top down, a branch before what it called, and of those
            the one with the most bytes first.
        left_out: How many branches with less than a hundredth of the peak are not there.
    """

    schema = "neutracer.peak_tree/1"

    device: int
    event: int
    peak_bytes: int
    branches: tuple[Branch, ...]
    left_out: int

    def document(self) -> Document:
        """The report as a page."""
        rows = tuple(
            (
                Figure.share(one.share),
                Figure.bytes(one.bytes),
                Figure.count(one.count, "block"),
                "│ " * one.depth + str(Place(one.function, one.filename, one.line, one.package)),
            )
            for one in self.branches
        )
        rest = format_count(self.left_out, "more branch", "more branches")
        notes = (f"and {rest}",) if self.left_out else ()
        when = f"event {format_count(self.event)}" if self.event >= 0 else "before the trace"
        facts = (device_name(self.device), format_bytes(self.peak_bytes), when)
        return Document("Peak by caller", facts, (Table("", rows, notes=notes),))


@dataclass
class _Node:
    place: Place
    bytes: int = 0
    count: int = 0
    inner: dict[Place, _Node] = field(default_factory=dict)


def peak_tree(snap: Snapshot, device: int | None = None) -> PeakTreeReport:
    """The stacks of the blocks that were allocated at the peak, as a tree.

    Args:
        snap: The snapshot.
        device: The device; None is the only one.

    Raises:
        ValueError: There is no such device.

    Example:
        >>> import neutracer
        >>> snap = neutracer.load("tests/data/frag_default.pickle")
        >>> [(branch.depth, branch.line) for branch in peak_tree(snap).branches]
        [(0, 166), (1, 155), (1, 159)]
    """
    number = snap.device(device)
    timeline = snap.timeline(number)
    peak = timeline.peak("allocated")
    root = _Node(UNKNOWN_PLACE)
    for holder in timeline.holders(by="stack", limit=None):
        node = root
        frames = holder.key if not isinstance(holder.key, str) else ()
        for place in [*_told(frames)] or [place_of(frames)]:
            node = node.inner.setdefault(place, _Node(place))
            node.bytes += holder.bytes
            node.count += holder.count
    least = int(_LEAST_SHARE * peak.bytes)
    found = list(_branches(root, 0, peak.bytes))
    kept = [one for one in found if one.bytes >= least][:_MOST_BRANCHES]
    return PeakTreeReport(
        device=shown_device(snap, number),
        event=peak.event,
        peak_bytes=peak.bytes,
        branches=tuple(kept),
        left_out=len(found) - len(kept),
    )


def _told(frames: Sequence[Frame]) -> Iterator[Place]:
    """The frames of the program and of libraries, from the outermost in."""
    for frame in reversed(frames):
        origin = origin_of(frame.filename)
        if frame.line > 0 and origin.owner in (Owner.OWN, Owner.LIBRARY):
            package = origin.package if origin.owner is Owner.LIBRARY else ""
            yield Place(frame.name, base_name(frame.filename), frame.line, package)


def _branches(root: _Node, depth: int, total: int) -> Iterator[Branch]:
    """The branches below a node, without frames that only pass all of it on."""
    waiting = [(node, depth) for node in _largest_last(root)]
    while waiting:
        node, level = waiting.pop()
        while len(node.inner) == 1:
            only = next(iter(node.inner.values()))
            if only.bytes != node.bytes:
                break
            node = only
        at, share = node.place, node.bytes / total if total else 0.0
        where = (at.function, at.filename, at.line, at.package)
        yield Branch(level, *where, node.bytes, node.count, share)
        waiting += [(inner, level + 1) for inner in _largest_last(node)]


def _largest_last(node: _Node) -> list[_Node]:
    return sorted(node.inner.values(), key=lambda inner: inner.bytes)
