# SPDX-License-Identifier: Apache-2.0
"""Followers of the hooks and `neutracer.live` beside each other, on the CPU's allocator."""

from __future__ import annotations

import pytest

import neutracer
from neutracer.hooks import shim as hooks

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
