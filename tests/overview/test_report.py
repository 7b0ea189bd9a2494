# SPDX-License-Identifier: Apache-2.0
"""The overview's findings: failures as `explain` puts them, growth as `leak_trend` does."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import pytest
from bundle import DATA, NAMES, OOMS, snapshot
from oom_snapshots import MIB, Recording, checkered

import neutracer
from neutracer.overview import OverviewReport, overview, totals_table
from neutracer.render.report import Finding
from neutracer.trace.beside import DeviceRoom

FAILED = [name for name in NAMES if any(a == "oom" for a in snapshot(name).events["action"])]
TRENDS = {"leak_list": "leak", "create_graph_leak": "leak"}


def of_file(name: str) -> OverviewReport:
    return overview(snapshot(name), str(DATA / f"{name}.pickle.xz"))


def failures(report: OverviewReport) -> list[Finding]:
    return [one for one in report.findings if one.kind == "out_of_memory"]


@pytest.mark.parametrize("name", FAILED + OOMS)
def test_failures_have_the_explained_cause(name: str) -> None:
    path = DATA / f"{name}.pickle.xz"
    why = neutracer.explain(path)
    found = next(one for one in failures(of_file(name)) if one.event == why.event)
    assert why.main is not None
    assert found.bytes == why.request_bytes
    assert found.message.startswith(f"out of memory: {why.main.message}")
    assert found.advice == (*why.main.advice, found.advice[-1])
    assert str(found.advice[-1]) == f"more: neutracer explain {path}"


def test_each_place_of_failure_is_told() -> None:
    recording = checkered()
    first = recording.oom(60, device_free=30)
    recording.oom(40, device_free=30)
    second = recording.oom(70, device_free=30, stack="cache")
    found = failures(overview(neutracer.load(recording.dumped())))
    why = "fragmentation: 100 MiB are free inside, no hole above 10 MiB"
    assert {one.event: one.message for one in found} == {
        first: f"out of memory: {why}, 2 times from one place",
        second: f"out of memory: {why}",
    }
    said = {one.event: one.evidence[0].text for one in found}
    assert said == {first: "60 MiB requested by", second: "70 MiB requested by"}
    assert all("more:" not in str(note) for one in found for note in one.advice)


def test_earlier_failure_is_pointed_at(tmp_path) -> None:
    recording = checkered()
    first = recording.oom(60, device_free=30)
    recording.oom(40, device_free=30)
    path = tmp_path / "oom.pickle"
    path.write_bytes(recording.dumped())
    (found,) = failures(overview(neutracer.load(path), str(path)))
    assert str(found.advice[-1]) == f"more: neutracer explain {path} --event {first}"


@pytest.mark.parametrize("name", [name for name in NAMES if "/" not in name])
def test_growth_is_told_where_there_is_any(name: str) -> None:
    kinds = {"leak", "cycle_garbage", "cache_growth", "fragmentation_growth", "non_torch_growth"}
    found = [one for one in of_file(name).findings if one.kind in kinds]
    assert [one.kind for one in found] == ([TRENDS[name]] if name in TRENDS else [])


def test_growth_names_line_and_question() -> None:
    found = next(one for one in of_file("leak_list").findings if one.kind == "leak")
    assert any(note.place is not None and note.place.line == 120 for note in found.evidence)
    path = DATA / "leak_list.pickle.xz"
    assert str(found.advice[-1]) == f'more: neutracer.leak_trend("{path}")'


def test_work_grows_with_the_number_of_devices_and_not_its_square() -> None:
    recording = checkered()
    recording.oom(60, device_free=30)
    one = pickle.loads(recording.dumped())

    def calls(devices: int) -> int:
        several = {**one, "device_traces": one["device_traces"] * devices}
        snap = neutracer.load(pickle.dumps(several))
        made = [0]
        sys.setprofile(lambda *args: made.__setitem__(0, made[0] + 1))
        try:
            overview(snap)
        finally:
            sys.setprofile(None)
        return made[0]

    calls(1)  # Imports.
    few, more, most = map(calls, (10, 20, 40))
    assert most - more < 2.2 * (more - few)


def test_findings_of_several_devices_name_theirs(tmp_path, snapshot_path) -> None:
    path = tmp_path / "two devices.pickle"
    both = [
        pickle.loads(snapshot_path(name).read_bytes())
        for name in ("frag_default", "weight_streaming")
    ]
    for segment in both[1]["segments"]:
        segment["device"] = 1
    both[0]["segments"] += both[1]["segments"]
    both[0]["device_traces"] = [part["device_traces"][0] for part in both]
    path.write_bytes(pickle.dumps(both[0]))
    report = overview(neutracer.load(path), str(path))
    assert {one.message[:8] for one in report.findings} == {"cuda:0: ", "cuda:1: "}
    (failed,) = failures(report)
    assert str(failed.advice[-1]) == f"more: neutracer explain '{path}' --device 0"


def test_devices_that_were_never_used_are_left_out(snapshot_path) -> None:
    file = pickle.loads(snapshot_path("frag_default").read_bytes())
    taken = dict(file["device_traces"][0][0], action="snapshot", addr=0, size=0, frames=[])
    file["device_traces"].append([taken])
    assert neutracer.load(pickle.dumps(file)).devices == (0,)
    one = overview(neutracer.load(pickle.dumps(file)))
    assert [entry.device for entry in one.devices] == [0]
    assert "1 device" in str(one)
    assert "cuda:1" not in str(one)
    asked = overview(neutracer.load(pickle.dumps(file)), device=1)
    assert [entry.device for entry in asked.devices] == [1]
    # Where no device was used, all are told.
    file["segments"], file["device_traces"] = [], [[taken], [taken]]
    snap = neutracer.load(pickle.dumps(file))
    assert [entry.device for entry in overview(snap).devices] == list(snap.devices)


def test_no_peak_is_told_without_history(tmp_path, snapshot_path) -> None:
    plain = pickle.loads(snapshot_path("frag_default").read_bytes())
    plain["device_traces"] = [[] for _ in plain["device_traces"]]
    report = str(overview(neutracer.load(pickle.dumps(plain))))
    assert "406.0 MiB" in report
    assert "Who holds it now" in report
    assert "peak" not in report
    assert "none: start one with neutracer.record()" in report


def test_device_without_history_among_others_is_named(snapshot_path) -> None:
    plain = pickle.loads(snapshot_path("train_resnet_healthy").read_bytes())
    there = [segment | {"address": segment["address"] + (1 << 44)} for segment in plain["segments"]]
    for segment in there:
        segment["device"] = 1
        segment["blocks"] = [
            {**one, "address": one["address"] + (1 << 44)} for one in segment["blocks"]
        ]
    plain["segments"] += there
    plain["device_traces"].append([])
    report = overview(neutracer.load(pickle.dumps(plain)))
    assert "history of cuda:1   none" in str(report)
    assert report.not_looked_at["out_of_memory"] == "on cuda:1 no history was recorded"


def test_file_without_devices_has_nothing_to_look_at() -> None:
    plain = {"segments": [], "device_traces": [], "allocator_settings": {}}
    report = str(overview(neutracer.load(pickle.dumps(plain))))
    assert report.startswith("There is nothing to look at: no device has segments or events.")


def test_leak_that_failed_is_told_once() -> None:
    report = of_file("oom/hook_that_keeps_activations")
    assert [one.kind for one in report.findings if one.severity != "info"] == ["out_of_memory"]


def test_growth_beside_another_cause_is_told() -> None:
    kinds = [one.kind for one in of_file("oom/foreign_memory_beside_a_leak").findings]
    assert {"out_of_memory", "leak"} <= set(kinds)


@pytest.mark.parametrize("name", ["hook_that_keeps_activations", "losses_kept_with_their_graphs"])
def test_trend_ends_where_program_failed(name: str) -> None:
    # What the error freed on its way out would hide what had piled up.
    trend = neutracer.leak_trend(snapshot(f"oom/{name}"))
    assert trend.verdict == "leak"
    assert trend.growth[0].place.function == name


def test_loading_that_failed_is_no_leak() -> None:
    recording = Recording()
    for _ in range(200):
        recording.own(4, "keep")
    recording.oom(300, device_free=30)
    for address in list(recording.live):
        recording.free(address)
    trend = neutracer.leak_trend(neutracer.load(recording.dumped()))
    assert trend.verdict == "unknown"
    assert "loading" in trend.because


def test_program_that_went_on_is_looked_at_whole() -> None:
    recording = Recording()
    scratch = recording.segment(40)
    recording.oom(9000, device_free=30)
    for step in range(40):
        recording.metadata = f"step {step}"
        block = recording.alloc(scratch, 30)
        recording.own(8, "cache")
        recording.free(block)
    trend = neutracer.leak_trend(neutracer.load(recording.dumped()))
    assert (trend.verdict, round(trend.bytes_per_step)) == ("leak", 8 * MIB)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_totals_are_of_one_moment(name: str) -> None:
    (device,) = of_file(name).devices
    timeline = snapshot(name).timeline()
    peak, most = device.peak, device.reserved_peak
    at = peak["event"]
    moments = list(zip(timeline.allocated, timeline.reserved, strict=True))
    assert (peak["allocated_bytes"], peak["reserved_bytes"]) == moments[at]
    assert (most["allocated_bytes"], most["reserved_bytes"]) in moments[most["event"] :]
    for _, *figures, _ in totals_table(device).rows:
        allocated, reserved, unused = (float(one.number.replace(",", "")) for one in figures)
        assert unused == pytest.approx(100 * (1 - allocated / reserved), abs=0.2)


def test_report_that_found_nothing_says_so_and_what_it_did_not_look_at() -> None:
    report = of_file("train_resnet_healthy")
    looked_at = "Nothing wrong found. Looked at: fragmentation, failures, growth, the peak."
    assert " ".join(str(report).split()).startswith(f"{looked_at} Not looked at: garbage (")
    assert set(report.to_dict()["not_looked_at"]) == {"cycle_garbage", "non_torch"}
    # Memory of a CPU is all the process's own.
    cpu = replace(report.devices[0], device=-1)
    assert "growth, the peak. Not" in " ".join(
        str(replace(report, devices=(cpu,), not_looked_at={"cycle_garbage": "x"})).split()
    )
    for name in ("frag_default", "leak_list"):
        assert "Nothing wrong found" not in str(of_file(name))
        assert "cycle_garbage" in of_file(name).not_looked_at


def test_report_says_why_growth_was_not_looked_at() -> None:
    short = of_file("weight_streaming")
    assert "windows" in short.not_looked_at["leak"]
    assert f"growth ({short.not_looked_at['leak']})" in " ".join(str(short).split())
    plain = dict(snapshot("weight_streaming").to_dict(), device_traces=[[]])
    bare = overview(neutracer.load(pickle.dumps(plain)))
    assert {bare.not_looked_at[kind] for kind in ("leak", "out_of_memory")} == {
        "no history was recorded"
    }


def test_device_whose_figures_are_beside_the_file_was_looked_at() -> None:
    snap = neutracer.load(DATA / "train_resnet_healthy.pickle.xz")
    snap.beside = replace(snap.beside, rooms={0: DeviceRoom(80 << 30, 1.0, 1 << 30)})
    assert "non_torch" not in overview(snap).not_looked_at


def test_healthy_file_has_the_bill_at_its_peak() -> None:
    report = of_file("train_resnet_healthy")
    (device,) = report.devices
    plain = report.to_dict()["devices"][0]
    assert plain["bill_event"] == plain["peak"]["event"] == device.peak["event"]
    inside = sum(one["bytes"] for one in plain["bill"]["terms"])
    assert inside == plain["peak"]["reserved_bytes"]
    assert not device.bills_failure
    assert "The bill at the peak of allocated" in str(report)
    assert "Who holds" not in str(report)


def test_bill_of_a_failed_file_is_that_of_the_failure() -> None:
    report = of_file("frag_default")
    (device,) = report.devices
    why = neutracer.explain(DATA / "frag_default.pickle.xz")
    assert device.bills_failure
    assert (device.bill, device.bill_event) == (why.bill, why.event)
    assert "at the peak of allocated" not in str(report)


def test_findings_that_need_no_action_are_short() -> None:
    report = of_file("train_resnet_healthy")
    info = [one for one in report.findings if one.severity == "info" and one.advice]
    assert info
    for one in info:
        assert one.message in str(report)
        assert not any(note.text in str(report) for note in one.advice)
