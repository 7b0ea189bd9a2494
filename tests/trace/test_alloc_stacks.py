# SPDX-License-Identifier: Apache-2.0
"""Traces whose frees carry the stack of the allocation, as PyTorch's context="alloc" gives."""

from __future__ import annotations

import lzma
import pickle
from functools import cache
from pathlib import Path

import pytest

import neutracer
from neutracer.overview import late_gradients, late_gradients_finding

DATA = Path(__file__).parents[1] / "data"
FREES = ("free_requested", "free_completed")
NAMES = ("train_resnet_late_zero_grad", "train_resnet_healthy")


@cache
def both(name):
    """A recording with all stacks, and what `context="alloc"` would have given of it."""
    whole = pickle.loads(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes()))
    recorded = neutracer.load(pickle.dumps(whole))
    for trace in whole["device_traces"]:
        blocks, segments = {}, {}
        for event in trace:
            action, at = event["action"], event.get("addr")
            known = segments if action.startswith("segment") else blocks
            if action in ("alloc", "segment_alloc"):
                known[at] = event.get("frames", [])
            elif action in (*FREES, "segment_free"):
                event["frames"] = known.get(at, [])
    return recorded.timeline(), neutracer.load(pickle.dumps(whole)).timeline()


@pytest.mark.parametrize("name", NAMES)
def test_frees_are_known_to_be_nobodys(name):
    whole, only = both(name)
    assert whole.facts["frees_known"]
    assert not only.facts["frees_known"]
    frees = [e for e, action in enumerate(only.events["action"]) if action in FREES]
    none = neutracer.trace.stacks.NONE
    assert {only.passes.stack[event] for event in frees} == {none}


@pytest.mark.parametrize("name", NAMES)
def test_passes_and_steps_stay(name):
    whole, only = both(name)
    made = [
        [w.allocates.count(1, *span) for span in w.backward] for w in (whole.passes, only.passes)
    ]
    assert made[0] == made[1]
    assert only.steps.how == whole.steps.how
    firsts = [[t.passes.allocates.find(1, step.first) for step in t.steps] for t in (whole, only)]
    assert firsts[0] == firsts[1]


@pytest.mark.parametrize("name", NAMES)
def test_categories_stay(name):
    whole, only = both(name)
    sizes = whole.allocations.codes("size")
    moved = sum(
        size
        for size, a, b in zip(sizes, whole.categories.codes, only.categories.codes, strict=True)
        if a != b
    )
    assert moved <= 0.01 * sum(sizes)


def test_late_gradients_name_no_line_that_did_not_free_them():
    whole, only = map(late_gradients, both("train_resnet_late_zero_grad"))
    assert (only.count, only.passes, only.bytes) == (whole.count, whole.passes, whole.bytes)
    assert whole.place is not None
    assert only.place is None
    (finding,) = late_gradients_finding(both("train_resnet_late_zero_grad")[1], never_short=False)
    assert finding.evidence[0].text.endswith("freed only then")


def test_retries_are_told_from_calls():
    whole, only = both("train_resnet_healthy")
    assert only.facts["retries"] == whole.facts["retries"]
