# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks as cuDNN runs them, on fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "FUNCTIONS",
    "as_forward",
    "backward",
    "flatten",
    "forward",
    "reserve_bytes",
    "workspace_bytes",
]

aten = torch.ops.aten

# cuDNN's numbers of the kinds.
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def _weights_length(weights: list[Tensor]) -> int:
    """Elements of the buffer in which cuDNN wants all weights, each aligned to 128 bytes."""
    item = weights[0].element_size()
    return sum(-(-w.numel() * item // 128) * 128 // item for w in weights)


def _run(mode: str, args: tuple[Any, ...]) -> Any:
    """`torch._VF.lstm` and its like: of a batch, or of a packed sequence."""
    data: Tensor = args[0]
    is_packed = isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    if is_packed:
        data, sizes, hidden, weights, _, layers, dropout, train, both = args
        batch_first, lengths = False, [int(size) for size in sizes.tolist()]
    else:
        data, hidden, weights, _, layers, dropout, train, both, batch_first = args
        lengths = []
    state = hidden[0] if mode == "lstm" else hidden
    cell = hidden[1] if mode == "lstm" else None
    width = weights[1].shape[1]
    projected = state.shape[-1] if state.shape[-1] != width else 0
    out = aten._cudnn_rnn(
        data,
        list(weights),
        len(weights) // (layers * (2 if both else 1)),
        _buffer_of(list(weights)),
        state.contiguous(),
        None if cell is None else cell.contiguous(),
        _MODES[mode],
        width,
        projected,
        layers,
        batch_first,
        dropout,
        train,
        both,
        lengths,
        None,
    )
    return (out[0], out[1], out[2]) if mode == "lstm" else (out[0], out[1])


def flatten(module: Any) -> None:
    """As RNNBase.flatten_parameters: all weights of a network in one buffer."""
    weights = [w for w in module._flat_weights if isinstance(w, Tensor)]
    if not weights or weights[0].device.type != "cuda":
        return
    storages = {w.untyped_storage()._cdata for w in weights}
    if len(storages) == 1 or len({w.dtype for w in weights}) > 1:
        return
    with torch.no_grad():
        buffer = weights[0].new_empty(_weights_length(weights))
        for weight, view in zip(weights, _views(buffer, weights), strict=True):
            weight.data = view


def _views(buffer: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """A view of a buffer for each weight, one after the other."""
    begin, found = 0, []
    for weight in weights:
        found.append(buffer.narrow(0, begin, weight.numel()).view(weight.shape))
        begin += _weights_length([weight])
    return found


def _buffer_of(weights: list[Tensor]) -> Tensor:
    """The buffer that weights lie in, or a new one that they would be copied into."""
    needed = _weights_length(weights)
    first = weights[0].detach()
    if len({w.untyped_storage()._cdata for w in weights}) == 1:
        return first.as_strided((needed,), (1,), 0)
    return first.new_empty(needed)


def _function(mode: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return _run(mode, args)

    return run


#: In the place of the functions of `torch._VF`, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {mode: _function(mode) for mode in _MODES}


def _cells(args: Any) -> tuple[int, int, int]:
    """Bytes of one layer's states over the whole sequence; layers; gates of a cell."""
    data, kind, width, layers, both = args[0], args[6], args[7], args[9], args[13]
    places = data.numel() // max(data.shape[-1], 1)
    directions = 2 if both else 1
    gates = 4 if kind == _MODES["lstm"] else 3 if kind == _MODES["gru"] else 1
    return places * width * data.element_size() * directions, layers, gates


def as_forward(args: Any) -> tuple[Any, ...]:
    """The arguments of the backward operator in the order of the forward one."""
    return (*args[:6], *args[10:])


def reserve_bytes(args: Any) -> int:
    """What cuDNN keeps for the backward pass: gates and states of each layer, and between
    layers what was not dropped. Measured for an LSTM."""
    each, layers, gates = _cells(args)
    mask = each // args[0].element_size() // 8 if args[11] else 0
    return each * (layers * (gates + 1) + layers - 1) + (layers - 1) * mask + 256


def workspace_bytes(args: Any) -> int:
    """What cuDNN takes while it runs: the gates of all layers, and some states."""
    each, layers, gates = _cells(args)
    return int(each * (layers * gates + 1.58))


def forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The forward pass, with what it keeps for the backward pass."""
    out = list(mode.values.run(func, args, kwargs))
    if args[12] and args[0].device.type == "cuda":
        with torch.no_grad():
            out[3] = args[0].new_empty(reserve_bytes(args), dtype=torch.uint8)
    return tuple(out)


def backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The backward pass, whose fake kernel wants a buffer that a forward without one lacks."""
    data, weights, state, cell = args[0], args[1], args[4], args[5]
    mask = args[-1]
    with torch.no_grad():
        grads: list[Any] = [
            data.new_empty(data.shape) if mask[0] else None,
            state.new_empty(state.shape) if mask[1] else None,
            cell.new_empty(cell.shape) if mask[2] and cell is not None else None,
        ]
        # Gradients of weights are views of one buffer.
        views = _views(data.new_empty(_weights_length(weights)), list(weights))
    return (*grads, views if mask[3] else [None] * len(weights))
