# SPDX-License-Identifier: Apache-2.0
"""Bytes, durations, counts and shares, written for people and read back.

Sizes are in binary units (1 MiB is 1024 * 1024 bytes), times in microseconds. Output has three
significant digits and thousands separators; arithmetic is exact, so nothing is rounded twice.

Example:
    >>> format_bytes(425_721_856)
    '406 MiB'
    >>> format_bytes(425_721_856, "MiB", decimals=1)
    '406.0 MiB'
    >>> parse_bytes("24GiB")
    25769803776
"""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction
from typing import Any

BYTE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

# MiB is the unit in which PyTorch programs are compared; it is kept below this many,
# so that the figures of one page stay in one unit.
_MOST_MIB = 10_000

_PARSED_UNITS: dict[str, int] = {
    **{name.lower(): factor for name, factor in BYTE_UNITS.items()},
    **{letter: 1 << (10 * (power + 1)) for power, letter in enumerate("kmgt")},
    **{letter + "b": 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    "": 1,
}

# A number with or without thousands separators, of bounded length.
_NUMBER = r"((?:[0-9]{1,3}(?:,[0-9]{3}){1,8}|[0-9]{1,31})(?:\.[0-9]{0,20})?)"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]{{0,3}})\s*", re.ASCII)

_DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def split_bytes(
    nbytes: int, unit: str | None = None, *, decimals: int | None = None
) -> tuple[str, str]:
    """The number and the unit of a size, apart, as `format_bytes` writes them."""
    sign = "-" if nbytes < 0 else ""
    size = abs(nbytes)
    if unit is None:
        unit = _fitting_unit(size, decimals)
    elif unit not in BYTE_UNITS:
        raise ValueError(f"unknown unit {unit!r}: use one of {', '.join(BYTE_UNITS)}")
    elif unit == "MiB" and size >= _MOST_MIB * BYTE_UNITS["MiB"]:
        unit = "GiB"
    return sign + _number(Fraction(size, BYTE_UNITS[unit]), decimals), unit


def format_bytes(nbytes: int, unit: str | None = None, *, decimals: int | None = None) -> str:
    """Write a size in binary units."""
    return " ".join(split_bytes(nbytes, unit, decimals=decimals))


def format_span(low: int, high: int, unit: str | None = None) -> str:
    """Write a range of sizes in bytes, with a shared unit once; arguments as for `format_bytes`.

    Example:
        >>> format_span(130 << 20, 762 << 20), format_span(9_900 << 20, 12 << 30)
        ('130 to 762 MiB', '9,900 MiB to 12 GiB')
    """
    least, least_unit = split_bytes(low, unit)
    most, most_unit = split_bytes(high, unit)
    return f"{least}{'' if least_unit == most_unit else ' ' + least_unit} to {most} {most_unit}"


def _fitting_unit(size: int, decimals: int | None) -> str:
    """The unit whose written number stays below 1,024 (MiB: 10,000) after rounding."""
    limits = {"B": 1024, "KiB": 1024, "MiB": _MOST_MIB, "GiB": 1024}
    for unit, limit in limits.items():
        value = Fraction(size, BYTE_UNITS[unit])
        if value < limit and _rounded(value, _places(value, decimals)) < limit:
            return unit
    return "TiB"


def _places(value: Fraction, decimals: int | None) -> int:
    """Digits after the point that leave three digits that matter."""
    if decimals is not None:
        return decimals
    if value.denominator == 1 or _rounded(value, 1) >= 100:
        return 0
    return 1 if _rounded(value, 2) >= 10 else 2


def _rounded(value: Fraction, places: int) -> Fraction:
    return Fraction(round(value * 10**places), 10**places)


def _number(value: Fraction, decimals: int | None) -> str:
    places = _places(value, decimals)
    scaled = round(value * 10**places)
    whole, rest = divmod(scaled, 10**places)
    return f"{whole:,}.{rest:0{places}d}" if places else f"{whole:,}"


def parse_bytes(text: str | int) -> int:
    """Read a size: "24GiB", "2,028.0 MiB", "512k", "24GB" or a number of bytes.

    KiB, MiB, GiB, TiB and the single letters are binary; kB, MB, GB, TB are decimal.
    Upper and lower case mean the same. A part of a byte is rounded to the nearest byte.
    """
    nbytes = None if isinstance(text, (bool, type)) else _index(text)
    if nbytes is not None:
        if nbytes < 0:
            raise ValueError(f"a size is not negative: {nbytes}")
        return nbytes
    if not isinstance(text, str):
        kind = type(text).__name__
        raise TypeError(f"a size must be an int of bytes or a text like '24GiB', not {kind}")
    match = _SIZE.fullmatch(text)
    factor = _PARSED_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"not a size: {text[:40]!r}; write it like '24GiB' or '512 MiB'")
    return round(Fraction(match[1].replace(",", "").rstrip(".")) * factor)


def _index(value: Any) -> int | None:
    """A whole number; None of anything else, also of an array of several."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def format_duration_us(duration_us: float) -> str:
    """Write a duration with three digits that matter, or two units from a minute on."""
    if not math.isfinite(duration_us) or duration_us < 0:
        raise ValueError(f"not a duration: {duration_us} us")
    exact = Fraction(duration_us)
    for unit, limit in (("us", 1000), ("ms", 1000), ("s", 60)):
        value = exact / _DURATION_UNITS[unit]
        if _rounded(value, _places(value, None)) < limit:
            return f"{_number(value, None)} {unit}"
    return _long_duration(exact)


def _long_duration(duration_us: Fraction) -> str:
    for large, small in (("min", "s"), ("h", "min"), ("d", "h")):
        count = round(duration_us / _DURATION_UNITS[small])
        whole, rest = divmod(count, _DURATION_UNITS[large] // _DURATION_UNITS[small])
        if large == "d" or whole < {"min": 60, "h": 24}[large]:
            break
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"


def format_count(count: int, noun: str = "", plural: str = "") -> str:
    """Write a count with commas between thousands, and what is counted."""
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_event(event: int) -> str:
    """Write a moment of a trace: after an event, or -1 before the first.

    Example:
        >>> format_event(1200), format_event(-1)
        ('event 1,200', 'before the trace')
    """
    return f"event {event:,}" if event >= 0 else "before the trace"


def split_share(share: float, *, decimals: int = 1) -> tuple[str, str]:
    """The number and the percent sign of a share, apart, as `format_share` writes them."""
    if not math.isfinite(share):
        raise ValueError(f"not a share: {share}")
    exact = Fraction(share) * 100
    step = Fraction(1, 10**decimals)
    if 0 < exact < step:
        return f"<{_number(step, decimals)}", "%"
    if 100 - step < exact < 100:
        return f">{_number(100 - step, decimals)}", "%"
    sign = "-" if exact < 0 else ""
    return sign + _number(abs(exact), decimals), "%"


def format_share(share: float, *, decimals: int = 1) -> str:
    """Write a share as a percentage that is 0 or 100 only when the share is 0 or 1."""
    return " ".join(split_share(share, decimals=decimals))
