# SPDX-License-Identifier: Apache-2.0
"""A job as plain data: rows per rank, aligned clocks, shapes of parallelism, and odd ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from neutracer.rank.digest import Held, RankDigest
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- Parts of a report -------------------------------------------------------------------

#: The compared figures of a row, with their labels.
FIGURES: Mapping[str, str] = {
    "peak_allocated_bytes": "peak allocated",
    "peak_reserved_bytes": "peak reserved",
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
    "unused_bytes": "unused",
    "largest_hole_bytes": "largest hole",
    "other_bytes": "not PyTorch's",
}

#: The causes of an odd rank, with their meanings.
CAUSES: Mapping[str, str] = {
    "leak": "its memory grows step after step, unlike the others'",
    "larger_blocks": "its blocks are larger than elsewhere: a larger batch, or longer sequences",
    "more_blocks": "more blocks of the same line than elsewhere",
    "own_line": "a line that holds little or nothing on the others",
    "cache": "reserved and not in use",
    "not_torch": "memory of its device used by anything but PyTorch",
    "stage": "a shape of its own: a pipeline stage or an expert",
    "waits_elsewhere": "it is at another line than the others, which wait",
    "silent": "it has stopped reporting",
    "unknown": "the recording does not show why",
}


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank; figures are None if unknown.

    Attributes:
        rank: The rank; None if unknown.
        host, pid: Its host and process.
        role: "worker", "engine" or "data loader", where known.
        source: The file, or "store".
        state: "exit", "terminated", "out of memory", "no file", "can't be read", or another
            reason for which the file was written; in a running job "running", "silent",
            "out of memory" or "terminated".
        note: Remarks on its figures, or why there are none.
        shape: The number of its shape; ranks of one shape hold the same parameters. None if it
            is not compared: it has no figures, or no number beside ranks that have one.
        peak_allocated_bytes, peak_reserved_bytes: The peaks in its trace.
        allocated_bytes, reserved_bytes: At the end.
        unused_bytes: Reserved and not allocated, at the end.
        largest_hole_bytes: The largest free block in reserved memory at the end.
        other_bytes: Used on its device by anything but PyTorch.
        libraries: These bytes by library, if an attribution was on.
        ooms: The number of out-of-memory errors.
        verdict: The verdict of `leak_trend`.
        bytes_per_step: The growth per step.
        steps_to_oom: Steps until its memory is full at that rate.
        steps: The number of steps in its trace.
        where: The main thread's line, in a running job.
        categories: Bytes by category at the peak.
        torch: The PyTorch release.
    """

    rank: int | None
    host: str = ""
    pid: int | None = None
    role: str = ""
    source: str = ""
    state: str = ""
    note: str = ""
    shape: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    unused_bytes: int | None = None
    largest_hole_bytes: int | None = None
    other_bytes: int | None = None
    libraries: Mapping[str, int]
    ooms: int = 0
    verdict: str = "unknown"
    bytes_per_step: int = 0
    steps_to_oom: int | None = None
    steps: int = 0
    where: str = ""
    categories: Mapping[str, int]
    torch: str = ""


@dataclass(frozen=True)
class Spread:
    """One figure over the ranks.

    Attributes:
        figure: Its name in a row: "peak_allocated_bytes".
        least: The smallest.
        median: The median.
        most: The largest.
        most_rank: The rank with the largest.
    """

    figure: str
    least: int
    median: int
    most: int
    most_rank: int | None


@dataclass(frozen=True)
class Odd:
    """A rank that differs from those of its shape, or whose shape differs from the others.

    Attributes:
        rank: The rank.
        bytes: Its excess over the median; with two ranks, over the other.
        why: The reason, as a sentence.
        cause: The reason as a keyword: "leak", "larger_blocks", "more_blocks", "own_line", "cache",
            "not_torch", "stage", "waits_elsewhere", "silent" or "unknown".
        place: The line (for "not_torch", the library) with most of the excess; "" if unknown.
        category: The category of most of the excess; "" if unknown.
        step: The step at which it departed from the others, from 0; None if it always
            differed, or the step is unknown.
        source: Its file, or "store".
    """

    rank: int | None
    bytes: int
    why: str
    cause: str
    place: str = ""
    category: str = ""
    step: int | None = None
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class FirstOom:
    """The rank that ran out of memory before all others.

    Attributes:
        rank: The rank.
        time_us: Unix time in microseconds, by the first host's clock; None if unknown.
        asked_bytes: The size of the request that failed.
        is_certain: False if another rank ran out within the clocks' uncertainty.
        later: (rank, microseconds after the first) of the others that ran out.
        ended: Ranks that the launcher ended afterwards.
        lost: Ranks without a readable file.
        why: A sentence with all of this.
    """

    rank: int | None
    time_us: int | None
    asked_bytes: int
    is_certain: bool
    later: tuple[tuple[int | None, int], ...]
    ended: tuple[int | None, ...]
    lost: tuple[int | None, ...]
    why: str


@dataclass(frozen=True)
class HeatMap:
    """The peak of allocated, by rank and time.

    Attributes:
        ranks: The rank of each row.
        begin_us: Start of the first column, Unix time in microseconds.
        end_us: End of the last column.
        rows: Bytes by column for each rank; None outside its trace.
        ooms_us: (row, time) of each rank's first out-of-memory error.
    """

    ranks: tuple[int | None, ...]
    begin_us: int
    end_us: int
    rows: tuple[tuple[int | None, ...], ...]
    ooms_us: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OtherJob:
    """Another job, or run, among the files.

    Attributes:
        job: The launcher's name for it; "" if unknown.
        attempt: Number of earlier attempts, or None.
        world_size: Number of ranks, or None.
        sources: Its files.
    """

    job: str
    attempt: int | None
    world_size: int | None
    sources: tuple[str, ...]


# ---- Jobs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One attempt of one job."""

    name: str  # The launcher's name for it; "" if unknown.
    attempt: int | None  # Number of earlier attempts, or None.
    world_size: int | None  # Number of ranks, or None.
    ranks: tuple[RankDigest, ...]  # One digest per rank, in order; those without a rank come last.
    # (rank, number of files) of ranks with several files.
    again: tuple[tuple[int | None, int], ...] = ()

    @property
    def ended_s(self) -> float:
        """When its last file was written; 0 if unknown."""
        return max((one.written_s or 0.0 for one in self.ranks), default=0.0)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a file."""
        known = {one.rank for one in self.ranks}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in known)


def jobs_of(digests: Iterable[RankDigest]) -> list[Job]:
    """Group digests by job: most ranks first, then latest first.

    Jobs are distinguished by name (or program), attempt and world size, and runs by time: a second
    process with the same rank starts a new run. Digests without any of these go to the largest job.
    """
    buckets: dict[tuple[str, int | None, int | None, str], list[RankDigest]] = {}
    unnamed: list[RankDigest] = []
    for one in digests:
        if one.job or one.world_size is not None:
            key = (one.job, one.attempt, one.world_size, "" if one.job else one.program)
            buckets.setdefault(key, []).append(one)
        else:
            unnamed.append(one)
    if unnamed:
        largest = max(buckets, key=lambda key: len(buckets[key]), default=("", None, None, ""))
        buckets.setdefault(largest, []).extend(unnamed)
    jobs = [
        Job(name, attempt, size, ranks, again)
        for (name, attempt, size, _), found in buckets.items()
        for ranks, again in map(_one_per_rank, _runs(found))
    ]
    return sorted(jobs, key=lambda job: (-len(job.ranks), -job.ended_s))


def _runs(digests: Sequence[RankDigest]) -> list[list[RankDigest]]:
    """Split by time: a new process for a known rank starts the next run."""
    ordered = sorted(digests, key=lambda one: one.written_s or 0.0)
    runs: list[list[RankDigest]] = [[]]
    process: dict[int, tuple[str, int]] = {}
    for one in ordered:
        if one.rank is not None and one.pid is not None:
            mine = (one.host, one.pid)
            if process.get(one.rank, mine) != mine:
                runs.append([])
                process = {}
            process[one.rank] = mine
        runs[-1].append(one)
    return runs


def _one_per_rank(
    digests: Sequence[RankDigest],
) -> tuple[tuple[RankDigest, ...], tuple[tuple[int | None, int], ...]]:
    """One digest per rank, or per process without a rank, and (rank, count) of the ranks with
    several."""
    by_rank: dict[int, list[RankDigest]] = {}
    by_process: dict[object, list[RankDigest]] = {}
    for one in digests:
        if one.rank is None:
            process = one.source if one.pid is None else (one.host, one.pid)
            by_process.setdefault(process, []).append(one)
        else:
            by_rank.setdefault(one.rank, []).append(one)
    unknown = map(_best, by_process.values())
    ranks = [_best(by_rank[rank]) for rank in sorted(by_rank)]
    again = [(rank, len(found)) for rank, found in sorted(by_rank.items()) if len(found) > 1]
    return (*ranks, *unknown), tuple(again)


def _best(same: Sequence[RankDigest]) -> RankDigest:
    """The digest with the highest peak (then the latest), plus the first out-of-memory error of
    any and the reason of the last."""
    best = max(
        same, key=lambda one: (not one.trouble, one.peak_allocated_bytes, one.written_s or 0.0)
    )
    failed = [one for one in same if one.first_oom_us is not None]
    if failed and best.first_oom_us is None:
        first = min(failed, key=lambda one: one.first_oom_us or 0)
        best = replace(
            best, ooms=first.ooms, first_oom_us=first.first_oom_us, oom_bytes=first.oom_bytes
        )
    last = max(same, key=lambda one: one.written_s or 0.0)
    sized = next((one.total_bytes for one in same if one.total_bytes is not None), None)
    return replace(best, reason=last.reason or best.reason, total_bytes=best.total_bytes or sized)


# ---- Clocks ------------------------------------------------------------------------------

# Hosts' clocks are aligned by their steps, which all ranks begin together.

_FEWEST = 3  # Common steps needed to align two clocks.
_COMPARED = 64  # Common steps sampled, evenly spread.
_MOST_SHIFT = 64  # Steps that one rank may have recorded before another's first.
_MOST_SPREAD = 0.25  # Step starts that differ by more of a step are not common events.
_EXACT = 0.02  # Agreement, as a share of a step, that ends the search over shifts.


@dataclass(frozen=True)
class Clocks:
    """The hosts' clock offsets from the first host's."""

    ahead_us: dict[str, int]  # Microseconds by host; a missing host could not be aligned.
    within_us: int  # The uncertainty; 0 for one host.
    hosts: int  # The number of hosts.

    def common(self, one: RankDigest, time_us: int) -> int:
        """A time by a rank's clock, converted to the first host's."""
        return time_us - self.ahead_us.get(one.host, 0)

    def summary(self) -> str:
        """One sentence; "" for one host."""
        if self.hosts < 2:
            return ""
        most = max(map(abs, self.ahead_us.values()), default=0)
        if len(self.ahead_us) < 2:
            return (
                f"The clocks of the {self.hosts} hosts are not aligned: their ranks have no "
                "steps in common."
            )
        unaligned = self.hosts - len(self.ahead_us)
        rest = f"; {unaligned} could not be aligned" if unaligned else ""
        return (
            f"The clocks of {len(self.ahead_us)} hosts were aligned by their steps, to within "
            f"{format_duration_us(self.within_us)}; they differed by up to "
            f"{format_duration_us(most)}{rest}."
        )


def clocks_of(digests: Iterable[RankDigest]) -> Clocks:
    """Align the hosts' clocks by the rank with the most steps on each."""
    best: dict[str, RankDigest] = {}
    hosts: set[str] = set()
    for one in digests:
        hosts.add(one.host)
        if len(one.step_us) > len(best.get(one.host, _NONE).step_us) and one.step_us[0]:
            best[one.host] = one
    named = sorted(best)
    if len(hosts) < 2 or not named:
        first = next(iter(hosts), "")
        return Clocks({first: 0}, 0, len(hosts))
    first = named[0]
    ahead, within = {first: 0}, 0
    for host in named[1:]:
        one, other = best[first], best[host]
        # Two complete histories begin at the same step.
        whole = bool(one.history_complete and other.history_complete)
        found = _offset(one.step_us, other.step_us, 0 if whole else _MOST_SHIFT)
        if found is not None:
            ahead[host], spread = found
            within = max(within, spread)
    return Clocks(ahead, within, len(hosts))


_NONE = RankDigest(source="")


def _agreement(mine: Sequence[int], theirs: Sequence[int]) -> tuple[float, float] | None:
    """(spread, median) of the differences between two lists of times."""
    count = min(len(mine), len(theirs))
    if count < _FEWEST:
        return None
    gaps = [theirs[at] - mine[at] for at in range(0, count, -(-count // _COMPARED))]
    middle = median(gaps)
    return median(abs(gap - middle) for gap in gaps), middle


def _offset(base: Sequence[int], other: Sequence[int], shifts: int) -> tuple[int, int] | None:
    """(offset, uncertainty) of another clock; None if it can't be known.

    Either may have begun to record up to `shifts` steps later. Among the shifts at which the step
    starts agree best, the smallest offset wins: steps of equal length agree at any shift.
    """
    if len(base) < _FEWEST:
        return None
    step = median(b - a for a, b in pairwise(base))
    tried = []
    most = min(shifts, max(max(len(base), len(other)) - _FEWEST, 0))
    # Outwards from 0: an offset below half a step can't be improved on.
    for shift in sorted(range(-most, most + 1), key=abs):
        found = _agreement(base[max(shift, 0) :], other[max(-shift, 0) :])
        if found is None:
            continue
        tried.append(found)
        if shift == 0 and found[0] <= _EXACT * step and abs(found[1]) < step / 2:
            break
    if not tried:
        return None
    least = min(spread for spread, _ in tried)
    good = [(abs(middle), spread, middle) for spread, middle in tried if spread <= 2 * least + 1000]
    _, spread, middle = min(good)
    if spread > _MOST_SPREAD * step:
        return None
    return round(middle), max(round(spread), 1)


# ---- Shapes ------------------------------------------------------------------------------

# Ranks of one shape hold the same parameters, as in data parallelism. Pipeline stages and experts
# have shapes of their own. Uneven shards differ a little, hence a share of the common bytes.
_ALIKE = 0.9


@dataclass(frozen=True)
class Shape:
    """Ranks of one shape."""

    members: tuple[RankDigest, ...]  # Their digests, in the order of the ranks.
    parameter_bytes: int  # The parameters of the first of them.


def shapes_of(digests: Sequence[RankDigest]) -> list[Shape]:
    """Group digests with figures by shape, in the order of their first ranks.

    A rank with unknown parameters belongs to the largest shape. Beside ranks with a number, a
    process without one is none of them, such as a server's engine or front end.
    """
    numbered = any(one.rank is not None for one in digests)
    groups: list[list[RankDigest]] = []
    sets: list[_Parameters] = []
    known: dict[tuple[tuple[int, int], ...], list[RankDigest]] = {}
    unknown = []
    for one in digests:
        if one.trouble or (numbered and one.rank is None):
            continue
        if not one.parameters:
            unknown.append(one)
            continue
        mine = known.get(one.parameters)
        if mine is None:
            parameters = _Parameters(one)
            pairs = zip(sets, groups, strict=True)
            mine = next((group for other, group in pairs if _alike(other, parameters)), None)
            if mine is None:
                groups.append(mine := [])
                sets.append(parameters)
            known[one.parameters] = mine
        mine.append(one)
    if unknown:
        largest = max(groups, key=len, default=None)
        if largest is None:
            groups.append(largest := [])
        largest += unknown
    order = {id(one): at for at, one in enumerate(digests)}
    for group in groups:
        group.sort(key=lambda one: order[id(one)])
    groups.sort(key=lambda group: order[id(group[0])])
    return [Shape(tuple(group), _parameter_bytes(group)) for group in groups]


def _parameter_bytes(group: Sequence[RankDigest]) -> int:
    known = next((one for one in group if one.parameters), group[0])
    return sum(size * count for size, count in known.parameters)


class _Parameters:
    """A rank's parameters: their count by size, and their bytes."""

    def __init__(self, one: RankDigest) -> None:
        self.counts = dict(one.parameters)
        self.bytes = sum(size * count for size, count in self.counts.items())


def _alike(one: _Parameters, other: _Parameters) -> bool:
    """Whether two ranks hold the same parameters: intersection over union, in bytes."""
    sizes = one.counts.keys() & other.counts.keys()
    both = sum(size * min(one.counts[size], other.counts[size]) for size in sizes)
    return both >= _ALIKE * (one.bytes + other.bytes - both)


# ---- Departure ---------------------------------------------------------------------------

# Differences of a step's peak below these are noise: a share of it, a share of the final
# difference, and bytes.
_NOISE = 0.005
_OF_LAST = 0.02
_LEAST_NOISE = 256 << 10
_MOST_OTHERS = 33  # Other ranks sampled, evenly spread.


def _departure(one: RankDigest, others: Sequence[RankDigest], clocks: Clocks) -> int | None:
    """The step of its own trace, from 0, since which a rank has had more than the others of its
    shape; None if it always had, or there are too few steps."""
    known = [other for other in others if other.step_peak_bytes]
    apart = _apart(one, known[:: -(-len(known) // _MOST_OTHERS) or 1], clocks)
    if len(apart) < _FEWEST:
        return None
    last = max(above for _, above, _ in apart)
    at = None
    for step, above, usual in reversed(apart):
        if above <= max(_NOISE * usual, _OF_LAST * last, _LEAST_NOISE):
            break
        at = step
    if at is None or at == apart[0][0]:
        return None
    return at * one.steps_each


def _apart(
    one: RankDigest, others: Sequence[RankDigest], clocks: Clocks
) -> list[tuple[int, int, int]]:
    """(step, excess, the others' median) of the common steps."""
    shifts = [_shift(one, other, clocks) for other in others]
    found = []
    for step, peak in enumerate(one.step_peak_bytes):
        same = [
            other.step_peak_bytes[step + shift]
            for other, shift in zip(others, shifts, strict=True)
            if 0 <= step + shift < len(other.step_peak_bytes)
        ]
        if same:
            usual = round(median(same))
            found.append((step, peak - usual, usual))
    return found


def _shift(one: RankDigest, other: RankDigest, clocks: Clocks) -> int:
    """The index offset of a step in another trace; 0 if both are complete."""
    if one.history_complete and other.history_complete:
        return 0
    if not any(one.step_us[:1]) or not any(other.step_us[:1]):
        return 0
    begin = clocks.common(one, one.step_us[0])
    times = [clocks.common(other, time_us) for time_us in other.step_us]
    at = bisect_left(times, begin)
    if at == 0:
        mine = [clocks.common(one, time_us) for time_us in one.step_us]
        return -_nearest(mine, times[0])
    return _nearest(times, begin)


def _nearest(times: Sequence[int], wanted: int) -> int:
    at = bisect_left(times, wanted)
    near = [i for i in (at - 1, at) if 0 <= i < len(times)]
    return min(near, key=lambda i: abs(times[i] - wanted))


# ---- Odd ranks ---------------------------------------------------------------------------

# An odd rank exceeds the median by this share, this many deviations and this many bytes.
_SHARE = 0.05
_DEVIATIONS = 4.0
_LEAST = 1 << 20
_SEGMENTS = 40 << 20  # Normal difference in cache: two segments of 20 MiB.
_CONTEXT = 64 << 20  # Normal difference in CUDA contexts and loaded kernels.
_NORMAL = 1.4826  # Standard deviation over median absolute deviation, of a normal distribution.
_MOST_OF_IT = 0.4  # Share of the excess for which a line or category is named.
_SAME_COUNT = 0.1  # Relative difference at which block counts are the same.
_OF_A_BATCH = ("activation", "input", "temporary", "autograd_detail", "unknown")


class _Members:
    """The ranks of one shape, with cached medians over them."""

    def __init__(self, ranks: Sequence[RankDigest]) -> None:
        self.ranks = ranks
        self._places = [{held.place: held for held in one.places} for one in ranks]
        self._at: dict[str, tuple[int, int]] = {}
        self._of: dict[tuple[str, str], int] = {}

    def at(self, place: str) -> tuple[int, int]:
        """The median bytes and blocks of a line."""
        if place not in self._at:
            held = [places.get(place, _NOTHING) for places in self._places]
            self._at[place] = (
                _usual([one.bytes for one in held]),
                _usual([one.count for one in held]),
            )
        return self._at[place]

    def of(self, table: str, name: str) -> int:
        """The median bytes of an entry of `categories` or `libraries`."""
        if (table, name) not in self._of:
            self._of[table, name] = _usual([getattr(one, table).get(name, 0) for one in self.ranks])
        return self._of[table, name]

    @cached_property
    def blocks(self) -> int:
        """The median number of blocks, over all lines."""
        return _usual([_blocks(one) for one in self.ranks])


_NOTHING = Held("", 0, 0)


def _blocks(one: RankDigest) -> int:
    return sum(held.count for held in one.places)


@dataclass(frozen=True)
class _Case:
    """A rank among those of its shape."""

    one: RankDigest
    among: _Members
    clocks: Clocks

    @property
    def members(self) -> Sequence[RankDigest]:
        return self.among.ranks

    def versus(self) -> str:
        count = len(self.members)
        return "the other rank" if count == 2 else f"the median of {format_count(count, 'rank')}"


def _usual(values: Sequence[int]) -> int:
    """The median; with two values, the smaller."""
    return min(values) if len(values) < 3 else round(median(values))


def _above(values: Sequence[int], scale: Sequence[int] = (), most: int = _LEAST) -> list[int]:
    """Each rank's excess over the median; 0 if it is not odd."""
    if len(values) < 2:
        return [0] * len(values)
    usual = _usual(values)
    deviation = _NORMAL * median(abs(value - usual) for value in values) if len(values) > 2 else 0
    least = max(_SHARE * _usual(scale or values), _DEVIATIONS * deviation, most)
    return [value - usual if value - usual > least else 0 for value in values]


def odd_ranks(shapes: Sequence[Shape], clocks: Clocks) -> tuple[Odd, ...]:
    """The odd ranks, most bytes first."""
    found = [odd for shape in shapes for odd in _within(shape.members, clocks)]
    if len(shapes) > 1:
        found += _between(shapes, {odd.rank for odd in found if odd.cause != "not_torch"})
    return tuple(sorted(found, key=lambda odd: -odd.bytes))


def _within(members: Sequence[RankDigest], clocks: Clocks) -> list[Odd]:
    found = []
    among = _Members(members)
    peaks = _above([one.peak_allocated_bytes for one in members])
    reserved = [one.peak_reserved_bytes for one in members]
    cached = _above([_cache(one) for one in members], reserved, _SEGMENTS)
    known = _Members([one for one in members if one.other_bytes is not None])
    others = _above([one.other_bytes or 0 for one in known.ranks], (), _CONTEXT)
    foreign = dict(zip(map(id, known.ranks), others, strict=True))
    for one, more, spare in zip(members, peaks, cached, strict=True):
        case = _Case(one, among, clocks)
        if more:
            found.append(_holds_more(case, more))
        elif _leaks_alone(case):
            found.append(_leak(case, _grown(one)))
        if spare:
            found.append(_caches(case, spare))
        if foreign.get(id(one)):
            found.append(_not_torch(_Case(one, known, clocks), foreign[id(one)]))
    return found


def _cache(one: RankDigest) -> int:
    return max(one.peak_reserved_bytes - one.peak_allocated_bytes, 0)


def _grown(one: RankDigest) -> int:
    return one.bytes_per_step * max(one.steps, 1)


def _leaks_alone(case: _Case) -> bool:
    leaks = [one for one in case.members if one.verdict in ("leak", "growing")]
    return leaks == [case.one] and len(case.members) > 1 and _grown(case.one) > _LEAST


def _holds_more(case: _Case, more: int) -> Odd:
    if _leaks_alone(case):
        return _leak(case, more)
    line, at_line = _line(case, more)
    category, of_category = _category(case, more)
    if line is not None and line.category != "unknown":
        category = line.category
    cause, because = _cause(case, line, category)
    parts = [f"it holds {format_bytes(more)} more at its peak than {case.versus()}"]
    if line is not None:
        parts.append(f"{format_bytes(at_line)} of that at {line.place}")
    elif category:
        parts.append(f"{format_bytes(of_category)} of that is {category}")
    odd = _departed(case, Odd(case.one.rank, more, "", cause, "", category, source=case.one.source))
    why = f"{': '.join(parts)}{because}{_since(odd.step)}"
    return replace(odd, why=why, place="" if line is None else line.place)


def _departed(case: _Case, odd: Odd) -> Odd:
    others = [other for other in case.members if other is not case.one]
    return replace(odd, step=_departure(case.one, others, case.clocks))


def _since(step: int | None) -> str:
    return "" if step is None else f"; it departs from them at step {format_count(step)}"


def _leak(case: _Case, more: int) -> Odd:
    one = case.one
    odd = _departed(case, Odd(one.rank, more, "", "leak", one.grows, source=one.source))
    held = next((held for held in one.places if held.place == one.grows), None)
    at = f" at {one.grows}" if one.grows else ""
    why = (
        f"its memory grows by {format_bytes(one.bytes_per_step)} per step{at}, unlike "
        f"{'the other' if len(case.members) == 2 else 'the others'}; it holds "
        f"{format_bytes(more)} more than {case.versus()}{_since(odd.step)}"
    )
    return replace(odd, why=why, category=held.category if held is not None else "")


def _line(case: _Case, more: int) -> tuple[Held | None, int]:
    """The line with most of the excess, and its share of it in bytes."""
    best: tuple[Held | None, int] = (None, 0)
    for held in case.one.places:
        above = held.bytes - case.among.at(held.place)[0]
        if above > best[1]:
            best = held, above
    return best if best[1] >= _MOST_OF_IT * more else (None, 0)


def _category(case: _Case, more: int) -> tuple[str, int]:
    """The category with most of the excess, and its share of it in bytes."""
    name, above = _most_above(case, "categories")
    return (name, above) if name and above >= _MOST_OF_IT * more else ("", 0)


def _most_above(case: _Case, table: str) -> tuple[str, int]:
    """The entry of `categories` or `libraries` with the largest excess, and that; ("", 0)."""
    entries = getattr(case.one, table).items()
    above = [(name, nbytes - case.among.of(table, name)) for name, nbytes in entries]
    return max(above, key=lambda one: one[1], default=("", 0))


def _cause(case: _Case, line: Held | None, category: str) -> tuple[str, str]:
    """The cause as a keyword, and the clause that explains it."""
    if case.one.pipelined and category == "activation" and _is_scheduled(case):
        clause = "; pipeline stages keep activations of different numbers of microbatches"
        return "stage", clause
    if line is None:
        if category and _counts_agree(case) and category in _OF_A_BATCH:
            return "larger_blocks", ", in as many blocks: a larger batch, or longer sequences"
        return "unknown", ""
    usual, count = case.among.at(line.place)
    if not count:
        return "own_line", ", where the others hold nothing"
    mean = line.bytes // line.count
    elsewhere = usual // count
    # A few blocks besides the usual ones, which have any size, raise the mean too.
    if not 0 < line.count - count < count and mean > (1 + _SHARE) * elsewhere:
        clause = f", in blocks of {format_bytes(mean)} instead of {format_bytes(elsewhere)}"
        if category in _OF_A_BATCH:
            clause += ": a larger batch, or longer sequences"
        return "larger_blocks", clause
    more = f", in {format_count(line.count, 'block')} instead of {format_count(count)}"
    return "more_blocks", more


def _counts_agree(case: _Case) -> bool:
    usual = case.among.blocks
    return abs(_blocks(case.one) - usual) <= _SAME_COUNT * usual


def _is_scheduled(case: _Case) -> bool:
    """Whether earlier stages hold more activations, as a pipeline schedule leaves them."""
    held = [one.categories.get("activation", 0) for one in case.members]
    return all(a * (1 + _SHARE) >= b for a, b in pairwise(held))


def _caches(case: _Case, spare: int) -> Odd:
    one = case.one
    why = (
        f"its reserved peak exceeds its allocated peak by {format_bytes(_cache(one))}, "
        f"{format_bytes(spare)} more than {case.versus()}: cached or fragmented"
    )
    return Odd(one.rank, spare, why, "cache", source=one.source)


def _not_torch(case: _Case, more: int) -> Odd:
    one = case.one
    name, above = _most_above(case, "libraries")
    whose = f": {format_bytes(above)} more in {name}" if name and above > more // 4 else ""
    why = (
        f"{format_bytes(one.other_bytes or 0)} on its device are not PyTorch's, "
        f"{format_bytes(more)} more than {case.versus()}{whose}"
    )
    return Odd(one.rank, more, why, "not_torch", name if whose else "", source=one.source)


def _between(shapes: Sequence[Shape], known: set[int | None]) -> list[Odd]:
    """The rank with the highest peak in a shape that holds more than the others."""
    typical = [_usual([one.peak_allocated_bytes for one in shape.members]) for shape in shapes]
    at = max(range(len(shapes)), key=typical.__getitem__)
    members = [one for shape in shapes for one in shape.members]
    usual = _usual([one.peak_allocated_bytes for one in members])
    more = typical[at] - usual
    if more <= max(_SHARE * usual, _LEAST):
        return []
    shape = shapes[at]
    one = max(shape.members, key=lambda one: one.peak_allocated_bytes)
    if one.rank in known:
        return []
    largest = _larger(one.categories, members)
    parts = [
        f"{format_bytes(above)} more of {_plural(name)}"
        for name, above in largest
        if name != "unknown"
    ]
    whose = "its stage" if one.pipelined else "its shape"
    like = f", which {format_count(len(shape.members), 'rank')} have," if shape.members[1:] else ""
    why = (
        f"{whose}{like} holds {format_bytes(more)} more at its peak than the others, by its "
        f"parameters ({format_bytes(shape.parameter_bytes)}) and not by a fault of its own"
        + (f": {', '.join(parts)}" if parts else "")
    )
    category = largest[0][0] if largest else ""
    return [Odd(one.rank, more, why, "stage", "", category, source=one.source)]


def _plural(category: str) -> str:
    """A category's name in the plural: "optimizer states"."""
    words = category.replace("_", " ")
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _larger(categories: Mapping[str, int], members: Sequence[RankDigest]) -> list[tuple[str, int]]:
    """The two categories with the largest excess."""
    above = [
        (name, nbytes - _usual([one.categories.get(name, 0) for one in members]))
        for name, nbytes in categories.items()
    ]
    ranked = sorted((one for one in above if one[1] > _LEAST), key=lambda one: -one[1])
    return ranked[:2]
