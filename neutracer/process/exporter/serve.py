# SPDX-License-Identifier: Apache-2.0
"""A monitor's figures for Prometheus, and for `neutracer top`."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from neutracer.arguments import number
from neutracer.errors import missing
from neutracer.pickling import StaysHere
from neutracer.process.exporter.page import page_of
from neutracer.process.exporter.probes import Probes
from neutracer.process.exporter.server import Application, Server
from neutracer.process.monitor.memory_monitor import MemoryMonitor
from neutracer.process.recording.sidecar import rank_facts

__all__ = [
    "COUNTERS",
    "GAUGES",
    "MetricsCollector",
    "MetricsServer",
    "is_known",
    "serve_metrics",
]

#: Gauges of a device: name, what it is, and the key of `MemoryMonitor.get_stats`.
GAUGES = (
    ("allocated_bytes", "Bytes in allocated blocks.", "current_bytes"),
    ("allocated_peak_bytes", "The most bytes in allocated blocks since the start.", "peak_bytes"),
    ("reserved_bytes", "Bytes that PyTorch has taken from the device.", "reserved_bytes"),
    ("reserved_peak_bytes", "The most bytes that were reserved.", "peak_reserved_bytes"),
    ("active_bytes", "Bytes allocated, or waiting for a stream.", "active_bytes"),
    ("requested_bytes", "What active blocks were asked for.", "requested_bytes"),
    ("inactive_split_bytes", "Free bytes in segments that are in use.", "inactive_split_bytes"),
    ("unused_ratio", "Share of the reserved bytes that is not allocated.", "ratio"),
    ("used_ratio", "Share of the device that is taken, without the cache.", "used_share"),
    (
        "allocated_growth_bytes_per_second",
        "How fast the floor of the allocated bytes rises.",
        "growth_bytes_per_s",
    ),
    ("device_size_bytes", "The device's memory.", "total_bytes"),
    ("device_used_bytes", "Bytes of the device in use by everybody.", "device_used_bytes"),
    ("non_torch_bytes", "Of those, what is not this process's PyTorch.", "non_torch_bytes"),
)

#: Counters of a device, as the gauges.
COUNTERS = (
    ("alloc_retries", "How often the cache was given back to try again.", "retries"),
    ("ooms", "Out-of-memory errors.", "ooms"),
    ("samples", "Readings of the monitor.", "samples"),
    ("sample_failures", "Readings that failed.", "failures"),
)

# Figures that are 0 while they are not known, and are left out then.
_UNKNOWN_AT_ZERO = ("total_bytes", "device_used_bytes")
_NEED_DEVICE = {"non_torch_bytes": "device_used_bytes", "used_share": "total_bytes"}


class MetricsCollector(StaysHere, instead="it reads a monitor of this process: make one there"):
    """A collector for a registry of prometheus_client that a program has already.

    Args:
        monitor: Whose figures to collect; it need not have started yet.
        rank: The value of the label "rank"; None is that of `torch.distributed`, else of the
            launcher's environment, or "0".
        layout_interval: Seconds between two looks at the largest free block; None: never.
        garbage_interval: Seconds between two searches for garbage; None: never. A search
            holds the GIL for as long as it walks Python's heap, some 0.1 s for a million
            objects, and runs less often where that is more than 0.1 % of the time.

    Raises:
        UnavailableError: prometheus_client is not installed.
        ValueError: An interval is negative.
        TypeError: `monitor` is no MemoryMonitor, or an interval no number.

    Example:
        >>> import neutracer, prometheus_client
        >>> monitor = neutracer.MemoryMonitor()
        >>> collector = neutracer.MetricsCollector(monitor)
        >>> prometheus_client.REGISTRY.register(collector)    # doctest: +SKIP
    """

    def __init__(
        self,
        monitor: MemoryMonitor,
        rank: int | str | None = None,
        *,
        layout_interval: float | None = 10.0,
        garbage_interval: float | None = None,
    ) -> None:
        if not isinstance(monitor, MemoryMonitor):
            raise TypeError(f"monitor must be a MemoryMonitor, not {type(monitor).__name__}")
        for name, seconds in (
            ("layout_interval", layout_interval),
            ("garbage_interval", garbage_interval),
        ):
            if seconds is not None and not number(name, seconds, "a number of seconds") >= 0:
                raise ValueError(f"{name} is {seconds}: it must be seconds, or None for never")
        _prometheus()
        self.monitor = monitor
        self._rank = None if rank is None else str(rank)
        self.probes = Probes(layout_interval, garbage_interval)

    @property
    def rank(self) -> str:
        """The label's value, as it is now: a program joins its group after its start."""
        return str(rank_facts()["rank"] or 0) if self._rank is None else self._rank

    def describe(self) -> list[Any]:
        """Nothing: a collection shows what there is."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of prometheus_client, as they are now."""
        core = _prometheus().core
        monitor, rank = self.monitor, self.rank
        names = ["device", "rank"]
        info = core.GaugeMetricFamily(
            "neutracer_monitor_info", "The monitor.", labels=[*names[1:], "road", "torch", "pid"]
        )
        torch = sys.modules.get("torch")
        version = str(getattr(torch, "__version__", ""))
        status = monitor.status
        road = status["road"] or ""
        info.add_metric([rank, road, version, str(os.getpid())], float(monitor.running))
        yield info
        cpu = core.CounterMetricFamily(
            "neutracer_monitor_cpu_seconds", "What sampling costs.", labels=names[1:]
        )
        cpu.add_metric([rank], status["cpu_s"])
        yield cpu
        devices = monitor.devices if road else ()
        self.probes.look(devices)
        labels = {device: monitor.get_stats(device) for device in devices}
        rows = [([stats["device"], rank], stats) for stats in labels.values()]
        for name, text, key in GAUGES:
            gauge = core.GaugeMetricFamily(f"neutracer_{name}", text, labels=names)
            for values, stats in rows:
                if is_known(stats, key):
                    gauge.add_metric(values, stats[key])
            yield gauge
        for name, text, key in COUNTERS:
            counter = core.CounterMetricFamily(f"neutracer_{name}", text, labels=names)
            for values, stats in rows:
                counter.add_metric(values, stats[key])
            yield counter
        yield from self._probed(core, names, devices, rows)
        yield from _alerts(core, names, rows)

    def _probed(
        self, core: Any, names: list[str], devices: tuple[int, ...], rows: list[Any]
    ) -> Iterator[Any]:
        """What costs a look of its own."""
        for name, text, ask in (
            ("largest_free_bytes", "The largest free block.", self.probes.largest_free),
            ("garbage_bytes", "What only a collection would free.", self.probes.garbage),
        ):
            gauge = core.GaugeMetricFamily(f"neutracer_{name}", text, labels=names)
            for device, (values, _) in zip(devices, rows, strict=True):
                nbytes = ask(device)
                if nbytes is not None:
                    gauge.add_metric(values, nbytes)
            yield gauge


def is_known(stats: dict[str, Any], key: str) -> bool:
    """Whether a figure of `MemoryMonitor.get_stats` says anything."""
    needed = _NEED_DEVICE.get(key, key)
    value = stats[key]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return False
    return needed not in _UNKNOWN_AT_ZERO or stats[needed] != 0


def _alerts(core: Any, names: list[str], rows: list[Any]) -> Iterator[Any]:
    labels = [*names, "kind"]
    active = core.GaugeMetricFamily(
        "neutracer_alert_active", "Whether the monitor's alert is on.", labels=labels
    )
    raised = core.CounterMetricFamily(
        "neutracer_alerts", "How often the monitor raised it.", labels=labels
    )
    for values, stats in rows:
        for kind, count in stats["alerts"].items():
            active.add_metric([*values, kind], float(kind in stats["active_alerts"]))
            raised.add_metric([*values, kind], count)
    yield active
    yield raised


def _prometheus() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise missing("prometheus_client") from None
    return prometheus_client


class MetricsServer(StaysHere, instead="it serves from this process: send its .url"):
    """The handle that `serve_metrics` returns.

    Attributes:
        monitor: The monitor whose figures it serves.
        url: Its address: "http://127.0.0.1:9435"; Prometheus asks for /metrics there.
    """

    def __init__(self, monitor: MemoryMonitor, server: Server, owns: bool) -> None:
        self.monitor = monitor
        self.url = server.url
        self._server = server
        self._owns = owns

    def stop(self) -> None:
        """End it, and the monitor if the server started it; a second time does nothing."""
        self._server.stop()
        if self._owns:
            self.monitor.stop()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<MetricsServer: {self.url}/metrics>"


def serve_metrics(
    monitor: MemoryMonitor | None = None,
    port: int = 9435,
    host: str = "127.0.0.1",
    *,
    rank: int | str | None = None,
    layout_interval: float | None = 10.0,
    garbage_interval: float | None = None,
) -> MetricsServer:
    """Serve a monitor's figures to Prometheus, and to `neutracer top URL`.

    /metrics has gauges and counters that begin with `neutracer_`, with the labels `device`
    and `rank`; /top.json has what `neutracer top` shows, including the names of the program's
    functions and files. There is no password.

    Args:
        monitor: The monitor; None starts one, which ends with the server.
        port: Where it listens; 0 is any free port. With several ranks on a host each needs
            its own: `9435 + local_rank`.
        host: The address it listens on; by default only this machine reaches it.
        rank: As for `MetricsCollector`, and so the rest.

    Returns:
        The handle: `url`, `stop()`; it serves until it is stopped or the process ends.

    Raises:
        UnavailableError: prometheus_client is not installed, or there is nothing to follow.
        ValueError: There is no such port.
        TypeError: `monitor` is no MemoryMonitor, or another argument of a wrong kind.
        OSError: It can't listen there; the message has the address.

    Example:
        >>> import neutracer
        >>> server = neutracer.serve_metrics(port=0)    # doctest: +SKIP
        >>> server.url                                  # doctest: +SKIP
        'http://127.0.0.1:40811'
    """
    if monitor is not None and not isinstance(monitor, MemoryMonitor):
        raise TypeError(f"monitor must be a MemoryMonitor, not {type(monitor).__name__}")
    if not isinstance(host, str):
        raise TypeError(f"host must be an address or a name, not {type(host).__name__}")
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65_535:
        raise ValueError(f"port is {port!r}: it must be 0 to 65535")
    prometheus = _prometheus()
    chosen = MemoryMonitor() if monitor is None else monitor
    collector = MetricsCollector(
        chosen, rank, layout_interval=layout_interval, garbage_interval=garbage_interval
    )
    server = Server(host, port, _application(prometheus, chosen, collector))
    try:
        if monitor is None:
            chosen.start()
        server.start()
    except BaseException:
        server.stop()
        raise
    return MetricsServer(chosen, server, monitor is None)


def _application(
    prometheus: Any, monitor: MemoryMonitor, collector: MetricsCollector
) -> Application:
    """What answers requests: /metrics from a registry of its own, /top.json from the probes."""
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lock = threading.Lock()

    def page(seconds: float | None) -> dict[str, Any]:
        collector.probes.look(monitor.devices if monitor.status["road"] else ())
        with lock:
            return page_of(monitor, collector.probes, collector.rank, seconds)

    return Application(prometheus.make_wsgi_app(registry), page)
