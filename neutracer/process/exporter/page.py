# SPDX-License-Identifier: Apache-2.0
"""What `neutracer top` shows of a job, as plain data."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from neutracer.process.exporter.probes import Probes
from neutracer.process.monitor.memory_monitor import MemoryMonitor
from neutracer.trace.table import Table

__all__ = ["SCHEMA", "page_of"]

SCHEMA = "neutracer.top/1"

# Points of a curve: more than a terminal has columns.
_POINTS = 240

_ALERTS = 20


def page_of(
    monitor: MemoryMonitor, probes: Probes, rank: str, seconds: float | None
) -> dict[str, Any]:
    """A JSON object of schema "neutracer.top/1".

    Args:
        monitor: The monitor.
        probes: What was looked at besides.
        rank: The job's rank.
        seconds: How far back the curves go; None is the whole run.
    """
    devices = []
    status = monitor.status
    for device in monitor.devices if status["road"] else ():
        stats = monitor.get_stats(device)
        stats["largest_free_bytes"] = probes.largest_free(device)
        stats["garbage_bytes"] = probes.garbage(device)
        stats["curve"] = _curve(monitor.device_series(device), seconds)
        devices.append(stats)
    return {
        "schema": SCHEMA,
        "time_us": time.time_ns() // 1000,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "running": status["running"],
        "road": status["road"],
        "interval_s": monitor.interval,
        "devices": devices,
        "alerts": [
            {"kind": alert.kind, "message": alert.message, "time_us": alert.time_us}
            for alert in monitor.alerts[-_ALERTS:]
        ],
        "holders": probes.holders(),
    }


def _curve(series: Table, seconds: float | None) -> dict[str, Any]:
    """The extremes of allocated, and the largest of reserved and used, over equal times."""
    times = series["time_us"]
    assert isinstance(times, memoryview)
    end = times[-1] if len(times) else 0
    begin = times[0] if len(times) else 0
    if seconds is not None:
        begin = max(begin, end - round(seconds * 1e6))
    step = max((end - begin) / _POINTS, 1.0)
    cells: dict[int, list[int]] = {}
    for row in range(len(times)):
        if times[row] >= begin:
            cells.setdefault(min(int((times[row] - begin) / step), _POINTS - 1), []).append(row)

    def points(name: str, pick: Callable[[Sequence[int]], int]) -> list[int]:
        column = series.codes(name)
        return [pick([column[row] for row in rows]) for rows in cells.values()]

    return {
        "time_us": [times[rows[-1]] for rows in cells.values()],
        "allocated_low": points("allocated_low", min),
        "allocated": points("allocated_high", max),
        "reserved": points("reserved_high", max),
        "used": points("device_used_high", max),
    }
