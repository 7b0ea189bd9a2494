# SPDX-License-Identifier: Apache-2.0
"""The purpose of each allocation: what a stack was doing, and PyTorch's categories of memory."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from neutracer._native import core
from neutracer.trace.beside import TENSOR_CATEGORIES
from neutracer.trace.stacks import NONE, Frame, Owner, Stacks, origin_of, owner_path
from neutracer.trace.table import Table

# ---- Roles -------------------------------------------------------------------------------

# Roles of single frames; the core derives the roles of stacks, and the passes (`nt_passes`).


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
_TORCH, _OUTSIDE, _REVERSE, _APPLIES, _ALGORITHM, _INIT = (1 << bit for bit in range(4, 10))

#: These bits by name.
FRAME_BITS: Mapping[str, int] = {
    "TORCH": _TORCH,
    "OUTSIDE": _OUTSIDE,
    "REVERSE": _REVERSE,
    "APPLIES": _APPLIES,
    "ALGORITHM": _ALGORITHM,
    "INIT": _INIT,
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
# cuBLAS's is made for a handle, in setWorkspaceForHandle; cuBLASLt's in getCUDABlasLtWorkspace.
_WORKSPACE = re.compile(
    r"at::cuda::(?:\(anonymous namespace\)::)?\w*Workspace"
    r"|at::native::.*(?:CUDABlas\w*|cublas\w*|cudnn)\w*Workspace"
)
_COMPREHENSION = re.compile(r"<(?:listcomp|setcomp|dictcomp|genexpr)>")
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
        # A comprehension is its function's.
        outside = owner in (Owner.OWN, Owner.LIBRARY) and not _COMPREHENSION.match(name)
        said = int(_role_outside(path, name)) | _OUTSIDE * outside | _INIT * (name == "__init__")
        return said | _REVERSE * (name == "backward")
    # Files of PyTorch in a folder that is not called so are what it generates.
    _, _, inside = path.rpartition("/torch/")
    said = _TORCH | int(_role_in_torch(inside, name))
    if inside == "autograd/function.py" and name == "apply":
        said |= _APPLIES
    if name == "step" and inside.startswith("optim/"):
        said |= _ALGORITHM
    return said | _REVERSE * (name == "backward")


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
    "comprehension": _COMPREHENSION,
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
    """The role of a stack, innermost frame first."""
    return Role(core.role_of(array("H", [_says(owner_path(frame), frame.name) for frame in stack])))


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

    If only stacks of allocations are recorded (`context="alloc"`), PyTorch gives each free the
    stack of its block's allocation.
    """
    own = array("I", stack)
    for event in chain(rows["free_event"], rows["completed_event"]):
        if event >= 0:
            own[event] = NONE
    return memoryview(own)


def passes_and_rules(
    timeline: core.Timeline, frames: Sequence[Frame], stack: memoryview, allocates: bytes
) -> tuple[Passes, bytes]:
    """The passes of a trace, and the rule code of each allocation; `stack` and `allocates` are
    those of `Passes`."""
    said = array("H", [_says(owner_path(frame), frame.name) for frame in frames])
    role, backward, forward, rules = core.passes(timeline, said)
    ends = memoryview(backward).cast("i").tolist()
    spans = list(zip(ends[::2], ends[1::2], strict=True))
    return Passes(bytearray(role), spans, memoryview(forward).cast("i"), allocates, stack), rules


# ---- Categories --------------------------------------------------------------------------

#: The names, as PyTorch's memory profiler has them, by code.
CATEGORIES = (
    "unknown",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "parameter",
    "optimizer_state",
)

#: The rules by code, in the core's order: the category that each gives, and what it goes by.
RULES: Mapping[str, tuple[str, str]] = {
    "none": ("unknown", "No rule applies."),
    "module-made": (
        "parameter",
        "Made while a module was built, moved or loaded, and kept to the end, or till after a "
        "module's call.",
    ),
    "as-many-as-gradients": (
        "parameter",
        "There before the trace, never freed, and as many of each size as one backward pass "
        "leaves gradients, without those whose stack says what they are.",
    ),
    "kept-by-optimizer": (
        "optimizer_state",
        "Made inside of an optimizer's step and kept to the end, or past the next backward.",
    ),
    "survives-backward": (
        "gradient",
        "Made in a backward pass, alive after it, and of a size that a parameter has or that "
        "other passes leave too.",
    ),
    "freed-by-zero-grad": ("gradient", "There before the trace, and freed by zero_grad()."),
    "inside-backward": ("autograd_detail", "Made and freed within one backward pass."),
    "scratch": (
        "temporary",
        "Made and freed by one operation: nothing that was made meanwhile outlives it, or all "
        "of it is one line of PyTorch's.",
    ),
    "optimizer-scratch": ("temporary", "Made inside of an optimizer's step and freed with it."),
    "module-output": (
        "activation",
        "Made inside of a module's call outside of backward, and freed before the second "
        "backward pass from there on began.",
    ),
    "after-module": (
        "activation",
        "Made by the program between a module's call and backward (the loss, say), and freed "
        "before the second backward pass from there on began.",
    ),
    "before-module": (
        "input",
        "Made by the program, but not in an __init__, before the first module's call of a pass, "
        "and alive when that began.",
    ),
    "freed-in-backward": (
        "activation",
        "There before the trace, and freed within a backward pass.",
    ),
    "parameter-copy": (
        "parameter",
        "Made by one line of the program before the first backward pass, kept to the end, and "
        "as much as one backward pass leaves gradients: masters, an average.",
    ),
    "gradient-copy": (
        "gradient",
        "Made by one line of the program after each backward pass, and as much as that leaves "
        "gradients: those of masters.",
    ),
    "bucket": ("gradient", "A bucket of DistributedDataParallel, in which gradients are reduced."),
    "gathered": ("parameter", "Made to put sharded parameters together."),
    "reduced": ("gradient", "Made to reduce gradients to their shards."),
    "kv-cache": ("activation", "Made by a cache of keys and values."),
    "workspace": (
        "temporary",
        "A workspace of cuBLAS or cuDNN: by its stack, or as large as one, made by an operation "
        "and never freed.",
    ),
    "scaler-scratch": (
        "temporary",
        "Made inside of the gradient scaler or of gradient clipping, and freed soon.",
    ),
    "line-made": (
        "parameter",
        "Made by a line of the program before the first backward pass, kept to the end or "
        "replaced within an optimizer's step, and as large as a gradient for which there is no "
        "other parameter.",
    ),
    "one-of-several": (
        "unknown",
        "There before the trace, never freed, and of its size there are several for each gradient "
        "that a backward pass leaves: most likely a parameter, or what an optimizer or an average "
        "keeps of it. Nothing in the file says which.",
    ),
    "replaces-parameter": (
        "parameter",
        "Made by an optimizer's step, which then freed the parameter of that size.",
    ),
    "held-as-parameter": (
        "parameter",
        "At the end a module's parameter or buffer, or among an optimizer's parameters: the "
        "process was asked.",
    ),
    "held-as-gradient": ("gradient", "At the end a parameter's .grad: the process was asked."),
    "held-as-state": (
        "optimizer_state",
        "At the end in an optimizer's state: the process was asked.",
    ),
}

#: The number of the first rule that the tensors of the process decide, and not the core.
FIRST_TOLD = len(RULES) - 3

# By action's code, whether it allocates: the core's first.
_IS_ALLOC = b"\x01" + bytes(255)

_RULE_CODES = tuple(RULES)
_OF_RULE = bytes(CATEGORIES.index(category) for category, _ in RULES.values())


class Decided:
    """The passes and categories of a timeline, computed lazily.

    A table's column refers to this instead of to the timeline, which owns the table: without a
    reference cycle, the timeline's memory is freed with its last reference.
    """

    def __init__(
        self, native: core.Timeline, events: Table, stacks: Stacks, tensors: Mapping[int, str]
    ) -> None:
        self._native, self._events, self._stacks = native, events, stacks
        self._tensors = tensors

    @cached_property
    def _both(self) -> tuple[Passes, bytes]:
        codes, action = self._events.codes("stack"), self._events.codes("action")
        rows = self._native.tables()["allocations"]
        ends = {name: memoryview(rows[name]) for name in ("free_event", "completed_event")}
        own = codes if self._native.facts()["frees_known"] else own_stacks(codes, ends)
        is_alloc = bytes(action).translate(_IS_ALLOC)
        return passes_and_rules(self._native, self._stacks.frames, own, is_alloc)

    @property
    def passes(self) -> Passes:
        """The forward and backward passes."""
        return self._both[0]

    @cached_property
    def categories(self) -> Categories:
        """What each allocation was for."""
        rows = self._native.tables()["allocations"]
        ends = {name: memoryview(rows[name]) for name in ("address", "free_event")}
        return Categories(_with_tensors(self._both[1], ends, self._tensors), self._native)


@dataclass(frozen=True)
class Categories:
    """The categories of a timeline's allocations.

    Attributes:
        rules: One a row of `Timeline.allocations`: an index into the rules, in the order of
            `RULES`.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/train_resnet_healthy.pickle.xz").timeline()
        >>> tl.categories.name(0), tl.categories.rule(0)[0]
        ('parameter', 'as-many-as-gradients')
    """

    rules: bytes = field(repr=False)
    _timeline: core.Timeline = field(repr=False, compare=False)

    @cached_property
    def codes(self) -> bytes:
        """One a row of `Timeline.allocations`: an index into `CATEGORIES`."""
        return self.rules.translate(_OF_RULE.ljust(256, b"\0"))

    @cached_property
    def share(self) -> float:
        """Of the bytes that were allocated over the trace (each allocation's size times the
        events it lived), the share that has another category than unknown."""
        weights = core.weigh_codes(self._timeline, self.codes, len(CATEGORIES))
        total = sum(weights)
        return (total - weights[0]) / total if total else 0.0

    def __repr__(self) -> str:
        held = Counter(self.codes)
        parts = (f"{held[code]:,} {name}" for code, name in enumerate(CATEGORIES) if held[code])
        return f"<Categories of {len(self.rules):,} allocations: {', '.join(parts)}>"

    def name(self, row: int) -> str:
        """The category of a row of `allocations`."""
        return CATEGORIES[self.codes[row]]

    def rule(self, row: int) -> tuple[str, str]:
        """The rule that decided a row, as a code and as a sentence."""
        code = _RULE_CODES[self.rules[row]]
        return code, RULES[code][1]

    def counts(self) -> dict[str, int]:
        """How many allocations each rule decided."""
        found = Counter(self.rules)
        return {code: found[number] for number, code in enumerate(_RULE_CODES) if found[number]}

    def live(self, event: int) -> list[tuple[str, int, int, int]]:
        """The allocated bytes after an event: (category, bytes, requested bytes, count), the
        most bytes first."""
        sums = core.sum_codes(self._timeline, self.codes, len(CATEGORIES), event)
        rows = [(name, *one) for name, one in zip(CATEGORIES, sums, strict=True) if one[2]]
        return sorted(rows, key=lambda row: -row[1])


def _with_tensors(
    rules: bytes, rows: Mapping[str, memoryview], tensors: Mapping[int, str]
) -> bytes:
    """The core's rules, one per row, overridden for final blocks of known tensors."""
    if not tensors:
        return rules
    numbers = {category: FIRST_TOLD + at for at, category in enumerate(TENSOR_CATEGORIES)}
    changed = bytearray(rules)
    for row, (address, freed) in enumerate(zip(rows["address"], rows["free_event"], strict=True)):
        if freed == -1 and address in tensors:
            changed[row] = numbers[tensors[address]]
    return bytes(changed)
