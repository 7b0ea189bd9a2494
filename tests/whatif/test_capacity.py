# SPDX-License-Identifier: Apache-2.0
"""A share of a device, a smaller device and what others hold: three limits, told apart."""

from __future__ import annotations

import json
import lzma
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA, expected, snapshot
from oom_snapshots import Recording
from small_snapshots import one_program

import neutracer
from neutracer.cli.main import main
from neutracer.trace.beside import DeviceRoom
from neutracer.whatif.replaying import Replayer

MIB = 1 << 20
TOTAL = 150_109_880_320
COLLECTING = "garbage_collection_threshold:0.6"

SETTINGS = [expected(f"whatif/{number}/frag_default")["conf"] for number in range(9)]

#: Our figures, and PyTorch's names of them.
FIGURES = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "reserved_bytes": "reserved_bytes.all.current",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
    "ooms": "num_ooms",
}

Capture = pytest.CaptureFixture[str]


def with_sidecar(folder: Path, name: str, **device: Any) -> str:
    """A copy of a recording with a sidecar that says this of its device."""
    path = folder / "copy.pickle.xz"
    shutil.copy(next(DATA.glob(f"{name}.pickle.xz")), path)
    said = {"schema": "neutracer.sidecar/1", "devices": {"0": device}}
    (folder / "copy.pickle.json").write_text(json.dumps(said))
    return str(path)


def notes(report: neutracer.reports.WhatIfReport) -> str:
    return "\n".join(report.notes)


@pytest.mark.parametrize("program", ["frag_default", "dyn_transformer_capped"])
@pytest.mark.parametrize("number", [0, 5, 6, 7])
def test_a_share_does_what_pytorch_did_under_it(program: str, number: int) -> None:
    cap = expected(f"whatif/0/{program}")["cap_mib"] * MIB
    snap = snapshot(f"whatif/{number}/{program}")
    plan = neutracer.what_if(snap, *SETTINGS, capacity=TOTAL, fraction=cap / TOTAL)
    assert plan.capacity_bytes == cap
    for under, settings in enumerate(SETTINGS):
        stats, outcome = expected(f"whatif/{under}/{program}")["stats"], plan[settings]
        for figure, name in FIGURES.items():
            low, high = outcome.range(figure)
            assert low <= stats[name] <= (stats[name] if high is None else high), figure
            # Garbage collection is no guess.
            if program == "frag_default" and "garbage" in settings:
                assert getattr(outcome, figure) == stats[name], figure


def test_garbage_is_collected_under_a_share_only() -> None:
    snap = snapshot("train_resnet_healthy")
    plain = neutracer.what_if(snap, COLLECTING, capacity="2GiB")
    share = neutracer.what_if(snap, COLLECTING, capacity="4GiB", fraction=0.5)
    assert plain.capacity_bytes == share.capacity_bytes == 2048 * MIB
    assert plain[COLLECTING].device_frees == plain[""].device_frees
    assert share[COLLECTING].device_frees > share[""].device_frees
    assert share[COLLECTING].peak_reserved_bytes < share[""].peak_reserved_bytes
    assert "set_per_process_memory_fraction(0.5) on a device of 4,096 MiB" in notes(share)
    assert notes(plain).count("fraction") == 0


def test_a_device_has_whole_pages() -> None:
    # A limit is held against what is asked for, before that is rounded up to pages of 20 MiB.
    replayer = Replayer(snapshot("whatif/7/frag_default"), 0)
    assert replayer.quick(None, 2094 * MIB, is_share=True).fits
    assert not replayer.quick(None, 2094 * MIB, is_share=False).fits


def test_a_whole_device_is_no_limit() -> None:
    snap = snapshot("train_resnet_healthy")
    whole = neutracer.what_if(snap, COLLECTING, capacity="2GiB", fraction=1)
    plain = neutracer.what_if(snap, COLLECTING, capacity="2GiB")
    assert whole[COLLECTING] == plain[COLLECTING]
    assert "sets no limit" in notes(whole)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan")])
def test_no_such_share(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must be"):
        neutracer.what_if(snapshot("frag_default"), capacity="2GiB", fraction=fraction)


def test_a_share_needs_its_device() -> None:
    for settings in ((), ("",)):
        with pytest.raises(ValueError, match=r"size of the device.*capacity="):
            neutracer.what_if(snapshot("frag_default"), *settings, fraction=0.5)
    with pytest.raises(TypeError, match="fraction must be a number"):
        neutracer.what_if(snapshot("frag_default"), fraction="half")  # type: ignore[arg-type]


def test_the_sidecar_tells_the_device(tmp_path: Path) -> None:
    path = with_sidecar(tmp_path, "frag_default", total_bytes=TOTAL, process_fraction=1.0)
    asked = neutracer.what_if(path, "", fraction=(2048 * MIB) / TOTAL)
    assert asked.capacity_bytes == 2048 * MIB
    assert asked.recorded.ooms == 1


def test_the_sidecar_has_the_limit(tmp_path: Path) -> None:
    share = (2048 * MIB) / TOTAL
    path = with_sidecar(tmp_path, "frag_default", total_bytes=TOTAL, process_fraction=share)
    told, guessed = (neutracer.what_if(one, "") for one in (path, snapshot("frag_default")))
    assert "PyTorch limited this process (set_per_process_memory_fraction)" in notes(told)
    assert "judging by its failures" in notes(guessed)
    assert told.capacity_bytes is None
    assert told.recorded.peak_reserved_bytes == guessed.recorded.peak_reserved_bytes
    assert not any("limit" in outcome.causes for outcome in (told.recorded, *told.outcomes))


def test_a_limit_that_the_trace_refutes_is_no_limit(tmp_path: Path) -> None:
    path = with_sidecar(tmp_path, "frag_default", total_bytes=TOTAL, process_fraction=0.001)
    assert notes(neutracer.what_if(path, "")) == notes(
        neutracer.what_if(snapshot("frag_default"), "")
    )


@pytest.mark.parametrize(
    "device",
    [
        {},
        {"total_bytes": True},
        {"total_bytes": -1},
        {"total_bytes": "8"},
        {"total_bytes": 1 << 70},
    ],
)
def test_a_sidecar_without_a_size_is_ignored(tmp_path: Path, device: dict[str, Any]) -> None:
    path = with_sidecar(tmp_path, "frag_default", **device)
    with pytest.raises(ValueError, match="size of the device"):
        neutracer.what_if(path, "", fraction=0.5)


def test_a_full_device_is_noted() -> None:
    data = DATA / "programs" / "900-0.snapshot.xz"
    snap = neutracer.load(lzma.decompress(data.read_bytes()))
    alone = neutracer.what_if(snap, "")
    assert "The device was full, and PyTorch set no limit" in notes(alone)
    room = DeviceRoom(TOTAL, 1.0, None)
    told = Replayer(snap, 0, room=room).notes()
    assert any("other processes, CUDA contexts" in note for note in told)


def test_no_limit_of_pytorchs_is_believed_of_a_file_that_says_there_was_none() -> None:
    data = DATA / "programs" / "902-9.snapshot.xz"
    snap = neutracer.load(lzma.decompress(data.read_bytes()))
    assert Replayer(snap, 0).is_capped
    assert not Replayer(snap, 0, room=DeviceRoom(TOTAL, 1.0, None)).is_capped


def test_smallest_memory_does_in_both_ways() -> None:
    report = neutracer.what_if(snapshot("whatif/7/frag_default"))
    own = report.recorded_capacity_bytes
    assert own is not None
    total = 4 * own
    card = neutracer.what_if(snapshot("whatif/7/frag_default"), "", capacity=own)
    share = neutracer.what_if(
        snapshot("whatif/7/frag_default"), capacity=total, fraction=(own + 0.5) / total
    )
    assert card.recorded.fits
    assert share.recorded.fits
    assert share.capacity_bytes == own


def test_a_limit_is_asked_about_on_a_device_that_holds_it() -> None:
    recording = Recording()
    for _ in range(8):
        recording.own(20)
    recording.oom(20, device_free=0)
    replayer = Replayer(neutracer.load(recording.dumped()), 0)
    assert replayer.facts["is_device"]
    for settings in ("", "expandable_segments:True"):
        for is_share in (False, True):
            assert replayer.quick(settings, 200 * MIB, is_share=is_share).fits
            assert not replayer.quick(settings, 170 * MIB, is_share=is_share).fits


WAYS: list[dict[str, int]] = [
    {},
    {"order": 1, "seed": 1},
    {"order": 1, "seed": 2},
    {"order": 3},
    {"begin": 3},
    {"timing": 3, "seed": 1},
    {"timing": 3, "seed": 2},
]
ASKED = ["", "expandable_segments:True", COLLECTING, "per_process_memory_fraction:0.5"]


@pytest.mark.parametrize("name", ["frag_default", "multi_stream", "whatif/7/frag_default"])
@pytest.mark.parametrize("settings", ASKED)
def test_a_run_stands_only_for_those_that_go_its_way(name: str, settings: str) -> None:
    snap = snapshot(name)
    shared, chance = Replayer(snap, 0), random.Random(name + settings)
    peak = shared.quick("").peak_reserved_bytes
    for _ in range(60):
        nbytes = int(peak * chance.choice([0.7, 0.95, 0.99, 1, 1.01, 1.2, 2.5]))
        is_share, way = chance.choice([True, False]), chance.choice(WAYS)
        alone = Replayer(snap, 0).quick(settings, nbytes, is_share=is_share, **way)
        assert shared.quick(settings, nbytes, is_share=is_share, **way) == alone
    made = sum(len(runs) for runs in shared._made.values())
    assert made < 60


def test_recommend_takes_a_share() -> None:
    snap = snapshot("train_resnet_healthy")
    report = neutracer.what_if(snap, capacity="4GiB", fraction=0.4, objective="reserved")
    assert report.capacity_bytes == int(0.4 * (4 << 30))
    # What collects garbage is tried where it does something.
    assert report.tried > neutracer.what_if(snap, objective="reserved").tried


def test_settings_that_are_not_stated_are_told() -> None:
    plain = one_program()
    plain.pop("allocator_settings", None)
    report = neutracer.what_if(pickle.dumps(plain), "")
    assert "Settings not recorded; the default is assumed" in notes(report)
    assert "Settings not recorded" not in notes(neutracer.what_if(snapshot("frag_default"), ""))


def test_settings_are_inferred_from_what_expands() -> None:
    stated = snapshot("whatif/7/frag_default")
    plain = stated.to_dict()
    plain["allocator_settings"] = {}
    report = neutracer.what_if(pickle.dumps(plain), "")
    assert report.recorded.settings == "expandable_segments:True"
    assert report.fidelity == 1.0
    text = "the trace shows expandable_segments:True, with which the model reproduces it"
    assert text in notes(report)
    # What is on already is not advised.
    advised = neutracer.what_if(pickle.dumps(plain), objective="reserved").choices
    assert all(choice.settings != "expandable_segments:True" for choice in advised)


def test_command_takes_a_share(capsys: Capture) -> None:
    path = str(DATA / "frag_default.pickle")
    words = ["what-if", path, "--set", "", "--fraction", "0.5"]
    assert main(words) == 2
    assert "size of the device" in capsys.readouterr().err
    assert main([*words, "--capacity", "4GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity_bytes"] == 2 << 30
    assert main(["what-if", path, "--check", "--fraction", "0.5"]) == 2
    assert "--capacity or --fraction" in capsys.readouterr().err
