# SPDX-License-Identifier: Apache-2.0
"""What autograd holds, read without running anything of the program."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
from forked import Imported

from neutracer.heap.alive import AutogradLinks, read_autograd, untrained_memory


def named(links: AutogradLinks, source: object) -> dict[str, Any]:
    """The references of one object, by name."""
    at = next(i for i, known in enumerate(links.objects) if known is source)
    rows = zip(*[iter(links.links)] * 3, strict=True)
    return {links.names[name]: links.objects[t] for s, t, name in rows if s == at}


def test_tensor_leads_to_its_graph(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    links = read_autograd()
    assert named(links, x)[".grad"] is x.grad
    total = named(links, y)[".grad_fn"]
    assert total is y.grad_fn
    product = named(links, total)[".next_functions[0]"]
    assert named(links, product)["._saved_self"] is x
    leaf = named(links, product)[".next_functions[1]"]
    assert named(links, leaf)[".variable"] is x
    assert links.unread == 0


def test_memory_for_parameters_that_nothing_trains(torch: Any) -> None:
    def model() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Sigmoid())

    rows = torch.ones(8, 4)
    encoder, head, teacher = model(), torch.nn.Linear(32, 32), model()
    trained = {id(one) for one in head.parameters()}
    hidden = encoder(rows)
    beside = teacher(rows)
    out = head(hidden)
    # The encoder's result is saved for the head's weight too, whose gradient is wanted.
    assert untrained_memory(trained) == (beside.data_ptr(),)
    out.sum().backward()
    gradients = {one.grad.data_ptr() for one in encoder.parameters()}
    assert set(untrained_memory(trained)) == gradients | {beside.data_ptr()}
    everything = {id(one) for each in (encoder, head, teacher) for one in each.parameters()}
    assert untrained_memory(everything) == ()


def test_graph_behind_a_plain_leaf_or_a_trained_one_is_needed(torch: Any) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Sigmoid())
    first = torch.nn.Linear(4, 4)
    image = torch.ones(8, 4, requires_grad=True)
    attacked, followed = layer(image), layer(first(torch.ones(8, 4)))
    assert untrained_memory({id(one) for one in first.parameters()}) == ()
    del attacked, followed


def test_view_leads_to_its_base(torch: Any) -> None:
    base = torch.zeros(6)
    view = base.view(2, 3)
    assert named(read_autograd(), view)["._base"] is base


def test_tensor_leads_to_its_hooks(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    handle = x.register_hook(lambda grad: grad)
    hooks = named(read_autograd(), x)["._backward_hooks"]
    assert list(hooks) == [handle.id]


def test_packed_value_is_not_unpacked(torch: Any) -> None:
    unpacked = []

    def unpack(packed: Any) -> Any:
        unpacked.append(packed)
        return packed[1]

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: ("packed", t), unpack):
        y = x * x
    found = named(read_autograd(), y.grad_fn)
    assert found["._saved_self as packed"] == ("packed", x)
    assert found["._saved_self.unpack_hook"] is unpack
    assert unpacked == []


def test_function_leads_to_saved_tensors(torch: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.save_for_backward(a)
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = torch.ones(3, requires_grad=True)
    y = Double.apply(x)
    assert named(read_autograd(), y.grad_fn)[".saved_tensors[0]"] is x


def test_released_graph_holds_nothing_saved(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * x
    y.sum().backward()
    assert not [name for name in named(read_autograd(), y.grad_fn) if "saved" in name]


def test_value_changed_in_place_is_read(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    y = h * h
    with torch.no_grad():
        h.add_(1)
    assert named(read_autograd(), y.grad_fn)["._saved_self"] is h


def test_nobody_of_the_program_runs(torch: Any) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Loud(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

        @property
        def grad_fn(self) -> Any:
            called.append("grad_fn")

    class FunctionMode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(func)
            return func(*args, **(kwargs or {}))

    class DispatchMode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(3).as_subclass(Loud).requires_grad_()
    y = x.exp() * x
    called.clear()
    with FunctionMode(), DispatchMode():
        called.clear()
        links = read_autograd()
        during = list(called)
    assert during == []
    assert ".grad_fn" in named(links, y)


def test_reading_warns_of_nothing(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = named(read_autograd(), y)
    assert ".grad" not in found


def test_reading_keeps_nothing_alive(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    ends = [weakref.ref(x), weakref.ref(y)]
    read_autograd()
    del x, y
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_deep_graph_is_read_whole(torch: Any) -> None:
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    links = read_autograd()
    found = [o for o, kind in zip(links.objects, links.kinds, strict=True) if kind == 1]
    assert sum(type(node).__name__ == "AddBackward0" for node in found) >= 5000


@pytest.mark.parametrize("made", [True, False])
def test_gradient_of_inner_tensor_is_read_when_retained(torch: Any, made: bool) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * x
    if made:
        y.retain_grad()
    y.sum().backward()
    assert (".grad" in named(read_autograd(), y)) == made


LONG = """
import resource, sys, torch
resource.setrlimit(resource.RLIMIT_STACK, (5 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
from neutracer.heap.alive import read_autograd
y = torch.ones(1, requires_grad=True)
kept = []
for _ in range(32_000):
    y = y + 1
    if sys.argv[1] == "kept":
        kept.append(y)
left = [read_autograd().unfollowed for _ in range(3)]
del y, kept
print(min(left) > 0)
"""


@pytest.mark.parametrize("outputs", ["last", "kept"])
def test_very_long_graph_can_be_freed(with_torch: Imported, outputs: str) -> None:
    # torch frees nodes that Python has seen by recursion, some 190 bytes of stack a node, and
    # the stack has an end, here before the last of them.
    done = with_torch.run(LONG, outputs)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
