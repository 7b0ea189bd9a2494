# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's allocator asks of itself (`internal_metadata`, torch 2.15) is in the table of
events, and in no figure about the program. The recording is made by hand from PyTorch's schema."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import neutracer
from tests.helpers.small_snapshots import BASE, MIB, block, event, segment

OWN = "mallocWithAddress"


def _recording(tagged: bool) -> dict[str, Any]:
    """4 MiB of the program; 8 MiB before an address that the allocator wants, which it gives
    back; 2 MiB of the program behind them."""
    keys = {"internal_metadata": OWN} if tagged else {}
    before = BASE + 4 * MIB
    trace = [
        event("segment_alloc", BASE, 20 * MIB, 1000),
        event("alloc", BASE, 4 * MIB, 1010),
        event("alloc", before, 8 * MIB, 1020, **keys),
        event("alloc", before + 8 * MIB, 2 * MIB, 1030),
        event("free_requested", before, 8 * MIB, 1040, **keys),
        event("free_completed", before, 8 * MIB, 1040, **keys),
    ]
    blocks = [
        block(BASE, 4 * MIB, "active_allocated", 4 * MIB),
        block(before, 8 * MIB),
        block(before + 8 * MIB, 2 * MIB, "active_allocated", 2 * MIB),
        block(before + 10 * MIB, 6 * MIB),
    ]
    return {"segments": [segment(BASE, blocks)], "device_traces": [trace]}


def test_what_the_allocator_asks_of_itself_is_in_no_figure() -> None:
    plain = neutracer.load(pickle.dumps(_recording(tagged=False))).timeline()
    tagged = neutracer.load(pickle.dumps(_recording(tagged=True))).timeline()
    assert plain.peak("allocated").bytes == 14 * MIB
    assert tagged.peak("allocated").bytes == 6 * MIB
    assert list(tagged.allocated) == [0, 4 * MIB, 4 * MIB, 6 * MIB, 6 * MIB, 6 * MIB]
    assert [row.size for row in tagged.allocations] == [4 * MIB, 2 * MIB]
    assert tagged.facts["unmatched"] == 0


def test_it_stays_in_the_table_of_events() -> None:
    snap = neutracer.load(pickle.dumps(_recording(tagged=True)))
    rows = [(row.action, row.internal_metadata) for row in snap.events]
    assert rows[1:4] == [("alloc", None), ("internal_alloc", OWN), ("alloc", None)]
    assert [action for action, _ in rows[4:]] == [
        "internal_free_requested",
        "internal_free_completed",
    ]
    assert snap.flaws == neutracer.load(pickle.dumps(_recording(tagged=False))).flaws


def test_a_replay_does_not_ask_for_it() -> None:
    plan = neutracer.what_if(pickle.dumps(_recording(tagged=True)), "expandable_segments:True")
    assert plan["expandable_segments:True"].peak_allocated_bytes == 6 * MIB


def test_it_is_written_as_pytorch_writes_it(tmp_path: Path) -> None:
    recording = _recording(tagged=True)
    neutracer.load(pickle.dumps(recording)).save(tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    pairs = [(e["action"], e.get("internal_metadata")) for e in again["device_traces"][0]]
    theirs = recording["device_traces"][0]
    assert pairs == [(e["action"], e.get("internal_metadata")) for e in theirs]


def test_an_action_of_that_name_in_a_file_is_nothing_special() -> None:
    recording = _recording(tagged=False)
    recording["device_traces"][0].append(event("internal_alloc", BASE, MIB, 1050))
    snap = neutracer.load(pickle.dumps(recording))
    assert snap.events[6].action == "internal_alloc"
    assert snap.timeline().peak("allocated").bytes == 14 * MIB


@pytest.mark.parametrize(
    "name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
)
def test_settings_are_read_under_the_name_of_each_device(name: str) -> None:
    """The names of ROCm and XPU are PyTorch's own; no such machine was at hand."""
    recording = _recording(tagged=False)
    recording["allocator_settings"] = {name: "roundup_power2_divisions:4"}
    snap = neutracer.load(pickle.dumps(recording))
    assert snap.settings_in_force["text"] == "roundup_power2_divisions:4"
