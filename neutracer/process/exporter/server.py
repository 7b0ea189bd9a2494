# SPDX-License-Identifier: Apache-2.0
"""The exporter's HTTP server: three pages, on loopback by default.

It is a guest in its process: it has a bounded number of threads, each for a bounded time, and
writes nothing to the program's standard error.
"""

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
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["Application", "Server"]

_INDEX = b"neutracer: /metrics for Prometheus, /top.json for 'neutracer top'\n"

# Seconds that a request may take, from its connection to the last byte of the answer.
_REQUEST_S = 10.0

# Requests that are answered at once; each has a thread.
_MOST_AT_ONCE = 16

# Seconds that a connection waits for one of them to end, before it is refused. While they are
# all held by slow clients none waits.
_TURN_S = 0.25

# Connections that the system keeps until they are accepted, where it keeps so many. Whoever comes
# on top of them is not heard, and tries again by itself after one second, and after three.
_BACKLOG = 1024

# How far back curves may go, in seconds.
_MOST_SECONDS = 1e9

_REFUSAL = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

_LOGGER = logging.getLogger(__name__)

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
            seconds = _seconds(environ.get("QUERY_STRING", ""))
        except ValueError:
            wrong = b"seconds must be a number above 0, and at most 1e9\n"
            return _answer(start, "400 Bad Request", wrong)
        plain = json.dumps(self._page(seconds), allow_nan=False).encode()
        return _answer(start, "200 OK", plain, "application/json")


def _seconds(query: str) -> float | None:
    """How far back the curves are asked to go; None is the whole run."""
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
        # Requests that have a turn, and when it ends, in seconds of `time.monotonic`.
        self._ends: dict[Any, float] = {}
        self._lock = threading.Lock()
        # Whether a connection waited for a turn in vain, and none has ended since.
        self._is_held = False
        super().__init__(*arguments)

    def server_bind(self) -> None:
        # Without the question to a name server that the base class asks.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or refuse."""
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
        # Before its number can be another connection's of this process.
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # Without a descriptor left the connection stays, and would be tried at once.
            time.sleep(_TURN_S)
            raise

    def service_actions(self) -> None:
        """Twice a second: end what takes too long."""
        self._disconnect(time.monotonic())

    def server_close(self) -> None:
        """Stop to listen; what is being read from clients ends."""
        super().server_close()
        self._disconnect(math.inf, socket.SHUT_RD)

    def _disconnect(self, now: float, how: int = socket.SHUT_RDWR) -> None:
        with self._lock:
            for request in [request for request, end in self._ends.items() if end <= now]:
                with contextlib.suppress(OSError):
                    request.shutdown(how)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not worth reporting."""
        _LOGGER.debug("a request to the exporter failed", exc_info=True)


def _refuse(request: Any) -> None:
    """Say that there is no turn, to whoever takes it without waiting."""
    with contextlib.suppress(OSError):
        request.setblocking(False)
        request.sendall(_REFUSAL)


class _Handler(WSGIRequestHandler):
    # Of one read or write, once the server is stopped and counts the time no more.
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written for each request."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes a traceback: not among the program's own words."""
        return _Log()


class _Log(io.StringIO):
    """A text that is logged when it is flushed."""

    def flush(self) -> None:
        _LOGGER.debug("%s", self.getvalue().rstrip())


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
