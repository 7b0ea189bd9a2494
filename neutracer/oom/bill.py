# SPDX-License-Identifier: Apache-2.0
"""The bill of a moment: exclusive terms that add up to the limit, and each line's bytes split."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from neutracer.oom.case import Case, Room
from neutracer.oom.facts import Failure, OomFacts, budget_of, with_room
from neutracer.oom.steps import Phase
from neutracer.render.document import Cell, Figure, Place
from neutracer.render.document import Table as TableBlock
from neutracer.render.report import PlainRow
from neutracer.trace.lives import lives_of
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import UNKNOWN_PLACE
from neutracer.trace.table import Column, Table
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

# Rounds before the failing one that lines are compared over, spread over all of them, and moments
# looked at in each.
_MOST_ROUNDS = 12
_MOMENTS = 4

# Stretches of a trace that shows no rounds, and the fewest allocations in each.
_STRETCHES = 8
_FEWEST_EVENTS = 2

# Longer traces without steps are not searched for rounds, unless a request failed: it takes time.
_MOST_SEARCHED = 100_000

# Complete rounds without which nothing is said of what comes again in each.
_FEWEST_ROUNDS = 3

# Lines of code in the text; the others are one line of it.
_SHOWN_LINES = 5

# Lines of which the process is asked who holds them, of those that piled up and of all.
_ASKED_LINES = 8

# Less than this share of the limit is left out of a line's parts in the text.
_LEAST_SHOWN = 1e-4

# What is past its last use is a column of the text if a line has this share of all lines' bytes.
_WORTHWHILE = 0.01


@dataclass(frozen=True, kw_only=True)
class BillTerm(PlainRow):
    """One term of a bill. Sizes in bytes.

    Attributes:
        term: "others" (other processes), "not PyTorch's" (contexts and libraries), "unknown",
            "line" (blocks of one line of code), "waiting" (freed, another stream still uses
            it), "free" (inside segments, in the request's pool), "free elsewhere" (of other
            pools and streams) or "not reserved".
        bytes: The term; all together are the limit.
        place: The line of code; None for other terms.
        count: Its blocks.
        category: What most of it is, as `Timeline.categories` names it; "" where unknown.
        holder: Who held its blocks in the process, as names of the program:
            `history["z"]`, `failures → exception → traceback → frame step → batch`, "no Python
            object: ..."; "" where the process was not asked.
        stands: What of it was there in every round before.
        piled_up: By how much that had risen, round after round, or what else is older than the
            round before this one.
        this_round: The rest of it.
        drag: What of it was past its last use then, or is never used, as `neutracer.drag` finds
            it; 0 where the snapshot has no uses.
    """

    term: str
    bytes: int
    place: Place | None = None
    count: int = 0
    category: str = ""
    holder: str = ""
    stands: int = 0
    piled_up: int = 0
    this_round: int = 0
    drag: int = 0


@dataclass(frozen=True)
class Bill(PlainRow):
    """Where the memory was at one moment.

    Attributes:
        limit_bytes: What the process may have: the device, or its share of it; where neither is
            known, what it had and what the device had left. The sum of all terms.
        limit_is: "limit" (PyTorch's, of the process), "device", or "known part".
        request_bytes: The request that is looked at; 0: none.
        missing_bytes: What it lacks where all that is free were one piece; 0: nothing.
        rounds: How many ended before the moment and are compared; 0: too few, so that only what
            was there before the last of them is told from the rest.
        unit: "step", "round", or "stretch" where the trace shows neither.
        terms: The terms, in the order of the sum.

    Example:
        >>> import neutracer
        >>> bill = neutracer.explain("tests/data/frag_default.pickle").bill
        >>> sum(term.bytes for term in bill.terms) == bill.limit_bytes == 2 << 30
        True
        >>> bill.lines[0].place.line, bill.lines[0].bytes >> 20
        (155, 405)
    """

    limit_bytes: int
    limit_is: str
    request_bytes: int
    missing_bytes: int
    rounds: int
    unit: str
    terms: tuple[BillTerm, ...]

    @property
    def lines(self) -> tuple[BillTerm, ...]:
        """The terms of lines of code, the most bytes first."""
        return tuple(one for one in self.terms if one.term == "line")

    def table(self) -> Table:
        """The terms as a Table with a row each."""
        terms = self.terms
        columns = {name: Column(partial(_numbers, terms, name)) for name in _SUMMED}
        for name in ("term", "place", "holder", "category"):
            texts = [str(getattr(one, name) or "") for one in terms]
            columns[name] = Column(partial(array, "I", range(len(texts))), names=texts)
        parts = ("stands", "piled_up", "this_round", "drag", "count", "category")
        order = ("term", "bytes", "place", "holder", *parts)
        return Table("term", {name: columns[name] for name in order}, len(terms))

    def shown_terms(self) -> tuple[BillTerm, ...]:
        """The terms that are not empty, with small lines as one; `words` says what each is."""
        by_code: dict[Place | int, list[BillTerm]] = {}
        for number, one in enumerate(self.lines):
            by_code.setdefault(self._code(one) or number, []).append(one)
        lines = [_together(same, "line") if len(same) > 1 else same[0] for same in by_code.values()]
        lines.sort(key=lambda one: -one.bytes)
        told = lines[:_SHOWN_LINES]
        if len(lines) > _SHOWN_LINES:
            rest = lines[_SHOWN_LINES:]
            told.append(_together(rest, format_count(len(rest), "more line")))
        asks = self.request_bytes > 0
        others = [one for one in self.terms if one.bytes or (asks and one.term == "not reserved")]
        outside = [one for one in others if one.term in _OUTSIDE]
        inside = [one for one in others if one.term not in (*_OUTSIDE, "line")]
        return (*outside, *told, *inside)

    def block(self) -> TableBlock:
        """The bill as a table of a page, ten rows or so."""
        rows = [self._cells(one) for one in self.shown_terms()]
        heads: tuple[str, ...] = ("", "", "as what")
        if self.rounds:
            heads = ("", "", *self.parts())
        if self._shows_drag:
            heads = (*heads, "past last use")
        empty = ("",) * (len(heads) - 2)
        rows.append((Figure.bytes(self.limit_bytes), f"= {self.limit_text()}", *empty))
        if self.missing_bytes:
            rows.append((Figure.bytes(self.missing_bytes), self.missing_text(), *empty))
        notes = (*self.notes(), *_held_by(self.lines[:_SHOWN_LINES]))
        return TableBlock("The bill", tuple(rows), heads, notes)

    @property
    def _shows_drag(self) -> bool:
        least = sum(one.bytes for one in self.lines) * _WORTHWHILE
        return any(one.drag > least for one in self.lines)

    def parts(self) -> tuple[str, str, str]:
        """What a line's bytes are split into, in words."""
        return ("stands", "piled up", f"this {self.unit}")

    def _code(self, line: BillTerm) -> Place | None:
        """The place alone: functions are in the findings, and a row is one line of text."""
        caller = "" if self.rounds or line.place is None else line.place.caller
        return None if line.place is None else replace(line.place, function="", caller=caller)

    def _cells(self, one: BillTerm) -> tuple[Cell, ...]:
        code = self._code(one)
        what: Cell = self.words(one)
        if code is not None and one.place is not None:
            what = code if code.line else one.place.function
        least = self.limit_bytes * _LEAST_SHOWN
        parts = (one.stands, one.piled_up, one.this_round, one.drag)
        split: list[Cell] = [Figure.bytes(part) if part > least else "" for part in parts]
        if not self.rounds:
            split[:3] = [one.category.replace("_", " ")]
        return (Figure.bytes(one.bytes), what, *split[: None if self._shows_drag else -1])

    def words(self, term: BillTerm) -> str:
        """A term as a reader sees it; of a line, its place."""
        if term.place is not None:
            return str(term.place)
        words = _WORDS.get(term.term, term.term)
        return words if self.request_bytes else _WITHOUT_REQUEST.get(term.term, words)

    def limit_text(self) -> str:
        """What the limit is, in words."""
        names = {"limit": "the limit of the process", "device": "the device"}
        known = "what is known of the device" if self.request_bytes else "all that was reserved"
        return names.get(self.limit_is, known)

    def missing_text(self) -> str:
        """What the missing bytes are, in words."""
        return f"missing for the request of {format_bytes(self.request_bytes)}"

    def notes(self) -> tuple[str, ...]:
        """What the lines are compared with."""
        if not self.rounds:
            return ("Too few rounds ended before it to tell what piles up.",)
        if self.unit == "stretch":
            return (f"The trace shows no steps: it is cut into {self.rounds + 1} equal parts.",)
        return (f"Compared with the {format_count(self.rounds, self.unit)} before it.",)


# The numbers of a term.
_SUMMED = ("bytes", "count", "stands", "piled_up", "this_round", "drag")


def _numbers(terms: Sequence[BillTerm], name: str) -> array[int]:
    return array("Q", [getattr(one, name) for one in terms])


def _held_by(lines: Sequence[BillTerm]) -> Iterator[str]:
    """A sentence per holder, with the lines whose blocks it holds."""
    held: dict[str, list[str]] = {}
    for one in lines:
        if one.holder and one.place is not None:
            held.setdefault(one.holder, []).append(one.place.location or one.place.function)
    for holder, places in held.items():
        made = ", ".join(places)
        no_name = ": " in holder
        yield f"{made}: {holder}." if no_name else f"{holder} holds what {made} made."


def _together(lines: Sequence[BillTerm], term: str) -> BillTerm:
    sums = {name: sum(getattr(one, name) for one in lines) for name in _SUMMED}
    places = {replace(one.place, function="", caller="") for one in lines if one.place is not None}
    place = replace(lines[0].place, caller="") if len(places) == 1 and lines[0].place else None
    # What most of a line is; several lines have a category only in common.
    several = term != "line" and len({one.category for one in lines}) > 1
    return BillTerm(term=term, place=place, category="" if several else lines[0].category, **sums)


# Terms before those of lines.
_OUTSIDE = ("others", "not PyTorch's", "unknown")

_WORDS = {
    "others": "other processes",
    "unknown": "unknown: give capacity= (--capacity)",
    "waiting": "freed, but another stream still uses it",
    "free": "free inside, in the request's pool",
    "free elsewhere": "free in other pools and streams",
    "not reserved": "not reserved yet",
}


# The same where no request is looked at.
_WITHOUT_REQUEST = {"free": "free inside", "unknown": "unknown"}


def bill_at(snap: Snapshot, device: int, event: int) -> Bill:
    """The bill of a moment at which no request failed.

    Args:
        event: The event of its trace after which to look; -1 is before the first.
    """
    timeline, room = snap.timeline(device), snap.beside.rooms.get(device)
    reserved = timeline.reserved[event] if event >= 0 else timeline.facts["start_bytes"][2]
    left = None
    if room is not None and room.other_bytes is not None:
        # What others have is known of the moment of the snapshot alone.
        left = max(room.total_bytes - room.other_bytes - reserved, 0)
    facts = with_room(OomFacts(device_free_bytes=left), room)
    question = Failure(None, None, 0, happened=False)
    budget = budget_of(snap, device, question, reserved, facts, None)
    layout = Room(snap, device, question, timeline.at(event), budget)
    phase = Phase("unknown", "no request is looked at")
    return bill_of(Case(snap, timeline, layout, facts, phase, UNKNOWN_PLACE, event, ()))


def bill_of(case: Case) -> Bill:
    """The bill of the moment that a case looks at: every byte once, in all the limit."""
    room, size = case.room, case.failure.size
    unit, begins = _rounds(case)
    inside = sum(int(group["active_bytes"]) for group in room.groups)
    lines = _lines(case, begins)
    lines = _filled(lines, room.allocated - sum(one.bytes for one in lines))
    limit, limit_is, outside, left = _outside(case)
    terms = (
        *outside,
        *lines,
        BillTerm(term="waiting", bytes=inside - room.allocated),
        BillTerm(term="free", bytes=room.own_free),
        BillTerm(term="free elsewhere", bytes=room.other_free),
        BillTerm(term="not reserved", bytes=left),
    )
    missing = 0 if room.holds else max(size - room.own_free - left, 0)
    rounds = len(begins) - 1 if len(begins) > _FEWEST_ROUNDS else 0
    return Bill(limit, limit_is, size, missing, rounds, unit, terms)


def _outside(case: Case) -> tuple[int, str, list[BillTerm], int]:
    """The limit and what it is, what others have of it, and what is not reserved yet."""
    budget, reserved = case.room.budget, case.room.reserved
    free, left = budget.device_free, budget.headroom
    if budget.limit is not None:
        limit, name = max(budget.limit, reserved + left), "limit"
    elif budget.total is not None:
        limit, name = max(budget.total, reserved + left), "device"
    else:
        limit, name = reserved + left, "known part"
    taken = limit - reserved - left
    if free is None:
        return limit, name, [BillTerm(term="unknown", bytes=taken)] if taken else [], left
    others = min(budget.others or 0, taken)
    parts = (("others", others), ("not PyTorch's", taken - others))
    return limit, name, [BillTerm(term=term, bytes=size) for term, size in parts if size], left


def _rounds(case: Case) -> tuple[str, tuple[int, ...]]:
    """The unit, and the events at which rounds begin; none where they say nothing."""
    if not case.has_trace:
        return "round", ()
    is_question, has_steps = not case.failure.happened, bool(case.timeline.steps)
    is_searched = has_steps or not is_question or len(case.timeline) <= _MOST_SEARCHED
    if is_searched and case.rounds is not None:
        return case.rounds.unit, case.rounds.begins
    if case.phase.name in ("forward", "backward", "optimizer") or (is_question and has_steps):
        # A step that is the first fills up by nature: parts of it are no rounds.
        return "round", ()
    made = case.timeline.allocations.codes("alloc_event")
    first, end = bisect_left(made, 0), bisect_right(made, case.at)
    if end - first < _STRETCHES * _FEWEST_EVENTS:
        return "round", ()
    parts = (first + part * (end - first) // _STRETCHES for part in range(_STRETCHES))
    return "stretch", tuple(made[row] for row in parts)


def _spread(rounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The rounds, or so many of them from the first to the last."""
    if len(rounds) <= _MOST_ROUNDS:
        return list(rounds)
    last = len(rounds) - 1
    return [rounds[part * last // (_MOST_ROUNDS - 1)] for part in range(_MOST_ROUNDS)]


class _Lines:
    """The lines of a timeline by number, which are looked up faster than places."""

    def __init__(self, timeline: Timeline, moments: Iterable[int], names_passes: bool) -> None:
        """Look at moments of a timeline.

        Args:
            names_passes: Whether blocks without a stack are of the line whose backward pass, or
                whose forward operation, made them; that is looked up by block.
        """
        self._timeline = timeline
        self._of_stack: dict[int, int] = {}
        self._of_place: dict[Place, int] = {}
        self.places: list[Place] = []
        # By line; a file can have as many lines as events.
        self._held: dict[int, array[int]] = {}
        self._counts: dict[int, array[int]] = {}
        for event in sorted(set(moments)):
            self._held[event], self._counts[event] = array("Q"), array("I")
            for stack, count, nbytes, _ in timeline.native.holders(event, 0):
                self._add(event, self.of(stack), nbytes, count)
        self._nameless = self._of_place.get(UNKNOWN_PLACE) if names_passes else None
        if self._nameless is not None:
            self._name_passes(self._nameless)

    def of(self, stack: int) -> int:
        """The number of a stack's line."""
        known = self._of_stack.get(stack)
        if known is None:
            known = self._of_stack[stack] = self._number(self._timeline.places[stack])
        return known

    def of_row(self, row: int, stack: int) -> int:
        """The number of the line of a row of the allocations."""
        line = self.of(stack)
        if line != self._nameless:
            return line
        return self._number(self._timeline.place_of_allocation(row))

    def _number(self, place: Place) -> int:
        known = self._of_place.setdefault(place, len(self.places))
        if known == len(self.places):
            self.places.append(place)
        return known

    def _name_passes(self, nameless: int) -> None:
        """Give the blocks of no line at the moments to the line of their pass."""
        moments, rows = list(self._held), self._timeline.allocations
        made, freed, sizes = map(rows.codes, ("alloc_event", "free_event", "size"))
        stacks = {stack for stack, line in self._of_stack.items() if line == nameless}
        found = rows.codes("stack")[: bisect_right(made, moments[-1])]
        for row in [row for row, stack in enumerate(found) if stack in stacks]:
            first, gone = bisect_left(moments, made[row]), freed[row]
            alive = moments[first:] if gone == -1 else moments[first : bisect_left(moments, gone)]
            line = self._number(self._timeline.place_of_allocation(row)) if alive else nameless
            for event in alive if line != nameless else ():
                self._add(event, line, sizes[row], 1)
                self._add(event, nameless, -sizes[row], -1)

    def _add(self, event: int, line: int, nbytes: int, count: int) -> None:
        for sums, more in ((self._held[event], nbytes), (self._counts[event], count)):
            if line >= len(sums):
                sums.frombytes(bytes(sums.itemsize * (len(self.places) - len(sums))))
            sums[line] += more

    def sites(self) -> Iterable[list[int]]:
        """The lines of each line of code, whichever lines call it."""
        found: dict[Place, list[int]] = {}
        for line, place in enumerate(self.places):
            if place != UNKNOWN_PLACE:
                site = replace(place, caller="") if place.caller else place
                found.setdefault(site, []).append(line)
        return found.values()

    def held(self, event: int, line: int) -> int:
        """The bytes that a line holds after one of the moments."""
        held = self._held[event]
        return held[line] if line < len(held) else 0

    def at(self, event: int) -> tuple[Counter[int], Counter[int]]:
        """By line, the bytes that it holds after one of the moments, and the number of blocks."""
        held, counts = self._held[event], self._counts[event]
        return Counter(dict(enumerate(held))), Counter(dict(enumerate(counts)))


def _moments(begins: Sequence[int]) -> list[list[int]]:
    """A few moments of each complete round."""
    return [
        sorted({begin - 1, *(begin + part * (end - begin) // _MOMENTS for part in range(_MOMENTS))})
        for begin, end in _spread(list(pairwise(begins)))
    ]


def _lines(case: Case, begins: Sequence[int]) -> list[BillTerm]:
    """A term for each line that holds memory, the most bytes first."""
    if not case.has_trace:
        return [
            BillTerm(
                term="line",
                bytes=one.bytes,
                place=one.place,
                count=one.count,
                this_round=one.bytes,
            )
            for one in case.holdings
        ]
    rounds, last = _moments(begins), begins[-1] - 1 if begins else case.at
    moments = (last, case.at, *(event for moments in rounds for event in moments))
    lines = _Lines(case.timeline, moments, names_passes=not case.failure.happened)
    # The first round makes what stays, and is no measure of the others.
    rounds = rounds[1 if len(begins) > _FEWEST_ROUNDS else 0 :]
    older, gone = _older(case, lines, begins), _replaced(case, lines, begins)
    now, counts = lines.at(case.at)
    if now.total() > case.room.allocated:
        # A pool that was set back to an earlier state has blocks over others.
        now, counts = _in_layout(case, lines)
    categories, holders, idle = _categories(case, lines), _holders(case), _idle(case, lines)

    def split(term: BillTerm, of: Sequence[int]) -> BillTerm:
        """A term by what some lines held in the rounds before."""
        held = [[sum(lines.held(event, line) for line in of) for event in each] for each in rounds]
        before = sum(lines.held(last, line) for line in of) if begins else 0
        floors = [min(each) for each in held]
        whole = _split(term, floors, before, sum(older[line] for line in of))
        still = min(whole.piled_up, sum(gone[line] for line in of))
        return replace(whole, stands=whole.stands + still, piled_up=whole.piled_up - still)

    own = {
        line: split(
            BillTerm(
                term="line",
                bytes=nbytes,
                place=lines.places[line],
                count=counts[line],
                category=categories.get(line, ""),
                holder=holders.get(str(lines.places[line]), ""),
                drag=min(idle[line], nbytes),
            ),
            (line,),
        )
        for line, nbytes in now.most_common()
        if nbytes
    }
    for site in lines.sites():
        held = [own[line] for line in site if line in own]
        if len(site) > 1 and held:
            whole = split(_together(held, "line"), site)
            shown = (line for line in site if line in own)
            own.update(zip(shown, _shared(held, whole), strict=True))
    return list(own.values())


def _shared(terms: Sequence[BillTerm], whole: BillTerm) -> Iterator[BillTerm]:
    """Terms of one line of code that several lines call, where what was there before one of them
    called it is in part another one's: that part is not of this round."""
    stands = max(whole.stands - sum(one.stands for one in terms), 0)
    piled = max(whole.piled_up - sum(one.piled_up for one in terms), 0)
    for one in terms:
        still = min(stands, one.this_round)
        more = min(piled, one.this_round - still)
        stands, piled = stands - still, piled - more
        yield replace(
            one,
            stands=one.stands + still,
            piled_up=one.piled_up + more,
            this_round=one.this_round - still - more,
        )


def _older(case: Case, lines: _Lines, begins: Sequence[int]) -> Counter[int]:
    """By line, the bytes that are there since before the round before the last."""
    older = Counter[int]()
    if len(begins) <= _FEWEST_ROUNDS:
        return older
    made, sizes, stacks = case.columns("alloc_event", "size", "stack")
    for row in case.live_rows:
        if made[row] < begins[-2]:
            older[lines.of_row(row, stacks[row])] += sizes[row]
    return older


def _idle(case: Case, lines: _Lines) -> Counter[int]:
    """By line, the bytes that are past their last use, or never used."""
    idle = Counter[int]()
    lives = lives_of(case.snap, case.timeline)
    if lives is None:
        return idle
    sizes, stacks = case.columns("size", "stack")
    for row in case.live_rows:
        if lives.is_idle(row, case.at):
            idle[lines.of_row(row, stacks[row])] += sizes[row]
    return idle


def _replaced(case: Case, lines: _Lines, begins: Sequence[int]) -> Counter[int]:
    """By line, the bytes in use of blocks that came for others of their size, from before the
    trace: a full buffer goes on, whose older blocks have no line. In the first round what an
    earlier one left goes."""
    replaced = Counter[int]()
    if len(begins) <= _FEWEST_ROUNDS:
        return replaced
    made, freed, sizes, stacks = case.columns("alloc_event", "free_event", "size", "stack")
    first = bisect_left(made, 0)
    gone = Counter(sizes[row] for row in range(first) if begins[1] <= freed[row] <= case.at)
    for row in case.live_rows if gone else ():
        if row >= first and gone[sizes[row]] > 0:
            gone[sizes[row]] -= 1
            replaced[lines.of_row(row, stacks[row])] += sizes[row]
    return replaced


def _holders(case: Case) -> dict[str, str]:
    """By line, who held its blocks at the failure, or at the end of a trace without one."""
    if case.facts.holders or case.failure.happened or case.moment is not None:
        return dict(case.facts.holders)
    return dict(case.snap.beside.holders.get(case.room.device, {}))


def _in_layout(case: Case, lines: _Lines) -> tuple[Counter[int], Counter[int]]:
    """By line, the bytes and the number of its blocks in the layout, which has each byte once."""
    now, counts = Counter[int](), Counter[int]()
    blocks = case.room.blocks
    columns = zip(blocks["state"], blocks.codes("size"), blocks.codes("stack"), strict=True)
    for state, size, stack in columns:
        if state == "active_allocated":
            now[lines.of(stack)] += size
            counts[lines.of(stack)] += 1
    return now, counts


def _split(term: BillTerm, floors: Sequence[int], before: int, older: int = 0) -> BillTerm:
    """A line's bytes by its floors over the rounds before, or by what was there before, and by
    what is older than the round before."""
    size = term.bytes
    if len(floors) < _FEWEST_ROUNDS - 1:
        stands = min(before, size)
        return replace(term, stands=stands, this_round=size - stands)
    rises = sum(b > a for a, b in pairwise(floors))
    is_pile = floors[-1] > floors[0] and 2 * rises > len(floors) - 1
    stands = min(min(floors), size)
    piled = floors[-1] - min(floors) if is_pile else 0
    piled = min(max(piled, older - stands), size - stands)
    return replace(term, stands=stands, piled_up=piled, this_round=size - stands - piled)


def _categories(case: Case, lines: _Lines) -> dict[int, str]:
    """What most of each line's bytes are."""
    codes, (stacks, sizes) = case.timeline.categories.codes, case.columns("stack", "size")
    held = Counter[tuple[int, int]]()
    for row in case.live_rows:
        held[lines.of_row(row, stacks[row]), codes[row]] += sizes[row]
    most = sorted(held, key=held.__getitem__)
    return {line: CATEGORIES[code] for line, code in most}


def asked_lines(bill: Bill) -> list[str]:
    """Lines of a bill of which the process is asked who holds their blocks: those that piled up
    most, and those that hold most."""
    piled = sorted(bill.lines, key=lambda one: -one.piled_up)[:_ASKED_LINES]
    lines = [one for one in piled if one.piled_up] + list(bill.lines[:_ASKED_LINES])
    return list(dict.fromkeys(str(one.place) for one in lines))


def _filled(lines: list[BillTerm], rest: int) -> list[BillTerm]:
    """The lines, with blocks that the trace doesn't show as one of them."""
    if rest <= 0:
        return lines
    return [*lines, BillTerm(term="line", bytes=rest, place=UNKNOWN_PLACE, stands=rest)]
