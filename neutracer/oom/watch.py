# SPDX-License-Identifier: Apache-2.0
"""`watch_oom`: snapshot, facts and page written at the moment an allocation fails."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import runpy
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import neutracer.hooks.shim as hooks
from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import number, path_name, whole_number
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.alive import untrained_memory
from neutracer.heap.cycles import device_filter, prepare_heap
from neutracer.hooks.live import take
from neutracer.hooks.modules import check_modules
from neutracer.monitor.device_report import device_memory, device_processes, devices
from neutracer.monitor.phases import RUNNING
from neutracer.oom.explain import ExplainReport, explain, holder_names
from neutracer.oom.facts import OomFacts
from neutracer.oom.page import OomReport, tell_after_cells
from neutracer.pickling import StaysHere
from neutracer.recording.long_history import (
    OutOfMemory,
    ProgramRecording,
    add_notes,
    hook_events,
    listen,
    recording_facts,
)
from neutracer.recording.program import run_program
from neutracer.recording.recorder import (
    HISTORY,
    dumped,
    other_allocator,
    tensors_and_trained,
    torch_with_cuda,
)
from neutracer.recording.sidecar import file_stem, sidecar, write_text
from neutracer.render.text import render_text
from neutracer.saving import atomic_file
from neutracer.trace.beside import TensorBlocks
from neutracer.trace.snapshot import Snapshot, load
from neutracer.units import format_bytes, format_count

# ---- Moment ------------------------------------------------------------------------------

# Frames of the stack that are kept, and those that tell one place of a program from another.
_MOST_FRAMES = 64
_SITE_FRAMES = 12

# Tensors of a function that are reported.
_MOST_TENSORS = 12

_OWN = str(Path(__file__).absolute().parents[1]) + os.sep
_RUNNER = run_program.__code__.co_filename
_STARTERS = (runpy.__file__, "<frozen runpy>")
_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")}
)

Stack = tuple[tuple[str, int, str], ...]

_T = TypeVar("_T")


def asking_frame() -> FrameType | None:
    """The innermost frame of this thread that is not neutracer's; None on a thread of C++.

    A backward pass runs on such threads: no Python function asked for the memory there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def python_stack(frame: FrameType | None) -> Stack:
    """File, line and function of a frame and its callers, innermost first.

    It leaves out how the program was started (by neutracer, by runpy) and neutracer's own
    frames between the program's, unless there is nothing else.
    """
    every: list[tuple[str, int, str]] = []
    program: list[tuple[str, int, str]] = []
    is_program = True
    while frame is not None and len(program) < _MOST_FRAMES:
        code = frame.f_code
        # What is outside of the one that runs a program is not the program.
        is_program = is_program and code.co_filename != _RUNNER
        row = (code.co_filename, frame.f_lineno or 0, code.co_name)
        every.append(row)
        if is_program and not code.co_filename.startswith((_OWN, *_STARTERS)):
            program.append(row)
        frame = frame.f_back
    return tuple(program or every[:_MOST_FRAMES])


def site_of(device: int, stack: Stack) -> tuple[object, ...]:
    """What distinguishes one place of the program from another, for errors that come again.

    A thread without Python frames counts as the place where the main thread is, which is
    waiting for it in a backward pass.
    """
    if not stack:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = (("", 0, "a thread of C++"), *python_stack(main))
    return (device, _handling(), *stack[:_SITE_FRAMES])


def facts_of(told: OutOfMemory, frame: FrameType | None) -> OomFacts:
    """Everything that is known beside the snapshot.

    Args:
        frame: As `asking_frame` gives it.
    """
    torch = sys.modules["torch"]
    garbage, addresses = _garbage(told.device)
    own, others = _uses(told.device)
    return OomFacts(
        device=told.device,
        segment_bytes=told.asked_bytes,
        limit_bytes=told.limit_bytes,
        device_total_bytes=_total_bytes(torch, told.device),
        device_free_bytes=told.free_bytes,
        process_bytes=own,
        others_bytes=others,
        garbage_bytes=garbage,
        garbage_addresses=addresses,
        time_us=told.time_us,
        stack=python_stack(frame or _backward_frame()),
        tensors=_tensors(frame),
        **_layers(frame),
        grad_enabled=bool(torch.is_grad_enabled()),
        handling=_handling(),
    )


def _backward_frame() -> FrameType | None:
    """The frame that waits for the backward pass under way; None for none, or several."""
    frames = sys._current_frames().values()
    waiting = [one for one in frames if one.f_code.co_name == "_engine_run_backward"]
    return waiting[0] if len(waiting) == 1 else None


def _handling() -> str:
    """The exception that this thread handles just now, and where it was raised; "" for none."""
    error = sys.exc_info()[1]
    traceback = None if error is None else error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    where = f"{code.co_name} ({os.path.basename(code.co_filename)}:{traceback.tb_lineno})"
    return f"{type(error).__name__} of {where}"


def free_text(device: int) -> str:
    """What a device has left, to be put behind a sentence; "" where NVML can't tell."""
    try:
        memory = device_memory(device)
    except (NeutracerError, OSError, ValueError):
        return ""
    if memory.free_bytes is None:
        return ""
    free, total = format_bytes(memory.free_bytes), format_bytes(memory.total_bytes)
    return f"; cuda:{device} has {free} of {total} free"


def _total_bytes(torch: Any, device: int) -> int | None:
    try:
        return int(torch.cuda.get_device_properties(device).total_memory)
    except (AssertionError, RuntimeError):
        return None


def _uses(device: int) -> tuple[int | None, int | None]:
    """What this process and what others have of the device; None where NVML can't tell."""
    try:
        uses = device_processes(device)
    except (NeutracerError, OSError, ValueError):
        return None, None
    own = [use.bytes for use in uses if use.is_own]
    others = [use.bytes for use in uses if not use.is_own]
    # In a container nobody may be this process: then nobody is known to be another.
    if len(own) != 1 or own[0] is None:
        return None, None
    return own[0], None if None in others else sum(nbytes or 0 for nbytes in others)


def _garbage(device: int) -> tuple[int | None, tuple[int, ...]]:
    """Bytes that a collection would free, and where such memory begins; None: not known."""
    try:
        found = core.find_cycles(*device_filter(f"cuda:{device}"), 0, 0, False)
    except (RuntimeError, ValueError):
        # The layout of this Python's heap, or of this torch's tensors, is not known.
        return None, ()
    part = found["garbage"]
    if part is None:
        return 0, ()
    return int(part["bytes"] + part["loose_bytes"]), tuple(sorted(part["storages"]))


def _untrained(trained: Collection[int]) -> tuple[int, ...]:
    """Where the memory begins that autograd has for parameters that no optimizer has; none where
    ranks may train parts of parameters that are no objects of the model."""
    distributed = sys.modules.get("torch.distributed")
    if not trained or (distributed is not None and distributed.is_initialized()):
        return ()
    return untrained_memory(trained)


def _tensors(frame: FrameType | None) -> tuple[str, ...]:
    """The tensors among the variables of the program's innermost function, in words."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ()
    return _of_variables(frame, _tensor_texts)


def _tensor_texts(variables: dict[str, Any]) -> tuple[str, ...]:
    texts: list[str] = []
    try:
        for name, value in chain(list(variables.items()), _items_of(variables)):
            text = _tensor_text(name, value)
            if text and len(texts) < _MOST_TENSORS:
                texts.append(text)
    except RuntimeError:
        # The layout of tensors is not known, or another thread changed a module.
        pass
    return tuple(texts)


def _items_of(variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The first items of the lists, tuples and dicts among variables, by the names they have."""
    for name, value in list(variables.items()):
        if type(value) in (list, tuple):
            yield from ((f"{name}[{at}]", one) for at, one in enumerate(value[:_MOST_TENSORS]))
        elif type(value) is dict:
            some = list(islice(value.items(), _MOST_TENSORS))
            yield from ((f'{name}["{key}"]', one) for key, one in some if _is_name(key))


def _is_name(key: object) -> bool:
    return type(key) is str and key.isidentifier()


def _layers(frame: FrameType | None) -> dict[str, Any]:
    """The facts of the longest list of modules of one class whose forward pass a frame is in."""
    nn: Any = sys.modules.get("torch.nn")
    found: tuple[str, int, int] = ("", 0, 0)
    inner: Any = None
    while nn is not None and frame is not None:
        module = None
        if frame.f_code.co_varnames[:1] == ("self",):
            module = _of_variables(frame, lambda variables: variables.get("self"))
        if module is not inner and issubclass(type(module), nn.Module):
            if inner is not None:
                found = max((found, *_lists_with(module, inner)), key=itemgetter(2))
            inner = module
        frame = frame.f_back
    return dict(
        zip(("layers", "layers_begun", "layers_count"), found, strict=True) if found[0] else ()
    )


def _lists_with(module: Any, inner: Any) -> Iterator[tuple[str, int, int]]:
    """The lists of modules of one class in a module that have another: the name, how many there
    are up to it, and how many in all. No code of the modules runs."""
    nn, name = sys.modules["torch.nn"], type(module).__name__
    lists = {name: module} if issubclass(type(module), nn.Sequential) else {}
    for attribute, one in list(_members(module).items()):
        if issubclass(type(one), nn.ModuleList):
            lists[f"{name}.{attribute}"] = one
    for said, one in lists.items():
        members = list(_members(one).values())
        begun = next((at for at, member in enumerate(members, 1) if member is inner), 0)
        if begun and len({type(member) for member in members}) == 1:
            yield said, begun, len(members)


def _members(module: Any) -> dict[str, Any]:
    """The modules in a module; none in one whose __init__ has not run."""
    members = module.__dict__.get("_modules")
    return members if isinstance(members, dict) else {}


def _of_variables(frame: FrameType, read: Callable[[dict[str, Any]], _T]) -> _T:
    """What a function reads from a frame's variables, of which nothing is kept."""
    variables = _variables(frame)
    try:
        return read(variables)
    finally:
        # Up to Python 3.12 the frame keeps this dict, and with it the tensors; if it has
        # more holders than these three, the program has it from locals(), and keeps it.
        if variables is not frame.f_globals and sys.getrefcount(variables) <= 3:
            variables.clear()


def _variables(frame: FrameType) -> dict[str, Any]:
    if frame.f_code.co_name == "<module>":
        return frame.f_globals
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    variables = frame.f_locals
    return variables if isinstance(variables, dict) else dict(variables)


def _tensor_text(name: str, value: object) -> str:
    facts = core.tensor_facts(value)
    if facts is None:
        return ""
    shape = ", ".join(map(str, facts["shape"])) + ("," if len(facts["shape"]) == 1 else "")
    return f"{name}: ({shape}) {facts['dtype']}"


# ---- Write -------------------------------------------------------------------------------

_LOGGER = logging.getLogger("neutracer")

DEFAULT_SECONDS = 10.0

# What PyTorch takes to spell out an event and what we take to read it, at the worst; and what
# we take for one of the hooks.
_EVENT_S = 5e-6
_HOOK_EVENT_S = 2e-6


def write_down(
    told: OutOfMemory, frame: FrameType | None, directory: str, seconds: float
) -> OomReport:
    """Take the snapshot, explain it, write the three files; nothing is raised."""
    # A collection in between would run the program's finalizers, and free what is reported.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Work(told, frame, directory, seconds, collects).done()
    finally:
        if collects:
            gc.enable()


class _Work:
    """One report in the making."""

    def __init__(
        self,
        told: OutOfMemory,
        frame: FrameType | None,
        directory: str,
        seconds: float,
        collects: bool,
    ) -> None:
        self._told = told
        self._collects = collects
        self._frame = frame
        self._begin = time.monotonic()
        self._end = self._begin + seconds
        self._folder = os.path.abspath(directory)
        self._stem = os.path.join(self._folder, file_stem("oom"))
        self._left_out: list[str] = []
        self._spent: dict[str, float] = {}
        # Files written by threads, so that a disk that hangs does not hang the program, and the
        # files wait for the disk together.
        self._writing: dict[str, _Ahead] = {}

    def done(self) -> OomReport:
        """The report, written."""
        told = self._told
        self._tried("the folder", lambda: os.makedirs(self._folder, exist_ok=True))
        taken = self._tried("the snapshot", self._take)
        if taken is not None:
            path = f"{self._stem}.pickle"
            self._writing[path] = _Ahead(lambda: _write(path, taken))
        # The file is read, without the GIL, while the heap is walked, which needs it.
        reading = _Ahead(lambda: _read(taken))
        facts = self._tried("the program's part", lambda: facts_of(told, self._frame))
        if facts is None:
            facts = OomFacts(device=told.device, segment_bytes=told.asked_bytes)
        facts = replace(facts, collects=self._collects)
        asked = self._tried("the program's tensors", lambda: tensors_and_trained("cuda"))
        tensors, trained = asked or ({}, frozenset())
        untrained = self._tried("the program's graphs", lambda: _untrained(trained))
        facts = replace(facts, untrained_addresses=untrained or ())
        process = self._tried("memory_stats()", lambda: self._process(tensors)) or {}
        explained = None
        if taken is not None:
            explained = self._tried(
                "the verdict", lambda: _explained(reading.result(), facts, tensors)
            )
        if explained is not None:
            facts, explained = self._with_holders(reading.result(), facts, explained)
        report = self._report(facts, process, explained, with_snapshot=taken is not None)
        self._writing[report.json] = _Ahead(lambda: write_text(report.json, report.to_dict()))
        text = report.document
        self._writing[report.text] = _Ahead(lambda: write_text(report.text, render_text(text())))
        waits = time.monotonic()
        problems = [
            f"{os.path.basename(path)}: {problem}"
            for path, job in self._writing.items()
            if (problem := job.wait(self._end - time.monotonic()))
        ]
        self._spent["the files"] = time.monotonic() - waits
        return replace(
            report,
            left_out=(*report.left_out, *problems),
            seconds=time.monotonic() - self._begin,
            spent=dict(self._spent),
        )

    def _tried(self, what: str, step: Callable[[], Any]) -> Any:
        """What the step returns; None, with the reason written down, where there is nothing."""
        begin = time.monotonic()
        if begin >= self._end:
            self._left_out.append(f"{what}: time ran out")
            return None
        try:
            return step()
        except Exception as error:
            _LOGGER.debug("a part of an out-of-memory report failed", exc_info=True)
            self._left_out.append(f"{what}: {type(error).__name__}: {error}")
            return None
        finally:
            self._spent[what] = time.monotonic() - begin

    def _with_holders(
        self, snap: Snapshot, facts: OomFacts, explained: ExplainReport
    ) -> tuple[OomFacts, ExplainReport]:
        """Both with who holds what piled up, as far as the time left allows."""
        names = self._tried("the holders", lambda: holder_names(snap, facts, explained))
        if not names:
            return facts, explained
        known = replace(facts, holders=names)
        again = self._tried("the holders' verdict", lambda: _asked(snap, known))
        return (facts, explained) if again is None else (known, again)

    def _take(self) -> bytes | Snapshot:
        torch = sys.modules["torch"]
        now = hooks.state()
        follows = now is not None and now.active and now.backend == "cuda"
        if now is not None and follows and not torch._C._cuda_isHistoryEnabled():
            most = int((self._end - time.monotonic()) / _HOOK_EVENT_S)
            return take(now.backend, max(min(hook_events() or now.events, most), 1), quiet=True)
        cuda = torch.cuda
        recorded = HISTORY.in_force()
        if recorded is not None and recorded.max_entries * _EVENT_S > self._end - time.monotonic():
            self._left_out.append(
                f"the trace: {recorded.max_entries:,} events may take longer than the time left"
            )
            return dumped(cuda, traces=False)
        return dumped(cuda)

    def _process(self, tensors: TensorBlocks) -> dict[str, Any]:
        process = sidecar((self._told.device,), recording=recording_facts(), tensors=tensors)
        running = RUNNING.facts()
        return {**process, "running": running} if running else process

    def _report(
        self,
        facts: OomFacts,
        process: dict[str, Any],
        explained: ExplainReport | None,
        with_snapshot: bool,
    ) -> OomReport:
        blocks = () if explained is None else explained.document().blocks
        main = explained.verdicts[0] if explained is not None and explained.verdicts else None
        return OomReport(
            device=self._told.device,
            asked_bytes=self._told.asked_bytes,
            free_bytes=self._told.free_bytes,
            phase="" if explained is None else explained.phase,
            verdict="" if main is None else main.message,
            oom=facts,
            process=process,
            snapshot=f"{self._stem}.pickle" if with_snapshot else None,
            text=f"{self._stem}.txt",
            json=f"{self._stem}.json",
            left_out=tuple(self._left_out),
            explained=None if explained is None else explained.to_dict(),
            seconds=time.monotonic() - self._begin,
            spent=dict(self._spent),
            findings=() if explained is None else explained.findings,
            _blocks=blocks,
        )


def _read(taken: bytes | Snapshot | None) -> Snapshot | None:
    return load(taken, progress=False) if isinstance(taken, bytes) else taken


def _explained(snap: Snapshot, facts: OomFacts, tensors: TensorBlocks) -> ExplainReport:
    snap.beside = replace(snap.beside, tensors=tensors)
    return _asked(snap, facts)


def _asked(snap: Snapshot, facts: OomFacts) -> ExplainReport:
    return explain(snap, facts=facts, device=facts.device)


def _write(path: str, taken: bytes | Snapshot) -> None:
    if isinstance(taken, Snapshot):
        taken.save(path)
        return
    with atomic_file(path) as file:
        file.write(taken)


class _Ahead:
    """A step that another thread makes meanwhile; this one does where no thread can begin."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self._step = step
        self._value: Any = None
        self._error: Exception | None = None
        self._done = threading.Event()
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:
            # The interpreter is ending, or there are no more threads.
            self._run()

    def _run(self) -> None:
        try:
            self._value = self._step()
        except Exception as error:
            self._error = error
        self._done.set()

    def wait(self, seconds: float) -> str:
        """What went wrong with the writing of a file, "" for nothing."""
        if not self._done.wait(max(seconds, 0.0)):
            return "still being written"
        return "" if self._error is None else str(self._error)

    def result(self) -> Any:
        """What the step returns, or raises."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


# ---- Watch -------------------------------------------------------------------------------

DEFAULT_DIRECTORY = "neutracer-oom"

# Reports in a row, and after how many seconds one more may be written.
_BURST = 5
_REFILL_S = 60.0

# A program that finds its batch size by running out has few places; these are many.
_MOST_SITES = 10_000

# Python before 3.11 has no notes, and exceptions of PyTorch are not followed there.
_HAS_NOTES = hasattr(BaseException, "add_note")


def watch_oom(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    max_entries: int | None = None,
    stacks: str = "python",
    modules: Any = None,
    limit: int = _BURST,
    seconds: float = DEFAULT_SECONDS,
    callback: Callable[[OomReport], object] | None = None,
) -> OomWatch:
    """Write a report whenever PyTorch runs out of CUDA memory, and go on.

    Before the exception reaches the program, three files are written: the snapshot, the
    report as text, and as JSON. The exception gets a note with the verdict (from Python
    3.11 on). Each place in the program is reported once, however often it runs out there.

    Nothing initialises CUDA, collects garbage or empties the cache. PyTorch can't detach
    an observer: ours is attached once, and idle when no watch is on.

    Args:
        directory: Where the files go; it is made when the first is written.
        max_entries: Events of each device's history to keep meanwhile; None is as many as 256
            MiB of the host's memory have room for: 800,000 through neutracer's hooks, or
            250,000 where only PyTorch's recorder can be had, which costs more time. 0 records
            nothing. The report then has the events of `neutracer.live`, if that is on;
            otherwise it says where memory is but not who took it.
        stacks: "python", or "all" with frames of C++, which only PyTorch's recorder has.
        modules: A model whose modules mark what they allocate, or True for every model that
            is called: the report then has a table of them. It needs torch 2.10.
        limit: How many reports may be written in a row; one more a minute after that.
        seconds: The most time that a report may take; what is not done by then is left out.
        callback: Called with each `OomReport` after it is written. What it raises is
            logged.

    Returns:
        The watch, which is on: `remove()` ends it, and so does leaving it as a context
        manager. It lives until then, kept or not.

    Raises:
        UnavailableError: torch is not imported, or has no CUDA.
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> watch = neutracer.watch_oom("reports")   # doctest: +SKIP
        >>> watch.remove()                           # doctest: +SKIP
    """
    watch = oom_report(
        directory,
        max_entries=max_entries,
        stacks=stacks,
        modules=modules,
        limit=limit,
        seconds=seconds,
        callback=callback,
    )
    return watch.start()


def oom_report(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    max_entries: int | None = None,
    stacks: str = "python",
    modules: Any = None,
    limit: int = _BURST,
    seconds: float = DEFAULT_SECONDS,
    callback: Callable[[OomReport], object] | None = None,
) -> OomWatch:
    """Do what `watch_oom` does for a block of the program.

    Args:
        directory: As for `watch_oom`, and so the others.
        max_entries: Events of history to keep; None is as for `watch_oom`, 0 records none.
        stacks: As for `record`.
        modules: As for `watch_oom`.
        limit: Reports in a row.
        seconds: The most time that a report may take.
        callback: Called with each report.

    Returns:
        The watch, to be entered with `with`; its `reports` has what was written.

    Raises:
        UnavailableError: torch is not imported, or has no CUDA.
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> with neutracer.oom_report(directory="reports") as watch:   # doctest: +SKIP
        ...     train()
    """
    folder = path_name(directory, "directory")
    if max_entries is not None:
        max_entries = whole_number("max_entries", max_entries, "a number of events")
    limit = whole_number("limit", limit, "a number of reports")
    number("seconds", seconds, "a number of seconds")
    if (max_entries or 0) < 0 or limit < 1 or not seconds > 0:
        raise ValueError("max_entries must be 0 or more, limit 1 or more, seconds above 0")
    called_back("callback", callback, "report")
    check_modules(torch_with_cuda(), modules)
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks is {stacks!r}: it must be 'python' or 'all'")
    recording = None if max_entries == 0 else ProgramRecording(max_entries, stacks, modules=modules)
    return OomWatch(folder, recording, limit, seconds, callback)


@dataclass
class _Site:
    """A place where memory ran out: how often, and which report has it."""

    count: int
    report: OomReport
    raised: bool = False  # Whether an exception reached Python.


@dataclass(frozen=True)
class _Note:
    """What an exception is to say: of which error, and whether its thread runs Python."""

    told: OutOfMemory
    site: _Site
    text: str
    is_native: bool


class OomWatch(StaysHere, instead="it watches this process: send its .reports"):
    """The handle of a watch for out-of-memory errors."""

    def __init__(
        self,
        directory: str,
        recording: ProgramRecording | None,
        limit: int,
        seconds: float,
        callback: Callable[[OomReport], object] | None,
    ) -> None:
        """Made by `watch_oom` and `oom_report`; not by users."""
        self._directory = directory
        self._recording = recording
        self._limit = limit
        self._seconds = seconds
        self._callback = callback
        self._tokens, self._refilled = float(limit), time.monotonic()
        self._busy = threading.Lock()
        self._sites: dict[tuple[object, ...], _Site] = {}
        # By thread: what is to be added to the exception that is about to be made.
        self._notes: dict[int, _Note] = {}
        self._ends: list[Callable[[], object]] = []
        self._process = 0
        self._seen = 0
        #: What could be said of the last error of another allocator than PyTorch's, or "".
        self.untold = ""

    @property
    def active(self) -> bool:
        """Whether it is on; in the child of a fork it is not."""
        return bool(self._ends) and self._process == os.getpid()

    @property
    def reports(self) -> tuple[OomReport, ...]:
        """What was written, in order; with `oom.raised` as far as it is known by now."""
        # Copied at once: other threads may add to it.
        sites = list(self._sites.values())
        if not _HAS_NOTES:
            return tuple(one.report for one in sites)
        return tuple(
            replace(one.report, oom=replace(one.report.oom, raised=one.raised)) for one in sites
        )

    @property
    def seen(self) -> int:
        """Out-of-memory errors that were seen, those without a report of their own too."""
        return self._seen

    def start(self) -> OomWatch:
        """Begin; a second time does nothing. Returns the watch.

        Raises:
            UnavailableError: torch has no CUDA, or can't record.
        """
        if self.active:
            return self
        if self._process != os.getpid():
            # What is on in the parent of a fork is not to be ended here, nor waited for.
            self._process, self._ends, self._busy = os.getpid(), [], threading.Lock()
        try:
            # What is slow the first time is not left for the moment of need.
            devices()
            prepare_heap()
        except UnavailableError as error:
            _LOGGER.info("reports will not say what garbage holds: %s", error)
        if self._recording is not None:
            self._recording.start()
            self._ends.append(self._recording.discard)
        try:
            self._ends.append(listen(self._on_oom))
            self._ends.append(add_notes(self._note))
            self._ends.append(tell_after_cells(lambda: self.reports))
        except BaseException:
            self.remove()
            raise
        return self

    def remove(self) -> None:
        """End it; a second time does nothing. What was written stays."""
        ends, self._ends = self._ends, []
        if self._process == os.getpid():
            for end in reversed(ends):
                end()

    def __enter__(self) -> OomWatch:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "on" if self.active else "removed"
        return f"<OomWatch: {state}, {format_count(len(self._sites), 'report')}>"

    # On the thread that asked, before the exception exists.
    def _on_oom(self, told: OutOfMemory) -> None:
        self._seen += 1
        self._notes.pop(threading.get_ident(), None)
        frame = asking_frame()
        stack = python_stack(frame or _backward_frame())
        site = site_of(told.device, stack)
        # Of several threads each gets its report, in the time that one may take.
        begin = time.monotonic()
        if not self._busy.acquire(timeout=min(self._seconds, threading.TIMEOUT_MAX)):
            return
        try:
            left = self._seconds - (time.monotonic() - begin)
            known = self._sites.get(site)
            if known is not None:
                known.count += 1
                self._leave_note(told, known, _again(known), frame is None)
            elif self._may_write():
                report = write_down(told, frame, self._directory, left)
                self._sites[site] = _Site(1, report)
                self._leave_note(told, self._sites[site], report.note, frame is None)
                self._call_back(report)
        finally:
            del frame
            self._busy.release()

    def _may_write(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._limit, self._tokens + (now - self._refilled) / _REFILL_S)
        self._refilled = now
        if self._tokens < 1 or len(self._sites) >= _MOST_SITES:
            return False
        self._tokens -= 1
        return True

    def _call_back(self, report: OomReport) -> None:
        # The exception says it, where it can.
        _LOGGER.log(logging.INFO if _HAS_NOTES else logging.WARNING, "%s", report.note)
        if self._callback is None:
            return
        try:
            self._callback(report)
        except Exception:
            _LOGGER.exception("the callback of an out-of-memory watch failed")

    def _leave_note(self, told: OutOfMemory, site: _Site, text: str, is_native: bool) -> None:
        self._notes[threading.get_ident()] = _Note(told, site, text, is_native)

    def _note(self, message: str) -> str | None:
        thread = threading.get_ident()
        # A backward pass runs out on a thread of C++, and raises on the one that called it.
        native = [one for one, note in list(self._notes.items()) if note.is_native]
        said = OomFacts.from_message(message)
        for left_by in (thread, *reversed(native)):
            note = self._notes.get(left_by)
            if note is not None and _is_same(said, note.told):
                del self._notes[left_by]
                note.site.raised = True
                return note.text
        return self._untold(message)

    def _untold(self, message: str) -> str | None:
        torch = torch_with_cuda()
        if "out of memory" not in message or not torch.cuda.is_initialized():
            return None
        other = other_allocator(torch)
        if not other:
            return None
        self._seen += 1
        free = free_text(torch.cuda.current_device())
        self.untold = f"{other}, so nothing tells who holds the memory{free}"
        return f"neutracer: {self.untold}"


def _again(site: _Site) -> str:
    count = f"out of memory again at this place ({site.count} times)"
    return f"{site.report.note}\n  {count}: this is said of the first"


def _is_same(said: OomFacts, told: OutOfMemory) -> bool:
    if said.segment_bytes is None or said.device not in (None, told.device):
        return False
    return said.is_of(told.asked_bytes)
