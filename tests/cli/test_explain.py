# SPDX-License-Identifier: Apache-2.0
"""`neutracer explain`, as a user calls it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from bundle import DATA
from oom_snapshots import checkered, full

from neutracer.cli.main import main

FRAG = str(DATA / "frag_default.pickle")

Capture = pytest.CaptureFixture[str]


def test_verdict_and_holders_are_on_the_page(capsys: Capture) -> None:
    assert main(["explain", FRAG]) == 0
    text = capsys.readouterr().out
    assert "SEVERE   the process is limited to 2,048 MiB, though the device has room" in text
    assert "The bill" in text
    assert "train.py:155" in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_has_its_schema(capsys: Capture) -> None:
    assert main(["explain", "--json", FRAG]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "neutracer.explain/1"
    kinds = [verdict["kind"] for verdict in report["verdicts"]]
    assert kinds == ["process_cap", "capacity", "fragmentation"]
    assert report["verdicts"][0]["remedy"]["action"] == "raise_limit"
    assert report["step"]["steps"] == 15
    assert report["limit_bytes"] == 2 << 30
    assert report["headline"].startswith("1,579 MiB asked for")


def test_output_goes_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "why.txt"
    assert main(["explain", FRAG, "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert "fragmentation" in out.read_text()
    assert main(["explain", FRAG, "--json", "-o", str(out)]) == 0
    assert json.loads(out.read_text())["device"] == 0
    assert main(["explain", FRAG, "-o", str(tmp_path / "no" / "why.txt")]) == 2


def test_fail_on_takes_verdicts_and_severities(capsys: Capture) -> None:
    assert main(["explain", FRAG, "--fail-on", "fragmentation"]) == 1
    assert main(["explain", FRAG, "--fail-on", "leak,cycle_garbage"]) == 0
    assert main(["explain", FRAG, "--fail-on", "severe"]) == 1


def test_request_is_answered(capsys: Capture) -> None:
    assert main(["explain", FRAG, "--request", "30MiB"]) == 0
    assert "It would fit" in capsys.readouterr().out
    assert main(["explain", FRAG, "--request", "1GiB", "--capacity", "1GiB"]) == 0
    assert "It would not fit" in capsys.readouterr().out


def test_capacity_says_what_the_file_does_not(tmp_path: Path, capsys: Capture) -> None:
    recording = full()
    recording.oom(30 * 1024, device_free=20_000)
    file = tmp_path / "oom.pickle"
    file.write_bytes(recording.dumped())
    assert main(["explain", str(file), "--capacity", "24GiB", "--fail-on", "serious"]) == 1
    assert "more than the 24 GiB the device has" in capsys.readouterr().out


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    recording = checkered()
    recording.oom(60, device_free=0)
    stream = io.TextIOWrapper(io.BytesIO(recording.dumped()))
    monkeypatch.setattr(sys, "stdin", stream)
    assert main(["explain", "-"]) == 0
    assert "fragmentation" in capsys.readouterr().out


def test_damaged_json_beside_is_a_finding(tmp_path: Path, capsys: Capture) -> None:
    recording = full()
    recording.oom(100, device_free=30)
    path = tmp_path / "oom.pickle"
    path.write_bytes(recording.dumped())
    (tmp_path / "oom.json").write_text("{")
    assert main(["explain", str(path)]) == 0
    told = capsys.readouterr()
    assert "Out of memory" in told.out
    assert "oom.json: not JSON" in told.out
    assert told.err == ""


def test_output_that_fails_is_named(tmp_path: Path, capsys: Capture) -> None:
    for command in ("explain", "report"):
        place = str(tmp_path / "missing" / "page.txt")
        assert main([command, "-o", place, str(DATA / "frag_default.pickle")]) == 2
        assert capsys.readouterr().err == f"neutracer: {place}: No such file or directory\n"
