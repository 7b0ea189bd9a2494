# SPDX-License-Identifier: Apache-2.0
"""Timeline: series, moments, layouts, holders and lifetimes."""

from __future__ import annotations

import random

import pytest
from bundle import NAMES, snapshot
from small_snapshots import BASE, MIB, block, dumped, event, one_program, segment

import neutracer
from neutracer import Frame, Moment


@pytest.fixture
def timeline():
    return neutracer.load(dumped(one_program())).timeline()


def test_series_are_the_state_after_each_event(timeline):
    assert timeline.allocated.tolist() == [0, 4 * MIB, 10 * MIB, 4 * MIB, 4 * MIB]
    assert timeline.active.tolist() == [0, 4 * MIB, 10 * MIB, 10 * MIB, 4 * MIB]
    assert timeline.reserved.tolist() == [20 * MIB] * 5
    assert timeline.requested.tolist() == timeline.active.tolist()
    assert timeline.time_us.tolist() == [1000, 1010, 1020, 1030, 1040]
    assert len(timeline) == 5
    assert timeline.device == 0


def test_peak_is_a_moment(timeline):
    assert timeline.peak() == timeline.peak("allocated") == Moment(2, 1020, 10 * MIB)
    assert timeline.peak("reserved") == Moment(0, 1000, 20 * MIB)
    with pytest.raises(ValueError, match="no series 'freed'; there are allocated, active"):
        timeline.peak("freed")


def test_peak_before_the_first_event_has_no_time():
    program = one_program()
    del program["device_traces"][0][:3]
    peak = neutracer.load(dumped(program)).timeline().peak()
    assert peak == Moment(-1, None, 10 * MIB)


def test_layout_at_an_event(timeline):
    layout = timeline.at(2)
    assert layout.blocks["size"].tolist() == [4 * MIB, 6 * MIB, 10 * MIB]
    assert layout.blocks["state"] == ["active_allocated", "active_allocated", "inactive"]
    assert timeline.at(3).blocks[1].state == "active_pending_free"
    assert layout.segments[0].allocated_size == 10 * MIB
    assert len(timeline.at(-1).segments) == 0
    assert repr(layout) == "<Layout: 1 segments, 3 blocks>"
    for wrong in (5, -2):
        with pytest.raises(ValueError, match=f"event {wrong} is not among the 5"):
            timeline.at(wrong)


def test_event_at_a_time(timeline):
    assert [timeline.event_at(time) for time in (0, 999, 1000, 1015, 1040, 9999)] == [
        *(-1, -1, 0, 1, 4, 4)
    ]


def test_allocations_have_their_lives(timeline):
    rows = timeline.allocations
    assert rows["size"].tolist() == [4 * MIB, 6 * MIB]
    assert rows["alloc_event"].tolist() == [1, 2]
    assert rows["free_event"].tolist() == [-1, 3]
    assert rows["completed_event"].tolist() == [-1, 4]
    assert rows[1].stack[0] == Frame("model.py", 7, "forward")
    assert timeline.lifetimes_us() == [None, 10]


def test_lifetimes_need_times_and_both_ends():
    program = one_program()
    for entry in program["device_traces"][0]:
        del entry["time_us"]
    assert neutracer.load(dumped(program)).timeline().lifetimes_us() == [None, None]
    program = one_program()
    del program["device_traces"][0][:3]
    assert neutracer.load(dumped(program)).timeline().lifetimes_us() == [None, None]


def test_segments_have_their_lives(timeline):
    [row] = timeline.segments
    assert (row.size, row.alloc_event, row.free_event) == (20 * MIB, 0, -1)
    assert (row.segment_type, row.is_expandable) == ("large", False)
    assert row.segment_pool_id == (0, 0)


def test_holders_by_stack_line_and_function(timeline):
    [by_stack] = timeline.holders(by="stack")
    assert (by_stack.bytes, by_stack.count, by_stack.share) == (10 * MIB, 2, 1.0)
    assert [frame.name for frame in by_stack.key] == ["forward", "main"]
    [by_line] = timeline.holders(by="line")
    assert by_line.key == "model.py:7"
    [by_function] = timeline.holders(by="function")
    assert by_function.key == "forward (model.py)"
    [by_place] = timeline.holders()
    assert by_place.key == "forward (model.py:7)"
    assert str(by_place) == "<Holder 10 MiB (100.0 %) in 2 blocks: forward (model.py:7)>"
    assert str(by_stack) == "<Holder 10 MiB (100.0 %) in 2 blocks: forward (model.py:7), 2 frames>"
    plain = {"bytes": 10 * MIB, "requested_bytes": 10 * MIB, "count": 2, "share": 1.0}
    assert by_place.to_dict() == {"key": by_place.key, **plain}
    frames = [frame._asdict() for frame in by_stack.key]
    assert by_stack.to_dict() == {"key": frames, **plain}
    assert timeline.holders(-1) == []
    assert timeline.holders(4)[0].bytes == 4 * MIB


def test_holders_without_stacks_have_an_empty_key():
    program = one_program()
    # A block that is still there has its stack from the segments, if not from the trace.
    for entry in program["device_traces"][0] + program["segments"][0]["blocks"]:
        del entry["frames"]
    timeline = neutracer.load(dumped(program)).timeline()
    [by_stack] = timeline.holders(by="stack")
    assert (by_stack.key, by_stack.bytes) == ((), 10 * MIB)
    for by in ("place", "line", "function"):
        found = timeline.holders(by=by)
        assert [(h.key, h.bytes) for h in found] == [("(no Python stack)", 10 * MIB)]


def test_wrong_questions_list_the_right_ones(timeline):
    with pytest.raises(ValueError, match="by 'colour'; there are by place, line, function, stack"):
        timeline.holders(by="colour")
    with pytest.raises(ValueError, match="event 5 is not among"):
        timeline.holders(5)


@pytest.mark.parametrize("by", ["place", "stack", "line", "function", "category"])
@pytest.mark.parametrize(
    "name", [*("train_resnet_healthy", "multi_stream", "cpp_stacks"), *("leak_list", "metadata")]
)
def test_holders_add_up_to_the_series(name, by):
    timeline = snapshot(name).timeline()
    for event_number in random.Random(7).sample(range(len(timeline)), 8):
        holders = timeline.holders(event_number, by, limit=None)
        assert sum(holder.bytes for holder in holders) == timeline.allocated[event_number]
        assert [h.bytes for h in holders] == sorted((h.bytes for h in holders), reverse=True)
        assert len({holder.key for holder in holders}) == len(holders)
        if holders:
            assert sum(holder.share for holder in holders) == pytest.approx(1)
        assert timeline.holders(event_number, by, limit=3) == holders[:3]


def test_churn_counts_every_allocation():
    timeline = snapshot("train_resnet_healthy").timeline()
    made = [row for row in timeline.allocations if row.alloc_event >= 0]
    churn = timeline.churn()
    assert sum(row.count for row in churn) == len(made)
    assert sum(row.bytes for row in churn) == sum(row.size for row in made)
    assert churn == sorted(churn, key=lambda row: -row.bytes)
    assert max(row.peak_bytes for row in churn) <= timeline.peak().bytes


@pytest.mark.parametrize("name", NAMES)
def test_live_rows_are_the_series(name):
    timeline = snapshot(name).timeline()
    rows = list(
        zip(
            timeline.allocations["alloc_event"],
            timeline.allocations["free_event"],
            timeline.allocations["size"],
            strict=True,
        )
    )
    for at in random.Random(3).sample(range(len(timeline)), min(3, len(timeline))):
        live = sum(size for made, freed, size in rows if made <= at and (freed == -1 or freed > at))
        assert live == timeline.allocated[at]


def test_facts_are_read_only(timeline):
    assert timeline.facts["complete"] is True
    assert timeline.facts["preexisting"] == 0
    with pytest.raises(TypeError):
        timeline.facts["complete"] = False


def test_ooms_are_counted():
    program = one_program()
    oom = event("oom", 0, 64 * MIB, 2000, device_free=3 * MIB)
    del oom["addr"]
    program["device_traces"][0].append(oom)
    snap = neutracer.load(dumped(program))
    assert snap.timeline().facts["oom_count"] == 1
    assert snap.events[-1].device_free == 3 * MIB
    assert snap.to_dict() == program


def test_device_without_events_has_its_blocks():
    blocks = [block(BASE, 20 * MIB, "active_allocated", 20 * MIB)]
    snap = neutracer.load(dumped({"segments": [segment(BASE, blocks)], "device_traces": [[]]}))
    timeline = snap.timeline()
    assert len(timeline) == 0
    assert timeline.peak() == Moment(-1, None, 20 * MIB)
    assert timeline.at(-1).blocks["size"].tolist() == [20 * MIB]
    assert timeline.holders()[0].bytes == 20 * MIB


def test_repr_names_device_and_peak(timeline):
    assert repr(timeline) == "<Timeline of cuda:0: 5 events, peak 10 MiB>"
