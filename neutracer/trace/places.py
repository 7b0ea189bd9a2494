# SPDX-License-Identifier: Apache-2.0
"""Which line of the program represents a stack: the one rule of every report and page.

The innermost frame of the program's own code, and where a library was called from there, the
innermost frame of that library beside it: `transformers activations.py:66, from train.py:42`.
PyTorch's own files, Python's and mere wrappers never stand for a stack that has another
frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from neutracer.render.document import Place
from neutracer.trace.origins import Origin, Owner, base_name, origin_of
from neutracer.trace.stacks import NONE, Frame, GeneratedFrame, Stacks

__all__ = [
    "PLACE_RULES",
    "UNKNOWN_PLACE",
    "Places",
    "callers_of",
    "grouped",
    "place_of",
    "user_frame",
]

UNKNOWN_PLACE = Place("(no Python stack)", "")

# Frames of the recording itself and of the allocator: they are in every C++ stack.
_PLUMBING = (
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::cuda::",
    "torch::autograd::Engine::thread",
    "torch::autograd::python::PythonEngine",
    "c10::",
    "at::detail::",
    "at::empty",
    "at::native::empty",
    "at::(anonymous namespace)::create_out",
    "at::(anonymous namespace)::wrapper_CUDA__empty",
    "at::_ops::empty",
    "std::",
    "_Py",
    "Py",
    "__libc_",
    "_start",
    "clone",
    "start_thread",
    "execute_native_thread_routine",
)

_HELPER = re.compile(r"::(?:structured_\w+::)?set_output_|::create_out\b|::resize_\w*\b|\bmalloc\b")

# A node of the backward pass, by its C++ function: what a thread without Python frames does.
_NODE = re.compile(r"^(?:[a-z_]+::)+(\w*Backward\w*|AccumulateGrad|CopySlices)::apply\b")

#: These rules by name, for the page (`origins.js`).
PLACE_RULES: Mapping[str, object] = {"plumbing": _PLUMBING, "helper": _HELPER, "node": _NODE}


class _Seen(NamedTuple):
    """What the frames of a stack amount to, from the outermost up to one of them."""

    own: Frame | None = None
    library: Frame | None = None
    package: str = ""
    torch: Frame | None = None
    native: Frame | None = None
    node: Frame | None = None


_NOTHING = _Seen()


def _of_model(seen: _Seen, frame: GeneratedFrame) -> _Seen:
    """What generated code stands for: the line of the model, with the node's name."""
    for line in reversed(frame.model):
        seen = _further_in(seen, line, origin_of(line.filename))
    if seen.own is None or not frame.fx_node_name:
        return seen
    return seen._replace(own=seen.own._replace(name=f"{frame.fx_node_name} in {seen.own.name}"))


def _further_in(seen: _Seen, frame: Frame, origin: Origin) -> _Seen:
    """What is known one call further in."""
    if isinstance(frame, GeneratedFrame) and frame.model:
        return _of_model(seen, frame)
    owner = origin.owner if frame.line > 0 or frame.filename else Owner.NATIVE
    if owner is Owner.NATIVE or frame.line <= 0:
        node = _NODE.match(frame.name)
        if node is not None:
            return seen._replace(node=frame._replace(name=node.group(1)))
        return seen if _is_helper(frame.name) else seen._replace(native=frame)
    if owner is Owner.OWN:
        # What the program's own code calls says more than what called it.
        return _Seen(own=frame)
    if owner is Owner.LIBRARY:
        return seen._replace(library=frame, package=origin.package)
    return seen._replace(torch=frame) if owner is Owner.TORCH else seen


def _is_helper(name: str) -> bool:
    """Whether a C++ function only makes memory for another."""
    return name.startswith(_PLUMBING) or _HELPER.search(name) is not None


def _short(name: str) -> str:
    """A C++ function without its parameters."""
    plain = name.replace("(anonymous namespace)::", "")
    return plain.partition("(")[0] or name


def _place(seen: _Seen) -> Place:
    """The place of a whole stack."""
    own, library = seen.own, seen.library
    if library is not None:
        called = "" if own is None else f"{base_name(own.filename)}:{own.line}"
        name = base_name(library.filename)
        return Place(library.name, name, library.line, seen.package, called)
    frame = own or seen.node or seen.native or seen.torch
    if frame is None:
        return UNKNOWN_PLACE
    name = frame.name if frame is own else _short(frame.name)
    return Place(name, base_name(frame.filename), frame.line)


def _seen(stack: Sequence[Frame]) -> _Seen:
    seen = _NOTHING
    for frame in reversed(stack):
        seen = _further_in(seen, frame, origin_of(frame.filename))
    return seen


def place_of(stack: Sequence[Frame]) -> Place:
    """The place that represents a stack.

    Args:
        stack: Frames, innermost first.

    Example:
        >>> print(place_of((
        ...     Frame("/env/site-packages/torch/nn/functional.py", 9, "gelu"),
        ...     Frame("/env/site-packages/transformers/activations.py", 66, "forward"),
        ...     Frame("/srv/jobs/train.py", 42, "main"),
        ... )))
        forward (transformers activations.py:66, from train.py:42)
    """
    return _place(_seen(stack))


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the program's own code, or else of what stands for the stack.

    Args:
        stack: Frames, innermost first.

    Returns:
        The frame, or None for a stack without frames.
    """
    seen = _seen(stack)
    return seen.own or seen.library or seen.node or seen.native or seen.torch


def callers_of(stack: Sequence[Frame], limit: int = 2) -> tuple[Place, ...]:
    """The lines of the program's own code that called the one that represents a stack.

    Args:
        stack: Frames, innermost first.
        limit: How many, innermost first.
    """
    own = [frame for frame in stack if _is_own(frame)]
    first = 0 if _seen(stack).library is not None else 1
    return tuple(
        Place(frame.name, base_name(frame.filename), frame.line)
        for frame in own[first : first + limit]
    )


def _is_own(frame: Frame) -> bool:
    return frame.line > 0 and origin_of(frame.filename).owner is Owner.OWN


class Places:
    """The places of one snapshot's stacks; what stacks have in common is read once."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._seen: dict[int, _Seen] = {0: _NOTHING}
        self._places: dict[int, Place] = {NONE: UNKNOWN_PLACE}

    def __getitem__(self, stack: int) -> Place:
        """The place of a stack id."""
        known = self._places.get(stack)
        if known is None:
            known = self._places[stack] = _place(self._of(stack))
        return known

    def _of(self, stack: int) -> _Seen:
        path = []
        at = stack
        while at not in self._seen:
            path.append(at)
            at = self._stacks.caller(at)
        seen = self._seen[at]
        for node in reversed(path):
            frame = self._stacks.innermost(node)
            seen = self._seen[node] = _further_in(seen, frame, origin_of(frame.filename))
        return seen


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
