# SPDX-License-Identifier: Apache-2.0
"""Shapes of garbage: each function leaves some behind that only a collection can free."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import itertools
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

#: What finalizers brought back, for the test to look at and to clear.
BROUGHT_BACK: list[Any] = []
#: What keeps things that have to outlive the function which made them.
KEPT: list[Any] = []


class Node:
    """Anything with attributes."""


class Slotted:
    __slots__ = ("__weakref__", "other", "value")


class Finalized:
    def __del__(self) -> None:
        self.called = True


class Clearing:
    """Its finalizer breaks the cycle, and reference counting frees the rest."""

    def __del__(self) -> None:
        self.__dict__.clear()


class Returning:
    def __del__(self) -> None:
        BROUGHT_BACK.append(self)


class Meta(type):
    pass


def two_nodes() -> None:
    one, two = Node(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]


def list_in_itself() -> None:
    items: list[Any] = [1, "two"]
    items.append(items)


def dict_in_itself() -> None:
    table: dict[str, Any] = {"a": 1}
    table["self"] = table


def tuple_through_list() -> None:
    items: list[Any] = []
    items.append((items, (items, (1, 2))))


def bound_method_of_itself() -> None:
    node = Node()
    node.method = types.MethodType(lambda self: self, node)  # type: ignore[attr-defined]


def closure_over_itself() -> None:
    def again(depth: int) -> int:
        return again(depth - 1) if depth else 0

    again(1)


def traceback_cycle() -> None:
    def fails() -> None:
        local = ["held by the frame"]
        error = None
        try:
            raise ValueError(local)
        except ValueError as caught:
            error = caught
        local.append(str(error)[:1])

    fails()


def nested_exceptions() -> None:
    try:
        try:
            raise ValueError("inner")
        except ValueError as inner:
            kept = inner
            raise KeyError("outer") from inner
    except KeyError as outer:
        outer.extra = [kept, outer]  # type: ignore[attr-defined]


def suspended_generator() -> None:
    def count(holder: list[Any]) -> Iterator[int]:
        local = {"of": holder}
        yield len(local)
        yield 2

    holder: list[Any] = []
    holder.append(count(holder))
    next(holder[0])


def generator_with_finally() -> None:
    def guarded(holder: list[Any]) -> Iterator[int]:
        try:
            yield 1
        finally:
            holder.append("closed")

    holder: list[Any] = []
    holder.append(guarded(holder))
    next(holder[0])


def generator_not_started() -> None:
    def count(holder: list[Any]) -> Iterator[int]:
        yield len(holder)

    holder: list[Any] = []
    holder.append(count(holder))


class Pause:
    def __await__(self) -> Iterator[None]:
        yield None


def suspended_coroutine() -> None:
    async def wait(holder: list[Any]) -> None:
        await Pause()
        holder.clear()

    holder: list[Any] = []
    holder.append(wait(holder))
    holder[0].send(None)


def suspended_async_generator() -> None:
    async def values(holder: list[Any]) -> Any:
        yield len(holder)
        yield 2

    holder: list[Any] = []
    holder.append(values(holder))
    with contextlib.suppress(StopIteration):
        holder[0].__anext__().send(None)


def finished_future() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    future.set_result(future)
    loop.close()


def with_finalizer() -> None:
    one, two = Finalized(), Finalized()
    one.other, two.other = two, one  # type: ignore[attr-defined]


def with_clearing_finalizer() -> None:
    one, two = Clearing(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]


def with_returning_finalizer() -> None:
    one, two = Returning(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    one.payload = [1, {"deep": [2]}]  # type: ignore[attr-defined]


def with_weak_callback() -> None:
    one, two = Node(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    KEPT.append(weakref.ref(one, lambda _: None))
    two.weak = weakref.ref(one, lambda _: None)  # type: ignore[attr-defined]


def in_weak_maps() -> None:
    keys: Any = weakref.WeakKeyDictionary()
    one = Node()
    keys[one] = [one, keys]
    one.keys = keys  # type: ignore[attr-defined]


def thread_local() -> None:
    local = threading.local()
    local.own = [local]
    thread = threading.Thread(target=lambda: setattr(local, "theirs", [local]))
    thread.start()
    thread.join()


def lru_cache() -> None:
    class Model:
        @functools.lru_cache(maxsize=8)  # noqa: B019 - the cycle is the point
        def size(self, extra: int) -> int:
            return extra

    model = Model()
    model.size(1)
    model.size(2)


def slots() -> None:
    one, two = Slotted(), Slotted()
    one.other, two.other = two, one
    one.value = [one]


def metaclass_instances() -> None:
    made = Meta("Made", (Node,), {"attribute": []})
    made.instance = made()
    made.attribute.append(made)


def many_attributes() -> None:
    node = Node()
    for i in range(64):
        setattr(node, f"attribute_{i}", [i, node])


def touched_dict() -> None:
    node = Node()
    node.me = node  # type: ignore[attr-defined]
    node.__dict__["by_dict"] = [node]


def replaced_dict() -> None:
    node = Node()
    node.before = [node]  # type: ignore[attr-defined]
    node.__dict__ = {"after": node}


def deque() -> None:
    items: collections.deque[Any] = collections.deque([1], maxlen=8)
    items.append(items)
    items.append(iter(items))


def ordered_dict() -> None:
    table: collections.OrderedDict[str, Any] = collections.OrderedDict(a=1)
    table["self"] = table
    table["items"] = table.items()


def default_dict() -> None:
    table: Any = collections.defaultdict(list)
    table["self"].append(table)


def partial() -> None:
    holder: list[Any] = []
    holder.append(functools.partial(print, holder, end=holder))


def iterators() -> None:
    holder: list[Any] = []
    first, second = itertools.tee(iter(holder))
    parts = (
        itertools.chain(holder, holder),
        itertools.cycle(holder),
        zip(holder, holder, strict=False),
    )
    holder.extend([first, second, parts, map(str, holder), enumerate(holder), iter(holder)])
    holder.append(itertools.groupby(holder, key=holder.count))


def suspended_in_a_list() -> None:
    def generator(holder: list[Any]) -> Iterator[None]:
        _ = [holder, holder, (yield)]

    holder: list[Any] = []
    holder.append(generator(holder))
    next(holder[0])


def suspended_in_a_call() -> None:
    def generator(node: Node) -> Iterator[None]:
        print(node, node, (yield))

    node = Node()
    node.mine = generator(node)  # type: ignore[attr-defined]
    next(node.mine)  # type: ignore[attr-defined]


def awaiting_in_a_call() -> None:
    async def coroutine(node: Node) -> None:
        print(node, await types.coroutine(lambda: (yield))(), node)

    node = Node()
    node.mine = coroutine(node)  # type: ignore[attr-defined]
    node.mine.send(None)  # type: ignore[attr-defined]


def async_generator_in_a_call() -> None:
    async def generator(node: Node) -> AsyncIterator[None]:
        print(node, (yield), node)

    node = Node()
    node.mine = generator(node)  # type: ignore[attr-defined]
    with contextlib.suppress(StopIteration):
        node.mine.__anext__().send(None)  # type: ignore[attr-defined]


def frame_that_raised_in_a_call() -> None:
    def fail() -> None:
        raise ValueError

    def over(node: Node) -> None:
        print(node, node, fail())

    node = Node()
    try:
        over(node)
    except ValueError as error:
        node.error = error  # type: ignore[attr-defined]


def properties_and_classes() -> None:
    class Model:
        @property
        def size(self) -> int:
            return len(Model.__name__)

        @staticmethod
        def make() -> Any:
            return Model()

        @classmethod
        def other(cls) -> Any:
            return super().__new__(cls)

    Model.last = Model()  # type: ignore[attr-defined]


def sets_and_views() -> None:
    node = Node()
    node.members = {node, frozenset([node])}  # type: ignore[attr-defined]
    node.view = {"key": node}.values()  # type: ignore[attr-defined]
    node.buffer = memoryview(bytearray(8))  # type: ignore[attr-defined]


def module() -> None:
    made = types.ModuleType("made")
    exec("class Inner: pass\ndef function(): return Inner", made.__dict__)
    made.me = made  # type: ignore[attr-defined]


def cells_and_contexts() -> None:
    holder: list[Any] = []
    holder.append(types.CellType(holder))
    holder.append(types.MappingProxyType({"holder": holder}))
    holder.append(types.SimpleNamespace(holder=holder))


def many_small_cycles() -> None:
    for _ in range(100_000):
        items: list[Any] = []
        items.append(items)


def one_large_ring() -> None:
    first: list[Any] = []
    last = first
    for _ in range(99_999):
        last = [last]
    first.append(last)


SHAPES: list[Callable[[], None]] = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType) and value.__module__ == __name__
]


#: The names of what torch_shapes() has.
TORCH_SHAPES = (
    "tensor_with_itself",
    "views_of_one_storage",
    "tensor_subclass",
    "fake_tensor",
    "module_with_hook",
    "create_graph",
    "function_context",
)


@functools.lru_cache(maxsize=1)
def torch_shapes() -> dict[str, Callable[[], None]]:
    """More of them, by name, where torch is installed."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Tagged(torch.Tensor):
        pass

    def tensor_with_itself() -> None:
        tensor = torch.zeros(4)
        tensor.me = tensor  # type: ignore[attr-defined]

    def views_of_one_storage() -> None:
        node = Node()
        base = torch.zeros(16)
        node.views = [base[:4], base[4:], base, node]  # type: ignore[attr-defined]

    def tensor_subclass() -> None:
        tensor = torch.zeros(4).as_subclass(Tagged)
        tensor.holder = [tensor]  # type: ignore[attr-defined]

    def fake_tensor() -> None:
        with FakeTensorMode():
            tensor = torch.empty(8)
        tensor.me = [tensor]  # type: ignore[attr-defined]

    def module_with_hook() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        model.register_forward_hook(lambda *_: (model, None)[1])
        model(torch.zeros(2, 4)).sum().backward()

    def create_graph() -> None:
        weight = torch.zeros(4, requires_grad=True)
        (weight * weight).sum().backward(create_graph=True)
        weight.me = weight  # type: ignore[attr-defined]
        weight.grad = None

    def function_context() -> None:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
                ctx.kept = [ctx, value]
                return value * 2

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                return gradient * 2

        Double.apply(torch.zeros(2, requires_grad=True)).sum()

    shapes: dict[str, Callable[[], None]] = {
        name: shape for name, shape in locals().items() if name in TORCH_SHAPES
    }
    return shapes
