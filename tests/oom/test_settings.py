# SPDX-License-Identifier: Apache-2.0
"""The settings that `explain` replays, and `what_if`, speak of one and the same memory."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from bundle import DATA, snapshot
from oom_snapshots import full

import neutracer
from neutracer import OomFacts
from neutracer.oom.causes import _candidates
from neutracer.oom.facts import Budget
from neutracer.oom.trials import replayer_of
from neutracer.whatif.replaying import Replayer

MIB = 1 << 20
TOTAL = 80 << 30


def budget(
    limit: int | None = None,
    *,
    guess: bool = False,
    free: int = 0,
    total: int | None = None,
    asked: int | None = None,
) -> Budget:
    return Budget(2028 * MIB, free, limit, guess, total, None, None, asked)


def replayer(given: Budget, name: str = "frag_default") -> Replayer:
    snap = snapshot(name)
    return replayer_of(snap, snap.device(None), given)


@pytest.mark.parametrize("total", [None, TOTAL, 3000 * MIB])
def test_a_share_is_a_share(total: int | None) -> None:
    found = replayer(budget(2048 * MIB + 1, free=TOTAL, total=total))
    assert found.is_limited
    assert found.limits == (2048 * MIB + 1,)


def test_a_smaller_card_is_no_share() -> None:
    given = budget(free=20 * MIB, total=2048 * MIB, asked=2048 * MIB)
    found = replayer(given, "train_resnet_healthy")
    assert not found.is_limited
    assert found.limits == (2048 * MIB,)


def test_it_takes_the_place_of_the_recorded_share() -> None:
    given = budget(free=20 * MIB, total=3000 * MIB, asked=3000 * MIB)
    found, asked = replayer(given), Replayer(snapshot("frag_default"), 0, 2048 * MIB)
    assert (found.is_limited, found.limits) == (asked.is_limited, asked.limits)


def test_others_leave_less_than_the_card_has() -> None:
    found = replayer(budget(free=20 * MIB, total=TOTAL, asked=TOTAL), "train_resnet_healthy")
    assert not found.is_limited
    assert found.limits == (2048 * MIB,)


def test_a_full_device_is_no_share() -> None:
    found = replayer(budget(free=20 * MIB, total=TOTAL))
    assert not found.is_limited
    assert found.limits == (0,)


def test_a_limit_that_failures_show_is_a_share() -> None:
    found = replayer(budget(2048 * MIB, guess=True, free=TOTAL))
    assert found.is_limited
    assert found.limits[0] == 2048 * MIB
    assert len(found.limits) == 3


def test_only_a_share_makes_garbage_collection_act() -> None:
    def tried(given: Budget) -> bool:
        found = replayer(given, "train_resnet_healthy")
        kinds = _candidates(found.snap, found.is_limited)
        return any("garbage_collection" in text for kind in kinds for text in kind)

    assert tried(budget(2048 * MIB, free=TOTAL, total=TOTAL))
    assert not tried(budget(free=20 * MIB, total=TOTAL, asked=2048 * MIB))


def test_the_json_beside_a_file_tells_explain_what_it_tells_what_if(tmp_path: Path) -> None:
    path = tmp_path / "frag.pickle"
    path.write_bytes(_bytes("frag_default"))
    share = (2048 * MIB) / TOTAL
    said = {"total_bytes": TOTAL, "process_fraction": share, "other_bytes": 0}
    plain = {"schema": "neutracer.sidecar/1", "devices": {"0": said}}
    path.with_name("frag.pickle.json").write_text(json.dumps(plain))
    why = neutracer.explain(path)
    assert (why.limit_bytes, why.limit_is_guess) == (2048 * MIB, False)
    assert why.capacity_bytes == TOTAL
    assert "PyTorch limited this process" in " ".join(neutracer.what_if(path, "").notes)
    assert neutracer.explain(neutracer.load(path)).to_dict() == why.to_dict()
    guessed = neutracer.explain(_bytes("frag_default"))
    assert (guessed.limit_bytes, guessed.limit_is_guess) == (2048 * MIB, True)


def test_no_share_beside_a_file_is_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "full.pickle"
    recording = full()
    recording.oom(300, device_free=100)
    path.write_bytes(recording.dumped())
    said = {"total_bytes": 24 << 30, "process_fraction": 1.0}
    plain = {"schema": "neutracer.sidecar/1", "devices": {"0": said}}
    path.with_name("full.pickle.json").write_text(json.dumps(plain))
    why = neutracer.explain(path)
    assert why.limit_bytes is None
    assert why.capacity_bytes == 24 << 30


def test_facts_of_the_failure_come_before_the_device() -> None:
    recording = full()
    recording.oom(300, device_free=1000)
    facts = OomFacts(device_total_bytes=1 << 30, limit_bytes=400 * MIB)
    why = neutracer.explain(recording.dumped(), facts=facts)
    assert (why.limit_bytes, why.capacity_bytes) == (400 * MIB, 1 << 30)


def _bytes(name: str) -> bytes:
    plain = DATA / f"{name}.pickle"
    return plain.read_bytes() if plain.is_file() else lzma.decompress(_packed(name))


def _packed(name: str) -> bytes:
    return (DATA / f"{name}.pickle.xz").read_bytes()
