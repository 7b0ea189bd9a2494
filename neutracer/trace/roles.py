# SPDX-License-Identifier: Apache-2.0
"""What one frame says about the part of a training program that it belongs to.

What a whole stack says, and which passes follow from it, the core decides (`nt_passes`).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from neutracer._native import core
from neutracer.trace.origins import Owner, origin_of
from neutracer.trace.stacks import NONE, Frame

__all__ = [
    "FRAME_BITS",
    "ROLE_RULES",
    "Passes",
    "Role",
    "own_stacks",
    "passes_and_rules",
    "role_of",
]


class Role(IntEnum):
    """What a stack was doing; the numbers are the core's."""

    EMPTY = 0  # no frames
    USER = 1  # nothing of the below: the program's own lines, and what they call
    MODULE = 2  # inside of a call of an nn.Module
    BUILD = 3  # making, moving or loading a module
    SEED = 4  # backward() making the first gradient, that of the loss
    BACKWARD = 5  # the backward pass
    OPTIMIZER = 6  # inside of an optimizer's step
    STATE = 7  # an optimizer making its state
    ZERO_GRAD = 8  # zero_grad() of an optimizer or module
    SCALER = 9  # the gradient scaler, gradient clipping
    BUCKET = 10  # DistributedDataParallel making its buckets of gradients
    GATHER = 11  # a sharded parameter being put together
    REDUCE = 12  # gradients being reduced to a shard
    CACHE = 13  # a cache of keys and values
    WORKSPACE = 14  # cuBLAS or cuDNN getting a workspace


# More that a frame says, as the core has it.
_TORCH, _OUTSIDE, _REVERSE, _APPLIES, _ALGORITHM = (1 << bit for bit in range(4, 9))

#: These bits by name.
FRAME_BITS: Mapping[str, int] = {
    "TORCH": _TORCH,
    "OUTSIDE": _OUTSIDE,
    "REVERSE": _REVERSE,
    "APPLIES": _APPLIES,
    "ALGORITHM": _ALGORITHM,
}

# Functions of torch/nn/modules/module.py that give a module its tensors.
_BUILDERS = frozenset(
    ("_apply", "convert", "to", "cuda", "half", "bfloat16", "float", "to_empty")
).union(("load_state_dict", "_load_from_state_dict", "register_buffer"))
_CALLS = frozenset(("_call_impl", "_wrapped_call_impl", "_slow_forward"))
# Functions of torch/utils/checkpoint.py that run a piece of forward again for backward.
_RECOMPUTE = frozenset(("unpack_hook", "recompute_fn", "backward"))
_ENGINE = (
    "torch::autograd::Engine::evaluate_function",
    "torch::autograd::Engine::thread_main",
    "torch::autograd::Engine::thread_init",
    "torch::autograd::python::PythonEngine::thread_init",
)
_WORKSPACE = re.compile(r"(?:at::cuda::|at::native::).*(?:CUDABlas\w*|cublas\w*|cudnn)\w*Workspace")
_REDUCER = ("c10d::Reducer::", "c10d::_Reducer")

# Libraries' own loaders of parameters, by package and file: "" is any file.
_LOADERS = re.compile(
    r"/transformers/(?:core_model_loading|modeling_utils|integrations/[a-z_]+)\.py$"
    r"|/accelerate/utils/(?:modeling|offload)\.py$|/accelerate/big_modeling\.py$"
    r"|/diffusers/models/(?:model_loading_utils|modeling_utils)\.py$|/safetensors/torch\.py$"
    r"|/vllm/model_executor/model_loader/|/sglang/srt/model_loader/"
)
_LOADING = re.compile(r"load|set_module|set_param|materialize|dispatch_model|from_pretrained|^to$")
_CACHES = re.compile(
    r"/transformers/cache_utils\.py$|/vllm/.*kv_cache[a-z_]*\.py$|/sglang/srt/mem_cache/"
)
_CACHE_NAME = re.compile(r"kv_?cache", re.IGNORECASE)


@lru_cache(maxsize=1 << 14)
def _says(filename: str, name: str) -> int:
    """What a frame says: a role, and the bits above."""
    if name.startswith(_ENGINE):
        return Role.BACKWARD
    if name.startswith(_REDUCER):
        return Role.BUCKET
    if _WORKSPACE.search(name):
        return Role.WORKSPACE
    path = "/" + filename.replace("\\", "/")
    owner = origin_of(filename).owner
    if owner is not Owner.TORCH:
        return int(_role_outside(path, name)) | _bits_outside(owner, name)
    # Files of PyTorch in a folder that is not called so are what it generates.
    _, _, inside = path.rpartition("/torch/")
    said = _TORCH | int(_role_in_torch(inside, name))
    if inside == "autograd/function.py" and name == "apply":
        said |= _APPLIES
    if name == "step" and inside.startswith("optim/"):
        said |= _ALGORITHM
    return said | _REVERSE * (name == "backward")


def _bits_outside(owner: Owner, name: str) -> int:
    outside = _OUTSIDE * (owner in (Owner.OWN, Owner.LIBRARY))
    return outside | _REVERSE * (name == "backward")


def _role_outside(path: str, name: str) -> Role:
    """The role of a frame that is not in PyTorch's own files."""
    if _CACHE_NAME.search(name) or _CACHES.search(path):
        return Role.CACHE
    if _LOADERS.search(path) and _LOADING.search(name):
        return Role.BUILD
    return Role.USER


def _role_in_torch(path: str, name: str) -> Role:
    """The role of a frame in PyTorch's own file `path`."""
    if path.startswith(("optim/", "distributed/optim/")):
        return _role_in_optim(path, name)
    if path.startswith(("amp/grad_scaler", "cuda/amp/grad_scaler", "nn/utils/clip_grad")):
        return Role.SCALER
    if path == "nn/modules/module.py":
        if name in _CALLS:
            return Role.MODULE
        if name == "zero_grad":
            return Role.ZERO_GRAD
        return Role.BUILD if name in _BUILDERS else Role.USER
    if path == "nn/parallel/distributed.py":
        return Role.BUCKET if name in ("_ddp_init_helper", "_pre_forward") else Role.USER
    if path.startswith("distributed/fsdp/"):
        return _role_in_fsdp(path, name)
    if path.startswith("nn/") and (name in ("__init__", "__deepcopy__") or path == "nn/init.py"):
        return Role.BUILD
    return _role_in_autograd(path, name)


def _role_in_optim(path: str, name: str) -> Role:
    if name == "zero_grad":
        return Role.ZERO_GRAD
    if path == "optim/swa_utils.py":
        return Role.BUILD if name == "__init__" else Role.OPTIMIZER
    if path == "optim/lr_scheduler.py":
        return Role.USER
    return Role.STATE if name in ("_init_group", "__init__") else Role.OPTIMIZER


# Functions of FSDP, in its first and its second form, by what their memory is.
_GATHERS = re.compile(r"all_gather|unshard|unsharded|_alloc_storage|_use_unsharded")
_REDUCES = re.compile(r"reduce|_grad\b|_grads\b|post_backward")
_SHARDS = re.compile(r"init_sharded|_init_|shard_param|flatten|^fully_shard$|^__init__$")

#: The rules above by name, for the page, which applies them in JavaScript (`origins.js`).
ROLE_RULES: Mapping[str, object] = {
    "builders": _BUILDERS,
    "calls": _CALLS,
    "recompute": _RECOMPUTE,
    "engine": _ENGINE,
    "workspace": _WORKSPACE,
    "reducer": _REDUCER,
    "loaders": _LOADERS,
    "loading": _LOADING,
    "caches": _CACHES,
    "cache_name": _CACHE_NAME,
    "gathers": _GATHERS,
    "reduces": _REDUCES,
    "shards": _SHARDS,
}


def _role_in_fsdp(path: str, name: str) -> Role:
    if _REDUCES.search(name) and "pre_" not in name:
        return Role.REDUCE if "collectives" in path or "_grad" in name else Role.USER
    if _GATHERS.search(name):
        return Role.GATHER
    return Role.BUILD if _SHARDS.search(name) else Role.USER


def _role_in_autograd(path: str, name: str) -> Role:
    if path == "autograd/__init__.py":
        return Role.SEED if name == "_make_grads" else Role.USER
    if path == "autograd/graph.py":
        return Role.BACKWARD if name == "_engine_run_backward" else Role.USER
    if path == "utils/checkpoint.py":
        return Role.BACKWARD if name in _RECOMPUTE else Role.USER
    return Role.USER


def role_of(stack: Sequence[Frame]) -> Role:
    """The role of a stack, innermost frame first.

    Example:
        >>> role_of([Frame("/site/torch/optim/adam.py", 178, "_init_group")]).name
        'STATE'
    """
    return Role(core.role_of(array("H", [_says(frame.filename, frame.name) for frame in stack])))


class Passes(NamedTuple):
    """The forward and backward passes of a trace, by events.

    Attributes:
        role: The role of each event. An event without a stack is of the backward pass
            where the trace has one, since autograd's threads have no Python frames.
        backward: Begin and end (after the last event) of each backward pass.
        forward: The events that allocate inside of modules.
        allocates: 1 for each event that allocates, 0 for others.
        stack: The stack id of each event, that of what it is itself: `NONE` for frees where the
            recording has only stacks of allocations.
    """

    role: bytearray
    backward: list[tuple[int, int]]
    forward: Sequence[int]
    allocates: bytes
    stack: memoryview

    def next_forward(self, event: int) -> int | None:
        """The first allocation inside of a module after an event."""
        at = bisect_left(self.forward, event + 1)
        return self.forward[at] if at < len(self.forward) else None


def own_stacks(stack: memoryview, rows: Mapping[str, memoryview]) -> memoryview:
    """The stack of each event, `NONE` for frees.

    PyTorch's recorder gives a free the stack of the block's allocation where it records
    stacks of allocations only (`context="alloc"`): it says nothing of who freed it.

    Args:
        stack: Each event's stack id, as recorded.
        rows: The columns free_event and completed_event of the allocations.
    """
    own = array("I", stack)
    for event in chain(rows["free_event"], rows["completed_event"]):
        if event >= 0:
            own[event] = NONE
    return memoryview(own)


def passes_and_rules(
    timeline: core.Timeline, frames: Sequence[Frame], stack: memoryview, allocates: bytes
) -> tuple[Passes, bytes]:
    """The passes of a trace, and the number of the rule that each allocation falls under.

    Args:
        timeline: The core's timeline.
        frames: The snapshot's frames.
        stack: Each event's stack id, as `own_stacks` gives it where frees have none.
        allocates: 1 for each event that allocates, 0 for others.
    """
    said = array("H", [_says(frame.filename, frame.name) for frame in frames])
    role, backward, forward, rules = core.passes(timeline, said)
    ends = memoryview(backward).cast("i").tolist()
    spans = list(zip(ends[::2], ends[1::2], strict=True))
    return Passes(bytearray(role), spans, memoryview(forward).cast("i"), allocates, stack), rules
