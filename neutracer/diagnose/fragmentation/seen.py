# SPDX-License-Identifier: Apache-2.0
"""What a monitor saw of a device's fragmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutracer.diagnose.fragmentation.parts import band, severity_of
from neutracer.render.document import Note
from neutracer.render.report import Finding
from neutracer.units import format_bytes, format_share

__all__ = ["Seen", "seen_by"]


@dataclass(frozen=True)
class Seen:
    """The readings of one device, as a report without a layout needs them.

    Attributes:
        device: Its number; -1 is the CPU.
        figures: The fields of a FragmentationReport that are bytes of the last reading.
        largest: The largest ratio of any reading.
        mean: The mean of all of them.
        history: The ratio of each row of the monitor's series, as native doubles.
        ooms: Out-of-memory errors as the allocator counts them.
        retries: How often it gave its cache back to try again.
    """

    device: int
    figures: dict[str, Any]
    largest: float
    mean: float
    history: bytes
    ooms: int
    retries: int

    def findings(self) -> tuple[Finding, ...]:
        """What the last reading amounts to."""
        reserved, allocated = (self.figures[f"{name}_bytes"] for name in ("reserved", "allocated"))
        ratio = (reserved - allocated) / reserved if reserved else 0.0
        unused = reserved - allocated
        if band(ratio) == "good":
            return ()
        text = f"{format_share(ratio)} of the {format_bytes(reserved)} reserved was unused"
        note = Note(f"At most {format_share(self.largest)} while the monitor ran.")
        severity = severity_of(ratio, unused)
        return (Finding("fragmentation", severity, unused, text, (note,)),)


def seen_by(monitor: Any, device: object) -> Seen:
    """What a monitor saw of a device.

    Raises:
        NeutracerError: The monitor was not started.
        ValueError: The device is not followed, or there are several.
    """
    stats = monitor.get_stats(device)
    series = monitor.device_series(device)
    name = stats["device"]
    reserved, active = stats["reserved_bytes"], stats["active_bytes"]
    requested = stats["requested_bytes"] or active
    figures = {
        "reserved_bytes": reserved,
        "allocated_bytes": stats["current_bytes"],
        "active_bytes": active,
        "requested_bytes": requested,
        "internal_bytes": max(active - requested, 0),
        "external_bytes": max(reserved - active, 0),
        "reclaimable_bytes": 0,
        "largest_request": 0,
    }
    return Seen(
        device=-1 if name == "cpu" else int(name.rpartition(":")[2]),
        figures=figures,
        largest=stats["max_ratio"],
        mean=stats["avg_ratio"],
        history=bytes(series.codes("ratio")),
        ooms=stats["ooms"],
        retries=stats["retries"],
    )
