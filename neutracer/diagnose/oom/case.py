# SPDX-License-Identifier: Apache-2.0
"""A failure with all that its verdicts are given on, each thing looked up once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from neutracer.diagnose.oom.budget import Failure
from neutracer.diagnose.oom.demand import Demand, demand_of, optimizer_demand
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.growth import Growth, growth_of
from neutracer.diagnose.oom.parts import Holding, Verdict
from neutracer.diagnose.oom.phases import Phase
from neutracer.diagnose.oom.room import Room
from neutracer.diagnose.oom.rounds import Rounds, rounds_before
from neutracer.render.document import Place
from neutracer.trace.places import grouped
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE, Frame
from neutracer.trace.table import Row
from neutracer.trace.timeline import Timeline

__all__ = ["CRUMBS", "Case", "Cause", "least_worth"]

#: Less than this share of the reserved memory free inside is what every allocator leaves: the
#: recorded training steps have 1.5 to 4 % at their peaks under expandable segments, the least
#: fragmented way that PyTorch has.
CRUMBS = 0.02

# What was in use before the trace is at most this share of what is in use, for a replay to
# tell of settings that would not have helped.
_MOST_BEFORE = 0.1


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

    @property
    def is_unknown(self) -> bool:
        """Whether a request is asked about that needs new memory, of a device of which nobody
        said how much it has."""
        budget = self.room.budget
        known = budget.device_free is not None or budget.limit is not None
        return not self.failure.happened and not known and not self.room.holds

    @cached_property
    def rounds(self) -> Rounds | None:
        """The steps up to the failure; None where there are too few."""
        return None if self.timeline is None else rounds_before(self.timeline, self.at)

    @cached_property
    def growth(self) -> Growth | None:
        """What was piled up step after step; None where nothing was, or it is not known."""
        if self.timeline is None:
            return None
        knows_garbage = self.facts.garbage_bytes is not None
        return growth_of(self.snap, self.timeline, self.rounds, self.at, since_fall=knows_garbage)

    @property
    def usable(self) -> int:
        """What the process could have reserved in all."""
        return self.room.budget.usable

    @cached_property
    def live_rows(self) -> tuple[int, ...]:
        """Rows of the trace's allocations that were in use at the event that is looked at."""
        if self.timeline is None:
            return ()
        rows = self.timeline.allocations
        columns = zip(rows.codes("alloc_event"), rows.codes("free_event"), strict=True)
        return tuple(
            row
            for row, (made, freed) in enumerate(columns)
            if made <= self.at and (freed == -1 or freed > self.at)
        )

    @cached_property
    def shows_most(self) -> bool:
        """Whether the trace shows how most of what is in use came there: what was there before
        it stays where it is in a replay."""
        if self.timeline is None:
            return False
        rows = self.timeline.allocations
        sizes, made = rows.codes("size"), rows.codes("alloc_event")
        before = sum(sizes[row] for row in self.live_rows if made[row] < 0)
        return before < _MOST_BEFORE * self.room.allocated

    @cached_property
    def asks_once(self) -> bool:
        """Whether a line of the program asked, and not a pass or a loop that goes on."""
        return role_of(self.stack) is Role.USER and not self._asks_again

    @property
    def _asks_again(self) -> bool:
        """Whether the line that asked holds others that it made in the same step."""
        event, timeline, rounds = self.failure.event, self.timeline, self.rounds
        if event is None or timeline is None or rounds is None:
            return False
        stack = timeline.events.codes("stack")[event]
        rows = timeline.allocations
        made, stacks = rows.codes("alloc_event"), rows.codes("stack")
        begin = rounds.begins[-1]
        held = (row for row in self.live_rows if made[row] >= begin)
        return stack != NONE and any(stacks[row] == stack for row in held)

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

    @cached_property
    def modules(self) -> dict[str, int]:
        """The allocated bytes by module, the most first; empty where no module is known."""
        return {} if self.timeline is None else self.timeline.held_by_module(self.at)


Cause = Callable[[Case], "Verdict | None"]


def least_worth(size: int) -> int:
    """The fewest bytes worth reporting for a request of this size."""
    return max(size // 20, 1 << 20)
