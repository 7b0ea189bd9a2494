# SPDX-License-Identifier: Apache-2.0
"""`diff`: what one snapshot holds that another does not."""

from __future__ import annotations

import json
import os
import pickle

import pytest
from bundle import DATA, snapshot
from small_snapshots import BASE, block, dumped, segment, two_devices
from two_states import AFTER, BEFORE, MIB, state

import neutracer
from neutracer import diff
from neutracer.leak.diff import size_class


def test_each_stack_is_told_apart() -> None:
    report = diff(state(BEFORE), state(AFTER))
    kinds = {one.place.line: one.kind for one in report.by_stack if one.place}
    assert kinds == {10: "same", 20: "shrunk", 30: "grown", 40: "new"}
    back = diff(state(AFTER), state(BEFORE))
    assert [one.place.line for one in back.gone if one.place] == [40]
    assert [one.place.line for one in back.grown if one.place] == [20]
    assert report.new[0].bytes == 2 * MIB
    assert [(one.bytes, one.count) for one in report.grown] == [(MIB, 1)]


def test_differences_sum_to_allocated() -> None:
    report = diff(state(BEFORE), state(AFTER))
    assert report.allocated_bytes == -MIB
    assert report.reserved_bytes == 0
    for parts in (report.by_stack, report.by_line, report.by_category, report.by_size):
        assert sum(one.bytes for one in parts) == report.allocated_bytes
        assert sum(one.after_bytes for one in parts) == report.after_allocated_bytes
        assert sum(one.before_count for one in parts) == 4


def test_lines_put_callers_together() -> None:
    report = diff(state([(8 * MIB, 10, 3)]), state([(8 * MIB, 10, 77)]))
    assert [one.kind for one in report.by_stack] in (["new", "gone"], ["gone", "new"])
    assert [one.kind for one in report.by_line] == ["same"]
    assert report.findings == ()
    assert "as many bytes as before" in str(report)


def test_findings_tell_how_many_blocks() -> None:
    before = [(4 * MIB, 20, 3), (4 * MIB, 20, 3)]
    after = {
        "1 more block": [(4 * MIB, 20, 3), (4 * MIB, 20, 3), (4 * MIB, 20, 3)],
        "in as many blocks": [(4 * MIB, 20, 3), (6 * MIB, 20, 3)],
        "in fewer blocks": [(16 * MIB, 20, 3)],
    }
    for words, held in after.items():
        (finding,) = diff(state(before), state(held)).findings
        assert finding.evidence[0].text.startswith(f"{words}, ")
        assert all("neutracer.why_alive()" in note.text for note in finding.advice)
        assert len(finding.advice) == (finding.severity != "info")


def test_sizes_are_powers_of_two() -> None:
    assert [size_class(size) for size in (1, 512, 513, MIB, MIB + 1)] == [
        512,
        512,
        1024,
        MIB,
        2 * MIB,
    ]
    report = diff(state(BEFORE), state(AFTER))
    changed = {one.key: one.bytes for one in report.by_size if one.kind != "same"}
    assert changed["2 to 4 MiB"] == -4 * MIB
    assert changed["1 to 2 MiB"] == 2 * MIB


@pytest.mark.parametrize(
    ("nbytes", "severity"),
    [(MIB, "info"), (4 * MIB, "moderate"), (64 * MIB, "serious"), (128 * MIB, "serious")],
)
def test_severity_is_that_of_the_bytes(nbytes: int, severity: str) -> None:
    report = diff(state(BEFORE), state([*BEFORE, (nbytes, 50, 3)]))
    assert [finding.severity for finding in report.findings] == [severity]
    assert report.findings[0].bytes == nbytes


def test_same_snapshot_has_no_difference() -> None:
    snap = snapshot("train_resnet_healthy")
    report = diff(snap, snap)
    assert report.allocated_bytes == 0
    assert {one.kind for one in report.by_stack} == {"same"}
    assert report.findings == ()


def test_figures_are_those_of_pytorch() -> None:
    before, after = snapshot("train_resnet_healthy"), snapshot("train_resnet_late_zero_grad")
    report = diff(before, after)
    assert report.before_allocated_bytes == before.memory_stats()["allocated_bytes.all.current"]
    assert report.after_reserved_bytes == after.memory_stats()["reserved_bytes.all.current"]
    assert sum(one.bytes for one in report.by_stack) == report.allocated_bytes
    # The two programs differ in a caller's line: by line only the gradients do.
    assert [one.key for one in report.by_line if one.kind != "same"] == ["(no Python stack)"]
    assert [one.key for one in report.by_category if one.kind != "same"] == ["gradient"]
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["schema"] == "neutracer.diff/1"
    lines = str(report).splitlines()
    assert max(len(line) for line in lines if "neutracer plot" not in line) <= 100


def test_device_is_asked_for_where_several() -> None:
    snap = neutracer.load(dumped(two_devices()))
    with pytest.raises(ValueError, match="several devices"):
        diff(snap, snap)
    assert diff(snap, snap, device=2).device == 2
    with pytest.raises(ValueError, match="no device 7"):
        diff(snap, snap, device=7)


def test_ranks_on_their_own_devices_compare() -> None:
    def of_rank(rank: int, count: int) -> neutracer.Snapshot:
        blocks = [block(BASE + i * MIB, MIB, "active_allocated", MIB) for i in range(count)]
        own = {**segment(BASE, blocks), "device": rank}
        return neutracer.load(dumped({"segments": [own], "device_traces": [[], []]}))

    report = diff(of_rank(0, 2), of_rank(1, 3))
    assert (report.before_device, report.device) == (0, 1)
    assert (report.before_allocated_bytes, report.after_allocated_bytes) == (2 * MIB, 3 * MIB)
    assert [one.kind for one in report.by_line] == ["grown"]
    assert "cuda:0 → cuda:1" in str(report)
    # Asked for by its number, it is the same device in both.
    assert diff(of_rank(0, 2), of_rank(1, 3), device=1).before_allocated_bytes == 0


HEALTHY = DATA / "train_resnet_healthy.pickle.xz"
LATE = DATA / "train_resnet_late_zero_grad.pickle.xz"


def test_peaks_are_compared_as_well_as_ends() -> None:
    report = diff(HEALTHY, LATE)
    peaks = [neutracer.load(file).timeline().peak().bytes for file in (HEALTHY, LATE)]
    assert [report.before_peak_allocated_bytes, report.after_peak_allocated_bytes] == peaks
    assert report.peak_allocated_bytes == peaks[1] - peaks[0] > 10 * report.allocated_bytes
    first = report.findings[0]
    assert (first.kind, first.bytes, str(first.severity)) == (
        "peak_grown",
        report.peak_allocated_bytes,
        "moderate",
    )
    command = f"neutracer plot {os.path.relpath(HEALTHY)} {os.path.relpath(LATE)}"
    assert str(first.advice[-1].detail) in (command, f"neutracer plot {HEALTHY} {LATE}")
    assert sum(one.bytes for one in report.at_peak) == report.peak_allocated_bytes
    assert "peak_grown" not in {one.kind for one in diff(LATE, HEALTHY).findings}


def test_reports_are_compared_as_their_snapshots() -> None:
    reports = neutracer.report(HEALTHY), neutracer.report(LATE)
    assert diff(*reports).to_dict() == diff(HEALTHY, LATE).to_dict()
    copied = pickle.loads(pickle.dumps(reports[0]))
    with pytest.raises(ValueError, match="pass the snapshot itself"):
        diff(copied, reports[1])
    report = diff(state(BEFORE), state(BEFORE))
    assert report.peak_allocated_bytes is None
    assert "peak" not in str(report)
