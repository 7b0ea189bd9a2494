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


def test_conda_recipe_is_of_this_version() -> None:
    text = (ROOT / "tools/release/conda/recipe.yaml").read_text(encoding="utf-8")
    assert re.findall(r'^  version: "(.+)"$', text, re.M) == [neutracer.__version__]
