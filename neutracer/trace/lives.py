# SPDX-License-Identifier: Apache-2.0
"""The lives of a timeline's segments as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from neutracer.trace.table import NONE, Column, Stacks, Table

__all__ = ["segment_table"]


def segment_table(c: Mapping[str, Any], stacks: Stacks) -> Table:
    """The table of `Timeline.segments`.

    Args:
        c: The core's columns.
        stacks: The snapshot's stacks.
    """
    columns = {
        name: Column(cast(Callable[[], Any], lambda name=name: c[name]))
        for name in ("address", "size", "stream", "pool_first", "pool_second")
    }
    columns["segment_type"] = Column(lambda: c["kind"], names=("small", "large"))
    columns["is_expandable"] = Column(lambda: c["is_expandable"], is_flag=True)
    columns["pool_known"] = Column(lambda: c["pool_known"], is_flag=True)
    columns["alloc_event"] = Column(lambda: c["alloc_event"])
    columns["free_event"] = Column(lambda: c["free_event"])
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    pairs = {"segment_pool_id": ("pool_first", "pool_second")}
    return Table("segment", columns, len(c["address"]), stacks, pairs)
