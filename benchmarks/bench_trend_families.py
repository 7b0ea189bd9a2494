# SPDX-License-Identifier: Apache-2.0
"""Does leak_trend tell leaks from what only looks like one? Families of series of many kinds.

Each series is given as plain numbers, one a step, without a word of what it is. A steady one
that gets any verdict but steady or unknown is a false alarm, and collected garbage is steady: it
is given back, and numbers don't say by whom.

With --walks, Gaussian random walks without drift of so many steps each, and no families.

usage: python benchmarks/bench_trend_families.py [SERIES A FAMILY, default 200] [--seed SEED]
       [--only looked-at|held-out|held-out-2|...|held-out-19]
       [--walks STEPS ...]
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import trend_families_eighteenth  # noqa: E402, F401  # registers its families, as all of them do
import trend_families_eighth  # noqa: E402, F401
import trend_families_eleventh  # noqa: E402, F401
import trend_families_fifteenth  # noqa: E402, F401
import trend_families_fifth  # noqa: E402, F401
import trend_families_fourteenth  # noqa: E402, F401
import trend_families_fourth  # noqa: E402, F401
import trend_families_nineteenth  # noqa: E402, F401
import trend_families_ninth  # noqa: E402, F401
import trend_families_seasons  # noqa: E402, F401
import trend_families_second  # noqa: E402, F401
import trend_families_seventeenth  # noqa: E402, F401
import trend_families_seventh  # noqa: E402, F401
import trend_families_sixteenth  # noqa: E402, F401
import trend_families_sixth  # noqa: E402, F401
import trend_families_tenth  # noqa: E402, F401
import trend_families_third  # noqa: E402, F401
import trend_families_thirteenth  # noqa: E402, F401
import trend_families_twelfth  # noqa: E402, F401
from trend_families import FAMILIES, Family, Group, gaussian_walk  # noqa: E402

import neutracer  # noqa: E402
from neutracer.diagnose.leaks.verdict import VERDICTS  # noqa: E402

TITLES: dict[Group, str] = {
    "looked-at": "looked at",
    "held-out": "first held-out set",
    "held-out-2": "second held-out set",
    "held-out-3": "third held-out set",
    "held-out-4": "fourth held-out set",
    "held-out-5": "fifth held-out set",
    "held-out-6": "sixth held-out set",
    "held-out-7": "seventh held-out set",
    "held-out-8": "eighth held-out set",
    "held-out-9": "ninth held-out set",
    "held-out-10": "tenth held-out set",
    "held-out-11": "eleventh held-out set",
    "held-out-12": "twelfth held-out set",
    "held-out-13": "thirteenth held-out set",
    "held-out-14": "fourteenth held-out set",
    "held-out-15": "fifteenth held-out set",
    "held-out-16": "sixteenth held-out set",
    "held-out-17": "seventeenth held-out set",
    "held-out-18": "eighteenth held-out set",
    "held-out-19": "nineteenth held-out set",
}


def verdicts(name: str, one: Family, count: int, seed: str) -> Counter[str]:
    """The verdicts of so many series of a family."""
    found: Counter[str] = Counter()
    for number in range(count):
        series = one.make(random.Random(f"{name} {number} {seed}"))
        whole = [max(round(value), 0) for value in series]
        found[neutracer.leak_trend(whole).verdict] += 1
    return found


def walks(steps: int, count: int, seed: str) -> Counter[str]:
    """The verdicts of so many walks of a GiB and this many steps."""
    make = functools.partial(gaussian_walk, level=float(1 << 30), count=steps)
    return verdicts(f"walk of {steps}", Family("steady", "looked-at", make), count, seed)


def rate(counts: list[Counter[str]], *wanted: str) -> str:
    total = sum(map(Counter.total, counts))
    hits = sum(one[verdict] for one in counts for verdict in wanted)
    return f"{hits} of {total} ({hits / total:.2%})" if total else "none"


def show(group: Group, count: int, seed: str) -> None:
    chosen = {name: one for name, one in FAMILIES.items() if one.group == group}
    print(TITLES[group])
    counts = {name: verdicts(name, one, count, seed) for name, one in chosen.items()}
    for name, found in counts.items():
        told = ", ".join(f"{number} {verdict}" for verdict, number in found.most_common())
        print(f"  {chosen[name].truth:13} {name.replace('_', ' '):26} {told}")
    steady = [found for name, found in counts.items() if chosen[name].truth != "leak"]
    leaks = [found for name, found in counts.items() if chosen[name].truth == "leak"]
    alarms = [verdict for verdict in VERDICTS if verdict not in ("steady", "unknown")]
    print(f"  false alarms: {rate(steady, *alarms)}")
    print(f"  leaks found: {rate(leaks, 'leak')}")
    print(f"  leaks called steady: {rate(leaks, 'steady')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--seed", default="")
    parser.add_argument("--only", choices=tuple(TITLES))
    parser.add_argument("--walks", nargs="+", type=int, metavar="STEPS")
    args = parser.parse_args()
    start = time.perf_counter()
    for steps in args.walks or ():
        print(f"  walks of {steps} steps: {rate([walks(steps, args.count, args.seed)], 'leak')}")
    for group in TITLES if args.walks is None else ():
        if args.only in (None, group):
            show(group, args.count, args.seed)
    print(f"{args.count} series of each kind in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
