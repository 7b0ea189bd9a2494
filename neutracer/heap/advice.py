# SPDX-License-Identifier: Apache-2.0
"""Which reference of a cycle to break, and how.

A cycle can be broken at any of its references; this names the one that a program can most
easily do without: a stored bound method, a variable that a closure need not close over, an
exception kept in its own frame, a reference back to a parent.

Example:
    >>> nodes = (
    ...     Node(0, "app.Callback", "Callback"),
    ...     Node(1, "method", "method view", kind="method"),
    ... )
    >>> edges = (Edge(0, 1, "view_callback", "attribute"), Edge(1, 0, "__self__", "self"))
    >>> print(choose_cut(nodes, edges).advice)
    keep the function or a weakref.WeakMethod in Callback.view_callback, not the bound method
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neutracer.heap.objects import Edge, Node

__all__ = ["Cut", "choose_cut", "reference_text"]

# Names by which programs lead back to where they came from.
_BACKWARD = re.compile(
    r"(?:^|_)(?:parent|owner|root|prev|previous|back|up|outer|container|trainer|manager|ctx|self)\d*$"
)


@dataclass(frozen=True)
class Cut:
    """The reference to break.

    Attributes:
        edge: Its position among the edges of the cycle.
        text: The reference in words: "Callback.view_callback".
        advice: What to do, as a clause that begins with a verb.
    """

    edge: int
    text: str
    advice: str


def reference_text(nodes: Sequence[Node], edge: Edge) -> str:
    """A reference in words: "Callback.view_callback", "frame of step local x"."""
    label = nodes[edge.source].label
    text = edge.text
    return f"{label}{text}" if text.startswith((".", "[")) or not text else f"{label} {text}"


def choose_cut(nodes: Sequence[Node], way: Sequence[Edge]) -> Cut:
    """The best reference of a cycle to break.

    Args:
        nodes: The nodes of the graph.
        way: The edges of the cycle, in order; the last leads to the first's source.

    Returns:
        The cut; among equally good ones the last of the way, which closes the cycle.
    """
    best, best_rank = 0, -1
    for number, edge in enumerate(way):
        rank = _rank(nodes, way, edge)
        if rank >= best_rank:
            best, best_rank = number, rank
    edge = way[best]
    return Cut(best, reference_text(nodes, edge), _advice(nodes, way, best))


def _rank(nodes: Sequence[Node], way: Sequence[Edge], edge: Edge) -> int:
    """How well a program can do without a reference: the larger, the better."""
    source, target = nodes[edge.source], nodes[edge.target]
    if _is_mro(nodes, edge):
        return 12
    if edge.kind in ("attribute", "value", "item") and target.kind == "exception":
        return 11 if any(nodes[e.source].kind == "traceback" for e in way) else 5
    if edge.kind == "item" and source.type == "tuple":
        return 6 if _is_bound(nodes, way, edge) else 2
    if edge.kind == "attribute" and _hides_its_use(target):
        return 3
    if edge.kind == "local" and any(nodes[e.source].kind == "exception" for e in way):
        return 10
    if edge.kind in ("attribute", "value") and _BACKWARD.search(edge.name.strip("'")):
        return 8
    return _RANKS.get(edge.kind, 1)


def _is_mro(nodes: Sequence[Node], edge: Edge) -> bool:
    """Whether it is the reference that every class has to itself."""
    return nodes[edge.source].kind == "type" and edge.name == "__mro__"


def _is_bound(nodes: Sequence[Node], way: Sequence[Edge], edge: Edge) -> bool:
    """Whether it is an argument that a functools.partial keeps."""
    before = way[way.index(edge) - 1]
    return nodes[before.source].type == "functools.partial"


def _hides_its_use(target: Node) -> bool:
    """Whether a weak reference can't help: the type allows none, or it would die at once."""
    return target.is_strong or target.type in _NO_WEAKREF or target.type == "functools.partial"


# Types of which Python makes no weak references, by the names that nodes have.
_NO_WEAKREF = frozenset(
    (
        *("list", "dict", "tuple", "str", "bytes", "bytearray", "int", "float", "complex"),
        *("bool", "NoneType", "slice", "range", "mappingproxy", "cell", "ellipsis"),
        *("collections.defaultdict", "defaultdict", "types.SimpleNamespace", "SimpleNamespace"),
        *("list_iterator", "dict_keyiterator", "dict_valueiterator", "dict_itemiterator"),
        *("tuple_iterator", "zip", "map", "filter", "enumerate", "reversed"),
    )
)


_RANKS = {
    "self": 9,
    "closure_variable": 7,
    "default": 7,
    "callback": 6,
    "attribute": 5,
    "local": 5,
    "autograd": 5,
    "value": 4,
    "item": 4,
    "member": 4,
    "global": 4,
    "class": 3,
    "field": 3,
    "function": 2,
    "type": 0,
    "globals": 0,
    "cell": 0,
    "closure": 0,
    "instance_dict": 0,
}


def _advice(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    edge = way[at]
    source, target = nodes[edge.source], nodes[edge.target]
    is_global = edge.kind == "global"
    text = f"the global {edge.name}" if is_global else reference_text(nodes, edge)
    if any(nodes[e.source].type.endswith("_lru_cache_wrapper") for e in way):
        return (
            "call cache_clear() when finished, or cache by a key that is not the object: "
            f"the cache refers to it by {text}"
        )
    if _is_mro(nodes, edge):
        return (
            f"define {source.label} once, at the top of a module: a class refers to itself, so "
            "that what its attributes and methods keep waits for the collector"
        )
    if (
        edge.kind != "local"
        and target.kind == "exception"
        and any(nodes[e.source].kind == "traceback" for e in way)
    ):
        return (
            f"keep the exception's text in {text}, or call "
            "traceback.clear_frames(error.__traceback__) when it is handled"
        )
    if edge.kind == "attribute" and any(
        e.name.strip(".") == "grad_fn" and e.target == edge.source for e in way
    ):
        return f"hand it to ctx.save_for_backward(...) in place of ctx.{edge.name} = ..."
    if edge.name.partition("[")[0].strip(".") in ("saved_tensors", "saved_variables"):
        # Autograd saves tensors only, and what it has saved can't be taken out.
        return (
            "hand ctx.save_for_backward(...) a detached tensor, as output.detach(): a view of "
            "an output leads back to the node that saves it"
        )
    special = _SPECIAL.get(edge.kind)
    if special is not None:
        return special(nodes, way, at)
    if source.kind == "frame":
        return f"close {source.label} when it is no longer needed, or `del {edge.name}` in it"
    if edge.kind == "item" and _is_bound(nodes, way, edge):
        if _hides_its_use(target):
            return f"pass {_noun(target)} when the partial is called: it is bound in it"
        return f"bind a weakref.ref to {_noun(target)} in the partial, or pass it when it is called"
    if edge.kind in ("value", "item", "member") and source is target:
        return f"don't keep {source.label} in itself, or empty it when finished"
    if _hides_its_use(target) or source.type == "tuple":
        weakly = "" if source.is_strong else ", or have what it holds refer back weakly"
        return f"set {text} to None when finished{weakly}"
    if edge.kind in ("value", "item", "member"):
        return (
            f"take {target.label} out of {source.label} when finished, or keep a weakref.ref to it"
        )
    return f"keep a weakref.ref to {_noun(target)} in {text}, or set {text} to None when finished"


def _noun(node: Node) -> str:
    return f"the {node.label}" if node.label.isidentifier() else "it"


def _bound_method(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    holder = way[at - 1]
    if nodes[holder.source].id == nodes[way[at].source].id:
        return "keep the function, not the bound method"
    where = reference_text(nodes, holder)
    if nodes[way[at].target].is_strong:
        return f"keep the function in {where}, not the bound method"
    return f"keep the function or a weakref.WeakMethod in {where}, not the bound method"


def _closure(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    edge = way[at]
    if edge.target == edge.source or nodes[edge.target].kind == "function":
        return f"pass {edge.name} as an argument: {nodes[edge.source].label} closes over it"
    function = nodes[edge.source].label
    if _hides_its_use(nodes[edge.target]):
        return f"pass {edge.name} as an argument: {function} closes over it"
    return f"let {function} close over weakref.ref({edge.name}), or pass {edge.name} as an argument"


def _local(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    edge = way[at]
    frame = nodes[edge.source].label
    if any(nodes[e.source].kind in ("exception", "traceback") for e in way):
        return (
            f"`del {edge.name}` in {frame} when the exception is handled, "
            "or keep its text instead of the exception"
        )
    if nodes[edge.source].label.startswith("frame of "):
        return f"`del {edge.name}` in {frame} when finished"
    return f"`del {edge.name}` in {frame}, or close() it when it is no longer needed"


def _default(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    edge = way[at]
    return f"don't make it the default of {edge.name}: pass it, or look it up when called"


def _callback(nodes: Sequence[Node], way: Sequence[Edge], at: int) -> str:
    return "use a plain function as the callback of the weak reference: this one leads back"


_SPECIAL: dict[str, Callable[[Sequence[Node], Sequence[Edge], int], str]] = {
    "self": _bound_method,
    "closure_variable": _closure,
    "local": _local,
    "default": _default,
    "callback": _callback,
}
