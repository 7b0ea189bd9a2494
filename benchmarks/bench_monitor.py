# SPDX-License-Identifier: Apache-2.0
"""What does following a device cost, beside a thread of Python's that polls?

The share of one core, by the threads' own CPU time: the monitor's native thread at 10 and
1,000 readings a second (the allocator's figures each time, the device's once a second), the
same through PyTorch's entry points (what it falls back to), and the polling thread of the usual
guide; and first, as what this machine takes for it at the least, a native thread that does
nothing but sleep and wake up. A program works meanwhile: on a GPU it launches small kernels,
without one it allocates on the CPU; its own pace with and without the monitor is told as well.

    python benchmarks/bench_monitor.py [SECONDS]    # a run, 4 by default
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import torch

import neutracer
from neutracer._native import core
from neutracer.monitor.memory_monitor import Poller

ON_GPU = torch.cuda.is_available()
RATES = (10, 1000)


class Usual(threading.Thread):
    """The monitor that programs usually have."""

    def __init__(self, interval: float) -> None:
        super().__init__(daemon=True)
        self.interval = interval
        self.ended = threading.Event()
        self.cpu_s = 0.0
        self.readings = 0
        self.history: list[tuple[float, float, float]] = []

    def run(self) -> None:
        due = time.monotonic()
        while not self.ended.wait(max(due - time.monotonic(), 0.0)):
            if ON_GPU:
                row = (
                    time.time(),
                    torch.cuda.memory_allocated() / 1e9,
                    torch.cuda.memory_reserved() / 1e9,
                )
            else:
                row = (time.time(), os.times().user, 0.0)
            self.history.append(row)
            self.readings += 1
            due = max(due + self.interval, time.monotonic())
        self.cpu_s = time.thread_time()


class Polled(Poller):
    """The fallback, with its thread's CPU time."""

    cpu_s = 0.0
    readings = 0

    def read(self) -> None:
        super().read()
        self.readings += 1
        self.cpu_s = time.thread_time()


def work(seconds: float) -> float:
    """The program; microseconds of its middle round."""
    device = "cuda" if ON_GPU else "cpu"
    kept = [torch.ones(64, 64, device=device) for _ in range(8)]
    rounds = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for tensor in kept:
            torch.mm(tensor, tensor).add_(1.0)
        rounds.append(time.perf_counter() - begin)
    if ON_GPU:
        torch.cuda.synchronize()
    return statistics.median(rounds) * 1e6


SLEEPER = """
#define _GNU_SOURCE
#include <time.h>
double sleeps(double rate, double seconds)
{
    struct timespec due, spent;
    clock_gettime(CLOCK_MONOTONIC, &due);
    const long step = (long)(1e9 / rate);
    for (long left = (long)(rate * seconds); left > 0; left--) {
        due.tv_nsec += step;
        due.tv_sec += due.tv_nsec / 1000000000;
        due.tv_nsec %= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec;
}
"""


def sleeper() -> Callable[[float, float], float] | None:
    """C that sleeps so often for so many seconds, and says what CPU time its thread had;
    None without a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = f"{folder}/sleeps.c", f"{folder}/sleeps.so"
        with open(source, "w") as file:
            file.write(SLEEPER)
        try:
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", library, source]
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        sleeps = ctypes.CDLL(library).sleeps
    sleeps.argtypes = [ctypes.c_double, ctypes.c_double]
    sleeps.restype = ctypes.c_double
    return sleeps


def told(name: str, rate: int, cpu_s: float, readings: int, wall: float, pace: float) -> None:
    share = 100 * cpu_s / wall
    print(f"{name:<34}{rate:>6} Hz {readings / wall:>9.1f} Hz {share:>9.3f} % {pace:>9.1f} us")


def native(rate: int, seconds: float) -> None:
    with neutracer.MemoryMonitor(1 / rate, actions=()) as monitor:
        time.sleep(0.05)
        before, begin = monitor.status, time.perf_counter()
        pace = work(seconds)
        after, wall = monitor.status, time.perf_counter() - begin
    cpu_s, ticks = after["cpu_s"] - before["cpu_s"], after["ticks"] - before["ticks"]
    told(f"MemoryMonitor, {after['road']}", rate, cpu_s, ticks, wall, pace)


def asleep(rate: int, seconds: float) -> None:
    sleeps = sleeper()
    if sleeps is None:
        return
    spent: list[float] = []

    def run() -> None:
        before = time.thread_time()
        spent.append(sleeps(rate, seconds) - before)

    thread = threading.Thread(target=run)
    thread.start()
    pace = work(seconds)
    thread.join()
    told("a thread that only wakes up", rate, spent[0], int(rate * seconds), seconds, pace)


def polled(rate: int, seconds: float) -> None:
    rule = (float("inf"), 0.0, 0)
    options = (10**6, 10**6, 64, 64, 0, 10**6, 0, (rule, rule, rule))
    poller = Polled(core.Sampler((0,), (-1,), None, False, options), (0,), 1 / rate, 0.5)
    begin = time.perf_counter()
    poller.start()
    pace = work(seconds)
    wall = time.perf_counter() - begin
    poller.stop()
    told("fallback, PyTorch's entry points", rate, poller.cpu_s, poller.readings, wall, pace)


def usual(rate: int, seconds: float) -> None:
    thread = Usual(1 / rate)
    begin = time.perf_counter()
    thread.start()
    pace = work(seconds)
    wall = time.perf_counter() - begin
    thread.ended.set()
    thread.join()
    told("the usual polling thread", rate, thread.cpu_s, thread.readings, wall, pace)


def marks() -> None:
    with neutracer.MemoryMonitor(3600, actions=()) as monitor:
        for _ in range(100):
            monitor.mark("warm")
        begin = time.perf_counter()
        for step in range(2000):
            monitor.mark(step)
        spent = (time.perf_counter() - begin) / 2000
    print(f"\nmark(): {spent * 1e6:.2f} us")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    where = torch.cuda.get_device_name(0) if ON_GPU else "no GPU: the CPU's allocator"
    print(f"{where}; torch {torch.__version__}, Python {platform.python_version()}, ", end="")
    print(f"{os.cpu_count()} cores; {seconds:g} s a run\n")
    print(f"{'':<34}{'asked':>9} {'reached':>12} {'of a core':>11} {'a round':>12}")
    work(1.0)
    gc.collect()
    runs: list[Callable[[int, float], None]] = [asleep, native, usual]
    if ON_GPU:
        runs.insert(2, polled)
    print(f"{'nothing':<34}{'':>9} {'':>12} {'':>11} {work(seconds):>9.1f} us")
    for rate in RATES:
        for run in runs:
            run(rate, seconds)
    marks()


if __name__ == "__main__":
    main()
