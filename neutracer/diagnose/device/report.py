# SPDX-License-Identifier: Apache-2.0
"""Whose is this device's memory? PyTorch's, another library's, another process's."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from neutracer.diagnose.device.findings import findings_of
from neutracer.errors import UnavailableError
from neutracer.process.device.attribution import current_attribution
from neutracer.process.device.devices import (
    DeviceMemory,
    ProcessUse,
    VisibleDevice,
    device_memory,
    device_processes,
    devices,
    find_device,
)
from neutracer.process.device.sums import PYTORCH, LibraryUse
from neutracer.render.document import Block, Cell, Document, Figure, Table
from neutracer.render.report import Report

__all__ = ["DeviceReport", "device_report"]

# Rows of the printed tables; all are in the report.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceReport(Report):
    """Who holds a device's memory.

    used_bytes is torch_bytes, what other libraries of this process hold, what other processes
    hold, and unattributed_bytes: this process's CUDA context, and all that has no known
    owner.

    Attributes:
        device: The device's number in this process.
        uuid: Its UUID.
        name: The product's name.
        driver: The driver's version; "" where it is not known.
        total_bytes: What programs can have: torch.cuda.mem_get_info()[1].
        free_bytes: What nobody has taken; None where only a CUDA context could tell.
        used_bytes: The rest; None likewise.
        driver_bytes: What the driver keeps for itself, in none of the others; None where
            it can't be told apart from the rest.
        torch_bytes: What PyTorch has reserved: reserved_bytes.all.current; 0 where it has
            not used the device.
        torch_allocated_bytes: Of these, in allocated blocks.
        process_bytes: What this process has taken in all, by NVML; None where NVML does not
            say.
        other_bytes: What other processes have taken; None where that is not known.
        unattributed_bytes: Used by unknown owners; None where used_bytes is.
        by_library: By library, PyTorch among them, the largest first; empty unless an
            attribution is on (`attribute_device_memory`).
        by_process: The processes on the device, the largest first.
        attribution: "on", or why by_library is empty.
        process_list: "" or why NVML's list of processes can't be used.
    """

    schema = "neutracer.device/1"

    device: int
    uuid: str
    name: str
    driver: str
    total_bytes: int
    free_bytes: int | None
    used_bytes: int | None
    driver_bytes: int | None
    torch_bytes: int
    torch_allocated_bytes: int
    process_bytes: int | None
    other_bytes: int | None
    unattributed_bytes: int | None
    by_library: tuple[LibraryUse, ...]
    by_process: tuple[ProcessUse, ...]
    attribution: str
    process_list: str

    def document(self) -> Document:
        """The report as a page."""
        facts = (self.name, f"driver {self.driver}" if self.driver else "", self.uuid)
        return Document(
            f"cuda:{self.device}",
            tuple(fact for fact in facts if fact),
            (*self.finding_blocks(), self._holders(), *self._processes()),
        )

    def _holders(self) -> Table:
        rows: list[tuple[Cell, ...]] = [self._row("PyTorch", self.torch_bytes, "reserved")]
        foreign = [use for use in self.by_library if use.library != PYTORCH]
        for use in foreign[:_SHOWN]:
            note = f"peak {Figure.bytes(use.peak_bytes)}"
            rows.append(self._row(use.library, use.bytes, note))
        if len(foreign) > _SHOWN:
            rest = sum(use.bytes for use in foreign[_SHOWN:])
            rows.append(self._row("other libraries", rest, ""))
        if self.other_bytes:
            rows.append(self._row("other processes", self.other_bytes, ""))
        if self.unattributed_bytes is not None:
            note = "CUDA's context, and what nothing accounts for"
            rows.append(self._row("the rest", self.unattributed_bytes, note))
        if self.free_bytes is not None:
            rows.append(self._row("free", self.free_bytes, ""))
        rows.append(self._row("total", self.total_bytes, ""))
        notes: tuple[str, ...] = ()
        if not self.by_library:
            notes = (f"Not split by library: {self.attribution}.",)
        return Table("Who holds it", tuple(rows), ("", "", "", ""), notes)

    def _row(self, who: str, nbytes: int, note: str) -> tuple[Cell, ...]:
        share = Figure.share(nbytes / self.total_bytes) if self.total_bytes else ""
        return (who, Figure.bytes(nbytes), share, note)

    def _processes(self) -> tuple[Block, ...]:
        if not self.by_process:
            return ()
        rows = tuple(
            (
                f"{use.pid}",
                use.name + (" (this process)" if use.is_own else ""),
                "" if use.bytes is None else Figure.bytes(use.bytes),
            )
            for use in self.by_process[:_SHOWN]
        )
        shown = f" ({_SHOWN} of {len(self.by_process)})" if len(self.by_process) > _SHOWN else ""
        return (Table(f"Processes{shown}", rows),)


def device_report(device: object = None) -> DeviceReport:
    """Who holds the memory of a device: PyTorch, other libraries, other processes.

    This does not start CUDA and allocates nothing. Libraries are known while
    `attribute_device_memory()` is on.

    Args:
        device: Its number in this process, "cuda:1" or a torch.device; None is the only one.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        UnavailableError: There is no NVIDIA device that this process can see.
        ValueError: There is no such device, or None was given and there are several.
        OSError: The device does not answer.

    Example:
        >>> import neutracer
        >>> report = neutracer.device_report()    # doctest: +SKIP
        >>> report.total_bytes - report.free_bytes == report.used_bytes    # doctest: +SKIP
        True
    """
    one = find_device(device)
    reserved, allocated = _torch_use(one.index)
    uses, attribution = _libraries(one.index)
    # Read together, and last: what happens between the readings counts as the rest.
    processes, process_list = _processes(one, reserved)
    memory = device_memory(one)
    own, others = _split(processes, process_list, has_cuda=reserved > 0)
    foreign = sum(use.bytes for use in uses if use.library != PYTORCH)
    known = reserved + foreign
    return DeviceReport(
        device=one.index,
        uuid=one.uuid,
        name=one.name,
        driver=devices().version,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        used_bytes=memory.used_bytes,
        driver_bytes=memory.driver_bytes,
        torch_bytes=reserved,
        torch_allocated_bytes=allocated,
        process_bytes=own,
        other_bytes=others,
        unattributed_bytes=_rest(memory, known, others),
        by_library=uses,
        by_process=processes,
        attribution=attribution,
        process_list=process_list,
        findings=findings_of(
            one, memory, processes, own, others, reserved, uses, attribution, process_list
        ),
    )


def _torch_use(index: int) -> tuple[int, int]:
    """PyTorch's reserved and allocated bytes on a device, without starting CUDA."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0, 0
    stats = cuda.memory_stats(index)
    names = ("reserved_bytes.all.current", "allocated_bytes.all.current")
    return stats.get(names[0], 0), stats.get(names[1], 0)


def _libraries(index: int) -> tuple[tuple[LibraryUse, ...], str]:
    """By library, and "on" or why there is nothing."""
    attribution = current_attribution()
    if attribution is None:
        return (), "neutracer.attribute_device_memory() was not on"
    if not attribution.is_on:
        return (), f"the attribution is off: {attribution.reason}"
    return attribution.by_library(index), "on"


def _processes(one: VisibleDevice, reserved: int) -> tuple[tuple[ProcessUse, ...], str]:
    """The processes on the device, and why the list can't be used where it can't."""
    try:
        found = device_processes(one)
    except UnavailableError as error:
        return (), error.install
    except OSError as error:
        return (), str(error)
    own = [use for use in found if use.is_own]
    if any(use.bytes is not None and use.bytes < reserved for use in own):
        # Another process that has our number in the namespace in which NVML counts.
        return found, "NVML's process numbers are not this container's"
    if not own and reserved:
        if not found:
            return (), "NVML's list of processes is empty here, as in some containers"
        return found, f"NVML does not list this process ({os.getpid()}), as in a container"
    return found, ""


def _split(
    processes: tuple[ProcessUse, ...], process_list: str, *, has_cuda: bool
) -> tuple[int | None, int | None]:
    """(this process's bytes, the others'); None for what the list does not tell."""
    if process_list:
        return None, None
    own = [use.bytes for use in processes if use.is_own]
    others = [use.bytes for use in processes if not use.is_own]
    mine: int | None = own[0] if own else 0
    if not own and has_cuda:
        mine = None
    theirs = None if None in others else sum(nbytes or 0 for nbytes in others)
    return mine, theirs


def _rest(memory: DeviceMemory, known: int, others: int | None) -> int | None:
    """What is in use with no known owner. Not below zero: the figures are not read in one
    instant."""
    if memory.used_bytes is None:
        return None
    return max(0, memory.used_bytes - known - (others or 0))
