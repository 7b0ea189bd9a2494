# SPDX-License-Identifier: Apache-2.0
"""Workspaces and reserves of recurrent layers and of packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.kernels.scratch import tensor_bytes
from neutracer.rehearsal.values import known_of

# ---- Packing -----------------------------------------------------------------------------

# Lengths are values, which PyTorch's functions read from memory; copies and their order are those
# of `PackedSequence.cpp`.


def numbers(tensor: Tensor) -> list[int] | None:
    """The values of a small tensor of whole numbers, where they are known."""
    known = known_of(tensor)
    if known is None:
        return None
    with torch._C._DisableTorchDispatch():
        return [int(one) for one in known.real.tolist()]


def _spans(lengths: list[int]) -> list[tuple[int, int, int]]:
    """(begin, end, count) of runs of steps with the same number of sequences."""
    found, begin = [], 0
    for count in range(len(lengths), 0, -1):
        end = lengths[count - 1]
        if end > begin:
            found.append((begin, end, count))
            begin = end
    return found


class _Pack(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, source: Tensor, spans: list[tuple[int, int, int]]) -> Tensor:
        ctx.shape, ctx.spans = source.shape, spans
        rest = source.shape[2:]
        steps = [source[a:b, :n].contiguous().view(-1, *rest) for a, b, n in spans]
        return torch.cat(steps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out, at = grad.new_zeros(ctx.shape), 0
        for begin, end, count in ctx.spans:
            rows = (end - begin) * count
            out[begin:end, :count].copy_(
                grad[at : at + rows].view(end - begin, count, *out.shape[2:])
            )
            at += rows
        return out, None


def _pack(source: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    source = source.transpose(0, 1) if batch_first else source
    known = numbers(lengths)
    if known is None:
        # A program that asks for them itself says so with its line; these are all as long.
        known = [source.shape[0]] * source.shape[1]
    if not known or known[-1] <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0")
    spans = _spans(known)
    sizes = [count for begin, end, count in spans for _ in range(end - begin)]
    return _Pack.apply(source, spans), torch.tensor(sizes)


def _pad(
    data: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int
) -> tuple[Tensor, Tensor]:
    counts = numbers(sizes) or [int(data.shape[0])]
    steps = max(len(counts), total)
    out = data.new_full((steps, counts[0], *data.shape[1:]), value)
    at = begin = 0
    lengths = [0] * counts[0]
    while begin < len(counts):
        count, end = counts[begin], begin
        while end < len(counts) and counts[end] == count:
            end += 1
        rows = (end - begin) * count
        part = data[at : at + rows].view(end - begin, count, *data.shape[1:])
        out[begin:end, :count].copy_(part)
        lengths[:count] = [end] * count
        at, begin = at + rows, end
    return (out.transpose(0, 1) if batch_first else out), torch.tensor(lengths)


# ---- Recurrent ---------------------------------------------------------------------------

aten = torch.ops.aten

# What cuDNN adds for itself, at most.
_SMALL = 1 << 20

# cuDNN's numbers of the kinds.
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}

# By kind what a cell keeps, and what it works on; of a GRU's new gate the parts of input and
# state are apart. Measured on an H100 with cuDNN 9.19 for LSTM and GRU.
_CELLS = {0: (1, 1.0), 1: (1, 1.0), 2: (4, 4.0), 3: (5, 3.5)}


def _weights_length(weights: list[Tensor], dtype: torch.dtype) -> int:
    """Elements of cuDNN's weight buffer, each weight aligned to 128 bytes."""
    item = dtype.itemsize
    return sum(-(-w.numel() * item // 128) * 128 // item for w in weights)


def _run(mode: str, *args: Any) -> Any:
    """`torch._VF.lstm` and the like, for a batch or a packed sequence."""
    data: Tensor = args[0]
    is_packed = isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    if is_packed:
        data, sizes, hidden, weights, _, layers, dropout, train, both = args
        batch_first, lengths = False, numbers(sizes) or [int(data.shape[0])]
    else:
        data, hidden, weights, _, layers, dropout, train, both, batch_first = args
        lengths = []
    state = hidden[0] if mode == "lstm" else hidden
    cell = hidden[1] if mode == "lstm" else None
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        data, state = data.to(dtype), state.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        weights = list(_Narrowed.apply(dtype, *weights))
    width = weights[1].shape[1]
    projected = state.shape[-1] if state.shape[-1] != width else 0
    out = aten._cudnn_rnn(
        *(data, list(weights), len(weights) // (layers * (2 if both else 1))),
        *(_buffer_of(list(weights)), state.contiguous()),
        None if cell is None else cell.contiguous(),
        *(_MODES[mode], width, projected, layers, batch_first, dropout, train, both, lengths, None),
    )
    return (out[0], out[1], out[2]) if mode == "lstm" else (out[0], out[1])


class _Narrowed(torch.autograd.Function):  # type: ignore[misc]
    """Weights cast by autocast, in one buffer."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [weight.dtype for weight in weights]
        buffer = weights[0].new_zeros(_weights_length(list(weights), dtype), dtype=dtype)
        return tuple(_views(buffer, list(weights)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        wide = [grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes, strict=True)]
        return (None, *wide)


def flatten(module: Any) -> None:
    """As RNNBase.flatten_parameters: all weights of a network in one buffer."""
    weights = [w for w in module._flat_weights if isinstance(w, Tensor)]
    if not weights or weights[0].device.type != "cuda":
        return
    storages = {w.untyped_storage()._cdata for w in weights}
    if len(storages) == 1 or len({w.dtype for w in weights}) > 1:
        return
    with torch.no_grad():
        buffer = weights[0].new_empty(_weights_length(weights, weights[0].dtype))
        for weight, view in zip(weights, _views(buffer, weights), strict=True):
            weight.data = view


def _views(buffer: Tensor, weights: list[Tensor]) -> list[Tensor]:
    begin, found = 0, []
    for weight in weights:
        found.append(buffer.narrow(0, begin, weight.numel()).view(weight.shape))
        begin += _weights_length([weight], buffer.dtype)
    return found


def _buffer_of(weights: list[Tensor]) -> Tensor:
    """The buffer that holds the weights, or a new one."""
    needed = _weights_length(weights, weights[0].dtype)
    first = weights[0].detach()
    if len({w.untyped_storage()._cdata for w in weights}) == 1:
        return first.as_strided((needed,), (1,), 0)
    return first.new_empty(needed)


#: Replacements in `torch._VF`, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{mode: partial(_run, mode) for mode in _MODES},
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
}


@dataclass(frozen=True)
class _Shape:
    """What of a call decides how much it takes."""

    each: int  # Bytes of the states of one layer, in all its directions, over the whole sequence.
    layers: int
    kept: int  # States of a cell that are kept for its backward pass, without its result.
    gates: float  # States of a cell that are there while it runs, on average over the layers.
    states: int  # Bytes of the result.


def _shape(args: Any) -> _Shape:
    data, kind, width, projected, layers, both = (args[n] for n in (0, 6, 7, 8, 9, 13))
    places = data.numel() // max(data.shape[-1], 1) * data.element_size()
    directions = 2 if both else 1
    kept, gates = _CELLS[kind]
    states = places * (projected or width) * directions
    return _Shape(places * width * directions, layers, kept, gates, states)


def as_forward(args: Any) -> tuple[Any, ...]:
    """The arguments of the backward operator in the order of the forward one."""
    return (*args[:6], *args[10:])


def _is_turned(args: Any) -> bool:
    """Whether the batch comes first; cuDNN wants it second."""
    return bool(args[10] and not args[14])


def _turned_bytes(tensor: Tensor | None, args: Any) -> int:
    if tensor is None:
        return 0
    by_step = tensor.transpose(0, 1) if _is_turned(args) else tensor
    return 0 if by_step.is_contiguous() else tensor_bytes(tensor)


def reserve_bytes(args: Any) -> tuple[int, int, int]:
    """The reserve for the backward pass: likely, least and most bytes, measured for an LSTM."""
    shape = _shape(args)
    mask = shape.each // args[0].element_size() // 8 if args[11] else 0
    between = shape.layers - 1
    likely = shape.each * (shape.layers * (shape.kept + 1) + between) + between * mask + 256
    least = shape.each * shape.layers * shape.kept
    most = shape.each * (shape.layers * (shape.kept + 2) + 2 * between)
    return likely, min(least, likely), most + 2 * between * mask + _SMALL


def _workspace(args: Any) -> tuple[int, int, int]:
    """The gates of all layers and some states: likely, least and most bytes."""
    shape = _shape(args)
    likely = int(shape.each * (shape.layers * shape.gates + 1.58))
    if not args[12]:
        # Without a backward pass one layer after the other.
        least = int(shape.each * shape.gates) // 2
        return likely, min(least, likely), likely * 3 // 2 + _SMALL
    return likely, likely // 2, likely * 3 // 2 + shape.each * shape.layers + _SMALL


def takes(func: Any, args: Any) -> list[tuple[int, int, int]]:
    """Likely, least and most bytes of each scratch request of a call."""
    given = args if func is aten._cudnn_rnn.default else as_forward(args)
    found = [_workspace(given)]
    copies = [_turned_bytes(args[0], given)]
    if func is aten._cudnn_rnn_backward.default:
        if args[7] is None:
            # Zeros for a missing gradient.
            copies.append(_shape(given).states)
        grad = _turned_bytes(args[7], given)
        # The gradient's copy is gone before those of the weights are made.
        weights = sum(tensor_bytes(w) for w in args[1]) if args[-1][3] else 0
        copies.append(max(grad - weights, 0))
    return [*found, *((n, n, n) for n in copies if n)]


def forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The forward pass, with what it keeps for the backward pass."""
    out = list(mode.values.run(func, args, kwargs))
    if args[0].device.type != "cuda":
        return tuple(out)
    with torch.no_grad():
        if _is_turned(args):
            batch, steps, width = out[0].shape
            out[0] = args[0].new_empty((steps, batch, width)).transpose(0, 1)
        if args[12]:
            likely, least, most = reserve_bytes(args)
            out[3] = args[0].new_empty(likely, dtype=torch.uint8)
            mode.bounded(out[3], least, most)
    return tuple(out)


def backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The backward pass, whose fake kernel wants a buffer that a forward without one lacks."""
    data, weights, state, cell = args[0], args[1], args[4], args[5]
    mask = args[-1]
    with torch.no_grad():
        shape = data.transpose(0, 1).shape if _is_turned(as_forward(args)) else data.shape
        given = data.new_empty(shape)
        given = given.transpose(0, 1) if _is_turned(as_forward(args)) else given
        grads: list[Any] = [
            given,
            state.new_empty(state.shape) if mask[1] else None,
            cell.new_empty(cell.shape) if mask[2] and cell is not None else None,
        ]
        # Gradients of weights are views of one buffer.
        length = _weights_length(list(weights), data.dtype)
        views = _views(data.new_empty(length), list(weights)) if mask[3] else None
    return (*grads, [None] * len(weights) if views is None else views)


def _cell(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """An LSTM or GRU cell: states, and gates for the backward pass."""
    state = args[2]
    if func is aten._thnn_fused_lstm_cell.default:
        made = state.new_empty(state.shape), state.new_empty(state.shape)
        return (*made, args[0].new_empty(args[0].shape))
    rows, width = state.shape
    return state.new_empty(state.shape), args[0].new_empty((rows, 5 * width))


def _lstm_cell_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    cell, gates, has_bias = args[2], args[4], args[5]
    bias = gates.new_empty(gates.shape[1:]) if has_bias else None
    return gates.new_empty(gates.shape), cell.new_empty(cell.shape), bias


def _gru_cell_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    grad, has_bias = args[0], args[2]
    rows, width = grad.shape
    sides = [grad.new_empty((rows, 3 * width)) for _ in range(2)]
    biases = [grad.new_empty((3 * width,)) if has_bias else None for _ in range(2)]
    return (*sides, grad.new_empty(grad.shape), *biases)


#: Operators without a complete fake kernel.
REPLACED: dict[Any, Callable[..., Any]] = {
    aten._cudnn_rnn.default: forward,
    aten._cudnn_rnn_backward.default: backward,
    aten._thnn_fused_lstm_cell.default: _cell,
    aten._thnn_fused_gru_cell.default: _cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
