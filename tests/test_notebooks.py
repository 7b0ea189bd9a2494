# SPDX-License-Identifier: Apache-2.0
"""The notebooks say what is so: their cells run, their claims hold, their outputs are theirs."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Imported
from ipython_cells import environment, outputs_in_fork

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
MOST_BYTES = 200_000

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def needs(path: Path) -> None:
    """Skips a notebook whose cells need what is not here."""
    for name in ("IPython", "matplotlib"):
        pytest.importorskip(name)
    if uses_torch(path):
        torch = pytest.importorskip("torch")
        if torch.version.cuda is not None and not torch.cuda.is_available():
            pytest.skip("torch is built for CUDA, and there is no device")
        if not any(map(shutil.which, ("c++", "g++", "clang++"))):
            pytest.skip("needs a compiler for the hooks")


def uses_torch(path: Path) -> bool:
    return any("import torch" in "".join(cell["source"]) for cell in cells_of(path))


def stored_text(cell: dict[str, Any]) -> str:
    """The text that a stored cell shows, printed or as its value."""
    parts = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            parts += output["text"] if output["name"] == "stdout" else []
        else:
            parts += ["".join(output["data"]["text/plain"]), "\n"]
    return "".join(parts)


#: A rehearsal takes time per operator: the ordinary run has one of the model's twelve blocks, six
#: times as wide. `test_notebook_runs_in_a_kernel` runs what is written.
_SMALLER = ("width=1024, depth=12", "width=6144, depth=1")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """A process that is forked for each notebook."""
    names = ["IPython.core.interactiveshell", "matplotlib.pyplot"]
    names += ["torch"] if importlib.util.find_spec("torch") else []
    home = tmp_path_factory.mktemp("home")
    with Imported(*names, environment=environment(home)) as process:
        yield process


def fresh_text(answer: dict[str, Any]) -> str:
    shown = "".join(output["text/plain"] + "\n" for output in answer["shown"])
    return str(answer["stdout"]) + shown


@every_notebook
def test_cells_run_and_claims_hold(process: Imported, path: Path) -> None:
    needs(path)
    cells = cells_of(path)
    sources = ["".join(cell["source"]).replace(*_SMALLER) for cell in cells]
    answers = outputs_in_fork(process, sources, path.parent)
    assert [answer["error"] for answer in answers] == [None] * len(cells)
    assert "assert " in "".join(cells[-1]["source"])
    if not uses_torch(path):
        fresh = [fresh_text(answer).split() for answer in answers]
        assert fresh == [stored_text(cell).split() for cell in cells]


@every_notebook
def test_outputs_are_stored_and_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"/tmp/|ipykernel_\d", text)
    cells = cells_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    assert cells[-1]["metadata"]["jupyter"]["source_hidden"] is True


def test_every_story_is_told() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "1_out_of_memory",
        "2_fragmentation",
        "3_attention",
        "4_reference_cycle",
        "5_leak",
        "6_weight_streaming",
        "7_before_you_run",
    ]


@pytest.mark.slow
@every_notebook
def test_notebook_runs_in_a_kernel(path: Path) -> None:
    needs(path)
    pytest.importorskip("ipykernel", reason="needs the extra 'docs'")
    pytest.importorskip("nbclient", reason="needs the extra 'docs'")
    command = [sys.executable, "-m", "jupyter", "execute", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
