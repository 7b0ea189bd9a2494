# SPDX-License-Identifier: Apache-2.0
"""`find_autograd_cycles`: cycles through autograd nodes, invisible to Python's collector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.heap.alive import OWN_FILES, Way, read_autograd, way_from_core
from neutracer.heap.cycles import Cut, cut_at, finding_of, node_from_core, reference_text
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Edge, TensorFacts, devices_sum, devices_text
from neutracer.render.document import Block, Document, Note, Paragraph, Place, Severity
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count

# ---- Advice ------------------------------------------------------------------------------

_HOOKS = (
    *("._backward_hooks", "._post_accumulate_grad_hooks"),
    *(".pre_hooks", ".post_hooks", ".tensor_hooks"),
)

# What to do about a gradient that has a graph, and about what a pack hook returned.
_GRAD = (
    "use torch.autograd.grad(..., create_graph=True) in place of "
    "backward(create_graph=True), or set x.grad = None when the step is done"
)
_PACKED = "let the pack hook of saved_tensors_hooks return x.detach(), not a tensor with a graph"


def begin_at(way: Way) -> Way:
    """Rotate a closed way to begin at a gradient or a ctx attribute, so that shapes compare."""
    best = min(range(len(way.edges)), key=lambda at: (_rank(way, way.edges[at]), at))
    if best == 0:
        return way
    count = len(way.nodes)
    nodes = way.nodes[best:] + way.nodes[:best]
    edges = way.edges[best:] + way.edges[:best]
    return Way(
        tuple(replace(node, id=at) for at, node in enumerate(nodes)),
        tuple(replace(edge, source=at, target=(at + 1) % count) for at, edge in enumerate(edges)),
        (way.cut - best) % count,
    )


def choose_autograd_cut(way: Way) -> Cut:
    """The best reference of a closed way to break.

    Example:
        >>> from neutracer.heap.objects import Node
        >>> nodes = (Node(0, "torch.Tensor", "Tensor", "tensor"), Node(1, "Mul", "Mul"))
        >>> edges = (Edge(0, 1, ".grad", "autograd"), Edge(1, 0, "._saved_self", "autograd"))
        >>> choose_autograd_cut(Way(nodes, edges)).text
        'Tensor.grad'
    """
    cut = _of_autograd(way, ".grad", _GRAD) or _ctx(way) or _closure(way)
    cut = cut or _of_autograd(way, " as packed", _PACKED)
    if cut is not None:
        return cut
    plain = cut_at(way.nodes, way.edges, way.cut)
    return replace(plain, place=way.nodes[way.edges[way.cut].source].place)


def _rank(way: Way, edge: Edge) -> int:
    if edge.kind == "autograd" and edge.name == ".grad":
        return 0
    if _is_ctx(way, edge):
        return 1
    return 2 if way.nodes[edge.source].kind == "tensor" else 3


def _is_ctx(way: Way, edge: Edge) -> bool:
    return edge.kind == "attribute" and way.nodes[edge.source].kind == "autograd"


def _cut(way: Way, at: int, advice: str) -> Cut:
    edge = way.edges[at]
    source = way.nodes[edge.source]
    place = source.place if source.kind != "tensor" else None
    return Cut(at, reference_text(way.nodes, edge), advice, place)


def _find(way: Way, matches: Callable[[Edge], bool]) -> int | None:
    return next((at for at, edge in enumerate(way.edges) if matches(edge)), None)


def _ctx(way: Way) -> Cut | None:
    at = _find(way, lambda edge: _is_ctx(way, edge))
    if at is None:
        return None
    edge = way.edges[at]
    if way.nodes[edge.target].kind == "tensor":
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


def _closure(way: Way) -> Cut | None:
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


def _of_autograd(way: Way, ending: str, advice: str) -> Cut | None:
    at = _find(way, lambda edge: edge.kind == "autograd" and edge.name.endswith(ending))
    return None if at is None else _cut(way, at, advice)


# ---- Autograd cycles ---------------------------------------------------------------------

# Cycles that are described; further ones are only counted.
_MOST_CYCLES = 2000

_GIB = 1 << 30


@dataclass(frozen=True)
class AutogradCycle(PlainRow):
    """Cycles of one shape that go through the autograd graph.

    Attributes:
        bytes: Storage bytes of the tensors that these cycles keep, each storage once.
        device_bytes: The same by device: `{"cuda:0": 67108864}`.
        count: How many cycles have this shape.
        chain: The cycle in words: "Tensor.grad → Tensor.grad_fn → … → Tensor".
        tensors: The largest tensors that the described cycle keeps.
        tensor_count: Tensors that these cycles keep.
        objects: Objects and graph nodes that refer to each other in the described cycle.
        cut: The reference to break, in words.
        advice: How to break it, as a clause that begins with a verb.
        place: Where the code to change is defined; None if unknown.
        collectable: False if the collector can never free it, because C++ hides one of its
            references.
        leaked: True if no module, thread or running frame leads to it any more: with
            `collectable` False its memory is lost until the process ends.
        graph: The described cycle as a graph that can be drawn.
    """

    bytes: int
    device_bytes: Mapping[str, int]
    count: int
    chain: str
    tensors: tuple[TensorFacts, ...]
    tensor_count: int
    objects: int
    cut: str
    advice: str
    place: Place | None
    collectable: bool
    leaked: bool
    graph: ObjectGraph

    @property
    def size_text(self) -> str:
        """The bytes by device: "64 MiB on cuda:0"."""
        return devices_text(self.device_bytes)

    @property
    def headline(self) -> str:
        """A one-line summary: the bytes kept, and until when."""
        one = self.count == 1
        cycles = "a cycle" if one else f"{self.count:,} cycles"
        verb = "keeps" if one else "keep"
        if self.collectable:
            fate = "until the collector runs" if self.leaked else "and will need the collector"
        elif self.leaked:
            fate = "forever: the collector can't see it"
        else:
            fate = "and will keep it forever once dropped"
        return f"{cycles} through the autograd graph {verb} {self.size_text} {fate}"

    def merged(self, other: AutogradCycle) -> AutogradCycle:
        """Add the figures of other cycles of this shape; the details stay this cycle's."""
        return replace(
            self,
            bytes=self.bytes + other.bytes,
            device_bytes=devices_sum(self.device_bytes, other.device_bytes),
            count=self.count + other.count,
            tensor_count=self.tensor_count + other.tensor_count,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class AutogradCyclesReport(Report, Sequence[AutogradCycle]):
    """The cycles through the autograd graph: a sequence, most bytes first.

    Attributes:
        cycles: The cycles by shape, most bytes first.
        leaked_bytes: Tensor bytes lost until the process ends.
        objects: Objects inspected.
        left_out_objects: Modules, their namespaces and types among them: cycles through
            these are not listed.
        untold_cycles: Cycles that were only counted.
        untold_bytes: Tensor bytes that they keep.
        unread: Saved values that this torch can't show without running hooks; cycles
            through these are missed.
        unfollowed: Nodes and tensors beyond the first 20,000 nodes of a graph; cycles
            through these are missed.
    """

    schema = "neutracer.autograd_cycles/1"

    cycles: tuple[AutogradCycle, ...]
    leaked_bytes: int
    objects: int
    left_out_objects: int
    untold_cycles: int
    untold_bytes: int
    unread: int
    unfollowed: int = 0

    @overload
    def __getitem__(self, index: int) -> AutogradCycle: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AutogradCycle]: ...
    def __getitem__(self, index: int | slice) -> AutogradCycle | Sequence[AutogradCycle]:
        return self.cycles[index]

    def __len__(self) -> int:
        return len(self.cycles)

    def document(self) -> Document:
        """The report as a page."""
        facts = (
            f"{format_count(self.objects, 'object')} inspected",
            f"{format_bytes(self.leaked_bytes)} lost forever",
        )
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (Paragraph("No cycle goes through the autograd graph."),)
        return Document(
            "Cycles through the autograd graph",
            facts,
            (*blocks, *self._rest()),
            more="the cycles one by one: .cycles, their pictures: .cycles[0].graph",
        )

    def _rest(self) -> tuple[Block, ...]:
        text = ""
        if self.untold_cycles:
            text = (
                f"{format_count(self.untold_cycles, 'more cycle')} with "
                f"{format_bytes(self.untold_bytes)} counted only. "
            )
        if self.unread:
            text += (
                f"{format_count(self.unread, 'saved value')} could not be read without "
                "running hooks; cycles through these are missed. "
            )
        if self.unfollowed:
            text += (
                f"The graph is large: {format_count(self.unfollowed, 'object')} "
                "and everything beyond were not inspected."
            )
        return (Paragraph(text),) if text else ()


def find_autograd_cycles() -> AutogradCyclesReport:
    """Find cycles through the autograd graph and Python's references together.

    C++ references are invisible to the collector, so it never frees these cycles: a gradient
    made with `create_graph=True` that leads back to its parameter, an output kept on `ctx`, a
    hook or a packed tensor that closes over its own graph. The search starts at all of Python's
    tensors and follows `.grad`, `.grad_fn`, `next_functions`, leaves, saved values (not
    unpacked), hooks, bases of views, and all Python references. It runs no code of the program,
    collects nothing, allocates nothing on a device, and its report keeps nothing alive. The GIL
    is held: some 0.3 microseconds per object, and 3 for each of at most 20,000 graph nodes.

    Returns:
        The cycles by shape, most bytes first, as a sequence and as a report.

    Raises:
        UnavailableError: torch is not imported, or a memory layout is unknown.

    Example:
        >>> import torch
        >>> x = torch.ones(3, requires_grad=True)
        >>> x.grad = torch.autograd.grad((x * x).sum(), x, create_graph=True)[0]
        >>> [cycle.collectable for cycle in find_autograd_cycles()]
        [False]
        >>> x.grad = None
    """
    if "torch" not in sys.modules:
        raise UnavailableError("torch in this process", "import torch first")
    links = read_autograd()
    found = core.autograd_loops(
        links.objects, links.kinds, links.links, links.names, OWN_FILES, _MOST_CYCLES
    )
    unread, unfollowed = links.unread, links.unfollowed
    del links
    cycles = _by_shape(found["loops"])
    return AutogradCyclesReport(
        cycles=tuple(cycles),
        leaked_bytes=sum(c.bytes for c in cycles if c.leaked and not c.collectable),
        objects=found["objects"],
        left_out_objects=found["cut"],
        untold_cycles=found["left_out"],
        untold_bytes=found["left_out_bytes"],
        unread=unread,
        unfollowed=unfollowed,
        findings=ranked(map(_cycle_finding, cycles)),
    )


def _by_shape(loops: Iterable[Mapping[str, Any]]) -> list[AutogradCycle]:
    """One entry per shape: equal types, names and state."""
    shapes: dict[tuple[Any, ...], AutogradCycle] = {}
    for plain in loops:
        way = begin_at(replace(way_from_core(plain["way"]), cut=plain["cut"]))
        key = (plain["hidden"], plain["alive"], *_shape(way))
        cycle = _cycle(plain, way)
        shapes[key] = shapes[key].merged(cycle) if key in shapes else cycle
    return sorted(shapes.values(), key=lambda cycle: -cycle.bytes)


def _shape(way: Way) -> Iterator[tuple[str, str]]:
    for edge in way.edges:
        named = edge.name if edge.kind not in ("item", "value", "key") else edge.kind
        yield way.nodes[edge.source].type, named


def _cycle(plain: Mapping[str, Any], way: Way) -> AutogradCycle:
    cut = choose_autograd_cut(way)
    edges = list(way.edges)
    edges[cut.edge] = replace(edges[cut.edge], cut=True)
    kept = [node_from_core(at, row, {}) for at, row in enumerate(plain["kept"])]
    tensors = tuple(node.tensor for node in kept if node.tensor is not None)
    notes = []
    if plain["objects"] > len(way.nodes):
        notes.append(
            f"{format_count(plain['objects'], 'object')} refer to each other; "
            "a shortest cycle through them is drawn."
        )
    cycle = AutogradCycle(
        bytes=plain["bytes"],
        device_bytes=plain["devices"],
        count=1,
        chain=way.round_trip,
        tensors=tensors,
        tensor_count=plain["tensors"],
        objects=plain["objects"],
        cut=cut.text,
        advice=cut.advice,
        place=cut.place,
        collectable=not plain["hidden"],
        leaked=not plain["alive"],
        graph=ObjectGraph(way.nodes, tuple(edges), notes=tuple(notes)),
    )
    title = f"{cycle.headline}\nBreak it: {cycle.advice}"
    return replace(cycle, graph=replace(cycle.graph, title=title))


def _cycle_finding(cycle: AutogradCycle) -> Finding:
    kind = "collectable" if cycle.collectable else "leaked" if cycle.leaked else "uncollectable"
    more: tuple[Note, ...] = ()
    if cycle.tensor_count > 3:
        more = (Note(f"{format_count(cycle.tensor_count, 'tensor')} in all"),)
    return finding_of(cycle, f"autograd_cycle_{kind}", _severity(cycle), *more)


def _severity(cycle: AutogradCycle) -> Severity:
    """Leaked is worse than uncollectable, which is worse than waiting for the collector."""
    large = cycle.bytes >= _GIB
    if cycle.collectable:
        return Severity.MODERATE if large else Severity.INFO
    if cycle.leaked:
        return Severity.SEVERE if large else Severity.SERIOUS
    return Severity.SERIOUS if large else Severity.MODERATE
