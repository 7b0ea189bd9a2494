# SPDX-License-Identifier: Apache-2.0
"""The exception tree is a promise: names, bases, attributes, messages."""

from __future__ import annotations

import pickle
import re

import pytest
from places import ROOT

from neutracer import errors


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("NeutracerError", (Exception,)),
        ("SnapshotError", (errors.NeutracerError, ValueError)),
        ("LimitError", (errors.SnapshotError,)),
        ("UnavailableError", (errors.NeutracerError, RuntimeError)),
        ("SettingsError", (errors.NeutracerError, ValueError)),
        ("TensorCycleWarning", (UserWarning,)),
        ("HistoryWarning", (UserWarning,)),
    ],
)
def test_every_kind_has_its_bases(name: str, bases: tuple[type, ...]) -> None:
    assert getattr(errors, name).__bases__ == bases
    assert name in errors.__all__


def test_no_other_names_are_public() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert public == set(errors.__all__)


@pytest.mark.parametrize("kind", [errors.SnapshotError, errors.LimitError])
def test_snapshot_error_tells_its_place(kind: type[errors.SnapshotError]) -> None:
    error = kind("opcode GLOBAL is refused", 12_345)
    assert (error.reason, error.offset) == ("opcode GLOBAL is refused", 12_345)
    assert str(error) == "opcode GLOBAL is refused (at byte 12,345)"
    assert str(kind("an empty file")) == "an empty file"
    assert kind("an empty file").offset is None


def test_unavailable_error_says_what_to_install() -> None:
    error = errors.UnavailableError("torch", "install it with 'pip install torch'")
    assert (error.what, error.install) == ("torch", "install it with 'pip install torch'")
    assert str(error) == "torch is not available: install it with 'pip install torch'"
    assert str(errors.UnavailableError("a CUDA device")) == "a CUDA device is not available"


def test_missing_package_is_asked_for_as_the_metadata_does() -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package, requirement in errors._RELEASES.items():
        assert re.search(rf'"{re.escape(requirement)}[";]', metadata), package
    error = errors.missing("matplotlib", "a picture")
    assert (error.what, error.install) == (
        "a picture",
        "install it with \"pip install 'matplotlib>=3.7'\"",
    )


def test_settings_error_tells_its_position() -> None:
    error = errors.SettingsError("unknown key 'max_split'", 7)
    assert (error.reason, error.position) == ("unknown key 'max_split'", 7)
    assert str(error) == "unknown key 'max_split' (at character 7)"
    assert str(errors.SettingsError("a key twice")) == "a key twice"


@pytest.mark.parametrize(
    "error",
    [
        errors.SnapshotError("a reason", 3),
        errors.LimitError("a limit", 4),
        errors.UnavailableError("NVML", "install the driver"),
        errors.SettingsError("a key", 5),
    ],
)
def test_errors_survive_a_process_border(error: errors.NeutracerError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
