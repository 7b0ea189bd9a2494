# SPDX-License-Identifier: Apache-2.0
"""After its last use a tensor's memory may hold anything: no result depends on it.

Random programs are rehearsed, then run on the CPU, where each storage is overwritten with NaN as
soon as its last use in the rehearsal is past.
"""

from __future__ import annotations

import ctypes
import math
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest

import neutracer

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from neutracer.rehearsal.kernels.rules import Kernels  # noqa: E402

SIDE = 6

Results = list[bytes]


# ---- Programs ------------------------------------------------------------------------------


class Program:
    """Some random steps on square matrices; the same ones each time it is called."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, device: str) -> Results:
        self.choose, self.device = random.Random(self.seed), device
        self.leaves = [self.matrix().requires_grad_() for _ in range(2)]
        self.values = [self.matrix(), *self.leaves]
        self.optimizer: Any = None
        for _ in range(self.choose.randint(3, 14)):
            self.choose.choice(STEPS)(self)
            if len(self.values) > 5:
                del self.values[self.choose.randrange(len(self.values))]
        grads = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        results = [self.content(value.detach().clone()) for value in (*self.values, *grads)]
        del self.leaves, self.values, self.optimizer
        return results

    def content(self, clone: Any) -> bytes:
        """The bytes of a tensor that nothing uses, before others are made; a fake has none."""
        storage = clone.untyped_storage()
        at = storage.data_ptr() if self.device == "cpu" else 0
        return ctypes.string_at(at, storage.nbytes()) if at else b""

    def matrix(self) -> Any:
        begin = self.choose.uniform(-1, 1)
        return torch.linspace(begin, 1, SIDE * SIDE, device=self.device).reshape(SIDE, SIDE)

    def any(self) -> Any:
        return self.choose.choice(self.values)

    def add(self, *values: Any) -> None:
        self.values.extend(values)


def unary(p: Program) -> None:
    p.add(p.choose.choice((torch.sin, torch.tanh, torch.sigmoid, torch.relu, torch.abs))(p.any()))


def binary(p: Program) -> None:
    p.add(p.choose.choice((torch.add, torch.mul, torch.sub, torch.mm))(p.any(), p.any()))


def softmax(p: Program) -> None:
    p.add(torch.softmax(p.any(), 1))


def reduction(p: Program) -> None:
    p.add(p.any().sum(p.choose.randrange(2), keepdim=True).expand(SIDE, SIDE))


def view(p: Program) -> None:
    value = p.any()
    p.add(p.choose.choice((value.t(), value.reshape(SIDE, SIDE), value.flip(0)[:])))


def joined(p: Program) -> None:
    p.add(torch.cat([p.any()[:2], p.any()[2:]]))


def in_place(p: Program) -> None:
    value = p.any().clone()
    value.mul_(0.5)
    value[0].add_(1)
    p.add(value)


def in_place_later(p: Program) -> None:
    plain = [value for value in p.values if not value.requires_grad and value.is_contiguous()]
    if plain:
        p.choose.choice(plain).add_(p.matrix())


def out(p: Program) -> None:
    target = torch.empty(SIDE, SIDE, device=p.device)
    torch.sin(p.any().detach(), out=target)
    p.add(target)


def detached(p: Program) -> None:
    p.add(p.any().detach())


def without_graph(p: Program) -> None:
    with torch.no_grad():
        p.add(torch.tanh(torch.mm(p.any(), p.any())))


def hooked(p: Program) -> None:
    value = p.any() * 1.5
    if value.requires_grad:
        value.register_hook(lambda gradient: gradient * 0.5)
    p.add(value)


def recomputed(p: Program) -> None:
    value = p.any()
    p.add(checkpoint(lambda x: torch.sin(x).tanh() * x, value, use_reentrant=False))


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        ctx.save_for_backward(value, torch.sin(value))
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        value, other = ctx.saved_tensors
        return gradient * other + value


def own_function(p: Program) -> None:
    p.add(Doubled.apply(p.any()))


def backward(p: Program) -> None:
    losses = [value for value in p.values if value.grad_fn is not None]
    if losses:
        p.choose.choice(losses).sum().backward(retain_graph=p.choose.random() < 0.5)


def listed(p: Program) -> None:
    with torch.no_grad():
        p.add(*torch._foreach_mul([p.any(), p.any()], 0.5))


def optimized(p: Program) -> None:
    if p.optimizer is None:
        # Not Adam, whose counts of steps are on the CPU beside a device.
        p.optimizer = torch.optim.SGD(p.leaves, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    p.optimizer.step()
    if p.choose.random() < 0.5:
        p.optimizer.zero_grad()


STEPS: tuple[Callable[[Program], None], ...] = (
    *(unary, unary, binary, binary, softmax, reduction, view, joined, in_place, in_place_later),
    *(out, detached, without_graph, hooked, recomputed, own_function, backward, backward, listed),
    *(optimized,),
)


# ---- Poison --------------------------------------------------------------------------------


_NEVER_AGAIN = 1 << 62


class Poisoning(TorchDispatchMode):  # type: ignore[misc]
    """Overwrites the storages of new tensors after their last uses.

    Args:
        last_uses: By storage, in the order of their making, how many there were at its last use.
    """

    def __init__(self, last_uses: list[int]) -> None:
        super().__init__()
        self.last_uses = last_uses
        self.sizes: list[int] = []
        self.poisoned = 0
        # By address of the storage and by number; neither keeps it, as autograd would notice.
        self._known: dict[int, int] = {}
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = len(self.sizes)
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        # An operator without results may still use what the last one with results did.
        if len(self.sizes) > before:
            self._poison(before)
        return result

    def _note(self, storage: Any) -> None:
        key, number = storage._cdata, len(self.sizes)
        if key in self._known or not storage.nbytes():
            return

        def end(_: Any) -> None:
            del self._known[key], self._storages[number]

        self._known[key], self._storages[number] = number, weakref.ref(storage, end)
        self.sizes.append(storage.nbytes())

    def _poison(self, until: int) -> None:
        """Overwrite what had its last use before storage `until` was made."""
        for number, alive in list(self._storages.items()):
            storage = alive()
            if storage is not None and self.last_uses[number] < until:
                ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())
                self.last_uses[number] = _NEVER_AGAIN
                self.poisoned += 1


@dataclass
class Ran:
    """A program that runs on the CPU, what it came to, and the bytes of its storages."""

    program: Program
    results: Results
    sizes: list[int]


def programs(seed: int) -> Iterator[Ran]:
    """Programs that run: autograd refuses some changes in place, and graphs that are gone."""
    for number in count(seed):
        program, watching = Program(number), Poisoning([_NEVER_AGAIN] * 1000)
        try:
            with watching:
                results = program("cpu")
        except RuntimeError:
            continue
        # Else poison would not show.
        if all(math.isfinite(one) for value in results for one in memoryview(value).cast("f")):
            yield Ran(program, results, watching.sizes)


# A request of this many bytes tells one program's requests from those before.
_MARK = 40_000


def rehearsed(
    batch: list[Ran], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Ran, list[int], list[int]]]:
    """By program and request, the number of requests up to its last use, and its bytes."""
    # Kernels for the CPU take no scratch memory from the allocator.
    monkeypatch.setattr(Kernels, "takes", lambda *args: None)

    def step() -> None:
        for one in batch:
            torch.empty(_MARK, dtype=torch.uint8, device="cuda")
            one.program("cuda")

    rows = list(neutracer.rehearse(step, steps=1).timeline().allocations)
    number = {row.alloc_event: at for at, row in enumerate(rows)}
    begins = [at + 1 for at, row in enumerate(rows) if row.requested_size == _MARK]
    for one, begin, end in zip(batch, begins, [*begins[1:], len(rows) + 1], strict=True):
        own = rows[begin : end - 1]
        yield (
            one,
            [number[row.last_use_event] - begin for row in own],
            [row.requested_size for row in own],
        )


def check(batch: list[Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the results of programs with and without poison against each other."""
    poisoned = compared = 0
    for one, last, sizes in rehearsed(batch, monkeypatch):
        # Autograd copies a gradient here and there that it takes over from a fake tensor.
        if one.sizes != sizes:
            continue
        poisoning = Poisoning(last)
        with poisoning:
            results = one.program("cpu")
        assert results == one.results, f"program {one.program.seed}"
        compared += 1
        poisoned += poisoning.poisoned
    assert compared > 0.8 * len(batch)
    assert poisoned > 5 * compared


@pytest.mark.parametrize("batch", range(4))
def test_nothing_depends_on_memory_past_its_last_use(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(list(islice(programs(batch * 10_000), 75)), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(100))
def test_nothing_depends_on_it_in_ten_thousand_programs(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(list(islice(programs(1_000_000 + batch * 10_000), 100)), monkeypatch)
