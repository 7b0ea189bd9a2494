# SPDX-License-Identifier: Apache-2.0
"""Changes of a program that save memory, as other sizes of its requests."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from neutracer.trace.categories import CATEGORIES
from neutracer.trace.timeline import Timeline

__all__ = ["Wanted", "changes_of"]

# What is smaller than this counts to nobody.
_SMALL = 1 << 20

# A tensor of logits is at least this share of the peak.
_LOGITS_SHARE = 0.05

# Activations of one size are of repeated blocks from this share of all on.
_REPEATED = 0.03

# Steps that are looked at one by one.
_MOST_STEPS = 64

# How many pieces a loss over logits is computed in.
_PIECES = 8


@dataclass(frozen=True)
class Wanted:
    """A change.

    Attributes:
        kind: A stable word for programs.
        message: What is done.
        advice: How.
        sizes: By event of the trace the bytes that each request asks for.
        rows: How many allocations it is about.
    """

    kind: str
    message: str
    advice: str
    sizes: array[int]
    rows: int


class _Rows:
    """The allocations of a timeline, with what each was for."""

    def __init__(self, timeline: Timeline) -> None:
        table = timeline.allocations
        self.events: list[int] = [int(n or 0) for n in table["alloc_event"]]
        self.ends: list[int] = [int(n or 0) for n in table["free_event"]]
        self.asked: list[int] = [int(n or 0) for n in table["requested_size"]]
        self.codes = timeline.categories.codes
        self.peak = timeline.peak("allocated")
        self.peaks = _peaks(timeline)
        self.sizes = array("Q", bytes(8 * len(timeline)))
        for event, asked in zip(self.events, self.asked, strict=True):
            if event >= 0:
                self.sizes[event] = asked

    def of(self, *names: str) -> list[int]:
        """The rows of categories that the trace has the request of."""
        wanted = {CATEGORIES.index(name) for name in names}
        return [
            row for row, code in enumerate(self.codes) if code in wanted and self.events[row] >= 0
        ]

    def at_peak(self, rows: list[int], event: int | None = None) -> list[int]:
        """Those that are alive at the peak, or after another event."""
        event = self.peak.event if event is None else event
        return [r for r in rows if self.events[r] <= event and not 0 <= self.ends[r] <= event]

    def scaled(self, rows: list[int], up: int, down: int) -> array[int]:
        """Sizes with those of some rows times `up` through `down`."""
        sizes = self.sizes[:]
        for row in rows:
            event = self.events[row]
            sizes[event] = max(sizes[event] * up // down, 1)
        return sizes

    def bytes(self, rows: list[int]) -> int:
        """What rows asked for at the peak."""
        return sum(self.asked[row] for row in self.at_peak(rows))


def _peaks(timeline: Timeline) -> list[int]:
    """The event of each step at which the most is allocated; none of very many steps."""
    steps, allocated = timeline.steps, timeline.allocated
    if len(steps) > _MOST_STEPS:
        return []
    spans = [range(one.first, min(one.end, len(timeline))) for one in steps]
    spans.append(range(spans[-1].stop if spans else 0, len(timeline)))
    return [max(span, key=lambda event: allocated[event]) for span in spans if span]


def changes_of(timeline: Timeline, ranks: int) -> Iterator[Wanted]:
    """The changes that are about enough bytes.

    Args:
        timeline: The program's trace.
        ranks: Over how many ranks something is sharded.
    """
    rows = _Rows(timeline)
    yield from _sharded(rows, ranks)
    yield from _narrower(rows)
    yield from _recomputed(rows)
    yield from _logits(rows)


def _sharded(rows: _Rows, ranks: int) -> Iterator[Wanted]:
    stages = (
        ("optimizer_state",),
        ("optimizer_state", "gradient"),
        ("optimizer_state", "gradient", "parameter"),
    )
    tools = (
        "torch.distributed.optim.ZeroRedundancyOptimizer, or DeepSpeed's ZeRO stage 1",
        "FullyShardedDataParallel with SHARD_GRAD_OP, or ZeRO stage 2",
        "fully_shard (FSDP2), or ZeRO stage 3; what is gathered at a time comes on top",
    )
    for stage, (names, tool) in enumerate(zip(stages, tools, strict=True), 1):
        chosen = rows.of(*names)
        if rows.bytes(rows.of(names[-1])) < _SMALL:
            continue
        words = ", ".join(f"{name.replace('_', ' ')}s" for name in names)
        message = f"{words} sharded over {ranks} ranks (ZeRO stage {stage})"
        yield Wanted(f"zero_{stage}", message, tool, rows.scaled(chosen, 1, ranks), len(chosen))


def _narrower(rows: _Rows) -> Iterator[Wanted]:
    states = rows.of("optimizer_state")
    if rows.bytes(states) >= _SMALL:
        text = "an 8-bit optimizer in place of one with states of 32 bits"
        tool = "bitsandbytes.optim.AdamW8bit, or torchao.optim.AdamW8bit"
        yield Wanted("8_bit_optimizer", text, tool, rows.scaled(states, 1, 4), len(states))
    weights = rows.of("parameter", "gradient")
    if rows.bytes(weights) >= _SMALL:
        text = "parameters and gradients in bf16, if they are in fp32"
        tool = "model.to(torch.bfloat16), and an optimizer that keeps fp32 where it needs it"
        yield Wanted("bf16", text, tool, rows.scaled(weights, 1, 2), len(weights))


def _recomputed(rows: _Rows) -> Iterator[Wanted]:
    """Checkpointing: of each block its output stays, of the last block everything."""
    activations = rows.of("activation")
    dropped, blocks = set[int](), 0
    for event in rows.peaks:
        found, count = _repeated(rows, rows.at_peak(activations, event))
        dropped.update(found)
        blocks = max(blocks, count)
    if rows.bytes(sorted(dropped)) < _SMALL:
        return
    text = f"activation checkpointing of {blocks} blocks"
    tool = (
        "torch.utils.checkpoint around each block (transformers: gradient_checkpointing_enable())"
    )
    yield Wanted("checkpointing", text, tool, rows.scaled(sorted(dropped), 0, 1), len(dropped))


def _repeated(rows: _Rows, kept: list[int]) -> tuple[list[int], int]:
    """What checkpointing would not keep of some activations, and how many blocks there are."""
    total = sum(rows.asked[row] for row in kept)
    count = Counter(rows.asked[row] for row in kept)
    repeated = {size: n for size, n in count.items() if n >= 3 and size * n >= total * _REPEATED}
    if not repeated:
        return [], 0
    blocks = min(repeated.values())
    # A block gives its output once, and that is the smallest of what it gives once.
    output = min(size for size, n in repeated.items() if n == blocks)
    seen: Counter[int] = Counter()
    dropped = []
    for row in kept:
        size = rows.asked[row]
        if size in repeated:
            block, place = divmod(seen[size] * blocks, repeated[size])
            seen[size] += 1
            if block < blocks - 1 and (size != output or place):
                dropped.append(row)
    return dropped, blocks


def _logits(rows: _Rows) -> Iterator[Wanted]:
    """The loss over logits in pieces: the largest tensors, if several are as large."""
    kinds = rows.of("activation", "temporary", "autograd_detail", "gradient", "unknown")
    alive = rows.at_peak(kinds)
    largest = max((rows.asked[row] for row in alive), default=0)
    as_large = [row for row in alive if largest <= 2 * rows.asked[row]]
    if largest < rows.peak.bytes * _LOGITS_SHARE or len(as_large) > 6:
        return
    chosen = [row for row in kinds if largest <= 2 * rows.asked[row]]
    text = f"the largest tensors (logits, most likely) in {_PIECES} pieces"
    tool = "compute head and cross-entropy a piece of the tokens at a time"
    yield Wanted("logits", text, tool, rows.scaled(chosen, 1, _PIECES), len(chosen))
