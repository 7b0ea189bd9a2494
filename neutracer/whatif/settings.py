# SPDX-License-Identifier: Apache-2.0
"""Allocator settings as PyTorch parses them, and a device's capacity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutracer._native import core
from neutracer.arguments import number
from neutracer.arguments import text as checked_text
from neutracer.errors import SettingsError
from neutracer.render.document import Copyable
from neutracer.trace.beside import DeviceRoom
from neutracer.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from neutracer.trace.snapshot import Snapshot

# ---- Replay settings ---------------------------------------------------------------------


def canonical(settings: str) -> str:
    """The shortest text with the same meaning.

    Example:
        >>> canonical("expandable_segments : True, max_split_size_mb:512")
        'expandable_segments:True,max_split_size_mb:512'
    """
    parsed = _parsed(settings)
    if not parsed["native_backend"]:
        raise SettingsError(
            "only PyTorch's native allocator can be replayed; other backends record no events",
            max(settings.find("backend"), 0),
        )
    return str(parsed["text"])


def _parsed(settings: str) -> dict[str, Any]:
    """The core's reading of a text for PYTORCH_CUDA_ALLOC_CONF."""
    if not isinstance(settings, str):
        kind = type(settings).__name__
        raise TypeError(f"settings must be a text for PYTORCH_CUDA_ALLOC_CONF, not {kind}")
    try:
        return core.parse_settings(settings)
    except UnicodeEncodeError as error:
        bad = settings[error.start]
        raise SettingsError(f"{bad!r} is half of a character", error.start) from None


def expandable_advice(recorded: str) -> str:
    """The advice to set expandable segments alone, replacing the settings in force.

    Example:
        >>> expandable_advice("max_split_size_mb:64")
        'try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of max_split_size_mb:64'
    """
    text = "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    return Copyable(f"{text} instead of {recorded}" if recorded else text)


def version_number(text: str | None) -> int:
    """The core's number of a PyTorch version; 0 for None, the newest known."""
    if text is None:
        return 0
    found = re.match(r"(\d{1,3})\.(\d{1,3})(\D|$)", checked_text("torch_version", text))
    if found is None:
        raise ValueError(f"a torch version looks like 2.11, not {text!r}")
    return int(found[1]) * 1000 + int(found[2])


def wanted_settings(settings: tuple[str, ...], is_size_given: bool) -> list[str]:
    """The default and the given settings, each once, in the shortest spelling."""
    wanted = {text: canonical(text) for text in ("", *settings)}
    shares = [text for text in wanted if _parsed(text)["per_process_memory_fraction"] < 1.0]
    if shares and not is_size_given:
        asked = f"{shares[0]!r} asks for a share of the device"
        raise ValueError(f"{asked}: give its size with capacity= (or --capacity)")
    return list(wanted.values())


def refuse_others(snap: Snapshot) -> None:
    """Raises a ValueError unless the trace is of PyTorch's native CUDA allocator."""
    only = "only traces of PyTorch's native CUDA allocator can be replayed"
    if not snap.settings_in_force["native_backend"]:
        raise ValueError(f"this program ran under another allocator: {only}")
    if snap.is_pinned:
        raise ValueError(f"this is the host's pinned memory, with its own allocator: {only}")
    if snap.is_cpu:
        raise ValueError(f"this is CPU memory, which PyTorch does not cache: {only}")


# ---- Capacity ----------------------------------------------------------------------------

# More than any device has; the core counts in 64 bits.
_MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class Asked:
    """The requested memory limit."""

    bytes: int  # The most that the process may have.
    fraction: float | None = None  # The share given to `set_per_process_memory_fraction`, or None.
    total_bytes: int | None = None  # The size of that device; None without `fraction`.

    @property
    def is_share(self) -> bool:
        """Whether PyTorch enforces it; to PyTorch a share of 1 is no limit."""
        return self.fraction is not None and self.fraction < 1.0


def asked_bytes(noun: str, size: int | str) -> int:
    """A size in bytes; `noun` names it in errors."""
    nbytes = parse_bytes(size)
    if not 0 < nbytes <= _MOST_BYTES:
        raise ValueError(f"a {noun} must be above 0 bytes and at most 2^60")
    return nbytes


def capacity_bytes(capacity: int | str | None) -> int | None:
    """`capacity=` in bytes, or None."""
    return None if capacity is None else asked_bytes("capacity", capacity)


def asked_capacity(
    capacity: int | str | None, fraction: float | None, room: DeviceRoom | None
) -> Asked | None:
    """The limit of `capacity=` and `fraction=`; None if neither is given.

    Args:
        capacity: The limit in bytes, or with `fraction` the size of the device.
        fraction: The argument of `set_per_process_memory_fraction`.
        room: The recorded device, if known.
    """
    total = capacity_bytes(capacity)
    if fraction is None:
        return None if total is None else Asked(total)
    share = number("fraction", fraction)
    if not 0.0 < share <= 1.0:
        raise ValueError(f"a fraction must be above 0 and at most 1, not {share:g}")
    if total is None and room is not None:
        total = room.total_bytes
    if total is None:
        raise ValueError(
            "a fraction needs the size of the device, which is not recorded beside this file: "
            "give it with capacity= (or --capacity)"
        )
    # As PyTorch computes it, in floating point.
    return Asked(max(int(share * total), 1), share, total)


def roundest(low: int, high: int) -> int:
    """The number from `low` to `high` that is divisible by the highest power of two."""
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high and 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def limit_notes(
    asked: Asked | None, room: DeviceRoom | None, facts: dict[str, Any], limits: tuple[int, ...]
) -> list[str]:
    """Sentences on the memory limit of the process, given or recorded.

    Args:
        asked: The requested limit; None is the recorded one.
        room: The recorded device, if known.
        limits: The assumed limits (`Replayer.limits`).
    """
    if asked is not None:
        return [_asked_sentence(asked)] if asked.total_bytes is not None else []
    if room is not None and room.limit_bytes is not None and limits == (room.limit_bytes,):
        return [
            "PyTorch limited this process (set_per_process_memory_fraction) to "
            f"{format_bytes(room.limit_bytes)} of {format_bytes(room.total_bytes)}, according to "
            "the JSON beside the file."
        ]
    if len(limits) > 1:
        guess, low, high = limits[0], min(limits), max(limits)
        return [
            f"PyTorch limited this process to between {format_bytes(low)} and "
            f"{format_bytes(high)}, judging by its failures; {format_bytes(guess)} is assumed, "
            "and ranges cover the whole span; set it with capacity= (or --capacity)."
        ]
    if facts["is_device"] and facts["limit_high"] is not None:
        return [_full_sentence(facts["limit_high"], room)]
    return []


def _asked_sentence(asked: Asked) -> str:
    total, share = format_bytes(asked.total_bytes or 0), f"{asked.fraction:g}"
    if not asked.is_share:
        return f"With a fraction of 1 PyTorch sets no limit: the device has {total}."
    return (
        f"Replayed with set_per_process_memory_fraction({share}) on a device of {total}: at most "
        f"{format_bytes(asked.bytes)}, with garbage_collection_threshold in effect."
    )


def _full_sentence(most: int, room: DeviceRoom | None) -> str:
    text = (
        f"The device was full, and PyTorch set no limit: {format_bytes(most)} were available to "
        "this process"
    )
    if room is None or room.total_bytes < most:
        return f"{text}."
    rest = format_bytes(room.total_bytes - most)
    return f"{text}; other processes, CUDA contexts and libraries held {rest}."
