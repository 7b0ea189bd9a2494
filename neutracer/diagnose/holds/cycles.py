# SPDX-License-Identifier: Apache-2.0
"""Which reference cycles hold tensors now, and how much only a collection would free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from neutracer._native import core
from neutracer.heap.cycles import (
    TensorCycle,
    cycle_from_core,
    cycles_graph,
    device_filter,
    least_bytes,
    tensor_text,
)
from neutracer.heap.graph import ObjectGraph
from neutracer.process.cycles.allocation_sites import allocations_of_live
from neutracer.process.cycles.watch import prepare_heap
from neutracer.render.document import Block, Document, Note, Paragraph, Severity
from neutracer.render.report import Finding, Report, ranked
from neutracer.units import format_bytes, format_count

__all__ = ["TensorCyclesReport", "cycle_finding", "find_tensor_cycles", "garbage_bytes"]

# The most shapes that are described; further ones are only counted.
_MOST_SHAPES = 200

_NONE_FOUND = (
    "No reference cycle holds a tensor of the devices in question. Without device= these "
    "are the accelerators."
)

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, repr=False)
class TensorCyclesReport(Report, Sequence[TensorCycle]):
    """The cycles that hold tensors: a sequence of `TensorCycle`, most bytes first.

    Attributes:
        cycles: The cycles by shape, garbage and alive together, most bytes first.
        garbage_bytes: Tensor bytes that only a collection will free, including those outside
            of cycles that wait for a finalizer.
        garbage_objects: Objects that a collection would find unreachable now.
        objects: Objects that were looked at.
        left_out_objects: Of these, the modules, their namespaces and the types, which connect
            nearly everything: cycles through them are not listed.
        other_cycles: Cycles that hold no tensor of the devices in question.
        untold_shapes: Further shapes that keep tensors; these were only counted.
    """

    schema = "neutracer.tensor_cycles/1"

    cycles: tuple[TensorCycle, ...]
    garbage_bytes: int
    garbage_objects: int
    objects: int
    left_out_objects: int
    other_cycles: int
    untold_shapes: int

    @overload
    def __getitem__(self, index: int) -> TensorCycle: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorCycle]: ...
    def __getitem__(self, index: int | slice) -> TensorCycle | Sequence[TensorCycle]:
        return self.cycles[index]

    def __len__(self) -> int:
        return len(self.cycles)

    def __iter__(self) -> Iterator[TensorCycle]:
        return iter(self.cycles)

    @property
    def graph(self) -> ObjectGraph:
        """The cycles that keep most, side by side."""
        return cycles_graph(self.cycles)

    def document(self) -> Document:
        facts = [
            f"{format_count(self.objects, 'object')} looked at",
            f"{format_bytes(self.garbage_bytes)} that only a collection frees",
        ]
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (Paragraph(_NONE_FOUND),)
        return Document(
            title="Reference cycles that hold tensors",
            facts=tuple(facts),
            blocks=(*blocks, *self._left_out()),
            more="the cycles one by one: .cycles, their pictures: .cycles[0].graph",
        )

    def _left_out(self) -> tuple[Paragraph, ...]:
        sentences = []
        if self.left_out_objects:
            sentences.append(
                f"Left out: {self.left_out_objects:,} modules, their namespaces and types, "
                "which connect most of a program."
            )
        if self.other_cycles:
            sentences.append(f"{format_count(self.other_cycles, 'other cycle')} without them.")
        if self.untold_shapes:
            sentences.append(f"{format_count(self.untold_shapes, 'shape')} more were only counted.")
        return (Paragraph(" ".join(sentences)),) if sentences else ()


def find_tensor_cycles(
    device: object = None, min_bytes: int = 0, include_alive: bool = True
) -> TensorCyclesReport:
    """Look now for reference cycles that hold tensors.

    The whole heap is walked in C, with the GIL held: some 0.2 microseconds an object.
    Nothing is collected and nothing is kept alive. A cycle is either garbage, which waits for
    the collector, or alive: the program still uses it, and will leave it to the collector
    when it lets go. It skips objects that `gc.freeze` set aside, as a collection does.

    Args:
        device: Whose tensors count: None for those of every accelerator, "cpu", "cuda",
            "cuda:1", or "all".
        min_bytes: Cycles that keep less are ignored.
        include_alive: Look for living cycles too.

    Returns:
        The cycles by shape, most bytes first, as a sequence and as a report.

    Raises:
        UnavailableError: torch is not imported, or a memory layout is not known.
        ValueError: There is no such device, or min_bytes is negative.

    Example:
        >>> import torch
        >>> ring = [torch.zeros(1024)]
        >>> ring.append(ring)
        >>> found = find_tensor_cycles(device="cpu")
        >>> [(cycle.chain, cycle.garbage) for cycle in found if cycle.objects == 1][0]
        ('list of 2[1] → list of 2', False)
    """
    min_bytes = least_bytes(min_bytes)
    device_type, index = device_filter(device)
    prepare_heap()
    found = core.find_cycles(device_type, index, min_bytes, _MOST_SHAPES, include_alive)
    parts = [(found["garbage"], True), (found["alive"], False)]
    told = [(part, garbage) for part, garbage in parts if part is not None]
    cycles = _cycles(told)
    garbage = found["garbage"]
    return TensorCyclesReport(
        cycles=tuple(cycles),
        garbage_bytes=0 if garbage is None else garbage["bytes"] + garbage["loose_bytes"],
        garbage_objects=found["dead"],
        objects=found["objects"],
        left_out_objects=found["cut"],
        other_cycles=sum(part["others"] for part, _ in told),
        untold_shapes=sum(part["left_out"] for part, _ in told),
        findings=ranked(cycle_finding(cycle) for cycle in cycles),
    )


def _cycles(parts: Sequence[tuple[dict[str, Any], bool]]) -> list[TensorCycle]:
    """The core's descriptions, with whether they are garbage, as cycles: most bytes first."""
    allocations = allocations_of_live(
        row[6][5]
        for part, _ in parts
        for plain in part["cycles"]
        for row in plain["nodes"]
        if row[6] is not None
    )
    cycles = (
        cycle_from_core(plain, garbage=garbage, allocations=allocations)
        for part, garbage in parts
        for plain in part["cycles"]
    )
    return sorted(cycles, key=lambda cycle: -cycle.bytes)


def garbage_bytes(device: object = None) -> int:
    """The tensor bytes that nothing but a collection would free.

    Args:
        device: As for `find_tensor_cycles`.

    Returns:
        Bytes of the storages of tensors that are unreachable now, each storage once.

    Raises:
        UnavailableError: torch is not imported, or a memory layout is not known.
        ValueError: There is no such device.

    Example:
        >>> import sys
        >>> garbage_bytes("cpu") if "torch" in sys.modules else 0   # doctest: +SKIP
        0
    """
    device_type, index = device_filter(device)
    prepare_heap()
    found = core.find_cycles(device_type, index, 0, 0, False)["garbage"]
    return 0 if found is None else int(found["bytes"] + found["loose_bytes"])


def cycle_finding(cycle: TensorCycle) -> Finding:
    """A cycle as a finding: what it keeps, its chain, the reference to break."""
    where = cycle.place
    evidence = [Note(cycle.chain), *(Note(f"keeps {tensor_text(t)}") for t in cycle.tensors[:3])]
    return Finding(
        kind="cycle_garbage" if cycle.garbage else "cycle_alive",
        severity=_severity(cycle),
        bytes=cycle.bytes,
        message=cycle.headline,
        evidence=tuple(evidence),
        advice=(Note(f"break it: {cycle.advice}", place=where),),
    )


def _severity(cycle: TensorCycle) -> Severity:
    """By bytes: what waits for the collector is worse than what will."""
    if not cycle.garbage:
        return Severity.MODERATE if cycle.bytes >= _GIB else Severity.INFO
    if cycle.bytes >= _GIB:
        return Severity.SEVERE
    return Severity.SERIOUS if cycle.bytes >= 64 << 20 else Severity.MODERATE
