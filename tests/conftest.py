# SPDX-License-Identifier: Apache-2.0
"""The bundled snapshots as fixtures, and which tests can run here."""

from __future__ import annotations

import importlib.util
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


def _names(folder: Path) -> list[str]:
    packed = (str(path.relative_to(folder)) for path in folder.rglob("*.pickle.xz"))
    # Those in oom/ have a verdict in their JSON, and not PyTorch's figures.
    return sorted(name.removesuffix(".pickle.xz") for name in packed if name[:4] != "oom/")


#: The names of all bundled snapshots: "frag_default", ..., "whatif/8/mixed_streams".
ALL_SNAPSHOTS = _names(DATA)
#: Those of programs that ran once, under one setting.
SNAPSHOTS = [name for name in ALL_SNAPSHOTS if "/" not in name]


@lru_cache(maxsize=8)
def snapshot_bytes(name: str) -> bytes:
    """The pickle of a bundled snapshot, unpacked."""
    return lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())


@cache
def _expected(name: str) -> str:
    return (DATA / f"{name}.json").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def snapshot_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a bundled snapshot's name to the path of its unpacked pickle."""
    folder = tmp_path_factory.mktemp("snapshots")

    def unpacked(name: str) -> Path:
        path = folder / f"{name}.pickle"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(snapshot_bytes(name))
        return path

    return unpacked


@pytest.fixture(scope="session")
def expected() -> Callable[[str], dict[str, Any]]:
    """A function from a bundled snapshot's name to what PyTorch said about itself then."""
    return lambda name: json.loads(_expected(name))


@pytest.fixture(params=ALL_SNAPSHOTS)
def snapshot_name(request: pytest.FixtureRequest) -> str:
    """Each bundled snapshot's name in turn."""
    return str(request.param)


@pytest.fixture
def snapshot_file(snapshot_name: str, snapshot_path: Callable[[str], Path]) -> Path:
    """Each bundled snapshot in turn, unpacked."""
    return snapshot_path(snapshot_name)


@cache
def _has_cuda() -> bool:
    """Whether torch sees a GPU, found out in a process of its own."""
    if importlib.util.find_spec("torch") is None:
        return False
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def torch() -> Any:
    """The installed torch; a test that asks for it is skipped where there is none."""
    return pytest.importorskip("torch", reason="needs torch, which is not installed here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and torch"))
