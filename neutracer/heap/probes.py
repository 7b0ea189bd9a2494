# SPDX-License-Identifier: Apache-2.0
"""Objects with known contents, from which the core learns how Python lays out objects.

The core compares an object's memory with what this module says of it, and gives names only
to what it finds. Nothing here is useful elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

__all__ = ["borrowers", "deque", "fields", "frames", "objects"]


class _Thing:
    """A referent, or an object with attributes."""


def objects() -> list[tuple[object, dict[str, object]]]:
    """Objects and their attributes: one with a gap, and one whose dict was looked at."""
    known: list[tuple[object, dict[str, object]]] = []
    for touched in (False, True):
        probe = _Thing()
        values: dict[str, object] = {name: _Thing() for name in ("first", "second", "third")}
        for name, value in values.items():
            setattr(probe, name, value)
        del probe.second  # type: ignore[attr-defined]
        del values["second"]
        if touched:
            assert probe.__dict__ == values
        known.append((probe, values))
    return known


def _suspended(argument: object, unset: object = None) -> Iterator[object]:
    del unset
    local = _Thing()
    yield lambda: local
    yield argument


def _over(argument: object) -> types.FrameType:
    local = argument  # noqa: F841 - a local to be found
    return sys._getframe()


def frames() -> list[tuple[object, dict[str, object]]]:
    """A suspended generator and the frame of a call that is over, with their variables."""
    thing = _Thing()
    generator = _suspended(thing)
    reader = next(generator)
    assert isinstance(reader, types.FunctionType)
    assert reader.__closure__ is not None
    known: dict[str, object] = {"argument": thing, "local": reader.__closure__[0]}
    return [(generator, known), (_over(thing), {"argument": thing, "local": thing})]


def _in_list(argument: object) -> Generator[None, object, None]:
    _ = [argument, argument, (yield)]


def _in_call(argument: object) -> Generator[None, object, None]:
    print(argument, (yield))


class _Once:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def _in_coroutine(argument: object) -> None:
    once: Any = _Once()
    _ = [argument, await once]


async def _in_async_generator(argument: object) -> AsyncGenerator[None, object]:
    _ = [argument, (yield)]


def _begun(argument: object, step: Callable[[object], Any]) -> object:
    suspended = step(argument)
    suspended.send(None)
    return suspended


def _begun_async(argument: object) -> object:
    generator = _in_async_generator(argument)
    # Event loops are notified when an asynchronous generator begins; this one stays hidden.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        with contextlib.suppress(StopIteration):
            next(generator.__anext__().__await__())
    finally:
        sys.set_asyncgen_hooks(*hooks)
    return generator


def borrowers() -> list[tuple[object, object, int]]:
    """Suspended objects in the middle of an expression, an operand of each, and how often
    the object holds it."""
    makers: list[Callable[[object], object]] = [
        functools.partial(_begun, step=step) for step in (_in_list, _in_call, _in_coroutine)
    ]
    rows: list[tuple[object, object, int]] = []
    for make in [*makers, _begun_async]:
        thing = _Thing()
        before = sys.getrefcount(thing)
        probe = make(thing)
        held = sys.getrefcount(thing) - before
        rows.append((probe, thing, held))
    return rows


def _held(probe: object, kind: type) -> object:
    """The one thing of a type that an object holds, or something that it does not."""
    found = [thing for thing in gc.get_referents(probe) if type(thing) is kind]
    return found[0] if len(found) == 1 else object()


def _iterators() -> list[tuple[object, str, object]]:
    rows: list[tuple[object, str, object]] = []
    things = [_Thing()]
    for sequence in (things, tuple(things)):
        rows.append((iter(sequence), "sequence", sequence))
    rows.append((reversed(things), "sequence", things))
    mapping = {"key": things[0]}
    for view in (mapping.keys(), mapping.values(), mapping.items()):
        rows.append((view, "mapping", mapping))
        rows.append((iter(view), "mapping", mapping))
    members = set(things)
    rows.append((iter(members), "members", members))

    def source() -> Iterator[object]:
        return iter(things)

    for make in (enumerate, itertools.cycle, lambda it: itertools.islice(it, 5)):
        inner = source()
        rows.append((make(inner), "iterator", inner))
    rows.append((itertools.repeat(things), "item", things))

    def function(*arguments: object) -> object:
        return arguments

    steps: list[Callable[[Any, Any], object]] = [
        filter,
        itertools.takewhile,
        itertools.dropwhile,
        itertools.filterfalse,
        itertools.starmap,
        lambda called, inner: itertools.accumulate(inner, called),
    ]
    for step in steps:
        inner = source()
        probe = step(function, inner)
        rows += [(probe, "function", function), (probe, "iterator", inner)]
    mapped = map(function, source())
    rows += [(mapped, "function", function), (mapped, "iterators", _held(mapped, tuple))]
    zipped = zip(source(), source(), strict=False)
    rows.append((zipped, "iterators", _held(zipped, tuple)))
    stop = _Thing()
    called = iter(function, stop)
    return [*rows, (called, "function", function), (called, "sentinel", stop)]


def _cached() -> list[tuple[object, str, object]]:
    answer = _Thing()
    function = functools.lru_cache(maxsize=4)(lambda _: answer)
    key = "neutracer probe"
    function(key)
    plain = function.__wrapped__
    held = [thing for thing in gc.get_referents(function) if type(thing) is dict]
    caches = [thing for thing in held if thing is not function.__dict__]
    if len(caches) != 1:
        return []
    element = next(iter(caches[0].values()))
    return [
        (function, "function", plain),
        (function, "cache", caches[0]),
        (element, "cached key", key),
        (element, "cached result", answer),
    ]


def _others() -> list[tuple[object, str, object]]:
    mapping = {"key": _Thing()}
    rows: list[tuple[object, str, object]] = [
        (types.MappingProxyType(mapping), "mapping", mapping),
    ]
    name, item = f"name {id(mapping)}", _Thing()
    rows.append((operator.itemgetter(item), "item", item))
    getter = operator.attrgetter(name)
    rows.append((getter, "names", _held(getter, tuple)))

    local = threading.local()
    local.value = _Thing()
    rows.append((local, "values by thread", _held(local, dict)))

    async def coroutine() -> None:
        return None

    waiting = coroutine()
    rows.append((waiting.__await__(), "coroutine", waiting))
    waiting.close()
    return rows


def fields() -> list[tuple[object, str, object]]:
    """(object, the name of a field of its type, what that field holds), each type twice."""
    if sys.implementation.name != "cpython":
        return []
    return [row for _ in range(2) for part in (_iterators, _cached, _others) for row in part()]
