# SPDX-License-Identifier: Apache-2.0
"""Questions that a run which goes well always answers alike: nothing is infinite, or not a
number. A program that finds otherwise often stops, so these answers are not made up at random."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["counted", "keep_truth", "lose_truth", "truth_of", "truth_told"]

aten = torch.ops.aten

_NAME = "_neutracer_truth"

_EQUAL = frozenset({aten.eq.Tensor, aten.eq.Scalar})
_UNEQUAL = frozenset({aten.ne.Tensor, aten.ne.Scalar})
_BAD = frozenset({aten.isnan.default, aten.isinf.default})
_NOT = frozenset({aten.logical_not.default, aten.bitwise_not.default})
_AND = frozenset({aten.logical_and.default, aten.bitwise_and.Tensor, aten.mul.Tensor})
_OR = frozenset({aten.logical_or.default, aten.bitwise_or.Tensor})
_SAME = frozenset(
    {
        *(aten.all.default, aten.all.dim, aten.any.default, aten.any.dim, aten.clone.default),
        *(aten.view.default, aten.detach.default, aten.alias.default, aten._to_copy.default),
    }
)


_COUNTS = frozenset({aten.sum.default, aten.count_nonzero.default})


def truth_told(value: Any) -> bool | None:
    """What a tensor of truth values has everywhere; None where that is not known."""
    return value.__dict__.get(_NAME) if isinstance(value, FakeTensor) else None


def keep_truth(tensor: Tensor, truth: bool) -> None:
    """A tensor of truth values has this one everywhere."""
    tensor.__dict__[_NAME] = truth


def lose_truth(tensor: Tensor) -> None:
    """A tensor was written to."""
    tensor.__dict__.pop(_NAME, None)


def truth_of(func: Any, args: Any) -> bool | None:
    """What an operator's result has everywhere, if the program's numbers are sound.

    Args:
        func: The operator.
        args: Its arguments.
    """
    if func in _BAD:
        return False
    if func in _EQUAL or func in _UNEQUAL:
        return _compared(args[0], args[1], func in _EQUAL)
    told = [truth_told(arg) for arg in args[:2] if isinstance(arg, Tensor)]
    if not told or None in told:
        return None
    if func in _NOT:
        return not told[0]
    if func in _SAME:
        return told[0]
    if func in _AND:
        return all(told)
    return any(told) if func in _OR else None


def counted(func: Any, args: Any) -> int | None:
    """How many of a tensor's truth values hold, where an operator counts them and all are alike."""
    truth = truth_told(args[0]) if func in _COUNTS else None
    return None if truth is None else int(truth) * int(args[0].numel())


def _compared(one: Any, other: Any, is_equal: bool) -> bool | None:
    """Of a tensor with itself, which only NaN differs from; or with infinity."""
    if one is other and isinstance(one, Tensor):
        return is_equal
    if isinstance(other, float) and (math.isinf(other) or math.isnan(other)):
        return not is_equal
    return None
