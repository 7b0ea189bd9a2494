# SPDX-License-Identifier: Apache-2.0
"""What PyTorch said of random programs that ran for real, and the model held against it.

`tests/gpu/run_programs.py` writes the runs: a snapshot and a JSON of figures each.
"""

from __future__ import annotations

import json
import lzma
import pathlib
import re
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import neutracer
from neutracer._native import core
from neutracer.trace.snapshot import Snapshot

#: The figures compared: the model's name, and PyTorch's.
FIGURES = (
    ("peak", "reserved_bytes.all.peak"),
    ("final", "reserved_bytes.all.current"),
    ("segments", "segment.all.current"),
    ("device_allocs", "num_device_alloc"),
    ("device_frees", "num_device_free"),
    ("ooms", "num_ooms"),
    ("retries", "num_alloc_retries"),
)
COUNTED = ("device_frees", "ooms", "retries")


@dataclass(frozen=True)
class Run:
    """One program that ran under one setting."""

    path: pathlib.Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads(self.path.with_name(self.stem + ".json").read_text()))

    @property
    def stem(self) -> str:
        return self.path.name.partition(".")[0]

    @cached_property
    def snapshot(self) -> neutracer.Snapshot:
        return neutracer.load(lzma.decompress(self.path.read_bytes()))

    @cached_property
    def program(self) -> Any:
        return self.snapshot.timeline().program

    @property
    def conf(self) -> str:
        return str(self.meta["conf"])

    @property
    def limit(self) -> int:
        """Bytes that the process was allowed; 0 where PyTorch set no limit."""
        share = re.search(r"per_process_memory_fraction:([0-9.]+)", self.conf)
        # PyTorch reads it when the process begins, not when settings change.
        if self.meta["limit"] or not share or self.conf != self.meta["first_conf"]:
            return int(self.meta["limit"])
        return int(float(share[1]) * self.meta["device_total"])

    @property
    def options(self) -> dict[str, int]:
        """The device and the limit that the program ran with."""
        total, free = self.meta["device_total"], self.meta["device_free_at_start"]
        other = total - free if self.meta["sort"] == "device" else 0
        return {"limit": self.limit, "device_total": total, "device_other": other}

    @property
    def truth(self) -> dict[str, int]:
        """PyTorch's figures since the recording began."""
        figures = {name: int(self.meta["stats"].get(key, 0)) for name, key in FIGURES}
        for name, key in FIGURES:
            if name in COUNTED:
                figures[name] -= int(self.meta["start"].get(key, 0))
        return figures

    @property
    def compared(self) -> list[str]:
        """The figures that a trace can tell: of what came before it, it has no history."""
        names = [name for name, _ in FIGURES]
        if self.meta["sort"] == "late":
            names = [name for name in names if name not in ("peak", "device_allocs")]
        return names


def noted(run: Run, operations: list[tuple[Any, ...]]) -> Run | None:
    """The same run with its calls of empty_cache() noted where its program made them.

    None where the trace has what the program's own requests and frees are not all of.
    """
    actions = [str(action) for action in run.snapshot.timeline().events["action"]]
    counted = [i for i, each in enumerate(actions) if each in ("alloc", "free_requested", "oom")]
    alive: set[int] = set()
    is_on, passed, calls = False, 0, array("i")
    for name, *values in operations:
        is_on |= name == "record"
        if name == "empty" and is_on and passed:
            event = counted[passed - 1]
            event += actions[event : event + 2] == ["free_requested", "free_completed"]
            if not calls or event > calls[-1]:
                calls.append(event)
        if name not in ("alloc", "free") or (name == "free" and values[0] not in alive):
            continue
        wanted = ("alloc", "oom") if name == "alloc" else ("free_requested",)
        happened = actions[counted[passed]] if is_on and passed < len(counted) else wanted[0]
        if happened not in wanted:
            return None
        (alive.add if happened == "alloc" else alive.discard)(values[0])
        passed += is_on
    if passed != len(counted):
        return None
    native = core.load(run.snapshot.to_bytes(), 1 << 40, None)
    native.note_calls(0, calls)
    made = Run(run.path)
    made.__dict__["snapshot"] = Snapshot(native)
    return made


def flat(figures: dict[str, Any]) -> dict[str, Any]:
    """The core's figures under the names of FIGURES."""
    both = {"peak": figures["peak"]["reserved"], "final": figures["final"]["reserved"]}
    return both | {name: figures[name] for name, _ in FIGURES[2:]}


def differences(run: Run) -> list[str]:
    """Where replaying a run under its own settings is not what happened; empty: nowhere."""
    fidelity, figures = run.program.check(**run.options)
    modelled = flat(figures)
    found = [
        f"{name}: {modelled[name]} instead of {run.truth[name]}"
        for name in run.compared
        if modelled[name] != run.truth[name]
    ]
    if not fidelity["is_same"]:
        found.append(f"event {fidelity['first_event']}: {fidelity['modelled']}")
        found[-1] += f" instead of {fidelity['recorded']}"
    return found if fidelity["is_end_same"] else [*found, "another end"]


def verdict(source: Run, target: Run) -> tuple[str, int, str]:
    """How the figures predicted from `source` for the settings of `target` hold.

    Returns:
        "exact", "inside" their ranges or "outside"; the bits of the causes of ranges; and
        what does not hold, in words.
    """
    program = source.program
    facts = program.facts()
    # As `what_if` does: of programs that are seen to empty the cache or to have pools.
    silent = 0
    if facts["calls"] or facts["pools"] > 1:
        silent = 2 if program.find_silence() else 1
    base, low, high, causes, _ = program.find_range(target.conf, silent=silent, **target.options)
    base, low, high = flat(base), flat(low), flat(high)
    if all(base[name] == target.truth[name] for name in target.compared):
        return "exact", causes, ""
    wrong = [
        f"{name}: {target.truth[name]} is not in {low[name]} .. {high[name]}"
        for name in target.compared
        if target.truth[name] < low[name]
        or (high[name] is not None and target.truth[name] > high[name])
    ]
    return ("outside" if wrong else "inside"), causes, "; ".join(wrong)
