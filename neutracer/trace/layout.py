# SPDX-License-Identifier: Apache-2.0
"""Which block is where in which segment at one moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from neutracer._native import core
from neutracer.pickling import Unchanging
from neutracer.trace.stacks import NONE, Stacks
from neutracer.trace.table import Column, Table

__all__ = ["Layout", "block_table", "named_stats", "segment_table", "unused_share"]

_SEGMENT_TYPES = ("small", "large")
_STATES = ("inactive", "active_allocated", "active_pending_free")

# The order of the core's pool statistics.
_METRICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class Layout(Unchanging, instead="send the snapshot, and ask its timeline() for at(event)"):
    """The segments and blocks after an event.

    Attributes:
        segments: As `Snapshot.segments` has them.
        blocks: As `Snapshot.blocks` has them; inactive ones have a requested_size of 0.
    """

    def __init__(self, native: core.Layout, stacks: Stacks) -> None:
        """Made by `Timeline.at`; not by users."""
        self.native = native
        tables = native.tables()
        self.segments = segment_table(tables["segments"], stacks)
        self.blocks = block_table(tables["blocks"], stacks)

    def __repr__(self) -> str:
        return f"<Layout: {len(self.segments):,} segments, {len(self.blocks):,} blocks>"


def segment_table(c: Mapping[str, core.Column], stacks: Stacks) -> Table:
    """The table of a layout's segments."""
    columns = {
        name: Column(cast(Callable[[], Any], lambda name=name: c[name]))
        for name in (
            "device",
            "address",
            "total_size",
            "allocated_size",
            "active_size",
            "requested_size",
            "stream",
        )
    }
    columns["segment_type"] = Column(lambda: c["kind"], names=_SEGMENT_TYPES)
    columns["pool_first"] = Column(lambda: c["pool_first"])
    columns["pool_second"] = Column(lambda: c["pool_second"])
    columns["is_expandable"] = Column(lambda: c["is_expandable"], is_flag=True)
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    columns["block_first"] = Column(lambda: c["block_first"])
    columns["block_count"] = Column(lambda: c["block_count"])
    pairs = {"segment_pool_id": ("pool_first", "pool_second")}
    return Table("segment", columns, len(c["address"]), stacks, pairs)


def block_table(c: Mapping[str, core.Column], stacks: Stacks) -> Table:
    """The table of a layout's blocks."""
    columns = {
        name: Column(cast(Callable[[], Any], lambda name=name: c[name]))
        for name in ("segment", "address", "size", "requested_size")
    }
    columns["state"] = Column(lambda: c["state"], names=_STATES)
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    return Table("block", columns, len(c["address"]), stacks)


def named_stats(small: Sequence[int], large: Sequence[int]) -> dict[str, int]:
    """The core's statistics of the two kinds of pools under PyTorch's own keys."""
    stats = {}
    for metric, in_small, in_large in zip(_METRICS, small, large, strict=True):
        stats[f"{metric}.all.current"] = in_small + in_large
        stats[f"{metric}.small_pool.current"] = in_small
        stats[f"{metric}.large_pool.current"] = in_large
    return stats


def unused_share(reserved: int, allocated: int) -> float:
    """(reserved - allocated) / reserved; 0 where nothing is reserved."""
    return (reserved - allocated) / reserved if reserved else 0.0
