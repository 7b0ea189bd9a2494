# SPDX-License-Identifier: Apache-2.0
"""Ranks of one shape: those that hold the same parameters, as in data parallelism.

The stages of a pipeline, or its experts, have others; they are compared among themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutracer.process.ranks.digest import RankDigest

__all__ = ["Shape", "shapes_of"]

# Ranks with so much of their parameters in common, by bytes, are of one shape: shards of
# parameters that can't be divided evenly differ by a little.
_ALIKE = 0.9


@dataclass(frozen=True)
class Shape:
    """Ranks of one shape.

    Attributes:
        members: Their digests, in the order of the ranks.
        parameter_bytes: The parameters of the first of them.
    """

    members: tuple[RankDigest, ...]
    parameter_bytes: int


def shapes_of(digests: Sequence[RankDigest]) -> list[Shape]:
    """Digests with figures by shape, in the order of their first ranks.

    A rank of which no parameters are known belongs to the largest shape.
    """
    groups: list[list[RankDigest]] = []
    sets: list[_Parameters] = []
    known: dict[tuple[tuple[int, int], ...], list[RankDigest]] = {}
    unknown = []
    for one in digests:
        if one.trouble:
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
    """The parameters of a rank: how many there are of each size, and their bytes."""

    def __init__(self, one: RankDigest) -> None:
        self.counts = dict(one.parameters)
        self.bytes = sum(size * count for size, count in self.counts.items())


def _alike(one: _Parameters, other: _Parameters) -> bool:
    """Whether two ranks hold the same parameters: what both have, of what either has."""
    sizes = one.counts.keys() & other.counts.keys()
    both = sum(size * min(one.counts[size], other.counts[size]) for size in sizes)
    return both >= _ALIKE * (one.bytes + other.bytes - both)
