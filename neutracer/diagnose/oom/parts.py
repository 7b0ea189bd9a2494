# SPDX-License-Identifier: Apache-2.0
"""What the explanation of an out-of-memory error is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from neutracer.diagnose.oom.budget import Failure
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.growth import Growth, growth_of
from neutracer.diagnose.oom.phases import Phase
from neutracer.diagnose.oom.room import Room
from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding
from neutracer.trace.places import grouped
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.table import Frame, Row
from neutracer.trace.timeline import Timeline

__all__ = ["KINDS", "Case", "Cause", "Holding", "Verdict", "least_worth"]

#: The kinds of verdicts, in the order in which the main one is chosen.
KINDS = (
    "unreasonable_request",
    "fragmentation",
    "cycle_garbage",
    "other_pool",
    "non_torch",
    "leak",
    "process_cap",
    "capacity",
)


@dataclass(frozen=True)
class Verdict:
    """One cause of an out-of-memory error.

    Attributes:
        kind: One of `KINDS`.
        bytes: What its removal would have given; of a lack of capacity what was missing.
        evidence: What proves it, and who.
        advice: The next step.
        message: The verdict in one line.
        suffices: Whether its removal alone would have let the request succeed.
    """

    kind: str
    bytes: int
    evidence: tuple[Note, ...]
    advice: tuple[Note, ...]
    message: str = ""
    suffices: bool = False

    def finding(self, is_main: bool, event: int | None) -> Finding:
        """The verdict as a finding of a report."""
        severity = Severity.SERIOUS if self.suffices else Severity.MODERATE
        if is_main:
            severity = Severity.SEVERE
        return Finding(
            self.kind, severity, self.bytes, self.message, self.evidence, self.advice, event
        )


@dataclass(frozen=True)
class Holding:
    """What one line of the program held.

    Attributes:
        function: The function's name.
        filename: The file's name without its folders.
        line: The line.
        bytes: Of its live blocks.
        count: How many blocks that is.
        share: Of all allocated bytes then.
    """

    function: str
    filename: str
    line: int
    bytes: int
    count: int
    share: float

    @property
    def place(self) -> Place:
        """The line."""
        return Place(self.function, self.filename, self.line)


@dataclass(frozen=True)
class Case:
    """All that a verdict is given on.

    Attributes:
        snap: The snapshot.
        timeline: The device's trace; None where it is empty.
        room: The layout when the request failed.
        facts: What is known beside the snapshot.
        phase: The phase it happened in.
        place: The line that asked.
        thorough: Whether to take the time for replays, categories and growth.
        moment: The event of the trace whose state is looked at; None: the end.
        stack: The stack of the request, innermost first.
    """

    snap: Snapshot
    timeline: Timeline | None
    room: Room
    facts: OomFacts
    phase: Phase
    place: Place
    thorough: bool
    moment: int | None
    stack: tuple[Frame, ...]

    @property
    def failure(self) -> Failure:
        """The request."""
        return self.room.failure

    @property
    def at(self) -> int:
        """The event of the trace whose state is looked at."""
        if self.moment is not None:
            return self.moment
        return 0 if self.timeline is None else len(self.timeline) - 1

    @cached_property
    def growth(self) -> Growth | None:
        """What was piled up step after step; None where it is not known."""
        if self.timeline is None or not self.thorough:
            return None
        return growth_of(self.snap, self.timeline, self.at)

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Who held the allocated bytes, by line, the most first."""
        if self.timeline is not None:
            held = self.timeline.holders(self.at, limit=None)
            by_line = grouped((holder.key, holder.bytes, holder.count) for holder in held)
        else:
            room = self.room
            blocks = (b for b in room.blocks if b.state == "active_allocated" and self._is_here(b))
            by_line = grouped((block.stack, block.size, 1) for block in blocks)
        total = sum(nbytes for _, nbytes, _ in by_line)
        return tuple(
            Holding(p.function, p.filename, p.line, nbytes, count, nbytes / total if total else 0.0)
            for p, nbytes, count in by_line
        )

    def _is_here(self, block: Row) -> bool:
        return bool(self.room.segments[block.segment].device == self.room.device)

    @cached_property
    def categories(self) -> dict[str, int]:
        """The allocated bytes by category, the most first; empty without a trace."""
        if self.timeline is None or not self.thorough:
            return {}
        held = self.timeline.holders(self.at, by="category", limit=None)
        return {holder.key[0].name: holder.bytes for holder in held}


Cause = Callable[[Case], "Verdict | None"]


def least_worth(size: int) -> int:
    """The fewest bytes worth reporting for a request of this size."""
    return max(size // 20, 1 << 20)
