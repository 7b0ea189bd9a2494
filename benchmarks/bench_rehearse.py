# SPDX-License-Identifier: Apache-2.0
"""How near is a rehearsal to what a program really takes?

    python benchmarks/bench_rehearse.py TRUTH [--programs FILE] [NAME...]

TRUTH is what `tests/gpu/rehearsal/truth.py` has written on an H100. For each program the peak of
allocated: really, rehearsed, by `torch.distributed._tools.MemTracker` on the same fake tensors,
and as a sum of parameters, gradients, optimizer states and activations; and the peak of reserved,
which only a rehearsal has. A range that leaves the truth out is marked with "out". Models come from
packages: where one is of another version than it was on the card, the line says so, since it may
build another model. It needs no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from torch.distributed._tools.mem_tracker import MemTracker

import neutracer
from neutracer.rehearsal.cards import find_card
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.session import pretending

PROGRAMS = Path(__file__).parents[1] / "tests" / "gpu" / "rehearsal"
SUMMED = ("parameter", "gradient", "optimizer_state", "activation")


def tracked(maker: Any, steps: int) -> int | None:
    """MemTracker's peak; None where it can't follow the program."""
    try:
        with pretending(find_card("H100"), Requests(), devices=1, capacity=1 << 40):
            tracker = MemTracker()
            with tracker:
                step = maker()
                for _ in range(steps):
                    step()
                    tracker.reset_mod_stats()
            found = tracker.get_tracker_snapshot("peak")
    except Exception:
        return None
    return max(int(sums["Total"]) for device, sums in found.items() if device.type == "cuda")


def apart(value: int | None, truth: int) -> str:
    return "       -" if value is None else f"{100 * (value / truth - 1):+7.2f}%"


def other_versions(said: dict[str, Any]) -> str:
    """The packages that are not of the version that they were on the card."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", "") for name in said}
    apart = [f"{name} {said[name]}, here {here}" for name, here in loaded.items() if here]
    return "; ".join(text for text in apart if text.split()[1].rstrip(",") != text.split()[-1])


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="Rehearsals beside what programs really take.")
    parser.add_argument("truth", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--programs", type=Path, default=PROGRAMS / "programs.py")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("programs", options.programs)
    assert spec is not None
    assert spec.loader is not None
    programs = importlib.util.module_from_spec(spec)
    sys.modules["programs"] = programs
    spec.loader.exec_module(programs)
    print(
        f"{'':26}{'really':>10} {'rehearsed':>9} {'MemTracker':>10} {'sum':>8}   {'reserved':>10}"
    )
    for name in options.names or list(programs.PROGRAMS):
        path = options.truth / f"{name}.json"
        said = json.loads(path.read_text()) if path.is_file() else {"error": "not measured"}
        if "error" in said:
            print(f"{name:26}{said['error'][:80]}")
            continue
        print(line(name, programs.PROGRAMS[name], said), flush=True)


def line(name: str, maker: Any, said: dict[str, Any]) -> str:
    """A program's line of the table."""
    peaks = [said["built"], *said["steps"]]
    real = max(one["peak_allocated_bytes"] for one in peaks)
    reserved = max(one["peak_reserved_bytes"] for one in peaks)
    try:
        snap = neutracer.rehearse(maker, device="H100")
    except neutracer.RehearsalError as error:
        return f"{name:26}{real / 2**20:8,.0f} MiB   {error.reason[:100]}"
    timeline = snap.timeline()
    held = timeline.holders(by="category", limit=None)
    total = sum(one.bytes for one in held if one.key in SUMMED)
    row = [timeline.peak("allocated").bytes, tracked(maker, 3), total]
    ours = apart(timeline.peak("reserved").bytes, reserved)
    figures = "   ".join(apart(value, real) for value in row)
    told = snap.rehearsed
    assert told is not None
    marks = []
    for figure, truth in (("allocated", real), ("reserved", reserved)):
        low, high = told.ranges.get(f"peak_{figure}_bytes", (0, 0))
        out = "" if low <= truth <= high else " out"
        marks += [f"{figure}: {low / 2**20:,.0f} to {high / 2**20:,.0f}{out}"] if high else []
    versions = other_versions(said.get("packages", {}))
    rest = "   ".join([*marks, *([versions] if versions else [])])
    return f"{name:26}{real / 2**20:8,.0f} MiB {figures}   {ours}   {rest}"


if __name__ == "__main__":
    main()
