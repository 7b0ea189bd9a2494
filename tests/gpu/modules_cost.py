# SPDX-License-Identifier: Apache-2.0
"""What `record(modules=model)` finds and costs, on models of `categories_programs`.

    python tests/gpu/modules_cost.py      # some two minutes on a GPU

For each program: the time of a step with the recording alone and with modules as well, in turns,
and by module the bytes that forward and backward allocated, beside what hooks on the modules count
for themselves by PyTorch's running total of allocated bytes (each without what is inside of it).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import categories_programs as programs

NAMES = ("gpt2_adamw", "vit_sgd", "llama_lora", "unet_ema_amp", "mixtral_sgd")


ROUNDS, STEPS = 8, 10


def seconds(step: Callable[[], None]) -> float:
    """The time of a step."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS


def cost(model: Any, step: Callable[[], None]) -> tuple[float, float]:
    """The middle of the times of a step, without and with modules."""
    import neutracer

    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for times, modules in zip(found, (None, model), strict=True):
            with neutracer.record(modules=modules):
                step()
                times.append(seconds(step))
    return statistics.median(found[0]), statistics.median(found[1])


def allocated() -> int:
    """The bytes that were ever allocated."""
    import torch

    return int(torch.cuda.memory_stats()["allocated_bytes.all.allocated"])


def counted(model: Any, step: Callable[[Callable[[], None]], None]) -> Counter[str]:
    """The bytes that each module's forward allocates, without its parts'."""
    sums: Counter[str] = Counter()
    stack: list[list[int]] = []
    handles = []
    for path, module in model.named_modules():

        def enter(_: Any, __: Any) -> None:
            stack.append([allocated(), 0])

        def leave(_: Any, __: Any, ___: Any, path: str = path) -> None:
            before, inside = stack.pop()
            grown = allocated() - before
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
    plain, marked = cost(model, step)
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
    rows, texts = timeline.allocations, events["user_metadata"]
    ours, later = Counter[str](), Counter[bool]()
    for made, size in zip(rows.codes("alloc_event"), rows.codes("size"), strict=True):
        text = texts[made] if made >= 0 else None
        if 0 <= made < marker and text:
            ours[text.removeprefix("nn.Module: ") or "(the model itself)"] += size
        elif made > marker:
            later[bool(text)] += size
    theirs = counted(model, program.step)
    for path, nbytes in theirs.most_common(6):
        told = ours[path]
        print(f"   {path:48} hooks {nbytes / 2**20:9.2f} MiB   ours {told / 2**20:9.2f} MiB")
    right = sum(min(nbytes, ours[path]) for path, nbytes in theirs.items())
    print(f"   of the hooks' bytes ours has {right / theirs.total():.1%}", end="")
    print(f"; a module is known of {later[True] / max(later.total(), 1):.1%} of what came after")


def main() -> int:
    for name in NAMES:
        one(name)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
