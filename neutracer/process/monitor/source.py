# SPDX-License-Identifier: Apache-2.0
"""What a monitor reads, and by which road: the hooks' native figures, or PyTorch's own
entry points from a thread of Python's where there are no hooks."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import neutracer.process.device.devices as nvidia
import neutracer.process.hooks.attach as hooks
from neutracer._native import core
from neutracer.errors import UnavailableError

__all__ = ["CPU", "Poller", "Road", "find_road", "parse_devices", "read_total"]

#: The number of the CPU.
CPU = -1

# A device that can't be read is tried again after so long, then after twice that, and so
# on.
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Road:
    """Where the readings of a monitor come from.

    Attributes:
        devices: The devices' numbers; -1 is the CPU.
        slots: NVML's number of each, or -1.
        nvml: NVML as neutracer opened it, or None.
        source: A capsule with native functions, None for the hooks' own, False for none.
        name: "hooks", "python" or what made the capsule.
        hooks_begun: The hooks record because of this monitor, and are silenced after it.
    """

    devices: tuple[int, ...]
    slots: tuple[int, ...]
    nvml: object
    source: object
    name: str
    hooks_begun: bool = False


def parse_devices(devices: object) -> tuple[int, ...] | None:
    """The numbers that `devices` means; None for all.

    Raises:
        ValueError: Something names no device.
    """
    if devices is None:
        return None
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    numbers = [_number(one) for one in (devices if several else [devices])]  # type: ignore[attr-defined]
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"devices must be at least one, none of them twice: {devices!r}")
    return tuple(numbers)


def _number(device: object) -> int:
    match = re.fullmatch(r"(cpu|-1)|(?:cuda:)?(\d+)|cuda", str(device), re.ASCII)
    if match is None:
        raise ValueError(f"{device!r} names no device: write 0, 'cuda:0' or 'cpu'")
    return CPU if match[1] else int(match[2] or 0)


def find_road(devices: tuple[int, ...] | None) -> Road:
    """How to read these devices, or all that there are.

    Raises:
        UnavailableError: torch is not imported; there is no CUDA device, and the CPU can't
            be followed either.
        ValueError: There is no such device.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch first")
    count = torch.cuda.device_count()
    if devices == (CPU,) or (devices is None and count == 0):
        return _cpu_road(count)
    wanted = tuple(range(count)) if devices is None else devices
    wrong = [number for number in wanted if not 0 <= number < count]
    if wrong:
        there = f"there are {count} devices" if count else "there is no CUDA device here"
        mixed = " (the CPU is followed alone)" if CPU in wrong else ""
        raise ValueError(f"there is no device {wrong[0]}: {there}{mixed}")
    slots = nvidia.visible_slots()
    places = tuple(slots.get(number, -1) for number in wanted)
    opened = nvidia.devices() if slots else None
    native = torch.cuda.get_allocator_backend() == "native" and hooks.try_load() is not None
    if native:
        return Road(wanted, places, opened, None, "hooks")
    return Road(wanted, places, opened, False, "python")


def _cpu_road(cuda_devices: int) -> Road:
    """The CPU's own memory, which only the hooks of a torch without CUDA can follow."""
    what = "a CUDA device in this process" if not cuda_devices else "the CPU's memory"
    if sys.modules["torch"].version.cuda is not None:
        raise UnavailableError(
            what, "a torch that is built for CUDA does not report what it allocates on the CPU"
        )
    try:
        hooks.load()
        before = hooks.state()
        hooks.attach()
    except UnavailableError as error:
        raise UnavailableError(what, f"the CPU can't be followed: {error}") from error
    begun = before is None or not before.active
    return Road((CPU,), (-1,), None, None, "hooks", begun)


def read_total(device: int) -> tuple[int, int, int] | None:
    """Bytes in use on a device by everybody (0: not known), its total, and what PyTorch's
    allocator may reserve of that (0: all); None: not known."""
    torch: Any = sys.modules.get("torch")
    is_in_use = torch is not None and torch.cuda.is_initialized()
    try:
        memory = nvidia.device_memory(device)
        used, total = memory.used_bytes or 0, memory.total_bytes
    except (UnavailableError, OSError, ValueError):
        if not is_in_use:
            return None
        used, total = 0, torch.cuda.get_device_properties(device).total_memory
    return used, total, _cap(torch, device, total) if is_in_use else 0


def _cap(torch: Any, device: int, total: int) -> int:
    """What torch.cuda.set_per_process_memory_fraction leaves of a device; 0: all."""
    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    share = 1.0 if ask is None else float(ask(device))
    return int(share * total) if 0.0 < share < 1.0 else 0


class Poller:
    """Reads by PyTorch's own entry points, in a thread of Python's."""

    def __init__(
        self, sampler: core.Sampler, devices: tuple[int, ...], interval: float, slow: float
    ) -> None:
        self._sampler = sampler
        self._devices = devices
        self._interval = interval
        self._slow = slow
        self._slow_at = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._waits = [0.0] * len(devices)
        self._ask_at = [0.0] * len(devices)
        self.error = ""
        self._thread = threading.Thread(target=self._run, name="neutracer-poller", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait for the reading in progress."""
        self._ended.set()
        self._thread.join()

    def read(self) -> None:
        """One reading of each device."""
        with self._lock:
            now = time.monotonic()
            slow = now >= self._slow_at
            self._slow_at = now + self._slow if slow else self._slow_at
            for index, device in enumerate(self._devices):
                if now >= self._ask_at[index]:
                    self._read_one(index, device, slow)

    def _read_one(self, index: int, device: int, slow: bool) -> None:
        torch: Any = sys.modules["torch"]
        try:
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            if slow and (memory := read_total(device)) is not None:
                self._sampler.put_memory(index, *memory)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self._waits[index] = min(max(2 * self._waits[index], _FIRST_WAIT_S), _LONGEST_WAIT_S)
            self._ask_at[index] = time.monotonic() + self._waits[index]
            self._sampler.put_failure(index, -1)
            return
        self._waits[index] = 0.0
        # Before CUDA is initialised there are none; a device that the program does not use
        # has nothing but zeros.
        if stats and stats["reserved_bytes"]["all"]["peak"]:
            self._sampler.put(index, *_figures(stats))

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(due - time.monotonic(), 0.0)):
            self.read()
            behind = (time.monotonic() - due) // self._interval
            due += self._interval * (max(behind, 0.0) + 1)


def _figures(stats: Any) -> tuple[int, ...]:
    """What `core.Sampler.put` takes, out of PyTorch's figures."""
    names = ("allocated", "reserved", "active", "inactive_split", "requested")
    now = [stats.get(f"{name}_bytes", {}).get("all", {}).get("current", 0) for name in names]
    counts = stats["num_alloc_retries"], stats["num_ooms"]
    peaks = (stats[f"{name}_bytes"]["all"]["peak"] for name in names[:2])
    return (*now, *counts, *peaks)
