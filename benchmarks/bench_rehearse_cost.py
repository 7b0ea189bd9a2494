# SPDX-License-Identifier: Apache-2.0
"""What does the rehearsal of a large model cost?

    python benchmarks/bench_rehearse_cost.py [--steps N]

A Llama of 7 B parameters with AdamW, 2,048 tokens a step: processor seconds of rehearsing its
steps, and the process's peak memory, PyTorch's and transformers' imports included. It needs no GPU.
The exit code is 1 above 30 s or 2 GB.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import neutracer

SECONDS, BYTES = 30, 2e9


def program(dtype: torch.dtype, again: bool) -> Callable[[], Callable[[], None]]:
    """Builds the model in a type; `again`: its layers are checkpointed."""

    def build() -> Callable[[], None]:
        model: Any = LlamaForCausalLM(LlamaConfig(use_cache=False)).to(dtype).to("cuda")
        if again:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            ids = torch.randint(0, 32000, (1, 2048), device="cuda")
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="What the rehearsal of a large model costs.")
    parser.add_argument("--steps", type=int, default=1)
    steps = parser.parse_args().steps
    failed = False
    for dtype, again in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        began = time.process_time()
        snap = neutracer.rehearse(program(dtype, again), steps=steps, capacity="1TiB")
        seconds = time.process_time() - began
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = snap.timeline().peak("allocated").bytes / 2**30
        name = f"{str(dtype).removeprefix('torch.')}{', checkpointed' if again else ''}"
        print(f"{name:24}{peak:8.1f} GiB   {seconds:5.1f} s   {most / 1e9:.2f} GB of this process")
        failed |= seconds > SECONDS * steps or most > BYTES
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
