# SPDX-License-Identifier: Apache-2.0
"""Writes the fuzz targets' seeds: small snapshots of every schema in every encoding.

They are cut out of the bundled real snapshots, or made by hand where no real one has what
is wanted. Run it again when the format has something new; nothing in it is random.

Example:
    $ python tests/fuzz/make_seeds.py
"""

from __future__ import annotations

import lzma
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path.insert(0, str(TESTS / "helpers"))

import corpus  # noqa: E402
from snapshot_encoders import (  # noqa: E402
    cpp_encoder,
    memoless_encoder,
    python_encoder,
    scrambled_encoder,
)

#: Longer seeds only make the fuzzer slower.
MOST_BYTES = 4096


def real(name: str) -> dict[str, Any]:
    """A bundled snapshot as PyTorch wrote it."""
    data = lzma.decompress((TESTS / "data" / f"{name}.pickle.xz").read_bytes())
    value: dict[str, Any] = pickle.loads(data)
    return value


class Shortener:
    """Frame lists cut to the two innermost frames; what was shared stays shared."""

    def __init__(self) -> None:
        self.made: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if id(frames) not in self.made:
            self.made[id(frames)] = [
                {**frame, "name": frame["name"][:24], "filename": Path(frame["filename"]).name}
                for frame in frames[:2]
            ]
        return self.made[id(frames)]


def cut(snapshot: dict[str, Any], first: int, events: int, segments: int) -> dict[str, Any]:
    """Some of the events and segments of a real snapshot, with short stacks."""

    shortened = Shortener()

    def row(entry: dict[str, Any]) -> dict[str, Any]:
        made = dict(entry)
        if "frames" in made:
            made["frames"] = shortened(made["frames"])
        if "blocks" in made:
            made["blocks"] = [row(block) for block in made["blocks"][:3]]
        return made

    return {
        **snapshot,
        "segments": [row(segment) for segment in snapshot["segments"][:segments]],
        "device_traces": [
            [row(event) for event in trace[first : first + events]]
            for trace in snapshot["device_traces"][:2]
        ],
        "external_annotations": snapshot["external_annotations"][:2],
    }


def old_schema() -> dict[str, Any]:
    """As torch 1.13 and 2.0 wrote it: blocks with a history, and no addresses."""
    frames = [{"name": "forward", "filename": "net.py", "line": 7}]
    return {
        "segments": [
            {
                "device": 0,
                "address": 0x7F0000000000,
                "total_size": 2 << 20,
                "allocated_size": 1024,
                "active_size": 1024,
                "stream": 0,
                "segment_type": "small",
                "blocks": [
                    {
                        "size": 1024,
                        "state": "active_allocated",
                        "history": [
                            {"addr": 0x7F0000000000, "real_size": 1000, "frames": frames},
                            {"addr": 0x7F0000000000, "real_size": 8, "cpp_frames": ["malloc"]},
                        ],
                    },
                    {"size": (2 << 20) - 1024, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": 0x7F0000000000, "size": 2 << 20, "stream": 0},
                {
                    "action": "alloc",
                    "addr": 0x7F0000000000,
                    "size": 1000,
                    "stream": 0,
                    "frames": frames,
                    "cpp_frames": ["malloc"],
                },
            ]
        ],
    }


def hybrid_schema() -> dict[str, Any]:
    """As the development versions of torch 2.1 wrote it: history and requested_size."""
    snapshot = old_schema()
    for segment in snapshot["segments"]:
        segment["requested_size"] = 1000
        for block in segment["blocks"]:
            block["requested_size"] = 1000
    return snapshot


def event(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    """A trace entry of torch 2.14."""
    place = "device_free" if action == "oom" else "addr"
    return {"action": action, place: addr, "size": size, "stream": 0, "time_us": 5, **more}


def expandable() -> dict[str, Any]:
    """Expandable segments that are mapped and unmapped in parts, in a private pool."""
    base, page = 0x302000000, 20 << 20
    segment = {
        "device": 0,
        "address": base,
        "total_size": 2 * page,
        "allocated_size": page,
        "active_size": page,
        "requested_size": page,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 1),
        "is_expandable": True,
        "frames": [],
        "blocks": [
            {"address": base, "size": page, "requested_size": page, "state": "active_allocated"},
            {"address": base + page, "size": page, "requested_size": 9, "state": "inactive"},
        ],
    }
    pool = {"pool_id": (0, 1), "compile_context": "N/A", "user_metadata": "step 1"}
    trace = [
        event("segment_map", base, page, **pool),
        event("alloc", base, page, **pool),
        event("segment_map", base + page, 2 * page, **pool),
        event("alloc", base + page, page, **pool),
        event("free_requested", base + page, page, **pool),
        event("free_completed", base + page, page, **pool),
        event("segment_unmap", base + 2 * page, page, **pool),
        event("annotate", base, page, **pool),
    ]
    settings = {"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": settings}


def odd_keys() -> dict[str, Any]:
    """Several devices, unknown keys and actions, a request refused, numbers at their ends."""
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[64:8,128:2,>:1],max_split_size_mb:64",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.8,
        "roundup_power2_divisions": {"1": 8, "2": 4, "32768": 1},
        "trace_alloc_overflowed": [True, False],
        "later": {"list": [1, None, {"deep": "er"}], "tuple": (1, 2, 3)},
    }
    return {
        "host_segments": [],
        "device_traces": [
            [],
            [
                event("oom", 1 << 40, 512),
                event("workspace_snapshot", 2**63, 2**64 - 1),
                event("brand_new", -1, 0, later=[1.5]),
                event("snapshot", 0, 77),
            ],
        ],
        "segments": [{"device": 1, "address": 2**64 - 512, "total_size": 512, "blocks": []}],
        "allocator_settings": settings,
        "external_annotations": [
            {"stage": "START", "name": "s\ud800", "device": 1, "time_us": 4},
            {"stage": "END", "name": "é\U0001f600", "device": 1, "time_us": 6},
        ],
    }


def cross_stream() -> dict[str, Any]:
    """A free that waits for another stream, and memory from before the trace."""
    base = 0x7F2000000000
    half = 1 << 20
    blocks = [
        {"address": base, "size": half, "requested_size": half, "state": "active_pending_free"},
        {"address": base + half, "size": half, "requested_size": 9, "state": "active_allocated"},
    ]
    segment = {
        "device": 0,
        "address": base,
        "total_size": 2 * half,
        "allocated_size": half,
        "active_size": 2 * half,
        "requested_size": half + 9,
        "stream": 94012345,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
    }
    trace = [
        event("free_completed", base, half),
        event("alloc", base, half),
        event("free_requested", base, half),
    ]
    return {"segments": [segment], "device_traces": [trace]}


def pinned() -> dict[str, Any]:
    """Pinned memory of the host, cut out of a recording of torch 2.15, beside a device's."""
    written = pickle.loads((TESTS / "data" / "pinned" / "loader_2_15.pickle").read_bytes())
    return {
        **cross_stream(),
        "host_segments": written["host_segments"][:3],
        "host_traces": [
            {**entry, "frames": entry["frames"][:1]} for entry in written["host_traces"][:8]
        ],
    }


def samples() -> dict[str, Any]:
    """The values of all seeds, by name."""
    return {
        "default": cut(real("frag_default"), 40, 4, 1),
        "metadata": cut(real("metadata"), 20, 3, 1),
        "graph_pool": cut(real("cuda_graph_pool"), 90, 4, 2),
        "side_stream": cut(real("multi_stream"), 30, 4, 1),
        "cpp_stacks": cut(real("cpp_stacks"), 3, 3, 1),
        "oom": cut(real("frag_default"), 2372, 3, 0),
        "mapped": cut(real("whatif/7/frag_default"), 0, 4, 1),
        "torch_2_0": old_schema(),
        "torch_2_1_dev": hybrid_schema(),
        "expandable": expandable(),
        "odd_keys": odd_keys(),
        "cross_stream": cross_stream(),
        "pinned": pinned(),
        "bare_list": old_schema()["segments"],
        "nothing": {"segments": [], "device_traces": []},
    }


def framed_string(length: int) -> bytes:
    """A string outside of all frames, as Python writes long ones."""
    text = b"x" * length
    head = b"\x80\x04\x95" + struct.pack("<Q", 3) + b"}\x94("
    name = b"\x8d" + struct.pack("<Q", length) + text + b"\x94N\x8c\x08segments\x94]\x94u."
    return head + name


def files() -> dict[str, bytes]:
    """All seeds, by file name."""
    made = {}
    values = samples()
    for name, value in values.items():
        made[f"{name}-4"] = python_encoder(4)(value)
        made[f"{name}-cpp"] = cpp_encoder(value)
    for protocol in (0, 1, 2, 3, 5):
        for name in ("torch_2_0", "expandable", "odd_keys", "bare_list"):
            made[f"{name}-{protocol}"] = python_encoder(protocol)(values[name])
    for name in ("cross_stream", "odd_keys", "expandable"):
        made[f"{name}-memoless"] = memoless_encoder(2)(values[name])
        for seed in range(4):
            made[f"{name}-odd{seed}"] = scrambled_encoder(seed)(values[name])
    whole = made["expandable-4"]
    for part in (3, 2):
        made[f"truncated-{part}"] = whole[: len(whole) * (part - 1) // part]
    made["long_string-4"] = framed_string(300)
    made["trailing_zeros-4"] = made["nothing-4"] + bytes(16)
    return made


def main() -> None:
    """Writes the seeds anew."""
    made = files()
    for name, data in made.items():
        if len(data) > MOST_BYTES:
            raise SystemExit(f"{name} has {len(data)} bytes, more than {MOST_BYTES}")
    corpus.write("seeds", {f"{name}.pickle": data for name, data in made.items()})
    print(f"{len(made)} seeds, {sum(map(len, made.values())):,} bytes")


if __name__ == "__main__":
    main()
