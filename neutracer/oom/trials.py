# SPDX-License-Identifier: Apache-2.0
"""Changes to a program that ran out of memory, each replayed to the end of the round that failed
and through the rounds after it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from neutracer._native import core
from neutracer.oom.case import Case
from neutracer.oom.facts import Budget
from neutracer.oom.steps import Point, rises, same_points
from neutracer.render.document import Place
from neutracer.render.report import PlainRow
from neutracer.trace.beside import DeviceRoom
from neutracer.trace.roles import CATEGORIES, Role
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.units import format_share
from neutracer.whatif.replaying import Replayer
from neutracer.whatif.savings import Wanted, changes_of

#: What a change costs the user, the cheapest first: a setting of the allocator, an edit of a line,
#: a smaller step, more memory.
COSTS = ("setting", "line", "batch", "card")

# At least so many rounds after the one that failed; and as many as ended before it, so that what
# piles up slowly still shows, while the made-up part is no longer than this.
_ROUNDS = 10
_MOST_EVENTS = 400_000

#: A round is made smaller by steps of a sixteenth, which is the margin of an estimate, too.
PARTS = 16

# What grows or shrinks with the size of a step; gradients, parameters and state do not.
_SCALED = ("input", "temporary", "activation", "autograd_detail", "unknown")

# As many rounds come again in turn, the core's NT_SEQUEL_REPEATED.
_REPEATED = 10

# What steps use until others replace it.
_STATE = ("parameter", "gradient", "optimizer_state")

# The core's numbers of when blocks that other streams used are free again.
_TIMINGS = (0, 1, 2)

# What modules make in a forward and a backward pass.
_OF_A_PASS = (Role.MODULE, Role.SEED, Role.BACKWARD)

# What a program needs of a device is looked for at so many times what its blocks take.
_MARGINS = (1.0625, 1.125, 1.25, 1.5, 2.0)

# A device that holds everything, in bytes.
_ENDLESS = 1 << 44


@dataclass(frozen=True)
class Trial(PlainRow):
    """A change to the program, and how far the program then gets in a replay. Sizes in bytes.

    Attributes:
        change: The change in words.
        cost: What it costs: one of `COSTS`, or "" for the program as it is.
        passes: Whether the request, the rest of its round and all rounds tried after it succeed;
            where `rounds_tried` is 0, the request alone.
        rounds: How many rounds after the failing one end.
        rounds_tried: How many were tried; 0: the trace shows no round that ended.
        bytes: The most that the process then reserves; where it does not pass, or has more memory,
            would reserve of a device that has enough and little more.
    """

    change: str
    cost: str
    passes: bool
    rounds: int
    rounds_tried: int
    bytes: int


@dataclass(frozen=True)
class Change:
    """A change of the program that the replay runs.

    Attributes:
        text: As `Trial.change`.
        cost: As `Trial.cost`.
        settings: The allocator's; None are the recorded ones.
        sizes: Bytes of each event's request; None: as they are.
        ends: By event, the event after which its block is freed; None: as it was.
        usable_bytes: What the process may have in all; None: as it had.
        grows: Whether what grew from round to round still does.
        is_least: The request that failed is as small as its rounded size allows.
    """

    text: str
    cost: str
    settings: str | None = None
    sizes: array[int] | None = None
    ends: array[int] | None = None
    usable_bytes: int | None = None
    grows: bool = True
    is_least: bool = False


_AS_IT_IS = Change("as it is", "")


def replayer_of(snap: Snapshot, device: int, budget: Budget) -> Replayer:
    """The program, ready to be run where it may have what it could have had when it failed."""
    total = budget.total
    if budget.limit is not None and not budget.limit_is_guess:
        # If the device is unknown, the share is of one that has enough.
        device_bytes = 2 * budget.limit if total is None else total
        share = min((budget.limit + 0.5) / device_bytes, 1.0)
        return Replayer(snap, device, capacity=device_bytes, fraction=share)
    if budget.limit is None and budget.asked is not None:
        return Replayer(snap, device, capacity=max(min(budget.asked, budget.usable), 1))
    if budget.limit is None and total is not None:
        return Replayer(snap, device, room=DeviceRoom(total, 1.0, budget.others))
    return Replayer(snap, device)


class Trials:
    """The replays of one failure.

    Attributes:
        works: Whether the model does under the recorded settings what the program did, and
            fails where it failed: else nothing is tried.
        made: The trials so far, in the order in which they were asked for.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._found: dict[str, Trial] = {}
        self.works = self._works()

    @property
    def made(self) -> tuple[Trial, ...]:
        """All trials: the program as it is, then the cheapest change first."""
        return tuple(sorted(self._found.values(), key=lambda one: _cost(one.cost)))

    def _works(self) -> bool:
        case = self._case
        if case.failure.event is None or case.snap.partial is not None:
            return False
        try:
            works = self._replayer.check.is_exact and not self.run(_AS_IT_IS).passes
        except ValueError:
            # A state that no allocator can have been in, or no native allocator's.
            works = False
        if not works:
            self._found.clear()
        return works

    @cached_property
    def _replayer(self) -> Replayer:
        case = self._case
        return replayer_of(case.snap, case.room.device, case.room.budget)

    @property
    def is_limited(self) -> bool:
        """Whether PyTorch enforces the limit."""
        return self._replayer.is_limited

    @property
    def rounds(self) -> int:
        """How many rounds are tried after the failing one."""
        return self._sequel[3]

    def run(self, change: Change) -> Trial:
        """The trial of a change; of one that was tried before, the same."""
        if change.text not in self._found:
            self._found[change.text] = self._try(change)
        return self._found[change.text]

    def _try(self, change: Change) -> Trial:
        program = self._program(change)
        tries = (
            self._run(program, change, limit, timing) for limit, timing in self._conditions(change)
        )
        return min(tries, key=lambda one: (one.passes, one.rounds))

    def _helps(self, change: Change) -> bool:
        """Whether a change passes, which then is one of the trials."""
        return self._passes(change) and self.run(change).passes

    def _passes(self, change: Change) -> bool:
        """`Trial.passes`, where it isn't asked what the change needs."""
        program = self._program(change)
        asked = (self._options(change, *one) for one in self._conditions(change))
        return all(program.run(text, **one)["failed_event"] is None for text, one in asked)

    def _conditions(self, change: Change) -> Iterable[tuple[int, int]]:
        """Limits and timings under which it must succeed: where these are not known, and it is
        the allocator that is changed, all of them."""
        limits = self._replayer.limits
        if change.cost != "setting":
            return [(limits[0], _TIMINGS[0])]
        timings = _TIMINGS if self._replayer.facts["has_later"] else _TIMINGS[:1]
        return [(limit, timing) for limit in limits for timing in timings]

    def _program(self, change: Change) -> core.Program:
        program = self._replayer.program
        if change.sizes is not None or change.ends is not None:
            program = program.edit(change.sizes, change.ends)
        begins, like, after, rounds = self._sequel
        growth = self._growth if change.grows else None
        # A smaller batch has its own margin.
        stretch = self._stretch if change.cost == "batch" else self._ample
        return program.go_on(self._event, begins, like, after, rounds, stretch, growth, self._stays)

    def _run(self, program: core.Program, change: Change, limit: int, timing: int) -> Trial:
        settings, options = self._options(change, limit, timing)
        found = program.run(settings, **options)
        failed, count = found["failed_event"], len(self._case.timeline)
        if failed is not None or change.usable_bytes is not None:
            found = self._of_enough(program, settings, options)
        return Trial(
            change=change.text,
            cost=change.cost,
            passes=failed is None,
            rounds=self.rounds if failed is None else max(failed - count - 1, 0),
            rounds_tried=self.rounds,
            bytes=int(found["peak"]["reserved"]),
        )

    def _options(self, change: Change, limit: int, timing: int) -> tuple[str, dict[str, Any]]:
        """The settings of a replay, and what else it is asked for."""
        replayer = self._replayer
        options = {**replayer.options(limit), "timing": timing, "goes_on": True}
        options["least_ooms"] = change.is_least
        if change.usable_bytes is not None:
            options |= {"limit": 0, "device_total": change.usable_bytes, "device_other": 0}
        return replayer.recorded_settings if change.settings is None else change.settings, options

    @staticmethod
    def _of_enough(program: core.Program, settings: str, options: dict[str, Any]) -> dict[str, Any]:
        """The replay on a device that has enough, and little more: where nothing is ever short,
        nothing that is cached is given back."""
        options = {**options, "limit": 0, "device_other": 0, "device_total": _ENDLESS}
        found = program.run(settings, **options)
        least, most = found["peak"]["allocated"], found["peak"]["reserved"]
        for part in _MARGINS:
            if least * part >= most:
                break
            options["device_total"] = int(least * part)
            tried = program.run(settings, **options)
            if tried["failed_event"] is None:
                return tried
        return found

    # ---- Sequel --------------------------------------------------------------------------

    @property
    def _event(self) -> int:
        event = self._case.failure.event
        return 0 if event is None else event

    @cached_property
    def _sequel(self) -> tuple[array[int], int, int, int]:
        """Where rounds begin, which round the failing one goes on like, behind which event of
        it, and how many follow."""
        like = self._like
        rounds = self._case.rounds
        if rounds is None or like is None:
            return array("i", [0]), 0, 0, 0
        begins = array("i", rounds.begins)
        ended = len(begins) - 1
        length = max((begins[-1] - begins[0]) // ended, 1)
        more = min(max(_ROUNDS, ended), max(_MOST_EVENTS // length, 1))
        return begins, like[0], like[1].event, more

    @cached_property
    def _like(self) -> tuple[int, Point, float] | None:
        """The round before whose rest the failing one has before it, the point at which it stood
        there, and how many times as large its requests were by then.

        Of those that it is compared with, and of those that it does not outrun if there are such,
        the one whose requests are nearest in size and not smaller; else the one that is nearest.
        The first round, which makes what stays, only where there is no other.
        """
        case, rounds = self._case, self._case.rounds
        if rounds is None:
            return None
        begins = rounds.begins
        found = [
            (number, point, self._ratio(begins[number], point.last))
            for number, point in same_points(case.timeline, begins, self._event).items()
        ]
        if len(found) > 1 and found[0][0] == 0:
            del found[0]
        # A round with larger requests needs no stretching.
        return min(
            found, key=lambda one: (one[1].outruns, max(one[2] - 1, 0), -one[0]), default=None
        )

    def _pairs(self, begin: int, at: int) -> list[tuple[int, int]]:
        """The sizes of the n-th request of a stack in another round, from its beginning to an
        event, and in the failing one."""
        own, other = self._requests(begin, at), self._own_requests
        return [
            (size, other[stack][number])
            for stack, sizes in own.items()
            if stack in other
            for number, size in enumerate(sizes[: len(other[stack])])
        ]

    def _ratio(self, begin: int, at: int) -> float:
        """How many times as large the failing round's requests are as those of another."""
        pairs = self._pairs(begin, at)
        return sum(b for _, b in pairs) / max(sum(a for a, _ in pairs), 1) if pairs else 1.0

    @cached_property
    def _own_requests(self) -> dict[int, list[int]]:
        rounds, timeline = self._case.rounds, self._case.timeline
        assert rounds is not None
        own = self._requests(rounds.begins[-1], self._event)
        asks = timeline.events.codes("stack")[self._event]
        own.setdefault(asks, []).append(self._case.failure.size)
        return own

    def _requests(self, begin: int, at: int) -> dict[int, list[int]]:
        """By stack, the sizes of what was made from an event up to another."""
        made, sizes, stacks = self._case.columns("alloc_event", "size", "stack")
        found: defaultdict[int, list[int]] = defaultdict(list)
        for row in range(bisect_left(made, begin), bisect_right(made, at)):
            if stacks[row] != NONE:
                found[stacks[row]].append(sizes[row])
        return found

    @cached_property
    def _stretch(self) -> array[float] | None:
        """By event, how much larger the rest of the failing round is than its like: each request
        as much as what that had requested of the nearest size by then, as a gradient has the size
        of what it is of; behind a loop that is longer than there, as many times as that is."""
        like, timeline, rounds = self._like, self._case.timeline, self._case.rounds
        if like is None or rounds is None:
            return None
        number, point, ratio = like
        if max(ratio, point.outruns) <= 1:
            return None
        pairs = self._pairs(rounds.begins[number], point.last) if ratio > 1 else []
        larger = {a: b / max(a, 1) for a, b in pairs}
        known = sorted(larger)
        stretch, wanted = array("d", bytes(8)) * len(timeline), _codes(_SCALED)
        made, sizes = self._case.columns("alloc_event", "size")
        codes = timeline.categories.codes
        first, end = bisect_right(made, point.event), bisect_left(made, rounds.begins[number + 1])
        for row in range(first, end):
            longer = point.outruns if made[row] > point.last else 1.0
            times = larger.get(_nearest(known, sizes[row]), max(ratio, 1.0)) * max(longer, 1.0)
            stretch[made[row]] = times if codes[row] in wanted else 1.0
        return stretch

    @cached_property
    def _ample(self) -> array[float] | None:
        """The same a sixteenth larger, the margin of an estimate."""
        stretch = self._stretch
        if stretch is None:
            return None
        return array("d", [one * (1 + 1 / PARTS) if one > 1 else one for one in stretch])

    @cached_property
    def _stays(self) -> bytes:
        """By event, whether its block stays where no round before made its like: what modules
        make goes when their pass ends."""
        stays = bytes(role not in _OF_A_PASS for role in range(256))
        return bytes(self._case.timeline.passes.role).translate(stays)

    @cached_property
    def _slopes(self) -> dict[int, float]:
        """By stack, the bytes that each of its requests grows by from round to round, where
        that rises all along; of what is the same size every time, and varies, none."""
        rounds = self._case.rounds
        if rounds is None:
            return {}
        series: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (begin, end) in enumerate(pairwise(rounds.begins)):
            for stack, own in self._requests(begin, end - 1).items():
                series[stack].append((number, sum(own) // len(own)))
        slopes = {}
        for stack, points in series.items():
            values = [value for _, value in points]
            if min(values) < max(values) and rises(values):
                span = points[-1][0] - points[0][0]
                slopes[stack] = (values[-1] - values[0]) / max(span, 1)
        return slopes

    @cached_property
    def _growth(self) -> array[int] | None:
        """By event, the bytes that its request grows by from round to round."""
        if not self._slopes:
            return None
        growth = array("Q", bytes(8)) * len(self._case.timeline)
        for event, stack in zip(*self._case.columns("alloc_event", "stack"), strict=True):
            if event >= 0 and stack in self._slopes:
                growth[event] = int(self._slopes[stack])
        return growth

    # ---- Changes -------------------------------------------------------------------------

    def setting(self, text: str, *, is_least: bool = False) -> Trial:
        """Other settings of the allocator."""
        name = text or "the default settings"
        return self.run(Change(name, "setting", settings=text, is_least=is_least))

    def release(self, text: str, addresses: Collection[int]) -> Trial | None:
        """Blocks in use at the failure freed at the end of the round that made each, and the like
        of them in the rounds after; None where the trace made none of them.

        Parameters, gradients and optimizer state are used until the line of the first of them
        makes another; the newest stay, but for those of rounds that come again, which bring others
        each time.
        """
        case, timeline = self._case, self._case.timeline
        made, at, stacks = case.columns("alloc_event", "address", "stack")
        begins = case.rounds.begins if case.rounds is not None else (self._event,)
        rows = [row for row in case.live_rows if at[row] in addresses and made[row] >= 0]
        lasting, codes = _codes(_STATE), timeline.categories.codes
        state = [row for row in rows if codes[row] in lasting]
        first = stacks[state[0]] if state else NONE
        starts = sorted({bisect_right(begins, made[row]) for row in state if stacks[row] == first})
        ends = array("i", [-1]) * len(timeline)
        for row in rows:
            number = bisect_right(begins, made[row])
            # A block of the failing round is what a round holds; without it that one is free.
            end = begins[number] if number < len(begins) else self._event
            after = bisect_right(starts, number)
            if codes[row] in lasting and after < len(starts):
                end = begins[starts[after] - 1]
            elif codes[row] in lasting and not 0 < len(begins) - number <= _REPEATED:
                continue
            # A free stands behind the event that it follows: still in the round.
            ends[made[row]] = max(end - 2, made[row])
        return self.run(Change(text, "line", ends=ends)) if rows else None

    def in_parts(self, stacks: Collection[int]) -> bool:
        """Whether it goes on with what modules make in a part of a step, and would be freed in the
        step, freed where one of some stacks makes the part's loss."""
        case, role = self._case, self._case.timeline.passes.role
        rows = case.columns("alloc_event", "free_event", "stack")
        begins = case.rounds.begins if case.rounds is not None else ()
        losses = [made for made, _, stack in zip(*rows, strict=True) if stack in stacks]
        ends = array("i", [-1]) * len(case.timeline)
        for made, freed, _ in zip(*rows, strict=True):
            number, after = bisect_right(begins, made), bisect_left(losses, made)
            last = begins[number] if number < len(begins) else self._event
            freed = self._event if freed == -1 else freed
            is_of_a_part = made >= 0 and role[made] == Role.MODULE and freed <= last
            if is_of_a_part and after < len(losses) and losses[after] < freed:
                ends[made] = losses[after]
        return self._helps(Change("backward() on the loss of each part", "line", ends=ends))

    def one_at_a_time(self, rows: Sequence[int]) -> bool:
        """Whether it goes on with each of a line's blocks, by their rows in the order in which they
        were made, freed where the next one is made."""
        (made,) = self._case.columns("alloc_event")
        ends = array("i", [-1]) * len(self._case.timeline)
        for row, following in pairwise(rows):
            ends[made[row]] = made[following] - 1
        place = self._case.timeline.place_of_allocation(rows[0])
        text = f"{place.filename}:{place.line} keeps one at a time"
        return self._helps(Change(text, "line", ends=ends))

    def bounded(self, text: str) -> Trial | None:
        """What is made anew, larger or more of it each time, kept as it was at first; None: nothing
        is."""
        timeline, slopes, growth = self._case.timeline, self._slopes, self._case.growth
        # The lines of which each round makes more anew.
        growing: set[Place] = set()
        if growth is not None and growth.by_size:
            growing = {one.place for one in growth.growers}
        if not (slopes or growing):
            return None
        begins = self._case.rounds.begins if self._case.rounds is not None else ()
        sizes, places = self._sizes_as_made[:], timeline.places
        first: dict[int, int] = {}
        counts: defaultdict[Place, Counter[int]] = defaultdict(Counter)
        for event, stack in zip(*self._case.columns("alloc_event", "stack"), strict=True):
            if event < 0 or stack == NONE:
                continue
            if stack in slopes:
                first[stack] = min(first.get(stack, sizes[event]), sizes[event])
                sizes[event] = first[stack]
            if places[stack] in growing:
                each, number = counts[places[stack]], bisect_right(begins, event)
                each[number] += 1
                # The first round of them is the first that was counted.
                sizes[event] = 1 if each[number] > next(iter(each.values())) else sizes[event]
        asks = timeline.events.codes("stack")[self._event]
        sizes[self._event] = min(first.get(asks, sizes[self._event]), sizes[self._event])
        return self.run(Change(text, "line", sizes=sizes, grows=False))

    @cached_property
    def _sizes_as_made(self) -> array[int]:
        """The bytes of each event's request."""
        timeline = self._case.timeline
        sizes = array("Q", bytes(8)) * len(timeline)
        columns = self._case.columns("alloc_event", "requested_size", "size")
        for event, asked, block in zip(*columns, strict=True):
            if event >= 0:
                sizes[event] = asked or block
        for event in timeline.events.find("action", "oom"):
            sizes[event] = timeline.events[event].size
        return sizes

    def share_that_passes(self) -> tuple[float, Trial] | None:
        """A share of the size of a step that passes, a sixteenth below the largest that does: the
        sizes of its rest are those of another round; None: a sixteenth does not pass."""
        low, high = 0, PARTS
        while high - low > 1:
            part = (low + high) // 2
            passes = self._passes(self._scaled(part))
            low, high = (part, high) if passes else (low, part)
        if not low:
            return None
        part = max(low - 1, 1)
        trial = self.run(self._scaled(part))
        return (part / PARTS, trial) if trial.passes else None

    @cached_property
    def _scaled_events(self) -> dict[int, list[int]]:
        """The requests since the first round whose size is that of a step, by size."""
        rounds, codes = self._case.rounds, self._case.timeline.categories.codes
        begin, wanted = 0 if rounds is None else rounds.begins[0], _codes(_SCALED)
        (made,) = self._case.columns("alloc_event")
        found: defaultdict[int, list[int]] = defaultdict(list)
        for event, code in zip(made, codes, strict=True):
            if event >= begin and code in wanted:
                found[self._sizes_as_made[event]].append(event)
        return found

    def _scaled(self, part: int) -> Change:
        case, sizes = self._case, self._sizes_as_made[:]
        for size, events in self._scaled_events.items():
            scaled = max(size * part // PARTS, 1)
            for event in events:
                sizes[event] = scaled
        if case.phase.name not in ("optimizer", "loading"):
            sizes[self._event] = max(sizes[self._event] * part // PARTS, 1)
        name = f"{format_share(part / PARTS, decimals=0)} of the batch or length"
        return Change(name, "batch", sizes=sizes)

    def more_memory(self, text: str, usable_bytes: int) -> Trial:
        """The process may have so many bytes in all."""
        return self.run(Change(text, "card", usable_bytes=max(usable_bytes, 1)))

    def needs(self) -> int | None:
        """What it would reserve at most as it is, of a device that has enough; None: no round
        that ended shows what it goes on with."""
        if not self.works or not self.rounds:
            return None
        return self.run(_AS_IT_IS).bytes

    def savings(self) -> list[tuple[str, Trial]]:
        """Changes that need no smaller step, as `neutracer.savings` tries them: how to make each,
        and its trial."""
        tried = []
        for wanted in changes_of(self._case.snap, self._case.timeline, 1):
            if wanted.kind.startswith("zero_") or not self._could_pass(wanted):
                continue
            sizes = wanted.sizes[:]
            sizes[self._event] = self._sizes_as_made[self._event]
            cost = "batch" if wanted.ends is None else "line"
            change = Change(wanted.message, cost, sizes=sizes, ends=wanted.ends)
            tried.append((wanted.advice, self.run(change)))
        return tried

    def _could_pass(self, wanted: Wanted) -> bool:
        """Whether the request would have room if no byte were lost to holes: blocks in use that the
        change makes smaller, or frees, give no more than that."""
        case, ends = self._case, wanted.ends
        made, asked, sizes = case.columns("alloc_event", "requested_size", "size")
        spared = 0
        for row in case.live_rows:
            if (event := made[row]) >= 0:
                is_freed = ends is not None and 0 <= ends[event] < self._event
                after = 0 if is_freed else wanted.sizes[event]
                # A block is larger than its request, and may be no longer.
                spared += max(sizes[row] - after, 0) if after < asked[row] else 0
        return case.room.allocated - spared + case.failure.size <= case.usable


def _nearest(sizes: Sequence[int], size: int) -> int:
    """Of rising sizes the nearest to a size, by their quotient; 0 where there are none."""
    at = bisect_left(sizes, size)
    around = sizes[max(at - 1, 0) : at + 1]
    return min(around, key=lambda one: max(one, size) / max(min(one, size), 1), default=0)


def _cost(cost: str) -> int:
    return COSTS.index(cost) if cost else -1


def _codes(names: Sequence[str]) -> frozenset[int]:
    return frozenset(CATEGORIES.index(name) for name in names)
