# SPDX-License-Identifier: Apache-2.0
"""Which line of the user's program represents a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neutracer.render.document import Place
from neutracer.trace.table import Frame

__all__ = ["UNKNOWN_PLACE", "base_name", "callers_of", "grouped", "place_of", "user_frame"]

UNKNOWN_PLACE = Place("(no Python stack)", "")

# Folders of files that are not the user's: PyTorch's own Python code.
_LIBRARY = ("/torch/", "\\torch\\")

# Frames of the recording itself and of the allocator: they are in every C++ stack.
_PLUMBING = (
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::cuda::",
    "c10::",
    "at::detail::",
    "at::(anonymous namespace)::create_out",
)
_NATIVE = (".cpp", ".h", ".hpp", ".cu", ".cuh", ".c", ".S")


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost Python frame that is not PyTorch's own, or else the innermost frame that
    is neither the recording's nor the allocator's.

    Args:
        stack: Frames, innermost first.

    Returns:
        The frame, or None for a stack without frames.
    """
    for frame in stack:
        if _is_users(frame):
            return frame
    for frame in stack:
        if not frame.name.startswith(_PLUMBING):
            return frame
    return stack[0] if stack else None


def _is_users(frame: Frame) -> bool:
    is_python = frame.line > 0 and not frame.filename.endswith(_NATIVE)
    return is_python and not any(folder in frame.filename for folder in _LIBRARY)


def place_of(stack: Sequence[Frame]) -> Place:
    """The line that represents a stack, with the file's name without its folders."""
    frame = user_frame(stack)
    if frame is None:
        return UNKNOWN_PLACE
    return Place(frame.name, base_name(frame.filename), frame.line)


def callers_of(stack: Sequence[Frame], limit: int = 2) -> tuple[Place, ...]:
    """The lines of the user's program that called the one that represents a stack.

    Args:
        stack: Frames, innermost first.
        limit: How many, innermost first.
    """
    first = user_frame(stack)
    found: list[Place] = []
    for frame in stack[stack.index(first) + 1 :] if first is not None else ():
        if len(found) == limit:
            break
        if _is_users(frame):
            found.append(Place(frame.name, base_name(frame.filename), frame.line))
    return tuple(found)


def base_name(filename: str) -> str:
    """A file's name without its folders."""
    return filename.replace("\\", "/").rsplit("/", 1)[-1]


def grouped(items: Iterable[tuple[Sequence[Frame], int, int]]) -> list[tuple[Place, int, int]]:
    """Bytes and counts grouped by place, the most bytes first.

    Args:
        items: Tuples of a stack, bytes and a count.

    Returns:
        Tuples of a place, bytes and a count.
    """
    sums: dict[Place, tuple[int, int]] = {}
    for stack, nbytes, count in items:
        place = place_of(stack)
        held, counted = sums.get(place, (0, 0))
        sums[place] = (held + nbytes, counted + count)
    ranked = [(place, held, counted) for place, (held, counted) in sums.items()]
    return sorted(ranked, key=lambda item: -item[1])
