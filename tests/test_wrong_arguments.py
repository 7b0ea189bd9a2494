# SPDX-License-Identifier: Apache-2.0
"""Every public function says what is wrong with an argument, by its name, and does nothing."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from typing import Any

import pytest
from bundle import DATA

import neutracer
from neutracer import MemoryMonitor

NAN = float("nan")


class Array:
    """Has the method of an index, as arrays of any length do."""

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")


@pytest.fixture(scope="module")
def snap() -> neutracer.Snapshot:
    return neutracer.load(DATA / "frag_default.pickle")


def refused(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    """The call fails with exactly this kind, raised by neutracer's own statement."""
    with pytest.raises(kind, match=words) as caught:
        call()
    assert type(caught.value) is kind
    package = os.path.dirname(neutracer.__file__)
    last = caught.traceback[-1]
    assert str(last.path).startswith(package)
    assert "raise" in str(last.statement)


@pytest.mark.parametrize(
    ("method", "options", "kind", "words"),
    [
        ("save", {"path": None}, TypeError, "path must be a path"),
        ("save", {"path": "a\0b"}, ValueError, "null character"),
        ("save", {"path": "x", "device": 9}, ValueError, "no device 9"),
        ("save", {"path": "x", "events": 5}, TypeError, "events must be two whole numbers"),
        (
            "save",
            {"path": "x", "events": ("a", "b")},
            TypeError,
            "events must be two whole numbers",
        ),
        ("save", {"path": "x", "events": (5, 1)}, ValueError, "not among the 2375"),
        ("memory_stats", {"device": 0.5}, TypeError, "device must be its number"),
        ("memory_stats", {"device": []}, TypeError, "device must be its number"),
        ("timeline", {"device": "cuda"}, TypeError, "device must be its number"),
        ("timeline", {"device": True}, TypeError, "device must be its number"),
        ("timeline", {"device": -1}, ValueError, "no device -1"),
    ],
)
def test_snapshot_refuses_what_it_lacks(
    snap, method, options, kind, words, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(lambda: getattr(snap, method)(**options), kind, words)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (lambda tl: tl.at(None), TypeError, "event must be a whole number"),
        (lambda tl: tl.at(0.5), TypeError, "event must be a whole number"),
        (lambda tl: tl.event_at("x"), TypeError, "time_us must be a number"),
        (lambda tl: tl.peak([]), ValueError, "no series"),
        (lambda tl: tl.holders(by=[]), ValueError, "unknown grouping"),
        (lambda tl: tl.holders(limit=-1), ValueError, "limit is -1"),
        (lambda tl: tl.holders(limit="x"), TypeError, "limit must be a whole number"),
        (lambda tl: tl.events.codes("x"), KeyError, "no column 'x'; there are device"),
        (lambda tl: tl.events.find([], "x"), KeyError, "no column"),
        (lambda tl: tl.events[0.5], TypeError, "a row of a table must be its number"),
        (lambda tl: tl.events.take(5), TypeError, "rows must be a list of numbers of rows"),
        (lambda tl: tl.at(Array()), TypeError, "event must be a whole number, not Array"),
        (lambda tl: tl.events[0].x, AttributeError, "an event has no 'x'"),
    ],
)
def test_timeline_and_tables_name_theirs(snap, ask, kind, words) -> None:
    refused(lambda: ask(snap.timeline()), kind, words)


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("a\0b", ValueError, "source has a null character"),
        (None, TypeError, "a path, bytes or a binary file"),
        (io.StringIO("x"), TypeError, "not open in binary mode"),
        (DATA, neutracer.SnapshotError, "this is a directory"),
    ],
)
def test_load_says_what_it_takes(source, kind, words) -> None:
    refused(lambda: neutracer.load(source), kind, words)


def test_file_opened_for_writing_is_refused(tmp_path) -> None:
    with open(tmp_path / "file", "wb") as file:
        refused(lambda: neutracer.load(file), ValueError, "not open for reading")


def test_huge_limit_is_no_limit(snap) -> None:
    again = neutracer.load(DATA / "frag_default.pickle", max_memory=1 << 64)
    assert len(again.events) == len(snap.events)


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (lambda r: r.fits("x"), TypeError, "nbytes must be a whole number"),
        (lambda r: r.fits(-1), ValueError, "nbytes is -1"),
        (lambda r: r.fits(1, stream=None), TypeError, "stream must be a whole number"),
        (lambda r: r.fits(1, pool=5), TypeError, "pool must be two whole numbers"),
        (lambda r: r[5], KeyError, "no figure 5"),
        (lambda r: r["nothing"], KeyError, "no figure 'nothing'"),
    ],
)
def test_fragmentation_report_names_arguments(snap, ask, kind, words) -> None:
    report = neutracer.fragmentation_report(snap)
    refused(lambda: ask(report), kind, words)


@pytest.mark.parametrize("beyond", [0, 1 << 70, "2000000TiB"])
def test_sizes_of_no_device_are_refused(snap, beyond) -> None:
    words = r"must be above 0 bytes and at most 2\^60"
    refused(lambda: neutracer.explain(snap, request=beyond), ValueError, "a request " + words)
    for ask in (neutracer.explain, neutracer.leak_trend, neutracer.what_if):
        refused(lambda ask=ask: ask(snap, capacity=beyond), ValueError, "a capacity " + words)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"interval": "x"}, TypeError, "interval must be a number of seconds, not str"),
        ({"interval": NAN}, ValueError, "interval is nan"),
        ({"alert_threshold": "x"}, TypeError, "alert_threshold must be a share"),
        ({"growth_threshold": "x"}, TypeError, "growth_threshold must be a number of bytes"),
        ({"fragmentation_threshold": ()}, TypeError, "fragmentation_threshold must be a share"),
        ({"growth_window": None}, TypeError, "growth_window must be a number of seconds"),
        ({"patience": None}, TypeError, "patience must be a number of seconds"),
        ({"cooldown": "x"}, TypeError, "cooldown must be a number of seconds"),
        ({"hysteresis": None}, TypeError, "hysteresis must be a share"),
        ({"history": 99.5}, TypeError, "history must be a number of readings"),
        ({"actions": "log"}, TypeError, "actions must be a list of"),
        ({"actions": None}, TypeError, "actions must be a list of"),
        ({"actions": ("log", "x")}, ValueError, "no action 'x'"),
        ({"snapshot_dir": 3}, TypeError, "snapshot_dir must be a path"),
        ({"on_alert": 3}, TypeError, "on_alert is called with each alert"),
    ],
)
def test_monitor_refuses_what_it_can_not_keep(options, kind, words) -> None:
    refused(lambda: MemoryMonitor(**options), kind, words)


@pytest.mark.parametrize("look", ["get_stats", "device_series", "device_phases"])
def test_monitor_never_started_says_so(look: str) -> None:
    monitor = MemoryMonitor()
    # Marks cost a program nothing where nobody watches it.
    monitor.mark("step 1")
    ask: Any = getattr(monitor, look)
    refused(ask, neutracer.NeutracerError, "not started yet")


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: neutracer.live("x"), TypeError, "max_events must be a number of events"),
        (lambda: neutracer.live(NAN), TypeError, "max_events must be a number of events"),
        (lambda: neutracer.live(frames="x"), TypeError, "frames must be a whole number"),
        (lambda: neutracer.live(0), ValueError, "1 or more"),
        (lambda: neutracer.record(True), TypeError, "max_entries must be a number of events"),
        (lambda: neutracer.record(skip_actions="oom"), TypeError, "skip_actions must be a list"),
        (lambda: neutracer.record(skip_actions=None), TypeError, "skip_actions must be a list"),
        (lambda: neutracer.record(path=3), TypeError, "path must be a path"),
        (lambda: neutracer.watch_oom(3), TypeError, "directory must be a path"),
        (lambda: neutracer.watch_oom(max_entries="x"), TypeError, "max_entries must be a number"),
        (lambda: neutracer.watch_oom(limit=None), TypeError, "limit must be a number of reports"),
        (
            lambda: neutracer.watch_oom(seconds="x"),
            TypeError,
            "seconds must be a number of seconds",
        ),
        (lambda: neutracer.oom_report(seconds=NAN), ValueError, "seconds above 0"),
        (lambda: neutracer.oom_report(callback=3), TypeError, "called with each report"),
        (lambda: neutracer.collect_on_pressure("x"), TypeError, "fraction must be a share"),
        (
            lambda: neutracer.collect_on_pressure(0.5, "x"),
            TypeError,
            "min_garbage must be a number",
        ),
        (
            lambda: neutracer.collect_on_pressure(max_garbage=0.5),
            TypeError,
            "max_garbage must be a number",
        ),
        (
            lambda: neutracer.collect_on_pressure(interval=None),
            TypeError,
            "interval must be a number",
        ),
        (lambda: neutracer.why_alive(refused, "x"), TypeError, "max_paths must be a whole number"),
        (
            lambda: neutracer.ObjectGraph((), ()).to_dot(max_nodes="x"),
            TypeError,
            "max_nodes must be",
        ),
        (lambda: neutracer.OomFacts(device="x"), TypeError, "device must be a whole number"),
        (lambda: neutracer.OomFacts.from_dict(3), ValueError, "have the schema"),
        (lambda: neutracer.OomFacts.from_message(3), TypeError, "PyTorch's text"),
        (lambda: neutracer.ranks(DATA, executor=3), TypeError, "executor must be an Executor"),
        (lambda: neutracer.ranks(DATA, progress=3), TypeError, "progress is called with each file"),
        (lambda: neutracer.serve_metrics(3), TypeError, "monitor must be a MemoryMonitor"),
        (lambda: neutracer.serve_metrics(port=True), ValueError, "port is True"),
        (lambda: neutracer.serve_metrics(host=None), TypeError, "host must be an address"),
        (lambda: neutracer.MetricsCollector(None), TypeError, "monitor must be a MemoryMonitor"),
        (
            lambda: neutracer.MetricsCollector(MemoryMonitor(), layout_interval="x"),
            TypeError,
            "layout_interval must be a number of seconds",
        ),
        (
            lambda: neutracer.MetricsCollector(MemoryMonitor(), garbage_interval=-1),
            ValueError,
            "garbage_interval is -1",
        ),
    ],
)
def test_live_parts_name_their_arguments(call, kind, words) -> None:
    refused(call, kind, words)


def test_address_that_is_none_is_told() -> None:
    pytest.importorskip("prometheus_client")
    refused(lambda: neutracer.serve_metrics(MemoryMonitor(), 0, "\udcff"), OSError, "address")


@pytest.mark.parametrize(
    ("draw", "options", "kind", "words"),
    [
        ("mdtp", {"stream": -1}, ValueError, "stream is -1"),
        ("mdtp", {"stream": "x"}, TypeError, "stream must be a whole number"),
        ("mdtp", {"pool": 5}, TypeError, "pool must be two whole numbers"),
        ("mdtp", {"pool": (0, 1 << 64)}, ValueError, "no stream or pool"),
        ("mdtp", {"time_range": (NAN, 1)}, ValueError, "time_range must be two numbers, not nan"),
        ("mdtp", {"time_range": "ab"}, TypeError, "time_range must be two numbers"),
        ("mdtp", {"address_range": (0.5, 1)}, TypeError, "address_range must be two whole numbers"),
        ("mdtp", {"title": b"x"}, TypeError, "title must be a text"),
        ("mdtp", {"output": ""}, ValueError, "the name of a picture ends in"),
        ("plot_timeline", {"top": -1}, ValueError, "top is -1"),
        ("plot_timeline", {"top": "x"}, TypeError, "top must be a whole number"),
        ("plot_timeline", {"title": 3}, TypeError, "title must be a text"),
        ("plot_timeline", {"output": "x.txt"}, ValueError, r"\.png, \.svg or \.pdf; .* \.jpg"),
        ("plot_fragmentation", {"event": "x"}, TypeError, "event must be a whole number"),
        ("plot_fragmentation", {"output": 3}, TypeError, "output must be a path"),
        ("plot_fragmentation", {"output": io.StringIO()}, TypeError, "not open in binary mode"),
        ("view", {"path": 3}, TypeError, "path must be a path"),
        ("view", {"focus": "ab"}, TypeError, "focus must be two whole numbers"),
    ],
)
def test_pictures_name_their_arguments(
    snap, draw, options, kind, words, tmp_path, monkeypatch
) -> None:
    if draw != "view":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    refused(lambda: getattr(neutracer, draw)(snap, **options), kind, words)
    assert os.listdir(tmp_path) == []


def test_picture_is_written_whole_or_not(snap, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    nowhere = tmp_path / "nowhere" / "x.png"
    with pytest.raises(FileNotFoundError) as caught:
        neutracer.plot_fragmentation(snap, output=nowhere)
    assert caught.value.filename == str(nowhere)
    neutracer.plot_fragmentation(snap, output=tmp_path / "x.PNG")
    assert (tmp_path / "x.PNG").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["x.PNG"]


def test_picture_has_any_format_of_matplotlib(snap, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    neutracer.plot_fragmentation(snap, output=tmp_path / "x.jpg")
    assert (tmp_path / "x.jpg").read_bytes().startswith(b"\xff\xd8\xff")
    neutracer.plot_timeline(snap, output=tmp_path / "x.svgz")
    assert b"<svg" in gzip.decompress((tmp_path / "x.svgz").read_bytes())[:2000]
    file = io.BytesIO()
    neutracer.mdtp(snap, output=file)
    assert file.getvalue().startswith(b"\x89PNG")


def test_range_without_end_is_the_whole(snap) -> None:
    pytest.importorskip("matplotlib")
    whole = neutracer.mdtp(snap, x="event", time_range=(float("-inf"), float("inf")))
    axes = [one for one in whole.axes if one.get_label() == "map"]
    assert axes
