# SPDX-License-Identifier: Apache-2.0
"""`phases`: each turn of the phases that a recording has marks of, and what outlives them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from neutracer.budget import Budget, budget_of, outside_now
from neutracer.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Cell,
    Document,
    Figure,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, PlacedRow, PlainRow, Report, ranked
from neutracer.trace.events import device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.marks import Turn, chosen_turns, device_use, turns_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

# ---- Rows --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TurnRow(PlainRow):
    """One turn of a phase: bytes at its begin, its peak and its end.

    Attributes:
        phase: The phase's name.
        number: 0 for its first turn in the file.
        first, end: Its events, from `first` up to, but not with, `end`.
        begin_us, end_us: Microseconds since the epoch.
        begin_allocated_bytes, peak_allocated_bytes, end_allocated_bytes: Allocated.
        begin_reserved_bytes, peak_reserved_bytes, end_reserved_bytes: Reserved by PyTorch.
        begin_other_bytes, peak_other_bytes, end_other_bytes: In use on the device and not
            PyTorch's: of other libraries and processes. The peak is the most that was read. None
            if the file has no reading there.
        asleep_bytes: Reserved at its end, and at least so much of that not on the device: pools
            whose pages are unmapped. None without a reading.
        has_begun, has_ended: False if the file has no mark of its begin, or of its end; the figures
            are then those where the trace begins or ends.
    """

    phase: str
    number: int
    first: int
    end: int
    begin_us: int
    end_us: int
    begin_allocated_bytes: int
    peak_allocated_bytes: int
    end_allocated_bytes: int
    begin_reserved_bytes: int
    peak_reserved_bytes: int
    end_reserved_bytes: int
    begin_other_bytes: int | None
    peak_other_bytes: int | None
    end_other_bytes: int | None
    asleep_bytes: int | None
    has_begun: bool = True
    has_ended: bool = True

    @property
    def left_bytes(self) -> int:
        """Allocated at its end more than at its begin; may be negative."""
        return self.end_allocated_bytes - self.begin_allocated_bytes


@dataclass(frozen=True)
class Survivor(PlacedRow):
    """Allocations of a turn that outlive it, from one line, of one category and pool.

    Attributes:
        function, filename, line, package, caller: The line, as in `Place`.
        bytes: Their bytes.
        count: The number of them.
        category: "KV cache", or as in `Timeline.categories`.
        pool: The private pool; (0, 0) is the default pool.
        owner: Who in the program holds them, as far as the file or this process says; else "".
    """

    function: str
    filename: str
    line: int
    bytes: int
    count: int
    category: str
    pool: tuple[int, int]
    package: str = ""
    caller: str = ""
    owner: str = ""


@dataclass(frozen=True)
class TurnGrowth(PlacedRow):
    """A line whose bytes are more at the end of each turn than at the end of the one before.

    Attributes:
        function, filename, line, package, caller: The line, as in `Place`.
        ends: Its bytes at the end of each turn, from turn `since` on.
        since: The number of the first of these turns: 1 if the first turn, which may be a warm-up,
            is an exception.
    """

    function: str
    filename: str
    line: int
    ends: tuple[int, ...]
    since: int
    package: str = ""
    caller: str = ""

    @property
    def least_bytes(self) -> int:
        """The least that a turn adds."""
        return min(after - before for before, after in pairwise(self.ends))

    @property
    def most_bytes(self) -> int:
        """The most that a turn adds."""
        return max(after - before for before, after in pairwise(self.ends))


@dataclass(frozen=True)
class PinnedSegment(PlacedRow):
    """Segments that only survivors of a turn keep from the device, by the largest one's line.

    Attributes:
        function, filename, line, package, caller: The line, as in `Place`.
        free_bytes: Free bytes in these segments.
        held_bytes: Bytes of the survivors in them.
        count: The number of segments.
    """

    function: str
    filename: str
    line: int
    free_bytes: int
    held_bytes: int
    count: int
    package: str = ""
    caller: str = ""


@dataclass(frozen=True)
class PhaseRow(PlainRow):
    """A phase over all of its turns.

    Attributes:
        phase: Its name.
        turns: The number of its turns in the file.
        peak_allocated_bytes: The most allocated in any of them.
        survivors: What outlives its last turn that has ended, the most bytes first.
        growth: The lines that hold more at the end of each turn; from three turns on.
        pins: The segments that only these survivors keep from the device.
    """

    phase: str
    turns: int
    peak_allocated_bytes: int
    survivors: tuple[Survivor, ...]
    growth: tuple[TurnGrowth, ...]
    pins: tuple[PinnedSegment, ...]


# ---- Trace -------------------------------------------------------------------------------

# A boundary's reading of the device's use is taken behind it. A mark's time may have been moved by
# the first of these, and the driver answers within the second.
_BEFORE_US, _BEHIND_US = 1_000, 20_000


class _Trace:
    """One device's timeline with what all turns ask of it."""

    def __init__(self, snap: Snapshot, device: int) -> None:
        self.timeline: Timeline = snap.timeline(device)
        self.turns = turns_of(snap, device)
        self._holders = snap.beside.holders.get(device, {})
        self._use = device_use(snap, device)
        self._times = [time_us for time_us, _ in self._use]

    def pools(self, event: int, addresses: Collection[int]) -> dict[int, tuple[int, int]]:
        """The pools of some blocks in use after an event, by their addresses: an allocation of a
        graph's pool has no pool of its own in the trace, but its segment has."""
        if not addresses:
            return {}
        layout = self.timeline.at(event)
        first, second = map(layout.segments.codes, ("pool_first", "pool_second"))
        blocks = zip(*map(layout.blocks.codes, ("address", "segment")), strict=True)
        return {at: (first[one], second[one]) for at, one in blocks if at in addresses}

    @cached_property
    def rows(self) -> tuple[Sequence[int], ...]:
        """The columns alloc_event, free_event, size, stack and address of all allocations."""
        table = self.timeline.allocations
        names = ("alloc_event", "free_event", "size", "stack", "address")
        return tuple(table.codes(name) for name in names)

    def levels(self, event: int) -> tuple[int, int]:
        """Allocated and reserved before an event."""
        if event == 0:
            allocated, _, reserved, _ = self.timeline.facts["start_bytes"]
            return allocated, reserved
        return self.timeline.allocated[event - 1], self.timeline.reserved[event - 1]

    def row(self, turn: Turn) -> TurnRow:
        begin, end = self.levels(turn.first), self.levels(turn.end)
        part = slice(turn.first, turn.end)
        peaks = [
            max(max(series[part], default=0), at)
            for series, at in zip(
                (self.timeline.allocated, self.timeline.reserved), begin, strict=True
            )
        ]
        begin_use = self._reading(turn.begin_us) if turn.has_begun else None
        end_use = self._reading(turn.end_us) if turn.has_ended else None
        return TurnRow(
            turn.phase,
            turn.number,
            turn.first,
            turn.end,
            turn.begin_us,
            turn.end_us,
            begin[0],
            peaks[0],
            end[0],
            begin[1],
            peaks[1],
            end[1],
            _other(begin_use, begin[1]),
            self._most_other(turn),
            _other(end_use, end[1]),
            None if end_use is None else max(end[1] - end_use, 0),
            turn.has_begun,
            turn.has_ended,
        )

    def _reading(self, time_us: int) -> int | None:
        at = bisect_left(self._times, time_us - _BEFORE_US)
        if at == len(self._use) or self._times[at] > time_us + _BEHIND_US:
            return None
        return self._use[at][1]

    def _most_other(self, turn: Turn) -> int | None:
        first = bisect_left(self._times, turn.begin_us - _BEFORE_US)
        last = bisect_right(self._times, turn.end_us + _BEHIND_US)
        times = self.timeline.time_us
        found = [
            used - self.levels(bisect_left(times, at))[1] for at, used in self._use[first:last]
        ]
        return max(0, *found) if found else None

    def owners(
        self, alive: Mapping[str, Sequence[tuple[int, int]]], is_live: bool
    ) -> dict[str, str]:
        """By line, who holds its blocks: in this process, or at the end of the file."""
        if not is_live:
            return {line: self._holders.get(line, "") for line in alive}
        from neutracer.heap.owners import holders_of

        return holders_of(alive)

    def survivors(self, turn: Turn) -> list[int]:
        """Rows of the allocations that a turn made and that outlive it."""
        made, freed = self.rows[:2]
        first, last = bisect_left(made, turn.first), bisect_left(made, turn.end)
        ends = enumerate(freed[first:last], first)
        return [row for row, gone in ends if gone == -1 or gone >= turn.end]


def _other(used: int | None, reserved: int) -> int | None:
    return None if used is None else max(used - reserved, 0)


# ---- Growth ------------------------------------------------------------------------------

# From this many turns on growth is more than a difference.
_LEAST_TURNS = 3


def _growth(trace: _Trace, turns: Sequence[Turn]) -> tuple[TurnGrowth, ...]:
    """The lines that hold more bytes at each end than at the one before."""
    ends = [turn.end for turn in turns if turn.has_ended]
    if len(ends) < _LEAST_TURNS:
        return ()
    by_place: dict[Place, list[int]] = {}
    places = trace.timeline.places
    for stack, deltas in _deltas(trace, ends).items():
        sums = by_place.setdefault(places[stack], [0] * len(ends))
        for at, size in deltas.items():
            if at < len(ends):
                sums[at] += size
    found = []
    for place, sums in by_place.items():
        levels = list(accumulate(sums))
        since = _rises_since(levels)
        if since is not None:
            found.append((place, tuple(levels[since:]), since))
    grown = [TurnGrowth(**asdict(place), ends=ends, since=since) for place, ends, since in found]
    return tuple(sorted(grown, key=lambda one: one.ends[0] - one.ends[-1]))


def _deltas(trace: _Trace, ends: Sequence[int]) -> dict[int, dict[int, int]]:
    """By stack, how many bytes more than at the end before are allocated at each end."""
    found: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for made, freed, size, stack, _ in zip(*trace.rows, strict=True):
        if freed == -2:
            continue
        at = bisect_right(ends, made)
        gone = len(ends) if freed == -1 else bisect_right(ends, freed)
        if at < gone:
            found[stack][at] += size
            found[stack][gone] -= size
    return found


def _rises_since(levels: Sequence[int]) -> int | None:
    """0 if each is more than the one before; 1 if all but the second are; else None."""
    rises = [after > before for before, after in pairwise(levels)]
    if all(rises):
        return 0
    return 1 if len(levels) > _LEAST_TURNS and all(rises[1:]) else None


# ---- Survivors ---------------------------------------------------------------------------


def _survivors(
    trace: _Trace, turn: Turn, rows: Sequence[int], is_live: bool
) -> tuple[Survivor, ...]:
    places = trace.timeline.places
    _, freed, sizes, stacks, addresses = trace.rows
    categories = trace.timeline.categories
    pools = trace.pools(turn.end - 1, {addresses[row] for row in rows})
    groups: dict[tuple[Place, str, tuple[int, int]], list[int]] = {}
    alive: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        place, pool = places[stacks[row]], pools.get(addresses[row], (0, 0))
        is_cache = categories.rule(row)[0] == "kv-cache"
        category = "KV cache" if is_cache else categories.name(row)
        groups.setdefault((place, category, pool), []).append(row)
        if freed[row] == -1:
            alive.setdefault(str(place), []).append((addresses[row], sizes[row]))
    owners = trace.owners(alive, is_live)
    found = [
        Survivor(
            **asdict(place),
            bytes=sum(sizes[row] for row in same),
            count=len(same),
            category=category,
            pool=pool,
            owner=owners.get(str(place), ""),
        )
        for (place, category, pool), same in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _pins(trace: _Trace, turn: Turn, rows: Sequence[int]) -> tuple[PinnedSegment, ...]:
    """The segments that only these rows, alive after the turn, keep from the device."""
    levels = trace.levels(turn.end)
    if not rows or levels[0] == levels[1]:
        return ()
    _, _, sizes, stacks, addresses = trace.rows
    mine = {addresses[row]: row for row in rows}
    layout = trace.timeline.at(turn.end - 1)
    blocks = layout.blocks
    inside: dict[int, list[int | None]] = {}
    for segment, address, state in zip(
        blocks.codes("segment"), blocks.codes("address"), blocks["state"], strict=True
    ):
        if state != "inactive":
            inside.setdefault(segment, []).append(mine.get(address))
    segments = layout.segments
    totals, actives = segments.codes("total_size"), segments.codes("active_size")
    expandable = segments.codes("is_expandable")
    found: dict[Place, tuple[int, int, int]] = {}
    for segment, held in inside.items():
        own = [row for row in held if row is not None]
        free, used = totals[segment] - actives[segment], actives[segment]
        if len(own) == len(held) and free and not expandable[segment]:
            largest = max(own, key=lambda row: sizes[row])
            place = trace.timeline.places[stacks[largest]]
            known = found.get(place, (0, 0, 0))
            found[place] = (known[0] + free, known[1] + used, known[2] + 1)
    pins = [
        PinnedSegment(**asdict(place), free_bytes=free, held_bytes=held_bytes, count=count)
        for place, (free, held_bytes, count) in found.items()
    ]
    return tuple(sorted(pins, key=lambda one: -one.free_bytes))


# ---- Report ------------------------------------------------------------------------------

# Rows of each table of the printed report, and turns of each phase.
_SHOWN = 6
_SHOWN_TURNS = 5

# Places below a finding.
_NAMED = 3


@dataclass(frozen=True, kw_only=True, repr=False)
class PhasesReport(Report):
    """The phases of a recording, as `neutracer phases` prints them.

    Attributes:
        file: The file's name, or "" for a live process.
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        phases: One row for each phase, in the order of their first turns.
        turns: One row for each turn, by their beginnings.
        budget: What the device's memory is for at the end; None without turns.
    """

    schema = "neutracer.phases/1"

    file: str
    device: int
    phases: tuple[PhaseRow, ...]
    turns: tuple[TurnRow, ...]
    budget: Budget | None = None
    _own: int = 0

    @property
    def own_findings(self) -> tuple[Finding, ...]:
        """The findings on phases, without those on the file."""
        return self.findings[len(self.findings) - self._own :]

    def __getitem__(self, phase: str) -> PhaseRow:
        """The row of a phase."""
        for row in self.phases:
            if row.phase == phase:
                return row
        raise KeyError(phase)

    def document(self) -> Document:
        """The report as a document."""
        facts = (
            device_name(self.device),
            format_count(len(self.phases), "phase"),
            format_count(len(self.turns), "turn"),
        )
        blocks: list[Block] = [*self.finding_blocks(), *self.blocks()]
        if not self.turns:
            text = "No marks of phases: `with neutracer.phase(name):` leaves them in a recording."
            blocks.append(Paragraph(text))
        return Document(f"Phases of {self.file or 'this process'}", facts, tuple(blocks))

    def blocks(self) -> Iterator[Block]:
        """The tables, for this page and the summary of the file."""
        if self.turns:
            yield self._turn_table()
        for row in self.phases:
            if row.growth:
                yield _growth_table(row)
            if row.survivors:
                yield _survivor_table(row)
            if row.pins:
                yield _pin_table(row)
        if self.budget is not None:
            yield self.budget.table()

    def _turn_table(self) -> Table:
        columns = ("allocated", "begin", "peak", "end", "reserved", "not PyTorch's")
        rows: list[tuple[Cell, ...]] = []
        left_out = 0
        for phase in self.phases:
            same = [turn for turn in self.turns if turn.phase == phase.phase]
            left_out += max(len(same) - _SHOWN_TURNS, 0)
            rows += [_turn_cells(turn, len(same) > 1) for turn in same[-_SHOWN_TURNS:]]
        notes = [f"and {format_count(left_out, 'earlier turn')}"] if left_out else []
        if any(turn.end_other_bytes is not None for turn in self.turns):
            notes.append("reserved and not PyTorch's at the end of the turn")
        return Table("", tuple(rows), columns, tuple(notes))


def _turn_cells(turn: TurnRow, numbered: bool) -> tuple[Cell, ...]:
    name = f"{turn.phase}[{turn.number}]" if numbered else turn.phase
    name += "" if turn.has_ended else ", open"
    name += "" if turn.has_begun else ", begun before"
    other = turn.end_other_bytes
    return (
        name,
        Figure.bytes(turn.begin_allocated_bytes),
        Figure.bytes(turn.peak_allocated_bytes),
        Figure.bytes(turn.end_allocated_bytes),
        Figure.bytes(turn.end_reserved_bytes),
        "" if other is None else Figure.bytes(other),
    )


def _last(row: PhaseRow) -> str:
    return row.phase if row.turns == 1 else f"the last {row.phase}"


def _rest(shown: int, found: Sequence[object]) -> tuple[str, ...]:
    rest = len(found) - shown
    return (f"and {format_count(rest, 'more line')}",) if rest > 0 else ()


def _growth_table(row: PhaseRow) -> Table:
    rows = tuple(
        (
            Figure.bytes(one.least_bytes)
            if one.least_bytes == one.most_bytes
            else f"{format_bytes(one.least_bytes)} to {format_bytes(one.most_bytes)}",
            Figure.bytes(one.ends[0]),
            Figure.bytes(one.ends[-1]),
            one.place,
        )
        for one in row.growth[:_SHOWN]
    )
    title = f"What grows from turn to turn of {row.phase}"
    notes = _rest(_SHOWN, row.growth)
    return Table(title, rows, ("per turn", "from", "to", ""), notes)


def pool_text(pool: tuple[int, int]) -> str:
    """A pool in a cell of a table: "" for the default pool."""
    return "" if pool == (0, 0) else f"pool {pool[0]}, {pool[1]}"


def _survivor_table(row: PhaseRow) -> Table:
    rows = tuple(
        (
            Figure.bytes(one.bytes),
            Figure.count(one.count, "block"),
            one.category,
            " ".join(filter(None, (pool_text(one.pool), one.owner))),
            one.place,
        )
        for one in row.survivors[:_SHOWN]
    )
    return Table(f"What {_last(row)} made and left", rows, (), _rest(_SHOWN, row.survivors))


def _pin_table(row: PhaseRow) -> Table:
    rows = tuple(
        (
            Figure.bytes(one.free_bytes),
            f"by {format_bytes(one.held_bytes)} in {format_count(one.count, 'segment')}",
            one.place,
        )
        for one in row.pins[:_SHOWN]
    )
    title = f"Free bytes that only what {_last(row)} left keeps from the device"
    return Table(title, rows, (), _rest(_SHOWN, row.pins))


# ---- Findings ----------------------------------------------------------------------------


def _findings(rows: Sequence[PhaseRow], turns: Sequence[TurnRow]) -> Iterator[Finding]:
    for row in rows:
        ended = [turn for turn in turns if turn.phase == row.phase and turn.has_ended]
        if row.growth:
            yield _growth_finding(row, len(ended))
        if ended and ended[-1].asleep_bytes:
            yield _asleep_finding(row, ended[-1])


def _growth_finding(row: PhaseRow, turns: int) -> Finding:
    least = sum(one.least_bytes for one in row.growth)
    most = sum(one.most_bytes for one in row.growth)
    size = format_bytes(least) if least == most else f"at least {format_bytes(least)}"
    lines = format_count(len(row.growth), "line")
    message = f"each turn of {row.phase} ends with {size} more than the one before, by {lines}"
    evidence = tuple(
        Note(
            f"{', '.join(format_bytes(end) for end in one.ends[-4:])} at the last ends, from",
            one.place,
        )
        for one in row.growth[:_NAMED]
    )
    first = Note(f"over {turns} turns")
    return Finding("phase_growth", Severity.SERIOUS, least, message, (first, *evidence))


def _asleep_finding(row: PhaseRow, last: TurnRow) -> Finding:
    asleep = last.asleep_bytes or 0
    kept = last.end_reserved_bytes - asleep
    message = (
        f"at least {format_bytes(asleep)} is asleep at the end of {row.phase}: reserved, but not "
        "on the device"
    )
    note = Note(f"{format_bytes(kept)} of what PyTorch reserved may be kept on the device")
    return Finding("asleep", Severity.INFO, asleep, message, (note,))


# ---- Question ----------------------------------------------------------------------------


def phases(
    source: Snapshot | SnapshotSource | None = None,
    *,
    phase: str | None = None,
    device: int | None = None,
) -> PhasesReport:
    """The phases of a recording: each turn, what outlives it, and what grows from turn to turn.

    Args:
        source: A Snapshot, or a source for `load`, of a process that used `phase`. None is this
            process, now: its survivors then have owners.
        phase: Only this phase, or one turn of it: "sleep", "sleep[2]".
        device: The device; None is the only one.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: There is no such device, or no such phase.

    Example:
        >>> import neutracer
        >>> found = neutracer.phases("tests/data/frag_default.pickle")
        >>> found.phases, found.turns
        ((), ())
    """
    if source is None:
        from neutracer.recording.long_history import snapshot_now

        snap = snapshot_now()
    else:
        snap = opened(source)
    return phases_of(snap, snap.device(device), phase, is_live=source is None)


def phases_of(
    snap: Snapshot, device: int, phase: str | None = None, *, is_live: bool = False
) -> PhasesReport:
    """The phases of one device of a snapshot; the arguments and errors are those of `phases`."""
    trace = _Trace(snap, device)
    chosen = trace.turns if phase is None else chosen_turns(trace.turns, phase)
    turns = tuple(map(trace.row, chosen))
    names = dict.fromkeys(turn.phase for turn in chosen)
    rows = _own_growth([_phase_row(trace, name, chosen, turns, is_live) for name in names])
    own = ranked(_findings(rows, turns))
    first = first_findings(snap, device=device) if turns else ()
    return PhasesReport(
        file=snap.origin.rpartition("/")[2],
        device=shown_device(snap, device),
        phases=rows,
        turns=turns,
        budget=_budget(snap, device, is_live) if turns and phase is None else None,
        findings=(*first, *own),
        _own=len(own),
    )


def _budget(snap: Snapshot, device: int, is_live: bool) -> Budget | None:
    if not end_is_known(snap, device) or snap.is_cpu or snap.is_pinned:
        return None
    return budget_of(snap, device, outside_now(device) if is_live else None)


def _phase_row(
    trace: _Trace, name: str, chosen: Iterable[Turn], turns: Iterable[TurnRow], is_live: bool
) -> PhaseRow:
    same = [turn for turn in chosen if turn.phase == name]
    peak = max(turn.peak_allocated_bytes for turn in turns if turn.phase == name)
    last = next((turn for turn in reversed(same) if turn.has_ended), None)
    rows = [] if last is None else trace.survivors(last)
    survivors = () if last is None else _survivors(trace, last, rows, is_live)
    pins = () if last is None else _pins(trace, last, rows)
    return PhaseRow(name, len(same), peak, survivors, _growth(trace, same), pins)


def _own_growth(rows: Sequence[PhaseRow]) -> tuple[PhaseRow, ...]:
    """Without the growth of lines that another phase adds: it shows at the ends of all of a
    cycle's phases."""
    adding = [
        {one.place for one in row.growth} & {one.place for one in row.survivors} for row in rows
    ]
    anywhere = set().union(*adding)
    return tuple(
        replace(
            row, growth=tuple(g for g in row.growth if g.place in own or g.place not in anywhere)
        )
        for row, own in zip(rows, adding, strict=True)
    )
