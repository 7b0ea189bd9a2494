# SPDX-License-Identifier: Apache-2.0
"""How much longer does a piece of work take in one mode of the process than in another?

Machines are noisy by more than what is looked for, and their noise drifts. So the two modes
take turns in blocks of four elements, A B B A and then B A A B: what drifts slowly falls out
of each block's difference. An element is one call that is not timed, which settles what the
switch has moved, and a few that are. Of the blocks the median counts, and it is told how far
it may be off (95 %); blocks are added until that is little, or the time is up.

The process is on one core, its collector is off and what was made before is frozen. Wall time
goes to the end of the work on the device; CPU time is the process's own, of all its threads,
until everything is launched, and so without the wait for the device.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "Switch", "Work", "compare", "quiet"]

Switch = Callable[[], None]

# Blocks that are always made, and how the spread of a normal distribution follows from its
# quartiles, the error of a median from the spread, and 95 % from the error.
_FEWEST = 8
_QUARTILES, _MEDIAN, _TWO_SIDED = 1.349, 1.2533, 1.96


@dataclass(frozen=True)
class Work:
    """A piece of work: what it does, and the wait until the device has done it.

    Attributes:
        name: What it is, in a few words.
        run: Does it, and does not wait for the device.
        wait: Waits for the device.
    """

    name: str
    run: Callable[[], object]
    wait: Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """What one mode takes more than the other; times in microseconds.

    Attributes:
        base: The other mode's wall time.
        more: How much more wall time.
        error: How far `more` may be off (95 %).
        base_cpu: The other mode's CPU time, and so the next two.
        more_cpu: How much more CPU time.
        error_cpu: How far that may be off.
        blocks: How many blocks it was taken from.
    """

    base: float
    more: float
    error: float
    base_cpu: float
    more_cpu: float
    error_cpu: float
    blocks: int

    def on_top_of(self, other: Figure | None) -> Figure:
        """This with what `other` takes more added, of which this one's base is a part."""
        if other is None:
            return self
        return Figure(
            base=other.base,
            more=self.more + other.more,
            error=(self.error**2 + other.error**2) ** 0.5,
            base_cpu=other.base_cpu,
            more_cpu=self.more_cpu + other.more_cpu,
            error_cpu=(self.error_cpu**2 + other.error_cpu**2) ** 0.5,
            blocks=min(self.blocks, other.blocks),
        )


def quiet() -> None:
    """Keep the noise away that can be: one core, and no collections."""
    if hasattr(os, "sched_setaffinity"):
        # The last one that the process may use: the first ones serve interrupts.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.collect()
    gc.freeze()
    gc.disable()


def compare(
    work: Work,
    base: Switch,
    other: Switch,
    *,
    seconds: float,
    enough: float = 0.0,
    calls: int = 3,
    middle: Callable[[Sequence[float]], float] = min,
) -> Figure:
    """What `work` takes more after `other` than after `base`.

    Args:
        work: What is timed.
        base: Switches the mode on that is compared with.
        other: Switches the other one on, and off what `base` left.
        seconds: The most time that is spent.
        enough: The error in microseconds at which it ends sooner.
        calls: Timed calls of an element.
        middle: What counts of these: the least, which no interruption makes longer; or
            `statistics.mean`, for what costs something in some calls only.
    """
    sides: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    end = time.perf_counter() + seconds
    blocks = 0
    walls: list[float] = []
    cpus: list[float] = []
    while blocks < _FEWEST or (time.perf_counter() < end and _error(walls) > enough):
        order = (0, 1, 1, 0) if blocks % 2 == 0 else (1, 0, 0, 1)
        for side in order:
            (base, other)[side]()
            sides[side].append(_element(work, calls, middle))
        (a, a_cpu), (b, b_cpu) = (_sums(side[-2:]) for side in sides)
        walls.append((b - a) / 2)
        cpus.append((b_cpu - a_cpu) / 2)
        blocks += 1
    base()
    return Figure(
        base=statistics.median(wall for wall, _ in sides[0]),
        more=statistics.median(walls),
        error=_error(walls),
        base_cpu=statistics.median(cpu for _, cpu in sides[0]),
        more_cpu=statistics.median(cpus),
        error_cpu=_error(cpus),
        blocks=blocks,
    )


def _sums(pair: list[tuple[float, float]]) -> tuple[float, float]:
    return pair[0][0] + pair[1][0], pair[0][1] + pair[1][1]


def _element(
    work: Work, calls: int, middle: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    """Wall and CPU time of a call, in microseconds."""
    work.run()
    work.wait()
    walls, cpus = [], []
    for _ in range(calls):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        work.run()
        cpus.append((time.process_time() - begin_cpu) * 1e6)
        work.wait()
        walls.append((time.perf_counter() - begin) * 1e6)
    return middle(walls), middle(cpus)


def _error(differences: list[float]) -> float:
    """How far the median may be off, of 95 in 100 such runs."""
    if len(differences) < _FEWEST:
        return float("inf")
    low, _, high = statistics.quantiles(differences, n=4)
    spread = (high - low) / _QUARTILES
    return _TWO_SIDED * _MEDIAN * spread / len(differences) ** 0.5
