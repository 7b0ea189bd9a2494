# SPDX-License-Identifier: Apache-2.0
"""Operators that fake tensors can't run by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neutracer.rehearsal import recurrent
from neutracer.rehearsal.truths import truth_told
from neutracer.rehearsal.values import known_of

__all__ = ["REPLACED"]

aten = torch.ops.aten


def _item(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A tensor's value as a number of Python."""
    tensor = args[0]
    known = known_of(tensor)
    if known is not None:
        if known.validity.is_made_up:
            mode.notes.add("{line} asks for a value that depends on data: one was made up.")
        with torch._C._DisableTorchDispatch():
            return known.real.item()
    value: Any = 1.0 if tensor.dtype.is_floating_point else 1
    if tensor.dtype is torch.bool:
        value = False
    if tensor.dtype.is_complex:
        value = complex(1.0)
    mode.notes.add(f"{{line}} asks for the value of a tensor: it got {value}, which is made up.")
    return value


def _positions(source: Any) -> Any:
    """Where a tensor is not zero, one row each; of an unknown one every other place."""
    known, truth = known_of(source), truth_told(source)
    with torch._C._DisableTorchDispatch():
        if known is not None:
            return torch.nonzero(known.real)
        if truth is None:
            places = torch.arange(-(-source.numel() // 2)).mul_(2)
        else:
            places = torch.arange(source.numel() if truth else 0)
        if not source.dim():
            return places[:, None][:, :0]
        return torch.stack(torch.unravel_index(places, tuple(source.shape)), 1)


def _note_shape(mode: Any, *sources: Any) -> None:
    found = [known_of(source) for source in sources]
    if any(one is None or one.validity.is_made_up for one in found):
        mode.notes.add("{line} makes a shape that depends on data: it was made up.")


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    _note_shape(mode, args[0])
    value = _positions(args[0])
    result = args[0].new_empty(tuple(value.shape), dtype=torch.int64)
    mode.values.make_up(result, value)
    return result


def _by_mask(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Indexing, whose masks become positions first, as in PyTorch's own kernels."""
    places: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
            continue
        found = _nonzero(mode, aten.nonzero.default, (index,), {})
        mode.note(aten.nonzero.default, (index,), {}, found)
        places += found.unbind(1)
    return mode.values.run(func, (args[0], places, *args[2:]), kwargs)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mask = args[1]
    shape = torch.broadcast_shapes(args[0].shape, mask.shape)
    if tuple(mask.shape) != tuple(shape):
        mask = mask.expand(shape)
    _note_shape(mode, mask)
    return args[0].new_empty((len(_positions(mask)),))


def _of_values(mode: Any, func: Any, args: Any, kwargs: Any, made_up: Callable[[], Any]) -> Any:
    """Results as large as values make them, or as `made_up` does where they are not known."""
    source = args[0]
    _note_shape(mode, source)
    known = known_of(source)
    if known is None or any(isinstance(arg, torch.Tensor) for arg in args[1:]):
        return made_up()
    with torch._C._DisableTorchDispatch():
        real = func(known.real, *args[1:], **kwargs)
    several = real if isinstance(real, tuple) else (real,)
    found = []
    for value in several:
        out = source.new_empty(tuple(value.shape), dtype=value.dtype)
        mode.values.make_up(out, value)
        found.append(out)
    return tuple(found) if isinstance(real, tuple) else found[0]


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    flat, places = (source.numel(),), tuple(source.shape)

    def distinct() -> Any:
        lists = [source.new_empty(shape, dtype=torch.int64) for shape in (places, flat)]
        return (source.new_empty(flat), *lists)

    return _of_values(mode, func, args, kwargs, distinct)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    rows = max(int(least), 1)
    dtype = torch.int64 if len(args) < 2 or args[1] is None else torch.float64
    return _of_values(mode, func, args, kwargs, lambda: args[0].new_empty((rows,), dtype=dtype))


def _repeat(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    size = kwargs.get("output_size")
    if size is not None:
        return args[0].new_empty((size,))
    return _of_values(mode, func, args, kwargs, lambda: args[0].new_empty((args[0].numel(),)))


def _add(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A sum; attention's scores get their mask in place."""
    if not mode.attention.is_plain:
        return mode.values.run(func, args, kwargs)
    aten.add_.Tensor(*args, **kwargs)
    return aten.detach.default(args[0])


def _plain_ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether cuDNN computes the loss of sequences: it wants targets in the CPU's memory."""
    return False


def _ctc_loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The loss of sequences, and what it keeps: each place of the longest target, and a blank on
    either side of it."""
    likely, targets = args[0], args[1]
    steps, batch = likely.shape[:2]
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.numel() // max(batch, 1))
    kept = likely.new_empty((batch, steps, 2 * longest + 1))
    return likely.new_empty((batch,)), kept


def _ctc_loss_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[1].new_empty(args[1].shape)


def _in_place(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Lists of tensors changed in place; of gradients that are unscaled none is infinite."""
    return None


REPLACED: dict[Any, Callable[..., Any]] = {
    **recurrent.REPLACED,
    aten.add.Tensor: _add,
    aten._local_scalar_dense.default: _item,
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _by_mask,
    aten.index_put.default: _by_mask,
    aten.index_put_.default: _by_mask,
    aten._index_put_impl_.default: _by_mask,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat,
    **{
        getattr(getattr(aten, name), overload): _plain_ctc
        for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
        if hasattr(aten, name)
        for overload in getattr(aten, name).overloads()
    },
    aten._ctc_loss.default: _ctc_loss,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.default: _ctc_loss_backward,
    aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _in_place,
    **{
        getattr(getattr(aten, name), overload): _in_place
        for name in ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")
        for overload in getattr(aten, name).overloads()
    },
}
