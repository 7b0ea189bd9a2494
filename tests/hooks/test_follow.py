# SPDX-License-Identifier: Apache-2.0
"""Followers of the hooks and `neutracer.live` beside each other, on the CPU's allocator."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import neutracer
from neutracer.hooks import shim as hooks
from neutracer.notebook import CellRecording

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(
    torch.version.cuda is not None, reason="needs a torch that is built for the CPU"
)


@pytest.fixture(autouse=True)
def silent():
    yield
    neutracer.live.stop()
    assert not hooks.state().active
    hooks.unwatch_thread()


def test_follower_goes_on_when_live_stops():
    end = hooks.follow(1000, 24)
    neutracer.live(100, 2)
    assert hooks.state().frames == 24
    neutracer.live.stop()
    assert hooks.state().active
    end()
    assert not hooks.state().active
    end()


def test_live_goes_on_when_the_follower_ends():
    neutracer.live(1000, 2)
    hooks.follow(500, 24)()
    assert hooks.state().active
    torch.ones(1000)
    assert len(neutracer.live().events) > 0


def test_monitor_has_the_cpu_before_its_first_tensor():
    with neutracer.MemoryMonitor(interval=0.01) as monitor:
        assert monitor.devices == (-1,)
        assert monitor.get_stats()["current_bytes"] >= 0


# ---- every pair of our own watchers --------------------------------------------------------

MIB = 1 << 20


def begin_live(ends: ExitStack) -> Callable[[], bool]:
    """Each of these begins a watcher, and returns whether it sees what is allocated now."""
    neutracer.live()
    ends.callback(neutracer.live.stop)

    def sees() -> bool:
        kept = torch.empty(3 * MIB, dtype=torch.uint8)
        timeline = neutracer.live().timeline()
        holders = timeline.holders(len(timeline) - 1, by="line")
        return kept.nbytes in [row.bytes for row in holders if __file__ in str(row.key)]

    return sees


def is_followed() -> bool:
    """Whether the hooks note what this thread allocates."""
    before = sum(hooks.state().pushed.values())
    torch.empty(9 * MIB, dtype=torch.uint8)
    return sum(hooks.state().pushed.values()) > before


def begin_monitor(ends: ExitStack) -> Callable[[], bool]:
    monitor = ends.enter_context(neutracer.MemoryMonitor(interval=0.01, devices="cpu"))

    def sees() -> bool:
        # Far larger than all else in these tests.
        kept = [torch.empty(256 * MIB, dtype=torch.uint8)]
        for is_kept in (True, False):
            end = time.monotonic() + 20
            while (monitor.get_stats()["current_bytes"] >= 256 * MIB) is not is_kept:
                if time.monotonic() > end:
                    return False
                time.sleep(0.005)
            kept.clear()
        return True

    return sees


def begin_ranks(ends: ExitStack) -> Callable[[], bool]:
    watch = ends.enter_context(neutracer.watch_ranks(signals=False))
    return lambda: watch.active and is_followed()


def begin_cell(ends: ExitStack) -> Callable[[], bool]:
    recording = CellRecording(10_000)
    recording.begin()
    ends.callback(recording.end)
    return is_followed


def begin_cycles(ends: ExitStack) -> Callable[[], bool]:
    watch = ends.enter_context(neutracer.warn_tensor_cycles("cpu"))

    def sees() -> bool:
        before = sum(cycle.count for cycle in watch.cycles)
        cycle = [torch.empty(MIB)]
        cycle.append(cycle)
        del cycle
        gc.collect(0)
        return sum(cycle.count for cycle in watch.cycles) > before

    return sees


WATCHERS = (begin_live, begin_monitor, begin_ranks, begin_cell, begin_cycles)


@pytest.mark.filterwarnings("ignore::neutracer.TensorCycleWarning")
def test_no_watcher_takes_anything_from_another() -> None:
    for first, second in itertools.permutations(WATCHERS, 2):
        for is_first_ended in (True, False):
            pair = f"{first.__name__}, {second.__name__}"
            with ExitStack() as one, ExitStack() as other:
                watchers = [(one, first(one)), (other, second(other))]
                assert [sees() for _, sees in watchers] == [True, True], pair
                (ended, _), (_, sees) = watchers if is_first_ended else watchers[::-1]
                ended.close()
                assert sees(), (
                    f"{pair}: once {'the first' if is_first_ended else 'the second'} ended"
                )
