# SPDX-License-Identifier: Apache-2.0
"""The context of a failed allocation, computed lazily and cached; `Verdict`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from neutracer._native import core
from neutracer.leak.series import allocated_blocks
from neutracer.oom.facts import UNIT, Budget, Failure, OomFacts
from neutracer.oom.steps import (
    Demand,
    Growth,
    Phase,
    Rounds,
    demand_of,
    growth_of,
    rounds_before,
    steps_before,
)
from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding, PlacedRow, PlainRow
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE, Frame, grouped
from neutracer.trace.table import Table
from neutracer.trace.timeline import Layout, Timeline

# ---- Parts -------------------------------------------------------------------------------

# What an answer of who holds blocks begins with where no name of the program does.
_NO_NAME = ("garbage", "no Python object", "no name leads to it")

# So many times what was in use ever before is a new height: an epoch's noise makes less.
_NEW_HEIGHT = 1.1

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
#: other streams use; give a library another argument.
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
    "configure",
)


@dataclass(frozen=True)
class Remedy(PlainRow):
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
class Verdict(PlainRow):
    """One cause of an out-of-memory error.

    Attributes:
        kind: One of `KINDS`.
        bytes: What its removal would have given; of a lack of capacity what was missing.
        evidence: What proves it, and who.
        advice: The next step.
        message: The verdict in one line.
        suffices: Whether its removal alone would have let the request succeed.
        remedy: The first advice as plain data; None where there is none.
        headroom_bytes: What its removal leaves free at the most that the process then reserves;
            negative: so much is still missing. None where it was not replayed through a round.
        headroom_steps: How many steps more the program makes with it removed, of those that
            were replayed; None where none was.
        finishes: Whether it goes on through all of them; None where that was not replayed.
        frees: Addresses of the blocks that its removal frees.
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
    frees: frozenset[int] = field(default=frozenset(), repr=False, compare=False)

    def finding(self, is_main: bool, event: int | None) -> Finding:
        """The verdict as a finding of a report."""
        severity = Severity.SERIOUS if self.suffices else Severity.MODERATE
        if is_main:
            severity = Severity.SEVERE
        return Finding(
            self.kind, severity, self.bytes, self.message, self.evidence, self.advice, event
        )


@dataclass(frozen=True)
class Holding(PlacedRow):
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


# ---- Room --------------------------------------------------------------------------------

# Codes of the columns `segment_type` and `state`.
_SMALL = 0
_INACTIVE = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A segment as the request saw it."""

    row: int
    is_own: bool  # Whether it is of the request's pool and stream.
    is_kind: bool  # Whether it is of the request's kind, small or large.
    is_default: bool  # Whether it is of the default pool.
    page: int  # Bytes of a page, of an expandable one; 0 for others.
    address: int  # Where it begins.
    size: int  # Its bytes.
    first: int  # Row of its first block.
    end: int  # Row after its last block.


class Room:
    """The layout at a failure, and what would have held the request.

    Attributes:
        failure: The request.
        budget: What the device could still have given.
        segment: Bytes of the segment that it asked the device for.
        segments: The segments then, as `Snapshot.segments` has them.
        blocks: The blocks then, as `Snapshot.blocks` has them.
    """

    def __init__(
        self, snap: Snapshot, device: int, failure: Failure, layout: Layout | None, budget: Budget
    ) -> None:
        self.failure = failure
        self.budget = budget
        self.device = device
        settings = snap.settings_in_force
        self._page = UNIT if failure.is_small else int(settings["large_segment_size"])
        self.segment = failure.segment_size(int(settings["large_segment_size"]))
        self.segments: Table = snap.segments if layout is None else layout.segments
        self.blocks: Table = snap.blocks if layout is None else layout.blocks
        native = None if layout is None else layout.native
        self.fragment = core.Fragment(snap.native, native, device)
        self.is_expandable = bool(settings["expandable_segments"])

    def is_own(self, group: dict[str, Any]) -> bool:
        """Whether a group's free blocks could serve the request: its pool and its stream."""
        same_pool = tuple(group["pool"]) == self.failure.pool
        return same_pool and group["stream"] == self.failure.stream

    @property
    def groups(self) -> Iterator[dict[str, Any]]:
        """The groups of all pools and streams, of which a file can have a great many."""
        return self.fragment.groups()

    @property
    def own(self) -> list[dict[str, Any]]:
        """The groups of the request's pool and stream, small and large."""
        return [group for group in self.groups if self.is_own(group)]

    @property
    def others(self) -> list[dict[str, Any]]:
        """The groups of other pools and streams."""
        return [group for group in self.groups if not self.is_own(group)]

    @property
    def reserved(self) -> int:
        """Bytes taken from the device."""
        return sum(int(group["reserved_bytes"]) for group in self.groups)

    @property
    def allocated(self) -> int:
        """Bytes in allocated blocks."""
        return sum(int(group["allocated_bytes"]) for group in self.groups)

    @cached_property
    def kept_back(self) -> int:
        """Bytes of segments with nothing in them that were not given back before it failed.

        The allocator gives back those of the default pool before a request fails, but for
        while a graph is captured. Else such a segment is of a private pool that was gone
        when the snapshot was made, so that nobody says whose it was.
        """
        return sum(self._kept_back.values())

    @cached_property
    def _kept_back(self) -> dict[int, int]:
        if not self.failure.happened:
            return {}
        places = self._places
        return {
            row: free
            for row, _, free, _, _, pin in self._fragments
            if pin == NONE and places[row].is_default and not places[row].page
        }

    @cached_property
    def _fragments(self) -> list[tuple[int, int, int, int, int, int]]:
        return self.fragment.segments()

    @cached_property
    def _places(self) -> dict[int, _Place]:
        names = (
            *("device", "pool_first", "pool_second", "stream", "segment_type", "is_expandable"),
            *("address", "total_size", "block_first", "block_count"),
        )
        columns = zip(*(self.segments.codes(name) for name in names), strict=True)
        places: dict[int, _Place] = {}
        for row, (device, *pool, stream, kind, growing, at, size, first, count) in enumerate(
            columns
        ):
            if device != self.device:
                continue
            is_small = kind == _SMALL
            places[row] = _Place(
                row=row,
                is_own=tuple(pool) == self.failure.pool and stream == self.failure.stream,
                is_kind=is_small == self.failure.is_small,
                is_default=tuple(pool) == (0, 0),
                page=0 if not growing else UNIT if is_small else self._page,
                address=at,
                size=size,
                first=first,
                end=first + count,
            )
        return places

    @property
    def own_free(self) -> int:
        """Free bytes inside the segments of the request's pool and stream."""
        own = sum(size for row, size in self._kept_back.items() if self._places[row].is_own)
        return sum(free_bytes(group) for group in self.own) - own

    @cached_property
    def own_hole(self) -> int:
        """The largest hole that the request could have used."""
        return self._largest(is_own=True)

    @property
    def own_fits(self) -> bool:
        """Whether a hole of its own would have served the request."""
        failure = self.failure
        if self.own_hole < failure.size:
            return False
        return self.fragment.fits(self.device, failure.pool, failure.stream, failure.size)

    @property
    def other_free(self) -> int:
        """Free bytes inside the segments of other pools and streams."""
        return sum(free_bytes(group) for group in self.groups) - self.own_free

    @cached_property
    def other_hole(self) -> int:
        """The largest hole of the request's kind in another pool or stream."""
        return self._largest(is_own=False)

    def _largest(self, is_own: bool) -> int:
        largest = 0
        for row, _, _, hole, _, _ in self._fragments:
            place = self._places[row]
            own = place.is_own and row not in self._kept_back
            if own is is_own and place.is_kind:
                largest = max(largest, hole)
        return largest

    @cached_property
    def other_whole(self) -> int:
        """Bytes of segments of other pools and streams with nothing in them."""
        return sum(
            free
            for row, _, free, _, _, pin in self._fragments
            if pin == NONE and (row in self._kept_back or not self._places[row].is_own)
        )

    @cached_property
    def holds(self) -> bool:
        """Whether the request would succeed in this very layout."""
        return self.would_hold()

    def would_hold(self, freed: Collection[int] = (), more: int = 0) -> bool:
        """Whether the request would have succeeded with some blocks free and more available.

        The allocator gives wholly free segments back before it fails, of every stream of
        the default pool, and of expandable ones the whole pages between their blocks.
        """
        hole, given_back = self._freed(freed) if freed else self._standing
        if hole >= self.failure.size:
            return True
        return self.budget.headroom + more + given_back >= self._need

    @cached_property
    def _standing(self) -> tuple[int, int]:
        return self._freed(())

    def _freed(self, freed: Collection[int]) -> tuple[int, int]:
        gone = freed if isinstance(freed, (set, frozenset, dict)) else frozenset(freed)
        largest = whole = 0
        for place in self._places.values():
            if place.row in self._kept_back:
                continue
            runs = list(self._runs(place, gone))
            if place.is_own and place.is_kind:
                largest = max(largest, max((size for size, _ in runs), default=0))
            whole += _given_back(place, runs)
        return largest, whole

    @property
    def _need(self) -> int:
        if self.is_expandable:
            return -(-self.failure.size // self._page) * self._page
        return self.segment

    @cached_property
    def _columns(self) -> tuple[memoryview, memoryview, memoryview]:
        codes = self.blocks.codes
        return codes("state"), codes("size"), codes("address")

    def _runs(self, place: _Place, gone: Collection[int]) -> Iterator[tuple[int, int]]:
        part = slice(place.first, place.end)
        size = begin = 0
        for state, nbytes, address in zip(*(one[part] for one in self._columns), strict=True):
            if state != _INACTIVE and address not in gone:
                if size:
                    yield size, begin
                size = 0
                continue
            if not size:
                begin = address
            size += nbytes
        if size:
            yield size, begin


def _given_back(place: _Place, runs: list[tuple[int, int]]) -> int:
    if place.page:
        # The ranges of an expandable segment begin at a page.
        whole = 0
        for size, begin in runs:
            offset = begin - place.address
            low = -(-offset // place.page) * place.page
            whole += max((offset + size) // place.page * place.page - low, 0)
        return whole
    return place.size if place.is_default and runs and runs[0][0] == place.size else 0


def free_bytes(group: dict[str, Any]) -> int:
    """What a group of `Room.groups` has reserved and not in use."""
    return int(group["reserved_bytes"]) - int(group["active_bytes"])


# ---- Case --------------------------------------------------------------------------------

# What was in use before the trace is at most this share of what is in use, for a replay to
# tell of settings that would not have helped.
_MOST_BEFORE = 0.1


# Lines that made garbage have so much of what grew, where garbage is all of it.
_ALL_OF_IT = 0.9


@dataclass(frozen=True)
class Case:
    """All that a verdict is given on."""

    snap: Snapshot
    timeline: Timeline  # The device's trace, which may be empty.
    room: Room  # The layout when the request failed.
    facts: OomFacts
    phase: Phase
    place: Place
    moment: int | None  # The event of the trace whose state is looked at; None: the end.
    stack: tuple[Frame, ...]  # The stack of the request, innermost first.

    @property
    def failure(self) -> Failure:
        """The request."""
        return self.room.failure

    @property
    def at(self) -> int:
        """The event of the trace whose state is looked at."""
        if self.moment is not None:
            return self.moment
        return max(len(self.timeline) - 1, 0)

    @property
    def has_trace(self) -> bool:
        """Whether the device's trace has events."""
        return len(self.timeline) > 0

    def columns(self, *names: str) -> tuple[memoryview, ...]:
        """Columns of the trace's allocations."""
        return tuple(self.timeline.allocations.codes(name) for name in names)

    def rows_at(self, place: Place) -> list[int]:
        """Those of `live_rows` that one line made."""
        (stacks,), of = self.columns("stack"), self.timeline.places
        return [row for row in self.live_rows if stacks[row] != NONE and of[stacks[row]] == place]

    @property
    def largest(self) -> tuple[Holding | None, str]:
        """The line that holds at least half of what is in use, and its holder; None and ""."""
        most = self.holdings[0] if self.holdings else None
        if most is None or 2 * most.bytes < self.room.allocated:
            return None, ""
        return most, self.holder_of(most.place)

    @property
    def is_unknown(self) -> bool:
        """Whether a request is asked about that needs new memory, of a device of which nobody
        said how much it has."""
        budget = self.room.budget
        known = budget.device_free is not None or budget.limit is not None
        return not self.failure.happened and not known and not self.room.holds

    @cached_property
    def rounds(self) -> Rounds | None:
        """The steps up to the failure; None where there are too few.

        What is done after the training may be done before each step too, as a rollout is: where
        more piled up over the steps, it is these.
        """
        if not self.has_trace:
            return None
        rounds = rounds_before(self.timeline, self.at)
        if rounds is None or not rounds.is_after_training:
            return rounds
        steps = steps_before(self.timeline, self.at)
        piled = [(one.bytes if one else 0) for one in map(self._growth_over, (rounds, steps))]
        return steps if piled[1] > piled[0] else rounds

    @cached_property
    def growth(self) -> Growth | None:
        """What was piled up step after step; None where nothing was, or it is not known."""
        return self._growth_over(self.rounds)

    @cached_property
    def _growths(self) -> dict[Rounds | None, Growth | None]:
        return {}

    def _growth_over(self, rounds: Rounds | None) -> Growth | None:
        if rounds not in self._growths:
            knows = self.facts.garbage_bytes is not None
            found = growth_of(self.snap, self.timeline, rounds, self.at, since_fall=knows)
            self._growths[rounds] = found
        return self._growths[rounds]

    @property
    def usable(self) -> int:
        """What the process could have reserved in all."""
        return self.room.budget.usable

    @cached_property
    def live_rows(self) -> tuple[int, ...]:
        """Rows of the trace's allocations that were in use at the event that is looked at."""
        if not self.has_trace:
            return ()
        (made, freed), at = self.columns("alloc_event", "free_event"), self.at
        # Rows are in order of allocation.
        freed = freed[: bisect_right(made, at)]
        return tuple([row for row, event in enumerate(freed) if event == -1 or event > at])

    @cached_property
    def shows_most(self) -> bool:
        """Whether the trace shows how most of what is in use came there: what was there before
        it stays where it is in a replay."""
        sizes, made = self.columns("size", "alloc_event")
        before = sum(sizes[row] for row in self.live_rows if made[row] < 0)
        return self.has_trace and before < _MOST_BEFORE * self.room.allocated

    @property
    def is_first_step(self) -> bool:
        """Whether it failed while training, and no step had ended by then."""
        trains = self.phase.name in ("forward", "backward", "optimizer")
        return trains and (self.demand is None or not self.demand.steps)

    @cached_property
    def still_grows(self) -> bool:
        """Whether it failed in a step like those in which memory piled up; else something
        else came after them."""
        event = self.failure.event
        if self.growth is None or event is None:
            return False
        stacks = self.timeline.events.codes("stack")
        asks = stacks[event]
        return asks == NONE or asks in stacks[: self.growth.rounds.begins[-1]]

    def said_of(self, place: Place) -> str:
        """All chains of who held the blocks of a line, as the process was asked; ""."""
        return dict(self.facts.holders).get(str(place), "")

    def holder_of(self, place: Place) -> str:
        """Who held the blocks of a line in the process, as a chain of names; "" where nothing of
        Python does, or it was not asked."""
        chains = self.said_of(place).split("; ")
        kept = (one for one in chains if not one.startswith(_NO_NAME))
        return next(kept, "")

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
        grow made such, and garbage holds about as much as grew, it is that. Of cycles that hold
        each other in a chain only the first is unreachable yet: there all lines that grew much
        made garbage, and no name leads to what they made.
        """
        growth, held = self.growth, self.facts.garbage_bytes or 0
        if growth is None or not held:
            return False
        lines = {place for place, _, _ in self.garbage_made}
        made = [one for one in growth.growers if one.place in lines]
        loose = sum(one.bytes for one in made if not self._is_named(one.place))
        is_most = bool(made) and 2 * held >= growth.bytes
        return is_most or loose >= _ALL_OF_IT * growth.bytes

    def _is_named(self, place: Place) -> bool:
        """Whether names of the program lead to most blocks of a line, in the process."""
        said = self.said_of(place)
        return bool(said) and not said.startswith(_NO_NAME)

    @cached_property
    def demand(self) -> Demand | None:
        """What steps need, and the one that failed; None where it is not known."""
        return demand_of(self.timeline, self.rounds, self.failure)

    @property
    def has_outgrown(self) -> bool:
        """Whether the step that failed has more of its own in use than any before it needed: the
        request aside, or with it where its function has made another as large."""
        demand = self.demand
        if demand is None or not demand.steps:
            return False
        if demand.so_far > _NEW_HEIGHT * demand.largest and self._is_one_of_several:
            return True
        return demand.so_far - self.failure.size > demand.largest

    @property
    def _is_one_of_several(self) -> bool:
        """Whether the function that asked has another block in use as large as the request."""
        sizes, stacks = self.columns("size", "stack")
        alike = (stacks[row] for row in self.live_rows if sizes[row] == self.failure.size)
        places = self.timeline.places
        own = (self.place.function, self.place.filename)
        return any(
            (places[one].function, places[one].filename) == own for one in alike if one != NONE
        )

    @property
    def is_first_pass(self) -> bool:
        """Whether it failed inside of a module before any round had ended, and with the request
        more is in use than ever before: nothing shows what the pass needs in all."""
        event = self.failure.event
        if event is None or not self.has_trace or self.rounds is not None:
            return False
        if self.phase.name not in ("forward", "inference"):
            return False
        most = max(self.timeline.allocated[: event + 1])
        return self.room.allocated + self.failure.size > _NEW_HEIGHT * most

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Who held the allocated bytes, by place, the most first."""
        if self.has_trace:
            held = self.timeline.held_by_place(self.at)
            by_line = [(place, nbytes, count) for place, nbytes, _, count in held]
        else:
            found = allocated_blocks(self.snap, self.room.device)
            by_line = grouped((stack, size, 1) for stack, size, _ in found)
        total = sum(nbytes for _, nbytes, _ in by_line)
        return tuple(
            Holding(**asdict(place), bytes=nbytes, count=count, share=nbytes / max(total, 1))
            for place, nbytes, count in by_line
        )

    @cached_property
    def categories(self) -> dict[str, int]:
        """The allocated bytes by category, the most first; empty without a trace."""
        if not self.has_trace:
            return {}
        held = self.timeline.holders(self.at, by="category", limit=None)
        return {str(holder.key): holder.bytes for holder in held}

    @cached_property
    def modules(self) -> dict[str, int]:
        """The allocated bytes by module, the most first; empty where no module is known."""
        return self.timeline.held_by_module(self.at) if self.has_trace else {}


Cause = Callable[[Case], "Verdict | None"]


def least_worth(size: int) -> int:
    """The fewest bytes worth reporting for a request of this size."""
    return max(size // 20, 1 << 20)
