# SPDX-License-Identifier: Apache-2.0
"""What a program had piled up, step after step, when it ran out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from neutracer.diagnose.leaks.trend import leak_trend
from neutracer.render.document import Place
from neutracer.trace.categories import CATEGORIES
from neutracer.trace.places import place_of
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.table import NONE
from neutracer.trace.timeline import Timeline

__all__ = ["Grower", "Growth", "SawTooth", "growth_of", "saw_tooth"]

# Growth needs at least this many steps; a step is at most this many times as long as the
# middle one.
_FEWEST_STEPS = 5
_UNLIKE = 4

# A saw-tooth needs at least this many steps; without steps the trace is cut into parts.
_FEWEST_TEETH = 12
_MOST_PARTS = 240
_EVENTS_A_PART = 8

# Stacks tried for what comes round where the trace has no steps.
_MOST_ANCHORS = 64

# Of the steps so many leave something behind; and the older half of them has at least this
# share of what the newer half has: what is merely not freed yet thins out with its age.
_MOST_STEPS = 0.8
_EVEN = 0.6

# Without steps a stack must keep so much of what it makes, in blocks.
_KEPT = 0.6

# What is there to stay.
_STAYS = ("parameter", "optimizer_state", "gradient")
_BUILDS = (Role.BUILD, Role.STATE, Role.OPTIMIZER)


@dataclass(frozen=True)
class Grower:
    """One line that leaves memory behind in every step.

    Attributes:
        place: The line.
        bytes: What it had left behind, but for the last step's.
        count: How many blocks that is.
        bytes_per_step: What it leaves behind a step.
    """

    place: Place
    bytes: int
    count: int
    bytes_per_step: int


@dataclass(frozen=True)
class Growth:
    """What was piled up.

    Attributes:
        growers: Who, the most bytes first.
        bytes: All of it.
        addresses: Where these blocks begin.
        steps: Over how many steps it piled up.
        has_steps: Whether the trace shows steps; else they are rounds of what repeats in it.
        create_graph: The line whose backward(create_graph=True) keeps its gradients, as the
            first gradient of the pass shows, which any other pass frees; None: none does.
    """

    growers: tuple[Grower, ...]
    bytes: int
    addresses: frozenset[int]
    steps: int
    has_steps: bool
    create_graph: Place | None = None

    @property
    def bytes_per_step(self) -> int:
        """What is left behind a step."""
        return sum(grower.bytes_per_step for grower in self.growers)


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


def growth_of(snap: Snapshot, timeline: Timeline, event: int) -> Growth | None:
    """What stacks left behind step after step up to an event.

    A stack leaks if nearly every step left blocks of it that were alive at the event, of
    old steps as much as of new ones; weights, optimizer state and gradients are none. Where
    the trace shows no steps (the last one broke off), a step begins where a line of the
    program outside of modules comes again: the layers of one forward pass are no steps.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        event: The event.

    Returns:
        The growth, or None where there is none, or too few steps to tell.
    """
    begins, has_steps = _steps_before(timeline, event)
    if len(begins) < _FEWEST_STEPS:
        return None
    if not _churns(timeline, begins):
        return None
    found = []
    addresses: set[int] = set()
    seed: Place | None = None
    live = _live_rows(timeline, event)
    if not has_steps:
        live = _kept_mostly(timeline, live, event)
    for code, rows in live.items():
        grower, at = _grower(snap, timeline, code, rows, begins)
        if grower is not None:
            found.append(grower)
            addresses.update(at)
            if role_of(snap.stacks[code]) is Role.SEED:
                seed = grower.place
    if not found:
        return None
    found.sort(key=lambda one: -one.bytes)
    total = sum(one.bytes for one in found)
    return Growth(tuple(found), total, frozenset(addresses), len(begins), has_steps, seed)


def _steps_before(timeline: Timeline, event: int) -> tuple[list[int], bool]:
    """The first events of the steps up to an event."""
    steps = timeline.steps
    begins = [step.first for step in steps if step.first <= event]
    # What repeats may be the layers of one forward pass: these begin inside of a module.
    repeats = steps.how == "repetition"
    if begins and repeats and timeline.passes.role[begins[0]] != Role.USER:
        begins = []
    if len(begins) >= _FEWEST_STEPS:
        return begins, True
    return _rounds(timeline, event), False


def _rounds(timeline: Timeline, event: int) -> list[int]:
    """The events at which the first stack outside of modules comes round that does so all
    along; empty where none does."""
    passes = timeline.passes
    at: dict[int, list[int]] = {}
    for number in range(event):
        if passes.allocates[number] and passes.role[number] == Role.USER:
            at.setdefault(passes.stack[number], []).append(number)
    several = [found for found in at.values() if len(found) >= _FEWEST_STEPS]
    for found in sorted(several)[:_MOST_ANCHORS]:
        lengths = [end - begin for begin, end in pairwise([*found, event])]
        if max(lengths) <= _UNLIKE * sorted(lengths)[len(lengths) // 2]:
            return found
    return []


def _churns(timeline: Timeline, begins: Sequence[int]) -> bool:
    """Whether every step but the last frees something: else the program is loading."""
    freed = [0] * len(begins)
    part = -1
    for at, name in enumerate(timeline.events["action"][: begins[-1]]):
        while part + 1 < len(begins) and begins[part + 1] <= at:
            part += 1
        if part >= 0:
            freed[part] += name == "free_completed"
    return all(freed[1:-1])


def _live_rows(timeline: Timeline, event: int) -> dict[int, list[int]]:
    """Rows of allocations alive at the event that may be a leak, by stack."""
    rows = timeline.allocations
    made, freed = rows.codes("alloc_event"), rows.codes("free_event")
    stacks, passes = rows.codes("stack"), timeline.passes
    stays = {CATEGORIES.index(name) for name in _STAYS}
    category = timeline.categories.codes
    skipped = {int(role) for role in _BUILDS}
    found: dict[int, list[int]] = {}
    for row, (begin, end) in enumerate(zip(made, freed, strict=True)):
        if begin > event or end == -2 or 0 <= end <= event or stacks[row] == NONE:
            continue
        if category[row] in stays or (begin >= 0 and passes.role[begin] in skipped):
            continue
        found.setdefault(stacks[row], []).append(row)
    return found


def _kept_mostly(
    timeline: Timeline, live: dict[int, list[int]], event: int
) -> dict[int, list[int]]:
    """The stacks of which most of what they made up to the event is alive."""
    made = Counter(
        code
        for code, begin in zip(
            timeline.allocations.codes("stack"),
            timeline.allocations.codes("alloc_event"),
            strict=True,
        )
        if begin <= event
    )
    return {code: rows for code, rows in live.items() if len(rows) >= _KEPT * made[code]}


def _grower(
    snap: Snapshot, timeline: Timeline, code: int, rows: list[int], begins: Sequence[int]
) -> tuple[Grower | None, list[int]]:
    """What one stack left behind, if every step did; and where that is."""
    c = timeline.allocations
    made, sizes, addresses = c.codes("alloc_event"), c.codes("size"), c.codes("address")
    sums = [0] * len(begins)
    step, old = -1, []
    last = begins[-1]
    for row in rows:  # By their events, those from before the trace first.
        event = made[row]
        while step + 1 < len(begins) and begins[step + 1] <= event:
            step += 1
        if step >= 0:
            sums[step] += sizes[row]
        if event < last:
            old.append(row)
    steady = sums[:-1]
    leaving = sum(1 for one in steady if one)
    half = len(steady) // 2
    older, newer = sum(steady[:half]), sum(steady[half:])
    even = older * (len(steady) - half) >= _EVEN * newer * half
    if leaving < max(_MOST_STEPS * len(steady), _FEWEST_STEPS - 1) or not even:
        return None, []
    held = sum(sizes[row] for row in old)
    place = place_of(snap.stacks[code])
    rate = sum(steady) // len(steady)
    return Grower(place, held, len(old), rate), [addresses[row] for row in old]


def saw_tooth(timeline: Timeline, event: int) -> SawTooth | None:
    """The saw-tooth of a trace up to an event; None where it shows none."""
    begins, _ = _steps_before(timeline, event)
    if len(begins) < _FEWEST_TEETH:
        parts = min(_MOST_PARTS, event // _EVENTS_A_PART)
        begins = [part * event // parts for part in range(parts)]
    if len(begins) < _FEWEST_TEETH:
        return None
    live = timeline.allocated
    floors = [min(live[begin:end]) for begin, end in pairwise([*begins, event + 1])]
    trend = leak_trend(floors)
    if trend.verdict != "cycle_garbage":
        return None
    falls = [i for i, (a, b) in enumerate(pairwise(floors)) if 2 * (a - b) >= trend.reset_bytes]
    piled = live[event] - min(floors[falls[-1] :]) if falls else 0
    return SawTooth(max(piled, 0), trend.resets, trend.reset_bytes)
