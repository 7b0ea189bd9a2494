# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: snapshots of every schema from torch 1.13 to 2.14, and odd ones.

What they make is one that the reader takes: sizes that a device can have, and blocks beside
each other. In half of them sums add up and times rise; in the others some blocks and
segments lie elsewhere, sums are wrong, and times run backwards. Frame lists are shared by
identity, as PyTorch's are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from snapshot_layouts import layouts, sizes

Strategy = st.SearchStrategy[Any]

ACTIONS = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "user_defined",
    "workspace_snapshot",
]

#: Any text, lone surrogates included: that is how names that are no text are kept.
texts = st.text(st.characters(), max_size=12)

#: Sizes, addresses and streams: small ones, and all that 64 bits hold.
numbers = st.one_of(
    st.integers(0, 3),
    st.integers(0, 1 << 20).map(lambda units: units * 512),
    st.sampled_from([255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)

#: Where memory can be.
addresses = numbers.map(lambda number: min(number, 2**64 - 2**52))

times = st.one_of(
    st.integers(1_600_000_000_000_000, 1_900_000_000_000_000),
    st.integers(1_700_000_000_000_000, 1_700_000_000_000_200),
    st.sampled_from([0, 1, 2**31, 2**32, 2**47, 2**53]),
)
odd_times = times | st.integers(-9, 9) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
devices = st.integers(0, 3)

#: Keys under which None is no number, and those that a row must have.
INTEGERS = frozenset(
    [
        *("address", "total_size", "allocated_size", "active_size", "requested_size", "stream"),
        *("size", "device", "time_us", "addr", "real_size"),
    ]
)
NEEDED = frozenset(["total_size", "size"])

# Values under keys that nobody knows. No key of theirs makes a dict a frame or an event.
_leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
_unknown_keys = st.text("xyz_", min_size=1, max_size=4)
unknown_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_unknown_keys, inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)


@dataclass(frozen=True)
class Schema:
    """Which keys a release of torch writes.

    Attributes:
        has_history: Blocks have `history` in place of address and frames (before 2.1).
        has_requested: Blocks and segments have requested_size (2.1).
        has_pools: Segments have segment_pool_id, is_expandable and frames (2.1).
        has_time: Events have time_us (2.2).
        has_settings: There is allocator_settings (2.3).
        has_annotations: There is external_annotations (2.5).
        has_context: Events have compile_context (2.8).
        has_metadata: Events have user_metadata (2.10).
        has_event_pool: Events have pool_id (2.11).
        has_internal: Some events have internal_metadata and forward_frames (2.15).
        is_list: The file is the bare list of segments.
    """

    has_history: bool = False
    has_requested: bool = True
    has_pools: bool = True
    has_time: bool = True
    has_settings: bool = True
    has_annotations: bool = True
    has_context: bool = True
    has_metadata: bool = True
    has_event_pool: bool = False
    has_internal: bool = False
    is_list: bool = False


_OLD = Schema(True, False, False, False, False, False, False, False)

SCHEMAS = {
    "1.13": _OLD,
    "2.0": _OLD,
    "2.1-dev": Schema(True, True, False, False, False, False, False, False),
    "2.1": Schema(False, True, True, False, False, False, False, False),
    "2.2": Schema(False, True, True, True, False, False, False, False),
    "2.3": Schema(False, True, True, True, True, False, False, False),
    "2.5": Schema(False, True, True, True, True, True, False, False),
    "2.8": Schema(False, True, True, True, True, True, True, False),
    "2.10": Schema(),
    "2.11": Schema(has_event_pool=True),
    "2.14": Schema(has_event_pool=True),
    "2.15": Schema(has_event_pool=True, has_internal=True),
    "bare list": Schema(is_list=True),
    "bare list of 2.0": Schema(True, False, False, is_list=True),
}


def record(
    fields: dict[str, Strategy], *, missing: bool, needed: frozenset[str] = NEEDED
) -> Strategy:
    """A dict of these keys in their order, unknown ones behind them; where `missing`,
    any of the keys that are not `needed` may be absent, or None if it is no number."""

    def assembled(parts: tuple[Any, ...]) -> dict[str, Any]:
        *values, dropped, blanked, extra = parts
        row = dict(zip(fields, values, strict=True))
        row = {k: None if k in blanked else v for k, v in row.items() if k not in dropped}
        return {**row, **{f"x_{name}": value for name, value in extra.items()}}

    spare = sorted(fields.keys() - needed)
    open_to_none = sorted(fields.keys() - needed - INTEGERS)
    few = st.lists(st.sampled_from(spare), max_size=3, unique=True) if missing else st.just([])
    one = st.just([])
    if missing and open_to_none:
        one = st.lists(st.sampled_from(open_to_none), max_size=1)
    odd = st.one_of(st.just({}), st.dictionaries(_unknown_keys, unknown_values, max_size=2))
    return st.tuples(*fields.values(), few, one, odd if missing else st.just({})).map(assembled)


def sequences(items: Strategy, most: int = 4) -> Strategy:
    """A list, or now and then a tuple, which other tools write in its place."""
    lists = st.lists(items, max_size=most)
    return st.one_of(lists, lists, lists.filter(bool).map(tuple))


@st.composite
def stacks(draw: Any, *, missing: bool) -> Strategy:
    """A strategy of frame lists that are taken from a few, so that many share one."""
    fields = {"name": texts, "filename": texts, "line": st.integers(-1, 2**31)}
    frame = record(fields, missing=missing)
    frames = draw(st.lists(frame, min_size=1, max_size=4))
    # A dict without a filename is no frame to the fast way, so keep some of both.
    known = draw(st.lists(sequences(st.sampled_from(frames)), min_size=1, max_size=4))
    return st.sampled_from([*known, []])


def pools() -> Strategy:
    """A pool id: mostly that of the default pool."""
    private = st.tuples(numbers, numbers)
    return st.one_of(st.just((0, 0)), private, private.map(list))


def block_records(schema: Schema, frames: Strategy, *, missing: bool) -> Strategy:
    """A block."""
    states = st.sampled_from(["inactive", "active_allocated", "active_pending_free"])
    fields: dict[str, Strategy] = {"size": sizes.map(lambda size: max(size, 1)), "state": states}
    if schema.has_requested:
        fields["requested_size"] = sizes
    if schema.has_history:
        history = {"addr": numbers, "real_size": sizes, "frames": frames}
        cpp = st.lists(texts, max_size=2)
        old = record({**history, "cpp_frames": cpp}, missing=True)
        fields["history"] = st.lists(old, max_size=2)
        fields["state"] = states | st.just("active_awaiting_free")
    else:
        fields = {"address": addresses, **fields, "frames": frames}
    return record(fields, missing=missing)


def segment_records(schema: Schema, frames: Strategy, *, missing: bool) -> Strategy:
    """A segment with its blocks, each of them anywhere."""
    fields: dict[str, Strategy] = {"device": devices, "address": addresses}
    for key in ("total_size", "allocated_size", "active_size"):
        fields[key] = sizes
    if schema.has_requested:
        fields["requested_size"] = sizes
    fields["stream"] = numbers
    fields["segment_type"] = st.sampled_from(["small", "large"])
    if schema.has_pools:
        fields["segment_pool_id"] = pools()
        fields["is_expandable"] = st.booleans()
        fields["frames"] = frames
    fields["blocks"] = sequences(block_records(schema, frames, missing=missing))
    return record(fields, missing=missing, needed=NEEDED | {"address"})


def event_records(schema: Schema, frames: Strategy, *, missing: bool, odd: bool) -> Strategy:
    """A trace entry; an oom event has `device_free` in place of `addr`."""
    actions = st.sampled_from(ACTIONS) | texts
    fields: dict[str, Strategy] = {"size": sizes, "stream": numbers}
    if schema.has_time:
        fields["time_us"] = odd_times if odd else times
    if schema.has_event_pool:
        fields["pool_id"] = pools()
    if schema.has_context:
        fields["compile_context"] = st.just("N/A") | texts
    if schema.has_metadata:
        fields["user_metadata"] = st.just("") | texts
    if schema.has_internal:
        fields["internal_metadata"] = st.none() | texts
        fields["forward_frames"] = st.none() | st.lists(texts, max_size=3)
    if schema.has_history:
        fields["cpp_frames"] = st.lists(texts, max_size=2)

    def entry(parts: tuple[str, int, int, dict[str, Any], Any]) -> dict[str, Any]:
        action, place, left, rest, where = parts
        told = {"device_free": left} if action == "oom" else {"addr": place}
        made = {"action": action, **told, **rest}
        return made if where is None else {**made, "frames": where}

    rest = record(fields, missing=missing)
    return st.tuples(actions, addresses, sizes, rest, st.none() | frames).map(entry)


def traces(event: Strategy, *, sound: bool) -> Strategy:
    """A trace; now and then an entry stands in it twice, as one object. Where `sound`, its
    times rise."""
    lists = st.lists(event, max_size=6)
    if sound:
        lists = lists.map(lambda found: sorted(found, key=lambda row: row.get("time_us", 0)))
    return st.one_of(lists, lists, lists.map(lambda found: found[:1] + found))


annotations = record(
    {
        "stage": st.sampled_from(["START", "END"]),
        "name": texts,
        "device": devices,
        "time_us": times,
    },
    missing=True,
)

settings = st.fixed_dictionaries(
    {},
    optional={
        "PYTORCH_CUDA_ALLOC_CONF": st.sampled_from(
            ["", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:8"]
        )
        | texts,
        "max_split_size": st.integers(-(2**63), 2**63 - 1),
        "garbage_collection_threshold": st.floats(),
        "expandable_segments": st.booleans(),
        "roundup_power2_divisions": st.dictionaries(
            st.sampled_from(["1", "2", "1024", "32768"]), st.integers(-1, 64), max_size=4
        ),
        "trace_alloc_overflowed": st.lists(st.booleans(), max_size=4),
        "later": st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts,
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(_unknown_keys, inner, max_size=3)
            ),
            max_leaves=5,
        ),
    },
)


@st.composite
def snapshots(draw: Any, version: str | None = None) -> Any:
    """A snapshot as one release of torch writes it, or with keys missing and unknown ones."""
    name = draw(st.sampled_from(sorted(SCHEMAS))) if version is None else version
    schema = SCHEMAS[name]
    missing, sound = draw(st.booleans()), draw(st.booleans())
    frames = draw(stacks(missing=missing))
    records = segment_records(schema, frames, missing=missing)
    segments = draw(layouts(sequences(records, 3), sound=sound))
    if schema.is_list:
        # In protocol 1 an empty list is two letters, which are taken for text.
        return list(segments) or [{"device": 0, "address": 0, "total_size": 0}]
    event = event_records(schema, frames, missing=missing, odd=not sound)
    made: dict[str, Any] = {
        "segments": segments,
        "device_traces": draw(st.lists(traces(event, sound=sound), max_size=3)),
    }
    if schema.has_settings:
        made["allocator_settings"] = draw(settings)
    if schema.has_annotations:
        made["external_annotations"] = draw(st.lists(annotations, max_size=3))
    if missing:
        # Other tools put the keys in another order, and leave some of them out.
        for key in draw(st.lists(st.sampled_from(sorted(made)), max_size=2, unique=True)):
            value = made.pop(key)
            if draw(st.booleans()):
                made[key] = value
        made.update({f"x_{draw(_unknown_keys)}": draw(unknown_values)})
        if "segments" not in made and "device_traces" not in made:
            made["segments"] = segments
    return made
