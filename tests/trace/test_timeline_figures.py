# SPDX-License-Identifier: Apache-2.0
"""What PyTorch printed step by step while it recorded, found in the replayed series."""

from __future__ import annotations

import pytest
from bundle import NAMES, expected, snapshot


def printed(name: str) -> list[tuple[int | None, int | None]]:
    """(allocated, reserved) after each step, as far as the program wrote them down."""
    steps = expected(name).get("series", [])
    pairs = [
        (step, None) if isinstance(step, int) else (step.get("alloc"), step.get("reserved"))
        for step in steps
    ]
    return [pair for pair in pairs if pair != (None, None)]


def dict_of(step: object) -> dict[str, object]:
    return step if isinstance(step, dict) else {}


STEPPED = [name for name in NAMES if printed(name)]


def test_most_programs_printed_their_steps() -> None:
    assert len(STEPPED) >= 20


@pytest.mark.parametrize("name", STEPPED)
def test_printed_steps_follow_in_series(name: str) -> None:
    timeline = snapshot(name).timeline()
    moments = zip(timeline.allocated, timeline.reserved, strict=True)
    for step, (allocated, reserved) in enumerate(printed(name)):
        assert any(
            allocated in (None, now) and reserved in (None, held) for now, held in moments
        ), f"step {step}"


@pytest.mark.parametrize("name", STEPPED)
def test_no_printed_peak_exceeds_ours(name: str) -> None:
    largest = snapshot(name).timeline().peak("allocated").bytes
    peaks = [step["peak"] for step in expected(name)["series"] if "peak" in dict_of(step)]
    assert all(peak <= largest for peak in peaks)
