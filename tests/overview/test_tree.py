# SPDX-License-Identifier: Apache-2.0
"""The peak by caller, and the report that has it."""

from __future__ import annotations

import json
import pickle

import pytest
from bundle import DATA
from small_snapshots import dumped, two_devices

import neutracer
from neutracer.cli.main import main

FILES = ("frag_default.pickle", "train_resnet_healthy.pickle.xz", "leak_list.pickle.xz")


@pytest.mark.parametrize("name", FILES)
def test_branches_add_up(name: str) -> None:
    report = neutracer.report(DATA / name)
    tree = report.tree()
    assert tree.peak_bytes == report.devices[0].peak["allocated_bytes"]
    tops = [one for one in tree.branches if one.depth == 0]
    assert 0 <= tree.peak_bytes - sum(one.bytes for one in tops) < 0.1 * tree.peak_bytes
    above: list[int] = []
    rest: dict[int, int] = {}
    for number, one in enumerate(tree.branches):
        assert one.depth <= len(above)
        assert one.share == one.bytes / tree.peak_bytes >= 0.01
        del above[one.depth :]
        if above:
            rest[above[-1]] -= one.bytes
            assert rest[above[-1]] >= 0
        above.append(number)
        rest[number] = one.bytes


def test_frames_that_only_pass_on_are_left_out() -> None:
    tree = neutracer.report(DATA / "train_resnet_healthy.pickle.xz").tree()
    told = [(one.depth, one.function, one.package) for one in tree.branches[:4]]
    assert told == [
        (0, "train_resnet_healthy", ""),
        (1, "train", ""),
        (2, "forward", "torchvision"),
        (3, "_forward_impl", "torchvision"),
    ]
    assert "torch/nn" not in str(tree)


def test_command_shows_it_below_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(DATA / "frag_default.pickle")
    assert main(["report", "--tree", file]) == 0
    text = capsys.readouterr().out
    assert text.index("The bill") < text.index("Peak by caller")
    assert "│ frag (train.py:155)" in text
    assert main(["report", "--tree", "--json", file]) == 0
    plain = json.loads(capsys.readouterr().out)
    schemas = [one["schema"] for one in plain["reports"]]
    assert schemas == ["neutracer.report/1", "neutracer.peak_tree/1"]


def test_report_of_one_device() -> None:
    snap = neutracer.load(dumped(two_devices()))
    both, one = neutracer.report(snap), neutracer.report(snap, device=2)
    assert [entry.device for entry in both.devices] == [0, 2]
    assert [entry.device for entry in one.devices] == [2]
    assert one.tree().device == 2
    with pytest.raises(ValueError, match="devices"):
        both.tree()
    with pytest.raises(ValueError, match="device"):
        neutracer.report(snap, device=7)


def test_a_copy_has_no_snapshot() -> None:
    copied = pickle.loads(pickle.dumps(neutracer.report(DATA / FILES[0])))
    with pytest.raises(ValueError, match="no snapshot"):
        copied.tree()
