# SPDX-License-Identifier: Apache-2.0
"""Whose a file is, and the line that represents a stack."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from places import TESTS

import neutracer
from neutracer.trace.beside import beside_file
from neutracer.trace.stacks import NONE, UNKNOWN_PLACE, Frame, Owner, Places, origin_of, place_of

SITE = "/env/lib/python3.12/site-packages"

OWN = [
    "/srv/jobs/train.py",
    "train.py",
    "C:\\work\\train.py",
    "/srv/jobs/torch/train.py",
    "/srv/src/transformers/src/transformers/models/gpt2/modeling_gpt2.py",
    "/tmp/ipykernel_811/2041.py",
    "<ipython-input-3-0c7c>",
    "<stdin>",
    "<string>",
    "/srv/app.pyz/main.py",
    "/srv/lib/train.py",
    "\\\\host\\share\\train.py",
    "/srv/bin/train.py",
    "/srv/neutracer/train.py",
]
TORCH = [
    f"{SITE}/torch/nn/modules/conv.py",
    "/usr/lib/python3/dist-packages/torch/optim/sgd.py",
    "C:\\env\\Lib\\site-packages\\torch\\nn\\functional.py",
    "/srv/src/pytorch/torch/nn/modules/linear.py",
    "/srv/src/pytorch/torch/_tensor.py",
    "torch/utils/checkpoint.py",
    "/tmp/torchinductor_me/ab/cab.py",
    "<eval_with_key>.7",
    f"{SITE}/triton/runtime/jit.py",
]
PLUMBING = [
    "/usr/lib/python3.10/threading.py",
    "/opt/conda/lib/python3.11/contextlib.py",
    "/Library/Frameworks/Python.framework/Versions/3.11/lib/python3.11/runpy.py",
    "C:\\Python312\\Lib\\contextlib.py",
    "/srv/python312.zip/runpy.py",
    "<frozen runpy>",
    "<decorator-gen-12>",
    "<__array_function__ internals>",
    "/opt/conda/bin/accelerate",
    f"{SITE}/accelerate/hooks.py",
    f"{SITE}/neutracer/cli/run.py",
    "/srv/src/neutracer/neutracer/cli/run.py",
    "/srv/src/neutracer/neutracer/__main__.py",
]
LIBRARIES = {
    f"{SITE}/transformers/trainer.py": "transformers",
    "C:\\env\\Lib\\site-packages\\einops\\einops.py": "einops",
    "/usr/lib/python3/dist-packages/torchvision/models/resnet.py": "torchvision",
    f"{SITE}/timm-1.0-py3.12.egg/timm/layers/mlp.py": "timm",
    "/srv/app.pex/.deps/peft-0.11-py3-none-any.whl/peft/tuners/lora.py": "peft",
    "/srv/.local/lib/python3.10/site-packages/vllm/worker.py": "vllm",
    f"{SITE}/six.py": "",
}


NATIVE = ["c10/core/Allocator.h", "x.cu", "??", "", "/lib/libc.so"]
OWNERS = {
    **dict.fromkeys(OWN, Owner.OWN),
    **dict.fromkeys(TORCH, Owner.TORCH),
    **dict.fromkeys(PLUMBING, Owner.PLUMBING),
    **dict.fromkeys(NATIVE, Owner.NATIVE),
}


@pytest.mark.parametrize(("filename", "owner"), OWNERS.items())
def test_path_tells_the_owner(filename: str, owner: Owner) -> None:
    assert origin_of(filename).owner is owner


@pytest.mark.parametrize(("filename", "package"), LIBRARIES.items())
def test_libraries_have_the_name_of_their_package(filename: str, package: str) -> None:
    assert origin_of(filename) == (Owner.LIBRARY, package)


CONV = Frame(f"{SITE}/torch/nn/modules/conv.py", 548, "_conv_forward")
GELU = Frame(f"{SITE}/transformers/activations.py", 66, "forward")
TRAINER = Frame(f"{SITE}/transformers/trainer.py", 2674, "training_step")
CONTEXT = Frame("/usr/lib/python3.12/contextlib.py", 81, "inner")
MAIN = Frame("/srv/jobs/train.py", 42, "main")
MODEL = Frame("/srv/jobs/model.py", 7, "forward")

STACKS = {
    "the program's own line": ((CONV, MAIN), "main (train.py:42)"),
    "a library called by it": (
        (CONV, GELU, CONTEXT, TRAINER, MAIN),
        "forward (transformers activations.py:66, from train.py:42)",
    ),
    "a library that calls it": ((CONV, MODEL, TRAINER, MAIN), "forward (model.py:7)"),
    "a library alone": ((CONV, TRAINER), "training_step (transformers trainer.py:2674)"),
    "PyTorch alone": ((CONV,), "_conv_forward (conv.py:548)"),
    "nothing": ((), "(no Python stack)"),
    "a node of the backward pass": (
        (
            Frame("??", 0, "c10::cuda::CUDACachingAllocator::malloc(unsigned long)"),
            Frame("R.cpp", 1, "at::(anonymous namespace)::create_out(c10::ArrayRef<long>)"),
            Frame("??", 0, "at::native::mm_cuda(at::Tensor const&)"),
            Frame("??", 0, "torch::autograd::generated::MmBackward0::apply(std::vector<int>&&)"),
            Frame("??", 0, "torch::autograd::Engine::thread_main(int)"),
        ),
        "MmBackward0 (??)",
    ),
    "an operation without a node": (
        (
            Frame("??", 0, "c10::cuda::malloc()"),
            Frame("??", 0, "at::native::(anonymous namespace)::addmm_out(at::Tensor&)"),
            Frame("??", 0, "clone"),
        ),
        "at::native::addmm_out (??)",
    ),
    "the allocator alone": ((Frame("??", 0, "c10::cuda::malloc()"),), "(no Python stack)"),
}


@pytest.mark.parametrize(("stack", "place"), STACKS.values(), ids=STACKS)
def test_place_says_most_of_a_stack(stack: tuple[Frame, ...], place: str) -> None:
    assert str(place_of(stack)) == place


@pytest.mark.parametrize("name", ["train_resnet_healthy", "cpp_stacks", "leak_list"])
def test_places_by_id_are_those_of_the_frames(name: str) -> None:
    snap = neutracer.load(TESTS / "data" / f"{name}.pickle.xz")
    places = Places(snap.stacks)
    assert places[NONE] == UNKNOWN_PLACE
    for stack in set(snap.events.codes("stack")):
        assert places[stack] == place_of(snap.stacks[stack])


def test_report_names_library_and_caller() -> None:
    snap = neutracer.load(TESTS / "data" / "train_resnet_healthy.pickle.xz")
    holders = snap.timeline().holders()
    assert holders[0].key == "forward (torchvision resnet.py:155, from train.py:76)"
    assert not any("conv.py" in str(holder.key) for holder in holders)


def test_installed_folder_is_told_beside_the_file(tmp_path: Path) -> None:
    frames = [("/tmp/wheels/timm/mlp.py", "forward"), ("/tmp/train.py", "main")]
    stack = [{"filename": file, "name": name, "line": 7} for file, name in frames]
    block = {"address": 1, "size": 512, "state": "active_allocated", "frames": stack}
    segment = {"address": 1, "total_size": 512, "segment_type": "small", "blocks": [block]}
    file = tmp_path / "one.pickle"
    file.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    assert str(place_of(neutracer.load(file).blocks[0].stack)) == "forward (mlp.py:7)"
    facts = {"schema": "neutracer.sidecar/1", "libraries": ["/tmp/wheels/", "/", 3]}
    (tmp_path / "one.pickle.json").write_text(json.dumps(facts))
    snap = neutracer.load(file)
    for one in (snap, pickle.loads(pickle.dumps(snap))):
        place = place_of(one.blocks[0].stack)
        assert str(place) == "forward (timm mlp.py:7, from train.py:7)"
        assert [frame.filename for frame in one.blocks[0].stack] == [file for file, _ in frames]


def test_long_list_of_folders_is_cut(tmp_path: Path) -> None:
    facts = {"schema": "neutracer.sidecar/1", "libraries": [f"/lib/{n}" for n in range(100_000)]}
    (tmp_path / "one.pickle.json").write_text(json.dumps(facts))
    assert len(beside_file(str(tmp_path / "one.pickle")).libraries) < 100


def test_holders_with_names_can_be_sent() -> None:
    tl = neutracer.load(TESTS / "data" / "frag_default.pickle").timeline()
    for by in ("place", "stack"):
        holders = tl.holders(by=by)
        assert pickle.loads(pickle.dumps(holders)) == holders
