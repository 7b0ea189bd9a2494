# SPDX-License-Identifier: Apache-2.0
"""The document model: plain frozen data, and severities that have an order."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from neutracer.render.document import Document, Figure, Note, Place, Severity, Table

MIB = 1 << 20


def test_severities_are_ordered_by_rank() -> None:
    words = ["info", "moderate", "serious", "severe"]
    assert [severity.value for severity in sorted(Severity, reverse=True)] == words[::-1]
    assert max(Severity) is Severity.SEVERE
    assert Severity.INFO < Severity.MODERATE <= Severity.MODERATE < Severity.SERIOUS
    assert not Severity.SEVERE < Severity.INFO


def test_severities_compare_with_their_words() -> None:
    assert Severity.SERIOUS >= "serious"
    assert Severity.INFO < "severe"
    assert not Severity.MODERATE > "serious"
    assert Severity.SEVERE == "severe"
    assert {"severe": 1}[Severity.SEVERE] == 1
    assert f"{Severity.SEVERE}" == str(Severity.SEVERE) == "severe"
    with pytest.raises(ValueError, match="terrible"):
        _ = Severity.INFO < "terrible"


def test_figures_come_apart_into_number_and_unit() -> None:
    assert Figure.bytes(2028 * MIB) == Figure("2,028.0", "MiB")
    assert Figure.bytes(3 * MIB, unit=None, decimals=None) == Figure("3", "MiB")
    assert Figure.share(0.2479) == Figure("24.8", "%")
    assert Figure.count(60, "block") == Figure("60", "blocks")
    assert Figure.count(2, "device event") == Figure("2", "device events")
    assert Figure.count(2375) == Figure("2,375", "")
    assert str(Figure("2,375")) == "2,375"
    assert str(Figure("1", "block")) == "1 block"


def test_places_name_file_and_line() -> None:
    assert Place("frag", "train.py", 155).location == "train.py:155"
    assert Place("frag", "train.py").location == "train.py"
    assert str(Place("frag", "train.py", 155)) == "frag (train.py:155)"


def test_notes_read_as_one_sentence() -> None:
    assert str(Note("kept by", Place("f", "a.py", 1))) == "kept by f (a.py:1)"
    assert str(Note("try it", detail="saves 3 MiB")) == "try it: saves 3 MiB"
    assert str(Note("only this")) == "only this"


def test_tables_refuse_rows_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        Table("", (("a", "b"), ("c",)))
    with pytest.raises(ValueError, match="different lengths"):
        Table("", (("a", "b"),), ("only one",))
    assert Table("", (), ("a", "b")).rows == ()


def test_documents_are_frozen_and_plain() -> None:
    page = Document("a", ("b",), (Table("t", (("x", Figure.count(1)),)),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.title = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(page)) == page
    assert hash(page) == hash(dataclasses.replace(page))
