# SPDX-License-Identifier: Apache-2.0
"""`serve_metrics()`: figures for Prometheus, and a process's reports and snapshots on demand."""

from __future__ import annotations

import hmac
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from neutracer.arguments import path_name
from neutracer.errors import NeutracerError
from neutracer.monitor.exporter import MetricsServer, Route, start_server
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.overview import overview
from neutracer.phase_report import phases_of
from neutracer.recording.long_history import save_now, snapshot_now
from neutracer.render.report import Report, dumps
from neutracer.render.text import render_text
from neutracer.run.following import DEFAULT_DIRECTORY

# ---- On demand ---------------------------------------------------------------------------

_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"

Answer = tuple[str, bytes, str]


class OnDemandRoutes:
    """Reports and snapshots of this process for requests with a token, one at a time."""

    def __init__(self, token: str, directory: str) -> None:
        if not isinstance(token, str):
            raise TypeError(f"token must be a text, not {type(token).__name__}")
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise ValueError("token must be of printable ASCII without spaces, and not empty")
        self._wanted = f"Bearer {token}".encode()
        self._directory = os.path.abspath(directory)
        self._turn = threading.Lock()

    def routes(self) -> dict[str, Route]:
        """The answers by method and path."""
        return {
            "POST /snapshot": self._guarded(self._snapshot),
            "GET /report": self._guarded(self._report),
            "GET /phases": self._guarded(self._phases),
        }

    def _guarded(self, answer: Callable[[Mapping[str, Any]], Answer]) -> Route:
        def route(environ: Mapping[str, Any]) -> Answer:
            given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
            if not hmac.compare_digest(given, self._wanted):
                return "401 Unauthorized", b"send Authorization: Bearer TOKEN\n", _TEXT
            if not self._turn.acquire(blocking=False):
                return "409 Conflict", b"another request is being answered\n", _TEXT
            try:
                return answer(environ)
            except (NeutracerError, OSError, ValueError) as error:
                return "503 Service Unavailable", f"{error}\n".encode(), _TEXT
            finally:
                self._turn.release()

        return route

    def _snapshot(self, _: Mapping[str, Any]) -> Answer:
        path = save_now(snapshot_now(), self._directory)
        return "200 OK", json.dumps({"file": path}).encode() + b"\n", _JSON

    def _report(self, environ: Mapping[str, Any]) -> Answer:
        return _shown((overview(snapshot_now()),), environ)

    def _phases(self, environ: Mapping[str, Any]) -> Answer:
        snap = snapshot_now()
        return _shown(tuple(phases_of(snap, device) for device in snap.devices), environ)


def _shown(reports: tuple[Report, ...], environ: Mapping[str, Any]) -> Answer:
    if _JSON in str(environ.get("HTTP_ACCEPT", "")):
        several = {"schema": "neutracer.reports/1", "reports": reports}
        return "200 OK", dumps(reports[0] if len(reports) == 1 else several).encode(), _JSON
    pages = "\n".join(render_text(report.document()) for report in reports)
    return "200 OK", pages.encode("utf-8", "backslashreplace"), _TEXT


# ---- Serve -------------------------------------------------------------------------------


def serve_metrics(
    monitor: MemoryMonitor | None = None,
    port: int = 9435,
    host: str = "127.0.0.1",
    *,
    token: str | None = None,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    path: str | os.PathLike[str] | None = None,
    rank: int | str | None = None,
    layout_interval: float | None = 10.0,
    garbage_interval: float | None = None,
) -> MetricsServer:
    """Serve a monitor's figures to Prometheus, and to `neutracer top URL`.

    /metrics has gauges and counters named `neutracer_*` with the labels `device` and `rank`;
    /top.json is the page for `neutracer top`, which names the program's functions and files. These
    two have no password.

    With a token, requests that carry it in the header `Authorization: Bearer TOKEN` also get
    GET /report and GET /phases, the pages of this process now (JSON where the header `Accept` asks
    for it), and POST /snapshot, which writes a snapshot with its sidecar and answers with the
    file's name. One of them runs at a time. With neutracer's hooks a snapshot is taken without the
    GIL; PyTorch's own holds it for as long as it lists its blocks.

    Args:
        monitor: The monitor; None starts one, which ends with the server.
        port: The port; 0 is any free one. Each rank on a host needs its own:
            `9435 + local_rank`.
        host: The address to listen on; by default only this machine can connect.
        token: What requests must carry for reports and snapshots; None offers neither.
        directory: Where POST /snapshot writes.
        path: A Unix socket to listen on instead of the port; only this user can connect to it.
        rank, layout_interval, garbage_interval: As for `MetricsCollector`.

    Returns:
        The handle (`url`, `stop()`); it serves until stopped or the process ends.

    Raises:
        UnavailableError: prometheus_client is not installed, or there is nothing to monitor.
        ValueError: The port is out of range, or the token is not of printable ASCII.
        TypeError: `monitor` is not a MemoryMonitor, or another argument has the wrong type.
        OSError: It can't listen there; the message has the address.

    Example:
        >>> import neutracer
        >>> server = neutracer.serve_metrics(port=0)    # doctest: +SKIP
        >>> server.url                                  # doctest: +SKIP
        'http://127.0.0.1:40811'
    """
    routes = None if token is None else OnDemandRoutes(token, path_name(directory)).routes()
    return start_server(
        monitor,
        port,
        host,
        rank=rank,
        layout_interval=layout_interval,
        garbage_interval=garbage_interval,
        routes=routes,
        path=None if path is None else path_name(path),
    )
