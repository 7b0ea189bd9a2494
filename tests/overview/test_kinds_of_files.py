# SPDX-License-Identifier: Apache-2.0
"""Files as people share them: a history without segments, one forward pass, segments without
a history, no settings, no requested sizes. What is said of each is true of it."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA

import neutracer
from neutracer.whatif.what_if import check_replay

NAME = "train_resnet_healthy"
# The first event of the first backward pass.
BACKWARD = 415


def decoded(name: str = NAME) -> dict[str, Any]:
    plain: dict[str, Any] = pickle.loads(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes()))
    return plain


def written(folder: Path, plain: dict[str, Any]) -> str:
    path = folder / "shared.pickle"
    path.write_bytes(pickle.dumps(plain, protocol=4))
    return str(path)


def _block(address: int, size: int, asked: int, state: str) -> dict[str, Any]:
    row = {"address": address, "size": size, "requested_size": asked, "state": state}
    return {**row, "frames": []}


def _hole(at: int, end: int) -> list[dict[str, Any]]:
    return [_block(at, end - at, 0, "inactive")] if end > at else []


def forward_alone() -> dict[str, Any]:
    """The recording as it would have been written after its first forward pass."""
    plain = decoded()
    layout = neutracer.load(DATA / f"{NAME}.pickle.xz").timeline().at(BACKWARD - 1)
    blocks = sorted(layout.blocks, key=lambda block: block.address)
    segments = []
    for segment in layout.segments:
        end = segment.address + segment.total_size
        inside = [block for block in blocks if segment.address <= block.address < end]
        rows, at = [], segment.address
        for block in inside:
            rows += _hole(at, block.address)
            asked = block.requested_size if block.state != "inactive" else 0
            rows.append(_block(block.address, block.size, asked, block.state))
            at = block.address + block.size
        rows += _hole(at, end)
        live = [row for row in rows if row["state"] != "inactive"]
        sums = {
            "allocated_size": sum(r["size"] for r in live if r["state"] == "active_allocated"),
            "active_size": sum(row["size"] for row in live),
            "requested_size": sum(row["requested_size"] for row in live),
        }
        segments.append(
            {
                **{"device": 0, "address": segment.address, "total_size": segment.total_size},
                **{"stream": segment.stream, "segment_pool_id": (0, 0), "is_expandable": False},
                **{"segment_type": "large" if segment.total_size > 2 << 20 else "small"},
                **{"frames": [], "blocks": rows, **sums},
            }
        )
    plain["segments"] = segments
    plain["device_traces"] = [plain["device_traces"][0][:BACKWARD]]
    plain["external_annotations"] = []
    return plain


def test_history_without_segments_is_told_as_that(tmp_path: Path) -> None:
    plain = {**decoded(), "segments": []}
    found = neutracer.report(written(tmp_path, plain))
    (flaw,) = neutracer.load(written(tmp_path, plain)).flaws
    assert flaw.kind == "segments_missing"
    assert flaw.bytes > 0
    page = str(found)
    assert "the file has a history but no segments" in page
    # Nobody knows what was there at the end, and it is not said to have been nothing.
    assert page.count("not known") == 3
    assert " 0.0 MiB" not in page
    assert found.devices[0].peak["allocated_bytes"] > 1 << 30
    assert not found.devices[0].end_known


def test_end_of_a_history_without_segments_is_no_fall(tmp_path: Path) -> None:
    plain = {**forward_alone(), "segments": []}
    trend = neutracer.leak_trend(written(tmp_path, plain))
    assert trend.verdict == "unknown"
    assert not trend.change_points
    steady = neutracer.leak_trend(written(tmp_path, {**decoded(), "segments": []}))
    assert [one.kind for one in steady.findings] == ["broken_file"]
    assert "Nothing grows." in str(steady)


def test_leak_in_a_history_without_segments_is_not_said_to_be_freed(tmp_path: Path) -> None:
    whole = decoded("leak_list")
    found = neutracer.leak_trend(written(tmp_path, {**whole, "segments": []}))
    assert found.verdict == "leak"
    assert (found.growth[0].count, found.growth[0].place.location) == (78, "train.py:120")
    freed = [line for line in str(found).splitlines() if "freed at" in line]
    assert freed == [
        line
        for line in str(neutracer.leak_trend(written(tmp_path, whole))).splitlines()
        if "freed at" in line
    ]
    assert "1 block freed at" in freed[0]


def test_nothing_is_said_of_the_end_of_a_history_without_segments(tmp_path: Path) -> None:
    whole = decoded()
    path = written(tmp_path, {**whole, "segments": []})
    shared, known = neutracer.load(path), neutracer.load(DATA / f"{NAME}.pickle.xz")
    found = neutracer.fragmentation_report(shared)
    assert (found.end_known, found.judged, found.severity) == (False, "not known", "unknown")
    assert [one.kind for one in found.findings] == ["broken_file"]
    assert "at the end are not known" in " ".join(str(found).split())
    assert "good" not in str(found)
    assert "0.0 MiB" not in str(found)
    with pytest.raises(neutracer.UnavailableError, match="lists no segments"):
        found.fits(512)
    with pytest.raises(ValueError, match="what is free at its end is not known"):
        neutracer.explain(shared, request="1GiB")
    assert neutracer.explain(shared, request="1MiB", event=2895).fits
    with pytest.raises(ValueError, match=r"shared\.pickle lists no segments"):
        neutracer.leak_trend([known, shared, known])
    told = neutracer.diff(neutracer.report(known).to_dict(), neutracer.report(shared).to_dict())
    assert (told.before_end_known, told.after_end_known) == (True, False)
    for before, after in ((known, shared), (shared, known)):
        changed = neutracer.diff(before, after)
        ends = changed.before_end_known, changed.after_end_known
        assert ends == (before is known, after is known)
        assert changed.by_stack == changed.by_line == changed.by_category == changed.by_size == ()
        assert {one.kind for one in changed.findings} <= {"broken_file", "peak_grown"}
        lines = [line for line in str(changed).splitlines() if " at the end " in line]
        assert [line.split()[-1] for line in lines] == ["unknown", "unknown"]
        assert "every line holds as many" not in str(changed)


def one_allocation() -> list[dict[str, Any]]:
    """The trace of a block in a segment of its own, both of which go again."""
    frames = [{"filename": "train.py", "line": 7, "name": "step"}]
    return [
        {"action": action, "addr": 4096, "size": 1 << 21, "stream": 0, "frames": frames}
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free")
    ]


def test_history_that_freed_everything_needs_no_segments(tmp_path: Path) -> None:
    path = written(tmp_path, {"segments": [], "device_traces": [one_allocation()]})
    assert not neutracer.load(path).flaws
    assert "not known" not in str(neutracer.report(path))


def test_one_forward_pass_is_no_leak(tmp_path: Path) -> None:
    path = written(tmp_path, forward_alone())
    snap = neutracer.load(path)
    assert not snap.flaws
    assert neutracer.leak_trend(path).verdict == "unknown"
    found = neutracer.report(path)
    assert not found.findings
    assert (
        found.devices[0].memory_stats["allocated_bytes.all.current"]
        == (snap.timeline().allocated[-1])
    )
    assert neutracer.what_if(path, "expandable_segments:True").fidelity == 1.0


def test_settings_that_are_not_stated_are_not_said_to_be_defaults(tmp_path: Path) -> None:
    plain = decoded()
    del plain["allocator_settings"]
    path = written(tmp_path, plain)
    found = neutracer.report(path)
    assert "settings not recorded" in str(found)
    assert "default settings" not in str(found)
    assert found.to_dict()["settings_recorded"] is False
    plan = neutracer.what_if(path, "expandable_segments:True")
    assert "the default is assumed, with which the model reproduces it" in str(plan)
    for told in (plan, check_replay(path), neutracer.what_if(path)):
        assert "settings not recorded" in str(told)
        assert "default settings" not in str(told)
        assert told.to_dict()["settings_recorded"] is False
        assert str(pickle.loads(pickle.dumps(told))) == str(told)


def test_a_recommendation_of_nothing_names_no_settings_that_are_not_stated(tmp_path: Path) -> None:
    plain = {"segments": [], "device_traces": [one_allocation()]}
    stated = {**plain, "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}
    nothing = "no setting beats the program's own: "
    for file, words in ((plain, "settings not recorded"), (stated, "default settings")):
        (found,) = neutracer.what_if(written(tmp_path, file)).findings
        assert found.message == nothing + words


def test_settings_that_the_trace_shows_are_said_to_be_its(tmp_path: Path) -> None:
    name = DATA / "whatif" / "7" / "mixed_streams.pickle.xz"
    plain = pickle.loads(lzma.decompress(name.read_bytes()))
    plain.pop("allocator_settings", None)
    found = neutracer.report(written(tmp_path, plain))
    assert "expandable_segments:True, as its trace shows" in str(found)


def test_sizes_that_nobody_asked_for_are_not_compared(tmp_path: Path) -> None:
    plain = decoded()
    for segment in plain["segments"]:
        del segment["requested_size"]
        for block in segment["blocks"]:
            del block["requested_size"]
    plan = neutracer.what_if(written(tmp_path, plain), "expandable_segments:True")
    assert plan.fidelity == 1.0


def test_one_moment_has_no_peak_and_no_warmup(tmp_path: Path) -> None:
    path = written(tmp_path, {**decoded(), "device_traces": []})
    assert "peak" not in str(neutracer.report(path))
    trend = neutracer.leak_trend(path)
    assert trend.verdict == "unknown"
    assert "warm-up." not in trend.because
    assert trend.because == "Only 1 snapshot is there."


def test_picture_of_one_moment_has_no_peak(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = neutracer.mdtp(written(tmp_path, {**decoded(), "device_traces": []}))
    words = " ".join(text.get_text() for text in figure.texts)
    assert "allocated 365 MiB" in words
    assert "peak" not in words
