# SPDX-License-Identifier: Apache-2.0
"""Runs of capped programs against predictions: what is said of each, and when all are good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import capped_what_if
import pytest
from capped_what_if import FIGURES, Compared, Pair, compare, summed
from places import TESTS

import neutracer

EXACT = Compared(Pair(7, "max_split_size_mb:64", 0.5), True, "exact", True, "")
INSIDE = replace(EXACT, verdict="inside")


def is_good(found: list[Compared], recorder: str = "live") -> bool:
    return summed(found, recorder)[1]


@pytest.mark.parametrize("recorder", ["live", "record"])
def test_neutracers_recordings_are_95_percent_exact(recorder: str) -> None:
    assert is_good([EXACT] * 190 + [INSIDE] * 10, recorder)
    assert not is_good([EXACT] * 189 + [INSIDE] * 11, recorder)


@pytest.mark.parametrize("recorder", ["live", "record"])
def test_one_recording_without_its_calls_is_not_good(recorder: str) -> None:
    assert not is_good([EXACT] * 199 + [replace(EXACT, is_noted=False)], recorder)


def test_what_pytorch_records_alone_may_be_inexact_and_not_wrong() -> None:
    silent = replace(INSIDE, is_noted=False, told="exact")
    text, good = summed([silent] * 200, "pytorch")
    assert good
    assert "200 pairs (pytorch; 0 with calls noted): fits right in 200, exact 0 (and 200" in text
    assert not is_good([silent] * 199 + [replace(silent, is_right=False)], "pytorch")


@pytest.mark.parametrize("recorder", ["live", "record", "pytorch"])
def test_99_percent_are_within_range_and_all_fit_as_predicted(recorder: str) -> None:
    outside = replace(EXACT, verdict="outside")
    assert is_good([EXACT] * 198 + [outside] * 2, recorder)
    assert not is_good([EXACT] * 197 + [outside] * 3, recorder)
    assert not is_good([EXACT] * 199 + [replace(EXACT, is_right=False)], recorder)
    assert not is_good([], recorder)


def test_those_that_collect_garbage_are_counted() -> None:
    collecting = replace(EXACT, pair=Pair(8, "garbage_collection_threshold:0.5", 0.5))
    text, _ = summed([EXACT, collecting, replace(collecting, verdict="inside")], "live")
    assert text.endswith("of 2 that collect garbage 1 exact")


def model_runs(monkeypatch: pytest.MonkeyPatch, more_reserved: int) -> None:
    """A device that does what the model says, but for more bytes that are reserved at the end."""
    recorded = TESTS / "data" / "frag_default.pickle"

    def run(
        seed: int, conf: str, fraction: float, target: str = "", recorder: str = "pytorch"
    ) -> dict[str, Any]:
        snap, total = neutracer.load(recorded), 1 << 31
        if target:
            Path(target).write_bytes(recorded.read_bytes())
        if not fraction:
            stats = {"reserved_bytes.all.peak": snap.timeline().peak("reserved").bytes}
            return {"total": total, "stats": stats}
        outcome = neutracer.what_if(snap, conf, capacity=total, fraction=fraction)[conf]
        stats = {name: getattr(outcome, figure) for figure, name in FIGURES.items()}
        stats["reserved_bytes.all.current"] += more_reserved
        return {"total": total, "stats": stats}

    monkeypatch.setattr(capped_what_if, "run", run)


def test_pair_that_is_exact_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_runs(monkeypatch, 0)
    found = compare(10, str(tmp_path), True, "live")
    assert [(one.is_right, one.verdict, one.is_noted) for one in found] == [
        (True, "exact", False)
    ] * 4
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith("(calls not noted)") and "WRONG" not in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_pair_that_is_outside_its_range_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_runs(monkeypatch, 1 << 40)
    found = compare(10, str(tmp_path), True, "live")
    verdicts = {one.verdict for one in found}
    # Where a request may succeed that failed, only the limit bounds the figure.
    assert "outside" in verdicts
    assert "exact" not in verdicts
    assert "reserved_bytes 1,1" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {"10.xz", "10-0.xz", "10-0.json"}
