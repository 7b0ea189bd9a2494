# SPDX-License-Identifier: Apache-2.0
"""Reference cycles that hold tensors: `TensorCycle`, its chain, the cut, and advice."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from neutracer._native import core
from neutracer.arguments import reader_name
from neutracer.errors import UnavailableError
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Allocation, Edge, Node, TensorFacts, devices_sum, devices_text
from neutracer.render.document import Note, Place, Severity, clean
from neutracer.render.report import Finding, PlainRow
from neutracer.trace.stacks import Owner, origin_here
from neutracer.units import format_bytes, format_count, format_duration_us

# ---- Advice ------------------------------------------------------------------------------

# The core chooses the references to break, and proves that without them no cycle is left; here
# they get words. What only a library's own code could break, a collection has to free.


@dataclass(frozen=True)
class Cut(PlainRow):
    """A reference to break.

    Attributes:
        edge: Its position among the edges of its way round.
        text: The reference in words: "Callback.view_callback".
        advice: What to do, as a clause that begins with a verb.
        place: Where the object that holds it, or its keeper, is defined; None if unknown.
        package: The installed package whose code holds it; "" for the program's own.
    """

    edge: int
    text: str
    advice: str
    place: Place | None = None
    package: str = ""


def reference_text(nodes: Sequence[Node], edge: Edge) -> str:
    """A reference in words: "Callback.view_callback", "frame of step local x"."""
    label = nodes[edge.source].label
    text = edge.text
    return f"{label}{text}" if text.startswith((".", "[")) or not text else f"{label} {text}"


def cut_at(nodes: Sequence[Node], way: Sequence[Edge], at: int, references: int = 1) -> Cut:
    """A reference of a cycle as the one to break.

    Example:
        >>> nodes = (Node(0, "app.Callback", "Callback"), Node(1, "method", "m", kind="method"))
        >>> edges = (Edge(0, 1, "view", "attribute"), Edge(1, 0, "__self__", "self"))
        >>> print(cut_at(nodes, edges, 1).advice)
        keep the function or a weakref.WeakMethod in Callback.view, not the bound method
    """
    # A container has no place of its own: it takes its keeper's.
    before = (nodes[way[at - back].source].place for back in range(len(way)))
    place = next((known for known in before if known is not None), None)
    advice = _advice(nodes, way, at)
    if references > 1:
        advice += f" ({references} references to it)"
    package = "" if place is None else _package(place.filename)
    return Cut(at, reference_text(nodes, way[at]), advice, place, package)


def _package(filename: str) -> str:
    origin = origin_here(filename)
    if origin.owner is Owner.LIBRARY:
        return origin.package
    return {Owner.TORCH: "torch", Owner.PLUMBING: "Python"}.get(origin.owner, "")


def _advice_on(label: str, cuts: Sequence[Cut], is_proved: bool) -> str:
    """What to do about a cycle, all of it: the cuts, or a collection where the program's own code
    can't make them."""
    steps = "; and ".join(dict.fromkeys(cut.advice for cut in cuts))
    packages = list(dict.fromkeys(cut.package for cut in cuts if cut.package))
    if packages:
        texts = " and ".join(dict.fromkeys(cut.text for cut in cuts if cut.package))
        return (
            f"call gc.collect() when finished with {label}: {texts}, set in "
            f"{' and '.join(packages)}, would have to go"
        )
    if not is_proved:
        return f"call gc.collect() when finished with {label}: more is needed than to {steps}"
    return steps


def _hides_its_use(target: Node) -> bool:
    """True if a weak reference can't help: the type allows none, or it would die at once."""
    return target.is_strong or target.type == "functools.partial"


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
    if source.kind == "type" and edge.name == "__mro__":
        return (
            f"define {source.label} once, at the top of a module: a class refers to itself, so "
            "the objects that it keeps wait for the collector"
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
        # Autograd saves tensors only, and saved tensors can't be removed.
        return (
            "hand ctx.save_for_backward(...) a detached tensor, as output.detach(): a view of "
            "an output leads back to the node that saves it"
        )
    special = _SPECIAL.get(edge.kind)
    if special is not None:
        return special(nodes, way, at)
    if source.kind == "frame":
        return f"close {source.label} when it is no longer needed, or `del {edge.name}` in it"
    if edge.kind == "item" and nodes[way[at - 1].source].type == "functools.partial":
        if _hides_its_use(target):
            return f"pass {_noun(target)} when the partial is called: it is bound in it"
        return f"bind a weakref.ref to {_noun(target)} in the partial, or pass it when it is called"
    if edge.kind in ("value", "item", "member") and source is target:
        return f"don't keep {source.label} in itself, or empty it when finished"
    if _hides_its_use(target) or source.type == "tuple":
        weakly = "" if source.is_strong else ", or make the reference back to it weak"
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


_SPECIAL: dict[str, Callable[[Sequence[Node], Sequence[Edge], int], str]] = {
    "self": _bound_method,
    "closure_variable": _closure,
    "local": _local,
    "default": lambda nodes, way, at: (
        f"don't make it the default of {way[at].name}: pass it, or look it up when called"
    ),
    "callback": lambda nodes, way, at: (
        "use a plain function as the weak reference's callback: this one refers back"
    ),
}


# ---- Cycles ------------------------------------------------------------------------------

#: The core's filters: any device; any device that is neither the CPU nor "meta".
ANY_DEVICE = -1
ACCELERATORS = -2

# Objects of a chain that are shown from its beginning and from its end.
_CHAIN_ENDS = (4, 2)


@dataclass(frozen=True)
class TensorCycle(PlainRow):
    """Reference cycles of one shape that keep tensors.

    Attributes:
        signature: The shape in 16 hexadecimal digits: the types and names in the cycle,
            without positions and keys. Equal in every run of a program.
        bytes: Storage bytes of the tensors that these cycles keep, each storage once.
        device_bytes: The same by device: `{"cuda:0": 67108864}`.
        count: How many cycles have this shape.
        chain: The cycle in words: "Callback.view_callback → method view.__self__ → Callback".
        tensors: The largest tensors that the described cycle keeps.
        tensor_count: Tensors that these cycles keep.
        objects: Objects that refer to each other in the described cycle.
        cuts: The references to break, all of them.
        is_proved: Whether no cycle that keeps these tensors is left without these references;
            False where more than eight would be needed, or the cycle is of too many objects.
        cut: The references to break, in words.
        advice: How to break it, as a clause that begins with a verb.
        place: Where the object whose reference should be broken, or its keeper, is defined;
            None if unknown.
        graph: The described cycle as a graph that can be drawn.
        garbage: True if only the collector can still free it; False while the program
            refers to it.
        resurrected: Cycles that survived the collection because a finalizer brought them back.
    """

    signature: str
    bytes: int
    device_bytes: Mapping[str, int]
    count: int
    chain: str
    tensors: tuple[TensorFacts, ...]
    tensor_count: int
    objects: int
    cuts: tuple[Cut, ...]
    is_proved: bool
    cut: str
    advice: str
    place: Place | None
    graph: ObjectGraph
    garbage: bool
    resurrected: int = 0

    def __str__(self) -> str:
        lines = [self.headline, f"  {self.chain}"]
        lines += [f"  keeps {tensor_text(tensor)}" for tensor in self.tensors[:3]]
        if self.tensor_count > 3:
            lines.append(f"  {format_count(self.tensor_count, 'tensor')} in all")
        where = f"   ({clean(self.place.location)})" if self.place is not None else ""
        lines.append(f"  break it: {self.advice}{where}")
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """A one-line summary: the bytes kept, where, and until when."""
        cycles = "a reference cycle" if self.count == 1 else f"{self.count:,} reference cycles"
        verb = "keeps" if self.count == 1 else "keep"
        until = (
            "until the garbage collector runs" if self.garbage else "and will need the collector"
        )
        if self.resurrected >= self.count:
            until = "after a collection: a finalizer brought it back"
        elif self.resurrected:
            until += f" ({self.resurrected:,} were brought back by a finalizer)"
        return f"{cycles} {verb} {self.size_text} {until}"

    @property
    def size_text(self) -> str:
        """The bytes by device: "64 MiB on cuda:0"."""
        return devices_text(self.device_bytes)

    def merged(self, other: TensorCycle) -> TensorCycle:
        """Add the figures of other cycles of this shape; the details stay this cycle's."""
        return self.with_figures_of(
            {
                "bytes": other.bytes,
                "devices": other.device_bytes,
                "count": other.count,
                "tensors": other.tensor_count,
                "survivors": other.resurrected,
            }
        )

    def with_figures_of(self, plain: Mapping[str, Any]) -> TensorCycle:
        """As `merged`, from the core's plain figures."""
        return replace(
            self,
            bytes=self.bytes + plain["bytes"],
            device_bytes=devices_sum(self.device_bytes, plain["devices"]),
            count=self.count + plain["count"],
            tensor_count=self.tensor_count + plain["tensors"],
            resurrected=self.resurrected + plain["survivors"],
        )

    def _repr_html_(self) -> str:
        return self.graph._repr_html_()


def by_shape(*groups: Iterable[TensorCycle]) -> tuple[TensorCycle, ...]:
    """The cycles of all groups, one for each shape with the figures of all, most bytes first."""
    shapes: dict[str, TensorCycle] = {}
    for cycle in chain(*groups):
        known = shapes.get(cycle.signature)
        shapes[cycle.signature] = cycle if known is None else known.merged(cycle)
    return tuple(sorted(shapes.values(), key=lambda cycle: -cycle.bytes))


def device_filter(device: object) -> tuple[int, int]:
    """The core's filter, type and index, for a device as torch names it, "all" or None."""
    if device is None:
        return ACCELERATORS, -1
    name, colon, index = str(device).partition(":")
    if name == "all" and not colon:
        return ANY_DEVICE, -1
    known_index = index.isascii() and index.isdecimal() and len(index) <= 4
    if name not in _DEVICE_TYPES or (colon and not known_index):
        known = ", ".join(repr(known) for known in _DEVICE_TYPES)
        raise ValueError(
            f"unknown device {device!r}: use None (any accelerator), 'all', or one of {known}, "
            "with ':N' after it for one of several"
        )
    return _DEVICE_TYPES[name], int(index) if index else -1


def least_bytes(min_bytes: int) -> int:
    """Validate `min_bytes` and clamp it to 64 bits."""
    try:
        bound = operator.index(min_bytes)
    except TypeError:
        name = type(min_bytes).__name__
        raise TypeError(f"min_bytes must be a number of bytes, an int, not {name}") from None
    if bound < 0:
        raise ValueError(f"min_bytes is {bound}: it must not be negative")
    return min(bound, (1 << 64) - 1)


def prepare_heap() -> None:
    """Learn torch's tensor layout and check this Python's heap layout."""
    if sys.modules.get("torch") is None:
        raise UnavailableError("torch in this process", "import torch first")
    core.heap_prepare()
    core.names_prepare()
    core.tensor_prepare()


def garbage_held(device_type: int, index: int) -> int:
    """Tensor bytes that only a collection would free, on the devices of a `device_filter`."""
    found = core.find_cycles(device_type, index, 0, 0, False)["garbage"]
    return 0 if found is None else int(found["bytes"] + found["loose_bytes"])


def finding_of(cycle: Any, kind: str, severity: Severity, *more: Note) -> Finding:
    """A `TensorCycle`, or an `AutogradCycle`, as a finding with more evidence."""
    kept = [Note(f"keeps {tensor_text(tensor)}") for tensor in cycle.tensors[:3]]
    return Finding(
        kind=kind,
        severity=severity,
        bytes=cycle.bytes,
        message=cycle.headline,
        evidence=(Note(cycle.chain), *kept, *more),
        advice=(Note(f"break it: {cycle.advice}", place=cycle.place),),
    )


# c10::DeviceType.
_DEVICE_TYPES = {
    "cpu": 0,
    "cuda": 1,
    "hip": 6,
    "xla": 9,
    "xpu": 12,
    "mps": 13,
    "meta": 14,
    "hpu": 15,
    "mtia": 19,
    "privateuseone": 20,
}


def tensor_text(tensor: TensorFacts) -> str:
    """A tensor in one line: "Tensor [4096, 4096] float32 cuda:0, 64 MiB, allocated at …"."""
    shape = ", ".join(str(size) for size in tensor.shape)
    text = f"Tensor [{shape}] {tensor.dtype} {tensor.device}, {format_bytes(tensor.storage_bytes)}"
    if tensor.frames:
        text += f", allocated at {tensor.frames[0]}"
    if tensor.age_us is not None:
        text += f" {format_duration_us(tensor.age_us)} before"
    return text


def cycle_from_core(
    plain: Mapping[str, Any],
    *,
    garbage: bool,
    allocations: Mapping[int, Allocation] | None = None,
) -> TensorCycle:
    """Build a cycle from one that `core.find_cycles` found in garbage, or among what is alive."""
    nodes = tuple(
        node_from_core(number, row, allocations or {}) for number, row in enumerate(plain["nodes"])
    )
    edges = [Edge(s, t, clean(name), kind, cycle) for s, t, name, kind, cycle in plain["edges"]]
    way = [edge for edge in edges if edge.in_cycle]
    cuts = tuple(map(_cut_from_core, plain["cuts"]))
    edges[cuts[0].edge] = replace(way[cuts[0].edge], cut=True)
    tensors = sorted(
        (node.tensor for node in nodes if node.tensor is not None),
        key=lambda tensor: -tensor.storage_bytes,
    )
    cycle = TensorCycle(
        signature=f"{plain['signature']:016x}",
        bytes=plain["bytes"],
        device_bytes=plain["devices"],
        count=plain["count"],
        chain=_chain(nodes, way),
        tensors=tuple(tensors),
        tensor_count=plain["tensors"],
        objects=plain["one_objects"],
        cuts=cuts,
        is_proved=plain["proved"],
        cut=" and ".join(dict.fromkeys(cut.text for cut in cuts)),
        advice=_advice_on(nodes[0].label, cuts, plain["proved"]),
        place=cuts[0].place,
        graph=ObjectGraph(nodes, tuple(edges), notes=_notes(plain)),
        garbage=garbage,
        resurrected=plain["survivors"],
    )
    return replace(cycle, graph=replace(cycle.graph, title=_title(cycle, way)))


def _cut_from_core(plain: Sequence[Any]) -> Cut:
    rows, edges, at, references = plain
    nodes = [node_from_core(number, row, {}) for number, row in enumerate(rows)]
    way = [Edge(s, t, clean(name), kind, True) for s, t, name, kind, _ in edges]
    return cut_at(nodes, way, at, references)


# Cycles in one graph; its notes count the rest.
_MOST_DRAWN = 12


def cycles_graph(cycles: Sequence[TensorCycle]) -> ObjectGraph:
    """Several cycles, the most important first, as one graph with advice on each in its notes."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    notes = []
    for cycle in cycles[:_MOST_DRAWN]:
        base = len(nodes)
        nodes += [replace(node, id=base + node.id) for node in cycle.graph.nodes]
        edges += [
            replace(edge, source=base + edge.source, target=base + edge.target)
            for edge in cycle.graph.edges
        ]
        notes.append(
            f"{cycle.size_text}, {cycle.count:,} x: {cycle.chain}. Break it: {cycle.advice}."
        )
    if len(cycles) > _MOST_DRAWN:
        notes.append(f"{format_count(len(cycles) - _MOST_DRAWN, 'more shape')} not drawn.")
    total = format_bytes(sum(cycle.bytes for cycle in cycles))
    title = f"{format_count(len(cycles), 'shape')} of reference cycles: {total} of tensors"
    return ObjectGraph(tuple(nodes), tuple(edges), title, tuple(notes))


def node_from_core(number: int, row: Sequence[Any], allocations: Mapping[int, Allocation]) -> Node:
    """Build a node from the core's description."""
    type_name, label, kind, file, line, count, tensor, is_strong = row
    facts = None
    if tensor is not None:
        shape, dtype, device, nbytes, storage, data_ptr, requires_grad = tensor
        allocation = allocations.get(data_ptr, Allocation(()))
        known = (shape, dtype, device, nbytes, storage, data_ptr, requires_grad)
        facts = TensorFacts(*known, allocation.frames, allocation.age_us)
    if kind == "folded":
        label = f"… {count:,} more objects …"
    # The program's names go into sentences, which warnings and logs show as they are.
    label = clean(label)
    return Node(
        id=number,
        type=clean(type_name),
        label=label,
        kind=kind,
        place=Place(label, reader_name(file), line) if file else None,
        bytes=facts.storage_bytes if facts is not None else 0,
        count=count,
        tensor=facts,
        is_strong=is_strong,
    )


def _chain(nodes: Sequence[Node], way: Sequence[Edge]) -> str:
    parts = [reference_text(nodes, edge) for edge in way]
    head, tail = _CHAIN_ENDS
    if len(parts) > head + tail + 1:
        left_out = sum(nodes[edge.source].count for edge in way[head:-tail])
        parts[head:-tail] = [f"… {left_out:,} more …"]
    return " → ".join([*parts, nodes[way[0].source].label])


def _notes(plain: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    shown = sum(row[6] is not None for row in plain["nodes"])
    if plain["one_tensors"] > shown:
        hidden = format_count(plain["one_tensors"] - shown, "smaller tensor")
        notes.append(
            f"{hidden} that it also keeps {'is' if hidden[:2] == '1 ' else 'are'} not drawn."
        )
    if plain["one_objects"] > plain["length"]:
        notes.append(
            f"{format_count(plain['one_objects'], 'object')} refer to each other; "
            "the shortest cycle through them is drawn."
        )
    return tuple(notes)


def _title(cycle: TensorCycle, way: Sequence[Edge]) -> str:
    repeats = "" if cycle.count == 1 else f"   (seen {cycle.count:,} times)"
    labels = [cycle.graph.nodes[edge.source].label for edge in way]
    if len(labels) > 4:
        labels[2:-1] = ["…"]
    round_trip = " → ".join([*labels, labels[0]])
    until = "until the collector runs" if cycle.garbage else "for as long as it lives"
    where = ""
    if cycle.place is not None:
        where = f"   {os.path.basename(cycle.place.filename)}:{cycle.place.line}"
    return (
        f"{round_trip}   keeps {cycle.size_text} {until}{repeats}\nBreak it: {cycle.advice}{where}"
    )
