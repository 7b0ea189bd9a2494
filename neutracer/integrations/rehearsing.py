# SPDX-License-Identifier: Apache-2.0
"""What one test would take of a card that is not there: it runs on fake tensors.

The test and the fixtures of its own are run as `neutracer.rehearse` runs a step. Fixtures of a
wider scope that are made meanwhile hold fake tensors: they are torn down with the test, and made
anew for the next one.
"""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from typing import Any

from neutracer.errors import missing
from neutracer.integrations.meter import Measured, Place, places_of
from neutracer.rehearsal.cards import find_card
from neutracer.rehearsal.failures import sentence
from neutracer.trace.timeline import Timeline

__all__ = ["RehearsedMeter"]

# Nothing fails for want of memory: the test's limit says what is too much.
_ENDLESS = 1 << 50


class RehearsedMeter:
    """Measures one test as `Meter` does, on a card that is not there.

    Args:
        device: The card's name, or a part of it.

    Raises:
        ValueError: The table has no such card.
        UnavailableError: There is no torch.
    """

    def __init__(self, device: str) -> None:
        try:
            from neutracer.rehearsal.running import Run
        except ImportError as error:
            raise missing("torch") from error

        self._run = Run(find_card(device), _ENDLESS, "", 1)
        self._stack = ExitStack()
        self._tracing: Any = None
        self._timeline: Timeline | None = None
        self._start_bytes = 0
        self._began_us = 0
        self._range = (0, 0)
        #: Fixtures of a wider scope than the test's that were made meanwhile.
        self.fixtures: list[Any] = []
        self.blind = "the test is rehearsed, and its tensors are not real"
        self.measured = Measured()

    def enter(self) -> None:
        """The test's fixtures come next.

        Raises:
            UnavailableError: This torch is not one that a rehearsal is known to fit.
        """
        from neutracer.rehearsal.session import pretending

        room = {"devices": 1, "capacity": _ENDLESS}
        self._tracing = self._stack.enter_context(
            pretending(self._run.card, self._run.requests, **room)
        )

    def begin(self) -> None:
        """The test's code comes next."""
        gc.collect()
        self._start_bytes = self._run.requests.live_bytes
        # What the fixtures asked for has an earlier microsecond.
        before = time.time_ns() // 1000
        while (now := time.time_ns() // 1000) == before:
            pass
        self._began_us = now

    def end(self) -> Measured:
        """The test's code has ended; its fixtures are still there."""
        gc.collect()
        self._run.keep(self._tracing)
        snap = self._run.snapshot()
        rehearsed = snap.rehearsed
        assert rehearsed is not None
        self.measured = Measured(rehearsed=rehearsed.device)
        if 0 not in snap.devices:
            return self.measured
        self._timeline = timeline = snap.timeline(0)
        first = self._first(timeline)
        start = timeline.allocated[first - 1] if first else 0
        levels = timeline.allocated[first:]
        peak = max((int(level) for level in levels), default=start)
        whole = timeline.peak("allocated").bytes
        low, high = rehearsed.ranges.get("peak_allocated_bytes", (whole, whole))
        self._range = (low - whole, high - whole)
        self.measured = Measured(
            rehearsed=rehearsed.device,
            start_bytes=start,
            fixture_bytes=start,
            peak_bytes=max(peak - start, 0),
            left_bytes=int(levels[-1]) - start if len(levels) else 0,
            allocated_peak_bytes=peak,
            reserved_peak_bytes=timeline.peak("reserved").bytes,
        )
        return self.measured

    def _first(self, timeline: Timeline) -> int:
        times = timeline.time_us
        return next((k for k in range(len(times)) if times[k] >= self._began_us), len(times))

    @property
    def peak_range(self) -> tuple[int, int]:
        """The least and the most bytes that its peak can be above its start."""
        peak = self.measured.peak_bytes
        return max(peak + self._range[0], 0), peak + self._range[1]

    def find_places(self) -> list[Place]:
        """Who held the test's peak: only what the test itself allocated."""
        if self._timeline is not None:
            self.measured.places = places_of(self._timeline, self._first(self._timeline))
        return self.measured.places

    def left(self) -> tuple[int, list[Place]]:
        """What is allocated above the test's start: bytes, without their lines."""
        gc.collect()
        return max(self._run.requests.live_bytes - self._start_bytes, 0), []

    def failure(self, error: BaseException) -> str:
        """Why the test could not be rehearsed to its end, and what was made up until then."""
        card = f"rehearsed on fake tensors, as if on {self._run.card.name}"
        return "\n".join([f"{card}: {sentence(error)}", *self._run.notes])

    def close(self) -> None:
        """The test's fixtures are gone: tensors are real again."""
        self._timeline = None
        self._stack.close()
