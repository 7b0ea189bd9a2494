# SPDX-License-Identifier: Apache-2.0
"""Runs a step or a script as a rehearsal."""

from __future__ import annotations

import builtins
import copy
import gc
import importlib
import importlib.util
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from neutracer.hooks.modules import ModuleMarks
from neutracer.recording.imports import when_imported
from neutracer.recording.program import run_program
from neutracer.rehearsal.cards import ENDLESS, Card, nccl_bytes
from neutracer.rehearsal.requests import Notes, Requests, line_of, sentence
from neutracer.rehearsal.session import pretending, replaced, spread
from neutracer.rehearsal.tracing import Tracing
from neutracer.trace.flaws import Rehearsed
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count

# ---- Running -----------------------------------------------------------------------------


class Run:
    """Makes steps, and a snapshot of what they asked for.

    Attributes:
        failure: Why the program did not make all of its steps, in one sentence, or "".
        steps_done: How many it has made.
        requests: What was asked of the allocator.
    """

    def __init__(
        self,
        card: Card,
        capacity: int,
        settings: str,
        steps: int,
        world_size: int = 1,
        strategy: str | None = None,
        modules: bool = False,
    ) -> None:
        self.card, self.capacity, self.settings = card, capacity, settings
        self.steps, self.world_size, self.strategy = steps, world_size, strategy
        self.modules = modules
        self.requests = Requests(capacity)
        self.failure, self.steps_done = "", 0
        self.notes: tuple[str, ...] = ()
        self.uncertain: dict[str, tuple[int, int]] = {}

    def call(self, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Make the steps of a function."""
        if self.strategy is not None and not any(isinstance(one, nn.Module) for one in args):
            raise ValueError(
                f"strategy={self.strategy!r} spreads models that the step gets as arguments, and "
                "it gets none: pass them, or let the program spread them itself"
            )
        with self.pretending() as tracing:
            try:
                given = placed(args) if args else ()
                if self.strategy is not None:
                    given = spread(given, self.strategy, self.world_size)
                self._make(step, given)
            except Exception as error:
                self.failure = sentence(error)
            self.keep(tracing)
        gc.collect()

    @contextmanager
    def pretending(self) -> Iterator[Tracing]:
        """PyTorch with the card; requests bear their modules, where that was asked for."""
        room = {"devices": self.world_size, "capacity": self.capacity}
        with pretending(self.card, self.requests, **room) as tracing, _marked(self, tracing):
            yield tracing

    def keep(self, tracing: Tracing) -> None:
        """Keep the assumptions of a rehearsal."""
        self.notes = tracing.notes.sentences
        self.uncertain = dict(tracing.kernels.uncertain)

    def _make(self, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
        made: Any = None
        for number in range(self.steps):
            self.requests.annotate("START", f"step {number}")
            result = step(*args) if made is None else made()
            if callable(result) and made is None and not isinstance(result, nn.Module | Tensor):
                # It has built the program: this is the function that makes steps.
                made = result
                made()
            del result
            self.steps_done += 1
            self.requests.annotate("END", f"step {number}")

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """The snapshot that a recorder would have written at the end; the whole one is that of a
        device on which nothing fails."""
        needed, ranges = self.requests.bounds(self.settings, self.capacity)
        outside = {"CUDA's context": (self.card.context_bytes,) * 2}
        if self.world_size > 1:
            outside["NCCL"] = nccl_bytes(self.world_size)
        facts = Rehearsed(
            device=self.card.name,
            capacity_bytes=self.capacity,
            steps=self.steps_done,
            needed_bytes=needed,
            settings=self.settings,
            torch=torch.__version__,
            ranges=ranges,
            operators=self.uncertain,
            notes=self.notes,
            stopped=self.failure,
            world_size=self.world_size,
            strategy=self.strategy,
            outside=outside,
        )
        return self.requests.run(self.settings, ENDLESS if whole else self.capacity, facts)


def placed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Fake copies of arguments on the card, in one copy so that optimizers keep their models."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(args):
        with torch.no_grad():
            made = torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cuda"
            )
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        elif tensor.is_floating_point():
            made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
    return copy.deepcopy(args, memo)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.optim.Optimizer):
        groups = [tensor for group in value.param_groups for tensor in group["params"]]
        return groups + _tensors(list(value.state.values()))
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, list | tuple | set):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


# ---- Modules -----------------------------------------------------------------------------


@contextmanager
def _marked(run: Run, tracing: Tracing) -> Iterator[None]:
    """Requests of a run that asks for it bear the module that they are made for: a parameter and
    its optimizer states that of the module that has it."""
    if not run.modules:
        yield
        return
    requests, texts = run.requests, run.requests.texts

    def own(module: nn.Module, args: object) -> None:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                texts.setdefault(tracing.handle(tensor), requests.text)

    def states(optimizer: Any, args: object, kwargs: object) -> None:
        for parameter, state in optimizer.state.items():
            text = texts.get(tracing.handle(parameter), "")
            for tensor in _tensors(state) if text else ():
                texts.setdefault(tracing.handle(tensor), text)

    marks = ModuleMarks(True, partial(setattr, requests, "text"), lambda: requests.text)
    marks.attach()
    handles = [register_module_forward_pre_hook(own), register_optimizer_step_post_hook(states)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        marks.detach()


# ---- Unwritten ---------------------------------------------------------------------------

_WRITING = frozenset("wax+")
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Patch = tuple[Any, str, Any]


class _Unwritten:
    """Stand-ins for writing functions; paths in the temporary folder work as usual."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self._open, self._os_open, self._exists = builtins.open, os.open, os.path.exists
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep

    def _is_ours(self, path: Any) -> bool:
        """Whether the path is a file the program means to keep."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        full = os.path.realpath(os.fsdecode(path))
        try:
            inside = os.path.realpath(os.getcwd()) + os.sep
        except FileNotFoundError:
            inside = "\0"  # The program removed its folder: nothing is inside.
        if full.startswith(self._temporary) and not full.startswith(inside):
            return False
        return not full.startswith(("/dev/", "/proc/"))

    def note(self, path: Any, what: str = "written") -> None:
        self.notes.add(f"{os.fsdecode(path)} would be {what}.")

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not _WRITING & set(mode) or not self._is_ours(file):
            return self._open(file, mode, *args, **kwargs)
        self.note(file)
        return self._open(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    def os_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if not flags & _CHANGING or not self._is_ours(path):
            return self._os_open(path, flags, *args, **kwargs)
        self.note(path)
        return self._os_open(os.devnull, flags & (os.O_WRONLY | os.O_RDWR))

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            self.note(f)

    def changing(self, plain: Any, what: str, at: int = 0) -> Callable[..., Any]:
        """Stands in for a function that changes, or makes, the file its argument `at` names."""

        def change(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= at or not self._is_ours(args[at]):
                return plain(*args, **kwargs)
            if what != "made" or not self._exists(args[at]):
                self.note(args[at], "written" if what == "made" else what)

        return change

    def keeper(self, at: int) -> Callable[..., None]:
        """Stands in for a library function that saves to its argument number `at`."""

        def save(*args: Any, **kwargs: Any) -> None:
            names = ("save_directory", "filename", "output_dir", "filepath")
            given = [kwargs[name] for name in names if kwargs.get(name) is not None]
            path = args[at] if len(args) > at else (given or [None])[0]
            self.note(path if isinstance(path, str | bytes | os.PathLike) else "a checkpoint")

        return save

    def patches(self) -> list[Patch]:
        found: list[Patch] = [
            (builtins, "open", self.open),
            (io, "open", self.open),
            (os, "open", self.os_open),
            (torch, "save", self.save),
        ]
        for owner, names, what, at in _CHANGERS:
            for name in names:
                found.append((owner, name, self.changing(getattr(owner, name), what, at)))
        if importlib.util.find_spec("safetensors") is not None:
            tensors = importlib.import_module("safetensors.torch")
            found.append((tensors, "save_file", self.keeper(1)))
        return found


#: Functions that change files: their module and names, what becomes of the file, and which argument
#: names it.
_CHANGERS: tuple[tuple[Any, tuple[str, ...], str, int], ...] = (
    (os, ("mkdir", "makedirs"), "made", 0),
    (os, ("remove", "unlink", "rmdir"), "removed", 0),
    (os, ("rename", "replace"), "written", 1),
    (shutil, ("rmtree",), "removed", 0),
    (shutil, ("move",), "written", 1),
)

#: Library methods that save a model, with the position of the path: they read tensors' memory, or
#: write from another language.
_SAVING = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", 1),
    ("transformers.trainer", "Trainer", "_save_checkpoint", 9),
    ("transformers.trainer", "Trainer", "save_model", 1),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint", 1),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint", 1),
)


@contextmanager
def unwritten(notes: Notes) -> Iterator[list[Patch]]:
    """Replacements for functions that write; libraries are patched once imported."""
    instead = _Unwritten(notes)
    with ExitStack() as stack:

        def patch(module: str, owner: str, name: str, at: int) -> None:
            found = getattr(importlib.import_module(module), owner)
            stack.callback(setattr, found, name, vars(found)[name])
            setattr(found, name, instead.keeper(at))

        for one in _SAVING:
            package = None
            with suppress(ImportError, ValueError):
                package = importlib.util.find_spec(one[0].partition(".")[0])
            if package is not None:
                stack.callback(when_imported(one[0], partial(patch, *one)))
        yield instead.patches()


# ---- Script ------------------------------------------------------------------------------

_NOTHING = "the program ended before its first optimizer step, without using the device"
_NO_STEP = (
    "No optimizer made a step, so this is the whole program. "
    "`neutracer.rehearse(step)` rehearses a step function."
)


class _EnoughError(BaseException):
    """The program has made its steps."""


class _Steps:
    """Counts each optimizer's steps; the program's count is that of the busiest one.

    A program that goes on, since it catches every exception, is ended by `leave` at its next step.
    """

    def __init__(self, run: Run, wanted: int, leave: Callable[[], object]) -> None:
        self.run, self.wanted, self.leave = run, wanted, leave
        self._made: dict[int, int] = {}
        self._is_over = False

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # The modes of a rehearsal are their thread's.
        if self._is_over and threading.current_thread() is threading.main_thread():
            self.leave()
        made = self._made[id(optimizer)] = self._made.get(id(optimizer), 0) + 1
        if made <= self.run.steps_done:
            return
        self.run.steps_done = made
        self.run.requests.annotate("END", f"step {made - 1}")
        if made >= self.wanted:
            self._is_over = True
            raise _EnoughError
        self.run.requests.annotate("START", f"step {made}")


def _leaving(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """`os._exit` of a program whose rehearsal is still to be told; a fork leaves as it did."""
    own = os.getpid()

    def exit_now(code: int) -> NoReturn:
        if os.getpid() == own and threading.current_thread() is threading.main_thread():
            raise SystemExit(code)
        leave(code)

    return exit_now


@contextmanager
def _caught(found: list[BaseException]) -> Iterator[None]:
    """Collects exceptions that end the program instead of printing a traceback."""
    before = sys.excepthook
    sys.excepthook = lambda kind, error, traceback: found.append(error)
    try:
        yield
    finally:
        sys.excepthook = before


def rehearse_script(
    run: Run, arguments: Sequence[str], *, module: bool, leave: Callable[[Run], NoReturn]
) -> None:
    """Run a script or module on the card of a rehearsal, until it has made its steps.

    Args:
        run: Gets what it asks for, and why it did not make all steps.
        arguments: The script, or the module's name, and what follows it.
        module: Whether the first is a module's name.
        leave: Ends the process, for a program that goes on after its steps.
    """
    found: list[BaseException] = []
    exits: list[BaseException] = []
    with ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        tracing = stack.enter_context(run.pretending())

        def leave_now() -> None:
            stack.close()
            run.keep(tracing)
            leave(run)

        steps = _Steps(run, run.steps, leave_now)
        stack.callback(register_optimizer_step_post_hook(steps).remove)
        run.requests.annotate("START", "step 0")
        patches = stack.enter_context(unwritten(tracing.notes))
        stack.enter_context(replaced([*patches, (os, "_exit", _leaving(os._exit))]))
        stack.enter_context(_caught(found))
        code = run_program(arguments, module=module, exits=exits)
    run.keep(tracing)
    failed = [error for error in found if not isinstance(error, _EnoughError)]
    if failed:
        run.failure = sentence(failed[0])
    elif not found:
        _ended(run, arguments[0], code, exits)
    elif not len(run.requests):
        made = format_count(run.steps_done, "step")
        run.failure = f"{arguments[0]}: the program made {made} without using the device"


def _ended(run: Run, name: str, code: int, exits: list[BaseException]) -> None:
    at = line_of(exits[0]) if exits else ""
    if not len(run.requests):
        run.failure = f"{at or name}: {_NOTHING} (exit code {code})"
    elif code:
        made = format_count(run.steps_done, "step")
        run.failure = f"{at or name}: the program ended itself after {made}, with exit code {code}"
    elif not run.steps_done:
        run.notes = (_NO_STEP, *run.notes)
