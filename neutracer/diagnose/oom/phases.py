# SPDX-License-Identifier: Apache-2.0
"""In which phase of a program a request was made: loading, forward, backward and so on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neutracer.trace.roles import Role, role_of
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_share

__all__ = ["PHASES", "Phase", "phase_of"]

#: The phases that there are.
PHASES = ("loading", "forward", "backward", "optimizer", "inference", "unknown")

# Functions that read weights, by a part of their file's name.
_LOADERS = (
    ("/torch/serialization.py", ("load", "_load", "_legacy_load")),
    ("/safetensors/", ("load_file", "get_tensor", "safe_open")),
    ("/transformers/modeling_utils.py", ("from_pretrained", "_load_pretrained_model")),
    ("/torch/distributed/checkpoint/", ("load", "load_state_dict")),
)
# The decorator form of torch.no_grad() and torch.inference_mode().
_WITHOUT_GRAD = ("/torch/utils/_contextlib.py", "decorate_context")
_CHECKPOINT = "/torch/utils/checkpoint.py"

_OPTIMIZES = (Role.OPTIMIZER, Role.STATE, Role.ZERO_GRAD, Role.SCALER)
_BACKWARD = (Role.BACKWARD, Role.SEED)

# Of a forward pass that trains, autograd keeps most of what its modules made; without it
# nearly all is freed at once. Between the two shares, and with fewer allocations, nothing
# is told; in a program that trains a pass is forward unless very little is kept.
_KEPT = 0.6
_FREED = 0.35
_FREED_IN_TRAINING = 0.2
_FEWEST = 12
_FEWEST_KEPT = 24


@dataclass(frozen=True)
class Phase:
    """A phase, and what shows it.

    Attributes:
        name: One of `PHASES`.
        why: The evidence in one clause.
    """

    name: str
    why: str


def phase_of(
    stack: Sequence[Frame],
    timeline: Timeline | None = None,
    event: int | None = None,
    grad_enabled: bool | None = None,
) -> Phase:
    """The phase in which a request was made.

    Args:
        stack: Where it was made, innermost frame first; empty where unknown.
        timeline: The trace that it is in; None where there is none, or no time for it.
        event: Its event there; None is after the last.
        grad_enabled: Whether autograd recorded then; None where nobody said.

    Example:
        >>> frames = [Frame("/site/torch/optim/adam.py", 178, "_init_group")]
        >>> phase_of(frames).name
        'optimizer'
    """
    if not stack:
        return _without_stack(timeline)
    role = role_of(stack)
    if role in _BACKWARD:
        return Phase("backward", "the backward pass is on its stack")
    if role in _OPTIMIZES:
        return Phase("optimizer", "an optimizer's step is on its stack")
    if any(_loads(frame) for frame in stack):
        return Phase("loading", "a function that reads weights is on its stack")
    if role is Role.BUILD:
        return Phase("loading", "a module was being made, moved or loaded")
    if any(_path(frame).endswith(_CHECKPOINT) for frame in stack):
        return Phase("forward", "activation checkpointing is on its stack")
    if any(
        (_path(frame)[-len(_WITHOUT_GRAD[0]) :], frame.name) == _WITHOUT_GRAD for frame in stack
    ):
        return Phase("inference", "its caller has switched autograd off")
    return _forward_or_inference(role, timeline, event, grad_enabled)


def _without_stack(timeline: Timeline | None) -> Phase:
    if timeline is not None and _trains(timeline):
        return Phase("backward", "it has no Python stack, as in the threads of backward")
    return Phase("unknown", "no stack was recorded")


def _stacks(timeline: Timeline) -> Iterator[tuple[Frame, ...]]:
    """The stacks of the trace, each once."""
    first: dict[int, int] = {}
    for event, code in enumerate(timeline.events.codes("stack")):
        first.setdefault(code, event)
    return (timeline.events[event].stack for event in first.values())


def _trains(timeline: Timeline) -> bool:
    """Whether any stack of the trace is of a backward pass or an optimizer."""
    return any(role_of(stack) in (*_BACKWARD, *_OPTIMIZES) for stack in _stacks(timeline))


def _forward_or_inference(
    role: Role, timeline: Timeline | None, event: int | None, grad_enabled: bool | None
) -> Phase:
    """Of a request inside of a module, or of the program's own lines."""
    in_module = role is Role.MODULE
    if in_module and grad_enabled is not None:
        if grad_enabled:
            return Phase("forward", "inside of a module, with autograd on")
        return Phase("inference", "inside of a module, with autograd off")
    if timeline is None or not len(timeline):
        return Phase("unknown", "there is no trace that tells training from inference")
    end = len(timeline) if event is None else event
    trains = _trains(timeline)
    share, count = _kept_share(timeline, end)
    kept = f"{format_share(share)} of what modules made since is kept"
    told = count >= _FEWEST
    if told and share < (_FREED_IN_TRAINING if trains else _FREED):
        return Phase("inference", kept)
    if trains:
        why = f"between backward passes, and {kept}" if told else "of a program that trains"
        return Phase("forward", why)
    if count >= _FEWEST_KEPT and share >= _KEPT:
        return Phase("forward", kept)
    return Phase("unknown", "nothing in the trace tells training from inference")


def _kept_share(timeline: Timeline, end: int) -> tuple[float, int]:
    """How much of what modules made since the last backward pass lives at an event.

    Returns:
        The share of the bytes, and how many allocations that are.
    """
    passes = timeline.passes
    begin = max((stop for _, stop in passes.backward if stop <= end), default=0)
    module = int(Role.MODULE)
    rows = timeline.allocations
    columns = zip(
        rows.codes("size"), rows.codes("alloc_event"), rows.codes("free_event"), strict=True
    )
    made = kept = count = 0
    for size, event, freed in columns:
        if begin <= event < end and passes.role[event] == module:
            made += size
            count += 1
            kept += size if freed == -1 or freed >= end else 0
    return (kept / made if made else 0.0), count


def _path(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def _loads(frame: Frame) -> bool:
    path = _path(frame)
    return any(part in path and frame.name in names for part, names in _LOADERS)
