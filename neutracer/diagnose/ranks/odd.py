# SPDX-License-Identifier: Apache-2.0
"""Which rank is unlike the others of its shape, or of another shape, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from neutracer.diagnose.ranks.clocks import Clocks
from neutracer.diagnose.ranks.departure import departure
from neutracer.diagnose.ranks.parts import Odd
from neutracer.diagnose.ranks.shapes import Shape
from neutracer.process.ranks.digest import Held, RankDigest
from neutracer.units import format_bytes, format_count

__all__ = ["odd_ranks"]

# A rank is odd where it has more than the median by this share of it, by this many times the
# usual deviation, and by this many bytes.
_SHARE = 0.05
_DEVIATIONS = 4.0
_LEAST = 1 << 20

# The allocator takes segments of 20 MiB, of which one rank may have another more; contexts and
# kernels that were loaded differ by as much.
_SEGMENTS = 40 << 20
_CONTEXT = 64 << 20

# The usual deviation of a normal distribution for each median absolute deviation.
_NORMAL = 1.4826

# A line or category that has this share of what a rank has more is named for it.
_MOST_OF_IT = 0.4

# Blocks as many as elsewhere, give or take this share.
_SAME_COUNT = 0.1

# What a larger batch makes larger.
_OF_A_BATCH = ("activation", "input", "temporary", "autograd_detail", "unknown")


class _Members:
    """The ranks of one shape, and what is usual among them; each is looked up once."""

    def __init__(self, ranks: Sequence[RankDigest]) -> None:
        self.ranks = ranks
        self._places = [{held.place: held for held in one.places} for one in ranks]
        self._at: dict[str, tuple[int, int]] = {}
        self._of: dict[tuple[str, str], int] = {}

    def at(self, place: str) -> tuple[int, int]:
        """The usual bytes and blocks of a line."""
        if place not in self._at:
            held = [places.get(place, _NOTHING) for places in self._places]
            self._at[place] = (
                _usual([one.bytes for one in held]),
                _usual([one.count for one in held]),
            )
        return self._at[place]

    def of(self, table: str, name: str) -> int:
        """The usual bytes of an entry of `categories` or `libraries`."""
        if (table, name) not in self._of:
            self._of[table, name] = _usual([getattr(one, table).get(name, 0) for one in self.ranks])
        return self._of[table, name]

    @cached_property
    def blocks(self) -> int:
        """The usual number of blocks, over all lines."""
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

    @property
    def others(self) -> list[RankDigest]:
        return [other for other in self.members if other is not self.one]

    def versus(self) -> str:
        count = len(self.members)
        return "the other rank" if count == 2 else f"the median of {format_count(count, 'rank')}"


def _usual(values: Sequence[int]) -> int:
    """The median; of two, the smaller one."""
    return min(values) if len(values) < 3 else round(median(values))


def _above(values: Sequence[int], scale: Sequence[int] = (), most: int = _LEAST) -> list[int]:
    """By how much each value is above the usual; 0 where that is nothing odd.

    Args:
        values: One a rank.
        scale: What a share is of, where that is not the values.
        most: Bytes that are nothing odd.
    """
    if len(values) < 2:
        return [0] * len(values)
    usual = _usual(values)
    deviation = _NORMAL * median(abs(value - usual) for value in values) if len(values) > 2 else 0
    least = max(_SHARE * _usual(scale or values), _DEVIATIONS * deviation, most)
    return [value - usual if value - usual > least else 0 for value in values]


def odd_ranks(shapes: Sequence[Shape], clocks: Clocks) -> tuple[Odd, ...]:
    """The odd ranks, those with the most bytes first.

    Args:
        shapes: The ranks by shape.
        clocks: The hosts' clocks.
    """
    found = [odd for shape in shapes for odd in _within(shape.members, clocks)]
    if len(shapes) > 1:
        found += _between(shapes, {odd.rank for odd in found if odd.cause != "not_torch"})
    return tuple(sorted(found, key=lambda odd: -odd.bytes))


def _within(members: Sequence[RankDigest], clocks: Clocks) -> list[Odd]:
    """The odd ones of one shape."""
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
    """Why a rank's peak is higher."""
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
    odd = _departed(case, Odd(case.one.rank, more, "", cause, "", category))
    why = f"{': '.join(parts)}{because}{_since(odd.step)}"
    return replace(odd, why=why, place="" if line is None else line.place)


def _departed(case: _Case, odd: Odd) -> Odd:
    return replace(odd, step=departure(case.one, case.others, case.clocks))


def _since(step: int | None) -> str:
    return "" if step is None else f"; it departs from them at step {format_count(step)}"


def _leak(case: _Case, more: int) -> Odd:
    one = case.one
    odd = _departed(case, Odd(one.rank, more, "", "leak", one.grows))
    held = next((held for held in one.places if held.place == one.grows), None)
    at = f" at {one.grows}" if one.grows else ""
    why = (
        f"its memory grows by {format_bytes(one.bytes_per_step)} a step{at}, that of "
        f"{'the other' if len(case.members) == 2 else 'the others'} does not; it holds "
        f"{format_bytes(more)} more than {case.versus()}{_since(odd.step)}"
    )
    return replace(odd, why=why, category=held.category if held is not None else "")


def _line(case: _Case, more: int) -> tuple[Held | None, int]:
    """The line with most of what a rank has more, and how much that is."""
    best: tuple[Held | None, int] = (None, 0)
    for held in case.one.places:
        above = held.bytes - case.among.at(held.place)[0]
        if above > best[1]:
            best = held, above
    return best if best[1] >= _MOST_OF_IT * more else (None, 0)


def _category(case: _Case, more: int) -> tuple[str, int]:
    """The category with most of what a rank has more, and how much that is."""
    above = {
        name: nbytes - case.among.of("categories", name)
        for name, nbytes in case.one.categories.items()
    }
    name = max(above, key=lambda name: above[name], default="")
    return (name, above[name]) if name and above[name] >= _MOST_OF_IT * more else ("", 0)


def _cause(case: _Case, line: Held | None, category: str) -> tuple[str, str]:
    """The word for a cause, and what a sentence says of it."""
    if case.one.pipelined and category == "activation" and _is_scheduled(case):
        said = "; the stages of a pipeline keep the activations of more or fewer microbatches"
        return "stage", said
    if line is None:
        if category and _counts_agree(case) and category in _OF_A_BATCH:
            return "larger_blocks", ", in as many blocks: a larger batch, or longer sequences"
        return "unknown", ""
    usual, count = case.among.at(line.place)
    if not count:
        return "own_line", ", where the others hold nothing"
    mean = line.bytes // line.count
    elsewhere = usual // count
    if mean > (1 + _SHARE) * elsewhere:
        said = f", in blocks of {format_bytes(mean)}, and of {format_bytes(elsewhere)} elsewhere"
        if category in _OF_A_BATCH:
            said += ": a larger batch, or longer sequences"
        return "larger_blocks", said
    more = f", in {format_count(line.count, 'block')}, and {format_count(count)} elsewhere"
    return "more_blocks", more


def _counts_agree(case: _Case) -> bool:
    """Whether a rank has as many blocks as the others, over all its lines."""
    usual = case.among.blocks
    return abs(_blocks(case.one) - usual) <= _SAME_COUNT * usual


def _is_scheduled(case: _Case) -> bool:
    """Whether earlier stages have more activations than later ones, as a schedule leaves them."""
    held = [one.categories.get("activation", 0) for one in case.members]
    return all(a * (1 + _SHARE) >= b for a, b in pairwise(held))


def _caches(case: _Case, spare: int) -> Odd:
    one = case.one
    why = (
        f"its peak of reserved is {format_bytes(_cache(one))} above that of allocated, "
        f"{format_bytes(spare)} more than with {case.versus()}: cached or fragmented"
    )
    return Odd(one.rank, spare, why, "cache")


def _not_torch(case: _Case, more: int) -> Odd:
    one = case.one
    above = {
        name: nbytes - case.among.of("libraries", name) for name, nbytes in one.libraries.items()
    }
    name = max(above, key=lambda name: above[name], default="")
    whose = (
        f": {format_bytes(above[name])} more in {name}" if name and above[name] > more // 4 else ""
    )
    why = (
        f"{format_bytes(one.other_bytes or 0)} on its device are not PyTorch's, "
        f"{format_bytes(more)} more than with {case.versus()}{whose}"
    )
    return Odd(one.rank, more, why, "not_torch", name if whose else "")


def _between(shapes: Sequence[Shape], known: set[int | None]) -> list[Odd]:
    """The rank with the highest peak of a shape that has more than the others."""
    typical = [_usual([one.peak_allocated_bytes for one in shape.members]) for shape in shapes]
    at = max(range(len(shapes)), key=typical.__getitem__)
    everybody = [one for shape in shapes for one in shape.members]
    usual = _usual([one.peak_allocated_bytes for one in everybody])
    more = typical[at] - usual
    if more <= max(_SHARE * usual, _LEAST):
        return []
    shape = shapes[at]
    one = max(shape.members, key=lambda one: one.peak_allocated_bytes)
    if one.rank in known:
        return []
    largest = _larger(one.categories, everybody)
    parts = [
        f"{format_bytes(above)} more of {_several(name)}"
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
    return [Odd(one.rank, more, why, "stage", "", largest[0][0] if largest else "")]


def _several(category: str) -> str:
    """A category's name as a plural: "optimizer states"."""
    words = category.replace("_", " ")
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _larger(
    categories: Mapping[str, int], everybody: Sequence[RankDigest]
) -> list[tuple[str, int]]:
    """The two categories of which a rank has most more than usual."""
    above = [
        (name, nbytes - _usual([one.categories.get(name, 0) for one in everybody]))
        for name, nbytes in categories.items()
    ]
    ranked = sorted((one for one in above if one[1] > _LEAST), key=lambda one: -one[1])
    return ranked[:2]
