# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own kernels take while they run, operator by operator.

The rules are those of `ATen/native/cuda`, of PyTorch 2.11; each was held against a recording of
the operator on an H100. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.reductions import Reduction, partial_bytes

__all__ = ["RULES", "Size", "copied", "reduced"]

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)

#: Bytes; or likely, at least and at most, where values or a library decide.
Size = int | tuple[int, int, int]

Rule = Callable[[Card, Any, Any, Any], Sequence[Size]]


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def copied(*tensors: Any) -> list[int]:
    """Copies of what is not laid out one after the other."""
    return [_bytes(one) for one in tensors if isinstance(one, Tensor) and not one.is_contiguous()]


def _up(a: int, b: int) -> int:
    return -(-a // b) * b


# Reductions.


def reduced(
    card: Card, tensor: Tensor, dims: Any, *, partial: int | None = None, unrolled: int = 4
) -> list[int]:
    """Partial results and semaphores of a reduction.

    Args:
        card: The card.
        tensor: What is reduced.
        dims: Its dimensions; None or none are all.
        partial: Bytes of a partial result, where they are not those of a sum.
        unrolled: As `Reduction` has it.
    """
    if tensor.device.type != "cuda":
        return []
    item = tensor.element_size()
    own = 4 if tensor.dtype in _HALVES else item
    every = tuple(range(tensor.dim()))
    chosen = every if dims is None or (isinstance(dims, list | tuple) and not dims) else dims
    shape = tuple(tensor.shape)
    wanted = Reduction(
        shape,
        tuple(tensor.stride()),
        (chosen,) if isinstance(chosen, int) else tuple(chosen),
        item,
        own if partial is None else partial,
        unrolled,
    )
    return list(partial_bytes(wanted, card))


def _sum(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return reduced(card, args[0], args[1] if len(args) > 1 else None)


def _norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return reduced(card, args[0], args[2] if len(args) > 2 else None)


def _moments(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    # A partial result is a mean, a sum of squares, and two counts.
    return reduced(card, args[0], args[1] if len(args) > 1 else None, partial=16, unrolled=2)


def _extreme(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    dims = args[1] if len(args) > 1 else None
    return reduced(card, args[0], dims, partial=16)


def _plain_extreme(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    dims = args[1] if len(args) > 1 else None
    return reduced(card, args[0], dims, partial=args[0].element_size())


def _any(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return reduced(card, args[0], args[1] if len(args) > 1 else None, partial=1)


def _loss(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    """A loss of each element, then its mean or sum."""
    if not isinstance(result, Tensor) or result.dim() or not args[0].numel():
        return []
    shape = (args[0].numel(),)
    item = args[0].element_size()
    parts = partial_bytes(Reduction(shape, (1,), (0,), item, max(item, 4)), card)
    return [_bytes(args[0]), *parts]


# Attention.


def _safe_softmax(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    source = args[0]
    rows = source.numel() // max(source.shape[args[1]], 1)
    return [source.numel(), rows, 4]


def _softmax_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    # The product of gradient and output.
    return [_bytes(args[0])]


def _cudnn_forward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return [256]


def _cudnn_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    queries = batch * heads * length
    workspace = queries * (width + 1) * 4 + 256
    if key.shape[1] != heads:
        workspace += 2 * batch * heads * key.shape[2] * width * query.element_size()
    return [workspace]


def _flash_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rows = batch * heads * _up(length, 128)
    rounded = _up(width, 32) if width <= 128 else _up(width, 64)
    found = [rows * 4, rows * rounded * 4]
    if key.shape[1] != heads:
        found += [batch * key.shape[2] * heads * width * query.element_size()] * 2
    return found


def _efficient_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    """delta, then what gradients of queries are added up in; at the peak of both."""
    query = args[1]
    batch, heads, length, width = query.shape
    delta = batch * heads * length * 4
    floats = batch * heads * length * width * 4
    products = [floats] if query.dtype is torch.float32 else [floats] * 3
    blocks = -(-length // 64)
    wide = 64 if width <= 64 else 128 if width <= 128 else _up(width, 128)
    workspace = batch * heads * blocks * (16 + 64 * wide * 4)
    if sum(products) + delta > workspace:
        return [*products, delta, delta]
    return [delta, workspace]


# Indices.


def _sorting(n: int, item: int = 8) -> Size:
    """cub's memory for sorting n pairs: both again, and some counts."""
    likely = 2 * item * n + 17920 + n // 4
    return likely, likely // 2, likely * 5 // 4


def _embedding(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return copied(args[1])


def _embedding_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    grad, indices, rows = args[0], args[1], int(args[2])
    copies = copied(grad, indices)
    n = indices.numel()
    if n <= 3072:
        return copies
    width = result.shape[-1]
    segments = min(n, rows)
    partial = n // 10 + segments
    weight = 4 if grad.dtype in _HALVES or grad.dtype is torch.float32 else 8
    rows_found: Size = (8 * segments, 8, 8 * segments)
    lists: list[Size] = [*([8 * n] * 4), rows_found, rows_found]
    # How often an index comes decides how many pieces are added up: at least one of each list
    # of ten, and one for each row that comes.
    few = n // 10 + 1
    parts: list[Size] = [
        (size * partial, size * few, size * partial) for size in (8, width * weight)
    ]
    return [*copies, *lists, *parts]


def _index_put(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    accumulate = bool(args[3]) if len(args) > 3 else bool(kwargs.get("accumulate", False))
    indices, values = args[1], args[2]
    n = max((one.numel() for one in indices if isinstance(one, Tensor)), default=0)
    if not accumulate or not n:
        return []
    return [*copied(values), *([8 * n] * 4), _sorting(n)]


def _nonzero(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return [1023, 4]


def _sort(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    source = args[0]
    n = source.numel()
    if n <= 4096 or source.dim() != 1:
        return []
    return [8 * n, _sorting(n, 4)]


# Normalisation.


def _layer_norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return copied(args[0])


def _layer_norm_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return copied(args[0], args[1])


def _group_norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    both = args[0].shape[0] * args[0].shape[1] * 4
    return [*copied(args[0]), both, both]


def _group_norm_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    both = args[1].shape[0] * args[1].shape[1] * 4
    return [both, both, both]


def _foreach_norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    tensors = args[0]
    chunks = max((-(-one.numel() // 65536) for one in tensors), default=0)
    return [len(tensors) * chunks * 4]


def _cumulated(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return [1023 + args[0].numel() // 100] if args[0].dim() == 1 else []


def _ctc_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    # As much again as the forward pass has kept.
    return [_bytes(args[6])]


RULES: dict[Any, Rule] = {
    aten._ctc_loss_backward.default: _ctc_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _sum,
    aten.mean.dim: _sum,
    aten.linalg_vector_norm.default: _norm,
    aten.var.correction: _moments,
    aten.std.correction: _moments,
    aten.var_mean.correction: _moments,
    aten.max.dim: _extreme,
    aten.min.dim: _extreme,
    aten.argmax.default: _extreme,
    aten.argmin.default: _extreme,
    aten.max.default: _plain_extreme,
    aten.min.default: _plain_extreme,
    aten.amax.default: _plain_extreme,
    aten.amin.default: _plain_extreme,
    aten.any.default: _any,
    aten.all.default: _any,
    aten.any.dim: _any,
    aten.all.dim: _any,
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.huber_loss.default: _loss,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_forward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten.nonzero.default: _nonzero,
    aten.sort.default: _sort,
    aten.cumsum.default: _cumulated,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._foreach_norm.Scalar: _foreach_norm,
}
