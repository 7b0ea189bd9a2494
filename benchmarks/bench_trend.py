# SPDX-License-Identifier: Apache-2.0
"""Does leak_trend tell leaks from what only looks like one? Two sets of families of series.

Each series is given as plain numbers, one per step. A steady one with any verdict but steady or
unknown is a false alarm; driftless random walks are counted by themselves, since numbers alone
cannot tell them from slow growth. Garbage that a collector gives back is steady.

usage: python benchmarks/bench_trend.py [SERIES PER FAMILY, default 200] [--seed SEED]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from series_counts import CALM, count_set  # noqa: E402


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
