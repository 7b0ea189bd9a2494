# SPDX-License-Identifier: Apache-2.0
"""What references and objects are called, and that finding it out disturbs nothing."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import isolation
import pytest

from neutracer._native import core

HERE = Path(__file__).name


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> None:
    core.names_prepare()


class Thing:
    """A target that is told by its identity."""


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: object) -> None:
        self.left = left


class Hostile:
    """Raises whenever anybody's Python would run."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("the program's own code was run")

    __eq__ = __hash__ = __repr__ = __str__ = __len__ = __bool__ = __iter__ = _refuse  # type: ignore[assignment]
    __getattr__ = __getattribute__ = __dir__ = __sizeof__ = __format__ = _refuse  # type: ignore[assignment]
    __class__ = property(_refuse)  # type: ignore[assignment]


def names(owner: object, target: object) -> set[tuple[str, str]]:
    """(kind, name) of every reference from one object to another."""
    return {(kind, name) for held, kind, name in core.references(owner) if held is target}


# ---- kinds of references ---------------------------------------------------------------


def test_attributes_are_named_without_dict() -> None:
    thing, owner = Thing(), Thing()
    owner.first, owner.second = thing, None  # type: ignore[attr-defined]
    del owner.second  # type: ignore[attr-defined]
    if sys.version_info >= (3, 11):
        assert names(owner, thing) == {("attribute", "first")}
    held = [target for target, kind, _ in core.references(owner) if kind == "instance_dict"]
    assert len(held) == (sys.version_info < (3, 11))


def test_attributes_in_dict_are_named() -> None:
    thing, owner = Thing(), Thing()
    owner.first = thing  # type: ignore[attr-defined]
    namespace = owner.__dict__
    assert ("instance_dict", "__dict__") in names(owner, namespace)
    assert names(namespace, thing) == {("value", "'first'")}
    assert core.reference(owner, thing, namespace) == ("attribute", "first")


def test_more_attributes_than_fit_are_named() -> None:
    things = [Thing() for _ in range(70)]
    owner = Thing()
    for at, thing in enumerate(things):
        setattr(owner, f"name_{at}", thing)
    found = {
        name
        for thing in things
        for kind, name in [
            core.reference(owner, thing) or core.reference(owner, thing, vars(owner))
        ]
        if kind == "attribute"
    }
    assert found == {f"name_{at}" for at in range(70)}


def test_int_subclass_has_its_dict() -> None:
    class Number(int):
        pass

    for value in (0, -5, 10**40):
        number = Number(value)
        number.note = Thing()  # type: ignore[attr-defined]
        assert names(number, number.__dict__) == {("instance_dict", "__dict__")} or (
            sys.version_info >= (3, 13) and names(number, number.note) == {("attribute", "note")}  # type: ignore[attr-defined]
        )


def test_slots_are_attributes() -> None:
    thing = Thing()
    owner = Slotted(thing)
    assert names(owner, thing) == {("attribute", "left")}

    class Further(Slotted):
        __slots__ = ("more",)

    further = Further(thing)
    further.more = thing  # type: ignore[attr-defined]
    assert names(further, thing) == {("attribute", "left"), ("attribute", "more")}


def test_dict_values_are_named_by_key() -> None:
    class Text(str):
        __slots__ = ()

    def name(key: object) -> str:
        thing = Thing()
        [(kind, found)] = names({key: thing}, thing)
        assert kind == "value"
        return found

    assert name("plain") == "'plain'"
    assert name("it's\n\x1b[1m") == "'it\\'s\\n\\x1b[1m'"
    assert name(Text("sub")) == "'sub'"
    assert name("\ud800 \U0001f600") == "'\ufffd \U0001f600'"
    assert (name(3), name(-(2**62)), name(2**70)) == ("3", str(-(2**62)), "<int>")
    assert (name(True), name(None), name((1, 2))) == ("True", "None", "<tuple>")
    assert (name(Thing()), name(Thing)) == ("<Thing>", "<class Thing>")
    long = name("é" * 500)
    assert long.endswith("…")
    assert 100 < len(long.encode()) < 160


def test_keys_are_named_as_keys() -> None:
    key = Thing()
    assert names({key: 1}, key) == {("key", "key")}
    weak: weakref.WeakKeyDictionary[Thing, object] = weakref.WeakKeyDictionary()
    thing = Thing()
    weak[key] = thing
    [(kind, name)] = names(weak.data, thing)
    assert (kind, name) == ("value", "<weak Thing>")
    [reference] = weak.data
    assert names(weak.data, reference) == {("key", "weak key")}


@pytest.mark.parametrize("make", [list, tuple, collections.deque])
def test_items_are_named_by_position(make: Callable[[list[object]], Any]) -> None:
    things: list[object] = [Thing() for _ in range(200)]
    owner = make(things)
    assert [name for thing in things for name in names(owner, thing)] == [
        ("item", str(at)) for at in range(200)
    ]


def test_deque_keeps_positions_after_rotation() -> None:
    class Line(collections.deque):  # type: ignore[type-arg]
        pass

    first = Thing()
    line = Line([Line, first, None])
    line.rotate(100)
    line.appendleft(Line)
    assert {name for _, name in names(line, Line)} == {
        "__class__",
        *(str(at) for at, item in enumerate(line) if item is Line),
    }
    assert names(line, first) == {("item", str(list(line).index(first)))}


def test_named_tuple_fields_are_attributes() -> None:
    Pair = collections.namedtuple("Pair", "left right")
    thing = Thing()
    assert names(Pair(None, thing), thing) == {("attribute", "right")}


@pytest.mark.parametrize("make", [set, frozenset])
def test_members_of_sets_are_found(make: Callable[[list[object]], Any]) -> None:
    things: list[object] = [Thing() for _ in range(50)]
    owner = make(things)
    assert all(names(owner, thing) == {("member", "")} for thing in things)
    if make is set:
        owner.discard(things[3])
        assert names(owner, things[3]) == set()


def test_closure_leads_to_variable() -> None:
    thing, other = Thing(), Thing()

    def closes() -> object:
        return other, thing

    cells = closes.__closure__
    assert cells is not None
    assert names(closes, cells) == {("closure", "__closure__")}
    found = {core.reference(closes, cell, cells) for cell in cells}
    assert found == {("closure", "thing"), ("closure", "other")}
    [cell] = [cell for cell in cells if cell.cell_contents is thing]
    assert core.reference(closes, cell, cells) == ("closure", "thing")
    assert names(cell, thing) == {("cell", "cell_contents")}


def test_defaults_are_named_by_argument() -> None:
    first, second, third = Thing(), Thing(), Thing()

    def called(a: object, b: object = first, c: object = second, *, d: object = third) -> None:
        del a, b, c, d

    assert names(called, called.__defaults__) == {("default", "__defaults__")}
    assert core.reference(called, second, called.__defaults__) == ("default", "c")
    assert core.reference(called, first, called.__defaults__) == ("default", "b")
    assert core.reference(called, third, called.__kwdefaults__) == ("default", "d")


def test_function_names_its_parts() -> None:
    def function() -> None: ...

    function.note = Thing()  # type: ignore[attr-defined]
    assert names(function, globals()) == {("globals", "__globals__")}
    assert names(function, function.__code__) == {("field", "__code__")}
    assert names(function, function.__dict__) == {("instance_dict", "__dict__")}
    assert core.reference(function, Thing, globals()) == ("global", "Thing")


def test_methods_name_self_and_function() -> None:
    class Owner:
        def method(self) -> None: ...

    owner = Owner()
    method = owner.method
    assert names(method, owner) == {("self", "__self__")}
    assert names(method, Owner.method) == {("function", "__func__")}
    items: list[object] = []
    assert names(items.append, items) == {("self", "__self__")}


def test_suspended_generator_names_locals() -> None:
    thing, inner = Thing(), Thing()

    def generator(argument: object) -> Iterator[object]:
        unset: object
        local = inner
        for _ in [None]:
            yield lambda: local
        unset = 1
        del unset

    running = generator(thing)
    reader: Any = next(running)
    frame = running.gi_frame if sys.version_info < (3, 11) else running
    assert names(frame, thing) == {("local", "argument")}
    local = dict(zip(reader.__code__.co_freevars, reader.__closure__, strict=True))["local"]
    assert names(frame, local) == {("local", "local")}
    kinds = {(kind, name) for _, kind, name in core.references(frame)}
    assert ("local", "(temporary)") in kinds  # the list's iterator
    list(running)
    assert not [name for _, kind, name in core.references(running) if kind == "local"]


def test_coroutines_name_locals_too() -> None:
    thing = Thing()

    class Wait:
        def __await__(self) -> Iterator[None]:
            yield

    async def work(argument: object) -> None:
        await Wait()
        del argument

    running = work(thing)
    running.send(None)
    frame = running.cr_frame if sys.version_info < (3, 11) else running
    assert names(frame, thing) == {("local", "argument")}
    running.close()


def test_exception_leads_to_frame_locals() -> None:
    thing = Thing()

    def fails(argument: object) -> None:
        raise ValueError(argument)

    try:
        fails(thing)
    except ValueError as caught:
        error = caught
    traceback = error.__traceback__
    assert traceback is not None
    assert traceback.tb_next is not None
    assert names(error, traceback) == {("exception", "__traceback__")}
    assert names(traceback, traceback.tb_next) == {("exception", "tb_next")}
    assert names(traceback, traceback.tb_frame) == {("frame", "tb_frame")}
    frame = traceback.tb_next.tb_frame
    assert names(traceback.tb_next, frame) == {("frame", "tb_frame")}
    assert names(frame, thing) == {("local", "argument")}
    assert names(frame, frame.f_back) <= {("frame", "f_back")}
    assert names(error, error.args) == {("field", "args")}
    chained = KeyError()
    chained.__cause__, chained.__context__ = error, ValueError()
    assert names(chained, error) == {("exception", "__cause__")}
    assert names(chained, chained.__context__) == {("exception", "__context__")}


def test_module_globals_are_named() -> None:
    module = types.ModuleType("made")
    module.thing = Thing()  # type: ignore[attr-defined]
    assert names(module, vars(module)) == {("instance_dict", "__dict__")}
    assert core.reference(module, vars(module)["thing"], vars(module)) == ("global", "thing")


def test_class_attributes_and_bases_are_named() -> None:
    class Base:
        thing = Thing()

    class Derived(Base):
        pass

    namespaces = [target for target, kind, _ in core.references(Base) if kind == "instance_dict"]
    assert core.reference(Base, Base.thing, namespaces[0]) == ("class", "thing")
    assert names(Derived, Base) == {("class", "__base__")}
    assert names(Derived, Derived.__mro__) == {("class", "__mro__")}
    assert names(Derived, Derived.__bases__) == {("class", "__bases__")}
    assert names(Base(), Base) == {("type", "__class__")}


def test_weak_references_name_callbacks() -> None:
    thing = Thing()

    def callback(_: object) -> None: ...

    for make in (weakref.ref, weakref.proxy):
        reference = make(thing, callback)
        found = {
            (kind, name) for held, kind, name in core.references(reference) if held is callback
        }
        assert found == {("callback", "callback")}


def test_partials_and_properties_name_fields() -> None:
    thing = Thing()

    def function(*_: object) -> None: ...

    partial = functools.partial(function, thing)
    assert names(partial, function) == {("function", "func")}
    assert names(partial, partial.args) == {("field", "args")}
    assert names(property(function), function) == {("field", "fget")}
    [(kind, name)] = names(staticmethod(function), function)
    assert (kind, name) in {("function", "__func__"), ("field", "__wrapped__")}
    counts: collections.defaultdict[str, object] = collections.defaultdict(Thing)
    assert names(counts, Thing) == {("field", "default_factory")}
    ordered = collections.OrderedDict(key=thing)
    assert names(ordered, thing) == {("value", "'key'")}


def test_views_and_iterators_name_what_they_read() -> None:
    things, mapping = [Thing()], {"key": Thing()}
    inner = iter(things)

    def function(_: object) -> bool:
        return True

    assert names(inner, things) == {("field", "sequence")}
    assert names(mapping.items(), mapping) == {("field", "mapping")}
    assert names(types.MappingProxyType(mapping), mapping) == {("field", "mapping")}
    assert names(filter(function, inner), function) == {("function", "function")}
    assert names(filter(function, inner), inner) == {("field", "iterator")}
    assert names(itertools.islice(inner, 3), inner) == {("field", "iterator")}
    assert names(operator.itemgetter(mapping["key"]), mapping["key"]) == {("field", "item")}


@pytest.mark.parametrize("size", [4, None])
def test_lru_cache_names_what_it_keeps(size: int | None) -> None:
    thing = Thing()

    @functools.lru_cache(maxsize=size)
    def answer(_: str) -> Thing:
        return thing

    answer("question")
    assert ("function", "function") in names(answer, answer.__wrapped__)
    if size is not None:
        assert names(answer, thing) == {("field", "cached result")}
    else:
        [cache] = [held for held, _, name in core.references(answer) if name == "cache"]
        assert names(cache, thing) == {("value", "'question'")}


def test_thread_local_values_are_reached() -> None:
    thing = Thing()
    local = threading.local()
    local.value = thing
    [by_thread] = [held for held, _, name in core.references(local) if name == "values by thread"]
    assert isinstance(by_thread, dict)
    kept = [held for value in by_thread.values() for held, _, _ in core.references(value)]
    assert any(held is thing for held in [*by_thread.values(), *kept])


# ---- labels ----------------------------------------------------------------------------


def line_of(function: types.FunctionType) -> int:
    return function.__code__.co_firstlineno


def test_labels_say_what_things_are() -> None:
    def function() -> None: ...

    def generator() -> Iterator[None]:
        yield

    class Owner:
        def method(self) -> None: ...

    running = generator()
    next(running)
    labels = {
        what: core.label(what_object)
        for what, what_object in {
            "function": function,
            "method": Owner().method,
            "builtin": len,
            "bound builtin": [].append,
            "class": Owner,
            "instance": Owner(),
            "generator": running,
            "module": sys,
            "dict": {1: 2},
            "str": "it's",
            "int": 12,
            "none": None,
            "error": KeyError("x"),
            "ordered": collections.OrderedDict(a=1),
            "weak": weakref.ref(Owner),
        }.items()
    }
    assert [(what, kind, text) for what, (kind, _, text, _, _) in labels.items()] == [
        ("function", "function", "function function"),
        ("method", "method", "method method"),
        ("builtin", "function", "function len"),
        ("bound builtin", "method", "method append"),
        ("class", "type", "class Owner"),
        ("instance", "object", "Owner"),
        ("generator", "frame", "generator generator"),
        ("module", "module", "module sys"),
        ("dict", "container", "dict of 1"),
        ("str", "leaf", "'it\\'s'"),
        ("int", "leaf", "12"),
        ("none", "leaf", "None"),
        ("error", "exception", "KeyError"),
        ("ordered", "container", "OrderedDict of 1"),
        ("weak", "object", "weak reference to type"),
    ]
    prefix = f"{__name__}.test_labels_say_what_things_are.<locals>"
    assert labels["instance"][1] == f"{prefix}.Owner"
    assert (labels["dict"][1], labels["ordered"][1]) == ("dict", "collections.OrderedDict")


def test_labels_say_where_things_are() -> None:
    class Owner:
        note = 1

        def method(self) -> None: ...

    def generator() -> Iterator[None]:
        yield
        yield

    def place(what: object) -> tuple[str, int]:
        *_, file, line = core.label(what)
        return Path(file).name, line

    assert place(generator) == (HERE, line_of(generator))
    assert place(Owner().method) == (HERE, line_of(Owner.method))
    running = generator()
    next(running)
    assert place(running) == (HERE, line_of(generator) + 1)
    next(running)
    assert place(running) == (HERE, line_of(generator) + 2)
    first = line_of(Owner.method) - 3 if sys.version_info >= (3, 13) else line_of(Owner.method)
    assert place(Owner) == place(Owner()) == (HERE, first)
    assert place(sys._getframe()) == (HERE, sys._getframe().f_lineno)
    with pytest.raises(ValueError) as caught:
        raise ValueError
    traceback = caught.tb
    assert place(traceback) == (HERE, traceback.tb_lineno)
    assert place(object()) == place([]) == ("", 0)


def test_long_paths_keep_their_end() -> None:
    code = compile("def far(): ...", "/" + "folder/" * 90 + "last.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    *_, file, line = core.label(space["far"])
    assert file.startswith("…")
    assert file.endswith("/folder/last.py")
    assert 200 < len(file.encode()) < 320
    assert line == 1


# ---- nothing is disturbed --------------------------------------------------------------


def hostile_objects() -> list[Any]:
    class Meta(type):
        def mro(cls) -> list[type]:
            return [*super().mro()]

        def __instancecheck__(cls, instance: object) -> bool:
            raise AssertionError

        def __eq__(cls, other: object) -> bool:
            raise AssertionError

        def __hash__(cls) -> int:
            return 1

    class Strange(Hostile, metaclass=Meta):
        pass

    class Text(str):
        __slots__ = ()
        armed = False

        def __eq__(self, other: object) -> bool:
            if Text.armed:
                raise AssertionError
            return str.__eq__(self, other)

        def __hash__(self) -> int:
            if Text.armed:
                raise AssertionError
            return 7

    hostile, strange = Hostile(), Strange()
    mapping = {Text("key"): hostile, "other": strange}
    proxy = weakref.proxy(Thing())  # dead at once
    holder = Thing()
    object.__setattr__(holder, "hostile", hostile)
    Text.armed = True
    bare = Slotted.__new__(Slotted)
    return [hostile, strange, Strange, mapping, [hostile, proxy], proxy, holder, bare]


def test_nobodys_python_runs() -> None:
    for thing in hostile_objects():
        references = core.references(thing)
        assert references
        for target, _, _ in references:
            core.label(target)
            core.references(target)
        core.label(thing)


def test_half_built_objects_are_survived() -> None:
    bare = [
        types.FunctionType(compile("1", "<text>", "eval"), {}),
        types.CellType(),
        BaseException.__new__(KeyError),
        Slotted.__new__(Slotted),
        types.ModuleType.__new__(types.ModuleType),
        property.__new__(property),
        # From 3.15 on one can't be made without its function.
        *([staticmethod.__new__(staticmethod)] if sys.version_info < (3, 15) else []),
        functools.partial(print),
        types.SimpleNamespace.__new__(types.SimpleNamespace),
        collections.deque.__new__(collections.deque),
        collections.OrderedDict.__new__(collections.OrderedDict),
    ]
    for thing in bare:
        core.references(thing)
        kind, type_name, text, _, _ = core.label(thing)
        assert kind
        assert type_name
        assert text


def made_while_naming(things: list[Any]) -> list[type]:
    """The types of the objects that came while all of these were named."""
    gc.disable()
    try:
        before = {id(thing) for thing in gc.get_objects()}
        for thing in things:
            core.label(thing)
            core.references(thing)
        alive = gc.get_objects()
        after = [thing for thing in alive if id(thing) not in before]
        made = [thing for thing in after if thing is not before]
    finally:
        gc.enable()
    return [type(thing) for thing in made if not isinstance(thing, (list, types.FrameType))]


def test_naming_makes_and_changes_nothing() -> None:
    class Plain:
        pass

    plain = [Plain() for _ in range(20)]
    for at, thing in enumerate(plain):
        thing.next = plain[at - 1]  # type: ignore[attr-defined]

    def generator() -> Iterator[object]:
        kept = plain
        yield kept

    running = generator()
    next(running)
    things: list[Any] = [*plain, running, generator, Plain, plain]
    sizes = [sys.getsizeof(thing) for thing in things]
    # The test runner's own thread may make something meanwhile, and not each time.
    assert [] in (made_while_naming(things) for _ in range(10))
    assert [sys.getsizeof(thing) for thing in things] == sizes


def test_every_object_alive_can_be_named() -> None:
    missing = total = 0
    gc.unfreeze()
    owners = gc.get_objects()
    isolation.set_aside()
    for owner in owners:
        held = {id(target) for target, _, _ in core.references(owner)}
        referents = gc.get_referents(owner)
        total += len(referents)
        missing += sum(id(target) not in held for target in referents)
        core.label(owner)
    assert total > 10_000
    assert missing < total / 50


def test_names_hold_for_large_containers() -> None:
    last = Thing()
    large = dict.fromkeys(range(200_000))
    large["last"] = last  # type: ignore[index]
    assert core.reference(large, last) == ("value", "'last'")
    assert core.reference([*range(200_000), last], last) == ("item", "200000")
    assert core.reference(large, Thing()) is None
