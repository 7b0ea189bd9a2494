# SPDX-License-Identifier: Apache-2.0
"""Runs `program.py` in all its ways on two GPUs, and checks which rank is odd, and why.

    python tests/gpu/ranks/run.py [--out FOLDER] [KIND ...]

Prints a line for each way, and exits with 1 if an answer is not the right one. All of it takes
some six minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import neutracer
from neutracer.rank.report import RanksReport
from neutracer.rank.watch import stored_ranks

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).parents[3]
MOST_S = 100


def environment(out: Path, **others: str) -> dict[str, str]:
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": paths, "RANKS_OUT": str(out), **others}


def launched(kind: str, out: Path) -> RanksReport:
    """The report on the files of a job that torchrun ran to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "neutracer", "run", "-o", str(out / "files"), str(PROGRAM), kind]
    with (out / "said.txt").open("w") as said:
        done = subprocess.run(
            command, env=environment(out), stdout=said, stderr=said, timeout=MOST_S, check=False
        )
    if done.returncode and kind != "out_of_memory":
        raise AssertionError((out / "said.txt").read_text()[-3000:])
    report = neutracer.ranks(out / "files")
    (out / "report.txt").write_text(str(report))
    return report


def odd_of(report: RanksReport) -> list[tuple[int | None, str]]:
    return [(odd.rank, odd.cause) for odd in report.odd]


def equal(kind: str, out: Path) -> str:
    report = launched(kind, out)
    assert report.odd == (), [odd.why for odd in report.odd]
    assert len(report.shapes) == 1, report.shapes
    peaks = [row.peak_allocated_bytes or 0 for row in report.rows]
    assert min(peaks) > 100 << 20, peaks
    return "no rank is odd"


def uneven_batch(kind: str, out: Path) -> str:
    odd = launched(kind, out).odd
    assert (odd[0].rank, odd[0].cause) == (1, "larger_blocks"), odd
    return odd[0].why


def leak(kind: str, out: Path) -> str:
    odd = launched(kind, out).odd
    assert (odd[0].rank, odd[0].cause) == (1, "leak"), odd
    assert "program.py" in odd[0].place, odd[0]
    assert odd[0].step is not None, odd[0]
    assert abs(odd[0].step - 12) <= 2, odd[0]
    return odd[0].why


def pipeline(kind: str, out: Path) -> str:
    report = launched(kind, out)
    assert report.shapes == ((0,), (1,)), report.shapes
    assert odd_of(report) == [(1, "stage")], [odd.why for odd in report.odd]
    return report.odd[0].why


def other_library(kind: str, out: Path) -> str:
    report = launched(kind, out)
    found = [odd for odd in report.odd if odd.cause == "not_torch"]
    assert [odd.rank for odd in found] == [1], odd_of(report)
    assert abs(found[0].bytes - (3 << 30)) < 256 << 20, found[0].bytes
    running = json.loads((out / "store.json").read_text())
    libraries = [sorted(row["libraries"]) for row in running["rows"]]
    told = [odd["why"] for odd in running["odd"]]
    assert any(odd["rank"] == 1 and odd["cause"] == "not_torch" for odd in running["odd"]), told
    assert all("NCCL" in names for names in libraries), libraries
    return f"{found[0].why}; libraries {libraries}; in the running job: {told}"


def out_of_memory(kind: str, out: Path) -> str:
    report = launched(kind, out)
    first = report.first_oom
    assert first is not None
    assert first.rank == 1, first
    assert first.ended == (0,) or first.lost == (), first
    peers = [path.name for path in (out / "files").glob("ranks-*rank0*-peer.pickle")]
    assert peers, sorted(path.name for path in (out / "files").iterdir())
    return f"{first.why} {peers[0]}"


class Running:
    """Two ranks beside a store that outlives them, as a launcher's agent has it."""

    def __init__(self, kind: str, out: Path) -> None:
        self.store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self.address = f"127.0.0.1:{self.store.port}"
        self.said = out / "said.txt"
        with self.said.open("w") as said:
            self.ranks = [
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), kind],
                    env=environment(
                        out,
                        RANK=str(rank),
                        LOCAL_RANK=str(rank),
                        WORLD_SIZE="2",
                        MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(self.store.port),
                        TORCHELASTIC_USE_AGENT_STORE="True",
                    ),
                    stdout=said,
                    stderr=said,
                )
                for rank in range(2)
            ]

    def until(self, wanted: Callable[[RanksReport], bool]) -> RanksReport:
        end = time.monotonic() + MOST_S
        report = None
        while time.monotonic() < end:
            try:
                report = stored_ranks(self.address)
            except ValueError:
                # No rank has told anything so far.
                time.sleep(0.5)
                continue
            if wanted(report):
                return report
            time.sleep(0.5)
        raise AssertionError(f"{report}\n{self.said.read_text()[-3000:]}")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def killed(kind: str, out: Path) -> str:
    with Running(kind, out) as job:
        job.until(lambda report: [row.steps > 8 for row in report.rows] == [True, True])
        os.kill(job.ranks[1].pid, signal.SIGKILL)
        report = job.until(lambda report: (1, "silent") in odd_of(report))
    assert report.rows[1].peak_allocated_bytes or not torch.cuda.is_available()
    assert report.rows[1].state == "silent"
    return next(odd.why for odd in report.odd if odd.cause == "silent")


def hung(kind: str, out: Path) -> str:
    with Running(kind, out) as job:
        report = job.until(lambda report: any(c == "waits_elsewhere" for _, c in odd_of(report)))
    late = [odd for odd in report.odd if odd.cause == "waits_elsewhere"]
    assert [odd.rank for odd in late] == [1], late
    assert "program.py" in late[0].place, late[0]
    return late[0].why


CHECKS: dict[str, Callable[[str, Path], str]] = {
    "ddp": equal,
    "fsdp2": equal,
    "fsdp2_offload": equal,
    "tensor_parallel": equal,
    "pipeline": pipeline,
    "uneven_batch": uneven_batch,
    "leak": leak,
    "other_library": other_library,
    "out_of_memory": out_of_memory,
    "killed": killed,
    "hung": hung,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("ranks-out"))
    parser.add_argument("kinds", nargs="*", default=list(CHECKS), metavar="KIND")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("two GPUs are needed; only killed and hung can be looked at without", flush=True)
    wrong = 0
    for kind in options.kinds:
        out = options.out.absolute() / kind
        out.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        try:
            said, word = CHECKS[kind](kind, out), "right"
        except Exception as error:
            said, word, wrong = f"{type(error).__name__}: {error}", "WRONG", wrong + 1
        print(f"{word} {kind} ({time.monotonic() - begin:.0f} s): {said}", flush=True)
    print(f"{len(options.kinds) - wrong} of {len(options.kinds)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
