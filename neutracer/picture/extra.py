# SPDX-License-Identifier: Apache-2.0
"""Shared by plots: the import of matplotlib, figures for notebooks, sources as snapshots."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from neutracer import question
from neutracer.arguments import path_name
from neutracer.errors import UnavailableError, missing
from neutracer.render.document import DARK, LIGHT, Palette, Place, sentence
from neutracer.saving import atomic_file, check_output
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.whatif.replaying import Outcome, named

_USUAL = ("png", "svg", "pdf")

# A longer name of a function or file would push the rest of a line off the picture.
_MOST_PLACE = 60


def marked(title: str, snap: Snapshot) -> str:
    """A title, marked if it is of a rehearsal."""
    return f"rehearsed: {title}" if snap.rehearsed is not None else title


def require_matplotlib() -> None:
    """Make sure that matplotlib is there."""
    try:
        with warnings.catch_warnings():
            # Without room for its three-dimensional part, which nothing here draws.
            warnings.filterwarnings("ignore", "Unable to import Axes3D")
            importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise missing("matplotlib") from None
    except ImportError as error:
        # NumPy tells a page about its own failure, and has the reason as the cause.
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        why = f"it is installed, and can't be imported: {sentence(str(reason))}"
        raise UnavailableError("matplotlib", why) from None


def opened(source: Snapshot | SnapshotSource | Outcome) -> Snapshot:
    """The snapshot of a source: itself, an outcome's, or loaded."""
    if isinstance(source, Outcome):
        return source.snapshot()
    return question.opened(source)


def palette_of(dark: bool | None) -> Palette:
    """The colours for a dark page or a light one; None is what matplotlib's style is for."""
    if dark is None:
        require_matplotlib()
        from matplotlib import rcParams
        from matplotlib.colors import to_rgb

        dark = sum(to_rgb(rcParams["figure.facecolor"])) < 1.5
    return DARK if dark else LIGHT


def source_name(source: object) -> str:
    """A file's name without its endings, a snapshot's the file that it was read from, or an
    outcome's settings and what was changed; empty where the source has no name."""
    if isinstance(source, Outcome):
        return named(source)
    if isinstance(source, Snapshot):
        source = source.origin
    if not isinstance(source, (str, os.PathLike)) or source == "-":
        return ""
    name = Path(os.fspath(source)).name
    for ending in (".xz", ".gz", ".zst", ".pickle", ".pkl"):
        name = name.removesuffix(ending)
    return name


def picture_file(
    output: str | os.PathLike[str] | BinaryIO | None, *sources: object
) -> str | BinaryIO | None:
    """Where a picture is written, checked before it is drawn: a name, or an open file.

    Args:
        output: Where to.
        sources: What is drawn, as for `check_output`.
    """
    require_matplotlib()
    if output is None:
        return None
    if isinstance(output, io.TextIOBase):
        raise TypeError("output is not open in binary mode: open it with 'wb'")
    if not isinstance(output, (str, os.PathLike)) and hasattr(output, "write"):
        return output
    name = path_name(cast(str, output), "output")
    from neutracer.picture.figure import Picture

    others = sorted(set(Picture().canvas.get_supported_filetypes()).difference(_USUAL))
    if _format(name) not in (*_USUAL, *others):
        raise ValueError(
            f"{name or repr(name)}: the name of a picture ends in .png, .svg or .pdf; "
            f"matplotlib also writes .{', .'.join(others)}"
        )
    check_output(name, *sources)
    return name


def _format(name: str) -> str:
    return os.path.splitext(name)[1][1:].lower()


def save_picture(
    draw: Callable[[Palette], Any], target: str | BinaryIO | None, dark: bool | None
) -> Any:
    """Draw a figure, and write it where `picture_file` said; a named file appears whole or not
    at all.

    Args:
        draw: Makes a `Picture` in these colours.
        target: Where to; None is nowhere.
        dark: As for `palette_of`; a light figure of which nothing is said follows the theme of a
            notebook.

    Returns:
        The figure.
    """
    from neutracer.picture.figure import in_plain_text

    palette = palette_of(dark)
    draw = in_plain_text(draw)
    figure = draw(palette)
    if dark is None and palette is LIGHT:
        figure.follow_theme(lambda: draw(DARK))
    if target is None:
        return figure
    drawn, ending = io.BytesIO(), _format(target) if isinstance(target, str) else "png"
    figure.savefig(drawn, format=ending)
    if isinstance(target, str):
        with atomic_file(target) as file:
            file.write(drawn.getvalue())
    else:
        target.write(drawn.getvalue())
    return figure


def place_text(place: Place) -> str:
    """A place in one line, fit for a picture: `frag train.py:155`."""
    return sentence(f"{place.function} {place.location}".strip(), _MOST_PLACE)


def moment(event: int) -> str:
    """When a state is: at an event, or before the first one."""
    return f"at event {event:,}" if event >= 0 else "at the start"


def picture(width: float, height: float, background: str) -> Any:
    """An empty figure that shows itself in a notebook, and belongs to no window."""
    from neutracer.picture.figure import Picture

    return Picture(figsize=(width, height), dpi=100, facecolor=background)
