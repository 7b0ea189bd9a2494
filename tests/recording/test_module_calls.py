# SPDX-License-Identifier: Apache-2.0
"""Modules marked by the compiled hooks: what an event would be marked with, node by node."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from without_hooks import begin_cuda, without_hooks

import neutracer
from neutracer.errors import UnavailableError
from neutracer.hooks.modules import ModuleCalls, ModuleMarks, marks_by
from neutracer.hooks.shim import load, unwatch_thread

torch = pytest.importorskip("torch")
nn = torch.nn

needs_cpu = pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")

MARK = "nn.Module: "


@pytest.fixture(scope="module")
def hooks() -> Any:
    try:
        found = load()
    except UnavailableError as error:
        without_hooks(str(error))
    begin_cuda()
    return found


@pytest.fixture
def mark(hooks: Any) -> Iterator[Callable[[Any], ModuleCalls]]:
    """Begins to mark a model."""
    begun = []

    def attach(model: Any) -> ModuleCalls:
        calls = ModuleCalls(hooks, model)
        calls.attach()
        begun.append(calls)
        return calls

    yield attach
    for calls in begun:
        calls.detach()


def nodes(tensor: Any) -> list[Any]:
    """The nodes of a graph."""
    found, todo = [], [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.append(node)
            todo += [one for one, _ in node.next_functions]
    return found


def backward_texts(hooks: Any, loss: Any) -> dict[str, list[str]]:
    """By the name of a node the texts behind it, in a backward pass."""
    texts: dict[str, list[str]] = {}

    def note(node: Any) -> None:
        texts.setdefault(node.name(), []).append(hooks.get_text().removeprefix(MARK))

    for node in nodes(loss):
        node.register_hook(lambda *_, node=node: note(node))
    loss.backward()
    return texts


def test_a_node_counts_for_the_module_that_made_it(hooks: Any, mark: Any) -> None:
    """Also one that allocates nothing in the forward pass, and the gradients of parameters."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2, 2))
    mark(model)
    texts = backward_texts(hooks, model(torch.ones(2, 2)).exp().sum())
    assert sorted(texts.pop("torch::autograd::AccumulateGrad")) == ["0", "0", "3", "3"]
    assert texts == {
        "SumBackward0": [""],
        "ExpBackward0": [""],
        "AddmmBackward0": ["3", "0"],
        "TBackward0": ["3", "0"],
        "ReluBackward0": ["1"],
    }
    assert hooks.get_text() == ""


def test_checkpoints_that_go_back_inside_of_a_node(hooks: Any, mark: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    seen = []

    class Part(nn.Module):
        def forward(self, x: Any) -> Any:
            seen.append(hooks.get_text().removeprefix(MARK))
            if x.requires_grad:
                x.register_hook(lambda _: seen.append(hooks.get_text().removeprefix(MARK)))
            return x * 2

    model = nn.Sequential(nn.Linear(2, 2), Part())
    mark(model)
    x = torch.ones(1, 2, requires_grad=True)
    checkpoint(model, x, use_reentrant=True).sum().backward()
    assert seen == ["1", "1", "0"]


def test_what_a_backward_pass_makes_counts_for_the_module_of_its_node(
    hooks: Any, mark: Any
) -> None:
    seen = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            hooks.get_text()  # as an event of the allocator asks
            made = grad * 2
            hooks.get_text()
            if made.grad_fn is not None:
                made.grad_fn.register_prehook(lambda *_: seen.append(hooks.get_text()))
            return made

    class Part(nn.Module):
        def forward(self, x: Any) -> Any:
            return Twice.apply(x)

    model = nn.Sequential(Part(), nn.Tanh())
    mark(model)
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    first.sum().backward()
    assert seen == [MARK + "0"]


def test_what_is_made_behind_such_a_pass_counts_for_no_module(hooks: Any, mark: Any) -> None:
    class Cube(nn.Module):
        def forward(self, x: Any) -> Any:
            return x**3

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            made = grad * 2
            hooks.get_text()  # as an event of the allocator asks
            return made

    class Part(nn.Module):
        def forward(self, x: Any) -> Any:
            return Asks.apply(Cube()(x))

    model = nn.Sequential(Part())
    mark(model)
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    doubled = first * 2
    hooks.get_text()
    assert backward_texts(hooks, doubled.tanh().sum())["TanhBackward0"] == [""]


def test_marks_that_end_inside_of_a_module_leave_none_behind(hooks: Any, mark: Any) -> None:
    class Ends(nn.Module):
        def forward(self, x: Any) -> Any:
            first.detach()
            return x

    model = nn.Sequential(Ends())
    first = mark(model)
    x = torch.ones(2, requires_grad=True)
    model(x)
    outside = x.tanh()
    mark(nn.Linear(1, 1))
    assert backward_texts(hooks, outside.sum())["TanhBackward0"] == [""]


def test_a_graph_goes_back_in_another_thread(hooks: Any, mark: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    mark(model)
    made: list[Any] = []
    texts: list[dict[str, list[str]]] = []

    def within(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    for _ in range(3):
        within(lambda: made.append(model(torch.ones(1, 2)).sum()))
    for loss in made:
        within(lambda loss=loss: texts.append(backward_texts(hooks, loss)))
    for one in texts:
        assert one["TanhBackward0"] == ["1"]
        assert one["AddmmBackward0"] == ["0"]


def test_threads_beyond_number_are_let_go(hooks: Any, mark: Any) -> None:
    """Of graphs whose thread ended long ago the module is not known, and nothing else of them."""
    model = nn.Sequential(nn.Tanh())
    mark(model)
    made: list[Any] = []
    x = torch.ones(1, requires_grad=True)
    for _ in range(100):
        thread = threading.Thread(target=lambda: made.append(model(x)))
        thread.start()
        thread.join()
    assert backward_texts(hooks, made[0])["TanhBackward0"] == [""]
    assert backward_texts(hooks, made[-1])["TanhBackward0"] == ["0"]


def test_long_graphs_lose_their_oldest_modules_only(hooks: Any, mark: Any) -> None:
    class Scale(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    model = nn.Sequential(Scale())
    mark(model)
    x = torch.ones(1, requires_grad=True)
    oldest = model(x)
    for _ in range(1 << 17):
        youngest = model(x)
        _ = x * 2  # outside of it
    assert backward_texts(hooks, youngest)["MulBackward0"] == ["0"]
    assert backward_texts(hooks, oldest)["MulBackward0"] == [""]


def test_a_backward_pass_inside_of_a_forward(hooks: Any, mark: Any) -> None:
    seen = []

    class Inner(nn.Module):
        def forward(self, x: Any) -> Any:
            (x.requires_grad_() * 2).sum().backward()
            seen.append(hooks.get_text())
            return x

    model = nn.Sequential(Inner())
    mark(model)
    model(torch.ones(1))
    assert seen == [MARK + "0"]
    assert hooks.get_text() == ""


def test_errors_and_stacks_are_those_of_pytorch(mark: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))

    def failure() -> str:
        try:
            model(torch.ones(1, 5))
        except RuntimeError:
            return traceback.format_exc()
        return ""

    plain = failure()
    calls = mark(model)
    assert failure() == plain
    calls.detach()
    assert failure() == plain


def test_module_calls_are_pytorchs_again_afterwards(mark: Any) -> None:
    before = nn.Module.__call__
    calls = mark(nn.Linear(1, 1))
    assert nn.Module.__call__ is not before
    calls.detach()
    calls.detach()
    assert nn.Module.__call__ is before


def test_what_is_put_on_top_stays_and_is_not_marked_any_more(hooks: Any, mark: Any) -> None:
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(2, 2))
    before, calls = nn.Module.__call__, mark(model)
    below = nn.Module.__call__

    def on_top(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(self).__name__)
        return below(self, *args, **kwargs)

    nn.Module.__call__ = on_top
    try:
        calls.detach()
        assert nn.Module.__call__ is on_top
        assert backward_texts(hooks, model(torch.ones(1, 2)).sum())["AddmmBackward0"] == [""]
        assert seen == ["Sequential", "Linear"]
    finally:
        nn.Module.__call__ = before


def test_a_second_recording_marks_by_pytorchs_hooks(hooks: Any, mark: Any) -> None:
    model = nn.Linear(2, 2)
    mark(model)
    with pytest.raises(UnavailableError, match="something else replaces them"):
        ModuleCalls(hooks, model).attach()
    if hooks.backend == "cpu":
        marks = marks_by(hooks, model)
        assert isinstance(marks, ModuleMarks)
        marks.detach()


def test_models_can_be_copied_and_sent_meanwhile(hooks: Any, mark: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    mark(model)
    assert len(pickle.loads(pickle.dumps(model))) == 1
    loss = copy.deepcopy(model)(torch.ones(1, 2)).sum()
    assert backward_texts(hooks, loss)["AddmmBackward0"] == [""]


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", ["before", "while", "the module's own"])
def test_a_compiled_region_is_one_module_and_stays_one_graph(
    hooks: Any, mark: Any, way: str
) -> None:
    graphs, seen = [], []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)

        def run(*args: Any) -> Any:
            seen.append(hooks.get_text().removeprefix(MARK))
            return graph.forward(*args)

        return run

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.line(x).relu()

    part = Part()
    if way == "before":
        part = torch.compile(part, backend=backend)
    model = nn.Sequential(nn.Linear(4, 4), part)
    calls = mark(model)
    if way == "while":
        model[1] = torch.compile(model[1], backend=backend)
    if way == "the module's own":
        part.compile(backend=backend)
    try:
        with torch.no_grad():
            model(torch.ones(2, 4))
            calls.detach()
            model(torch.ones(2, 4))
    finally:
        torch._dynamo.reset()
    # What was compiled with the marks is compiled once more without them, at most.
    assert 1 <= len(graphs) <= 2
    assert seen == ["1", ""]


def test_what_a_handler_of_a_signal_raises_reaches_the_program(mark: Any) -> None:
    def handle(number: int, frame: object) -> None:
        raise TimeoutError("time is up")

    class Late(nn.Module):
        def forward(self, x: Any) -> Any:
            signal.raise_signal(signal.SIGALRM)
            return x

    before = signal.signal(signal.SIGALRM, handle)
    try:
        mark(True)
        with pytest.raises(TimeoutError, match="time is up"):
            nn.Sequential(Late())(torch.ones(1))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_every_model_that_is_called_is_known_by_its_class(hooks: Any, mark: Any) -> None:
    mark(True)
    model = nn.Sequential(nn.Linear(2, 2))
    texts = backward_texts(hooks, nn.Tanh()(model(torch.ones(1, 2))).sum())
    assert texts["AddmmBackward0"] == ["Sequential.0"]
    assert texts["TanhBackward0"] == ["Tanh"]


def test_a_child_of_a_fork_marks_nothing(hooks: Any, mark: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    mark(model)
    model(torch.ones(1, 2))
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            model(torch.ones(1, 2))
        os._exit(0 if hooks.get_text() == "" else 1)
    assert os.waitpid(child, 0)[1] == 0


@needs_cpu
def test_live_counts_the_bytes_of_each_module(hooks: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    neutracer.live(modules=model)
    try:
        kept = model(torch.ones(32, 64)).sum()
        holders = neutracer.live().timeline().holders(by="module")
    finally:
        neutracer.live.stop()
        unwatch_thread()
    held = {one.key: one.bytes for one in holders}
    assert kept.requires_grad
    # What the linear layers give is read again in the backward pass of what follows, or is gone.
    assert held["1"] == 32 * 256 * 4
    assert set(held) <= {"0", "1", "2", "(no module)"}
