# SPDX-License-Identifier: Apache-2.0
"""Programs run as if they had been started by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neutracer.errors import NeutracerError
from neutracer.recording.program import run_program


def script(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_program_sees_its_own_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n", encoding="utf-8")
    text = "import sys, beside\nprint(__name__, sys.argv[1:], beside.WORD)\n"
    before = sys.argv, list(sys.path)
    assert run_program([script(tmp_path, text), "--epochs", "2"]) == 0
    assert capsys.readouterr().out == "__main__ ['--epochs', '2'] found\n"
    assert (sys.argv, sys.path) == before


def test_module_is_run_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool.py").write_text("import sys; print(sys.argv[1])\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run_program(["tool", "word"], module=True) == 0
    assert capsys.readouterr().out == "word\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("import sys; sys.exit()", 0),
        ("raise KeyboardInterrupt", -2),
        ("1 / 0", 1),
    ],
)
def test_exit_codes_are_the_programs(
    tmp_path: Path, text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program([script(tmp_path, text)]) == code


def test_errors_are_told_without_our_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_program([script(tmp_path, "def f():\n    1 / 0\nf()\n")])
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "program.py" in told
    assert "runpy" not in told
    assert "neutracer" not in told


def test_missing_script_is_told() -> None:
    with pytest.raises(NeutracerError, match="no such file"):
        run_program(["/nowhere/train.py"])


@pytest.mark.parametrize("name", ["missing", "missing.part", "package", "package.missing", "..x"])
def test_missing_module_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NeutracerError, match="no module named"):
        run_program([name], module=True)
    sys.modules.pop("package", None)


def test_package_that_fails_is_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "broken" / "__main__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert run_program(["broken"], module=True) == 1
    assert "nothing_of_this_name" in capsys.readouterr().err


WRAPPED = """
import io, sys
sys.stdout = io.TextIOWrapper(sys.stdout.{taken}, encoding="utf-8")
sys.stderr = io.TextIOWrapper(sys.stderr.{taken}, encoding="utf-8")
print("told")
"""


@pytest.mark.parametrize("taken", ["buffer", "detach()"])
def test_wrapped_streams_still_take_reports(tmp_path: Path, taken: str) -> None:
    command = ["-m", "neutracer", "run", "-o", str(tmp_path / "out"), "--json"]
    path = script(tmp_path, WRAPPED.format(taken=taken))
    done = subprocess.run([sys.executable, *command, path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    told, _, report = done.stdout.partition("\n")
    assert told == "told"
    assert json.loads(report)["exit_code"] == 0


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_closed_stream_takes_no_report(tmp_path: Path, closed: str) -> None:
    options = ["--json"] if closed == "stdout" else []
    command = ["-m", "neutracer", "run", "-o", str(tmp_path / "out"), *options]
    path = script(tmp_path, f"import sys\nsys.{closed}.close()\nsys.exit(7)")
    done = subprocess.run([sys.executable, *command, path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == (
        "neutracer: cannot print the report: the program closed its stream\n" if options else ""
    )


TEE = """
import sys

class Tee:
    def __init__(self, stream):
        self.stream, self.kept = stream, []
    def write(self, text):
        self.kept.append(text)
    def flush(self):
        self.stream.write("".join(self.kept))
        self.kept.clear()

sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)
print("told")
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit('late')", 1), ("1 / 0", 1)])
def test_streams_of_a_program_end_with_it(
    tmp_path: Path, end: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    assert run_program([script(tmp_path, TEE + end)]) == code
    assert (sys.stdout, sys.stderr) == before
    captured = capsys.readouterr()
    assert captured.out == "told\n"
    assert ("late" in captured.err or "ZeroDivisionError" in captured.err) == bool(end)


SPAWNING = """
import multiprocessing, os, sys

def work(queue):
    queue.put(os.path.basename(__file__))

if __name__ == "__main__":
    os.chdir("..")
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    worker.join()
    print(sys.argv[0], os.path.isabs(__file__), worker.exitcode or queue.get())
    print(__spec__, __package__, "__cached__" in globals(), type(__loader__).__name__, sys.path[0])
"""


def test_spawned_workers_find_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.py").write_text(SPAWNING, encoding="utf-8")
    (tmp_path / "link.py").symlink_to(folder / "train.py")
    run = "from neutracer.recording.program import run_program"
    run = f"import sys; {run}; run_program(sys.argv[1:])"
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for name, start in (("train.py", folder), ("link.py", tmp_path)):
        told = [
            subprocess.run(
                [sys.executable, *way, name],
                cwd=start,
                env=where,
                capture_output=True,
                text=True,
                timeout=600,
            ).stdout
            for way in ([], ["-c", run])
        ]
        # As if it had been started by itself.
        assert told[0] == told[1]
        assert told[1].startswith(f"{name} True {name}\n")
        assert told[1].endswith(f"SourceFileLoader {folder}\n")
