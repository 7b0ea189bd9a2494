# SPDX-License-Identifier: Apache-2.0
"""Every bundled snapshot against the figures that PyTorch itself printed."""

import pytest
from bundle import NAMES, RESET_PEAKS, expected, snapshot

METRICS = ("allocated", "active", "reserved", "requested")

every_snapshot = pytest.mark.parametrize("name", NAMES)


@every_snapshot
def test_memory_stats_equal_those_of_pytorch(name):
    stats = expected(name)["stats"]
    ours = snapshot(name).memory_stats()
    theirs = {key: stats[key] for key in ours}
    assert ours == theirs


@every_snapshot
def test_series_end_at_pytorch_figures(name):
    stats, timeline = expected(name)["stats"], snapshot(name).timeline()
    for metric in METRICS:
        last = getattr(timeline, metric)[-1]
        assert last == stats[f"{metric}_bytes.all.current"], metric


@pytest.mark.parametrize("name", [name for name in NAMES if name not in RESET_PEAKS])
def test_peaks_equal_those_of_pytorch(name):
    stats, timeline = expected(name)["stats"], snapshot(name).timeline()
    for metric in METRICS:
        peak = timeline.peak(metric)
        assert peak.bytes == stats[f"{metric}_bytes.all.peak"], metric
        if peak.event >= 0:
            assert getattr(timeline, metric)[peak.event] == peak.bytes


@pytest.mark.parametrize("name", RESET_PEAKS)
def test_peak_equals_largest_of_reset_peaks(name):
    largest = max(step["peak"] for step in expected(name)["series"])
    assert snapshot(name).timeline().peak().bytes == largest


@every_snapshot
def test_event_counts_equal_those_recorded(name):
    known, events = expected(name), snapshot(name).events
    if name == "cpp_pickled":
        # Its JSON is of a dump a moment later, with one more event.
        assert len(events) == known["n_trace"][0] - 1
        return
    assert [len(events)] == known["n_trace"]
    actions = events["action"]
    assert {action: actions.count(action) for action in set(actions)} == known["actions"]


@every_snapshot
def test_layout_at_end_is_the_recorded_one(name):
    snap = snapshot(name)
    layout = snap.timeline().at(len(snap.timeline()) - 1)
    for column in ("address", "total_size", "allocated_size", "active_size", "stream"):
        assert list(layout.segments[column]) == list(snap.segments[column]), column
    for column in ("segment_type", "is_expandable", "pool_first", "pool_second"):
        assert list(layout.segments[column]) == list(snap.segments[column]), column
    for column in ("address", "size", "state"):
        assert list(layout.blocks[column]) == list(snap.blocks[column]), column


@every_snapshot
def test_layouts_add_up_at_any_event(name):
    timeline = snapshot(name).timeline()
    for event in range(-1, len(timeline), max(1, len(timeline) // 25)):
        layout = timeline.at(event)
        if event >= 0:
            assert sum(layout.segments["total_size"]) == timeline.reserved[event]
            assert sum(layout.segments["allocated_size"]) == timeline.allocated[event]
            assert sum(layout.segments["active_size"]) == timeline.active[event]
            assert sum(layout.segments["requested_size"]) == timeline.requested[event]
        ends = [segment.address + segment.total_size for segment in layout.segments]
        starts = layout.segments["address"][1:]
        assert all(end <= start for end, start in zip(ends, starts, strict=False))
        for segment in layout.segments:
            first = segment.block_first
            blocks = layout.blocks[first : first + segment.block_count]
            sizes = list(blocks["size"])
            assert sum(sizes) == segment.total_size
            starts = [segment.address + sum(sizes[:i]) for i in range(len(sizes))]
            assert starts == list(blocks["address"])


@every_snapshot
def test_retries_and_ooms_equal_pytorch_counts(name):
    stats, facts = expected(name)["stats"], snapshot(name).timeline().facts
    assert facts["oom_count"] == stats["num_ooms"]
    assert facts["unmatched"] == 0
    if facts["retries_known"]:
        assert facts["retries"] == stats["num_alloc_retries"]


@every_snapshot
def test_complete_histories_are_told_from_late_ones(name):
    # A trace is complete if what it allocated, all in all, is what PyTorch counted.
    counted = expected(name)["stats"]["allocation.all.allocated"]
    traced = snapshot(name).events["action"].count("alloc")
    assert snapshot(name).history_complete() is (traced == counted)


@every_snapshot
def test_saving_and_loading_changes_no_column(name, tmp_path):
    import neutracer

    snap = snapshot(name)
    snap.save(tmp_path / "again.pickle.gz")
    again = neutracer.load(tmp_path / "again.pickle.gz")
    for table in ("segments", "blocks", "annotations"):
        assert getattr(again, table).to_dict().keys() == getattr(snap, table).to_dict().keys()
    for table in ("segments", "blocks", "annotations", "events"):
        ours, theirs = getattr(again, table), getattr(snap, table)
        assert len(ours) == len(theirs)
        for column in ours.columns:
            if column != "stack":
                assert list(ours[column]) == list(theirs[column]), (table, column)
        if "stack" in ours.columns:
            assert [row.stack for row in ours] == [row.stack for row in theirs]
    assert dict(again.settings) == dict(snap.settings)


# What PyTorch printed step by step while it recorded.


def printed(name: str) -> list[tuple[int | None, int | None]]:
    """(allocated, reserved) after each step, as far as the program wrote them down."""
    steps = expected(name).get("series", [])
    pairs = [
        (step, None) if isinstance(step, int) else (step.get("alloc"), step.get("reserved"))
        for step in steps
    ]
    return [pair for pair in pairs if pair != (None, None)]


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
    steps = [step for step in expected(name)["series"] if isinstance(step, dict)]
    assert all(step["peak"] <= largest for step in steps if "peak" in step)
