# SPDX-License-Identifier: Apache-2.0
"""One device's trace replayed: the series, their peaks, who held what, and where it lay."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

from neutracer import units
from neutracer._native import core
from neutracer.arguments import number, whole_number
from neutracer.pickling import Unchanging
from neutracer.render.document import Document, Figure, Paragraph, Place
from neutracer.render.document import Table as DocumentTable
from neutracer.trace.categories import CATEGORIES, Categories, Decided
from neutracer.trace.groups import GROUPINGS, Groups
from neutracer.trace.holding import Churn, Holder, Moment
from neutracer.trace.layout import Layout
from neutracer.trace.lives import allocation_table, named_rows, segment_table
from neutracer.trace.places import Places
from neutracer.trace.roles import Passes
from neutracer.trace.stacks import Stacks
from neutracer.trace.steps import Steps, steps_of
from neutracer.trace.table import Table

__all__ = ["Churn", "Holder", "Moment", "Timeline"]

# The core's numbers of the metrics.
_METRICS = {"allocated": 0, "active": 1, "reserved": 2, "requested": 3}

# Lines of the program that the rich display shows.
_SHOWN = 5


class Timeline(Unchanging, instead="send the snapshot, and ask that for its timeline()"):
    """One device's trace. Events are counted within it, from 0.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/frag_default.pickle").timeline()
        >>> tl.peak("allocated").bytes, tl.peak("reserved").bytes
        (619585536, 2126512128)
    """

    def __init__(
        self,
        snapshot: core.Snapshot,
        device: int,
        events: Table,
        stacks: Stacks,
        name: str = "",
        tensors: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Made by `Snapshot.timeline`; not by users. `tensors`: by address, the category of a
        block at the end."""
        self.device = device
        self._name = name or f"cuda:{device}"
        self.events = events
        self._stacks, self._tensors = stacks, tensors
        self._native = core.Timeline(snapshot, device)
        self._columns = self._native.tables()

    @property
    def native(self) -> core.Timeline:
        """The core's object, for other parts of neutracer."""
        return self._native

    @cached_property
    def program(self) -> core.Program:
        """What the trace asked of the allocator, for other parts of neutracer."""
        return core.Program(self._native)

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the replay found out: complete, start_bytes, slack_bound, preexisting,
        unmatched, oom_count, release_runs, retries, retries_known, frees_known."""
        return MappingProxyType(self._native.facts())

    def _series(self, metric: str) -> memoryview:
        return memoryview(self._native.series(_METRICS[metric]))

    @cached_property
    def allocated(self) -> memoryview:
        """Bytes in allocated blocks after each event."""
        return self._series("allocated")

    @cached_property
    def active(self) -> memoryview:
        """Bytes in allocated blocks and in those waiting for a stream, after each event."""
        return self._series("active")

    @cached_property
    def reserved(self) -> memoryview:
        """Bytes taken from the device after each event."""
        return self._series("reserved")

    @cached_property
    def requested(self) -> memoryview:
        """Bytes requested in active blocks, after each event."""
        return self._series("requested")

    @property
    def time_us(self) -> memoryview:
        """When each event was, in microseconds since the epoch; 0 where unknown."""
        return cast(memoryview, self.events["time_us"])

    def peak(self, metric: str = "allocated") -> Moment:
        """The largest value of a series, the state before the first event included.

        Args:
            metric: "allocated", "active", "reserved" or "requested".

        Raises:
            ValueError: There is no such series.
        """
        if metric not in tuple(_METRICS):
            raise ValueError(f"no series {metric!r}; there are {', '.join(_METRICS)}")
        event, nbytes = self._native.peak(_METRICS[metric])
        time_us = self.time_us[event] if event >= 0 else 0
        return Moment(event, time_us or None, nbytes)

    def _event(self, event: int) -> int:
        event = whole_number("event", event)
        if not -1 <= event < len(self):
            raise ValueError(f"event {event} is not among the {len(self)} of the trace")
        return event

    def event_at(self, time_us: int) -> int:
        """The last event up to a time in microseconds since the epoch; -1: none.

        Raises:
            ValueError: The file has no times (before torch 2.2).
        """
        if len(self) and not self.time_us[-1]:
            raise ValueError("the events of this snapshot have no times")
        return bisect_right(self.time_us, number("time_us", time_us)) - 1

    def at(self, event: int) -> Layout:
        """The layout after an event; -1 is before the first.

        Raises:
            ValueError: There is no such event.
        """
        return Layout(self._native.layout(self._event(event)), self._stacks)

    @cached_property
    def allocations(self) -> Table:
        """One row an allocation, those from before the trace first.

        Columns: address, size (of the block), requested_size (bytes), stream,
        alloc_event (-1: before the trace), free_event (of free_requested; -1: not in the
        trace, -2: before it), completed_event (of free_completed; -1: not in the trace),
        stack, category (as `categories` has it), place (as `holders` has it).
        """
        # Nothing here holds the timeline itself.
        return allocation_table(
            self._columns["allocations"], self._stacks, self._decided, self.places
        )

    def named(self, block: int | str) -> Table:
        """The rows of `allocations` at an address, in the order of time: a number, a text
        like "0x7f3a00", or a block as PyTorch's viewer names it ("b7f3a00_2"), which is one.

        Raises:
            ValueError: It is none of these.
        """
        return self.allocations.take(named_rows(self.allocations, block))

    @cached_property
    def _decided(self) -> Decided:
        return Decided(self._native, self.events, self._stacks, self._tensors)

    @property
    def passes(self) -> Passes:
        """The forward and backward passes, for other parts of neutracer."""
        return self._decided.passes

    @cached_property
    def steps(self) -> Steps:
        """The steps of the program, and how they were found."""
        return steps_of(self._native, self._stacks)

    @property
    def categories(self) -> Categories:
        """What each row of `allocations` was for, with the rule that decided."""
        return self._decided.categories

    def lifetimes_us(self) -> list[int | None]:
        """How long each row of `allocations` lived, in microseconds.

        From its alloc to its free_requested; None where one of them is not in the trace,
        or the file has no times.
        """
        times = self.time_us
        rows = zip(self.allocations["alloc_event"], self.allocations["free_event"], strict=True)
        return [
            times[freed] - times[made] if made >= 0 and freed >= 0 and times[made] else None
            for made, freed in cast("list[tuple[int, int]]", list(rows))
        ]

    @cached_property
    def segments(self) -> Table:
        """One row a segment, or a range of an expandable one, with its life.

        Columns: address, size (bytes), stream, segment_type, pool_first, pool_second,
        is_expandable, pool_known, alloc_event (-1: before the trace), free_event (-1:
        not in the trace), stack.
        """
        return segment_table(self._columns["segments"], self._stacks)

    @cached_property
    def places(self) -> Places:
        """The place of each stack id, for other parts of neutracer."""
        return Places(self._stacks)

    def holders(
        self, event: int | None = None, by: str = "place", limit: int | None = 10
    ) -> list[Holder]:
        """Who holds the allocated bytes after an event, the largest first.

        Args:
            event: The event; None is the peak of allocated, -1 before the first.
            by: "place" (the innermost line of the program's own code, and where that called
                a library, the innermost line of the library beside it), "line" (file and
                line of the innermost frame), "function", "stack", "module" (where it was
                recorded with `record(modules=model)`) or "category".
            limit: How many at most; None is all.

        Raises:
            ValueError: There is no such event, or no such grouping.

        Example:
            >>> import neutracer
            >>> tl = neutracer.load("tests/data/frag_default.pickle").timeline()
            >>> [holder.key for holder in tl.holders()]
            ['frag (train.py:155)', 'frag (train.py:159)']
        """
        limit = None if limit is None else whole_number("limit", limit, least=0)
        if by not in GROUPINGS:
            raise ValueError(f"holders by {by!r} are not known; by {', '.join(GROUPINGS)}")
        at = self._native.peak(0)[0] if event is None else self._event(event)
        found = self._groups.held(at, by, lambda: self.categories.live(at))
        total = sum(nbytes for _, nbytes, _, _ in found)
        return [
            Holder(nbytes, requested, count, key, nbytes / total if total else 0.0)
            for key, nbytes, requested, count in found[:limit]
        ]

    def held_by_place(self, event: int | None = None) -> list[tuple[Place, int, int, int]]:
        """Places with their allocated bytes, requested bytes and allocations after an event,
        the most bytes first; for other parts of neutracer."""
        at = self._native.peak(0)[0] if event is None else self._event(event)
        return self._groups.held_by_place(at)

    def held_by_module(self, event: int) -> dict[str, int]:
        """Allocated bytes by module after an event, the most first; empty: none is known."""
        return self._groups.held_by_module(event)

    @cached_property
    def _groups(self) -> Groups:
        tables = (self.events, self.allocations, self._stacks, self.places)
        return Groups(self._native, *tables, self._decided)

    def alive(self, at: str | int = "peak") -> Table:
        """The blocks that are allocated at one moment, the largest first.

        Args:
            at: "peak" (of allocated), "end", or an event; -1 is before the first.

        Returns:
            Rows of `allocations`, with its columns.

        Raises:
            ValueError: There is no such moment.

        Example:
            >>> import neutracer
            >>> tl = neutracer.load("tests/data/frag_default.pickle").timeline()
            >>> sum(tl.alive()["size"]) == tl.peak().bytes
            True
            >>> largest = tl.alive()[0]
            >>> largest.size, largest.place
            (184549376, 'frag (train.py:159)')
        """
        named = {"peak": self.peak().event, "end": len(self) - 1}
        if isinstance(at, str) and at not in named:
            raise ValueError(f"at is {at!r}: it must be 'peak', 'end' or an event")
        event = named[at] if isinstance(at, str) else self._event(at)
        return self._groups.alive(event)

    def by_category(self) -> Table:
        """The allocated bytes after each event by category.

        Returns:
            Columns: event, time_us (since the epoch; 0: unknown), one a category.

        Example:
            >>> import neutracer
            >>> tl = neutracer.load("tests/data/leak_list.pickle.xz").timeline()
            >>> table = tl.by_category()
            >>> table["parameter"][len(tl) - 1] >> 20
            128
        """
        return self._groups.over_events(self.categories.codes, CATEGORIES)

    def by_place(self, limit: int = 10) -> Table:
        """The allocated bytes after each event by place, as `holders` has it.

        Args:
            limit: Columns of places: those that hold the most at the peak; "others" is one
                more.

        Raises:
            ValueError: `limit` is not 1 to 100.
        """
        return self._groups.by_place(self.peak().event, limit)

    def by_module(self, limit: int = 10) -> Table:
        """The allocated bytes after each event by module, as `by_place` has them by place."""
        return self._groups.by_module(self.peak().event, limit)

    def churn(self) -> list[Churn]:
        """What each stack allocated over the trace, the most bytes first."""
        rows = (Churn(self._stacks[stack], *rest) for stack, *rest in self._native.churn())
        return sorted(rows, key=lambda row: -row.bytes)

    def __repr__(self) -> str:
        peak = units.format_bytes(self.peak().bytes)
        return f"<Timeline of {self._name}: {len(self):,} events, peak {peak}>"

    def _repr_html_(self) -> str:
        from neutracer.render.inline import inline_html
        from neutracer.render.strip import strip_svg

        peak, most = self.peak(), self.peak("reserved")
        held = self.held_by_place()[:_SHOWN]
        rows = tuple((Figure.bytes(size), Figure.count(n, "block"), at) for at, size, _, n in held)
        peaks = (("peak allocated", peak), ("peak reserved", most))
        figures = tuple((name, Figure.bytes(at.bytes), f"event {at.event:,}") for name, at in peaks)
        hint = "Only a summary. All of it: neutracer.view(snapshot), .holders() and .allocations."
        blocks = (DocumentTable("", figures), DocumentTable("Who holds the peak", rows))
        title, facts = f"Timeline of {self._name}", (units.format_count(len(self), "event"),)
        ooms = [i for i, action in enumerate(self.events["action"]) if action == "oom"]
        picture = strip_svg(self.allocated, self.reserved, ooms)
        return inline_html(Document(title, facts, (*blocks, Paragraph(hint))), picture)
