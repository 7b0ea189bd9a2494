# SPDX-License-Identifier: Apache-2.0
"""What does leak_trend say of real programs? Each of `leak_programs` is run healthy and leaking.

Each runs in a process of its own, is recorded on the CPU through neutracer.live, and gets one
verdict from its snapshot. Needs torch, transformers, lightning, torchvision, timm, diffusers,
peft, torch-geometric and accelerate; a program whose library is absent is said to be.

usage: python benchmarks/bench_leak_programs.py [NAME ...] [--save FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

# Events that are recorded: more than a program makes.
EVENTS = 1_500_000

# Verdicts that are no alarm.
CALM = ("steady", "unknown")

# Of programs that were not judged.
MISSING = ("absent", "failed")


def recorded(name: str, leaks: bool, folder: str | None, answer: Any) -> None:
    """Runs and judges one program, in a process of its own."""
    import leak_programs
    import torch

    import neutracer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    neutracer.live(max_events=EVENTS)
    taken: list[neutracer.Snapshot] = []
    try:
        leak_programs.run(name, leaks, lambda: taken.append(neutracer.live()))
    except ImportError as error:
        answer.put({"verdict": "absent", "because": str(error)})
        return
    neutracer.live.stop()
    snap = taken[0]
    if folder is not None:
        snap.save(Path(folder) / f"{name}_{'leaking' if leaks else 'healthy'}.pickle")
    trend = neutracer.leak_trend(snap, live=False)
    answer.put(
        {
            "verdict": trend.verdict,
            "because": trend.because,
            "severity": [str(one.severity) for one in trend.findings],
            "rate": round(trend.bytes_per_step),
            "steps": f"{len(trend.floors)} {trend.unit}s",
            "how": trend.how,
            "place": trend.growth[0].place.location if trend.growth else "",
        }
    )


def import_libraries() -> None:
    """Imports what the programs need, so that each process forked from this one has it."""
    import leak_programs

    leak_programs.without_kernels()
    for name in ("transformers", "lightning", "timm", "diffusers", "peft", "torch_geometric.nn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def judged(name: str, leaks: bool, folder: str | None) -> dict[str, Any]:
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    process = context.Process(target=recorded, args=(name, leaks, folder, answer))
    process.start()
    process.join()
    found: dict[str, Any] = {"verdict": "failed"} if answer.empty() else answer.get()
    return found


def show(name: str, leaks: bool, found: dict[str, Any]) -> None:
    truth = "leaking" if leaks else "healthy"
    about = f"{found.get('rate', '')} B in {found.get('steps', '')}, {found.get('place', '')}"
    print(f"  {truth}  {name:22} {found['verdict']:14} {about}", flush=True)
    print(f"      {found.get('because', '')} {found.get('how', '')}", flush=True)


def main() -> None:
    from leak_programs import PROGRAMS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--save", metavar="FOLDER", help="keep the snapshots there")
    args = parser.parse_args()
    if args.save:
        Path(args.save).mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    import_libraries()
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for name in args.names or PROGRAMS:
        for leaks in (False, True):
            found[name, leaks] = judged(name, leaks, args.save)
            show(name, leaks, found[name, leaks])
    verdicts = [(leaks, one["verdict"]) for (_, leaks), one in found.items()]
    missing = [one for _, one in verdicts if one in MISSING]
    healthy = [one for leaks, one in verdicts if not leaks and one not in MISSING]
    leaking = [one for leaks, one in verdicts if leaks and one not in MISSING]
    alarms = sum(one not in CALM for one in healthy)
    print(f"healthy: {alarms} alarms in {len(healthy)}; {healthy.count('unknown')} unknown")
    print(f"leaking: {leaking.count('leak')} found of {len(leaking)}")
    print(f"absent {missing.count('absent')}, failed {missing.count('failed')}")
    print(f"{time.perf_counter() - start:.0f} s")
    if args.save:
        told = {f"{name} {leaks}": one for (name, leaks), one in found.items()}
        (Path(args.save) / "verdicts.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
