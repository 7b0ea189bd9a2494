# SPDX-License-Identifier: Apache-2.0
"""What follows a program: a report that can't be made changes nothing about the program."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_cuda import install

import neutracer
from neutracer.heap.cycles import prepare_heap
from neutracer.hooks.cache_calls import CACHE_CALLS
from neutracer.recording.recorder import HISTORY
from neutracer.run import following
from neutracer.run.following import Following


@pytest.mark.parametrize("error", [IndexError("list index out of range"), OSError("disk full")])
def test_report_that_fails_leaves_the_snapshot_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    install(monkeypatch)

    def fail(*told: Any, **how: Any) -> Any:
        raise error

    monkeypatch.setattr(following, "overview", fail)
    watched = Following(str(tmp_path), None, "python", recorder="pytorch")
    watched.begin()
    watched.end()
    (kept,) = tmp_path.glob("*.pickle")
    (note,) = [note for note in watched.notes if "has no report" in note]
    assert str(kept) in note
    assert str(error) in note
    assert watched.last is None


@pytest.mark.parametrize("is_terminated", [True, False])
def test_only_a_process_that_goes_on_has_its_history_ended(
    is_terminated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch complains where another thread ends it than began it."""
    fake = install(monkeypatch)
    watched = Following(str(tmp_path), 1000, "python", recorder="pytorch")
    watched.begin(watch=False)
    if is_terminated:
        assert watched.end_soon()
        assert watched.files[0].endswith("-terminated.pickle")
    else:
        watched.end()
    assert fake.enabled == is_terminated
    CACHE_CALLS.forget()
    HISTORY.forget()


def test_report_at_the_end_knows_the_room_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch)
    watched = Following(str(tmp_path), 1000, "python", recorder="pytorch")
    watched.begin(watch=False)
    watched.end()
    assert watched.last is not None
    assert watched.last.snapshot is not None
    assert watched.last.snapshot.beside.rooms[0].total_bytes == fake.total
    assert "non_torch" not in watched.last.not_looked_at
    CACHE_CALLS.forget()
    HISTORY.forget()


def test_report_of_a_process_that_goes_on_names_the_holders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `neutracer attach` asks for it, with a history and without one."""
    torch = pytest.importorskip("torch")
    prepare_heap()
    fake = install(monkeypatch)
    fake.show_tensors_of(torch)
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    watched = Following(str(tmp_path), 1000, "python", "attach", recorder="pytorch")
    watched.begin(watch=False)
    vars(main)["pool"] = {number: [fake.tensor(51200, 30)] for number in range(8)}
    watched.write("report")
    watched.end(None)
    (file,) = watched.files
    (device,) = neutracer.report(file).devices
    assert {one.holder for one in device.held if one.place.line == 30} == {"pool"}
    unrecorded = Following(str(tmp_path), 0, "python", "attach")
    unrecorded.write("report")
    (device,) = neutracer.report(unrecorded.files[0]).devices
    assert any("pool" in one.holder for one in device.held)
    CACHE_CALLS.forget()
    HISTORY.forget()
