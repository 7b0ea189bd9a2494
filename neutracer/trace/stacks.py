# SPDX-License-Identifier: Apache-2.0
"""The frames and stacks of one snapshot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

from neutracer._native import core

__all__ = [
    "MODULE_MARK",
    "NONE",
    "ForwardTexts",
    "Frame",
    "GeneratedFrame",
    "Stacks",
    "forward_stack",
]

# The id of "no string" and "no stack" in the core.
NONE = 0xFFFFFFFF

#: What `record(modules=model)` writes before the path of a module into user_metadata.
MODULE_MARK = "nn.Module: "

_FX_KEYS = ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace")


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


class GeneratedFrame(Frame):
    """A frame of code that torch.fx generated, with what PyTorch knows of its line
    (`_dump_snapshot(augment_with_fx_traces=True)`, torch 2.10).

    Attributes:
        fx_node_op: What the node does: "call_function", "output".
        fx_node_name: The node's name: "linear_1".
        fx_node_target: What it calls.
        fx_original_trace: The model's own stack, as Python's traceback module writes it.
    """

    fx_node_op: str | None = None
    fx_node_name: str | None = None
    fx_node_target: str | None = None
    fx_original_trace: str | None = None

    def to_dict(self) -> dict[str, str | int]:
        """The frame as a dict with PyTorch's own keys."""
        return {**super().to_dict(), **vars(self)}

    @property
    def model(self) -> tuple[Frame, ...]:
        """The model's own frames that the line was generated from, innermost first."""
        return forward_stack(self.fx_original_trace or "")


def _frames(snapshot: core.Snapshot, strings: Sequence[str]) -> list[Frame]:
    """The frames of a snapshot by their ids."""
    nodes = snapshot.fx()
    found = []
    for name, filename, line, fx in snapshot.frames():
        frame = Frame(strings[filename], line, strings[name])
        if fx:
            frame = GeneratedFrame(*frame)
            texts = zip(_FX_KEYS, nodes[fx - 1], strict=True)
            vars(frame).update({key: strings[text] for key, text in texts if text != NONE})
        found.append(frame)
    return found


class Stacks:
    """The stacks of one snapshot: spelt out when needed, and then kept."""

    def __init__(self, snapshot: core.Snapshot, strings: Sequence[str]) -> None:
        self._frames = _frames(snapshot, strings)
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

    def __len__(self) -> int:
        return len(self._parent)


class ForwardTexts(Sequence[str]):
    """The `forward_frames` of backward allocations by the id that the core gives them: the
    stack of the forward operation, as Python's traceback module writes it."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    @overload
    def __getitem__(self, stack: int) -> str: ...
    @overload
    def __getitem__(self, stack: slice) -> Sequence[str]: ...
    def __getitem__(self, stack: int | slice) -> str | Sequence[str]:
        if isinstance(stack, slice):
            return [self[at] for at in range(*stack.indices(len(self)))]
        if not 0 <= stack < len(self):
            raise IndexError(f"no stack {stack}")
        return "".join(frame.name for frame in self._stacks[stack])

    def __len__(self) -> int:
        return len(self._stacks)


# A frame as Python's traceback module writes it.
_TRACEBACK_LINE = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?')


def forward_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a stack that Python's traceback module wrote, innermost first.

    Example:
        >>> forward_stack('  File "model.py", line 12, in forward\\n    return self.fc(x)\\n')
        (Frame(filename='model.py', line=12, name='forward'),)
    """
    found = _TRACEBACK_LINE.findall(text)
    return tuple(Frame(file, int(line[:18]), name) for file, line, name in reversed(found))
