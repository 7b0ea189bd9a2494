# SPDX-License-Identifier: Apache-2.0
"""What a release is made with: the tools refuse what they don't know, and versions agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
        "| cp314 musllinux_1_2_x86_64 | 1.90 | not run: no such Python for it here |  |  |  |  |",
    ]
    monkeypatch.setattr(try_wheels, "TABLE", tmp_path / "table")
    assert try_wheels.kept() == []
    (tmp_path / "table").write_text(table)
    assert try_wheels.kept() == rows


def test_conda_recipe_is_of_this_version() -> None:
    text = (ROOT / "tools/release/conda/recipe.yaml").read_text(encoding="utf-8")
    assert re.findall(r'^  version: "(.+)"$', text, re.M) == [neutracer.__version__]
