# SPDX-License-Identifier: Apache-2.0
"""The scripts with which shells complete commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutracer.cli.main import COMMANDS, main

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_know_commands_and_options(shell: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("shtab")
    assert main(["setup", "completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert all(option in script for option in ("fail-on", "capacity", "max-memory"))
    (tmp_path / "script").write_text(script)
    program = shutil.which(shell)
    if program is not None:
        done = subprocess.run([program, "-n", str(tmp_path / "script")], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")


def completed(script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of some words."""
    ask = (
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        "$(complete -p neutracer | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", ask, str(script), "neutracer", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("shtab")
    script = tmp_path / "script"
    assert main(["setup", "completion", "bash"]) == 0
    script.write_text(capsys.readouterr().out)
    assert completed(script, tmp_path, "re") == ["rehearse", "report"]
    assert completed(script, tmp_path, "report", "--fail") == ["--fail-on"]
    assert completed(script, tmp_path, "plot", "--what", "t") == ["timeline"]
    assert completed(script, tmp_path, "setup", "h") == ["hooks"]
    assert completed(script, tmp_path, "report", "scr") == ["script"]


def test_without_shtab_it_says_what_to_install(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["setup", "completion", "bash"]) == 2
    assert "pip install 'shtab>=1.7.2'" in capsys.readouterr().err


def test_commands_are_described_in_a_line() -> None:
    pytest.importorskip("shtab")
    done = subprocess.run(
        [sys.executable, "-m", "neutracer", "setup", "completion", "fish"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "summarise a snapshot on one page" in done.stdout
    assert "The work runs on a background thread" not in done.stdout
