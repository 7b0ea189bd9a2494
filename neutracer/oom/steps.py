# SPDX-License-Identifier: Apache-2.0
"""The failing step compared with those before it: rounds, growth by line, demand and phase."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from neutracer.leak.series import floors, highs
from neutracer.leak.trend import leak_trend
from neutracer.oom.facts import Failure
from neutracer.render.document import Place
from neutracer.trace.roles import CATEGORIES, Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import EMPTY, NONE, UNKNOWN_PLACE, Frame, callers_of, place_of
from neutracer.trace.timeline import Timeline
from neutracer.units import format_share

# ---- Rounds ------------------------------------------------------------------------------

#: Fewer steps say nothing of what comes again in each.
FEWEST = 5

# A step is at most this many times as long as the middle one, in events.
_UNLIKE = 4

# So many blocks a line makes in a round, at most, as of a query, a key and a value. For each number
# the trace is looked through again from every anchor.
_MOST_TIMES = 3

# Stacks tried for what comes round where the trace has no steps.
_MOST_ANCHORS = 64


@dataclass(frozen=True)
class Rounds:
    """Where the steps of a program begin.

    Attributes:
        begins: The first event of each, in order; the last of them is of the step that failed, so
            that one less has ended.
        are_steps: Whether the trace shows steps; else they are rounds of what repeats in it.
        is_after_training: The program trained, and then began to do something else, whose
            rounds these are.
    """

    begins: tuple[int, ...]
    are_steps: bool
    is_after_training: bool = False

    @property
    def unit(self) -> str:
        """What to call one of them."""
        return "step" if self.are_steps else "round"


def rounds_before(timeline: Timeline, event: int) -> Rounds | None:
    """The steps up to an event, or else the rounds.

    A round begins where a line of the program outside of modules comes again, once or a few times
    in each: the layers of one forward pass are no steps. Where what follows the last backward
    pass is longer than a step, the program does something else there, and the rounds of that are
    taken.

    None where there are fewer than `FEWEST`, unless they are steps and the last goes on like those
    before it.
    """
    begins = _steps(timeline, event)
    if len(begins) >= FEWEST:
        return _after_training(timeline, begins, event) or Rounds(tuple(begins), True)
    if len(begins) > 1 and _is_a_forward(timeline, begins, event):
        # Few as they are: what comes round since the last is a part of a step.
        return Rounds(tuple(begins), True)
    since = begins[-1] if begins else 0
    found = _rounds(timeline, since, event) or _rounds(timeline, 0, event)
    if not found or _has_moved_on(timeline, found, event):
        return None
    return Rounds(found, False, bool(begins and timeline.passes.backward))


def steps_before(timeline: Timeline, event: int) -> Rounds | None:
    """The steps up to an event alone, whatever came after the last of them; None where there are
    fewer than `FEWEST`."""
    begins = _steps(timeline, event)
    return Rounds(tuple(begins), True) if len(begins) >= FEWEST else None


def _steps(timeline: Timeline, event: int) -> list[int]:
    """Where the steps up to an event begin, and what follows the last of them."""
    steps = timeline.steps
    begins = [step.first for step in steps if step.first <= event]
    # What repeats may be the layers of one forward pass: these begin inside of a module.
    repeats = steps.how == "repetition"
    if begins and repeats and timeline.passes.role[begins[0]] != Role.USER:
        return []
    if repeats and len(begins) > 1 and _has_moved_on(timeline, begins, event):
        return []
    if begins and steps.steps[len(begins) - 1].end <= event:
        begins.append(steps.steps[len(begins) - 1].end)
    return begins


def _has_moved_on(timeline: Timeline, begins: Sequence[int], event: int) -> bool:
    """Whether an event follows what repeated, and is no part of it: most of what is in use was made
    since the last beginning, by stacks that ran in no round before."""
    rows = timeline.allocations
    made, freed, stacks, sizes = map(rows.codes, ("alloc_event", "free_event", "stack", "size"))
    first, last, end = (bisect_left(made, at) for at in (begins[0], begins[-1], event))
    known = set(stacks[first:last])
    held = sum(
        sizes[row]
        for row in range(last, end)
        if (freed[row] == -1 or freed[row] > event) and stacks[row] not in known
    )
    return 2 * held > timeline.allocated[event]


def _after_training(timeline: Timeline, begins: Sequence[int], event: int) -> Rounds | None:
    lengths = sorted(end - begin for begin, end in pairwise(begins))
    if event - begins[-1] <= lengths[len(lengths) // 2] or not timeline.passes.backward:
        return None
    if any(begin >= begins[-1] for begin, _ in timeline.passes.backward):
        return None
    if _is_a_forward(timeline, begins, event):
        return None
    found = _rounds(timeline, begins[-1], event)
    return Rounds(found, False, is_after_training=True) if found else None


def _is_a_forward(timeline: Timeline, begins: Sequence[int], event: int) -> bool:
    """Whether most of what was made since the last step and is in use was made by stacks whose
    blocks stayed for the backward passes before: a longer forward pass, and nothing else."""
    rows = timeline.allocations
    made, freed, stacks, sizes = map(rows.codes, ("alloc_event", "free_event", "stack", "size"))
    first, last, end = (bisect_left(made, at) for at in (begins[0], begins[-1], event))
    passes = [begin for begin, _ in timeline.passes.backward]
    trained = {
        stacks[row]
        for row in range(first, last)
        if bisect_left(passes, made[row]) < bisect_left(passes, freed[row]) and stacks[row] != NONE
    }
    held = [row for row in range(last, end) if freed[row] == -1 or freed[row] > event]
    known = sum(sizes[row] for row in held if stacks[row] in trained)
    return 2 * known > sum(sizes[row] for row in held)


def _rounds(timeline: Timeline, first: int, event: int) -> tuple[int, ...]:
    """The events from `first` on at which the first stack outside of modules comes round that
    does so all along, else the first one inside, of passes that free what they make; empty where
    none does."""
    outside = [one for one in _by_stack(timeline, first, event, Role.USER) if len(one) >= FEWEST]
    outside = outside[:_MOST_ANCHORS]
    for found in outside:
        if _are_alike([*found, event]):
            return tuple(found)
    # A line may make several blocks in each round, with the same others in between.
    for times in range(2, _MOST_TIMES + 1):
        for found in outside:
            begins = found[::times]
            if len(begins) >= FEWEST and _are_alike([*begins, event]) and _repeat(timeline, begins):
                return tuple(begins)
    # A pass begins with the first stack inside modules, and a layer of it does not. Where all
    # layers have one stack, those of a pass that is trained keep what they make.
    inside = next(iter(_by_stack(timeline, first, event, Role.MODULE)), [])
    if len(inside) < FEWEST or not _are_alike([*inside, event]) or timeline.passes.backward:
        return ()
    return tuple(inside) if _pass_by(timeline, inside) else ()


def _by_stack(timeline: Timeline, first: int, event: int, role: Role) -> list[list[int]]:
    """The events at which each stack of a role allocates, those that begin first."""
    passes = timeline.passes
    at: dict[int, list[int]] = {}
    for number in range(first, event):
        if passes.allocates[number] and passes.role[number] == role:
            at.setdefault(passes.stack[number], []).append(number)
    return list(at.values())


def _pass_by(timeline: Timeline, begins: Sequence[int]) -> bool:
    """Whether each whole round frees most of what it made."""
    rows = timeline.allocations
    made, freed, sizes = map(rows.codes, ("alloc_event", "free_event", "size"))
    for begin, end in pairwise(begins):
        own = range(bisect_left(made, begin), bisect_left(made, end))
        gone = sum(sizes[row] for row in own if -1 < freed[row] <= end)
        if 2 * gone <= sum(sizes[row] for row in own):
            return False
    return True


def _are_alike(edges: Sequence[int]) -> bool:
    lengths = [end - begin for begin, end in pairwise(edges)]
    return max(lengths) <= _UNLIKE * sorted(lengths)[len(lengths) // 2]


def _repeat(timeline: Timeline, begins: Sequence[int]) -> bool:
    """Whether all whole rounds are made by the same stacks in the same order, and by several."""
    passes = timeline.passes
    made = [
        tuple(passes.stack[at] for at in range(begin, end) if passes.allocates[at])
        for begin, end in pairwise(begins)
    ]
    return len(set(made)) == 1 and len(set(made[0])) > 1


# ---- Kept graph --------------------------------------------------------------------------

# A pass leaves one gradient for each parameter behind, which take as much as these do; a tenth for
# what the allocator rounds up. With a graph it was 4 to 290 times as much, in models of linear
# layers, convolutions and attention.
_MORE = 1.1

# A graph has so much at least of what the modules' forward made: in the same models a quarter
# (where most of it are logits, which nothing saves) to three quarters.
_FORWARD = 0.1

# So many of the steps that can be judged keep a graph; a batch may be two rounds, of which one
# does.
_STEPS = 0.4

_PARAMETER = CATEGORIES.index("parameter")


@dataclass
class _Pass:
    """What the modules made in a step for one of its backward passes, in bytes."""

    made: int = 0
    kept: int = 0
    freed: int = 0


@dataclass
class _Step:
    """What one step did: by role the bytes that are still there, and its backward passes."""

    kept: Counter[int] = field(default_factory=Counter)
    passes: defaultdict[int, _Pass] = field(default_factory=lambda: defaultdict(_Pass))

    def keeps_graph(self, parameters: int) -> bool:
        """Whether it left more than one gradient for each parameter behind, and one of its
        backward passes what had been made for it.

        Args:
            parameters: The bytes of those that were there before the steps.
        """
        one_each = self.kept[Role.BUILD] or parameters
        keeps_more = self.kept[Role.BACKWARD] > _MORE * one_each
        # A graph that is kept keeps what it saved, and no backward pass freed any of it.
        return keeps_more and any(
            one.made > 0 and not one.freed and one.kept >= _FORWARD * one.made
            for one in self.passes.values()
        )


class _Passes:
    """The backward passes of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        passes = timeline.passes
        self._spans = passes.backward
        self.begins = [begin for begin, _ in passes.backward]
        made = (at for begin, end in passes.backward for at in range(begin, end))
        self._gradients = [
            at for at in made if passes.allocates[at] and passes.role[at] == Role.BACKWARD
        ]

    def after(self, made: int, end: int) -> int | None:
        """The number of the first one that begins after an event, and before another."""
        number = bisect_right(self.begins, made)
        return number if number < len(self.begins) and self.begins[number] < end else None

    def frees(self, made: int, freed: int) -> bool:
        """Whether one frees what was made before it.

        Where frees have no stacks of their own, those right behind a pass count as in it: what is
        freed before its last gradient is made is sure to be.
        """
        number = bisect_right(self.begins, freed) - 1
        if number < 0 or made >= self.begins[number]:
            return False
        later = bisect_right(self._gradients, freed)
        return later < len(self._gradients) and self._gradients[later] < self._spans[number][1]


def graph_keeper(snap: Snapshot, timeline: Timeline, rounds: Rounds, event: int) -> Place | None:
    """The line whose backward passes leave more behind than a gradient for each parameter, and
    the forward passes before them; None where none does, or where it can't be told."""
    role, rows, begins = timeline.passes.role, timeline.allocations, rounds.begins
    if not timeline.passes.backward:
        return None
    steps = [_Step() for _ in begins[:-1]]
    backward: list[tuple[int, int]] = []
    passes = _Passes(timeline)
    columns = [rows.codes(name) for name in ("alloc_event", "free_event", "size")]
    low, high = (bisect_left(columns[0], at) for at in (begins[0], begins[-1]))
    number = 0
    for at, freed, size in zip(*(each[low:high] for each in columns), strict=True):
        number = bisect_right(begins, at, number)
        step, is_kept = steps[number - 1], freed == -1 or freed > event
        if is_kept:
            step.kept[role[at]] += size
            if role[at] == Role.BACKWARD:
                backward.append((at, size))
        its = passes.after(at, begins[number]) if role[at] == Role.MODULE else None
        if its is not None:
            one = step.passes[its]
            one.made += size
            one.kept += size * is_kept
            one.freed += size * (freed < begins[number] and passes.frees(at, freed))
    parameters = _parameters(timeline, begins[0])
    # Of steps that ran forward and backward, where it is known what one gradient for each takes.
    judged = [one for one in steps if one.passes and (one.kept[Role.BUILD] or parameters) > 0]
    votes = [one.keeps_graph(parameters) for one in judged]
    # The last of the fewest steps is the one that failed, which says nothing.
    if len(votes) < FEWEST - 1 or sum(votes) < _STEPS * len(votes):
        return None
    return _caller(snap, timeline, backward)


def _parameters(timeline: Timeline, event: int) -> int:
    rows, codes = timeline.allocations, timeline.categories.codes
    columns = [rows.codes(name) for name in ("alloc_event", "free_event", "size")]
    return sum(
        size
        for code, at, freed, size in zip(codes, *columns, strict=True)
        if code == _PARAMETER and at < event and (freed == -1 or freed >= event)
    )


def _caller(snap: Snapshot, timeline: Timeline, backward: list[tuple[int, int]]) -> Place | None:
    """The line that began most of the passes that made these, by their first gradients."""
    passes, stacks = timeline.passes, timeline.events.codes("stack")
    seeds = [
        at for at, role in enumerate(passes.role) if role == Role.SEED and passes.allocates[at]
    ]
    by: Counter[int] = Counter()
    for at, size in backward:
        before = bisect_right(seeds, at)
        if before:
            by[stacks[seeds[before - 1]]] += size
    return place_of(snap.stacks[by.most_common(1)[0][0]]) if by else None


# ---- Growth ------------------------------------------------------------------------------

# A saw-tooth needs at least this many steps; without steps the trace is cut into parts.
_FEWEST_TEETH = 12
_MOST_PARTS = 240
_EVENTS_A_PART = 8

# A series rises if what it loses is little beside what it gains, if each part of it is above
# the one before, and if it rises at its end about as fast as before: a warm-up does not.
_PARTS = 4
_LOST = 0.2
_LASTING = 0.4

# So much of it is still in use at the moment that is asked about.
_STILL = 0.6

# This share of the steps frees something; a batch may be two rounds, of which one frees.
_CHURNING = 0.4

# What is let go of leaves less than this share behind: where the step that lets go of five or more
# has made one again, as a list that is begun anew, that is a fifth at the most.
_LET_GO = 0.25

# What piled up since has to be higher than ever before, to be what was in the way: by a tenth,
# which one step more does not make of an epoch of over ten. And each of the parts that `rises`
# compares has two steps.
_HIGHER = 1.1
_FEWEST_SINCE = 2 * _PARTS

# Growth of a smaller part of what is in use may hide more that was let go of now and then.
_SMALL = 4


@dataclass(frozen=True)
class Grower:
    """One line of which more memory is in use after every step.

    Attributes:
        place: The line.
        bytes: What of it was in use when the last step began.
        count: In how many blocks.
        bytes_per_step: By how much that grew a step.
        by_size: It is not more blocks but larger ones, as of a cache that is made anew a
            little larger each time.
        in_module: A module's forward made them.
        builds: They are what a module got when it was made.
        steps: Over how many steps it piled up: all, or those since it was let go of last.
        callers: The lines that called that line, innermost first.
        falls: How often it was let go of before, as at the end of an epoch.
        stack: One of the stacks of it, innermost first.
    """

    place: Place
    bytes: int
    count: int
    bytes_per_step: int
    steps: int
    by_size: bool = False
    in_module: bool = False
    builds: bool = False
    callers: tuple[Place, ...] = ()
    falls: int = 0
    stack: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Growth:
    """What was piled up.

    Attributes:
        growers: Who, the most bytes first.
        bytes: All of it.
        addresses: Where these blocks begin.
        rounds: The program's steps up to the event that is asked about.
        create_graph: The line whose backward(create_graph=True) keeps its gradients, as the
            first gradient of the pass shows, which any other pass frees, or the others, of
            which any other keeps one for each parameter; None: none does.
    """

    growers: tuple[Grower, ...]
    bytes: int
    addresses: frozenset[int]
    rounds: Rounds
    create_graph: Place | None = None

    @property
    def steps(self) -> int:
        """Over how many steps it piled up."""
        return max(one.steps for one in self.growers)

    @property
    def piled_up(self) -> int:
        """By how much it grew over them; the rest was there before, as of a longer history."""
        return min(self.bytes, sum(one.bytes_per_step * one.steps for one in self.growers))

    @property
    def falls(self) -> int:
        """How often it was let go of before; 0: never, or not of all of it."""
        return min(one.falls for one in self.growers)

    @property
    def bytes_per_step(self) -> int:
        """By how much it grew a step."""
        return sum(grower.bytes_per_step for grower in self.growers)

    @property
    def by_size(self) -> bool:
        """Whether most of it are blocks that were made anew, larger each time."""
        return 2 * sum(one.bytes for one in self.growers if one.by_size) > self.bytes


@dataclass(frozen=True)
class SawTooth:
    """Live bytes that rise step by step and fall back at once, as when garbage is collected.

    Attributes:
        bytes: What had piled up since the last fall.
        falls: How often it fell.
        fall_bytes: By how much, in the middle.
    """

    bytes: int
    falls: int
    fall_bytes: int


def growth_of(
    snap: Snapshot,
    timeline: Timeline,
    rounds: Rounds | None,
    event: int,
    *,
    since_fall: bool = False,
) -> Growth | None:
    """Of which stacks more was in use at the beginning of each step up to an event, and still is.

    Args:
        since_fall: Whether to look too for what is let go of now and then and has piled up since,
            as a list that is kept until an epoch ends. Garbage does so as well: only where it is
            known what that holds.
    """
    if rounds is None:
        return None
    churns = _churns(timeline, rounds.begins)
    begins = [*rounds.begins, event]
    lasting = _lasting_rows(timeline, begins)
    found = _growers(snap, timeline, lasting, begins, since_fall=False)
    if not churns and not any(role is Role.USER for role, _, _ in found):
        # Where nothing is freed, what modules make may be one forward pass, or weights that are
        # loaded: it has piled up where the program's own lines make more beside it each time.
        found = []
    if not churns:
        found = [one for one in found if one[0] is not Role.BUILD]
    if since_fall and churns and _SMALL * _bytes_of(found) < timeline.allocated[event]:
        later = _growers(snap, timeline, lasting, begins, since_fall=True)
        found = max(found, later, key=_bytes_of)
    if not found:
        return None
    seeds = [grower.place for role, grower, _ in found if role is Role.SEED]
    seed = seeds[-1] if seeds else graph_keeper(snap, timeline, rounds, event)
    # Without a line nobody can act: such come last, whatever they hold.
    growers = sorted(
        (grower for _, grower, _ in found),
        key=lambda one: (one.place == UNKNOWN_PLACE, -one.bytes),
    )
    addresses = frozenset(address for _, _, at in found for address in at)
    return Growth(tuple(growers), sum(one.bytes for one in growers), addresses, rounds, seed)


def _bytes_of(found: Sequence[tuple[Role, Grower, list[int]]]) -> int:
    """The bytes of all that grows."""
    return sum(grower.bytes for _, grower, _ in found)


def rises(values: Sequence[int]) -> bool:
    """Whether a series of one value a step rises all along, up to its end.

    Example:
        >>> rises([0, 4, 8, 8, 12, 16]), rises([0, 9, 9, 9, 9, 9]), rises([0, 9, 1, 8, 2, 9])
        (True, False, False)
    """
    changes = [b - a for a, b in pairwise(values)]
    gained = sum(change for change in changes if change > 0)
    lost = gained - (values[-1] - values[0])
    if len(values) < FEWEST or not gained or lost > _LOST * gained:
        return False
    edges = [part * len(values) // _PARTS for part in range(_PARTS + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    steps = [b - a for a, b in pairwise(means)]
    return min(steps) > 0 and steps[-1] >= _LASTING * sum(steps) / len(steps)


def _churns(timeline: Timeline, begins: Sequence[int]) -> bool:
    names, codes = timeline.events.texts("action"), timeline.events.codes("action")
    freed = names.index("free_completed") if "free_completed" in names else NONE
    inner = list(pairwise(begins[1:]))
    churning = sum(freed in codes[begin:end] for begin, end in inner)
    return churning >= _CHURNING * len(inner)


def _lasting_rows(timeline: Timeline, begins: Sequence[int]) -> dict[int, list[tuple[int, ...]]]:
    """By stack, the allocations that were in use when some step began, or at the end."""
    rows = timeline.allocations
    columns = (rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("stack"))
    found: dict[int, list[tuple[int, ...]]] = {}
    low = 0
    for row, (made, freed, stack) in enumerate(zip(*columns, strict=True)):
        # What was freed before the trace (-2) still waits for a stream.
        if freed == -2:
            continue
        # Rows are in order of allocation.
        low = bisect_right(begins, made, low)
        if 0 <= freed < (begins[low] if low < len(begins) else math.inf):
            continue
        high = len(begins) if freed < 0 else bisect_right(begins, freed, low)
        if low < high:
            # Backward's threads record no stack, or an empty one, of the same block.
            found.setdefault(EMPTY if stack == NONE else stack, []).append((row, low, high))
    return found


def _growers(
    snap: Snapshot,
    timeline: Timeline,
    lasting: dict[int, list[tuple[int, ...]]],
    begins: Sequence[int],
    *,
    since_fall: bool,
) -> list[tuple[Role, Grower, list[int]]]:
    """The stacks that hold more and more, with what they do, and where that is."""
    found, others = [], {}
    for code, rows in lasting.items():
        one = _grower(snap, timeline, code, rows, begins, since_fall)
        if one is None:
            others[code] = rows
        else:
            found.append(one)
    merged = _by_site(timeline, others).items()
    more = (_grower(snap, timeline, code, rows, begins, since_fall) for code, rows in merged)
    return [*found, *(one for one in more if one is not None)]


def _by_site(
    timeline: Timeline, lasting: dict[int, list[tuple[int, ...]]]
) -> dict[int, list[tuple[int, ...]]]:
    """Of each line of code that has several stacks, and may make anew in one what it made in
    another, the rows of all; under the stack that made its newest."""
    sites: dict[Place, list[int]] = {}
    for code in lasting:
        sites.setdefault(replace(timeline.places[code], caller=""), []).append(code)
    sites.pop(UNKNOWN_PLACE, None)
    merged = {}
    for codes in sites.values():
        if len(codes) > 1:
            newest = max(codes, key=lambda code: lasting[code][-1][0])
            merged[newest] = sorted(row for code in codes for row in lasting[code])
    return merged


def _grower(
    snap: Snapshot,
    timeline: Timeline,
    code: int,
    rows: list[tuple[int, ...]],
    begins: Sequence[int],
    since_fall: bool,
) -> tuple[Role, Grower, list[int]] | None:
    """What one stack holds more of in every step, or in every one since it was let go of last: what
    it does, that, and where it is."""
    c = timeline.allocations
    sizes, addresses = c.codes("size"), c.codes("address")
    bytes_by, last = [0] * (len(begins) + 1), len(begins) - 2
    for row, low, high in rows:
        bytes_by[low] += sizes[row]
        bytes_by[high] -= sizes[row]
    *held, now = accumulate(bytes_by[:-1])
    # A line that the program comes to late has its own beginning.
    born = next((at for at, size in enumerate(held) if size), 0)
    born = born if len(held) - born >= _FEWEST_SINCE else 0
    held = held[born:]
    ends = _ends(held) if since_fall else []
    if since_fall:
        begin = ends[-1] if ends else 0
        is_highest = max(held[:begin], default=math.inf) * _HIGHER <= held[-1]
        if not is_highest or len(held) - begin < _FEWEST_SINCE:
            return None
        held = held[begin:]
    if not rises(held):
        # The first beginning may be inside a step, and what that step keeps goes with it.
        held = held[1:]
    if not rises(held) or now < _STILL * held[-1]:
        return None
    stack = snap.stacks[code]
    role = role_of(stack)
    grower = Grower(
        place_of(stack),
        held[-1],
        sum(low <= last < high for _, low, high in rows),
        (held[-1] - held[0]) // (len(held) - 1),
        # A value stands for the beginning of a step; of a line that came late the first one is
        # the end of its first step.
        len(held) - (0 if born and not ends else 1),
        _is_made_anew(sizes, rows, last - len(held) // 2, last),
        role is Role.MODULE,
        role is Role.BUILD,
        callers_of(stack),
        len(ends),
        stack,
    )
    if ends and grower.by_size:
        return None
    return role, grower, [addresses[row] for row, _, high in rows if high == len(begins)]


def _is_made_anew(
    sizes: Sequence[int], rows: Sequence[tuple[int, ...]], middle: int, last: int
) -> bool:
    """Whether most of what there was half way is gone at the end, where there is more: larger
    blocks, and not more of them."""
    there = [(row, high) for row, low, high in rows if low <= middle < high]
    kept = sum(sizes[row] for row, high in there if high > last)
    return 2 * kept < sum(sizes[row] for row, _ in there)


def _ends(held: Sequence[int]) -> list[int]:
    return [at for at, (a, b) in enumerate(pairwise(held), 1) if b < _LET_GO * a]


def saw_tooth(timeline: Timeline, event: int) -> SawTooth | None:
    """The saw-tooth of a trace up to an event; None where it shows none."""
    rounds = rounds_before(timeline, event)
    begins = [] if rounds is None else list(rounds.begins)
    if len(begins) < _FEWEST_TEETH:
        parts = min(_MOST_PARTS, event // _EVENTS_A_PART)
        begins = [part * event // parts for part in range(parts)]
    if len(begins) < _FEWEST_TEETH:
        return None
    live = timeline.allocated
    least = floors(live[: event + 1], begins)
    trend = leak_trend(least)
    if trend.resets < 2 or trend.verdict == "leak":
        return None
    falls = [i for i, (a, b) in enumerate(pairwise(least)) if 2 * (a - b) >= trend.reset_bytes]
    piled = live[event] - min(least[falls[-1] :]) if falls else 0
    return SawTooth(max(piled, 0), trend.resets, trend.reset_bytes)


# ---- Demand ------------------------------------------------------------------------------

# Steps before the failing one that it is compared with.
_COMPARED = 8

# A step that asks for so many times what any before asked for at that point is a larger one.
_LARGER = 1.1

# The least part of what a step needed that tells how much larger another one is at that point.
_TELLING_PART = 0.05


@dataclass(frozen=True)
class Demand:
    """What steps needed above what was in use when they began. Sizes in bytes.

    Attributes:
        floor: What was in use when the failing step began.
        typical: What a step needed, in the middle.
        largest: What the largest step before the failing one needed.
        so_far: What the failing step had in use of its own, its last request included.
        expected: What it needs in all, if it goes on as the steps before it did.
        steps: How many steps ended before it.
        unit: "step", or "round" where the trace shows none.
        rise: By how much a step needs more than the one before it, where that goes on.
    """

    floor: int
    typical: int
    largest: int
    so_far: int
    expected: int
    steps: int
    unit: str
    rise: int = 0

    @property
    def is_larger(self) -> bool:
        """Whether the failing step needs clearly more than any before."""
        return self.expected > _LARGER * self.largest


def demand_of(timeline: Timeline, rounds: Rounds | None, failure: Failure) -> Demand | None:
    """What the steps up to a failure needed.

    The failing step is compared with those before it at the same point, which is after as
    many allocations: it needs as many times their bytes in all as it had taken there; or, where
    they had hardly begun, as much as they did on top of that.

    Args:
        timeline: Of the device.
        rounds: Its steps up to the failure.
        failure: The request that failed; one with an event.

    Returns:
        The demand; None where no step ended before the failure.
    """
    if rounds is None or failure.event is None:
        return None
    live, begins = timeline.allocated, rounds.begins
    floors = [live[begin - 1] if begin else 0 for begin in begins]
    peaks = highs(live[: begins[-1]], begins[:-1])
    needs = [peak - floor for peak, floor in zip(peaks, floors, strict=False)]
    if not needs:
        return None
    if len(needs) > 2:
        # In its first step a program makes what stays: gradients, the optimizer's state.
        del needs[0]
    so_far = max(live[failure.event] + failure.size - floors[-1], 0)
    points = same_points(timeline, begins, failure.event)
    # How many times as much the failing step had taken as each of these had at the same point.
    taken = {at: live[point.last] - floors[at] for at, point in points.items()}
    wholes = {at: peaks[at] - floors[at] for at in points}
    ratios = [
        max(so_far / taken[at], points[at].outruns)
        for at in points
        if taken[at] > 0 and taken[at] >= _TELLING_PART * wholes[at]
    ]
    recent = sorted(needs[-_COMPARED:])[len(needs[-_COMPARED:]) // 2]
    scale = sorted(ratios)[len(ratios) // 2] if ratios else 1.0
    # Where all had taken next to nothing there, what was still to come says nothing of its size.
    expected = int(scale * recent) + (so_far if points and not ratios else 0)
    return Demand(
        floor=floors[-1],
        typical=sorted(needs)[len(needs) // 2],
        largest=max(needs),
        so_far=so_far,
        expected=max(expected, so_far),
        steps=len(begins) - 1,
        unit=rounds.unit,
        rise=(needs[-1] - needs[0]) // (len(needs) - 1) if rises(needs) else 0,
    )


@dataclass(frozen=True, slots=True)
class Point:
    """Where a step stands at the point of another one's request.

    Attributes:
        event: Its event there.
        last: The last event of the request's stack that is no later than the point; of a step
            that is outrun its last of all.
        outruns: 0; where the other one has made more requests of the stack than the whole step,
            how many times as long it is, by what both did before they first ran the stack.
    """

    event: int
    last: int
    outruns: float = 0.0


def same_points(timeline: Timeline, begins: Sequence[int], event: int) -> dict[int, Point]:
    """The points of the last steps before a request's that correspond to it, by the step's index
    in `begins`.

    A step's point is its n-th allocation if the stack of that is the request's, else the n-th one
    of that stack. A step that is longer than the earlier one has that much of its loop still
    before it. The last of `begins` is of the request's step.
    """
    ended = len(begins) - 1
    first = max(ended - _COMPARED, 0)
    rows, stacks = timeline.allocations.codes("alloc_event"), timeline.events.codes("stack")
    made = rows[bisect_left(rows, begins[first]) : bisect_left(rows, event)].tolist()
    edges = [bisect_left(made, begin) for begin in begins]
    own = made[edges[-1] :]
    points = {}
    for number in range(first, ended):
        point = _same_point(stacks, stacks[event], own, made[edges[number] : edges[number + 1]])
        if point is not None:
            points[number] = point
    return points


def _same_point(
    stacks: Sequence[int], stack: int, own: Sequence[int], step: Sequence[int]
) -> Point | None:
    """The point in the allocations of a step that corresponds to a request that follows `own`."""
    same = [at for at in step if stacks[at] == stack]
    again = [at for at in own if stacks[at] == stack]
    if len(own) < len(step) and stacks[step[len(own)]] == stack:
        return Point(step[len(own)], step[len(own)])
    if not same:
        return None
    if len(again) < len(same):
        return Point(same[len(again)], same[len(again)])
    longer = _times_as_long(stacks, own[: own.index(again[0])], step[: step.index(same[0])])
    left = max(int(longer * len(same)) - len(again), 0)
    return Point(same[max(len(same) - 1 - left, 0)], same[-1], longer)


def _times_as_long(stacks: Sequence[int], own: Sequence[int], other: Sequence[int]) -> float:
    """How many times as often a step has allocated as another one, with the stacks of both; at
    least once."""
    counts = [Counter(stacks[at] for at in part) for part in (own, other)]
    both = counts[0].keys() & counts[1].keys()
    own_count, other_count = (sum(count[stack] for stack in both) for count in counts)
    return max(own_count / max(other_count, 1), 1.0)


# ---- Phases ------------------------------------------------------------------------------

#: The phases that there are.
PHASES = ("loading", "forward", "backward", "optimizer", "inference", "unknown")

# Functions that read weights, by a part of their file's name.
_LOADERS = (
    ("/torch/serialization.py", ("load", "_load", "_legacy_load")),
    ("/safetensors/", ("load_file", "get_tensor", "safe_open")),
    ("/transformers/modeling_utils.py", ("from_pretrained", "_load_pretrained_model")),
    ("/torch/distributed/checkpoint/", ("load", "load_state_dict")),
)
# The decorator form of torch.no_grad() and torch.inference_mode().
_WITHOUT_GRAD = ("/torch/utils/_contextlib.py", "decorate_context")
_CHECKPOINT = "/torch/utils/checkpoint.py"

_OPTIMIZES = (Role.OPTIMIZER, Role.STATE, Role.ZERO_GRAD, Role.SCALER)
_BACKWARD = (Role.BACKWARD, Role.SEED)

# Of a forward pass that trains, autograd keeps most of what its modules made; without it
# nearly all is freed at once. Between the two shares, and with fewer allocations, nothing
# is told; in a program that trains a pass is forward unless very little is kept.
_KEPT = 0.6
_FREED = 0.35
_FREED_IN_TRAINING = 0.2
_FEWEST = 12
_FEWEST_KEPT = 24


@dataclass(frozen=True)
class Phase:
    """A phase, and what shows it.

    Attributes:
        name: One of `PHASES`.
        why: The evidence in one clause.
    """

    name: str
    why: str


def phase_of(
    stack: Sequence[Frame],
    timeline: Timeline | None = None,
    event: int | None = None,
    grad_enabled: bool | None = None,
) -> Phase:
    """The phase in which a request was made.

    Args:
        stack: Where it was made, innermost frame first; empty where unknown.
        timeline: The trace that it is in; None where there is none, or no time for it.
        event: Its event there; None is after the last.
        grad_enabled: Whether autograd recorded then; None where nobody said.

    Example:
        >>> frames = [Frame("/site/torch/optim/adam.py", 178, "_init_group")]
        >>> phase_of(frames).name
        'optimizer'
    """
    if not stack:
        return _without_stack(timeline)
    role = role_of(stack)
    if role in _BACKWARD:
        return Phase("backward", "the backward pass is on its stack")
    if role in _OPTIMIZES:
        return Phase("optimizer", "an optimizer's step is on its stack")
    if any(_loads(frame) for frame in stack):
        return Phase("loading", "a function that reads weights is on its stack")
    if role is Role.BUILD:
        return Phase("loading", "a module was being made, moved or loaded")
    if any(_path(frame).endswith(_CHECKPOINT) for frame in stack):
        return Phase("forward", "activation checkpointing is on its stack")
    if any(
        (_path(frame)[-len(_WITHOUT_GRAD[0]) :], frame.name) == _WITHOUT_GRAD for frame in stack
    ):
        return Phase("inference", "its caller has switched autograd off")
    return _forward_or_inference(role, timeline, event, grad_enabled)


def _without_stack(timeline: Timeline | None) -> Phase:
    if timeline is not None and _trains(timeline):
        return Phase("backward", "it has no Python stack, as in the threads of backward")
    return Phase("unknown", "no stack was recorded")


def _trains(timeline: Timeline) -> bool:
    return not set(timeline.passes.role).isdisjoint((*_BACKWARD, *_OPTIMIZES))


def _forward_or_inference(
    role: Role, timeline: Timeline | None, event: int | None, grad_enabled: bool | None
) -> Phase:
    in_module = role is Role.MODULE
    if in_module and grad_enabled is not None:
        if grad_enabled:
            return Phase("forward", "inside of a module, with autograd on")
        return Phase("inference", "inside of a module, with autograd off")
    if timeline is None or not len(timeline):
        return Phase("unknown", "there is no trace that tells training from inference")
    end = len(timeline) if event is None else event
    trains = _trains(timeline)
    share, count = _kept_share(timeline, end)
    kept = f"{format_share(share)} of what modules made since is kept"
    told = count >= _FEWEST
    if told and share < (_FREED_IN_TRAINING if trains else _FREED):
        return Phase("inference", kept)
    if trains:
        why = f"between backward passes, and {kept}" if told else "of a program that trains"
        return Phase("forward", why)
    if count >= _FEWEST_KEPT and share >= _KEPT:
        return Phase("forward", kept)
    return Phase("unknown", "nothing in the trace tells training from inference")


def _kept_share(timeline: Timeline, end: int) -> tuple[float, int]:
    """How much of what modules made since the last backward pass lives at an event."""
    passes = timeline.passes
    begin = max((stop for _, stop in passes.backward if stop <= end), default=0)
    module = int(Role.MODULE)
    rows = timeline.allocations
    at = rows.codes("alloc_event")
    since = slice(bisect_left(at, begin), bisect_left(at, end))
    sizes, ends = rows.codes("size")[since], rows.codes("free_event")[since]
    made = kept = count = 0
    for size, event, freed in zip(sizes, at[since], ends, strict=True):
        if passes.role[event] == module:
            made += size
            count += 1
            kept += size if freed == -1 or freed >= end else 0
    return (kept / made if made else 0.0), count


def _path(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def _loads(frame: Frame) -> bool:
    path = _path(frame)
    return any(part in path and frame.name in names for part, names in _LOADERS)
