# SPDX-License-Identifier: Apache-2.0
"""A job's ranks compared: made-up trainings of which it is known who is odd, and why."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import signal
import sys
import weakref
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rank_files import START_US, STEP_US, trained, write
from small_snapshots import MIB

import neutracer
from neutracer.cli.main import main
from neutracer.rank import reduce
from neutracer.rank import reduce as pool
from neutracer.rank.report import RanksReport
from neutracer.units import format_bytes


def job(folder: Path, *ranks: dict[str, Any]) -> RanksReport:
    """The report on ranks that were trained like that; "facts" go into their sidecars."""
    for rank, how in enumerate(ranks):
        facts = how.pop("facts", {})
        write(folder, rank, trained(**how), world=len(ranks), **facts)
    return neutracer.ranks(folder)


def test_equal_ranks_have_no_odd_one(tmp_path: Path) -> None:
    found = job(tmp_path, {}, {}, {}, {})
    assert (found.odd, found.first_oom, found.findings) == ((), None, ())
    assert "No rank is odd: each is like the others." in str(found)
    assert found.shapes == ((0, 1, 2, 3),)
    assert [row.peak_allocated_bytes for row in found.rows] == [98 * MIB] * 4
    assert {one.figure: one.most for one in found.spread}["other_bytes"] == 500 * MIB


def test_figures_are_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 0, trained(leak=3 * MIB), world=1)
    row = neutracer.ranks(tmp_path).rows[0]
    snap = neutracer.load(path)
    stats, timeline = snap.memory_stats(), snap.timeline()
    assert row.allocated_bytes == stats["allocated_bytes.all.current"]
    assert row.reserved_bytes == stats["reserved_bytes.all.current"]
    assert row.peak_allocated_bytes == timeline.peak("allocated").bytes
    assert row.peak_reserved_bytes == timeline.peak("reserved").bytes
    assert sum(row.categories.values()) == row.peak_allocated_bytes
    assert row.verdict == neutracer.leak_trend(snap).verdict == "leak"


@pytest.mark.parametrize("ranks", [2, 4, 9])
def test_leaking_rank_is_named_with_line_and_step(tmp_path: Path, ranks: int) -> None:
    plain: list[dict[str, Any]] = [{} for _ in range(ranks)]
    plain[1] = {"leak": 3 * MIB, "leak_from": 6}
    found = job(tmp_path, *plain)
    assert [(one.rank, one.cause, one.place) for one in found.odd] == [
        (1, "leak", "log (train.py:33)")
    ]
    assert found.odd[0].step in (6, 7)
    assert found.odd[0].bytes == found.rows[1].peak_allocated_bytes - 98 * MIB  # type: ignore[operator]
    assert "3 MiB per step" in found.odd[0].why


def test_larger_batch_is_told_from_more_blocks(tmp_path: Path) -> None:
    found = job(tmp_path, {}, {}, {"batch": 12 * MIB}, {})
    assert [(one.rank, one.cause) for one in found.odd] == [(2, "larger_blocks")]
    assert "larger batch" in found.odd[0].why
    assert found.odd[0].place.startswith("train (train.py:20)")


def test_one_block_more_is_no_larger_batch(tmp_path: Path) -> None:
    batch = {"batch": 12 * MIB}
    odd = job(tmp_path, batch, batch, {"once": 40 * MIB, **batch}, batch).odd
    assert [(one.rank, one.cause) for one in odd] == [(2, "more_blocks")]
    assert odd[0].why.endswith("at train (train.py:20), in 9 blocks instead of 8")


def test_line_of_one_rank_is_named(tmp_path: Path) -> None:
    found = job(tmp_path, {"extra": 40 * MIB}, {}, {})
    odd = found.odd[0]
    assert (odd.rank, odd.cause, odd.place, odd.bytes) == (
        0,
        "own_line",
        "gather (train.py:44)",
        40 * MIB,
    )


def test_stage_is_no_fault_of_its_rank(tmp_path: Path) -> None:
    found = job(tmp_path, {"layers": 4}, {"layers": 12}, {"layers": 4}, {"layers": 4})
    assert found.shapes == ((0, 2, 3), (1,))
    assert [(one.rank, one.cause) for one in found.odd] == [(1, "stage")]
    assert "not by a fault of its own" in found.odd[0].why
    assert found.worst == "info"


def test_fault_within_a_stage_is_found_beside_larger_stages(tmp_path: Path) -> None:
    leak = {"layers": 4, "leak": 2 * MIB}
    found = job(tmp_path, {"layers": 4}, leak, {"layers": 4}, *({"layers": 12} for _ in range(3)))
    assert found.shapes == ((0, 1, 2), (3, 4, 5))
    assert {(one.rank, one.cause) for one in found.odd} == {(1, "leak"), (3, "stage")}


def test_memory_of_another_library_is_told(tmp_path: Path) -> None:
    devices = {"0": {"total_bytes": 1 << 37, "other_bytes": 4000 * MIB}}
    found = job(tmp_path, {}, {}, {"facts": {"devices": devices}})
    assert [(one.rank, one.cause, one.bytes) for one in found.odd] == [(2, "not_torch", 3500 * MIB)]


def test_first_to_run_out_is_found_by_clock(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        {"facts": {"reason": "terminated"}},
        {"oom_at": 12, "begin_us": START_US + 700},
        {"oom_at": 12},
        {"facts": {"reason": "terminated"}},
    )
    first = found.first_oom
    assert first is not None
    assert (first.rank, first.asked_bytes, first.later) == (2, 64 * MIB, ((1, 700),))
    assert (first.is_certain, first.ended, first.lost) == (True, (0, 3), ())
    assert found.findings[0].kind == "first_oom"


def test_clocks_of_hosts_are_aligned_by_steps(tmp_path: Path) -> None:
    # By its own clock rank 1 ran out 3 s before rank 0; its clock is 5 s behind.
    behind = 5_000_000
    found = job(
        tmp_path,
        {"oom_at": 12, "facts": {"host": "a"}},
        {"oom_at": 12, "begin_us": START_US - behind + 900, "facts": {"host": "b"}},
    )
    assert found.first_oom is not None
    assert "aligned by their steps" in found.clocks
    assert found.first_oom.later[0][1] < STEP_US


def test_clocks_without_common_steps_are_not_aligned(tmp_path: Path) -> None:
    found = job(
        tmp_path,
        {"steps": 1, "oom_at": 0, "facts": {"host": "a"}},
        {"steps": 1, "oom_at": 0, "facts": {"host": "b"}},
    )
    assert "not aligned" in found.clocks
    assert found.first_oom is not None
    assert not found.first_oom.is_certain


def test_missing_truncated_and_foreign_files_are_said(tmp_path: Path) -> None:
    whole = pickle.dumps(trained(), protocol=4)
    write(tmp_path, 0, whole, world=5)
    write(tmp_path, 1, whole[: len(whole) // 2], world=5)
    write(tmp_path, 2, b"no pickle at all", world=5)
    (tmp_path / "notes.txt").write_text("of somebody")
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    found = neutracer.ranks(tmp_path)
    assert [row.state for row in found.rows] == [
        "exit",
        "exit",
        "can't be read",
        "no file",
        "no file",
    ]
    assert found.rows[1].note.startswith("only a part was read")
    assert "text file" in found.rows[2].note
    assert [Path(name).name for name in found.passed_over] == ["model.pt", "notes.txt"]
    assert {one.kind for one in found.findings} >= {"missing_ranks", "unreadable"}


def test_jobs_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, trained(), world=3)
    for rank in range(2):
        write(tmp_path, rank, trained(extra=40 * MIB), world=2, job="j2", pid=9000 + rank)
    found = neutracer.ranks(tmp_path)
    assert (found.job, found.world_size, len(found.rows), found.odd) == ("j1", 3, 3, ())
    assert [(one.job, len(one.sources)) for one in found.other_jobs] == [("j2", 2)]


def test_runs_one_after_the_other_are_told_apart(tmp_path: Path) -> None:
    for run in range(2):
        for rank in range(2):
            facts = {"job": None, "pid": 100 * run + rank + 1, "time_s": 1e9 + 1000 * run}
            write(tmp_path, rank, trained(extra=run * 8 * MIB), world=2, **facts)
    found = neutracer.ranks(tmp_path)
    # Of two runs with as many ranks the later one.
    assert [row.peak_allocated_bytes for row in found.rows] == [106 * MIB] * 2
    assert len(found.other_jobs) == 1


def test_two_files_of_a_rank_count_once(tmp_path: Path) -> None:
    write(tmp_path, 0, trained(steps=3), world=1, reason="interval")
    write(tmp_path, 0, trained(leak=MIB), world=1)
    found = neutracer.ranks(tmp_path)
    assert len(found.rows) == 1
    assert found.rows[0].verdict == "leak"
    assert [one.kind for one in found.findings] == ["same_rank"]


def test_rank_is_taken_from_the_name_where_there_is_no_sidecar(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / f"rank_{rank}"
        folder.mkdir()
        (folder / "memory.pickle").write_bytes(pickle.dumps(trained(), protocol=4))
    assert [row.rank for row in neutracer.ranks(tmp_path).rows] == [0, 1, 2]


def test_ranks_without_a_number_are_called_by_their_files(tmp_path: Path) -> None:
    """As SGLang's profile of the activity MEM names them, with a dot in its time."""
    for at, snap in enumerate((trained(), trained(), trained(leak=3 * MIB))):
        path = tmp_path / f"1758551300.159891-TP-{at}-memory.pickle"
        path.write_bytes(pickle.dumps(snap, protocol=4))
    found = neutracer.ranks(tmp_path)
    assert [row.rank for row in found.rows] == [None] * 3
    text = str(found)
    assert all(f"-TP-{at}-memory" in text for at in range(3))
    assert "1758551300.159891-TP-2-memory.pickle: its memory grows by 3 MiB per step" in text


def test_processes_without_a_number_are_not_compared_with_ranks(tmp_path: Path) -> None:
    """As an inference server's engine and front end, beside its workers."""
    write(tmp_path, 0, trained(), world=1)
    event = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "frames": []}
    small = {"segments": [], "device_traces": [[{**event, "time_us": START_US}]]}
    path = write(tmp_path, 1, small, world=1)
    path.rename(tmp_path / "engine.pickle")
    sidecar = Path(f"{path}.json")
    (tmp_path / "engine.pickle.json").write_text(
        json.dumps({**json.loads(sidecar.read_text()), "rank": None})
    )
    sidecar.unlink()
    found = neutracer.ranks(tmp_path)
    assert [(row.rank, row.shape) for row in found.rows] == [(0, 0), (None, None)]
    assert found.rows[1].peak_allocated_bytes is not None
    assert not found.odd
    assert all(one.least == one.most for one in found.spread)
    assert "No rank is odd" not in str(found)


def test_many_odd_ranks_without_a_number_are_counted(tmp_path: Path) -> None:
    leaking, equal = (pickle.dumps(trained(**how), protocol=4) for how in ({"leak": 3 * MIB}, {}))
    for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz"):
        (tmp_path / f"{letter}.pickle").write_bytes(leaking if at < 10 else equal)
    found = neutracer.ranks(tmp_path)
    assert [one.rank for one in found.odd] == [None] * 10
    assert found.findings[-1].message == "2 more deviations"


def test_releases_that_differ_are_a_finding(tmp_path: Path) -> None:
    found = job(tmp_path, {}, {"facts": {"torch": "2.9.1"}})
    assert [one.kind for one in found.findings] == ["versions"]


def test_heat_map_has_each_rank_on_one_axis(tmp_path: Path) -> None:
    found = job(tmp_path, {}, {"begin_us": START_US + 2 * STEP_US}, {"oom_at": 9})
    heat = found.heat
    assert heat is not None
    assert heat.ranks == (0, 1, 2)
    assert heat.rows[1][0] is None
    assert heat.rows[0][0] is not None
    assert max(value or 0 for value in heat.rows[0]) == 98 * MIB
    assert [row for row, _ in heat.ooms_us] == [2]
    assert "<svg" in found.picture()


def test_report_is_json_and_a_page_of_any_size(tmp_path: Path) -> None:
    found = job(tmp_path, {}, {"leak": MIB})
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["schema"] == "neutracer.ranks/1"
    assert plain["odd"][0]["rank"] == 1
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found)


def test_nothing_to_compare_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ValueError, match="no snapshots"):
        neutracer.ranks(tmp_path)
    with pytest.raises(ValueError, match="no snapshots"):
        neutracer.ranks([])


def test_any_executor_gives_the_same_report(tmp_path: Path) -> None:
    expected = job(tmp_path, {}, {}, {"leak": 2 * MIB}, {})
    with ThreadPoolExecutor(2) as executor:
        assert neutracer.ranks(tmp_path, executor=executor) == expected


class Failing(Executor):
    """Workers that are lost."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(RuntimeError("worker lost"))
        return future


def test_lost_workers_are_rows_that_say_so(tmp_path: Path) -> None:
    job(tmp_path, {}, {})
    found = neutracer.ranks(tmp_path, executor=Failing())
    assert {row.state for row in found.rows} == {"can't be read"}
    assert "worker lost" in found.rows[0].note


def test_processes_give_what_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = job(tmp_path, {}, {}, {"leak": 2 * MIB}, {})
    monkeypatch.setattr(pool, "_workers", lambda paths, sizes: 2)
    monkeypatch.setattr(pool, "_FEW_FILES", 0)
    done: list[tuple[int, int]] = []
    assert neutracer.ranks(tmp_path, progress=lambda a, b: done.append((a, b))) == expected
    assert done[-1] == (4, 4)


_DIGEST_OF = reduce.digest_of


def _killed(path: str) -> bytes:
    if "rank2" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return _DIGEST_OF(path)


def test_file_that_ends_its_process_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(tmp_path, {}, {}, {}, {})
    monkeypatch.setattr(pool, "_workers", lambda paths, sizes: 2)
    monkeypatch.setattr(pool, "_FEW_FILES", 0)
    monkeypatch.setattr(pool, "digest_of", _killed)
    monkeypatch.setattr(pool, "_context", lambda: multiprocessing.get_context("fork"))
    found = neutracer.ranks(tmp_path)
    assert [row.state for row in found.rows] == ["exit", "exit", "can't be read", "exit"]
    assert "was killed" in found.rows[2].note


def test_no_snapshot_waits_for_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[object]] = []

    def load(*args: Any, **options: Any) -> neutracer.Snapshot:
        snap = neutracer.load(*args, **options)
        seen.extend((weakref.ref(snap), weakref.ref(snap.timeline())))
        return snap

    monkeypatch.setattr(reduce, "load", load)
    path = write(tmp_path, 0, trained(leak=MIB))
    gc.disable()
    try:
        reduce.digest_of(str(path))
        assert [one() for one in seen] == [None, None]
    finally:
        gc.enable()


def test_urls_are_read_where_fsspec_is(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="needs fsspec")
    expected = job(tmp_path, {}, {"leak": 2 * MIB})
    found = neutracer.ranks(f"file://{tmp_path}")
    assert [row.peak_allocated_bytes for row in found.rows] == [
        row.peak_allocated_bytes for row in expected.rows
    ]
    assert found.odd == expected.odd


def test_url_without_a_reader_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(neutracer.UnavailableError, match=r"fsspec>=2023"):
        neutracer.ranks("s3://bucket/job")


def test_plot_shows_a_row_a_rank(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    found = job(tmp_path, {}, {"oom_at": 5}, {})
    figure = neutracer.plot_ranks(found, output=tmp_path / "ranks.png")
    assert figure.axes[0].images[0].get_array().shape == (3, 96)
    assert (tmp_path / "ranks.png").read_bytes().startswith(b"\x89PNG")


def test_plot_gives_ranks_without_a_number_their_own_peaks() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    data = Path(__file__).parents[1] / "data"
    files = [data / f"{name}.pickle.xz" for name in ("leak_list", "multi_stream", "frag_default")]
    found = neutracer.ranks(files)
    assert {row.rank for row in found.rows} == {None}
    texts = neutracer.plot_ranks(found).axes[0].texts
    assert [text.get_text() for text in texts] == [
        format_bytes(row.peak_allocated_bytes) for row in found.rows
    ]
    # Only one of them ran out of memory.
    assert (
        len({text.get_color() for text in texts[:2]})
        == 1
        != len({text.get_color() for text in texts})
    )


def test_command_prints_writes_and_fails_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    job(folder, {}, {}, {"leak": 2 * MIB})
    assert main(["ranks", str(folder)]) == 0
    assert "rank 2" in capsys.readouterr().out
    assert main(["ranks", str(folder), "--fail-on", "serious", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["odd"][0]["rank"] == 2
    page = tmp_path / "job.html"
    assert main(["ranks", str(folder), "-o", str(page)]) == 0
    assert "<svg" in page.read_text()
    assert main(["ranks", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
