# SPDX-License-Identifier: Apache-2.0
"""Objects and tensors with known contents, from which the core learns memory layouts.

The core compares their memory with the facts given here and trusts only what fits every probe.
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

# csrc/pyheap looks it up here.
from collections import deque as deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

# ---- Probes ------------------------------------------------------------------------------


class _Thing:
    """A referent, or an object with attributes."""


def objects() -> list[tuple[object, dict[str, object]]]:
    """Objects and their attributes, one of them with a materialized dict."""
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
    """A suspended generator and a finished frame, with their variables."""
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
    # Hide the generator from event loops.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        with contextlib.suppress(StopIteration):
            next(generator.__anext__().__await__())
    finally:
        sys.set_asyncgen_hooks(*hooks)
    return generator


def borrowers() -> list[tuple[object, object, int]]:
    """Objects suspended in an expression, an operand of each, and its references to that."""
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
    """The only referent of a type, or an unrelated object."""
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
    """(object, name of a field, value of the field) triples, each type twice."""
    if sys.implementation.name != "cpython":
        return []
    return [row for _ in range(2) for part in (_iterators, _cached, _others) for row in part()]


# ---- Tensor probes -----------------------------------------------------------------------

# All tensors are small and on the CPU or on "meta"; this module does not import torch.

_CPU, _META = 0, 14
#: ScalarType numbers, equal in every release of torch.
_NUMBERS = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
}
#: Likewise, for dtypes whose tensors warn when made.
_WARNING = {
    "complex32": 8,
    "qint8": 12,
    "quint8": 13,
    "qint32": 14,
    "quint4x2": 16,
    "quint2x4": 17,
    "bcomplex32": 46,
}


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise ImportError("torch has not been imported")
    return torch


@contextmanager
def _ordinary(torch: Any, *, grad: bool) -> Iterator[None]:
    """Disable the program's modes, so that tensors are ordinary ones."""
    with ExitStack() as stack:
        # First: a mode may intercept the calls below.
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(grad))
        modes = sys.modules.get("torch.utils._python_dispatch")
        if hasattr(modes, "_disable_current_modes"):
            stack.enter_context(modes._disable_current_modes())  # type: ignore[union-attr]
        yield


def tensor_type() -> type:
    """The base type of tensors, which holds the C++ tensor."""
    core = _torch()._C
    base: type = core.TensorBase if hasattr(core, "TensorBase") else core._TensorBase
    return base


def _facts(tensor: Any, flag: bool | None = None) -> tuple[Any, ...]:
    """A tensor and its facts, in the core's order.

    `flag`: whether requires_grad was set on it directly; None if autograd never touched it.
    """
    storage = tensor.untyped_storage()
    count = tensor._use_count() if hasattr(tensor, "_use_count") else -1
    name = str(tensor.dtype).partition(".")[2]
    return (
        tensor,
        tensor._cdata,
        storage._cdata,
        0 if tensor.is_meta else storage.data_ptr(),
        storage.nbytes(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.numel(),
        _NUMBERS.get(name, -1),
        _META if tensor.is_meta else _CPU,
        int(flag) if flag is not None else -1 if tensor._is_view() else -2,
        int(tensor.grad_fn is not None),
        int(tensor.requires_grad),
        count,
    )


def _plain(torch: Any, shapes: list[tuple[int, ...]], names: list[str]) -> list[Any]:
    made = []
    for at, shape in enumerate(shapes):
        for name in names[at % 2 :: 2]:
            dtype = getattr(torch, name)
            made.append(torch.empty(shape, dtype=dtype, device="cpu"))
            made.append(torch.empty(shape, dtype=dtype, device="meta"))
    return made


def _views(torch: Any) -> list[Any]:
    base = torch.zeros(7, 5, 3, dtype=torch.float32, device="cpu")
    deep = torch.zeros(2, 1, 3, 1, 2, 4, dtype=torch.int16, device="cpu")
    views = [
        base[2:5],
        base.transpose(0, 2),
        base[1, 2:, ::2],
        deep[1:],
        deep.permute(5, 4, 3, 2, 1, 0),
    ]
    return [base, deep, *views, base.view(-1)[11:]]


def _graded(torch: Any) -> list[tuple[Any, bool]]:
    """Tensors in autograd, and whether requires_grad was set on them."""
    made: list[tuple[Any, bool]] = []
    for size in range(3, 9):
        leaf = torch.ones(size, device="cpu", requires_grad=True)
        off = torch.ones(size, device="cpu", requires_grad=True).requires_grad_(False)
        result = leaf * 2
        kept = leaf + 1
        kept.retain_grad()
        used = torch.ones(size, device="cpu", requires_grad=True)
        used.register_hook(_hook)
        made += [(leaf, True), (off, False), (result, False), (kept, False), (used, True)]
        made.append((result[1:], False))
    return made


def _hook(gradient: Any) -> Any:
    return gradient


def layouts() -> list[list[tuple[Any, ...]]]:
    """Three sets: plain tensors, tensors in autograd, and a mixed set for validation."""
    torch = _torch()
    names = list(_NUMBERS)
    shapes = [(), (3,), (2, 5), (4, 1, 6), (0,), (2, 3, 0, 4), (1, 2, 3, 4, 5)]
    with _ordinary(torch, grad=False):
        plain = _plain(torch, shapes, names) + _views(torch)
        others = _plain(torch, [(9, 8), (2, 2, 2, 2, 2, 2), (1,) * 9, (6, 0)], names[::-1])
    with _ordinary(torch, grad=True):
        graded = _graded(torch)
        later = [tensor for tensor, _ in _graded(torch)]
        later.append(torch.nn.Parameter(torch.zeros(3, 2, device="cpu")))
        return [
            [_facts(tensor) for tensor in plain],
            [_facts(tensor, flag) for tensor, flag in graded],
            [_facts(tensor) for tensor in [*others, *later]],
        ]


def dtypes() -> list[tuple[Any, str]]:
    """An empty tensor of each dtype, or the dtype's number, and the dtype's name."""
    torch = _torch()
    found = {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
    found = {kind for kind in found if str(kind).partition(".")[2] not in _WARNING}
    made: list[tuple[Any, str]] = [(number, name) for name, number in _WARNING.items()]
    with _ordinary(torch, grad=False):
        for kind in sorted(found, key=str):
            try:
                tensor = torch.empty(0, dtype=kind, device="cpu")
            except Exception:  # a dtype that only some kernels know
                continue
            made.append((tensor, str(kind).partition(".")[2]))
    return made


def tensor_fields() -> list[tuple[object, str, object]]:
    """As `fields`, for the tensor's Python object."""
    torch = _torch()
    rows: list[tuple[object, str, object]] = []
    with _ordinary(torch, grad=True):
        for size in (2, 3):
            tensor = torch.ones(size, device="cpu", requires_grad=True)
            tensor.register_hook(_hook)
            rows.append((tensor, "_backward_hooks", tensor._backward_hooks))
            if hasattr(tensor, "register_post_accumulate_grad_hook"):
                tensor.register_post_accumulate_grad_hook(_hook)
                hooks = tensor._post_accumulate_grad_hooks
                rows.append((tensor, "_post_accumulate_grad_hooks", hooks))
    return rows


def node() -> object:
    """An autograd node implemented in C++."""
    torch = _torch()
    with _ordinary(torch, grad=True):
        result = torch.ones(2, device="cpu", requires_grad=True) * 2
        made: object = result.grad_fn
    return made


def function_type() -> type:
    """The base type of autograd nodes implemented in Python."""
    base: type = _torch()._C._FunctionBase
    return base


def private_device() -> str:
    """The name of a plug-in's device."""
    name = getattr(_torch()._C, "_get_privateuse1_backend_name", None)
    return str(name()) if name is not None else "privateuseone"
