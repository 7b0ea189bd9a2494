# SPDX-License-Identifier: Apache-2.0
"""References held by PyTorch's autograd graph in C++, invisible to the garbage collector.

They are read through the descriptors of torch's base classes, so that no subclass, mode or hook
of the program runs: `.grad`, `.grad_fn`, `._base` and hooks of a tensor; `next_functions`, the
leaf of an `AccumulateGrad`, and saved values, packed or not, without unpacking them.

Example:
    >>> import torch
    >>> x = torch.ones(2, requires_grad=True)
    >>> y = x * x
    >>> links = read_autograd()
    >>> sorted(name for name in set(links.names) if name.startswith("._saved"))
    ['._saved_other', '._saved_self']
"""

from __future__ import annotations

import contextlib
import functools
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import GetSetDescriptorType
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError

_OTHER, _NODE, _TENSOR = 0, 1, 2

# Reading a node gives it a Python object, and torch frees a chain of such nodes by recursion,
# some 190 bytes of stack per node: 43,000 overflow 8 MiB. Limits: nodes read per call, and nodes
# with an object above which no more are read.
_MOST_NODES = 20_000
_MOST_OBJECTS = 32_000

# type's own descriptors, which bypass the program's metaclasses.
_MRO = type.__dict__["__mro__"].__get__
_DICT = type.__dict__["__dict__"].__get__


@dataclass(frozen=True)
class AutogradLinks:
    """Autograd's references, in the core's form. It keeps its objects alive: drop it soon."""

    objects: list[Any]
    kinds: bytes  # One byte per object: 1 for a node of PyTorch's graph, 2 for a tensor.
    # Three numbers per reference: positions of source and target in `objects`, and of the name in
    # `names`.
    links: array[int]
    names: tuple[str, ...]  # Names of references: ".grad_fn".
    unread: int  # Saved values that this torch can't show without running hooks.
    unfollowed: int = 0  # Nodes and tensors that were not followed because the graph is too large.


def read_autograd() -> AutogradLinks:
    """Read autograd's references, from all of Python's tensors; none without torch.

    It runs no code of the program, unpacks nothing, and allocates nothing on a device. Nodes
    and saved tensors without a Python object get one, of some 100 bytes, for as long as they
    live. It follows at most 20,000 nodes of a graph.
    """
    torch = sys.modules.get("torch")
    tensor_base = getattr(getattr(torch, "_C", None), "TensorBase", None)
    if tensor_base is None or not hasattr(torch, "Tensor"):
        return AutogradLinks([], b"", array("I"), (), 0)
    with _without_overrides(torch):
        _learn_hooks(torch)
        reader = _Reader(tensor_base)
        reader.run()
    return AutogradLinks(
        reader.objects,
        bytes(reader.kinds),
        reader.links,
        tuple(reader.names),
        reader.unread,
        reader.unfollowed,
    )


@contextlib.contextmanager
def _without_overrides(torch: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
            guard = getattr(torch._C, name, None)
            if guard is not None:
                stack.enter_context(guard())
        yield


@functools.cache
def _learn_hooks(torch: Any) -> None:
    """Teach the core where a node keeps its hooks; otherwise they are missed."""
    with torch.enable_grad(), torch.inference_mode(False):
        leaf = torch.zeros(1, device="cpu", requires_grad=True)
        made = leaf * leaf
        node = made.grad_fn
        try:
            core.node_begin(node)
            before, after = node.register_prehook(_no_hook), node.register_hook(_no_hook)
            made.register_hook(_no_hook)
            core.node_learn(
                node, before.hooks_dict_ref(), after.hooks_dict_ref(), made._backward_hooks
            )
        except (AttributeError, UnavailableError):
            return


def _no_hook(*_: object) -> None:
    """Never called: its node takes part in no backward pass."""


class _Reader:
    """Follows references breadth first; the list of objects is the queue."""

    def __init__(self, tensor_base: type) -> None:
        self.objects: list[Any] = core.heap_tensors()
        self.kinds = bytearray([_TENSOR]) * len(self.objects)
        self.links = array("I")
        self.names: dict[str, int] = {}
        self.unread = 0
        self.unfollowed = 0
        self._nodes_left = _MOST_NODES if core.heap_nodes() < _MOST_OBJECTS else 0
        self._index = {id(tensor): at for at, tensor in enumerate(self.objects)}
        self._tensor_base = tensor_base
        self._of_type: dict[type, _NodeType] = {}
        read = {name: _getter(tensor_base, name) for name in _TENSOR_FIELDS}
        self._requires_grad, self._grad_fn = read["requires_grad"], read["grad_fn"]
        self._is_leaf, self._retains = read["is_leaf"], read["retains_grad"]
        self._grad = read["grad"]
        self._plain = [
            (f".{name}", read[name])
            for name in ("_base", "_backward_hooks", "_post_accumulate_grad_hooks")
        ]

    def run(self) -> None:
        at = 0
        while at < len(self.objects):
            if self.kinds[at] == _TENSOR:
                self._tensor(at, self.objects[at])
            elif self.kinds[at] == _NODE:
                self._node(at, self.objects[at])
            at += 1

    def _link(self, source: int, target: object, name: str, kind: int | None = None) -> None:
        at = self._index.get(id(target))
        if at is None:
            at = self._index[id(target)] = len(self.objects)
            self.objects.append(target)
            if kind is None:
                kind = _TENSOR if self._tensor_base in _MRO(type(target)) else _OTHER
            self.kinds.append(kind)
            self._nodes_left -= kind == _NODE
        self.links.extend((source, at, self.names.setdefault(name, len(self.names))))

    def _tensor(self, at: int, tensor: Any) -> None:
        for name, read in self._plain:
            value = read(tensor)
            if value is not None:
                self._link(at, value, name)
        if not self._requires_grad(tensor):
            return
        # On other tensors .grad warns, which runs the program's filters.
        if self._is_leaf(tensor) or self._retains(tensor):
            grad = self._grad(tensor)
            if grad is not None:
                self._link(at, grad, ".grad", _TENSOR)
        if self._nodes_left <= 0:
            self.unfollowed += not self._is_leaf(tensor)
            return
        node = self._grad_fn(tensor)
        if node is not None:
            self._link(at, node, ".grad_fn", _NODE)

    def _node(self, at: int, node: Any) -> None:
        if self._nodes_left <= 0:
            self.unfollowed += 1
            return
        known = self._of_type.get(type(node))
        if known is None:
            known = self._of_type[type(node)] = _node_type(type(node))
        for place, (function, _) in enumerate(known.next_functions(node) or ()):
            if function is not None:
                self._link(at, function, f".next_functions[{place}]", _NODE)
        for place, hooks in core.node_hooks(node):
            self._link(at, hooks, _HOOKS[place])
        leaf = known.variable(node)
        if leaf is not None:
            self._link(at, leaf, ".variable", _TENSOR)
        for name, read in known.saved:
            saved = read(node)
            if isinstance(saved, (tuple, list)):
                for place, one in enumerate(saved):
                    self._saved(at, one, f"{name}[{place}]")
            else:
                self._saved(at, saved, name)

    def _saved(self, at: int, saved: Any, name: str) -> None:
        if saved is None:
            return
        try:
            data, hook = saved.data, saved.unpack_hook
        except (AttributeError, RuntimeError):
            self.unread += 1
            return
        if hook is not None:
            self._link(at, hook, f"{name}.unpack_hook")
            name = f"{name} as packed"
        if data is not None:
            self._link(at, data, name)


_TENSOR_FIELDS = (
    *("_base", "_backward_hooks", "_post_accumulate_grad_hooks"),
    *("requires_grad", "grad_fn", "grad", "is_leaf", "retains_grad"),
)

_HOOKS = (".pre_hooks", ".post_hooks", ".tensor_hooks")


@dataclass(frozen=True)
class _NodeType:
    next_functions: Callable[[Any], Any]
    variable: Callable[[Any], Any]
    saved: tuple[tuple[str, Callable[[Any], Any]], ...]


def _getter(cls: type, name: str) -> Callable[[Any], Any]:
    """A reader of a field that torch defines; it returns None for a broken object."""
    descriptor = _DICT(cls).get(name)
    if type(descriptor) is not GetSetDescriptorType:
        return lambda _: None
    read = descriptor.__get__

    def get(instance: Any) -> Any:
        try:
            return read(instance)
        except Exception:  # released, half built, or a view that lost its base
            return None

    return get


def _node_type(cls: type) -> _NodeType:
    """The fields defined by torch's own classes among the bases."""
    found: dict[str, Callable[[Any], Any]] = {}
    for base in _MRO(cls):
        for name, descriptor in _DICT(base).items():
            if type(descriptor) is GetSetDescriptorType and name not in found:
                found[name] = _getter(base, name)

    def nothing(_: Any) -> None:
        return None

    saved = tuple(
        (".saved_tensors", read)
        if name == "_raw_saved_tensors"
        else (f".{name.removeprefix('_raw')}", read)
        for name, read in found.items()
        if name.startswith("_raw_saved_")
    )
    return _NodeType(found.get("next_functions", nothing), found.get("variable", nothing), saved)
