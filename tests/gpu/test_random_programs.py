# SPDX-License-Identifier: Apache-2.0
"""Random programs run on this GPU under several settings, each in a process of its own."""

import itertools
import os
import pathlib
import subprocess
import sys

import pytest
import random_programs
from program_truth import Run, differences, verdict

import neutracer

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

#: Other programs with another NEUTRACER_SEED; the seed is in a test's name.
FIRST = 1000 + int(os.environ.get("NEUTRACER_SEED", "0"))


def has_all_in_trace(seed):
    """Whether a trace shows all that the program asks for, or leaves out nothing that
    ranges do not tell of.

    PyTorch 2.11 writes no pool ids and no change of settings. Of a call of empty_cache()
    that has nothing to give back it writes nothing either; ranges take that in where the
    program is seen to call it at all.
    """
    sort = random_programs.sort_of(seed)
    unseen = ("pools", "pools_capped", "graphs", "restored", "late", "device")
    empties = sum(op[0] == "empty" for op in random_programs.program(seed))
    return sort not in unseen and empties != 1


SEEDS = list(itertools.islice(filter(has_all_in_trace, itertools.count(FIRST)), 5))
RUNNER = pathlib.Path(__file__).with_name("run_programs.py")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs a program under a setting, once."""
    folder = tmp_path_factory.mktemp("programs")

    def run(seed, setting):
        path = folder / f"{seed}-{setting}.pickle.xz"
        if not path.exists():
            print(f"seed {seed}, {random_programs.SETTINGS[setting]!r}")
            command = [sys.executable, str(RUNNER), "run", str(seed), str(setting), str(folder)]
            subprocess.run(command, check=True, timeout=200)
        found = Run(path)
        assert "error" not in found.meta, found.meta["error"]
        return found

    return run


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", [0, 1, 7])
def test_real_run_replays_exactly(ran, seed, setting):
    assert differences(ran(seed, setting)) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", [1, 7])
def test_predicted_figures_hold_for_real(ran, seed, setting):
    found, causes, wrong = verdict(ran(seed, 0), ran(seed, setting))
    assert found != "outside", wrong
    assert found == "exact" or causes


def test_what_if_predicts_real_peak(ran):
    conf = random_programs.SETTINGS[7]
    source, target = ran(SEEDS[0], 0), ran(SEEDS[0], 7)
    capacity = source.limit or source.meta["device_total"]
    plan = neutracer.what_if(source.snapshot, conf, capacity=capacity)
    assert plan.fidelity == 1.0
    low, high = plan[conf].range("peak_reserved_bytes")
    assert low <= target.truth["peak"] <= (high or target.truth["peak"])
