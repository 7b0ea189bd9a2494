# SPDX-License-Identifier: Apache-2.0
"""Values that fake tensors lack: data-dependent sizes and truths, assumed and noted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from neutracer.rehearsal.requests import Notes

# ---- Truths ------------------------------------------------------------------------------

# A sound run answers these questions alike: nothing is NaN or infinite. Other answers often stop a
# program, so they are not made up at random.

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


def known_truth(value: Any) -> bool | None:
    """The value of every element of a boolean tensor; None if unknown."""
    return value.__dict__.get(_NAME) if isinstance(value, FakeTensor) else None


def truth_of(func: Any, args: Any) -> bool | None:
    """The value of every element of an operator's result, if the numbers are sound."""
    if func in _BAD:
        return False
    if func in _EQUAL or func in _UNEQUAL:
        return _compared(args[0], args[1], func in _EQUAL)
    operands = [known_truth(arg) for arg in args[:2] if isinstance(arg, Tensor)]
    if not operands or None in operands:
        return None
    if func in _NOT:
        return not operands[0]
    if func in _SAME:
        return operands[0]
    if func in _AND:
        return all(operands)
    return any(operands) if func in _OR else None


def counted(func: Any, args: Any) -> int | None:
    """How many elements an operator counts as true, if all are known alike."""
    truth = known_truth(args[0]) if func in _COUNTS else None
    return None if truth is None else int(truth) * int(args[0].numel())


def _compared(one: Any, other: Any, is_equal: bool) -> bool | None:
    """A tensor compared with itself, or with infinity or NaN."""
    if one is other and isinstance(one, Tensor):
        return is_equal
    if isinstance(other, float) and (math.isinf(other) or math.isnan(other)):
        return not is_equal
    return None


# ---- Values ------------------------------------------------------------------------------

#: The most elements of a tensor whose values are computed beside it: of floating-point numbers,
#: and of whole ones and truth values, on which programs decide.
_MOST, _MOST_WHOLE = 1 << 16, 1 << 20
_VALUE_NAME = "_neutracer_known"

#: Operators that return uninitialized memory.
_BLANK = frozenset(
    {
        *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
        *(aten.new_empty.default, aten.new_empty_strided.default),
    }
)

#: Operators that write to all of a tensor.
_FILLING = frozenset(
    {
        *(aten.fill_.Scalar, aten.zero_.default, aten.random_.default, aten.random_.to),
        *(getattr(aten.random_, "from"), aten.uniform_.default, aten.normal_.default),
        *(aten.bernoulli_.float, aten.copy_.default),
    }
)

#: Whole numbers below a bound that most likely come evenly: indices of what is largest.
_CHOICES = frozenset(
    {
        *(aten.topk.default, aten.max.dim, aten.argmax.default, aten.sort.default),
        *(aten.multinomial.default,),
    }
)


@dataclass
class _Validity:
    """Whether the values in a storage are valid; shared by its views."""

    is_good: bool = True
    is_made_up: bool = False


class Known(NamedTuple):
    """The values of a fake tensor."""

    real: Tensor
    validity: _Validity


def known_of(value: Tensor) -> Known | None:
    """A tensor's values, if they are known."""
    if not isinstance(value, FakeTensor):
        if value.device.type == "cpu" and type(value) in (Tensor, torch.nn.Parameter):
            return Known(value.detach(), _Validity())
        return None
    found: Known | None = value.__dict__.get(_VALUE_NAME)
    return found if found is not None and found.validity.is_good else None


def _is_few(tensor: Tensor) -> bool:
    is_number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return bool(tensor.numel() <= (_MOST if is_number else _MOST_WHOLE))


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an operator's results or arguments."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


class Values:
    """Runs operators on fake tensors, and on the known values of small ones."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operator's result on fake tensors, with its values where they are known."""
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(list(kwargs.values()))
        if func in _BLANK:
            return self._blank(func(*args, **kwargs))
        known = [known_of(tensor) for tensor in tensors]
        mutates = func._schema.is_mutable
        result = func(*args, **kwargs)
        if None in known:
            if mutates:
                self.forget(func, args, kwargs)
            elif func in _CHOICES:
                self._choose(func, args, result)
            elif isinstance(result, FakeTensor):
                self._judge(func, args, result)
            return result
        outputs = tensors_in(result)
        for out in outputs:
            # Fake tensors' own constants would be computed on the device.
            if isinstance(out, FakeTensor) and out.constant is not None:
                out.constant = None
        values = [k for k in known if k is not None]
        is_small = all(isinstance(out, FakeTensor) and _is_few(out) for out in outputs)
        if is_small and all(_is_few(k.real) for k in values):
            self._compute(func, args, kwargs, result, values)
        elif mutates:
            self.forget(func, args, kwargs)
        return result

    def _blank(self, result: Any) -> Any:
        """Uninitialized memory gets zeros, marked as made up."""
        for out in tensors_in(result):
            if isinstance(out, FakeTensor) and _is_few(out):
                with torch._C._DisableTorchDispatch():
                    value = torch.zeros(tuple(out.shape), dtype=out.dtype)
                self.make_up(out, value)
        return result

    def _judge(self, func: Any, args: Any, result: FakeTensor) -> None:
        """Keeps truth values and counts that follow without the numbers."""
        is_truth = result.dtype is torch.bool
        found = truth_of(func, args) if is_truth else counted(func, args)
        if found is None:
            return
        if not _is_few(result):
            result.__dict__[_NAME] = bool(found)
            return
        with torch._C._DisableTorchDispatch():
            value = torch.full(tuple(result.shape), found, dtype=result.dtype)
        self.make_up(result, value)

    def forget(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Forget the values of the arguments that an operator writes to."""
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            for tensor in tensors_in(value):
                known = isinstance(tensor, FakeTensor) and tensor.__dict__.get(_VALUE_NAME)
                if known:
                    known.validity.is_good = False
                tensor.__dict__.pop(_NAME, None)

    def _compute(
        self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, known: list[Known]
    ) -> None:
        real_kwargs = {name: _real(value) for name, value in kwargs.items()}
        real_kwargs.pop("pin_memory", None)
        try:
            with torch._C._DisableTorchDispatch():
                real = func(*_real(args), **real_kwargs)
        except Exception:
            # No kernel for the CPU, say: it stays unknown.
            self.forget(func, args, kwargs)
            return
        if func in _FILLING:
            known[0].validity.is_made_up = any(one.validity.is_made_up for one in known[1:])
        by_storage = {one.real.untyped_storage()._cdata: one.validity for one in known}
        made_up = any(one.validity.is_made_up for one in known)
        for out, value in zip(tensors_in(result), tensors_in(real), strict=False):
            if out.shape != value.shape:
                continue
            validity = by_storage.get(value.untyped_storage()._cdata)
            if isinstance(out, FakeTensor):
                out.__dict__[_VALUE_NAME] = Known(value, validity or _Validity(True, made_up))

    def _choose(self, func: Any, args: Any, result: Any) -> None:
        """Makes up indices evenly spread over the choices."""
        source = args[0]
        for out in tensors_in(result):
            if out.dtype is not torch.int64 or not _is_few(out) or not source.dim():
                continue
            dim = self._dimension(func, args)
            most = source.shape[dim] if dim is not None else source.numel()
            with torch._C._DisableTorchDispatch():
                # In turn along the flat order: neighbours differ.
                value = (torch.arange(out.numel()) % max(int(most), 1)).reshape(tuple(out.shape))
            self.make_up(out, value)

    def _dimension(self, func: Any, args: Any) -> int | None:
        if func is aten.topk.default:
            return int(args[2]) if len(args) > 2 else -1
        if func in (aten.max.dim, aten.sort.default):
            return int(args[1]) if len(args) > 1 else -1
        if func is aten.argmax.default:
            return int(args[1]) if len(args) > 1 and args[1] is not None else None
        return -1

    def make_up(self, fake: Tensor, value: Tensor) -> None:
        """Give a tensor plausible values."""
        if isinstance(fake, FakeTensor):
            fake.__dict__[_VALUE_NAME] = Known(value, _Validity(is_made_up=True))


def _real(value: Any) -> Any:
    if isinstance(value, Tensor):
        found = known_of(value)
        return value if found is None else found.real
    if isinstance(value, list | tuple):
        return type(value)(_real(item) for item in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value
