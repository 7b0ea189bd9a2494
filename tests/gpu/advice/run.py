# SPDX-License-Identifier: Apache-2.0
"""Follows neutracer's first advice: each program runs until memory runs out, then as advised.

usage: python run.py FOLDER [--dev|--held-out|--group held_out_3] [--jobs N] [NAME ...]
       python run.py --one NAME FOLDER [ADVICE.json]

Each run is a process of its own, below a cap that stands for a card of that size. The table at
the end says how far a program came, what the first advice was, and how far it came with that;
the exit code is 1 if the advice made one worse, or helped in fewer than nine of ten.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gpu.advice import held_out, held_out_2, held_out_3, library, plain  # noqa: E402
from gpu.advice.job import MIB, PROGRAMS, Job, Program  # noqa: E402

import neutracer  # noqa: E402

__all__ = ["held_out", "held_out_2", "held_out_3", "library", "plain"]

# A run that is given so many seconds does not end.
_SECONDS = 150

# The least part of the programs that the first advice must help.
_GOOD = 0.9


def run_one(name: str, folder: pathlib.Path, advice: dict[str, Any] | None) -> None:
    """Run a program in this process; writes how far it came, and what it ran out with."""
    import torch

    one = next(each for each in PROGRAMS if each.name == name)
    total = torch.cuda.get_device_properties(0).total_memory
    cap = one.cap * MIB
    if advice is not None and advice["action"] == "raise_limit":
        cap = int(min(advice["value"] * total, total)) if one.is_limit else cap
    torch.cuda.set_per_process_memory_fraction(min(cap / total, 1.0))
    torch.manual_seed(0)
    job = Job(advice)
    ended = "finished"
    watch = neutracer.watch_oom(folder / name, max_entries=400_000) if advice is None else None
    try:
        one.run(torch, job)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        ended = "out of memory"
    snapshot = watch.reports[0].snapshot if watch is not None and watch.reports else None
    found = {"done": job.done, "total": job.total, "ended": ended, "snapshot": snapshot}
    print(json.dumps(found))


def judged(one: Program, snapshot: str) -> dict[str, Any]:
    """The first verdict on a program's snapshot, with what is to be done about it."""
    capacity = None if one.is_limit else one.cap * MIB
    why = neutracer.explain(snapshot, capacity=capacity)
    first = why.verdicts[0]
    return {
        "kind": first.kind,
        "message": first.message,
        "remedy": None if first.remedy is None else asdict(first.remedy),
        "headroom_steps": first.headroom_steps,
        "finishes": first.finishes,
        "all": [verdict.kind for verdict in why.verdicts],
    }


@dataclass
class Row:
    """A program's line in the table."""

    one: Program
    before: dict[str, Any]
    advice: dict[str, Any]
    after: dict[str, Any]

    @property
    def said_nothing_helps(self) -> bool:
        """Whether the report says that no change of the program was found to help."""
        remedy = self.advice["remedy"]
        return remedy is None or remedy["action"] in ("larger_device", "shard")

    @property
    def is_good(self) -> bool:
        """Whether it finished or came twice as far, or was told that nothing can help."""
        if not self.one.helps:
            return self.said_nothing_helps
        return self.after["ended"] == "finished" or self.after["done"] >= 2 * max(
            self.before["done"], 1
        )

    @property
    def is_worse(self) -> bool:
        """Whether it came less far than without the advice."""
        return bool(self.after["done"] < self.before["done"])


def child(name: str, folder: pathlib.Path, advice: dict[str, Any] | None) -> dict[str, Any]:
    """A program's run in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(folder)]
    env = dict(os.environ)
    if advice is not None:
        path = folder / f"{name}.advice.json"
        path.write_text(json.dumps(advice))
        command.append(str(path))
        if advice["action"] == "settings":
            env["PYTORCH_CUDA_ALLOC_CONF"] = advice["setting"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {"done": 0, "total": 0, "ended": "no end", "snapshot": None}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = " | ".join(done.stderr.strip().splitlines()[-3:])
        return {"done": 0, "total": 0, "ended": f"failed: {said}", "snapshot": None}
    return dict(json.loads(lines[-1]))


def row_of(one: Program, folder: pathlib.Path) -> Row:
    """Run a program, take its advice, run it again."""
    nothing = {"kind": "", "remedy": None, "message": "", "all": []}
    before = child(one.name, folder, None)
    if before["snapshot"] is None:
        return Row(one, before, nothing, before)
    advice = judged(one, before["snapshot"])
    if advice["remedy"] is None:
        return Row(one, before, advice, before)
    return Row(one, before, advice, child(one.name, folder, advice["remedy"]))


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = []
    for row in rows:
        remedy = row.advice["remedy"] or {}
        place = (remedy.get("place") or {}).get("function", "")
        value = remedy.get("setting") or remedy.get("value") or ""
        said = " ".join(str(part) for part in (remedy.get("action", "-"), value, place) if part)
        mark = "worse" if row.is_worse else "good" if row.is_good else "no help"
        lines.append(
            f"{mark:8} {row.one.name:38} {row.before['done']:5}/{row.before['total']:<5} "
            f"{row.advice['kind']:14} {said:60} {row.after['done']:5} {row.after['ended'][:60]}"
        )
    good = sum(row.is_good and not row.is_worse for row in rows)
    lines.append(f"helped in {good} of {len(rows)}, worse in {sum(r.is_worse for r in rows)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", metavar="NAME")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--group", default="", help="only programs of this file, as held_out_3")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--record", action="store_true", help="run them as they are, no more")
    told = parser.parse_args()
    if told.one:
        advice = json.loads(pathlib.Path(told.names[0]).read_text()) if told.names else None
        run_one(told.one, told.folder, advice)
        return 0
    wanted = [
        one
        for one in PROGRAMS
        if (not told.names or one.name in told.names)
        and not (told.dev and one.held_out)
        and not (told.held_out and not one.held_out)
        and told.group in ("", one.group)
    ]
    told.folder.mkdir(parents=True, exist_ok=True)
    if told.record:
        with ThreadPoolExecutor(told.jobs) as pool:
            for one, found in zip(
                wanted,
                pool.map(lambda one: child(one.name, told.folder, None), wanted),
                strict=True,
            ):
                print(f"{one.name:40} {found['done']:5}/{found['total']:<5} {found['ended']}")
        return 0
    with ThreadPoolExecutor(told.jobs) as pool:
        rows = list(pool.map(lambda one: row_of(one, told.folder), wanted))
    print(table(rows))
    good = sum(row.is_good and not row.is_worse for row in rows)
    return int(good < _GOOD * len(rows) or any(row.is_worse for row in rows))


if __name__ == "__main__":
    sys.exit(main())
