# SPDX-License-Identifier: Apache-2.0
"""Gradients that meet in a backward pass.

Where the gradient of one tensor comes from several operators, autograd's engine adds each to the
first one, in place if nothing else holds that (`accumulate` in `input_buffer.cpp`). Of fake tensors
it makes a new sum instead, since they are a subclass.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neutracer.rehearsal.stacks import is_between

__all__ = ["Gathering"]

_ADD = torch.ops.aten.add.Tensor
_ENGINE = "_engine_run_backward"


def _references(tensor: Tensor) -> tuple[int, int]:
    """How many hold a tensor and its storage, with those that hold it for this call."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


def _is_engine_s() -> bool:
    """Whether the call that is under way comes from the engine, and not from a hook."""
    frame = sys._getframe(2)
    while frame is not None and is_between(frame):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return frame.f_code.co_name == _ENGINE


class _Probe(TorchDispatchMode):  # type: ignore[misc]
    """Looks at a sum of two gradients that nothing else holds."""

    found: tuple[int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and torch._C._current_graph_task_id() != -1:
            self.found = _references(args[0])
        return func(*args, **(kwargs or {}))


class Gathering:
    """Knows the sums that the engine would make in place."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def look(self) -> None:
        """Learn what the last reference counts; called once under a mode of fake tensors."""
        with _Probe() as probe, torch.enable_grad():
            twice = torch.zeros(2, requires_grad=True) * 2
            (twice.sin() + twice.cos()).sum().backward()
        self._last = probe.found

    def is_in_place(self, func: Any, args: Any) -> bool:
        """Whether an operator that is about to run is such a sum.

        Args:
            func: The operator.
            args: Its arguments: the first is what is added to.
        """
        if func is not _ADD or torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return False
        one, other = args[0], args[1]
        return (
            isinstance(other, Tensor)
            and one.shape == other.shape
            and one.dtype == other.dtype
            and one.untyped_storage().nbytes() == one.numel() * one.element_size()
            and _references(one) == self._last
            and _is_engine_s()
        )
