# SPDX-License-Identifier: Apache-2.0
"""`leak_trend` on a running MemoryMonitor whose device is made up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compiled import needs_selftest, selftest
from made_up_monitor import MadeUpMonitor

import neutracer
from neutracer.monitor.memory_monitor import MemoryMonitor

MIB = 1 << 20

pytestmark = needs_selftest


def say(allocated: int, reserved: int, used: int) -> None:
    selftest.sampler_set(0, allocated, reserved, used, 8 << 30, 0, 0)


@pytest.fixture
def monitor() -> Iterator[MemoryMonitor]:
    """A monitor that reads at its marks, and hardly between them."""
    say(1 << 30, 3 << 30, 4 << 30)
    with MadeUpMonitor(5.0, actions=()) as running:
        yield running
    selftest.sampler_set(0, 0, 0, 0, 0, 1, 0)


def run(monitor: MemoryMonitor, rate: int) -> None:
    """Forty steps that go up to 2 GiB and leave `rate` bytes behind."""
    for step in range(40):
        floor = (1 << 30) + step * rate
        say(floor, 3 << 30, 4 << 30)
        monitor.mark(f"step {step}")
        say(2 << 30, 3 << 30, 4 << 30)
        monitor.mark(f"optimizer {step}")
    say((1 << 30) + 40 * rate, 3 << 30, 4 << 30)
    monitor.mark("done")


def test_leak_is_found_by_the_marks(monitor: MemoryMonitor) -> None:
    run(monitor, 8 * MIB)
    trend = neutracer.leak_trend(monitor, live=False)
    assert (trend.verdict, trend.unit) == ("growing", "step")
    assert trend.bytes_per_step == pytest.approx(8 * MIB, rel=0.01)
    assert trend.capacity == 8 << 30
    assert trend.oom_step is not None
    assert trend.oom_in_us is not None


def test_steady_run_is_steady(monitor: MemoryMonitor) -> None:
    run(monitor, 0)
    assert neutracer.leak_trend(monitor, live=False).verdict == "steady"
