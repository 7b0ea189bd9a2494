# SPDX-License-Identifier: Apache-2.0
"""Fits what leak_trend decides by, and writes it to csrc/core/leak/nt_trend_trees.c.

Figures of series of known truth (nt_trend_figures.c) are weighed by boosted trees of two questions:
so many small ones, each of which mends a little of what those before it left. Where a figure
speaks for growth, more of it never speaks against it. A kind of series counts by its weight,
however many of it there are. How often what does not grow looks so is found on kinds that the
trees were not fitted on, each left out in its turn.

usage: python tools/fit_trend.py [--series 800] [--seed SEED] [--dry]
needs: pip install lightgbm numpy (4.7.0 and 2.4.6 wrote the table that is there), and the core as
it is now (make build); which table that has makes no difference
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import lightgbm
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "helpers"), str(ROOT)]

import bench_trend_families  # noqa: E402, F401  # registers its families
import trend_series as made  # noqa: E402
import trend_training  # noqa: E402, F401
from trend_families import FAMILIES, UNSEEN, Series, gaussian_walk  # noqa: E402
from trend_programs import log_uniform  # noqa: E402

from neutracer._native import core  # noqa: E402

WRITTEN = ROOT / "csrc/core/leak/nt_trend_trees.c"

# Of what more never speaks against growth.
RISING = (
    "score",
    "medians",
    "floors",
    "late_floors",
    "line",
    "drift",
    "bare_line",
    "bare_drift",
    "hinge_rise",
)

TREES, RATE = 600, 0.07
PARTS = 12  # of all kinds, each left out in its turn

# As leak_trend believes it: 0.003 of what does not grow. What does not rise by ranks is not asked,
# as in nt_trend.c, or nearly so: the 2.5 % point.
ALPHA = 0.003
NOTABLE = 1.96
NO_RISE = -20.0

# Gaussian walks from and up to so many steps.
WALKS = ((24, 45), (45, 70), (70, 100), (100, 200), (200, 500))

# Of what leaks less than its noise is.
FAINT_MEMORIES = (0.0, 0.3, 0.6)

# What kinds count. Walks are what is most like a leak: where the bound is set, one in five of what
# does not grow, beside what warms up, evaluates, fills a cache, and comes and goes.
OF_WALKS, OF_TRAINING = 8.0, 2.0
OF_SMALL_LEAKS, OF_LEAKS_AMONG_STEPS, OF_FAINT_LEAKS = 3.0, 7.5, 0.2
SHARE_OF_WALKS = 0.2

# Where the odds of what does not grow are turned into deviates.
TAILS = (0.1, 0.07, 0.05, 0.02, 0.01, 0.006, ALPHA, 0.0015)


class Kind(NamedTuple):
    """Series of one kind.

    Attributes:
        name: What it is called.
        of: What it is left out with.
        leaks: The truth.
        weight: What it counts in the fit.
        make: Makes a series.
        often: How many times as many series are made of it as of most.
        is_walk: Whether it does not grow and wanders up and down.
    """

    name: str
    of: str
    leaks: bool
    weight: float
    make: Callable[[random.Random], Series]
    often: float = 1.0
    is_walk: bool = False


def _small_leak(rng: random.Random, how: str, memory: float, leaks: bool) -> Series:
    """One of bench_trend.py's: 0.1 % a step in noise of 0.3 %, disturbed, or not growing."""
    least = (80 if "warmup" in how else 60) if leaks else 24
    count = round(log_uniform(rng, least, 400))
    level = made.level(rng, count, memory)
    return made.disturbed(rng, made.leaking(level) if leaks else level, how)


def _faint_leak(rng: random.Random, memory: float) -> Series:
    """A line that hardly leaves its noise, and is sure by how long it was looked at."""
    series = made.level(rng, round(log_uniform(rng, 200, 1000)), memory)
    spread = made.NOISE * made.LEVEL / (1 - memory)
    sure = log_uniform(rng, 10.0, 30.0)  # standard errors of its slope
    rise = sure * spread * math.sqrt(12 / len(series))
    return [one + rise * at / len(series) for at, one in enumerate(series)]


def _gaussian(rng: random.Random, least: int, most: int) -> Series:
    return gaussian_walk(rng, float(1 << 30), round(log_uniform(rng, least, most)))


def _drifting(rng: random.Random) -> Series:
    """A walk that goes up more than it comes down."""
    count = round(log_uniform(rng, 60, 500))
    size, sure = made.LEVEL * log_uniform(rng, 0.0005, 0.003), log_uniform(rng, 3.0, 10.0)
    drift, is_gaussian = sure / math.sqrt(count), rng.random() < 0.5
    value, found = float(made.LEVEL), []
    for _ in range(count):
        changes = rng.gauss(0.0, 1.0) if is_gaussian else rng.choice((-1, 1)) * rng.expovariate(1.4)
        value += size * (drift + changes)
        found.append(value)
    return found


def _resting(rng: random.Random, leaks: bool) -> Series:
    """What changes in some steps and rests between them; a walk, or by rises alone a leak."""
    count = round(log_uniform(rng, 30, 500))
    often, size = log_uniform(rng, 12 / count, 0.7), log_uniform(rng, 0.001, 0.03)
    spread, noise = rng.choice((0.0, 0.5, 1.0)), log_uniform(rng, 0.001, 0.5) * size
    held, found = 0.0, []
    for _ in range(count):
        if rng.random() < often:
            held += rng.lognormvariate(0.0, spread) * size * (1 if leaks else rng.choice((-1, 1)))
        found.append(made.LEVEL * (1 + held + rng.gauss(0.0, noise)))
    return found


def kinds() -> Iterator[Kind]:
    for name, one in FAMILIES.items():
        if one.group in UNSEEN:
            continue
        is_walk = "walk" in name and one.truth == "steady"
        weight = (OF_TRAINING if one.group == "training" else 1.0) * (OF_WALKS if is_walk else 1.0)
        often = min(weight, OF_WALKS)
        yield Kind(name, name, one.truth == "leak", weight, one.make, often, is_walk)
    for least, most in WALKS:
        name = f"walk {least}"
        make = partial(_gaussian, least=least, most=most)
        yield Kind(name, name, False, OF_WALKS, make, OF_WALKS, True)
    for leaks, weight in ((False, OF_WALKS), (True, OF_SMALL_LEAKS)):
        make = partial(_resting, leaks=leaks)
        yield Kind(f"resting {leaks}", "resting", leaks, weight, make, weight, not leaks)
    for memory in FAINT_MEMORIES:
        make = partial(_faint_leak, memory=memory)
        yield Kind(f"faint {memory}", "faint", True, OF_FAINT_LEAKS, make)
    for how in made.DISTURBANCES:
        for memory in made.MEMORIES:
            for leaks in (False, True):
                make = partial(_small_leak, how=how, memory=memory, leaks=leaks)
                of_leaks = OF_LEAKS_AMONG_STEPS if how == "steps" else OF_SMALL_LEAKS
                weight = of_leaks if leaks else 1.0
                yield Kind(f"small {how} {memory} {leaks}", f"small {how}", leaks, weight / 4, make)
    yield Kind("drifting", "drifting", True, OF_SMALL_LEAKS, _drifting, OF_SMALL_LEAKS)


def figures(kind: int, count: int, seed: str) -> np.ndarray:
    """One row a series: whether it rises at all, and its figures."""
    one, rows = list(kinds())[kind], []
    for number in range(round(count * one.often)):
        series = one.make(random.Random(f"{one.name} {number} {seed}"))
        whole = array("Q", (max(round(value), 0) for value in series))
        found = core.find_trend(whole)
        told = found["figures"]
        rises = max(told["score"], told["medians"]) > NOTABLE or found["teeth"] >= 2
        if any(told.values()):
            rows.append([rises, *told.values()])
    return np.array(rows)


class Fitted(NamedTuple):
    """What the trees are fitted on."""

    names: list[str]
    rises: np.ndarray
    rows: np.ndarray
    kind: np.ndarray
    leaks: np.ndarray
    weight: np.ndarray


def gathered(count: int, seed: str) -> Fitted:
    known = list(kinds())
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(figures, count=count, seed=seed), range(len(known))))
    kind = np.repeat(np.arange(len(known)), [len(rows) for rows in found])
    weight = np.array([one.weight / len(rows) for one, rows in zip(known, found, strict=True)])
    names = list(core.find_trend(array("Q", range(40)))["figures"])
    leaks = np.array([one.leaks for one in known])
    rows = np.vstack(found)
    return Fitted(names, rows[:, 0] > 0, rows[:, 1:], kind, leaks[kind], weight[kind] * count)


def fit(fitted: Fitted, chosen: np.ndarray) -> lightgbm.Booster:
    data = lightgbm.Dataset(fitted.rows[chosen], fitted.leaks[chosen], weight=fitted.weight[chosen])
    options: dict[str, Any] = {
        "objective": "binary",
        "num_leaves": 4,
        "max_depth": 2,
        "learning_rate": RATE,
        "min_child_samples": 60,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "feature_fraction": 0.4,
        "lambda_l2": 5.0,
        "monotone_constraints": [int(name in RISING) for name in fitted.names],
        "monotone_constraints_method": "intermediate",
        "deterministic": True,
        "force_row_wise": True,
        "seed": 1,
        "verbose": -1,
    }
    return lightgbm.train(options, data, TREES)


def odds_unseen(fitted: Fitted) -> np.ndarray:
    """Of each series, by trees that were fitted on other kinds; none that does not rise."""
    known = list(kinds())
    groups = sorted({one.of for one in known})
    random.Random(1).shuffle(groups)
    part = {name: at % PARTS for at, name in enumerate(groups)}
    parts = np.array([part[one.of] for one in known])[fitted.kind]
    odds = np.zeros(len(parts))
    for at in range(PARTS):
        left_out = parts == at
        booster = fit(fitted, ~left_out)
        odds[left_out] = booster.predict(fitted.rows[left_out], raw_score=True)
    return np.where(fitted.rises, odds, NO_RISE)


def knots(fitted: Fitted, odds: np.ndarray) -> list[tuple[float, float]]:
    """How seldom what does not grow has such odds, if SHARE_OF_WALKS of it are walks.

    Of walks, and of all else, every kind counts as much.
    """
    known = list(kinds())
    steady = np.flatnonzero(~fitted.leaks)
    kind = fitted.kind[steady]
    share = np.zeros(len(kind))
    for is_walk, part in ((True, SHARE_OF_WALKS), (False, 1 - SHARE_OF_WALKS)):
        alike = [at for at, one in enumerate(known) if (one.leaks, one.is_walk) == (False, is_walk)]
        for at in alike:
            share[kind == at] = part / len(alike) / np.sum(kind == at)
    order = np.argsort(odds[steady])
    beyond = 1 - np.cumsum(share[order])
    found = []
    for tail in TAILS:
        at = odds[steady][order][np.searchsorted(-beyond, -tail)]
        found.append((float(at), NormalDist().inv_cdf(1 - tail)))
    return found


def show(fitted: Fitted, odds: np.ndarray, least: float) -> None:
    """How each kind fared with trees that never saw it."""
    for at, one in enumerate(kinds()):
        mine = fitted.kind == at
        share = float(np.mean(odds[mine] > least))
        is_poor = share < 0.97 if one.leaks else share > 0.005
        if is_poor:
            print(f"  {'leak' if one.leaks else 'steady':7} {one.name:36} {share:7.2%} leak")
    groups: dict[str, list[tuple[bool, float]]] = {}
    for at, one in enumerate(kinds()):
        group = FAMILIES[one.name].group if one.name in FAMILIES else one.name.partition(" ")[0]
        share = float(np.mean(odds[fitted.kind == at] > least))
        groups.setdefault(group, []).append((one.leaks, share))
    for group, shares in groups.items():
        steady = [share for leaks, share in shares if not leaks]
        leaks = [share for is_leak, share in shares if is_leak]
        false = f"{np.mean(steady):.2%} false" if steady else ""
        found = f"{np.mean(leaks):.2%} of leaks found" if leaks else ""
        print(f"  {group:12} {false:11}  {found}")


def tree_row(tree: dict[str, Any]) -> str:
    """A tree of two questions or fewer as a row; a question that is not asked leads nowhere."""
    top = tree["tree_structure"]
    branches = [top.get("left_child", top), top.get("right_child", top)]
    asked = [top, *branches]
    figure = [one.get("split_feature", 0) for one in asked]
    at = [one.get("threshold", 0.0) for one in asked]
    odds = []
    for branch in branches:
        low, high = branch.get("left_child", branch), branch.get("right_child", branch)
        odds += [low["leaf_value"], high["leaf_value"]]
    numbers = "}, {".join(
        (
            ", ".join(map(str, figure)),
            ", ".join(f"{one:.6g}" for one in at),
            ", ".join(f"{one:.4g}" for one in odds),
        )
    )
    return f"{{{{{numbers}}}}},"


def text_of(booster: lightgbm.Booster, turned: list[tuple[float, float]]) -> str:
    trees = booster.dump_model()["tree_info"]
    found = [tree_row(tree) for tree in trees]
    rows = "\n".join(f"    {' '.join(found[at : at + 2])}" for at in range(0, len(found), 2))
    pairs = "\n".join(f"    {{{odds:.4f}, {deviate:.4f}}}," for odds, deviate in turned)
    return f"""/* SPDX-License-Identifier: Apache-2.0 */
/* Written by tools/fit_trend.py, which says what it is fitted on. */
#include "leak/nt_trend_parts.h"

/* clang-format off */
const nt_trend_tree nt_trend_trees[] = {{
{rows}
}};

const nt_trend_knot nt_trend_knots[] = {{
{pairs}
}};
/* clang-format on */

const size_t nt_trend_tree_count = sizeof nt_trend_trees / sizeof *nt_trend_trees;
const size_t nt_trend_knot_count = sizeof nt_trend_knots / sizeof *nt_trend_knots;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--series", type=int, default=800, help="of each kind")
    parser.add_argument("--seed", default="fit 1")
    parser.add_argument("--dry", action="store_true", help="say how it fares, and write nothing")
    args = parser.parse_args()
    fitted = gathered(args.series, args.seed)
    print(f"{len(fitted.kind):,} series of {len(list(kinds()))} kinds")
    odds = odds_unseen(fitted)
    turned = knots(fitted, odds)
    least = turned[TAILS.index(ALPHA)][0]
    show(fitted, odds, least)
    if not args.dry:
        WRITTEN.write_text(text_of(fit(fitted, np.ones(len(odds), bool)), turned))


if __name__ == "__main__":
    main()
