# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal had to make up, with the line that asked for it."""

from __future__ import annotations

import os
import sys
from types import FrameType

from neutracer.cells import reader_name

__all__ = ["Notes", "is_library", "program_line"]

_STANDARD = os.path.dirname(os.__file__) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library(frame: FrameType) -> bool:
    """Whether a frame is no line of the program's own."""
    path = frame.f_code.co_filename
    if path.startswith(("<frozen ", _STANDARD)) or any(part in path for part in _LIBRARIES):
        return True
    name = frame.f_globals.get("__name__") or ""
    return str(name).partition(".")[0] in ("neutracer", "torch")


def program_line(frame: FrameType | None) -> str:
    """The innermost line of the program itself: "train.py:12"; else a library's."""
    first = frame
    while frame is not None and is_library(frame):
        frame = frame.f_back
    chosen = frame or first
    if chosen is None:
        return ""
    return f"{os.path.basename(reader_name(chosen.f_code.co_filename))}:{chosen.f_lineno}"


class Notes:
    """Sentences, each once, in the order of their first cause."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def add(self, sentence: str) -> None:
        """Say a sentence; {line} in it is the program's line that is at work."""
        text = sentence.replace("{line}", program_line(sys._getframe(1)))
        self._said[text] = self._said.get(text, 0) + 1

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was said."""
        return tuple(self._said)
