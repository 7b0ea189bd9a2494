# SPDX-License-Identifier: Apache-2.0
"""Categories held against the tensors that programs hold, block by block.

    python tests/gpu/categories_truth.py                # all twenty, on a GPU: some minutes
    python tests/gpu/categories_truth.py --open --cpu   # those the rules are built on, small

Each program runs in a process of its own and stops at known moments: after forward, after
backward, after the optimizer's step. There its parameters, gradients, optimizer's state,
inputs, outputs and caches are asked for their addresses, and what autograd saved is known by
hooks. Printed are recall (of the bytes that are this category, those called so) and precision
(of the bytes called so that are known to be something, those that are), summed over moments.
What is none of a program's parameters, gradients, states and inputs is known not to be one.
Half of the programs are held out: nobody looks at them while the rules are written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import categories_programs as programs

SHOWN = ("parameter", "gradient", "optimizer_state", "activation", "input")
# Whose members are all known: what is called so and is not one is wrong.
COMPLETE = ("parameter", "gradient", "optimizer_state", "input")

# A moment is known by a request of its number of steps above this size, in bytes.
MARKER = 3_333_333
AT_ONCE, SECONDS = 5, 240


class Moments:
    """What the program's tensors are at its moments, by address."""

    def __init__(self, device: str, tensors: dict[str, Callable[[], programs.Tensors]]) -> None:
        self.device = device
        self.tensors = tensors
        self.saved: dict[int, Any] = {}
        self.truth: list[dict[int, str]] = []
        self.on = False

    def pack(self, tensor: Any) -> Any:
        import weakref

        storage = tensor.untyped_storage()
        if tensor.device.type == self.device:
            kept = tensor.detach()
            self.saved[storage.data_ptr()] = weakref.ref(kept)
            return kept
        return tensor

    def mark(self) -> None:
        import torch

        if not self.on:
            return
        found: dict[int, str] = {}
        live = [at for at, kept in self.saved.items() if kept() is not None]
        self.saved = {at: self.saved[at] for at in live}
        for at in live:
            found[at] = "activation"
        for category in ("activation", "input", "optimizer_state", "gradient", "parameter"):
            for tensor in self.tensors[category]():
                if tensor.device.type == self.device and tensor.numel():
                    found[tensor.untyped_storage().data_ptr()] = category
        torch.empty(MARKER + len(self.truth), dtype=torch.uint8, device=self.device)
        self.truth.append(found)


def recorded(name: str, device: str, big: bool) -> tuple[Any, list[dict[int, str]]]:
    """The timeline of a program and the truth at its moments."""
    import torch

    import neutracer
    from neutracer.recording.recorder import ask_tensors

    def begin() -> None:
        if device == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")
        else:
            neutracer.live(500_000, 16)

    if device == "cuda":
        torch.zeros(1, device="cuda")
    make = {**programs.OPEN, **programs.HELD_OUT}[name]
    torch.manual_seed(0)
    begin()
    if device != "cuda":
        neutracer.live.stop()
        neutracer.live(500_000, 16)
    program = make(device, big)
    moments = Moments(device, program.tensors)
    with torch.autograd.graph.saved_tensors_hooks(moments.pack, lambda kept: kept):
        for number in range(program.steps):
            if number == program.record_from:
                if device == "cuda":
                    torch.cuda.memory._record_memory_history(None)
                else:
                    neutracer.live.stop()
                begin()
            moments.on = number >= max(program.record_from, 0)
            program.step(moments.mark)
    if device == "cuda":
        torch.cuda.synchronize()
        snap = neutracer.snapshot()
    else:
        snap = ask_tensors(neutracer.live())
    return snap.timeline(), moments.truth


def judged(name: str, device: str, big: bool) -> dict[str, Any]:
    """By (truth, ours) the bytes over all moments."""
    timeline, truth = recorded(name, device, big)
    rows = timeline.allocations
    pairs: Counter[tuple[str, str]] = Counter()
    worst: Counter[str] = Counter()
    asked = rows.codes("requested_size")
    made = rows.codes("alloc_event")
    markers = {asked[r] - MARKER: made[r] for r in range(len(rows)) if made[r] >= 0}
    freed, addresses = rows.codes("free_event"), rows.codes("address")
    live = [
        [r for r in range(len(rows)) if made[r] < markers[k] and not -1 < freed[r] <= markers[k]]
        for k in range(len(truth))
    ]
    # A bucket holds gradients, also while a step has none yet.
    reduced = {
        row
        for found, some in zip(truth, live, strict=True)
        for row in some
        if found.get(addresses[row]) == "gradient"
    }
    for found, some in zip(truth, live, strict=True):
        for row in some:
            size, ours = rows.codes("size")[row], timeline.categories.name(row)
            theirs = found.get(addresses[row], "gradient" if row in reduced else "unknown")
            pairs[theirs, ours] += size
            if theirs != ours and (theirs != "unknown" or ours in COMPLETE):
                place = timeline.places[rows.codes("stack")[row]]
                rule = timeline.categories.rule(row)[0]
                worst[f"{theirs}, we say {ours} ({rule}): {place}"] += size
    table = [[theirs, ours, nbytes] for (theirs, ours), nbytes in pairs.items()]
    return {"program": name, "moments": len(truth), "pairs": table, "worst": worst.most_common(6)}


def shares(pairs: Counter[tuple[str, str]]) -> dict[str, tuple[float | None, float | None]]:
    """Recall and precision of each category; None where there is none."""
    found = {}
    for category in SHOWN:
        is_one = sum(n for (theirs, _), n in pairs.items() if theirs == category)
        right = pairs[category, category]
        called = sum(
            n
            for (theirs, ours), n in pairs.items()
            if ours == category and (theirs != "unknown" or category in COMPLETE)
        )
        found[category] = (
            right / is_one if is_one else None,
            right / called if called else None,
        )
    return found


def line(name: str, pairs: Counter[tuple[str, str]]) -> str:
    cells = []
    for recall, precision in shares(pairs).values():
        told = ["     -" if one is None else f"{one:6.1%}" for one in (recall, precision)]
        cells.append(" ".join(told))
    return f"{name:20} " + "   ".join(cells)


def child(name: str, cpu: bool) -> str:
    command = [sys.executable, os.path.abspath(__file__), "--one", name]
    command += ["--cpu"] if cpu else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout if done.returncode == 0 else done.stderr[-1500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--one")
    parser.add_argument("--open", action="store_true", help="only those the rules are built on")
    parser.add_argument("--cpu", action="store_true", help="small, on the CPU")
    parser.add_argument("--worst", action="store_true", help="the largest mistakes too")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(judged(given.one, "cpu" if given.cpu else "cuda", not given.cpu)))
        return 0
    names = given.programs or [*programs.OPEN, *([] if given.open else programs.HELD_OUT)]
    began = time.monotonic()
    print(f"{'':20} " + "   ".join(f"{name:>13}" for name in SHOWN))
    print(f"{'':20} " + "   ".join("recall   prec" for _ in SHOWN))
    sums: dict[bool, Counter[tuple[str, str]]] = {True: Counter(), False: Counter()}
    with ThreadPoolExecutor(2 if given.cpu else AT_ONCE) as pool:
        for name, text in zip(names, pool.map(lambda n: child(n, given.cpu), names), strict=True):
            try:
                told = json.loads(text.splitlines()[-1])
            except (ValueError, IndexError):
                print(f"{name:20} failed: {text.strip()[-1200:]}", flush=True)
                continue
            pairs = Counter({(theirs, ours): n for theirs, ours, n in told["pairs"]})
            sums[name in programs.OPEN].update(pairs)
            print(line(name, pairs), flush=True)
            for words, nbytes in told["worst"] if given.worst else ():
                print(f"      {nbytes / 2**20:9.2f} MiB {words}")
    for is_open, pairs in sums.items():
        if pairs:
            print(line("all built on" if is_open else "all held out", pairs))
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
