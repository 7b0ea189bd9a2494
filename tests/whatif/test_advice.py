# SPDX-License-Identifier: Apache-2.0
"""Advice of the reports with simulated bytes, held against what PyTorch really did."""

from __future__ import annotations

import lzma

import pytest
from bundle import DATA, expected, snapshot

import neutracer
from neutracer.fragmentation import report as fragmentation
from neutracer.fragmentation.report import Replayed
from neutracer.whatif.replaying import Replayer

RULE = "free ranges then serve any size"


def advice(name: str) -> list[str]:
    report = neutracer.fragmentation_report(snapshot(name))
    return [str(note) for finding in report.findings for note in finding.advice]


def test_advice_tells_the_bytes_of_a_real_run() -> None:
    peak = expected("whatif/7/frag_default")["stats"]["reserved_bytes.all.peak"] >> 20
    told = f"{peak:,} MiB instead of 2,028 (replayed; the model reproduces this file exactly)"
    assert any(note.endswith(told) for note in advice("frag_default"))
    assert not any(RULE in note for note in advice("frag_default"))


def test_advice_says_what_it_replaces() -> None:
    told = advice("whatif/5/frag_default")
    wanted = "expandable_segments:True instead of garbage_collection_threshold:0.6"
    assert any(f"try PYTORCH_CUDA_ALLOC_CONF={wanted}" in note for note in told)
    assert not any(" instead of g" in note for note in advice("frag_default"))


def test_nothing_is_advised_that_saves_nothing() -> None:
    for name in ("whatif/0/mixed_streams", "multi_stream", "leak_list"):
        assert not any("expandable" in note for note in advice(name)), name


def test_other_timings_make_a_range() -> None:
    replayed = Replayed(snapshot("whatif/0/mixed_streams"), 0)
    assert replayed.is_possible
    # The lowest of the range saves something, and the highest does not.
    assert replayed.at_peak() == ""


def program(name: str) -> neutracer.Snapshot:
    """A random program that once ran for real."""
    packed = (DATA / "programs" / f"{name}.snapshot.xz").read_bytes()
    return neutracer.load(lzma.decompress(packed))


def test_silent_calls_make_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    # It calls empty_cache(), and more calls than are seen may have found nothing.
    replayed = Replayed(program("35-0"), 0)
    assert replayed.at_peak() == (
        "1,462 to 1,542 MiB instead of 1,696 (replayed; the model reproduces this file exactly)"
    )
    # What the same program really had with expandable segments lies in it.
    truth = expected("programs/35-11")["stats"]["reserved_bytes.all.peak"] >> 20
    assert 1462 <= truth <= 1542
    # All, half and an eighth of the places are tried, and 1, 4 and 16 of them.
    assert len(replayed._runs) == 1 + 6
    monkeypatch.setattr(Replayer, "silent_places", None)
    told = Replayed(program("35-0"), 0).at_peak()
    assert told is not None
    assert told.startswith("1,542 MiB instead of 1,696")


def test_sizes_of_several_units_have_each_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = Replayed(snapshot("frag_default"), 0)
    told = {
        (9_000, 9_000): "9,000 MiB instead of 12 GiB (",
        (9_000, 10_240): "9,000 MiB to 10 GiB instead of 12 (",
        (10_240, 11_264): "10 to 11 GiB instead of 12 (",
        # What differs by a few hundred MiB does not read alike.
        (11_600, 11_600): "11.3 GiB instead of 12 (",
    }
    for (low, high), begin in told.items():
        assert replayed._saved([low << 20, high << 20], 12 << 30).startswith(begin)


def test_nothing_is_saved_of_nothing() -> None:
    # It gives all back at its end.
    replayed = Replayed(program("7-0"), 0)
    assert replayed.at_end() == ""
    assert replayed.at_peak() is not None


def test_long_traces_keep_the_rule_of_thumb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "_MOST_EVENTS", 1000)
    replayed = Replayed(snapshot("frag_default"), 0)
    assert replayed.at_peak() is None
    assert replayed.at_end() is None
    assert any(RULE in note for note in advice("frag_default"))


def test_unfaithful_replays_are_not_told() -> None:
    import pickle

    plain = snapshot("frag_default").to_dict()
    conf = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": 64 << 20}
    plain["allocator_settings"] = {**plain.get("allocator_settings", {}), **conf}
    assert Replayed(neutracer.load(pickle.dumps(plain)), 0).at_peak() is None


def test_what_is_on_is_not_replayed() -> None:
    replayed = Replayed(snapshot("whatif/7/frag_default"), 0)
    assert not replayed.is_possible
    assert replayed.at_peak() is None
