# SPDX-License-Identifier: Apache-2.0
"""_core.Timeline, Layout and Fragment: arguments, lifetimes, threads."""

from __future__ import annotations

import gc
import sys
import threading
from array import array

import pytest
from bundle import DATA
from small_snapshots import MIB, dumped, one_program

from neutracer import _core

LIMIT = 1 << 30
NONE = 0xFFFFFFFF


@pytest.fixture
def native():
    return _core.load(dumped(one_program()), LIMIT)


@pytest.fixture
def timeline(native):
    return _core.Timeline(native, 0)


def test_series_hold_a_value_an_event(timeline):
    series = [memoryview(timeline.series(metric)).tolist() for metric in range(4)]
    assert series[0] == [0, 4 * MIB, 10 * MIB, 4 * MIB, 4 * MIB]
    assert series[1] == [0, 4 * MIB, 10 * MIB, 10 * MIB, 4 * MIB]
    assert series[2] == [20 * MIB] * 5
    assert series[3] == series[1]


def test_peaks_name_their_event(timeline):
    assert timeline.peak(0) == (2, 10 * MIB)
    assert timeline.peak(2) == (0, 20 * MIB)


def test_blocks_are_freed_earlier_at_events_of_the_trace(timeline):
    assert timeline.peak_if_freed(array("i", [-1, -1])) == 10 * MIB
    assert timeline.peak_if_freed(array("i", [1, -1])) == 6 * MIB
    for ends in ([-1], [5, -1]):
        with pytest.raises(ValueError, match="no event of the trace for each allocation"):
            timeline.peak_if_freed(array("i", ends))


def test_holders_and_churn_add_up(timeline):
    holders = timeline.holders(2, 0)
    assert sum(nbytes for _, _, nbytes, _ in holders) == 10 * MIB
    assert [(count, nbytes) for _, count, nbytes, _ in holders] == [(2, 10 * MIB)]
    assert [row[1:] for row in timeline.churn()] == [(2, 10 * MIB, 10 * MIB, 2)]


@pytest.mark.parametrize("metric", [-1, 4, 1 << 40])
def test_unknown_metrics_are_value_errors(timeline, metric):
    with pytest.raises(ValueError, match="metric"):
        timeline.series(metric)
    with pytest.raises(ValueError, match="metric"):
        timeline.peak(metric)


@pytest.mark.parametrize("event", [-2, 5, 1 << 40])
def test_layout_of_no_event_is_refused(timeline, event):
    with pytest.raises(ValueError, match="event"):
        timeline.layout(event)


def test_unknown_grouping_is_refused(timeline):
    with pytest.raises(ValueError, match="grouping"):
        timeline.holders(0, 3)


def test_wrong_types_are_type_errors(native, timeline):
    with pytest.raises(TypeError):
        _core.Timeline(object(), 0)
    with pytest.raises(TypeError):
        _core.Timeline(native, "0")
    with pytest.raises(TypeError):
        timeline.layout("0")
    with pytest.raises(TypeError, match="Layout or None"):
        _core.Fragment(native, object(), 0)
    with pytest.raises(OverflowError):
        _core.Timeline(native, 1 << 40)


def test_snapshot_lives_as_long_as_needed(native):
    before = sys.getrefcount(native)
    timeline = _core.Timeline(native, 0)
    layout = timeline.layout(-1)
    column = layout.tables()["segments"]["address"]
    assert sys.getrefcount(native) == before + 1
    del timeline, layout
    gc.collect()
    assert sys.getrefcount(native) == before + 1
    assert len(column) == 0
    del column
    assert sys.getrefcount(native) == before


def test_timeline_of_device_without_trace(native):
    timeline = _core.Timeline(native, 7)
    assert len(timeline.series(0)) == 0
    assert timeline.peak(0) == (-1, 0)
    assert timeline.churn() == []


def test_threads_share_one_timeline():
    native = _core.load(DATA.joinpath("frag_default.pickle").read_bytes(), LIMIT)
    timeline, results = _core.Timeline(native, 0), []

    def ask():
        for event in range(0, 2375, 300):
            layout = timeline.layout(event).tables()["blocks"]["size"]
            results.append((event, sum(memoryview(layout)), timeline.holders(event, 0)))
            timeline.series(2)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reserved = memoryview(timeline.series(2))
    assert len(results) == 4 * 8
    assert all(total == reserved[event] for event, total, _ in results)
    assert all(holders == timeline.holders(event, 0) for event, _, holders in results)


def test_fragment_knows_what_fits(native):
    fragment = _core.Fragment(native, None, 0)
    [(_, _, _, size, before, after)] = fragment.holes()
    assert (size, before, after) == (16 * MIB, 0, NONE)
    [group] = fragment.groups()
    assert group["reserved_bytes"] == 20 * MIB
    assert group["largest_request"] == 16 * MIB
    assert fragment.fits(0, (0, 0), 0, 16 * MIB)
    assert not fragment.fits(0, (0, 0), 0, 16 * MIB + 1)
    assert not fragment.fits(0, (0, 0), 5, MIB)
    assert not fragment.fits(1, (0, 0), 0, 2 * MIB)


def test_fragment_of_a_layout_differs(native, timeline):
    fragment = _core.Fragment(native, timeline.layout(2), 0)
    assert [hole[3] for hole in fragment.holes()] == [10 * MIB]
    [(_, holes, free, largest, reclaimable, pinned)] = fragment.segments()
    assert (holes, free, largest, reclaimable, pinned) == (1, 10 * MIB, 10 * MIB, 0, 0)
