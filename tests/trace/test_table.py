# SPDX-License-Identifier: Apache-2.0
"""Table, Row and Frame: the columns as Python sees them."""

from __future__ import annotations

import copy
import pickle

import pytest
from bundle import pickled, snapshot
from hostile_names import HOSTILE_NAMES
from small_snapshots import BASE, CALLER, FRAME, MIB, block, dumped, event, one_program, segment

import neutracer
from neutracer import Frame, Table


@pytest.fixture
def snap():
    return neutracer.load(dumped(one_program()))


def test_numbers_are_memoryviews_in_place(snap):
    sizes = snap.blocks["size"]
    assert isinstance(sizes, memoryview)
    assert sizes.readonly
    assert sizes.tolist() == [4 * MIB, 16 * MIB]


def test_strings_are_lists(snap):
    assert snap.events["action"][:2] == ["segment_alloc", "alloc"]
    assert snap.blocks["state"] == ["active_allocated", "inactive"]


@pytest.mark.parametrize("name", ["action", "segment_type", "state"])
def test_rows_of_a_string_are_found(name):
    snap = snapshot("frag_default")
    tables = {"action": snap.events[7:], "segment_type": snap.segments, "state": snap.blocks}
    table = tables[name]
    for text in {*table[name]}:
        assert table.find(name, text) == [i for i, one in enumerate(table[name]) if one == text]
    assert table.find(name, "no such word") == []
    assert table.find("size" if name != "segment_type" else "stream", "1") == []
    with pytest.raises(KeyError):
        table.find("no such column", "1")


def test_row_has_columns_as_attributes(snap):
    row = snap.events[1]
    assert (row.action, row.addr, row.size, row.time_us) == ("alloc", BASE, 4 * MIB, 1010)
    assert row.pool_id == (0, 0)
    assert row.device == 0
    assert row.user_metadata is None
    assert snap.segments[0].is_expandable is False
    assert snap.segments[0].segment_type == "large"
    assert snap.segments[0].segment_pool_id == (0, 0)


def test_stack_is_frames_innermost_first(snap):
    inner, outer = snap.events[0].stack
    assert inner == Frame(FRAME["filename"], FRAME["line"], FRAME["name"])
    assert outer == Frame(CALLER["filename"], CALLER["line"], CALLER["name"])
    assert inner.filename == "model.py"
    assert snap.blocks[1].stack == ()


def test_equal_stacks_are_one_object(snap):
    assert snap.events[0].stack is snap.events[1].stack


def test_unknown_names_say_what_there_is(snap):
    with pytest.raises(AttributeError, match=r"an? event has no 'sizes'; it has .*size"):
        _ = snap.events[0].sizes
    with pytest.raises(KeyError, match=r"sizes.*addr"):
        snap.events["sizes"]


def test_index_counts_from_both_ends(snap):
    events = snap.events
    assert events[-1] == events[4]
    assert events[-5] == events[0]
    for index in (5, -6, 1 << 80):
        with pytest.raises(IndexError):
            events[index]
    with pytest.raises(TypeError):
        events[1.0]


def test_slice_shares_columns(snap):
    part = snap.events[1:4]
    assert isinstance(part, Table)
    assert len(part) == 3
    assert part["time_us"].tolist() == [1010, 1020, 1030]
    assert part[0] == snap.events[1]
    assert part[1:][-1].time_us == 1030
    assert len(snap.events[3:1]) == len(snap.events[9:]) == 0
    assert len(snap.events[-2:]) == 2
    with pytest.raises(ValueError, match="step of 1"):
        snap.events[::2]


def test_iteration_gives_every_row(snap):
    assert [row.size for row in snap.events] == snap.events["size"].tolist()
    assert list(snap.events[2:2]) == []


def test_to_dict_is_plain_lists(snap):
    columns = snap.events.to_dict()
    assert tuple(columns) == snap.events.columns
    assert columns["action"] == snap.events["action"]
    assert all(len(column) == 5 for column in columns.values())
    row = snap.blocks[0].to_dict()
    assert row["size"] == 4 * MIB
    assert "stack" in row


def test_rows_compare_by_value(snap):
    other = neutracer.load(dumped(one_program()))
    assert snap.events[0] == other.events[0]
    assert snap.events[0] != snap.events[1]
    assert snap.events[0] != 0
    assert copy.copy(snap.events[0]) == snap.events[0]
    with pytest.raises(TypeError):
        hash(snap.events[0])


def test_rows_list_their_names(snap):
    assert {"action", "pool_id", "stack", "to_dict"} <= set(dir(snap.events[0]))
    assert "pool_first" not in dir(snap.events[0])


def test_reprs_are_one_line(snap):
    assert repr(snap.events).startswith("<Table of 5 events: device, action")
    assert repr(snap.events[1]).startswith("<event row: ")
    assert "action='alloc'" in repr(snap.events[1])
    assert "stack=<2 frames>" in repr(snap.events[1])


def test_reprs_name_addresses_and_events_outside_the_history():
    snap = snapshot("train_resnet_healthy")
    tables = (snap.blocks, snap.events, snap.timeline().segments, snap.timeline().allocations)
    for table in tables:
        row = table[0]
        address = f"{row[next(name for name in row if name.startswith('addr'))]:#x}"
        page = table._repr_html_()
        assert address in repr(row)
        assert address in page
        assert "=-" not in repr(row)
        assert ">-1<" not in page
    assert "alloc_event=<before the history>, free_event=<not in the history>" in repr(row)
    assert row.alloc_event == -1


def test_display_shows_the_first_rows():
    page = snapshot("frag_default").events._repr_html_()
    assert "2,375 events, the first 10" in page
    assert page.count("<tr>") <= 12


def test_display_escapes_hostile_names():
    for name in HOSTILE_NAMES.values():
        program = one_program()
        program["external_annotations"][0]["name"] = name
        page = neutracer.load(dumped(program)).annotations._repr_html_()
        assert "<script" not in page
        assert "\x1b" not in page


@pytest.mark.parametrize("name", ["frag_default", "cuda_graph_pool", "cpp_pickled", "metadata"])
def test_tables_hold_what_pickle_holds(name):
    snap, plain = snapshot(name), pickle.loads(pickled(name))
    entries = [entry for trace in plain["device_traces"] for entry in trace]
    assert len(snap.events) == len(entries)
    for row, entry in zip(snap.events, entries, strict=True):
        assert (row.action, row.size, row.stream) == (
            entry["action"],
            entry["size"],
            entry["stream"],
        )
        assert row.addr == entry.get("addr", 0)
        assert row.device_free == entry.get("device_free", 0)
        assert row.user_metadata == entry.get("user_metadata")
        frames = [Frame(f["filename"], f["line"], f["name"]) for f in entry.get("frames", [])]
        assert row.stack == tuple(frames)
    blocks = [b for s in plain["segments"] for b in s["blocks"]]
    assert snap.blocks["address"].tolist() == [b["address"] for b in blocks]
    assert snap.blocks["state"] == [b["state"] for b in blocks]


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas"])
def test_libraries_take_every_table(library):
    module = pytest.importorskip(library)
    pa = pytest.importorskip("pyarrow")
    snap = snapshot("metadata")
    tables = (snap.events, snap.blocks, snap.segments, snap.annotations, snap.events[7:19])
    for table in (*tables, snap.timeline().allocations, snap.timeline().segments):
        if library == "polars":
            taken = module.DataFrame(table).to_dict(as_series=False)
        elif library == "pandas":
            taken = pa.table(table).to_pandas().to_dict("list")
        else:
            taken = module.table(table).to_pydict()
        for name in table.columns:
            if name != "stack":
                # pandas has NaN where there is nothing.
                values = [None if value != value else value for value in taken[name]]
                assert values == list(table[name]), name


def test_numbers_reach_arrow_uncopied():
    pa = pytest.importorskip("pyarrow")
    events = snapshot("frag_default").events
    address = pa.py_buffer(events["size"]).address
    assert pa.table(events).column("size").chunk(0).buffers()[1].address == address


def test_unknown_actions_keep_their_names():
    program = one_program()
    program["device_traces"][0] += [event(f"action {i}", 0, 0, 2000 + i) for i in range(150)]
    snap = neutracer.load(dumped(program))
    assert snap.events["action"][-1] == "action 149"
    pa = pytest.importorskip("pyarrow")
    assert pa.table(snap.events).column("action").to_pylist() == snap.events["action"]


def test_expandable_flags_are_bool():
    blocks = [block(BASE, 20 * MIB)]
    one = {**segment(BASE, blocks), "is_expandable": True}
    snap = neutracer.load(dumped({"segments": [one], "device_traces": []}))
    assert snap.segments[0].is_expandable is True
