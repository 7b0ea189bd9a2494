# SPDX-License-Identifier: Apache-2.0
"""Traces made to take long: what a program asks for is found and replayed all the same in
time that grows with its events, not with their square."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

import neutracer

MIB = 1 << 20
BASE = 0x7F00_0000_0000
PAGE = 20 * MIB

#: What any of these traces may take: several times what it needs, and a small part of what
#: it takes where each event looks at all others.
MOST_SECONDS = 5.0

#: So much of what may have been silent is assumed to have been.
ALL = 2**32 - 1

#: What is there before the trace stays as it lies, whatever the settings.
KEPT = 1

Pool = tuple[int, int]
NOWHERE: list[dict[str, Any]] = []
CALL = [{"name": "empty_cache", "filename": "train.py", "line": 1}]
REQUEST = [{"name": "step", "filename": "train.py", "line": 2}]
GRAPHS: Pool = (0, 1)


class Trace:
    """A snapshot that is written event by event; addresses and sizes in bytes."""

    def __init__(self, settings: str = "", frames: list[dict[str, Any]] = REQUEST) -> None:
        self.settings = settings
        self.frames = frames
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []

    def add(self, action: str, addr: int, size: int, stream: int = 0, pool: Pool = (0, 0)) -> None:
        event = {"action": action, "addr": addr, "size": size, "stream": stream, "pool_id": pool}
        frames = CALL if action == "segment_free" else self.frames
        self.events.append(event | {"time_us": len(self.events), "frames": frames})

    def free(self, addr: int, size: int, stream: int = 0, pool: Pool = (0, 0)) -> None:
        self.add("free_requested", addr, size, stream, pool)
        self.add("free_completed", addr, size, stream, pool)

    def end(self, addr: int, sizes: list[int], stream: int = 0, pool: Pool = (0, 0)) -> None:
        """A segment at the end: its blocks, those that are free with a size below 0."""
        blocks, at = [], addr
        for size in sizes:
            state = "active_allocated" if size > 0 else "inactive"
            block = {"address": at, "size": abs(size), "requested_size": max(size, 0)}
            blocks.append(block | {"state": state, "frames": NOWHERE})
            at += abs(size)
        live = sum(size for size in sizes if size > 0)
        segment = {"device": 0, "address": addr, "total_size": at - addr, "stream": stream}
        segment |= {"allocated_size": live, "active_size": live, "requested_size": live}
        segment |= {"segment_type": "small" if at - addr == 2 * MIB else "large"}
        segment |= {"segment_pool_id": pool, "blocks": blocks, "frames": NOWHERE}
        segment["is_expandable"] = "expandable_segments:True" in self.settings
        self.segments.append(segment)

    def data(self) -> bytes:
        settings = {"PYTORCH_CUDA_ALLOC_CONF": self.settings}
        snap = {"segments": self.segments, "device_traces": [self.events]}
        return pickle.dumps(snap | {"allocator_settings": settings})


def completions_without_requests(count: int) -> Trace:
    """Blocks that wait for a stream and are complete one by one; nothing asks for memory."""
    trace = Trace(frames=NOWHERE)
    places = [BASE + i * 2 * MIB for i in range(count)]
    for place in places:
        trace.add("segment_alloc", place, 2 * MIB)
        trace.add("alloc", place, MIB)
    for here, before in zip(places, [None, *places], strict=False):
        trace.add("free_requested", here, MIB)
        if before is not None:
            trace.add("free_completed", before, MIB)
    return trace


def pools_that_ended(count: int) -> Trace:
    """Private pools that nobody uses any more, and calls of empty_cache() behind them."""
    trace = Trace()
    for i in range(2 * count):
        place, pool = BASE + i * 2 * MIB, (0, i + 1) if i < count else (0, 0)
        trace.add("segment_alloc", place, 2 * MIB, 0, pool)
        trace.add("alloc", place, MIB, 0, pool)
        trace.free(place, MIB, 0, pool)
        trace.add("segment_free", place, 2 * MIB, 0, pool)
    return trace


def streams_of_their_own(count: int) -> Trace:
    """A stream with an expandable segment for each request, the last one first."""
    trace = Trace("expandable_segments:True")
    for i in range(count):
        place = BASE + (i << 32)
        trace.add("segment_map", place, 2 * MIB, count - i)
        trace.add("alloc", place, MIB, count - i)
        trace.end(place, [MIB, -MIB], count - i)
    return trace


def streams_and_calls(count: int) -> Trace:
    """Streams that keep a block each, and calls of empty_cache() for another one's."""
    trace = Trace()
    for i in range(count):
        trace.add("segment_alloc", BASE + i * 2 * MIB, 2 * MIB, i + 1)
        trace.add("alloc", BASE + i * 2 * MIB, MIB, i + 1)
        trace.end(BASE + i * 2 * MIB, [MIB, -MIB], i + 1)
    place = BASE + count * 2 * MIB
    for _ in range(count):
        trace.add("segment_alloc", place, 2 * MIB)
        trace.add("alloc", place, MIB)
        trace.free(place, MIB)
        trace.add("segment_free", place, 2 * MIB)
    return trace


def blocks_out_of_order(count: int) -> Trace:
    """A private pool full of free blocks, where no request takes the one that fits best."""
    trace = Trace()
    size = 2 * MIB
    trace.add("segment_alloc", BASE, 2 * count * size + size, 0, GRAPHS)
    for i in range(2 * count):
        trace.add("alloc", BASE + i * size, size, 0, GRAPHS)
    for i in range(0, 2 * count, 2):
        trace.free(BASE + i * size, size, 0, GRAPHS)
    for i in reversed(range(0, 2 * count, 2)):
        trace.add("alloc", BASE + i * size, size, 0, GRAPHS)
    trace.end(BASE, [size] * (2 * count) + [-size], 0, GRAPHS)
    return trace


def sizes_at_one_address(count: int) -> Trace:
    """A private pool in which blocks of every size lay at one address."""
    trace = Trace()
    room = 2 * MIB + 512 * count
    trace.add("segment_alloc", BASE, room + -room % (2 * MIB), 0, GRAPHS)
    for i in range(count):
        trace.add("alloc", BASE, 2 * MIB + 512 * i, 0, GRAPHS)
        trace.free(BASE, 2 * MIB + 512 * i, 0, GRAPHS)
    trace.end(BASE, [-(room + -room % (2 * MIB))], 0, GRAPHS)
    return trace


def pages_with_gaps(count: int) -> Trace:
    """Free pages with unmapped ones between them, and requests larger than all of them."""
    trace = Trace("expandable_segments:True")
    for i in range(count):
        trace.end(BASE + 2 * i * PAGE, [-PAGE])
    place, wanted = BASE + 2 * count * PAGE, (2 * count + 2) * PAGE
    trace.end(place, [PAGE])
    for i in range(20):
        trace.add("segment_map", place + PAGE + i * wanted, wanted)
        trace.add("alloc", place + PAGE + i * wanted, wanted)
        trace.end(place + PAGE + i * wanted, [wanted])
    return trace


def failures_beside_pools(count: int) -> Trace:
    """Private pools in use, and requests that fail."""
    trace = Trace()
    for i in range(count):
        trace.add("segment_alloc", BASE + i * 2 * MIB, 2 * MIB, 0, (0, i + 1))
        trace.add("alloc", BASE + i * 2 * MIB, MIB, 0, (0, i + 1))
        trace.end(BASE + i * 2 * MIB, [MIB, -MIB], 0, (0, i + 1))
    for _ in range(count):
        trace.add("oom", 1 << 30, 1 << 45)
    return trace


def fragments_of_another_kind(count: int) -> Trace:
    """An expandable segment full of free blocks from before the trace."""
    trace = Trace("expandable_segments:True")
    size = 2 * MIB
    for i in range(count):
        trace.add("alloc", BASE + (2 * i + 1) * size, size)
    rest = -2 * count * size % PAGE
    trace.end(BASE, [size] * (2 * count) + [-rest] * (rest > 0))
    return trace


def rests_beside_calls(count: int) -> Trace:
    """Free rests of segments in use, and calls of empty_cache() for other segments."""
    trace = Trace()
    apart = BASE + count * PAGE
    for i in range(count):
        trace.add("segment_alloc", BASE + i * PAGE, PAGE)
        trace.add("alloc", BASE + i * PAGE, 9 * MIB)
        trace.add("alloc", BASE + i * PAGE + 9 * MIB, 9 * MIB)
    for _ in range(count // 2):
        trace.add("segment_alloc", apart, 30 * MIB)
        trace.add("alloc", apart, 30 * MIB)
        trace.free(apart, 30 * MIB)
        trace.add("segment_free", apart, 30 * MIB)
    return trace


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (completions_without_requests, 100_000),
        (pools_that_ended, 20_000),
        (streams_of_their_own, 30_000),
        (streams_and_calls, 15_000),
        (blocks_out_of_order, 15_000),
        (sizes_at_one_address, 80_000),
        (pages_with_gaps, 15_000),
        (failures_beside_pools, 25_000),
        (fragments_of_another_kind, 20_000),
        (rests_beside_calls, 16_000),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_traces_replay_in_linear_time(make: Callable[[int], Trace], count: int) -> None:
    snapshot = neutracer.load(make(count).data())
    start = time.process_time()
    program = snapshot.timeline().program
    _, figures = program.check()
    program.find_silence()
    program.run(silent=True, share=ALL)
    program.run("", begin=KEPT)
    assert time.process_time() - start < MOST_SECONDS
    assert figures["peak"]["reserved"] > 0
