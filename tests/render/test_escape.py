# SPDX-License-Identifier: Apache-2.0
"""What data may show: nothing invisible, nothing that moves, nothing too wide."""

from __future__ import annotations

import pytest
from hostile_names import HOSTILE_NAMES
from hypothesis import given
from hypothesis import strategies as st

from neutracer.render.document import (
    clean,
    display_width,
    pad,
    sentence,
    shorten_left,
    shorten_right,
    wrap,
)

# Everything, with unpaired surrogates and what is wide, stacked or turned around.
ANY_TEXT = st.text(st.characters()) | st.text("a \u0301数\u202e\ud83d\x1b\n/")


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_become_one_printable_line(name: str) -> None:
    text = clean(name)
    assert text.isprintable()
    assert text.encode("utf-8").decode("utf-8") == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a\x1b[31m", r"a\x1b[31m"),
        ("a\u202eb", r"a\u202eb"),
        ("a\nb\tc", r"a\nb\tc"),
        ("a\ud83db", r"a\ud83db"),
        ("a\U000e0041", r"a\U000e0041"),
        ("a\x9b", r"a\x9b"),
        ("z" + "\u0301" * 6, "z" + "\u0301" * 4 + r"\u0301\u0301"),
        ("naïve 数据 café", "naïve 数据 café"),
        ("C:\\new\\x.py", "C:\\new\\x.py"),
    ],
)
def test_only_what_is_invisible_is_spelt_out(name: str, text: str) -> None:
    assert clean(name) == text


@given(ANY_TEXT)
def test_cleaning_twice_changes_nothing(name: str) -> None:
    assert clean(clean(name)) == clean(name)
    assert clean(name).isprintable()


def test_width_counts_columns_not_characters() -> None:
    assert display_width("train.py") == 8
    assert display_width("数据") == 4
    assert display_width("e\u0301") == 1
    assert pad("数", 4) == "数  "


@given(ANY_TEXT, st.integers(1, 60))
def test_shortened_texts_fit_their_width(name: str, width: int) -> None:
    text = clean(name)
    for shorten in (shorten_right, shorten_left, sentence):
        assert display_width(shorten(text, width)) <= width
    if display_width(text) <= width:
        assert shorten_right(text, width) == shorten_left(text, width) == text


def test_paths_lose_their_beginning_first() -> None:
    assert shorten_left("/usr/lib/python3/torch/nn/linear.py:134", 24) == "…/torch/nn/linear.py:134"
    assert shorten_left("a_file_without_any_folder.py:1", 12) == "…folder.py:1"
    assert shorten_right("a_very_long_function", 8) == "a_very_…"


@given(ANY_TEXT, st.integers(2, 40))
def test_wrapped_lines_fit_and_lose_nothing(name: str, width: int) -> None:
    text = clean(name)
    lines = wrap(text, width)
    assert lines
    assert all(display_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_wrapping_keeps_words_and_inner_spaces() -> None:
    assert wrap("more:  neutracer explain", 16) == ["more:  neutracer", "explain"]
    assert wrap("exactly ten", 7) == ["exactly", "ten"]
    assert wrap("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrap("", 4) == [""]


def test_long_words_break_behind_commas() -> None:
    assert wrap("set one:True,two:12", 13) == ["set", "one:True,", "two:12"]
    assert wrap("a,b,cdefgh", 4) == ["a,b,", "cdef", "gh"]
    assert wrap(",abcd", 3) == [",", "abc", "d"]
