# SPDX-License-Identifier: Apache-2.0
"""What cuDNN's convolutions take besides their results.

cuDNN chooses an engine for each shape, and its kernels for tensor cores want channels last, a
multiple of some number of them. Measured on an H100 with cuDNN 9.19: where tensors are laid out
otherwise, the workspace is the copies that are, input, output and weights together; the gradient
of the weights takes some partial results more. How many is cuDNN's choice, and so is an engine
without copies: hence ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.known import convolution_key, facts_for
from neutracer.rehearsal.scratch import reduced

__all__ = ["Convolutions"]

aten = torch.ops.aten

#: How many channels a kernel's tensors are a multiple of.
_ALIGNED = {torch.bfloat16: 8, torch.float16: 8, torch.float32: 4}

#: What partial results of the weights' gradient take: mostly, and at most.
_PARTIAL, _MOST_PARTIAL = 2 << 20, 17 << 20

#: An engine takes mostly no more than this share of the copies besides, and these bytes. One that
#: makes no copies takes nothing.
_MORE, _MORE_BYTES = 0.3, 9 << 20

Range = tuple[int, int, int]


@dataclass(frozen=True)
class _Shape:
    """A convolution's tensors."""

    source: Tensor
    weight: Tensor
    output: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def is_last(self) -> bool:
        """Whether the input's channels are last in memory."""
        channels = self.source.shape[1]
        return bool(self.source.dim() > 2 and channels > 1 and self.source.stride(1) == 1)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is alone: PyTorch has kernels of its own for that."""
        return self.groups > 1 and self.groups == self.source.shape[1]

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices of each image, which needs no copies."""
        plain = all(n == 1 for n in (*self.weight.shape[2:], *self.stride))
        places = math.prod(self.source.shape[2:])
        item = self.source.element_size()
        return plain and not any(self.padding) and places % (16 // item) == 0

    @property
    def is_aligned(self) -> bool:
        """Whether channels are as many as kernels want."""
        aligned = _ALIGNED.get(self.source.dtype, 1)
        return all(one.shape[1] % aligned == 0 for one in (self.source, self.output))

    def copied(self, tensor: Tensor, channel: int = 1) -> int:
        """Bytes of a copy with a whole number of channels."""
        item = tensor.element_size()
        aligned = _ALIGNED.get(tensor.dtype, 1)
        channels = tensor.shape[channel]
        rest = tensor.numel() // max(channels, 1)
        return int(-(-channels // aligned) * aligned * rest * item)

    def padded(self) -> int:
        """Bytes of copies of what lacks channels, where they are last already."""
        whole = [self.copied(t) - t.numel() * t.element_size() for t in (self.source, self.output)]
        found = [
            self.copied(t) for t, n in zip((self.source, self.output), whole, strict=True) if n
        ]
        return sum(found) + (self.copied(self.weight) if found else 0)

    def copies(self) -> int:
        """Bytes of all copies."""
        if self.is_last:
            return self.padded()
        both = self.copied(self.source) + self.copied(self.output)
        is_point = all(n == 1 for n in self.weight.shape[2:])
        return both if is_point else both + self.copied(self.weight)


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
        """The most that a workspace takes by the rules alone.

        Args:
            source: The input.
            weight: The weights.
            output: The result.
            rest: The operator's arguments from the stride on.
            wanted: "1" of the forward pass; else which gradients are wanted: "110".
        """
        shape = _shape(source, weight, output, rest)
        found = [self._forward(shape)] if wanted[0] == "1" else []
        found += [self._weights(shape)] if wanted[1:2] == "1" else []
        return max((one[2] for one in found), default=0)

    def _measured(self, kind: str, source: Tensor, weight: Tensor, rest: Any) -> list[Range]:
        """The workspaces of a convolution that was measured on such a card; else nothing."""
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
    """Of the arguments from `stride` on."""
    return _Shape(source, weight, output, tuple(rest[0]), tuple(rest[1]), rest[5], rest[3])
