# SPDX-License-Identifier: Apache-2.0
"""Traces without texts, optimizers or backward passes: what is a loop, and what its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_snapshots import BASE, block, dumped, segment

import neutracer
from neutracer import leak_trend

KIB = 1 << 10
MODULE = {"name": "_call_impl", "filename": "/x/torch/nn/modules/module.py", "line": 1779}


def at(line: int, name: str = "main", filename: str = "train.py") -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


class Trace:
    """A trace as a program makes it, and the layout that it ends with."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.held: dict[int, int] = {}
        self.next = BASE

    def add(self, action: str, addr: int, size: int, frames: list[dict[str, Any]]) -> None:
        entry = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames}
        self.events.append({**entry, "time_us": 1000 + len(self.events)})

    def alloc(self, size: int, *frames: dict[str, Any]) -> int:
        addr, self.next = self.next, self.next + size
        self.held[addr] = size
        self.add("alloc", addr, size, list(frames))
        return addr

    def free(self, addr: int, *frames: dict[str, Any]) -> None:
        size = self.held.pop(addr)
        for action in ("free_requested", "free_completed"):
            self.add(action, addr, size, list(frames))

    def snapshot(self) -> bytes:
        blocks, end = [], BASE
        for addr, size in sorted(self.held.items()):
            if addr > end:
                blocks.append(block(end, addr - end))
            blocks.append(block(addr, size, "active_allocated", size))
            end = addr + size
        if self.next > end:
            blocks.append(block(end, self.next - end))
        held = segment(BASE, blocks)
        begin = {"action": "segment_alloc", "addr": BASE, "size": self.next - BASE, "stream": 0}
        trace = [{**begin, "frames": [], "time_us": 900}, *self.events]
        return dumped({"segments": [held], "device_traces": [trace]})


def plain_loop(rounds: int, *, keeps: bool) -> bytes:
    """A loop on one line: one block is kept, or not, and one freed."""
    trace = Trace()
    trace.alloc(64 * KIB, at(3))
    for _ in range(rounds):
        first, second = trace.alloc(4 * KIB, at(7)), trace.alloc(8 * KIB, at(7))
        trace.free(second, at(7))
        if not keeps:
            trace.free(first, at(7))
    return trace.snapshot()


def layers(count: int, *frames: dict[str, Any]) -> bytes:
    """One forward pass: each layer keeps something for backward."""
    trace = Trace()
    for _ in range(count):
        trace.alloc(16 * KIB, *frames)
        trace.free(trace.alloc(4 * KIB, *frames), *frames)
    return trace.snapshot()


def test_thirty_rounds_of_a_plain_loop_prove_a_leak() -> None:
    trend = leak_trend(plain_loop(30, keeps=True))
    assert (trend.verdict, trend.unit) == ("leak", "step")
    assert trend.bytes_per_step == pytest.approx(4 * KIB)
    assert trend.growth[0].place.location == "train.py:7"
    assert "same allocations and frees" in trend.how


def test_plain_loop_that_keeps_nothing_is_steady() -> None:
    assert leak_trend(plain_loop(30, keeps=False)).verdict == "steady"


@pytest.mark.parametrize("count", [12, 32, 96])
def test_one_forward_pass_is_no_leak(count: int) -> None:
    trend = leak_trend(layers(count, at(4, "forward", "model.py"), MODULE, at(9)))
    assert trend.verdict == "unknown"
    assert len(neutracer.load(layers(count, MODULE, at(9))).timeline().steps) == 0


def test_pass_recorded_without_stacks_is_no_leak() -> None:
    assert leak_trend(layers(48)).verdict == "unknown"


def test_rounds_that_begin_inside_of_a_module_leak() -> None:
    trace = Trace()
    for size in range(1, 200):
        trace.alloc(size * KIB, at(3, "build", "model.py"), at(30))
    inside = at(4, "forward", "model.py"), MODULE, at(9, "serve"), at(31)
    for _ in range(30):
        trace.alloc(16 * KIB, *inside)
        trace.free(trace.alloc(4 * KIB, *inside), *inside)
        trace.free(trace.alloc(2 * KIB, at(8, "serve"), at(31)), at(8, "serve"), at(31))
    trend = leak_trend(trace.snapshot())
    assert "same allocations and frees" in trend.how
    assert trend.verdict == "leak"


def test_lines_of_a_loop_are_steps() -> None:
    trace = Trace()
    for round_ in range(12):
        seen = trace.alloc(4 * KIB, at(20))
        out = [trace.alloc(8 * KIB, MODULE, at(21)) for _ in range(1 + round_ % 3)]
        for addr in (seen, *out):
            trace.free(addr, at(22))
    steps = neutracer.load(trace.snapshot()).timeline().steps
    assert (steps.how, len(steps)) == ("repetition", 12)
    assert steps.explanation == "A step begins where the program goes back to train.py:20."


def cleared(program: Path) -> bytes:
    """Steps at lines 2 and 3; every tenth frees at line 5 what the others kept."""
    trace, kept = Trace(), []
    for round_ in range(60):
        trace.free(trace.alloc(4 * KIB, at(2, filename=str(program))))
        kept.append(trace.alloc(64 * KIB, at(3, filename=str(program))))
        if round_ % 10 == 9:
            while kept:
                trace.free(kept.pop(0), at(5, filename=str(program)))
    return trace.snapshot()


def test_program_that_empties_its_own_makes_no_garbage(tmp_path: Path) -> None:
    program = tmp_path / "emptied.py"
    program.write_text("for i in range(60):\n  a = f()\n  d[i] = g()\n  if full:\n    d.clear()\n")
    trend = leak_trend(cleared(program))
    assert trend.verdict == "steady"
    assert "freed it at emptied.py:5" in trend.because


def test_collections_called_by_the_program_find_garbage(tmp_path: Path) -> None:
    program = tmp_path / "collected.py"
    program.write_text("for i in range(60):\n  a = f()\n  b = g()\n  if full:\n    gc.collect()\n")
    assert leak_trend(cleared(program)).verdict == "cycle_garbage"
    unseen = leak_trend(cleared(tmp_path / "absent.py"))
    assert unseen.verdict == "steady"
    assert "rises and falls" in unseen.because


COLLECTED = ("delete_garbage", "gc_collect_main", "_PyObject_GC_New")
DROPPED = ("c10::StorageImpl::~StorageImpl()", "THPVariable_dealloc(_object*)", "_PyEval_EvalFrame")


@pytest.mark.parametrize(
    ("native", "verdict"), [(COLLECTED, "cycle_garbage"), (DROPPED, "steady"), ((), "steady")]
)
def test_forward_passes_are_garbage_only_where_the_collector_shows(
    native: tuple[str, ...], verdict: str
) -> None:
    trace = Trace()
    for _ in range(3):
        live = [
            trace.alloc(size * KIB, at(10 + layer % 6, "forward", "model.py"), MODULE, at(21))
            for layer in range(48)
            for size in (2048, 1024)
        ]
        freed = [{"name": name, "filename": "??", "line": 0} for name in native]
        for address in live:
            trace.free(address, *freed, at(21))
    trend = leak_trend(trace.snapshot())
    assert trend.verdict == verdict
    assert bool(trend.findings) == (verdict == "cycle_garbage")


def test_blocks_that_wait_for_a_stream_are_no_cache() -> None:
    trace = Trace()
    scratch, size = trace.next, 64 * KIB
    trace.next += size
    held = [segment(scratch, [block(scratch, size)])]
    trace.add("segment_alloc", scratch, size, [at(3)])
    for _ in range(60):
        trace.add("segment_alloc", trace.next, size, [at(7)])
        addr = trace.alloc(size, at(7))
        for action in ("alloc", "free_requested", "free_completed"):
            trace.add(action, scratch, 4 * KIB, [at(8)])
        trace.add("free_requested", addr, size, [at(9)])
        held.append(segment(addr, [block(addr, size, "active_pending_free", size)]))
    trend = leak_trend(dumped({"segments": held, "device_traces": [trace.events]}))
    assert trend.verdict == "unknown"
    assert "The growth is freed blocks that wait for a stream." in str(trend)


def test_what_frees_nothing_may_be_loading() -> None:
    trace = Trace()
    for number in range(300):
        load = at(3, "load", "model.py"), at(30 + number % 5)
        trace.alloc((1 + number % 7) * 64 * KIB, *load)
    trend = leak_trend(trace.snapshot())
    assert trend.verdict == "unknown"
    assert "hardly anything was freed: the program may be loading" in str(trend)


@pytest.mark.parametrize(
    ("rate", "options", "severity"),
    [
        (12, {}, "info"),
        (4 * KIB, {}, "moderate"),
        (1 << 20, {}, "serious"),
        (1 << 20, {"capacity": "1TiB"}, "moderate"),
        (1 << 20, {"capacity": "64GiB"}, "serious"),
        (1 << 20, {"capacity": "300MiB"}, "severe"),
        (12, {"capacity": "64GiB"}, "info"),
    ],
)
def test_severity_follows_what_growth_will_cost(
    rate: int, options: dict[str, Any], severity: str
) -> None:
    level = min(rate * 100, 1 << 20)
    trend = leak_trend([level + rate * step for step in range(40)], **options)
    assert trend.verdict == "growing"
    assert trend.findings[0].severity == severity


def test_queue_that_was_filled_is_no_cache_and_no_leak() -> None:
    filled = [(1 << 30) + (8 << 20) * min(step, 150) for step in range(200)]
    assert leak_trend(filled).verdict == "steady"
    both = {"allocated": filled, "reserved": [2 * value for value in filled]}
    assert leak_trend(both).verdict == "steady"
    assert leak_trend({"allocated": [1 << 30] * 200, "reserved": filled}).verdict == "steady"
