# SPDX-License-Identifier: Apache-2.0
"""The core for the page, as it comes with the sources: small, and what its sources make."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neutracer.picture import view

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(view.__file__).parent / "page" / "core.wasm"

# What tools/wasm says when its compiler is not there.
NO_COMPILER = 3


def test_core_is_small():
    assert BUILT.read_bytes()[:4] == b"\0asm"
    assert BUILT.stat().st_size < 400_000


@pytest.mark.skipif(not (ROOT / "tools" / "wasm").exists(), reason="no checkout")
def test_sources_make_the_core_that_comes_with_them(tmp_path):
    made = tmp_path / "core.wasm"
    done = subprocess.run(
        [ROOT / "tools" / "wasm", made], capture_output=True, text=True, timeout=300
    )
    if done.returncode == NO_COMPILER:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert made.read_bytes() == BUILT.read_bytes(), "run tools/wasm, and commit what it makes"
