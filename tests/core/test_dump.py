# SPDX-License-Identifier: Apache-2.0
"""dump_plain(): what Python's pickler would write of plain data, and nothing else."""

from __future__ import annotations

import pickle
import pickletools
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_snapshots import one_program

import neutracer
from neutracer._native import core

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
)
PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
    ),
    max_leaves=30,
)


def without_frames(data):
    """The opcodes and arguments, with the numbers of the memo as they are counted."""
    return [
        (opcode.name, argument)
        for opcode, argument, _ in pickletools.genops(data)
        if opcode.name != "FRAME"
    ]


@given(PLAIN)
def test_data_comes_back_equal(data):
    assert pickle.loads(core.dump_plain(data)) == data


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_integers_are_written_as_python_does(number):
    assert without_frames(core.dump_plain(number)) == without_frames(pickle.dumps(number, 4))


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000, 2001])
def test_batches_are_those_of_python(count):
    data = list(range(count))
    assert pickle.loads(core.dump_plain(data)) == data
    if sys.version_info < (3, 15) or count % 1000 != 1:
        # From 3.15 on Python writes a last batch of one item as it writes longer ones.
        assert without_frames(core.dump_plain(data)) == without_frames(pickle.dumps(data, 4))
    named = {f"k{i}": i for i in data}
    assert pickle.loads(core.dump_plain(named)) == named


def test_shared_objects_stay_shared():
    frames = [{"line": 1}]
    data = [frames, frames, (frames, "".join(["lo", "ng"]))]
    back = pickle.loads(core.dump_plain(data))
    assert back[0] is back[1] is back[2][0]
    back[0].append(back)
    assert pickle.loads(core.dump_plain(back))[0][1][0] is not None


def test_many_shared_objects_are_told_apart():
    shared = [str(i) for i in range(70_000)]
    assert pickle.loads(core.dump_plain([shared, list(shared)])) == [shared, shared]


def test_snapshot_is_read_the_same():
    program = one_program()
    written = core.dump_plain(program)
    assert neutracer.load(written).to_dict() == program
    assert len(written) <= len(pickle.dumps(program, 4))


@pytest.mark.parametrize("value", [{1}, b"x", object(), 1j, print, type("D", (dict,), {})()])
def test_other_objects_are_refused(value):
    with pytest.raises(TypeError, match="not plain data"):
        core.dump_plain([value])


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "\ud800"])
def test_values_out_of_range_are_refused(value):
    with pytest.raises(ValueError):
        core.dump_plain({"key": value})


def test_deep_data_is_refused():
    data = []
    for _ in range(100):
        data = [data]
    with pytest.raises(ValueError, match="nested deeper"):
        core.dump_plain(data)


def test_nothing_is_kept_or_lost():
    data = [{"a": "x" * 300, "b": (1, 2.5, -(1 << 40))} for _ in range(100)]
    before = [sys.getrefcount(one) for one in data]
    for _ in range(50):
        core.dump_plain(data)
        with pytest.raises(TypeError):
            core.dump_plain([data, object()])
    assert [sys.getrefcount(one) for one in data] == before
    assert struct.pack(">d", 2.5) in core.dump_plain(data)
