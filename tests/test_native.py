# SPDX-License-Identifier: Apache-2.0
"""What is said where the compiled part is missing, and what importing brings along."""

from __future__ import annotations

import subprocess
import sys


def run(program: str, folder) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder
    )


def test_missing_core_is_told_clearly(tmp_path):
    program = "import sys; sys.modules['neutracer._core'] = None; import neutracer; neutracer.load"
    done = run(program, tmp_path)
    assert done.returncode == 1
    assert "ImportError: neutracer's compiled core is missing" in done.stderr
    assert "reinstall" in done.stderr


def test_import_brings_no_extra_along(tmp_path):
    program = (
        "import sys, neutracer; "
        "print([m for m in ('torch', 'rich', 'matplotlib', 'pyarrow', 'zstandard', 'numpy')"
        " if m in sys.modules])"
    )
    assert run(program, tmp_path).stdout.strip() == "[]"


def test_import_needs_no_lzma(tmp_path):
    program = "import sys; sys.modules['lzma'] = None; import neutracer; print('read')"
    assert run(program, tmp_path).stdout.strip() == "read"
