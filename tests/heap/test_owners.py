# SPDX-License-Identifier: Apache-2.0
"""Who holds blocks of memory: the names that lead to them, as a programmer writes them."""

from __future__ import annotations

import gc
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest

from neutracer.heap.alive import Found
from neutracer.heap.objects import Node
from neutracer.heap.owners import (
    AUTOCAST,
    GARBAGE,
    IN_USE,
    NO_OBJECT,
    UNSEEN,
    _autocast_keeps,
    _of_block,
    holders_of,
)

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

# Blocks of a program that runs as the main module: `at(tensor)` is one of them.
PREFIX = """
import functools, torch
from collections import deque
blocks = []
def at(tensor):
    storage = tensor.untyped_storage()
    blocks.append((storage.data_ptr(), storage.nbytes()))
    return tensor
def zeros():
    return at(torch.zeros(64))
"""

PROGRAMS = {
    "items of a list": ("kept = [zeros() for _ in range(5)]", "kept"),
    "a list in a dict": ('history = {"z": [zeros(), zeros()], "n": 1}', 'history["z"]'),
    "one key of several": ('d = {"a": [zeros()], "b": torch.zeros(9)}', 'd["a"]'),
    "every key": ("cache = {n: zeros() for n in range(5)}", "cache"),
    "parts of every value": (
        'pool = {n: {"kv": (zeros(), 1)} for n in range(4)}',
        'pool[…]["kv"]',
    ),
    "a deque": ("ring = deque([zeros(), zeros()])", "ring"),
    "a set": ("bag = {zeros(), zeros()}", "bag"),
    "states of objects in a list": (
        """
        class Metric:
            def __init__(self): self.preds = [zeros()]
        metrics = [Metric(), Metric()]
        """,
        "metrics[…].preds",
    ),
    "nodes of which each has the one before": (
        """
        class Node:
            def __init__(self, before):
                self.before, self.latent = before, zeros()
        class Game:
            root = None
        game = Game()
        for _ in range(12): game.root = Node(game.root)
        """,
        "game.root.before → …",
    ),
    "trees of which most is in the first level": (
        """
        class Node:
            def __init__(self): self.children, self.latent = {}, zeros()
        class Move:
            def __init__(self, root): self.root = root
        history = []
        for _ in range(2):
            root = Node()
            root.children = {action: Node() for action in range(6)}
            for child in list(root.children.values())[:3]: child.children = {0: Node()}
            history.append(Move(root))
        del root, child
        """,
        "history[…].root.children → …",
    ),
    "a class attribute": (
        """
        class Server: sessions = {}
        for user in "abc": Server.sessions[user] = [zeros()]
        del user
        """,
        "Server.sessions",
    ),
    "kept exceptions": (
        """
        failures = []
        def checked():
            batch = zeros()
            raise ValueError
        for _ in range(3):
            try: checked()
            except ValueError as error: failures.append(error)
        """,
        "failures → exception → traceback → frame checked → batch",
    ),
    "the context of an exception": (
        """
        errors = {}
        def inner():
            batch = zeros()
            raise ValueError
        def outer():
            try: inner()
            except ValueError: raise KeyError
        try: outer()
        except KeyError as error: errors["first"] = error
        """,
        'errors["first"] → exception → __context__ → exception → traceback → frame inner → batch',
    ),
    "an lru_cache of a method": (
        """
        class RTDETR:
            @functools.lru_cache(maxsize=None)
            def _cache(self, n): return zeros()
        model = RTDETR()
        model._cache(1), model._cache(2)
        """,
        "RTDETR._cache (lru_cache)",
    ),
    "an lru_cache of tuples": (
        """
        @functools.lru_cache
        def anchors(n): return (n, zeros())
        anchors(1), anchors(2)
        """,
        "anchors (lru_cache)",
    ),
    "an attribute of a module": (
        """
        class Net(torch.nn.Module):
            kv = None
        model = torch.nn.ModuleList([Net(), Net()])
        model[1].kv = (zeros(), zeros())
        """,
        "model[1].kv",
    ),
    "parameters and buffers": (
        """
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        at(model[1].running_mean)
        """,
        "model[1].running_mean",
    ),
    "a hook's closure": (
        """
        class Tracer:
            def install(self, layer):
                def hook(module, inputs, output): self.golden = zeros()
                layer.register_forward_hook(hook)
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))
        model = Net()
        Tracer().install(model.layers[3])
        model.layers[3](torch.ones(1, 3))
        number = next(iter(model.layers[3]._forward_hooks))
        """,
        "model.layers[3]._forward_hooks[{number}] → closure self → .golden",
    ),
    "an autograd graph by its root": (
        """
        w = torch.ones(64, requires_grad=True)
        history = {"loss": []}
        for _ in range(3): history["loss"].append((at((w * 2).exp()) * w).sum())
        """,
        'history["loss"] → autograd graph',
    ),
    "an attribute of a custom function": (
        """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.kept = at(x.clone())
                return x * 2
            @staticmethod
            def backward(ctx, grad): return grad
        outs = [Double.apply(torch.ones(64, requires_grad=True)) for _ in range(2)]
        """,
        "outs → autograd graph → .kept",
    ),
    "an optimizer's states": (
        """
        params = [torch.nn.Parameter(torch.zeros(64)) for _ in range(3)]
        for one in params: one.grad = torch.zeros(64)
        del one
        optimizer = torch.optim.Adam(params)
        optimizer.step()
        for state in optimizer.state.values(): at(state["exp_avg"])
        del state
        """,
        'optimizer.state[<Parameter>]["exp_avg"]',
    ),
    "a suspended generator": (
        """
        def batches():
            batch = zeros()
            yield 1
            print(batch)
        loader = batches()
        next(loader)
        """,
        "loader → batch",
    ),
    "a callback at exit": (
        """
        import atexit
        class Trial:
            def __init__(self):
                self.data = zeros()
                atexit.register(self.write)
            def write(self): pass
        Trial()
        """,
        f"{UNSEEN} → method write → self → .data",
    ),
    "two holders": (
        "one = [zeros() for _ in range(3)]; two = {'k': [zeros() for _ in range(2)]}",
        'one; two["k"]',
    ),
}


def run(monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, Any]:
    """The namespace of a program that has run as the main module."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(PREFIX + textwrap.dedent(text), "program.py", "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize("name", PROGRAMS)
def test_holder_is_named_as_it_is_written(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, expected = PROGRAMS[name]
    space = run(monkeypatch, text)
    found = holders_of({"line": space["blocks"]})
    assert found == {"line": expected.format_map(space)}


def test_slices_of_larger_tensors_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    whole, some = [torch.zeros(64, 64)], [torch.zeros(64, 64)[:, :2] for _ in range(3)]
    halves = list(torch.zeros(64, 64).split(32))
    def blocks_of(ones):
        return [(one.untyped_storage().data_ptr(), 64 * 64 * 4) for one in ones]
    """
    space = run(monkeypatch, text)
    lines = {name: space["blocks_of"](space[name]) for name in ("whole", "some", "halves")}
    found = holders_of(lines)
    assert found == {
        "whole": "whole",
        "some": "some (slices of 3.1 % of what they keep)",
        "halves": "halves",
    }


def test_exception_being_handled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    space = run(
        monkeypatch,
        """
        def attempt():
            batch = zeros()
            raise RuntimeError
        def retry(ask):
            try: attempt()
            except RuntimeError: return ask({"line": blocks})
        """,
    )
    found = space["retry"](holders_of)
    assert found == {"line": "exception being handled → traceback → frame attempt → batch"}


def test_running_function_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    def train(ask):
        history = {"z": [zeros(), zeros()]}
        return ask({"line": blocks})
    """
    found = run(monkeypatch, text)["train"](holders_of)
    line = PREFIX.count("\n") + 4
    assert found == {"line": f'frame train (program.py:{line}) → history["z"]'}


def test_name_that_lives_on_comes_before_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    cache = {"k": [zeros()]}
    def use(ask):
        view = cache["k"][0][3:]
        return ask({"line": blocks})
    """
    assert run(monkeypatch, text)["use"](holders_of) == {"line": 'cache["k"]'}


def test_name_of_the_program_comes_before_a_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's functions run while it asks, and hold the cache by fewer references."""
    library: dict[str, Any] = {}
    text = """
    class Cache:
        def __init__(self): self.layers = []
        def update(self, ask): return attend(self.layers, ask)
    def attend(layers, ask): return ask()
    """
    exec(compile(textwrap.dedent(text), "/x/site-packages/lib/cache.py", "exec"), library)
    text = """
    class Service:
        def __init__(self, cache): self.prefix = cache
        def generate(self, ask):
            self.prefix.layers.append([zeros()])
            return self.prefix.update(lambda: ask({"line": blocks}))
    """
    service = run(monkeypatch, text)["Service"](library["Cache"]())
    found = service.generate(holders_of)["line"]
    assert found.startswith("frame Service.generate (program.py:")
    assert found.endswith(") → self → .prefix.layers")


def test_garbage_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()
    try:
        space = run(monkeypatch, "ring = [zeros()]\nring.append(ring)\ndel ring\n")
        found = holders_of({"line": space["blocks"]})
    finally:
        gc.enable()
    assert found == {"line": "garbage: only Python's collector frees it"}


def test_leaf_in_the_cache_of_autocast_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    def attacked():
        layer, image = torch.nn.Linear(64, 64), torch.ones(256, 64, requires_grad=True)
        layer(image)
        at(image)

    def ask(holders_of):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attacked()
            return holders_of({"line": blocks})["line"]
    """
    assert run(monkeypatch, text)["ask"](holders_of) == AUTOCAST


def test_autocast_is_seen_while_an_operator_runs() -> None:
    class Asking(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((torch.is_autocast_enabled("cpu"), _autocast_keeps()))
            return func(*args, **kwargs)

    seen: list[tuple[bool, bool]] = []
    with torch.autocast("cpu", dtype=torch.bfloat16), Asking():
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert set(seen) == {(False, True)}
    assert not _autocast_keeps()


@pytest.mark.parametrize(("referrers", "said"), [(0, IN_USE), (1, GARBAGE)])
def test_only_what_something_refers_to_is_garbage(referrers: int, said: str) -> None:
    found = Found(Node(0, "torch.Tensor", "Tensor"), (), False, referrers, 0, 0, 1, 0)
    assert _of_block([found], NO_OBJECT) == ((), said)


def test_block_without_an_object_is_told() -> None:
    assert holders_of({"line": [(1, 1)], "none": []}) == {"line": NO_OBJECT}


def test_lines_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    space = run(monkeypatch, "a = [zeros()]; b = {'k': zeros()}")
    one, two = space["blocks"]
    assert holders_of({"first": [one], "second": [two]}) == {"first": "a", "second": 'b["k"]'}


def test_asking_keeps_nothing_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    import weakref

    space = run(
        monkeypatch, "w = torch.ones(3, requires_grad=True); kept = [(w * at(w * 2)).sum()]"
    )
    holders_of({"line": space["blocks"]})
    alive = weakref.ref(space["kept"][0])
    space["kept"].clear()
    assert alive() is None


def test_models_kept_in_a_container_come_before_the_one_that_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their parts have different names, and the newest one's optimizer names all alike."""
    text = """
    from types import SimpleNamespace
    trials, lines = [], []
    for _ in range(4):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        trials.append(SimpleNamespace(user={"model": model}))
        lines += [(one.data_ptr(), one.numel() * 4) for one in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters())
    del model
    """
    space = run(monkeypatch, text)
    found = holders_of({"line": space["lines"]})["line"]
    assert found.startswith('trials[…].user["model"]')
