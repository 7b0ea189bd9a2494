# SPDX-License-Identifier: Apache-2.0
"""Scratch memory of reductions, sorts and convolutions, by card and PyTorch release."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.cards import Card

# ---- Reductions --------------------------------------------------------------------------

# `setReduceConfig` and `ReduceConfig` in `ATen/native/cuda/Reduce.cuh`: partial results lie in
# global memory, with a semaphore per column of blocks.

_MOST_THREADS = 512
_WARP = 32
_MOST_VALUES, _LEAST_VALUES = 256, 16


@dataclass(frozen=True)
class Reduction:
    """A reduction of one tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dims: tuple[int, ...]
    item: int  # Bytes of an element.
    partial: int  # Bytes of a partial result: 4 for a sum of halves, which is made in floats.
    unrolled: int = 4  # Values that a thread loads at once where it can (`vt0` in the source).


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _merged(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(size, stride) of dimensions, fastest first, contiguous neighbours merged."""
    found: list[tuple[int, int]] = []
    for size, stride in sorted((dim for dim in dims if dim[0] > 1), key=lambda dim: dim[1]):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = (found[-1][0] * size, found[-1][1])
        else:
            found.append((size, stride))
    return found


def partial_bytes(reduction: Reduction, card: Card) -> tuple[int, int]:
    """Bytes of partial results and of semaphores; zeros where each block has its own results.

    Example:
        >>> from neutracer.rehearsal.cards import find_card
        >>> partial_bytes(Reduction((4096, 1024), (1024, 1), (0,), 4, 4), find_card("H200"))
        (33554432, 32)
    """
    wanted = {dim % len(reduction.shape) for dim in reduction.dims} if reduction.shape else set()
    pairs = list(zip(reduction.shape, reduction.strides, strict=True))
    reduced = _merged([pair for dim, pair in enumerate(pairs) if dim in wanted])
    kept = _merged([pair for dim, pair in enumerate(pairs) if dim not in wanted])
    inputs = math.prod(size for size, _ in reduced)
    outputs = math.prod(size for size, _ in kept)
    if inputs * outputs == 0 or not reduced:
        return 0, 0
    is_fast = not kept or reduced[0][1] < kept[0][1]
    first, second = (inputs, outputs) if is_fast else (outputs, inputs)
    stride = (reduced if is_fast else kept)[0][1]
    vector = 1
    if stride == 1:
        dimensions = len(reduced) + len(kept)
        if is_fast and first > 128 and dimensions == 1 and reduction.unrolled >= 4:
            first //= 4
        elif not is_fast:
            vector = _output_vector(reduction, kept, reduced)
            first //= vector
    return _launched(reduction, card, is_fast, vector, (first, second), (inputs, outputs))


def _output_vector(
    reduction: Reduction, kept: list[tuple[int, int]], reduced: list[tuple[int, int]]
) -> int:
    """Outputs per thread."""
    vector = 4
    numbers = [kept[0][0], *(stride for _, stride in (*kept[1:], *reduced))]
    while vector > 1 and any(number % vector for number in numbers):
        vector //= 2
    return vector


def _launched(
    reduction: Reduction,
    card: Card,
    is_fast: bool,
    vector: int,
    dims: tuple[int, int],
    counts: tuple[int, int],
) -> tuple[int, int]:
    inputs, outputs = counts
    most = _MOST_THREADS // vector
    # Rounded down to powers of two.
    first, second = (1 << (max(dim, 1).bit_length() - 1) if dim < most else most for dim in dims)
    width = min(first, _WARP)
    height = min(second, most // width)
    width = min(first, most // height)
    step_in, step_out = (width, 1) if is_fast else (1, width)
    is_split = _up(inputs, step_in) >= min(height * 16, _MOST_VALUES)
    if is_split:
        step_in *= height
    else:
        step_out *= height
    grid = _up(outputs // vector, step_out)
    target = card.processors * (card.processor_threads // (width * height))
    values = _up(inputs, step_in)
    if not is_split or values < _MOST_VALUES or grid > target:
        return 0, 0
    blocks = max(min(_up(target, grid), _up(values, _LEAST_VALUES)), _up(values, _MOST_VALUES))
    if blocks <= 1:
        return 0, 0
    nbytes = reduction.partial * outputs * blocks
    if not is_fast:
        nbytes *= width * vector
    return nbytes, 4 * grid


# ---- Scratch -----------------------------------------------------------------------------

# Rules of `ATen/native/cuda` in PyTorch 2.11, each checked against a recording on an H100; bytes.

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)

#: Bytes: likely, at least and at most, where values or a library decide; or one number.
Range = tuple[int, int, int]
Size = int | Range

Rule = Callable[[Card, Any, Any, Any], Sequence[Size]]


def tensor_bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def copied(*tensors: Any) -> list[int]:
    """Bytes of a copy of each tensor that is not contiguous."""
    return [
        tensor_bytes(one) for one in tensors if isinstance(one, Tensor) and not one.is_contiguous()
    ]


def reduced(
    card: Card, tensor: Tensor, dims: Any, *, partial: int | None = None, unrolled: int = 4
) -> list[int]:
    """Partial results and semaphores of a reduction.

    Args:
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
    axes = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    each = own if partial is None else partial
    wanted = Reduction(shape, tuple(tensor.stride()), axes, item, each, unrolled)
    return list(partial_bytes(wanted, card))


def _reduction(at: int = 1, **options: int) -> Rule:
    def rule(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
        return reduced(card, args[0], args[at] if len(args) > at else None, **options)

    return rule


_sum = _reduction()
# A partial result is a value and its index.
_extreme = _reduction(partial=16)
_any = _reduction(partial=1)


def _plain_extreme(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    return _reduction(partial=args[0].element_size())(card, args, kwargs, result)


def _loss(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    """Elementwise losses, then their mean or sum."""
    if not isinstance(result, Tensor) or result.dim() or not args[0].numel():
        return []
    shape = (args[0].numel(),)
    item = args[0].element_size()
    parts = partial_bytes(Reduction(shape, (1,), (0,), item, max(item, 4)), card)
    return [tensor_bytes(args[0]), *parts]


def _safe_softmax(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    source = args[0]
    rows = source.numel() // max(source.shape[args[1]], 1)
    return [source.numel(), rows, 4]


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
    rows = batch * heads * _up(length, 128) * 128
    unit = 32 if width <= 128 else 64
    rounded = _up(width, unit) * unit
    found = [rows * 4, rows * rounded * 4]
    if key.shape[1] != heads:
        found += [batch * key.shape[2] * heads * width * query.element_size()] * 2
    return found


def _efficient_backward(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    """`delta`, then the accumulator of query gradients, at the larger peak."""
    query = args[1]
    batch, heads, length, width = query.shape
    delta = batch * heads * length * 4
    floats = batch * heads * length * width * 4
    products = [floats] if query.dtype is torch.float32 else [floats] * 3
    wide = 64 if width <= 64 else _up(width, 128) * 128
    workspace = batch * heads * _up(length, 64) * (16 + 64 * wide * 4)
    if sum(products) + delta > workspace:
        return [*products, delta, delta]
    return [delta, workspace]


def _sorting(n: int, item: int = 8) -> Size:
    """cub's memory for sorting n pairs: a copy of both, and counts."""
    likely = 2 * item * n + 17920 + n // 4
    return likely, likely // 2, likely * 5 // 4


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


def _sort(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    source = args[0]
    n = source.numel()
    if n <= 4096 or source.dim() != 1:
        return []
    return [8 * n, _sorting(n, 4)]


def _copies(*places: int) -> Rule:
    return lambda card, args, kwargs, result: copied(*(args[place] for place in places))


def _group_norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    both = args[0].shape[0] * args[0].shape[1] * 4
    return [*copied(args[0]), both, both]


def _foreach_norm(card: Card, args: Any, kwargs: Any, result: Any) -> Sequence[Size]:
    tensors = args[0]
    chunks = max((_up(one.numel(), 65536) for one in tensors), default=0)
    return [len(tensors) * chunks * 4]


def _size_of(place: int) -> Rule:
    return lambda card, args, kwargs, result: [tensor_bytes(args[place])]


RULES: dict[Any, Rule] = {
    # Alpha, as the forward pass keeps it.
    **dict.fromkeys((aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _size_of(6)),
    **dict.fromkeys(
        (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim), _sum
    ),
    aten.linalg_vector_norm.default: _reduction(2),
    # A partial result is a mean, a sum of squares, and two counts.
    **dict.fromkeys(
        (aten.var.correction, aten.std.correction, aten.var_mean.correction),
        _reduction(partial=16, unrolled=2),
    ),
    **dict.fromkeys(
        (aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default), _extreme
    ),
    **dict.fromkeys(
        (aten.max.default, aten.min.default, aten.amax.default, aten.amin.default), _plain_extreme
    ),
    **dict.fromkeys((aten.any.default, aten.all.default, aten.any.dim, aten.all.dim), _any),
    **dict.fromkeys(
        (aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default), _loss
    ),
    aten._safe_softmax.default: _safe_softmax,
    # The product of gradient and output.
    aten._softmax_backward_data.default: _size_of(0),
    aten._scaled_dot_product_cudnn_attention.default: lambda *call: [256],
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.embedding.default: _copies(1),
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten.nonzero.default: lambda *call: [1023, 4],
    aten.sort.default: _sort,
    aten.cumsum.default: lambda card, args, *rest: (
        [1023 + args[0].numel() // 100] if args[0].dim() == 1 else []
    ),
    aten.native_layer_norm.default: _copies(0),
    aten.native_layer_norm_backward.default: _copies(0, 1),
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: lambda card, args, *rest: (
        [args[1].shape[0] * args[1].shape[1] * 4] * 3
    ),
    aten._foreach_norm.Scalar: _foreach_norm,
}


# ---- Known -------------------------------------------------------------------------------

SCHEMA = "neutracer.kernels/1"

_ENVIRONMENT = "NEUTRACER_KERNELS"


@dataclass(frozen=True)
class Facts:
    """Measurements on one card."""

    card: str = ""
    capability: tuple[int, int] = (0, 0)
    torch: str = ""
    cudnn: int = 0
    # By `convolution_key` the bytes of the workspaces, in their order.
    convolutions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Facts:
        """From a file's text."""
        try:
            plain = json.loads(text)
            if plain["schema"] != SCHEMA:
                raise ValueError(f"its schema is {plain['schema']!r}, not {SCHEMA!r}")
            major, minor = plain["capability"]
            found = {
                str(key): tuple(int(n) for n in sizes)
                for key, sizes in plain["convolutions"].items()
            }
            capability = int(major), int(minor)
            release, cudnn = str(plain["torch"]), int(plain["cudnn"])
            return cls(str(plain["card"]), capability, release, cudnn, found)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a field of the facts is missing or malformed: {error}") from None

    def to_text(self) -> str:
        """As a file."""
        plain: dict[str, Any] = {"schema": SCHEMA, "card": self.card}
        plain |= {"capability": list(self.capability), "torch": self.torch, "cudnn": self.cudnn}
        rows = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(list(sizes))}"
            for key, sizes in sorted(self.convolutions.items())
        )
        head = json.dumps(plain)[:-1]
        return f'{head}, "convolutions": {{\n{rows}\n}}}}\n'


def convolution_key(
    kind: str,
    dtype: str,
    is_last: bool,
    shapes: Iterable[Iterable[int]],
    numbers: Iterable[object],
) -> str:
    """The name of a convolution in a file of facts.

    Example:
        >>> convolution_key("forward", "float16", True, [(8, 3, 4, 4), (2, 3, 1, 1)], [1, 0, 1, 1])
        'forward float16 last 8x3x4x4 2x3x1x1 1 0 1 1'
    """
    order = "last" if is_last else "first"
    sides = ["x".join(map(str, shape)) for shape in shapes]
    return " ".join([kind, dtype, order, *sides, *(str(number) for number in numbers)])


def facts_for(card: Card) -> Facts:
    """The facts of a card: NEUTRACER_KERNELS's if they match its capability, else the built-in."""
    named = os.environ.get(_ENVIRONMENT)
    if named:
        try:
            found = Facts.read(Path(named).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{_ENVIRONMENT}={named}: {error}") from None
        if found.capability == card.capability:
            return found
    for entry in sorted(
        resources.files("neutracer").joinpath("rehearsal/facts").iterdir(), key=str
    ):
        if entry.name.endswith(".json"):
            found = Facts.read(entry.read_text(encoding="utf-8"))
            if found.capability == card.capability:
                return found
    return Facts()


# ---- Convolutions ------------------------------------------------------------------------

# cuDNN picks an engine per shape; its tensor-core kernels want aligned channels last. Measured on
# an H100 with cuDNN 9.19: other layouts cost copies of input, output and weights, and the weight
# gradient some partial results. The engine may also need no copies: hence ranges.

#: How many channels a kernel's tensors are a multiple of.
_ALIGNED = {torch.bfloat16: 8, torch.float16: 8, torch.float32: 4}

#: What partial results of the weights' gradient take: mostly, and at most.
_PARTIAL, _MOST_PARTIAL = 2 << 20, 17 << 20

#: An engine takes mostly no more than this share of the copies besides, and these bytes. One that
#: makes no copies takes nothing.
_MORE, _MORE_BYTES = 0.3, 9 << 20


@dataclass(frozen=True)
class _Shape:
    """The tensors and options of a convolution."""

    source: Tensor
    weight: Tensor
    output: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def is_last(self) -> bool:
        channels = self.source.shape[1]
        return bool(self.source.dim() > 2 and channels > 1 and self.source.stride(1) == 1)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, by a kernel of PyTorch."""
        return self.groups > 1 and self.groups == self.source.shape[1]

    @property
    def is_product(self) -> bool:
        """Whether it is one matrix product per image, without copies."""
        plain = all(n == 1 for n in (*self.weight.shape[2:], *self.stride))
        places = math.prod(self.source.shape[2:])
        item = self.source.element_size()
        return plain and not any(self.padding) and places % (16 // item) == 0

    @property
    def is_aligned(self) -> bool:
        aligned = _ALIGNED.get(self.source.dtype, 1)
        return all(one.shape[1] % aligned == 0 for one in (self.source, self.output))

    def copied(self, tensor: Tensor) -> int:
        """Bytes of a copy with its channels rounded up."""
        aligned = _ALIGNED.get(tensor.dtype, 1)
        channels = tensor.shape[1]
        rest = tensor_bytes(tensor) // max(channels, 1)
        return int(_up(channels, aligned) * aligned * rest)

    def copies(self) -> int:
        """Bytes of the copies that an engine needs."""
        if self.is_last:
            # Of channels-last tensors those whose channels are rounded up.
            both = (self.source, self.output)
            found = [n for t in both if (n := self.copied(t)) != tensor_bytes(t)]
            return sum(found) + (self.copied(self.weight) if found else 0)
        apart = self.copied(self.source) + self.copied(self.output)
        is_point = all(n == 1 for n in self.weight.shape[2:])
        return apart if is_point else apart + self.copied(self.weight)


class Convolutions:
    """The workspaces of convolutions on a card."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.facts = facts_for(card)

    def takes(self, func: Any, args: Any, result: Any) -> list[Range]:
        """Bytes of each workspace of a call, one after the other: likely, least, most."""
        if func is aten.convolution.default:
            source, weight, rest = args[0], args[1], args[3:]
            if source.device.type != "cuda":
                return []
            measured = self._measured("forward", source, weight, rest)
            return measured or [self._forward(_shape(source, weight, result, rest))]
        output, source, weight, rest = args[0], args[1], args[2], args[4:]
        if source.device.type != "cuda":
            return []
        shape = _shape(source, weight, output, rest)
        wanted = args[10]
        kind = "backward " + "".join(str(int(one)) for one in wanted)
        found = self._measured(kind, source, weight, rest)
        if not found:
            found = [self._forward(shape)] if wanted[0] else []
            found += [self._weights(shape)] if wanted[1] else []
        if wanted[2]:
            dims = (0, *range(2, output.dim()))
            found += [(n, n, n) for n in reduced(self.card, output, dims) if n]
        return found

    def most_bytes(
        self, source: Tensor, weight: Tensor, output: Tensor, rest: Any, wanted: str
    ) -> int:
        """The most that a workspace takes by the rules alone."""
        shape = _shape(source, weight, output, rest)
        found = [self._forward(shape)] if wanted[0] == "1" else []
        found += [self._weights(shape)] if wanted[1:2] == "1" else []
        return max((one[2] for one in found), default=0)

    def _measured(self, kind: str, source: Tensor, weight: Tensor, rest: Any) -> list[Range]:
        if not self.facts.convolutions:
            return []
        sides = ["x".join(map(str, numbers)) for numbers in rest[:3]]
        key = convolution_key(
            kind,
            str(source.dtype).removeprefix("torch."),
            source.dim() > 2 and source.shape[1] > 1 and source.stride(1) == 1,
            (source.shape, weight.shape),
            (*sides, rest[5], int(rest[3])),
        )
        return [(n, n, n) for n in self.facts.convolutions.get(key, ())]

    def _forward(self, shape: _Shape) -> Range:
        if shape.is_depthwise:
            return (0, 0, 0)
        copies = shape.copies()
        if shape.is_product:
            # Channels that no kernel's tensors are a multiple of may be copied all the same.
            return (400, 0, 512 if shape.is_aligned else copies + _MORE_BYTES)
        return (copies + 147, 0, int(copies * (1 + _MORE)) + _MORE_BYTES)

    def _weights(self, shape: _Shape) -> Range:
        weight = shape.weight.numel()
        copies = shape.copies()
        if shape.is_depthwise:
            both = shape.copied(shape.source) + shape.copied(shape.output)
            return (_PARTIAL if shape.is_last else 0, 0, 5 * _PARTIAL + both)
        if shape.is_product and not shape.is_last:
            # A gradient of each image, in floats.
            each = shape.source.shape[0] * weight * 4
            most = each + _PARTIAL
            return (each, 0, most if shape.is_aligned else most + int(copies * (1 + _MORE)))
        most = int(copies * (1 + _MORE)) + _MOST_PARTIAL
        return (copies + _PARTIAL, 0, most)


def _shape(source: Tensor, weight: Tensor, output: Tensor, rest: Any) -> _Shape:
    return _Shape(source, weight, output, tuple(rest[0]), tuple(rest[1]), rest[5], rest[3])


# ---- Learning ----------------------------------------------------------------------------

#: Channels in and out, kernel, stride, padding, groups, side of the image: the convolutions of
#: the usual networks for images.
_SHAPES = (
    *((3, 64, 7, 2, 3, 1, 224), (64, 64, 3, 1, 1, 1, 56), (64, 128, 3, 2, 1, 1, 56)),
    *((128, 128, 3, 1, 1, 1, 28), (128, 256, 3, 2, 1, 1, 28), (256, 256, 3, 1, 1, 1, 14)),
    *((256, 512, 3, 2, 1, 1, 14), (512, 512, 3, 1, 1, 1, 7), (64, 256, 1, 1, 0, 1, 56)),
    *((256, 64, 1, 1, 0, 1, 56), (256, 128, 1, 1, 0, 1, 56), (512, 1024, 1, 2, 0, 1, 28)),
    *((1024, 2048, 1, 2, 0, 1, 14), (2048, 512, 1, 1, 0, 1, 7), (64, 128, 1, 2, 0, 1, 56)),
    *((3, 32, 3, 1, 1, 1, 256), (32, 32, 3, 1, 1, 1, 256), (32, 64, 3, 1, 1, 1, 128)),
    *((64, 64, 3, 1, 1, 1, 128), (128, 64, 3, 1, 1, 1, 128), (64, 4, 1, 1, 0, 1, 256)),
    *((3, 768, 16, 16, 0, 1, 224), (3, 1024, 14, 14, 0, 1, 224), (3, 96, 4, 4, 0, 1, 224)),
    *((96, 96, 7, 1, 3, 96, 56), (384, 384, 7, 1, 3, 384, 14), (96, 192, 2, 2, 0, 1, 56)),
    *((32, 32, 3, 1, 1, 32, 112), (256, 256, 3, 1, 1, 32, 28), (4, 128, 3, 1, 1, 1, 64)),
    *((128, 128, 3, 1, 1, 1, 64), (256, 256, 3, 1, 1, 1, 32), (128, 256, 3, 1, 1, 1, 32)),
    *((512, 512, 3, 1, 1, 1, 16), (512, 512, 3, 1, 1, 1, 64), (320, 320, 3, 1, 1, 1, 64)),
)
_BATCHES = (16, 64)
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_MASKS = ([True, True, False], [False, True, False])


def _calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Keys and calls; the tensors of a call exist before it runs."""
    for batch in _BATCHES:
        for dtype in _TYPES:
            for is_last in (False, True):
                for shape in _SHAPES:
                    yield from _convolution(batch, dtype, is_last, shape)


def _convolution(
    batch: int, dtype: torch.dtype, is_last: bool, shape: tuple[int, ...]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    inputs, outputs, kernel, stride, padding, groups, side = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    options: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    x = torch.randn(batch, inputs, side, side, **options).to(memory_format=layout)
    w = torch.randn(outputs, inputs // groups, kernel, kernel, **options).to(memory_format=layout)
    numbers = ([stride] * 2, [padding] * 2, [1] * 2, False, [0] * 2, groups)
    sides = [f"{n}x{n}" for n in (stride, padding, 1)]
    name = str(dtype).removeprefix("torch.")
    last = is_last and inputs > 1

    def key(kind: str) -> str:
        return convolution_key(kind, name, last, (x.shape, w.shape), (*sides, groups, 0))

    y: list[Tensor] = []
    yield key("forward"), lambda: y.append(aten.convolution(x, w, None, *numbers))
    for mask in _MASKS:
        kind = "backward " + "".join(str(int(one)) for one in mask)
        yield key(kind), partial(_backward, y, x, w, numbers, mask)


def _backward(y: list[Tensor], x: Tensor, w: Tensor, numbers: Any, mask: list[bool]) -> Any:
    # Its result stands for the gradient of the result.
    return aten.convolution_backward(y[0], x, w, None, *numbers, mask)


def joined(trace: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """By label the bytes of what was allocated and freed under it, in the order of requests.

    Args:
        trace: Events of PyTorch's recorder; `user_metadata` is the label.
    """
    found: dict[str, list[int]] = {}
    open_: dict[str, dict[int, int]] = {}
    for event in trace:
        label = event.get("user_metadata", "")
        if not label:
            continue
        mine, live = found.setdefault(label, []), open_.setdefault(label, {})
        if event["action"] == "alloc":
            live[event["addr"]] = len(mine)
            mine.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in live:
            # Taken back, so that only what was freed under the label counts.
            mine[live.pop(event["addr"])] *= -1
    return {
        label: tuple(-size for size in sizes if size < 0)
        for label, sizes in found.items()
        if any(size < 0 for size in sizes)
    }


def learn(seconds: float, progress: Callable[[str], object] | None = None) -> Facts:
    """Measure what convolutions take on the current device.

    It switches PyTorch's recorder on, and off again.

    Args:
        progress: Called with a line of text now and then.

    Returns:
        What was measured until then.
    """
    memory, began, done = torch.cuda.memory, time.perf_counter(), 0
    memory._record_memory_history(context=None)
    try:
        for name, call in _calls():
            if time.perf_counter() - began > seconds:
                break
            memory._set_memory_metadata(name)
            try:
                call()
            except RuntimeError:
                # cuDNN has no engine for it, or it is too large for this card.
                continue
            finally:
                memory._set_memory_metadata("")
            done += 1
            if progress is not None and done % 200 == 0:
                progress(f"{done} calls, {time.perf_counter() - began:.0f} s")
        torch.cuda.synchronize()
        trace = memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        memory._record_memory_history(None)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Facts(
        str(properties.name),
        (int(properties.major), int(properties.minor)),
        str(torch.__version__),
        int(torch.backends.cudnn.version() or 0),
        joined(trace),
    )
