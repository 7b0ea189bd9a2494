# SPDX-License-Identifier: Apache-2.0
"""What does watching for tensor cycles cost, and looking for them, beside the alternatives?

Every comparison is made in one process and in turns, because machines are noisy: the ratios
are what counts. The heap has 660,000 objects more than the program needs, as the program of
a large model has. With a CUDA device the tensors are on it, and PyTorch's own detector is
measured too; refcycle and objgraph are where they are installed.

    python benchmarks/bench_cycles.py [--quick]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

import neutracer
from neutracer._native import core

EXTRA_OBJECTS = 660_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Record:
    """An object as programs have them: a few attributes and a list."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.children: list[Any] = []


def extra_heap(count: int) -> list[Record]:
    """About `count` objects that the collector tracks: half records, half their lists."""
    return [Record(number) for number in range(count // 2)]


def tensor_cycle() -> None:
    """Leaves a tensor in a cycle."""
    one = Record(1)
    one.children.append(one)
    one.tensor = torch.empty(256, device=DEVICE)  # type: ignore[attr-defined]


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def ours() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with neutracer.warn_tensor_cycles(device="all"):
            yield


@contextmanager
def pytorchs() -> Iterator[None]:
    """PyTorch's detector; on a CPU the part of it that works there."""
    cycles = importlib.import_module("torch.utils.viz._cycles")
    if DEVICE == "cuda":
        remove = cycles.warn_tensor_cycles()
    else:
        remove = cycles.observe_garbage(lambda garbage: None)
    try:
        yield
    finally:
        remove()


# ---- step time -------------------------------------------------------------------------


class Loop(NamedTuple):
    """A training loop: 400 records a step, of which some are kept for ever."""

    name: str
    work_ms: float  # of other work in a step
    keeps: int  # records a step
    cycle_in: int  # steps, of which one leaves a tensor in a cycle


LOOPS = (
    Loop("1 ms, keeps 5 % of its objects, a cycle in 10 steps", 1.0, 20, 10),
    Loop("10 ms, the same", 10.0, 20, 10),
    Loop("1 ms, keeps 25 %, a cycle in 4 steps", 1.0, 100, 4),
)


def steps(loop: Loop, count: int) -> tuple[list[float], float]:
    """Seconds of each step, and seconds inside the watch. All begin with the collector's
    counters at zero, so that as many collections of each kind happen with it as without."""
    taken = []
    kept: list[Record] = []
    gc.collect()
    before = core.watch_status()["spent_ns"]
    for step in range(count):
        begin = time.perf_counter()
        made = [Record(number) for number in range(400)]
        kept += made[: loop.keeps]
        if step % loop.cycle_in == 0:
            tensor_cycle()
        end = time.perf_counter() + loop.work_ms / 1e3
        while time.perf_counter() < end:
            pass
        taken.append(time.perf_counter() - begin)
    return taken, (core.watch_status()["spent_ns"] - before) / 1e9


def bench_steps(quick: bool) -> None:
    print(f"\nA training loop's step: other work, 800 objects more, {EXTRA_OBJECTS:,} are there")
    heads = f"{'alone':>10} {'watched':>10} {'ratio':>8} {'in the watch':>14} {'PyTorch':>10}"
    print(f"  {'':52} {heads}")
    extra = extra_heap(EXTRA_OBJECTS)
    for loop in LOOPS:
        count = round((600 if quick else 2500) / loop.work_ms)
        alone: list[float] = []
        watched: list[float] = []
        inside = 0.0
        for _ in range(4):
            alone += steps(loop, count)[0]
            with ours():
                taken, spent = steps(loop, count)
            watched += taken
            inside += spent
        with pytorchs():
            theirs, _ = steps(loop, max(count // 50, 4))
        ratio = statistics.fmean(watched) / statistics.fmean(alone)
        slower = statistics.fmean(theirs) / statistics.fmean(alone)
        print(
            f"  {loop.name:52} {statistics.fmean(alone) * 1e3:7.3f} ms "
            f"{statistics.fmean(watched) * 1e3:7.3f} ms {ratio:7.3f}x "
            f"{inside / sum(watched):13.2%} {slower:9.1f}x"
        )
    del extra


# ---- one collection --------------------------------------------------------------------


def collections(generation: int, rounds: int, make: Callable[[], object]) -> list[int]:
    """Thread CPU time of each collection in ns, the watch's included where it is on."""
    taken = []
    for _ in range(rounds):
        kept = make()
        begin = time.thread_time_ns()
        gc.collect(generation)
        taken.append(time.thread_time_ns() - begin)
        del kept
    return taken


def bench_collections(quick: bool) -> None:
    print("\nOne collection, thread CPU time, the watch's time included")
    print(f"  {'':34} {'alone':>10} {'watched':>10} {'median':>8} {'99th percentile':>16}")
    rows = [
        ("young, 700 objects", 0, lambda: extra_heap(700), 0, 4000),
        ("young, 2,000 objects", 0, lambda: extra_heap(2000), 0, 2000),
        (f"full, {EXTRA_OBJECTS:,} extra objects", 2, lambda: None, EXTRA_OBJECTS, 12),
    ]
    for name, generation, make, extra, rounds in rows:
        heap = extra_heap(extra)
        rounds = rounds // 4 if quick and rounds > 100 else rounds
        alone: list[int] = []
        watched: list[int] = []
        gc.collect()
        gc.disable()
        for _ in range(4):
            alone += collections(generation, rounds // 4, make)
            with ours():
                watched += collections(generation, rounds // 4, make)
        gc.enable()
        print(
            f"  {name:34} {statistics.median(alone) / 1e3:7.0f} us "
            f"{statistics.median(watched) / 1e3:7.0f} us "
            f"{statistics.median(watched) / statistics.median(alone):7.2f}x "
            f"{percentile(watched) / percentile(alone):15.2f}x"
        )
        del heap


def percentile(values: list[int]) -> float:
    return sorted(values)[min(len(values) - 1, round(0.99 * len(values)))]


# ---- looking now -----------------------------------------------------------------------


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def alternatives() -> dict[str, Callable[[], object]]:
    """What else answers the question, where it is installed."""
    ways: dict[str, Callable[[], object]] = {"gc.get_objects()": gc.get_objects}
    try:
        refcycle = importlib.import_module("refcycle")
        ways["refcycle.snapshot() + SCCs"] = lambda: (
            refcycle.snapshot().strongly_connected_components()
        )
    except ImportError:
        print("  refcycle is not installed: pip install refcycle")
    try:
        objgraph = importlib.import_module("objgraph")
        ways["objgraph.typestats + by_type"] = lambda: (
            objgraph.typestats(),
            objgraph.by_type("Record"),
        )
    except ImportError:
        print("  objgraph is not installed: pip install objgraph")
    return ways


def bench_find(quick: bool) -> None:
    print("\nfind_tensor_cycles() over the whole heap: the pause, 20 tensor cycles in it")
    print(
        f"  {'objects':>12} {'pause':>10} {'us/object':>10} {'bytes/object':>13} {'bytes/edge':>11}"
    )
    sizes = [100_000, 1_000_000] + ([] if quick else [10_000_000])
    for size in sizes:
        heap = extra_heap(size)
        rings = [[torch.empty(256, device=DEVICE)] for _ in range(20)]
        for ring in rings:
            ring.append(ring)  # type: ignore[arg-type]
        neutracer.find_tensor_cycles(device="all")
        best = min(timed(lambda: neutracer.find_tensor_cycles(device="all")) for _ in range(3))
        facts = importlib.import_module("neutracer._selftest").heap_facts(2)
        objects, edges = facts["objects"], facts["edges"]
        print(
            f"  {objects:12,} {best * 1e3:7.1f} ms {best / objects * 1e6:10.3f} "
            f"{(facts['peak_bytes'] - 4 * edges) / objects:13.1f} {4:11}"
        )
        if size == 100_000:
            for name, way in alternatives().items():
                took = timed(way)
                print(f"  {name:>28} {took * 1e3:9.1f} ms = {took / best:.1f}x")
        for ring in rings:
            ring.clear()
        del heap


def bench_why_alive() -> None:
    size = 1_000_000
    heap = extra_heap(size)
    heap[size // 4].children.append(torch.empty(4, device=DEVICE))
    wanted = heap[size // 4].children[0]
    best = min(timed(lambda: neutracer.why_alive(wanted)) for _ in range(3))
    print(f"\nwhy_alive() on a heap of {size:,} objects more: {best * 1e3:,.0f} ms")
    try:
        objgraph = importlib.import_module("objgraph")
    except ImportError:
        return
    took = timed(
        lambda: objgraph.find_backref_chain(wanted, objgraph.is_proper_module, max_depth=8)
    )
    print(f"  objgraph.find_backref_chain: {took * 1e3:,.0f} ms = {took / best:.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 10 M objects")
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, tensors on {DEVICE}, "
        f"{sys.getswitchinterval() * 1e3:.0f} ms switch interval"
    )
    bench_collections(options.quick)
    bench_steps(options.quick)
    bench_find(options.quick)
    bench_why_alive()


if __name__ == "__main__":
    main()
