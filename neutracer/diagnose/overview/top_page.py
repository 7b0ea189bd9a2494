# SPDX-License-Identifier: Apache-2.0
"""The page of `neutracer top`, made of what exporters report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from neutracer.render.curve import curve_lines
from neutracer.render.document import Cell, Document, Figure, Place, Table
from neutracer.render.text import Line, Span, layout
from neutracer.units import format_duration_us

__all__ = ["top_lines"]

# Below this share of the device the curve's upper edge is what is reserved.
_LEAST_SHARE = 0.25

_SHOWN_ALERTS = 5


def top_lines(pages: Sequence[Mapping[str, Any]], width: int, *, plain: bool) -> list[Line]:
    """The lines of the page.

    It does not trust what exporters report: what is missing or no number is left out, and
    text is made harmless.

    Args:
        pages: What each exporter answered.
        width: Columns.
        plain: Only ASCII.
    """
    lines: list[Line] = []
    for page in pages:
        if lines:
            lines.append(())
        lines += _job_lines(page, width, plain)
    return lines


def _job_lines(page: Mapping[str, Any], width: int, plain: bool) -> list[Line]:
    facts = [f"rank {page.get('rank')}", f"pid {page.get('pid')}", f"road {page.get('road')}"]
    devices = _mappings(page, "devices")
    phase = devices[0].get("phase") if devices else None
    facts += [f"phase {phase}"] if phase is not None else []
    facts += [] if page.get("running") else ["the monitor is stopped"]
    lines = layout(Document(str(page.get("host", "?")), tuple(facts)), width)
    if not devices:
        lines += [(), (Span("no device is in use yet", "muted"),)]
    for device in devices:
        lines.append(())
        lines += layout(Document("", blocks=(_device_table(device),)), width)
        lines += _device_curve(device, width, plain)
    blocks = (*_alert_table(page), *_holder_table(page))
    if blocks:
        lines.append(())
        lines += layout(Document("", blocks=blocks), width)
    return lines


def _device_table(device: Mapping[str, Any]) -> Table:
    total = _bytes(device, "total_bytes")

    def row(name: str, key: str, note: str = "") -> tuple[Cell, ...]:
        nbytes = _bytes(device, key)
        share: Cell = Figure.share(nbytes / total) if total else ""
        return name, Figure.bytes(nbytes), share, note

    def known(key: str) -> bool:
        return isinstance(device.get(key), (int, float)) and _bytes(device, key) > 0

    peak = Figure.bytes(_bytes(device, "peak_bytes"))
    reserved = _bytes(device, "reserved_bytes")
    unused = max(reserved - _bytes(device, "current_bytes"), 0)
    rows = [
        row("allocated", "current_bytes", f"peak {peak}"),
        row("reserved", "reserved_bytes", f"{Figure.share(unused / reserved)} of it unused")
        if reserved
        else row("reserved", "reserved_bytes"),
    ]
    if known("device_used_bytes"):
        rows.append(row("not PyTorch's", "non_torch_bytes", "contexts, libraries, others"))
    if known("largest_free_bytes"):
        rows.append(row("largest free", "largest_free_bytes", "block"))
    if known("garbage_bytes"):
        rows.append(row("garbage", "garbage_bytes", "until the collector runs"))
    if total:
        rows.append(row("device", "total_bytes"))
    counts = [f"{_bytes(device, key)} {key}" for key in ("retries", "ooms") if known(key)]
    growth = device.get("growth_bytes_per_s")
    if isinstance(growth, (int, float)) and abs(growth) >= 1:
        sign = "-" if growth < 0 else "+"
        counts.append(f"floor {sign}{Figure.bytes(round(abs(growth)))} a second")
    return Table(str(device.get("device", "?")), tuple(rows), notes=tuple(counts))


def _device_curve(device: Mapping[str, Any], width: int, plain: bool) -> list[Line]:
    curve = device.get("curve")
    if not isinstance(curve, Mapping):
        return []
    allocated, reserved = _numbers(curve, "allocated"), _numbers(curve, "reserved")
    times = _numbers(curve, "time_us")
    count = min(len(allocated), len(reserved), len(times))
    if count < 2:
        return []
    largest = max(max(allocated[:count]), max(reserved[:count]))
    total = _bytes(device, "total_bytes")
    top = total if largest >= _LEAST_SHARE * total and total >= largest else largest
    lines = curve_lines(allocated[:count], reserved[:count], top, width=width, plain=plain)
    span = format_duration_us(max(times[count - 1] - times[0], 0))
    shades = "allocated #, reserved ." if plain else "allocated █, reserved ░"
    return [*lines, (Span(f"           {span}: {shades}", "muted"),)] if lines else []


def _alert_table(page: Mapping[str, Any]) -> tuple[Table, ...]:
    alerts = _mappings(page, "alerts")[-_SHOWN_ALERTS:]
    now = page.get("time_us")
    here = now if isinstance(now, int) else time.time_ns() // 1000
    rows = tuple(
        (
            f"{format_duration_us(max(here - _bytes(alert, 'time_us'), 0))} ago",
            str(alert.get("message", "")),
        )
        for alert in reversed(alerts)
    )
    return (Table("Alerts", rows),) if rows else ()


def _holder_table(page: Mapping[str, Any]) -> tuple[Table, ...]:
    rows = tuple(
        (
            Figure.bytes(_bytes(holder, "bytes")),
            Figure.count(_bytes(holder, "count"), "block"),
            Place(str(holder.get("function", "")), str(holder.get("place", ""))),
        )
        for holder in _mappings(page, "holders")
    )
    return (Table("Who holds it", rows),) if rows else ()


def _bytes(plain: Mapping[str, Any], key: str) -> int:
    value = plain.get(key)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return min(max(value, 0), 1 << 62) if is_number and value is not None else 0


def _numbers(plain: Mapping[str, Any], key: str) -> list[int]:
    values = plain.get(key)
    if not isinstance(values, list):
        return []
    return [min(max(one, 0), 1 << 62) if isinstance(one, int) else 0 for one in values]


def _mappings(plain: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = plain.get(key)
    return [one for one in values if isinstance(one, Mapping)] if isinstance(values, list) else []
