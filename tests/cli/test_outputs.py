# SPDX-License-Identifier: Apache-2.0
"""Where a command writes: files, pipes that break, devices that are full, closed streams."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bundle import DATA
from forked import Imported

import neutracer
from neutracer.cli.main import main

FRAG = str(DATA / "frag_default.pickle")
ROOT = str(Path(neutracer.__file__).parents[1])


def run_in_shell(line: str) -> subprocess.CompletedProcess[str]:
    """`neutracer` in a line of the shell is the command that is tested."""
    script = f'neutracer() {{ "{sys.executable}" -m neutracer "$@"; }}; {line}'
    paths = os.pathsep.join((ROOT, os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHONPATH": paths, "FRAG": FRAG},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ('neutracer report --json "$FRAG" | head -c 1; exit ${PIPESTATUS[0]}', 0, ""),
        ("neutracer --help | true; exit ${PIPESTATUS[0]}", 0, ""),
        ('neutracer report "$FRAG" >&-', 0, ""),
        ("neutracer report /missing 2>&-; exit $?", 2, ""),
        (
            'neutracer report "$FRAG" > /dev/full',
            2,
            "neutracer: standard output: No space left on device\n",
        ),
        (
            'neutracer explain --json --request 1GiB "$FRAG" > /dev/full',
            2,
            "neutracer: standard output: No space left on device\n",
        ),
        (
            'neutracer report "$FRAG" -o /dev/full',
            2,
            "neutracer: /dev/full: No space left on device\n",
        ),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_broken_outputs_end_without_traceback(line: str, code: int, error: str) -> None:
    done = run_in_shell(line)
    assert (done.returncode, done.stderr) == (code, error)


@pytest.mark.parametrize(
    "command",
    [
        ["report", FRAG],
        ["report", "--json", FRAG],
        ["explain", "--request", "1GiB", FRAG],
        ["view", FRAG],
    ],
)
@pytest.mark.parametrize("output", ["", "folder", "no/file"])
def test_output_that_can_not_be_is_named(
    command: list[str],
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    assert main([*command, "-o", output]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"neutracer: {output or repr(output)}: ")
    assert captured.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["folder"]


def test_nothing_is_written_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.txt"
    page.write_text("old")
    assert main(["report", str(tmp_path / "missing"), "-o", str(page)]) == 2
    assert main(["report", FRAG, "-o", str(page)]) == 0
    assert "out of memory" in page.read_text(encoding="utf-8")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_name_of_a_file_can_not_forge_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "a\nneutracer: b\x1b[31m")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "\x1b" not in error
    assert r"a\nneutracer: b\x1b[31m: No such file" in error


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["top", ":x", "--once"], "no exporter answers there (nonnumeric port: 'x')"),
        (["top", "http://[::1", "--once"], "Invalid IPv6 URL"),
        (["run", "--every", "1e300", "x.py"], "at most 1,000,000,000"),
        (["run", "--max-entries", "9" * 30, "x.py"], "at most 1,000,000,000"),
        (["plot", FRAG, "-o", "x.png", "--event", "1"], "--event is for --what fragmentation"),
        (["plot", FRAG, "--what", "ranks", "--set", ""], "--set is for --what mdtp"),
        (["plot", FRAG, "-o", ".png"], "the name of a picture ends in"),
    ],
)
def test_odd_options_give_two_and_a_line(
    command: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_page_of_cycles_is_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("print('ran')")
    assert main(["cycles", "-o", "", "program.py"]) == 2
    captured = capfd.readouterr()
    assert captured.err == "neutracer: '': not a file name\n"
    assert captured.out == ""


def test_summary_is_told_behind_odd_streams(with_torch: Imported, tmp_path: Path) -> None:
    # As scripts do that log what they print: with no more methods than print() needs.
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "class Tee:\n"
        "    def __init__(self, stream): self.write, self.flush = stream.write, stream.flush\n"
        "sys.stdout, sys.stderr = Tee(sys.stdout), Tee(sys.stderr)\n"
        "print('ran')\n"
    )
    done = with_torch.neutracer("cycles", "--device", "cpu", str(tmp_path / "program.py"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "No reference cycle kept a tensor" in done.stderr


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of one snapshot in the working directory: as given, and by every other road."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "frag_default.pickle", "in.pickle")
    os.mkdir("folder")
    os.symlink(tmp_path / "in.pickle", "soft.png")
    os.link("in.pickle", "hard.png")
    return ["in.pickle", "./folder/../in.pickle", "soft.png", "hard.png"]


@pytest.mark.parametrize(
    "command",
    [
        ["view", "in.pickle"],
        ["report", "in.pickle"],
        ["report", "--json", FRAG, "in.pickle"],
        ["leak", FRAG, "in.pickle"],
        ["explain", "--request", "1GiB", "in.pickle"],
        ["plot", "in.pickle"],
        ["plot", FRAG, "in.pickle"],
        ["plot", "in.pickle", "--set", "expandable_segments:True"],
        ["cycles", "in.pickle"],
        ["ranks", "in.pickle"],
        ["ranks", "."],
        ["rehearse", "in.pickle"],
    ],
)
def test_output_is_never_the_input(
    command: list[str],
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
        # The others have no picture's ending.
        names = names[2:]
    if command[0] in ("cycles", "rehearse"):
        pytest.importorskip("torch")
    before = Path("in.pickle").read_bytes()
    for name in names:
        assert main([*command[:1], "-o", name, *command[1:]]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"the output '{name}' is also an input; give it another name" in captured.err
        assert captured.err.splitlines()[-1].startswith("neutracer: ")
    assert Path("in.pickle").read_bytes() == before


def test_output_is_not_what_standard_input_reads(names: list[str]) -> None:
    done = run_in_shell("neutracer view - -o in.pickle < in.pickle")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is also an input" in done.stderr
    assert Path("in.pickle").read_bytes() == (DATA / "frag_default.pickle").read_bytes()


def test_what_is_known_beside_a_snapshot_is_not_lost(
    names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--json", "in.pickle", "-o", "in.json"]
    assert main(["report", *output]) == 0
    # A report is none of what is read, and may be made again.
    assert main(["report", *output]) == 0
    Path("in.json").write_text('{"schema": "neutracer.sidecar/1", "oom": "no memory"}')
    assert main(["report", *output]) == 2
    assert main(["explain", "--request", "1GiB", *output]) == 2
    assert "the output 'in.json' is also an input" in capsys.readouterr().err
    assert "no memory" in Path("in.json").read_text()
