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

# Settings and versions as their users write them, and what the core makes of them.


def canonical(settings: str) -> str:
    """The shortest text with the same meaning.

    Args:
        settings: A PYTORCH_CUDA_ALLOC_CONF text.

    Raises:
        SettingsError: PyTorch would not accept it, or it asks for an allocator that is not
            PyTorch's native one; `.position` is where.

    Example:
        >>> canonical("expandable_segments : True, max_split_size_mb:512")
        'expandable_segments:True,max_split_size_mb:512'
    """
    parsed = _parsed(settings)
    if not parsed["native_backend"]:
        raise SettingsError(
            "the model is of PyTorch's native allocator; nobody records what other backends do",
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


def takes_share(settings: str) -> bool:
    """Whether settings limit the process to a share of its device."""
    return float(_parsed(settings)["per_process_memory_fraction"]) < 1.0


def expandable_advice(recorded: str) -> str:
    """The advice to set expandable segments, and nothing else, in place of what is set.

    Args:
        recorded: The settings in force, as text; "" is the default.

    Example:
        >>> expandable_advice("max_split_size_mb:64")
        'try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of max_split_size_mb:64'
    """
    text = "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    return Copyable(f"{text} instead of {recorded}" if recorded else text)


def version_number(text: str | None) -> int:
    """The core's number of a version of PyTorch; 0 for None, which is the newest known.

    Raises:
        TypeError: It is no text.
        ValueError: It is no version.

    Example:
        >>> version_number("2.11.0+cu130")
        2011
    """
    if text is None:
        return 0
    found = re.match(r"(\d{1,3})\.(\d{1,3})(\D|$)", checked_text("torch_version", text))
    if found is None:
        raise ValueError(f"a version of torch is written as 2.11, not {text!r}")
    return int(found[1]) * 1000 + int(found[2])


def wanted_settings(settings: tuple[str, ...], is_size_given: bool) -> list[str]:
    """The default and the given settings, each once, in the shortest spelling.

    Raises:
        SettingsError: PyTorch would not accept one.
        ValueError: One asks for a share of a device whose size nobody gave.
    """
    wanted = {text: canonical(text) for text in ("", *settings)}
    shares = [text for text in wanted if takes_share(text)]
    if shares and not is_size_given:
        asked = f"{shares[0]!r} asks for a share of the device"
        raise ValueError(f"{asked}: capacity= (or --capacity) says how large it is")
    return list(wanted.values())


def refuse_others(snap: Snapshot) -> None:
    """Raises a ValueError for what is not the work of PyTorch's native CUDA allocator."""
    if not snap.settings_in_force["native_backend"]:
        raise ValueError(
            "this program ran under another allocator than PyTorch's native one, which "
            "records nothing that could be replayed"
        )
    if snap.is_pinned:
        raise ValueError(
            "this is the host's pinned memory, which has an allocator of its own: only what "
            "PyTorch's native CUDA allocator did can be replayed"
        )
    if snap.is_cpu:
        raise ValueError(
            "this is the memory of the CPU, which PyTorch takes from the system block by block, "
            "without a cache: only what its native CUDA allocator did can be replayed"
        )


# ---- Capacity ----------------------------------------------------------------------------

# How much memory a process may have: a share of its device, a smaller device, or what others
# leave of it.

# More than any device has; the core counts in 64 bits.
_MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class Asked:
    """The memory that a question is about.

    Attributes:
        bytes: The most that the process may have.
        fraction: It is the limit of `set_per_process_memory_fraction(fraction)`; None: another.
        total_bytes: The device's that it is a share of; None where `fraction` is.
    """

    bytes: int
    fraction: float | None = None
    total_bytes: int | None = None

    @property
    def is_share(self) -> bool:
        """Whether PyTorch keeps the process below it. A share of 1 is no limit to PyTorch."""
        return self.fraction is not None and self.fraction < 1.0


def asked_bytes(noun: str, size: int | str) -> int:
    """The bytes of a size that a question is about; `noun` is what it is one of, for messages.

    Raises:
        ValueError: It is no size, or out of range.
        TypeError: It is neither a number nor a text.
    """
    nbytes = parse_bytes(size)
    if not 0 < nbytes <= _MOST_BYTES:
        raise ValueError(f"a {noun} must be above 0 bytes and at most 2^60")
    return nbytes


def capacity_bytes(capacity: int | str | None) -> int | None:
    """The bytes of a `capacity=`, as `asked_bytes` has them; None where none is given."""
    return None if capacity is None else asked_bytes("capacity", capacity)


def asked_capacity(
    capacity: int | str | None, fraction: float | None, room: DeviceRoom | None
) -> Asked | None:
    """What `capacity=` and `fraction=` ask for; None where neither is given.

    Args:
        capacity: The most bytes, or with `fraction` those of the whole device.
        fraction: The share that `set_per_process_memory_fraction` is given.
        room: The device that it was recorded on, where this is known.

    Raises:
        ValueError: One is out of range, or nothing says how large the device is.
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
            "a fraction is a share of the device, and nothing beside this file says how large "
            "that was: capacity= (or --capacity) says it"
        )
    # As PyTorch computes it, in floating point.
    return Asked(max(int(share * total), 1), share, total)


def roundest(low: int, high: int) -> int:
    """The number from `low` to `high` that most powers of two divide.

    Example:
        >>> roundest(2028 << 20, 2120 << 20) >> 20
        2048
    """
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high and 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def limit_notes(
    asked: Asked | None, room: DeviceRoom | None, facts: dict[str, Any], limits: tuple[int, ...]
) -> list[str]:
    """What limited the process, or would, in a sentence or two.

    Args:
        asked: What the question asks for, or None: as when it was recorded.
        room: What is known of the device then.
        facts: What the core knows of the program.
        limits: What is assumed of the limit, as `Replayer.limits` has it.
    """
    if asked is not None:
        return [_asked_sentence(asked)] if asked.total_bytes is not None else []
    if room is not None and room.limit_bytes is not None and limits == (room.limit_bytes,):
        return [
            "PyTorch kept this process below a limit of its own "
            f"(set_per_process_memory_fraction): {format_bytes(room.limit_bytes)} of "
            f"{format_bytes(room.total_bytes)}, as the JSON beside the file says."
        ]
    if len(limits) > 1:
        guess, low, high = limits[0], min(limits), max(limits)
        return [
            f"PyTorch kept this process below a limit from {format_bytes(low)} to "
            f"{format_bytes(high)}, as its failures show; {format_bytes(guess)} is assumed, "
            "ranges cover the whole span; capacity= (or --capacity) sets it."
        ]
    if facts["is_device"] and facts["limit_high"] is not None:
        return [_full_sentence(facts["limit_high"], room)]
    return []


def _asked_sentence(asked: Asked) -> str:
    total, share = format_bytes(asked.total_bytes or 0), f"{asked.fraction:g}"
    if not asked.is_share:
        return f"With a fraction of 1 PyTorch sets no limit: the device has {total}."
    return (
        f"Asked with set_per_process_memory_fraction({share}) on a device of {total}: at most "
        f"{format_bytes(asked.bytes)}, and garbage_collection_threshold acts."
    )


def _full_sentence(most: int, room: DeviceRoom | None) -> str:
    """What the device had left for a process that was refused memory by it."""
    text = (
        f"The device was full, without a limit of PyTorch's: it had {format_bytes(most)} for "
        "this process"
    )
    if room is None or room.total_bytes < most:
        return f"{text}."
    rest = format_bytes(room.total_bytes - most)
    return f"{text}, and {rest} were held by other processes, CUDA's contexts and libraries."
