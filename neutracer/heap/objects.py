# SPDX-License-Identifier: Apache-2.0
"""A described part of the object graph, as plain data.

Nothing here refers to an object of the program: a graph can outlive its objects. Text comes from
the program and is not escaped here.

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

#: Default limits of boxes in a picture, and on a page, which can be searched.
MOST_NODES = 60
MOST_ON_PAGE = 200

# Display forms of an edge's name, by the kind of reference; others show it as it is.
_FORMS = {
    "attribute": ".{}",
    "instance_dict": ".{}",
    "value": "[{}]",
    "item": "[{}]",
    "member": "member",
    "closure_variable": "closure {}",
    "function": ".{}",
    "default": "default {}",
    "local": "local {}",
    "global": "global {}",
    "class": "class {}",
    "field": ".{}",
}


@dataclass(frozen=True)
class Allocation:
    """One recorded allocation."""

    frames: tuple[Place, ...]  # The stack, innermost frame first.
    age_us: int | None = None  # Microseconds since then; None if PyTorch gives no time.


@dataclass(frozen=True)
class TensorFacts(PlainRow):
    """The facts of a tensor at the time of the inspection.

    Attributes:
        shape: Its sizes.
        dtype: "float32".
        device: "cuda:0".
        storage_bytes: Bytes of its whole storage, which views share.
        storage: An id that views of one storage share; 0 without a storage.
        data_ptr: The device address of the storage; 0 without a storage.
        requires_grad: As in torch.
        frames: The stack of its allocation, innermost first; empty if unknown.
        age_us: Microseconds since its allocation; None if unknown.
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
        label: A short description: "Callback", "method view", "dict of 12".
        kind: "object", "tensor", "function", "method", "cell", "frame", "traceback",
            "exception", "container", "type", "module", "leaf", "autograd" (a node of
            PyTorch's graph), "root" (the start of a chain), "folded".
        place: Where it is defined or runs; None if unknown.
        bytes: Bytes of its own storage, for a tensor.
        count: The number of objects it represents.
        tensor: The facts of a tensor, or None.
        is_strong: True if it has no weak references: its class has `__slots__` without
            `__weakref__`, for example.
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
        source: The id of the referring node.
        target: The id of the node referred to.
        name: Its bare name: "view_callback", "'key'", "3"; "" if only C knows it.
        kind: "attribute", "item", "value", "closure_variable", "local", "autograd" and so on.
        in_cycle: True for a part of the cycle shown.
        cut: True for the reference to break.
    """

    source: int
    target: int
    name: str
    kind: str = "other"
    in_cycle: bool = False
    cut: bool = False

    @property
    def text(self) -> str:
        """The name for display: ".view_callback", "[3]", "local x"."""
        return _FORMS.get(self.kind, "{}").format(self.name)


@dataclass(frozen=True)
class GraphData:
    """Nodes and edges with a title and notes.

    Attributes:
        nodes: The nodes; a node's id is its position.
        edges: The edges between them.
        title: The finding in one or two lines, shown above a picture; may be empty.
        notes: Sentences on folded and omitted objects.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    title: str = ""
    notes: tuple[str, ...] = field(default=())


def devices_text(device_bytes: Mapping[str, int]) -> str:
    """Formats bytes by device.

    Example:
        >>> devices_text({"cuda:0": 64 << 20, "cpu": 512})
        '64 MiB on cuda:0, 512 B on cpu'
    """
    parts = [f"{format_bytes(size)} on {name}" for name, size in device_bytes.items()]
    return ", ".join(parts) or "tensors without memory"


def devices_sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Adds bytes by device, in the order of the first mapping."""
    devices = dict(one)
    for name, size in other.items():
        devices[name] = devices.get(name, 0) + size
    return devices
