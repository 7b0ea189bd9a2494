# SPDX-License-Identifier: Apache-2.0
"""CUPTI's records and PyTorch's segments combined: what each library holds."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutracer.process.recording.symbols import light_symbols
from neutracer.render.row import PlainRow

__all__ = [
    "MODULE_DATA",
    "OUTSIDE",
    "PYTORCH",
    "PYTORCH_FILE",
    "UNNAMED",
    "LibraryUse",
    "Segment",
    "summed",
    "torch_segments",
]

#: What PyTorch's allocator has reserved.
PYTORCH = "PyTorch"
#: What the rest of torch took past it.
OUTSIDE = "PyTorch outside its allocator"
#: What is on the device because kernels were loaded, not by a call.
MODULE_DATA = "kernels' static data"
#: Allocations through calls for which CUPTI names no library.
UNNAMED = "not told by CUPTI"
#: The core gets PyTorch's earlier segments under this name.
PYTORCH_FILE = "/libc10_cuda.so"

# Stands for an address in a segment that grows: its bytes are counted with the segment.
_GROWN = "PyTorch's growing segments"

# CUPTI's kinds of memory that lie on the device.
_DEVICE_KINDS = (3, 4)
_STATIC_KIND = 6


@dataclass(frozen=True)
class LibraryUse(PlainRow):
    """What a library holds on a device.

    Attributes:
        library: Its name: "PyTorch", "NCCL", ..., or the file's own name.
        device: The device's number in this process.
        bytes: What it holds now.
        peak_bytes: The most it held at once since the attribution was switched on.
        count: Its allocations that are live.
        allocations: How many it has made since then.
        files: The shared objects that asked.
    """

    library: str
    device: int
    bytes: int
    peak_bytes: int
    count: int
    allocations: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A segment of PyTorch's allocator."""

    device: int
    address: int
    size: int
    is_expandable: bool


def torch_segments() -> tuple[Segment, ...]:
    """What PyTorch's own allocator has reserved now; nothing where it was never used, or
    another one serves in its place."""
    torch = sys.modules.get("torch")
    dump = getattr(getattr(torch, "_C", None), "_cuda_memorySnapshot", None)
    if torch is None or dump is None or not torch.cuda.is_initialized():
        return ()
    with light_symbols():
        try:
            plain = dump((0, 0, False))  # without the trace, which may be long
        except TypeError:
            plain = dump()
        except RuntimeError:
            # Another allocator serves in its place, and has no such dump.
            return ()
    return tuple(
        Segment(
            segment["device"],
            segment["address"],
            segment["total_size"],
            segment.get("is_expandable", False),
        )
        for segment in plain["segments"]
    )


def summed(plain: dict[str, Any], segments: Sequence[Segment]) -> tuple[LibraryUse, ...]:
    """The core's rows as uses.

    What is in a segment of PyTorch's allocator is PyTorch's, whichever file CUPTI names: of a
    call that passes through several libraries CUPTI names one or another.
    """
    holders = _Holders(segments)
    totals: dict[tuple[int, str], list[int]] = {}
    for device, library, kind, address, nbytes in plain["live"]:
        if kind in _DEVICE_KINDS:
            library = holders.owner(address, library)
        elif kind == _STATIC_KIND:
            library = MODULE_DATA
        else:
            continue
        if library != _GROWN:
            total = totals.setdefault((device, library), [0, 0])
            total[0] += nbytes
            total[1] += 1
    for segment in holders.grown:
        total = totals.setdefault((segment.device, PYTORCH), [0, 0])
        total[0] += segment.size
        total[1] += 1
    return _uses(plain, totals)


class _Holders:
    """Whose an address is, by PyTorch's segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.grown = sorted(
            (segment for segment in segments if segment.is_expandable), key=lambda s: s.address
        )
        self._begins = [segment.address for segment in self.grown]
        self._whole = {segment.address for segment in segments if not segment.is_expandable}

    def owner(self, address: int, library: str) -> str:
        """The library, or `_GROWN` for what is counted with a segment that grows."""
        before = bisect.bisect_right(self._begins, address) - 1
        if before >= 0 and address < self._begins[before] + self.grown[before].size:
            return _GROWN
        if address in self._whole:
            return PYTORCH
        return OUTSIDE if library == PYTORCH else library or UNNAMED


def _uses(
    plain: dict[str, Any], totals: dict[tuple[int, str], list[int]]
) -> tuple[LibraryUse, ...]:
    """Live bytes and counts, with the peaks and counts of all the time, by library."""
    files: dict[str, list[str]] = {}
    for path, library in plain["sources"]:
        if path != PYTORCH_FILE:
            files.setdefault(library, []).append(path)
    past: dict[tuple[int, str], list[int]] = {}
    for device, library, kind, _, peak, _, made in plain["uses"]:
        if kind in (*_DEVICE_KINDS, _STATIC_KIND):
            name = MODULE_DATA if kind == _STATIC_KIND else library or UNNAMED
            figures = past.setdefault((device, name), [0, 0])
            figures[0] += peak
            figures[1] += made
    uses = []
    for device, library in {**past, **totals}:
        nbytes, count = totals.get((device, library), (0, 0))
        peak, made = past.get((device, library), (0, count))
        named = tuple(sorted(files.get(library, ())))
        uses.append(LibraryUse(library, device, nbytes, max(peak, nbytes), count, made, named))
    return tuple(sorted(uses, key=lambda use: (use.device, -use.bytes, use.library)))
