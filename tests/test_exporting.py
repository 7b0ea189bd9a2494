# SPDX-License-Identifier: Apache-2.0
"""`export`: what is written, read back; the figures are those of the timeline and the reports."""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA, snapshot
from hostile_names import HOSTILE_NAMES
from small_snapshots import MIB, dumped, event, one_program, two_devices

import neutracer
from neutracer import exporting
from neutracer.cli.main import main
from neutracer.exporting import CONTENTS, FORMATS, stack_text

LEAK = "leak_list"


def only_state() -> bytes:
    """A snapshot of a process that recorded no history."""
    return dumped({**one_program(), "device_traces": [[]]})


def phases() -> dict[str, Any]:
    """The small program with two phases of which neither is inside the other."""
    marks = [("a", "START", 1000), ("b", "START", 1010), ("a", "END", 1020), ("b", "END", 1040)]
    made = one_program()
    made["external_annotations"] = [
        {"stage": stage, "name": f"neutracer.phase: {name}", "device": 0, "time_us": time_us}
        for name, stage, time_us in marks
    ]
    made["device_traces"][0].append(event("oom", 0, 30 * MIB, 1050, device_free=5 * MIB))
    return made


# ---- tables ------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = neutracer.export(snapshot(LEAK), "sqlite", tmp_path / "out.sqlite")
    with sqlite3.connect(path) as opened:
        yield opened
    opened.close()


def asked(database: sqlite3.Connection, question: str) -> list[Any]:
    return database.execute(question).fetchall()


def test_sqlite_answers_as_the_timeline_does(database: sqlite3.Connection) -> None:
    snap = snapshot(LEAK)
    timeline = snap.timeline()
    assert asked(database, "SELECT max(allocated), max(reserved) FROM events") == [
        (timeline.peak().bytes, timeline.peak("reserved").bytes)
    ]
    stats = snap.memory_stats()
    alive = "SELECT sum(size), count(*) FROM allocations WHERE free_event = -1"
    assert asked(database, alive) == [
        (stats["allocated_bytes.all.current"], stats["allocation.all.current"])
    ]
    at = timeline.peak().event
    by_place = (
        "SELECT place, sum(size) AS bytes FROM allocations WHERE alloc_event <= ?1 AND "
        "(free_event = -1 OR free_event > ?1) GROUP BY place ORDER BY bytes DESC LIMIT 1"
    )
    (largest,) = timeline.holders(limit=1)
    assert database.execute(by_place, (at,)).fetchall() == [(largest.key, largest.bytes)]
    per_step = "SELECT step, max(allocated) FROM events WHERE step >= 0 GROUP BY step ORDER BY step"
    assert asked(database, per_step) == [
        (number, max(timeline.allocated[step.first : step.end]))
        for number, step in enumerate(timeline.steps)
    ]
    lived = "SELECT max(free_us - alloc_us) FROM allocations"
    assert asked(database, lived) == [(max(one or 0 for one in timeline.lifetimes_us()),)]
    churn = (
        "SELECT coalesce(frames, ''), sum(size) FROM allocations LEFT JOIN stacks USING (stack) "
        "WHERE alloc_event >= 0 GROUP BY stack"
    )
    assert dict(asked(database, churn)) == {
        stack_text(one.stack): one.bytes for one in timeline.churn()
    }


def test_sqlite_has_the_bill_of_the_report(database: sqlite3.Connection) -> None:
    bill = neutracer.report(snapshot(LEAK)).devices[0].bill
    assert bill is not None
    assert asked(database, "SELECT sum(bytes) FROM bill") == [(bill.limit_bytes,)]
    assert asked(database, "SELECT term, bytes, stands, piled_up, this_round FROM bill") == [
        (one.term, one.bytes, one.stands, one.piled_up, one.this_round) for one in bill.terms
    ]


@pytest.mark.parametrize("what", CONTENTS["parquet"])
def test_parquet_is_what_sqlite_has(
    what: str, tmp_path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("neutracer.exporting._ROWS", 5000)
    path = neutracer.export(snapshot(LEAK), "parquet", tmp_path / "out.parquet", what=what)
    table = parquet.read_table(path)
    length = len(snapshot(LEAK).events)
    assert what != "events" or parquet.ParquetFile(path).num_row_groups == -(-length // 5000)
    columns = [name for name in table.column_names if name != "stack"]
    rows = [tuple(row) for row in zip(*(table[name].to_pylist() for name in columns), strict=True)]
    assert rows == asked(database, f"SELECT {', '.join(columns)} FROM {what}")
    if "stack" in table.column_names:
        frames = f"SELECT frames FROM {what} LEFT JOIN stacks USING (stack) ORDER BY {what}.rowid"
        assert table["stack"].to_pylist() == [text for (text,) in asked(database, frames)]


def test_tables_have_all_devices_or_one(tmp_path: Path) -> None:
    source = dumped(two_devices())
    for device, wanted in ((None, [(0, 5), (2, 5)]), (2, [(2, 5)])):
        path = neutracer.export(source, "sqlite", tmp_path / "out", device=device)
        with sqlite3.connect(path) as database:
            count = "SELECT device, count(*) FROM events GROUP BY device ORDER BY device"
            assert asked(database, count) == wanted
        database.close()


def test_address_above_the_signed_ones_is_kept(tmp_path: Path) -> None:
    high = (1 << 64) - (64 << 20)
    path = neutracer.export(dumped(one_program(base=high)), "sqlite", tmp_path / "out")
    with sqlite3.connect(path) as database:
        assert asked(database, "SELECT min(addr) FROM events WHERE action = 'alloc'") == [
            (high - (1 << 64),)
        ]
    database.close()


def test_names_that_are_no_unicode_are_escaped(tmp_path: Path) -> None:
    source = one_program()
    frames = [{"filename": "caf\udce9.py", "line": 3, "name": "step\ud800"}]
    for one in source["device_traces"][0]:
        one["frames"] = frames
    path = neutracer.export(dumped(source), "sqlite", tmp_path / "out")
    with sqlite3.connect(path) as database:
        ((text,),) = asked(database, "SELECT frames FROM stacks WHERE frames LIKE '%step%'")
    database.close()
    assert "caf\\udce9.py" in text
    assert "step\\ud800" in text


def test_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("neutracer.exporting._fill", fill)
    out = tmp_path / "out.sqlite"
    command = ["export", str(DATA / "frag_default.pickle"), "--to", "sqlite", "-o", str(out)]
    assert main(command) == 2
    assert "SQLite: database or disk is full" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---- flame graphs ------------------------------------------------------------------------


def lines_of(path: Path) -> list[tuple[str, ...]]:
    """The stack and the numbers of each line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [tuple(line.rsplit(" ", 2 if ".diff" in path.name else 1)) for line in lines]


def test_collapsed_stacks_add_up_to_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snap, timeline = snapshot(LEAK), snapshot(LEAK).timeline()
    peak = lines_of(neutracer.export(snap, "collapsed"))
    assert sum(int(nbytes) for _, nbytes in peak) == timeline.peak().bytes
    churn = lines_of(neutracer.export(snap, "collapsed", what="churn"))
    assert sum(int(nbytes) for _, nbytes in churn) == sum(one.bytes for one in timeline.churn())
    late = snapshot("train_resnet_late_zero_grad")
    for text, before, after in lines_of(neutracer.export(snap, "collapsed", after=late)):
        assert ";" in text or text == "(no Python stack)"
        assert int(before) + int(after) > 0


def test_diff_is_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = snapshot("train_resnet_healthy"), snapshot("train_resnet_late_zero_grad")
    rows = lines_of(neutracer.export(before, "collapsed", after=after))
    ends = [snap.memory_stats()["allocated_bytes.all.current"] for snap in (before, after)]
    assert [sum(int(row[at]) for row in rows) for at in (1, 2)] == ends
    profiles = json.loads(neutracer.export(before, "speedscope", after=after).read_text())
    grown, shrunk = (sum(one["weights"]) for one in profiles["profiles"])
    assert grown - shrunk == neutracer.diff(before, after).allocated_bytes


@pytest.mark.parametrize("what", CONTENTS["speedscope"])
def test_speedscope_names_what_the_timeline_does(what: str, tmp_path: Path) -> None:
    snap = snapshot(LEAK)
    path = neutracer.export(snap, "speedscope", tmp_path / "out.json", what=what)
    page = json.loads(path.read_text(encoding="utf-8"))
    (profile,), frames = page["profiles"], page["shared"]["frames"]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
    assert profile["endValue"] == sum(profile["weights"])
    found = {
        tuple((frames[at]["name"], frames[at].get("file", "")) for at in sample): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    timeline = snap.timeline()
    rows: list[Any] = (
        [(one.key, one.bytes) for one in timeline.holders(by="stack", limit=None)]
        if what == "peak"
        else [(one.stack, one.bytes) for one in timeline.churn()]
    )
    nameless = (("(no Python stack)", ""),)
    assert found == {
        tuple((frame.name, frame.filename) for frame in reversed(stack)) or nameless: nbytes
        for stack, nbytes in rows
    }


def test_names_of_a_file_stay_on_their_line(tmp_path: Path) -> None:
    made = one_program()
    names = [*HOSTILE_NAMES, "a;b\nc 12", "\ud800"]
    for name in names:
        frames = [{"name": name, "filename": name, "line": 1}]
        made["device_traces"][0][1]["frames"] = frames
        path = neutracer.export(dumped(made), "collapsed", tmp_path / "out", what="churn")
        rows = lines_of(path)
        assert [int(nbytes) for _, nbytes in rows] == [6 * MIB, 4 * MIB]
        assert ";" not in rows[1][0]
        json.loads(neutracer.export(dumped(made), "speedscope", tmp_path / "out").read_text())


# ---- Perfetto ----------------------------------------------------------------------------


def fields_of(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message of integers and parts, by the fields' numbers."""
    found: dict[int, list[Any]] = {}
    at = 0

    def integer() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = integer()
        value: Any = integer()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.setdefault(key >> 3, []).append(value)
    return found


def tracks_of(path: Path) -> dict[str, list[tuple[int, int, Any]]]:
    """By a track's name, (nanoseconds, type, name or value) of its events."""
    tracks: dict[int, str] = {}
    found: dict[str, list[tuple[int, int, Any]]] = {}
    for packet in map(fields_of, fields_of(path.read_bytes())[1]):
        if 60 in packet:
            descriptor = fields_of(packet[60][0])
            tracks[descriptor[1][0]] = descriptor[2][0].decode()
            continue
        event = fields_of(packet[11][0])
        (text,), (value,) = event.get(23, [b""]), event.get(30, [None])
        row = (packet[8][0], event[9][0], text.decode() if value is None else value)
        found.setdefault(tracks[event[11][0]], []).append(row)
    assert set(found) < {*tracks.values()}
    return found


@pytest.mark.parametrize("name", [LEAK, "frag_default", "multi_stream"])
def test_counters_are_the_series(name: str, tmp_path: Path) -> None:
    timeline = snapshot(name).timeline()
    tracks = tracks_of(neutracer.export(snapshot(name), "perfetto", tmp_path / "out"))
    unused = [b - a for a, b in zip(timeline.allocated, timeline.reserved, strict=True)]
    series = {"allocated": timeline.allocated, "reserved": timeline.reserved, "unused": unused}
    for title, values in series.items():
        rows = zip(timeline.time_us, values, [-1, *values], strict=False)
        assert tracks[title] == [(1000 * us, 4, now) for us, now, was in rows if now != was]
    steps = tracks.get("steps", [])
    assert [text for _, kind, text in steps if kind == 1] == [
        f"step {number}" for number in range(len(timeline.steps))
    ]


def test_phases_are_slices_that_nest_and_failures_are_instants(tmp_path: Path) -> None:
    path = neutracer.export(dumped(phases()), "perfetto", tmp_path / "out")
    tracks = tracks_of(path)
    # Two tracks of one name: the end of a slice closes the last one that began on its track.
    assert sorted(tracks["phases"]) == [
        (1_000_000, 1, "a[0]"),
        (1_010_000, 1, "b[0]"),
        (1_020_000, 2, ""),
        (1_040_000, 2, ""),
    ]
    titles = [
        fields_of(packet[60][0])[2][0]
        for packet in map(fields_of, fields_of(path.read_bytes())[1])
        if 60 in packet
    ]
    assert titles[:3] == [b"cuda:0", b"phases", b"phases"]
    text = "out of memory: 30 MiB requested, 5 MiB free"
    assert tracks["out of memory"] == [(1_050_000, 3, text)]


def kineto(path: Path, base_ns: int, *times: float) -> Path:
    events = [{"ph": "X", "name": "aten::mm", "ts": one, "dur": 1} for one in times]
    path.write_text(json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": events}))
    return path


def test_times_are_those_of_the_kineto_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = dumped(one_program()), tmp_path / "out"
    trace = kineto(tmp_path / "trace.json", 900_000, 50.25, 120.5)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    for path in (trace, packed):
        tracks = tracks_of(neutracer.export(source, "perfetto", out, kineto=path))
        assert tracks["allocated"][1] == (110_000, 4, 4 * MIB)
    # No part of a long one cuts a number or a key, and none is kept.
    monkeypatch.setattr(exporting, "_PART", 7)
    tracks = tracks_of(neutracer.export(source, "perfetto", out, kineto=trace))
    assert tracks["allocated"][1] == (110_000, 4, 4 * MIB)
    # Older ones count since the epoch.
    trace.write_text('{"traceEvents": [{"ts": "1005"}]}')
    tracks = tracks_of(neutracer.export(source, "perfetto", out, kineto=trace))
    assert tracks["allocated"][1] == (1_010_000, 4, 4 * MIB)


# ---- what can't be written ---------------------------------------------------------------


def test_without_history_there_is_the_state(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    table = parquet.read_table(neutracer.export(only_state(), "parquet", out))
    assert table["size"].to_pylist() == [4 * MIB]
    assert [int(nbytes) for _, nbytes in lines_of(neutracer.export(only_state(), "collapsed", out))]
    with sqlite3.connect(neutracer.export(only_state(), "sqlite", out)) as database:
        counts = "SELECT count(*) FROM allocations UNION ALL SELECT count(*) FROM events UNION ALL "
        assert asked(database, counts + "SELECT count(*) FROM bill") == [(1,), (0,), (0,)]
    database.close()


@pytest.mark.parametrize(
    ("to", "more", "told"),
    [
        ("xml", {}, "unknown format 'xml'; there are parquet, sqlite, collapsed, "),
        ("sqlite", {"what": "peak"}, "sqlite has no 'peak': one file has everything"),
        ("collapsed", {"what": "bill"}, "collapsed has no 'bill': what is one of peak, churn"),
        ("sqlite", {"after": b""}, "only collapsed and speedscope compare snapshots"),
        ("sqlite", {"kineto": "x"}, "a Kineto trace gives perfetto its clock, not sqlite"),
        ("perfetto", {}, "the file has no trace: only its final state is recorded"),
        ("speedscope", {"what": "churn"}, "the file has no trace"),
        ("parquet", {"what": "events"}, "the file has no trace"),
        ("parquet", {"what": "bill"}, "the file has no trace"),
        ("collapsed", {"device": 1}, "the snapshot has no device 1"),
        ("speedscope", {"after": only_state()}, "no stack has other bytes than before"),
    ],
)
def test_wrong_request_leaves_no_file(
    to: str, more: dict[str, Any], told: str, tmp_path: Path
) -> None:
    if to == "parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=told):
        neutracer.export(only_state(), to, tmp_path / "out", **more)
    assert [*tmp_path.iterdir()] == []


def test_trace_of_another_run_is_refused(tmp_path: Path) -> None:
    source = dumped(one_program())
    before, out = kineto(tmp_path / "trace.json", 0, 5.0, 999.0), tmp_path / "out"
    with pytest.raises(ValueError, match=r"trace\.json is of another time than the snapshot"):
        neutracer.export(source, "perfetto", out, kineto=before)
    for text in ("", '{"traceEvents": []}', '{"ts": 1005}'):
        before.write_text(text)
        with pytest.raises(ValueError, match=r"trace\.json is not a trace of torch\.profiler"):
            neutracer.export(source, "perfetto", out, kineto=before)
    with pytest.raises(ValueError, match=r"zero is not a trace of torch\.profiler"):
        neutracer.export(source, "perfetto", out, kineto="/dev/zero")
    untimed = one_program()
    for one in untimed["device_traces"][0]:
        del one["time_us"]
    with pytest.raises(ValueError, match="the events of this snapshot have no times"):
        neutracer.export(dumped(untimed), "perfetto", out)
    assert not out.exists()


def test_without_pyarrow_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(neutracer.UnavailableError, match="pip install 'pyarrow>=15'"):
        neutracer.export(only_state(), "parquet", tmp_path / "out")


# ---- the command -------------------------------------------------------------------------


def test_command_writes_beside_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(DATA / "leak_list.pickle.xz")
    formats = [to for to in FORMATS if to != "parquet"]
    for to in formats:
        assert main(["export", file, "--to", to]) == 0
    assert main(["export", file, file, "--to", "collapsed", "--events", "0:9000"]) == 0
    names = [
        "leak_list.pickle.xz.sqlite",
        "leak_list.pickle.xz.peak.collapsed",
        "leak_list.pickle.xz.peak.speedscope.json",
        "leak_list.pickle.xz.pftrace",
        "leak_list.pickle.xz.diff.collapsed",
    ]
    assert capsys.readouterr().out.splitlines() == names
    assert {path.name for path in tmp_path.iterdir()} == {*names}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "sqlite", "-o", "folder"], "neutracer: folder: Is a directory\n"),
        (["--to", "sqlite", "-o", "in.pickle"], "the output 'in.pickle' is also an input; "),
        (["in.pickle", "in.pickle", "--to", "collapsed"], "give one file, or two to compare\n"),
        (["--to", "perfetto", "--kineto", "none"], "neutracer: none: No such file or directory\n"),
        (["--to", "perfetto", "--kineto", "in.pickle", "-o", "k.json"], "is not a trace of torch"),
        (["--to", "perfetto", "--kineto", "k.json", "-o", "k.json"], "'k.json' is also an input"),
    ],
)
def test_command_says_in_a_sentence_what_is_wrong(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.pickle").write_bytes(dumped(one_program()))
    Path("k.json").write_text("{}")
    Path("folder").mkdir()
    assert main(["export", "in.pickle", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert told in captured.err
    assert Path("in.pickle").read_bytes() == dumped(one_program())
    assert {path.name for path in tmp_path.iterdir()} == {"in.pickle", "folder", "k.json"}
