# SPDX-License-Identifier: Apache-2.0
"""The cuts that are named for a cycle: without exactly these references nothing of it is left."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import neutracer
from neutracer._native import core
from neutracer.heap.cycles import device_filter

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    # What is frozen is passed over: a search costs what the test made.
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()


def _network(seed: int) -> list[Any]:
    """Objects of a class each that refer to each other at random, the first one with a tensor."""
    rng = random.Random(seed)
    objects: list[Any] = [type(f"Net{seed}x{n}", (), {})() for n in range(rng.randint(1, 8))]
    for each in objects:
        for attribute in "abc"[: rng.randint(0, 3)]:
            setattr(each, attribute, rng.choice(objects))
    rng.choice(objects).tensor = torch.zeros(1 << 10)
    return objects


def _without(objects: list[Any], cuts: tuple[Any, ...]) -> None:
    by_name = {type(each).__name__: each for each in objects}
    for cut in cuts:
        name, _, attribute = cut.text.partition(".")
        target = getattr(by_name[name], attribute)
        same = [key for key, value in vars(by_name[name]).items() if value is target]
        for key in same:
            setattr(by_name[name], key, None)


def _ends(objects: list[Any]) -> bool:
    """Whether reference counting alone frees the tensor once the objects are dropped."""
    kept = weakref.ref(next(each.tensor for each in objects if hasattr(each, "tensor")))
    objects.clear()
    return kept() is None


def _garbage(seed: int) -> tuple[Any, ...]:
    """All cuts of the cycles that a network leaves behind, found while it is garbage."""
    _network(seed)
    found = neutracer.find_tensor_cycles("cpu", include_alive=False)
    cuts = tuple(cut for cycle in found if cycle.is_proved for cut in cycle.cuts)
    assert all(cycle.is_proved for cycle in found)
    gc.collect()
    return cuts


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_without_the_cuts_reference_counting_frees_the_tensor(first: int) -> None:
    several = 0
    for seed in range(first, first + 60):
        cuts = _garbage(seed)
        objects = _network(seed)
        _without(objects, cuts)
        assert _ends(objects), seed
        several += len(cuts) > 1
    assert several


@pytest.mark.parametrize("seed", range(12))
def test_without_the_last_cut_the_tensor_stays(seed: int) -> None:
    cuts = _garbage(seed)
    objects = _network(seed)
    _without(objects, cuts[:-1])
    assert _ends(objects) == (not cuts)


class Metric:
    """Two methods wrapped by the instance's own closures, as libraries of metrics do."""

    def __init__(self) -> None:
        self.total = torch.zeros(1 << 10)
        self.update = self._wrap(self.update)  # type: ignore[method-assign]
        self.compute = self._wrap(self.compute)  # type: ignore[method-assign]

    def _wrap(self, method: Any) -> Any:
        return lambda *given: method(*given)

    def update(self) -> None:
        self.total += 1

    def compute(self) -> Any:
        return self.total.sum()


def _cycle_of(name: str) -> neutracer.reports.TensorCycle:  # type: ignore[name-defined]
    return next(c for c in neutracer.find_tensor_cycles("cpu") if name in c.chain)


def test_two_wrapped_methods_need_two_cuts() -> None:
    metric = Metric()
    cycle = _cycle_of("Metric")
    assert cycle.is_proved
    assert len(cycle.cuts) == 2
    del metric


def test_what_only_a_library_holds_is_left_to_the_collector() -> None:
    code = compile(
        "class Trainer:\n"
        "    def __init__(self, tensor):\n"
        "        self.tensor, self.loop = tensor, Loop(self)\n"
        "class Loop:\n"
        "    def __init__(self, trainer): self.trainer = trainer\n"
        "    def run(self): pass\n"
        "Trainer.run = lambda self: None\n",
        "/env/lib/python3.11/site-packages/pipeline/trainer.py",
        "exec",
    )
    module = ModuleType("pipeline")
    module.__dict__["__name__"] = "pipeline"
    exec(code, module.__dict__)
    trainer = module.Trainer(torch.zeros(1 << 10))
    cycle = _cycle_of("Trainer")
    assert {cut.package for cut in cycle.cuts} == {"pipeline"}
    assert cycle.advice.startswith("call gc.collect() when finished with")
    assert "Loop.trainer, set in pipeline" in cycle.advice
    del trainer


def test_a_list_that_refers_twice_says_so() -> None:
    class Owner:
        pass

    owner: Any = Owner()
    owner.tensor = torch.zeros(1 << 10)
    owner.own = [owner, owner]
    cycle = _cycle_of("Owner")
    assert cycle.is_proved
    assert len(cycle.cuts) == 1


def test_more_cuts_than_are_named_are_left_to_the_collector() -> None:
    objects: list[Any] = [type(f"Dense{n}", (), {})() for n in range(12)]
    for each in objects:
        for number, other in enumerate(objects):
            setattr(each, f"to{number}", other)
    objects[0].tensor = torch.zeros(1 << 10)
    cycle = _cycle_of("Dense")
    assert not cycle.is_proved
    assert cycle.advice.startswith("call gc.collect() when finished with Dense")


def test_all_of_the_garbage_has_its_addresses_not_one_of_a_shape() -> None:
    addresses = set()
    for _ in range(5):
        cycle: list[Any] = [torch.zeros(1 << 10)]
        cycle.append(cycle)
        addresses.add(cycle[0].data_ptr())
    alive = torch.zeros(1 << 10)
    del cycle
    found = core.find_cycles(*device_filter("cpu"), 0, 0, True)
    assert set(found["garbage"]["storages"]) == addresses
    assert alive.data_ptr() not in addresses
