# SPDX-License-Identifier: Apache-2.0
"""How much memory the commands take for files that are made to cost much."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_snapshots import BASE, FRAME, MIB, block, dumped, event, one_program, segment

#: Most bytes of memory per byte of the files that are read, beside what small ones take.
MOST = 20

# The most memory of a process counts what its parent had when it began it: this one has little.
_PEAK = """
import os, subprocess, sys
command = [sys.executable, "-m", "neutracer", *sys.argv[1:]]
with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
print(child.returncode, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def _held(stacks: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """A block of 1 MiB for each stack."""
    trace, blocks = [event("segment_alloc", BASE, len(stacks) * MIB, 1000)], []
    for number, frames in enumerate(stacks):
        address = BASE + number * MIB
        trace.append({**event("alloc", address, MIB, 1001 + number), "frames": frames})
        blocks.append({**block(address, MIB, "active_allocated", MIB), "frames": frames})
    return {"segments": [segment(BASE, blocks)], "device_traces": [trace]}


def deep_stacks() -> dict[str, Any]:
    """Stacks of 450 frames, each in an order of its own."""
    frames = [{"name": f"f{number}", "filename": "m.py", "line": number} for number in range(450)]
    order = random.Random(1)
    return _held([order.sample(frames, len(frames)) for _ in range(450)])


def many_lines() -> dict[str, Any]:
    """A line of code for each block."""
    return _held([[{**FRAME, "filename": f"x{line}.py", "line": line}] for line in range(5_000)])


def many_pools() -> dict[str, Any]:
    """A private pool for each segment."""
    segments = []
    for number in range(5_000):
        address = BASE + number * 2 * MIB
        one = segment(address, [block(address, 2 * MIB, "active_allocated", MIB)])
        segments.append({**one, "segment_pool_id": (1, number)})
    return {"segments": segments, "device_traces": [[]]}


@cache
def _file(make: Callable[[], Any]) -> bytes:
    return dumped(make())


def _peak_bytes(*words: str) -> int:
    """The most memory that a command had."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *words], capture_output=True, text=True, check=True
    )
    code, nbytes = map(int, done.stdout.split())
    assert code == 0, done.stderr
    return nbytes


@cache
def _measured(command: str, make: Callable[[], Any], folder: Path) -> tuple[int, int]:
    """The bytes that a command reads, and the most memory that it had."""
    file = folder / "hostile.pickle"
    file.write_bytes(_file(make))
    words = command.format(file, output=folder / "page.html").split()
    return command.count("{0}") * file.stat().st_size, _peak_bytes(*words)


@pytest.mark.parametrize("make", [deep_stacks, many_lines, many_pools])
@pytest.mark.parametrize("command", ["report --tree {0}", "view {0} -o {output}", "diff {0} {0}"])
def test_memory_is_a_small_multiple_of_the_file(
    make: Callable[[], Any], command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (few, least), (size, most) = (_measured(command, one, folder) for one in (one_program, make))
    assert most - least < MOST * (size - few)
