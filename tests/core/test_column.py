# SPDX-License-Identifier: Apache-2.0
"""Columns: memory of the core under the buffer protocol."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys

import pytest
from bundle import DATA, expected, pickled
from small_snapshots import BASE, MIB, dumped, one_program

from neutracer import _core

LIMIT = 1 << 30


@pytest.fixture
def native():
    return _core.load(dumped(one_program()), LIMIT)


def test_column_shows_items_in_place(native):
    view = memoryview(native.tables()["events"]["addr"])
    assert (view.format, view.itemsize, view.ndim, view.shape) == ("Q", 8, 1, (5,))
    assert view.c_contiguous
    assert view[0] == BASE
    assert view.tolist() == memoryview(native.tables()["events"]["addr"]).tolist()


@pytest.mark.parametrize(
    ("table", "name", "form"),
    [
        ("events", "action", "B"),
        ("events", "stack", "I"),
        ("events", "time_us", "q"),
        ("segments", "device", "i"),
        ("blocks", "size", "Q"),
    ],
)
def test_formats_are_those_of_struct(native, table, name, form):
    column = native.tables()[table][name]
    view = memoryview(column)
    assert view.format == form
    assert len(column) == len(view)


def test_column_can_not_be_written(native):
    view = memoryview(native.tables()["blocks"]["size"])
    assert view.readonly
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"\0" * 64).readinto(native.tables()["blocks"]["size"])


def test_view_outlives_everything_else():
    view = memoryview(_core.load(dumped(one_program()), LIMIT).tables()["blocks"]["size"])
    gc.collect()
    assert view.tolist() == [4 * MIB, 16 * MIB]


def test_layout_column_outlives_its_timeline():
    native = _core.load(dumped(one_program()), LIMIT)
    column = _core.Timeline(native, 0).layout(2).tables()["blocks"]["size"]
    del native
    gc.collect()
    assert memoryview(column).tolist() == [4 * MIB, 6 * MIB, 10 * MIB]


def test_column_holds_one_reference_only(native):
    before = sys.getrefcount(native)
    column = native.tables()["events"]["size"]
    assert sys.getrefcount(native) == before + 1
    views = [memoryview(column) for _ in range(10)]
    del views, column
    assert sys.getrefcount(native) == before


def test_column_of_no_rows_is_empty():
    snapshot = {"segments": [], "device_traces": [[]]}
    tables = _core.load(dumped(snapshot), LIMIT).tables()
    assert memoryview(tables["blocks"]["size"]).tolist() == []
    assert memoryview(tables["events"]["addr"]).nbytes == 0


def test_absent_keys_make_no_column(native):
    assert "user_metadata" not in native.tables()["events"]
    assert "user_metadata" in _core.load(pickled("metadata"), LIMIT).tables()["events"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_object_can_be_pickled(native, protocol):
    timeline = _core.Timeline(native, 0)
    layout = timeline.layout(0)
    fragment = _core.Fragment(native, None, 0)
    column = layout.tables()["blocks"]["size"]
    for thing in (native, timeline, layout, fragment, column):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(thing, protocol)
        with pytest.raises(TypeError, match="pickle"):
            copy.copy(thing)


@pytest.mark.parametrize("name", ["Column", "Snapshot", "Layout"])
def test_types_are_not_made_from_python(name):
    kind = getattr(_core, name)
    with pytest.raises(TypeError):
        kind()
    with pytest.raises(TypeError):
        object.__new__(kind)


@pytest.mark.parametrize("name", ["Column", "Snapshot", "Layout", "Timeline", "Fragment"])
def test_types_are_immutable_and_final(name):
    kind = getattr(_core, name)
    with pytest.raises(TypeError):
        kind.more = 1
    with pytest.raises(TypeError):
        type("Sub", (kind,), {})


def test_bundled_file_has_all_columns():
    native = _core.load(DATA.joinpath("frag_default.pickle").read_bytes(), LIMIT)
    tables = native.tables()
    figures = expected("frag_default")
    assert len(tables["segments"]["address"]) == figures["n_segments"]
    assert len(tables["blocks"]["address"]) == figures["n_blocks"]
    assert len(tables["events"]["action"]) == sum(figures["n_trace"])
