# SPDX-License-Identifier: Apache-2.0
"""A training of two ranks in one of the ways in which memory differs between ranks.

    torchrun --nproc-per-node 2 -m neutracer run -o OUT tests/gpu/ranks/program.py KIND

Without a GPU it runs over gloo on the CPU, where only the running job can be looked at.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import neutracer

KIND = sys.argv[1]
OUT = Path(os.environ["RANKS_OUT"])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")

WIDTH, LAYERS, BATCH = (2048, 8, 8192) if ON_GPU else (128, 8, 64)
STEPS = 16
LEAK_STEPS, LEAK_FROM = 48, 12


class Block(nn.Module):  # type: ignore[misc]
    """One layer: up, a non-linearity, down, and around it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def model(layers: int = LAYERS) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(layers))).to(DEVICE)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: int = BATCH) -> torch.Tensor:
    optimizer.zero_grad()
    x = torch.randn(batch, WIDTH, device=DEVICE)
    y = net(x)
    y.square().mean().backward()
    optimizer.step()
    return y.detach()


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-4)


def replicated() -> nn.Module:
    ids = [DEVICE.index] if ON_GPU else None
    return nn.parallel.DistributedDataParallel(model(), device_ids=ids)


def ddp(batch: int = BATCH, steps: int = STEPS) -> None:
    net = replicated()
    optimizer = adam(net)
    for _ in range(steps):
        step(net, optimizer, batch)


def uneven_batch() -> None:
    ddp(2 * BATCH if RANK == 1 else BATCH)


def leak() -> None:
    net = replicated()
    optimizer, kept = adam(net), []
    for number in range(LEAK_STEPS):
        y = step(net, optimizer)
        if RANK == 1 and number >= LEAK_FROM:
            kept.append(y + 1)


def fsdp(offload: bool = False) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    net = model()
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for layer in net:
        fully_shard(layer, offload_policy=policy)
    fully_shard(net, offload_policy=policy)
    optimizer = adam(net)
    for _ in range(STEPS):
        step(net, optimizer)


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    net = model()
    for layer in net:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = adam(net)
    for _ in range(STEPS):
        step(net, optimizer)


def pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(model(2 if RANK == 0 else 6), RANK, WORLD, DEVICE)
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).square().mean())
    optimizer = adam(stage.submod)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH, device=DEVICE)
        if RANK == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        optimizer.step()


def other_library() -> None:
    """Another library's memory on rank 1; what the watch says meanwhile goes into a file."""
    if ON_GPU:
        try:
            neutracer.attribute_device_memory()
        except neutracer.UnavailableError as error:
            print(f"no attribution: {error}", flush=True)
    net = replicated()
    optimizer = adam(net)
    step(net, optimizer)
    if RANK == 1 and ON_GPU:
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(3 << 30)
        taken = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), size)
        assert taken == 0, taken
    for _ in range(STEPS):
        step(net, optimizer)
    watch = neutracer.watch_ranks()
    # A moment for the monitor, which asks for the device's use once a second.
    time.sleep(2.5)
    watch.publish()
    dist.barrier()
    if RANK == 0:
        (OUT / "store.json").write_text(json.dumps(watch.report().to_dict()))
    dist.barrier()


def out_of_memory() -> None:
    net = replicated()
    optimizer, kept = adam(net), []
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(
            16 * (1 << 30) / torch.cuda.get_device_properties(0).total_memory
        )
    for _ in range(200):
        y = step(net, optimizer)
        if RANK == 1:
            kept.append(y.repeat(4, 1))


def endless(stop: int | None) -> None:
    """Steps without end; rank 1 stops before a collective where that is asked for."""
    net = replicated()
    optimizer = adam(net)
    for number in range(10_000_000):
        step(net, optimizer, 64)
        if RANK == 1 and number == stop:
            time.sleep(600)
        done = torch.ones(1, device=DEVICE)
        try:
            dist.all_reduce(done)
            if ON_GPU:
                torch.cuda.synchronize()
        except RuntimeError:
            time.sleep(600)
        time.sleep(0.02)


KINDS: dict[str, Any] = {
    "ddp": ddp,
    "uneven_batch": uneven_batch,
    "leak": leak,
    "fsdp2": fsdp,
    "fsdp2_offload": lambda: fsdp(True),
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
    "other_library": other_library,
    "out_of_memory": out_of_memory,
    "killed": lambda: endless(None),
    "hung": lambda: endless(8),
}


def main() -> None:
    if KIND in ("killed", "hung"):
        neutracer.watch_ranks(interval=1.0, directory=OUT)
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if KIND == "fsdp2_offload" and ON_GPU else None if ON_GPU else "gloo"
    )
    torch.manual_seed(0)
    KINDS[KIND]()
    if ON_GPU:
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
