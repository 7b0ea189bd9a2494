# SPDX-License-Identifier: Apache-2.0
"""`why_alive`: the shortest reference chains from roots to an object, autograd's among them."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType, GetSetDescriptorType
from typing import Any

from neutracer._native import core
from neutracer.arguments import running_shell, whole_number
from neutracer.errors import UnavailableError
from neutracer.heap.cycles import node_from_core, reference_text, tensor_text
from neutracer.heap.graph import ObjectGraph
from neutracer.heap.objects import Edge, Node
from neutracer.render.document import Block, Document, Note, Paragraph, Severity, clean
from neutracer.render.report import Finding, Report
from neutracer.units import format_count

# ---- Autograd ----------------------------------------------------------------------------

# References held by PyTorch's autograd graph in C++ are invisible to the garbage collector. They
# are read through the descriptors of torch's base classes, so that no subclass, mode or hook of the
# program runs: `.grad`, `.grad_fn`, `._base` and hooks of a tensor; `next_functions`, the leaf of
# an `AccumulateGrad`, and saved values, packed or not, without unpacking them.

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

    def triples(self) -> Iterator[tuple[int, int, int]]:
        """Each reference by its three numbers."""
        numbers = iter(self.links)
        return zip(numbers, numbers, numbers, strict=True)


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
    with contextlib.ExitStack() as stack:
        # No override of the program runs.
        for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
            guard = getattr(torch._C, name, None)  # type: ignore[union-attr]
            if guard is not None:
                stack.enter_context(guard())
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


# How the nodes of PyTorch's operators name what they save of their own results.
_OWN_RESULTS = ("._saved_result", "._saved_output")


def untrained_memory(trained: Collection[int]) -> tuple[int, ...]:
    """Where the memory begins that autograd has for parameters that nothing trains.

    It is their gradients, and what nodes save, of their own or of each other's results, from which
    no trained parameter can be reached, only others. A leaf that is no `nn.Parameter` may be what
    gradients are wanted for. What another node saves is left out, and what the graph was given.

    Args:
        trained: Ids of the parameters of all optimizers.

    Returns:
        Addresses, sorted; empty where a graph is too large to follow.
    """
    links = read_autograd()
    if links.unfollowed:
        return ()
    parameter = sys.modules["torch"].nn.Parameter
    idle = [isinstance(one, parameter) and id(one) not in trained for one in links.objects]
    leads = _leading_nodes(links, idle)
    made: set[int] = set()
    saved: set[int] = set()
    gradients: set[int] = set()
    others: set[int] = set()
    for source, target, name in links.triples():
        text = links.names[name]
        if text == ".grad_fn" and target not in leads:
            made.add(source)
        elif text == ".grad" and idle[source]:
            gradients.add(target)
        if links.kinds[source] != _NODE or links.kinds[target] != _TENSOR:
            continue
        if source in leads or text == ".variable":
            others.add(target)
        else:
            saved.add(target)
            if text.startswith(_OWN_RESULTS):
                made.add(target)
    pointers = core.data_pointers(links.objects)
    found = {pointers[at] for at in saved & made} - {pointers[at] for at in others}
    found.update(pointers[at] for at in gradients)
    return tuple(sorted(found - {0}))


def _leading_nodes(links: AutogradLinks, idle: Sequence[bool]) -> set[int]:
    """The nodes from which a leaf is reached that is not idle."""
    users: dict[int, list[int]] = {}
    left: list[int] = []
    for source, target, name in links.triples():
        if links.kinds[source] == links.kinds[target] == _NODE:
            users.setdefault(target, []).append(source)
        elif links.names[name] == ".variable" and not idle[target]:
            left.append(source)
    found = set(left)
    while left:
        more = [user for user in users.get(left.pop(), ()) if user not in found]
        found.update(more)
        left += more
    return found


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
        self.objects, nodes = core.heap_tensors()
        self.kinds = bytearray([_TENSOR]) * len(self.objects)
        self.links = array("I")
        self.names: dict[str, int] = {}
        self.unread = 0
        self.unfollowed = 0
        self._nodes_left = _MOST_NODES if nodes < _MOST_OBJECTS else 0
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


# ---- Roots -------------------------------------------------------------------------------

# Python's internal steps are merged: `function → __closure__ → [0] → cell_contents` is shown as
# `function → closure x`.

#: Frames of these files are neutracer's own.
OWN_FILES = os.path.dirname(os.path.dirname(read_autograd.__code__.co_filename)) + os.sep

_SUSPENDED = ("gi_frame", "cr_frame", "ag_frame")

# Steps of a chain that are shown from its beginning and from its end.
_CHAIN_ENDS = (7, 4)


@dataclass(frozen=True)
class Way:
    """Nodes, each with an edge to the next; a closed way's last edge leads to the first node, and
    `cut` is the place of the edge to break."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    cut: int = 0

    @property
    def chain(self) -> str:
        """One line: "module train → TRAINER → .model → ['weight']"."""
        root = self.nodes[0]
        parts = [root.label]
        if root.kind == "root" and root.place is not None:
            parts = [f"{root.label}, {os.path.basename(root.place.filename)}:{root.place.line}"]
        for edge in self.edges:
            label = self.nodes[edge.target].label
            if edge.kind == "other" or not edge.text or self.nodes[edge.source].kind == "folded":
                parts.append(label)
            else:
                parts.append(edge.name if edge.kind == "global" else edge.text)
        head, tail = _CHAIN_ENDS
        if len(parts) > head + tail + 1:
            skipped = sum(node.count for node in self.nodes[head : len(parts) - tail])
            parts[head:-tail] = [f"… {skipped:,} more …"]
        return " → ".join(parts)

    @property
    def round_trip(self) -> str:
        """A closed way: "Tensor.grad → Tensor.grad_fn → … → Tensor"."""
        parts = [reference_text(self.nodes, edge) for edge in self.edges]
        head, tail = _CHAIN_ENDS
        if len(parts) > head + tail + 1:
            parts[head:-tail] = [f"… {len(parts) - head - tail:,} more …"]
        return " → ".join([*parts, self.nodes[0].label])


@dataclass(frozen=True)
class Found:
    """The result of one search for an object's holders."""

    target: Node
    ways: tuple[Way, ...]  # The shortest ways to it, shortest first.
    # True if no module, thread or frame leads to the object: the ways then begin at objects with an
    # unknown holder.
    loose: bool
    referrers: int  # References found by the walk, including those from dead objects.
    # References that neither Python nor autograd accounts for, less those that may belong to the
    # call itself.
    unexplained: int
    native: int  # Further references that C++ holds on a tensor.
    objects: int
    unfollowed: int  # Nodes and tensors beyond the first 20,000 nodes of a graph.


def find_ways(
    targets: list[Any],
    most: int,
    links: AutogradLinks | None = None,
    foreign: tuple[str, ...] = (),
) -> list[Found | None]:
    """For each object the shortest ways to it, by one walk of the heap; None for an object to which
    nothing leads that the collector tracks.
    """
    if links is None:
        links = read_autograd()
    found = core.alive_ways(
        targets, links.objects, links.kinds, links.links, links.names, OWN_FILES, most, foreign
    )
    return [_found(one, links.unfollowed) if one["walked"] else None for one in found]


def _found(plain: Mapping[str, Any], unfollowed: int) -> Found:
    return Found(
        target=node_from_core(0, plain["target"][0], {}),
        ways=tuple(way_from_core(way) for way in plain["ways"]),
        loose=plain["loose"],
        referrers=plain["referrers"],
        unexplained=max(0, plain["python"] - plain["call"]),
        native=plain["native"],
        objects=plain["objects"],
        unfollowed=unfollowed,
    )


def way_from_core(plain: Mapping[str, Any]) -> Way:
    """Build a way from the core's description, with Python's internal steps merged."""
    nodes = [node_from_core(at, row, {}) for at, row in enumerate(plain["nodes"])]
    threads = _thread_names(set(plain["threads"]) - {0})
    nodes = [
        _named_root(node, threads.get(thread, ""))
        for node, thread in zip(nodes, plain["threads"], strict=True)
    ]
    edges = [Edge(s, t, clean(name), kind, cycle) for s, t, name, kind, cycle in plain["edges"]]
    kept: list[Node] = []
    steps: list[Edge] = []
    at = 0
    while at < len(nodes):
        kept.append(replace(nodes[at], id=len(kept)))
        if at == len(edges):
            break
        length, edge = _step(nodes, edges[at : at + 3])
        steps.append(replace(edge, source=len(kept) - 1, target=len(kept)))
        at += length
    if steps and len(edges) == len(nodes):
        steps[-1] = replace(steps[-1], target=0)
    return Way(tuple(kept), tuple(steps))


def _step(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[int, Edge]:
    """The number of raw references in the next step, and their merged edge."""
    kinds = tuple(edge.kind for edge in edges)
    first = edges[0]
    if kinds[:2] == ("instance_dict", "value"):
        name = edges[1].name
        if len(name) >= 2 and name[0] == name[-1] == "'":
            name = name[1:-1]
        holder = nodes[first.source].kind
        kind = {"module": "global", "type": "class"}.get(holder, "attribute")
        return 2, replace(first, name=name, kind=kind)
    if kinds[:2] == ("field", "value") and first.name == "f_locals":
        # The variables of a class body or of exec() are in a dict.
        return 2, replace(first, name=edges[1].name.strip("'"), kind="local")
    if kinds == ("closure", "item", "cell"):
        return 3, replace(first, name=edges[2].name, kind="closure_variable")
    if kinds[:2] == ("local", "cell"):
        return 2, first
    if kinds[:2] == ("frame", "local") and first.name in _SUSPENDED:
        # Up to 3.10 a generator's variables belong to a frame object of their own.
        return 2, replace(edges[1], source=first.source)
    return 1, first


def _named_root(node: Node, thread: str) -> Node:
    if node.kind != "root":
        return node
    if node.label == "thread":
        return replace(node, label=f"thread {thread}" if thread else "main thread")
    return replace(node, label=f"{node.label} in thread {thread}") if thread else node


def _thread_names(idents: set[int]) -> dict[int, str]:
    threading = sys.modules.get("threading")
    active = getattr(threading, "_active", {}) if idents else {}
    main = getattr(getattr(threading, "_main_thread", None), "ident", None)
    names = {}
    for ident in idents - {main}:
        thread = active.get(ident)
        name = vars(thread).get("_name") if thread is not None else None
        names[ident] = name if isinstance(name, str) else f"{ident:#x}"
    return names


# ---- Alive -------------------------------------------------------------------------------

_MOST_PATHS = 100

# Extra ways to fetch: those through a running function's globals repeat its module's.
_SPARE_WAYS = 4

# Packages whose running frames hold what a cell does, and no more than that.
_SHELLS = ("IPython", "ipykernel")


@dataclass(frozen=True, kw_only=True, repr=False)
class AliveReport(Report):
    """The reference chains that keep an object alive, shortest first.

    Attributes:
        target: The object, in a few words.
        bytes: Storage bytes of a tensor; else 0.
        chains: The chains in words, from a module, thread or frame, or else from an object
            with an unknown holder.
        reachable: True if a module, a thread or a running frame leads to the object.
        unexplained_references: References that neither Python nor autograd accounts for:
            C code, a running function's temporary value, or a call's argument.
        cxx_references: References to a tensor in C++ beyond those of the visible autograd graph.
        objects: Objects inspected.
        unfollowed: Nodes and tensors beyond the first 20,000 nodes of an autograd graph;
            chains through these are missed.
        graph: The chains as one graph that can be drawn.
    """

    schema = "neutracer.alive/1"

    target: str
    bytes: int
    chains: tuple[str, ...]
    reachable: bool
    unexplained_references: int
    cxx_references: int
    objects: int
    graph: ObjectGraph
    unfollowed: int = 0

    def document(self) -> Document:
        """The report as a page."""
        facts = (
            format_count(len(self.chains), "chain") if self.reachable else "nothing leads to it",
            f"{format_count(self.objects, 'object')} inspected",
        )
        blocks: tuple[Block, ...] = self.finding_blocks()
        if not blocks:
            blocks = (
                Paragraph(
                    "No object tracked by the collector refers to it, and no other reference "
                    "is known: it is freed when you drop yours."
                ),
            )
        if self.unfollowed:
            blocks += (
                Paragraph(
                    f"The autograd graph is large: {format_count(self.unfollowed, 'object')} "
                    "and everything beyond were not inspected."
                ),
            )
        return Document(f"Why {self.target} is alive", facts, blocks, more="all of them: .chains")

    def picture(self) -> str:
        """Several chains, drawn; of one the text says it all."""
        return self.graph._repr_html_() if len(self.chains) > 1 else ""


def why_alive(obj: object, max_paths: int = 3) -> AliveReport:
    """Find the references that keep an object alive.

    The whole heap is walked in C with the GIL held, some 0.3 microseconds per object, and
    autograd's references are included. Chains begin at modules, at threads, and at the variables
    of running functions, the caller's included; the call itself does not count.

    Args:
        obj: The object.
        max_paths: The most chains, 1 to 100. They end in different referrers, or are different
            names in one dict.

    Returns:
        The chains, shortest first; those from the variables of the asking function come behind
        others, and a notebook's outputs and past exceptions last. The report refers to no object
        of the program.

    Raises:
        ValueError: max_paths is out of range.
        UnavailableError: A memory layout is unknown.

    Example:
        >>> cache = {"last": [object()]}
        >>> def read(entry):
        ...     return why_alive(entry).chains[-1]
        >>> read(cache["last"][0]).partition(",")[0]
        'frame of read'
    """
    max_paths = whole_number("max_paths", max_paths)
    if not 1 <= max_paths <= _MOST_PATHS:
        raise ValueError(f"max_paths is {max_paths}: it must be 1 to {_MOST_PATHS}")
    # The list keeps the object out of this call's variables.
    target = [obj]
    del obj
    names = _names_in_dicts(target)
    # The program's function that asks.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FILES):
        frame = frame.f_back
    asking = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno or 0)
    del frame
    (found,) = find_ways(target, max_paths + _SPARE_WAYS)
    if found is None:
        return AliveReport(
            target=f"this {type(target[0]).__name__}",
            bytes=0,
            chains=(),
            reachable=False,
            unexplained_references=0,
            cxx_references=0,
            objects=0,
            graph=ObjectGraph((), ()),
        )
    del target
    return _report(replace(found, ways=_in_order(found.ways, asking)), names, max_paths)


def _in_order(ways: Sequence[Way], asking: tuple[str, int]) -> tuple[Way, ...]:
    """The ways without those from frames of a shell, and those from the asking frame last."""
    shown = []
    for way in ways:
        place = way.nodes[0].place if way.nodes[0].kind == "root" else None
        where = ("", -1) if place is None else (place.filename, place.line)
        if not any(f"{os.sep}{name}{os.sep}" in where[0] for name in _SHELLS):
            shown.append((where == asking, way))
    return tuple(way for _, way in sorted(shown, key=lambda one: one[0]))


def _names_in_dicts(target: list[Any]) -> list[tuple[bool, tuple[str, ...]]]:
    """The names of one object in each dict that has it under several, and whether it is the
    namespace of a module."""
    found = []
    # IPython's second namespace repeats names of the first.
    hidden = getattr(running_shell(), "user_ns_hidden", None)
    for referrer in gc.get_referrers(target[0]):
        if type(referrer) is dict and referrer is not hidden:
            names = [key for key, value in referrer.copy().items() if value is target[0]]
            # The methods of other keys are the program's code.
            if len(names) > 1 and all(type(name) is str for name in names):
                found.append(("__name__" in referrer, tuple(names)))
    return found


def _with_names(
    ways: Sequence[Way], names: Sequence[tuple[bool, tuple[str, ...]]]
) -> Iterator[Way]:
    """The ways, and after each the same by the other names in the dict that it ends in.

    A walk finds one way through each referrer. Where two dicts have a name in common, it is not
    known which of them a way ends in, and no other name is told.
    """
    for way in ways:
        yield way
        if not way.edges:
            continue
        edge = way.edges[-1]
        for shown in (str, repr):
            own = [
                each
                for is_module, each in names
                if is_module == (edge.kind == "global") and edge.name in map(shown, each)
            ]
            for name in own[0] if len(own) == 1 else ():
                if shown(name) != edge.name:
                    yield replace(way, edges=(*way.edges[:-1], replace(edge, name=shown(name))))


def _report(
    found: Found, names: Sequence[tuple[bool, tuple[str, ...]]], max_paths: int
) -> AliveReport:
    plain = [way for way in found.ways if all(edge.kind != "globals" for edge in way.edges)]
    ways = tuple(sorted(_with_names(plain or found.ways, names), key=_is_output))[:max_paths]
    target, nbytes = found.target, found.target.bytes
    label = target.label
    if target.tensor is not None:
        label = tensor_text(replace(target.tensor, frames=())).rpartition(", ")[0]
    if found.loose:
        findings = _loose_findings(found, ways)
    else:
        findings = [_finding(way, nbytes) for way in ways]
    if found.native:
        findings.append(_native_finding(found))
    return AliveReport(
        target=label,
        bytes=nbytes,
        chains=tuple(_unheld(way) if found.loose else way.chain for way in ways),
        reachable=bool(ways) and not found.loose,
        unexplained_references=found.unexplained,
        cxx_references=found.native,
        objects=found.objects,
        unfollowed=found.unfollowed,
        graph=_graph(ways, f"Why {label} is alive"),
        findings=tuple(findings),
    )


def _held(
    kind: str, nbytes: int, message: str, evidence: Note, advice: str | None = None
) -> Finding:
    notes = () if advice is None else (Note(advice),)
    return Finding(kind, Severity.INFO, nbytes, message, (evidence,), notes)


def _finding(way: Way, nbytes: int) -> Finding:
    place = way.nodes[0].place
    place = replace(place, function="") if place is not None and way.edges else None
    message = f"held by {way.nodes[0].label}"
    return _held("held", nbytes, message, Note(way.chain, place=place), _advice(way))


def _unheld(way: Way) -> str:
    return f"(held by C code or a value in use) → {way.chain}"


def _loose_findings(found: Found, ways: Sequence[Way]) -> list[Finding]:
    nbytes = found.target.bytes
    if ways:
        return [
            _held(
                "held_by_native_code",
                nbytes,
                f"held through {way.nodes[0].label}; no module, thread or frame leads to it",
                Note(_unheld(way)),
                "look for the extension, iterator or callback that received it",
            )
            for way in ways
        ]
    if found.native:
        return []
    if found.unexplained:
        count = format_count(found.unexplained, "reference")
        why = f"held by {count} from C code or from a value in use"
        leads = Note("No module, no thread and no running function leads to it.")
        return [_held("held_by_native_code", nbytes, why, leads)]
    if not found.referrers:
        return []
    return [
        _held(
            "held_by_garbage",
            nbytes,
            "held only by garbage that waits for the collector",
            Note("Its referrers are in an unreachable cycle, or reachable only from one."),
            "neutracer.find_tensor_cycles() names the cycle; if it goes through the "
            "autograd graph, find_autograd_cycles() reports whether it can ever be freed",
        )
    ]


def _native_finding(found: Found) -> Finding:
    count = format_count(found.native, "reference")
    return _held(
        "held_by_cxx",
        found.target.bytes,
        f"held by {count} in C++ that Python's objects and autograd don't account for",
        Note(
            "Possible holders: a running backward pass, a DataLoader's or DDP's buffers, "
            "an operator that keeps its arguments, a custom C++ function's saved values."
        ),
    )


# ---- Advice ------------------------------------------------------------------------------

_OUTPUTS = {"Out", "_oh", "_", "__", "___"}
_LAST = {"last_exc", "last_value", "last_traceback", "last_type"}


def _is_output(way: Way) -> bool:
    """Whether `release_holders` drops it: a notebook's output, or a past exception."""
    if not way.edges or way.nodes[0].kind != "module":
        return False
    module, name = way.nodes[0].label.removeprefix("module "), way.edges[0].name
    if module == "sys":
        # IPython's displayhook has its own references to the newest outputs.
        return name in _LAST or (name == "displayhook" and way.edges[-1].name in _OUTPUTS)
    return module == "__main__" and (name in _OUTPUTS or (name[:1] == "_" and name[1:].isdecimal()))


def _advice(way: Way) -> str:
    edges = way.edges
    if _is_output(way):
        return "call neutracer.release_holders()"
    for edge in edges:
        advice = _edge_advice(way, edge)
        if advice:
            return advice
    return _root_advice(way)


def _edge_advice(way: Way, edge: Edge) -> str:
    """Advice on a special kind of holder, or ""."""
    source, target = way.nodes[edge.source], way.nodes[edge.target]
    if source.type.endswith("_lru_cache_wrapper"):
        return f"call cache_clear() on {source.label}, or don't cache large objects"
    if edge.kind == "exception" or target.kind in ("traceback", "exception"):
        return (
            "the exception keeps the variables of its frames: drop the exception, or call "
            "traceback.clear_frames(error.__traceback__)"
        )
    if edge.kind == "autograd":
        if edge.name in ("._backward_hooks", "._post_accumulate_grad_hooks"):
            return "remove the hook by its handle when it is no longer needed"
        if edge.name == "._base":
            return "it is the base of a view: clone() the view and drop the view"
        if edge.name == ".grad":
            return "free the gradient with zero_grad(set_to_none=True) or x.grad = None"
        return (
            "the graph keeps it for backward: keep loss.detach() or loss.item() instead of "
            "the loss, or run backward without retain_graph"
        )
    return ""


def _root_advice(way: Way) -> str:
    root = way.nodes[0]
    if not way.edges:
        return "it is a module: it lives until the program ends"
    first = way.edges[0]
    if root.kind == "root" and root.label.startswith("frame of "):
        return f"`del {first.name}` there when finished, or let the function end"
    if root.kind == "root":
        return f"the thread keeps it in {first.name} until the thread ends"
    if not first.name:
        return f"{root.label} keeps it in C code"
    held = f"{root.label.removeprefix('module ')}.{first.name}"
    last = way.edges[-1]
    if any(edge.name == "_parameters" for edge in way.edges):
        return f"it is a parameter: it lives as long as {held}"
    if len(way.edges) > 1 and last.kind in ("value", "item", "member"):
        container = way.nodes[last.source].label
        return f"take it out of the {container} in {held} when finished"
    if len(way.edges) > 1:
        return f"set {last.name} to None there, or drop {held}"
    return f"`del {first.name}` in {root.label}, or set it to None when finished"


# ---- Picture -----------------------------------------------------------------------------


def _graph(ways: Sequence[Way], title: str) -> ObjectGraph:
    """The chains as one graph, with common beginnings and the target drawn once."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    known: dict[tuple[Any, ...], int] = {}
    drawn: set[tuple[int, int, str]] = set()
    for way in ways:
        numbers: list[int] = []
        trail: tuple[Any, ...] = ()
        for at, node in enumerate(way.nodes):
            step = way.edges[at - 1].text if at else node.label
            trail = (*trail, step)
            key = ("target",) if at == len(way.nodes) - 1 else trail
            if key not in known:
                known[key] = len(nodes)
                nodes.append(replace(node, id=len(nodes)))
            numbers.append(known[key])
        for edge in way.edges:
            source, target = numbers[edge.source], numbers[edge.target]
            if (source, target, edge.name) not in drawn:
                drawn.add((source, target, edge.name))
                edges.append(replace(edge, source=source, target=target))
    return ObjectGraph(tuple(nodes), tuple(edges), title)
