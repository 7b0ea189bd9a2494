# SPDX-License-Identifier: Apache-2.0
"""A store whose server stops to answer, with its connections open: nobody waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Imported
from waiting import wait_for

import neutracer
from neutracer.cli.main import main
from neutracer.rank import digest as store
from neutracer.recording.long_history import OutOfMemory

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

SERVER = """
import signal
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
signal.pause()
"""


class Server:
    """A store in a process of its own."""

    def __init__(self, with_torch: Imported, folder: Path) -> None:
        script, said = folder / "server.py", folder / "said.txt"
        script.write_text(SERVER)
        said.touch()
        self.process = with_torch.start(script, said)
        assert wait_for(lambda: said.read_text().endswith("\n")), said.read_text()
        self.port = int(said.read_text())

    def hang(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.end()


@pytest.fixture
def server(with_torch: Imported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(with_torch, tmp_path_factory.mktemp("server"))
    try:
        yield one
    finally:
        one.end()


def test_reader_gives_up(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "_READ_S", 1.0)
    server.hang()
    begin = time.monotonic()
    assert main(["ranks", "--store", f"127.0.0.1:{server.port}"]) == 2
    assert time.monotonic() - begin < 30
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "stopped answering" in told or "does not answer" in told


def test_rank_waits_a_second_at_most_and_goes_on_telling(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", str(server.port)),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ):
        monkeypatch.setenv(name, value)
    watch = neutracer.watch_ranks(0.1, directory=tmp_path, signals=False)
    try:
        end = time.monotonic() + 60
        while not watch.publish() and time.monotonic() < end:
            time.sleep(0.1)
        assert watch.report().rows[0].state == "running"
        server.hang()
        # The thread that tells is in a call that does not come back.
        time.sleep(1.0)
        begin = time.monotonic()
        watch._publisher.on_oom(OutOfMemory(0, 64 << 20, 0, 0, time.time_ns() // 1000))
        for _ in range(20):
            watch._publisher.on_oom(OutOfMemory(0, 64 << 20, 0, 0, time.time_ns() // 1000))
        assert time.monotonic() - begin < 10
        server.go_on()
        while watch.report().first_oom is None and time.monotonic() < end:
            time.sleep(0.1)
        first = watch.report().first_oom
        assert first is not None
        assert first.asked_bytes == 64 << 20
    finally:
        server.go_on()
        watch.remove()


def test_store_that_has_ended_is_said_and_ends_quickly(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", str(server.port)),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ):
        monkeypatch.setenv(name, value)
    with neutracer.watch_ranks(0.1, directory=tmp_path, signals=False) as watch:
        end = time.monotonic() + 60
        while not watch.publish() and time.monotonic() < end:
            time.sleep(0.1)
        server.end()
        while not watch.why and time.monotonic() < end:
            time.sleep(0.1)
        assert "does not answer" in watch.why
        assert not watch.publish()
        with pytest.raises(neutracer.UnavailableError):
            watch.report()
        begin = time.monotonic()
    assert time.monotonic() - begin < 20
    assert os.listdir(tmp_path) == []
