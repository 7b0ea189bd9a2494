# SPDX-License-Identifier: Apache-2.0
"""Programs that run out of memory on a device, and the verdicts that they are given."""

import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gpu.oom_programs import PROGRAMS, judged

import neutracer
from neutracer.oom.case import KINDS

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every program, run once in a process of their own, which may have all of the device."""
    gc.collect()
    torch.cuda.empty_cache()
    place = tmp_path_factory.mktemp("programs")
    script = Path(__file__).parent / "oom_programs.py"
    run = subprocess.run([sys.executable, script, place], capture_output=True, text=True)
    assert any(place.iterdir()), run.stderr
    return place


def test_every_kind_has_five_programs():
    counts = Counter(one.kind for one in PROGRAMS)
    assert all(counts[kind] >= 5 for kind in KINDS)
    assert sum(1 for one in PROGRAMS if one.also) >= 2


@pytest.mark.parametrize("one", PROGRAMS, ids=lambda one: one.name)
def test_verdict_is_the_provoked_one(one, folder):
    said, wrong = judged(neutracer, folder, one)
    assert not wrong, said
