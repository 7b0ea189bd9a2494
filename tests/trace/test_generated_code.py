# SPDX-License-Identifier: Apache-2.0
"""Frames of code that torch.fx generated, with the node and the model's own line
(`augment_with_fx_traces`, torch 2.10): read, written as they were, and the place of a block.
The recordings are made by hand after PyTorch 2.15.0's `_augment_frames`."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.trace.stacks import Frame
from tests.helpers.small_snapshots import BASE, MIB, block, event, segment

TRACE = (
    '  File "/srv/jobs/train.py", line 40, in step\n    loss = model(batch)\n'
    '  File "/srv/jobs/model.py", line 12, in forward\n    return self.linear(x)\n'
)


def _generated(line: int, **fx: Any) -> dict[str, Any]:
    frame = {"name": "forward", "filename": "/tmp/torchinductor/fx_generated_a1.py", "line": line}
    return {**frame, **fx}


def _recording() -> dict[str, Any]:
    """4 MiB and 8 MiB of generated lines, and 2 MiB of one of which nothing is known."""
    fx = {"fx_node_op": "call_function", "fx_node_target": "aten.addmm.default"}
    stacks = [
        [_generated(7, **fx, fx_node_name="addmm", fx_original_trace=TRACE)],
        [_generated(8, **fx, fx_node_name="addmm_1", fx_original_trace=TRACE)],
        [_generated(9)],
    ]
    trace, blocks, at = [event("segment_alloc", BASE, 20 * MIB, 1000)], [], BASE
    for number, (frames, size) in enumerate(zip(stacks, (4, 8, 2), strict=True)):
        trace.append(event("alloc", at, size * MIB, 1010 + number, frames=frames))
        held = block(at, size * MIB, "active_allocated", size * MIB)
        blocks.append({**held, "frames": frames})
        at += size * MIB
    return {"segments": [segment(BASE, [*blocks, block(at, 6 * MIB)])], "device_traces": [trace]}


def test_place_is_the_models_line_with_its_node() -> None:
    held = neutracer.load(pickle.dumps(_recording())).timeline().holders(by="place")
    assert {one.key: one.bytes for one in held} == {
        "addmm_1 in forward (model.py:12)": 8 * MIB,
        "addmm in forward (model.py:12)": 4 * MIB,
        "forward (fx_generated_a1.py:9)": 2 * MIB,
    }
    said = neutracer.report(pickle.dumps(_recording())).to_dict()
    assert "addmm_1 in forward" in str(said)


def test_frames_have_what_pytorch_wrote() -> None:
    snap = neutracer.load(pickle.dumps(_recording()))
    (first,) = snap.blocks[0].stack
    assert first == ("/tmp/torchinductor/fx_generated_a1.py", 7, "forward")
    assert first.fx_node_name == "addmm"
    assert [frame.name for frame in first.model] == ["forward", "step"]
    told = json.loads(json.dumps(first.to_dict()))
    assert told == _recording()["segments"][0]["blocks"][0]["frames"][0]
    twin = pickle.loads(pickle.dumps(first))
    assert (twin, twin.to_dict()) == (first, first.to_dict())
    (plain,) = snap.blocks[2].stack
    assert type(plain) is Frame


def test_files_keep_it(tmp_path: Path) -> None:
    snap = neutracer.load(pickle.dumps(_recording()))
    snap.save(tmp_path / "again.pickle")
    again = pickle.loads((tmp_path / "again.pickle").read_bytes())
    for key in ("segments", "device_traces"):
        assert again[key] == _recording()[key]
    assert copy.deepcopy(snap).to_dict() == again


def test_nothing_known_is_no_node() -> None:
    recording = _recording()
    nothing = {"fx_node_op": None, "fx_node_name": None, "fx_node_target": None}
    recording["device_traces"][0][1]["frames"] = [_generated(7, **nothing)]
    snap = neutracer.load(pickle.dumps(recording))
    assert type(snap.events[1].stack[0]) is type(snap.events[3].stack[0])


@pytest.mark.parametrize("key", ["fx_node_op", "fx_node_name", "fx_original_trace"])
def test_other_types_are_refused(key: str) -> None:
    recording = _recording()
    recording["device_traces"][0][1]["frames"] = [_generated(7, **{key: 5})]
    with pytest.raises(neutracer.SnapshotError, match=f"'{key}' is not a string"):
        neutracer.load(pickle.dumps(recording))


def test_outcomes_of_what_if_keep_it() -> None:
    plan = neutracer.what_if(pickle.dumps(_recording()), "expandable_segments:True")
    made = plan["expandable_segments:True"].snapshot()
    assert made.timeline().allocations[0].stack[0].fx_node_name == "addmm"
