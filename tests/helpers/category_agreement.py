# SPDX-License-Identifier: Apache-2.0
"""Holding neutracer's categories against those of PyTorch's own memory profiler."""

from __future__ import annotations

import json
import lzma
import pickle
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import neutracer
from neutracer.trace.timeline import Timeline

ENDING = ".truth.json.xz"


@dataclass
class Agreement:
    """Byte-times (bytes times microseconds) of one step.

    Attributes:
        named: What the profiler names.
        agreed: Of that, what we call the same.
        judged: Of what the profiler names, what we name too.
        total: All of the step.
        ours: All that we name.
        contradicted: What the profiler calls a parameter though it was made inside of a
            profiled step and freed in one: it follows the data, and takes the gradient
            buffer of cuDNN's RNNs and outputs of embeddings for parameters.
        pairs: By (the profiler's name, ours).
    """

    named: int = 0
    agreed: int = 0
    judged: int = 0
    total: int = 0
    ours: int = 0
    contradicted: int = 0
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def agreement(self) -> float:
        """The share of what the profiler names that we call the same."""
        return self.agreed / self.named

    @property
    def precision(self) -> float:
        """The share of what both name that we call the same; without what the profiler
        contradicts itself in."""
        return self.agreed / (self.judged - self.contradicted)


def read_truth(folder: Path, name: str) -> dict[str, Any]:
    """What the profiler said."""
    return json.loads(lzma.decompress((folder / (name + ENDING)).read_bytes()))


def agreement(
    folder: Path, name: str, step: int = -1, late: bool = False, bare: bool = False
) -> Agreement:
    """How the categories agree over one step of a model.

    Args:
        folder: Where the model's snapshot and truth are.
        name: The model.
        step: The number of the step among those that were profiled.
        late: Leave out of the trace what was before the profiled steps, as a ring that has
            wrapped does.
        bare: Leave out the stacks of the blocks from before, too, as where recording began then.
    """
    truth = read_truth(folder, name)
    timeline, skipped = _timeline(folder / f"{name}.snapshot.xz", truth, late, bare)
    rows = timeline.allocations
    codes = rows["category"]
    times = timeline.time_us
    by_event = {event: row for row, event in enumerate(rows["alloc_event"]) if event >= 0}
    by_address = {
        address: row
        for row, (address, event) in enumerate(
            zip(rows["address"], rows["alloc_event"], strict=True)
        )
        if event < 0
    }
    freed = rows["free_event"]
    begin, end = truth["steps"][step]
    found = Agreement()
    for number, address, size, spans in truth["rows"]:
        event = max(number - skipped, -1)
        row = by_event.get(event) if event >= 0 else by_address.get(address)
        if row is None:
            continue
        gone = times[freed[row]] if freed[row] >= 0 else end
        made = times[event] if event >= 0 else begin
        starts = [made, *(at for _, at in spans[1:])]
        stops = [*starts[1:], gone]
        for (code, _), start, stop in zip(spans, starts, stops, strict=True):
            weight = size * (min(stop, gone, end) - max(start, begin, made))
            if weight > 0:
                theirs = truth["categories"][code] if code is not None else "unknown"
                _count(found, theirs, str(codes[row]), weight)
                passing = event >= 0 and made >= truth["steps"][0][0]
                if passing and theirs == "parameter" and codes[row] not in ("unknown", theirs):
                    found.contradicted += weight
    return found


def _timeline(path: Path, truth: dict[str, Any], late: bool, bare: bool) -> tuple[Timeline, int]:
    """The timeline, and how many events were left out at its beginning."""
    if not late:
        return neutracer.load(path).timeline(), 0
    source = pickle.loads(lzma.decompress(path.read_bytes()))
    trace = source["device_traces"][0]
    kept = [entry for entry in trace if entry["time_us"] >= truth["steps"][0][0]]
    source["device_traces"][0] = kept
    made = {entry["addr"] for entry in kept if entry["action"] == "alloc"}
    for segment in source["segments"] if bare else ():
        for block in segment["blocks"]:
            if block["address"] not in made:
                block["frames"] = []
    return neutracer.load(pickle.dumps(source)).timeline(), len(trace) - len(kept)


def _count(found: Agreement, theirs: str, ours: str, weight: int) -> None:
    found.total += weight
    found.ours += weight * (ours != "unknown")
    found.pairs[theirs, ours] += weight
    if theirs != "unknown":
        found.named += weight
        found.agreed += weight * (theirs == ours)
        found.judged += weight * (ours != "unknown")
