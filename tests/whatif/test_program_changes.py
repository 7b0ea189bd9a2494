# SPDX-License-Identifier: Apache-2.0
"""`what_if` on programs that differ from the recorded one."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import pytest
from bundle import NAMES, snapshot

import neutracer


@pytest.mark.parametrize("name", NAMES)
def test_empty_cache_gives_back_what_was_reclaimable(name: str) -> None:
    snap = snapshot(name)
    if any(snap.segments["is_expandable"]):
        return
    report = neutracer.fragmentation_report(snap)
    private = any(pool.pool != (0, 0) for pool in report.pools)
    pending = sum(pool.pending_bytes for pool in report.pools)
    plan = neutracer.what_if(snap, empty_cache_after=[len(snap.events) - 1])
    settings = plan.recorded.settings
    found = next(each for each in plan.outcomes if each.settings == settings)
    after = report.reserved_bytes - report.reclaimable_bytes
    if private or pending:
        # What a private pool caches stays; what waits for a stream is waited for first.
        assert abs(found.reserved_bytes - after) <= report.external_bytes + pending
    else:
        assert found.reserved_bytes == after


def test_emptying_often_keeps_the_peak_down() -> None:
    snap = snapshot("frag_default")
    plan = neutracer.what_if(snap, "", capacity="2GiB", empty_cache_after=range(0, 2048, 100))
    assert plan.is_changed
    assert plan[""].peak_reserved_bytes < plan.recorded.peak_reserved_bytes // 2 + (64 << 20)
    assert plan[""].device_calls > plan.recorded.device_calls
    # Unsplit rests of blocks may differ, the requests don't.
    peaks = (plan[""].peak_allocated_bytes, plan.recorded.peak_allocated_bytes)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


def test_blocks_freed_at_once_never_pile_up() -> None:
    snap = snapshot("frag_default")
    everybody = sorted({event.stack[-1].name for event in snap.events if event.stack})
    plan = neutracer.what_if(snap, "", capacity="2GiB", free_at_once=everybody)
    largest = max(event.size for event in snap.events if event.action == "alloc")
    # One block at a time, rounded up by less than a MiB; the failed request comes last.
    oom = next(event.size for event in snap.events if event.action == "oom")
    assert plan[""].peak_allocated_bytes <= max(largest, oom) + (1 << 20)
    series = plan.series("")["allocated"]
    assert max(series[:-1]) <= largest + (1 << 20)


def test_one_line_is_chosen_by_its_place() -> None:
    snap = snapshot("frag_default")
    plan = neutracer.what_if(snap, "", capacity="2GiB", free_at_once=["train.py:155"])
    assert any("800 blocks of train.py:155" in note for note in plan.notes)
    # Before the request that fails in the recording, and goes through now.
    assert max(plan.series("")["allocated"][:-1]) < plan.recorded.peak_allocated_bytes
    assert plan[""].beyond_event == len(snap.events) - 1
    with pytest.raises(ValueError, match=r"train\.py:1' allocated nothing"):
        neutracer.what_if(snap, free_at_once=["train.py:1"])


def test_batch_scales_all_but_what_is_fixed() -> None:
    snap = snapshot("train_resnet_healthy")
    same = neutracer.what_if(snap, "")
    assert not same.is_changed
    twice, half = (neutracer.what_if(snap, batch=batch)[""] for batch in (2, 0.5))
    peak = same[""].peak_allocated_bytes
    assert 1.7 * peak < twice.peak_allocated_bytes < 2 * peak
    assert 0.5 * peak < half.peak_allocated_bytes < 0.65 * peak
    notes = neutracer.what_if(snap, batch=2).notes
    assert any("Assumed: parameters, gradients" in note for note in notes)


def test_batch_that_fits_no_more_is_found() -> None:
    snap = snapshot("train_resnet_healthy")
    plan = neutracer.what_if(snap, "expandable_segments:True", capacity="3GiB", batch=2)
    assert plan.recorded.fits
    assert not plan[""].fits


def test_recorded_settings_are_kept_in_changed_plans() -> None:
    snap = snapshot("whatif/7/frag_default")
    plan = neutracer.what_if(snap, "", capacity="2GiB", batch=0.5)
    assert list(plan) == ["", "expandable_segments:True"]
    assert plan["expandable_segments:True"] is plan.outcomes[1]
    reserved = plan.series("expandable_segments:True")["reserved"]
    assert max(reserved[:-1]) < plan.recorded.peak_reserved_bytes


@pytest.mark.parametrize("events", [[-1], [2375], [0, 5000]])
def test_events_outside_of_the_trace_are_refused(events: list[int]) -> None:
    wrong = max(events, key=abs)
    with pytest.raises(ValueError, match=f"no event {wrong}; the trace has 2375"):
        neutracer.what_if(snapshot("frag_default"), empty_cache_after=events)


@pytest.mark.parametrize("batch", [0, -1, float("nan"), float("inf"), 1e30])
def test_senseless_batches_are_refused(batch: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        neutracer.what_if(snapshot("frag_default"), batch=batch)


def test_no_blocks_accumulate_without_cycles() -> None:
    snap = snapshot("cycle_nodes")
    plan = neutracer.what_if(snap, no_cycles=["train.py:95"])
    # Two blocks of 1 MiB at a time, instead of 80 until a collection.
    assert plan.recorded.peak_allocated_bytes == 80 << 20
    assert plan[""].peak_allocated_bytes == 2 << 20
    assert plan[""].device_allocs == 1
    assert any("of 240 blocks freed by collections" in note for note in plan.notes)


def test_unrecognizable_collections_are_refused() -> None:
    with pytest.raises(ValueError, match=r"collector.*train\.py:95 \(240 blocks\)"):
        neutracer.what_if(snapshot("cycle_nodes"), no_cycles=True)
    with pytest.raises(ValueError, match=r"nothing was freed at train\.py:1 "):
        neutracer.what_if(snapshot("cycle_nodes"), no_cycles=["train.py:1"])


def test_frames_of_the_collector_are_believed() -> None:
    data = snapshot("cycle_nodes").to_dict()
    collector = {"name": "gc_collect_main", "filename": "gcmodule.c", "line": 0}
    for event in data["device_traces"][0]:
        if event["action"].startswith("free"):
            event["frames"] = [collector, *event["frames"]]
    snap = neutracer.load(pickle.dumps(data, 4))
    assert neutracer.what_if(snap, no_cycles=True)[""].peak_allocated_bytes == 2 << 20


def test_one_name_is_not_its_letters() -> None:
    with pytest.raises(ValueError, match="'no_such_function' allocated nothing"):
        neutracer.what_if(snapshot("frag_default"), free_at_once="no_such_function")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": "x"}, "batch must be a number of times the recorded batch, not str"),
        ({"batch": True}, "not bool"),
        (
            {"empty_cache_after": 5},
            "empty_cache_after must be a list of the numbers of events, not int",
        ),
        ({"empty_cache_after": ("x",)}, "empty_cache_after must be the numbers of events, not str"),
        ({"empty_cache_after": "12"}, "not str"),
        (
            {"free_at_once": None},
            "free_at_once must be a list of functions and lines, not NoneType",
        ),
        ({"free_at_once": [b"forward"]}, "free_at_once must be a text, not bytes"),
        ({"no_cycles": 1}, "no_cycles must be a list of functions and lines, or a bool, not int"),
        ({"no_cycles": [1]}, "no_cycles must be a text, not int"),
        ({"torch_version": 5}, "torch_version must be a text, not int"),
    ],
)
def test_changes_of_another_type_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        neutracer.what_if(snapshot("frag_default"), **changes)


def test_any_kind_of_number_is_taken() -> None:
    half = neutracer.what_if(snapshot("frag_default"), "", capacity="2GiB", batch=Fraction(1, 2))
    assert "the batch is 0.5 times as large" in half.notes[0]
    assert (
        half.outcomes
        == neutracer.what_if(snapshot("frag_default"), "", capacity="2GiB", batch=0.5).outcomes
    )


def test_settings_that_are_no_text_are_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        neutracer.what_if(snapshot("frag_default"), 3)  # type: ignore[arg-type]
