# SPDX-License-Identifier: Apache-2.0
"""What `record(modules=model)` finds and costs, on models of `categories_programs`.

    python tests/gpu/modules_cost.py      # some two minutes on a GPU

For each program: the time of a step with the recording alone and with modules as well, and by
module the bytes that forward left, beside what hooks on the modules count for themselves with
`memory_allocated` (each without what is inside of it).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import categories_programs as programs

NAMES = ("gpt2_adamw", "vit_sgd", "llama_lora", "unet_ema_amp", "mixtral_sgd")


def seconds(step: Callable[[], None], rounds: int = 15) -> float:
    """The tenth percentile of a step's time."""
    import torch

    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return sorted(found)[rounds // 10]


def counted(model: Any, step: Callable[[Callable[[], None]], None]) -> Counter[str]:
    """The bytes that each module's forward leaves allocated, without its parts'."""
    import torch

    sums: Counter[str] = Counter()
    stack: list[list[int]] = []
    handles = []
    for path, module in model.named_modules():

        def enter(_: Any, __: Any) -> None:
            stack.append([torch.cuda.memory_allocated(), 0])

        def leave(_: Any, __: Any, ___: Any, path: str = path) -> None:
            before, inside = stack.pop()
            grown = torch.cuda.memory_allocated() - before
            sums[path or "(the model itself)"] += grown - inside
            if stack:
                stack[-1][1] += grown

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    moments = 0

    def mark() -> None:
        nonlocal moments
        moments += 1
        if moments == 1:
            for handle in handles:
                handle.remove()

    step(mark)
    return sums


def one(name: str) -> None:
    """One program's lines."""
    import torch

    import neutracer

    program = {**programs.OPEN, **programs.HELD_OUT}[name]("cuda", True)
    model = program.tensors["parameter"].__self__.model  # type: ignore[attr-defined]

    def step() -> None:
        program.step(lambda: None)

    for _ in range(3):
        step()
    with neutracer.record():
        plain = seconds(step)
    with neutracer.record(modules=model) as recording:
        marked = seconds(step)
    print(f"{name}: {plain * 1e3:.1f} ms, with modules {marked * 1e3:.1f} ms", end="")
    print(f" ({marked / plain - 1:+.1%}, {len(list(model.modules()))} modules)")
    with neutracer.record(modules=model) as recording:
        at: list[int] = []

        def mark() -> None:
            if not at:
                torch.empty(3_333_333, dtype=torch.uint8, device="cuda")
                at.append(1)

        program.step(mark)
    timeline = recording.snapshot().timeline()
    events = timeline.events
    marker = next(i for i, size in enumerate(events["size"]) if size == 3_333_333)
    ours = {h.key: h.bytes for h in timeline.holders(marker - 1, by="module", limit=None)}
    theirs = counted(model, program.step)
    for path, nbytes in theirs.most_common(6):
        told = ours.get(path, 0)
        print(f"   {path:48} hooks {nbytes / 2**20:9.2f} MiB   ours {told / 2**20:9.2f} MiB")
    right = sum(min(nbytes, ours.get(path, 0)) for path, nbytes in theirs.items() if nbytes > 0)
    print(f"   of the hooks' bytes ours has {right / sum(n for n in theirs.values() if n > 0):.1%}")


def main() -> int:
    for name in NAMES:
        one(name)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
