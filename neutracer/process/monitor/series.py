# SPDX-License-Identifier: Apache-2.0
"""What a monitor has seen: its histories as tables, its last reading as a dict."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from neutracer.process.monitor.alerts import KINDS
from neutracer.trace.table import Column, Table

__all__ = ["rows_table", "stats_of"]

# The usual monitor's unit: decimal gigabytes.
_GB = 1e9

# The code for no label.
_NO_LABEL = 0xFFFF_FFFF

_BOUNDED = ("allocated", "reserved", "device_used")
_LAST = ("active", "inactive_split", "requested", "retries", "ooms")
_BYTES = (*(name + end for name in _BOUNDED for end in ("", "_low", "_high")), *_LAST)

Rows = Mapping[str, bytes]


def rows_table(
    noun: str, parts: Sequence[tuple[int, Rows]], labels: Mapping[int, str], *, phases: bool
) -> Table:
    """A table of the rows of one device or several.

    Args:
        noun: What a row is.
        parts: Each device with the columns that `core.Sampler.rows` gave of it.
        labels: Of the marks, by number.
        phases: Rows are phases, which have a label and a beginning.
    """
    counts = [len(rows["mark"]) // 8 for _, rows in parts]
    marks = _joined(parts, "mark")
    codes, names = _labels(marks.cast("Q"), labels)
    plain: dict[str, Column] = {"device": Column(_numbers(_devices(parts, counts)))}
    if phases:
        plain["label"] = Column(_numbers(codes), names, _NO_LABEL)
        plain["begin_us"] = _column(parts, "begin_us")
    plain["time_us"] = _column(parts, "end_us")
    plain |= {name: _column(parts, name) for name in _BYTES}
    plain["ratio"] = Column(_numbers(_means(parts)))
    plain["ratio_high"] = _column(parts, "ratio_high", "d")
    plain["samples"] = _column(parts, "readings")
    if phases:
        plain["marks"] = _column(parts, "marks")
    else:
        plain["phase"] = Column(_numbers(codes), names, _NO_LABEL)
    return Table(noun, plain, sum(counts))


def _joined(parts: Iterable[tuple[int, Rows]], name: str) -> memoryview:
    return memoryview(b"".join(rows[name] for _, rows in parts))


def _column(parts: Sequence[tuple[int, Rows]], name: str, code: Literal["Q", "d"] = "Q") -> Column:
    return Column(lambda: _joined(parts, name).cast(code))


def _numbers(values: object) -> Callable[[], object]:
    return lambda: values


def _devices(parts: Sequence[tuple[int, Rows]], counts: Sequence[int]) -> array[int]:
    devices = array("i")
    for (device, _), count in zip(parts, counts, strict=True):
        devices.extend(array("i", [device]) * count)
    return devices


def _means(parts: Sequence[tuple[int, Rows]]) -> array[float]:
    sums, counts = _joined(parts, "ratio_sum").cast("d"), _joined(parts, "readings").cast("Q")
    return array("d", (sums[row] / max(counts[row], 1) for row in range(len(sums))))


def _labels(marks: memoryview, labels: Mapping[int, str]) -> tuple[array[int], list[str]]:
    """A code for each mark, and the strings of the codes."""
    known: dict[str, int] = {}
    codes = array("I")
    for mark in marks:
        label = labels.get(mark)
        codes.append(_NO_LABEL if label is None else known.setdefault(label, len(known)))
    return codes, list(known)


def stats_of(now: Mapping[str, Any], device: str, phase: str | None) -> dict[str, Any]:
    """What `MemoryMonitor.get_stats` returns.

    Args:
        now: As `core.Sampler.now` gives it.
        device: The device's name.
        phase: The last label.
    """
    reserved, allocated = now["reserved"], now["allocated"]
    usual = {"current": allocated, "peak": now["peak_allocated"], "total": now["device_total"]}
    same = ("reserved", "peak_reserved", "active", "inactive_split", "requested")
    active = zip(KINDS, now["is_active"], strict=True)
    return {
        "device": device,
        **{name: nbytes / _GB for name, nbytes in usual.items()},
        **{f"{name}_bytes": nbytes for name, nbytes in usual.items()},
        **{f"{name}_bytes": now[name] for name in (*same, "device_used", "peak_device_used")},
        "limit_bytes": now["device_cap"] or now["device_total"],
        "non_torch_bytes": now["non_torch"],
        "used_share": now["used_share"],
        "ratio": (reserved - allocated) / reserved if reserved > allocated else 0.0,
        "max_ratio": now["ratio_high"],
        "avg_ratio": now["ratio_sum"] / max(now["readings"], 1),
        "growth_bytes_per_s": None if math.isnan(now["growth"]) else now["growth"],
        **{name: now[name] for name in ("retries", "ooms", "failures", "time_us", "peak_us")},
        "samples": now["readings"],
        "phase": phase,
        "active_alerts": tuple(kind for kind, is_on in active if is_on),
        "alerts": dict(zip(KINDS, now["raised"], strict=True)),
    }
