# SPDX-License-Identifier: Apache-2.0
"""What a program had piled up, step after step, when it ran out of memory."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from neutracer.diagnose.leaks.series import floors
from neutracer.diagnose.leaks.trend import leak_trend
from neutracer.diagnose.oom.kept_graph import graph_keeper
from neutracer.diagnose.oom.rounds import FEWEST, Rounds, rounds_before
from neutracer.render.document import Place
from neutracer.trace.places import UNKNOWN_PLACE, callers_of, place_of
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["Grower", "Growth", "SawTooth", "growth_of", "rises", "saw_tooth"]

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

# What grows by size keeps about as many blocks: fewer more than one in so many steps.
_STEPS_A_BLOCK = 5


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
    """Of which stacks more was in use at the beginning of each step, and still is.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        rounds: Its steps up to the event; None: there are too few.
        event: The event that is asked about.
        since_fall: Whether to look too for what is let go of now and then and has piled up since,
            as a list that is kept until an epoch ends. Garbage does so as well: only where it is
            known what that holds.

    Returns:
        The growth, or None where there is none.
    """
    if rounds is None or not _churns(timeline, rounds.begins):
        return None
    begins = [*rounds.begins, event]
    lasting = _lasting_rows(timeline, begins)
    found = _growers(snap, timeline, lasting, begins, since_fall=False)
    if not found and since_fall:
        found = _growers(snap, timeline, lasting, begins, since_fall=True)
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
    """Whether most steps but the first and the last free something: else the program is
    loading."""
    freed = timeline.events.find("action", "free_completed")
    inner = list(pairwise(begins[1:]))
    churning = sum(bisect_left(freed, begin) < bisect_left(freed, end) for begin, end in inner)
    return churning >= _CHURNING * len(inner)


def _lasting_rows(timeline: Timeline, begins: Sequence[int]) -> dict[int, list[tuple[int, ...]]]:
    """By stack, the allocations that were in use when some step began, or at the end.

    Each as its row, the number of the first such moment, and of the first one after it.
    """
    rows = timeline.allocations
    columns = (rows.codes("alloc_event"), rows.codes("free_event"), rows.codes("stack"))
    found: dict[int, list[tuple[int, ...]]] = {}
    for row, (made, freed, stack) in enumerate(zip(*columns, strict=True)):
        # What was freed before the trace (-2) still waits for a stream.
        if stack == NONE or freed == -2:
            continue
        low = bisect_right(begins, made)
        high = len(begins) if freed < 0 else bisect_right(begins, freed)
        if low < high:
            found.setdefault(stack, []).append((row, low, high))
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
    found = []
    for code, rows in lasting.items():
        grower, at = _grower(snap, timeline, code, rows, begins, since_fall)
        if grower is not None:
            found.append((role_of(snap.stacks[code]), grower, at))
    return found


def _grower(
    snap: Snapshot,
    timeline: Timeline,
    code: int,
    rows: list[tuple[int, ...]],
    begins: Sequence[int],
    since_fall: bool,
) -> tuple[Grower | None, list[int]]:
    """What one stack holds more of in every step, or in every one since it was let go of last;
    and where that is. The last moment is the one that is asked about."""
    c = timeline.allocations
    sizes, addresses = c.codes("size"), c.codes("address")
    bytes_by, blocks_by = [0] * (len(begins) + 1), [0] * (len(begins) + 1)
    for row, low, high in rows:
        bytes_by[low] += sizes[row]
        bytes_by[high] -= sizes[row]
        blocks_by[low] += 1
        blocks_by[high] -= 1
    *held, now = accumulate(bytes_by[:-1])
    *blocks, _ = accumulate(blocks_by[:-1])
    ends = _ends(held) if since_fall else []
    if since_fall:
        begin = ends[-1] if ends else 0
        is_highest = max(held[:begin], default=math.inf) * _HIGHER <= held[-1]
        if not is_highest or len(held) - begin < _FEWEST_SINCE:
            return None, []
        held, blocks = held[begin:], blocks[begin:]
    if not rises(held) or now < _STILL * held[-1]:
        return None, []
    stack = snap.stacks[code]
    role = role_of(stack)
    grower = Grower(
        place_of(stack),
        held[-1],
        blocks[-1],
        (held[-1] - held[0]) // (len(held) - 1),
        len(held),
        (blocks[-1] - blocks[0]) * _STEPS_A_BLOCK < len(held),
        role is Role.MODULE,
        role is Role.BUILD,
        callers_of(stack),
        len(ends),
    )
    if ends and grower.by_size:
        return None, []
    return grower, [addresses[row] for row, _, high in rows if high == len(begins)]


def _ends(held: Sequence[int]) -> list[int]:
    """The steps at whose beginning a series has lost most of what it had."""
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
