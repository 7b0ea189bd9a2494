# SPDX-License-Identifier: Apache-2.0
"""From the trends of several series to one verdict, and to when the memory is full."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neutracer.diagnose.leaks.series import Observed, Trend
from neutracer.trace.devices import cache_emptier
from neutracer.units import format_bytes, format_count

__all__ = ["RUN", "VERDICTS", "Forecast", "Verdict", "forecast", "judge"]

#: What `leak_trend` can say, with what it means.
VERDICTS = {
    "leak": "live memory grows step after step",
    "growing": "live memory rises step after step",
    "cycle_garbage": "live memory grows until something lets go of it all at once",
    "non_torch_growth": "memory on the device that is not PyTorch's grows",
    "fragmentation_growth": "live blocks split up ever more free memory",
    "cache_growth": "the cache grows while live memory does not",
    "steady": "nothing grows",
    "unknown": "no verdict is possible",
}

#: How long a program may run, by what a step is: nobody says when it ends.
RUN = {"step": 100_000, "window": 1_000, "snapshot": 1_000}

# Growth below this share of what is held is too little to matter: of live bytes by the end of
# such a run, of the series besides over all steps seen.
_MATERIAL = 0.002

# Falls of this share of the growth together give it back.
_GIVEN_BACK = 0.5

# A saw-tooth that stands so many of its falls above its median no longer falls as it did.
_PILED = 1.5

# So much of a cache's growth in freed blocks that wait for a stream is what grows.
_WAITING = 0.5

# With fewer steps after the warm-up nothing can be said.
_FEWEST = 3
# With fewer no growth can be proved, and of windows, which are no steps, not its absence.
_PROVABLE = 8


@dataclass(frozen=True)
class Verdict:
    """What a program's memory does, and the trend that shows it."""

    kind: str
    trend: Trend
    because: str


@dataclass(frozen=True)
class Forecast:
    """When the memory is full, at this rate.

    Attributes:
        step: The step, counted as the series is; None: never, or no capacity is known.
        between: The first and the last step that the interval of the growth allows; the
            last is None where that may be never.
        in_us: Microseconds from the last step on; None where a step's length is unknown.
    """

    step: int | None
    between: tuple[int, int | None] | None
    in_us: float | None


def judge(seen: Observed) -> Verdict:
    """The first of the verdicts that the series bear out."""
    live = seen.live
    if live.is_sawtooth:
        if _leaks(seen):
            return _grows(seen, "The level after each fall grows.")
        return _falls_back(seen)
    if _leaks(seen):
        if live.is_levelling:
            return Verdict("unknown", live, "It grew ever more slowly and may level off.")
        return _grows(seen, "The lowest level of each step grows.")
    return _besides(seen) or _not_growing(live, seen)


def _grows(seen: Observed, because: str) -> Verdict:
    """The verdict on live bytes that grow: a leak only where blocks can bear it out."""
    if seen.has_blocks:
        return Verdict("leak", seen.live, because)
    text = f"{because} Numbers alone cannot tell a random walk from slow growth."
    return Verdict("growing", seen.live, text)


def _falls_back(seen: Observed) -> Verdict:
    """The verdict on a saw-tooth: whose the falls are, only a trace's lines can say."""
    live = seen.live
    if seen.timeline is not None:
        text = "It rose step after step and fell back to where it was."
        return Verdict("cycle_garbage", live, text)
    falls = f"{format_count(live.teeth, 'fall')}, by {format_bytes(round(live.tooth))}"
    if live.last > live.level + _PILED * live.tooth:
        text = (
            f"It rose and fell ({falls}), and stands higher now than falls of this size take back."
        )
        return Verdict("unknown", live, text)
    text = (
        f"Falls give back what piles up: {falls}. So it is with what the program empties itself, "
        "and with the garbage of cycles, which neutracer.warn_tensor_cycles() in the program finds."
    )
    return _besides(seen) or Verdict("steady", live, text)


def _besides(seen: Observed) -> Verdict | None:
    """A verdict that other series than the live bytes bear out."""
    outside, cached = seen.outside, seen.cached
    whole = seen.live.level if cached is None else cached.level
    if outside is not None and _settled(outside, whole + outside.level):
        return Verdict("non_torch_growth", outside, "PyTorch's own memory does not grow with it.")
    if cached is None or not _settled(cached, whole):
        return None
    if seen.live.slope >= _GIVEN_BACK * cached.slope:
        return Verdict("unknown", seen.live, "Live memory seems to grow, but not beyond doubt.")
    if seen.waiting is not None and seen.waiting.slope >= _WAITING * cached.slope:
        text = "What grows are freed blocks that wait for a stream."
        return Verdict("unknown", cached, text)
    stuck = seen.stuck
    if stuck is None:
        text = "These series don't show whether empty_cache() could give it back."
        return Verdict("cache_growth", cached, text)
    if stuck.grows and stuck.slope >= 0.5 * cached.slope:
        return Verdict("fragmentation_growth", cached, "The free bytes lie between live blocks.")
    return Verdict("cache_growth", cached, f"{cache_emptier(seen.device)} can give it back.")


def _leaks(seen: Observed) -> bool:
    """Whether the growth of the live bytes is proved, and matters before a long run ends."""
    return seen.live.grows and _would_matter(seen)


def _would_matter(seen: Observed) -> bool:
    """Whether live bytes that go on like this matter before a long run ends."""
    return seen.live.slope * RUN[seen.unit] > _MATERIAL * seen.live.level


def _settled(trend: Trend, whole: float) -> bool:
    """Whether another series' growth is proved, matters, and shows no sign of ending."""
    if trend.is_levelling or trend.is_sawtooth or _was_given_back(trend):
        return False
    return trend.grows and trend.growth > _MATERIAL * whole


def _was_given_back(trend: Trend) -> bool:
    """Whether falls took back most of what had grown, as when a cache is emptied."""
    fallen = sum(-nbytes for _, nbytes in trend.jumps if nbytes < 0)
    return fallen > _GIVEN_BACK * trend.growth


def _not_growing(live: Trend, seen: Observed) -> Verdict:
    if live.steps < (_PROVABLE if seen.unit == "window" else _FEWEST):
        verb = "is" if live.steps == 1 else "are"
        where = "left after the warm-up" if live.warmup else "there"
        text = f"Only {format_count(live.steps, seen.unit)} {verb} {where}."
        return Verdict("unknown", live, text)
    rises = live.interval[0] > 0 and live.growth > _MATERIAL * live.level
    if live.steps < _PROVABLE and rises:
        return Verdict("unknown", live, f"It rose in each of {live.steps} {seen.unit}s: too few.")
    if live.grows:
        return Verdict("steady", live, "It grows by too little to matter.")
    if seen.timeline is None and live.is_in_doubt and not live.is_levelling and _would_matter(seen):
        rate, steps = format_bytes(round(live.slope)), format_count(live.steps, seen.unit)
        text = (
            f"It seems to rise by {rate} a {seen.unit}, over {steps}, but memory "
            "that wanders up and down without a level may do so too."
        )
        return Verdict("unknown", live, text)
    return Verdict("steady", live, _given_back(seen) or "No growth shows after the warm-up.")


def _given_back(seen: Observed) -> str:
    """What a table's growth of the reserved bytes came to, where one fall took it back."""
    cached = seen.cached
    if cached is None or cached.interval[0] <= 0 or not _was_given_back(cached):
        return ""
    at, nbytes = min(cached.jumps, key=lambda jump: jump[1])
    fall = f"by {format_bytes(-round(nbytes))} at {seen.unit} {format_count(at)}"
    return f"The cache grew and was given back: the reserved bytes fell {fall}."


def forecast(seen: Observed, verdict: Verdict) -> Forecast:
    """When the memory is full.

    A leak fills it when the live bytes at their highest within a step reach what the
    process can have; what fragments, when the reserved bytes do. A cache is given back
    before memory runs out, and garbage collected.
    """
    trend = verdict.trend
    room = _room(seen, verdict)
    if room is None or trend.slope <= 0:
        return Forecast(None, None, None)
    last = len(seen.allocated) - 1

    def after(slope: float) -> int:
        return last + max(math.ceil(room / slope), 1)

    low, high = trend.interval
    step = after(trend.slope)
    step_us = seen.duration_us()
    between = (after(max(high, trend.slope)), after(low) if low > 0 else None)
    return Forecast(step, between, None if step_us is None else (step - last) * step_us)


def _room(seen: Observed, verdict: Verdict) -> float | None:
    """Bytes that may still be added; None where nothing fills up or nothing is known."""
    if seen.capacity is None:
        return None
    outside = seen.outside.last if seen.outside is not None else 0.0
    if verdict.kind in ("leak", "growing"):
        above = 0
        if seen.peaks is not None:
            recent = list(zip(seen.peaks, seen.allocated, strict=True))[-5:]
            above = max(peak - floor for peak, floor in recent)
        return max(seen.capacity - outside - seen.live.last - above, 0.0)
    if verdict.kind in ("fragmentation_growth", "non_torch_growth"):
        held = seen.cached.last if seen.cached is not None else seen.live.last
        return max(seen.capacity - outside - held, 0.0)
    return None
