# SPDX-License-Identifier: Apache-2.0
"""Real traces that begin late, as those of a ring that wrapped, against the whole ones."""

from __future__ import annotations

import pytest
from bundle import NAMES, begun_late, snapshot

METRICS = ("allocated", "active", "reserved", "requested")


def cuts(name: str) -> list[int]:
    count = len(snapshot(name).events)
    return sorted({count * part // 8 for part in range(1, 8, 2)} - {0})


@pytest.mark.parametrize("name", NAMES)
def test_late_series_equal_whole_ones(name: str) -> None:
    whole = snapshot(name).timeline()
    for first in cuts(name):
        late = begun_late(name, first).timeline()
        slack = late.facts["slack_bound"]
        assert late.facts["unmatched"] == 0
        for metric in METRICS:
            truth = list(getattr(whole, metric)[first:])
            found = list(getattr(late, metric))
            most = slack if metric in ("allocated", "active") else 0
            assert len(found) == len(truth)
            gaps = [a - b for a, b in zip(truth, found, strict=True)]
            assert min(gaps) >= 0, (first, metric)
            assert max(gaps) <= most, (first, metric)


@pytest.mark.parametrize("name", NAMES)
def test_late_start_is_the_state_then(name: str) -> None:
    whole = snapshot(name).timeline()
    for first in cuts(name):
        late = begun_late(name, first).timeline()
        then, start = whole.at(first - 1), late.at(-1)
        assert list(start.segments["address"]) == list(then.segments["address"])
        assert list(start.segments["total_size"]) == list(then.segments["total_size"])
        if late.facts["slack_bound"] == 0:
            for column in ("address", "size", "state"):
                assert list(start.blocks[column]) == list(then.blocks[column]), column
        active = [row for row in then.blocks if row.state != "inactive"]
        assert late.facts["preexisting"] == len(active)
