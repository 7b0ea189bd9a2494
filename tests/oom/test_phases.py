# SPDX-License-Identifier: Apache-2.0
"""In which phase a request was made."""

from __future__ import annotations

from collections import Counter

import pytest
from bundle import snapshot
from oom_snapshots import SITE, STACKS

from neutracer import Frame
from neutracer.oom.steps import PHASES, phase_of


def frames(name: str) -> list[Frame]:
    return [Frame(one["filename"], one["line"], one["name"]) for one in STACKS[name]]


@pytest.mark.parametrize("name", ["loading", "backward", "optimizer", "inference"])
def test_stack_alone_tells_most_phases(name: str) -> None:
    assert phase_of(frames(name)).name == name


def test_reading_weights_is_loading() -> None:
    assert phase_of(frames("weights")).name == "loading"


def test_grad_mode_decides_inside_modules() -> None:
    assert phase_of(frames("forward")).name == "unknown"
    assert phase_of(frames("forward"), grad_enabled=True).name == "forward"
    assert phase_of(frames("forward"), grad_enabled=False).name == "inference"


def test_checkpointing_is_forward() -> None:
    stack = [Frame(f"{SITE}/utils/checkpoint.py", 488, "checkpoint"), *frames("program")]
    assert phase_of(stack).name == "forward"


def test_nothing_known_is_unknown() -> None:
    assert phase_of([]).name == "unknown"
    assert phase_of(frames("program")).name == "unknown"


def phases(name: str) -> Counter[str]:
    timeline = snapshot(name).timeline()
    made = [i for i, action in enumerate(timeline.events["action"]) if action == "alloc"]
    some = made[:: max(1, len(made) // 100)]
    return Counter(phase_of(timeline.events[i].stack, timeline, i).name for i in some)


def test_training_has_its_three_phases() -> None:
    for name in ("train_resnet_healthy", "leak_list"):
        found = phases(name)
        assert set(found) == {"forward", "backward", "optimizer"}
        assert set(found) <= set(PHASES)


def test_inference_is_told_by_what_it_frees() -> None:
    found = phases("attention_math")
    assert found["inference"] >= 0.85 * found.total()
    assert not found["backward"]
    assert not found["forward"]
