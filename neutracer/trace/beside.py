# SPDX-License-Identifier: Apache-2.0
"""The JSON beside a snapshot: facts that PyTorch's format does not hold."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

#: By device and address, the category of a tensor's block.
TensorBlocks = Mapping[int, Mapping[int, str]]

#: The categories of tensors; the rules of `trace/categories.py` follow in this order.
TENSOR_CATEGORIES = ("parameter", "gradient", "optimizer_state")

#: A sidecar has kilobytes, and 20 bytes per tensor; longer files are not ours.
MOST_SIDECAR_BYTES = 32 << 20

#: The schemas of a sidecar, and of the facts of an out-of-memory error in it.
SIDECAR_SCHEMA = "neutracer.sidecar/1"
OOM_SCHEMA = "neutracer.oom/1"

# Folders of installed packages that a sidecar may list; a path of Python has a handful.
_MOST_FOLDERS = 32

# A snapshot's name may end in these, one after the other.
_SUFFIXES = (".pickle", ".pkl", ".snapshot", ".gz", ".xz", ".zst")


@dataclass(frozen=True)
class DeviceRoom:
    """The limits of a process on its device: a share of it, its size, and what others held."""

    total_bytes: int
    # The share set by `set_per_process_memory_fraction`; 1.0 without a limit, None if unknown.
    fraction: float | None
    # Memory held by other processes, CUDA contexts and other libraries; None if unknown.
    other_bytes: int | None
    # Free on the device; None if unknown.
    free_bytes: int | None = field(default=None, compare=False)

    @property
    def limit_bytes(self) -> int | None:
        """PyTorch's limit in bytes, or None."""
        if self.fraction is None or self.fraction >= 1.0:
            return None
        # Rounded: the share is exact as a double, its product with the size is not.
        return int(self.fraction * self.total_bytes + 0.5)


@dataclass(frozen=True)
class Beside:
    """The facts of the JSON beside a snapshot."""

    # The blocks of tensors of a known category at the end.
    tensors: TensorBlocks = field(default_factory=dict)
    # The limits of the process by device.
    rooms: Mapping[int, DeviceRoom] = field(default_factory=dict)
    # The facts of the last out-of-memory error, or PyTorch's message, or None.
    oom: Mapping[str, Any] | str | None = None
    # The facts of all such errors with a report, in order; empty where only one is known.
    ooms: tuple[Mapping[str, Any], ...] = ()
    # By device and line of code, who held its blocks at the end: names of the program.
    holders: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    # Folders that the process had installed packages in, but for those that are called site-
    # packages or dist-packages.
    libraries: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()  # For each unreadable file, its name and the reason.


@lru_cache(maxsize=1)
def library_folders() -> tuple[str, ...]:
    """The folders on Python's path in which packages are installed though they are not called
    site-packages, as by ``pip install --target``; without the first, which is the program's own."""
    found = []
    for folder in sys.path[1:]:
        if os.path.basename(folder) in ("site-packages", "dist-packages"):
            continue
        try:
            with os.scandir(folder) as entries:
                if any(one.name.endswith(".dist-info") for one in entries):
                    found.append(folder)
        except OSError:
            continue
    return tuple(found[:_MOST_FOLDERS])


def parse_json(text: str | bytes) -> Any:
    """JSON from outside, in which every number is finite and an integer fits in 64 bits.

    Example:
        >>> parse_json('{"bytes": 1e999}')
        Traceback (most recent call last):
        ...
        ValueError: the number 1e999 is out of range
    """
    try:
        return json.loads(
            text, parse_constant=_refused, parse_float=_finite, parse_int=_whole_number
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is out of range")
    return value


def _whole_number(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 64:
        raise ValueError(f"the number {text[:20]} is out of range")
    return int(text)


def sidecar_paths(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The possible paths of the JSON beside a snapshot, nearest name first.

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
    """The JSON objects beside a snapshot, nearest name first, and a sentence per unreadable file.
    Other JSON, and files too large for a sidecar, are ignored."""
    found, damage = [], []
    for beside in sidecar_paths(path):
        try:
            if not os.path.isfile(beside) or os.path.getsize(beside) > MOST_SIDECAR_BYTES:
                continue
            with open(beside, encoding="utf-8") as file:
                plain = parse_json(file.read(MOST_SIDECAR_BYTES))
        except ValueError as error:
            damage.append(f"{os.path.basename(beside)}: not JSON: {error}")
            continue
        except OSError as error:
            damage.append(f"{os.path.basename(beside)}: {error.strerror or error}")
            continue
        if isinstance(plain, dict):
            found.append(plain)
    return found, damage


def beside_file(path: str) -> Beside:
    """The facts of the JSON beside the file `path` ("": none). Never raises for its contents."""
    plain, damage = sidecars(path) if path else ([], [])
    ooms = _ooms(plain)
    oom = ooms[-1] if ooms else _oom(plain)
    told = _holders(plain), _libraries(plain), tuple(damage)
    return Beside(_tensors(plain), _rooms(plain), oom, ooms, *told)


def plain_tensors(tensors: TensorBlocks) -> dict[str, dict[str, list[int]]]:
    """Tensors as JSON has them: addresses by device and category."""
    plain: dict[str, dict[str, list[int]]] = {}
    for device, blocks in tensors.items():
        by_category = plain.setdefault(str(device), {})
        for address, category in blocks.items():
            by_category.setdefault(category, []).append(address)
    return plain


def _of_process(plain: Sequence[Mapping[str, Any]], name: str) -> Any:
    """A fact on the process, which the JSON of an out-of-memory report has under "process"."""
    first = plain[0] if plain else {}
    process = first.get("process", first)
    return process.get(name) if isinstance(process, dict) else None


def _by_device(facts: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """The numbers of devices, and what a part of the JSON has of each."""
    for device, one in facts.items() if isinstance(facts, dict) else ():
        if device.isdecimal() and len(device) <= 4 and isinstance(one, dict):
            yield int(device), one


def _tensors(plain: Sequence[Mapping[str, Any]]) -> TensorBlocks:
    found: dict[int, dict[int, str]] = {}
    for device, by_category in _by_device(_of_process(plain, "tensors")):
        for category in TENSOR_CATEGORIES:
            addresses = by_category.get(category)
            for address in addresses if isinstance(addresses, list) else ():
                if isinstance(address, int):
                    found.setdefault(device, {})[address] = category
    return found


def _libraries(plain: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Each frame of a file is compared with each of these: a long list is not ours."""
    listed = _of_process(plain, "libraries")
    folders = listed[:_MOST_FOLDERS] if isinstance(listed, list) else ()
    return tuple(one for one in folders if isinstance(one, str) and one.strip("/"))


def _ooms(plain: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    ooms = plain[0].get("ooms") if plain else None
    return tuple(one for one in ooms if isinstance(one, dict)) if isinstance(ooms, list) else ()


def _holders(plain: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, str]]:
    return {
        device: {line: holder for line, holder in lines.items() if isinstance(holder, str)}
        for device, lines in _by_device(plain[0].get("holders") if plain else None)
    }


def _rooms(plain: Sequence[Mapping[str, Any]]) -> dict[int, DeviceRoom]:
    first = next((one for one in plain if one.get("schema") == SIDECAR_SCHEMA), {})
    rooms = {device: device_room(facts) for device, facts in _by_device(first.get("devices"))}
    return {device: room for device, room in rooms.items() if room is not None}


def device_room(facts: Mapping[str, Any]) -> DeviceRoom | None:
    """The limits in a device's part of a sidecar; None without the device's size."""
    names = ("total_bytes", "other_bytes", "free_bytes")
    total, other, free = (_count(facts.get(name)) for name in names)
    fraction = facts.get("process_fraction")
    if not total:
        return None
    share = None
    if isinstance(fraction, int | float) and 0 <= fraction <= 1:
        share = float(fraction)
    other, free = (one if one is None or one <= total else None for one in (other, free))
    return DeviceRoom(total, share, other, free)


def _count(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < 1 << 60 else None


def _oom(plain: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | str | None:
    """The facts of the first out-of-memory error."""
    for one in plain:
        oom = one.get("oom")
        if isinstance(oom, str) and oom:
            return oom
        if isinstance(oom, dict) and oom.get("schema") == OOM_SCHEMA:
            return oom
    return None
