# SPDX-License-Identifier: Apache-2.0
"""Whether a program empties something of its own, or the collector finds garbage."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Sequence
from typing import cast

from neutracer.diagnose.leaks.growth import fallen
from neutracer.diagnose.leaks.series import Observed, Trend
from neutracer.render.document import Place
from neutracer.trace.places import place_of
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline

__all__ = ["emptied_at"]

# So much of what fell must have been freed at one line.
_AT_ONE_LINE = 0.9

# What calls the collector.
_COLLECTS = re.compile(r"\bcollect\s*\(")


def emptied_at(seen: Observed, trend: Trend) -> Place | None:
    """The line at which the program lets go of what had piled up; None where a collection
    does, or may.

    Python's collector runs where objects are made, in lines that do other things most of
    the time. A line that frees only when memory falls is the program's own doing: it empties
    something, or calls the collector, as its text says. Without the text nothing is said.
    """
    timeline = seen.timeline
    if timeline is None:
        return None
    stacks = timeline.events.codes("stack")
    freed = Counter[int](stacks[event] for event in fallen(seen, trend.warmup))
    if not freed:
        return None
    code, count = freed.most_common(1)[0]
    if count < _AT_ONE_LINE * freed.total() or _does_more(timeline, code):
        return None
    stack = timeline.events[list(stacks).index(code)].stack
    text = _text(stack)
    return None if not text or _COLLECTS.search(text) else place_of(stack)


def _does_more(timeline: Timeline, code: int) -> bool:
    """Whether a stack allocates, too."""
    stacks = timeline.events.codes("stack")
    actions = cast("list[str]", timeline.events["action"])
    pairs = zip(stacks, actions, strict=True)
    return any(stack == code and action == "alloc" for stack, action in pairs)


def _text(stack: Sequence[Frame]) -> str:
    """The source of the innermost frame's line, if this machine has it."""
    if not stack:
        return ""
    frame = stack[0]
    return linecache.getline(frame.filename, frame.line).strip()
