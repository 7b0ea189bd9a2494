# SPDX-License-Identifier: Apache-2.0
"""Gradients that live through the next forward pass: found where they do, and only there."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from bundle import snapshot
from places import TESTS
from rank_files import BACKWARD, BUILD, FORWARD, ZERO, Trace
from small_snapshots import MIB

import neutracer
from neutracer.overview import late_gradients, late_gradients_finding, overview
from neutracer.trace.uses import KEY, Uses

DATA = TESTS / "data"
LATE = "train_resnet_late_zero_grad"


def test_late_zero_grad_is_found() -> None:
    tl = snapshot(LATE).timeline()
    found = late_gradients(tl)
    assert found is not None
    # ResNet-50 has 161 parameters of 25,557,032 float32; blocks are a little larger.
    assert found.count == 161
    assert 25_557_032 * 4 <= found.bytes <= 1.1 * 25_557_032 * 4
    assert found.passes == 4
    assert found.place is not None
    assert (found.place.filename, found.place.line) == ("train.py", 77)
    assert found.peak_bytes == max(tl.allocated[found.forward : found.freed])
    # What the peak really is of the program that frees them first.
    healthy = snapshot("train_resnet_healthy").timeline().peak("allocated").bytes
    assert found.saved_bytes == pytest.approx(tl.peak("allocated").bytes - healthy, rel=0.1)


def test_finding_names_bytes_line_and_fix() -> None:
    report = overview(snapshot(LATE))
    finding = next(f for f in report.findings if f.kind == "late_zero_grad")
    assert finding.bytes > 25_557_032 * 4
    text = " ".join(str(report).split())
    assert "105 MiB of gradients live through the next forward pass" in text
    assert "train.py:77" in text
    assert "optimizer.zero_grad(set_to_none=True) before the forward pass" in text
    shown = report.to_dict()["findings"]
    assert any(entry["kind"] == "late_zero_grad" for entry in shown)


def test_gradients_of_a_process_that_never_ran_short_are_information() -> None:
    timeline = snapshot(LATE).timeline()
    found = [late_gradients_finding(timeline, never_short=one)[0] for one in (False, True)]
    assert [str(one.severity) for one in found] == ["moderate", "info"]


OTHERS = sorted(
    path.name.removesuffix(".pickle.xz")
    for path in DATA.glob("*.pickle.xz")
    if not path.name.startswith(LATE)
)


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_have_no_such_finding(name: str) -> None:
    assert late_gradients_finding(snapshot(name).timeline(), never_short=False) == ()


def test_late_recording_finds_the_first_pass_too() -> None:
    source = snapshot(LATE).to_dict()
    begin = snapshot(LATE).timeline().steps[2].first
    source["device_traces"][0] = source["device_traces"][0][begin:]
    found = late_gradients(neutracer.load(pickle.dumps(source)).timeline())
    assert found is not None
    assert found.passes == 3


def test_trace_that_ends_in_forward_has_none() -> None:
    # The forward pass after the first step, and no more: nothing was freed late yet.
    source: dict[str, Any] = snapshot(LATE).to_dict()
    tl = snapshot(LATE).timeline()
    end = tl.steps[1].first + 200
    source["device_traces"][0] = source["device_traces"][0][:end]
    assert late_gradients(neutracer.load(pickle.dumps(source)).timeline()) is None


def test_gradient_made_after_the_last_backward_pass_is_no_late_one() -> None:
    trace = Trace()
    reduce = [
        {
            "name": "foreach_reduce",
            "filename": "/env/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "line": 1,
        },
        {"name": "train", "filename": "train.py", "line": 9},
    ]
    trace.alloc(4 * MIB, BUILD)
    for _ in range(2):
        kept = trace.alloc(MIB, FORWARD)
        gradient = trace.alloc(4 * MIB, BACKWARD)
        trace.free(kept, BACKWARD)
        trace.free(gradient, ZERO)
    trace.alloc(MIB, FORWARD)
    late = trace.alloc(4 * MIB, reduce)
    trace.free(late, ZERO)
    timeline = neutracer.load(pickle.dumps(trace.snapshot(), protocol=4)).timeline()
    assert "gradient" in timeline.allocations["category"]
    assert late_gradients(timeline) is None


def test_known_uses_decide_where_there_are_some() -> None:
    source: dict[str, Any] = snapshot(LATE).to_dict()
    requests = sum(one["action"] in ("alloc", "oom") for one in source["device_traces"][0])
    uses = Uses()
    for request in range(1, requests + 1):
        uses.request()
        uses.use(request)
    source["allocator_settings"] = {KEY: uses.text(0)}
    assert late_gradients(neutracer.load(pickle.dumps(source)).timeline()) is None
    # Some that no observer saw are told as those of a file without uses.
    for request in range(1, requests + 1):
        uses.lose(request)
    source["allocator_settings"] = {KEY: uses.text(0)}
    found = late_gradients(neutracer.load(pickle.dumps(source)).timeline())
    assert found == late_gradients(snapshot(LATE).timeline())
