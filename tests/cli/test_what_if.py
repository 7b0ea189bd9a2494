# SPDX-License-Identifier: Apache-2.0
"""`neutracer what-if`, as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bundle import DATA

from neutracer.cli.main import main

FRAG = str(DATA / "frag_default.pickle")
HEALTHY = str(DATA / "train_resnet_healthy.pickle.xz")

Capture = pytest.CaptureFixture[str]


def test_settings_are_compared_on_one_page(capsys: Capture) -> None:
    command = ["what-if", FRAG, "--set", "expandable_segments:True", "--capacity", "2GiB"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "expandable_segments:True: peak reserved 680 MiB instead of 2,028 MiB" in text
    assert "The model reproduces this recording exactly" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_without_settings_the_best_are_told(capsys: Capture) -> None:
    assert main(["what-if", FRAG, "--objective", "reserved"]) == 0
    text = capsys.readouterr().out
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "No allocator could manage with less than 579 MiB" in text
    assert "Smallest memory in which every request succeeds" in text


def test_capacity_is_answered(capsys: Capture) -> None:
    assert main(["what-if", HEALTHY, "--capacity", "24GiB"]) == 0
    assert (
        "fits in 24 GiB as it is: every request succeeds from 1,780 MiB on"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_settings_are_whole(columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["what-if", "--json", FRAG]) == 0
    told = [choice["settings"] for choice in json.loads(capsys.readouterr().out)["choices"]]
    assert len(told) > 1
    assert main(["what-if", FRAG]) == 0
    ends = [line.split(" ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert all(ends.count(settings) >= 2 for settings in told)


def test_check_tells_how_faithful_it_is(capsys: Capture) -> None:
    assert main(["what-if", "--check", FRAG]) == 0
    text = capsys.readouterr().out
    assert "exactly: 816 addresses, 47 segment events" in " ".join(text.split())
    assert main(["what-if", "--check", "--json", FRAG]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "neutracer.replay_check/1"
    assert report["check"]["value"] == 1.0


def test_json_has_the_schemas(capsys: Capture) -> None:
    command = ["what-if", "--json", "--set", "", "--set", "max_split_size_mb:64", FRAG]
    assert main(command) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["schema"] == "neutracer.what_if/1"
    assert [outcome["settings"] for outcome in plan["outcomes"]] == ["", "max_split_size_mb:64"]
    assert main(["what-if", "--json", FRAG]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "neutracer.recommend/1"


def test_batch_can_be_changed(capsys: Capture) -> None:
    assert main(["what-if", HEALTHY, "--batch", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["is_changed"]
    assert plan["schema"] == "neutracer.what_if/1"


def test_picture_shows_what_would_have_been(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "both.png"
    command = ["plot", FRAG, "--set", "expandable_segments:True", "-o", str(picture)]
    assert main(command) == 0
    assert picture.stat().st_size > 10_000
    assert main([*command[:2], FRAG, *command[2:]]) == 2
    assert "alone or with --set" in capsys.readouterr().err
    assert main(["plot", FRAG, "--set", "nonsense:1", "-o", str(picture)]) == 2
