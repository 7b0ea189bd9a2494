# SPDX-License-Identifier: Apache-2.0
"""What `record(modules=model)` finds and costs, on models of `categories_programs`.

    neutracer setup hooks
    python tests/gpu/modules_cost.py [NAME ...] [--rounds 40] [--marks-only]

Takes some three minutes on a GPU. For each program: the time of a step with the recording alone,
with PyTorch's hooks on modules that do nothing, with modules as without neutracer's compiled hooks,
and with modules, in turns; and by module the bytes that forward and backward allocated, beside what
hooks on the modules count for themselves by PyTorch's running total of allocated bytes (each
without what is inside of it).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import categories_programs as programs

NAMES = ("gpt2_adamw", "vit_sgd", "llama_lora", "unet_ema_amp", "mixtral_sgd")

MEASURED = 0.1  # seconds that a time is taken over, at least


def seconds(step: Callable[[], None], steps: int) -> float:
    """The time of a step."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


@contextlib.contextmanager
def empty_hooks() -> Iterator[None]:
    """PyTorch's own hooks before and after each module's forward, which do nothing."""
    from torch.nn.modules import module

    before = module.register_module_forward_pre_hook(lambda one, args: None)
    after = module.register_module_forward_hook(lambda one, args, output: None)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@contextlib.contextmanager
def not_compiled() -> Iterator[None]:
    """Marks are made as where neutracer's hooks are not compiled."""
    from neutracer import UnavailableError
    from neutracer.hooks import modules as module_calls

    def refuse(**_: object) -> None:
        raise UnavailableError("the hooks", "they are not used here")

    load, module_calls.load = module_calls.load, refuse
    try:
        yield
    finally:
        module_calls.load = load


WAYS = (
    ("the recording alone", False, contextlib.nullcontext),
    ("hooks of PyTorch's that do nothing", False, empty_hooks),
    ("modules=model, by PyTorch's hooks", True, not_compiled),
    ("modules=model", True, contextlib.nullcontext),
)


Ways = Sequence[tuple[str, bool, Callable[[], contextlib.AbstractContextManager[None]]]]


def cost(model: Any, step: Callable[[], None], rounds: int, ways: Ways) -> list[list[float]]:
    """The times of a step in each of these ways; one of each a round, in turns."""
    import neutracer

    found: list[list[float]] = [[] for _ in ways]
    steps = max(round(MEASURED / seconds(step, 5)), 3)
    for round_ in range(rounds):
        for at in ((round_ + turn) % len(ways) for turn in range(len(ways))):
            _, marked, around = ways[at]
            with around(), neutracer.record(modules=model if marked else None):
                step()
                found[at].append(seconds(step, steps))
    return found


def calls_of(step: Callable[[], None]) -> int:
    """How many modules a step calls."""
    from torch.nn.modules import module

    called: list[type] = []
    hook = module.register_module_forward_pre_hook(lambda one, args: called.append(type(one)))
    step()
    hook.remove()
    return len(called)


def median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median: by ranks, a fair coin's for each value."""
    ranked = sorted(values)
    reach = math.floor(len(ranked) / 2 - 1.96 * math.sqrt(len(ranked)) / 2)
    first = max(reach, 0)
    return ranked[first], ranked[-1 - first]


def told(plain: list[float], more: list[float], calls: int) -> str:
    """What something adds to a step: by the rounds, with the 95 % interval of their median, and
    by the fastest tenth of each, which a processor that changes its speed leaves alone."""
    rounds = [b / a - 1 for a, b in zip(plain, more, strict=True)]
    middle, (low, high) = statistics.median(rounds), median_interval(rounds)
    fast = statistics.quantiles(plain, n=10)[0], statistics.quantiles(more, n=10)[0]
    each = (fast[1] - fast[0]) / calls * 1e6
    return (
        f"{middle:+.1%} ({low:+.1%} to {high:+.1%}); at the fastest {fast[1] / fast[0] - 1:+.1%}, "
        f"{each:.1f} us a call"
    )


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


def one(name: str, rounds: int, ways: Ways) -> None:
    """One program's lines."""
    import torch

    import neutracer

    program = {**programs.OPEN, **programs.HELD_OUT}[name]("cuda", True)
    model = program.tensors["parameter"].__self__.model  # type: ignore[attr-defined]

    def step() -> None:
        program.step(lambda: None)

    for _ in range(3):
        step()
    plain, *others = cost(model, step, rounds, ways)
    calls = calls_of(step)
    print(f"{name}: {statistics.median(plain) * 1e3:.2f} ms, {calls} calls of modules")
    for (way, _, _), times in zip(ways[1:], others, strict=True):
        print(f"   {way:34} {told(plain, times, calls)}")
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
        found = ours[path]
        print(f"   {path:48} hooks {nbytes / 2**20:9.2f} MiB   ours {found / 2**20:9.2f} MiB")
    right = sum(min(nbytes, ours[path]) for path, nbytes in theirs.items())
    print(f"   of the hooks' bytes ours has {right / theirs.total():.1%}", end="")
    print(f"; a module is known of {later[True] / max(later.total(), 1):.1%} of what came after")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(NAMES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--marks-only", action="store_true", help="no other hooks beside them")
    args = parser.parse_args()
    ways = (WAYS[0], WAYS[-1]) if args.marks_only else WAYS
    for name in args.names or NAMES:
        one(name, args.rounds, ways)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
