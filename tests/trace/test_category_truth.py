# SPDX-License-Identifier: Apache-2.0
"""Categories held against PyTorch's memory profiler, over a whole step of several models.

`tests/gpu/category_truth.py` made the files, on a GPU. The rules were written on the models
of `TUNED`; the other models were not looked at.
"""

from __future__ import annotations

import pytest
from category_agreement import ENDING, Agreement, agreement, read_truth
from places import TESTS

FOLDER = TESTS / "data" / "categories"
MODELS = sorted(path.name.removesuffix(ENDING) for path in FOLDER.glob("*" + ENDING))
TUNED = ("gpt2", "lstm_lm", "resnet50")

pytestmark = pytest.mark.skipif(
    not MODELS, reason="tests/data/categories has no truth of PyTorch's profiler"
)


@pytest.mark.parametrize("name", MODELS)
def test_profiler_saw_every_allocation(name: str) -> None:
    truth = read_truth(FOLDER, name)
    matching = truth["matching"]
    assert matching["matched"] == matching["theirs_in_all"]
    assert "unmatched" not in matching
    assert "sizes_differ" not in matching


@pytest.mark.parametrize("name", MODELS)
def test_profilers_categories_are_ours(name: str) -> None:
    found = agreement(FOLDER, name)
    assert found.agreement >= 0.90, worst(found)
    assert found.precision >= 0.97, worst(found)
    # The profiler contradicts itself rarely.
    assert found.contradicted <= 0.04 * found.named


def worst(found: Agreement) -> list[str]:
    """The largest disagreements."""
    return [
        f"{weight / found.total:.2%} is {theirs}, we say {ours}"
        for (theirs, ours), weight in found.pairs.most_common(12)
        if theirs not in (ours, "unknown")
    ]


@pytest.mark.parametrize("name", MODELS)
def test_blocks_keep_their_stacks_when_the_ring_has_wrapped(name: str) -> None:
    # Gradients that are kept from step to step were made by threads without Python stacks.
    found = agreement(FOLDER, name, late=True)
    assert found.agreement >= (0.80 if name == "vae_rows" else 0.94), worst(found)
    assert found.precision >= 0.97, worst(found)


@pytest.mark.parametrize("name", MODELS)
def test_late_recordings_are_not_guessed(name: str) -> None:
    # Where nothing was recorded of what was there before: less is known, nothing wrong.
    found = agreement(FOLDER, name, late=True, bare=True)
    assert found.precision >= 0.97, worst(found)


def test_models_of_other_kinds_are_there() -> None:
    assert set(TUNED) <= set(MODELS)
    assert len(set(MODELS) - set(TUNED)) >= 3
