# SPDX-License-Identifier: Apache-2.0
"""Jobs that run: real processes of this machine tell a real store how they are."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from forked import Imported
from rank_job import RankJob

import neutracer
from neutracer._native import core
from neutracer.cli.main import main
from neutracer.rank.digest import RankDigest
from neutracer.rank.jobs import Odd
from neutracer.rank.report import RanksReport
from neutracer.rank.watch import report_of, stored_ranks
from neutracer.recording.program import OnDemand

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


# What PyTorch allocates on the CPU is followed where it is built without CUDA.
needs_cpu = pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")


def seen(job: RankJob, cause: str) -> RanksReport | None:
    """The report in which a rank is odd for that cause."""
    try:
        report = stored_ranks(job.address)
    except ValueError:
        return None
    return report if any(odd.cause == cause for odd in report.odd) else None


def odd_for(report: RanksReport, cause: str) -> list[Odd]:
    return [odd for odd in report.odd if odd.cause == cause]


STOPS = """
for number in range(10_000):
    step()
    if rank == 1 and number == 5:
        time.sleep(600)
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        # Another rank is gone; a program may go on without it.
        time.sleep(600)
"""


def test_rank_that_the_others_wait_for_is_named(with_torch: Imported, tmp_path: Path) -> None:
    with RankJob(with_torch, tmp_path, STOPS, 3) as job:
        report = job.until(lambda: seen(job, "waits_elsewhere"))
        late = odd_for(report, "waits_elsewhere")
        assert [(odd.rank, odd.step) for odd in late] == [(1, 6)]
        assert "program.py" in late[0].place
        assert "all_reduce" in late[0].why or "program.py" in late[0].why
        assert {row.state for row in report.rows} == {"running"}
        # The others go on telling while they hang, and the last words of a dead one are kept.
        job.ranks[1].send_signal(signal.SIGKILL)
        job.ranks[1].wait()
        report = job.until(lambda: seen_of_survivors(job))
        assert [odd.rank for odd in odd_for(report, "silent")] == [1]
        assert report.rows[1].steps == 6
        assert report.rows[1].state == "silent"


def seen_of_survivors(job: RankJob) -> RanksReport | None:
    report = stored_ranks(job.address)
    return report if odd_for(report, "silent") else None


FAILS = """
from neutracer.recording.long_history import OutOfMemory

kept = []
while True:
    step()
    if watch.written > 2 and rank == 1 and not kept:
        kept.append(torch.zeros(8 << 20))
        # What PyTorch's observer tells where there is CUDA.
        watch._publisher.on_oom(OutOfMemory(0, 64 << 20, 0, 0, time.time_ns() // 1000))
    time.sleep(0.01)
"""


@needs_cpu
def test_peers_write_their_layouts_and_sigterm_the_last(
    with_torch: Imported, tmp_path: Path
) -> None:
    with RankJob(with_torch, tmp_path, FAILS) as job:

        def answered() -> list[Path] | None:
            return list(job.out.glob("*rank0*-peer.pickle")) or None

        layouts = job.until(answered)
        assert sum(block.size for block in neutracer.load(layouts[0]).blocks) > 0
        report = stored_ranks(job.address)
        assert report.first_oom is not None
        assert (report.first_oom.rank, report.first_oom.asked_bytes) == (1, 64 << 20)
        assert report.rows[1].state == "out of memory"
        assert report.rows[1].peak_allocated_bytes > 32 << 20  # type: ignore[operator]
        assert not list(job.out.glob("*rank1*-peer.pickle"))
        job.ranks[0].send_signal(signal.SIGTERM)
        assert job.ranks[0].wait(20) == -signal.SIGTERM
        assert list(job.out.glob("*rank0*-terminated.pickle"))
        after = stored_ranks(job.address)
        assert after.first_oom is not None
        assert (after.rows[0].state, after.first_oom.ended) == ("terminated", (0,))


def test_store_that_is_gone_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", "--store", "127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "it does not answer" in told
    assert main(["ranks", "--store", "nowhere"]) == 2
    assert "node7:29500" in capsys.readouterr().err


def test_store_without_digests_says_what_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert main(["ranks", "--store", f"127.0.0.1:{store.port}"]) == 2
    assert "watch_ranks()" in capsys.readouterr().err


def running(rank: int, **facts: object) -> RankDigest:
    plain = {
        "source": "store",
        "rank": rank,
        "world_size": 4,
        "pid": 100 + rank,
        "written_s": 1000.0,
        "interval_s": 10.0,
        "reason": "interval",
        "peak_allocated_bytes": 100 << 20,
        "steps": 50,
    }
    return RankDigest(**{**plain, **facts})  # type: ignore[arg-type]


def test_rank_near_the_limit_is_named() -> None:
    ranks = [running(rank) for rank in range(3)]
    leak = running(3, verdict="leak", bytes_per_step=5 << 20, steps_to_oom=40)
    report = report_of([*ranks, leak], 1001.0)
    assert report.findings[0].kind == "near_the_limit"
    assert "rank 3 runs out of memory in 40 steps" in report.findings[0].message
    assert [(odd.rank, odd.cause) for odd in report.odd] == [(3, "leak")]
    # That is no news of one that has run out, or ended.
    for facts in ({"ooms": 1, "first_oom_us": 1_000_000_000}, {"reason": "exit"}):
        report = report_of([*ranks, replace(leak, **facts)], 1001.0)
        assert "near_the_limit" not in [one.kind for one in report.findings]


def test_ranks_that_move_wait_for_nobody() -> None:
    ranks = [running(rank, where="f (a.py:1)", where_s=100.0, waits=True) for rank in range(3)]
    report = report_of([*ranks, running(3, where="g (a.py:2)", where_s=2.0)], 1001.0)
    assert report.odd == ()


def test_of_two_that_stand_still_the_one_outside_of_torch_is_late() -> None:
    waiting = running(0, world_size=2, where="f (a.py:1)", where_s=100.0, waits=True)
    late = running(1, world_size=2, where="g (a.py:2)", where_s=100.0)
    report = report_of([waiting, late], 1001.0)
    assert [(odd.rank, odd.cause) for odd in report.odd] == [(1, "waits_elsewhere")]


def test_old_digests_are_said_to_be_old() -> None:
    report = report_of([running(0), running(1)], 5000.0)
    assert "old" in report.clocks


def test_attempts_are_told_apart() -> None:
    before = [running(rank, attempt=0, job="j", written_s=500.0) for rank in range(4)]
    now = [running(rank, attempt=1, job="j") for rank in range(2)]
    report = report_of([*before, *now], 1001.0)
    assert report.attempt == 1
    assert [one.attempt for one in report.other_jobs] == [0]


def test_watch_says_why_nothing_is_told() -> None:
    watch = neutracer.watch_ranks(signals=False)
    try:
        assert neutracer.watch_ranks() is watch
        assert not watch.publish()
        assert "no process group yet" in watch.why
        with pytest.raises(neutracer.UnavailableError, match="no process group yet"):
            watch.report()
        assert watch.digest().where
    finally:
        watch.remove()
    assert not watch.active
    with pytest.raises(ValueError, match="interval"):
        neutracer.watch_ranks(0.0)


def test_watch_leaves_a_signal_to_whom_it_belongs() -> None:
    first = OnDemand(
        lambda reason: None,
        every_s=None,
        signum=None,
        last_signum=signal.SIGTERM,
        last=lambda: None,
    )
    first.start()
    try:
        neutracer.watch_ranks().remove()
        # It is still put off: nothing else can do so.
        waiter = core.signals_open()
        try:
            assert not core.signals_take(waiter, signal.SIGTERM, 1.0)
        finally:
            core.signals_wake(waiter)
            core.signals_close(waiter)
    finally:
        first.stop()
