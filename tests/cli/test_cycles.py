# SPDX-License-Identifier: Apache-2.0
"""`neutracer cycles`, as a user calls it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neutracer.cli.main import main

pytest.importorskip("torch")
from cycle_cases import quiet_collector

Run = Callable[..., "Done"]

LEAKY = """
import gc, sys
import torch

class Node:
    pass

def step():
    one, other = Node(), Node()
    one.next, other.prev = other, one
    one.held = torch.zeros(1 << 18)

for _ in range(int(sys.argv[1])):
    step()
if len(sys.argv) > 2:
    gc.collect()
print("trained")
"""


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    def called(*arguments: str) -> Done:
        code = main(["cycles", "--device", "cpu", *arguments])
        told = capsys.readouterr()
        gc.collect()
        return Done(code, told.out, told.err)

    with quiet_collector():
        yield called


@pytest.fixture
def leaky(tmp_path: Path) -> str:
    path = tmp_path / "leaky.py"
    path.write_text(LEAKY, encoding="utf-8")
    return str(path)


def test_program_gets_its_words_as_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    for before in ([], ["--"]):
        assert run(*before, str(path), "--", "--json").stdout == "['--', '--json']\n"


@pytest.mark.parametrize("collected", [["--collect"], []])
def test_cycles_are_summed_up_at_the_end(run: Run, leaky: str, collected: list[str]) -> None:
    done = run(leaky, "3", *collected)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "Kept until a collection: 3 MiB in 1 shape of cycles." in done.stderr
    assert "Node.next → Node.prev → Node" in done.stderr
    assert "break it: keep a weakref.ref to the Node in Node.prev" in done.stderr
    assert "TensorCycleWarning" not in done.stderr


def test_healthy_programs_are_told_so(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "healthy.py"
    path.write_text("import torch; torch.zeros(4)\n", encoding="utf-8")
    done = run("--fail-on", "moderate", str(path))
    assert done.returncode == 0
    assert "No reference cycle kept a tensor." in done.stderr


def test_findings_fail_on_request(run: Run, leaky: str) -> None:
    assert run("--fail-on", "moderate", leaky, "3").returncode == 1
    assert run("--fail-on", "severe", leaky, "3").returncode == 0
    assert run("--fail-on", "moderate", "--min-bytes", "1GiB", leaky, "3").returncode == 0


def test_exit_code_is_the_programs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("raise SystemExit(5)\n", encoding="utf-8")
    assert run(str(path)).returncode == 5
    assert run(str(tmp_path / "missing.py")).returncode == 2


@pytest.mark.parametrize("device", ["cpu:1", "cuda:99"])
def test_devices_that_are_not_there_are_named(run: Run, leaky: str, device: str) -> None:
    done = run("--device", device, leaky, "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no device {device} on this machine: torch finds " in done.stderr


def test_summary_is_json(run: Run, leaky: str) -> None:
    done = run("--json", leaky, "2")
    trained, report = done.stdout.split("\n", 1)
    plain = json.loads(report)
    assert trained == "trained"
    assert plain["schema"] == "neutracer.cycles/1"
    assert plain["bytes"] == 2 << 20
    assert plain["cycles"][0]["count"] == 2
    assert plain["collections"] >= 0
    assert plain["watch_us"] >= 0


def test_page_is_written(run: Run, leaky: str, tmp_path: Path) -> None:
    page = tmp_path / "cycles.html"
    run("-o", str(page), leaky, "2")
    text = page.read_text(encoding="utf-8")
    assert "Node" in text
    assert "weakref.ref to the Node" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("name", "begin"), [("c.JSON", "{"), ("c.md", "**MODERATE**"), ("c.txt", "MODERATE")]
)
def test_summary_is_written_by_ending(
    run: Run, leaky: str, tmp_path: Path, name: str, begin: str
) -> None:
    assert run("-o", str(tmp_path / name), "--fail-on", "moderate", leaky, "2").returncode == 1
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begin)


def test_missing_folder_is_told_before_the_run(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    done = run("-o", str(tmp_path / "none" / "page.html"), str(program))
    assert done.returncode == 2
    assert "no such folder" in done.stderr
    assert "ran" not in done.stdout


def test_page_that_fails_leaves_the_summary(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEAKY)
    (tmp_path / "taken").mkdir()
    done = run("-o", str(tmp_path / "taken"), str(program), "2")
    assert done.returncode == 2
    assert "break it:" in done.stderr


def test_ranks_have_pages_of_their_own(
    run: Run, leaky: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run("-o", str(tmp_path / "c-{rank}.html"), leaky, "1")
    assert "\nleaky.py   rank 1 of 2 · " in done.stderr
    assert [path.name for path in tmp_path.glob("*.html")] == ["c-1.html"]


HEALTHY = """
import sys
import torch

class Model:
    def weights(self):
        return W

W = torch.zeros(1 << 18)
model = Model()

def step():
    return float(model.weights().sum())

step()
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
@pytest.mark.parametrize("as_module", [False, True])
def test_variables_of_a_program_are_no_cycle(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, as_module: bool
) -> None:
    path = tmp_path / "healthy_program.py"
    path.write_text(HEALTHY + end + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["-m", "healthy_program"] if as_module else [str(path)]
    done = run("--fail-on", "info", *words)
    assert done.returncode == 0
    assert "No reference cycle kept a tensor." in done.stderr


def test_exit_code_is_the_programs_where_no_memory_is_left(tmp_path: Path) -> None:
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, sys\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "most = pages * resource.getpagesize() + (1 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "sys.exit(7)\n"
    )
    command = [sys.executable, "-m", "neutracer", "cycles", "--device", "cpu", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
