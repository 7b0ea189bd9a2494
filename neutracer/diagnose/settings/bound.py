# SPDX-License-Identifier: Apache-2.0
"""The least memory that any allocator could serve a program with."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from neutracer.diagnose.settings.replaying import Replayer
from neutracer.diagnose.settings.what_if_parts import Outcome
from neutracer.render.row import PlainRow
from neutracer.trace.timeline import Timeline

__all__ = ["Bound", "bound_of", "packing_bound"]


@dataclass(frozen=True)
class Bound(PlainRow):
    """The least memory that any allocator needs.

    Attributes:
        bytes: The most bytes in live blocks at one time, each rounded up to 512, which is
            PyTorch's smallest unit.
        event: The event after which it was so; -1: before the trace.
        with_failed_bytes: The same if what failed when it was recorded had succeeded.
    """

    bytes: int
    event: int
    with_failed_bytes: int
    _beyond: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def of(self, outcome: Outcome) -> int:
        """The bytes to compare an outcome's peak with.

        Where a request succeeded that had failed when it was recorded, the replay ends
        with it: then it is what was live up to there, and that request.
        """
        if outcome.beyond_event is None:
            return self.bytes
        return self._beyond.get(outcome.beyond_event, self.bytes)


def packing_bound(timeline: Timeline, counts_failed: bool = True) -> Bound:
    """The packing lower bound of a trace: no allocator can manage with less.

    Args:
        timeline: The trace.
        counts_failed: Whether the sizes of failed requests can be trusted: PyTorch writes
            them down as its settings rounded them.
    """
    rows = timeline.allocations
    changes = [0] * (len(timeline) + 1)
    columns = (rows.codes("requested_size"), rows.codes("alloc_event"), rows.codes("free_event"))
    for requested, made, freed in zip(*columns, strict=True):
        size = -(-requested // 512) * 512
        if freed != -2:  # -2: freed before the trace
            changes[made + 1] += size
        if freed >= 0:
            changes[freed + 1] -= size
    live = list(accumulate(changes))
    most = max(live)
    wanted, beyond = [most], {}
    if timeline.facts["oom_count"]:
        sizes, so_far = timeline.events.codes("size"), list(accumulate(live, max))
        for event, action in enumerate(timeline.events["action"]):
            if action == "oom":
                size = sizes[event] if counts_failed else 0
                wanted.append(live[event + 1] + size)
                beyond[event] = max(so_far[event + 1], wanted[-1])
    return Bound(most, live.index(most) - 1, max(wanted), beyond)


def bound_of(replayer: Replayer) -> Bound:
    """The packing lower bound of the program that was recorded."""
    divisions = replayer.snap.settings_in_force["roundup_power2_divisions"]
    return packing_bound(replayer.timeline, max(divisions) <= 1)
