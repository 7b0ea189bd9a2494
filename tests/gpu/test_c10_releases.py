# SPDX-License-Identifier: Apache-2.0
"""The hooks on other releases of torch than the installed one.

NEUTRACER_C10_RELEASES names a folder with one folder for each release, as c10_releases.py
describes them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

FOLDER = os.environ.get("NEUTRACER_C10_RELEASES", "")
RELEASES = sorted(Path(FOLDER).iterdir()) if FOLDER else []

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not RELEASES, reason="needs NEUTRACER_C10_RELEASES"),
]

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4")


def run(release, mode, settings=""):
    """What c10_releases.py tells of a release."""
    devices = torch.cuda.device_count()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "c10_releases.py"), str(release), mode],
        env={
            **os.environ,
            "PYTORCH_CUDA_ALLOC_CONF": settings,
            "PYTORCH_ALLOC_CONF": settings,
            "NEUTRACER_HOOKS_UNTRIED": "1",
            "DEVICES": str(devices),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{release.name} {settings}: {out}")
    assert out["torch"].startswith(release.name)
    return out, devices


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_what_is_told_is_what_pytorch_tells(release, settings):
    out, devices = run(release, "truth", settings)
    assert out["markers"] == [3] * devices
    assert out["layout"] is True
    assert out["blocks"] > 60
    assert out["pending"] >= devices
    assert out["figures"] == out["stats"] == out["replayed"] == [True] * devices
    assert out["complete"] == [True] * devices
    assert out["peaks"] == [True] * 2 * devices
    assert out["pool"] == [[0, 77]]
    assert out["storm"] == [30] * devices
    assert min(out["storm_moved"]) > 20
    has_annotations = tuple(map(int, release.name.split(".")[:2])) >= (2, 14)
    assert out["annotated"] is (True if has_annotations else None)
    assert (out["oom"], out["oom_event"]) == (1, [True])


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_ring_is_cheap(release):
    out, _ = run(release, "cost")
    assert out["frames"] == 8
    # Three events: alloc, free_requested, free_completed.
    assert (out["ring"] - out["without"]) / 3 <= 120
    assert (out["ring, 8 frames"] - out["without"]) / 3 <= 250
    assert (out["silent"] - out["without"]) / 3 <= 60
