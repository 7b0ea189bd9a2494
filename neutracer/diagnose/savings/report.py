# SPDX-License-Identifier: Apache-2.0
"""What changes of a program would save: each one replayed on the model of the allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutracer.arguments import whole_number
from neutracer.diagnose.question import first_findings, opened
from neutracer.diagnose.savings.changes import Wanted, changes_of
from neutracer.diagnose.settings.replay_settings import refuse_others
from neutracer.render.document import Block, Document, Figure, KeyValues, Table
from neutracer.render.report import Report
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes

__all__ = ["Saving", "SavingsReport", "savings"]

_SETTING = "expandable_segments:True"


@dataclass(frozen=True)
class Saving:
    """One change, and what it would save.

    Attributes:
        kind: A stable word: "zero_1", "zero_2", "zero_3", "8_bit_optimizer", "bf16",
            "checkpointing", "logits" or "expandable_segments".
        message: What is done.
        advice: How.
        saved_bytes: Fewer bytes reserved at the peak.
        peak_allocated_bytes: The most that is then allocated.
        peak_reserved_bytes: The most that is then reserved.
    """

    kind: str
    message: str
    advice: str
    saved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class SavingsReport(Report):
    """What changes of a program would save.

    Attributes:
        device: The device.
        ranks: Over how many ranks something is sharded.
        peak_allocated_bytes: The most that was allocated.
        peak_reserved_bytes: The most that was reserved.
        categories: What was allocated at the peak, by category, in bytes.
        savings: The changes, those that save most first.
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
        notes = (
            "Each alone, with the program otherwise as it is; replayed on the model of the "
            "allocator with other sizes.",
        )
        held = tuple((Figure.bytes(n), name) for name, n in self.categories.items())
        blocks: list[Block] = [
            *self.finding_blocks(),
            Table("At the peak", held),
            Table("What would save", rows, ("saves", "peak then", ""), notes),
        ]
        if self.savings:
            how = tuple((one.kind, one.advice) for one in self.savings)
            blocks.append(KeyValues("How", how))
        return Document("Savings", facts, tuple(blocks))


def savings(
    source: Snapshot | SnapshotSource, *, ranks: int = 8, device: int | None = None
) -> SavingsReport:
    """What sharding, narrower types, checkpointing and smaller logits would save.

    Bytes by category become other sizes of the program's requests, and these go through the
    model of the allocator: what is saved is what the peak of reserved falls by, another moment
    being the peak then.

    Args:
        source: A Snapshot, rehearsed or recorded from the start, or what `load` takes.
        ranks: Over how many ranks ZeRO's stages shard.
        device: The device; None is the only one.

    Returns:
        The report; `.savings` has the changes, those that save most first.

    Raises:
        ValueError: It has no trace, `ranks` is below 2, or it is not of PyTorch's native CUDA
            allocator, and so can't be replayed.

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
        raise ValueError("the snapshot has no history to judge from")
    settings = str(snap.settings_in_force["text"])
    before = _peaks(timeline.program.run(settings))
    found = [_saved(timeline, settings, before, one) for one in changes_of(timeline, count)]
    if "expandable_segments" not in settings:
        found.append(_by_setting(timeline, settings, before))
    useful = [one for one in found if one.saved_bytes > 0]
    held = timeline.holders(by="category", limit=None)
    return SavingsReport(
        device=number,
        ranks=count,
        peak_allocated_bytes=before[0],
        peak_reserved_bytes=before[1],
        categories={str(one.key): one.bytes for one in held},
        savings=tuple(sorted(useful, key=lambda one: -one.saved_bytes)),
        findings=first_findings(snap, device=number),
    )


def _peaks(figures: dict[str, Any]) -> tuple[int, int]:
    return int(figures["peak"]["allocated"]), int(figures["peak"]["reserved"])


def _saved(timeline: Timeline, settings: str, before: tuple[int, int], one: Wanted) -> Saving:
    after = _peaks(timeline.program.edit(one.sizes).run(settings))
    return Saving(one.kind, one.message, one.advice, before[1] - after[1], *after)


def _by_setting(timeline: Timeline, settings: str, before: tuple[int, int]) -> Saving:
    both = f"{settings},{_SETTING}" if settings else _SETTING
    after = _peaks(timeline.program.run(both))
    how = f"PYTORCH_CUDA_ALLOC_CONF={both}"
    text = "expandable segments, which have no holes between segments"
    return Saving("expandable_segments", text, how, before[1] - after[1], *after)
