# SPDX-License-Identifier: Apache-2.0
"""Which device of a snapshot is meant, and what devices are called."""

from __future__ import annotations

from typing import Protocol

from neutracer.arguments import whole_number

__all__ = ["CPU", "PINNED", "cache_emptier", "chosen_device", "device_name", "shown_device"]

#: What reports have as their device where it is none of CUDA's: the CPU, and the host's pinned
#: memory.
CPU, PINNED = -1, -2


def chosen_device(devices: tuple[int, ...], traced: int, device: int | None) -> int:
    """The device, or the only one there is.

    Args:
        devices: Those with segments or events.
        traced: How many have a trace, though it may be empty.
        device: Its number; None is the only one.

    Raises:
        ValueError: There is no such device, or there are several and None was given.
        TypeError: It is no number.
    """
    if device is None:
        if len(devices) > 1:
            which = "say which with device= (--device)"
            raise ValueError(f"the snapshot has several devices, {which}: {devices}")
        return devices[0] if devices else 0
    if isinstance(device, str):
        raise TypeError(f"a snapshot's device must be its number, like 0, not {device!r}")
    device = whole_number("a snapshot's device", device, "its number, as 0")
    if device not in devices and not 0 <= device < traced:
        others = f"only {devices}" if devices else "nor any other"
        raise ValueError(f"the snapshot has no device {device}, {others}")
    return device


class _Placed(Protocol):
    """What says whose memory it shows, as a Snapshot does."""

    @property
    def is_cpu(self) -> bool: ...

    @property
    def is_pinned(self) -> bool: ...


def shown_device(snap: _Placed, number: int) -> int:
    """The device that a report of a snapshot has for its device `number`."""
    return PINNED if snap.is_pinned else CPU if snap.is_cpu else number


def cache_emptier(device: int) -> str:
    """The call that gives back what is cached of a report's device."""
    if device == PINNED:
        # As old as the recording of this memory.
        return "torch.accelerator.empty_host_cache()"
    return "torch.cuda.empty_cache()"


def device_name(device: int) -> str:
    """What a report calls its device: "cuda:0", "cpu" or "pinned host memory"."""
    return {CPU: "cpu", PINNED: "pinned host memory"}.get(device, f"cuda:{device}")
