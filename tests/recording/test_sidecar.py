# SPDX-License-Identifier: Apache-2.0
"""Which rank a process is, asked in every state that torch.distributed can be in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neutracer.recording import sidecar
from neutracer.trace.beside import DeviceRoom, beside_file


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in chain.from_iterable(sidecar._LAUNCHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sidecar, "_of_group", {})
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


def joined(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> Any:
    """A torch.distributed that is in a group."""
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    return group


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, (None, None, None)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}, (5, 16, 0)),
        ({"RANK": "3", "SLURM_PROCID": "0"}, (3, None, None)),
        # Two nodes of a Slurm job, each with one task that starts several ranks.
        ({"RANK": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (3, None, None)),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"},
            (3, 4, None),
        ),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            (2, 4, None),
        ),
        ({"RANK": "nonsense", "WORLD_SIZE": "8", "SLURM_PROCID": "1"}, (1, None, None)),
        ({"LOCAL_RANK": "1"}, (None, None, 1)),
        ({"RANK": "none"}, (None, None, None)),
    ],
)
def test_launchers_tell_the_rank(
    environment: dict[str, str],
    told: tuple[int | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tuple(sidecar.rank_facts().values()) == told


def test_group_is_asked_before_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    joined(monkeypatch, 2, 4)
    assert sidecar.rank_facts()["rank"] == 2
    assert "-rank2-" in sidecar.file_stem("oom")


def test_rank_outlives_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    group = joined(monkeypatch, 2, 4)
    assert sidecar.rank_facts()["world_size"] == 4
    group.is_initialized = lambda: False
    assert sidecar.rank_text(sidecar.rank_facts()) == "rank 2 of 4"


def test_group_that_ends_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended() -> int:
        raise ValueError("Default process group has not been initialized")

    group = joined(monkeypatch, 2, 4)
    group.get_world_size = ended
    monkeypatch.setenv("RANK", "1")
    assert sidecar.rank_facts()["rank"] == 1
    # While it is being imported it has none of its functions.
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())
    assert sidecar.rank_facts()["rank"] == 1


def test_names_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sidecar.filled_in("r{rank}-{pid}.pickle") == f"r0-{os.getpid()}.pickle"
    joined(monkeypatch, 2, 4)
    assert sidecar.filled_in("r{rank}.pickle") == "r2.pickle"


def test_rank_without_a_size_is_told() -> None:
    assert sidecar.rank_text({"rank": 0, "world_size": None}) == "rank 0"
    assert sidecar.rank_text({"rank": None, "world_size": 8}) == ""


def test_no_device_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert sidecar.room_now(0) is None
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert sidecar.room_now(0) is None


@pytest.mark.parametrize(
    ("fraction", "limit"), [(1.0, None), (0.25, 16 << 20), (1 / 3, (64 << 20) // 3), (None, None)]
)
def test_room_is_told(
    monkeypatch: pytest.MonkeyPatch, fraction: float | None, limit: int | None
) -> None:
    total = 64 << 20
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        get_device_properties=lambda device: SimpleNamespace(name="one", total_memory=total),
        memory_stats=lambda device: {"reserved_bytes.all.current": 8 << 20},
        mem_get_info=lambda device: (50 << 20, total),
    )
    if fraction is not None:
        cuda.get_per_process_memory_fraction = lambda device: fraction
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    room = sidecar.room_now(0)
    assert room == DeviceRoom(total, fraction, 6 << 20)
    assert room.limit_bytes == limit


def test_cuda_that_does_not_answer_hides_what_others_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(device: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        get_device_properties=lambda device: SimpleNamespace(name="one", total_memory=1 << 30),
        memory_stats=lambda device: {},
        mem_get_info=fail,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert sidecar.room_now(0) == DeviceRoom(1 << 30, None, None)


def test_device_without_a_context_is_not_asked_and_so_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def free(device: int) -> tuple[int, int]:
        asked.append(device)
        return 1 << 29, 1 << 30

    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(name="one", total_memory=1 << 30),
        memory_stats=lambda device: {},
        mem_get_info=free,
    )
    c10 = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device == 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=c10))
    devices = sidecar.sidecar((0, 1), recording={})["devices"]
    assert asked == [1]
    assert [devices[name]["free_bytes"] for name in "01"] == [None, 1 << 29]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": "other"}', '{"schema": "neutracer.sidecar/1"}']
)
def test_what_is_no_sidecar_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.pickle.json").write_text(text)
    assert beside_file(str(tmp_path / "a.pickle.xz")).rooms == {}
    assert beside_file(str(tmp_path / "none.pickle")) == beside_file("")


def test_pipe_beside_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pickle.json")
    assert beside_file(str(tmp_path / "a.pickle")) == beside_file("")


def test_folders_of_installed_packages_are_told(tmp_path: Path) -> None:
    for name in (
        "own",
        "target/einops-0.8.dist-info",
        "plain/einops",
        "x/site-packages/a.dist-info",
    ):
        (tmp_path / name).mkdir(parents=True)
    path = [str(tmp_path / name) for name in ("own", "target", "plain", "x/site-packages", "gone")]
    code = "from neutracer.recording.sidecar import sidecar; import sys; sys.path[1:1] = "
    code += f"{path!r}; print(*sidecar((), recording={{}})['libraries'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "target")]


def test_room_is_read_again(tmp_path: Path) -> None:
    said = {"total_bytes": 1 << 30, "process_fraction": 0.5, "other_bytes": 1 << 40}
    plain = {"schema": "neutracer.sidecar/1", "devices": {"1": said}}
    (tmp_path / "a.json").write_text(json.dumps(plain))
    # More than the device has is not believed.
    room = DeviceRoom(1 << 30, 0.5, None)
    assert beside_file(str(tmp_path / "a.pickle.xz")).rooms == {1: room}
