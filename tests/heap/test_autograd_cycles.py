# SPDX-License-Identifier: Apache-2.0
"""Cycles through the autograd graph: found, judged, and what to cut."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from neutracer.heap.autograd_cycles import AutogradCycle, AutogradCyclesReport, find_autograd_cycles
from neutracer.render.report import dumps

# torch warns of the very leak that is made here.
pytestmark = pytest.mark.filterwarnings("ignore:Using backward")


@pytest.fixture(autouse=True)
def clean(torch: Any) -> Iterator[None]:
    """No automatic collection in between, and no cycle left behind."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def of_size(found: AutogradCyclesReport, elements: int) -> list[AutogradCycle]:
    """The cycles that keep a tensor of so many elements: those of one test."""
    return [c for c in found if any(t.shape == (elements,) for t in c.tensors)]


def is_freed(reference: weakref.ref[Any]) -> bool:
    """What the collector itself makes of it."""
    gc.collect()
    return reference() is None


def doubling(torch: Any) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            out = a * 2
            ctx.out = out
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    return Double


def test_gradient_with_a_graph_is_lost(torch: Any) -> None:
    def step() -> weakref.ref[Any]:
        x = torch.ones(1001, requires_grad=True)
        (x * x).sum().backward(create_graph=True)
        return weakref.ref(x)

    x = step()
    assert not is_freed(x)
    (cycle,) = of_size(find_autograd_cycles(), 1001)
    assert (cycle.collectable, cycle.leaked) == (False, True)
    assert cycle.bytes >= 2 * 1001 * 4
    assert cycle.device_bytes == {"cpu": cycle.bytes}
    assert cycle.chain.startswith("Tensor.grad → Tensor.grad_fn → ")
    assert cycle.cut == "Tensor.grad"
    assert "torch.autograd.grad" in cycle.advice
    tensor = x()
    assert tensor is not None
    tensor.grad = None
    del tensor
    assert is_freed(x)
    assert of_size(find_autograd_cycles(), 1001) == []


def test_living_gradient_cycle_is_no_leak_yet(torch: Any) -> None:
    x = torch.ones(1002, requires_grad=True)
    (x * x).sum().backward(create_graph=True)
    found = find_autograd_cycles()
    (cycle,) = of_size(found, 1002)
    assert (cycle.collectable, cycle.leaked) == (False, False)
    x.grad = None
    assert of_size(find_autograd_cycles(), 1002) == []


def test_equal_leaks_are_counted_together(torch: Any) -> None:
    kept = []
    for _ in range(7):
        x = torch.ones(1003, requires_grad=True)
        (x * x).sum().backward(create_graph=True)
        kept.append(weakref.ref(x))
        del x
    (cycle,) = of_size(find_autograd_cycles(), 1003)
    assert cycle.count == 7
    assert cycle.bytes >= 7 * 2 * 1003 * 4
    for reference in kept:
        tensor = reference()
        assert tensor is not None
        tensor.grad = None


def test_output_on_ctx_alone_is_collectable(torch: Any) -> None:
    def step() -> weakref.ref[Any]:
        return weakref.ref(doubling(torch).apply(torch.ones(1004, requires_grad=True)))

    out = step()
    (cycle,) = of_size(find_autograd_cycles(), 1004)
    assert (cycle.collectable, cycle.leaked) == (True, True)
    assert cycle.chain == "DoubleBackward.out → Tensor.grad_fn → DoubleBackward"
    assert "ctx.save_for_backward" in cycle.advice
    assert is_freed(out)


def test_cycle_behind_a_lost_one_is_lost(torch: Any) -> None:
    def step() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        x = torch.ones(1021, requires_grad=True)
        (x * x).sum().backward(create_graph=True)
        x.kept = doubling(torch).apply(torch.ones(1022, requires_grad=True))
        return weakref.ref(x), weakref.ref(x.kept)

    x, out = step()
    assert not is_freed(out)
    (cycle,) = of_size(find_autograd_cycles(), 1022)
    assert (cycle.collectable, cycle.leaked) == (False, True)
    tensor = x()
    assert tensor is not None
    del tensor.kept
    (cycle,) = of_size(find_autograd_cycles(), 1022)
    assert (cycle.collectable, cycle.leaked) == (True, True)
    tensor.grad = None
    assert is_freed(out)


def test_output_on_ctx_stays_collectable_under_a_loss(torch: Any) -> None:
    out = doubling(torch).apply(torch.ones(1005, requires_grad=True))
    loss = (out * out).sum()
    reference = weakref.ref(out)
    (cycle,) = of_size(find_autograd_cycles(), 1005)
    assert (cycle.collectable, cycle.leaked) == (True, False)
    del out, loss
    assert is_freed(reference)


def test_loss_on_ctx_is_lost(torch: Any) -> None:
    def step() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        out = doubling(torch).apply(torch.ones(1006, requires_grad=True))
        out.grad_fn.loss = out * out
        return weakref.ref(out), weakref.ref(out.grad_fn)

    out, ctx = step()
    assert not is_freed(out)
    (cycle,) = of_size(find_autograd_cycles(), 1006)
    assert (cycle.collectable, cycle.leaked) == (False, True)
    assert cycle.cut.startswith("DoubleBackward.")
    node = ctx()
    assert node is not None
    del node.loss
    del node
    assert is_freed(out)


def test_hook_that_closes_over_the_result_is_lost(torch: Any) -> None:
    def step() -> weakref.ref[Any]:
        y = torch.ones(1007, requires_grad=True) * 2
        z = y * y
        y.register_hook(lambda grad: grad + z.detach())
        return weakref.ref(y)

    y = step()
    assert not is_freed(y)
    (cycle,) = of_size(find_autograd_cycles(), 1007)
    assert (cycle.collectable, cycle.leaked) == (False, True)
    assert cycle.cut.endswith("closure z")
    assert "weakref.ref(z)" in cycle.advice
    assert cycle.place is not None
    assert cycle.place.filename.endswith("test_autograd_cycles.py")
    tensor = y()
    assert tensor is not None
    tensor._backward_hooks.clear()
    del tensor
    assert is_freed(y)


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_hook_of_a_node_is_lost(torch: Any, register: str) -> None:
    def step() -> tuple[weakref.ref[Any], Any]:
        y = torch.ones(1015, requires_grad=True) * 2
        z = y * y
        handle = getattr(y.grad_fn, register)(lambda *grads: z and None)
        return weakref.ref(z), handle

    z, handle = step()
    assert not is_freed(z)
    (cycle,) = of_size(find_autograd_cycles(), 1015)
    assert (cycle.collectable, cycle.leaked) == (False, True)
    assert f".{'pre' if 'pre' in register else 'post'}_hooks → OrderedDict" in cycle.chain
    assert cycle.cut.endswith("closure z")
    handle.remove()
    assert is_freed(z)


def test_hook_outlives_its_tensor_in_the_graph(torch: Any) -> None:
    def step() -> tuple[weakref.ref[Any], Any]:
        y = torch.ones(1016, requires_grad=True) * 2
        z = y + 1
        return weakref.ref(z), y.register_hook(lambda grad: z.detach())

    z, handle = step()
    assert not is_freed(z)
    (cycle,) = of_size(find_autograd_cycles(), 1016)
    assert not cycle.collectable
    assert ".tensor_hooks" in cycle.chain or "._backward_hooks" in cycle.chain
    handle.remove()
    assert is_freed(z)


def test_unpack_hook_that_closes_over_the_graph_is_lost(torch: Any) -> None:
    box: list[Any] = []

    def step() -> weakref.ref[Any]:
        held = box

        def unpack(packed: Any) -> Any:
            return held[0]

        with torch.autograd.graph.saved_tensors_hooks(lambda t: 0, unpack):
            y = torch.ones(1008, requires_grad=True).exp()
        box.append(y)
        return weakref.ref(y)

    y = step()
    (cycle,) = of_size(find_autograd_cycles(), 1008)
    assert not cycle.collectable
    assert "unpack_hook → function" in cycle.chain
    assert "saved_tensors_hooks" in cycle.advice
    box.clear()
    assert is_freed(y)


def test_packed_tensor_with_its_graph_is_lost(torch: Any) -> None:
    box: list[list[Any]] = []

    def pack(tensor: Any) -> list[Any]:
        box.append([tensor])
        return box[-1]

    def step() -> weakref.ref[Any]:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed[0]):
            return weakref.ref(torch.ones(1009, requires_grad=True).exp())

    y = step()
    (packed,) = box
    box.clear()
    assert not is_freed(y)
    (cycle,) = of_size(find_autograd_cycles(), 1009)
    assert not cycle.collectable
    assert "as packed" in cycle.chain
    assert "detach()" in cycle.advice
    packed.clear()
    assert is_freed(y)


def test_graph_without_a_cycle_is_passed_over(torch: Any) -> None:
    x = torch.ones(1010, requires_grad=True)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    assert of_size(find_autograd_cycles(), 1010) == []


def test_cycle_of_python_alone_is_passed_over(torch: Any) -> None:
    ring: list[Any] = [torch.ones(1011)]
    ring.append(ring)
    assert of_size(find_autograd_cycles(), 1011) == []
    ring.clear()


def test_shared_storage_counts_once(torch: Any) -> None:
    x = torch.ones(1012, requires_grad=True)
    views = x.view(4, 253)
    (x * x).sum().backward(create_graph=True)
    (cycle,) = of_size(find_autograd_cycles(), 1012)
    # x, its gradient, and what the sum spread: not the view once more.
    assert 2 * 1012 * 4 <= cycle.bytes < 4 * 1012 * 4
    assert views.shape == (4, 253)
    x.grad = None


def test_report_is_plain_data(torch: Any) -> None:
    x = torch.ones(1013, requires_grad=True)
    (x * x).sum().backward(create_graph=True)
    found = find_autograd_cycles()
    reference = weakref.ref(x)
    x.grad = None
    del x
    assert is_freed(reference)
    plain = json.loads(dumps(found.to_dict()))
    assert plain["schema"] == "neutracer.autograd_cycles/1"
    assert "through the autograd graph" in str(found)
    (cycle,) = of_size(found, 1013)
    assert sum(edge.cut for edge in cycle.graph.edges) == 1
    assert all(edge.in_cycle for edge in cycle.graph.edges)
    assert len(cycle.graph.edges) == len(cycle.graph.nodes)


def test_long_cycle_is_folded(torch: Any) -> None:
    x = torch.ones(1014, requires_grad=True)
    y = x
    for _ in range(600):
        y = y * 1.0
    (y * y).sum().backward(create_graph=True)
    (cycle,) = of_size(find_autograd_cycles(), 1014)
    assert cycle.objects >= 600
    assert len(cycle.graph.nodes) <= 130
    assert len(cycle.chain) < 600
    x.grad = None
