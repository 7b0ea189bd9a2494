# SPDX-License-Identifier: Apache-2.0
"""Every row of every report is one line for a person, and plain data for JSON."""

from __future__ import annotations

import contextlib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import neutracer
from neutracer.render.report import PlainRow, brief
from neutracer.trace.stacks import Frame
from neutracer.trace.table import Row

DATA = Path(__file__).parents[1] / "data"


def answers() -> Iterator[object]:
    """What a user gets from the bundled recordings."""
    frag, leak = DATA / "frag_default.pickle", DATA / "leak_list.pickle.xz"
    snap = neutracer.load(leak)
    timeline = snap.timeline()
    yield from (neutracer.report(frag), neutracer.report(leak))
    yield from (neutracer.explain(frag), neutracer.fragmentation_report(frag))
    yield from (neutracer.leak_trend(snap), neutracer.diff(frag, leak))
    yield from (neutracer.what_if(frag), neutracer.what_if(frag, "expandable_segments:True"))
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  tensors are looked for where it has been imported

        yield neutracer.find_tensor_cycles("cpu")
    yield neutracer.notebook_holders()
    for by in ("place", "line", "function", "stack", "module", "category"):
        yield timeline.holders(by=by)
    yield from (timeline.churn()[:5], timeline.peak(), timeline.steps, timeline.alive()[:5])
    yield from (snap.events[:5], snap.blocks[:5], snap.segments[:5], snap.flaws)
    yield from (timeline.by_category()[:5], timeline.by_place()[:5], timeline.by_module()[:5])


def rows(value: object, seen: set[int]) -> Iterator[object]:
    """All rows in a value, once each."""
    if id(value) in seen or isinstance(value, (str, bytes, memoryview)):
        return
    seen.add(id(value))
    if isinstance(value, (PlainRow, Row, Frame, neutracer.Holder)):
        yield value
    if is_dataclass(value):
        for name in value.__dataclass_fields__:
            if not name.startswith("_"):
                yield from rows(getattr(value, name), seen)
    if isinstance(value, Mapping):
        for item in value.values():
            yield from rows(item, seen)
    elif isinstance(value, Iterable):
        for item in list(value)[:200]:
            yield from rows(item, seen)


@pytest.fixture(scope="module")
def found() -> list[typing.Any]:
    seen: set[int] = set()
    kept = list(answers())
    return [row for answer in kept for row in rows(answer, seen)]


def test_rows_of_many_kinds_are_found(found: list[typing.Any]) -> None:
    kinds = {type(row).__name__ for row in found}
    assert {"Finding", "Verdict", "Outcome", "Holder", "Moment", "Churn", "Row", "Frame"} <= kinds
    assert {"Change", "Hole", "SegmentFragmentation", "DeviceOverview", "Step"} <= kinds


def test_every_row_goes_to_json(found: list[typing.Any]) -> None:
    for row in found:
        plain = row.to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_every_row_is_one_line(found: list[typing.Any]) -> None:
    for row in found:
        shown = repr(row)
        assert "\n" not in shown
        assert shown.isprintable()
        assert len(shown) < 1000


def test_what_is_long_is_counted_or_cut() -> None:
    assert brief({"a": 1}) == "{'a': 1}"
    assert brief(list(range(9))) == "<9 items>"
    assert brief(["x" * 100]) == "<1 item>"
    assert brief(memoryview(b"ab")) == "<2 items>"
    assert brief("a\nb") == r"'a\nb'"
    assert len(brief("\x1b" * 200)) <= 82


def test_a_row_of_a_table_is_a_mapping() -> None:
    block = neutracer.load(DATA / "frag_default.pickle").blocks[0]
    assert dict(block) == {name: getattr(block, name) for name in block}
    assert block["size"] == block.size
    with pytest.raises(KeyError):
        block["sise"]
