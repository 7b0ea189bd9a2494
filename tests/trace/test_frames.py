# SPDX-License-Identifier: Apache-2.0
"""Tables as data frames: the same columns, the same values, by every road."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import neutracer
from neutracer.errors import UnavailableError

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def snap() -> neutracer.Snapshot:
    return neutracer.load(DATA / "frag_default.pickle")


def tables(snap: neutracer.Snapshot) -> list[neutracer.Table]:
    timeline = snap.timeline()
    live = [timeline.alive(), timeline.allocations, timeline.segments, timeline.by_category()]
    return [snap.events, snap.blocks, snap.segments, *live, timeline.by_place(), snap.events[7:9]]


def test_pandas_has_the_columns_and_values(snap: neutracer.Snapshot) -> None:
    pytest.importorskip("pandas")
    for table in tables(snap):
        frame = table.to_pandas()
        assert list(frame.columns) == list(table.columns)
        assert len(frame) == len(table)
        for name in table.columns:
            expected = [row[name] for row in table] if name == "stack" else list(table[name])
            assert frame[name].tolist() == expected


def test_a_pandas_frame_is_a_copy_that_can_be_changed(snap: neutracer.Snapshot) -> None:
    pytest.importorskip("pandas")
    frame = snap.blocks.to_pandas()
    frame.loc[0, "size"] = 0
    assert snap.blocks[0].size > 0
    # Below zero, and not beyond 2**63.
    assert (frame["size"] - frame["address"]).max() < 0


def test_pandas_makes_columns_of_a_table(snap: neutracer.Snapshot) -> None:
    pandas = pytest.importorskip("pandas")
    timeline = snap.timeline()
    # Before 3.0.1 pandas puts the columns of rows that are no dicts into the order of the alphabet.
    keeps_order = tuple(map(int, re.findall(r"\d+", pandas.__version__)[:3])) >= (3, 0, 1)
    for table in (timeline.alive(), timeline.by_category()):
        assert list(table.columns) != sorted(table.columns)
        frame = pandas.DataFrame(table)
        assert list(frame.columns) == (
            list(table.columns) if keeps_order else sorted(table.columns)
        )
        assert frame.iloc[-1].to_dict() == dict(table[-1])


def test_polars_has_the_columns_and_values(snap: neutracer.Snapshot) -> None:
    polars = pytest.importorskip("polars")
    for table in tables(snap):
        frame = table.to_polars()
        assert frame.equals(polars.DataFrame(table))
        assert frame.columns == list(table.columns)
        for name in set(table.columns) - {"stack"}:
            assert frame[name].to_list() == list(table[name])


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_what_is_missing_is_named(
    snap: neutracer.Snapshot, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError, match=f"{name}.*pip install {name}"):
        getattr(snap.blocks, f"to_{name}")()
