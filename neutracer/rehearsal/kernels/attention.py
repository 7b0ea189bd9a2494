# SPDX-License-Identifier: Apache-2.0
"""The choice of attention kernels, as in `sdp_utils.cpp`, which a CPU build lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from neutracer.rehearsal.cards import Card

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)
# Flash attention's backward has too little shared memory for wide heads on these.
_NARROW = ((8, 6), (8, 9), (12, 0), (12, 1))


@dataclass(frozen=True)
class Choice:
    """The arguments that decide."""

    query: tuple[int, ...]  # The shape of the queries: batch, heads, length, width.
    key: tuple[int, ...]
    value_width: int
    dtype: torch.dtype
    has_mask: bool  # Whether there is a mask.
    is_causal: bool  # Whether what comes later is hidden.
    needs_grad: bool  # Whether a backward pass may come.
    # Whether the last dimension of all three is laid out one after the other.
    is_dense: bool = True
    learns_mask: bool = False  # Whether the mask gets a gradient.

    def _flash(self, card: Card) -> bool:
        width = self.query[-1]
        narrow = card.capability in _NARROW and self.needs_grad and width > 192
        return (
            card.capability >= (8, 0)
            and self.dtype in _HALVES
            and not self.has_mask
            and width == self.key[-1] == self.value_width
            and width <= 256
            and not narrow
            and not (self.is_causal and self.query[2] != self.key[2])
            and self.key[2] > 0
            and self.is_dense
        )

    def _efficient(self, card: Card) -> bool:
        if self.dtype is torch.bfloat16 and card.capability < (8, 0):
            return False
        alignment = 8 if self.dtype in _HALVES else 4
        widths = (self.query[-1], self.value_width)
        fits = all(width % alignment == 0 and width >= alignment for width in widths)
        known = self.dtype in (*_HALVES, torch.float32)
        # With a mask that gets a gradient PyTorch 2.11 makes the plain products.
        is_even = self.query[1] == self.key[1]
        return known and fits and is_even and self.is_dense and not self.learns_mask

    def _cudnn(self, card: Card) -> bool:
        most = 256 if card.capability[0] in (9, 10) else 128
        return (
            card.capability >= (8, 0)
            and self.dtype in _HALVES
            and self.query[-1] % 8 == 0
            and max(self.query[-1], self.value_width) <= most
            and self.query[2] > 1
            and self.is_dense
            and not self.learns_mask
        )

    def kernel(self, card: Card, enabled: dict[str, bool], order: tuple[str, ...]) -> str:
        """The first kernel of an order that can be used: "math" always can."""
        able = {"flash": self._flash, "efficient": self._efficient, "cudnn": self._cudnn}
        for name in order:
            if name in able and enabled.get(name, True) and able[name](card):
                return name
        return "math"


class Attention:
    """Runs attention on fake tensors as a card would.

    Attributes:
        is_plain: Whether plain products are running, which add a real mask in place.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.is_plain = False
        # PyTorch prefers cuDNN where it was tuned: on Hopper and datacentre Blackwell.
        first = ("cudnn",) if card.capability in ((9, 0), (10, 0)) else ()
        self.order = (*first, "flash", "efficient", *(() if first else ("cudnn",)))

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As `torch.nn.functional.scaled_dot_product_attention`."""
        inputs, mask, kernel = (query, key, value), attn_mask, "math"
        grad = torch.is_grad_enabled() and any(one.requires_grad for one in inputs)
        if query.dim() == key.dim() == 4:
            has_grad = mask is not None and mask.requires_grad
            choice = Choice(
                tuple(query.shape),
                tuple(key.shape),
                int(value.shape[-1]),
                query.dtype,
                mask is not None,
                is_causal,
                grad or has_grad,
                all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in inputs),
                torch.is_grad_enabled() and has_grad,
            )
            enabled = {
                "flash": torch._C._get_flash_sdp_enabled(),
                "efficient": torch._C._get_mem_efficient_sdp_enabled(),
                "cudnn": torch._C._get_cudnn_sdp_enabled(),
            }
            kernel = choice.kernel(self.card, enabled, self.order)
        if kernel == "flash":
            return _flash(inputs, dropout_p, is_causal, scale)
        if kernel == "math":
            return self._math((*inputs, mask, dropout_p, is_causal, None), scale, enable_gqa)
        if mask is not None:
            mask = _bias(mask, query, key, kernel == "efficient")
        attend = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
        # cuDNN's has one argument more: whether it returns the mask of its dropout.
        more = (False,) if kernel == "cudnn" else ()
        found: Tensor = attend(*inputs, mask, grad, dropout_p, is_causal, *more, scale=scale)[0]
        return found

    def _math(self, args: tuple[Any, ...], scale: Any, gqa: bool) -> Tensor:
        query, key, value, mask, *rest = args
        if mask is not None and mask.dtype is torch.bool:
            mask = _as_floats(mask, query.dtype)
        attend = aten._scaled_dot_product_attention_math.default
        self.is_plain = True
        try:
            found: Tensor = attend(query, key, value, mask, *rest, scale=scale, enable_gqa=gqa)[0]
        finally:
            self.is_plain = False
        return found


def _flash(inputs: tuple[Tensor, ...], dropout: float, causal: bool, scale: Any) -> Tensor:
    width = inputs[0].shape[-1]
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    if width % 8:
        inputs = tuple(F.pad(one, (0, 8 - width % 8)) for one in inputs)
    attend = aten._scaled_dot_product_flash_attention.default
    out: Tensor = attend(*inputs, dropout, causal, scale=scale)[0]
    return out[..., :width] if width % 8 else out


def _as_floats(mask: Tensor, dtype: torch.dtype) -> Tensor:
    low = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), low)


def _bias(mask: Tensor, query: Tensor, key: Tensor, is_padded: bool) -> Tensor:
    """An additive mask for each head, its rows aligned to 16."""
    if mask.dtype is torch.bool:
        mask = _as_floats(mask, query.dtype)
    length = mask.shape[-1]
    if is_padded and length % 16:
        mask = F.pad(mask, (0, 16 - length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
