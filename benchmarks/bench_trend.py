# SPDX-License-Identifier: Apache-2.0
"""Does leak_trend tell leaks from what only looks like one? Two sets of families of series.

Each series is given as plain numbers, one per step. A steady one with any verdict but steady or
unknown is a false alarm; driftless random walks are counted by themselves, since numbers alone
cannot tell them from slow growth. Garbage that a collector gives back is steady.

usage: python benchmarks/bench_trend.py [SERIES PER FAMILY, default 200] [--seed SEED]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import trend_families_a  # noqa: E402, F401  # registers its families, as the next one does
import trend_families_b  # noqa: E402, F401
from trend_families import FAMILIES, Family  # noqa: E402

import neutracer  # noqa: E402

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


def show(group: str, found: dict[str, Counter[str]]) -> None:
    for kind, counts in found.items():
        total, calm = counts.total(), sum(counts[one] for one in CALM)
        hits = total - calm
        what = "found" if kind == "leaks" else "called growing"
        parts = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        print(f"  set {group}, {kind:12} {hits} of {total} {what} ({hits / total:.2%}): {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", default="")
    args = parser.parse_args()
    start = time.perf_counter()
    for group in ("a", "b"):
        show(group, count_set(group, args.count, args.seed))
    print(f"{args.count} series of each family in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
