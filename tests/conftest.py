# SPDX-License-Identifier: Apache-2.0
"""The bundled snapshots as files, and which tests can run here."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import isolation
import pytest

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, given, settings, strategies

    # A busy machine may take long for any example.
    settings.register_profile(
        "patient",
        settings.default,
        deadline=None,
        suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.too_slow],
    )
    settings.load_profile("patient")

    @pytest.fixture(scope="session", autouse=True)
    def begun() -> None:
        """Its first use puts a callback into gc.callbacks, for good."""
        settings(database=None, max_examples=1)(given(strategies.none())(lambda none: None))()


# Hooks are compiled into the tree: a home is the user's own, and may be read-only.
os.environ.setdefault("NEUTRACER_CACHE", str(Path(__file__).parents[1] / "build" / "cache"))

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = report.failed or item.stash.get(_FAILED, False)
    return report


@pytest.fixture(scope="module", autouse=True)
def aside() -> None:
    """What earlier files have imported and made is set aside too."""
    isolation.set_aside()


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test sees what another one left: it is taken away, and its own failure."""
    before = isolation.state()
    yield
    phases = sys.modules.get("neutracer.monitor.phases")
    if phases is not None:
        phases.MARKS = phases._Marks()
    left = isolation.restore(before)
    if left and not request.node.stash.get(_FAILED, False):
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def snapshot_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a bundled snapshot's name to the path of its unpacked pickle."""
    from bundle import pickled

    folder = tmp_path_factory.mktemp("snapshots")

    def unpacked(name: str) -> Path:
        path = folder / f"{name}.pickle"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickled(name))
        return path

    return unpacked


@cache
def _has_cuda() -> bool:
    """Whether torch sees a GPU, found out in a process of its own, if there is a driver."""
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def torch() -> Any:
    """The installed torch; a test that asks for it is skipped where there is none."""
    return pytest.importorskip("torch", reason="needs torch, which is not installed here")


@pytest.fixture(scope="session")
def with_torch(torch: Any) -> Iterator[Any]:
    """An `Imported` that has torch, with what its optimizers import at their first step, and
    nothing of neutracer; it is forked for each program."""
    from forked import Imported

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Early releases have no compiler.
    names = filter(importlib.util.find_spec, ("torch", "torch._dynamo"))
    with Imported(*names, environment=environment) as process:
        yield process


#: The files that take longest, which begin first: what runs last runs alone.
LONG = (
    *("test_features", "test_dropped", "test_in_browser", "test_notebooks", "test_torchrun"),
    *("test_run", "test_differential", "test_rehearsed_causes", "test_mdtp", "test_pytest_plugin"),
    *("test_recommend", "test_package", "test_source", "test_poison", "test_readme", "test_attach"),
)


def _order(item: pytest.Item) -> int:
    stem = item.path.stem
    return LONG.index(stem) if stem in LONG else len(LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_order)
    isolation.set_aside()
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and torch"))
