# SPDX-License-Identifier: Apache-2.0
"""Each case of tests/c as one test."""

from __future__ import annotations

import pytest
from bundle import NAMES, pickled
from compiled import needs_selftest, selftest
from places import ROOT

CASES = selftest.cases() if selftest else []


def sample(name: str) -> bytes:
    assert name in NAMES
    return pickled(name)


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
