# SPDX-License-Identifier: Apache-2.0
"""What a program's own tensors said of the blocks that were in use when a snapshot was taken.

They are kept in the JSON beside a file, since PyTorch's format has no place for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "MOST_SIDECAR_BYTES",
    "TOLD_CATEGORIES",
    "Told",
    "rules_told",
    "sidecar_paths",
    "sidecars",
    "told_beside",
    "told_plain",
]

#: By device and address what a block is.
Told = Mapping[int, Mapping[int, str]]

#: What tensors are asked for; the rules of `trace/categories.py` follow in this order.
TOLD_CATEGORIES = ("parameter", "gradient", "optimizer_state")

#: A sidecar has kilobytes, and 20 bytes a tensor: a longer file is not ours.
MOST_SIDECAR_BYTES = 32 << 20

# What a snapshot's name may end in, one after the other.
_SUFFIXES = (".pickle", ".pkl", ".snapshot", ".gz", ".xz", ".zst")


def sidecar_paths(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Where the JSON beside a snapshot may be: oom.pickle.json, then oom.json.

    Example:
        >>> sidecar_paths("oom.pickle.xz")
        ('oom.pickle.xz.json', 'oom.pickle.json', 'oom.json')
    """
    name = os.fspath(path)
    found = [name + ".json"]
    while True:
        stem, suffix = os.path.splitext(name)
        if suffix not in _SUFFIXES or not stem:
            return tuple(found)
        name = stem
        found.append(name + ".json")


def sidecars(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """What the JSON files beside a snapshot say, one by one; one that is damaged, too large or
    no file is passed over."""
    for beside in sidecar_paths(path):
        try:
            if not os.path.isfile(beside) or os.path.getsize(beside) > MOST_SIDECAR_BYTES:
                continue
            with open(beside, encoding="utf-8") as file:
                plain = json.load(file)
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(plain, dict):
            yield plain


def told_plain(told: Told) -> dict[str, dict[str, list[int]]]:
    """It as JSON has it: addresses by device and category."""
    plain: dict[str, dict[str, list[int]]] = {}
    for device, blocks in told.items():
        by_category = plain.setdefault(str(device), {})
        for address, category in blocks.items():
            by_category.setdefault(category, []).append(address)
    return plain


def told_beside(path: str) -> Told:
    """What the JSON beside a file says; empty where it says nothing, or nothing that is sound."""
    for plain in sidecars(path) if path else ():
        # The JSON of an out-of-memory report has the process's facts in a part of it.
        process = plain.get("process", plain)
        return _read(process.get("tensors") if isinstance(process, dict) else None)
    return {}


def _read(plain: Any) -> Told:
    told: dict[int, dict[int, str]] = {}
    for device, by_category in plain.items() if isinstance(plain, dict) else ():
        if not device.isdecimal() or len(device) > 4 or not isinstance(by_category, dict):
            continue
        for category in TOLD_CATEGORIES:
            addresses = by_category.get(category)
            for address in addresses if isinstance(addresses, list) else ():
                if isinstance(address, int):
                    told.setdefault(int(device), {})[address] = category
    return told


def rules_told(
    rules: bytes, rows: Mapping[str, memoryview], blocks: Mapping[int, str], first: int
) -> bytes:
    """The rules of a timeline's allocations, with those that are told in their place.

    Args:
        rules: One a row, as the core decides.
        rows: The columns address and free_event.
        blocks: By address what a block was at the end.
        first: The number of the first rule of `TOLD_CATEGORIES`.
    """
    if not blocks:
        return rules
    numbers = {category: first + at for at, category in enumerate(TOLD_CATEGORIES)}
    changed = bytearray(rules)
    for row, (address, freed) in enumerate(zip(rows["address"], rows["free_event"], strict=True)):
        if freed == -1 and address in blocks:
            changed[row] = numbers[blocks[address]]
    return bytes(changed)
