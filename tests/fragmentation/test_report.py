# SPDX-License-Identifier: Apache-2.0
"""`fragmentation_report`: figures against PyTorch's, findings against what is in the files."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import oom_snapshots
import pytest
from bundle import DATA, NAMES, expected, snapshot
from small_snapshots import BASE, MIB, block, dumped, one_program, segment

import neutracer
from neutracer._native import core
from neutracer.fragmentation.report import band, room_of
from neutracer.trace.beside import Beside, DeviceRoom

every_snapshot = pytest.mark.parametrize("name", NAMES)


def report(name):
    return neutracer.fragmentation_report(snapshot(name))


@every_snapshot
def test_report_figures_equal_those_of_pytorch(name):
    stats, found = expected(name)["stats"], report(name)
    for figure in ("reserved_bytes", "allocated_bytes", "active_bytes", "requested_bytes"):
        assert getattr(found, figure) == stats[f"{figure}.all.current"], figure
    reserved, allocated = found.reserved_bytes, found.allocated_bytes
    assert found.ratio == pytest.approx((reserved - allocated) / reserved)


@every_snapshot
def test_pools_segments_and_holes_add_up(name):
    found = report(name)
    assert sum(pool.reserved_bytes for pool in found.pools) == found.reserved_bytes
    assert sum(pool.allocated_bytes for pool in found.pools) == found.allocated_bytes
    free = found.reserved_bytes - found.active_bytes
    assert sum(hole.size for hole in found.holes) == free == found.external_bytes
    assert sum(segment.free_bytes for segment in found.segments) == free
    assert sum(segment.total_size for segment in found.segments) == found.reserved_bytes
    sizes = [hole.size for hole in found.holes]
    assert sizes == sorted(sizes, reverse=True)


@every_snapshot
def test_largest_request_fits_and_more_does_not(name):
    found = report(name)
    for pool in found.pools:
        if pool.largest_request:
            assert found.fits(pool.largest_request, pool.stream, pool.pool)
        if pool.kind == "large":
            too_much = max(pool.largest_hole, 1 << 20) + 1
            assert not found.fits(too_much, pool.stream, pool.pool)


@every_snapshot
def test_reclaimable_is_whole_free_segments(name):
    snap, found = snapshot(name), report(name)
    if any(snap.segments["is_expandable"]):
        return
    # empty_cache() waits for pending frees first.
    free = [
        segment.total_size
        for segment in snap.segments
        if segment.allocated_size == 0 and segment.segment_pool_id == (0, 0)
    ]
    assert found.reclaimable_bytes == sum(free)


def test_ratio_history_matches_pytorch_at_every_step():
    # The program printed PyTorch's own ratio after each of its steps.
    found = report("weight_streaming")
    steps = [step["frag"] for step in expected("weight_streaming")["series"] if "frag" in step]
    if not steps:
        steps = [
            (step["reserved"] - step["alloc"]) / step["reserved"]
            for step in expected("weight_streaming")["series"]
            if step.get("reserved")
        ]
    history = list(found.fragmentation_history)
    assert steps
    for ratio in steps:
        assert any(abs(ratio - ours) < 1e-9 for ours in history)
    assert found["max_fragmentation"] >= max(steps)
    assert found["max_fragmentation"] == max(history)
    assert found["avg_fragmentation"] == pytest.approx(sum(history) / len(history))
    assert found["current_fragmentation"] == found.ratio


def test_a_new_segment_is_half_a_call_and_no_moment_of_its_own():
    found = neutracer.fragmentation_report(neutracer.load(dumped(one_program())))
    # 4 of 20 MiB are in use, for one event 10; of the segment alone nothing ever is.
    assert found["max_fragmentation"] == pytest.approx(0.8)
    assert found.max_event == 1
    assert found["avg_fragmentation"] == pytest.approx((4 * 0.8 + 0.5) / 5)


def test_what_the_cache_holds_is_no_part_of_what_the_rest_is_judged_by():
    held = [
        block(BASE, 600 * MIB, "active_allocated", 600 * MIB),
        block(BASE + 600 * MIB, 200 * MIB),
    ]
    plain = {
        "segments": [
            segment(BASE, held),
            segment(BASE + (1 << 33), [block(BASE + (1 << 33), 1200 * MIB)]),
        ],
        "device_traces": [],
    }
    found = neutracer.fragmentation_report(neutracer.load(dumped(plain)))
    finding = next(one for one in found.findings if one.kind == "fragmentation")
    # A quarter of the 800 MiB that empty_cache() leaves, and a tenth of all.
    assert finding.severity == "moderate"
    assert finding.message.startswith("70.0 % of the 2,000 MiB reserved")


def test_a_share_of_little_memory_is_no_finding_where_the_device_is_unknown():
    held = [block(BASE, 3 * MIB, "active_allocated", 3 * MIB), block(BASE + 3 * MIB, 97 * MIB)]
    plain = {"segments": [segment(BASE, held)], "device_traces": []}
    (finding,) = neutracer.fragmentation_report(neutracer.load(dumped(plain))).findings
    assert (finding.kind, finding.severity) == ("fragmentation", "info")


def test_bands_are_the_usual_ones():
    words = [band(ratio) for ratio in (0.0, 0.149, 0.15, 0.299, 0.30, 0.40, 0.401, 1.0)]
    assert words == [
        "good", "good", "moderate", "moderate", "serious", "serious", "severe", "severe",
    ]  # fmt: skip


def test_cached_segments_at_peak_are_blamed_on_their_line():
    found = report("frag_default")
    peak = next(finding for finding in found.findings if finding.kind == "fragmentation_peak")
    assert peak.severity == "severe"
    place = peak.evidence[0].place
    assert (place.function, place.filename, place.line) == ("frag", "train.py", 159)
    assert any("expandable_segments:True" in note.text for note in peak.advice)


def test_advice_never_names_what_is_on():
    for name in ("whatif/7/frag_default", "whatif/8/frag_default"):
        assert snapshot(name).settings_in_force["expandable_segments"]
        found = report(name)
        texts = [note.text for finding in found.findings for note in finding.advice]
        assert not any("expandable_segments" in text for text in texts)


def test_advice_is_about_device_memory_only():
    texts = " ".join(str(report(name)) for name in NAMES)
    for knob in ("pin_memory", "num_workers", "DataLoader"):
        assert knob not in texts


def test_idle_cache_alarms_nobody():
    # A healthy training job between two steps: its cache will be used again.
    found = report("train_resnet_healthy")
    assert found.worst == "info"
    assert found.severity == "severe"


def test_bytes_that_no_cure_gives_back_alarm_nobody():
    # A healthy training: expandable segments would have reserved hardly less at its peak.
    found = neutracer.fragmentation_report(DATA / "categories" / "resnet50.snapshot.xz")
    assert found.ratio > 0.8
    assert found.max_fragmentation > 0.8
    assert found.worst == "info"


@pytest.mark.parametrize(
    ("gib", "fraction", "worst"), [(24, 1.0, "severe"), (80, 1.0, "info"), (80, 0.2, "severe")]
)
def test_unused_bytes_matter_beside_what_the_process_may_have(gib, fraction, worst):
    # The cure gives 1,348 MiB back: 5.5 % of 24 GiB, 1.6 % of 80 GiB, 8.2 % of a fifth of that.
    snap = neutracer.load(DATA / "frag_default.pickle.xz")
    room = DeviceRoom(gib << 30, fraction, 0)
    snap.beside = replace(snap.beside, rooms={0: room}, oom=None)
    found = neutracer.fragmentation_report(snap)
    assert found.worst == worst
    assert found.severity == "moderate"


def test_peak_is_blamed_where_all_of_it_is_still_cached_at_the_end():
    recording = oom_snapshots.Recording()
    for number in range(12):
        recording.free(recording.own(100 + 10 * number))
    found = neutracer.fragmentation_report(neutracer.load(recording.dumped()))
    assert found.reclaimable_bytes == found.reserved_bytes
    severities = {one.kind: one.severity for one in found.findings}
    assert severities == {"fragmentation_peak": "severe", "fragmentation": "info"}


def test_static_pool_is_named_and_not_blamed():
    import pickle

    segment = {
        "device": 0, "address": 1 << 40, "total_size": 8 << 30, "allocated_size": 8 << 30,
        "active_size": 8 << 30, "requested_size": 8 << 30, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": [
            {"address": 1 << 40, "size": 8 << 30, "requested_size": 8 << 30,
             "state": "active_allocated", "frames": []},
        ],
    }  # fmt: skip
    trace = [
        {"action": "segment_alloc", "addr": 1 << 40, "size": 8 << 30, "stream": 0},
        {"action": "alloc", "addr": 1 << 40, "size": 8 << 30, "stream": 0},
    ]
    trace.append({"action": "segment_alloc", "addr": 1 << 30, "size": 2 << 20, "stream": 0})
    for _ in range(100):
        for action in ("alloc", "free_requested", "free_completed"):
            trace.append({"action": action, "addr": 1 << 30, "size": 512, "stream": 0})
    trace.append({"action": "segment_free", "addr": 1 << 30, "size": 2 << 20, "stream": 0})
    found = neutracer.fragmentation_report(
        pickle.dumps({"segments": [segment], "device_traces": [trace]})
    )
    assert [finding.kind for finding in found.findings] == ["static_pool"]
    assert found.findings[0].severity == "info"
    assert found.findings[0].bytes == 8 << 30
    # cuBLAS keeps its workspaces: they are no pool of the program's.
    name = "at::cuda::setWorkspaceForHandle(cublasContext*, c10::cuda::CUDAStream)"
    trace[1]["frames"] = [{"name": name, "filename": "??", "line": 0}]
    found = neutracer.fragmentation_report(
        pickle.dumps({"segments": [segment], "device_traces": [trace]})
    )
    assert found.findings == ()


def test_report_reads_paths_and_is_one_screen():
    found = neutracer.fragmentation_report(DATA / "frag_default.pickle")
    lines = str(found).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@every_snapshot
def test_report_has_stable_json(name):
    import json

    plain = report(name).to_dict()
    assert plain["schema"] == "neutracer.fragmentation/1"
    assert json.loads(json.dumps(plain)) == plain
    assert "_fragment" not in plain


def test_fits_refuses_a_negative_size():
    with pytest.raises(ValueError, match="negative"):
        report("frag_default").fits(-1)


def test_what_fits_follows_the_rules_for_oversize_blocks():
    sizes = (1, 2, 3, 15, 30, 80, 100, 130)
    segments = [
        segment(BASE + (row << 33), [block(BASE + (row << 33), size * MIB)])
        for row, size in enumerate(sizes)
    ]
    plain = {
        "segments": segments,
        "device_traces": [],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,roundup_power2_divisions:4"
        },
    }
    snap = neutracer.load(dumped(plain))
    found, native = neutracer.fragmentation_report(snap), core.Fragment(snap.native, None, 0)
    answers = {
        nbytes: found.fits(nbytes)
        for nbytes in range(0, 140 * MIB, 77 * 512)
        for nbytes in (nbytes, nbytes + 1)
    }
    assert answers == {one: native.fits(0, (0, 0), 0, one) for one in answers}
    # 50 MiB are below the limit and the 80 MiB block above it; 70 MiB are above it too.
    assert [found.fits(size * MIB) for size in (28, 50, 70, 101, 131)] == [
        True, False, True, True, False,
    ]  # fmt: skip
    assert not found.fits(1 << 70)


def test_unknown_figure_is_a_key_error():
    with pytest.raises(KeyError):
        report("frag_default")["no_such_figure"]


def test_live_report_says_what_is_missing(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(neutracer.UnavailableError) as caught:
        neutracer.fragmentation_report()
    assert "torch" in caught.value.what


def waiting(states):
    """A snapshot of segments of 64 MiB, each one block in such a state."""
    size, segments = 64 << 20, []
    frames = [{"filename": "train.py", "line": 3, "name": "copy"}]
    for number, state in enumerate(states):
        at = {"address": (number + 1) * size, "frames": frames}
        is_live = state == "active_allocated"
        segments.append(
            {
                **{"device": 0, "total_size": size, "active_size": size, "requested_size": size},
                **{"allocated_size": size if is_live else 0, "stream": 7, **at},
                **{"segment_type": "large", "is_expandable": False},
                "blocks": [{"size": size, "requested_size": size, "state": state, **at}],
            }
        )
    return neutracer.load(pickle.dumps({"segments": segments, "device_traces": [[]]}, 4))


def test_blocks_that_wait_for_a_stream_are_named():
    snap = waiting(["active_pending_free"] * 3 + ["active_allocated"])
    found = {one.kind: one for one in neutracer.fragmentation_report(snap).findings}
    pending = found["pending_frees"]
    assert (pending.bytes, pending.severity) == (192 << 20, "severe")
    assert "3 blocks of 0x7" in pending.evidence[0].text
    assert pending.evidence[0].place.location == "train.py:3"
    # What waits will be free, and is no fragmentation.
    assert found["fragmentation"].severity == "info"


def test_few_blocks_that_wait_are_no_finding():
    snap = waiting(["active_pending_free"] + ["active_allocated"] * 11)
    assert "pending_frees" not in {
        one.kind for one in neutracer.fragmentation_report(snap).findings
    }


@pytest.mark.parametrize(
    ("raised", "device", "worst"),
    [(False, 0, "info"), (False, 1, "severe"), (True, 0, "severe"), (None, 0, "severe")],
)
def test_failures_that_a_library_caught_are_no_shortage(raised, device, worst):
    recording = oom_snapshots.Recording()
    for number in range(12):
        recording.free(recording.own(100 + 10 * number))
    recording.oom(64, device_free=0, stack="program")
    snap = neutracer.load(recording.dumped())
    oom = {"schema": "neutracer.oom/1", "device": device, "raised": raised}
    room = DeviceRoom(4 << 30, 1.0, 0)
    snap.beside = replace(snap.beside, rooms={0: room}, ooms=(oom,))
    assert neutracer.fragmentation_report(snap).worst == worst


class _LongTrace:
    """As much of a timeline as tells whether a process ran short."""

    def __init__(self, retries):
        self.facts = {"retries": retries, "oom_count": 0}

    def __len__(self):
        return 20_000

    def peak(self, _):
        return SimpleNamespace(bytes=1 << 30)


@pytest.mark.parametrize(("retries", "is_enough"), [(0, True), (2, True), (3, False)])
def test_cache_that_is_seldom_released_for_room_is_no_shortage(retries, is_enough):
    beside = Beside(rooms={0: DeviceRoom(4 << 30, 1.0, 0)})
    snap = SimpleNamespace(beside=beside, timeline=lambda _: _LongTrace(retries))
    assert room_of(snap, 0) == (4 << 30, is_enough)
