# SPDX-License-Identifier: Apache-2.0
"""The first advice is followed: programs that ran out of memory go further, none less far."""

import subprocess
import sys
from pathlib import Path

import pytest
from gpu.advice import held_out, library, plain
from gpu.advice.job import PROGRAMS

__all__ = ["held_out", "library", "plain"]

pytestmark = pytest.mark.gpu


def test_there_are_forty_programs_and_some_were_not_looked_at():
    assert len(PROGRAMS) >= 40
    assert sum(one.held_out for one in PROGRAMS) >= 15


def test_first_advice_helps_nine_of_ten_and_harms_none(tmp_path):
    script = Path(__file__).parent / "run.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
