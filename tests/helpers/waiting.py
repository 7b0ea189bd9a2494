# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: Seconds until what comes at once on an idle machine counts as never.
PATIENCE = 60.0

#: By so much more processor time does what is timed take under AddressSanitizer.
SLOWER = 4.0 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1.0


# Processor time of `_work` in seconds where the bounds were set.
_WORK_S = 0.007


def pace() -> float:
    """How many times as long Python takes now as where bounds on time were set; at least 1: other
    machines are slower, and busy ones for a while."""
    spent = []
    for _ in range(3):
        begin = time.thread_time()
        _work()
        spent.append(time.thread_time() - begin)
    return max(min(spent) / _WORK_S, 1.0) if SLOWER == 1 else SLOWER


def _work() -> None:
    counts: dict[int, int] = {}
    for number in range(50_000):
        counts[number % 997] = counts.get(number % 997, 0) + number * number % 7


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether the condition held within that time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()
