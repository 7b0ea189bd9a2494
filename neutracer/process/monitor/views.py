# SPDX-License-Identifier: Apache-2.0
"""What a monitor has seen: its histories as tables, its last reading as a dict."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from neutracer._native import core
from neutracer.errors import NeutracerError
from neutracer.process.monitor.alerts import KINDS
from neutracer.process.monitor.source import Road, parse_devices
from neutracer.trace.devices import device_name
from neutracer.trace.table import Column, Table

__all__ = ["MonitorViews"]

# The usual monitor's unit: decimal gigabytes.
_GB = 1e9

# The code for no label.
_NO_LABEL = 0xFFFF_FFFF

_BOUNDED = ("allocated", "reserved", "device_used")
_LAST = ("active", "inactive_split", "requested", "retries", "ooms")
_BYTES = (*(name + end for name in _BOUNDED for end in ("", "_low", "_high")), *_LAST)

Rows = Mapping[str, bytes]


class MonitorViews:
    """The part of `MemoryMonitor` that only looks."""

    def __init__(self) -> None:
        self._labels: dict[int, str] = {}
        self._road: Road | None = None
        self._sampler: core.Sampler | None = None

    @property
    def _all(self) -> tuple[int, ...]:
        return () if self._road is None else self._road.devices

    def _now(self, index: int) -> dict[str, Any]:
        if self._sampler is None:
            raise NeutracerError("the monitor was not started yet: call start(), or use 'with'")
        return self._sampler.now(index)

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices with readings: those that the program used; -1 is the CPU."""
        seen = enumerate(self._all)
        return tuple(device for index, device in seen if self._now(index)["readings"])

    def _index(self, device: object) -> int:
        """The place of a device; None is the only one.

        Raises:
            NeutracerError: The monitor was not started.
            ValueError: It is not followed, or there are several.
        """
        followed = self._all
        if not followed:
            self._now(0)
        if device is not None:
            number, *others = parse_devices(device) or (None,)
            if others or number not in followed:
                names = ", ".join(map(device_name, followed))
                raise ValueError(f"{device!r} is not followed: {names}")
            return followed.index(number)
        used = self.devices
        if len(used) > 1:
            names = ", ".join(map(device_name, used))
            raise ValueError(f"there are several devices, name one of them: {names}")
        return followed.index(used[0]) if used else 0

    def get_stats(self, device: object = None) -> dict[str, Any]:
        """The last reading, and what was seen since the start.

        Args:
            device: The device; None is the only one in use.

        Returns:
            "current" (allocated), "peak" (the largest allocated, between readings too, as
            PyTorch counts it) and "total" (the device) in GB of 10^9 bytes; the same as
            "current_bytes", "peak_bytes", "total_bytes" (0 where it is not known);
            "reserved_bytes", "peak_reserved_bytes", "active_bytes", "inactive_split_bytes",
            "requested_bytes"; "limit_bytes" (what the process may reserve: "total_bytes",
            or less by torch.cuda.set_per_process_memory_fraction); "device_used_bytes",
            "peak_device_used_bytes" (by everybody), "non_torch_bytes" (of that, what this
            process's PyTorch does not hold); "used_share" (what the threshold is about) and
            "ratio", "max_ratio", "avg_ratio" (reserved but not allocated) of 1.0;
            "growth_bytes_per_s" (None until it is known); "retries", "ooms"; "samples",
            "failures", "time_us" (Unix time of the reading), "peak_us", "phase" (the last
            label or None), "active_alerts" (their kinds) and "alerts" (how many of each
            kind there were).

        Raises:
            NeutracerError: The monitor was not started.
            ValueError: The device is not followed, or there are several.
        """
        index = self._index(device)
        phase = self._labels[max(self._labels)] if self._labels else None
        return _stats_of(self._now(index), device_name(self._all[index]), phase)

    @property
    def series(self) -> Table:
        """The readings as a table, by device and time; bytes, Unix microseconds.

        A row holds `samples` readings: `allocated` is the last of them, `allocated_low` and
        `allocated_high` their extremes (with the peaks that PyTorch saw between them). The
        same goes for `reserved` and `device_used` (0 where it is not known); `ratio` is
        their mean and `ratio_high` their largest; `phase` the last mark before the row's
        end.
        """
        return self._table("sample", self.devices, phases=False)

    def device_series(self, device: object = None) -> Table:
        """`series` of one device; None is the only one in use."""
        return self._table("sample", (self._all[self._index(device)],), phases=False)

    @property
    def phases(self) -> Table:
        """One row for each mark, by device and time: what was between it and the next one.

        There is a reading at both ends of a phase, so `allocated_low` is its floor. The row
        before the first mark has no label. When there are more than half as many as
        `history`, neighbours become one row under the first one's label: `marks` of them.
        """
        return self._table("phase", self.devices, phases=True)

    def device_phases(self, device: object = None) -> Table:
        """`phases` of one device; None is the only one in use."""
        return self._table("phase", (self._all[self._index(device)],), phases=True)

    def _table(self, noun: str, devices: tuple[int, ...], *, phases: bool) -> Table:
        if self._sampler is None:
            self._now(0)
        assert self._sampler is not None
        rows = self._sampler.rows
        parts = [(device, rows(self._all.index(device), phases)) for device in devices]
        return _rows_table(noun, parts, self._labels, phases=phases)


def _rows_table(
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


def _stats_of(now: Mapping[str, Any], device: str, phase: str | None) -> dict[str, Any]:
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
