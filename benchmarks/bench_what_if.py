# SPDX-License-Identifier: Apache-2.0
"""Does the model say what PyTorch did under other settings, and how fast is it?

Three programs ran under nine settings each for real; from the recording of one setting the
model says what all nine do. A cell is "=" where all seven figures (peak and final reserved,
segments, device allocations and frees, failures, retries) are PyTorch's own, "~" with the cause
where PyTorch's lie in the range that is told, "!" and the figures where they do not. An "="
with a cause behind it came out exact where a range was told besides. Then the setting that is
recommended for each snapshot, with what it saves.
"""

from __future__ import annotations

import json
import lzma
import os
import platform
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import neutracer

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
PLACES = (ROOT / "benchmarks" / "data", ROOT.parent / "shared" / "snapshots")
SHARED = ROOT.parent / "shared"
PROGRAMS = ("frag_default", "dyn_transformer_capped", "mixed_streams")
MIB = 1 << 20
FIGURES = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "segments": "segment.all.current",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "ooms": "num_ooms",
    "retries": "num_alloc_retries",
}


def truth(program: str, number: int) -> dict:
    return json.loads((DATA / "whatif" / str(number) / f"{program}.json").read_text())


def cell(outcome: neutracer.reports.Outcome, stats: dict[str, int]) -> str:
    """How an outcome stands to what PyTorch counted."""
    causes = "+".join(outcome.causes)
    wrong = []
    for figure, name in FIGURES.items():
        low, high = outcome.range(figure)
        if stats[name] < low or (high is not None and stats[name] > high):
            wrong.append(figure)
    if wrong:
        return "! " + ",".join(wrong)
    if all(getattr(outcome, figure) == stats[name] for figure, name in FIGURES.items()):
        return f"= {causes}".rstrip()
    return f"~ {causes}"


def table(program: str, settings: list[str]) -> Counter[str]:
    """Print one program's table: from each setting to each."""
    kinds: Counter[str] = Counter()
    print(f"\n{program}: recorded under the row's setting, replayed under the column's")
    print("     " + "".join(f"{number:<14}" for number in range(len(settings))))
    for number in range(len(settings)):
        snap = neutracer.load(DATA / "whatif" / str(number) / f"{program}.pickle.xz")
        cap = truth(program, number).get("cap_mib")
        plan = neutracer.what_if(snap, *settings, capacity=cap << 20 if cap else None)
        cells = [
            cell(plan[each], truth(program, column)["stats"])
            for column, each in enumerate(settings)
        ]
        kinds.update(text[0] for text in cells)
        exact = "" if plan.fidelity == 1.0 else f"   own settings: {plan.check.sentence}"
        print(f"  {number}  " + "".join(f"{text:<14}" for text in cells) + exact)
    return kinds


def snapshots() -> list[Path]:
    """The snapshots that a recommendation is printed for; those that are absent are named."""
    found: list[Path] = []
    for folder, pattern in (("snapshots", "*.pickle*"), ("whatif", "*/*.pickle*")):
        paths = sorted((SHARED / folder).glob(pattern))
        if not paths:
            print(f"\n{SHARED / folder} is absent: the bundled snapshots stand in for it")
            paths = sorted((DATA if folder == "snapshots" else DATA / folder).glob(pattern))
        found += [path for path in paths if not path.name.endswith(".cpp.pickle")]
    return found


def recommendation(path: Path) -> None:
    """Print what is recommended for one snapshot, and what it saves at the peak."""
    name = "/".join(path.parts[-2:]).partition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", neutracer.HistoryWarning)
        snap = neutracer.load(path)
    try:
        report = neutracer.what_if(snap, objective="reserved")
    except ValueError as error:
        print(f"  {name:38} {error}")
        return
    was = report.recorded.peak_reserved_bytes
    exact = "" if report.fidelity == 1.0 else f"  fidelity {report.fidelity:.4f}"
    if report.best is None:
        print(f"  {name:38} {was / MIB:9,.0f} {'':>9} {'':>9}  nothing does better{exact}")
        return
    saved, calls = report.best.saved_bytes, report.best.more_device_calls
    figures = f"{was / MIB:9,.0f} {saved / MIB:9,.0f} {calls:+9,d}"
    over = saved < 0 and report.best.outcome.ooms < report.recorded.ooms
    why = "  more, for it gets over a request that failed" if over else ""
    print(f"  {name:38} {figures}  {report.best.settings or '(default)'}{why}{exact}")


def recommendations() -> None:
    """Print the setting with the lowest peak of reserved for each snapshot."""
    paths = snapshots()
    print("\nRecommended for the lowest peak of reserved memory:")
    print(f"  {'':38} {'peak MiB':>9} {'saves MiB':>9} {'calls':>9}  setting")
    for path in paths:
        recommendation(path)


def timed(work: Callable[[], object]) -> float:
    """The best of three, in seconds."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def speed(snap: neutracer.Snapshot) -> None:
    """Print what a replay of one snapshot takes."""
    program, events = snap.timeline().program, len(snap.events)
    rows = {
        "default settings": lambda: program.run(""),
        "expandable_segments:True": lambda: program.run("expandable_segments:True"),
        "max_split_size_mb:128": lambda: program.run("max_split_size_mb:128"),
        "roundup_power2_divisions:4": lambda: program.run("roundup_power2_divisions:4"),
        "own settings, compared": lambda: program.check(),
        "default settings, with range": lambda: program.find_range(""),
        "what_if, one that expands": lambda: neutracer.what_if(snap, "expandable_segments:True"),
        "what_if, one with ties": lambda: neutracer.what_if(snap, "max_split_size_mb:128"),
        "what_if(objective='reserved')": lambda: neutracer.what_if(snap, objective="reserved"),
    }
    print(f"  {'':34} {'ms':>9} {'M events/s':>11}")
    for name, work in rows.items():
        took = timed(work)
        print(f"  {name:34} {took * 1e3:9.1f} {events / took / 1e6:11.2f}")


def main() -> None:
    print(f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores")
    settings = [truth("frag_default", number)["conf"] for number in range(9)]
    for number, each in enumerate(settings):
        print(f"  {number}  {each or '(default)'}")
    kinds: Counter[str] = Counter()
    for program in PROGRAMS:
        kinds += table(program, settings)
    print(f"\n{kinds['=']} cells exact, {kinds['~']} in the range told, {kinds['!']} outside")
    recommendations()
    packed = [place / "large_trace.pickle.xz" for place in PLACES]
    found = next((path for path in packed if path.exists()), None)
    if found is None:
        print("\nlarge_trace is absent: benchmarks/data/large_trace.pickle.xz would be timed")
        print("\nSpeed, train_resnet_healthy:")
        speed(neutracer.load(DATA / "train_resnet_healthy.pickle.xz"))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large_trace.pickle"
        path.write_bytes(lzma.decompress(found.read_bytes()))
        snap = neutracer.load(path)
        print(f"\nSpeed, large_trace ({len(snap.events):,} events):")
        speed(snap)


if __name__ == "__main__":
    main()
