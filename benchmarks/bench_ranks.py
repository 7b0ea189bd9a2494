# SPDX-License-Identifier: Apache-2.0
"""How long is one report on many ranks, and how much memory does it take?

    python benchmarks/bench_ranks.py [--large FILE] [--copies 64] [--small 1024] [--live 20]

Copies of one large snapshot and a thousand small ones, each compared with `neutracer.ranks`, and
beside it what one does without: `load` and a report for each file, one after the other. With
--live, what `watch_ranks` takes of a processor in a program that rests, over so many seconds.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import neutracer
from neutracer.diagnose.overview.report import overview

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))


def opened_each(paths: Sequence[str]) -> float:
    """Seconds that loading and a report take, for each file in turn."""
    begin = time.perf_counter()
    for path in paths:
        overview(neutracer.load(path, progress=False))
    return time.perf_counter() - begin


class Memory:
    """The most memory that this process and its children have in use, in bytes."""

    def __enter__(self) -> Memory:
        self.most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        # Looking holds up who allocates: seldom enough to be no part of the time.
        while not self._done.wait(0.5):
            self.most = max(self.most, sum(map(self._resident, self._processes())))

    @staticmethod
    def _processes() -> list[int]:
        mine, found = os.getpid(), [os.getpid()]
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    parent = int(
                        Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1]
                    )
                except (OSError, IndexError):
                    continue
                if parent == mine:
                    found.append(int(name))
        return found

    @staticmethod
    def _resident(pid: int) -> int:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    return sum(os.times()[:4])


def reported(name: str, paths: Sequence[str], sample: int) -> None:
    """Print what one report takes, and what opening each would."""
    with Memory() as memory:
        begin, used = time.perf_counter(), _cpu_seconds()
        job = neutracer.ranks(paths)
        took, spent = time.perf_counter() - begin, _cpu_seconds() - used
    used = _cpu_seconds()
    each = opened_each(paths[:sample]) / sample
    alone_cpu = (_cpu_seconds() - used) / sample
    total = sum(map(os.path.getsize, paths))
    alone = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(
        f"{name}: {len(job.rows)} rows of {total / 1e9:.2f} GB in {took:.2f} s ({spent:.2f} s of "
        f"processor), {memory.most / 1e6:,.0f} MB; load and report of one {each:.3f} s "
        f"({alone_cpu:.3f} s) and {alone / 1e6:,.0f} MB, of each in turn {each * len(paths):.2f} s"
    )


def watched(seconds: float) -> None:
    """Print what a watch at its usual interval takes of a processor."""
    import torch
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(server.port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    kept = torch.zeros(1 << 20)
    with neutracer.watch_ranks(signals=False) as watch:
        while not watch.written:
            time.sleep(0.1)
        begin, told = time.process_time(), watch.written
        time.sleep(seconds)
        spent = time.process_time() - begin
        count, length = watch.written - told, len(watch.digest().to_bytes())
    print(
        f"live: {spent / seconds:.3%} of a processor at {count} digests of {length:,} bytes in "
        f"{seconds:.0f} s, the monitor's readings among it ({kept.nbytes >> 20} MiB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", help="a large snapshot, uncompressed")
    parser.add_argument("--copies", type=int, default=64)
    parser.add_argument("--small", type=int, default=1024)
    parser.add_argument("--live", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    if options.live:
        watched(options.live)
        return
    from rank_files import trained, write

    with tempfile.TemporaryDirectory() as folder:
        raw = pickle.dumps(trained(), protocol=4)
        for rank in range(options.small):
            write(Path(folder), rank, raw, world=options.small)
        reported("small", [str(path) for path in sorted(Path(folder).glob("*.pickle"))], 64)
    if options.large:
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/rank{rank}.pickle" for rank in range(options.copies)]
            for path in paths:
                os.symlink(os.path.abspath(options.large), path)
            reported("large", paths, 4)


if __name__ == "__main__":
    main()
