# SPDX-License-Identifier: Apache-2.0
"""find_tensor_cycles and garbage_bytes: what is there now, garbage or alive."""

from __future__ import annotations

import functools
import gc
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forked import Imported

import neutracer

torch = pytest.importorskip("torch")
cases = pytest.importorskip("cycle_cases")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with cases.quiet_collector(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()


def find(**options: object) -> neutracer.reports.TensorCyclesReport:
    return neutracer.find_tensor_cycles(device="cpu", **options)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_garbage_is_found_before_it_is_collected(case: cases.Case) -> None:
    case.make()
    (cycle,) = [cycle for cycle in find() if cycle.garbage]
    assert case.chain in cycle.chain
    assert case.advice in cycle.advice
    assert cycle.bytes == case.bytes


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_garbage_bytes_are_those_of_the_tensors(case: cases.Case) -> None:
    before = neutracer.garbage_bytes("cpu")
    case.make()
    assert neutracer.garbage_bytes("cpu") - before == case.bytes
    gc.collect()
    assert neutracer.garbage_bytes("cpu") == before


def test_nothing_is_collected_by_looking() -> None:
    cases.two_nodes()
    before = gc.get_count(), gc.get_stats()
    for _ in range(3):
        find()
    assert gc.get_stats() == before[1]
    assert [cycle.count for cycle in find() if cycle.garbage] == [1]


def test_living_cycles_are_told_apart() -> None:
    one, other = cases.Plain(), cases.Plain()
    one.next, other.prev = other, one
    one.held = cases.tensor()
    cases.bound_method_of_itself()
    found = {cycle.garbage: cycle for cycle in find() if "Plain" in cycle.chain or cycle.garbage}
    assert "Plain.next → Plain.prev → Plain" in found[False].chain
    assert "Callback" in found[True].chain
    assert all(cycle.garbage for cycle in find(include_alive=False))
    other.prev = None


def test_small_cycles_are_left_out() -> None:
    cases.two_nodes()
    assert len(find(min_bytes=4 * cases.SIZE, include_alive=False)) == 1
    assert len(find(min_bytes=4 * cases.SIZE + 1, include_alive=False)) == 0


def test_storages_are_counted_once() -> None:
    cases.storage_shared_by_views()
    (cycle,) = find(include_alive=False)
    assert (cycle.bytes, cycle.tensor_count) == (4 * cases.SIZE, 3)


def test_report_reads_as_a_page() -> None:
    cases.bound_method_of_itself()
    report = find(include_alive=False)
    text = str(report)
    assert "Reference cycles that hold tensors" in text
    assert "a reference cycle keeps 4 KiB on cpu until the garbage collector runs" in text
    assert "Callback.view_callback → method view" in text
    assert "break it: keep the function or a weakref.WeakMethod" in text
    assert "Left out:" not in text
    a_type = type("New", (), {})
    assert "Left out:" in str(find()), a_type
    assert len(text.splitlines()) <= 40
    assert "<div" in report._repr_html_()


def test_report_is_json() -> None:
    cases.two_nodes()
    plain = json.loads(json.dumps(find(include_alive=False).to_dict()))
    assert plain["schema"] == "neutracer.tensor_cycles/1"
    (cycle,) = plain["cycles"]
    assert cycle["device_bytes"] == {"cpu": 4 * cases.SIZE}
    assert {node["type"] for node in cycle["graph"]["nodes"]} >= {"torch.Tensor"}
    assert plain["findings"][0]["kind"] == "cycle_garbage"


def test_report_is_a_sequence() -> None:
    cases.two_nodes()
    cases.dataset_with_cached_items()
    report = find(include_alive=False)
    assert len(report) == 2
    assert report[0].bytes > report[1].bytes
    assert list(report[:1]) == [report[0]]
    assert len(report.graph.nodes) == sum(len(cycle.graph.nodes) for cycle in report)


def test_empty_report_says_so() -> None:
    assert "No reference cycle holds a tensor" in str(find(min_bytes=1 << 60))


def test_own_objects_are_no_finding() -> None:
    watch = neutracer.warn_tensor_cycles(device="cpu")
    try:
        assert [c.chain for c in find() if "CycleWatch" in c.chain] == []
    finally:
        watch.remove()


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        find(min_bytes=-1)


class Held:
    data: Any


def dropped(make: Callable[[Held], object]) -> neutracer.TensorCycle:
    """The one garbage cycle that is left when what is made is dropped."""
    held = Held()
    held.data = torch.zeros(cases.SIZE)
    make(held)
    del held
    (cycle,) = find(include_alive=False)
    return cycle


def in_list(held: Any) -> None:
    held.items = [held]


def in_partial(held: Any) -> None:
    held.call = functools.partial(print, held)


def in_class(held: Any) -> None:
    class Local:
        kept = held


def in_error(held: Any) -> None:
    self = held
    try:
        raise ValueError("x")
    except ValueError as error:
        self.error = error


def in_frame(held: Any) -> None:
    frame = sys._getframe()
    held.frame = frame


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (in_list, "take Held out of list of 1"),
        (in_partial, "bind a weakref.ref to the Held in the partial"),
        (in_class, "define class Local once"),
        (in_error, "keep the exception's text in Held.error"),
    ],
)
def test_advice_can_be_followed(make: Callable[[Held], object], told: str) -> None:
    assert told in dropped(make).advice


class Slotted:
    __slots__ = ("data", "other")

    def method(self) -> None: ...


def by_slots(held: Any) -> None:
    slotted = Slotted()
    slotted.other, slotted.data = Slotted(), held.data
    slotted.other.other = slotted


def by_bound_method(held: Any) -> None:
    slotted = Slotted()
    slotted.other, slotted.data = slotted.method, held.data


def by_bound_argument(held: Any) -> None:
    slotted = Slotted()
    slotted.other, slotted.data = functools.partial(print, slotted), held.data


def by_closure(held: Any) -> None:
    slotted = Slotted()
    slotted.other, slotted.data = lambda: slotted, held.data


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (by_slots, "set Slotted.other to None when finished"),
        (by_bound_method, "keep the function in Slotted.other, not the bound method"),
        (by_bound_argument, "pass the Slotted when the partial is called"),
        (by_closure, "pass slotted as an argument"),
    ],
)
def test_slots_are_not_told_to_refer_weakly(make: Callable[[Held], object], told: str) -> None:
    """`__slots__` without `__weakref__`: Python makes no weak reference to such an object."""
    advice = dropped(make).advice
    assert told in advice
    assert "weak" not in advice.lower()


def test_frames_are_not_told_to_close() -> None:
    assert "close()" not in dropped(in_frame).advice


def test_container_has_its_holders_place() -> None:
    class Owner:
        def keep(self) -> None:
            self.cache = {0: {"owner": self, "data": torch.zeros(cases.SIZE)}}

    Owner().keep()
    places = [c.place for c in find(include_alive=False) if "['owner']" in c.cut]
    assert [place and place.filename for place in places] == [__file__]


def test_tensors_of_a_huge_ring_are_told() -> None:
    # One of four that lie so far apart is far from wherever the way round begins.
    first: list[Any] = []
    last = first
    for at in range(360_000):
        last = [last, torch.zeros(cases.SIZE)] if at % 90_000 == 0 else [last]
    first.append(last)
    del first, last
    (cycle,) = find(include_alive=False)
    assert [tensor.shape for tensor in cycle.tensors] == [(cases.SIZE,)] * 4


FIRST_LOOK = """
import torch, neutracer
class Node: pass
def drop():
    node = Node()
    node.me, node.tensor = node, torch.zeros(1000)
drop()
print({expression})
"""


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("len(neutracer.find_tensor_cycles(device='cpu'))", "1"),
        ("neutracer.garbage_bytes('cpu')", "4000"),
    ],
)
def test_the_first_look_of_a_process_collects_nothing(
    with_torch: Imported, expression: str, shown: str
) -> None:
    script = FIRST_LOOK.format(expression=expression)
    done = with_torch.run(script)
    assert (done.stdout.strip(), done.stderr) == (shown, "")


def test_names_that_reorder_letters_are_spelled_out() -> None:
    kind = type("A\u202eB", (), {})
    owner = kind()
    owner.kept, owner.me = torch.zeros(16), owner
    del owner
    (cycle,) = [cycle for cycle in find() if "A" in cycle.chain]
    for text in (str(cycle), repr(cycle), cycle.chain, cycle.advice, cycle.graph.nodes[0].type):
        assert "\u202e" not in text
    assert r"A\u202eB.me" in cycle.chain
