# SPDX-License-Identifier: Apache-2.0
"""Files made to do harm or nonsense: each refused for its own reason, and quickly."""

from __future__ import annotations

import io
import lzma
import pickle
import pickletools
import random
import re
import struct
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer import HistoryWarning, LimitError, SnapshotError

OPCODES = pickletools.opcodes

#: What any of these files may take. Far more than is needed, and far less than they ask for.
MOST_SECONDS = 5.0
MOST_MEMORY = 256 << 20


@contextmanager
def bounded() -> Iterator[None]:
    """Fails when what is inside takes long, or much of Python's memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
    finally:
        seconds = time.process_time() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seconds < MOST_SECONDS
    assert peak < 64 << 20


def refused(data: bytes, kind: type[SnapshotError] = SnapshotError) -> SnapshotError:
    """The error that loading `data` raises, within the bounds on time and memory."""
    with bounded(), pytest.raises(kind) as caught:
        neutracer.load(data, max_memory=MOST_MEMORY)
    assert caught.value.reason
    return caught.value


def event(**fields: Any) -> dict[str, Any]:
    return {"action": "alloc", "addr": 1, "size": 2, "stream": 0, **fields}


def snapshot_with(**top: Any) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [], **top}, 4)


# ---- opcodes that are never obeyed -----------------------------------------------------

REFUSED = {
    "GLOBAL": b"cos\nsystem\n",
    "STACK_GLOBAL": b"\x93",
    "REDUCE": b"R",
    "BUILD": b"b",
    "INST": b"ios\nsystem\n",
    "OBJ": b"o",
    "NEWOBJ": b"\x81",
    "NEWOBJ_EX": b"\x92",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "PERSID": b"Pid\n",
    "BINPERSID": b"Q",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"\x98",
    "STRING": b"S'x'\n",
    "BINSTRING": b"T\x01\x00\x00\x00x",
    "SHORT_BINSTRING": b"U\x01x",
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_opcode_is_refused_by_name(name: str) -> None:
    before = b"\x80\x04]N(K\x01"
    error = refused(before + REFUSED[name] + b"..")
    assert re.search(rf"\b{name}\b", error.reason)
    assert "refused" in error.reason
    assert error.offset == len(before)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_opcode_inside_record_is_refused(name: str) -> None:
    # In the middle of the trace, where the reader goes through events by the thousand.
    data = pickle.dumps({"device_traces": [[event() for _ in range(50)]], "segments": []}, 4)
    at = [position for op, _, position in pickletools.genops(data) if op.name == "SETITEMS"][20]
    error = refused(data[:at] + REFUSED[name] + data[at:])
    assert re.search(rf"\b{name}\b", error.reason)
    assert error.offset == at


@pytest.mark.parametrize("code", sorted({*range(256)} - {ord(op.code) for op in OPCODES}))
def test_byte_without_opcode_is_refused(code: int) -> None:
    error = refused(b"\x80\x04]" + bytes([code]))
    assert error.reason == f"byte 0x{code:02x} is not a pickle opcode"
    assert error.offset == 3


@pytest.mark.parametrize("op", OPCODES, ids=lambda op: op.name)
def test_every_opcode_is_known(op: Any) -> None:
    # Alone, without what it needs, each is refused in words of its own.
    error = refused(b"\x80\x04N(" + op.code.encode("latin-1"))
    assert "is not a pickle opcode" not in error.reason
    assert (op.name in REFUSED) == ("refused" in error.reason)


def test_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "made"), "w"))

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        error = refused(pickle.dumps({"segments": [Evil()]}, protocol))
        assert "GLOBAL is refused" in error.reason
    assert not (tmp_path / "made").exists()


# ---- lengths, indexes and depths -------------------------------------------------------

HUGE = {
    "BINUNICODE": b"X\xff\xff\xff\xff",
    "BINUNICODE8": b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    "BINUNICODE8 of 2^64 - 1": b"\x8d" + b"\xff" * 8,
    "BINBYTES": b"B\xff\xff\xff\xff",
    "BINBYTES8": b"\x8e" + b"\xff" * 8,
    "BYTEARRAY8": b"\x96" + b"\xff" * 8,
    "LONG4": b"\x8b\xff\xff\xff\x7f",
    "LONG4 below zero": b"\x8b\xff\xff\xff\xff",
    "FRAME": b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    "FRAME of 2^64 - 1": b"\x95" + b"\xff" * 8,
}


@pytest.mark.parametrize("name", sorted(HUGE))
@pytest.mark.parametrize("whole", [True, False], ids=["memory", "stream"])
def test_huge_length_allocates_nothing(name: str, whole: bool) -> None:
    data = b"\x80\x04" + HUGE[name] + b"some bytes"
    with bounded(), pytest.raises(SnapshotError) as caught:
        neutracer.load(data if whole else io.BytesIO(data), max_memory=1 << 20)
    # Not for the memory: so much was never asked for.
    assert not isinstance(caught.value, LimitError)


@pytest.mark.parametrize(
    "fetch",
    [b"h\x07", b"j\x07\x00\x00\x00", b"g7\n", b"j\xff\xff\xff\xff", b"g99999999999\n"],
)
def test_memo_entry_never_stored_is_refused(fetch: bytes) -> None:
    error = refused(b"\x80\x04]\x94" + fetch + b".")
    assert "memo" in error.reason
    assert error.offset == 4


@pytest.mark.parametrize(
    "put", [b"r\xff\xff\xff\x7f", b"p4000000000\n", b"p18446744073709551616\n", b"p-1\n"]
)
def test_memo_index_without_reason_is_refused(put: bytes) -> None:
    error = refused(b"\x80\x04]" + put + b".")
    assert "memo" in error.reason
    assert error.offset == 3


@pytest.mark.parametrize(
    ("name", "opening", "closing"),
    [
        ("lists", b"](", b"e"),
        ("dicts", b"}(K\x01", b"u"),
        ("tuples", b"(", b"t"),
        ("marks", b"(", b"1"),
    ],
)
def test_deep_nesting_is_limited(name: str, opening: bytes, closing: bytes) -> None:
    error = refused(b"\x80\x04" + opening * 100_000 + b"N" + closing * 100_000 + b".", LimitError)
    assert "nested" in error.reason


@pytest.mark.parametrize("wrap", [b"\x85", b"]\x94(", b"}\x94(K\x01"])
def test_deep_values_without_marks_end(wrap: bytes) -> None:
    # TUPLE1 of a TUPLE1 of ... needs no mark: the value is deep, and nothing is wrong.
    if wrap == b"\x85":
        refused(b"\x80\x04)" + wrap * 1_000_000 + b".")
    else:
        refused(b"\x80\x04" + wrap * 300, LimitError)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part", [b"\x85", b")", b"}", b"N\x85"])
def test_memory_is_bounded_by_the_size_of_the_file(
    part: bytes, packed: bool, tmp_path: Path
) -> None:
    data = b"\x80\x04)" + part * (2_000_000 // len(part)) + b"."
    path = tmp_path / "small.pickle"
    path.write_bytes(lzma.compress(data, preset=0) if packed else data)
    for source in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(LimitError, match="far more memory than a snapshot of its size"):
            neutracer.load(source)


def test_deep_settings_are_limited() -> None:
    settings: dict[str, Any] = {}
    for _ in range(50):
        settings = {"x": settings}
    assert "nested" in refused(snapshot_with(allocator_settings=settings), LimitError).reason


# ---- the same thing over and over ------------------------------------------------------


def doubled(levels: int, leaf: Any) -> Any:
    """A list of two references to a list of two references ...: 2^levels leaves."""
    value = leaf
    for _ in range(levels):
        value = [value, value]
    return value


@pytest.mark.parametrize("key", ["segments", "device_traces", "external_annotations"])
def test_doubled_lists_are_refused(key: str) -> None:
    refused(snapshot_with(**{key: doubled(60, {"action": "alloc", "device": 0})}))


def test_doubled_settings_are_refused() -> None:
    refused(snapshot_with(allocator_settings={"x": doubled(7, [0] * 100_000)}), LimitError)


def test_shared_segments_are_limited() -> None:
    segment = {"device": 0, "address": 0, "total_size": 0, "blocks": []}
    segment["blocks"] = [{"size": 512, "state": "inactive"}] * 3000
    error = refused(snapshot_with(segments=[segment] * 3000), LimitError)
    assert "over and over" in error.reason


def test_shared_traces_are_limited() -> None:
    trace = [event(addr=i) for i in range(3000)]
    error = refused(snapshot_with(device_traces=[trace] * 3000), LimitError)
    assert "over and over" in error.reason


@pytest.mark.parametrize("frame", [{"name": "f"}, {"filename": "f.py", "name": "f", "line": 1}])
def test_shared_tuples_of_frames_are_limited(frame: dict[str, Any]) -> None:
    frames = (frame,) * 3000
    error = refused(
        snapshot_with(device_traces=[[event(frames=frames) for _ in range(3000)]]), LimitError
    )
    assert "over and over" in error.reason


def test_shared_wide_dict_is_limited() -> None:
    segment = {"address": 4096, "total_size": 512, **{f"x_{i}": i for i in range(3000)}}
    error = refused(snapshot_with(segments=[segment] * 3000), LimitError)
    assert "over and over" in error.reason


def test_wide_dict_in_a_long_list_is_cheap() -> None:
    # Twenty thousand keys, and more references to it than there may be segments.
    wide = dict.fromkeys(range(20_000))
    data = snapshot_with(x=[wide] * ((1 << 19) + 1_000_000))
    with bounded():
        neutracer.load(data, max_memory=MOST_MEMORY)


def test_part_of_many_settings_is_cheap() -> None:
    trace = [event(size=512, addr=512 * i) for i in range(10)]
    settings = {"x": [[] for _ in range(200_000)], "trace_empty_cache_calls": {"0": [3, 5]}}
    data = snapshot_with(device_traces=[trace], allocator_settings=settings)
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        part = neutracer.load(data, events=range(4, 10))
    assert part.settings["trace_empty_cache_calls"] == {"0": [1]}


def test_honestly_shared_frames_are_cheap() -> None:
    # What PyTorch does: one list of frames under a hundred thousand events.
    frames = [{"name": f"f{i}", "filename": "f.py", "line": i} for i in range(100)]
    data = snapshot_with(device_traces=[[event(frames=frames) for _ in range(100_000)]])
    with bounded():
        snapshot = neutracer.load(data, max_memory=64 << 20)
    assert len(snapshot.events) == 100_000
    assert len(snapshot.events[99_999].stack) == 100


def test_list_that_holds_itself_ends() -> None:
    inside: list[Any] = []
    inside.append(inside)
    refused(pickle.dumps(inside, 4))
    refused(snapshot_with(segments=inside))
    refused(snapshot_with(device_traces=inside))
    settings: dict[str, Any] = {}
    settings["x"] = settings
    refused(snapshot_with(allocator_settings=settings), LimitError)


# ---- time ------------------------------------------------------------------------------


def seconds_to_load(data: bytes) -> float:
    start = time.process_time()
    with suppress(SnapshotError):
        neutracer.load(data, max_memory=1 << 30)
    return time.process_time() - start


def settings_of_many_keys(count: int) -> bytes:
    return snapshot_with(allocator_settings={f"k{i}": i for i in range(count)})


def dict_set_and_looked_at(count: int) -> bytes:
    # Sets a key, then makes a tuple of the dict, over and over.
    return b"\x80\x02}q\x00" + b"h\x00K\x01Ns0h\x00\x850" * count + b"."


def list_grown_and_looked_at(count: int) -> bytes:
    return b"\x80\x02]q\x00" + b"h\x00Na0h\x00\x850" * count + b"."


def lists_made_of_marked_values(count: int) -> bytes:
    return b"\x80\x02" + b"(N" * 200 + b"(Nl" * count + b"l" * 200 + b"."


def memo_entries_put_backwards(count: int) -> bytes:
    start = b"\x80\x02" + b"N0" * (4 * count)
    return start + b"".join(b"Nr" + struct.pack("<I", count - i) + b"0" for i in range(count))


def strings_of_one_prefix(count: int) -> bytes:
    return snapshot_with(x=[f"{'a' * 40}{i}" for i in range(count)])


def actions_that_nobody_knows(count: int) -> bytes:
    trace = [event(action=f"a{i % 200}") for i in range(count)]
    return snapshot_with(device_traces=[trace])


def blocks_of_many_keys(count: int) -> bytes:
    blocks = [{f"k{i}": 0 for i in range(20)} for _ in range(count // 20)]
    return snapshot_with(segments=[{"device": 0, "blocks": blocks}])


@pytest.mark.parametrize(
    "make",
    [
        settings_of_many_keys,
        dict_set_and_looked_at,
        list_grown_and_looked_at,
        lists_made_of_marked_values,
        memo_entries_put_backwards,
        strings_of_one_prefix,
        actions_that_nobody_knows,
        blocks_of_many_keys,
    ],
    ids=lambda make: make.__name__,
)
def test_time_grows_with_the_size(make: Callable[[int], bytes]) -> None:
    # Sixteen times the size may take 16 times as long, 40 times where it no longer fits a
    # cache that others use too, and not 256 times. A busy machine gets more attempts.
    small, large = make(10_000), make(160_000)
    ratios = []
    while not ratios or (ratios[-1] >= 64 and len(ratios) < 8):
        base = max(min(seconds_to_load(small) for _ in range(3)), 0.002)
        ratios.append(seconds_to_load(large) / base)
    assert min(ratios) < 64, ratios


# ---- what breaks the format ------------------------------------------------------------


def test_opcode_across_frame_end_is_refused() -> None:
    inside = b"]\x94("
    data = b"\x80\x04\x95" + struct.pack("<Q", len(inside) + 2) + inside + b"X\x05\x00\x00\x00hello"
    error = refused(data + b"e.")
    assert "frame" in error.reason
    assert error.offset == 11 + len(inside)


def test_frame_inside_frame_is_refused() -> None:
    inner = b"\x95" + struct.pack("<Q", 1) + b"]"
    error = refused(b"\x80\x04\x95" + struct.pack("<Q", len(inner) + 5) + inner + b".....")
    assert "frame" in error.reason
    assert error.offset == 11


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (b"\x80\x04.", "too few values"),
        (b"\x80\x04e.", "mark"),
        (b"\x80\x04N(Ne.", "no list"),
        (b"\x80\x04](Nu.", "no dict"),
        (b"\x80\x04}(Nu.", "without a value"),
        (b"\x80\x04a.", "too few values"),
        (b"\x80\x040.", "too few values"),
        (b"\x80\x04]NNs.", "no dict"),
        (b"\x80\x04\x86.", "too few values"),
        (b"\x80\x06].", "protocol 6"),
        (b"\x80\x04\xff.", "0xff"),
        (b"\x80\x04X\x02\x00\x00\x00\xff\xfe.", "UTF-8"),
        (b"\x80\x04X\x02\x00\x00\x00\xc0\x80.", "UTF-8"),
        (b"\x80\x04I12x\n.", "integer"),
        (b"\x80\x04L\n.", "integer"),
        (b"\x80\x04F1.5x\n.", "float"),
        (b"\x80\x04V\\u12\n.", "escape"),
        (b"\x80\x04N.", "neither a dict nor a list"),
        (b"\x80\x04}.", "without 'segments'"),
    ],
)
def test_broken_pickle_says_what_is_wrong(broken: bytes, word: str) -> None:
    assert word in refused(broken).reason


def wrong_types() -> dict[str, bytes]:
    """A snapshot with a value of a wrong type under each key in turn."""
    made = {}
    wrong = {"a number": 1.5, "text": "text", "a list": [[1]], "bytes": b"ab", "a dict": {"a": 1}}
    rows: dict[str, tuple[dict[str, Any], Callable[[Any], bytes]]] = {
        "segment": (
            {
                **dict.fromkeys(("device", "address", "total_size", "allocated_size"), "number"),
                **dict.fromkeys(("active_size", "requested_size", "stream"), "number"),
                **{"segment_type": "text", "segment_pool_id": "pair", "is_expandable": "number"},
                **{"frames": "list", "blocks": "list"},
            },
            lambda row: snapshot_with(segments=[{"address": 4096, "total_size": 512, **row}]),
        ),
        "block": (
            {"address": "number", "size": "number", "requested_size": "number", "state": "text"}
            | {"frames": "list"},
            lambda row: snapshot_with(
                segments=[{"address": 0, "total_size": 512, "blocks": [{"size": 1, **row}]}]
            ),
        ),
        "event": (
            {"action": "text", "addr": "number", "size": "number", "stream": "number"}
            | {"time_us": "number", "device_free": "number", "pool_id": "pair", "frames": "list"}
            | {"compile_context": "text", "user_metadata": "text"},
            lambda row: snapshot_with(
                device_traces=[[{"action": "alloc", "addr": 4096, "size": 512, **row}]]
            ),
        ),
        "frame": (
            {"filename": "text", "name": "text", "line": "number"},
            lambda row: snapshot_with(
                device_traces=[[event(frames=[{"filename": "f", "name": "n", **row}])]]
            ),
        ),
        "annotation": (
            {"stage": "text", "name": "text", "device": "number", "time_us": "number"},
            lambda row: snapshot_with(external_annotations=[row]),
        ),
    }
    for table, (keys, wrapped) in rows.items():
        for key, kind in keys.items():
            for name, value in wrong.items():
                if name != {"text": "text"}.get(kind) and not (kind == "list" and not value):
                    made[f"{table}.{key} is {name}"] = wrapped({key: value})
    for key in ("segments", "device_traces", "external_annotations"):
        for name, value in wrong.items():
            made[f"{key} is {name}"] = snapshot_with(**{key: value})
    return made


WRONG_TYPES = wrong_types()


@pytest.mark.parametrize("name", sorted(WRONG_TYPES))
def test_wrong_type_is_refused(name: str) -> None:
    key = name.split()[0].rpartition(".")[2]
    error = refused(WRONG_TYPES[name])
    assert not isinstance(error, LimitError)
    assert any(word in error.reason for word in (key, "trace of", "expected", "is not"))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 2**4000])
def test_numbers_beyond_64_bits_are_refused(value: int) -> None:
    assert "64 bits" in refused(snapshot_with(device_traces=[[event(addr=value)]])).reason


def test_too_many_unknown_actions_are_limited() -> None:
    trace = [event(action=f"action {i}") for i in range(1000)]
    assert "actions" in refused(snapshot_with(device_traces=[trace]), LimitError).reason


def test_memory_bound_is_kept() -> None:
    data = snapshot_with(device_traces=[[event(addr=i) for i in range(100_000)]])
    with bounded(), pytest.raises(LimitError) as caught:
        neutracer.load(data, max_memory=1 << 20)
    assert "max_memory" in caught.value.reason
    assert len(neutracer.load(data, max_memory=64 << 20).events) == 100_000


# ---- other files -----------------------------------------------------------------------


def test_empty_file_is_named_empty() -> None:
    assert "empty (0 bytes)" in refused(b"").reason


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b'{"a": 1}', "JSON"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
    ],
)
def test_text_is_named_text(text: bytes, word: str) -> None:
    error = refused(text)
    assert word in error.reason
    assert "_dump_snapshot" in error.reason


def test_program_and_log_are_named_with_their_commands() -> None:
    assert "text file: 'neutracer explain'" in refused(b"one\ntwo\n").reason
    assert "Python program: 'neutracer run'" in refused(b"import torch\nprint(1)\n").reason


def test_checkpoint_is_named_checkpoint() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    assert "torch.save" in refused(file.getvalue()).reason


def test_random_bytes_are_refused() -> None:
    chance = random.Random(20)
    for size in [1, 2, 3, 10, 100, 1000, 100_000] * 20:
        data = chance.randbytes(size)
        refused(b"\x80\x04" + data)
        refused(data)


def test_random_opcodes_end_quickly() -> None:
    chance = random.Random(21)
    opcodes = b"(.012NKMJXahejlsdtu})]GVqrpg\x80\x85\x86\x87\x88\x89\x8a\x8c\x94\x95"
    accepted = 0
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        for _ in range(3000):
            data = bytes(chance.choices(opcodes + b"\x00\x01\x08", k=chance.randint(1, 200)))
            with suppress(SnapshotError):
                neutracer.load(b"\x80\x04](" + data + b".")
                accepted += 1
    assert accepted < 3000
