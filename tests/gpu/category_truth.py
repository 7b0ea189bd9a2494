# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's own memory profiler calls each allocation of a training step.

    OUT=folder python tests/gpu/category_truth.py            all models, on the GPU
    OUT=folder python tests/gpu/category_truth.py --cpu      a try of the script without one

Each model is built and makes two training steps that warm it up and three more, all with the
allocator's history on and the last three under the profiler. What comes out, in
`$OUT/categories.tar`:

    NAME.snapshot.xz    PyTorch's snapshot (a pickle)
    NAME.truth.json.xz  {"steps": [[begin_us, end_us], ...], "categories": [names],
                         "rows": [[event, address, size, [[category, from_us], ...]], ...]}

`event` is the allocation's event in the device's trace, -1 for one from before it. A row's
list says which category it had from when on (the profiler follows what is written into an
allocation); the category is null where the profiler has no name. Each model runs in a process
of its own, so that one that fails leaves the others alone.

Without a GPU the trace is made from the profiler's own record: one address an allocation, the
Python calls around it as its stack, and none inside of the backward pass, whose thread has
none on a GPU.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import lzma
import os
import pickle
import subprocess
import sys
import tarfile
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import category_models
import torch
from torch._C._profiler import RecordScope, _EventType
from torch.profiler import ProfilerActivity, _memory_profiler, profile

WARM, STEPS = 2, 3
SECONDS = 200  # for one model
AT_ONCE = 4
FAKE_BASE = 0x700000000000


# What the profiler saw.


def allocation_events(result: Any, device: str) -> list[Any]:
    """The profiler's events of allocations (size > 0) and frees, in order of time."""
    tree = _memory_profiler.OpTree(result)
    found = [
        event
        for event in tree.dfs()
        if event.typed[0] == _EventType.Allocation and event.typed[1].device.type == device
    ]
    return sorted(found, key=lambda event: event.start_time_ns)


def category_spans(memory: Any, device: str) -> tuple[dict[Any, Any], list[Any]]:
    """By (address, allocation id): [[category, from_us], ...]; and the keys that were there
    before, with their sizes."""
    spans: dict[Any, list[Any]] = defaultdict(list)
    before = []
    for at, action, (key, version), size in memory.timeline:
        if key.device.type != device or not isinstance(key, _memory_profiler.TensorKey):
            continue
        storage = (key.storage.ptr, key.storage.allocation_id)
        name = action.name
        if name == "DESTROY":
            continue
        if name == "INCREMENT_VERSION":
            version += 1
        category = memory._categories.get(key, version)
        word = category.name.lower() if category else None
        if name == "PREEXISTING":
            before.append((storage, size))
        if not spans[storage] or spans[storage][-1][0] != word:
            spans[storage].append([word, max(at, 0) // 1000])
    return spans, before


# Which allocation of the trace is which of the profiler's.


def match(
    trace: list[dict[str, Any]],
    events: list[Any],
    spans: dict[Any, Any],
    before: list[Any],
    began: int,
) -> tuple[list[Any], dict[str, int]]:
    """Rows [event, address, size, spans], and how the matching went.

    An address is given to one allocation at a time, so the allocations at one address come
    in the same order in both records, from `began` (microseconds) on, when the profiler
    began; where their numbers differ, the times decide.
    """
    ours: dict[int, list[int]] = defaultdict(list)
    for number, entry in enumerate(trace):
        if entry["action"] == "alloc" and entry["time_us"] >= began:
            ours[entry["addr"]].append(number)
    theirs: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        if event.typed[1].alloc_size > 0:
            theirs[event.typed[1].ptr].append(event)
    rows, counts = [], defaultdict(int)
    for address, numbers in ours.items():
        partners = _partners(trace, numbers, theirs.get(address, []))
        for number, partner in zip(numbers, partners, strict=True):
            if partner is None:
                counts["unmatched"] += 1
                continue
            fields = partner.typed[1]
            entry = trace[number]
            if abs(fields.alloc_size) < entry["size"]:
                counts["sizes_differ"] += 1
                continue
            at = spans.get((address, fields.allocation_id), [[None, 0]])
            counts["matched"] += 1
            rows.append([number, address, fields.alloc_size, at])
    counts["theirs_in_all"] = sum(len(found) for found in theirs.values())
    for (address, allocation_id), size in before:
        rows.append([-1, address, size, spans[address, allocation_id]])
        counts["from_before"] += 1
    return sorted(rows, key=lambda row: row[:2]), dict(counts)


def _partners(trace: list[dict[str, Any]], numbers: list[int], events: list[Any]) -> list[Any]:
    if len(numbers) == len(events):
        return events
    times = [event.start_time_ns // 1000 for event in events]
    found = []
    for number in numbers:
        at = trace[number]["time_us"]
        near = bisect.bisect_left(times, at)
        close = [i for i in (near - 1, near) if 0 <= i < len(times) and abs(times[i] - at) < 200]
        found.append(events[min(close, key=lambda i: abs(times[i] - at))] if close else None)
    return found


# A trace where there is no GPU.


def fake_snapshot(result: Any, before: list[Any]) -> tuple[dict[str, Any], dict[Any, int]]:
    """A snapshot made from the profiler's events, and the address that stands for each
    (address, allocation id)."""
    events = allocation_events(result, "cpu")
    addresses: dict[Any, int] = {}
    live: dict[int, tuple[int, int, list[Any]]] = {}
    end = FAKE_BASE

    def place(key: Any, size: int) -> int:
        nonlocal end
        addresses[key] = end
        end += -(-size // 512) * 512
        return addresses[key]

    for storage, size in before:
        if size:
            live[place(storage, size)] = (size, -(-size // 512) * 512, [])
    trace = []
    for event in events:
        fields = event.typed[1]
        key = (fields.ptr, fields.allocation_id)
        entry = {"size": abs(fields.alloc_size), "stream": 0, "pool_id": (0, 0)}
        entry["time_us"] = event.start_time_ns // 1000
        frames = _fake_frames(event)
        if frames:
            entry["frames"] = frames
        if fields.alloc_size > 0:
            address = place(key, fields.alloc_size)
            live[address] = (entry["size"], -(-entry["size"] // 512) * 512, frames)
            trace.append({"action": "alloc", "addr": address, **entry})
        elif key in addresses and live.pop(addresses[key], None):
            for action in ("free_requested", "free_completed"):
                trace.append({"action": action, "addr": addresses[key], **entry})
    return _as_snapshot(trace, live, end), addresses


def _fake_frames(event: Any) -> list[dict[str, Any]]:
    frames, at = [], event.parent
    while at is not None:
        kind, fields = at.typed
        if kind == _EventType.TorchOp and fields.scope == RecordScope.BACKWARD_FUNCTION:
            return []
        if kind == _EventType.PyCall:
            if not frames:
                own = fields.callsite
                frames.append((own.file_name, own.line_number, own.function_name))
            caller = fields.caller
            frames.append((caller.file_name, caller.line_number, caller.function_name))
        at = at.parent
    # The profiler leaves out the folder of the installed packages.
    return [
        {"filename": name if name[0] == "/" else "/" + name, "line": line, "name": function}
        for name, line, function in frames
    ]


def _as_snapshot(trace: list[Any], live: dict[int, Any], end: int) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = FAKE_BASE
    for address in [*sorted(live), end]:
        if address > at:
            hole = {"address": at, "size": address - at, "requested_size": 0, "frames": []}
            blocks.append({**hole, "state": "inactive"})
        if address in live:
            asked, size, frames = live[address]
            one = {"address": address, "size": size, "requested_size": asked, "frames": frames}
            blocks.append({**one, "state": "active_allocated"})
            at = address + size
    held = sum(block["size"] for block in blocks if block["state"] != "inactive")
    segment = {
        "device": 0,
        "address": FAKE_BASE,
        "total_size": end - FAKE_BASE,
        "allocated_size": held,
        "active_size": held,
        "requested_size": sum(asked for asked, _, _ in live.values()),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    return {"segments": [segment], "device_traces": [trace], "external_annotations": []}


# One model.


def neutral(snapshot: dict[str, Any]) -> None:
    """Name the folders of this environment as a user's would be."""
    site = os.path.dirname(os.path.dirname(torch.__file__))
    here = os.path.dirname(os.path.abspath(__file__))
    seen = set()
    lists = [entry.get("frames") for trace in snapshot["device_traces"] for entry in trace]
    for segment in snapshot["segments"]:
        lists.append(segment.get("frames"))
        lists.extend(block.get("frames") for block in segment["blocks"])
    for frames in lists:
        for frame in frames or ():
            if id(frame) in seen:
                continue
            seen.add(id(frame))
            name = frame["filename"].replace(site, "/usr/lib/python3/dist-packages")
            frame["filename"] = name.replace(here, "/training")


def run(name: str, out: Path, device: str, scale: float, profiled: int) -> dict[str, Any]:
    """One model's steps; writes its two files.

    Args:
        name: The model's name.
        out: The folder for the files.
        device: "cuda" or "cpu".
        scale: 1 is full size.
        profiled: How many of the last steps the profiler sees.
    """
    torch.manual_seed(0)
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", max_entries=1_000_000
        )
    step = category_models.MODELS[name](device, scale)
    for _ in range(WARM):
        step()
    if on_gpu:
        torch.cuda.synchronize()
    marks = [time.time_ns() // 1000]
    for _ in range(STEPS - profiled):
        step()
        marks.append(time.time_ns() // 1000)
    profiler = profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True
    )
    with profiler:
        began = time.time_ns() // 1000
        for _ in range(profiled):
            step()
            marks.append(time.time_ns() // 1000)
        if on_gpu:
            torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot() if on_gpu else None
    if on_gpu:
        torch.cuda.memory._record_memory_history(None)
    result = profiler.profiler.kineto_results
    memory = _memory_profiler.MemoryProfile(result)
    spans, before = category_spans(memory, device)
    events = allocation_events(result, device)
    if snapshot is None:
        rows, counts, snapshot = _fake_rows(result, spans, before, events)
    else:
        rows, counts = match(snapshot["device_traces"][0], events, spans, before, began)
        rows = _from_before_in_trace(rows, snapshot["device_traces"][0], began)
    neutral(snapshot)
    trace = snapshot["device_traces"][0]
    facts = {
        "model": name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "profiled_steps": profiled,
        "profiled_from_us": began,
        "matching": counts,
        "events": len(trace),
        "first_and_last_us": [trace[0]["time_us"], trace[-1]["time_us"]],
    }
    steps = [[a, b] for a, b in itertools.pairwise(marks)][-profiled:]
    names = sorted({word for row in rows for word, _ in row[3] if word})
    code = {word: number for number, word in enumerate(names)}
    packed = [
        [event, address, size, [[code.get(word), at] for word, at in times]]
        for event, address, size, times in rows
    ]
    truth = {**facts, "steps": steps, "categories": names, "rows": packed}
    (out / f"{name}.snapshot.xz").write_bytes(lzma.compress(pickle.dumps(snapshot, 4)))
    text = json.dumps(truth, separators=(",", ":"))
    (out / f"{name}.truth.json.xz").write_bytes(lzma.compress(text.encode()))
    return facts


def _fake_rows(result: Any, spans: Any, before: Any, events: Any) -> Any:
    """The rows of a fake snapshot: the addresses are its own, so the match is by key."""
    snapshot, addresses = fake_snapshot(result, before)
    number = {
        entry["addr"]: event
        for event, entry in enumerate(snapshot["device_traces"][0])
        if entry["action"] == "alloc"
    }
    rows = []
    for event in events:
        fields = event.typed[1]
        key = (fields.ptr, fields.allocation_id)
        if fields.alloc_size > 0:
            at = addresses[key]
            rows.append([number[at], at, fields.alloc_size, spans.get(key, [[None, 0]])])
    rows += [[-1, addresses[key], size, spans[key]] for key, size in before if key in addresses]
    return rows, {"matched": len(rows)}, snapshot


def _from_before_in_trace(rows: list[Any], trace: list[Any], began: int) -> list[Any]:
    """The rows with the event of what was there before the profiler, but in the trace."""
    last = {
        entry["addr"]: number
        for number, entry in enumerate(trace)
        if entry["action"] == "alloc" and entry["time_us"] < began
    }
    return [[last.get(row[1], -1), *row[1:]] if row[0] < 0 else row for row in rows]


def one(name: str, out: Path, device: str, scale: float) -> int:
    """One model, with fewer steps under the profiler where it can't make sense of three."""
    for profiled in (STEPS, 1):
        try:
            print(json.dumps(run(name, out, device, scale, profiled)), flush=True)
            return 0
        except Exception:
            traceback.print_exc()
    return 1


# All models.


def pack(out: Path, name: str) -> None:
    """Add a model's files to the one file that leaves the machine."""
    with tarfile.open(out / "categories.tar", "a") as tar:
        for ending in ("snapshot.xz", "truth.json.xz"):
            path = out / f"{name}.{ending}"
            if path.exists():
                tar.add(path, path.name)
                path.unlink()


def child(name: str, out: Path, arguments: list[str]) -> str:
    command = [sys.executable, os.path.abspath(__file__), "--one", name, *arguments]
    began = time.time()
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            text=True,
            check=False,
        )
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        text, code = raw if isinstance(raw, str) else raw.decode(errors="replace"), "timeout"
    return f"== {name}: {code} after {time.time() - began:.0f} s\n{text[-6000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(category_models.MODELS))
    parser.add_argument("--one")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    device, scale = ("cpu", 0.1) if given.cpu else ("cuda", 1.0)
    if given.one:
        return one(given.one, out, device, scale)
    arguments = ["--cpu"] if given.cpu else []
    with ThreadPoolExecutor(1 if given.cpu else AT_ONCE) as pool:
        tasks = {name: pool.submit(child, name, out, arguments) for name in given.models}
        for name, task in tasks.items():
            text = task.result()
            print(text, flush=True)
            with open(out / "log.txt", "a", encoding="utf-8") as log:
                log.write(text + "\n")
            pack(out, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
