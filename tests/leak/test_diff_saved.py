# SPDX-License-Identifier: Apache-2.0
"""diff() of two reports that were kept as JSON."""

from __future__ import annotations

import functools
import json
import operator
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle import snapshot
from small_snapshots import dumped, two_devices

import neutracer
from neutracer import SnapshotError

HEALTHY, LATE = "train_resnet_healthy", "train_resnet_late_zero_grad"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The JSON of two reports, as the command writes it."""
    folder = tmp_path_factory.mktemp("told")
    for name in (HEALTHY, LATE):
        plain = neutracer.report(snapshot(name)).to_dict()
        (folder / f"{name}.json").write_text(json.dumps(plain))
    return folder / f"{HEALTHY}.json", folder / f"{LATE}.json"


def test_totals_and_peaks_are_those_of_the_snapshots(files: tuple[Path, Path]) -> None:
    told = neutracer.diff(*files)
    truth = neutracer.diff(snapshot(HEALTHY), snapshot(LATE))
    for name in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes"):
        assert getattr(told, name) == getattr(truth, name)
    assert told.before_peak_reserved_bytes == truth.before_peak_reserved_bytes
    grown = [finding for finding in told.findings if finding.kind == "peak_grown"]
    assert [one.message for one in grown] == [
        one.message for one in truth.findings if one.kind == "peak_grown"
    ]
    places = {str(change.place) for change in told.at_peak}
    assert places == {str(change.place) for change in truth.at_peak}
    assert "In requested bytes" in str(told)
    assert "every line holds" not in str(told)


def test_plain_data_is_taken_too(files: tuple[Path, Path]) -> None:
    plain = [json.loads(path.read_text()) for path in files]
    assert neutracer.diff(*plain).to_dict() == neutracer.diff(*files).to_dict()


def test_two_of_a_kind_are_needed(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="pass two reports or two snapshots"):
        neutracer.diff(files[0], snapshot(LATE))


def test_devices_are_chosen() -> None:
    plain = neutracer.report(dumped(two_devices())).to_dict()
    with pytest.raises(ValueError, match="several devices"):
        neutracer.diff(plain, plain)
    assert neutracer.diff(plain, plain, device=2).device == 2
    with pytest.raises(ValueError, match="no device 1"):
        neutracer.diff(plain, plain, device=1)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"schema": "neutracer.diff/1"}, "not a report"),
        ({"schema": "neutracer.report/9"}, "another version"),
        ({"schema": "neutracer.report/1"}, "report is incomplete"),
        ({"schema": "neutracer.report/1", "devices": [{"device": 0}]}, "report is incomplete"),
        ({"schema": "neutracer.report/1", "devices": 7}, "report is incomplete"),
    ],
)
def test_other_json_is_refused(plain: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(SnapshotError, match=message):
        neutracer.diff(path, path)


WRONG = ("null", "true", '"text"', "[]", "{}", "-3", "2.5", "1e999", "NaN", "1" + 30 * "0")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to each value of a document that is no object of several."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from leaves(inner, (*path, key))


def test_values_of_wrong_types_are_refused_in_a_sentence(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, path = json.loads(files[0].read_text()), tmp_path / "wrong.json"
    device = plain["devices"][0]
    device["peak"]["holders"] = device["peak"]["holders"][:1]
    used = ("device", "events", "peak", "reserved_peak", "memory_stats", "end_known")
    plain = {"schema": plain["schema"], "devices": [{name: device[name] for name in used}]}
    refused: list[str] = []
    for keys in leaves(plain["devices"], ("devices",)):
        if keys[2:3] == ("memory_stats",) and not keys[-1].endswith("bytes.all.current"):
            continue
        owner = functools.reduce(operator.getitem, keys[:-1], plain)
        before, owner[keys[-1]] = owner[keys[-1]], "here"
        text = json.dumps(plain)
        owner[keys[-1]] = before
        for wrong in WRONG:
            path.write_text(text.replace('"here"', wrong))
            try:
                str(neutracer.diff(path, files[1]))
            except (SnapshotError, ValueError) as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert "\n" not in "".join(refused)


def test_damaged_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"schema": "neutracer.report/1", "devices": [')
    with pytest.raises(SnapshotError, match="not valid JSON"):
        neutracer.diff(path, path)


def test_command_takes_reports(files: tuple[Path, Path]) -> None:
    words = [sys.executable, "-m", "neutracer", "diff", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "the peak is 49.3 MiB higher" in done.stdout
    failed = subprocess.run([*words, "--fail-on", "moderate"], capture_output=True, timeout=60)
    assert failed.returncode == 1
