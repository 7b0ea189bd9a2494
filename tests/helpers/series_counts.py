# SPDX-License-Identifier: Apache-2.0
"""The verdicts of leak_trend on the two sets of families of series."""

from __future__ import annotations

import random
from collections import Counter

import series_set_a  # noqa: F401  # registers its families, as the next one does
import series_set_b  # noqa: F401
from series_families import FAMILIES, Family

import neutracer

CALM = ("steady", "unknown")


def verdicts(name: str, one: Family, count: int, seed: str) -> Counter[str]:
    """The verdicts of `count` series of a family."""
    found: Counter[str] = Counter()
    for number in range(count):
        series = one.make(random.Random(f"{name} {number} {seed}"))
        whole = [max(round(value), 0) for value in series]
        found[neutracer.leak_trend(whole).verdict] += 1
    return found


def count_set(group: str, count: int, seed: str) -> dict[str, Counter[str]]:
    """The verdicts of one set: "walks", "other steady", "leaks"."""
    found = {kind: Counter[str]() for kind in ("other steady", "walks", "leaks")}
    for name, one in FAMILIES.items():
        if one.group == group:
            kind = "leaks" if one.truth == "leak" else "walks" if one.is_walk else "other steady"
            found[kind] += verdicts(name, one, count, seed)
    return found
