# SPDX-License-Identifier: Apache-2.0
"""What the explanation of an out-of-memory error is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from neutracer.diagnose.oom.budget import Failure
from neutracer.diagnose.oom.demand import Demand, demand_of, optimizer_demand
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.growth import Growth, growth_of
from neutracer.diagnose.oom.phases import Phase
from neutracer.diagnose.oom.room import Room
from neutracer.diagnose.oom.rounds import Rounds, rounds_before
from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding
from neutracer.trace.places import grouped
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.table import NONE, Frame, Row
from neutracer.trace.timeline import Timeline

__all__ = [
    "ACTIONS",
    "CRUMBS",
    "KINDS",
    "Case",
    "Cause",
    "Holding",
    "Remedy",
    "Verdict",
    "least_worth",
]

#: The kinds of verdicts, in the order in which the main one is chosen.
KINDS = (
    "unreasonable_request",
    "fragmentation",
    "cycle_garbage",
    "other_pool",
    "non_torch",
    "leak",
    "cache_growth",
    "process_cap",
    "capacity",
)


#: What a remedy may be: change allocator settings; let go of what a line keeps; break reference
#: cycles; make the step smaller, checkpoint its activations, run it without autograd; keep less
#: optimizer state; split the model over devices; raise the limit of the process; free what
#: others have of the device; let pools or streams share; correct a shape; free earlier what
#: other streams use.
ACTIONS = (
    "settings",
    "release",
    "break_cycles",
    "smaller_step",
    "checkpoint",
    "no_grad",
    "shard_state",
    "shard",
    "raise_limit",
    "end_others",
    "share_pools",
    "one_stream",
    "shape",
    "wait",
)


#: Less than this share of the reserved memory free inside is what every allocator leaves: the
#: recorded training steps have 1.5 to 4 % at their peaks under expandable segments, the least
#: fragmented way that PyTorch has.
CRUMBS = 0.02

# What was in use before the trace is at most this share of what is in use, for a replay to
# tell of settings that would not have helped.
_MOST_BEFORE = 0.1


@dataclass(frozen=True)
class Remedy:
    """The first advice of a verdict, for a program to act on.

    Attributes:
        action: One of `ACTIONS`.
        value: Of "smaller_step" the share of the step's size that fits, of "raise_limit" the
            share of the device that is needed; None for others.
        setting: The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF takes them; "" for others.
        place: The line to change; None where it is not one line.
        callers: The lines that called it, innermost first: where that one is a helper.
    """

    action: str
    value: float | None = None
    setting: str = ""
    place: Place | None = None
    callers: tuple[Place, ...] = ()


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
        remedy: The first advice as plain data; None where there is none.
        headroom_bytes: What its removal leaves free once the step that failed has ended;
            negative: so much is still missing for that. None where it can't be known.
        headroom_steps: How many steps more the program makes with it removed, at the growth
            seen; None where it can't be known, or where nothing would grow.
        finishes: Whether the program goes on as far as can be seen once it is removed; None
            where the trace does not show what a step needs.
    """

    kind: str
    bytes: int
    evidence: tuple[Note, ...]
    advice: tuple[Note, ...]
    message: str = ""
    suffices: bool = False
    remedy: Remedy | None = None
    headroom_bytes: int | None = None
    headroom_steps: int | None = None
    finishes: bool | None = None

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
    """What one place in the program held.

    Attributes:
        function: The function's name.
        filename: The file's name without its folders.
        line: The line.
        bytes: Of its live blocks.
        count: How many blocks that is.
        share: Of all allocated bytes then.
        package: The library that the file belongs to; empty for the program's own.
        caller: The program's own line that led there, where the file is a library's.
    """

    function: str
    filename: str
    line: int
    bytes: int
    count: int
    share: float
    package: str = ""
    caller: str = ""

    @property
    def place(self) -> Place:
        """The place."""
        return Place(self.function, self.filename, self.line, self.package, self.caller)


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
        thorough: Whether to take the time for replays that decide nothing.
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
    def rounds(self) -> Rounds | None:
        """The steps up to the failure; None where there are too few."""
        return None if self.timeline is None else rounds_before(self.timeline, self.at)

    @cached_property
    def growth(self) -> Growth | None:
        """What was piled up step after step; None where nothing was, or it is not known."""
        if self.timeline is None:
            return None
        return growth_of(self.snap, self.timeline, self.rounds, self.at)

    @cached_property
    def shows_most(self) -> bool:
        """Whether the trace shows how most of what is in use came there: what was there before
        it stays where it is in a replay."""
        if self.timeline is None:
            return False
        rows = self.timeline.allocations
        columns = (rows.codes("size"), rows.codes("alloc_event"), rows.codes("free_event"))
        before = sum(
            size
            for size, made, freed in zip(*columns, strict=True)
            if made < 0 and freed != -2 and not 0 <= freed <= self.at
        )
        return before < _MOST_BEFORE * self.room.allocated

    @property
    def asks_once(self) -> bool:
        """Whether a line of the program asked, and not a pass that goes on."""
        return role_of(self.stack) is Role.USER

    @property
    def is_first_step(self) -> bool:
        """Whether it failed while training, and no step had ended by then."""
        trains = self.phase.name in ("forward", "backward", "optimizer")
        return trains and (self.demand is None or not self.demand.steps)

    @property
    def gives_settings(self) -> int:
        """The best that settings can do: all that is free inside but the crumbs."""
        return max(self.room.own_free - int(CRUMBS * self.room.reserved), 0)

    @cached_property
    def still_grows(self) -> bool:
        """Whether it failed in a step like those in which memory piled up; else something
        else came after them."""
        event = self.failure.event
        if self.growth is None or self.timeline is None or event is None:
            return False
        stacks = self.timeline.events.codes("stack")
        asks = stacks[event]
        return asks == NONE or asks in stacks[: self.growth.rounds.begins[-1]]

    @cached_property
    def garbage_made(self) -> list[tuple[Place, int, int]]:
        """The lines that made the garbage whose addresses are known: bytes and blocks."""
        wanted = set(self.facts.garbage_addresses)
        addresses = self.room.blocks.codes("address") if wanted else ()
        rows = (self.room.blocks[row] for row, at in enumerate(addresses) if at in wanted)
        return grouped((block.stack, block.size, 1) for block in rows)

    @cached_property
    def growth_is_garbage(self) -> bool:
        """Whether most of what piled up is what garbage holds.

        Of garbage of one shape one example's addresses are known: where one of the lines that
        grow made such, and garbage holds about as much as grew, it is that.
        """
        growth, held = self.growth, self.facts.garbage_bytes or 0
        if growth is None or 2 * held < growth.bytes:
            return False
        lines = {place for place, _, _ in self.garbage_made}
        return any(one.place in lines for one in growth.growers)

    @property
    def replays(self) -> bool:
        """Whether settings are replayed: with what grows, the first verdict doesn't depend on
        them."""
        return self.thorough or self.growth is None or not self.still_grows

    @cached_property
    def demand(self) -> Demand | None:
        """What steps need, and the one that failed; None where it is not known."""
        if self.timeline is None:
            return None
        found = demand_of(self.timeline, self.rounds, self.failure)
        if found is None and self.phase.name == "optimizer":
            live = self.room.allocated
            return optimizer_demand(live, self.failure, self.categories, self.stack)
        return found

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Who held the allocated bytes, by place, the most first."""
        if self.timeline is not None:
            held = self.timeline.held_by_place(self.at)
            by_line = [(place, nbytes, count) for place, nbytes, _, count in held]
        else:
            room = self.room
            blocks = (b for b in room.blocks if b.state == "active_allocated" and self._is_here(b))
            by_line = grouped((block.stack, block.size, 1) for block in blocks)
        total = sum(nbytes for _, nbytes, _ in by_line)
        return tuple(
            Holding(
                place.function,
                place.filename,
                place.line,
                nbytes,
                count,
                nbytes / total if total else 0.0,
                place.package,
                place.caller,
            )
            for place, nbytes, count in by_line
        )

    def _is_here(self, block: Row) -> bool:
        return bool(self.room.segments[block.segment].device == self.room.device)

    @cached_property
    def categories(self) -> dict[str, int]:
        """The allocated bytes by category, the most first; empty without a trace."""
        if self.timeline is None:
            return {}
        held = self.timeline.holders(self.at, by="category", limit=None)
        return {str(holder.key): holder.bytes for holder in held}


Cause = Callable[[Case], "Verdict | None"]


def least_worth(size: int) -> int:
    """The fewest bytes worth reporting for a request of this size."""
    return max(size // 20, 1 << 20)
