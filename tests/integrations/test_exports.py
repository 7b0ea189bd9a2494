# SPDX-License-Identifier: Apache-2.0
"""What `export` writes, opened by the tools that it is for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from bundle import snapshot
from chromium import PROGRAM, Browser
from places import TESTS
from small_snapshots import BASE, MIB, dumped, event, one_program

import neutracer

LEAK = "leak_list"
SPEEDSCOPE = TESTS.parent / "build" / "integrations" / "node_modules" / "speedscope"

pytestmark = pytest.mark.filterwarnings("default")


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name}, which is not installed here")


def test_duckdb_answers_as_the_timeline_does(tmp_path: Path, monkeypatch: Any) -> None:
    duckdb = package("duckdb")
    monkeypatch.chdir(tmp_path)
    timeline = snapshot(LEAK).timeline()
    for what in ("allocations", "events", "bill"):
        neutracer.export(snapshot(LEAK), "parquet", f"{what}.parquet", what=what)
    peak = "SELECT event, allocated FROM 'events.parquet' ORDER BY allocated DESC, event LIMIT 1"
    assert duckdb.sql(peak).fetchall() == [(timeline.peak().event, timeline.peak().bytes)]
    held = (
        "SELECT place, sum(size)::BIGINT AS bytes FROM 'allocations.parquet' WHERE alloc_event <= "
        f"{timeline.peak().event} AND (free_event = -1 OR free_event > {timeline.peak().event}) "
        "GROUP BY place ORDER BY bytes DESC"
    )
    assert dict(duckdb.sql(held).fetchall()) == {
        one.key: one.bytes for one in timeline.holders(limit=None)
    }
    bill = neutracer.report(snapshot(LEAK)).devices[0].bill
    total = "SELECT sum(bytes)::BIGINT FROM 'bill.parquet'"
    assert duckdb.sql(total).fetchall() == [(bill.limit_bytes,)]


def packets(path: Path) -> list[Any]:
    trace = package("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace()
    trace.ParseFromString(path.read_bytes())
    return list(trace.packet)


def counted(path: Path, title: str) -> list[tuple[int, int]]:
    """(nanoseconds, value) of a counter's events."""
    found = packets(path)
    named = [p.track_descriptor for p in found if p.HasField("track_descriptor")]
    (track,) = (one for one in named if one.name == title)
    assert track.counter.Unit.Name(track.counter.unit) == "UNIT_SIZE_BYTES"
    events = [(p.timestamp, p.track_event) for p in found if p.HasField("track_event")]
    return [(at, one.counter_value) for at, one in events if one.track_uuid == track.uuid]


def test_perfetto_reads_counters_and_slices(tmp_path: Path) -> None:
    path = neutracer.export(snapshot(LEAK), "perfetto", tmp_path / "out.pftrace")
    timeline = snapshot(LEAK).timeline()
    for title, series in (("allocated", timeline.allocated), ("reserved", timeline.reserved)):
        peak = timeline.peak(title)
        rows = counted(path, title)
        assert (1000 * (peak.time_us or 0), peak.bytes) in rows
        assert (max(value for _, value in rows), rows[-1][1]) == (peak.bytes, series[-1])
    kinds = [
        (p.track_event.Type.Name(p.track_event.type), p.track_event.name)
        for p in packets(path)
        if p.HasField("track_event") and not p.track_event.HasField("counter_value")
    ]
    assert kinds[:2] == [("TYPE_SLICE_BEGIN", "step 0"), ("TYPE_SLICE_END", "")]
    assert len(kinds) == 2 * len(timeline.steps)


def test_perfetto_is_on_the_clock_of_the_profiler(torch: Any, tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("mark"):
        # The clock of the allocator's trace.
        time_us = time.time_ns() // 1000
    trace = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(trace))
    made = one_program()
    made["device_traces"][0] = [event("alloc", BASE, 4 * MIB, time_us)]
    path = neutracer.export(dumped(made), "perfetto", tmp_path / "out.pftrace", kineto=trace)
    (mark,) = (
        one
        for one in json.loads(trace.read_text())["traceEvents"]
        if one.get("name") == "mark" and one.get("ph") == "X"
    )
    ((time_ns, value),) = counted(path, "allocated")
    assert value == 4 * MIB
    assert mark["ts"] - 1 <= time_ns / 1000 <= mark["ts"] + mark["dur"]


@pytest.mark.skipif(not SPEEDSCOPE.exists(), reason="needs speedscope, which npm installs")
def test_speedscope_opens_its_files(tmp_path: Path) -> None:
    before, after = snapshot("train_resnet_healthy"), snapshot("train_resnet_late_zero_grad")
    made = {
        "peak": neutracer.export(snapshot(LEAK), "speedscope", tmp_path / "peak.json"),
        "churn": neutracer.export(
            snapshot(LEAK), "speedscope", tmp_path / "churn.json", what="churn"
        ),
        "grown (1/2)": neutracer.export(before, "speedscope", tmp_path / "diff.json", after=after),
    }
    release = SPEEDSCOPE / "dist" / "release"
    schema = json.loads((release / "file-format-schema.json").read_text())
    for path in made.values():
        package("jsonschema").validate(json.loads(path.read_text()), schema)
    if PROGRAM is None:
        pytest.skip("needs a Chromium to open them in")
    path = made["grown (1/2)"]
    with Browser(tmp_path / "profile") as browser:
        browser.open(release / "index.html")
        browser.choose("input[type=file]", path)
        browser.until("document.body.innerText.includes('grown (1/2)')")
