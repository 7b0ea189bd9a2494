# SPDX-License-Identifier: Apache-2.0
"""How near is a rehearsal to what a program really takes?

    python benchmarks/bench_rehearse.py TRUTH [NAME...]

TRUTH is what `tests/gpu/rehearsal/truth.py` has written on an H100. For each program the peak of
allocated: really, rehearsed, by `torch.distributed._tools.MemTracker` on the same fake tensors,
and as a sum of parameters, gradients, optimizer states and activations; and the peak of reserved,
which only a rehearsal has. It needs no GPU.
"""

from __future__ import annotations

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


def main() -> None:
    warnings.simplefilter("ignore")
    truth, names = Path(sys.argv[1]), sys.argv[2:]
    sys.path.insert(0, str(PROGRAMS))
    import programs

    print(
        f"{'':26}{'really':>10} {'rehearsed':>9} {'MemTracker':>10} {'sum':>8}   {'reserved':>10}"
    )
    for name in names or list(programs.PROGRAMS):
        said = json.loads((truth / f"{name}.json").read_text())
        if "error" in said:
            continue
        peaks = [said["built"], *said["steps"]]
        real = max(one["peak_allocated_bytes"] for one in peaks)
        reserved = max(one["peak_reserved_bytes"] for one in peaks)
        snap = neutracer.rehearse(programs.PROGRAMS[name], device="H100")
        timeline = snap.timeline()
        held = timeline.holders(by="category", limit=None)
        total = sum(one.bytes for one in held if one.key in SUMMED)
        row = [timeline.peak("allocated").bytes, tracked(programs.PROGRAMS[name], 3), total]
        ours = apart(timeline.peak("reserved").bytes, reserved)
        figures = "   ".join(apart(value, real) for value in row)
        print(f"{name:26}{real / 2**20:8,.0f} MiB {figures}   {ours}", flush=True)


if __name__ == "__main__":
    main()
