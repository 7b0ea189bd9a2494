# SPDX-License-Identifier: Apache-2.0
"""The palette keeps its promises: readable, and told apart without hue."""

from __future__ import annotations

import itertools
import re
from dataclasses import astuple

import pytest
from colour_distance import EYES, ciede2000, distance

from neutracer.render.document import DARK, LIGHT, TERMINAL_STYLES, Palette, mixed

BOTH = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_ink_and_grey_are_as_designed() -> None:
    assert (LIGHT.ink, LIGHT.grey) == ("#22303c", "#5b6770")


@BOTH
def test_every_colour_is_spelt_in_full(palette: Palette) -> None:
    for value in astuple(palette):
        for colour in (value,) if isinstance(value, str) else value:
            assert re.fullmatch(r"#[0-9a-f]{6}", colour)


@BOTH
def test_text_is_readable_on_its_page(palette: Palette) -> None:
    for colour in (palette.ink, palette.grey, palette.sand_ink, palette.red):
        assert _contrast(colour, palette.page) >= 4.5
    for surface in (palette.red_fill, palette.surface):
        assert _contrast(palette.ink, surface) >= 7
        assert _contrast(palette.grey, surface) >= 4.5


@BOTH
def test_larger_blocks_are_darker(palette: Palette) -> None:
    scale = [_luminance(palette.blue(step / 20)) for step in range(21)]
    assert all(small > large for small, large in itertools.pairwise(scale))
    assert palette.blue(-1.0) == palette.allocated[0]
    assert palette.blue(2.0) == palette.allocated[-1]


@BOTH
def test_free_memory_is_told_from_blocks_without_hue(palette: Palette) -> None:
    middle = palette.blue(0.6)
    for one, other in itertools.combinations((palette.sand, palette.red, palette.page), 2):
        assert _contrast(one, other) >= 1.2
    assert _contrast(palette.sand, middle) >= 1.7
    assert _contrast(palette.red, palette.sand) >= 3.0


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        # Pairs that Sharma, Wu and Dalal (2005) publish to test an implementation.
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
    ],
)
def test_colour_distance_is_the_published(one, other, wanted) -> None:
    assert ciede2000(one, other) == pytest.approx(wanted, abs=1e-4)


@BOTH
@pytest.mark.parametrize("eye", EYES)
def test_groups_are_told_apart_by_every_eye(palette: Palette, eye: str) -> None:
    others = (mixed(palette.line, palette.grey), palette.sand, palette.page)
    for one, other in itertools.combinations((*palette.groups, *others), 2):
        if one in palette.groups:
            assert distance(one, other, eye) > 10, (one, other)
    for one, other in itertools.pairwise((*palette.groups, palette.groups[0])):
        assert distance(one, other, eye) > 20, (one, other)


def test_every_role_of_text_has_a_style() -> None:
    assert set(TERMINAL_STYLES) == {"strong", "muted", "info", "moderate", "serious", "severe"}
