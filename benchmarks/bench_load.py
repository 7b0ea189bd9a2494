# SPDX-License-Identifier: Apache-2.0
"""What does it cost to load a snapshot, and to find its peak, beside pickle.load?

Every figure is of a process of its own: best time of several, growth of its largest resident
size since before the load. All are taken in one run, in turn, because machines are noisy:
the ratios are what counts. "of load" is what a process took in all by what its own load
took, in the median. `large_trace` is a real recording of a million events; it is too large
to come with the sources, and is looked for in the folders named below.
"""

from __future__ import annotations

import json
import lzma
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from generated import write_snapshot

ROOT = Path(__file__).resolve().parent.parent
PLACES = (ROOT / "benchmarks" / "data", ROOT.parent / "shared" / "snapshots")
ROUNDS = 3
QUICK_ROUNDS = 3  # in each round, of what takes a fraction of pickle's time

MEASURE = """
import gc, json, resource, sys, time
def grown():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
{prepare}
before = grown()
start = time.perf_counter()
{load}
loaded = time.perf_counter() - start
{ask}
took = time.perf_counter() - start
print(json.dumps([took, grown() - before, took / loaded]))
"""

PICKLE = "import pickle\nfile = open({path!r}, 'rb')"
UNPICKLE = "kept = pickle.load(file)"
OURS = "import neutracer\nneutracer.load({small!r}).timeline().holders()\n"
LOAD = "snap = neutracer.load({path!r})"

# What comes before the clock starts, the load, and what is asked then.
WAYS = {
    "pickle.load, GC on": (PICKLE, UNPICKLE, ""),
    "pickle.load, GC off": (PICKLE + "\ngc.disable()", UNPICKLE, ""),
    "neutracer.load": (OURS, LOAD, ""),
    "  + peak, holders by stack": (
        OURS,
        LOAD,
        "tl = snap.timeline(); tl.peak(); tl.holders(by='stack')",
    ),
    "  + fragmentation report": (OURS, LOAD, "r = neutracer.fragmentation_report(snap)"),
}


def measure(way: str, path: Path) -> tuple[float, int, float]:
    """Seconds, bytes and seconds by those of the load, in a process of its own."""
    prepare, load, ask = WAYS[way]
    small = str(ROOT / "tests" / "data" / "frag_default.pickle")
    words = {"path": str(path), "small": small}
    script = MEASURE.format(prepare=prepare.format(**words), load=load.format(**words), ask=ask)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    took, grown, of_load = json.loads(run.stdout)
    return took, grown, of_load


def table(path: Path, events: int, ways: list[str]) -> None:
    """Print one file's table."""
    taken: dict[str, list[tuple[float, int, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            taken[way].append(measure(way, path))
        for way in [way for way in ways if "pickle" not in way] * (QUICK_ROUNDS - 1):
            taken[way].append(measure(way, path))
    best = {way: min(runs) for way, runs in taken.items()}
    spread = {way: max(runs)[0] / min(runs)[0] for way, runs in taken.items()}
    of_load = {way: statistics.median(run[2] for run in runs) for way, runs in taken.items()}
    base = best.get("pickle.load, GC off")
    size = path.stat().st_size
    print(f"\n{path.name}: {events:,} events, {size / 1e6:,.1f} MB")
    print(
        f"  {'':28} {'ms':>9} {'MB/s':>7} {'MB grown':>9} "
        f"{'speed-up':>9} {'memory':>7} {'of load':>8} {'spread':>7}"
    )
    for way, (took, grown, _) in best.items():
        ratios = f"{base[0] / took:8.1f}x {grown / base[1]:6.2f}x" if base else f"{'':9} {'':7}"
        print(
            f"  {way:28} {took * 1e3:9.1f} {size / took / 1e6:7.0f} {grown / 1e6:9.1f} "
            f"{ratios} {of_load[way]:7.2f}x {spread[way]:6.2f}x"
        )


def find_large() -> Path | None:
    """The packed real recording, or None."""
    for place in PLACES:
        if (place / "large_trace.pickle.xz").exists():
            return place / "large_trace.pickle.xz"
    return None


def main() -> None:
    print(f"{platform.python_version()} on {platform.machine()}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        packed = find_large()
        if packed is None:
            print("large_trace is absent: benchmarks/data/large_trace.pickle.xz would be measured")
        else:
            path = Path(folder) / "large_trace.pickle"
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            table(path, 992_720, list(WAYS))
        print("\nHow it grows with the events (generated):")
        for events in (100_000, 300_000, 1_000_000, 10_000_000):
            path = Path(folder) / f"generated_{events}.pickle"
            write_snapshot(path, events)
            ways = [way for way in WAYS if events <= 1_000_000 or "pickle" not in way]
            table(path, events + 1, [way for way in ways if way != "pickle.load, GC on"])
            path.unlink()


if __name__ == "__main__":
    main()
