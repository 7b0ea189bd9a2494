# SPDX-License-Identifier: Apache-2.0
"""The cycle tools on a model of a library that other people wrote."""

from __future__ import annotations

import gc
import warnings

import pytest

import neutracer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
cases = pytest.importorskip("cycle_cases")


def tiny_model() -> object:
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


def train(model: object, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 64, (2, 16))
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def model() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny_model()


def test_training_is_watched_in_silence(model: object) -> None:
    with cases.quiet_collector(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(model, 1)
        gc.collect()
        with neutracer.warn_tensor_cycles(device="cpu") as watch:
            train(model, 3)
            gc.collect()
    held = sum(tensor.storage_bytes for cycle in watch.cycles for tensor in cycle.tensors)
    assert watch.status["refused"] == 0
    # Whatever the library leaves behind, it is not the model.
    assert held < sum(p.numel() * 4 for p in model.parameters())


def test_cycle_that_keeps_the_model_is_named() -> None:
    with cases.quiet_collector(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = tiny_model()
        parameters = sum(p.untyped_storage().nbytes() for p in set(made.parameters()))
        made.trainer = cases.Link(model=made)
        with neutracer.warn_tensor_cycles(device="cpu") as watch:
            del made
            gc.collect()
    (cycle,) = [cycle for cycle in watch.cycles if "trainer" in cycle.chain]
    assert cycle.bytes >= parameters
    assert cycle.cut in ("Link.model", "GPT2LMHeadModel.trainer")
