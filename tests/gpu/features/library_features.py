# SPDX-License-Identifier: Apache-2.0
"""Features of compilers, of distributed training, and of libraries on top of PyTorch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from base import feature, model_of, train


def _compiled(device: str, mode: str) -> Any:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(device)
    called = torch.compile(model, mode=mode)
    found = train(model, called, device)
    torch._dynamo.reset()
    return found


@feature(quick=False)
def compiled_by_default(device: str) -> Any:
    return _compiled(device, "default")


@feature(cuda=True)
def compiled_to_reduce_overhead(device: str) -> Any:
    return _compiled(device, "reduce-overhead")


@feature(cuda=True)
def compiled_with_autotuning(device: str) -> Any:
    return _compiled(device, "max-autotune-no-cudagraphs")


@feature(quick=False)
def compiled_with_breaks(device: str) -> Any:
    torch._dynamo.reset()
    model = model_of(device).eval()

    @torch.compile(backend="aot_eager")
    def step(x: torch.Tensor) -> Any:
        y = model(x)
        if float(y.sum()) > 0:
            y = y * 2
        return torch.utils.checkpoint.checkpoint(model, y, use_reentrant=False)

    found = train(model, step, device)
    torch._dynamo.reset()
    return found


@contextmanager
def _group(device: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{os.path.join(folder, 'group')}",
            rank=0,
            world_size=1,
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


@feature(quick=False)
def distributed_data_parallel(device: str) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    with _group(device):
        model = model_of(device)
        wrapped = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)

        def forward(x: torch.Tensor) -> Any:
            return torch.utils.checkpoint.checkpoint(wrapped, x, use_reentrant=False)

        found = train(model, wrapped, device)
        with wrapped.no_sync():
            wrapped(torch.ones(4, 64, device=device)).sum().backward()
        return [found, train(model, forward, device) if device == "cpu" else None]


@feature(cuda=True)
def fully_sharded(device: str) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with _group(device):
        model = model_of(device)
        for layer in model:  # type: ignore[attr-defined]
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        fully_shard(model)
        losses, parameters = train(model, lambda x: model(x).float(), device)
        return [losses, [p.full_tensor() for p in parameters]]


@feature(quick=False)
def collectives(device: str) -> Any:
    with _group(device):
        x = torch.ones(16, device=device)
        work = torch.distributed.all_reduce(x, async_op=True)
        work.wait()
        out = [torch.empty(16, device=device)]
        torch.distributed.all_gather(out, x)
        torch.distributed.barrier()
        return [x, out]


@feature(quick=False)
def transformers_with_checkpointing(device: str) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=300, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config).to(device)
    model.gradient_checkpointing_enable()
    model.train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        ids = torch.randint(0, 300, (2, 32), device=device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    model.config.use_cache = True
    said = model.generate(torch.ones(1, 4, dtype=torch.long, device=device), max_new_tokens=8)
    return [losses, said]


@feature(quick=False)
def lightning_trainer(device: str) -> Any:
    import logging

    try:
        import lightning as lib
    except ImportError:
        import pytorch_lightning as lib
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    losses: list[Any] = []

    class Module(lib.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of("cpu")

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.model(batch[0]).square().mean()
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(32, 64))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lib.Trainer(
            max_epochs=2,
            accelerator="gpu" if device == "cuda" else "cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
    return losses
