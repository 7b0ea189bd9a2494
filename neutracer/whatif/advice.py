# SPDX-License-Identifier: Apache-2.0
"""What a trace would have reserved with expandable segments, for reports that advise them."""

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

# Less than this share saved is not worth a change of settings.
_WORTH = 0.05

# The core's numbers of when blocks that other streams used are free again.
_TIMINGS = (0, 1, 2)

# Of the places where a call of empty_cache() may have left no trace, as many of 2^32 are
# taken for calls; and about so many of them.
_SHARES = (0xFFFFFFFF, 0x7FFFFFFF, 0x1FFFFFFF)
_CALLS = (1, 4, 16)


class Replayed:
    """One device's trace under expandable segments, replayed when first needed.

    It gives figures only where the model reproduces the recording exactly. Expandable
    segments have no ties between addresses; where other streams' timing, a limit that is
    known only roughly, or calls of empty_cache() that left no trace matter, the figures are
    a range over these.
    """

    def __init__(self, snap: Snapshot, device: int) -> None:
        self._snap = snap
        self._device = device
        self._timeline = snap.timeline(device)

    @property
    def is_possible(self) -> bool:
        """Whether expandable segments could be switched on."""
        settings = self._snap.settings_in_force
        if settings["expandable_segments"] or not settings["native_backend"]:
            return False
        if self._snap.is_cpu or self._snap.is_pinned:
            return False
        segments = self._snap.native.tables()["segments"]
        return not any(memoryview(segments["is_expandable"]))

    @property
    def advice(self) -> str:
        """The advice to switch them on, which is what was replayed: with nothing else set."""
        return expandable_advice(str(self._snap.settings_in_force["text"]))

    @cached_property
    def _runs(self) -> tuple[dict[str, memoryview], ...]:
        """The series under each limit, timing and number of silent calls that may have been;
        empty: none known."""
        known = 0 < len(self._timeline) <= _MOST_EVENTS and self._snap.partial is None
        if not known or not self.is_possible:
            return ()
        # Most reports advise nothing, and replay nothing.
        from neutracer.whatif.replaying import Replayer

        try:
            return self._replay(Replayer(self._snap, self._device))
        except ValueError:
            # A state that no allocator can have been in: what can't be told is left out.
            return ()

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

    def at_peak(self) -> str | None:
        """What the peak of reserved would have been, up to the first failure.

        Returns:
            The bytes in words, "" where nothing is saved, None where there is no replay.
        """
        if not self._runs:
            return None
        end = self._first_failure()
        start = self._timeline.facts["start_bytes"][2]
        peaks = [max(run["reserved"][:end], default=start) for run in self._runs]
        return self._saved(peaks, max(self._timeline.reserved[:end], default=start))

    def at_end(self) -> str | None:
        """What would be reserved at the end; as `at_peak` says it."""
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
        return f"{span} instead of {was} ({self._trust()})"

    def _trust(self) -> str:
        return "replayed; the model reproduces this file exactly"
