# SPDX-License-Identifier: Apache-2.0
"""Features of training programs come to the same under our watchers, here with CPU tensors."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import TESTS

pytest.importorskip("torch")


def test_watched_programs_come_to_the_same(tmp_path):
    table = str(TESTS / "gpu" / "features" / "table.py")
    command = [sys.executable, table, "--device", "cpu", "--quick", "--processes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "under 2 watchers: 0 differences" in done.stdout
    assert " comes to " not in done.stdout
