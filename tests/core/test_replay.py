# SPDX-License-Identifier: Apache-2.0
"""Runs of programs made by hand: blocks that wait for streams, and blocks that are put back."""

from __future__ import annotations

import pickle
from typing import Any

import neutracer
from neutracer._native import core

MIB = 1 << 20
BASE = 0x7F00_0000_0000
OTHER_STREAM = 0x5500

RECORDED, EARLY, LATE, MIXED = range(4)


class Trace:
    """A snapshot that is written event by event."""

    def __init__(self, pool: tuple[int, int] = (0, 0)) -> None:
        self.pool = pool
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []

    def add(self, action: str, addr: int, mib: float, who: str, stream: int = 0) -> int:
        frame = {"name": who, "filename": "train.py", "line": len(who)}
        event = {"action": action, "addr": BASE + addr * MIB, "size": int(mib * MIB)}
        event |= {"stream": stream, "time_us": len(self.events), "frames": [frame]}
        self.events.append(event | {"pool_id": self.pool})
        return len(self.events) - 1

    def free(self, addr: int, mib: float, who: str) -> None:
        self.add("free_requested", addr, mib, who)
        self.add("free_completed", addr, mib, who)

    def end(self, addr: int, pieces: list[tuple[float, float]], stream: int = 0) -> None:
        """A segment: (size, requested) of each block; nothing requested is free."""
        blocks, at = [], BASE + addr * MIB
        for size, requested in pieces:
            state = "active_allocated" if requested else "inactive"
            block = {"address": at, "size": int(size * MIB), "state": state, "frames": []}
            blocks.append(block | {"requested_size": int(requested * MIB)})
            at += int(size * MIB)
        live = sum(block["size"] for block in blocks if block["state"] != "inactive")
        asked = sum(block["requested_size"] for block in blocks)
        segment = {"device": 0, "address": BASE + addr * MIB, "stream": stream}
        segment |= {"total_size": at - BASE - addr * MIB, "allocated_size": live}
        segment |= {"active_size": live, "requested_size": asked, "segment_type": "large"}
        segment |= {"segment_pool_id": self.pool, "is_expandable": False, "frames": []}
        self.segments.append(segment | {"blocks": blocks})

    def program(self) -> core.Program:
        """What it asked for; the model reproduces the trace."""
        snap = {"segments": self.segments, "device_traces": [self.events]}
        program = neutracer.load(pickle.dumps(snap)).timeline().program
        fidelity = program.check()[0]
        assert fidelity["is_same"]
        assert fidelity["is_end_same"]
        return program


def two_waiting_blocks() -> tuple[core.Program, int]:
    """A block a stream is freed, asked for again, complete, and asked for once more; and the
    event after which both have been asked for again."""
    trace = Trace()
    lanes = ((0, 12, 0), (200, 14, OTHER_STREAM))
    for addr, mib, stream in lanes:
        trace.add("segment_alloc", addr, mib, "make", stream)
        trace.add("alloc", addr, mib, "make", stream)
    for addr, mib, stream in lanes:
        trace.add("free_requested", addr, mib, "drop", stream)
    for addr, mib, stream in lanes:
        trace.add("segment_alloc", addr + 50, mib, "again", stream)
        middle = trace.add("alloc", addr + 50, mib, "again", stream)
    for addr, mib, stream in lanes:
        trace.add("free_completed", addr, mib, "more", stream)
    for addr, mib, stream in lanes:
        trace.add("alloc", addr, mib, "more", stream)
        trace.end(addr, [(mib, mib)], stream)
        trace.end(addr + 50, [(mib, mib)], stream)
    return trace.program(), middle


def reserved_by_timing(program: core.Program, middle: int, **options: int) -> tuple[int, int]:
    """Reserved MiB after an event, and at the end."""
    columns = program.series("", **options)[1]
    reserved = memoryview(columns["reserved"]).cast("Q")
    return reserved[middle] // MIB, reserved[-1] // MIB


def test_timings_free_blocks_when_named() -> None:
    program, middle = two_waiting_blocks()
    # A block that is free at once serves again; one that is complete later, the time after.
    found = [reserved_by_timing(program, middle, timing=each) for each in (EARLY, RECORDED, LATE)]
    assert found == [(26, 52), (52, 52), (52, 78)]


def test_mixed_timing_decides_by_block() -> None:
    program, middle = two_waiting_blocks()
    seen = {reserved_by_timing(program, middle, timing=MIXED, seed=seed) for seed in range(128)}
    each = {"early": (1, 2), "recorded": (2, 2), "late": (2, 3)}
    assert seen == {
        (12 * a[0] + 14 * b[0], 12 * a[1] + 14 * b[1]) for a in each.values() for b in each.values()
    }
    again = [reserved_by_timing(program, middle, timing=MIXED, seed=5) for _ in range(2)]
    assert again[0] == again[1]


def test_range_of_timing_tries_mixtures() -> None:
    # The first stream's late and the other's early lie in no range of pure timings.
    program, _ = two_waiting_blocks()
    base, low, high, causes, runs = program.find_range("expandable_segments:True", runs=40)
    assert runs == 40
    assert causes == 2  # timing
    assert low["final"]["reserved"] <= base["final"]["reserved"] <= high["final"]["reserved"]
    assert high["final"]["reserved"] > low["final"]["reserved"]


def restored(first: float, second: float, size: float) -> core.Program:
    """In a graph's pool two blocks lie at one address one after the other, and then one of
    `size` is put back there, behind one of 1.5 MiB that best fit would not put back."""
    trace = Trace(pool=(1, 0))
    trace.add("segment_alloc", 64, 34, "capture")
    trace.add("alloc", 64, 34, "capture")
    trace.free(64, 34, "capture")
    trace.add("alloc", 64, 1.5, "capture")
    trace.free(64, 1.5, "capture")
    trace.add("alloc", 64, 34, "capture")
    trace.add("segment_alloc", 0, 20, "capture")
    for mib in (first, second):
        trace.add("alloc", 0, mib, "capture")
        trace.free(0, mib, "capture")
    trace.free(64, 34, "capture")
    trace.add("alloc", 64, 1.5, "restore")
    trace.add("alloc", 0, size, "restore")
    trace.end(0, [(size, size)] + [(20 - size, 0)] * (size < 20))
    trace.end(64, [(1.5, 1.5), (32.5, 0)])
    return trace.program()


def allocated_at_end(program: core.Program, settings: str) -> float:
    """MiB in live blocks, where what is put back is known to be."""
    program.find_silence()
    return program.run(settings, silent=1)["final"]["allocated"] / MIB


def test_restored_block_is_found_by_size() -> None:
    # Rounded to halves of powers of two 3.25 MiB are 4, and 5 are 6.
    for first, second in ((3.25, 5), (5, 3.25)):
        for size, rounded in ((3.25, 4), (5, 6)):
            program = restored(first, second, size)
            found = allocated_at_end(program, "roundup_power2_divisions:2")
            assert found == 1.5 + rounded, (first, second, size)


def test_restored_slack_is_told_from_request() -> None:
    # The whole segment, of which 19.5 MiB were asked for: they are enough elsewhere.
    assert allocated_at_end(restored(19.5, 4, 20), "") == 1.5 + 20
    assert allocated_at_end(restored(19.5, 4, 20), "expandable_segments:True") == 1.5 + 19.5
    # Of two blocks that can have been it, it is the one of just that size.
    for first, second in ((19.5, 20), (20, 19.5)):
        program = restored(first, second, 20)
        assert allocated_at_end(program, "expandable_segments:True") == 1.5 + 20


def test_restored_block_of_no_request_is_requested() -> None:
    # Nothing of 7 MiB ever lay there.
    assert allocated_at_end(restored(3, 5, 7), "roundup_power2_divisions:2") == 1.5 + 8


def regiven() -> core.Program:
    """Two segments are given back, and the driver gives the older place again first. Of two
    equal holes in them the lower one serves, and what is left of the other is given back."""
    trace = Trace()
    sizes = {0: 20, 100: 24}
    for _ in range(2):
        for addr, mib in sizes.items():
            trace.add("segment_alloc", addr, mib, "make")
            trace.add("alloc", addr, mib, "make")
        for addr, mib in sizes.items():
            trace.free(addr, mib, "make")
        if not any(event["action"] == "segment_free" for event in trace.events):
            for addr, mib in sizes.items():
                trace.add("segment_free", addr, mib, "empty")
    for addr, mib in sizes.items():
        trace.add("alloc", addr, 9, "use")
        trace.add("alloc", addr + 9, mib - 9, "use")
    for addr in sizes:
        trace.free(addr, 9, "use")
    trace.add("alloc", 0, 9, "again")
    for addr, mib in sizes.items():
        trace.free(addr + 9, mib - 9, "use")
    trace.add("segment_free", 100, 24, "empty")
    trace.end(0, [(9, 9), (11, 0)])
    return trace.program()


def test_segments_lie_where_the_driver_gave_them_again() -> None:
    reserved = memoryview(regiven().series("")[1]["reserved"]).cast("Q")
    assert reserved[-1] == 20 * MIB
