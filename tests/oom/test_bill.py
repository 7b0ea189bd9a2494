# SPDX-License-Identifier: Apache-2.0
"""The bill: every byte of the limit once, and lines split by the rounds before the failure."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from bundle import DATA
from oom_snapshots import STACKS, Recording, explained

import neutracer
from neutracer.oom.bill import Bill, BillTerm, _split, asked_lines, bill_at
from neutracer.oom.facts import OomFacts
from neutracer.render.document import Place
from neutracer.trace.beside import DeviceRoom

MiB = 1 << 20
INSIDE = ("line", "waiting", "free", "free elsewhere")
FAILED = sorted((DATA / "oom").glob("*.pickle.xz"))


@pytest.mark.parametrize("path", FAILED, ids=lambda path: path.name)
@pytest.mark.parametrize("asked", [{}, {"request": "1GiB", "capacity": "200GiB"}], ids=len)
def test_terms_add_up_to_the_limit(path: Path, asked: dict[str, str]) -> None:
    why = neutracer.explain(path, capacity=asked.get("capacity"), request=asked.get("request"))
    terms = why.bill.terms
    assert sum(one.bytes for one in terms) == why.bill.limit_bytes
    assert all(min(one.bytes, one.stands, one.piled_up, one.this_round) >= 0 for one in terms)
    for one in why.bill.lines:
        assert one.stands + one.piled_up + one.this_round == one.bytes
    assert sum(one.bytes for one in why.bill.lines) == why.allocated_bytes
    assert sum(one.bytes for one in terms if one.term in INSIDE) == why.reserved_bytes


LINE = BillTerm(term="line", bytes=100)


@pytest.mark.parametrize(
    ("floors", "parts"),
    [
        ([50, 50, 50, 50], (50, 0, 50)),
        ([10, 30, 50, 70], (10, 60, 30)),
        ([70, 50, 30, 10], (10, 0, 90)),
        # One that rises once and stays is a warm-up.
        ([10, 60, 60, 60, 60], (10, 0, 90)),
        ([90, 120, 150, 180], (90, 10, 0)),
        ([0, 0, 0], (0, 0, 100)),
    ],
)
def test_a_line_is_split_by_its_floors(floors: list[int], parts: tuple[int, int, int]) -> None:
    one = _split(LINE, floors, before=0)
    assert (one.stands, one.piled_up, one.this_round) == parts


def test_without_rounds_only_what_was_there_before_is_told() -> None:
    one = _split(LINE, [7], before=40)
    assert (one.stands, one.piled_up, one.this_round) == (40, 0, 60)


def test_a_leak_is_the_line_that_piled_up() -> None:
    why = neutracer.explain(DATA / "leak_list.pickle.xz", request="100GiB", capacity="24GiB")
    (first,) = [one for one in why.bill.lines if one.piled_up]
    assert first.place is not None
    assert str(first.place) == "leak_list (train.py:120)"
    # 40 MiB in all, of which the rounds of the warm-up had the first.
    assert 32 * MiB < first.piled_up < 40 * MiB


def test_table_and_json_carry_the_same() -> None:
    why = neutracer.explain(DATA / "frag_default.pickle")
    table = why.bill.table()
    assert table["bytes"].tolist() == [one.bytes for one in why.bill.terms]
    assert table[0].term == why.bill.terms[0].term
    plain = json.loads(json.dumps(why.to_dict()))["bill"]
    assert [one["bytes"] for one in plain["terms"]] == table["bytes"].tolist()
    assert plain["limit_bytes"] == 2048 * MiB


def test_text_sums_what_it_leaves_out() -> None:
    kinds = ["activation"] * 8 + ["gradient"]
    lines = tuple(
        BillTerm(term="line", bytes=one * MiB, category=kinds[-one]) for one in range(9, 0, -1)
    )
    block = Bill(45 * MiB, "device", 0, 0, 0, "round", lines).block()
    assert len(block.rows) == 7
    # Of several lines a category is told only where all have it.
    assert (block.rows[4][2], *block.rows[5][1:]) == ("activation", "4 more lines", "")
    alike = tuple(replace(one, category="gradient") for one in lines)
    assert Bill(45 * MiB, "device", 0, 0, 0, "round", alike).block().rows[5][2] == "gradient"


def test_holders_of_the_sidecar_are_in_bill_and_verdict() -> None:
    snap = neutracer.load(DATA / "leak_list.pickle.xz")
    facts = OomFacts(device=0, segment_bytes=64 * MiB, device_total_bytes=1 << 30)
    why = neutracer.explain(snap, facts=facts)
    line = max(why.bill.lines, key=lambda one: one.piled_up)
    facts = replace(facts, holders=((str(line.place), "module __main__ → kept → [3]"),))
    assert OomFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
    again = neutracer.explain(snap, facts=facts)
    held = next(one for one in again.bill.lines if one.place == line.place)
    assert held.holder == "module __main__ → kept → [3]"
    leak = next(one for one in again.verdicts if one.kind == "leak")
    assert leak.advice[0].text.endswith(" in module __main__ → kept → [3]")
    assert not any("held by" in note.text for note in leak.evidence)


def test_holder_comes_in_words_below_the_bill() -> None:
    place = Place("step", "train.py", 12)
    lines = (
        BillTerm(term="line", bytes=3, place=place, holder='history["z"]'),
        BillTerm(term="line", bytes=2, place=replace(place, line=14), holder='history["z"]'),
        BillTerm(term="line", bytes=1, place=replace(place, line=15), holder="no Python object: x"),
    )
    notes = Bill(6, "device", 0, 0, 0, "round", lines).block().notes
    assert notes[-2:] == (
        'history["z"] holds what train.py:12, train.py:14 made.',
        "train.py:15: no Python object: x.",
    )


def test_lines_that_piled_up_are_asked_for_before_larger_ones() -> None:
    lines = tuple(
        BillTerm(term="line", bytes=100 - at, place=Place("f", "a.py", at), piled_up=at == 50)
        for at in range(60)
    )
    asked = asked_lines(Bill(0, "device", 0, 0, 0, "round", lines))
    assert asked[:3] == ["f (a.py:50)", "f (a.py)", "f (a.py:1)"]
    assert len(asked) == 9


# ---- causes that the bill's shape and the stacks show ------------------------------------


def test_a_list_that_frees_nothing_is_a_leak() -> None:
    recording = Recording()
    for _ in range(20):
        recording.own(100, "keep")
    recording.oom(100, 0, "keep")
    why = explained(recording, limit_bytes=2048 * MiB, device_total_bytes=80 << 30)
    assert (why.verdicts[0].kind, why.verdicts[0].remedy.place.line) == ("leak", 30)
    (line,) = why.bill.lines
    assert line.piled_up > 0.7 * line.bytes


def test_weights_that_are_loaded_are_no_leak() -> None:
    recording = Recording()
    for _ in range(20):
        recording.own(100, "loading")
    recording.oom(100, 0, "loading")
    why = explained(recording, device_total_bytes=2048 * MiB)
    assert "leak" not in [one.kind for one in why.verdicts]


def trained(steps: int, build: tuple[int, ...] = (0,), sizes: tuple[int, ...] = (64,)) -> Recording:
    """Steps of a training; in some of them a model with blocks of these sizes is made."""
    recording = Recording()
    scratch = recording.segment(64)
    for step in range(steps):
        if step in build:
            for size in sizes:
                recording.own(size, "build")
        recording.metadata = f"step {step}"
        for stack in ("forward", "backward"):
            recording.free(recording.alloc(scratch, 40, stack))
    return recording


def test_models_that_are_made_again_are_named() -> None:
    recording = trained(20, build=(0, 12), sizes=(64, 32))
    recording.oom(90, 0, "forward")
    why = explained(recording, device_total_bytes=1024 * MiB)
    assert why.verdicts[0].message == "models made before are still there: 96 MiB"


def test_layers_that_are_added_are_no_older_models() -> None:
    recording = trained(20, build=(0,), sizes=(64, 64, 64))
    recording.own(64, "build")
    recording.metadata = "step 20"
    recording.oom(90, 0, "forward")
    why = explained(recording, device_total_bytes=1024 * MiB)
    assert not any("models made before" in one.message for one in why.verdicts)


def test_the_first_step_of_an_optimizer_is_named() -> None:
    recording = trained(1, sizes=(256,))
    recording.own(256, "optimizer")
    recording.oom(256, 0, "optimizer")
    why = explained(recording, device_total_bytes=1024 * MiB)
    assert why.verdicts[0].message.startswith("the first optimizer step makes its state: 256 MiB")
    assert why.verdicts[0].remedy.action == "shard_state"
    # Where others have the rest of a larger device, that is in the way first.
    why = explained(recording, device_total_bytes=4096 * MiB)
    assert [one.kind for one in why.verdicts[:2]] == ["non_torch", "capacity"]


@pytest.mark.parametrize("handling", ["OutOfMemoryError of run (train.py:41)", ""])
def test_a_retry_inside_of_except_is_named(handling: str) -> None:
    recording = trained(12, sizes=(64,))
    recording.metadata = "step 12"
    recording.own(400, "forward")
    recording.oom(400, 0, "forward")
    recording.own(200, "forward")
    recording.oom(200, 0, "forward")
    why = explained(recording, device_total_bytes=1024 * MiB, handling=handling)
    named = why.verdicts[0].message == "the attempt that failed before still holds 400 MiB"
    assert named == bool(handling)


def test_a_retry_is_named_where_its_attempt_looks_like_growth() -> None:
    recording = Recording()
    for _ in range(5):
        recording.own(200, "keep")
    recording.oom(200, 70_000, "keep")
    # The same line, called from elsewhere.
    recording.oom(100, 70_000, "keep")
    recording.trace[-1]["frames"] = [*STACKS["keep"][:1], *STACKS["program"]]
    handling = "OutOfMemoryError of retried (train.py:41)"
    facts = {"limit_bytes": 1024 * MiB, "device_total_bytes": 80 << 30, "handling": handling}
    why = explained(recording, **facts)
    assert why.verdicts[0].message == "the attempt that failed before still holds 1,000 MiB"


def test_weights_are_no_failed_attempt() -> None:
    recording = Recording()
    recording.own(600, "weights")
    recording.oom(400, 0, "inference")
    recording.oom(200, 0, "inference")
    handling = "OutOfMemoryError of serve (server.py:41)"
    why = explained(recording, device_total_bytes=1024 * MiB, handling=handling)
    assert not any("attempt that failed" in one.message for one in why.verdicts)


def test_little_that_is_free_is_no_fragmentation() -> None:
    recording = Recording()
    recording.own(960, "keep")
    start = recording.segment(40)
    recording.alloc(start, 2, "keep")
    recording.oom(64, 20, "program")
    why = explained(recording, device_total_bytes=1024 * MiB)
    assert why.free_bytes == 38 * MiB
    assert "fragmentation" not in [one.kind for one in why.verdicts]


def test_without_a_history_all_is_of_this_round() -> None:
    recording = trained(3)
    plain = recording.snapshot()
    plain["device_traces"] = [[] for _ in plain["device_traces"]]
    facts = OomFacts(device=0, segment_bytes=64 * MiB, device_total_bytes=1 << 30)
    bill = neutracer.explain(pickle.dumps(plain, 4), facts=facts).bill
    assert bill.rounds == 0
    assert all(one.this_round == one.bytes for one in bill.lines)
    assert sum(one.bytes for one in bill.terms) == bill.limit_bytes


RECORDED = sorted({*DATA.rglob("*.pickle.xz"), *DATA.rglob("*.snapshot.xz")})


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_bill_at_the_peak_adds_up_to_what_was_reserved(path: Path) -> None:
    snap = neutracer.load(path)
    for device in snap.devices:
        timeline = snap.timeline(device)
        peak = timeline.peak("allocated")
        if not len(timeline):
            continue
        bill = bill_at(snap, device, peak.event)
        lines = bill.lines
        assert sum(one.bytes for one in bill.terms) == bill.limit_bytes
        inside = sum(one.bytes for one in bill.terms if one.term in INSIDE)
        assert inside == timeline.reserved[peak.event]
        if sum(one.bytes for one in lines) == peak.bytes:
            held = {str(place): n for place, n, _, _ in timeline.held_by_place(peak.event) if n}
            assert {str(one.place): one.bytes for one in lines} == held
        else:
            # It set a pool back while blocks were in it.
            assert path.name == "129-8.snapshot.xz"
        for one in lines:
            assert one.stands + one.piled_up + one.this_round == one.bytes
            assert min(one.stands, one.piled_up, one.this_round) >= 0


def test_bill_at_a_moment_says_what_the_device_had_left() -> None:
    snap = neutracer.load(DATA / "train_resnet_healthy.pickle.xz")
    room = DeviceRoom(80 << 30, 0.5, 1 << 30)
    snap.beside = replace(snap.beside, rooms={0: room})
    timeline = snap.timeline()
    peak = timeline.peak().event
    bill = bill_at(snap, 0, peak)
    terms = {one.term: one.bytes for one in bill.terms}
    assert (bill.limit_is, bill.limit_bytes) == ("limit", 40 << 30)
    assert terms["not reserved"] == (40 << 30) - timeline.reserved[peak]
    assert "not PyTorch's" not in terms
    snap.beside = replace(snap.beside, rooms={0: replace(room, fraction=1.0)})
    bill = bill_at(snap, 0, peak)
    assert (bill.limit_is, bill.limit_bytes) == ("device", 80 << 30)
    assert bill.terms[0].term == "not PyTorch's"
    assert bill.terms[0].bytes == 1 << 30


def test_first_step_piles_nothing_up() -> None:
    # Before the second step has ended, parts of the first are no rounds.
    snap = neutracer.load(DATA / "train_resnet_healthy.pickle.xz")
    bill = bill_at(snap, 0, snap.timeline().steps[0].end - 1)
    assert bill.rounds == 0
    assert not any(one.piled_up for one in bill.lines)


@pytest.mark.parametrize("is_known", [False, True])
def test_full_buffer_does_not_pile_up_where_the_history_begins_late(is_known: bool) -> None:
    program = Recording()
    held = [program.own(8, "keep") for _ in range(16)]
    if not is_known:
        program.trace.clear()
    for _ in range(12):
        program.free(program.own(16))
        program.own(4, "cache")
        held.append(program.own(8, "keep"))
        program.free(held.pop(0))
    program.oom(64, 0)
    lines = {one.place.line: one for one in explained(program).bill.lines if one.place}
    assert lines[30].piled_up == 0
    assert lines[30].bytes == 16 * 8 * MiB
    assert lines[44].piled_up >= 10 * 4 * MiB
