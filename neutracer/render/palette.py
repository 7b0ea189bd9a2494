# SPDX-License-Identifier: Apache-2.0
"""The one palette of every text, plot, graph and page.

Allocated memory is blue, darker where a block is larger; reserved but free memory is sand;
never reserved memory is blank; trouble is red. Blue, sand and red differ in lightness as
well as in hue, so that they survive greyscale print and the usual colour blindnesses.

Example:
    >>> LIGHT.ink
    '#22303c'
    >>> LIGHT.blue(1.0) == LIGHT.allocated[-1]
    True
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DARK", "LIGHT", "TERMINAL_STYLES", "Palette", "mixed"]


@dataclass(frozen=True)
class Palette:
    """Colours as `#rrggbb`, for one kind of page.

    Attributes:
        page: The background, which is also memory that was never reserved.
        ink: Text.
        grey: Text of second rank, axes.
        line: Hairlines: borders of segments, rules between rows.
        allocated: The blue scale, from the smallest block to the largest.
        groups: Bands of blocks that must differ, without an order: kinds of blue, each of
            which differs from every other one also for those who see no red or no green.
            Neighbours in this order differ most, the last and the first too.
        hues: Who or what for, where nothing else has a colour: eight hues, each of which
            differs from every other one also for those who see no red or no green.
        sand: Reserved but free.
        sand_ink: Lines and words about what is free.
        red: Trouble: running out of memory, cycles.
        red_fill: What trouble is about, as a surface under text.
        surface: Everything else that is drawn as a surface under text.
    """

    page: str
    ink: str
    grey: str
    line: str
    allocated: tuple[str, ...]
    groups: tuple[str, ...]
    hues: tuple[str, ...]
    sand: str
    sand_ink: str
    red: str
    red_fill: str
    surface: str

    def blue(self, share: float) -> str:
        """The blue of a block, between the smallest (0.0) and the largest (1.0)."""
        position = min(max(share, 0.0), 1.0) * (len(self.allocated) - 1)
        index = min(int(position), len(self.allocated) - 2)
        return mixed(self.allocated[index], self.allocated[index + 1], position - index)


def mixed(one: str, other: str, share: float = 0.5) -> str:
    """Between two colours: the first at a share of 0, the second at 1."""
    pairs = zip(_channels(one), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


LIGHT = Palette(
    page="#ffffff",
    ink="#22303c",
    grey="#5b6770",
    line="#d9dfe4",
    allocated=("#c3daee", "#82b4db", "#3f83c0", "#1a5a9e", "#0b2f66"),
    groups=(
        "#1b377d",
        "#658fdc",
        "#336a70",
        "#a0d5df",
        "#545f9f",
        "#8dbffe",
        "#01464f",
        "#578699",
    ),
    hues=(
        "#1f5fa8",
        "#d98200",
        "#0b7a5e",
        "#8a4fa3",
        "#5aa9d6",
        "#6b4226",
        "#93a90f",
        "#d67fb5",
    ),
    sand="#fae3c6",
    sand_ink="#8a5a12",
    red="#b3202a",
    red_fill="#fde3e1",
    surface="#f4f6f8",
)

DARK = Palette(
    page="#12181e",
    ink="#dfe6ec",
    grey="#98a6b2",
    line="#33404b",
    allocated=("#d6e8f8", "#a5cdef", "#72abe0", "#4f8ccb", "#3d76b5"),
    groups=(
        "#6c95f9",
        "#82cbc6",
        "#4d86aa",
        "#9df2de",
        "#679c98",
        "#5460c4",
        "#5daec5",
        "#295f7f",
    ),
    hues=(
        "#5b9be6",
        "#e09a2d",
        "#2f9e7d",
        "#a678c8",
        "#8fd0f2",
        "#a8744d",
        "#b9c93c",
        "#e6a3cd",
    ),
    sand="#5c4a30",
    sand_ink="#e5b878",
    red="#ff7a73",
    red_fill="#4a1f22",
    surface="#1c252d",
)

# A terminal has its own background, which can't be queried; its named colours are
# readable on it, so the roles of a text are given by name.
TERMINAL_STYLES = {
    "strong": "bold",
    "muted": "dim",
    "info": "blue",
    "moderate": "yellow",
    "serious": "red",
    "severe": "bold red",
}
