# SPDX-License-Identifier: Apache-2.0
"""`_core.Program`: runs, ranges, comparison, series and edits, and what it refuses."""

from __future__ import annotations

import gc
import pickle
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bundle import DATA, snapshot

import neutracer
from neutracer._native import core


def program_of(name: str = "frag_default") -> core.Program:
    return snapshot(name).timeline().program


def test_program_keeps_what_it_reads() -> None:
    snap = neutracer.load(DATA / "frag_default.pickle")
    timeline = snap.timeline()
    program = core.Program(timeline.native)
    edited = program.edit(array("Q", timeline.events.codes("size")))
    expected = program.run("")
    del snap, timeline, program
    gc.collect()
    assert edited.run("") == expected


def test_edit_without_a_change_changes_nothing() -> None:
    program = program_of()
    assert program.edit().run("") == program.run("")
    assert program.edit().check() == program.check()


def test_requests_of_no_bytes_are_left_out() -> None:
    program = program_of()
    count = len(snapshot("frag_default").events)
    nothing = program.edit(array("Q", bytes(8 * count))).run("")
    assert nothing["peak"]["reserved"] == 0
    assert nothing["device_allocs"] == nothing["ooms"] == 0


def test_call_after_the_last_event_is_made() -> None:
    program = program_of()
    count = len(snapshot("frag_default").events)
    edited = program.edit(None, None, array("i", [0, count - 1]))
    figures, series = edited.series("")
    last = memoryview(series["reserved"]).cast("Q")[-1]
    assert last == figures["final"]["reserved"]
    assert len(series["segments"]) == 4 * count


def test_block_freed_at_the_last_event_is_counted() -> None:
    # A trace that ends with a request.
    snap = snapshot("frag_default")
    rows = snap.events["action"]
    end = max(event for event, action in enumerate(rows) if action == "alloc") + 1
    path_bytes = _cut(snap, end)
    timeline = neutracer.load(path_bytes).timeline()
    ends = array("i", [-1] * (end - 1) + [end - 1])
    figures, series = timeline.program.edit(None, ends).series("")
    allocated = memoryview(series["allocated"]).cast("Q")
    assert len(allocated) == end
    assert allocated[-1] == figures["final"]["allocated"] == allocated[-2]


def _cut(snap: neutracer.Snapshot, end: int) -> bytes:
    import io

    buffer = io.BytesIO()
    core.save(((snap.timeline().native, 0, end),), buffer.write)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        (b"12345678",),
        (None, b"1"),
        (None, None, array("i", [-1])),
        (None, None, array("i", [5, 4])),
        (None, None, array("i", [2375])),
        (array("Q", [1 << 61] * 2375),),
    ],
)
def test_senseless_edits_are_refused(change: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"event|larger"):
        program_of().edit(*change)


@pytest.mark.parametrize("options", [{"order": 4}, {"timing": -1}, {"runs": -1}])
def test_unknown_orders_and_timings_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no such"):
        program_of().find_range("", **options)


def test_wrong_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError):
        core.Program(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        program_of().run(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        program_of().run("", speed=1)
    with pytest.raises(TypeError):
        pickle.dumps(program_of())
    with pytest.raises(neutracer.SettingsError):
        program_of().run("no_such_key:1")


def test_orders_and_timings_do_something() -> None:
    program = program_of("whatif/0/mixed_streams")
    early, late = (program.run("", timing=timing) for timing in (1, 2))
    assert early["peak"]["reserved"] <= late["peak"]["reserved"]
    ties = program_of("whatif/0/dyn_transformer_capped")
    peaks = {ties.run("", order=1, seed=seed)["peak"]["reserved"] for seed in range(20)}
    assert len(peaks) > 1


def test_progress_can_stop_a_run() -> None:
    program = program_of("whatif/0/dyn_transformer_capped")

    def stop(done: int) -> None:
        raise KeyError(done)

    # Long enough to be asked on any machine.
    with pytest.raises(KeyError):
        program.find_range("max_split_size_mb:20", runs=1_000_000, progress=stop)


def test_many_threads_get_the_same_figures() -> None:
    program = program_of("whatif/0/dyn_transformer_capped")
    alone = program.find_range("roundup_power2_divisions:4")
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: program.find_range("roundup_power2_divisions:4"), range(16))
        )
    assert found == [alone] * 16
