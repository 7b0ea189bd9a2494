# SPDX-License-Identifier: Apache-2.0
"""Sizes, durations, counts and shares read as in the design, and read back."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from durations import parse_duration
from hypothesis import given
from hypothesis import strategies as st

from neutracer import units

MIB = 1 << 20
SIZES = st.integers(0, 1 << 60)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1 MiB"),
        (37_539_021, "35.8 MiB"),
        (2028 * MIB, "2,028 MiB"),
        (9_999 * MIB, "9,999 MiB"),
        (9_999 * MIB + 900_000, "9.77 GiB"),
        (10_000 * MIB, "9.77 GiB"),
        (149_035_155_456, "139 GiB"),
        (1 << 40, "1 TiB"),
        (5000 << 40, "5,000 TiB"),
        (-3 * MIB, "-3 MiB"),
    ],
)
def test_sizes_choose_their_own_unit(nbytes: int, text: str) -> None:
    assert units.format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "unit", "decimals", "text"),
    [
        (406 * MIB, "MiB", 1, "406.0 MiB"),
        (2028 * MIB, "MiB", 1, "2,028.0 MiB"),
        (9_999 * MIB, "MiB", 1, "9,999.0 MiB"),
        (10_240 * MIB, "MiB", 1, "10.0 GiB"),
        (1 << 20, "B", None, "1,048,576 B"),
        (1 << 20, "GiB", None, "0.00 GiB"),
        (149_035_155_456, "GiB", 1, "138.8 GiB"),
        (1 << 42, "KiB", 0, "4,294,967,296 KiB"),
        (3 * MIB // 2, "MiB", 0, "2 MiB"),
    ],
)
def test_sizes_keep_the_unit_asked_for(
    nbytes: int, unit: str, decimals: int | None, text: str
) -> None:
    assert units.format_bytes(nbytes, unit, decimals=decimals) == text


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown unit 'MB': use one of B, KiB"):
        units.format_bytes(1, "MB")


@given(SIZES)
def test_written_sizes_read_back_within_rounding(nbytes: int) -> None:
    text = units.format_bytes(nbytes)
    number, unit = text.split(" ")
    digits = len(number.partition(".")[2])
    step = Fraction(units.BYTE_UNITS[unit], 10**digits)
    assert abs(units.parse_bytes(text) - nbytes) <= step / 2 + Fraction(1, 2)


@given(SIZES)
def test_sizes_in_bytes_read_back_exactly(nbytes: int) -> None:
    assert units.parse_bytes(units.format_bytes(nbytes, "B")) == nbytes
    assert units.parse_bytes(str(nbytes)) == units.parse_bytes(nbytes) == nbytes


@given(st.integers(0, 1023), st.sampled_from(sorted(units.BYTE_UNITS)))
def test_whole_units_read_back_exactly(count: int, unit: str) -> None:
    size = count * units.BYTE_UNITS[unit]
    assert units.parse_bytes(units.format_bytes(size, unit)) == size
    assert units.parse_bytes(units.format_bytes(size)) == size


@given(SIZES, SIZES)
def test_a_range_says_what_its_ends_say(low: int, high: int) -> None:
    least, most = (units.format_bytes(nbytes) for nbytes in (low, high))
    written = units.format_span(low, high).split(" to ")
    assert written[1] == most
    if least.split(" ")[1] == most.split(" ")[1]:
        assert written[0] == least.split(" ")[0]
    else:
        assert written[0] == least


def test_sizes_may_be_integers_of_another_kind() -> None:
    class Whole:
        def __index__(self) -> int:
            return 5

    assert units.parse_bytes(Whole()) == 5  # type: ignore[arg-type]

    class Array:
        def __index__(self) -> int:
            raise TypeError("only integer scalar arrays can be converted to a scalar index")

    for wrong in (True, int, 1.5, None, Array()):
        with pytest.raises(TypeError, match="a size must be an int of bytes or a text"):
            units.parse_bytes(wrong)  # type: ignore[arg-type]


@given(SIZES)
def test_written_sizes_have_three_digits(nbytes: int) -> None:
    number, unit = units.format_bytes(nbytes).split(" ")
    value = Fraction(nbytes, units.BYTE_UNITS[unit])
    if value.denominator != 1 and 1 <= value < 999:
        assert len(number.replace(".", "")) == 3
    assert re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d{1,2})?", number)


@given(SIZES, SIZES)
def test_written_sizes_keep_their_order(one: int, other: int) -> None:
    small, large = sorted((one, other))
    written = units.parse_bytes(units.format_bytes(small))
    assert written <= units.parse_bytes(units.format_bytes(large))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 << 30),
        ("24 gib", 24 << 30),
        (" 24G ", 24 << 30),
        ("24GB", 24_000_000_000),
        ("1.5k", 1536),
        ("1kB", 1000),
        ("2,028.0 MiB", 2028 * MIB),
        ("0.5 B", 0),
        ("7", 7),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_are_read_in_common_spellings(text: str, nbytes: int) -> None:
    assert units.parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "24 GiBs",
        "-1",
        "1e9",
        "1.2.3",
        ",5",
        "1,5 GiB",
        "1,,000",
        "1,0000",
        ".",
        "٣ MiB",
        "9" * 40,
        "nan",
        "1 Gi",
        "0x10",
    ],
)
def test_texts_that_are_no_size_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        units.parse_bytes(text)


def test_negative_bytes_are_no_size() -> None:
    with pytest.raises(ValueError, match="not negative"):
        units.parse_bytes(-1)


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        (0, "0 us"),
        (12, "12 us"),
        (1_500, "1.50 ms"),
        (70_000, "70 ms"),
        (999_999, "1.00 s"),
        (4_210_000, "4.21 s"),
        (59_999_000, "1 min"),
        (200_000_000, "3 min 20 s"),
        (3_600_000_000, "1 h"),
        (3_599_900_000, "1 h"),
        (7_500_000_000, "2 h 5 min"),
        (100 * 3_600_000_000, "4 d 4 h"),
        (0.5, "0.50 us"),
    ],
)
def test_durations_read_as_people_say(duration_us: float, text: str) -> None:
    assert units.format_duration_us(duration_us) == text


@pytest.mark.parametrize("duration_us", [-1, float("nan"), float("inf")])
def test_impossible_durations_are_refused(duration_us: float) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        units.format_duration_us(duration_us)


@given(st.integers(0, 10**15))
def test_written_durations_read_back_within_rounding(duration_us: int) -> None:
    read = parse_duration(units.format_duration_us(duration_us))
    # Three digits below a minute; above it, the smaller of the two units written.
    smaller = {60: 0, 3_600: 1, 86_400: 60}
    seconds = next((s for limit, s in smaller.items() if duration_us < limit * 10**6), 3_600)
    assert abs(read - duration_us) <= (seconds * 500_000 or duration_us / 200 + 0.5)


@given(st.integers(0, 999), st.sampled_from(["us", "ms"]))
def test_whole_durations_read_back_exactly(count: int, unit: str) -> None:
    duration_us = parse_duration(f"{count} {unit}")
    assert parse_duration(units.format_duration_us(duration_us)) == duration_us


def test_counts_agree_with_their_noun() -> None:
    assert units.format_count(2_375) == "2,375"
    assert units.format_count(2_375, "event") == "2,375 events"
    assert units.format_count(1, "retry", "retries") == "1 retry"
    assert units.format_count(0, "retry", "retries") == "0 retries"


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0 %"),
        (0.248, "24.8 %"),
        (1.0, "100.0 %"),
        (0.00001, "<0.1 %"),
        (0.99999, ">99.9 %"),
        (-0.25, "-25.0 %"),
        (2.5, "250.0 %"),
    ],
)
def test_shares_never_round_to_all_or_nothing(share: float, text: str) -> None:
    assert units.format_share(share) == text


def test_shares_take_their_number_of_digits() -> None:
    assert units.format_share(0.807, decimals=0) == "81 %"


@pytest.mark.parametrize("share", [float("nan"), float("-inf")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="not a share"):
        units.format_share(share)


def test_size_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="not float"):
        units.parse_bytes(1.5)  # type: ignore[arg-type]
