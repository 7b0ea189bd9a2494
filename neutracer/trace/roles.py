# SPDX-License-Identifier: Apache-2.0
"""What part of a training program a stack belongs to, and the passes that follow from it."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain, compress
from operator import and_
from typing import NamedTuple

from neutracer.trace.table import NONE, Frame, Stacks

__all__ = ["Passes", "Role", "own_stacks", "passes_of", "role_of"]


class Role(IntEnum):
    """What a stack was doing."""

    EMPTY = 0  # no frames
    USER = 1  # nothing of the below: the program's own lines, and what they call
    MODULE = 2  # inside of a call of an nn.Module
    BUILD = 3  # making, moving or loading a module
    SEED = 4  # backward() making the first gradient, that of the loss
    BACKWARD = 5  # the backward pass
    OPTIMIZER = 6  # inside of an optimizer's step
    STATE = 7  # an optimizer making its state
    ZERO_GRAD = 8  # zero_grad() of an optimizer or module
    SCALER = 9  # the gradient scaler, gradient clipping


# Functions of torch/nn/modules/module.py that give a module its tensors.
_BUILDERS = frozenset(
    ("_apply", "convert", "to", "cuda", "half", "bfloat16", "float", "to_empty")
).union(("load_state_dict", "_load_from_state_dict", "register_buffer"))
_CALLS = frozenset(("_call_impl", "_wrapped_call_impl", "_slow_forward"))
# Functions of torch/utils/checkpoint.py that run a piece of forward again for backward.
_RECOMPUTE = frozenset(("unpack_hook", "recompute_fn", "backward"))
_ENGINE = (
    "torch::autograd::Engine::evaluate_function",
    "torch::autograd::Engine::thread_main",
    "torch::autograd::Engine::thread_init",
    "torch::autograd::python::PythonEngine::thread_init",
)

# Where two frames of one stack say different things, the one that is decided by these; what
# is not here is decided by the innermost frame.
_OVERRULES = (Role.BACKWARD, Role.ZERO_GRAD, Role.STATE, Role.SEED)


def _frame_role(frame: Frame, inner: str) -> Role:
    """The role that one frame gives; `inner` is the name of the function it called."""
    if frame.name.startswith(_ENGINE):
        return Role.BACKWARD
    path = frame.filename.replace("\\", "/")
    at = path.rfind("/torch/")
    if at < 0:
        return Role.USER
    return _library_role(path[at + len("/torch/") :], frame.name, inner)


def _library_role(path: str, name: str, inner: str) -> Role:
    """The role of a frame in PyTorch's own file `path`."""
    if path.startswith(("optim/", "distributed/optim/")):
        if name == "zero_grad":
            return Role.ZERO_GRAD
        return Role.STATE if name in ("_init_group", "__init__") else Role.OPTIMIZER
    if path.startswith(("amp/grad_scaler", "cuda/amp/grad_scaler", "nn/utils/clip_grad")):
        return Role.SCALER
    if path == "nn/modules/module.py":
        if name in _CALLS:
            return Role.MODULE
        if name == "zero_grad":
            return Role.ZERO_GRAD
        return Role.BUILD if name in _BUILDERS else Role.USER
    if path.startswith("nn/") and (name == "__init__" or path == "nn/init.py"):
        return Role.BUILD
    if path == "autograd/__init__.py":
        return Role.SEED if name == "_make_grads" else Role.USER
    if path == "autograd/graph.py":
        return Role.BACKWARD if name == "_engine_run_backward" else Role.USER
    if path == "autograd/function.py":
        return Role.BACKWARD if name == "apply" and inner == "backward" else Role.USER
    if path == "utils/checkpoint.py":
        return Role.BACKWARD if name in _RECOMPUTE else Role.USER
    return Role.USER


def role_of(stack: Sequence[Frame]) -> Role:
    """The role of a stack, innermost frame first.

    Example:
        >>> role_of([Frame("/site/torch/optim/adam.py", 178, "_init_group")]).name
        'STATE'
    """
    if not stack:
        return Role.EMPTY
    found = Role.USER
    inner = ""
    for frame in stack:
        role = _frame_role(frame, inner)
        inner = frame.name
        if role in _OVERRULES:
            if found is not Role.MODULE or role is Role.BACKWARD:
                return role
        elif found is Role.USER:
            found = role
    return found


def _roles_of_stacks(codes: Iterable[int], stacks: Stacks) -> dict[int, int]:
    """The role of each stack id that occurs in `codes`."""
    return {code: int(role_of(stacks[code])) for code in set(codes) | {NONE}}


class Passes(NamedTuple):
    """The forward and backward passes of a trace, by events.

    Attributes:
        role: The role of each event. An event without a stack is of the backward pass
            where the trace has one, since autograd's threads have no Python frames.
        backward: Begin and end (after the last event) of each backward pass.
        forward: The events that allocate inside of modules.
        allocates: 1 for each event that allocates, 0 for others.
        stack: The stack id of each event, that of what it is itself: `NONE` for frees where the
            recording has only stacks of allocations.
        library: The stacks whose innermost frame is in PyTorch's own files.
    """

    role: bytearray
    backward: list[tuple[int, int]]
    forward: array[int]
    allocates: bytes
    stack: memoryview
    library: frozenset[int]

    def next_forward(self, event: int) -> int | None:
        """The first allocation inside of a module after an event."""
        at = bisect_left(self.forward, event + 1)
        return self.forward[at] if at < len(self.forward) else None


def own_stacks(stack: memoryview, rows: Mapping[str, memoryview]) -> memoryview:
    """The stack of each event, `NONE` for frees.

    PyTorch's recorder gives a free the stack of the block's allocation where it records
    stacks of allocations only (`context="alloc"`): it says nothing of who freed it.

    Args:
        stack: Each event's stack id, as recorded.
        rows: The columns free_event and completed_event of the allocations.
    """
    own = array("I", stack)
    for event in chain(rows["free_event"], rows["completed_event"]):
        if event >= 0:
            own[event] = NONE
    return memoryview(own)


def passes_of(
    stack: memoryview, allocates: bytes, stacks: Stacks, own: memoryview | None = None
) -> Passes:
    """The passes of a trace.

    Args:
        stack: Each event's stack id.
        allocates: 1 for each event that allocates, 0 for others.
        stacks: The snapshot's stacks.
        own: The same as `own_stacks` gives it; None where frees have stacks of their own.
            An event that has none then belongs to what the program allocated before it.
    """
    roles = _roles_of_stacks(stack, stacks)
    library = frozenset(code for code in roles if _is_library(stacks[code]))
    trains = any(role in (Role.SEED, Role.BACKWARD, Role.OPTIMIZER) for role in roles.values())
    if trains:
        empty = int(Role.EMPTY)
        roles = {code: int(Role.BACKWARD) if r == empty else r for code, r in roles.items()}
    role = bytearray(map(roles.__getitem__, stack))
    if own is not None and own is not stack:
        _carry_over(role, allocates, own)
    # Another thread's lines and the scaler's may come between; a pass ends where the program
    # goes on.
    backward = [found.span() for found in _INSIDE.finditer(role)]
    forward = array(
        "q", compress(range(len(role)), map(and_, role.translate(_IS_MODULE), allocates))
    )
    joined = _joined(backward, role, allocates)
    return Passes(role, joined, forward, allocates, stack if own is None else own, library)


def _carry_over(role: bytearray, allocates: bytes, own: memoryview) -> None:
    """Give what has no stack of its own the role of the allocation before it."""
    before = int(Role.EMPTY)
    for event, is_alloc in enumerate(allocates):
        if is_alloc:
            before = role[event]
        elif own[event] == NONE:
            role[event] = before


# Runs of events of a backward pass, and by role whether it is that of a module.
_INSIDE = re.compile(b"[%c%c]+" % (Role.BACKWARD, Role.SEED))
_IS_MODULE = bytes(code == Role.MODULE for code in range(256))


def _is_library(stack: Sequence[Frame]) -> bool:
    return bool(stack) and "/torch/" in stack[0].filename.replace("\\", "/")


def _joined(
    passes: list[tuple[int, int]], role: bytearray, allocates: bytes
) -> list[tuple[int, int]]:
    """Passes with nothing but frees between them, merged; without those that allocate
    nothing."""
    joined: list[tuple[int, int]] = []
    for begin, end in passes:
        if joined and allocates.find(1, joined[-1][1], begin) < 0:
            if _ends_training(role, joined[-1][1], begin):
                joined.append((begin, end))
            else:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return [(begin, end) for begin, end in joined if allocates.find(1, begin, end) >= 0]


def _ends_training(role: bytearray, begin: int, end: int) -> bool:
    """Whether an optimizer worked between two passes."""
    return any(
        one in (Role.OPTIMIZER, Role.STATE, Role.ZERO_GRAD, Role.MODULE) for one in role[begin:end]
    )
