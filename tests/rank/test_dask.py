# SPDX-License-Identifier: Apache-2.0
"""Ranks reduced by a real Dask cluster of this machine, of which a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_files import trained, write
from small_snapshots import MIB

import neutracer

distributed = pytest.importorskip("distributed", reason="needs dask.distributed")

# What Dask, and the event loop under it, leave to the collector when a worker is killed.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # The workers are processes of their own, and find the package where this one does.
    root = str(Path(neutracer.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", root)
    # What it sets for its workers stays in this process's environment.
    before = dict(os.environ)
    with (
        distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
    for name in os.environ.keys() - before:
        del os.environ[name]


def job(folder: Path, ranks: int) -> Path:
    folder.mkdir()
    for rank in range(ranks):
        write(folder, rank, trained(leak=3 * MIB * (rank == 5)), world=ranks)
    return folder


def test_cluster_gives_what_this_process_does(client: Any, tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 12)
    found = neutracer.ranks(folder, executor=client.get_executor())
    assert found == neutracer.ranks(folder)
    assert [(one.rank, one.cause) for one in found.odd] == [(5, "leak")]


def test_killed_worker_costs_nothing_but_time(client: Any, tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 48)
    pids = [one["pid"] for one in client.run(lambda: {"pid": os.getpid()}).values()]
    begun = threading.Event()

    def kill() -> None:
        begun.wait(60)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    done = 0

    def told(count: int, total: int) -> None:
        nonlocal done
        done = count
        if count == 8:
            begun.set()
            time.sleep(0.5)

    found = neutracer.ranks(folder, executor=client.get_executor(), progress=told)
    killer.join()
    assert done == 48
    assert [row.state for row in found.rows] == ["exit"] * 48
    assert [(one.rank, one.cause) for one in found.odd] == [(5, "leak")]
