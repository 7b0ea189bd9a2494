# SPDX-License-Identifier: Apache-2.0
"""`savings`: bytes at the peak that checkpointing, offloading or smaller types would save."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from neutracer.arguments import whole_number
from neutracer.question import first_findings, opened
from neutracer.render.document import (
    Block,
    Document,
    Figure,
    KeyValues,
    Note,
    Severity,
    Table,
)
from neutracer.render.report import Finding, Report
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_share
from neutracer.whatif.drag import freed_at_last_use
from neutracer.whatif.settings import refuse_others

# ---- Changes -----------------------------------------------------------------------------

# The least bytes at the peak worth a change.
_SMALL = 1 << 20

# The least share of the peak that a tensor of logits has.
_LOGITS_SHARE = 0.05

# The least share of all activations that those of one size have in repeated blocks.
_REPEATED = 0.03

# With more steps, only the whole trace's peak is examined.
_MOST_STEPS = 64

# The chunks of a loss over logits.
_PIECES = 8

# Lines whose blocks are freed at their last use, those with the most bytes at the peak.
_MOST_LINES = 8

# The best change is the report's first finding from this share of the peak on.
_WORTH = 0.02


@dataclass(frozen=True)
class Wanted:
    """A change: the first three fields are those of `Saving`; `sizes` are the requested bytes by
    event of the trace, `rows` is the number of affected allocations, and `ends` are the events
    after which blocks are freed, as `Program.edit` takes them."""

    kind: str
    message: str
    advice: str
    sizes: array[int]
    rows: int
    ends: array[int] | None = None


class _Rows:
    """The allocations of a timeline by category."""

    def __init__(self, timeline: Timeline) -> None:
        table = timeline.allocations
        self.events: list[int] = table.codes("alloc_event").tolist()
        self.ends: list[int] = table.codes("free_event").tolist()
        self.asked: list[int] = table.codes("requested_size").tolist()
        self.stacks = table.codes("stack")
        self.begins = [begin for begin, _ in timeline.passes.backward]
        self.codes = timeline.categories.codes
        self.peak = timeline.peak("allocated")
        self.peaks = _peaks(timeline)
        at, lives = self.peak.event, zip(self.events, self.ends, strict=True)
        self._at_peak = [
            row for row, (made, end) in enumerate(lives) if made <= at and not 0 <= end <= at
        ]
        self.sizes = array("Q", bytes(8 * len(timeline)))
        for event, asked in zip(self.events, self.asked, strict=True):
            if event >= 0:
                self.sizes[event] = asked

    def of(self, *names: str) -> list[int]:
        """The rows of some categories that were allocated within the trace."""
        return self._of(names, range(len(self.codes)))

    def at_peak(self, *names: str) -> list[int]:
        """Those of them that are alive at the peak."""
        return self._of(names, self._at_peak)

    def _of(self, names: tuple[str, ...], rows: Iterable[int]) -> list[int]:
        wanted = {CATEGORIES.index(name) for name in names}
        codes, events = self.codes, self.events
        return [row for row in rows if codes[row] in wanted and events[row] >= 0]

    @cached_property
    def passing(self) -> frozenset[int]:
        """The stacks at the peak that made activations which all ended before a backward pass, so
        that no graph keeps them."""
        ended, kept = set[int](), set[int]()
        wanted = {self.stacks[row] for row in self.at_peak("activation")}
        for made, end, stack in zip(self.events, self.ends, self.stacks, strict=True):
            if stack in wanted and end >= 0 and made < self.begins[-1]:
                ended.add(stack)
                if bisect_right(self.begins, made) < bisect_right(self.begins, end):
                    kept.add(stack)
        return frozenset(ended - kept)

    def saved(self, rows: list[int]) -> list[int]:
        """Those of some rows that a graph may keep."""
        if not self.begins or not self.passing:
            return rows
        return [row for row in rows if self.stacks[row] not in self.passing]

    def at(self, moments: list[int], rows: list[int]) -> list[list[int]]:
        """The rows alive after each of some events, which rise."""
        alive: list[list[int]] = [[] for _ in moments]
        for row in rows:
            end = self.ends[row]
            first = bisect_left(moments, self.events[row])
            last = bisect_left(moments, end) if end >= 0 else len(moments)
            for number in range(first, last):
                alive[number].append(row)
        return alive

    def scaled(self, rows: list[int], up: int, down: int) -> array[int]:
        """The sizes, those of some rows multiplied by `up` / `down`."""
        sizes = self.sizes[:]
        for row in rows:
            event = self.events[row]
            sizes[event] = max(sizes[event] * up // down, 1)
        return sizes

    def bytes(self, *names: str) -> int:
        """The bytes requested by rows of some categories that are alive at the peak."""
        return sum(self.asked[row] for row in self.at_peak(*names))


def _peaks(timeline: Timeline) -> list[int]:
    """The peak event of each step; none if there are too many steps."""
    steps, allocated = timeline.steps, timeline.allocated
    if len(steps) > _MOST_STEPS:
        return []
    spans = [range(one.first, min(one.end, len(timeline))) for one in steps]
    spans.append(range(spans[-1].stop if spans else 0, len(timeline)))
    values = [allocated[span.start : span.stop].tolist() for span in spans if span]
    firsts = [span.start for span in spans if span]
    return [first + one.index(max(one)) for first, one in zip(firsts, values, strict=True)]


def changes_of(snap: Snapshot, timeline: Timeline, ranks: int) -> Iterator[Wanted]:
    """The changes worth trying on a program, sharded over `ranks`."""
    rows = _Rows(timeline)
    yield from _freed_earlier(snap, timeline, rows)
    yield from _sharded(rows, ranks)
    yield from _narrower(rows)
    yield from _recomputed(rows)
    yield from _logits(rows)


def _freed_earlier(snap: Snapshot, timeline: Timeline, rows: _Rows) -> Iterator[Wanted]:
    for line, ends in islice(freed_at_last_use(snap, timeline), _MOST_LINES):
        text = f"what {line.place} makes, freed at its last use"
        yield Wanted("last_use", text, line.advice, rows.sizes, line.count, ends)


def _sharded(rows: _Rows, ranks: int) -> Iterator[Wanted]:
    stages = (
        ("optimizer_state",),
        ("optimizer_state", "gradient"),
        ("optimizer_state", "gradient", "parameter"),
    )
    tools = (
        "torch.distributed.optim.ZeroRedundancyOptimizer, or DeepSpeed's ZeRO stage 1",
        "FullyShardedDataParallel with SHARD_GRAD_OP, or ZeRO stage 2",
        "fully_shard (FSDP2), or ZeRO stage 3; gathered parameters come on top",
    )
    for stage, (names, tool) in enumerate(zip(stages, tools, strict=True), 1):
        if rows.bytes(names[-1]) < _SMALL:
            continue
        chosen = rows.of(*names)
        nouns = ", ".join(f"{name.replace('_', ' ')}s" for name in names)
        message = f"{nouns} sharded over {ranks} ranks (ZeRO stage {stage})"
        yield Wanted(f"zero_{stage}", message, tool, rows.scaled(chosen, 1, ranks), len(chosen))


def _narrower(rows: _Rows) -> Iterator[Wanted]:
    if rows.bytes("optimizer_state") >= _SMALL:
        states = rows.of("optimizer_state")
        text = "an 8-bit optimizer in place of one with 32-bit state"
        tool = "bitsandbytes.optim.AdamW8bit, or torchao.optim.AdamW8bit"
        yield Wanted("8_bit_optimizer", text, tool, rows.scaled(states, 1, 4), len(states))
    if rows.bytes("parameter", "gradient") >= _SMALL:
        weights = rows.of("parameter", "gradient")
        text = "parameters and gradients in bf16, if they are in fp32"
        tool = "model.to(torch.bfloat16), and an optimizer that keeps fp32 copies"
        yield Wanted("bf16", text, tool, rows.scaled(weights, 1, 2), len(weights))


def _recomputed(rows: _Rows) -> Iterator[Wanted]:
    """Checkpointing: each block keeps its output, the last block everything."""
    activations = rows.saved(rows.of("activation"))
    dropped, blocks = set[int](), 0
    for alive in rows.at(rows.peaks, activations):
        found, count = _repeated(rows, alive)
        dropped.update(found)
        blocks = max(blocks, count)
    if sum(rows.asked[row] for row in rows.at_peak("activation") if row in dropped) < _SMALL:
        return
    text = f"activation checkpointing of {blocks} blocks"
    tool = (
        "torch.utils.checkpoint around each block (transformers: gradient_checkpointing_enable())"
    )
    yield Wanted("checkpointing", text, tool, rows.scaled(sorted(dropped), 0, 1), len(dropped))


def _repeated(rows: _Rows, kept: list[int]) -> tuple[list[int], int]:
    """The activations that checkpointing would drop, and the number of blocks."""
    total = sum(rows.asked[row] for row in kept)
    count = Counter(rows.asked[row] for row in kept)
    repeated = {size: n for size, n in count.items() if n >= 3 and size * n >= total * _REPEATED}
    if not repeated:
        return [], 0
    blocks = min(repeated.values())
    # A block's output is the smallest of its sizes that occur once per block.
    output = min(size for size, n in repeated.items() if n == blocks)
    counts: Counter[int] = Counter()
    dropped = []
    for row in kept:
        size = rows.asked[row]
        if size in repeated:
            block, place = divmod(counts[size] * blocks, repeated[size])
            counts[size] += 1
            if block < blocks - 1 and (size != output or place):
                dropped.append(row)
    return dropped, blocks


def _logits(rows: _Rows) -> Iterator[Wanted]:
    """The loss over logits in chunks: the largest tensors, if few are that large."""
    kinds = ("activation", "temporary", "autograd_detail", "gradient", "unknown")
    alive = rows.at_peak(*kinds)
    largest = max((rows.asked[row] for row in rows.saved(alive)), default=0)
    as_large = [row for row in alive if largest <= 2 * rows.asked[row]]
    if largest < rows.peak.bytes * _LOGITS_SHARE or len(as_large) > 6:
        return
    chosen = [row for row in rows.of(*kinds) if largest <= 2 * rows.asked[row]]
    text = f"the largest tensors (logits, most likely) in {_PIECES} chunks"
    tool = "compute head and cross-entropy on one chunk of tokens at a time"
    yield Wanted("logits", text, tool, rows.scaled(chosen, 1, _PIECES), len(chosen))


# ---- Report ------------------------------------------------------------------------------

_SETTING = "expandable_segments:True"


@dataclass(frozen=True)
class Saving:
    """One change and its savings.

    Attributes:
        kind: A stable word: "zero_1", "zero_2", "zero_3", "8_bit_optimizer", "bf16",
            "checkpointing", "logits", "last_use" or "expandable_segments".
        message: The change.
        advice: How to make it.
        saved_bytes: By how much the peak of reserved falls.
        peak_allocated_bytes: The peak of allocated with the change.
        peak_reserved_bytes: The peak of reserved with the change.
    """

    kind: str
    message: str
    advice: str
    saved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class SavingsReport(Report):
    """Savings of memory by changes to a program.

    Attributes:
        device: The device.
        ranks: The number of ranks to shard over.
        peak_allocated_bytes: The recorded peak of allocated.
        peak_reserved_bytes: The recorded peak of reserved.
        categories: Bytes allocated at the peak, by category.
        savings: The changes, largest savings first.
    """

    schema = "neutracer.savings/1"

    device: int
    ranks: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    categories: dict[str, int]
    savings: tuple[Saving, ...]

    def document(self) -> Document:
        """The report as a page."""
        facts = (f"cuda:{self.device}", f"peak {format_bytes(self.peak_reserved_bytes)} reserved")
        rows = tuple(
            (Figure.bytes(one.saved_bytes), Figure.bytes(one.peak_reserved_bytes), one.message)
            for one in self.savings
        )
        notes = ("Each change alone, replayed on the model of the allocator with other sizes.",)
        held = tuple((Figure.bytes(n), name) for name, n in self.categories.items())
        blocks: list[Block] = [
            *self.finding_blocks(),
            Table("At the peak", held),
            Table("Savings by change", rows, ("saves", "new peak", ""), notes),
        ]
        if self.savings:
            how = tuple((one.kind, one.advice) for one in self.savings)
            blocks.append(KeyValues("How", how))
        return Document("Savings", facts, tuple(blocks))


def savings(
    source: Snapshot | SnapshotSource, *, ranks: int = 8, device: int | None = None
) -> SavingsReport:
    """Estimate savings by sharding, narrower types, checkpointing and chunked logits.

    Each change resizes the program's requests of some categories and replays them on the model
    of the allocator; the saving is the difference between the peaks of reserved.

    Args:
        source: A Snapshot, rehearsed or recorded from the start, or what `load` takes.
        ranks: The number of ranks that ZeRO's stages shard over.
        device: The device; None is the only one.

    Returns:
        The report; `.savings` are the changes, largest savings first.

    Raises:
        ValueError: It has no trace, `ranks` is below 2, or the trace is not of PyTorch's native
            CUDA allocator.

    Example:
        >>> import neutracer
        >>> report = neutracer.savings("tests/data/train_resnet_healthy.pickle.xz")
        >>> report.savings[0].saved_bytes > 0
        True
    """
    count = whole_number("ranks", ranks, least=2)
    snap = opened(source)
    refuse_others(snap)
    number = snap.device(device)
    timeline = snap.timeline(number)
    if not len(timeline):
        raise ValueError("the snapshot has no history")
    settings = str(snap.settings_in_force["text"])
    before = _peaks_of(timeline.program.run(settings))
    found = [_saved(timeline, settings, before, one) for one in changes_of(snap, timeline, count)]
    if "expandable_segments" not in settings:
        found.append(_by_setting(timeline, settings, before))
    useful = sorted((one for one in found if one.saved_bytes > 0), key=lambda one: -one.saved_bytes)
    held = timeline.holders(by="category", limit=None)
    return SavingsReport(
        device=number,
        ranks=count,
        peak_allocated_bytes=before[0],
        peak_reserved_bytes=before[1],
        categories={str(one.key): one.bytes for one in held},
        savings=tuple(useful),
        findings=(
            *first_findings(snap, device=number),
            *(
                _answer(one, before[1])
                for one in useful[:1]
                if one.saved_bytes > _WORTH * before[1]
            ),
        ),
    )


def _answer(best: Saving, peak: int) -> Finding:
    """The change that saves most."""
    saved, share = format_bytes(best.saved_bytes), format_share(best.saved_bytes / peak)
    message = f"{best.message}: {saved} less at the peak of reserved ({share})"
    advice = (Note(best.advice),)
    return Finding("saving", Severity.INFO, best.saved_bytes, message, (), advice)


def _peaks_of(figures: dict[str, Any]) -> tuple[int, int]:
    return int(figures["peak"]["allocated"]), int(figures["peak"]["reserved"])


def _saved(timeline: Timeline, settings: str, before: tuple[int, int], one: Wanted) -> Saving:
    after = _peaks_of(timeline.program.edit(one.sizes, one.ends).run(settings))
    return Saving(one.kind, one.message, one.advice, before[1] - after[1], *after)


def _by_setting(timeline: Timeline, settings: str, before: tuple[int, int]) -> Saving:
    both = f"{settings},{_SETTING}" if settings else _SETTING
    after = _peaks_of(timeline.program.run(both))
    how = f"PYTORCH_CUDA_ALLOC_CONF={both}"
    text = "expandable segments, which leave no gaps between segments"
    return Saving("expandable_segments", text, how, before[1] - after[1], *after)
