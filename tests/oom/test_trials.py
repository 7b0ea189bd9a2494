# SPDX-License-Identifier: Apache-2.0
"""Changes replayed to the end of the round that failed, and through the rounds after it."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundle import DATA
from oom_snapshots import MIB, Recording, explained

import neutracer
from neutracer.oom.case import Verdict
from neutracer.oom.causes import _is_ample, _rank
from neutracer.oom.trials import COSTS, Trial


def trial(report: neutracer.reports.ExplainReport, cost: str) -> Trial:
    """The only one of its cost that passes."""
    (found,) = [one for one in report.trials if one.cost == cost and one.passes]
    return found


def leaking(rounds: int = 12, keeps: int = 10, works: int = 40, free: int = 0) -> Recording:
    """Rounds that each work with a block, and keep another; the next one fails."""
    recording = Recording()
    scratch = recording.segment(works)
    for number in range(rounds):
        recording.metadata = f"step {number}"
        block = recording.alloc(scratch, works, "forward")
        recording.own(keeps, "cache")
        recording.free(block)
    recording.metadata = f"step {rounds}"
    recording.alloc(scratch, works, "forward")
    recording.oom(keeps, free, "cache")
    return recording


def test_what_is_let_go_of_lasts_for_as_many_rounds_again() -> None:
    report = explained(leaking())
    found = trial(report, "line")
    assert (found.rounds, found.rounds_tried) == (12, 12)
    # One round's block, the one before it that is let go of as it ends, and what it works with.
    assert found.bytes == (40 + 10) * MIB
    assert (report.verdicts[0].kind, report.verdicts[0].finishes) == ("leak", True)
    assert report.verdicts[0].headroom_bytes == 160 * MIB - found.bytes


def test_what_is_let_go_of_leaves_the_newest_model() -> None:
    """Steps use it until the next one is there."""
    recording = Recording()
    recording.free(scratch := recording.own(60, "forward"))
    for number in range(48):
        recording.metadata = f"step {number}"
        is_new = number % 12 == 0
        if is_new:
            recording.own(100, "build")
        recording.free(recording.alloc(scratch, 20 if is_new else 60, "forward"))
    recording.metadata = "step 48"
    recording.fail(100, 0, "build")
    assert trial(explained(recording), "line").bytes == (100 + 100) * MIB


def test_the_program_as_it_is_comes_first_and_needs_more() -> None:
    first = explained(leaking()).trials[0]
    assert (first.change, first.cost, first.passes, first.rounds) == ("as it is", "", False, 0)
    assert first.bytes == (40 + 10 * 25) * MIB


def test_the_cheapest_changes_come_first() -> None:
    path = DATA / "whatif/0/dyn_transformer_capped.pickle.xz"
    costs = [COSTS.index(one.cost) for one in neutracer.explain(path).trials if one.cost]
    assert costs == sorted(costs)
    assert {"setting", "batch", "card"} <= {COSTS[number] for number in costs}


def test_a_share_that_passes_is_told_in_sixteenths() -> None:
    report = neutracer.explain(DATA / "whatif/0/dyn_transformer_capped.pickle.xz")
    remedy = next(one.remedy for one in report.verdicts if one.kind == "capacity")
    assert remedy is not None
    assert remedy.value is not None
    assert (remedy.value * 16).is_integer()
    (found,) = [one for one in report.trials if "of the batch" in one.change]
    assert found.change == f"{round(remedy.value * 100)} % of the batch or length"


def test_a_trace_without_rounds_is_tried_up_to_the_request() -> None:
    recording = Recording()
    recording.own(100, "keep")
    recording.oom(200, 30, "forward")
    report = explained(recording, device_total_bytes=1024 * MIB)
    assert report.trials
    assert {one.rounds_tried for one in report.trials} == {0}


def test_what_the_model_can_not_follow_is_not_tried() -> None:
    recording = Recording()
    # No allocator opens a segment of 45 MiB for a request of 40.
    recording.alloc(recording.segment(45), 40, "keep")
    recording.oom(200, 30, "forward")
    report = explained(recording)
    assert report.trials == ()
    assert "Nothing was tried" in report.notes[-1]
    assert not any("Nothing was tried" in note for note in explained(leaking()).notes)


def test_setting_that_goes_furthest_stands_for_all_that_do_not_help() -> None:
    settings = [
        Trial(f"setting {rounds}", "setting", False, rounds, 9, MIB) for rounds in (2, 5, 0)
    ]
    report = replace(explained(leaking()), trials=(*explained(leaking()).trials[:1], *settings))
    text = str(report)
    assert "setting 5; 2 others, no further" in text
    assert "fails after 5 more steps" in text
    assert "setting 2" not in text


def test_a_cache_that_grows_needs_its_first_size() -> None:
    recording = Recording()
    start = recording.own(200)
    recording.free(start)
    # Where best fit puts blocks of 20, 24, ... MiB of which each lives until the next is made.
    places = [0, 20, 44, 0, 32, 68, 0, 44, 92, 144, 0, 60, 124, 0, 72]
    held = None
    for number, place in enumerate(places):
        recording.metadata = f"step {number}"
        larger = recording.alloc(start + place * MIB, 20 + 4 * number, "cache")
        if held is not None:
            recording.free(held)
        held = larger
    recording.metadata = f"step {len(places)}"
    recording.oom(20 + 4 * len(places), 30, "cache")
    report = explained(recording)
    found = trial(report, "line")
    assert found.bytes == 200 * MIB < report.trials[0].bytes
    assert report.verdicts[0].kind == "cache_growth"


@pytest.mark.parametrize("name", ["leak", "frag_default"])
def test_trials_are_in_text_and_json(name: str, tmp_path: Path) -> None:
    path = DATA / "frag_default.pickle"
    if name == "leak":
        path = tmp_path / "leak.pickle"
        path.write_bytes(leaking().dumped())
    report = neutracer.explain(path)
    plain = json.loads(json.dumps(report.to_dict()))
    assert [one["change"] for one in plain["trials"]] == [one.change for one in report.trials]
    assert "Tried" in str(report)


@pytest.mark.parametrize("number", range(9))
def test_steady_rounds_stay_steady(number: int) -> None:
    path = DATA / f"whatif/{number}/dyn_transformer_capped.pickle.xz"
    snap = neutracer.load(path)
    report = neutracer.explain(snap)
    if report.step is None:
        pytest.skip("no step had ended")
    timeline = snap.timeline()
    begins = [one.first for one in timeline.steps.steps if one.first <= report.event]
    at = next(
        event
        for event in timeline.events.find("action", "alloc")
        if event >= begins[-2] and timeline.events[event].stack == report.stack
    )

    def final(rounds: int) -> int:
        program = timeline.program.go_on(
            report.event, array("i", begins), len(begins) - 2, at, rounds
        )
        figures = program.run(limit=0, device_total=1 << 44, device_other=0, goes_on=True)
        assert figures["failed_event"] is None
        return int(figures["final"]["allocated"])

    # Of 3 rounds that are repeated in turn: the same one is the last.
    assert final(4) == final(4 + 3 * 12)


def kept_now_and_then(steps: int = 30, mib: int = 20, keeps: int = 0) -> Recording:
    """Steps that free what they made, but for four of them, of which it stays; and each keeps so
    many MiB besides."""
    recording = Recording()
    works = recording.segment(mib)
    for number in range(steps):
        recording.metadata = f"step {number}"
        block = recording.alloc(works, mib, "forward")
        if keeps:
            recording.own(keeps, "cache")
        if number in (3, 4, 5, 6):
            works = recording.segment(mib)
        else:
            recording.free(block)
    recording.metadata = f"step {steps}"
    recording.alloc(works, mib, "forward")
    recording.oom(mib, 0, "forward")
    return recording


# A little that grows as well hides nothing.
@pytest.mark.parametrize(("mib", "keeps"), [(20, 0), (1200, 10)])
def test_what_stays_of_some_steps_alone_is_named_and_its_release_is_replayed(
    mib: int, keeps: int
) -> None:
    first = explained(kept_now_and_then(mib=mib, keeps=keeps)).verdicts[0]
    assert (first.kind, first.finishes) == ("leak", True)
    assert first.bytes == 4 * mib * MIB
    assert "of earlier steps is still there" in first.message


def test_a_pile_comes_before_a_limit_that_lasts_for_the_rounds_that_are_replayed() -> None:
    report = explained(leaking(free=16_000), limit_bytes=160 * MIB)
    finishing = [one.kind for one in report.verdicts if one.finishes]
    assert finishing == ["leak", "process_cap"]


def test_a_trial_with_more_memory_needs_what_the_program_needs() -> None:
    """Where nothing is ever short, nothing that is cached is given back."""
    report = neutracer.explain(DATA / "frag_default.pickle")
    more = next(one for one in report.trials if one.cost == "card")
    assert more.passes
    assert more.bytes == report.trials[0].bytes


@pytest.mark.parametrize(("rounds", "first"), [(92, "leak"), (0, "capacity")])
def test_what_takes_it_further_comes_before_that_it_needs_more(rounds: int, first: str) -> None:
    case: Any = SimpleNamespace(growth=None, still_grows=True)
    leak = Verdict("leak", 3 << 30, (), (), suffices=True, finishes=False, headroom_steps=rounds)
    needs = Verdict("capacity", 8 << 20, (), (), suffices=True)
    assert min((needs, leak), key=lambda one: _rank(case, one)).kind == first


@pytest.mark.parametrize(("outgrown", "first"), [(True, "capacity"), (False, "fragmentation")])
def test_holes_come_behind_a_step_that_has_outgrown_all_before_it(
    outgrown: bool, first: str
) -> None:
    """Where no round that ended shows the rest of the step."""
    case: Any = SimpleNamespace(growth=None, has_outgrown=outgrown)
    holes = Verdict("fragmentation", 250 * MIB, (), (), suffices=True)
    needs = Verdict("capacity", 1_600 * MIB, (), (), suffices=True)
    assert min((holes, needs), key=lambda one: _rank(case, one)).kind == first


@pytest.mark.parametrize(("times", "is_ample"), [(1.0, True), (2.2, False)])
def test_rest_of_a_larger_step_has_a_margin(times: float, is_ample: bool) -> None:
    demand = SimpleNamespace(steps=5, is_larger=times > 1.1, so_far=int(1_600 * times) * MIB)
    case: Any = SimpleNamespace(demand=demand, growth=None, usable=3_700 * MIB)
    just = Trial("expandable_segments:True", "setting", True, 2, 2, 3_700 * MIB)
    assert _is_ample(case, just) == is_ample
