# SPDX-License-Identifier: Apache-2.0
"""Is what leak_trend says of a series true? Synthetic series of each verdict, known truth.

Noise is AR(1) with innovations of 0.3 % of the memory and a memory from 0 to 0.9. A leak is
0.1 % of the memory a step and is to be found within 60 steps behind the warm-up. Each row is
a truth, each cell how many of its series were given that verdict; "saw-tooth" is steady, with
falls that were found.

usage: python benchmarks/bench_trend.py [SERIES A ROW, default 600 [SEED]]
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

import trend_series as made  # noqa: E402

import neutracer  # noqa: E402
from neutracer.diagnose.leaks.verdict import VERDICTS  # noqa: E402

# No alarm.
CALM = ("steady", "saw-tooth", "unknown")

# Behind the warm-up a leak has this many steps to be found in.
LEAK_STEPS = 60
LENGTHS = (24, 40, 60, 100, 200, 400)
LONGEST_WARMUP = 20

Source = tuple[object, dict]

# What is told of a series, in the order of the columns.
TOLD = [one if one != "cycle_garbage" else "saw-tooth" for one in VERDICTS]


def told(trend: neutracer.reports.LeakTrendReport) -> str:
    return "saw-tooth" if trend.verdict == "steady" and trend.resets else trend.verdict


def steady(rng: random.Random, how: str, memory: float) -> Source:
    series = made.disturbed(rng, made.level(rng, rng.choice(LENGTHS), memory), how)
    if how == "saw-teeth":
        values, starts = made.within_steps(rng, series)
        return values, {"steps": starts}
    return made.whole(series), {}


def leak(rng: random.Random, how: str, memory: float) -> Source:
    count = LEAK_STEPS + (LONGEST_WARMUP if "warmup" in how else 0)
    series = made.disturbed(rng, made.leaking(made.level(rng, count, memory)), how)
    if how == "saw-teeth":
        values, starts = made.within_steps(rng, series)
        return values, {"steps": starts}
    return made.whole(series), {}


def saw_tooth(rng: random.Random, memory: float) -> Source:
    count = rng.choice([n for n in LENGTHS if n >= 40])
    return made.whole(made.sawtooth(rng, made.level(rng, count, memory))), {}


def beside(kind: str, rng: random.Random, memory: float) -> Source:
    return made.columns(rng, rng.choice([n for n in LENGTHS if n >= 40]), memory, kind), {}


def rows(series: int, seed: str) -> Iterator[tuple[str, str, float, Counter[str]]]:
    """(truth, disturbance, memory, verdicts) of each kind of series."""
    for truth in (
        "steady",
        "leak",
        "saw-tooth",
        "cache_growth",
        "fragmentation_growth",
        "non_torch_growth",
        "steady columns",
    ):
        hows = made.DISTURBANCES if truth in ("steady", "leak") else ("none",)
        for how in hows:
            for memory in made.MEMORIES:
                rng = random.Random(f"{truth} {how} {memory}{seed}")
                found: Counter[str] = Counter()
                for _ in range(series // len(made.MEMORIES) // len(hows) + 1):
                    if truth == "steady":
                        source, options = steady(rng, how, memory)
                    elif truth == "leak":
                        source, options = leak(rng, how, memory)
                    elif truth == "saw-tooth":
                        source, options = saw_tooth(rng, memory)
                    else:
                        source, options = beside(truth, rng, memory)
                    found[told(neutracer.leak_trend(source, **options))] += 1
                yield truth, how, memory, found


def ratio(series: made.Series, memory: float) -> float:
    """How much likelier the changes of a series are as a leak's in noise of this memory than as a
    walk's, whose changes are that noise's innovations: the logarithm, but for scale and a summand.
    """
    bare = [one - at * made.LEAK * made.LEVEL for at, one in enumerate(series)]
    walked = sum((after - one) ** 2 for one, after in itertools.pairwise(series))
    # Without the memory, and the level by least squares.
    parts = [math.sqrt(1 - memory * memory)] + [1 - memory] * (len(bare) - 1)
    rest = [parts[0] * bare[0], *(after - memory * one for one, after in itertools.pairwise(bare))]
    level = sum(map(operator.mul, parts, rest)) / sum(part * part for part in parts)
    return walked - sum((one - part * level) ** 2 for one, part in zip(rest, parts, strict=True))


def best_test(walks_called_leaks: float, memory: float, seed: str) -> float:
    """The share of leaks in sixty steps that no test exceeds which calls so many walks a leak.

    The best one compares likelihoods, and knows noise, memory and rate (Neyman and Pearson,
    Philosophical Transactions A 231, 1933).
    """
    rng = random.Random(f"best {memory}{seed}")
    leaks, walks = [], []
    for _ in range(60_000):
        level = made.level(rng, LEAK_STEPS, memory)
        leaks.append(ratio(made.leaking(level), memory))
        changes = (rng.gauss(0.0, made.NOISE * made.LEVEL) for _ in level[1:])
        walks.append(ratio(list(itertools.accumulate(changes, initial=level[0])), memory))
    bound = sorted(walks)[-1 - round(walks_called_leaks * len(walks))]
    return sum(one > bound for one in leaks) / len(leaks)


def show(name: str, counts: Counter[str], truth: str) -> None:
    total = sum(counts.values())
    cells = "".join(f"{counts[verdict] or '.':>9}" for verdict in TOLD)
    print(f"  {name:32}{cells}   {counts[truth.removesuffix(' columns')] / total:7.2%} right")


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    seed = sys.argv[2] if len(sys.argv) > 2 else ""
    print(f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores")
    print(__doc__.partition("\n\nusage")[0])
    start = time.perf_counter()
    by_truth: dict[str, Counter[str]] = {}
    by_part: dict[tuple[str, str], Counter[str]] = {}
    by_memory: dict[tuple[str, float], Counter[str]] = {}
    cells: dict[tuple[str, str, float], Counter[str]] = {}
    for truth, how, memory, found in rows(series, seed):
        by_truth.setdefault(truth, Counter()).update(found)
        by_part.setdefault((truth, how), Counter()).update(found)
        by_memory.setdefault((truth, memory), Counter()).update(found)
        cells[truth, how, memory] = found
    heads = "".join(
        f"{verdict.replace('_growth', '+').replace('_', ' ')[:8]:>9}" for verdict in TOLD
    )
    print(f"\n  {'truth':32}{heads}")
    for truth, counts in by_truth.items():
        show(truth, counts, truth)
    print("\nsteady programs and leaks, by what disturbs the series:")
    for (truth, how), counts in by_part.items():
        if truth in ("steady", "leak"):
            show(f"{truth}, {how}", counts, truth)
    print("\nand by how much of a step's noise the next one remembers:")
    for (truth, memory), counts in by_memory.items():
        if truth in ("steady", "leak"):
            show(f"{truth}, AR(1) {memory}", counts, truth)
    print("\nand where both meet, the three worst of each:")
    for truth in ("steady", "leak"):
        mine = [
            (counts, f"{how}, AR(1) {m}") for (t, how, m), counts in cells.items() if t == truth
        ]
        mine.sort(key=lambda one: one[0][truth] / one[0].total())
        for counts, name in mine[:3]:
            show(f"{truth}, {name}", counts, truth)
    alarms = by_truth["steady"] + by_truth["steady columns"]
    wrong = sum(count for verdict, count in alarms.items() if verdict not in CALM)
    print(
        f"\nfalse alarms: {wrong} of {sum(alarms.values())} steady series "
        f"({wrong / sum(alarms.values()):.2%})"
    )
    found = by_truth["leak"]
    print(
        f"leaks found: {found['leak']} of {sum(found.values())} "
        f"({found['leak'] / sum(found.values()):.2%})"
    )
    worst = made.MEMORIES[-1]
    print(
        f"of leaks in nothing but AR(1) {worst} the best test that knows noise and rate, and calls "
        f"0.5 % of walks a leak, finds {best_test(0.005, worst, seed):.1%}"
    )
    print(
        f"{sum(map(Counter.total, by_truth.values())):,} series in "
        f"{time.perf_counter() - start:.1f} s"
    )


if __name__ == "__main__":
    main()
