# SPDX-License-Identifier: Apache-2.0
"""`snapshot()` and `record()`: the state and history of PyTorch's allocator in this process."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import inspect
import logging
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Integral
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from neutracer._native import core
from neutracer.arguments import path_name
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError, missing
from neutracer.hooks import shim as hooks
from neutracer.hooks.cache_calls import CACHE_CALLS, note_in_dump
from neutracer.hooks.live import take
from neutracer.hooks.modules import Marks, check_model, check_modules, marks_by, marks_of
from neutracer.monitor.phases import mark_dump
from neutracer.pickling import StaysHere
from neutracer.recording.sidecar import (
    facts_of,
    filled_in,
    rank_facts,
    running_program,
    save_with,
)
from neutracer.recording.uses import ObservedUses, UsesOfSteps
from neutracer.trace.beside import TensorBlocks
from neutracer.trace.snapshot import Snapshot, load
from neutracer.units import format_count

# ---- Symbols -----------------------------------------------------------------------------

# To map frames of compiled code to their source, PyTorch's first symbolization looks up
# `torch._inductor`, which imports it: seconds and 100 MB. If it is not imported, no frame needs it.

_NAME = "_inductor"


class _NotImported(ModuleType):
    """Stands in for `torch._inductor`: empty for symbolizing threads, imported for others."""

    def __init__(self) -> None:
        super().__init__(f"torch.{_NAME}")
        self.empty_for: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        if threading.get_ident() in self.empty_for:
            raise AttributeError(name)
        return getattr(importlib.import_module(f"torch.{_NAME}"), name)


_lock = threading.Lock()


@contextlib.contextmanager
def light_symbols() -> Iterator[None]:
    """Symbolize frames on this thread without importing `torch._inductor`."""
    torch = sys.modules.get("torch")
    thread = threading.get_ident()
    space = {} if torch is None else vars(torch)
    with _lock:
        stand_in = space.get(_NAME)
        if stand_in is None and torch is not None:
            stand_in = space[_NAME] = _NotImported()
        nested = not isinstance(stand_in, _NotImported) or thread in stand_in.empty_for
        if isinstance(stand_in, _NotImported):
            stand_in.empty_for.add(thread)
    try:
        yield
    finally:
        with _lock:
            if isinstance(stand_in, _NotImported) and not nested:
                stand_in.empty_for.discard(thread)
                # Another thread may have imported the real package.
                if not stand_in.empty_for and space.get(_NAME) is stand_in:
                    del space[_NAME]


# ---- Live tensors ------------------------------------------------------------------------

# A recording that starts late has missed the allocation of parameters and optimizer states. These
# are found through modules and optimizers, whose dicts are read without running their code.

_LOGGER = logging.getLogger("neutracer")


def ask_tensors(snap: Snapshot) -> Snapshot:
    """Label the blocks of a fresh snapshot of this process with their categories."""
    try:
        tensors = living_tensors("cpu" if snap.is_cpu else "cuda")
        snap.beside = replace(snap.beside, tensors=tensors)
    except (NeutracerError, RuntimeError) as error:
        _LOGGER.info("could not inspect live tensors: %s", error)
    return snap


def follow(events: int, frames: int) -> Callable[[], None]:
    """As `hooks.follow`, without this process's first look at tensors, which makes some."""
    with contextlib.suppress(NeutracerError, RuntimeError):
        core.tensor_prepare()
    return hooks.follow(events, frames)


def living_tensors(device_type: str) -> TensorBlocks:
    """By device, the addresses of parameters (and buffers), gradients and optimizer states."""
    return tensors_and_trained(device_type)[0]


def tensors_and_trained(device_type: str) -> tuple[TensorBlocks, frozenset[int]]:
    """What `living_tensors` gives, and the ids of all parameters that optimizers have; none where
    most of these are copies of those of modules, as in mixed precision by libraries."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(getattr(torch, "optim", None), "Optimizer"):
        return {}, frozenset()
    core.tensor_prepare()
    found: dict[str, dict[int, Any]] = {"gradient": {}, "optimizer_state": {}, "parameter": {}}
    found["optimized"] = {}
    for category, tensor in _held(torch):
        found[category][id(tensor)] = tensor
    optimized = found.pop("optimized")
    shared = optimized.keys() & found["parameter"].keys()
    trained = frozenset(optimized if 2 * len(shared) > len(optimized) else ())
    found["parameter"].update(optimized)
    parameters = found["parameter"].values()
    found["gradient"] = {id(one): one for one in _gradients(torch, parameters)}
    blocks: dict[int, dict[int, str]] = {}
    # For shared memory the later category is more specific.
    for category, tensors in found.items():
        for tensor in tensors.values():
            facts = core.tensor_facts(tensor)
            if facts is not None and facts["device_type"] == device_type and facts["data_ptr"]:
                device = max(facts["device_index"], 0)
                blocks.setdefault(device, {})[facts["data_ptr"]] = category
    return blocks, trained


def _held(torch: Any) -> Iterator[tuple[str, Any]]:
    wanted = (torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter)
    kinds: dict[type, int] = {}
    for one in gc.get_objects():
        kind = kinds.get(type(one))
        if kind is None:
            bases = type.__dict__["__mro__"].__get__(type(one))
            kind = next((at for at, base in enumerate(wanted) if base in bases), -1)
            kinds[type(one)] = kind
        if kind == 0:
            for name in ("_parameters", "_buffers"):
                yield from (("parameter", each) for each in _tensors(_own(one).get(name)))
        elif kind == 1:
            yield from (("optimizer_state", each) for each in _states(_own(one)))
            for group in _listed(_own(one).get("param_groups")):
                if isinstance(group, dict):
                    yield from (("optimized", each) for each in _tensors(group.get("params")))
        elif kind == 2:
            yield from (("parameter", each) for each in _tensors([one]))


def _own(one: Any) -> dict[str, Any]:
    try:
        own = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return {}
    return own if isinstance(own, dict) else {}


def _listed(some: Any) -> Iterable[Any]:
    if isinstance(some, dict):
        return list(dict.values(some))
    return list(some) if isinstance(some, (list, tuple)) else ()


def _tensors(some: Any) -> Iterator[Any]:
    for one in _listed(some):
        if one is not None:
            yield _own(one).get("_local_tensor", one)


def _states(optimizer: dict[str, Any]) -> Iterator[Any]:
    for state in _listed(optimizer.get("state")):
        for one in _listed(state):
            yield from _tensors(one if isinstance(one, (dict, list, tuple)) else [one])


def _gradients(torch: Any, parameters: Iterable[Any]) -> Iterator[Any]:
    gradient = torch._C.TensorBase.grad
    for one in parameters:
        facts = core.tensor_facts(one)
        if facts is not None and not facts["has_grad_fn"]:
            yield from _tensors([gradient.__get__(one)])


# ---- Capture -----------------------------------------------------------------------------


def snapshot() -> Snapshot:
    """The allocator's state now, with the trace if recording is on.

    It does not initialise CUDA, allocates nothing on a device, and equals a loaded PyTorch dump.

    Raises:
        UnavailableError: torch is not imported or has no CUDA, or CUDA is not initialised in
            this process; `.what` and `.install` say which, and what to do.
    """
    return ask_tensors(load(dumped(_initialised_cuda())))


def dumped(cuda: Any, *, traces: bool = True) -> bytes:
    """PyTorch's own dump, pickled with protocol 4; quick without its traces, however long."""
    with light_symbols():
        if traces:
            before = CACHE_CALLS.now()
            plain = cuda.memory._snapshot()
            note_in_dump(plain, before)
            mark_dump(plain, before)
        else:
            dump = sys.modules["torch"]._C._cuda_memorySnapshot
            try:
                plain = dump((0, 0, False))
            except TypeError:
                plain = dump(None)  # An earlier torch dumps all that it has.
    try:
        return core.dump_plain(plain)
    except (TypeError, ValueError):
        # A later torch may add types that only Python's pickler supports.
        return pickle.dumps(plain, protocol=4)


def torch_with_cuda() -> Any:
    """The imported torch."""
    torch = sys.modules.get("torch")
    if torch is None and importlib.util.find_spec("torch") is None:
        raise missing("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch and use a CUDA device first")
    if getattr(torch.version, "cuda", None) is None or not hasattr(
        torch._C, "_cuda_memorySnapshot"
    ):
        raise UnavailableError(
            "CUDA in this build of torch",
            "install a torch built for CUDA, or predict the memory with 'neutracer rehearse'",
        )
    return torch


def is_for_cpu(torch: Any) -> bool:
    """Whether the imported torch is built for the CPU only."""
    version = getattr(torch, "version", None)
    others = (getattr(version, name, None) for name in ("cuda", "hip", "xpu"))
    return torch is not None and not any(others) and not hasattr(torch._C, "_cuda_memorySnapshot")


def without_cuda(torch: Any) -> UnavailableError:
    """The error for a process without an initialised CUDA device."""
    if torch.cuda.device_count() == 0:
        return UnavailableError(
            "a CUDA device in this process", "torch finds none: it needs a GPU and its driver"
        )
    return UnavailableError(
        "an initialised CUDA device in this process",
        "allocate a tensor on the device first; neutracer does not initialise CUDA",
    )


def other_allocator(torch: Any) -> str:
    """A clause on an allocator other than PyTorch's own, or ""; CUDA is initialised."""
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return f"PyTorch keeps no history of this program's allocator, {backend}"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "PYTORCH_NO_CUDA_MEMORY_CACHING disables PyTorch's own allocator"
    return ""


def _initialised_cuda() -> Any:
    torch = torch_with_cuda()
    if not torch.cuda.is_initialized():
        raise without_cuda(torch)
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise UnavailableError(
            "a snapshot of another allocator than PyTorch's own",
            f"this process uses {backend}; unset 'backend' in PYTORCH_CUDA_ALLOC_CONF",
        )
    return torch.cuda


# ---- History -----------------------------------------------------------------------------

# PyTorch has one ring of events per device and one set of switches per process. Recordings share
# them: the first switches the history on, the last one off, and options are the union of their
# wishes. A history that the program switched on itself is left alone.

_CONTEXTS = (None, "state", "alloc", "all")


@dataclass(frozen=True)
class Wish:
    """One recording's options, named as in PyTorch's own recorder."""

    max_entries: int
    stacks: str  # "python", or "all" with C++ frames.
    context: str | None  # Events that get a stack: "all", "alloc", "state" or None.
    skip_actions: tuple[str, ...] = ()
    compile_context: bool = False  # Record the compiled frame of each event.
    annotations: bool = False
    pinned: bool = False  # Record the host's pinned memory too.

    def joined(self, other: Wish) -> Wish:
        """The union of both, except the ring's length, which is fixed while it is on."""
        return Wish(
            self.max_entries,
            max(self.stacks, other.stacks, key=("python", "all").index),
            max(self.context, other.context, key=_CONTEXTS.index),
            tuple(action for action in self.skip_actions if action in other.skip_actions),
            self.compile_context or other.compile_context,
            self.annotations or other.annotations,
            self.pinned or other.pinned,
        )


class History:
    """The shared history: active wishes, and whether the program had it on before."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wishes: list[Wish] = []
        self._in_force: Wish | None = None
        self._foreign = False

    def begin(self, torch: Any, wish: Wish) -> None:
        """Add a wish; CUDA is initialised or just being so."""
        self.check(torch, wish)
        with self._lock:
            if not self._wishes:
                self._foreign = bool(torch._C._cuda_isHistoryEnabled())
                self._in_force = None
            before = self._in_force
            self._wishes.append(wish)
            CACHE_CALLS.begin(torch, wish)
            try:
                self._apply(torch)
            except BaseException:
                CACHE_CALLS.end(wish)
                self._wishes.pop()
                self._in_force = before
                raise

    def end(self, torch: Any, wish: Wish) -> bool:
        """Remove a wish; returns False if the program has switched the history off since."""
        with self._lock:
            # In a forked child nothing is on, and CUDA must not be touched.
            if not any(one is wish for one in self._wishes):
                return True
            CACHE_CALLS.end(wish)
            self._wishes = [one for one in self._wishes if one is not wish]
            if not torch._C._cuda_isHistoryEnabled():
                self._in_force = None
                return False
            self._apply(torch)
            return True

    def in_force(self) -> Wish | None:
        """The active options; None if the history is off or the program's own."""
        with self._lock:
            return self._in_force

    def is_foreign(self) -> bool:
        """True if the program itself had the history on."""
        with self._lock:
            return bool(self._wishes) and self._foreign

    def facts(self) -> dict[str, Any]:
        """The active options, for the sidecar."""
        in_force = self.in_force()
        return {"joined": self.is_foreign(), **(vars(in_force) if in_force else {})}

    def check(self, torch: Any, wish: Wish) -> None:
        """Check that this torch has the options; CUDA is not touched."""
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        known = set() if record is None else set(inspect.signature(record).parameters)
        missing = sorted(({"stacks"} | _options(wish).keys()) - known)
        if missing or not hasattr(torch._C, "_cuda_isHistoryEnabled"):
            raise UnavailableError(
                f"recording with {', '.join(missing) or 'a history'} in torch {torch.__version__}",
                "install a later torch, or leave that option out",
            )

    def _apply(self, torch: Any) -> None:
        if self._foreign:
            return
        record = torch.cuda.memory._record_memory_history
        if not self._wishes:
            record(enabled=None)
            self._in_force = None
            return
        # The ring keeps its length.
        length = (self._in_force or self._wishes[0]).max_entries
        merged = replace(reduce(Wish.joined, self._wishes), max_entries=length)
        if merged != self._in_force:
            record(
                enabled="all",
                context=merged.context,
                stacks=merged.stacks,
                max_entries=merged.max_entries,
                **_options(merged),
            )
            self._in_force = merged

    def forget(self) -> None:
        """Reset in a forked child, where nothing is on."""
        self._lock = threading.RLock()
        self._wishes = []
        self._in_force = None
        self._foreign = False


def _options(wish: Wish) -> dict[str, Any]:
    """What a wish has beyond the defaults, named as in PyTorch's own recorder."""
    options = {
        "skip_actions": list(wish.skip_actions),
        "compile_context": wish.compile_context,
        "global_record_annotations": wish.annotations,
        "record_pinned_host_memory": wish.pinned,
    }
    return {name: value for name, value in options.items() if value}


HISTORY = History()
os.register_at_fork(after_in_child=HISTORY.forget)


def wrapped_ring(snap: Snapshot) -> int | bool:
    """The length of PyTorch's ring if it is known to have wrapped, else False."""
    in_force = HISTORY.in_force()
    for device in snap.devices:
        length = snap.trace_length(device)
        if snap.history_overflowed(device):
            return length
        # A full ring counts: its next event wraps it.
        if in_force is not None and length >= in_force.max_entries:
            return in_force.max_entries
    return False


# ---- Recorder ----------------------------------------------------------------------------

# Events take some 350 bytes each with Python stacks, 1,000 with C++ stacks.
DEFAULT_MAX_ENTRIES = 100_000

# The most that a ring can hold.
_MOST_FRAMES = 64

_STACKS = ("python", "all")
_STACK_CONTEXTS = ("all", "alloc", "state", None)

Function = TypeVar("Function", bound=Callable[..., Any])


def record(
    max_entries: int = DEFAULT_MAX_ENTRIES,
    stacks: str = "python",
    *,
    context: str | None = "alloc",
    skip_actions: Iterable[str] = (),
    compile_context: bool = False,
    annotations: bool = False,
    modules: Any = None,
    pinned: bool = False,
    path: str | os.PathLike[str] | None = None,
    uses: bool = False,
) -> Recording:
    """Record the allocations of this process with PyTorch's own recorder, in a bounded ring.

    Use it as a context manager, as a decorator, or with `start()` and `stop()`. Recording begins
    when the program initialises CUDA, and leaves nothing switched on: a nested recording shares
    the ring of the outer one, and a history that the program switched on itself stays on.

    On a torch built for the CPU it records the CPU allocations of the calling thread and of
    PyTorch on its behalf, through the hooks of `live`; each event gets a Python stack.

    Args:
        max_entries: Events kept per device, of some 350 bytes of host memory each; newer ones
            replace the oldest, with a `HistoryWarning`.
        stacks: "python", or "all" with C++ frames: events then take 1,000 bytes, and
            symbolizing the frames of a large program takes minutes.
        context: Events that get a stack: "alloc" (a free shows its block's allocation), "all"
            (frees get their own), "state" (only the blocks at the end), or None. "all" can end
            a program: up to Python 3.12, torch 2.11 loses a pending exception when memory is
            freed in a backward pass, as in gradient checkpointing with dropout, which then
            raises SystemError.
        skip_actions: Actions to leave out, by PyTorch's names ("free_requested").
        compile_context: Record the compiled frame of each event.
        annotations: Keep the ranges that `torch.profiler.record_function` names.
        modules: A model, or True for every one called (torch 2.10): for `holders(by="module")`.
        pinned: Record the host's pinned memory too (torch 2.14), as `Snapshot.host`.
        path: A file to save to at the end; {rank} (0 without ranks), {host} and {pid} are
            replaced, so that each process has its own file.
        uses: Observe each block's first and last use too, for `drag`; a step of small operators
            takes longer. It needs the hooks; one recording at a time has them.

    Returns:
        The recording, not yet started.

    Raises:
        UnavailableError: torch is not imported or lacks an option, or there are no hooks for
            `uses` or the CPU.
        ValueError: An argument is out of range.
        TypeError: `max_entries` is no integer, or another argument has the wrong type.

    Example:
        >>> import neutracer
        >>> with neutracer.record(max_entries=50_000) as recording:   # doctest: +SKIP
        ...     train_step()
        >>> recording.save("step.pickle.gz")                          # doctest: +SKIP
    """
    if isinstance(max_entries, bool) or not isinstance(max_entries, Integral):
        hint = ": write @neutracer.record(), with parentheses" if callable(max_entries) else ""
        raise TypeError(
            f"max_entries must be a number of events, not {type(max_entries).__name__}{hint}"
        )
    if not 0 < max_entries <= sys.maxsize:
        raise ValueError(f"max_entries is {max_entries}: it must be a number of events, above 0")
    if stacks not in _STACKS:
        raise ValueError(f"stacks is {stacks!r}: it must be one of {_STACKS}")
    if context not in _STACK_CONTEXTS:
        raise ValueError(f"context is {context!r}: it must be one of {_STACK_CONTEXTS}")
    if isinstance(skip_actions, str) or not isinstance(skip_actions, Iterable):
        raise TypeError(f"skip_actions must be a list of PyTorch's names, not {skip_actions!r}")
    path = None if path is None else path_name(path)
    listed = tuple(skip_actions)
    wish = Wish(max_entries, stacks, context, listed, compile_context, annotations, pinned)
    if is_for_cpu(sys.modules.get("torch")):
        _check_cpu(wish, modules)
        return CpuRecording(wish, path, modules, uses)
    HISTORY.check(torch_with_cuda(), wish)
    check_modules(torch_with_cuda(), modules)
    return Recording(wish, path, modules, uses)


def _check_cpu(wish: Wish, modules: Any) -> None:
    """Check that the hooks can record so; they are compiled if they have to be."""
    check_model(modules)
    only = sorted(_options(wish)) + ["stacks"] * (wish.stacks == "all")
    if only:
        what = f"recording with {', '.join(only)} on the CPU"
        raise UnavailableError(what, "leave that option out")
    hooks.load()


class Recording(StaysHere, instead="it records this process: send its snapshot()"):
    """A recording, as `record` returns it.

    Attributes:
        step: The program's current step, kept in the sidecar.
        quiet: True notes a wrapped ring in the sidecar only, without a warning.
    """

    def __init__(
        self,
        wish: Wish,
        path: str | os.PathLike[str] | None = None,
        modules: Any = None,
        uses: bool = False,
    ) -> None:
        self._wish = wish
        self._modules = modules
        self._with_uses = uses
        self._uses: ObservedUses | UsesOfSteps | None = None
        if uses:
            hooks.load()
        self._marks: Marks | None = None
        # A new one per start: the history compares wishes by identity.
        self._begun: Wish | None = None
        self._path = path
        self._lock = threading.Lock()
        self._process = 0
        self._program = ""
        self._on = False
        self._taken: tuple[Snapshot, dict[str, Any]] | None = None
        self._has_warned = False
        self.step: int | str | None = None
        self.quiet = False

    @property
    def active(self) -> bool:
        """True while on, including before CUDA is initialised, when nothing is recorded."""
        return self._on and self._process == os.getpid()

    @property
    def waiting(self) -> bool:
        """True while on and waiting for CUDA."""
        return self.active and self._begun is None

    def start(self) -> Recording:
        """Start, and return the recording.

        Raises:
            RuntimeError: It is on already.
            UnavailableError: torch has no CUDA, or lacks an option.
        """
        torch = torch_with_cuda()
        if torch.cuda.is_initialized():
            return self.start_at_once(torch)
        self._switch_on()
        torch.cuda._lazy_call(functools.partial(self._begin_late, torch))
        return self

    def start_at_once(self, torch: Any) -> Recording:
        """As `start`, also for use during CUDA's initialisation, when `start` can't queue calls."""
        self._switch_on()
        try:
            self._begin(torch)
        except BaseException:
            self._on = False
            raise
        return self

    def _switch_on(self) -> None:
        with self._lock:
            if self.active:
                raise RuntimeError("this recording is on already")
            self._process = os.getpid()
            self._program = running_program()
            self._on, self._taken, self._has_warned, self._begun = True, None, False, None

    def stop(self) -> None:
        """Stop and keep the recording; a second call does nothing, nor one in a forked child."""
        self._end(keep=True)
        if self._path is not None and self._taken is not None:
            self.save(filled_in(self._path))

    def discard(self) -> None:
        """Stop and keep nothing; a second call does nothing."""
        self._end(keep=False)

    def snapshot(self) -> Snapshot:
        """The recording so far, or until it was stopped.

        Raises:
            UnavailableError: Nothing was recorded, because CUDA was not initialised.
        """
        return self._now()[0]

    def save(self, path: str | os.PathLike[str], *, step: int | str | None = None) -> Snapshot:
        """Write the snapshot and its sidecar <path>.json, each atomically; return the snapshot.

        The sidecar has rank, world size, host, step, versions, settings, recording options and
        `memory_stats()`.

        Args:
            path: The file; compressed if it ends in .gz, .xz or .zst.
            step: The step in the sidecar; None is the attribute `step`.

        Raises:
            UnavailableError: There is nothing to save, or the compressor is missing.
            OSError: It can't be written.
        """
        snap, facts = self._now()
        save_with(snap, path, facts if step is None else {**facts, "step": step})
        return snap

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.stop()
        except (NeutracerError, OSError) as error:
            # The program's own exception goes first.
            if kind is None:
                raise
            _LOGGER.warning("a recording could not be saved: %s", error)

    def __call__(self, function: Function) -> Function:
        """Record each call of a function separately."""
        for is_deferred in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        ):
            if is_deferred(function):
                raise TypeError(f"{function!r} runs after its call: use 'with' inside it")

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._wish, self._path, self._modules, self._with_uses):
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]

    def __repr__(self) -> str:
        state = "on" if self.active else "kept" if self._taken else "off"
        if self.waiting:
            state = "waits for CUDA"
        return f"<Recording: {state}, {format_count(self._wish.max_entries, 'event')} at most>"

    def _end(self, keep: bool) -> None:
        with self._lock:
            if not self.active:
                return
            try:
                if keep and self._begun is not None:
                    self._taken = self._take()
            except UnavailableError as error:
                _LOGGER.warning("the end of a recording could not be read: %s", error)
            finally:
                self._on = False
                begun, self._begun = self._begun, None
                if begun is not None:
                    self._leave(begun)

    def _leave(self, begun: Wish) -> None:
        if self._uses is not None:
            self._uses.end()
        if self._marks is not None:
            self._marks.detach()
        self._switch_off(begun)

    def _begin(self, torch: Any) -> None:
        begun = Wish(**vars(self._wish))
        self._switch_history_on(torch, begun)
        try:
            # After the history: each use is of a request that it has.
            self._observe(torch)
            if self._modules is not None:
                self._marks = self._marked(torch)
        except BaseException:
            self._leave(begun)
            raise
        # Cached: the program may leave its group before the recording ends.
        rank_facts()
        self._begun = begun

    def _switch_history_on(self, torch: Any, begun: Wish) -> None:
        HISTORY.begin(torch, begun)

    def _switch_off(self, begun: Wish) -> None:
        if not HISTORY.end(torch_with_cuda(), begun):
            self._warn("PyTorch's history was switched off before the recording ended")

    def _observe(self, torch: Any) -> None:
        if self._with_uses:
            self._uses = ObservedUses(torch).begin()

    def _marked(self, torch: Any) -> Marks | None:
        return marks_of(torch, self._modules)

    def _begin_late(self, torch: Any) -> None:
        # An exception here would abort the initialisation of CUDA.
        try:
            if self.waiting:
                self._begin(torch)
        except Exception as error:
            self._on = False
            _LOGGER.warning("recording could not begin: %s", error)

    def _now(self) -> tuple[Snapshot, dict[str, Any]]:
        if self._taken is not None:
            return self._taken
        if not self.active or self._begun is None:
            unused = "the program has not used CUDA yet, and neutracer does not initialise it"
            why = unused if self.active else "it has not been started"
            raise UnavailableError("a recording with CUDA in it", why)
        return self._take()

    def _taken_now(self) -> tuple[Snapshot, int | bool, Mapping[str, Any]]:
        """The snapshot, the length of a ring that wrapped, and the options in force."""
        snap = snapshot()
        options = {"joined": HISTORY.is_foreign(), **vars(HISTORY.in_force() or self._wish)}
        return snap, wrapped_ring(snap), options

    def _take(self) -> tuple[Snapshot, dict[str, Any]]:
        snap, wrapped, options = self._taken_now()
        if self._uses is not None:
            self._uses.note(snap)
        if wrapped:
            length = "its ring" if wrapped is True else f"the ring of {wrapped:,} events"
            self._warn(
                f"{length} wrapped and lost the oldest events; "
                "raise record(max_entries=...) to keep more"
            )
        recording = {**options, "wrapped": bool(wrapped), "uses": self._with_uses}
        return snap, facts_of(snap, recording, step=self.step, program=self._program)

    def _warn(self, text: str) -> None:
        if not self._has_warned and not self.quiet:
            self._has_warned = True
            warnings.warn(text, HistoryWarning, stacklevel=_level_outside())


class CpuRecording(Recording):
    """A recording on a torch built for the CPU, through the hooks."""

    _end_following: Callable[[], None] = staticmethod(lambda: None)
    # What `pushed` gave when this recording began.
    _before: Mapping[int, int] = MappingProxyType({})

    def start(self) -> Recording:
        """Start, and return the recording."""
        return self.start_at_once(sys.modules["torch"])

    def _switch_history_on(self, torch: Any, begun: Wish) -> None:
        before = _watched_threads()
        end = follow(begun.max_entries, 0 if begun.context is None else _MOST_FRAMES)
        is_own = _watched_threads() > before
        self._before = pushed()

        def end_following() -> None:
            end()
            if is_own:
                hooks.unwatch_thread()

        self._end_following = end_following

    def _switch_off(self, begun: Wish) -> None:
        self._end_following()

    def _marked(self, torch: Any) -> Marks | None:
        return marks_by(hooks.load(), self._modules)

    def _taken_now(self) -> tuple[Snapshot, int | bool, Mapping[str, Any]]:
        now = hooks.state()
        length = self._wish.max_entries if now is None else now.events
        snap = ask_tensors(take("cpu", length, quiet=self.quiet))
        wrapped = pushed_since(self._before) > length
        return snap, wrapped and length, {"recorder": "hooks", **vars(self._wish)}


def pushed() -> Mapping[int, int]:
    """The events that the hooks' rings had in all, by device: also those of earlier recordings,
    whose rings go on."""
    now = hooks.state()
    return {} if now is None else now.pushed


def pushed_since(before: Mapping[int, int]) -> int:
    """The most events that one of the hooks' rings had since `pushed` gave `before`."""
    own = (count - before.get(device, 0) for device, count in pushed().items())
    return max(own, default=0)


def _watched_threads() -> int:
    now = hooks.state()
    return 0 if now is None else now.threads


def _level_outside() -> int:
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        level, frame = level + 1, frame.f_back
    return level
