# SPDX-License-Identifier: Apache-2.0
"""What ordinary programs do to tensors, and fake ones refuse."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from neutracer.rehearsal.tracing import Tracing
from neutracer.rehearsal.values import known_of

__all__ = ["patches"]

#: Batches of a loader that are loaded for evaluation, say.
_BATCHES = 8


class _NoWeakReferences:
    """`weakref` for `torch.utils.swap_tensors`, which refuses tensors that have some. A
    FakeTensorMode keeps weak references to all of its tensors, and looks none up by them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    def getweakrefs(self, value: object) -> list[Any]:
        """None that anybody needs."""
        return []


def _deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
    """As Tensor.__deepcopy__: new memory of the same size."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment."
        )
    with torch.no_grad():
        made = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = made
    if tensor.grad is not None:
        made.grad = _deepcopy(tensor.grad, memo)
    return made


def _to_numpy(tracing: Tracing) -> Any:
    plain = Tensor.numpy

    def numpy(tensor: Tensor, *, force: bool = False) -> Any:
        """A tensor's values as an array: known ones, else zeros."""
        known = known_of(tensor)
        if known is None or known.validity.is_made_up:
            tracing.notes.add("{line} turns a tensor into an array: its values are made up.")
        with torch._C._DisableTorchDispatch():
            real = torch.zeros(tensor.shape, dtype=tensor.dtype) if known is None else known.real
            return plain(real.detach(), force=force)

    return numpy


def _resizer(tracing: Tracing) -> Any:
    plain = torch.UntypedStorage.resize_

    def resize_(storage: Any, nbytes: int) -> Any:
        before = storage.nbytes()
        result = plain(storage, nbytes)
        if storage.nbytes() != before and tracing.holds(storage):
            tracing.resized(storage, storage.nbytes())
        return result

    return resize_


def _loader(plain: Any) -> Any:
    """DataLoader's constructor, without processes and threads: they know nothing of fakes."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("num_workers", "pin_memory", "timeout", "prefetch_factor", "persistent_workers")
        for name in (*names, "multiprocessing_context"):
            kwargs.pop(name, None)
        # dataset, batch_size, shuffle, sampler and batch_sampler come before num_workers.
        plain(self, *args[:5], **kwargs)

    return init


def _ctc_loss(plain: Any) -> Any:
    """`torch.ctc_loss`, with all lengths on the device: fake ones on the CPU have no memory from
    which PyTorch could read them."""

    def ctc_loss(likely: Tensor, targets: Tensor, *rest: Any) -> Any:
        lengths = [
            one.to(likely.device)
            if isinstance(one, Tensor)
            else torch.tensor(one).to(likely.device)
            for one in rest[:2]
        ]
        return plain(likely, targets, *lengths, *rest[2:])

    return ctc_loss


def _counting(tracing: Tracing) -> Any:
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        tracing.backwards += 1
        return plain(*args, **kwargs)

    return backward


def _bounded(tracing: Tracing, plain: Any) -> Any:
    """A loader's batches; where no backward pass comes of them, only the first ones: each takes
    what the one before took."""

    def batches(self: Any) -> Iterator[Any]:
        before = tracing.backwards
        for number, batch in enumerate(plain(self)):
            if number >= _BATCHES and tracing.backwards == before:
                tracing.notes.add(
                    f"{{line}} is given {_BATCHES} batches of a DataLoader, without a backward "
                    "pass: others would be like these."
                )
                return
            yield batch

    return batches


def patches(tracing: Tracing) -> list[tuple[Any, str, Any]]:
    """What to put in the place of PyTorch's own, as (owner, name, value)."""
    from torch.utils.data import DataLoader

    return [
        (sys.modules["torch.utils"], "weakref", _NoWeakReferences()),
        (FakeTensor, "__deepcopy__", _deepcopy),
        (Tensor, "numpy", _to_numpy(tracing)),
        (torch.UntypedStorage, "resize_", _resizer(tracing)),
        (DataLoader, "__init__", _loader(DataLoader.__init__)),
        (DataLoader, "__iter__", _bounded(tracing, DataLoader.__iter__)),
        (torch.autograd, "backward", _counting(tracing)),
        (torch, "ctc_loss", _ctc_loss(torch.ctc_loss)),
    ]
