# SPDX-License-Identifier: Apache-2.0
"""Programs that leave tensors in reference cycles, one a function, and how each reads.

Each case makes its objects and lets go of all of them. `size` is in floats of 4 bytes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import isolation
import torch

SIZE = 1024

#: Where the cases make their tensors.
DEVICE = "cpu"


def tensor(size: int = SIZE) -> torch.Tensor:
    return torch.zeros(size, device=DEVICE)


class Link:
    """An object with whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Plain:
    """An object that nobody asked for its `__dict__`."""


def two_nodes() -> None:
    one, other = Plain(), Plain()
    one.next, other.prev = other, one
    one.tensor = tensor()


class Callback:
    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable
        self.view_callback = self.view

    def view(self) -> torch.Tensor:
        return self.awaitable.tensor


class AwaitableTensor:
    def __init__(self, held: torch.Tensor) -> None:
        self.tensor = held


def bound_method_of_itself() -> None:
    Callback(AwaitableTensor(tensor()))


def closure_over_itself() -> None:
    held = tensor()

    def again(depth: int) -> Any:
        return held if depth == 0 else again(depth - 1)

    again(1)


def exception_kept_in_its_frame() -> None:
    held = tensor()
    try:
        raise ValueError(held.shape)
    except ValueError as error:
        kept = error
    assert kept is not None


class Sample:
    def __init__(self, dataset: Any, held: torch.Tensor) -> None:
        self.dataset = dataset
        self.held = held


class Dataset:
    def __init__(self) -> None:
        self.cache = {index: Sample(self, tensor()) for index in range(3)}


def dataset_with_cached_items() -> None:
    Dataset()


def module_hook_with_closure() -> None:
    module = torch.nn.Linear(32, 32, bias=False, device=DEVICE)

    def hook(*_: Any) -> None:
        assert module.weight is not None

    module.register_forward_hook(hook)


def tensor_with_itself_as_attribute() -> None:
    held = tensor()
    held.me = held


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("nobody may call a tensor's Python")


def tensor_subclass() -> None:
    held = torch.Tensor._make_subclass(Tagged, tensor())
    Link(held=held).__dict__["ring"] = None
    ring = Link(held=held)
    ring.again = ring


def storage_shared_by_views() -> None:
    whole = tensor()
    ring = Link(first=whole[:10], second=whole[10:], third=whole.view(32, 32))
    ring.again = ring


def cached_method() -> None:
    class Model:
        def __init__(self) -> None:
            self.weight = tensor()
            self.forward = functools.lru_cache(self.compute)

        def compute(self, scale: int) -> torch.Tensor:
            return self.weight * scale

    Model().forward(2)


def suspended_generator() -> None:
    def batches(holder: Link) -> Iterator[torch.Tensor]:
        held = tensor()
        while True:
            yield held
            holder.last = held

    holder = Link()
    holder.batches = batches(holder)
    next(holder.batches)


def thread_local() -> None:
    store = threading.local()
    store.ring = Link(store=store, held=tensor())


class Finalized:
    def __init__(self) -> None:
        self.held = tensor()
        self.me = self

    def __del__(self) -> None:
        self.held = None


def finalizer() -> None:
    Finalized()


def weak_callback() -> None:
    ring = Link(held=tensor())
    ring.again = ring
    ring.watcher = weakref.ref(ring, lambda _: None)


class Slotted:
    __slots__ = ("held", "other")


def slots() -> None:
    one, other = Slotted(), Slotted()
    one.other, other.other = other, one
    one.held = tensor()


def list_of_itself() -> None:
    ring: list[Any] = [tensor()]
    ring.append(ring)


def behind_an_old_object() -> None:
    """Only young objects go round; the tensor hangs behind one that may be old."""
    ring = Link(box={"held": [tensor()]})
    ring.again = ring


@dataclass(frozen=True)
class Case:
    """A case, the chain that tells of it, and what its advice speaks of."""

    make: Callable[[], None]
    chain: str
    advice: str
    bytes: int = SIZE * 4

    @property
    def name(self) -> str:
        return self.make.__name__


CASES = [
    Case(two_nodes, "Plain.next → Plain.prev → Plain", "weakref.ref to the Plain in Plain.prev"),
    Case(
        bound_method_of_itself,
        "Callback.view_callback → method view",
        "WeakMethod in Callback.view_callback",
    ),
    Case(closure_over_itself, "function again closure again", "pass again as an argument"),
    Case(exception_kept_in_its_frame, "local kept", "`del kept` in frame of exception_kept"),
    Case(dataset_with_cached_items, "Dataset.cache", "Sample.dataset", 3 * SIZE * 4),
    Case(module_hook_with_closure, "closure module", "weakref.ref(module)"),
    Case(tensor_with_itself_as_attribute, ".me → ", ".me"),
    Case(tensor_subclass, "Link.again → Link", "Link.again"),
    Case(storage_shared_by_views, "Link.again → Link", "Link.again"),
    Case(cached_method, "Model.forward", "cache_clear()", 2 * SIZE * 4),
    Case(suspended_generator, "generator batches local holder", "close()"),
    Case(thread_local, "Link.store", "Link.store"),
    Case(finalizer, "Finalized.me → Finalized", "Finalized.me"),
    Case(weak_callback, "Link.again → Link", "Link.again"),
    Case(slots, "Slotted.other → Slotted.other → Slotted", "Slotted.other"),
    Case(list_of_itself, "list of 2[1] → list of 2", "list of 2"),
    Case(behind_an_old_object, "Link.again → Link", "Link.again"),
]


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """No collection but those that the block asks for, and no garbage from before.

    What was there before is set aside, so that a test does not walk all of torch each time.
    """
    isolation.set_aside()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
