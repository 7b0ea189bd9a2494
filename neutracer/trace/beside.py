# SPDX-License-Identifier: Apache-2.0
"""The JSON beside a snapshot: the facts for which PyTorch's format has no place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: By device and address, the category of a tensor's block.
TensorBlocks = Mapping[int, Mapping[int, str]]

#: The categories of tensors; the rules of `trace/categories.py` follow in this order.
TENSOR_CATEGORIES = ("parameter", "gradient", "optimizer_state")

#: A sidecar has kilobytes, and 20 bytes per tensor: a longer file is not ours.
MOST_SIDECAR_BYTES = 32 << 20

#: The schemas of a sidecar, and of the facts of an out-of-memory error in it.
SIDECAR_SCHEMA = "neutracer.sidecar/1"
OOM_SCHEMA = "neutracer.oom/1"

# A snapshot's name may end in these, one after the other.
_SUFFIXES = (".pickle", ".pkl", ".snapshot", ".gz", ".xz", ".zst")


@dataclass(frozen=True)
class DeviceRoom:
    """The limits of a process on its device: a share of it, its size, and what others held.

    Attributes:
        total_bytes: The device's, of which `set_per_process_memory_fraction` takes a share.
        fraction: That share; 1.0 where there was no such limit, None where this is not known.
        other_bytes: What other processes, CUDA's contexts and other libraries held; None where
            this is not known.
    """

    total_bytes: int
    fraction: float | None
    other_bytes: int | None

    @property
    def limit_bytes(self) -> int | None:
        """The most that PyTorch lets its allocator have, or None without such a limit."""
        if self.fraction is None or self.fraction >= 1.0:
            return None
        # A double holds the share that PyTorch gives back, and not always the bytes.
        return int(self.fraction * self.total_bytes + 0.5)


@dataclass(frozen=True)
class Beside:
    """What the JSON beside a snapshot says.

    Attributes:
        tensors: The blocks in use at the end that were tensors of a known category.
        rooms: By device, what limited the process.
        oom: The facts of an out-of-memory error, or PyTorch's message; None where it has none.
        damage: For each file that can't be read, its name and why.
    """

    tensors: TensorBlocks = field(default_factory=dict)
    rooms: Mapping[int, DeviceRoom] = field(default_factory=dict)
    oom: Mapping[str, Any] | str | None = None
    damage: tuple[str, ...] = ()


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


def sidecars(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The JSON objects beside a snapshot, the nearest name first, and a sentence per file that
    can't be read. Other JSON, and files that are too large, are not ours and are passed over."""
    found, damage = [], []
    for beside in sidecar_paths(path):
        try:
            if not os.path.isfile(beside) or os.path.getsize(beside) > MOST_SIDECAR_BYTES:
                continue
            with open(beside, encoding="utf-8") as file:
                plain = json.load(file)
        except (ValueError, RecursionError) as error:
            damage.append(f"{os.path.basename(beside)}: not JSON: {error}")
            continue
        except OSError as error:
            damage.append(f"{os.path.basename(beside)}: {error.strerror or error}")
            continue
        if isinstance(plain, dict):
            found.append(plain)
    return found, damage


def beside_file(path: str) -> Beside:
    """What the JSON beside a file says. Nothing in it, or its absence, is an error.

    Args:
        path: The snapshot's; "" where it has none.
    """
    plain, damage = sidecars(path) if path else ([], [])
    return Beside(_tensors(plain), _rooms(plain), _oom(plain), tuple(damage))


def plain_tensors(tensors: TensorBlocks) -> dict[str, dict[str, list[int]]]:
    """Tensors as JSON has them: addresses by device and category."""
    plain: dict[str, dict[str, list[int]]] = {}
    for device, blocks in tensors.items():
        by_category = plain.setdefault(str(device), {})
        for address, category in blocks.items():
            by_category.setdefault(category, []).append(address)
    return plain


def _tensors(plain: Iterable[Mapping[str, Any]]) -> TensorBlocks:
    """The tensors of the first object."""
    first = next(iter(plain), {})
    # The JSON of an out-of-memory report has the process's facts in a part of it.
    process = first.get("process", first)
    by_device = process.get("tensors") if isinstance(process, dict) else None
    found: dict[int, dict[int, str]] = {}
    for device, by_category in by_device.items() if isinstance(by_device, dict) else ():
        if not device.isdecimal() or len(device) > 4 or not isinstance(by_category, dict):
            continue
        for category in TENSOR_CATEGORIES:
            addresses = by_category.get(category)
            for address in addresses if isinstance(addresses, list) else ():
                if isinstance(address, int):
                    found.setdefault(int(device), {})[address] = category
    return found


def _rooms(plain: Iterable[Mapping[str, Any]]) -> dict[int, DeviceRoom]:
    """The limits in the first sidecar."""
    first = next((one for one in plain if one.get("schema") == SIDECAR_SCHEMA), {})
    devices = first.get("devices")
    found = {}
    for device, said in devices.items() if isinstance(devices, dict) else ():
        room = device_room(said) if isinstance(said, dict) else None
        if room is not None and device.isdecimal() and len(device) <= 4:
            found[int(device)] = room
    return found


def device_room(said: Mapping[str, Any]) -> DeviceRoom | None:
    """The limits in a device's part of a sidecar; None without its size."""
    total, other = _count(said.get("total_bytes")), _count(said.get("other_bytes"))
    fraction = said.get("process_fraction")
    if not total:
        return None
    share = None
    if isinstance(fraction, int | float) and 0 <= fraction <= 1:
        share = float(fraction)
    return DeviceRoom(total, share, other if other is None or other <= total else None)


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 1 << 60 else None


def _oom(plain: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | str | None:
    """The first account of an out-of-memory error."""
    for one in plain:
        said = one.get("oom")
        if isinstance(said, str) and said:
            return said
        if isinstance(said, dict) and said.get("schema") == OOM_SCHEMA:
            return said
    return None
