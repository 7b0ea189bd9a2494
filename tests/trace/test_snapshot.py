# SPDX-License-Identifier: Apache-2.0
"""load() and Snapshot: every public name, on real files and on small ones of all schemas."""

from __future__ import annotations

import gc
import gzip
import json
import lzma
import pickle
import weakref

import pytest
from bundle import DATA, NAMES, pickled, snapshot
from hostile_names import HOSTILE_NAMES
from segment_sums import blocks_fill_segments
from small_snapshots import BASE, MIB, dumped, event, one_program, two_devices

import neutracer
from neutracer import HistoryWarning, LimitError, Snapshot, SnapshotError


def load(structure) -> Snapshot:
    return neutracer.load(dumped(structure))


@pytest.mark.parametrize("name", NAMES)
def test_to_dict_is_what_pickle_gives(name):
    assert snapshot(name).to_dict() == pickle.loads(pickled(name))


@pytest.mark.parametrize("name", NAMES)
def test_blocks_fill_their_segments(name):
    assert blocks_fill_segments(snapshot(name))


def test_device_with_nothing_but_the_recorders_marker_is_not_used():
    program = one_program()
    program["device_traces"].append([event("snapshot", 0, 0)])
    assert load(program).devices == (0,)
    program["device_traces"][1].append(event("oom", 0, 512))
    assert load(program).devices == (0, 1)
    # Of a file with nothing else, the marker's device is all there is.
    alone = {"segments": [], "device_traces": [[event("snapshot", 0, 0)]]}
    assert load(alone).devices == (0,)


def test_small_program_reads_as_written():
    snap = load(one_program())
    assert snap.devices == (0,)
    assert (len(snap.segments), len(snap.blocks), len(snap.events)) == (1, 2, 5)
    assert snap.partial is None
    assert snap.ignored_keys == ()
    assert snap.annotations[0].to_dict() == {
        "stage": "START",
        "name": "step",
        "device": 0,
        "time_us": 1005,
    }
    assert snap.settings == one_program()["allocator_settings"]
    assert snap.to_dict() == one_program()


def test_stats_have_all_of_pytorch_keys():
    stats = load(one_program()).memory_stats()
    assert len(stats) == 9 * 3
    assert stats["allocated_bytes.all.current"] == 4 * MIB
    assert stats["allocated_bytes.large_pool.current"] == 4 * MIB
    assert stats["allocated_bytes.small_pool.current"] == 0
    assert stats["reserved_bytes.all.current"] == 20 * MIB
    assert stats["inactive_split.all.current"] == 1
    assert stats["inactive_split_bytes.all.current"] == 16 * MIB
    assert stats["segment.all.current"] == 1


def test_several_devices_are_kept_apart():
    snap = load(two_devices())
    assert snap.devices == (0, 2)
    assert snap.events["device"].tolist() == [0] * 5 + [2] * 5
    for ask in (snap.memory_stats, snap.timeline, snap.history_complete, snap.trace_length):
        with pytest.raises(ValueError, match=r"several devices.*device= \(--device\).*\(0, 2\)"):
            ask()
    for device in (0, 2):
        assert snap.memory_stats(device)["allocated_bytes.all.current"] == 4 * MIB
        assert snap.timeline(device).peak().bytes == 10 * MIB
    assert snap.memory_stats(1)["reserved_bytes.all.current"] == 0
    assert snap.history_complete(1) is None
    for device in (3, -1):
        with pytest.raises(ValueError, match=rf"no device {device}, only \(0, 2\)"):
            snap.timeline(device)


def test_empty_snapshot_is_all_zeros():
    snap = load({"segments": [], "device_traces": []})
    assert snap.devices == ()
    assert set(snap.memory_stats().values()) == {0}
    assert len(snap.timeline()) == 0
    assert snap.history_complete() is None
    assert repr(snap) == "<Snapshot: 0 devices, 0 segments, 0 blocks, 0 events>"
    with pytest.raises(ValueError, match="no device 0, nor any other"):
        snap.timeline(0)
    assert "PyTorch snapshot" in snap._repr_html_()


def test_cpu_snapshots_say_cpu_everywhere():
    program = one_program()
    program["allocator_settings"]["exact_sizes"] = True
    snap = load(program)
    pages = [
        repr(snap.timeline()),
        snap.timeline()._repr_html_(),
        snap._repr_html_(),
        str(neutracer.explain(snap, request="4MiB")),
        str(neutracer.diff(snap, snap)),
        str(neutracer.leak_trend(snap)),
        str(neutracer.fragmentation_report(snap)),
    ]
    assert [page for page in pages if "cuda" in page] == []
    assert pages[0] == "<Timeline of cpu: 5 events, peak 10 MiB>"
    assert "Timeline of cpu" in pages[1]
    assert "It would fit   cpu" in pages[3]
    assert "Difference   cpu" in pages[4]
    with pytest.raises(ValueError, match="different devices \\(cpu, cuda:0\\)"):
        neutracer.leak_trend([snap, load(one_program())])


def test_bare_list_of_segments_is_read():
    snap = load(one_program()["segments"])
    assert len(snap.blocks) == 2
    assert len(snap.events) == 0
    assert snap.settings == {}
    assert snap.to_dict() == one_program()["segments"]


def test_oldest_schema_is_read():
    # torch 1.13 to 2.0: no addresses of blocks, no times, no settings.
    blocks = [
        {"size": 4 * MIB, "state": "active_allocated", "history": [{"real_size": 4 * MIB - 9}]},
        {"size": 16 * MIB, "state": "inactive"},
    ]
    keys = ("device", "address", "total_size", "allocated_size", "active_size", "stream")
    old = {key: one_program()["segments"][0][key] for key in (*keys, "segment_type")}
    trace = [
        {k: v for k, v in e.items() if k != "time_us"} for e in one_program()["device_traces"][0]
    ]
    snap = load({"segments": [{**old, "blocks": blocks}], "device_traces": [trace]})
    assert snap.blocks["address"].tolist() == [BASE, BASE + 4 * MIB]
    assert snap.blocks[0].requested_size == 4 * MIB - 9
    assert snap.events["time_us"].tolist() == [0] * 5
    assert snap.timeline().peak().time_us is None
    with pytest.raises(ValueError, match="no times"):
        snap.timeline().event_at(5)


def test_unknown_keys_and_actions_are_kept_apart():
    program = one_program()
    program["guest_segments"] = [1, {"a": None}]
    program["device_traces"][0].append(event("teleport", BASE, 1, 2000, forward_frames=["x"]))
    snap = load(program)
    assert snap.ignored_keys == ("guest_segments",)
    assert snap.events[-1].action == "teleport"
    assert snap.timeline().peak().bytes == 10 * MIB


def test_settings_are_read_only():
    settings = snapshot("whatif/6/frag_default").settings
    assert settings["max_split_size"] == 128 * MIB
    with pytest.raises(TypeError):
        settings["max_split_size"] = 0
    in_force = snapshot("whatif/6/frag_default").settings_in_force
    assert in_force["garbage_collection_threshold"] == 0.8
    assert in_force["max_split_size"] == 128 * MIB


@pytest.mark.parametrize(
    ("overflowed", "complete"),
    [
        (True, False),
        (False, True),
        ([True], False),
        ([False], True),
        ({"0": True}, False),
        ([], True),
    ],
)
def test_overflow_is_believed_when_told(overflowed, complete):
    program = one_program()
    program["allocator_settings"]["trace_alloc_overflowed"] = overflowed
    assert load(program).history_complete() is complete


def test_overflow_is_inferred_when_not_told():
    program = one_program()
    assert load(program).history_complete() is True
    del program["device_traces"][0][0]
    # Which is no warning, that is: pytest makes errors of them.
    assert load(program).history_complete() is False
    program["device_traces"] = [[]]
    assert load(program).history_complete() is None


def test_truncated_file_warns_and_is_partial():
    data = DATA.joinpath("frag_default.pickle").read_bytes()
    with pytest.warns(HistoryWarning, match="only a part was read") as caught:
        snap = neutracer.load(data[: len(data) // 2])
    assert caught[0].filename == __file__
    assert snap.partial
    assert snap.history_complete() is False
    assert "partial" in repr(snap)
    assert 0 < len(snap.events) < 2375


def test_memory_bound_takes_bytes_or_text():
    data = DATA.joinpath("frag_default.pickle").read_bytes()
    for bound in (4096, "4 KiB"):
        with pytest.raises(LimitError, match="4096 bytes that max_memory allows"):
            neutracer.load(data, max_memory=bound)
    assert len(neutracer.load(data, max_memory="64MiB").events) == 2375
    with pytest.raises(ValueError, match="not a size"):
        neutracer.load(data, max_memory="much")


def test_own_progress_is_called(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "neutracer._native.core.load",
        lambda source, limit, report: seen.append(report) or native,
    )
    native = snapshot("metadata").native
    neutracer.load(b"\x80\x04", progress=print)
    neutracer.load(b"\x80\x04", progress=False)
    assert seen == [print, None]


@pytest.mark.parametrize("events", [range(1, 4), slice(1, 4), slice(1, -1), (1, 4)])
def test_range_is_saved_with_its_layout(events, tmp_path):
    snap = load(one_program())
    snap.save(tmp_path / "cut.pickle", events=events)
    cut = neutracer.load(tmp_path / "cut.pickle")
    assert cut.events.to_dict()["time_us"] == [1010, 1020, 1030]
    states = cut.blocks["state"]
    assert states == ["active_allocated", "active_pending_free", "inactive"]
    assert cut.memory_stats()["active_bytes.all.current"] == snap.timeline().active[3]


@pytest.mark.parametrize(
    "events", [range(0, 9), (-1, 2), (3, 2), range(0, 4, 2), slice(None, None, 2)]
)
def test_ranges_that_are_none_are_refused(events, tmp_path):
    with pytest.raises(ValueError, match="events"):
        load(one_program()).save(tmp_path / "cut.pickle", events=events)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["frag_default", "multi_stream", "whatif/7/frag_default"])
def test_cut_files_replay_to_the_same_end(name, tmp_path):
    snap = snapshot(name)
    timeline = snap.timeline()
    end = len(timeline) // 2
    snap.save(tmp_path / "cut.pickle.gz", events=slice(0, end))
    cut = neutracer.load(tmp_path / "cut.pickle.gz")
    assert blocks_fill_segments(cut)
    assert cut.timeline().allocated.tolist() == timeline.allocated[:end].tolist()
    assert cut.timeline().reserved.tolist() == timeline.reserved[:end].tolist()


def test_range_of_one_device_empties_the_others(tmp_path):
    snap = load(two_devices())
    with pytest.raises(ValueError, match="several devices"):
        snap.save(tmp_path / "cut.pickle", events=(0, 2))
    snap.save(tmp_path / "cut.pickle", events=(0, 2), device=2)
    cut = neutracer.load(tmp_path / "cut.pickle")
    assert cut.devices == (2,)
    assert [cut.trace_length(device) for device in range(3)] == [0, 0, 2]


def test_snapshot_goes_with_its_last_reference():
    gc.collect()
    gc.disable()
    try:
        snap = load(one_program())
        snap.timeline().peak()
        events, gone = snap.events, weakref.ref(snap)
        del snap
        assert gone() is None
        assert events["device"].tolist() == [0] * 5
    finally:
        gc.enable()


def test_timeline_outlives_its_snapshot():
    timeline = load(one_program()).timeline()
    gc.collect()
    assert timeline.allocated.tolist() == [0, 4 * MIB, 10 * MIB, 4 * MIB, 4 * MIB]
    assert timeline.at(2).blocks[1].stack[0].name == "forward"


def test_timeline_is_made_once():
    snap = load(one_program())
    assert snap.timeline() is snap.timeline(0)


def test_hostile_names_change_no_figure():
    for name in HOSTILE_NAMES.values():
        program = one_program()
        program["external_annotations"][0]["name"] = name
        for entry in program["device_traces"][0]:
            entry["frames"] = [{"name": name, "filename": name, "line": 1}]
        snap = neutracer.load(pickle.dumps(program, 4))
        assert snap.annotations[0].name == name
        assert snap.events[0].stack[0].filename == name
        assert snap.timeline().peak().bytes == 10 * MIB
        assert snap.to_dict() == program


def test_other_pickles_are_refused():
    for thing in (None, 7, "text", [1], {"a": 1}, {"segments": 3}):
        with pytest.raises(SnapshotError):
            neutracer.load(pickle.dumps(thing, 4))


def test_display_has_the_figures():
    page = snapshot("frag_default")._repr_html_()
    assert "cuda:0" in page
    assert "406.0 MiB" in page
    assert repr(snapshot("frag_default")) == (
        "<Snapshot: 1 device, 18 segments, 83 blocks, 2,375 events>"
    )


@pytest.mark.parametrize("ending", ["json", "json.gz", "JSON.json.xz"])
def test_saved_as_json_has_what_the_pickle_has(ending, tmp_path):
    snap = neutracer.load(DATA / "frag_default.pickle")
    path = tmp_path / f"snapshot.{ending}"
    snap.save(path)
    opened = {"gz": gzip.open, "xz": lzma.open}.get(ending.rpartition(".")[2], open)
    with opened(path, "rb") as file:
        plain = json.load(file)
    # Tuples are arrays there.
    assert plain == json.loads(json.dumps(snap.to_dict()))
    snap.save(path, events=(10, 20))
    with opened(path, "rb") as file:
        assert len(json.load(file)["device_traces"][0]) == 10
