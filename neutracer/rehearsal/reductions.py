# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's reductions take when several blocks of threads work on one result.

The rules are those of `setReduceConfig` and `ReduceConfig` in `ATen/native/cuda/Reduce.cuh`:
partial results lie in global memory, with a semaphore for each column of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from neutracer.rehearsal.cards import Card

__all__ = ["Reduction", "partial_bytes"]

_MOST_THREADS = 512
_WARP = 32
_MOST_VALUES, _LEAST_VALUES = 256, 16


@dataclass(frozen=True)
class Reduction:
    """A reduction of one tensor.

    Attributes:
        shape: The tensor's shape.
        strides: Its strides, in elements.
        dims: The dimensions that are reduced.
        item: Bytes of an element.
        partial: Bytes of a partial result: 4 for a sum of halves, which is made in floats.
        unrolled: Values that a thread loads at once where it can (`vt0` in the source).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dims: tuple[int, ...]
    item: int
    partial: int
    unrolled: int = 4


def _last_power(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def _up(a: int, b: int) -> int:
    return -(-a // b)


def _merged(dims: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(size, stride) of dimensions, the fastest first, with neighbours made one."""
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
    """How many neighbouring results a thread makes."""
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
    """The bytes of a launch: blocks as `set_block_dimension` makes them."""
    inputs, outputs = counts
    most = _MOST_THREADS // vector
    first, second = (_last_power(dim) if dim < most else most for dim in dims)
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
