# SPDX-License-Identifier: Apache-2.0
"""The budget of a device: what its memory in use is for, in terms that add up to its figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neutracer.errors import UnavailableError
from neutracer.render.document import Figure, Table
from neutracer.render.report import PlainRow
from neutracer.trace.marks import device_use
from neutracer.trace.roles import Role, role_of
from neutracer.trace.snapshot import Snapshot

# ---- Terms -------------------------------------------------------------------------------

_CATEGORIES = {
    "parameter": "weights",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
}
_CACHE, _TENSORS = "KV cache", "other tensors"
_GRAPHS, _POOLS = "graphs' pools", "other pools"
_PEAK, _FREE = "activations' peak", "free inside"
_ASLEEP, _OTHERS, _UNKNOWN = "asleep", "other processes", "unknown"

_NOTES = {
    _GRAPHS: "reserved for captured graphs",
    _POOLS: "reserved by other private pools",
    _PEAK: "free now; the program's peak used it",
    _FREE: "free in reserved segments, and not used by the peak",
    _ASLEEP: "reserved, but unmapped: not on the device",
    _UNKNOWN: "contexts, libraries and processes that could not be told apart",
}

#: The order of the terms; libraries come after `asleep`, by bytes.
TERMS = (
    "weights",
    _CACHE,
    "gradients",
    "optimizer states",
    _TENSORS,
    _GRAPHS,
    _POOLS,
    _PEAK,
    _FREE,
    _ASLEEP,
)

# Functions and files that capture graphs into a pool that others may use too.
_CAPTURES = re.compile(r"capture|cuda_?graph", re.IGNORECASE)


@dataclass(frozen=True)
class BudgetTerm(PlainRow):
    """One term of a budget.

    Attributes:
        term: One of `TERMS`, a library's name, "other processes" or "unknown".
        bytes: Its bytes; "asleep" is negative, since it is part of the terms before it.
    """

    term: str
    bytes: int


@dataclass(frozen=True)
class Budget(PlainRow):
    """The terms of a device's memory, without those of 0 bytes.

    Attributes:
        device_bytes: In use on the device, by all processes: the sum of the terms. None if the file
            does not say; the terms are then PyTorch's alone, and add up to `reserved_bytes`.
        reserved_bytes: Reserved by PyTorch.
        terms: The terms.
    """

    device_bytes: int | None
    reserved_bytes: int
    terms: tuple[BudgetTerm, ...]

    def table(self) -> Table:
        """The budget as a table."""
        rows = tuple(
            (one.term, Figure.bytes(one.bytes), _NOTES.get(one.term, "")) for one in self.terms
        )
        whole = self.reserved_bytes if self.device_bytes is None else self.device_bytes
        what = "reserved by PyTorch" if self.device_bytes is None else "in use on the device"
        return Table("The budget", (*rows, ("in all", Figure.bytes(whole), what)))


@dataclass(frozen=True)
class Outside:
    """What a device holds besides PyTorch's memory."""

    device_bytes: int
    libraries: Mapping[str, int]  # Bytes of this process by library.
    other_bytes: int | None  # Bytes of other processes, or None.


# ---- Budget ------------------------------------------------------------------------------


def budget_of(snap: Snapshot, device: int, outside: Outside | None = None) -> Budget:
    """The budget of a device at the end of a snapshot.

    Args:
        outside: What is known of the rest; None is what the file says.

    Example:
        >>> import neutracer
        >>> budget = budget_of(neutracer.load("tests/data/train_resnet_healthy.pickle.xz"), 0)
        >>> sum(one.bytes for one in budget.terms) == budget.reserved_bytes
        True
    """
    sums = _torch_terms(snap, device)
    reserved = sum(sums.values())
    outside = _outside_of(snap, device) if outside is None else outside
    terms = [(name, sums[name]) for name in TERMS if sums[name]]
    if outside is not None:
        terms += _outer_terms(outside, reserved)
    return Budget(
        None if outside is None else outside.device_bytes,
        reserved,
        tuple(BudgetTerm(name, nbytes) for name, nbytes in terms if nbytes),
    )


def outside_now(device: int) -> Outside | None:
    """What this process's device holds besides PyTorch's memory; None if it does not say."""
    from neutracer.monitor.device_report import PYTORCH, device_report

    try:
        found = device_report(device)
    except (UnavailableError, OSError, ValueError):
        return None
    if found.used_bytes is None:
        return None
    libraries = {use.library: use.bytes for use in found.by_library if use.library != PYTORCH}
    return Outside(found.used_bytes, libraries, found.other_bytes)


def _outer_terms(outside: Outside, reserved: int) -> Iterator[tuple[str, int]]:
    """The terms behind PyTorch's, which fill the device's figure."""
    rest = outside.device_bytes - reserved
    if rest < 0:
        yield _ASLEEP, rest
        return
    others = [*sorted(outside.libraries.items(), key=lambda one: -one[1])]
    for name, nbytes in (*others, (_OTHERS, outside.other_bytes or 0)):
        # The figures are read one after the other.
        nbytes = min(nbytes, rest)
        rest -= nbytes
        yield name, nbytes
    yield _UNKNOWN, rest


def _outside_of(snap: Snapshot, device: int) -> Outside | None:
    """What its sidecar says, or a reading behind its last event."""
    room = snap.beside.rooms.get(device)
    if room is not None and room.free_bytes is not None:
        return Outside(room.total_bytes - room.free_bytes, {}, None)
    times, readings = snap.timeline(device).time_us, device_use(snap, device)
    if readings and len(times) and readings[-1][0] >= times[-1]:
        return Outside(readings[-1][1], {}, None)
    return None


def _torch_terms(snap: Snapshot, device: int) -> Counter[str]:
    """Reserved bytes by term."""
    segments, blocks = snap.segments, snap.blocks
    devices, totals = segments.codes("device"), segments.codes("total_size")
    pools = list(zip(segments.codes("pool_first"), segments.codes("pool_second"), strict=True))
    named = _tensor_terms(snap, device)
    graphs = _graph_pools(snap, device)
    sums: Counter[str] = Counter()
    used = [0] * len(totals)
    columns = (blocks.codes(name) for name in ("segment", "address", "size", "stack"))
    for segment, address, size, stack, state in zip(*columns, blocks["state"], strict=True):
        if devices[segment] != device or state == "inactive":
            continue
        term = named.get(address)
        if term is None and role_of(snap.stacks[stack]) is Role.CACHE:
            term = _CACHE
        if term is not None or pools[segment] == (0, 0):
            sums[term or _TENSORS] += size
            used[segment] += size
    free = 0
    for segment, total in enumerate(totals):
        if devices[segment] == device and pools[segment] != (0, 0):
            sums[_GRAPHS if pools[segment] in graphs else _POOLS] += total - used[segment]
        elif devices[segment] == device:
            free += total - used[segment]
    timeline = snap.timeline(device)
    allocated = snap.memory_stats(device)["allocated_bytes.all.current"]
    peak = max(timeline.peak("allocated").bytes - allocated, 0) if len(timeline) else 0
    sums[_PEAK] = min(peak, free)
    sums[_FREE] = free - sums[_PEAK]
    return sums


def _tensor_terms(snap: Snapshot, device: int) -> dict[int, str]:
    """By address, the term of the blocks of a known category."""
    found = {
        address: _CATEGORIES[category]
        for address, category in snap.beside.tensors.get(device, {}).items()
    }
    timeline = snap.timeline(device)
    rows, categories = timeline.allocations, timeline.categories
    freed, addresses = rows.codes("free_event"), rows.codes("address")
    for row, (address, gone) in enumerate(zip(addresses, freed, strict=True)):
        if gone == -1:
            category = categories.name(row)
            if categories.rule(row)[0] == "kv-cache":
                found.setdefault(address, _CACHE)
            elif category in _CATEGORIES:
                found.setdefault(address, _CATEGORIES[category])
    return found


def _graph_pools(snap: Snapshot, device: int) -> set[tuple[int, int]]:
    """The private pools of captured graphs: those that a capture made for itself, and others in
    which code that captures has allocated."""
    pools = list(
        zip(snap.segments.codes("pool_first"), snap.segments.codes("pool_second"), strict=True)
    )
    found = {pool for pool in pools if pool[0] and not pool[1]}
    devices = snap.segments.codes("device")
    for segment, stack in zip(
        snap.blocks.codes("segment"), snap.blocks.codes("stack"), strict=True
    ):
        pool = pools[segment]
        is_open = devices[segment] == device and pool != (0, 0) and pool not in found
        if is_open and any(_CAPTURES.search(frame.name) for frame in snap.stacks[stack]):
            found.add(pool)
    return found
