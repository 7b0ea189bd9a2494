# SPDX-License-Identifier: Apache-2.0
"""`neutracer leak`, as a user calls it."""

from __future__ import annotations

import json

import pytest
from bundle import DATA

import neutracer
from neutracer.cli.main import main
from neutracer.render.text import render_text

LEAK = str(DATA / "leak_list.pickle.xz")
HEALTHY = str(DATA / "train_resnet_healthy.pickle.xz")

Capture = pytest.CaptureFixture[str]


def test_answer_is_that_of_the_function(capsys: Capture) -> None:
    assert main(["leak", LEAK]) == 0
    page = neutracer.leak_trend(LEAK).document()
    assert capsys.readouterr().out == render_text(page.in_short(), 80) + "\n"
    assert main(["leak", LEAK, "--json", "--capacity", "80GiB"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["schema"], plain["verdict"]) == ("neutracer.leak_trend/1", "leak")
    assert plain["capacity"] == 80 << 30


def test_steps_are_cut_as_asked(capsys: Capture) -> None:
    steps = list(range(0, 6000, 500))
    words = ["leak", LEAK, "--json", "--steps", ",".join(map(str, steps))]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    asked = neutracer.leak_trend(LEAK, steps=steps)
    assert (told["steps"], told["bytes_per_step"]) == (asked.steps, asked.bytes_per_step)


def test_several_files_are_a_step_each(capsys: Capture) -> None:
    assert main(["leak", LEAK, LEAK, LEAK, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "snapshot"


def test_verdict_decides_the_exit_code(capsys: Capture) -> None:
    assert main(["leak", LEAK, "--fail-on", "cache_growth,leak"]) == 1
    assert main(["leak", LEAK, "--fail-on", "serious"]) == 1
    assert main(["leak", HEALTHY, "--fail-on", "leak,severe"]) == 0
    capsys.readouterr()
