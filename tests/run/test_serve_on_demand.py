# SPDX-License-Identifier: Apache-2.0
"""Reports and snapshots at the exporter's port: for the token only, one at a time."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cuda
import pytest

import neutracer
from neutracer.run import serve

pytest.importorskip("prometheus_client", reason="needs prometheus_client")

TOKEN = "s3cret"


class Monitor(neutracer.MemoryMonitor):
    """One that needs no device."""

    def start(self) -> Any:
        return self


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_cuda.FakeTorch:
    made = fake_cuda.install(monkeypatch)
    made.real_times = True
    return made


@pytest.fixture
def server(fake: Any, tmp_path: Path) -> Iterator[Any]:
    with neutracer.serve_metrics(Monitor(), 0, token=TOKEN, directory=tmp_path / "d") as made:
        yield made


def ask(url: str, method: str, path: str, token: str = TOKEN, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request(method, path, headers={"Authorization": f"Bearer {token}", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_nothing_is_offered_without_the_token(server: Any, tmp_path: Path) -> None:
    for method, path in (("POST", "/snapshot"), ("GET", "/report"), ("GET", "/phases")):
        assert ask(server.url, method, path, "wrong")[0] == 401
    assert ask(server.url, "GET", "/snapshot")[0] == 404
    assert not (tmp_path / "d").exists()
    with neutracer.serve_metrics(Monitor(), 0) as bare:
        assert ask(bare.url, "POST", "/snapshot")[0] == 404


def test_a_snapshot_is_written_and_reports_are_shown(server: Any, fake: Any) -> None:
    with neutracer.record():
        with neutracer.phase("load"):
            fake.hold(5 << 20)
        status, text = ask(server.url, "POST", "/snapshot")
        assert status == 200, text
        snap = neutracer.load(json.loads(text)["file"])
        assert snap.memory_stats()["allocated_bytes.all.current"] == 9 << 20
        assert "reserved" in ask(server.url, "GET", "/report")[1]
        status, text = ask(server.url, "GET", "/phases", Accept="application/json")
        assert json.loads(text)["turns"][0]["phase"] == "load"


def test_one_request_is_answered_at_a_time(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def nested() -> neutracer.Snapshot:
        seen.append(ask(server.url, "GET", "/report")[0])
        raise neutracer.UnavailableError("CUDA", "use it first")

    monkeypatch.setattr(serve, "snapshot_now", nested)
    status, text = ask(server.url, "POST", "/snapshot")
    assert (status, seen) == (503, [409])
    assert "use it first" in text


def test_a_unix_socket_is_this_users_alone(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with neutracer.serve_metrics(Monitor(), token=TOKEN, path=path) as made:
        assert made.url == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /report HTTP/1.0\r\nAuthorization: Bearer s3cret\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert b" 200 " in answer.split(b"\r\n")[0]
        with pytest.raises(OSError, match="there is a file already"):
            neutracer.serve_metrics(Monitor(), path=path)
    assert not path.exists()


@pytest.mark.parametrize("token", ["", "two words", "é"])
def test_a_token_that_no_header_carries_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token must be"):
        neutracer.serve_metrics(Monitor(), 0, token=token)
