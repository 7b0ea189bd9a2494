# SPDX-License-Identifier: Apache-2.0
"""`neutracer diff`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundle import DATA
from two_states import AFTER, BEFORE, MIB, state

from neutracer.cli.main import main

HEALTHY = str(DATA / "train_resnet_healthy.pickle.xz")
LATE = str(DATA / "train_resnet_late_zero_grad.pickle.xz")

Capture = pytest.CaptureFixture[str]


def test_difference_fits_a_page(capsys: Capture) -> None:
    assert main(["diff", HEALTHY, LATE]) == 0
    text = capsys.readouterr().out
    assert "+1.38 MiB allocated" in text
    assert "gradient" in text
    assert max(len(line) for line in text.splitlines() if "neutracer plot" not in line) <= 100


def test_json_has_the_schema(capsys: Capture) -> None:
    assert main(["diff", "--json", HEALTHY, LATE]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "neutracer.diff/1"
    assert report["allocated_bytes"] == 1441792


def test_findings_decide_the_exit_code(tmp_path: Path, capsys: Capture) -> None:
    before, after = str(tmp_path / "before.pickle"), str(tmp_path / "after.pickle")
    state(BEFORE).save(before)
    state([*AFTER, (64 * MIB, 60, 3)]).save(after)
    assert main(["diff", "--fail-on", "serious", before, after]) == 1
    assert main(["diff", "--fail-on", "severe", before, after]) == 0
    assert main(["diff", "--fail-on", "info", before, before]) == 0
    assert "64 MiB new" in capsys.readouterr().out
