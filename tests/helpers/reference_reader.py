# SPDX-License-Identifier: Apache-2.0
"""An oracle: what the columns of a snapshot must be, worked out in plain Python.

It shares nothing with the core but the description of PyTorch's format: the pickle is read
by `pickle.Unpickler` with every class refused, and the rows are taken from the dicts key
by key; `reference_invariants` leaves out and puts right what no allocator can have
written. `described` brings a `neutracer.Snapshot` into the same form.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from reference_invariants import MEMORY_ACTIONS, MOST_TIME, RejectedError, kept_layout, put_right

import neutracer

#: Deepest nesting of allocator_settings that is read.
MOST_SETTING_DEPTH = 8

#: Devices are numbered below this.
MOST_DEVICES = 1024

Rows = list[dict[str, Any]]


class _NoClasses:
    def find_class(self, module: str, name: str) -> Any:
        raise RejectedError(f"the pickle names {module}.{name}")


class _Fast(_NoClasses, pickle.Unpickler):
    """Its memo is as long as the largest index in the file: four bytes can make it 16 GB."""


class _Slow(_NoClasses, pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Its memo is a dict."""


def unpickled(data: bytes, *, damaged: bool = False) -> Any:
    """The value in a pickle, which may be damaged; no class is ever looked up."""
    try:
        return (_Slow if damaged else _Fast)(io.BytesIO(data)).load()
    except RejectedError:
        raise
    except Exception as error:
        raise RejectedError(f"no pickle: {error}") from error


def integer(row: dict[str, Any], key: str, *, signed: bool = False, needed: bool = False) -> int:
    """The 64 bits under a key, 0 where it is missing; only a flag may be True."""
    if key not in row and not needed:
        return 0
    value = row.get(key)
    if isinstance(value, bool):
        raise RejectedError(f"{key} is {value}")
    return bits(value, signed=signed)


def bits(value: Any, *, signed: bool = False) -> int:
    """An integer's 64 bits in two's complement."""
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise RejectedError(f"{value!r} is no integer of 64 bits")
    value &= (1 << 64) - 1
    return value - (1 << 64) if signed and value >> 63 else value


def text(row: dict[str, Any], key: str, missing: str | None = None) -> str | None:
    """The string under a key."""
    value = row.get(key)
    if value is None:
        return missing
    if not isinstance(value, str):
        raise RejectedError(f"{key} is no string")
    return value


def one_of(row: dict[str, Any], key: str, known: tuple[str, ...], missing: str) -> str:
    """A string that must be one of a few."""
    value = text(row, key, missing)
    if value not in known:
        raise RejectedError(f"{key} is {value!r}")
    return str(value)


def items(value: Any, what: str) -> list[Any]:
    """A list or tuple; a missing one is empty."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise RejectedError(f"{what} is no list")
    return list(value)


def pair(row: dict[str, Any], key: str) -> tuple[int, int]:
    """A pool id, (0, 0) where it is missing."""
    value = row.get(key)
    if value is None:
        return 0, 0
    numbers = items(value, key)
    if len(numbers) != 2:
        raise RejectedError(f"{key} is no pair")
    return bits(numbers[0]), bits(numbers[1])


def device_number(row: dict[str, Any]) -> int:
    """A device, 0 where it is missing."""
    value = integer(row, "device")
    if value >= MOST_DEVICES:
        raise RejectedError(f"device {value}")
    return value


def stack(value: Any) -> tuple[tuple[str, int, str], ...] | None:
    """(filename, line, name) of every frame; None where there was no key."""
    if value is None:
        return None
    frames = []
    for frame in items(value, "frames"):
        if not isinstance(frame, dict):
            raise RejectedError("a frame is no dict")
        line = 0 if frame.get("line") is None else integer(frame, "line", signed=True)
        frames.append((str(text(frame, "filename", "")), line, str(text(frame, "name", ""))))
    return tuple(frames)


def first_of_history(block: dict[str, Any]) -> dict[str, Any]:
    """Before torch 2.1 a block tells of its allocation in its history's first entry."""
    history = block.get("history")
    if isinstance(history, (list, tuple)) and history and isinstance(history[0], dict):
        return dict(history[0])
    return {}


def block_row(block: Any, segment: int, address: int) -> dict[str, Any]:
    """One block; `address` is where it begins unless it says so itself."""
    if not isinstance(block, dict):
        raise RejectedError("a block is no dict")
    states = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")
    state = one_of(block, "state", states, "inactive")
    history = first_of_history(block)
    requested = "requested_size" if block.get("requested_size") is not None else "real_size"
    source = block if requested == "requested_size" else history
    frames = stack(block.get("frames"))
    if frames is None:
        frames = stack(history.get("frames"))
    return {
        "segment": segment,
        "address": integer(block, "address") if "address" in block else address,
        "size": integer(block, "size", needed=True),
        "requested_size": integer(source, requested),
        "state": "active_pending_free" if state == "active_awaiting_free" else state,
        "stack": frames,
    }


def segment_row(segment: Any) -> dict[str, Any]:
    """One segment without its blocks."""
    if not isinstance(segment, dict):
        raise RejectedError("a segment is no dict")
    numbers = ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
    needed = ("address", "total_size")
    row: dict[str, Any] = {key: integer(segment, key, needed=key in needed) for key in numbers}
    by_size = "small" if row["total_size"] <= 2 << 20 else "large"
    row["segment_type"] = one_of(segment, "segment_type", ("small", "large"), by_size)
    row["device"] = device_number(segment)
    row["segment_pool_id"] = pair(segment, "segment_pool_id")
    flag = segment.get("is_expandable")
    row["is_expandable"] = flag is not None and bits(flag) != 0
    row["stack"] = stack(segment.get("frames"))
    return row


def event_row(event: Any, device: int) -> dict[str, Any]:
    """One trace entry."""
    if not isinstance(event, dict) or not isinstance(event.get("action"), str):
        raise RejectedError("an event has no action")
    needed: tuple[str, ...] = ("addr", "size") if event["action"] in MEMORY_ACTIONS else ()
    needed = ("size",) if event["action"] == "oom" else needed
    numbers = ("addr", "size", "stream")
    row: dict[str, Any] = {key: integer(event, key, needed=key in needed) for key in numbers}
    row["device"] = device
    row["action"] = event["action"]
    row["time_us"] = integer(event, "time_us", signed=True)
    row["device_free"] = integer(event, "device_free")
    row["pool_id"] = pair(event, "pool_id")
    row["compile_context"] = text(event, "compile_context")
    row["user_metadata"] = text(event, "user_metadata")
    row["internal_metadata"] = text(event, "internal_metadata")
    if row["internal_metadata"] is not None and row["action"] in BLOCK_ACTIONS:
        row["action"] = f"internal_{row['action']}"
    row["forward_frames"] = forward_text(event.get("forward_frames"))
    row["stack"] = stack(event.get("frames"))
    return row


def forward_text(texts: Any) -> str | None:
    """The texts of forward_frames, one behind the other."""
    if texts is None:
        return None
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, str) for one in texts):
        raise RejectedError("forward_frames is no list of strings")
    return "".join(texts)


def annotation_row(annotation: Any) -> dict[str, Any]:
    """One external annotation."""
    if not isinstance(annotation, dict):
        raise RejectedError("an annotation is no dict")
    if integer(annotation, "time_us") > MOST_TIME:
        raise RejectedError("the time of an annotation")
    return {
        "stage": one_of(annotation, "stage", ("START", "END"), "START"),
        "name": text(annotation, "name"),
        "device": device_number(annotation),
        "time_us": integer(annotation, "time_us", signed=True),
    }


def setting(value: Any, depth: int = 0) -> Any:
    """One value of allocator_settings, as far as it is kept."""
    if depth > MOST_SETTING_DEPTH:
        raise RejectedError("allocator_settings is nested too deep")
    if isinstance(value, dict):
        return {k: setting(v, depth + 1) for k, v in value.items() if isinstance(k, str)}
    if isinstance(value, (list, tuple)):
        return [setting(item, depth + 1) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return bits(value, signed=True)
    return value if isinstance(value, (bool, float, str)) else None


def segment_tables(segments: list[Any]) -> tuple[Rows, Rows]:
    """The rows of segments and of their blocks."""
    segment_rows: Rows = []
    block_rows: Rows = []
    for segment in segments:
        row = segment_row(segment)
        row["block_first"] = len(block_rows)
        address = row["address"]
        for block in items(segment.get("blocks"), "blocks"):
            block_rows.append(block_row(block, len(segment_rows), address))
            address = block_rows[-1]["address"] + block_rows[-1]["size"] & (1 << 64) - 1
        row["block_count"] = len(block_rows) - row["block_first"]
        segment_rows.append(row)
    raw = [block for segment in segments for block in items(segment.get("blocks"), "blocks")]
    return kept_layout(segment_rows, block_rows, has_requested=any(map(says_requested, raw)))


def says_requested(block: dict[str, Any]) -> bool:
    """Whether a block says what was requested of it."""
    own, first = block.get("requested_size"), first_of_history(block)
    return own is not None or first.get("real_size") is not None


def event_rows(traces: list[Any]) -> Rows:
    """The rows of all traces."""
    return [
        event_row(event, device)
        for device, trace in enumerate(traces)
        for event in items(trace, "a trace")
    ]


BLOCK_ACTIONS = ("alloc", "free_requested", "free_completed")
KNOWN_KEYS = ("segments", "device_traces", "allocator_settings", "external_annotations")


def columns(value: Any) -> dict[str, Any]:
    """The tables of the snapshot that `value` is.

    Raises:
        RejectedError: It is none.
    """
    root = {"segments": value} if isinstance(value, list) else value
    if not isinstance(root, dict):
        raise RejectedError("neither a dict nor a list")
    if root.get("segments") is None and root.get("device_traces") is None:
        raise RejectedError("neither segments nor traces")
    dicts = items(root.get("segments"), "segments")
    segments, blocks = segment_tables(dicts)
    events = event_rows(items(root.get("device_traces"), "device_traces"))
    says_expandable = any(row.get("is_expandable") is not None for row in dicts)
    put_right(events, segments, says_expandable=says_expandable)
    settings = root.get("allocator_settings")
    return {
        "segments": segments,
        "blocks": blocks,
        "events": events,
        "annotations": [
            annotation_row(row)
            for row in items(root.get("external_annotations"), "external_annotations")
        ],
        "settings": setting(settings) if isinstance(settings, dict) else {},
        "ignored": sorted(key for key in root if isinstance(key, str) and key not in KNOWN_KEYS),
    }


def described(snapshot: neutracer.Snapshot) -> dict[str, Any]:
    """The tables of our snapshot, in the oracle's form."""

    def rows(table: Any) -> Rows:
        found = [dict(row) for row in table]
        if "stack" in table.columns:
            for row, stack_id in zip(found, table["stack"], strict=True):
                frames = tuple(tuple(frame) for frame in row["stack"])
                row["stack"] = None if stack_id == 0xFFFFFFFF else frames
        return found

    return {
        "segments": rows(snapshot.segments),
        "blocks": rows(snapshot.blocks),
        "events": rows(snapshot.events),
        "annotations": rows(snapshot.annotations),
        "settings": dict(snapshot.settings),
        "ignored": sorted(snapshot.ignored_keys),
    }
