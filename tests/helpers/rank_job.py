# SPDX-License-Identifier: Apache-2.0
"""Real jobs of several processes on this machine, over gloo and a TCPStore that outlives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

from forked import Imported

Found = TypeVar("Found")

PRELUDE = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import neutracer

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
watch = neutracer.watch_ranks(interval=0.3, directory=os.environ["OUT"])
dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.randn(64, 256)).sum().backward()
    optimizer.step()
"""


class RankJob:
    """The ranks of one program, and a store as a launcher's agent has it.

    Args:
        with_torch: What each is forked from.
        folder: Where their files go.
        program: What each runs after `PRELUDE`.
        world: How many ranks.
        guarded: Whether only the main module runs it: a process that a rank spawns does not.
    """

    def __init__(
        self,
        with_torch: Imported,
        folder: Path,
        program: str,
        world: int = 2,
        *,
        guarded: bool = False,
    ) -> None:
        from torch.distributed import TCPStore

        self.store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.address = f"127.0.0.1:{self.store.port}"
        self.out = folder / "out"
        script = folder / "program.py"
        text = PRELUDE + program
        if guarded:
            text = f"if __name__ == '__main__':\n{indent(text, '    ')}"
        script.write_text(text)
        self.said = folder / "said.txt"
        self.said.touch()
        self.ranks = [
            with_torch.start(script, self.said, **self._environment(rank, world))
            for rank in range(world)
        ]

    def _environment(self, rank: int, world: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OUT": str(self.out),
        }

    def until(self, look: Callable[[], Found | None], seconds: float = 120.0) -> Found:
        """What `look` gives once it gives something; it fails if a rank ends with an error."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found is not None:
                return found
            if any((rank.poll() or 0) > 0 for rank in self.ranks):
                break
            time.sleep(0.2)
        raise AssertionError(f"it has not come: {self.said.read_text()}")

    def __enter__(self) -> RankJob:
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in self.ranks:
            rank.end()
