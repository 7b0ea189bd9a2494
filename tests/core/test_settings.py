# SPDX-License-Identifier: Apache-2.0
"""parse_settings() and round_size(): the core's settings as Python sees them."""

from __future__ import annotations

import pytest

from neutracer import SettingsError, _core

MIB = 1 << 20


def test_defaults_are_those_of_pytorch():
    settings = _core.parse_settings("")
    assert settings["max_split_size"] is None
    assert settings["large_segment_size"] == 20 * MIB
    assert settings["garbage_collection_threshold"] == 0.0
    assert settings["expandable_segments"] is False
    assert settings["roundup_power2_divisions"] == (0,) * 16
    assert settings["native_backend"] is True
    assert settings["text"] == ""


def test_settings_come_back_as_text():
    text = "max_split_size_mb:64,expandable_segments:True"
    settings = _core.parse_settings(text)
    assert settings["max_split_size"] == 64 * MIB
    assert settings["expandable_segments"] is True
    assert _core.parse_settings(settings["text"]) == settings


def test_position_counts_characters_not_bytes():
    with pytest.raises(SettingsError) as plain:
        _core.parse_settings("e:1")
    with pytest.raises(SettingsError) as accented:
        _core.parse_settings("expandable_segments:True,\N{LATIN SMALL LETTER E WITH ACUTE}:1")
    assert plain.value.position == 0
    assert accented.value.position == 25
    with pytest.raises(SettingsError) as behind:
        _core.parse_settings("max_split_size_mb:\N{SNOWMAN}")
    assert behind.value.position == 18


def test_wrong_arguments_are_told_apart():
    with pytest.raises(TypeError):
        _core.parse_settings(b"")
    with pytest.raises(TypeError):
        _core.round_size("512")
    with pytest.raises(SettingsError):
        _core.round_size(512, "roundup_power2_divisions:3")


@pytest.mark.parametrize(
    ("nbytes", "settings", "rounded"),
    [
        (1, "", 512),
        (513, "", 1024),
        (1200 * MIB // 1024, "", 1200 * MIB // 1024),
        (1200, "roundup_power2_divisions:4", 1536),
        (5 * MIB + 1, "roundup_power2_divisions:4", 6 * MIB),
    ],
)
def test_requests_round_as_pytorch_does(nbytes, settings, rounded):
    assert _core.round_size(nbytes, settings) == rounded
