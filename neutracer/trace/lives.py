# SPDX-License-Identifier: Apache-2.0
"""The lives of a timeline's allocations and segments as tables."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast, overload

from neutracer.arguments import whole_number
from neutracer.trace.categories import CATEGORIES, Decided
from neutracer.trace.places import Places
from neutracer.trace.stacks import NONE, Stacks
from neutracer.trace.table import Column, Table

__all__ = ["allocation_table", "int_address", "named_rows", "segment_table"]

# An address alone, or a block as PyTorch's viewer names it: b7f3a00000000_2, in its newer
# releases b'7f3a00000000_2. The number counts what was at that address before.
_NAME = re.compile(r"b'?([0-9a-f]{1,16})_(\d+)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)


class _PlaceNames(Sequence[str]):
    """The places of some stack ids, each once; looked for when one is first asked for."""

    def __init__(self, stacks: memoryview, places: Places) -> None:
        self._stacks = stacks
        self._places = places

    @cached_property
    def _found(self) -> tuple[list[str], array[int]]:
        numbers: dict[str, int] = {}
        of_stack: dict[int, int] = {}
        for stack in set(self._stacks):
            of_stack[stack] = numbers.setdefault(str(self._places[stack]), len(numbers))
        return list(numbers), array("I", map(of_stack.__getitem__, self._stacks))

    def codes(self) -> array[int]:
        """One a stack id: its place's number."""
        return self._found[1]

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        return self._found[0][at]

    def __len__(self) -> int:
        return len(self._found[0])


def allocation_table(
    c: Mapping[str, Any], stacks: Stacks, decided: Decided, places: Places
) -> Table:
    """The table of `Timeline.allocations`.

    Args:
        c: The core's columns.
        stacks: The snapshot's stacks.
        decided: The category of each row.
        places: The places of the stacks.
    """
    names = (name for name in c if name != "stack")
    columns = {n: Column(cast("Callable[[], Any]", lambda n=n: c[n])) for n in names}
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    columns["category"] = Column(lambda: decided.categories.codes, names=CATEGORIES)
    by_place = _PlaceNames(memoryview(c["stack"]), places)
    columns["place"] = Column(by_place.codes, names=by_place)
    return Table("allocation", columns, len(c["address"]), stacks)


def segment_table(c: Mapping[str, Any], stacks: Stacks) -> Table:
    """The table of `Timeline.segments`.

    Args:
        c: The core's columns.
        stacks: The snapshot's stacks.
    """
    columns = {
        name: Column(cast(Callable[[], Any], lambda name=name: c[name]))
        for name in ("address", "size", "stream", "pool_first", "pool_second")
    }
    columns["segment_type"] = Column(lambda: c["kind"], names=("small", "large"))
    columns["is_expandable"] = Column(lambda: c["is_expandable"], is_flag=True)
    columns["pool_known"] = Column(lambda: c["pool_known"], is_flag=True)
    columns["alloc_event"] = Column(lambda: c["alloc_event"])
    columns["free_event"] = Column(lambda: c["free_event"])
    columns["stack"] = Column(lambda: c["stack"], null=NONE)
    pairs = {"segment_pool_id": ("pool_first", "pool_second")}
    return Table("segment", columns, len(c["address"]), stacks, pairs)


def int_address(text: str) -> int:
    """An address as a text has it, or that of a block as PyTorch's viewer names it.

    Raises:
        ValueError: It is neither.

    Example:
        >>> int_address("0x7f00"), int_address("b7f00_2")
        (32512, 32512)
    """
    found = _NAME.fullmatch(text.strip()) or _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither an address nor a block as PyTorch's viewer names it")
    return int(found[1], 16)


def named_rows(allocations: Table, block: int | str) -> list[int]:
    """The rows of what `Timeline.named` is asked for, in the order of time.

    Raises:
        ValueError: It is no address and no name of a block.
        TypeError: It is neither a number nor a text.
    """
    version: str | None = None
    if isinstance(block, str):
        name = _NAME.fullmatch(block.strip())
        address, version = int_address(block), name and name[2]
    else:
        address = whole_number("block", block, "an address, or a block's name")
    rows = [row for row, at in enumerate(allocations.codes("address")) if at == address]
    if version is None:
        return rows
    return rows[int(version) : int(version) + 1]
