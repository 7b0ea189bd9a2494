# SPDX-License-Identifier: Apache-2.0
"""The walk of the collector's objects: the same set as the collector finds, to the object."""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib.util
import random
import subprocess
import sys
import types
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import heap_shapes
import isolation
import pytest
from compiled import needs_selftest, selftest
from places import TESTS

from neutracer._native import core

pytestmark = needs_selftest

YOUNG, MIDDLE, FULL, ALL = range(4)


@pytest.fixture(scope="module", autouse=True)
def apart() -> None:
    """Sets what is there aside, so that a full collection looks only at the test's own."""
    if importlib.util.find_spec("torch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for shape in heap_shapes.torch_shapes().values():
                shape()  # imports much
    isolation.set_aside()


@pytest.fixture
def quiet() -> Iterator[None]:
    """No collection but those the test asks for, and no garbage from before."""
    while gc.collect():
        pass
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    gc.set_debug(0)
    gc.garbage.clear()
    heap_shapes.BROUGHT_BACK.clear()
    heap_shapes.KEPT.clear()
    gc.enable()
    gc.collect()


@contextlib.contextmanager
def watching(receiver: Callable[[dict[str, Any]], object], **how: bool) -> Iterator[int]:
    number = selftest.heap_watch_add(receiver, **how)
    try:
        yield number
    finally:
        selftest.heap_watch_remove(number)


def torch_shape(name: str) -> Callable[[], None]:
    """The shape of that name; they are made when torch is to be imported."""

    def shape() -> None:
        heap_shapes.torch_shapes()[name]()

    return shape


def all_shapes() -> list[Any]:
    shapes = [pytest.param(shape, id=shape.__name__) for shape in heap_shapes.SHAPES]
    if importlib.util.find_spec("torch"):
        names = heap_shapes.TORCH_SHAPES
        shapes += [pytest.param(torch_shape(name), id=f"torch_{name}") for name in names]
    return shapes


every_shape = pytest.mark.parametrize("shape", all_shapes())


def collect_and_save(shape: Callable[[], None], hold: bool, generation: int) -> tuple[Any, Any]:
    """(predicted ids, ids that DEBUG_SAVEALL kept) of one collection."""
    records: list[dict[str, Any]] = []
    shape()
    gc.set_debug(gc.DEBUG_SAVEALL)
    with watching(records.append, hold=hold):
        gc.collect(generation)
    gc.set_debug(0)
    saved = collections.Counter(map(id, gc.garbage))
    gc.garbage.clear()
    predicted = collections.Counter(records[0]["predicted"] if records else [])
    return predicted, saved


@every_shape
@pytest.mark.parametrize("generation", [YOUNG, FULL])
def test_finds_what_the_collector_finds(
    quiet: None, shape: Callable[[], None], generation: int
) -> None:
    shape()  # a first time, for what a shape makes once in a process
    gc.collect()
    predicted, saved = collect_and_save(shape, True, generation)
    assert predicted == saved
    assert predicted


@every_shape
def test_finds_more_than_finalizers_leave(quiet: None, shape: Callable[[], None]) -> None:
    predicted, saved = collect_and_save(shape, False, FULL)
    assert predicted
    assert saved - predicted == collections.Counter()


@every_shape
@pytest.mark.parametrize("generation", [YOUNG, MIDDLE, FULL])
def test_survivors_are_the_living(quiet: None, shape: Callable[[], None], generation: int) -> None:
    records = []

    def receive(record: dict[str, Any]) -> None:
        older = gc.get_objects(generation=min(generation + 1, FULL))
        alive = set(map(id, older))
        del older
        records.append(record | {"alive": alive & set(record["predicted"])})

    shape()
    with watching(receive):
        gc.collect(generation)
    # Objects may be freed and made again at their addresses in generation 0 only.
    assert [set(record["survivors"]) for record in records] == [
        record["alive"] for record in records
    ]
    returned = set(map(id, heap_shapes.BROUGHT_BACK))
    assert returned <= set(records[0]["survivors"])
    assert bool(returned) == bool(records[0]["survivors"])


def test_agrees_at_each_of_many_collections(quiet: None) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    compared = []

    def compare(record: dict[str, Any]) -> None:
        saved = collections.Counter(map(id, gc.garbage))
        compared.append(saved == collections.Counter(record["predicted"]))
        gc.garbage.clear()

    shapes = [
        shape
        for shape in heap_shapes.SHAPES
        if shape.__name__ not in ("many_small_cycles", "one_large_ring", "finished_future")
    ]
    kept: list[Any] = []
    threshold = gc.get_threshold()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.set_threshold(500, 3, 3)
    with watching(compare, hold=True):
        gc.enable()
        for _ in range(2_500):
            rng.choice(shapes)()
            kept.append({"row": [rng.random()] * 3, "of": kept[-3:]})
            if rng.random() < 0.05:
                del kept[rng.randrange(len(kept)) :]
        gc.disable()
    gc.set_threshold(*threshold)
    assert len(compared) > 20
    assert all(compared)


# ---- operands ---------------------------------------------------------------------------
# From 3.14 on an operand may be borrowed from a variable: it is shown and not counted.


def in_list(thing: object) -> Iterator[None]:
    _ = [thing, thing, (yield)]


def in_call(thing: object) -> Iterator[None]:
    print(thing, (yield))


def in_attribute(thing: Any) -> Iterator[None]:
    thing.value = yield


def in_with(thing: Any) -> Iterator[None]:
    with thing:
        yield


def in_loop(thing: Any) -> Iterator[None]:
    for _ in thing:
        yield


def in_delegation(thing: object) -> Iterator[None]:
    print(thing, (yield from in_list(thing)))


class Operand:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def suspended(function: Callable[[Any], Iterator[None]]) -> Callable[[object], object]:
    def start(thing: object) -> object:
        generator = function(thing)
        next(generator)
        return generator

    return start


def awaiting(thing: object) -> object:
    async def coroutine(thing: object) -> None:
        _ = [thing, thing, await types.coroutine(lambda: (yield))()]

    made = coroutine(thing)
    made.send(None)
    return made


def async_generator(thing: object) -> object:
    async def generator(thing: object) -> AsyncIterator[None]:
        print(thing, (yield), thing)

    made = generator(thing)
    with contextlib.suppress(StopIteration):
        made.__anext__().send(None)
    return made


def frame_of_a_call(thing: object) -> object:
    def over(thing: object) -> Any:
        return [thing, thing, sys._getframe()][2]

    return over(thing)


OPERANDS = [
    *map(suspended, (in_list, in_call, in_attribute, in_with, in_loop, in_delegation)),
    *(awaiting, async_generator, frame_of_a_call),
]


def seems_dead(thing: object, extent: int, more: int) -> bool:
    """Whether the walk finds it unreachable, with so many more references from outside."""
    import ctypes

    address = ctypes.c_void_p(id(thing))  # no object of ctypes may lead to it
    for _ in range(more):
        ctypes.pythonapi.Py_IncRef(address)
    found = id(thing) in [where for where, _ in selftest.heap_unreachable(extent)]
    for _ in range(more):
        ctypes.pythonapi.Py_DecRef(address)
    return found


@pytest.mark.parametrize("generation", [YOUNG, FULL])
@pytest.mark.parametrize("make", OPERANDS)
def test_operands_of_what_waits_are_alive(
    quiet: None, make: Callable[[object], object], generation: int
) -> None:
    thing = Operand()
    thing.waiting = make(thing)  # type: ignore[attr-defined]
    # Variables here hold it from outside. Were operands counted that are only borrowed, at
    # one of these numbers all references would seem to come from the cycle.
    dead = []
    for more in range(6):
        dead.append(seems_dead(thing, generation, more))
    assert dead == [False] * 6


def test_function_tells_what_is_unreachable(quiet: None) -> None:
    heap_shapes.two_nodes()
    found = selftest.heap_unreachable(FULL)
    predicted, _ = collect_and_save(lambda: None, True, FULL)
    assert {address for address, _ in found} == set(predicted)
    assert [name for _, name in found].count("Node") == 2


def test_what_is_unreachable_stays_while_it_is_told(quiet: None) -> None:
    class Ring:
        """Garbage by itself."""

        def __init__(self) -> None:
            self.me = self

    rings = [Ring() for _ in range(3000)]
    gc.collect(YOUNG)  # so that the young ones are few, and the rings are collected with them
    rings.clear()
    before = gc.get_threshold()
    gc.set_threshold(700, 0, 1000)
    gc.enable()
    try:
        found = selftest.heap_unreachable(FULL)
    finally:
        gc.set_threshold(*before)
    assert [name for _, name in found].count("Ring") == 3000
    assert gc.isenabled()


def test_nothing_is_found_where_nothing_is(quiet: None) -> None:
    assert selftest.heap_unreachable(FULL) == []
    assert selftest.heap_facts(FULL)["unreachable"] == 0


def test_look_leaves_no_trace(quiet: None) -> None:
    node = heap_shapes.Node()
    node.a, node.b = 1, [2]
    size, count = sys.getsizeof(node), sys.getrefcount(node)
    before = len(gc.get_objects(generation=0))
    selftest.heap_facts(FULL)
    assert len(gc.get_objects(generation=0)) == before
    assert (sys.getsizeof(node), sys.getrefcount(node)) == (size, count)


def test_frozen_objects_are_in_all_only(quiet: None) -> None:
    holder = [heap_shapes.Node()]
    isolation.set_aside()
    assert selftest.heap_edges([holder], FULL, False) == [None]
    assert selftest.heap_edges([holder], ALL, False) == [holder]


# ---- edges -----------------------------------------------------------------------------


def some_objects() -> list[Any]:
    node = heap_shapes.Node()
    node.attribute, node.text = [node], "text"
    many = heap_shapes.Node()
    for i in range(50):
        setattr(many, f"attribute_{i}", [i])
    generator = (value for value in [node])
    next(generator)
    return [
        *(node, many, generator, [node, node, 1, "a"], (node, (1, 2)), {"key": node, node: 2}),
        *({node, "a"}, frozenset([node]), collections.deque([node, 3]), type(node), vars),
        *(some_objects, types.MethodType(some_objects, node), weakref.ref(node), gc, Path()),
        *(lambda: node, property(some_objects), slice(node), {}, [], ()),
    ]


@pytest.mark.parametrize("crowd", [0, 20_000], ids=["few", "many"])
def test_edges_are_what_traverse_shows(quiet: None, crowd: int) -> None:
    keep = [[] for _ in range(crowd)]  # above some thousand objects the index is another
    things = some_objects()
    tested = 0
    for thing, edges in zip(things, selftest.heap_edges(things, FULL, False), strict=True):
        if edges is not None:
            referents = gc.get_referents(thing)
            own = selftest.heap_edges(referents, FULL, False)
            expected = [
                id(target)
                for target, inner in zip(referents, own, strict=True)
                if inner is not None
            ]
            assert sorted(map(id, edges)) == sorted(expected), type(thing)
            tested += 1
    assert tested > 12
    assert len(keep) == crowd


def test_leaves_are_all_that_traverse_shows(quiet: None) -> None:
    things = some_objects()
    tested = 0
    for thing, edges in zip(things, selftest.heap_edges(things, FULL, True), strict=True):
        assert edges is not None
        if gc.is_tracked(thing):
            expected = sorted(map(id, gc.get_referents(thing)))
            assert sorted(map(id, edges)) == expected, type(thing)
            tested += 1
    assert tested > 12


def test_untracked_containers_are_looked_into(quiet: None) -> None:
    text = "".join(["no", "constant"])
    inner = (text, 1)
    gc.collect()  # the collector stops tracking a tuple of such things
    holder = [inner, {"a": 1}, text]
    assert not gc.is_tracked(inner)
    tuple_edges, _, text_edges = selftest.heap_edges(holder, FULL, True)
    assert [id(part) for part in tuple_edges].count(id(text)) == 1
    assert text_edges == []


def test_roots_are_held_from_outside(quiet: None) -> None:
    import ctypes

    holder = [heap_shapes.Node()]
    assert selftest.heap_is_root(holder, ALL, False) is False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder[0]))
    try:
        assert selftest.heap_is_root(holder, ALL, False) is True
        assert selftest.heap_is_root(holder, ALL, True) is True
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(holder[0]))
    assert selftest.heap_is_root(holder, ALL, True) is False


# ---- bounds ----------------------------------------------------------------------------


def test_memory_is_a_small_multiple(quiet: None) -> None:
    keep = [{"row": [i, (str(i), [])]} for i in range(60_000)]
    facts = selftest.heap_facts(FULL)
    assert facts["objects"] > 4 * len(keep)
    for name in ("bytes", "peak_bytes"):
        assert facts[name] <= 48 * facts["objects"] + 4 * facts["edges"]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("gc.get_threshold = lambda: (1, 2, 3)", "thresholds"),
        ("gc.get_objects = lambda generation: [None]", "gc.get_objects()"),
        ("gc.get_freeze_count = lambda: 77", "gc.get_freeze_count()"),
    ],
)
def test_unknown_layout_is_refused_with_reason(lie: str, reason: str) -> None:
    script = f"""
import gc
from neutracer._native import core
from neutracer import UnavailableError
{lie}
try:
    core.heap_prepare()
except UnavailableError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=TESTS,
    )
    assert reason in done.stdout, done.stderr
    assert done.stderr == ""


def test_known_layout_is_found_again_cheaply() -> None:
    assert core.heap_prepare() is None
    assert core.heap_prepare() is None
