# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of a snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from neutracer.render.document import (
    Block,
    Document,
    Entry,
    Figure,
    Findings,
    KeyValues,
    Note,
    Paragraph,
    Severity,
)
from neutracer.render.inline import inline_html
from neutracer.trace.flaws import Caveat

__all__ = ["summary_html"]

_HINT = "Only the totals. All of it: neutracer.view(snapshot), or .timeline() and .blocks."


def summary_html(
    devices: Iterable[tuple[str, Mapping[str, int], int]],
    caveats: Iterable[Caveat],
    origin: str = "",
) -> str:
    """The totals of a snapshot as HTML that is safe.

    Args:
        devices: Of each, its name, its `memory_stats` and the number of its events.
        caveats: Of the snapshot; they come first.
        origin: The file that it was read from; empty where there is none.
    """
    entries = tuple(
        Entry(Severity(one.severity), one.message, "", tuple(map(Note, one.details)))
        for one in caveats
    )
    blocks: list[Block] = [Findings(entries)] if entries else []
    for device, stats, events in devices:
        figures = (
            ("allocated", Figure.bytes(stats["allocated_bytes.all.current"])),
            ("reserved", Figure.bytes(stats["reserved_bytes.all.current"])),
            ("events", Figure.count(events)),
        )
        blocks.append(KeyValues(device, figures))
    blocks.append(Paragraph(_HINT))
    name, kind = os.path.basename(origin), "PyTorch snapshot"
    page = Document(name or kind, (kind,) if name else (), tuple(blocks))
    return inline_html(page)
