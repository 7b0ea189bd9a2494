# SPDX-License-Identifier: Apache-2.0
"""Which reference of a cycle through the autograd graph to break, and how.

Example:
    >>> from neutracer.heap.objects import Edge, Node
    >>> nodes = (
    ...     Node(0, "torch.Tensor", "Tensor", kind="tensor"),
    ...     Node(1, "torch.Tensor", "Tensor", kind="tensor"),
    ...     Node(2, "MulBackward0", "MulBackward0", kind="autograd"),
    ... )
    >>> edges = (
    ...     Edge(0, 1, ".grad", "autograd"),
    ...     Edge(1, 2, ".grad_fn", "autograd"),
    ...     Edge(2, 0, "._saved_self", "autograd"),
    ... )
    >>> choose_autograd_cut(Way(nodes, edges)).text
    'Tensor.grad'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neutracer.heap.advice import choose_cut, reference_text
from neutracer.heap.objects import Edge
from neutracer.heap.roots import Way
from neutracer.render.document import Place

__all__ = ["AutogradCut", "begin_at", "choose_autograd_cut"]

_HOOKS = (
    *("._backward_hooks", "._post_accumulate_grad_hooks"),
    *(".pre_hooks", ".post_hooks", ".tensor_hooks"),
)


@dataclass(frozen=True)
class AutogradCut:
    """The reference to break.

    Attributes:
        edge: Its position among the edges of the way.
        text: The reference in words: "Tensor.grad".
        advice: What to do, as a clause that begins with a verb.
        place: Where the code to change is defined; None if unknown.
    """

    edge: int
    text: str
    advice: str
    place: Place | None = None


def begin_at(way: Way) -> Way:
    """The same closed way, beginning where a reader recognises it best.

    That is a gradient or an attribute of a Function's ctx, so that all cycles of one
    shape read alike.
    """
    best = min(range(len(way.edges)), key=lambda at: (_rank(way, way.edges[at]), at))
    if best == 0:
        return way
    count = len(way.nodes)
    nodes = way.nodes[best:] + way.nodes[:best]
    edges = way.edges[best:] + way.edges[:best]
    return Way(
        tuple(replace(node, id=at) for at, node in enumerate(nodes)),
        tuple(replace(edge, source=at, target=(at + 1) % count) for at, edge in enumerate(edges)),
    )


def choose_autograd_cut(way: Way) -> AutogradCut:
    """The best reference of a closed way to break."""
    for choose in _CHOICES:
        cut = choose(way)
        if cut is not None:
            return cut
    plain = choose_cut(way.nodes, way.edges)
    return AutogradCut(
        plain.edge, plain.text, plain.advice, way.nodes[way.edges[plain.edge].source].place
    )


def _rank(way: Way, edge: Edge) -> int:
    if edge.kind == "autograd" and edge.name == ".grad":
        return 0
    if _is_ctx(way, edge):
        return 1
    return 2 if way.nodes[edge.source].kind == "tensor" else 3


def _is_ctx(way: Way, edge: Edge) -> bool:
    return edge.kind == "attribute" and way.nodes[edge.source].kind == "autograd"


def _cut(way: Way, at: int, advice: str) -> AutogradCut:
    edge = way.edges[at]
    source = way.nodes[edge.source]
    place = source.place if source.kind != "tensor" else None
    return AutogradCut(at, reference_text(way.nodes, edge), advice, place)


def _find(way: Way, matches: Callable[[Edge], bool]) -> int | None:
    return next((at for at, edge in enumerate(way.edges) if matches(edge)), None)


def _ctx(way: Way) -> AutogradCut | None:
    at = _find(way, lambda edge: _is_ctx(way, edge))
    if at is None:
        return None
    edge = way.edges[at]
    what = way.nodes[edge.target]
    if what.kind == "tensor":
        advice = (
            f"hand the tensor to ctx.save_for_backward(...) in place of ctx.{edge.name} = ...: "
            "it keeps an output without its graph"
        )
    else:
        advice = (
            f"keep no tensor that has a graph in ctx.{edge.name}: use ctx.save_for_backward(...), "
            "or detach() it"
        )
    return _cut(way, at, advice)


def _closure(way: Way) -> AutogradCut | None:
    """A hook, or an unpack function of a saved value, that closes over its own graph."""
    hook = _find(way, lambda edge: edge.kind == "autograd" and edge.name.startswith(_HOOKS))
    unpack = _find(way, lambda edge: edge.kind == "autograd" and "unpack_hook" in edge.name)
    if hook is None and unpack is None:
        return None
    at = _find(
        way,
        lambda edge: (
            edge.kind in ("closure_variable", "default", "self", "attribute")
            and way.nodes[edge.source].kind in ("function", "method", "object")
        ),
    )
    name = way.edges[at].name if at is not None else "it"
    is_strong = at is not None and way.nodes[way.edges[at].target].is_strong
    if hook is not None:
        weakly = "" if is_strong else f"let the hook close over weakref.ref({name}) instead, or "
        advice = f"{weakly}remove() the hook by its handle after backward"
    elif is_strong:
        advice = f"let the unpack hook of saved_tensors_hooks not refer to {name}"
    else:
        advice = (
            f"let the unpack hook of saved_tensors_hooks close over nothing of the graph: "
            f"detach() {name}, or weakref.ref({name})"
        )
    return _cut(way, at if at is not None else (hook if hook is not None else unpack) or 0, advice)


def _packed(way: Way) -> AutogradCut | None:
    at = _find(way, lambda edge: edge.kind == "autograd" and edge.name.endswith(" as packed"))
    if at is None:
        return None
    return _cut(
        way,
        at,
        "let the pack hook of saved_tensors_hooks return x.detach(), not a tensor with a graph",
    )


def _grad(way: Way) -> AutogradCut | None:
    at = _find(way, lambda edge: edge.kind == "autograd" and edge.name == ".grad")
    if at is None:
        return None
    return _cut(
        way,
        at,
        "use torch.autograd.grad(..., create_graph=True) in place of "
        "backward(create_graph=True), or set x.grad = None when the step is done",
    )


_CHOICES = (_grad, _ctx, _closure, _packed)
