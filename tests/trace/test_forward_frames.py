# SPDX-License-Identifier: Apache-2.0
"""`forward_frames` of a backward allocation, the stack of the forward operation: read, written
as it was, and the line of what has no Python stack of its own. The recordings are made by hand
from PyTorch's schema; none of a released PyTorch was at hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.trace.stacks import forward_stack
from tests.helpers.small_snapshots import BASE, MIB, block, event, segment

# As Python's traceback module writes a stack: the outermost frame first.
FORWARD = [
    '  File "/srv/jobs/train.py", line 40, in step\n    loss = model(batch)\n',
    '  File "/x/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl\n',
    '  File "/srv/jobs/model.py", line 12, in forward\n    return self.linear(x)\n',
]


def _recording(forward: Any = FORWARD) -> dict[str, Any]:
    """4 MiB of a line of the program, and 8 MiB of a backward pass without a Python stack."""
    own = [{"name": "load", "filename": "/srv/jobs/train.py", "line": 7}]
    trace = [
        event("segment_alloc", BASE, 20 * MIB, 1000),
        event("alloc", BASE, 4 * MIB, 1010, frames=own),
        {**event("alloc", BASE + 4 * MIB, 8 * MIB, 1020, frames=[]), "forward_frames": forward},
    ]
    blocks = [
        block(BASE, 4 * MIB, "active_allocated", 4 * MIB),
        block(BASE + 4 * MIB, 8 * MIB, "active_allocated", 8 * MIB),
        block(BASE + 12 * MIB, 8 * MIB),
    ]
    return {"segments": [segment(BASE, blocks)], "device_traces": [trace]}


def test_backward_block_has_the_line_of_its_forward() -> None:
    timeline = neutracer.load(pickle.dumps(_recording())).timeline()
    held = {holder.key: holder.bytes for holder in timeline.holders(by="place")}
    assert held == {"backward of forward (model.py:12)": 8 * MIB, "load (train.py:7)": 4 * MIB}


def test_report_names_the_forward() -> None:
    page = str(neutracer.report(pickle.dumps(_recording())).to_dict())
    assert "backward of forward" in page
    assert "no Python stack" not in page


def test_column_is_the_text_and_files_keep_the_list(tmp_path: Path) -> None:
    recording = _recording()
    snap = neutracer.load(pickle.dumps(recording))
    assert list(snap.events["forward_frames"]) == [None, None, "".join(FORWARD)]
    snap.save(tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    entries = [entry.get("forward_frames") for entry in again["device_traces"][0]]
    assert entries == [None, None, FORWARD]
    assert neutracer.load(tmp_path / "again.pickle").events[2].to_dict() == snap.events[2].to_dict()


@pytest.mark.parametrize("forward", [[], None, ["an operator of C++"]])
def test_without_a_line_it_has_no_place(forward: Any) -> None:
    timeline = neutracer.load(pickle.dumps(_recording(forward))).timeline()
    keys = [holder.key for holder in timeline.holders(by="place")]
    assert keys == ["(no Python stack)", "load (train.py:7)"]


@pytest.mark.parametrize("forward", ["a text", 7, [7], {"a": 1}])
def test_other_types_are_refused(forward: Any) -> None:
    with pytest.raises(neutracer.SnapshotError, match="'forward_frames' is not a list of strings"):
        neutracer.load(pickle.dumps(_recording(forward)))


def test_frames_are_innermost_first() -> None:
    assert [frame.name for frame in forward_stack("".join(FORWARD))] == [
        "forward",
        "_call_impl",
        "step",
    ]
