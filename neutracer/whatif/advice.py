# SPDX-License-Identifier: Apache-2.0
"""Expandable segments replayed, for reports that recommend them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_bytes, format_span, split_bytes
from neutracer.whatif.settings import expandable_advice

if TYPE_CHECKING:
    from neutracer.whatif.replaying import Replayer

_SETTINGS = "expandable_segments:True"

# Longer traces are left to `what_if`, so that a report costs little more than its file.
_MOST_EVENTS = 300_000

# The least saving worth a change of settings, as a share.
_WORTH = 0.05

# The core's codes for the time at which blocks used by other streams become free.
_TIMINGS = (0, 1, 2)

# Shares (of 2^32), and numbers, of the possible silent empty_cache() calls that are assumed real.
_SHARES = (0xFFFFFFFF, 0x7FFFFFFF, 0x1FFFFFFF)
_CALLS = (1, 4, 16)


class Replayed:
    """One device's trace under expandable segments, replayed when first needed.

    It gives figures only if the model reproduces the recording exactly. They are ranges where
    the timing of other streams, a roughly known limit or silent calls of empty_cache() matter.
    """

    def __init__(self, snap: Snapshot, device: int) -> None:
        self._snap = snap
        self._device = device
        self._timeline = snap.timeline(device)

    @property
    def is_possible(self) -> bool:
        """Whether expandable segments can be switched on."""
        settings = self._snap.settings_in_force
        if settings["expandable_segments"] or not settings["native_backend"]:
            return False
        if self._snap.is_cpu or self._snap.is_pinned:
            return False
        segments = self._snap.native.tables()["segments"]
        return not any(memoryview(segments["is_expandable"]))

    @property
    def advice(self) -> str:
        """The advice to set expandable segments alone, as they were replayed."""
        return expandable_advice(str(self._snap.settings_in_force["text"]))

    @cached_property
    def _runs(self) -> tuple[dict[str, memoryview], ...]:
        """The series under each possible limit, timing and number of silent calls; or none."""
        known = 0 < len(self._timeline) <= _MOST_EVENTS and self._snap.partial is None
        if not known or not self.is_possible:
            return ()
        # Most reports advise nothing, and replay nothing.
        from neutracer.whatif.replaying import Replayer

        try:
            return self._replay(Replayer(self._snap, self._device))
        except ValueError:
            return ()  # An inconsistent file: no figures.

    def _replay(self, replayer: Replayer) -> tuple[dict[str, memoryview], ...]:
        if not replayer.check.is_exact:
            return ()
        timings = _TIMINGS if replayer.facts["has_later"] else _TIMINGS[:1]
        cases: list[dict[str, int]] = [
            {**replayer.options(limit), "timing": timing}
            for limit in replayer.limits
            for timing in timings
        ]
        if replayer.silent_places:
            shares = (*_SHARES, *(0xFFFFFFFF // replayer.silent_places * n for n in _CALLS))
            cases += [{**cases[0], "silent": 2, "share": min(s, _SHARES[0])} for s in shares]
        return tuple(replayer.series(_SETTINGS, **case, goes_on=True) for case in cases)

    @cached_property
    def _peaks(self) -> tuple[list[int], int]:
        """The peaks of reserved up to the first failure: replayed, and as recorded."""
        end = self._first_failure()
        start = self._timeline.facts["start_bytes"][2]
        peaks = [max(run["reserved"][:end], default=start) for run in self._runs]
        recorded = self._timeline.reserved
        if end == len(recorded):
            return peaks, self._timeline.peak("reserved").bytes
        return peaks, max(recorded[:end], default=start)

    @property
    def spared_at_peak(self) -> int | None:
        """The bytes that the replayed peak of reserved up to the first failure is lower by, at
        least; None without a replay."""
        if not self._runs:
            return None
        peaks, recorded = self._peaks
        return max(recorded - max(peaks), 0)

    def at_peak(self) -> str | None:
        """The replayed peak of reserved up to the first failure, formatted; "" if it saves too
        little, None without a replay."""
        return self._saved(*self._peaks) if self._runs else None

    def at_end(self) -> str | None:
        """The replayed reserved bytes at the end, as for `at_peak`."""
        if not self._runs:
            return None
        ends = [run["reserved"][-1] for run in self._runs]
        return self._saved(ends, self._timeline.reserved[-1])

    def _first_failure(self) -> int:
        if not self._timeline.facts["oom_count"]:
            return len(self._timeline)
        return next(i for i, name in enumerate(self._timeline.events["action"]) if name == "oom")

    def _saved(self, simulated: list[int], recorded: int) -> str:
        low, high = min(simulated), max(simulated)
        if high >= recorded * (1 - _WORTH):
            return ""
        span = format_span(low, high, "MiB") if low != high else format_bytes(low, "MiB")
        was, was_unit = split_bytes(recorded, "MiB")
        if not span.endswith(f" {was_unit}"):
            was = f"{was} {was_unit}"
        return f"{span} instead of {was} (replayed; the model reproduces this file exactly)"
