# SPDX-License-Identifier: Apache-2.0
"""A verdict on a trace held against its own blocks: who left them, and who freed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

from neutracer.diagnose.leaks.growth import Growth, Survivors, growth_of
from neutracer.diagnose.leaks.series import Observed
from neutracer.diagnose.leaks.verdict import Verdict
from neutracer.trace.roles import Role, role_of

__all__ = ["held_against", "proved_by_blocks"]

# Of a trace's growth so much must be blocks that are still there. Where no steps are known
# blocks must besides come from so many of the windows.
_EXPLAINED = 0.5
_OF_WINDOWS = 0.5

# Lines that leave something behind in so many of the steps, and no less in the last third of
# them, prove a leak by themselves, from so many steps on. The first steps are no proof: what
# is made once is made there.
_OFTEN = 0.45
_PROVING = 30
_FIRST = 0.25
_LATE = 0.75

# A model has fewer layers that are alike.
_MOST_LAYERS = 256


def held_against(seen: Observed, verdict: Verdict, survivors: Survivors) -> Verdict:
    """The verdict, unless the trace's own blocks don't bear it out."""
    if verdict.kind == "cycle_garbage" and seen.timeline is not None:
        # Only of what fell again is it asked where.
        from neutracer.diagnose.leaks.emptied import emptied_at

        place = emptied_at(seen, verdict.trend)
        if place is None:
            return verdict
        text = f"It rose, and the program itself let go of it at {place.location} each time."
        return replace(verdict, kind="steady", because=text)
    if verdict.kind != "leak" or seen.timeline is None or verdict.trend.is_sawtooth:
        return verdict
    kept = survivors.growth
    if not seen.is_named and _is_loading(seen):
        text = "Live memory rose, but hardly anything was freed: the program may be loading."
        return replace(verdict, kind="unknown", because=text)
    if seen.unit == "window":
        kept = tuple(one for one in kept if one.steps >= _OF_WINDOWS * verdict.trend.steps)
    if sum(one.bytes_per_step for one in kept) < _EXPLAINED * verdict.trend.slope:
        text = "Live memory rose, but no line leaves something behind step after step."
        return replace(verdict, kind="unknown", because=text)
    if not seen.is_named and _may_be_layers(seen, kept):
        text = "Modules left it, about once a layer: this may be a single forward pass."
        return replace(verdict, kind="unknown", because=text)
    return verdict


def proved_by_blocks(seen: Observed, verdict: Verdict) -> Verdict:
    """The verdict, or a leak that the series alone don't show and the trace's blocks do.

    A series can't tell a leak from noise where what is left differs from step to step, or is
    little beside what is held. In a trace each block has its line: where the same lines leave
    something behind in every step or every second one up to the end, and live memory rises by
    that, it is no chance.
    """
    last = len(seen.starts) - 2
    if verdict.kind not in ("steady", "unknown", "cache_growth") or seen.timeline is None:
        return verdict
    if seen.unit != "step" or last < _PROVING or seen.live.slope <= 0 or seen.live.is_sawtooth:
        return verdict
    begin = round(_FIRST * last)
    risen = seen.live.slope * (last - begin)
    left = {one.stack: one for one in growth_of(seen, begin, fell=False).growth}
    kept = [one for one in left.values() if one.steps >= _OFTEN * (last - begin)]
    total = sum(one.bytes for one in kept)
    if not _EXPLAINED * risen <= total <= risen / _EXPLAINED:
        return verdict
    third = growth_of(seen, last - (last - begin) // 3, fell=False).growth
    if 3 * sum(one.bytes for one in third if one.stack in left) < _LATE * total:
        return verdict
    if not seen.is_named and (_is_loading(seen) or _may_be_layers(seen, kept)):
        return verdict
    text = "The same lines leave something behind over and over, up to the end."
    return replace(verdict, kind="leak", trend=seen.live, because=text)


def _may_be_layers(seen: Observed, kept: Sequence[Growth]) -> bool:
    """Whether most of what is left may be what the layers of one pass keep for backward.

    Where most steps make something outside of modules, a program's loop makes them: what recurs
    may begin anywhere in the loop.
    """
    inside = [one for one in kept if role_of(one.stack) in (Role.MODULE, Role.EMPTY)]
    if 2 * sum(one.bytes for one in inside) < sum(one.bytes for one in kept):
        return False
    if max(one.count for one in inside) > _MOST_LAYERS:
        return False
    if seen.timeline is None or seen.unit == "window":
        return True
    passes = seen.timeline.passes
    own = sum(
        any(passes.allocates[at] and passes.role[at] == Role.USER for at in range(begin, end))
        for begin, end in pairwise(seen.starts)
    )
    return 2 * own < len(seen.starts) - 1


def _is_loading(seen: Observed) -> bool:
    """Whether most parts of a trace free nothing: nothing is done over and over there."""
    if seen.timeline is None:
        return False
    actions = cast("list[str]", seen.timeline.events["action"])
    parts = [actions[begin:end] for begin, end in pairwise(seen.starts)]
    return 2 * sum("free_completed" in part for part in parts) < len(parts)
