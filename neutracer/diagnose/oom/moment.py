# SPDX-License-Identifier: Apache-2.0
"""What only the process knows at the moment in which it runs out of memory.

This only looks, and changes nothing: it runs no collection, takes no device memory, and does
not keep the variables of running functions alive.
"""

from __future__ import annotations

import inspect
import os
import runpy
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from neutracer._native import core
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.errors import NeutracerError
from neutracer.heap.cycles import device_filter
from neutracer.process.device.devices import device_memory, device_processes
from neutracer.process.hooks.observer import OutOfMemory
from neutracer.process.recording.program import run_program
from neutracer.units import format_bytes

__all__ = ["asking_frame", "facts_of", "free_text", "python_stack", "site_of"]

# Frames of the stack that are kept, and those that tell one place of a program from another.
_MOST_FRAMES = 64
_SITE_FRAMES = 12

# Tensors of a function that are reported, and shapes of garbage whose addresses are.
_MOST_TENSORS = 12
_MOST_SHAPES = 50

_OWN = str(Path(__file__).absolute().parents[2]) + os.sep
_RUNNER = run_program.__code__.co_filename
_STARTERS = (runpy.__file__, "<frozen runpy>")
_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")}
)

Stack = tuple[tuple[str, int, str], ...]


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
    return (device, *stack[:_SITE_FRAMES])


def facts_of(told: OutOfMemory, frame: FrameType | None, *, with_garbage: bool = True) -> OomFacts:
    """Everything that is known beside the snapshot.

    Args:
        told: What PyTorch said.
        frame: As `asking_frame` gives it.
        with_garbage: Whether the heap is walked for what only a collection would free:
            some 0.2 microseconds an object.
    """
    torch = sys.modules["torch"]
    garbage, addresses = _garbage(told.device) if with_garbage else (None, ())
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
        stack=python_stack(frame),
        tensors=_tensors(frame),
        grad_enabled=bool(torch.is_grad_enabled()),
    )


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
        found = core.find_cycles(*device_filter(f"cuda:{device}"), 0, _MOST_SHAPES, False)
    except (RuntimeError, ValueError):
        # The layout of this Python's heap, or of this torch's tensors, is not known.
        return None, ()
    part = found["garbage"]
    if part is None:
        return 0, ()
    tensors = [row[6] for cycle in part["cycles"] for row in cycle["nodes"] if row[6] is not None]
    addresses = tuple(sorted({int(tensor[5]) for tensor in tensors if tensor[5]}))
    return int(part["bytes"] + part["loose_bytes"]), addresses


def _tensors(frame: FrameType | None) -> tuple[str, ...]:
    """The tensors among the variables of the program's innermost function, in words."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ()
    texts: list[str] = []
    variables = _variables(frame)
    try:
        for name in list(variables):
            text = _tensor_text(name, variables[name])
            if text and len(texts) < _MOST_TENSORS:
                texts.append(text)
    except (RuntimeError, KeyError):
        # The layout of tensors is not known, or another thread changed a module.
        return tuple(texts)
    finally:
        # Up to Python 3.12 the frame keeps this dict, and with it the tensors; if it has
        # more holders than these three, the program has it from locals(), and keeps it.
        if variables is not frame.f_globals and sys.getrefcount(variables) <= 3:
            variables.clear()
    return tuple(texts)


def _variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a running function or module."""
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
