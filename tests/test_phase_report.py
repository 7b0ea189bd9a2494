# SPDX-License-Identifier: Apache-2.0
"""`phases`: turns, what outlives them and what grows, against programs with known truth."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import fake_cuda
import pytest
from bundle import snapshot
from small_snapshots import BASE, block, event, segment
from waiting import pace

import neutracer
from neutracer.budget import Outside, budget_of
from neutracer.cli.main import main
from neutracer.monitor import phases as marking

MIB = 1 << 20


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> fake_cuda.FakeTorch:
    made = fake_cuda.install(monkeypatch, total=2048 * MIB)
    made.real_times = True
    return made


def cycle(fake: Any, sizes: list[int]) -> neutracer.Snapshot:
    """Turns of "wake" and "sleep"; line 30 keeps so many MiB in each, and line 7 nothing."""
    with neutracer.record() as recording:
        for size in sizes:
            with neutracer.phase("wake"):
                fake.hold(100 * MIB)
                fake.drop()
            with neutracer.phase("sleep"):
                fake.hold(size * MIB, line=30)
                fake.hold(9 * MIB)
                fake.drop()
        snap = recording.snapshot()
    return snap


def test_a_name_that_is_no_unicode_is_escaped(fake: Any, tmp_path: Path) -> None:
    with neutracer.record() as recording:
        with neutracer.phase("caf\udce9"):
            fake.hold(1 * MIB)
        recording.save(tmp_path / "a.pickle")
    assert [turn.phase for turn in neutracer.phases(tmp_path / "a.pickle").turns] == ["caf\\udce9"]


def test_growth_by_one_line_is_exact(fake: Any) -> None:
    found = neutracer.phases(cycle(fake, [290, 37, 37, 37]))
    ends = [turn.end_allocated_bytes >> 20 for turn in found.turns if turn.phase == "sleep"]
    assert ends == [294, 331, 368, 405]
    (growth,) = found["sleep"].growth
    assert (growth.least_bytes, growth.most_bytes, growth.since) == (37 * MIB, 37 * MIB, 0)
    assert [end >> 20 for end in growth.ends] == [290, 327, 364, 401]
    assert growth.line == 30
    # "wake" ends with more each time too, and adds nothing.
    assert found["wake"].growth == ()
    (finding,) = [one for one in found.findings if one.kind == "phase_growth"]
    assert finding.message == (
        "each turn of sleep ends with 37 MiB more than the one before, by 1 line"
    )
    assert "37.0 MiB" in str(found)


@pytest.mark.parametrize("sizes", [[20, 0, 0, 0], [30, 30]])
def test_a_warm_up_or_two_turns_are_no_growth(fake: Any, sizes: list[int]) -> None:
    assert neutracer.phases(cycle(fake, sizes))["sleep"].growth == ()


def test_a_turn_has_its_begin_peak_end_and_the_devices_rest(fake: Any) -> None:
    first, *_ = neutracer.phases(cycle(fake, [1, 2])).turns
    assert (first.phase, first.number) == ("wake", 0)
    levels = (first.begin_allocated_bytes, first.peak_allocated_bytes, first.end_allocated_bytes)
    assert levels == (4 * MIB, 104 * MIB, 4 * MIB)
    assert first.end_reserved_bytes == 1024 * MIB
    # The device holds less than PyTorch reserved: the rest is asleep.
    used = 4 * MIB + fake_cuda.OTHER
    assert (first.end_other_bytes, first.asleep_bytes) == (0, 1024 * MIB - used)


def test_what_outlives_a_turn_has_its_line_category_and_pool(fake: Any) -> None:
    found = neutracer.phases(cycle(fake, [5, 6]), phase="sleep[-1]")
    (survivor,) = found["sleep"].survivors
    assert (survivor.bytes, survivor.count, survivor.line) == (6 * MIB, 1, 30)
    assert (survivor.category, survivor.pool) == ("unknown", (0, 0))
    assert [turn.number for turn in found.turns] == [1]
    with pytest.raises(ValueError, match="no phase 'nap'"):
        neutracer.phases(cycle(fake, [1]), phase="nap")


def saved(fake: Any, folder: Path) -> str:
    path = folder / "cycle.pickle"
    cycle(fake, [290, 37, 37, 37]).save(path)
    return str(path)


def test_commands_ask_a_file_for_its_phases(
    fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(fake, tmp_path)
    assert main(["phases", path, "--fail-on", "serious"]) == 1
    text = capsys.readouterr().out
    assert "What grows from turn to turn of sleep" in text
    assert main(["report", "--phase", "wake", path]) == 0
    text = capsys.readouterr().out
    assert "wake[3]" in text
    assert "sleep[" not in text
    assert main(["report", path]) == 0
    assert "What grows from turn to turn of sleep" in capsys.readouterr().out
    assert main(["report", "--json", path]) == 0
    device = json.loads(capsys.readouterr().out)["devices"][0]
    assert len(device["phases"]["turns"]) == 8
    assert main(["what-if", "--check", "--phase", "sleep[1]", path]) == 0
    capsys.readouterr()
    assert main(["report", "--phase", "nap", path]) == 2
    assert "its phases are sleep, wake" in capsys.readouterr().err


def test_a_part_is_chosen_by_phase(fake: Any, tmp_path: Path) -> None:
    path = saved(fake, tmp_path)
    part = neutracer.load(path, phase="wake[0]")
    assert part.timeline().peak().bytes == 104 * MIB
    with pytest.raises(ValueError, match="one of events, seconds and phase"):
        neutracer.load(path, phase="wake", events=(0, 1))


def test_a_thousand_turns_take_a_fifth_of_a_second(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marking._DeviceUse, "note", lambda self, device: None)
    with neutracer.record() as recording:
        for turn in range(1000):
            with neutracer.phase("turn"):
                fake.hold(4096, line=turn % 9 + 1)
                fake.hold(8192)
                fake.drop()
        snap = recording.snapshot()
    best = 9.0
    for _ in range(3):
        now, begin = pace(), time.thread_time()
        found = neutracer.phases(snap)
        best = min(best, (time.thread_time() - begin) / now)
    assert len(found.turns) == 1000
    assert best < 0.2


def test_a_picture_has_the_phases_between_curves_and_map(fake: Any) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    figure = neutracer.mdtp(cycle(fake, [290, 37, 37, 37]), x="event")
    (axes,) = (one for one in figure.axes if one.get_label() == "phases")
    spans = [bar.get_paths()[0].get_extents() for bar in axes.collections]
    assert [(span.x0, span.x1) for span in spans[:2]] == [(0, 3), (3, 7)]
    assert {text.get_text() for text in axes.texts} == {"wake", "sleep"}


def test_the_budget_adds_up_to_the_devices_figure(fake: Any, tmp_path: Path) -> None:
    with neutracer.record() as recording:
        with neutracer.phase("wake"):
            fake.hold(400 * MIB)
            fake.hold(63 * MIB)
            fake.drop()
        recording.save(tmp_path / "run.pickle")
    budget = neutracer.phases(tmp_path / "run.pickle").budget
    assert budget is not None
    terms = {one.term: one.bytes for one in budget.terms}
    assert (terms["other tensors"], terms["activations' peak"]) == (404 * MIB, 63 * MIB)
    # The device holds what is allocated, and 3 MiB of others: the rest of PyTorch's is asleep.
    assert terms["asleep"] == (404 + 3 - 1024) * MIB
    assert sum(terms.values()) == budget.device_bytes == 407 * MIB


@pytest.mark.parametrize("name", ["cuda_graph_pool", "leak_list", "train_resnet_healthy"])
def test_the_budget_of_recordings_adds_up(name: str) -> None:
    snap = snapshot(name)
    budget = budget_of(snap, 0, Outside(90 << 30, {"NCCL": 1 << 30}, 2 << 30))
    terms = {one.term: one.bytes for one in budget.terms}
    assert sum(terms.values()) == 90 << 30
    assert budget.reserved_bytes == snap.memory_stats(0)["reserved_bytes.all.current"]
    assert (terms["NCCL"], terms["other processes"]) == (1 << 30, 2 << 30)
    assert ("graphs' pools" in terms) == (name == "cuda_graph_pool")


def test_segments_that_only_survivors_keep_are_named(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, before = BASE + (1 << 32), fake.snapshot

    def with_another_segment() -> Any:
        found = before()
        blocks = [
            block(other, 2 * MIB, "active_allocated", 2 * MIB),
            block(other + 2 * MIB, 18 * MIB),
        ]
        return {**found, "segments": [*found["segments"], segment(other, blocks)]}

    with neutracer.record() as recording:
        with neutracer.phase("load"):
            fake.push(event("segment_alloc", other, 20 * MIB, 0))
            frames = [{"filename": "model.py", "name": "keep", "line": 9}]
            fake.push(event("alloc", other, 2 * MIB, 0, frames=frames))
        monkeypatch.setattr(fake.module.cuda.memory, "_snapshot", with_another_segment)
        snap = recording.snapshot()
    (pin,) = neutracer.phases(snap)["load"].pins
    assert (pin.free_bytes, pin.held_bytes, pin.count, pin.line) == (18 * MIB, 2 * MIB, 1, 9)


def test_this_process_is_asked_without_a_file(fake: Any) -> None:
    with neutracer.record():
        with neutracer.phase("load"):
            fake.hold(5 * MIB)
        found = neutracer.phases()
    assert found.file == ""
    assert found["load"].survivors[0].bytes == 5 * MIB
