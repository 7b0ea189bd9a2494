# SPDX-License-Identifier: Apache-2.0
"""load(events=) and load(seconds=): the figures of a part are the whole trace's there."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA, NAMES, begun_late, snapshot
from small_snapshots import BASE, dumped, event, one_program, two_devices

import neutracer
from neutracer.trace.stacks import NONE

METRICS = ("allocated", "active", "reserved", "requested")
SEGMENTS = ("address", "total_size", "stream", "is_expandable")
BLOCKS = ("address", "size", "requested_size", "state")
FRAG = DATA / "frag_default.pickle.xz"


def parts(count: int, seed: str) -> list[tuple[int, int]]:
    """Some ranges: the ends, one event, and random ones."""
    chosen = random.Random(seed)
    free = [sorted(chosen.sample(range(count + 1), 2)) for _ in range(3)]
    return [(0, count), (count - 1, count), (0, 1), *((low, high) for low, high in free)]


def stacks_of(snap: neutracer.Snapshot, ids: Iterable[int]) -> list[Any]:
    """Stacks spelt out: a part has numbers of its own for them."""
    return [None if number == NONE else snap.stacks[number] for number in ids]


def check_equal(part: neutracer.Snapshot, whole: neutracer.Snapshot, first: int, end: int) -> None:
    """Series, layouts, sizes, stacks and what lived before."""
    truth, found = whole.timeline(), part.timeline()
    assert len(found) == end - first
    for metric in METRICS:
        assert getattr(found, metric).tolist() == getattr(truth, metric)[first:end].tolist()
    for at in (-1, (end - first) // 2, end - first - 1):
        then, now = truth.at(first + at), found.at(at)
        tables = [(then.segments, now.segments, SEGMENTS), (then.blocks, now.blocks, BLOCKS)]
        for expected, got, columns in tables:
            for column in columns:
                assert list(got[column]) == list(expected[column]), (at, column)
            assert stacks_of(part, got["stack"]) == stacks_of(whole, expected["stack"])
    for column in ("action", "addr", "size", "time_us", "user_metadata"):
        assert list(part.events[column]) == list(whole.events[column][first:end]), column
    assert stacks_of(part, part.events["stack"]) == stacks_of(
        whole, whole.events["stack"][first:end]
    )


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_a_part_are_those_of_the_whole(name: str) -> None:
    whole = snapshot(name)
    count = len(whole.events)
    for first, end in parts(count, name):
        if whole.devices == (0,) and count:
            part = neutracer.load(DATA / f"{name}.pickle.xz", events=(first, end))
            check_equal(part, whole, first, end)


@pytest.mark.parametrize("name", ["multi_stream", "frag_default", "metadata"])
def test_part_of_a_ring_that_wrapped_says_what_is_unknown(name: str) -> None:
    count = len(snapshot(name).events)
    late = begun_late(name, count // 3)
    for first, end in parts(len(late.events), name):
        part = neutracer.load(late.to_bytes(), events=(first, end))
        check_equal(part, late, first, end)
        known = part.window.parts[0]
        lost = [b for b in late.timeline().at(first - 1).blocks if b.state != "inactive"]
        nobody = [b.size for b in lost if not b.stack]
        assert (known.unknown_count, known.unknown_bytes) == (len(nobody), sum(nobody))
        assert known.slack_bytes == late.timeline().facts["slack_bound"]
        text = str(neutracer.report(part))
        assert ("without a known stack" in text) == bool(nobody)


def test_part_is_told_everywhere() -> None:
    part = neutracer.load(FRAG, events=slice(-100, None))
    assert repr(part).endswith("100 events, only events 2,275 to 2,374 of 2,375>")
    assert part.history_complete() is False
    told = neutracer.report(part)
    assert told.window == "events 2,275 to 2,374 of 2,375"
    assert [finding.kind for finding in told.findings].count("window") == 1
    assert "window" in [finding.kind for finding in neutracer.explain(part).findings]
    assert str(part.window) in str(neutracer.fragmentation_report(part))


def test_part_can_be_pickled_and_saved(tmp_path: Path) -> None:
    part = neutracer.load(FRAG, events=(500, 700))
    again = pickle.loads(pickle.dumps(part))
    assert again.window == part.window
    part.save(tmp_path / "part.pickle")
    for copy in (again, neutracer.load(tmp_path / "part.pickle")):
        check_equal(copy, snapshot("frag_default"), 500, 700)


def test_part_does_not_hold_the_rest() -> None:
    whole = neutracer.load(FRAG)
    part = neutracer.load(FRAG, events=(1000, 1010))
    assert len(part.to_bytes()) < len(whole.to_bytes()) / 4
    assert len(part.strings) <= len(whole.strings)


def test_seconds_are_since_the_first_event_of_all_devices() -> None:
    program = two_devices()
    for entry in program["device_traces"][2]:
        entry["time_us"] += 2_000_000
    data = dumped(program)
    part = neutracer.load(data, seconds=(0.00002, 2.00002))
    assert [part.trace_length(device) for device in (0, 1, 2)] == [3, 0, 2]
    assert part.timeline(2).allocated.tolist() == [0, 4 << 20]
    assert str(part.window) == "cuda:0 events 2 to 4 of 5; cuda:2 events 0 to 1 of 5"
    for far in (1e305, float("inf")):
        whole = neutracer.load(data, seconds=(-far, far))
        assert len(whole.events) == len(neutracer.load(data).events)
    late = neutracer.load(data, seconds=(1, None))
    assert (late.trace_length(0), late.trace_length(2)) == (0, 5)
    only = neutracer.load(data, seconds=(None, 0.00001), device=0)
    assert only.devices == (0,)
    assert only.trace_length(0) == 1


def test_what_a_sidecar_tells_is_of_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "snap.pickle"
    path.write_bytes(dumped(one_program()))
    (tmp_path / "snap.json").write_text(json.dumps({"tensors": {"0": {"parameter": [BASE]}}}))
    assert neutracer.load(path, events=(1, 5)).beside.tensors == {0: {BASE: "parameter"}}
    assert neutracer.load(path, events=(1, 3)).beside.tensors == {}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"events": (0, 9), "device": 0}, "not among"),
        ({"events": range(0, 4, 2), "device": 0}, "step of 1"),
        ({"events": slice(9, 12), "device": 0}, "there are no events 9:12; the trace has 5"),
        ({"events": (0, 2)}, "several devices"),
        ({"events": (0, 2), "seconds": (0, 1)}, "one of events, seconds and phase"),
        ({"seconds": (5, 6)}, "no events in these seconds; the trace lasts 40 us"),
        ({"seconds": (2, 1)}, "before they begin"),
        ({"seconds": (float("nan"), None)}, "seconds must be two numbers, not nan"),
        ({"seconds": (float("inf"), None)}, "no events in these seconds"),
        ({"seconds": (0, 1), "device": 7}, "no device 7"),
    ],
)
def test_parts_that_are_none_are_refused(asked: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neutracer.load(dumped(two_devices()), **asked)


def test_seconds_need_times() -> None:
    program = one_program()
    program["device_traces"][0] = [event("alloc", BASE, 512)]
    del program["device_traces"][0][0]["time_us"]
    with pytest.raises(ValueError, match="no times: use events="):
        neutracer.load(dumped(program), seconds=(0, 1))
    with pytest.raises(TypeError, match="two numbers"):
        neutracer.load(dumped(program), seconds=3)


def test_commands_read_a_part(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "neutracer", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "events 2,275 to 2,374 of 2,375" in run("report", str(FRAG), "--events=-100:")
    assert "events 0 to 619 of" in run("report", str(FRAG), "--seconds", ":0.02")
    run("view", str(FRAG), "-o", "part.html", "--events", "1000:1200")
    assert "events 1,000 to 1,199 of 2,375" in (tmp_path / "part.html").read_text()


# Traces that begin late, as those of a ring that wrapped, against the whole ones.


def cuts(name: str) -> list[int]:
    count = len(snapshot(name).events)
    return sorted({count * part // 8 for part in range(1, 8, 2)} - {0})


@pytest.mark.parametrize("name", NAMES)
def test_late_series_equal_whole_ones(name: str) -> None:
    whole = snapshot(name).timeline()
    for first in cuts(name):
        late = begun_late(name, first).timeline()
        slack = late.facts["slack_bound"]
        assert late.facts["unmatched"] == 0
        for metric in METRICS:
            truth = list(getattr(whole, metric)[first:])
            found = list(getattr(late, metric))
            most = slack if metric in ("allocated", "active") else 0
            assert len(found) == len(truth)
            gaps = [a - b for a, b in zip(truth, found, strict=True)]
            assert min(gaps) >= 0, (first, metric)
            assert max(gaps) <= most, (first, metric)


@pytest.mark.parametrize("name", NAMES)
def test_late_start_is_the_state_then(name: str) -> None:
    whole = snapshot(name).timeline()
    for first in cuts(name):
        late = begun_late(name, first).timeline()
        then, start = whole.at(first - 1), late.at(-1)
        assert list(start.segments["address"]) == list(then.segments["address"])
        assert list(start.segments["total_size"]) == list(then.segments["total_size"])
        if late.facts["slack_bound"] == 0:
            for column in ("address", "size", "state"):
                assert list(start.blocks[column]) == list(then.blocks[column]), column
        active = [row for row in then.blocks if row.state != "inactive"]
        assert late.facts["preexisting"] == len(active)
