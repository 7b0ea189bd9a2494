# SPDX-License-Identifier: Apache-2.0
"""A described part of the object graph, as plain data.

Nothing here refers to an object of the program: you can keep, send and write a graph long
after its objects are gone. Text comes from the program and is not escaped here.

Example:
    >>> graph = GraphData(
    ...     nodes=(Node(0, "app.Ring", "Ring"), Node(1, "list", "list of 1", kind="container")),
    ...     edges=(
    ...         Edge(0, 1, "items", kind="attribute", in_cycle=True),
    ...         Edge(1, 0, "0", kind="item", in_cycle=True, cut=True),
    ...     ),
    ... )
    >>> graph.edges[0].text, graph.edges[1].text
    ('.items', '[0]')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neutracer.render.document import Place
from neutracer.render.report import PlainRow
from neutracer.units import format_bytes

#: The most boxes in a picture, unless more are requested: what can be read at a glance.
MOST_NODES = 60

#: The most boxes on a page, unless more are requested: a page can be searched.
MOST_ON_PAGE = 200

# How an edge's name is written for readers, by the kind of reference.
_FORMS = {
    "attribute": ".{}",
    "instance_dict": ".{}",
    "value": "[{}]",
    "key": "{}",
    "item": "[{}]",
    "member": "member",
    "closure": "{}",
    "cell": "{}",
    "closure_variable": "closure {}",
    "self": "{}",
    "function": ".{}",
    "default": "default {}",
    "globals": "{}",
    "local": "local {}",
    "frame": "{}",
    "exception": "{}",
    "global": "global {}",
    "type": "{}",
    "class": "class {}",
    "callback": "{}",
    "field": ".{}",
    "autograd": "{}",
    "other": "{}",
}


@dataclass(frozen=True)
class Allocation:
    """One recorded allocation.

    Attributes:
        frames: The stack, innermost frame first.
        age_us: Microseconds since then; None where PyTorch gives no time.
    """

    frames: tuple[Place, ...]
    age_us: int | None = None


@dataclass(frozen=True)
class TensorFacts(PlainRow):
    """What a tensor was when it was looked at.

    Attributes:
        shape: Its sizes.
        dtype: "float32".
        device: "cuda:0".
        storage_bytes: Bytes of its whole storage, which views share.
        storage: A number that views of one storage share; 0 where it has none.
        data_ptr: The device address at which the storage begins; 0 where it has none.
        requires_grad: As torch says.
        frames: Where its memory was allocated, innermost first; empty where unknown.
        age_us: How long ago its memory was allocated, in microseconds; None where unknown.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    storage_bytes: int
    storage: int
    data_ptr: int
    requires_grad: bool
    frames: tuple[Place, ...] = ()
    age_us: int | None = None


@dataclass(frozen=True)
class Node:
    """An object, or a run of similar objects folded into one.

    Attributes:
        id: Its number in the graph: its position in `GraphData.nodes`.
        type: Its type with its module: "train.Callback".
        label: What it is in a few words: "Callback", "method view", "dict of 12".
        kind: "object", "tensor", "function", "method", "cell", "frame", "traceback",
            "exception", "container", "type", "module", "leaf", "autograd" (a node of
            PyTorch's graph), "root" (what keeps a chain alive), "folded".
        place: Where it is defined or runs; None where unknown.
        bytes: Bytes of tensor memory that it holds itself (a tensor's storage).
        count: How many objects it represents.
        tensor: The facts of a tensor, or None.
        is_strong: Python makes no weak references to it: its class has `__slots__` without
            `__weakref__`, say.
    """

    id: int
    type: str
    label: str
    kind: str = "object"
    place: Place | None = None
    bytes: int = 0
    count: int = 1
    tensor: TensorFacts | None = None
    is_strong: bool = False


@dataclass(frozen=True)
class Edge:
    """A reference.

    Attributes:
        source: The id of the node that refers.
        target: The id of the node that is referred to.
        name: Its name alone: "view_callback", "'key'", "3"; "" where only C knows it.
        kind: How it is held: "attribute", "item", "value", "closure_variable", "local",
            "autograd" and so on: the keys of the forms above.
        in_cycle: It is a part of the cycle that the graph is about.
        cut: It is the one to break.
    """

    source: int
    target: int
    name: str
    kind: str = "other"
    in_cycle: bool = False
    cut: bool = False

    @property
    def text(self) -> str:
        """The name in words: ".view_callback", "[3]", "local x"."""
        return _FORMS.get(self.kind, "{}").format(self.name)


# Annotations are objects in this module, not text, for the classes that inherit the fields.
@dataclass(frozen=True)
class GraphData:
    """Nodes and edges, with what was left out in words.

    Attributes:
        nodes: The nodes; a node's id is its position.
        edges: The edges between them.
        title: The finding in one or two lines, shown above a picture; may be empty.
        notes: What was folded or left out, one sentence each.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    title: str = ""
    notes: tuple[str, ...] = field(default=())


def devices_text(device_bytes: Mapping[str, int]) -> str:
    """Bytes of tensors by device, in words.

    Example:
        >>> devices_text({"cuda:0": 64 << 20, "cpu": 512})
        '64 MiB on cuda:0, 512 B on cpu'
    """
    parts = [f"{format_bytes(size)} on {name}" for name, size in device_bytes.items()]
    return ", ".join(parts) or "tensors without memory"


def devices_sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Bytes by device of both, the devices of the first one first."""
    devices = dict(one)
    for name, size in other.items():
        devices[name] = devices.get(name, 0) + size
    return devices
