# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets' corpus, once, without a fuzzer: what was found stays found."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from places import TESTS
from reference_reader import described

import neutracer
from neutracer import HistoryWarning, SnapshotError

FUZZ = TESTS / "fuzz"
CORPUS = FUZZ / "corpus"
INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())
SEEDS = sorted((CORPUS / "seeds").iterdir())


def loaded(path: Path) -> neutracer.Snapshot | None:
    """The snapshot in a file; None where it is refused with a reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        try:
            return neutracer.load(path)
        except SnapshotError as error:
            if not error.reason:
                pytest.fail(f"{path.name} is refused without a reason")
            return None


def test_corpus_is_there_and_small() -> None:
    assert len(SEEDS) > 50
    assert sum(path.stat().st_size for path in INPUTS) < 1_000_000
    assert max(path.stat().st_size for path in INPUTS) <= 4096


def test_inputs_load_or_say_why() -> None:
    accepted = 0
    for path in INPUTS:
        snapshot = loaded(path)
        if snapshot is None:
            continue
        accepted += 1
        again = neutracer.load(snapshot.to_bytes())
        # As text, in which a number that is none equals itself.
        assert repr({**described(snapshot), "ignored": []}) == repr(described(again)), path.name
        for device in snapshot.devices:
            timeline = snapshot.timeline(device)
            assert len(timeline.allocated) == snapshot.trace_length(device)
            neutracer.fragmentation_report(snapshot, device=device)
    assert accepted > 50


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_seeds_are_read_whole(path: Path) -> None:
    snapshot = loaded(path)
    assert snapshot is not None
    assert (snapshot.partial is not None) == path.stem.startswith("truncated")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_targets_hold_on_the_corpus() -> None:
    command = [sys.executable, str(FUZZ / "run.py"), "--replay", "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{len(INPUTS)} inputs held") == len(list(FUZZ.glob("fuzz_*.c")))
