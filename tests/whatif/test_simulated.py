# SPDX-License-Identifier: Apache-2.0
"""Outcomes as snapshots, what leaves no trace, and the rules of a version of torch."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest
from bundle import snapshot
from places import TESTS

import neutracer
from neutracer.picture.extra import source_name
from neutracer.whatif.replaying import Outcome, Replayer
from neutracer.whatif.settings import version_number
from neutracer.whatif.what_if import candidates, check_replay

PROGRAMS = TESTS / "data" / "programs"
EXPANDABLE = "expandable_segments:True"


def recorded(name: str) -> neutracer.Snapshot:
    return neutracer.load(lzma.decompress((PROGRAMS / f"{name}.snapshot.xz").read_bytes()))


@pytest.mark.parametrize(
    "name", ["frag_default", "multi_stream", "cuda_graph_pool", "whatif/0/mixed_streams"]
)
@pytest.mark.parametrize("settings", ["", EXPANDABLE, "max_split_size_mb:64"])
def test_outcome_is_a_snapshot_too(name: str, settings: str) -> None:
    outcome = neutracer.what_if(snapshot(name), settings)[settings]
    simulated = outcome.snapshot()
    stats, timeline = simulated.memory_stats(), simulated.timeline()
    assert timeline.peak("reserved").bytes == outcome.peak_reserved_bytes
    assert stats["reserved_bytes.all.current"] == outcome.reserved_bytes
    assert stats["allocated_bytes.all.current"] == outcome.allocated_bytes
    if not any(simulated.segments["is_expandable"]):
        assert len(simulated.segments) == outcome.segments
    assert simulated.settings_in_force["text"] == settings
    assert check_replay(simulated).check.is_exact


def test_simulated_blocks_keep_their_stacks() -> None:
    snap = snapshot("frag_default")
    simulated = neutracer.what_if(snap, EXPANDABLE)[EXPANDABLE].snapshot()
    stacks = {row.stack for row in snap.blocks if row.state == "active_allocated"}
    found = {row.stack for row in simulated.blocks if row.state == "active_allocated"}
    assert stacks
    assert stacks <= found


def test_changed_program_has_its_own_snapshot() -> None:
    plan = neutracer.what_if(snapshot("cycle_nodes"), no_cycles=["train.py:95"])
    assert plan[""].snapshot().timeline().peak("reserved").bytes == 2 << 20
    assert plan[""].recorded.timeline().peak("reserved").bytes == 80 << 20


def test_snapshot_survives_being_saved(tmp_path: Path) -> None:
    outcome = neutracer.what_if(snapshot("frag_default"), EXPANDABLE)[EXPANDABLE]
    simulated = outcome.snapshot()
    simulated.save(tmp_path / "simulated.pickle")
    again = neutracer.load(tmp_path / "simulated.pickle")
    assert again.memory_stats() == simulated.memory_stats()
    assert list(again.events["addr"]) == list(simulated.events["addr"])


def test_outcome_alone_has_no_snapshot() -> None:
    alone = Outcome("", 0, 0, 0, 0, 0, 0, 0, 0, 0)
    with pytest.raises(ValueError, match="without its recording"):
        alone.snapshot()
    with pytest.raises(ValueError, match="without its recording"):
        _ = alone.recorded


def test_outcome_is_drawn_beside_its_recording() -> None:
    pytest.importorskip("matplotlib")
    outcome = neutracer.what_if(snapshot("frag_default"), EXPANDABLE)[EXPANDABLE]
    figure = neutracer.mdtp(outcome)
    assert [axes.get_label() for axes in figure.axes].count("map") == 2
    texts = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    texts += " ".join(axes.get_title(loc="left") + axes.get_title() for axes in figure.axes)
    texts += " ".join(text.get_text() for text in figure.texts)
    assert "recorded: default settings" in texts
    assert EXPANDABLE in texts


def test_page_of_outcome_names_its_settings(tmp_path: Path) -> None:
    outcome = neutracer.what_if(snapshot("frag_default"), EXPANDABLE)[EXPANDABLE]
    page = neutracer.view(outcome, tmp_path / "page.html").read_text()
    assert f"What if: {EXPANDABLE}" in page


def test_pictures_of_a_changed_program_say_what_was_changed(tmp_path: Path) -> None:
    plan = neutracer.what_if(snapshot("frag_default"), EXPANDABLE, batch=2)
    assert source_name(plan[""]) == "batch x 2: default settings"
    assert source_name(plan[EXPANDABLE]) == f"batch x 2: {EXPANDABLE}"
    page = neutracer.view(plan[EXPANDABLE], tmp_path / "page.html").read_text()
    assert f"What if: batch x 2: {EXPANDABLE}" in page


def test_silent_calls_are_a_cause() -> None:
    plan = neutracer.what_if(recorded("58-0"), EXPANDABLE)
    assert "silent" in plan[EXPANDABLE].causes
    assert "silent" not in plan.recorded.causes
    assert "left no trace" in str(plan)


def test_pools_put_back_are_a_cause() -> None:
    snap = recorded("57-7")
    plan = neutracer.what_if(snap, "max_split_size_mb:64")
    assert "restored" in plan["max_split_size_mb:64"].causes
    assert "restored" not in plan.recorded.causes
    # What is put back is served without a segment of its own, as when it was recorded.
    again = neutracer.what_if(snap, plan.recorded.settings).outcomes[-1]
    assert again.range("segments") == plan.recorded.range("segments")


def test_programs_that_never_call_have_none() -> None:
    plan = neutracer.what_if(snapshot("train_resnet_healthy"), EXPANDABLE)
    assert plan[EXPANDABLE].causes == ()


def test_large_segments_are_tried_where_known() -> None:
    snap = snapshot("frag_default")
    for version, is_known in (("2.9", False), ("2.10", True), (None, True)):
        tried = candidates(Replayer(snap, 0, torch_version=version))
        assert any("large_segment_size_mb" in each for each in tried) == is_known


def test_versions_of_torch_are_read() -> None:
    assert version_number("2.11.0+cu130") == 2011
    assert version_number("2.9") == 2009
    assert version_number(None) == 0
    for text in ("", "newest", "2", "2.x", "2.1111"):
        with pytest.raises(ValueError, match=r"2\.11"):
            version_number(text)


def test_version_decides_about_private_pools() -> None:
    snap = snapshot("cuda_graph_pool")
    newer, older = (
        neutracer.what_if(snap, EXPANDABLE, torch_version=version)[EXPANDABLE].segments
        for version in ("2.11", "2.4")
    )
    assert newer == 0 < older


def test_traces_without_stacks_are_simulated() -> None:
    data = snapshot("frag_default").to_dict()
    for event in data["device_traces"][0]:
        del event["frames"]
    outcome = neutracer.what_if(neutracer.load(pickle.dumps(data, 4)), EXPANDABLE)[EXPANDABLE]
    simulated = outcome.snapshot()
    assert simulated.timeline().peak("reserved").bytes == outcome.peak_reserved_bytes
    assert not any(row.stack for row in simulated.blocks)
