# SPDX-License-Identifier: Apache-2.0
"""Loads, replays, asks, saves and lets go of snapshots in a loop; valgrind watches."""

from __future__ import annotations

import contextlib
import gc
import lzma
import sys
import tempfile
import warnings
from pathlib import Path

import neutracer

DATA = Path(__file__).parents[1] / "data"
NAMES = ("cpp_stacks", "cuda_graph_pool", "foreign_memory", "metadata", "multi_stream")


def once(pickle: bytes, folder: str) -> None:
    """One snapshot's life, and that of a truncated and of a refused file."""
    snap = neutracer.load(pickle)
    for device in snap.devices:
        timeline = snap.timeline(device)
        timeline.holders(limit=3)
        str(neutracer.fragmentation_report(snap, device=device))
        list(timeline.allocations)
    snap.save(Path(folder, "saved.pickle"))
    for bad in (pickle[: len(pickle) // 2], b"\x80\x04cos\nsystem\n."):
        with contextlib.suppress(neutracer.SnapshotError):
            neutracer.load(bad)


def main() -> None:
    """As many rounds as the first argument says (3)."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    warnings.simplefilter("ignore", neutracer.HistoryWarning)
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            pickle = lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())
            for _ in range(rounds):
                once(pickle, folder)
                gc.collect()
    print(f"{rounds} rounds of {len(NAMES)} snapshots")


if __name__ == "__main__":
    main()
