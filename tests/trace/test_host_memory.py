# SPDX-License-Identifier: Apache-2.0
"""The host's pinned memory, which torch 2.14 and later record: `host_segments`, `host_traces`.

`tests/data/pinned` was written by PyTorch 2.15.0's own allocator (its README says how); what is
made here by hand has the same keys."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.cli.main import main
from neutracer.whatif.what_if import check_replay
from tests.helpers.bundle import DATA
from tests.helpers.small_snapshots import BASE, MIB, block, event, one_program, segment

LOADER = DATA / "pinned/loader_2_15.pickle"


def _with_host() -> dict[str, Any]:
    """The small program of a device, and 3 MiB of pinned memory of which 1 MiB is in use."""
    trace = [
        event("segment_alloc", BASE, MIB, 1005),
        event("alloc", BASE, MIB, 1005),
        event("segment_alloc", BASE + 8 * MIB, 2 * MIB, 1015),
        event("alloc", BASE + 8 * MIB, 2 * MIB, 1015),
        event("free_requested", BASE + 8 * MIB, 2 * MIB, 1025),
        event("free_completed", BASE + 8 * MIB, 2 * MIB, 1026),
    ]
    held = segment(BASE, [block(BASE, MIB, "active_allocated", MIB)], device=-1)
    cached = segment(BASE + 8 * MIB, [block(BASE + 8 * MIB, 2 * MIB)], device=-1)
    return {**one_program(), "host_segments": [cached, held], "host_traces": trace}


def _loaded(recording: object) -> neutracer.Snapshot:
    return neutracer.load(pickle.dumps(recording))


def test_what_pytorch_wrote_is_there() -> None:
    recording = pickle.loads(LOADER.read_bytes())
    host = neutracer.load(LOADER).host
    assert host.is_pinned
    trace, segments = recording["host_traces"], recording["host_segments"]
    for name in ("action", "addr", "size", "time_us"):
        assert list(host.events[name]) == [entry[name] for entry in trace]
    assert next(row.stack[0].name for row in host.events if row.stack) == "load_batch"
    for name in ("address", "total_size", "allocated_size", "active_size"):
        assert list(host.segments[name]) == [entry[name] for entry in segments]
    assert list(host.blocks["state"]) == [entry["blocks"][0]["state"] for entry in segments]
    assert host.history_complete()
    assert not host.flaws


def test_series_are_the_traces_sums() -> None:
    host = neutracer.load(LOADER, host=True)
    allocated = reserved = 0
    signs = {"alloc": 1, "free_requested": -1}
    kept = {"segment_alloc": 1, "segment_free": -1}
    timeline = host.timeline()
    for number, entry in enumerate(pickle.loads(LOADER.read_bytes())["host_traces"]):
        allocated += signs.get(entry["action"], 0) * entry["size"]
        reserved += kept.get(entry["action"], 0) * entry["size"]
        assert (timeline.allocated[number], timeline.reserved[number]) == (allocated, reserved)
    stats = host.memory_stats()
    assert stats["reserved_bytes.all.current"] == reserved == 74 * MIB
    assert stats["allocated_bytes.all.current"] == allocated


def test_sizes_below_512_bytes_are_exact() -> None:
    rows = neutracer.load(LOADER, host=True).timeline().allocations
    assert {row.size for row in rows if row.requested_size == 64} == {64}


def test_devices_know_nothing_of_it() -> None:
    snap, alone = _loaded(_with_host()), _loaded(one_program())
    assert snap.devices == (0,)
    assert snap.ignored_keys == ()
    assert len(snap.events) == len(alone.events)
    assert snap.memory_stats() == alone.memory_stats()
    assert snap.timeline().peak() == alone.timeline().peak()
    assert not snap.is_pinned
    assert alone.host is None


def test_files_keep_it(tmp_path: Path) -> None:
    recording = _with_host()
    snap = _loaded(recording)
    snap.save(tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    assert again["host_traces"] == recording["host_traces"]
    assert again["host_segments"] == recording["host_segments"]
    for twin in (pickle.loads(pickle.dumps(snap)), copy.deepcopy(snap)):
        assert twin.to_dict() == recording == snap.to_dict()


def test_host_by_itself_opens_where_a_snapshot_does(tmp_path: Path) -> None:
    host = _loaded(_with_host()).host
    host.save(tmp_path / "host.pickle")
    alone = neutracer.load(tmp_path / "host.pickle")
    assert alone.is_pinned
    assert alone.device_name(0) == "pinned host memory"
    assert alone.timeline().peak("reserved").bytes == 3 * MIB
    assert alone.timeline().peak("allocated").bytes == 3 * MIB


def test_part_of_it() -> None:
    data = pickle.dumps(_with_host())
    part = neutracer.load(data, host=True, events=range(2, 6))
    assert len(part.events) == 4
    assert part.is_pinned
    assert neutracer.load(data, events=range(1, 3)).host is None


def test_report_has_a_line_of_it() -> None:
    page = str(neutracer.report(pickle.dumps(_with_host())))
    line = "3 MiB of the host's memory, 1 MiB in use; for its holders: --host, or snapshot.host"
    assert line in page
    assert "pinned" not in str(neutracer.report(pickle.dumps(one_program())))


def test_reports_name_it() -> None:
    host = neutracer.load(LOADER).host
    unused, change = neutracer.fragmentation_report(host), neutracer.diff(host, host)
    for one in (neutracer.report(host), unused, change):
        assert "pinned host memory" in str(one)
        assert "cpu " not in str(one)
    assert [unused.device, change.device, change.before_device] == [-2, -2, -2]
    assert "pinned host memory" in str(neutracer.report(host).tree())
    assert "pinned host memory" in repr(host.timeline())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pinned", "host's pinned memory, with its own allocator: only traces"),
        ("exact_sizes", "CPU memory, which PyTorch does not cache: only traces"),
    ],
)
def test_what_replays_says_what_can_be(kind: str, words: str) -> None:
    plain = one_program()
    plain["allocator_settings"] = {**plain["allocator_settings"], kind: True}
    askers = (neutracer.what_if, neutracer.savings, check_replay)
    for ask in askers:
        with pytest.raises(ValueError, match=words) as refused:
            ask(_loaded(plain))  # type: ignore[operator]
        assert str(refused.value).endswith("native CUDA allocator can be replayed")
        # Not all of them ask for settings.
        assert "setting" not in str(refused.value)


def _with_growing_cache() -> dict[str, Any]:
    """Pinned blocks of ever other sizes, each of which stays in the cache."""
    at, trace, segments = BASE, [], []
    for number in range(40):
        size, time = (number + 1) * MIB, 1000 + 10 * number
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed"):
            trace.append(event(action, at, size, time))
        segments.append(segment(at, [block(at, size)], device=-1))
        at += size + MIB
    return {**one_program(), "host_segments": segments, "host_traces": trace}


def test_advice_is_of_its_own_allocator() -> None:
    host = _loaded(_with_growing_cache()).host
    assert host is not None
    trend = neutracer.leak_trend(host, steps=[4 * number for number in range(40)])
    assert trend.verdict == "cache_growth"
    unused = neutracer.fragmentation_report(host)
    pages = [str(one) for one in (trend, unused, neutracer.report(host))]
    pages += [str(neutracer.leak_trend([host, host]))]
    for page in pages:
        # Neither would change it.
        assert "PYTORCH_CUDA_ALLOC_CONF" not in page
        assert "roundup_power2_divisions" not in page
        assert "what_if" not in page
        assert "torch.cuda.empty_cache()" not in page
        assert "device" not in page
    assert "torch.accelerator.empty_host_cache() can return it" in pages[0]
    assert "torch.accelerator.empty_host_cache() returns 820 MiB to the system" in pages[1]
    assert "by empty_host_cache()" in pages[1]
    # What is a device's own is told as before.
    page = str(neutracer.leak_trend(_loaded(_device_with_growing_cache()), steps=range(0, 160, 4)))
    assert "torch.cuda.empty_cache() can return it" in page
    assert "expandable_segments:True" in page


def test_what_is_kept_is_not_advised_to_go_where_it_is() -> None:
    host = neutracer.load(LOADER).host
    assert host is not None
    for report in (neutracer.leak_trend(host), neutracer.report(host)):
        (leak,) = (one for one in report.findings if one.kind == "leak")
        advice = " ".join(note.text for note in leak.advice)
        assert "x.cpu()" not in advice
        assert "keep x.item(), or x.clone(), which is not pinned" in advice


def test_what_is_kept_on_the_cpu_is_not_advised_to_go_there() -> None:
    plain = neutracer.load(DATA / "leak_list.pickle.xz").to_dict()
    for is_cpu in (False, True):
        plain["allocator_settings"]["exact_sizes"] = is_cpu
        (leak,) = neutracer.leak_trend(_loaded(plain)).findings
        assert leak.kind == "leak"
        assert ("cpu()" in leak.advice[0].text) != is_cpu


def _device_with_growing_cache() -> dict[str, Any]:
    plain = _with_growing_cache()
    segments = [{**one, "device": 0} for one in plain.pop("host_segments")]
    return {**plain, "segments": segments, "device_traces": [plain.pop("host_traces")]}


def test_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--host", str(LOADER)]) == 0
    page = capsys.readouterr().out
    assert "pinned host memory" in page
    assert "keep_result" in page
    # What these commands say of the file is of its devices.
    assert "neutracer.leak_trend" not in page
    assert "default settings" not in page


@pytest.mark.parametrize("empty", [{}, {"host_segments": [], "host_traces": []}])
def test_without_it(empty: dict[str, Any]) -> None:
    data = pickle.dumps({**one_program(), **empty})
    assert neutracer.load(data).host is None
    with pytest.raises(ValueError, match=r"neutracer\.record\(pinned=True\)"):
        neutracer.load(data, host=True)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("host_segments", [1], "host segment 0: it is not a dict"),
        ("host_segments", {"a": 1}, "a list was expected"),
        ("host_segments", [{"address": 1}], "host segment 0: it has no 'total_size'"),
        ("host_traces", [[event("alloc", BASE, 1)]], "trace of host 0: an entry has no 'action'"),
        ("host_traces", {"a": 1}, "trace of host 0: a list of events was expected"),
    ],
)
def test_damage_is_named(key: str, value: object, sentence: str) -> None:
    with pytest.raises(neutracer.SnapshotError, match=sentence):
        _loaded({**_with_host(), key: value})
