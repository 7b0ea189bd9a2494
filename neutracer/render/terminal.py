# SPDX-License-Identifier: Apache-2.0
"""Shows a document on a stream: coloured on a terminal with rich, plain everywhere else.

The extra `cli` brings rich. Without it, under NO_COLOR, on a dumb terminal, in a pipe or a
file, the text is the same without colours.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, TextIO

from neutracer.render.document import Document
from neutracer.render.palette import TERMINAL_STYLES
from neutracer.render.text import WIDTH, Line, layout

__all__ = ["colour_wanted", "rich_text", "show", "show_lines", "terminal_width", "write"]

# Typography that an encoding may lack, and its replacement.
_PLAINER = str.maketrans({"·": "-", "…": "~", "│": "|"})


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
    show_lines(layout(document, terminal_width(stream), max_lines), stream)


def terminal_width(stream: TextIO) -> int:
    """The columns that a page has on a stream: a terminal's own, else 100."""
    return shutil.get_terminal_size().columns if stream.isatty() else WIDTH


def show_lines(lines: list[Line], stream: TextIO) -> None:
    """Print lines that were laid out already.

    Raises:
        OSError: The stream can't be written to.
    """
    if not (stream.isatty() and colour_wanted() and _show_rich(lines, stream)):
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


def colour_wanted() -> bool:
    """Whether the user wants colours, not plain text."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show_rich(lines: list[Line], stream: TextIO) -> bool:
    """Print lines in colour; False where rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return False
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    # In one write: several ranks may share the terminal.
    console.print(rich_text(lines), soft_wrap=True)
    return True


def rich_text(lines: list[Line]) -> Any:
    """Lines as one `Text` of rich, which must be installed."""
    from rich.text import Text

    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(span.text, TERMINAL_STYLES.get(span.role))
    return text
