# SPDX-License-Identifier: Apache-2.0
"""Phases of a running program: their marks in its recordings, and what they leave alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_cuda
import pytest

import neutracer
from neutracer.monitor import phases
from neutracer.recording.recorder import dumped
from neutracer.trace.marks import chosen_turns, device_use, turns_of

MIB = 1 << 20


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_cuda.FakeTorch:
    made = fake_cuda.install(monkeypatch)
    made.real_times = True
    return made


def marks_of(snap: neutracer.Snapshot) -> list[tuple[str, int, int, int]]:
    return [(turn.phase, turn.number, turn.first, turn.end) for turn in turns_of(snap)]


def test_marks_in_a_recording_fall_between_the_events_around_them(fake: Any) -> None:
    fake.module.cuda.memory._record_memory_history(max_entries=1000)
    with neutracer.record() as recording:
        fake.hold(MIB)
        for _ in range(2):
            with neutracer.phase("sleep"):
                with neutracer.phase("inner"):
                    fake.hold(MIB)
                fake.drop()
            fake.hold(MIB)
        snap = recording.snapshot()
    # A drop is two events.
    assert marks_of(snap) == [
        ("sleep", 0, 1, 4),
        ("inner", 0, 1, 2),
        ("sleep", 1, 5, 8),
        ("inner", 1, 5, 6),
    ]


def test_marks_follow_the_counters_where_the_clocks_differ(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with neutracer.record() as recording:
        fake.hold(MIB)
        fake.hold(MIB)
        # Python's clock is 40 ms behind that of the trace.
        late = SimpleNamespace(
            time_ns=lambda: time.time_ns() - 40_000_000, perf_counter=time.perf_counter
        )
        monkeypatch.setattr(phases, "time", late)
        with neutracer.phase("load"):
            fake.hold(MIB)
        fake.hold(MIB)
        snap = recording.snapshot()
    assert marks_of(snap) == [("load", 0, 2, 3)]


def test_a_file_alone_has_the_phases(fake: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    with neutracer.record() as recording:
        with neutracer.phase("load"):
            fake.hold(3 * MIB)
        fake.hold(MIB)
        recording.save(path)
    (tmp_path / "run.pickle.json").unlink()
    again = neutracer.load(path)
    assert marks_of(again) == [("load", 0, 0, 1)]
    used = device_use(again, 0)
    assert used[0][1] == 4 * MIB + fake_cuda.OTHER
    neutracer.load(path).save(tmp_path / "again.pickle.gz")
    assert marks_of(neutracer.load(tmp_path / "again.pickle.gz")) == marks_of(again)


def test_phases_of_one_name_in_two_threads_end_where_they_do(fake: Any) -> None:
    entered, over = threading.Event(), threading.Event()

    def other() -> None:
        with neutracer.phase("decode"):
            entered.set()
            over.wait(10)

    with neutracer.record() as recording:
        fake.hold(MIB)
        with neutracer.phase("decode"):
            thread = threading.Thread(target=other)
            thread.start()
            assert entered.wait(10)
            fake.hold(MIB)
        fake.hold(MIB)
        over.set()
        thread.join()
        fake.hold(MIB)
        snap = recording.snapshot()
    assert sorted((first, end) for _, _, first, end in marks_of(snap)) == [(1, 2), (1, 3)]


def test_a_phase_that_is_open_or_began_earlier_is_said_to_be(fake: Any) -> None:
    with neutracer.phase("serve"), neutracer.record() as recording:
        fake.hold(MIB)
        snap = recording.snapshot()
    (turn,) = turns_of(snap)
    assert (turn.has_begun, turn.has_ended, turn.first, turn.end) == (True, False, 0, 1)
    assert chosen_turns(turns_of(snap), "serve[-1]") == (turn,)
    with pytest.raises(ValueError, match=r"no phase 'sleep': its phases are serve"):
        chosen_turns(turns_of(snap), "sleep")


def test_phases_reset_no_counter(fake: Any) -> None:
    fake.hold(40 * MIB)
    fake.drop()
    fake.module.cuda.reset_peak_memory_stats = lambda *args: pytest.fail("a counter was reset")
    with neutracer.training("unused", max_entries=0) as run, run.step(), run.phase("forward"):
        fake.hold(MIB)
        fake.drop()
    assert fake.peak == 44 * MIB


def test_a_dump_without_a_trace_has_no_marks(fake: Any) -> None:
    with neutracer.phase("load"):
        fake.hold(MIB)
    assert len(neutracer.load(dumped(fake.module.cuda)).annotations) == len(
        fake.snapshot().get("external_annotations", [])
    )


def test_a_phase_costs_little(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With figures from the hooks; the bound is 20 us for each boundary, and has room for a
    machine that is busy."""
    monkeypatch.setattr(phases.core, "live_span", lambda device, follow: (1,) * 8, raising=False)
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(50):
            with neutracer.phase("x"):
                pass
        best = min(best, (time.perf_counter() - begin) / 100)
    assert best < 20e-6
