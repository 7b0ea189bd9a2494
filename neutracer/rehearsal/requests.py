# SPDX-License-Identifier: Apache-2.0
"""Requests of a rehearsal as a trace: stacks, failures, and the snapshot built from them."""

from __future__ import annotations

import os
import pickle
import re
import sys
import time
from array import array
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from neutracer._native import core
from neutracer.arguments import reader_name
from neutracer.rehearsal.cards import ENDLESS
from neutracer.trace.flaws import KEY, Rehearsed
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Owner, origin_here
from neutracer.trace.uses import KEY as USES
from neutracer.trace.uses import Uses

# ---- Stacks ------------------------------------------------------------------------------

#: Frames between a line and its operator that only a rehearsal adds.
_BETWEEN = (
    "/torch/utils/_python_dispatch.py",
    "/torch/_ops.py",
    "/torch/_library/",
    "/torch/_subclasses/",
    "/torch/utils/_device.py",
    "/torch/_compile.py",
    "/torch/_dynamo/",
    "/torch/utils/_stats.py",
    "/torch/overrides.py",
)

_OURS = __name__.rpartition(".")[0]


class CallStacks:
    """Stacks by number; equal ones have one number, and 0 is the empty one."""

    def __init__(self) -> None:
        self._frames: dict[tuple[CodeType, int], int] = {}
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._hidden: dict[CodeType, bool] = {}

    def number(self, frame: FrameType | None) -> int:
        """The stack from a frame outwards."""
        found = []
        frames, hidden = self._frames, self._hidden
        while frame is not None:
            code = frame.f_code
            is_hidden = hidden.get(code)
            if is_hidden is None:
                is_hidden = hidden[code] = is_between(frame)
            if not is_hidden:
                key = (code, frame.f_lineno)
                number = frames.get(key)
                if number is None:
                    number = frames[key] = len(frames)
                found.append(number)
            frame = frame.f_back
        return self._numbers.setdefault(tuple(found), len(self._numbers))

    def here(self) -> int:
        """The caller's stack."""
        return self.number(sys._getframe(1))

    def plain(self) -> list[list[dict[str, object]]]:
        """All stacks by number, as PyTorch's snapshots have them; a frame is one dict."""
        frames: list[dict[str, object]] = [
            {"name": code.co_name, "filename": reader_name(code.co_filename), "line": line}
            for code, line in self._frames
        ]
        return [[frames[number] for number in stack] for stack in self._numbers]


def is_between(frame: FrameType) -> bool:
    """Whether a frame stands between a program's line and its operator."""
    name = frame.f_globals.get("__name__") or ""
    if isinstance(name, str) and (name == _OURS or name.startswith(f"{_OURS}.")):
        return True
    path = frame.f_code.co_filename.replace("\\", "/")
    return path.startswith("<frozen ") or any(part in path for part in _BETWEEN)


# ---- Notes -------------------------------------------------------------------------------


def is_library(frame: FrameType) -> bool:
    """Whether a frame is no line of the program's own."""
    if origin_here(frame.f_code.co_filename).owner is not Owner.OWN:
        return True
    name = frame.f_globals.get("__name__") or ""
    return str(name).partition(".")[0] in ("neutracer", "torch")


def program_line(frame: FrameType | None) -> str:
    """The innermost line of the program itself: "train.py:12"; else a library's."""
    first = frame
    while frame is not None and is_library(frame):
        frame = frame.f_back
    chosen = frame or first
    return "" if chosen is None else _at(chosen.f_code, chosen.f_lineno)


def _at(code: CodeType, line: int) -> str:
    return f"{os.path.basename(reader_name(code.co_filename))}:{line}"


class Notes:
    """Sentences, each once, in the order of their first cause."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, sentence: str) -> None:
        """Add a sentence; {line} stands for the current line of the program."""
        self._found[sentence.replace("{line}", program_line(sys._getframe(1)))] = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences."""
        return tuple(self._found)


# ---- Failures ----------------------------------------------------------------------------

_MOST = 300


def line_of(error: BaseException) -> str:
    """The innermost line of the program that an exception came through."""
    traceback, found, last = error.__traceback__, "", ""
    while traceback is not None:
        last = _at(traceback.tb_frame.f_code, traceback.tb_lineno)
        if not is_library(traceback.tb_frame):
            found = last
        traceback = traceback.tb_next
    return found or last


def sentence(error: BaseException) -> str:
    """One sentence: the line, and why it can't be rehearsed or failed.

    Example:
        >>> sentence(ValueError("too few heads"))
        'the program failed: ValueError: too few heads'
    """
    line = line_of(error)
    at = f"{line}: " if line else ""
    name, text = type(error).__name__, _summary(error)
    if name in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return f"{at}{text} depends on the values of a tensor, which a rehearsal lacks"
    if name in ("UnsupportedOperatorException", "UnsupportedFakeTensorException"):
        return f"{at}the operator {text} has no fake kernel; torch.library.register_fake adds one"
    if isinstance(error, NotImplementedError) and "Could not run" in text:
        found = re.search(r"Could not run '([\w:.]+)'", text)
        operator = found[1] if found else "an operator"
        return f"{at}{operator} has no kernel for the fake device"
    return f"{at}the program failed: {name}" + (f": {text}" if text else "")


def _summary(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:  # The program's own.
        text = ""
    first = text.splitlines()[0].strip().rstrip(".") if text else ""
    return first if len(first) <= _MOST else f"{first[:_MOST]}..."


# ---- Gathering ---------------------------------------------------------------------------

# Autograd adds gradients in place if nothing else holds the sum (`accumulate` in
# `input_buffer.cpp`); fake tensors, a subclass, get a new sum instead.

_ADD = torch.ops.aten.add.Tensor
_ENGINE = "_engine_run_backward"


def _references(tensor: Tensor) -> tuple[int, int]:
    """Reference counts of a tensor and of its storage, this call included."""
    storage = tensor.untyped_storage()
    return tensor._use_count(), torch._C._storage_Use_Count(storage._cdata)


def _is_engine_s() -> bool:
    """Whether the current operator comes from the autograd engine, not from a hook."""
    frame = sys._getframe(2)
    while frame is not None and is_between(frame):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return frame.f_code.co_name == _ENGINE


class _Probe(TorchDispatchMode):  # type: ignore[misc]
    """Records the reference counts of a sum of two gradients with no other owner."""

    found: tuple[int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and torch._C._current_graph_task_id() != -1:
            self.found = _references(args[0])
        return func(*args, **(kwargs or {}))


class Gathering:
    """Knows the sums that the engine would make in place."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def look(self) -> None:
        """Learn what the last reference counts; called once under a mode of fake tensors."""
        with _Probe() as probe, torch.enable_grad():
            twice = torch.zeros(2, requires_grad=True) * 2
            (twice.sin() + twice.cos()).sum().backward()
        self._last = probe.found

    def is_in_place(self, func: Any, args: Any) -> bool:
        """Whether an operator that is about to run is such a sum.

        Args:
            args: Its arguments: the first is what is added to.
        """
        if func is not _ADD or torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return False
        one, other = args[0], args[1]
        return (
            isinstance(other, Tensor)
            and one.shape == other.shape
            and one.dtype == other.dtype
            and one.untyped_storage().nbytes() == one.numel() * one.element_size()
            and _references(one) == self._last
            and _is_engine_s()
        )


# ---- Requests ----------------------------------------------------------------------------

_BLOCK = 512
_BASE = 1 << 40
# The most bytes in use at a time, and in one segment: half of what the core reads of a device.
_MOST = 1 << 47
# The core's numbers: new memory above all before it, and no state from before the trace.
_RISING = 2
# By figure the tolerance on either side, as a share and in bytes, besides inexact requests: order
# and rounding differ between releases, and may cost or save one large segment.
_SEGMENT = 20 << 20
_TOLERANCES = {
    "peak_allocated_bytes": (0.005, 0),
    "peak_reserved_bytes": (0.04, _SEGMENT),
    "needed_bytes": (0.02, 2 << 20),
}


class Requests:
    """A program's requests and frees, with the stack of each.

    Attributes:
        stacks: The stacks that events refer to.
        uses: The uses of each request by its handle.
        live_bytes: Bytes that are allocated, as requested.
        peak_bytes: The most of them at one time.
        refused_bytes: The most bytes that there would have been with a request that no device
            could serve; 0 without one.
        text: Metadata of the next requests, instead of their notes; "" is none.
        texts: Metadata of requests by their handles, instead of what they were made with.
    """

    def __init__(self, capacity: int = ENDLESS) -> None:
        self.stacks, self.uses = CallStacks(), Uses()
        self.capacity = capacity  # Of the device, for the words of a refusal.
        self.live_bytes = self.peak_bytes = self.refused_bytes = 0
        self.text = ""
        self.texts: dict[int, str] = {}
        # Handle, bytes (0 ends it), stream, stack, time and note of each event.
        self._events: list[tuple[int, int, int, int, int, str]] = []
        self._sizes: dict[int, tuple[int, int]] = {}
        self._count = 0  # Handles count requests from 1, as `uses` does.
        self._bounds: dict[int, tuple[int, int]] = {}
        self._calls: list[int] = []
        self._annotations: list[dict[str, Any]] = []
        self._time_us = 0

    def __len__(self) -> int:
        return len(self._events)

    def alloc(
        self,
        nbytes: int,
        stack: int,
        stream: int = 0,
        note: str = "",
        bounds: Sequence[int] | None = None,
    ) -> int:
        """A request; the handle of what it gets.

        Args:
            nbytes: Its bytes.
            stack: The stack that asks for them.
            note: What is kept with it as its metadata.
            bounds: The least and the most bytes, where the real ones are not known.

        Raises:
            torch.OutOfMemoryError: No device has so many; a request that is only too much for
                this one goes on, so that all of the program's needs are known.
        """
        if self.live_bytes + nbytes > _MOST:
            self.refused_bytes = max(self.refused_bytes, self.live_bytes + nbytes)
            free = max(self.capacity - self.live_bytes, 0)
            asked, room, left = (one / (1 << 30) for one in (nbytes, self.capacity, free))
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total "
                f"capacity of {room:.2f} GiB of which {left:.2f} GiB is free."
            )
        self._count += 1
        handle = self._count
        self.uses.request()
        if bounds is not None and bounds[0] != bounds[1]:
            self._bounds[len(self._events)] = (bounds[0], bounds[1])
        # What may take nothing is kept, so that it has a place in the trace.
        nbytes = max(nbytes, 1)
        self._sizes[handle] = (nbytes, stream)
        self._events.append((handle, nbytes, stream, stack, self._now(), self.text or note))
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return handle

    def free(self, handle: int, stack: int = 0) -> None:
        """Free a request; a no-op if it is gone."""
        known = self._sizes.pop(handle, None)
        if known is None:
            return
        self.live_bytes -= known[0]
        self._events.append((handle, 0, known[1], stack, self._now(), ""))

    def _now(self) -> int:
        """The time in microseconds, later than the last one: it tells events from annotations."""
        self._time_us = max(time.time_ns() // 1000, self._time_us + 1)
        return self._time_us

    def empty_cache(self) -> None:
        """A call of torch.cuda.empty_cache() at this point."""
        self._calls.append(len(self._events))

    def annotate(self, stage: str, name: str) -> None:
        """The start ("START") or the end ("END") of a range that has a name."""
        entry = {"stage": stage, "name": name, "device": 0, "time_us": self._now()}
        self._annotations.append(entry)

    def unfinished(self) -> dict[str, Any]:
        """The program as a trace of an allocator that never uses anything twice."""
        frames = self.stacks.plain()
        begin = self._events[0][4] if self._events else 0
        spans = self._spans()
        segments = [self._segment(span) for span in spans]
        trace: list[dict[str, Any]] = [
            {
                "action": "segment_alloc",
                "addr": segment["address"],
                "size": segment["total_size"],
                "stream": 0,
                "time_us": begin,
                "frames": [],
            }
            for segment in segments
        ]
        places = {handle: (address, size) for span in spans for handle, address, size in span}
        for handle, nbytes, stream, stack, time_us, note in self._events:
            address, size = places[handle]
            place = {"addr": address, "size": size, "stream": stream}
            event = {**place, "time_us": time_us, "frames": frames[stack]}
            note = self.texts.get(handle, note)
            event |= {"user_metadata": note} if note else {}
            for action in ("alloc",) if nbytes else ("free_requested", "free_completed"):
                trace.append({"action": action, **event})
        return {
            "segments": segments,
            "device_traces": [trace],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
            "external_annotations": self._annotations,
        }

    def _spans(self) -> list[list[tuple[int, int, int]]]:
        """The handle, address and bytes of each request, by segments that a file may have."""
        spans: list[list[tuple[int, int, int]]] = [[]]
        top = _BASE
        for handle, nbytes, *_ in self._events:
            if nbytes and spans[-1] and top + nbytes > spans[-1][0][1] + _MOST:
                spans.append([])
            if nbytes:
                spans[-1].append((handle, top, nbytes))
                top += -(-nbytes // _BLOCK) * _BLOCK
        return spans

    def _segment(self, span: list[tuple[int, int, int]]) -> dict[str, Any]:
        rows: list[dict[str, Any]] = [
            {
                "address": address,
                "size": -(-nbytes // _BLOCK) * _BLOCK,
                "requested_size": nbytes,
                "state": "active_allocated" if handle in self._sizes else "inactive",
                "frames": [],
            }
            for handle, address, nbytes in span
        ]
        empty = {"address": _BASE, "size": _BLOCK, "requested_size": 0, "frames": []}
        rows = rows or [{**empty, "state": "inactive"}]
        used = [row for row in rows if row["state"] == "active_allocated"]
        allocated = sum(row["size"] for row in used)
        return {
            "device": 0,
            "address": rows[0]["address"],
            "total_size": sum(row["size"] for row in rows),
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(row["requested_size"] for row in used),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": rows,
        }

    def program(self, facts: Rehearsed | None = None) -> core.Program:
        """The requests as the core's model of the allocator runs them."""
        unfinished = self.unfinished()
        if facts is not None:
            unfinished["allocator_settings"][KEY] = facts.to_text()
            unfinished["allocator_settings"][USES] = self.uses.text(0)
        native = core.load(pickle.dumps(unfinished, protocol=4), sys.maxsize, None)
        program = core.Program(core.Timeline(native, 0))
        if not self._calls:
            return program
        return program.edit(None, None, array("i", self._after(self._calls)))

    def _after(self, calls: list[int]) -> list[int]:
        """For each empty_cache() call, the index of the last trace event before it."""
        # An end is two events; the segments come first.
        ends, found, wanted = len(self._spans()) - 1, [], sorted(set(calls))
        at = 0
        for index, event in enumerate(self._events):
            while at < len(wanted) and wanted[at] <= index:
                found.append(index + ends)
                at += 1
            ends += not event[1]
        found += [len(self._events) + ends] * (len(wanted) - at)
        return sorted(set(found))

    def run(self, settings: str, capacity: int, facts: Rehearsed) -> Snapshot:
        """The snapshot that there would be on a device of so many bytes."""
        return Snapshot(self.program(facts).trace(settings, **_options(capacity)))

    def bounds(self, settings: str, capacity: int) -> tuple[int, dict[str, tuple[int, int]]]:
        """The least memory that the program needs, and the range of each figure.

        Args:
            settings: A text for PYTORCH_CUDA_ALLOC_CONF.
            capacity: Bytes that PyTorch can have.
        """
        program = self.program()
        likely = _figures(program, settings, capacity)
        runs = [likely]
        if self._bounds:
            edited = [program.edit(self._sizes_at(n)) for n in (0, 1)]
            runs += [_figures(one, settings, capacity) for one in edited]
        for one in runs:
            one["needed_bytes"] = max(one["needed_bytes"], self.refused_bytes)
        ranges = {}
        for name, value in likely.items():
            if not value:
                continue
            share, segment = _TOLERANCES[name]
            low, high = min(one[name] for one in runs), max(one[name] for one in runs)
            low -= int(value * share) + segment
            ranges[name] = max(low, 0), high + int(value * share) + segment
        for name in ranges.keys() - {"peak_allocated_bytes"}:
            # What is allocated is reserved, and what is reserved is there.
            low, high = ranges[name]
            ranges[name] = max(low, ranges.get("peak_allocated_bytes", (0,))[0]), high
        if likely["needed_bytes"] <= capacity and "peak_reserved_bytes" in ranges:
            low, high = ranges["peak_reserved_bytes"]
            ranges["peak_reserved_bytes"] = low, min(high, capacity)
        return likely["needed_bytes"], ranges

    def _sizes_at(self, which: int) -> array[int]:
        """Bytes of each request by trace event: the least (0) or the most (1)."""
        sizes = array("Q", [0] * len(self._spans()))
        for index, (_, nbytes, *_rest) in enumerate(self._events):
            if nbytes:
                # A request of nothing would leave its block out of the program.
                sizes.append(max(self._bounds.get(index, (nbytes, nbytes))[which], 0))
            else:
                sizes.extend((0, 0))
        return sizes


def _options(capacity: int) -> dict[str, Any]:
    options: dict[str, Any] = {"order": _RISING, "version": 0}
    return {**options, "limit": 0, "device_total": capacity, "device_other": 0}


def _figures(program: core.Program, settings: str, capacity: int) -> dict[str, int]:
    """Peaks and least memory needed; after an OOM, the peaks of an unlimited device."""
    whole = program.run(settings, **_options(ENDLESS))
    low, high = whole["peak"]["allocated"], whole["peak"]["reserved"]
    found = {"peak_allocated_bytes": low, "peak_reserved_bytes": high}
    there = program.run(settings, **_options(capacity)) if high > capacity else whole
    if not there["ooms"]:
        found["peak_reserved_bytes"] = there["peak"]["reserved"]
    # A page of the device is 2 MiB.
    low, high = low >> 21, -(-high >> 21)
    while low < high:
        middle = (low + high) // 2
        if program.run(settings, **_options(max(middle << 21, 1)))["ooms"]:
            low = middle + 1
        else:
            high = middle
    return {**found, "needed_bytes": high << 21}
