# SPDX-License-Identifier: Apache-2.0
"""The trace replayed: sizes over time, lifetimes, peaks, holders and layouts.

`Timeline` answers at any event; an event's number is its index in the device's trace. Series
hold the state *after* each event, in bytes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar, cast, overload

from neutracer import units
from neutracer._native import core
from neutracer.arguments import number, whole_number
from neutracer.pickling import Unchanging
from neutracer.render.document import Document, Figure, Paragraph, Place, sentence
from neutracer.render.document import Table as DocumentTable
from neutracer.render.report import PlainRow
from neutracer.trace.roles import CATEGORIES, Categories, Decided, Passes, Role, role_of
from neutracer.trace.stacks import (
    MODULE_MARK,
    NONE,
    UNKNOWN_PLACE,
    Frame,
    Places,
    Stacks,
    forward_stack,
    place_of,
)
from neutracer.trace.table import Column, Table, columns_of
from neutracer.trace.uses import use_columns

_NUMBER = re.compile(r"\d+")

#: By the core's numbers of how steps were found: the word for it, and a sentence.
STEP_WORDS = (
    ("none", "Nothing in the trace repeats, and nothing in it names steps."),
    ("user_metadata", "A step begins where user_metadata says {text!r}."),
    ("annotations", "A step begins where the program's range {text!r} does."),
    ("optimizer", "A step ends with the optimizer's step()."),
    ("backward", "A step ends with its backward pass."),
    ("repetition", "A step begins where the program goes back to {line}."),
    ("repetition", "A step begins where the same allocations and frees begin again."),
)


@dataclass(frozen=True)
class Step(PlainRow):
    """One step: the events from `first` up to, but not with, `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Steps(PlainRow, Sequence[Step]):
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


def steps_of(timeline: core.Timeline, stacks: Stacks) -> Steps:
    """The steps of one device's trace, by the best available evidence."""
    marks = core.step_stacks(timeline)
    roles = bytearray(len(marks))
    for stack in compress(range(len(marks)), marks):
        roles[stack] = role_of(stacks[stack])
    code, raw, text, frame = core.find_steps(timeline, roles)
    edges = array("I", raw)
    how, sentence = STEP_WORDS[code]
    said = sentence.format(
        text=_NUMBER.sub("#", text or ""),
        line="" if frame is None else _line(stacks, frame),
    )
    return Steps(tuple(Step(first, end) for first, end in pairwise(edges)), how, said)


def _line(stacks: Stacks, number: int) -> str:
    """The line of a frame id: "train.py:73"."""
    frame = stacks.frames[number]
    return f"{frame.filename.rpartition('/')[2]}:{frame.line}"


# ---- Layout ------------------------------------------------------------------------------

_SEGMENT_TYPES = ("small", "large")
_STATES = ("inactive", "active_allocated", "active_pending_free")

# The order of the core's pool statistics.
_METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class Layout(Unchanging, instead="send the snapshot, and ask its timeline() for at(event)"):
    """The segments and blocks after an event.

    Attributes:
        segments: As `Snapshot.segments` has them.
        blocks: As `Snapshot.blocks` has them; inactive ones have a requested_size of 0.
    """

    def __init__(self, native: core.Layout, stacks: Stacks) -> None:
        """Made by `Timeline.at`; not by users."""
        self.native = native
        tables = native.tables()
        self.segments = segment_table(tables["segments"], stacks)
        self.blocks = block_table(tables["blocks"], stacks)

    def __repr__(self) -> str:
        return f"<Layout: {len(self.segments):,} segments, {len(self.blocks):,} blocks>"


def segment_table(c: Mapping[str, core.Column], stacks: Stacks) -> Table:
    """The table of a layout's segments."""
    sizes = ("total_size", "allocated_size", "active_size", "requested_size")
    columns = {
        **columns_of(c, "device", "address", *sizes, "stream"),
        "segment_type": Column(lambda: c["kind"], names=_SEGMENT_TYPES),
        **columns_of(c, "pool_first", "pool_second"),
        "is_expandable": Column(lambda: c["is_expandable"], is_flag=True),
        "stack": Column(lambda: c["stack"], null=NONE),
        **columns_of(c, "block_first", "block_count"),
    }
    pairs = {"segment_pool_id": ("pool_first", "pool_second")}
    return Table("segment", columns, len(c["address"]), stacks, pairs)


def block_table(c: Mapping[str, core.Column], stacks: Stacks) -> Table:
    """The table of a layout's blocks."""
    columns = columns_of(c, "segment", "address", "size", "requested_size")
    columns["state"] = Column(lambda: c["state"], names=_STATES)
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    return Table("block", columns, len(c["address"]), stacks)


def named_stats(small: Sequence[int], large: Sequence[int]) -> dict[str, int]:
    """The core's statistics of the two kinds of pools under PyTorch's own keys."""
    stats = {}
    for metric, in_small, in_large in zip(_METRICS, small, large, strict=True):
        stats[f"{metric}.all.current"] = in_small + in_large
        stats[f"{metric}.small_pool.current"] = in_small
        stats[f"{metric}.large_pool.current"] = in_large
    return stats


def unused_share(reserved: int, allocated: int) -> float:
    """(reserved - allocated) / reserved; 0 where nothing is reserved."""
    return (reserved - allocated) / reserved if reserved else 0.0


# ---- Holders -----------------------------------------------------------------------------

#: The name of allocations without a recorded stack.
NO_STACK = UNKNOWN_PLACE.function

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, repr=False)
class Holder:
    """A holder of bytes at one moment.

    Attributes:
        bytes: The sum of its blocks' sizes, as rounded by the allocator.
        requested_bytes: The sum of the requested sizes.
        count: The number of allocations.
        key: Its name; by "stack" the frames, innermost first, empty without a recorded stack.
        share: Its share of all allocated bytes at that moment.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/frag_default.pickle").timeline()
        >>> tl.holders(limit=1)[0]
        <Holder 415 MiB (70.2 %) in 60 blocks: frag (train.py:155)>
    """

    bytes: int
    requested_bytes: int
    count: int
    key: str | tuple[Frame, ...]
    share: float

    def to_dict(self) -> dict[str, Any]:
        """The holder as plain data; frames are dicts with PyTorch's own keys."""
        key = self.key if isinstance(self.key, str) else [frame._asdict() for frame in self.key]
        numbers = {"bytes": self.bytes, "requested_bytes": self.requested_bytes}
        return {"key": key, **numbers, "count": self.count, "share": self.share}

    def __repr__(self) -> str:
        key = self.key
        if not isinstance(key, str):
            at = f"{place_of(key)}, {units.format_count(len(key), 'frame')}" if key else ""
            key = at or NO_STACK
        held = f"{units.format_bytes(self.bytes)} ({units.format_share(self.share)})"
        return f"<Holder {held} in {units.format_count(self.count, 'block')}: {sentence(key)}>"


def merged(
    rows: Iterable[tuple[Key, int, int, int]],
) -> list[tuple[Key, int, int, int]]:
    """Rows of a key, bytes, requested bytes and a count, summed by key, most bytes first."""
    sums: dict[Key, list[int]] = {}
    for key, nbytes, requested, count in rows:
        held = sums.setdefault(key, [0, 0, 0])
        held[0] += nbytes
        held[1] += requested
        held[2] += count
    ranked = [(key, held[0], held[1], held[2]) for key, held in sums.items()]
    return sorted(ranked, key=lambda row: -row[1])


@dataclass(frozen=True)
class Moment(PlainRow):
    """A value of a series and its time.

    Attributes:
        event: The event after which the series has the value, counted within the device's
            trace; -1 is before the first.
        time_us: Its time in microseconds since the epoch; None if unknown.
        bytes: The value.
    """

    event: int
    time_us: int | None
    bytes: int


@dataclass(frozen=True)
class Churn(PlainRow):
    """The allocations of one stack over the whole trace.

    Attributes:
        stack: The frames, innermost first; empty if none were recorded.
        count: The number of allocations in the trace.
        bytes: The sum of their sizes.
        peak_bytes: The most bytes held at once.
        peak_event: The event of that peak.
    """

    stack: tuple[Frame, ...]
    count: int
    bytes: int
    peak_bytes: int
    peak_event: int


# ---- Groups ------------------------------------------------------------------------------

#: The groupings of holders.
GROUPINGS = ("place", "line", "function", "stack", "module", "category")

# The core's codes of groupings.
_NUMBERS = {"stack": 0, "line": 1, "function": 2}

# A key, bytes, requested bytes and allocations.
_Row = tuple[Any, int, int, int]

#: The name for allocations outside of all modules, or recorded without `modules`.
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
        """Module names by code of user_metadata."""
        return {
            code: text.removeprefix(MODULE_MARK) or "(the model itself)"
            for code, text in enumerate(self._events.texts("user_metadata"))
            if text.startswith(MODULE_MARK)
        }

    def module_of(self, row: int) -> str:
        """The module of an allocation."""
        event = self._rows.codes("alloc_event")[row]
        if event < 0:
            return NO_MODULE
        code = self._events.codes("user_metadata")[event]
        return self._module_names.get(code, NO_MODULE)

    @cached_property
    def _backward(self) -> list[tuple[int, int, Place]]:
        """The backward passes with a known caller, in order, with the caller's line: the only
        place of allocations on autograd's own threads."""
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
        """Whether any allocation has the stack of its forward operation."""
        return bool(self._events.texts("forward_frames"))

    def _forward_place(self, code: int) -> Place:
        """The line of a backward allocation's forward operation: "backward of forward
        (model.py:12)"."""
        known = self._forward_places.get(code)
        if known is None:
            known = place_of(forward_stack(self._events.texts("forward_frames")[code]))
            if known is not UNKNOWN_PLACE:
                known = replace(known, function=f"backward of {known.function}".rstrip())
            self._forward_places[code] = known
        return known

    def place_of(self, row: int) -> Place:
        """The place of an allocation."""
        place = self._places[self._rows.codes("stack")[row]]
        if place is UNKNOWN_PLACE:
            return self._stackless(self._rows.codes("alloc_event")[row])
        return place

    def _stackless(self, event: int) -> Place:
        """The place of an event without a stack, by its forward operation or by the line that
        called backward(); event -1: before the trace."""
        forward = self._forward_codes[event] if event >= 0 else NONE
        if forward != NONE:
            place = self._forward_place(forward)
            if place is not UNKNOWN_PLACE:
                return place
        at = bisect_right(self._backward, event, key=itemgetter(0)) - 1
        if event >= 0 and at >= 0 and event < self._backward[at][1]:
            return self._backward[at][2]
        return UNKNOWN_PLACE

    def by_place(self, event: int) -> Iterator[tuple[Place, int, int, int]]:
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
        """The rows alive after an event with one of some stacks, allocated since the first backward
        pass began, or since the trace began if it has stacks of forward operations."""
        made, freed = self._rows.codes("alloc_event"), self._rows.codes("free_event")
        # Rows are in allocation order.
        begin = 0 if self._has_forward else self._backward[0][0]
        first, end = bisect_left(made, begin), bisect_right(made, event)
        ways = zip(self._rows.codes("stack")[first:end], freed[first:end], strict=True)
        return [
            row
            for row, (stack, gone) in enumerate(ways, first)
            if (gone > event or gone == -1) and stack in stacks
        ]

    def held(self, event: int, by: str, categories: Callable[[], list[_Row]]) -> list[_Row]:
        """Keys with their bytes, requested bytes and allocations after an event, most bytes
        first; `categories` computes them by category."""
        if by == "category":
            return categories()
        if by == "module":
            return self._held_by_module(event)
        if by == "place":
            rows = self.by_place(event)
            return merged((str(place), n, asked, count) for place, n, asked, count in rows)
        if by == "stack":
            found = self._native.holders(event, _NUMBERS["stack"])
            return [(self._stacks[stack], n, asked, count) for stack, count, n, asked in found]
        return merged(
            (self._frame_name(by, frame), nbytes, requested, count)
            for frame, count, nbytes, requested in self._native.holders(event, _NUMBERS[by])
        )

    def _frame_name(self, by: str, number: int) -> str:
        if number == NONE:
            return NO_STACK
        frame = self._stacks.frames[number]
        if by == "function":
            return f"{frame.name} ({frame.filename})"
        return f"{frame.filename}:{frame.line}" if frame.line else frame.filename or frame.name

    def _held_by_module(self, event: int) -> list[_Row]:
        size, asked = self._rows.codes("size"), self._rows.codes("requested_size")
        return merged((self.module_of(row), size[row], asked[row], 1) for row in self._live(event))

    def held_by_module(self, event: int) -> dict[str, int]:
        """The allocated bytes after an event by module, most first; empty without modules."""
        if not self._module_names:
            return {}
        return {name: nbytes for name, nbytes, _, _ in self._held_by_module(event)}

    def ranked(self, name: Callable[[int], str], peak: int, limit: int) -> Table:
        """The bytes after each event by the names of rows, those with the most at the peak."""
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
        """The bytes after each event by code; `names` are the columns."""
        count = len(self._events)
        series = memoryview(core.series_codes(self._native, codes, len(names))).cast("Q")
        columns = {
            "event": Column(lambda: array("q", range(count))),
            "time_us": Column(lambda: self._events["time_us"]),
        }
        parts = {name: series[at * count :][:count] for at, name in enumerate(names)}
        columns |= columns_of(parts, *names)
        return Table("event", columns, count)

    def alive(self, event: int) -> Table:
        """The table of `Timeline.alive`."""
        size = self._rows.codes("size")
        return self._rows.take(sorted(self._live(event), key=lambda row: -size[row]))


# ---- Lives -------------------------------------------------------------------------------

# An address, or a block's name in PyTorch's viewer: b7f3a00000000_2, in newer releases
# b'7f3a00000000_2. The number counts earlier blocks at the address.
_NAME = re.compile(r"b'?([0-9a-f]{1,16})_(\d+)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)


class _PlaceNames(Sequence[str]):
    """The distinct places of some stack ids, computed lazily."""

    def __init__(self, stacks: memoryview, places: Places) -> None:
        self._stacks = stacks
        self._places = places

    @cached_property
    def _found(self) -> tuple[list[str], array[int]]:
        numbers: dict[str, int] = {}
        of_stack: dict[int, int] = {}
        for stack in set(self._stacks):
            of_stack[stack] = numbers.setdefault(str(self._places[stack]), len(numbers))
        return list(numbers), array("I", map(of_stack.__getitem__, self._stacks))

    def codes(self) -> array[int]:
        """One place number per stack id."""
        return self._found[1]

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._found[0][at]

    def __len__(self) -> int:
        return len(self._found[0])


def _versions(addresses: Any) -> array[int]:
    """How many rows with the same address precede each row."""
    counts: dict[int, int] = {}
    versions = array("I")
    for address in memoryview(addresses):
        versions.append(counts.get(address, 0))
        counts[address] = versions[-1] + 1
    return versions


def allocation_table(
    c: Mapping[str, Any],
    uses: tuple[array[int], array[int]] | None,
    stacks: Stacks,
    decided: Decided,
    places: Places,
) -> Table:
    """The table of `Timeline.allocations`, from the core's columns."""
    columns = columns_of(c, *(name for name in c if name != "stack"))
    if uses is not None:
        columns |= {
            "first_use_event": Column(lambda: uses[0]),
            "last_use_event": Column(lambda: uses[1]),
        }
    columns["version"] = Column(lambda: _versions(c["address"]))
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    columns["category"] = Column(lambda: decided.categories.codes, names=CATEGORIES)
    by_place = _PlaceNames(memoryview(c["stack"]), places)
    columns["place"] = Column(by_place.codes, names=by_place)
    return Table("allocation", columns, len(c["address"]), stacks)


def segment_lives(c: Mapping[str, Any], stacks: Stacks) -> Table:
    """The table of `Timeline.segments`, from the core's columns."""
    columns = {
        **columns_of(c, "address", "size", "stream", "pool_first", "pool_second"),
        "segment_type": Column(lambda: c["kind"], names=_SEGMENT_TYPES),
        "is_expandable": Column(lambda: c["is_expandable"], is_flag=True),
        "pool_known": Column(lambda: c["pool_known"], is_flag=True),
        **columns_of(c, "alloc_event", "free_event"),
        "stack": Column(lambda: c["stack"], null=NONE),
    }
    pairs = {"segment_pool_id": ("pool_first", "pool_second")}
    return Table("segment", columns, len(c["address"]), stacks, pairs)


def int_address(text: str) -> int:
    """Parse an address, or a block's name in PyTorch's viewer.

    Example:
        >>> int_address("0x7f00"), int_address("b7f00_2")
        (32512, 32512)
    """
    found = _NAME.fullmatch(text.strip()) or _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither an address nor a block's name in PyTorch's viewer")
    return int(found[1], 16)


def named_rows(allocations: Table, block: int | str) -> list[int]:
    """The rows of `Timeline.named`; raises its errors."""
    version: str | None = None
    if isinstance(block, str):
        name = _NAME.fullmatch(block.strip())
        address, version = int_address(block), name and name[2]
    else:
        address = whole_number("block", block, "an address, or a block's name")
    rows = [row for row, at in enumerate(allocations.codes("address")) if at == address]
    if version is None:
        return rows
    return rows[int(version) : int(version) + 1]


# ---- Timeline ----------------------------------------------------------------------------

# The core's codes of metrics.
_SERIES = {"allocated": 0, "active": 1, "reserved": 2, "requested": 3}

# Holders in the rich display.
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
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Made by `Snapshot.timeline`, not by users; `tensors` are categories of final blocks by
        address, `settings` the file's."""
        self.device = device
        self._name = name or f"cuda:{device}"
        self.events = events
        self._stacks, self._tensors, self._settings = stacks, tensors, settings
        self._native = core.Timeline(snapshot, device)
        self._columns = self._native.tables()

    @property
    def native(self) -> core.Timeline:
        """The core's object, for other parts of neutracer."""
        return self._native

    @cached_property
    def program(self) -> core.Program:
        """The program's requests and frees, for other parts of neutracer."""
        return core.Program(self._native)

    def __len__(self) -> int:
        return len(self.events)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Facts found by the replay: complete, start_bytes, slack_bound, preexisting,
        unmatched, oom_count, release_runs, retries, retries_known, frees_known."""
        return MappingProxyType(self._native.facts())

    def _series(self, metric: str) -> memoryview:
        return memoryview(self._native.series(_SERIES[metric]))

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
        """Bytes reserved on the device after each event."""
        return self._series("reserved")

    @cached_property
    def requested(self) -> memoryview:
        """Bytes requested in active blocks, after each event."""
        return self._series("requested")

    @property
    def time_us(self) -> memoryview:
        """The time of each event in microseconds since the epoch; 0 if unknown."""
        return cast(memoryview, self.events["time_us"])

    def peak(self, metric: str = "allocated") -> Moment:
        """The largest value of a series, the state before the first event included.

        Args:
            metric: "allocated", "active", "reserved" or "requested".

        Raises:
            ValueError: There is no such series.
        """
        if metric not in tuple(_SERIES):
            raise ValueError(f"no series {metric!r}; there are {', '.join(_SERIES)}")
        event, nbytes = self._native.peak(_SERIES[metric])
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
        """One row per allocation, those from before the trace first.

        Columns: address, size (of the block), requested_size (bytes), stream,
        alloc_event (-1: before the trace), free_event (of free_requested; -1: not in the
        trace, -2: before it), completed_event (of free_completed; -1: not in the trace),
        version (earlier rows at the address: PyTorch's viewer names the block
        `b<address>_<version>`, as `named` takes it), stack, category (as in `categories`),
        place (as in `holders`).

        If uses were observed (`rehearse`) also first_use_event (-1: nothing
        used it after the operator that made it; -2: unknown) and last_use_event (-2: unknown),
        each the last request before the use. Writes in place and uses through views count, views
        alone don't.
        """
        columns = self._columns["allocations"]
        made = memoryview(columns["alloc_event"])
        uses = use_columns(self._settings, self.device, self.events.codes("action"), made)
        # Without a reference to the timeline, which keeps this table.
        return allocation_table(columns, uses, self._stacks, self._decided, self.places)

    def named(self, block: int | str) -> Table:
        """The rows of `allocations` at an address, in order of time.

        Args:
            block: A number, a text like "0x7f3a00", or a block's name in PyTorch's viewer
                ("b7f3a00_2"), which has one row.

        Raises:
            ValueError: It is neither an address nor a name.
            TypeError: It is neither a number nor a str.
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
        """The steps of the program, and the evidence for them."""
        return steps_of(self._native, self._stacks)

    @property
    def categories(self) -> Categories:
        """The category of each row of `allocations`, with the deciding rule."""
        return self._decided.categories

    def lifetimes_us(self) -> list[int | None]:
        """The lifetime of each row of `allocations` in microseconds, from its alloc to its
        free_requested; None if one is not in the trace, or the file has no times."""
        times = self.time_us
        rows = zip(self.allocations["alloc_event"], self.allocations["free_event"], strict=True)
        return [
            times[freed] - times[made] if made >= 0 and freed >= 0 and times[made] else None
            for made, freed in cast("list[tuple[int, int]]", list(rows))
        ]

    @cached_property
    def segments(self) -> Table:
        """One row per segment, or per range of an expandable one.

        Columns: address, size (bytes), stream, segment_type, pool_first, pool_second,
        is_expandable, pool_known, alloc_event (-1: before the trace), free_event (-1:
        not in the trace), stack.
        """
        return segment_lives(self._columns["segments"], self._stacks)

    @cached_property
    def places(self) -> Places:
        """The place of each stack id, for other parts of neutracer."""
        return Places(self._stacks)

    def holders(
        self, event: int | None = None, by: str = "place", limit: int | None = 10
    ) -> list[Holder]:
        """The holders of the allocated bytes after an event, largest first.

        Args:
            event: The event; None is the peak of allocated, -1 before the first.
            by: "place" (the innermost line of the program's own code, with the innermost line of
                a library called from there), "line" (file and line of the innermost frame),
                "function", "stack", "module" (if recorded with `record(modules=model)`) or
                "category".
            limit: The most holders; None is all.

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
            raise ValueError(f"unknown grouping by {by!r}; there are by {', '.join(GROUPINGS)}")
        at = self._native.peak(0)[0] if event is None else self._event(event)
        found = self._groups.held(at, by, lambda: self.categories.live(at))
        total = sum(nbytes for _, nbytes, _, _ in found)
        return [
            Holder(nbytes, requested, count, key, nbytes / total if total else 0.0)
            for key, nbytes, requested, count in found[:limit]
        ]

    def held_by_place(self, event: int | None = None) -> list[tuple[Place, int, int, int]]:
        """Places with their allocated bytes, requested bytes and allocations after an event, most
        bytes first; for other parts of neutracer."""
        at = self._native.peak(0)[0] if event is None else self._event(event)
        return merged(self._groups.by_place(at))

    def place_of_allocation(self, row: int) -> Place:
        """The place of a row of `allocations`, as `held_by_place` has it."""
        return self._groups.place_of(row)

    def held_by_module(self, event: int) -> dict[str, int]:
        """Allocated bytes by module after an event, most first; empty without modules."""
        return self._groups.held_by_module(event)

    @cached_property
    def _groups(self) -> Groups:
        tables = (self.events, self.allocations, self._stacks, self.places)
        return Groups(self._native, *tables, self._decided)

    def alive(self, at: str | int = "peak") -> Table:
        """The blocks allocated at one moment, largest first.

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
            raise ValueError(f"at must be 'peak', 'end' or an event, not {at!r}")
        event = named[at] if isinstance(at, str) else self._event(at)
        return self._groups.alive(event)

    def by_category(self) -> Table:
        """The allocated bytes after each event by category.

        Returns:
            Columns: event, time_us (since the epoch; 0: unknown), and one per category.

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
            limit: The number of places, those with the most bytes at the peak; "others" is an
                additional column.

        Raises:
            ValueError: `limit` is not 1 to 100.
        """
        groups = self._groups
        return groups.ranked(lambda row: str(groups.place_of(row)), self.peak().event, limit)

    def by_module(self, limit: int = 10) -> Table:
        """The allocated bytes after each event by module; as `by_place`."""
        return self._groups.ranked(self._groups.module_of, self.peak().event, limit)

    def churn(self) -> list[Churn]:
        """The allocations of each stack over the trace, most bytes first."""
        rows = (Churn(self._stacks[stack], *rest) for stack, *rest in self._native.churn())
        return sorted(rows, key=lambda row: -row.bytes)

    def __repr__(self) -> str:
        peak = units.format_bytes(self.peak().bytes)
        return f"<Timeline of {self._name}: {len(self):,} events, peak {peak}>"

    def _repr_html_(self) -> str:
        from neutracer.render.html import inline_html
        from neutracer.render.text import strip_svg

        peak, most = self.peak(), self.peak("reserved")
        held = self.held_by_place()[:_SHOWN]
        rows = tuple((Figure.bytes(size), Figure.count(n, "block"), at) for at, size, _, n in held)
        peaks = (("peak allocated", peak), ("peak reserved", most))
        figures = tuple(
            (name, Figure.bytes(at.bytes), units.format_event(at.event)) for name, at in peaks
        )
        hint = "Summary only. For details: neutracer.view(snapshot), .holders() and .allocations."
        blocks = (DocumentTable("", figures), DocumentTable("Holders at the peak", rows))
        title, facts = f"Timeline of {self._name}", (units.format_count(len(self), "event"),)
        ooms = [i for i, action in enumerate(self.events["action"]) if action == "oom"]
        picture = strip_svg(self.allocated, self.reserved, ooms)
        return inline_html(Document(title, facts, (*blocks, Paragraph(hint))), picture)
