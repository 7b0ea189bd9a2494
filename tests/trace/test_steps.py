# SPDX-License-Identifier: Apache-2.0
"""The steps of a trace: user_metadata, annotations, optimizer, backward, repetition."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from places import TESTS

import neutracer
from neutracer.trace.timeline import Timeline

DATA = TESTS / "data"

#: By snapshot: how its steps are found, and how many its program made.
FOUND = {
    "train_resnet_healthy": ("optimizer", 5),
    "train_resnet_late_zero_grad": ("optimizer", 5),
    "leak_list": ("optimizer", 60),
    "metadata": ("user_metadata", 3),
    "cpp_stacks": ("backward", 3),
    "create_graph_leak": ("backward", 20),
    "attention_math": ("repetition", 6),
    "attention_flash": ("repetition", 6),
    "multi_stream": ("repetition", 50),
    "cycle_nodes": ("none", 0),
    "weight_streaming": ("none", 0),
    "foreign_memory": ("none", 0),
}


def timeline(name: str) -> Timeline:
    return neutracer.load(DATA / f"{name}.pickle.xz").timeline()


def without(name: str, **changes: Any) -> Timeline:
    """A snapshot's timeline with some keys of the file replaced."""
    source = neutracer.load(DATA / f"{name}.pickle.xz").to_dict()
    trace = source["device_traces"][0]
    if changes.get("no_metadata"):
        for entry in trace:
            entry.pop("user_metadata", None)
    if changes.get("no_annotations"):
        source["external_annotations"] = []
    if changes.get("no_user_ranges"):
        source["external_annotations"] = [
            entry
            for entry in source["external_annotations"]
            if entry["name"].startswith("Optimizer.")
        ]

    return neutracer.load(pickle.dumps(source)).timeline()


@pytest.mark.parametrize("name", FOUND)
def test_bundled_programs_show_their_steps(name: str) -> None:
    tl = timeline(name)
    assert (tl.steps.how, len(tl.steps)) == FOUND[name]
    assert tl.steps.explanation.endswith(".")
    # In order and apart.
    end = 0
    for step in tl.steps:
        assert end <= step.first < step.end <= len(tl)
        end = step.end


def test_resnet_steps_begin_with_images() -> None:
    tl = timeline("train_resnet_healthy")
    for step in tl.steps:
        at = step.first
        while tl.events[at].action != "alloc":
            at += 1
        assert tl.events[at].stack[0].line == 73
    later = [step.end - step.first for step in tl.steps[1:-1]]
    assert max(later) == min(later)


def test_step_of_an_event_is_found() -> None:
    steps = timeline("metadata").steps
    assert [steps.of(step.first) for step in steps] == [0, 1, 2]
    assert [steps.of(step.end - 1) for step in steps] == [0, 1, 2]
    assert steps.of(10**9) is None
    assert timeline("cycle_nodes").steps.of(3) is None


def test_ranges_with_numbers_are_steps() -> None:
    tl = without("metadata", no_metadata=True)
    by_text = timeline("metadata").steps
    assert tl.steps.how == "annotations"
    assert "## step # ##" in tl.steps.explanation
    assert [step.first for step in tl.steps] == [step.first for step in by_text]


def test_optimizer_ranges_end_the_steps() -> None:
    tl = without("metadata", no_metadata=True, no_user_ranges=True)
    assert (tl.steps.how, len(tl.steps)) == ("optimizer", 3)


def test_optimizer_stacks_end_the_steps() -> None:
    tl = without("leak_list", no_annotations=True)
    assert (tl.steps.how, len(tl.steps)) == ("optimizer", 60)


def test_backward_ends_steps_without_optimizer() -> None:
    tl = without("train_resnet_healthy", no_annotations=True)
    by_range = timeline("train_resnet_healthy").steps
    assert len(tl.steps) == 5
    assert [step.first for step in tl.steps][1:] == [step.first for step in by_range][1:]


def test_each_attention_step_makes_its_input() -> None:
    tl = timeline("attention_math")
    lengths = [
        entry["T"] for entry in json.loads((DATA / "attention_math.json").read_text())["series"]
    ]
    first = [tl.events[step.first].size for step in tl.steps]
    assert first == [2 * length * 1024 * 2 for length in lengths]


def test_empty_trace_has_no_steps() -> None:
    tl = neutracer.load(
        b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\rdevice_traces\x94]\x94u."
    ).timeline()
    assert len(tl.steps) == 0
    assert tl.steps[:] == ()
