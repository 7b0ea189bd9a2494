# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON: exact, stable, and nothing that JSON has no word for."""

from __future__ import annotations

import array
import io
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from bundle import DATA
from hostile_names import HOSTILE_NAMES
from hypothesis import given
from hypothesis import strategies as st

import neutracer
from neutracer.overview import overview
from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import PlainRow, dump, dumps, to_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


class _HasDict:
    def to_dict(self) -> dict[str, Any]:
        return {"inner": (1, 2)}


@dataclass(frozen=True)
class _Bare:
    told: int
    silent: int = field(default=1, repr=False)


@dataclass(frozen=True)
class _Pair:
    left: int
    right: tuple[int, ...]
    _hidden: object = object()


@dataclass(frozen=True)
class _Quiet(PlainRow):
    told: int
    silent: int = field(default=1, repr=False)


def test_what_a_repr_leaves_out_is_not_in_json() -> None:
    out = io.StringIO()
    dump({"schema": "s/1", "row": _Quiet(2), "bare": _Bare(3)}, out)
    assert json.loads(out.getvalue()) == {"schema": "s/1", "row": {"told": 2}, "bare": {"told": 3}}
    assert to_plain([_Quiet(2), _Bare(3)]) == [{"told": 2}, {"told": 3}]
    assert repr(_Quiet(2)) == "_Quiet(told=2)"


@given(PLAIN)
def test_plain_data_reads_back_equal(value: Any) -> None:
    text = dumps({"schema": "neutracer.test/1", "value": value})
    assert json.loads(text) == {"schema": "neutracer.test/1", "value": value}
    assert text.isascii()


def test_integers_stay_integers() -> None:
    for value in (0, 1 << 53, (1 << 64) - 1, -(1 << 80)):
        again = json.loads(dumps({"schema": "s/1", "value": value}))["value"]
        assert again == value
        assert type(again) is int


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (MappingProxyType({"a": ()}), {"a": []}),
        (Severity.SEVERE, "severe"),
        (_HasDict(), {"inner": [1, 2]}),
        (_Pair(1, (2,)), {"left": 1, "right": [2]}),
        (memoryview(array.array("Q", [1 << 63, 2])), [1 << 63, 2]),
        (
            Note("by", Place("f", "a.py", 3)),
            {
                "text": "by",
                "place": {
                    "function": "f",
                    "filename": "a.py",
                    "line": 3,
                    "package": "",
                    "caller": "",
                },
                "detail": "",
            },
        ),
    ],
)
def test_our_own_types_become_plain(value: object, plain: object) -> None:
    assert to_plain(value) == plain
    assert json.loads(json.dumps(to_plain(value))) == plain


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        object(),
        1j,
        iter(()),
        _HasDict,
        _Pair,
        range(3),
        memoryview(b"x").cast("c"),
    ],
)
def test_unknown_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"value\.list\[1\].*can't be written as JSON"):
        to_plain({"list": [0, value]})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_without_a_word_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON has no"):
        dumps({"schema": "s/1", "value": number})


@pytest.mark.parametrize("key", [1, None, (1,), b"x"])
def test_keys_are_strings_only(key: object) -> None:
    with pytest.raises(TypeError, match="a JSON key must be a string"):
        to_plain({key: 1})


@pytest.mark.parametrize("value", [[], {}, {"schema": 3}, None, "schema"])
def test_a_document_needs_its_schema(value: object) -> None:
    with pytest.raises(TypeError, match="schema"):
        dumps(value)


def test_the_order_of_keys_is_kept() -> None:
    assert (
        dumps({"schema": "s/1", "b": 1, "a": 2}, indent=None) == '{"schema": "s/1", "b": 1, "a": 2}'
    )


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_survive_unharmed(name: str) -> None:
    text = dumps({"schema": "s/1", name: name}, indent=None)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)[name] == name


def test_what_is_streamed_is_what_dumps_writes():
    report = overview(neutracer.load(DATA / "frag_default.pickle"))
    written = io.StringIO()
    dump(report, written)
    assert written.getvalue() == dumps(report.to_dict()) + "\n"
    several = {"schema": "neutracer.reports/1", "reports": [report, report]}
    written = io.StringIO()
    dump(several, written)
    plain = {"schema": "neutracer.reports/1", "reports": [report.to_dict()] * 2}
    assert written.getvalue() == dumps(plain) + "\n"


def test_places_of_each_level_are_written_there() -> None:
    place = Place("frag", "train.py", 159)
    row = {"by": place, "other": Place("step", 'a"b.py'), "within": [place, {"by": place}, None]}
    report = {"schema": "s/1", "rows": [row, row, {}], "flags": [True, 1.5, ()], "none": {}}
    written = io.StringIO()
    dump(report, written)
    assert written.getvalue() == dumps(report) + "\n"


def test_more_places_than_are_kept_are_written() -> None:
    report = {"schema": "s/1", "rows": [Place(str(number), "a.py") for number in range(10_000)]}
    written = io.StringIO()
    dump(report, written)
    assert written.getvalue() == dumps(report) + "\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_streams_refuse_what_is_no_json(value):
    with pytest.raises(ValueError, match="JSON has no"):
        dump({"schema": "x/1", "value": [value]}, io.StringIO())
