# SPDX-License-Identifier: Apache-2.0
"""What an operator may take that no rule knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["is_quiet", "most_bytes"]

#: Less than this is not worth a range.
_LITTLE = 1 << 20

#: Operators of PyTorch whose kernels for CUDA have nothing but their arguments and results; so has
#: whatever works element by element, and what only looks at a tensor otherwise.
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


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def is_quiet(func: Any) -> bool:
    """Whether an operator that no rule is about is known to take nothing besides its results."""
    if func.namespace in ("prim", "c10d", "_c10d_functional", "fsdp") or func.is_view:
        return True
    if torch.Tag.pointwise in func.tags or torch.Tag.view_copy in func.tags:
        return True
    name = func._schema.name.partition("::")[2]
    return func.namespace == "aten" and (name in _QUIET or name.startswith("_foreach_"))


def most_bytes(args: Any, result: Any) -> int:
    """The most that an operator takes of which nothing is known: as much as the largest tensor
    that it works on or gives, which is what a copy takes; 0 where that is too little to count.

    Args:
        args: The operator's arguments.
        result: What it gave.
    """
    sizes = [
        one.numel() * one.element_size()
        for one in _tensors([args, result])
        if one.device.type == "cuda"
    ]
    most = max(sizes, default=0)
    return int(most) if most >= _LITTLE else 0
