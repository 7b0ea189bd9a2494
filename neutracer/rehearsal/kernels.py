# SPDX-License-Identifier: Apache-2.0
"""What kernels take besides their results, by the card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from neutracer.rehearsal import recurrent, scratch
from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.convolutions import Convolutions
from neutracer.rehearsal.extensions import told
from neutracer.rehearsal.quiet import is_quiet, most_bytes

__all__ = ["Kernels", "Takes"]

aten = torch.ops.aten

_MIB = 1 << 20

#: Bytes of cuDNN's random state for each multiprocessor.
_DROPOUT_STATE = 49152

#: Products of matrices. cuBLAS gets a workspace for each thread that calls it; autograd's is
#: another thread than the program's.
_PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addmv.default,
        aten.mv.default,
        aten.dot.default,
        aten._grouped_mm.default,
    }
)

_RECURRENT = frozenset({aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default})
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})


@dataclass(frozen=True)
class Takes:
    """Memory that a kernel takes for itself.

    Attributes:
        kept: Bytes of requests that are never freed.
        freed: Bytes of requests that end with the operator: the likely ones, the least and
            the most of each.
        note: What they are.
    """

    kept: tuple[int, ...] = ()
    freed: tuple[tuple[int, int, int], ...] = ()
    note: str = ""


class Kernels:
    """What the kernels of a card take.

    Attributes:
        card: The card.
        uncertain: By operator the least and the most bytes, where that is not one number.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self.uncertain: dict[str, tuple[int, int]] = {}
        self.convolutions = Convolutions(card)
        self._handles: set[tuple[str, bool, int]] = set()
        self._quiet: dict[Any, bool] = {}

    def takes(self, func: Any, args: Any, kwargs: Any, result: Any, stream: int) -> Takes | None:
        """What an operator takes besides its results; None is nothing.

        Args:
            func: The operator.
            args: Its arguments.
            kwargs: The named ones.
            result: What it gave.
            stream: The stream that is current.
        """
        registered = told(func, args, kwargs, result)
        if registered is not None:
            self._is_range(str(func).rpartition(".")[0], registered)
            return Takes(freed=tuple(registered))
        if func in _PRODUCTS:
            kept = self._workspaces(func, args, stream)
            return Takes(kept=kept, note="cuBLAS workspace") if kept else None
        if func in _RECURRENT:
            return self._recurrent(func, args, stream)
        if func in _CONVOLUTIONS:
            return self._convolution(func, args, result)
        rule = scratch.RULES.get(func)
        if rule is None:
            return self._unknown(func, args, result)
        sizes = rule(self.card, args, kwargs, result)
        freed = [(n, n, n) if isinstance(n, int) else n for n in sizes]
        freed = [one for one in freed if one[2]]
        self._is_range(str(func).rpartition(".")[0], freed)
        return Takes(freed=tuple(freed)) if freed else None

    def _unknown(self, func: Any, args: Any, result: Any) -> Takes | None:
        """What no rule is about: most likely nothing, at most a copy."""
        quiet = self._quiet.get(func)
        if quiet is None:
            quiet = self._quiet[func] = is_quiet(func)
        most = 0 if quiet else most_bytes(args, result)
        if not most:
            return None
        freed = [(0, 0, most)]
        self._is_range(str(func).rpartition(".")[0], freed)
        return Takes(freed=tuple(freed))

    def _workspaces(self, func: Any, args: Any, stream: int) -> tuple[int, ...]:
        """cuBLAS's and cuBLASLt's workspaces, at their first use in a thread and stream."""
        tensor = args[1] if isinstance(args[1], torch.Tensor) else args[0]
        if tensor.device.type != "cuda":
            return ()
        is_backward = torch._C._current_graph_task_id() != -1
        kept = []
        if ("blas", is_backward, stream) not in self._handles:
            self._handles.add(("blas", is_backward, stream))
            kept.append(self._blas_bytes)
        has_bias = func is aten.addmm.default and args[0].dim() == 1
        if has_bias and ("lt", is_backward, stream) not in self._handles:
            self._handles.add(("lt", is_backward, stream))
            kept.append(_MIB)
        return tuple(kept)

    @property
    def _blas_bytes(self) -> int:
        """As `getChosenWorkspaceSize` in CUDABlas.cpp has it: ":4096:8" on Hopper and
        datacentre Blackwell, ":4096:2:16:8" on others."""
        if self.card.capability in ((9, 0), (10, 0)):
            return 4096 * 8 * 1024
        return (4096 * 2 + 16 * 8) * 1024

    def _recurrent(self, func: Any, args: Any, stream: int) -> Takes | None:
        """Workspace of a recurrent network, and once the state of its dropout."""
        if args[0].device.type != "cuda":
            return None
        kept = list(self._workspaces(func, args, stream))
        is_forward = func is aten._cudnn_rnn.default
        if is_forward and args[11] and args[12] and ("dropout", False, 0) not in self._handles:
            self._handles.add(("dropout", False, 0))
            kept.append(self.card.processors * _DROPOUT_STATE)
        found = recurrent.takes(func, args)
        self._is_range("aten._cudnn_rnn", found)
        return Takes(tuple(kept), tuple(found), "cuDNN workspace")

    def _is_range(self, name: str, found: list[tuple[int, int, int]]) -> None:
        """Remember the least and the most of an operator that has a range."""
        low, high = sum(one[1] for one in found), sum(one[2] for one in found)
        if low != high:
            before = self.uncertain.get(name, (low, high))
            self.uncertain[name] = min(low, before[0]), max(high, before[1])

    def _convolution(self, func: Any, args: Any, result: Any) -> Takes | None:
        found = self.convolutions.takes(func, args, result)
        if not found:
            return None
        self._is_range(str(func).rpartition(".")[0], found)
        return Takes(freed=tuple(found), note="cuDNN workspace")
