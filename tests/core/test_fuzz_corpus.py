# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets' corpus, once, without a fuzzer: what was found stays found."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import corpus
import pytest
from places import TESTS
from reference_reader import described

import neutracer
from neutracer import HistoryWarning, SnapshotError

FUZZ = TESTS / "fuzz"
INPUTS = {
    f"{group}/{name}": data
    for group in corpus.groups()
    for name, data in corpus.read(group).items()
}
SEEDS = sorted(name for name in INPUTS if name.startswith("seeds/"))


def loaded(name: str) -> neutracer.Snapshot | None:
    """The snapshot in an input; None where it is refused with a reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        try:
            return neutracer.load(INPUTS[name])
        except SnapshotError as error:
            if not error.reason:
                pytest.fail(f"{name} is refused without a reason")
            return None


def test_corpus_is_there_and_small() -> None:
    assert len(SEEDS) > 50
    assert sum(map(len, INPUTS.values())) < 1_000_000
    assert max(map(len, INPUTS.values())) <= 4096


def test_same_inputs_make_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, inputs = corpus.ARCHIVES / "ring.tar.xz", corpus.read("ring")
    monkeypatch.setattr(corpus, "ARCHIVES", tmp_path)
    corpus.write("ring", dict(reversed(inputs.items())))
    assert corpus.read("ring") == inputs
    made = (tmp_path / "ring.tar.xz").read_bytes()
    assert lzma.decompress(made) == lzma.decompress(kept.read_bytes())


def test_inputs_load_or_say_why() -> None:
    accepted = 0
    for name in INPUTS:
        snapshot = loaded(name)
        if snapshot is None:
            continue
        accepted += 1
        again = neutracer.load(snapshot.to_bytes())
        # As text, in which a number that is none equals itself.
        assert repr({**described(snapshot), "ignored": []}) == repr(described(again)), name
        for device in snapshot.devices:
            timeline = snapshot.timeline(device)
            assert len(timeline.allocated) == snapshot.trace_length(device)
            neutracer.fragmentation_report(snapshot, device=device)
    assert accepted > 50


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_read_whole(name: str) -> None:
    snapshot = loaded(name)
    assert snapshot is not None
    assert (snapshot.partial is not None) == name.startswith("seeds/truncated")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_targets_hold_on_the_corpus() -> None:
    command = [sys.executable, str(FUZZ / "run.py"), "--replay", "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{len(INPUTS)} inputs held") == len(list(FUZZ.glob("fuzz_*.c")))
