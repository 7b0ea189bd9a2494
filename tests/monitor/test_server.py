# SPDX-License-Identifier: Apache-2.0
"""The exporter is a guest in its process: bounded threads, bounded times, silent failures."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_for

from neutracer.monitor import exporter
from neutracer.monitor.exporter import Application, Server

GET = b"GET / HTTP/1.0\r\n\r\n"


def metrics(environ: dict[str, Any], start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b"x" * (64 << 20)]


def page(seconds: float | None) -> dict[str, Any]:
    if seconds == 13:
        raise ZeroDivisionError
    return {"seconds": seconds}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that gives a request one second instead of ten."""
    monkeypatch.setattr(exporter, "_REQUEST_S", 1.0)
    made = Server("127.0.0.1", 0, Application(metrics, page))
    made.start()
    yield made
    made.stop()
    assert wait_for(lambda: not answering())


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def connect(server: Server) -> socket.socket:
    return socket.create_connection(address(server), timeout=PATIENCE)


def answering() -> int:
    """How many threads answer a request."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def read(client: socket.socket) -> bytes:
    """All that comes; a refusal may end with a reset."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(1 << 16):
            found += piece
    return found


def ask(server: Server, path: str) -> bytes:
    with connect(server) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return read(client)


def trickle(clients: list[socket.socket], stop: threading.Event) -> None:
    """A byte of each request, again and again."""
    while not stop.wait(0.1):
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(b"G")


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1e308", "1e10", "-1", "0", "x", "", "1e-400", "9" * 5000]
)
def test_seconds_that_are_none_are_refused(
    server: Server, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said = ask(server, f"/top.json?seconds={text}")
    assert said.startswith(b"HTTP/1.0 400 ")
    assert said.endswith(b"seconds must be a number above 0, and at most 1e9\n")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["1e-9", "300", "1e9"])
def test_seconds_are_taken(server: Server, text: str) -> None:
    assert f'{{"seconds": {float(text)}}}'.encode() in ask(server, f"/top.json?seconds={text}")


def test_failure_is_not_the_programs_to_see(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ask(server, "/top.json?seconds=13").startswith(b"HTTP/1.0 500 ")
    assert capfd.readouterr() == ("", "")


def test_slow_clients_hold_few_threads_for_a_bounded_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of them come while the first are still answered, on a busy machine too.
    monkeypatch.setattr(exporter, "_REQUEST_S", 4.0)
    clients = [connect(server) for _ in range(30)]
    stop = threading.Event()
    trickling = threading.Thread(target=trickle, args=(clients, stop))
    trickling.start()
    try:
        assert wait_for(lambda: answering() == exporter._MOST_AT_ONCE)
        # Whoever gets no turn is refused at once, and an honest client with them.
        said = ask(server, "/")
        assert said[:12] in (b"HTTP/1.0 503", b"")
        most = 0
        for _ in range(80):
            most = max(most, answering())
            time.sleep(0.01)
        assert most <= exporter._MOST_AT_ONCE
        assert wait_for(lambda: not answering())
        assert ask(server, "/").endswith(exporter._INDEX)
    finally:
        stop.set()
        trickling.join()
        for client in clients:
            client.close()


def test_client_that_does_not_read_is_left(server: Server) -> None:
    begin = time.monotonic()
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert wait_for(lambda: answering() == 1)
        assert wait_for(lambda: not answering())
        assert time.monotonic() - begin >= 0.9
        assert len(read(client)) < 64 << 20


def test_stop_lets_nobody_trickle_on(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b"GET")
        assert wait_for(lambda: answering() == 1)
        server.stop()
        assert wait_for(lambda: not answering())


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2500:
        pytest.skip("too few files can be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("slow", [0, 16])
def test_thousand_connections_are_answered_or_refused(
    server: Server, descriptors: None, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The slow ones hold their threads for longer than the others may take.
    monkeypatch.setattr(exporter, "_REQUEST_S", 2 * PATIENCE)
    holding = [connect(server) for _ in range(slow)]
    assert wait_for(lambda: answering() == slow)
    begin = time.monotonic()
    waiting = selectors.DefaultSelector()
    clients = []
    for _ in range(1000):
        client = socket.socket()
        client.setblocking(False)
        assert client.connect_ex(address(server)) in (0, errno.EINPROGRESS)
        waiting.register(client, selectors.EVENT_WRITE)
        clients.append(client)
    outcomes = {b"200": 0, b"503": 0, b"": 0}
    while waiting.get_map():
        assert time.monotonic() < begin + PATIENCE, outcomes
        for key, event in waiting.select(1):
            with contextlib.suppress(ConnectionError):
                if event == selectors.EVENT_WRITE:
                    key.fileobj.send(GET)  # type: ignore[union-attr]
                    waiting.modify(key.fileobj, selectors.EVENT_READ)
                    continue
            said = b""
            with contextlib.suppress(ConnectionError):
                said = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            outcomes[said[9:12]] += 1
            waiting.unregister(key.fileobj)
    assert sum(outcomes.values()) == 1000
    assert bool(outcomes[b"200"]) == (not slow)
    for client in [*clients, *holding]:
        client.close()
    waiting.close()


def test_thousand_connections_are_heard_at_once(descriptors: None) -> None:
    kept = Path("/proc/sys/net/core/somaxconn")
    most = int(kept.read_text(encoding="utf-8")) if kept.exists() else 128
    # Nobody takes them: what the system keeps is all that there is.
    server = Server("127.0.0.1", 0, Application(metrics, page))
    clients = [connect(server) for _ in range(min(1000, most))]
    server.start()
    clients[0].sendall(GET)
    assert read(clients[0]).endswith(exporter._INDEX)
    server.stop()
    for client in clients:
        client.close()


def test_accept_without_descriptors_does_not_spin(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def refused(listener: Any) -> Any:
        nonlocal tried
        tried += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(exporter.WSGIServer, "get_request", refused)
    with connect(server):
        time.sleep(0.6)
    assert 1 <= tried <= 4
