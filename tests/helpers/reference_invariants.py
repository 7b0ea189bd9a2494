# SPDX-License-Identifier: Apache-2.0
"""An oracle of what the reader refuses, leaves out and puts right, in plain Python.

It works on the rows of `reference_reader`, from what docs/reference/formats.md says of
files that can't be, and shares nothing with the core.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

Rows = list[dict[str, Any]]

#: The most bytes of a block, segment or request; the most of all segments; the last time.
MOST_BYTES = 1 << 48
MOST_SUM = 1 << 53
MOST_TIME = 1 << 53

#: The microseconds that clocks may disagree by.
CLOCK_SKEW = 100

#: Whether the range that such an event is about is mapped from then on; None is gone.
SEGMENT_ACTIONS = {
    "segment_alloc": False,
    "segment_map": True,
    "segment_free": None,
    "segment_unmap": None,
}

#: Events that say an address and a size of memory.
MEMORY_ACTIONS = ("alloc", "free_requested", "free_completed", *SEGMENT_ACTIONS)


class RejectedError(Exception):
    """What the oracle will not take for a snapshot."""


def check(holds: bool, what: str) -> None:
    """Refuse the snapshot unless something holds."""
    if not holds:
        raise RejectedError(what)


def check_sizes(segments: Rows, blocks: Rows) -> None:
    """Sizes that a device can have, and segments that fit its addresses."""
    for row in segments:
        for key in ("total_size", "allocated_size", "active_size", "requested_size"):
            check(row[key] <= MOST_BYTES, f"a segment's {key}")
        check(row["address"] + row["total_size"] <= 1 << 64, "a segment's end")
    check(sum(row["total_size"] for row in segments) <= MOST_SUM, "the segments' sizes")
    for row in blocks:
        check(max(row["size"], row["requested_size"]) <= MOST_BYTES, "a block's size")
        check(row["size"] <= segments[row["segment"]]["total_size"], "a block's size")


def without_overlaps(segments: Rows) -> list[int]:
    """The segments that are where their device has no other one."""
    order = sorted(range(len(segments)), key=lambda at: (segments[at]["address"], at))
    ends: dict[int, int] = {}
    kept = []
    for at in order:
        row = segments[at]
        if row["total_size"]:
            if row["address"] < ends.get(row["device"], 0):
                continue
            ends[row["device"]] = row["address"] + row["total_size"]
        kept.append(at)
    return sorted(kept)


def blocks_inside(segment: dict[str, Any], blocks: Rows) -> Rows:
    """A segment's blocks by address, without those that are elsewhere."""
    end = segment["address"]
    last = end + segment["total_size"]
    found = []
    for row in sorted(blocks, key=lambda row: row["address"]):
        if row["address"] < segment["address"] or row["address"] + row["size"] > last:
            continue
        check(row["address"] >= end, "two blocks at one address")
        end = row["address"] + row["size"]
        found.append(row)
    return found


def put_sums(segment: dict[str, Any], blocks: Rows, has_requested: bool) -> None:
    """A segment's sums are those of its blocks; a block holds what was requested of it."""
    active = [row for row in blocks if row["state"] != "inactive"]
    for row in active:
        row["requested_size"] = min(row["requested_size"], row["size"])
    segment["active_size"] = sum(row["size"] for row in active)
    allocated = [row["size"] for row in active if row["state"] == "active_allocated"]
    segment["allocated_size"] = sum(allocated)
    if has_requested:
        segment["requested_size"] = sum(row["requested_size"] for row in active)


def kept_layout(segments: Rows, blocks: Rows, *, has_requested: bool) -> tuple[Rows, Rows]:
    """The segments and blocks that a snapshot has of those in the file.

    Args:
        segments: All in the file.
        blocks: All in the file, by segment.
        has_requested: Whether any block says what was requested of it.
    """
    check_sizes(segments, blocks)
    kept_segments: Rows = []
    kept_blocks: Rows = []
    for at in without_overlaps(segments):
        row = segments[at]
        first = row["block_first"]
        inside = blocks_inside(row, blocks[first : first + row["block_count"]])
        put_sums(row, inside, has_requested)
        row["block_first"], row["block_count"] = len(kept_blocks), len(inside)
        for block in inside:
            block["segment"] = len(kept_segments)
        kept_segments.append(row)
        kept_blocks += inside
    return kept_segments, kept_blocks


def times(found: list[int]) -> list[int]:
    """The times of a trace: rising, and of every event or of none."""
    latest = 0
    for time in found:
        if not 0 <= time <= MOST_TIME or 0 < time < latest - CLOCK_SKEW:
            return [0] * len(found)
        latest = max(latest, time)
    latest = next((time for time in found if time), 0)
    return [latest := max(latest, time) for time in found]


def check_events(events: Rows) -> None:
    """Sizes and addresses that a device can have."""
    memory = [row for row in events if row["action"] in (*MEMORY_ACTIONS, "oom")]
    for row in memory:
        check(max(row["size"], row["device_free"]) <= MOST_BYTES, "an event's size")
        check(row["addr"] + row["size"] <= 1 << 64 or not row["size"], "an event's end")
    check(sum(row["size"] >> 10 for row in memory) < 1 << 53, "the events' sizes")


def put_right(events: Rows, segments: Rows, *, says_expandable: bool) -> None:
    """Times of events, and of what kind the trace made a segment."""
    check_events(events)
    for _, trace in groupby(events, lambda row: int(row["device"])):
        rows = list(trace)
        for row, time in zip(rows, times([row["time_us"] for row in rows]), strict=True):
            row["time_us"] = time
    kinds = {
        (row["device"], row["addr"]): SEGMENT_ACTIONS[row["action"]]
        for row in events
        if row["action"] in SEGMENT_ACTIONS
    }
    for row in segments if says_expandable else []:
        kind = kinds.get((row["device"], row["address"]))
        row["is_expandable"] = row["is_expandable"] if kind is None else kind
