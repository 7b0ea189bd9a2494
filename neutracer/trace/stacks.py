# SPDX-License-Identifier: Apache-2.0
"""The frames and stacks of one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neutracer._native import core

__all__ = ["MODULE_MARK", "NONE", "Frame", "Stacks"]

# The id of "no string" and "no stack" in the core.
NONE = 0xFFFFFFFF

#: What `record(modules=model)` writes before the path of a module into user_metadata.
MODULE_MARK = "nn.Module: "


class Frame(NamedTuple):
    """One frame of a stack, as PyTorch gives it.

    Attributes:
        filename: The file's name.
        line: The line, from 1; 0 where it is unknown.
        name: The function's name.
    """

    filename: str
    line: int
    name: str

    def to_dict(self) -> dict[str, str | int]:
        """The frame as a dict with PyTorch's own keys."""
        return self._asdict()


class Stacks:
    """The stacks of one snapshot: spelt out when needed, and then kept."""

    def __init__(self, snapshot: core.Snapshot, strings: Sequence[str]) -> None:
        self._frames = [
            Frame(strings[filename], line, strings[name])
            for name, filename, line in snapshot.frames()
        ]
        innermost, parent = snapshot.stacks()
        self._innermost = memoryview(innermost)
        self._parent = memoryview(parent)
        self._known: dict[int, tuple[Frame, ...]] = {NONE: ()}

    def __getitem__(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack id, innermost first; empty where none were recorded."""
        known = self._known.get(stack)
        if known is None:
            frames = []
            at = stack
            while at:
                frames.append(self._frames[self._innermost[at]])
                at = self._parent[at]
            known = self._known[stack] = tuple(frames)
        return known

    @property
    def frames(self) -> Sequence[Frame]:
        """All frames, by frame id."""
        return self._frames

    def frame(self, frame: int) -> Frame:
        """The frame of a frame id."""
        return self._frames[frame]

    def innermost(self, stack: int) -> Frame:
        """The innermost frame of a stack id that has one."""
        return self._frames[self._innermost[stack]]

    def caller(self, stack: int) -> int:
        """The stack id without its innermost frame; 0 is the empty one."""
        return self._parent[stack]
