# SPDX-License-Identifier: Apache-2.0
"""At which step a rank departed from the others of its shape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from neutracer.diagnose.ranks.clocks import Clocks
from neutracer.process.ranks.digest import RankDigest

__all__ = ["departure"]

# What the peak of a step may differ by: a share of it, and of what it is apart at last.
_NOISE = 0.005
_OF_LAST = 0.02
_LEAST_NOISE = 256 << 10

# With fewer steps nothing departs.
_FEWEST = 3

# Of more ranks than that, as many that are spread evenly say what is usual.
_MOST_OTHERS = 33


def departure(one: RankDigest, others: Sequence[RankDigest], clocks: Clocks) -> int | None:
    """The first step from which on a rank had more than the others, to the end of its steps.

    Args:
        one: The rank.
        others: Those of its shape without it.
        clocks: The hosts' clocks.

    Returns:
        The number of the step in its own trace, from 0; None where it had more from the first
        step on, or there are too few steps.
    """
    known = [other for other in others if other.step_peak_bytes]
    apart = _apart(one, known[:: -(-len(known) // _MOST_OTHERS) or 1], clocks)
    if len(apart) < _FEWEST:
        return None
    last = max(above for _, above, _ in apart)
    at = None
    for step, above, usual in reversed(apart):
        if above <= max(_NOISE * usual, _OF_LAST * last, _LEAST_NOISE):
            break
        at = step
    if at is None or at == apart[0][0]:
        return None
    return at * one.steps_each


def _apart(
    one: RankDigest, others: Sequence[RankDigest], clocks: Clocks
) -> list[tuple[int, int, int]]:
    """(step, what it has more, what the others have) of the steps that others have too."""
    shifts = [_shift(one, other, clocks) for other in others]
    found = []
    for step, peak in enumerate(one.step_peak_bytes):
        same = [
            other.step_peak_bytes[step + shift]
            for other, shift in zip(others, shifts, strict=True)
            if 0 <= step + shift < len(other.step_peak_bytes)
        ]
        if same:
            usual = round(median(same))
            found.append((step, peak - usual, usual))
    return found


def _shift(one: RankDigest, other: RankDigest, clocks: Clocks) -> int:
    """How many steps later in another trace a step is: none where both have all steps."""
    if one.history_complete and other.history_complete:
        return 0
    if not any(one.step_us[:1]) or not any(other.step_us[:1]):
        return 0
    begin = clocks.common(one, one.step_us[0])
    times = [clocks.common(other, time_us) for time_us in other.step_us]
    at = bisect_left(times, begin)
    if at == 0:
        mine = [clocks.common(one, time_us) for time_us in one.step_us]
        return -_nearest(mine, times[0])
    return _nearest(times, begin)


def _nearest(times: Sequence[int], wanted: int) -> int:
    at = bisect_left(times, wanted)
    near = [i for i in (at - 1, at) if 0 <= i < len(times)]
    return min(near, key=lambda i: abs(times[i] - wanted))
