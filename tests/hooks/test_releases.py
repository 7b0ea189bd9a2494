# SPDX-License-Identifier: Apache-2.0
"""The hooks on the CPU with other releases of torch than the installed one.

NEUTRACER_TORCH_RELEASES names a folder with one folder for each release, into which it was
installed: `pip install --target FOLDER/2.15.0 torch==2.15.0`. What a build for CUDA does on
the CPU is what one for the CPU does: such a release is used through a package of links to it
that says that it has no CUDA.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from places import TESTS

HERE = TESTS
FOLDER = os.environ.get("NEUTRACER_TORCH_RELEASES", "")
RELEASES = sorted(file.parents[1] for file in Path(FOLDER).glob("*/torch/version.py") if FOLDER)

pytestmark = pytest.mark.skipif(not RELEASES, reason="needs NEUTRACER_TORCH_RELEASES")

#: Tests of what the hooks tell of the CPU, and of what is made from it.
FILES = (
    "process/hooks/test_attach.py",
    "process/hooks/test_follow.py",
    "process/hooks/test_tail.py",
    "process/monitor/test_memory_monitor.py",
    "test_notebook.py",
)
#: It needs the CUDA toolkit, which a release does not bring.
NOT_OF_THE_CPU = "test_cuda_part_type_checks_without_cuda"


def links(folder: Path, place: Path, *, without: str = "") -> None:
    """`place` with a link to each thing that is in `folder`."""
    place.mkdir()
    for path in folder.iterdir():
        if path.name not in (without, "__pycache__"):
            (place / path.name).symlink_to(path)


def for_the_cpu(release: Path, site: Path) -> None:
    """The release as a site whose torch is one for the CPU.

    A torch for CUDA is told by its version.py, and by a header beside those of c10.
    """
    links(release, site, without="torch")
    torch = site / "torch"
    links(release / "torch", torch, without="include")
    below = Path()
    for part in ("include", "c10", "cuda", "impl", "cuda_cmake_macros.h"):
        if below.name:
            links(release / "torch" / below, torch / below, without=part)
        below /= part
    text = (release / "torch" / "version.py").read_text(encoding="utf-8")
    (torch / "version.py").unlink()
    changed = re.sub(r"^(cuda\b[^=\n]*= ).*", r"\1None", text, flags=re.M)
    (torch / "version.py").write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_hooks_on_the_cpu_tell_the_truth(release: Path, tmp_path: Path) -> None:
    for_the_cpu(release.resolve(), tmp_path / "site")
    report = tmp_path / "report.xml"
    words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(str(HERE / name) for name in FILES)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]),
            "NEUTRACER_CACHE": str(tmp_path / "cache"),
            # Also a release that is not let to the hooks yet.
            "NEUTRACER_HOOKS_UNTRIED": "1",
        },
        # Not the checkout, which would stand in for what is installed.
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    skipped = {
        (case.get("name"), why.get("message", ""))
        for case in ElementTree.parse(report).iter("testcase")
        for why in case.iter("skipped")
    }
    assert not [
        (name, message)
        for name, message in skipped
        if name != NOT_OF_THE_CPU and re.search("torch|hooks", message, re.I)
    ]
    # What was compiled is for this release and no other.
    made = {path.parent.name for path in tmp_path.glob("cache/hooks/*/_torch*.so")}
    assert made
    assert all(name.startswith(f"torch{release.name}") for name in made)
