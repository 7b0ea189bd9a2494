# SPDX-License-Identifier: Apache-2.0
"""Random programs that once ran on a GPU: the model against what PyTorch did and said."""

from __future__ import annotations

from functools import cache

import pytest
from places import TESTS
from program_truth import Run, differences, verdict

FOLDER = TESTS / "data" / "programs"
NAMES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.snapshot.xz"))


@cache
def run(name: str) -> Run:
    return Run(FOLDER / f"{name}.snapshot.xz")


def pairs() -> list[tuple[str, str]]:
    """Runs of one program: what each tells of the other's settings."""
    seeds = {name: name.partition("-")[0] for name in NAMES}
    return [
        (source, target)
        for source in NAMES
        for target in NAMES
        if source != target and seeds[source] == seeds[target]
    ]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_program_replays_exactly(name):
    assert differences(run(name)) == []


@pytest.mark.parametrize(("source", "target"), pairs())
def test_prediction_holds_for_recorded_program(source, target):
    found, causes, wrong = verdict(run(source), run(target))
    assert found != "outside", wrong
    assert found == "exact" or causes
