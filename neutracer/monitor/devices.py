# SPDX-License-Identifier: Apache-2.0
"""The visible devices, their memory and their processes.

NVML comes first, since it does not start CUDA. It ignores CUDA_VISIBLE_DEVICES, so devices are
matched by UUID. Without NVML the CUDA driver answers, if this process has started it. MIG settings
are left alone; a visible instance is found by its own UUID.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.render.report import PlainRow

# Library names that replace the usual ones.
_NVML: str | None = None
_DRIVER: str | None = None

_opened: tuple[int, core.Devices] | None = None  # By pid: a forked child opens its own.


@dataclass(frozen=True)
class VisibleDevice(PlainRow):
    """A device that CUDA shows to this process.

    Attributes:
        index: Its number in this process: `torch.device("cuda", index)`.
        uuid: Its full UUID: "GPU-...", or "MIG-..." for an instance.
        name: The product's name; may be empty.
        slot: NVML's number for it, or None.
        is_mig: It is an instance, or divided into instances.
        is_certain: False if its number is a guess: CUDA sorts different models by speed, in
            an order that only CUDA knows.
    """

    index: int
    uuid: str
    name: str
    slot: int | None
    is_mig: bool = False
    is_certain: bool = True


@dataclass(frozen=True)
class DeviceMemory(PlainRow):
    """A device's memory, in bytes; None if unknown.

    Attributes:
        total_bytes: Memory available to programs: `torch.cuda.mem_get_info()[1]`.
        free_bytes: Free memory: `torch.cuda.mem_get_info()[0]`.
        used_bytes: total_bytes - free_bytes.
        driver_bytes: The driver's own memory, in none of the others.
    """

    total_bytes: int
    free_bytes: int | None
    used_bytes: int | None
    driver_bytes: int | None


@dataclass(frozen=True)
class ProcessUse(PlainRow):
    """A process on a device.

    Attributes:
        pid: Its pid on the host, from NVML; it differs from the pid inside a container.
        name: Its name; "" if unknown.
        bytes: Its memory; None if NVML does not report it.
        is_own: It is this process.
    """

    pid: int
    name: str
    bytes: int | None
    is_own: bool


def devices() -> core.Devices:
    """NVML and the driver, opened once per process; `reason` explains a missing NVML."""
    global _opened
    pid = os.getpid()
    if _opened is None or _opened[0] != pid:
        _opened = (pid, core.Devices(_NVML, _DRIVER))
    return _opened[1]


def visible_devices() -> tuple[VisibleDevice, ...]:
    """The devices that CUDA shows, or would show, to this process, in its order.

    A started CUDA reports them; otherwise CUDA_VISIBLE_DEVICES selects from NVML's list.
    """
    opened = devices()
    try:
        shown = opened.visible()
    except UnavailableError:
        shown = None
    if shown is not None:
        return tuple(
            VisibleDevice(index, uuid, name, opened.find(uuid), is_mig)
            for index, (uuid, name, is_mig) in enumerate(shown)
        )
    if opened.reason is not None:
        raise UnavailableError("an NVIDIA device", f"there is no NVML here ({opened.reason})")
    return _visible_by_nvml(opened)


def _visible_by_nvml(opened: core.Devices) -> tuple[VisibleDevice, ...]:
    slots = opened.slots()
    chosen = _chosen_slots(os.environ.get("CUDA_VISIBLE_DEVICES"), opened)
    kinds = {name for _, name, _ in slots}
    is_certain = len(kinds) < 2 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    rows = opened.slots()  # Includes the instances just looked up.
    return tuple(
        VisibleDevice(index, *rows[slot][:2], slot, rows[slot][2], is_certain or not is_number)
        for index, (slot, is_number) in enumerate(chosen)
    )


def _chosen_slots(text: str | None, opened: core.Devices) -> list[tuple[int, bool]]:
    """The selection of CUDA_VISIBLE_DEVICES: (slot, whether it was chosen by number).

    As in CUDA, the first invalid entry ends the list, and a repeated device empties it.
    """
    uuids = [uuid for uuid, _, _ in opened.slots()]
    if text is None:
        return [(slot, True) for slot in range(len(uuids))]
    chosen: list[tuple[int, bool]] = []
    for entry in text.split(","):
        slot, is_number = _slot_of(entry.strip(), uuids, opened)
        if slot is None:
            break
        if any(slot == other for other, _ in chosen):
            return []
        chosen.append((slot, is_number))
    return chosen


def _slot_of(entry: str, uuids: Sequence[str], opened: core.Devices) -> tuple[int | None, bool]:
    number = re.match(r"\+?(\d+)", entry, re.ASCII)
    if number:
        slot = int(number[1])
        return (slot if slot < len(uuids) else None), True
    if entry.startswith("MIG-"):
        return opened.find(entry), False
    # A unique prefix of a UUID is enough.
    fitting = [slot for slot, uuid in enumerate(uuids) if uuid.startswith(entry)]
    is_uuid = entry.startswith("GPU-") and len(fitting) == 1
    return (fitting[0] if is_uuid else None), False


def visible_slots() -> dict[int, int]:
    """CUDA's device numbers mapped to NVML's; empty without NVML."""
    try:
        shown = visible_devices()
    except UnavailableError:
        return {}
    return {device.index: device.slot for device in shown if device.slot is not None}


def find_device(device: object = None) -> VisibleDevice:
    """The visible device of a number, "cuda", "cuda:1", a torch.device; None is the only one."""
    shown = visible_devices()
    if not shown:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden!r} shows none"
        raise UnavailableError("an NVIDIA device in this process", hint)
    index = _index_of(device)
    if index is None and len(shown) > 1:
        names = ", ".join(f"{one.index} ({one.name or one.uuid})" for one in shown)
        raise ValueError(f"there are {len(shown)} devices, choose one: {names}")
    index = index or 0
    if not 0 <= index < len(shown):
        numbers = ", ".join(str(one.index) for one in shown)
        raise ValueError(f"there is no device {index}: the visible ones are {numbers}")
    return shown[index]


def _index_of(device: object) -> int | None:
    if device is None:
        return None
    if isinstance(device, int):
        return device
    match = re.fullmatch(r"cuda(?::(\d+))?", str(device), re.ASCII)
    if match is None:
        raise ValueError(f"not a CUDA device: {str(device)!r}")
    return int(match[1]) if match[1] else None


def device_memory(device: VisibleDevice | int) -> DeviceMemory:
    """The memory of a device, or of its number, now; about 4 microseconds with NVML."""
    one = find_device(device) if isinstance(device, int) else device
    if one.slot is not None:
        return DeviceMemory(*devices().memory(one.slot))
    return DeviceMemory(*devices().visible_memory(one.index))


def device_processes(device: VisibleDevice | int) -> tuple[ProcessUse, ...]:
    """The processes that use a device, largest first.

    NVML's figures include contexts and libraries. In a container its pids are the host's, and names
    are known only if this process is listed.
    """
    one = find_device(device) if isinstance(device, int) else device
    if one.slot is None:
        raise UnavailableError("a list of the device's processes", "NVML does not know the device")
    rows = devices().processes(one.slot)
    own = _own_pids()
    is_same_space = any(pid in own for pid, _ in rows)
    found = [
        ProcessUse(pid, _name_of(pid) if is_same_space else "", nbytes, pid in own)
        for pid, nbytes in rows
    ]
    return tuple(sorted(found, key=lambda use: (-(use.bytes or 0), use.pid)))


def _own_pids() -> set[int]:
    """This process's pids in all namespaces."""
    own = {os.getpid()}
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return own
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            own |= {int(word) for word in line.split()[1:] if word.isdigit()}
    return own


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
