# SPDX-License-Identifier: Apache-2.0
"""The exporter's HTTP server: three pages, on loopback by default."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import socketserver
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["Application", "Server"]

_INDEX = b"neutracer: /metrics for Prometheus, /top.json for 'neutracer top'\n"

# A client that sends nothing for this long, in seconds, is disconnected.
_CLIENT_WAIT_S = 10

_serving: weakref.WeakSet[_Listener] = weakref.WeakSet()

Start = Callable[[str, list[tuple[str, str]]], Any]


class Application:
    """Hands a request to Prometheus's own application, or answers with a page.

    Args:
        metrics: The application of prometheus_client.
        page: Gives what `neutracer top` shows, of the last seconds given, or of all.
    """

    def __init__(
        self,
        metrics: Callable[..., Iterable[bytes]],
        page: Callable[[float | None], dict[str, Any]],
    ) -> None:
        self._metrics = metrics
        self._page = page
        self.loopback_only = True

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if self.loopback_only and not _is_local(environ.get("HTTP_HOST", "")):
            # A page of the web that points a name of its own at this machine.
            return _answer(start, "403 Forbidden", b"ask by the name localhost\n")
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start)
        if path == "/":
            return _answer(start, "200 OK", _INDEX)
        if path != "/top.json":
            return _answer(start, "404 Not Found", _INDEX)
        try:
            asked = parse_qs(environ.get("QUERY_STRING", "")).get("seconds")
            seconds = float(asked[0]) if asked else None
        except ValueError:
            return _answer(start, "400 Bad Request", b"seconds is a number\n")
        plain = json.dumps(self._page(seconds), allow_nan=False).encode()
        return _answer(start, "200 OK", plain, "application/json")


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
    # Two ranks on one port would answer in turns.
    allow_reuse_port = False

    def server_bind(self) -> None:
        # Without the question to a name server that the base class asks.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth reporting."""


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_WAIT_S

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written for each request."""


class Server:
    """Serves an application from a thread of its own.

    Raises:
        OSError: It can't listen there.
    """

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
                said += "; each process needs one of its own, 0 is any free one"
            raise OSError(error.errno, said) from None
        self._listener.set_app(application)
        self._thread: threading.Thread | None = None
        name = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
        self.url = f"http://{name}:{self._listener.server_port}"
        _serving.add(self._listener)

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, name="neutracer-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End it; a second time does nothing."""
        if self._thread is not None and self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._thread = None
        self._listener.server_close()


def _close_in_child() -> None:
    """A child would keep the port taken after its parent has given it up."""
    for listener in list(_serving):
        listener.socket.close()


os.register_at_fork(after_in_child=_close_in_child)
