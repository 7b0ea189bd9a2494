# SPDX-License-Identifier: Apache-2.0
"""Allocations in groups: alive at a moment, and over all events."""

from __future__ import annotations

import pickle

import pytest
from bundle import DATA
from places import TESTS

import neutracer
from neutracer.trace.roles import CATEGORIES
from neutracer.trace.timeline import Timeline

NAMES = ("train_resnet_healthy", "leak_list", "metadata", "multi_stream")


def timeline(name: str) -> Timeline:
    return neutracer.load(TESTS / "data" / f"{name}.pickle.xz").timeline()


def with_modules() -> Timeline:
    """A recording with `modules`, made of another: module by event's number."""
    source = neutracer.load(TESTS / "data" / "leak_list.pickle.xz").to_dict()
    for number, entry in enumerate(source["device_traces"][0]):
        part = ("", "encoder.layer.0", "encoder.layer.1", None)[number % 4]
        if part is not None:
            entry["user_metadata"] = f"nn.Module: {part}"
    return neutracer.load(pickle.dumps(source)).timeline()


@pytest.mark.parametrize("name", NAMES)
def test_groups_add_up_to_allocated(name: str) -> None:
    tl = timeline(name)
    for table in (tl.by_category(), tl.by_place(3), tl.by_place(100), tl.by_module()):
        assert table.columns[:2] == ("event", "time_us")
        assert len(table) == len(tl)
        assert list(table["event"][:3]) == [0, 1, 2]
        assert table["time_us"][5] == tl.time_us[5]
        for event in (0, len(tl) // 2, tl.peak().event, len(tl) - 1):
            row = table[event].to_dict()
            assert sum(row[one] for one in table.columns[2:]) == tl.allocated[event]


@pytest.mark.parametrize("name", NAMES[:2])
def test_groups_at_one_event_are_the_holders(name: str) -> None:
    tl = timeline(name)
    table = tl.by_category()
    assert table.columns[2:] == CATEGORIES
    for event in (0, len(tl) // 3, len(tl) - 1):
        held = {holder.key: holder.bytes for holder in tl.holders(event, "category", None)}
        row = table[event].to_dict()
        assert {one: row[one] for one in CATEGORIES if row[one]} == held


def test_places_are_those_that_hold_most_at_the_peak() -> None:
    tl = timeline("train_resnet_healthy")
    keys = [holder.key for holder in tl.holders(limit=4)]
    assert list(tl.by_place(4).columns[2:]) == [*keys, "others"]


@pytest.mark.parametrize("limit", [0, 101])
def test_limits_are_checked(limit: int) -> None:
    with pytest.raises(ValueError, match="limit is"):
        timeline("metadata").by_place(limit)


@pytest.mark.parametrize("name", NAMES)
def test_alive_is_what_is_allocated(name: str) -> None:
    tl = timeline(name)
    for at, event in (("peak", tl.peak().event), ("end", len(tl) - 1), (7, 7)):
        alive = tl.alive(at)
        assert alive.columns == tl.allocations.columns
        sizes = list(alive["size"])
        assert sum(sizes) == tl.allocated[event]
        assert sizes == sorted(sizes, reverse=True)
        assert all(row.alloc_event <= event for row in alive)
    first = tl.alive("end")[0]
    assert first.category in CATEGORIES
    assert isinstance(first.stack, tuple)


def test_other_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="'peak', 'end' or an event"):
        timeline("metadata").alive("middle")
    with pytest.raises(ValueError, match="not among"):
        timeline("metadata").alive(10**9)


def test_modules_are_read_from_the_recording() -> None:
    tl = with_modules()
    held = {holder.key: holder.bytes for holder in tl.holders(by="module", limit=None)}
    assert set(held) == {
        "(the model itself)", "encoder.layer.0", "encoder.layer.1", "(no module)",
    }  # fmt: skip
    assert sum(held.values()) == tl.peak().bytes
    table = tl.by_module()
    assert table["encoder.layer.1"][tl.peak().event] == held["encoder.layer.1"]


def test_modules_are_no_steps() -> None:
    assert with_modules().steps.how == timeline("leak_list").steps.how


def test_recordings_without_modules_say_so() -> None:
    [holder] = timeline("metadata").holders(by="module")
    assert holder.key == "(no module)"


def test_what_has_no_stack_in_a_backward_pass_is_its_callers() -> None:
    tl = timeline("train_resnet_healthy")
    passes, peak = tl.passes, tl.peak().event
    rows = tl.alive("peak")
    expected = sum(
        row.size
        for row in rows
        if not row.stack and any(b <= row.alloc_event < e for b, e in passes.backward)
    )
    held = {holder.key: holder.bytes for holder in tl.holders(limit=None)}
    assert held["backward pass (train.py:78)"] == expected > 0
    assert held["(no Python stack)"] == sum(row.size for row in rows if not row.stack) - expected
    assert sum(held.values()) == tl.allocated[peak]
    table = tl.by_place()
    assert table["backward pass (train.py:78)"][peak] == expected
    places = {str(place): nbytes for place, nbytes, _, _ in tl.held_by_place()}
    assert places == held


def viewer_names(snap: neutracer.Snapshot) -> dict[str, int]:
    """The name that PyTorch's viewer gives each block, by the event that allocated it."""
    completed: dict[int, int] = {}
    names = {}
    for number, event in enumerate(snap.timeline().events):
        if event.action == "alloc":
            names[f"b{event.addr:x}_{completed.get(event.addr, 0)}"] = number
        elif event.action == "free_completed":
            completed[event.addr] = completed.get(event.addr, 0) + 1
    return names


def test_blocks_are_found_by_the_names_of_pytorchs_viewer() -> None:
    snap = neutracer.load(DATA / "frag_default.pickle")
    timeline, names = snap.timeline(), viewer_names(snap)
    assert max(int(name.rpartition("_")[2]) for name in names) > 3
    for name, event in list(names.items())[::7]:
        (row,) = timeline.named(name)
        assert row.alloc_event == event
        assert f"({name})" in repr(row)
        assert timeline.named(name.replace("b", "b'", 1))[0] == row
        address = int(name[1:].partition("_")[0], 16)
        for spelt in (address, hex(address), f"{address:x}"):
            found = timeline.named(spelt)
            assert set(found["address"]) == {address}
            assert row in list(found)
    assert len(timeline.named("b1_0")) == 0
    with pytest.raises(ValueError, match="neither an address nor a block"):
        timeline.named("frag")
    with pytest.raises(TypeError, match="block"):
        timeline.named(1.5)  # type: ignore[arg-type]
