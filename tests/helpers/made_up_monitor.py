# SPDX-License-Identifier: Apache-2.0
"""A MemoryMonitor of devices that exist only as `neutracer._selftest` has them say."""

from __future__ import annotations

from compiled import selftest

from neutracer.monitor.memory_monitor import MemoryMonitor, Road


class MadeUpMonitor(MemoryMonitor):
    """A monitor of devices for which `selftest.sampler_set` speaks."""

    numbers: tuple[int, ...] = (0,)

    def _find_road(self) -> Road:
        places = (-1,) * len(self.numbers)
        return Road(self.numbers, places, None, selftest.sampler_source(), "made-up")
