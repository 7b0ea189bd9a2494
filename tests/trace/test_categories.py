# SPDX-License-Identifier: Apache-2.0
"""The categories of allocations: rules, shares, holders, on programs that ran."""

from __future__ import annotations

import json
import pickle
from collections import Counter

import pytest
from places import TESTS
from rank_files import BACKWARD, BUILD, FORWARD, MIB, STEP, ZERO, Trace

import neutracer
from neutracer.trace.roles import RULES, Role, role_of
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline

DATA = TESTS / "data"
RESNET = ("train_resnet_healthy", "train_resnet_late_zero_grad")

# Of torchvision's resnet50: parameters, and buffers as large as some of them.
RESNET_PARAMETERS, RESNET_STATISTICS = 161, 106


def timeline(name: str) -> Timeline:
    return neutracer.load(DATA / f"{name}.pickle.xz").timeline()


def frames_of(*names: str) -> list[dict[str, object]]:
    """Frames of the program's own file, innermost first."""
    return [{"filename": "/app/model.py", "line": 3, "name": name} for name in names]


def counts(tl: Timeline) -> Counter[str]:
    return Counter(str(name) for name in tl.allocations["category"])


@pytest.mark.parametrize("name", [path.name for path in sorted(DATA.glob("*.pickle.xz"))])
def test_every_allocation_has_a_rule(name: str) -> None:
    tl = neutracer.load(DATA / name).timeline()
    found = tl.categories
    assert len(found.codes) == len(found.rules) == len(tl.allocations)
    for row in range(0, len(tl.allocations), 97):
        code, sentence = found.rule(row)
        assert RULES[code] == (found.name(row), sentence)
    assert 0.0 <= found.share <= 1.0
    assert sum(found.counts().values()) == len(tl.allocations)


@pytest.mark.parametrize("name", RESNET)
def test_resnet_has_its_parameters_and_states(name: str) -> None:
    tl = timeline(name)
    found = counts(tl)
    assert found["parameter"] == RESNET_PARAMETERS + RESNET_STATISTICS
    assert found["optimizer_state"] == RESNET_PARAMETERS
    assert found["gradient"] == 5 * RESNET_PARAMETERS
    assert found["input"] == 10
    assert tl.categories.share > 0.94


def test_workspaces_of_resnet_are_known() -> None:
    tl = timeline("train_resnet_healthy")
    rules = tl.categories
    kept = [row for row, free in enumerate(tl.allocations["free_event"]) if free == -1]
    large = [row for row in kept if tl.allocations[row].size > 1 << 20]
    spaces = [tl.allocations[row].size for row in large if rules.rule(row)[0] == "workspace"]
    assert spaces == [32 << 20, 32 << 20]
    assert not [row for row in large if rules.name(row) == "unknown"]


def test_resnet_activations_fill_the_peak() -> None:
    holders = timeline("train_resnet_healthy").holders(by="category")
    assert holders[0].key == "activation"
    assert 0.7 < holders[0].share < 0.8


def test_kept_losses_are_not_lost() -> None:
    tl = timeline("leak_list")
    found = counts(tl)
    assert found["parameter"] == 16
    assert found["optimizer_state"] == 32
    assert found["gradient"] == 60 * 16
    kept = [row for row in tl.allocations if row.free_event == -1 and row.alloc_event > 5000]
    leaked = {row.category for row in kept if row.stack and row.stack[0].name == "leak_list"}
    assert leaked <= {"unknown", "activation", "input"}
    assert "unknown" in leaked


def test_inference_has_no_gradients() -> None:
    found = counts(timeline("attention_math"))
    assert not {"gradient", "autograd_detail", "optimizer_state", "parameter"} & set(found)
    assert found["activation"] > 1000


@pytest.mark.parametrize("name", ["frag_default", "weight_streaming", "cycle_nodes"])
def test_programs_without_models_stay_unknown(name: str) -> None:
    tl = timeline(name)
    assert set(counts(tl)) == {"unknown"}
    assert tl.categories.share == 0.0


def test_gradients_that_accumulate_are_gradients() -> None:
    # Three backward passes, never zeroed: the first one's gradients stay.
    tl = timeline("cpp_stacks")
    gradients = [row for row in tl.allocations if row.category == "gradient"]
    assert len(gradients) == 8
    assert all(row.free_event == -1 for row in gradients)


def test_file_without_stacks_stays_unknown() -> None:
    source = neutracer.load(DATA / "train_resnet_healthy.pickle.xz").to_dict()
    for entry in source["device_traces"][0]:
        entry.pop("frames", None)
    for segment in source["segments"]:
        segment["frames"] = []
        for block in segment["blocks"]:
            block["frames"] = []
    tl = neutracer.load(pickle.dumps(source)).timeline()
    assert set(counts(tl)) == {"unknown"}


def test_category_rows_match_the_codes() -> None:
    tl = timeline("metadata")
    assert tl.allocations[5].category == tl.categories.name(5)
    assert list(tl.allocations.codes("category")) == list(tl.categories.codes)


FRAME_ROLES = {
    ("/s/torch/optim/adam.py", "_init_group"): Role.STATE,
    ("/s/torch/optim/adam.py", "step"): Role.OPTIMIZER,
    ("C:\\s\\torch\\optim\\optimizer.py", "zero_grad"): Role.ZERO_GRAD,
    ("/s/torch/nn/modules/module.py", "_call_impl"): Role.MODULE,
    ("/s/torch/nn/modules/module.py", "_apply"): Role.BUILD,
    ("/s/torch/nn/modules/linear.py", "__init__"): Role.BUILD,
    ("/s/torch/autograd/__init__.py", "_make_grads"): Role.SEED,
    ("/s/torch/utils/checkpoint.py", "recompute_fn"): Role.BACKWARD,
    ("/s/torch/amp/grad_scaler.py", "unscale_"): Role.SCALER,
    ("/mine/optim/step.py", "step"): Role.USER,
    ("/s/torch/nn/parallel/distributed.py", "_ddp_init_helper"): Role.BUCKET,
    ("/s/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce"): Role.REDUCE,
    ("/s/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "init_unsharded_param"): Role.GATHER,
    ("/s/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "_init_sharded_param"): Role.BUILD,
    ("/s/torch/optim/swa_utils.py", "__init__"): Role.BUILD,
    ("/env/site-packages/transformers/cache_utils.py", "update"): Role.CACHE,
    ("/env/site-packages/accelerate/utils/modeling.py", "set_module_tensor_to_device"): Role.BUILD,
    ("??", "at::cuda::getCUDABlasLtWorkspace()"): Role.WORKSPACE,
    ("", "at::cuda::(anonymous namespace)::getNewWorkspace()"): Role.WORKSPACE,
    ("", "at::cuda::setWorkspaceForHandle(cublasContext*, CUDAStream)"): Role.WORKSPACE,
}


@pytest.mark.parametrize(("frame", "role"), FRAME_ROLES.items())
def test_one_frame_says_its_role(frame: tuple[str, str], role: Role) -> None:
    assert role_of([Frame(frame[0], 1, frame[1])]) is role
    assert role_of([Frame(frame[0], 1, frame[1]), Frame("/u/x.py", 3, "f")]) is role
    helper = Frame("/s/torch/utils/_foreach_utils.py", 3, "f")
    assert role_of([helper, Frame(frame[0], 1, frame[1])]) is role


def test_inner_frames_decide_between_roles() -> None:
    call = Frame("/s/torch/nn/modules/module.py", 1, "_call_impl")
    step = Frame("/s/torch/optim/lbfgs.py", 1, "step")
    closure = Frame("/s/lightning/pytorch/plugins/precision/precision.py", 1, "_wrap_closure")
    again = Frame("/s/torch/utils/checkpoint.py", 1, "unpack_hook")
    # A closure: the optimizer calls the model.
    assert role_of([call, step]) is Role.MODULE
    # What the closure makes beside that is the program's, not the optimizer's.
    assert role_of([Frame("/u/x.py", 9, "training_step"), closure, step]) is Role.USER
    # A forward pass that is run again for backward.
    assert role_of([call, again]) is Role.BACKWARD
    assert role_of([]) is Role.EMPTY


def test_own_backward_functions_are_backward() -> None:
    apply = Frame("/s/torch/autograd/function.py", 315, "apply")
    assert role_of([Frame("/u/x.py", 9, "backward"), apply]) is Role.BACKWARD
    assert role_of([Frame("/u/x.py", 5, "forward"), apply]) is Role.USER


def test_late_recording_tells_gradients_by_their_end() -> None:
    # The trace of the second half only: its first gradients were there before.
    source = neutracer.load(DATA / "train_resnet_late_zero_grad.pickle.xz").to_dict()
    tl = neutracer.load(pickle.dumps(source)).timeline()
    begin = tl.steps[2].first
    source["device_traces"][0] = source["device_traces"][0][begin:]
    late = neutracer.load(pickle.dumps(source)).timeline()
    assert late.categories.counts()["freed-by-zero-grad"] == RESNET_PARAMETERS
    # Of two copies of each parameter's size one has the optimizer's stack: as in the whole trace.
    assert counts(late)["parameter"] == counts(tl)["parameter"]
    assert counts(late)["optimizer_state"] == RESNET_PARAMETERS
    for segment in source["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    # Without stacks nobody knows which one is the parameter.
    bare = neutracer.load(pickle.dumps(source)).timeline()
    assert counts(bare)["parameter"] == counts(bare)["optimizer_state"] == 0
    rows = range(len(bare.allocations))
    several = [row for row in rows if bare.categories.rule(row)[0] == "one-of-several"]
    # By the stacks: besides them one block of the last layer's forward pass has such a size.
    assert Counter(str(late.allocations[row].category) for row in several) == {
        "parameter": RESNET_PARAMETERS + RESNET_STATISTICS,
        "optimizer_state": RESNET_PARAMETERS,
        "unknown": 1,
    }
    ends = {(row.alloc_event, row.free_event) for row in map(bare.allocations.__getitem__, several)}
    assert ends == {(-1, -1)}


def test_series_of_the_run_are_as_recorded() -> None:
    # What PyTorch said of the steps' peaks is the sum of what the categories hold then.
    tl = timeline("train_resnet_healthy")
    said = json.loads((DATA / "train_resnet_healthy.json").read_text())["series"]
    for step, entry in zip(tl.steps, said, strict=True):
        most = max(range(step.first, step.end), key=lambda event: tl.allocated[event])
        held = sum(holder.bytes for holder in tl.holders(most, by="category", limit=None))
        assert held == entry["peak"]


@pytest.mark.parametrize(("steps", "rebinds"), [(1, False), (3, True)])
def test_what_an_init_makes_is_no_input(steps: int, rebinds: bool) -> None:
    trace = Trace()
    init = [*frames_of("<listcomp>", "__init__"), *BUILD[-1:]]
    weights = [trace.alloc(4 * MIB, init) for _ in range(3)]
    trace.alloc(5 * MIB, frames_of("__init__"))  # a buffer, or an optimizer's state
    for _ in range(steps):
        batch = trace.alloc(3 * MIB, frames_of("train"))
        output = trace.alloc(2 * MIB, FORWARD)
        gradients = [trace.alloc(4 * MIB, BACKWARD) for _ in weights]
        trace.free(output, BACKWARD)
        for place, weight in enumerate(weights if rebinds else ()):
            weights[place] = trace.alloc(4 * MIB, STEP[1:])
            trace.free(weight, STEP[1:])
        trace.free(trace.alloc(MIB, STEP[1:]), STEP[1:])
        for one in (*gradients, batch):
            trace.free(one, ZERO)
    rows = neutracer.load(pickle.dumps(trace.snapshot())).timeline().allocations
    found = {(row.requested_size // MIB, row.category) for row in rows}
    step = {(3, "input"), (2, "activation"), (4, "gradient"), (1, "temporary")}
    assert found == step | {(4, "parameter"), (5, "unknown")}
