# SPDX-License-Identifier: Apache-2.0
"""What every plot needs: matplotlib, a figure that shows itself, a source as a snapshot."""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import Any

from neutracer.arguments import path_name
from neutracer.diagnose.what_if_parts import Outcome
from neutracer.errors import UnavailableError
from neutracer.render.document import Place
from neutracer.render.escape import sentence
from neutracer.saving import atomic_file
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource

__all__ = [
    "moment",
    "opened",
    "picture",
    "picture_file",
    "place_text",
    "require_matplotlib",
    "save_picture",
    "source_name",
]

_PICTURES = (".png", ".svg", ".pdf")

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


def picture_file(output: str | os.PathLike[str] | None) -> str | None:
    """The name under which a picture is written, checked before it is drawn.

    Raises:
        ValueError: It does not end as a picture does.
        TypeError: It is no path.
    """
    if output is None:
        return None
    name = path_name(output, "output")
    if os.path.splitext(name)[1].lower() not in _PICTURES:
        raise ValueError(f"{name}: the name of a picture ends in {', '.join(_PICTURES)}")
    return name


def save_picture(figure: Any, name: str | None) -> Any:
    """Write a figure where a name was given; the file appears whole or not at all.

    Returns:
        The figure.

    Raises:
        OSError: It can't be written.
    """
    if name is not None:
        drawn = io.BytesIO()
        figure.savefig(drawn, format=os.path.splitext(name)[1][1:].lower())
        with atomic_file(name) as file:
            file.write(drawn.getvalue())
    return figure


def place_text(place: Place) -> str:
    """A place in one line, fit for a picture: `train.py:155 frag`."""
    return sentence(f"{place.location} {place.function}".strip(), _MOST_PLACE)


def moment(event: int) -> str:
    """When a state is: at an event, or before the first one."""
    return f"at event {event:,}" if event >= 0 else "at the start"


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
