# SPDX-License-Identifier: Apache-2.0
"""What no allocator can have written: refused, or said first, and no figure rests on it."""

from __future__ import annotations

import copy
import glob
import pickle
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA
from impossible_files import BLOCK, EVENT, MIB, SAID, SEGMENT, drop, put, sound

import neutracer
from neutracer.overview import overview


def load(plain: Any) -> neutracer.Snapshot:
    return neutracer.load(pickle.dumps(plain, protocol=4))


REFUSED = {
    "total_size is negative": put(*SEGMENT, "total_size", -4096),
    "total_size is beyond 2^48": put(*SEGMENT, "total_size", (1 << 48) + 1),
    "total_size is 0": put(*SEGMENT, "total_size", 0),
    "total_size is missing": drop(*SEGMENT, "total_size"),
    "total_size is True": put(*SEGMENT, "total_size", True),
    "total_size is None": put(*SEGMENT, "total_size", None),
    "size is negative": put(*BLOCK, "size", -1),
    "size is missing": drop(*BLOCK, "size"),
    "requested_size is negative": put(*BLOCK, "requested_size", -1),
    "an alloc is negative": put(*EVENT, "size", -512),
    "an alloc is beyond 2^48": put(*EVENT, "size", 1 << 50),
    "an alloc has no size": drop(*EVENT, "size"),
    "an alloc has no address": drop(*EVENT, "addr"),
    "an oom is negative": put("device_traces", 0, 1, {"action": "oom", "size": -5, "stream": 0}),
    "a block is larger than its segment": put(*BLOCK, "size", 4 * MIB),
    "a block is repeated": put("segments", 0, "blocks", 1, "address", 4096),
    "blocks overlap": put("segments", 0, "blocks", 1, "address", 4096 + 512),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_can_be_said(what: str) -> None:
    plain = sound()
    REFUSED[what](plain)
    with pytest.raises(neutracer.SnapshotError):
        load(plain)


def test_list_around_a_snapshot_is_named() -> None:
    with pytest.raises(neutracer.SnapshotError, match="a whole snapshot, in a list"):
        load([sound()])


def test_more_devices_than_there_can_be() -> None:
    with pytest.raises(neutracer.LimitError, match="more than 1024 devices"):
        load({**sound(), "device_traces": [[] for _ in range(1025)]})


def test_more_segments_than_there_can_be() -> None:
    plain = sound()
    segment = plain["segments"][0]
    with pytest.raises(neutracer.LimitError, match="more than 524288 segments"):
        load({**plain, "segments": [segment] * ((1 << 19) + 1)})


@pytest.mark.parametrize("kind", SAID)
def test_flaw_is_said_first(kind: str) -> None:
    plain = sound()
    SAID[kind](plain)
    snap = load(plain)
    assert kind in {flaw.kind for flaw in snap.flaws}
    report = overview(snap)
    assert report.findings[0].kind == "broken_file"
    told = next(flaw for flaw in snap.flaws if flaw.kind == kind)
    assert str(report).index(told.message[:20]) < str(report).index("cuda:0  ")
    assert neutracer.fragmentation_report(snap).findings[0].kind == "broken_file"
    assert neutracer.diff(snap, load(sound())).findings[0].kind == "broken_file"
    stats = snap.memory_stats()
    allocated = stats["allocated_bytes.all.current"]
    assert 0 <= allocated <= stats["reserved_bytes.all.current"]
    assert 0 <= report.devices[0].fragmentation.ratio <= 1
    assert all(size >= 0 for size in stats.values())


@pytest.mark.parametrize("kind", ["free", "alloc", "unreserved", "live_set"])
def test_history_is_not_called_complete(kind: str) -> None:
    assert load(sound()).history_complete() is True
    plain = sound()
    SAID[kind](plain)
    assert load(plain).history_complete() is False


def test_second_segment_at_an_address_is_left_out() -> None:
    plain = sound()
    plain["segments"].append(copy.deepcopy(plain["segments"][0]))
    snap = load(plain)
    assert [flaw.kind for flaw in snap.flaws] == ["segment_overlap"]
    assert snap.memory_stats()["reserved_bytes.all.current"] == 2 * MIB
    plain["segments"][1]["device"] = 1
    flaws = load(plain).flaws
    assert [(flaw.kind, flaw.device) for flaw in flaws] == [("segment_shared", 1)]


def test_empty_segment_hides_no_overlap() -> None:
    plain = sound()
    first = plain["segments"][0]
    sums = ("total_size", "allocated_size", "active_size", "requested_size")
    empty = {**first, **dict.fromkeys(sums, 0), "blocks": []}
    plain["segments"].append({**empty, "address": first["address"] + 512})
    behind = first["address"] + first["total_size"] - 512
    rest = {"address": behind, "size": 4096, "requested_size": 0, "state": "inactive"}
    plain["segments"].append(
        {**empty, "address": behind, "total_size": 4096, "blocks": [{**rest, "frames": []}]}
    )
    assert [flaw.kind for flaw in load(plain).flaws] == ["segment_overlap"]


def test_no_event_reaches_beyond_the_last_address() -> None:
    plain = sound()
    row = plain["device_traces"][0][0]
    last = {**row, "action": "alloc", "time_us": 9000, "addr": (1 << 64) - 512, "size": 512}
    plain["device_traces"][0] += [last, {**last, "size": 513}]
    with pytest.raises(neutracer.SnapshotError, match="beyond the last address"):
        load(plain)


def test_segment_goes_with_a_block_in_it() -> None:
    plain = sound()
    gone = {**plain["device_traces"][0][0], "action": "segment_free", "time_us": 5000}
    plain["device_traces"][0].append(gone)
    plain["segments"] = []
    assert "segment_free" in {flaw.kind for flaw in load(plain).flaws}


def test_flaws_travel_with_a_snapshot() -> None:
    plain = sound()
    SAID["block_outside"](plain)
    snap = load(plain)
    assert pickle.loads(pickle.dumps(snap)).flaws == snap.flaws


def test_clocks_may_disagree_a_little() -> None:
    plain = sound()
    plain["device_traces"][0][4]["time_us"] = 3990
    snap = load(plain)
    assert snap.flaws == ()
    assert list(snap.timeline().time_us) == [1000, 2000, 3000, 4000, 4000]


RECORDED = sorted(glob.glob(str(DATA / "**" / "*.pickle*"), recursive=True))


@pytest.mark.parametrize("file", RECORDED, ids=[Path(file).name for file in RECORDED])
def test_real_recordings_have_no_flaws(file: str) -> None:
    assert neutracer.load(file).flaws == ()


def test_what_is_seen_of_a_long_trace() -> None:
    """Of a long trace the last events are looked through for what lies where."""
    plain = sound()
    pair = plain["device_traces"][0][2:5]
    for row in pair:
        row["time_us"] = 3000
    plain["device_traces"][0] += pair * 100_000
    assert load(plain).flaws == ()
    late = {**pair[0], "addr": 4096 + 512}
    plain["device_traces"][0].append(late)
    assert "alloc" in {flaw.kind for flaw in load(plain).flaws}
