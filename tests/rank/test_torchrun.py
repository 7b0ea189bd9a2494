# SPDX-License-Identifier: Apache-2.0
"""`neutracer run` under a real torchrun, over gloo on the CPU, of which one rank ends early."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked import Imported

import neutracer

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

# What PyTorch allocates on the CPU is followed where it is built without CUDA.
needs_cpu = pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")

# Rank 1 ends in one of several ways; rank 0 is ended by torchrun for it, and has a handler of its
# own if asked. What it does is written down with its times.
PROGRAM = """
import glob, os, signal, sys, time
import torch
import torch.distributed as dist
from neutracer.rank.watch import current_watch
from neutracer.recording.long_history import OutOfMemory

how, is_handled = sys.argv[1], sys.argv[2] == "handled"
assert current_watch().written == 0
dist.init_process_group("gloo")
rank, out, watch = dist.get_rank(), os.environ["OUT"], current_watch()

def say(text):
    with open(f"{out}/said-{rank}.txt", "a") as file:
        file.write(f"{text} {time.time()}\\n")

def end(signum, frame):
    say("handled")
    sys.exit(7)

if is_handled and rank == 0:
    signal.signal(signal.SIGTERM, end)
while not watch.publish():
    time.sleep(0.1)
# Blocks are followed once something is told.
kept = [torch.zeros(3 << 20)]
dist.barrier()
if rank == 0 and how == "SIGTERM":
    with open(f"{out}/report.txt", "w") as file:
        file.write(str(watch.report()))
dist.barrier()
if rank == 0:
    while not os.path.exists(f"{out}/said-1.txt"):
        time.sleep(0.05)
    report = watch.report()
    say(f"first {report.first_oom.rank if report.first_oom else None}")
    time.sleep(600)
if how == "oom":
    # What PyTorch's observer tells where there is CUDA.
    watch._publisher.on_oom(OutOfMemory(0, 64 << 20, 0, 0, time.time_ns() // 1000))
    say("ends")
    # The peer sees it at its next interval; a busy machine may take long.
    for _ in range(1200):
        if glob.glob(f"{out}/run/*-rank0-*-peer.pickle") and os.path.exists(f"{out}/said-0.txt"):
            break
        time.sleep(0.05)
    raise RuntimeError("out of memory")
time.sleep(1)
say("ends")
os.kill(os.getpid(), getattr(signal, how))
time.sleep(600)
"""


@dataclass
class Ended:
    """What a job has left."""

    folder: Path
    said: str

    def exit_code(self, rank: int) -> int:
        """As torchrun saw it."""
        pattern = rf"rank\s*: {rank} .*\n\s*exitcode\s*: (-?\d+)"
        return int(re.search(pattern, self.said)[1])  # type: ignore[index]

    def files(self, rank: int, reason: str) -> list[Path]:
        return list((self.folder / "run").glob(f"*-rank{rank}-*-{reason}.pickle"))

    def told(self, rank: int) -> dict[str, float]:
        path = self.folder / f"said-{rank}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return {text.rpartition(" ")[0]: float(text.rpartition(" ")[2]) for text in lines}


def launched(with_torch: Imported, folder: Path, *how: str) -> Ended:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    command = ["--standalone", "--nproc-per-node=2"]
    command += ["-m", "neutracer", "run", "-o", str(folder / "run"), str(script), *how]
    launcher = "from torch.distributed.run import main\nmain()"
    environment = {"OUT": str(folder), "OMP_NUM_THREADS": "1"}
    done = with_torch.run(launcher, *command, cwd=folder, **environment)
    assert done.returncode == 1, done.stderr
    return Ended(folder, done.stderr)


@needs_cpu
def test_out_of_memory_has_the_peer_write_its_layout_and_so_does_sigterm(
    with_torch: Imported, tmp_path: Path
) -> None:
    job = launched(with_torch, tmp_path, "oom", "default")
    assert (job.exit_code(1), job.exit_code(0)) == (1, -15)
    # The peer knew of it before it was ended.
    assert "first 1" in job.told(0)
    peer, last = job.files(0, "peer"), job.files(0, "terminated")
    assert len(peer) == len(last) == 1
    assert sum(block.size for block in neutracer.load(last[0]).blocks) >= 12 << 20
    report = neutracer.ranks(tmp_path / "run")
    assert [(row.rank, row.state) for row in report.rows] == [(0, "terminated"), (1, "exit")]
    assert report.world_size == 2


@needs_cpu
def test_sigterm_ends_a_rank_after_its_layout_and_leaves_handlers_alone(
    with_torch: Imported, tmp_path: Path
) -> None:
    job = launched(with_torch, tmp_path, "SIGTERM", "handled")
    told = (tmp_path / "report.txt").read_text()
    assert "2 ranks" in told
    assert told.count("running") == 2
    assert (job.exit_code(1), job.exit_code(0)) == (-15, 7)
    assert "handled" in job.told(0)
    last = job.files(1, "terminated")
    assert len(last) == 1
    assert last[0].stat().st_mtime - job.told(1)["ends"] < 2.0
    assert not job.files(0, "terminated")


@needs_cpu
def test_killed_rank_leaves_its_peer_the_time_for_a_layout(
    with_torch: Imported, tmp_path: Path
) -> None:
    job = launched(with_torch, tmp_path, "SIGKILL", "default")
    assert (job.exit_code(1), job.exit_code(0)) == (-9, -15)
    assert len(job.files(0, "terminated")) == 1
    assert not job.files(1, "*")
