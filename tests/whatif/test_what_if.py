# SPDX-License-Identifier: Apache-2.0
"""`what_if`: the model held against what PyTorch really did under nine settings."""

from __future__ import annotations

import json
import lzma
import pickle
from typing import Any

import pytest
from bundle import DATA, NAMES, RESET_PEAKS, begun_late, expected, snapshot
from small_snapshots import one_program

import neutracer
from neutracer.whatif.replaying import CAUSES, RANGED, Replayer
from neutracer.whatif.settings import canonical, roundest
from neutracer.whatif.what_if import check_replay

MIB = 1 << 20
PROGRAMS = ("frag_default", "dyn_transformer_capped", "mixed_streams")
SETTINGS = [expected(f"whatif/{number}/frag_default")["conf"] for number in range(9)]

#: Our figures, and PyTorch's names of them.
FIGURES = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "segments": "segment.all.current",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "ooms": "num_ooms",
    "retries": "num_alloc_retries",
}


def cap_of(name: str) -> int | None:
    cap = expected(name).get("cap_mib")
    return cap * MIB if cap else None


def plan_of(program: str, number: int, capacity: int | None) -> neutracer.reports.WhatIfReport:
    return neutracer.what_if(snapshot(f"whatif/{number}/{program}"), *SETTINGS, capacity=capacity)


def misses(plan: neutracer.reports.WhatIfReport, program: str) -> list[tuple[Any, ...]]:
    """The figures whose range does not hold what PyTorch had."""
    found = []
    for number, settings in enumerate(SETTINGS):
        stats, outcome = expected(f"whatif/{number}/{program}")["stats"], plan[settings]
        for figure, name in FIGURES.items():
            low, high = outcome.range(figure)
            if stats[name] < low or (high is not None and stats[name] > high):
                found.append((settings, figure, stats[name], low, high))
    return found


def is_exact(outcome: neutracer.reports.Outcome, stats: dict[str, int]) -> bool:
    return all(getattr(outcome, figure) == stats[name] for figure, name in FIGURES.items())


@pytest.mark.parametrize("name", NAMES)
def test_own_settings_are_reproduced_exactly(name: str) -> None:
    report = check_replay(snapshot(name))
    assert report.check.is_exact, report.check.sentence
    assert report.check.value == 1.0
    assert report.check.addresses > 0
    assert "exactly" in str(report)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_figures_are_those_of_pytorch(name: str) -> None:
    recorded = neutracer.what_if(snapshot(name), "", capacity=cap_of(name)).recorded
    for figure, key in FIGURES.items():
        truth = expected(name)["stats"][key]
        low, high = recorded.range(figure)
        if name in RESET_PEAKS and figure == "peak_reserved_bytes":
            continue
        assert low <= truth, figure
        assert high is None or truth <= high, figure


@pytest.mark.parametrize("program", PROGRAMS)
def test_other_settings_do_what_pytorch_did(program: str) -> None:
    plan = plan_of(program, 0, cap_of(f"whatif/0/{program}"))
    assert plan.fidelity == 1.0
    assert misses(plan, program) == []


def test_program_without_ties_is_exact_everywhere() -> None:
    plan = plan_of("frag_default", 0, cap_of("whatif/0/frag_default"))
    for number, settings in enumerate(SETTINGS):
        stats = expected(f"whatif/{number}/frag_default")["stats"]
        assert is_exact(plan[settings], stats), settings
        if not plan[settings].causes:
            assert plan[settings].ranges == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_unknown_limit_only_widens_ranges(program: str) -> None:
    assert misses(plan_of(program, 0, None), program) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("program", PROGRAMS)
def test_from_every_setting_to_every_other(program: str, number: int) -> None:
    plan = plan_of(program, number, cap_of(f"whatif/{number}/{program}"))
    assert plan.fidelity == 1.0
    assert misses(plan, program) == []


def test_ranges_come_with_their_causes() -> None:
    plan = plan_of("dyn_transformer_capped", 0, cap_of("whatif/0/dyn_transformer_capped"))
    assert plan[""].causes == ("ties",)
    assert "beyond" in plan["expandable_segments:True"].causes
    timing = plan_of("mixed_streams", 0, None)[""]
    assert "timing" in timing.causes
    for outcome in (*plan.outcomes, timing):
        assert bool(outcome.causes) >= bool(outcome.ranges)
        assert set(outcome.causes) <= set(CAUSES)
        for figure in RANGED:
            low, high = outcome.range(figure)
            assert low <= getattr(outcome, figure)
            assert high is None or getattr(outcome, figure) <= high
    with pytest.raises(KeyError):
        timing.range("ratio")


def test_limit_is_noted_unless_given() -> None:
    guessed = neutracer.what_if(snapshot("frag_default"), "max_split_size_mb:64")
    assert "limit" in guessed["max_split_size_mb:64"].causes
    assert any("between 2,028 MiB and 2,120 MiB" in note for note in guessed.notes)
    given = neutracer.what_if(snapshot("frag_default"), "max_split_size_mb:64", capacity="2 GiB")
    assert given["max_split_size_mb:64"].causes == ()
    assert given["max_split_size_mb:64"].headroom_bytes == (2048 - 2020) * MIB
    assert not any("limit" in note for note in given.notes)


def test_numbers_are_rounded_to_round_ones() -> None:
    assert roundest(2028 * MIB, 2120 * MIB) == 2048 * MIB
    assert roundest(5, 5) == 5
    assert roundest(1, 1 << 40) == 1 << 40
    assert roundest(3, 6) == 4


def test_settings_are_found_however_spelt() -> None:
    plan = neutracer.what_if(
        snapshot("frag_default"), "garbage_collection_threshold:0.80 , max_split_size_mb:128"
    )
    outcome = plan["max_split_size_mb:128,garbage_collection_threshold:0.8"]
    assert outcome is plan[outcome.settings]
    assert outcome.settings == canonical(outcome.settings)
    assert list(plan) == ["", outcome.settings]
    assert len(plan) == 2
    with pytest.raises(KeyError):
        plan["max_split_size_mb:256"]


def test_capacity_says_whether_it_fits() -> None:
    snap = snapshot("train_resnet_healthy")
    enough = neutracer.what_if(snap, "", capacity="1900MiB").recorded
    assert enough.fits
    assert enough.stopped_event is None
    short = neutracer.what_if(snap, "", capacity="1400MiB").recorded
    assert not short.fits
    assert short.stopped_event is not None
    assert short.stopped_event > 0
    assert short.peak_reserved_bytes <= 1400 * MIB
    # Less than what was there before the trace began.
    tiny = neutracer.what_if(snap, "", capacity="100MiB").recorded
    assert not tiny.fits
    for figure in RANGED:
        low, high = tiny.range(figure)
        assert low <= getattr(tiny, figure) <= (getattr(tiny, figure) if high is None else high)


def test_failures_under_a_setting_are_found() -> None:
    plan = neutracer.what_if(
        snapshot("train_resnet_healthy"), "roundup_power2_divisions:2", capacity="1900MiB"
    )
    finding = plan.findings[0]
    assert (finding.kind, finding.severity) == ("out_of_memory", "severe")
    assert "roundup_power2_divisions:2" in finding.message


def test_series_hold_every_event() -> None:
    snap = snapshot("frag_default")
    plan = neutracer.what_if(snap, "expandable_segments:True", capacity="2GiB")
    for settings in ("", "expandable_segments:True"):
        series, outcome = plan.series(settings), plan[settings]
        assert {len(column) for column in series.values()} == {len(snap.events)}
        assert max(series["reserved"]) == outcome.peak_reserved_bytes
        assert series["reserved"][-1] == outcome.reserved_bytes
        assert series["device_allocs"][-1] == outcome.device_allocs
        assert series["ooms"][-1] == outcome.ooms
    timeline = snap.timeline()
    recorded = plan.series("")
    for event in range(0, len(timeline) - 1, 97):
        assert recorded["allocated"][event] == timeline.allocated[event]


def test_threads_share_one_program() -> None:
    replayer = Replayer(snapshot("whatif/0/mixed_streams"), 0)
    alone = [replayer.outcome(settings) for settings in SETTINGS]
    together = replayer.map(replayer.outcome, SETTINGS * 3)
    assert together == alone * 3


def test_failure_in_one_thread_ends_all() -> None:
    replayer = Replayer(snapshot("frag_default"), 0)

    def work(number: int) -> int:
        if number == 3:
            raise OverflowError("three")
        return replayer.quick("").segments

    with pytest.raises(OverflowError):
        replayer.map(work, range(8))
    assert replayer.map(replayer.quick, [""])[0].segments == 18


@pytest.mark.parametrize("part", [1, 3, 5])
def test_ring_that_wrapped_is_told_and_replayed(part: int) -> None:
    late = begun_late("leak_list", len(snapshot("leak_list").events) * part // 8)
    plan = neutracer.what_if(late, "expandable_segments:True")
    assert late.history_complete() is False
    assert any("before the first event" in note for note in plan.notes)
    stats = expected("leak_list")["stats"]
    low, high = plan.recorded.range("reserved_bytes")
    assert low <= stats["reserved_bytes.all.current"]
    assert high is None or stats["reserved_bytes.all.current"] <= high
    assert 0.9 < plan.fidelity <= 1.0


def test_overflow_that_pytorch_tells_is_told() -> None:
    plain = snapshot("frag_default").to_dict()
    plain["allocator_settings"] = {
        **plain.get("allocator_settings", {}),
        "trace_alloc_overflowed": True,
    }
    plan = neutracer.what_if(pickle.dumps(plain), "")
    assert any("wrapped" in note for note in plan.notes)


def test_difference_is_told_where_there_is_one() -> None:
    plain = snapshot("frag_default").to_dict()
    # The file says that other rules were in force than those that it was made by.
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 * MIB}
    plain["allocator_settings"] = {**plain.get("allocator_settings", {}), **conf}
    report = check_replay(pickle.dumps(plain))
    assert not report.check.is_exact
    assert 0 < report.check.value < 1
    assert report.check.first_event is not None
    assert "first differs at event" in report.check.sentence


def test_malformed_settings_have_a_position() -> None:
    with pytest.raises(neutracer.SettingsError) as caught:
        neutracer.what_if(snapshot("frag_default"), "max_split_size_mb:128,splendid:True")
    assert caught.value.position == len("max_split_size_mb:128,")
    assert "expandable_segments" in str(caught.value)
    with pytest.raises(neutracer.SettingsError) as caught:
        neutracer.what_if(snapshot("frag_default"), "backend:cudaMallocAsync")
    assert "native" in str(caught.value)


def test_half_a_character_is_refused() -> None:
    for settings in ("max_split_size_mb:6\ud800", "\udc80"):
        with pytest.raises(neutracer.SettingsError, match="half of a character") as caught:
            neutracer.what_if(snapshot("frag_default"), settings)
        assert caught.value.position == len(settings) - 1


def test_mapped_memory_bounds_the_limit() -> None:
    replayer = Replayer(snapshot("whatif/7/frag_default"), 0)
    peak, cap = 680 * MIB, cap_of("whatif/7/frag_default")
    assert cap is not None
    # What is mapped may be above the limit by less than a page.
    assert replayer.facts["limit_low"] == peak - 20 * MIB
    assert replayer.facts["limit_low"] <= cap <= replayer.facts["limit_high"]
    assert replayer.limits[0] == cap


def test_share_of_a_device_needs_its_size() -> None:
    snap = snapshot("train_resnet_healthy")
    with pytest.raises(ValueError, match="capacity"):
        neutracer.what_if(snap, "per_process_memory_fraction:0.5")
    half = neutracer.what_if(snap, "per_process_memory_fraction:0.5", capacity="3GiB")
    assert half.recorded.fits
    assert not half["per_process_memory_fraction:0.5"].fits


def test_nothing_to_replay_is_refused() -> None:
    empty = {**one_program(), "device_traces": [[]]}
    with pytest.raises(ValueError, match="no history"):
        neutracer.what_if(pickle.dumps(empty), "")
    other = one_program()
    other["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    with pytest.raises(ValueError, match="another allocator"):
        neutracer.what_if(pickle.dumps(other), "")
    with pytest.raises(ValueError, match="above 0"):
        neutracer.what_if(snapshot("frag_default"), "", capacity=0)
    with pytest.raises(ValueError, match="at most 2\\^60"):
        neutracer.what_if(snapshot("frag_default"), "", capacity=1 << 64)


def test_several_devices_need_a_choice() -> None:
    one = one_program()
    second = [{**segment, "device": 1} for segment in one["segments"]]
    several = {
        **one,
        "segments": one["segments"] + second,
        "device_traces": [one["device_traces"][0], one["device_traces"][0]],
    }
    with pytest.raises(ValueError, match="several devices"):
        neutracer.what_if(pickle.dumps(several), "")
    assert neutracer.what_if(pickle.dumps(several), "", device=1).device == 1


@pytest.mark.parametrize("name", ["frag_default", "whatif/0/dyn_transformer_capped"])
def test_report_is_one_screen_and_plain_data(name: str) -> None:
    plan = neutracer.what_if(snapshot(name), *SETTINGS)
    lines = str(plan).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    plain = plan.to_dict()
    assert plain["schema"] == "neutracer.what_if/1"
    assert plain["fidelity"] == 1.0
    assert json.loads(json.dumps(plain)) == plain
    assert "_replayer" not in plain
    assert "expandable_segments:True" in plan._repr_html_()


def test_findings_note_an_inexact_replay() -> None:
    trace = pickle.loads(lzma.decompress((DATA / "frag_default.pickle.xz").read_bytes()))
    del trace["device_traces"][0][300:340]
    del trace["device_traces"][0][900:905]
    plan = neutracer.what_if(neutracer.load(pickle.dumps(trace)), "expandable_segments:True")
    assert plan.fidelity < 1.0
    (finding,) = (each for each in plan.findings if each.kind == "saves_memory")
    assert "not exact" in str(finding.evidence[0])


def test_segments_without_pools_are_told() -> None:
    # Its events have no pools, and captured graphs have their own.
    notes = " ".join(check_replay(snapshot("cuda_graph_pool")).notes)
    facts = Replayer(snapshot("cuda_graph_pool"), 0).facts
    assert ("do not name their pool" in notes) == (facts["segments_without_pool"] > 0)
    assert "pool" not in " ".join(check_replay(snapshot("frag_default")).notes)


def test_recorded_figures_are_those_of_the_recording() -> None:
    # The orders of addresses that are tried give others.
    for number in range(9):
        name = f"whatif/{number}/dyn_transformer_capped"
        plan = neutracer.what_if(snapshot(name), "")
        assert plan.fidelity == 1.0
        assert is_exact(plan.recorded, expected(name)["stats"])
