# SPDX-License-Identifier: Apache-2.0
"""The README and the docstrings show what the program really does."""

from __future__ import annotations

import doctest
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.glob("neutracer/**/*.py")
    if path.name != "__main__.py"
)
# Imported with their host, or with torch.
WITH_HOST = ("neutracer.integrations.", "neutracer.rehearsal.", "neutracer.rank.debug_page")

# Their examples with tensors say what the whole process has: in one without other tests' objects.
OF_ALL_OBJECTS = ("neutracer.heap.",)


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# What the README says that the command, or the lines of Python, above it print. "..." stands
# for anything.
PRINTED = re.compile(
    r"```(?:python\n(?P<code>(?:(?!```).)*?)|\n(?P<command>neutracer [^\n]*)\n)```\n"
    r"<!-- prints -->\n```text\n(?P<shown>.*?)```",
    re.S,
)
SHOWN = [match.groupdict() for match in PRINTED.finditer(README)]


def first_words(shown: dict[str, str]) -> str:
    return shown["command"] or shown["shown"].partition("   ")[0]


# As `python train.py`, in a process that has torch and nothing else.
SCRIPT = """
import os, sys
for name in ("COLUMNS", "FORCE_COLOR"):
    os.environ.pop(name, None)
with open(sys.argv[1], encoding="utf-8") as file:
    code = compile(file.read(), sys.argv[1], "exec")
exec(code)
"""


@pytest.mark.parametrize("shown", SHOWN, ids=first_words)
def test_readme_shows_what_is_printed(
    shown: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Not in the checkout, whose modules would stand in for what is installed.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    if shown["code"] and "import torch" in shown["code"]:
        script = tmp_path / "train.py"
        script.write_text(shown["code"], encoding="utf-8")
        done = request.getfixturevalue("with_torch").run(SCRIPT, str(script), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        printed = printed_by(shown, tmp_path)
    printed = printed.replace(f"{tmp_path}{os.sep}", "")
    assert doctest.OutputChecker().check_output(shown["shown"], printed, doctest.ELLIPSIS), printed


def printed_by(shown: dict[str, str], folder: Path) -> str:
    """What a command, or a program that does without torch, prints in a process of its own."""
    if shown["command"]:
        arguments = ["-m", *shlex.split(shown["command"])]
    else:
        (folder / "train.py").write_text(shown["code"], encoding="utf-8")
        arguments = [str(folder / "train.py")]
    removed = ("COLUMNS", "FORCE_COLOR")
    environment = {key: value for key, value in os.environ.items() if key not in removed}
    environment |= {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env=environment,
    )
    return done.stdout


def test_readme_answers_all_five_questions() -> None:
    asked = re.findall(r"^### (.*\?)$", README, re.M)
    assert asked == [
        "What holds it?",
        "Is it leaking?",
        "Is it fragmented?",
        "Why did it run out?",
        "What should I change?",
    ]
    for part in README.partition("## Five questions")[2].partition("\n## ")[0].split("\n### ")[1:]:
        assert "<!-- prints" in part
    assert README.count("<!-- prints") == len(SHOWN) == 7


def test_readme_installs_before_it_explains() -> None:
    lines = README.splitlines()
    wanted = ("make demo", "make test", "pip install", "neutracer report tests/data/")
    first = [next(n for n, line in enumerate(lines, 1) if word in line) for word in wanted]
    assert first == sorted(first)
    assert first[1] < 15
    assert first[-1] < 65
    assert "Memory Distribution Timeline Plot (MDTP)" in " ".join(lines[:65])


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


def failed_examples(name: str) -> int:
    """How many of a module's examples do not print what they say, which is printed."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    return doctest.testmod(importlib.import_module(name), optionflags=flags).failed


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run_as_written(name: str, request: pytest.FixtureRequest) -> None:
    if name.startswith(WITH_HOST):
        pytest.importorskip(name, exc_type=ModuleNotFoundError)
    with_torch = ">>> import torch" in inspect.getsource(importlib.import_module(name))
    if with_torch:
        pytest.importorskip("torch")
    if with_torch and name.startswith(OF_ALL_OBJECTS):
        # Without the folder that it is run in, which has the sources.
        call = "import sys; del sys.path[0]; from test_readme import failed_examples; "
        call += f"sys.exit(failed_examples({name!r}))"
        done = request.getfixturevalue("with_torch").run(call, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert failed_examples(name) == 0
