# SPDX-License-Identifier: Apache-2.0
"""Features of training programs come to the same under our watchers, here with CPU tensors."""

from __future__ import annotations

import pytest
from gpu.features.programs import ENDINGS
from gpu.features.table import QUICK_ENDINGS, main, plain_error
from places import PACKAGE, TESTS

# PyTorch alone aborts some of the processes that end while a daemon thread is in an operator.
STEADY_ENDINGS = [name for name in ENDINGS if name != "daemon_threads"]


@pytest.mark.parametrize(
    ("endings", "is_forked"),
    [
        pytest.param(QUICK_ENDINGS, True, id="some endings, forked"),
        pytest.param(STEADY_ENDINGS, False, id="all endings", marks=pytest.mark.slow),
    ],
)
def test_watched_programs_come_to_the_same(with_torch, monkeypatch, capsys, endings, is_forked):
    # What its script finds beside it.
    monkeypatch.syspath_prepend(str(TESTS / "gpu" / "features"))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    words = ["--device", "cpu", "--quick", "--processes", "3", "--endings", *endings]
    code = main(words, with_torch if is_forked else None)
    said = capsys.readouterr().out
    assert code == 0, said[-6000:]
    assert "under 2 watchers: 0 differences" in said
    assert " comes to " not in said


REFUSED = "==7==WARNING: AddressSanitizer failed to allocate 0x1000000000000000 bytes"


@pytest.mark.parametrize("how", ["none", "run", "live"])
def test_only_what_is_ours_is_left_out_of_standard_error(how):
    mine = "Traceback (most recent call last):\nValueError: mine\nException ignored in: <C>"
    ours = f"neutracer: a note\n  next step: another\n  report: a file\n{REFUSED}\n"
    assert plain_error(ours + mine, how) == mine
    assert plain_error(f"{mine}\n{ours}", how) == mine
    page = "program.py   exit code 1 · 2.07 s\n\nNothing was recorded.\n"
    assert ("Nothing" in plain_error(page + mine, how)) == (how != "run")


@pytest.mark.parametrize(
    "line",
    [
        REFUSED.replace("0x1000000000000000", "0x2000000000000000"),
        REFUSED.replace("0x1000000000000000", "0x10000000000000000"),
        REFUSED.replace("allocate", "deallocate"),
        REFUSED + " more",
        "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010",
        " neutracer: mine",
        "report: mine",
    ],
)
def test_other_lines_are_compared(line):
    # A process's number and an address are other ones in each run.
    assert plain_error(f"before\n{line}\nafter", "run") != "before\nafter"
    again = line.replace("==7==", "==8==").replace("0x602000000010", "0x602000000020")
    assert plain_error(line, "run") == plain_error(again, "run")
