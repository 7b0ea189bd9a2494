# SPDX-License-Identifier: Apache-2.0
"""Folders and files that are not as they should be: a sentence each, and a report of the rest."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import PACKAGE
from rank_files import START_US, trained, write
from small_snapshots import MIB

import neutracer
from neutracer.cli.main import main
from neutracer.rank import reduce as pool
from neutracer.rank.digest import MOST_STEPS, Held, RankDigest
from neutracer.rank.jobs import jobs_of
from neutracer.rank.report import ranks, ranks_report

WHOLE = pickle.dumps(trained(), protocol=4)


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def test_what_is_no_rank_is_passed_over_and_counted(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path, rank, WHOLE, world=2)
    (tmp_path / "vocabulary.pkl").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "empty.pickle").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("of somebody")
    (tmp_path / "folder.pickle").mkdir()
    found = neutracer.ranks(tmp_path)
    assert [row.rank for row in found.rows] == [0, 1]
    assert names(found.passed_over) == ["empty.pickle", "vocabulary.pkl", "notes.txt"]
    assert found.findings == ()
    assert "3 files that are not snapshots" in str(found)
    # Who names a file wants to know why it is not among the figures.
    named = neutracer.ranks([tmp_path, tmp_path / "vocabulary.pkl"])
    assert [row.state for row in named.rows] == ["exit", "exit", "can't be read"]
    assert "vocabulary.pkl" in str(named)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=1)
    os.mkfifo(tmp_path / "rank1.pickle")
    found = neutracer.ranks(tmp_path)
    assert names(found.passed_over) == ["rank1.pickle"]
    assert len(found.rows) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_pipe_in_place_of_a_sidecar_is_not_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path, 0, WHOLE, world=1)
    Path(f"{path}.json").unlink()
    os.mkfifo(f"{path}.json")
    found = neutracer.ranks(tmp_path)
    assert [row.peak_allocated_bytes is not None for row in found.rows] == [True]


def test_file_that_vanishes_is_a_row_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=2)
    os.symlink(tmp_path / "gone", tmp_path / "rank1.pickle")
    found = neutracer.ranks(tmp_path)
    assert [row.state for row in found.rows] == ["exit", "can't be read"]
    assert found.rows[1].note == "No such file or directory"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read any folder")
def test_folder_that_can_not_be_read_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=1)
    (tmp_path / "locked").mkdir(0)
    try:
        assert names(neutracer.ranks(tmp_path).passed_over) == ["locked"]
        with pytest.raises(PermissionError):
            neutracer.ranks(tmp_path / "locked")
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_one_folder_in_two_spellings_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path, 0, WHOLE, world=1)
    again = [tmp_path, f"{tmp_path}/", f"{tmp_path}/../{tmp_path.name}", path]
    assert neutracer.ranks(again).findings == ()


def test_links_to_one_file_are_ranks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(WHOLE)
    folder = tmp_path / "job"
    folder.mkdir()
    os.symlink(tmp_path / "one", folder / "rank0.pickle")
    os.link(tmp_path / "one", folder / "rank1.pickle")
    found = neutracer.ranks(folder)
    assert [row.rank for row in found.rows] == [0, 1]
    assert found.findings == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"world_size": 10**9},
        {"world_size": -3},
        {"rank": 10**30},
        {"rank": -1},
        {"time_s": float("nan")},
        {"time_s": float("inf")},
        {"pid": 10**30, "attempt": -1, "host": ["a"], "job": 7, "torch": {}},
    ],
)
def test_sidecar_that_can_not_be_is_left_out(facts: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=2)
    path = write(tmp_path, 1, WHOLE, world=2)
    beside = Path(f"{path}.json")
    beside.write_text(json.dumps({**json.loads(beside.read_text()), **facts}))
    found = neutracer.ranks(tmp_path)
    assert found.world_size == 2
    assert sum(row.peak_allocated_bytes is not None for row in found.rows) == 2 or found.other_jobs
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found)


def test_world_that_is_mostly_missing_has_few_rows(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=200_000)
    found = neutracer.ranks(tmp_path)
    assert len(found.rows) < 5_000
    assert "ranks 1 to 199999 of 200,000: no file" in str(found)


def test_names_of_any_length_fit_into_a_digest(tmp_path: Path) -> None:
    snapshot = trained(leak=3 * MIB)
    for entry in snapshot["device_traces"][0]:
        entry["frames"] = [
            {**frame, "name": "n" * 2_000_000} if frame["name"] == "log" else frame
            for frame in entry["frames"]
        ]
    write(tmp_path, 0, snapshot, world=1)
    assert neutracer.ranks(tmp_path).rows[0].verdict == "leak"


def test_hosts_of_any_letters_are_told_apart(tmp_path: Path) -> None:
    for rank, host in enumerate(("knöten-東京", "knöten-\u202e\x1b[31m")):
        write(tmp_path, rank, trained(oom_at=9), world=2, host=host)
    found = neutracer.ranks(tmp_path)
    assert {row.host for row in found.rows} == {"knöten-東京", "knöten-\u202e\x1b[31m"}
    assert "\x1b" not in str(found)
    assert "2 hosts" in str(found)


def test_file_of_which_nothing_is_left_says_where_it_ends(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=2)
    write(tmp_path, 1, WHOLE[:30], world=2)
    row = neutracer.ranks(tmp_path).rows[1]
    assert row.state == "can't be read"
    assert "ends after 30 bytes" in row.note


def test_end_of_a_file_without_segments_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, 0, WHOLE, world=2)
    write(tmp_path, 1, pickle.dumps({**trained(), "segments": []}, protocol=4), world=2)
    known, row = neutracer.ranks(tmp_path).rows
    ends = ("allocated_bytes", "reserved_bytes", "unused_bytes", "largest_hole_bytes")
    assert None not in [getattr(known, name) for name in ends]
    assert [getattr(row, name) for name in ends] == [None] * 4
    assert row.peak_allocated_bytes
    assert "No segments are listed" in row.note


def test_releases_that_differ_are_told_by_rank(tmp_path: Path) -> None:
    for rank, version in enumerate(("2.11.0", "2.9.1", "2.11.0")):
        write(tmp_path, rank, WHOLE, world=3, torch=version)
    assert "2.11.0 (ranks 0 and 2), 2.9.1 (rank 1)" in neutracer.ranks(tmp_path).findings[0].message


def test_jobs_without_names_are_told_apart_by_their_programs(tmp_path: Path) -> None:
    for rank in range(2):
        for other in range(2):
            facts = {"job": None, "program": f"train{other}.py", "pid": 100 * other + rank + 1}
            when = START_US / 1e6 + 2 * rank + other
            write(tmp_path, rank, trained(extra=30 * other * MIB), world=2, time_s=when, **facts)
    found = neutracer.ranks(tmp_path)
    assert (found.odd, len(found.rows), len(found.other_jobs)) == ((), 2, 1)
    assert "another run   2 files of a job of 2 ranks" in str(found)


def test_command_says_which_file_where_none_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 1, b"no pickle", world=3)
    write(tmp_path, 2, b"no pickle", world=3)
    assert main(["ranks", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "rank1" in told
    assert "1 more can't be read either" in told


class Answers(Executor):
    """Gives what it was told to, and breaks where that ends."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.given: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.given.append(future)
        answer = self.answers.pop(0) if self.answers else BrokenExecutor("all workers are gone")
        if answer == "read":
            answer = fn(*args)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future


def test_executor_that_breaks_leaves_what_it_has_read(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, WHOLE, world=3)
    found = neutracer.ranks(tmp_path, executor=Answers("read", "read"))
    states = [row.state for row in found.rows]
    assert states.count("can't be read") in (1, 2, 3)
    assert "all workers are gone" in " ".join(str(found).split())


def test_worker_of_another_version_is_a_row_that_says_so(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path, rank, WHOLE, world=2)
    found = neutracer.ranks(tmp_path, executor=Answers("read", b'{"schema": "neutracer.x/9"}'))
    assert [row.state for row in found.rows] == ["exit", "can't be read"]
    assert "another version" in found.rows[1].note


def test_interrupt_waits_for_no_file(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, WHOLE, world=3)
    executor = Answers("read", None, None)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks(tmp_path, executor=executor, progress=stop)
    assert [future.cancelled() for future in executor.given] == [False, True, True]


UNGUARDED = """
import sys, threading
import neutracer
from neutracer.rank import reduce as pool

print("begun", flush=True)
# Beside another thread, or torch, processes begin anew.
threading.Thread(target=threading.Event().wait, daemon=True).start()
pool._FEW_FILES, pool._workers = 0, lambda paths, sizes: 2
print([row.rank for row in neutracer.ranks(sys.argv[1]).rows], __file__, __spec__)
"""


def test_script_is_not_begun_again_by_its_processes(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, WHOLE, world=3)
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["begun", f"[0, 1, 2] {script} None"]


def test_processes_that_can_not_begin_are_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write(tmp_path, rank, WHOLE, world=3)
    monkeypatch.setattr(pool, "_FEW_FILES", 0)
    monkeypatch.setattr(pool, "_workers", lambda paths, sizes: 2)
    monkeypatch.setattr(pool, "_can_begin", lambda pool: False)
    assert [row.state for row in neutracer.ranks(tmp_path).rows] == ["exit"] * 3


def large(rank: int) -> RankDigest:
    """A digest with all that costs time."""
    begin = START_US + rank
    return RankDigest(
        source="rank.pickle",
        rank=rank,
        world_size=1024,
        pid=rank + 1,
        host=f"node{rank // 8}",
        peak_allocated_bytes=(60 + 9 * (rank % 5 == 0)) << 30,
        peak_reserved_bytes=70 << 30,
        places=tuple(Held(f"f (a.py:{line})", 1 << 30, 9) for line in range(32)),
        parameters=tuple((1 << 20 << at % 8, at + 1) for at in range(64)),
        step_us=tuple(begin + at * 1_000_000 for at in range(MOST_STEPS)),
        step_peak_bytes=tuple(range(MOST_STEPS)),
        steps=MOST_STEPS,
        begin_us=begin,
        end_us=begin + 10**9,
        curve=(1,) * 96,
    )


@pytest.mark.parametrize("shapes", [1, 1024])
def test_thousand_unequal_ranks_are_compared_in_seconds(shapes: int) -> None:
    digests = [large(rank) for rank in range(1024)]
    if shapes > 1:
        own = [tuple((size + 8 * one.pid, n) for size, n in one.parameters) for one in digests]  # type: ignore[operator]
        digests = [replace(one, parameters=p) for one, p in zip(digests, own, strict=True)]
    begin = time.process_time()
    report = ranks_report(jobs_of(digests))
    assert time.process_time() - begin < 10
    assert len(report.shapes) == shapes
    assert shapes > 1 or len(report.odd) == 205
