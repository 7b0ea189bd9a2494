# SPDX-License-Identifier: Apache-2.0
"""Shows a document on a stream: coloured on a terminal with rich, plain everywhere else.

The extra `cli` brings rich. Without it, under NO_COLOR, on a dumb terminal, in a pipe or a
file, the text is the same without colours.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from neutracer.render.document import Document
from neutracer.render.palette import TERMINAL_STYLES
from neutracer.render.text import WIDTH, Line, layout

__all__ = ["show", "write"]

# Typography that an encoding may lack, and what stands for it.
_PLAINER = str.maketrans({"·": "-", "…": "~"})


def show(document: Document, stream: TextIO | None = None, max_lines: int | None = None) -> None:
    """Print a document.

    Args:
        document: The page.
        stream: Where to; None is standard output.
        max_lines: As `render_text` has it.

    Raises:
        OSError: The stream can't be written to.
    """
    stream = sys.stdout if stream is None else stream
    is_terminal = stream.isatty()
    width = min(WIDTH, shutil.get_terminal_size().columns) if is_terminal else WIDTH
    lines = layout(document, width, max_lines)
    if not (is_terminal and _colour_wanted() and _show_rich(lines, stream)):
        text = "\n".join("".join(span.text for span in line).rstrip() for line in lines)
        write(text + "\n", stream)


def write(text: str, stream: TextIO) -> None:
    """Write text to a stream whose encoding may lack some of its characters."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plainer = text.translate(_PLAINER)
        text = plainer.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)


def _colour_wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show_rich(lines: list[Line], stream: TextIO) -> bool:
    """Print lines in colour; False where rich is not installed."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for line in lines:
        text = Text(no_wrap=True)
        for span in line:
            text.append(span.text, TERMINAL_STYLES.get(span.role))
        console.print(text, soft_wrap=True)
    return True
