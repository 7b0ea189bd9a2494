# SPDX-License-Identifier: Apache-2.0
"""The tracker for CUDA, compiled against an allocator that is made up: no device, no torch."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import fake_device as fakes
import pytest

FAKE = fakes.ROOT / "tests/fakes/torch_cuda"
CORE = fakes.ROOT / "csrc/core"
RINGS = [CORE / "base" / f"{name}.c" for name in ("nt_base", "nt_ring", "nt_ring_origins")]


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/fakes/torch_cuda/tracker.cpp, compiled."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    python = sysconfig.get_path("include")
    if not (Path(python) / "Python.h").exists():
        pytest.skip("needs the headers of Python")
    folder = tmp_path_factory.mktemp("tracker")
    subprocess.run(
        [fakes.compiler(), "-std=c11", "-O1", "-c", f"-I{CORE}", *map(str, RINGS)],
        cwd=folder,
        check=True,
    )
    command = ["g++", "-std=c++20", "-O1", "-DNT_TORCH_CUDA=1", f"-I{FAKE}", f"-I{CORE}"]
    command += [f"-I{fakes.ROOT / 'csrc/torch'}", f"-I{python}", str(FAKE / "tracker.cpp")]
    command += [str(folder / f"{source.stem}.o") for source in RINGS]
    subprocess.run([*command, "-o", str(folder / "tracker")], check=True)
    return folder / "tracker"


def test_layout_names_no_foreign_stack(tracker: Path) -> None:
    ran = subprocess.run([str(tracker)], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
