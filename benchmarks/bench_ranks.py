# SPDX-License-Identifier: Apache-2.0
"""How long is one report on many ranks, and how much memory does it take?

    python benchmarks/bench_ranks.py [--large FILE] [--copies 64] [--small 1024] [--live 20]

Copies of one large snapshot (links to one file, each with a rank in its name), and a thousand small
ones with sidecars. `neutracer.ranks` reads them on as many processes as there are cores; beside it
is what one does without: `neutracer.load` and a report for each file, and `pickle.load` of each.
These two are measured on some of the files, each in a process of its own, and told for one file and
for all in turn. With --live, what `watch_ranks` takes of a processor in a program that rests, over
so many seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import neutracer
from neutracer.overview import overview

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

# Files that are opened one by one, of few large and of many small ones.
_LARGE_SAMPLE, _SMALL_SAMPLE = 4, 64


@dataclass(frozen=True)
class Taken:
    """What something took: seconds by the clock and of processors, and bytes of memory."""

    seconds: float
    cpu: float
    memory: int


def open_each(how: str, paths: Sequence[str]) -> None:
    """Open all files in this process, and print what that took as JSON."""
    begin, used = time.perf_counter(), _cpu_seconds()
    if how == "ranks":
        assert len(neutracer.ranks(paths).rows) == len(paths)
    elif how == "report":
        for path in paths:
            str(overview(neutracer.load(path, progress=False)))
    else:
        for path in paths:
            with open(path, "rb") as file:
                pickle.load(file)
    seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - used
    print(json.dumps([seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10]))


def opened(how: str, paths: Sequence[str]) -> Taken:
    """What it takes a new process, and those that it begins, to open these files."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as names:
        json.dump(list(paths), names)
        names.flush()
        command = [sys.executable, __file__, "--open", how, names.name]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
            Memory(process.pid) as memory,
        ):
            told = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{how}: exit code {process.returncode}")
    seconds, cpu, own = json.loads(told)
    return Taken(seconds, cpu, max(own, memory.most))


class Memory:
    """The most memory that a process and its children have in use, in bytes; what several of
    them share counts once."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        # Looking holds up who allocates: seldom enough to be no part of the time.
        while not self._done.wait(0.25):
            self.most = max(self.most, sum(map(self._resident, self._processes())))

    def _processes(self) -> list[int]:
        found = [self._pid]
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    said = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
                except (OSError, IndexError):
                    continue
                if int(said[1]) == self._pid:
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
    count, total = len(paths), sum(map(os.path.getsize, paths))
    mine = opened("ranks", paths)
    print(f"{name}: {count:,} ranks, {total / 1e9:.2f} GB")
    _line("neutracer.ranks of all", mine)
    for what, how in (("load and report", "report"), ("pickle.load", "pickle")):
        some = opened(how, paths[:sample])
        one = Taken(some.seconds / sample, some.cpu / sample, some.memory)
        _line(f"{what} of one", one)
        _line(f"{what}, all in turn", Taken(one.seconds * count, one.cpu * count, one.memory))
        print(
            f"    all ranks are {mine.cpu / one.cpu:,.1f} such files by processor time, "
            f"{mine.seconds / one.seconds:,.1f} by the clock, {mine.memory / one.memory:.2f} in "
            "memory"
        )


def _line(what: str, taken: Taken) -> None:
    print(
        f"  {what:28} {taken.seconds:9.3f} s {taken.cpu:9.3f} s of processor "
        f"{taken.memory / 1e6:8,.0f} MB"
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
    parser.add_argument("--open", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_each(options.open[0], json.loads(Path(options.open[1]).read_text()))
        return
    if options.live:
        watched(options.live)
        return
    from rank_files import trained, write

    with tempfile.TemporaryDirectory() as folder:
        raw = pickle.dumps(trained(), protocol=4)
        for rank in range(options.small):
            write(Path(folder), rank, raw, world=options.small)
        reported(
            "small", [str(path) for path in sorted(Path(folder).glob("*.pickle"))], _SMALL_SAMPLE
        )
    if options.large:
        with tempfile.TemporaryDirectory() as folder:
            paths = [f"{folder}/rank{rank}.pickle" for rank in range(options.copies)]
            for path in paths:
                os.symlink(os.path.abspath(options.large), path)
            reported("large", paths, _LARGE_SAMPLE)


if __name__ == "__main__":
    main()
