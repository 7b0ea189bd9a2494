# SPDX-License-Identifier: Apache-2.0
"""Processes that others start, followed because their environment asks for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import ROOT

import neutracer
from neutracer.run import inherit

# A package torch whose allocator is the tests' own.
FAKE_TORCH = """
import sys
from fake_cuda import FakeTorch
fake = FakeTorch(initialised=False)
fake.real_times = True
fake.module.fake = fake
fake.module.cuda._lazy_init = lambda: fake.initialised or fake.init()
sys.modules["torch"] = fake.module
"""


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A folder that Python starts with as with one of installed packages."""
    pth = ROOT / "neutracer" / "run" / "neutracer.pth"
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "neutracer.pth").write_bytes(pth.read_bytes())
    (tmp_path / "sitecustomize.py").write_text(
        f"import site; site.addsitedir({str(tmp_path / 'start')!r})"
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(FAKE_TORCH)
    return tmp_path


def run(start: Path, program: str, code: int = 0, **variables: str) -> str:
    script = start / "program.py"
    script.write_text(program)
    path = os.pathsep.join(
        [str(start), str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/helpers")]
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NEUTRACER")}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**kept, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        cwd=start,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


ASKED = {"NEUTRACER": "run", "NEUTRACER_DIR": "reports"}


def snapshots(start: Path) -> list[Path]:
    return sorted(start.glob("reports/*.pickle"))


def test_nothing_is_imported_without_the_variable(start: Path) -> None:
    program = "import sys; print([name for name in sys.modules if name.startswith('neutracer')])"
    assert run(start, program) == "[]\n"
    # Lightning's word.
    assert run(start, program, NEUTRACER="1") == "[]\n"


def test_a_process_that_uses_no_device_leaves_nothing(start: Path) -> None:
    program = (
        "import sys, torch\n"
        "print('neutracer.run.following' in sys.modules, 'neutracer.oom.watch' in sys.modules)"
    )
    assert run(start, program, **ASKED) == "False False\n"
    assert not (start / "reports").exists()


def test_a_process_is_recorded_from_its_first_use_of_a_device(start: Path) -> None:
    program = (
        "import torch, neutracer\n"
        "torch.cuda._lazy_init()\n"
        "with neutracer.phase('load'): torch.fake.hold(3 << 20)\n"
    )
    run(start, program, **ASKED)
    (path,) = snapshots(start)
    found = neutracer.phases(path)
    assert [(turn.phase, turn.left_bytes) for turn in found.turns] == [("load", 3 << 20)]
    assert path.name.startswith("run-")
    assert json.loads(Path(f"{path}.json").read_text())["role"] == ""


KILLED = """
import glob, os, signal, threading, time, torch
def work():
    torch.cuda._lazy_init()
    torch.fake.hold(3 << 20)
    os.kill(os.getpid(), signal.SIGUSR2)
    while not glob.glob("reports/*-interval.txt") or not glob.glob("reports/*-signal.txt"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
thread = threading.Thread(target=work)
{call}()
{join}
"""


@pytest.mark.parametrize("is_main", [True, False])
def test_a_process_that_is_killed_has_left_reports(start: Path, is_main: bool) -> None:
    call, join = ("work", "") if is_main else ("thread.start", "thread.join()")
    asked = {**ASKED, "NEUTRACER_EVERY": "0.005"}
    run(start, KILLED.format(call=call, join=join), code=-signal.SIGKILL, **asked)
    for reason in ("interval", "signal"):
        first, *_ = start.glob(f"reports/*-{reason}.pickle")
        assert 3 << 20 in neutracer.load(first).blocks["size"]


@pytest.mark.parametrize("minutes", ["often", "0", "-1", "inf", "nan"])
def test_intervals_that_are_no_number_of_minutes_are_one_sentence(
    minutes: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert inherit._seconds_between(minutes) is None
    (record,) = caplog.records
    assert "must be a number of minutes above 0" in record.getMessage()


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_children_that_use_a_device_are_followed_and_compared(start: Path, way: str) -> None:
    program = (
        "import multiprocessing, sys, torch\n"
        "def work(leaked):\n"
        "    if leaked is None:\n"
        "        return\n"
        "    torch.cuda._lazy_init()\n"
        "    for _ in range(40):\n"
        "        torch.fake.hold(2 << 20)\n"
        "        torch.fake.drop()\n"
        "        if leaked:\n"
        "            torch.fake.hold(leaked, line=9)\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({way!r})\n"
        "    names = {'EngineCore_0': 0, 'Worker_1': 0, 'Worker_2': 256 << 10, 'Worker_3': 0,\n"
        "             'Loader_4': None}\n"
        "    children = [context.Process(target=work, args=(leaked,), name=name)\n"
        "                for name, leaked in names.items()]\n"
        "    [child.start() for child in children]\n"
        "    [child.join() for child in children]\n"
        "    assert not any(child.exitcode for child in children)\n"
        "    print(children[2].pid)\n"
    )
    leaking = int(run(start, program, **ASKED))
    job = neutracer.ranks([start / "reports"])
    assert sorted(row.role for row in job.rows) == ["engine", "worker", "worker", "worker"]
    assert len({row.pid for row in job.rows}) == 4
    (odd,) = job.odd
    assert f"-{leaking}-" in odd.source
    assert (odd.cause, odd.place) == ("leak", "forward (model.py:9)")
    assert "None" not in str(job)


def test_a_start_costs_little(start: Path) -> None:
    """The line of neutracer.pth by itself: 0.2 ms of a Python start without the variable."""
    line = (ROOT / "neutracer" / "run" / "neutracer.pth").read_text()
    code = compile(line, "neutracer.pth", "exec")
    os.environ.pop("NEUTRACER", None)
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        exec(code, {})
        best = min(best, time.perf_counter() - begin)
    assert best < 0.2e-3


def test_an_import_of_torch_costs_little(start: Path) -> None:
    program = (
        "import sys, time\n"
        "begin = time.process_time()\n"
        "import neutracer.run.inherit as one; one.begin()\n"
        "print(time.process_time() - begin)\n"
    )
    asked = {"NEUTRACER": "record"}
    with_start = start / "start" / "neutracer.pth"
    with_start.unlink()
    assert min(float(run(start, program, **asked)) for _ in range(3)) < 0.03


def test_follow_children_needs_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from neutracer.cli.main import main

    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    script = tmp_path / "show.py"
    script.write_text("import os; print(os.environ.get('NEUTRACER'))")
    if not inherit.is_installed():
        assert main(["run", "--follow-children", str(script)]) == 2
        assert "neutracer.pth" in capsys.readouterr().err
    (tmp_path / "neutracer.pth").write_text("")
    monkeypatch.setenv("NEUTRACER", "")
    monkeypatch.setenv("NEUTRACER_DIR", "")
    folder = str(tmp_path / "out")
    assert main(["run", "--follow-children", "-o", folder, str(script)]) == 0
    assert "run\n" in capsys.readouterr().out
