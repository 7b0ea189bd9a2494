# SPDX-License-Identifier: Apache-2.0
"""Durations as `units.format_duration_us` writes them, read back."""

from __future__ import annotations

import re
from fractions import Fraction

_US = {"us": 1, "ms": 10**3, "s": 10**6, "min": 6 * 10**7, "h": 36 * 10**8, "d": 864 * 10**8}


def parse_duration(text: str) -> int:
    """The microseconds of a text like "3 min 20 s"."""
    parts = re.findall(r"([\d.,]+) ([a-z]+)", text)
    return round(sum(Fraction(number.replace(",", "")) * _US[unit] for number, unit in parts))
