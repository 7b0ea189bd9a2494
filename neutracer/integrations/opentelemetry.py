# SPDX-License-Identifier: Apache-2.0
"""The monitor's readings as OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry import metrics

import neutracer
from neutracer.errors import UnavailableError
from neutracer.monitor.device_report import find_device
from neutracer.monitor.exporter import COUNTERS, GAUGES, is_known

#: The conventions' own names, in bytes: what it is.
_CONVENTIONS = (
    ("hw.gpu.memory.usage", "GPU memory used.", "device_used_bytes"),
    ("hw.gpu.memory.limit", "Size of the GPU memory.", "total_bytes"),
)
_UTILIZATION = "hw.gpu.memory.utilization"


def instrument(monitor: neutracer.MemoryMonitor, meter_provider: Any = None) -> None:
    """Give a monitor's readings to OpenTelemetry, whenever its reader asks.

    `hw.gpu.memory.usage`, `.limit` and `.utilization` have the attributes that the semantic
    conventions require (hw.id, and hw.name and hw.vendor where they are known). What the
    conventions have no name for is under `neutracer.`, as `serve_metrics` has it.

    Args:
        monitor: The monitor; it need not have started yet.
        meter_provider: OpenTelemetry's; None is the one that the program has set.

    Raises:
        TypeError: `monitor` is no MemoryMonitor.

    Example:
        >>> from neutracer.integrations.opentelemetry import instrument   # doctest: +SKIP
        >>> monitor = neutracer.MemoryMonitor().start()                   # doctest: +SKIP
        >>> instrument(monitor)                                           # doctest: +SKIP
    """
    if not isinstance(monitor, neutracer.MemoryMonitor):
        raise TypeError(f"monitor must be a MemoryMonitor, not {type(monitor).__name__}")
    meter = metrics.get_meter("neutracer", neutracer.__version__, meter_provider)
    readings = _Readings(monitor)
    for name, text, key in _CONVENTIONS:
        read = [readings.of(key)]
        meter.create_observable_up_down_counter(name, read, unit="By", description=text)
    meter.create_observable_gauge(
        _UTILIZATION, [readings.utilization], unit="1", description="Share of it that is used."
    )
    for name, text, key in GAUGES:
        own, unit = _named(name)
        meter.create_observable_gauge(own, [readings.of(key)], unit=unit, description=text)
    for name, text, key in COUNTERS:
        own = f"neutracer.{name}"
        meter.create_observable_counter(own, [readings.of(key)], unit="1", description=text)


def _named(name: str) -> tuple[str, str]:
    for ending, unit in (("_bytes_per_second", "By/s"), ("_bytes", "By"), ("_ratio", "1")):
        if name.endswith(ending):
            bare = name if ending == "_ratio" else name.removesuffix(ending)
            return f"neutracer.{bare}", unit
    return f"neutracer.{name}", "1"


class _Readings:
    """A monitor's devices, their figures and their attributes."""

    def __init__(self, monitor: neutracer.MemoryMonitor) -> None:
        self._monitor = monitor
        self._attributes: dict[int, dict[str, str]] = {}

    def of(self, key: str) -> Callable[[metrics.CallbackOptions], Iterator[metrics.Observation]]:
        """What OpenTelemetry calls for one figure of each device."""

        def observe(options: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
            for device, stats in self._stats():
                if is_known(stats, key):
                    yield metrics.Observation(stats[key], self._of_device(device, stats))

        return observe

    def utilization(self, options: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
        """The share of each device's memory that is used."""
        for device, stats in self._stats():
            if is_known(stats, "device_used_bytes") and is_known(stats, "total_bytes"):
                share = stats["device_used_bytes"] / stats["total_bytes"]
                yield metrics.Observation(share, self._of_device(device, stats))

    def _stats(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self._monitor.status["road"]:
            for device in self._monitor.devices:
                yield device, self._monitor.get_stats(device)

    def _of_device(self, device: int, stats: dict[str, Any]) -> dict[str, str]:
        if device not in self._attributes:
            attributes = {"hw.id": str(stats["device"])}
            try:
                found = find_device(device)
                attributes = {"hw.id": found.uuid, "hw.name": found.name, "hw.vendor": "NVIDIA"}
            except (UnavailableError, ValueError):
                # The conventions require an id; the program's own name of the device is one.
                attributes["hw.name"] = str(stats["device"])
            self._attributes[device] = attributes
        return self._attributes[device]
