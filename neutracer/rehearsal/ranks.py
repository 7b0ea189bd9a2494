# SPDX-License-Identifier: Apache-2.0
"""One rank of several, whose others are not there: collectives change nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Replica", "ranks", "spread"]

#: As DistributedDataParallel has them: the first bucket is smaller, so that reducing begins soon.
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20

_ENVIRONMENT = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class Replica(nn.Module):  # type: ignore[misc]
    """DistributedDataParallel as far as memory goes: a module, and buckets of its gradients.

    PyTorch's own makes its buckets in C++, which asks for addresses of tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.gradient_as_bucket_view = gradient_as_bucket_view
        most = _BUCKET if bucket_cap_mb is None else int(bucket_cap_mb * (1 << 20))
        trained = [p for p in module.parameters() if p.requires_grad]
        self._buckets = [_bucket(group) for group in _grouped(trained, most)]
        if gradient_as_bucket_view:
            for bucket, group in self._buckets:
                for parameter in group:
                    _give(parameter, bucket)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing is reduced meanwhile."""
        yield

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """A hook has nothing to do where nothing is reduced."""

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """Nobody is waited for."""
        return self.no_sync()


def _grouped(parameters: list[nn.Parameter], most: int) -> Iterator[list[nn.Parameter]]:
    """Parameters by bucket: the last ones first, of one type each."""
    group: list[nn.Parameter] = []
    size, limit = 0, _FIRST_BUCKET
    for parameter in reversed(parameters):
        if group and (size >= limit or parameter.dtype is not group[0].dtype):
            yield group
            group, size, limit = [], 0, most
        group.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if group:
        yield group


def _bucket(group: list[nn.Parameter]) -> tuple[Tensor, list[nn.Parameter]]:
    with torch.no_grad():
        return group[0].new_empty(sum(p.numel() for p in group)), group


def _give(parameter: nn.Parameter, bucket: Tensor) -> None:
    """The gradient is a part of the bucket."""
    with torch.no_grad():
        parameter.grad = bucket[: parameter.numel()].view(parameter.shape)


@contextmanager
def ranks(world_size: int) -> Iterator[list[tuple[Any, str, Any]]]:
    """The environment of rank 0, and what to put in the place of PyTorch's own.

    Args:
        world_size: How many ranks there would be; of one nothing is changed.
    """
    if not torch.distributed.is_available():
        yield []
        return
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    hook = sys.excepthook
    values = ("0", "0", str(world_size), str(world_size), "localhost", "29500")
    if world_size > 1:
        os.environ.update(zip(_ENVIRONMENT, values, strict=True))
    try:
        yield _patches(world_size)
    finally:
        if torch.distributed.is_initialized() and _made:
            torch.distributed.destroy_process_group()
        _made.clear()
        # A process group puts its rank before what an exception prints.
        sys.excepthook = hook
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_made: list[bool] = []


def _patches(world_size: int) -> list[tuple[Any, str, Any]]:
    import torch.nn.parallel.distributed

    plain = torch.distributed.init_process_group

    def begin(*args: Any, **kwargs: Any) -> None:
        """As init_process_group; the others are not there."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not torch.distributed.is_initialized():
            plain("fake", rank=0, world_size=world_size, store=FakeStore())
            _made.append(True)

    return [
        (torch.distributed, "init_process_group", begin),
        (torch.distributed.distributed_c10d, "init_process_group", begin),
        (torch.nn.parallel, "DistributedDataParallel", Replica),
        (torch.nn.parallel.distributed, "DistributedDataParallel", Replica),
    ]


def spread(args: tuple[Any, ...], strategy: str, world_size: int) -> tuple[Any, ...]:
    """Arguments with their models spread over the ranks, and optimizers of what became of them.

    Args:
        args: What a step is given.
        strategy: "ddp" or "fsdp2".
        world_size: How many ranks there are.
    """
    models = [arg for arg in args if isinstance(arg, nn.Module)]
    torch.distributed.init_process_group()
    if strategy == "ddp":
        return tuple(Replica(arg) if isinstance(arg, nn.Module) else arg for arg in args)
    names = {id(p): (m, name) for m in models for name, p in m.named_parameters()}
    for model in models:
        _shard(model, world_size)
    for arg in args:
        if isinstance(arg, torch.optim.Optimizer):
            _follow(arg, names)
    return args


def _shard(model: nn.Module, world_size: int) -> None:
    """Each module of a list on its own, and the rest together, as is usual."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (world_size,))
    blocks = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    for block in (child for group in blocks for child in group):
        if any(True for _ in block.parameters()) and not isinstance(block, nn.ModuleList):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _follow(optimizer: Any, names: dict[int, tuple[nn.Module, str]]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [
            names[id(p)][0].get_parameter(names[id(p)][1]) if id(p) in names else p
            for p in group["params"]
        ]
