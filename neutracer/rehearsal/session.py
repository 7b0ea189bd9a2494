# SPDX-License-Identifier: Apache-2.0
"""The fake CUDA device, fake process groups and patched libraries of a rehearsal."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import logging
import os
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from neutracer.errors import UnavailableError
from neutracer.hooks import build as hooks
from neutracer.hooks.build import alone, compile_into, prepare, unsafe
from neutracer.recording.imports import when_imported
from neutracer.rehearsal import tracing as fakes
from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.kernels import attention, recurrent
from neutracer.rehearsal.kernels.rules import Kernels
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.tracing import Tracing

# ---- Device ------------------------------------------------------------------------------


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


class Stream:
    """A stream of the fake device; its work is done at once."""

    _made = 0
    #: Refuses a device that is not there; patched by the session.
    check: Any = staticmethod(_nothing)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        Stream.check(device)
        Stream._made += 1
        self._set(Stream._made)

    def _set(self, number: int) -> None:
        self.stream_id = self.cuda_stream = number
        self.device, self.device_index = torch.device("cuda", 0), 0
        self.device_type = 1

    @classmethod
    def numbered(cls, number: int) -> Stream:
        """The stream of a number; 0 is the default one."""
        stream = cls.__new__(cls)
        stream._set(number)
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def query(self) -> bool:
        """Whether its work is done: always."""
        return True

    synchronize = wait_stream = wait_event = _nothing

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()


class Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    record = wait = synchronize = _nothing

    def query(self) -> bool:
        """Whether it has happened: always."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """One millisecond, never zero: programs divide by it."""
        return 1.0


#: Functions of `torch.cuda` without an effect on the fake device.
_NO_OPS = (
    *("init", "_lazy_init", "_lazy_call", "synchronize", "ipc_collect", "seed", "seed_all"),
    *("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
    *("_record_memory_history", "_dump_snapshot"),
)

#: Functions of `torch.cuda` whose only argument is a device.
_OF_A_DEVICE = (
    *("synchronize", "get_device_name", "get_device_capability", "get_device_properties"),
    *("current_stream", "default_stream", "memory_stats", "memory_allocated", "memory_reserved"),
    *("max_memory_allocated", "max_memory_reserved", "mem_get_info", "reset_peak_memory_stats"),
    *("reset_max_memory_allocated", "memory_summary"),
)


class _Face:
    def __init__(self, card: Card, tracing: Tracing, devices: int, capacity: int) -> None:
        self.card, self.tracing = card, tracing
        self.devices, self.capacity = devices, capacity
        self.index = 0

    def properties(self, device: Any = None) -> Any:
        major, minor = self.card.capability
        return SimpleNamespace(
            name=self.card.name,
            major=major,
            minor=minor,
            total_memory=self.card.total_bytes,
            multi_processor_count=self.card.processors,
            max_threads_per_multi_processor=self.card.processor_threads,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=101376 if (major, minor) != (9, 0) else 232448,
            shared_memory_per_multiprocessor=102400,
            warp_size=32,
            L2_cache_size=50 << 20,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
            uuid="",
        )

    def exchange(self, device: Any) -> int:
        """Make a device the current one, which a negative number does not; the one before."""
        found = torch.device(device) if isinstance(device, str) else device
        number, before = getattr(found, "index", found) or 0, self.index
        self.tracing.check(number)
        self.index = before if number < 0 else number
        return before

    def checked(self, function: Any) -> Any:
        """A function of a device, which must be there."""

        def call(device: Any = None) -> Any:
            self.exchange(self.exchange(device))
            return function(device)

        return call

    @contextmanager
    def stream(self, stream: Any) -> Iterator[Any]:
        before = self.tracing.stream
        self.tracing.stream = getattr(stream, "stream_id", before)
        try:
            yield stream
        finally:
            self.tracing.stream = before

    def set_stream(self, stream: Any) -> None:
        self.tracing.stream = getattr(stream, "stream_id", 0)

    def stats(self, device: Any = None) -> Any:
        requests, found = self.tracing.requests, defaultdict[str, int](int)
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            found[f"{kind}.all.current"] = requests.live_bytes
            found[f"{kind}.all.peak"] = requests.peak_bytes
        return found

    def reset_peak(self, device: Any = None) -> None:
        self.tracing.requests.peak_bytes = self.tracing.requests.live_bytes

    def functions(self) -> dict[str, Any]:
        requests = self.tracing.requests
        found: dict[str, Any] = {
            **dict.fromkeys(_NO_OPS, _nothing),
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "device_count": lambda: self.devices,
            "current_device": lambda: self.index,
            "set_device": self.exchange,
            "_exchange_device": self.exchange,
            "_maybe_exchange_device": self.exchange,
            "get_device_name": lambda device=None: self.card.name,
            "get_device_capability": lambda device=None: self.card.capability,
            "get_device_properties": self.properties,
            "get_arch_list": lambda: [f"sm_{self.card.capability[0]}{self.card.capability[1]}"],
            "is_bf16_supported": lambda *args, **kwargs: self.card.capability >= (8, 0),
            "is_tf32_supported": lambda: self.card.capability >= (8, 0),
            "can_device_access_peer": lambda *args: True,
            "Stream": Stream,
            "Event": Event,
            "stream": self.stream,
            "StreamContext": self.stream,
            "set_stream": self.set_stream,
            "current_stream": lambda device=None: Stream.numbered(self.tracing.stream),
            "default_stream": lambda device=None: Stream.numbered(0),
            "empty_cache": requests.empty_cache,
            "memory_stats": self.stats,
            "memory_allocated": lambda device=None: requests.live_bytes,
            "max_memory_allocated": lambda device=None: requests.peak_bytes,
            "memory_reserved": lambda device=None: requests.live_bytes,
            "max_memory_reserved": lambda device=None: requests.peak_bytes,
            "memory_summary": lambda *args, **kwargs: "",
            "reset_peak_memory_stats": self.reset_peak,
            "reset_max_memory_allocated": self.reset_peak,
            "mem_get_info": lambda device=None: (
                max(self.capacity - requests.live_bytes, 0),
                self.card.total_bytes,
            ),
            "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
            "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)] * self.devices,
        }
        return {**found, **{name: self.checked(found[name]) for name in _OF_A_DEVICE}}


def patches(
    card: Card, tracing: Tracing, devices: int, capacity: int, cudnn: int
) -> list[tuple[Any, str, Any]]:
    """Replacements in PyTorch, as (owner, name, value).

    Args:
        tracing: Whose figures the memory functions give.
        capacity: The bytes that PyTorch can have of one.
    """
    import torch._subclasses.fake_tensor
    import torch.backends.cudnn
    import torch.cuda.amp.common
    import torch.cuda.memory
    import torch.cuda.nvtx
    import torch.cuda.random

    found: list[tuple[Any, str, Any]] = []
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    def is_acceptable(tensor: Any) -> bool:
        return tensor.device.type == "cuda" and tensor.dtype in floats

    face = _Face(card, tracing, devices, capacity)
    for name, value in face.functions().items():
        for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if hasattr(owner, name):
                found.append((owner, name, value))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        found.append((torch.cuda.nvtx, name, _nothing))
    found += [
        (Stream, "check", staticmethod(face.checked(_nothing))),
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.backends.cudnn, "is_available", lambda: True),
        (torch.backends.cudnn, "version", lambda: cudnn),
        (torch.backends.cudnn, "is_acceptable", is_acceptable),
        # It would allocate on a real device, and needs its context.
        (torch._subclasses.fake_tensor, "init_gpu_context", _nothing),
        (torch.Tensor, "record_stream", _nothing),
        (torch.Tensor, "pin_memory", lambda self, *args: self),
        (torch.Tensor, "is_pinned", lambda self, *args: False),
    ]
    return found


# ---- Build -------------------------------------------------------------------------------

#: The releases of torch whose interface to CUDA is the one that the source was written for.
_RUN_ON = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
_WHAT = "rehearsals"
_COMPILING = "neutracer: compiling the fake CUDA device for torch {} (once)"

_loaded: list[Any] = []


def _source() -> Path:
    return hooks.source_folder() / "rehearsal" / "nt_pretend_cuda.cpp"


def _target() -> hooks.Target:
    torch = hooks.installed_torch()
    if torch.backend not in ("cpu", "cuda") or torch.release not in _RUN_ON:
        known = ", ".join(f"{major}.{minor}" for major, minor in _RUN_ON)
        kind = f"{torch.version} for {torch.backend}"
        raise UnavailableError(_WHAT, f"they need torch {known} for CUDA or CPU; this is {kind}")
    digest = hashlib.sha256(repr((torch.backend, torch.built)).encode())
    digest.update(_source().read_bytes())
    key = re.sub(r"[^\w.+-]", "_", f"pretend-torch{torch.version}-{digest.hexdigest()[:16]}")
    return hooks.Target(torch, key, "libnt_pretend.so")


def _command(goal: hooks.Target, output: Path) -> list[str]:
    headers, libraries = goal.torch.folder / "include", goal.torch.folder / "lib"
    words = [hooks.compiler(), *hooks.flags(goal.torch), "-isystem", str(headers)]
    return [*words, str(_source()), f"-L{libraries}", "-lc10", "-ltorch_cpu", "-o", str(output)]


def load() -> Any:
    """The library, compiled at the first use on this machine (some seconds)."""
    if _loaded:
        return _loaded[0]
    goal = _target()
    place = prepare(None, goal.key)
    path = place.path / goal.file
    try:
        with alone(place.path):
            if not place.trusted or not path.is_file() or unsafe(path):
                print(_COMPILING.format(goal.torch.version), file=sys.stderr, flush=True)
                compile_into(path, place.mode, lambda made: _command(goal, made))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(_WHAT, str(error)) from error
    library.nt_pretend_install.argtypes = [ctypes.c_int, ctypes.c_long]
    library.nt_pretend_install.restype = ctypes.c_int
    library.nt_pretend_remove.argtypes = []
    library.nt_pretend_remove.restype = None
    _loaded.append(library)
    return library


# ---- Libraries ---------------------------------------------------------------------------

# Libraries that branch on fake tensors take the branch of a real run.

#: Functions that say whether a tensor is fake. By transformers' it makes masks for attention
#: which a real run leaves out, and with a mask repeats keys and values for every head.
_ASKED = (("transformers.utils.import_utils", "is_fake_tensor"),)

#: Lists of the types of tensors for which optimizers, and the clipping of gradients, use operators
#: on lists: by default on a card, with temporaries as large as all parameters together.
_TYPES = (
    ("torch.optim.optimizer", "_foreach_supported_types"),
    ("torch.utils._foreach_utils", "_foreach_supported_types"),
)


@contextmanager
def as_real() -> Iterator[None]:
    """Libraries, whenever they are imported, take fake tensors for real ones."""
    with ExitStack() as stack:

        def answer(module: str, name: str) -> None:
            found: Any = importlib.import_module(module)
            plain = getattr(found, name, None)
            if plain is not None:
                stack.callback(setattr, found, name, plain)
                setattr(found, name, lambda tensor: False)

        for name, types in _TYPES:
            # In place: others add types of their own to it, which stay.
            known = getattr(importlib.import_module(name), types)
            known.append(FakeTensor)
            stack.callback(known.remove, FakeTensor)
        for one in _ASKED:
            stack.callback(when_imported(one[0], partial(answer, *one)))
        yield


# ---- Ranks -------------------------------------------------------------------------------

# One rank of several; collectives change nothing.

#: As DistributedDataParallel has them: the first bucket is smaller, so that reducing begins soon.
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20

_ENVIRONMENT = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


class Replica(nn.Module):  # type: ignore[misc]
    """DistributedDataParallel as far as memory goes: a module, and buckets of its gradients.

    PyTorch's own makes its buckets in C++, which asks for addresses of tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        *args: Any,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.gradient_as_bucket_view = gradient_as_bucket_view
        most = _BUCKET if bucket_cap_mb is None else int(bucket_cap_mb * (1 << 20))
        trained = [p for p in module.parameters() if p.requires_grad]
        self._buckets = []
        with torch.no_grad():
            for group in _grouped(trained, most):
                bucket = group[0].new_empty(sum(p.numel() for p in group))
                self._buckets.append(bucket)
                for parameter in group:
                    parameter.register_post_accumulate_grad_hook(partial(_reduce, bucket))
                    if gradient_as_bucket_view:
                        parameter.grad = bucket[: parameter.numel()].view(parameter.shape)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing is reduced meanwhile."""
        yield

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """A hook has nothing to do where nothing is reduced."""

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """As no_sync(): there are no other ranks."""
        return self.no_sync()


def _grouped(parameters: list[nn.Parameter], most: int) -> Iterator[list[nn.Parameter]]:
    """Parameters by bucket: last first, one dtype per bucket."""
    group: list[nn.Parameter] = []
    size, limit = 0, _FIRST_BUCKET
    for parameter in reversed(parameters):
        if group and (size >= limit or parameter.dtype is not group[0].dtype):
            yield group
            group, size, limit = [], 0, most
        group.append(parameter)
        size += parameter.numel() * parameter.element_size()
    if group:
        yield group


def _reduce(bucket: Tensor, parameter: nn.Parameter) -> None:
    """Use a bucket, as the copy of a gradient into it and its reduction would."""
    bucket[:0].zero_()


@contextmanager
def ranks(world_size: int) -> Iterator[list[tuple[Any, str, Any]]]:
    """The environment of rank 0, and replacements in PyTorch.

    Args:
        world_size: How many ranks there would be; of one nothing is changed.
    """
    if not torch.distributed.is_available():
        yield []
        return
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    hook = sys.excepthook
    values = ("0", "0", str(world_size), str(world_size), "localhost", "29500")
    if world_size > 1:
        os.environ.update(zip(_ENVIRONMENT, values, strict=True))
    try:
        yield _patches(world_size)
    finally:
        if torch.distributed.is_initialized() and _made:
            torch.distributed.destroy_process_group()
        _made.clear()
        # A process group puts its rank before what an exception prints.
        sys.excepthook = hook
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_made: list[bool] = []


def _patches(world_size: int) -> list[tuple[Any, str, Any]]:
    import torch.nn.parallel.distributed

    plain = torch.distributed.init_process_group

    def begin(*args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not torch.distributed.is_initialized():
            plain("fake", rank=0, world_size=world_size, store=FakeStore())
            _made.append(True)

    return [
        (torch.distributed, "init_process_group", begin),
        (torch.distributed.distributed_c10d, "init_process_group", begin),
        (torch.nn.parallel, "DistributedDataParallel", Replica),
        (torch.nn.parallel.distributed, "DistributedDataParallel", Replica),
    ]


def spread(args: tuple[Any, ...], strategy: str, world_size: int) -> tuple[Any, ...]:
    """Arguments with their models spread over the ranks, and optimizers of what became of them.

    Args:
        strategy: "ddp" or "fsdp2".
    """
    models = [arg for arg in args if isinstance(arg, nn.Module)]
    torch.distributed.init_process_group()
    if strategy == "ddp":
        return tuple(Replica(arg) if isinstance(arg, nn.Module) else arg for arg in args)
    names = {id(p): (m, name) for m in models for name, p in m.named_parameters()}
    for model in models:
        _shard(model, world_size)
    for arg in args:
        if isinstance(arg, torch.optim.Optimizer):
            _follow(arg, names)
    return args


def _shard(model: nn.Module, world_size: int) -> None:
    """Shards each block of a module list, then the rest, as is common."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (world_size,))
    blocks = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    for block in (child for group in blocks for child in group):
        if any(True for _ in block.parameters()) and not isinstance(block, nn.ModuleList):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _follow(optimizer: Any, names: dict[int, tuple[nn.Module, str]]) -> None:
    for group in optimizer.param_groups:
        group["params"] = [
            names[id(p)][0].get_parameter(names[id(p)][1]) if id(p) in names else p
            for p in group["params"]
        ]


# ---- Session -----------------------------------------------------------------------------

#: The version of cuDNN that is pretended: that of the measured facts.
CUDNN = 91900


class _FakeMode(FakeTensorMode):  # type: ignore[misc]
    """Fake tensors that never touch the device."""

    @property
    def avoid_device_init(self) -> bool:
        return True


@contextmanager
def replaced(found: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes with other values, put back in the opposite order."""
    missing = object()
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in found:
            before.append((owner, name, vars(owner).get(name, missing)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def _card_is_there(devices: int) -> Iterator[None]:
    library = load()
    if library.nt_pretend_install(devices, CUDNN):
        raise RuntimeError("a rehearsal is under way in this process")
    try:
        yield
    finally:
        library.nt_pretend_remove()


def _never(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a fake tensor reached a CUDA kernel")


@contextmanager
def _attention(run: attention.Attention) -> Iterator[None]:
    """Registers the attention choice and CUDA kernels that a CPU build lacks."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("scaled_dot_product_attention", run, "AutogradCUDA")
            # Without a CUDA kernel PyTorch decomposes these before the mode sees them.
            for name in ("silu_backward", "mish_backward", "_fused_rms_norm"):
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
                    library.impl(name, _never, "CUDA")
        yield
    finally:
        library._destroy()


def _reaching_threads(fake: _FakeMode, tracing: Tracing) -> Callable[[Thread], None]:
    """`Thread.start` for threads that run under the modes, which belong to a thread each."""
    start = Thread.start

    def start_inside(thread: Thread) -> None:
        run = thread.run

        def inside() -> None:
            with fake, tracing:
                run()

        if not tracing.is_closed:
            thread.run = inside  # type: ignore[method-assign]
        start(thread)

    return start_inside


@contextmanager
def pretending(card: Card, requests: Requests, *, devices: int, capacity: int) -> Iterator[Tracing]:
    """PyTorch as it would be with a card; new tensors are fake.

    Threads that begin meanwhile are rehearsed too, an operator at a time; others must not use
    PyTorch.

    Args:
        requests: Gets what is asked of its allocator.
        capacity: The bytes that PyTorch can have of one.
    """
    fake = _FakeMode(allow_non_fake_inputs=True)
    kernels = Kernels(card)
    tracing = Tracing(requests, fake, kernels, devices)
    with ExitStack() as stack:
        stack.callback(torch.random.set_rng_state, torch.random.get_rng_state())
        stack.enter_context(_card_is_there(devices))
        found = patches(card, tracing, devices, capacity, CUDNN)
        found += fakes.patches(tracing)
        found += [(torch._VF, name, run) for name, run in recurrent.FUNCTIONS.items()]
        found += [(torch.nn.RNNBase, "flatten_parameters", recurrent.flatten)]
        found += stack.enter_context(ranks(devices))
        found += [(Thread, "start", _reaching_threads(fake, tracing))]
        stack.enter_context(replaced(found))
        stack.enter_context(as_real())
        stack.enter_context(_attention(tracing.attention))
        # Autograd's own threads belong to devices that were there when it began.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.callback(tracing.close)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        # It logs the traceback of each error, which the rehearsal reports anyway.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        stack.enter_context(fake)
        tracing.gathering.look()
        stack.enter_context(tracing)
        yield tracing
