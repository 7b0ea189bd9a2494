# SPDX-License-Identifier: Apache-2.0
"""Random programs that once ran on a GPU: the model against what PyTorch did and said."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import random_programs
from places import TESTS
from program_truth import Run, differences, noted, verdict

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


# The bit of calls that may have been silent.
_SILENT = 16

# What a program does that asks and frees, on any streams and under a cap, and nothing else.
_PLAIN = {"cap", "record", "alloc", "free", "use", "sync"}


def operations(name: str) -> list[tuple[Any, ...]]:
    """What the program of a run does."""
    return list(random_programs.program(int(name.partition("-")[0])))


# The runs of such programs that also call empty_cache().
_CALLING = [name for name in NAMES if {op[0] for op in operations(name)} - _PLAIN == {"empty"}]


def test_some_programs_only_ask_free_and_call() -> None:
    assert len({name.partition("-")[0] for name in _CALLING}) >= 5


@cache
def noted_run(name: str) -> Run | None:
    return noted(run(name), operations(name))


@pytest.mark.parametrize("name", _CALLING)
def test_recorded_program_replays_exactly_with_its_calls(name):
    found = noted_run(name)
    assert found is not None
    assert differences(found) == []
    made = found.snapshot.settings["trace_empty_cache_calls"]["0"]
    assert found.program.facts()["calls"] == len(made) > 0
    assert found.program.find_silence() == 0


@pytest.mark.parametrize(("source", "target"), [pair for pair in pairs() if pair[0] in _CALLING])
def test_prediction_with_noted_calls_holds_and_has_no_silent_ones(source, target):
    known = noted_run(source)
    assert known is not None
    found, causes, wrong = verdict(known, run(target))
    assert found != "outside", wrong
    assert not causes & _SILENT
    if verdict(run(source), run(target))[0] == "exact":
        assert found == "exact"
