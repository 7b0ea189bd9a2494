# SPDX-License-Identifier: Apache-2.0
"""What a pixel has seen as a colour. Importing this imports matplotlib.

Blocks are blue, darker where larger; holes are sand; what was never reserved is left blank.
A pixel that has seen both blocks and holes is a mix of the two by their shares of its area,
between the bounds below: so even a thin block in a hole, or a thin hole among blocks, shows
in its pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb

from neutracer.pictures.mdtp.scene import SEEN_BLOCK, SEEN_HOLE, SEEN_RESERVED, Planes
from neutracer.render.palette import Palette

__all__ = ["block_scale", "blues", "extra_colours", "pixel_colours"]

# Of a mixed pixel, the least and the most that is blue.
_LEAST_BLUE = 0.75
_MOST_BLUE = 0.88

# Smaller blocks than this share one colour: most of them are thinner than a pixel.
_SMALLEST = 64 << 10

# The scale has at least this much above its lower end, also without any block.
_LEAST_TOP = 4095


def blues(palette: Palette) -> Any:
    """The blue scale, from the smallest block to the largest."""
    return LinearSegmentedColormap.from_list("neutracer", list(palette.allocated))


def block_scale(largest: int) -> Any:
    """Block sizes to 0 .. 1, by their logarithm; up to the power of two above `largest`."""
    top = 1 << max(largest - 1, _LEAST_TOP).bit_length()
    return LogNorm(min(_SMALLEST, top // 16), top, clip=True)


def pixel_colours(planes: Planes, scale: Any, palette: Palette) -> Any:
    """The picture, RGBA bytes with rows from the lowest address."""
    blocks = (planes.seen & SEEN_BLOCK) != 0
    holes = (planes.seen & SEEN_HOLE) != 0
    covered = (planes.seen & (SEEN_BLOCK | SEEN_RESERVED)) != 0
    share = np.divide(
        planes.used, planes.reserved, out=np.zeros_like(planes.used), where=planes.reserved > 0
    )
    share = np.clip(share, _LEAST_BLUE, _MOST_BLUE)
    share = np.where(blocks, np.where(holes, share, 1.0), 0.0)[..., None]
    blue = blues(palette)(scale(np.maximum(planes.largest, 1).astype(np.float64)))
    sand = np.array([*to_rgb(palette.sand), 1.0])
    mixed = share * blue + (1 - share) * sand
    mixed[~covered] = (*to_rgb(palette.page), 0.0)
    return (mixed * 255).round().astype(np.uint8)


def extra_colours(palette: Palette) -> tuple[str, ...]:
    """Colours of streams and pools: none of them blue, sand or red."""
    dark = palette.page != "#ffffff"
    if dark:
        return ("#98a6b2", "#7fd1ae", "#c9a0e8", "#d9d26a", "#e8a0c8", "#7fd8e0")
    return ("#8a949c", "#2e8b6f", "#7b4ea3", "#8f8a1e", "#b04a86", "#1e8a96")
