# SPDX-License-Identifier: Apache-2.0
"""What every plot needs: matplotlib, a figure that shows itself, a source as a snapshot."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from neutracer.diagnose.what_if_parts import Outcome
from neutracer.errors import UnavailableError
from neutracer.render.document import Place
from neutracer.render.escape import sentence
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource

__all__ = ["opened", "picture", "place_text", "require_matplotlib", "source_name"]

# A longer name of a function or file would push the rest of a line off the picture.
_MOST_PLACE = 60


def require_matplotlib() -> None:
    """Make sure that matplotlib is there.

    Raises:
        UnavailableError: It is not installed; says what to install.
    """
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UnavailableError(
            "matplotlib", "install it with \"pip install 'neutracer[plot]'\""
        ) from None


def opened(source: Snapshot | SnapshotSource | Outcome) -> Snapshot:
    """A snapshot as it is, the one that an outcome stands for, or what `load` makes of it."""
    if isinstance(source, Outcome):
        return source.snapshot()
    return source if isinstance(source, Snapshot) else load(source)


def source_name(source: object) -> str:
    """A file's name without its endings, or an outcome's settings; empty where the source
    has no name."""
    if isinstance(source, Outcome):
        return source.settings or "default settings"
    if not isinstance(source, (str, os.PathLike)) or source == "-":
        return ""
    name = Path(os.fspath(source)).name
    for ending in (".xz", ".gz", ".zst", ".pickle", ".pkl"):
        name = name.removesuffix(ending)
    return name


def place_text(place: Place) -> str:
    """A place in one line, fit for a picture: `train.py:155 frag`."""
    return sentence(f"{place.location} {place.function}".strip(), _MOST_PLACE)


def picture(width: float, height: float, background: str, dpi: float = 100) -> Any:
    """An empty figure that shows itself in a notebook, and belongs to no window.

    Args:
        width: Inches.
        height: Inches.
        background: Its colour.
        dpi: Pixels an inch.
    """
    from neutracer.pictures.plot_figure import Picture

    return Picture(figsize=(width, height), dpi=dpi, facecolor=background)
