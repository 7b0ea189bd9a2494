# SPDX-License-Identifier: Apache-2.0
"""A program's steps on a made-up card, and the snapshot that comes of them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from neutracer.rehearsal.cards import Card, nccl_bytes
from neutracer.rehearsal.failures import sentence
from neutracer.rehearsal.ranks import spread
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.session import pretending
from neutracer.rehearsal.tracing import Tracing
from neutracer.trace.rehearsed import Rehearsed
from neutracer.trace.snapshot import Snapshot

__all__ = ["Run"]


class Run:
    """Makes steps, and a snapshot of what they asked for.

    Attributes:
        failure: Why the program did not make all of its steps, in one sentence, or "".
        steps_done: How many it has made.
        requests: What was asked of the allocator.
    """

    def __init__(
        self,
        card: Card,
        capacity: int,
        settings: str,
        steps: int,
        world_size: int = 1,
        strategy: str | None = None,
    ) -> None:
        self.card, self.capacity, self.settings = card, capacity, settings
        self.steps, self.world_size, self.strategy = steps, world_size, strategy
        self.requests = Requests()
        self.failure, self.steps_done = "", 0
        self.notes: tuple[str, ...] = ()
        self.uncertain: dict[str, tuple[int, int]] = {}

    def call(self, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Make the steps of a function."""
        if self.strategy is not None and not any(isinstance(one, nn.Module) for one in args):
            raise ValueError(
                f"strategy={self.strategy!r} spreads models that the step is given, and it is "
                "given none: pass them as arguments, or let the program spread them itself"
            )
        with ExitStack() as stack:
            tracing = stack.enter_context(
                pretending(
                    self.card,
                    self.requests,
                    devices=max(self.world_size, 1),
                    capacity=self.capacity,
                )
            )
            try:
                given = placed(args) if args else ()
                if self.strategy is not None:
                    given = spread(given, self.strategy, self.world_size)
                self._make(step, given)
            except Exception as error:
                self.failure = sentence(error)
            self.keep(tracing)
        gc.collect()

    def keep(self, tracing: Tracing) -> None:
        """Keep what a rehearsal had to assume."""
        self.notes = tracing.notes.sentences
        self.uncertain = dict(tracing.kernels.uncertain)

    def _make(self, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
        made: Any = None
        for number in range(self.steps):
            self.requests.annotate("START", f"step {number}")
            result = step(*args) if made is None else made()
            if callable(result) and made is None and not isinstance(result, nn.Module | Tensor):
                # It has built the program: this is the function that makes steps.
                made = result
                made()
            del result
            self.steps_done += 1
            self.requests.annotate("END", f"step {number}")

    def _outside(self) -> dict[str, tuple[int, int]]:
        """What takes the card's memory outside of PyTorch's allocator."""
        context = self.card.context_bytes
        found = {"CUDA's context": (context, context)}
        if self.world_size > 1:
            found["NCCL"] = nccl_bytes(self.world_size)
        return found

    def snapshot(self) -> Snapshot:
        """The snapshot that a recorder would have written at the end."""
        needed, ranges = self.requests.bounds(self.settings, self.capacity)
        facts = Rehearsed(
            device=self.card.name,
            capacity_bytes=self.capacity,
            steps=self.steps_done,
            needed_bytes=needed,
            settings=self.settings,
            torch=torch.__version__,
            ranges=ranges,
            operators=self.uncertain,
            notes=self.notes,
            stopped=self.failure,
            world_size=self.world_size,
            strategy=self.strategy,
            outside=self._outside(),
        )
        return self.requests.run(self.settings, self.capacity, facts)


def placed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fake copies of what a step is given, on the card.

    One copy of all, so that an optimizer goes on with the parameters of its model.
    """
    memo: dict[int, Any] = {}
    for tensor in _tensors(args):
        with torch.no_grad():
            made = torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cuda"
            )
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        elif tensor.is_floating_point():
            made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
    return copy.deepcopy(args, memo)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in arguments: in modules, optimizers and containers."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.optim.Optimizer):
        groups = [tensor for group in value.param_groups for tensor in group["params"]]
        return groups + _tensors(list(value.state.values()))
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, list | tuple | set):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
