# SPDX-License-Identifier: Apache-2.0
"""The Python calls that are under way, as PyTorch's recorder would write them down."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from neutracer.cells import reader_name

__all__ = ["CallStacks", "is_between"]

#: What stands between a line that calls an operator and whoever rehearses it. A real operator
#: has none of these frames.
_BETWEEN = (
    "/torch/utils/_python_dispatch.py",
    "/torch/_ops.py",
    "/torch/_library/",
    "/torch/_subclasses/",
    "/torch/utils/_device.py",
    "/torch/_compile.py",
    "/torch/_dynamo/",
    "/torch/utils/_stats.py",
    "/torch/overrides.py",
)

_OURS = __name__.rpartition(".")[0]


class CallStacks:
    """Stacks by number; equal ones have one number, and 0 is the empty one."""

    def __init__(self) -> None:
        self._frames: dict[tuple[CodeType, int], int] = {}
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._hidden: dict[CodeType, bool] = {}

    def number(self, frame: FrameType | None) -> int:
        """The stack from a frame outwards."""
        found = []
        frames, hidden = self._frames, self._hidden
        while frame is not None:
            code = frame.f_code
            is_hidden = hidden.get(code)
            if is_hidden is None:
                is_hidden = hidden[code] = is_between(frame)
            if not is_hidden:
                key = (code, frame.f_lineno)
                number = frames.get(key)
                if number is None:
                    number = frames[key] = len(frames)
                found.append(number)
            frame = frame.f_back
        return self._numbers.setdefault(tuple(found), len(self._numbers))

    def here(self) -> int:
        """The caller's stack."""
        return self.number(sys._getframe(1))

    def plain(self) -> list[list[dict[str, object]]]:
        """All stacks by number, as PyTorch's snapshots have them; a frame is one dict."""
        frames: list[dict[str, object]] = [
            {"name": code.co_name, "filename": reader_name(code.co_filename), "line": line}
            for code, line in self._frames
        ]
        return [[frames[number] for number in stack] for stack in self._numbers]


def is_between(frame: FrameType) -> bool:
    """Whether a frame stands between a program's line and its operator."""
    name = frame.f_globals.get("__name__") or ""
    if isinstance(name, str) and (name == _OURS or name.startswith(f"{_OURS}.")):
        return True
    path = frame.f_code.co_filename.replace("\\", "/")
    return path.startswith("<frozen ") or any(part in path for part in _BETWEEN)
