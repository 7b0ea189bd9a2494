# SPDX-License-Identifier: Apache-2.0
"""Our columns against those of an oracle in plain Python, on whatever both accept."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from bundle import NAMES, pickled
from comparable import comparable, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_invariants import RejectedError
from reference_reader import columns, described, unpickled
from snapshot_encoders import ENCODERS, Encoder, cpp_encoder, scrambled_encoder
from snapshot_strategies import SCHEMAS, snapshots

import neutracer
from neutracer import HistoryWarning, SnapshotError

# How many times as many examples as usual: more for a long run, fewer where every one of
# them takes long.
SCALE = float(os.environ.get("NEUTRACER_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """How many examples a test tries that usually tries so many."""
    return max(1, round(usual * SCALE))


# Those with the most events take the oracle seconds, and show nothing new.
SMALL = [name for name in NAMES if len(pickled(name)) < 200_000]

encoders = st.sampled_from(sorted(ENCODERS)).map(ENCODERS.__getitem__) | st.integers(0, 2**32).map(
    scrambled_encoder
)


def loaded(data: bytes) -> neutracer.Snapshot | None:
    """The snapshot in `data`, whole or partial; None where it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        try:
            return neutracer.load(data)
        except SnapshotError:
            return None


def check_same(value: Any, data: bytes) -> None:
    """What `data` loads as has the columns that the oracle takes from `value`."""
    found = described(neutracer.load(data))
    assert comparable(found) == comparable(columns(value))


@pytest.mark.parametrize("version", sorted(SCHEMAS))
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data(), encode=encoders)
def test_columns_equal_for_every_schema(version: str, data: Any, encode: Encoder) -> None:
    value = data.draw(snapshots(version))
    check_same(wrapped(value) if encode is cpp_encoder else value, encode(value))


@settings(max_examples=examples(12), deadline=None)
@given(value=snapshots())
def test_columns_equal_in_every_encoding(value: Any) -> None:
    for name, encode in ENCODERS.items():
        check_same(wrapped(value) if name == "C++" else value, encode(value))


@settings(max_examples=examples(40), deadline=None)
@given(value=snapshots(), seed=st.integers(0, 2**32))
def test_columns_equal_in_odd_encodings(value: Any, seed: int) -> None:
    check_same(value, scrambled_encoder(seed)(value))


@pytest.mark.parametrize("name", SMALL)
def test_columns_equal_on_real_files(name: str) -> None:
    check_same(unpickled(pickled(name)), pickled(name))


@pytest.mark.parametrize("name", SMALL[:4])
@pytest.mark.parametrize("encoder", sorted(ENCODERS))
def test_real_files_survive_other_encodings(name: str, encoder: str) -> None:
    value = unpickled(pickled(name))
    check_same(value, ENCODERS[encoder](value))


class Trickle(io.RawIOBase):
    """Gives its bytes in pieces of the sizes that it was told, over and over."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.file = io.BytesIO(data)
        self.sizes = sizes
        self.turn = 0

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1, /) -> bytes:
        self.turn += 1
        most = self.sizes[self.turn % len(self.sizes)]
        return self.file.read(min(most, count) if count >= 0 else most)


@settings(max_examples=examples(15), deadline=None)
@given(
    value=snapshots(),
    encode=encoders,
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=5),
)
def test_pieces_give_the_same_columns(value: Any, encode: Encoder, sizes: list[int]) -> None:
    data = encode(value)
    in_pieces = neutracer.load(Trickle(data, sizes))
    assert comparable(described(in_pieces)) == comparable(described(neutracer.load(data)))


@settings(max_examples=examples(25), deadline=None)
@given(value=snapshots(), encode=encoders)
def test_saving_keeps_the_columns(value: Any, encode: Encoder) -> None:
    first = neutracer.load(encode(value))
    second = neutracer.load(first.to_bytes())
    assert comparable({**described(first), "ignored": []}) == comparable(described(second))
    assert second.to_bytes() == first.to_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_saved_files_equal_the_original(name: str) -> None:
    data = pickled(name)
    assert unpickled(neutracer.load(data).to_bytes()) == unpickled(data)


@settings(max_examples=examples(75), deadline=None)
@given(
    value=snapshots(),
    encode=encoders,
    edits=st.lists(st.tuples(st.integers(0, 2**16), st.binary(max_size=3)), max_size=4),
)
def test_damaged_files_never_disagree(
    value: Any, encode: Encoder, edits: list[tuple[int, bytes]]
) -> None:
    data = bytearray(encode(value))
    for place, put in edits:
        at = place % len(data)
        data[at : at + len(put)] = put
    snapshot = loaded(bytes(data))
    try:
        wanted = columns(unpickled(bytes(data), damaged=True))
    except RejectedError:
        return
    if snapshot is not None and snapshot.partial is None:
        assert comparable(described(snapshot)) == comparable(wanted)


def is_prefix(part: list[Any], whole: list[Any]) -> bool:
    return part == whole[: len(part)]


FRAME = {"name": "f", "filename": "a.py", "line": 3}
SAMPLE = {
    "segments": [
        {
            "device": device,
            "address": 1 << 40,
            "total_size": 2 << 20,
            "allocated_size": 512,
            "active_size": 512,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {"address": 1 << 40, "size": 512, "state": "active_allocated", "frames": []},
                {"address": (1 << 40) + 512, "size": (2 << 20) - 512, "state": "inactive"},
            ],
        }
        for device in (0, 1)
    ],
    "device_traces": [
        [{"action": "alloc", "addr": i, "size": 7, "stream": 0, "time_us": 5} for i in range(3)],
        [],
    ],
    "allocator_settings": {"expandable_segments": False},
}

# In a trace frames are shared; what is cut off must not take them along.
SAMPLE["device_traces"][1] = [{"action": "alloc", "addr": 1, "size": 7, "frames": [FRAME]}] * 2


# So many odd encodings are cut off at every byte.
ODD = 8


@pytest.mark.parametrize("name", [*sorted(ENCODERS), *(f"odd {seed}" for seed in range(ODD))])
def test_every_truncation_gives_a_prefix(name: str) -> None:
    odd: dict[str, Callable[[Any], bytes]] = {
        f"odd {seed}": scrambled_encoder(seed, closing=False) for seed in range(ODD)
    }
    data = {**ENCODERS, **odd}[name](SAMPLE)
    whole = described(neutracer.load(data))
    longest = 0
    for end in range(len(data)):
        part = loaded(data[:end])
        if part is None:
            continue
        assert part.partial is not None
        found = described(part)
        assert is_prefix(found["events"], whole["events"])
        assert is_prefix(found["blocks"], whole["blocks"])
        for row, expected in zip(found["segments"], whole["segments"], strict=False):
            # The last segment may lack blocks, and its sums are those of the blocks it has.
            lacks = {} if row["block_count"] else {"allocated_size": 0, "active_size": 0}
            assert row == {**expected, **lacks, "block_count": row["block_count"]}
        longest = max(longest, len(found["events"]))
    assert longest == len(whole["events"])


def test_truncated_real_file_gives_prefix() -> None:
    data = pickled("multi_stream")
    whole = described(neutracer.load(data))
    counts = []
    for end in range(0, len(data), 997):
        part = loaded(data[:end])
        if part is not None:
            found = described(part)
            assert is_prefix(found["events"], whole["events"])
            counts.append(len(found["events"]))
    assert counts == sorted(counts)
    assert len(set(counts)) > 10


def test_bytes_behind_the_end_are_ignored() -> None:
    data = pickle.dumps(SAMPLE)
    snapshot = neutracer.load(data + b"\0" * 5000)
    assert snapshot.partial is None
    assert described(snapshot) == described(neutracer.load(data))
