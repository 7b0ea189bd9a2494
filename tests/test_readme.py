# SPDX-License-Identifier: Apache-2.0
"""The README, the docstrings and the notebook show what the program really does."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("neutracer/**/*.py")
    if path.name != "__main__.py"
)


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run_report() -> str:
    environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    return subprocess.run(
        [sys.executable, "-m", "neutracer", "report", "data/frag_default.pickle"],
        cwd=ROOT / "tests",
        check=True,
        capture_output=True,
        encoding="utf-8",
        env={**environment, "PYTHONIOENCODING": "utf-8"},
    ).stdout


def test_readme_shows_the_real_report() -> None:
    shown = re.search(r"<!-- demo -->\n```\n(.*?)```\n<!-- end of demo -->", README, re.S)
    assert shown
    assert shown.group(1) == run_report()


def test_readme_code_runs_as_written() -> None:
    blocks = re.findall(r"```python\n(import neutracer\n.*?)```", README, re.S)
    assert blocks
    for block in blocks:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(block, "README.md", "exec"), {})
        assert out.getvalue()


def test_readme_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run_as_written(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    module = importlib.import_module(name)
    if ">>> import torch" in inspect.getsource(module):
        pytest.importorskip("torch")
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_cells_run_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    with redirect_stdout(io.StringIO()) as out:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert "cuda:0" in out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_a_kernel(path: Path) -> None:
    pytest.importorskip("ipykernel", reason="needs the extra 'docs'")
    pytest.importorskip("nbclient", reason="needs the extra 'docs'")
    command = [sys.executable, "-m", "jupyter", "execute", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
