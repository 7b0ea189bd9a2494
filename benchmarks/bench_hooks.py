# SPDX-License-Identifier: Apache-2.0
"""What does following the allocator cost, beside PyTorch's own recorder?

Everything is measured in one process by `paired`. PyTorch can't detach a tracker, and so
there are two rounds: before it is attached (against nothing), and after it (against silent).
The bare entry that PyTorch makes for any listener is what its recorder costs with every action
skipped. What the hooks cost is that, and what they cost more than when silent; the tracker's
look at its mode, which PyTorch's entry alone lacks, is some 2 ns and is in none of the figures.
On a torch for the CPU there are no recorder and no entry: the figures are those above silent.

    python benchmarks/bench_hooks.py [--seconds 120]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import threading
import time

import torch
from paired import Figure, Switch, Work, compare, quiet

import neutracer.hooks.shim as hooks
from neutracer.hooks.live import live
from neutracer.recording.long_history import FRAMES as DEFAULT_FRAMES

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
LAYERS, WIDTH, BATCH, LENGTH = 12, 64, 4, 16
ACTIONS = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"]
#: Enough for a step, so that neither ring is ever short of memory that is in the cache.
EVENTS = 100_000
#: The error that is asked for, of an event in nanoseconds.
ENOUGH_NS = 20.0
#: Of the tables' columns.
WIDTHS = (10, 8, 8, 10, 8, 14, 8, 8)
#: Above so many events a millisecond a program is one of many allocations.
SPARSE = 80.0

ENTRY, PYTHON = "PyTorch's entry alone", "PyTorch's recorder, Python stacks"
RING, FRAMES, SILENT = "ring", "ring, 8 frames", "attached, silent"
#: What `neutracer run` and `watch_oom()` take where nobody says otherwise.
DEFAULT = f"ring, {DEFAULT_FRAMES} frames (run)"


def recorder_off() -> None:
    if ON_GPU:
        torch.cuda.memory._record_memory_history(enabled=None)


def recorder_entry() -> None:
    torch.cuda.memory._record_memory_history(context=None, max_entries=10, skip_actions=ACTIONS)


def recorder_python() -> None:
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="python")


def silent() -> None:
    recorder_off()
    hooks.silence()


def ring(frames: int) -> Switch:
    return lambda: hooks.attach(EVENTS, frames)


def wait() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def events_of(work: Work) -> float:
    """Events of a call, as the ring counts them."""
    hooks.attach(EVENTS, 0)
    work.run()
    before = _pushed()
    for _ in range(4):
        work.run()
    wait()
    return (_pushed() - before) / 4


def _pushed() -> int:
    state = hooks.state()
    assert state is not None
    return sum(state.pushed.values())


def empties(count: int) -> Work:
    def run() -> None:
        for _ in range(count):
            torch.empty(4096, dtype=torch.uint8, device=DEVICE)

    return Work(f"{count:,} x torch.empty", run, wait)


def step() -> Work:
    """A training step that is bound by what the CPU launches: the GPU has next to no work."""
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, device=DEVICE
    )
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE)

    def run() -> None:
        model(x).square().mean().backward()
        model.zero_grad()

    return Work("forward and backward", run, wait)


def sparse(in_place: int) -> Work:
    """A program that works in place more than it allocates."""
    a = torch.randn(32, 32, device=DEVICE)

    def run() -> None:
        x = a
        for _ in range(100):
            x = torch.mm(a, x)
            for _ in range(in_place):
                x.mul_(0.1)

    return Work("few allocations", run, wait)


def duration_ms(work: Work) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work.run()
        work.wait()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def sparse_enough() -> Work:
    """The same with so much work in place that it has few events a millisecond."""
    in_place = 6
    while True:
        work = sparse(in_place)
        # An allocation and its two events of being freed.
        rate = 300 / duration_ms(work)
        if rate < SPARSE * 0.95:
            return work
        in_place += 1


def table(work: Work, events: float, rows: dict[str, Figure]) -> None:
    """One row a mode; the rows of what is above silent are on top of the bare entry."""
    base = rows.get(ENTRY) or next(iter(rows.values()))
    rate = events / base.base * 1e3
    print(f"\n{work.name}: {events:,.0f} events in {base.base / 1e3:.3f} ms", end="")
    print(f" ({rate:.0f} a ms), {base.base_cpu / 1e3:.3f} ms of CPU time")
    titles = ("more us", "+-", "of it", "ns/event", "+-", "CPU ns/event", "+-", "blocks")
    print(f"  {'':34}{''.join(f'{title:>{w}}' for title, w in zip(titles, WIDTHS, strict=True))}")
    for name, figure in rows.items():
        cells = (
            f"{figure.more:.1f}",
            f"{figure.error:.1f}",
            f"{figure.more / figure.base:.2%}",
            f"{figure.more * 1e3 / events:.1f}",
            f"{figure.error * 1e3 / events:.1f}",
            f"{figure.more_cpu * 1e3 / events:.1f}",
            f"{figure.error_cpu * 1e3 / events:.1f}",
            str(figure.blocks),
        )
        print(
            f"  {name:34}{''.join(f'{cell:>{w}}' for cell, w in zip(cells, WIDTHS, strict=True))}"
        )


def measure(works: list[tuple[Work, list[str], float]], seconds: float) -> None:
    """Both rounds of each piece of work, for its share of the time."""
    first: dict[str, dict[str, Figure]] = {work.name: {} for work, _, _ in works}
    before: dict[str, Switch] = {ENTRY: recorder_entry, PYTHON: recorder_python}
    after: dict[str, Switch] = {RING: ring(0), FRAMES: ring(8), DEFAULT: ring(DEFAULT_FRAMES)}
    # Events are counted by the ring only later: about so many there are.
    guess = {work.name: duration_ms(work) * 100 for work, _, _ in works}
    for work, modes, share in works:
        for name in modes if ON_GPU else []:
            if name in before:
                first[work.name][name] = compare(
                    work,
                    recorder_off,
                    before[name],
                    seconds=share * seconds,
                    enough=ENOUGH_NS * guess[work.name] / 1e3 / 2,
                )
    # Stacks and rings are made before anything is timed.
    hooks.attach(EVENTS, DEFAULT_FRAMES)
    for work, _, _ in works:
        work.run()
    for work, modes, share in works:
        events = events_of(work)
        rows = first[work.name]
        entry = rows.get(ENTRY)
        if entry is not None:
            rows[SILENT] = entry
        for name in modes:
            if name in after:
                figure = compare(
                    work,
                    silent,
                    after[name],
                    seconds=share * seconds,
                    enough=ENOUGH_NS * events / 1e3 / 2,
                )
                rows[name] = figure.on_top_of(entry)
        table(work, events, rows)
    silent()


def chain(length: int) -> torch.Tensor:
    """The end of a graph whose backward pass allocates at every node, in native code."""
    end = torch.ones(64, device=DEVICE, requires_grad=True)
    for _ in range(length):
        end = end * 1.000001
    return end.sum()


def pytorchs_copy() -> tuple[float, float]:
    """Takes PyTorch's own snapshot; when, in microseconds since the epoch."""
    began = time.time() * 1e6
    if ON_GPU:
        torch.cuda.memory._snapshot()
    return began, time.time() * 1e6


def waited(name: str, gaps: list[float]) -> None:
    if gaps:
        print(f"  {name:34}{statistics.median(gaps) / 1e3:10.2f} ms at the median, ", end="")
        print(f"{max(gaps) / 1e3:.2f} at worst of {len(gaps)}")


def stalls(blocks: int, looks: int) -> None:
    """How long an allocating thread waits while a live layout is taken, or PyTorch's own.

    The thread is in a backward pass, without the GIL, and the ring tells when its events
    were: the wait is the gap round the marker of a layout, less a gap as any other.
    """
    live(EVENTS, 0)
    keep = [torch.empty(1024, dtype=torch.uint8, device=DEVICE) for _ in range(blocks)]
    graphs = [chain(5_000) for _ in range(48)]
    ended = threading.Event()

    def backwards() -> None:
        hooks.watch_thread()
        for graph in graphs:
            graph.backward()
            if ended.is_set():
                return

    thread = threading.Thread(target=backwards)
    thread.start()
    took: list[float] = []
    theirs: list[tuple[float, float]] = []
    waits: dict[int, int] = {}
    usual: list[int] = []
    snap = live(EVENTS, 0)
    while thread.is_alive() and len(took) < looks:
        time.sleep(0.01)
        theirs.append(pytorchs_copy())
        time.sleep(0.01)
        began = time.perf_counter()
        snap = live(EVENTS, 0)
        took.append(time.perf_counter() - began)
        times = snap.events["time_us"].tolist()
        markers = snap.events.find("action", "snapshot")
        inner = [at for at in markers if 0 < at < len(times) - 1]
        waits.update({times[at]: times[at + 1] - times[at - 1] for at in inner})
        usual += [b - a for a, b in zip(times[-200:], times[-199:], strict=False)]
    ended.set()
    thread.join()
    print(f"\nlive() of {len(snap.blocks):,} blocks and {len(snap.events):,} events: ", end="")
    if not took or not waits:
        print("the other thread was done before it could be watched")
        return
    print(f"{statistics.median(took) * 1e3:.2f} ms; meanwhile an allocating thread waits")
    typical = statistics.median(usual)
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for at, gap in waits.items():
        gaps[any(begin <= at <= end for begin, end in theirs)].append(gap - typical)
    waited("in neutracer.live()", gaps[False])
    waited("in torch.cuda.memory._snapshot()", gaps[True])
    del keep


def figures() -> None:
    module = hooks.load()
    rounds = 20_000
    began = time.perf_counter()
    for _ in range(rounds):
        module.device_stats(0)
    ours = (time.perf_counter() - began) / rounds
    began = time.perf_counter()
    for _ in range(500):
        torch.cuda.memory_stats()
    theirs = (time.perf_counter() - began) / 500
    print(f"\nall figures as a dict: {ours * 1e6:.1f} us, memory_stats() {theirs * 1e6:.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="for the tables together")
    seconds = parser.parse_args().seconds
    where = torch.cuda.get_device_name() if ON_GPU else "no GPU: the CPU's allocator"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {where}, ", end="")
    print(f"{os.cpu_count()} cores")
    torch.set_num_threads(1)
    torch.zeros(1, device=DEVICE)
    wait()
    began = time.perf_counter()
    hooks.load()
    print(f"hooks compiled or found, and loaded, in {time.perf_counter() - began:.2f} s")
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    # The threads of the backward pass are made after this, and are on the same core.
    quiet()
    # What a mode takes of the whole, so that all of them take it up.
    works = [
        (step(), [ENTRY, PYTHON, RING, FRAMES, DEFAULT], 0.14),
        (empties(2_000), [ENTRY, PYTHON, RING, FRAMES], 0.03),
        (sparse_enough(), [ENTRY, RING, FRAMES, DEFAULT], 0.06),
    ]
    for work, _, _ in works:
        for _ in range(5):
            work.run()
    wait()
    measure(works, seconds)
    if cores:
        os.sched_setaffinity(0, cores)
    if ON_GPU:
        figures()
    sys.stdout.flush()
    stalls(10_000, 20)


if __name__ == "__main__":
    main()
