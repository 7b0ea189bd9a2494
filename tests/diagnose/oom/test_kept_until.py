# SPDX-License-Identifier: Apache-2.0
"""What is kept until an epoch ends, graphs that backward keeps, gradients of each sample."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from oom_snapshots import MIB, Recording

import neutracer
from neutracer.diagnose.oom.rounds import rounds_before

#: The process knows that no garbage holds anything.
CLEAN = neutracer.OomFacts(garbage_bytes=0)


def explained(recording: Recording, **keys: object) -> neutracer.ExplainReport:
    return neutracer.explain(recording.dumped(), **keys)  # type: ignore[arg-type]


def advice_of(verdict: neutracer.Verdict) -> str:
    return " ".join(note.text for note in verdict.advice)


# ---- kept until an epoch ends ----------------------------------------------------------------


def epochs(lengths: Iterable[int], mib: float = 8) -> Recording:
    """Steps that each keep a block, which all go at the end of an epoch but the last one's."""
    recording = Recording()
    scratch = recording.segment(40)
    kept: list[int] = []
    number = 0
    for length in lengths:
        for start in kept:
            recording.free(start)
            recording.release(start)
        kept.clear()
        for _ in range(length):
            recording.metadata = f"step {number}"
            number += 1
            block = recording.alloc(scratch, 20, "forward")
            kept.append(recording.own(mib, "cache"))
            recording.free(block)
    recording.metadata = f"step {number}"
    recording.oom(30, device_free=0, stack="forward")
    return recording


@pytest.mark.parametrize("lengths", [(10, 10, 30), (12, 30), (6, 9, 14, 22)])
def test_list_of_an_epoch_is_named(lengths: tuple[int, ...]) -> None:
    first = explained(epochs(lengths), facts=CLEAN).verdicts[0]
    assert first.kind == "leak"
    assert first.remedy is not None
    assert (first.remedy.action, str(first.remedy.place)) == ("release", "cache (work.py:44)")
    times = "1 time" if len(lengths) == 2 else f"{len(lengths) - 1} times"
    assert f"let go of {times} before" in advice_of(first)
    # What the steps since then have kept, and not all that ever was.
    assert first.bytes <= lengths[-1] * 8 * MIB


def test_it_may_be_garbage_where_nobody_knows() -> None:
    kinds = [one.kind for one in explained(epochs((10, 10, 30))).verdicts]
    assert "leak" not in kinds


@pytest.mark.parametrize("lengths", [(30, 30), (30, 12), (40, 40, 41), (10, 10, 10, 6)])
def test_what_fitted_before_was_not_in_the_way(lengths: tuple[int, ...]) -> None:
    kinds = [one.kind for one in explained(epochs(lengths), facts=CLEAN).verdicts]
    assert "leak" not in kinds


def evaluation() -> Recording:
    """Training, and then rounds of which one line makes the first block and the last two, of which
    it keeps one."""
    recording = Recording()
    scratch = recording.segment(100)
    for _ in range(8):
        for stack in ("forward", "backward", "optimizer"):
            recording.free(recording.alloc(scratch, 20, stack))
    for _ in range(12):
        first = recording.alloc(scratch, 10, "cache")
        for _ in range(6):
            recording.free(recording.alloc(scratch + 50 * MIB, 10, "forward"))
        recording.free(recording.alloc(scratch + 80 * MIB, 5, "cache"))
        recording.own(10, "cache")
        recording.free(first)
    recording.oom(30, device_free=0, stack="forward")
    return recording


def test_rounds_of_a_line_that_makes_three_blocks_in_each() -> None:
    recording = evaluation()
    timeline = neutracer.load(recording.dumped()).timeline()
    found = rounds_before(timeline, len(timeline) - 1)
    assert found is not None
    assert found.is_after_training
    assert len(found.begins) == 12
    first = explained(recording, facts=CLEAN).verdicts[0]
    assert (first.kind, first.bytes) == ("leak", 11 * 10 * MIB)


# ---- graphs that a backward pass keeps ---------------------------------------------------------


def passes(
    *, keeps_graph: bool, keeps_models: bool, activations_kept: int = 3, steps: int = 10
) -> Recording:
    """Steps that make a model, run it forward and backward, and keep parts of it all. No stack
    in the backward pass, as in the threads of autograd."""
    recording = Recording()
    recording.own(20, "keep")
    for number in range(steps):
        recording.metadata = f"step {number}"
        model = recording.own(8, "build")
        activations = [recording.own(10, "forward") for _ in range(3)]
        seed = recording.own(2, "seed")
        through = [recording.own(10, "") for _ in range(3)]
        gradient = recording.own(8, "")
        loose = [seed]
        loose += [] if keeps_graph else [*activations, *through]
        loose += activations[activations_kept:] if keeps_graph else []
        loose += [] if keeps_graph or keeps_models else [model, gradient]
        for start in loose:
            recording.free(start)
            recording.release(start)
    recording.metadata = f"step {steps}"
    recording.oom(30, device_free=0, stack="forward")
    return recording


@pytest.mark.parametrize("activations_kept", [1, 2, 3])
def test_graph_that_backward_keeps_is_told_by_its_call(activations_kept: int) -> None:
    recording = passes(keeps_graph=True, keeps_models=True, activations_kept=activations_kept)
    first = explained(recording, facts=CLEAN).verdicts[0]
    assert first.kind == "leak"
    assert "create_graph=True" in advice_of(first)
    assert first.remedy is not None
    assert (first.remedy.action, str(first.remedy.place)) == ("release", "sharpness (work.py:61)")


def test_models_that_are_kept_have_one_gradient_each() -> None:
    first = explained(passes(keeps_graph=False, keeps_models=True), facts=CLEAN).verdicts[0]
    assert first.kind == "leak"
    assert "create_graph" not in advice_of(first)
    assert first.remedy is not None
    assert str(first.remedy.place) == "make_model (work.py:50)"


def of_one_model(*, model: float, gradients: float, evaluates: bool = False) -> Recording:
    """Steps of a model that stays, which keep all that its modules make, and so many MiB of what
    each backward pass makes."""
    recording = Recording()
    scratch = recording.segment(10)
    if model:
        recording.own(model, "build")
    for number in range(24):
        recording.metadata = f"step {number}"
        recording.free(recording.alloc(scratch, 10))
        for _ in range(3):
            recording.own(4, "forward")
        if evaluates and number % 3:
            continue
        seed = recording.own(2, "seed")
        recording.own(gradients, "")
        recording.free(seed)
        recording.release(seed)
    recording.metadata = "step 24"
    recording.oom(30, device_free=0, stack="forward")
    return recording


@pytest.mark.parametrize(
    ("model", "gradients", "evaluates", "is_graph"),
    [
        (8, 20, False, True),
        # Steps that only run forward say nothing of it.
        (8, 20, True, True),
        # One gradient for each parameter.
        (8, 8, False, False),
        # What would be one for each is not known.
        (0, 20, False, False),
    ],
)
def test_what_backward_leaves_is_compared_with_the_parameters(
    model: float, gradients: float, evaluates: bool, is_graph: bool
) -> None:
    recording = of_one_model(model=model, gradients=gradients, evaluates=evaluates)
    first = explained(recording, facts=CLEAN).verdicts[0]
    assert first.kind == "leak"
    assert ("create_graph" in advice_of(first)) == is_graph


# ---- gradients of each sample ------------------------------------------------------------------


def gradients(mib: float, *, is_sharded: bool = False) -> neutracer.Verdict:
    """The first verdict where the first backward pass has made gradients of so many MiB."""
    recording = Recording()
    for _ in range(4):
        recording.own(10, "build")
    for _ in range(4):
        recording.own(2, "gather" if is_sharded else "forward")
    recording.own(1, "seed")
    for _ in range(8):
        recording.own(mib / 8, "backward")
    recording.oom(60, device_free=0, stack="backward")
    return explained(recording, facts=CLEAN).verdicts[0]


def test_more_than_one_gradient_each_is_of_the_batch() -> None:
    first = gradients(400)
    assert first.kind == "capacity"
    assert first.remedy is not None
    assert first.remedy.action == "smaller_step"
    assert "chunk_size" in advice_of(first)


@pytest.mark.parametrize(("mib", "is_sharded"), [(72, False), (400, True)])
def test_one_gradient_each_is_of_the_model(mib: float, is_sharded: bool) -> None:
    first = gradients(mib, is_sharded=is_sharded)
    assert "chunk_size" not in advice_of(first)
