# SPDX-License-Identifier: Apache-2.0
"""What does a training loop notice of `neutracer attach`: before, during, after?

A program of its own runs steps and writes down when each has ended; this one attaches to it and
detaches, round by round. Of a phase (idle, watched, metered, recorded) the median step counts,
and the step that one in ten is quicker than, of which other programs of the machine take less,
against the idle phases before and after it, each with the quartiles of the rounds; so does the
processor time that all its threads take for a step, which other programs do not lengthen. Of the
commands with which something begins or ends there is the longest step above the median, and
what all steps meanwhile lost. Last: how long the main thread is away at its safe point, in a
process of its own.

With a GPU the step is one of torch's. With a torch that is built for the CPU it trains there, and
only metrics are attached: that is all that there is for it. Without either a step is as much work
of Python and of C, and allocations of the tests' stand-in for torch, whose recorder costs nothing:
what PyTorch's own costs is told by `bench_live.py`.

    python benchmarks/bench_attach.py [--rounds 20] [--seconds 1]
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests" / "helpers"

STEPS = """
import struct, sys, time
file = open(sys.argv[1], "wb", buffering=0)
def go(step):
    while True:
        step()
        file.write(struct.pack("dd", time.monotonic(), time.process_time()))
"""

ON_GPU = """
import torch
from bench_hooks import step
work = step()
def one():
    work.run()
    work.wait()
one()
go(one)
"""

ON_CPU = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
)
optimizer = torch.optim.AdamW(model.parameters())
batch, target = torch.randn(128, 256), torch.randint(10, (128,))
def one():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch), target).backward()
    optimizer.step()
go(one)
"""

STAND_IN = """
import hashlib, sys
from collections import deque
from importlib.machinery import ModuleSpec
from fake_cuda import FakeTorch
fake = FakeTorch()
torch = sys.modules["torch"] = fake.module
torch.__spec__ = ModuleSpec("torch", None, origin="/none/torch/__init__.py")
# A ring that costs nothing, whether the history is on or off.
ring = deque(maxlen=1000)
fake.push = ring.append
zero = {name: {"all": {"current": 1 << 20, "peak": 1 << 20}} for name in (
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"
)}
torch.cuda.device_count = lambda: 1
torch.cuda.get_allocator_backend = lambda: "native"
torch.cuda.memory_stats_as_nested_dict = lambda device: {
    **zero, "num_alloc_retries": 0, "num_ooms": 0
}
data = bytes(4 << 20)
def one():
    for _ in range(40):
        fake.allocate(10)
        sum(range(3000))
    # As a step waits for its device: in C, without the GIL.
    hashlib.sha256(data).digest()
go(one)
"""

# The main thread sends itself what another process would send it.
SAFE_POINT = """
import os, statistics, sys, tempfile, time
import neutracer.run.attach as remote
def took(script):
    begin = time.perf_counter()
    sys.remote_exec(os.getpid(), script)
    for _ in range(2): pass
    return time.perf_counter() - begin
times = {"nothing": [], "script": []}
for _ in range(200):
    with tempfile.TemporaryDirectory() as folder:
        script = remote._written(folder, {})
        os.unlink(os.path.join(folder, "begin.py"))
        times["nothing"].append(took(os.devnull))
        times["script"].append(took(script))
        time.sleep(0.002)
nothing = statistics.median(times["nothing"])
away = sorted(one - nothing for one in times["script"])
print(away[100] * 1e6, away[180] * 1e6, nothing * 1e6)
"""


class Program:
    """The loop, and when each of its steps has ended."""

    def __init__(self, folder: Path, text: str) -> None:
        self._ends = folder / "ends"
        script = folder / "loop.py"
        script.write_text(STEPS + text)
        where = os.pathsep.join(map(str, (Path(__file__).parent, TESTS, *sys.path)))
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self._ends)],
            env={**os.environ, "PYTHONPATH": where},
        )
        while not self._ends.exists() or not self._ends.stat().st_size:
            time.sleep(0.1)
            assert self._process.poll() is None, "the program has ended"
        self.pid = self._process.pid

    def steps(self, begin: float, end: float) -> list[tuple[float, float]]:
        """The steps that began and ended in a span of time: how long, and its processor time."""
        ends = struct.iter_unpack("dd", self._ends.read_bytes())
        return [
            (after - before, worked - had)
            for (before, had), (after, worked) in itertools.pairwise(ends)
            if begin <= before and after <= end
        ]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def attach(pid: int, *words: object) -> tuple[float, float]:
    """Run the command; when it began and ended."""
    command = [sys.executable, "-m", "neutracer", "attach", str(pid), *map(str, words), "--json"]
    begin = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=tempfile.gettempdir())
    return begin, time.monotonic()


def refused() -> tuple[float, float]:
    """As `attach`, of a command that reaches nobody: what its own start takes of the machine."""
    nobody = ["attach", str(1 << 40), "--json"]
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "neutracer", *nobody], stderr=subprocess.DEVNULL)
    return begin, time.monotonic()


def one_round(
    program: Program, seconds: float, folder: Path, text: str
) -> dict[str, tuple[float, float]]:
    """The spans of time of one round, by what they are."""
    spans = {}

    def rest(name: str) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        spans[name] = (begin, time.monotonic())

    rest("idle 1")
    spans["command alone"] = refused()
    if text != ON_CPU:
        spans["begin watch"] = attach(program.pid, "--watch", "-o", folder)
        rest("watched")
        spans["end watch"] = attach(program.pid, "--detach")
    rest("idle 2")
    spans["begin metrics"] = attach(program.pid, "--metrics", 0)
    rest("metered")
    spans["end metrics"] = attach(program.pid, "--detach")
    rest("idle 3")
    if text != ON_CPU:
        spans["recorded"] = attach(program.pid, "--record", seconds, "-o", folder)
    rest("idle 4")
    return spans


def told_of(name: str, figures: list[float], decimals: int) -> None:
    low, middle, high = statistics.quantiles(figures, n=4)
    print(f"  {name:38}{middle:10.{decimals}f}{low:10.{decimals}f}{high:8.{decimals}f}")


def told(program: Program, rounds: list[dict[str, tuple[float, float]]]) -> None:
    steps = [{name: program.steps(*span) for name, span in one.items()} for one in rounds]
    times = [{name: [took for took, _ in one[name]] for name in one} for one in steps]
    medians = [{name: statistics.median(one[name]) for name in one} for one in times]
    quick = [{name: statistics.quantiles(one[name], n=10)[0] for name in one} for one in times]
    worked = [
        {name: statistics.fmean(processor for _, processor in one[name]) for name in one}
        for one in steps
    ]
    idle = statistics.median(one[name] for one in medians for name in one if "idle" in name)
    print(f"\n  a step of {idle * 1e3:.2f} ms; {len(rounds)} rounds\n")
    print(f"  {'against idle':38}{'median':>10}{'quartiles':>18}")
    phases = {
        "idle, a later time": ("idle 1", "idle 2", "idle 3"),
        "watched": ("idle 1", "watched", "idle 2"),
        "metered": ("idle 2", "metered", "idle 3"),
        "recorded": ("idle 3", "recorded", "idle 4"),
        "after all, to before": ("idle 1", "idle 4", "idle 1"),
    }
    kinds = (("", medians), (", quick steps", quick), (", processor time", worked))
    for name, (before, at, after) in phases.items():
        if at not in rounds[0]:
            continue
        for what, figures in kinds:
            ratios = [2 * one[at] / (one[before] + one[after]) for one in figures]
            told_of(name + what, ratios, 3)
    print(f"\n  {'ms more than idle':38}{'median':>10}{'quartiles':>18}")
    for name in ("command alone", "begin watch", "end watch", "begin metrics", "end metrics"):
        if name not in rounds[0]:
            continue
        more = [[step - idle for step in one[name]] for one in times]
        for what, figure in (("longest step", max), ("all together", sum)):
            told_of(f"{name}, {what}", [figure(one) * 1e3 for one in more], 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each phase")
    options = parser.parse_args()
    print(f"bench_attach: Python {platform.python_version()}, {os.cpu_count()} cores")
    if not hasattr(sys, "remote_exec"):
        print("  needs Python 3.14 or later")
        return
    try:
        import torch

        built = ON_CPU if torch.version.cuda is None else STAND_IN
        text = ON_GPU if torch.cuda.is_available() else built
    except ImportError:
        text = STAND_IN
    with tempfile.TemporaryDirectory() as name:
        program = Program(Path(name), text)
        try:
            time.sleep(options.seconds)
            rounds = [
                one_round(program, options.seconds, Path(name), text) for _ in range(options.rounds)
            ]
            told(program, rounds)
        finally:
            program.stop()
    done = subprocess.run([sys.executable, "-c", SAFE_POINT], stdout=subprocess.PIPE, check=True)
    median, most, sent = map(float, done.stdout.split())
    print(f"\n  away at a safe point: {median:.0f} us at the median, {most:.0f} in one of ten")
    print(f"  (to send oneself nothing takes {sent:.0f} us)")


if __name__ == "__main__":
    main()
