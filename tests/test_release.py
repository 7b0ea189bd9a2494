# SPDX-License-Identifier: Apache-2.0
"""What a release is made with: the tools refuse what they don't know, and versions agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import neutracer

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools").is_dir():
    pytest.skip("only a checkout has the tools", allow_module_level=True)


def refused(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_dist_takes_no_arguments() -> None:
    before = sorted(ROOT.glob("dist/*"))
    assert "not '--version'" in refused(ROOT / "tools/dist", "--version")
    assert sorted(ROOT.glob("dist/*")) == before


def test_trying_wheels_knows_its_roots() -> None:
    said = refused(sys.executable, ROOT / "tools/try_wheels.py", "buster-bare")
    assert said.startswith("there is no root buster-bare; there are bookworm-bare, ")


def test_root_knows_the_form_of_a_name() -> None:
    assert "trixie-bare-arm64" in refused(ROOT / "tools/root", "trixie-full", "true")


def test_table_of_wheels_keeps_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import try_wheels

    name = "neutracer-1.0.0-cp314-cp314-{}.whl"
    tried = name.format("manylinux_2_28_x86_64")
    rows = [
        try_wheels.Row(tried, 1_930_000, "forky-bare", "3.14.8", 2.5, ("report", "page")),
        try_wheels.Row(name.format("musllinux_1_2_x86_64"), 1_900_000),
    ]
    table = try_wheels.table(rows)
    assert table.splitlines()[2:] == [
        "| wheel | MB | tried in | Python | s | report | page |",
        "|---|---|---|---|---|---|---|",
        "| cp314 manylinux_2_28_x86_64 | 1.93 | Debian forky | 3.14.8 | 2.5 | yes | yes |",
        "| cp314 musllinux_1_2_x86_64 | 1.90 | not run |  |  |  |  |",
    ]
    monkeypatch.setattr(try_wheels, "TABLE", tmp_path / "table")
    assert try_wheels.kept() == []
    (tmp_path / "table").write_text(table)
    assert try_wheels.kept() == rows


def test_conda_recipe_is_of_this_version() -> None:
    text = (ROOT / "tools/release/conda/recipe.yaml").read_text(encoding="utf-8")
    assert re.findall(r'^  version: "(.+)"$', text, re.M) == [neutracer.__version__]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools/release")
    import hooks

    monkeypatch.setattr(hooks, "get_library", lambda folder: None)
    return hooks


def test_hooks_are_for_the_releases_that_the_index_has(
    hooks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def pip(*words: str) -> str:
        if words[0] == "index":
            minor = words[words.index("--python-version") + 1]
            if minor == "3.15":
                raise subprocess.CalledProcessError(1, "pip", stderr="ERROR: there is none")
            return "torch (2.15.0)\nAvailable versions: 2.15.0, 2.13.0+cpu\n  LATEST: 2.15.0\n"
        if words[-1] == "torch===2.99.0":
            raise subprocess.CalledProcessError(1, "pip", stderr="ERROR: No matching\n")
        folder = Path(words[words.index("-d") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / "torch.whl", "w") as wheel:
            wheel.writestr("torch/version.py", "__version__ = '2.13.0+cpu'\ncuda = None\n")
            for name in ("include/c10/util.h", "lib/libc10.so", "lib/libtorch.so", "nn/init.py"):
                wheel.writestr(f"torch/{name}", "")
        return ""

    monkeypatch.setattr(hooks, "pip", pip)
    (tmp_path / "2.10.0/torch").mkdir(parents=True)
    hooks.get(tmp_path, ["2.13.0+cpu", "2.99.0"])
    assert capsys.readouterr().err == "no hooks for torch 2.99.0: ERROR: No matching\n"
    known = json.loads((tmp_path / "released.json").read_text())
    assert known["3.14"] == ["2.15.0", "2.13.0+cpu"]
    assert known["3.15"] == []
    there = sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())
    place = "2.13.0+cpu/torch"
    names = ("__init__.py", "include/c10/util.h", "lib/libc10.so", "version.py")
    assert there == [*(f"{place}/{name}" for name in names), "released.json"]


def test_hooks_lie_where_neutracer_looks_for_those_of_the_installed_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from neutracer.hooks.build import target

    site = tmp_path / "torches" / torch.__version__
    site.mkdir(parents=True)
    for name in ("torch", "nvidia", "triton"):
        if (Path(torch.__file__).parents[1] / name).exists():
            (site / name).symlink_to(Path(torch.__file__).parents[1] / name)
    known = {"{}.{}".format(*sys.version_info): [torch.__version__.partition("+")[0]]}
    (tmp_path / "torches/released.json").write_text(json.dumps(known))
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made >"$2"\n')
    compiler.chmod(0o755)
    words = [sys.executable, ROOT / "tools/release/hooks.py", "build", tmp_path / "torches"]
    subprocess.run(
        [*words, tmp_path / "made", compiler, "x86_64-linux-gnu.2.28", ROOT, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    goal = target()
    (made,) = tmp_path.glob("made/*/*")
    assert made.relative_to(tmp_path / "made") == Path(goal.key, goal.file)
    assert made.read_text() == "made\n"
