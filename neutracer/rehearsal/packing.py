# SPDX-License-Identifier: Apache-2.0
"""Packed sequences on fake tensors: their lengths are values, which PyTorch's own functions read
from memory.

Copies and their order are those of `PackedSequence.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.values import known_of

__all__ = ["FUNCTIONS", "numbers"]


def numbers(tensor: Tensor) -> list[int] | None:
    """The values of a small tensor of whole numbers, where they are known."""
    known = known_of(tensor)
    if known is None:
        return None
    with torch._C._DisableTorchDispatch():
        return [int(one) for one in known.real.tolist()]


def _spans(lengths: list[int]) -> list[tuple[int, int, int]]:
    """Of sequences, the longest first: from where to where along them as many as go on."""
    found, begin = [], 0
    for count in range(len(lengths), 0, -1):
        end = lengths[count - 1]
        if end > begin:
            found.append((begin, end, count))
            begin = end
    return found


class _Pack(torch.autograd.Function):  # type: ignore[misc]
    """What goes on of each step, one after the other."""

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
    """As `torch._VF._pack_padded_sequence`."""
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
    """As `torch._VF._pad_packed_sequence`."""
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


#: In the place of the functions of `torch._VF`, by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
}
