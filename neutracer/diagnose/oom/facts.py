# SPDX-License-Identifier: Apache-2.0
"""What is known of an out-of-memory error beside its snapshot.

A snapshot shows what PyTorch's allocator held, but not how large the device is, what others
have on it, what the process was allowed, or what garbage held. Whoever was there when it
happened can say so in an `OomFacts`, which is kept in the JSON file beside the snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from neutracer.trace.beside import OOM_SCHEMA, Beside, DeviceRoom

__all__ = ["OomFacts", "facts_of", "with_room"]

_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)"

# Sizes in PyTorch's message, as the releases since 1.13 word them.
_IN_MESSAGE = {
    "segment_bytes": re.compile(rf"Tried to allocate {_SIZE}"),
    "device_total_bytes": re.compile(rf"(?:total capacity of {_SIZE}|{_SIZE} total capacity)"),
    "device_free_bytes": re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)"),
    "process_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
    "limit_bytes": re.compile(rf"{_SIZE} allowed"),
}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_DEVICE = re.compile(r"\bGPU (\d+)\b")

_COUNTS = (
    "device",
    "segment_bytes",
    "limit_bytes",
    "device_total_bytes",
    "device_free_bytes",
    "process_bytes",
    "others_bytes",
    "garbage_bytes",
    "time_us",
)


@dataclass(frozen=True, kw_only=True)
class OomFacts:
    """What is known of an out-of-memory error beside the snapshot; sizes in bytes.

    None, "" and () mean that it is not known.

    Attributes:
        device: The CUDA device.
        segment_bytes: What was asked of the device: the request rounded to a segment.
        limit_bytes: What PyTorch kept this process below; the device's size where it did
            not.
        device_total_bytes: All of the device's memory.
        device_free_bytes: What the device had left when the request failed.
        process_bytes: All that this process had on the device, its context included.
        others_bytes: What other processes had on it.
        garbage_bytes: What tensors held that only a collection would have freed.
        garbage_addresses: Where such memory begins, as far as known.
        time_us: When it was, in microseconds since the epoch.
        stack: The Python stack: file, line and function, innermost first.
        tensors: The tensors of the program's innermost frame: "x: (64, 1024) float32".
        grad_enabled: Whether autograd recorded in the allocating thread.
        message: PyTorch's own text of the exception.
        is_rounded: Whether sizes are PyTorch's words, which have two decimals.
    """

    device: int | None = None
    segment_bytes: int | None = None
    limit_bytes: int | None = None
    device_total_bytes: int | None = None
    device_free_bytes: int | None = None
    process_bytes: int | None = None
    others_bytes: int | None = None
    garbage_bytes: int | None = None
    garbage_addresses: tuple[int, ...] = ()
    time_us: int | None = None
    stack: tuple[tuple[str, int, str], ...] = ()
    tensors: tuple[str, ...] = ()
    grad_enabled: bool | None = None
    message: str = ""
    is_rounded: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(
                    f"{name} must be a whole number, or None, not {type(value).__name__}"
                )

    @classmethod
    def from_message(cls, message: str) -> OomFacts:
        """What PyTorch's text says; sizes in it are rounded to two decimals.

        Example:
            >>> facts = OomFacts.from_message(
            ...     "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity "
            ...     "of 139.80 GiB of which 138.00 GiB is free. 2.00 GiB allowed; Of the ..."
            ... )
            >>> facts.device, facts.segment_bytes >> 20, facts.limit_bytes >> 20
            (0, 1536, 2048)
        """
        if not isinstance(message, str):
            raise TypeError(f"a message must be PyTorch's text, not {type(message).__name__}")
        found: dict[str, Any] = {}
        for name, pattern in _IN_MESSAGE.items():
            match = pattern.search(message)
            if match:
                found[name] = _bytes_of(match)
        others = [_bytes_of(match) for match in _OTHERS.finditer(message)]
        if others:
            found["others_bytes"] = sum(others)
        device = _DEVICE.search(message)
        number = int(device[1]) if device else None
        return cls(device=number, message=message, is_rounded=True, **found)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> OomFacts:
        """The facts that `to_dict` wrote down; what is of another kind is left out.

        Raises:
            ValueError: It is not such a dict.
        """
        if not isinstance(plain, Mapping) or plain.get("schema") != OOM_SCHEMA:
            raise ValueError(f"facts of an out-of-memory error have the schema {OOM_SCHEMA!r}")
        found: dict[str, Any] = {n: plain[n] for n in _COUNTS if _is_count(plain.get(n))}
        for name in ("grad_enabled", "is_rounded"):
            if isinstance(plain.get(name), bool):
                found[name] = plain[name]
        message = plain.get("message")
        found["message"] = message if isinstance(message, str) else ""
        found["garbage_addresses"] = tuple(
            one for one in _listed(plain, "garbage_addresses") if _is_count(one)
        )
        found["tensors"] = tuple(t for t in _listed(plain, "tensors") if isinstance(t, str))
        found["stack"] = tuple(
            (frame[0], frame[1], frame[2])
            for frame in _listed(plain, "stack")
            if isinstance(frame, list | tuple)
            and len(frame) == 3
            and all(map(isinstance, frame, (str, int, str)))
        )
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data for JSON; what is not known is left out."""
        plain: dict[str, Any] = {"schema": OOM_SCHEMA}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != () and value != "" and value is not False:
                plain[field.name] = [*value] if isinstance(value, tuple) else value
        if self.grad_enabled is not None:
            plain["grad_enabled"] = self.grad_enabled
        plain["stack"] = [list(frame) for frame in self.stack]
        return plain

    def filled(self) -> OomFacts:
        """The facts, with what is not known taken from the message where it says so."""
        if not self.message:
            return self
        said = OomFacts.from_message(self.message)
        missing = {
            name: getattr(said, name)
            for name in _COUNTS
            if getattr(self, name) is None and getattr(said, name) is not None
        }
        return replace(self, is_rounded=True, **missing) if missing else self

    def is_of(self, segment_bytes: int) -> bool:
        """Whether they can be of a failure to get so many bytes from the device.

        PyTorch's words have two decimals; facts that say nothing of the request may be.
        """
        if self.segment_bytes is None:
            return True
        unit = max(size for size in _UNITS.values() if size <= max(self.segment_bytes, 1))
        slack = unit // 100 if self.is_rounded else 0
        return abs(self.segment_bytes - segment_bytes) <= slack


def _bytes_of(match: re.Match[str]) -> int:
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return round(float(number) * _UNITS[unit])
    except (OverflowError, ValueError):
        return 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _listed(plain: Mapping[str, Any], name: str) -> list[Any]:
    value = plain.get(name)
    return list(value) if isinstance(value, list | tuple) else []


def facts_of(beside: Beside) -> OomFacts | None:
    """The facts in the JSON beside a snapshot; None where it says nothing of an error."""
    if beside.oom is None:
        return None
    if isinstance(beside.oom, str):
        return OomFacts.from_message(beside.oom)
    return OomFacts.from_dict(beside.oom).filled()


def with_room(facts: OomFacts, room: DeviceRoom | None) -> OomFacts:
    """The facts, with what limited the process taken from elsewhere where they don't say it.

    Args:
        facts: What is known of the failure.
        room: What the JSON beside the file says of the device, or this process's own; None:
            nothing does.
    """
    if room is None:
        return facts
    total, limit = facts.device_total_bytes, facts.limit_bytes
    if limit is None and room.fraction is not None:
        limit = room.limit_bytes or room.total_bytes
    return replace(facts, device_total_bytes=total or room.total_bytes, limit_bytes=limit)
