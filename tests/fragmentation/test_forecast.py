# SPDX-License-Identifier: Apache-2.0
"""When the largest hole falls below the largest request: right where it comes, silent else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from small_snapshots import BASE, MIB, block, dumped, event, segment

import neutracer
from neutracer.fragmentation.report import forecast_of


def falling(rng: random.Random, count: int, slope: float, noise: float) -> list[int]:
    return [round((400 - slope * at + rng.gauss(0, noise)) * MIB) for at in range(count)]


@pytest.mark.parametrize(
    ("noise", "count", "least"),
    [
        *((0.0, count, 40) for count in (16, 32, 48)),
        *((2.0, count, least) for count, least in ((16, 32), (32, 38), (48, 40))),
        # Sixteen steps with twice the fall as noise are no proof: a walk may look like them.
        *((6.0, count, least) for count, least in ((16, 0), (32, 20), (48, 34))),
    ],
)
def test_falling_holes_are_forecast_within_the_interval(
    noise: float, count: int, least: int
) -> None:
    # From 400 MiB by 3 MiB a step: below 100 MiB after step 100.
    told = missed = 0
    for seed in range(40):
        found = forecast_of(falling(random.Random(seed), count, 3.0, noise), 100 * MIB)
        if found is not None:
            told += 1
            first, last = found.between
            missed += not first - 2 <= 100 <= (last or 10**9) + 2
            assert found.steps == count
            assert abs(found.bytes_per_step / MIB - 3) < 1 + noise / 4
    assert told >= least
    assert missed <= told * 0.15


def test_stride_counts_in_steps() -> None:
    found = forecast_of([(400 - 6 * at) * MIB for at in range(40)], 100 * MIB, stride=2)
    assert found is not None
    assert abs(found.step - 100) <= 2
    assert found.bytes_per_step == pytest.approx(3 * MIB)


def walk(rng: random.Random, count: int) -> list[int]:
    """A random walk that cannot fall below a quarter of where it began."""
    level, found = 400.0, []
    for _ in range(count):
        level = max(level + rng.gauss(0, 8), 100.0)
        found.append(round(level * MIB))
    return found


def test_random_walks_are_left_alone() -> None:
    spoken = sum(
        forecast_of(walk(random.Random(seed), count), 50 * MIB) is not None
        for seed in range(200)
        for count in (16, 32, 48)
    )
    # One in a hundred.
    assert spoken <= 6


@pytest.mark.parametrize(
    "holes",
    [
        [400] * 40,
        [400 + at for at in range(40)],
        # Emptied every ten steps.
        [400 - 10 * (at % 10) for at in range(40)],
        # It levels off above the request.
        [200 + round(200 * 0.8**at) for at in range(40)],
        # All that had been lost comes back once, and they are still above where they were then.
        [400 - 8 * at + (200 if at >= 25 else 0) for at in range(40)],
        # It was most of it.
        [400 - 8 * at + (170 if at >= 25 else 0) for at in range(40)],
        # One fall, once.
        [400] * 20 + [200] * 20,
        # Too few steps.
        [400 - 10 * at for at in range(8)],
        # So slow that nobody can tell.
        [4000 - at // 8 for at in range(40)],
        # It does not fit by now.
        [140 - at for at in range(41)],
    ],
)
def test_other_series_are_left_alone(holes: list[int]) -> None:
    assert forecast_of([hole * MIB for hole in holes], 100 * MIB) is None


@pytest.mark.parametrize(("back", "start"), [(120, 15), (150, 20), (64, 15)])
def test_holes_now_below_where_they_came_back_from_are_forecast(back: int, start: int) -> None:
    # From 400 MiB by 8 MiB a step: 100 MiB are passed (300 + back) / 8 steps after the first.
    holes = [400 - 8 * at + (back if at >= start else 0) for at in range(40)]
    assert holes[-1] < holes[start - 1]
    found = forecast_of([hole * MIB for hole in holes], 100 * MIB)
    assert found is not None
    assert found.step == (300 + back) // 8 + 1
    assert found.bytes_per_step == pytest.approx(8 * MIB)


def pinned(steps: int, kept: int) -> dict[str, Any]:
    """Steps that use 20 MiB for a while, of a segment of 128 MiB; each keeps `kept` MiB of it."""
    size, trace, frames = 128 * MIB, [], []
    trace.append(event("segment_alloc", BASE, size, 1000))
    for step in range(steps):
        said = {"user_metadata": f"step {step}"}
        at = 2000 + 100 * step
        trace.append(event("alloc", BASE, 20 * MIB, at, **said))
        trace.append(event("free_requested", BASE, 20 * MIB, at + 1, **said))
        trace.append(event("free_completed", BASE, 20 * MIB, at + 2, **said))
        if kept:
            place = BASE + size - (step + 1) * kept * MIB
            trace.append(event("alloc", place, kept * MIB, at + 3, **said))
            frames.insert(0, block(place, kept * MIB, "active_allocated", kept * MIB))
    free = size - steps * kept * MIB
    return {
        "segments": [segment(BASE, [block(BASE, free), *frames])],
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
    }


def test_trace_whose_holes_shrink_says_when() -> None:
    report = neutracer.fragmentation_report(dumped(pinned(30, 2)))
    found = [one for one in report.findings if one.kind == "fragmentation_forecast"]
    # Before step k the hole is 128 - 2 k MiB: below 20 MiB from step 55 on.
    assert [one.message for one in found] == [
        "at this trend the largest hole falls below the largest request at step 55"
    ]
    assert "shrinks by 2 MiB per step: 70 MiB after 30 steps" in str(report)
    assert "fragmentation_forecast" in [
        one.kind for one in neutracer.report(dumped(pinned(30, 2))).findings
    ]


def test_request_of_the_last_step_is_not_the_usual_one() -> None:
    plain = pinned(30, 2)
    for one in plain["device_traces"][0][-4:-1]:
        one["size"] = MIB
    report = neutracer.fragmentation_report(dumped(plain))
    found = [one for one in report.findings if one.kind == "fragmentation_forecast"]
    assert [one.message.rpartition(" ")[2] for one in found] == ["55"]


@pytest.mark.parametrize(("steps", "kept"), [(30, 0), (8, 2)])
def test_trace_whose_holes_stay_is_left_alone(steps: int, kept: int) -> None:
    report = neutracer.fragmentation_report(dumped(pinned(steps, kept)))
    assert "fragmentation_forecast" not in [one.kind for one in report.findings]
