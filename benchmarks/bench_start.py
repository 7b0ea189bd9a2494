# SPDX-License-Identifier: Apache-2.0
"""What a command costs before it has anything to do: seconds of the processor, user and system.

Beside bare Python, in turns, so that what else the machine does meets all of them alike. Modules
are compiled once before, as those of an installed package are. "unpickled" is what one does
without neutracer: unpickle the file, and nothing else.

usage: python benchmarks/bench_start.py [TURNS, default 15 [SNAPSHOT.pickle, measured too]...]
"""

from __future__ import annotations

import lzma
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
UNPICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"


def cost(command: list[str], environment: dict[str, str]) -> float:
    """Seconds of the processor that a command takes."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {}
        for stem in ("cuda_graph_pool", "train_resnet_healthy", "frag_default"):
            files[stem] = folder / f"{stem}.pickle"
            files[stem].write_bytes(lzma.decompress((DATA / f"{stem}.pickle.xz").read_bytes()))
        files.update((path.stem, path) for path in map(Path, sys.argv[2:]))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": name}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        python = sys.executable
        neutracer = [python, "-m", "neutracer"]
        commands = {
            "bare Python": [python, "-c", "pass"],
            "import neutracer": [python, "-c", "import neutracer"],
            "neutracer --version": [*neutracer, "--version"],
        }
        for stem, path in files.items():
            commands[f"{stem}, unpickled"] = [python, "-c", UNPICKLE, str(path)]
            commands[f"{stem}, report"] = [*neutracer, "report", str(path)]
        for command in commands.values():
            cost(command, environment)
        rounds = [
            {what: cost(command, environment) for what, command in commands.items()}
            for _ in range(turns)
        ]
        bare = statistics.median(one["bare Python"] for one in rounds)
        for what in commands:
            times = [one[what] for one in rounds]
            middle = statistics.median(times)
            print(f"{what:34} {middle:.3f} s, at least {min(times):.3f}, {middle / bare:.1f} times")


if __name__ == "__main__":
    main()
