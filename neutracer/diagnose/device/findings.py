# SPDX-License-Identifier: Apache-2.0
"""What is worth reporting of a device's memory, each with its evidence and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from neutracer.process.device.cupti_library import library_of
from neutracer.process.device.devices import DeviceMemory, ProcessUse, VisibleDevice
from neutracer.process.device.sums import PYTORCH, LibraryUse
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding, ranked
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["findings_of"]

# A context with its kernels, and the workspaces of cuBLAS: what every program pays.
_USUAL_OVERHEAD = 1 << 30
# Shares of the device above which others' memory is a problem.
_MODERATE, _SERIOUS = 0.05, 0.25
_FULL = 0.05

# The libraries named as suspects where they can't be told apart.
_SUSPECTS = {"NCCL", "cuBLAS", "cuDNN", "CuPy", "JAX", "TensorFlow", "TensorRT", "NVSHMEM"}


def findings_of(
    one: VisibleDevice,
    memory: DeviceMemory,
    processes: Sequence[ProcessUse],
    own: int | None,
    others: int | None,
    torch_bytes: int,
    uses: Sequence[LibraryUse],
    attribution: str,
    process_list: str,
) -> tuple[Finding, ...]:
    """The findings about one device, the worst first.

    Args:
        one: The device.
        memory: Its memory.
        processes: The processes on it.
        own: This process's bytes, or None.
        others: The other processes' bytes, or None.
        torch_bytes: What PyTorch has reserved.
        uses: What each library holds, if that is known.
        attribution: "on", or why it is not known.
        process_list: Why the list of processes can't be used, or "".
    """
    if own is not None:
        outside: int | None = own - torch_bytes
    elif memory.used_bytes is not None and torch_bytes:
        outside = memory.used_bytes - torch_bytes - (others or 0)
    else:
        outside = None
    return ranked(
        (
            *_others(memory, processes, others),
            *_outside(memory, outside, own, uses),
            *_full(memory),
            *_limits(one, memory, process_list),
            *_stepped_aside(attribution),
        )
    )


def _severity(share: float) -> Severity:
    if share < _MODERATE:
        return Severity.INFO
    return Severity.MODERATE if share < _SERIOUS else Severity.SERIOUS


def _others(
    memory: DeviceMemory, processes: Sequence[ProcessUse], others: int | None
) -> tuple[Finding, ...]:
    if not others:
        return ()
    share = others / memory.total_bytes
    rows = [use for use in processes if not use.is_own and use.bytes]
    evidence = tuple(
        Note(f"{format_bytes(use.bytes or 0)} in process {use.pid} {use.name}".rstrip())
        for use in rows[:3]
    )
    count = format_count(len(rows), "other process", "other processes")
    message = f"{count} {'holds' if len(rows) == 1 else 'hold'} {format_bytes(others)}"
    advice = () if share < _MODERATE else (Note("end those not needed, or use another device"),)
    return (
        Finding(
            "other_processes",
            _severity(share),
            others,
            f"{message} of this device ({format_share(share)})",
            evidence,
            advice,
        ),
    )


def _outside(
    memory: DeviceMemory,
    outside: int | None,
    own: int | None,
    uses: Sequence[LibraryUse],
) -> tuple[Finding, ...]:
    """What is not PyTorch's in this process, or, where that is not known, on the device."""
    if outside is None or outside <= 0:
        return ()
    foreign = [use for use in uses if use.library != PYTORCH and use.bytes]
    evidence = [
        Note(f"{format_bytes(use.bytes)} is {use.library}'s", detail=_allocations(use))
        for use in foreign[:4]
    ]
    rest = outside - sum(use.bytes for use in foreign)
    if foreign and rest > 0:
        evidence.append(
            Note(f"{format_bytes(rest)} is CUDA's context, and what nothing accounts for")
        )
    advice: tuple[Note, ...] = ()
    if not uses:
        loaded = _loaded_suspects()
        if loaded:
            evidence.append(Note(f"Besides CUDA's context, loaded here: {', '.join(loaded)}"))
        advice = (
            Note("neutracer.attribute_device_memory(), switched on first, names the libraries"),
        )
    where = "this process's bytes" if own is not None else "the device's used bytes"
    message = f"{format_bytes(outside)} of {where} are not PyTorch's"
    above = max(0, outside - _USUAL_OVERHEAD)
    severity = _severity(above / memory.total_bytes) if above else Severity.INFO
    return (Finding("non_torch", severity, outside, message, tuple(evidence), advice),)


def _allocations(use: LibraryUse) -> str:
    return f"{format_count(use.count, 'allocation')}, peak {format_bytes(use.peak_bytes)}"


def _loaded_suspects() -> list[str]:
    """Libraries of this process that are known to take device memory of their own."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line[line.index("/") :] for line in maps.splitlines() if "/" in line}
    return sorted({library_of(path) for path in paths if ".so" in path} & _SUSPECTS)


def _full(memory: DeviceMemory) -> tuple[Finding, ...]:
    if memory.free_bytes is None or memory.free_bytes >= _FULL * memory.total_bytes:
        return ()
    share = format_share(memory.free_bytes / memory.total_bytes)
    message = f"{format_bytes(memory.free_bytes)} of the device are free ({share})"
    return (Finding("device_full", Severity.MODERATE, memory.free_bytes, message),)


def _limits(one: VisibleDevice, memory: DeviceMemory, process_list: str) -> tuple[Finding, ...]:
    """What these figures can't tell, and why."""
    found = []
    if process_list:
        message = "who else uses this device is not known here"
        found.append(Finding("no_process_list", Severity.INFO, 0, message, (Note(process_list),)))
    if memory.driver_bytes is None:
        message = "the driver's own memory can't be told apart from the used memory"
        if one.slot is None:
            message = "these figures come from the CUDA driver: NVML does not report this device"
        found.append(Finding("no_nvml", Severity.INFO, 0, message))
    if one.is_mig:
        message = "this device is divided into MIG instances, or is one: it is left as it is"
        found.append(Finding("mig", Severity.INFO, 0, message))
    if not one.is_certain:
        message = "the device was guessed: CUDA, which orders the devices, is not initialised"
        hint = (Note("set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use the device first"),)
        found.append(Finding("uncertain_device", Severity.INFO, 0, message, (), hint))
    return tuple(found)


def _stepped_aside(attribution: str) -> tuple[Finding, ...]:
    if "profiler" not in attribution:
        return ()
    message = "memory is no longer attributed to libraries: PyTorch's profiler took over"
    advice = (Note("call neutracer.attribute_device_memory() again after the profiler"),)
    return (Finding("attribution_off", Severity.INFO, 0, message, (), advice),)
