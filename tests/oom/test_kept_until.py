# SPDX-License-Identifier: Apache-2.0
"""What is kept until an epoch ends, graphs that backward keeps, gradients of each sample."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from oom_snapshots import MIB, Recording, explained

import neutracer
from neutracer.oom.steps import rounds_before


def advice_of(verdict: neutracer.reports.Verdict) -> list[str]:
    return [str(note) for note in verdict.advice]


def released_at(verdict: neutracer.reports.Verdict) -> str:
    """The line that the remedy says to let go of memory at."""
    assert verdict.kind == "leak"
    assert verdict.remedy is not None
    assert verdict.remedy.action == "release"
    return str(verdict.remedy.place)


# ---- kept until an epoch ends ----------------------------------------------------------------


def epochs(lengths: Iterable[int], mib: float = 10, beside: float = 0) -> Recording:
    """Steps that each keep a block, which all go at the end of an epoch but the last one's; and
    one of `beside` MiB, which stays."""
    recording = Recording()
    scratch = recording.segment(20)
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
            if beside:
                recording.own(beside, "keep")
            recording.free(block)
    recording.metadata = f"step {number}"
    recording.fail(30, device_free=0, stack="forward")
    return recording


@pytest.mark.parametrize("lengths", [(10, 10, 30), (12, 30), (6, 9, 14, 22)])
def test_list_of_an_epoch_is_named(lengths: tuple[int, ...]) -> None:
    first = explained(epochs(lengths), garbage_bytes=0).verdicts[0]
    assert released_at(first) == "cache (work.py:44)"
    times = "1 time" if len(lengths) == 2 else f"{len(lengths) - 1} times"
    assert advice_of(first) == [
        "reduce each to what is needed as it comes, or move it to the CPU: cache (work.py:44)",
        f"it was let go of {times} before, after less of it",
    ]
    # What the steps since then have kept, and not all that ever was.
    assert first.bytes == lengths[-1] * 10 * MIB


def test_little_that_stays_hides_no_list_of_an_epoch() -> None:
    first = explained(epochs((10, 10, 30), beside=0.5), garbage_bytes=0).verdicts[0]
    assert released_at(first) == "cache (work.py:44)"


def test_it_may_be_garbage_where_nobody_knows() -> None:
    verdicts = explained(epochs((10, 10, 30))).verdicts
    assert (verdicts[0].kind, verdicts[0].bytes) == ("cycle_garbage", 30 * 10 * MIB)
    assert "leak" not in [one.kind for one in verdicts]


@pytest.mark.parametrize("lengths", [(30, 30), (30, 12), (40, 40, 41), (10, 10, 10, 6)])
def test_what_fitted_before_was_not_in_the_way(lengths: tuple[int, ...]) -> None:
    kinds = [one.kind for one in explained(epochs(lengths), garbage_bytes=0).verdicts]
    assert kinds == ["capacity"]


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
    recording.fail(130, device_free=0, stack="forward")
    return recording


def test_rounds_of_a_line_that_makes_three_blocks_in_each() -> None:
    recording = evaluation()
    timeline = neutracer.load(recording.dumped()).timeline()
    found = rounds_before(timeline, len(timeline) - 1)
    assert found is not None
    assert found.is_after_training
    assert len(found.begins) == 12
    first = explained(recording, garbage_bytes=0).verdicts[0]
    assert released_at(first) == "cache (work.py:44)"
    # What the round that failed has made may be in use yet.
    assert first.bytes == 11 * 10 * MIB


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
    first = explained(recording, garbage_bytes=0).verdicts[0]
    assert released_at(first) == "sharpness (work.py:61)"
    assert advice_of(first) == [
        "the graph of a backward pass is kept, as by backward(create_graph=True), which makes "
        "parameter and gradient keep each other alive: sharpness (work.py:61)",
        "where one step sums the gradients of several backward passes, pass create_graph=True to "
        "the last alone; else set every parameter's .grad to None as soon as it has been used "
        "(model.zero_grad(), behind optimizer.step() where there is one), or take "
        "torch.autograd.grad(..., create_graph=True) in place of backward() and put nothing into "
        ".grad",
    ]
    # Of each of ten steps all but the first gradient.
    assert first.bytes == 10 * (46 + 10 * activations_kept) * MIB


def test_models_that_are_kept_have_one_gradient_each() -> None:
    first = explained(passes(keeps_graph=False, keeps_models=True), garbage_bytes=0).verdicts[0]
    assert released_at(first) == "make_model (work.py:50)"
    assert advice_of(first) == [
        "let go of the models, their gradients and optimizers, that are made here: "
        "make_model (work.py:50)",
        "neutracer.why_alive(parameter) and find_autograd_cycles() say what keeps them",
    ]
    assert first.bytes == 10 * (8 + 8) * MIB


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
    first = explained(recording, garbage_bytes=0).verdicts[0]
    assert first.kind == "leak"
    assert any("create_graph" in words for words in advice_of(first)) == is_graph


# ---- gradients of each sample ------------------------------------------------------------------


def gradients(mib: float, *, is_sharded: bool = False) -> neutracer.reports.Verdict:
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
    return explained(recording, garbage_bytes=0).verdicts[0]


def test_more_than_one_gradient_each_is_of_the_batch() -> None:
    first = gradients(400)
    assert first.kind == "capacity"
    assert first.remedy is not None
    assert first.remedy.action == "smaller_step"
    assert advice_of(first) == [
        "this is more than one gradient for each parameter: of each sample, or of each output. "
        "Fewer at a time: a smaller batch, or chunk_size= of torch.func.vmap and jacrev"
    ]


@pytest.mark.parametrize(("mib", "is_sharded"), [(72, False), (400, True)])
def test_one_gradient_each_is_of_the_model(mib: float, is_sharded: bool) -> None:
    first = gradients(mib, is_sharded=is_sharded)
    assert first.kind == "capacity"
    assert first.remedy is not None
    assert first.remedy.action == "shard"
    assert advice_of(first) == [
        "free gradients early: optimizer.zero_grad(set_to_none=True) before the forward",
        "load the weights in a smaller dtype, or shard them over devices",
    ]
