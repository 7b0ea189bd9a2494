# SPDX-License-Identifier: Apache-2.0
"""Phases on a CUDA device: exact peaks by the hooks, PyTorch's counters left alone, marks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import neutracer
from neutracer.recording.long_history import snapshot_now
from neutracer.trace.marks import turns_of

MIB = 1 << 20

pytestmark = pytest.mark.gpu


def blob(torch: Any, nbytes: int) -> Any:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


@pytest.fixture
def hooks(torch: Any) -> Iterator[None]:
    blob(torch, 1)
    neutracer.live()
    yield
    neutracer.live.stop()


def test_a_phase_resets_no_peak(torch: Any) -> None:
    blob(torch, 1 << 30)
    before = torch.cuda.max_memory_allocated()
    run = neutracer.training(max_entries=0)
    with neutracer.phase("warm-up"), run, run.step(), run.phase("forward"):
        blob(torch, MIB)
    assert torch.cuda.max_memory_allocated() == before


def test_peaks_below_earlier_ones_are_exact(torch: Any, hooks: None) -> None:
    blob(torch, 512 * MIB)
    start = torch.cuda.memory_allocated()
    with neutracer.phase("outer") as outer:
        blob(torch, 100 * MIB)
        with neutracer.phase("inner") as inner:
            kept = blob(torch, 10 * MIB)
            blob(torch, 20 * MIB)
    assert outer.peak_is_exact
    assert outer.peak_bytes - start == 100 * MIB
    assert inner.peak_bytes - start == 30 * MIB
    assert inner.left_bytes == 10 * MIB
    del kept


def test_the_trace_has_the_peaks_that_the_hooks_saw(torch: Any, hooks: None) -> None:
    found = []
    for turn in range(5):
        with neutracer.phase("turn") as phase:
            rest = [blob(torch, (turn + part + 1) * 3 * MIB + 700) for part in range(4)]
            del rest[::2]
            blob(torch, 5 * MIB)
        found.append((phase.start_bytes, phase.peak_bytes, phase.end_bytes))
        del rest
    timeline = (snap := neutracer.live()).timeline()
    for turn, (start, peak, end) in zip(turns_of(snap), found, strict=True):
        levels = timeline.allocated[turn.first : turn.end]
        assert max([start, *levels]) == peak
        assert levels[-1] == end


def test_a_snapshot_on_demand_does_not_stop_the_program(torch: Any, hooks: None) -> None:
    """No thread waits for the GIL longer than 1 ms for each 10,000 blocks."""
    kept = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(20_000)]
    begin = time.perf_counter()
    waits = [longest_wait(snapshot_now) for _ in range(3)]
    taken = (time.perf_counter() - begin) / 3
    # A busy machine takes the processor from the thread without us.
    idle = [longest_wait(lambda: time.sleep(taken)) for _ in range(3)]
    assert len(snapshot_now().blocks) >= len(kept)
    assert min(waits) < 2e-3 + min(idle)


def longest_wait(work: Callable[[], object]) -> float:
    """The longest time, in seconds, that another thread waits for the GIL during some work."""
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not over.is_set():
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    return max(gaps)


def test_a_boundary_costs_20_us(torch: Any, hooks: None) -> None:
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(50):
            with neutracer.phase("x"):
                pass
        best = min(best, (time.perf_counter() - begin) / 100)
    assert best <= 20e-6
