# SPDX-License-Identifier: Apache-2.0
"""What does each part of following a program cost, on one training step, side by side?

Off, PyTorch's recorder with Python stacks and with all, neutracer's ring without and with
frames, the watch for reference cycles and the monitor at ten readings a second; each against
the same step without it, in turns (see `paired`). What costs something in some steps only, the
collections and the monitor's readings, is taken as the mean of several steps.

PyTorch can't detach what follows its allocator: what its entry alone costs is measured before
anything is attached, and counted with the rings. On a torch for the CPU there are no recorders.

    python benchmarks/bench_live.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import warnings

import torch
from bench_hooks import (
    EVENTS,
    ON_GPU,
    recorder_entry,
    recorder_off,
    recorder_python,
    ring,
    silent,
    step,
    wait,
)
from paired import Figure, Switch, Work, compare, quiet

import neutracer
import neutracer.hooks.shim as hooks

#: Steps of an element, where something costs in some of them only: of the collections as of
#: the readings there are a few in so many.
MANY = 12


def recorder_all() -> None:
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, stacks="all")


def nothing() -> None:
    pass


class Watched:
    """Switches a part that is begun and ended by a handle."""

    def __init__(self) -> None:
        self._end: Switch = nothing

    def off(self) -> None:
        self._end()
        self._end = nothing

    def cycles(self) -> None:
        self._end = neutracer.warn_tensor_cycles(device="all").remove

    def monitor(self) -> None:
        self._end = neutracer.MemoryMonitor(0.1, actions=()).start().stop


def told(name: str, figure: Figure | None) -> None:
    if figure is None:
        print(f"  {name:40}{'not here':>12}")
        return
    print(
        f"  {name:40}{figure.more:12.1f}{figure.error:8.1f}{figure.more / figure.base:9.2%}", end=""
    )
    print(f"{figure.error / figure.base:8.2%}{figure.more_cpu:12.1f}{figure.error_cpu:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of them together")
    share = parser.parse_args().seconds / 7
    where = torch.cuda.get_device_name() if ON_GPU else "no GPU: the CPU's allocator"
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {where}, ", end="")
    print(f"{os.cpu_count()} cores\n")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wait()
    hooks.load()
    quiet()
    work: Work = step()
    for _ in range(5):
        work.run()
    wait()
    watched = Watched()
    rows: list[tuple[str, Figure | None]] = []
    entry = None
    if ON_GPU:
        entry = compare(work, recorder_off, recorder_entry, seconds=share)
        python = compare(work, recorder_off, recorder_python, seconds=share)
        everything = compare(work, recorder_off, recorder_all, seconds=share)
        rows += [("PyTorch's recorder, Python stacks", python)]
        rows += [("PyTorch's recorder, all stacks", everything)]
        recorder_off()
    gc.enable()
    collected = compare(
        work, watched.off, watched.cycles, seconds=share, calls=MANY, middle=statistics.mean
    )
    gc.disable()
    if ON_GPU:
        monitored = compare(
            work, watched.off, watched.monitor, seconds=share, calls=MANY, middle=statistics.mean
        )
    hooks.attach(EVENTS, 8)
    work.run()
    if not ON_GPU:
        # It follows the CPU through the hooks, which it switches on itself.
        monitored = compare(
            work, watched.off, watched.monitor, seconds=share, calls=MANY, middle=statistics.mean
        )
    rings = compare(work, silent, ring(0), seconds=share).on_top_of(entry)
    frames = compare(work, silent, ring(8), seconds=share).on_top_of(entry)
    silent()
    rows += [
        ("PyTorch's entry alone (attached, silent)", entry),
        ("ring", rings),
        ("ring, 8 frames", frames),
        ("cycle watch, collections at their pace", collected),
        ("monitor, 10 readings a second", monitored),
    ]
    base = entry or rings
    print(f"{work.name}: {base.base / 1e3:.3f} ms a step, {base.base_cpu / 1e3:.3f} ms of CPU time")
    print(f"  {'':40}{'more us':>12}{'+-':>8}{'of it':>9}{'+-':>8}{'CPU us':>12}{'+-':>8}")
    for name, figure in rows:
        told(name, figure)


if __name__ == "__main__":
    main()
