# SPDX-License-Identifier: Apache-2.0
"""Where the main thread is, seen from another one: its line, and for how long it has been there."""

from __future__ import annotations

import os
import sys
import threading
import time

from neutracer.trace.origins import Owner, origin_of
from neutracer.trace.places import place_of
from neutracer.trace.stacks import Frame

__all__ = ["Standing", "main_frames"]

# Deeper stacks are cut at their outer end.
_MOST_FRAMES = 64

# The package's folder.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "")


def main_frames() -> tuple[Frame, ...]:
    """The frames of the main thread, innermost first; nothing is stopped for it."""
    ident = threading.main_thread().ident
    frame = sys._current_frames().get(ident or 0)
    # Where it is in this package it was called, as by PyTorch when memory runs out.
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    found: list[Frame] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        found.append(Frame(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(found)


class Standing:
    """Follows whether the main thread moves; `look` now and then."""

    def __init__(self) -> None:
        self._seen: tuple[tuple[Frame, ...], int] = ((), -1)
        self._since = time.monotonic()

    def look(self, steps: int) -> None:
        """See where it is.

        Args:
            steps: How many steps there were: a loop that goes on comes back to its lines.
        """
        frames = main_frames()
        if (frames, steps) == self._seen:
            return
        self._seen, self._since = (frames, steps), time.monotonic()

    @property
    def where(self) -> str:
        """Its line, as `Timeline.holders(by="place")` would name it."""
        frames = self._seen[0]
        return str(place_of(frames)) if frames else ""

    @property
    def is_in_torch(self) -> bool:
        """Whether its innermost frame is one of PyTorch's: so it is where a rank waits for the
        others in a collective, or for its device."""
        frames = self._seen[0]
        return bool(frames) and origin_of(frames[0].filename).owner is Owner.TORCH

    @property
    def seconds(self) -> float:
        """For how long it has been there."""
        return time.monotonic() - self._since
