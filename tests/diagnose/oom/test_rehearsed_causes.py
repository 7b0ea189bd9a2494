# SPDX-License-Identifier: Apache-2.0
"""Programs of torch that run out of memory in a rehearsal: whether the first advice helps them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import neutracer

torch = pytest.importorskip("torch")

STEPS = 16

#: The process knows that no garbage holds anything.
CLEAN = neutracer.OomFacts(garbage_bytes=0)


def model(width: int = 512) -> Any:
    nn = torch.nn
    layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers).cuda()


def batch(rows: int, width: int = 512) -> Any:
    return torch.randn(rows, width, device="cuda")


def sharpness_of_new_models() -> None:
    gc.disable()
    try:
        for _ in range(STEPS):
            one = model()
            measure(one, batch(4096))
    finally:
        gc.enable()


def measure(one: Any, inputs: Any) -> None:
    one(inputs).square().mean().backward(create_graph=True)


def trials_that_are_kept() -> None:
    kept = []
    for _ in range(60):
        kept.append(trial())


def trial() -> Any:
    one = model()
    one(batch(256)).square().mean().backward()
    return one


def gradients_of_each_sample() -> None:
    one = model()
    named = {name: each.detach() for name, each in one.named_parameters()}

    def loss(parameters: Any, sample: Any) -> Any:
        return torch.func.functional_call(one, parameters, (sample,)).square().mean()

    for _ in range(3):
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(named, batch(256))


def predictions_of_an_epoch() -> None:
    one = model()
    optimizer = torch.optim.Adam(one.parameters())
    for length in (10, 40):
        for _ in range(8):
            one(batch(1024)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            kept = [predict(one) for _ in range(length)]
        del kept


def predict(one: Any) -> Any:
    return one(batch(4096)).softmax(-1)


def ran_out(program: Callable[[], None], mib: int) -> neutracer.Verdict:
    snap = neutracer.rehearse(program, steps=1, capacity=f"{mib}MiB")
    return neutracer.explain(snap, facts=CLEAN).verdicts[0]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(
    ("program", "mib", "kind", "action", "function", "said"),
    [
        (sharpness_of_new_models, 800, "leak", "release", "measure", "create_graph=True"),
        (trials_that_are_kept, 150, "leak", "release", "trial", ""),
        (gradients_of_each_sample, 500, "capacity", "smaller_step", None, "chunk_size"),
        (predictions_of_an_epoch, 250, "leak", "release", "predict", ""),
    ],
)
def test_first_advice_is_what_helps(
    program: Callable[[], None],
    mib: int,
    kind: str,
    action: str,
    function: str | None,
    said: str,
) -> None:
    first = ran_out(program, mib)
    assert first.kind == kind
    assert first.remedy is not None
    assert first.remedy.action == action
    assert (first.remedy.place.function if first.remedy.place else None) == function
    advice = " ".join(note.text for note in first.advice)
    assert said in advice
    assert ("create_graph" in advice) == ("create_graph" in said)
