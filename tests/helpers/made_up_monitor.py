# SPDX-License-Identifier: Apache-2.0
"""A MemoryMonitor of devices that exist only as `neutracer._selftest` has them say."""

from __future__ import annotations

from compiled import selftest

from neutracer.process.monitor.memory_monitor import MemoryMonitor
from neutracer.process.monitor.source import Road


class MadeUpMonitor(MemoryMonitor):
    """A monitor of devices for which `selftest.sampler_set` speaks."""

    numbers: tuple[int, ...] = (0,)

    def _find_road(self) -> Road:
        places = (-1,) * len(self.numbers)
        return Road(self.numbers, places, None, selftest.sampler_source(), "made-up")
