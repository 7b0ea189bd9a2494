# SPDX-License-Identifier: Apache-2.0
"""The skill for coding agents, each of its examples, and the list of capabilities."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle import DATA
from forked import Imported

import neutracer
from neutracer.cli.main import COMMANDS, main

sys.path.insert(0, str(DATA.parents[1] / "docs" / "_ext"))
from report_schemas import report_classes

SKILL = Path(neutracer.__file__).parent / "skill" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
Capture = pytest.CaptureFixture[str]

# The files of the examples; what they say of them is in tests/data/README.md.
FILES = {
    "snapshot.pickle": "leak_list.pickle.xz",
    "oom.pickle": "frag_default.pickle",
    "before.pickle": "train_resnet_healthy.pickle.xz",
    "after.pickle": "train_resnet_late_zero_grad.pickle.xz",
    "neutracer-run/rank0.pickle": "leak_list.pickle.xz",
    "neutracer-run/rank1.pickle": "leak_list.pickle.xz",
}
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total "
    "capacity of 139.80 GiB of which 1.20 GiB is free. Of the allocated memory 137.10 GiB is "
    "allocated by PyTorch, and 134.01 MiB is reserved by PyTorch but unallocated.\n"
)
PROGRAM = """import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.randn(8, 64, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# Commands that run a program; `attach` needs one that runs.
WITH_TORCH = ("run", "rehearse", "cycles")
SPANS = re.findall(r"`(neutracer [^`\n]+)`", TEXT)
FENCES = re.findall(r"^```\n(.*?)^```", TEXT, re.M | re.S)
EXAMPLES = sorted({*SPANS, *(line for block in FENCES for line in block.splitlines())})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a reader of the skill works."""
    (tmp_path / "neutracer-run").mkdir()
    for name, source in FILES.items():
        shutil.copy(DATA / source, tmp_path / name)
    (tmp_path / "train.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_skill_is_short_and_has_its_front_matter() -> None:
    assert len(TEXT.splitlines()) <= 120
    front = re.match(r"---\nname: neutracer\ndescription: (.+)\n---\n", TEXT)
    assert len(front[1]) <= 1024
    # Commands are named whole, and exist.
    assert {one.split()[1] for one in EXAMPLES} <= set(COMMANDS)
    for name in re.findall(r"`(?:with )?neutracer\.(\w+)", TEXT):
        assert hasattr(neutracer, name)


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(one, marks=[pytest.mark.slow] if one.split()[1] in WITH_TORCH else [])
        for one in EXAMPLES
        if "attach" not in one
    ],
)
def test_each_example_of_the_skill_runs(example: str, folder: Path, capsys: Capture) -> None:
    words = shlex.split(example)[1:]
    if words[0] in WITH_TORCH:
        pytest.importorskip("torch")
        if words[0] == "rehearse" and shutil.which("g++") is None:
            pytest.skip("needs g++")
        done = subprocess.run([sys.executable, "-m", "neutracer", *words], capture_output=True)
        assert done.returncode == 0, done.stderr
        return
    if "--fail-on" in words:
        words = [*words[:1], "before.pickle", *words[2:]]
    assert main(words) == 0
    out = capsys.readouterr().out
    if "--json" in words:
        assert json.loads(out)["schema"].startswith("neutracer.")
    elif "--budget" in words:
        assert len(out.encode()) <= int(words[words.index("--budget") + 1])
    else:
        assert out


def test_python_of_the_skill_runs(folder: Path, with_torch: Imported) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    done = with_torch.run(block, cwd=folder)
    assert "held by module __main__" in done.stdout, done.stderr


def test_verdicts_of_the_skill_are_those_of_the_commands() -> None:
    from neutracer.leak.trend import VERDICTS
    from neutracer.oom.case import KINDS

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXT, re.M)
    told = {word for row in rows for word in re.findall(r"\w+", row)}
    assert told == set(KINDS)
    assert told & set(VERDICTS)


def test_skill_is_installed_for_a_project_and_never_over_a_change(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path(f"{one}/skills/neutracer/SKILL.md") for one in (".agents", ".claude")]
    for _ in range(2):
        assert main(["skill", "install"]) == 0
        assert capsys.readouterr().out.split() == [str(file) for file in files]
    assert all(file.read_text("utf-8") == TEXT for file in files)
    files[1].write_text("mine", encoding="utf-8")
    files[0].unlink()
    assert main(["skill", "install"]) == 2
    assert "SKILL.md differs from this version's skill" in capsys.readouterr().err
    assert files[1].read_text("utf-8") == "mine"
    assert not files[0].exists()
    assert main(["skill", "install", "--force"]) == 0
    assert files[1].read_text("utf-8") == TEXT


def test_skill_goes_to_a_folder_of_skills_and_to_no_other(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "skills").mkdir()
    assert main(["skill", "install", "--to", str(tmp_path / "skills")]) == 0
    assert [one.name for one in tmp_path.rglob("*.md")] == ["SKILL.md"]
    assert main(["skill", "install", "--to", str(tmp_path / "none")]) == 2
    (tmp_path / ".agents").touch()
    assert main(["skill", "install", "--to", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["skill", "show"]) == 0
    assert capsys.readouterr().out == TEXT


def test_capabilities_list_every_command_and_schema(capsys: Capture) -> None:
    assert main(["capabilities", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["commands"] == {name: command.summary for name, command in COMMANDS.items()}
    assert told["schemas"] == [one.schema for one in report_classes()]
    parts = {part["name"]: part["version"] for part in told["parts"]}
    assert {"torch", "Graphviz", "Hooks", "NVIDIA devices"} <= set(parts)
    has_plots = importlib.util.find_spec("matplotlib") is not None
    assert told["extras"].get("plot", has_plots) == has_plots


def test_server_says_what_is_missing(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["mcp", "no-such-folder"]) == 2
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "neutracer.integrations.mcp", raising=False)
    assert main(["mcp", os.curdir]) == 2
    assert "pip install 'mcp>=2,<3'" in capsys.readouterr().err
