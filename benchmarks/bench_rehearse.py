# SPDX-License-Identifier: Apache-2.0
"""How near is a rehearsal to what a program really takes?

    python benchmarks/bench_rehearse.py TRUTH [--programs FILE] [NAME...]

TRUTH is what `tests/gpu/rehearsal/truth.py` has written on an H100. For each program the peak of
allocated: really, rehearsed with its range, by `torch.distributed._tools.MemTracker` on the same
fake tensors, and as a sum of parameters, gradients, optimizer states and activations; and the peak
of reserved, which only a rehearsal has. A range that leaves the truth out is marked with "out".
Below the table are the medians, and how many ranges leave the truth out. Models come from packages:
where one is of another version than it was on the card, a line says so, since it may build another
model. It needs no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed._tools.mem_tracker import MemTracker

import neutracer
from neutracer.rehearsal.cards import find_card
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.session import pretending

PROGRAMS = Path(__file__).parents[1] / "tests" / "gpu" / "rehearsal"
#: How names of programs begin, by what most of their memory is for; others are neither.
TRANSFORMERS = (
    *("gpt", "bert", "llama", "vit", "encoder", "moe", "t5", "qwen", "distilbert", "wav2vec"),
    *("swin", "opt", "whisper", "clip", "mistral"),
)
CONVOLUTIONS = (
    *("resnet", "convnext", "unet", "efficientnet", "deeplab", "vgg", "mobilenet", "fcn"),
)
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


@dataclass(frozen=True)
class Row:
    """A program's figures, in bytes.

    Attributes:
        name: The program.
        real: The peaks of allocated and of reserved on the card.
        ours: Those that were rehearsed.
        ranges: Their ranges.
        tracked: The peak of allocated by MemTracker; None where it can't follow the program.
        summed: The same as a sum over categories.
        versions: Packages that are of another version than on the card.
    """

    name: str
    real: tuple[int, int]
    ours: tuple[int, int]
    ranges: tuple[tuple[int, int], tuple[int, int]]
    tracked: int | None
    summed: int
    versions: str

    def error(self, figure: int) -> float:
        """In percent: of allocated (0) or of reserved (1)."""
        return 100 * (self.ours[figure] / self.real[figure] - 1)

    def is_out(self, figure: int) -> bool:
        low, high = self.ranges[figure]
        return not low <= self.real[figure] <= high

    def cells(self) -> list[str]:
        first, last = (self._figure(number) for number in (0, 1))
        others = [apart(value, self.real[0]) for value in (self.tracked, self.summed)]
        return [f"`{self.name}`", *first, *others, *last]

    def _figure(self, number: int) -> list[str]:
        """The truth in MiB, the error, and the range around the truth."""
        ends = [apart(end, self.real[number]) for end in self.ranges[number]]
        out = " out" if self.is_out(number) else ""
        error = apart(self.ours[number], self.real[number])
        return [f"{self.real[number] / 2**20:,.0f} MiB", error, f"{' to '.join(ends)}{out}"]


def apart(value: int | None, truth: int) -> str:
    return "-" if value is None else f"{100 * (value / truth - 1):+.1f} %"


def other_versions(said: dict[str, Any]) -> str:
    """The packages that are not of the version that they were on the card."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", "") for name in said}
    apart = [f"{name} {said[name]}, here {here}" for name, here in loaded.items() if here]
    return "; ".join(text for text in apart if text.split()[1].rstrip(",") != text.split()[-1])


def measured(name: str, maker: Any, said: dict[str, Any]) -> Row:
    """A program rehearsed, beside what it took."""
    peaks = [said["built"], *said["steps"]]
    snap = neutracer.rehearse(maker, device="H100")
    timeline, told = snap.timeline(), snap.rehearsed
    assert told is not None
    held = timeline.holders(by="category", limit=None)
    ranges = [told.ranges[f"peak_{name}_bytes"] for name in ("allocated", "reserved")]
    real = [max(one[f"peak_{name}_bytes"] for one in peaks) for name in ("allocated", "reserved")]
    return Row(
        name,
        (real[0], real[1]),
        (timeline.peak("allocated").bytes, timeline.peak("reserved").bytes),
        (ranges[0], ranges[1]),
        tracked(maker, 3),
        sum(one.bytes for one in held if one.key in SUMMED),
        other_versions(said.get("packages", {})),
    )


def show(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def medians(rows: list[Row]) -> None:
    """Print what the rows come to, of all and of each kind."""

    def median(found: list[Row], of: Callable[[Row], float]) -> str:
        return f"{statistics.median(abs(of(row)) for row in found):.2f} %"

    kinds = {"all": rows}
    kinds["transformers"] = [row for row in rows if row.name.startswith(TRANSFORMERS)]
    kinds["convolutions"] = [row for row in rows if row.name.startswith(CONVOLUTIONS)]
    for kind, found in kinds.items():
        if found:
            ends = [median(found, lambda row, n=n: row.error(n)) for n in (0, 1)]  # type: ignore[misc]
            print(
                f"{kind}, {len(found)}: median error {ends[0]} of allocated, {ends[1]} of reserved"
            )
    outside = [sum(row.is_out(number) for row in rows) for number in (0, 1)]
    print(f"ranges that leave the truth out: {outside[0]} of allocated, {outside[1]} of reserved")


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
    show(
        [
            "program",
            "allocated",
            "rehearsed",
            "range",
            "MemTracker",
            "sum",
            "reserved",
            "rehearsed",
            "range",
        ]
    )
    show(["---"] * 9)
    rows, left = [], []
    for name in options.names or list(programs.PROGRAMS):
        path = options.truth / f"{name}.json"
        said = json.loads(path.read_text()) if path.is_file() else {"error": "not measured"}
        try:
            if "error" in said:
                raise ValueError(said["error"])
            rows.append(measured(name, programs.PROGRAMS[name], said))
            show(rows[-1].cells())
        except (neutracer.RehearsalError, ValueError) as error:
            left.append(f"{name}: {str(error)[:100]}")
    print()
    medians(rows)
    for row in rows:
        left += [f"{row.name}: {row.versions}"] if row.versions else []
    print(*left, sep="\n")


if __name__ == "__main__":
    main()
