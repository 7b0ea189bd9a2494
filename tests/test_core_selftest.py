# SPDX-License-Identifier: Apache-2.0
"""Each case of tests/c as one test."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from conftest import ALL_SNAPSHOTS, snapshot_bytes

ROOT = Path(__file__).parents[1]

try:
    selftest = importlib.import_module("neutracer._selftest")
except ModuleNotFoundError:
    selftest = None

CASES = selftest.cases() if selftest else []

needs_selftest = pytest.mark.skipif(
    selftest is None, reason="built without NEUTRACER_SELFTEST=1, so without the C cases"
)


def sample(name: str) -> bytes:
    assert name in ALL_SNAPSHOTS
    return snapshot_bytes(name)


@pytest.mark.parametrize("case", CASES)
def test_core_case_holds(case: str) -> None:
    selftest.run(case, sample)


@needs_selftest
def test_every_c_test_file_has_cases() -> None:
    files = {path.stem.removeprefix("test_") for path in ROOT.glob("tests/c/test_nt_*.c")}
    assert {case.split(":")[0] for case in CASES} == files


@needs_selftest
def test_unknown_case_is_refused() -> None:
    with pytest.raises(ValueError, match="no case is called nt_base:nothing"):
        selftest.run("nt_base:nothing")
