# SPDX-License-Identifier: Apache-2.0
"""The runs of which ranges are made, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from neutracer._native import core
from neutracer.diagnose.settings.what_if_parts import Outcome, outcome_of
from neutracer.trace.progress import tell

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Each", "Plan", "run_plans", "side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Calls a function with each of some items, in any order; results in theirs.
Each = Callable[[Callable[["_Run"], bytes], Iterable["_Run"]], list[bytes]]


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of some settings at one limit.

    Attributes:
        program: What is run.
        settings: The text of the settings; None are the recorded ones.
        name: What they are called in the outcome.
        options: The keywords of the core's `find_range`.
        compare: Runs the recorded settings with the addresses of the trace, which then is the
            first run where it came out exactly: its figures, and whether; or None.
    """

    program: core.Program
    settings: str | None
    name: str
    options: dict[str, Any]
    compare: Callable[[], tuple[bytes, bool]] | None

    def runs(self) -> list[_Run]:
        """The runs to make."""
        count = self.program.count_variants(self.settings, **self.options)
        return [_Run(self, index) for index in range(count)]


@dataclass(frozen=True, eq=False)
class _Run:
    plan: Plan
    index: int

    def __call__(self) -> bytes:
        """Its figures, as the core has them."""
        plan = self.plan
        if self.index == 0 and plan.compare is not None:
            figures, is_exact = plan.compare()
            if is_exact:
                return figures
        return plan.program.run_variant(plan.settings, index=self.index, **plan.options)


def run_plans(plans: list[Plan], each: Each) -> list[Outcome]:
    """The outcome of each plan.

    Args:
        plans: What to run.
        each: Makes the runs.
    """
    todo = [run for plan in plans for run in plan.runs()]
    figures = dict(zip(todo, each(_Run.__call__, todo), strict=True))
    outcomes = []
    for plan in plans:
        variants = [made for run, made in figures.items() if run.plan is plan]
        found = plan.program.join_variants(plan.settings, variants=variants, **plan.options)
        outcomes.append(outcome_of(plan.name, *found))
    return outcomes


def _tell_done(futures: list[Future[Result]]) -> None:
    """Say how many are done, and of how many."""
    done = count(1)
    for future in futures:
        future.add_done_callback(lambda _: tell(f"replayed {next(done)} of {len(futures)}"))


def side_by_side(
    work: Callable[[Item], Result], items: Iterable[Item], stop: Event
) -> list[Result]:
    """`work` on each item, in one thread per core; results in order.

    Args:
        work: What is done.
        items: To what.
        stop: Is set while the others end after a failure.
    """
    listed = list(items)
    # Where the interpreter is about to end, as in what atexit calls, no thread begins.
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return [work(item) for item in listed]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            futures = [pool.submit(work, item) for item in listed]
            _tell_done(futures)
        except RuntimeError:
            pool.shutdown(cancel_futures=True)
            return [work(item) for item in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            stop.clear()
            raise
