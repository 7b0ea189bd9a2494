# SPDX-License-Identifier: Apache-2.0
"""What a whole program's run left to the garbage collector."""

from __future__ import annotations

import os
from dataclasses import dataclass

from neutracer.diagnose.holds.cycles import cycle_finding, find_tensor_cycles
from neutracer.heap.cycles import TensorCycle, cycles_graph
from neutracer.heap.graph import ObjectGraph
from neutracer.process.cycles.watch import CycleWatch
from neutracer.process.recording.sidecar import rank_facts, rank_text
from neutracer.render.document import Block, Document, Paragraph
from neutracer.render.report import Report, ranked
from neutracer.units import format_bytes, format_count

__all__ = ["CycleRunReport", "cycle_run"]


@dataclass(frozen=True, kw_only=True, repr=False)
class CycleRunReport(Report):
    """The tensor cycles of a run.

    Attributes:
        program: What was run.
        exit_code: What it ended with.
        rank: Its rank, by torch.distributed or its launcher; None where there is none.
        world_size: How many ranks there are.
        cycles: By shape, most bytes first: those that the collector found during the run,
            and those that wait for it at the end.
        bytes: What they kept, all together.
        collections: Collections that were watched.
        watch_us: Time inside the watch.
        refused: Collections that could not be looked at.
    """

    schema = "neutracer.cycles/1"

    program: str
    exit_code: int
    rank: int | None
    world_size: int | None
    cycles: tuple[TensorCycle, ...]
    bytes: int
    collections: int
    watch_us: int
    refused: int

    @property
    def graph(self) -> ObjectGraph:
        """The cycles that keep most, side by side."""
        return cycles_graph(self.cycles)

    def document(self) -> Document:
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        facts = (
            *((rank,) if rank else ()),
            f"{format_count(self.collections, 'collection')} watched",
            f"{self.watch_us / 1000:,.1f} ms inside the watch",
            f"exit code {self.exit_code}",
        )
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (Paragraph("No reference cycle kept a tensor."),)
        else:
            kept = f"{format_bytes(self.bytes)} in {format_count(len(self.cycles), 'shape')}"
            blocks = (Paragraph(f"Kept until a collection: {kept} of cycles."), *blocks)
        if self.refused:
            text = f"{format_count(self.refused, 'collection')} could not be looked at."
            blocks = (*blocks, Paragraph(text))
        return Document(title=os.path.basename(self.program), facts=facts, blocks=blocks)


def cycle_run(
    watch: CycleWatch, program: str, exit_code: int, device: object, min_bytes: int
) -> CycleRunReport:
    """Sum up what a watch saw of a program, and what waits for the collector at its end.

    Args:
        watch: The watch under which it ran.
        program: What was run, for the title.
        exit_code: What it ended with.
        device: As for `find_tensor_cycles`.
        min_bytes: As for `find_tensor_cycles`.
    """
    shapes = {cycle.signature: cycle for cycle in watch.cycles}
    for cycle in find_tensor_cycles(device, min_bytes, include_alive=False):
        before = shapes.get(cycle.signature)
        shapes[cycle.signature] = cycle if before is None else before.merged(cycle)
    cycles = tuple(sorted(shapes.values(), key=lambda cycle: -cycle.bytes))
    status, facts = watch.status, rank_facts()
    return CycleRunReport(
        program=program,
        exit_code=exit_code,
        rank=facts["rank"],
        world_size=facts["world_size"],
        cycles=cycles,
        bytes=sum(cycle.bytes for cycle in cycles),
        collections=status["collections"],
        watch_us=round(status["spent_ns"] / 1000),
        refused=status["refused"],
        findings=ranked(cycle_finding(cycle) for cycle in cycles),
    )
