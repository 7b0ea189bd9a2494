# SPDX-License-Identifier: Apache-2.0
"""`serve_metrics`: Prometheus metrics over HTTP, on 127.0.0.1 by default."""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import json
import logging
import math
import os
import socket
import socketserver
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import neutracer.hooks.shim as hooks
from neutracer._native import core
from neutracer.arguments import number
from neutracer.errors import NeutracerError, missing
from neutracer.heap.cycles import device_filter, garbage_held, prepare_heap
from neutracer.hooks.live import take
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import dumped
from neutracer.recording.sidecar import rank_facts
from neutracer.render.document import clean
from neutracer.trace.events import device_name
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.stacks import grouped
from neutracer.trace.table import Table

# ---- Probes ------------------------------------------------------------------------------

_MOST_SHARE = 0.001  # Of the time, for heap walks, which hold the GIL.
_PATIENCE_S = 0.5  # A request's wait for a probe; a later result serves the next request.
_TAIL_EVENTS = 100_000  # Events searched for the stacks of live blocks.
_MOST_HOLDERS = 10
_FAILURES = (NeutracerError, RuntimeError, OSError)  # After one a figure keeps its last value.


class Probes:
    """Cached figures beyond the monitor's readings: largest free block, holders, garbage.

    Args:
        layout_interval: Seconds between two reads of the allocator's layout (milliseconds
            for some ten thousand blocks); None for none.
        garbage_interval: Least seconds between two walks of Python's heap; None for none.
            Walks that take more than 0.1 % of the time run less often.
    """

    def __init__(self, layout_interval: float | None, garbage_interval: float | None) -> None:
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._layout_interval = layout_interval
        self._garbage_interval = garbage_interval
        self._layout_at = self._garbage_at = 0.0
        #: By device: bytes of the largest free block in its segments, and of tensors that only a
        #: garbage collection would free; without devices that were not probed.
        self.largest_free: dict[int, int] = {}
        self.garbage: dict[int, int] = {}
        #: The holders of live memory, largest first, if there is a history.
        self.holders: list[dict[str, Any]] = []

    def look(self, devices: tuple[int, ...]) -> None:
        """Refresh in a thread what is due; the caller waits up to `_PATIENCE_S`."""
        with self._lock:
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(
                    target=self._look, args=(devices,), name="neutracer-probes", daemon=True
                )
                self._looking.start()
            looking = self._looking
        looking.join(_PATIENCE_S)

    def _look(self, devices: tuple[int, ...]) -> None:
        now = time.monotonic()
        if self._layout_interval is not None and now >= self._layout_at:
            self._layout_at = now + self._layout_interval
            with contextlib.suppress(*_FAILURES):
                self._look_at_layout()
        if self._garbage_interval is not None and now >= self._garbage_at and devices:
            begin = time.monotonic()
            with contextlib.suppress(*_FAILURES):
                self._look_at_garbage(devices)
            spent = time.monotonic() - begin
            self._garbage_at = now + max(self._garbage_interval, spent / _MOST_SHARE)

    def _look_at_layout(self) -> None:
        snap = layout_now(_TAIL_EVENTS)
        if snap is None:
            return
        largest: dict[int, int] = {}
        holders: list[dict[str, Any]] = []
        for device in snap.devices:
            groups = core.Fragment(snap.native, None, device).groups()
            number = -1 if snap.is_cpu else device
            largest[number] = max((group["largest_hole"] for group in groups), default=0)
            holders += _holders(snap, device, number)
        holders.sort(key=lambda holder: -int(holder["bytes"]))
        self.largest_free, self.holders = largest, holders[:_MOST_HOLDERS]

    def _look_at_garbage(self, devices: tuple[int, ...]) -> None:
        prepare_heap()
        wanted = {device: device_filter(device_name(device)) for device in devices}
        self.garbage = {device: garbage_held(*each) for device, each in wanted.items()}


def layout_now(events: int) -> Snapshot | None:
    """The current layout, from attached hooks or else from PyTorch's dump; None before CUDA.

    Of the hooks with so many events, which have the stacks of live blocks.
    """
    state = hooks.state()
    if state is not None and state.attached:
        return take(state.backend, events, quiet=True)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return None
    return load(dumped(cuda, traces=False), progress=False)


def _holders(snap: Snapshot, device: int, number: int) -> list[dict[str, Any]]:
    segments, blocks = snap.segments, snap.blocks
    rows = [
        (block.stack, block.size, 1)
        for block in blocks
        if block.state == "active_allocated" and segments[block.segment].device == device
    ]
    return [
        {
            "device": device_name(number),
            "place": place.location,
            "function": place.function,
            "bytes": nbytes,
            "count": count,
        }
        for place, nbytes, count in grouped(row for row in rows if row[0])[:_MOST_HOLDERS]
    ]


# ---- Page --------------------------------------------------------------------------------

SCHEMA = "neutracer.top/1"
_POINTS = 240  # Per curve: more than a terminal has columns.
_ALERTS = 20


def page_of(
    monitor: MemoryMonitor, probes: Probes, rank: str, seconds: float | None
) -> dict[str, Any]:
    """The data for `neutracer top`, with curves of the last seconds; None is the whole run."""
    devices = []
    status = monitor.status
    for device in monitor.devices if status["road"] else ():
        stats = monitor.get_stats(device)
        stats["largest_free_bytes"] = probes.largest_free.get(device)
        stats["garbage_bytes"] = probes.garbage.get(device)
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
        "holders": list(probes.holders),
    }


def _curve(series: Table, seconds: float | None) -> dict[str, Any]:
    """The extremes of allocated, and the peaks of reserved and used, in equal time bins."""
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


# ---- Server ------------------------------------------------------------------------------

# The server uses a bounded number of threads, each for a bounded time, and never writes to the
# program's standard error.

_INDEX = b"neutracer: /metrics for Prometheus, /top.json for 'neutracer top'\n"
_REQUEST_S = 10.0  # Timeout of a request, from its connection to the last byte.
_MOST_AT_ONCE = 16  # Requests, each in a thread.
_TURN_S = 0.25  # A connection's wait for a free thread; none while slow clients hold them all.
_BACKLOG = 1024  # Beyond it, clients retry after one and three seconds.
_MOST_SECONDS = 1e9  # Length of the curves.

_REFUSAL = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_LOGGER = logging.getLogger(__name__)

_serving: weakref.WeakSet[_Listener] = weakref.WeakSet()

Start = Callable[[str, list[tuple[str, str]]], Any]

#: Answers a request, by its environ, with status, body and content type.
Route = Callable[[Mapping[str, Any]], tuple[str, bytes, str]]


class Application:
    """Routes requests to prometheus_client's application, to other routes, or to `page_of`."""

    def __init__(
        self,
        metrics: Callable[..., Iterable[bytes]],
        page: Callable[[float | None], dict[str, Any]],
        routes: Mapping[str, Route] | None = None,
    ) -> None:
        self._metrics = metrics
        self._routes = routes or {}
        self._page = page
        self.loopback_only = True

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if self.loopback_only and not _is_local(environ.get("HTTP_HOST", "")):
            # DNS rebinding: a web page's own name that resolves to this machine.
            return _answer(start, "403 Forbidden", b"use the name localhost\n")
        path = environ.get("PATH_INFO", "/")
        route = self._routes.get(f"{environ.get('REQUEST_METHOD', 'GET')} {path}")
        if route is not None:
            status, body, kind = route(environ)
            return _answer(start, status, body, kind)
        if path == "/metrics":
            return self._metrics(environ, start)
        if path == "/":
            return _answer(start, "200 OK", _INDEX)
        if path != "/top.json":
            return _answer(start, "404 Not Found", _INDEX)
        try:
            seconds = _seconds(environ.get("QUERY_STRING", ""))
        except ValueError:
            wrong = b"seconds must be a number above 0, and at most 1e9\n"
            return _answer(start, "400 Bad Request", wrong)
        plain = json.dumps(self._page(seconds), allow_nan=False).encode()
        return _answer(start, "200 OK", plain, "application/json")


def _seconds(query: str) -> float | None:
    """The requested length of the curves; None is the whole run."""
    asked = parse_qs(query, keep_blank_values=True, max_num_fields=16).get("seconds")
    if not asked:
        return None
    seconds = float(asked[0])
    if not (math.isfinite(seconds) and 0 < seconds <= _MOST_SECONDS):
        raise ValueError
    return seconds


def _answer(
    start: Start, status: str, body: bytes, kind: str = "text/plain; charset=utf-8"
) -> Iterable[bytes]:
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start(status, [*headers, ("Cache-Control", "no-store")])
    return [body]


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]")
    if name in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Listener(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG
    # Two ranks on one port would answer in turns.
    allow_reuse_port = False

    def __init__(self, *arguments: Any) -> None:
        self._turns = threading.Semaphore(_MOST_AT_ONCE)
        self._ends: dict[Any, float] = {}  # Requests in threads, with their `time.monotonic` end.
        self._lock = threading.Lock()
        self._is_held = False  # A connection was refused, and no request has ended since.
        super().__init__(*arguments)

    def server_bind(self) -> None:
        # Skips the base class's name lookup.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._turns.acquire(timeout=0 if self._is_held else _TURN_S):
            self._is_held = True
            _refuse(request)
            self.shutdown_request(request)
            return
        with self._lock:
            self._ends[request] = time.monotonic() + _REQUEST_S
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._end()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_held = False
        self._turns.release()

    def shutdown_request(self, request: Any) -> None:
        # Before its descriptor can be reused.
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            # Out of descriptors: the pending connection would be retried in a busy loop. EINVAL
            # comes of the listener's end.
            if error.errno != errno.EINVAL:
                time.sleep(_TURN_S)
            raise

    def service_actions(self) -> None:
        """Disconnect overdue requests, twice per second."""
        self._disconnect(time.monotonic())

    def server_close(self) -> None:
        """Stop listening, and end pending reads."""
        super().server_close()
        self._disconnect(math.inf, socket.SHUT_RD)

    def _disconnect(self, now: float, how: int = socket.SHUT_RDWR) -> None:
        with self._lock:
            for request in [request for request, end in self._ends.items() if end <= now]:
                with contextlib.suppress(OSError):
                    request.shutdown(how)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("a request to the exporter failed", exc_info=True)


def _refuse(request: Any) -> None:
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.sendall(_REFUSAL)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S  # Per read or write, once the server has stopped.

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing per request."""

    def get_stderr(self) -> Any:
        """Keep wsgiref's tracebacks out of the program's standard error."""
        return _Log()


class _Log(io.StringIO):
    """Logs its text when flushed."""

    def flush(self) -> None:
        _LOGGER.debug("%s", self.getvalue().rstrip())


class Server:
    """Serves an application from its own thread; OSError if it can't listen there."""

    def __init__(self, host: str, port: int, application: Application) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            number, why = errno.EINVAL, "no such address"
            if isinstance(error, OSError):
                number, why = error.errno or number, error.strerror or why
            raise OSError(number, f"{why}: {host!r}") from None
        family, address = found[0][0], found[0][4]
        kind = type("Listener", (_Listener,), {"address_family": family})
        application.loopback_only = ipaddress.ip_address(address[0]).is_loopback
        try:
            self._listener = kind(address[:2], _Handler)
        except OSError as error:
            said = f"{error.strerror}: {address[0]} port {port}"
            if error.errno == errno.EADDRINUSE:
                said += "; each process needs its own port; 0 is any free one"
            raise OSError(error.errno, said) from None
        self._listener.set_app(application)
        self._thread: threading.Thread | None = None
        name = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
        self.url = f"http://{name}:{self._listener.server_port}"
        _serving.add(self._listener)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._listener.serve_forever, name="neutracer-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End it, once."""
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(OSError):
                # Wakes its thread, which else looks twice per second whether to end.
                self._listener.socket.shutdown(socket.SHUT_RDWR)
            self._listener.shutdown()
            self._thread.join()
        self._thread = None
        self._listener.server_close()


class _SocketListener(_Listener):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        # For this user alone, from the moment it is there.
        before = os.umask(0o177)
        try:
            socketserver.TCPServer.server_bind(self)
        finally:
            os.umask(before)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> Any:
        return super().get_request()[0], ("localhost", 0)


class SocketServer(Server):
    """The same on a Unix socket, which only this user can connect to."""

    def __init__(self, path: str, application: Application) -> None:
        try:
            self._listener = _SocketListener(path, _Handler)
        except OSError as error:
            why = "there is a file already" if error.errno == errno.EADDRINUSE else error.strerror
            raise OSError(error.errno, f"{why or error}: {path!r}") from None
        self._listener.set_app(application)
        self._thread = None
        self._path = path
        self.url = f"unix:{path}"
        _serving.add(self._listener)

    def stop(self) -> None:
        """End it, once, and remove the socket."""
        super().stop()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def _close_in_child() -> None:
    """Free the port in a forked child, which would keep it past its parent."""
    for listener in list(_serving):
        listener.socket.close()


os.register_at_fork(after_in_child=_close_in_child)


# ---- Serve -------------------------------------------------------------------------------

#: Gauges of a device: name, description, and key of `MemoryMonitor.get_stats`.
GAUGES = (
    ("allocated_bytes", "Bytes in allocated blocks.", "current_bytes"),
    ("allocated_peak_bytes", "Peak of allocated bytes since the start.", "peak_bytes"),
    ("reserved_bytes", "Bytes that PyTorch has reserved on the device.", "reserved_bytes"),
    ("reserved_peak_bytes", "Peak of reserved bytes.", "peak_reserved_bytes"),
    ("active_bytes", "Bytes allocated, or waiting for a stream.", "active_bytes"),
    ("requested_bytes", "Requested bytes of active blocks.", "requested_bytes"),
    ("inactive_split_bytes", "Free bytes in segments in use.", "inactive_split_bytes"),
    ("unused_ratio", "Share of the reserved bytes that is not allocated.", "ratio"),
    ("used_ratio", "Share of the device in use, without PyTorch's cache.", "used_share"),
    (
        "allocated_growth_bytes_per_second",
        "Growth of the floor of allocated bytes.",
        "growth_bytes_per_s",
    ),
    ("device_size_bytes", "The device's memory.", "total_bytes"),
    ("device_used_bytes", "Bytes in use on the device by all processes.", "device_used_bytes"),
    ("non_torch_bytes", "Of those, bytes outside this process's PyTorch.", "non_torch_bytes"),
)

#: Counters of a device, like the gauges.
COUNTERS = (
    ("alloc_retries", "Allocations retried after freeing the cache.", "retries"),
    ("ooms", "Out-of-memory errors.", "ooms"),
    ("samples", "Readings of the monitor.", "samples"),
    ("sample_failures", "Readings that failed.", "failures"),
)

# Figures for which 0 means unknown; they are then omitted.
_UNKNOWN_AT_ZERO = ("total_bytes", "device_used_bytes")
_NEED_DEVICE = {"non_torch_bytes": "device_used_bytes", "used_share": "total_bytes"}


class MetricsCollector(StaysHere, instead="it reads a monitor of this process: make one there"):
    """A collector for a program's existing prometheus_client registry.

    Args:
        monitor: The monitor to collect from, started or not.
        rank: The label "rank"; None is the rank of `torch.distributed`, else of the launcher's
            environment, or "0".
        layout_interval: Seconds between two reads of the largest free block; None: never.
        garbage_interval: Seconds between two searches for garbage; None: never. A search
            holds the GIL while it walks Python's heap, about 0.1 s for a million objects, and
            runs less often if that exceeds 0.1 % of the time.

    Raises:
        UnavailableError: prometheus_client is not installed.
        ValueError: An interval is negative.
        TypeError: `monitor` is not a MemoryMonitor, or an interval not a number.

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
        # A label is UTF-8, which has no lone surrogates.
        self._rank = None if rank is None else clean(str(rank))
        self.probes = Probes(layout_interval, garbage_interval)

    @property
    def rank(self) -> str:
        """The label's current value: a program may join its group later."""
        return str(rank_facts()["rank"] or 0) if self._rank is None else self._rank

    def describe(self) -> list[Any]:
        """The metric families, by which a registry finds a name, without samples of devices."""
        return list(self._families(()))

    def collect(self) -> Iterator[Any]:
        """The current metric families."""
        devices = self.monitor.devices if self.monitor.status["road"] else ()
        self.probes.look(devices)
        return self._families(devices)

    def _families(self, devices: tuple[int, ...]) -> Iterator[Any]:
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
        labels = {device: monitor.get_stats(device) for device in devices}
        rows = [([stats["device"], rank], stats) for stats in labels.values()]
        for made, figures in (
            (core.GaugeMetricFamily, GAUGES),
            (core.CounterMetricFamily, COUNTERS),
        ):
            for name, text, key in figures:
                family = made(f"neutracer_{name}", text, labels=names)
                for values, stats in rows:
                    if is_known(stats, key):
                        family.add_metric(values, stats[key])
                yield family
        yield from self._probed(core, names, devices, rows)
        yield from _alerts(core, names, rows)

    def _probed(
        self, core: Any, names: list[str], devices: tuple[int, ...], rows: list[Any]
    ) -> Iterator[Any]:
        for name, text, found in (
            ("largest_free_bytes", "The largest free block.", self.probes.largest_free),
            ("garbage_bytes", "Bytes only a garbage collection would free.", self.probes.garbage),
        ):
            gauge = core.GaugeMetricFamily(f"neutracer_{name}", text, labels=names)
            for device, (values, _) in zip(devices, rows, strict=True):
                if device in found:
                    gauge.add_metric(values, found[device])
            yield gauge


def is_known(stats: dict[str, Any], key: str) -> bool:
    """Whether a figure of `MemoryMonitor.get_stats` is known."""
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
        "neutracer_alerts", "Number of times the alert was raised.", labels=labels
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
    """The handle returned by `serve_metrics`.

    Attributes:
        monitor: The served monitor.
        url: Its address: "http://127.0.0.1:9435"; Prometheus scrapes /metrics there.
    """

    def __init__(self, monitor: MemoryMonitor, server: Server, owns: bool) -> None:
        self.monitor = monitor
        self.url = server.url
        self._server = server
        self._owns = owns

    def stop(self) -> None:
        """End it, and the monitor if the server started it; once."""
        self._server.stop()
        if self._owns:
            self.monitor.stop()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<MetricsServer: {self.url}/metrics>"


def start_server(
    monitor: MemoryMonitor | None,
    port: int,
    host: str,
    *,
    rank: int | str | None,
    layout_interval: float | None,
    garbage_interval: float | None,
    routes: Mapping[str, Route] | None = None,
    path: str | None = None,
) -> MetricsServer:
    """Serve a monitor as `serve_metrics` does, with routes by method and path."""
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
    application = _application(prometheus, chosen, collector, routes or {})
    server = Server(host, port, application) if path is None else SocketServer(path, application)
    try:
        if monitor is None:
            chosen.start()
        server.start()
    except BaseException:
        server.stop()
        raise
    return MetricsServer(chosen, server, monitor is None)


def _application(
    prometheus: Any,
    monitor: MemoryMonitor,
    collector: MetricsCollector,
    routes: Mapping[str, Route],
) -> Application:
    """/metrics from a registry of its own, /top.json, and the further answers."""
    registry = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lock = threading.Lock()

    def page(seconds: float | None) -> dict[str, Any]:
        collector.probes.look(monitor.devices if monitor.status["road"] else ())
        with lock:
            return page_of(monitor, collector.probes, collector.rank, seconds)

    return Application(prometheus.make_wsgi_app(registry), page, routes)
