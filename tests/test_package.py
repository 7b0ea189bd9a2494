# SPDX-License-Identifier: Apache-2.0
"""What is built to be given away: an sdist, a wheel, and what they hold."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import neutracer

ROOT = Path(__file__).parents[1]
BUILT = ("csrc", "neutracer", "setup.py", "pyproject.toml", "MANIFEST.in")
BUILT += ("README.md", "LICENSE", "CHANGELOG.md")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("build") is None, reason="needs the package 'build'"
)


def plain_environment() -> dict[str, str]:
    """Without the switches and preloads of the build under test."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("NEUTRACER_", "LD_PRELOAD", "PYTHON", "COV_", "COVERAGE"))
    }
    # A build without optimisation takes half the time, and holds the same.
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "NEUTRACER_DEBUG": "1"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=plain_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of a copy of the tree, and a wheel made of that sdist."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    tree.mkdir()
    # Other processes may import modules, and so write caches, while it is copied.
    skip = shutil.ignore_patterns("*.so", "__pycache__")
    for path in filter(Path.exists, (ROOT / name for name in BUILT)):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=skip)
        else:
            shutil.copy(path, tree)
    run(sys.executable, "-m", "build", "-q", "--no-isolation", "--outdir", folder, cwd=tree)
    return folder


def test_sdist_holds_sources_and_no_tests(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sdist.name == f"neutracer-{neutracer.__version__}.tar.gz"
    sources = [*ROOT.glob("csrc/**/*.[ch]"), *ROOT.glob("csrc/**/*.[ch]pp")]
    wanted = {path.relative_to(ROOT).as_posix() for path in sources}
    assert wanted <= names
    assert {"LICENSE", "README.md", "setup.py", "neutracer/_core.pyi"} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/")) or ".so" in name]


def test_wheel_holds_package_and_core(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("neutracer/**/*.py")}
    assert modules <= names
    assert {"neutracer/py.typed", "neutracer/skill/SKILL.md"} <= names
    compiled = [name for name in names if name.endswith(".so")]
    # The pictures' module is there where Graphviz was, and nothing else.
    assert {name.split(".")[0] for name in compiled} - {"neutracer/_graphviz"} == {
        "neutracer/_core"
    }
    assert {"neutracer/heap/page.css", "neutracer/heap/page.js"} <= names
    sources = {name for name in names if name.endswith((".c", ".h", ".cpp", ".hpp", ".a"))}
    compiled_there = [*ROOT.glob("csrc/torch/*.[ch]pp"), *ROOT.glob("csrc/rehearsal/*.cpp")]
    headers = ("base/nt_ring.h", "base/nt_ring_origins.h", "trace/nt_live_api.h")
    assert compiled_there
    assert sources == {
        *(f"neutracer/{path.relative_to(ROOT).as_posix()}" for path in compiled_there),
        *(f"neutracer/csrc/core/{name}" for name in headers),
    }


def test_wheel_works_in_clean_venv(built: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    site = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site.strip())
    text = run(
        python, "-m", "neutracer", "report", ROOT / "tests/data/frag_default.pickle", cwd=tmp_path
    )
    assert "cuda:0" in text
    place = "from neutracer.hooks.build import source_folder; print(source_folder())"
    sources = Path(run(python, "-c", place, cwd=tmp_path).strip())
    assert sources == Path(site.strip(), "neutracer", "csrc")
    rehearsed = (
        "from neutracer.hooks.build import source_folder\n"
        "print((source_folder() / 'rehearsal' / 'nt_pretend_cuda.cpp').is_file())"
    )
    assert run(python, "-c", rehearsed, cwd=tmp_path).strip() == "True"
    version = run(python, "-m", "neutracer", "--version", cwd=tmp_path)
    assert version.split() == ["neutracer", neutracer.__version__]
