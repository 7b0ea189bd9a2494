# SPDX-License-Identifier: Apache-2.0
"""What blocks are is asked from the tensors of the process, and kept beside the file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from bundle import snapshot

import neutracer
from neutracer.recording.recorder import living_tensors, tensors_and_trained
from neutracer.trace.beside import TENSOR_CATEGORIES, beside_file, plain_tensors
from neutracer.trace.roles import CATEGORIES, FIRST_TOLD, RULES

torch = pytest.importorskip("torch")
nn = torch.nn


def test_parameters_gradients_and_states_are_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    told = living_tensors("cpu")[0]
    for parameter in model.parameters():
        assert told[parameter.data_ptr()] == "parameter"
        assert told[parameter.grad.data_ptr()] == "gradient"
        state = optimizer.state[parameter]
        assert told[state["exp_avg"].data_ptr()] == "optimizer_state"
        assert told[state["exp_avg_sq"].data_ptr()] == "optimizer_state"
    assert told[model[1].running_mean.data_ptr()] == "parameter"
    assert torch.ones(3).data_ptr() not in told
    assert living_tensors("cuda") == {}


def test_parameters_of_optimizers_are_trained_unless_they_are_copies() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    assert {id(one) for one in model.parameters()} <= tensors_and_trained("cpu")[1]
    masters = [torch.zeros(4, 4, requires_grad=True) for _ in range(5)]
    other = torch.optim.SGD(masters)
    assert tensors_and_trained("cpu")[1] == frozenset()
    del optimizer, other


def test_nobodys_python_runs_for_it() -> None:
    ran = []

    class Proud(nn.Module):
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattribute__(name)

    model = Proud()
    model.line = nn.Linear(2, 2)
    ran.clear()
    living_tensors("cpu")
    assert ran == []


def test_rules_for_it_come_last() -> None:
    names = [category for category, _ in list(RULES.values())[FIRST_TOLD:]]
    assert tuple(names) == TENSOR_CATEGORIES
    assert set(TENSOR_CATEGORIES) <= set(CATEGORIES)


def test_what_was_told_decides_and_comes_back_from_the_file(tmp_path: Path) -> None:
    snap = snapshot("leak_list")
    rows = snap.timeline().alive("end")
    address = rows["address"][len(rows) - 1]
    told = {snap.devices[0]: {address: "optimizer_state"}}
    path = tmp_path / "x.pickle.gz"
    snap.save(path)
    (tmp_path / "x.pickle.gz.json").write_text(json.dumps({"tensors": plain_tensors(told)}))
    loaded = neutracer.load(path)
    assert loaded.beside.tensors == told
    for one in (loaded, pickle.loads(pickle.dumps(loaded))):
        timeline = one.timeline()
        columns = timeline.allocations
        for row in range(len(columns)):
            is_told = columns["free_event"][row] == -1 and columns["address"][row] == address
            rule = timeline.categories.rule(row)[0]
            assert (rule == "held-as-state") == is_told
        alive = timeline.alive("end")
        assert alive["category"][list(alive["address"]).index(address)] == "optimizer_state"


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {},
        {"tensors": 3},
        {"tensors": {"x": {}, "0": []}},
        {"tensors": {"0": {"parameter": 7, "gradient": ["a"], "weights": [1]}}},
        {"process": 3},
    ],
)
def test_a_file_beside_that_says_nothing_sound_is_passed_over(tmp_path: Path, plain: Any) -> None:
    (tmp_path / "x.json").write_text(json.dumps(plain))
    assert beside_file(str(tmp_path / "x.pickle")).tensors == {}
