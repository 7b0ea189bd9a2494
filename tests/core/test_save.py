# SPDX-License-Identifier: Apache-2.0
"""save(): bytes given to a function of the caller's."""

from __future__ import annotations

import pickle

import pytest
from small_snapshots import dumped, one_program

from neutracer import _core

LIMIT = 1 << 30


@pytest.fixture
def native():
    return _core.load(dumped(one_program()), LIMIT)


def saved(source):
    pieces = []
    _core.save(source, pieces.append)
    assert all(type(piece) is bytes for piece in pieces)
    return pickle.loads(b"".join(pieces))


def test_whole_snapshot_is_written(native):
    assert saved(native) == one_program()


def test_range_has_its_own_layout(native):
    timeline = _core.Timeline(native, 0)
    cut = saved(((timeline, 1, 3),))
    assert cut["device_traces"] == [one_program()["device_traces"][0][1:3]]
    states = [block["state"] for block in cut["segments"][0]["blocks"]]
    assert states == ["active_allocated", "active_allocated", "inactive"]
    assert cut["segments_before"] == saved(((timeline, 0, 1),))["segments"]
    assert saved(((timeline, 0, 0),))["segments"] == []


def test_write_errors_come_through(native):
    def full(piece):
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        _core.save(native, full)
    with pytest.raises(TypeError):
        _core.save(native, None)


@pytest.mark.parametrize(("first", "end"), [(-1, 2), (0, 6), (3, 2)])
def test_ranges_outside_the_trace_are_refused(native, first, end):
    with pytest.raises(ValueError):
        _core.save(((_core.Timeline(native, 0), first, end),), lambda piece: None)


def test_other_sources_are_type_errors():
    with pytest.raises(TypeError, match="a Snapshot, or a tuple of ranges"):
        _core.save(object(), lambda piece: None)
