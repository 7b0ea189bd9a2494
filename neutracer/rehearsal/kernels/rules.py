# SPDX-License-Identifier: Apache-2.0
"""The rule that applies to an operator, and the bound for operators without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.kernels import recurrent, scratch
from neutracer.rehearsal.kernels.extensions import registered_scratch
from neutracer.rehearsal.kernels.scratch import Convolutions
from neutracer.rehearsal.values import tensors_in

# ---- Quiet -------------------------------------------------------------------------------

#: Bytes below which no range is kept.
_LITTLE = 1 << 20

#: Operators whose CUDA kernels need no scratch; pointwise operators and views need none either.
_NAMES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _amp_foreach_non_finite_check_and_unscale_
    _amp_update_scale_ _cudnn_rnn_flatten_weight _embedding_bag _fused_adagrad_ _fused_adam_
    _fused_adamw_ _fused_dropout _fused_rms_norm _fused_sgd_ _local_scalar_dense _log_softmax
    _log_softmax_backward_data _masked_scale _pin_memory _resize_output_ _scaled_mm
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _softmax _to_copy
    _unsafe_index _unsafe_view adaptive_max_pool2d adaptive_max_pool2d_backward addmm addmv alias
    arange argmax argmin avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d baddbmm bernoulli
    bernoulli_ bmm bucketize cat clone col2im constant_pad_nd copy_ cudnn_batch_norm
    cudnn_batch_norm_backward detach diagonal_copy dot embedding empty empty_like empty_strided
    expand eye fill fill_ flip full full_like gather glu glu_backward grid_sampler_2d
    im2col index index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_select
    lift_fresh linspace masked_fill masked_fill_ max_pool2d_with_indices
    max_pool2d_with_indices_backward mm mv native_batch_norm native_batch_norm_backward
    native_dropout native_dropout_backward new_empty new_empty_strided new_full new_ones new_zeros
    nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward normal_ ones
    ones_like permute rand rand_like randint randint_like randn randn_like random_ reflection_pad1d
    reflection_pad2d reflection_pad2d_backward repeat replication_pad2d resize_ roll scalar_tensor
    scatter scatter_ scatter_add scatter_add_ select_backward select_scatter set_ slice_backward
    slice_scatter split_with_sizes_copy tril tril_ triu triu_ uniform_ upsample_bicubic2d
    upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
    where zero_ zeros zeros_like _thnn_fused_lstm_cell _thnn_fused_gru_cell _ctc_loss stack
    binary_cross_entropy_backward elu_backward hardshrink_backward hardsigmoid_backward hardswish
    hardswish_ hardswish_backward hardtanh_backward huber_loss_backward leaky_relu_backward
    mse_loss_backward smooth_l1_loss_backward softplus_backward softshrink_backward
    _prelu_kernel _prelu_kernel_backward threshold_ mish_ gelu_ complex polar
"""
_QUIET = frozenset(_NAMES.split())


@cache
def is_quiet(func: Any) -> bool:
    """Whether an operator without a rule is known to need no scratch."""
    if func.namespace in ("prim", "c10d", "_c10d_functional", "fsdp") or func.is_view:
        return True
    if torch.Tag.pointwise in func.tags or torch.Tag.view_copy in func.tags:
        return True
    name = func._schema.name.partition("::")[2]
    return func.namespace == "aten" and (name in _QUIET or name.startswith("_foreach_"))


def most_bytes(args: Any, result: Any) -> int:
    """Upper bound for an unknown operator: its largest tensor, or 0 if that is negligible."""
    sizes = [
        one.numel() * one.element_size()
        for one in tensors_in([args, result])
        if one.device.type == "cuda"
    ]
    most = max(sizes, default=0)
    return int(most) if most >= _LITTLE else 0


# ---- Kernels -----------------------------------------------------------------------------

aten = torch.ops.aten

_MIB = 1 << 20

#: Bytes of cuDNN's random state for each multiprocessor.
_DROPOUT_STATE = 49152

#: Matrix products. cuBLAS has a workspace per calling thread, and autograd has its own thread.
_PRODUCTS = frozenset(
    {
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        *(aten.addmv.default, aten.mv.default, aten.dot.default, aten._grouped_mm.default),
    }
)

_RECURRENT = frozenset({aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default})
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})


@dataclass(frozen=True)
class Takes:
    """Memory that a kernel takes for itself."""

    kept: tuple[int, ...] = ()  # Bytes of requests that are never freed.
    # Bytes of requests that end with the operator: the likely ones, the least and the most of each.
    freed: tuple[tuple[int, int, int], ...] = ()
    note: str = ""


class Kernels:
    """Scratch memory of the kernels of a card.

    Attributes:
        card: The card.
        uncertain: By operator the least and the most bytes, where that is not one number.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.uncertain: dict[str, tuple[int, int]] = {}
        self.convolutions = Convolutions(card)
        self._handles: set[tuple[object, ...]] = set()

    def takes(self, func: Any, args: Any, kwargs: Any, result: Any, stream: int) -> Takes | None:
        """The scratch memory of an operator; None if it needs none."""
        name, rule = str(func).rpartition(".")[0], scratch.RULES.get(func)
        registered = registered_scratch(func, args, kwargs, result)
        if registered is not None:
            return self._takes(name, registered)
        if func in _PRODUCTS:
            return self._takes(name, [], self._workspaces(func, args, stream), "cuBLAS workspace")
        if func in _RECURRENT:
            return self._recurrent(func, args, stream)
        if func in _CONVOLUTIONS:
            freed = self.convolutions.takes(func, args, result)
            return self._takes(name, freed, note="cuDNN workspace")
        # Without a rule: likely nothing, at most a copy.
        most = 0 if rule or is_quiet(func) else most_bytes(args, result)
        sizes = rule(self.card, args, kwargs, result) if rule else [(0, 0, most)]
        freed = [(n, n, n) if isinstance(n, int) else n for n in sizes]
        return self._takes(name, [one for one in freed if one[2]])

    def _takes(
        self, name: str, freed: list[scratch.Range], kept: Sequence[int] = (), note: str = ""
    ) -> Takes | None:
        """What an operator takes, noted if it is a range."""
        low, high = sum(one[1] for one in freed), sum(one[2] for one in freed)
        if low != high:
            before = self.uncertain.get(name, (low, high))
            self.uncertain[name] = min(low, before[0]), max(high, before[1])
        return Takes(tuple(kept), tuple(freed), note) if kept or freed else None

    def _is_first(self, *handle: object) -> bool:
        """Whether something kept for good is made now."""
        is_first = handle not in self._handles
        self._handles.add(handle)
        return is_first

    def _workspaces(self, func: Any, args: Any, stream: int) -> list[int]:
        """cuBLAS's and cuBLASLt's workspaces, at first use per thread and stream."""
        tensor = args[1] if isinstance(args[1], torch.Tensor) else args[0]
        if tensor.device.type != "cuda":
            return []
        is_backward = torch._C._current_graph_task_id() != -1
        kept = [self._blas_bytes] if self._is_first("blas", is_backward, stream) else []
        has_bias = func is aten.addmm.default and args[0].dim() == 1
        if has_bias and self._is_first("lt", is_backward, stream):
            kept.append(_MIB)
        return kept

    @property
    def _blas_bytes(self) -> int:
        # As `getChosenWorkspaceSize` in CUDABlas.cpp has it: ":4096:8" on Hopper and
        # datacentre Blackwell, ":4096:2:16:8" on others.
        if self.card.capability in ((9, 0), (10, 0)):
            return 4096 * 8 * 1024
        return (4096 * 2 + 16 * 8) * 1024

    def _recurrent(self, func: Any, args: Any, stream: int) -> Takes | None:
        if args[0].device.type != "cuda":
            return None
        kept = self._workspaces(func, args, stream)
        is_forward = func is aten._cudnn_rnn.default
        if is_forward and args[11] and args[12] and self._is_first("dropout"):
            kept.append(self.card.processors * _DROPOUT_STATE)
        return self._takes("aten._cudnn_rnn", recurrent.takes(func, args), kept, "cuDNN workspace")
