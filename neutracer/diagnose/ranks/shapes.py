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
    unknown = []
    for one in digests:
        if one.trouble:
            continue
        if not one.parameters:
            unknown.append(one)
            continue
        mine = next((group for group in groups if _alike(group[0], one)), None)
        if mine is None:
            groups.append([one])
        else:
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


def _alike(one: RankDigest, other: RankDigest) -> bool:
    """Whether two ranks hold the same parameters: what both have, of what either has."""
    mine, theirs = dict(one.parameters), dict(other.parameters)
    sizes = mine.keys() | theirs.keys()
    both = sum(size * min(mine.get(size, 0), theirs.get(size, 0)) for size in sizes)
    either = sum(size * max(mine.get(size, 0), theirs.get(size, 0)) for size in sizes)
    return both >= _ALIKE * either
