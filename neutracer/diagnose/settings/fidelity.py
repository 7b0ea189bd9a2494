# SPDX-License-Identifier: Apache-2.0
"""How faithfully the model replays a recording under the recording's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutracer.render.row import PlainRow
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["Fidelity", "fidelity_of"]


@dataclass(frozen=True)
class Fidelity(PlainRow):
    """How faithfully the model replays a recording under the recording's own settings.

    The model gets the addresses that cudaMalloc gave then; all else it decides itself.

    Attributes:
        value: The share of addresses and device events that are the recorded ones; 1.0
            only where all are, none came in addition, and the state at the end is the
            snapshot's.
        addresses: Requests of the trace.
        addresses_same: Those that the model put at the recorded address.
        device_events: Segments, mappings and out-of-memory events of the trace.
        device_events_same: Those that the model made as well, in the same place.
        is_end_same: Whether the blocks at the end are the snapshot's: address, size,
            state and segment of each.
        first_event: The first event that is not as recorded, or None.
        recorded: What was recorded there, in words.
        modelled: What the model did there, in words.
    """

    value: float
    addresses: int
    addresses_same: int
    device_events: int
    device_events_same: int
    is_end_same: bool
    first_event: int | None = None
    recorded: str = ""
    modelled: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether every address, every size and the end are as recorded."""
        return self.value == 1.0

    @property
    def sentence(self) -> str:
        """What this means, in one sentence."""
        addresses = format_count(self.addresses, "address", "addresses")
        events = format_count(self.device_events, "segment event")
        if self.is_exact:
            return (
                f"The model reproduces this recording exactly: {addresses}, {events} and "
                "the state at the end."
            )
        parts = [
            f"{format_count(self.addresses_same)} of {addresses}",
            f"{format_count(self.device_events_same)} of {events}",
            "the state at the end" if self.is_end_same else "not the state at the end",
        ]
        text = f"The model reproduces {', '.join(parts)} ({format_share(self.value)})."
        if self.first_event is not None:
            text += (
                f" It first differs at event {format_count(self.first_event)}: recorded "
                f"{self.recorded}, modelled {self.modelled}."
            )
        return text


def fidelity_of(found: dict[str, Any], actions: list[str]) -> Fidelity:
    """The fidelity that the core's comparison means."""
    same = found["mallocs_same"] + found["device_events_same"]
    total = found["mallocs"] + found["device_events"]
    exact = found["is_same"] and found["is_end_same"]
    # What differs only in more events, or only at the end, is not all of it.
    share = 1.0 if exact else min(same / total if total else 0.0, 1 - 1 / (total + 1))
    differs = found["first_event"] is not None
    return Fidelity(
        share,
        found["mallocs"],
        found["mallocs_same"],
        found["device_events"],
        found["device_events_same"],
        found["is_end_same"],
        found["first_event"],
        _deed(found["recorded"], actions) if differs else "",
        _deed(found["modelled"], actions) if differs else "",
    )


def _deed(deed: tuple[int, int, int] | None, actions: list[str]) -> str:
    if deed is None:
        return "nothing"
    action, address, size = deed
    where = f" at {address:#x}" if address else ""
    return f"{actions[action]} of {format_bytes(size)}{where}"
