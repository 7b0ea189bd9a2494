# SPDX-License-Identifier: Apache-2.0
"""How far two colours are apart for an eye: CIEDE2000, also for who sees no red or no green."""

from __future__ import annotations

import math

Three = tuple[float, float, float]

# Matrices of Machado, Oliveira and Fernandes (2009), severity 1, in linear RGB.
_SEEN = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}
# sRGB to XYZ under D65, each row divided by that of white.
_TO_XYZ = (
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)

EYES = tuple(_SEEN)


def _times(matrix: tuple[Three, ...], vector: Three) -> Three:
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def lab_of(colour: str, eye: str = "normal") -> Three:
    """CIE L*a*b* of `#rrggbb` as an eye sees it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    seen = _times(_SEEN[eye], (red, green, blue))
    clipped = (min(max(seen[0], 0), 1), min(max(seen[1], 0), 1), min(max(seen[2], 0), 1))
    x, y, z = (
        t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
        for t in _times(_TO_XYZ, clipped)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one: Three, other: Three) -> float:
    """The CIEDE2000 difference of two colours in L*a*b*, with weights of 1."""
    mean = (math.hypot(*one[1:]) + math.hypot(*other[1:])) / 2
    stretch = 1 + (1 - math.sqrt(mean**7 / (mean**7 + 25**7))) / 2
    (l1, a1, b1), (l2, a2, b2) = ((l, a * stretch, b) for l, a, b in (one, other))  # noqa: E741
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = h1 + turn / 2 if c1 * c2 else h1 + h2
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    t = (
        1
        - 0.17 * math.cos(math.radians(hue - 30))
        + 0.24 * math.cos(math.radians(2 * hue))
        + 0.32 * math.cos(math.radians(3 * hue + 6))
        - 0.20 * math.cos(math.radians(4 * hue - 63))
    )
    dl = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * chroma)
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    bend = math.exp(-((((hue % 360) - 275) / 25) ** 2))
    rt = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(math.radians(60 * bend))
    return math.sqrt(dl**2 + dc**2 + dh**2 + rt * dc * dh)


def distance(one: str, other: str, eye: str = "normal") -> float:
    """The CIEDE2000 difference of two colours `#rrggbb` as an eye sees them."""
    return ciede2000(lab_of(one, eye), lab_of(other, eye))
