# SPDX-License-Identifier: Apache-2.0
"""Threads that make cycles, collect, and set up and end watches; ThreadSanitizer watches.

The watch has no thread of its own: it runs in whichever thread collects, and relies on the
GIL. So ThreadSanitizer has to see the GIL as well, that is, the locks of a Python that it
did not compile: without `ignore_noninstrumented_modules`.

    NEUTRACER_TSAN=1 python setup.py build_ext --inplace
    LD_PRELOAD=$(gcc -print-file-name=libtsan.so) TSAN_OPTIONS=exitcode=0:log_path=race \\
        python tests/leaks/watch_threads.py [SECONDS]
    grep -E '\\b(nt|ph|py)_[a-z0-9_]*\\.c:' race.*     # nothing

It ends with 1 if a cycle was not told.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from typing import Any

import torch

import neutracer

THREADS = 3


class Node:
    """Part of a cycle with a tensor, of which some have a finalizer."""

    def __init__(self, number: int) -> None:
        self.me = self
        self.tensor = torch.empty(256 + number % 7)


class Finalized(Node):
    """Comes back to life once in a while."""

    def __del__(self) -> None:
        if self.tensor.numel() % 5 == 0:
            KEPT.append(self)


KEPT: list[Node] = []


def make(until: float, made: list[int]) -> None:
    """Makes cycles and collects them, or lets others do so."""
    count = 0
    while time.monotonic() < until:
        for _ in range(20):
            (Finalized if count % 3 == 0 else Node)(count)
            count += 1
        if count % 60 == 0:
            gc.collect(count // 60 % 3)
        KEPT.clear()
    made.append(count)


def come_and_go(until: float, made: list[int]) -> None:
    """Watches that live for a moment, and their figures meanwhile."""
    count = 0
    while time.monotonic() < until:
        found: list[Any] = []
        with neutracer.warn_tensor_cycles(
            "cpu", once_per_signature=False, callback=found.append
        ) as watch:
            Node(1)
            gc.collect()
            repr(watch.status), repr(watch.cycles)
        neutracer.find_tensor_cycles("cpu")
        count += 1
    made.append(count)


def main() -> int:
    """The threads for so many seconds (20)."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", neutracer.TensorCycleWarning)
    found: list[Any] = []
    made: list[int] = []
    with neutracer.warn_tensor_cycles(
        "cpu", once_per_signature=False, callback=found.append
    ) as watch:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=make, args=(until, made)) for _ in range(THREADS)]
        threads.append(threading.Thread(target=come_and_go, args=(until, made)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        status = watch.status
    # Those that came back to life are told a second time.
    told = sum(cycle.count for cycle in found)
    print(f"{sum(made):,} cycles made, {told:,} told; {status}")
    return 0 if told >= sum(made) and not status["refused"] else 1


if __name__ == "__main__":
    sys.exit(main())
