# SPDX-License-Identifier: Apache-2.0
"""A trace cut into the steps of its program, to compare one with the next."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast, overload

from neutracer.trace.roles import Passes, Role
from neutracer.trace.table import NONE, Table

__all__ = ["Step", "Steps", "steps_of"]

_NUMBER = re.compile(r"\d+")

# A structure that repeats is believed if so much of the stacks that recur fit its period,
# if its steps are at most so many times as long as the middle one, and if that has so many
# events at least: a loop over three allocations is no step.
_FITTING = 0.8
_UNLIKE = 4
_SHORTEST = 16

_OF_OPTIMIZER = (Role.OPTIMIZER, Role.STATE, Role.ZERO_GRAD, Role.SCALER)


@dataclass(frozen=True)
class Step:
    """One step: the events from `first` up to, but not with, `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Steps(Sequence[Step]):
    """The steps of a trace, in order.

    Attributes:
        steps: The steps. What comes before the first (the model's making) and after the last
            belongs to none.
        how: How they were found: "user_metadata", "annotations", "optimizer", "backward",
            "repetition", or "none".
        explanation: The same as a sentence.

    Example:
        >>> import neutracer
        >>> found = neutracer.load("tests/data/metadata.pickle.xz").timeline().steps
        >>> len(found), found.how
        (3, 'user_metadata')
    """

    steps: tuple[Step, ...]
    how: str
    explanation: str

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        return self.steps[index]

    def of(self, event: int) -> int | None:
        """The number of the step that an event belongs to, or None."""
        at = bisect_left(self.steps, event + 1, key=lambda step: step.first) - 1
        return at if at >= 0 and event < self.steps[at].end else None


NO_STEPS = Steps((), "none", "Nothing in the trace repeats, and nothing in it names steps.")


def steps_of(events: Table, passes: Passes, annotations: Table | None) -> Steps:
    """The steps of one device's trace, by the best evidence that there is.

    Args:
        events: The device's events.
        passes: Its forward and backward passes.
        annotations: The snapshot's named ranges; None where there are none.
    """
    finders: tuple[Callable[[], Steps | None], ...] = (
        lambda: _by_metadata(events),
        lambda: _by_annotations(events, annotations),
        lambda: _by_optimizer(events, passes, annotations),
        lambda: _by_backward(passes),
        lambda: _by_repetition(events, passes.allocates),
    )
    for finder in finders:
        found = finder()
        if found is not None:
            return found
    return NO_STEPS


def _cut(starts: Sequence[int], end: int) -> tuple[Step, ...]:
    """Steps that begin at `starts`, each up to the next, the last up to `end`."""
    edges = [*starts, end]
    return tuple(Step(a, b) for a, b in pairwise(edges) if b > a)


def _by_metadata(events: Table) -> Steps | None:
    """Each run of events with one user_metadata, where the texts count up or repeat."""
    names = events["user_metadata"]
    runs: list[tuple[int, str]] = []
    for event, name in enumerate(names):
        if name and (not runs or runs[-1][1] != name):
            runs.append((event, str(name)))
    if len(runs) < 2:
        return None
    patterns = Counter(_NUMBER.sub("#", name) for _, name in runs)
    pattern, count = patterns.most_common(1)[0]
    if count >= 2 and "#" in pattern:
        starts = [event for event, name in runs if _NUMBER.sub("#", name) == pattern]
    else:
        starts = [event for event, name in runs if name == runs[0][1]]
    if len(starts) < 2:
        return None
    steps = _cut(starts, len(events))
    return Steps(steps, "user_metadata", f"A step begins where user_metadata says {pattern!r}.")


def _by_annotations(events: Table, annotations: Table | None) -> Steps | None:
    """Ranges whose names differ in a number only."""
    times = cast(memoryview, events["time_us"])
    if annotations is None or not len(times) or not times[0]:
        return None
    ranges: dict[str, list[tuple[int, str]]] = {}
    rows = zip(annotations["stage"], annotations["name"], annotations["time_us"], strict=True)
    for stage, name, at in rows:
        pattern = _NUMBER.sub("#", str(name or ""))
        if stage == "START" and "#" in pattern and not str(name).startswith("Optimizer."):
            ranges.setdefault(pattern, []).append((cast(int, at), str(name)))
    for pattern, found in ranges.items():
        if len(found) < 2 or len({name for _, name in found}) != len(found):
            continue
        starts = sorted({bisect_left(times, at) for at, _ in found})
        steps = _cut([at for at in starts if at < len(events)], len(events))
        if len(steps) >= 2:
            said = f"A step begins where the program's range {pattern!r} does."
            return Steps(steps, "annotations", said)
    return None


def _by_optimizer(events: Table, passes: Passes, annotations: Table | None) -> Steps | None:
    """A step ends with the optimizer's: by PyTorch's own range, or else by its stacks."""
    ends = _optimizer_ranges(events, annotations) or _optimizer_runs(passes.role)
    steps = _between(passes, ends)
    if len(steps) < 2:
        return None
    return Steps(steps, "optimizer", "A step ends with the optimizer's step().")


def _optimizer_ranges(events: Table, annotations: Table | None) -> list[int]:
    times = cast(memoryview, events["time_us"])
    if annotations is None or not len(times) or not times[0]:
        return []
    rows = zip(annotations["stage"], annotations["name"], annotations["time_us"], strict=True)
    return [
        bisect_left(times, cast(int, at) + 1)
        for stage, name, at in rows
        if stage == "END" and str(name).startswith("Optimizer.step#")
    ]


def _optimizer_runs(role: bytearray) -> list[int]:
    working = (Role.OPTIMIZER, Role.STATE)
    return [
        event + 1
        for event in range(len(role) - 1)
        if role[event] in working and role[event + 1] not in working
    ]


def _by_backward(passes: Passes) -> Steps | None:
    steps = _between(passes, [end for _, end in passes.backward])
    if len(steps) < 2:
        return None
    return Steps(steps, "backward", "A step ends with its backward pass.")


def _between(passes: Passes, ends: Sequence[int]) -> tuple[Step, ...]:
    """Steps that end at the first allocation from each of `ends` on that is not the
    optimizer's, if a backward pass is in them."""
    if not passes.backward:
        return ()
    allocates, role = passes.allocates, passes.role
    begins = [begin for begin, _ in passes.backward]
    edges = [_first_event(passes, begins[0])]
    for end in sorted(ends):
        edge = end
        while edge < len(allocates) and (not allocates[edge] or role[edge] in _OF_OPTIMIZER):
            edge += 1
        if bisect_left(begins, edge) > bisect_left(begins, edges[-1]):
            edges.append(edge)
    if len(edges) > 1 and passes.next_forward(edges[-1] - 1) is None:
        edges[-1] = len(allocates)
    return _cut(edges[:-1], edges[-1])


def _first_event(passes: Passes, backward: int) -> int:
    """Where the first step begins: after the making of the model."""
    role = passes.role
    build = int(Role.BUILD)
    for event in range(backward - 1, -1, -1):
        if role[event] == build:
            return event + 1
    return 0


def _by_repetition(events: Table, allocates: Sequence[int]) -> Steps | None:
    """The first stack that repeats, if what else repeats fits its period."""
    stack = events.codes("stack")
    at: dict[int, list[int]] = {}
    before = NONE
    for event, code in enumerate(stack):
        if not allocates[event]:
            continue
        if code != before and code != NONE:
            at.setdefault(code, []).append(event)
        before = code
    several = {code: found for code, found in at.items() if len(found) >= 3}
    if len(several) < 2:
        return None
    anchor = min(several, key=lambda code: several[code][0])
    count = len(several[anchor])
    fitting = sum(1 for found in several.values() if len(found) % count == 0)
    steps = _cut(several[anchor], len(events))
    lengths = sorted(step.end - step.first for step in steps)
    middle = lengths[len(lengths) // 2]
    if middle < _SHORTEST or lengths[-1] > _UNLIKE * middle:
        return None
    if fitting < _FITTING * len(several):
        return None
    said = "A step begins where the first stack comes round again; all else keeps its period."
    return Steps(steps, "repetition", said)
