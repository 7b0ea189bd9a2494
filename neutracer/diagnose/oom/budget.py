# SPDX-License-Identifier: Apache-2.0
"""A request that failed, and what its process could still have taken of the device."""

from __future__ import annotations

from dataclasses import dataclass

from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.settings.capacity import roundest
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame

__all__ = ["UNIT", "Budget", "Failure", "budget_of"]

#: Bytes of a segment of small blocks, and the unit of segments of large ones.
UNIT = 2 << 20

# Requests up to this are of the small pool.
_SMALL_REQUEST = 1 << 20

# Requests below this share a segment of the size that settings give (20 MiB by default).
_SHARING = 10 << 20


@dataclass(frozen=True)
class Failure:
    """A request that failed, or one that is asked about.

    Attributes:
        event: Its event in the device's trace; None where it has none.
        time_us: When it was, in microseconds since the epoch; None where unknown.
        size: Its bytes as the allocator rounded them.
        stream: The raw stream.
        pool: The private pool; (0, 0) is the default pool.
        stack: Where in the program, innermost first; empty where unknown.
        happened: It failed; else it is only asked about.
    """

    event: int | None
    time_us: int | None
    size: int
    stream: int = 0
    pool: tuple[int, int] = (0, 0)
    stack: tuple[Frame, ...] = ()
    happened: bool = True

    @property
    def is_small(self) -> bool:
        """Whether it is of the small pool."""
        return self.size <= _SMALL_REQUEST

    def segment_size(self, large_segment: int) -> int:
        """The segment that it opens where no hole holds it."""
        if self.is_small:
            return UNIT
        if self.size < _SHARING:
            return large_segment
        return -(-self.size // UNIT) * UNIT


@dataclass(frozen=True)
class Budget:
    """What the process could still have taken from the device. Sizes in bytes.

    Attributes:
        reserved: What it had.
        device_free: What the device had left; None where nobody said.
        limit: What PyTorch kept the process below; None where it did not, or not there.
        limit_is_guess: The limit is the roundest that the trace's failures allow.
        total: All of the device's memory; None where nobody said.
        process: All that this process had on the device; None where nobody said.
        others: What other processes had on it; None where nobody said.
        asked: The device's bytes as the user says; None where nobody does.
    """

    reserved: int
    device_free: int | None
    limit: int | None
    limit_is_guess: bool
    total: int | None
    process: int | None
    others: int | None
    asked: int | None = None

    @property
    def headroom(self) -> int:
        """What new segments could have taken, together."""
        bounds = [0 if self.device_free is None else self.device_free]
        if self.limit is not None:
            bounds.append(max(self.limit - self.reserved, 0))
        return min(bounds)

    @property
    def usable(self) -> int:
        """What the process could have had in all."""
        return self.reserved + self.headroom

    def is_capped(self, segment: int) -> bool:
        """Whether a new segment would have gone beyond the process's limit."""
        return self.limit is not None and self.limit - self.reserved < segment

    @property
    def non_torch(self) -> int | None:
        """What is taken on the device and not PyTorch's; None where that is unknown.

        A context takes some of every real device. Where nothing is taken, what the device had
        left was reckoned from its size alone, as of one that a user has only in mind.
        """
        if self.total is None or self.device_free is None:
            return None
        taken = self.total - self.device_free - self.reserved
        return taken if taken > 0 else None


def budget_of(
    snap: Snapshot,
    device: int,
    failure: Failure,
    reserved: int,
    facts: OomFacts,
    capacity: int | None,
) -> Budget:
    """What the process could still have taken when a request failed.

    Args:
        snap: The snapshot.
        device: The device.
        failure: The request.
        reserved: Bytes that the process had reserved then.
        facts: What is known beside the snapshot.
        capacity: The device's bytes as the user says; None: as recorded.
    """
    total = facts.device_total_bytes if capacity is None else capacity
    free = _device_free(snap, device, failure, facts, reserved)
    if capacity is not None:
        left = max(capacity - reserved, 0)
        free = left if free is None else min(free, left)
    segment = failure.segment_size(int(snap.settings_in_force["large_segment_size"]))
    limit, guessed = facts.limit_bytes, False
    share = float(snap.settings_in_force["per_process_memory_fraction"])
    if limit is None and total is not None and share < 1.0:
        limit = int(total * share)
    may_guess = failure.event is not None and free is not None and free >= segment
    if limit is None and capacity is None and not failure.happened and free is not None:
        limit = _known_limit(snap, device)
        guessed = limit is not None
    if limit is None and may_guess:
        limit, guessed = _guessed_limit(snap, device, failure, reserved, segment), True
    elif limit is not None and facts.is_rounded:
        limit = _sharpened(limit, reserved, segment, free)
    if limit is not None and total is not None and limit > total - UNIT:
        # As good as all of the device: no limit that one could raise.
        free = None if free is None else min(free, max(limit - reserved, 0))
        limit = None
    process, others = facts.process_bytes, facts.others_bytes
    return Budget(reserved, free, limit, guessed, total, process, others, capacity)


def _device_free(
    snap: Snapshot, device: int, failure: Failure, facts: OomFacts, reserved: int
) -> int | None:
    """What the device had left: as PyTorch wrote it down, as somebody else did, or where a
    request is only asked about, reckoned from the last one that failed."""
    timeline = snap.timeline(device)
    if failure.event is not None:
        return int(timeline.events[failure.event].device_free)
    ooms = timeline.events.find("action", "oom")
    if facts.device_free_bytes is None and not failure.happened and ooms:
        left = int(timeline.events[ooms[-1]].device_free)
        return max(left + timeline.reserved[ooms[-1]] - reserved, 0)
    return facts.device_free_bytes


def _known_limit(snap: Snapshot, device: int) -> int | None:
    """The roundest limit that the trace's failures allow, where they show one."""
    facts = snap.timeline(device).program.facts()
    if facts["is_device"] or facts["limit_high"] is None:
        return None
    return roundest(max(facts["limit_low"], 1), facts["limit_high"])


def _guessed_limit(
    snap: Snapshot, device: int, failure: Failure, reserved: int, segment: int
) -> int:
    """The roundest limit under which what succeeded succeeds, and this fails."""
    timeline = snap.timeline(device)
    before = timeline.reserved[: (failure.event or 0) + 1]
    low = max(max(before, default=reserved), reserved)
    high = reserved + segment - 1
    facts = timeline.program.facts()
    if not facts["is_device"] and facts["limit_high"] is not None:
        # What other failures of the trace say, unless the limit was changed in between.
        lowest, highest = max(low, facts["limit_low"]), min(high, facts["limit_high"])
        if lowest <= highest:
            low, high = lowest, highest
    return roundest(low, high) if low <= high else reserved


def _sharpened(limit: int, reserved: int, segment: int, free: int | None) -> int:
    """A limit in two decimals, within what the failure says of it."""
    if free is None or free < segment:
        return limit
    return min(max(limit, reserved), reserved + segment - 1)
