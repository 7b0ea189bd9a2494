# SPDX-License-Identifier: Apache-2.0
"""A timeline's allocations put into groups: by module, and any groups over its events."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

from neutracer._native import core
from neutracer.arguments import whole_number
from neutracer.render.document import Place
from neutracer.trace.categories import Decided
from neutracer.trace.holding import NO_STACK, merged
from neutracer.trace.places import UNKNOWN_PLACE, Places, place_of
from neutracer.trace.roles import Role
from neutracer.trace.stacks import MODULE_MARK, NONE, Stacks, forward_stack
from neutracer.trace.table import Column, Table

__all__ = ["GROUPINGS", "NO_MODULE", "Groups"]

#: What holders are put together by.
GROUPINGS = ("place", "line", "function", "stack", "module", "category")

# The core's numbers of those that it knows.
_NUMBERS = {"stack": 0, "line": 1, "function": 2}

# A key, bytes, requested bytes and allocations.
_Row = tuple[Any, int, int, int]

#: What was allocated outside of all modules, or without `modules`.
NO_MODULE = "(no module)"

_OTHERS = "others"
_MOST_COLUMNS = 100


class Groups:
    """The groups of one timeline; made by it, not by users."""

    def __init__(
        self,
        native: core.Timeline,
        events: Table,
        allocations: Table,
        stacks: Stacks,
        places: Places,
        decided: Decided,
    ) -> None:
        self._native = native
        self._stacks = stacks
        self._events = events
        self._rows = allocations
        self._places = places
        self._decided = decided
        self._forward_places: dict[int, Place] = {}

    def _live(self, event: int) -> Iterator[int]:
        made, freed = self._rows.codes("alloc_event"), self._rows.codes("free_event")
        for row, (begin, end) in enumerate(zip(made, freed, strict=True)):
            if begin <= event and (end > event or end == -1):
                yield row

    @cached_property
    def _module_names(self) -> dict[int, str]:
        """The module of each code of user_metadata that names one."""
        return {
            code: text.removeprefix(MODULE_MARK) or "(the model itself)"
            for code, text in enumerate(self._events.texts("user_metadata"))
            if text.startswith(MODULE_MARK)
        }

    def _module(self, row: int) -> str:
        event = self._rows.codes("alloc_event")[row]
        if event < 0:
            return NO_MODULE
        code = self._events.codes("user_metadata")[event]
        return self._module_names.get(code, NO_MODULE)

    @cached_property
    def _backward(self) -> list[tuple[int, int, Place]]:
        """The backward passes of which it is known who began them, rising, with the line of
        that. What autograd's own threads allocate has no other one."""
        passes, found = self._decided.passes, []
        for begin, end in passes.backward:
            seeds = (e for e in range(begin, end) if passes.role[e] == Role.SEED)
            stack = next((passes.stack[event] for event in seeds), NONE)
            if stack != NONE:
                found.append((begin, end, replace(self._places[stack], function="backward pass")))
        return found

    @cached_property
    def _forward_codes(self) -> memoryview:
        return self._events.codes("forward_frames")

    @cached_property
    def _has_forward(self) -> bool:
        """Whether some allocation has the stack of its forward operation."""
        return bool(self._events.texts("forward_frames"))

    def _forward_place(self, code: int) -> Place:
        """The line of the forward operation whose backward allocates: "backward of forward
        (model.py:12)"."""
        known = self._forward_places.get(code)
        if known is None:
            known = place_of(forward_stack(self._events.texts("forward_frames")[code]))
            if known is not UNKNOWN_PLACE:
                known = replace(known, function=f"backward of {known.function}".rstrip())
            self._forward_places[code] = known
        return known

    def _place_of(self, row: int) -> Place:
        place = self._places[self._rows.codes("stack")[row]]
        if place is UNKNOWN_PLACE:
            return self._stackless(self._rows.codes("alloc_event")[row])
        return place

    def _stackless(self, event: int) -> Place:
        """The place of what an event without a stack allocates, by its forward's stack or by
        the line that called backward(); -1: before the trace."""
        forward = self._forward_codes[event] if event >= 0 else NONE
        if forward != NONE:
            place = self._forward_place(forward)
            if place is not UNKNOWN_PLACE:
                return place
        at = bisect_right(self._backward, event, key=itemgetter(0)) - 1
        if event >= 0 and at >= 0 and event < self._backward[at][1]:
            return self._backward[at][2]
        return UNKNOWN_PLACE

    def _place(self, row: int) -> str:
        return str(self._place_of(row))

    def _by_place(self, event: int) -> Iterator[tuple[Place, int, int, int]]:
        nameless, left = set(), [0, 0, 0]
        for stack, count, nbytes, requested in self._native.holders(event, _NUMBERS["stack"]):
            place = self._places[stack]
            if place is UNKNOWN_PLACE and (self._backward or self._has_forward):
                nameless.add(stack)
                left = [left[0] + nbytes, left[1] + requested, left[2] + count]
            else:
                yield place, nbytes, requested, count
        for row in self._of_passes(event, nameless) if nameless else ():
            place = self._stackless(self._rows.codes("alloc_event")[row])
            if place is not UNKNOWN_PLACE:
                size = self._rows.codes("size")[row]
                asked = self._rows.codes("requested_size")[row]
                left = [left[0] - size, left[1] - asked, left[2] - 1]
                yield place, size, asked, 1
        if left[2]:
            yield UNKNOWN_PLACE, left[0], left[1], left[2]

    def _of_passes(self, event: int, stacks: set[int]) -> list[int]:
        """The rows that are alive after an event, have one of these stacks, and were made since
        the first backward pass began; where forward's stacks are known, since the trace did."""
        made, freed = self._rows.codes("alloc_event"), self._rows.codes("free_event")
        # Rows are in the order in which they were made.
        begin = 0 if self._has_forward else self._backward[0][0]
        first, end = bisect_left(made, begin), bisect_right(made, event)
        ways = zip(self._rows.codes("stack")[first:end], freed[first:end], strict=True)
        return [
            row
            for row, (stack, gone) in enumerate(ways, first)
            if (gone > event or gone == -1) and stack in stacks
        ]

    def held(self, event: int, by: str, categories: Callable[[], list[_Row]]) -> list[_Row]:
        """Keys with their bytes, requested bytes and allocations after an event, the most
        bytes first; `categories` gives them by category."""
        if by == "category":
            return categories()
        if by == "module":
            return self._held_by_module(event)
        if by == "place":
            rows = self._by_place(event)
            return merged((str(place), n, asked, count) for place, n, asked, count in rows)
        if by == "stack":
            found = self._native.holders(event, _NUMBERS["stack"])
            return [(self._stacks[stack], n, asked, count) for stack, count, n, asked in found]
        return merged(
            (self._frame_name(by, frame), nbytes, requested, count)
            for frame, count, nbytes, requested in self._native.holders(event, _NUMBERS[by])
        )

    def held_by_place(self, event: int) -> list[tuple[Place, int, int, int]]:
        """The same by place."""
        return merged(self._by_place(event))

    def _frame_name(self, by: str, number: int) -> str:
        """What a line or function is called."""
        if number == NONE:
            return NO_STACK
        frame = self._stacks.frame(number)
        if by == "function":
            return f"{frame.name} ({frame.filename})"
        return f"{frame.filename}:{frame.line}" if frame.line else frame.filename or frame.name

    def _held_by_module(self, event: int) -> list[_Row]:
        size, asked = self._rows.codes("size"), self._rows.codes("requested_size")
        return merged((self._module(row), size[row], asked[row], 1) for row in self._live(event))

    def held_by_module(self, event: int) -> dict[str, int]:
        """The allocated bytes after an event by module, the most first; empty where no event
        says its module."""
        if not self._module_names:
            return {}
        return {name: nbytes for name, nbytes, _, _ in self._held_by_module(event)}

    def by_module(self, peak: int, limit: int) -> Table:
        """The table of `Timeline.by_module`."""
        return self._ranked(self._module, peak, limit)

    def by_place(self, peak: int, limit: int) -> Table:
        """The table of `Timeline.by_place`."""
        return self._ranked(self._place, peak, limit)

    def _ranked(self, name: Callable[[int], str], peak: int, limit: int) -> Table:
        limit = whole_number("limit", limit, least=1)
        if limit > _MOST_COLUMNS:
            raise ValueError(f"limit is {limit}: it must be {_MOST_COLUMNS} at most")
        size = self._rows.codes("size")
        held = merged((name(row), size[row], 0, 1) for row in self._live(peak))
        columns = [one for one, *_ in held[:limit]]
        number = {one: at for at, one in enumerate(columns)}
        codes = bytes(number.get(name(row), len(columns)) for row in range(len(self._rows)))
        return self.over_events(codes, [*columns, _OTHERS])

    def over_events(self, codes: bytes, names: Sequence[str]) -> Table:
        """The bytes after each event of each code; `names` are the columns."""
        count = len(self._events)
        series = memoryview(core.series_codes(self._native, codes, len(names))).cast("Q")
        columns = {
            "event": Column(lambda: array("q", range(count))),
            "time_us": Column(lambda: self._events["time_us"]),
        }
        for at, name in enumerate(names):
            part = series[at * count : (at + 1) * count]
            columns[name] = Column(cast("Callable[[], Any]", lambda part=part: part))
        return Table("event", columns, count)

    def alive(self, event: int) -> Table:
        """The table of `Timeline.alive`."""
        size = self._rows.codes("size")
        return self._rows.take(sorted(self._live(event), key=lambda row: -size[row]))
