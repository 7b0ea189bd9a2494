# SPDX-License-Identifier: Apache-2.0
"""Records what PyTorch's CUDA allocator does, bounded, and leaves nothing switched on."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, TypeVar

from neutracer.arguments import path_name
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError
from neutracer.pickling import StaysHere
from neutracer.process.recording.capture import snapshot, torch_with_cuda
from neutracer.process.recording.history import HISTORY, Wish, wrapped_ring
from neutracer.process.recording.module_calls import Marks, marks_of
from neutracer.process.recording.modules import check_modules
from neutracer.process.recording.sidecar import (
    filled_in,
    rank_facts,
    running_program,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count

__all__ = ["DEFAULT_MAX_ENTRIES", "Recording", "record"]

_LOGGER = logging.getLogger("neutracer")

# With Python stacks an event takes some 350 bytes, with those of C++ 1,000.
DEFAULT_MAX_ENTRIES = 100_000

_STACKS = ("python", "all")
_CONTEXTS = ("all", "alloc", "state", None)

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
    path: str | os.PathLike[str] | None = None,
) -> Recording:
    """Record the allocations of this process with PyTorch's own recorder, within bounds.

    As a context manager, as a decorator, or with `start()` and `stop()`. Recording begins
    when CUDA does: nothing here initialises it. Afterwards everything is as before: a
    recording inside another one joins its ring, and a history that the program itself has
    switched on stays as it is.

    Args:
        max_entries: Events kept for each device; newer ones replace the oldest, and a
            `HistoryWarning` says so. An event takes some 350 bytes of the host's memory.
        stacks: "python", or "all" with C++ frames too: an event then takes 1,000 bytes, and
            spelling out the frames takes minutes in a large program.
        context: What gets a stack: the events of "alloc" (a free then has that of its block's
            allocation), "all" with frees by their own, only the blocks of the "state" at the
            end, or None. "all" can end a program: up to Python 3.12, torch 2.11 loses the
            exception that is under way where memory is freed in a backward pass, as in
            gradient checkpointing with dropout, which then raises SystemError.
        skip_actions: Actions to leave out, by PyTorch's names ("free_requested").
        compile_context: Record the compiled frame of each event.
        annotations: Keep the ranges that `torch.profiler.record_function` names.
        modules: A model, or True for every one called (torch 2.10): for `holders(by="module")`.
        path: Where to save at the end; {rank} (0 where there is none), {host} and {pid} in it
            are filled in: each process needs its own file.

    Returns:
        The recording, not yet begun.

    Raises:
        UnavailableError: torch is not imported, has no CUDA, or can't record that.
        ValueError: An argument is none of those.
        TypeError: `max_entries` is no whole number, or another argument of a wrong kind.

    Example:
        >>> import neutracer
        >>> with neutracer.record(max_entries=50_000) as recording:   # doctest: +SKIP
        ...     train_step()
        >>> recording.save("step.pickle.gz")                          # doctest: +SKIP
    """
    if isinstance(max_entries, bool) or not isinstance(max_entries, Integral):
        hint = ": write @neutracer.record() with its brackets" if callable(max_entries) else ""
        raise TypeError(
            f"max_entries must be a number of events, not {type(max_entries).__name__}{hint}"
        )
    if not 0 < max_entries <= sys.maxsize:
        raise ValueError(f"max_entries is {max_entries}: it must be a number of events, above 0")
    if stacks not in _STACKS:
        raise ValueError(f"stacks is {stacks!r}: it must be one of {_STACKS}")
    if context not in _CONTEXTS:
        raise ValueError(f"context is {context!r}: it must be one of {_CONTEXTS}")
    if isinstance(skip_actions, str) or not isinstance(skip_actions, Iterable):
        raise TypeError(f"skip_actions must be a list of PyTorch's names, not {skip_actions!r}")
    path = None if path is None else path_name(path)
    wish = Wish(max_entries, stacks, context, tuple(skip_actions), compile_context, annotations)
    HISTORY.check(torch_with_cuda(), wish)
    check_modules(torch_with_cuda(), modules)
    return Recording(wish, path, modules)


class Recording(StaysHere, instead="it records this process: send its snapshot()"):
    """What `record` returns.

    Attributes:
        step: What the program calls its current place; the sidecar keeps it.
        quiet: True leaves a wrapped ring to the sidecar, without a warning.
    """

    def __init__(
        self, wish: Wish, path: str | os.PathLike[str] | None = None, modules: Any = None
    ) -> None:
        """Made by `record`; not by users."""
        self._wish = wish
        self._modules = modules
        self._marks: Marks | None = None
        # One of its own for each start: the history tells them apart by identity.
        self._begun: Wish | None = None
        self._path = path
        self._lock = threading.Lock()
        self._process = 0
        self._program = ""
        self._on = False
        self._taken: tuple[Snapshot, dict[str, Any]] | None = None
        self._told = False
        self.step: int | str | None = None
        self.quiet = False

    @property
    def active(self) -> bool:
        """Whether it is on. Before CUDA is initialised it is on, but records nothing yet."""
        return self._on and self._process == os.getpid()

    @property
    def waiting(self) -> bool:
        """Whether it is on and waits for CUDA."""
        return self.active and self._begun is None

    def start(self) -> Recording:
        """Begin; returns the recording.

        Raises:
            RuntimeError: It is on already.
            UnavailableError: torch has no CUDA, or can't record that.
        """
        torch = torch_with_cuda()
        if torch.cuda.is_initialized():
            return self.start_at_once(torch)
        self._switch_on()
        torch.cuda._lazy_call(functools.partial(self._begin_late, torch))
        return self

    def start_at_once(self, torch: Any) -> Recording:
        """Begin; CUDA is initialised, or just being so: a call that PyTorch makes meanwhile
        can't queue another one, as `start` does.

        Raises:
            RuntimeError: It is on already.
            UnavailableError: torch can't record that.
        """
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
            self._on, self._taken, self._told, self._begun = True, None, False, None

    def stop(self) -> None:
        """End, and keep what was recorded; a second time does nothing.

        In the child of a fork it does nothing: the recording is the parent's.
        """
        self._end(keep=True)
        if self._path is not None and self._taken is not None:
            self.save(filled_in(self._path))

    def discard(self) -> None:
        """End, and keep nothing; a second time does nothing."""
        self._end(keep=False)

    def snapshot(self) -> Snapshot:
        """What has been recorded: until now, or until it was stopped.

        Raises:
            UnavailableError: Nothing was, because CUDA was not initialised meanwhile.
        """
        return self._now()[0]

    def save(self, path: str | os.PathLike[str], *, step: int | str | None = None) -> Snapshot:
        """Write the snapshot, and beside it, as <path>.json, what the snapshot does not hold.

        Each of the two appears whole or not at all. The JSON has rank, world size, host,
        step, versions, settings, how it was recorded and `memory_stats()`.

        Args:
            path: Where to; compressed if it ends in .gz, .xz or .zst.
            step: What the sidecar calls the place; None is the attribute `step`.

        Returns:
            What was saved.

        Raises:
            UnavailableError: There is nothing to save, or nothing here compresses so.
            OSError: It can't be written.
        """
        snap, facts = self._now()
        snap.save(path)
        if step is not None:
            facts = {**facts, "step": step}
        write_text(sidecar_path(path), facts)
        return snap

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.stop()
        except (NeutracerError, OSError) as error:
            # What ended the program's block is not to be replaced by this.
            if kind is None:
                raise
            _LOGGER.warning("a recording could not be saved: %s", error)

    def __call__(self, function: Function) -> Function:
        """Record each call of a function; the recording of each call is its own.

        Raises:
            TypeError: It is a coroutine or a generator, whose call returns before it runs.
        """
        for is_deferred in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        ):
            if is_deferred(function):
                raise TypeError(f"{function!r} runs after its call: use 'with' inside it")

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Recording(self._wish, self._path, self._modules):
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
                if self._marks is not None:
                    self._marks.detach()
                begun, self._begun = self._begun, None
                if begun is not None and not HISTORY.end(torch_with_cuda(), begun):
                    self._warn("PyTorch's history was switched off before the recording ended")

    def _begin(self, torch: Any) -> None:
        begun = Wish(**vars(self._wish))
        HISTORY.begin(torch, begun)
        if self._modules is not None:
            self._marks = marks_of(torch, self._modules)
        # At the end of the recording the program may have left its group.
        rank_facts()
        self._begun = begun

    def _begin_late(self, torch: Any) -> None:
        # What is raised here would end the initialisation of CUDA.
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
            unused = "the program has not used CUDA so far, and neutracer does not initialise it"
            why = unused if self.active else "it has not been started"
            raise UnavailableError("a recording with CUDA in it", why)
        return self._take()

    def _take(self) -> tuple[Snapshot, dict[str, Any]]:
        snap = snapshot()
        wrapped = wrapped_ring(snap)
        if wrapped:
            length = "its ring" if wrapped is True else f"the ring of {wrapped:,} events"
            self._warn(
                f"{length} wrapped: what came before is lost; "
                "record(max_entries=...) with more keeps more"
            )
        recording = {
            "joined": HISTORY.is_foreign(),
            "wrapped": bool(wrapped),
            **vars(HISTORY.in_force() or self._wish),
        }
        facts = sidecar(
            snap.devices,
            recording=recording,
            step=self.step,
            program=self._program,
            tensors=snap.beside.tensors,
        )
        return snap, facts

    def _warn(self, text: str) -> None:
        if not self._told and not self.quiet:
            self._told = True
            warnings.warn(text, HistoryWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    """The stack level of the first frame that is not in this file, for `warnings.warn`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        level, frame = level + 1, frame.f_back
    return level
